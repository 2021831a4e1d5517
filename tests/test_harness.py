"""The instruments themselves: they must accept what is right and find what is wrong."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import cluster as C
import conftest
import nbdio
import scratch
from fake_peer import FakePeer
from kernel_peer import Lab
from machine import machine

# Where the helpers are, for a process of its own.
HELPERS = [C.TESTS, os.path.join(C.TESTS, "kernel-peer")]


def serve(tmp_path, *plugin):
    sock = str(tmp_path / "nbd.sock")
    p = subprocess.Popen(["nbdkit", "-f", "-U", sock, *plugin], stderr=subprocess.DEVNULL)
    C.eventually("nbdkit's socket", lambda: os.path.exists(sock))
    return p, f"nbd+unix:///?socket={sock}"


def test_load_remembers_what_was_acknowledged(tmp_path):
    disk, journal = tmp_path / "disk", str(tmp_path / "journal")
    disk.write_bytes(bytes(4 << 20))
    server, uri = serve(tmp_path, "file", str(disk))
    load = subprocess.Popen([sys.executable, nbdio.__file__, "load", uri, journal, "--seconds", "30", "--overlap"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    C.eventually("some acknowledged writes", lambda: os.path.exists(journal) and open(journal).read().count("\na ") > 300)
    server.send_signal(signal.SIGKILL)
    server.wait()
    assert load.wait(20) == 3
    os.unlink(tmp_path / "nbd.sock")
    server, uri = serve(tmp_path, "file", str(disk))
    try:
        assert nbdio.verify(uri, [journal]) == 0
        # one more life; then an acknowledged write is undone, one is torn
        later = str(tmp_path / "later")
        assert nbdio.load(uri, later, seconds=0.5, seed=2) == 0
        assert nbdio.verify(uri, [journal, later]) == 0
        allowed, _ = nbdio.acceptable([journal, later])
        lost = next(s for s, want in allowed.items() if want != {(0, 0)} and (0, 0) not in want)
        torn = next(s for s, want in allowed.items() if s != lost and (0, 0) not in want)
        with open(disk, "r+b") as f:
            f.seek(lost * 512)
            f.write(nbdio.sector_content(9, 9, lost))
            f.seek(torn * 512 + 256)
            f.write(b"\xa5" * 8)
        assert nbdio.verify(uri, [journal, later]) == 2
    finally:
        server.kill()
        server.wait()


def test_two_kernels():
    """The kernel side of the harness, kernel against kernel: states, reads, writes, digests, differences."""
    with Lab(f"h{os.getpid()}", fresh=True) as lab:
        for name in "ab":
            lab.add(name, disks=["24M", "4M"])
        with C.Cluster(lab) as c:
            a, b = c.kernel(lab.node("a")), c.kernel(lab.node("b"))
            c.up()
            for at, n in ((0, 4096), (512 * 1001, 512 * 37), (7 << 20, 1 << 20), (8 << 20, 65536 * 3)):
                data = os.urandom(n)
                a.write(at, data)
                assert a.read(at, n) == data
            a.flush()
            a.discard(7 << 20, 512 << 10)
            assert c.assert_same() == a.md5()
            assert a.state()["role"] == "Primary" and b.state()["peer_role"] == "Primary"
            a.verb("secondary", "r0")
            assert b.call("primary", "r1").rc == 1
            b.crash()
            a.wait(conn="Connecting")
            a.verb("primary", "r0")
            a.write(4096, b"z" * 4096)
            assert a.state()["oos"] == 4
            b.start()
            c.wait_synced()
            c.assert_same()
            for n in (a, b):
                n.stop()
            with open(b.disk_file(), "r+b") as f:
                f.seek(12345)
                f.write(b"!")
            assert "1 blocks of 4 KiB, first [3]" in c.difference(0, 16 << 20)


def test_time_limit_in_any_thread():
    """Workers of xdist do not always run tests in their main thread."""
    ended = []

    def endless():
        try:
            with conftest.alarm(1, conftest.C.TookTooLong):
                while True:
                    time.sleep(0.05)
        except C.TookTooLong as e:
            ended.append(e)

    t = threading.Thread(target=endless, daemon=True)
    t.start()
    t.join(20)
    assert ended, "the test was not ended"


def test_network_of_nodes(cluster):
    """Namespaces of urbd nodes reach each other, a capture sees it, and a cut is silent."""
    a, b = cluster.node("a"), cluster.node("b")
    script = f"import socket; s = socket.create_server(('{b.ip}', 7788)); print('up', flush=True); s.accept()"
    server = subprocess.Popen(b.prefix() + [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "up\n"
        connect = [sys.executable, "-c", f"import socket; socket.create_connection(('{b.ip}', 7788), 2)"]
        b.cut()
        began = time.monotonic()
        assert a.run(connect, stderr=subprocess.DEVNULL).returncode == 1
        assert time.monotonic() - began > 1.5, "a cut link must lose packets silently"
        b.heal()
        C.eventually("packets pass again", lambda: a.run(connect, stderr=subprocess.DEVNULL).returncode == 0, 20)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()



def test_a_killed_run_leaves_no_guest():
    """Whoever runs the tests may be killed at any moment: the guest's processes end with the one that started them."""
    name = f"killed{os.getpid()}"
    script = (f"import sys, time; sys.path[:0] = {HELPERS!r}; import kernel_peer; kernel_peer.END_WITH_US = True; "
              f"lab = kernel_peer.Lab({name!r}, fresh=True); print(lab.add('k', disks=['8M']).pid, flush=True); "
              "time.sleep(60)")
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        guest = int(run.stdout.readline().split()[-1])
        os.killpg(guest, 0)
        run.kill()
        run.wait()

        def gone():
            try:
                return os.killpg(guest, 0)
            except ProcessLookupError:
                return True

        C.eventually("the guest's processes are gone", gone)
    finally:
        run.kill()
        run.wait()
        run.stdout.close()
        Lab(name).destroy()


