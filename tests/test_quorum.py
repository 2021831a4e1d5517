"""Three nodes with quorum: who may write when links and nodes are lost, what freezes or fails, and what brings it back
(`docs/spec/connection-and-state.md` 9, `docs/spec/scenarios9.md` 4)."""

import contextlib
import os
import re
import subprocess

import pytest

from cluster import MIB, eventually
from sentences import cut_off
from test_events import following
from test_filesystems import FSCK, MKFS, mounted, sh
from test_handlers import cut, environment, pair as handled, printing
from test_three_nine import begun, equal, prepared
from test_two_nodes import Load, verify

MAJORITY = "quorum majority;"


def lab(cluster, options=MAJORITY, net=""):
    """All UpToDate, each in a network of its own, a Primary."""
    a, b, c = nodes = begun(prepared(cluster, options=options, net=net))
    a.urbd("primary", "r0")
    for n in nodes:
        eventually(f"{n.name} has quorum", lambda: quorum(n))
    return a, b, c


def quorum(node):
    return node.status()["devices"][0]["quorum"]


def frozen(node):
    return node.status()["suspended-quorum"]


def loses(node):
    eventually(f"{node.name} has no quorum", lambda: not quorum(node))


def gains(node):
    eventually(f"{node.name} has quorum", lambda: quorum(node))


def block(seed):
    return bytes([seed]) * 4096


@contextlib.contextmanager
def held_open(node):
    """A device that was closed is not attached again while I/O is frozen: who opens it then waits at the door."""
    fd = os.open(node.device(), os.O_RDONLY)
    try:
        yield
    finally:
        os.close(fd)


