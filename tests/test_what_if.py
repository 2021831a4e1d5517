"""`urbd what-if`: what it foretells of a loss is what happens when that is lost; with three disks, and with two and a node that only
decides a draw."""

import json

import pytest

from cluster import eventually
from sentences import cut_off
from test_client import QUORUM, lab as with_client
from test_operator import program
from test_quorum import block, frozen, held_open, lab, quorum, writing


def foretold(node, loss, peer=None):
    """What the node says of a loss, in JSON; the text has the same sentence."""
    all_ = json.loads(node.urbd("what-if", "--json", "r0").out)["r0"]
    found = [w for w in all_ if (w["loss"], w["peer"]) == (loss, peer)]
    assert len(found) == 1, all_
    assert f"  {found[0]['text']}\n" in node.urbd("what-if", "r0").out
    return found[0]


def of(what_if, name):
    return next(o for o in what_if["others"] if o["node"] == name)


def good_copies(node):
    status = node.status()
    disks = [status["devices"][0]["disk-state"]] + [c["peer_devices"][0]["peer-disk-state"] for c in status["connections"]]
    return disks.count("UpToDate")


def comes_true(node, here):
    """Quorum, frozen I/O, and how many good copies are left."""
    eventually(f"{node.name} is as foretold: {here}", lambda: quorum(node) == (here["quorum"] == "yes"), 30)
    eventually("so is its I/O", lambda: frozen(node) == (here["io"] == "freezes"), 30)
    eventually("so are the copies", lambda: here["good-at-least"] <= good_copies(node) <= here["good-at-most"], 30)


def test_a_node_dies_and_another_one_and_the_primary_freezes_when_it_was_foretold(cluster):
    a, b, c = lab(cluster)
    said = foretold(a, "node", "b")
    assert said["text"].startswith("node b dies: 2 of 3 votes stay, 2 needed: goes on, 2 good copies"), said
    assert said["here"]["io"] == "goes-on" and said["here"]["votes"]["in-reach"] == 2
    b.kill()
    comes_true(a, said["here"])
    assert writing(a, block(1)).wait(20) == 0
    said = foretold(a, "node", "c")
    assert "1 of 2 votes stays" in said["text"] or "1 of 3 votes stays" in said["text"], said
    assert "I/O freezes until enough nodes are back, 1 good copy" in said["text"], said
    with held_open(a):
        c.kill()
        comes_true(a, said["here"])
        hanging = writing(a, block(2))
        eventually("it is under way", lambda: a.status()["devices"][0]["upper-pending"] > 0)
    c.start()
    assert hanging.wait(40) == 0
    b.start()


def test_the_primary_dies_and_who_may_be_promoted_is(cluster):
    a, b, c = lab(cluster)
    said = {n.name: foretold(n, "node", "a") for n in (b, c)}
    own = foretold(a, "this-node")
    for n in (b, c):
        assert said[n.name]["here"]["may-be-primary"] == "yes", said
        # The Primary cannot know whether the two see each other.
        assert of(own, n.name)["may-be-primary"] == "if-they-meet", own
    a.kill()
    for n in (b, c):
        comes_true(n, said[n.name]["here"])
    b.urbd("primary", "r0")
    assert writing(b, block(3)).wait(20) == 0
    a.start()


def test_a_link_of_the_primary_is_cut(cluster):
    a, b, c = lab(cluster)
    here, there = foretold(a, "link", "b")["here"], foretold(b, "link", "a")["here"]
    assert here["io"] == "goes-on" and there["may-be-primary"] != "yes", (here, there)
    a.lose_packets_to(b), b.lose_packets_to(a)
    eventually("they have parted", lambda: b.state()["disk"] == "Outdated", 40)
    comes_true(a, here), comes_true(b, there)
    assert b.call("primary", "r0").rc != 0
    assert writing(a, block(4)).wait(20) == 0
    a.find_packets(), b.find_packets()


def test_a_disk_is_lost(cluster):
    a, b, c = lab(cluster, "quorum majority; quorum-minimum-redundancy 2;")
    said = foretold(a, "peer-disk", "b")
    assert "2 of them UpToDate, 2 needed" in said["text"] and said["here"]["io"] == "goes-on", said
    own = foretold(b, "own-disk")["here"]
    b.urbd("detach", "--force", "r0")
    eventually("it is gone", lambda: b.state()["disk"] == "Diskless")
    comes_true(a, said["here"]), comes_true(b, own)
    said = foretold(a, "peer-disk", "c")
    assert said["here"]["io"] == "freezes", said
    with held_open(a):
        c.urbd("detach", "--force", "r0")
        comes_true(a, said["here"])
    c.urbd("attach", "r0")
    b.urbd("attach", "r0")


@pytest.mark.parametrize("lost", ["b", "c"])
def test_beside_a_node_that_only_decides_a_draw(cluster, lost):
    a, b, c = with_client(cluster, options=QUORUM)
    a.urbd("primary", "r0")
    for n in (a, b, c):
        eventually(f"{n.name} has quorum", lambda: quorum(n))
    nodes = {n.name: n for n in (a, b, c)}
    said = {n: foretold(nodes[n], "node", lost)["here"] for n in nodes if n != lost}
    assert said["a"]["votes"]["tie-breaker"] == (lost == "b"), said
    nodes[lost].kill()
    for n, here in said.items():
        comes_true(nodes[n], here)
    assert writing(a, block(5)).wait(20) == 0
    second = foretold(a, "node", "c" if lost == "b" else "b")["here"]
    with held_open(a):
        nodes["c" if lost == "b" else "b"].kill()
        comes_true(a, second)
    for n in ("b", "c"):
        nodes[n].start()


def test_who_is_cut_off_from_all_is_so_by_two_single_losses(cluster):
    a, b, c = lab(cluster)
    cut_off(c, (a, b, c))
    eventually("it has no quorum", lambda: not quorum(c), 40)
    # Of what is not within reach nothing can be lost.
    lost = {(w["loss"], w["peer"]) for w in json.loads(c.urbd("what-if", "-j", "r0").out)["r0"]}
    assert lost == {("nothing", None), ("own-disk", None), ("this-node", None)}, lost
    c.heal()


def test_status_has_it_and_the_tools_names_have_not(cluster):
    a, b, c = lab(cluster)
    status = json.loads(a.urbd("status", "--json", "r0").out)[0]
    assert {w["loss"] for w in status["urbd-what-if"]} == {"nothing", "node", "link", "peer-disk", "own-disk", "this-node"}
    assert all(w["text"] for w in status["urbd-what-if"])
    why = a.urbd("why", "r0").out
    assert "r0/0: now: 3 of 3 votes in reach, 2 needed: goes on, 3 good copies" in why, why
    assert "urbd-what-if" not in program(a, "drbdsetup", "status", "--json").out


def test_what_a_leaving_node_stops_is_said_before(cluster):
    """A Secondary that a Primary elsewhere depends on: that one does not let it go, and it is said what would stop."""
    a, b, c = lab(cluster)
    b.kill()
    eventually("it is noticed", lambda: a.status()["connections"][0]["connection-state"] != "Connected", 20)
    said = c.call("down", "r0")
    assert said.rc == 11, said
    assert "a (Primary): I/O freezes" in said.err or "not known here whether a goes on" in said.err, said
    assert quorum(a) and a.status()["role"] == "Primary"
