"""Each "Next:" is typed as it stands: every command of it ends with 0, and then what was the matter is not any more, or
matters less; no good copy has lost what was acknowledged."""

import contextlib
import os
import re
import signal
import socket
import threading

import pytest

import test_next_three
from cluster import MIB, PORT, TESTS, eventually
from fake_peer import in_network
from faulty_disk import FaultyDisk
from sentences import CASES, FILES, LOOK, SENTENCES, better, case, commands, cut_off, good_copies, matter, parts, rewrite, \
    said, said_by_any, sentence, source, typed, which
from test_handover import Application
from test_next_given_up import UNREACHED, given_up


@case("frozen-user", "when whoever needs it")
def suspend_io(a, b):
    a.urbd("suspend-io", "r0")
    return a


@case("frozen-no-data", "on {names}: urbd adjust", take=slice(0, 1), options="on-no-data-accessible suspend-io;")
def no_disk_and_no_peer(a, b):
    a.urbd("detach", "r0")
    b.kill()
    a.wait(suspended=True)
    return a


@case("frozen-no-data", "on {names}: urbd adjust", take=slice(1, 2), options="on-no-data-accessible suspend-io;")
def no_peer_and_no_disk(a, b):
    b.kill()
    a.wait(conn="Connecting")
    a.urbd("detach", "--force", "r0")
    a.wait(suspended=True)
    return a


@case("frozen-no-data", "if this node's disk was lost last", dialects=["8.4"], fresh=True)
def a_node_without_peers(a, b):
    a.put_res("r0", "resource r0 { options { on-no-data-accessible suspend-io; } on alpha { node-id 0; "
              f"address {a.ip}:{PORT}; device minor 0; disk {a.disk_path()}; meta-disk internal; }} }}")
    a.start()
    a.urbd("primary", "--force", "r0")
    a.urbd("detach", "--force", "r0")
    return a


@case("frozen-fencing", "if it never ends", net="fencing resource-and-stonith;", handlers='fence-peer "exit 1";')
def nobody_is_fenced(a, b):
    b.kill()
    a.wait(suspended=True)
    return a


@case("io-fails-by-force", "close the device")
def demoted_by_force(a, b):
    used = open(a.device(), "r+b")
    a.urbd("secondary", "--force", "r0")
    yield a
    used.close()


@case("nobody-primary", "where it is to be used: urbd primary")
def demoted(a, b):
    a.urbd("secondary", "r0")
    return a


@case("opening-promotes", "write into the file on all nodes", dialects=["9"])
def the_dialect_has_changed(a, b):
    pin = "  urbd { protocol-version-max 101; }\n"
    for change in (lambda text: text.replace("{\n", "{\n" + pin, 1), lambda text: text.replace(pin, "")):
        rewrite((a, b), change)
        for n in (b, a):
            n.urbd("adjust", "r0")
        for n in (a, b):
            n.wait(conn="Connected", repl="Established", disk="UpToDate", peer_disk="UpToDate")
    yield a
    rewrite((a, b), lambda text: text.replace("options {", "options { auto-promote no;"))


@case("primary-elsewhere", "to move it here")
def secondary(a, b):
    return b


@case("disk-missing", "when {disk} works again")
def detached(a, b):
    b.urbd("detach", "r0")
    return b


@case("peer-disk-missing", "on {name}: urbd attach {resource}")
def detached_there(a, b):
    b.urbd("detach", "r0")
    return a


@case("disk-outdated", "urbd connect {object}")
def outdated(a, b):
    b.urbd("disconnect", "r0")
    b.urbd("outdate", "r0")
    a.write(8 * MIB, os.urandom(65536))
    return b


@case("disk-outdated", "bring {others} back (there: urbd adjust {name})",
      net="fencing resource-only;", handlers='fence-peer "exit 4";')
def outdated_by_the_primary_which_is_gone(a, b):
    b.urbd("disconnect", "r0")
    b.urbd("outdate", "r0")
    a.urbd("secondary", "r0")
    a.urbd("down", "r0")
    b.urbd("connect", "r0")
    return b


