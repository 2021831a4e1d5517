"""File systems on the real block device (FUSE and a loop device on this kind of kernel), through a failover."""

import contextlib
import hashlib
import itertools
import os
import random
import signal
import subprocess

import pytest

from cluster import MIB, Failed, eventually

# without the discard of the whole device, which would make all of it active in the activity log
MKFS = {"ext4": ["mkfs.ext4", "-q", "-F", "-E", "nodiscard"], "xfs": ["mkfs.xfs", "-q", "-f", "-K"]}
FSCK = {"ext4": ["e2fsck", "-f", "-n"], "xfs": ["xfs_repair", "-n"]}
SIZE = 320 * MIB  # xfs wants 300 MiB


def sh(*argv, timeout=120, **kw):
    r = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=timeout, **kw)
    if r.returncode:
        raise Failed(f"{argv}: exit {r.returncode}\n{r.stdout[-2000:]}{r.stderr[-2000:]}")
    return r.stdout


@contextlib.contextmanager
def mounted(node, dev, fs, run=subprocess.run):
    """With node.run, in the node's mount namespace: no other one that is made meanwhile keeps it mounted."""
    where = os.path.join(node.dir, "mnt")
    os.makedirs(where, exist_ok=True)
    node.mounts.append(where)
    run(["mount", "-c", "-t", fs, dev, where], check=True)
    try:
        yield where
    except BaseException:
        node.let_io_fail()  # what waits for the next process would wait for ever
        raise
    finally:
        # a file system whose device is gone needs a moment to notice; until then xfs refuses its twin
        eventually(f"umount {where}", lambda: run(["umount", where], stderr=subprocess.DEVNULL).returncode == 0, 30)
        node.mounts.remove(where)


