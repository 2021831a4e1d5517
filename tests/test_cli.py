"""The command line: verbs, exit statuses, outputs that other programs parse (`docs/spec/config-and-cli.md` 3, 4, 9)."""

import fcntl
import json
import os
import re
import socket
import subprocess
import threading
import time

import pytest

import cluster as C
from cluster import MIB

GOOD = os.path.abspath(os.path.join(C.TESTS, "..", "vectors", "config", "good"))
SAMPLES = sorted(n for n in os.listdir(GOOD) if os.path.exists(os.path.join(GOOD, n, "expected.json")))


def urbd(*args, conf=None, node="alpha", env=None, **kw):
    e = {k: v for k, v in os.environ.items() if not k.startswith("URBD_")}
    e.update({"URBD_NODE": node, "URBD_RUN_DIR": "/nonexistent/run", **(env or {})})
    return subprocess.run([C.URBD, *(["--config", str(conf)] if conf else []), *args], capture_output=True, text=True, env=e,
                          timeout=20, stdin=subprocess.DEVNULL, **kw)


# ---- without a running node -------------------------------------------------------------


def test_version():
    r = urbd("--version")
    assert r.returncode == 0
    words = dict(x.split("=", 1) for x in r.stdout.strip().split("\n") if "=" in x)
    for key in ("DRBDADM_API_VERSION", "DRBD_KERNEL_VERSION_CODE", "DRBDADM_VERSION_CODE", "DRBDADM_VERSION", "URBD_VERSION"):
        assert key in words, r.stdout


def test_help_names_every_verb():
    r = urbd("help")
    assert r.returncode == 0
    for verb in ("create-md", "up", "down", "attach", "detach", "connect", "disconnect", "primary", "secondary", "status",
                 "adjust", "dump", "dump-md", "restore-md", "show-gi", "get-gi", "apply-al", "wipe-md", "invalidate",
                 "invalidate-remote", "wait-connect", "wait-sync", "role", "cstate", "dstate", "sh-dev", "nbd-uri", "run"):
        assert re.search(rf"\b{verb}\b", r.stdout), verb


@pytest.mark.parametrize("args", [["no-such-verb"], ["up"], ["up", "no-such-resource"], ["primary", "--no-such-option", "all"],
                                  ["attach", "r0/99"]])
def test_bad_calls(args):
    r = urbd(*args, conf=os.path.join(GOOD, SAMPLES[0], "drbd.conf"))
    assert r.returncode == 1 and r.stderr.strip(), r
    assert not r.stdout.strip()


def test_config_cannot_be_read(tmp_path):
    r = urbd("dump", "all", conf=tmp_path / "missing.conf")
    assert r.returncode == 20 and "missing.conf" in r.stderr, r


def test_unknown_name_lists_the_known_ones():
    conf = os.path.join(GOOD, "01-classic-84", "drbd.conf")
    names = urbd("sh-resources", conf=conf).stdout.split()
    assert names
    r = urbd("up", "no-such-resource", conf=conf)
    assert any(n in r.stderr for n in names), r.stderr
    # Not "start it with urbd up": there is nothing to be started.
    r = urbd("status", "no-such-resource", conf=conf)
    assert r.returncode == 10 and "there is no resource `no-such-resource`" in r.stderr and "urbd up" not in r.stderr, r


def test_an_option_without_its_section(tmp_path):
    conf = tmp_path / "urbd.conf"
    for option, section in (("ping-int 1", "net"), ("resync-rate 1M", "disk"), ("protocol-version-max 124", "urbd")):
        conf.write_text(f"resource r0 {{ {option}; }}")
        r = urbd("up", "r0", conf=conf)
        word = option.split()[0]
        assert r.returncode == 10 and f"it belongs into a section: {section} {{ {word} …; }}" in r.stderr, r


