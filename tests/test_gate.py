"""The block device is on every node, and whoever opens it for writing makes the node Primary.

Every way in is tried: each waits at the door until the node is Primary, and the last close makes it Secondary again.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from cluster import MIB, Failed, eventually
from test_filesystems import MKFS, mounted, put, digest, sh

SIZE = 48 * MIB
BLOCK = 4096
LIBC = ctypes.CDLL(None, use_errno=True)


# Who opens while another node makes way waits as long as that takes on a busy machine.
PATIENT = "auto-promote yes; auto-promote-timeout 100;"


def two(cluster, options=PATIENT, size=SIZE, **more):
    """Both UpToDate, both Secondary."""
    a, b = cluster.node("a", size=size), cluster.node("b", size=size)
    cluster.configure(options=options, **more)
    for n in (a, b):
        n.create_md()
        n.start()
    for n in (a, b):
        n.wait(conn="Connected")
    a.urbd("new-current-uuid", "--clear-bitmap", "r0/0")
    cluster.wait_synced()
    return a, b


def one(cluster, **options):
    """A node without a peer to ask, Secondary and UpToDate."""
    a = cluster.node("a", size=SIZE)
    cluster.node("b", size=SIZE)
    cluster.configure(options="auto-promote yes;", **options)
    a.create_md()
    a.start()
    a.urbd("primary", "--force", "r0")
    a.urbd("secondary", "r0")
    return a


def role(node):
    return node.state()["role"]


def sectors(node):
    """The size of the node's device, as who does not open it sees it."""
    with open(f"/sys/block/{os.path.basename(node.side_door())}/size") as f:
        return int(f.read())


def is_open(node):
    return node.status()["devices"][0]["open"]


def error_of(action):
    """The errno that it fails with; 0 if it does not."""
    try:
        fd = action()
    except OSError as e:
        return e.errno
    if isinstance(fd, int):
        os.close(fd)
    return 0


def opens(path, flags=os.O_RDWR):
    return error_of(lambda: os.open(path, flags))


def call(number, *args):
    result = LIBC.syscall(number, *args)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def by_mount2(path, where, flags=0):
    if LIBC.mount(path.encode(), where.encode(), b"ext4", flags, None):
        raise OSError(ctypes.get_errno(), "mount")
    return lambda: LIBC.umount2(where.encode(), 0)


def by_fsconfig(path, where):
    fsopen, fsconfig, fsmount, move = 430, 431, 432, 429
    fs = call(fsopen, b"ext4", 0)
    call(fsconfig, fs, 1, b"source", path.encode(), 0)
    call(fsconfig, fs, 6, None, None, 0)
    mount = call(fsmount, fs, 0, 0)
    call(move, mount, b"", -100, where.encode(), 4)
    os.close(fs)
    os.close(mount)
    return lambda: LIBC.umount2(where.encode(), 0)


def by_io_uring(path):
    """IORING_OP_OPENAT, in a ring of our own making."""
    params = ctypes.create_string_buffer(120)
    ring = call(425, 4, params)
    sq_off = struct.unpack_from("10I", params, 40)
    cq_off = struct.unpack_from("10I", params, 80)
    name = ctypes.create_string_buffer(path.encode())
    with contextlib.ExitStack() as stack:
        sq = mmap.mmap(ring, sq_off[6] + 4 * 4, offset=0)
        sqes = mmap.mmap(ring, 4 * 64, offset=0x10000000)
        cq = mmap.mmap(ring, cq_off[5] + 8 * 16, offset=0x8000000)
        for m in (sq, sqes, cq):
            stack.callback(m.close)
        stack.callback(os.close, ring)
        sqes[:64] = struct.pack("<BBHiQQIIQ24x", 18, 0, 0, -100, 0, ctypes.addressof(name), 0, os.O_RDWR, 7)
        struct.pack_into("I", sq, sq_off[6], 0)
        struct.pack_into("I", sq, sq_off[1], 1)
        call(426, ring, 1, 1, 1, None, 0)
        data, result = struct.unpack_from("<Qi", cq, cq_off[5])
        assert data == 7
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return lambda: os.close(result)


