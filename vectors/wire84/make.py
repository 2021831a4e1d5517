#!/usr/bin/env python3
"""Record the wire vectors of this folder from two real kernel DRBD 8.4 nodes.

    make.py [scenario ...]     record (default: all; needs root and the rig)
    make.py --check            compare our decoding of the files with tshark's
    make.py --index            write INDEX.md

Every scenario sets up its own metadata, so they can be made one by one.
Writes NAME.pcapng (what a tap on the wire saw, commented) and NAME.txt (our
own independent decoding of the same bytes, one line per packet).
"""

import argparse
import collections
import contextlib
import glob
import lzma
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.environ.get("KERNEL_PEER_DIR", os.path.join(HERE, "..", "..", "tests", "kernel-peer")))
from kernel_peer import HOST_IP, Lab, drbd_res  # noqa: E402
from decode84 import COMMANDS, decode, read_pcap, write_pcapng  # noqa: E402

FAST = "c-plan-ahead 0; resync-rate 100M;"
SCENARIOS = {}


def scenario(number, title):
    def deco(f):
        name = f"{number:02d}-{f.__name__.replace('_', '-')}"
        SCENARIOS[name] = (title, f)
        return f
    return deco


def pattern(lba, sectors, gen):
    """Sector contents that name themselves."""
    out = b""
    for s in range(lba, lba + sectors):
        out += (f"sector {s:010d} generation {gen:06d} ".encode() * 16)[:512]
    return out


class Rec:
    """Two guests and a recorder."""

    def __init__(self, lab):
        self.lab = lab
        disks = ["384K", "1M", "1G"]  # tiny data disk, external metadata, big sparse data disk
        self.a, self.b = lab.add("a", disks=disks), lab.add("b", disks=disks)
        self.both = (self.a, self.b)
        self.marks, self.gen = [], 0

    def reset(self):
        for n in self.both:
            if not n.running:
                n.start()
            n.heal()
            n.netem()
            n.exec("drbdadm down all; drbdsetup down r0; dmsetup remove_all --force; rm -f /kp/drbd.d/*.res; "
                   "dmesg -c >/dev/null; blkdiscard /dev/ubda; blkdiscard /dev/ubdb; blkdiscard /dev/ubdc")
        self.marks, self.gen, self.res, self.notes = [], 0, "", []

    def tiny(self, sectors=320):
        """A small data device (160 KiB), for scenarios that copy all of it."""
        for n in self.both:
            n.dm_linear("tiny", "/dev/ubda", sectors)
        return "/dev/mapper/tiny"

    def configure(self, **kw):
        kw.setdefault("meta", "/dev/ubdb")
        kw.setdefault("disk_opts", FAST)
        for n in self.both:
            n.put_res("r0", drbd_res("r0", self.both, **kw))
        self.res = self.res or drbd_res("r0", self.both, **kw)

    def create(self, up=True, **kw):
        self.configure(**kw)
        for n in self.both:
            n.sh("drbdadm create-md --force r0")
            if up:
                n.sh("drbdadm up r0")

    def ready(self, skip_sync=True, primary=True, **kw):
        """Connected and UpToDate on both sides, usually without the initial sync."""
        self.create(**kw)
        for n in self.both:
            n.wait_drbd(cs="Connected")
        if skip_sync:
            self.a.sh("drbdadm new-current-uuid --clear-bitmap r0/0")
            if primary:
                self.a.sh("drbdadm primary r0")
        else:
            self.a.sh("drbdadm primary --force r0")
            self.settle()
            if not primary:
                self.a.sh("drbdadm secondary r0")
        self.settle()

    def settle(self, **want):
        want.setdefault("ds", "UpToDate/UpToDate")
        for n in self.both:
            n.wait_drbd(cs="Connected", **want)
        self.quiet()

    def quiet(self, seconds=0.4):
        time.sleep(seconds)

    def mark(self, text):
        self.marks.append((time.time(), text))

    def do(self, node, cmd, check=True, timeout=60):
        """A marked command: shows up as a comment on the next packet."""
        self.mark(f"{node}: {cmd}")
        return node.sh(cmd, timeout=timeout) if check else node.exec(cmd, timeout=timeout)

    def write(self, node, lba, sectors, dev="/dev/drbd0", opts="oflag=direct", check=True):
        """One write system call with self-describing contents."""
        self.gen += 1
        with open(os.path.join(node.share, "pattern"), "wb") as f:
            f.write(pattern(lba, sectors, self.gen))
        self.mark(f"{node}: write {sectors} sectors at sector {lba} (generation {self.gen}) {opts}")
        node.exec(f"dd if=/kp/pattern of={dev} bs={sectors * 512} count=1 seek={lba * 512} conv=notrunc "
                  f"{opts.replace('oflag=', 'oflag=seek_bytes,')} 2>&1") if not check else \
            node.sh(f"dd if=/kp/pattern of={dev} bs={sectors * 512} count=1 seek={lba * 512} conv=notrunc "
                    f"{opts.replace('oflag=', 'oflag=seek_bytes,')} 2>&1")

    def read(self, node, lba, sectors, dev="/dev/drbd0", check=True):
        self.mark(f"{node}: read {sectors} sectors at sector {lba}")
        cmd = f"dd if={dev} bs={sectors * 512} count=1 skip={lba * 512} iflag=direct,skip_bytes 2>&1 >/dev/null"
        return node.sh(cmd) if check else node.exec(cmd)

    @contextlib.contextmanager
    def wire(self, tail=0.6, minors=(0,)):
        """Record the with-block.  Every recording starts with the connection's
        set-up: a connection that is up already is closed before and opened
        again as the first thing recorded."""
        up = [m for m in minors if self.b.proc_drbd().get(m, {}).get("cs") == "Connected"]
        if up:
            self.b.sh("drbdadm disconnect r0")
            self.a.wait_drbd(minor=up[0], cs=["WFConnection", "StandAlone"])
            self.quiet()
        tmp = tempfile.mkdtemp(prefix="vec-")
        self.raw = os.path.join(tmp, "raw.pcap")
        # the tap of node b: both directions, each packet once
        with self.lab.capture(self.raw, "tcp port 7788", iface=f"kp{self.b.config['index']}", pcapng=False):
            if up:
                self.do(self.b, "drbdadm connect r0")
                for m in up:
                    for n in self.both:
                        n.wait_drbd(minor=m, cs="Connected")
                self.quiet()
                self.mark("--- now the scenario itself ---")
            yield
            self.quiet(tail)


