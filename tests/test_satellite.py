"""What LINSTOR's satellite does with a resource from its creation to its end, on three nodes: `satellite.py`."""

import contextlib
import os
import subprocess

import pytest

from machine import machine
from satellite import Resource, Satellite, Volume
from test_handover import Application

NAMES = ("alpha", "bravo", "charlie")
NET = 32 << 10
MNT = "/mnt"
QUORUM = {"Resource/quorum": "majority"}


class Controller:
    """Tells the satellites what is to be, in LINSTOR's order."""

    def __init__(self, cluster, names=NAMES):
        self.cluster = cluster
        self.nodes = {n: Satellite(machine(cluster, n, disks=())) for n in names}
        self.resources = []

    def on(self, *names):
        return [self.nodes[n] for n in names or self.nodes]

    def run(self, *names):
        for s in self.on(*names):
            s.run([r for r in self.resources if s.name in r.replicas])

    def agree(self):
        for s in self.on():
            s.agrees()

    def define(self, name, disks, without=(), **options):
        number = 1000 + len(self.resources)
        res = Resource(name, 6000 + number, [Volume(0, number, NET)], self.nodes, **options)
        res.winner = disks[0]
        for n in (*disks, *without):
            res.add(n, n in disks)
        self.resources.append(res)
        return res

    def usable(self, res):
        for s in self.on(*res.replicas):
            s.usable(res)
        self.agree()

    def spawn(self, name, disks, without=(), **options):
        """A resource on fresh disks, with or without nodes that only vote."""
        res = self.define(name, disks, without, **options)
        self.run(*res.replicas)
        self.usable(res)
        return res

    def add(self, res, node, diskful=True):
        """First the peers hear of it, then the node."""
        others = list(res.replicas)
        res.add(node, diskful)
        self.run(*others)
        self.run(node)
        self.usable(res)

    def remove(self, res, node):
        gone = self.nodes[node]
        node_id = res.id_of(node)
        gone.delete(res)
        del res.replicas[node]
        for s in self.on(*res.replicas):
            s.forget(res, node_id)
            s.run(self.resources)
        self.agree()

    def delete(self, res):
        for s in self.on(*res.replicas):
            s.delete(res)
        self.resources.remove(res)
        self.run()
        self.agree()
        for s in self.on(*res.replicas):
            nothing_left(s, res)

    def power(self, s, res, on=True):
        """The node's power goes, and comes back: all of it is made anew, backing devices first."""
        if s.stream:
            s.end()
            s.machine.power_off()
            for device in s.devices.values():
                subprocess.run(["losetup", "-d", device], check=True)
            s.devices.clear()
        if on:
            s.machine.power_on()
            s.begin()
            self.run(s.name)

    def end(self):
        for s in self.on():
            s.end()
        for s in self.on():
            for device in s.devices.values():
                subprocess.run(["losetup", "-d", device], stderr=subprocess.DEVNULL)


def nothing_left(s, res):
    """No process, no device, no file."""
    numbers = "|".join(str(v.minor) for v in res.volumes)
    found = s.shell(f"find /dev /run /var/lib/linstor.d ! -path '*/.backup/*' -regextype egrep "
                    f"-regex '.*/({res.name}([./-].*)?|drbd({numbers}))' || true")
    assert not found, found
    words = s.shell("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null || true")
    assert not [line for line in words.splitlines() if f" {res.name} " in line], words


@pytest.fixture
def linstor(cluster):
    c = Controller(cluster)
    try:
        for s in c.on():
            s.begin()
        yield c
        for s in c.on():
            assert not s.left_out and not s.skip_disk
    finally:
        for s in c.on():
            print(s.name, *s.calls, sep="\n")
            if s.stream:
                print(*s.stream.lines, sep="\n")
        c.end()


@contextlib.contextmanager
def mounted(s, res):
    """As the node plugin of Kubernetes does; opening promotes, the last close demotes."""
    device = f"/dev/drbd{res.volumes[0].minor}"
    s.call("blockdev", "--setrw", device)
    assert s.call("fsck", "-l", "-p", "-M", device, rc=None).returncode in (0, 1, 8)
    s.shell("mkdir -p /mnt && mount -w \"$1\" /mnt", device)
    s.wait("opening has promoted it", lambda: s.role(res) == "Primary", 5)
    try:
        yield f"/proc/{s.machine.holder}/root{MNT}"
    finally:
        s.call("umount", "/mnt")
        s.wait("it is Secondary again", lambda: s.role(res) == "Secondary", 5)


