"""The form of the file decides on the dialect that is offered, and on the metadata that `create-md` makes; metadata of format v08
and a peer that offers less have 8.4's dialect spoken all the same."""

import os

import pytest

from cluster import FAST_DISK, FAST_NET, MIB, PORT, Failed, eventually
from test_handover import Application
from test_three_nine import all_together
from test_three_nodes import towards

SIZE = 16 * MIB
OLD = "urbd { protocol-version-max 101; }"


def pair(cluster):
    return [cluster.node(name, size=SIZE) for name in "ab"]


def version(node):
    """What it speaks with its peers."""
    found = {c["protocol-version"] for c in node.status()["connections"]}
    assert len(found) == 1, found
    return found.pop()


def speak(nodes, newest):
    for n in nodes:
        n.wait(conn="Connected", repl="Established", disk="UpToDate", peer_disk="UpToDate")
        assert version(n) == newest, n.log()[-1000:]


def formats(*nodes):
    return [n.urbd("dump-md", "--force", "r0").out.split('version "')[1].split('"')[0] for n in nodes]


def replicate(cluster, a, b):
    """What is written arrives, also what was written while the other one was cut off."""
    a.write(MIB, os.urandom(MIB))
    b.cut()
    a.wait(conn="Connecting")
    a.write(3 * MIB, os.urandom(65536))
    b.heal()
    for n in (a, b):
        n.wait(conn="Connected", repl="Established", disk="UpToDate", peer_disk="UpToDate")
    assert a.md5() == b.md5()
    assert all(n.log().count("[split-brain]") == 0 for n in (a, b))


def ids(*nodes):
    """As they run."""
    return {n.name: n.status()["node-id"] for n in nodes}


@pytest.mark.parametrize("extra", ["", "connection { host a; host b; }", "connection-mesh { hosts a b; }"])
def test_two_nodes_with_node_ids_speak_9(cluster, extra):
    a, b = pair(cluster)
    cluster.up(ids=True, extra=extra)
    speak((a, b), 124)
    assert formats(a, b) == ["v09", "v09"]
    replicate(cluster, a, b)


def test_two_nodes_without_node_ids_speak_84(cluster):
    a, b = pair(cluster)
    cluster.up()
    speak((a, b), 101)
    assert formats(a, b) == ["v08", "v08"]
    replicate(cluster, a, b)


def test_metadata_v09_do_for_both(cluster):
    """With a file of the old form 8.4's dialect is spoken, whatever the metadata are."""
    a, b = pair(cluster)
    cluster.configure()
    for n in (a, b):
        n.urbd("create-md", "--force", "--format=v09", "r0")
        n.start()
    a.urbd("primary", "--force", "r0")
    speak((a, b), 101)
    replicate(cluster, a, b)
    # They are not made v08 by a `create-md` that is not asked for that.
    b.urbd("down", "r0")
    refused = b.call("create-md", "--force", "r0")
    assert refused.rc == 10 and "has v09 metadata, and the configuration means v08" in refused.err, refused
    assert formats(b) == ["v09"]


def test_a_node_that_is_pinned_has_the_old_one_spoken(cluster):
    a, b = pair(cluster)
    cluster.configure(ids=True)
    with open(os.path.join(b.dir, "res.d", "r0.res")) as f:
        text = f.read()
    b.put_res("r0", text.replace("{\n", f"{{\n  {OLD}\n", 1))
    for n in (a, b):
        n.create_md()
        n.start()
    a.urbd("primary", "--force", "r0")
    speak((a, b), 101)
    assert formats(a, b) == ["v09", "v08"]
    replicate(cluster, a, b)
    # What it has does not permit more.
    b.put_res("r0", text)
    for _ in range(2):
        b.urbd("adjust", "r0")
        speak((a, b), 101)
    # Another one has, here to be copied to.
    b.urbd("down", "r0")
    b.urbd("create-md", "--force", "--format=v09", "r0")
    b.urbd("up", "r0")
    speak((a, b), 124)
    assert "DRBD 9's dialect, 8.4's before" in a.log() and formats(b) == ["v09"]
    replicate(cluster, a, b)


@pytest.mark.parametrize("of_v08", ["ab", "a", "b"])
def test_metadata_v08_go_on_with_a_file_of_the_new_form(cluster, of_v08):
    """One of them, or both; nothing is made anew without being asked to."""
    a, b = pair(cluster)
    cluster.configure(ids=True)
    for n in (a, b):
        n.urbd("create-md", "--force", "--format=v08" if n.name in of_v08 else "--format=v09", "r0")
        n.start()
    a.urbd("primary", "--force", "r0")
    speak((a, b), 101)
    replicate(cluster, a, b)
    old = [n for n in (a, b) if n.name in of_v08]
    for n in (a, b):
        why = "this node has metadata of format v08" if n in old else "the peer offers no more"
        assert f"agreed on protocol version 101 ({why})" in n.log()
        # As after a loss of power, and as the next process.
        n.kill()
        n.start()
        if n is a:
            a.urbd("primary", "r0")
    speak((a, b), 101)
    assert all("old-metadata" not in n.log() for n in (a, b))
    a.urbd("secondary", "r0")
    for n in (a, b):
        n.urbd("down", "r0")
        refused = n.call("create-md", "--force", "r0")
        if n in old:
            assert refused.rc == 10 and "has v08 metadata, and the configuration means v09" in refused.err, refused
            assert formats(n) == ["v08"]
            n.urbd("create-md", "--force", "--format=v09", "r0")
    if len(old) == 2:
        copied = b.log().count("resync done")
        for n in (a, b):
            n.urbd("up", "r0")
        speak((a, b), 124)
        assert b.log().count("resync done") == copied
        cluster.assert_same()