# ---- handshake, bitmaps, initial sync ------------------------------------------

@scenario(1, "first connect with bitmap run-length coding (use-rle default), then `primary --force` and the initial full sync")
def initial_sync(r):
    r.create(up=False, disk=r.tiny())
    with r.wire():
        for n in r.both:
            r.do(n, "drbdadm up r0")
        for n in r.both:
            n.wait_drbd(cs="Connected")
        r.quiet()
        r.do(r.a, "drbdadm primary --force r0")
        r.settle()


@scenario(2, "the same with `use-rle no`: plain bitmap packets")
def initial_sync_plain_bitmap(r):
    r.create(up=False, disk=r.tiny(), net="use-rle no;")
    with r.wire():
        for n in r.both:
            r.do(n, "drbdadm up r0")
        for n in r.both:
            n.wait_drbd(cs="Connected")
        r.do(r.a, "drbdadm primary --force r0")
        r.settle()


@scenario(3, "primary already up and forced before the peer appears: UUID rule leads straight to SyncSource")
def connect_to_forced_primary(r):
    r.create(up=False, disk=r.tiny())
    r.a.sh("drbdadm up r0 && drbdadm primary --force r0")
    with r.wire():
        r.do(r.b, "drbdadm up r0")
        r.settle()


@scenario(4, "skip-initial-sync: `new-current-uuid --clear-bitmap` on two fresh nodes")
def skip_initial_sync(r):
    r.create()
    for n in r.both:
        n.wait_drbd(cs="Connected")
    with r.wire():
        r.do(r.a, "drbdadm new-current-uuid --clear-bitmap r0/0")
        r.settle()


def _bitmap(r, net):
    r.ready(disk="/dev/ubdc", net=net)
    r.do(r.a, "drbdadm disconnect r0")
    for i, (lba, n) in enumerate([(0, 8), (800, 24), (65536, 8), (65552, 8), (524288, 1), (2097144, 8)]):
        r.write(r.a, lba, n)
    with r.wire():
        r.do(r.a, "drbdadm connect r0")
        r.settle()


@scenario(5, "1 GiB device, some scattered dirty blocks: 32 KiB bitmap sent run-length coded")
def bitmap_1g_rle(r):
    _bitmap(r, "")


@scenario(6, "the same, bitmap sent plain (8 packets each way, `use-rle no`)")
def bitmap_1g_plain(r):
    _bitmap(r, "use-rle no;")


@scenario(7, "bitmap that run-length coding would only lengthen (every other block dirty): sent plain although use-rle is on")
def bitmap_incompressible(r):
    r.ready()
    r.do(r.a, "drbdadm disconnect r0")
    r.mark("a (disconnected): one sector in every other 4 KiB block")
    r.a.sh("o=0; while [ $o -lt 768 ]; do dd if=/dev/zero of=/dev/drbd0 bs=512 count=1 seek=$o oflag=direct "
           "2>/dev/null; o=$((o + 16)); done")
    with r.wire():
        r.do(r.a, "drbdadm connect r0")
        r.settle()


# ---- writes ---------------------------------------------------------------------

def _writes(r, proto, net="", disk="/dev/ubda"):
    r.ready(protocol=proto, net=net, disk=disk)
    with r.wire():
        r.write(r.a, 3, 1)
        r.write(r.a, 8, 8)
        r.write(r.a, 16, 8)
        r.write(r.a, 7, 3)       # across a 4 KiB boundary, unaligned
        r.write(r.a, 25, 14)     # 7 KiB, unaligned on both ends
        r.write(r.a, 64, 64)     # 32 KiB
        r.write(r.a, 128, 130)   # 65 KiB: more than fits a 16-bit length
        r.write(r.a, 400, 258)   # 129 KiB: split by the maximum bio size
        r.mark("a: eight 4 KiB writes in a row, queue depth 1")
        for i in range(8):
            r.write(r.a, 688 + 8 * i, 8)
        r.quiet(1.0)


@scenario(10, "protocol A: writes of 512 B, 4 KiB, unaligned, 32, 65 and 129 KiB")
def writes_protocol_a(r):
    _writes(r, "A")


@scenario(11, "protocol B: the same writes")
def writes_protocol_b(r):
    _writes(r, "B")


@scenario(12, "protocol C: the same writes")
def writes_protocol_c(r):
    _writes(r, "C")


@scenario(13, "concurrent 4 KiB writes (16 at a time), protocol C: epochs, barriers, acks out of order")
def parallel_writes(r):
    r.ready()
    with r.wire():
        r.do(r.a, "for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do "
                  "dd if=/dev/zero of=/dev/drbd0 bs=4k count=2 seek=$((i * 4)) oflag=direct 2>/dev/null & done; wait")


