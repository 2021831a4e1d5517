"""The device as the only place that memory can be written to: reclaim must not wait for itself.

A control group limits the memory of the programs on a device. They make more dirty pages than fit, and to free them the
kernel can only write them to the device: through a loop device, FUSE, urbd's process, and its peer.
"""

import contextlib
import os
import subprocess

import pytest

from cluster import MIB, eventually
from test_filesystems import FSCK, MKFS, mounted, sh, two_nodes

LIMIT = 48 * MIB
WRITTEN = 192 * MIB
# Flags of a process (proc(5), field 9 of stat) that PR_SET_IO_FLUSHER sets: PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE.
IO_FLUSHER = 0x0008_0000 | 0x0010_0000
CAP_SYS_RESOURCE = 1 << 24


class Group:
    """A control group for memory, of version 1 or 2."""

    ROOTS = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.failcnt", "memory.oom_control"),
             ("/sys/fs/cgroup", "memory.max", "memory.events", "memory.events"),
             ("/sys/fs/cgroup/unified", "memory.max", "memory.events", "memory.events")]

    def __init__(self, limit):
        refusals = []
        for root, knob, self.events, self.kills in self.ROOTS:
            self.path = os.path.join(root, f"urbd-test-{os.getpid()}")
            try:
                os.mkdir(self.path)
            except OSError as e:
                refusals.append(f"{self.path}: {e.strerror}")
                continue
            try:
                with open(os.path.join(self.path, knob), "w") as f:
                    f.write(str(limit))
                return
            except OSError as e:
                refusals.append(f"{self.path}/{knob}: {e.strerror}")
                os.rmdir(self.path)
        pytest.fail(f"no control group for memory can be made: {'; '.join(refusals)}")

    def counter(self, file, name):
        with open(os.path.join(self.path, file)) as f:
            text = f.read()
        return int(text) if text.strip().isdigit() else int(dict(x.split() for x in text.splitlines()).get(name, 0))

    def reached(self):
        """How often the limit was hit."""
        return self.counter(self.events, "max")

    def killed(self):
        return self.counter(self.kills, "oom_kill")

    def close(self):
        def gone():
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
            return not os.path.isdir(self.path)

        eventually("the control group is empty", gone, 20)


@pytest.fixture
def limited():
    group = Group(LIMIT)
    yield group
    group.close()


def dirty(node, group, path):
    """Writes and syncs a file from inside the group."""
    script = (f"echo $$ >{group.path}/cgroup.procs && "
              f"exec dd if=/dev/urandom of={path} bs=1M count={WRITTEN // 2 // MIB} conv=fsync")
    return subprocess.Popen([*node.prefix(), "sh", "-c", script], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            text=True)


def test_write_back_under_a_memory_limit(cluster, limited):
    a, b = two_nodes(cluster)
    dev = a.device()
    sh(*MKFS["ext4"], dev)
    with mounted(a, dev, "ext4", a.run) as where:
        writers = [dirty(a, limited, os.path.join(where, name)) for name in ("one", "two")]
        try:
            for w in writers:
                _, err = w.communicate(timeout=100)
                assert w.returncode == 0, err
        finally:
            for w in writers:
                w.kill()
                w.wait()
        assert limited.reached() > 0, "the limit was never hit: nothing was shown"
        assert limited.killed() == 0
    for n in (a, b):
        n.wait(conn="Connected", disk="UpToDate", peer_disk="UpToDate")
    sh(*FSCK["ext4"], dev)
    a.urbd("secondary", "r0")
    cluster.assert_same()


def test_process_is_ready_for_reclaim(pair):
    """Its memory is locked, and it is marked as one that reclaim goes through, if it may; else it says what it may not."""
    a = pair.nodes[0]
    a.create_md()
    pid = a.start().pid
    with open(f"/proc/{pid}/status") as f:
        status = dict(x.split(":", 1) for x in f)
    with open(f"/proc/{pid}/stat") as f:
        flags = int(f.read().rsplit(")", 1)[1].split()[6])
    assert int(status["VmLck"].split()[0]) > 4096, "memory is locked (the tests have CAP_IPC_LOCK)"
    if int(status["CapEff"], 16) & CAP_SYS_RESOURCE:
        assert flags & IO_FLUSHER == IO_FLUSHER
    else:
        assert flags & IO_FLUSHER == 0 and "PR_SET_IO_FLUSHER" in a.log()
