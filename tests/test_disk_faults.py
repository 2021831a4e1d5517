"""Disks that fail, fill up and hang: every policy, in both roles, at rest and during a resync; both kinds of peer.

Whatever happens, a resync ends with identical disks, or in a state that says what is missing: never at 100 % and stalled,
never UpToDate with other data.
"""

import os
import re
import subprocess

import pytest

import cluster as C
from cluster import MIB, eventually
from faulty_disk import FaultyDisk
from test_resync import decisions, fill

POLICIES = ["detach", "pass_on", "call-local-io-error"]
FILLED = 14  # MiB


@pytest.fixture
def faulty(cluster):
    """Two urbd nodes of 16 MiB on disks that can fail, `node.disks[0]`; metadata on disks that do not."""
    for name in "ab":
        node = cluster.node(name, size=16 * MIB)
        node.md = os.path.join(node.dir, "md")
        with open(node.md, "wb") as f:
            f.truncate(4 * MIB)
    return cluster


def resyncing(c, disk="", net="", rate="4M", **options):
    """The first node is Primary and source, the second target of a full resync that is under way, for some seconds more."""
    source, target = c.nodes
    c.up(disk=disk, net=net, **options)
    fill(source, FILLED)
    c.configure(fast=False, disk=f"c-plan-ahead 0; resync-rate {rate}; {disk}", net=C.FAST_NET + net)
    for n in c.nodes:
        n.verb("adjust", "r0")
    target.verb("invalidate", "r0")
    target.wait(repl="SyncTarget")
    eventually("some of it is done", lambda: (target.state()["oos"] or 1 << 30) < (FILLED - 2) * 1024)
    return source, target


def whole_again(c):
    """What a person does when the disks are mended: attach, and connect again for what could not be copied."""
    for n in c.nodes:
        if n.state()["disk"] in ("Diskless", "Failed"):
            eventually(f"{n.name} attaches", lambda n=n: n.call("attach", "r0").rc == 0, 30)
    for n in c.nodes:
        n.wait(conn="Connected", repl=["Established", "SyncSource", "SyncTarget"], timeout=60)
        if n.kind == "urbd":
            # Nobody looks at what is left of the resync.
            n.verb("disk-options", "r0", "--resync-rate=400M")
    if any(n.state()["disk"] == "Inconsistent" and n.state()["oos"] for n in c.nodes):
        # A Primary's good copy may be the peer's: leaving it is only possible by force.
        n = next(n for n in c.nodes if n.kind == "urbd")
        n.verb("disconnect", "--force", "r0")
        n.verb("connect", "r0")
    c.wait_synced(timeout=60)
    for n in c.nodes:
        n.wait(oos=0)
    c.assert_same()


def mend(c):
    for n in c.nodes:
        for disk in n.disks:
            disk.heal()
    whole_again(c)


def with_policy(c, policy):
    """(disk section, handlers section, check that the handler was called if the policy says so)."""
    log = os.path.join(c.dir, "handler.log")
    called = policy == "call-local-io-error"

    def check():
        if called:
            eventually("local-io-error was called", lambda: os.path.exists(log), 20)
        else:
            assert not os.path.exists(log)

    return f"on-io-error {policy};", f'local-io-error "echo $DRBD_RESOURCE >> {log}";', check


# ---- at rest ------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["reads", "writes"])
@pytest.mark.parametrize("policy", POLICIES)
def test_primary_whose_disk_fails(faulty, policy, fault):
    """The peer serves: nothing that an application sees changes. The disk is given up, or with pass_on what could not be
    written on it is copied when it is mended."""
    a, b = faulty.nodes
    disk = FaultyDisk(a)
    section, handlers, handler_was_called = with_policy(faulty, policy)
    faulty.up(disk=section, handlers=handlers, meta={"a": a.md, "b": "internal"})
    data, more = os.urandom(65536), os.urandom(8192)
    a.write(MIB, data)
    disk.fail(fault)
    with a.nbd() as h:
        if fault == "writes":
            h.write(MIB, more)
            data = more + data[len(more):]
        assert h.read(MIB, len(data)) == data
    bad = "Inconsistent" if policy == "pass_on" else "Diskless"
    a.wait(disk=bad, role="Primary", conn="Connected", peer_disk="UpToDate")
    b.wait(peer_disk=bad, disk="UpToDate")
    assert bool(decisions(a, "disk-given-up")) == (policy != "pass_on")
    handler_was_called()
    a.write(4 * MIB, data)
    mend(faulty)
    assert a.read(MIB, len(data)) == data == a.read(4 * MIB, len(data))


