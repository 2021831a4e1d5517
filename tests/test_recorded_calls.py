"""Each call that LINSTOR, drbd-reactor and others were seen to make, and what it gets today: `vectors/calls`.

A call is accepted if it ends as its caller needs in one of six situations: the resource is stopped, it runs, it is Primary; it was
just begun, has a volume without a disk, or also a peer without a path.
The ledger may only get better: a call that was accepted must be; one that is accepted now must be written there
(`/usr/bin/python3 tests/test_recorded_calls.py --write`).
"""

import csv
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cluster as C  # noqa: E402

CALLS = os.path.join(C.TESTS, "..", "vectors", "calls")
LEDGER = os.path.join(CALLS, "ledger.tsv")
BEGUN = ["drbdsetup new-resource r0 0", "drbdsetup new-minor r0 5 0", "drbdsetup new-peer r0 1 --_name=bravo"]
SITUATIONS = {"stopped": [], "running": ["drbdadm up r0"], "primary": ["drbdadm up r0", "drbdadm primary --force r0"],
              "begun": BEGUN[:1], "a volume": BEGUN[:2], "a peer": BEGUN}
CONF = """resource r0 {{
  urbd {{ front-end none; protocol-version-max 124; }}
  on alpha {{ node-id 0; address 127.0.0.1:17871; volume 0 {{ device minor 5; disk {disk}; meta-disk internal; }} }}
  on bravo {{ node-id 1; address 127.0.0.2:17871; volume 0 {{ device minor 5; disk /dev/drbd/this/is/not/used; meta-disk internal; }} }}
}}
"""
WORDS = {"RES": "r0", "RES/0": "r0/0", "RES/V": "r0/0", "N": "5", "K": "1", "HEX16": "A" * 16, "GI": "A" * 16, "PEERS": "1",
         "PEER:RES": "bravo:r0", "PEER": "bravo", "B": "4096", "V": "0", "ipv4:ADDR:PORT": "ipv4:127.0.0.1:17871",
         "--_name=NAME": "--_name=bravo", "--verify-alg=ALG": "--verify-alg=crc32c", "--shared-secret=TEXT": "--shared-secret=x"}


def rows(path):
    with open(path) as f:
        return list(csv.DictReader(f, delimiter="\t"))


def argv(call, disk):
    words = [disk if word == "DEV" else WORDS.get(word, word) for word in call.split()]
    words = [w.replace("HEX16", "A" * 16).replace("GI:", "A" * 16 + ":") for w in words]
    if words[0] == "drbdsetup" and words[1] == "new-path":
        words[-1] = "ipv4:127.0.0.2:17871"
    return words


def status(call, situation):
    """Its exit status, `stays`, or `waits`."""
    with tempfile.TemporaryDirectory() as directory:
        disk, conf, run_dir = (os.path.join(directory, name) for name in ("disk", "urbd.conf", "run"))
        with open(disk, "wb") as f:
            f.truncate(16 * C.MIB)
        with open(conf, "w") as f:
            f.write(CONF.format(disk=disk))
        for name in ("drbdadm", "drbdsetup", "drbdmeta"):
            os.symlink(C.URBD, os.path.join(directory, name))
        env = {"PATH": os.environ["PATH"], "URBD_CONF": conf, "URBD_NODE": "alpha", "URBD_RUN_DIR": run_dir}

        def run(words, limit=60):
            words = [os.path.join(directory, words[0]), *words[1:]]
            return subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit)

        try:
            for before in ["drbdadm create-md --force --max-peers 2 r0", *SITUATIONS[situation]]:
                r = run(before.split())
                assert r.returncode == 0, (before, r)
            words = argv(call, disk)
            if words[1] == "events2":
                return stays([os.path.join(directory, words[0]), *words[1:]], env)
            # No peer comes: what waits for one does so for longer than this, on any machine.
            waits_for_peer = words[1].startswith("wait-") and situation != "stopped"
            try:
                return str(run(words, 2 if waits_for_peer else 60).returncode)
            except subprocess.TimeoutExpired:
                return "waits"
        finally:
            run(["drbdadm", "down", "--force", "r0"])


def stays(words, env):
    """Says all that there is, and does not end."""
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        told = any(line.startswith("exists -") for line in program.stdout)
        ended = program.poll()
        program.kill()
    return "stays" if told and ended is None else str(ended)


def today(row):
    found = []
    for situation in SITUATIONS:
        found.append(status(row["call"], situation))
        if found[-1] == row["wanted"] or row["wanted"] == "any" and found[-1].isdigit():
            return "accepted"
    return " ".join(found)


def page():
    recorded = rows(os.path.join(CALLS, "recorded.tsv"))
    return [(row["wanted"], today(row), row["call"]) for row in recorded]


def test_recorded_calls_get_what_the_ledger_says():
    ledger = {(row["wanted"], row["call"]): row["today"] for row in rows(LEDGER)}
    found = {(wanted, call): now for wanted, now, call in page()}
    assert ledger.keys() == found.keys()
    wrong = [f"{call}: {ledger[wanted, call]} in the ledger, now {now}"
             for (wanted, call), now in found.items() if now != ledger[wanted, call]]
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    lines = page()
    print(sum(now == "accepted" for _, now, _ in lines), "of", len(lines), "calls are accepted")
    if "--write" in sys.argv:
        with open(LEDGER, "w") as out:
            out.write("wanted\ttoday\tcall\n" + "".join("\t".join(line) + "\n" for line in lines))
