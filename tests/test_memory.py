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
# Of both nodes' processes together: up to 98 MiB of buffers each under load, 32 MiB of slots if FUSE comes over io_uring
# (another test may have switched that on), and little more.
LIMIT_OF_NODES = 288 * MIB
WRITTEN = 192 * MIB
# Flags of a process (proc(5), field 9 of stat) that PR_SET_IO_FLUSHER sets: PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE.
IO_FLUSHER = 0x0008_0000 | 0x0010_0000
CAP_IPC_LOCK, CAP_SYS_RESOURCE = 1 << 14, 1 << 24


class Group:
    """A control group for memory, of version 1 or 2."""

    ROOTS = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.failcnt", "memory.oom_control"),
             ("/sys/fs/cgroup", "memory.max", "memory.events", "memory.events"),
             ("/sys/fs/cgroup/unified", "memory.max", "memory.events", "memory.events")]

    def __init__(self, limit, name="programs"):
        refusals = []
        for root, knob, self.events, self.kills in self.ROOTS:
            self.path = os.path.join(root, f"urbd-test-{os.getpid()}-{name}")
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


    def inside(self, argv):
        """A command line that runs this one in the group."""
        return ["sh", "-c", f'echo $$ >{self.path}/cgroup.procs && exec "$@"', "sh", *argv]


@pytest.fixture
def limited():
    group = Group(LIMIT)
    yield group
    group.close()


@pytest.fixture
def limited_nodes():
    """For the nodes' processes: to be asked for before the cluster, which must end before the group."""
    group = Group(LIMIT_OF_NODES, "nodes")
    yield group
    group.close()


def dirty(node, group, path):
    """Writes and syncs a file from inside the group."""
    dd = ["dd", "if=/dev/urandom", f"of={path}", "bs=1M", f"count={WRITTEN // 2 // MIB}", "conv=fsync"]
    return subprocess.Popen([*node.prefix(), *group.inside(dd)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            text=True)


def write_back(cluster, limited):
    """More dirty pages than the group of the programs that make them has room for."""
    a, b = two_nodes(cluster, size=WRITTEN + 48 * MIB, sparse=False)
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


def test_write_back_under_a_memory_limit(cluster, limited):
    write_back(cluster, limited)


def test_write_back_while_the_nodes_have_a_limit_of_their_own(limited_nodes, cluster, limited):
    """A node's process needs nobody's pages to be written before it can go on: what is always there suffices, and what it
    grows by has a bound."""
    cluster.wrap = limited_nodes.inside
    write_back(cluster, limited)
    assert limited_nodes.killed() == 0
    for n in cluster.nodes:
        assert n.processes["r0"].poll() is None


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


def test_process_without_any_right(pair):
    """Without CAP_IPC_LOCK, and with little memory that may be locked: it says so, locks nothing (else later allocations
    would fail), and works."""
    without = ["setpriv", "--bounding-set", "-ipc_lock", "--", "prlimit", "--memlock=65536:65536", "--"]
    pair.wrap = lambda argv: [*without, *argv]
    pair.up()
    a, b = pair.nodes
    for n in (a, b):
        with open(f"/proc/{n.processes['r0'].pid}/status") as f:
            status = dict(x.split(":", 1) for x in f)
        assert not int(status["CapEff"], 16) & CAP_IPC_LOCK, "the test took the right away"
        assert int(status["VmLck"].split()[0]) * 1024 <= 65536
        assert "locking memory (needs CAP_IPC_LOCK)" in n.log() and "may stall when memory is short" in n.log()
    data = os.urandom(8 * MIB)
    a.write(0, data)
    assert a.read(0, len(data)) == data
    pair.assert_same()


def memory(node, res="r0"):
    """Bytes of the process: resident that are no file's, and locked."""
    with open(f"/proc/{node.serving(res)}/status") as f:
        status = dict(x.split(":", 1) for x in f)
    return tuple(int(status[key].split()[0]) * 1024 for key in ("RssAnon", "VmLck"))


def most(node):
    """The most bytes that the process ever had resident, without the pages of its program."""
    with open(f"/proc/{node.serving()}/status") as f:
        status = dict(x.split(":", 1) for x in f)
    peak, program = (int(status[key].split()[0]) * 1024 for key in ("VmHWM", "RssFile"))
    return peak - program


def plan(node):
    """The memory plan, in bytes."""
    return {key: kib and kib * 1024 for key, kib in node.status()["urbd-memory"].items()}


# Resident of an idle process, besides its bitmaps; the pages of its program are those of all processes together.
IDLE = 12 * MIB
# Locked are the program and the libraries, too.
PROGRAM = 24 * MIB


def is_small(node, bitmaps=0):
    resident, locked = memory(node)
    return resident <= IDLE + bitmaps and locked <= IDLE + bitmaps + PROGRAM and plan(node)["buffers"] <= IDLE


def test_an_idle_process_is_small_and_grows_only_under_load(pair):
    """Whatever max-buffers says. What it has grown by goes when nobody uses it."""
    pair.configure(net="max-buffers 131072;")
    for n in pair.nodes:
        n.create_md()
        n.start()
    a, b = pair.nodes
    for n in (a, b):
        n.wait(conn="Connected")
        assert is_small(n), (memory(n), plan(n))
        assert plan(n)["buffers-max"] > 1 << 30 and plan(n)["lockable"] is None
    a.urbd("primary", "--force", "r0")
    pair.wait_synced()
    fio = ["fio", "--name=t", f"--filename={a.device()}", "--ioengine=libaio", "--direct=1", "--rw=randwrite", "--bs=1m",
           "--iodepth=32", "--size=32M", "--io_size=512M"]
    most, p = 0, subprocess.Popen(a.prefix() + fio, stdout=subprocess.DEVNULL)
    while p.poll() is None:
        most = max(most, plan(a)["buffers"])
    assert p.returncode == 0 and most >= plan(a)["buffers-min"] + 4 * MIB, "it never grew"
    for n in (a, b):
        eventually("what is not used is given back", lambda: is_small(n), 60)
        assert plan(n)["buffers"] >= plan(n)["buffers-min"]
    words = a.urbd("status", "--verbose", "--statistics", "r0").out.split()
    assert "lockable:unlimited" in words and any(w.startswith("buffers-max:") for w in words), words
    pair.assert_same()


def test_a_large_bitmap_is_in_memory_once(cluster):
    """Also while all of it is written for the first time, and while it is read. It is all ones: a bitmap of zeroes needs
    hardly any memory."""
    a = cluster.node("a", size=2 << 40)
    cluster.node("b", size=2 << 40)
    cluster.configure()
    a.create_md()
    a.start()
    a.urbd("primary", "--force", "r0")
    a.urbd("secondary", "r0")
    bitmap = a.data_size() // 4096 // 8
    assert bitmap > 63 * MIB and abs(plan(a)["bitmaps"] - bitmap) <= 1024
    # Under load: what it gives back when idle is not waited for.
    assert most(a) <= bitmap + 2 * IDLE, most(a)
    a.stop()
    a.start()
    a.wait(disk="UpToDate", timeout=60)
    assert bitmap < memory(a)[0] and most(a) <= bitmap + IDLE, (memory(a), most(a))
    assert is_small(a, bitmap)
