"""The tables of docs/guide/verbs.md: each verb of the real drbdadm, drbdsetup and drbdmeta beside ours.

Both are run, and what differs is a row with a reason.  A difference without a reason fails, and so does a reason without a
difference.  `/usr/bin/python3 tests/test_verb_tables.py --write` renews the page.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cluster as C  # noqa: E402

PAGE = os.path.join(C.TESTS, "..", "docs", "guide", "verbs.md")
HEAD = """# Verb by verb: drbdadm, drbdsetup, drbdmeta

urbd answers to these names (`ln -s urbd /usr/sbin/drbdadm`). These tables are written by `tests/test_verb_tables.py`, which runs
the real program of drbd-utils {version} and urbd side by side; renew them by
`/usr/bin/python3 tests/test_verb_tables.py --write`. "The same" means: exit status and output are equal.

"""
CONF = """resource r0 {{
  on alpha {{ node-id 0; device minor 10; disk {disk}; meta-disk internal; address 10.1.1.1:7789; }}
  on bravo {{ node-id 1; device minor 10; disk {disk}; meta-disk internal; address 10.1.1.2:7789; }}
}}
"""
# Why a verb differs, or is not there.
DRBDADM = {
    "adjust": "repairs the metadata after a crash too (`repair-md`)", "up": "as `adjust`", "attach": "as `adjust`",
    "adjust-with-progress": "as `adjust`; prints no dots",
    "outdate": "leaves out the resource's name, which the real drbdsetup refuses",
    **dict.fromkeys(("disk-options", "net-options", "peer-device-options", "resource-options"),
                    "`--set-defaults` first: options that are not given go back to the configuration"),
    "dump": "one resource alone: the same words without the connection that is implied", "dump-xml": "as `dump`",
    "forget-peer": "asks the process that runs, else writes the metadata; in a dry run the first", "hidden-commands": "`help` lists all",
    "sh-dev": "urbd's name of the device", "status": "asks urbd itself, also in a dry run",
    "wait-con-int": "waits without a console",
    **dict.fromkeys(("proxy-up", "proxy-down"), "DRBD proxy is not supported"),
}
DRBDSETUP = {
    "connect": "a dry run is `--dry-run`",
    "resize": "the activity log keeps its size",
    "peer-device-options": "every peer has a bitmap",
    "events2": "old values are not printed",
}
DRBDMETA = {
    "v08 dump-md": "prints the flag that the activity log is clean",
    **{f"{form} {verb}": why for form in ("v08", "v09") for verb, why in {
        "wipe-md": "other words", "restore-md": "other words", "create-md": "other words",
        "verify-dump": "not there: `restore-md` checks the file before it writes", "forget-peer": "other words"}.items()},
    "v08 forget-peer": "refused: this format knows one peer",
}


def tool(directory, name):
    """The real program, and urbd by its name."""
    ours = os.path.join(directory, name)
    if not os.path.islink(ours):
        os.symlink(C.URBD, ours)
    return name, ours


def run(argv, **more):
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "URBD_NODE": "alpha", "URBD_RUN_DIR": "/nonexistent/run",
           "DRBD_DONT_WARN_ON_VERSION_MISMATCH": "1"}
    script = "hostname alpha; ip link set lo up; ip addr add 10.1.1.1/24 dev lo; exec \"$@\""
    r = subprocess.run(["unshare", "--uts", "--net", "sh", "-c", script, "sh", *argv], capture_output=True, text=True, env=env,
                       stdin=subprocess.DEVNULL, timeout=60, **more)
    return r.returncode, r.stdout.strip(), r.stderr.strip()


def words_of(text):
    """Names in the columns of drbdadm's help."""
    found = []
    for line in text.splitlines():
        if re.fullmatch(r"( [a-z][a-z0-9-]+ *)+", line):
            found += line.split()
    return sorted(set(found))


def plain(text):
    """Without comments, which name versions and paths."""
    return [x.strip() for x in text.splitlines() if x.strip() and not x.lstrip().startswith("#")]


def drbdadm(directory):
    """Rows (verb, verdict, detail)."""
    disk = os.path.join(directory, "disk")
    with open(disk, "wb") as f:
        f.truncate(4 * C.MIB)
    assert run(["drbdmeta", "--force", "10", "v09", disk, "internal", "create-md", "1"])[0] == 0
    conf = os.path.join(directory, "drbd.conf")
    with open(conf, "w") as f:
        f.write(CONF.format(disk=disk))
    real, ours = tool(directory, "drbdadm")
    verbs = words_of(run([real, "help"])[1]) + words_of(run([real, "hidden-commands"])[1])
    rows = []
    for verb in sorted(set(verbs)):
        theirs, mine = (run([program, "-c", conf, "-d", verb, "r0"]) for program in (real, ours))
        if "unrecognized subcommand" in mine[2]:
            rows.append((verb, "not there", ""))
        else:
            same = theirs[0] == mine[0] and plain(theirs[1]) == plain(mine[1])
            rows.append((verb, "the same" if same else "differs", "" if same else f"{plain(theirs[1])} / {plain(mine[1])}"))
    return rows


