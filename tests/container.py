"""A machine with a systemd of its own: this machine's files with a layer above, booted in a container by systemd-nspawn."""

import os
import shutil
import signal
import subprocess
import time

import cluster as C

DIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "dist")


class Machine:
    """Booted by `boot`; what it has written stays until `remove`, so it can be booted again."""

    def __init__(self, place, name, netns=None, below="/", installed=True):
        """`below`: the files of the system; by default this machine's."""
        self.place, self.name, self.netns, self.below = str(place), name, netns, str(below)
        self.upper, self.work, self.root = (os.path.join(self.place, part) for part in ("upper", "work", "root"))
        for folder in (self.upper, self.work, self.root):
            os.makedirs(folder)
        self.process = self.init = None
        # This machine's own services and mounts are not the container's.
        os.makedirs(self.path("/etc/systemd/system"))
        os.setxattr(self.path("/etc/systemd/system"), "trusted.overlay.opaque", b"y")
        self.write("/etc/fstab", "")
        self.write("/etc/hostname", name + "\n")
        self.write("/etc/systemd/journald.conf", "[Journal]\nStorage=persistent\n")
        # Longer than one of these services is never needed, and some wait for what a container does not have.
        for unit in ("systemd-networkd-wait-online.service", "networking.service", "e2scrub_reap.service", "systemd-resolved.service"):
            os.symlink("/dev/null", self.path(f"/etc/systemd/system/{unit}"))
        if installed:
            self.install()

    def path(self, path):
        """The file in the layer above."""
        return self.upper + path

    def write(self, path, text, mode=0o644):
        os.makedirs(os.path.dirname(self.path(path)), exist_ok=True)
        with open(self.path(path), "w") as f:
            f.write(text)
        os.chmod(self.path(path), mode)

    def install(self):
        """As a package does."""
        os.makedirs(self.path("/usr/sbin"), exist_ok=True)
        shutil.copy(C.URBD, self.path("/usr/sbin/urbd"))
        os.makedirs(self.path("/usr/lib/systemd/system"), exist_ok=True)
        for unit in ("urbd@.service", "urbd-keeper@.service"):
            shutil.copy(os.path.join(DIST, unit), self.path("/usr/lib/systemd/system"))

    def boot(self):
        network = f"--network-namespace-path=/run/netns/{self.netns}" if self.netns else "--private-network"
        nspawn = (f"mount -t overlay overlay -o lowerdir={self.below},upperdir={self.upper},workdir={self.work} {self.root} && "
                  f"exec systemd-nspawn -q -D {self.root} -M {self.name} --register=no --keep-unit {network} --capability=all "
                  "--bind=/dev/fuse --resolv-conf=off --timezone=off --link-journal=no --boot systemd.journald.forward_to_console=0")
        with open(os.path.join(self.place, "console"), "ab") as console:
            self.process = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", nspawn],
                                            stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT)
        C.eventually(f"{self.name} has begun to boot", self.find_init, 30)
        C.eventually(f"{self.name} has booted", self.has_booted, 60)

    def find_init(self):
        assert self.process.poll() is None, self.console()
        try:
            with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as f:
                children = f.read().split()
            for child in children:
                with open(f"/proc/{child}/comm") as f:
                    if f.read().strip() == "systemd":
                        self.init = child
                        return True
        except OSError:
            pass
        return False

    def has_booted(self):
        if self.call("test", "-e", "/dev/loop-control").returncode:
            # The container's own manager may not make it. Nodes of loop devices are not needed.
            self.call("mknod", "/dev/loop-control", "c", "10", "237")
        return self.call("systemctl", "is-system-running").stdout.strip() in ("running", "degraded")

    def call(self, *command, timeout=60, **kw):
        """A command of its root."""
        enter = ["nsenter", "-t", self.init, "-m", "-u", "-i", "-n", "-p", "--"]
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}
        return subprocess.run([*enter, *command], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                              env=env, cwd="/", **kw)

    def run(self, *command, **kw):
        r = self.call(*command, **kw)
        assert r.returncode == 0, f"{self.name}: {' '.join(command)}: {r.returncode}\n{r.stdout}{r.stderr}"
        return r.stdout

    def console(self):
        with open(os.path.join(self.place, "console"), errors="replace") as f:
            return f.read()[-3000:]

    def log(self):
        """What the services and what they started have said."""
        journal = self.call("journalctl", "-o", "short-precise", "-u", "urbd*", "--no-pager").stdout
        return journal + self.call("urbd", "status").stdout

    def shut_down(self, timeout=60):
        """As `poweroff` does; how long it took."""
        start = time.monotonic()
        if self.process and self.process.poll() is None:
            os.kill(int(self.init), signal.SIGRTMIN + 4)
            self.process.wait(timeout)
        return time.monotonic() - start

    def remove(self):
        if self.process and self.process.poll() is None:
            try:
                self.shut_down(30)
            except subprocess.TimeoutExpired:
                os.kill(int(self.init), signal.SIGKILL)
                try:
                    self.process.wait(5)
                except subprocess.TimeoutExpired:  # one of its processes waits for a disk
                    self.process.kill()
        shutil.rmtree(self.place, ignore_errors=True)