@pytest.mark.parametrize("peer_stays", [True, False])
def test_passed_on_errors_and_a_crash(faulty, peer_stays):
    """What the Primary's disk refused is on the peer alone when the Primary is killed: the old disk does not win, whether
    the peer was there all the time or both come back, the old disk first."""
    a, b = faulty.nodes
    disk = FaultyDisk(a)
    faulty.up(disk="on-io-error pass_on;", meta={"a": a.md, "b": "internal"})
    old, new = os.urandom(65536), os.urandom(65536)
    a.write(MIB, old)
    disk.fail("writes")
    a.write(MIB, new)
    a.kill()
    if not peer_stays:
        b.kill()
    disk.heal()
    a.start()
    if not peer_stays:
        a.wait(disk="Inconsistent")
        assert a.call("primary", "r0").rc != 0, "what was acknowledged is not there"
        b.start()
    faulty.wait_synced()
    assert a.state()["received"] > 0 and b.state()["received"] == 0, "the disk that has everything is the source"
    faulty.assert_same()
    for n in (b, a):
        n.verb("primary", "r0")
        assert n.read(MIB, len(new)) == new
        n.verb("secondary", "r0")


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("policy", POLICIES)
def test_secondary_whose_disk_fails(faulty, policy, error):
    a, b = faulty.nodes
    disk = FaultyDisk(b, write_error=error)
    section, handlers, handler_was_called = with_policy(faulty, policy)
    faulty.up(disk=section, handlers=handlers, meta={"a": "internal", "b": b.md})
    disk.fail("writes")
    data = os.urandom(65536)
    a.write(MIB, data)
    bad = "Inconsistent" if policy == "pass_on" else "Diskless"
    a.wait(disk="UpToDate", peer_disk=bad, conn="Connected")
    b.wait(disk=bad)
    assert re.search("no space" if error == "ENOSPC" else "input/output error", b.log(), re.I), "the log names the error"
    handler_was_called()
    assert a.read(MIB, len(data)) == data
    mend(faulty)


@pytest.mark.parametrize("policy", POLICIES)
def test_last_disk_cannot_be_read(faulty, policy):
    """A diskless Primary whose peer cannot read: an error, not other data; what is readable again is right."""
    a, b = faulty.nodes
    disk = FaultyDisk(b)
    faulty.up(disk=f"on-io-error {policy};", meta={"a": "internal", "b": b.md})
    data = os.urandom(65536)
    a.write(MIB, data)
    a.verb("detach", "r0")
    disk.fail("reads")
    import nbd
    with a.nbd() as h, pytest.raises(nbd.Error):
        h.read(MIB, len(data))
    disk.heal()
    if policy != "pass_on":
        b.wait(disk="Diskless")
        b.verb("attach", "r0")
    a.wait(peer_disk="UpToDate")
    with a.nbd() as h:
        assert h.read(MIB, len(data)) == data
    a.verb("attach", "r0")
    mend(faulty)


