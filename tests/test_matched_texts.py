"""The texts of DRBD's tools that their callers match, beside exit statuses: `vectors/calls/texts.tsv`.

Each row is provoked, and its text, stream and exit status are what the row says. Where a status of the real tool is there,
that is asked the same (drbd-utils 9.22; without a module it can say no more).
"""

import contextlib
import csv
import json
import os
import subprocess

import pytest

import control_planes as P
from cluster import MIB, TESTS, eventually

TABLE = os.path.join(TESTS, "..", "vectors", "calls", "texts.tsv")
SIZE = 12 * MIB
# Of the waiting times is warned: nothing of that may stand beside JSON.
CONF = """resource r1 {{
  startup {{ wfc-timeout 10; degr-wfc-timeout 60; }}
  disk {{ c-plan-ahead 0; resync-rate 100; }}
  options {{ auto-promote no; }}
  on alpha {{ node-id 0; address {a.ip}:7000; volume 0 {{ device minor 1000; disk {disks[0]}; meta-disk internal; }} }}
  on bravo {{ node-id 1; address {b.ip}:7000; volume 0 {{ device minor 1000; disk {disks[1]}; meta-disk internal; }} }}
}}
"""


def rows():
    with open(TABLE) as f:
        return list(csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE))


class Pair:
    """Two machines; rows are asked of the first one."""

    def __init__(self, cluster):
        self.a, self.b = (P.Machine(cluster.node(name, size=MIB)) for name in ("alpha", "bravo"))
        self.both = (self.a, self.b)
        disks = [m.make_disk("r1", SIZE) for m in self.both]
        for m in self.both:
            m.node.put_res("r1", CONF.format(a=self.a, b=self.b, disks=disks))
        self.words = {"RES": "r1", "RES/0": "r1/0", "N": "1000", "K": "1", "PEER:RES": "bravo:r1", "DEV": disks[0]}
        self.holder = None

    def blank(self):
        pass

    def stopped(self, machines=None):
        for m in machines or (self.a,):
            m.must("drbdadm", "create-md", "--force", "--max-peers", 7, "r1")

    def running(self):
        self.stopped()
        self.a.must("drbdadm", "up", "r1")

    def primary(self):
        self.running()
        self.a.must("drbdadm", "primary", "--force", "r1")

    def unclean(self):
        self.primary()
        self.a.node.kill("r1")

    def held(self):
        self.primary()
        device = self.a.device(1000)
        self.holder = self.a.stream("sh", "-c", f"exec sleep 100 < {device}")
        eventually("it is open", lambda: device_is_open(self.a), 10)

    def together(self):
        self.stopped(self.both)
        for m in self.both:
            m.must("drbdadm", "up", "r1")
        self.a.must("drbdadm", "wait-connect", "r1")

    def beside(self):
        self.together()
        self.b.must("drbdadm", "new-current-uuid", "--clear-bitmap", "r1/0")
        self.b.must("drbdadm", "primary", "r1")
        eventually("it is known", lambda: self.a.must("drbdsetup", "peer-role", "r1", 1).strip() == "Primary", 10)

    def resync(self):
        self.together()
        self.a.must("drbdadm", "primary", "--force", "r1")
        eventually("it runs", lambda: "SyncSource" in self.a.must("drbdsetup", "status", "r1"), 10)

    def ours(self, call):
        words = [self.words.get(w, w).replace("GI", "A" * 16) for w in call.split()]
        return self.ask(self.a.run_apart, words)

    def ask(self, run, words):
        r = run(*words)
        return r.returncode, r.stdout, r.stderr

    def real(self, call):
        """The real tool, as root of a machine with this name."""
        words = [self.words.get(w, w).replace("GI", "A" * 16) for w in call.split()]
        words[0] = "/usr/sbin/" + words[0]
        if words[0].endswith("drbdadm"):
            words[1:1] = ["-c", self.a.node.conf]
        apart = ["unshare", "--uts", "sh", "-c", 'hostname alpha; exec "$@"', "sh"]
        r = self.a.node.run([*apart, *words], env={**os.environ, "LC_ALL": "C", "DRBD_DONT_WARN_ON_VERSION_MISMATCH": "1"},
                            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        return r.returncode, r.stdout, r.stderr

    def close(self):
        if self.holder:
            self.holder.kill()
            self.holder.wait(10)
        for m in self.both:
            m.node.kill("r1")
            m.close()


def device_is_open(m):
    return json.loads(m.must("drbdsetup", "status", "--json", "r1"))[0]["devices"][0].get("open")


def judge(row, answer, pid):
    """What is wrong with it."""
    status, out, err = answer
    text = row["text"].replace("PID", str(pid))
    if str(status) != row["exit"]:
        return f"exit {status}: {out}{err}"
    if row["stream"] == "none":
        return (out or err) and f"says {out}{err}"
    if row["stream"] == "json":
        # Callers read both streams as one text.
        try:
            json.loads(out + err)
        except ValueError as e:
            return f"no JSON: {e}: {out}{err}"
        return "" if text in out else f"lacks {text}: {out}"
    where = {"out": out, "err": err, "-": out + err}[row["stream"]]
    other = {"out": err, "err": out, "-": ""}[row["stream"]]
    if text not in where:
        return f"lacks {text}: stdout: {out} stderr: {err}"
    return f"says more: {other}" if other else ""


def judge_real(row, answer):
    status, out, err = answer
    if str(status) != row["real"]:
        return f"the real one: exit {status}, {out}{err}"
    return "" if row["text"] in out + err else f"the real one says: {out}{err}"


@pytest.mark.parametrize("situation", list(dict.fromkeys(row["situation"] for row in rows())))
def test_what_callers_match(cluster, situation):
    pair = Pair(cluster)
    with contextlib.closing(pair):
        getattr(pair, situation)()
        assert "urbd: warning: " in pair.a.run_apart("drbdadm", "sh-nop").stderr
        wrong = []
        for row in rows():
            if row["situation"] != situation:
                continue
            if row["real"] != "-":
                wrong.append((row["call"], judge_real(row, pair.real(row["call"]))))
            wrong.append((row["call"], judge(row, pair.ours(row["call"]), pair.holder and pair.holder.pid)))
        wrong = [f"{call}: {what}" for call, what in wrong if what]
        assert not wrong, "\n".join(wrong)
