"""Each hint of a refused verb is typed as it stands: every command of it ends with 0, and then the verb is done, or can be."""

import os
import re
import shutil
import threading

import pytest

from cluster import MIB, eventually
from faulty_disk import FaultyDisk
from sentences import HERE, commands, rewrite, typed
from test_handover import Application
from test_three_nine import started
from test_three_nodes import MESH, text, towards

CRATES = os.path.join(HERE, "..", "crates")
# Where `up`, `adjust`, `create-md`, `attach`, `verify`, `connect` are refused.
FILES = ("urbd/src/verbs/adjust.rs", "urbd/src/verbs/lifecycle.rs", "urbd/src/verbs/metadata.rs", "urbd/src/verbs/commands.rs",
         "urbd/src/verbs/background.rs", "urbd/src/verbs/absent.rs", "urbd/src/verbs/wait.rs", "urbd/src/offline.rs",
         "urbd/src/objects.rs", "urbd/src/problem.rs", "engine/src/resource/commands.rs", "engine/src/resource/handover.rs",
         "engine/src/resource/told.rs", "urbd/src/verbs/told.rs", "urbd/src/verbs/objects.rs",
         "control/src/discard.rs")
SAYS = re.compile(r"urbd [a-z-]+(?: --[a-z-]+(?:=\S+)?)* \{|\bself\.command\(")
# How each begins that no test here types, and why.
NOT_TYPED = {
    # Of other verbs.
    "go on: urbd up {resource}; to stop": "down",
    "look at: urbd status": "wait-sync and others: it is to look",
    "on one node after the other": "resize: test_growth.py",
    "see why: urbd why": "secondary and down; the same is said by status, and typed by test_next.py",
    "to stop it: urbd down": "down beside a restart, for a moment",
    "urbd up {resource}; without the option": "invalidate",
    "wait for the end of the resync, or": "restart",
    "when the disk answers": "down, of a process that the kernel keeps",
    # Typed by test_adjust.py, test_building.py, or only on the way to another one.
    "first: urbd disconnect": "del-peer disconnects by itself: only a process that is told otherwise says it",
    "make it first: urbd new-resource": "new-minor and its like of what does not run: two ways to go on",
    "to make what is missing of it": "new-resource of what runs: adjust, typed by test_building.py",
    "clients of NBD have to": "restart of a Primary with NBD alone",
    "start it anew: urbd restart": "the program says it before the process does",
    # A release that is not there, and a keeper whose process is gone: test_kept.py types what can be.
    "nothing was changed; go on with that release": "restart of what another release has told",
    "go on with what it was told: urbd restart": "verbs that need a file, of what no file has",
    # No hints.
    "--description=": "for systemd",
    "applications use the device of": "a log, of a process that has no other choice",
    "applications use devices of": "a log, of a process that has no other choice",
    "the block devices stay": "a log, of a process that ends",
    "urbd dump-md": "the head of what dump-md prints",
    # No two processes on a machine without systemd come there in short.
    "look at it: urbd inspect": "apply-al of a superblock that claims a log of gigabytes",
    "look at the log of the running": "a process that does not answer its socket",
    "look on each node": "verify while a third node is copied: the commands are to look and to wait",
    "make the disk available": "systemd starts it",
    "restart the resource: urbd restart": "a process of another version, whose configuration is not understood",
    "start it with: urbd up": "what absent.rs says comes in its place",
    "without -c, and without": "systemd runs it",
    "{next}; then: urbd resize": "a device that does not get the size of its configuration",
    # More nodes, volumes or names than these tests have.
    "towards each node whose": "three nodes, with a choice in braces: test_three_said.py",
    "{target}: volume {other} has": "several volumes without disks among several nodes",
}
TYPED = {}


def literals():
    """Each text of these sources that has a command, but in their tests and comments."""
    for name in FILES:
        with open(os.path.join(CRATES, name)) as f:
            code = re.sub(r"^\s*//.*$", "", f.read().split("#[cfg(test)]")[0], flags=re.M)
        for found in re.findall(r'"((?:[^"\\]|\\.)*)"', code, flags=re.S):
            words = re.sub(r"\\\n\s*", "", found)
            if SAYS.search(words):
                yield words


def types(*beginnings):
    """The hints, by how they begin in the sources, that a test types; it says so when it has read them (see `hint`)."""
    def note(test):
        TYPED.update(dict.fromkeys(beginnings, test.__name__))
        return test
    return note


