"""Each item of the configuration language alone is set, changed and removed under a resource that runs, and `adjust` called.

What runs then is what a fresh `run` of the same file has, and a second `adjust` finds nothing; or it is refused with the reason,
and nothing has changed.  The options come from the table that the parser itself uses (`urbd-lab options`): one that is added
there is tried here.
"""

import os
import re
import subprocess

import pytest

from cluster import MIB, PORT, URBD, Failed, eventually

SIZE = 32 * MIB

# What is not tried, and why.
LEFT_OUT = {
    "global": "no part of a resource: verbs read it when they are called",
    "proxy": "there is no proxy: what is in the section is read, and nothing else",
    "disk resync-after": "names another resource's volume; tests/test_operator.py has it",
    "net _name": "the peer's name, which is that of its section",
    "startup stacked-timeouts": "a flag that is accepted and does nothing",
}
TEXTS = {
    **dict.fromkeys(("data-integrity-alg", "csums-alg", "verify-alg", "cram-hmac-alg"), ("sha1", "sha256")),
    "shared-secret": ("first", "second"), "cpu-mask": ("1", "3"), "transport": ("tcp", "rdma"), "status-group": ("daemon", "adm"),
    "become-primary-on": ("a", "both"),
    **dict.fromkeys(("tls-keyring", "tls-privkey", "tls-certificate"), ("1", "2")),
    "size": ("24M", "28M"), "protocol-version-max": ("100", "99"), "rs-discard-granularity": ("4096", "8192"),
    "block-size": ("4096", "1024"), "usermode-helper": ("disabled", "/bin/true"),
}
# Without which an option is refused.
WITH = {"cram-hmac-alg": "shared-secret x;", "shared-secret": "cram-hmac-alg sha1;"}
# What a process has from its start.
FIXED = ("urbd front-end", "urbd fuse-io-uring", "urbd hand-over", "urbd drbd-names", "urbd status-group", "minor")
FOLLOWS_NOT = "which a process that runs cannot follow"