@scenario(14, "buffered write, then fsync: merged bios, flush, barrier and barrier ack; then O_DSYNC (FUA) writes")
def flush_fua_barrier(r):
    r.ready()
    with r.wire():
        r.write(r.a, 0, 128, opts="oflag=nonblock conv=notrunc,fsync")
        r.quiet()
        r.write(r.a, 256, 8, opts="oflag=direct,dsync")
        r.write(r.a, 264, 8, opts="oflag=direct,dsync")
        r.quiet()
        r.write(r.a, 300, 8)
        r.do(r.a, "blockdev --flushbufs /dev/drbd0; sync /dev/drbd0", check=False)


@scenario(15, "write ordering by draining: `disk-flushes no; md-flushes no` on both")
def barrier_drain(r):
    r.ready(disk_opts=FAST + "disk-barrier no; disk-flushes no; md-flushes no;")
    with r.wire():
        for i in range(3):
            r.write(r.a, 16 * i, 8)
        r.write(r.a, 256, 8, opts="oflag=direct,dsync")
        r.write(r.a, 264, 8)


@scenario(16, "max-epoch-size 4: several epochs during a burst of parallel writes")
def small_epochs(r):
    r.ready(net="max-epoch-size 4;")
    with r.wire():
        r.do(r.a, "for i in 0 1 2 3 4 5 6 7; do "
                  "dd if=/dev/zero of=/dev/drbd0 bs=4k count=4 seek=$((i * 8)) oflag=direct 2>/dev/null & done; wait")


@scenario(17, "discard: blkdiscard of an aligned range, an unaligned one, and the whole device")
def discard(r):
    r.ready()
    r.write(r.a, 0, 200)
    with r.wire():
        r.do(r.a, "blkdiscard -o 4096 -l 65536 /dev/drbd0")
        r.do(r.a, "blkdiscard -o 70144 -l 10752 /dev/drbd0", check=False)
        r.do(r.a, "blkdiscard /dev/drbd0")


@scenario(18, "write zeroes: blkdiscard -z and fallocate's zero range and punch hole on the device")
def write_zeroes(r):
    r.ready()
    r.write(r.a, 0, 200)
    with r.wire():
        r.do(r.a, "blkdiscard -z -o 4096 -l 65536 /dev/drbd0")
        r.do(r.a, "fallocate -z -o 81920 -l 16384 /dev/drbd0", check=False)
        r.do(r.a, "fallocate -p -o 131072 -l 16384 /dev/drbd0", check=False)


@scenario(19, "data-integrity-alg crc32c: writes and the digest before the data")
def integrity_crc32c(r):
    r.ready(net="data-integrity-alg crc32c;")
    with r.wire():
        r.write(r.a, 3, 1)
        r.write(r.a, 8, 8)
        r.write(r.a, 128, 200)


@scenario(20, "data-integrity-alg sha1, connect included, then writes and reads through a diskless primary")
def integrity_sha1(r):
    r.ready(net="data-integrity-alg sha1;")
    with r.wire():
        r.write(r.a, 8, 8)
        r.do(r.a, "drbdadm disconnect r0")
        r.do(r.a, "drbdadm connect r0")
        r.settle()
        r.do(r.a, "drbdadm detach r0")
        r.read(r.a, 8, 8)
        r.write(r.a, 16, 8)


# ---- resync -----------------------------------------------------------------------

@scenario(25, "short disconnect of the secondary, writes meanwhile, reconnect: bitmap resync")
def resync_short(r):
    r.ready()
    r.do(r.b, "drbdadm disconnect r0")
    for lba, n in ((0, 8), (40, 16), (333, 3), (700, 8)):
        r.write(r.a, lba, n)
    with r.wire():
        r.do(r.b, "drbdadm connect r0")
        r.settle()


@scenario(26, "checksum-based resync (csums-alg crc32c): equal blocks are acknowledged, different ones sent")
def resync_csums(r):
    _csums(r, "crc32c")


@scenario(27, "checksum-based resync with sha1")
def resync_csums_sha1(r):
    _csums(r, "sha1")


def _csums(r, alg):
    r.ready(net=f"csums-alg {alg};")
    r.write(r.a, 0, 32)
    r.write(r.a, 160, 8)
    r.do(r.b, "drbdadm disconnect r0")
    r.gen = 0                       # the same contents again: dirty bits, equal data
    r.write(r.a, 0, 32)
    r.write(r.a, 160, 8)
    r.write(r.a, 64, 8)             # and blocks that differ
    r.write(r.a, 400, 24)
    with r.wire():
        r.do(r.b, "drbdadm connect r0")
        r.settle()


@scenario(28, "resync that meets discarded source blocks (rs-discard-granularity): thin resync requests, deallocated answers")
def resync_thin(r):
    r.ready(disk_opts=FAST + "rs-discard-granularity 65536; discard-zeroes-if-aligned yes;")
    r.write(r.a, 0, 256)
    r.do(r.b, "drbdadm disconnect r0")
    r.do(r.a, "blkdiscard -o 0 -l 131072 /dev/drbd0")
    r.write(r.a, 40, 8)
    r.write(r.a, 400, 8)
    with r.wire():
        r.do(r.b, "drbdadm connect r0")
        r.settle()


@scenario(29, "application writes during a slow resync (resync-rate 250K): both kinds of writes interleaved")
def resync_with_writes(r):
    r.ready(disk_opts="c-plan-ahead 0; resync-rate 200K;")
    r.do(r.b, "drbdadm disconnect r0")
    r.write(r.a, 0, 240)
    with r.wire():
        r.do(r.b, "drbdadm connect r0")
        r.a.wait_drbd(cs="SyncSource")
        for i in range(4):
            r.write(r.a, 8 + 56 * i, 8)
        r.settle()


