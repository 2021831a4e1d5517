"""urbd and the real in-kernel DRBD 8.4 as peers: both roles, both directions, disks handed over."""

import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time

import pytest

import cluster as C
from cluster import MIB, eventually
from kernel_peer import HOST_IP
from test_two_nodes import Load, verify

DISCONNECTED = "~Connecting|Unconnected|NetworkFailure|Timeout|BrokenPipe|StandAlone"


def roles(c, primary):
    """(primary node, secondary node) for "u" or "k"."""
    u, k = c.nodes
    return (u, k) if primary == "u" else (k, u)


def switch(old, new):
    old.verb("secondary", "r0")
    new.verb("primary", "r0")


def scatter(node, seed, size, count=40, biggest=MIB):
    """Writes of 512 B to 1 MiB at unaligned and overlapping offsets; returns {offset: byte} of what must be there."""
    rng = random.Random(seed)
    image = {}
    for _ in range(count):
        n = rng.choice((512, 1024, 3 * 512, 4096, 5 * 512, 8192, 65536, 65536 + 512, biggest))
        at = rng.randrange((size - n) // 512) * 512
        if node.kind == "kernel" and n > 8192:  # dd wants aligned large blocks to be fast
            at &= ~4095
            n &= ~4095
        data = rng.randbytes(n)
        node.write(at, data)
        image[at] = data
    return image


# ---- replication in all combinations ------------------------------------------------


@pytest.mark.parametrize("protocol", "CBA")
@pytest.mark.parametrize("primary", "uk")
def test_sync_write_read(mixed, primary, protocol):
    p, s = roles(mixed, primary)
    mixed.up(primary=p, protocol=protocol)
    size = s.data_size() if s.kind == "kernel" else p.data_size()
    assert mixed.nodes[1].state()["protocol"] == protocol
    scatter(p, 1, size)
    p.flush()
    p.discard(4 * MIB, 2 * MIB)
    digest = mixed.assert_same()
    # Discards count as nothing, at either end.
    assert p.state()["sent"] == s.state()["received"]
    whole = p.read(0, size & ~4095)
    import hashlib
    if size % 4096 == 0:
        assert hashlib.md5(whole).hexdigest() == digest
    # a bitmap resync, and the roles change
    switch(p, s)
    scatter(s, 2, size, count=15)
    mixed.assert_same()
    assert not re.search(r"BUG|Oops|ASSERT|unexpected|BAD!", mixed.nodes[1].dmesg())


@pytest.mark.parametrize("primary", "uk")
def test_load_then_failover(mixed, primary):
    """A parallel load on urbd (or dd streams on the kernel), then the other side serves the same data."""
    p, s = roles(mixed, primary)
    mixed.up(primary=p)
    if p.kind == "urbd":
        load = Load(p, seconds=3, depth=32, flush=True, overlap=True)
        load.end(0)
        verify(p, load.journal)
    else:
        p.guest.sh("for i in 1 2 3 4; do dd if=/dev/urandom of=/dev/drbd0 bs=64k count=40 seek=$((i*60)) oflag=direct "
                   "2>/dev/null & done; wait", timeout=60)
    mixed.assert_same()
    before = p.read(0, 8 * MIB)
    switch(p, s)
    assert s.read(0, 8 * MIB) == before


@pytest.mark.parametrize("primary", "uk")
def test_a_file_with_node_ids(mixed, primary):
    """urbd offers DRBD 9's dialect as well then, and has metadata of format v09; 8.4's is spoken."""
    p, s = roles(mixed, primary)
    u = mixed.nodes[0]
    mixed.configure()
    u.put_res("r0", C.config_text(mixed.nodes, ids=True))
    mixed.start_fresh()
    p.verb("primary", "--force", "r0")
    mixed.wait_synced()
    assert [c["protocol-version"] for c in u.status()["connections"]] == [101]
    assert 'version "v09"' in u.urbd("dump-md", "--force", "r0").out
    scatter(p, 3, p.data_size(), count=15)
    s.cut()
    p.wait(conn=DISCONNECTED, timeout=40)
    p.write(MIB, os.urandom(8192))
    s.heal()
    mixed.wait_synced()
    switch(p, s)
    scatter(s, 4, p.data_size(), count=15)
    mixed.assert_same()
    assert not re.search(r"BUG|Oops|ASSERT|unexpected|BAD!", mixed.nodes[1].dmesg())


# ---- outages --------------------------------------------------------------------------


@pytest.mark.parametrize("rle", ["yes", "no"])
@pytest.mark.parametrize("primary", "uk")
def test_short_outage(mixed, primary, rle):
    p, s = roles(mixed, primary)
    mixed.up(primary=p, net=f"use-rle {rle};")
    s.cut()
    p.wait(conn=DISCONNECTED, timeout=40)
    for i in (1, 3, 9):
        p.write(i * MIB, os.urandom(8192))
    assert p.state()["oos"] == 24
    before = s.state()["received"]
    s.heal()
    mixed.wait_synced()
    got = s.state()["received"]
    assert got - before <= 24 + 8 or got <= 64, f"{got - before} KiB for an outage of 24 KiB"
    mixed.assert_same()


@pytest.mark.parametrize("primary", "uk")
def test_crash_of_the_secondary(mixed, primary):
    p, s = roles(mixed, primary)
    mixed.up(primary=p)
    p.write(0, os.urandom(65536))
    s.kill()
    p.wait(conn=DISCONNECTED, timeout=40)
    p.write(5 * MIB, os.urandom(3 * MIB))
    s.start()
    mixed.wait_synced()
    assert s.state()["received"] <= 4 * 1024 + 256
    mixed.assert_same()


@pytest.mark.parametrize("primary", "uk")
def test_crash_of_the_primary(mixed, primary):
    """kill -9 under load: the survivor is promoted and written; the activity log limits the resync of the other."""
    p, s = roles(mixed, primary)
    mixed.up(primary=p)
    if p.kind == "urbd":
        load = Load(p, sectors=4096)
        load.wait_writes(200)
        p.kill()
        load.end(3)
    else:
        p.guest.sh("(while :; do dd if=/dev/urandom of=/dev/drbd0 bs=64k count=32 oflag=direct; done) >/dev/null 2>&1 &")
        eventually("writes", lambda: p.state()["sent"] > 4096, 20)
        p.kill()
    s.wait(conn=DISCONNECTED, timeout=40)
    s.verb("primary", "r0")
    if p.kind == "urbd":
        # what was acknowledged is on the kernel's disk; read it there through the file behind it
        check_journal_on_file(load.journal, s.disk_file())
    s.write(10 * MIB, os.urandom(MIB))
    p.start()
    mixed.wait_synced()
    got = p.state()["received"]
    assert 1024 <= got <= 3 * 4096, f"{got} KiB: one or two extents of 4 MiB and 1 MiB were to be resynced"
    mixed.assert_same()


def check_journal_on_file(journal, path):
    import nbdio
    allowed, _ = nbdio.acceptable([journal])
    with open(path, "rb") as f:
        for s, want in allowed.items():
            f.seek(s * 512)
            assert nbdio.identify(f.read(512), s) in want, f"sector {s}"


# ---- roles, disks -----------------------------------------------------------------------


@pytest.mark.parametrize("primary", "uk")
def test_role_changes(mixed, primary):
    p, s = roles(mixed, primary)
    mixed.up(primary=p)
    for i in range(3):
        assert s.call("primary", "r0").rc != 0, "a second primary"
        p.write(i * 65536, bytes([i + 1]) * 4096)
        switch(p, s)
        p.wait(role="Secondary", peer_role="Primary")
        assert s.read(i * 65536, 4096) == bytes([i + 1]) * 4096
        p, s = s, p
    mixed.assert_same()


@pytest.mark.parametrize("primary", "uk")
def test_diskless_primary(mixed, primary):
    p, s = roles(mixed, primary)
    mixed.up(primary=p)
    p.write(MIB, b"\x01" * 65536)
    p.verb("detach", "r0")
    p.wait(disk="Diskless", peer_disk="UpToDate")
    s.wait(peer_disk="Diskless")
    assert p.read(MIB, 65536) == b"\x01" * 65536
    p.write(2 * MIB, b"\x02" * 65536)
    p.write(2 * MIB + 512, b"\x03" * 512)
    p.flush()
    with open(s.disk_file(), "rb") as f:
        f.seek(2 * MIB)
        assert f.read(1024) == b"\x02" * 512 + b"\x03" * 512
    assert p.read(2 * MIB, 1024) == b"\x02" * 512 + b"\x03" * 512
    p.verb("attach", "r0")
    mixed.wait_synced()
    mixed.assert_same()


@pytest.mark.parametrize("primary", "uk")
def test_secondary_loses_its_disk(mixed, primary):
    p, s = roles(mixed, primary)
    mixed.up(primary=p)
    s.verb("detach", "r0")
    p.wait(peer_disk="Diskless")
    p.write(MIB, os.urandom(65536))
    s.verb("attach", "r0")
    mixed.wait_synced()
    mixed.assert_same()


# ---- handshake -----------------------------------------------------------------------------


@pytest.mark.parametrize("alg", ["sha1", "sha256", "md5"])
def test_right_secret(mixed, alg):
    mixed.up(net=f'cram-hmac-alg {alg}; shared-secret "between us";')
    mixed.nodes[0].write(0, os.urandom(4096))
    mixed.assert_same()


def test_wrong_secret(mixed):
    u, k = mixed.nodes
    text = mixed.configure(net='cram-hmac-alg sha1; shared-secret "between us";')
    k.put_res("r0", text.replace("between us", "another"))
    for n in (u, k):
        n.create_md()
        n.start()
    eventually("refusal", lambda: "StandAlone" in (u.state()["conn"], k.state()["conn"]), 40)
    assert u.state()["conn"] != "Connected" and k.state()["conn"] != "Connected"
    assert "secret" in u.log().lower() or "authent" in u.log().lower() or "authent" in k.log().lower()


@pytest.mark.parametrize("alg", ["crc32c", "sha1"])
@pytest.mark.parametrize("primary", "uk")
def test_data_integrity(mixed, primary, alg):
    p, s = roles(mixed, primary)
    mixed.up(primary=p, net=f"data-integrity-alg {alg};")
    scatter(p, 3, 20 * MIB, count=15)
    p.discard(4 * MIB, MIB)
    p.write(6 * MIB, os.urandom(4096))
    mixed.assert_same()
    for n in (p, s):
        n.wait(conn="Connected", timeout=1)


@pytest.mark.parametrize("primary", "uk")
def test_the_kernel_changes_its_integrity_algorithm(mixed, primary):
    """P_PROTOCOL_UPDATE is about what its sender sends: nothing is compared, and the nodes stay connected."""
    p, _ = roles(mixed, primary)
    mixed.up(primary=p, net="data-integrity-alg crc32c;")
    u, k = mixed.nodes
    for alg in ("sha1", "md5"):
        connection = k.guest.sh("drbdsetup show r0 | grep -o 'ipv4 [0-9.:]*'").replace("ipv4 ", "ipv4:").split()
        k.guest.sh(f"drbdsetup net-options {' '.join(sorted(connection, key=lambda at: k.guest.ip + ':' not in at))} --data-integrity-alg={alg}")
        scatter(p, 3, 20 * MIB, count=15)
        mixed.assert_same()
        for n in (u, k):
            n.wait(conn="Connected", timeout=1)
    assert u.log().count("integrity-alg-differs") == 2 and "agreed on protocol" in u.log()
    assert u.log().count("agreed on protocol") == 1, "it is the first connection"


@pytest.mark.parametrize("victim", "uk")
def test_split_brain(mixed, victim):
    u, k = mixed.nodes
    mixed.up()
    k.cut()
    for n in (u, k):
        n.wait(conn=DISCONNECTED, timeout=40)
    k.verb("primary", "r0")
    u.write(MIB, b"\xaa" * 4096)
    k.write(8 * MIB, b"\xbb" * 4096)
    lose, keep = (u, k) if victim == "u" else (k, u)
    lose.verb("secondary", "r0")
    k.heal()
    eventually("split brain ends the connection", lambda: "StandAlone" in (u.state()["conn"], k.state()["conn"]), 60)
    lose.call("disconnect", "r0")
    lose.verb("connect", "--discard-my-data", "r0")

    def survivor_connects():
        # Which of the two came to its decision first, before the other closed the connection, is left to chance.
        if keep.state()["conn"] == "StandAlone":
            keep.call("connect", "r0")
        return keep.state()["conn"] == "Connected"

    eventually("the survivor connects", survivor_connects, 60)
    mixed.wait_synced()
    mixed.assert_same()
    want = b"\xaa" * 4096 if keep is u else b"\xbb" * 4096
    assert keep.read(MIB if keep is u else 8 * MIB, 4096) == want


@pytest.mark.parametrize("policy", ["discard-younger-primary", "discard-least-changes"])
def test_split_brain_policy(mixed, policy):
    mixed.up(net=f"after-sb-0pri {policy};")
    u, k = mixed.nodes
    k.cut()
    for n in (u, k):
        n.wait(conn=DISCONNECTED, timeout=40)
    k.verb("primary", "r0")
    u.write(MIB, b"\xaa" * 65536)
    k.write(8 * MIB, b"\xbb" * 4096)
    for n in (u, k):
        n.verb("secondary", "r0")
    k.heal()
    mixed.wait_synced()
    mixed.assert_same()
    u.verb("primary", "r0")
    assert u.read(MIB, 65536) == b"\xaa" * 65536


def configure_for_a_proxy(c, **config):
    text = c.configure(**config)
    for n, other in (c.nodes, reversed(c.nodes)):
        n.put_res("r0", text.replace(other.ip, HOST_IP))


def adjust_for_a_proxy(c, **config):
    configure_for_a_proxy(c, **config)
    for n in c.nodes:
        n.verb("adjust", "r0")


@contextlib.contextmanager
def through_a_proxy(lab, *options):
    """A cluster of "u" and "k", up to their start, whose packets all pass tests/kernel-peer/dialect_proxy.py."""
    with C.Cluster(lab) as c:
        u, k = c.node("u", size=24 * MIB), c.kernel(lab.node("k"))
        configure_for_a_proxy(c)
        program = os.path.join(C.TESTS, "kernel-peer", "dialect_proxy.py")
        proxy = lab.popen([sys.executable, program, *options, "--port", str(C.PORT), u.ip, k.ip],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            c.start_fresh()
            yield c
        finally:
            proxy.kill()
            proxy.wait()


@pytest.mark.parametrize("protocol_max", [100, 96, 94, 93, 90, 88, 86])
def test_older_protocol_versions(kernel_lab, protocol_max):
    """The kernel pretends, through a proxy, to know only an older protocol: other headers, other limits."""
    with through_a_proxy(kernel_lab, "--max", str(protocol_max)) as c:
        u, k = c.nodes
        u.verb("primary", "--force", "r0")
        c.wait_synced()
        assert f"Agreed network protocol version {protocol_max}" in k.dmesg()
        scatter(u, 4, 20 * MIB, count=15)
        c.assert_same()
        switch(u, k)
        k.write(MIB, os.urandom(65536))
        c.assert_same()


# ---- disks change hands --------------------------------------------------------------------------


def test_disk_from_the_kernel(mixed, kernel_lab):
    """A disk written under the kernel is attached by urbd, no resync needed, and then by the kernel again."""
    u, k = mixed.nodes
    mixed.up(primary=k)
    k.write(3 * MIB, b"\x33" * 65536)
    mixed.assert_same()
    k.verb("secondary", "r0")
    for n in (u, k):
        n.stop()
    # the two disks change places
    swap(u.disk_file(), k.disk_file())
    for n in (u, k):
        n.start()
    mixed.wait_synced()
    assert u.state()["received"] == 0 and k.state()["received"] == 0, "nothing was to be resynced"
    u.verb("primary", "r0")
    assert u.read(3 * MIB, 65536) == b"\x33" * 65536
    u.write(4 * MIB, b"\x44" * 65536)
    u.verb("secondary", "r0")
    for n in (u, k):
        n.stop()
    swap(u.disk_file(), k.disk_file())
    for n in (u, k):
        n.start()
    mixed.wait_synced()
    assert u.state()["received"] == 0 and k.state()["received"] == 0
    k.verb("primary", "r0")
    assert k.read(4 * MIB, 65536) == b"\x44" * 65536


def swap(x, y):
    with open(x, "r+b") as f, open(y, "r+b") as g:
        one, two = f.read(), g.read()
        assert len(one) == len(two)
        for h, data in ((f, two), (g, one)):
            h.seek(0)
            h.write(data)


def test_crashed_disk_from_the_kernel(mixed):
    """The kernel node dies as Primary; urbd takes its disk over, applies the activity log and resyncs that much."""
    u, k = mixed.nodes
    mixed.up(primary=k)
    k.write(0, os.urandom(65536))
    k.kill()
    u.wait(conn=DISCONNECTED, timeout=40)
    u.stop()
    swap(u.disk_file(), k.disk_file())  # u now has the crashed Primary's disk
    u.start()
    k.start()
    mixed.wait_synced()
    got = max(u.state()["received"], k.state()["received"])
    assert 4096 <= got <= 3 * 4096, f"{got} KiB, expected the active extents"
    mixed.assert_same()


# ---- where DRBD leaves a gap (docs/compatibility.md) ------------------------------------------------


def is_marked_on_disk(node, at):
    """Is the block at this byte marked in the bitmap on the node's disk? (24 MiB, internal metadata.)"""
    path, block = node.disk_file(), at // 4096
    superblock = os.path.getsize(path) // 4096 * 4096 - 4096
    with open(path, "rb") as f:
        f.seek(superblock - 72 * 512 + block // 8)
        return bool(f.read(1)[0] >> block % 8 & 1)


@pytest.mark.parametrize("target", "uk")
def test_bitmap_of_a_target(mixed, target):
    """A target's disk may still lose blocks that it has confirmed. urbd's bitmap names them by then, also those that the
    source has told of since the bitmaps became one; the kernel's is not written before the resync's end (row 55)."""
    t, s = roles(mixed, target)
    mixed.up(primary=s)
    # The guest sees its share as /kp.
    gate = os.path.join(s.guest.share if s.kind == "kernel" else mixed.dir, "gate")
    seen = "/kp/gate" if s.kind == "kernel" else gate
    mixed.configure(fast=False, net=C.FAST_NET, disk="c-plan-ahead 0; resync-rate 100K;",
                    handlers=f'before-resync-source "until [ -e {seen} ]; do sleep 0.1; done";')
    for n in (t, s):
        n.verb("adjust", "r0")
    t.cut()
    s.wait(conn=DISCONNECTED, timeout=40)
    s.write(8 * MIB, os.urandom(MIB))
    t.heal()
    s.wait(repl="WFBitMapS", timeout=40)
    s.write(20 * MIB, os.urandom(4096))  # only P_OUT_OF_SYNC says so
    open(gate, "w").close()
    begun = t.wait(repl="SyncTarget", timeout=20)
    total = 1024 + 4
    some = eventually("blocks are confirmed", lambda: 0 < s.state()["oos"] < total and t.state())
    marked = [is_marked_on_disk(t, at) for at in (9 * MIB - 4096, 20 * MIB)]
    assert some["repl"] == "SyncTarget" and some["oos"] > 64, f"too late to see: {begun}, {some}"
    assert marked == [t.kind == "urbd"] * 2
    mixed.configure(disk=C.FAST_DISK)
    t.verb("adjust", "r0")
    mixed.wait_synced()
    mixed.assert_same()
    assert not is_marked_on_disk(t, 20 * MIB)
    os.unlink(gate)


@pytest.mark.parametrize("target", "uk")
def test_target_detaches_where_its_resync_ends(kernel_lab, tmp_path, target):
    """The target has all blocks and waits for one word more, asks to detach, and its source goes on writing; then the word
    comes, and the answer behind it (row 60). A kernel begins no generation for that, so that its target may end the
    resync before it detaches; urbd begins one as source, and as target ends no resync that would take it over."""
    with through_a_proxy(kernel_lab, "--max", "101", "--hold", str(tmp_path)) as c:
        t, s = roles(c, target)
        adjust_for_a_proxy(c, fast=False, net="ping-int 60; ping-timeout 250; timeout 100;", disk=C.FAST_DISK)
        s.verb("primary", "--force", "r0")
        c.wait_synced()
        s.verb("pause-sync", "r0")
        t.verb("invalidate", "r0")
        t.wait(repl="PausedSyncT")
        held = tmp_path / f"{s.ip}-control"
        held.touch()
        s.verb("resume-sync", "r0")
        t.wait(repl="SyncTarget", oos=0)
        asks = threading.Thread(target=t.call, args=("detach", "r0"))
        asks.start()
        s.wait(peer_disk="~Failed|Diskless")
        s.write(4 * MIB, os.urandom(65536))
        assert t.state()["disk"] == "Inconsistent"
        held.unlink()
        asks.join()
        if t.state()["disk"] == "Diskless":
            t.verb("attach", "r0")
        c.wait_synced()
        c.assert_same()


@pytest.mark.parametrize("source", "uk")
def test_fresh_disk_is_copied(mixed, source):
    """Of two fresh disks one is copied to the other by command (row 71). A kernel leaves both in the generation of fresh
    disks; urbd as source begins one, which a kernel takes over where the resync ends, and finds equal later."""
    s, t = roles(mixed, source)
    mixed.configure()
    mixed.start_fresh()
    s.verb("invalidate-remote", "r0")
    mixed.wait_synced()
    current = [n.verb("get-gi", "r0").out.split(":")[0] for n in (s, t)]
    fresh = [int(g, 16) & ~1 == 4 for g in current]
    assert fresh == [s.kind == "kernel"] * 2, current
    assert int(current[0], 16) | 1 == int(current[1], 16) | 1
    t.cut()
    s.wait(conn=DISCONNECTED, timeout=40)
    t.heal()
    mixed.wait_synced()
    assert s.state()["oos"] == 0
    s.verb("primary", "r0")
    s.write(MIB, os.urandom(65536))
    mixed.assert_same()


@pytest.mark.parametrize("forced", "uk")
def test_forced_beside_users(mixed, forced):
    """Two Primaries are allowed, and one works without a good disk on a copy that is not good either, which the other node
    then declares good by force (row 62). A kernel agrees; urbd does when it has no users any more."""
    f, p = roles(mixed, forced)
    mixed.configure(fast=False, net=C.FAST_NET + " allow-two-primaries;", disk="c-plan-ahead 0; resync-rate 400K;")
    mixed.start_fresh()
    p.verb("primary", "--force", "r0")
    f.wait(repl="SyncTarget", timeout=20)
    p.call("detach", "--force", "r0")
    p.wait(disk="Diskless", role="Primary")
    f.wait(peer_disk="Diskless", disk="Inconsistent")
    result = f.call("primary", "--force", "r0")
    if p.kind == "urbd":
        assert result.rc != 0 and f.state()["disk"] == "Inconsistent"
        p.verb("secondary", "r0")
        f.verb("primary", "--force", "r0")
    else:
        assert result.rc == 0, result
    assert f.state()["disk"] == "UpToDate"


@pytest.mark.parametrize("client", "uk")
def test_promoted_without_a_disk(kernel_lab, tmp_path, client):
    """A node without a disk is promoted, its peer begins a generation for it, and the connection is lost before it hears
    of that (row 66). Its own old disk lacks what it has written since; a kernel takes it nevertheless, and reads the past."""
    with through_a_proxy(kernel_lab, "--max", "101", "--hold", str(tmp_path)) as c:
        d, s = roles(c, client)
        s.verb("primary", "--force", "r0")
        c.wait_synced()
        s.verb("secondary", "r0")
        d.verb("detach", "r0")
        s.wait(peer_disk="Diskless")
        held = tmp_path / f"{s.ip}-data"
        held.touch()
        d.verb("primary", "r0")
        s.wait(peer_role="Primary")
        d.write(MIB, b"\x01" * 512)
        d.cut()
        d.wait(conn=DISCONNECTED, role="Primary", timeout=40)
        result = d.call("attach", "r0")
        if d.kind == "urbd":
            assert result.rc == 10 and "(150)" in result.err, result
            assert d.state()["disk"] == "Diskless"
        else:
            assert result.rc == 0 and d.read(MIB, 512) == bytes(512), result


@pytest.mark.parametrize("primary", "uk")
def test_frozen_primary_whose_disks_come_back(mixed, primary):
    """Without any disk a Primary freezes (`on-no-data suspend-io`). Both disks come back while the two are connected: it
    stays frozen until `resume-io`, as the kernel does (`docs/spec/connection-and-state.md` 2.8, soft rule 8)."""
    p, s = roles(mixed, primary)
    mixed.up(primary=p, options="on-no-data-accessible suspend-io;")
    p.write(MIB, b"\x01" * 65536)
    p.verb("detach", "r0")
    s.wait(peer_disk="Diskless")
    s.verb("detach", "--force", "r0")
    p.wait(conn="Connected", disk="Diskless", peer_disk="Diskless", suspended=True)
    s.verb("attach", "r0")
    p.wait(conn="Connected", disk="Diskless", peer_disk="UpToDate")
    time.sleep(1)
    assert p.state()["suspended"]
    p.verb("attach", "r0")
    mixed.wait_synced()
    time.sleep(1)
    assert p.state()["suspended"]
    p.verb("resume-io", "r0")
    p.wait(suspended=False)
    assert p.read(MIB, 65536) == b"\x01" * 65536
    mixed.assert_same()


def test_a_restart_takes_leave_of_a_kernel_primary(mixed):
    """As `down` does: the kernel neither freezes its I/O nor calls fence-peer."""
    u, k = mixed.nodes
    mixed.up(primary=k, disk="fencing resource-and-stonith;", handlers='fence-peer "exit 1";')
    u.urbd("restart", "r0")
    u.processes.pop("r0", None)
    k.write(MIB, b"\x5a" * 8192)
    mixed.wait_synced()
    mixed.assert_same()
    assert not re.search(" fence-peer|susp\\( 0 -> 1|BrokenPipe", k.dmesg()), k.dmesg()[-3000:]


@pytest.mark.parametrize("primary", "uk")
def test_a_limit_of_the_size_is_lifted(mixed, primary):
    """`adjust` takes `size` out again on both nodes: the device grows, and the Secondary is a good copy of all of it."""
    p, s = roles(mixed, primary)
    mixed.up(primary=p, disk="size 16M;")
    assert p.data_size() == s.data_size() == 16 * MIB
    p.write(MIB, b"\x01" * 65536)
    mixed.configure(disk="")
    for n in (s, p):
        n.verb("adjust", "r0")
        mixed.wait_synced()
    eventually("both have grown", lambda: p.data_size() == s.data_size() > 20 * MIB, 20)
    p.write(p.data_size() - 65536, b"\x02" * 65536)
    p.flush()
    mixed.wait_synced()
    mixed.assert_same()
    switch(p, s)
    assert s.read(s.data_size() - 65536, 65536) == b"\x02" * 65536


def test_the_last_good_copy_goes_by_force_in_a_kernel(mixed):
    """The kernel says that its disk is gone while this Primary has none: a fact. The nodes stay connected, I/O fails, and
    both go on when their disks are back."""
    u, k = mixed.nodes
    mixed.up(primary=u)
    u.write(MIB, b"\x01" * 65536)
    u.verb("detach", "r0")
    u.wait(disk="Diskless", peer_disk="UpToDate")
    k.verb("detach", "--force", "r0")
    u.wait(peer_disk="Diskless")
    assert u.state()["conn"] != "StandAlone"
    k.verb("attach", "r0")
    u.wait(conn="Connected", peer_disk="UpToDate")
    assert u.read(MIB, 65536) == b"\x01" * 65536
    u.write(2 * MIB, b"\x02" * 65536)
    u.verb("attach", "r0")
    mixed.wait_synced()
    mixed.assert_same()


def test_a_kernel_with_another_disk_is_refused_until_it_has_its_own(mixed):
    """A Primary without a disk, whose peer comes back with a fresh disk: nothing of that is served to its users. It goes on
    trying, and serves them again as soon as the peer has the disk with their data."""
    u, k = mixed.nodes
    mixed.up(primary=u)
    u.write(MIB, b"\x01" * 65536)
    u.verb("detach", "r0")
    u.wait(disk="Diskless", peer_disk="UpToDate")
    k.verb("disconnect", "--force", "r0")
    k.verb("down", "r0")
    shutil.copyfile(k.disk_file(), k.disk_file() + ".kept")
    k.create_md()
    k.start()
    eventually("it is refused", lambda: "exposed-data-differs" in u.log(), 30)
    u.wait(conn="Connecting")
    k.verb("down", "r0")
    with open(k.disk_file() + ".kept", "rb") as kept, open(k.disk_file(), "r+b") as f:
        shutil.copyfileobj(kept, f)
        os.fsync(f.fileno())
    k.start()
    u.wait(conn="Connected", peer_disk="UpToDate", timeout=30)
    assert u.read(MIB, 65536) == b"\x01" * 65536
    u.verb("attach", "r0")
    mixed.wait_synced()
    mixed.assert_same()
