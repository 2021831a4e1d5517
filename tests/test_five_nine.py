"""Five urbd nodes that speak DRBD 9's dialect, all connected; some of them share an address."""

from cluster import FAST_DISK, FAST_NET, MIB, PORT, eventually
from test_three_nine import all_together, connected, equal
from test_three_nodes import towards
from test_two_nodes import Load, verify

SIZE = 16 * MIB
# A busy machine answers a ping of a node that lives, if not at once.
PATIENT_NET = FAST_NET + " ping-timeout 20;"
# Longer than twopc-timeout: a connection that collides with another one may wait for that.
TOGETHER = 90


def started(cluster):
    """a, b and c on machines of their own, d on that of b, e on that of c; all UpToDate, nobody Primary."""
    a, b, c = (cluster.node(name, size=SIZE) for name in "abc")
    nodes = [a, b, c, cluster.node("d", size=SIZE, beside=b), cluster.node("e", size=SIZE, beside=c)]
    hosts = "".join(f"on {n.name} {{ node-id {i}; address ipv4 {n.ip}:{PORT + i}; volume 0 {{ device /dev/drbd0 minor 0; "
                    f"disk {n.disk_path()}; meta-disk internal; }} }}\n" for i, n in enumerate(nodes))
    config = (f"resource r0 {{ net {{ protocol C; {PATIENT_NET} }} disk {{ {FAST_DISK} }}\n"
              f"{hosts} connection-mesh {{ hosts a b c d e; }} }}\n")
    for n in nodes:
        n.put_res("r0", config)
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=4", "r0")
    for n in nodes:
        n.start()
    connected(*nodes)
    a.urbd("new-current-uuid", "--clear-bitmap", "r0/0")
    all_together(*nodes)
    return nodes


def test_machines_with_two_nodes_each_are_cut_off_and_die(cluster):
    """The Primary goes on with the others; who was away gets what it lacks, and any of them can follow."""
    nodes = a, b, c, d, e = started(cluster)
    a.urbd("primary", "r0")
    load = Load(a)
    load.wait_writes(100)
    c.cut()  # and e with it
    for n in (c, e):
        eventually("the Primary notices", lambda n=n: towards(a, n)["conn"] != "Connected", 30)
    load.wait_writes(100)
    assert all(towards(a, n)["conn"] == "Connected" for n in (b, d))
    c.heal()
    all_together(*nodes, timeout=TOGETHER)
    for n in (b, d):
        n.kill()
    load.wait_writes(100)
    for n in (b, d):
        n.start()
    all_together(*nodes, timeout=TOGETHER)
    load.wait_writes(100)
    journal = load.interrupt()
    a.urbd("secondary", "r0")
    equal(*nodes)
    e.urbd("primary", "r0")
    verify(e, journal)