def killed_run(place, what):
    """Starts Python with the tests' modules, and kills it as soon as it has printed a line; returns that line."""
    script = f"import sys, time; sys.path[:0] = {HELPERS!r}; import kernel_peer; kernel_peer.END_WITH_US = True"
    env = {**os.environ, "URBD_TEST_DIR": str(place), "KERNEL_PEER_STATE": str(place / "state")}
    run = subprocess.Popen([sys.executable, "-c", f"{script}; {what}; time.sleep(60)"], stdout=subprocess.PIPE, text=True, env=env)
    with run:
        line = run.stdout.readline().strip()
        run.kill()
    return line


def test_what_a_killed_run_leaves_is_removed_by_the_next(tmp_path, monkeypatch, capsys):
    (tmp_path / "state").mkdir()
    cluster = "import cluster; c = cluster.Cluster(); n = c.node('a', volumes=2); print(c.dir, c.lab.dir, flush=True)"
    left = killed_run(tmp_path, cluster).split()
    assert len(left) == 2 and all(os.path.isdir(x) for x in left), left
    monkeypatch.setenv("URBD_TEST_DIR", str(tmp_path))
    foreign = tmp_path / "urbd-test-of-somebody"
    foreign.mkdir()
    with scratch.lasting("urbd-test-", tmp_path) as alive:
        C.scratch_dir()
        assert not os.path.exists(left[0]) and os.path.isdir(alive) and foreign.is_dir()
        # A lab is a run's own, too.
        monkeypatch.setattr("kernel_peer.END_WITH_US", True)
        with Lab("next", state=str(tmp_path / "state")):
            assert not os.path.exists(left[1])
    # Of another run there may be something that is still in use.
    assert not os.path.exists(alive) and f"{left[0]} is left from a run" not in capsys.readouterr().err


