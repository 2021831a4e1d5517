"""Every recipe of docs/guide runs as it is written: its commands are taken from the page.

A page is a sequence of steps, in its order:

    ```sh alpha                     run by bash on that machine: alpha, bravo, charlie, both (alpha, bravo), or all; must end with 0
    ```sh alpha fails               must end with another status
    ```file both /etc/urbd.conf     a file's new content
    ```conf SECTION                 options of that section of a resource: are accepted
    ```xml                          is well-formed
    ```text                         what the block before it printed; `...` alone stands for any lines, `…` for any characters
    ```sh not-run: REASON           is shown only; the reason says what the tests lack
    <!-- test: STEP -->             what happens to the machines without a command: see Page.steps

What the pages call alpha and bravo (and charlie) are machines of machine.py with the addresses 10.0.0.1 to 10.0.0.3; /dev/vg0/data,
/dev/vg0/new and /dev/vg0/meta are files behind links.  `systemctl` is a stand-in that starts and stops urbd@RES with the
commands of the unit, and notes everything else: systemd itself is tested elsewhere.
"""

import contextlib
import glob
import os
import re
import shlex
import subprocess
from xml.etree import ElementTree

import pytest

import newcomer
from cluster import MIB, TESTS, eventually
from machine import machine
from pacemaker import Pacemaker

GUIDE = os.path.join(TESTS, "..", "docs", "guide")
PAGES = sorted(os.path.basename(p)[:-3] for p in glob.glob(f"{GUIDE}/*.md"))
WITHOUT_STEPS = {"README", "security", "verbs"}
WITH_CHARLIE = {"three-nodes", "tie-breaker"}
HOSTS = {"alpha": "10.0.0.1", "bravo": "10.0.0.2", "charlie": "10.0.0.3"}
LARGER = {"postgresql": 128}  # MiB
DISKS = {"/dev/vg0/data": 32, "/dev/vg0/new": 48, "/dev/vg0/meta": 4}
CONF = """resource r0 {
  on alpha { device /dev/drbd0; disk /dev/vg0/data; meta-disk internal; address 10.0.0.1:7789; }
  on bravo { device /dev/drbd0; disk /dev/vg0/data; meta-disk internal; address 10.0.0.2:7789; }
}
"""
SYSTEMCTL = r"""#!/bin/bash
# Stands in for systemd: units of urbd are started and stopped as their files say.
echo "systemctl $*" >>/var/log/systemctl
verb= now= units=()
for word; do
  case $word in
    --now) now=1 ;;
    -*) ;;
    *) if [ -z "$verb" ]; then verb=$word; else units+=("$word"); fi ;;
  esac
done
for unit in "${units[@]}"; do
  res=${unit#urbd@} res=${res%.service}
  case $unit in urbd@*) ;; *) continue ;; esac
  case $verb in
    start) urbd up "$res" ;;
    restart) urbd restart "$res" ;;
    stop) urbd down "$res" ;;
    enable) [ -z "$now" ] || urbd up "$res" ;;
    disable) [ -z "$now" ] || urbd down "$res" ;;
  esac || exit
done
exit 0
"""


class Step:
    def __init__(self, line, kind, words, text):
        self.line, self.kind, self.words, self.text = line, kind, words, text


def read(page):
    """The steps of a page, in order."""
    steps, block, info, start = [], None, "", 0
    with open(os.path.join(GUIDE, page + ".md")) as f:
        for number, line in enumerate(f, 1):
            if line.startswith("```"):
                if block is None:
                    block, info, start = [], line[3:].strip(), number
                else:
                    kind, _, rest = info.partition(" ")
                    steps.append(Step(start, kind, rest, "".join(block)))
                    block = None
            elif block is not None:
                block.append(line)
            elif line.startswith("<!-- test: "):
                steps.append(Step(number, "test", line[len("<!-- test: "):line.index("-->")].strip(), ""))
    assert block is None, f"{page}: a block does not end"
    return steps


