"""Three urbd nodes that have each other for peers: 8.4's protocol lets one of them be connected at a time. The one that is
absent gets what it lacks when it comes."""

import contextlib
import os
import re

import pytest

from cluster import MIB, PORT, FAST_DISK, FAST_NET, eventually
from test_filesystems import FSCK, MKFS, mounted, sh
from test_handover import Application
from test_two_nodes import Load, verify

SIZE = 32 * MIB
OLD = "urbd { protocol-version-max 101; }"
MESH = "connection-mesh { hosts a b c; }"
PAIRS = "connection { host a; host b; } connection { host a; host c; } connection { host b; host c; }"


def text(nodes, connections, net=FAST_NET, disk=FAST_DISK):
    hosts = "".join(f"  on {n.name} {{ node-id {i}; address ipv4 {n.ip}:{PORT}; volume 0 {{ device /dev/drbd0 minor 0; "
                    f"disk {n.disk_path()}; meta-disk internal; }} }}\n" for i, n in enumerate(nodes))
    return f"resource r0 {{\n  net {{ protocol C; {net} }}\n  disk {{ {disk} }}\n{hosts}  {connections}\n}}\n"


@pytest.fixture(params=["mesh", "pairs"])
def three(cluster, request):
    """Not started; a's first peer is b."""
    nodes = [cluster.node(name, size=SIZE) for name in "abc"]
    config = text(nodes, f"{MESH if request.param == 'mesh' else PAIRS} {OLD}")
    for n in nodes:
        n.put_res("r0", config)
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=2", "r0")
    return cluster


def first_two(three):
    """a is Primary, b has the same; c is not started. All three."""
    a, b, c = three.nodes
    a.start()
    b.start()
    a.urbd("primary", "--force", "r0")
    together(a, b)
    return a, b, c


def towards(node, other):
    """The states of the connection and of the peer's disk."""
    c = next(c for c in node.status()["connections"] if c["name"] == other.name)
    p = c["peer_devices"][0]
    return {"conn": c["connection-state"], "repl": p["replication-state"], "peer_disk": p["peer-disk-state"]}


def together(node, other, timeout=20):
    def there():
        s = towards(node, other)
        return s["conn"] == "Connected" and s["repl"] == "Established" and s["peer_disk"] == "UpToDate"

    eventually(f"{node.name} and {other.name} are the same", there, timeout)


def refused(node, other):
    eventually(f"{node.name} refuses {other.name}", lambda: towards(node, other)["conn"] == "StandAlone", 30)


def same(*nodes):
    nodes[0].cluster.assert_same(nodes=nodes)


@contextlib.contextmanager
def application(node):
    """A file system on the node's device, and one who writes there, and checks what it reads; both are well at the end."""
    sh(*MKFS["ext4"], node.device())
    with mounted(node, node.device(), "ext4", node.run) as where:
        probe = f"/proc/{node.holder}/root{where}/probe"
        with open(probe, "wb") as f:
            f.write(bytes(MIB))
        app = Application(probe, 0)
        yield app
        app.goes_on()
        app.end()
    sh(*FSCK["ext4"], node.device())


def exchange(node, gone, comes):
    """`comes` is connected to the node in the place of `gone`, and becomes the same. Returns how much was copied, in KiB."""
    node.urbd("disconnect", f"r0:{gone.name}")
    done = len(copied(node))
    node.urbd("connect", f"r0:{comes.name}")
    together(node, comes)
    return sum(copied(node)[done:])


def copied(node):
    """What each resync of a node was about."""
    return [int(kib) for kib in re.findall(r"resync done: (\d+) KiB", node.log())]


def test_the_third_waits_and_gets_what_it_lacks(three):
    a, b, c = first_two(three)
    # Each writer has a place of its own: what an interrupted write leaves is the content from before.
    load = Load(a, sectors=8 * MIB // 512)
    load.wait_writes(100)
    before = a.log()
    c.start()
    refused(a, c)
    refused(b, c)  # else these two would find each other as soon as a has left b
    # By name, with what to do; and the first pair goes on.
    assert "[not-the-only-peer]" in a.log() and "c is refused beside b" in a.log(), a.log()[-2000:]
    for verb in ("status", "why"):
        said = " ".join(a.urbd(verb, "r0").out.split())
        assert "c is refused beside b, which is connected" in said, said
        assert "urbd disconnect r0:b; urbd connect r0:c" in said, said
    load.wait_writes(200)
    assert towards(a, b)["conn"] == "Connected"
    since = a.log()[len(before):]
    assert "new-generation" not in since and "link-lost" not in since, since
    first = load.interrupt()
    verify(a, first)
    same(a, b)

    # The third one is new: it gets everything.
    exchange(a, b, c)
    assert towards(a, b)["conn"] == "StandAlone"
    same(a, c)

    # Now b is absent. It gets what was written meanwhile, and no more; then c does.
    block = os.urandom(MIB)
    for turn, (here, absent) in enumerate([(c, b), (b, c), (c, b)]):
        a.write((8 + turn) * MIB, block)
        a.flush()
        same(a, here)
        assert exchange(a, here, absent) == MIB // 1024, f"turn {turn}"
    same(a, b, c)
    assert a.read(8 * MIB, 3 * MIB) == 3 * block
    more = Load(a, seed=2, first=12 * MIB // 512)
    more.wait_writes(200)
    second = more.interrupt()
    exchange(a, b, c)
    same(a, c)
    a.urbd("secondary", "r0")
    c.urbd("primary", "r0")
    verify(c, first, second)


def test_a_secondary_knows_what_the_absent_one_lacks(three):
    """All three have one generation; a and b write in it without c. Then a is lost."""
    a, b, c = first_two(three)
    a.urbd("secondary", "r0")
    c.start()
    refused(a, c)
    refused(b, c)  # else these two would find each other as soon as a has left b
    exchange(a, b, c)
    assert exchange(a, c, b) == 0
    a.urbd("primary", "r0")
    load = Load(a)
    load.wait_writes(300)
    journal = load.interrupt()
    a.kill()
    b.wait(peer_role="Unknown")
    b.urbd("connect", "r0:c")
    together(b, c)
    same(b, c)
    c.urbd("primary", "r0")
    verify(c, journal)


def test_two_meet_without_the_one_that_both_await_first(three):
    """They have one address each, for both of their peers, and the first peer of both is dead."""
    _, b, c = three.nodes
    b.start()
    b.urbd("primary", "--force", "r0")
    c.start()
    together(b, c)
    same(b, c)


def test_the_only_peer_is_exchanged_under_a_mounted_file_system(cluster):
    """`adjust` on the Primary; the new peer speaks 8.4's dialect, and gets everything."""
    a, b, c = nodes = [cluster.node(name, size=SIZE) for name in "abc"]
    def both(one, other):
        return f"connection {{ host {one}; host {other}; }} {OLD}"

    for n in nodes:
        n.put_res("r0", text([a, b], both("a", "b")) if n is not c else text(nodes, both("a", "c")))
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=2", "r0")
        n.start()
    a.urbd("primary", "--force", "r0")
    together(a, b)
    with application(a):
        a.put_res("r0", text(nodes, both("a", "c")))
        a.urbd("adjust", "r0")
        together(a, c)
        assert [x["name"] for x in a.status()["connections"]] == ["c"]
    a.urbd("secondary", "r0")
    same(a, c)
