"""Many resources on one host: they are started and stopped side by side, and cost nothing while nobody uses them."""

import json
import os
import time

from cluster import MIB, eventually

MANY = 60


def many(cluster, count=MANY):
    """Nodes with so many resources of 2 MiB each."""
    nodes = [cluster.node(name, size=MIB) for name in ("a", "b")]
    for n in nodes:
        for i in range(count):
            with open(disk(n, i), "wb") as f:
                f.truncate(2 * MIB)
            hosts = "".join(f"on {x.name} {{ address ipv4 {x.ip}:{8000 + i}; device minor {i}; disk {disk(x, i)}; "
                            "meta-disk internal; }" for x in nodes)
            # Nothing that ticks by configuration.
            n.put_res(f"m{i:03}", f"resource m{i:03} {{ net {{ ping-int 120; }} {hosts} }}\n")
    return nodes


def disk(node, i):
    return os.path.join(node.dir, f"m{i:03}.disk")


def running(node):
    return [name for name in os.listdir(node.run_dir) if name.endswith(".sock")]


def statuses(node):
    """Of all that runs."""
    return json.loads(node.urbd("status", "--json").out)


def cost(pids):
    """Clock ticks that the processes used, and how often they were woken."""
    ticks = wakes = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as f:
            ticks += sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13]))
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/status") as f:
                wakes += int(dict(x.split(":", 1) for x in f)["voluntary_ctxt_switches"])
    return ticks, wakes


def test_many_are_started_side_by_side_and_sleep(cluster):
    a, b = many(cluster)
    for n in (a, b):
        n.urbd("create-md", "--force", "all", timeout=120)
        n.urbd("up", "all", timeout=120)
        assert len(running(n)) == MANY
    eventually("all are connected", lambda: all(c["connection-state"] == "Connected" for s in statuses(a)
                                                for c in s["connections"]), 60)
    pids = [n.serving(f"m{i:03}") for n in (a, b) for i in range(MANY)]
    # Another test that lists the machine's loop devices wakes each process once for its own: one quiet time in many is
    # wanted. At first metadata waits a moment, and memory is given back.
    for _ in range(30):
        time.sleep(2)
        before = cost(pids)
        time.sleep(3)
        ticks, wakes = (now - then for now, then in zip(cost(pids), before))
        if ticks <= MANY / 4 and wakes <= MANY:
            break
    assert ticks <= MANY / 4 and wakes <= MANY, f"{ticks} ticks, {wakes} wake-ups in 3 s of {len(pids)} processes"
    r = a.call("up", "all", timeout=120)
    assert r.rc == 1 and r.err.count("runs already") == MANY
    for n in (a, b):
        n.urbd("down", "all", timeout=120)
        assert not n.pids() and not running(n)


def test_what_goes_wrong_is_told_in_the_order_of_the_configuration(cluster):
    a, b = many(cluster, 12)
    a.urbd("create-md", "--force", "all", timeout=120)
    for i in (1, 4, 5, 10):
        with open(disk(a, i), "r+b") as f:  # no metadata any more
            f.truncate(0)
            f.truncate(2 * MIB)
    r = a.call("up", "all", timeout=120)
    told = [line.split("m0")[1][:2] for line in r.err.splitlines() if line.startswith("urbd: ") and "hint" not in line]
    assert r.rc == 1 and told == ["01", "04", "05", "10"], r
    assert len(running(a)) == 8, "the others run"
    a.urbd("down", "all", timeout=120)
    assert not a.pids()
