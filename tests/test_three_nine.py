"""Three urbd nodes that speak DRBD 9's dialect: all are connected, one is Primary."""

import os
from itertools import permutations

import pytest

from cluster import FAST_DISK, FAST_NET, MIB, PORT, Failed, eventually
from test_dialect9 import room
from test_filesystems import FSCK, sh
from test_three_nodes import MESH, application, same, text, together, towards
from test_two_nodes import Load, verify

SIZE = 32 * MIB


def prepared(cluster, protocol="C", size=SIZE, options="", net=""):
    """Fresh metadata, not started."""
    nodes = [cluster.node(name, size=size) for name in "abc"]
    config = text(nodes, f"{MESH} options {{ {options} }}").replace("protocol C;", f"protocol {protocol}; {net}")
    for n in nodes:
        n.put_res("r0", config)
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=2", "r0")
    return nodes


def connected(*nodes):
    for n, other in permutations(nodes, 2):
        eventually("connected", lambda: towards(n, other)["conn"] == "Connected", 30)


def all_together(*nodes, timeout=30):
    for n, other in permutations(nodes, 2):
        together(n, other, timeout)


def marked(node, other):
    c = next(c for c in node.status()["connections"] if c["name"] == other.name)
    return c["peer_devices"][0]["out-of-sync"]


def equal(*nodes):
    """All copies are the same, and all of them know."""
    all_together(*nodes)
    same(*nodes)
    for n, other in permutations(nodes, 2):
        eventually(f"{n.name} knows that {other.name} is the same", lambda: marked(n, other) == 0, 20)


def started(cluster, **options):
    """All UpToDate, nobody Primary."""
    return begun(prepared(cluster, **options))


def begun(nodes):
    for n in nodes:
        n.start()
    connected(*nodes)
    nodes[0].urbd("new-current-uuid", "--clear-bitmap", "r0/0")
    all_together(*nodes)
    return nodes


