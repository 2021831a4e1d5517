"""Fixtures.  Every test has a time limit of its own; nothing may be left behind by any of them."""

import contextlib
import ctypes
import os
import signal
import sys
import threading

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel-peer"))

import cluster as C  # noqa: E402
import kernel_peer  # noqa: E402
from container import Machine  # noqa: E402
from kernel_peer import Lab  # noqa: E402

# Many times what a test takes: it ends what hangs, and says nothing of a machine that is slow.
TIME_LIMIT = 300


kernel_peer.END_WITH_US = True


def pytest_configure(config):
    config.addinivalue_line("markers", "limit(seconds): the test's own time limit")


def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        with contextlib.suppress(OSError):
            os.rmdir("/dev/urbd")  # made as a mount point by the first node


@pytest.fixture(scope="session", autouse=True)
def own_mounts():
    """Mounts of this worker's own (of the thread that runs the tests, and what it starts): a mount namespace that another
    worker makes while we have a file system mounted would keep it mounted, for whoever asks "is it in use?"."""
    libc, new_mounts, recursive, private = ctypes.CDLL(None, use_errno=True), 0x20000, 0x4000, 0x40000
    if libc.unshare(new_mounts) or libc.mount(b"none", b"/", None, recursive | private, None):
        raise OSError(ctypes.get_errno(), "cannot make a mount namespace (the tests need root)")


@pytest.fixture(autouse=True)
def time_limit(request):
    mark = request.node.get_closest_marker("limit")
    seconds = mark.args[0] if mark else TIME_LIMIT

    def over(*_):
        raise C.TookTooLong(f"the test took more than {seconds} s")

    with alarm(seconds, over):
        yield


@contextlib.contextmanager
def alarm(seconds, over):
    """Calls over() in this thread after that time. A worker of xdist does not always run its tests in its main thread,
    and then there are no signals: the exception is raised as soon as the interpreter gets to it."""
    if threading.current_thread() is not threading.main_thread():
        ident = ctypes.c_ulong(threading.get_ident())
        timer = threading.Timer(seconds, ctypes.pythonapi.PyThreadState_SetAsyncExc,
                                (ident, ctypes.py_object(C.TookTooLong)))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        return
    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed and call.when == "call":
        clusters = {id(v): v for v in item.funcargs.values() if isinstance(v, C.Cluster)}
        nodes = [n for c in clusters.values() for n in c.nodes]
        pair = item.funcargs.get("pair")  # a cluster, or machines
        machines = pair if isinstance(pair, (list, tuple)) else ()
        for n in (*nodes, *(m for m in machines if isinstance(m, Machine))):
            report.sections.append((f"log of {n.name}", n.log()[-5000:]))


@pytest.fixture
def cluster():
    """An empty cluster; the test adds nodes."""
    with C.Cluster() as c:
        yield c


@pytest.fixture
def pair(cluster):
    """Two urbd nodes, configured, not started."""
    cluster.node("a")
    cluster.node("b")
    cluster.configure()
    return cluster


@pytest.fixture
def synced(pair):
    """Two urbd nodes, both UpToDate, a is Primary."""
    pair.up()
    return pair


@pytest.fixture(scope="session")
def kernel_lab():
    """A lab with one guest "k" that runs the real kernel DRBD 8.4: data, external metadata, second volume."""
    with Lab(f"k{os.getpid()}", fresh=True) as lab:
        lab.add("k", disks=["24M", "4M", "24M"])
        yield lab


@pytest.fixture
def mixed(kernel_lab):
    """An urbd node "u" and the kernel node "k", configured, not started."""
    with C.Cluster(kernel_lab) as c:
        c.node("u", size=24 * C.MIB)
        c.kernel(kernel_lab.node("k"))
        c.configure()
        yield c


@pytest.fixture(params=["resend", "ledger"])
def kernel(request, cluster):
    """One that hands out unanswered requests again (Linux 6.9), and one that does not."""
    if request.param == "ledger":
        cluster.variables["URBD_FUSE_RESEND"] = "no"
    yield request.param
    for n in cluster.nodes[:1]:
        assert ("hands requests out once only" in n.log()) == (request.param == "ledger")
