"""Machines for tests: an urbd node with a root, host name, /dev, /run, processes, IPC and network of its own.

    with Cluster() as c:
        alpha, bravo = machine(c, "alpha"), machine(c, "bravo")
        alpha.sh("urbd create-md r0 && urbd up r0")     # as an operator of alpha types it
        alpha.power_off()                               # every process of it is gone, its disks and /etc stay
        alpha.power_on()

A node of cluster.py is told where its files are.  A machine needs no telling: `urbd` is in its PATH, the configuration is
in /etc, the host name is `uname -n`.  So what is written for operators runs there as it is written.  Its root is an overlay
over this machine's, kept in the scratch directory; its disks are files with a link below /dev.
"""

import contextlib
import fcntl
import os
import signal
import subprocess

from cluster import MIB, Call, KernelPeerError, SUBNET, TESTS, TookTooLong, URBD, UrbdNode, end_with_us

LOOP_CLR_FD = 0x4C01
REPOSITORY = os.path.dirname(TESTS)

# Runs in fresh namespaces; $1 is the host name, $2 the machine's directory, $3 what its root is made of. Its last process reaps
# all others.
BOOT = r"""
set -eu
hostname "$1"
cd "$2"
mkdir -p upper work root disks
mount -t overlay overlay -o "lowerdir=$3,upperdir=$2/upper,workdir=$2/work" root
for d in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs root/$d; done
chmod 1777 root/tmp
mkdir -p root/dev/shm root/disks root/old root/run/lock
mount -t tmpfs tmpfs root/dev/shm
mount --bind disks root/disks
/usr/bin/python3 -c '
import os, stat
os.umask(0)
chars = "null 1 3, zero 1 5, full 1 7, random 1 8, urandom 1 9, tty 5 0, fuse 10 229, loop-control 10 237"
for name, major, minor in (x.split() for x in chars.split(", ")):
    os.mknod("root/dev/" + name, 0o666 | stat.S_IFCHR, os.makedev(int(major), int(minor)))
for minor in range(256):
    os.mknod(f"root/dev/loop{minor}", 0o660 | stat.S_IFBLK, os.makedev(7, minor))
'
ln -s /proc/self/fd root/dev/fd
mount -t proc proc root/proc
mount --rbind /sys root/sys
cd root
pivot_root . old
umount -l old
rmdir old
echo up
if [ -x /usr/bin/python3 ]; then
	exec /usr/bin/python3 -c '
import os, time
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.2)
'
fi
while :; do
	sleep 0.5 &
	wait
done
"""