def slowly(a, b, rate="40k"):
    """b is brought up to date, at this rate."""
    for n in (a, b):
        n.urbd("disk-options", "--c-plan-ahead=0", f"--resync-rate={rate}", "r0")
    b.urbd("invalidate", "r0")
    b.wait(repl="SyncTarget")


@case("disk-inconsistent", "bring {others} back (there: urbd adjust {name})")
def source_is_lost(a, b):
    slowly(a, b)
    a.kill()
    return b


@case("disk-new", "{start}; if all", "to copy another", take=slice(0, 1), fresh=True)
def new_and_alone(a, b):
    a.start()
    return a


@case("disk-new", "{start}; if all", "to copy another", take=slice(1, 2), fresh=True)
def new_and_to_be_the_first(a, b):
    a.start()
    return a


@case("no-good-copy", "where the data to keep", fresh=True)
def both_are_new(a, b):
    for n in (a, b):
        n.start()
    a.wait(conn="Connected")
    return a


@case("disk-maybe-old", "{fetch}; if", "bring {others} back (there: urbd adjust {name})", take=slice(0, 1),
      net="fencing resource-only;", handlers='fence-peer "exit 4";')
def started_alone(a, b):
    a.urbd("down", "--force", "r0")
    b.urbd("down", "--force", "r0")
    b.start()
    return b


@case("disconnected", "urbd connect {object}")
def disconnected(a, b):
    a.urbd("disconnect", "r0")
    return a


@case("peer-left", "when it is to be connected again")
def peer_is_disconnected(a, b):
    b.urbd("disconnect", "r0")
    return a


@case("peer-left", "when it is to be connected again")
def peer_is_down(a, b):
    b.urbd("down", "r0")
    return a


@case("refused", "on {name}, which starts")
def peer_is_dead(a, b):
    b.kill()
    return a


@case("refused", "on {name}, which starts")
def peer_is_alone(a, b):
    """Its process runs, and does not listen."""
    b.kill()
    b.start()
    b.wait(conn="Connected")
    b.urbd("disconnect", "r0")
    a.urbd("disconnect", "r0")
    a.urbd("connect", "r0")
    return a


@case("nobody-there", "switch {name} on")
def peer_is_off(a, b):
    a.urbd("net-options", "--connect-int=20", "r0")
    cut_off(b, (a, b))
    a.run(["ip", "neigh", "flush", "dev", "eth0"], check=True)
    yield a
    b.heal()


@case("wrong-secret", "make cram-hmac-alg")
def secrets_differ(a, b):
    secret = 'net { cram-hmac-alg sha256; shared-secret "%s";'
    for n in (a, b):
        rewrite([n], lambda text: text.replace("net {", secret % n.name, 1))
        n.urbd("adjust", "r0")
    a.urbd("disconnect", "r0")
    a.urbd("connect", "r0")
    yield a
    rewrite([a], lambda text: text.replace('"alpha"', '"bravo"'))


@case("wire-protocol-differs", "make the option equal")
def protocols_differ(a, b):
    rewrite([b], lambda text: text.replace("protocol C", "protocol A"))
    b.urbd("down", "r0")
    b.start()
    yield b
    rewrite([b], lambda text: text.replace("protocol A", "protocol C"))


@case("both-discard-my-data", "on the node whose data is to be kept, without")
def both_give_up_their_changes(a, b):
    both_write(a, b)
    a.urbd("secondary", "r0")
    for n in (a, b):
        n.urbd("connect", "--discard-my-data", "r0")
    return said_by_any((a, b), "both-discard-my-data")


# Among two.
TWO_PARTED = ("choose whose changes are thrown away. This node's: urbd secondary {resource}; urbd connect --discard-my-data "
              "{object}")


def both_write(a, b):
    """A split brain: what b wrote is little."""
    cut_off(b, (a, b))
    a.wait(conn="Connecting")
    b.wait(conn="Connecting")
    b.urbd("primary", "--force", "r0")
    b.write(12 * MIB, os.urandom(65536))
    b.flush()
    a.write(8 * MIB, os.urandom(65536))
    a.flush()
    b.urbd("secondary", "r0")
    b.heal()
    for n in (a, b):
        said(n, "split-brain")


