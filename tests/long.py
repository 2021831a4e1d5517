#!/usr/bin/python3
"""Proofs that take long: `make long PART=kills [ROUNDS=n]`, or another part.

    kills      kill -9 of the Primary's process under ext4, fio --verify=crc32c and checked direct writes; 1,000 rounds
    restarts   the same with `urbd restart`
    onlookers  kills, after each of which no process is there for a while, and SIGSTOPs, after which one is there that does not
               work, in turn; meanwhile ls, stat, df and losetup in loops, which read and write nothing, and do not wait; 1,000 rounds
    postgres   both in turn under PostgreSQL and pgbench; 50 rounds
    versions   the Primary's process is followed by one of another version, and that by one of this one: the oldest commit's
               that promises the kernel the same; the one before it is refused, both ways.  And pairs of which one node
               has the last release (releases.py): in 8.4's dialect and 9's, each as Primary, upgraded in use and back;
               60 rounds, of which every fifth is such a pair
    fail-overs PostgreSQL among three nodes: the Primary is killed, another one goes on; 20 rounds
    three      rounds of faults among three nodes (nemesis_mesh.py); 60 rounds
    five       the same among five; 20 rounds
    release    all that `make release` publishes, built in two places: the same bytes; the static program in an empty root;
               once
    targets    a Primary with the kernel's DRBD that is copied to by urbd, at protocol 96 with digests and a short
               ko-count, writes meanwhile: each write is answered; 300 rounds

A part is done in batches.  After each one the file system is checked, both nodes are compared, and what was measured is
written to target/long/PART.json.  Who interrupts it loses the batch that is under way; the next call goes on.  The exit
status is 0 only if no round has ever failed: a batch that does is recorded, with its nodes' logs beside.

With ARGS=--without-resend requests are kept in memory, as before Linux 6.9, where the kernel does not hand them out once more.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback

TESTS = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, TESTS)

import cluster as cluster_module  # noqa: E402
from cluster import FAST_NET, Cluster, MIB, eventually  # noqa: E402
import kernel_peer  # noqa: E402
from failovers import fail_overs  # noqa: E402
from kernel_peer import Lab  # noqa: E402
from nemesis_mesh import Mesh  # noqa: E402
from release import built_twice  # noqa: E402
from releases import RELEASED_FORMS, pairs, released  # noqa: E402
from test_filesystems import FSCK, MKFS, mounted, sh, two_nodes  # noqa: E402
from test_handover import Application, kill, restart  # noqa: E402
from test_kernel_peer import adjust_for_a_proxy, through_a_proxy  # noqa: E402
from test_postgres import Database  # noqa: E402
from versions import built, oldest_alike, refused, versions  # noqa: E402

kernel_peer.END_WITH_US = True
TARGET = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(TESTS, "..", "target"), "long")
# Upper ends of the histogram, in milliseconds.
BINS = [10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000]
FIO = ["fio", "--name=t", "--ioengine=libaio", "--direct=1", "--rw=randrw", "--bsrange=4k-128k", "--iodepth=16", "--size=12M",
       "--time_based", "--runtime=36000", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=256", "--rate=20m",
       "--verify_state_save=0"]


@contextlib.contextmanager
def ext4(node, dev, inside=True):
    """A file system that only this node sees, unless it is to be seen by everybody: one that another test's new node saw
    as well would stay mounted there."""
    sh(*MKFS["ext4"], dev)
    with mounted(node, dev, "ext4", node.run if inside else subprocess.run) as where:
        yield f"/proc/{node.holder}/root{where}" if inside else where
        with open(f"/proc/{node.holder}/mounts" if inside else "/proc/mounts") as f:
            assert next(x.split()[3] for x in f if x.split()[1] == where).split(",")[0] == "rw"
    sh(*FSCK["ext4"], dev)


class Load:
    """Checked direct writes, fio, and what they noticed of each round."""

    def __init__(self, where):
        self.where = where
        blocks = os.path.join(where, "blocks")
        with open(blocks, "wb") as f:
            f.write(bytes(2 * MIB))
            os.fsync(f.fileno())
        self.apps = [Application(blocks, first) for first in (0, 64, 128)]
        begun = os.path.join(where, "begun")
        # What the command prints goes to a file where fio runs.
        self.fio = subprocess.Popen([*FIO, f"--directory={where}", f"--exec_prerun=touch {begun}"], stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True, cwd=where)
        # One that is ended before that reports nothing.
        eventually("fio has begun", lambda: os.path.exists(begun), 60)

    def goes_on(self):
        """The longest operation since the last call, in seconds."""
        for app in self.apps:
            app.goes_on()
        assert self.fio.poll() is None, self.fio.stdout.read()
        worst = max(app.worst for app in self.apps)
        for app in self.apps:
            app.worst = 0.0
        return worst

    def end(self):
        self.fio.send_signal(signal.SIGINT)
        out, _ = self.fio.communicate(timeout=60)
        assert "err= 0" in out and "verify:" not in out, out
        for app in self.apps:
            app.end()
        return sum(app.done for app in self.apps)


def file_system(cluster, way, rounds, begun=None):
    """Some rounds in a new cluster: the pauses in seconds, and the number of checked writes."""
    a, _ = two_nodes(cluster, size=64 * MIB)
    dev = a.device()
    pauses = []
    with ext4(a, dev) as where:
        load = Load(where)
        load.goes_on()
        if begun:
            begun(a)
        for _ in range(rounds):
            way(a)
            pauses.append(load.goes_on())
        written = load.end()
    cluster.wait_synced()
    a.urbd("secondary", "r0")
    cluster.assert_same()
    return pauses, written


class Onlooker(threading.Thread):
    """Runs one command again and again; the first that fails, or that waits for a minute, ends it."""

    def __init__(self, node, *argv):
        super().__init__(daemon=True)
        self.node, self.argv, self.problem, self.ending, self.longest, self.done = node, argv, None, False, 0.0, 0
        self.start()

    def run(self):
        while not self.ending and not self.problem:
            began = time.monotonic()
            p = subprocess.Popen(self.node.prefix() + list(self.argv), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE)
            try:
                _, err = p.communicate(timeout=60)
                self.problem = err if p.returncode else None
            except subprocess.TimeoutExpired:
                self.problem = "no end within 60 s"
            self.longest = max(self.longest, time.monotonic() - began)
            self.done += 1
            time.sleep(0.01)

    def end(self):
        self.ending = True
        self.join(90)
        assert self.problem is None and not self.is_alive(), f"{' '.join(self.argv)}: {self.problem}"


def killed_for_a_while(node):
    node.kill_process()
    time.sleep(random.uniform(0, 0.4))
    node.start()


def stopped_for_a_while(node):
    """The keeper answers from some moment on, or not yet."""
    node.freeze()
    time.sleep(random.uniform(0, 1))
    node.thaw()


def stopped_and_killed(node):
    node.freeze()
    time.sleep(random.uniform(0, 1))
    killed_for_a_while(node)


# Each is drawn once before one is drawn again.
DECK = []


def lost_for_a_while(node):
    if not DECK:
        DECK.extend([killed_for_a_while, stopped_for_a_while, stopped_for_a_while, stopped_and_killed])
        random.shuffle(DECK)
    DECK.pop()(node)


def looked_at(cluster, way, rounds):
    onlookers = []

    def begin(node):
        door = os.path.dirname(node.door())
        onlookers.extend(Onlooker(node, *argv) for argv in (
            ("ls", "-lL", door), ("stat", "-L", node.door()), ("df", door), ("losetup", "-a")))

    done = file_system(cluster, way, rounds, begin)
    for onlooker in onlookers:
        onlooker.end()
    print("; ".join(f"{' '.join(x.argv[:2])}: {x.done} times, the longest {1000 * x.longest:.0f} ms" for x in onlookers))
    return done


def database(cluster, _, rounds):
    """The same with pgbench; every transaction that was committed is there."""
    a, _ = two_nodes(cluster, size=256 * MIB)
    dev = a.device()
    sock = os.path.join(cluster.dir, "pg")
    os.makedirs(sock)
    os.chmod(cluster.dir, 0o755)
    pauses = []
    with ext4(a, dev, inside=False) as where:  # a user without rights has to find it
        db = Database(os.path.join(where, "data"), sock)
        os.chown(sock, db.user.pw_uid, db.user.pw_gid)
        db.init()
        db.start()
        try:
            db.call("pgbench", "-i", "-q", "-s", "2", "postgres")
            probe = os.path.join(where, "probe")
            with open(probe, "wb") as f:
                f.write(bytes(MIB))
                os.fsync(f.fileno())
            app = Application(probe, 0)
            app.goes_on()
            bench = pgbench(db)
            for n in range(rounds):
                app.worst = 0.0
                (kill if n % 2 == 0 else restart)(a)
                app.goes_on()
                pauses.append(app.worst)
                time.sleep(0.3)  # so that some transactions come in between
                assert bench.poll() is None, bench.stdout.read()
            bench.terminate()
            out, _ = bench.communicate(timeout=60)
            assert "aborted" not in out and "error" not in out.lower(), out
            app.end()
            # Each transaction adds the same number to one row of three tables, and notes it in the fourth. One may still be
            # on its way when its client has gone: all are read at one moment.
            sums = [f"(select sum({col}) from pgbench_{table})" for table, col in
                    (("accounts", "abalance"), ("tellers", "tbalance"), ("branches", "bbalance"), ("history", "delta"))]
            sums = db.ask(f"select concat_ws(' ', {', '.join(sums)})").split()
            assert len(sums) == 4, sums
            assert len(set(sums)) == 1, sums
            written = int(db.ask("select count(*) from pgbench_history"))
            assert written > rounds
        finally:
            db.stop()
    cluster.wait_synced()
    a.urbd("secondary", "r0")
    cluster.assert_same()
    return pauses, written


def pgbench(db):
    argv = ["setpriv", f"--reuid={db.user.pw_uid}", f"--regid={db.user.pw_gid}", "--clear-groups",
            os.path.join(db.bin, "pgbench"), "-n", "-c", "4", "-T", "36000", "postgres"]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/",
                            env={"PATH": os.environ["PATH"], "PGHOST": db.sock, "LC_ALL": "C"})


# Writers of a guest: each notes what its slowest write took, in hundredths of a second, and ends within one write of the
# order to.
WRITERS = """
for w in 0 1 2 3 4 5; do
  (worst=0 n=0
   while [ ! -e /kp/stop ]; do
     read before _ < /proc/uptime
     dd if=/kp/data of=/dev/drbd0 bs=4k count=$((1 + n % 4)) seek=$(((n * 97 + w * 911) % 5900)) oflag=direct conv=notrunc \
       2>/dev/null || exit 1
     read after _ < /proc/uptime
     took=$((${after%.*}${after#*.} - ${before%.*}${before#*.}))
     [ $took -gt $worst ] && worst=$took
     n=$((n + 1))
   done
   echo $n $worst) &
done
wait
"""


def target_in_use(_, version, rounds):
    """The kernel is Primary and the target of a resync of all its data, and urbd the source."""
    with Lab(f"t{os.getpid()}", fresh=True) as lab:
        guest = lab.add("k", disks=["24M", "4M", "24M"])
        with open(os.path.join(guest.share, "data"), "wb") as f:
            f.write(os.urandom(16384))
        with through_a_proxy(lab, "--max", version) as c:
            u, k = c.nodes
            adjust_for_a_proxy(c, fast=False, net=FAST_NET + " csums-alg md5; ko-count 2;",
                               disk="c-plan-ahead 0; resync-rate 8M;")
            u.verb("primary", "--force", "r0")
            c.wait_synced()
            u.verb("secondary", "r0")
            k.verb("primary", "r0")
            done = [target_round(c, k, guest) for _ in range(rounds)]
            return [worst for worst, _ in done], sum(written for _, written in done)


def target_round(c, k, guest):
    """The longest write of a round in seconds, and how many there were."""
    stop = os.path.join(guest.share, "stop")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(stop)
    said = []
    writers = threading.Thread(target=lambda: said.append(guest.exec(WRITERS, timeout=90)))
    writers.start()
    try:
        k.verb("invalidate", "r0")
        k.wait(repl="SyncTarget", timeout=20)
        c.wait_synced(timeout=240)  # the kernel slows down to c-min-rate while applications write
        time.sleep(1)
    finally:
        with open(stop, "w"):
            pass
        writers.join(40)
    assert said, f"a write has no answer: {[n.state() for n in c.nodes]}\n{c.nodes[0].log()[-3000:]}\n{k.log()[-3000:]}"
    writes = [line.split() for line in said[0].out.splitlines()]
    assert said[0].rc == 0 and len(writes) == 6, said
    written = sum(int(n) for n, _ in writes)
    assert written > 20, said
    worst = max(int(took) for _, took in writes) / 100
    assert worst < 10, f"a write took {worst} s"
    c.assert_same()
    return worst, written


def versions_of_commits(cluster, _, rounds):
    """With programs of older commits."""
    oldest = oldest_alike()
    for pair in itertools.permutations([cluster_module.URBD, built(oldest + "^")]):
        with Cluster() as another:
            refused(another, *pair)
    of_pairs = rounds // 5
    pauses, written = versions(cluster, built(oldest), rounds - of_pairs)
    longest, more = pairs(released(), RELEASED_FORMS, of_pairs)
    return pauses + longest, written + more


def faults_among(cluster, nodes, _):
    """A round of faults among so many: how long it took, and what was written."""
    began = time.monotonic()
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}", flush=True)
    r = Mesh(cluster, seed, nodes=nodes, rate=3000, writes=3000)
    r.run()
    return [time.monotonic() - began], r.app.written


# What is run, how each round is made, rounds in all, rounds in a batch.
PARTS = {
    "kills": (file_system, kill, 1000, 50),
    "restarts": (file_system, restart, 1000, 50),
    "onlookers": (looked_at, lost_for_a_while, 1000, 50),
    "postgres": (database, None, 50, 10),
    "versions": (versions_of_commits, None, 60, 30),
    "fail-overs": (fail_overs, None, 20, 10),
    "three": (faults_among, 3, 60, 1),
    "five": (faults_among, 5, 20, 1),
    "release": (built_twice, None, 1, 1),
    "targets": (target_in_use, "96", 300, 20),
}


class Book:
    """What was measured so far."""

    def __init__(self, directory, part):
        os.makedirs(directory, exist_ok=True)
        self.path = os.path.join(directory, f"{part}.json")
        self.figures = {"part": part, "rounds": 0, "written": 0, "pauses_ms": [], "failures": []}
        with contextlib.suppress(FileNotFoundError):
            with open(self.path) as f:
                self.figures = json.load(f)

    def save(self):
        with open(self.path + ".new", "w") as f:
            json.dump(self.figures, f)
        os.rename(self.path + ".new", self.path)

    def add(self, pauses, written):
        self.figures["rounds"] += len(pauses)
        self.figures["written"] += written
        self.figures["pauses_ms"] += [round(1000 * x, 1) for x in pauses]
        self.save()

    def failed(self, why):
        self.figures["failures"].append(why)
        self.save()

    def report(self):
        f, pauses = self.figures, sorted(self.figures["pauses_ms"])
        print(f"{f['part']}: {f['rounds']} rounds, {f['written']} checked writes, {len(f['failures'])} failures")
        if not pauses:
            return
        at = {p: pauses[min(len(pauses) - 1, int(len(pauses) * p / 100))] for p in (50, 90, 99)}
        print("pause: " + ", ".join(f"p{p} {ms:.0f} ms" for p, ms in at.items()) + f", longest {pauses[-1]:.0f} ms")
        below = 0
        for end in [*BINS, float("inf")]:
            n = sum(below <= x < end for x in pauses)
            if n:
                print(f"{below:>6} to {end:>5} ms  {n:>5}  {'#' * max(1, 50 * n // len(pauses))}")
            below = end


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--rounds", type=int, help="in all; what was done before counts")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--directory", default=TARGET)
    parser.add_argument("--without-resend", action="store_true", help="as on Linux before 6.9: requests are kept in memory")
    args = parser.parse_args(argv)
    run, way, rounds, batch = PARTS[args.part]
    rounds, batch = args.rounds or rounds, args.batch or batch
    name = args.part + ("-without-resend" if args.without_resend else "")
    book = Book(args.directory, name)
    while book.figures["rounds"] < rounds and not book.figures["failures"]:
        with Cluster() as cluster:
            cluster.variables.update({"URBD_FUSE_RESEND": "no"} if args.without_resend else {})
            try:
                book.add(*run(cluster, way, min(batch, rounds - book.figures["rounds"])))
            except Exception:
                why = traceback.format_exc()
                for n in cluster.nodes:
                    with open(os.path.join(args.directory, f"{name}-{n.name}.log"), "w") as f:
                        f.write(n.log())
                book.failed(why)
                print(why, file=sys.stderr)
        print(f"{book.figures['rounds']} of {rounds}", flush=True)
    book.report()
    return 1 if book.figures["failures"] else 0


if __name__ == "__main__":
    # Who ends it so leaves nothing behind, either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main(sys.argv[1:]))
