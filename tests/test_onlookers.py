"""A device whose I/O waits stops nobody but who reads or writes its data.

What looks at every disk and every mount of a machine (losetup, lsblk, df, monitoring) also looks at a device whose I/O is
frozen, or whose process is gone, and is answered meanwhile.
"""

import contextlib
import mmap
import os
import shutil
import signal
import subprocess
import threading
import time

import pytest

from cluster import MIB, eventually
from test_gate import Waiter, is_open, one, opens
from test_handover import Application, handed_over, nothing_is_left, one_node

SIZE = 48 * MIB
BLOCK = 4096

# What the node exporter of Prometheus reads of disks, mounts and block devices.
EXPORTER = r"""
import glob, os
for path in ["/proc/diskstats", "/proc/self/mountinfo", *glob.glob("/sys/block/*/*"), *glob.glob("/sys/block/*/queue/*"),
             *glob.glob("/sys/block/loop*/loop/*")]:
    if os.path.isfile(path):
        try:
            open(path, "rb").read()
        except OSError:
            pass
for line in open("/proc/self/mounts"):
    try:
        os.statvfs(line.split()[1])
    except OSError:
        pass
"""


def looks(node):
    """Everything that looks at all there is, and the node's device among it."""
    door, names = node.door(), "/dev/urbd/by-res/*/"
    other = node.disk_file()
    wanted = [
        ["losetup", "-a"], ["losetup", "-f"], ["losetup", "-j", other], ["lsblk"], ["lsblk", "-o", "NAME,SIZE,RO,TYPE,MOUNTPOINT"],
        ["df"], ["df", "-h", os.path.dirname(door)], ["findmnt"], ["findmnt", "-D"], ["udevadm", "info", node.side_door_name],
        ["stat", door], ["stat", "-f", os.path.dirname(door)], ["stat", node.side_door_name], ["ls", "-l", os.path.dirname(door)],
        ["sh", "-c", f"ls -l {names}"], ["sh", "-c", f"ls -lL --color=always {names}"], ["blkid", "-p", other],
        ["python3", "-c", EXPORTER],
    ]
    return [argv for argv in wanted if shutil.which(argv[0])]


def where_it_waits(pid):
    waits = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/stack") as f:
                waits.append(f.read())
    return "\n".join(waits)


class Onlookers:
    """All of them at once, on one node."""

    def __init__(self, node):
        node.side_door_name = node.side_door()
        self.node, self.argvs, self.hanging, self.longest = node, looks(node), [], 0.0

    def __enter__(self):
        return self

    def look(self, patience=20):
        """Fails if one does not end. On an idle machine each takes less than a second; one that hangs does so for ever."""
        began = time.monotonic()
        running = [(argv, subprocess.Popen(self.node.prefix() + argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL)) for argv in self.argvs]
        while running and time.monotonic() < began + patience:
            ended = [x for x in running if x[1].poll() is not None]
            running = [x for x in running if x not in ended]
            self.longest = max(self.longest, time.monotonic() - began) if ended else self.longest
            time.sleep(0.005)
        self.hanging += [p for _, p in running]
        assert not running, "\n".join(f"{' '.join(argv)} waits:\n{where_it_waits(p.pid)}" for argv, p in running)

    def __exit__(self, kind, *_):
        """When what they wait for is over."""
        for p in self.hanging:
            with contextlib.suppress(ProcessLookupError):
                p.kill()
        if kind is None:
            print(f"the last one ended after {self.longest:.2f} s")


# ---- a process that serves, and I/O that is frozen ---------------------------------------------------------------------

@contextlib.contextmanager
def by_command(cluster):
    a = one_node(cluster, size=SIZE)
    with opened(a) as end:
        a.urbd("suspend-io", "r0")
        yield a, end
    a.call("resume-io", "r0", timeout=20)


@contextlib.contextmanager
def by_fencing(cluster):
    """The peer is gone, and nobody says that it is fenced."""
    a, b = cluster.node("a", size=SIZE), cluster.node("b", size=SIZE)
    cluster.up(net="fencing resource-and-stonith;", handlers='fence-peer "exit 1";')
    with opened(a) as end:
        b.kill()
        a.wait(suspended=True)
        yield a, end
    a.call("resume-io", "r0", timeout=20)


