"""Services, the journal and handlers under a real systemd, in containers that boot this machine's own files."""

import contextlib
import os
import re
import shutil
import subprocess

import pytest

import cluster as C
import container
import scratch
from cluster import eventually
from test_handover import Application

DIST = container.DIST
CONFIG = """resource r0 {{
  handlers {{ {handlers} }}
  volume 0 {{ device minor 7; disk /srv/disk; meta-disk internal; }}
  on alpha {{ node-id 0; address 10.99.1.1:7789; }}
  on bravo {{ node-id 1; address 10.99.1.2:7789; }}
}}
"""
HANDLER = ("id -u >/etc/handler-ran; systemctl --version | head -n1 >>/etc/handler-ran; cat /proc/self/cgroup >>/etc/handler-ran; "
           "echo $DRBD_RESOURCE $DRBD_MY_NODE_ID >>/etc/handler-ran")


def sh(*command):
    subprocess.run(command, check=True)


@contextlib.contextmanager
def two_machines():
    """With a link between them, and their disks."""
    assert os.geteuid() == 0
    mine = f"urbd-{os.getpid()}"
    names = {"alpha": f"{mine}-a", "bravo": f"{mine}-b"}
    with scratch.lasting("urbd-machines-", C.scratch_dir()) as place:
        machines = []
        try:
            for name, netns in names.items():
                sh("ip", "netns", "add", netns)
                m = container.Machine(os.path.join(place, name), name, netns)
                machines.append(m)
                m.write("/etc/urbd.conf", CONFIG.format(handlers=f'before-resync-target "{HANDLER}"; after-resync-target "exit 7";'), 0o600)
                os.makedirs(m.path("/srv"))
                with open(m.path("/srv/disk"), "wb") as f:
                    f.truncate(48 << 20)
            sh("ip", "link", "add", "urbd0", "netns", names["alpha"], "type", "veth", "peer", "urbd0", "netns", names["bravo"])
            for (_, netns), address in zip(names.items(), ("10.99.1.1/24", "10.99.1.2/24")):
                sh("ip", "-n", netns, "addr", "add", address, "dev", "urbd0")
                sh("ip", "-n", netns, "link", "set", "urbd0", "up")
                sh("ip", "-n", netns, "link", "set", "lo", "up")
            for m in machines:
                m.boot()
            yield machines
        finally:
            for m in machines:
                m.remove()
            for netns in names.values():
                subprocess.run(["ip", "netns", "del", netns], check=False)


@pytest.fixture
def pair():
    with two_machines() as machines:
        yield machines


def main_pid(m):
    return m.run("systemctl", "show", "-P", "MainPID", "urbd@r0").strip()


def serves(m):
    """Does the service's process serve the Primary, and nobody else any more?"""
    pid = m.call("cat", "/run/urbd/r0.pid").stdout.strip()
    return pid == main_pid(m) and m.call("urbd", "role", "r0").stdout.startswith("Primary")


def stand_ins(m):
    """Those who have served applications while the service restarted."""
    said = m.run("journalctl", "-o", "cat", "-u", "urbd@r0", "--no-pager")
    return re.findall(r"urbd: r0: process (\d+) stands in while the service restarts", said)


def the_next_process_does_not_start(m, app):
    """Who has taken over while the service restarts goes on serving, until the service does."""
    m.run("mkdir", "-p", "/run/systemd/system/urbd@.service.d")
    m.run("sh", "-c", "printf '[Service]\\nExecStartPre=false\\n' >/run/systemd/system/urbd@.service.d/fails.conf")
    m.run("systemctl", "daemon-reload")
    assert m.call("systemctl", "restart", "urbd@r0").returncode != 0
    app.goes_on()
    assert main_pid(m) == "0" and m.run("urbd", "role", "r0").startswith("Primary")
    m.run("rm", "-r", "/run/systemd/system/urbd@.service.d")
    m.run("systemctl", "daemon-reload")
    m.run("systemctl", "start", "urbd@r0")
    app.goes_on()
    assert main_pid(m) != "0" and m.run("urbd", "role", "r0").startswith("Primary")