def by_openat2(path):
    how = struct.pack("<QQQ", os.O_RDWR, 0, 0)
    fd = call(437, -100, path.encode(), how, len(how))
    return lambda: os.close(fd)


def by_reopening(path):
    """An open file is opened once more, by its name in /proc: no directory is walked."""
    look = os.open(path, os.O_PATH)
    fd = os.open(f"/proc/self/fd/{look}", os.O_RDWR)
    os.close(look)
    return lambda: os.close(fd)


def held_open(*argv):
    """A program that has the device open until it is told to end."""
    p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def end():
        p.stdin.close()
        p.wait(20)
    return end


def by_swapon(path):
    sh("mkswap", path)
    if LIBC.swapon(path.encode(), 0):
        raise OSError(ctypes.get_errno(), "swapon")
    return lambda: LIBC.swapoff(path.encode())


WAYS = {
    "open": lambda path, _: (lambda fd: lambda: os.close(fd))(os.open(path, os.O_RDWR)),
    "openat2": lambda path, _: by_openat2(path),
    "reopened": lambda path, _: by_reopening(path),
    "io_uring": lambda path, _: by_io_uring(path),
    "mount": lambda path, where: (sh("mount", "-c", "-t", "ext4", path, where), lambda: sh("umount", where))[1],
    "mount2": by_mount2,
    "fsconfig": by_fsconfig,
    "qemu-io": lambda path, _: held_open("qemu-io", "-f", "raw", "-t", "none", path),
    "other-namespace": lambda path, _: held_open("unshare", "-m", "sh", "-c", f"exec 3<>{path}; cat"),
    "swapon": lambda path, _: by_swapon(path),
}


def test_every_way_in_promotes_and_the_last_close_demotes(cluster):
    a, b = two(cluster)
    dev = a.device()
    where = os.path.join(a.dir, "mnt")
    os.makedirs(where)
    # programs that come and go
    sh("dd", "if=/dev/zero", f"of={dev}", "bs=1M", "count=1", "oflag=direct")
    a.wait(role="Secondary")
    sh(*MKFS["ext4"], dev)
    a.wait(role="Secondary")
    for name, way in WAYS.items():
        close = way(dev, where)
        try:
            eventually(f"{name}: it is in", lambda: (role(a), is_open(a)) == ("Primary", True))
            b.wait(peer_role="Primary")
        finally:
            close()
        eventually(f"{name}: Secondary again", lambda: (role(a), is_open(a)) == ("Secondary", False))
        if name != "swapon":
            sh("e2fsck", "-fn", dev)
    # The disks are the same, and nobody but us was here.
    cluster.wait_synced()
    cluster.assert_same()
    # It goes the other way round, at once.
    with open(b.device(), "r+b", buffering=0) as f:
        f.write(bytes(BLOCK))
        assert role(b) == "Primary"
    b.wait(role="Secondary")
    for n in (a, b):
        assert "error" not in n.log(), n.log()
        n.urbd("down", "r0")
        assert not n.loops()


def test_what_was_written_before_the_last_close_is_on_both_disks(cluster):
    """Written to the page cache, and closed: the last close writes it back, and then the node is Secondary."""
    a, b = two(cluster)
    for n in range(6):
        data = os.urandom(256 * 1024)
        node, other = ((a, b), (b, a))[n % 2]
        with open(node.device(), "r+b", buffering=0) as f:
            f.seek(n * MIB)
            f.write(data)
        # Ours is the next open, on the other node: it waits until the first is Secondary.
        with open(other.device(), "r+b", buffering=0) as f:
            f.seek(n * MIB)
            assert f.read(len(data)) == data, "a Secondary's page cache is not what it was before"
    for n in (a, b):
        n.wait(role="Secondary")
    cluster.assert_same()


def test_who_has_the_number_next_forbids_nothing_here(cluster, tmp_path):
    """A device goes with its last user, and its number may be somebody else's before this node looks: that he forbids
    writes to his device says nothing of this one."""
    a, _ = two(cluster)
    other = tmp_path / "other"
    other.write_bytes(bytes(BLOCK))
    side = frozen_without_its_number(a, other)
    try:
        sh("blockdev", "--setro", side)
        a.thaw()
        eventually("it has another number", lambda: a.side_door() != side)
        assert opens(a.device()) == 0
        a.wait(role="Secondary")
        assert opens(a.device()) == 0
    finally:
        sh("blockdev", "--setrw", side)
        sh("losetup", "-d", side)


