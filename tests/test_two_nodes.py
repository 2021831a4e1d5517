"""Two urbd nodes on one private network: what an administrator lives through, scenario by scenario."""

import os
import random
import subprocess
import sys

import pytest

import nbdio
from cluster import MIB, eventually


class Load:
    """nbdio's load as a process of its own: it survives, and remembers, whatever happens to the server."""

    def __init__(self, node, seed=1, seconds=600, volume=0, **options):
        self.journal = os.path.join(node.cluster.dir, f"journal-{node.name}-{seed}")
        args = [f"--{k.replace('_', '-')}={v}" for k, v in options.items() if v is not True]
        args += [f"--{k}" for k, v in options.items() if v is True]
        self.p = subprocess.Popen([sys.executable, nbdio.__file__, "load", node.uri(volume), self.journal,
                                   f"--seed={seed}", f"--seconds={seconds}", *args],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def acknowledged(self):
        if not os.path.exists(self.journal):
            return 0
        with open(self.journal) as f:
            return f.read().count("\na ")

    def wait_writes(self, more=200, timeout=30):
        goal = self.acknowledged() + more

        def enough():
            assert self.p.poll() is None, f"the load ended with {self.p.returncode}: {self.p.stderr.read()}"
            return self.acknowledged() >= goal

        eventually(f"{more} acknowledged writes", enough, timeout)

    def settled(self):
        """Nothing was acknowledged for a second, in which what was on its way has come: how much that is."""
        counts = [-1]

        def same():
            counts.append(self.acknowledged())
            return counts[-1] == counts[-2]

        eventually("no write is acknowledged any more", same, pause=1)
        return counts[-1]

    def end(self, want, timeout=90):
        rc = self.p.wait(timeout)
        err = self.p.stderr.read()
        self.p.stderr.close()
        assert rc == want, f"the load ended with {rc}, not {want}: {err}"
        return self.journal

    def interrupt(self):
        """Ends the load from outside; unacknowledged writes count as unacknowledged."""
        self.p.terminate()
        self.p.wait(20)
        self.p.stderr.close()
        return self.journal


def verify(node, *journals, volume=0):
    assert nbdio.verify(node.uri(volume), journals) == 0, f"{node.name} does not have what was acknowledged"


def take_over(node, other, *journals):
    """`node` becomes Primary instead of the other one, and has what that acknowledged."""
    other.urbd("secondary", "r0")
    node.urbd("primary", "r0")
    verify(node, *journals)


def resynced(node, before):
    """KiB that this node received since `before` (a state)."""
    return node.state()["received"] - before["received"]


# ---- the main job -------------------------------------------------------------


def test_initial_sync_and_read_back(pair):
    """A full sync copies what was on the first node's disk; reads and writes of all kinds of ranges."""
    a, b = pair.nodes
    rng = random.Random(1)
    old = rng.randbytes(3 * MIB)
    with open(a.disk_file(), "r+b") as f:
        f.seek(5 * MIB)
        f.write(old)
    pair.configure()
    for n in (a, b):
        n.urbd("create-md", "--force", "r0")
        n.start()
    for n in (a, b):
        n.wait(conn="Connected", disk="Inconsistent", peer_disk="Inconsistent", role="Secondary")
    a.urbd("primary", "--force", "r0")
    pair.wait_synced()
    assert a.state()["role"] == "Primary" and b.state()["peer_role"] == "Primary"
    with a.nbd() as h:
        assert h.read(5 * MIB, len(old)) == old
        mirror = bytearray(h.read(0, h.size))
        for i in range(60):
            n = rng.choice((512, 1024, 3 * 512, 4096, 12288, 65536, 65536 + 512, MIB))
            at = rng.randrange((h.size - n) // 512) * 512
            data = rng.randbytes(n)
            h.write(at, data, fua=i % 7 == 0)
            mirror[at:at + n] = data
        h.flush()
        assert h.read(0, h.size) == bytes(mirror)
    pair.assert_same()
    with open(b.disk_file(), "rb") as f:
        assert f.read(len(mirror)) == bytes(mirror)


@pytest.mark.parametrize("protocol", "ABC")
def test_protocols(pair, protocol):
    pair.up(protocol=protocol)
    a, b = pair.nodes
    load = Load(a, seconds=3, depth=16, overlap=True, flush=True)
    load.end(0)
    verify(a, load.journal)
    pair.assert_same()
    take_over(b, a, load.journal)


def test_secondary_cannot_be_written(synced):
    _, b = synced.nodes
    with pytest.raises((nbdio.Gone, Exception)) as refused:
        with b.nbd() as h:
            h.write(0, bytes(4096))
    assert not isinstance(refused.value, nbdio.Stuck)
    synced.assert_same()


def test_discard_and_zeroes(synced):
    a, b = synced.nodes
    a.write(0, os.urandom(8 * MIB))
    with a.nbd() as h:
        h.zero(MIB, MIB + 512)
        assert h.read(MIB, MIB + 512) == bytes(MIB + 512)
        h.trim(4 * MIB, 2 * MIB)
    synced.assert_same()


def test_two_volumes(cluster):
    a, _ = cluster.node("a", size=16 * MIB, volumes=2), cluster.node("b", size=16 * MIB, volumes=2)
    cluster.up(volumes=2)
    for v in (0, 1):
        a.wait(volume=v, disk="UpToDate", peer_disk="UpToDate")
    loads = [Load(a, seed=v + 1, seconds=2, volume=v) for v in (0, 1)]
    for v, load in enumerate(loads):
        load.end(0)
        verify(a, load.journal, volume=v)
        cluster.assert_same(volume=v)
    with open(a.disk_file(0), "rb") as x, open(a.disk_file(1), "rb") as y:
        assert x.read(8 * MIB) != y.read(8 * MIB)


# ---- deaths and returns ---------------------------------------------------------


def test_orderly_failover(synced):
    a, b = synced.nodes
    load = Load(a, seconds=2)
    load.end(0)
    take_over(b, a, load.journal)
    again = Load(b, seed=2, seconds=2)
    again.end(0)
    verify(b, load.journal, again.journal)
    synced.assert_same()
    a.wait(role="Secondary", peer_role="Primary", disk="UpToDate")


@pytest.mark.parametrize("protocol", "BC")
def test_kill_the_primary(pair, protocol):
    """kill -9 under load: the other node has every acknowledged write; the return costs a small resync."""
    pair.up(protocol=protocol)
    a, b = pair.nodes
    load = Load(a, depth=16, sectors=8192)
    load.wait_writes(300)
    a.kill()
    load.end(3)
    b.wait(conn="~Connecting|Unconnected", role="Secondary")
    b.urbd("primary", "r0")
    verify(b, load.journal)
    after = Load(b, seed=2, seconds=1, sectors=2048)
    after.end(0)
    a.start()
    pair.wait_synced()
    # 4 MiB of data under the load's activity-log extents (4 MiB each): two of them at most, and what b wrote
    assert a.state()["received"] <= 3 * 4096
    pair.assert_same()
    verify(b, load.journal, after.journal)
    assert a.state()["role"] == "Secondary"


def test_kill_the_secondary(synced):
    """The primary goes on; the outage is resynced by the bitmap only."""
    a, b = synced.nodes
    load = Load(a, depth=8, sectors=4096, pace=0.002)
    load.wait_writes(100)
    b.kill()
    a.wait(conn="~Connecting|Unconnected", peer_disk="~DUnknown|Outdated")
    load.wait_writes(100)
    assert a.state()["oos"] > 0
    b.start()
    synced.wait_synced()
    load.wait_writes(50)
    load.interrupt()
    assert b.state()["received"] < 16 * 1024, "this was a full resync"
    verify(a, load.journal)
    synced.assert_same()
    take_over(b, a, load.journal)


def test_both_die(synced):
    """Both processes are killed under load; whoever was Primary has every acknowledged write."""
    a, b = synced.nodes
    load = Load(a, depth=8)
    load.wait_writes(200)
    a.kill()
    b.kill()
    load.end(3)
    for n in (a, b):
        n.start()
    synced.wait_synced()
    a.urbd("primary", "r0")
    verify(a, load.journal)
    synced.assert_same()


def test_outage_is_resynced_by_bitmap(synced):
    """A cut link: few blocks change; exactly those are resynced, in both directions."""
    a, b = synced.nodes
    for writer, other in ((a, b), (b, a)):
        if writer.state()["role"] != "Primary":
            other.urbd("secondary", "r0")
            writer.urbd("primary", "r0")
        before = other.state()
        other.cut()
        for i in range(5):
            writer.write(i * MIB + 512, os.urandom(1024))
        writer.wait(conn="~Connecting|Unconnected|NetworkFailure|Timeout", timeout=40)
        writer.write(7 * MIB, os.urandom(8192))
        assert writer.state()["oos"] == 5 * 4 + 8
        other.heal()
        synced.wait_synced()
        assert writer.state()["oos"] == 0
        assert resynced(other, before) <= 5 * 4 + 8 + 8 or other.state()["received"] <= 64
        synced.assert_same()


def test_disconnect_and_connect(synced):
    a, b = synced.nodes
    b.urbd("disconnect", "r0")
    b.wait(conn="StandAlone")
    a.wait(conn="~Connecting|Unconnected")
    a.write(0, b"\x77" * 4096)
    b.urbd("connect", "r0")
    synced.wait_synced()
    synced.assert_same()


def test_down_and_up(synced):
    a, b = synced.nodes
    a.write(MIB, b"\x31" * 65536)
    a.urbd("secondary", "r0")
    for n in (a, b):
        n.stop()
        assert not n.pids()
    for n in (a, b):
        n.start()
    synced.wait_synced()
    assert max(n.state()["received"] or 0 for n in (a, b)) == 0, "nothing had changed, nothing is to be resynced"
    b.urbd("primary", "r0")
    assert b.read(MIB, 65536) == b"\x31" * 65536


def test_up_detached(pair):
    """`urbd up` leaves a process behind that serves until `down`."""
    a, b = pair.nodes
    for n in (a, b):
        n.urbd("create-md", "--force", "r0")
        n.urbd("up", "r0")
        assert n.pids()
    a.wait(conn="Connected")
    a.urbd("primary", "--force", "r0")
    pair.wait_synced()
    a.write(0, b"\x05" * 4096)
    pair.assert_same()
    for n in (a, b):
        n.urbd("down", "r0")
        eventually("its process ends", lambda: not n.pids(), 20)


def test_frozen_secondary(synced):
    """A peer that stops answering is dropped after the timeouts; the primary goes on."""
    a, b = synced.nodes
    b.freeze()
    load = Load(a, sectors=2048, pace=0.002)
    a.wait(conn="~Connecting|Unconnected|Timeout|NetworkFailure", timeout=40)
    load.wait_writes(20)
    b.thaw()
    synced.wait_synced()
    load.wait_writes(20)
    load.interrupt()
    verify(a, load.journal)
    synced.assert_same()


# ---- disks ------------------------------------------------------------------------


def test_detached_primary_uses_its_peer(synced):
    a, b = synced.nodes
    load = Load(a)
    load.wait_writes(100)
    a.urbd("detach", "r0")
    a.wait(disk="Diskless")
    load.wait_writes(100)
    load.interrupt()
    verify(a, load.journal)
    a.write(4096, b"\x42" * 4096, fua=True)
    a.flush()
    b.wait(peer_disk="Diskless")
    a.urbd("attach", "r0")
    synced.wait_synced()
    verify(a, *[load.journal]) if a.read(4096, 4096) != b"\x42" * 4096 else None
    assert a.read(4096, 4096) == b"\x42" * 4096
    synced.assert_same()


def test_never_had_a_disk(cluster):
    """A node whose config says `disk none` is Primary and works on its peer's disk."""
    a, b = cluster.node("a"), cluster.node("b")
    text = cluster.configure()
    text = text.replace(f"disk {a.disk_path()}; meta-disk internal;", "disk none;")
    for n in (a, b):
        n.put_res("r0", text)
    b.urbd("create-md", "--force", "r0")
    for n in (b, a):
        n.start()
    b.wait(conn="Connected")
    b.urbd("primary", "--force", "r0")
    b.wait(disk="UpToDate")
    b.urbd("secondary", "r0")
    a.wait(disk="Diskless", peer_disk="UpToDate")
    a.urbd("primary", "r0")
    load = Load(a, seconds=2, flush=True)
    load.end(0)
    verify(a, load.journal)
    take_over(b, a, load.journal)


def test_metadata_moves_from_internal_to_external(synced):
    """As users do it: down, dump-md, edit the config, restore-md, up.  No resync."""
    a, b = synced.nodes
    load = Load(a, seconds=1)
    load.end(0)
    a.urbd("secondary", "r0")
    a.stop()
    md = os.path.join(a.dir, "md")
    with open(md, "wb") as f:
        f.truncate(4 * MIB)
    dump = a.urbd("dump-md", "r0").out
    assert dump.startswith(("#", "version")) and "la-size-sect" in dump
    path = os.path.join(a.dir, "md.txt")
    with open(path, "w") as f:
        f.write(dump)
    synced.configure(meta={"a": md, "b": "internal"})
    a.urbd("restore-md", "--force", "r0", path)
    again = a.urbd("dump-md", "r0").out
    pick = [x for x in dump.split("\n") if x.strip().startswith(("version", "la-size", "uuid", "0x", "flags", "current"))]
    assert pick and pick == [x for x in again.split("\n") if x.strip().startswith(
        ("version", "la-size", "uuid", "0x", "flags", "current"))]
    a.start()
    synced.wait_synced()
    assert (a.state()["received"] or 0) == 0
    a.urbd("primary", "r0")
    verify(a, load.journal)
    a.write(0, b"\x11" * 4096)
    synced.assert_same()


def test_invalidate(synced):
    a, b = synced.nodes
    for offset in range(0, 31 * MIB, MIB):  # zeroes would be resynced without being sent
        a.write(offset, os.urandom(MIB))
    b.urbd("invalidate", "r0")
    synced.wait_synced()
    assert b.state()["received"] >= 30 * 1024
    a.urbd("secondary", "r0")
    b.urbd("primary", "r0")
    b.urbd("invalidate-remote", "r0")
    synced.wait_synced()
    assert a.state()["received"] >= 30 * 1024
    synced.assert_same()


# ---- roles, split brain, fencing -----------------------------------------------------


def test_only_one_primary(synced):
    a, b = synced.nodes
    r = b.call("primary", "r0")
    assert r.rc == 11 and "-1" in r.err, r
    assert b.state()["role"] == "Secondary" and a.state()["role"] == "Primary"


def test_inconsistent_cannot_be_primary(pair):
    a, b = pair.nodes
    for n in (a, b):
        n.urbd("create-md", "--force", "r0")
        n.start()
    a.wait(conn="Connected")
    r = a.call("primary", "r0")
    assert r.rc == 17 and "Need access to UpToDate data" in r.err, r


def test_two_primaries_need_the_option_and_protocol_c(pair):
    pair.up(net="allow-two-primaries yes;")
    a, b = pair.nodes
    b.urbd("primary", "r0")
    for n in (a, b):
        n.wait(role="Primary", peer_role="Primary")
    a.write(0, b"\x0a" * 4096)
    b.write(MIB, b"\x0b" * 4096)
    assert b.read(0, 4096) == b"\x0a" * 4096 and a.read(MIB, 4096) == b"\x0b" * 4096
    pair.assert_same()


def test_two_primaries_write_the_same_blocks(pair):
    """Overlapping, unaligned writes on both sides at once: whoever wins, both disks must hold the same."""
    pair.up(net="allow-two-primaries yes;")
    a, b = pair.nodes
    b.urbd("primary", "r0")
    writers = []
    for n in (a, b):
        args = ["fio", "--name=w", "--ioengine=nbd", f"--uri={n.uri()}", "--rw=randwrite", "--bsrange=512-32k",
                "--blockalign=512", "--size=256k", "--time_based", "--runtime=3", "--iodepth=16", "--randrepeat=0",
                f'--buffer_pattern="{n.name * 8}"', "--refill_buffers"]
        writers.append(subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for w in writers:
        out, _ = w.communicate(timeout=60)
        assert w.returncode == 0, out
    for n in (a, b):
        n.wait(conn="Connected", disk="UpToDate", peer_disk="UpToDate")
    pair.assert_same()


def test_two_primaries_are_refused_with_protocol_a(pair):
    pair.configure(protocol="A", net="allow-two-primaries yes;")
    a, _ = pair.nodes
    a.call("create-md", "--force", "r0")
    r = a.call("up", "r0")
    assert r.rc != 0 and "protocol" in r.err.lower(), r
    assert not a.pids()


def test_open_device_keeps_the_role(synced):
    a, _ = synced.nodes
    with a.nbd() as h:
        h.write(0, bytes(4096))
        r = a.call("secondary", "r0")
        assert r.rc == 11 and "Device is held open by someone" in r.err, r
        assert a.state()["role"] == "Primary"
    eventually("demotion once it is closed", lambda: a.call("secondary", "r0").rc == 0)


def split(c, a_writes=True, b_writes=True):
    """Both nodes were Primary while they did not see each other."""
    a, b = c.nodes
    b.cut()
    for n in (a, b):
        n.wait(conn="~Connecting|Unconnected|NetworkFailure|Timeout", timeout=40)
    b.urbd("primary", "r0")
    if a_writes:
        a.write(MIB, b"\xaa" * 8192)
    if b_writes:
        b.write(8 * MIB, b"\xbb" * 4096)


def test_split_brain_by_hand(synced):
    a, b = synced.nodes
    split(synced)
    b.urbd("secondary", "r0")
    b.heal()
    for n in (a, b):
        n.wait(conn="~StandAlone|Connecting", timeout=40)
    eventually("split brain ends the connection", lambda: "StandAlone" in (a.state()["conn"], b.state()["conn"]), 40)
    assert a.read(MIB, 8192) == b"\xaa" * 8192
    b.call("disconnect", "r0")
    b.urbd("connect", "--discard-my-data", "r0")

    def survivor_connects():
        # Which of the two came to its decision first, before the other closed the connection, is left to chance.
        if a.state()["conn"] == "StandAlone":
            a.call("connect", "r0")
        return a.state()["conn"] == "Connected"

    eventually("the survivor connects", survivor_connects, 60)
    synced.wait_synced()
    assert synced.assert_same()
    assert a.read(MIB, 8192) == b"\xaa" * 8192 and a.read(8 * MIB, 4096) != b"\xbb" * 4096


@pytest.mark.parametrize("policy, survivor", [("discard-zero-changes", "a"), ("discard-least-changes", "a"),
                                              ("discard-younger-primary", "a"), ("discard-older-primary", "b")])
def test_split_brain_after_sb_0pri(pair, policy, survivor):
    pair.up(net=f"after-sb-0pri {policy};")
    a, b = pair.nodes
    split(pair, b_writes=policy != "discard-zero-changes")
    for n in (a, b):
        n.urbd("secondary", "r0")
    b.heal()
    pair.wait_synced()
    pair.assert_same()
    a.urbd("primary", "r0")
    assert (a.read(MIB, 8192) == b"\xaa" * 8192) == (survivor == "a")


def test_a_policy_that_overrides_discard_my_data_says_so(pair):
    pair.up(net="after-sb-0pri discard-older-primary;")
    a, b = pair.nodes
    split(pair)
    for n in (a, b):
        n.urbd("secondary", "r0")
        n.urbd("disconnect", "r0")
    b.urbd("connect", "--discard-my-data", "r0")
    a.urbd("connect", "r0")
    b.heal()
    pair.wait_synced()
    pair.assert_same()
    b.urbd("primary", "r0")
    assert b.read(MIB, 8192) != b"\xaa" * 8192
    for n, whose in ((a, "the peer"), (b, "this node")):
        text = f"{whose} was to discard its data, but keeps it"
        assert n.log().count(text) == 1 and text in n.urbd("why", "r0").out, n.log()
        assert "Primary first loses" in n.log()
    b.urbd("secondary", "r0")
    # Where nothing overrides it, nothing is said.
    pair.configure(net="after-sb-0pri disconnect;")
    for n in (a, b):
        n.urbd("adjust", "r0")
    a.urbd("primary", "r0")
    split(pair)
    for n in (a, b):
        n.urbd("secondary", "r0")
        n.urbd("disconnect", "r0")
    b.urbd("connect", "--discard-my-data", "r0")
    a.urbd("connect", "r0")
    b.heal()
    pair.wait_synced()
    assert a.log().count("was to discard its data") == b.log().count("was to discard its data") == 1


def test_split_brain_after_sb_1pri(pair):
    pair.up(net="after-sb-1pri discard-secondary;")
    a, b = pair.nodes
    split(pair)
    b.urbd("secondary", "r0")
    b.heal()
    pair.wait_synced()
    pair.assert_same()
    assert a.state()["role"] == "Primary" and a.read(MIB, 8192) == b"\xaa" * 8192


def test_split_brain_handler(pair):
    log = os.path.join(pair.dir, "handler.log")
    pair.up(handlers=f'split-brain "echo $DRBD_RESOURCE $DRBD_PEER_ADDRESS split-brain >> {log}"; '
                     f'initial-split-brain "echo $DRBD_RESOURCE initial >> {log}";')
    a, b = pair.nodes
    split(pair)
    b.heal()
    eventually("the handlers were called", lambda: os.path.exists(log) and "split-brain" in open(log).read(), 40)
    text = open(log).read()
    assert "r0 initial" in text and f"r0 {b.ip} split-brain" in text or f"r0 {a.ip} split-brain" in text, text


@pytest.mark.parametrize("answer, state", [(4, "Outdated"), (5, "Outdated"), (7, "Outdated")])
def test_fence_peer(pair, answer, state):
    log = os.path.join(pair.dir, "fence.log")
    pair.up(net="fencing resource-only;",
            handlers=f'fence-peer "echo $DRBD_RESOURCE >> {log}; exit {answer}"; unfence-peer "echo un >> {log}";')
    a, b = pair.nodes
    b.kill()
    a.wait(peer_disk=state, timeout=40)
    assert "r0" in open(log).read()
    a.write(0, b"\x21" * 4096)
    b.start()
    pair.wait_synced()
    eventually("unfence-peer was called", lambda: "un" in open(log).read(), 20)
    pair.assert_same()


@pytest.mark.parametrize("side", ["target", "source"])
def test_a_resync_waits_for_its_handler(pair, side):
    """before-resync-target, before-resync-source: until it ends nothing of the old data is overwritten; if it fails,
    there is no resync."""
    gate, log = os.path.join(pair.dir, "gate"), os.path.join(pair.dir, "handler.log")

    def open_gate(code):
        with open(gate + ".new", "w") as f:
            f.write(str(code))
        os.rename(gate + ".new", gate)

    def behind(fill):
        """The second node comes back to data that it lacks; the handler runs."""
        os.unlink(gate)
        b.urbd("disconnect", "r0")
        a.write(0, fill * 65536)
        b.urbd("connect", "r0")
        b.wait(repl="WFSyncUUID", disk="Outdated")
        if side == "source":
            a.wait(repl="WFBitMapS")

    def on_disk():
        with open(b.disk_file(), "rb") as f:
            return f.read(65536)

    open_gate(0)
    pair.up(handlers=f'before-resync-{side} "echo $DRBD_RESOURCE >> {log}; '
                     f'while [ ! -e {gate} ]; do sleep 0.1; done; exit `cat {gate}`";')
    a, b = pair.nodes
    before, calls = on_disk(), len(open(log).readlines()) if os.path.exists(log) else 0
    behind(b"\x31")
    eventually("the handler was called", lambda: len(open(log).readlines()) == calls + 1, 20)
    a.write(MIB, b"\x32" * 4096)  # the Primary goes on meanwhile
    assert on_disk() == before and b.state()["repl"] == "WFSyncUUID"
    open_gate(0)
    pair.wait_synced()
    pair.assert_same()
    assert on_disk() == b"\x31" * 65536

    behind(b"\x33")
    open_gate(1)
    refuses = b if side == "target" else a
    refuses.wait(conn="StandAlone")
    b.wait(disk="Outdated", repl="Off")
    assert f"before-resync-{side} ended with 1" in refuses.log()
    assert on_disk() == b"\x31" * 65536
    open_gate(0)
    refuses.urbd("connect", "r0")
    pair.wait_synced()
    pair.assert_same()


def test_stonith_freezes_io_until_fenced(pair):
    gate = os.path.join(pair.dir, "gate")
    pair.up(net="fencing resource-and-stonith;",
            handlers=f'fence-peer "while [ ! -e {gate} ]; do sleep 0.1; done; exit 7";')
    a, b = pair.nodes
    load = Load(a, sectors=2048)
    load.wait_writes(50)
    b.kill()
    a.wait(suspended=True, timeout=40)
    frozen = load.settled()
    assert a.wait(suspended=True)["suspended"]
    assert load.acknowledged() - frozen <= 0, "a write was acknowledged while the peer was not fenced"
    open(gate, "w").close()
    a.wait(suspended=False, peer_disk="Outdated")
    load.wait_writes(50)
    load.interrupt()
    verify(a, load.journal)


def test_outdated_secondary_is_not_promoted(pair):
    """A Secondary told that it is outdated refuses to become Primary, until it has seen its peer again."""
    pair.up(net="fencing resource-only;")
    a, b = pair.nodes
    a.urbd("disconnect", "r0")
    b.wait(disk="Outdated", timeout=40)
    r = b.call("primary", "r0")
    assert r.rc == 17, r
    a.write(0, b"\x51" * 4096)
    a.urbd("connect", "r0")
    pair.wait_synced()
    pair.assert_same()


def test_suspend_and_resume_io(synced):
    a, _ = synced.nodes
    load = Load(a, sectors=2048)
    load.wait_writes(50)
    a.urbd("suspend-io", "r0")
    a.wait(suspended=True)
    frozen = load.settled()
    synced.nodes[1].state()  # some time passes
    assert load.acknowledged() == frozen
    a.urbd("resume-io", "r0")
    a.wait(suspended=False)
    load.wait_writes(50)
    load.interrupt()
    verify(a, load.journal)


# ---- authentication and agreement ------------------------------------------------------


def test_shared_secret(pair):
    pair.up(net='cram-hmac-alg sha256; shared-secret "right";')
    a, b = pair.nodes
    a.write(0, b"\x61" * 4096)
    pair.assert_same()
    b.stop()
    text = pair.configure()
    b.put_res("r0", text.replace('"right"', '"wrong"'))
    b.start()
    for n in (a, b):
        eventually("status says it", lambda: "authentication:failed" in n.urbd("status", "r0").out, 40)
        connection = n.status()["connections"][0]
        assert connection["connection-state"] != "StandAlone" and connection["failed-authentications"] > 0, connection
        assert "shared-secret" in connection["reason"] and "next try" in connection["reason"], connection
    # It goes on by itself as soon as the secrets agree, however long the next wait would be.
    b.put_res("r0", text)
    b.urbd("adjust", "r0")
    pair.wait_synced(timeout=25)
    assert "authentication" not in a.urbd("status", "r0").out + b.urbd("status", "r0").out
    assert "failed-authentications" not in a.status()["connections"][0]


def test_data_integrity(pair):
    pair.up(net="data-integrity-alg crc32c;")
    a, _ = pair.nodes
    load = Load(a, seconds=2)
    load.end(0)
    pair.assert_same()


def test_protocol_disagreement(pair):
    a, b = pair.nodes
    text = pair.configure(protocol="C")
    for n in (a, b):
        n.urbd("create-md", "--force", "r0")
    b.put_res("r0", text.replace("protocol C;", "protocol A;"))
    for n in (a, b):
        n.start()
    eventually("refusal", lambda: "StandAlone" in (a.state()["conn"], b.state()["conn"]), 40)
    assert "protocol" in (a.log() + b.log()).lower()
