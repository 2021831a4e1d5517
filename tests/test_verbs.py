"""Whatever is asked in whatever state has an answer within 10 s.  crates/core/tests/pair/verbs.rs asks for every pair of
commands; here are whole processes, with what the core does not see: sockets, signals, disks that hang."""

import contextlib
import json
import os
import signal
import socket
import threading
import time

import pytest

import cluster as C
from cluster import MIB, eventually
from faulty_disk import FaultyDisk

LIMIT = 25.0
VERBS = ("disconnect", "connect", "detach", "attach", "primary", "secondary", "invalidate", "invalidate-remote",
         "outdate", "pause-sync", "resume-sync", "suspend-io", "resume-io", "verify", "resize", "new-current-uuid", "adjust")


def gone(node, sig=None, res="r0"):
    """Waits for the end of the process of `node` (after a signal, if one is named)."""
    p = node.processes.pop(res)
    if sig:
        os.kill(p.pid, sig)
    try:
        assert p.wait(LIMIT) == 0, node.log()[-3000:]
    except BaseException:
        p.kill()
        raise


def down(node, *args):
    node.verb("down", *args, "r0", timeout=LIMIT)
    gone(node)


def fresh(c, state, good, **options):
    """Both nodes begin anew with these disks, the first one as Primary; the second one is brought into this state."""
    a, b = c.nodes
    for n in c.nodes:
        if n.processes:
            n.kill()
        with open(n.disk_file(), "wb") as f:
            f.write(good[n.name])
    slow = state in ("SyncTarget", "SyncSource", "VerifyT")
    disk = "c-plan-ahead 0; resync-rate 250K;" if slow else C.FAST_DISK
    text = c.configure(fast=False, net=C.FAST_NET + "verify-alg crc32c;", disk=disk, **options)
    if state == "a wrong secret":
        b.put_res("r0", text.replace("protocol C;", "protocol C; cram-hmac-alg sha256; shared-secret other;"))
    before = b.log().count("the next try is in")
    for n in c.nodes:
        n.start()
    a.urbd("primary", "r0")
    if state == "a wrong secret":
        return eventually("a refusal", lambda: b.log().count("the next try is in") > before)
    b.wait(conn="Connected", disk="UpToDate", peer_disk="UpToDate", peer_role="Primary")
    if state == "StandAlone":
        b.urbd("disconnect", "r0")
    elif state == "Connecting":
        a.urbd("disconnect", "r0")
        b.wait(conn="Connecting")
    elif state == "SyncTarget":
        b.urbd("invalidate", "r0")
        b.wait(repl="SyncTarget")
    elif state == "SyncSource":
        a.urbd("invalidate", "r0")
        b.wait(repl="SyncSource")
    elif state == "VerifyT":
        a.urbd("verify", "r0")
        b.wait(repl="VerifyT")
    elif state == "Diskless":
        b.urbd("detach", "r0")


def stopped_pair(c, **options):
    """What is on the disks of two nodes that were in sync and are down."""
    c.up(**options)
    a, b = c.nodes
    a.urbd("secondary", "r0")
    good = {}
    for n in (b, a):
        n.stop()
        with open(n.disk_file(), "rb") as f:
            good[n.name] = f.read()
    return good


STATES = ["Connected", "StandAlone", "Connecting", "SyncTarget", "VerifyT", "Diskless", "a wrong secret"]


@pytest.mark.parametrize("state", STATES)
def test_down_after_each_verb(pair, state):
    """`VERB r0; down r0` on a Secondary: both end, and so does the process."""
    good = stopped_pair(pair)
    b = pair.nodes[1]
    for verb in VERBS:
        fresh(pair, state, good)
        r = b.call(verb, "r0", timeout=LIMIT)
        assert r.rc in (0, 10, 11, 17), (verb, r)
        b.call("secondary", "r0", timeout=LIMIT)
        b.call("resume-io", "r0", timeout=LIMIT)
        r = b.call("down", "r0", timeout=LIMIT)
        if verb == "invalidate-remote" and r.rc:
            assert r.rc == 11 and "refused by" in r.err, r  # the Primary lives on this node's data
            r = b.call("down", "--force", "r0", timeout=LIMIT)
        assert r.rc == 0, (verb, r)
        gone(b)


