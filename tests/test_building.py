"""A resource is built up by commands, and taken apart by them: no file says what it is (docs/spec/scenarios9.md 1)."""

import json
import os
import random
import re
import shutil
import signal
import subprocess

import pytest

from cluster import MIB, URBD, eventually, same_beginning
from test_events import following
from test_operator import ask

IDS = {"alpha": 0, "bravo": 1, "charlie": 2}
TOOLS = ("drbdsetup", "drbdadm", "drbdmeta")


class Host:
    """A node of the cluster without any configuration: drbdsetup and drbdmeta alone.  Who opens one waits for ever."""

    def __init__(self, node):
        self.node, self.name, self.id = node, node.name, IDS[node.name]
        self.minor = 100 + 100 * self.id
        self.tools = os.path.join(node.dir, "tools")
        os.makedirs(self.tools, exist_ok=True)
        for tool in TOOLS:
            os.symlink(URBD, os.path.join(self.tools, tool))
        self.conf = os.path.join(node.dir, "nothing.conf")
        os.mkfifo(self.conf)

    def call(self, tool, *words, timeout=60):
        env = {**self.node.env(), "URBD_CONF": self.conf}
        argv = [os.path.join(self.tools, tool), *map(str, words)]
        return self.node.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)

    def __call__(self, *words, rc=0, tool="drbdsetup"):
        r = self.call(tool, *words)
        assert r.returncode == rc, f"{self.name}: {tool} {' '.join(map(str, words))}: exit {r.returncode}\n{r.stdout}{r.stderr}"
        return r.stdout + r.stderr

    def address(self):
        return f"ipv4:{self.node.ip}:7789"

    def disk(self, volume=0):
        return self.node.disk_file(volume)

    def create_md(self, volume=0, peers=2):
        self("--force", self.minor + volume, "v09", self.disk(volume), "internal", "create-md", peers, tool="drbdmeta")

    def volume(self, volume=0):
        self("new-minor", "r0", self.minor + volume, volume)

    def attach(self, volume=0):
        self("attach", self.minor + volume, self.disk(volume), self.disk(volume), "internal")

    def peer(self, other, *options):
        self("new-peer", "r0", other.id, f"--_name={other.name}", *options)

    def path(self, other):
        self("new-path", "r0", other.id, self.address(), other.address())

    def status(self):
        return json.loads(self("status", "r0", "--json"))[0]

    def disk_state(self, volume=0):
        return next(d["disk-state"] for d in self.status()["devices"] if d["volume"] == volume)

    def device(self, volume=0):
        return f"/dev/urbd/drbd{self.minor + volume}"

    def write(self, data, offset=0, volume=0):
        self.node.dd(self.device(volume), data, offset)


def pair(cluster, volumes=1):
    return [Host(cluster.node(name, size=16 * MIB, volumes=volumes)) for name in ("alpha", "bravo")]


def connect(hosts, *options):
    for host in hosts:
        for other in hosts:
            if other is not host:
                host.peer(other, *options)
                host.path(other)
    for host in hosts:
        for other in hosts:
            if other is not host:
                host("connect", "r0", other.id)


def synced(hosts, volume=0):
    def good():
        return all(h.disk_state(volume) == "UpToDate" for h in hosts)
    eventually(f"UpToDate: {[h('status') for h in hosts]}", good, 40)


def built(hosts, *options):
    for host in hosts:
        host.create_md(peers=2)
        host("new-resource", "r0", host.id)
        host.volume()
        host.attach()
    connect(hosts, *options)
    hosts[0]("primary", "r0", "--force")
    synced(hosts)


def same_data(hosts, volume=0):
    same_beginning([host.node for host in hosts], volume)


