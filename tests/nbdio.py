#!/usr/bin/python3
"""I/O against an NBD export with python3-libnbd: plain requests with a time limit, and a load that remembers.

    nbdio.py load   URI JOURNAL [--seconds S] [--seed N] [--depth N] [--max-kib N] [--overlap] [--flush]
    nbdio.py verify URI JOURNAL

`load` writes self-describing sectors and records, before each request and after each acknowledgement, one line in the
journal.  It ends with 0 when its time is over and with 3 when the server went away (what a kill -9 does); the journal
is complete in both cases.  `verify` reads every sector that was ever written and accepts only
 * the content of a write that no later acknowledged write replaced: the last acknowledged one, or one that was in
   flight at the same time as that, or one that was never acknowledged.
So a lost acknowledged write, a torn sector and a misplaced sector are all found.  Several journals may be given in the
order in which they were made (before and after a failover).
"""

import argparse
import os
import random
import struct
import sys
import time
import zlib

import nbd

SECTOR = 512


class Gone(Exception):
    """The server went away."""


class Stuck(AssertionError):
    """A request was not answered in time."""


class Export:
    """An NBD connection whose requests have a time limit."""

    def __init__(self, uri, timeout=30.0, connect=True):
        self.uri, self.timeout = uri, timeout
        self.h = nbd.NBD()
        self.h.set_uri_allow_local_file(True)
        self.h.add_meta_context("base:allocation")
        if connect:
            try:
                self.h.connect_uri(uri)
            except nbd.Error as e:
                raise Gone(f"{uri}: {e.string}") from None

    @property
    def size(self):
        return self.h.get_size()

    def close(self):
        try:
            self.h.shutdown()
        except nbd.Error:
            pass
        del self.h

    def _wait(self, cookie, what):
        deadline = time.monotonic() + self.timeout
        while not self.h.aio_command_completed(cookie):
            if time.monotonic() > deadline:
                raise Stuck(f"{what}: no answer within {self.timeout:g} s")
            self.h.poll(100)

    def write(self, offset, data, fua=False):
        buf = nbd.Buffer.from_bytearray(bytearray(data))
        self._wait(self.h.aio_pwrite(buf, offset, flags=nbd.CMD_FLAG_FUA if fua else 0), "write")

    def read(self, offset, length):
        out = b""
        while length:
            n = min(length, 4 << 20)
            buf = nbd.Buffer(n)
            self._wait(self.h.aio_pread(buf, offset), "read")
            out += bytes(buf.to_bytearray())
            offset, length = offset + n, length - n
        return out

    def flush(self):
        self._wait(self.h.aio_flush(), "flush")

    def trim(self, offset, length):
        self._wait(self.h.aio_trim(length, offset), "trim")

    def zero(self, offset, length):
        self._wait(self.h.aio_zero(length, offset), "zero")


