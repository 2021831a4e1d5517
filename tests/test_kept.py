"""What a process was told outlives it: the keeper has it, in memory, and the next process is that (docs/adr/0023)."""

import array
import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading

import pytest

from cluster import MIB, URBD, eventually
from test_building import Host, built, connect, pair, same_data, synced
from test_filesystems import FSCK, MKFS, mounted, sh
from test_handover import Application

OPTIONS = ("--protocol=C", "--verify-alg=crc32c", "--cram-hmac-alg=sha1", "--shared-secret=a secret word")
PUT, FETCH, ITEM, DONE, NOTE, TOLD = 0, 2, 5, 6, 4, 19


def urbd(host, *words, rc=0):
    """Of a machine without a file."""
    r = host.node.call(*words, env={"URBD_CONF": os.path.join(host.node.dir, "none.conf")})
    assert r.rc == rc, f"{words}: exit {r.rc}\n{r.out}{r.err}"
    return r.out + r.err


def kill(host):
    """Of the resource's process alone."""
    pid = host.node.serving()
    os.kill(pid, signal.SIGKILL)
    eventually("it is gone", lambda: not host.node._alive(pid) and "r0" not in host("status"), 20)


def again(host):
    kill(host)
    urbd(host, "restart", "r0")


def shown(host):
    """All that it was told, as drbdsetup shows it, and the states of its connections."""
    return host("show", "r0"), sorted((c["peer-node-id"], c["connection-state"]) for c in host.status()["connections"])


class Late:
    """Text that is made when it is needed."""

    def __init__(self, make):
        self.make = make

    def __str__(self):
        return self.make()


def door(host):
    """Its device, by a path that leads there from everywhere."""
    link = host.node.run(["readlink", host.device()], stdout=subprocess.PIPE, text=True).stdout.strip()
    return f"/proc/{host.node.holder}/root{link or host.device()}"


def is_again(host, before):
    eventually(f"as it was: {before}", lambda: shown(host) == before, 30)


