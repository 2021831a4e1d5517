"""Fail-over by a real Pacemaker and corosync, with our agent and our fencing handler: docs/guide/pacemaker.md.

The agent runs alone, by `ocf-tester`, and in a cluster: standby, a killed process, a machine without power, a split network, a killed
Primary among three nodes; an application checks that nothing acknowledged is lost. Fencing is real for Pacemaker: its device kills
every process of the machine. Not tested: a watchdog, a split network among three nodes, Pacemaker 3.
"""

import os
import re
import subprocess
import threading
import time
from xml.etree import ElementTree

import pytest

from cluster import FAST_DISK, TESTS, Cluster, eventually
from machine import machine
from pacemaker import Pacemaker
from test_three_nodes import text

AGENT = os.path.join(TESTS, "..", "dist", "ocf", "drbd")


def ops(prefix, **intervals):
    return "<operations>" + "".join(
        f'<op id="{prefix}-{name}" name="{name.partition("_")[0]}" interval="{interval}" timeout="60s"'
        + (f' role="{name.partition("_")[2]}"' if "_" in name else "") + "/>"
        for name, interval in intervals.items()) + "</operations>"


RESOURCES = f"""
<clone id="ms-r0"><meta_attributes id="m">
  <nvpair id="m1" name="promotable" value="true"/><nvpair id="m2" name="notify" value="true"/>
  </meta_attributes>
  <primitive id="r0" class="ocf" provider="urbd" type="drbd">
    <instance_attributes id="i"><nvpair id="i1" name="drbd_resource" value="r0"/></instance_attributes>
    {ops("r0", monitor_Promoted="2s", monitor_Unpromoted="3s", start="0", promote="0", demote="0", stop="0", notify="0")}
  </primitive></clone>
<primitive id="fs" class="ocf" provider="heartbeat" type="Filesystem"><instance_attributes id="f">
  <nvpair id="f1" name="device" value="/dev/urbd/by-res/r0/0"/><nvpair id="f2" name="directory" value="/srv"/>
  <nvpair id="f3" name="fstype" value="ext4"/></instance_attributes>{ops("fs", start="0", stop="0")}</primitive>
"""
CONSTRAINTS = """
<rsc_colocation id="c1" rsc="fs" with-rsc="ms-r0" with-rsc-role="Promoted" score="INFINITY"/>
<rsc_order id="c2" first="ms-r0" first-action="promote" then="fs" then-action="start"/>
<rsc_location id="c3" rsc="ms-r0"><rule id="c4" role="Promoted" score="10"><expression id="c5" attribute="#uname" operation="eq"
  value="alpha"/></rule></rsc_location>
"""
FENCING = dict(net="fencing resource-and-stonith;",
               handlers='fence-peer "/usr/lib/urbd/crm-fence-peer"; unfence-peer "/usr/lib/urbd/crm-unfence-peer";')


def pair(cluster, **options):
    """alpha and bravo with an ext4 on r0, in sync, stopped."""
    alpha, bravo = machine(cluster, "alpha"), machine(cluster, "bravo")
    cluster.configure(**options)
    for n in (alpha, bravo):
        n.sh("urbd create-md r0; urbd up r0")
    alpha.sh("urbd primary --force r0; mkfs.ext4 -q /dev/urbd/by-res/r0/0; "
             "mount /dev/urbd/by-res/r0/0 /mnt; touch /mnt/log; umount /mnt; urbd wait-sync r0; urbd secondary r0")
    for n in (alpha, bravo):
        n.sh("urbd down r0")
    return alpha, bravo


