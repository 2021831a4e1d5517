"""Two urbd nodes that speak DRBD 9's dialect with each other (`protocol-version-max 124`)."""

import os

import pytest

from cluster import MIB, Failed, eventually
from test_three_nodes import MESH, refused, same, text, together, towards
from test_two_nodes import Load, verify

SIZE = 32 * MIB


def two(cluster, version=124, **options):
    """Both UpToDate, nobody Primary."""
    a, b = cluster.node("a", size=SIZE), cluster.node("b", size=SIZE)
    cluster.configure(extra=f"urbd {{ protocol-version-max {version}; }}", **options)
    for n in (a, b):
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=1", "r0")
        n.start()
    for n in (a, b):
        n.wait(conn="Connected")
        assert f"agreed on protocol version {version}" in n.log()
    a.urbd("new-current-uuid", "--clear-bitmap", "r0/0")
    for n in (a, b):
        n.wait(disk="UpToDate", peer_disk="UpToDate")
    return a, b


@pytest.mark.parametrize("protocol,version", [("A", 124), ("B", 121), ("C", 118), ("C", 124)])
def test_writes_and_roles(cluster, protocol, version):
    a, b = two(cluster, version, protocol=protocol)
    journals = []
    for turn, (here, there) in enumerate([(a, b), (b, a), (a, b)]):
        here.urbd("primary", "r0")
        there.wait(peer_role="Primary")
        # Each in a place of its own: what an interrupted write leaves is the content from before.
        load = Load(here, seed=turn, seconds=100, first=turn * 8 * MIB // 512, sectors=8 * MIB // 512)
        load.wait_writes(100)
        journals.append(load.interrupt())
        verify(here, *journals)
        here.urbd("secondary", "r0")
        there.wait(peer_role="Secondary")
        same(a, b)


def test_who_is_promoted_beside_a_primary_is_refused(cluster):
    a, b = two(cluster)
    a.urbd("primary", "r0")
    b.wait(peer_role="Primary")
    with pytest.raises(Failed, match="ended with 11"):
        b.urbd("primary", "r0")
    assert b.state()["role"] == "Secondary"


def test_they_part_and_meet(cluster):
    a, b = two(cluster)
    for n in (a, b):
        n.urbd("disconnect", "r0")
        n.wait(conn="StandAlone")
        n.urbd("connect", "r0")
        for m in (a, b):
            m.wait(conn="Connected", peer_disk="UpToDate")
    a.urbd("primary", "r0")
    a.write(0, os.urandom(MIB))
    a.flush()
    same(a, b)


def test_the_second_peer_is_refused_by_name(cluster):
    """Three nodes in a mesh: one peer at a time, as in the old dialect."""
    nodes = [cluster.node(name, size=SIZE) for name in "abc"]
    config = text(nodes, f"{MESH} urbd {{ protocol-version-max 124; }}")
    for n in nodes:
        n.put_res("r0", config)
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=2", "r0")
    a, b, c = nodes
    a.start()
    b.start()
    eventually("a and b are connected", lambda: towards(a, b)["conn"] == "Connected", 20)
    a.urbd("new-current-uuid", "--clear-bitmap", "r0/0")
    together(a, b)
    c.start()
    refused(a, c)
    refused(b, c)
    assert "in DRBD 9's dialect urbd speaks with one peer as yet" in a.log()
    a.urbd("primary", "r0")
    a.write(0, os.urandom(MIB))
    a.flush()
    same(a, b)