def test_what_a_killed_run_left_and_is_in_use_stays(tmp_path, capsys):
    left = killed_run(tmp_path, f"import scratch; print(scratch.make('urbd-test-', {str(tmp_path)!r}), flush=True)")
    disk, mount = os.path.join(left, "disk0"), os.path.join(left, "mount")
    os.mkdir(mount)
    with open(disk, "wb") as f:
        f.truncate(1 << 20)
    device = subprocess.run(["losetup", "-f", "--show", disk], check=True, capture_output=True, text=True).stdout.strip()
    try:
        scratch.sweep(tmp_path)
        assert os.path.exists(disk) and f"still in use by {device}: " in capsys.readouterr().err
    finally:
        subprocess.run(["losetup", "-d", device], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", mount], check=True)
    try:
        scratch.sweep(tmp_path)
        assert os.path.exists(disk) and f"a mount on {mount}" in capsys.readouterr().err
    finally:
        subprocess.run(["umount", mount], check=True)
    with open(disk) as f, subprocess.Popen(["sleep", "60"], stdin=f) as user:
        scratch.sweep(tmp_path)
        user.kill()
        assert os.path.exists(disk) and f"process {user.pid}" in capsys.readouterr().err
    scratch.sweep(tmp_path)
    assert not os.path.exists(left)


def test_what_its_owner_takes_away_meanwhile_is_nobodys(tmp_path, monkeypatch):
    """Between the look at the lock and its being free the directory has gone."""
    left = killed_run(tmp_path, f"import scratch; print(scratch.make('urbd-test-', {str(tmp_path)!r}), flush=True)")
    lock = scratch.fcntl.flock

    def late(fd, how):
        shutil.rmtree(left)
        lock(fd, how)

    monkeypatch.setattr(scratch.fcntl, "flock", late)
    removed = []
    scratch.sweep(tmp_path, remover=removed.append)
    assert removed == [] and not os.path.exists(left)


def test_fake_peer_is_a_convincing_one(kernel_lab):
    """The real kernel accepts the fake peer's handshake, answers its ping, and drops it when it misbehaves."""
    with C.Cluster(kernel_lab) as c:
        u, k = c.node("u", size=24 * C.MIB), c.kernel(kernel_lab.node("k"))
        c.configure()
        k.create_md()
        k.start()
        peer = FakePeer(u, k)

        def meet():
            try:
                peer.handshake(24 * 2048 - 256)
                return True
            except (OSError, AssertionError):
                peer.close()
                return False

        C.eventually("the handshake", meet, 40, 0.3)
        k.wait(conn="Connected", peer_disk="Inconsistent", peer_role="Secondary")
        peer.data.sendall(bytes(16))
        assert peer.closed()
        peer.close()
        k.wait(conn="Connecting")


def test_a_skip_needs_a_kernel_that_lacks_the_feature(tmp_path):
    told = tmp_path / "told"
    told.write_text("test fuse ... ok\nskipped: fuse-io-uring: this kernel has none\nskipped: fio is not installed\n"
                    "skipped: nonsense: no reason\nSKIPPED [2] tests/test_x.py:7: fuse-io-uring: messages only\n")
    skips = os.path.join(os.path.dirname(os.path.abspath(__file__)), "skips")
    feature = "/sys/module/fuse/parameters"

    def verdicts(before):
        r = subprocess.run(["unshare", "-m", "sh", "-c", f"{before}; exec {skips} {told}"], capture_output=True, text=True)
        assert r.returncode == 0 and not r.stderr, r
        return [line.split(" ", 1) for line in r.stdout.splitlines()]

    whys = ["fuse-io-uring: this kernel has none", "fio is not installed", "nonsense: no reason",
            "fuse-io-uring: messages only", "fuse-io-uring: messages only"]
    lacking = verdicts(f"[ ! -d {feature} ] || mount -t tmpfs none {feature}")
    assert lacking == [[v, w] for v, w in zip(["permitted", "refused", "refused", "permitted", "permitted"], whys)]
    if os.path.exists(f"{feature}/enable_uring"):
        assert verdicts(":") == [["refused", w] for w in whys]


def test_skips_are_counted_by_the_runner(tmp_path):
    """A cargo and a pytest that skip: neither is a pass, and only one has a reason that this kernel gives."""
    cargo = tmp_path / "cargo"
    cargo.write_text("#!/bin/sh\n[ -z \"$WRONG_RULE\" ] || exit 1\n"
                     "[ \"$*\" != \"${*#test --workspace}\" ] || exit 0\n"
                     "echo 'skipped: fio is not installed'\necho 'test result: ok. 5 passed; 0 failed;'\n")
    cargo.chmod(0o755)
    runner = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
    r = subprocess.run([runner, "rust"], env={**os.environ, "CARGO": str(cargo)}, capture_output=True, text=True)
    lines = r.stdout.splitlines()
    steps = sum(line.startswith("-- ") for line in lines) - 2  # two are counted by their tests
    assert r.returncode == 1 and lines[-1] == f"{steps + 4} passed, 1 failed", r.stdout
    assert "FAILED skipped: fio is not installed" in lines and "permitted skips: 0" in lines


def test_a_machine_that_is_switched_off_takes_its_own_loop_devices_along():
    """All machines call the files that these stand on the same."""
    with C.Cluster() as c:
        both = [machine(c, name) for name in ("alpha", "bravo")]
        for m in both:
            m.put_res("r0", C.config_text(both))
            m.sh("urbd create-md --force r0 && urbd up r0")
        a, b = both
        b.sh("urbd primary --force r0")
        assert len(a.loops()) == len(b.loops()) == 1 and a.loops() != b.loops()
        a.power_off()
        [dev] = b.loops()
        b.sh(f"blockdev --getsize64 {dev} | grep -qv '^0$' && dd if={dev} of=/dev/null bs=4k count=1 iflag=direct")
        b.sh("urbd secondary r0 && urbd down r0")