def order(host, word, text=None):
    """Speaks to the keeper; what it answers, by place."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(10)
        s.connect(os.path.join(host.node.run_dir, "r0.keeper"))
        rights = []
        if text is not None:
            with open(os.memfd_create("text", os.MFD_ALLOW_SEALING), "wb", closefd=True) as f:
                f.write(text.encode())
                f.flush()
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [f.fileno()]))]
                s.sendmsg([struct.pack("<BBBBI", 1, word, NOTE, 0, TOLD)], rights)
        else:
            s.sendmsg([struct.pack("<BBBBI", 1, word, 0, word == FETCH, 0)])
        found = {}
        while True:
            data, fds, _, _ = socket.recv_fds(s, 8, 1)
            if data[1] == DONE:
                return found
            assert data[1] == ITEM, data
            found[(data[2], struct.unpack("<I", data[4:])[0])] = fds[0]


def kept(host):
    """The text that the keeper has; where it is, and who may read it."""
    found = order(host, FETCH)
    text = None
    if (NOTE, TOLD) in found:
        fd = found[(NOTE, TOLD)]
        text = os.pread(fd, 1 << 20, 0).decode()
        assert os.fstat(fd).st_mode & 0o7777 == 0o600
        assert os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:")
    for fd in found.values():
        os.close(fd)
    return text


def test_a_file_system_goes_on_on_what_was_told_without_a_file(cluster):
    hosts = a, b = pair(cluster)
    built(hosts, *OPTIONS)
    a("net-options", "r0", 1, "--ping-timeout=7")
    a("disk-options", a.minor, "--on-io-error=detach")
    before = shown(a)
    assert "ping-timeout" in before[0] and "a secret word" in before[0] and before[1] == [(1, "Connected")]
    device = door(a)
    sh(*MKFS["ext4"], device)
    with mounted(a.node, device, "ext4") as where:
        blocks = os.path.join(where, "blocks")
        with open(blocks, "wb") as f:
            f.write(bytes(2 * MIB))
            os.fsync(f.fileno())
        app = Application(blocks, 0)
        app.goes_on()
        for how in ("restart", "up", "restart"):
            kill(a)
            # Whoever makes it anew would take the devices away.
            said = a("new-resource", "r0", 0, rc=10)
            assert "(174)" in said and "urbd restart r0" in said, said
            assert "urbd up r0" in urbd(a, "down", "r0", rc=11)
            urbd(a, how, "r0")
            app.goes_on()
            is_again(a, before)
            urbd(a, "restart", "r0")
            app.goes_on()
            is_again(a, before)
            assert a("role", "r0").strip() == "Primary" and len(a.node.keepers()) == 1
        app.end()
    sh(*FSCK["ext4"], device)
    synced(hosts)
    same_data(hosts)
    a("secondary", "r0")
    a("down", "r0")
    assert not a.node.keepers() and not a.node.pids()


def test_each_change_is_kept(cluster):
    """Peers that were let go are not sought, paths and volumes come and go, also those of one that was restarted."""
    hosts = a, b = pair(cluster, volumes=2)
    built(hosts)
    a.create_md(1)
    steps = [("net-options", "r0", 1, "--max-buffers=3000"), ("resource-options", "r0", "--auto-promote=no"),
             ("new-minor", "r0", a.minor + 1, 1), ("attach", a.minor + 1, a.disk(1), a.disk(1), "internal"),
             ("disconnect", "r0", 1), ("new-peer", "r0", 2, "--_name=charlie"),
             ("new-path", "r0", 2, a.address(), "ipv4:10.9.9.9:7789"), ("connect", "r0", 2), ("connect", "r0", 1),
             ("disconnect", "r0", 2), ("del-path", "r0", 2, a.address(), "ipv4:10.9.9.9:7789"), ("del-peer", "r0", 2),
             ("secondary", "r0"), ("detach", a.minor + 1), ("del-minor", a.minor + 1)]
    states = {"Connected": "up", "Connecting": "up", "Unconnected": "up", "StandAlone": "down"}

    def now():
        text, connections = shown(a)
        text = "\n".join(x for x in text.split("\n") if "_is_standalone" not in x and "_cstate" not in x)
        return text, [(peer, states.get(state, "up")) for peer, state in connections]

    for step in steps:
        a(*step)
        before, role = now(), a("role", "r0")
        again(a)
        eventually("it has its role again", lambda: a("role", "r0") == role, 30)
        eventually(Late(lambda: f"after {step}: {before}, not {now()}: {a('status', 'r0')}"), lambda: now() == before, 10)
    a("down", "r0")


def test_killed_after_each_step_of_being_built(cluster):
    """What is half made can be gone on with."""
    hosts = a, b = pair(cluster)
    for host in hosts:
        host.create_md()
        host("new-resource", "r0", host.id, "--on-no-data-accessible=suspend-io")
    b.volume()
    b.attach()
    b.peer(a, *OPTIONS)
    b.path(a)
    b("connect", "r0", a.id)
    for step in (lambda: None, a.volume, lambda: a.peer(b, *OPTIONS), a.attach, lambda: a.path(b),
                 lambda: a("connect", "r0", b.id)):
        step()
        before = a("show", "r0")
        for _ in range(2):
            again(a)
            assert a("show", "r0") == before
    a("primary", "r0", "--force")
    synced(hosts)
    a("secondary", "r0")
    a("down", "r0")


def test_beside_a_peer_that_is_gone(cluster):
    """It goes on alone, and is what it was; so is the peer, which died as well, and both find each other."""
    hosts = a, b = pair(cluster)
    built(hosts, *OPTIONS)
    told = [host("show", "r0") for host in hosts]
    app = Application(door(a), 0)
    kill(b)
    for _ in range(2):
        again(a)
        app.goes_on()
        assert a("show", "r0") == told[0]
    urbd(b, "restart", "r0")
    synced(hosts)
    assert b("show", "r0") == told[1]
    app.end()
    same_data(hosts)


def test_killed_right_after_a_volume_was_removed(cluster):
    """Its device may be there yet."""
    hosts = a, b = pair(cluster, volumes=2)
    built(hosts)
    app = Application(door(a), 0)
    for _ in range(5):
        a.create_md(1)
        a.volume(1)
        a.attach(1)
        eventually("it has a device", lambda: a.node.run(["test", "-e", a.device(1)]).returncode == 0, 20)
        a("detach", a.minor + 1)
        a("del-minor", a.minor + 1)
        again(a)
        app.goes_on()
        eventually("the device is gone", lambda: a.node.run(["test", "-e", a.device(1)]).returncode != 0, 20)
        assert [d["volume"] for d in a.status()["devices"]] == [0]
    app.end()
    a("secondary", "r0")
    a("down", "r0")
    eventually("no loop device is left", lambda: not a.node.loops(), 20)


def test_a_resource_without_a_device_is_kept_too(cluster):
    hosts = [Host(cluster.node(name, size=MIB)) for name in ("alpha", "bravo")]
    for host in hosts:
        host("new-resource", "r0", host.id)
    connect(hosts)
    a = hosts[0]
    eventually("connected", lambda: a("cstate", "r0", 1).strip() == "Connected", 30)
    before = shown(a)
    for _ in range(2):
        again(a)
        is_again(a, before)
    kill(a)
    # Nobody uses it: it can be made anew, and is then nothing of what it was.
    a("new-resource", "r0", 0)
    assert a.status()["connections"] == []
    a("del-resource", "r0")
    assert not a.node.keepers()
    assert "cannot read" in urbd(a, "restart", "r0", rc=20)


def test_what_ends_a_resource_ends_what_was_kept(cluster):
    a, _ = pair(cluster)
    for tool, words in (("drbdsetup", ("down", "r0")), ("urbd", ("down", "r0")), ("urbd", ("down", "--force", "r0"))):
        a("new-resource", "r0", 0)
        a.volume()
        kill(a)
        assert len(a.node.keepers()) == 1 and "new-minor r0 100 0" in kept(a)
        assert "urbd up r0" in urbd(a, "primary", "r0", rc=10)
        assert "no file has it" in urbd(a, "create-md", "r0", rc=10)
        a(*words) if tool == "drbdsetup" else urbd(a, *words)
        eventually("the keeper is gone", lambda: not a.node.keepers(), 20)
        assert a.node.run(["test", "-e", a.device()]).returncode != 0
        assert [f for f in os.listdir(a.node.run_dir) if not f.endswith((".log", ".pid", ".lock"))] == []
        urbd(a, "restart", "r0", rc=20)


def test_killed_in_the_middle_of_being_told(cluster):
    """What was answered is there, and nothing is there by half."""
    hosts = a, b = pair(cluster)
    built(hosts)
    rng, told, ending = random.Random(7), [1000], threading.Event()

    def tell():
        value = told[0]
        while not ending.is_set():
            value += 1
            r = a.call("drbdsetup", "net-options", "r0", "1", f"--max-buffers={value}", f"--max-epoch-size={value}")
            if r.returncode == 0:
                told.append(value)

    for _ in range(8):
        ending.clear()
        teller = threading.Thread(target=tell)
        n = len(told)
        teller.start()
        eventually("it is told", lambda: len(told) > n + 2, 30)
        threading.Event().wait(rng.random() / 20)
        pid = a.node.serving()
        os.kill(pid, signal.SIGKILL)
        eventually("it is gone", lambda: not a.node._alive(pid), 20)
        ending.set()
        teller.join(60)
        urbd(a, "restart", "r0")
        words = dict(line.split()[:2] for line in a("show", "r0").split("\n") if "max-" in line)
        buffers, epoch = (int(words[name].rstrip(";")) for name in ("max-buffers", "max-epoch-size"))
        assert buffers == epoch and buffers in (told[-1], told[-1] + 1), (words, told[-3:])
        told.append(buffers)
    synced(hosts)


def test_a_text_of_another_release_is_refused_before_anything_is_changed(cluster):
    hosts = a, _ = pair(cluster)
    built(hosts)
    text = kept(a)
    assert text.startswith("# urbd: what was told, 1\n") and "connect r0 1\n" in text
    pid = a.node.serving()
    app = Application(door(a), 0)
    for other in (text.replace(", 1\n", ", 2\n", 1), "nothing", text.replace("new-peer", "new-friend")):
        order(a, PUT, other)
        said = urbd(a, "restart", "r0", rc=20)
        assert "r0: " in said and "urbd down --force r0" in said, said
        assert a.node.serving() == pid
        app.goes_on()
    assert "another form, of another release" in said or "new-friend" in said
    kill(a)
    assert "builds nothing" in urbd(a, "restart", "r0", rc=20)
    order(a, PUT, text)
    urbd(a, "restart", "r0")
    app.goes_on()
    app.end()


def test_the_keeper_that_is_killed_is_followed_by_one_that_knows_it(cluster):
    hosts = a, _ = pair(cluster)
    built(hosts)
    text = kept(a)
    [keeper] = a.node.keepers()
    os.kill(keeper, signal.SIGKILL)
    eventually("another one", lambda: a.node.keepers() not in ([], [keeper]), 20)
    eventually("it knows it", lambda: kept(a) == text, 20)
    with open(f"/proc/{a.node.keepers()[0]}/smaps") as f:
        maps = f.read().split("memfd:urbd")
    assert any("Locked:                4 kB" in x or "VmFlags" in x and " lo" in x.split("VmFlags", 1)[1].split("\n")[0]
               for x in maps[1:]), "it is locked"
    again(a)
    synced(hosts)


def test_others_do_not_get_what_was_told(cluster):
    hosts = a, _ = pair(cluster)
    a("new-resource", "r0", 0)
    a.peer(hosts[1], *OPTIONS)
    assert "a\\ secret\\ word" in kept(a)
    path = os.path.join(a.node.run_dir, "r0.keeper")
    kill(a)
    env = a.node.env(URBD_CONF=os.path.join(a.node.dir, "none.conf"))
    for verb in ("restart", "up", "down"):
        r = a.node.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", URBD, verb, "r0"], env=env,
                       capture_output=True, text=True)
        assert r.returncode != 0 and "secret" not in r.stdout + r.stderr, r
    assert a.node.pids() == [] and len(a.node.keepers()) == 1
    urbd(a, "restart", "r0")
    assert os.stat(path).st_mode & 0o077 == 0
    probe = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({path!r})"
    r = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", probe],
                       capture_output=True, text=True)
    assert "PermissionError" in r.stderr, r.stderr
    r = a.node.run(["grep", "-rlE", "a.{0,2}secret.{0,2}word", a.node.run_dir, a.node.dir], capture_output=True, text=True)
    assert r.stdout == "", r.stdout
    a("down", "r0")


@pytest.mark.parametrize("way", ["run", "up", "restart"])
def test_what_is_in_a_file(cluster, way):
    """One that has died is followed by one that is what it was told; who starts one by a command wants what the file says,
    and so does who ended the last one in order."""
    a, b = (cluster.node(name, size=16 * MIB) for name in ("alpha", "bravo"))
    cluster.configure()
    for node in (a, b):
        node.create_md()
        node.start()
    a.urbd("net-options", "--max-buffers=3111", "r0")

    def shows():
        return "3111" in a.urbd("show", "r0").out

    assert shows()
    a.kill_process()
    if way == "run":
        # As a service manager does it, also where the file has become unreadable meanwhile.
        a.start()
        assert shows()
        a.kill_process()
        path = a.env()["URBD_CONF"]
        os.rename(path, path + ".away")
        a.start()
        os.rename(path + ".away", path)
        assert shows()
        a.urbd("restart", "r0")
        a.processes.pop("r0").wait(20)
    else:
        a.urbd(way, "r0")
    assert not shows()
    a.urbd("net-options", "--max-buffers=3111", "r0")
    assert shows()
    # And once more from a process that a verb has started.
    a.kill_process()
    a.start()
    assert shows()
    a.stop()
    a.start()
    assert not shows()


class Once:
    """A configuration that the verb reads, once: whoever opens it besides waits for ever."""

    def __init__(self, node):
        self.node, self.fifo = node, os.path.join(node.dir, "once.conf")
        with open(os.path.join(node.dir, "res.d", "r0.res")) as f:
            self.text = f.read()
        os.mkfifo(self.fifo)

    def __call__(self, *words, rc=0):
        def feed():
            with open(self.fifo, "w") as f:
                f.write(self.text)
        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        r = self.node.call(*words, env={"URBD_CONF": self.fifo})
        feeder.join(10)
        assert r.rc == rc and not feeder.is_alive(), f"{words}: exit {r.rc}\n{r.out}{r.err}"


def test_the_process_of_a_resource_opens_no_configuration(cluster):
    """`up`, `restart`, `adjust --skip-disk` read it, and tell the process."""
    node, _ = cluster.node("alpha"), cluster.node("bravo")
    cluster.configure(net="max-buffers 4711;")
    node.create_md()
    once = Once(node)

    def buffers():
        return re.search(r"max-buffers\s+(\d+);", node.verb("show", "r0").out)[1]

    once("up", "r0")
    assert buffers() == "4711" and node.wait(disk="Inconsistent")
    node.verb("primary", "--force", "r0")
    first = node.serving()
    once.text = once.text.replace("4711", "4712")
    with open(node.device(), "rb"):
        once("restart", "r0")
        assert node.serving() != first and buffers() == "4712"
    node.verb("secondary", "r0")
    node.verb("down", "r0")
    once("adjust", "--skip-disk", "r0")
    assert node.wait(disk="Diskless") and buffers() == "4712"
    # Who is called at an event finds the file.
    link = node.run(["readlink", os.path.join(node.run_dir, "drbd-resource-r0.conf")], stdout=subprocess.PIPE, text=True)
    assert link.stdout.strip() == once.fifo
