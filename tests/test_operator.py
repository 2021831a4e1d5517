"""An operator's day: what is typed on the machine of one node, beside what the real drbdadm, drbdsetup and drbdmeta do where
they can be run without the kernel module (`docs/spec/config-and-cli.md` 3)."""

import functools
import glob
import json
import os
import pty
import re
import shlex
import socket
import subprocess

import pytest

import cluster as C
from cluster import MIB

GOOD = os.path.abspath(os.path.join(C.TESTS, "..", "vectors", "config", "good"))
# Those that the installed drbdadm does not refuse, where an address of the other node may be missing.
REFUSED = {"03-floating-ipv4", "04-floating-ipv6", "28-not-for-this-host", "32-module-version", "40-934-new-options",
           "41-934-outside-address", "42-929-legacy-syncer"}
SAMPLES = sorted(n for n in os.listdir(GOOD) if os.path.exists(os.path.join(GOOD, n, "drbd.conf")) and n not in REFUSED)


def on_alpha(script, *texts):
    """Runs a shell script as on the host alpha, which has every address that is in these texts."""
    found = {a for text in texts for a in re.findall(r"\b(?:10|192|172)\.\d+\.\d+\.\d+\b", text)}
    found |= {a for text in texts for a in re.findall(r"\[([0-9a-f:]+)\]", text)}
    addresses = "".join(f"ip addr add {a}/{128 if ':' in a else 32} dev lo 2>/dev/null; " for a in sorted(found))
    env = {k: v for k, v in os.environ.items() if not k.startswith("URBD_")}
    env.update(URBD_NODE="alpha", URBD_RUN_DIR="/nonexistent/run", URBD=C.URBD)
    return subprocess.run(["unshare", "--uts", "--net", "sh", "-c", f"hostname alpha; ip link set lo up; {addresses}{script}"],
                          capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL, timeout=100)


def everything(folder):
    files = [f for f in glob.glob(f"{folder}/**", recursive=True) if os.path.isfile(f) and not f.endswith(("json", "txt"))]
    return [open(f).read() for f in files]


def both(conf, calls, texts):
    """The lines that drbdadm and urbd print for each call, and their exit statuses."""
    script = "".join(f"echo '@@@{c}'; $PROGRAM --config-file={conf} {c} 2>/dev/null; echo \"@exit $?\"; " for c in calls)
    answers = []
    for program in ("drbdadm", C.URBD):
        out = on_alpha(f"PROGRAM={program}; {script}", *texts).stdout
        parts = [part.split("\n", 1) for part in out.split("@@@")[1:]]
        answers.append({call: [x for x in text.split("\n") if x.strip()] for call, text in parts})
        assert len(answers[-1]) == len(set(calls)), out
    return answers


def plain(lines):
    """Without comments, which name versions and paths, and without the peer's name that the real tool adds to a resource that
    is dumped alone."""
    unwanted = ("(null)", "<template", '<option name="_name"', "   _name   ")
    text = "\n".join(x.rstrip() for x in lines if not x.lstrip().startswith("#") and not any(u in x for u in unwanted))
    text = re.sub(r'\n *<section name="net">\n *</section>', "", text)
    return re.sub(r"\n *net {\n *}", "", text)


@pytest.mark.parametrize("sample", SAMPLES)
def test_dumps_are_those_of_drbdadm(sample):
    """All of it, and each resource alone: then without what is around it."""
    folder = os.path.join(GOOD, sample)
    conf, texts = os.path.join(folder, "drbd.conf"), everything(folder)
    names = on_alpha(f"drbdadm -c {conf} sh-resources 2>/dev/null", *texts).stdout.split()
    calls = ["dump all", "dump-xml all"] + [f"{verb} {name}" for name in names[:3] for verb in ("dump", "dump-xml")]
    real, ours = both(conf, calls, texts)
    compared = 0
    for call in calls:
        if real[call][-1] != "@exit 0":
            continue  # some samples cannot be dumped by that version
        compared += 1
        # The real tool prints flags where they were read, we where they belong.
        assert sorted(plain(real[call]).split("\n")) == sorted(plain(ours[call]).split("\n")), call
    assert compared >= 2, real


def test_a_named_resource_is_dumped_alone():
    conf = os.path.join(GOOD, "06-multi-volume-override", "drbd.conf")
    for verb in ("dump", "dump-xml"):
        out = on_alpha(f"$URBD -c {conf} {verb} mv", *everything(os.path.dirname(conf))).stdout
        assert "common" not in out and "<config" not in out and "resource" in out, out