@pytest.mark.parametrize("sample", SAMPLES)
def test_dump(sample):
    """`dump all` prints byte for byte what the real drbdadm prints."""
    folder = os.path.join(GOOD, sample)
    want = os.path.join(folder, "dump.txt")
    r = urbd("dump", "all", conf=os.path.join(folder, "drbd.conf"))
    assert r.returncode == 0, r

    def body(text):  # the comment lines name the file by its place on the recording machine
        text = text.replace(os.path.abspath(folder), "/etc")
        return [x.rstrip() for x in text.split("\n") if x.strip() and not x.lstrip().startswith("#")]

    with open(want) as f:
        assert body(r.stdout) == body(f.read())


# ---- a running pair ------------------------------------------------------------------------


def test_life_of_a_resource(pair):
    """Every verb once, in the order of a life, with its exit status."""
    a, b = pair.nodes
    assert a.call("status", "r0").rc == 10 and "No such resource" in a.call("status", "r0").err
    assert a.call("status").out == "r0 not running: it was not started, or it was stopped. Next: urbd up r0\n"
    assert a.call("status").rc == 0
    assert a.call("down", "r0").rc == 0  # not running: nothing to do
    assert a.call("create-md", "r0").rc == 0  # only zeroes on the disk: no question
    assert a.call("create-md", "r0").rc == 1  # metadata there: asks, nobody answers
    assert a.call("create-md", "--force", "r0").rc == 0
    assert a.call("dstate", "r0").out.strip().startswith("Inconsistent")
    assert re.match(r"[0-9A-F]{16}:", a.urbd("get-gi", "r0").out)
    assert a.urbd("show-gi", "r0").out
    b.urbd("create-md", "--force", "r0")
    for n in (a, b):
        n.start()
    assert a.call("up", "r0").rc in (0, 1)
    for n in (a, b):
        assert n.call("wait-connect", "r0", timeout=30).rc == 0
    assert a.urbd("role", "r0").out.split("/")[0].strip() == "Secondary"
    assert a.call("primary", "r0").rc == 17
    a.urbd("primary", "--force", "r0")
    assert a.call("wait-sync", "r0", timeout=60).rc == 0
    pair.wait_synced()
    assert a.urbd("role", "r0").out.split("/")[0].strip() == "Primary"
    assert a.urbd("cstate", "r0").out.strip() == "Connected"
    assert a.urbd("dstate", "r0").out.strip() == "UpToDate/UpToDate"
    gi = [n.urbd("get-gi", "r0").out.split(":")[0] for n in (a, b)]
    assert int(gi[0], 16) & ~1 == int(gi[1], 16) & ~1, "both have the same generation"
    assert a.urbd("sh-dev", "r0").out.strip().startswith("/dev/")
    assert re.fullmatch(r"nbd\+unix:///r0/0\?socket=\S+", a.uri())
    assert a.urbd("sh-minor", "r0").out.strip() == "0"
    assert a.urbd("sh-ll-dev", "r0").out.strip() == a.disk_file()
    assert a.urbd("sh-resources").out.split() == ["r0"]
    r = a.call("dump-md", "r0")  # in use: no more than a glance
    assert r.rc == 0 and "might be stale" in r.out, r
    assert a.call("wipe-md", "--force", "r0").rc == 20
    assert a.call("adjust", "r0").rc == 0
    b.urbd("disconnect", "r0")
    assert b.call("cstate", "r0").out.strip() == "StandAlone"
    b.urbd("adjust", "r0")  # the configuration says connected
    pair.wait_synced()
    b.urbd("detach", "r0")
    assert b.urbd("dstate", "r0").out.strip() == "Diskless/UpToDate"
    b.urbd("adjust", "r0")
    pair.wait_synced()
    assert b.call("secondary", "r0").rc == 0
    b.urbd("invalidate", "r0")
    pair.wait_synced()
    a.urbd("secondary", "r0")
    for n in (a, b):
        n.stop()
    assert a.call("dstate", "r0").out.strip().startswith("UpToDate") or "Consistent" in a.call("dstate", "r0").out
    assert a.call("apply-al", "r0").rc == 0
    dump = a.urbd("dump-md", "r0").out
    assert "version" in dump and "bm" in dump
    assert a.call("wipe-md", "r0").rc == 1  # asks
    assert a.call("wipe-md", "--force", "r0").rc == 0
    assert a.call("wipe-md", "--force", "r0").rc == 0
    assert a.call("up", "r0").rc == 1
    path = os.path.join(a.dir, "dump")
    with open(path, "w") as f:
        f.write(dump)
    assert a.call("create-md", "--force", "r0").rc == 0
    assert a.call("restore-md", "r0", path).rc == 1  # asks
    assert a.call("restore-md", "--force", "r0", path).rc == 0
    assert a.urbd("dump-md", "r0").out.split("\n")[3:] == dump.split("\n")[3:]


