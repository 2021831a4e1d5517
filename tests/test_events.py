"""`events2 all`, followed from before anything exists: each state that is passed through has a line, in its order
(`docs/spec/config-and-cli.md` 4.3, `docs/spec/scenarios9.md` section 0)."""

import contextlib
import os
import random
import re
import signal
import subprocess
import time

import pytest

import cluster as C
from cluster import MIB, eventually

SIZE = 16 * MIB


class Events:
    """A node's stream, read on from the line that was used last."""

    def __init__(self, node, *options):
        self.path, self.used = os.path.join(node.dir, "events"), 0
        with open(self.path, "wb") as out:
            argv = [*node.prefix(), C.URBD, "events2", "all", *options]
            self.process = subprocess.Popen(argv, env=node.env(), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.find("exists -")

    def lines(self):
        with open(self.path) as f:
            return f.read().split("\n")[:-1]

    def find(self, *patterns, timeout=20):
        """Each of these, one after the other."""
        for pattern in patterns:
            def there():
                at = next((n for n, x in enumerate(self.lines()[self.used:]) if re.search(pattern, x)), None)
                if at is not None:
                    self.used += at + 1
                return at is not None
            try:
                eventually(pattern, there, timeout)
            except AssertionError:
                raise AssertionError(f"no {pattern!r} in {self.lines()[self.used:]}") from None

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


@contextlib.contextmanager
def following(*nodes, options=("--statistics",)):
    streams = [Events(n, *options) for n in nodes]
    try:
        yield streams
    finally:
        for stream in streams:
            stream.close()


# Of a healthy resource never. In 8.4's dialect a peer that detaches can say no more than Failed.
FORBIDDEN = {
    8: re.compile(" connection:(Timeout|ProtocolError|BrokenPipe|NetworkFailure)| disk:Failed"),
    9: re.compile("connection:(Timeout|ProtocolError|BrokenPipe|NetworkFailure)|disk:Failed"),
}


def configured(cluster, dialect, **options):
    """Two nodes with fresh metadata, not started."""
    nodes = [cluster.node(name, size=SIZE) for name in "ab"]
    cluster.configure(ids=dialect == 9, **options)
    for n in nodes:
        n.urbd("create-md", "--force", *(["--format=v09", "--max-peers=1"] if dialect == 9 else []), "r0")
    return nodes


def good(*nodes):
    for n in nodes:
        n.wait(conn="Connected", repl="Established", disk="UpToDate", peer_disk="UpToDate")


def device(disk):
    return f"change device .* disk:{disk} "


def link(*states):
    return [f"change connection .* connection:{state}" for state in states]


DESTROYED = ["destroy peer-device .* volume:0", "destroy path", "destroy connection", "destroy device .* volume:0",
             "destroy resource name:r0"]


@pytest.mark.parametrize("dialect", [8, 9])
def test_a_life_without_faults(cluster, dialect):
    a, b = configured(cluster, dialect)
    with following(a, b) as (of_a, of_b):
        for n in (a, b):
            n.start()
        for stream in (of_a, of_b):
            stream.find("create resource .* role:Secondary", "create connection .* connection:StandAlone",
                        "create device .* disk:Diskless ", "create peer-device .* replication:Off", "create path")
            stream.find(device("Attaching"), *link("Unconnected", "Connecting"), device("Inconsistent"),
                        *link("Connected"), "replication:Established peer-disk:Inconsistent")
        a.urbd("primary", "--force", "r0")
        good(a, b)
        begins = f"replication:SyncSource .*done:0.00 .*out-of-sync:{b.data_size() >> 10} "
        of_a.find("role:Primary", device("UpToDate"), "replication:WFBitMapS", begins,
                  "replication:Established peer-disk:UpToDate")
        of_b.find("connection .* role:Primary", "replication:WFBitMapT", begins.replace("Source", "Target"),
                  device("UpToDate"), "replication:Established")
        a.urbd("secondary", "r0")
        of_a.find("change resource .* role:Secondary")
        of_b.find("change connection .* role:Secondary")
        a.urbd("disconnect", "r0")
        of_a.find(*link("Disconnecting"), "replication:Off", *link("StandAlone"))
        of_b.find(*link("TearDown"), "replication:Off", *link("Unconnected", "Connecting"))
        a.urbd("connect", "r0")
        for stream in (of_a, of_b):
            stream.find(*link("Connecting", "Connected") if stream is of_a else link("Connected"), "replication:Established")
        good(a, b)
        b.urbd("detach", "r0")
        of_b.find(device("Detaching"), device("Diskless"))
        of_a.find(f"peer-disk:{'Detaching' if dialect == 9 else 'Failed'}", "peer-disk:Diskless")
        b.urbd("attach", "r0")
        good(a, b)
        of_b.find(device("Attaching"), device("Negotiating"), device("UpToDate"))
        b.urbd("down", "r0")
        of_b.find(*link("Disconnecting", "StandAlone"), device("Detaching"), device("Diskless"), *DESTROYED)
        of_a.find(*link("TearDown", "Unconnected", "Connecting"))
        a.urbd("down", "r0")
        of_a.find(*link("Disconnecting", "StandAlone"), device("Detaching"), device("Diskless"), *DESTROYED)
    for stream in (of_a, of_b):
        assert not [x for x in stream.lines() if FORBIDDEN[dialect].search(x)]


def test_a_short_life_is_not_missed(cluster):
    """`up` and `down` at once, three times: who follows all hears of each, from its first state to its last."""
    a, _ = configured(cluster, 9)
    with following(a, options=()) as [events]:
        for _ in range(3):
            a.urbd("up", "r0")
            a.urbd("down", "r0")
            a.processes.pop("r0", None)
            events.find("create resource", "create connection .* connection:StandAlone", "create device .* disk:Diskless ",
                        device("Attaching"), *link("Connecting"), *link("Disconnecting", "StandAlone"), *DESTROYED)
    assert sum(x == "destroy resource name:r0" for x in events.lines()) == 3


def test_a_freeze_is_told_before_its_handler(cluster):
    """`suspended:fencing`, `call helper`, `response helper`, the peer's new disk state, `suspended:no`."""
    a, b = configured(cluster, 9, net="fencing resource-and-stonith;", handlers='fence-peer "exit 4";')
    for n in (a, b):
        n.start()
    a.urbd("primary", "--force", "r0")
    good(a, b)
    with following(a) as [events]:
        b.kill()
        events.find("resource .* suspended:fencing", "call helper .* helper:fence-peer",
                    "response helper .* helper:fence-peer status:1024", "peer-disk:Outdated", "resource .* suspended:no")


def test_a_demotion_by_force_is_told_until_its_last_user_is_gone(synced):
    """Who fails over waits for that: nobody is promoted where old users are left."""
    a, b = synced.nodes
    used = open(a.device(), "r+b", buffering=0)
    with following(a, options=()) as [events]:
        a.urbd("secondary", "--force", "r0")
        events.find("resource .* force-io-failures:yes may_promote:no promotion_score:0")
        with pytest.raises(OSError):
            used.read(4096)
        a.urbd("secondary", "r0")
        assert a.status()["force-io-failures"]
        used.close()
        events.find("resource .* force-io-failures:no may_promote:yes")
    # Of who only reads beside another Primary later nothing is said.
    b.urbd("primary", "r0")
    assert not a.status()["force-io-failures"]


def test_what_a_late_follower_hears(cluster):
    """Who comes later hears of the present state alone, and nothing twice."""
    a, b = configured(cluster, 9)
    for n in (a, b):
        n.start()
    a.urbd("primary", "--force", "r0")
    good(a, b)
    with following(a) as [events]:
        begun = events.lines()
        assert [x.split()[1] for x in begun] == ["resource", "connection", "device", "peer-device", "path", "-"], begun
        assert all(x.startswith("exists ") for x in begun), begun
        b.urbd("disconnect", "r0")
        events.find(*link("TearDown", "Unconnected", "Connecting"))


# Verbs, faults, and what undoes them, one after the other and as fast as they come.
STEPS = [("disconnect", "r0"), ("connect", "r0"), ("detach", "r0"), ("attach", "r0"), ("primary", "r0"), ("secondary", "r0"),
         ("invalidate", "r0"), ("pause-sync", "r0"), ("resume-sync", "r0"), ("suspend-io", "r0"), ("resume-io", "r0"),
         ("verify", "r0"), ("outdate", "r0"), "cut", "heal"]
LINK = {"WFConnection": "Connecting", "WFReportParams": "Connected"}
BEFORE = ["StandAlone", "Disconnecting", "Unconnected", "Timeout", "BrokenPipe", "NetworkFailure", "ProtocolError", "TearDown",
          "WFConnection"]


def deduplicated(states):
    return [state for n, state in enumerate(states) if n == 0 or state != states[n - 1]]


def told_by_the_log(text):
    """Each object's states, one after the other."""
    told = {"connection": ["StandAlone"], "replication": ["Off"], "disk": ["Diskless"], "peer-disk": ["DUnknown"]}
    for line in text.split("\n"):
        if "[state-change]" not in line:
            continue
        for what, new in re.findall(r"(conn|disk|pdsk)\( \w+ -> (\w+) \)", line):
            if what == "conn":
                before = new in BEFORE
                told["connection"].append(LINK.get(new, new) if before else "Connected")
                told["replication"].append("Off" if before or new == "WFReportParams" else
                                           "Established" if new == "Connected" else new)
            else:
                told[{"disk": "disk", "pdsk": "peer-disk"}[what]].append(new.replace("Detaching", "Failed"))
    return {what: deduplicated(states) for what, states in told.items()}


def told_by_events(lines):
    told = {"connection": [], "replication": [], "disk": [], "peer-disk": []}
    for line in lines:
        for what, states in told.items():
            states += [new.replace("Detaching", "Failed") for new in re.findall(rf" {what}:(\w+)", line)]
    return {what: deduplicated(states) for what, states in told.items()}


@pytest.mark.parametrize("dialect,seed", [(8, 1), (9, 2), (9, 3)])
def test_the_log_and_the_events_tell_the_same(cluster, dialect, seed):
    """Change by change, whatever happens. The disk's states while it is attached are not in the log."""
    a, b = configured(cluster, dialect)
    draw = random.Random(seed)
    with following(a, b, options=()) as streams:
        for n in (a, b):
            n.start()
        a.urbd("primary", "--force", "r0")
        good(a, b)
        for _ in range(40):
            node, step = draw.choice((a, b)), draw.choice(STEPS)
            if isinstance(step, str):
                getattr(node, step)()
            else:
                node.call(*step)
            time.sleep(draw.choice((0, 0, 0.01, 0.3)))
        for n in (a, b):
            n.heal()
            n.call("resume-io", "r0")
        for n, stream in ((a, streams[0]), (b, streams[1])):
            def same(n=n, stream=stream):
                log, events = told_by_the_log(n.log()), told_by_events(stream.lines())
                events["disk"] = deduplicated([x for x in events["disk"] if x != "Attaching"])
                log["disk"] = deduplicated([x for x in log["disk"] if x != "Attaching"])
                return log == events or (log, events)
            try:
                eventually("the same", lambda: same() is True, 20)
            except AssertionError:
                raise AssertionError(same()) from None
            assert len(told_by_events(stream.lines())["connection"]) > 5


def test_what_a_command_has_changed_is_printed_when_it_ends(synced):
    """LINSTOR takes its snapshot after `suspend-io` only if it has read of it by then."""
    a, b = synced.nodes
    with following(a, b) as streams:
        for _ in range(10):
            for command, said in (("suspend-io", "suspended:user"), ("resume-io", "suspended:no"), ("secondary", "role:Secondary"),
                                  ("primary", "role:Primary")):
                a.urbd(command, "r0")
                line = [x for x in streams[0].lines() if x.startswith("change resource") and said.split(":")[0] in x][-1]
                assert f" {said}" in line, (command, streams[0].lines()[-5:])


def test_who_follows_and_does_not_read_on_holds_no_command_up(synced):
    a, _ = synced.nodes
    with following(a) as (stream,):
        os.kill(stream.process.pid, signal.SIGSTOP)
        for _ in range(5):
            a.urbd("secondary", "r0")
            a.urbd("primary", "r0")
        os.kill(stream.process.pid, signal.SIGCONT)
        stream.find(*["role:Secondary", "role:Primary"] * 5)
        a.urbd("secondary", "r0")
        assert any("role:Secondary" in line for line in stream.lines()[stream.used:]), stream.lines()[-3:]