def test_two_nodes_are_built_without_a_file_and_taken_apart(cluster):
    hosts = a, b = pair(cluster)
    options = ("--protocol=C", "--verify-alg=crc32c", "--cram-hmac-alg=sha1", "--shared-secret=a secret")
    built(hosts, *options)
    data = os.urandom(4 * MIB)
    a.write(data)
    same_data(hosts)
    with open(b.disk(), "rb") as f:
        assert f.read(4 * MIB) == data
    shown = a("show", "r0")
    for word in ("node-id\t\t\t0;", "minor 100;", a.disk(), "_peer_node_id 1;", '"a secret"', "verify-alg"):
        assert word in shown, (word, shown)
    # The other way round, each step with what must come before it.
    said = a("del-minor", a.minor, rc=10)
    assert "(160)" in said, said
    assert "additional info" in a("new-peer", "r0", 1, rc=10)
    a("secondary", "r0")
    a("disconnect", "r0", 1)
    a("del-path", "r0", 1, a.address(), b.address())
    a("del-peer", "r0", 1)
    assert a.status()["connections"] == []
    assert "(160)" in a("del-resource", "r0", rc=10)
    a("detach", a.minor)
    a("del-minor", a.minor)
    assert a.status()["devices"] == []
    eventually("its device is gone", lambda: a.node.run(["test", "-e", a.device()]).returncode != 0, 10)
    eventually("so are its names", lambda: a.node.run(["test", "-L", a.device()]).returncode != 0, 10)
    a("del-resource", "r0")
    assert json.loads(a("status", "--json")) == []
    # And from the beginning: nothing was lost, nothing is copied.
    a("new-resource", "r0", 0)
    a.volume()
    a.peer(b, *options)
    a.path(b)
    a.attach()
    a("connect", "r0", 1)
    eventually("connected", lambda: a("cstate", "r0", 1).strip() == "Connected", 30)
    synced(hosts)
    same_data(hosts)


def test_what_is_refused_changes_nothing(cluster):
    a, b = pair(cluster)
    for words, rc, text in [
        (("new-minor", "r0", 100, 0), 10, "(158)"), (("new-peer", "r0", 1), 10, "(158)"), (("attach", 100, "/x", "/x", "internal"), 10, "(127)"),
        (("new-resource", "a/b", 0), 10, "(162)"), (("new-resource", "all", 0), 10, "(162)"), (("new-resource", "r0", 32), 10, "(162)"),
        (("new-resource", "r0"), 20, "too few"), (("new-minor", "r0", 100), 20, "too few"), (("new-path", "r0", 1, "x"), 20, "too few"),
        (("new-resource", "r0", 0, 1), 20, "too many"),
    ]:
        assert text in a(*words, rc=rc), (words, text)
    assert not [f for f in os.listdir(a.node.run_dir) if f.endswith(".sock")]
    a.create_md()
    a("new-resource", "r0", 0)
    a.volume()
    a.peer(b)
    a.path(b)
    before = a("show", "r0")
    for words, rc, text in [
        (("new-resource", "r0", 0), 10, "(174)"), (("new-minor", "r0", 101, 0), 10, "(161)"), (("new-minor", "r0", 100, 1), 10, "(161)"),
        (("new-peer", "r0", 1), 10, "(162)"), (("new-peer", "r0", 0), 10, "own node id"), (("new-peer", "r0", 99), 10, "out of range"),
        (("new-peer", "r0", 2, "--_name=bravo"), 10, "(174)"), (("new-peer", "r0", 2, "--nonsense=1"), 20, "nonsense"),
        (("new-peer", "r0", 2, "--quorum=majority"), 20, "quorum"),
        (("new-path", "r0", 1, a.address(), b.address()), 10, "(173)"), (("new-path", "r0", 2, a.address(), b.address()), 10, "(171)"),
        (("del-path", "r0", 1, b.address(), a.address()), 10, "no such path"), (("del-peer", "r0", 2), 10, "(171)"),
        (("del-minor", 199), 10, "(127)"), (("attach", 199, "/x", "/x", "internal"), 10, "(127)"),
        (("attach", 100, "/nonexistent", "/nonexistent", "internal"), 20, "No such file"), (("connect", "r0", 2), 10, "(171)"),
        (("net-options", "r0", 1, "--protocol=D"), 20, "protocol"), (("new-peer", "r0", 2, "--protocol=D"), 20, "protocol"),
        (("new-peer", "r0", 2, "--data-integrity-alg=sha257"), 10, "sha257"), (("net-options", "r0", 1, "--data-integrity-alg=sha257"), 10, "sha257"), (("disk-options", 199, "--al-extents=67"), 10, "(127)"),
        (("resource-options", "r0", "--quorum=33"), 20, "quorum"), (("del-resource", "r0"), 10, "(125)"),
    ]:
        said = a(*words, rc=rc)
        assert text in said, (words, text, said)
        assert a("show", "r0") == before, words
    # Another resource on the same minor.
    a("new-resource", "r1", 0)
    assert "(161)" in a("new-minor", "r1", 100, 0, rc=10)
    a("down", "r1")
    a("down", "r1")
    a("down", "nonsense")