# What is compared line by line. The others print what only urbd has: metadata in its own format, its device names, and
# options that are reset before they are set.
DRY = ("primary secondary down connect disconnect detach invalidate invalidate-remote outdate pause-sync resume-sync resize "
       "role cstate dstate get-gi show-gi suspend-io resume-io verify wait-connect wait-sync new-current-uuid check-resize "
       "up adjust attach sh-ip sh-ll-dev sh-md-dev sh-md-idx sh-minor sh-resource sh-resources sh-nop").split()
HANDLERS = ("after-resync-target before-resync-source before-resync-target disconnected fence-peer initial-split-brain "
            "local-io-error out-of-sync pri-lost pri-lost-after-sb pri-on-incon-degr quorum-lost split-brain unfence-peer").split()


@pytest.mark.parametrize("sample", ["01-classic-84", "02-twonode-v9", "06-multi-volume-override", "16-quoting-comments",
                                    "22-handlers-all"])
def test_dry_runs_are_those_of_drbdadm(sample):
    folder = os.path.join(GOOD, sample)
    calls = [f"-d {verb} all" for verb in (*DRY, *HANDLERS)]
    real, ours = both(os.path.join(folder, "drbd.conf"), calls, everything(folder))
    for call in calls:
        # The real tool names the resource of what it outdates, which its own drbdsetup refuses.
        want = [re.sub(r"^drbdsetup outdate .* ", "drbdsetup outdate ", x) for x in real[call]]
        have, want = ([x.replace(" --set-defaults", "") for x in lines if not x.startswith("drbdmeta")]
                      for lines in (ours[call], want))
        assert have == want, call


def test_dry_runs_of_parts_and_options(tmp_path):
    conf = tmp_path / "drbd.conf"
    conf.write_text("""common { net { protocol C; } }
        resource r0 { handlers { split-brain "echo $DRBD_RESOURCE 'a b'; exit 7"; }
          device minor 10; disk /dev/vg0/h; meta-disk internal;
          on alpha { node-id 0; address 10.1.1.1:7835; } on bravo { node-id 1; address 10.1.1.2:7835; } }""")
    calls = [f"-d {call}" for call in (
        "split-brain r0", "split-brain r0/0", "split-brain minor-10", "split-brain r0:bravo", "fence-peer r0",
        "connect r0:bravo", "wait-connect r0:bravo", "wait-connect r0:bravo/0", "wait-sync r0:bravo/0", "verify --start=100 r0:bravo/0",
        "primary --force r0", "resize --size=10M r0", "connect --discard-my-data r0", "new-current-uuid --clear-bitmap r0",
        "adjust --skip-disk r0", "adjust --skip-net r0", "no-such", "primary no-such", "detach r0/7", "role minor-99")]
    real, ours = both(conf, calls, [conf.read_text()])
    for call in calls:
        want, have = ([x for x in lines if not x.startswith("drbdmeta")] for lines in (real[call], ours[call]))
        assert have == want, call


def program(node, name, *args, **kw):
    """Calls urbd by the name of a real tool."""
    link = os.path.join(node.dir, name)
    if not os.path.islink(link):
        os.symlink(C.URBD, link)
    r = node.run([link, *args], env=node.env(), timeout=60, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                 stderr=subprocess.PIPE, **kw)
    return C.Call(r.returncode, r.stdout, r.stderr)


