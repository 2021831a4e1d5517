"""What a write costs the core, in instructions: counted by callgrind, which gives the same on a busy machine.

A limit is what a write took before there was a second dialect (commit 58bd810f, counted like this): who does not speak
it does not pay for it. The numbers may fall, and never rise: who gets far below a limit lowers it with the same commit.
One has risen: a turn of the core asks whether a third node's word is awaited, 40 instructions of a Secondary at depth 1.
They are those of one compiler; another one may need others."""

import os
import re
import subprocess

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WRITES = 5000
# Writes in flight: of the Primary, of the Secondary, per write of 4 KiB.
LIMITS = {1: (6938, 4540), 16: (5009, 2867), 64: (5065, 2885), 256: (5218, 3045)}
# As far as what is counted may be below its limit.
ROOM = 0.04


def built():
    """The program, optimised as it is for use, but for what takes the linker long."""
    subprocess.run([os.environ.get("CARGO", "cargo"), "build", "--locked", "--quiet", "--profile", "count", "-p", "urbd-core",
                    "--example", "write_cost"], cwd=HERE, check=True, timeout=1200)
    return os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(HERE, "target")), "count", "examples", "write_cost")


def count(program, writes, depth, out):
    """Instructions within `primary` and within `secondary`."""
    subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, str(writes), str(depth)],
                   check=True, capture_output=True, timeout=600)
    text = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--show-percs=no", "--threshold=100", "--auto=no", out],
                          check=True, capture_output=True, text=True).stdout
    found = {side: re.search(rf"^ *([\d,]+) +\S*:write_cost::{side}( |$)", text, re.M) for side in ("primary", "secondary")}
    assert all(found.values()), text[:2000]
    return [int(match.group(1).replace(",", "")) for match in found.values()]


def test_a_write_takes_no_more_instructions_than_it_did(tmp_path):
    program = built()
    wrong = []
    for depth, limits in LIMITS.items():
        before, after = (count(program, n, depth, tmp_path / f"{depth}-{n}") for n in (0, WRITES))
        for side, limit, a, b in zip(("primary", "secondary"), limits, before, after):
            used = (b - a) / WRITES
            print(f"depth {depth}, {side}: {used:.0f} instructions per write, at most {limit}")
            if used > limit:
                wrong.append(f"depth {depth}, {side}: {used:.0f} instructions per write, at most {limit} are allowed")
            elif used < limit * (1 - ROOM):
                wrong.append(f"depth {depth}, {side}: lower the limit to {used * (1 + ROOM / 2):.0f}, from {limit}")
    assert not wrong, "\n".join(wrong)
