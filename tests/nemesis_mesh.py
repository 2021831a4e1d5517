#!/usr/bin/python3
"""The nemesis of nemesis.py among three nodes and more, all connected, in DRBD 9's dialect: `make nemesis NODES=3`.

One of them is Primary. It is followed by another one when an operator moves it, and when it dies: by one that was connected
and UpToDate then, which has all that was acknowledged. The operator also gives all nodes other options (`adjust`, also another
protocol), makes the device larger, has another process take over (`restart`), has all copied anew (`invalidate`), puts a machine
with another disk in a node's place (`replace`), has copies compared (`verify`), and kills a node within what was just begun
(`kill within`), and kills all nodes one after the other (`blackout`). At the end all copies must be the same, and each node must
hold what the application was promised.
"""

import contextlib
import os
import threading
import time
from functools import partial
from itertools import permutations, product

from cluster import MIB, Failed, TookTooLong, eventually
from faulty_disk import FaultyDisk
from nemesis import Round, arguments, main
from test_three_nodes import MESH, text

SIZE = 20 * MIB
LEAST, MOST = 12, 18  # MiB that are used of it, at first and when it has grown
LOST = "conn( Connected ->"
WHOLE = ("Connected", "Established", "UpToDate")


class Mesh(Round):
    """`nodes` of them; a fault hits a node, or all links of a node, or one of its links in one direction."""

    def __init__(self, *args, nodes=3, least=12, **options):
        self.nodes, self.least = nodes, least
        super().__init__(*args, **options)

    def configure(self):
        rng = self.rng
        names = "abcdefgh"[:self.nodes]
        for name in names:
            FaultyDisk(self.c.node(name, size=SIZE), write_error=rng.choice(("EIO", "ENOSPC")),
                       share=rng.choice(("100%", "10%")))
        self.net, self.disk = self.draw()
        if rng.random() < 0.3:
            self.net += " data-integrity-alg crc32c;"
        # What a Primary with protocol A has acknowledged may be on no other node.
        self.protocol = rng.choice("CCBA")
        self.mib, self.grown = LEAST, True
        self.under_way, self.killed = {}, set()  # commands of each node; who was killed and not started since
        nodes = self.c.nodes
        self.put_config()
        for n in nodes:
            self.create_md(n)
        for n in nodes:
            n.start()
        for n in nodes:
            eventually("connected", lambda n=n: all(x["connection-state"] == "Connected" for x in n.status()["connections"]), 60)
        nodes[0].urbd("primary", "--force", "r0")
        eventually("all together", lambda: self.whole({n: self.look(n) for n in nodes}), 90)
        self.say(f"protocol {self.protocol}; net {self.net}; disk {self.disk}")
        self.home, self.failover = nodes[0], False
        self.complete = set(nodes)

    def draw(self):
        """Options that may be changed at any time, of `net` and of `disk`."""
        rng = self.rng
        net = f"ping-int 1; ping-timeout 5; timeout {rng.choice((10, 10, 15))}; connect-int 1; ko-count {rng.choice((3, 3, 5))};"
        net += " verify-alg crc32c;"
        disk = f"on-io-error detach; al-extents {rng.choice((67, 1237))};"
        disk += rng.choice(("", " c-plan-ahead 0; resync-rate 4M;", " c-plan-ahead 0; resync-rate 40M;"))
        return net + (" csums-alg crc32c;" if rng.random() < 0.3 else ""), disk

    def put_config(self):
        nodes = self.c.nodes
        mesh = MESH.replace("a b c", " ".join(n.name for n in nodes))
        config = text(nodes, mesh, self.net, f"size {self.mib}M; {self.disk}")
        for n in nodes:
            n.put_res("r0", config.replace("protocol C;", f"protocol {self.protocol};", 1))

    def alive(self, n):
        """Also one whose process was followed by another one, which is nobody's child."""
        if "r0" in n.processes:
            return super().alive(n)
        try:
            return n._alive(n.serving())
        except (OSError, ValueError):
            return False

    def busy(self, n):
        return n in self.under_way and self.under_way[n].is_alive()

    def look_at_all(self):
        for n in self.c.nodes:
            if not self.busy(n) and n not in self.killed and not self.alive(n):
                raise AssertionError(f"{n.name}: its process ended, and nobody killed it\n{n.log()[-3000:]}")
        return super().look_at_all()

    def start(self, n):
        if not self.busy(n):
            super().start(n)
            if "r0" in n.processes:
                self.killed.discard(n)

    def look(self, n):
        if not self.alive(n) or n in self.frozen:
            return None
        try:
            s = n.status()
        except (Failed, StopIteration):
            return None
        return {"role": s["role"], "disk": s["devices"][0]["disk-state"], "suspended": s["suspended"],
                "peers": {c["name"]: (c["connection-state"], c["peer_devices"][0]["replication-state"],
                                      c["peer_devices"][0]["peer-disk-state"]) for c in s["connections"]}}

    @staticmethod
    def whole(states):
        return all(s and s["disk"] == "UpToDate" and not s["suspended"] and all(p == WHOLE for p in s["peers"].values())
                   for s in states.values())

    def operate(self):
        states = self.look_at_all()
        for n, s in states.items():
            if s and s["disk"] == "Diskless" and not n.disks[0].on:
                if s["role"] == "Primary":
                    # It takes no disk into use; its peers have what it acknowledged.
                    self.say(f"{n.name} has no disk")
                    self.fail_over()
                    continue
                self.say(f"attach {n.name}")
                self.try_verb(n, "attach")
            for peer, (conn, _, _) in s["peers"].items() if s else ():
                if conn == "StandAlone":
                    assert "[split-brain]" not in n.log(), f"{n.name}: split brain, and there never were two Primaries"
                    self.say(f"connect {n.name} {peer}")
                    self.try_verb(n, "connect", f"r0:{peer}")
        if self.whole(states) and not any(n.disks[0].on for n in self.c.nodes):
            self.complete = set(self.c.nodes)
            if not self.grown and not any(self.busy(n) for n in states):
                self.begin(self.home, "resize")
        self.promote(states)
        return states

    def promote(self, states):
        s = states[self.home]
        if s and s["role"] != "Primary" and s["disk"] in ("UpToDate", "Consistent") and self.home in self.complete \
                and not any(x and x["role"] == "Primary" for x in states.values()):
            self.say(f"primary {self.home.name}")
            self.try_verb(self.home, "primary")

    def kill(self, n):
        if n is self.home:
            self.fail_over()
        else:
            self.end(n)

    def end(self, n):
        """Also a process that was begun in this moment."""
        self.killed.add(n)
        super().kill(n)
        while self.busy(n) or self.alive(n):
            n.kill()
            time.sleep(0.01)

    def freeze(self, n):
        if not self.busy(n):
            super().freeze(n)

    def fail_over(self, _=None):
        """Kills the Primary. One of those that have all that it acknowledged follows it, if there is one."""
        lost = self.home
        s, before = self.look(lost), lost.log().count(LOST)
        self.end(lost)
        if not s or s["role"] != "Primary" or s["suspended"] or self.protocol == "A":
            return
        # What became of its links after the look, it has said.
        if lost.log().count(LOST) > before:
            return
        able = [x for x in self.c.nodes if x is not lost and s["peers"][x.name] == WHOLE
                and not x.disks[0].on and x not in self.frozen]
        if able:
            self.home = self.rng.choice(able)
            self.complete = {x for x in able if x in self.complete} | {self.home}
            self.say(f"{self.home.name} follows {lost.name}")

    def together(self):
        return not any(n.disks[0].on for n in self.c.nodes) and self.whole({n: self.look(n) for n in self.c.nodes})

    def move(self, n):
        if n is not self.home and self.together():
            self.say(f"from {self.home.name} to {n.name}")
            self.try_verb(self.home, "secondary")
            if self.look(self.home)["role"] == "Secondary":
                self.home = n

    def mute(self, n):
        n.lose_packets_to(self.rng.choice([x for x in self.c.nodes if x is not n]))

    def partition(self, n):
        """The node, and perhaps others with it, from the rest: each has an address of its own, and loses what goes there."""
        others = [x for x in self.c.nodes if x is not n]
        here = [n, *self.rng.sample(others, self.rng.randrange(len(others)))]
        self.say(f"alone are {' '.join(sorted(x.name for x in here))}")
        for a, b in product(here, [x for x in others if x not in here]):
            a.lose_packets_to(b)
            b.lose_packets_to(a)

    def unite(self, _):
        for n in self.c.nodes:
            n.find_packets()

    def lose_disk(self, n):
        """By an operator, who puts it back (`operate`)."""
        if n is not self.home and self.complete == set(self.c.nodes):
            self.complete.discard(n)
            self.try_verb(n, "detach")

    def invalidate(self, n):
        """All is copied to it once more."""
        if n is not self.home and self.complete == set(self.c.nodes):
            self.complete.discard(n)
            self.try_verb(n, "invalidate")

    def verify(self, n):
        """Finds nothing: what is written meanwhile is no difference."""
        other = self.rng.choice([x for x in self.c.nodes if x is not n])
        self.begin(n, "verify", f"r0:{other.name}")

    def blackout(self, _):
        """All die at once, and come back one after the other. The Primary has all that it acknowledged."""
        for n in self.rng.sample(self.c.nodes, len(self.c.nodes)):
            self.end(n)

    def replace(self, n):
        """It is another machine, whose disk holds anything, and which will be copied to."""
        if n is self.home or self.busy(n) or not self.together():
            return
        self.complete.discard(n)
        self.end(n)
        with open(n.disk_file(), "r+b") as f:
            f.write(os.urandom(SIZE))
        self.create_md(n)

    def create_md(self, n):
        words = "create-md", "--force", "--format=v09", f"--max-peers={self.nodes - 1}", "r0"
        # Requests of a process that was killed may still be on their way to the disk.
        eventually("metadata", lambda: n.call(*words).rc == 0, 10)

    def adjust(self, n):
        """Other options, in the files of all; each node learns of them in its time, or when it starts."""
        integrity = " data-integrity-alg crc32c;" * ("data-integrity-alg" in self.net)
        self.net, self.disk = self.draw()
        self.net += integrity
        if self.protocol != "A":
            self.protocol = self.rng.choice("CB")
        self.put_config()
        for x in self.c.nodes:
            self.begin(x, "adjust")

    def grow(self, n):
        if self.mib < MOST and self.grown and self.together():
            self.mib, self.grown = self.mib + 1, False
            self.put_config()
            self.begin(n, "resize")

    def restart(self, n):
        """Another process takes over."""
        if self.begin(n, "restart"):
            n.processes.pop("r0", None)

    def begin(self, n, verb, what="r0"):
        """A command that goes on while other things happen."""
        if self.busy(n) or not self.alive(n) or n in self.frozen:
            return False

        def work():
            with contextlib.suppress(TookTooLong):
                r = n.call(verb, what, timeout=30)
                self.say(f"{verb} {what} on {n.name} ended with {r.rc} {r.err.strip()[-150:]}")
                self.grown |= verb == "resize" and r.rc == 0

        self.under_way[n] = threading.Thread(target=work, daemon=True)
        self.under_way[n].start()
        return True

    def kill_within(self, n):
        """It dies in the middle of what an operator has begun, and all nodes, or this one, take part in."""
        other = self.rng.choice([x for x in self.c.nodes if x is not n])
        begun = self.rng.choice((
            lambda: self.begin(other, "disconnect", f"r0:{n.name}"), lambda: self.begin(self.home, "secondary"),
            lambda: self.grow(other), lambda: self.grow(n), lambda: self.restart(n), lambda: self.restart(other)))
        begun()
        self.say(f"under way: {' '.join(x.name for x in self.c.nodes if self.busy(x))}")
        time.sleep(self.rng.choice((0.02, 0.1, 0.3)) * self.rng.random())
        self.kill(n)

    def faults(self):
        faults = super().faults()
        faults["mute"] = self.mute, lambda n: n.find_packets()
        faults["fail-over"] = self.fail_over, lambda n: None
        faults["move"] = self.move, lambda n: None
        if self.nodes > 3:
            faults["partition"] = self.partition, self.unite
        faults["detach"] = self.lose_disk, lambda n: None
        for name, act in {"invalidate": self.invalidate, "adjust": self.adjust, "grow": self.grow, "restart": self.restart,
                          "replace": self.replace, "verify": self.verify, "kill within": self.kill_within}.items():
            faults[name] = act, lambda n: None
        faults["blackout"] = self.blackout, lambda n: None
        return faults

    def settle(self):
        for thread in self.under_way.values():
            thread.join(60)
        super().settle()

    def check(self):
        for n in self.c.nodes:
            assert "panicked" not in n.log(), n.log()[-3000:]
        self.c.assert_same()
        for n in self.c.nodes:
            primary = next(x for x in self.c.nodes if x.status()["role"] == "Primary")
            if n is not primary:
                eventually("demotion", lambda p=primary: p.call("secondary", "r0").rc == 0, 20)
                # Marks of two Secondaries for each other are compared, and settled by copying, when nobody is Primary.
                eventually(f"promotion of {n.name}", lambda n=n: n.call("primary", "r0").rc == 0, 30)
            with n.nbd() as h:
                bad = self.app.verify(h)
            assert not bad, (n.name, bad[:10])
        for n, other in permutations(self.c.nodes, 2):
            eventually(f"{n.name} knows that {other.name} is the same", lambda n=n, other=other: not self.marked(n, other), 20)

    @staticmethod
    def marked(n, other):
        c = next(c for c in n.status()["connections"] if c["name"] == other.name)
        return c["peer_devices"][0]["out-of-sync"]


if __name__ == "__main__":
    p = arguments("faults on three real processes and more")
    p.add_argument("--nodes", type=int, default=3)
    a = p.parse_args()
    main(a, partial(Mesh, nodes=a.nodes))
