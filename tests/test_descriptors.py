"""A process that has no descriptor left: whoever comes waits to be let in, and is, as soon as there is one again."""

import os
import socket
import subprocess
import time

import pytest

from cluster import URBD, eventually


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu(pid):
    """Seconds that a process has worked."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("interface", ["io_uring", "poll"])
def test_who_comes_while_there_is_no_descriptor_is_let_in_later(cluster, interface):
    cluster.variables["URBD_NO_IO_URING"] = "1" if interface == "poll" else "0"
    a, b = cluster.node("a"), cluster.node("b")
    cluster.configure(ids=True)
    for n in (a, b):
        n.urbd("create-md", "--force", "--format=v09", "--max-peers=1", "r0")
    a.start()
    a.urbd("primary", "--force", "r0")
    limit = descriptors(a.serving()) + 6
    a.kill()
    a.start(under=["prlimit", f"--nofile={limit}:{limit}"])
    pid = a.serving()
    a.urbd("primary", "--force", "r0")
    clients = []
    for _ in range(40):
        clients.append(socket.socket(socket.AF_UNIX))
        clients[-1].connect(f"{a.run_dir}/r0-0.nbd")
    eventually("all are in use", lambda: descriptors(pid) == limit, 10)
    asks = [subprocess.Popen(a.prefix() + [URBD, verb, "r0"], env=a.env(), stdout=subprocess.PIPE, text=True)
            for verb in ("status", "role")]
    b.start()
    eventually("it is said", lambda: "nobody can be let in: Too many open files" in a.log(), 10)
    at, used = time.monotonic(), cpu(pid)
    time.sleep(2)
    assert cpu(pid) - used < (time.monotonic() - at) / 4, "a busy loop"
    assert a.log().count("nobody can be let in") == 1
    for client in clients[:-1]:
        client.close()
    for ask in asks:
        out, _ = ask.communicate(timeout=20)
        assert ask.returncode == 0 and "Primary" in out, (ask.args, out)
    clients[-1].settimeout(10)
    assert clients[-1].recv(8) == b"NBDMAGIC"
    clients[-1].close()
    a.write(0, b"x" * 4096)
    cluster.wait_synced()
    cluster.assert_same()
