"""Three urbd nodes that have each other for peers: 8.4's protocol lets one of them be connected at a time. The one that is
absent gets what it lacks when it comes."""

import os

import pytest

from cluster import MIB, PORT, FAST_DISK, FAST_NET, eventually, md5
from test_two_nodes import Load, verify

SIZE = 32 * MIB
MESH = "connection-mesh { hosts a b c; }"
PAIRS = "connection { host a; host b; } connection { host a; host c; } connection { host b; host c; }"


def text(nodes, connections):
    hosts = "".join(f"  on {n.name} {{ node-id {i}; address ipv4 {n.ip}:{PORT}; volume 0 {{ device /dev/drbd0 minor 0; "
                    f"disk {n.disk_path()}; meta-disk internal; }} }}\n" for i, n in enumerate(nodes))
    return f"resource r0 {{\n  net {{ protocol C; {FAST_NET} }}\n  disk {{ {FAST_DISK} }}\n{hosts}  {connections}\n}}\n"


@pytest.fixture(params=["mesh", "pairs"])
def three(cluster, request):
    """Not started; a's first peer is b."""
    nodes = [cluster.node(name, size=SIZE) for name in "abc"]
    config = text(nodes, MESH if request.param == "mesh" else PAIRS)
    for n in nodes:
        n.put_res("r0", config)
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=2", "r0")
    return cluster


def towards(node, other):
    """The state of the connection, what is replicated, and the KiB that were sent and differ."""
    c = next(c for c in node.status()["connections"] if c["name"] == other.name)
    p = c["peer_devices"][0]
    return {"conn": c["connection-state"], "repl": p["replication-state"], "peer_disk": p["peer-disk-state"],
            "oos": p.get("out-of-sync", 0), "sent": p.get("sent", 0)}


def together(node, other, timeout=60):
    def there():
        s = towards(node, other)
        return s["conn"] == "Connected" and s["repl"] == "Established" and s["peer_disk"] == "UpToDate"

    eventually(f"{node.name} and {other.name} are the same", there, timeout)


def refused(node, other):
    eventually(f"{node.name} refuses {other.name}", lambda: towards(node, other)["conn"] == "StandAlone", 30)


def same(*nodes):
    size = min(n.data_size() for n in nodes)
    eventually("identical backing files", lambda: len({md5(n.disk_file(), size) for n in nodes}) == 1, 15)


def exchange(node, gone, comes):
    """`comes` is connected to the node in the place of `gone`, and becomes the same."""
    node.urbd("disconnect", f"r0:{gone.name}")
    node.urbd("connect", f"r0:{comes.name}")
    together(node, comes)


@pytest.mark.limit(240)
def test_the_third_waits_and_gets_what_it_lacks(three):
    a, b, c = three.nodes
    a.start()
    b.start()
    a.urbd("primary", "--force", "r0")
    together(a, b)
    first = Load(a, seed=1, seconds=40)
    first.wait_writes(100)
    before = towards(a, b)
    c.start()
    refused(a, c)
    # By name, with what to do; and the first pair goes on.
    assert "[not-the-only-peer]" in a.log() and "c is refused beside b" in a.log(), a.log()[-2000:]
    for verb in ("status", "why"):
        said = " ".join(a.urbd(verb, "r0").out.split())
        assert "c is refused beside b, which is connected" in said, said
        if verb == "why":
            assert "urbd disconnect r0:b; urbd connect r0:c" in said, said
    first.wait_writes(200)
    assert towards(a, b)["conn"] == "Connected" and towards(a, b)["sent"] > before["sent"]
    assert "link-lost" not in a.log().split("[not-the-only-peer]")[0], a.log()[-3000:]
    journal = first.interrupt()
    same(a, b)

    # The third one is new: it gets everything, once.
    exchange(a, b, c)
    assert towards(a, b)["conn"] == "StandAlone"
    same(a, c)

    # Now b is absent. It gets what is written from now on, and no more.
    block = os.urandom(MIB)
    a.write(8 * MIB, block)
    a.flush()
    same(a, c)
    eventually("what b lacks is known", lambda: towards(a, b)["oos"] >= MIB // 1024, 10)
    sent = towards(a, b)["sent"]
    exchange(a, c, b)
    copied = towards(a, b)["sent"] - sent
    assert MIB // 1024 <= copied <= 2 * MIB // 1024, f"{copied} KiB were copied"
    same(a, b)

    # c lacks this, and a is lost: b, which was Secondary then, knows what it is.
    a.write(20 * MIB, block)
    a.flush()
    a.urbd("secondary", "r0")
    a.stop()
    b.urbd("connect", "r0:c")
    together(b, c)
    same(b, c)
    b.urbd("primary", "r0")
    assert b.read(8 * MIB, MIB) == block and b.read(20 * MIB, MIB) == block
    verify(b, journal)