class Writer:
    """An application: whenever it can, it appends a number to a file on the mirrored device and makes it durable, on whichever
    node has that mounted.  Like any client it tries the next number only when one was acknowledged."""

    def __init__(self, *nodes):
        self.nodes, self.acked, self.where, self.gap = nodes, 0, None, 0.0
        self.last, self.ending = time.monotonic(), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    SCRIPT = """while read -r n; do
        if echo $n | dd of=/srv/log oflag=append conv=nocreat,notrunc,fsync 2>/dev/null; then echo ok; else echo no; fi
    done"""

    def run(self):
        while not self.ending.is_set():
            for n in self.nodes:
                if n.unshare.poll() is None and not self.ending.is_set():
                    self.on(n)
            time.sleep(0.1)

    def on(self, node):
        p = subprocess.Popen(node.prefix() + ["sh", "-c", self.SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.DEVNULL)
        try:
            while not self.ending.is_set():
                p.stdin.write(f"{self.acked + 1}\n")
                p.stdin.flush()
                if p.stdout.readline().strip() != "ok":
                    break
                now = time.monotonic()
                self.gap, self.last, self.where = max(self.gap, now - self.last), now, node.name
                self.acked += 1
                time.sleep(0.1)  # a file system that is never idle cannot be unmounted
        except OSError:
            pass
        finally:
            p.kill()
            p.wait()

    def goes_on(self, node, timeout=60):
        """Waits until it writes on that node; returns how long nothing was acknowledged before, and measures anew."""
        before = self.acked
        eventually(f"the application goes on on {node.name}", lambda: self.where == node.name and self.acked > before + 2, timeout)
        gap, self.gap = self.gap, 0.0
        return gap

    def end(self, node):
        """What was acknowledged is there, in order: a number that was not may be there more than once."""
        self.ending.set()
        self.thread.join(30)
        numbers = [int(x) for x in node.sh("cat /srv/log").split()]
        assert sorted(set(numbers)) == list(range(1, max(numbers) + 1)) and max(numbers) >= self.acked, (self.acked, numbers[-5:])


def seen(p, node, **attributes):
    text = re.search(rf'<resource id="r0"[^>]*>\s*<node name="{node.name}"', p.status(p.nodes[0]))
    return text and all(f'{k}="{v}"' in text.group() for k, v in attributes.items())


class Agent:
    """The agent on one machine, as Pacemaker's executor calls it; what it tells Pacemaker goes to a file."""

    def __init__(self, node):
        self.node = node
        node.put("/usr/local/sbin/crm_attribute", '#!/bin/sh\nfor w; do case $w in --update=*|--delete) echo "$w" >/run/score ;; '
                 "esac; done\n", 0o755)

    def __call__(self, action, want=0, level=0, timeout=20, **parameters):
        env = {"OCF_RESOURCE_INSTANCE": "r0", "OCF_CHECK_LEVEL": level, "OCF_RESKEY_CRM_meta_timeout": timeout * 1000,
               "OCF_RESKEY_crm_feature_set": "3.16.1", "OCF_RESKEY_drbd_resource": "r0", "OCF_RESKEY_wfc_timeout": 0}
        env.update({f"OCF_RESKEY_{k}": v for k, v in parameters.items()})
        words = " ".join(f"{k}='{v}'" for k, v in env.items() if v is not None)
        r = self.node.shell(f"{words} /usr/lib/ocf/resource.d/urbd/drbd {action}")
        assert r.rc == want, (action, parameters, r)
        return r.err

    def score(self):
        return self.node.sh("cat /run/score").strip().replace("--update=", "")


def test_meta_data(tmp_path):
    """Valid by the standard's definition, and with exactly the parameters and defaults of ocf:linbit:drbd."""
    ours = subprocess.run([AGENT, "meta-data"], check=True, capture_output=True, text=True).stdout
    theirs = subprocess.run(["/usr/lib/ocf/resource.d/linbit/drbd", "meta-data"], check=True, capture_output=True, text=True,
                            env={**os.environ, "OCF_ROOT": "/usr/lib/ocf"}).stdout
    path = tmp_path / "meta.xml"
    path.write_text(ours)
    dtd = "/usr/share/resource-agents/ra-api-1.dtd"
    r = subprocess.run(["xmllint", "--noout", "--nonet", "--dtdvalid", dtd, path], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr

    def parameters(text):
        root = ElementTree.fromstring(text)
        return {p.get("name"): (p.get("required"), p.find("content").get("default")) for p in root.iter("parameter")}

    ours, theirs = parameters(ours), parameters(theirs)
    # Empty: /etc/urbd.conf where that exists.
    assert theirs.pop("drbdconf") == (None, "/etc/drbd.conf") and ours.pop("drbdconf") == (None, "")
    assert ours == theirs


def test_scripts_are_clean():
    for script in ("drbd", "crm-fence-peer"):
        r = subprocess.run(["shellcheck", os.path.join(os.path.dirname(AGENT), script)], capture_output=True, text=True)
        assert r.returncode == 0, r.stdout


def test_agent_by_itself(cluster):
    alpha, bravo = pair(cluster)
    a, b = Agent(alpha), Agent(bravo)
    a("monitor", 7)
    a("stop")
    a("start")
    a("monitor")
    assert a.score() == "1000"  # UpToDate, and nobody knows what bravo has
    b("start", wfc_timeout=5)
    b("start")
    a("monitor")
    assert a.score() == b.score() == "10000"
    a("promote")
    a("promote")
    a("monitor", 8, level=10)
    b("monitor")
    assert b.score() == "10000"
    b("monitor", adjust_master_score="1 2 3 4")
    assert b.score() == "4"
    b("monitor", remove_master_score_if_peer_primary="true")
    assert b.score() == "--delete"
    said = b("promote", 1, fail_promote_early_if_peer_primary="true")
    assert "another node is Primary" in said and "ocf-exit-reason:" in said, said
    said = b("promote", 1, timeout=6)
    assert "it cannot be promoted" in said and "Multiple primaries" in said, said
    # In use: it stays, and says why. A killed process is followed by another one.
    alpha.sh("mount /dev/urbd/by-res/r0/0 /mnt")
    said = a("stop", 1, timeout=6)
    assert "it cannot be demoted" in said and "in use" in said, said
    pid = alpha.sh("cat /run/urbd/r0.pid").strip()
    alpha.sh(f"kill -9 {pid}; (echo text >/mnt/text) >/dev/null 2>&1 &")
    said = a("monitor", 8)
    assert "another one goes on with it" in said and alpha.sh("sync -f /mnt/text; cat /run/urbd/r0.pid").strip() != pid
    alpha.wait(peer_disk="UpToDate", repl="Established")
    # Only the other node has the data.
    alpha.sh("urbd detach r0")
    a("monitor", 8)
    assert a.score() == "10"
    alpha.sh("urbd attach r0")
    alpha.wait(disk="UpToDate", repl="Established")
    b("stop", stop_outdates_secondary="true")
    assert "Outdated" in bravo.sh("urbd show-gi r0")
    alpha.sh("umount /mnt")
    a("demote")
    a("demote")
    a("reload")
    a("monitor")
    a("stop")
    a("stop")
    assert a.score() == "--delete" and not alpha.processes_of("urbd")
    b("start", connect_only_after_promote="true")
    b("monitor")
    assert b.score() == "--delete" and bravo.state()["conn"] == "StandAlone"  # outdated data is no candidate
    b("stop")


@pytest.mark.parametrize("status, words, parameters", [
    (6, "drbd_resource is missing", {"drbd_resource": None}),
    (5, "no resource `nix`", {"drbd_resource": "nix"}),
    (5, "/etc/nix.conf", {"drbdconf": "/etc/nix.conf"}),
    (6, "four numbers", {"adjust_master_score": "1 2 3"}),
    (6, "smaller than", {"adjust_master_score": "0 20 10 30"}),
    (6, "not a number", {"adjust_master_score": "0 a 10 30"}),
    (5, "require_drbd_module_version_lt", {"require_drbd_module_version_lt": "9.0.0"}),
    (5, "require_drbd_module_version_ge", {"require_drbd_module_version_ge": "9.99.0"}),
    (6, "x.y.z", {"require_drbd_module_version_ge": "new"}),
    (6, "notify=true", {"CRM_meta_clone_max": 2}),
    (6, "allow-two-primaries", {"CRM_meta_clone_max": 2, "CRM_meta_promoted_max": 2, "CRM_meta_notify": "true"}),
    (6, "clone-node-max", {"CRM_meta_clone_max": 2, "CRM_meta_clone_node_max": 2}),
    (0, "", {"CRM_meta_clone_max": 2, "ignore_missing_notifications": "true"}),
    (0, "", {"require_drbd_module_version_ge": "", "require_drbd_module_version_lt": ""}),
    (0, "", {"drbdconf": "/etc/urbd.conf"})])
def test_a_wrong_parameter_is_named(lone, status, words, parameters):
    for action in ("validate-all", "start"):
        if status or action == "validate-all":
            assert words in Agent(lone)(action, status, **parameters)


@pytest.fixture(scope="module")
def lone():
    with Cluster() as c:
        alpha, bravo = machine(c, "alpha"), machine(c, "bravo")
        c.configure([alpha, bravo])
        yield alpha


def test_a_probe_where_it_is_not_set_up(lone):
    agent = Agent(lone)
    agent("monitor", 7, drbd_resource="nix")
    agent("monitor", 5, drbd_resource="nix", CRM_meta_interval=10000)
    agent("stop", 0, drbd_resource="nix")
    agent("bad", 3)


def test_ocf_tester(lone):
    """The standard's own tester: every action, twice where that must not matter, at every depth."""
    lone.sh("urbd create-md --force r0; urbd up r0; urbd primary --force r0; urbd down r0")
    said = lone.shell("ocf-tester -n r0 -o drbd_resource=r0 -o wfc_timeout=0 /usr/lib/ocf/resource.d/urbd/drbd", timeout=100)
    assert said.rc == 0 and "passed all tests" in said.out, said
    # It ends with the resource started, as it found it.
    lone.sh("urbd down r0")


def test_fail_over(cluster, record_property):
    alpha, bravo = pair(cluster, fast=False, disk=FAST_DISK, **FENCING)
    with Pacemaker(cluster, RESOURCES, CONSTRAINTS, fencing=True) as p:
        p.start()
        with p.told():
            app = Writer(alpha, bravo)
            app.goes_on(alpha)
            # Standby: an orderly way over, and back.
            alpha.sh("crm_standby --update on --node alpha")
            record_property("standby", app.goes_on(bravo))
            eventually("stopped on alpha", lambda: not alpha.processes_of("urbd"), 30)
            alpha.sh("crm_standby --delete --node alpha")
            record_property("back", app.goes_on(alpha))
            # The process is killed: another one goes on with the device, nobody moves.
            os.kill(*inner(alpha, int(alpha.sh("cat /run/urbd/r0.pid"))))
            record_property("killed process", app.goes_on(alpha))
            assert not p.fenced
            # What was in flight is copied again, and while that lasts bravo cannot take over.
            alpha.wait(peer_disk="UpToDate", repl="Established", timeout=60)
            # The node dies.
            alpha.power_off()
            record_property("killed node", app.goes_on(bravo))
            assert p.fenced == ["alpha"]
            # It comes back: only what changed is copied, and it may be promoted again.
            alpha.power_on()
            p.join(alpha)
            bravo.wait(peer_disk="UpToDate", repl="Established", timeout=60)
            eventually("unfenced", lambda: "urbd-fence" not in bravo.sh("cibadmin -Q"), 30)
            record_property("back after a crash", app.goes_on(alpha))
            app.end(alpha)
            assert not failures(p, bravo)


def three(cluster):
    """alpha, bravo and charlie with an ext4 on r0, in sync and all connected, stopped."""
    nodes = [machine(cluster, name) for name in ("alpha", "bravo", "charlie")]
    names = " ".join(n.name for n in nodes)
    dialect = f"connection-mesh {{ hosts {names}; }} handlers {{ {FENCING['handlers']} }}"
    for n in nodes:
        n.put_res("r0", text(nodes, dialect, net=f"ping-int 1; connect-int 1; {FENCING['net']}"))
        n.sh("urbd create-md r0; urbd up r0")
    alpha = nodes[0]
    alpha.sh("urbd wait-connect r0; urbd primary --force r0; mkfs.ext4 -q /dev/urbd/by-res/r0/0; "
             "mount /dev/urbd/by-res/r0/0 /mnt; touch /mnt/log; umount /mnt; urbd wait-sync r0; urbd secondary r0")
    for n in nodes:
        n.sh("urbd down r0")
    return nodes


def test_fail_over_among_three(cluster, record_property):
    """clone-max is three. The Primary is moved, and dies: another node has it, the third one follows."""
    alpha, bravo, charlie = nodes = three(cluster)
    with Pacemaker(cluster, RESOURCES, CONSTRAINTS, fencing=True) as p:
        p.start()
        with p.told():
            app = Writer(*nodes)
            app.goes_on(alpha)
            eventually("all are UpToDate", lambda: alpha.sh("urbd dstate r0").strip() == "UpToDate/UpToDate/UpToDate", 30)
            alpha.power_off()
            eventually("it goes on", lambda: app.where != "alpha", 60)
            record_property("killed node, of three", app.gap)
            assert p.fenced == ["alpha"]
            here, other = (bravo, charlie) if app.where == "bravo" else (charlie, bravo)
            app.goes_on(here)
            # Who is not lost may be promoted: the constraint names alpha alone.
            constraints = other.sh("cibadmin -Q --xpath \"//rsc_location[starts-with(@id, 'urbd-fence')]\"")
            assert 'operation="eq"' in constraints and 'value="alpha"' in constraints and constraints.count("<rule") == 1, constraints
            alpha.power_on()
            p.join(alpha)
            eventually("unfenced", lambda: "urbd-fence" not in here.sh("cibadmin -Q"), 60)
            # It is preferred, and gets the role as soon as it has everything.
            record_property("back, of three", app.goes_on(alpha))
            for n in nodes:
                eventually("all are the same", lambda: n.sh("urbd dstate r0").strip() == "UpToDate/UpToDate/UpToDate", 60)
            app.end(alpha)


def inner(node, pid):
    """What os.kill needs for a process that the machine counts as `pid`."""
    for p in os.listdir("/proc"):
        if p.isdigit():
            try:
                with open(f"/proc/{p}/status") as f:
                    ids = next(x for x in f if x.startswith("NSpid:")).split()[1:]
                if ids[-1] == str(pid) and len(ids) > 1 and os.readlink(f"/proc/{p}/ns/pid") == os.readlink(
                        f"/proc/{node.holder}/ns/pid"):
                    return int(p), 9
            except OSError:
                continue
    raise AssertionError(f"{node.name} has no process {pid}")


def failures(p, node):
    return re.findall(r'<failure [^>]*>', p.status(node))


def test_split_network(cluster, record_property):
    """Neither node sees the other: the one that is shot loses nothing that was acknowledged, and no split brain comes of it."""
    alpha, bravo = pair(cluster, fast=False, disk=FAST_DISK, **FENCING)
    with Pacemaker(cluster, RESOURCES, CONSTRAINTS, fencing=True, duel=True) as p:
        p.start()
        with p.told():
            app = Writer(alpha, bravo)
            app.goes_on(alpha)
            bravo.cut()
            eventually("somebody is shot", lambda: p.fenced, 60)
            survivor = alpha if p.fenced[0] == "bravo" else bravo
            record_property("split network", app.goes_on(survivor))
            shot = bravo if survivor is alpha else alpha
            shot.power_on()
            p.join(shot)
            survivor.wait(peer_disk="UpToDate", repl="Established", timeout=60)
            eventually("unfenced", lambda: "urbd-fence" not in survivor.sh("cibadmin -Q"), 30)
            app.end(survivor if survivor.state()["role"] == "Primary" else shot)
            assert p.fenced == [shot.name]