def test_no_verb_does_anything_in_a_dry_run(pair):
    """Each verb with a sane call: not a byte of a disk changes, no handler runs, no process begins."""
    a, _ = pair.nodes
    ran = os.path.join(a.dir, "handler-ran")
    pair.configure(handlers=" ".join(f'{h} "touch {ran}";' for h in HANDLERS))
    a.create_md()
    dump = os.path.join(a.dir, "dump")
    with open(dump, "w") as f:
        f.write(a.urbd("dump-md", "r0").out)
    verbs = re.findall(r"^  ([a-z][a-z0-9-]*) ", a.urbd("help").out, re.M)
    assert len(verbs) > 50
    with open(a.disk_file(), "rb") as f:
        before = f.read()
    refused = {"sim", "bench", "setup"}  # not in help
    sane = {"restore-md": ["--force", "r0/0", dump], "set-gi": ["--force", "--gi", "1:2:3:4:1:1", "r0"],
            "create-md": ["--force", "r0"], "wipe-md": ["--force", "r0"], "completion": ["bash"], "version": [], "sim": ["--seed", "3"],
            "sh-resources": [], "sh-mod-parms": [], "events2": ["--now"], "help": [], "bench": ["bars", "--list"],
            "inspect": [dump]}
    for verb in (*verbs, *refused, *HANDLERS, "wait-con-int"):
        r = a.call("-d", verb, *sane.get(verb, ["r0"]))
        assert (r.rc == 1 and "nothing was done" in r.err) == (verb in refused), (verb, r)
        assert r.rc == 0 or verb in refused or "does not run" in r.err or verb == "sh-lr-of", (verb, r)
    with open(a.disk_file(), "rb") as f:
        assert f.read() == before
    assert not os.path.exists(ran) and not a.pids() and not os.listdir(a.run_dir)


def test_a_dry_run_prints_what_can_be_run(synced):
    """Every line of drbdsetup that a dry run prints is a command that works, with the peer's node id."""
    a, b = synced.nodes
    synced.configure(net="verify-alg crc32c;")
    for n in (a, b):
        n.urbd("adjust", "r0")
    node_id = b.status()["node-id"]
    for verb in ("cstate", "wait-connect", "wait-sync", "pause-sync", "resume-sync", "verify", "disconnect", "connect", "role", "dstate",
                 "net-options", "peer-device-options", "disk-options", "resource-options", "get-gi", "show-gi", "invalidate-remote",
                 "primary", "suspend-io", "resume-io", "resize", "secondary", "detach", "attach"):
        lines = [x for x in a.urbd("-d", verb, "r0").out.split("\n") if x.startswith("drbdsetup") and "check-resize" not in x]
        assert lines, verb
        for line in lines:
            words = shlex.split(line)
            options = [o for o in words if o.startswith("--_")]  # the peer's name is no option that can be changed
            if verb == "net-options" and options:
                words = [w for w in words if w not in options]
            r = program(a, "drbdsetup", *words[1:])
            assert r.rc == 0, (line, r)
        if verb in ("resume-sync", "verify", "connect", "invalidate-remote", "attach"):
            synced.wait_synced()
    # And in every form of naming the peer and his volume.
    for form in ("b", str(node_id)):
        assert a.urbd("cstate", f"r0:{form}").out == "Connected\n"
        a.urbd("wait-connect", f"r0:{form}/0")
        a.urbd("wait-sync", f"r0:{form}")
    for nobody in ("9", "c", str(a.status()["node-id"])):
        r = a.call("cstate", f"r0:{nobody}")
        assert r.rc == 1 and "node id" in r.err, r
        assert program(a, "drbdsetup", "cstate", "r0", nobody).rc == 10
    assert program(a, "drbdsetup", "wait-sync-volume", "r0", str(node_id), "0").rc == 0
    assert program(a, "drbdsetup", "outdate", "r0", "0").rc != 20
    assert program(a, "drbdsetup", "primary", "r0", "--force=no").rc == 0
    # Disks are those that are named.
    b.urbd("detach", "r0")
    r = program(b, "drbdsetup", "attach", "0", "/nonexistent/disk", "/nonexistent/disk", "internal")
    assert r.rc == 20 and "/nonexistent/disk" in r.err, r
    assert program(b, "drbdsetup", "attach", "0", b.disk_path(), b.disk_path(), "internal").rc == 0
    synced.wait_synced()


def usages(text):
    """The arguments in a usage text, without options."""
    line = re.search(r"USAGE: drbdsetup \S+(.*)", text).group(1)
    return re.sub(r"\[.*", "", line).split()


