"""An application on a mirrored disk that knows what it may read back.

`Model` is a register per sector: a read returns the last acknowledged write, or one that was under way at the same time
as that or as the read, or one whose acknowledgement never came; within one life of a server it also does not change
unless somebody writes. `Application` writes and reads through whichever node has the export, from a thread of its own,
and checks every read against the model.
"""

import random
import threading
import time

import nbd

from nbdio import SECTOR, identify, payload

LIMIT = 60.0  # seconds in which a request is answered when nothing is broken


class Write:
    __slots__ = ("token", "first", "end", "began", "over", "failed")

    def __init__(self, token, first, end, began):
        self.token, self.first, self.end, self.began = token, first, end, began
        self.over = None  # when it was acknowledged, failed, or lost its server; None: under way
        self.failed = False


class Reading:
    """A read that is under way: what each sector may hold as far as was known when it began, whether nobody wrote it
    then, and which writes have begun since."""
    __slots__ = ("first", "before", "since")

    def __init__(self, first, before):
        self.first, self.before, self.since = first, before, [[] for _ in before]

    def note(self, w):
        for s in range(max(w.first, self.first), min(w.end, self.first + len(self.since))):
            self.since[s - self.first].append(w)


class Model:
    """Which contents of a sector are acceptable. Times are a count of events."""

    def __init__(self, sectors):
        nothing = Write((0, 0), 0, sectors, 0)
        nothing.over = 0
        self.cells = [[nothing] for _ in range(sectors)]
        self.seen = {}  # sector -> (life of the server, token): what it held when nobody wrote
        self.under_way = set()
        self.reading = set()
        self.clock = 0

    def _tick(self):
        self.clock += 1
        return self.clock

    def begin(self, token, first, count):
        w = Write(token, first, first + count, self._tick())
        self.under_way.add(w)
        for s in range(first, w.end):
            self.cells[s].append(w)
            self.seen.pop(s, None)
        for reading in self.reading:
            reading.note(w)
        return w

    def acknowledged(self, w):
        """What ended before it began is replaced."""
        w.over = self._tick()
        self.under_way.discard(w)
        for s in range(w.first, w.end):
            self.cells[s] = [x for x in self.cells[s] if x.over is None or x.over >= w.began]

    def failed(self, w):
        """It may be there or not, and on one disk only."""
        w.over, w.failed = self._tick(), True
        self.under_way.discard(w)

    def server_gone(self):
        """Nothing under way will be done later."""
        for w in list(self.under_way):
            w.over = self._tick()
        self.under_way.clear()
        self.reading.clear()

    def expect(self, first, count):
        """To be called when a read begins; what it returns belongs to check(), or to forget()."""
        reading = Reading(first, [(list(cell), all(w.over is not None and not w.failed for w in cell))
                                  for cell in self.cells[first:first + count]])
        self.reading.add(reading)
        return reading

    def forget(self, reading):
        self.reading.discard(reading)

    def check(self, reading, data, life):
        """Complaints about what a read returned."""
        self.forget(reading)
        bad = []
        for i, ((before, quiet), since) in enumerate(zip(reading.before, reading.since)):
            s = reading.first + i
            got = identify(data[i * SECTOR:(i + 1) * SECTOR], s)
            # Also one that began and was replaced while the read was under way.
            acceptable = {w.token for w in before + since}
            if got not in acceptable:
                bad.append(f"sector {s}: {got}, acceptable are {sorted(acceptable)}")
            elif quiet and not since:
                known = self.seen.get(s)
                if known and known[0] == life and known[1] != got:
                    bad.append(f"sector {s}: {got}, but it was {known[1]} and nobody wrote")
                self.seen[s] = life, got
        return bad