@contextlib.contextmanager
def without_data(cluster):
    """A Primary without a disk has lost its peer."""
    a, b = cluster.node("a", size=SIZE), cluster.node("b", size=SIZE)
    cluster.up(options="on-no-data-accessible suspend-io;")
    a.urbd("detach", "r0/0")
    with opened(a) as end:
        b.cut()
        a.wait(suspended=True)
        yield a, end
    b.heal()
    b.wait(conn="Connected")
    a.wait(suspended=False)


@contextlib.contextmanager
def opened(node):
    """Somebody who has the device open and has written what he has not flushed; he closes it when he is told to."""
    with contextlib.ExitStack() as closing:
        fd = os.open(node.device(), os.O_RDWR | os.O_DIRECT)
        closing.callback(os.close, fd)
        page = mmap.mmap(-1, BLOCK)
        page[:] = os.urandom(BLOCK)
        os.pwritev(fd, [page], 0)
        eventually("it is open", lambda: is_open(node))

        def end():
            closing.close()
            eventually("it is not in use", lambda: not is_open(node), 20)

        yield end


@pytest.mark.parametrize("frozen", [by_command, by_fencing, without_data])
def test_while_io_is_frozen(cluster, frozen):
    """In use, and after the last close: the device is then to be attached anew, for which the kernel calls fsync on its
    file."""
    with frozen(cluster) as (a, end), Onlookers(a) as onlookers:
        onlookers.look()
        end()
        for _ in range(3):
            onlookers.look()
            # Whoever wants a loop device for something of his own gets one.
            spare = a.run(["losetup", "-f", "--show", a.disk_file()], timeout=20, text=True, capture_output=True).stdout
            assert spare.startswith("/dev/loop"), spare
            a.run(["losetup", "-d", spare.strip()], timeout=20, check=True)
    assert opens(a.device()) == 0
    nothing_is_left(a)


class Writers:
    """So many threads, each of which writes the device's first bytes once."""

    def __init__(self, dev, many, size, fd=None):
        self.fd, self.page = fd or os.open(dev, os.O_RDWR | os.O_DIRECT), mmap.mmap(-1, size)
        self.page[:] = os.urandom(size)
        self.done = []
        self.threads = [threading.Thread(target=self.write, daemon=True) for _ in range(many)]
        for t in self.threads:
            t.start()

    def write(self):
        self.done.append(os.pwritev(self.fd, [self.page], 0))

    def end(self):
        for t in self.threads:
            t.join(60)
        assert self.done == len(self.threads) * [len(self.page)], "a write is not answered"
        back = mmap.mmap(-1, len(self.page))
        os.preadv(self.fd, [back], 0)
        assert back[:] == self.page[:]
        os.close(self.fd)


def test_while_more_writes_are_frozen_than_there_is_memory_for(cluster):
    a = one_node(cluster, size=SIZE)
    dev = a.device()
    with Onlookers(a) as onlookers:
        a.urbd("suspend-io", "r0")
        writers = Writers(dev, 160, MIB)
        try:
            eventually("they wait", lambda: a.status()["devices"][0]["upper-pending"] > 0, 20)
            time.sleep(0.5)
            onlookers.look()
        finally:
            a.call("resume-io", "r0", timeout=20)
        writers.end()
    nothing_is_left(a)


# ---- no process --------------------------------------------------------------------------------------------------------

def killed(a):
    a.kill_process()


def killed_while_frozen(a):
    """With writes that it has read and not answered."""
    a.urbd("suspend-io", "r0")
    time.sleep(0.3)
    a.kill_process()


def stopped_by_the_service_manager(a):
    p = a.processes.pop("r0")
    p.terminate()
    assert p.wait(20) == 0


def killed_twice(a):
    """The second time while it waits to be Primary again."""
    a.kill_process()
    a.start()
    eventually("it says why", lambda: "waits-to-be-primary" in a.log(), 60)
    a.kill_process()


def waits_to_be_primary(a):
    a.kill_process()
    a.start()
    eventually("it says why", lambda: "waits-to-be-primary" in a.log(), 60)


ALONE = [killed, killed_while_frozen, stopped_by_the_service_manager]
BESIDE = [killed_twice, waits_to_be_primary]