@contextlib.contextmanager
def in_use(s, res):
    """Somebody reads and writes there all the time, and checks what he reads."""
    with mounted(s, res) as where:
        with open(f"{where}/load", "wb") as f:
            f.write(bytes(1 << 20))
        app = Application(f"{where}/load", 0)
        try:
            app.goes_on()
            yield app, where
            app.goes_on()
        finally:
            app.end()


def killed(s, res):
    """Its process, which events2 says itself; I/O waits for the next one."""
    s.shell("kill -9 $(cat /run/urbd/$1.pid)", res.name)
    s.wait("its process is gone", lambda: not s.stream.get("resource", res.name), 5)


def digest(s, res):
    with mounted(s, res) as where:
        with open(f"{where}/data", "rb") as f:
            return f.read()


def test_place_write_grow_delete(linstor):
    for s in linstor.on():
        s.run([])
        s.agrees()
    res = linstor.spawn("web", ["alpha", "bravo"], ["charlie"], properties=QUORUM)
    a, b, c = linstor.on()
    assert a.size(res.volumes[0]) == b.size(res.volumes[0]) == NET
    a.make_file_system(res)
    linstor.run()
    linstor.agree()
    data = os.urandom(1 << 20)
    with mounted(a, res) as where:
        with open(f"{where}/data", "wb") as f:
            f.write(data)
    for s in (b, c, a):
        assert digest(s, res) == data
    linstor.delete(res)


def test_a_snapshot_of_what_is_in_use_becomes_a_resource(linstor):
    res = linstor.spawn("web", ["alpha", "bravo"], ["charlie"], properties=QUORUM)
    a, b, c = nodes = linstor.on()
    a.make_file_system(res)
    data = os.urandom(1 << 20)
    with in_use(a, res) as (app, where):
        with open(f"{where}/data", "wb") as f:
            f.write(data)
        os.sync()
        for s in nodes:
            s.suspend(res)
        linstor.agree()
        before = app.done
        for s in (a, b):
            s.snapshot(res, res.volumes[0], "snap")
        assert app.done <= before + 1
        for s in nodes:
            s.resume(res)
        app.goes_on()
        linstor.agree()
        copy = linstor.define("copy", ["alpha", "bravo"], ["charlie"], properties=QUORUM)
        for s in (a, b):
            s.restore(copy, copy.volumes[0], "snap")
        linstor.run()
        a.promote(copy)
        a.demote(copy)
        linstor.usable(copy)
    for s in (b, a):
        assert digest(s, copy) == data
    linstor.delete(copy)


