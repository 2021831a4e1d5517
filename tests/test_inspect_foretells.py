"""`urbd inspect` on the disks of two nodes that are down foretells what their processes decide when they connect, in both
dialects, and what it suggests to type does what it says."""

import hashlib
import json
import os
import re
import subprocess

import pytest

import cluster as C
from cluster import MIB, eventually

SIZE = 32 * MIB
APART = "~Connecting|Unconnected|NetworkFailure|Timeout|StandAlone"
# What a process writes to its log of a comparison, in each dialect: the rule and what follows.
LOGGED = {"8.4": re.compile(r"generations compared \(rule (\d+)\): ([^;]*); ([^:]*): (.*)"),
          "9": re.compile(r"generations compared: (.*): ([a-z0-9()-]+) \[")}


def inspect(*arguments, rc=0):
    r = subprocess.run([C.URBD, "inspect", "--json", *arguments], capture_output=True, text=True, timeout=60)
    assert r.returncode == rc, r
    return json.loads(r.stdout)


def whole(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@pytest.fixture(params=["8.4", "9"])
def pair(request, cluster):
    for name in "ab":
        cluster.node(name, size=SIZE)
    cluster.dialect = request.param
    cluster.configure(ids=request.param == "9")
    return cluster


def created(c):
    for n in c.nodes:
        n.create_md()


def synced(c):
    """In sync, both Secondary, a was Primary."""
    c.start_fresh()
    a, _ = c.nodes
    a.urbd("primary", "--force", "r0")
    c.wait_synced()
    a.write(0, b"before!!" * 512)
    a.urbd("secondary", "r0")


def parted(c):
    """In sync, then without a network between them."""
    synced(c)
    c.nodes[1].cut()
    for n in c.nodes:
        n.wait(conn=APART, timeout=40)


def end(c):
    for n in c.nodes:
        if n.processes:
            n.stop()
    c.nodes[1].heal()


def equal(c):
    synced(c)


def just_created(c):
    created(c)


def one_is_new(c):
    synced(c)
    end(c)
    c.nodes[1].create_md()


def one_behind(c):
    parted(c)
    a, _ = c.nodes
    a.urbd("primary", "r0")
    a.write(MIB, b"\xaa" * 65536)
    a.urbd("secondary", "r0")


def taken_over(c):
    """b went on where a was Primary."""
    synced(c)
    a, b = c.nodes
    a.stop()
    b.wait(conn=APART, timeout=40)
    b.urbd("primary", "r0")
    b.write(MIB, b"\xbb" * 8192)
    b.urbd("secondary", "r0")


def split_brain(c):
    parted(c)
    for n, at in zip(c.nodes, (MIB, 8 * MIB)):
        n.urbd("primary", "r0")
        n.write(at, n.name.encode() * 8192)
        n.urbd("secondary", "r0")


def never_met(c):
    created(c)
    for n in c.nodes:
        n.start()
        n.urbd("disconnect", "r0")
    for n in c.nodes:
        n.urbd("primary", "--force", "r0")
        n.write(0, n.name.encode() * 4096)
        n.urbd("secondary", "r0")


def unrelated(c):
    """The same, and each has had generations that the other one has not."""
    never_met(c)
    for n in c.nodes:
        n.stop()
        past = ":".join(f"{n.name * 15}{k}" for k in (2, 4))
        n.urbd("set-gi", "--force", "--gi", f":0:{past}", "r0:" + ("b" if n.name == "a" else "a"))


def crashed_primary(c):
    """Both lose their power: what a wrote last is in the activity log alone."""
    synced(c)
    a, b = c.nodes
    a.urbd("primary", "r0")
    a.write(4 * MIB, b"\xcc" * 4096)
    b.kill()
    a.kill()


def survivor(c):
    """a crashes, and b is taken down in order."""
    synced(c)
    a, b = c.nodes
    a.urbd("primary", "r0")
    a.write(4 * MIB, b"\xcc" * 4096)
    a.kill()
    b.wait(conn=APART, timeout=40)


def outdated(c):
    parted(c)
    c.nodes[1].urbd("outdate", "r0")


def interrupted(c):
    """The target of a full resync loses its power in the middle."""
    synced(c)
    a, b = c.nodes
    for n in c.nodes:
        n.urbd("peer-device-options", "--c-plan-ahead=0", "--resync-rate=1M", "r0")
    a.urbd("invalidate-remote", "r0")
    b.wait(repl="SyncTarget", timeout=40)
    b.kill()
    a.wait(conn=APART, timeout=40)


def no_good_copy(c):
    """a has a generation, and no consistent disk; b has nothing."""
    created(c)
    c.nodes[0].urbd("set-gi", "--force", "--gi", "AAAAAAAAAAAAAAA0:0:0:0:0:0", "r0:b")


def smaller_disk(c):
    """b gets another disk, which is too small."""
    synced(c)
    end(c)
    os.truncate(c.nodes[1].disk_file(), 16 * MIB)
    c.nodes[1].create_md()


SITUATIONS = {equal: "equal", just_created: "no-data", one_is_new: "behind", one_behind: "behind", taken_over: "behind",
              split_brain: "split-brain", never_met: {"8.4": "split-brain", "9": "unrelated"}, unrelated: "unrelated",
              crashed_primary: "behind", survivor: "behind",
              outdated: "equal", interrupted: "behind", smaller_disk: "refused",
             no_good_copy: {"8.4": "refused", "9": "behind"}}


def decided(c, logs):
    """What a's process says of its first comparison."""
    a = c.nodes[0]
    return eventually("a compared generations", lambda: LOGGED[c.dialect].search(a.log()[logs:]), 40)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.__name__)
