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


def reads(node, timeout, e=None):
    """Reads of all lengths by another client, and one longer than any buffer."""
    e = e or nbdio.Export(node.uri(), timeout=timeout)
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
        reads(a, 25)
        assert a.call("secondary", "r0").rc == 11
        p.send_signal(signal.SIGKILL)
        p.wait()
        reads(a, 25)
    eventually("nobody holds the device", lambda: a.call("secondary", "r0").rc == 0)
    assert "was closed" not in a.log()


def test_many_who_take_no_answers_are_closed(synced):
    """Each has only its share, all shares together are more than there is: then those who take nothing go."""
    a, _ = synced.nodes
    a.write(0, b"\x07" * 18 * MIB)
    with greedy(a, 40, 262144):
        reads(a, 20)
        assert "has taken none of its answers" in a.log()
    eventually("nobody holds the device", lambda: a.call("secondary", "r0").rc == 0)


# Sends the head of a write on many connections, and a small part of its data.
PART = """
import socket, struct, sys, time
def client(path):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    def exactly(n):
        out = b""
        while len(out) < n:
            more = s.recv(n - len(out))
            if not more:
                raise ConnectionError("turned away")
            out += more
    exactly(18)
    s.sendall(struct.pack(">I", 3) + struct.pack(">QII", 0x49484156454F5054, 1, len(sys.argv[2])) + sys.argv[2].encode())
    exactly(10)
    length = int(sys.argv[4])
    s.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 1, 1, 0, length) + b"x" * 4096)
    return s
clients = []
for _ in range(int(sys.argv[3])):
    try:
        clients.append(client(sys.argv[1]))
    except ConnectionError:
        break
print("asked", flush=True)
time.sleep(1000)
"""


def test_who_stops_in_the_middle_of_a_write_keeps_nobody_waiting(synced):
    """Each holds a buffer for the data that do not come: more of them than there are buffers, then they go."""
    a, _ = synced.nodes
    a.write(0, b"\x07" * 18 * MIB)
    path, other = a.uri().split("socket=")[1], nbdio.Export(a.uri(), timeout=25)
    p = subprocess.Popen([*a.prefix(), sys.executable, "-c", PART, path, "r0/0", "200", str(MIB)], stdout=subprocess.PIPE,
                         text=True)
    try:
        assert p.stdout.readline() == "asked\n"
        reads(a, 25, other)
        reads(a, 25)
        eventually("it is said", lambda: "has sent nothing more of a write's data" in a.log())
    finally:
        p.kill()
        p.wait()
        p.stdout.close()
    eventually("nobody holds the device", lambda: a.call("secondary", "r0").rc == 0)
