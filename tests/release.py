"""Makes and reads what is published of a version (dist/release/): test_release.py, and `make long PART=release`."""

import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import tarfile
import time

import cluster as C

TOP = os.path.realpath(os.path.join(C.TESTS, ".."))
IN_ROOT = {"URBD_NODE": "here", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
CONFIG = """resource r0 {
  urbd { front-end none; }
  on here  { device /dev/drbd0; disk /disk; meta-disk internal; address 127.0.0.1:7789; }
  on there { device /dev/drbd0; disk /disk; meta-disk internal; address 127.0.0.2:7789; }
}
"""


def build(binaries, static, output, *more, env=(), top=TOP):
    argv = [os.path.join(top, "dist/release/build"), "--binaries", binaries, "--static", static, "--output", output, *more]
    history = {"GIT_DIR": git("rev-parse", "--absolute-git-dir").decode().strip()}
    r = subprocess.run(argv, env={**os.environ, **history, **dict(env)}, capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr


def git(*args):
    return subprocess.run(["git", "-c", f"safe.directory={TOP}", "-C", TOP, *args], check=True, stdout=subprocess.PIPE).stdout


def copied(to):
    """The source as it is committed, and what makes a release as it is being changed; the history stays where it is."""
    os.makedirs(to)
    subprocess.run(["tar", "-x", "-C", to], input=git("archive", "HEAD"), check=True)
    for name in ("dist", "CHANGELOG.md", "Cargo.toml", "Cargo.lock"):
        path = os.path.join(TOP, name)
        if os.path.isdir(path):
            shutil.copytree(path, os.path.join(to, name), dirs_exist_ok=True)
        else:
            shutil.copy(path, os.path.join(to, name))
    return to


def a_key(home):
    """A key of gpg's, in a directory of its own; its name."""
    os.makedirs(home, mode=0o700)
    subprocess.run(["gpg", "--batch", "--passphrase", "", "--quick-generate-key", "urbd-test@localhost", "ed25519", "sign", "1d"],
                   env={**os.environ, "GNUPGHOME": home}, check=True, capture_output=True)
    return "urbd-test@localhost"


def end_agent(env):
    subprocess.run(["gpgconf", "--kill", "all"], env={**os.environ, **env}, check=True)


class Published:
    """A directory with what is published."""

    def __init__(self, directory, env):
        self.directory, self.env = directory, env
        self.version = self.one("urbd-", "-oci.tar").removeprefix("urbd-").removesuffix("-oci.tar")

    def names(self):
        return os.listdir(self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def one(self, begin, end=""):
        found, = (name for name in self.names() if name.startswith(begin) and name.endswith(end))
        return found

    def read(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def sums(self):
        return self.read("SHA256SUMS").decode().splitlines()


class Image:
    """An OCI image: each blob is what its name says, and each reference leads to one."""

    def __init__(self, path):
        with tarfile.open(path) as tar:
            self.files = {m.name: tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}
        assert json.loads(self.files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
        for name, data in self.files.items():
            if name.startswith("blobs/"):
                assert hashlib.sha256(data).hexdigest() == name.removeprefix("blobs/sha256/"), f"{name} is not what its name says"
        entry, = json.loads(self.files["index.json"])["manifests"]
        manifest = json.loads(self.blob(entry, "manifest.v1+json"))
        self.config = json.loads(self.blob(manifest["config"], "config.v1+json"))
        self.layers = [gzip.decompress(self.blob(layer, "layer.v1.tar+gzip")) for layer in manifest["layers"]]
        ids = ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in self.layers]
        assert self.config["rootfs"] == {"type": "layers", "diff_ids": ids} and self.config["os"] == "linux"

    def blob(self, reference, kind):
        assert reference["mediaType"] == "application/vnd.oci.image." + kind, reference
        data = self.files["blobs/" + reference["digest"].replace(":", "/")]
        assert len(data) == reference["size"], reference
        return data

    def command(self):
        return self.config["config"]["Entrypoint"] + self.config["config"]["Cmd"]

    def unpack(self, root):
        """Into a new directory; the names of what is there then."""
        os.makedirs(root)
        for layer in self.layers:
            with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
                tar.extractall(root)
        return sorted(os.listdir(root))


def libraries(program):
    """What a program is linked against; nothing for a static one."""
    r = subprocess.run(["ldd", program], capture_output=True, text=True)
    return [word for line in r.stdout.splitlines() for word in line.split() if word.startswith("/")]


def add_libraries(root):
    for path in libraries(os.path.join(root, "urbd")):
        to = os.path.join(root, path.lstrip("/"))
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy(path, to)


def in_root(root, *argv, **options):
    """A program in a root of its own, without a network but its own, to its end."""
    options = {"check": True, "capture_output": True, "text": True, "timeout": 60, **options}
    return subprocess.run(isolated(root, *argv), env=IN_ROOT, **options)


def isolated(root, *argv):
    return ["unshare", "--net", "--pid", "--fork", "--kill-child", f"--root={root}", "--", *argv]


def a_life(root):
    """Metadata, a process, a promotion and data, with nothing in the root but the program, a file, a disk, and of what a
    container's runtime provides one device."""
    for name in ("etc", "dev"):
        os.makedirs(os.path.join(root, name), exist_ok=True)
    os.mknod(os.path.join(root, "dev/urandom"), 0o666 | stat.S_IFCHR, os.makedev(1, 9))
    with open(os.path.join(root, "etc/urbd.conf"), "w") as f:
        f.write(CONFIG)
    with open(os.path.join(root, "disk"), "wb") as f:
        f.truncate(16 << 20)
    in_root(root, "/urbd", "create-md", "--force", "r0")
    with open(os.path.join(root, "log"), "w") as log:
        p = subprocess.Popen(isolated(root, "/urbd", "run", "r0"), env=IN_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        def asked(*argv):
            return subprocess.run(["chroot", root, "/urbd", *argv], env=IN_ROOT, capture_output=True, text=True, timeout=60)

        C.eventually("it answers", lambda: p.poll() is not None or asked("role", "r0").returncode == 0)
        assert p.poll() is None, open(os.path.join(root, "log")).read()
        r = asked("primary", "--force", "r0")
        assert r.returncode == 0, (r, open(os.path.join(root, "log")).read())
        assert asked("role", "r0").stdout.startswith("Primary"), asked("status", "r0")
        socket = asked("nbd-uri", "r0/0").stdout.strip().replace("socket=", f"socket={root}")
        subprocess.run(["qemu-io", "-f", "raw", "-c", "write -P 7 0 64k", "-c", "read -P 7 0 64k", socket], check=True, capture_output=True)
        r = asked("down", "r0")
        assert r.returncode == 0, r
        assert p.wait(20) == 0
    finally:
        if p.poll() is None:
            p.send_signal(signal.SIGTERM)
            time.sleep(1)
            p.kill()
            p.wait()


def programs(top, target):
    """Builds them as `make release` does: where the usual ones and those without libraries are."""
    env = {**os.environ, "CARGO_TARGET_DIR": target}
    made = subprocess.run([os.path.join(top, "dist/release/static")], env=env, check=True, stdout=subprocess.PIPE, text=True)
    subprocess.run([os.path.join(top, "dist/release/remapped"), "cargo", "build", "--release", "--locked", "-p", "urbd", "-p", "urbd-watch",
                    "-p", "urbd-lab"], cwd=top, env=env, check=True)
    return os.path.join(target, "release"), made.stdout.splitlines()[-1]


def built_twice(cluster, *_):
    """The sums of all that is published from here and from a copy elsewhere; the image of the static program runs in an empty
    root. How long each took in seconds, and how many files there are."""
    target = os.path.realpath(os.environ.get("CARGO_TARGET_DIR") or os.path.join(TOP, "target"))
    copy = copied(os.path.join(cluster.dir, "elsewhere"))
    took, sums = [], []
    for top, place in ((TOP, target), (copy, os.path.join(target, "long", "elsewhere"))):
        began = time.monotonic()
        output = os.path.join(cluster.dir, f"published{len(took)}")
        build(*programs(top, place), output, top=top)
        published = Published(output, {})
        sums.append(published.sums())
        took.append(time.monotonic() - began)
    assert sums[0] == sums[1], f"{sorted(set(sums[0]) ^ set(sums[1]))}"
    root = os.path.join(cluster.dir, "root")
    image = Image(published.path(published.one("urbd-", "-oci.tar")))
    assert image.unpack(root) == ["urbd"] and not libraries(os.path.join(root, "urbd"))
    assert "Usage: urbd" in in_root(root, *image.command()).stdout
    a_life(root)
    return [max(took)], len(sums[0])