def test_what_is_foretold_is_decided(pair, situation):
    a, b = pair.nodes
    situation(pair)
    end(pair)
    disks = {n.name: n.disk_file() for n in pair.nodes}
    before = [whole(path) for path in disks.values()]
    told = inspect(*(f"{name}={path}" for name, path in disks.items()))
    assert [whole(path) for path in disks.values()] == before
    assert [d["name"] for d in told["disks"]] == ["a", "b"] and not any(d["notes"] for d in told["disks"]), told
    assert {d["format"] for d in told["disks"]} == {"v08" if pair.dialect == "8.4" else "v09"}
    [meeting] = told["pairs"]
    expected = SITUATIONS[situation]
    assert told["state"] == (expected if isinstance(expected, str) else expected[pair.dialect]), told
    assert meeting["dialect"] == pair.dialect
    logs = len(a.log())
    a.start()
    b.start()
    if meeting["reason"] == "peer-disk-too-small":
        # Sizes come first.
        assert situation is smaller_disk and meeting["outcome"] == "refused"
        eventually("a refuses", lambda: "[peer-disk-too-small]" in a.log()[logs:], 40)
        return
    found = decided(pair, logs)
    if pair.dialect == "8.4":
        assert meeting["strategy"].endswith(f"by rule {found[1]}"), (meeting, found[0])
    else:
        assert meeting["strategy"] == found[2], (meeting, found[0])
        assert meeting["rule-text"] == found[1], (meeting, found[0])
    if meeting["outcome"] == "resync":
        source = meeting["source"]
        target = "b" if source == "a" else "a"
        assert source == {"interrupted": "a", "taken_over": "b"}.get(situation.__name__, "a")
        nodes = {n.name: n for n in pair.nodes}
        most = SIZE // 1024 if meeting["everything"] else sum(meeting["marked-kib"])
        good = "Inconsistent" if situation is no_good_copy else "UpToDate"
        got = nodes[target].wait(conn="Connected", repl="Established", disk=good, timeout=60)["received"]
        assert most or not got, "something came that nothing was marked for"
        assert got <= most, (got, meeting)
        nodes[source].wait(disk=good)
        pair.assert_same()
    elif meeting["outcome"] in ("split-brain", "unrelated"):
        eventually("they stay apart", lambda: "StandAlone" in (a.state()["conn"], b.state()["conn"]), 40)
    elif meeting["outcome"] == "refused":
        assert meeting["reason"] == "source-is-inconsistent"
        eventually("a refuses", lambda: f"[{meeting['reason']}]" in a.log()[logs:], 40)
        assert {n.state()["disk"] for n in pair.nodes} == {"Inconsistent"}
    else:
        assert meeting["outcome"] == "equal"
        for n in pair.nodes:
            assert n.wait(conn="Connected", repl="Established")["received"] == 0


