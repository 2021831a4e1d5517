"""Whoever may reach a socket, a file or a port of a node must not be able to keep it from its work."""

import contextlib
import json
import os
import select
import socket
import subprocess

import pytest

import cluster as C
import fake_peer


def say(client, *requests):
    """Sends requests on a control connection; the last answer."""
    answers = client.makefile("r")
    for request in requests:
        client.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(answers.readline())
    return answer


HELLO = {"hello": {"version": 1}}


def has_ended(client):
    return bool(select.select([client], [], [], 0)[0]) and client.recv(1, socket.MSG_PEEK) == b""


def test_silent_control_clients_shut_nobody_out(pair):
    a, _ = pair.nodes
    a.create_md()
    a.start()
    with contextlib.ExitStack() as stack:
        def connect():
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(20)
            client.connect(os.path.join(a.run_dir, "r0.sock"))
            return client

        silent = [connect() for _ in range(40)]
        assert a.urbd("role", "r0").out == "Secondary\n"
        greeted = [connect() for _ in range(40)]
        for client in greeted[-20:]:
            assert "hello" in say(client, HELLO)
        # Who has not even greeted goes first; of the others, who has been silent for longest.
        for _ in range(3):
            a.urbd("status", "r0")
        assert all(has_ended(client) for client in silent)
        assert not any(has_ended(client) for client in greeted[-20:])
        assert "status" in say(greeted[-20], "status")
        for _ in range(30):
            last = connect()
            say(last, HELLO)
        assert not has_ended(last)
        assert has_ended(greeted[-19])
        # Listeners say nothing either; some are served, and places are left for commands.
        answers = [say(connect(), HELLO, {"events": {"now": False, "statistics": False}}) for _ in range(30)]
        assert all("event" in answer for answer in answers[:24])
        assert all("24 programs" in answer["error"]["message"] for answer in answers[24:]), answers[24:]
        r = a.call("events2", "r0")
        assert r.rc and "24 programs follow" in r.err, r
        a.urbd("events2", "--now", "r0")
        for client in [connect() for _ in range(40)]:
            with contextlib.suppress(OSError):  # some are ended already
                client.send(b'{"hel')
        a.urbd("status", "r0")
        a.urbd("primary", "--force", "r0")
        a.stop()


def test_a_wrong_secret_ends_that_connection_only(pair):
    """Somebody at the peer's address who does not know the secret keeps nobody from connecting."""
    pair.up(net='cram-hmac-alg sha1; shared-secret "right"; connect-int 120;', disk=C.FAST_DISK, fast=False)
    a, b = pair.nodes
    b.stop()

    def wrong_answer(peer):
        peer.authenticate()

    def other_versions(peer):
        peer.connect().data.sendall(fake_peer.features(200, 300))

    def none_at_all(peer):
        peer.connect().data.sendall(fake_peer.features() + fake_peer.h100(fake_peer.PROTOCOL, bytes([0, 0, 0, 3]) + bytes(21)))

    def own_challenge(peer):
        peer.connect().data.sendall(fake_peer.features())
        peer.exactly(80)
        _, _, challenge = peer.receive()
        peer.data.sendall(fake_peer.h100(fake_peer.AUTH_CHALLENGE, challenge))

    def goes_away(peer):
        peer.authenticate(None)
        assert peer.receive()[1] == fake_peer.AUTH_RESPONSE
        peer.close()

    tries = 0
    for what in (wrong_answer, none_at_all, own_challenge, goes_away, other_versions, wrong_answer):
        peer = fake_peer.FakePeer(b, a)

        def served():
            with contextlib.suppress(ConnectionRefusedError):
                what(peer)
                return True

        C.eventually(f"{what.__name__}: a listens", served, 20)
        assert what is goes_away or peer.closed(), what
        peer.close()
        tries += what is not other_versions  # which is not understood at all
        C.eventually(f"{what.__name__} is counted",
                     lambda: a.status()["connections"][0].get("failed-authentications") == tries, 20)
        a.wait(conn="Connecting")
        assert "authentication:failed" in a.urbd("status", "r0").out
    # Its own next try would be in a minute, but the peer is let in at once.
    assert "the next try is in 60 s" in a.log()
    b.start()
    pair.wait_synced(timeout=25)
    assert "failed-authentications" not in a.status()["connections"][0]
    pair.assert_same()


STRANGER = 54321  # a user without a name or a file


def locker(path, user=STRANGER, mode="r"):
    """A process of another user that holds a lock on the file."""
    hold = f"import fcntl, time; f = open({path!r}, {mode!r}); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(600)"
    p = subprocess.Popen(["/usr/bin/python3", "-c", hold], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, user=user, group=user, extra_groups=[],
                         preexec_fn=C.end_with_us)
    assert p.stdout.readline() == b"held\n"
    return p


@contextlib.contextmanager
def readable_by_all(node):
    """The way to the node's files is open to every user, as /run/urbd is."""
    path = node.dir
    ways = []
    while path != "/":
        ways.append((path, os.stat(path).st_mode))
        os.chmod(path, ways[-1][1] | 0o055)
        path = os.path.dirname(path)
    yield
    for path, mode in ways:
        os.chmod(path, mode & 0o7777)


