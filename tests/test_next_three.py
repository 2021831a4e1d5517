"""The same as test_next.py, which types them, among three nodes."""

import os

from cluster import MIB, eventually
from faulty_disk import FaultyDisk
from sentences import case, cut_off, rewrite, said
from test_handover import Application
from test_three_nine import begun, prepared
from test_three_nodes import MESH, OLD, refused, text, together, towards


def begin(cluster, dialect, faulty=None):
    """Three nodes in sync; in 8.4's dialect two, and the third one is not started."""
    if dialect == "9":
        nodes = prepared(cluster)
        if faulty is not None:
            before = nodes[faulty].disk_path()
            FaultyDisk(nodes[faulty])
            rewrite(nodes, lambda text: text.replace(before + ";", nodes[faulty].disk_path() + ";"))
        return begun(nodes)
    nodes = a, b, _ = [cluster.node(name, size=32 * MIB) for name in "abc"]
    for n in nodes:
        n.put_res("r0", text(nodes, f"{MESH} {OLD}"))
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=2", "r0")
    a.start()
    b.start()
    a.urbd("primary", "--force", "r0")
    together(a, b)
    return nodes


# Of who has others beside it, and of who is alone.
BESIDE = "choose whose changes are thrown away. Those of {name}"
ALONE = ("choose whose changes are thrown away. This node's: urbd secondary {resource}; urbd connect --discard-my-data "
         "{resource}")


def parted(a, b, c):
    """c has gone its own way, and is Secondary."""
    cut_off(c, (a, b, c))
    for n, other in ((a, c), (b, c), (c, a), (c, b)):
        eventually("it is cut off", lambda: towards(n, other)["conn"] == "Connecting", 30)
    a.write(8 * MIB, os.urandom(65536))
    a.flush()
    c.urbd("primary", "--force", "r0")
    c.write(12 * MIB, os.urandom(8192))
    c.urbd("secondary", "r0")
    c.heal()
    for n in (a, b, c):
        said(n, "split-brain")


@case("split-brain", ALONE, take=slice(0, 3), dialects=["9"], three=True)
def one_gives_up_its_changes(a, b, c):
    parted(a, b, c)
    return c


@case("split-brain", ALONE, take=slice(3, 4), dialects=["9"], three=True)
def the_others_give_up_their_changes(a, b, c):
    parted(a, b, c)
    yield c
    for n in (a, b):
        n.urbd("secondary", "r0")
        n.urbd("connect", "--discard-my-data", "r0")


@case("split-brain", BESIDE, take=slice(0, 3), dialects=["9"], three=True)
def changes_of_the_one_are_thrown_away(a, b, c):
    parted(a, b, c)
    return a


@case("split-brain", BESIDE, take=slice(3, 6), dialects=["9"], three=True)
def changes_of_the_two_are_thrown_away(a, b, c):
    parted(a, b, c)
    return a


@case("disk-missing", "move the applications", dialects=["9"], three=True)
def primary_without_its_disk(a, b, c):
    a.urbd("detach", "r0")
    return a


@case("nobody-primary", "where it is to be used, if surely none", dialects=["9"], three=True)
def alone_of_three(a, b, c):
    a.urbd("secondary", "r0")
    for n in (b, c):
        n.kill()
    eventually("nobody is there", lambda: all(towards(a, n)["conn"] == "Connecting" for n in (b, c)))
    return a


WITHOUT_QUORUM = "on {away}: urbd adjust {name}; if they are off for good, here: urbd resource-options"


def cut_down(a, b, c):
    """A Primary that asks for quorum has lost both others."""
    for n in (a, b, c):
        n.urbd("resource-options", "--quorum=majority", "r0")
    for n in (b, c):
        n.kill()
    eventually("it is frozen", lambda: a.status()["suspended-quorum"])


@case("frozen-quorum", WITHOUT_QUORUM, take=slice(0, 1), dialects=["9"], three=True)
def frozen_until_others_are_back(a, b, c):
    cut_down(a, b, c)
    return a


@case("no-quorum", WITHOUT_QUORUM, take=slice(1, 2), dialects=["9"], three=True)
def others_are_off_for_good(a, b, c):
    cut_down(a, b, c)
    return a


AWAY = "bring {others} back (there: urbd adjust {name}); if that is gone"


@case("disk-outdated", AWAY, dialects=["9"], three=True)
def primary_is_not_reached(a, b, c):
    for n in (a, b, c):
        n.urbd("net-options", "--ping-int=1", "r0")
    a.lose_packets_to(b)
    b.wait(disk="Outdated")
    yield b
    a.find_packets()


@case("disk-outdated", AWAY, take=slice(0), dialects=["9"], three=True)
def primary_is_gone_for_good(a, b, c):
    """Nothing is typed: it passes."""
    for n in (a, b, c):
        n.urbd("net-options", "--ping-int=1", "r0")
    a.lose_packets_to(b)
    b.wait(disk="Outdated")
    a.write(8 * MIB, os.urandom(65536))
    a.flush()
    yield b
    a.kill()
    a.find_packets()


def unreadable(a, b):
    """A resync of b comes to its end without all blocks, and nothing copies them."""
    for n in (a, b):
        n.urbd("disk-options", "--on-io-error=pass_on", "r0")
    a.disks[0].fail("reads")
    b.urbd("invalidate", "r0")
    b.wait(disk="Inconsistent")
    eventually("it has come to its end", lambda: towards(b, a)["repl"] == "Established")


COPIES = "urbd invalidate {name}/{volume} copies {good}'s; if that is refused"


