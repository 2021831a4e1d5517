"""The block device outlives its process: kills and restarts under a file system that is in use.

A keeper holds what the device hangs on.  The next process takes over, answers what was read and not answered, and is
Primary again unless another node went on meanwhile.
"""

import contextlib
import errno
import mmap
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from cluster import MIB, URBD, eventually
from test_filesystems import FSCK, MKFS, digest, mounted, put, sh, two_nodes

SIZE = 64 * MIB
BLOCK = 4096


def one_node(cluster, size=SIZE, **options):
    """A Primary whose peer has never been there."""
    a = cluster.node("a", size=size)
    cluster.node("b", size=size)
    cluster.configure(**options)
    a.create_md()
    a.start()
    a.urbd("primary", "--force", "r0")
    return a


class Application(threading.Thread):
    """Overwrites blocks with O_DIRECT, each with its number and how often it was written, and reads what it wrote.  The
    first mistake or error ends it."""

    def __init__(self, path, first, blocks=64):
        super().__init__(daemon=True)
        self.fd = os.open(path, os.O_RDWR | os.O_DIRECT)
        self.first, self.blocks = first, blocks
        self.page, self.back = mmap.mmap(-1, BLOCK), mmap.mmap(-1, BLOCK)
        self.done, self.worst, self.problem, self.ending = 0, 0.0, None, False
        self.start()

    def run(self):
        try:
            while not self.ending:
                self.one()
                self.done += 1
        except (OSError, AssertionError) as e:
            self.problem = e

    def one(self):
        n = self.first + self.done % self.blocks
        self.page[:16] = n.to_bytes(8, "little") + self.done.to_bytes(8, "little")
        began = time.monotonic()
        os.pwritev(self.fd, [self.page], n * BLOCK)
        if self.done % 4 == 3:
            os.preadv(self.fd, [self.back], n * BLOCK)
            assert self.back[:] == self.page[:], f"block {n} is not what was written"
        self.worst = max(self.worst, time.monotonic() - began)

    def goes_on(self):
        """Waits until some more was done."""
        before = self.done
        eventually("the application goes on", lambda: self.problem or self.done > before + 8, 60)
        assert self.problem is None, self.problem

    def end(self):
        self.ending = True
        self.join(60)
        assert not self.is_alive(), "I/O does not end"
        os.close(self.fd)
        assert self.problem is None, self.problem


def test_who_follows_the_events_sees_a_restart_as_changes(cluster):
    """A resource that is destroyed is down: programs stop what they have started on it."""
    a = one_node(cluster)
    app = Application(a.device(), 0)
    path = os.path.join(a.dir, "events")
    with open(path, "wb") as out:
        events = subprocess.Popen(a.prefix() + [URBD, "events2", "r0"], env=a.env(), stdin=subprocess.DEVNULL, stdout=out,
                                  stderr=out)

    def lines():
        with open(path) as f:
            return f.read().split("\n")[:-1]

    def roles():
        return re.findall(r" resource name:r0 role:(\w+)", "\n".join(lines()))

    try:
        eventually("it has begun", lambda: "exists -" in lines())
        for _ in range(3):
            restart(a)
            app.goes_on()
            eventually("it is Primary again", lambda: roles()[-1] == "Primary")
        begun = lines().index("exists -")
        assert all(line.startswith("change ") for line in lines()[begun + 1:]), lines()
        # The connections ended with the old process.
        assert sum(" connection:Unconnected" in line for line in lines()) == 3, lines()
        # The disk was in use all the time: what the old process did with its own is nobody's matter.
        assert not [line for line in lines() if "disk:Detaching" in line or "disk:Failed" in line], lines()
        app.end()
        a.urbd("secondary", "r0")
        a.stop()
        eventually("it is gone", lambda: lines()[-1] == "destroy resource name:r0")
        assert events.poll() is None
    finally:
        events.kill()
        events.wait(20)


def handed_over(node):
    """The keeper has the descriptors of what is mounted and of the device; the rest comes within the same moment."""
    def has_them():
        names = set()
        for keeper in node.keepers():
            with contextlib.suppress(OSError):
                names |= {os.readlink(f"/proc/{keeper}/fd/{fd}") for fd in os.listdir(f"/proc/{keeper}/fd")}
        return "/dev/fuse" in names and any(name.startswith("/dev/loop") for name in names)

    eventually("the keeper was handed the descriptors", has_them)
    time.sleep(0.2)


