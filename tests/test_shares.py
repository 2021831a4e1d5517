"""A client of the NBD socket that takes none of its answers, or is killed with them, keeps nobody else waiting."""

import contextlib
import signal
import subprocess
import sys

import pytest

import nbdio
from cluster import MIB, eventually

# Asks for more than all buffers hold, on many connections, and does not take a byte of it.
GREEDY = """
import sys, time, nbd
handles = []
for _ in range(int(sys.argv[2])):
    h = nbd.NBD()
    h.set_uri_allow_local_file(True)
    h.connect_uri(sys.argv[1])
    for i in range(64):
        h.aio_pread(nbd.Buffer(int(sys.argv[3])), (i * 262144) % (16 << 20))
    handles.append(h)
print("asked", flush=True)
time.sleep(1000)
"""


@contextlib.contextmanager
def greedy(node, connections, length):
    p = subprocess.Popen([*node.prefix(), sys.executable, "-c", GREEDY, node.uri(), str(connections), str(length)],
                         stdout=subprocess.PIPE, text=True)
    try:
        assert p.stdout.readline() == "asked\n"
        yield p
    finally:
        p.kill()
        p.wait()
        p.stdout.close()


def reads(node, timeout):
    """Reads of all lengths by another client, and one longer than any buffer."""
    e = nbdio.Export(node.uri(), timeout=timeout)
    for length in (512, 4096, 65536, 131072, 262144, MIB, 16 * MIB):
        assert e.read(MIB, length) == b"\x07" * length
    e.write(0, b"\x07" * 2 * MIB)
    e.close()


@pytest.mark.parametrize("length", [4096, 262144, MIB])
def test_who_takes_no_answers_keeps_nobody_waiting(synced, length):
    """As many connections and reads as `nbdcopy` makes: stopped, and then killed."""
    a, _ = synced.nodes
    a.write(0, b"\x07" * 18 * MIB)
    with greedy(a, 4, length) as p:
        reads(a, 5)
        assert a.call("secondary", "r0").rc == 11
        p.send_signal(signal.SIGKILL)
        p.wait()
        reads(a, 5)
    eventually("nobody holds the device", lambda: a.call("secondary", "r0").rc == 0, 10)
    assert "was closed" not in a.log()


def test_many_who_take_no_answers_are_closed(synced):
    """Each has only its share, all shares together are more than there is: then those who take nothing go."""
    a, _ = synced.nodes
    a.write(0, b"\x07" * 18 * MIB)
    with greedy(a, 40, 262144):
        reads(a, 20)
        assert "has taken none of its answers" in a.log()
    eventually("nobody holds the device", lambda: a.call("secondary", "r0").rc == 0, 10)