def the_service_hands_over(a, b):
    """Under checked writes to what is mounted: by each way in which a service gets another process."""
    blocks = os.path.join("/proc", a.init, "root", "data", "blocks")
    with open(blocks, "wb") as f:
        f.write(bytes(1 << 20))
        os.fsync(f.fileno())
    app = Application(blocks, 0)
    app.goes_on()

    def other_peers():
        """A third node is added."""
        a.run("sed", "-i", "s/^}/  on charlie { node-id 2; address 10.99.1.3:7789; }\\n  connection-mesh { hosts alpha bravo charlie; }"
              "\\n}/", "/etc/urbd.conf")
        a.run("urbd", "adjust", "r0")

    def reload_without_it():
        a.run("sed", "-i", "/on charlie/d; /connection-mesh/d", "/etc/urbd.conf")
        a.run("systemctl", "reload", "urbd@r0")
        C.eventually("it has one peer", lambda: "charlie" not in a.run("urbd", "status", "r0"), 20)

    ways = {"systemctl restart": lambda: a.run("systemctl", "restart", "urbd@r0"),
            "urbd restart": lambda: a.run("urbd", "restart", "r0"),
            "kill -9": lambda: a.run("kill", "-9", main_pid(a)),
            "adjust to other peers": other_peers,
            "kill -9 beside one that never came": lambda: a.run("kill", "-9", main_pid(a)),
            "systemctl reload to other peers": reload_without_it}
    for name, way in ways.items():
        before, stood_in, app.worst = main_pid(a), len(stand_ins(a)), 0.0
        way()
        app.goes_on()
        stays = name.endswith("to other peers")
        assert (main_pid(a) == before) == stays and main_pid(a) != "0", name
        assert a.run("urbd", "role", "r0").startswith("Primary"), name
        print(f"{name}: {1000 * app.worst:.0f} ms")
        assert app.worst < 4, "a peer that is not there was waited for (timeout, 6 s)"
        if stays or name.startswith("kill"):
            assert len(stand_ins(a)) == stood_in, name
        else:  # the journal may be late
            C.eventually(f"{name}: somebody has stood in", lambda: len(stand_ins(a)) == stood_in + 1)
    the_next_process_does_not_start(a, app)
    # A program that could not go on leaves it to the one that runs.
    before = main_pid(a)
    r = a.call("env", "URBD_TEST_CONTRACT=77", "urbd", "restart", "r0")
    assert r.returncode == 1 and "promises the kernel something else" in r.stderr, r
    # A changed option does not take another process.
    a.run("sed", "-i", "s/^resource r0 {/resource r0 { net { ping-int 7; }/", "/etc/urbd.conf")
    a.run("systemctl", "reload", "urbd@r0")
    assert re.search(r"ping-int\s+7;", a.run("urbd", "show", "r0")), a.run("urbd", "show", "r0")
    app.goes_on()
    assert main_pid(a) == before
    app.end()


def is_synced(m):
    status = m.call("urbd", "status", "r0").stdout
    return status.count("UpToDate") == 2