def put(folder, name, data):
    """A file that must survive anything from here on; returns its digest."""
    path = os.path.join(folder, name)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, data)
    os.fsync(fd)
    os.close(fd)
    d = os.open(folder, os.O_RDONLY)
    os.fsync(d)
    os.close(d)
    return hashlib.sha256(data).hexdigest()


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def two_nodes(cluster, size=SIZE, sparse=True, **options):
    """Both UpToDate, a is Primary. Without `sparse` the memory that disks in memory take is the test's own."""
    a, b = cluster.node("a", size=size), cluster.node("b", size=size)
    if not sparse:
        for n in (a, b):
            with open(n.disk_file(), "wb") as f:
                f.writelines(itertools.repeat(bytes(MIB), size // MIB))
    cluster.configure(**options)
    for n in (a, b):
        n.urbd("create-md", "--force", "r0")
        n.start()
    for n in (a, b):
        n.wait(conn="Connected")
    # the disks are equal (all zeroes): skip the full sync
    a.urbd("new-current-uuid", "--clear-bitmap", "r0/0")
    for n in (a, b):
        n.wait(disk="UpToDate", peer_disk="UpToDate")
    a.urbd("primary", "r0")
    return a, b


@pytest.mark.parametrize("fs", ["ext4", "xfs"])
def test_files_survive_a_kill(cluster, fs):
    a, b = two_nodes(cluster)
    dev = a.device()
    sh(*MKFS[fs], dev)
    rng = random.Random(7)
    want = {}
    with mounted(a, dev, fs) as m:
        for i in range(60):
            want[f"f{i}"] = put(m, f"f{i}", rng.randbytes(rng.choice((100, 4096, 70000, 400000))))
        # one more file is being written, not yet synced, at the time of the crash
        with open(os.path.join(m, "unsynced"), "wb") as f:
            f.write(rng.randbytes(300000))
            f.flush()
            a.kill()
    b.wait(conn="~Connecting|Unconnected|NetworkFailure|Timeout")
    b.urbd("primary", "r0")
    dev = b.device()
    with mounted(b, dev, fs) as m:  # replays the journal
        for name, d in want.items():
            assert digest(os.path.join(m, name)) == d, name
    sh(*FSCK[fs], dev)
    with mounted(b, dev, fs) as m:
        want["later"] = put(m, "later", rng.randbytes(MIB))
    a.start()
    cluster.wait_synced()
    assert a.state()["received"] < SIZE // 1024 // 4, "a full resync"
    b.urbd("secondary", "r0")
    cluster.assert_same()
    a.urbd("primary", "r0")
    dev = a.device()
    sh(*FSCK[fs], dev)
    with mounted(a, dev, fs) as m:
        for name, d in want.items():
            assert digest(os.path.join(m, name)) == d, name
    a.urbd("secondary", "r0")
    for n in (a, b):
        n.stop()


def test_orderly_switch(cluster):
    a, b = two_nodes(cluster)
    dev = a.device()
    sh(*MKFS["ext4"], dev)
    with mounted(a, dev, "ext4") as m:
        want = put(m, "f", os.urandom(5 * MIB))
        r = a.call("secondary", "r0")
        assert r.rc == 11 and "held open" in r.err, "a mounted device cannot be demoted"
    a.urbd("secondary", "r0")
    b.urbd("primary", "r0")
    dev = b.device()
    with mounted(b, dev, "ext4") as m:
        assert digest(os.path.join(m, "f")) == want
    sh(*FSCK["ext4"], dev)


def test_secondary_device_is_not_writable(cluster):
    a, b = two_nodes(cluster)
    path = b.call("sh-dev", "r0/0").out.strip()
    for of, why in ((path, "Read-only file system"), (b.side_door(), "Operation not permitted")):
        r = b.run(["dd", "if=/dev/zero", f"of={of}", "bs=4096", "count=1", "conv=nocreat,fsync"], capture_output=True, text=True)
        assert r.returncode != 0 and why in r.stderr, r
    cluster.assert_same()


def test_device_semantics(cluster):
    """Direct I/O, discard and flush reach the replicas; the device has the right size."""
    a, b = two_nodes(cluster)
    dev = a.device()
    assert int(sh("blockdev", "--getsize64", dev)) == a.data_size()
    data = os.urandom(3 * MIB)
    fd = os.open(dev, os.O_RDWR)
    os.pwrite(fd, data, MIB)
    os.fsync(fd)
    os.close(fd)
    for n in (a, b):
        with open(n.disk_file(), "rb") as f:
            f.seek(MIB)
            assert f.read(len(data)) == data
    sh("blkdiscard", "-z", "-o", 2 * MIB, "-l", MIB, dev)
    with open(dev, "rb") as f:
        f.seek(2 * MIB)
        assert f.read(MIB) == bytes(MIB)
    cluster.assert_same()


def test_fio_verify_across_kills(cluster):
    """fio --verify=crc32c with random sizes while each node is killed in turn; then everything is read back."""
    a, b = two_nodes(cluster)
    state = os.path.join(cluster.dir, "fio")
    os.makedirs(state)

    def fio(node, *more):
        return subprocess.run(["fio", "--name=t", "--ioengine=libaio", "--direct=1", f"--filename={node.device()}",
                               "--rw=randwrite", "--bsrange=512-128k", "--bs_unaligned=0", "--blockalign=512",
                               "--iodepth=16", "--size=48M", "--verify=crc32c", "--randrepeat=1", "--randseed=11",
                               f"--aux-path={state}", *more],
                              capture_output=True, text=True, timeout=120, cwd=state)

    # kill the secondary in the middle
    import threading
    killer = threading.Timer(1.0, b.kill)
    killer.start()
    r = fio(a, "--rate=20m", "--do_verify=1", "--verify_fatal=1")
    killer.join()
    assert r.returncode == 0, r.stdout + r.stderr
    b.start()
    cluster.wait_synced()
    cluster.assert_same()
    # kill the primary in the middle: fio sees errors; what it wrote before is verified on the other node
    killer = threading.Timer(1.0, a.kill)
    killer.start()
    r = fio(a, "--rate=20m", "--do_verify=0", "--verify_state_save=1")
    killer.join()
    assert r.returncode != 0, "the device vanished under fio and it did not notice"
    b.wait(conn="~Connecting|Unconnected|NetworkFailure|Timeout")
    b.urbd("primary", "r0")
    r = fio(b, "--verify_only=1", "--verify_fatal=1", "--verify_state_load=0", "--number_ios=40")
    a.start()
    cluster.wait_synced()
    r = fio(b, "--do_verify=1", "--verify_fatal=1")
    assert r.returncode == 0, r.stdout + r.stderr
    b.urbd("secondary", "r0")
    cluster.assert_same()


def test_a_stop_waits_for_who_uses_the_device(cluster):
    """Without a keeper, a service manager's first SIGTERM does not take a mounted device away; what a killed process leaves
    goes with `down`."""
    a, _ = two_nodes(cluster, extra="urbd { hand-over no; }")
    dev = a.device()
    sh(*MKFS["ext4"], dev)
    [pid] = a.pids()
    with mounted(a, dev, "ext4") as m:
        os.kill(pid, signal.SIGTERM)
        eventually("refusal in the log", lambda: "held open" in a.log(), 20)
        want = put(m, "f", os.urandom(MIB))
        assert digest(os.path.join(m, "f")) == want and a.state()["role"] == "Primary"
    loop = a.side_door()
    assert os.path.exists(f"/sys/block/{os.path.basename(loop)}/loop/backing_file")
    a.kill()
    eventually("the loop device is free", lambda: not os.path.exists(f"/sys/block/{os.path.basename(loop)}/loop"), 20)
    a.urbd("down", "r0")
    assert a.run(["test", "-L", "/dev/urbd/by-res/r0/0"]).returncode == 1 and not a.mounted()
    assert not [f for f in os.listdir(a.run_dir) if f.endswith((".sock", ".nbd", ".dev"))]


@contextlib.contextmanager
def fuse_over_io_uring():
    """Switches the kernel's FUSE over io_uring on for file systems mounted in here; yields whether it has that at all."""
    switch = "/sys/module/fuse/parameters/enable_uring"
    if not os.path.exists(switch):
        yield False
        return
    with open(switch) as f:
        before = f.read().strip()
    with open(switch, "w") as f:
        f.write("Y")
    try:
        yield True
    finally:
        with open(switch, "w") as f:
            f.write(before)


def test_requests_through_the_ring(cluster):
    """FUSE over io_uring where the kernel has it, messages elsewhere; the same data either way, also through a kill."""
    with fuse_over_io_uring() as has_it:
        a, b = two_nodes(cluster, extra="urbd { fuse-io-uring yes; }")
        for n in (a, b):
            assert ("FUSE over io_uring" if has_it else "FUSE with messages") in n.log()
        # more at once, and longer, than there are slots and slots are long
        sh("fio", "--name=t", "--ioengine=libaio", "--direct=1", f"--filename={a.device()}", "--rw=randrw",
           "--bsrange=512-1m", "--blockalign=512", "--bs_unaligned=0", "--iodepth=256", "--size=64M", "--verify=crc32c",
           "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0")
        sh("blkdiscard", "-z", "-o", MIB, "-l", MIB, a.device())
        cluster.assert_same()
        sh(*MKFS["ext4"], a.device())
        with mounted(a, a.device(), "ext4") as m:
            want = put(m, "f", os.urandom(5 * MIB))
            a.kill()
        b.wait(conn="~Connecting|Unconnected|NetworkFailure|Timeout")
        b.urbd("primary", "r0")
        with mounted(b, b.device(), "ext4") as m:
            assert digest(os.path.join(m, "f")) == want
        b.urbd("secondary", "r0")
    if not has_it:
        pytest.skip("fuse-io-uring: tried with messages only")


def test_the_ring_is_not_used_if_not_wanted(cluster):
    with fuse_over_io_uring():
        a = cluster.node("a", size=SIZE)
        cluster.node("b", size=SIZE)
        cluster.configure()
        a.create_md()
        a.start()
        assert "FUSE with messages" in a.log()
