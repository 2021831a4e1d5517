"""The manual's pages, made from the program's tables: read by mandoc and by man, both of which complain."""

import os
import re
import subprocess
from pathlib import Path

import pytest

import cluster as C


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    place = tmp_path_factory.mktemp("manual")
    subprocess.run([os.path.join(os.path.dirname(C.URBD), "urbd-lab"), "manual", place], check=True)
    found = sorted(place.iterdir())
    assert len(found) > 60 and {"urbd.8", "urbd.conf.5", "urbd-create-md.8"} <= {page.name for page in found}
    return found


def test_no_page_has_a_mistake(pages):
    r = subprocess.run(["mandoc", "-Tlint", "-Wwarning", *pages], capture_output=True, text=True)
    assert r.returncode == 0 and not r.stdout and not r.stderr, r.stdout + r.stderr


def test_man_shows_them(pages):
    for page in (p for p in pages if p.name in ("urbd.8", "urbd.conf.5", "urbd-net-options.8")):
        # mandoc and groff, which most systems have, read differently.
        r = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-rLL=80n", page], capture_output=True, text=True)
        assert r.returncode == 0 and not r.stderr, r.stderr
        shown = re.sub(".\x08", "", r.stdout)
        assert "NAME" in shown and "SEE ALSO" in shown


def test_help_and_manual_name_the_same_verbs(pages):
    overview = subprocess.run([C.URBD, "help"], capture_output=True, text=True, check=True).stdout
    verbs = {line.split()[0] for line in overview.splitlines() if line.startswith("  ") and line[2].islower()}
    assert verbs - {"help"} == {Path(p.name).stem.removeprefix("urbd-") for p in pages if p.name.startswith("urbd-")}