def test_two_machines(pair):
    """A life of two machines: `up` from another service, a handler, fail-over, stop while mounted, reboot."""
    a, b = pair
    for m in pair:
        m.run("urbd", "create-md", "--format=v09", "--max-peers=2", "r0")
    # From another service, which ends at once and takes its control group along.
    a.run("systemd-run", "--wait", "--quiet", "--property=KillMode=control-group", "--unit=caller", "urbd", "up", "r0")
    b.run("urbd", "up", "r0")
    for m in pair:
        pid = m.run("systemctl", "show", "-P", "MainPID", "urbd@r0").strip()
        assert "/urbd@r0.service" in m.run("cat", f"/proc/{pid}/cgroup"), "in a control group of its own"
        m.run("urbd", "wait-connect", "--wfc-timeout=30", "r0")
    a.run("urbd", "primary", "--force", "r0")
    C.eventually("both are UpToDate", lambda: is_synced(a) and is_synced(b), 40)

    # The handler ran outside the sandbox: it wrote to /etc, called systemctl, and its exit status arrived.
    ran = b.run("cat", "/etc/handler-ran").splitlines()
    assert ran[0] == "0" and ran[1].startswith("systemd ") and ran[-1] == "r0 1", ran
    assert "urbd@r0.service" not in "\n".join(ran)
    def journal():
        return b.run("journalctl", "-u", "urbd@r0", "-o", "json", "--no-pager")

    C.eventually("the other handler's status is there", lambda: "handler after-resync-target ended with wait status 0x700" in journal())
    for field in ('"URBD_RESOURCE":"r0"', '"URBD_REASON":"state-change"', '"URBD_PEER":"alpha"'):
        assert field in journal()
    assert b.run("journalctl", "-u", "urbd@r0", "-p", "info", "--no-pager", "-o", "cat", "URBD_VOLUME=0")

    # A file system by fstab, unmounted before the service stops, and mounted again at the next boot.
    device = a.run("urbd", "sh-dev", "r0").strip()
    a.run("mkfs.ext4", "-q", device)
    a.run("mkdir", "-p", "/data")
    a.run("mount", device, "/data")
    a.run("sh", "-c", "echo kept >/data/file && sync /data/file")
    r = a.call("urbd", "down", "r0")
    assert r.returncode == 11, r
    try:
        the_service_hands_over(a, b)
    except AssertionError:
        print(a.run("journalctl", "-n", "120", "--no-pager", "-o", "short-precise"))
        raise
    assert a.run("cat", "/data/file") == "kept\n", "the device has outlived the process"
    a.run("umount", "/data")
    C.eventually("both are UpToDate again", lambda: is_synced(a) and is_synced(b), 40)

    # Fail over and back.
    a.run("urbd", "secondary", "r0")
    C.eventually("a Secondary has its device", lambda: a.call("lsblk", device).returncode == 0)
    assert a.run("stat", "-c", "%a", "/dev/urbd").strip() == "755", "all users find its name"
    assert "Permission denied" not in a.run("journalctl", "-u", "urbd@r0", "--no-pager")
    b.run("urbd", "primary", "r0")
    b.run("mkdir", "-p", "/data")
    b.run("mount", b.run("urbd", "sh-dev", "r0").strip(), "/data")
    assert b.run("cat", "/data/file") == "kept\n"

    # A machine goes down with everything in use: unmounted first, in time, and nothing is missing afterwards.
    b.run("sh", "-c", "echo more >>/data/file")
    b.run("systemctl", "enable", "urbd@r0")
    took = b.shut_down()
    assert took < 60, b.console()
    b.boot()
    C.eventually("the service has started at boot", lambda: b.call("systemctl", "is-active", "urbd@r0").returncode == 0, 30)
    C.eventually("both are UpToDate after the reboot", lambda: is_synced(a) and is_synced(b), 40)
    b.run("urbd", "primary", "r0")
    b.run("mount", "-o", "ro", b.run("urbd", "sh-dev", "r0").strip(), "/data")
    last = b.run("journalctl", "-b", "-1", "--no-pager", "-u", "urbd@r0", "-u", "urbd-keeper@r0", "-u", "data.mount")
    assert b.run("cat", "/data/file") == "kept\nmore\n", last
    b.run("umount", "/data")
    b.run("urbd", "down", "r0")
    assert b.call("systemctl", "is-active", "urbd@r0").returncode != 0
    assert not b.call("systemctl", "--failed", "--no-legend", "--plain").stdout.strip()


def test_a_resource_that_is_renamed_goes_on_in_its_own_unit(pair):
    """A crash is followed by a process of the new name, and the old unit has nothing to do with it."""
    a, b = pair
    for m in pair:
        m.run("urbd", "create-md", "--format=v09", "--max-peers=2", "r0")
        m.run("urbd", "up", "r0")
    a.run("urbd", "primary", "--force", "r0")
    C.eventually("both are UpToDate", lambda: is_synced(a) and is_synced(b), 40)
    a.run("mkfs.ext4", "-q", a.run("urbd", "sh-dev", "r0").strip())
    a.run("mkdir", "-p", "/data", "/srv/tools")
    a.run("mount", a.run("urbd", "sh-dev", "r0").strip(), "/data")
    a.run("ln", "-sf", a.run("sh", "-c", "command -v urbd").strip(), "/srv/tools/drbdsetup")

    def active(res):
        return a.call("systemctl", "is-active", f"urbd@{res}").stdout.strip()

    def of_unit(res):
        pid = a.run("systemctl", "show", "-P", "MainPID", f"urbd@{res}").strip()
        assert pid == a.run("cat", f"/run/urbd/{res}.pid").strip()
        return pid

    for before, after in (("r0", "r1"), ("r1", "r2")):
        said = a.call("/srv/tools/drbdsetup", "rename-resource", before, after)
        assert said.returncode == 0 and f"systemctl enable urbd@{after}" in said.stderr, said
        C.eventually("the old unit has ended", lambda: active(before) == "inactive", 30)
        pid = of_unit(after)
        a.run("sh", "-c", f"echo {after} >/data/{after} && sync /data/{after}")
        a.run("kill", "-9", pid)
        C.eventually("another one", lambda: active(after) == "active" and of_unit(after) != pid, 30)
        a.run("sh", "-c", f"echo again >/data/{after} && sync /data/{after}")
        # Who stops or starts the old one does not touch it.
        a.run("systemctl", "stop", f"urbd@{before}")
        assert a.run("cat", f"/data/{after}") == "again\n"
        assert a.run("urbd", "role", after).startswith("Primary")
    C.eventually("it is connected", lambda: "UpToDate" in a.run("urbd", "status", "r2") and is_synced(b), 40)
    a.run("umount", "/data")
    a.run("urbd", "secondary", "r2")
    a.run("urbd", "down", "r2")
    assert active("r2") == "inactive"
    assert not a.call("systemctl", "--failed", "--no-legend", "--plain").stdout.strip()
    a.run("urbd", "up", "r0")
    b.run("urbd", "down", "r0")
    a.run("urbd", "down", "r0")


