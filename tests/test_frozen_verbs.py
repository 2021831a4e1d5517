"""While I/O is frozen each verb has an answer, whoever froze it, also after a demotion and a promotion in between: a cluster
manager that gets none fences the node.  Generated from the table of verbs; both dialects; in use or not."""

import contextlib
import os
import re
import subprocess
import threading

import pytest

from cluster import MIB, URBD, eventually
from test_dialect9 import two
from test_events import following
from test_onlookers import opened
from test_verbs import VERBS

# Many times what an answer takes: an answer that waits for `resume-io` never comes.
LIMIT = 20
DIALECTS = ("8.4", "9")
FREEZES = ("by command", "by fencing", "without data")


def pair_of(cluster, dialect, **options):
    """Two nodes in sync, the first one Primary."""
    if dialect == "9":
        a, b = two(cluster, **options)
        a.urbd("primary", "r0")
    else:
        a, b = cluster.node("a", size=16 * MIB), cluster.node("b", size=16 * MIB)
        cluster.up(**options)
    return a, b


@contextlib.contextmanager
def frozen(cluster, how, dialect):
    """Two nodes, the first one Primary with its I/O frozen."""
    more = {"by fencing": {"net": "fencing resource-and-stonith;", "handlers": 'fence-peer "exit 1";'},
            "without data": {"options": "on-no-data-accessible suspend-io;"}}
    a, b = pair_of(cluster, dialect, **more.get(how, {}))
    if how == "by command":
        a.urbd("suspend-io", "r0")
    elif how == "by fencing":
        b.kill()
    else:
        a.urbd("detach", "r0/0")
        b.kill()
    a.wait(suspended=True)
    try:
        yield a, b
    finally:
        a.call("resume-io", "r0", timeout=LIMIT)


def answered(node, verb):
    """Is it done, or refused with a reason?"""
    result = node.call(verb, "r0", timeout=LIMIT)
    assert result.rc == 0 or result.err.strip(), (verb, result)
    return result


def again_primary(a):
    """The role is given up and taken while I/O is frozen."""
    answered(a, "secondary")
    return answered(a, "primary")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("how", FREEZES)
@pytest.mark.parametrize("change", ["", "secondary; primary"])
def test_each_verb_is_answered(cluster, how, dialect, change):
    with frozen(cluster, how, dialect) as (a, _):
        if change:
            again_primary(a)
        for verb in VERBS:
            if verb not in ("resume-io", "detach"):
                answered(a, verb)
        answered(a, "detach")
        answered(a, "resume-io")
    a.call("primary", "r0", timeout=LIMIT)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("how", ["by command", "by fencing"])
def test_each_verb_is_answered_while_the_device_is_in_use(cluster, how, dialect):
    fencing = {"net": "fencing resource-and-stonith;", "handlers": 'fence-peer "exit 1";'}
    a, b = pair_of(cluster, dialect, **(fencing if how == "by fencing" else {}))
    with opened(a):
        if how == "by command":
            a.urbd("suspend-io", "r0")
        else:
            b.kill()
        a.wait(suspended=True)
        try:
            for verb in VERBS:
                if verb != "resume-io":
                    answered(a, verb)
        finally:
            answered(a, "resume-io")
    a.call("attach", "r0", timeout=LIMIT)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_snapshot_that_leaks_its_suspension_before_a_failover(cluster, dialect):
    """`suspend-io` on the Secondary, which is promoted then; the device works when I/O goes on."""
    a, b = pair_of(cluster, dialect)
    b.urbd("suspend-io", "r0")
    a.urbd("secondary", "r0")
    assert answered(b, "primary").rc == 0
    assert answered(b, "resume-io").rc == 0
    read = ["dd", f"if={b.device()}", "of=/dev/null", "bs=4096", "count=1", "status=none"]
    eventually("it can be read", lambda: subprocess.run(read, timeout=LIMIT).returncode == 0, 20)


