"""Pairs of which one node has the last release, and the other one this program: see long.py.

Both are Primary in turn, in 8.4's dialect and, where both can, in 9's, under writes that are checked; nodes are lost, the old one
gets the new program in use, and goes back.  What is counted: a round is one such history, its figure the longest write.
"""

from cluster import MIB, Cluster
from test_handover import BLOCK, Application, restart
from versions import built, git, promise

# The newest tag, and as long as there is none, what was before DRBD 9's dialect was offered without being asked for.
BEFORE_NINE = "4825dd37^"
HELD = "urbd { protocol-version-max 101; }"
ASKED = "urbd { protocol-version-max 124; }"
NOW_NINE, NOW_84 = "DRBD 9's dialect, 8.4's before", "DRBD 8.4's dialect, 9's before"


def last_release():
    """A commit of which the program is the last release."""
    tags = git("tag", "--list", "v*", "--merged", "HEAD", "--sort=-v:refname").split()
    return tags[0] if tags else git("rev-parse", BEFORE_NINE)


class Old:
    """What a node has before it is upgraded: another program, or this one with another line in its file."""

    def __init__(self, program=None, line="", takes_over=True):
        self.program, self.line, self.takes_over = program, line, takes_over


def released():
    commit = last_release()
    return Old(program=built(commit), takes_over=promise(commit) == promise("HEAD"))


class Form:
    """How the file is written, and which protocol a pair of old and new agrees on, and one of new and new."""

    def __init__(self, name, metadata, mixed, new, **configuration):
        self.name, self.metadata, self.mixed, self.new, self.configuration = name, metadata, mixed, new, configuration


FORM_84 = Form("8.4's form", "v08", [101], [101])
FORM_9 = Form("with node ids", "v09", [101], range(118, 125), ids=True)
# The last release speaks 9's dialect, too, when it is asked to.
FORM_9_ASKED = Form("with node ids, 9's dialect asked for", "v09", range(118, 125), range(118, 125), ids=True, extra=ASKED)
RELEASED_FORMS = [FORM_84, FORM_9, FORM_9_ASKED]


class History:
    """A pair, and what its applications have written so far."""

    def __init__(self, cluster, form, old, old_first):
        self.cluster, self.form, self.old = cluster, form, old
        self.nodes = [cluster.node(name, size=16 * MIB) for name in "ab"]
        self.primary, self.other = self.nodes
        self.ancient = self.nodes[0 if old_first else 1]
        self.recent = self.nodes[1 if old_first else 0]
        self.written, self.worst, self.app = 0, 0.0, None
        self.text = cluster.configure(**form.configuration)

    def begin(self):
        self.become_old()
        for n in self.nodes:
            n.urbd("create-md", "--force", f"--format={self.form.metadata}", "r0")
            n.start()
        self.primary.urbd("primary", "--force", "r0")
        self.agree(self.form.mixed)
        self.open()

    # ---- which program ----------------------------------------------------------
    def become_old(self):
        self.ancient.program = self.old.program
        self.ancient.put_res("r0", self.text.replace("{\n", f"{{\n  {self.old.line}\n", 1))

    def become_new(self):
        self.ancient.program = None
        self.ancient.put_res("r0", self.text)

    def replaced(self, change, expected):
        """The old node gets the other program, while the Primary is in use if it can go on; who runs on says once that
        the dialect is another one."""
        said = {text: self.recent.log().count(text) for text in (NOW_NINE, NOW_84)}
        before = self.speaks(self.recent)
        if self.ancient is self.primary and self.old.takes_over:
            change()
            restart(self.ancient)
        elif self.ancient is self.primary:
            self.close()
            self.ancient.stop()
            change()
            self.ancient.start()
            self.ancient.urbd("primary", "r0")
        else:
            self.ancient.urbd("down", "r0")
            self.ancient.processes.pop("r0", None)
            change()
            self.ancient.start()
        self.agree(expected)
        self.goes_on()
        now = self.speaks(self.recent)
        said = {text: self.recent.log().count(text) - count for text, count in said.items()}
        wanted = {NOW_NINE: int(before < 118 <= now), NOW_84: int(now < 118 <= before)}
        assert said == wanted, f"{before} to {now}: said {said}"

    # ---- what is agreed on ---------------------------------------------------------
    @staticmethod
    def speaks(node):
        connection, = node.status()["connections"]
        return connection["protocol-version"]

    def agree(self, expected):
        for n in self.nodes:
            n.wait(conn="Connected", repl="Established", disk="UpToDate", peer_disk="UpToDate", timeout=60)
            assert self.speaks(n) in expected, f"{n.name} speaks {self.speaks(n)}: {n.log()[-1000:]}"

    # ---- applications ----------------------------------------------------------------
    def open(self):
        if not self.app:
            self.app = Application(self.primary.device(), 0)
            self.app.goes_on()

    def goes_on(self):
        self.open()
        self.app.goes_on()

    def close(self):
        """Ends the application: what it wrote last is there to be checked."""
        app, self.app = self.app, None
        app.end()
        self.written += app.done
        self.worst = max(self.worst, app.worst)
        self.last = {n % app.blocks: n for n in range(max(0, app.done - app.blocks), app.done)}

    def check(self):
        """The present Primary has all that was acknowledged last."""
        for block, count in self.last.items():
            data = self.primary.read(block * BLOCK, BLOCK)[:16]
            assert data == block.to_bytes(8, "little") + count.to_bytes(8, "little"), \
                f"{self.primary.name}: block {block} is not what was acknowledged: {data.hex()}"

    # ---- what happens ----------------------------------------------------------------
    def lose_other(self):
        """The Secondary is killed, then cut off; each time it gets what it has missed."""
        expected = [self.speaks(self.primary)]
        self.other.kill()
        self.goes_on()
        self.other.start()
        self.agree(expected)
        self.other.cut()
        self.primary.wait(conn="Connecting")
        self.goes_on()
        self.other.heal()
        self.agree(expected)
        self.goes_on()

    def change_places(self):
        self.close()
        self.cluster.assert_same()
        self.primary.urbd("secondary", "r0")
        self.other.urbd("primary", "r0")
        self.primary, self.other = self.other, self.primary
        self.check()
        self.open()

    def run(self):
        self.begin()
        for _ in self.nodes:
            self.lose_other()
            self.change_places()
        self.replaced(self.become_new, self.form.new)
        self.lose_other()
        self.change_places()
        # And back, as Primary where it was Secondary before.
        self.replaced(self.become_old, self.form.mixed)
        self.lose_other()
        self.change_places()
        self.replaced(self.become_new, self.form.new)
        self.close()
        self.check()
        self.primary.urbd("secondary", "r0")
        self.cluster.assert_same()


def history(form, old, old_first):
    """The longest write in seconds, and how many there were."""
    with Cluster() as cluster:
        h = History(cluster, form, old, old_first)
        try:
            h.run()
        except Exception as e:
            logs = "".join(f"---- {n.name}\n{n.log()[-6000:]}\n" for n in h.nodes)
            raise AssertionError(f"{form.name}, the old one is {h.ancient.name}: {e}\n{logs}") from e
        finally:
            if h.app:
                h.app.ending = True
    return h.worst, h.written


def pairs(old, forms, rounds, first=0):
    """So many histories, each form with the old one as the first Primary and as the first Secondary in turn. The longest
    write of each in seconds, and how many there were in all."""
    kinds = [(form, old_first) for form in forms for old_first in (True, False)]
    done = [history(form, old, old_first) for form, old_first in (kinds[n % len(kinds)] for n in range(first, first + rounds))]
    return [worst for worst, _ in done], sum(written for _, written in done)
