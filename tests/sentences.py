"""Types what a "Next:" or a hint says, as it stands, and knows which of the sentences in the sources it is."""

import os
import pty
import re

from cluster import URBD, eventually

HERE = os.path.dirname(os.path.abspath(__file__))
MATTERS = os.path.join(HERE, "..", "crates", "control", "src")
FILES = ("matter.rs", "matter/device.rs", "matter/connection.rs")
WEIGHTS = ("error", "warning", "running", "note")
HOLE = re.compile(r"\{(\w+)\}")
OBJECT = r"(?:r0|\{\w+\})(?::(?:\w+|\{\w+\}))?(?:/(?:\d+|\{\w+\}))?"
ADDRESS = r"(?:[\d.]+|\{\w+\})"
COMMAND = re.compile(rf"urbd [a-z-]+(?: --[a-z-]+(?:=\w+)?)* {OBJECT}|ping -c 3 (?:-M do -s {ADDRESS} )?{ADDRESS}|"
                     rf"ip route get {ADDRESS}")
# Who types these learns something, and changes nothing.
LOOK = re.compile(r"urbd (?:status|why) ")
CASES = {}


def source(name):
    with open(os.path.join(MATTERS, name)) as f:
        return f.read()


def sentences():
    """All that can come next, of the sources: `next!` is its only maker."""
    found = [re.findall(r'next!\(\s*"([^"]*)"', source(name)) for name in FILES]
    assert all(len(f) == source(name).count("next!(") for f, name in zip(found, FILES))
    return {re.sub(r"\\\n\s*", "", s).replace("{{", "{").replace("}}", "}") for f in found for s in f}


SENTENCES = sentences()


def sentence(words):
    """The one that begins so."""
    found = [s for s in SENTENCES if s == words] or [s for s in SENTENCES if s.startswith(words)]
    assert len(found) == 1, f"{len(found)} sentences begin with: {words}"
    return found[0]


def pattern(sentence):
    """What it matches: a hole is something, but for those that are sometimes empty."""
    parts = re.split(r"(\{\w+\})", sentence)
    return re.compile("".join(
        (f"(?P<sub>{'.+'})" if p in ("{fetch}", "{start}") else ".*" if p in ("{leave}", "{marked}") else ".+?")
        if HOLE.fullmatch(p) else re.escape(p) for p in parts))


def which(text):
    """The sentences that a text is made of: the one that fits best, and then the one in its hole."""
    fits = [(s, m) for s in SENTENCES for m in [pattern(s).fullmatch(text)] if m]
    assert fits, f"no sentence of the sources: {text}"
    best, match = max(fits, key=lambda f: len(HOLE.sub("", f[0])))
    return [best] + (which(match["sub"]) if "sub" in match.groupdict() else [])


def parts(*says):
    """The commands of a sentence with others in its holes, in their order: each with its sentence and its number there."""
    outer, *inner = says
    plain = outer.replace("{marked}", "").replace("{leave}", "urbd disconnect {object}; ")
    found, nr, end = [], 0, 0
    for match in re.finditer(rf"\{{(?:fetch|start)\}}|{COMMAND.pattern}", plain):
        if match.group() in ("{fetch}", "{start}"):
            found += parts(*inner)
        else:
            found.append((outer, nr, match.group()))
            nr += 1
        end = match.end()
    assert end or not found
    return found


def case(code, *says, take=slice(None), dialects=("8.4", "9"), **options):
    """A state in which `code` is said.  The function makes it from nodes in sync, of which the first is Primary and has
    written, and gives who says so; with `yield`, what is to be done by hand before the commands are typed follows.
    says: how the sentence begins, and then the one in its hole. take: which of the commands, where there is a choice; with
    slice(0) none is typed, as it passes by itself."""
    def note(make):
        for dialect in dialects:
            name = f"{code}:{make.__name__}:{dialect}"
            assert name not in CASES, name
            CASES[name] = (code, [sentence(words) for words in says], make, take, {"dialect": dialect, **options})
        return make
    return note


def places(words, here, nodes):
    """The nodes that words before a command name; None if they name none."""
    other = [n for n in nodes if n is not here]
    lists = re.findall(r"\bon (\w+(?:(?: or | and |, (?:or |and )?)\w+)*)", words)
    named = [n for n in nodes if any(n.name in re.split(r"\W+", found) for found in lists)]
    brought = re.search(r"\bbring (.+?) back \(there", words)
    if brought:
        return [n for n in nodes if n.name in brought[1].split(" or ")]
    if "here and on" in words:
        named = [here, *named]
    if "on both" in words:
        return list(nodes)
    if named:
        return named
    if re.search(r"\bthere\b(?! is)", words) or "on the other" in words or "on each other node" in words:
        return other
    if re.search(r"\bhere\b|[Tt]his node's|on one node|on any one node", words):
        return [here]
    return None


def commands(text, here, nodes, take=slice(None)):
    """The commands of a text, each with the nodes that it is typed on."""
    found, place, end = [], [here], 0
    for match in COMMAND.finditer(text):
        place = places(text[end:match.start()], here, nodes) or place
        end = match.end()
        found.append([(n, match.group()) for n in place])
    return [one for each in found[take] for one in each]


def typed(node, command):
    """As an operator types it, who answers questions with yes."""
    ours, theirs = pty.openpty()
    os.write(ours, b"yes\n")
    try:
        argv = command.split()
        argv = [URBD, *argv[1:]] if argv[0] == "urbd" else argv
        r = node.run(argv, env=node.env(), stdin=theirs, capture_output=True, text=True, timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert r.returncode == 0, f"{node.name}: {command}: exit {r.returncode}\n{r.stdout}{r.stderr}"


def matter(node, code):
    found = [m for m in node.status()["urbd-matters"] if m["code"] == code]
    return found[0] if found else None


def said(node, code, timeout=30):
    return eventually(f"{node.name} says {code}: {node.urbd('why', 'r0').out}", lambda: matter(node, code), timeout)


def said_by_any(nodes, code):
    return eventually(f"somebody says {code}: {[n.urbd('why', 'r0').out for n in nodes]}",
                      lambda: next((n for n in nodes if matter(n, code)), None), 30)


def better(node, before):
    now = [m for m in node.status()["urbd-matters"] if (m["code"], m["object"]) == (before["code"], before["object"])]
    return all(WEIGHTS.index(m["weight"]) > WEIGHTS.index(before["weight"]) for m in now)


def good_copies(nodes):
    """The nodes with good data."""
    return [n for n in nodes if n.call("status", "r0").rc == 0 and n.state().get("disk") == "UpToDate"]


def cut_off(node, nodes):
    """All packets from and to it are lost, which all notice soon."""
    for n in nodes:
        n.urbd("net-options", "--ping-int=1", "r0")
    node.cut()


def rewrite(nodes, change):
    for n in nodes:
        path = os.path.join(n.dir, "res.d", "r0.res")
        with open(path) as f:
            text = f.read()
        n.put_res("r0", change(text))