def options_of(program, verb):
    """Long options in the XML that drbdsetup prints about a verb."""
    xml = run([program, "xml-help", verb])[1]
    return set(re.findall(r'<option name="([a-z-]+)"', xml)) - {"set-defaults"}


def drbdsetup(directory):
    real, ours = tool(directory, "drbdsetup")
    usage = run([real])
    rows = []
    for verb in re.findall(r"(?m)^    ([a-z0-9-]+) - ", usage[1] + usage[2]):
        if "urbd refuses this command" in run([ours, "help", verb])[1]:
            rows.append((verb, "not there", ""))
            continue
        out = run([C.URBD, re.sub(r"^(wait-[a-z]+)-.*", r"\1", verb), "--help"])[1]
        have = set(re.findall(r"--([a-z0-9-]+)", out)) | options_of(ours, verb)
        lacks = sorted(options_of(real, verb) - have)
        rows.append((verb, "lacks" if lacks else "the same", ", ".join(lacks)))
    return rows


META = [["dump-md"], ["get-gi", "--node-id", "0"], ["show-gi", "--node-id", "0"], ["dstate"], ["outdate"], ["invalidate"],
        ["apply-al"], ["check-resize"], ["wipe-md"], ["verify-dump", "DUMP"], ["restore-md", "DUMP"],
        ["create-md", "1"], ["forget-peer", "--node-id", "1"]]


def drbdmeta(directory):
    real, ours = tool(directory, "drbdmeta")
    rows = []
    for form in ("v08", "v09"):
        first = os.path.join(directory, f"{form}.first")
        with open(first, "wb") as f:
            f.truncate(4 * C.MIB)
        more = ["1"] if form == "v09" else []
        status = run([real, "--force", "10", form, first, "internal", "create-md", *more])
        assert status[0] == 0, status
        dump = os.path.join(directory, f"{form}.dump")
        with open(dump, "w") as f:
            f.write(run([real, "--force", "10", form, first, "internal", "dump-md"])[1] + "\n")
        for words in META:
            words = [dump if w == "DUMP" else w for w in words if not (form == "v08" and w == "1" and words[0] == "create-md")]
            if form == "v08" and "--node-id" in words:
                words = [w for w in words if w not in ("--node-id", "0", "1")]
            answers = []
            for program in (real, ours):
                disk = os.path.join(directory, "meta")
                shutil.copyfile(first, disk)
                status, out, err = run([program, "--force", "10", form, disk, "internal", *words])
                with open(disk, "rb") as f:
                    digest = hashlib.md5(f.read()).hexdigest()
                answers.append((status, "\n".join(x for x in out.splitlines() if not x.startswith("#")), digest))
            theirs, mine = answers
            parts = [what for what, a, b in zip(("exit status", "output", "bytes on the disk"), theirs, mine) if a != b]
            rows.append((f"{form} {words[0]}", "other " + ", ".join(parts) if parts else "the same", ""))
    return rows


TABLES = ((drbdadm, DRBDADM, "drbdadm, in a dry run (`-d VERB r0`) on one configuration"),
          (drbdsetup, DRBDSETUP, "drbdsetup: the verbs, and the options that `xml-help` names"),
          (drbdmeta, DRBDMETA, "drbdmeta on copies of one file: exit status, output, and the bytes afterwards"))


def page():
    """The text of the page, and differences without a reason and reasons without a difference."""
    version = run(["drbdadm", "--version"])[1]
    text = HEAD.format(version=re.search(r"DRBDADM_VERSION=(\S+)", version).group(1))
    wrong = []
    with tempfile.TemporaryDirectory() as directory:
        for table, reasons, title in TABLES:
            rows = table(directory)
            assert len(rows) > 20, rows
            same = [verb for verb, verdict, _ in rows if verdict == "the same"]
            text += f"## {title}\n\nThe same: {', '.join(f'`{v}`' for v in same)}.\n\n| verb | | |\n|---|---|---|\n"
            for verb, verdict, detail in rows:
                if verdict == "the same":
                    continue
                if verb not in reasons:
                    wrong.append(f"{table.__name__} {verb} {verdict}: {detail}")
                what = f"lacks {detail}" if verdict == "lacks" else verdict
                text += f"| `{verb}` | {what} | {reasons.get(verb)} |\n"
            wrong += [f"{table.__name__} {verb} has a reason, and does not differ" for verb in reasons if verb in same]
            text += "\n"
    return text.rstrip() + "\n", wrong


def test_the_tables_are_true():
    text, wrong = page()
    assert not wrong, "\n".join(wrong)
    with open(PAGE) as f:
        assert f.read() == text, "run: /usr/bin/python3 tests/test_verb_tables.py --write"


if __name__ == "__main__":
    written, differences = page()
    print("\n".join(differences))
    if "--write" in sys.argv:
        with open(PAGE, "w") as out:
            out.write(written)
