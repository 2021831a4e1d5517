"""What `make release` publishes, made from the program that is built already: all parts are there, hold what they say, and are the
same bytes when they are made again elsewhere.  Static programs, built twice in two places, are `make long PART=release`."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile

import pytest

import cluster as C
import release
import scratch


@pytest.fixture(scope="module")
def published():
    with scratch.lasting("urbd-release-", C.scratch_dir()) as place:
        key = release.a_key(os.path.join(place, "gnupg"))
        quick = {"DPKG_DEB_COMPRESSOR_LEVEL": "0", "GNUPGHOME": os.path.join(place, "gnupg")}
        binaries = os.path.dirname(C.URBD)
        release.build(binaries, binaries, os.path.join(place, "one"), "--key", key, env=quick)
        yield release.Published(os.path.join(place, "one"), quick)
        release.end_agent(quick)


def test_every_part_is_there_and_has_its_sum(published):
    kinds = sorted(re.sub(r"[_-]\d+\.\d+\.\d+(\+\d+\.g[0-9a-f]{8})?(-1)?", "-V", name) for name in published.names())
    assert kinds == sorted(["urbd-V_amd64.deb", "urbd-lab-V_amd64.deb", "urbd-drbd-utils-V_all.deb", "urbd-V.x86_64.rpm",
                            "urbd-V-x86_64-linux.tar.gz", "urbd-V-oci.tar", "urbd-V.tar.gz", "urbd-V.cdx.json", "NOTES.md",
                            "SHA256SUMS", "SHA256SUMS.asc"])
    sums = dict(reversed(line.split()) for line in published.read("SHA256SUMS").decode().splitlines())
    assert set(sums) == set(published.names()) - {"SHA256SUMS", "SHA256SUMS.asc"}
    assert all(hashlib.sha256(published.read(name)).hexdigest() == wanted for name, wanted in sums.items())


def test_who_changes_a_sum_is_found_out(published, tmp_path):
    verify = ["gpg", "--batch", "--verify", published.path("SHA256SUMS.asc")]
    env = {**os.environ, **published.env}
    assert subprocess.run([*verify, published.path("SHA256SUMS")], env=env, capture_output=True).returncode == 0
    changed = tmp_path / "SHA256SUMS"
    changed.write_bytes(published.read("SHA256SUMS").replace(b"a", b"b", 1))
    assert subprocess.run([*verify, changed], env=env, capture_output=True).returncode != 0


def test_version_and_notes_are_those_of_the_change_log(published):
    with open(os.path.join(release.TOP, "CHANGELOG.md")) as f:
        log = f.read()
    titles = re.findall(r"^## (\S+)", log, re.M)
    newest = next(t for t in titles if t != "Unreleased")
    unreleased = log.split("## Unreleased\n")[1].split("\n## ")[0].strip() if "Unreleased" in titles else ""
    assert published.version.split("+")[0] == newest and ("+" in published.version) == bool(unreleased)
    notes = published.read("NOTES.md").decode()
    wanted = unreleased or log.split(f"## {newest} ")[1].split("\n", 1)[1].split("\n## ")[0].strip()
    assert notes.strip() == f"# urbd {published.version}\n\n{wanted}"
    deb = subprocess.run(["dpkg-deb", "-f", published.path(published.one("urbd_")), "Version"], check=True, capture_output=True, text=True)
    assert deb.stdout.strip() == published.version + "-1"


def test_nothing_unreleased_makes_a_release(published, tmp_path):
    """Its version is the newest title's, and so are its notes."""
    tree = release.copied(tmp_path / "tree")
    log = (tree / "CHANGELOG.md").read_text()
    begin, end = log.index("## Unreleased"), log.index("\n## ", log.index("## Unreleased"))
    (tree / "CHANGELOG.md").write_text(log[:begin] + log[end + 1:])
    binaries = os.path.dirname(C.URBD)
    release.build(binaries, binaries, tmp_path / "out", env=published.env, top=tree)
    made = release.Published(str(tmp_path / "out"), {})
    assert made.version == published.version.split("+")[0]
    assert "The first version that is packaged." in made.read("NOTES.md").decode() or made.version != "0.1.0"


def test_a_version_that_is_not_said_alike_is_not_published(tmp_path):
    tree = release.copied(tmp_path / "tree")
    cargo = tree / "Cargo.toml"
    cargo.write_text(re.sub(r'^version = ".*"', 'version = "9.8.7"', cargo.read_text(), count=1, flags=re.M))
    r = subprocess.run([tree / "dist/release/build", "--static", os.path.dirname(C.URBD), "--output", tmp_path / "out"],
                       capture_output=True, text=True)
    assert r.returncode == 1 and "and Cargo.toml 9.8.7" in r.stderr, r
    assert not os.path.exists(tmp_path / "out")


