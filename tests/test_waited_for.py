"""Applications wait for a process that was killed: what only connections need does not keep the next one from serving them."""

import re
import socket

import pytest

from cluster import PORT, eventually
from fake_peer import in_network
from test_handover import Application, one_node
from test_three_nodes import application


def killed_in_use(cluster):
    """A Primary with an application, without its process."""
    a = one_node(cluster)
    app = Application(a.device(), 0)
    app.goes_on()
    a.kill_process()
    return a, app


def joined(cluster, a, app):
    """The other node comes, and is brought up to date; then all ends in order."""
    b = cluster.nodes[1]
    b.create_md()
    b.start()
    a.wait(conn="Connected", timeout=30)
    a.wait(peer_disk="UpToDate", timeout=60)
    app.goes_on()
    b.stop()
    ended(a, app)


def ended(a, app):
    app.end()
    a.urbd("secondary", "r0")
    a.stop()


def outbound(node):
    """Some program's connection to somewhere else happens to have the replication port here."""
    there = socket.socket()
    there.bind((node.ip, 0))
    there.listen()
    here = socket.socket()

    def free():
        try:
            here.bind((node.ip, PORT))
            return True
        except OSError:
            return False
    # The sockets of a killed process are closed some moments after its end.
    eventually("the port is free", free, 20)
    here.connect(there.getsockname())
    return here, there


@pytest.mark.parametrize("verb", ["run", "up"])
def test_a_port_that_is_taken(cluster, verb):
    a, app = killed_in_use(cluster)
    taken = in_network(a, lambda: outbound(a))
    a.start() if verb == "run" else a.urbd("up", "r0")
    app.goes_on()
    # Why there is no connection is said, and it is made when the port is free.
    said = eventually("it says so", lambda: re.search("another program listens.*", a.urbd("why", "r0").out, re.S), 20)
    assert "ss -tnp" in said[0], said
    for s in taken:
        s.close()
    joined(cluster, a, app)


# Options of the file, or what is replaced in it; what is said; can `adjust` go on with it (and not with the same words)?
NOT_USABLE = {
    "an algorithm": ({"net": "data-integrity-alg rot13;"}, "rot13"),
    "a secret without an algorithm": ({"net": "shared-secret x;"}, "set together"),
    "a contradiction": ({"protocol": "A", "net": "allow-two-primaries;"}, "needs protocol C"),
    "a transport": ({"net": "transport rdma;"}, "transport"),
    "encryption": ({"net": "tls yes;"}, "TLS"),
    "a version": ({"extra": "urbd { protocol-version-max 110; }"}, "protocol-version-max 110"),
    "a quorum": ({"options": "quorum majority;"}, "quorum"),
    "a group": ({"extra": "urbd { status-group no-such-group; }"}, "no-such-group"),
}


@pytest.mark.parametrize("what", NOT_USABLE)
def test_what_cannot_be_used_of_the_file(cluster, what):
    options, word = NOT_USABLE[what]
    a, app = killed_in_use(cluster)
    cluster.configure(**options)
    a.urbd("up", "r0")
    app.goes_on()
    assert word in a.log(), a.log()[-3000:]
    usable = what in ("a quorum", "a group")
    if not usable:
        assert a.state()["conn"] == "StandAlone"
        assert word in a.urbd("why", "r0").out
        for call in (["connect", "r0"], ["adjust", "r0"]):
            r = a.call(*call)
            assert r.rc in (1, 10, 11) and word in r.err, r
    # Whoever mends the file goes on with it, under the application.
    cluster.configure(**{name: {"protocol": "C"}.get(name, "") for name in options})
    if what == "a group":
        # Who may look is settled at the start.
        a.kill_process()
        a.urbd("up", "r0")
    else:
        a.urbd("adjust", "r0")
    joined(cluster, a, app)


def test_an_address_that_is_not_here(cluster):
    a, app = killed_in_use(cluster)
    good = cluster.configure()
    a.put_res("r0", good.replace(f"{a.ip}:{PORT}", f"10.254.254.1:{PORT}"))
    a.urbd("up", "r0")
    app.goes_on()
    eventually("it says so", lambda: "annot assign" in a.log() or "not configured here" in a.log(), 20)
    a.kill_process()
    a.put_res("r0", good)
    a.urbd("up", "r0")
    app.goes_on()
    ended(a, app)


def test_two_primaries_among_three(cluster):
    """What is refused otherwise is served to those who wait."""
    from test_three_nine import MESH, started, text
    nodes = a, b, c = started(cluster)
    a.urbd("primary", "r0")
    with application(a) as app:
        app.goes_on()
        for n in (b, c):
            n.stop()
        a.kill_process()
        a.put_res("r0", text(nodes, MESH).replace("net { ", "net { allow-two-primaries yes; ", 1))
        a.urbd("up", "r0")
        app.goes_on()
