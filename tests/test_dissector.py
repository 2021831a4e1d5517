"""Everything that urbd sends is decoded by tshark's DRBD dissector: no malformed, no unknown, no missing packet."""

import collections
import lzma
import os
import re
import subprocess
import sys

import pytest

import cluster as C
from cluster import MIB

WIRE = os.path.join(C.TESTS, "..", "vectors", "wire84")
sys.path.insert(0, WIRE)
from decode84 import COMMANDS, decode, read_pcap  # noqa: E402

TSHARK = ["tshark", "--enable-heuristic", "drbd_tcp", "-o", "tcp.reassemble_out_of_order:TRUE"]


def tshark(path, *args):
    r = subprocess.run([*TSHARK, "-r", path, *args], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    return r.stdout


def packets(path, address=None):
    """({command: packets} by our independent decoder, {command: packets} by tshark); of one sender, or of all."""
    ours = collections.Counter()
    for line in decode(read_pcap(path), {address: "sender"} if address else None):
        m = re.match(r" *[0-9.]+ (\S+)>\S+ \S+ h\d+ vol=-?\d+ (\S+)", line)
        if m and (address is None or m[1] == "sender"):
            ours[m[2]] += 1
    who = ["-Y", f"drbd && ip.src == {address}" if address else "drbd"]
    theirs = collections.Counter(int(x, 0) for line in tshark(path, *who, "-T", "fields", "-e", "drbd.command").split()
                                 for x in line.split(","))
    return ours, collections.Counter({COMMANDS.get(k, hex(k)): n for k, n in theirs.items()})


def check(path, *addresses):
    """Every packet is decoded, known and well-formed; returns how many there were of each command."""
    total = collections.Counter()
    for address in addresses or (None,):
        ours, theirs = packets(path, address)
        assert ours == theirs, f"of {address}: ours {ours - theirs}, tshark's {theirs - ours}"
        unknown = [k for k in ours if k not in COMMANDS.values()]
        assert not unknown, f"{address} sent unknown commands {unknown}"
        who = f" && ip.src == {address}" if address else ""
        bad = tshark(path, "-Y", f"_ws.malformed{who}")
        assert not bad, bad
        total += ours
    return total


@pytest.mark.parametrize("name", ["12-writes-protocol-c", "14-flush-fua-barrier", "31-invalidate", "46-diskless-primary"])
def test_instrument(tmp_path, name):
    """The check accepts what the kernel sent, and notices one wrong command byte."""
    path = str(tmp_path / "x.pcapng")
    data = lzma.open(os.path.join(WIRE, name + ".pcapng.xz")).read()
    with open(path, "wb") as f:
        f.write(data)
    assert sum(check(path).values()) > 40
    # a P_STATE's command number becomes one that does not exist
    at = data.index(bytes.fromhex("8620ec20") + b"\0\0" + b"\0\x0e")
    with open(path, "wb") as f:
        f.write(data[:at + 6] + b"\0\x99" + data[at + 8:])
    with pytest.raises(AssertionError):
        check(path)


def exercise(c, primary, secondary):
    """As many kinds of packets as two nodes exchange in normal life."""
    for i, n in enumerate((512, 4096, 5 * 512, 65536, MIB)):
        primary.write(i * 2 * MIB + 512 * (i % 2 if primary.kind == "urbd" else 0), os.urandom(n))
    primary.flush()
    primary.discard(4 * MIB, 2 * MIB)
    # outage and bitmap resync
    secondary.verb("disconnect", "r0")
    primary.wait(conn="~Connecting|Unconnected|StandAlone")
    primary.write(MIB, os.urandom(65536))
    secondary.verb("connect", "r0")
    if primary.state()["conn"] == "StandAlone":
        primary.verb("connect", "r0")
    c.wait_synced()
    # remote reads and writes, negative acks of a diskless peer
    primary.verb("detach", "r0")
    primary.wait(disk="Diskless")
    primary.read(2 * MIB, 65536)
    primary.write(3 * MIB, os.urandom(4096))
    primary.verb("attach", "r0")
    c.wait_synced()
    primary.verb("secondary", "r0")
    secondary.verb("primary", "r0")
    secondary.write(5 * MIB, os.urandom(8192))
    secondary.verb("secondary", "r0")
    secondary.verb("invalidate", "r0")
    c.wait_synced()
    primary.verb("disconnect", "r0")


@pytest.mark.parametrize("options", [
    dict(protocol="C"),
    dict(protocol="A", net="use-rle no; cram-hmac-alg sha1; shared-secret x;"),
    dict(protocol="B", net="data-integrity-alg crc32c;"),
], ids=["C", "A-auth-plain-bitmap", "B-integrity"])
def test_urbd_and_urbd(pair, tmp_path, options):
    a, b = pair.nodes
    path = str(tmp_path / "x.pcapng")
    with pair.capture(path):
        pair.up(**options)
        exercise(pair, a, b)
    seen = check(path, a.ip, b.ip)
    want = {"INITIAL_DATA", "INITIAL_META", "CONNECTION_FEATURES", "PROTOCOL", "SYNC_PARAM89", "SIZES", "UUIDS", "STATE",
            "DATA", "BARRIER", "BARRIER_ACK", "RS_DATA_REPLY", "RS_WRITE_ACK", "DATA_REQUEST",
            "DATA_REPLY", "STATE_CHG_REQ", "STATE_CHG_REPLY", "SYNC_UUID"}
    want |= {"B": {"RECV_ACK"}, "C": {"WRITE_ACK"}, "A": {"BITMAP", "AUTH_CHALLENGE", "AUTH_RESPONSE"}}[
        options["protocol"]]
    missing = want - set(seen)
    # Which of the two depends on whether both disks can deallocate.
    assert {"RS_DATA_REQUEST", "RS_THIN_REQ"} & set(seen)
    assert missing <= {"STATE_CHG_REQ", "STATE_CHG_REPLY"} and ("CONN_ST_CHG_REQ" in seen or not missing), missing


@pytest.mark.parametrize("primary", "uk")
def test_urbd_and_kernel(mixed, tmp_path, primary):
    u, k = mixed.nodes
    p, s = (u, k) if primary == "u" else (k, u)
    path = str(tmp_path / "x.pcapng")
    with mixed.capture(path):
        mixed.up(primary=p)
        exercise(mixed, p, s)
    seen = check(path, u.ip)
    assert sum(seen.values()) > 40
