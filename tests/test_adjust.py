"""`adjust` on a Primary: volumes come and go under applications that use another one."""

import os

import pytest

from cluster import FAST_DISK, FAST_NET, MIB, PORT, eventually
from test_handover import kill
from test_three_nodes import application

SIZE = 32 * MIB


def text(nodes, volumes, version):
    def host(n, i):
        disks = "".join(f"volume {v} {{ device /dev/drbd{v} minor {v}; disk {n.disk_file(v)}; meta-disk internal; }} "
                        for v in range(volumes))
        return f"  on {n.name} {{ node-id {i}; address ipv4 {n.ip}:{PORT}; {disks}}}\n"
    hosts = "".join(host(n, i) for i, n in enumerate(nodes))
    return (f"resource r0 {{\n  net {{ protocol C; {FAST_NET} }}\n  disk {{ {FAST_DISK} }}\n"
            f"  urbd {{ protocol-version-max {version}; }}\n{hosts}}}\n")


def of_volume(node, volume):
    """Its disk, what goes on with the peer, and the peer's disk."""
    status = node.status()
    device = next(d for d in status["devices"] if d["volume"] == volume)
    pair = next(p for p in status["connections"][0]["peer_devices"] if p["volume"] == volume)
    return device["disk-state"], pair["replication-state"], pair["peer-disk-state"]


def becomes(node, volume, *wanted, timeout=20):
    eventually(f"volume {volume} of {node.name}: {wanted}", lambda: of_volume(node, volume) == wanted, timeout)


GOOD = ("UpToDate", "Established", "UpToDate")


@pytest.mark.parametrize("version", [101, 124])
def test_a_volume_comes_and_goes_under_a_mounted_file_system(cluster, version):
    a, b = nodes = [cluster.node(name, size=SIZE, volumes=2) for name in "ab"]
    one, two = (text(nodes, volumes, version) for volumes in (1, 2))
    for n in nodes:
        n.put_res("r0", one)
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=1", "r0")
        n.start()
    a.urbd("primary", "--force", "r0")
    for n in nodes:
        becomes(n, 0, *GOOD)
    with application(a) as app:
        # Here first: the peer does not have it, and it has no data.
        a.put_res("r0", two)
        missing = a.call("adjust", "r0")
        assert missing.rc == 1 and "create-md" in missing.err, missing
        a.urbd("create-md", "--force", "--format=v09", "--max-peers=1", "r0/1")
        [before] = a.pids()
        a.urbd("adjust", "r0")
        assert before in a.pids() and not a.urbd("-d", "adjust", "r0").out.strip()
        app.goes_on()
        becomes(a, 0, *GOOD)
        assert a.status()["role"] == "Primary" and of_volume(a, 1)[:2] == ("Inconsistent", "Off")
        # Nor is it waited for after a crash.
        kill(a)
        app.goes_on()
        becomes(a, 0, *GOOD)
        # Then there.
        b.put_res("r0", two)
        b.urbd("create-md", "--force", "--format=v09", "--max-peers=1", "r0/1")
        b.urbd("adjust", "r0")
        becomes(b, 1, "Inconsistent", "Established", "Inconsistent")
        app.goes_on()
        a.urbd("new-current-uuid", "--clear-bitmap", "r0/1")
        for n in nodes:
            becomes(n, 0, *GOOD)
            becomes(n, 1, *GOOD)
        a.write(0, os.urandom(MIB), volume=1)
        cluster.assert_same(volume=1)
        app.goes_on()
        # And back: not as long as somebody uses it.
        path = a.device(1)
        a.put_res("r0", one)
        with open(path, "rb") as held:
            assert held.read(512)
            refused = a.call("adjust", "r0")
            assert refused.rc == 11 and "r0/1" in refused.err, refused
            becomes(a, 1, *GOOD)
            app.goes_on()
        a.urbd("adjust", "r0")
        assert [d["volume"] for d in a.status()["devices"]] == [0]
        app.goes_on()
        becomes(a, 0, *GOOD)
        b.put_res("r0", one)
        b.urbd("adjust", "r0")
        for n in nodes:
            becomes(n, 0, *GOOD)
        assert [d["volume"] for d in b.status()["devices"]] == [0]
    # Under load the check of the file system is a user for some moments more.
    eventually("nobody has the device open", lambda: a.call("secondary", "r0").rc == 0)
    cluster.assert_same()


def test_another_handler_is_called_from_then_on(cluster):
    """Nothing else of the file differs; a second `adjust` finds nothing."""
    a, b = (cluster.node(name, size=SIZE) for name in "ab")
    files = [os.path.join(cluster.dir, name) for name in ("first", "second")]
    cluster.up(primary=b)
    for called in (files[0], files[1], None):
        cluster.configure(handlers=f"after-resync-target \"echo $DRBD_RESOURCE >> {called}\";" if called else "")
        a.urbd("adjust", "r0")
        again = a.call("-d", "adjust", "r0")
        assert again.rc == 0 and not again.out.strip(), again
        for path in files:
            open(path, "w").close()
        done = a.log().count("resync done")
        a.urbd("invalidate", "r0")
        eventually("it is copied", lambda done=done: a.log().count("resync done") > done, 20)
        cluster.wait_synced()
        if called:
            eventually(f"{called} is written", lambda called=called: os.path.getsize(called), 10)
        assert [path for path in files if os.path.getsize(path)] == [path for path in files if path == called]


def test_a_host_that_was_renamed(cluster):
    """What runs goes on; `adjust` says what has happened, and what it names helps."""
    a, b = cluster.node("a", size=16 * MIB), cluster.node("b", size=16 * MIB)
    cluster.up()
    a.urbd("primary", "r0")
    text = cluster.configure()
    device = a.device()
    with open(device, "rb", buffering=0):
        refused = a.call("--node", "nemo", "adjust", "r0")
        assert refused.rc == 1 and "r0: runs as host `a`, but this host is `nemo`, for which it is not configured" in refused.err
        assert "nothing was changed" in refused.err and "--node a" in refused.err and "urbd restart r0" in refused.err, refused
        a.urbd("--node", "a", "adjust", "r0")
        for n in (a, b):
            n.put_res("r0", text.replace("on a {", "on nemo {"))
        refused = a.call("--node", "nemo", "adjust", "r0")
        assert refused.rc == 10 and "runs as host `a`, and is now configured for this host as `nemo`" in refused.err, refused
        assert "nothing was changed; start it anew: urbd restart r0" in refused.err, refused
        a.urbd("--node", "nemo", "restart", "r0")
        b.urbd("adjust", "r0")
        a.urbd("--node", "nemo", "adjust", "r0")
        a.wait(role="Primary", conn="Connected", peer_disk="UpToDate")