@pytest.mark.parametrize("lost", ALONE + BESIDE)
def test_without_a_process(cluster, kernel, lost):
    """What reads, writes or opens the device waits for the next process, and is answered by it."""
    if lost in ALONE:
        a = one_node(cluster, size=SIZE)
    else:
        a, b = cluster.node("a", size=SIZE), cluster.node("b", size=SIZE)
        cluster.up(disk="fencing resource-only;", handlers='fence-peer "exit 1";')
    dev = a.device()
    app = Application(dev, 0)
    with Onlookers(a) as onlookers:
        app.goes_on()
        handed_over(a)
        if lost in BESIDE:
            b.cut()
            a.wait(conn="~Connecting|Unconnected|NetworkFailure|Timeout|BrokenPipe")
        lost(a)
        for _ in range(3):
            onlookers.look()
        # Who opens it waits, and can be killed.
        opener, killed_one = Waiter(dev), Waiter(dev)
        done = app.done
        onlookers.look()
        assert opener.waits() and killed_one.waits()
        killed_one.p.kill()
        killed_one.p.wait(20)
        onlookers.look()
        assert app.done == done and app.problem is None
        if lost in BESIDE:
            b.heal()
        if lost is not waits_to_be_primary:
            a.start()
        if lost is killed_while_frozen:
            a.wait(role="Primary")
            a.call("resume-io", "r0", timeout=20)
        app.goes_on()
        onlookers.look()
        opener.got_in()
        opener.end()
    app.end()
    if lost in BESIDE:
        cluster.wait_synced()
        a.urbd("secondary", "r0")
    nothing_is_left(a)


def test_the_last_close_without_a_process(cluster, kernel):
    """It is over at once if there is nothing to write back; the next process sees that nobody uses the device."""
    a = one_node(cluster, size=SIZE)
    dev = a.device()
    with Onlookers(a) as onlookers, open(dev, "r+b", buffering=0) as f:
        f.write(bytes(BLOCK))
        os.fsync(f)
        handed_over(a)
        eventually("it is open", lambda: is_open(a))
        a.kill_process()
        onlookers.look()
        f.close()
        onlookers.look()
        a.start()
        a.wait(role="Primary")
        eventually("it is not in use", lambda: not is_open(a), 20)
        onlookers.look()
    assert opens(dev) == 0
    nothing_is_left(a)


def test_more_than_there_is_memory_for_without_a_process(cluster, kernel):
    a = one_node(cluster, size=SIZE)
    dev = a.device()
    handed_over(a)
    many, size = (160, MIB) if kernel == "resend" else (60, 32 << 10)
    with Onlookers(a) as onlookers:
        a.kill_process()
        writers = Writers(dev, many, size, fd=os.open(a.side_door_name, os.O_RDWR | os.O_DIRECT))
        try:
            time.sleep(0.5)
            onlookers.look()
        finally:
            a.start()
        writers.end()
    nothing_is_left(a)


# ---- a process that does not work --------------------------------------------------------------------------------------

@contextlib.contextmanager
def stopped(node):
    """SIGSTOP: it is there, and reads nothing."""
    node.freeze()
    try:
        yield
    finally:
        node.thaw()


def in_use(a):
    pass


def frozen(a):
    """With writes that it has read and not answered."""
    a.urbd("suspend-io", "r0")
    time.sleep(0.3)


@pytest.mark.parametrize("how", [in_use, frozen])
@pytest.mark.parametrize("then", ["goes on", "is killed"])
def test_beside_a_process_that_is_stopped(cluster, kernel, how, then):
    """What reads, writes or opens the device waits for it: what it had read before, and what came meanwhile."""
    a = one_node(cluster, size=SIZE)
    dev = a.device()
    apps = [Application(dev, first) for first in (0, 64, 128)]
    with Onlookers(a) as onlookers:
        for app in apps:
            app.goes_on()
        handed_over(a)
        how(a)
        with stopped(a):
            for _ in range(3):
                onlookers.look()
            opener, killed_one = Waiter(dev), Waiter(dev)
            done = [app.done for app in apps]
            onlookers.look()
            assert opener.waits() and killed_one.waits()
            killed_one.p.kill()
            killed_one.p.wait(20)
            onlookers.look()
            assert [app.done for app in apps] == done and not any(app.problem for app in apps)
            if then == "is killed":
                a.kill_process()
                onlookers.look()
                a.start()
                a.wait(role="Primary")
        if how is frozen:
            onlookers.look()
            a.call("resume-io", "r0", timeout=20)
        for app in apps:
            app.goes_on()
        onlookers.look()
        opener.got_in()
        opener.end()
        # Another time, with what has been so long enough to be forgotten.
        with stopped(a):
            onlookers.look()
        for app in apps:
            app.goes_on()
    for app in apps:
        app.end()
    nothing_is_left(a)


