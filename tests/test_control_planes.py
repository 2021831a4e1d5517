"""Control planes that run on DRBD without LINSTOR, from the first volume to the last: their doubles, `control_planes.py`."""

import contextlib
import json
import os

import pytest

import control_planes as P
from cluster import MIB, eventually

SIZE = 24 * MIB


@contextlib.contextmanager
def machines(cluster, *names):
    made = [P.Machine(cluster.node(name, size=MIB)) for name in names]
    try:
        yield made
    finally:
        for m in made:
            for path in list(m.node.mounts):
                m.run("umount", "-l", path)
            m.node.kill("r1")
            m.close()


@contextlib.contextmanager
def miroir(cluster, *names):
    """Agents by machine."""
    with machines(cluster, *names) as made:
        agents = {m: P.Miroir(m) for m in made}
        try:
            for agent in agents.values():
                assert agent.start() == []
            yield made, agents
            for agent in agents.values():
                agent.events.check()
                assert not agent.split_brains, agent.split_brains[0]
        finally:
            for agent in agents.values():
                agent.events.close()


def nothing_left(agents, volume):
    for m, agent in agents.items():
        eventually(f"{m.name}: destroy", lambda: not agent.events.objects, 10)
        agent.events.check()
        agent.events.close()
        assert json.loads(m.must("drbdsetup", "status", "--json")) == []
        eventually(f"{m.name}: nothing is left: {m.left()}", lambda: not m.left(), 10)


def put(m, where, name, size=MIB):
    data = os.urandom(size)
    m.must("true")
    r = m.node.run(["dd", f"of={where}/{name}", "conv=fsync", "status=none"], input=data, timeout=60)
    assert r.returncode == 0
    return data


def get(m, where, name):
    return m.node.run(["cat", f"{where}/{name}"], capture_output=True, timeout=60).stdout


def test_miroir_two_nodes_last_man_standing(cluster):
    with miroir(cluster, "alpha", "bravo") as ((a, b), agents):
        volume = P.Volume("r1", 1000, 7000, SIZE, policy="last-man-standing")
        for m in (a, b):
            volume.add(m, m.make_disk("r1", SIZE))
        for m in (a, b):
            agents[m].full_pass(volume)
        P.miroir_birth(agents, volume)
        where = os.path.join(a.node.dir, "mnt")
        agents[a].stage(volume, where)
        kept = put(a, where, "one")
        nothing_changes(agents, volume)

        # Its agent is started anew while the volume is used.
        agents[a].events.close()
        assert agents[a].start() == ["r1"]
        agents[a].full_pass(volume)

        # A node is lost, with its process; the other one goes on alone.
        b.node.cut()
        b.node.kill("r1")
        eventually("alone", lambda: agents[a].look(volume)["connections"][0]["connection-state"] == "Connecting", 40)
        more = put(a, where, "two")
        b.node.heal()
        agents[b].full_pass(volume)
        P.miroir_settled(agents, volume)

        # It grows in use.
        volume.size = SIZE * 2
        for m in (a, b):
            m.grow_disk(volume.legs[m], volume.size)
        a.must("drbdadm", "resize", "--assume-clean", "r1")
        eventually("it has grown", lambda: P.size_of(a, volume) > SIZE, 10)
        agents[a].grow_file_system(volume)
        P.miroir_settled(agents, volume)
        third = put(a, where, "three", 8 * MIB)

        # It moves.
        agents[a].unstage(where)
        eventually("nobody uses it", lambda: agents[b].look(volume)["connections"][0]["peer-role"] == "Secondary", 10)
        agents[b].stage(volume, where)
        assert [get(b, where, name) for name in ("one", "two", "three")] == [kept, more, third]
        agents[b].unstage(where)
        P.same_data(volume)
        for m in (a, b):
            agents[m].delete(volume)
        nothing_left(agents, volume)


def nothing_changes(agents, volume):
    """A pass that has nothing to do says nothing in events2, and copies nothing: the process is asked a few questions, and told
    nothing."""
    for m, agent in agents.items():
        before = len(agent.events.lines)
        with m.overheard(volume.name) as lines:
            agent.adjust(volume)
        said = [line for line in lines if "hello" not in line]
        # The last one is of who looks afterwards.
        assert set(said) <= {'"show"', '"status"'} and len(said) <= 5, said
        assert len(lines) - len(said) <= 9, lines
        assert agent.events.lines[before:] == [], f"{m.name}: {agent.events.lines[before:]}"



