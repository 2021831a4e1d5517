"""A resource gets another name while it runs: all that is found by the name moves, and nothing else changes."""

import os
import random
import signal
import subprocess
import threading

import pytest

from cluster import MIB, URBD, eventually
from test_building import Host, built, pair, same_data, synced
from test_events import following
from test_filesystems import FSCK, MKFS, mounted, sh
from test_handover import Application
from test_kept import door, urbd


def rename(host, before, after, rc=0):
    return host("rename-resource", before, after, rc=rc)


def files(host):
    """What is named after resources in the run directory."""
    return sorted(os.listdir(host.node.run_dir))


def links(host):
    out = host.node.run(["find", "/dev/urbd", "-type", "l"], stdout=subprocess.PIPE, text=True).stdout
    return sorted(line.removeprefix("/dev/urbd/") for line in out.split())


def kill(host, res):
    pid = host.node.serving(res)
    os.kill(pid, signal.SIGKILL)
    eventually("it is gone", lambda: not host.node._alive(pid), 20)


def role(host, res):
    return host("role", res).strip()


def connected(host, res):
    return host("cstate", res, 1 - host.id).strip() == "Connected"


def test_mounted_and_connected(cluster):
    hosts = a, b = pair(cluster)
    built(hosts)
    device = door(a)
    sh(*MKFS["ext4"], device)
    with mounted(a.node, device, "ext4") as where, following(a.node, b.node, options=()) as (of_a, of_b):
        with open(os.path.join(where, "blocks"), "wb") as f:
            f.write(bytes(2 * MIB))
            os.fsync(f.fileno())
        app = Application(f.name, 0)
        app.goes_on()
        quiet = len(of_b.lines())
        process = a.node.serving()
        for before, after in (("r0", "r1"), ("r1", "second"), ("second", "r0"), ("r0", "r1")):
            rename(a, before, after)
            # When it returns it is so for all who ask.
            assert of_a.lines()[-1] == f"rename resource name:{before} new_name:{after}"
            assert a.node.serving(after) == process and role(a, after) == "Primary" and connected(a, after)
            assert after in a("show", after)
            assert role(a, after) == "Primary"
            assert "(158)" in rename(a, before, "other", rc=10)
            assert f"name:{before} " not in a("events2", "--now", after) and a("status", before, rc=10)
            names = files(a)
            for ending in (".sock", ".pid", ".keeper", "-0.nbd", ".log"):
                assert after + ending in names and before + ending not in names, (after, ending, names)
            there = links(a)
            assert f"by-res/{after}/0" in there and f"drbd/by-res/{after}/0" in there, there
            assert not any(f"/{before}/" in link for link in there), there
            assert a.node.run(["readlink", "-e", f"/dev/urbd/by-res/{after}/0"], stdout=subprocess.DEVNULL).returncode == 0
            app.goes_on()
        assert of_b.lines()[quiet:] == []
        # A change has lines of the new name.
        a("net-options", "r1", 1, "--ping-timeout=7")
        b("disconnect", "r0", 0)
        of_a.find("change connection name:r1 .* connection:(TearDown|Unconnected|Connecting)")
        b("connect", "r0", 0)
        of_a.find("change connection name:r1 .* connection:Connected")
        eventually("connected", lambda: connected(a, "r1"), 30)
        assert not any("rename" in line or "destroy" in line for line in of_b.lines()[quiet:])
        app.goes_on()
        # Whoever goes on has that name too, also after a crash, and finds the devices.
        for how in ("restart", "up"):
            kill(a, "r1")
            urbd(a, how, "r1")
            app.goes_on()
            urbd(a, "restart", "r1")
            app.goes_on()
            assert role(a, "r1") == "Primary" and "7;" in a("show", "r1")
            eventually("connected", lambda: connected(a, "r1"), 30)
            assert len(a.node.keepers()) == 1
        # The keeper's successor, too.
        os.kill(a.node.keepers()[0], signal.SIGKILL)
        eventually("another keeper", lambda: len(a.node.keepers()) == 1 and "r1.keeper" in files(a), 20)
        rename(a, "r1", "r2")
        app.goes_on()
        kill(a, "r2")
        urbd(a, "restart", "r2")
        app.end()
    sh(*FSCK["ext4"], device)
    eventually("connected", lambda: connected(a, "r2"), 30)
    rename(a, "r2", "r0")
    rename(b, "r0", "x")
    rename(b, "x", "r0")
    synced(hosts)
    same_data(hosts)
    for host in hosts:
        host("down", "r0")
        assert files(host) == [], files(host)
        assert not host.node.keepers() and not host.node.pids() and not host.node.mounted()
        assert not any("by-res" in link for link in links(host)), links(host)


