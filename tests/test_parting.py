"""A Secondary whose process is ended, or replaced, by whatever way is no node that was lost: its Primary neither freezes its
I/O nor calls fence-peer, which may shoot the machine that is being upgraded."""

import contextlib
import json
import os
import re
import socket
import subprocess
import threading
import time

import pytest

import cluster as C
from cluster import FAST_NET, MIB, URBD, eventually
from test_dialect9 import two
from test_handover import Application
from test_three_nodes import MESH, text, towards
from test_three_nine import connected

BLOCK = 4096
FENCING = "fencing resource-and-stonith;"


def handlers(cluster):
    """fence-peer is noted, and fails: I/O that it is called for stays frozen."""
    return f'fence-peer "echo fenced >>{cluster.dir}/fenced; exit 1";'


def fenced(cluster):
    return os.path.exists(os.path.join(cluster.dir, "fenced"))


def pair84(cluster):
    a, b = cluster.node("a", size=16 * MIB), cluster.node("b", size=16 * MIB)
    cluster.up(net=FENCING, handlers=handlers(cluster))
    return a, b


def pair9(cluster):
    a, b = two(cluster, net=FENCING, handlers=handlers(cluster))
    a.urbd("primary", "r0")
    return a, b


def three9(cluster):
    nodes = [cluster.node(name, size=16 * MIB) for name in "abc"]
    more = f"{MESH} handlers {{ {handlers(cluster)} }}"
    for n in nodes:
        n.put_res("r0", text(nodes, more, net=f"{FAST_NET} {FENCING}"))
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=2", "r0")
        n.start()
    connected(*nodes)
    nodes[0].urbd("new-current-uuid", "--clear-bitmap", "r0/0")
    in_sync(*nodes)
    nodes[0].urbd("primary", "r0")
    return nodes


def generation(node):
    """The current one of its data."""
    return node.urbd("get-gi", "r0/0").out.split(":")[0]


PLACES = {"pair84": pair84, "pair9": pair9, "three9": three9}


def in_sync(*nodes):
    for n in nodes:
        for other in nodes:
            if n is not other:
                want = {"conn": "Connected", "repl": "Established", "peer_disk": "UpToDate"}
                eventually(f"{n.name} and {other.name} are the same", lambda: towards(n, other) == want, 40)


class Events:
    """All that a node reports meanwhile."""

    def __init__(self, node):
        self.path = os.path.join(node.dir, "events")
        with open(self.path, "wb") as out:
            self.p = subprocess.Popen([*node.prefix(), URBD, "events2", "r0"], env=node.env(), stdin=subprocess.DEVNULL,
                                      stdout=out, stderr=out)
        eventually("it has begun", lambda: "exists -" in self.text())

    def text(self):
        with open(self.path) as f:
            return f.read()

    def end(self):
        self.p.kill()
        self.p.wait(20)


@contextlib.contextmanager
def nobody_is_fenced(cluster, primary):
    events = Events(primary)
    try:
        yield
        assert not fenced(cluster), "fence-peer was called"
        assert "fencing" not in events.text(), events.text()[-2000:]
    finally:
        events.end()


