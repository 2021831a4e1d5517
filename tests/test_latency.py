"""Where a request's time goes, as `status --json` and `metrics` tell it: each request is counted in each stage, and what is
slow shows in its own stage. Stages are compared with each other, never with a clock."""

import re

import pytest

from cluster import MIB
from faulty_disk import FaultyDisk

BLOCK = 64 << 10
WRITES = 24
RATE = 2_000_000  # bits a second; the filter lets two seconds of it pass at once, the rest is slow on any machine


@pytest.fixture
def pair(cluster):
    for name in "ab":
        cluster.node(name, size=16 * MIB)
    return cluster


def stages(node):
    """{request: {stage: {"count": .., "sum-us": ..}}} of volume 0."""
    return node.status()["devices"][0]["urbd-latency"]


def spent(node, request, since):
    """Microseconds in each stage of that kind of request since then, all requests together."""
    old = since.get(request, {})
    return {stage: x["sum-us"] - old.get(stage, {"sum-us": 0})["sum-us"] for stage, x in stages(node)[request].items()}


def write(node, n=WRITES):
    with node.nbd() as disk:
        for i in range(n):
            disk.write(i * BLOCK, bytes([i + 1]) * BLOCK)


def test_every_request_is_counted_in_every_stage(pair):
    a, b = pair.nodes
    pair.up()
    write(a)
    with a.nbd() as disk:
        for i in range(7):
            disk.read(i * BLOCK, BLOCK)
        disk.flush()
    here, there = stages(a), stages(b)
    counts = {stage: x["count"] for stage, x in here["write"].items()}
    assert counts == dict.fromkeys(["queue", "activity-log", "disk", "send", "peer", "total"], WRITES)
    assert here["read"]["disk"]["count"] == here["read"]["total"]["count"] == 7 and here["read"]["peer"]["count"] == 0
    assert here["flush"]["total"]["count"] >= 1
    assert [there["peer-write"][s]["count"] for s in ("queue", "disk", "total")] == [WRITES] * 3
    assert there["write"]["total"]["count"] == here["peer-write"]["total"]["count"] == 0
    for x in (x for kind in here.values() for x in kind.values()):
        assert x["p50-us"] <= x["p99-us"] <= x["max-us"] and (x["count"] > 0) == (x["max-us"] > 0)
    total = here["write"]["total"]
    slower = max(here["write"][s]["sum-us"] for s in ("disk", "peer"))
    # Thousandths are counted: a sum of such numbers is not exact.
    assert total["sum-us"] >= slower + here["write"]["activity-log"]["sum-us"] - 0.0005


def test_reads_without_a_disk_wait_for_the_peer(pair):
    a, b = pair.nodes
    pair.up()
    write(a, 4)
    a.verb("detach", "r0")
    with a.nbd() as disk:
        assert disk.read(0, BLOCK) == bytes([1]) * BLOCK
    read = stages(a)["read"]
    assert read["peer"]["count"] == read["total"]["count"] == 1 and read["disk"]["count"] == 0


def test_a_slow_disk_shows_in_the_disk_stage(pair):
    a, b = pair.nodes
    own, peers = FaultyDisk(a), FaultyDisk(b)
    pair.up()
    before = stages(a)
    own.slow(RATE)
    write(a)
    slow_here = spent(a, "write", before)
    own.slow(0)
    assert slow_here["disk"] > 3 * slow_here["peer"] and slow_here["total"] < 2 * slow_here["disk"], slow_here
    before, before_there = stages(a), stages(b)
    peers.slow(RATE)
    write(a)
    slow_there, there = spent(a, "write", before), spent(b, "peer-write", before_there)
    peers.slow(0)
    assert slow_there["peer"] > 3 * slow_there["disk"], slow_there
    assert there["disk"] > there["queue"] and there["disk"] > slow_there["peer"] / 2, (there, slow_there)


def test_a_slow_link_shows_in_the_peer_stage(pair):
    a, b = pair.nodes
    pair.up()
    before, before_there = stages(a), stages(b)
    a.run(["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", "32mbit", "burst", "32k", "latency", "50ms"],
          check=True)
    write(a)
    slow, there = spent(a, "write", before), spent(b, "peer-write", before_there)
    a.run(["tc", "qdisc", "del", "dev", "eth0", "root"], check=True)
    assert slow["peer"] > 3 * slow["disk"] and slow["peer"] > 3 * there["total"], (slow, there)
    assert slow["send"] <= slow["peer"] <= slow["total"], slow


def test_metrics_are_histograms_in_seconds(pair):
    a, b = pair.nodes
    pair.up()
    write(a)
    text = a.verb("metrics", "r0").out
    assert text.count("# TYPE urbd_request_duration_seconds histogram") == 1
    for request, of_kind in stages(a).items():
        for stage, x in of_kind.items():
            labels = f'resource="r0",volume="0",request="{request}",stage="{stage}"'
            found = re.findall(rf'urbd_request_duration_seconds_bucket\{{{labels},le="([^"]+)"\}} (\d+)', text)
            counts = [int(n) for _, n in found]
            assert len(found) > 10 and counts == sorted(counts) and found[-1] == ("+Inf", str(x["count"]))
            assert [float(le) for le, _ in found] == sorted(float(le) for le, _ in found)
            assert f"urbd_request_duration_seconds_count{{{labels}}} {x['count']}\n" in text
            total = float(re.search(rf"urbd_request_duration_seconds_sum\{{{labels}\}} (\S+)", text)[1])
            assert total == pytest.approx(x["sum-us"] / 1e6)
