"""Three urbd nodes: what `status` says of each fault, and that the commands which it names are the right ones."""

import os
import re

from cluster import FAST_NET, PORT, TookTooLong, eventually
from test_three_nine import all_together, connected, equal, equal_two, prepared, started
from test_three_nodes import MESH, text, towards

MIB = 1 << 20


def said(node, *words, verb="status", timeout=30):
    """Waits until all of the words are said; the whole of it in one line."""
    def there():
        out = " ".join(node.urbd(verb, "r0").out.split())
        return out if all(w in out for w in words) else None
    return eventually(f"{node.name}: {verb} says {words}", there, timeout)


def nothing(*nodes):
    for n in nodes:
        said_last = []

        def silent():
            said_last[:] = [n.urbd("status", "r0").out]
            return "!" not in said_last[0]
        try:
            eventually(f"{n.name} has nothing to say", silent, 30)
        except TookTooLong as e:
            raise TookTooLong(f"{e}; it says:\n{said_last[0]}") from None


def test_new_disks(cluster):
    a, b, c = prepared(cluster)
    a.start()
    said(a, "This disk is new: it has no data yet. Next: to copy another node's data, on b or c: urbd adjust r0; "
         "if all disks are new, on one node: urbd primary --force r0")
    for n in (b, c):
        n.start()
    connected(a, b, c)
    said(a, "No node in reach has good data", "urbd primary --force r0")
    a.urbd("primary", "--force", "r0")
    all_together(a, b, c)
    nothing(a, b, c)


def test_one_is_cut_off_and_goes_its_own_way(cluster):
    """Whoever is cut off is told to make sure that no other node is Primary. Who does not gets a split brain among three, and
    the way out of it that `status` names is the right one."""
    a, b, c = started(cluster)
    a.urbd("primary", "r0")
    c.cut()
    said(a, "c is not connected: no answer to a ping within ping-timeout. Next: ping", "; on c: urbd status r0")
    said(c, "a is not connected", "b is not connected")
    said(c, "if surely none of a or b is Primary: urbd primary r0", verb="why")
    a.write(0, os.urandom(64 << 10))
    c.urbd("primary", "--force", "r0")
    c.write(0, os.urandom(8 << 10))
    c.urbd("secondary", "r0")
    c.heal()
    said(c, "r0:a: Split brain: since the nodes parted, this node has changed 8 KiB of its data, the peer 64 KiB. Next:",
         "This node's: urbd secondary r0; urbd connect --discard-my-data r0; on each other node: urbd connect r0.",
         "r0:b: Split brain", "Next: the choice is the same as for r0:a")
    way = "Those of c: on c, urbd secondary r0; urbd connect --discard-my-data r0; then here and on b: urbd connect r0."
    said(a, "r0:c: Split brain", way)
    said(b, "r0:c: Split brain", way.replace("on b", "on a"))
    c.urbd("secondary", "r0")
    c.urbd("connect", "--discard-my-data", "r0")
    for n in (a, b):
        n.urbd("connect", "r0")
    equal(a, b, c)
    nothing(a, b, c)


def parted(cluster):
    """b and c have the same data, and a has other data, on which it is Primary."""
    a, b, c = started(cluster)
    b.urbd("primary", "r0")
    a.cut()
    said(a, "b is not connected", "c is not connected")
    for n in (b, c):
        said(n, "a is not connected")
    b.write(0, os.urandom(64 << 10))
    b.flush()
    a.urbd("primary", "--force", "r0")
    a.write(0, os.urandom(8 << 10))
    a.heal()
    for n in (b, c):
        said(n, "Split brain")
    b.urbd("secondary", "r0")
    return a, b, c


def test_two_that_lose_discard_towards_the_third_only(cluster):
    """`connect --discard-my-data r0` names no peer: the other node with the same data is not told."""
    a, b, c = parted(cluster)
    for n in (b, c):
        n.urbd("connect", "--discard-my-data", "r0")
    a.urbd("connect", "r0")
    equal(a, b, c)
    nothing(a, b, c)


