"""A machine with a kernel of its own: Debian's cloud kernel with Debian's systemd and udev, under QEMU.

Made by mmdebstrap from Debian's archive once and kept below target/guests; what a guest writes is gone when it ends. It needs
no KVM (`URBD_GUEST_ACCEL=kvm` uses it). Commands go over a virtio port to a shell of root.
"""

import base64
import os
import select
import shutil
import socket
import subprocess
import tempfile
import time

import cluster as C

TESTS = os.path.dirname(os.path.abspath(__file__))
KEPT = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(TESTS, "..", "target"), "guests")
PACKAGES = ("systemd-sysv,udev,dbus,initramfs-tools,linux-image-cloud-amd64,fuse3,e2fsprogs,fio,dmsetup,lvm2,iproute2,procps,kmod,"
            "psmisc,python3-pytest,python3-libnbd,libnbd-bin,qemu-utils,xfsprogs")
AGENT = """[Unit]
Description=Commands from the host
[Service]
ExecStart=/usr/local/sbin/agent
[Install]
WantedBy=multi-user.target
"""
# A line in: a script. A line out: its exit status and what it has printed.
SHELL = """#!/bin/bash
port=/dev/virtio-ports/urbd
until [ -e $port ]; do sleep 0.05; done
exec 3<>$port
echo "0 ready" >&3
while read -r line <&3; do
  base64 -d <<<"$line" >/run/script
  bash /run/script >/run/printed 2>&1 </dev/null 3>&-
  echo "$? $(base64 -w0 /run/printed)" >&3
done
"""
# More of the size of its memory is never written there.
ROOT_SIZE, MEMORY = "3G", "2G"


def built(suite):
    """The folder with the root file system, kernel and initrd of that Debian."""
    place = os.path.join(KEPT, suite)
    if os.path.exists(os.path.join(place, "root.img")):
        return place
    os.makedirs(place, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="urbd-guest-") as top:
        root = os.path.join(top, "root")
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", suite, root], check=True)
        put(root, "etc/systemd/system/agent.service", AGENT)
        put(root, "usr/local/sbin/agent", SHELL, 0o755)
        put(root, "etc/fstab", "")
        put(root, "etc/hostname", "guest\n")
        put(root, "etc/systemd/journald.conf", "[Journal]\nStorage=volatile\n")
        wanted = os.path.join(root, "etc/systemd/system/multi-user.target.wants")
        os.makedirs(wanted, exist_ok=True)
        os.symlink("../agent.service", os.path.join(wanted, "agent.service"))
        boot = os.path.join(root, "boot")
        for name in ("vmlinuz", "initrd.img"):
            found = [f for f in os.listdir(boot) if f.startswith(name)]
            assert len(found) == 1, found
            shutil.copy(os.path.join(boot, found[0]), os.path.join(place, name))
        image(root, os.path.join(place, "new.img"), ROOT_SIZE)
    os.rename(os.path.join(place, "new.img"), os.path.join(place, "root.img"))
    return place


def put(root, path, text, mode=0o644):
    path = os.path.join(root, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, mode)


def image(folder, path, size):
    """The folder's files as an ext4 file system."""
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-E", "root_owner=0:0", "-d", folder, path, size], check=True, stdout=subprocess.DEVNULL)


class Guest:
    """Runs until `end`. `/urbd` has the project's tests, units and program, as they are now."""

    def __init__(self, suite="bookworm"):
        base = built(suite)
        self.place = tempfile.mkdtemp(prefix="urbd-guest-")
        self.process = self.port = None
        try:
            self.boot(base)
        except BaseException:
            self.end()
            raise

    def boot(self, base):
        self.files()
        port = os.path.join(self.place, "port")
        accel = os.environ.get("URBD_GUEST_ACCEL", "tcg")
        self.process = subprocess.Popen(
            ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-M", "q35", "-cpu", "max", "-smp", "2",
             "-m", MEMORY, "-accel", accel,
             "-kernel", f"{base}/vmlinuz", "-initrd", f"{base}/initrd.img",
             "-append", "root=/dev/vda rw console=ttyS0 quiet panic=-1",
             "-drive", f"file={base}/root.img,if=virtio,format=raw,snapshot=on",
             "-drive", f"file={self.place}/files.img,if=virtio,format=raw,snapshot=on",
             "-serial", f"file:{self.place}/console", "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
             "-chardev", f"socket,path={port},server=on,wait=off,id=port", "-device", "virtserialport,chardev=port,name=urbd"],
            stdin=subprocess.DEVNULL, stdout=open(os.path.join(self.place, "qemu"), "wb"), stderr=subprocess.STDOUT)
        C.eventually("the machine is switched on", lambda: self.alive() and os.path.exists(port), 20)
        self.port = socket.socket(socket.AF_UNIX)
        self.port.connect(port)
        assert self.line(300) == "0 ready"
        self.run("mkdir -p /urbd && mount /dev/vdb /urbd && modprobe fuse loop")

    def files(self):
        """What /urbd has."""
        top = os.path.join(self.place, "files")
        keep = shutil.ignore_patterns("__pycache__", ".pytest_cache")
        for folder in ("tests", "dist"):
            shutil.copytree(os.path.join(TESTS, "..", folder), os.path.join(top, folder), symlinks=True, ignore=keep)
        os.makedirs(os.path.join(top, "target", "debug"))
        subprocess.run(["strip", "-o", os.path.join(top, "target", "debug", "urbd"), C.URBD], check=True)
        image(top, os.path.join(self.place, "files.img"), "512M")
        shutil.rmtree(top)

    def alive(self):
        assert self.process.poll() is None, self.console()
        return True

    def console(self):
        said = ""
        for name in ("qemu", "console"):
            path = os.path.join(self.place, name)
            if os.path.exists(path):
                with open(path, errors="replace") as f:
                    said += f.read()[-3000:]
        return said

    def line(self, timeout):
        until, got = time.monotonic() + timeout, b""
        while not got.endswith(b"\n"):
            left = until - time.monotonic()
            ready = select.select([self.port], [], [], max(0, left))[0]
            more = self.port.recv(1 << 20) if ready else b""
            assert more, f"no answer in {timeout} s\n{self.console()}"
            got += more
        return got.decode().strip()

    def call(self, script, timeout=120):
        """(exit status, what it has printed)"""
        self.port.sendall(base64.b64encode(script.encode()) + b"\n")
        status, _, printed = self.line(timeout).partition(" ")
        return int(status), base64.b64decode(printed).decode(errors="replace")

    def run(self, script, timeout=120):
        status, printed = self.call(f"set -e\n{script}", timeout)
        assert status == 0, f"{script}: {status}\n{printed}"
        return printed

    def reboot(self, timeout=600):
        """As an administrator does; the port tells when it is up again."""
        self.port.sendall(base64.b64encode(b"systemctl reboot") + b"\n")
        until = time.monotonic() + timeout
        while self.line(until - time.monotonic()) != "0 ready":
            pass

    def end(self):
        if self.port:
            self.port.close()
        if self.process:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.place, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