@case("split-brain", TWO_PARTED, take=slice(0, 3))
def changes_of_this_node_are_thrown_away(a, b):
    both_write(a, b)
    return b


@case("split-brain", TWO_PARTED, take=slice(3, 6))
def changes_of_the_other_node_are_thrown_away(a, b):
    both_write(a, b)
    return a


@case("refused", "on {name}, which starts")
def the_other_of_a_split_brain_waits(a, b):
    """Whose changes are to be thrown away tries, and the other one is StandAlone, and does not listen."""
    both_write(a, b)
    b.urbd("connect", "--discard-my-data", "r0")
    return b


@case("unrelated-data", "on the node whose data is not wanted", fresh=True)
def two_that_have_nothing_in_common(a, b):
    for n, gi in ((a, "A1:0:A2:A3:1:1"), (b, "B1:0:B2:B3:1:1")):
        n.urbd("set-gi", "--force", f"--gi={gi}", "r0")
        n.start()
    return a


@case("resync", "to wait for it")
def copied(a, b):
    slowly(a, b, "4M")
    return a


@case("resync-paused", "urbd resume-sync {object}")
def paused_here(a, b):
    slowly(a, b)
    b.urbd("pause-sync", "r0")
    return b


@case("resync-paused", "on {name}: urbd status {resource}; urbd resume")
def paused_there(a, b):
    slowly(a, b)
    b.urbd("pause-sync", "r0")
    return a


@case("out-of-sync", "urbd disconnect {peer}", dialects=["8.4"], net="verify-alg crc32c;")
@case("out-of-sync", "on {name}, whose copy", dialects=["9"], net="verify-alg crc32c;")
def differs(a, b):
    with open(b.disk_file(), "r+b") as f:
        f.seek(4 * MIB)
        f.write(os.urandom(4096))
    assert a.call("verify", "--wait", "r0").rc == 4
    return a


@case("unknown-address", "if it is {name}")
def peer_comes_from_elsewhere(a, b):
    rewrite([a], lambda text: text.replace(f"{b.ip}:{PORT}", f"{b.ip[:-3]}250:{PORT}"))
    a.urbd("restart", "r0")
    yield a
    rewrite([a], lambda text: text.replace(f"{b.ip[:-3]}250:{PORT}", f"{b.ip}:{PORT}"))


@case("peer-disk-too-small", "give {name} a disk")
def a_smaller_disk(a, b):
    def with_disk(size):
        b.call("down", "r0")
        os.truncate(b.disk_file(), 0)
        os.truncate(b.disk_file(), size)
        b.create_md()
        b.start()
    with_disk(8 * MIB)
    yield said_by_any((a,), "peer-disk-too-small")
    with_disk(16 * MIB)


@case("port-taken", "find it with")
def somebody_listens_on_the_port(a, b):
    with in_network(a, lambda: socket.create_server((a.ip, PORT))) as listener:
        b.kill()
        yield a
        listener.close()


@case("no-route", "make one; this")
def the_route_is_gone(a, b):
    net = a.ip.rsplit(".", 1)[0] + ".0/24"
    a.run(["ip", "route", "del", net, "dev", "eth0"], check=True)
    a.urbd("disconnect", "--force", "r0")
    a.urbd("connect", "r0")
    yield a
    a.run(["ip", "route", "add", net, "dev", "eth0", "src", a.ip], check=True)


@case("nobody-primary", "where it is to be used, if {away} is surely not")
def demoted_and_alone(a, b):
    a.urbd("secondary", "r0")
    b.kill()
    a.wait(conn="Connecting")
    return a


@case("exposed-data-differs", "give {name} back the disk that it had; or, if")
def the_peer_is_gone_and_then_the_disk(a, b):
    """The own disk has all, and the peer's does not."""
    b.kill()
    a.wait(conn="Connecting")
    a.write(8 * MIB, os.urandom(65536))
    a.flush()
    a.urbd("detach", "--force", "r0")
    b.start()
    return a


