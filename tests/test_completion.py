"""Completion: the scripts of `urbd completion`, run by the shells themselves."""

import os
import subprocess

import pytest

import cluster as C

CONFIG = """resource r0 {
  volume 0 { device minor 5; disk /dev/a; meta-disk internal; }
  volume 1 { device minor 6; disk /dev/b; meta-disk internal; }
  on alpha { node-id 0; address 10.0.0.1:7789; }
  on bravo { node-id 1; address 10.0.0.2:7789; }
}
resource web { on alpha { device minor 7; disk /dev/c; meta-disk internal; address 10.0.0.1:7790; }
               on bravo { device minor 7; disk /dev/c; meta-disk internal; address 10.0.0.2:7790; } }
"""

# What is typed, and what there is then to choose from.
TYPED = [
    ("urbd prim", "primary"),
    ("urbd primary ", "all r0 web"),
    ("urbd verify r0:", "r0:bravo"),
    ("urbd verify r0:bravo/", "r0:bravo/0 r0:bravo/1"),
    ("urbd net-options --protocol=", "--protocol=A --protocol=B --protocol=C"),
    ("drbdadm secon", "secondary"),
    ("drbdadm attach r0/", "r0/0 r0/1"),
    ("drbdsetup detach ", "5 6 7"),
    ("drbdsetup verify r0 ", "1"),
    ("drbdmeta 5 v08 /dev/a ", "flex-external internal"),
    ("urbd nonsense ", ""),
]


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A directory with the program under all its names, and the environment to find them in."""
    place = tmp_path_factory.mktemp("completion")
    for name in ("urbd", "drbdadm", "drbdsetup", "drbdmeta"):
        (place / name).symlink_to(C.URBD)
    (place / "urbd.conf").write_text(CONFIG)
    (place / "some-file").write_text("")
    env = {"PATH": f"{place}:{os.environ['PATH']}", "URBD_CONF": str(place / "urbd.conf"), "URBD_NODE": "alpha",
           "URBD_RUN_DIR": str(place / "run"), "HOME": str(place), "TERM": "dumb", "PS1": "", "LC_ALL": "C.UTF-8"}
    for shell in ("bash", "fish", "zsh"):
        script = subprocess.run([C.URBD, "completion", shell], check=True, capture_output=True, text=True).stdout
        (place / f"urbd.{shell}").write_text(script)
    return place, env


def run(host, *command, text=None):
    place, env = host
    r = subprocess.run(command, env=env, cwd=place, input=text, capture_output=True, text=True, timeout=60)
    assert r.returncode == 0 and not r.stderr, r
    return r.stdout


BASH = """source ./urbd.bash
compopt() { local IFS=' '; echo "compopt $*"; }
COMP_LINE=$1 COMP_POINT=${#1}
_urbd
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize("typed,expected", TYPED)
def test_the_function_in_bash(host, typed, expected):
    got = run(host, "bash", "--norc", "-c", BASH, "bash", typed).split()
    # bash replaces only what stands behind the last of its word breaks.
    current = typed.rsplit(" ", 1)[1]
    cut = max(current.rfind(":"), current.rfind("=")) + 1
    assert sorted(got) == sorted(word[cut:] for word in expected.split())


def test_bash_is_told_what_else(host):
    assert "compopt -o default" in run(host, "bash", "--norc", "-c", BASH, "bash", "urbd -c ")
    assert "compopt -o nospace" in run(host, "bash", "--norc", "-c", BASH, "bash", "urbd net-options --max-epoch")


# What somebody types with the key in between, and what is called then.
KEYS = [("drbdadm connec\tr0:b\t", "connect r0:bravo"), ("drbdadm net-opt\tr0 --proto\tA", "net-options r0 --protocol=A"),
        ("drbdadm -c some\tdump-x\t", "-c some-file dump-xml"), ("drbdsetup wait-sync-v\tr0 1 0", "wait-sync-volume r0 1 0")]


def typed_in(host, shell, begin):
    """A shell with a terminal, as completion works only there."""
    place, env = host
    stand_in = "{name}() {{ if [ $1 = --completion-of ]; then command {name} \"$@\"; else echo \"ran: $*\"; fi; }}"
    lines = [stand_in.format(name=name) for name in ("drbdadm", "drbdsetup")]
    r = subprocess.run(["script", "-qec", shell, "/dev/null"], env=env, cwd=place, capture_output=True, text=True, timeout=60,
                       input="\n".join([*begin, *lines, *(keys for keys, _ in KEYS), "exit"]) + "\n")
    ran = [line.strip().removeprefix("ran: ") for line in r.stdout.splitlines() if line.startswith("ran: ")]
    assert ran == [expected for _, expected in KEYS], r.stdout


def test_a_bash_that_somebody_types_in(host):
    typed_in(host, "bash --norc --noprofile -i", ["source ./urbd.bash", "bind 'set bell-style none'"])


def test_a_zsh_that_somebody_types_in(host):
    (host[0] / "_urbd").write_text((host[0] / "urbd.zsh").read_text())
    typed_in(host, "zsh -f -i", ["unsetopt beep zle_bracketed_paste", "fpath=($PWD $fpath)", "autoload -Uz compinit", "compinit -u -D"])


@pytest.mark.parametrize("typed,expected", TYPED)
def test_fish(host, typed, expected):
    script = "source ./urbd.fish; complete -C (string join ' ' -- $argv)"
    got = run(host, "fish", "--no-config", "-c", script, typed)
    assert sorted(line.split("\t")[0] for line in got.splitlines()) == sorted(expected.split())