def test_a_strangers_lock_keeps_no_resource_from_starting(pair):
    a, _ = pair.nodes
    pid, disk = os.path.join(a.run_dir, "r0.pid"), a.disk_file()
    with readable_by_all(a), contextlib.ExitStack() as stack:
        def held(*args, **kw):
            p = locker(*args, **kw)
            stack.callback(p.wait)
            stack.callback(p.kill)
            return p

        os.chmod(disk, 0o644)
        with open(pid, "w"):
            os.chmod(pid, 0o644)  # as versions before have left it
        strangers = [held(pid), held(disk)]
        a.create_md()
        a.start()
        assert a.log().count("who can only read it") == 2 and str(strangers[0].pid) in a.log()
        # It is locked as it should be for whoever asks the same way.
        r = a.call("run", "r0")
        assert r.rc and "runs already" in r.err, r
        r = a.call("create-md", "--force", "r0")
        assert r.rc == 20 and "in use" in r.err, r
        assert os.stat(pid).st_mode & 0o777 == 0o600
        for p in strangers:
            p.kill()
            p.wait()
        r = a.call("create-md", "--force", "r0")
        assert r.rc == 20 and "in use" in r.err, r
        a.stop()
        # Locks of those who could use the file are kept to: the owner's, root's, of whoever may write.
        for user, mode, bits in ((0, "r", 0o644), (STRANGER, "r+", 0o666)):
            os.chmod(disk, bits)
            p = held(disk, user, mode)
            r = a.call("create-md", "--force", "r0")
            assert r.rc == 20 and "in use" in r.err, r
            p.kill()
            p.wait()
        a.create_md()
        with pytest.raises(AssertionError):  # it may not even be opened
            held(pid)
        a.start()
        a.stop()


def test_links_in_the_run_directory_are_not_followed(pair):
    a, _ = pair.nodes
    a.create_md()
    precious = os.path.join(a.dir, "precious")
    for name in ("r0.pid", "r0.log"):
        with open(precious, "w") as f:
            f.write("precious")
        link = os.path.join(a.run_dir, name)
        os.symlink(precious, link)
        r = a.call("up", "r0")
        assert r.rc and "symbolic link" in r.err and name in r.err, r
        os.unlink(link)
        # Nor one that leads nowhere yet.
        os.unlink(precious)
        os.symlink(precious, link)
        assert a.call("up", "r0").rc
        os.unlink(link)
        assert not os.path.exists(precious)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(a.run_dir, "r0.log"))
    for name in ("r0.dev", "r0.sock", "r0-0.nbd", "r0-0.link"):
        if name == "r0.dev":
            os.mkdir(precious)
        else:
            with open(precious, "w") as f:
                f.write("precious")
        os.symlink(precious, os.path.join(a.run_dir, name))
        a.start()
        if name == "r0.dev":
            assert "r0.dev is a symbolic link" in a.log()
            os.unlink(os.path.join(a.run_dir, name))
        a.stop()
        if name == "r0.dev":
            os.rmdir(precious)
        else:
            with open(precious) as f:
                assert f.read() == "precious"
            os.unlink(precious)
    # Whoever may write there could do worse.
    for owner, mode in ((STRANGER, 0o755), (0, 0o777)):
        os.chown(a.run_dir, owner, owner)
        os.chmod(a.run_dir, mode)
        for verb in ("up", "run"):
            r = a.call(verb, "r0")
            assert r.rc == 20 and "URBD_RUN_DIR" in r.err, r
    os.chown(a.run_dir, 0, 0)
    os.chmod(a.run_dir, 0o755)
    a.start()


def test_what_is_no_file_is_not_read_as_one(pair):
    """An include of something without an end is an error; a pipe as the main file is not."""
    a, _ = pair.nodes
    fifo, huge = os.path.join(a.dir, "fifo"), os.path.join(a.dir, "huge")
    os.mkfifo(fifo)
    with open(huge, "wb") as f:
        f.truncate(1 << 40)
    for name, why in (("/dev/zero", "not a regular file"), (fifo, "not a regular file"), (a.dir, "not a regular file"),
                      (huge, "longer than 64 MiB")):
        a.put_res("more", f'include "{name}";\n')
        r = a.call("sh-resources", timeout=20)
        assert r.rc == 20 and why in r.err and "more.res:1:9" in r.err, r
        r = a.call("-c", name, "sh-resources", timeout=20) if name != fifo else r
        assert r.rc == 20 and why in r.err, r
    a.put_res("more", "")
    r = a.run(["bash", "-c", f'exec {C.URBD} -c <(cat {a.dir}/res.d/r0.res) sh-resources'], env=a.env(), timeout=20,
              stdout=subprocess.PIPE, text=True)
    assert r.stdout == "r0\n"


def test_silent_nbd_clients_shut_no_command_out(pair):
    """However many connect, and take the buffers of all sockets, a command is answered."""
    a, _ = pair.nodes
    a.create_md()
    a.start()
    a.urbd("primary", "--force", "r0")
    with contextlib.ExitStack() as stack:
        for _ in range(600):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(os.path.join(a.run_dir, "r0-0.nbd"))
        C.eventually("all buffers are taken", lambda: "was turned away" in a.log())
        a.urbd("status", "r0")
        a.urbd("secondary", "r0")
        a.stop()