def test_volumes_come_and_go_beside_one_in_use(cluster):
    hosts = a, b = pair(cluster, volumes=2)
    built(hosts)
    a.node.run(["mkfs.ext4", "-q", a.device()], check=True, timeout=60)
    mount = os.path.join(a.node.dir, "mnt")
    a.node.run(["sh", "-c", f"mkdir -p {mount} && mount {a.device()} {mount} && echo here > {mount}/file && sync"], check=True)
    with following(b.node) as (stream,):
        a.volume(1)
        assert a.disk_state(1) == "Diskless"
        b.volume(1)
        for host in hosts:
            host.create_md(1)
            host.attach(1)
        eventually("both know it", lambda: all(h.status()["connections"][0]["peer_devices"][1]["peer-disk-state"] == "Inconsistent"
                                               for h in hosts), 30)
        a("new-current-uuid", "--clear-bitmap", a.minor + 1)
        synced(hosts, 1)
        data = os.urandom(2 * MIB)
        a.write(data, volume=1)
        same_data(hosts, 1)
        for host in hosts:
            host("detach", host.minor + 1)
            host("del-minor", host.minor + 1)
        assert [d["volume"] for d in a.status()["devices"]] == [0]
        assert a.node.run(["cat", f"{mount}/file"], capture_output=True, text=True).stdout == "here\n"
        assert a("cstate", "r0", 1).strip() == "Connected"
        a.node.run(["umount", mount], check=True)
        lines = stream.lines()
    assert not [line for line in lines if re.search(r"BrokenPipe|NetworkFailure|Timeout|ProtocolError|disk:Failed", line)], lines


@pytest.mark.parametrize("nodes, by, diskless", [(2, "bravo", False), (3, "alpha", False), (3, "bravo", True)])
def test_the_copy_of_a_new_volume_that_is_named_good_goes_to_all_others(cluster, nodes, by, diskless):
    """`new-current-uuid --force-resync`, given at a Secondary beside a Primary, at the Primary, and where that has no disk."""
    hosts = [Host(cluster.node(name, size=16 * MIB, volumes=2)) for name in list(IDS)[:nodes]]
    a = hosts[0]
    built(hosts)
    given = next(h for h in hosts if h.name == by)
    with_disk = [h for h in hosts if not (diskless and h is a)]
    for host in with_disk:
        with open(host.disk(1), "r+b") as f:
            f.write(os.urandom(2 * MIB))
        host.create_md(1, peers=3)
    with following(given.node) as (stream,):
        for host in hosts:
            host("new-minor", "r0", host.minor + 1, 1, *(["--diskless"] if host not in with_disk else []))
        for host in with_disk:
            host.attach(1)
        known = [h.id for h in with_disk if h is not given]
        eventually("their disks are known", lambda: all(
            d["peer-disk-state"] == "Inconsistent" and d["replication-state"] == "Established"
            for c in given.status()["connections"] if c["peer-node-id"] in known for d in c["peer_devices"] if d["volume"] == 1), 30)
        if nodes == 3 and not diskless:
            # Among several a Primary is not brought up to date.
            assert "(-17)" in hosts[1]("new-current-uuid", "--force-resync", hosts[1].minor + 1, rc=11)
            assert hosts[1].disk_state(1) == "Inconsistent"
        given("new-current-uuid", "--force-resync", given.minor + 1)
        assert given.disk_state(1) == "UpToDate"
        synced(with_disk, 1)
        if diskless:
            eventually("it sees good copies", lambda: [d["peer-disk-state"] for c in a.status()["connections"]
                                                       for d in c["peer_devices"] if d["volume"] == 1] == 2 * ["UpToDate"], 20)
        lines = stream.lines()
        same_data(with_disk, 1)
        a.write(os.urandom(MIB), offset=3, volume=1)
        same_data(with_disk, 1)
    assert a("role", "r0").startswith("Primary")
    sources = [line for line in lines if "volume:1" in line and "replication:SyncSource" in line]
    assert {int(re.search(r"peer-node-id:(\d+)", line)[1]) for line in sources} == set(known), lines
    # Who has data already has it replaced by nobody.
    assert "(151)" in given("new-current-uuid", "--force-resync", given.minor + 1, rc=10)


