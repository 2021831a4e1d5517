"""Nodes that are not to have a disk, beside nodes that have one: they vote, and of two one reads and writes on the other.
Among several peers: `test_client_writes.py`."""

import pytest

from cluster import FAST_DISK, MIB, eventually
from sentences import cut_off
from test_handover import Application, kill, restart
from test_quorum import frozen, gains, loses, quorum
from test_three_nine import SIZE, equal_two
from test_three_nodes import MESH, text, towards
from test_two_nodes import Load, verify

QUORUM = "quorum majority; on-no-quorum suspend-io;"


def lab(cluster, options="", without="c", names="abc", disk=FAST_DISK, slots=("--max-peers=2",)):
    """All are connected, the disks are UpToDate, nobody is Primary."""
    nodes = [cluster.node(name, size=SIZE) for name in names]
    config = text(nodes, f"{MESH.replace('a b c', ' '.join(names))} options {{ {options} }}", disk=disk)
    for n in nodes:
        if n.name in without:
            config = config.replace(f"disk {n.disk_path()}; meta-disk internal;", "disk none;")
    for n in nodes:
        n.put_res("r0", config)
        if n.name not in without:
            n.urbd("create-md", "--force", "--format=v09", *slots, "r0")
        n.start()
    for n in nodes:
        for other in nodes:
            if other is not n:
                eventually(f"{n.name} is connected with {other.name}", lambda: towards(n, other)["conn"] == "Connected", 30)
    nodes[0].urbd("new-current-uuid", "--clear-bitmap", "r0/0")
    for n in nodes:
        for other in nodes:
            if other is not n and other.name not in without:
                eventually(f"{n.name} sees {other.name}'s disk", lambda: peer_disk(n, other) == "UpToDate", 30)
    return nodes


def peer_disk(node, other):
    c = next(c for c in node.status()["connections"] if c["name"] == other.name)
    return c["peer_devices"][0]["peer-disk-state"]


def test_it_reads_and_writes_on_the_other_nodes_disk(cluster):
    a, c = lab(cluster, names="ac")
    c.urbd("primary", "r0")
    assert c.state()["disk"] == "Diskless"
    load = Load(c, seconds=2, flush=True)
    load.end(0)
    verify(c, load.journal)
    c.urbd("secondary", "r0")
    a.urbd("primary", "r0")
    verify(a, load.journal)


def test_the_disk_comes_back(cluster):
    """Without a disk within reach I/O waits, and goes on where it was."""
    a, c = lab(cluster, options="on-no-data-accessible suspend-io;", names="ac")
    c.urbd("primary", "r0")
    load = Load(c, sectors=8 * MIB // 512)
    for _ in range(3):
        load.wait_writes(100)
        a.kill()
        eventually("it waits", lambda: c.status()["suspended-no-data"])
        a.start()
        load.wait_writes(100)
        cut_off(a, (a, c))
        eventually("it waits", lambda: c.status()["suspended-no-data"])
        a.heal()
    load.wait_writes(100)
    journal = load.interrupt()
    verify(c, journal)
    c.urbd("secondary", "r0")
    a.urbd("primary", "r0")
    verify(a, journal)


@pytest.mark.parametrize("names", ["ac", "abc"])
@pytest.mark.parametrize("way", [kill, restart])
def test_its_process_is_replaced_in_use(cluster, way, names):
    *disks, c = lab(cluster, names=names)
    c.urbd("primary", "r0")
    app = Application(c.device(), 0)
    for _ in range(3):
        app.goes_on()
        way(c)
        app.goes_on()
    app.end()
    c.urbd("secondary", "r0")
    if len(disks) == 2:
        equal_two(*disks)


@pytest.mark.parametrize("slots", [("--max-peers=2",), ()])
def test_it_decides_a_draw(cluster, slots):
    """Two disks and a node that only votes: who loses the other disk goes on, who loses both is frozen, and no two go on at
    once. Also if the metadata have no bitmap for the node without a disk."""
    a, b, c = lab(cluster, options=QUORUM, slots=slots)
    a.urbd("primary", "r0")
    for n in (a, b, c):
        gains(n)
    load = Load(a, sectors=8 * MIB // 512)
    load.wait_writes(100)
    b.kill()
    load.wait_writes(100)
    assert quorum(a) and "1 of 2" not in a.urbd("why", "r0").out
    b.start()
    equal_after(a, b, load)
    cut_off(a, (a, b, c))
    loses(a)
    assert frozen(a)
    gains(b)
    b.urbd("primary", "r0")
    other = Load(b, first=8 * MIB // 512, sectors=8 * MIB // 512)
    other.wait_writes(100)
    journals = load.interrupt(), other.interrupt()
    verify(b, *journals)
    a.heal()
    a.kill()
    a.start()
    equal_two(a, b)
    verify(b, *journals)


def equal_after(a, b, load):
    load.wait_writes(50)
    eventually("it is good again", lambda: peer_disk(a, b) == "UpToDate", 60)


def test_two_who_do_not_see_each_other_and_a_node_between(cluster):
    """The link of the two disks breaks: the Primary goes on with the third node's vote, the Secondary is Outdated."""
    a, b, c = lab(cluster, options=QUORUM)
    a.urbd("primary", "r0")
    load = Load(a, sectors=8 * MIB // 512)
    load.wait_writes(100)
    a.lose_packets_to(b)
    b.lose_packets_to(a)
    load.wait_writes(200)
    eventually("the Secondary is Outdated", lambda: b.state()["disk"] == "Outdated", 20)
    assert all(quorum(n) for n in (a, b, c))
    assert b.call("primary", "r0").rc != 0
    for n in (a, b):
        n.find_packets()
    equal_after(a, b, load)
    journal = load.interrupt()
    a.urbd("secondary", "r0")
    equal_two(a, b)
    b.urbd("primary", "r0")
    verify(b, journal)


def test_what_is_said_of_it(cluster):
    a, b, c = lab(cluster)
    for n in (a, b):
        status = n.urbd("status", "--verbose", "r0").out
        assert "peer-disk:Diskless peer-client:yes" in status, status
        assert "no disk attached" not in n.urbd("why", "r0").out
    assert "client:yes" in c.urbd("status", "--verbose", "r0").out
    assert "attach" not in c.urbd("why", "r0").out
    a.urbd("primary", "r0")
    load = Load(a, seconds=1)
    load.end(0)
    c.kill()
    verify(a, load.journal)
    c.start()
    eventually("it is back", lambda: towards(a, c)["conn"] == "Connected", 30)
    a.urbd("secondary", "r0")
    equal_two(a, b)


def test_the_last_copy_of_a_client_is_not_given_up(cluster):
    a, c = lab(cluster, names="ac")
    c.urbd("primary", "r0")
    for n, command in ((c, ["disconnect", "r0"]), (a, ["disconnect", "r0"]), (a, ["detach", "r0"])):
        r = n.call(*command)
        assert r.rc != 0 and towards(c, a)["conn"] == "Connected", (n.name, command, r)
