"""Two builds of different versions of the program, one after the other with the same devices: see long.py.

The other builds are those of older commits, made when they are asked for first, and kept below target/versions.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time

import cluster as C
from cluster import MIB, eventually
from test_filesystems import FSCK, MKFS, mounted, sh, two_nodes
from test_handover import Application, handed_over, kill, one_node, restart

TOP = os.path.realpath(os.path.join(C.TESTS, ".."))
KEPT = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(TOP, "target"), "versions")
OURS = C.URBD
PROMISE = "crates/frontends/src/fuse.rs"


def git(*args):
    return subprocess.run(["git", "-C", TOP, *args], check=True, capture_output=True, text=True).stdout.strip()


def promise(commit):
    """The number of what a commit's program promises the kernel."""
    text = git("show", f"{commit}:{PROMISE}")
    return next(line.split("=")[1].strip(" ;") for line in text.splitlines() if "const CONTRACT: u32" in line)


def oldest_alike():
    """The first commit whose program promises the kernel what this one does."""
    changes = git("log", "--reverse", "--format=%H", "-G", "const CONTRACT: u32 = ", "--", PROMISE).split()
    return next(commit for commit in changes if promise(commit) == promise("HEAD"))


def built(commit):
    """The program of a commit."""
    commit = git("rev-parse", "--short=12", commit)
    program = os.path.join(KEPT, f"urbd-{commit}")
    if not os.path.exists(program):
        os.makedirs(KEPT, exist_ok=True)
        tree = os.path.join(KEPT, "tree")
        shutil.rmtree(tree, ignore_errors=True)
        git("worktree", "prune")
        git("worktree", "add", "--detach", tree, commit)
        try:
            env = {**os.environ, "CARGO_TARGET_DIR": os.path.join(KEPT, "target")}
            subprocess.run(["cargo", "build", "--locked", "-p", "urbd"], cwd=tree, env=env, check=True)
            shutil.copy(os.path.join(KEPT, "target", "debug", "urbd"), program + ".new")
            os.rename(program + ".new", program)
        finally:
            git("worktree", "remove", "--force", tree)
    return program


@contextlib.contextmanager
def program(path):
    """What nodes are started with, and asked by."""
    before, C.URBD = C.URBD, path
    try:
        yield
    finally:
        C.URBD = before


def another_keeper(node):
    """Of the version of the process that serves."""
    keeper, = node.keepers()
    os.kill(keeper, signal.SIGKILL)
    eventually("there is another one", lambda: node.keepers() not in ([], [keeper]))
    handed_over(node)


def versions(cluster, other, rounds):
    """The Primary's process is followed by one of the other version each time, by request and after a kill; so is the
    peer's now and then; and each is stopped for a while. The pauses in seconds, and the number of checked writes."""
    programs = [C.URBD, other]
    a, b = two_nodes(cluster, size=64 * MIB)
    dev = a.device()
    sh(*MKFS["ext4"], dev)
    pauses = []
    with mounted(a, dev, "ext4", a.run) as where:
        blocks = f"/proc/{a.holder}/root{where}/blocks"
        with open(blocks, "wb") as f:
            f.write(bytes(MIB))
            os.fsync(f.fileno())
        app = Application(blocks, 0)
        app.goes_on()
        for n in range(rounds):
            with program(programs[(n + 1) % 2]):
                app.worst = 0.0
                (restart, kill)[n // 2 % 2](a)
                app.goes_on()
                assert os.path.samefile(f"/proc/{a.serving()}/exe", C.URBD)
                pauses.append(app.worst)
                # A keeper outlives its version. Beside one process of the two it answers, and no I/O is lost with either.
                if n % 4 == 3:
                    another_keeper(a)
                a.freeze()
                time.sleep(0.4)
                a.thaw()
                app.goes_on()
                if n % 3 == 2:
                    (restart, kill)[n // 6 % 2](b)
                    app.goes_on()
        app.end()
    sh(*FSCK["ext4"], dev)
    cluster.wait_synced()
    a.urbd("secondary", "r0")
    cluster.assert_same()
    return pauses, app.done


def refused(cluster, one, other):
    """Versions that promise the kernel different things: the other one refuses, and the one that serves goes on; also after
    its end. Where the other one is too old to know that it cannot, I/O waits for one that can."""
    with program(one):
        a = one_node(cluster)
        app = Application(a.device(), 0)
        app.goes_on()
    before = a.serving()
    with program(other):
        r = a.call("restart", "r0")
        assert r.rc and app.problem is None, r
        if other == OURS:
            assert "promises the kernel something else" in r.err, r
            app.goes_on()
            assert a.serving() == before, "it has not even begun to leave"
            a.kill_process()
        r = a.call("up", "r0")
        assert r.rc and app.problem is None, r
    with program(one):
        a.start()
        app.goes_on()
        app.end()
        a.urbd("down", "r0")
        eventually("no process is left", lambda: not a.pids() and not a.keepers(), 20)
