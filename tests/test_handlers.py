"""At an event the process calls drbdadm, which looks up in the file what is to be done (docs/spec/config-and-cli.md 6)."""

import os
import re
import stat

import pytest

from cluster import MIB, eventually
from test_building import Host, connect
from test_events import following


def script(cluster, name, text):
    path = os.path.join(cluster.dir, name)
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


def printing(cluster, name="env"):
    """A script that prints its environment, with its words; and where to."""
    out = os.path.join(cluster.dir, f"{name}.out")
    return script(cluster, name, f'{{ echo "WORDS=$0 $*"; env; }} > {out}.new; mv {out}.new {out}\n'), out


def environment(out):
    eventually("the handler was called", lambda: os.path.exists(out), 20)
    with open(out) as f:
        found = dict(line.rstrip("\n").split("=", 1) for line in f if "=" in line)
    os.unlink(out)
    return found


def configure(cluster, dialect=9, urbd="", **options):
    cluster.configure(extra=f"urbd {{ {'protocol-version-max 124;' if dialect == 9 else ''} {urbd} }}", **options)


def pair(cluster, handlers="", dialect=9, **options):
    a, b = nodes = [cluster.node(name, size=8 * MIB) for name in ("alpha", "bravo")]
    configure(cluster, dialect, handlers=handlers, **options)
    for n in nodes:
        n.urbd("create-md", "--force", *(["--format=v09", "--max-peers=1"] if dialect == 9 else []), "r0")
        n.start()
    a.urbd("primary", "--force", "r0")
    cluster.wait_synced()
    return a, b


def cut(a, b):
    b.kill()
    eventually("the link is gone", lambda: a.state()["conn"] not in ("Connected", None), 30)


@pytest.mark.parametrize("dialect", [8, 9])
def test_the_environment_is_whole(cluster, dialect):
    (say, out), (fence, fenced) = printing(cluster), printing(cluster, "fence")
    a, b = pair(cluster, f'after-resync-target "{say} a b"; fence-peer "{fence}; exit 4";', dialect,
                net="fencing resource-only;")
    found = environment(out)
    minor = str(next(d["minor"] for d in b.status()["devices"]))
    disk = b.disk_file(0)
    wanted = {"HOME": "/", "TERM": "linux", "DRBD_MINOR": minor, "DRBD_VOLUME": "0", "DRBD_BACKING_DEV": disk,
              "DRBD_LL_DISK": disk, "DRBD_RESOURCE": "r0", "DRBD_PEER": a.name, "DRBD_PEERS": a.name,
              "DRBD_PEER_AF": "ipv4", "DRBD_PEER_ADDRESS": a.ip, "DRBD_MY_AF": "ipv4", "DRBD_MY_ADDRESS": b.ip,
              "DRBD_CSTATE": "Connected", "DRBD_CONF": b.env()["URBD_CONF"], "WORDS": f"{say} a b",
              "DRBD_DONT_WARN_ON_VERSION_MISMATCH": "1"}
    assert {name: found.get(name) for name in wanted} == wanted
    assert found["PATH"].startswith("/sbin:/usr/sbin:/bin:/usr/bin") and "URBD_CONF" not in found
    ids = {name: found[f"DRBD_NODE_ID_{found[key]}"] for name, key in (("me", "DRBD_MY_NODE_ID"), ("peer", "DRBD_PEER_NODE_ID"))}
    assert ids == {"me": b.name, "peer": a.name}
    cluster.wait_synced()
    # Of a whole connection: each volume, and no one in particular.
    cut(a, b)
    found = environment(fenced)
    minor = str(next(d["minor"] for d in a.status()["devices"]))
    assert found["DRBD_MINOR"] == found["DRBD_MINOR_0"] == minor and "DRBD_VOLUME" not in found
    assert found["DRBD_BACKING_DEV_0"] == a.disk_file(0) and found["DRBD_CSTATE"] != "Connected"
    assert found["UP_TO_DATE_NODES"] == f"0x{1 << int(found['DRBD_MY_NODE_ID']):08X}", found
    eventually("it counts as outdated", lambda: a.state()["peer_disk"] == "Outdated", 20)