@scenario(30, "pause-sync and resume-sync on either side during a slow resync")
def resync_pause(r):
    r.ready(disk_opts="c-plan-ahead 0; resync-rate 250K;")
    r.do(r.b, "drbdadm disconnect r0")
    r.write(r.a, 0, 160)
    with r.wire():
        r.do(r.b, "drbdadm connect r0")
        r.a.wait_drbd(cs="SyncSource")
        r.do(r.a, "drbdadm pause-sync r0")
        r.quiet(0.5)
        r.do(r.a, "drbdadm resume-sync r0")
        r.do(r.b, "drbdadm pause-sync r0")
        r.quiet(0.5)
        r.do(r.b, "drbdadm resume-sync r0")
        r.settle()


@scenario(31, "invalidate on the secondary: full resync on request")
def invalidate(r):
    r.ready(disk=r.tiny())
    with r.wire():
        r.do(r.b, "drbdadm invalidate r0")
        r.settle()


@scenario(32, "invalidate-remote on the primary")
def invalidate_remote(r):
    r.ready(disk=r.tiny())
    with r.wire():
        r.do(r.a, "drbdadm invalidate-remote r0")
        r.settle()


@scenario(33, "dynamic resync controller (c-plan-ahead, c-fill-target) with application reads on the source")
def resync_controller(r):
    r.ready(disk_opts="c-plan-ahead 20; c-fill-target 50k; c-max-rate 1M; c-min-rate 100k;")
    r.do(r.b, "drbdadm disconnect r0")
    r.write(r.a, 0, 240)
    with r.wire():
        r.do(r.b, "drbdadm connect r0")
        r.settle()


@scenario(34, "online verify (verify-alg crc32c) with two blocks corrupted behind DRBD's back, then disconnect/connect resync")
def verify_crc32c(r):
    _verify(r, "crc32c")


@scenario(35, "online verify with sha1")
def verify_sha1(r):
    _verify(r, "sha1")


def _verify(r, alg):
    r.ready(net=f"verify-alg {alg};")
    r.write(r.a, 0, 200)
    r.do(r.b, "drbdadm down r0")
    with open(r.b.disk(0), "r+b") as f:
        for block in (2, 17, 18):
            f.seek(block * 4096 + 100)
            f.write(b"corrupt")
    r.do(r.b, "drbdadm up r0")
    r.settle()
    with r.wire():
        r.do(r.a, "drbdadm verify r0")
        r.settle(oos="12")
        r.do(r.a, "drbdadm disconnect r0")
        r.do(r.a, "drbdadm connect r0")
        r.settle(oos="0")


@scenario(36, "online verify started at a sector and stopped at another (`drbdsetup verify --start --stop`)")
def verify_range(r):
    r.ready(net="verify-alg crc32c;")
    with r.wire():
        r.do(r.a, "drbdsetup verify 0 --start=128s --stop=400s")
        r.settle()


# ---- connection management -----------------------------------------------------------

@scenario(40, "cram-hmac-alg sha1 with equal secrets")
def auth_sha1(r):
    _auth(r, "sha1", "secret-one", "secret-one")


@scenario(41, "cram-hmac-alg sha256 with equal secrets")
def auth_sha256(r):
    _auth(r, "sha256", "secret-one", "secret-one")


@scenario(42, "cram-hmac-alg sha1, secrets differ: authentication fails, both go StandAlone")
def auth_wrong_secret(r):
    _auth(r, "sha1", "secret-one", "secret-two")


@scenario(43, "one node asks for authentication, the other has none configured")
def auth_one_sided(r):
    _auth(r, "sha1", "secret-one", None)


def _auth(r, alg, secret_a, secret_b):
    def net(s):
        return f'cram-hmac-alg {alg}; shared-secret "{s}";' if s else ""
    r.create(up=False, net=net(secret_a))
    r.b.put_res("r0", drbd_res("r0", r.both, meta="/dev/ubdb", disk_opts=FAST, net=net(secret_b)))
    with r.wire(tail=2):
        for n in r.both:
            r.do(n, "drbdadm up r0")
        if secret_a == secret_b:
            for n in r.both:
                n.wait_drbd(cs="Connected")
        else:
            time.sleep(4)


@scenario(44, "disconnect by the secondary, reconnect, disconnect by the primary, reconnect")
def disconnect(r):
    r.ready()
    with r.wire():
        for n in (r.b, r.a):
            r.do(n, "drbdadm disconnect r0")
            r.quiet()
            r.do(n, "drbdadm connect r0")
            r.settle()


@scenario(45, "role changes: a demotes, b promotes, b demotes, a promotes; refused promotion of the second")
def roles(r):
    r.ready()
    with r.wire():
        r.do(r.b, "drbdadm primary r0", check=False)   # refused: a is primary
        r.do(r.a, "drbdadm secondary r0")
        r.do(r.b, "drbdadm primary r0")
        r.write(r.b, 8, 8)
        r.do(r.b, "drbdadm secondary r0")
        r.do(r.a, "drbdadm primary r0")


