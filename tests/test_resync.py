"""Resync and online verify: by checksums, thin, at a rate, in order, interrupted, over a thin link; both peers."""

import contextlib
import os
import re
import signal
import time

import pytest

import cluster as C
from cluster import MIB, eventually


def corrupt(node, *offsets, length=4096):
    """Changes the backing file behind the back of whoever serves it."""
    with open(node.disk_file(), "r+b", buffering=0) as f:
        for at in offsets:
            f.seek(at)
            f.write(os.urandom(length))
        os.fsync(f.fileno())


def decisions(node, reason):
    return [line for line in node.log().splitlines() if f"[{reason}]" in line]


def sync_again(target, source):
    """A full resync of `target`; returns what it received, in KiB."""
    before = target.state()["received"]
    target.verb("invalidate", "r0")
    for n in (target, source):
        n.wait(repl="Established", disk="UpToDate", peer_disk="UpToDate", timeout=90)
    return target.state()["received"] - before


def fill(node, megabytes, first=0):
    for i in range(first, first + megabytes):
        node.write(i * MIB, os.urandom(MIB))
    node.flush()


def resyncing(pair, rate, megabytes):
    """The second node fetches so much from the first one, at a fixed rate; returns both."""
    a, b = pair.nodes
    # The first resync is not the one that is looked at.
    pair.up(disk="c-plan-ahead 0; resync-rate 400M;", fast=False, net=C.FAST_NET)
    fill(a, megabytes)
    pair.configure(disk=f"c-plan-ahead 0; resync-rate {rate};")
    for n in (a, b):
        n.verb("adjust", "r0")
    b.verb("invalidate", "r0")
    b.wait(repl="SyncTarget")
    return a, b


def verify(node, *options, timeout=30.0):
    """A whole online verify, started on `node`."""
    node.verb("verify", *options, "r0")
    eventually("verify has ended", lambda: decisions(node, "verify-done"), timeout)


