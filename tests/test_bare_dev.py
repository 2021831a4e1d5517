"""A /dev that has no nodes for loop devices but those that somebody made: that of a container, which is no devtmpfs.

The kernel chooses the device; it may be one that came after the nodes.
"""

import cluster as C
from cluster import eventually
from machine import machine

# As a container, or the sandbox of the service.
WITHOUT_MKNOD = "setpriv --bounding-set -mknod --inh-caps -mknod"
CHECKED = "dd if={0} of=/dev/null bs=64k count=16 iflag=direct && dd if=/dev/urandom of={0} bs=64k count=16 oflag=direct"


def nodes(m):
    return m.sh("ls /dev | grep '^loop[0-9]' || true").split()


def restarts(m):
    """Between the last close and the device that is attached anew there is none for the next process: that is refused."""
    try:
        m.sh("urbd restart r0")
    except AssertionError as refused:
        assert "no block device that another process could take over" in str(refused), refused
        return False
    return True


def test_the_loop_device_has_no_node():
    with C.Cluster() as c:
        both = a, b = [machine(c, name) for name in ("alpha", "bravo")]
        for m in both:
            m.sh("rm /dev/loop[0-9]*")
            m.put_res("r0", C.config_text(both))
            m.sh(f"urbd create-md --force r0 && {WITHOUT_MKNOD} urbd up r0")
        a.sh("urbd primary --force r0")
        dev = a.sh("urbd sh-dev r0").strip()
        a.sh(CHECKED.format(dev))
        # The next process finds it, after a kill in use and otherwise; the last close detaches it, and it is attached anew.
        with open(f"/proc/{a.holder}/root{a.door()}", "rb") as f:
            a.sh("kill -9 $(cat /run/urbd/r0.pid)")
            eventually("it is gone", lambda: len(a.processes_of("urbd")) == 1)
            a.sh(f"{WITHOUT_MKNOD} urbd up r0")
            eventually("it is Primary again", lambda: a.state()["role"] == "Primary")
            assert f.read(4096)
        a.sh(CHECKED.format(dev))
        eventually("it restarts", lambda: restarts(a), 20)
        a.sh(CHECKED.format(dev))
        a.sh("urbd secondary r0 && urbd down r0")
        eventually("no device is left", lambda: not a.loops())
        # What is left when all of its processes were killed is cleared by the next start.
        a.sh("urbd up r0 && urbd primary r0")
        a.sh(f"kill -9 {' '.join(map(str, a.processes_of('urbd')))}")
        eventually("they are gone", lambda: not a.processes_of("urbd"))
        a.sh("urbd up r0 && urbd primary r0")
        a.sh(CHECKED.format(dev))
        assert not nodes(a) and not nodes(b), "the nodes of the machine's /dev are its own"
        a.sh("urbd down r0")
        b.sh("urbd down r0")
