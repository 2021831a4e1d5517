"""The same as test_next.py, which types them: the reasons for which a connection is given up until somebody says otherwise."""

import contextlib
import functools
import os
import re
import signal
import struct
import threading

from cluster import MIB, eventually
from fake_peer import AUTH_CHALLENGE, AUTH_RESPONSE, PROTOCOL, PROTOCOL_UPDATE, STATE, FakePeer, features, h80, h100
from sentences import MATTERS, case, rewrite, said


def differs_in_file(a, b, *changes):
    """b's configuration says something else, until it is mended by hand."""
    rewrite([b], lambda text: functools.reduce(lambda text, change: text.replace(*change, 1), changes, text))
    b.urbd("down", "r0")
    b.start()
    yield b
    rewrite([b], lambda text: functools.reduce(lambda text, change: text.replace(*change[::-1], 1), changes, text))


def net(option):
    return "net {", f"net {{ {option};"


@case("too-many-volumes", "take a protocol-version-max", dialects=["8.4"], volumes=2)
def an_old_version_has_one_volume(a, b):
    return differs_in_file(a, b, ("{\n", "{\n  urbd { protocol-version-max 99; }\n"))


@case("no-integrity", "take data-integrity-alg", dialects=["8.4"], net="data-integrity-alg crc32c;")
def a_version_without_integrity(a, b):
    return differs_in_file(a, b, ("{\n", "{\n  urbd { protocol-version-max 86; }\n"))


def option_differs(option):
    def differs(a, b):
        return differs_in_file(a, b, net(option))
    return differs


for OPTION in ("after-sb-0pri discard-zero-changes", "after-sb-1pri consensus", "after-sb-2pri violently-as0p",
               "allow-two-primaries", "data-integrity-alg crc32c", "csums-alg crc32c"):
    case(f"{OPTION.split()[0]}-differs", "make the option equal")(option_differs(OPTION))


@case("handler-refused", "set that right")
def a_handler_refuses_the_resync(a, b):
    refuses = "handlers {", 'handlers { before-resync-target "exit 1";'
    b.kill()
    a.write(8 * MIB, os.urandom(65536))
    rewrite([b], lambda text: text.replace(*refuses))
    b.start()
    yield b
    rewrite([b], lambda text: text.replace(*refuses[::-1]))
    b.urbd("adjust", "--skip-net", "--skip-disk", "r0")


def state(conn, disk=8, role=2):
    """A Secondary's, of 8.4's dialect, or with role 1 a Primary's."""
    return role | conn << 4 | disk << 9 | 6 << 13


def tries(a, b, does):
    """A fake peer in b's place, which does something with a: until a listens, and lets it end."""
    peer = FakePeer(b, a)

    def done():
        with contextlib.suppress(OSError):
            does(peer)
            return True

    eventually("they have told each other", done, 20)
    return peer