class Machine(UrbdNode):
    """The verbs of UrbdNode work, but for those that start a process of the test's own: here `urbd up` starts them."""

    def __init__(self, cluster, name, size=32 * MIB, disks=("/dev/vg0/data",), lower="/"):
        self.lower = lower
        self.links = {link: os.path.join(cluster.dir, name, "disks", link.strip("/").replace("/", "-")) for link in disks}
        super().__init__(cluster, name, size, 0)
        self.volumes = len(disks)
        for link, path in self.links.items():
            self.new_disk(path, disks[link] if isinstance(disks, dict) else size)
        self.run_dir = "/run/urbd"
        self.conf = "/etc/urbd.conf"

    @staticmethod
    def new_disk(path, size):
        with open(path, "wb") as f:
            f.truncate(size)

    def disk_file(self, volume=0):
        return list(self.links.values())[volume]

    def disk_path(self, volume=0):
        return list(self.links)[volume]

    # ---- power -----------------------------------------------------------------
    def _join_network(self):
        self.index = None
        self.power_on()
        return self.ip

    def power_on(self):
        """Fresh processes, /run, /dev and /tmp; /etc, /var and the disks are those it had."""
        os.makedirs(os.path.join(self.dir, "disks"), exist_ok=True)
        holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--propagation", "private",
             "sh", "-c", BOOT, "boot", self.name, self.dir, self.lower],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=open(os.path.join(self.dir, "boot.log"), "ab"),
            start_new_session=True, preexec_fn=end_with_us)
        assert holder.stdout.readline() == b"up\n", open(os.path.join(self.dir, "boot.log")).read()
        holder.stdout.close()
        self.unshare = holder
        with open(f"/proc/{holder.pid}/task/{holder.pid}/children") as f:
            self.holder = int(f.read())
        if self.index is None:
            used = {os.path.basename(p) for p in self._ports()}
            self.index = next(i for i in range(101, 200) if f"un{i}" not in used)
            self.port, self.ip = f"un{self.index}", f"{SUBNET}.{self.index}"
        lab = self.cluster.lab
        lab.ip(f"link add {self.port} type veth peer name eth0 netns {self.holder}")
        lab.ip(f"link set {self.port} master br0 up")
        script = [f"ip addr add {self.ip}/24 dev eth0; ip link set eth0 up; ip link set lo up"]
        for link, path in self.links.items():
            script.append(f"mkdir -p {os.path.dirname(link)}; ln -sfn /disks/{os.path.basename(path)} {link}")
        self.sh("\n".join(script))
        self.install()

    def _ports(self):
        out = self.cluster.lab.ip("-o link show")
        return [line.split(": ")[1].split("@")[0] for line in out.splitlines() if ": un" in line]

    def install(self):
        """The program under its four names, and what else `make install` puts in place and the tests use."""
        if self.lower != "/":
            return  # whoever made it installs what is to be there
        self.sh(f"""
            mkdir -p /usr/lib/urbd /usr/lib/ocf/resource.d/urbd /usr/lib/systemd/system
            cp {REPOSITORY}/dist/*.service /usr/lib/systemd/system/
            for name in urbd drbdadm drbdsetup drbdmeta; do ln -sfn {URBD} /usr/sbin/$name; done
            install -m 755 {REPOSITORY}/dist/ocf/drbd /usr/lib/ocf/resource.d/urbd/drbd
            for name in crm-fence-peer crm-unfence-peer; do
              install -m 755 {REPOSITORY}/dist/ocf/crm-fence-peer /usr/lib/urbd/$name
            done""")

    def power_off(self):
        """As a cable that is pulled: every process of the machine is killed at once, and no packet says so."""
        with contextlib.suppress(KernelPeerError):
            self.cut()
        loops = self.open_loops()
        if self.unshare.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.holder, signal.SIGKILL)
            self.unshare.wait(20)
        for fd in loops:  # whose server was killed
            with contextlib.suppress(OSError):
                fcntl.ioctl(fd, LOOP_CLR_FD)
            os.close(fd)
        with contextlib.suppress(KernelPeerError):
            self.cluster.lab.ip(f"link del {self.port}")

    crash = power_off

    # ---- commands --------------------------------------------------------------
    def prefix(self):
        return ["nsenter", "-t", str(self.holder), "-n", "-m", "-u", "-i", "-p", "--"]

    def env(self, **more):
        keep = {k: v for k, v in os.environ.items() if k in ("LANG", "URBD_LOG")}
        return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TERM": "linux",
                **keep, **more}

    def shell(self, script, timeout=60.0, input=None):
        """Runs a shell script on the machine; any exit status."""
        try:
            r = self.run(["bash", "-c", script], env=self.env(), timeout=timeout, text=True, cwd="/",
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         **({"input": input} if input is not None else {"stdin": subprocess.DEVNULL}))
        except subprocess.TimeoutExpired as e:
            raise TookTooLong(f"{self.name}: no end within {timeout:g} s: {script}\n{e.stdout}\n{e.stderr}") from None
        return Call(r.returncode, r.stdout, r.stderr)

    def sh(self, script, timeout=60.0):
        """Runs a shell script, insists on exit status 0, returns what it printed."""
        r = self.shell("set -e\n" + script, timeout)
        assert r.rc == 0, f"{self.name}: ended with {r.rc}: {script}\n{r.out[-2000:]}{r.err[-2000:]}"
        return r.out

    def put(self, path, text, mode=0o644):
        r = self.shell(f"mkdir -p {os.path.dirname(path)} && cat >{path} && chmod {mode:o} {path}", input=text)
        assert r.rc == 0, r

    def put_res(self, name, text):
        self.put(f"/etc/drbd.d/{name}.res", text)
        self.put("/etc/urbd.conf", 'global { usage-count no; }\ninclude "drbd.d/*.res";\n')

    # ---- the end ---------------------------------------------------------------
    def processes_of(self, name):
        """Ids, as the machine counts them, of processes with this name."""
        return [int(x) for x in self.shell(f"pgrep -x {name}").out.split()]

    def open_loops(self):
        """Descriptors of the loop devices of this machine. While these are open nobody else gets the devices."""
        if self.unshare.poll() is not None:
            return []
        held = {dev: os.open(dev, os.O_RDONLY) for dev in self.loops()}
        # One that has been detached before it was open here may be anybody's by now.
        for dev in held.keys() - set(self.loops()):
            os.close(held.pop(dev))
        return list(held.values())

    def loops(self):
        """Those that a process of this machine has open, or a mount of its. What they stand on tells nothing: it is called
        the same on every machine."""
        found = self.shell("""
            for f in $(grep -ls ^/run/urbd/ /sys/block/loop*/loop/backing_file); do
              dev=${f#/sys/block/}; dev=${dev%%/*}
              if ls -l /proc/[0-9]*/task/*/fd 2>/dev/null | grep -q " -> /dev/$dev$" ||
                 grep -q " 7:${dev#loop} " /proc/1/mountinfo; then echo /dev/$dev; fi
            done""").out
        return found.split()

    def log(self, res=None):
        if self.unshare.poll() is not None:
            return ""
        return self.shell("tail -n 200 /run/urbd/*.log /var/log/urbd/*.log 2>/dev/null").out

    def close(self):
        self.power_off()
        return []


def machine(cluster, name, **options):
    m = Machine(cluster, name, **options)
    cluster.nodes.append(m)
    return m