def choose(c, told, title, **instead):
    """Types a choice, on the nodes that it names."""
    [choice] = [x for x in told["choices"] if x["title"] == title]
    nodes = {n.name: n for n in c.nodes}
    for step in choice["commands"]:
        program, *words = step["command"].split()
        assert program == "urbd"
        if words[0] == "up":
            if not nodes[step["on"]].processes:
                nodes[step["on"]].start()
            continue
        nodes[step["on"]].urbd(*words, *instead.get(words[0].replace("-", "_"), ()))
    return choice


@pytest.mark.parametrize("keep", ["a", "b"])
def test_a_split_brain_is_ended_as_it_is_suggested(pair, keep):
    split_brain(pair)
    end(pair)
    told = inspect("--resource", "r0", *(f"{n.name}={n.disk_file()}" for n in pair.nodes))
    assert told["state"] == "split-brain"
    choice = choose(pair, told, f"Keep {keep}'s data.")
    victim = "b" if keep == "a" else "a"
    assert choice["loses"] == f"what {victim} has written alone (8 KiB)", choice
    pair.wait_synced()
    pair.assert_same()
    kept = pair.nodes["ab".index(keep)]
    kept.urbd("primary", "r0")
    assert kept.read(MIB if keep == "a" else 8 * MIB, 512) == keep.encode() * 512
    assert kept.read(8 * MIB if keep == "a" else MIB, 512) == bytes(512)


def test_unrelated_data_is_thrown_away_as_it_is_suggested(pair):
    unrelated(pair)
    end(pair)
    told = inspect("--resource", "r0", *(f"{n.name}={n.disk_file()}" for n in pair.nodes))
    choice = choose(pair, told, "Keep b's data.", create_md=("--force",))
    assert choice["loses"] == "all data of a"
    pair.wait_synced()
    pair.nodes[1].urbd("primary", "r0")
    assert pair.nodes[1].read(0, 4096) == b"b" * 4096


def test_a_first_copy_is_chosen_as_it_is_suggested(pair):
    created(pair)
    told = inspect("--resource", "r0", *(f"{n.name}={n.disk_file()}" for n in pair.nodes))
    choose(pair, told, "Begin with what is on b's disk.")
    pair.wait_synced()
    assert pair.nodes[1].state()["role"] == "Primary"


def test_disks_that_are_in_use_are_inspected(pair):
    """Also of a Primary that is being written to: it is not disturbed, and said to be in use."""
    synced(pair)
    a, b = pair.nodes
    a.urbd("primary", "r0")
    a.write(0, b"x" * 4096)
    told = inspect(f"a={a.disk_file()}", f"b={b.disk_file()}")
    assert told["disks"][0]["activity-log"]["clean"] is False and "Primary" in told["disks"][0]["flags"], told["disks"][0]
    assert all("it is in use by urbd (pid" in d["notes"][0] for d in told["disks"]), told["disks"]
    a.write(4096, b"y" * 4096)
    pair.wait_synced()


def test_dumps_say_what_the_disks_say(pair, tmp_path):
    """By our dump-md: nothing that matters is left out."""
    split_brain(pair)
    end(pair)
    of_disks = inspect(*(f"{n.name}={n.disk_file()}" for n in pair.nodes))
    dumps = []
    for n in pair.nodes:
        dumps.append(str(tmp_path / f"{n.name}.dump"))
        with open(dumps[-1], "w") as f:
            f.write(n.urbd("dump-md", "r0").out)
    of_dumps = inspect(*(f"{n.name}={path}" for n, path in zip(pair.nodes, dumps)))
    assert of_dumps["pairs"] == of_disks["pairs"] and of_dumps["choices"] == of_disks["choices"]
    for disk, dump in zip(of_disks["disks"], of_dumps["disks"]):
        assert {k for k in disk if disk[k] != dump[k]} <= {"path", "place", "superblock-at", "length"}