def leaves(node):
    """The old process does what it does for the next one, which does not start."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(os.path.join(node.run_dir, "r0.sock"))
        s.sendall(b'{"hello":{"version":1}}\n{"command":"hand-over"}\n')
        with contextlib.suppress(OSError):
            while s.recv(4096):
                pass
    node.processes.pop("r0").wait(20)


def restart(node):
    node.urbd("restart", "r0")
    node.processes.pop("r0", None)


def disconnect(node):
    node.urbd("disconnect", "r0")
    node.urbd("connect", "r0")


WAYS = {"disconnect": disconnect, "restart": restart, "leaves": leaves, "sigterm": lambda node: node.kill_process(sig=C.signal.SIGTERM),
        "down": lambda node: node.stop()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
def test_a_secondary_takes_leave(cluster, place, way):
    nodes = PLACES[place](cluster)
    a, b = nodes[0], nodes[1]
    with nobody_is_fenced(cluster, a):
        WAYS[way](b)
        a.write(MIB, os.urandom(65536))
        a.flush()
        if "r0" not in b.processes and not b.pids():
            eventually("the Primary knows what it has left", lambda: towards(a, b)["peer_disk"] == "Outdated", 20)
            a.write(2 * MIB, os.urandom(65536))
            b.start()
        in_sync(*nodes)
    cluster.assert_same()


def restart_in_use(node, app):
    before = node.serving()
    restart(node)
    assert node.serving() != before
    app.goes_on()


@pytest.mark.parametrize("place", PLACES)
def test_an_upgrade_as_the_guide_has_it(cluster, place):
    """Each node in turn, the Primary in use."""
    nodes = PLACES[place](cluster)
    a = nodes[0]
    app = Application(a.device(), 0)
    with nobody_is_fenced(cluster, a):
        for _ in range(2):
            for n in nodes[1:]:
                restart(n)
                in_sync(*nodes)
            restart_in_use(a, app)
            in_sync(*nodes)
        app.end()
    assert a.state()["role"] == "Primary"
    a.urbd("secondary", "r0")
    cluster.assert_same()


@pytest.mark.parametrize("place", ["pair84", "pair9"])
def test_who_has_the_last_good_data_of_a_primary_is_not_replaced(cluster, place):
    """As it does not go down: its users are on the other node."""
    a, b = PLACES[place](cluster)
    a.urbd("detach", "r0/0")
    b.wait(peer_disk="Diskless")
    before = b.serving()
    for verb in ("down", "restart"):
        r = b.call(verb, "r0")
        assert r.rc == 11 and "--force" in r.err, r
    assert b.serving() == before
    a.write(MIB, os.urandom(4096))
    assert not fenced(cluster)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("when", ["first", "frozen", "before"])
def test_a_write_that_is_frozen_by_fencing_begins_no_generation(cluster, place, when):
    """As its peer is not fenced: when that is back it gets the write, and nothing is copied (docs/spec/connection-and-state.md
    7.2.1). `first`: it is the first one since the promotion; `before`: it is on its way when the link is lost."""
    nodes = PLACES[place](cluster)
    a, b = nodes[0], nodes[1]
    if when != "first":
        a.write(MIB, os.urandom(BLOCK))
        a.flush()
    for n in nodes[2:]:
        n.stop()
    gi, resyncs = generation(a), [n.log().count("resync done") for n in (a, b)]
    data = os.urandom(BLOCK)
    writer = threading.Thread(target=lambda: a.write(MIB, data))
    if when == "before":
        b.cut()
        writer.start()
        a.wait(suspended=True)
    else:
        b.cut()
        a.wait(suspended=True)
        writer.start()
    eventually("the handler was called", lambda: fenced(cluster), 20)
    time.sleep(0.5)
    assert writer.is_alive() and generation(a) == gi
    b.heal()
    writer.join(30)
    assert not writer.is_alive()
    eventually("the same", lambda: towards(a, b) == {"conn": "Connected", "repl": "Established", "peer_disk": "UpToDate"}, 30)
    assert a.read(MIB, BLOCK) == data
    if when != "before":
        assert [n.log().count("resync done") for n in (a, b)] == resyncs
    if when == "frozen" and len(nodes) == 2:  # else one is due since the promotion, or since the third node has left
        assert generation(a) == gi
    cluster.assert_same(nodes=nodes[:2])


def dialect(node, newest):
    """`adjust` to the other dialect; the process stays."""
    path = os.path.join(node.dir, "res.d", "r0.res")
    with open(path) as f:
        config, n = re.subn(r"protocol-version-max \d+;", f"protocol-version-max {newest};", f.read())
    assert n == 1
    node.put_res("r0", config)
    was = node.serving()
    node.urbd("adjust", "r0")
    assert node.serving() == was and node.urbd("-d", "adjust", "r0").out == ""


def test_two_nodes_change_their_dialect_in_use(cluster):
    """The connection is made anew for that, in order."""
    nodes = a, b = pair9(cluster)
    app = Application(a.device(), 0)
    with nobody_is_fenced(cluster, a):
        for newest, order in ((101, (b, a)), (124, (b, a)), (101, (a, b)), (124, (a, b))):
            for n in order:
                dialect(n, newest)
            in_sync(*nodes)
            [now] = json.loads(a.urbd("status", "r0", "--json").out)
            assert [c["protocol-version"] for c in now["connections"]] == [newest]
            app.goes_on()
        app.end()
    a.urbd("secondary", "r0")
    cluster.assert_same()
