"""What drbd-reactor's promoter does on three nodes, of which the first is lost: `reactor.py`. The resource is one that LINSTOR has
placed, as `test_satellite.py` does."""

import json
import os

import pytest

from reactor import Reactor
from test_satellite import MNT, QUORUM, Controller, killed

PROPERTIES = {**QUORUM, "Resource/auto-promote": "no", "Resource/on-no-quorum": "io-error", "Net/ping-int": "1", "Net/timeout": "9"}


@pytest.fixture
def three(cluster):
    c = Controller(cluster)
    reactors = []
    try:
        for s in c.on():
            s.begin()
        reactors += [Reactor(s) for s in c.on()]
        yield c, *reactors
    finally:
        for r in reactors:
            r.end()
        c.end()


def test_another_node_is_promoted_when_the_first_is_cut_off(three):
    c, a, b, charlie = three
    res = c.spawn("web", ["alpha", "bravo"], ["charlie"], properties=PROPERTIES)
    for r in (a, b, charlie):
        r.new("web")
        [shown] = json.loads(r.node.call("drbdsetup", "show", "--show-defaults", "--json", "web").stdout)
        options = shown["options"]
        assert (shown["resource"], options["quorum"], options["auto-promote"]) == ("web", "majority", False)
        assert {"on-no-quorum", "on-suspended-primary-outdated", "on-no-data-accessible"} <= options.keys()
        assert all({"rr-conflict", "fencing"} <= peer["net"].keys() for peer in shown["connections"]) and shown["connections"]
    for r in (a, b):
        r.find("resource", "web", "may_promote", "yes")
    a.node.call("drbdsetup", "primary", "web")
    b.node.call("drbdsetup", "primary", "web", rc=11)
    b.find("resource", "web", "may_promote", "no")
    [said] = json.loads(b.node.call("drbdsetup", "status", "--json", "web").stdout)
    assert said["role"] == "Secondary" and {p["name"]: p["peer-role"] for p in said["connections"]}["alpha"] == "Primary"

    data = os.urandom(4096)
    a.node.call("mkfs.ext4", "-q", "/dev/drbd1000")
    a.node.shell("mkdir -p /mnt && mount -w /dev/drbd1000 /mnt")
    where = f"/proc/{a.node.machine.holder}/root{MNT}/data"
    with open(where, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
        a.node.machine.cut()
        a.find("device", "web", "quorum", "no")
        a.node.call("drbdsetup", "secondary", "web", rc=11)
        a.node.call("drbdsetup", "secondary", "--force=yes", "web")
        a.find("resource", "web", "force-io-failures", "yes")
        f.write(data)
        with pytest.raises(OSError):
            f.flush()
            os.fsync(f.fileno())
    a.node.shell("umount -l /mnt")
    a.find("resource", "web", "force-io-failures", "no")

    b.find("resource", "web", "may_promote", "yes")
    b.node.call("drbdsetup", "primary", "web")
    b.node.shell("mkdir -p /mnt && mount -w /dev/drbd1000 /mnt")
    with open(f"/proc/{b.node.machine.holder}/root{MNT}/data", "rb") as f:
        assert f.read() == data
    a.node.machine.heal()
    c.usable(res)
    for r in (a, b, charlie):
        r.stream.ask()
    # The stream outlives a process of the resource, and says what has become of it.
    killed(charlie.node, res)
    charlie.new("web")
    c.usable(res)
    b.node.shell("umount /mnt")
    b.node.call("drbdsetup", "secondary", "web")
    for r in (a, b):
        r.find("resource", "web", "may_promote", "yes")