def metadata(host):
    """As they are on disk."""
    copy = shutil.copy(host.disk(), host.disk() + ".copy")
    return host("--force", host.minor + 50, "v09", copy, "internal", "dump-md", tool="drbdmeta")


def bitmaps(host):
    """The nodes that have one."""
    peers = re.findall(r"peer\[(\d+)\] \{(.*?)\}", metadata(host), re.S)
    return [int(n) for n, text in peers if "bitmap-index -1;" not in text]


def marks(host):
    """How many blocks are marked in each slot."""
    slots = re.findall(r"bitmap\[\d+\] \{(.*?)\}", metadata(host), re.S)
    words = [re.findall(r"(?:(\d+) times )?0x([0-9A-F]{16});", text) for text in slots]
    return [sum(int(times or 1) * bin(int(word, 16)).count("1") for times, word in all_of_it) for all_of_it in words]


def test_a_third_node_comes_to_a_primary_in_use_and_the_first_peer_goes(cluster):
    a, b = pair(cluster)
    built([a, b])
    c = Host(cluster.node("charlie", size=16 * MIB))
    data = os.urandom(3 * MIB)
    a.write(data)
    for host in (a, b):
        host.peer(c)
        host.path(c)
        host("connect", "r0", c.id)
    c.create_md()
    c("new-resource", "r0", c.id)
    c.volume()
    for other in (a, b):
        c.peer(other)
        c.path(other)
    c.attach()
    for other in (a, b):
        c("connect", "r0", other.id)
    synced([a, b, c])
    more = os.urandom(MIB)
    a.write(more, offset=4)
    same_data([a, b, c])
    for host in (a, c):
        host("disconnect", "r0", b.id)
        assert "(125)" in host("forget-peer", "r0", b.id, rc=10), "it is a peer yet"
        host("del-peer", "r0", b.id)
        assert "(171)" in host("forget-peer", "r0", 40, rc=10)
        assert bitmaps(host) == sorted([b.id, c.id if host is a else a.id])
        for _ in range(2):
            host("forget-peer", "r0", b.id)
        assert bitmaps(host) == [c.id if host is a else a.id]
    b("down", "r0")
    # A disk that is not attached: whoever gets a slot lacks all of it. So says the one that is vacant first, then the other.
    blocks = int(re.search(r"la-size-sect (\d+);", metadata(b))[1]) // 8
    for other, marked in ((a, [blocks, 0]), (c, [blocks, blocks])):
        b("--force", b.minor, "v09", b.disk(), "internal", "forget-peer", "--node-id", other.id, tool="drbdmeta")
        assert marks(b) == marked
    assert bitmaps(b) == []
    a.write(os.urandom(MIB), offset=5)
    same_data([a, c])
    with open(c.disk(), "rb") as f:
        assert f.read(3 * MIB) == data
    assert [x["peer-node-id"] for x in a.status()["connections"]] == [c.id]


def test_a_path_of_two_comes_and_goes_while_the_peer_is_away(cluster):
    a, b = pair(cluster)
    a("new-resource", "r0", 0)
    a.volume()
    a.peer(b)
    a.path(b)
    other = ("r0", 1, f"ipv4:{a.node.ip}:7790", f"ipv4:{b.node.ip}:7790")
    a("new-path", *other)
    a("connect", "r0", 1)
    for _ in range(5):
        a("del-path", *other)
        a("new-path", *other)
        assert a("cstate", "r0", 1).strip() == "Connecting"
    a("del-path", *other)
    assert "use disconnect first" in a("del-path", "r0", 1, a.address(), b.address(), rc=10)
    a("disconnect", "r0", 1)
    a("del-path", "r0", 1, a.address(), b.address())
    assert "(162)" in a("connect", "r0", 1, rc=10)


def test_who_opens_a_configuration_is_noticed(cluster):
    """What the tests here prove by the way: nobody has opened it."""
    a, _ = pair(cluster)
    with pytest.raises(subprocess.TimeoutExpired):
        a.call("drbdadm", "sh-nop", timeout=3)
    assert a("status", "--json").strip() == "[]"