def test_the_last_close_beside_a_process_that_is_stopped(cluster, kernel):
    a = one_node(cluster, size=SIZE)
    dev = a.device()
    with Onlookers(a) as onlookers, open(dev, "r+b", buffering=0) as f:
        f.write(bytes(BLOCK))
        os.fsync(f)
        handed_over(a)
        eventually("it is open", lambda: is_open(a))
        with stopped(a):
            onlookers.look()
            f.close()
            onlookers.look()
        eventually("it is not in use", lambda: not is_open(a), 20)
        onlookers.look()
    assert opens(dev) == 0
    nothing_is_left(a)


def test_more_than_there_is_memory_for_beside_a_process_that_is_stopped(cluster, kernel):
    a = one_node(cluster, size=SIZE)
    a.device()
    handed_over(a)
    many, size = (160, MIB) if kernel == "resend" else (60, 32 << 10)
    with Onlookers(a) as onlookers:
        with stopped(a):
            writers = Writers(None, many, size, fd=os.open(a.side_door_name, os.O_RDWR | os.O_DIRECT))
            time.sleep(0.5)
            onlookers.look()
        writers.end()
    nothing_is_left(a)


def test_a_keeper_is_killed_with_what_it_has_put_aside(cluster, kernel):
    """The process that goes on asks for it, and has another keeper."""
    a = one_node(cluster, size=SIZE)
    app = Application(a.device(), 0)
    with Onlookers(a) as onlookers:
        app.goes_on()
        handed_over(a)
        keeper, = a.keepers()
        with stopped(a):
            onlookers.look()
            os.kill(keeper, signal.SIGKILL)
        app.goes_on()
        eventually("there is another one", lambda: a.keepers() not in ([], [keeper]))
        handed_over(a)
        with stopped(a):
            onlookers.look()
        app.goes_on()
    app.end()
    nothing_is_left(a)


# ---- when the keeper is gone, too --------------------------------------------------------------------------------------

def forbids_writes(dev):
    """To whoever attaches a file of his own next: a device that somebody has by now is his."""
    name = os.path.basename(dev)
    with open(f"/sys/block/{name}/ro") as f:
        return f.read().strip() == "1" and not os.path.exists(f"/sys/block/{name}/loop/backing_file")


@pytest.mark.parametrize("next_one", ["down", "start", "start elsewhere"])
@pytest.mark.parametrize("used", [False, True])
def test_what_a_killed_process_and_keeper_leave(cluster, tmp_path, next_one, used):
    """The loop device's number is a Secondary's, which nobody may write to; mount and device may be there still."""
    file = tmp_path / "other"
    file.write_bytes(bytes(MIB))
    attach = ["losetup", "-f", "--show", file]
    before = subprocess.run(attach, check=True, capture_output=True, text=True).stdout.strip()
    try:
        a = one(cluster)
        dev = a.side_door()
        eventually("the kernel refuses writes", lambda: subprocess.run(["blockdev", "--getro", dev], check=True,
                                                                       capture_output=True).stdout == b"1\n")
        with open(dev, "rb") if used else contextlib.nullcontext():
            a.kill()
            if next_one == "start elsewhere":
                subprocess.run(["losetup", "-d", before], check=True)
                before = None
            if next_one != "down":
                a.start()
                assert opens(a.device()) == 0
            nothing_is_left(a)
        eventually("the number is free for everybody", lambda: not forbids_writes(dev), 20)
        assert not a.loops() and not a.mounted()
    finally:
        if before:
            subprocess.run(["losetup", "-d", before], check=True)
