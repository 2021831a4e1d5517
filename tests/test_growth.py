"""A device grows while it is used, as `docs/compatibility.md` describes it: on one node after the other the backing device
is detached, made larger, `check-resize` moves the metadata, and it is attached again."""

import os

import pytest

from cluster import MIB, eventually

GROWTH = [4096, 8 * 4096 + 512, MIB, 100 * MIB]


class ManySlots:
    """Metadata that could hold the bitmaps of seven peers."""

    def __init__(self, node):
        self.node = node

    def __call__(self, res="r0"):
        self.node.verb("create-md", "--force", "--format=v09", "--max-peers=7", res)


def room(node, by, moves=True):
    """The detached disk becomes larger or smaller; its metadata moves with its end."""
    with open(node.disk_file(), "r+b") as f:
        f.truncate(os.fstat(f.fileno()).st_size + by)
    if moves:
        node.verb("check-resize", "r0")


def grow(node, by):
    node.verb("detach", "r0")
    node.wait(disk="Diskless")
    room(node, by)
    node.verb("attach", "r0")
    node.wait(conn="Connected", disk="UpToDate", peer_disk="UpToDate", repl="Established", timeout=60)


@pytest.mark.parametrize("meta", ["internal", "external", "internal v09"])
@pytest.mark.parametrize("by", GROWTH)
@pytest.mark.parametrize("primary_first", [True, False])
def test_growing_online(pair, meta, by, primary_first):
    a, b = pair.nodes
    if meta == "external":
        files = {n.name: os.path.join(n.dir, "md") for n in (a, b)}
        for path in files.values():
            with open(path, "wb") as f:
                f.truncate(8 * MIB)
        pair.up(meta=files)
    elif meta == "internal v09":
        for n in (a, b):
            n.create_md = ManySlots(n)
        pair.up()
    else:
        pair.up()
    before = a.data_size()
    content = os.urandom(MIB)
    a.write(0, content)
    for n in (a, b) if primary_first else (b, a):
        grow(n, by)
        a.write(MIB, content)
    for n in (a, b):
        assert "[protocol-error]" not in n.log() and "link-lost" not in n.log(), n.log()
    after = a.data_size()
    assert after > before or by <= 4096
    a.write(after - 4096, content[:4096])
    a.write(before - 4096, content[:8192] if after - before >= 4096 else content[:4096])
    a.flush()
    assert a.read(0, MIB) == content
    pair.assert_same()


def test_who_has_no_room_is_connected_when_it_has(pair):
    """B comes back with a smaller disk. That is what it has, not how anything is configured, and passes without a word of
    the administrator's about the connection."""
    a, b = pair.nodes
    pair.up()
    content = os.urandom(4096)
    a.write(a.data_size() - 4096, content)
    b.verb("down", "r0")
    room(b, -MIB, moves=False)
    b.create_md()
    b.verb("up", "r0")
    eventually("a refuses it", lambda: "[peer-disk-too-small]" in a.log(), 30)
    a.wait(conn="Connecting")
    b.verb("detach", "r0")
    b.wait(disk="Diskless")
    room(b, MIB)
    b.verb("attach", "r0")
    for n in (a, b):
        n.wait(conn="Connected", disk="UpToDate", peer_disk="UpToDate", repl="Established", timeout=60)
    assert a.read(a.data_size() - 4096, 4096) == content
    pair.assert_same()


@pytest.mark.parametrize("name", ["r0", "r0/0"])
def test_an_attach_notes_where_the_metadata_are(cluster, name):
    """What was noted of a disk is lost, or never was: from its next attach on it is there."""
    a = cluster.node("alpha", size=16 * MIB)
    cluster.node("bravo", size=16 * MIB)
    cluster.up()
    noted = a.run_dir + ".known/drbd-minor-0.lkbd"
    with open(noted) as f:
        before = f.read()
    assert str(16 * MIB) in before, before
    os.remove(noted)
    a.urbd("detach", "r0")
    assert not os.path.exists(noted)
    a.urbd("attach", name)
    with open(noted) as f:
        assert f.read() == before
    cluster.wait_synced()
    a.urbd("down", "r0")
    os.truncate(a.disk_file(), 24 * MIB)
    a.urbd("check-resize", "r0/0")
    a.urbd("up", "r0")
    cluster.wait_synced()