def meets(a, b, *packets, flags=0, **how):
    """A peer of 8.4's dialect in a's generation, with a disk as good as a's, which says this when they are connected."""
    told = [int(word, 16) for word in a.urbd("get-gi", "r0").out.split()[-1].split(":")[:4]]
    uuids = struct.pack(">6Q", told[0], 0, *told[2:], 0, flags)

    def comes(peer):
        peer.handshake(os.path.getsize(b.disk_file()) // 512, **{"uuids": uuids, "state": state(9), **how})
        peer.data.sendall(b"".join(packets))

    return tries(a, b, comes)


def insists(a, b):
    """It takes itself for the source, as DRBD 9.3.3 does at protocol 101."""
    return meets(a, b, h100(STATE, struct.pack(">I", state(13))), protocol=1)


def insisted(a, b):
    """a has crashed as Primary, and not begun a generation without b."""
    a.kill()
    b.kill()
    a.start()
    peer = insists(a, b)
    said(a, "survivor-insists")
    peer.close()


@case("survivor-insists", "to give up what", take=slice(0, 1), dialects=["8.4"], protocol="A")
def crashed_and_gives_in(a, b):
    insisted(a, b)
    yield a
    peers = []
    comes = threading.Thread(target=lambda: peers.append(insists(a, b)))
    comes.start()
    yield a
    a.wait(repl="WFBitMapT")
    comes.join()
    peers[0].close()


@case("survivor-insists", "to give up what", take=slice(1, 2), dialects=["8.4"], protocol="A")
def crashed_and_does_not_give_in(a, b):
    insisted(a, b)
    yield a
    b.start()
    b.urbd("disconnect", "r0")
    b.urbd("invalidate", "r0")
    b.urbd("connect", "r0")
    yield a
    a.wait(conn="Connected", repl="Established", disk="UpToDate", peer_disk="UpToDate")


def known_by_nobody(peer):
    """Who does not know the secret."""
    peer.authenticate()


def leaves_when_answered(peer):
    peer.authenticate(None)
    assert peer.receive()[1] == AUTH_RESPONSE
    peer.close()


def sends_the_challenge_back(peer):
    peer.connect().data.sendall(features())
    peer.exactly(80)
    _, _, challenge = peer.receive()
    peer.data.sendall(h100(AUTH_CHALLENGE, challenge))


def is_not_let_in(does):
    def without_the_secret(a, b):
        b.kill()
        peer = tries(a, b, does)
        yield a
        peer.close()
    without_the_secret.__name__ = does.__name__
    return without_the_secret


for CAUSE, DOES in (("authentication-failed", known_by_nobody), ("authentication-refused", leaves_when_answered),
                    ("reflected-challenge", sends_the_challenge_back)):
    case("wrong-secret", "make cram-hmac-alg", dialects=["8.4"], cause=CAUSE,
         net='cram-hmac-alg sha1; shared-secret "right";')(is_not_let_in(DOES))


def of_another_kind(a, b, does):
    """a gives up a fake peer; then b comes, which is one that a can do with."""
    b.kill()
    peer = tries(a, b, does)
    yield a
    peer.close()
    b.start()


@case("dry-run-unsupported", "set that right", dialects=["8.4"])
def an_old_version_connects_tentatively(a, b):
    def does(peer):
        peer.connect().data.sendall(features(high=91))
        peer.exactly(80)
        peer.data.sendall(h80(PROTOCOL, struct.pack(">6I", 3, 0, 0, 0, 2, 0) + bytes(64)))
    return of_another_kind(a, b, does)


@case("incompatible-versions", "upgrade the older", take=slice(0), dialects=["8.4"])
def an_old_version_is_upgraded(a, b):
    return of_another_kind(a, b, lambda peer: peer.connect().data.sendall(features(70, 80)))


@case("connect-refused", "on {name}, which says why", dialects=["9"])
def the_peer_refuses_and_does_not_say_why(a, b):
    return of_another_kind(a, b, lambda peer: peer.refuse())


@case("exposed-data-differs", "give {name} back the disk that it had; or stop", dialects=["8.4"],
      net="fencing resource-only;", handlers='fence-peer "exit 6";')
def the_other_is_said_to_be_primary(a, b):
    """And a, who has begun a generation without it, is Outdated then."""
    b.kill()
    a.wait(disk="Outdated")
    b.start()
    return a


@case("primary-is-outdated", "stop the applications here; urbd secondary {resource}", dialects=["8.4"],
      net="allow-two-primaries; fencing resource-and-stonith;", handlers='fence-peer "exit 6";')
def the_other_primary_has_crashed(a, b):
    """a is told, wrongly or not, that b goes on."""
    b.urbd("primary", "r0")
    b.write(12 * MIB, os.urandom(65536))
    b.flush()
    b.kill()
    a.wait(disk="Outdated")
    b.start()
    return a


@case("peer-lacks-own-writes", "give {name} back the disk that it had; or, if", protocol="A")
def both_the_disk_and_what_the_peer_had_not_taken_are_gone(a, b):
    os.kill(b.serving(), signal.SIGSTOP)
    a.write(8 * MIB, os.urandom(65536))
    a.urbd("detach", "--force", "r0")
    b.kill()
    b.start()
    return a


def peer_is_outdated(a, b):
    """Nobody has written since, and a is without its disk."""
    a.urbd("secondary", "r0")
    b.urbd("disconnect", "r0")
    b.urbd("outdate", "r0")
    a.urbd("detach", "r0")
    b.urbd("connect", "r0")
    return a


@case("peer-disk-outdated", "if this node's disk has newer", take=slice(0, 1))
def outdated_beside_no_disk(a, b):
    return peer_is_outdated(a, b)


@case("peer-disk-outdated", "if this node's disk has newer", take=slice(1, 2))
def outdated_and_the_disk_is_gone_for_good(a, b):
    return peer_is_outdated(a, b)


@case("peer-disk-outdated", "on the node whose data is to be kept: urbd primary", dialects=["9"])
def both_are_outdated(a, b):
    a.urbd("secondary", "r0")
    b.urbd("disconnect", "r0")
    for n in (a, b):
        n.urbd("outdate", "r0")
        n.urbd("connect", "r0")
    return a


@case("own-disk-too-small", "give this node a disk", dialects=["9"])
def the_peers_device_has_grown(a, b):
    """All nodes agree on a size: only a faulty peer has another one."""
    return of_another_kind(a, b, lambda peer: peer.outgrow(64 * MIB // 512))


@case("integrity-alg-differs", "make the option equal", dialects=["8.4"])
def the_peer_takes_an_algorithm_that_nobody_has(a, b):
    b.kill()
    changed = h100(PROTOCOL_UPDATE, struct.pack(">6I", 3, 0, 0, 0, 0, 0) + b"rot13".ljust(64, b"\0"))
    peer = meets(a, b, changed)
    yield a
    peer.close()


@case("peer-state-refused", "set that right", dialects=["8.4"])
def the_peer_is_primary_as_well(a, b):
    b.kill()
    a.wait(conn="Connecting")
    peer = meets(a, b, state=state(9, role=1))
    yield a
    peer.close()
    b.start()


# Reasons for which the core gives a connection up, and which no case makes: where it is shown that what is advised ends it.
UNREACHED = {
    # For a moment, while a command that changes the secret waits; wrong-secret is said.
    "no-hmac": ("crates/core/tests/pair/peers.rs", "a_secret_that_is_just_being_changed_is_tried_again_when_it_is_there"),
}


def given_up():
    """The reasons for which the core gives a connection up until somebody says otherwise, by their names: those that are said
    where it is done, and those of options that differ."""
    core = os.path.join(MATTERS, "..", "..", "core", "src")

    def read(name):
        with open(os.path.join(core, name)) as f:
            return f.read()

    sources = [os.path.join(where, name) for where, _, names in os.walk(core) for name in names if name.endswith(".rs")]
    code = "".join(read(name) for name in sources)
    topics, reasons = (dict(re.findall(r'(\w+) "([a-z0-9-]+)"', read(f"decide/{of}.rs"))) for of in ("topic", "reason"))
    ends = [topics[end] for end in re.findall(r"\b(?:give_up|refuse)\(\s*\w+,\s*Topic::(\w+)", code)]
    ends += [reasons[end] for end in re.findall(r", Reason::(\w+)\)", read("decide/protocol.rs"))]
    assert len(ends) > 20 and "LinkEnd::SurvivorInsists, reason" in code
    return {*ends, "survivor-insists"}