def sector_content(seed, write, sector):
    head = struct.pack("<QQQ", seed, write, sector)
    return (head + struct.pack("<Q", zlib.crc32(head))) * (SECTOR // 32)


def payload(seed, write, first, count):
    return b"".join(sector_content(seed, write, s) for s in range(first, first + count))


def identify(data, sector):
    """(seed, write) that this sector's content came from; (0, 0) for zeroes; None for anything else."""
    if data == bytes(SECTOR):
        return 0, 0
    seed, write, at, crc = struct.unpack_from("<QQQQ", data)
    if data != data[:32] * (SECTOR // 32) or crc != zlib.crc32(data[:24]) or at != sector:
        return None
    return seed, write


def load(uri, journal, seconds=5.0, seed=1, depth=8, max_kib=64, overlap=False, flush=False, first=0, sectors=None,
         pace=0.0):
    """Writes until the time is over (returns 0) or the server is gone (returns 3)."""
    rng = random.Random(seed)
    log = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        e = Export(uri)
    except Gone as gone:
        print(gone, file=sys.stderr)
        return 3
    sectors = sectors or e.size // SECTOR - first
    zeroes = e.h.can_zero()
    os.write(log, f"s {seed} {first} {sectors}\n".encode())
    in_flight = {}  # cookie -> (write number, first, end, buffer)
    number, end_at = 0, time.monotonic() + seconds
    rc = 0

    def reap():
        for cookie in [c for c in in_flight if e.h.aio_command_completed(c)]:
            n = in_flight.pop(cookie)[0]
            if n:
                os.write(log, f"a {n}\n".encode())

    try:
        last_answer = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= end_at and not in_flight:
                break
            before = len(in_flight)
            while now < end_at and len(in_flight) < depth:
                # mostly small, sometimes large; any sector offset
                count = min(rng.choice((1, 1, 2, 3, 8, 8, 8, 16, rng.randint(1, max_kib * 2))), sectors)
                at = first + rng.randrange(sectors - count + 1)
                if not overlap and any(at < x[2] and x[1] < at + count for x in in_flight.values() if x[0]):
                    break
                number += 1
                kind = "z" if zeroes and rng.random() < 0.03 else "w"
                fua = nbd.CMD_FLAG_FUA if rng.random() < 0.05 else 0
                os.write(log, f"{kind} {number} {at} {count}\n".encode())
                if kind == "z":
                    cookie = e.h.aio_zero(count * SECTOR, at * SECTOR, flags=fua)
                    buf = None
                else:
                    buf = nbd.Buffer.from_bytearray(bytearray(payload(seed, number, at, count)))
                    cookie = e.h.aio_pwrite(buf, at * SECTOR, flags=fua)
                in_flight[cookie] = (number, at, at + count, buf)
                if flush and number % 32 == 0:
                    in_flight[e.h.aio_flush()] = (0, 0, 0, None)
                if pace:
                    time.sleep(pace)
            e.h.poll(20)
            reap()
            if len(in_flight) != before:
                last_answer = now
            if now - last_answer > 60:
                print("no request was answered for 60 s", file=sys.stderr)
                rc = 4
                break
    except nbd.Error as err:
        # Answers that had arrived before the connection broke were given: they count.
        for cookie in list(in_flight):
            try:
                if e.h.aio_command_completed(cookie) and in_flight[cookie][0]:
                    os.write(log, f"a {in_flight[cookie][0]}\n".encode())
            except nbd.Error:
                pass
        print(f"server went away: {err.string}", file=sys.stderr)
        rc = 3
    os.write(log, b"e\n")
    os.close(log)
    print(f"{number} writes issued")
    return rc


def acceptable(journals):
    """{sector: set of (seed, write)} that may be found; zeroes are (0, 0)."""
    allowed, acked = {}, 0
    for path in journals:
        issued, order, seed = {}, 0, 0
        ack_time = {}
        with open(path) as f:
            lines = f.read().split("\n")
        for line in lines:
            part = line.split()
            order += 1
            if not part or part[0] == "e":
                continue
            if part[0] == "s":
                seed = int(part[1])
            elif part[0] in "wz" and len(part) == 4:
                n, at, count = map(int, part[1:])
                token = (seed, n) if part[0] == "w" else (0, 0)
                issued[n] = (order, at, count, token)
                for s in range(at, at + count):
                    # a token may stand for several writes of zeroes: keep the youngest entry
                    allowed.setdefault(s, {(0, 0): None})[(token, n, seed)] = None
            elif part[0] == "a":
                n = int(part[1])
                acked += 1
                began, at, count, token = issued[n]
                ack_time[(token, n, seed)] = order
                for s in range(at, at + count):
                    cands = allowed[s]
                    for c in list(cands):
                        if c == (token, n, seed):
                            continue
                        # replaced: it had been acknowledged (or belongs to an earlier life) before this one began
                        if c == (0, 0) or c[2] != seed or ack_time.get(c, 1 << 60) < began:
                            del cands[c]
    out = {}
    for s, cands in allowed.items():
        out[s] = {c if c == (0, 0) else c[0] for c in cands}
    return out, acked


def verify(uri, journals, report=sys.stdout):
    """Number of sectors with an unacceptable content."""
    allowed, acked = acceptable(journals)
    e = Export(uri)
    bad = 0
    todo = sorted(allowed)
    i = 0
    while i < len(todo):
        j = i
        while j + 1 < len(todo) and todo[j + 1] - todo[i] < 2048:
            j += 1
        base = todo[i]
        data = e.read(base * SECTOR, (todo[j] - base + 1) * SECTOR)
        for s in todo[i:j + 1]:
            got = identify(data[(s - base) * SECTOR:(s - base + 1) * SECTOR], s)
            if got not in allowed[s]:
                bad += 1
                if bad <= 10:
                    print(f"sector {s}: holds {'garbage' if got is None else 'write %d of load %d' % got[::-1]}, "
                          f"acceptable (load, write): {sorted(allowed[s])}", file=report)
        i = j + 1
    e.close()
    print(f"{acked} acknowledged writes over {len(todo)} sectors: {bad} bad sectors", file=report)
    return bad


def main():
    p = argparse.ArgumentParser(description="NBD load that remembers what was acknowledged")
    sub = p.add_subparsers(dest="verb", required=True)
    q = sub.add_parser("load")
    q.add_argument("uri")
    q.add_argument("journal")
    q.add_argument("--seconds", type=float, default=5)
    q.add_argument("--seed", type=int, default=1)
    q.add_argument("--depth", type=int, default=8)
    q.add_argument("--max-kib", type=int, default=64)
    q.add_argument("--sectors", type=int)
    q.add_argument("--first", type=int, default=0)
    q.add_argument("--pace", type=float, default=0.0)
    q.add_argument("--overlap", action="store_true")
    q.add_argument("--flush", action="store_true")
    q = sub.add_parser("verify")
    q.add_argument("uri")
    q.add_argument("journal", nargs="+")
    a = vars(p.parse_args())
    verb = a.pop("verb")
    if verb == "verify":
        sys.exit(1 if verify(a["uri"], a["journal"]) else 0)
    sys.exit(load(**a))


if __name__ == "__main__":
    main()