@pytest.mark.parametrize("attaches", "uk")
def test_disk_comes_back_beside_a_diskless_primary(mixed, attaches):
    u, k = mixed.nodes
    secondary, primary = (u, k) if attaches == "u" else (k, u)
    mixed.up(primary=primary)
    data = os.urandom(65536)
    primary.write(MIB, data)
    primary.verb("detach", "r0")
    secondary.verb("detach", "--force", "r0")
    for n in (u, k):
        n.wait(disk="Diskless", peer_disk="Diskless", conn="Connected")
    secondary.verb("attach", "r0")
    secondary.wait(disk="UpToDate")
    primary.wait(peer_disk="UpToDate")
    assert primary.read(MIB, len(data)) == data
    primary.verb("attach", "r0")
    mixed.wait_synced()
    mixed.assert_same()


# ---- during a resync ------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_source_cannot_read(faulty, policy):
    a, b = faulty.nodes
    disk = FaultyDisk(a, share="20%")
    section, handlers, handler_was_called = with_policy(faulty, policy)
    resyncing(faulty, disk=section, handlers=handlers, meta={"a": a.md, "b": "internal"})
    disk.fail("reads")
    b.wait(repl="Established", disk="Inconsistent", timeout=40)
    if policy == "pass_on":
        a.wait(repl="Established", peer_disk="Inconsistent", role="Primary", conn="Connected")
        left = a.state()["oos"]
        assert left > 0 and all(f" {left} KiB failed" in decisions(n, "resync-done")[-1] for n in (a, b))
    else:
        a.wait(repl="Established", disk="Diskless", role="Primary", conn="Connected")
        b.wait(peer_disk="Diskless")
    handler_was_called()
    mend(faulty)


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("policy", POLICIES)
def test_target_cannot_write(faulty, policy, error):
    a, b = faulty.nodes
    disk = FaultyDisk(b, write_error=error, share="20%")
    section, handlers, handler_was_called = with_policy(faulty, policy)
    resyncing(faulty, disk=section, handlers=handlers, meta={"a": "internal", "b": b.md})
    disk.fail("writes")
    bad = "Inconsistent" if policy == "pass_on" else "Diskless"
    a.wait(repl="Established", disk="UpToDate", peer_disk=bad, timeout=40)
    b.wait(repl="Established", disk=bad)
    assert a.state()["oos"] > 0
    assert re.search("no space" if error == "ENOSPC" else "input/output error", b.log(), re.I), "the log names the error"
    handler_was_called()
    mend(faulty)


def parts(faulty, which):
    """The node of a resync that something happens to, and the other one."""
    a, b = faulty.nodes
    return (a, b) if which == "source" else (b, a)


def hanging(faulty, which, **options):
    """A resync whose source's or target's disk hangs: that node, the other one, the disk."""
    node, other = parts(faulty, which)
    disk = FaultyDisk(node)
    resyncing(faulty, rate="2M", **options)
    disk.hang()
    return node, other, disk


@pytest.mark.parametrize("which", ["source", "target"])
def test_disk_hangs_and_is_given_up(faulty, which):
    node, other, disk = hanging(faulty, which, disk="disk-timeout 20;")
    node.wait(disk="~Diskless|Failed", repl="Established")
    assert decisions(node, "detach-forced")
    other.wait(repl="Established", peer_disk="~Diskless|Failed", conn="Connected")
    if which == "target":
        other.write(0, os.urandom(65536))
        assert decisions(other, "resync-given-up") and len(decisions(other, "resync-done")) == 1
    # Requests on it are still unanswered, and could overwrite newer data: it is attached when they are.
    attach = subprocess.Popen([*node.prefix(), C.URBD, "attach", "r0"], env=node.env())
    try:
        node.wait(disk="Attaching")
        other.wait(peer_disk="Diskless")
        assert attach.poll() is None
        disk.heal()
        assert attach.wait(30) == 0
    finally:
        attach.kill()
        attach.wait()
    mend(faulty)


@pytest.mark.parametrize("which", ["source", "target"])
def test_disk_hangs_and_comes_back(faulty, which):
    """Without disk-timeout: the process answers, the peer gives up waiting, and the resync goes on afterwards."""
    node, other, _ = hanging(faulty, which, net="ko-count 2;")
    # They may be connected again at once.
    eventually("the peer gives up", lambda: decisions(other, "resync-timeout"), 30)
    assert node.state()["disk"] in ("UpToDate", "Inconsistent")
    mend(faulty)


