"""Short rounds of faults on two real processes; `make nemesis ROUNDS=n SEED=s` plays long ones. See nemesis.py."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

import cluster as C
import nemesis
import nemesis_mesh
from application import Model
from kernel_peer import end_with_us
from nbdio import payload

DISKS = ["failing reads", "failing writes", "kill"]
HANGING = ["hanging disk", "slow disk", "kill", "cut"]
PROCESSES_AND_LINKS = ["kill", "freeze", "cut", "mute", "slow link", "slow disk"]


@pytest.mark.parametrize("seed", [1])
def test_round(seed):
    """10,000 acknowledged writes, every read checked; then both nodes are whole and hold what was promised."""
    r = nemesis.one_round(seed, faults=PROCESSES_AND_LINKS, rate=3000)
    assert r.app.written >= nemesis.WRITES and r.app.read > 1000
    assert r.suffered >= nemesis.FAULTS


def disk_round(seed, faults, first):
    r = nemesis.one_round(seed, faults=faults, first=first, rate=3000, writes=2000)
    assert r.app.written >= 2000 and r.app.read > 200
    assert r.suffered >= nemesis.FAULTS
    assert any(line.split(None, 1)[1].startswith(first) for line in r.history)


@pytest.mark.parametrize("seed", [601, 609])
def test_round_with_failing_disks(seed):
    """Reads and writes fail with EIO and ENOSPC (full disk), all of them or some, while processes are killed."""
    disk_round(seed, DISKS, "failing writes")


@pytest.mark.parametrize("seed", [701])
def test_round_with_hanging_disks(seed):
    """Disks that answer nothing for seconds, or little, while processes are killed and links are cut."""
    disk_round(seed, HANGING, "hanging disk")


@pytest.mark.parametrize("seed", [303])
def test_round_of_three_nodes(seed):
    """All faults, moves and fail-overs among three nodes, all connected."""
    r = nemesis.one_round(seed, nemesis_mesh.Mesh, rate=3000, writes=3000)
    assert r.app.written >= 3000 and r.app.read > 300 and r.app.lives >= 4
    assert r.suffered >= r.least


def test_a_round_that_is_ended_leaves_nothing(tmp_path):
    """SIGTERM in the middle, with a node that is stopped and a disk that hangs: no process and no file is left."""
    mark = os.fsencode(tmp_path)

    def named(pid):
        with contextlib.suppress(OSError):
            texts = [open(f"/proc/{pid}/{file}", "rb").read() for file in ("environ", "cmdline")]
            return any(mark in text for text in texts)
        return False

    def processes():
        return [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != p.pid and named(pid)]

    with open(tmp_path.parent / "nemesis.log", "wb") as log:
        argv = [sys.executable, nemesis.__file__, "--rounds", "1", "--seed", "1", "--rate", "300"]
        p = subprocess.Popen([*argv, "--fault", "freeze", "--fault", "hanging disk"], stdout=log, stderr=log,
                             env={**os.environ, "URBD_TEST_DIR": str(tmp_path)}, preexec_fn=end_with_us)
    try:
        C.eventually("faults", lambda: list(tmp_path.glob("*/*/faulty0/pause")) and len(processes()) >= 6, 60)
        time.sleep(5)
        p.terminate()
        assert p.wait(60) == 128 + signal.SIGTERM
        C.eventually("nothing is left", lambda: not processes() and not os.listdir(tmp_path), 20)
    finally:
        p.kill()
        p.wait()


def held(seed, number, first, count):
    return bytes(payload(seed, number, first, count))


def test_model_accepts_what_may_be_read():
    m = Model(64)
    assert not m.check(m.expect(0, 8), bytes(4096), 1)
    one = m.begin((1, 1), 0, 8)
    for data in (bytes(4096), held(1, 1, 0, 8)):  # under way: either
        assert not m.check(m.expect(0, 8), data, 1)
    m.acknowledged(one)
    two, three = m.begin((1, 2), 0, 4), m.begin((1, 3), 0, 4)
    m.acknowledged(two)
    m.acknowledged(three)
    for number in (2, 3):  # at the same time: either may be the last
        m.seen.clear()
        assert not m.check(m.expect(0, 4), held(1, number, 0, 4), 1)
    during = m.expect(0, 4)
    m.acknowledged(m.begin((1, 4), 0, 4))
    for number in (3, 4):  # the read began before the write
        assert not m.check(during, held(1, number, 0, 4), 1)
    during = m.expect(0, 4)
    for number in (6, 7):  # both began after the read, and the first was replaced before the read ended
        m.acknowledged(m.begin((1, number), 0, 4))
    assert not m.check(during, held(1, 6, 0, 4), 1)
    assert m.check(m.expect(0, 4), held(1, 6, 0, 4), 1), "it was replaced before this read began"
    m.acknowledged(m.begin((1, 4), 0, 4))
    lost = m.begin((1, 5), 0, 4)
    m.server_gone()
    for number in (4, 5):  # nobody knows
        m.seen.clear()
        assert not m.check(m.expect(0, 4), held(1, number, 0, 4), 2)
    assert lost.over is not None


def test_model_finds_what_must_not_be_read():
    m = Model(64)
    m.acknowledged(m.begin((1, 1), 0, 8))
    m.acknowledged(m.begin((1, 2), 0, 8))
    assert m.check(m.expect(0, 8), held(1, 1, 0, 8), 1), "a lost write"
    assert m.check(m.expect(0, 8), held(1, 2, 0, 4) + held(1, 1, 4, 4), 1), "half of it"
    assert m.check(m.expect(0, 8), held(1, 2, 8, 8), 1), "misplaced"
    assert m.check(m.expect(0, 8), os.urandom(4096), 1), "garbage"
    m.begin((1, 3), 0, 8)
    m.server_gone()
    assert not m.check(m.expect(0, 8), held(1, 3, 0, 8), 2)
    assert m.check(m.expect(0, 8), held(1, 2, 0, 8), 2), "it was there, and went away by itself"
    assert not m.check(m.expect(0, 8), held(1, 2, 0, 8), 3), "another node may not have it"
