"""Addresses that say on which interface they are."""

import re

import pytest

from cluster import FAST_DISK, FAST_NET, PORT, eventually
from test_three_nine import all_together, same


def link_local(node, interface):
    def there():
        said = node.run(["ip", "-6", "addr", "show", "dev", interface], capture_output=True, text=True).stdout
        return "tentative" not in said and re.search(r"fe80::[0-9a-f:]+", said)

    return eventually(f"{node.name} has a link-local address", there)[0]


@pytest.fixture
def two(cluster):
    """Their addresses are those of the link, for which each has its own name."""
    nodes = [cluster.node(name) for name in "ab"]
    interfaces = ["eth0", "left"]
    for args in ("link set eth0 down", "link set eth0 name left", "link set left up"):
        nodes[1].run(["ip", *args.split()], check=True)
    hosts = "".join(f"  on {n.name} {{ node-id {i}; address ipv6 [{link_local(n, where)}%{where}]:{PORT}; volume 0 {{ "
                    f"device /dev/drbd0 minor 0; disk {n.disk_path()}; meta-disk internal; }} }}\n"
                    for i, (n, where) in enumerate(zip(nodes, interfaces)))
    text = (f"resource r0 {{\n  net {{ {FAST_NET} }}\n  disk {{ {FAST_DISK} }}\n\n{hosts}"
            "  connection-mesh { hosts a b; }\n}\n")
    for n in nodes:
        n.put_res("r0", text)
    return nodes


def test_link_local_addresses_are_of_the_interface(two):
    a, b = two
    for n in two:
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=1", "r0")
        n.start()
    a.urbd("primary", "--force", "r0")
    all_together(a, b)
    assert "%eth0" in a.urbd("show", "r0").out
    # Either one dials.
    for n in two:
        n.kill()
        n.start()
        all_together(a, b)
    same(a, b)


def test_an_interface_that_is_not_there_is_named(two):
    a, _ = two
    with open(f"{a.dir}/res.d/r0.res") as f:
        text = f.read()
    a.put_res("r0", text.replace("%eth0", "%eth7"))
    a.urbd("create-md", "--force", "--format=v09", "--max-peers=1", "r0")
    r = a.call("up", "r0")
    assert r.rc == 10 and "this host has no network interface eth7" in r.err, r