@case("exposed-data-differs", "give {name} back the disk that it had; or, if", dialects=["8.4"])
def the_peer_has_another_disk(a, b):
    a.urbd("detach", "r0")
    a.write(8 * MIB, os.urandom(65536))
    a.flush()
    b.kill()
    right = b.disk_file() + ".right"
    os.rename(b.disk_file(), right)
    with open(b.disk_file(), "wb") as f:
        f.truncate(16 * MIB)
    b.create_md()
    b.start()
    yield a
    b.urbd("down", "r0")
    os.rename(right, b.disk_file())
    b.start()
    a.wait(conn="Connected")


def promoted_without_each_other(a, b, writes):
    """And b has written meanwhile, and is Secondary again; or has not, and is Primary."""
    a.urbd("secondary", "r0")
    cut_off(b, (a, b))
    for n in (a, b):
        n.wait(conn="Connecting")
    b.urbd("primary", "r0")
    if writes:
        b.write(8 * MIB, os.urandom(65536))
        b.flush()
        b.urbd("secondary", "r0")
    a.urbd("primary", "r0")
    b.heal()


@case("primary-would-be-target", "{name} has newer data", dialects=["9"])
def peer_has_written_alone(a, b):
    promoted_without_each_other(a, b, writes=True)
    said(b, "handshake-refused")
    return a


@case("handshake-refused", "on {name}, which says why", dialects=["9"])
def peer_would_be_overwritten(a, b):
    promoted_without_each_other(a, b, writes=True)
    yield b
    said(a, "primary-would-be-target")
    a.urbd("secondary", "r0")
    a.urbd("connect", "r0")


@case("primary-would-be-target", "stop the applications here, as", dialects=["9"], net="rr-conflict retry-connect;")
def peer_has_written_alone_and_it_is_tried_again(a, b):
    promoted_without_each_other(a, b, writes=True)
    return a


@case("two-primaries", "on the node that is to be Secondary, stop the applications; urbd secondary {resource}; they",
      dialects=["9"], net="rr-conflict retry-connect;")
def both_are_primary_and_it_is_tried_again(a, b):
    promoted_without_each_other(a, b, writes=False)
    return b


@case("two-primaries", "on the node that is to be Secondary, stop the applications; urbd secondary {resource}; then on both",
      dialects=["9"])
def both_are_primary(a, b):
    promoted_without_each_other(a, b, writes=False)
    return b


@case("congestion", "set that right", dialects=["8.4"], protocol="A",
      net="on-congestion disconnect; congestion-fill 100K; sndbuf-size 64k;")
def peer_takes_nothing(a, b):
    os.kill(b.serving(), signal.SIGSTOP)
    for at in range(32):
        a.write(8 * MIB + at * 131072, os.urandom(131072))
    yield a
    os.kill(b.serving(), signal.SIGCONT)


@case("ping-timeout", "ping -c 3 {address}; on", dialects=["9"])
def peer_is_silent(a, b):
    a.urbd("net-options", "--connect-int=20", "r0")
    cut_off(b, (a, b))
    yield a
    b.heal()


@case("no-answer", "ping -c 3 {peer_ip}", dialects=["8.4"])
def nothing_comes_back(a, b):
    a.urbd("net-options", "--connect-int=3", "r0")
    b.kill()
    a.lose_packets_to(b)
    yield a
    a.find_packets()
    b.start()


FENCED = {"disk": "fencing resource-only;", "handlers": 'fence-peer "exit 1";'}


def lost_beside_a_dead_peer(a, b):
    """The Primary's process goes while its peer is away."""
    b.kill()
    a.wait(conn="Connecting")
    a.kill_process()
    a.start()


@case("waits-to-be-primary", "on {names}, which is to be reached", take=slice(0, 1), **FENCED)
def peer_comes_back_to_applications_that_wait(a, b):
    with in_use(a) as app:
        lost_beside_a_dead_peer(a, b)
        yield a
        b.start()
        yield a
        app.goes_on()


@case("waits-to-be-primary", "on {names}, which is to be reached", take=slice(1, 2), **FENCED)
def applications_that_wait_go_on_alone(a, b):
    with in_use(a) as app:
        lost_beside_a_dead_peer(a, b)
        yield a
        yield a
        app.goes_on()