def test_who_left_all_is_asked_towards_whom_it_discards(cluster):
    a, b, c = parted(cluster)
    for n in (b, c):
        n.urbd("disconnect", "r0")
    for n, other in ((b, c), (c, b)):
        refused = n.call("connect", "--discard-my-data", "r0")
        assert refused.rc == 10 and f"several peers are not connected (a, {other.name})" in refused.err, refused
        assert "towards each node whose data is kept: urbd connect --discard-my-data r0:{" in refused.err, refused
        n.urbd("connect", "--discard-my-data", "r0:a")
        n.urbd("connect", f"r0:{other.name}")
    a.urbd("connect", "r0")
    equal(a, b, c)
    nothing(a, b, c)


def test_a_primary_without_its_disk_and_a_node_that_has_left(cluster):
    a, b, c = started(cluster)
    a.urbd("primary", "r0")
    b.urbd("disconnect", "r0:a")
    a.write(0, os.urandom(MIB))
    said(b, "This disk has old data", "a node is Primary that this one does not reach", "Next: urbd connect r0:a")
    said(c, "The disk of b has old data, and is not being copied. Next: on b: urbd status r0")
    refused = b.call("primary", "r0")
    assert refused.rc == 17 and "Need access to UpToDate data" in refused.err, refused
    b.urbd("connect", "r0:a")
    equal(a, b, c)
    # Its reads and writes are done by the peers.
    with a.nbd() as h:
        a.urbd("detach", "r0")
        data = os.urandom(4096)
        h.write(0, data)
        assert h.read(0, 4096) == data
    a.urbd("secondary", "r0")
    a.urbd("attach", "r0")
    equal(a, b, c)
    a.urbd("primary", "r0")
    # It takes its disk into use only as Secondary, and that is what is said.
    a.urbd("detach", "r0")
    said(a, "No disk is attached: reads and writes are done by the peers.",
         "or stop them here, then: urbd secondary r0; urbd attach r0")
    said(b, "a has no disk attached, and keeps no copy. Next: on a: urbd attach r0")
    refused = a.call("attach", "r0")
    assert refused.rc == 11 and "make it Secondary first" in refused.err, refused
    a.urbd("secondary", "r0")
    a.urbd("attach", "r0")
    equal(a, b, c)
    nothing(a, b, c)


def test_what_a_verify_finds(cluster):
    """The command that replaces what differs depends on who is Primary, and copies no more than that."""
    a, b, c = prepared(cluster)
    for n in (a, b, c):
        with open(os.path.join(n.dir, "res.d", "r0.res")) as f:
            text = f.read()
        n.put_res("r0", text.replace("protocol C;", "protocol C; verify-alg crc32c;"))
        n.start()
    connected(a, b, c)
    a.urbd("new-current-uuid", "--clear-bitmap", "r0/0")
    all_together(a, b, c)
    a.urbd("primary", "r0")
    with open(c.disk_file(), "r+b") as f:
        f.seek(8 * MIB)
        f.write(os.urandom(8192))
    found = a.call("verify", "--wait", "r0:c")
    assert (found.rc, found.out) == (4, "r0:c/0: 8 KiB differ\n"), found
    refused = b.call("verify", "r0:c")
    assert refused.rc == 11 and "(-17) a is Primary, and not one of the two" in refused.err, refused
    assert "urbd verify r0:a" in refused.err and "protocol" not in refused.err, refused
    refused = b.call("invalidate-remote", "r0:c")
    assert refused.rc == 11 and "(-17) a is Primary, and not one of the two" in refused.err, refused
    refused = a.call("invalidate", "r0")
    assert refused.rc == 11 and "(-17) among several peers a Primary is not brought up to date" in refused.err, refused
    assert "protocol" not in refused.err, refused
    command = "urbd invalidate --reset-bitmap=no r0/0"
    said(a, f"8 KiB differ between this node and c. Next: on c, whose copy of them is replaced: {command}")
    said(c, f"8 KiB differ between this node and a. Next: {command} (this node's copy of them is replaced)")
    assert "online verify" not in b.log(), "only who was named is compared with"
    assert towards(a, b)["conn"] == "Connected"
    eventually("it is replaced", lambda: c.call(*command.split()[1:]).rc == 0, 20)
    equal(a, b, c)
    assert re.search(r"resync done: 8 KiB", c.log()), c.log()
    nothing(a, b, c)
    # Without a name it is compared with all.
    with open(b.disk_file(), "r+b") as f:
        f.seek(12 * MIB)
        f.write(os.urandom(4096))
    found = a.call("verify", "--wait", "r0")
    assert (found.rc, found.out) == (4, "r0:b/0: 4 KiB differ\nr0:c/0: 0 KiB differ\n"), found
    # Who is compared with hears last that it is over.
    eventually("they hear of the end", lambda: [n.log().count("online verify done") for n in (b, c)] == [1, 2])
    # Beside a Primary a Secondary is compared with that one.
    found = b.call("verify", "--wait", "r0")
    assert found.rc == 4 and found.out.startswith("r0:a/0: 4 KiB differ\n"), found
    assert [n.log().count("online verify done") for n in (b, c)] == [2, 2]


