"""Two urbd nodes that speak DRBD 9's dialect with each other (`protocol-version-max 124`)."""

import os
import threading
import time

import pytest

import cluster as C
from cluster import MIB, Failed, eventually
from test_resync import corrupt
from test_three_nodes import same
from test_two_nodes import Load, verify

SIZE = 32 * MIB

# Handlers; they run beside each other.
SPLIT_BRAIN = ["initial-split-brain", "split-brain"]


def called_for(file):
    if not os.path.exists(file):
        return []
    with open(file) as f:
        return sorted(f.read().split())


def two(cluster, version=124, **options):
    """Both UpToDate, nobody Primary."""
    a, b = cluster.node("a", size=SIZE), cluster.node("b", size=SIZE)
    cluster.configure(extra=f"urbd {{ protocol-version-max {version}; }}", **options)
    for n in (a, b):
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=1", "r0")
        n.start()
    for n in (a, b):
        n.wait(conn="Connected")
        assert f"agreed on protocol version {version}" in n.log()
    a.urbd("new-current-uuid", "--clear-bitmap", "r0/0")
    for n in (a, b):
        n.wait(disk="UpToDate", peer_disk="UpToDate")
    return a, b


def in_sync(*nodes):
    for n in nodes:
        n.wait(conn="Connected", repl="Established", disk="UpToDate", peer_disk="UpToDate")