def test_a_corrected_script_counts_at_once(cluster):
    """And one that was not there before."""
    a, b = pair(cluster, net="fencing resource-and-stonith;", handlers='fence-peer "exit 1";')
    with following(a) as [events]:
        cut(a, b)
        eventually("the handler is broken", lambda: "helper:fence-peer status:256" in "\n".join(events.lines()), 20)
        assert a.status()["suspended-fencing"] and a.state()["peer_disk"] != "Outdated"
        b.start()
        cluster.wait_synced()
        configure(cluster, net="fencing resource-and-stonith;", handlers='fence-peer "exit 4";')
        cut(a, b)
        eventually("it is fenced", lambda: a.state()["peer_disk"] == "Outdated", 20)
        assert "helper:fence-peer status:1024" in "\n".join(events.lines()) and not a.status()["suspended-fencing"]


@pytest.mark.parametrize("code,peer,own", [(3, "Inconsistent", "UpToDate"), (4, "Outdated", "UpToDate"),
                                           (5, "Outdated", "UpToDate"), (6, "DUnknown", "Outdated"),
                                           (7, "Outdated", "UpToDate"), (0, "DUnknown", "UpToDate"),
                                           ("kill -9 $$", "DUnknown", "UpToDate")])
def test_exit_statuses_keep_their_meaning(cluster, code, peer, own):
    how = code if isinstance(code, str) else f"exit {code}"
    a, b = pair(cluster, net="fencing resource-and-stonith;", handlers=f'fence-peer "{how}";')
    with following(a) as [events]:
        cut(a, b)
        eventually("it has answered", lambda: "response helper" in "\n".join(events.lines()), 20)
        status = re.search(r"response helper .*helper:fence-peer status:(\d+)", "\n".join(events.lines())).group(1)
    assert status == str(256 * (code if isinstance(code, int) else 1))
    eventually("it is heeded", lambda: (a.state()["peer_disk"], a.state()["disk"]) == (peer, own), 10)
    assert a.status()["suspended-fencing"] == (peer == "DUnknown")


def test_a_helper_that_a_signal_ended_has_agreed_to_nothing(cluster):
    helper = script(cluster, "helper", "case $1 in fence-peer) kill -9 $$;; esac\n")
    a, b = pair(cluster, net="fencing resource-and-stonith;", urbd=f'usermode-helper "{helper}";')
    with following(a) as [events]:
        cut(a, b)
        eventually("it has answered", lambda: "helper:fence-peer status:9" in "\n".join(events.lines()), 20)
    assert a.status()["suspended-fencing"]


def test_another_helper_is_called_as_drbdadm_is(cluster):
    helper, out = printing(cluster, "helper")
    with open(helper, "a") as f:
        f.write("case $1 in fence-peer) exit 4;; esac\n")
    a, b = pair(cluster, net="fencing resource-only;", urbd=f'usermode-helper "{helper}";')
    assert environment(out)["WORDS"].startswith(helper)
    cut(a, b)
    eventually("it is asked", lambda: os.path.exists(out) and "fence-peer r0" in open(out).read(), 20)
    found = environment(out)
    assert found["WORDS"] == f"{helper} fence-peer r0"
    # What drbdadm would add is not there.
    assert {name for name in found if name.startswith("DRBD_")} == {
        "DRBD_MINOR", "DRBD_MINOR_0", "DRBD_BACKING_DEV", "DRBD_BACKING_DEV_0", "DRBD_PEER_NODE_ID", "DRBD_CSTATE",
        "DRBD_PEER_AF", "DRBD_PEER_ADDRESS", "DRBD_MY_AF", "DRBD_MY_ADDRESS"}
    assert found["PATH"] == "/sbin:/usr/sbin:/bin:/usr/bin" and not [name for name in found if name.startswith("URBD_")]
    eventually("it is heeded", lambda: a.state()["peer_disk"] == "Outdated", 20)


