"""A few rounds of what `make long` does a thousand times: see long.py."""

import json
import shutil

import pytest

import cluster as C
import long
from releases import FORM_9, HELD, Old, history
from versions import versions


def figures(directory, part):
    with open(directory / f"{part}.json") as f:
        return json.load(f)


@pytest.mark.parametrize("part", ["kills", "restarts"])
def test_a_file_system_goes_on(part, tmp_path, capsys):
    """Twice: the second call goes on where the first one was."""
    call = ["--part", part, "--directory", str(tmp_path), "--batch", "3"]
    assert long.main([*call, "--rounds", "3"]) == 0
    assert long.main([*call, "--rounds", "5"]) == 0
    f = figures(tmp_path, part)
    assert f["rounds"] == len(f["pauses_ms"]) == 5 and f["written"] > 100 and not f["failures"]
    assert "5 rounds" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--without-resend"]])
def test_nothing_waits_that_only_looks(tmp_path, more):
    assert long.main(["--part", "onlookers", "--directory", str(tmp_path), "--rounds", "4", *more]) == 0


def test_a_database_goes_on(tmp_path):
    assert long.main(["--part", "postgres", "--directory", str(tmp_path), "--rounds", "4"]) == 0
    assert figures(tmp_path, "postgres")["rounds"] == 4


def test_another_program_goes_on(cluster, tmp_path):
    """Another file; versions that differ are built by `make long`."""
    other = tmp_path / "urbd"
    shutil.copy(C.URBD, other)
    pauses, written = versions(cluster, str(other), 4)
    assert len(pauses) == 4 and written > 50


@pytest.mark.parametrize("old_first", [True, False])
def test_a_pair_changes_its_dialect_at_the_next_connect(old_first):
    """This program on both, one of which is held to 8.4's dialect; the last release is built by `make long`."""
    _, written = history(FORM_9, Old(line=HELD), old_first)
    assert written > 200


def test_a_database_goes_on_elsewhere(tmp_path):
    """Three nodes: each is Primary once, and is killed under PostgreSQL."""
    assert long.main(["--part", "fail-overs", "--directory", str(tmp_path), "--rounds", "3"]) == 0
    assert figures(tmp_path, "fail-overs")["rounds"] == 3


def test_writes_of_a_target_are_answered(tmp_path):
    assert long.main(["--part", "targets", "--directory", str(tmp_path), "--rounds", "1"]) == 0
    f = figures(tmp_path, "targets")
    assert f["rounds"] == 1 and f["written"] > 50


def test_a_failure_is_recorded_and_nothing_goes_on_after_it(tmp_path, monkeypatch):
    def fails(*_):
        raise AssertionError("a block is not what was written")

    monkeypatch.setitem(long.PARTS, "kills", (fails, None, 10, 5))
    for _ in range(2):
        assert long.main(["--part", "kills", "--directory", str(tmp_path)]) == 1
    [why] = figures(tmp_path, "kills")["failures"]
    assert "not what was written" in why
