"""demo/three, as `make demo NODES=3` runs it: ends by itself, shows what it promises, and leaves nothing behind; also where it
is interrupted.  demo/run is what continuous integration begins with (.ci/run, .github/workflows/ci.yml)."""

import os
import re
import signal
import subprocess

import pytest

import cluster as C
from cluster import eventually

DEMO = os.path.join(C.TESTS, "..", "demo", "three")


def begun(tmp_path, **variables):
    env = {**os.environ, "URBD_BIN": C.URBD, "TMPDIR": str(tmp_path), "TERM": "dumb", **variables}
    env.pop("URBD_DEMO_NETWORK", None)
    out = open(tmp_path / "out", "w")
    return subprocess.Popen([DEMO], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)


def said(tmp_path):
    return (tmp_path / "out").read_text()


def left_behind(tmp_path):
    """What still names the demonstration's directory: processes, mounts, loop devices, and files in it."""
    found = [f for f in os.listdir(tmp_path) if f != "out"]
    with open("/proc/mounts") as f:
        found += [line for line in f if str(tmp_path) in line]
    found += [line for line in subprocess.run(["losetup", "-a"], capture_output=True, text=True).stdout.splitlines() if str(tmp_path) in line]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if int(pid) != os.getpid() and f"TMPDIR={tmp_path}".encode() in f.read():
                    with open(f"/proc/{pid}/cmdline", "rb") as f:
                        found.append(f.read().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", ["fs", "nbd"])
def test_three_nodes(tmp_path, how):
    demo = begun(tmp_path, URBD_DEMO=how)
    assert demo.wait(240) == 0, said(tmp_path)
    text = said(tmp_path)
    assert ("ext4 file system" in text) == (how == "fs"), text
    for sentence in ("alpha is dead (SIGKILL)", "in sync with both", "bravo, which is primary and written to, is cut off",
                     "I/O is frozen, because too few nodes are in reach", "not one write was acknowledged",
                     "all three disks are identical", "nothing lost"):
        assert sentence in text, text
    assert re.search(r"no quorum: 1 of 3 voters in reach, 2 needed \[quorum-lost\]", text), text
    assert left_behind(tmp_path) == []


def test_who_interrupts_it_while_the_primary_is_cut_off_has_nothing_left(tmp_path):
    demo = begun(tmp_path)
    eventually("it shows the cut", lambda: "[quorum-lost]" in said(tmp_path) or demo.poll() is not None, 120)
    assert demo.poll() is None, said(tmp_path)
    demo.send_signal(signal.SIGTERM)
    assert demo.wait(60) == 130, said(tmp_path)
    assert left_behind(tmp_path) == []


def test_who_may_not_have_a_network_is_told_and_sees_the_rest(tmp_path):
    """As where neither root nor user namespaces are permitted."""
    without = tmp_path / "without"
    without.mkdir()
    (without / "unshare").write_text("#!/bin/sh\nexit 1\n")
    (without / "unshare").chmod(0o755)
    demo = begun(tmp_path, PATH=f"{without}:{os.environ['PATH']}", URBD_DEMO="nbd")
    assert demo.wait(240) == 0, said(tmp_path)
    assert "nobody is cut off" in said(tmp_path) and "all three disks are identical" in said(tmp_path)
    (without / "unshare").unlink()
    without.rmdir()
    assert left_behind(tmp_path) == []