@scenario(46, "detach of the primary's disk: reads and writes through the peer, then attach and resync")
def diskless_primary(r):
    r.ready(disk=r.tiny())
    r.write(r.a, 0, 64)
    with r.wire():
        r.do(r.a, "drbdadm detach r0")
        r.read(r.a, 8, 8)
        r.read(r.a, 3, 1)
        r.read(r.a, 0, 160)
        r.write(r.a, 16, 8)
        r.write(r.a, 100, 40)
        r.do(r.a, "blkdiscard -o 65536 -l 32768 /dev/drbd0", check=False)
        r.do(r.a, "drbdadm attach r0")
        r.settle()


@scenario(47, "detach and attach of the secondary while the primary writes")
def diskless_secondary(r):
    r.ready()
    with r.wire():
        r.do(r.b, "drbdadm detach r0")
        r.write(r.a, 8, 8)
        r.do(r.b, "drbdadm attach r0")
        r.settle()


@scenario(48, "node without any disk joins as a client (connect while diskless), is promoted, reads and writes")
def diskless_client(r):
    r.ready(primary=False)
    r.do(r.a, "drbdadm down r0")
    with r.wire():
        r.do(r.a, "drbdsetup new-resource r0 && drbdsetup new-minor r0 0 0 && "
                  f"drbdsetup connect r0 ipv4:{r.a.ip}:7788 ipv4:{r.b.ip}:7788 --protocol=C")
        r.a.wait_drbd(cs="Connected")
        r.do(r.a, "drbdadm primary r0")
        r.write(r.a, 8, 8)
        r.read(r.a, 8, 8)
        r.do(r.a, "drbdadm secondary r0")


@scenario(49, "read-balancing prefer-remote: reads of a node with a good disk are served by the peer")
def read_remote(r):
    r.ready(disk_opts=FAST + "read-balancing prefer-remote;")
    r.write(r.a, 0, 64)
    with r.wire():
        r.read(r.a, 8, 8)
        r.read(r.a, 0, 64)


@scenario(50, "idle connection with ping-int 1: pings and ping acks both ways")
def pings(r):
    r.ready(net="ping-int 1;")
    with r.wire():
        time.sleep(4)


@scenario(51, "options changed on a live connection (adjust): protocol C to A, csums, verify, integrity, resync rate")
def net_options(r):
    r.ready()
    with r.wire():
        r.configure(protocol="A", net="verify-alg sha1; csums-alg sha1;", disk_opts="resync-rate 50M; c-plan-ahead 7;")
        for n in r.both:
            r.do(n, "drbdadm adjust r0")
        r.write(r.a, 8, 8)
        r.configure(protocol="A", net="verify-alg sha1; csums-alg sha1; data-integrity-alg crc32c;",
                    disk_opts="resync-rate 50M; c-plan-ahead 7;")
        for n in r.both:
            r.do(n, "drbdadm adjust r0")
        r.write(r.a, 8, 8)


@scenario(52, "the primary's link is cut for a while (keep-alive timeout), it writes, the link comes back")
def link_cut(r):
    r.ready(net="ping-int 1; timeout 20; connect-int 2;")
    with r.wire():
        r.mark("link of a cut")
        r.a.cut()
        r.write(r.a, 8, 8)
        r.a.wait_drbd(cs=["WFConnection", "Unconnected"], timeout=40)
        r.b.wait_drbd(cs=["WFConnection", "Unconnected"], timeout=40)
        r.mark("link of a restored")
        r.a.heal()
        r.settle()


@scenario(53, "crash of the primary (power failure) during writes, reboot, reconnect: activity-log based resync")
def primary_crash(r):
    r.ready(disk=r.tiny())
    r.a.exec("(while :; do dd if=/dev/zero of=/dev/drbd0 bs=4k count=20 oflag=direct; done) >/dev/null 2>&1 & sleep 1")
    r.a.crash()
    r.b.wait_drbd(cs="WFConnection", timeout=40)
    with r.wire():
        r.a.start()
        r.tiny()
        r.do(r.a, "drbdadm up r0")
        r.settle()


@scenario(54, "the surviving secondary was promoted and wrote before the crashed primary came back")
def failover(r):
    r.ready(disk=r.tiny())
    r.write(r.a, 8, 8)
    r.a.crash()
    r.b.wait_drbd(cs="WFConnection", timeout=40)
    r.do(r.b, "drbdadm primary r0")
    r.write(r.b, 64, 8)
    with r.wire():
        r.a.start()
        r.tiny()
        r.do(r.a, "drbdadm up r0")
        r.settle()


def _split(r, net=""):
    r.ready(net=net)
    r.do(r.b, "drbdadm disconnect r0")
    r.write(r.a, 8, 8)
    r.do(r.b, "drbdadm primary --force r0", check=False)
    r.write(r.b, 64, 8)
    r.do(r.b, "drbdadm secondary r0")


@scenario(55, "split brain detected, connection dropped; then connect --discard-my-data on b")
def split_brain(r):
    _split(r)
    with r.wire():
        r.do(r.b, "drbdadm connect r0", check=False)
        time.sleep(3)
        r.do(r.b, "drbdadm disconnect r0; drbdadm connect --discard-my-data r0", check=False)
        r.do(r.a, "drbdadm connect r0", check=False)
        r.settle()


@scenario(56, "split brain solved by policy: after-sb-1pri discard-secondary")
def split_brain_auto(r):
    _split(r, net="after-sb-0pri discard-zero-changes; after-sb-1pri discard-secondary;")
    with r.wire():
        r.do(r.b, "drbdadm connect r0", check=False)
        r.settle()


@scenario(57, "unrelated data: two independently forced nodes meet")
def unrelated_data(r):
    r.create(up=False)
    for n in r.both:
        n.sh("drbdadm up r0 && drbdadm disconnect r0; drbdadm primary --force r0 && drbdadm secondary r0")
    with r.wire(tail=2):
        for n in r.both:
            r.do(n, "drbdadm connect r0", check=False)
        time.sleep(2)