def test_the_old_name_is_anothers_then(cluster):
    """Neither takes anything from the other, whoever begins or ends first."""
    (a,) = [Host(cluster.node("alpha", size=16 * MIB, volumes=3))]

    def make(name, volume):
        a.create_md(volume)
        a("new-resource", name, 0)
        a("new-minor", name, a.minor + volume, 0)
        a.attach(volume)
        a("primary", name, "--force")

    def holds(name, volume):
        """Its device is that disk."""
        data = os.urandom(4096)
        link = f"/dev/urbd/by-res/{name}/0"
        argv = ["dd", f"of={link}", "oflag=direct", "bs=4096", "conv=notrunc", "status=none"]
        assert a.node.run(argv, input=data, capture_output=True).returncode == 0
        with open(a.disk(volume), "rb") as f:
            assert f.read(4096) == data, (name, volume)

    make("r0", 0)
    rename(a, "r0", "r1")
    make("r0", 1)
    holds("r1", 0)
    holds("r0", 1)
    a("down", "r0")
    holds("r1", 0)
    a("down", "r0")
    holds("r1", 0)
    make("r0", 1)
    kill(a, "r0")
    urbd(a, "down", "--force", "r0")
    holds("r1", 0)
    make("r0", 1)
    holds("r0", 1)
    assert "(174)" in rename(a, "r0", "r1", rc=10) and "(174)" in rename(a, "r1", "r0", rc=10)
    assert "(174)" in rename(a, "r1", "r1", rc=10)
    # They change their names with one another.
    rename(a, "r0", "between")
    rename(a, "r1", "r0")
    rename(a, "between", "r1")
    holds("r0", 0)
    holds("r1", 1)
    make("between", 2)
    for name, volume in (("r0", 0), ("r1", 1), ("between", 2)):
        kill(a, name)
        assert "urbd restart" in a("rename-resource", next(n for n in ("r0", "r1", "between") if n != name), name, rc=10)
        urbd(a, "restart", name)
        holds(name, volume)
    a("down", "r1")
    holds("r0", 0)
    holds("between", 2)
    make("r1", 1)
    holds("r1", 1)
    # Both of the process and the keeper are gone: the next one begins anew, and what was left is cleared away.
    rename(a, "r1", "r3")
    pids = a.node.serving("r3"), *a.node.keepers()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    eventually("gone", lambda: not any(a.node._alive(pid) for pid in pids), 20)
    a("down", "r3")
    for name in ("r0", "between"):
        a("down", name)
    assert files(a) == [], files(a)
    assert not a.node.loops() and not a.node.mounted()
    make("r3", 1)
    holds("r3", 1)
    a("down", "r3")


def test_what_is_refused_changes_nothing(cluster):
    (a,) = [Host(cluster.node("alpha", size=16 * MIB))]
    a.create_md()
    for name in ("r0", "taken"):
        a("new-resource", name, 0)
    a.volume()
    a.attach()
    a("primary", "r0", "--force")
    before = files(a), links(a), a("show", "r0")
    for words, rc, what in (
            (("r0",), 20, "too few"), ((), 20, "too few"), (("r0", "r1", "r2"), 20, "too many"),
            (("r0", "r1", "--force=x"), 20, ""), (("r0", "r1", "--timeout=3"), 20, "unknown option"),
            (("nobody", "r1"), 10, "(158)"), (("r0", "taken"), 10, "(174)"), (("r0", "r0"), 10, "(174)"),
            (("r0", "a/b"), 10, "(162)"), (("r0", "a b"), 10, "(162)"), (("r0", ""), 10, "(126)"), (("r0", ".x"), 10, "(162)"),
            (("r0", "all"), 10, "(162)"), (("r0", "x" * 300), 10, "(162)"), (("r0", "x" * 80), 10, "(162)"),
    ):
        said = a("rename-resource", *words, rc=rc)
        assert what in said, (words, said)
    assert (files(a), links(a), a("show", "r0")) == before
    # Another user is not let in.
    tools = os.path.join(a.tools, "drbdsetup")
    argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", tools, "rename-resource", "r0", "r1"]
    env = {**a.node.env(), "URBD_CONF": a.conf}
    r = a.node.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert r.returncode == 20 and "ermission" in r.stderr, r
    assert (files(a), links(a), a("show", "r0")) == before
    # One that hangs can be ended by its new name.
    a("secondary", "r0")
    rename(a, "r0", "r1")
    os.kill(a.node.serving("r1"), signal.SIGSTOP)
    urbd(a, "down", "--force", "r1")
    a("down", "taken")
    assert files(a) == ["r1.log"] and not a.node.pids(), files(a)


@pytest.mark.parametrize("state", ["frozen", "peer gone", "peer hangs", "no disk"])
def test_in_any_state(cluster, state):
    hosts = a, b = pair(cluster)
    built(hosts)
    data = os.urandom(MIB)
    writer = None
    if state == "frozen":
        a("suspend-io", a.minor)
        writer = threading.Thread(target=a.write, args=(data, 2))
        writer.start()
    elif state == "peer gone":
        kill(b, "r0")
    elif state == "peer hangs":
        os.kill(b.node.serving(), signal.SIGSTOP)
    else:
        a("detach", a.minor)
    rename(a, "r0", "r1")
    rename(a, "r1", "r2")
    assert role(a, "r2") == "Primary"
    if state == "frozen":
        assert writer.is_alive()
        a("resume-io", a.minor)
        writer.join(60)
        assert not writer.is_alive()
    elif state == "peer gone":
        urbd(b, "restart", "r0")
    elif state == "peer hangs":
        os.kill(b.node.serving(), signal.SIGCONT)
    else:
        a("attach", a.minor, a.disk(), a.disk(), "internal")
    a.write(data, 4)
    rename(a, "r2", "r0")
    eventually("connected", lambda: connected(a, "r0"), 30)
    synced(hosts)
    same_data(hosts)


