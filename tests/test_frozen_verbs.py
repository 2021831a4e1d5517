"""While I/O is frozen each verb has an answer, whoever froze it, also after a demotion and a promotion in between: a cluster
manager that gets none fences the node.  Generated from the table of verbs; both dialects; in use or not."""

import contextlib
import os
import re
import subprocess

import pytest

from cluster import MIB, URBD, eventually
from test_dialect9 import two
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
