"""`urbd setup`: from nothing to two hosts that mirror, and everything that it refuses."""

import os
import pty
import shutil
import socket
import subprocess

import pytest

import cluster as C


class Place:
    def __init__(self, path):
        self.path = path
        self.conf = path / "urbd.conf"
        for name in ("a", "b", "c", "d"):
            (path / name).write_bytes(b"")
            os.truncate(path / name, 16 << 20)

    def env(self, node="alpha"):
        return {**os.environ, "URBD_CONF": str(self.conf), "URBD_NODE": node, "URBD_RUN_DIR": str(self.path / f"run-{node}"),
                "URBD_DEV_DIR": str(self.path / f"dev-{node}")}

    def urbd(self, *args, node="alpha"):
        r = subprocess.run([C.URBD, *map(str, args)], env=self.env(node), capture_output=True, text=True, timeout=120,
                           stdin=subprocess.DEVNULL)
        return C.Call(r.returncode, r.stdout, r.stderr)

    def hosts(self, a="127.0.0.1", b="127.0.0.2", disks="ab"):
        return f"alpha={a}:{self.path}/{disks[0]}", f"bravo={b}:{self.path}/{disks[1]}"


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_two_hosts_that_mirror(place):
    r = place.urbd("setup", "--port", free_port(), "r0", *place.hosts())
    assert r.rc == 0, r
    assert place.conf.stat().st_mode & 0o777 == 0o600
    for words in ("here (alpha)", "on bravo", "scp", "urbd create-md r0", "urbd primary --force r0"):
        assert words in r.out, r.out
    for node in ("alpha", "bravo"):
        assert place.urbd("create-md", "--force", "r0", node=node).rc == 0
    with open(place.conf, "a") as f:  # the device itself is not what is tested here
        f.write("common { urbd { front-end none; } }\n")
    try:
        for node in ("alpha", "bravo"):
            r = place.urbd("up", "r0", node=node)
            assert r.rc == 0, r
        assert place.urbd("wait-connect", "--wfc-timeout=30", "r0").rc == 0
        assert place.urbd("primary", "--force", "r0").rc == 0
        C.eventually("both are UpToDate", lambda: place.urbd("dstate", "r0").out.strip() == "UpToDate/UpToDate", 30)
    finally:
        for node in ("alpha", "bravo"):
            place.urbd("down", "--force", "r0", node=node)