@contextlib.contextmanager
def thin_link(node):
    """16 Mbit/s from this node to the other."""
    node.run(["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "16mbit", "burst", "32k", "latency", "50ms"],
             check=True)
    yield
    node.run(["tc", "qdisc", "del", "dev", "eth0", "root"], check=True)


def reconnect(a, b):
    a.verb("disconnect", "r0")
    a.verb("connect", "r0")
    for n in (a, b):
        n.wait(conn="Connected", timeout=60)


# ---- what travels -------------------------------------------------------------------------


def test_zeroes_cost_no_payload(pair):
    a, b = pair.nodes
    pair.up()
    assert b.state()["received"] < 1024, "the first sync of an empty device"
    fill(a, 4)
    assert sync_again(b, a) <= 4 * 1024 + 64
    pair.assert_same()
    allocated = os.stat(b.disk_file()).st_blocks * 512
    assert allocated < 8 * MIB, f"{allocated} bytes are allocated for 4 MiB of data"


@pytest.mark.parametrize("alg", ["crc32c", "md5", "sha1"])
def test_checksums_save_the_transfer(pair, alg):
    a, b = pair.nodes
    pair.up(net=f"csums-alg {alg};")
    fill(a, 16)
    corrupt(b, 3 * MIB, 7 * MIB)
    received = sync_again(b, a)
    assert received <= 2 * 1024, f"{received} KiB for two blocks that differ"
    pair.assert_same()
    assert "were equal" in decisions(b, "resync-done")[-1]


def test_checksums_only_after_a_crash(pair):
    a, b = pair.nodes
    pair.up(net="csums-alg md5; csums-after-crash-only yes;")
    fill(a, 8)
    assert sync_again(b, a) >= 8 * 1024
    pair.assert_same()


# ---- speed and order ----------------------------------------------------------------------


@pytest.mark.parametrize("mib", [4, 10])
def test_fixed_rate_is_held(cluster, mib):
    # So much that it is under way for some seconds after it was looked at, on a busy machine, too.
    size = 8 * mib
    for name in "ab":
        cluster.node(name, size=(size + 2) * MIB)
    a, b = resyncing(cluster, rate=f"{mib}M", megabytes=size)

    def left():
        """KiB, and between which times that was."""
        before = time.monotonic()
        return b.state()["oos"] or 0, before, time.monotonic()

    first = eventually("the resync is under way", lambda: 0 < (now := left())[0] < size * 1024 and now)
    time.sleep(2)
    then = left()
    assert then[0] > 0, "too late to see"
    # Requests are up to 1 MiB, and the clock of this test is not that of the resync.
    done, shortest, longest = (first[0] - then[0]) / 1024, then[1] - first[2], then[2] - first[1]
    assert mib * 0.7 * shortest < done < (mib * 1.3 + 0.5) * longest, f"{done} MiB in {shortest:.2f} to {longest:.2f} s"


def test_rate_changes_while_it_runs(pair):
    # At this rate it would take more than a minute.
    a, b = resyncing(pair, rate="400K", megabytes=24)
    pair.configure(disk="c-plan-ahead 0; resync-rate 400M;")
    b.verb("adjust", "r0")
    pair.wait_synced(timeout=40)
    pair.assert_same()


def test_pause_and_resume(pair):
    a, b = resyncing(pair, rate="400K", megabytes=16)
    a.verb("pause-sync", "r0")
    b.wait(repl="PausedSyncT")
    a.wait(repl="PausedSyncS")
    # What was asked for before may still come.
    for n in (a, b):
        n.wait(pending=0, unacked=0)
    left = b.state()["oos"]
    b.verb("disk-options", "r0", "--resync-rate=400M")
    time.sleep(0.7)
    assert b.state()["oos"] == left > 0
    a.verb("resume-sync", "r0")
    pair.wait_synced(timeout=30)
    pair.assert_same()


def test_progress_is_told(pair):
    a, b = resyncing(pair, rate="4M", megabytes=28)
    time.sleep(3)

    def peer_device():
        return b.status()["connections"][0]["peer_devices"][0]

    now = peer_device()
    eta, left = now["estimated-seconds-to-finish"], now["out-of-sync"] / 1024
    assert abs(eta - left / 4) <= 2, f"{eta} s for {left} MiB at 4 MiB/s"
    assert 0 < now["percent-resync-done"] < 100
    r = b.call("wait-sync", "r0", timeout=30)
    assert r.rc == 0
    pair.wait_synced()


# ---- options --------------------------------------------------------------------------------

LINBIT = {"net": "max-buffers 80k; sndbuf-size 10M; rcvbuf-size 10M;",
          "disk": "resync-rate 3123M; c-plan-ahead 20; c-delay-target 10; c-fill-target 1M; c-max-rate 3123M; "
                  "c-min-rate 250k;"}


def as_options(section):
    """What stands in a section, for a command line."""
    return [f"--{x.strip().replace(' ', '=')}" for x in section.split(";") if x.strip()]


def socket_buffers(node):
    """(receive, send) of the established sockets, in bytes, as the kernel counts them (twice what was asked for)."""
    out = node.run(["ss", "-Htnm", "state", "established", f"( sport = :{C.PORT} or dport = :{C.PORT} )"],
                   capture_output=True, text=True).stdout
    return [(int(r), int(s)) for r, s in re.findall(r"rb(\d+),t\d+,tb(\d+)", out)]


@pytest.mark.parametrize("how", ["start", "adjust", "verbs"])
def test_the_tuning_that_linbit_recommends(pair, how):
    a, b = pair.nodes
    pair.up(fast=False, net=C.FAST_NET + (LINBIT["net"] if how == "start" else ""),
            disk=LINBIT["disk"] if how == "start" else "", extra="urbd { resync-controller drbd; }")
    if how == "adjust":
        pair.configure(net=C.FAST_NET + LINBIT["net"], disk=LINBIT["disk"])
    for n in (a, b):
        if how == "adjust":
            n.verb("adjust", "r0")
        if how == "verbs":
            n.verb("net-options", "r0", *as_options(LINBIT["net"]))
            n.verb("disk-options", "r0/0", *as_options(LINBIT["disk"]))
        shown = n.verb("show", "r0").out
        for name, value in (("max-buffers", "81920"), ("sndbuf-size", "10485760"), ("rcvbuf-size", "10485760"),
                            ("resync-rate", "3197952k"), ("c-fill-target", "2048s"), ("c-max-rate", "3197952k")):
            assert re.search(rf"\b{name}\s+{value};", shown), f"{name} is not {value}:\n{shown}"
        buffers = socket_buffers(n)
        assert len(buffers) == 2 and all(min(x) >= 10 * MIB for x in buffers), buffers
    fill(a, 24)
    sync_again(b, a)
    pair.assert_same()


# Of options without a figure of their own: (verb, option, other value); each is taken over, shown, and lets go on.
OTHERS = [("disk-options", "resync-rate", "1M"), ("disk-options", "c-delay-target", "20"),
          ("disk-options", "rs-discard-granularity", "65536"), ("disk-options", "discard-zeroes-if-aligned", "no"),
          ("disk-options", "disk-timeout", "600"), ("disk-options", "al-extents", "67"),
          ("disk-options", "al-updates", "no"), ("disk-options", "disk-flushes", "no"),
          ("disk-options", "md-flushes", "no"), ("disk-options", "disk-drain", "no"),
          ("net-options", "on-congestion", "pull-ahead"), ("net-options", "congestion-fill", "1M"),
          ("net-options", "congestion-extents", "67"), ("net-options", "csums-alg", "md5"),
          ("net-options", "csums-after-crash-only", "yes"), ("net-options", "verify-alg", "sha1"),
          ("net-options", "use-rle", "no"), ("peer-device-options", "c-min-rate", "4M"),
          ("peer-device-options", "c-fill-target", "1M"), ("peer-device-options", "c-max-rate", "1G")]


def test_options_change_while_a_resync_and_an_application_run(pair):
    from test_two_nodes import Load
    pair.configure(protocol="A")  # `on-congestion` is refused without it
    a, b = resyncing(pair, rate="2M", megabytes=24)
    load = Load(a, seconds=6, depth=8)
    for verb, name, value in OTHERS:
        for n in (a, b):
            n.verb(verb, f"--{name}={value}", "r0")
            assert re.search(rf"\b{name}\s", n.verb("show", "r0").out), f"{name} is not shown"
    load.end(0)
    for n in (a, b):
        n.verb("adjust", "r0")
        assert not n.verb("-d", "adjust", "r0").out.strip()
        n.verb("disk-options", "r0", "--resync-rate=400M")
    pair.wait_synced(timeout=30)
    pair.assert_same()
    # What has been changed back and forth holds for the next ones: verify by another algorithm, resync by checksums.
    pair.configure(net=C.FAST_NET + "verify-alg md5; csums-alg md5;", disk="c-plan-ahead 0; resync-rate 400M;")
    for n in (a, b):
        n.verb("adjust", "r0")
    verify(a)
    assert sync_again(b, a) <= 1024
    assert "were equal" in decisions(b, "resync-done")[-1]


# ---- interrupted --------------------------------------------------------------------------


def test_link_cut_all_the_time(pair):
    a, b = resyncing(pair, rate="12M", megabytes=28)
    for i in range(8):
        time.sleep(0.2)
        node = (a, b)[i % 2]
        with_link = [x for x in node.run(["ss", "-Htn", "state", "established"], capture_output=True,
                                         text=True).stdout.split("\n") if f":{C.PORT}" in x]
        # Reset every connection of the pair: both sides notice at once and come back.
        if with_link:
            node.run(["ss", "-K", "dst", (b if node is a else a).ip], capture_output=True)
        a.write(i * MIB, os.urandom(65536))
    pair.wait_synced(timeout=90)
    pair.assert_same()


def test_target_killed_goes_on_where_it_was(pair):
    a, b = resyncing(pair, rate="8M", megabytes=28)
    eventually("half is done", lambda: (b.state()["oos"] or 1 << 30) < 16 * 1024)
    # From here on it is slow, so that it is under way whenever it is looked at.
    pair.configure(disk="c-plan-ahead 0; resync-rate 400K;")
    b.verb("adjust", "r0")
    # What is written to the bitmap every two seconds counts.
    time.sleep(0.5)
    b.kill()
    b.start()
    b.wait(repl="SyncTarget", timeout=60)
    assert b.state()["oos"] < 31 * 1024
    b.verb("disk-options", "r0", "--resync-rate=400M")
    pair.wait_synced(timeout=60)
    pair.assert_same()


# ---- several volumes ------------------------------------------------------------------------


def test_resync_after(cluster):
    a, b = cluster.node("a", volumes=2), cluster.node("b", volumes=2)
    cluster.configure(volumes=2, fast=False, net=C.FAST_NET, disk="c-plan-ahead 0; resync-rate 8M;")
    text = cluster.configure()
    for n in (a, b):
        # The second volume of each node waits for the first.
        n.put_res("r0", re.sub(r"(volume 1 \{)", r"\1 disk { resync-after r0/0; }", text))
        n.create_md()
        n.start()
    for n in (a, b):
        n.wait(conn="Connected")
    for v in (0, 1):
        a.verb("new-current-uuid", "--clear-bitmap", f"r0/{v}")
    a.verb("primary", "r0")
    for v in (0, 1):
        for i in range(12):
            a.write(i * MIB, os.urandom(MIB), volume=v)
    b.verb("invalidate", "r0/1")
    b.verb("invalidate", "r0/0")
    b.wait(volume=0, repl="SyncTarget")
    b.wait(volume=1, repl="PausedSyncT")
    b.wait(volume=0, repl="Established", timeout=30)
    b.wait(volume=1, repl=["SyncTarget", "Established"])
    for v in (0, 1):
        b.wait(volume=v, repl="Established", disk="UpToDate", timeout=30)
        cluster.assert_same(v)


def in_order(cluster, after, **options):
    """Resources r0, r1, r2 of one volume each, in sync; `after` says which resync waits for which."""
    a, b = (cluster.node(name, size=16 * MIB, volumes=3) for name in "ab")
    put_in_order(cluster, after, **options)
    for res in ("r0", "r1", "r2"):
        for n in (a, b):
            n.create_md(res)
            n.start(res)
        for n in (a, b):
            n.wait(conn="Connected", res=res)
        a.verb("new-current-uuid", "--clear-bitmap", res)
        b.wait(disk="UpToDate", peer_disk="UpToDate", res=res)
    return a, b


def put_in_order(cluster, after, rate=4):
    for i, res in enumerate(("r0", "r1", "r2")):
        disk = f"c-plan-ahead 0; resync-rate {rate}M;" + (f" resync-after {after[res]};" if res in after else "")
        text = C.config_text(cluster.nodes, name=res, port=7788 + i, minor=i, disk=disk, fast=False, net=C.FAST_NET)
        for n in cluster.nodes:
            n.put_res(res, text.replace("/disk0;", f"/disk{i};"))


def test_resources_wait_for_each_other(cluster):
    a, b = in_order(cluster, {"r1": "r0", "r2": "r1/0"})
    b.verb("invalidate", "r2")
    b.wait(res="r2", repl="SyncTarget")
    b.verb("invalidate", "r0")
    b.verb("invalidate", "r1")
    # The last one waits for the first one, too: who comes before it is paused.
    for res in ("r1", "r2"):
        b.wait(res=res, repl="PausedSyncT")
        a.wait(res=res, repl="PausedSyncS")
    paused = b.status("r2")["connections"][0]["peer_devices"][0]["resync-suspended"]
    assert "dependency" in paused, paused
    b.wait(res="r0", repl="Established", timeout=30)
    b.wait(res="r1", repl="SyncTarget")
    assert b.state(res="r2")["repl"] == "PausedSyncT"
    for res in ("r1", "r2"):
        b.wait(res=res, repl="Established", disk="UpToDate", timeout=30)


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_who_does_not_answer_holds_nobody_up(cluster, how):
    a, b = in_order(cluster, {"r1": "r0"}, rate=1)
    for res in ("r0", "r1"):
        b.verb("invalidate", res)
    b.wait(res="r1", repl="PausedSyncT")
    assert not b.verb("adjust", "--tentative", "r1").out, "nothing is to be changed"
    for n in (a, b):
        n.kill("r0") if how == "killed" else n.processes["r0"].send_signal(signal.SIGSTOP)
    b.wait(res="r1", repl="SyncTarget", timeout=30)
    for n in (a, b):
        n.start("r0") if how == "killed" else n.processes["r0"].send_signal(signal.SIGCONT)
    b.wait(res="r0", repl="SyncTarget", timeout=30)
    b.wait(res="r1", repl="PausedSyncT")
    # An order that is not wanted any more ends at once.
    put_in_order(cluster, {}, rate=1)
    for n in (a, b):
        n.verb("adjust", "r1")
        assert not n.verb("adjust", "--tentative", "r1").out
    b.wait(res="r1", repl="SyncTarget")


def test_resyncs_do_not_wait_in_circles(cluster):
    a, b = in_order(cluster, {"r1": "r0"})
    # By an option, and in the file.
    r = a.call("disk-options", "--resync-after=r1/0", "r0")
    assert r.rc == 10 and "makes a circle" in r.err, r
    put_in_order(cluster, {"r0": "r2", "r1": "r0", "r2": "r1"})
    for verb in ("dump", "adjust", "up"):
        r = a.call(verb, "r1")
        assert r.rc == 10 and "which waits for" in r.err and "take one" in r.err, r
    # What runs goes on as it was.
    assert a.state(res="r1")["conn"] == "Connected"


# ---- online verify --------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["primary", "secondary"])
def test_verify_marks_what_differs_and_a_reconnect_repairs_it(pair, on):
    a, b = pair.nodes
    pair.up(net="verify-alg crc32c;")
    fill(a, 4)
    at = [MIB, 2 * MIB + 4096, 3 * MIB + 8192]
    corrupt(b, *at)
    n = a if on == "primary" else b
    verify(n)
    for x in (a, b):
        x.wait(repl="Established", disk="UpToDate", oos=12)
    # Nothing is written in between.
    reconnect(a, b)
    pair.wait_synced()
    for x in (a, b):
        x.wait(oos=0)
    pair.assert_same()


def test_verify_of_secondaries_is_repaired_too(pair):
    a, b = pair.nodes
    pair.up(net="verify-alg md5;")
    fill(a, 2)
    a.verb("secondary", "r0")
    corrupt(b, MIB)
    a.verb("verify", "r0")
    for x in (a, b):
        x.wait(repl="Established", oos=4)
    reconnect(a, b)
    for x in (a, b):
        x.wait(repl="Established", oos=0, disk="UpToDate", peer_disk="UpToDate")
    pair.assert_same()


@pytest.mark.parametrize("primary", [True, False])
def test_verify_repair(pair, primary):
    a, b = pair.nodes
    pair.up(net="verify-alg sha1;")
    fill(a, 2)
    corrupt(b, 0, MIB)
    if not primary:
        a.verb("secondary", "r0")
    verify(a, "--repair")
    for x in (a, b):
        x.wait(repl="Established", oos=0, disk="UpToDate", peer_disk="UpToDate")
    pair.assert_same()


def test_verify_from_to(pair):
    a, b = pair.nodes
    pair.up(net="verify-alg crc32c;")
    fill(a, 4)
    corrupt(b, 0, MIB, 3 * MIB)
    verify(a, "--start", "2000s", "--stop", "4000s")
    for x in (a, b):
        x.wait(repl="Established", oos=4)


def test_verify_under_load_finds_nothing(pair):
    from test_two_nodes import Load
    a, b = pair.nodes
    pair.up(net="verify-alg crc32c;")
    load = Load(a, seconds=4, depth=16)
    for _ in range(3):
        a.verb("verify", "r0")
        a.wait(repl="Established", timeout=60)
    load.end(0)
    assert all(" 0 KiB differ" in line for line in decisions(a, "verify-done")), decisions(a, "verify-done")
    pair.assert_same()


def test_verify_needs_the_same_algorithm(pair):
    a, b = pair.nodes
    pair.up()
    r = a.call("verify", "r0")
    assert r.rc == 11 and "-14" in r.err and "verify-alg" in r.err


# ---- congestion -----------------------------------------------------------------------------


def test_pull_ahead_on_congestion(pair):
    a, b = pair.nodes
    pair.up(protocol="A", net="on-congestion pull-ahead; congestion-fill 1M; sndbuf-size 512K;")
    with thin_link(a):
        fill(a, 12)
        assert decisions(a, "pull-ahead")
    pair.wait_synced(timeout=60)
    pair.assert_same()


def test_bursts_over_a_thin_link(pair):
    """The source changes between SyncSource and Ahead: each resync is broken off by the next burst."""
    from test_two_nodes import Load
    a, b = pair.nodes
    pair.up(protocol="A", net="on-congestion pull-ahead; congestion-fill 10K; csums-alg crc32c; sndbuf-size 64K;")
    with thin_link(a):
        for _ in range(5):
            Load(a, seconds=0.5, depth=16).end(0)
            time.sleep(1.3)  # the source leaves Ahead a second after the peer has caught up
    assert len(decisions(a, "pull-ahead")) > 1
    pair.wait_synced(timeout=60)
    for n in (a, b):
        n.wait(oos=0)
    pair.assert_same()


def test_disconnect_on_congestion(pair):
    a, b = pair.nodes
    pair.up(protocol="A", net="on-congestion disconnect; congestion-fill 1M; sndbuf-size 512K;")
    with thin_link(a):
        fill(a, 6)
        a.wait(conn="StandAlone")
    a.verb("connect", "r0")
    pair.wait_synced(timeout=60)
    pair.assert_same()


# ---- the kernel as the other side -------------------------------------------------------------


@pytest.mark.parametrize("target", "uk")
def test_checksums_with_the_kernel(mixed, target):
    u, k = mixed.nodes
    source, target = (k, u) if target == "u" else (u, k)
    mixed.up(primary=source, net="csums-alg md5;")
    fill(source, 8)
    corrupt(target, 3 * MIB)
    received = sync_again(target, source)
    assert received <= 2 * 1024, f"{received} KiB for one block that differs"
    mixed.assert_same()


@pytest.mark.parametrize("on", "uk")
def test_verify_with_the_kernel(mixed, on):
    u, k = mixed.nodes
    mixed.up(primary=u, net="verify-alg md5;")
    u.write(0, os.urandom(2 * MIB))
    corrupt(k, MIB, MIB + 65536)
    (u if on == "u" else k).verb("verify", "r0")
    for n in mixed.nodes:
        n.wait(repl="Established", oos=8, timeout=60)
    reconnect(u, k)
    mixed.wait_synced()
    for n in mixed.nodes:
        n.wait(oos=0)
    mixed.assert_same()


@pytest.mark.parametrize("on", "uk")
def test_outdate_during_a_verify(mixed, on):
    """It leaves the disk UpToDate, and the verify goes on; a kernel calls that a success, urbd refuses it (row 70)."""
    u, k = mixed.nodes
    mixed.up(primary=u, net="verify-alg crc32c;")
    mixed.configure(fast=False, net=C.FAST_NET + "verify-alg crc32c;", disk="c-plan-ahead 0; resync-rate 400K;")
    for n in (u, k):
        n.verb("adjust", "r0")
    u.verb("verify", "r0")
    n, other = (u, k) if on == "u" else (k, u)
    n.wait(repl="~Verify.")
    other.wait(repl="~Verify.")
    result = n.call("outdate", "r0")
    assert (result.rc == 11 and "-6" in result.err) if n is u else result.rc == 0, result
    for x in (u, k):
        assert x.state()["disk"] == "UpToDate" and x.state()["repl"].startswith("Verify")


@pytest.mark.parametrize("primary", "uk")
def test_verify_repair_with_the_kernel(mixed, primary):
    u, k = mixed.nodes
    p = u if primary == "u" else k
    mixed.up(primary=p, net="verify-alg md5;")
    p.write(0, os.urandom(2 * MIB))
    corrupt(k if p is u else u, MIB)
    verify(u, "--repair", timeout=60)
    for n in mixed.nodes:
        n.wait(repl="Established", oos=0, disk="UpToDate", peer_disk="UpToDate", timeout=60)
    mixed.assert_same()


def test_verify_repair_of_secondaries_with_the_kernel(mixed):
    u, k = mixed.nodes
    mixed.up(primary=u, net="verify-alg md5;")
    u.write(0, os.urandom(2 * MIB))
    u.verb("secondary", "r0")
    corrupt(k, MIB)
    verify(u, "--repair", timeout=60)
    for n in mixed.nodes:
        n.wait(repl="Established", oos=0, disk="UpToDate", peer_disk="UpToDate", timeout=60)
    mixed.assert_same()


@pytest.mark.parametrize("target", "uk")
def test_the_tuning_that_linbit_recommends_with_the_kernel(mixed, target):
    u, k = mixed.nodes
    source, target = (k, u) if target == "u" else (u, k)
    mixed.up(primary=source, fast=False, **LINBIT)
    assert all(min(x) >= 10 * MIB for x in socket_buffers(u))
    fill(source, 16)
    sync_again(target, source)
    mixed.assert_same()


def test_the_kernels_rates_do_not_count(mixed):
    u, k = mixed.nodes
    mixed.up(primary=k, fast=False, disk="c-plan-ahead 0; resync-rate 4M;")
    fill(k, 16)
    # The kernel announces its new rate with P_SYNC_PARAM; the target goes by its own.
    k.guest.sh("drbdsetup disk-options 0 --c-plan-ahead=0 --resync-rate=400M")
    u.verb("invalidate", "r0")
    u.wait(repl="SyncTarget")
    start, before = time.monotonic(), u.state()["oos"]
    time.sleep(1.5)
    # No lower bound: a busy machine is slower than it was told to be, never a hundred times faster.
    assert (before - u.state()["oos"]) / 1024 / (time.monotonic() - start) < 6
    u.verb("disk-options", "r0", "--resync-rate=400M")
    mixed.wait_synced()


def test_pull_ahead_with_the_kernel(mixed):
    u, k = mixed.nodes
    mixed.up(primary=u, protocol="A", net="on-congestion pull-ahead; congestion-fill 512K; sndbuf-size 256K;")
    with thin_link(u):
        fill(u, 10)
    assert decisions(u, "pull-ahead")
    mixed.wait_synced(timeout=60)
    mixed.assert_same()
    assert re.search(r"conn\( Connected -> Behind \)", k.dmesg())