def test_miroir_three_nodes_with_a_tie_breaker(cluster):
    with miroir(cluster, "alpha", "bravo", "charlie") as ((a, b, c), agents):
        volume = P.Volume("r1", 1000, 7000, SIZE)
        for m in (a, b):
            volume.add(m, m.make_disk("r1", SIZE))
        volume.add(c, None)
        for m in (a, b, c):
            agents[m].full_pass(volume)
        P.miroir_birth(agents, volume)
        where = os.path.join(a.node.dir, "mnt")
        agents[a].stage(volume, where)
        kept = put(a, where, "one")

        # A snapshot of both disks while it is used, and a volume of it.
        assert P.miroir_snapshot(agents, volume, "r2") == where
        more = put(a, where, "two")
        copy = P.miroir_restored(agents, volume, "r2", 1001, 7001)
        other = os.path.join(b.node.dir, "copy")
        agents[b].stage(copy, other)
        assert get(b, other, "one") == kept and get(b, other, "two") != more
        agents[b].unstage(other)
        for m in (a, b):
            agents[m].delete(copy)

        # A disk in the place of the tie-breaker's vote, in place; then one of the first two leaves.
        volume.add(c, c.make_disk("r1", SIZE))
        for m in (a, b):
            agents[m].full_pass(volume)
        agents[c].full_pass(volume)
        P.miroir_settled(agents, volume)
        del volume.legs[b]
        gone = P.Volume("r1", 1000, 7000, SIZE)
        gone.legs = {b: b.pool + "/r1.dev"}
        agents[b].delete(gone)
        for m in (a, c):
            agents[m].full_pass(volume)
        P.miroir_settled(agents, volume)
        nothing_changes({m: agents[m] for m in (a, c)}, volume)
        assert get(a, where, "two") == more
        agents[a].unstage(where)
        P.same_data(volume)
        for m in (a, c):
            agents[m].delete(volume)
        nothing_left(agents, volume)


def test_miroir_a_client_uses_the_disks_of_others(cluster):
    with miroir(cluster, "alpha", "bravo", "charlie") as ((a, b, c), agents):
        volume = P.Volume("r1", 1000, 7000, SIZE)
        for m in (a, b):
            volume.add(m, m.make_disk("r1", SIZE))
            agents[m].full_pass(volume)
        for m in (a, b):
            agents[m].full_pass(volume)
        P.miroir_birth(agents, volume)
        volume.add(c, None)
        volume.clients.add(c)
        for m in (a, b, c):
            agents[m].full_pass(volume)
        P.miroir_settled(agents, volume)
        where = os.path.join(c.node.dir, "mnt")
        agents[c].stage(volume, where)
        kept = put(c, where, "one")
        nothing_changes(agents, volume)

        # One of the disks fails, which is for good; later the volume gets another one in its place.
        a.must("drbdadm", "detach", "--force", "r1")
        agents[a].full_pass(volume, skip_disk=True)
        assert agents[a].disk_state(volume) == "Diskless"
        more = put(c, where, "two")
        a.must("drbdadm", "wipe-md", "--force", "r1")
        os.unlink(agents[a].marker(volume, "md-created"))
        agents[a].full_pass(volume)
        P.miroir_settled(agents, volume)
        assert [get(c, where, name) for name in ("one", "two")] == [kept, more]
        agents[c].unstage(where)
        P.same_data(volume)
        for m in (c, a, b):
            agents[m].delete(volume)
        nothing_left(agents, volume)


def test_miroir_looks_right_after_it_has_unmounted(cluster):
    """Whoever probes for a file system takes any error for an empty device, and makes one."""
    with miroir(cluster, "alpha", "bravo") as ((a, b), agents):
        volume = P.Volume("r1", 1000, 7000, SIZE, policy="last-man-standing")
        for m in (a, b):
            volume.add(m, m.make_disk("r1", SIZE))
        for m in (a, b):
            agents[m].full_pass(volume)
        P.miroir_birth(agents, volume)
        where = os.path.join(a.node.dir, "mnt")
        for _ in range(20):
            agents[a].stage(volume, where)
            agents[a].unstage(where)
            found = a.run("blkid", "-p", "-s", "TYPE", "-o", "export", a.device(1000))
            assert found.rc == 0 and "TYPE=ext4" in found.text, found.text


def test_miroir_split_brain_of_the_first_day(cluster):
    with miroir(cluster, "alpha", "bravo") as ((a, b), agents):
        volume = P.Volume("r1", 1000, 7000, SIZE, policy="last-man-standing")
        for m in (a, b):
            volume.add(m, m.make_disk("r1", SIZE))
        for m in (a, b):
            agents[m].full_pass(volume)
        P.miroir_birth(agents, volume)
        for m in (a, b):
            m.must("drbdadm", "disconnect", "r1")
            assert "StandAlone" in str(agents[m].status(volume))
        for m in (a, b):
            m.must("drbdadm", "primary", "--force", "r1")
            m.node.dd(m.device(1000), os.urandom(MIB))
            m.must("drbdadm", "secondary", "r1")
        for m in (a, b):
            m.must("drbdadm", "connect", "r1")
        for m in (a, b):
            eventually("split brain", lambda: "StandAlone" in str(agents[m].status(volume)), 20)
        P.miroir_split_brain(agents, volume, winner=a)
        P.miroir_settled(agents, volume)
        P.same_data(volume)
        # The scheduled check.
        a.must("drbdadm", "verify", "r1")
        eventually("verified", lambda: "Verify" not in str(agents[a].look(volume)), 30)
        # A node is drained, and the hook of its container calls once more.
        b.must("drbdadm", "secondary", "--force", "r1")
        b.must("drbdsetup", "disconnect", "r1", 0)
        b.must("drbdsetup", "down", "r1")
        b.must("drbdsetup", "down", "r1")
        b.must("drbdadm", "secondary", "all", "--force")