class Application(threading.Thread):
    """Writes `goal` times and more, until stop()."""

    def __init__(self, exports, size, seed, depth=8, rate=1000, hot=None):
        """exports: (socket, export name) of each node; rate: requests a second at most; hot: bytes that most go to."""
        super().__init__(daemon=True)
        self.exports, self.seed, self.depth, self.rate = exports, seed, depth, rate
        self.sectors = size // SECTOR
        self.hot = (hot or size) // SECTOR
        self.rng = random.Random(seed)
        self.model = Model(self.sectors)
        self.complaints = []
        self.written = self.read = self.errors = self.lives = 0
        self.oldest = None  # when the oldest unanswered request was sent
        self.stopping = threading.Event()
        self.number = 0

    def stop(self):
        """No more requests; returns when all are answered."""
        self.stopping.set()
        self.join(LIMIT)
        assert not self.is_alive(), f"requests are unanswered for {LIMIT:g} s"

    # ---- connection -------------------------------------------------------------------------

    def connect(self):
        for path, name in self.exports:
            h = nbd.NBD()
            h.set_export_name(name)
            try:
                h.aio_connect_unix(path)
                end = time.monotonic() + 2
                while h.aio_is_connecting() and time.monotonic() < end:
                    h.poll(100)
                if h.aio_is_ready():
                    return h
            except nbd.Error:
                pass
        return None

    def run(self):
        try:
            while not self.stopping.is_set():
                h = self.connect()
                if h is None:
                    time.sleep(0.1)
                    continue
                self.lives += 1
                self.serve(h)
                self.model.server_gone()
        except Exception as e:  # shown by the test: a thread cannot fail it
            self.complaints.append(f"the application died: {e!r}")

    # ---- requests ---------------------------------------------------------------------------

    def serve(self, h):
        """One life of a server. Ends when the connection does, or when all is answered after stop()."""
        self.flight = {}  # cookie -> (finish, buffer, since)
        start, sent = time.monotonic(), 0
        while True:
            due = (time.monotonic() - start) * self.rate
            while len(self.flight) < self.depth and sent < due and not self.stopping.is_set():
                if not self.submit(h):
                    return
                sent += 1
            if self.stopping.is_set() and not self.flight:
                h.shutdown()
                return
            try:
                h.poll(10)
                done = [c for c in self.flight if self.completed(h, c)]
            except nbd.Error:
                return
            for cookie in done:
                del self.flight[cookie]
            self.oldest = min((f[2] for f in self.flight.values()), default=None)

    def completed(self, h, cookie):
        finish, buffer, _ = self.flight[cookie]
        try:
            if not h.aio_command_completed(cookie):
                return False
        except nbd.Error:
            if h.aio_is_dead() or h.aio_is_closed():
                raise
            self.errors += 1
            finish(None)
            return True
        finish(buffer)
        return True

    def place(self):
        most = self.hot if self.rng.random() < 0.8 else self.sectors
        count = min(self.rng.choice((1, 2, 3, 8, 8, 8, 8, 16, 24, 64)), most)
        return self.rng.randrange(most - count + 1), count

    def submit(self, h):
        kind = self.rng.choices(("write", "read", "zero", "flush"), (70, 24, 3, 3))[0]
        first, count = self.place()
        try:
            cookie, finish, buffer = getattr(self, "submit_" + kind)(h, first, count)
        except nbd.Error:
            return False
        self.flight[cookie] = finish, buffer, time.monotonic()
        return True

    def submit_write(self, h, first, count):
        self.number += 1
        token = self.seed, self.number
        buffer = nbd.Buffer.from_bytearray(bytearray(payload(self.seed, self.number, first, count)))
        w = self.model.begin(token, first, count)
        fua = nbd.CMD_FLAG_FUA if self.rng.random() < 0.05 else 0
        return h.aio_pwrite(buffer, first * SECTOR, flags=fua), self.finish_write(w), buffer

    def submit_zero(self, h, first, count):
        w = self.model.begin((0, 0), first, count)
        return h.aio_zero(count * SECTOR, first * SECTOR), self.finish_write(w), True

    def finish_write(self, w):
        def finish(answer):
            if answer is None:
                self.model.failed(w)
            else:
                self.model.acknowledged(w)
                self.written += 1
        return finish

    def submit_read(self, h, first, count):
        buffer = nbd.Buffer(count * SECTOR)
        expected, life = self.model.expect(first, count), self.lives

        def finish(answer):
            if answer is None:
                return self.model.forget(expected)
            self.read += 1
            self.complaints += self.model.check(expected, bytes(answer.to_bytearray()), life)

        return h.aio_pread(buffer, first * SECTOR), finish, buffer

    def submit_flush(self, h, *_):
        return h.aio_flush(), lambda answer: None, True

    # ---- the end ----------------------------------------------------------------------------

    def verify(self, export):
        """Every sector, after stop(); returns complaints."""
        self.lives += 1
        bad, step = [], 2048
        for first in range(0, self.sectors, step):
            count = min(step, self.sectors - first)
            data = export.read(first * SECTOR, count * SECTOR)
            bad += self.model.check(self.model.expect(first, count), data, self.lives)
        return bad