@pytest.mark.parametrize("helper", ["disabled", "/no/such/program"])
def test_without_a_helper(cluster, helper):
    """`disabled`: who is to be fenced counts as that, and nobody hears of a call.  One that is missing has said nothing."""
    a, b = pair(cluster, net="fencing resource-and-stonith;", handlers='fence-peer "exit 4"; before-resync-target "exit 1";',
                urbd=f'usermode-helper "{helper}";')
    b.urbd("invalidate", "r0")
    cluster.wait_synced()
    with following(a) as [events]:
        cut(a, b)
        if helper == "disabled":
            eventually("I/O goes on", lambda: not a.status()["suspended-fencing"], 10)
            assert "helper" not in "\n".join(events.lines()) and a.state()["peer_disk"] == "Outdated"
            b.start()
            cluster.wait_synced()
            a.kill()
            eventually("the other one can be Primary", lambda: b.call("primary", "r0").rc == 0, 20)
        else:
            eventually("it is said", lambda: "helper:fence-peer status:0" in "\n".join(events.lines()), 20)
            assert a.status()["suspended-fencing"] and "/no/such/program" in a.log()


def test_the_file_is_missing_or_broken_at_that_time(cluster):
    a, b = pair(cluster, net="fencing resource-and-stonith;", handlers='fence-peer "exit 4";')
    path = a.env()["URBD_CONF"]
    with open(path) as f:
        text = f.read()
    for what, code in (("missing", 0), ("broken", 10)):
        os.unlink(path)
        if what == "broken":
            with open(path, "w") as f:
                f.write("resource r0 {")
        with following(a) as [events]:
            os.kill(b.serving(), 9)
            b.processes.pop("r0").wait(20)
            eventually("it has answered", lambda code=code: f"helper:fence-peer status:{256 * code}" in "\n".join(events.lines()), 20)
        assert a.status()["suspended-fencing"], what
        with open(path, "w") as f:
            f.write(text)
        b.start()
        cluster.wait_synced()
    # A resync waits for nobody where no file has the resource.
    os.unlink(path)
    os.kill(b.serving(), 9)
    b.processes.pop("r0").wait(20)
    with open(path, "w") as f:
        f.write(text)
    b.start()
    cluster.wait_synced()


def test_drbdsetup_alone_and_a_link_that_drbdadm_left(cluster):
    """The file counts that the link names, whatever the usual one is."""
    hosts = [Host(cluster.node(name, size=16 * MIB)) for name in ("alpha", "bravo")]
    say, out = printing(cluster)
    a, b = hosts
    for host in hosts:
        host.create_md()
        host("new-resource", "r0", host.id)
        host.volume()
        host.attach()
    text = "\n".join(
        f"on {h.name} {{ node-id {h.id}; device minor {h.minor}; disk {h.disk()}; meta-disk internal; "
        f"address {h.node.ip}:7789; }}" for h in hosts)
    conf = os.path.join(cluster.dir, "linked.conf")
    with open(conf, "w") as f:
        f.write(f'resource r0 {{ handlers {{ after-resync-target "{say}"; }}\n{text} }}\n')
    os.symlink(conf, os.path.join(b.node.run_dir, "drbd-resource-r0.conf"))
    connect(hosts)
    a("primary", "r0", "--force")
    found = environment(out)
    assert found["DRBD_CONF"] == conf and found["DRBD_RESOURCE"] == "r0" and found["DRBD_MINOR"] == str(b.minor)
    eventually("synchronised", lambda: b.disk_state() == "UpToDate", 30)
    b("down", "r0")
    assert not os.path.lexists(os.path.join(b.node.run_dir, "drbd-resource-r0.conf"))


def test_who_calls_a_handler_by_hand_gets_the_file_that_is_in_use(cluster):
    say, out = printing(cluster)
    a, _ = pair(cluster, f'split-brain "{say}; exit 7";')
    env = {"URBD_CONF": ""}
    r = a.call("split-brain", "r0", env=env)
    assert r.rc == 7, r
    found = environment(out)
    assert found["DRBD_CONF"] == a.env()["URBD_CONF"] and found["DRBD_PEER"] and found["DRBD_MINOR"]
    link = os.path.join(a.run_dir, "drbd-resource-r0.conf")
    assert stat.S_ISLNK(os.lstat(link).st_mode) and os.readlink(link) == a.env()["URBD_CONF"]
    a.urbd("secondary", "r0")
    a.stop()
    assert not os.path.lexists(link)
    assert a.call("split-brain", "r0", env=env).rc != 0
