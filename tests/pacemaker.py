"""Real clusters for tests: corosync and Pacemaker on machines of machine.py, with a fencing device that pulls the plug.

    with Cluster() as c:
        alpha, bravo = machine(c, "alpha"), machine(c, "bravo")
        with Pacemaker(c, RESOURCES, CONSTRAINTS, fencing=True) as p:
            p.start()
            p.wait_promoted(alpha)
"""

import contextlib
import os
import re
import threading

from cluster import eventually

COROSYNC = """totem {
  version: 2
  cluster_name: urbd
  transport: knet
  crypto_cipher: none
  crypto_hash: none
  token: 1000
}
system {
  sched_rr: no
  move_to_root_cgroup: no
}
logging {
  to_logfile: yes
  logfile: /var/log/corosync.log
  to_syslog: no
  to_stderr: no
}
quorum {
  provider: corosync_votequorum
  two_node: TWO
  wait_for_all: 0
}
nodelist {
NODES}
"""
NODE = """  node {
    name: %s
    nodeid: %d
    ring0_addr: %s
  }
"""

# A device that fences like a power switch: it asks the test, which kills every process of the machine.
FENCE = r"""#!/usr/bin/python3
import os, sys, time
words = dict(line.strip().split("=", 1) for line in sys.stdin if "=" in line)
words.update(a.lstrip("-").split("=", 1) for a in sys.argv[1:] if "=" in a)
action, target = words.get("action", "metadata" if "metadata" in sys.argv else "reboot"), words.get("nodename") or words.get("plug")
if action in ("metadata", "meta-data"):
    print('''<?xml version="1.0"?><resource-agent name="fence_test" shortdesc="pulls the plug"><longdesc>test</longdesc>
<parameters><parameter name="plug" unique="0" required="0"><content type="string"/><shortdesc lang="en">x</shortdesc></parameter>
<parameter name="nodename" unique="0" required="0"><content type="string"/><shortdesc lang="en">x</shortdesc></parameter></parameters>
<actions><action name="on" automatic="0"/><action name="off"/><action name="reboot"/><action name="status"/><action name="monitor"/>
<action name="list"/><action name="metadata"/></actions></resource-agent>''')
elif action in ("off", "reboot"):
    open(f"/disks/fence-{target}", "w").close()
    while not os.path.exists(f"/disks/fenced-{target}"):
        time.sleep(0.05)
    os.unlink(f"/disks/fenced-{target}")
"""

OPTIONS = {"dc-deadtime": "1s", "cluster-recheck-interval": "10s", "stonith-timeout": "15s", "election-timeout": "5s"}


def nvpairs(prefix, values):
    return "".join(f'<nvpair id="{prefix}-{k}" name="{k}" value="{v}"/>' for k, v in values.items())


def fencing_devices(nodes, duel):
    """One for each node; where both may shoot (`duel`), fencing the first one waits: it survives."""
    out = []
    for i, n in enumerate(nodes):
        out.append(f'<primitive id="fence-{n.name}" class="stonith" type="fence_test"><instance_attributes id="fd{i}">' + nvpairs(
            f"fd{i}", {"pcmk_host_list": n.name, "plug": n.name, "pcmk_delay_base": "2s" if duel and i == 0 else "0s"}) +
            "</instance_attributes></primitive>")
    return "".join(out)


def apart(nodes):
    return "".join(f'<rsc_location id="apart-{n.name}" rsc="fence-{n.name}" node="{n.name}" score="-INFINITY"/>' for n in nodes)


class Pacemaker:
    def __init__(self, cluster, resources, constraints="", fencing=False, duel=False):
        self.cluster, self.nodes, self.fencing = cluster, list(cluster.nodes), fencing
        self.cib = (f'<cib epoch="1" num_updates="0" admin_epoch="1" validate-with="pacemaker-3.9"><configuration>'
                    f'<crm_config><cluster_property_set id="o">'
                    f'{nvpairs("o", {**OPTIONS, "stonith-enabled": str(fencing).lower()})}'
                    f'</cluster_property_set></crm_config><nodes/>'
                    f'<resources>{resources}{fencing_devices(self.nodes, duel) if fencing else ""}</resources>'
                    f'<constraints>{constraints}{apart(self.nodes) if fencing else ""}</constraints>'
                    f'</configuration><status/></cib>')
        self.fenced, self.ending = [], threading.Event()
        self.thread = threading.Thread(target=self.switch, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.thread.join(30)

    def switch(self):
        """The power switch: answers the fencing agents of all machines."""
        while not self.ending.wait(0.02):
            for asks in self.nodes:
                for target in self.nodes:
                    ask = os.path.join(asks.dir, "disks", f"fence-{target.name}")
                    if os.path.exists(ask):
                        target.power_off()
                        self.fenced.append(target.name)
                        os.unlink(ask)
                        open(os.path.join(asks.dir, "disks", f"fenced-{target.name}"), "w").close()

    def start(self):
        for n in self.nodes:
            members = "".join(NODE % (m.name, i + 1, m.ip) for i, m in enumerate(self.nodes))
            n.put("/etc/corosync/corosync.conf", COROSYNC.replace("NODES", members).replace("TWO", str(int(len(self.nodes) == 2))))
            n.put("/usr/sbin/fence_test", FENCE, 0o755)
            n.sh("rm -rf /var/lib/pacemaker/cib/*")
            n.put("/var/lib/pacemaker/cib/cib.xml", self.cib)
            n.sh("chown hacluster:haclient /var/lib/pacemaker/cib/cib.xml; chmod 600 /var/lib/pacemaker/cib/cib.xml")
        self.nodes[0].sh("crm_verify --xml-file /var/lib/pacemaker/cib/cib.xml -V")
        for n in self.nodes:
            self.join(n)
        self.wait_online(*self.nodes)

    @staticmethod
    def join(node):
        node.sh("mkdir -p /run/crm /var/log/pacemaker; chown hacluster:haclient /run/crm; corosync; "
                "setsid pacemakerd >/var/log/pacemakerd.out 2>&1 </dev/null &")

    def status(self, node):
        return node.shell("crm_mon -1 --as-xml 2>/dev/null").out

    def wait_online(self, *nodes, timeout=40):
        def online():
            text = self.status(nodes[0])
            return all(re.search(rf'<node name="{n.name}" id="\d+" online="true"', text) for n in nodes)
        with self.told():
            eventually(f"online: {[n.name for n in nodes]}", online, timeout, 0.2)

    def wait_promoted(self, node, timeout=40):
        with self.told():
            eventually(f"promoted on {node.name}", lambda: node.shell("urbd role r0").out.strip() == "Primary", timeout, 0.1)

    @contextlib.contextmanager
    def told(self):
        """What Pacemaker says is part of a failure."""
        try:
            yield
        except AssertionError as e:
            said = "".join(n.shell("crm_mon -1rfA; cibadmin -Q --xpath '//rsc_location' | grep -A3 urbd-fence; tail -n 60 /run/urbd/r0.log; grep -E 'error|warning|crit' /var/log/pacemaker/pacemaker.log | cut -c1-200 | tail -30").out
                           for n in self.nodes if n.unshare.poll() is None)
            raise AssertionError(f"{e}\n{said}") from None