@pytest.mark.parametrize("dialect", ["8.4", "9"])
def test_a_secondary_that_is_upgraded_is_not_fenced(pair, dialect):
    """By each way in which its service gets another process, or none for a while, and by the package's own script."""
    a, b = pair
    old = "urbd { protocol-version-max 101; } " if dialect == "8.4" else ""
    more = f"{old}net {{ fencing resource-and-stonith; }} handlers {{ fence-peer \"touch /etc/fenced; exit 1\";"
    for m in pair:
        m.run("sed", "-i", f"s|handlers {{|{more}|", "/etc/urbd.conf")
        m.run("urbd", "create-md", "--format=v09", "--max-peers=2", "r0")
        m.run("urbd", "up", "r0")
    a.run("urbd", "wait-connect", "--wfc-timeout=30", "r0")
    a.run("urbd", "primary", "--force", "r0")
    C.eventually("both are UpToDate", lambda: is_synced(a) and is_synced(b), 40)
    b.write("/srv/postinst", open(os.path.join(DIST, "deb", "urbd.postinst")).read(), 0o755)

    ways = {"urbd restart": lambda: b.run("urbd", "restart", "r0"),
            "systemctl restart": lambda: b.run("systemctl", "restart", "urbd@r0"),
            "systemctl try-restart": lambda: b.run("systemctl", "try-restart", "urbd@r0"),
            "the package": lambda: b.run("/srv/postinst", "configure", "0.0.1"),
            "stop and start": lambda: b.run("sh", "-c", "systemctl stop urbd@r0 && sleep 1 && systemctl start urbd@r0")}
    for name, way in ways.items():
        before = main_pid(b)
        way()
        assert main_pid(b) not in (before, "0"), name
        a.run("dd", "if=/dev/urandom", f"of={a.run('urbd', 'sh-dev', 'r0').strip()}", "bs=64k", "count=1", "oflag=direct",
              "status=none")
        C.eventually(f"{name}: both are UpToDate", lambda: are_together(a) and are_together(b), 40)
        assert not os.path.exists(a.path("/etc/fenced")), name
    assert "susp( " not in a.run("journalctl", "-o", "cat", "-u", "urbd@r0", "--no-pager"), "its I/O was frozen"


def are_together(m):
    """Also beside a third node that never comes."""
    status = m.call("urbd", "status", "r0").stdout
    return "disk:UpToDate" in status and "peer-disk:UpToDate" in status and "Inconsistent" not in status