@pytest.mark.parametrize("protocol,version", [("A", 124), ("B", 121), ("C", 118), ("C", 124)])
def test_writes_and_roles(cluster, protocol, version):
    a, b = two(cluster, version, protocol=protocol)
    journals = []
    for turn, (here, there) in enumerate([(a, b), (b, a), (a, b)]):
        here.urbd("primary", "r0")
        there.wait(peer_role="Primary")
        # Each in a place of its own: what an interrupted write leaves is the content from before.
        load = Load(here, seed=turn, first=turn * 8 * MIB // 512, sectors=8 * MIB // 512)
        load.wait_writes(100)
        journals.append(load.interrupt())
        verify(here, *journals)
        here.urbd("secondary", "r0")
        there.wait(peer_role="Secondary")
        same(a, b)


def test_who_is_promoted_beside_a_primary_is_refused(cluster):
    a, b = two(cluster)
    a.urbd("primary", "r0")
    b.wait(peer_role="Primary")
    with pytest.raises(Failed, match="ended with 11"):
        b.urbd("primary", "r0")
    assert b.state()["role"] == "Secondary"


def test_they_part_and_meet(cluster):
    a, b = two(cluster)
    for n in (a, b):
        n.urbd("disconnect", "r0")
        n.wait(conn="StandAlone")
        n.urbd("connect", "r0")
        for m in (a, b):
            m.wait(conn="Connected", peer_disk="UpToDate")
    a.urbd("primary", "r0")
    a.write(0, os.urandom(MIB))
    a.flush()
    same(a, b)


def test_who_was_fenced_is_unfenced(cluster):
    """With and without a resync: when both are UpToDate again (docs/spec/connection-and-state.md 2.7, row 33)."""
    log = os.path.join(cluster.dir, "fence.log")
    a, b = two(cluster, net=f"{C.FAST_NET} fencing resource-only;", fast=False,
               handlers=f'fence-peer "echo fence-$DRBD_PEER >>{log}; exit 7"; unfence-peer "echo un-$DRBD_PEER >>{log}";')
    eventually("the first connection, too", lambda: called_for(log) == ["un-a", "un-b"], 20)
    a.urbd("primary", "r0")
    for write in (True, False):
        before = called_for(log)
        b.kill()
        eventually("fenced", lambda: called_for(log).count("fence-b") == before.count("fence-b") + 1, 20)
        if write:
            a.write(0, os.urandom(MIB))
        assert called_for(log).count("un-b") == before.count("un-b"), "not while it is away"
        b.start()
        in_sync(a, b)
        eventually("unfenced", lambda: called_for(log).count("un-b") == before.count("un-b") + 1, 20)
        same(a, b)


@pytest.mark.parametrize("protocol,version", [("A", 124), ("C", 118), ("C", 122)])
def test_what_was_missed_is_copied(cluster, protocol, version):
    """Each node is the source once; only what differs is copied."""
    a, b = two(cluster, version, protocol=protocol)
    for here, there in ((a, b), (b, a)):
        here.urbd("primary", "r0")
        there.urbd("disconnect", "r0")
        there.wait(conn="StandAlone")
        here.write(MIB, os.urandom(2 * MIB))
        here.flush()
        there.urbd("connect", "r0")
        in_sync(a, b)
        assert "resync done: 2048 KiB" in there.log()
        here.urbd("secondary", "r0")
        same(a, b)


def test_a_primary_dies_and_comes_back(cluster):
    """The other node goes on at once; who comes back is the target, and of its marks nothing is forgotten."""
    a, b = two(cluster)
    journals = []
    for turn, (here, there) in enumerate([(a, b), (b, a), (a, b)]):
        here.urbd("primary", "r0")
        load = Load(here, seed=turn, first=turn * 8 * MIB // 512, sectors=8 * MIB // 512)
        load.wait_writes(100)
        here.kill()
        journals.append(load.interrupt())
        there.wait(conn="Connecting")
        there.urbd("primary", "r0")
        verify(there, *journals)
        there.write(30 * MIB + turn * 4096, os.urandom(4096))
        there.flush()
        here.start()
        in_sync(a, b)
        verify(there, *journals)
        there.urbd("secondary", "r0")
        same(a, b)


def test_a_resync_is_interrupted_and_goes_on(cluster):
    a, b = two(cluster, fast=False, net=C.FAST_NET, disk="c-plan-ahead 0; resync-rate 2M;")
    a.urbd("primary", "r0")
    b.urbd("disconnect", "r0")
    a.write(0, os.urandom(24 * MIB))
    a.flush()
    b.urbd("connect", "r0")
    b.wait(repl="SyncTarget")
    b.kill()
    a.wait(conn="Connecting")
    b.start()
    b.wait(repl="SyncTarget")
    a.urbd("disconnect", "r0")
    b.wait(conn="Connecting")
    assert "the peer disconnected" in b.log()
    assert b.state()["disk"] == "Inconsistent"
    a.urbd("connect", "r0")
    b.wait(repl="SyncTarget")
    a.write(8 * MIB, os.urandom(MIB))
    a.flush()
    for n in (a, b):
        n.urbd("peer-device-options", "--resync-rate=200M", "r0")
    in_sync(a, b)
    same(a, b)


def differing(cluster):
    """The first one is Primary; 8 KiB of what it has written are something else on the other one's disk."""
    a, b = two(cluster, net=C.FAST_NET + " verify-alg crc32c;")
    a.urbd("primary", "r0")
    a.write(0, os.urandom(4 * MIB))
    a.flush()
    corrupt(b, MIB, length=8192)
    return a, b


def test_a_verify_finds_what_differs(cluster):
    a, b = differing(cluster)
    a.urbd("verify", "r0")
    eventually("the difference is known", lambda: "8 KiB" in a.log(), 20)
    for n in (a, b):  # who is compared with hears last that it is over
        n.wait(repl="Established")
    assert "`invalidate --reset-bitmap=no` on the node with the worse copy replaces them" in a.log()
    b.urbd("invalidate", "--reset-bitmap=no", "r0")
    eventually("it is copied", lambda: "resync done: 8 KiB" in b.log(), 20)
    in_sync(a, b)
    same(a, b)


@pytest.mark.parametrize("asks", ["primary", "secondary"])
def test_a_verify_repairs(cluster, asks):
    """What the Primary has counts, whoever asks."""
    a, b = differing(cluster)
    (a if asks == "primary" else b).urbd("verify", "--repair", "r0")
    eventually("it is copied", lambda: "resync done: 8 KiB" in b.log(), 20)
    in_sync(a, b)
    same(a, b)


def test_what_is_marked_of_the_peer_is_replaced(cluster):
    a, b = two(cluster, net=C.FAST_NET + " verify-alg crc32c;")
    for turn, name in enumerate(("r0", "r0:b/0")):
        corrupt(b, (turn + 1) * MIB, length=4096 << turn)
        a.urbd("verify", "r0")
        eventually("the difference is known", lambda turn=turn: f"{4 << turn} KiB differ" in a.log(), 20)
        for n in (a, b):
            n.wait(repl="Established")
        a.urbd("invalidate-remote", "--reset-bitmap=no", name)
        done = f"resync done: {4 << turn} KiB"
        eventually("it is copied", lambda done=done: done in b.log(), 20)
        in_sync(a, b)
        same(a, b)


@pytest.mark.parametrize("version", [101, 118])
def test_what_is_marked_alone_needs_the_dialect(cluster, version):
    a, b = two(cluster, version)
    for verb in "invalidate", "invalidate-remote":
        with pytest.raises(Failed, match="ended with 10") as refusal:
            a.urbd(verb, "--reset-bitmap=no", "r0")
        assert "needs protocol version 120" in str(refusal.value)
        with pytest.raises(Failed, match="neither yes nor no"):
            a.urbd(verb, "--reset-bitmap=maybe", "r0")
    in_sync(a, b)


@pytest.mark.parametrize("version", [118, 124])
@pytest.mark.parametrize("detaches", ["secondary", "primary"])
def test_a_disk_is_taken_out_and_put_back(cluster, detaches, version):
    """A Primary writes all the time; without an own disk it reads from the peer and writes there."""
    a, b = two(cluster, version)
    a.urbd("primary", "r0")
    load = Load(a, seed=1, first=0, sectors=8 * MIB // 512)
    load.wait_writes(50)
    here, there = (a, b) if detaches == "primary" else (b, a)
    for _ in range(2):
        here.urbd("detach", "r0")
        here.wait(disk="Diskless")
        there.wait(peer_disk="Diskless")
        load.wait_writes(50)
        here.urbd("attach", "r0")
        in_sync(a, b)
        load.wait_writes(50)
    verify(a, load.interrupt())
    a.urbd("secondary", "r0")
    same(a, b)


def test_nothing_is_copied_when_nothing_was_written(cluster):
    a, b = two(cluster)
    for n in (a, b):
        n.urbd("detach", "r0")
        n.wait(disk="Diskless")
        n.urbd("attach", "r0")
        in_sync(a, b)
    for n in (a, b):
        assert "resync done" not in n.log()
    same(a, b)


@pytest.mark.parametrize("dies", ["primary", "secondary"])
def test_an_attach_is_interrupted(cluster, dies):
    """A node is killed while the Secondary attaches; nothing that was acknowledged is lost."""
    a, b = two(cluster)
    journals = []
    for turn in range(3):
        a.urbd("primary", "r0")
        load = Load(a, seed=turn, first=turn * 8 * MIB // 512, sectors=8 * MIB // 512)
        load.wait_writes(50)
        b.urbd("detach", "r0")
        a.wait(peer_disk="Diskless")
        load.wait_writes(50)
        tried = []
        attach = threading.Thread(target=lambda: tried.append(b.call("attach", "r0")))
        attach.start()
        time.sleep(0.02 * turn)
        dead = a if dies == "primary" else b
        dead.kill()
        journals.append(load.interrupt())
        attach.join()
        dead.start()
        if dies == "primary" and tried[0].rc:
            # Who was asked whose data is newer has died, and this node had seen newer data than its disk has.
            assert "attach" in tried[0].err, tried
            b.wait(disk="Diskless", conn="Connected")
            b.urbd("attach", "r0")
        in_sync(a, b)
        if dies == "primary":
            a.urbd("primary", "r0")
        verify(a, *journals)
        same(a, b)


def test_a_fresh_cluster_begins_by_force(cluster):
    """As the manual says it: `primary --force` on fresh disks copies all of it."""
    a, b = cluster.node("a", size=SIZE), cluster.node("b", size=SIZE)
    cluster.configure(ids=True)
    corrupt(a, 0, length=MIB)
    for n in (a, b):
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=1", "r0")
        n.start()
    for n in (a, b):
        n.wait(conn="Connected")
    a.urbd("primary", "--force", "r0")
    in_sync(a, b)
    same(a, b)


def test_a_split_brain_is_left_to_people(cluster):
    called = os.path.join(cluster.dir, "called")
    handlers = " ".join(f'{h} "echo {h} >> {called}-$DRBD_PEER_NODE_ID";' for h in SPLIT_BRAIN)
    a, b = two(cluster, handlers=handlers)
    a.urbd("disconnect", "r0")
    b.urbd("disconnect", "r0")
    for turn, n in enumerate((a, b)):
        n.urbd("primary", "r0")
        n.write(turn * MIB, os.urandom(MIB))
        n.flush()
        n.urbd("secondary", "r0")
    for n in (a, b):
        n.urbd("connect", "r0")
    for n in (a, b):
        n.wait(conn="StandAlone")
    for peer, n in enumerate((b, a)):
        assert "split brain: since the nodes parted" in n.log()
        eventually("the handlers were called", lambda: called_for(f"{called}-{peer}") == SPLIT_BRAIN, 20)
    b.urbd("connect", "--discard-my-data", "r0")
    a.urbd("connect", "r0")
    in_sync(a, b)
    same(a, b)


def room(node, by):
    """The node's disk becomes larger; the device keeps its size."""
    node.urbd("detach", "r0")
    node.wait(disk="Diskless")
    with open(node.disk_file(), "r+b") as f:
        f.truncate(os.fstat(f.fileno()).st_size + by)
        # What is there differs from node to node.
        f.seek(SIZE)
        f.write(os.urandom(min(by, MIB)))
    node.urbd("check-resize", "r0")
    node.urbd("attach", "r0")


@pytest.mark.parametrize("asks,clean", [("a", False), ("b", False), ("a", True)])
def test_a_device_grows_in_use(cluster, asks, clean):
    """Beside I/O of the Primary, whoever is asked; what is added is copied, unless it is called clean."""
    a, b = two(cluster)
    before = a.data_size()
    for n in (a, b):
        room(n, 8 * MIB)
        in_sync(a, b)
        assert a.data_size() == before
    a.urbd("primary", "r0")
    load = Load(a)
    load.wait_writes(100)
    asked = a if asks == "a" else b
    asked.urbd("resize", *(["--", "--assume-clean"] if clean else []), "r0")
    for n in (a, b):
        eventually("it has grown", lambda: n.data_size() > before + 7 * MIB)
    load.wait_writes(100)
    in_sync(a, b)
    journal = load.interrupt()
    assert ("resync-start" in b.log()) != clean
    end = a.data_size()
    a.write(end - 4096, os.urandom(4096))
    a.flush()
    verify(a, journal)
    if not clean:
        same(a, b)
    asked.urbd("resize", "r0")
    assert a.data_size() == end


def test_a_device_grows_as_far_as_all_have_room(cluster):
    a, b = two(cluster)
    before = a.data_size()
    room(a, 8 * MIB)
    in_sync(a, b)
    r = a.call("resize", "r0")
    assert r.rc and "b has room for" in r.err, r
    # Who is away may have room, or not.
    a.urbd("disconnect", "r0")
    r = a.call("resize", "r0")
    assert r.rc and "--assume-peer-has-space" in r.err, r
    assert a.data_size() == before
    a.urbd("primary", "r0")
    a.urbd("resize", "--assume-peer-has-space", "r0")
    assert a.data_size() > before + 7 * MIB
    a.write(a.data_size() - 4096, os.urandom(4096))
    a.urbd("connect", "r0")
    eventually("it is refused", lambda: "peer-disk-too-small" in a.log(), 20)
    # It gets room, and follows: nobody has to connect them.
    room(b, 8 * MIB)
    in_sync(a, b)
    assert a.data_size() == b.data_size()
    same(a, b)