def test_drbdsetup_takes_the_arguments_of_the_real_one(pair):
    a, _ = pair.nodes
    ours = program(a, "drbdsetup", "help")
    real = subprocess.run(["/usr/sbin/drbdsetup", "help"], capture_output=True, text=True)
    assert ours.rc == real.returncode == 20
    commands = re.findall(r"^    ([a-z0-9-]+) - ", ours.out, re.M)
    theirs = set(re.findall(r"^    ([a-z0-9-]+) - ", real.stdout, re.M))
    newer = {"peer-role", "udev"}  # of drbd-utils 9.24 and 9.28
    assert len(commands) > 30 and set(commands) <= theirs | newer
    commands = [c for c in commands if c in theirs]
    assert theirs <= set(commands)
    for command in commands:
        for call in (["help", command], [command, "--help"]):
            have = program(a, "drbdsetup", *call)
            want = subprocess.run(["/usr/sbin/drbdsetup", *call], capture_output=True, text=True)
            assert have.rc == want.returncode, call
            assert usages(have.out) == usages(want.stdout), call
        needed = len(re.findall(r"\{[a-z_-]+\}", " ".join(usages(want.stdout).copy())))
        words = ["r0", "1", "0", "x", "y"]
        if command not in ("status", "events2", "show"):
            r = program(a, "drbdsetup", command, *words[:needed - 1])
            assert r.rc == 20 and "usage" in r.err, (command, r)
        r = program(a, "drbdsetup", command, *words[:needed], "too", "many")
        assert r.rc == 20, (command, r)
    for bad in ([], ["--help"], ["help", "no-such"], ["no-such"]):
        want = subprocess.run(["/usr/sbin/drbdsetup", *bad], capture_output=True, text=True)
        assert program(a, "drbdsetup", *bad).rc == want.returncode == 20, bad


def test_show_without_a_name_shows_all(pair):
    a, _ = pair.nodes
    assert program(a, "drbdsetup", "show").out == ""
    a.put_res("r1", C.config_text(pair.nodes, name="r1", port=7799, minor=1).replace("disk0", "disk1"))
    with open(a.disk_file(1), "wb") as f:
        f.truncate(8 * MIB)
    for res in ("r0", "r1"):
        a.urbd("create-md", "--force", res)
        a.start(res)
    for call in (["show"], ["show", "all"]):
        r = program(a, "drbdsetup", *call)
        assert r.rc == 0 and re.findall(r'^resource "(.*)" \{', r.out, re.M) == ["r0", "r1"], r
        assert a.urbd(*call).out == r.out
    assert len(re.findall("^resource", program(a, "drbdsetup", "show", "r1").out, re.M)) == 1
    assert a.urbd("metrics", "all").out.count('resource="r1"') > 5
    assert a.call("events2", "--now", "r0", "r1").rc == 1


def test_colours_only_where_they_are_wanted(pair):
    a, _ = pair.nodes
    a.create_md()
    a.start()

    def on_a_terminal(*args, **env):
        master, slave = pty.openpty()
        with os.fdopen(master, "rb") as reader:
            p = subprocess.Popen(a.prefix() + [C.URBD, *args], stdout=slave, stdin=slave, stderr=slave, env=a.env(TERM="xterm", **env))
            os.close(slave)
            text = b""
            while True:
                try:
                    got = reader.read1(65536)
                except OSError:  # the last one has closed it
                    got = b""
                if not got:
                    break
                text += got
            assert p.wait(20) == 0
        return b"\x1b[" in text

    assert on_a_terminal("status")
    assert on_a_terminal("status", NO_COLOR="")
    assert not on_a_terminal("status", NO_COLOR="1")
    assert not on_a_terminal("help", NO_COLOR="1")
    assert on_a_terminal("status", "--color=always", NO_COLOR="1")
    assert not on_a_terminal("status", "--color=never")
    assert not on_a_terminal("events2", "--now", NO_COLOR="1")


def test_quorum_is_refused_in_8_4s_dialect(pair):
    """DRBD 8.4's dialect has none: it would be shown, and not kept."""
    a, b = pair.nodes
    for n in (a, b):
        n.create_md()
        n.start()
    for option in ("quorum majority;", "quorum 2;", "quorum-minimum-redundancy 2;"):
        pair.configure(options=option)
        before = a.urbd("show", "r0").out
        for call in (["adjust", "r0"], ["-d", "adjust", "r0"], ["-d", "up", "r0"], ["resource-options", "r0", "--" + option[:-1].replace(" ", "=")]):
            r = a.call(*call)
            assert r.rc == 10 and "quorum" in r.err and "8.4's dialect lacks" in r.err and "off" in r.err, (call, r)
        assert a.urbd("show", "r0").out == before
    a.stop()
    for verb in ("up", "run", "adjust"):
        r = a.call(verb, "r0")
        assert r.rc == 10 and "8.4's dialect lacks" in r.err, (verb, r)
    pair.configure(options="quorum off;")
    a.start()
    a.urbd("adjust", "r0")


