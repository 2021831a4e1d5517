"""A disk that is not there yet when its resource is to start, as at boot."""

import subprocess
import time

import pytest

import cluster as C
from cluster import eventually
from machine import machine

DISK = "/dev/vg0/data"


@pytest.fixture
def late():
    """A machine whose disk has metadata, and is not there."""
    with C.Cluster() as c:
        both = a, _ = [machine(c, name) for name in ("alpha", "bravo")]
        a.put_res("r0", C.config_text(both))
        a.sh(f"urbd create-md --force r0 && mv {DISK} {DISK}.later")
        yield a
        a.sh("urbd down r0")


def started(m, seconds):
    return subprocess.Popen(m.prefix() + ["urbd", "run", "--wait-for-disks", str(seconds), "r0"], env=m.env(), cwd="/",
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_what_the_service_runs_waits_for_its_disk(late):
    p = started(late, 60)
    assert p.stdout.readline() == f"urbd: r0: waiting for {DISK}, which is not there\n"
    time.sleep(2)
    assert p.poll() is None and late.shell("urbd role r0").rc == 10
    late.sh(f"mv {DISK}.later {DISK}")
    eventually("it runs", lambda: "disk:Inconsistent" in late.shell("urbd status r0").out, 20)
    late.sh("urbd down r0")
    out, _ = p.communicate(timeout=20)
    assert p.returncode == 0 and "waiting" not in out, out


def test_it_ends_when_the_disk_does_not_come(late):
    p = started(late, 1)
    out, _ = p.communicate(timeout=20)
    assert p.returncode == 20 and out.splitlines() == [f"urbd: r0: waiting for {DISK}, which is not there",
                                                       f"urbd: cannot open {DISK}: No such file or directory"], out


def test_up_says_at_once_that_it_is_not_there(late):
    began = time.monotonic()
    r = late.shell("urbd up r0")
    assert r.rc == 20 and f"cannot open {DISK}: No such file or directory" in r.err, r
    assert time.monotonic() < began + 30, "it does not wait"
    late.sh(f"mv {DISK}.later {DISK} && urbd up r0")
    assert "disk:Inconsistent" in late.sh("urbd status r0")


def test_who_waits_for_a_disk_can_be_ended(late):
    p = started(late, 3600)
    p.stdout.readline()
    [process] = late.processes_of("urbd")
    late.sh(f"kill {process}")
    assert p.wait(20) != 0 and not late.processes_of("urbd")