def same(printed, expected):
    """`...` alone: any lines; `…`: any characters. Blanks at the ends of lines and empty lines do not matter."""
    def lines(text):
        return [x.rstrip() for x in text.splitlines() if x.strip()]
    pattern = "".join(r"(?:.*\n)*" if x == "..." else re.escape(x).replace("…", ".*") + r"\n" for x in lines(expected))
    return re.fullmatch(pattern, "".join(x + "\n" for x in lines(printed))) is not None


class Page:
    """Runs the steps of one page."""

    def __init__(self, cluster, name):
        self.cluster, self.name, self.printed, self.pacemaker = cluster, name, None, None
        self.at, self.sizes = None, {**DISKS, "/dev/vg0/data": LARGER.get(name, DISKS["/dev/vg0/data"])}
        self.nodes = {}
        for node, ip in HOSTS.items():
            if node == "charlie" and name not in WITH_CHARLIE:
                continue
            m = machine(cluster, node, disks={d: size * MIB for d, size in self.sizes.items()})
            m.fixed = ip
            self.nodes[node] = m
            self.boot(m)

    def boot(self, m):
        m.sh(f"ip addr add {m.fixed}/24 dev eth0; mkdir -p /srv")
        m.put("/etc/hosts", "127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in HOSTS.items()))
        m.put("/usr/local/bin/systemctl", SYSTEMCTL, 0o755)

    def on(self, who):
        return self.pair_of_machines() if who == "both" else list(self.nodes.values()) if who == "all" else [self.nodes[who]]

    def pair_of_machines(self):
        return [self.nodes["alpha"], self.nodes["bravo"]]

    def run(self):
        done = 0
        try:
            for step in read(self.name):
                self.at = f"docs/guide/{self.name}.md:{step.line}"
                done += self.step(step)
        finally:
            if self.pacemaker:
                self.pacemaker.__exit__()
        return done

    def step(self, step):
        if step.kind == "test":
            word, *rest = shlex.split(step.words)
            self.steps[word](self, *rest)
        elif step.kind == "sh":
            assert step.words, f"{self.at}: on which machine?"
            if step.words.startswith("not-run:"):
                assert len(step.words) > len("not-run: why"), f"{self.at}: why is it not run?"
                return 0
            who, *how = step.words.split()
            self.printed = ""
            for m in self.on(who):
                r = m.shell("set -e\n" + step.text, timeout=90)
                good = r.rc != 0 if how == ["fails"] else r.rc == 0
                assert good, f"{self.at}: on {m.name} this ended with {r.rc}:\n{step.text}{r.out}{r.err}\n{m.log()[-3000:]}"
                self.printed += r.out + r.err
        elif step.kind == "file":
            who, path = step.words.split()
            for m in self.on(who):
                m.put(path, step.text)
        elif step.kind == "text":
            assert same(self.printed, step.text), f"{self.at}: expected:\n{step.text}printed:\n{self.printed}"
        elif step.kind == "xml":
            ElementTree.fromstring(step.text)
        elif step.kind == "conf":
            conf = CONF.replace("resource r0 {", f"resource r0 {{\n  {step.words} {{\n{step.text}}}")
            self.nodes["alpha"].put("/tmp/urbd.conf", conf)
            self.nodes["alpha"].sh("urbd -c /tmp/urbd.conf sh-nop")
        else:
            raise AssertionError(f"{self.at}: what is a block {step.kind!r}?")
        return 1

    # ---- what happens to machines -----------------------------------------------
    def pair(self, *words):
        """The pair of README.md: in sync, alpha Primary; `mounted`: with ext4 on /srv there; `down`: stopped."""
        for m in self.pair_of_machines():
            m.put("/etc/urbd.conf", CONF.replace("r0 {", "r0 {\n  net { ping-int 1; connect-int 1; }"))
            m.sh("urbd create-md r0; urbd up r0")
        a = self.nodes["alpha"]
        a.sh("urbd primary --force r0; mkfs.ext4 -q /dev/urbd/by-res/r0/0; urbd wait-sync r0")
        if "mounted" in words:
            a.sh("mount /dev/urbd/by-res/r0/0 /srv; echo important >/srv/file; sync -f /srv")
        else:
            a.sh("urbd secondary r0")
        if "down" in words:
            for m in self.pair_of_machines():
                m.sh("urbd down r0")

    def quick(self):
        """A lost peer is noticed, and tried again, within a second: nobody waits for the defaults here."""
        for m in self.nodes.values():
            m.sh("test ! -e /etc/urbd.conf || sed -i 's/resource r0 {/resource r0 {\\n  net { ping-int 1; connect-int 1; }/' /etc/urbd.conf")

    def in_sync(self):
        for m in self.pair_of_machines():
            m.wait(repl="Established", disk="UpToDate", peer_disk="UpToDate", timeout=60)

    def power_on(self, name):
        self.nodes[name].power_on()
        self.boot(self.nodes[name])

    def new_disk(self, name, link):
        m = self.nodes[name]
        m.new_disk(m.links[link], self.sizes[link] * MIB)

    def copy(self, source, target, path):
        self.nodes[target].put(path, self.nodes[source].sh(f"cat {path}"))

    def check(self, name, *command):
        self.nodes[name].sh(" ".join(command))

    def until(self, name, *command):
        with self.pacemaker.told() if self.pacemaker else contextlib.nullcontext():
            eventually(f"{self.at}: {command}", lambda: self.nodes[name].shell(" ".join(command)).rc == 0, 60, 0.2)

    def cluster_starts(self):
        self.pacemaker = Pacemaker(self.cluster, "", "", fencing=True)
        self.pacemaker.__enter__()
        self.pacemaker.start()

    def kernel_metadata(self):
        """Both disks as the kernel's DRBD leaves them, in sync: written by the real drbdmeta."""
        for m in self.nodes.values():
            m.sh("rm -f /etc/urbd.conf")
            for words in (["create-md", "--force"], ["set-gi", "--force", "A5C36E2F0D1B4788:0:0:0:1:1"]):
                subprocess.run(["/usr/sbin/drbdmeta", "0", "v08", m.disk_file(0), "internal", words[0], *words[2:], words[1]],
                               check=True, capture_output=True)

    steps = {
        "kernel-metadata": kernel_metadata,
        "pair": pair,  # [mounted|down]
        "quick": quick,
        "in-sync": in_sync,  # wait until both are UpToDate
        "power-off": lambda self, name: self.nodes[name].power_off(),
        "power-on": power_on,
        "cut": lambda self, name: self.nodes[name].cut(),  # its network cable is pulled
        "heal": lambda self, name: self.nodes[name].heal(),
        "new-disk": new_disk,  # NODE LINK: that disk is an empty one now
        "copy": copy,  # NODE NODE FILE: from the first one to the second one
        "check": check,  # NODE COMMAND: must succeed
        "until": until,  # NODE COMMAND: must succeed within a minute
        "pacemaker": cluster_starts,  # corosync and Pacemaker are running, with a fencing device for each node
    }


@pytest.mark.parametrize("name", [p for p in PAGES if p not in WITHOUT_STEPS])
def test_recipes(cluster, name):
    assert Page(cluster, name).run() >= 3, "a recipe has steps"


def test_the_first_page(cluster):
    """README.md's commands for two real machines; `make newcomer` runs the same on two empty Debian roots."""
    alpha, bravo = machine(cluster, "alpha"), machine(cluster, "bravo")
    assert newcomer.follow(alpha, bravo) >= 4
    assert alpha.state()["peer_disk"] == "UpToDate" and "/mnt" in alpha.sh("cat /proc/mounts")


def test_the_index_names_every_page():
    with open(os.path.join(GUIDE, "README.md")) as f:
        named = set(re.findall(r"\]\(([\w-]+)\.md\)", f.read()))
    assert named == set(PAGES) - {"README"}


def test_a_page_is_judged(tmp_path):
    """What is printed is compared: the judge finds a difference, and accepts what is left out."""
    assert same("a\nb\nc\n", "a\n...\nc\n") and same("a 12 b\n", "a … b\n") and same("\na\n", "a\n") and same("", "...\n")
    assert not same("a\nb\n", "a\n") and not same("a\n", "b\n") and not same("a.\n", "aa\n")
