"""Switches of wrong rules (wrong-rules/README.md): they are found wherever their function is, or named."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "wrong-rules"))

import switches  # noqa: E402

USE = "use crate::mutant::{Mutant, mutant};"
SOURCE = """//! A room.

use crate::other::Thing;

impl Resource {
    /// Says if it is so.
    pub(crate) fn is_so(&self, d: VolumeNr) -> bool {
        // For a reason.
        let good = self.disk(d) == Disk::Good;
        if !good {
            return false;
        }
        call(
            self.here,
            self.there,
        )
    }
}

impl Show for Thing {
    fn is_so(&self) -> bool {
        self.really
    }
}
"""
SWITCH = {
    "in": "crates/core/src",
    "function": "is_so",
    "find": "if !good",
    "put": "if !good && !mutant(Mutant::BadIsGood)",
}


def put(switch, *files):
    """The texts of these files of the core with the switch."""
    sources = [switches.Source(f"crates/core/src/{name}", text) for name, text in files]
    switches.put(switch, sources)
    return [source.edited(USE) for source in sources]


def refused(switch, *files):
    with pytest.raises(switches.Misplaced) as why:
        put(switch, *files)
    return str(why.value)


def test_code_is_found_by_its_function():
    (text,) = put(SWITCH, ("a.rs", SOURCE))
    assert "        if !good && !mutant(Mutant::BadIsGood) {\n            return false;" in text
    assert f"//! A room.\n\n{USE}\nuse crate::other::Thing;\n" in text


def test_space_comments_and_last_commas_do_not_matter():
    for find in ("call(self.here, self.there)", "call(\n self.here, // one\n /* two */ self.there,\n)"):
        (text,) = put({**SWITCH, "find": find, "put": "mutant(Mutant::None_)"}, ("a.rs", SOURCE))
        assert "        mutant(Mutant::None_)\n    }" in text
    flat = re.sub(r"//[^\n]*|\n *", " ", SOURCE.split("use crate::other::Thing;")[1])
    (text,) = put(SWITCH, ("a.rs", "use a;\n" + flat))
    assert "if !good && !mutant(Mutant::BadIsGood) {" in text


def test_a_function_may_move_and_its_neighbours_change():
    begin, end = SOURCE.index("    /// Says"), SOURCE.index("impl Show")
    moved = "impl Node {\n    fn before() {}\n\n" + SOURCE[begin:end].replace("!good {", "!good {\n            more();")
    texts = put(SWITCH, ("a.rs", SOURCE[:begin] + "}\n" + SOURCE[end:]), ("deep/b.rs", moved))
    assert "mutant" not in texts[0] and "!mutant(Mutant::BadIsGood) {\n            more();" in texts[1]


def test_what_is_not_there_once_is_refused():
    assert refused({**SWITCH, "function": "is_not"}, ("a.rs", SOURCE)) == "there is no function is_not"
    assert "nowhere" in refused({**SWITCH, "find": "if !bad"}, ("a.rs", SOURCE))
    assert "2 times" in refused(SWITCH, ("a.rs", SOURCE), ("b.rs", SOURCE))
    assert "2 times" in refused(SWITCH, ("a.rs", SOURCE.replace("call(", "if !good {}\n        call(")))
    # What is outside of the function does not count.
    put(SWITCH, ("a.rs", SOURCE + "fn other() { if !good {} }"))
    assert switches.known_as(SWITCH) == "BadIsGood: crates/core/src: is_so"


def test_two_switches_cannot_change_the_same_code():
    source = switches.Source("crates/core/src/a.rs", SOURCE)
    switches.put(SWITCH, [source])
    with pytest.raises(switches.Misplaced):
        switches.put({**SWITCH, "find": "!good", "put": "good"}, [source])


def test_functions_of_one_name_are_told_apart_by_their_types():
    switch = {**SWITCH, "function": "Thing::is_so", "find": "self.really", "put": "!self.really"}
    assert "        !self.really\n" in put(switch, ("a.rs", SOURCE))[0]
    assert "nowhere" in refused({**switch, "function": "Resource::is_so"}, ("a.rs", SOURCE))
    for header, owner in (
        ("impl<'a, T: Into<u8>> Pair<'a, T>", "Pair"),
        ("impl crate::a::Thing", "Thing"),
        ("impl<T> Show for &mut Vec<T> where T: Show", "Vec"),
        ("trait Step: Show", "Step"),
    ):
        (found,) = switches.functions(switches.tokens(header + " { fn x(&self) {} }"))
        assert (found.name, found.owner) == ("x", owner)


def test_what_is_edited_becomes_a_switch():
    for old, new, function, find in (
        ("if !good {", "if !good || mutant(Mutant::X) {", "is_so", "if !good"),
        ("        if !good", "        if mutant(Mutant::X) {\n            return true;\n        }\n        if !good", "is_so", "if !good"),
        ("self.really", "self.really && mutant(Mutant::X)", "is_so", "self.really"),
        ("self.there,", "self.there || mutant(Mutant::X),", "is_so", "self.there"),
        ("return false;", "if !mutant(Mutant::X) {\n                return false;\n            }", "is_so", "return false;"),
        ("use crate::other::Thing;", "use crate::other::{More, Thing};", None, "use crate::other::Thing"),
    ):
        edited = SOURCE.replace(old, new)
        source = switches.Source("crates/core/src/a.rs", SOURCE)
        (switch,) = switches.differences(source.name, SOURCE, edited, [source])
        assert (switch.get("function"), switch["find"]) == (function, find)
        switches.put(switch, [source])
        assert source.edited(None) == edited


def made(function_of_run):
    """Calls a function of `wrong-rules/run`."""
    code = (ROOT / "wrong-rules/run").read_text().rpartition("\nmain()")[0]
    names = {"__file__": str(ROOT / "wrong-rules/run"), "__name__": "run"}
    exec(compile(code, "run", "exec"), names)
    return names[function_of_run]


def test_all_switches_fit_and_are_saved_as_they_are():
    rust, sources, put_all, with_switches, all_switches = map(
        made, ("rust", "sources", "put_all", "with_switches", "all_switches")
    )
    texts, tables = rust(sources()), all_switches()
    edited, failures, placed = put_all(texts)
    assert not failures and len(placed) > 200
    # What is saved of the copy makes the same copy again.
    near = [switches.Source(name, text) for name, text in texts.items()]
    for name, text in edited.items():
        found = with_switches(name, texts[name], text, near, tables)
        fresh = [switches.Source(name, texts[name])] + [source for source in near if source.name != name]
        assert [switches.put(switch, fresh) for _, switch in found] == [name] * len(found)
        crate = re.match(r"crates/(\w+)/src/", name)
        use = next((use for path, (use, _) in tables.items() if crate and path.stem == crate[1]), None)
        assert [t.text for t in switches.tokens(fresh[0].edited(use))] == [t.text for t in switches.tokens(text)]


@pytest.fixture
def room(tmp_path):
    """A repository with one crate, and one switch."""
    shutil.copytree(ROOT / "wrong-rules", tmp_path / "wrong-rules", ignore=lambda folder, _: ["switches", "files", "__pycache__"])
    (tmp_path / "wrong-rules/files/crates/core/src").mkdir(parents=True)
    (tmp_path / "wrong-rules/files/crates/core/src/mutant.rs").write_text("// rules\n")
    (tmp_path / "wrong-rules/switches").mkdir()
    table = switches.written("Switches", USE, "crates/core/src", [SWITCH])
    (tmp_path / "wrong-rules/switches/core.toml").write_text(table)
    (tmp_path / "crates/core/src").mkdir(parents=True)
    (tmp_path / "crates/core/src/a.rs").write_text(SOURCE)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def run(room, *args):
    env = {"PATH": "/usr/bin:/bin", "HOME": str(room)}
    return subprocess.run([room / "wrong-rules/run", *args], capture_output=True, text=True, env=env, timeout=60)


def saved(room):
    assert run(room, "save").returncode == 0
    return switches.read(room / "wrong-rules/switches/core.toml")[1]


def test_a_switch_is_put_changed_and_saved(room):
    copy = room / "target/wrong-rules/crates/core/src"
    assert run(room, "copy").returncode == 0
    assert "mutant(Mutant::BadIsGood)" in (copy / "a.rs").read_text()
    assert (copy / "mutant.rs").read_text() == "// rules\n"
    # Nothing was changed in the copy.
    assert saved(room) == [SWITCH]
    # Another one.
    text = (copy / "a.rs").read_text()
    (copy / "a.rs").write_text(text.replace("self.really", "self.really || mutant(Mutant::AllAreSo)"))
    more = {**SWITCH, "find": "self.really", "put": "self.really || mutant(Mutant::AllAreSo)"}
    assert saved(room) == [SWITCH, more]
    # Taken out again.
    assert run(room, "copy").returncode == 0
    (copy / "a.rs").write_text((copy / "a.rs").read_text().replace(" || mutant(Mutant::AllAreSo)", ""))
    assert saved(room) == [SWITCH]


def test_a_switch_whose_rule_has_changed_is_named_and_put_anew(room):
    source, copy = room / "crates/core/src/a.rs", room / "target/wrong-rules/crates/core/src/a.rs"
    source.write_text(SOURCE.replace("!good", "self.is_bad()"))
    for command in ("check", "copy"):
        done = run(room, command)
        assert done.returncode == 1 and "BadIsGood: crates/core/src: is_so: this code is there nowhere" in done.stderr
    copy.write_text(copy.read_text().replace("self.is_bad()", "self.is_bad() && !mutant(Mutant::BadIsGood)"))
    new = {**SWITCH, "find": "if self.is_bad()", "put": "if self.is_bad() && !mutant(Mutant::BadIsGood)"}
    assert saved(room) == [new]
    # The sources have changed since the copy was made.
    source.write_text(source.read_text() + "\n")
    copy.write_text(copy.read_text() + "\n")
    assert "changed since the copy was made" in run(room, "save").stderr
