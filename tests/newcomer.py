"""What README.md tells somebody with two machines, word by word: from an empty Debian to a mirrored file system.

    /usr/bin/python3 tests/newcomer.py [bookworm|trixie]        on two empty Debian roots, timed (`make newcomer`)

Each root is made by mmdebstrap from Debian's archive, with the packages that README.md's commands need.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cluster as C  # noqa: E402
from machine import REPOSITORY, machine  # noqa: E402

PACKAGES = "e2fsprogs,iproute2,mount,procps"


def commands():
    """(who, script) of the first block below "Two real machines": the comments say where a line is typed."""
    with open(os.path.join(REPOSITORY, "README.md")) as f:
        block = re.search(r"## Two real machines.*?```sh\n(.*?)```", f.read(), re.S).group(1)
    statement = ""
    for line in block.splitlines(keepends=True):
        statement += line
        here = re.search(r"<<'(\w+)'", statement)
        if here and line.strip() != here.group(1):
            continue
        yield "both" if "both" in statement.split("\n")[0].partition("#")[2] else "alpha", statement
        statement = ""


def follow(alpha, bravo, told=lambda text: None):
    """Does it; at the end alpha has the file system mounted, and both have the data."""
    for m, ip in ((alpha, "10.0.0.1"), (bravo, "10.0.0.2")):
        m.sh(f"ip addr add {ip}/24 dev eth0; mkdir -p /mnt")
    done = 0
    for who, script in commands():
        copied = re.match(r"scp (\S+) bravo:(\S+/)", script)
        if copied:  # These machines have no sshd: what would come over it is put there.
            path, to = copied.groups()
            bravo.put(to + os.path.basename(path), alpha.sh(f"cat {path}"))
        else:
            for m in (alpha, bravo) if who == "both" else (alpha,):
                m.sh(script)
        told(f"{who}: {script.splitlines()[0]}")
        done += 1
    alpha.sh("echo 'it works' >/mnt/file; sync -f /mnt; urbd wait-sync r0")
    return done


def debian(suite, where):
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", suite, where], check=True)
    subprocess.run(["install", "-D", "-m", "755", C.URBD, f"{where}/usr/sbin/urbd"], check=True)


def main(suite):
    began = time.monotonic()

    def told(text):
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="urbd-newcomer-") as root, C.Cluster() as c:
        os.chmod(root, 0o755)
        debian(suite, f"{root}/{suite}")
        size = subprocess.run(["du", "-sm", shlex.quote(f"{root}/{suite}")], stdout=subprocess.PIPE, text=True).stdout.split()[0]
        told(f"an empty Debian {suite} ({size} MiB) with urbd in it, used by both")
        began = time.monotonic()
        alpha, bravo = (machine(c, n, size=256 * C.MIB, lower=f"{root}/{suite}") for n in ("alpha", "bravo"))
        told("alpha and bravo are up")
        follow(alpha, bravo, told)
        told("a file is on both")
        alpha.power_off()
        bravo.sh("for i in $(seq 100); do urbd primary r0 && break; sleep 0.2; done; mount /dev/urbd/by-res/r0/0 /mnt", timeout=60)
        assert bravo.sh("cat /mnt/file") == "it works\n"
        told("alpha lost its power; bravo has the file")


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["bookworm"])