def test_three_hosts_speak_9(cluster):
    nodes = a, b, c = [cluster.node(name, size=SIZE) for name in "abc"]
    cluster.configure(ids=True, extra="connection-mesh { hosts a b c; }")
    for n in nodes:
        n.create_md()
        n.start()
    for n in nodes:
        eventually("connected", lambda: {x["connection-state"] for x in n.status()["connections"]} == {"Connected"}, 30)
    a.urbd("primary", "--force", "r0")
    all_together(*nodes)
    assert {version(n) for n in nodes} == {124}
    a.write(0, os.urandom(MIB))
    c.kill()
    a.write(2 * MIB, os.urandom(MIB))
    c.start()
    all_together(*nodes)
    cluster.assert_same()


def test_a_host_without_disk(cluster):
    """Of two."""
    a, b = pair(cluster)
    text = cluster.configure(ids=True).replace(f"disk {b.disk_path()};", "disk none;")
    text = "".join(line.split("meta-disk")[0] + "}\n" if "disk none" in line else line for line in text.splitlines(True))
    for n in (a, b):
        n.put_res("r0", text)
    a.create_md()
    a.start()
    a.urbd("primary", "--force", "r0")
    a.write(0, b"x" * 4096)
    a.urbd("secondary", "r0")
    b.start()
    b.wait(conn="Connected", peer_disk="UpToDate", disk="Diskless")
    assert version(b) == 124
    b.urbd("primary", "r0")
    assert b.read(0, 4096) == b"x" * 4096


@pytest.mark.parametrize("metadata", ["v08", "v09"])
def test_a_file_gets_node_ids_in_use(cluster, metadata):
    """And loses them again. A pair of v08 goes on as it is, without a new connection."""
    nodes = a, b = pair(cluster)
    cluster.configure()
    for n in nodes:
        n.urbd("create-md", "--force", f"--format={metadata}", "r0")
        n.start()
    a.urbd("primary", "--force", "r0")
    speak(nodes, 101)
    app = Application(a.device(), 0)
    known = ids(*nodes)
    agreed = a.log().count("agreed on")
    for wanted, order in ((known, (b, a)), (False, (b, a)), (known, (a, b)), (False, (a, b))):
        newest = 124 if wanted and metadata == "v09" else 101
        cluster.configure(ids=wanted)
        was = [n.serving() for n in nodes]
        for n in order:
            for _ in range(2):
                n.urbd("adjust", "r0")
            assert n.urbd("-d", "adjust", "r0").out == ""
        speak(nodes, newest)
        app.goes_on()
        assert [n.serving() for n in nodes] == was
        # 8.4's dialect before: opening was refused, and nobody has written that it should not be any more.
        said = [m["next"] for m in a.status()["urbd-matters"] if m["code"] == "opening-promotes"]
        assert len(said) == (newest == 124) and all("options { auto-promote no; }" in text for text in said)
        assert ("opens the device" in " ".join(a.urbd("status", "r0").out.split())) == (newest == 124)
    app.end()
    assert (a.log().count("agreed on") > agreed) == (metadata == "v09")
    a.urbd("secondary", "r0")
    cluster.assert_same()


@pytest.mark.parametrize("how", ["gone", "frozen"])
def test_a_file_gets_node_ids_while_the_peer_is_away(cluster, how):
    """The next connection is made in the other dialect, and brings what was written meanwhile."""
    nodes = a, b = pair(cluster)
    cluster.configure()
    for n in nodes:
        n.urbd("create-md", "--force", "--format=v09", "r0")
        n.start()
    a.urbd("primary", "--force", "r0")
    speak(nodes, 101)
    cluster.configure(ids=ids(*nodes))
    if how == "gone":
        b.kill()
        a.wait(conn="Connecting")
        a.urbd("adjust", "r0")
        a.write(0, os.urandom(MIB))
        b.start()
    else:
        b.freeze()
        a.urbd("net-options", "--timeout=20", "--ping-int=2", "r0")
        a.urbd("adjust", "r0")
        a.write(0, os.urandom(MIB))
        b.thaw()
        b.urbd("adjust", "r0")
    speak(nodes, 124)
    cluster.assert_same()


def opened(node):
    """Does who wants to write get the device?"""
    try:
        os.close(os.open(node.device(), os.O_WRONLY))
        return True
    except OSError:
        return False