def frozen_without_its_number(node, other):
    """Freezes the node when its device goes with its last user, and gives the device's number to the file `other`; returns
    the device of that number. Other tests make loop devices, too: where one of them was faster, all of it again."""
    for _ in range(20):
        side = node.side_door()
        backing = f"/sys/block/{os.path.basename(side)}/loop/backing_file"
        ours = read_or_none(backing)
        assert ours is not None
        with open(node.device(), "rb", buffering=0) as f:
            f.read(BLOCK)
            eventually("it is in use", lambda: is_open(node))
            # No user is waited for any more.
            time.sleep(1)
            node.freeze()
        eventually("it is gone", lambda: read_or_none(backing) != ours)
        if subprocess.run(["losetup", side, str(other)], capture_output=True).returncode == 0:
            return side
        node.thaw()
        node.wait(role="Secondary")
        eventually("it has another number", lambda: node.side_door() != side)
    raise AssertionError("other tests took each number that got free")


def read_or_none(path):
    try:
        with open(path) as f:
            return f.read()
    except FileNotFoundError:
        return None


def test_a_user_on_its_way_out_is_waited_for(cluster):
    """A program that has ended, or unmounted, is not a user any more, although the kernel may close its device a moment
    later, and later still on a busy machine. Whom nobody can name is such a one: here a descriptor under way in a socket
    is the last. Who can be named is refused at once."""
    a = one(cluster)
    a.urbd("primary", "r0")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = os.open(a.device(), os.O_RDWR)
        os.write(fd, bytes(BLOCK))
        eventually("it is in use", lambda: is_open(a), 10)
        time.sleep(1)  # No user is waited for any more.
        r = a.call("secondary", "r0")
        assert r.rc == 11 and f"(pid {os.getpid()})" in r.err, r
        socket.send_fds(ours, [b"x"], [fd])
        os.close(fd)
        closing = threading.Timer(0.8, lambda: os.close(socket.recv_fds(theirs, 1, 1)[1][0]))
        closing.start()
        a.urbd("secondary", "r0")
        closing.join()
    assert role(a) == "Secondary"
    # Who stays, and cannot be named, is refused in the end.
    a.urbd("primary", "r0")
    with open(a.device(), "r+b", buffering=0) as f:
        ours, theirs = socket.socketpair()
        socket.send_fds(ours, [b"x"], [f.fileno()])
    with ours, theirs:
        r = a.call("secondary", "r0")
        assert r.rc == 11 and "held open" in r.err, r
        assert re.search("nobody on this machine is seen to have /dev/loop[0-9]+ open, and it is in use", a.log())
    eventually("it can be", lambda: a.call("secondary", "r0").rc == 0, 10)


