"""The real drbdadm (drbd-utils 9.22) drives this drbdsetup and this drbdmeta through the life of a resource, as if they were
the kernel's.  It is run as it comes out of its package, and so are its files; nothing of it is looked into."""

import contextlib
import json
import os
import subprocess

import pytest

from cluster import MIB, URBD, eventually, same_beginning

CONF = """global {{ usage-count no; }}
common {{ options {{ auto-promote yes; {options} }} net {{ {net} }} disk {{ {disk} }} }}
resource r0 {{
{hosts}
  connection-mesh {{ hosts {names}; }}
}}
"""
ON = """  on {name} {{ node-id {id}; address {ip}:7789;
{volumes}
  }}
"""
VOLUME = "    volume {nr} {{ device minor {minor}; disk {disk}; meta-disk internal; }}"
DEFAULTS = {"options": "", "net": "protocol C; verify-alg crc32c;", "disk": "c-max-rate 400M;"}


class Machine:
    """A node with the real drbdadm, whose helpers are ours."""

    def __init__(self, node, number):
        self.node, self.name, self.id = node, node.name, number
        self.loops = []
        script = (f"mount --bind {URBD} /usr/sbin/drbdsetup && mount --bind {URBD} /usr/sbin/drbdmeta && "
                  "mount -t tmpfs none /run && mkdir -p /run/lock /run/drbd/lock && mount -t tmpfs none /var/lib/drbd")
        node.run(["sh", "-c", script], check=True)
        self.conf = os.path.join(node.dir, "real.conf")

    def loop(self, volume):
        while len(self.loops) <= volume:
            disk = self.node.disk_file(len(self.loops))
            made = subprocess.run(["losetup", "-f", "--show", disk], check=True, capture_output=True, text=True)
            # Whoever had this number before may have been killed while it was read-only.
            subprocess.run(["blockdev", "--setrw", made.stdout.strip()], check=True)
            self.loops.append(made.stdout.strip())
        return self.loops[volume]

    def run(self, *argv, timeout=60):
        env = {**self.node.env(), "DRBD_DONT_WARN_ON_VERSION_MISMATCH": "1", "URBD_CONF": "/nonexistent/urbd.conf"}
        script = f"hostname {self.name}; exec \"$@\""
        return self.node.run(["unshare", "--uts", "sh", "-c", script, "sh", *argv], env=env, stdin=subprocess.DEVNULL,
                             capture_output=True, text=True, timeout=timeout)

    def __call__(self, *words, rc=0):
        r = self.run("/usr/sbin/drbdadm", "-c", self.conf, *words)
        assert r.returncode == rc, f"{self.name}: drbdadm {' '.join(words)}: exit {r.returncode}\n{r.stdout}{r.stderr}"
        return r.stdout

    def status(self):
        r = self.run("/usr/sbin/drbdsetup", "status", "r0", "--json")
        return json.loads(r.stdout)[0] if r.returncode == 0 else None

    def device(self, volume=0):
        return f"/dev/urbd/drbd{10 + volume}"

    def write(self, data, offset=0, volume=0):
        self.node.dd(self.device(volume), data, offset)


def configure(machines, volumes=1, meant=None, **more):
    meant = meant or machines
    def host(m):
        lines = [VOLUME.format(nr=v, minor=10 + v, disk=m.loop(v)) for v in range(volumes)]
        return ON.format(name=m.name, id=m.id, ip=m.node.ip, volumes="\n".join(lines))
    text = CONF.format(hosts="".join(host(m) for m in meant), names=" ".join(m.name for m in meant), **{**DEFAULTS, **more})
    for m in machines:
        with open(m.conf, "w") as f:
            f.write(text)


def in_sync(machines, volumes=1):
    def good():
        for m in machines:
            status = m.status()
            states = [d["disk-state"] for d in status["devices"]]
            peers = [p["peer-disk-state"] for c in status["connections"] for p in c["peer_devices"]]
            if states != ["UpToDate"] * volumes or peers != ["UpToDate"] * volumes * (len(machines) - 1):
                return False
        return True
    eventually(f"in sync: {[m.status() for m in machines]}", good, 40)


def same(machines, volume=0):
    same_beginning([m.node for m in machines], volume)


@pytest.fixture
def machines(cluster):
    made = [Machine(cluster.node(name, size=16 * MIB, volumes=2), n) for n, name in enumerate(("alpha", "bravo", "charlie"))]
    yield made
    for m in made:
        with contextlib.suppress(Exception):
            m.run("/usr/sbin/drbdsetup", "down", "r0", "--force")
    for m in made:
        m.node.kill()
        for loop in m.loops:
            subprocess.run(["losetup", "-d", loop], check=False)


def adjusted(m):
    m("adjust", "r0")
    assert m("-d", "adjust", "r0") == "", f"{m.name}: a second adjust has something to do"


def test_the_life_of_a_resource(machines):
    a, b, c = machines
    pair = [a, b]
    configure(pair)
    for m in pair:
        m("create-md", "--force", "--max-peers=2", "r0")
        m("up", "r0")
        assert m("-d", "adjust", "r0") == ""
    a("primary", "--force", "r0")
    in_sync(pair)
    data = os.urandom(3 * MIB)
    a.write(data)
    same(pair)
    assert (a("role", "r0"), a("cstate", "r0"), a("dstate", "r0")) == ("Primary\n", "Connected\n", "UpToDate/UpToDate\n")

    # Options of each kind, while it is used; and back.
    configure(pair, options="on-no-data-accessible suspend-io;", net="protocol C; verify-alg crc32c; max-buffers 5000; timeout 50;",
              disk="c-max-rate 300M; al-extents 257; on-io-error pass_on;")
    for m in pair:
        assert len(m("-d", "adjust", "r0").splitlines()) == 4
        adjusted(m)
    configure(pair)
    for m in pair:
        adjusted(m)

    # A volume comes, beside the one in use, and goes.
    configure(pair, volumes=2)
    for m in pair:
        m("create-md", "--force", "--max-peers=2", "r0/1")
        adjusted(m)
    eventually("both have it", lambda: all(
        p["peer-disk-state"] == "Inconsistent" for m in pair for p in m.status()["connections"][0]["peer_devices"][1:]), 30)
    a("new-current-uuid", "--clear-bitmap", "r0/1")
    in_sync(pair, volumes=2)
    a.write(os.urandom(MIB), volume=1)
    same(pair, volume=1)
    configure(pair)
    for m in pair:
        adjusted(m)
    assert [d["volume"] for d in a.status()["devices"]] == [0]

    # A third node comes, and the second one goes.
    configure(machines)
    for m in pair:
        adjusted(m)
    c("create-md", "--force", "--max-peers=2", "r0")
    c("up", "r0")
    in_sync(machines)
    a.write(os.urandom(MIB), offset=4)
    same(machines)
    configure([a, c], meant=[a, c])
    b("down", "r0")
    for m in (a, c):
        adjusted(m)
    in_sync([a, c])
    a.write(os.urandom(MIB), offset=5)
    same([a, c])
    with open(c.node.disk_file(), "rb") as f:
        assert f.read(3 * MIB) == data

    # By hand, and down.
    for words in (("disconnect", "r0"), ("connect", "r0"), ("secondary", "r0"), ("detach", "r0"), ("attach", "r0"), ("primary", "r0"),
                  ("secondary", "r0")):
        a(*words)
    in_sync([a, c])
    for m in (a, c):
        m("down", "r0")
        m("down", "r0")
        assert m.status() is None
    # What was a volume once more: nothing is copied, nothing is lost.
    for m in (a, c):
        m("up", "r0")
    in_sync([a, c])
    same([a, c])
