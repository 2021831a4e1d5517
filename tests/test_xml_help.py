"""`drbdsetup xml-help` and `drbdsetup help`: what LINSTOR's satellite reads before it does anything else
(`docs/spec/integrations.md` 1a), beside what drbd-utils 9.34 prints (`vectors/config/options`)."""

import csv
import os
import subprocess
import xml.etree.ElementTree as ET

import pytest

import cluster as C

TABLES = os.path.join(C.TESTS, "..", "vectors", "config", "options")
# What a satellite asks for; without these answers its node does not come online.
ASKED = ["resource-options", "peer-device-options", "new-peer", "disk-options", "new-minor"]
TYPES = {"boolean", "string", "handler", "numeric", "numeric-or-symbol", "flag"}
# The command refuses them: every peer has a bitmap, and its name is that of the configuration.
NOT_OURS = {"net-options": {"_name"}, "disk-options": {"bitmap"}, "peer-device-options": {"bitmap"}}
# Limits that are wider than 9.34's, as older versions have them.
WIDER = {"resync-rate"}
# Where a section of the configuration has the options of a command.
FILE = {
    "resource-options": "options {{ {} }}", "new-peer": "net {{ {} }}", "disk-options": "disk {{ {} }}",
    "new-minor": "disk {{ {} }}", "peer-device-options": "disk {{ {} }}",
}


def rows(name):
    with open(os.path.join(TABLES, name)) as f:
        return list(csv.DictReader(f, delimiter="\t"))


COMMANDS = sorted(r["command"] for r in rows("arguments.tsv") if "9.34" in r["versions"])


@pytest.fixture
def drbdsetup(tmp_path):
    os.symlink(C.URBD, tmp_path / "drbdsetup")

    def run(*words):
        return subprocess.run([tmp_path / "drbdsetup", *words], capture_output=True, text=True, timeout=20,
                              env={**os.environ, "URBD_RUN_DIR": str(tmp_path / "run")}, stdin=subprocess.DEVNULL)

    return run


def document(answer):
    assert answer.returncode == 0 and not answer.stderr, answer
    root = ET.fromstring(answer.stdout)
    assert root.tag == "command"
    return root


def as_row(option):
    """An `option` element in the columns of options.tsv."""
    texts = {tag: option.findtext(tag, "") for tag in ("default", "min", "max", "unit_prefix", "unit")}
    words = [e.text for e in option if e.tag in ("handler", "symbol")]
    return {"type": option.get("type"), **texts, "values": "|".join(words)}


@pytest.mark.parametrize("command", ASKED + ["new-resource", "net-options"])
def test_options_are_those_of_the_real_program(drbdsetup, command):
    root = document(drbdsetup("xml-help", command))
    ours = {o.get("name"): as_row(o) for o in root.iter("option")}
    theirs = {r["option"]: r for r in rows("options.tsv") if r["command"] == command and "9.34" in r["version"].split("+")}
    # Rows of several versions are one row each where they differ: the newest counts.
    assert theirs.keys() - NOT_OURS.get(command, set()) == ours.keys()
    for name, own in ours.items():
        their = {key: theirs[name][key] or "" for key in own}
        if name in WIDER:
            assert int(own["max"]) >= int(their["max"]), name
            own["max"] = their["max"]
        assert own == their, name
        if own["type"].startswith("numeric"):
            assert -1 <= int(own["min"]) <= int(own["max"]) < 2**63, name


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_one_document(drbdsetup, command):
    """Also those that this program refuses: who asks is told what they would take."""
    root = document(drbdsetup("xml-help", command))
    assert root.get("name") == command and root.findtext("summary").endswith(".")
    groups = [[e.text for e in g.iter("argument")] for g in root.iter("group")]
    [row] = [r for r in rows("arguments.tsv") if r["command"] == command and "9.34" in r["versions"]]
    if row["arguments"]:
        assert [e.text for e in root.findall("argument")] == row["arguments"].split() and groups == []
    else:
        assert groups == [["resource", "all"]]
    for option in root.iter("option"):
        assert option.get("name") and option.get("type") in TYPES, ET.tostring(option)
    answer = drbdsetup("help", command)
    assert answer.returncode == 0 and answer.stdout.startswith(f"drbdsetup {command}"), answer
    for option in root.iter("option"):
        assert f"[--{option.get('name')}" in answer.stdout
    # A line is longer than a terminal only if it is one option.
    assert all(len(x) < 80 or x.count("[--") == 1 for x in answer.stdout.splitlines() if x.startswith("    [")), answer.stdout


@pytest.mark.parametrize("words", [["xml-help", "nonsense"], ["xml-help"], ["help", "nonsense"], ["help"]])
def test_an_unknown_command_is_not_an_empty_list(drbdsetup, words):
    answer = drbdsetup(*words)
    assert answer.returncode == 20 and "primary" in answer.stdout and "<command" not in answer.stdout, answer
    assert ("unknown command" in answer.stdout + answer.stderr) == (len(words) == 2), answer


@pytest.mark.parametrize("command", ASKED)
def test_what_is_listed_is_taken_in_files(drbdsetup, command, tmp_path):
    """LINSTOR writes what it finds here into its files: each option with its limits, its words, its default."""
    conf = tmp_path / "r.conf"
    checked = 0
    for option in document(drbdsetup("xml-help", command)).iter("option"):
        own = as_row(option)
        name = option.get("name")
        if name in ("set-defaults", "_name", "diskless", "resync-after"):
            continue  # Not options of files; `resync-after` has names there.
        values = {"boolean": ["yes", "no"], "string": ['"x"']}.get(own["type"], own["values"].split("|"))
        values = [*(v for v in values if v), *(own[key] for key in ("min", "max") if own[key])]
        for value in values:
            checked += 1
            conf.write_text(f"""resource r0 {{ {FILE[command].format(f"{name} {value};")}
              on alpha {{ node-id 0; device minor 10; disk /dev/a; meta-disk internal; address 10.1.1.1:7789; }}
              on bravo {{ node-id 1; device minor 10; disk /dev/a; meta-disk internal; address 10.1.1.2:7789; }} }}""")
            answer = subprocess.run([C.URBD, "-c", conf, "dump"], capture_output=True, text=True, timeout=20,
                                    env={**os.environ, "URBD_NODE": "alpha"}, stdin=subprocess.DEVNULL)
            needs_more = name in ("verify-alg", "csums-alg", "data-integrity-alg", "cram-hmac-alg")
            assert answer.returncode == 0 or needs_more and "x" in answer.stderr, (name, value, answer.stderr)
    assert checked > 4