def test_each_hint_with_a_command_is_typed():
    """Of a hint that is new a test, or a reason, must follow."""
    for literal in literals():
        found = [words for words in {**TYPED, **NOT_TYPED} if literal.startswith(words)]
        assert len(found) == 1, f"{len(found)} of TYPED and NOT_TYPED begin as: {literal}"
    for words in {**TYPED, **NOT_TYPED}:
        assert any(literal.startswith(words) for literal in literals()), f"nobody says: {words}"


@pytest.fixture(autouse=True)
def each_is_read(request):
    """A test has read what it claims to type."""
    READ.clear()
    yield
    for words in [words for words, by in TYPED.items() if by == request.node.originalname]:
        literal = next(literal for literal in literals() if literal.startswith(words))
        parts = [re.escape(p) for p in re.split(r"\{\w*\}", literal) if p]
        assert any(re.search(".+?".join(parts), read) for read in READ), f"nobody has said: {literal}"


READ = []


def hint(node, *call, rc=None):
    """What a refused verb says comes next."""
    r = node.call(*call)
    assert r.rc and (rc is None or r.rc == rc), r
    found = re.search(r"(?:urbd: hint|Next): (.*)", r.err)
    assert found, f"{call}: no hint\n{r.err}"
    READ.append(found.group(1))
    return found.group(1)


def follow(node, nodes, *call, take=slice(None), rc=None, by_hand=lambda: None):
    """Types what the hint of a refused verb says; then the verb works, unless what was typed has done it."""
    words = hint(node, *call, rc=rc)
    by_hand()
    todo = commands(words, node, nodes, take)
    assert todo, f"{call}: no command in: {words}"
    for where, command in todo:
        typed(where, command)
    return words


@pytest.fixture
def two(cluster):
    a, b = cluster.node("alpha", size=16 * MIB), cluster.node("bravo", size=16 * MIB)
    cluster.up(net="verify-alg crc32c;")
    a.urbd("primary", "r0")
    a.write(0, b"z" * 4096)
    a.flush()
    yield a, b
    a.wait(role="Primary", disk="UpToDate", conn="Connected", peer_disk="UpToDate", timeout=40)
    for n in (a, b):
        with open(n.disk_file(), "rb") as f:
            assert f.read(4096) == b"z" * 4096, n.name


@types("to take over a changed", "urbd up {}")
def test_hints_of_up(two):
    a, b = two
    follow(a, two, "up", "r0", rc=1)
    b.urbd("down", "r0")
    follow(b, two, "why", "r0", rc=10)


@types("run first: urbd detach")
def test_hints_of_metadata_verbs_while_it_runs(two):
    _, b = two
    for verb in ("create-md", "apply-al", "wipe-md"):
        follow(b, two, verb, "r0", rc=20, take=slice(0, 1))
        b.urbd("attach", "r0")
        b.wait(disk="UpToDate")


def test_hints_of_a_disk_without_metadata(two):
    _, b = two
    b.urbd("down", "r0")
    b.urbd("wipe-md", "--force", "r0")
    # The first one moves what is there, which is nothing.
    follow(b, two, "up", "r0", take=slice(1, 2))
    b.urbd("up", "r0")


def test_hints_of_a_disk_with_data_and_without_metadata(two):
    """Perhaps it is another one's: nobody is told to write there before that is looked at, and what would destroy it is
    refused."""
    _, b = two
    b.urbd("down", "r0")
    right, wrong = b.disk_file(), b.disk_file() + ".other"
    with open(wrong, "wb") as f:
        f.truncate(16 * MIB)
    b.run(["mkfs.ext4", "-q", "-F", wrong], check=True)
    os.rename(right, right + ".right")
    os.rename(wrong, right)
    text = hint(b, "up", "r0")
    assert text.startswith("there is ") and "make sure that it is the right disk" in text, text
    assert "ext" in text.split(":")[0], text
    refused = b.call("create-md", "--force", "r0")
    assert refused.rc == 40 and "would destroy it" in refused.err, refused
    b.run(["fsck.ext4", "-n", "-f", right], check=True, capture_output=True)
    os.rename(right + ".right", right)
    b.urbd("up", "r0")


def test_hints_of_a_disk_that_has_grown_after_a_loss_of_power(two):
    """Its metadata is at its old end, and its data stays: check-resize is what is said, whatever is tried."""
    _, b = two
    b.kill()
    os.truncate(b.disk_file(), 24 * MIB)
    for verb in ("create-md", "apply-al", "dump-md"):
        assert "urbd check-resize r0/0" in hint(b, verb, "r0"), verb
    follow(b, two, "up", "r0")
    b.urbd("up", "r0")
    b.wait(disk="UpToDate")


