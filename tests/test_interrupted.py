"""The Primary's process is killed, or replaced, in the middle of a command, under an application that writes all the time.

The peer stands still meanwhile, so that the command waits for it: for its consent, or for its word that what was written is
on its disk.
"""

import itertools
import os
import threading

import pytest

from cluster import MIB, eventually
from test_dialect9 import room
from test_handover import Application, kill, nothing_is_left, restart

SIZE = 32 * MIB
DIALECTS = {"8.4": False, "9": True}


def pair_in_use(cluster, dialect, **options):
    """Both UpToDate and with room to grow; an application writes to the first one's device."""
    a, b = cluster.node("a", size=SIZE), cluster.node("b", size=SIZE)
    cluster.configure(net="verify-alg crc32c;", ids=DIALECTS[dialect], **options)
    for n in (a, b):
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=1", "r0")
        n.start()
    for n in (a, b):
        n.wait(conn="Connected")
    a.urbd("new-current-uuid", "--clear-bitmap", "r0/0")
    for n in (a, b):
        n.wait(disk="UpToDate", peer_disk="UpToDate")
    a.urbd("primary", "r0")
    return a, b, Application(a.device(), 0)


def test_in_nines_dialect_a_crash_is_copied_beside_io(cluster):
    """The killed Primary is the target of who has lived on, and Primary again at once; killed once more during the copy it
    has no good disk of its own."""
    a, b, app = pair_in_use(cluster, "9", disk="c-plan-ahead 0; resync-rate 1M;", fast=False)
    with open(a.device(), "r+b", buffering=0) as f:
        for at in range(0, 24, 4):  # extents of the activity log
            f.seek(at * MIB + MIB)
            f.write(b"\x55" * 4096)
        os.fsync(f.fileno())
    for n in range(3):
        app.worst = 0
        kill(a)
        app.goes_on()
        assert app.worst < 5
        if n < 2:
            assert a.state()["repl"] == "SyncTarget", "nothing was shown"
    for n in (a, b):
        n.urbd("peer-device-options", "--resync-rate=200M", "r0", env=None)
    cluster.wait_synced()
    app.end()
    with open(a.device(), "rb", buffering=0) as f:
        for n in range(min(app.blocks, app.done)):
            times = int.from_bytes(f.read(4096)[8:16], "little")
            assert times == n + (app.done - 1 - n) // app.blocks * app.blocks, "it was written again since"
    a.urbd("secondary", "r0")
    cluster.assert_same()


def in_the_middle_of(a, b, command, way):
    """What the command came to."""
    ended, peer_goes_on = [], threading.Timer(0.3, b.thaw)
    b.freeze()
    try:
        asks = threading.Thread(target=lambda: ended.append(a.call(*command)))
        asks.start()
        asks.join(0.15)
        waited = not ended
        peer_goes_on.start()
        way(a)  # not in another thread: what that has started ends with it
    finally:
        peer_goes_on.cancel()
        b.thaw()
    asks.join(60)
    assert not asks.is_alive() and waited, f"{command}: {ended}"
    return ended[0]


def put_right(a, b):
    """Both are UpToDate again, whichever side of the command the process has ended on."""
    for n in (a, b):
        eventually("what was under way has settled", lambda: n.state()["disk"] in ("UpToDate", "Diskless", "Inconsistent"), 30)
        if n.state()["disk"] == "Diskless":
            n.urbd("attach", "r0")
        if n.state()["conn"] == "StandAlone":
            n.urbd("connect", "r0")
    for n in (a, b):
        n.wait(conn="Connected", repl="Established", disk="UpToDate", peer_disk="UpToDate", oos=0)


COMMANDS = [["disconnect", "r0"], ["verify", "r0"], ["invalidate-remote", "r0"]]
# In 8.4's dialect a device grows when its disks are attached.
OF_DIALECT = {"8.4": [["detach", "r0"]], "9": [["detach", "r0"], ["resize", "r0"]]}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_command_of_a_primary(cluster, dialect):
    a, b, app = pair_in_use(cluster, dialect)
    ways = itertools.cycle((kill, restart) if dialect == "9" else (restart, kill))
    for command, way in [*itertools.product(OF_DIALECT[dialect], (kill, restart)), *zip(COMMANDS, ways)]:
        if command[0] == "resize":
            for n in (a, b):
                room(n, 2 * MIB)
                put_right(a, b)
        app.goes_on()
        app.worst = 0
        print(command, way.__name__, in_the_middle_of(a, b, command, way))
        if (dialect, command[0]) == ("9", "detach"):
            # A process without a disk does not connect yet: I/O waits for its own one, which lacks nothing then.
            put_right(a, b)
        app.goes_on()
        print(f"{1000 * app.worst:.0f} ms")
        put_right(a, b)
        assert a.state()["role"] == "Primary"
        assert a.data_size() == b.data_size()
    app.end()
    a.urbd("secondary", "r0")
    cluster.assert_same()
    for n in (a, b):
        nothing_is_left(n)