@pytest.mark.parametrize("how", ["frozen", "deaf", "mute"])
@pytest.mark.parametrize("which", ["source", "target"])
def test_node_stops_answering(faulty, which, how):
    """SIGSTOP, or every packet in one direction is lost."""
    node, other = parts(faulty, which)
    resyncing(faulty, rate="2M")
    if how == "frozen":
        node.freeze()
    elif how == "mute":
        node.lose_packets_to(other)
    else:
        other.lose_packets_to(node)
    other.wait(conn="~Connecting|Unconnected|Timeout|NetworkFailure|BrokenPipe")
    if which == "target":
        other.write(0, os.urandom(65536))
    if how == "frozen":
        node.thaw()
    for n in faulty.nodes:
        n.find_packets()
    whole_again(faulty)


# ---- the kernel as the other side -----------------------------------------------------------


def failing_guest(mixed):
    """The kernel node on a device-mapper device, which can be made to fail; metadata beside it."""
    k = mixed.nodes[1]
    k.guest.dm_linear("faulty", "/dev/ubda")
    k.disk_path = lambda volume=0: "/dev/mapper/faulty"
    return k


def put_metadata(mixed, nodes, k):
    """External metadata for the nodes whose disks fail; returns the meta= option."""
    u = mixed.nodes[0]
    u.md = os.path.join(u.dir, "md")
    with open(u.md, "wb") as f:
        f.truncate(4 * MIB)
    return {"u": u.md if u in nodes else "internal", "k": "/dev/ubdb" if k in nodes else "internal"}


def ended_with_the_kernel(source, target, gone):
    """The resync came to its end: `gone` gave its disk up; or some blocks failed, and both say how many are left. With
    failed blocks the kernel does not leave SyncSource or SyncTarget by itself, towards a kernel neither."""
    if gone:
        other = target if gone is source else source
        gone.wait(disk="Diskless", repl="Established", timeout=60)
        other.wait(peer_disk="Diskless", repl="Established")
        return
    left = []

    def stands_still():
        left.append(target.state()["oos"])
        return left[-20:] == [left[-1]] * 20

    eventually("the rest is tried and stays", stands_still, 60, 0.1)
    assert left[-1] > 0
    for n in (source, target):
        n.wait(oos=left[-1], conn="Connected")
    target.wait(disk="Inconsistent")
    source.wait(disk="UpToDate", peer_disk="Inconsistent")


@pytest.mark.parametrize("policy", ["detach", "pass_on"])
@pytest.mark.parametrize("fault", ["reads", "writes"])
def test_kernels_disk_fails_during_a_resync(mixed, fault, policy):
    k = failing_guest(mixed)
    meta = put_metadata(mixed, [k], k)
    if fault == "reads":
        mixed.nodes.reverse()  # the kernel is the source
    k.create_md = lambda res="r0": k.guest.sh(f"drbdadm create-md --force {res}")
    source, target = resyncing(mixed, rate="2M", disk=f"on-io-error {policy};", meta=meta)  # guests take their time
    k.guest.dm_error("faulty")
    ended_with_the_kernel(source, target, k if policy == "detach" else None)
    k.guest.dm_linear("faulty", "/dev/ubda")
    whole_again(mixed)


@pytest.mark.parametrize("policy", ["detach", "pass_on"])
@pytest.mark.parametrize("fault", ["reads", "writes"])
def test_our_disk_fails_during_a_resync_with_the_kernel(mixed, fault, policy):
    u, k = mixed.nodes
    disk = FaultyDisk(u, share="20%")
    meta = put_metadata(mixed, [u], k)
    if fault == "writes":
        mixed.nodes.reverse()
    source, target = resyncing(mixed, disk=f"on-io-error {policy};", meta=meta)
    disk.fail(fault)
    ended_with_the_kernel(source, target, u if policy == "detach" else None)
    mend(mixed)