def test_status_for_people(synced):
    a, b = synced.nodes
    text = a.urbd("status", "r0").out
    lines = [x for x in text.split("\n") if x.strip()]
    assert re.match(r"r0 role:Primary", lines[0]), text
    assert re.match(r"  (volume:0 )?disk:UpToDate", lines[1]), text
    assert re.match(r"  b +role:Secondary", lines[2]), text  # a one-letter name moves the next word
    assert re.match(r"    (volume:0 )?(replication:Established )?peer-disk:UpToDate", lines[3]), text
    assert "role:Secondary" in b.urbd("status").out
    verbose = a.urbd("status", "--verbose", "--statistics", "r0").out
    for word in ("suspended:no", "minor:0", "size:", "read:", "written:", "out-of-sync:0", "connection:Connected"):
        assert word in verbose, verbose


SCHEMA = {
    "resource": {"name": str, "node-id": int, "role": str, "suspended": bool, "suspended-user": bool,
                 "suspended-no-data": bool, "suspended-fencing": bool, "suspended-quorum": bool,
                 "force-io-failures": bool, "write-ordering": str, "devices": list, "connections": list},
    "device": {"volume": int, "minor": int, "disk-state": str, "client": bool, "open": bool, "quorum": bool, "size": int,
               "read": int, "written": int, "al-writes": int, "bm-writes": int, "upper-pending": int,
               "lower-pending": int},
    "connection": {"peer-node-id": int, "name": str, "connection-state": str, "congested": bool, "peer-role": str,
                   "ap-in-flight": int, "rs-in-flight": int, "peer_devices": list},
    "peer_device": {"volume": int, "replication-state": str, "peer-disk-state": str, "peer-client": bool,
                    "resync-suspended": str, "received": int, "sent": int, "out-of-sync": int, "pending": int,
                    "unacked": int, "has-sync-details": bool, "has-online-verify-details": bool},
}


def conforms(kind, have):
    for key, kinds in SCHEMA[kind].items():
        assert key in have, f"{kind} lacks {key}"
        assert type(have[key]) is kinds, f"{kind}: {key} is {have[key]!r}"


def test_status_for_machines(synced):
    a, b = synced.nodes
    a.write(0, os.urandom(65536))
    for n in (a, b):
        s = n.status()
        conforms("resource", s)
        conforms("device", s["devices"][0])
        conforms("connection", s["connections"][0])
        p = s["connections"][0]["peer_devices"][0]
        conforms("peer_device", p)
        assert s["connections"][0]["name"] == ("b" if n is a else "a")
        assert p["percent-in-sync"] == 100
        assert s["devices"][0]["size"] * 1024 == n.data_size()
    assert a.status()["devices"][0]["written"] == 64
    assert a.status()["connections"][0]["peer_devices"][0]["sent"] >= 64


def test_errors_have_codes_that_programs_match(synced):
    a, b = synced.nodes
    for node, verb, rc, pattern in (
            (b, ("primary", "r0"), 11, r"r0: State change failed: \(-1\)"),
            (a, ("attach", "r0"), 10, r"Failure: \(124\)"),
            (a, ("connect", "r0"), 10, r"Failure: \(125\)")):
        r = node.call(*verb)
        if verb[0] == "connect" and r.rc == 0:
            continue  # a connected connection may stay connected without complaint
        assert r.rc == rc and re.search(pattern, r.err), (verb, r)