def test_the_device_is_there_from_the_start_to_the_end(cluster):
    """On a Secondary, with its size, for all who look at it; what was forbidden by hand stays so."""
    a, b = two(cluster)
    size = a.data_size()
    for n in (a, b):
        dev = n.device()
        door = n.door()
        assert int(n.run(["blockdev", "--getsize64", dev], stdout=subprocess.PIPE).stdout) == size
        for argv in (["lsblk", "-P", "-b", "-o", "NAME,SIZE,TYPE,MAJ:MIN", door], ["blockdev", "--getss", door]):
            # After the last close it is attached anew, and lsblk, which opens nothing, does not list what is empty.
            eventually("it is attached", lambda n=n: sectors(n) == size // 512)
            assert n.run(argv, stdout=subprocess.DEVNULL).returncode == 0, argv
        st = os.stat(dev)
        assert st.st_mode == 0o060660 and os.major(st.st_rdev) == 7 and st.st_uid == 0
    dev = a.device()
    sh(*MKFS["ext4"], dev)
    for n in (a, b):
        n.wait(role="Secondary")
        found = n.run(["blkid", "-p", "-o", "value", "-s", "TYPE", n.device()], stdout=subprocess.PIPE, text=True).stdout
        assert found == "ext4\n"
        assert role(n) == "Secondary", "nothing that reads promotes"
    # As a CSI driver does: the flag is the administrator's, on a Secondary too.
    assert subprocess.check_output(["blockdev", "--getro", dev]) == b"0\n"
    sh("blockdev", "--setro", dev)
    eventually("it is noticed", lambda: not is_open(a))
    assert subprocess.check_output(["blockdev", "--getro", dev]) == b"1\n"
    assert opens(dev) == errno.EACCES and role(a) == "Secondary"
    assert opens(dev, os.O_RDONLY) == 0
    sh("blockdev", "--setrw", dev)
    eventually("it is noticed", lambda: not is_open(a))
    assert opens(dev) == 0
    a.wait(role="Secondary")
    # The side door of a Secondary: it can be read, and not written to.
    side = a.side_door()
    with open(side, "rb", buffering=0) as f:
        assert len(f.read(BLOCK)) == BLOCK
    fd = os.open(side, os.O_RDWR)
    with pytest.raises(PermissionError):
        os.pwrite(fd, bytes(BLOCK), 0)
    os.close(fd)
    # Without its disk it is as large as before.
    a.urbd("detach", "r0")
    a.wait(disk="Diskless")
    assert int(subprocess.check_output(["blockdev", "--getsize64", dev])) == size
    with open(dev, "rb", buffering=0) as f:
        assert f.read(2 * BLOCK)[1080:1082] == b"\x53\xef", "read from the peer's disk"
    for n in (a, b):
        n.urbd("down", "r0")
        assert not n.loops() and not n.mounted() and not os.path.exists(n.run_dir + "/r0.dev")


def test_refused_while_the_peer_is_primary(cluster):
    a, b = two(cluster, options="auto-promote yes; auto-promote-timeout 5;")
    where = os.path.join(a.dir, "mnt")
    os.makedirs(where)
    sh(*MKFS["ext4"], a.device())
    with open(b.device(), "r+b", buffering=0):
        began = time.monotonic()
        assert opens(a.device()) == errno.EMEDIUMTYPE
        assert opens(a.device(), os.O_RDONLY) == errno.EMEDIUMTYPE
        assert time.monotonic() - began > 0.9, "they wait for auto-promote-timeout"
        r = subprocess.run(["mount", "-c", "-t", "ext4", a.device(), where], capture_output=True, text=True)
        assert r.returncode == 32, r
        assert (role(a), role(b), is_open(a)) == ("Secondary", "Primary", False)
        # From here on who waits does so for a minute.
        a.urbd("resource-options", "--auto-promote-timeout=600", "r0")
        began = time.monotonic()
        assert opens(a.device(), os.O_RDONLY | os.O_NONBLOCK) == errno.EMEDIUMTYPE
        assert time.monotonic() - began < 30
        # Who comes while the last user over there leaves is let in as soon as it has.
        w = Waiter(a.device())
    w.got_in()
    w.end()
    cluster.wait_synced()


def test_without_auto_promote_a_secondary_is_not_opened(cluster):
    """As beside 8.4, and as ever where nothing is written: an administrator promotes."""
    a, b = two(cluster, options="")
    dev = a.device()
    assert (opens(dev), opens(dev, os.O_RDONLY)) == (errno.EROFS, errno.EMEDIUMTYPE)
    a.urbd("primary", "r0")
    fd = os.open(dev, os.O_RDWR)
    assert is_open(a)
    r = a.call("secondary", "r0")
    assert r.rc == 11 and f"(pid {os.getpid()})" in r.err, r
    assert a.call("down", "r0").rc == 11
    os.close(fd)
    eventually("closed", lambda: not is_open(a))
    time.sleep(0.3)
    assert role(a) == "Primary", "by command it stays so"
    a.urbd("secondary", "r0")
    assert opens(dev) == errno.EROFS


def test_a_command_outlasts_the_last_close(cluster):
    a = one(cluster)
    dev = a.device()
    fd = os.open(dev, os.O_RDWR)
    a.urbd("primary", "r0")
    os.close(fd)
    eventually("closed", lambda: not is_open(a))
    time.sleep(0.3)
    assert role(a) == "Primary"
    a.urbd("secondary", "r0")
    assert opens(dev) == 0
    a.wait(role="Secondary")


def test_refusals_name_the_users(cluster):
    a = one(cluster)
    dev = a.device()
    sh(*MKFS["ext4"], dev)
    with mounted(a, dev, "ext4") as where:
        began = time.monotonic()
        r = a.call("secondary", "r0")
        assert r.rc == 11 and f"mounted on {where}" in r.err, r
        with open(dev, "rb", buffering=0) as f:
            p = subprocess.Popen(["sleep", "100"], stdin=f)
        try:
            r = a.call("down", "r0")
            assert r.rc == 11 and f"mounted on {where}" in r.err and f"opened by sleep (pid {p.pid})" in r.err, r
        finally:
            p.kill()
            p.wait()
        assert time.monotonic() - began < 5
    a.wait(role="Secondary")
    # Who comes by a side door is found as well.
    a.urbd("primary", "r0")
    with mounted(a, a.side_door(), "ext4", run=a.run) as where:
        assert is_open(a)
        r = a.call("down", "r0")
        assert r.rc == 11 and f"mounted on {where}" in r.err, r
    a.urbd("down", "r0")


def test_users_that_a_forced_demotion_leaves_behind_get_errors(cluster):
    a = one(cluster)
    dev = a.device()
    fd = os.open(dev, os.O_RDWR | os.O_DIRECT)
    page = mmap.mmap(-1, BLOCK)
    os.pwritev(fd, [page], 0)
    a.urbd("secondary", "--force", "r0")
    for action in (lambda: os.pwritev(fd, [page], 0), lambda: os.preadv(fd, [page], 0)):
        with pytest.raises(OSError):
            action()
    assert opens(dev, os.O_RDONLY) == errno.ENOTRECOVERABLE
    os.close(fd)
    eventually("it can be opened again", lambda: opens(dev) == 0)


def test_a_reader_does_not_outlive_what_the_peer_writes(cluster):
    """In 8.4's dialect nobody can be kept from being Primary by a reader elsewhere: then the reader gets errors, and what
    it has left in the page cache is gone before anybody else reads."""
    a, b = two(cluster)
    fd, direct = os.open(b.device(), os.O_RDONLY), os.open(b.device(), os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, BLOCK)
    assert os.pread(fd, BLOCK, 0) == bytes(BLOCK) and is_open(b) and role(b) == "Secondary"
    with open(a.device(), "r+b", buffering=0) as f:
        f.write(b"\x55" * BLOCK)
        eventually("it gets errors", lambda: error_of(lambda: str(os.preadv(direct, [page], 0))) == errno.EIO)
        assert opens(b.device(), os.O_RDONLY) == errno.ENOTRECOVERABLE
    os.close(fd)
    os.close(direct)
    a.wait(role="Secondary")
    eventually("it is closed", lambda: not is_open(b))
    with open(b.device(), "r+b", buffering=0) as f:
        assert f.read(BLOCK) == b"\x55" * BLOCK and role(b) == "Primary"


def test_two_nodes_at_once(cluster):
    """Both are opened all the time: never are two Primary, nobody gets a wrong answer, and nothing is lost."""
    a, b = two(cluster)
    done, problems = {a.name: 0, b.name: 0}, []

    def work(node, dev):
        try:
            for n in range(12):
                with open(dev, "r+b", buffering=0) as f:
                    count = int.from_bytes(f.read(8), "little")
                    f.seek(0)
                    f.write((count + 1).to_bytes(8, "little") + bytes(BLOCK - 8))
                done[node.name] += 1
        except OSError as e:
            problems.append((node.name, e))

    threads = [threading.Thread(target=work, args=(n, n.device())) for n in (a, b)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
        assert not t.is_alive()
    assert not problems, problems
    with open(a.device(), "rb", buffering=0) as f:
        assert int.from_bytes(f.read(8), "little") == 24, done
    cluster.wait_synced()
    cluster.assert_same()


class Waiter:
    """A process that opens the device and waits at the door."""

    def __init__(self, dev):
        self.p = subprocess.Popen(["sh", "-c", f"exec 3<>{dev} && echo in && cat"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        eventually("it waits in its open", self.waits)

    def waits(self):
        with open(f"/proc/{self.p.pid}/syscall") as f:
            return f.read().startswith("257 ")

    def got_in(self):
        assert self.p.stdout.readline() == b"in\n"

    def end(self):
        self.p.stdin.close()
        self.p.wait(20)
        self.p.stdout.close()


def test_killed_while_it_waits(cluster):
    a, b = two(cluster, options="auto-promote yes; auto-promote-timeout 600;")
    with open(b.device(), "r+b", buffering=0):
        w = Waiter(a.device())
        time.sleep(0.3)
        began = time.monotonic()
        w.p.send_signal(signal.SIGKILL)
        w.p.wait(20)
        assert time.monotonic() - began < 5
        w.end()
    b.wait(role="Secondary")
    time.sleep(0.5)
    assert role(a) == "Secondary", "the dead want nothing"
    assert opens(a.device()) == 0


@pytest.mark.parametrize("way", ["kill", "restart"])
def test_the_process_is_replaced_while_somebody_waits(cluster, way):
    a, b = two(cluster, options="auto-promote yes; auto-promote-timeout 600;")
    with open(b.device(), "r+b", buffering=0):
        w = Waiter(a.device())
        time.sleep(0.2)
        if way == "kill":
            a.kill_process()
            a.start()
        else:
            a.urbd("restart", "r0")
            a.processes.pop("r0", None)
        time.sleep(0.3)
        assert w.waits() and role(a) == "Secondary"
    w.got_in()
    assert role(a) == "Primary"
    w.end()
    a.wait(role="Secondary")
    cluster.wait_synced()


def test_a_promotion_by_opening_outlives_the_process(cluster):
    a = one(cluster)
    dev = a.device()
    sh(*MKFS["ext4"], dev)
    with mounted(a, dev, "ext4") as where:
        want = put(where, "f", os.urandom(MIB))
        for _ in range(2):
            a.kill_process()
            a.start()
            assert put(where, "g", b"x" * 5000) and digest(os.path.join(where, "f")) == want
            assert role(a) == "Primary" and is_open(a)
        a.urbd("restart", "r0")
        a.processes.pop("r0", None)
        assert put(where, "h", b"y" * 5000)
    eventually("Secondary after the last close", lambda: role(a) == "Secondary")
    # Nobody there, and killed: it is there again.
    a.kill_process()
    a.start()
    assert role(a) == "Secondary" and opens(dev) == 0


def test_a_secondary_is_looked_at_while_io_is_suspended(cluster):
    """Programs that look at every disk (blkid, lsblk, volume managers) do not hang."""
    a, b = two(cluster, options="auto-promote yes; auto-promote-timeout 5;")
    sh(*MKFS["ext4"], a.device())
    a.wait(role="Secondary")
    for n in (a, b):
        n.urbd("suspend-io", "r0")
    for n in (a, b):
        for argv in (["lsblk", "-f", n.door()], ["blkid", "-p", n.device()]):
            assert n.run(argv, timeout=20, stdout=subprocess.DEVNULL).returncode == 0, argv
        # After its last user the device is made anew: who opens it by its number just then meets one that ends.
        look = ["dd", f"if={n.side_door()}", "iflag=direct", "bs=4k", "count=1", "of=/dev/null", "status=none"]
        eventually("the side door is open again", lambda: n.run(look, timeout=20).returncode == 0, 20)
    for n in (a, b):
        n.urbd("resume-io", "r0")
    # A Primary whose I/O hangs, and its peer.
    with open(a.device(), "r+b", buffering=0):
        a.urbd("suspend-io", "r0")
        assert b.run(["lsblk", b.door()], timeout=20, stdout=subprocess.DEVNULL).returncode == 0
        assert b.run(["blkid", "-p", b.device()], timeout=20, stderr=subprocess.DEVNULL).returncode == 2
        a.urbd("resume-io", "r0")


def test_without_the_right_to_pass_over_permissions(cluster):
    """As in the unit's sandbox: the device is there, and there again, in each role and as often as roles change."""
    a = cluster.node("a", size=SIZE)
    cluster.node("b", size=SIZE)
    cluster.configure()
    a.create_md()
    rights = "-dac_override,-dac_read_search"
    a.start(under=["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"])
    for _ in range(10):
        a.urbd("primary", "--force", "r0")
        a.run(["dd", "if=/dev/urandom", f"of={a.device()}", "bs=4k", "count=1", "oflag=direct"], check=True, capture_output=True)
        a.urbd("secondary", "r0")
    assert "Permission denied" not in a.log()


def test_names_of_drbd(cluster):
    a, b = two(cluster)
    door = a.door()

    def leads(name):
        return a.run(["readlink", f"/dev/urbd/{name}"], stdout=subprocess.PIPE, text=True).stdout.strip()
    names = ["by-res/r0/0", "drbd/by-disk/" + a.disk_path().removeprefix("/dev").strip("/"), "drbd0", "drbd/by-res/r0/0"]
    for name in names:
        assert leads(name).startswith(door), name
    assert opens(a.device()) == 0
    a.urbd("down", "r0")
    assert not [name for name in names if leads(name)]
    b.urbd("down", "r0")
    cluster.configure(options="auto-promote yes;", extra="urbd { drbd-names no; }")
    a.start()
    a.device()
    assert leads("by-res/r0/0") == door and not leads("drbd0")


def fakes_kernel_drbd(node, *minors):
    """In the node's own mounts: the module is loaded, and has these minors."""
    block = os.path.join(node.dir, "block")
    script = (f"set -e; umount {block} /proc/devices /sys/dev/block 2>/dev/null || :; rm -rf {block}; cp -a /sys/dev/block {block}; "
              f"{{ cat /proc/devices; echo '147 drbd'; }} > {block}.devices; "
              + "".join(f"mkdir {block}/147:{minor}; " for minor in minors)
              + f"mount --bind {block}.devices /proc/devices; mount --bind {block} /sys/dev/block")
    node.run(["sh", "-c", script], check=True)


def test_a_node_with_resources_of_both_kinds(cluster):
    """The kernel's DRBD takes no names away by being loaded, and keeps those of the minors that it has."""
    a = cluster.node("a", size=SIZE, volumes=2)
    cluster.node("b", size=SIZE, volumes=2)
    cluster.configure(volumes=2)
    a.create_md()

    def named():
        names = [f"{name}{volume}" for volume in (0, 1) for name in ("drbd", "drbd/by-res/r0/", "by-res/r0/")]
        return [name for name in names if a.run(["test", "-L", f"/dev/urbd/{name}"]).returncode == 0]
    ours = ["by-res/r0/0", "by-res/r0/1"]
    of = [[f"drbd{volume}", f"drbd/by-res/r0/{volume}"] for volume in (0, 1)]
    fakes_kernel_drbd(a)
    a.start()
    a.device()
    eventually("idle", lambda: named() == [*of[0], ours[0], *of[1], ours[1]], 10)
    assert "the kernel's DRBD has" not in a.log()
    # It has a device of its own at the next start.
    a.stop()
    assert not named()
    fakes_kernel_drbd(a, 1, 7)
    a.start()
    a.urbd("primary", "--force", "r0")
    eventually("its own", lambda: named() == [*of[0], *ours], 10)
    assert "the kernel's DRBD has minor 1: /dev/drbd1 and the names below /dev/drbd are its own" in a.log()
    assert "has minor 0" not in a.log()
    said = a.urbd("sh-udev", "r0").out
    assert "DEVICE=drbd1" in said, said
    # What the next process takes over under applications stays named as it was.
    a.run(["dd", "if=/dev/urandom", f"of={a.device(1)}", "bs=4k", "count=1", "oflag=direct"], check=True, capture_output=True)
    a.kill()
    a.start()
    eventually("again", lambda: named() == [*of[0], *ours], 10)
    a.urbd("down", "--force", "r0")


def test_a_host_that_cannot_mount_says_so(cluster):
    """Something in the way of the directory of doors: no device, and the reason; nothing is thrown away."""
    a = cluster.node("a", size=SIZE)
    cluster.node("b", size=SIZE)
    cluster.configure()
    a.create_md()
    os.symlink("/tmp", a.run_dir + "/r0.dev")
    a.start()
    assert a.call("primary", "--force", "r0").rc == 10 and "symbolic link" in a.log()
    assert os.readlink(a.run_dir + "/r0.dev") == "/tmp"
    with pytest.raises(Failed):
        a.urbd("primary", "r0")