@case("replaced-meanwhile", "to have it here again", dialects=["9"])
def peer_became_primary(a, b):
    replaced(a, b)
    return a


@case("replaced-meanwhile", "unmount it here", dialects=["9"])
def peer_was_primary(a, b):
    replaced(a, b)
    b.urbd("secondary", "r0")
    eventually("nobody is Primary", lambda: matter(a, "nobody-primary"))
    return a


def replaced(a, b):
    app = Application(a.device(), 2048)
    app.goes_on()
    a.kill_process()
    b.wait(conn="Connecting")
    b.urbd("primary", "r0")
    a.start()
    eventually("I/O fails", lambda: app.problem)
    app.join(20)
    os.close(app.fd)


@contextlib.contextmanager
def in_use(node):
    app = Application(node.device(), 2048)
    app.goes_on()
    yield app
    app.end()


@case("connection-not-usable", "correct the file")
def the_file_is_wrong(a, b):
    with in_use(a) as app:
        good = "net {"
        rewrite([a], lambda text: text.replace(good, "net { cram-hmac-alg sha257; shared-secret x;", 1))
        a.kill_process()
        a.urbd("up", "r0")
        yield a
        rewrite([a], lambda text: text.replace("cram-hmac-alg sha257; shared-secret x;", ""))
        yield a
        app.goes_on()


@case("out-of-sync", "urbd invalidate {marked}{resource}/{volume} (this", dialects=["9"], net="verify-alg crc32c;")
def differs_here(a, b):
    differs(a, b)
    return b


@case("out-of-sync", "on the node with the worse copy", dialects=["9"], net="verify-alg crc32c;")
def differs_between_secondaries(a, b):
    differs(a, b)
    a.urbd("secondary", "r0")
    return b


@case("disk-maybe-old", "{fetch}; if", "bring {others} back (there: urbd adjust {name})", take=slice(1, 2),
      net="fencing resource-only;", handlers='fence-peer "exit 4";')
def started_alone_for_good(a, b):
    return started_alone(a, b)


def unreadable(a, b):
    """A resync comes to its end without all blocks, and nothing copies them."""
    for n in (a, b):
        n.urbd("disk-options", "--on-io-error=pass_on", "r0")
    a.disks[0].fail("reads")
    b.urbd("invalidate", "r0")
    b.wait(repl="Established", disk="Inconsistent")


@case("peer-disk-inconsistent", "on {name}: urbd invalidate", dialects=["9"], faulty=0)
def source_could_not_be_read(a, b):
    unreadable(a, b)
    yield a
    a.disks[0].heal()


@case("disk-inconsistent", "urbd invalidate {name}/{volume} copies {good}'s", dialects=["8.4"], faulty=0)
def blocks_are_missing(a, b):
    unreadable(a, b)
    yield b
    a.disks[0].heal()


@case("disk-failed", "replace it; then", dialects=["9"], faulty=1)
def disk_hangs_while_it_is_given_up(a, b):
    b.disks[0].hang()
    t = threading.Thread(target=lambda: a.write(8 * MIB, bytes(65536)))
    t.start()
    d = threading.Thread(target=lambda: b.call("detach", "r0"))
    d.start()
    yield b
    b.disks[0].heal()
    t.join()
    d.join()
    b.wait(disk="Diskless")


# What comes next is to look, or nothing: a person's turn.
LOOKS = {"activity-log-damaged", "connecting", "disk-attaching", "disk-negotiating", "ended-at-once",
         "handshake-timeout", "link-unsteady", "marked-between-secondaries",
         "no-such-address", "not-reached", "one-good-copy", "source-is-inconsistent", "survivors-agreeing"}
# Sentences that another test types.
NOT_TYPED = {
    "small packets pass": ("tests/test_mistakes.py", "test_large_packets_get_lost_on_the_way"),
}


def test_what_is_not_typed_here_is_tested_elsewhere():
    for path, name in [*NOT_TYPED.values(), *UNREACHED.values()]:
        with open(os.path.join(TESTS, "..", path)) as f:
            assert re.search(rf"^(?:def|fn) {name}\(", f.read(), re.M), f"{path} has no {name}"


