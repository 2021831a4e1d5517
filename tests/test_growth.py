"""A device grows while it is used, as `docs/compatibility.md` describes it: on one node after the other the backing device
is detached, made larger, `check-resize` moves the metadata, and it is attached again."""

import os

import pytest

from cluster import MIB

GROWTH = [4096, 8 * 4096 + 512, MIB, 100 * MIB]


class ManySlots:
    """Metadata that could hold the bitmaps of seven peers."""

    def __init__(self, node):
        self.node = node

    def __call__(self, res="r0"):
        self.node.verb("create-md", "--force", "--format=v09", "--max-peers=7", res)


def grow(node, by):
    node.verb("detach", "r0")
    node.wait(disk="Diskless")
    with open(node.disk_file(), "r+b") as f:
        f.truncate(os.fstat(f.fileno()).st_size + by)
    node.verb("check-resize", "r0")
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