@case("disk-inconsistent", COPIES, take=slice(0, 1), dialects=["9"], three=True, faulty=0)
def source_could_not_be_read(a, b, c):
    c.kill()
    eventually("it is gone", lambda: towards(b, c)["conn"] == "Connecting")
    unreadable(a, b)
    yield b
    a.disks[0].heal()


@case("disk-inconsistent", COPIES, take=slice(1, 2), dialects=["9"], three=True)
def source_is_not_reached_any_more(a, b, c):
    """It is Primary, so that nobody copies what another one has."""
    for n in (a, b, c):
        n.urbd("disk-options", "--c-plan-ahead=0", "--resync-rate=400k", "r0")
    b.urbd("invalidate", "r0")
    eventually("it is copied", lambda: towards(b, a)["repl"] == "SyncTarget")
    for n in (a, b, c):
        n.urbd("net-options", "--ping-int=1", "r0")
    a.lose_packets_to(b)
    eventually("it is not reached", lambda: towards(b, a)["conn"] == "Connecting")
    assert b.call("invalidate", "r0/0").rc == 11
    yield b
    a.find_packets()


@case("disk-inconsistent", "stop the applications here; urbd secondary {name}; urbd inv", dialects=["9"], three=True, faulty=0)
def primary_could_not_read(a, b, c):
    unreadable(a, b)
    yield a
    a.disks[0].heal()


@case("disk-inconsistent", "on {primary}, stop", dialects=["9"], three=True, faulty=0)
def neither_has_the_primary_good_data(a, b, c):
    unreadable(a, b)
    yield b
    a.disks[0].heal()


THIRD = "to have {name} instead: {leave}urbd connect {object}; to have"


@case("not-the-only-peer", THIRD, take=slice(0, 2), dialects=["8.4"], three=True)
def a_third_in_the_place_of_the_second(a, b, c):
    c.start()
    refused(a, c)
    return a


@case("not-the-only-peer", THIRD, take=slice(2, 3), dialects=["8.4"], three=True)
def a_third_beside_the_second(a, b, c):
    c.start()
    refused(a, c)
    yield a
    rewrite((a, b, c), lambda text: text.replace(OLD, ""))
    for n in (b, c):
        n.urbd("adjust", "r0")


def written_by_one_alone(a, b, c):
    """b has written something, which a, who is Primary now, lacks."""
    a.urbd("secondary", "r0")
    cut_off(b, (a, b, c))
    for n, other in ((a, b), (c, b), (b, a), (b, c)):
        eventually("it is cut off", lambda: towards(n, other)["conn"] == "Connecting")
    b.urbd("primary", "--force", "r0")
    b.write(8 * MIB, os.urandom(65536))
    b.urbd("secondary", "r0")
    a.urbd("primary", "r0")
    b.heal()
    said(b, "handshake-refused")


@case("primary-would-be-target", "{name} has something", take=slice(0, 2), dialects=["9"], three=True)
def what_one_has_written_is_thrown_away(a, b, c):
    written_by_one_alone(a, b, c)
    return a


@case("primary-would-be-target", "{name} has something", take=slice(2, 5), dialects=["9"], three=True)
def what_one_has_written_is_kept(a, b, c):
    written_by_one_alone(a, b, c)
    return a


def a_primary_beyond_another_node(a, b, c, net=""):
    """a is Primary. b was without the others, is Primary too, and reaches c only."""
    for n in (a, b, c):
        n.urbd("net-options", "--ping-int=1", *net.split(), "r0")
    a.lose_packets_to(b)
    b.lose_packets_to(a)
    cut_off(b, (b, c))
    for n, other in ((a, b), (c, b), (b, a), (b, c)):
        eventually("it is cut off", lambda: towards(n, other)["conn"] == "Connecting")
    b.urbd("primary", "--force", "r0")
    b.heal()


@case("second-primary", "on the node that is to be Secondary, stop the applications; urbd secondary {resource}; then here",
      dialects=["9"], three=True)
def primaries_on_both_sides(a, b, c):
    a_primary_beyond_another_node(a, b, c)
    yield b
    for n in (a, b):
        n.find_packets()


@case("second-primary", "on the node that is to be Secondary, stop the applications; urbd secondary {resource}; they connect",
      dialects=["9"], three=True)
def primaries_on_both_sides_that_try_again(a, b, c):
    """As the real DRBD does it: with `rr-conflict retry-connect` nobody is ever StandAlone."""
    a_primary_beyond_another_node(a, b, c, "--rr-conflict=retry-connect")
    said(b, "second-primary")
    assert "StandAlone" not in (towards(b, c)["conn"], towards(c, b)["conn"])
    yield b
    for n in (a, b):
        n.find_packets()


@case("another-came-first", "make the file of {others} as it is here", dialects=["8.4"], three=True)
def the_second_has_the_file_of_before(a, b, c):
    rewrite((a, c), lambda text: text.replace(OLD, ""))
    a.urbd("adjust", "r0")
    together(a, b)
    c.start()
    yield a
    rewrite((b,), lambda text: text.replace(OLD, ""))


@case("not-the-only-peer", "to have {name} instead: {leave}urbd connect {object}", dialects=["9"], three=True)
def applications_wait_where_two_may_be_primary(a, b, c):
    """What no verb would start, a service does, as applications wait for it: it connects one peer."""
    app = Application(a.device(), 2048)
    app.goes_on()
    for n in (b, c):
        n.stop()
    a.kill_process()
    rewrite((a, b, c), lambda text: text.replace("net { ", "net { allow-two-primaries yes; ", 1))
    a.urbd("up", "r0")
    b.start()
    together(a, b)
    c.start()
    refused(a, c)
    yield a
    yield a
    app.goes_on()
    app.end()