def test_a_node_in_the_place_of_another_one(cluster):
    """Metadata keep an account of so many nodes, by their ids: another id beside them is refused before anything is taken over,
    as the Primary would start without its disk. The id of who has left is free."""
    a, b, c = started(cluster)
    d = cluster.node("d", size=32 * MIB)

    def configure(node_id):
        hosts = "".join(f"  on {n.name} {{ node-id {i}; address {n.ip}:{PORT}; device minor 0; disk {n.disk_path()}; "
                        "meta-disk internal; }\n" for n, i in ((a, 0), (b, 1), (d, node_id)))
        for n in (a, b, d):
            n.put_res("r0", f"resource r0 {{\n  net {{ {FAST_NET} }}\n{hosts}  connection-mesh {{ hosts a b d; }}\n}}\n")

    a.urbd("primary", "r0")
    a.write(0, os.urandom(MIB))
    c.kill()
    configure(3)
    for n in (a, b):
        for verb in ("adjust", "restart"):
            refused = n.call(verb, "r0")
            assert refused.rc == 10 and "r0/0: its metadata has room for 2 peers, and none for a new one" in refused.err, refused
            assert "nothing was changed; give the new node the node-id of the one that has left: 2" in refused.err, refused
        assert towards(n, c)["conn"] == "Connecting", "it runs on with what it had"
    a.write(MIB, os.urandom(MIB))
    configure(2)
    d.create_md()
    d.start()
    for n in (b, a):
        n.urbd("adjust", "r0")
    equal(a, b, d)
    nothing(a, b, d)


def test_a_node_id_does_not_change_in_passing(cluster):
    """The metadata and the other nodes know a node by it."""
    a, b, c = started(cluster)
    config = text([a, b, c], MESH)
    b.put_res("r0", config.replace("on b { node-id 1", "on b { node-id 5"))
    refused = b.call("adjust", "r0")
    assert refused.rc == 10 and "the node-id of this host changed to 5" in refused.err, refused
    assert "nothing was changed" in refused.err, refused
    for changed in (config.replace("node-id 1", "node-id 5"),
                    config.replace("node-id 1", "node-id X").replace("node-id 2", "node-id 1").replace("X", "2")):
        b.put_res("r0", changed)
        refused = b.call("restart", "r0")
        assert refused.rc == 10 and "r0/0: its metadata is that of node-id 1, not" in refused.err, refused
    refused = b.call("adjust", "r0")
    assert refused.rc == 10 and "r0/0: its metadata is that of node-id 1, not 2" in refused.err, refused
    all_together(a, b, c)


def test_a_node_with_other_volumes_keeps_nobody_from_anything(cluster):
    """By mistake: it has none that the others have."""
    a, b, c = prepared(cluster)
    c.put_res("r0", text([a, b, c], MESH).replace("volume 0", "volume 1"))
    c.urbd("create-md", "--force", "--format=v09", "--max-peers=2", "r0")
    for n in (a, b, c):
        n.start()
    for n, other in ((a, b), (b, a)):
        eventually("connected", lambda n=n, other=other: towards(n, other)["conn"] == "Connected", 30)
    assert a.call("primary", "--force", "r0", timeout=20).rc == 0
    a.write(0, os.urandom(MIB))
    equal_two(a, b)