def table():
    lab = os.path.join(os.path.dirname(URBD), "urbd-lab")
    lines = subprocess.run([lab, "options"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [line.split("\t") for line in lines]


def values(name, kind, default, least, most, words):
    if name in TEXTS:
        return TEXTS[name]
    if kind == "number":
        number = int(default) if default.isdigit() else int(least)
        near = [n for n in (number + 1, number + 2, number - 1, number - 2, int(least), int(least) + 1) if int(least) <= n <= int(most)]
        return (words.split()[1], str(near[0])) if words else (str(near[0]), str(near[1]))
    if kind == "choice":
        other = [word for word in words.split() if word != default]
        return (other + [default])[:2]
    if kind == "command":
        return ('"/bin/true"', '"/bin/false"')
    raise AssertionError(f"{name}: no values are known of {kind}: add them here, or the reason why it is left out")


def items():
    """Name, and the texts that are added to the resource, one after the other."""
    out = []
    for section, name, *spec in table():
        if section in LEFT_OUT or f"{section} {name}" in LEFT_OUT:
            continue
        inside = [f"{name} {value}; {WITH.get(name, '')}" for value in values(name, *spec)]
        wrap = (lambda s: f"urbd {{ resync-goal {{ {s} }} }}") if section == "resync-goal" else (lambda s: f"{section} {{ {s} }}")
        out.append((f"{section} {name}", [wrap(s) for s in inside]))
    return out


class Text:
    """The resource's file."""

    def __init__(self, a, b):
        self.a, self.b = a, b
        self.other = a.disk_file(0) + ".other"
        self.meta = a.disk_file(0) + ".meta"

    def of(self, extra="", **what):
        own = {"disk": self.a.disk_path(0), "meta": "internal", "device": "/dev/drbd0 minor 0", "port": PORT, "far": PORT, **what}
        return (f"resource r0 {{\n  {extra}\n"
                f"  on a {{ address ipv4 {self.a.ip}:{own['port']}; volume 0 {{ device {own['device']}; disk {own['disk']}; "
                f"meta-disk {own['meta']}; }} }}\n"
                f"  on b {{ address ipv4 {self.b.ip}:{own['far']}; volume 0 {{ device /dev/drbd0 minor 0; disk {self.b.disk_path(0)}; "
                f"meta-disk internal; }} }}\n}}\n")

    def structure(self):
        """What is no option."""
        return [
            ("another disk", [self.of(disk=self.other)]),
            ("a disk that is not there", [self.of(disk="/nonexistent/disk")]),
            ("meta-disk", [self.of(meta=self.meta)]),
            ("minor", [self.of(device="/dev/drbd7 minor 7"), self.of(device="/dev/drbd8 minor 8")]),
            ("a name", [self.of(device="/dev/drbd_one minor 0"), self.of(device="drbd_two minor 0")]),
            ("own port", [self.of(port=7901), self.of(port=7902)]),
            ("peer's port", [self.of(far=7901), self.of(far=7902)]),
        ]


def seen(a):
    """What a program can find out about the resource."""
    pid = a.serving()
    files = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            files.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue  # it was one of that moment
    group = os.stat(os.path.join(a.run_dir, "r0.sock")).st_gid
    return {
        "show": a.urbd("show", "r0").out,
        **shown_of_file(a),
        "files": sorted({f for f in files if f.startswith(a.dir) and not f.startswith(a.run_dir) and not f.endswith(".log")}),
        "listens": listens(a),
        "names": names(a),
        "size": a.status()["devices"][0]["size"],
        "group": group,
    }


def shown_of_file(a):
    """What the verbs for scripts print, called one after the other by one shell."""
    verbs = ("sh-dev", "sh-minor", "sh-ll-dev", "sh-md-dev", "sh-md-idx", "sh-udev", "sh-ip")
    script = f"for verb in {' '.join(verbs)}; do {URBD} $verb r0 || exit; echo --; done"
    shown = a.run(["sh", "-c", script], env=a.env(), stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    parts = shown.split("--\n")
    assert len(parts) == len(verbs) + 1 and not parts[-1], shown
    return dict(zip(verbs, parts))


def names(a):
    return a.run(["sh", "-c", "cd /dev/urbd; find . -type l | sort"], stdout=subprocess.PIPE, text=True).stdout


def listens(a):
    """On which ports; it listens when it has begun to connect."""
    with open(f"/proc/{a.serving()}/net/tcp") as f:
        return sorted(int(line.split()[1].split(":")[1], 16) for line in f if line.split()[3] == "0A")


class Bench:
    def __init__(self, cluster):
        self.a, b = cluster.node("a", size=SIZE), cluster.node("b", size=SIZE)
        self.text = Text(self.a, b)
        for path, size in ((self.text.other, SIZE), (self.text.meta, 4 * MIB)):
            with open(path, "wb") as f:
                f.truncate(size)
        self.make_metadata()

    def make_metadata(self):
        """On all disks: what a device has become before is forgotten."""
        for what in ({"disk": self.text.other}, {"meta": self.text.meta}, {}):
            self.a.put_res("r0", self.text.of(**what))
            self.a.create_md()

    def fresh(self, text):
        """What is seen of a process that is started with this; `None` if that is refused."""
        self.make_metadata()
        self.a.put_res("r0", text)
        if self.a.call("-d", "up", "r0").rc:
            return None
        try:
            self.a.start()
        except Failed:
            return None
        if self.a.state()["disk"] in ("Diskless", "Attaching"):
            eventually("attached", lambda: self.a.state()["disk"] != "Attaching", 10)
        lost = self.a.state()["disk"] == "Diskless"
        eventually("listens", lambda: listens(self.a), 10)
        if "front-end" not in text:
            eventually("it has its names", lambda: names(self.a), 10)
        got = None if lost else seen(self.a)
        self.a.stop()
        return got

    def adjusted(self, name, text, wanted):
        """Calls it, and compares. True: it was taken over."""
        a = self.a
        before = seen(a)
        a.put_res("r0", text)
        dry, r = a.call("-d", "adjust", "r0"), a.call("adjust", "r0")
        if r.rc:
            assert r.rc in (1, 10, 11, 17) and r.err.strip(), (name, r)
            if name == "disk size" and "the size stays" in r.err:
                # Without a peer, of which it is not known what it has room for.
                assert r.rc == 10 and seen(a)["size"] == before["size"] < 28 << 10, r
                return False
            # What it depends on is the moment's.
            assert r.rc in (11, 17) or dry.rc, (name, "a dry run says nothing of it", dry)
            fixed = name in FIXED and FOLLOWS_NOT in r.err and "nothing was changed" in r.err
            in_use = name == "disk size" and r.rc == 11 and "is in use" in r.err and "nothing was changed" in r.err
            only_copy = name in ("another disk", "meta-disk") and r.rc == 17
            assert fixed or in_use or only_copy or wanted is None, (name, text, r)
            after = seen(a)
            # What was written to the file is no part of what runs.
            of_file = ("sh-minor", "sh-ll-dev", "sh-md-dev", "sh-md-idx", "sh-udev", "sh-ip", "sh-dev")
            differs = [k for k in after if k not in of_file and after[k] != before[k]]
            assert not differs, (name, text, r, [(before[k], after[k]) for k in differs])
            return False
        assert wanted is not None, (name, text, "cannot be started so, and is taken over", r)
        eventually("listens", lambda: listens(a), 10)
        eventually(f"{name}: as a fresh one", lambda: listens(a) == wanted["listens"], 5)
        after = seen(a)
        assert after == wanted, (name, text, [(k, wanted[k], after[k]) for k in wanted if wanted[k] != after[k]])
        for call in (["-d", "adjust", "r0"], ["adjust", "r0"]):
            again = a.call(*call)
            assert again.rc == 0 and not again.out.strip(), (name, call, again)
        return True


def cases(bench, part):
    """Every fourth option, or all that is no option; each with its texts."""
    if part == "structure":
        return bench.text.structure()
    of = [(name, [bench.text.of(extra) for extra in extras]) for name, extras in items()]
    return of[part::4]


@pytest.mark.parametrize("part", [0, 1, 2, 3, "structure"])
def test_each_item_alone(cluster, part):
    bench = Bench(cluster)
    a, base = bench.a, bench.text.of()
    todo = cases(bench, part)
    plain = bench.fresh(base)
    fresh = {text: bench.fresh(text) for _, texts in todo for text in texts}
    assert plain is not None and any(fresh.values())
    for primary in (False, True):
        bench.make_metadata()
        a.put_res("r0", base)
        a.start()
        eventually("it has its names", lambda: names(a), 10)
        held = None
        if primary:
            a.urbd("primary", "--force", "r0")
            held = os.open(a.device(), os.O_RDWR)
        for name, texts in todo:
            print(name)
            taken = [bench.adjusted(name, text, fresh[text]) for text in texts]
            a.put_res("r0", base)
            r = a.call("adjust", "r0")
            if name == "disk size" and r.rc == 10 and "the size stays" in r.err and not primary:
                # As long as it is not known what the peer has room for; another device is as large as its disk.
                a.stop()
                bench.make_metadata()
                a.start()
                continue
            assert r.rc == 0, (name, r)
            eventually("it listens again", lambda: listens(a) == plain["listens"], 10)
            back = seen(a)
            assert back == plain, (name, taken, [(k, plain[k], back[k]) for k in plain if plain[k] != back[k]])
        if held is not None:
            os.close(held)
            eventually("it is closed", lambda: a.call("secondary", "r0").rc == 0)
        a.stop()


def test_what_is_left_out_is_there():
    """A reason for something that does not exist any more is none."""
    known = {section for section, *_ in table()} | {f"{section} {name}" for section, name, *_ in table()}
    assert set(LEFT_OUT) <= known, set(LEFT_OUT) - known
    assert {name for name in FIXED if " " in name} <= known
    assert len(items()) > 90 and all(re.search(r"\S", text) for _, texts in items() for text in texts)