def writing(node, data, offset=0):
    """A write that may hang, in a process of its own."""
    code = "import os, sys; fd = os.open(sys.argv[1], os.O_WRONLY | os.O_SYNC); " \
           "os.pwrite(fd, bytes([int(sys.argv[2])]) * 4096, int(sys.argv[3])); os.close(fd)"
    return subprocess.Popen(["python3", "-c", code, node.device(), str(data[0]), str(offset)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_primary_that_is_cut_off_freezes_the_others_go_on_and_nothing_acknowledged_is_lost(cluster):
    """The one that is cut off acknowledges nothing any more; of the two that are left one is promoted and goes on."""
    a, b, c = lab(cluster)
    load = Load(a, seed=1, sectors=8 * MIB // 512)
    load.wait_writes(200)
    cut_off(a, (a, b, c))
    loses(a)
    assert frozen(a)
    count = load.settled()
    gains(b), gains(c)
    b.urbd("primary", "r0")
    other = Load(b, seed=2, first=8 * MIB // 512, sectors=8 * MIB // 512)
    other.wait_writes(200)
    assert load.acknowledged() == count, "nothing is acknowledged without quorum"
    said = a.urbd("why", "r0").out
    assert "frozen" in said and "1 of 3 voters in reach, 2 needed" in said, said
    journals = load.interrupt(), other.interrupt()
    verify(b, *journals)
    # It gives up what nobody has acknowledged, and gets the others' writes.
    a.heal()
    a.kill()
    a.start()
    equal(a, b, c)
    b.urbd("secondary", "r0")
    a.urbd("primary", "r0")
    verify(a, *journals)


def test_what_is_frozen_goes_on_when_one_node_is_back(cluster):
    a, b, c = lab(cluster)
    load = Load(a, sectors=8 * MIB // 512)
    load.wait_writes(100)
    b.kill()
    load.wait_writes(100)
    c.kill()
    loses(a)
    load.settled()
    hanging = writing(a, block(7), 20 * MIB)
    eventually("it is under way", lambda: a.status()["devices"][0]["upper-pending"] > 0)
    assert hanging.poll() is None
    c.start()
    gains(a)
    load.wait_writes(100)
    assert hanging.wait(20) == 0, hanging.stderr.read()
    b.start()
    load.wait_writes(100)
    journal = load.interrupt()
    equal(a, b, c)
    verify(a, journal)
    assert a.read(20 * MIB, 4096) == block(7)


@pytest.mark.parametrize("change", ["--quorum=off", "--on-no-quorum=io-error"])
def test_an_option_sets_a_hanging_write_free_or_fails_it(cluster, change):
    a, b, c = lab(cluster)
    with held_open(a):
        before = writing(a, block(1))
        assert before.wait(20) == 0
        b.kill(), c.kill()
        loses(a)
        hanging = writing(a, block(2))
        eventually("it is under way", lambda: a.status()["devices"][0]["upper-pending"] > 0)
    # A command that thaws does not thaw this.
    a.urbd("resume-io", "r0")
    assert hanging.poll() is None and frozen(a)
    a.urbd("resource-options", change, "r0")
    rc = hanging.wait(20)
    assert (rc == 0) == (change == "--quorum=off"), hanging.stderr.read()
    assert not frozen(a)



def test_io_fails_where_that_is_wanted_and_what_was_written_alone_is_rolled_back(cluster):
    """EIO on the one that is cut off; the two others go on. What the first one wrote to its own disk alone nobody was told
    to be there, and it is taken back."""
    a, b, c = lab(cluster, "quorum majority; on-no-quorum io-error;")
    assert writing(a, block(1)).wait(20) == 0
    cut_off(a, (a, b, c))
    last = writing(a, block(2))
    loses(a)
    assert last.wait(20) != 0
    assert "Input/output error" in last.stderr.read()
    assert not frozen(a)
    again = writing(a, block(3), 4096)
    assert again.wait(20) != 0
    gains(b)
    b.urbd("primary", "r0")
    assert b.read(0, 4096) == block(1)
    b.write(4096, block(4))
    a.urbd("secondary", "r0")
    a.heal()
    equal(a, b, c)
    b.urbd("secondary", "r0")
    a.urbd("primary", "r0")
    assert a.read(0, 8192) == block(1) + block(4)


GIVES_IN = f"{MAJORITY} on-suspended-primary-outdated force-secondary;"


@pytest.mark.parametrize("used_by", ["a write that hangs", "a file system"])
def test_a_frozen_primary_gives_in_to_newer_data(cluster, used_by):
    """It becomes Secondary though it is in use: what waits there fails, nobody gets its writes, and its copy is brought up
    to date. Its users close the device, and it can be Primary again."""
    a, b, c = lab(cluster, GIVES_IN, net="rr-conflict retry-connect;")
    if used_by == "a file system":
        sh(*MKFS["ext4"], a.device())
    with contextlib.ExitStack() as uses:
        if used_by == "a file system":
            where = uses.enter_context(mounted(a, a.device(), "ext4", a.run))
            path = f"/proc/{a.holder}/root{where}/f"
            with open(path, "wb") as f:
                f.write(block(1))
                os.fsync(f.fileno())
            code = f"import os; fd = os.open({path!r}, os.O_WRONLY); os.pwrite(fd, b'2' * 4096, 0); os.fsync(fd)"
        else:
            uses.enter_context(held_open(a))
            assert writing(a, block(1)).wait(20) == 0
            code = None
        cut_off(a, (a, b, c))
        loses(a)
        hanging = writing(a, block(2)) if code is None else subprocess.Popen(
            ["python3", "-c", code], stderr=subprocess.PIPE, text=True)
        eventually("it is under way", lambda: a.status()["devices"][0]["upper-pending"] > 0)
        gains(b)
        b.urbd("primary", "r0")
        assert writing(b, block(9), 12 * MIB).wait(20) == 0
        assert hanging.poll() is None and a.status()["role"] == "Primary"
        a.heal()
        a.wait(role="Secondary")
        assert hanging.wait(20) != 0
        assert "Input/output error" in hanging.stderr.read()
        equal(a, b, c)
        assert "frozen-gives-in" in a.log(), a.log()
        assert a.call("primary", "r0").rc != 0, "the other one is Primary"
    b.urbd("secondary", "r0")
    eventually("it is closed", lambda: a.call("primary", "r0").rc == 0)
    assert a.read(12 * MIB, 4096) == block(9)
    if used_by == "a file system":
        sh(*FSCK["ext4"], a.device())
    else:
        assert a.read(0, 4096) == block(1)


def test_the_last_one_keeps_quorum_when_the_others_leave_in_order_also_after_its_own_end(cluster):
    """Who leaves in order cannot be promoted, and does not count. The one that is left has the right to write alone, and
    keeps it when its process, or its machine, ends and comes back alone."""
    a, b, c = lab(cluster)
    for n in (b, c):
        n.urbd("down", "r0")
        gains(a)
        assert writing(a, block(5)).wait(20) == 0
    a.kill_process()
    a.start()
    gains(a)
    assert writing(a, block(6)).wait(20) == 0
    a.urbd("secondary", "r0")
    a.urbd("down", "r0")
    a.start()
    gains(a)
    a.urbd("primary", "r0")
    assert writing(a, block(7)).wait(20) == 0
    # The others are Outdated, and have no quorum, also together.
    a.urbd("secondary", "r0")
    a.urbd("down", "r0")
    b.start(), c.start()
    for n in (b, c):
        eventually(f"{n.name} is Outdated", lambda: n.state()["disk"] == "Outdated")
        assert n.call("primary", "r0").rc == 17
    a.start()
    equal(a, b, c)


def test_without_quorum_nobody_is_promoted_and_the_reason_is_said(cluster):
    a, b, c = lab(cluster)
    a.urbd("secondary", "r0")
    cut_off(c, (a, b, c))
    loses(c)
    r = c.call("primary", "r0")
    assert r.rc == 11, r
    assert "(-25)" in r.err and "no quorum: 1 of 3 voters in reach, 2 needed" in r.err, r.err
    # Nor by opening the device.
    with pytest.raises(OSError):
        with open(c.device(), "r+b", buffering=0) as f:
            f.write(block(1))
    assert c.status()["role"] == "Secondary"
    line = c.urbd("status", "r0").out
    assert "suspended:quorum" in line and "quorum:no" in line, line
    assert "quorum" not in a.urbd("status", "r0").out
    c.urbd("primary", "--force", "r0")
    gains(c)
    assert writing(c, block(1)).wait(20) == 0


def test_a_frozen_primary_outlives_its_process(cluster):
    """Applications wait for the next process, which has no quorum either, and go on when a node is back."""
    a, b, c = lab(cluster)
    with held_open(a):
        assert writing(a, block(1)).wait(20) == 0
        b.kill(), c.kill()
        loses(a)
        hanging = writing(a, block(2))
        eventually("it is under way", lambda: a.status()["devices"][0]["upper-pending"] > 0)
    for _ in range(2):
        a.kill_process()
        a.start()
        loses(a)
        assert hanging.poll() is None
    c.start()
    assert hanging.wait(40) == 0, hanging.stderr.read()
    gains(a)
    b.start()
    equal(a, b, c)
    assert a.read(0, 4096) == block(2)


def test_a_primary_does_not_leave_whom_its_quorum_depends_on(cluster):
    a, b, c = lab(cluster)
    b.kill()
    gains(a)
    # By force it does, and is frozen then.
    a.urbd("disconnect", "--force", "r0:c")
    loses(a)
    assert frozen(a)
    a.urbd("connect", "r0:c")
    gains(a)
    b.start()
    equal(a, b, c)


def test_minimum_redundancy_wants_good_copies(cluster):
    """Two nodes in reach are a majority, but one good copy is too few."""
    a, b, c = lab(cluster, "quorum majority; quorum-minimum-redundancy 2;")
    c.kill()
    gains(a)
    with held_open(a):
        assert writing(a, block(1)).wait(20) == 0
        b.urbd("detach", "--force", "r0")
        loses(a)
        assert "1 of them UpToDate, 2 needed" in a.urbd("why", "r0").out
        hanging = writing(a, block(2))
        eventually("it is under way", lambda: a.status()["devices"][0]["upper-pending"] > 0)
    b.urbd("attach", "r0")
    assert hanging.wait(40) == 0
    gains(a)


def test_a_primary_that_loses_quorum_has_it_said_to_a_program_and_to_who_listens(cluster):
    """`quorum-lost` is called once, on the Primary alone; events2 has the change of the volume and of the resource."""
    say, out = printing(cluster, "lost")
    a, b = handled(cluster, f'quorum-lost "{say}";', options=MAJORITY)
    with following(a) as (stream,):
        cut(a, b)
        found = environment(out)
        assert (found["DRBD_RESOURCE"], found["DRBD_VOLUME"]) == ("r0", "0"), found
        for words in ("change resource .*suspended:quorum", "change device .* quorum:no", "call helper .*helper:quorum-lost",
                      "response helper .*helper:quorum-lost status:0"):
            eventually(words, lambda: [line for line in stream.lines() if re.search(words, line)], 20)
        called = [line for line in stream.lines() if re.search("call helper .*quorum-lost", line)]
        assert len(called) == 1, called
    b.start()
    gains(a)
    cut(a, b)
    assert environment(out)["DRBD_RESOURCE"] == "r0"


def test_what_was_asked_for_is_shown(cluster):
    a, b, c = lab(cluster, "quorum majority; quorum-minimum-redundancy 2; on-no-quorum io-error;")
    shown = a.urbd("show", "r0").out
    for words in ("quorum majority;", "quorum-minimum-redundancy 2;", "on-no-quorum io-error;"):
        name, value = words.split(" ")
        assert any(line.split() == [name, value] for line in shown.splitlines()), shown
    # A second adjust finds nothing to do, and what the file does not say any more ends.
    assert a.urbd("-d", "adjust", "r0").out == ""
    for n in (a, b, c):
        path = f"{n.dir}/res.d/r0.res"
        with open(path) as f:
            text = f.read()
        n.put_res("r0", text.replace("quorum majority; quorum-minimum-redundancy 2; on-no-quorum io-error;", ""))
        n.urbd("adjust", "r0")
    b.kill(), c.kill()
    assert writing(a, block(9)).wait(20) == 0
    assert quorum(a)
