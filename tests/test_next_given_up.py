"""The same as test_next.py, which types them: the reasons for which a connection is given up until somebody says otherwise."""

import contextlib
import functools
import os
import re
import struct
import threading

from cluster import MIB, eventually
from fake_peer import STATE, FakePeer, h100
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


def state(conn, disk=8):
    """A Secondary's, of 8.4's dialect."""
    return 2 | conn << 4 | disk << 9 | 6 << 13


def insists(a, b):
    """A peer of 8.4's dialect in a's generation that takes itself for the source, as DRBD 9.3.3 does at protocol 101."""
    told = [int(word, 16) for word in a.urbd("get-gi", "r0").out.split()[-1].split(":")[:4]]
    uuids = struct.pack(">6Q", told[0], 0, *told[2:], 0, 0)
    peer = FakePeer(b, a)

    def comes():
        with contextlib.suppress(OSError):
            peer.handshake(os.path.getsize(b.disk_file()) // 512, uuids=uuids, state=state(9), protocol=1)
            peer.data.sendall(h100(STATE, struct.pack(">I", state(13))))
            return True

    eventually("they have told each other", comes, 20)
    return peer


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


# Reasons for which the core gives a connection up, and which no case makes, and why.
UNREACHED = {
    "authentication-failed": "before the peer has shown who it is: wrong-secret is said, and tried again",
    "authentication-refused": "as authentication-failed",
    "connect-refused": "see UNTYPED",
    "data-integrity-alg-unsupported": "who has it in a file is refused: connection-not-usable",
    "dry-run-unsupported": "no verb connects tentatively to a peer that speaks 91 or less",
    "incompatible-versions": "a peer of another age: tests/test_mistakes.py has what is said",
    "integrity-alg-differs": "a peer that changes it while it is connected, to what is not known here",
    "no-hmac": "while the secret is being changed; it is tried again",
    "peer-state-refused": "a peer that becomes Primary beside one that does not allow two: the peer's fault",
    "reflected-challenge": "as authentication-failed",
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