@scenario(58, "device sizes: both backing disks grown, `drbdadm resize` (sizes packets, resync of the new part), then --assume-clean")
def resize(r):
    for n in r.both:
        n.dm_linear("grow", "/dev/ubda", 256)
    r.ready(disk="/dev/mapper/grow")
    for n in r.both:
        n.dm_linear("grow", "/dev/ubda", 512)
    with r.wire():
        r.do(r.a, "drbdadm resize r0")
        r.settle()
        for n in r.both:
            n.dm_linear("grow", "/dev/ubda", 768)
        r.do(r.a, "drbdadm -- --assume-clean resize r0", check=False)
        r.settle()


@scenario(59, "different disk sizes: the smaller one wins at connect")
def size_mismatch(r):
    r.a.dm_linear("grow", "/dev/ubda", 512)
    r.b.dm_linear("grow", "/dev/ubda", 300)
    r.create(up=False, disk="/dev/mapper/grow")
    with r.wire():
        for n in r.both:
            r.do(n, "drbdadm up r0")
        for n in r.both:
            n.wait_drbd(cs="Connected")


@scenario(60, "two volumes in one resource: volume numbers in the headers, writes to both, one resync each")
def two_volumes(r):
    def res():
        on = "".join(
            f"on {n.name} {{ address ipv4 {n.ip}:7788; volume 0 {{ device /dev/drbd0 minor 0; disk /dev/ubda; meta-disk /dev/ubdb; }} "
            f"volume 1 {{ device /dev/drbd1 minor 1; disk /dev/mapper/vol1; meta-disk internal; }} }}\n" for n in r.both)
        return f"resource r0 {{ net {{ protocol C; }} disk {{ {FAST} }}\n{on}}}\n"
    for n in r.both:
        n.dm_linear("vol1", "/dev/ubdc", 8192)
        n.put_res("r0", res())
        n.sh("drbdadm create-md --force r0")
    r.res = res()
    with r.wire():
        for n in r.both:
            r.do(n, "drbdadm up r0")
        for n in r.both:
            for m in (0, 1):
                n.wait_drbd(minor=m, cs="Connected")
        r.do(r.a, "drbdadm new-current-uuid --clear-bitmap r0/0")
        r.do(r.a, "drbdadm new-current-uuid --clear-bitmap r0/1")
        r.do(r.a, "drbdadm primary r0")
        r.write(r.a, 8, 8)
        r.write(r.a, 16, 8, dev="/dev/drbd1")
        r.do(r.b, "drbdadm disconnect r0")
        r.write(r.a, 24, 8)
        r.write(r.a, 32, 8, dev="/dev/drbd1")
        r.do(r.b, "drbdadm connect r0")
        for m in (0, 1):
            for n in r.both:
                n.wait_drbd(minor=m, cs="Connected", ds="UpToDate/UpToDate")


# ---- dual primary, congestion, errors ---------------------------------------------------

@scenario(65, "dual primary: both promoted, disjoint writes from both sides")
def dual_primary(r):
    r.ready(net="allow-two-primaries yes;")
    with r.wire():
        r.do(r.b, "drbdadm primary r0")
        for i in range(3):
            r.write(r.a, 16 * i, 8)
            r.write(r.b, 16 * i + 256, 8)
        r.do(r.b, "drbdadm secondary r0")


@scenario(66, "dual primary: both write the same blocks at the same time (conflicts: superseded, retry)")
def dual_primary_conflicts(r):
    r.ready(net="allow-two-primaries yes;")
    loop = "for i in 1 2 3 4; do dd if=/dev/zero of=/dev/drbd0 bs=4k count=2 seek={} oflag=direct 2>/dev/null & " \
           "dd if=/dev/zero of=/dev/drbd0 bs=8k count=1 seek={} oflag=direct 2>/dev/null & done; wait"
    with r.wire():
        r.do(r.b, "drbdadm primary r0")
        for n in r.both:
            n.netem("delay 30ms")
        r.mark("a and b: overlapping 4 KiB and 8 KiB writes around sector 64, links delayed by 30 ms")
        threads = [threading.Thread(target=n.exec, args=(loop.format(s, 4),)) for n, s in ((r.a, 8), (r.b, 9))]
        [t.start() for t in threads]
        [t.join() for t in threads]
        r.quiet(1)
    r.notes = [f"{n} kernel: {line}" for n in r.both for line in n.sh("dmesg | grep -iE 'conflict|superseded|BAD|retry|Split' || true").splitlines()]


@scenario(67, "congestion: protocol A over a slow link, on-congestion pull-ahead: Ahead/Behind, out-of-sync packets, resync at the end")
def ahead_behind(r):
    r.ready(protocol="A", net="on-congestion pull-ahead; congestion-fill 40K; congestion-extents 100; sndbuf-size 512K;")
    r.a.netem("rate 800kbit")
    with r.wire():
        for i in range(6):
            r.write(r.a, 48 * i, 48)
        r.a.wait_drbd(cs="Ahead", timeout=10)
        r.write(r.a, 400, 8)
        r.write(r.a, 8, 8)
        r.mark("a: link fast again")
        r.a.netem()
        r.settle()


@scenario(68, "the secondary's disk fails, on-io-error pass_on: negative acks")
def io_error_pass_on(r):
    r.b.dm_linear("frail", "/dev/ubda", 768)
    r.ready(disk={"a": "/dev/ubda", "b": "/dev/mapper/frail"}, disk_opts=FAST + "on-io-error pass_on;")
    r.b.dm_error("frail")
    with r.wire():
        r.write(r.a, 8, 8)
        r.write(r.a, 16, 8)


