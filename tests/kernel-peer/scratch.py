"""Directories for as long as one process lives.  One that is killed leaves them; the next that makes one removes them.

Whoever makes such a directory holds a lock on its file .owner, which nobody can hold any longer than he lives.  A
directory whose lock is free is removed, unless something still uses it: then it is named, with what uses it, and left.
Directories without that file (those of other programs, and one that is being made just now) are not touched.
`urbd bench` does the same (crates/bench/src/scratch.rs).
"""

import contextlib
import fcntl
import glob
import os
import shutil
import sys
import tempfile

LOCK = ".owner"
OURS = "urbd-*"  # the names of those of tests and benchmarks
_locks = {}  # directory -> descriptor, held until release() or our end


def _hold(directory):
    """Takes the lock of a directory; None if somebody has it, or there is no such file, or it went meanwhile."""
    path = os.path.join(directory, LOCK)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    os.close(fd)
    return None


def own(directory):
    """From now on `directory` is that of this process."""
    if directory in _locks:
        return
    # Locked before it has its name: a lock file that is free belongs to nobody.
    fd, name = tempfile.mkstemp(prefix=LOCK + "-", dir=directory)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.rename(name, os.path.join(directory, LOCK))
    _locks[directory] = fd


def release(directory):
    """The end of own(), after the directory was removed."""
    fd = _locks.pop(directory, None)
    if fd is not None:
        os.close(fd)


def make(prefix, parent):
    """A new directory of this process."""
    directory = tempfile.mkdtemp(prefix=prefix, dir=parent)
    own(directory)
    return directory


def remove(directory):
    """Removes it, and everything in it."""
    shutil.rmtree(directory, ignore_errors=True)
    release(directory)


@contextlib.contextmanager
def lasting(prefix, parent):
    """One that lasts as long as the with-block."""
    directory = make(prefix, parent)
    try:
        yield directory
    finally:
        remove(directory)


def sweep(parent, names=OURS, remover=lambda directory: shutil.rmtree(directory, ignore_errors=True)):
    """Removes those of the directories in `parent` whose owner is dead, and that nothing uses."""
    for directory in glob.glob(os.path.join(glob.escape(parent), names)):
        fd = _hold(directory)
        if fd is None:
            continue
        try:
            users = in_use(directory)
            if users:
                print(f"{directory} is left from a run that is dead, and still in use by {', '.join(users)}: end that, then "
                      "remove it", file=sys.stderr)
            else:
                remover(directory)
        finally:
            os.close(fd)


def in_use(directory):
    """What uses files of a directory: loop devices, mounts in any namespace, processes."""
    directory = os.path.realpath(directory)  # as the kernel names it

    def below(path):
        return path == directory or path.startswith(directory + "/")

    users = []
    for path in glob.glob("/sys/block/loop*/loop/backing_file"):
        if below(_text(path).strip()):
            users.append("/dev/" + path.split("/")[3])
    mounts, seen = set(), set()
    for process in glob.glob("/proc/[0-9]*"):
        if process != f"/proc/{os.getpid()}":  # we have its lock open
            opened = glob.glob(f"{process}/fd/*") + [f"{process}/cwd", f"{process}/root", f"{process}/exe"]
            if any(below(_link(x)) for x in opened):
                users.append(f"process {process[6:]}")
        namespace = _link(f"{process}/ns/mnt")
        if namespace not in seen:
            seen.add(namespace)
            fields = [line.split() for line in _text(f"{process}/mountinfo").splitlines()]
            mounts.update(f"a mount on {f[4]}" for f in fields if len(f) > 4 and below(f[4]))
    return users + sorted(mounts)


def _text(path):
    with contextlib.suppress(OSError), open(path) as f:
        return f.read()
    return ""


def _link(path):
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""