def test_what_it_says_is_typed_line_by_line():
    with C.Cluster() as cluster:
        a, b = nodes = [cluster.node(name) for name in ("alpha", "bravo")]
        hosts = [f"{n.name}={n.ip}:{n.disk_file()}" for n in nodes]
        node, done = None, []
        for line in a.urbd("setup", "--force", "r0", *hosts).out.splitlines():
            node = a if "  here (alpha)" in line or "  once, on the host" in line else b if "  on bravo" in line else node
            if not line.startswith("    "):
                continue
            command, _, remark = line.strip().partition("#")
            if command.startswith("scp "):
                assert command.split() == ["scp", a.conf, f"bravo:{a.conf}"], command
                shutil.copy(a.conf, b.conf)
            else:
                command = remark.partition("without systemd: ")[2] or command
                sh = ["sh", "-c", command]
                r = node.run(sh, env={**node.env(), "PATH": f"{os.path.dirname(C.URBD)}:{os.environ['PATH']}"}, timeout=60,
                             input="yes\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                assert r.returncode == 0, f"{node.name}: {command}: {r.stdout}"
            done.append((node.name, command.split()[:2]))
        assert [name for name, _ in done] == ["alpha"] * 3 + ["bravo"] * 2 + ["alpha"] * 3, done
        cluster.wait_synced()
        cluster.assert_same()
        assert a.status()["urbd-matters"] == [], a.status()["urbd-matters"]


def test_three_hosts_that_are_all_connected(place):
    """Word by word what it says is next."""
    names = ("alpha", "bravo", "charlie")
    hosts = [f"{n}=127.0.0.{i + 1}:{place.path}/{n[0]}" for i, n in enumerate(names)]
    r = place.urbd("setup", "--port", free_port(), "r0", *hosts)
    assert r.rc == 0 and "on charlie, when it has the file" in r.out and "to the other hosts" in r.out, r
    for node in names:
        r = place.urbd("create-md", "--force", "r0", node=node)
        assert r.rc == 0, r
    with open(place.conf, "a") as f:
        f.write("common { urbd { front-end none; } }\n")
    try:
        for node in names:
            r = place.urbd("up", "r0", node=node)
            assert r.rc == 0, r
        for node in names:
            C.eventually("it reaches both others", lambda: place.urbd("cstate", "r0", node=node).out == "Connected\n" * 2, 30)
        assert place.urbd("primary", "--force", "r0").rc == 0
        for node in names:
            C.eventually("all are UpToDate", lambda: place.urbd("dstate", "r0", node=node).out.strip() == "UpToDate/UpToDate/UpToDate", 30)
            r = place.urbd("status", "r0", node=node)
            assert r.rc == 0 and "!" not in r.out, r
    finally:
        for node in names:
            place.urbd("down", "--force", "r0", node=node)


def test_a_configuration_that_is_there_is_not_overwritten(place):
    assert place.urbd("setup", "r0", *place.hosts()).rc == 0
    before = place.conf.read_text()
    r = place.urbd("setup", "r1", *place.hosts(disks="cd"))
    assert r.rc == 1 and "nothing was written" in r.err and place.conf.read_text() == before, r
    r = place.urbd("setup", "--force", "r0", *place.hosts())
    assert r.rc == 1 and "has a resource r0 already" in r.err and place.conf.read_text() == before, r
    r = place.urbd("setup", "--force", "r1", *place.hosts(disks="cd"))
    after = place.conf.read_text()
    assert r.rc == 0 and after.startswith(before.rstrip()), r
    assert (place.path / "urbd.conf.before-setup").read_text() == before
    assert "127.0.0.1:7790" in after and "minor 1;" in after, "port and minor are the next free ones"
    assert place.urbd("sh-resources").out.split() == ["r0", "r1"]
    place.conf.write_text("global { usage-count no; }\n")
    r = place.urbd("setup", "--force", "r0", *place.hosts())
    assert r.rc == 0 and place.urbd("sh-resources").out.split() == ["r0"], "options without a resource are a start"
    assert place.conf.read_text().startswith("global { usage-count no; }\n")
    place.conf.write_text("resource {")
    r = place.urbd("setup", "--force", "r1", *place.hosts(disks="cd"))
    assert r.rc == 10 and place.conf.read_text() == "resource {", r


def test_it_asks_on_a_terminal(place):
    ours, theirs = pty.openpty()
    with subprocess.Popen([C.URBD, "setup"], env=place.env(), stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as p:
        os.close(theirs)
        answers = ["mail", "", "", "127.0.0.1", f"{place.path}/a", "bravo", "127.0.0.2", f"{place.path}/b"]
        os.write(ours, "".join(answer + "\n" for answer in answers).encode())
        out, _ = p.communicate(timeout=60)
    os.close(ours)
    assert p.returncode == 0 and "urbd create-md mail" in out, out
    assert place.urbd("sh-resources").out.split() == ["mail"]


def test_a_wrong_answer_is_asked_for_again(place):
    ours, theirs = pty.openpty()
    with subprocess.Popen([C.URBD, "setup"], env=place.env(), stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as p:
        os.close(theirs)
        answers = ["mail", "five", "2", "", "here", "127.0.0.1", "a", f"{place.path}/nothing", f"{place.path}/a",
                   "br/avo", "bravo", "127.0.0.2", f"{place.path}/b"]
        os.write(ours, "".join(answer + "\n" for answer in answers).encode())
        out, _ = p.communicate(timeout=60)
    os.close(ours)
    assert p.returncode == 0 and "urbd create-md mail" in out, out
    for words in ("'five': two or three", "no IP address", "a disk begins with /", "/nothing: No such file or directory\n", "no name of a host"):
        assert words in out, out
    assert place.urbd("sh-resources").out.split() == ["mail"]


def test_what_it_writes_can_be_verified_and_is_copied_from_here(place):
    r = place.urbd("setup", "r0", *place.hosts())
    here, there = r.out.split("  on bravo, when it has the file:")
    assert f"scp {place.conf} bravo:{place.conf}" in here and "scp" not in there, r
    assert "verify-alg crc32c;" in place.conf.read_text()


def mistake(place, *words, node="alpha"):
    r = place.urbd("setup", *words, node=node)
    assert r.rc == 1 and not place.conf.exists(), r
    assert "hint: " in r.err or len(r.err.splitlines()) == 1, r.err
    return r.err


def test_likely_mistakes(place):
    a, b = place.hosts()
    assert "which hosts and disks?" in mistake(place)
    assert "two or three" in mistake(place, "r0", a)
    assert "the disk is missing" in mistake(place, "r0", a, "bravo=127.0.0.2")
    assert "names are not looked up" in mistake(place, "r0", a, f"bravo=bravo:{place.path}/b")
    assert "this host is charlie (uname -n)" in mistake(place, "r0", a, b, node="charlie")
    err = mistake(place, "r0", *place.hosts(a="192.0.2.1"))
    assert "192.0.2.1 is not an address of this host" in err and "its addresses are" in err
    assert "is the address of two hosts" in mistake(place, "r0", *place.hosts(b="127.0.0.1"))
    assert "fewer than two disks" in mistake(place, "r0", a, "bravo=127.0.0.2:none")
    assert "charlie has no disk: urbd has no hosts yet that only vote" in mistake(place, "r0", a, b, "charlie=127.0.0.3:none")
    assert "No such file" in mistake(place, "r0", f"alpha=127.0.0.1:{place.path}/nowhere", b)
    assert "neither a block device nor a file" in mistake(place, "r0", f"alpha=127.0.0.1:{place.path}", b)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        assert "is in use" in mistake(place, "--port", s.getsockname()[1], "r0", a, b)


def test_a_disk_with_data_or_in_use(place):
    disk = place.path / "a"
    subprocess.run(["mkfs.ext4", "-q", disk], check=True)
    err = mistake(place, "r0", *place.hosts())
    assert "carries ext" in err and "--keep-data" in err and "wipefs" in err
    loop = subprocess.run(["losetup", "--find", "--show", disk], check=True, capture_output=True, text=True).stdout.strip()
    mnt = place.path / "mnt"
    mnt.mkdir()
    try:
        subprocess.run(["mount", loop, mnt], check=True)
        try:
            err = mistake(place, "--keep-data", "r0", f"alpha=127.0.0.1:{loop}", place.hosts()[1])
            assert f"is mounted on {mnt}" in err
        finally:
            subprocess.run(["umount", mnt], check=True)
        r = place.urbd("setup", "--keep-data", "r0", f"alpha=127.0.0.1:{loop}", place.hosts()[1])
        assert r.rc == 0, r
    finally:
        subprocess.run(["losetup", "-d", loop], check=True)
