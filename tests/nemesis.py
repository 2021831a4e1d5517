#!/usr/bin/python3
"""Faults on two real urbd processes, while an application checks every read: `make nemesis ROUNDS=n SEED=s`.

A round has a cluster of its own: two nodes in network namespaces, each on a disk that can fail. The seed draws the
configuration and the faults: kill -9, SIGSTOP, links that are cut (both ways, or one), slow, disks that fail, are full,
hang, are slow. An operator does meanwhile what a cluster manager would: starts what died, attaches, promotes a node that
has all acknowledged writes. Then the faults end: both nodes must become UpToDate and identical, every request must be
answered, and what both hold must be what the application was promised.

The same seed draws the same faults; what they hit depends on the clock. What its rounds have found is in nemesis.md.

    make nemesis ROUNDS=20 SEED=100                                 # about 20 s each
    URBD_BIN=target/debug/urbd python3 tests/nemesis.py --rounds 5 --fault kill --fault mute

Disks fail by faulty_disk.py, as there is not always a device mapper. CI plays short rounds of processes and links, of disks that
fail or are full while processes are killed, and of disks that hang. One that is ended (SIGTERM) leaves no process, disk or namespace.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel-peer"))

import cluster as C  # noqa: E402
from application import Application  # noqa: E402
from cluster import MIB, Failed, TookTooLong, eventually  # noqa: E402
from faulty_disk import FaultyDisk  # noqa: E402

WRITES = 10_000
FAULTS = 5
SIZE = 20 * MIB
SETTLE = 90.0  # seconds until two nodes without faults are one again

# A constraint as cluster managers keep it: who alone may be promoted. Set before the Primary goes on without its peer.
FENCE = """#!/bin/sh
if [ -e {only} ]; then [ "$(cat {only})" = "$URBD_NODE" ] && exit 4; exit 1; fi
echo "$URBD_NODE" >{only}.$$ && ln {only}.$$ {only} && rm {only}.$$ && exit 4
rm -f {only}.$$; exit 1
"""
UNFENCE = """#!/bin/sh
[ "$(cat {only} 2>/dev/null)" = "$URBD_NODE" ] && rm -f {only}
exit 0
"""


class Round:
    """One cluster, its faults, its operator. `WRITES` acknowledged writes and `FAULTS` faults at least, `first` among
    them whatever is drawn."""

    least = FAULTS

    def __init__(self, cluster, seed, writes=WRITES, rate=1500, faults=None, first=None):
        self.c, self.seed, self.writes = cluster, seed, writes
        self.rng = random.Random(seed)
        self.began = time.monotonic()
        self.history, self.suffered = [], 0
        self.frozen, self.held = set(), {}  # node -> until when it stays down
        self.only = os.path.join(cluster.dir, "only")
        self.wanted, self.first = faults, first
        self.configure()
        exports = [(os.path.join(n.run_dir, "r0-0.nbd"), "r0/0") for n in cluster.nodes]
        self.app = Application(exports, self.c.nodes[0].data_size(), seed, depth=self.rng.choice((1, 8, 32)), rate=rate,
                               hot=self.rng.choice((MIB, 8 * MIB, None)))

    def say(self, text):
        self.history.append(f"{time.monotonic() - self.began:7.2f} {text}")

    def configure(self):
        rng = self.rng
        self.failover = rng.random() < 0.6
        for name in "ab":
            FaultyDisk(self.c.node(name, size=SIZE), write_error=rng.choice(("EIO", "ENOSPC")),
                       share=rng.choice(("100%", "10%")))
        handlers, net = "", "ping-int 1; ping-timeout 5; timeout 10; connect-int 1; ko-count 3;"
        disk = f"on-io-error {rng.choice(('detach', 'detach', 'call-local-io-error'))}; al-extents {rng.choice((67, 1237))};"
        if self.failover:
            net += " fencing resource-and-stonith;"
            for name, text in (("fence", FENCE), ("unfence", UNFENCE)):
                with open(os.path.join(self.c.dir, name), "w") as f:
                    f.write(text.format(only=self.only))
                os.chmod(f.name, 0o755)
            handlers = f'fence-peer "{self.c.dir}/fence"; unfence-peer "{self.c.dir}/unfence";'
        if rng.random() < 0.5:
            disk += f" disk-timeout {rng.choice((10, 20))};"
        if rng.random() < 0.3:
            net += " csums-alg crc32c;"
        if rng.random() < 0.3:
            net += " data-integrity-alg crc32c;"
        disk += rng.choice(("", " c-plan-ahead 0; resync-rate 4M;", " c-plan-ahead 0; resync-rate 40M;"))
        options = f"on-no-data-accessible {rng.choice(('io-error', 'suspend-io'))};"
        self.c.up(net=net, disk=disk, handlers=handlers, options=options, fast=False, timeout=90)
        self.say(f"failover {self.failover}; net {net}; disk {disk}; {options}")
        self.home = self.c.nodes[0]
        # Nodes whose disk has, as far as an operator can know, all acknowledged writes.
        self.complete = set(self.c.nodes)

    # ---- the operator -----------------------------------------------------------------------

    def other(self, n):
        return next(x for x in self.c.nodes if x is not n)

    def alive(self, n):
        p = n.processes.get("r0")
        return p is not None and p.poll() is None

    def ended_by_itself(self, n):
        p = n.processes.get("r0")
        return p is not None and p.poll() is not None

    def look(self, n):
        if not self.alive(n) or n in self.frozen:
            return None
        try:
            return n.state()
        except (Failed, StopIteration):
            return None

    @staticmethod
    def whole(states):
        """All are together, and each has everything."""
        want = ("Connected", "Established", "UpToDate", "UpToDate", False)
        return all(s and (s["conn"], s["repl"], s["disk"], s["peer_disk"], s["suspended"]) == want for s in states.values())

    def operate(self):
        """One look at both nodes, and what follows from it. Returns their states."""
        states = self.look_at_all()
        for n, s in states.items():
            if s and s["disk"] == "Diskless" and not n.disks[0].on:
                self.say(f"attach {n.name}")
                self.try_verb(n, "attach")
            if s and s["conn"] == "StandAlone":
                assert "[split-brain]" not in n.log(), f"{n.name}: split brain, and there never were two Primaries"
                self.say(f"connect {n.name}")
                self.try_verb(n, "connect")
        if self.whole(states) and not any(n.disks[0].on for n in self.c.nodes):
            self.complete = set(self.c.nodes)
        self.promote(states)
        return states

    def look_at_all(self):
        """Starts those that were killed some time ago."""
        for n in self.c.nodes:
            if self.ended_by_itself(n):
                raise AssertionError(f"{n.name}: its process ended with {n.processes['r0'].returncode}\n{n.log()[-3000:]}")
            if not self.alive(n) and time.monotonic() > self.held.get(n, 0) and not n.disks[0].on:
                self.start(n)
        return {n: self.look(n) for n in self.c.nodes}

    def start(self, n):
        self.say(f"start {n.name}")
        try:
            n.start()
        except Failed as e:
            # Requests of the one that was killed may still be on their way to the disk, and keep it open.
            if "is in use" not in str(e):
                raise
            n.processes.pop("r0")
            self.held[n] = time.monotonic() + 0.5

    def try_verb(self, n, verb, what="r0"):
        with contextlib.suppress(TookTooLong):
            r = n.call(verb, what, timeout=10)
            if r.rc:
                self.say(f"{verb} {n.name}: {r.err.strip()[-150:]}")

    def promote(self, states):
        if any(n in self.frozen for n in self.c.nodes) or any(s and s["role"] == "Primary" for s in states.values()):
            return
        if any(self.alive(n) and states[n] is None for n in self.c.nodes):
            return  # nobody knows its role
        candidates = [n for n in self.c.nodes if states[n] and states[n]["disk"] in ("UpToDate", "Consistent")]
        for n in candidates:
            if n not in self.complete or (not self.failover and n is not self.home):
                continue
            if self.failover and os.path.exists(self.only):
                with open(self.only) as f:
                    if f.read().strip() != n.name:
                        continue
            self.say(f"primary {n.name}")
            self.try_verb(n, "primary")
            return

    # ---- faults -----------------------------------------------------------------------------

    def kill(self, n):
        n.disks[0].resume()  # nothing can be killed while its disk hangs
        self.frozen.discard(n)
        if self.alive(n):
            n.kill()
        self.held[n] = time.monotonic() + self.rng.uniform(0, 2)

    def freeze(self, n):
        if self.alive(n):
            n.freeze()
            self.frozen.add(n)

    def thaw(self, n):
        if n in self.frozen:
            self.frozen.discard(n)
            if self.alive(n):
                n.thaw()

    def slow_link(self, n):
        rate = self.rng.choice(("2mbit", "16mbit"))
        n.run(["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "32k", "latency", "50ms"],
              check=True)

    def fast_link(self, n):
        n.run(["tc", "qdisc", "del", "dev", "eth0", "root"], stderr=subprocess.DEVNULL)

    def spoil(self, fault):
        def act(n):
            # One copy stays whole: with both disks failing nobody promises anything.
            if self.complete == set(self.c.nodes) or n not in self.complete:
                self.complete.discard(n)
                fault(n.disks[0])
        return act

    def faults(self):
        """name -> (how it begins, how it ends), each with a node."""
        disk_ends = lambda n: n.disks[0].heal()  # noqa: E731
        return {
            "kill": (self.kill, lambda n: None),
            "freeze": (self.freeze, self.thaw),
            "cut": (lambda n: n.cut(), lambda n: n.heal()),
            "mute": (lambda n: n.lose_packets_to(self.other(n)), lambda n: n.find_packets()),
            "slow link": (self.slow_link, self.fast_link),
            "failing reads": (self.spoil(lambda d: d.fail("reads")), disk_ends),
            "failing writes": (self.spoil(lambda d: d.fail("writes")), disk_ends),
            "hanging disk": (self.spoil(lambda d: d.hang()), disk_ends),
            "slow disk": (lambda n: n.disks[0].slow(20_000_000), disk_ends),
        }

    # ---- a round ----------------------------------------------------------------------------

    def run(self):
        self.app.start()
        try:
            self.suffer()
            self.settle()
            self.check()
        except BaseException as e:
            e.add_note(f"seed {self.seed}:\n" + "\n".join(self.history[-60:])) if hasattr(e, "add_note") else None
            raise
        finally:
            for n in list(self.frozen):
                self.thaw(n)
            self.app.stopping.set()

    def suffer(self):
        faults, going = self.faults(), []
        names = self.wanted or sorted(faults)
        next_fault = 0.0
        while self.app.written < self.writes or self.suffered < self.least:
            assert not self.app.complaints, self.app.complaints[:10]
            now = time.monotonic()
            for fault in [f for f in going if f[0] <= now]:
                going.remove(fault)
                self.suffered += 1
                self.say(f"end of {fault[1]} {fault[2].name}")
                faults[fault[1]][1](fault[2])
            if now >= next_fault and len(going) < 2:
                name, n = self.first or self.rng.choice(names), self.rng.choice(self.c.nodes)
                self.first = None
                if not any(f[1:] == (name, n) for f in going):
                    self.say(f"{name} {n.name}")
                    faults[name][0](n)
                    going.append((now + self.rng.choice((0.3, 1, 2, 4)), name, n))
                next_fault = now + self.rng.uniform(0.2, 1.5)
            self.operate()
            time.sleep(0.02)
        for _, name, n in going:
            faults[name][1](n)

    def settle(self):
        """No faults: both nodes come together by what the operator does, and every request is answered."""
        self.say(f"no more faults; {self.app.written} writes, {self.app.read} reads, {self.app.errors} errors, "
                 f"{self.app.lives} lives")
        self.held.clear()

        def one_again():
            states = self.operate()
            return self.whole(states) and any(s["role"] == "Primary" for s in states.values())

        try:
            eventually("all nodes UpToDate, one Primary", one_again, SETTLE, 0.2)
        except TookTooLong:
            raise TookTooLong(f"not one again within {SETTLE:g} s: {[self.look(n) for n in self.c.nodes]}") from None
        before = self.app.written
        eventually("writes are acknowledged", lambda: self.app.written > before, 30)
        self.app.stop()
        assert not self.app.complaints, self.app.complaints[:10]

    def check(self):
        for n in self.c.nodes:
            assert "panicked" not in n.log(), n.log()[-3000:]
        self.c.assert_same()
        primary = next(n for n in self.c.nodes if n.state()["role"] == "Primary")
        for n in (primary, self.other(primary)):
            if n is not primary:
                eventually("demotion", lambda: primary.call("secondary", "r0").rc == 0, 20)
                n.verb("primary", "r0")
            with n.nbd() as h:
                bad = self.app.verify(h)
            assert not bad, (n.name, bad[:10])


def one_round(seed, kind=Round, **options):
    with C.Cluster() as c:
        r = kind(c, seed, **options)
        try:
            r.run()
        except BaseException:
            print(f"seed {seed} failed:", *r.history, sep="\n  ")
            for n in c.nodes:
                print(f"log of {n.name}:", n.log()[-12000:], sep="\n")
            raise
        return r


def end(*_):
    """SIGTERM, as of `timeout`: the round is left like one that has failed, and its nodes, disks and namespaces go."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def arguments(description):
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--seed", type=int, default=int(time.time()))
    p.add_argument("--writes", type=int, default=WRITES)
    p.add_argument("--rate", type=int, default=1500, help="requests a second")
    p.add_argument("--fault", action="append", help="only this one; may be given more than once")
    return p


def main(a, kind=Round):
    signal.signal(signal.SIGTERM, end)
    bad = []
    for seed in range(a.seed, a.seed + a.rounds):
        start = time.monotonic()
        try:
            r = one_round(seed, kind, writes=a.writes, rate=a.rate, faults=a.fault)
            print(f"seed {seed}: {r.app.written} writes, {r.app.read} reads, {r.app.lives} lives, "
                  f"{r.suffered} faults, {time.monotonic() - start:.0f} s", flush=True)
        except (AssertionError, Failed, TookTooLong) as e:
            bad.append(seed)
            print(f"seed {seed}: {e}", flush=True)
    print(f"{a.rounds - len(bad)} passed, {len(bad)} failed" + (f": {bad}" if bad else ""))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main(arguments("faults on two real processes").parse_args())