@pytest.mark.parametrize("verbs", [("new-minor r0", "new-peer r0", "new-path r0", "peer-device-options r0", "attach r0", "connect r0"),
                                   ("new-peer r0", "new-path r0", "connect r0", "new-minor r0", "peer-device-options r0", "attach r0"),
                                   ("new-peer r0:bravo", "new-minor r0/0", "attach r0/0", "new-path r0:bravo", "peer-device-options r0", "connect r0:bravo")])
def test_drbdadm_makes_one_object_at_a_time(cluster, verbs):
    a, b = cluster.node("alpha", size=16 * MIB), cluster.node("bravo", size=16 * MIB)
    cluster.configure(ids=True)
    for n in (a, b):
        n.create_md()
        n.verb("new-resource", "r0")
        for verb in verbs:
            n.verb(*verb.replace("bravo", "alpha" if n is b else "bravo").split())
        assert n.verb("-d", "adjust", "r0").out == "", "all of it is as configured"
        assert n.verb("sh-list-adjustable", "all").out == ""
    a.verb("primary", "--force", "r0")
    cluster.wait_synced()
    # Each of them once more is refused, and changes nothing.
    assert a.call("new-resource", "r0").rc == 10
    assert a.call("new-peer", "r0").rc == 10
    assert a.call("new-path", "r0").rc == 10
    for n in (a, b):
        assert n.verb("-d", "adjust", "r0").out == ""
    a.verb("secondary", "r0")
    assert a.call("forget-peer", "r0").rc == 10
    a.verb("del-peer", "r0")
    a.verb("forget-peer", "r0")
    assert a.verb("-d", "adjust", "r0").out.startswith("drbdsetup new-peer r0 1 --_name=bravo")
    a.verb("detach", "r0")
    a.verb("del-minor", "r0")
    a.verb("adjust", "r0")
    cluster.wait_synced()
    # Of a disk that is not attached as well.
    a.verb("down", "r0")
    assert "bitmap-index 0;" in a.verb("dump-md", "r0").out
    a.verb("forget-peer", "r0")
    assert "bitmap-index 0;" not in a.verb("dump-md", "r0").out


def test_a_process_that_was_killed_is_made_again_and_its_data_are_there(cluster):
    hosts = a, b = pair(cluster)
    built(hosts)
    data = os.urandom(MIB)
    a.write(data)
    pid = a.node.serving()
    os.kill(pid, signal.SIGKILL)

    def gone():
        # A process that is killed may take seconds to end on a busy machine, and does not answer meanwhile.
        r = a.call("drbdsetup", "status")
        return r.returncode == 0 and "r0" not in r.stdout

    eventually("it is gone", gone, 60)
    a("down", "r0", "--force")
    a("new-resource", "r0", 0)
    a.volume()
    a.attach()
    a.peer(b)
    a.path(b)
    a("connect", "r0", 1)
    synced(hosts)
    with open(a.disk(), "rb") as f:
        assert f.read(MIB) == data


def test_many_orders_end_in_one_state(cluster):
    a, b = pair(cluster)
    a.create_md()
    commands = {
        "minor": (("new-minor", "r0", 100, 0), ()), "peer": (("new-peer", "r0", 1, "--_name=bravo", "--protocol=C"), ()),
        "other": (("new-peer", "r0", 2, "--_name=charlie"), ()),
        "path": (("new-path", "r0", 1, a.address(), b.address()), ("peer",)),
        "attach": (("attach", 100, a.disk(), a.disk(), "internal"), ("minor",)),
        "net": (("net-options", "r0", 1, "--timeout=50"), ("peer",)),
        "options": (("resource-options", "r0", "--on-no-data-accessible=suspend-io", "--quorum=off", "--on-no-quorum=io-error"), ()),
        "speed": (("peer-device-options", "r0", 1, 0, "--c-max-rate=8M"), ("minor", "peer")),
        "connect": (("connect", "r0", 1), ("path",)),
    }
    seen = set()
    chance = random.Random(35)
    for _ in range(12):
        a("new-resource", "r0", 0)
        done = []
        while len(done) < len(commands):
            ready = [name for name, (_, needs) in commands.items() if name not in done and all(n in done for n in needs)]
            done.append(chance.choice(ready))
            a(*commands[done[-1]][0])
        text = a("show", "r0")
        # Peers are in the order in which they came.
        seen.add("".join(sorted(text.splitlines(keepends=True))) + a("status", "r0").replace("charlie", "").strip()[:0])
        a("down", "r0")
    assert len(seen) == 1, seen