def test_who_froze_it_is_said(cluster):
    """A snapshot that fails half-way leaves the device hanging: the next one who looks sees who it was, and what thaws it."""
    a, _ = pair_of(cluster, "8.4")

    def freeze(name):
        script = os.path.join(a.dir, name)
        with open(script, "w") as f:
            f.write(f"#!/bin/sh\nsh -c '{URBD} suspend-io r0; true'\nexit 1\n")
        os.chmod(script, 0o755)
        a.run([script], env=a.env())
        return " ".join(a.urbd("status", "r0").out.split())

    said = freeze("take-snapshot")
    assert re.search(r"frozen for \d s, because user root asked for it \(suspend-io\): process \d+ \(urbd\), "
                     r"started by process \d+ \(sh\), by process \d+ \(take-snapshot\)", said), said
    assert "Next: when whoever needs it has ended: urbd resume-io r0" in said, said
    [matter] = [m for m in a.status()["urbd-matters"] if m["code"] == "frozen-user"]
    assert "take-snapshot" in matter["text"], matter
    assert "(take-snapshot)" in freeze("another-one"), "who came first has frozen it"
    a.urbd("resume-io", "r0")
    assert "frozen" not in a.urbd("status", "r0").out
    assert "(another-one)" in freeze("another-one")
    a.urbd("resume-io", "r0")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_freeze_with_an_end(cluster, dialect):
    """Whoever forgets it, or dies, keeps nobody waiting for ever.  The last one who asks says when it ends."""
    a, b = pair_of(cluster, dialect)

    def said():
        return " ".join(a.urbd("status", "r0").out.split())

    def frozen():
        return a.state()["suspended"]

    for bad in ("0", "-1", "x", "1.5", "86401", "99999999999999999999", ""):
        r = a.call("suspend-io", f"--lease={bad}", "r0")
        assert r.rc == 1 and "--lease" in r.err and not frozen(), (bad, r)
    # The last call counts: a longer time, none at all, and one again.
    a.urbd("suspend-io", "--lease=86400", "r0")
    assert "goes on by itself in 24 hours (--lease)" in said() or "1 day" in said(), said()
    assert "by itself" in a.urbd("why", "r0").out
    a.urbd("suspend-io", "r0")
    assert frozen() and "by itself" not in said()
    a.urbd("suspend-io", "--lease=3600", "r0")
    assert "by itself" in said()
    a.urbd("resume-io", "r0")
    assert not frozen() and "by itself" not in said()
    # It ends: what has waited is done, the log says so, events2 tells of it.
    with following(a) as (events,):
        a.urbd("suspend-io", "--lease=1", "r0")
        events.find("change resource name:r0 suspended:user")
        a.dd(a.device(), bytes(MIB))
        events.find("change resource name:r0 suspended:no")
    assert not frozen()
    assert "I/O was to be frozen (suspend-io --lease) is over" in a.log()
    # With the peer gone meanwhile, and on a Secondary.
    b.urbd("suspend-io", "--lease=1", "r0")
    eventually("it has ended", lambda: not b.state()["suspended"], 20)
    a.urbd("suspend-io", "--lease=2", "r0")
    b.kill_process("r0")
    a.dd(a.device(), bytes(MIB))
    assert not frozen()
    # resume-io ends the lease, too: a later freeze has no end.
    a.urbd("suspend-io", "--lease=1", "r0")
    a.urbd("resume-io", "r0")
    a.urbd("suspend-io", "r0")
    threading.Event().wait(1.5)
    assert frozen()
    a.urbd("resume-io", "r0")
    b.urbd("restart", "r0")
    cluster.wait_synced()
    cluster.assert_same()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("how", FREEZES[1:])
def test_the_end_of_a_freeze_ends_that_alone(cluster, how, dialect):
    """What else freezes I/O goes on: nobody has said that the peer is off, or that its data are not needed."""
    with frozen(cluster, how, dialect) as (a, _):
        def codes():
            return {m["code"] for m in a.status()["urbd-matters"]}

        why = {"by fencing": "frozen-fencing", "without data": "frozen-no-data"}[how]
        assert why in codes()
        a.urbd("suspend-io", "--lease=1", "r0")
        eventually("it is over", lambda: "frozen-user" not in codes() and "is over" in a.log(), 20)
        assert why in codes() and a.state()["suspended"]