@scenario(69, "the secondary's disk fails, on-io-error detach")
def io_error_detach(r):
    r.b.dm_linear("frail", "/dev/ubda", 768)
    r.ready(disk={"a": "/dev/ubda", "b": "/dev/mapper/frail"}, disk_opts=FAST + "on-io-error detach;")
    r.b.dm_error("frail")
    with r.wire():
        r.write(r.a, 8, 8)
        r.write(r.a, 16, 8)


@scenario(70, "the primary's disk fails while reading and writing, on-io-error detach: retried at the peer")
def io_error_primary(r):
    r.a.dm_linear("frail", "/dev/ubda", 768)
    r.ready(disk={"b": "/dev/ubda", "a": "/dev/mapper/frail"}, disk_opts=FAST + "on-io-error detach;")
    r.write(r.a, 8, 8)
    r.a.dm_error("frail")
    with r.wire():
        r.read(r.a, 8, 8)
        r.write(r.a, 16, 8)


@scenario(71, "diskless primary reads a block that the peer cannot read: negative data reply")
def io_error_remote_read(r):
    r.b.dm_linear("frail", "/dev/ubda", 768)
    r.ready(disk={"a": "/dev/ubda", "b": "/dev/mapper/frail"}, disk_opts=FAST + "on-io-error pass_on;")
    r.write(r.a, 8, 8)
    with r.wire():
        r.do(r.a, "drbdadm detach r0")
        r.b.dm_error("frail")
        r.read(r.a, 8, 8, check=False)


@scenario(72, "resync source has an unreadable block: negative resync reply")
def io_error_resync_read(r):
    r.a.dm_linear("frail", "/dev/ubda", 768)
    r.ready(disk={"b": "/dev/ubda", "a": "/dev/mapper/frail"}, disk_opts=FAST + "on-io-error pass_on;")
    r.do(r.b, "drbdadm disconnect r0")
    r.write(r.a, 0, 64)
    r.a.dm("frail", "0 24 linear /dev/ubda 0\n24 8 error\n32 736 linear /dev/ubda 32\n")
    with r.wire(tail=2):
        r.do(r.b, "drbdadm connect r0")
        time.sleep(3)


@scenario(73, "suspend-io and resume-io on the primary; outdate refused and accepted on the secondary")
def suspend_outdate(r):
    r.ready()
    with r.wire():
        r.do(r.a, "drbdadm suspend-io r0")
        r.do(r.a, "drbdadm resume-io r0")
        r.do(r.b, "drbdadm outdate r0", check=False)
        r.do(r.b, "drbdadm disconnect r0")
        r.do(r.b, "drbdadm outdate r0", check=False)
        r.do(r.b, "drbdadm connect r0")
        r.settle()


@scenario(74, "`drbdadm down` on the secondary (orderly), the primary stays; up again")
def down_up(r):
    r.ready()
    with r.wire():
        r.do(r.b, "drbdadm down r0")
        r.write(r.a, 8, 8)
        r.do(r.b, "drbdadm up r0")
        r.settle()


# ---- older protocol versions -------------------------------------------------------------
# a proxy between the nodes lowers protocol_max in the handshake; b's tap sees
# the proxy's address (called p) in the place of a.

@contextlib.contextmanager
def _dialect(r, limit, features=0xffffffff):
    tool = os.path.join(os.path.dirname(sys.modules["kernel_peer"].__file__), "dialect_proxy.py")
    p = r.lab.popen([sys.executable, tool, "--max", str(limit), "--features", hex(features), r.a.ip, r.b.ip],
                    stdout=-1)
    p.stdout.readline()
    try:
        yield
    finally:
        p.kill()
        p.wait()
        p.stdout.close()


def _old(number, limit, features=0xffffffff, note=""):
    def f(r):
        disk = r.tiny(192)
        with _dialect(r, limit, features):
            text = {}
            for n, o in ((r.a, r.b), (r.b, r.a)):
                text[n] = drbd_res("r0", [n, (o.name, HOST_IP)], disk=disk, meta="/dev/ubdb", protocol="C",
                                   disk_opts=FAST, net="verify-alg crc32c; csums-alg crc32c;")
                n.put_res("r0", text[n])
                n.sh("drbdadm create-md --force r0")
            r.res = text[r.b]
            with r.wire():
                for n in r.both:
                    r.do(n, "drbdadm up r0")
                for n in r.both:
                    n.wait_drbd(cs="Connected")
                r.do(r.a, "drbdadm new-current-uuid --clear-bitmap r0/0", check=False)
                r.do(r.a, "drbdadm primary r0", check=False)
                if r.a.proc_drbd()[0]["ro"] != "Primary/Secondary":
                    r.do(r.a, "drbdadm primary --force r0")
                r.settle()
                r.write(r.a, 8, 8)
                r.write(r.a, 3, 1)
                r.write(r.a, 32, 136)
                if limit >= 95:  # below, this kernel's sender crashes on a discard (null page)
                    r.do(r.a, "blkdiscard -o 4096 -l 16384 /dev/drbd0", check=False)
                r.do(r.b, "drbdadm disconnect r0")
                r.write(r.a, 40, 16)
                r.gen -= 1
                r.write(r.a, 64, 8)
                r.do(r.b, "drbdadm connect r0")
                r.settle()
                r.do(r.a, "drbdadm verify r0", check=False)
                r.settle()
                r.do(r.a, "drbdadm detach r0")
                r.read(r.a, 40, 16)
                r.write(r.a, 48, 8)
                r.do(r.a, "drbdadm secondary r0")
                r.do(r.a, "drbdadm disconnect r0")
    f.__name__ = f"protocol-{limit}" + ("-nofeatures" if features == 0 else "")
    scenario(number, f"the dialect of protocol version {limit}{note}: connect, writes"
                     + (", discard" if limit >= 95 else "")
                     + ", csums resync, verify, diskless reads and writes, roles, disconnect")(f)