def test_hints_of_verify_and_attach(two):
    a, b = two
    rewrite(two, lambda text: text.replace("verify-alg crc32c;", ""))
    for n in two:
        n.urbd("adjust", "r0")
    refused = a.call("verify", "r0")
    assert refused.rc and "verify-alg" in refused.err, refused
    rewrite(two, lambda text: text.replace("net {", "net { verify-alg crc32c;", 1))
    for n in two:
        n.urbd("adjust", "r0")
    a.urbd("verify", "--wait", "r0")
    b.urbd("down", "r0")
    follow(b, two, "attach", "r0", rc=10)
    b.wait(conn="Connected")


@pytest.mark.parametrize("verb", ["connect", "disconnect", "verify", "primary", "adjust"])
def test_hints_of_verbs_of_what_does_not_run(two, verb):
    _, b = two
    b.urbd("down", "r0")
    if b.call(verb, "r0").rc:
        follow(b, two, verb, "r0")
    b.call("up", "r0")


def test_an_option_that_cannot_be_used_stops_nothing(two):
    """What cannot be started is not taken over, and nobody is told to stop what runs."""
    a, _ = two
    rewrite([a], lambda text: text.replace("net {", "net { cram-hmac-alg sha257; shared-secret x;", 1))
    for verb, rc in (("sh-nop", 10), ("adjust", 10), ("restart", 10)):
        refused = a.call(verb, "r0") if verb != "sh-nop" else a.call(verb)
        assert refused.rc == rc and "urbd cannot use `sha257` as cram-hmac-alg" in refused.err, refused
        assert "urbd down" not in refused.err, refused
    rewrite([a], lambda text: text.replace("cram-hmac-alg sha257; shared-secret x;", ""))
    a.urbd("adjust", "r0")


@types("urbd restart {name} (devices")
def test_hints_of_adjust(two):
    a, b = two
    rewrite(two, lambda text: text.replace("resource r0 {", "resource r0 {\n  urbd { front-end none; }", 1))
    b.urbd("secondary", "r0")
    text = follow(b, two, "adjust", "r0", rc=10)
    assert "nothing was changed" in text, text
    rewrite(two, lambda text: text.replace("urbd { front-end none; }", ""))
    follow(b, two, "adjust", "r0", rc=10)
    b.wait(conn="Connected")


@types("run: urbd up")
def test_a_part_of_what_does_not_run(two):
    _, b = two
    b.urbd("down", "r0")
    follow(b, two, "adjust", "--skip-net", "r0", rc=10)
    b.wait(conn="Connected")


@types("first: urbd detach")
def test_a_device_that_has_its_disk(two):
    _, b = two
    follow(b, two, "del-minor", "r0", rc=10)
    b.urbd("del-minor", "r0")
    b.urbd("adjust", "r0")


@types("urbd down {name}; urbd up")
def test_another_minor(two):
    _, b = two
    rewrite([b], lambda text: text.replace("/dev/drbd0 minor 0;", "/dev/drbd7 minor 7;"))
    follow(b, two, "adjust", "r0", rc=10)


@types("go on: urbd up {}")
def test_without_disks_where_applications_wait(two):
    a, _ = two
    app = Application(a.device(), 256)
    app.goes_on()
    a.kill_process()
    follow(a, two, "adjust", "--skip-disk", "r0", rc=10)
    app.goes_on()
    app.end()


@types("urbd wipe-md {0}; then this again")
def test_room_for_more_peers(two):
    _, b = two
    b.urbd("down", "r0")
    refused = "create-md", "--max-peers=3", "r0"
    follow(b, two, *refused, take=slice(0, 1))
    typed(b, "urbd " + " ".join(refused))
    b.urbd("up", "r0")


@types("look at: urbd why {resource}; then again")
def test_a_verify_that_is_interrupted(two):
    a, b = two
    for n in two:
        n.urbd("disk-options", "--c-plan-ahead=0", "--resync-rate=400k", "r0")
    ended = []
    verify = threading.Thread(target=lambda: ended.append(a.call("verify", "--wait", "r0")))
    verify.start()
    a.wait(repl="VerifyS")
    b.kill()
    verify.join()
    b.start()
    a.wait(conn="Connected", peer_disk="UpToDate")
    for n in two:
        n.urbd("disk-options", "--resync-rate=200M", "r0")
    said = re.search(r"urbd: hint: (.*)", ended[0].err)[1]
    READ.append(said)
    todo = commands(said, a, two)
    assert ended[0].rc == 10 and len(todo) == 2, ended
    for node, command in todo:
        typed(node, command)