def test_nodes_without_volumes_are_connected_and_have_roles(cluster):
    hosts = a, b = pair(cluster)
    for host in hosts:
        host("new-resource", "r0", host.id)
    connect(hosts)

    def connected():
        return all(h("cstate", "r0", 1 - h.id).strip() == "Connected" for h in hosts)

    eventually("connected", connected, 30)
    for host in hosts:
        for words in (("primary", "r0"), ("secondary", "r0"), ("primary", "r0", "--force"), ("secondary", "r0")):
            host(*words)
            assert host("role", "r0").strip().lower() == words[0]
            assert connected()
    a("disconnect", "r0", 1)
    a("connect", "r0", 1)
    eventually("connected", connected, 30)
    # And volumes come to it.
    for host in hosts:
        host.create_md()
        host.volume()
        host.attach()
    a("primary", "r0", "--force")
    synced(hosts)


def test_each_object_has_its_lines(cluster):
    a, b = pair(cluster)
    a.create_md()
    with following(a.node) as (stream,):
        a("new-resource", "r0", 0)
        stream.find(r"create resource name:r0 .*role:Secondary")
        a.volume()
        stream.find(r"create device name:r0 volume:0 minor:100 .*disk:Diskless")
        a.peer(b)
        stream.find(r"create connection name:r0 peer-node-id:1 conn-name:bravo connection:StandAlone",
                    r"create peer-device name:r0 peer-node-id:1 .*volume:0")
        a("peer-device-options", "r0", 1, 0, "--c-max-rate=8M")
        a.path(b)
        stream.find(r"create path name:r0 peer-node-id:1 .*local:")
        a.attach()
        stream.find(r"change device name:r0 volume:0 .*disk:Attaching", r"change device name:r0 volume:0 .*disk:Inconsistent")
        a("connect", "r0", 1)
        stream.find(r"change connection name:r0 peer-node-id:1 .*connection:Connecting")
        a("del-peer", "r0", 1)
        stream.find(r"change connection .*connection:StandAlone")
        rest = stream.used
        for what in ("peer-device", "path", "connection"):
            eventually(f"destroy {what} in {stream.lines()}", lambda what=what: any(x.startswith(f"destroy {what} ") or f" destroy {what} " in x
                                                                for x in stream.lines()[rest:]), 20)
        a("detach", "--diskless", a.minor)
        a("del-minor", a.minor)
        stream.find(r"destroy device name:r0 volume:0")
        a("del-resource", "r0")
        stream.find(r"destroy resource name:r0")
        lines = stream.lines()
    assert not [line for line in lines if re.search(r"disk:Failed|BrokenPipe|NetworkFailure|ProtocolError", line)], lines
    made = [line for line in lines if "create resource" in line or "destroy resource" in line]
    assert len(made) == 2, made


def test_what_the_core_refuses_is_taken_back_whole(cluster):
    """The only slot of a disk is another node's, which the process finds out when the rest of it has followed."""
    a, b = hosts = pair(cluster)
    for host in hosts:
        host.create_md(peers=1)
        host("new-resource", "r0", host.id)
        host.volume()
        host.attach()
    connect(hosts)
    a("primary", "r0", "--force")
    synced(hosts)
    a("disconnect", "r0", b.id)
    before = a("show", "r0")
    calls = [["del-peer", "r0", str(b.id)], ["new-peer", "r0", "5", "--_name=other"], ["new-minor", "r0", "150", "5"]]
    refused = ask(a.node, {"tell": {"calls": calls}})
    assert refused["error"]["code"] == 162 and "slot" in refused["error"]["message"], refused
    assert a("show", "r0") == before
    status = a.status()
    assert [c["peer-node-id"] for c in status["connections"]] == [b.id] and len(status["devices"]) == 1, status
    a("connect", "r0", b.id)
    synced(hosts)
    a.write(os.urandom(MIB))
    same_data(hosts)