def test_each_matter_with_a_command_is_typed():
    """Of a code that is new a case must follow."""
    known = {"refused", "connecting", "disconnected", "resync", "congestion"}
    for name in FILES:
        known |= set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', source(name)))
    known -= {"kebab-case", "peer-disconnected"}
    # The core's names: test_each_reason_to_give_up_is_typed.
    reached = {code for code, *_ in CASES.values()} - (given_up() - known)
    assert not reached & LOOKS
    assert known == reached | LOOKS, known ^ (reached | LOOKS)


def test_each_reason_to_give_up_is_typed():
    reached = {options.get("cause", code) for code, *_, options in CASES.values()}
    assert not reached & set(UNREACHED)
    assert given_up() == (reached & given_up()) | set(UNREACHED), given_up() ^ ((reached & given_up()) | set(UNREACHED))


def test_each_command_of_each_sentence_is_typed():
    """Of a sentence that is new a case must follow: one code has several, and one sentence several commands to choose from."""
    written = {part for s in SENTENCES for part in parts(s, "") if not LOOK.match(part[2])}
    reached = {part for _, says, _, take, _ in CASES.values() for part in parts(*says)[take]}
    reached = {part for part in reached if not LOOK.match(part[2])}
    excused = {part for words in NOT_TYPED for part in written if part[0] == sentence(words)}
    assert not reached & excused, reached & excused
    missing = written - reached - excused
    assert not missing, "\n".join(f"{s}\n    {command}" for s, _, command in sorted(missing))
    assert reached <= written


def test_each_sentence_is_told_from_the_others():
    """What a case has seen is said to be one sentence: no other one fits better."""
    for s in SENTENCES:
        text = s.replace("{fetch}", "urbd connect r0:bravo").replace("{start}", "urbd connect r0:bravo")
        assert which(re.sub(r"\{\w+\}", "r0", text))[0] == s


@pytest.mark.parametrize("name", sorted(CASES))
def test_next(cluster, name):
    code, says, make, take, options = CASES[name]
    options = dict(options)
    fresh, three, dialect = (options.pop(k, None) for k in ("fresh", "three", "dialect"))
    cause = options.pop("cause", None)  # the reason in the core, where what is said is of several
    faulty = options.pop("faulty", None)  # the number of a node whose disk can be made to fail
    data = os.urandom(MIB)
    if three:
        nodes = test_next_three.begin(cluster, dialect, faulty)
    else:
        volumes = options.get("volumes", 1)
        nodes = [cluster.node(name, size=16 * MIB, volumes=volumes) for name in ("alpha", "bravo")]
        if faulty is not None:
            FaultyDisk(nodes[faulty])
        begin(cluster, dialect, fresh, options)
    a = nodes[0]
    if not fresh:
        a.urbd("primary", "r0")
        a.write(0, data)
        a.flush()
    made = make(*nodes)
    by_hand = None
    if hasattr(made, "__next__"):
        by_hand, made = made, next(made)
    before = said(made, code)
    if cause:
        assert f"[{cause}]" in made.log(), made.log()[-2000:]
    text = before["next"]
    assert text and which(text) == says, f"{code}: {text}"
    if by_hand:
        next(by_hand, None)
    todo = commands(text, made, nodes, take)
    assert todo or take == slice(0), f"no command in: {text}"
    for node, command in todo:
        typed(node, command)
    eventually(f"{made.name}: better than: {before}", lambda: better(made, before), 40)
    if by_hand:
        next(by_hand, None)
    if not fresh:
        for n in good_copies(nodes):
            with open(n.disk_file(), "rb") as f:
                assert f.read(MIB) == data, f"{n.name} has lost what was acknowledged"


def begin(cluster, dialect, fresh, options):
    """Two nodes in sync, or with fresh metadata and not started."""
    if dialect == "9":
        options["ids"] = True
    if not fresh:
        return cluster.up(**options)
    cluster.configure(**options)
    for n in cluster.nodes:
        n.create_md()