def kill(node):
    node.kill_process()
    node.start()


def restart(node):
    node.urbd("restart", "r0")
    node.processes.pop("r0", None)


WAYS = [kill, restart, kill, kill, restart, restart]


def through(node, ways, apps):
    for way in ways:
        before = node.serving()
        way(node)
        assert node.serving() != before
        for app in apps:
            app.goes_on()
        assert len(node.keepers()) == 1


def file_system_goes_on(cluster, node, rounds):
    """ext4 with files that are synced, a checked load of direct writes, and fio, through kills and restarts."""
    dev = node.device()
    sh(*MKFS["ext4"], dev)
    with mounted(node, dev, "ext4") as where:
        blocks = os.path.join(where, "blocks")
        with open(blocks, "wb") as f:
            f.write(bytes(2 * MIB))
            os.fsync(f.fileno())
        apps = [Application(blocks, first) for first in (0, 64, 128)]
        fio = subprocess.Popen(["fio", "--name=t", "--ioengine=libaio", "--direct=1", f"--directory={where}", "--rw=randrw",
                                "--bsrange=4k-128k", "--iodepth=16", "--size=12M", "--time_based", "--runtime=600",
                                "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=256", "--rate=20m",
                                "--verify_state_save=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        files = {}
        try:
            for n in range(rounds):
                through(node, WAYS, apps)
                files[f"f{n}"] = put(where, f"f{n}", os.urandom(200_000))
                assert fio.poll() is None, fio.stdout.read()
        finally:
            fio.send_signal(signal.SIGINT)
            out, _ = fio.communicate(timeout=60)
        assert "err= 0" in out and "verify:" not in out, out
        for app in apps:
            app.end()
        with open("/proc/mounts") as f:
            [options] = [x.split()[3] for x in f if x.split()[1] == where]
        assert options.split(",")[0] == "rw", options
        for name, d in files.items():
            assert digest(os.path.join(where, name)) == d
    sh(*FSCK["ext4"], dev)
    print(f"longest operations: {', '.join(f'{app.worst:.3f} s' for app in apps)}")


def nothing_is_left(node):
    node.urbd("down", "r0")
    eventually("no process is left", lambda: not node.pids() and not node.keepers(), 20)
    assert not node.loops() and node.run(["test", "-e", "/dev/urbd/by-res/r0"]).returncode == 1
    assert not [f for f in os.listdir(node.run_dir) if not f.endswith((".log", ".pid"))], os.listdir(node.run_dir)


def test_a_file_system_goes_on_alone(cluster, kernel):
    a = one_node(cluster)
    file_system_goes_on(cluster, a, 2)
    nothing_is_left(a)


def test_a_file_system_goes_on_beside_a_peer(cluster):
    a, b = two_nodes(cluster, size=SIZE)
    file_system_goes_on(cluster, a, 2)
    cluster.wait_synced()
    assert a.state()["role"] == "Primary"
    a.urbd("secondary", "r0")
    cluster.assert_same()
    for n in (a, b):
        nothing_is_left(n)


def test_a_restart_leaves_nothing_to_resynchronise(cluster):
    a, b = two_nodes(cluster, size=SIZE)
    app = Application(a.device(), 0)
    app.goes_on()
    for _ in range(3):
        restart(a)
        app.goes_on()
        cluster.wait_synced()
        assert "resync as source begins" not in a.log() and "new data generation" not in a.log().split("stopped")[-1]
    app.end()
    a.urbd("secondary", "r0")
    cluster.assert_same()


def test_who_asks_while_another_process_takes_over_learns_of_it_nothing(cluster):
    """Between the two no process listens. A resource that is being taken over is not down: a cluster manager would
    start it elsewhere."""
    a = one_node(cluster)
    app = Application(a.device(), 0)
    app.goes_on()
    said, over = {}, threading.Event()

    def ask(*words):
        while not over.is_set():
            r = a.call(*words)
            said.setdefault((words, r.rc, r.out if words == ("role", "r0") else "", r.err), 0)
            said[words, r.rc, r.out if words == ("role", "r0") else "", r.err] += 1

    askers = [threading.Thread(target=ask, args=words)
              for words in (("role", "r0"), ("role", "r0"), ("status", "r0", "--json"), ("primary", "r0"))]
    for t in askers:
        t.start()
    try:
        for _ in range(10):
            restart(a)
    finally:
        over.set()
        for t in askers:
            t.join(60)
    assert len(said) == 3 and all(rc == 0 and not err for _, rc, _, err in said), said
    assert (("role", "r0"), 0, "Primary\n", "") in said, said
    app.end()
    nothing_is_left(a)
    # And who is down is down, at once.
    assert a.call("role", "r0").rc == 10


def test_what_was_read_and_not_answered_is_answered_by_the_next_process(cluster, kernel):
    """Frozen I/O is in the process that is killed, and nowhere else."""
    a = one_node(cluster)
    dev = a.device()
    data = os.urandom(BLOCK)
    a.urbd("suspend-io", "r0/0")
    page = mmap.mmap(-1, BLOCK)
    page[:] = data

    def write(fd, at):
        os.pwritev(fd, [page], at * BLOCK)

    fd = os.open(dev, os.O_RDWR | os.O_DIRECT)
    writers = [threading.Thread(target=write, args=(fd, at), daemon=True) for at in range(8)]
    for w in writers:
        w.start()
    # Before Linux 6.2 the kernel hands out one after the other.
    many = 8 if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 2) else 1
    eventually("they are in the process", lambda: a.status()["devices"][0]["upper-pending"] >= many, 20)
    for _ in range(3):  # what was repeated once is repeated again
        a.kill_process()
        a.start()
        a.wait(role="Primary")
    for w in writers:
        w.join(20)
        assert not w.is_alive(), "a write is not answered"
    back = mmap.mmap(-1, 8 * BLOCK)
    assert os.preadv(fd, [back], 0) == 8 * BLOCK and back[:] == 8 * data
    os.close(fd)
    nothing_is_left(a)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_leaves_a_device_in_use_to_the_keeper(cluster, sig):
    a, b = two_nodes(cluster, size=SIZE)
    dev = a.device()
    sh(*MKFS["ext4"], dev)
    with mounted(a, dev, "ext4") as where:
        want = put(where, "f", os.urandom(MIB))
        p = a.processes["r0"]
        a.kill_process(sig=sig)
        assert p.returncode == 0
        said = a.log().split("stay with the keeper")[1].splitlines()[0]
        assert f"{a.run_dir}/r0.keeper" in said and "urbd up r0" in said and "urbd down --force r0" in said
        b.wait(conn="Connecting")
        r = a.call("down", "r0")
        assert r.rc == 11 and "urbd up r0" in r.err, r
        a.urbd("up", "r0")
        assert digest(os.path.join(where, "f")) == want
        want = put(where, "g", os.urandom(MIB))
        r = a.call("down", "r0")
        assert r.rc == 11, "it is in use"
        assert digest(os.path.join(where, "g")) == want
    cluster.wait_synced()
    assert "resync as source begins" not in a.log()
    # not in use: it just goes
    a.kill_process(sig=sig)
    eventually("no process is left", lambda: not a.pids() and not a.keepers(), 20)
    assert not a.loops()
    for n in (a, b):
        nothing_is_left(n)


def test_if_the_peer_was_promoted_meanwhile_io_fails(cluster):
    a, b = two_nodes(cluster, size=SIZE)
    app = Application(a.device(), 0)
    app.goes_on()
    a.kill_process()
    b.wait(conn="Connecting")
    b.urbd("primary", "r0")
    b.write(8 * MIB, b"\x42" * BLOCK)
    a.start()
    eventually("I/O fails", lambda: app.problem, 30)
    assert isinstance(app.problem, OSError) and app.problem.errno == errno.EIO
    app.join(20)
    os.close(app.fd)
    assert "their I/O fails" in a.log() and "the peer" in a.log()
    cluster.wait_synced()
    assert a.state()["role"] == "Secondary" and b.read(8 * MIB, BLOCK) == b"\x42" * BLOCK
    # Devices that it gets later are new ones.
    b.urbd("secondary", "r0")
    a.urbd("primary", "r0")
    app = Application(a.device(), 0)
    app.goes_on()
    kill(a)
    app.goes_on()
    app.end()
    for n in (a, b):
        nothing_is_left(n)


def test_a_peer_that_has_come_since_the_last_restart_is_asked_as_well(cluster):
    """What one process has told the next one is over when that one serves."""
    a, b = two_nodes(cluster, size=SIZE)
    b.stop()
    app = Application(a.device(), 0)
    app.goes_on()
    restart(a)
    app.goes_on()
    b.start()
    cluster.wait_synced()
    app.goes_on()
    a.kill_process()
    b.wait(conn="Connecting")
    b.urbd("primary", "r0")
    b.write(8 * MIB, b"\x42" * BLOCK)
    a.start()
    eventually("I/O fails", lambda: app.problem, 30)
    assert "their I/O fails" in a.log()
    app.join(20)
    os.close(app.fd)
    cluster.wait_synced()
    assert a.state()["role"] == "Secondary" and "split-brain" not in a.log()


def test_io_waits_for_a_peer_that_could_not_be_fenced(cluster):
    a, b = cluster.node("a"), cluster.node("b")
    cluster.configure(disk="fencing resource-only;", handlers='fence-peer "exit 1";')
    cluster.up()
    app = Application(a.device(), 0)
    app.goes_on()
    b.cut()
    b.wait(conn="~Connecting|Unconnected|NetworkFailure|Timeout|BrokenPipe")
    a.kill_process()
    a.start()
    eventually("it says why", lambda: "waits-to-be-primary" in a.log(), 60)
    before = app.done
    r = a.call("down", "r0")
    assert r.rc == 11 and "resume-io" in r.err, r
    assert a.call("secondary", "r0").rc == 11
    assert app.done == before and app.problem is None
    b.heal()
    app.goes_on()
    cluster.wait_synced()
    app.end()
    a.urbd("secondary", "r0")
    cluster.assert_same()


def test_the_administrator_lets_waiting_io_go_on(cluster):
    a, b = cluster.node("a"), cluster.node("b")
    cluster.configure(disk="fencing resource-only;", handlers='fence-peer "exit 1";')
    cluster.up()
    app = Application(a.device(), 0)
    app.goes_on()
    b.kill()
    a.wait(conn="~Connecting|Unconnected|NetworkFailure|Timeout|BrokenPipe")
    a.kill_process()
    a.start()
    eventually("it says why", lambda: "waits-to-be-primary" in a.log(), 60)
    a.urbd("resume-io", "r0/0")
    app.goes_on()
    app.end()


def test_a_keeper_that_is_killed_is_followed_by_another(cluster):
    a = one_node(cluster)
    app = Application(a.device(), 0)
    app.goes_on()
    for _ in range(3):
        [keeper] = a.keepers()
        os.kill(keeper, signal.SIGKILL)
        eventually("another keeper", lambda: a.keepers() not in ([], [keeper]), 20)
        eventually("it has everything", lambda: a.log().count("starting another one") and app.done, 20)
        app.goes_on()
        handed_over(a)
        kill(a)
        app.goes_on()
    app.end()
    nothing_is_left(a)


class DyingKeeper(threading.Thread):
    """A keeper whose descriptors the kernel closes in an order that it may choose: who watches it sees its end while its
    socket still takes connections, for a while."""

    DONE, ITEM = 6, 5

    def __init__(self, node):
        super().__init__(daemon=True)
        self.path = os.path.join(node.run_dir, "r0.keeper")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.watchers, self.held, self.dead, self.turned_away = [], [], False, 0
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                conn, _ = self.listener.accept()
                with conn:
                    self.turned_away += self.dead
                    if not self.dead:
                        self.obey(conn)

    def obey(self, conn):
        message, descriptors, _, _ = socket.recv_fds(conn, 8, 1)
        self.held += descriptors
        if len(message) == 8:
            conn.sendall(bytes([message[0], self.DONE]) + message[2:])
            if message[1] == 3:  # watch
                self.watchers.append(conn.dup())

    def die(self):
        """As far as watchers see."""
        self.dead = True
        for w in self.watchers:
            w.close()

    def end(self):
        os.unlink(self.path)
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.join(20)
        for fd in self.held:
            os.close(fd)


def test_a_keeper_that_takes_connections_while_it_dies_is_followed_by_another(cluster):
    """It is asked, and does not answer: that must not be the last word."""
    a = cluster.node("a", size=SIZE)
    cluster.node("b", size=SIZE)
    cluster.configure()
    a.create_md()
    keeper = DyingKeeper(a)
    try:
        a.start()
        a.urbd("primary", "--force", "r0")
        app = Application(a.device(), 0)
        app.goes_on()
        assert keeper.watchers and not a.keepers()
        keeper.die()
        eventually("it is asked once more", lambda: keeper.turned_away > 2, 20)
        assert a.call("restart", "r0").rc != 0, "nobody holds the devices"
    finally:
        keeper.end()
    eventually("another keeper", lambda: len(a.keepers()) == 1, 20)
    app.goes_on()
    handed_over(a)
    kill(a)
    app.goes_on()
    app.end()
    nothing_is_left(a)


def test_nor_does_who_took_over_give_up_a_keeper_that_dies(cluster):
    """The kernel has greeted another process than the one that serves now."""
    a = one_node(cluster)
    app = Application(a.device(), 0)
    app.goes_on()
    kill(a)
    app.goes_on()
    [keeper], serving = a.keepers(), a.serving()
    os.kill(serving, signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)
    eventually("the keeper has ended", lambda: not a.keepers())
    os.unlink(os.path.join(a.run_dir, "r0.keeper"))
    dying = DyingKeeper(a)
    try:
        dying.die()
        os.kill(serving, signal.SIGCONT)
        eventually("it is asked once more", lambda: dying.turned_away > 2, 20)
    finally:
        dying.end()
    eventually("another keeper", lambda: len(a.keepers()) == 1, 20)
    assert "go with this process: the kernel" not in a.log()
    app.goes_on()
    handed_over(a)
    kill(a)
    app.goes_on()
    app.end()
    nothing_is_left(a)


def test_a_restart_that_is_refused_changes_nothing(cluster):
    a = one_node(cluster)
    app = Application(a.device(), 0)
    app.goes_on()
    before = a.serving()
    text = open(os.path.join(a.dir, "res.d", "r0.res")).read()
    a.put_res("r0", text.replace("protocol C", "protocol D"))
    r = a.call("restart", "r0")
    assert r.rc == 10, r
    a.put_res("r0", text)
    assert a.serving() == before
    app.goes_on()
    app.end()
    nothing_is_left(a)


def test_a_restart_beside_another_one_and_beside_down(cluster):
    """Whoever comes second is told so, and nobody waits for what does not come."""
    a = one_node(cluster)
    app = Application(a.device(), 0)
    app.goes_on()
    for other in ("restart", "down", "down"):
        results = []
        threads = [threading.Thread(target=lambda verb=verb: results.append((verb, a.call(verb, "r0", timeout=20))))
                   for verb in ("restart", other)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(30)
        a.processes.pop("r0", None)
        assert len(results) == 2 and any(verb == "restart" and r.rc == 0 for verb, r in results), results
        assert all(r.rc for verb, r in results if verb == "down"), results
        app.goes_on()
    app.end()
    nothing_is_left(a)


def test_a_process_that_is_only_stopped_keeps_the_resource(cluster):
    """Its late writes would destroy what another one has acknowledged."""
    a = one_node(cluster)
    app = Application(a.device(), 0)
    app.goes_on()
    a.freeze()
    r = a.call("up", "r0")
    assert r.rc != 0 and "runs already" in r.err, r
    os.kill(a.serving(), signal.SIGCONT)
    app.goes_on()
    a.freeze()
    r = a.call("down", "--force", "r0")  # kills it
    eventually("I/O fails", lambda: app.problem, 30)
    app.join(20)
    os.close(app.fd)
    a.processes.pop("r0").wait(20)
    eventually("no process is left", lambda: not a.pids() and not a.keepers(), 20)


def test_down_by_force_lets_io_fail_and_leaves_nothing(cluster):
    a = one_node(cluster)
    app = Application(a.device(), 0)
    app.goes_on()
    a.kill_process()
    assert a.call("down", "r0").rc == 11 and app.problem is None
    a.urbd("down", "--force", "r0")
    eventually("I/O fails", lambda: app.problem, 30)
    app.join(20)
    os.close(app.fd)
    assert not a.keepers()
    nothing_is_left(a)
    # and from the beginning
    a.start()
    a.urbd("primary", "r0")
    app = Application(a.device(), 0)
    app.goes_on()
    app.end()


def test_nbd_clients_find_the_next_process_on_the_same_socket(cluster):
    a, b = two_nodes(cluster, size=SIZE)
    path = os.path.join(a.run_dir, "r0-0.nbd")
    inode = os.stat(path).st_ino
    a.write(0, b"\x11" * BLOCK)
    for way in (kill, restart):
        way(a)
        assert os.stat(path).st_ino == inode
        a.wait(role="Primary")
        assert a.read(0, BLOCK) == b"\x11" * BLOCK
    for n in (a, b):
        nothing_is_left(n)


def test_a_version_that_promises_something_else_does_not_take_over(cluster):
    """It says so before the old one leaves, which goes on; after that one's end it leaves the devices alone."""
    a, b = two_nodes(cluster, size=SIZE)
    app = Application(a.device(), 0)
    app.goes_on()
    before, other = a.serving(), {"URBD_TEST_CONTRACT": "77"}
    r = a.call("restart", "r0", env=other)
    assert r.rc == 1 and "a version of urbd that promises the kernel something else" in r.err and "this one 77" in r.err, r
    app.goes_on()
    assert a.serving() == before and a.state()["conn"] == "Connected", "it has not even begun to leave"
    a.kill_process()
    r = a.call("up", "r0", env=other)
    assert r.rc == 1 and "promises the kernel something else" in r.err and app.problem is None, r
    a.start()
    app.goes_on()
    app.end()
    for n in (a, b):
        nothing_is_left(n)


class NewerKeeper(DyingKeeper):
    """It has been given something that this version does not know."""

    def obey(self, conn):
        message, descriptors, _, _ = socket.recv_fds(conn, 8, 1)
        self.held += descriptors
        if len(message) < 8:
            return
        if message[1] == 2:  # fetch
            socket.send_fds(conn, [bytes([message[0], self.ITEM, 99]) + message[3:]], [0])
        conn.sendall(bytes([message[0], self.DONE]) + message[2:])
        if message[1] == 3:  # watch
            self.watchers.append(conn.dup())


def test_nor_does_one_that_is_too_old_to_know_all_that_is_kept(cluster):
    a = one_node(cluster)
    app = Application(a.device(), 0)
    app.goes_on()
    [keeper], before = a.keepers(), a.serving()
    a.freeze()
    os.kill(keeper, signal.SIGKILL)
    eventually("the keeper has ended", lambda: not a.keepers())
    os.unlink(os.path.join(a.run_dir, "r0.keeper"))
    newer = NewerKeeper(a)
    try:
        a.thaw()
        eventually("it keeps the device", lambda: newer.watchers, 20)
        r = a.call("restart", "r0")
        assert r.rc == 1 and "this version does not know" in r.err, r
        app.goes_on()
        assert a.serving() == before
    finally:
        newer.die()
        newer.end()
    app.end()
    nothing_is_left(a)


@pytest.mark.parametrize("during", ["resync", "verify", "detached"])
def test_restarts_and_kills_in_the_middle_of(cluster, during):
    a, b = cluster.node("a", size=SIZE), cluster.node("b", size=SIZE)
    cluster.configure(net="verify-alg crc32c;", disk="resync-rate 4M; c-plan-ahead 0;", fast=False)
    a.create_md(), b.create_md()
    a.start(), b.start()
    a.wait(conn="Connected")
    a.urbd("new-current-uuid", "--clear-bitmap", "r0/0")
    a.urbd("primary", "r0")
    app = Application(a.device(), 0)
    app.goes_on()
    match during:
        case "resync":
            b.urbd("invalidate", "r0")
            a.wait(repl="SyncSource")
        case "verify":
            a.urbd("verify", "r0")
            a.wait(repl="VerifyS")
        case "detached":
            a.urbd("detach", "r0")
            a.wait(disk="Diskless")
    for way in (restart, kill):
        way(a)
        app.goes_on()
        if during == "detached":
            assert a.state()["disk"] == "Diskless", "its disk lacks what was written since"
    if during == "detached":
        a.urbd("attach", "r0")
    for n in (a, b):
        n.urbd("peer-device-options", "--resync-rate=200M", "r0", env=None)
    app.goes_on()
    cluster.wait_synced(timeout=60)
    assert a.state()["oos"] == 0
    app.end()
    a.urbd("secondary", "r0")
    cluster.assert_same()
    for n in (a, b):
        nothing_is_left(n)


def test_without_a_keeper_the_device_goes_with_its_process(cluster):
    a = one_node(cluster, extra="urbd { hand-over no; }")
    app = Application(a.device(), 0)
    app.goes_on()
    assert not a.keepers()
    assert a.call("restart", "r0").rc != 0
    app.goes_on()
    a.kill_process()
    eventually("I/O fails", lambda: app.problem, 30)
    app.join(20)
    os.close(app.fd)
    with contextlib.suppress(AssertionError):
        a.call("down", "r0")