@pytest.mark.parametrize("state", STATES)
def test_the_first_signal_ends_a_secondary(pair, state):
    fresh(pair, state, stopped_pair(pair))
    gone(pair.nodes[1], signal.SIGTERM)


@contextlib.contextmanager
def hanging(c, role):
    """The node of that role, whose disk hangs under a write, and has for a while."""
    a, b = (c.node(name) for name in "ab")
    n = a if role == "Primary" else b
    disk = FaultyDisk(n)
    c.up(fast=False, net="ping-int 3; timeout 60; ko-count 0;", disk=C.FAST_DISK)
    with a.nbd() as h:
        disk.hang()
        writer = threading.Thread(target=attempt, args=(h,))
        writer.start()
        try:
            time.sleep(4)  # what says that a disk hangs, not that it is slow
            yield n
        finally:
            disk.heal()
            for x in c.nodes:
                if x.processes:
                    x.kill()
            writer.join(20)


def attempt(export):
    """A write that may fail."""
    with contextlib.suppress(Exception):
        export.write(0, b"x" * 4096)


@pytest.mark.parametrize("role, verb", [("Primary", "detach"), ("Secondary", "detach"), ("Secondary", "down")])
def test_a_disk_that_hangs_is_named_at_once(cluster, role, verb):
    with hanging(cluster, role) as n:
        r = n.call(verb, "r0", timeout=LIMIT / 2)
        assert r.rc == 11 and n.disks[0].path in r.err and "has not answered for" in r.err and "--force" in r.err, r
        r = n.call("down", "--force", "r0", timeout=LIMIT)
        # A kernel may keep a process with requests on such a disk, even one that was killed.
        assert r.rc == 0 or r.rc == 20 and "the kernel keeps it until its disk answers" in r.err, r
        assert n.call("status", "r0").rc == 10, "it still serves"
        n.disks[0].heal()
        gone(n)
        n.urbd("down", "r0")


def test_who_does_not_read_events_keeps_nobody_from_going_down(pair):
    good = stopped_pair(pair)
    fresh(pair, "Connected", good)
    b = pair.nodes[1]
    with contextlib.ExitStack() as stack:
        def client(request):
            s = stack.enter_context(socket.socket(socket.AF_UNIX))
            s.settimeout(LIMIT)
            s.connect(os.path.join(b.run_dir, "r0.sock"))
            s.sendall(b'{"hello":{"version":1}}\n' + json.dumps(request).encode() + b"\n")
            return s

        client({"events": {"now": False, "statistics": False}})
        # Each change is an event; many of them do not fit what the kernel keeps for the one that does not read.
        asking = client("status")
        answers = asking.makefile()
        for i in range(600):
            verb = "resume-sync" if i % 2 else "pause-sync"
            asking.sendall(json.dumps({"command": {verb: {"peer": None, "volume": None}}}).encode() + b"\n")
        for _ in range(602):
            assert answers.readline()
        down(b)


def test_down_asks_the_peer_that_lives_on_this_node(pair):
    """The other node is Primary and target: its users read from here."""
    good = stopped_pair(pair)
    fresh(pair, "SyncSource", good)
    a, b = pair.nodes
    for end in ("force", "signal"):
        r = b.call("down", "r0", timeout=LIMIT)
        assert r.rc == 11 and "State change was refused by peer node" in r.err and "--force" in r.err, r
        assert b.state()["repl"] == "SyncSource" and a.state()["repl"] == "SyncTarget"
        assert a.read(MIB, 4096) == b"\0" * 4096
        if end == "force":
            down(b, "--force")
        else:
            gone(b, signal.SIGTERM)
            assert "refused by peer" in b.log()
        if end == "force":
            fresh(pair, "SyncSource", good)