def test_what_fails_is_said_and_another_configuration_gets_a_scope(pair):
    a, _ = pair
    r = a.call("urbd", "up", "r0")  # no metadata yet
    assert r.returncode == 1 and "create-md" in r.stderr and "/srv/disk" in r.stderr, r
    said = " ".join(a.run("urbd", "status").split())
    assert "r0 not running: its unit failed: " in said and "urbd create-md r0/0; then: urbd up r0" in said, said
    a.run("urbd", "create-md", "r0")
    # A disk that comes late is waited for at boot, and not by who types a command.
    a.run("mv", "/srv/disk", "/srv/later")
    r = a.call("urbd", "up", "r0")
    assert r.returncode == 20 and "cannot open /srv/disk" in r.stderr, r
    a.run("systemctl", "start", "--no-block", "urbd@r0")
    eventually("it says what it waits for", lambda: "waiting for /srv/disk" in a.call("systemctl", "status", "urbd@r0").stdout, 20)
    a.run("mv", "/srv/later", "/srv/disk")
    a.run("systemctl", "start", "urbd@r0")
    assert "disk:Inconsistent" in a.run("urbd", "status", "r0")
    a.run("systemctl", "stop", "urbd@r0")
    a.run("cp", "/etc/urbd.conf", "/srv/other.conf")
    a.run("systemd-run", "--wait", "--quiet", "--unit=caller", "urbd", "-c", "/srv/other.conf", "up", "r0")
    pid = a.run("cat", "/run/urbd/r0.pid").strip()
    group = a.run("cat", f"/proc/{pid}/cgroup")
    assert "run-" in group and ".scope" in group and "caller" not in group, group
    lines = a.run("cat", "/run/urbd/r0.log").splitlines()
    assert lines and all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z (info|warning|error): ", line) for line in lines), lines
    a.run("urbd", "-c", "/srv/other.conf", "down", "r0")
    # The manager hears late that its process has ended, and stops the unit then: that is not for who serves by now.
    for at in range(8):
        a.run("systemctl", "start", "urbd@r0")
        a.run("sh", "-c", "urbd -c /srv/other.conf down r0 && urbd -c /srv/other.conf up r0")
        pid = a.run("cat", "/run/urbd/r0.pid").strip()
        def state():
            return a.call("systemctl", "is-active", "urbd@r0").stdout.strip()

        eventually("the unit has been stopped", lambda: state() in ("inactive", "failed"), 20)
        assert state() == "inactive", a.call("systemctl", "status", "urbd@r0").stdout
        assert a.run("cat", "/run/urbd/r0.pid").strip() == pid and "r0 role:" in a.run("urbd", "status", "r0"), at
        a.run("urbd", "-c", "/srv/other.conf", "down", "r0")


@pytest.mark.parametrize("unit,most", [("urbd@.service", 3.2), ("urbd-keeper@.service", 2.0)])
def test_the_sandbox(tmp_path, unit, most):
    shutil.copy(os.path.join(DIST, unit), tmp_path / "urbd-checked.service")
    r = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", tmp_path / "urbd-checked.service"],
                       capture_output=True, text=True)
    level = float(re.search(r"exposure level for \S+: ([\d.]+)", r.stdout)[1])
    assert level <= most, r.stdout


def test_the_caller_keeps_nothing(tmp_path):
    """Without systemd: neither a descriptor, nor the directory, nor the terminal of who called `up`; a log with times, rotated."""
    disk, run = tmp_path / "disk", tmp_path / "run"
    run.mkdir(mode=0o700)
    disk.write_bytes(b"")
    os.truncate(disk, 16 << 20)
    config = tmp_path / "x.conf"
    config.write_text(f"resource r0 {{ urbd {{ front-end none; }} on alpha {{ device minor 7; disk {disk}; meta-disk internal; "
                      f"address 127.0.0.1:7899; }} on bravo {{ device minor 7; disk {disk}; meta-disk internal; address 127.0.0.2:7899; }} }}\n")
    env = {**os.environ, "URBD_NODE": "alpha", "URBD_RUN_DIR": "run"}
    log = run / "r0.log"
    log.write_bytes(b"x" * (1 << 20) + b"\n")

    def urbd(*args, **kw):
        return subprocess.run([C.URBD, "-c", "x.conf", *args], cwd=tmp_path, env=env, timeout=60, **kw)

    urbd("create-md", "--force", "r0", check=True, capture_output=True)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    # Its output is read to the end, as programs do: a process that keeps it would hang them.
    r = urbd("up", "r0", capture_output=True, close_fds=False)
    try:
        assert r.returncode == 0, r
        os.close(writer)
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b"", "nobody else has the pipe"
        pid = (run / "r0.pid").read_text().strip()
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        assert os.getsid(int(pid)) == int(pid)
        assert (run / "r0.log.1").stat().st_size > 1 << 20
        lines = log.read_text().splitlines()
        assert lines and all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z (info|warning|error): ", line) for line in lines), lines
    finally:
        urbd("down", "--force", "r0", capture_output=True)
        os.close(reader)