@pytest.mark.parametrize("protocol", "ABC")
def test_each_in_turn_writes(cluster, protocol):
    nodes = started(cluster, protocol=protocol)
    journals = []
    for turn, here in enumerate(nodes):
        here.urbd("primary", "r0")
        load = Load(here, seed=turn, first=turn * 8 * MIB // 512, sectors=8 * MIB // 512)
        load.wait_writes(100)
        journals.append(load.interrupt())
        verify(here, *journals)
        for other in nodes:
            if other is not here:
                assert other.status()["role"] == "Secondary"
                with pytest.raises(Failed):
                    other.urbd("primary", "r0")
        here.urbd("secondary", "r0")
        equal(*nodes)


def test_a_fresh_cluster_begins_by_force(cluster):
    """Both others are brought up to date by the one."""
    a, b, c = prepared(cluster)
    with open(a.disk_file(), "r+b") as f:
        f.write(os.urandom(MIB))
    for n in (a, b, c):
        n.start()
    connected(a, b, c)
    a.urbd("primary", "--force", "r0")
    load = Load(a)
    load.wait_writes(200)
    journal = load.interrupt()
    equal(a, b, c)
    verify(a, journal)
    # Of both peers `status` says what they are.
    said = " ".join(a.urbd("status", "r0").out.split())
    assert "b role:Secondary" in said and "c role:Secondary" in said and said.count("peer-disk:UpToDate") == 2, said


def test_a_secondary_dies_and_is_brought_up_to_date(cluster):
    """The other two go on, and it gets no more than what it lacks."""
    a, b, c = started(cluster)
    a.urbd("primary", "r0")
    journals = []
    for turn, (gone, stays) in enumerate([(c, b), (b, c), (c, b)]):
        load = Load(a, seed=turn, first=turn * 8 * MIB // 512, sectors=8 * MIB // 512)
        load.wait_writes(100)
        gone.kill()
        load.wait_writes(200)
        assert towards(a, stays)["conn"] == "Connected"
        gone.start()
        load.wait_writes(200)
        together(a, gone)
        load.wait_writes(100)
        journals.append(load.interrupt())
        verify(a, *journals)
        all_together(a, b, c)
        same(a, b, c)
    # What two Secondaries have marked of each other as they lost the Primary is settled when nobody writes.
    a.urbd("secondary", "r0")
    equal(a, b, c)
    c.urbd("primary", "r0")
    verify(c, *journals)


def test_a_copy_is_given_up_and_copied_again(cluster):
    """Beside two that have it, one of which writes; the Primary gives its own one up only when it is none any more."""
    a, b, c = started(cluster)
    a.urbd("primary", "r0")
    load = Load(a)
    load.wait_writes(100)
    for n in (b, c):
        before = len(n.log())
        n.urbd("invalidate", "r0")
        all_together(a, b, c)
        assert f"resync as target begins: {a.data_size() // 1024} KiB differ" in n.log()[before:], n.log()[before:]
        load.wait_writes(100)
    before = len(b.log())
    a.urbd("invalidate-remote", "r0:b")
    all_together(a, b, c)
    told = b.log()[before:]
    assert "resync as target begins" in told and "link-lost" not in told, told
    refused = a.call("invalidate", "r0")
    assert refused.rc == 11 and "make it Secondary first" in refused.err, refused
    journal = load.interrupt()
    a.urbd("secondary", "r0")
    a.urbd("invalidate", "r0")
    equal(a, b, c)
    a.urbd("primary", "r0")
    verify(a, journal)


def test_a_third_node_is_added_under_a_mounted_file_system(cluster):
    """`adjust` on the Primary lets the new one in, in the process that runs."""
    a, b, c = nodes = [cluster.node(name, size=SIZE) for name in "abc"]
    pair = text([a, b], "connection { host a; host b; }")
    for n in (a, b):
        n.put_res("r0", pair)
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=2", "r0")
        n.start()
    a.urbd("primary", "--force", "r0")
    all_together(a, b)
    with application(a) as app:
        for n in nodes:
            n.put_res("r0", text(nodes, MESH))
        c.urbd("create-md", "--force", "--format=v09", "--max-peers=2", "r0")
        c.start()
        [before] = a.pids()
        a.urbd("adjust", "r0")
        assert before in a.pids() and not a.urbd("-d", "adjust", "r0").out.strip()
        app.goes_on()
        b.urbd("adjust", "r0")
        all_together(*nodes)
        app.goes_on()
        # And one less again.
        for n in (a, b):
            n.put_res("r0", pair)
        b.kill()
        b.start()
        a.urbd("adjust", "r0")
        all_together(a, b)
        assert [x["name"] for x in a.status()["connections"]] == ["b"]
    a.urbd("secondary", "r0")
    same(a, b)


def test_a_node_is_replaced_by_an_empty_one_under_a_mounted_file_system(cluster):
    """Its disk is new: all is copied from the Primary while that writes, and the third node goes on. Then it has the file system."""
    a, b, c = started(cluster)
    a.urbd("primary", "r0")
    with application(a) as app:
        before = app.done
        b.kill()
        app.goes_on()
        with open(b.disk_file(), "r+b") as f:
            f.truncate(0)
            f.truncate(SIZE)
        b.urbd("create-md", "--force", "--format=v09", "--max-peers=2", "r0")
        b.start()
        app.goes_on()
        assert towards(a, c)["conn"] == "Connected"
        all_together(a, b, c)
        app.goes_on()
        assert app.done > before + 16 and f"resync as target begins: {a.data_size() // 1024} KiB differ" in b.log()
    a.urbd("secondary", "r0")
    equal(a, b, c)
    b.urbd("primary", "r0")
    sh(*FSCK["ext4"], b.device())


def test_who_was_brought_up_to_date_by_a_third_node_and_is_primary_is_no_target(cluster):
    """a still has marked for b what b has got from c since."""
    a, b, c = started(cluster)
    a.urbd("primary", "r0")
    load = Load(a, sectors=8 * MIB // 512)
    load.wait_writes(50)
    b.kill()
    load.wait_writes(100)
    journal = load.interrupt()
    a.urbd("secondary", "r0")
    a.kill()
    c.kill()
    for n in (c, b):
        n.start()
    together(c, b)
    b.urbd("primary", "r0")
    a.start()
    all_together(a, b, c)
    verify(b, journal)
    b.urbd("secondary", "r0")
    equal(a, b, c)


def test_after_an_outage_the_role_is_moved_at_once(cluster):
    """What two Secondaries have marked of each other as one of them was cut off is settled while there is a Primary: it is
    no reason to compare again when there is none."""
    a, b, c = started(cluster)
    a.urbd("primary", "r0")
    journals = []
    for turn, gone in enumerate([c, b]):
        load = Load(a, seed=turn, first=turn * 8 * MIB // 512, sectors=8 * MIB // 512)
        load.wait_writes(100)
        gone.cut()
        eventually("the loss is noticed", lambda: all(towards(n, gone)["conn"] != "Connected" for n in (a, b, c) if n is not gone))
        load.wait_writes(200)
        gone.heal()
        all_together(a, b, c)
        load.wait_writes(100)
        journals.append(load.interrupt())
    before = {n: len(n.log()) for n in (a, b, c)}
    a.urbd("secondary", "r0")
    c.urbd("primary", "r0")
    verify(c, *journals)
    c.urbd("secondary", "r0")
    for n in (a, b, c):
        assert "[reconcile" not in n.log()[before[n]:], n.log()[before[n]:]
    equal(a, b, c)
    a.urbd("primary", "r0")
    # It is outdated as it does not reach the Primary: that is not why it has no disk later.
    a.urbd("disconnect", "r0:c")
    eventually("c is outdated", lambda: "[primary-out-of-reach]" in c.log())
    a.urbd("connect", "r0:c")
    all_together(a, b, c)
    c.urbd("detach", "r0")
    said = " ".join(c.urbd("status", "r0").out.split())
    assert "No disk is attached: this node keeps no copy. Next:" in said, said
    a.urbd("secondary", "r0")
    # Without its disk it reads and writes on those of the others.
    c.urbd("primary", "r0")
    verify(c, *journals)
    c.urbd("secondary", "r0")
    a.urbd("primary", "r0")
    refused = b.call("primary", "r0")
    assert refused.rc == 11 and "a is Primary: make it Secondary first" in refused.err, refused


@pytest.mark.parametrize("protocol", "AC")
def test_the_primary_dies_and_another_goes_on(cluster, protocol):
    """The two that are left become the same, and one of them is promoted. Who died comes back as a target."""
    nodes = started(cluster, protocol=protocol)
    journals = []
    for turn in range(3):
        here, there, third = nodes[turn], nodes[(turn + 1) % 3], nodes[(turn + 2) % 3]
        here.urbd("primary", "r0")
        load = Load(here, seed=turn, first=turn * 8 * MIB // 512, sectors=8 * MIB // 512)
        load.wait_writes(300)
        here.kill()
        journal = load.interrupt()
        if protocol == "C":
            journals.append(journal)
        for n in (there, third):
            eventually("it is gone", lambda: towards(n, here)["conn"] != "Connected", 20)
        there.urbd("primary", "r0")
        verify(there, *journals)
        equal(there, third)
        there.write(30 * MIB + turn * 4096, os.urandom(4096))
        there.flush()
        here.start()
        equal(*nodes)
        verify(there, *journals)
        there.urbd("secondary", "r0")


def test_two_primaries_among_three_are_refused(cluster):
    """A mesh of three connects two of them then, and the third one would be promoted on its own."""
    nodes = a, b, c = started(cluster)
    before = a.urbd("show", "r0").out
    good = text(nodes, MESH)
    two = good.replace("net { ", "net { allow-two-primaries yes; ", 1)
    assert two != good

    def refused(r):
        for part in ("r0", "`allow-two-primaries`", "2 peers", "one of them at a time", "set it to `no`"):
            assert r.rc == 10 and part in r.err, r

    for n in nodes:
        n.put_res("r0", two)
        for call in (["adjust", "r0"], ["-d", "adjust", "r0"], ["adjust", "--skip-disk", "r0"], ["-d", "up", "r0"]):
            refused(n.call(*call))
        refused(n.call("net-options", "--allow-two-primaries=yes", "r0"))
    assert a.urbd("show", "r0").out == before
    equal(*nodes)
    a.stop()
    refused(a.call("up", "r0"))
    # A service starts it all the same, as applications may wait; nobody is promoted.
    a.start()
    r = a.call("primary", "r0")
    assert r.rc == 11 and "allow-two-primaries" in r.err and "urbd adjust r0" in r.err, r
    for n in nodes:
        n.put_res("r0", good)
    a.urbd("adjust", "r0")
    equal(*nodes)
    a.urbd("primary", "r0")


def test_one_leaves_and_comes_back(cluster):
    """Who leaves a Primary that others go on with is outdated."""
    a, b, c = started(cluster)
    a.urbd("primary", "r0")
    a.write(0, os.urandom(MIB))
    a.flush()
    b.urbd("disconnect", "r0:a")
    eventually("b is outdated", lambda: b.state()["disk"] == "Outdated", 20)
    a.write(MIB, os.urandom(MIB))
    a.flush()
    same(a, c)
    with pytest.raises(Failed):
        b.urbd("primary", "r0")
    b.urbd("connect", "r0:a")
    equal(a, b, c)
    assert "resync done: 1024 KiB" in b.log(), b.log()[-3000:]


def test_a_disk_is_taken_out_and_put_back(cluster):
    a, b, c = started(cluster)
    a.urbd("primary", "r0")
    a.write(0, os.urandom(MIB))
    b.urbd("detach", "r0/0")
    a.write(4 * MIB, os.urandom(2 * MIB))
    a.flush()
    same(a, c)
    b.urbd("attach", "r0/0")
    equal(a, b, c)


def test_all_die_and_come_back(cluster):
    """Nobody knows what the others have; those that come back agree, whoever comes first."""
    nodes = started(cluster)
    a, b, c = nodes
    a.urbd("primary", "r0")
    load = Load(a)
    load.wait_writes(300)
    for n in (b, a, c):
        n.kill()
    journal = load.interrupt()
    for n in (c, b, a):
        n.start()
    equal(*nodes)
    b.urbd("primary", "r0")
    verify(b, journal)
    # None brings another one up to date by what it has just got itself.
    again = [n.log().count("[reconcile]") for n in nodes]
    assert sum(again) <= 3, again


def test_a_dead_primary_comes_back_with_an_empty_disk(cluster):
    """`make demo NODES=3`: another one has taken over, and writes while the empty disk is filled."""
    a, b, c = started(cluster)
    a.urbd("primary", "r0")
    load = Load(a, sectors=8 * MIB // 512)
    load.wait_writes(200)
    a.kill()
    journals = [load.interrupt()]
    eventually("b takes over", lambda: b.call("primary", "r0").rc == 0, 20)
    load = Load(b, seed=1, first=16 * MIB // 512, sectors=8 * MIB // 512)
    load.wait_writes(200)
    os.truncate(a.disk_file(), 0)
    os.truncate(a.disk_file(), SIZE)
    a.urbd("create-md", "--force", "--format=v09", "--max-peers=2", "r0")
    a.start()
    all_together(a, b, c)
    load.wait_writes(200)
    journals.append(load.interrupt())
    verify(b, *journals)
    equal(a, b, c)


@pytest.mark.parametrize("serves", [True, False])
def test_a_device_grows(cluster, serves):
    """Each disk gets room; then one is asked, beside I/O of another one or of nobody."""
    a, b, c = nodes = started(cluster)
    before = a.data_size()
    for n in nodes:
        room(n, 8 * MIB)
        all_together(*nodes)
        assert n.data_size() == before
    journals = []
    if serves:
        a.urbd("primary", "r0")
        load = Load(a)
        load.wait_writes(100)
    b.urbd("resize", "r0")
    for n in nodes:
        eventually("it has grown", lambda n=n: n.data_size() > before + 7 * MIB)
    if serves:
        load.wait_writes(100)
        journals.append(load.interrupt())
        a.write(a.data_size() - 4096, os.urandom(4096))
        a.flush()
        verify(a, *journals)
        all_together(*nodes)
        a.urbd("secondary", "r0")
    equal(*nodes)
    for n in nodes:
        assert "[protocol-error]" not in n.log(), n.log()


def test_who_was_away_follows_a_device_that_has_grown(cluster):
    a, b, c = nodes = started(cluster)
    before = a.data_size()
    for n in nodes:
        room(n, 8 * MIB)
        all_together(*nodes)
    c.kill()
    for n in (a, b):
        eventually("it is gone", lambda n=n: towards(n, c)["conn"] != "Connected", 20)
    r = a.call("resize", "r0")
    assert r.rc and "what the disk holds of c" in r.err, r
    a.urbd("resize", "--assume-peer-has-space", "r0")
    equal_two(a, b)
    assert b.data_size() > before + 7 * MIB
    c.start()
    equal(*nodes)
    assert c.data_size() == a.data_size()


def equal_two(a, b):
    together(a, b)
    together(b, a)
    same(a, b)


def test_one_of_two_volumes_is_not_attached_by_itself(cluster):
    """No node shakes hands about a volume without a disk: with one of two volumes attached it would be connected to nobody."""
    nodes = [cluster.node(name, size=SIZE, volumes=2) for name in "abc"]
    hosts = "".join(f"on {n.name} {{ node-id {i}; address ipv4 {n.ip}:{PORT}; "
                    + "".join(f"volume {v} {{ device /dev/drbd{v} minor {v}; disk {n.disk_path(v)}; meta-disk internal; }} "
                              for v in range(2)) + "}\n" for i, n in enumerate(nodes))
    for n in nodes:
        n.put_res("r0", f"resource r0 {{ net {{ protocol C; {FAST_NET} }} disk {{ {FAST_DISK} }}\n{hosts} {MESH} }}\n")
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=2", "r0")
        n.start()
    connected(*nodes)
    a, b, c = nodes
    for v in range(2):
        a.urbd("new-current-uuid", "--clear-bitmap", f"r0/{v}")
    all_together(*nodes)
    b.urbd("detach", "r0/1")
    b.urbd("detach", "r0")
    refused = b.call("attach", "r0/1")
    assert refused.rc == 10 and "urbd attach r0" in refused.err, refused
    b.urbd("attach", "r0")
    all_together(*nodes)
    b.urbd("detach", "r0/1")
    b.urbd("attach", "r0/1")
    all_together(*nodes)
