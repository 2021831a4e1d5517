"""`urbd bench`: that it measures what it says, at sizes where no figure means anything. No times are judged here."""

import contextlib
import glob
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

import cluster as C
import scratch
from cluster import MIB

CASES = {"seeds": ["mirroring", "protocols", "activity-log", "resync", "client"],
         "bars": ["in-process", "three", "counts", "nbd", "fuse"]}

ALTERNATIVES = {"GlusterFS", "nbdkit, one copy", "qemu mirror", "qemu quorum", "tgt + libiscsi", "bindfs, one copy", "limit",
                "system calls", "packets"}


def bench(*args, timeout=120):
    return subprocess.run([C.URBD, "bench", *map(str, args)], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)


def run(*args):
    r = bench("run", "--json", *args)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)["outcome"]


def left_behind(place):
    """Processes that have to do with that folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                line = f.read()
        except OSError:
            continue
        if str(place).encode() in line:
            found.append(line)
    return found


# ---- one workload ------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", "ABC")
def test_a_pair_is_verified_on_both_disks(protocol):
    got = run("--size", "16M", "--requests", 3000, "--depth", 16, "--verify", "--protocol", protocol, "--flush", 500)
    assert got["requests"] == 3000 and got["bytes"] == 3000 * 4096 and got["errors"] == 0
    assert 0 < got["verified"] <= 3000
    assert {role for role, _ in got["cpu"]} == {"primary", "secondary"}
    assert sum(count for _, count in got["latencies"]) == 3000


def test_sequential_covers_everything():
    got = run("--size", "16M", "--pattern", "sequential", "--bs", "64k", "--requests", 200, "--depth", 4, "--verify")
    assert got["verified"] == 200


def test_an_nbd_export(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(8 * MIB))
    sock = tmp_path / "sock"
    server = subprocess.Popen(["nbdkit", "-f", "-U", sock, "file", disk])
    try:
        C.eventually("nbdkit listens", sock.exists)
        uri = f"nbd+unix:///?socket={sock}"
        r = bench("run", "--target", uri)
        assert r.returncode == 1 and "would be destroyed" in r.stderr
        assert disk.read_bytes() == bytes(8 * MIB)
        got = run("--target", uri, "--overwrite", "--requests", 2000, "--depth", 32, "--verify", "--reads", 20)
        assert got["errors"] == 0 and got["verified"] > 500
        assert disk.read_bytes() != bytes(8 * MIB)
        got = run("--target", uri, "--reads", 100, "--bs", "1M", "--requests", 50, "--depth", 4)
        assert got["bytes"] == 50 * MIB
    finally:
        server.kill()
        server.wait()


def test_a_file(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(4 * MIB))
    got = run("--target", disk, "--overwrite", "--requests", 1000, "--depth", 4, "--verify", "--flush-at-end")
    assert got["errors"] == 0 and got["verified"] > 200
    assert run("--target", disk, "--reads", 100, "--requests", 100, "--size", "1M")["requests"] == 100


@pytest.mark.parametrize("args, says", [
    (["--bs", "1000"], "multiple of 512"), (["--bs", "4q"], "with k, M or G"), (["--depth", "0"], "queue depth"),
    (["--pattern", "zigzag"], "random or sequential"), (["--reads", "101"], "0 to 100"), (["--protocol", "D"], "A, B or C"),
    (["--target", "/nonexistent/disk", "--overwrite"], "/nonexistent/disk"), (["--seconds=-1"], "--seconds"),
    (["--target", "nbd://", "--overwrite"], ""), (["--dir", "/nonexistent"], "--dir"),
])
def test_bad_calls(args, says):
    r = bench("run", "--size", "8M", *args)
    assert r.returncode in (1, 10, 20) and says in r.stderr and not r.stdout, r


def test_what_has_no_room_is_not_begun(tmp_path):
    r = bench("run", "--size", "9000G", "--dir", tmp_path)
    assert r.returncode == 10 and "no room for 9216000 MiB" in r.stderr and "--size" in r.stderr, r
    assert not list(tmp_path.iterdir())


# ---- the cases ---------------------------------------------------------------------------


@contextlib.contextmanager
def mount_namespaces():
    """Somebody makes mount namespaces all the time: each keeps what is mounted while it is made."""
    script = 'while :; do unshare --mount --propagation private sleep 3 & sleep 0.2; done'
    maker = subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(maker.pid, signal.SIGKILL)
        maker.wait()


def test_a_killed_bench_leaves_no_process_and_no_loop_device():
    with scratch.lasting("urbd-test-", C.scratch_dir()) as place:
        p = subprocess.Popen([C.URBD, "bench", "seeds", "--tiny", "--only", "mirroring", "--dir", place],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def devices():
            files = {f: Path(f).read_text() for f in glob.glob("/sys/block/loop*/loop/backing_file") if os.path.exists(f)}
            return [f for f, backing in files.items() if backing.startswith(str(place))]

        try:
            C.eventually("the modelled disks are there", lambda: len(devices()) == 3, 60)
            found = devices()
        finally:
            p.kill()
            p.wait()
        C.eventually("the processes are gone", lambda: not left_behind(place), 20)
        for mount in [x.split()[1] for x in Path("/proc/self/mounts").read_text().splitlines() if str(place) in x]:
            subprocess.run(["umount", "-l", mount], check=True)
        C.eventually("the loop devices are free", lambda: not any(map(os.path.exists, found)), 20)


@pytest.mark.parametrize("name", [pytest.param((s, n), id=n) for s, names in CASES.items() for n in names])
def test_case(name, tmp_path):
    which, case = name
    files = {kind: tmp_path / f"r.{kind}" for kind in ("json", "html", "md")}
    files["md"].write_text("head\n<!-- urbd bench: begin -->\n<!-- urbd bench: end -->\ntail\n")
    with scratch.lasting("urbd-test-", C.scratch_dir()) as place:
        with mount_namespaces() if case == "mirroring" else contextlib.nullcontext():
            r = bench(which, "--tiny", "--rounds", 2, "--only", case, "--json", files["json"], "--html", files["html"],
                      "--markdown", files["md"], "--dir", place)
        assert not left_behind(place)
        assert os.listdir(place) == [scratch.LOCK]
    assert r.returncode == 0, r.stdout + r.stderr
    report = json.loads(files["json"].read_text())
    assert report["version"] == 1 and report["scale"] == "tiny" and report["rounds"] == 2
    assert report["machine"]["cpus"] > 0
    [got] = report["cases"]
    assert got["name"] == case
    # Alternatives are for `make bench`: the tests do without.
    absent = {a["contender"]: a["why"] for a in got["absent"]}
    assert all(who in ALTERNATIVES and "is not installed" in why for who, why in absent.items()), absent
    for row in got["rows"]:
        assert len(row["values"]) == 2 and all(v >= 0 for v in row["values"]), row
    assert got["bars"] and all(len(bar["values"]) == 2 for bar in got["bars"] if not absent), got["bars"]
    jobs = {row["job"] for row in got["rows"]}
    page = files["html"].read_text()
    assert page.count("<svg") >= len(jobs) and "NaN" not in page
    assert not re.search(r"<script|src=|https?://", page), "the page must not fetch anything"
    for bar in got["bars"]:
        assert bar["what"] in files["md"].read_text()
    assert files["md"].read_text().startswith("head\n") and files["md"].read_text().endswith("tail\n")
    nodes = {stage["stage"]["role"] for stage in got["stages"]}
    assert nodes >= {"primary"} or case == "resync", "where the time goes on urbd's nodes is part of the report"
    assert "where the time goes" in page or not nodes
    again = bench("show", files["json"])
    shape = [re.sub(r"[0-9.]+", "0", text) for text in (again.stdout, r.stdout)]
    assert again.returncode == 0 and shape[0] == shape[1]


@pytest.fixture
def place():
    """A folder with a short name, as sockets are made in it."""
    with scratch.lasting("urbd-test-", C.scratch_dir()) as path:
        yield Path(path)


def test_a_killed_run_leaves_nothing_for_long(place):
    """Nobody can tidy up after SIGKILL: the next run does."""
    command = [C.URBD, "bench", "run", "--size", "8M", "--seconds", "60", "--dir", str(place)]

    def folders():
        return list(place.glob("urbd-bench-*"))

    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as killed:
        C.eventually("disks", lambda: list(place.glob("urbd-bench-*/second.disk")), 20)
        r = bench("run", "--size", "8M", "--requests", 100, "--dir", place)
        assert r.returncode == 0 and len(folders()) == 1, "the folder of a run that is alive was taken"
        killed.kill()
    assert folders()
    C.eventually("its nodes are gone", lambda: not left_behind(place))
    r = bench("run", "--size", "8M", "--requests", 100, "--dir", place)
    assert r.returncode == 0 and not r.stderr, r.stderr
    assert not folders()


def test_lists_and_unknown_names():
    for which, names in CASES.items():
        r = bench(which, "--list")
        assert r.returncode == 0 and [line.split()[0] for line in r.stdout.splitlines()] == names
    r = bench("bars", "--only", "nonsense")
    assert r.returncode == 1 and "in-process" in r.stderr


def test_show_refuses_what_is_no_report(tmp_path):
    wrong = tmp_path / "x.json"
    wrong.write_text('{"version": 99}')
    r = bench("show", wrong)
    assert r.returncode == 1 and str(wrong) in r.stderr