@pytest.fixture
def mesh(cluster):
    for name in "abc":
        cluster.node(name, size=SIZE)
    cluster.configure(ids=True, extra="connection-mesh { hosts a b c; }")
    cluster.start_fresh()
    cluster.nodes[0].urbd("primary", "--force", "r0")
    for n in cluster.nodes:
        eventually(f"{n.name} has all", lambda n=n: all_good(n), 60)
    cluster.nodes[0].write(0, b"before!!" * 512)
    return cluster


def all_good(n):
    s = n.status()
    peers = [p for c in s["connections"] for p in c["peer_devices"]]
    return s["devices"][0]["disk-state"] == "UpToDate" and all(
        p["replication-state"] == "Established" and p["peer-disk-state"] == "UpToDate" for p in peers)


def told_of(c, *names):
    return inspect(*(f"{n.name}={n.disk_file()}" for n in c.nodes if n.name in names))


def test_three_of_which_one_is_behind(mesh):
    a, b, c = mesh.nodes
    c.stop()
    eventually("c is gone", lambda: all(x["connection-state"] == "Connecting" for x in a.status()["connections"][1:]), 40)
    a.write(MIB, b"\xaa" * 8192)
    a.urbd("secondary", "r0")
    for n in (a, b):
        n.stop()
    told = told_of(mesh, "a", "b", "c")
    assert told["state"] == "behind" and told["summary"].startswith("a and b have the newest data"), told["summary"]
    found = {tuple(p["nodes"]): (p["outcome"], p["source"], p["everything"]) for p in told["pairs"]}
    assert found == {("a", "b"): ("equal", None, False), ("a", "c"): ("resync", "a", False), ("b", "c"): ("resync", "b", False)}
    logs = {n.name: len(n.log()) for n in (b, c)}
    b.start()
    c.start()
    decided = eventually("compared", lambda: LOGGED["9"].search(b.log()[logs["b"]:]), 40)
    [pair] = [p for p in told["pairs"] if p["nodes"] == ["b", "c"]]
    assert (pair["rule-text"], pair["strategy"]) == decided.groups()
    eventually("c has it", lambda: c.status()["devices"][0]["disk-state"] == "UpToDate", 40)
    mesh.assert_same(nodes=[b, c])


def test_three_of_which_the_primary_crashed(mesh):
    """Who is left may have marks of its last writes: that they are settled is said, and done."""
    a, b, c = mesh.nodes
    a.write(2 * MIB, b"\xcc" * 65536)
    a.kill()
    for n in (b, c):
        n.kill()
    told = told_of(mesh, "a", "b", "c")
    found = {tuple(p["nodes"]): (p["outcome"], p["source"], p["unsettled-marks"]) for p in told["pairs"]}
    assert found == {("a", "b"): ("resync", "a", False), ("a", "c"): ("resync", "a", False), ("b", "c"): ("equal", None, True)}
    logs = len(b.log())
    b.start()
    c.start()
    decided = eventually("compared", lambda: LOGGED["9"].search(b.log()[logs:]), 40)
    [pair] = [p for p in told["pairs"] if p["nodes"] == ["b", "c"]]
    # A rule of urbd's own has the last word, of what is marked.
    assert pair["strategy"] == "no-sync" and decided[2] in ("source-use-bitmap", "target-use-bitmap"), decided[0]
    for n in (b, c):
        eventually("both have the same", lambda n=n: "Established" in [
            p["replication-state"] for x in n.status()["connections"] for p in x["peer_devices"]], 40)
    mesh.assert_same(nodes=[b, c])
    logs = len(b.log())
    a.start()
    decided = eventually("compared", lambda: LOGGED["9"].search(b.log()[logs:]), 40)
    assert decided[2].startswith("target"), decided[0]
    eventually("all are good", lambda: all(n.status()["devices"][0]["disk-state"] == "UpToDate" for n in mesh.nodes), 40)
    mesh.assert_same()