def test_wait_connect_times_out(pair):
    a, _ = pair.nodes
    a.urbd("create-md", "--force", "r0")
    a.start()
    r = a.call("wait-connect", "--wfc-timeout=1", "--degr-wfc-timeout=1", "--outdated-wfc-timeout=1", "r0", timeout=20)
    assert r.rc == 5, r


def test_adjust_applies_changes(synced):
    a, b = synced.nodes
    synced.configure(net="max-buffers 4000;", disk="on-io-error pass_on;")
    plan = a.urbd("-d", "adjust", "r0").out
    assert "max-buffers" in plan and "on-io-error" in plan, plan
    a.urbd("adjust", "r0")
    assert not a.urbd("-d", "adjust", "r0").out.strip()
    synced.wait_synced()


def test_adjust_takes_over_other_volumes_while_secondary(synced):
    a, b = synced.nodes
    assert a.status()["role"] == "Primary"
    for n in (a, b):
        with open(n.disk_file(1), "wb") as f:
            f.truncate(8 * MIB)
    synced.configure(volumes=2)
    a.urbd("secondary", "r0")
    r = a.call("adjust", "r0")
    assert r.rc == 1 and "create-md" in r.err, r   # found before anything was stopped
    [before] = a.pids()
    for n in (a, b):
        n.urbd("create-md", "--force", "r0/1")
        n.urbd("adjust", "r0")
        assert not n.urbd("-d", "adjust", "r0").out.strip()
    assert before in a.pids()
    a.wait(conn="Connected")
    a.urbd("new-current-uuid", "--clear-bitmap", "r0/1")
    a.urbd("primary", "r0")
    assert [d["volume"] for d in a.status()["devices"]] == [0, 1]
    synced.wait_synced()
    # and back
    a.urbd("secondary", "r0")
    synced.configure(volumes=1)
    for n in (a, b):
        n.urbd("adjust", "r0")
    synced.wait_synced()
    assert [d["volume"] for d in b.status()["devices"]] == [0]


def test_down_waits_for_a_process_that_is_being_killed(pair):
    """Its socket may take one more connection, and its lock goes later: neither is an error of `down`."""
    a, _ = pair.nodes
    os.makedirs(a.run_dir, exist_ok=True)
    lock, sock = (os.path.join(a.run_dir, f"r0.{end}") for end in ("pid", "sock"))
    steps = []
    with open(lock, "w") as held, socket.socket(socket.AF_UNIX) as listener:
        fcntl.flock(held, fcntl.LOCK_EX)
        listener.bind(sock)
        listener.listen()

        def die():
            listener.accept()[0].close()
            listener.close()
            time.sleep(1)
            steps.append("lock released")
            fcntl.flock(held, fcntl.LOCK_UN)
        dying = threading.Thread(target=die)
        dying.start()
        a.urbd("down", "r0")
        steps.append("down")
        dying.join()
    assert steps == ["lock released", "down"] and not os.path.exists(sock)


def test_two_resources_do_not_touch_each_other(cluster):
    a, b = cluster.node("a", size=8 * MIB, volumes=2), cluster.node("b", size=8 * MIB, volumes=2)
    for i in (0, 1):
        text = C.config_text([a, b], name=f"r{i}", port=7788 + i, minor=i).replace("disk0", f"disk{i}")
        for n in (a, b):
            n.put_res(f"r{i}", text)
    for n in (a, b):
        n.urbd("create-md", "--force", "all")
        n.urbd("up", "all")
    for i in (0, 1):
        a.wait(res=f"r{i}", conn="Connected")
    a.urbd("primary", "--force", "r0")
    b.urbd("primary", "--force", "r1")
    a.wait(res="r0", role="Primary", peer_disk="UpToDate")
    a.wait(res="r1", role="Secondary", disk="UpToDate")
    assert {x["name"] for x in json.loads(a.urbd("status", "--json").out)} == {"r0", "r1"}
    a.urbd("down", "r1")
    a.wait(res="r0", role="Primary", conn="Connected")
    for n in (a, b):
        n.urbd("down", "all")
        C.eventually("all processes end", lambda: not n.pids(), 20)