@types("mend the configuration, then")
def test_hints_of_connect_where_it_is_configured_wrongly(two):
    a, _ = two
    app = Application(a.device(), 256)
    app.goes_on()
    rewrite([a], lambda text: text.replace("net {", "net { cram-hmac-alg sha257; shared-secret x;", 1))
    a.kill_process()
    a.urbd("up", "r0")
    follow(a, two, "connect", "r0", by_hand=lambda: rewrite(
        [a], lambda text: text.replace("cram-hmac-alg sha257; shared-secret x;", "")))
    app.goes_on()
    app.end()


@types("to give the disk up")
def test_hints_while_a_disk_hangs(cluster):
    a, b = cluster.node("alpha", size=16 * MIB), cluster.node("bravo", size=16 * MIB)
    disk = FaultyDisk(b)
    cluster.up()
    disk.hang()
    write = threading.Thread(target=lambda: a.write(MIB, b"y" * 4096))
    a.urbd("primary", "r0")
    write.start()
    follow(b, (a, b), "detach", "r0", take=slice(0, 1))
    write.join()
    disk.heal()
    b.wait(disk="Diskless")
    b.urbd("attach", "r0")
    cluster.wait_synced()


@types("compare each with the Primary")
def test_hints_of_verify_among_three(cluster):
    a, b, c = nodes = started(cluster)
    rewrite(nodes, lambda text: text.replace("protocol C;", "protocol C; verify-alg crc32c;"))
    for n in nodes:
        n.urbd("adjust", "r0")
    a.urbd("primary", "r0")
    follow(b, nodes, "verify", "r0:c", take=slice(0, 1))
    b.urbd("wait-sync", "r0")
    follow(b, nodes, "verify", "r0:c", take=slice(1, 3))
    for n in (a, c):
        n.urbd("wait-sync", "r0")
    eventually("nobody is in the way", lambda: not b.call("verify", "--wait", "r0:c").rc)


@types("the resource runs without that disk")
def test_the_disk_of_another_node(cluster):
    """A copy of the peer's: its metadata say whose it is."""
    a, b = nodes = cluster.node("alpha", size=16 * MIB), cluster.node("bravo", size=16 * MIB)
    cluster.up(ids=True)
    for n in nodes:
        n.urbd("down", "r0")
    right = b.disk_file() + ".right"
    os.rename(b.disk_file(), right)
    shutil.copyfile(a.disk_file(), b.disk_file())
    follow(b, nodes, "up", "r0", rc=1, by_hand=lambda: os.rename(right, b.disk_file()), take=slice(0, 1))
    a.urbd("up", "r0")
    cluster.wait_synced()


@types("nothing was changed; close it (unmount it)")
def test_a_volume_that_goes_and_is_in_use(cluster):
    a, b = nodes = [cluster.node(name, size=16 * MIB, volumes=2) for name in ("alpha", "bravo")]
    cluster.up(volumes=2)
    used = open(a.device(1), "r+b")
    cluster.configure(volumes=1)
    follow(a, nodes, "adjust", "r0", rc=11, by_hand=used.close)
    a.urbd("adjust", "r0")
    b.urbd("adjust", "r0")
    cluster.wait_synced()
    assert [d["volume"] for d in a.status()["devices"]] == [0]


@types("nothing was changed; new metadata need")
def test_a_third_node_beside_metadata_with_room_for_one(cluster):
    a, b = nodes = [cluster.node(name, size=16 * MIB) for name in "ab"]
    cluster.up()
    three = [*nodes, cluster.node("c", size=16 * MIB)]
    b.put_res("r0", text(three, MESH))
    follow(b, nodes, "adjust", "r0", rc=10)
    eventually("it is copied", lambda: towards(b, a)["peer_disk"] == "UpToDate" and b.state()["disk"] == "UpToDate")
    cluster.assert_same(nodes=nodes)


@types("nothing was changed; name the host")
def test_a_host_that_was_renamed(two):
    _, b = two
    b.name = "charlie"
    follow(b, two, "adjust", "r0", by_hand=lambda: rewrite(two, lambda text: text.replace("on bravo", "on charlie")))
    b.wait(conn="Connected")


@types("nothing was changed; start it anew")
def test_a_host_that_was_renamed_with_its_configuration(two):
    a, b = two
    b.name = "charlie"
    rewrite(two, lambda text: text.replace("on bravo", "on charlie"))
    follow(b, two, "adjust", "r0", rc=10)
    a.urbd("adjust", "r0")