def test_speed_set_at_the_source_is_said_to_be_the_targets(pair):
    a, b = pair.nodes
    for n in (a, b):
        n.create_md()
        n.start()
    for n in (a, b):
        n.wait(conn="Connected")
    b.urbd("peer-device-options", "r0", "--c-max-rate=100k", "--resync-rate=100k")
    a.urbd("primary", "--force", "r0")
    a.wait(repl="SyncSource")
    r = a.urbd("peer-device-options", "r0", "--c-max-rate=50M")
    assert "c-max-rate" in r.err and "target" in r.err, r
    r = a.urbd("disk-options", "r0", "--resync-rate=60M")
    assert "resync-rate" in r.err and "c-max-rate" not in r.err, r
    assert not a.urbd("peer-device-options", "r0", "--c-min-rate=1M").err
    r = a.urbd("adjust", "r0")
    assert "c-max-rate, resync-rate" in r.err or "resync-rate, c-max-rate" in r.err, r
    assert not b.urbd("peer-device-options", "r0", "--c-max-rate=400M", "--resync-rate=400M").err
    pair.wait_synced()
    assert not a.urbd("peer-device-options", "r0", "--c-max-rate=50M").err


def test_options_without_effect_are_not_accepted_in_silence(synced):
    a, b = synced.nodes
    r = a.call("resize", "--assume-peer-has-space", "r0")
    assert r.rc and "let that grow first" in r.err, r
    r = a.urbd("disk-options", "r0", "--disk-barrier=yes")
    assert "does not act on it" in r.err, r
    r = a.call("suspend-io", "--bdev-freeze=yes", "r0")
    assert r.rc == 1 and "fsfreeze --freeze" in r.err, r
    a.urbd("suspend-io", "--bdev-freeze=no", "r0")
    a.urbd("resume-io", "r0")
    for words, rc, says in ((("--sync-from-peer-node-id=7",), 10, "(158)"), (("--sync-from-peer-node-id=32",), 10, "(171)"),
                            (("--sync-from-peer-node-id=900",), 1, "0 to 31")):
        r = b.call("invalidate", *words, "r0")
        assert r.rc == rc and says in r.err, r
    for words, rc, says in ((("--force-resync",), 10, "(151)"), (("--force-resync", "--clear-bitmap"), 1, "not both")):
        r = a.call("new-current-uuid", *words, "r0")
        assert r.rc == rc and says in r.err, r
    assert a.state()["disk"] == b.state()["disk"] == "UpToDate"
    # Part of a resource takes over its own options alone.
    synced.configure(net="max-buffers 4000;", disk="c-min-rate 3M; on-io-error pass_on;")
    a.urbd("adjust", "--skip-net", "r0")
    shown = a.urbd("show", "r0").out
    assert "pass_on" in shown and "max-buffers" not in shown, shown
    a.urbd("adjust", "--skip-disk", "r0")
    assert not a.urbd("-d", "adjust", "r0").out
    synced.configure(net="max-buffers 4000;", disk="c-min-rate 3M; on-io-error detach;")
    a.urbd("adjust", "--skip-net", "r0")  # nothing else differs
    assert not a.urbd("-d", "adjust", "r0").out
    # A size holds until the next adjust.
    full = a.data_size()
    for n in (a, b):
        n.urbd("disk-options", "r0")
    assert a.urbd("resize", "--size=16M", "r0").rc == 0 or full <= 16 * MIB
    a.stop()
    r = a.call("adjust", "--skip-net", "r0")
    assert r.rc == 10 and "as a whole" in r.err, r


# Each with what is said about it.
NOT_STARTABLE = [
    ({"net": "on-congestion pull-ahead;"}, "pull-ahead"),
    ({"protocol": "B", "net": "on-congestion pull-ahead;"}, "needs protocol A"),
    ({"protocol": "A", "net": "allow-two-primaries;"}, "needs protocol C"),
    ({"protocol": "A", "net": "fencing resource-and-stonith;"}, "needs protocol B or C"),
    ({"net": "cram-hmac-alg sha1;"}, "set together"),
    ({"net": "cram-hmac-alg crc32c; shared-secret x;"}, "crc32c"),
    ({"net": "tls yes;"}, "TLS"),
    ({"net": "transport rdma;"}, "transport"),
    ({"net": "data-integrity-alg rot13;"}, "rot13"),
    ({"options": "quorum majority;"}, "quorum"),
]


