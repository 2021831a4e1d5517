"""The NBD export as libnbd's, qemu's and fio's clients see it."""

import hashlib
import json
import os
import random
import subprocess
import time

import nbd
import pytest

import nbdio
from cluster import MIB


def tool(*argv, ok=True, timeout=120, **kw):
    r = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=timeout, **kw)
    assert not ok or r.returncode == 0, f"{argv}: exit {r.returncode}\n{r.stdout}{r.stderr}"
    return r


def test_nbdinfo(synced):
    a, b = synced.nodes
    info = json.loads(tool("nbdinfo", "--json", a.uri()).stdout)
    e = info["exports"][0]
    assert info["protocol"] == "newstyle-fixed" and info["structured"]
    assert e["export-name"] == "r0/0"
    assert 31 * MIB < e["export-size"] < 32 * MIB
    for can in ("can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"):
        assert e[can], can
    assert not e["is_read_only"]
    assert "base:allocation" in e["contexts"]
    assert e["block_size_maximum"] >= 32 * MIB
    listed = json.loads(tool("nbdinfo", "--list", "--json", a.uri()).stdout)
    assert [x["export-name"] for x in listed["exports"]] == ["r0/0"]
    # a Secondary's data is not for anybody to write
    r = tool("nbdinfo", "--is", "read-only", b.uri(), ok=False)
    assert r.returncode in (0, 1), r


def test_unknown_export_is_refused(synced):
    a, _ = synced.nodes
    r = tool("nbdinfo", a.uri().replace("r0/0", "r0/7"), ok=False)
    assert r.returncode == 1
    assert a.state()["role"] == "Primary"


def test_nbdcopy(synced, tmp_path):
    a, _ = synced.nodes
    with a.nbd() as h:
        size = h.size
    src, dst = tmp_path / "src", tmp_path / "dst"
    with open(src, "wb") as f:
        f.write(random.Random(1).randbytes(size // 2))
        f.truncate(size)  # and a hole
    tool("nbdcopy", "--connections=4", "--requests=32", "--flush", src, a.uri())
    tool("nbdcopy", a.uri(), dst)
    digest = [hashlib.sha256(p.read_bytes()).hexdigest() for p in (src, dst)]
    assert digest[0] == digest[1]
    synced.assert_same()


def test_qemu_img(synced, tmp_path):
    a, _ = synced.nodes
    with a.nbd() as h:
        size = h.size
    raw = tmp_path / "raw"
    with open(raw, "wb") as f:
        f.write(random.Random(2).randbytes(9 * MIB))
        f.truncate(size)
    tool("qemu-img", "convert", "-n", "-W", "-f", "raw", "-O", "raw", raw, a.uri())
    tool("qemu-img", "compare", "-f", "raw", "-F", "raw", raw, a.uri())
    tool("qemu-img", "convert", "-f", "raw", "-O", "qcow2", a.uri(), tmp_path / "q")
    tool("qemu-img", "compare", "-f", "raw", "-F", "qcow2", a.uri(), tmp_path / "q")
    assert json.loads(tool("qemu-img", "info", "--output=json", a.uri()).stdout)["virtual-size"] == size
    r = tool("qemu-io", "-f", "raw", "-c", "write -P 0x5a 1M 3M", "-c", "write -z 2M 64k", "-c", "discard 3M 512k",
             "-c", "read -P 0x5a 1M 1M", "-c", "read -P 0 2M 64k", "-c", "flush", a.uri())
    assert "failed" not in (r.stdout + r.stderr).lower()
    synced.assert_same()


@pytest.mark.parametrize("rw", ["randwrite", "randrw"])
def test_fio(synced, tmp_path, rw):
    a, _ = synced.nodes
    tool("fio", "--name=t", "--ioengine=nbd", f"--uri={a.uri()}", f"--rw={rw}", "--bsrange=512-65536", "--iodepth=16",
         "--size=16M", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--randrepeat=1", "--output",
         tmp_path / "fio.log", cwd=tmp_path)
    synced.assert_same()


def test_large_and_odd_requests(synced):
    a, _ = synced.nodes
    rng = random.Random(3)
    with a.nbd() as h:
        size = h.size
        big = rng.randbytes(size & ~511 if size < 32 * MIB else 32 * MIB)
        h.write(0, big)
        assert h.read(0, len(big)) == big
        h.write(size - 512, b"\xee" * 512, fua=True)
        assert h.read(size - 512, 512) == b"\xee" * 512
    synced.assert_same()


def test_beyond_the_end(synced):
    """Out-of-range and empty requests are errors, and the export goes on."""
    a, _ = synced.nodes
    with a.nbd() as e:
        size = e.size
        e.h.set_strict_mode(0)
        for call in (lambda: e.h.pread(4096, size), lambda: e.h.pwrite(bytes(4096), size - 512),
                     lambda: e.h.trim(4096, size), lambda: e.h.zero(4096, size - 512)):
            with pytest.raises(nbd.Error):
                call()
        e.write(0, b"\x01" * 512)
        assert e.read(0, 512) == b"\x01" * 512


def test_block_status(synced):
    a, _ = synced.nodes
    extents = []
    with a.nbd() as e:
        e.write(MIB, b"\x01" * 65536)
        e.h.block_status(e.size, 0, lambda context, offset, entries, err: extents.extend(entries[::2]) or 0)
        assert 0 < sum(extents) <= e.size


def test_multi_conn(synced):
    """Several connections see each other's completed writes; a flush on one covers all."""
    a, _ = synced.nodes
    uri = a.uri()
    handles = [nbdio.Export(uri) for _ in range(4)]
    for i in range(32):
        handles[i % 4].write(i * 4096, bytes([i]) * 4096)
        assert handles[(i + 1) % 4].read(i * 4096, 4096) == bytes([i]) * 4096
    handles[0].flush()
    for h in handles:
        h.close()
    synced.assert_same()


def test_client_that_vanishes(synced):
    """A client that disappears with requests in flight does not hold the device."""
    a, _ = synced.nodes
    for _ in range(5):
        e = nbdio.Export(a.uri())
        for i in range(16):
            e.h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(65536)), i * 65536)
        e.h.poll(0)
        os.close(os.dup(e.h.aio_get_fd()))
        del e.h
        e.close = lambda: None
    a.write(0, b"\x09" * 4096)
    synced.assert_same()
    deadline = time.monotonic() + 10
    while a.call("secondary", "r0").rc:
        assert time.monotonic() < deadline, "the device is still held open"
        time.sleep(0.1)
