"""A verb that answers "refused" has left things as they were, and one that answers 0 has done what it says, in situations in
which some are refused; both dialects."""

import time

import pytest

from cluster import eventually
from test_frozen_verbs import pair_of

FENCING = {"net": "fencing resource-and-stonith;", "handlers": 'fence-peer "exit 1";'}


def generation(node):
    return node.call("get-gi", "r0/0").out.split(":")[0]


def is_secondary(node, _):
    return node.state()["role"] == "Secondary"


def is_diskless(node, _):
    return node.state()["disk"] == "Diskless"


def is_alone(node, _):
    return node.state()["conn"] == "StandAlone"


def is_outdated(node, _):
    return node.state()["disk"] == "Outdated"


def is_primary(node, _):
    return node.state()["role"] == "Primary"


def has_begun_another(node, before):
    return generation(node) != before["generation"]


def is_copied(node, before):
    return node.state()["disk"] == "Inconsistent" or node.log().count("resync as target begins") > before["resyncs"]


VERBS = {("primary", "--force"): is_primary, ("secondary", "--force"): is_secondary, ("detach", "--force"): is_diskless,
         ("disconnect", "--force"): is_alone, ("outdate",): is_outdated, ("new-current-uuid",): has_begun_another,
         ("invalidate",): is_copied}


def cut(a, b):
    """A Primary whose peer was lost, and whose I/O is frozen."""
    b.kill()
    a.wait(suspended=True)


def outdated(a, b):
    """Both, Secondary and apart; then they meet."""
    a.urbd("secondary", "r0")
    b.wait(peer_role="Secondary")
    a.urbd("disconnect", "r0")
    for n in (a, b):
        n.wait(conn="~StandAlone|Connecting|Unconnected|WFConnection")
        n.urbd("outdate", "r0")
    a.urbd("connect", "r0")
    a.wait(conn="Connected")


def diskless(a, b):
    """A Primary that uses its peer's disk."""
    a.urbd("detach", "r0/0")
    b.wait(peer_disk="Diskless")


SITUATIONS = {f.__name__: f for f in (cut, outdated, diskless)}


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("dialect", ["8.4", "9"])
def test_the_answer_is_what_has_happened(cluster, dialect, situation, verb):
    a, b = pair_of(cluster, dialect, **FENCING)
    SITUATIONS[situation](a, b)
    before = {"generation": generation(a), "resyncs": a.log().count("resync as target begins")}
    reached = VERBS[verb]
    was = reached(a, before)
    r = a.call(*verb, "r0", timeout=30)
    if r.rc == 0:
        eventually("it is done", lambda: reached(a, before), 10)
    else:
        assert r.err.strip(), r
        time.sleep(0.3)
        assert was or not reached(a, before), f"{r}\n{a.log()[-1500:]}"