def ask(node, command, res="r0"):
    """What the process answers to a command on its control socket, without the program that checks first."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        s.connect(os.path.join(node.run_dir, f"{res}.sock"))
        answers = s.makefile("r")
        for request in ({"hello": {"version": 1}}, {"command": command}):
            s.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(answers.readline())
        return answer


def test_what_cannot_be_started_is_not_taken_over(pair):
    """A killed node must be able to start with what it ran with."""
    a, b = pair.nodes
    for n in (a, b):
        n.create_md()
        n.start()
    before = a.urbd("show", "r0").out
    good = {"protocol": "C", "net": "", "options": ""}
    for options, word in NOT_STARTABLE:
        pair.configure(**{**good, **options})
        for call in (["adjust", "r0"], ["adjust", "--skip-disk", "r0"], ["adjust", "r0:b"]):
            r = a.call(*call)
            assert r.rc in (1, 10) and word in r.err, (options, call, r)
        told = [w for o in options.get("net", "").split(";") if o.strip() for w in [o.split()]]
        told = ["--" + "=".join(w if len(w) > 1 else [*w, "yes"]) for w in told]
        told += [f"--protocol={options['protocol']}"] if "protocol" in options else []
        told = ["resource-options", "r0", "--quorum=majority"] if "options" in options else ["net-options", "r0", "1", *told]
        answer = ask(a, {"tell": {"calls": [told]}})
        assert word in answer["error"]["message"], (options, answer)
        words = [w for o in options.get("net", "").split(";") if o.strip() for w in [o.split()]]
        given = ["--" + "=".join(w if len(w) > 1 else [*w, "yes"]) for w in words if w[0] not in ("tls", "transport")]
        given += [f"--protocol={options['protocol']}"] if "protocol" in options else []
        if given:
            r = a.call("net-options", "r0", *given)
            assert r.rc in (1, 10) and word in r.err, (options, given, r)
        assert a.urbd("show", "r0").out == before, options
    # And it is refused where nothing runs, with the same words.
    a.stop()
    for options, word in NOT_STARTABLE:
        pair.configure(**{**good, **options})
        for call in (["up"], ["run"], ["adjust"], ["-d", "up"], ["-d", "run"], ["-d", "adjust"]):
            r = a.call(*call, "r0")
            assert r.rc in (1, 10) and word in r.err, (options, call, r)
    pair.configure(**good)
    a.start()


# Names that LINSTOR chooses from, and one that nobody has.
VERIFY_ALGS = ["crct10dif", "crc32c", "sha384", "sha512", "sha256", "sha1", "md5"]


def test_an_algorithm_that_only_compares_stops_nothing(pair):
    a, b = pair.nodes
    pair.configure(net="verify-alg xxhash64; csums-alg rot13;")
    for n in (a, b):
        n.create_md()
    for call in (["-d", "up", "r0"], ["up", "r0"]):
        r = a.call(*call)
        for part in ("`xxhash64` as verify-alg: `verify` is refused", "`rot13` as csums-alg", "sha384", "warning"):
            assert r.rc == 0 and part in r.err, r
    b.start()
    a.urbd("primary", "--force", "r0")
    pair.wait_synced()
    r = a.call("verify", "r0")
    assert r.rc == 11 and "cannot compute" in r.err and "xxhash64" in r.err, r
    # It is taken over by who runs, in both directions, and the connection stays.
    for name in [*VERIFY_ALGS, "rot13"]:
        pair.configure(net=f"verify-alg {name};")
        for n in (b, a):
            r = n.call("adjust", "r0")
            assert r.rc == 0 and ("`rot13` as verify-alg" in r.err) == (name == "rot13"), r
        if name != "rot13":
            a.urbd("verify", "r0")
            done = f"{VERIFY_ALGS.index(name) + 1}"
            C.eventually(f"{name} has compared", lambda: a.log().count("online verify done: 0 KiB differ") == int(done), 30)
    assert a.state()["conn"] == "Connected" and "link closed" not in a.log()
    assert a.call("verify", "r0").rc == 11


def test_nodes_of_one_machine_leave_each_others_device_link_alone(cluster):
    """As the README says it can be tried: one machine, a name and a run directory for each, one /dev/urbd."""
    a, b = cluster.node("a"), cluster.node("b")
    shared = os.path.join(cluster.dir, "dev")
    os.mkdir(shared)
    for n in (a, b):
        n.env = functools.partial(n.env, URBD_DEV_DIR=shared)
    cluster.up(net="allow-two-primaries;")
    link = os.path.join(shared, "by-res", "r0", "0")

    def leads_to(node):
        path = node.status()["devices"][0]["device-path"]
        return path if path == link else os.path.realpath(path)

    # Who was there first has it, until another one becomes Primary.
    mine, theirs = (n.door() for n in (a, b))
    C.eventually("the device has its name", lambda: os.path.islink(link) and os.readlink(link) == mine)
    assert leads_to(a) == link and leads_to(b) == theirs
    # Everything that the other one does, but to become Primary.
    b.urbd("secondary", "r0")
    b.stop()
    assert b.urbd("sh-dev", "r0").out == link + "\n"
    b.urbd("down", "r0")
    b.start()
    b.kill()
    b.urbd("down", "r0")
    b.start()
    b.urbd("adjust", "r0")
    cluster.wait_synced()
    assert os.readlink(link) == mine and leads_to(a) == link
    # The last that becomes Primary has the name; the other one still has its device.
    b.urbd("primary", "r0")
    C.eventually("the name has gone over", lambda: os.readlink(link) == theirs)
    assert leads_to(b) == link and leads_to(a) == mine
    a.urbd("secondary", "r0")
    a.kill()
    a.urbd("down", "r0")
    a.start()
    assert os.readlink(link) == theirs
    # What a killed node leaves it clears away itself.
    b.kill()
    assert os.readlink(link) == theirs
    b.urbd("down", "r0")
    assert not os.path.islink(link)


def test_primary_without_its_block_device_fails(pair):
    """A cluster manager must not take a node for promoted that has nothing to mount."""
    a, b = pair.nodes

    def in_the_way(path, there):
        a.run(["mount", "--bind", "/dev/null", path] if there else ["umount", path], check=True)

    in_the_way("/dev/loop-control", True)
    for n in (a, b):
        n.create_md()
        n.start()
    for n in (a, b):
        n.wait(conn="Connected")
    r = a.call("primary", "--force", "r0")
    assert r.rc == 10 and "no block device (volume 0:" in r.err and "Secondary again" in r.err and "front-end none" in r.err, r
    assert a.state()["role"] == "Secondary"
    b.urbd("primary", "r0")
    b.urbd("secondary", "r0")
    # As soon as it can be made it is.
    in_the_way("/dev/loop-control", False)
    a.urbd("primary", "r0")
    assert os.path.exists(a.device())
    a.urbd("primary", "r0")
    a.stop()
    # None at all, from the start.
    in_the_way("/dev/fuse", True)
    a.start()
    r = a.call("primary", "r0")
    assert r.rc == 10 and "no block device (FUSE" in r.err and a.state()["role"] == "Secondary", r
    a.stop()
    # An NBD socket is all that is promised, or all that this user can have.
    pair.configure(extra="urbd { front-end none; }")
    a.start()
    a.urbd("primary", "r0")
    a.write(0, b"\x42" * 4096)
    a.stop()


def test_another_user_than_root_has_the_nbd_socket(pair):
    a, _ = pair.nodes
    user, place = 54321, pair.dir
    a.create_md()
    for path in (place, a.dir, os.path.join(a.dir, "res.d")):
        os.chmod(path, 0o755)
    for path in (a.run_dir, a.disk_file()):
        os.chown(path, user, user)
    pair.wrap = lambda argv: ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *argv]
    a.start()
    a.urbd("primary", "--force", "r0")
    assert a.state()["role"] == "Primary" and "no block devices on this host" in a.log()
    a.stop()


def test_demotion_after_use_leaves_no_errors_in_the_logs(synced):
    a, _ = synced.nodes

    def kernel_errors(device):
        """Older ones leave the kernel's log at any time."""
        name = os.path.basename(device)
        return re.findall(rf"\[.*I/O error, dev {name},.*", subprocess.run(["dmesg"], capture_output=True, text=True).stdout)

    def use(device, *options):
        subprocess.run(["dd", "if=/dev/urandom", f"of={device}", "bs=64k", "count=20", "conv=notrunc", *options], check=True,
                       stderr=subprocess.DEVNULL)

    # By the side door, as udev's links have it: nobody is asked, and nobody writes back at the last close.
    device = a.side_door()
    before = kernel_errors(device)
    for options in ((), ("oflag=direct",), ("conv=notrunc,fsync",)):
        subprocess.run(["mkfs.ext4", "-q", "-F", device], check=True)
        use(device, *options)
        a.urbd("secondary", "r0")
        assert "the block device of volume" not in a.log() and not set(kernel_errors(device)) - set(before), options
        a.urbd("primary", "r0")
        device = a.side_door()
        before = kernel_errors(device)
    use(device)
    a.urbd("secondary", "r0")
    synced.assert_same()
    a.urbd("primary", "r0")
    # What is really lost is still said: nothing is written back before a demotion by force.
    use(a.side_door())
    a.urbd("secondary", "--force", "r0")
    C.eventually("it is said", lambda: "the block device of volume 0: Input/output error" in a.log())
    a.urbd("primary", "r0")
    use(a.side_door())
    log = a.log()
    a.stop()
    assert a.log()[len(log):].count("the block device of volume") == 0


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("which", ["newest", "middle"])
def test_damage_in_the_activity_log_is_said(pair, which, bits):
    """Bits of a transaction flip between a crash and the next start: one is corrected, of two it is only known that they have."""
    pair.up(disk="al-extents 7; " + C.FAST_DISK, fast=False)
    a, b = pair.nodes
    b.stop()
    for n in range(12):  # more than fit: each one is a transaction
        a.write(n % 8 * 4 * MIB, bytes([n]) * 4096)
    a.kill()
    with open(a.disk_file(), "r+b") as f:
        end = os.path.getsize(a.disk_file())
        blocks = []
        for at in range(end - 4096 - 32768, end - 4096, 4096):
            f.seek(at)
            block = f.read(4096)
            if block[:4] == bytes.fromhex("69cb0080") or block[12:14] == b"\0\0":
                blocks.append((int.from_bytes(block[4:8], "big"), at))
        blocks.sort()
        at = blocks[-1][1] if which == "newest" else blocks[len(blocks) // 2][1]
        f.seek(at + 100)
        byte = f.read(1)[0]
        f.seek(at + 100)
        f.write(bytes([byte ^ (4 if bits == 1 else 6)]))
    a.start()
    text = {"newest": "the activity log has 1 damaged blocks outside its transactions", "middle": "the activity log has a hole"}
    assert ("which was found and corrected" if bits == 1 else text[which]) in a.log(), a.log()
    a.urbd("primary", "r0")
    b.start()
    pair.wait_synced()
    if which == "middle" or bits == 1:  # everything counts as different, or nothing is missing
        pair.assert_same()


def test_hints_name_commands_that_work(pair):
    """Of a disk without metadata, by each way to name it."""
    a, _ = pair.nodes
    for call in (["up", "r0"], ["run", "r0"], ["dump-md", "r0"], ["dump-md", "minor-0"], ["show-gi", "r0/0"], ["apply-al", "r0"]):
        r = a.call(*call)
        assert r.rc and re.search(r"hint: if the disk has grown, .*: urbd check-resize r0/0; on a new disk write fresh metadata with: urbd create-md r0/0\n", r.err), (call, r)
    md = [["0", "v08", a.disk_path(), "internal"], ["minor-0", "v08", a.disk_path(), "internal"], ["0", "v09", a.disk_path(), "internal"]]
    for words in md:
        r = program(a, "drbdmeta", *words, *(["--node-id", "1"] if "v09" in words else []), "dump-md")
        hint = re.search(r"on a new disk write fresh metadata with: drbdmeta (.*)\n", r.err)
        assert r.rc and hint, (words, r)
        assert program(a, "drbdmeta", "--force", *shlex.split(hint.group(1))).rc == 0, hint.group(1)
        assert program(a, "drbdmeta", "--force", *words, "wipe-md").rc == 0


def test_help_has_help():
    texts = {}
    for words in (["help"], ["--help"], ["help", "--help"], ["help", "-h"], ["help", "help"], ["help", "primary"], ["primary", "--help"]):
        r = subprocess.run([C.URBD, *words], capture_output=True, text=True, env={"URBD_RUN_DIR": "/nonexistent"})
        assert r.returncode == 0 and "Usage: urbd" in r.stdout and not r.stderr, (words, r)
        texts[" ".join(words)] = r.stdout
    assert texts["help"] == texts["help --help"] == texts["help -h"]
    assert texts["help primary"] == texts["primary --help"] and "--force" in texts["help primary"]