@pytest.mark.parametrize("thin", [True, False])
def test_it_grows_while_it_is_mounted(linstor, thin):
    res = linstor.spawn("web", ["alpha", "bravo"], ["charlie"], properties=QUORUM, thin=thin)
    a, b, c = linstor.on()
    a.make_file_system(res)
    volume = res.volumes[0]
    with in_use(a, res):
        volume.net *= 2
        for s in (a, b):
            s.enlarge(res, volume)
        a.resize(res, volume)
        linstor.run()
        for s in linstor.on():
            s.wait("it has grown", lambda: s.size(volume) == volume.net, 15)
        linstor.agree()
        # The metadata are where the next process looks for them, with all that they have to say.
        for s in (b, a):
            killed(s, res)
            linstor.run(s.name)
            linstor.usable(res)
    device = f"/dev/drbd{volume.minor}"
    assert a.call("e2fsck", "-f", "-p", device, rc=None).returncode in (0, 1)
    a.call("resize2fs", device)
    data = os.urandom(volume.net * 1024 * 3 // 4)
    with mounted(a, res) as where:
        with open(f"{where}/data", "wb") as f:
            f.write(data)
    assert digest(b, res) == data
    linstor.delete(res)


@pytest.mark.parametrize("thin", [True, False])
def test_a_replica_comes_and_goes_under_load(linstor, thin):
    res = linstor.spawn("web", ["alpha", "bravo"], thin=thin)
    a, b, c = linstor.on()
    a.make_file_system(res)
    data = os.urandom(1 << 20)
    with in_use(a, res) as (app, where):
        with open(f"{where}/data", "wb") as f:
            f.write(data)
        linstor.add(res, "charlie")
        app.goes_on()
        c.wait("it has all", lambda: c.disk_state(res) == "UpToDate", 30)
        linstor.remove(res, "bravo")
        app.goes_on()
    assert digest(c, res) == data
    linstor.add(res, "bravo")
    b.wait("it has all", lambda: b.disk_state(res) == "UpToDate", 30)
    assert digest(b, res) == data


def test_a_secondary_gives_its_disk_away_and_gets_one(linstor):
    res = linstor.spawn("web", ["alpha", "bravo"], ["charlie"], properties=QUORUM)
    a, b, c = linstor.on()
    a.make_file_system(res)
    data = os.urandom(1 << 20)
    with in_use(a, res) as (app, where):
        with open(f"{where}/data", "wb") as f:
            f.write(data)
        # charlie gets a disk: first its peers hear of it.
        res.replicas["charlie"] = (res.id_of("charlie"), True)
        linstor.run("alpha", "bravo")
        linstor.run("charlie")
        linstor.usable(res)
        c.wait("it has all", lambda: c.disk_state(res) == "UpToDate", 30)
        # bravo gives its own one away.
        res.replicas["bravo"] = (res.id_of("bravo"), False)
        b.become_diskless(res)
        linstor.run("bravo")
        b.release(res, res.volumes[0])
        linstor.run("alpha", "charlie")
        linstor.usable(res)
        app.goes_on()
    assert digest(c, res) == data and digest(b, res) == data
    linstor.delete(res)


def test_processes_and_nodes_die_and_come_back(linstor):
    res = linstor.spawn("web", ["alpha", "bravo"], ["charlie"], properties=QUORUM)
    a, b, c = nodes = linstor.on()
    a.make_file_system(res)
    data = os.urandom(1 << 20)
    with in_use(a, res) as (app, where):
        with open(f"{where}/data", "wb") as f:
            f.write(data)
        os.sync()
        for s in (b, c, a):
            killed(s, res)
            linstor.run(s.name)
            linstor.usable(res)
            app.goes_on()
        linstor.power(b, res)
        app.goes_on()
        linstor.usable(res)
        b.wait("it has all", lambda: b.disk_state(res) == "UpToDate", 30)
    for s in nodes:
        linstor.power(s, res, on=False)
    for s in nodes:
        linstor.power(s, res)
    linstor.usable(res)
    for s in nodes:
        assert digest(s, res) == data
    linstor.delete(res)


def test_a_volume_comes_and_goes_beside_one_in_use(linstor):
    """It comes while nobody is Primary."""
    res = linstor.spawn("web", ["alpha", "bravo"], ["charlie"], properties=QUORUM)
    a, b, c = nodes = linstor.on()
    a.make_file_system(res)
    second = Volume(1, 2000, NET)
    res.volumes.append(second)
    linstor.run()
    linstor.usable(res)
    assert all(s.size(second) == NET for s in nodes)
    with in_use(a, res) as (app, where):
        res.volumes.remove(second)
        for s in nodes:
            s.remove_volume(res, second)
        linstor.agree()
        app.goes_on()
    for s in nodes:
        assert not s.shell("find /dev -name drbd2000 -o -path '*/by-res/web/1'")
    linstor.delete(res)


def test_a_disk_that_fails_is_never_attached_again(linstor):
    """The controller has it so: for good."""
    a, b, c = nodes = linstor.on()
    b.shell("mount -t tmpfs -o size=8M tmpfs /disks")
    res = linstor.spawn("web", ["alpha", "bravo"], ["charlie"], properties=QUORUM)
    a.make_file_system(res)
    data = os.urandom(12 << 20)
    with mounted(a, res) as where:
        with open(f"{where}/data", "wb") as f:
            f.write(data)
        os.sync()
        b.wait("its disk has failed", lambda: b.stream.failed_disks == {"web"}, 15)
        b.wait("it is without a disk", lambda: b.disk_state(res) == "Diskless", 15)
        b.skip_disk.add("web")
        linstor.run()
        linstor.agree()
        assert b.disk_state(res) == "Diskless"
    assert digest(c, res) == data
    for s in nodes:
        linstor.run(s.name)
    linstor.agree()
    assert not a.skip_disk and not c.skip_disk
    linstor.delete(res)
    b.skip_disk.clear()
