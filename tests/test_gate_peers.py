"""Whoever opens the device makes the node Primary: in DRBD 9's dialect, where nothing needs to be configured for it; among
three nodes; and with two Primaries, as for the live migration of a virtual machine."""

import errno
import os
import signal
import threading

import pytest

from cluster import MIB, eventually
from test_dialect9 import two as two_of_nine
from test_gate import BLOCK, WAYS, by_mount2, is_open, opens, role, two
from test_handover import kill, restart
from test_three_nine import equal, started

PATIENT = "auto-promote-timeout 100;"


def increments(nodes, rounds):
    """Each node adds to one number, on the device that is opened anew each time."""
    problems = []

    def work(dev):
        try:
            for _ in range(rounds):
                with open(dev, "r+b", buffering=0) as f:
                    count = int.from_bytes(f.read(8), "little")
                    f.seek(0)
                    f.write((count + 1).to_bytes(8, "little") + bytes(BLOCK - 8))
        except OSError as e:
            problems.append((dev, e))

    threads = [threading.Thread(target=work, args=(n.device(),)) for n in nodes]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
        assert not t.is_alive()
    assert not problems, problems
    with open(nodes[0].device(), "rb", buffering=0) as f:
        assert int.from_bytes(f.read(8), "little") == rounds * len(nodes)


def test_by_default_in_nines_dialect(cluster):
    a, b = two_of_nine(cluster, options=PATIENT)
    where = os.path.join(a.dir, "mnt")
    os.makedirs(where)
    for name in ("open", "io_uring", "qemu-io"):
        close = WAYS[name](a.device(), where)
        eventually(f"{name}: it is in", lambda: (role(a), is_open(a)) == ("Primary", True))
        b.wait(peer_role="Primary")
        # It tries once, and does not wait.
        assert opens(b.device(), os.O_RDWR | os.O_NONBLOCK) == errno.EMEDIUMTYPE
        close()
        eventually(f"{name}: Secondary again", lambda: (role(a), is_open(a)) == ("Secondary", False))
    assert opens(a.device(), os.O_RDWR | os.O_NONBLOCK) == 0
    a.wait(role="Secondary")
    increments([a, b], 8)
    # It outlives its process, and goes with its last user.
    fd = os.open(a.device(), os.O_RDWR)
    for way in (kill, restart):
        way(a)
        os.pwrite(fd, b"\x33" * BLOCK, MIB)
        os.fsync(fd)
        assert role(a) == "Primary"
    os.close(fd)
    a.wait(role="Secondary")
    cluster.wait_synced()
    cluster.assert_same()


def test_three_nodes_at_once(cluster):
    nodes = started(cluster, options=PATIENT)
    for n in nodes:  # each makes way for the next one
        with open(n.device(), "r+b", buffering=0) as f:
            f.write(bytes(BLOCK))
            assert [role(m) for m in nodes].count("Primary") == 1
    for n in nodes:
        n.wait(role="Secondary")
    increments(nodes, 4)
    for n in nodes:
        n.wait(role="Secondary")
    equal(*nodes)


@pytest.mark.parametrize("nine", [False, True])
def test_a_machine_migrates(cluster, nine):
    """As Proxmox VE does it: two Primaries are allowed while the machine moves, and the target opens its disk before the
    source has closed it."""
    a, b = two_of_nine(cluster, options=PATIENT) if nine else two(cluster)
    source = os.open(a.device(), os.O_RDWR)
    os.pwrite(source, b"\x01" * BLOCK, 0)
    os.fsync(source)
    assert opens(b.device(), os.O_RDWR | os.O_NONBLOCK) == errno.EMEDIUMTYPE
    for n in (a, b):
        n.urbd("net-options", "--allow-two-primaries=yes", "r0")
    target = os.open(b.device(), os.O_RDWR)
    for n in (a, b):
        n.wait(role="Primary", peer_role="Primary")
    os.close(source)
    a.wait(role="Secondary")
    for n in (a, b):
        n.urbd("net-options", "--allow-two-primaries=no", "r0")
    assert os.pread(target, BLOCK, 0) == b"\x01" * BLOCK
    os.pwrite(target, b"\x02" * BLOCK, BLOCK)
    os.fsync(target)
    assert opens(a.device(), os.O_RDWR | os.O_NONBLOCK) == errno.EMEDIUMTYPE
    os.close(target)
    b.wait(role="Secondary")
    cluster.wait_synced()
    cluster.assert_same()


@pytest.mark.parametrize("between", ["", "restart"])
def test_the_first_open_comes_when_the_peer_has_gone(cluster, between):
    """That the nodes speak 9's dialect is not forgotten with the link."""
    a, b = two_of_nine(cluster)
    a.urbd("disconnect", "r0")
    a.wait(conn="StandAlone")
    if between:
        restart(a)
        a.urbd("disconnect", "r0")
    fd = os.open(a.device(), os.O_RDWR)
    assert role(a) == "Primary"
    os.pwrite(fd, b"\x44" * BLOCK, MIB)
    os.close(fd)
    a.wait(role="Secondary")
    a.urbd("connect", "r0")
    cluster.wait_synced()
    cluster.assert_same()


def test_the_peer_of_the_first_open_speaks_84(cluster):
    """Which is not forgotten either: administrators promote by command there."""
    a, b = two_of_nine(cluster, version=101)
    assert opens(a.device(), os.O_RDWR | os.O_NONBLOCK) == errno.EROFS
    a.urbd("disconnect", "r0")
    assert opens(a.device(), os.O_RDWR | os.O_NONBLOCK) == errno.EROFS


def test_who_reads_beside_a_primary_that_is_cut_off_is_let_in(cluster):
    """Long before the link would be given up by itself: the peer is asked whether it lives."""
    a, b = two_of_nine(cluster, fast=False, net="ping-int 100; connect-int 1;", options="auto-promote-timeout 200;")
    b.urbd("primary", "r0")
    a.wait(peer_role="Primary")
    b.cut()
    assert opens(a.device(), os.O_RDONLY) == 0
    assert role(a) == "Secondary"
    b.heal()
    cluster.wait_synced()
    assert opens(a.device(), os.O_RDONLY | os.O_NONBLOCK) == errno.EMEDIUMTYPE


def test_who_probes_right_after_the_last_close_elsewhere_finds_the_device(cluster):
    """As `blkid`, which does not wait, and takes what it cannot read for an empty disk: the word that the other node is
    Secondary comes after its last user has gone."""
    nodes = two_of_nine(cluster, net="ping-timeout 100;")
    nodes[0].run(["mkfs.ext4", "-q", nodes[0].device()], check=True)
    for n in nodes:
        n.wait(role="Secondary", peer_role="Secondary")
        os.makedirs(os.path.join(n.dir, "mnt"))
    for here, there in [nodes, nodes[::-1]] * 3:
        close, program, found = by_mount2(here.device(), os.path.join(here.dir, "mnt")), here.serving(), []
        probe = threading.Thread(target=lambda: found.append(opens(there.device(), os.O_RDONLY | os.O_NONBLOCK)))
        close()
        os.kill(program, signal.SIGSTOP)
        probe.start()
        probe.join(0.3)
        os.kill(program, signal.SIGCONT)
        probe.join(60)
        assert found == [0]
        for n in nodes:
            n.wait(role="Secondary", peer_role="Secondary")
    # One that is Primary and stays it is said to be.
    nodes[0].urbd("primary", "r0")
    assert opens(nodes[1].device(), os.O_RDONLY | os.O_NONBLOCK) == errno.EMEDIUMTYPE