def test_killed_in_the_middle(cluster):
    """It has one of the two names, whole: the other is free."""
    (a,) = [Host(cluster.node("alpha", size=16 * MIB))]
    a.create_md()
    a("new-resource", "r0", 0)
    a.volume()
    a.attach()
    a("primary", "r0", "--force")
    app = Application(door(a), 0)
    rng, name, both = random.Random(11), "r0", set()
    for _ in range(14):
        other = "r1" if name == "r0" else "r0"
        pid = a.node.serving(name)
        caller = threading.Thread(target=lambda: a.call("drbdsetup", "rename-resource", name, other))
        caller.start()
        threading.Event().wait(rng.random() / 25)
        os.kill(pid, signal.SIGKILL)
        caller.join(60)
        eventually("gone", lambda: not a.node._alive(pid), 20)
        (keeper,) = [f for f in files(a) if f.endswith(".keeper")]
        both.add(keeper.removesuffix(".keeper") == name)
        name = keeper.removesuffix(".keeper")
        urbd(a, "restart", name)
        app.goes_on()
        assert f"by-res/{name}/0" in links(a)
        free = "r1" if name == "r0" else "r0"
        a("status", free, rc=10)
        a("new-resource", free, 0)
        a("down", free)
        app.goes_on()
    assert both == {True, False}, "neither way was tried"
    app.end()
    a("down", name)
    assert [f for f in files(a) if not f.endswith(".log")] == [], files(a)


def test_others_that_wait_for_it_wait_on(cluster):
    (a,) = [Host(cluster.node("alpha", size=16 * MIB, volumes=3))]
    for volume in range(3):
        a.create_md(volume)
    for name in ("r0", "r1"):
        a("new-resource", name, 0)
    a("new-minor", "r0", a.minor, 0)
    a("attach", a.minor, a.disk(0), a.disk(0), "internal")
    a("new-minor", "r0", a.minor + 1, 1)
    a("attach", a.minor + 1, a.disk(1), a.disk(1), "internal", f"--resync-after={a.minor}")
    a("new-minor", "r1", a.minor + 2, 0)
    a("attach", a.minor + 2, a.disk(2), a.disk(2), "internal", f"--resync-after={a.minor + 1}")
    before = a("show", "r1")
    assert str(a.minor + 1) in before
    rename(a, "r0", "x")
    assert a("show", "r1") == before
    assert a("show", "x").replace("x", "r0", 1).count("resync-after") == 1
    kill(a, "r1")
    kill(a, "x")
    for name in ("r1", "x"):
        urbd(a, "restart", name)
    assert a("show", "r1") == before
    for name in ("r1", "x"):
        a("down", name)


@pytest.mark.parametrize("file", ["follows", "does not follow"])
def test_what_is_in_a_file(cluster, file):
    """Who renames a resource renames it in the file, too; adjust finds nothing to do then."""
    a = cluster.node("alpha", size=16 * MIB)
    b = cluster.node("bravo", size=16 * MIB)
    cluster.configure(ids=True)
    for node in (a, b):
        node.verb("create-md", "--force", "--format=v09", "r0")
        node.verb("up", "r0")
    a.verb("primary", "--force", "r0")
    cluster.wait_synced()
    tool = os.path.join(a.dir, "drbdsetup")
    os.symlink(URBD, tool)
    app = Application(a.device(), 0)

    def setup(*words):
        r = a.run([tool, *words], env=a.env(), capture_output=True, text=True, timeout=60)
        assert r.returncode == 0, r
        return r.stdout

    setup("rename-resource", "r0", "r1")
    app.goes_on()
    if file == "follows":
        for node in (a, b):
            os.remove(os.path.join(node.dir, "res.d", "r0.res"))
        cluster.configure(nodes=[a, b], ids=True, name="r1")
        process = a.serving("r1")
        with following(a) as (events,):
            quiet = len(events.lines())
            assert a.verb("adjust", "r1").out == ""
            assert events.lines()[quiet:] == [] and a.serving("r1") == process
            assert a.verb("-d", "adjust", "r1").out == ""
    else:
        assert a.verb("role", "r1").out.strip().startswith("Primary")
    a.kill_process("r1")
    a.verb("restart", "r1")
    app.goes_on()
    app.end()
    a.wait(conn="Connected", res="r1", disk="UpToDate", peer_disk="UpToDate")
    a.verb("secondary", "r1")
    a.verb("down", "r1")
    left = [f for f in os.listdir(a.run_dir) if not f.endswith(".log")]
    assert left == [], left