def test_without_the_key_nothing_is_published(tmp_path):
    """Neither gpg has such a key, nor is there such a file."""
    r = subprocess.run([os.path.join(release.TOP, "dist/release/build"), "--static", os.path.dirname(C.URBD), "--output", tmp_path / "out",
                        "--key", "nobody@localhost"], env={**os.environ, "GNUPGHOME": str(tmp_path)}, capture_output=True, text=True)
    assert r.returncode == 1 and "no secret key 'nobody@localhost'" in r.stderr, r
    assert not os.path.exists(tmp_path / "out")


def test_the_source_archive_is_what_is_committed(published):
    with tarfile.open(published.path(f"urbd-{published.version}.tar.gz")) as tar:
        names = {m.name for m in tar.getmembers() if not m.isdir()}
    tracked = release.git("ls-tree", "-r", "--name-only", "HEAD").decode().splitlines()
    assert names == {f"urbd-{published.version}/{name}" for name in tracked}


def test_the_list_of_what_is_linked_in(published):
    """As cargo's own tree has it, each with the checksum of Cargo.lock, and nothing hangs in the air."""
    bom = json.loads(published.read(published.one("urbd-", ".cdx.json")))
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.5")
    refs = {c["bom-ref"] for c in bom["components"]}
    assert len(refs) == len(bom["components"])
    listed = {(c["name"], c["version"]) for c in bom["components"]}
    argv = ["cargo", "tree", "--locked", "-p", "urbd", "-p", "urbd-watch", "-e", "normal", "--prefix", "none", "--format", "{p}",
            "--target", f"{os.uname().machine}-unknown-linux-musl"]
    tree = subprocess.run(argv, cwd=release.TOP, check=True, capture_output=True, text=True).stdout
    assert listed == {tuple(line.replace(" v", " ").split()[:2]) for line in tree.splitlines() if line.strip()}
    with open(os.path.join(release.TOP, "Cargo.lock")) as f:
        lock = f.read()
    for c in bom["components"]:
        assert c["licenses"][0]["expression"] and c["purl"] == f"pkg:cargo/{c['name']}@{c['version']}"
        if not c["name"].startswith("urbd"):
            assert f'checksum = "{c["hashes"][0]["content"]}"' in lock, c
    assert next(c for c in bom["components"] if c["name"] == "libc")["scope"] == "required"
    assert next(c for c in bom["components"] if c["name"] == "syn")["scope"] == "excluded"
    named = {ref for d in bom["dependencies"] for ref in [d["ref"], *d["dependsOn"]]}
    assert named == refs | {bom["metadata"]["component"]["bom-ref"]}


def test_the_image_has_the_program_alone_and_runs(published, tmp_path):
    """In an empty root.  The program that is built for tests needs libraries, which are put beside it there."""
    image = release.Image(published.path(published.one("urbd-", "-oci.tar")))
    root = tmp_path / "root"
    assert image.unpack(root) == ["urbd"] and image.config["config"]["Entrypoint"] == ["/urbd"]
    release.add_libraries(root)
    assert "Usage: urbd" in release.in_root(root, *image.command()).stdout
    release.a_life(root)


def test_a_layer_that_is_not_what_was_written_is_found(published, tmp_path):
    image = published.path(published.one("urbd-", "-oci.tar"))
    changed = tmp_path / "image.tar"
    with tarfile.open(image) as old, tarfile.open(changed, "w") as new:
        for member in old.getmembers():
            data = old.extractfile(member).read()
            if len(data) > 100_000:
                data = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
            new.addfile(member, io.BytesIO(data))
    with pytest.raises(AssertionError, match="is not what its name says"):
        release.Image(changed)


def test_the_static_archive(published):
    with tarfile.open(published.path(published.one("urbd-", "-linux.tar.gz"))) as tar:
        names = sorted(os.path.basename(m.name) for m in tar.getmembers() if m.isfile())
        assert {(m.uid, m.gid) for m in tar.getmembers()} == {(0, 0)} and len({m.mtime for m in tar.getmembers()}) == 1
    assert names == ["CHANGELOG.md", "LICENSE", "README.md", "urbd", "urbd-watch"]


def test_made_again_elsewhere_it_is_the_same(published, tmp_path):
    """By another copy of the source, from other copies of the programs, later."""
    tree = release.copied(tmp_path / "tree")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("urbd", "urbd-watch", "urbd-lab"):
        shutil.copy(os.path.join(os.path.dirname(C.URBD), name), programs)
    out = tmp_path / "out"
    release.build(programs, programs, out, env=published.env, top=tree)
    other = release.Published(str(out), {})
    assert other.sums() == published.sums()