def test_who_is_parted_from_a_peer_of_the_old_dialect_is_not_promoted_by_opening(cluster):
    """That one may be Primary, and promotes by command."""
    nodes = a, b = pair(cluster)
    cluster.configure(ids=True, options="auto-promote-timeout 5;")
    for n, form in ((a, "v09"), (b, "v08")):
        n.urbd("create-md", "--force", f"--format={form}", "r0")
        n.start()
    b.urbd("primary", "--force", "r0")
    speak(nodes, 101)
    assert not opened(a)
    b.cut()
    a.wait(conn="Connecting")
    assert not opened(a) and a.state()["role"] == "Secondary"
    b.write(0, os.urandom(65536))
    b.heal()
    speak(nodes, 101)
    b.urbd("secondary", "r0")
    assert not opened(a) and not opened(b)
    # Written, it is as written.
    a.urbd("resource-options", "--auto-promote=yes", "r0")
    assert opened(a)


def test_opening_promotes_as_soon_as_the_dialect_is_9s(cluster):
    """Who opens for writing makes its node Primary where that was refused; written, it is as written."""
    nodes = a, b = pair(cluster)
    cluster.configure(options="auto-promote-timeout 5;")
    for n in nodes:
        n.urbd("create-md", "--force", "--format=v09", "r0")
        n.start()
    a.urbd("primary", "--force", "r0")
    speak(nodes, 101)
    a.urbd("secondary", "r0")

    assert not opened(a)
    known = ids(*nodes)
    for options, promotes, said in (("", True, True), ("auto-promote no;", False, False), ("auto-promote yes;", True, False)):
        cluster.configure(ids=known, options=f"auto-promote-timeout 5; {options}")
        for n in nodes:
            n.urbd("adjust", "r0")
        speak(nodes, 124)
        eventually(f"opening with `{options}`", lambda: opened(a) == promotes, 20)
        assert [m["code"] for m in a.status()["urbd-matters"]].count("opening-promotes") == said
        eventually("closed", lambda: a.state()["role"] == "Secondary", 20)


def test_a_pair_made_by_setup_speaks_9(cluster):
    nodes = a, b = pair(cluster)
    words = [f"{n.name}={n.ip}:{PORT}:{n.disk_path()}" for n in nodes]
    written = os.path.join(cluster.dir, "written")
    a.urbd("setup", f"--output={written}", "r0", *words)
    with open(written) as f:
        text = f.read()
    assert "node-id 1" in text and "protocol-version-max" not in text
    for n in nodes:
        n.put_res("r0", text.replace("net {", f"net {{ {FAST_NET}", 1).replace("on a", f"disk {{ {FAST_DISK} }}\n  on a", 1))
        n.create_md()
        n.start()
    a.urbd("primary", "--force", "r0")
    speak(nodes, 124)
    assert towards(a, b)["conn"] == "Connected"


def test_a_disk_of_v08_beside_the_new_dialect(cluster):
    """It is not attached there, and the connection stays; what to do is said, and does."""
    nodes = a, b = pair(cluster)
    cluster.up(ids=True)
    speak(nodes, 124)
    b.urbd("detach", "r0")
    b.wait(disk="Diskless")
    b.urbd("create-md", "--force", "--format=v08", "r0")
    with pytest.raises(Failed) as refused:
        b.urbd("attach", "r0")
    assert "DRBD 9's dialect is spoken with a" in str(refused.value) and "convert it" in str(refused.value)
    b.wait(conn="Connected", disk="Diskless")
    a.write(0, os.urandom(MIB))
    b.urbd("disconnect", "r0")
    b.urbd("attach", "r0")
    b.urbd("connect", "r0")
    a.urbd("connect", "r0")
    speak(nodes, 101)
    cluster.assert_same()


@pytest.mark.parametrize("how", ["restart", "killed"])
def test_the_next_process_speaks_the_other_dialect(cluster, how):
    """As after an upgrade from a release that offered less: the Primary's goes on with what is in use."""
    nodes = a, b = pair(cluster)
    cluster.configure()
    for n in nodes:
        n.urbd("create-md", "--force", "--format=v09", "r0")
        n.start()
    a.urbd("primary", "--force", "r0")
    speak(nodes, 101)
    app = Application(a.device(), 0)
    known = ids(*nodes)
    for wanted, order in ((known, (b, a)), (False, (a, b)), (known, (a, b)), (False, (b, a))):
        cluster.configure(ids=wanted)
        for n in order:
            if how == "restart":
                n.urbd("restart", "r0")
            else:
                # What comes by itself after a crash is what it was told; who says `up` means the file.
                n.kill_process()
                n.urbd("up", "r0")
            for m in nodes:
                m.wait(conn="Connected", repl="Established", disk="UpToDate", peer_disk="UpToDate")
            app.goes_on()
        speak(nodes, 124 if wanted else 101)
    app.end()
    a.urbd("secondary", "r0")
    cluster.assert_same()