_old(80, 101, 0, " with all feature flags cleared")
for _i, _v in enumerate((100, 99, 96, 95, 94, 93, 91, 90, 89, 88, 87, 86)):
    _old(81 + _i, _v)


def files(where):
    return sorted(glob.glob(os.path.join(where, "[0-9]*.pcapng*")))


def check(where):
    """Compare our decoding with tshark's, packet by packet, as far as both
    name commands: the sequences per file must be equal."""
    bad = 0
    for path in files(where):
        data = lzma.open(path).read() if path.endswith(".xz") else open(path, "rb").read()
        out = subprocess.run(["tshark", "--enable-heuristic", "drbd_tcp", "-o", "tcp.reassemble_out_of_order:TRUE", "-r", "-", "-Y", "drbd", "-T", "fields",
                              "-e", "drbd.command"], input=data, capture_output=True).stdout.decode()
        theirs = collections.Counter(int(x, 0) for line in out.split() for x in line.split(","))
        ours = collections.Counter()
        for line in decode(read_pcap(path)):
            m = re.match(r" *[0-9.]+ \S+ \S+ h\d+ vol=-?\d+ (\S+)", line)
            if m:
                ours[m[1]] += 1
        theirs = collections.Counter({COMMANDS.get(k, hex(k)): v for k, v in theirs.items()})
        diff = {k: (ours[k], theirs[k]) for k in set(ours) | set(theirs) if ours[k] != theirs[k]}
        if diff:
            bad += 1
            print(f"{os.path.basename(path)}: (ours, tshark's) {diff}")
    print(f"{len(files(where))} files checked, {bad} differ")
    return 1 if bad else 0


def index(where):
    """Write INDEX.md: what is in which file."""
    rows, seen = [], collections.defaultdict(list)
    for path in files(where):
        name = os.path.basename(path).split(".")[0]
        count, fmts = collections.Counter(), set()
        for line in decode(read_pcap(path)):
            m = re.match(r" *[0-9.]+ \S+ \S+ (h\d+) vol=-?\d+ (\S+)", line)
            if m:
                count[m[2]] += 1
                fmts.add(m[1])
        for c in count:
            seen[c].append(name[:2])
        title = open(os.path.join(where, name + ".txt")).readline()[2:].strip()
        rows.append(f"| `{os.path.basename(path)}` | {title} | {sum(count.values())} | {' '.join(sorted(fmts))} |")
    with open(os.path.join(where, "INDEX.md"), "w") as f:
        f.write("# The recordings\n\nMade by `make.py --index`. Columns: file, scenario, DRBD packets, header formats.\n\n"
                "| file | scenario | packets | headers |\n|---|---|---|---|\n" + "\n".join(rows)
                + "\n\n## Which packet is where\n\n| packet | files |\n|---|---|\n"
                + "\n".join(f"| {COMMANDS[k]} (0x{k:02x}) | {' '.join(seen[COMMANDS[k]]) or '*never seen*'} |"
                             for k in sorted(COMMANDS)) + "\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default=HERE)
    ap.add_argument("--list", action="store_true")
    ap.add_argument("scenario", nargs="*", help="name, number or part of a name")
    ap.add_argument("--check", action="store_true", help="compare with tshark's decoding")
    ap.add_argument("--index", action="store_true", help="write INDEX.md")
    args = ap.parse_args()
    if args.check:
        return check(args.out)
    if args.index:
        return index(args.out)
    todo = [n for n in SCENARIOS if not args.scenario
            or any(int(s) == int(n[:2]) if s.isdigit() else s in n for s in args.scenario)]
    if args.list:
        for n in todo:
            print(f"{n}: {SCENARIOS[n][0]}")
        return 0
    failed = []
    with Lab("vectors", fresh=True) as lab:
        r = Rec(lab)
        version = r.a.sh("uname -r").strip() + ", " + r.a.sh("head -1 /proc/drbd").strip()
        for name in todo:
            title, f = SCENARIOS[name]
            r.reset()
            try:
                f(r)
            except Exception as e:  # noqa: BLE001 - report and go on with the next one
                failed.append(name)
                print(f"FAILED {name}: {e}", flush=True)
                continue
            packets = read_pcap(r.raw)
            out = os.path.join(args.out, name)
            path = out + ".pcapng"
            write_pcapng(path, packets, f"{title}\nUser-Mode-Linux {version}\n{r.res}", r.marks)
            if os.path.getsize(path) > 65536:
                with open(path, "rb") as f, lzma.open(path + ".xz", "wb", preset=9) as x:
                    x.write(f.read())
                os.unlink(path)
                path += ".xz"
            names = {r.a.ip: "a", r.b.ip: "b", HOST_IP: "p"}
            with open(out + ".txt", "w") as t:
                t.write(f"# {title}\n")
                for line in [*decode(packets, names, r.marks), *("# " + x for x in r.notes)]:
                    t.write(line + "\n")
            print(f"{name}: {len(packets)} frames, {os.path.getsize(path)} bytes", flush=True)
    if failed:
        print("failed:", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