@contextlib.contextmanager
def blockstor(cluster, *names):
    with machines(cluster, *names) as made:
        satellites = {m: P.Blockstor(m) for m in made}
        try:
            for satellite in satellites.values():
                assert satellite.start() == []
            yield made, satellites
            for satellite in satellites.values():
                satellite.events.check()
        finally:
            for satellite in satellites.values():
                satellite.events.close()


def test_blockstor_from_two_replicas_to_three(cluster):
    with blockstor(cluster, "alpha", "bravo", "charlie") as ((a, b, c), satellites):
        volume = P.Volume("r1", 1000, 7000, SIZE, policy="majority")
        for m in (a, b):
            volume.add(m, m.make_disk("r1", SIZE))
        seed = "1122334455667788"
        for m in (a, b):
            assert satellites[m].looks_for_free_disks(volume.legs[m]) != 0
            satellites[m].round(volume, seed)
        for m in (a, b):
            eventually("they are connected", lambda: satellites[m].seen(volume, "connection", "connection") == ["Connected"])
        satellites[a].make_file_system(volume)
        P.blockstor_settled(satellites, volume)
        where = os.path.join(a.node.dir, "mnt")
        use(a, volume, where)
        kept = put(a, where, "one")
        for m in (a, b):
            # As the real drbdmeta, which does not read a disk that somebody holds.
            assert satellites[m].looks_for_free_disks(volume.legs[m]) == 20

        # It grows: all nodes say so at about the same time.
        volume.size = SIZE * 2
        for m in (a, b):
            m.grow_disk(volume.legs[m], volume.size)
        P.at_once([(m, ("drbdadm", "resize", "--assume-clean", "r1")) for m in (a, b)])
        eventually("it has grown", lambda: P.size_of(a, volume) > SIZE, 10)
        P.blockstor_settled(satellites, volume)

        # A tie-breaker comes by itself.
        volume.add(c, None)
        for m in (a, b, c):
            satellites[m].round(volume)
        P.blockstor_settled(satellites, volume)
        for m in (a, b, c):
            before = len(satellites[m].events.lines)
            satellites[m].round(volume)
            assert satellites[m].events.lines[before:] == []

        # A node is lost; the others go on, and it comes back.
        b.node.cut()
        b.node.kill("r1")
        more = put(a, where, "two")
        b.node.heal()
        satellites[b].round(volume)
        P.blockstor_settled(satellites, volume)

        # Its satellite is started anew: what it finds is ended, and begun again.
        satellites[b].events.close()
        assert satellites[b].start() == ["r1"]
        satellites[b].round(volume)
        P.blockstor_settled(satellites, volume)

        # From no disk to a disk, and the other way round.
        volume.add(c, c.make_disk("r1", volume.size))
        for m in (a, b, c):
            satellites[m].round(volume)
        P.blockstor_settled(satellites, volume)
        c.must("drbdsetup", "status", "r1")
        assert not satellites[c].is_diskless(volume)
        c.must("drbdadm", "detach", "--force", "r1")
        c.free_loop(volume.legs[c])
        volume.add(c, None)
        for m in (c, a, b):
            satellites[m].round(volume)
        P.blockstor_settled(satellites, volume)

        # It leaves.
        for m in (a, b):
            satellites[m].remove_peer(volume, c)
        satellites[c].delete(volume)
        del volume.legs[c]
        for m in (a, b):
            satellites[m].round(volume)
        P.blockstor_settled(satellites, volume)

        # A snapshot.
        for m in (a, b):
            m.must("drbdadm", "suspend-io", "r1")
        for m in (a, b):
            m.must("cp", "--sparse=always", os.path.join(m.pool, "r1"), os.path.join(m.pool, "kept"))
        for m in (a, b):
            m.must("drbdadm", "resume-io", "r1")
        assert [get(a, where, name) for name in ("one", "two")] == [kept, more]
        a.must("umount", where)
        a.node.mounts.remove(where)
        P.same_data(volume)
        for m in (a, b):
            satellites[m].delete(volume)
        nothing_left(satellites, volume)


def use(m, volume, where):
    """Opened, and promoted by that."""
    os.makedirs(where, exist_ok=True)
    m.must("mount", "-t", "ext4", m.device(volume.minor), where)
    m.node.mounts.append(where)


if __name__ == "__main__":
    pytest.main([__file__])
