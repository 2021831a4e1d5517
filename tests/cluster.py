"""Clusters for tests: urbd nodes, each in its own network namespace, and guests with the real kernel DRBD as peers.

    with Cluster() as c:
        a, b = c.node("a"), c.node("b")
        c.configure(protocol="C")
        for n in (a, b):
            n.urbd("create-md", "--force", "r0")
            n.start()
        a.urbd("primary", "--force", "r0")
        c.wait_synced()
        a.write(4096, b"x" * 512)
        a.kill()                        # SIGKILL
        b.urbd("primary", "r0")

An urbd node and a kernel node have the same methods, so a scenario does not care which is which.  Leaving the
with-block kills, by pid, whatever was started, unmounts what was mounted, and complains about what was left behind.
"""

import contextlib
import glob
import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

TESTS = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(TESTS, "kernel-peer"))

from kernel_peer import (KernelPeerError, Lab, SUBNET, _kill_group, _proc_stat, _read_pidfile, _write_pidfile,  # noqa: E402
                         end_with_us)
import scratch  # noqa: E402

URBD = os.path.abspath(os.environ.get("URBD_BIN") or os.path.join(TESTS, "..", "target", "debug", "urbd"))
PORT = 7788
FAST_DISK = "c-plan-ahead 0; resync-rate 200M;"  # no slow start of the resync
FAST_NET = "ping-int 3; connect-int 3; timeout 20;"  # notice a dead peer within seconds
MIB = 1 << 20

_numbers = itertools.count()


class Failed(AssertionError):
    """A verb ended otherwise than expected."""


class TookTooLong(AssertionError):
    """A state was not reached, or an I/O request not answered, in time."""


def scratch_dir():
    """Where backing files and run directories go: memory if it is roomy, else the temporary directory. What runs that were
    killed have left there is removed."""
    for place in filter(None, (os.environ.get("URBD_TEST_DIR"), "/dev/shm", tempfile.gettempdir())):
        scratch.sweep(place)
    if os.environ.get("URBD_TEST_DIR"):
        return os.environ["URBD_TEST_DIR"]
    with contextlib.suppress(OSError):
        v = os.statvfs("/dev/shm")
        if v.f_bavail * v.f_frsize > 4 << 30 and not v.f_flag & os.ST_NOEXEC:
            return "/dev/shm"
    return tempfile.gettempdir()


def matches(have, want):
    """A value, a list of acceptable values, or "~pattern"."""
    if isinstance(want, (list, tuple)):
        return any(matches(have, w) for w in want)
    if isinstance(want, str) and want.startswith("~"):
        return re.fullmatch(want[1:], str(have)) is not None
    return have == want


def eventually(what, check, timeout=30.0, pause=0.05):
    """Calls check() until it returns something true, and returns that."""
    deadline = time.monotonic() + timeout
    while True:
        got = check()
        if got:
            return got
        if time.monotonic() > deadline:
            raise TookTooLong(f"not within {timeout:g} s: {what}")
        time.sleep(pause)


def md5(path, size):
    """Digest of the first `size` bytes of a backing file."""
    h = hashlib.md5()
    with open(path, "rb") as f:
        while size:
            data = f.read(min(size, MIB))
            assert data, f"{path} is {size} bytes shorter than its device"
            h.update(data)
            size -= len(data)
    return h.hexdigest()


def config_text(nodes, name="r0", port=PORT, protocol="C", net="", disk="", options="", handlers="", meta="internal",
                volumes=1, minor=0, extra="", fast=True, ids=False):
    """A resource for drbd.conf.  meta: one value or {node name: value}; the disks are those of each node.  ids: with node
    ids, so that DRBD 9's dialect is offered, those of the order, or {node name: id}."""
    if fast:
        net, disk = FAST_NET + " " + net, FAST_DISK + " " + disk
    out = [f"resource {name} {{", f"  net {{ protocol {protocol}; {net} }}", f"  disk {{ {disk} }}",
           f"  options {{ {options} }}", f"  handlers {{ {handlers} }}"]
    if extra:
        out.append("  " + extra)
    for i, n in enumerate(nodes):
        m = meta[n.name] if isinstance(meta, dict) else meta
        out.append(f"  on {n.name} {{")
        if ids:
            out.append(f"    node-id {ids[n.name] if isinstance(ids, dict) else i};")
        out.append(f"    address ipv4 {n.ip}:{port};")
        for v in range(volumes):
            out.append(f"    volume {v} {{ device /dev/drbd{minor + v} minor {minor + v}; "
                       f"disk {n.disk_path(v)}; meta-disk {m}; }}")
        out.append("  }")
    return "\n".join(out) + "\n}\n"


class Cluster:
    """Nodes on one private network; all of their traffic passes one bridge."""

    def __init__(self, lab=None):
        self.own_lab = lab is None
        self.lab = lab or Lab(f"t{os.getpid()}-{next(_numbers)}", fresh=True)
        self.dir = scratch.make("urbd-test-", scratch_dir())
        self.nodes = []  # urbd nodes and kernel nodes, in the order of the config's host sections
        self.config = {}
        self.variables = {}  # of the environment of the nodes' programs
        self.wrap = list  # what starts a node's process: given its command line, returns another one

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        left = []
        for n in self.nodes:
            left += n.close()
        if self.own_lab:
            self.lab.destroy()
        scratch.remove(self.dir)
        if kind is None:
            assert not left, f"left behind: {left}"

    def node(self, name, size=32 * MIB, volumes=1, beside=None):
        """Adds an urbd node with backing files. `beside`: a node whose network it shares, with the address."""
        n = UrbdNode(self, name, size, volumes, beside)
        self.nodes.append(n)
        return n

    def kernel(self, guest):
        """Adds a guest of the lab as a node."""
        n = KernelNode(self, guest)
        self.nodes.append(n)
        return n

    def configure(self, nodes=None, name="r0", **options):
        """(Re)writes resource `name` on all nodes.  Options: see config_text; a net= option given once is kept."""
        self.config.setdefault(name, {"nodes": list(nodes or self.nodes)}).update(options)
        spec = dict(self.config[name])
        members = spec.pop("nodes")
        text = config_text(members, name=name, **spec)
        for n in members:
            n.put_res(name, text)
        return text

    def up(self, primary=None, timeout=60.0, **options):
        """Fresh metadata everywhere, full sync from `primary` (default: the first node), both UpToDate."""
        self.configure(**options)
        self.start_fresh(timeout)
        (primary or self.nodes[0]).verb("primary", "--force", "r0")
        self.wait_synced(timeout)

    def start_fresh(self, timeout=60.0):
        """Fresh metadata everywhere, all connected; nobody has data."""
        for n in self.nodes:
            n.create_md()
            n.start()
        for n in self.nodes:
            n.wait(conn="Connected", timeout=timeout)

    def wait_synced(self, timeout=60.0, **want):
        for n in self.nodes:
            n.wait(conn="Connected", repl="Established", disk="UpToDate", peer_disk="UpToDate", timeout=timeout, **want)

    def assert_same(self, volume=0, timeout=15.0, nodes=None):
        """All backing files hold the same data (protocol A and B may lag a little), or those of some nodes; returns the
        digest."""
        nodes = nodes or self.nodes
        size = min(n.data_size(volume) for n in nodes)
        sums = {}

        def same():
            sums.update({n.name: md5(n.disk_file(volume), size) for n in nodes})
            return len(set(sums.values())) == 1

        try:
            eventually("identical backing files", same, timeout, 0.2)
        except TookTooLong:
            raise AssertionError(f"backing files differ: {self.difference(volume, size, nodes)}") from None
        return next(iter(sums.values()))

    def difference(self, volume, size, nodes=None):
        files = [open(n.disk_file(volume), "rb") for n in nodes or self.nodes]
        bad = []
        for at in range(0, size, 4096):
            if len({f.read(min(4096, size - at)) for f in files}) > 1:
                bad.append(at // 4096)
        for f in files:
            f.close()
        return f"{len(bad)} blocks of 4 KiB, first {bad[:20]}"

    def capture(self, path, filt=f"tcp port {PORT}"):
        return self.lab.capture(path, filt)


class Node:
    """What urbd nodes and kernel nodes have in common: waiting, digests, cut links."""

    disks = ()  # those that can be made to fail: faulty_disk.py

    def wait(self, volume=0, timeout=30.0, res="r0", **want):
        """Waits until the fields of state() match; returns the state."""
        state = {}

        def there():
            state.clear()
            state.update(self.state(volume, res))
            return all(matches(state.get(k), w) for k, w in want.items())

        try:
            eventually("", there, timeout)
        except TookTooLong:
            raise TookTooLong(f"{self.name}: not within {timeout:g} s: {want}; is: {state}\n{self.log()[-3000:]}") \
                from None
        return state

    def md5(self, volume=0):
        return md5(self.disk_file(volume), self.data_size(volume))

    def verb(self, *args, **kw):
        """A verb of drbdadm; insists on exit status 0; returns the completed call (rc, out, err)."""
        r = self.call(*args, **kw)
        if r.rc:
            raise Failed(f"{self.name}: `{' '.join(args)}` ended with {r.rc}\n{r.out[-1500:]}{r.err[-1500:]}")
        return r


class Call:
    def __init__(self, rc, out, err):
        self.rc, self.out, self.err = rc, out, err

    def __repr__(self):
        return f"exit {self.rc}\nstdout: {self.out}\nstderr: {self.err}"


def attachment(dev):
    """A number that the kernel gives to each file that is attached to a loop device, and to each end of that."""
    with open(f"/sys/block/{os.path.basename(dev)}/diskseq") as f:
        return f.read()


def make_free_loops_writable():
    """A Secondary's device is read-only, and the kernel keeps that for the next user of the number if all that could have
    cleared it was killed."""
    for ro in glob.glob("/sys/block/loop*/ro"):
        with contextlib.suppress(OSError), open(ro) as f:
            if f.read().strip() == "1" and not os.path.exists(os.path.join(os.path.dirname(ro), "loop/backing_file")):
                subprocess.run(["blockdev", "--setrw", "/dev/" + ro.split("/")[3]], stderr=subprocess.DEVNULL)


class UrbdNode(Node):
    kind = "urbd"
    program = None  # another build than the one that is tested

    def __init__(self, cluster, name, size, volumes, beside=None):
        self.cluster, self.name, self.volumes = cluster, name, volumes
        self.dir = os.path.join(cluster.dir, name)
        self.run_dir = os.path.join(self.dir, "run")
        self.conf = os.path.join(self.dir, "urbd.conf")
        os.makedirs(self.run_dir)
        os.makedirs(os.path.join(self.dir, "res.d"))
        with open(self.conf, "w") as f:
            f.write('global { usage-count no; }\ninclude "res.d/*.res";\n')
        for v in range(volumes):
            with open(self.disk_file(v), "wb") as f:
                f.truncate(size)
        self.processes = {}  # resource -> Popen of `urbd run`
        self.mounts = []
        self.disks = []
        self.ip = self._share_network(beside) if beside else self._join_network()

    # ---- network -----------------------------------------------------------
    def _hold(self, *namespaces):
        """Somebody who lives as long as the node, in new namespaces."""
        # Mounts of its own, too: /dev/urbd is one machine's, and this is another machine.
        # What another test has mounted at this moment would stay mounted here, and its device in use.
        script = ("awk '$2 ~ \"/urbd-(test|bench)-\" { print $2 }' /proc/mounts | xargs -r umount -l;"
                  "mkdir -p /dev/urbd && mount -t tmpfs none /dev/urbd && echo up && exec sleep infinity")
        holder = subprocess.Popen([*namespaces, "--mount", "--propagation", "private", "sh", "-c", script],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
                                  preexec_fn=end_with_us)
        assert holder.stdout.readline() == b"up\n", "cannot make namespaces for network and mounts"
        holder.stdout.close()
        self.pidfile = os.path.join(self.dir, "netns.pid")
        _write_pidfile(self.pidfile, holder)
        self.holder = holder.pid

    def _share_network(self, other):
        self._hold("nsenter", "-t", str(other.holder), "-n", "--", "unshare")
        self.port = other.port
        return other.ip

    def _join_network(self):
        lab = self.cluster.lab
        self._hold("unshare", "--net")
        used = set(re.findall(r": (un\d+)[@:]", lab.ip("-o link show")))
        index = next(i for i in range(101, 200) if f"un{i}" not in used)
        self.port = f"un{index}"
        lab.ip(f"link add {self.port} type veth peer name eth0 netns {self.holder}")
        lab.ip(f"link set {self.port} master br0 up")
        ip = f"{SUBNET}.{index}"
        for args in (f"addr add {ip}/24 dev eth0", "link set eth0 up", "link set lo up"):
            self.run(["ip", *args.split()], check=True)
        return ip

    def prefix(self):
        return ["nsenter", "-t", str(self.holder), "-n", "-m", "--"]

    def run(self, argv, **kw):
        return subprocess.run(self.prefix() + list(argv), **kw)

    def cut(self):
        """Silently lose every packet from and to this node."""
        self.cluster.lab.ip(f"link set dev {self.port} state 0", tool="bridge")

    def heal(self):
        self.cluster.lab.ip(f"link set dev {self.port} state 3", tool="bridge")

    def lose_large_packets(self, *others):
        """A network on the way that takes packets of 600 bytes, and says nothing of larger ones, which these nodes send: nobody
        learns that they are too large."""
        for n in (self, *others):
            n.run(["ip", "link", "set", "eth0", "gso_max_segs", "1"], check=True)
        self.cluster.lab.ip(f"link set dev {self.port} mtu 600")

    def take_large_packets(self):
        self.cluster.lab.ip(f"link set dev {self.port} mtu 1500")

    def lose_packets_to(self, other):
        """Silently lose every packet from this node to `other`, in this direction only: nobody has that address."""
        self.run(["ip", "neigh", "replace", other.ip, "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent"],
                 check=True)

    def find_packets(self):
        """The end of lose_packets_to()."""
        self.run(["ip", "neigh", "flush", "dev", "eth0", "nud", "permanent"], check=True)

    # ---- config and disks ----------------------------------------------------
    def put_res(self, name, text):
        path = os.path.join(self.dir, "res.d", name + ".res")
        with open(path + ".tmp", "w") as f:
            f.write(text)
        os.rename(path + ".tmp", path)

    def disk_file(self, volume=0):
        return os.path.join(self.dir, f"disk{volume}")

    disk_path = disk_file

    def data_size(self, volume=0, res="r0"):
        return next(d["size"] for d in self.status(res)["devices"] if d["volume"] == volume) * 1024

    # ---- the program ---------------------------------------------------------
    def env(self, **more):
        keep = {k: v for k, v in os.environ.items() if not k.startswith("URBD_") or k == "URBD_LOG"}
        return {**keep, "URBD_CONF": self.conf, "URBD_NODE": self.name, "URBD_RUN_DIR": self.run_dir,
                "URBD_DEV_DIR": "/dev/urbd", "RUST_BACKTRACE": "1", **self.cluster.variables, **more}

    def call(self, *args, timeout=60.0, input=None, env=None):
        """Runs `urbd ARGS` inside the node's network; any exit status."""
        try:
            r = self.run([self.program or URBD, *map(str, args)], env=self.env(**(env or {})), timeout=timeout, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         **({"input": input} if input is not None else {"stdin": subprocess.DEVNULL}))
        except subprocess.TimeoutExpired as e:
            raise TookTooLong(f"{self.name}: no end within {timeout:g} s: urbd {' '.join(map(str, args))}: {e.stderr}\n"
                              f"{self.log()[-3000:]}") from None
        return Call(r.returncode, r.stdout, r.stderr)

    urbd = Node.verb

    def create_md(self, res="r0"):
        self.verb("create-md", "--force", res)

    def start(self, res="r0", timeout=20.0, under=()):
        """`urbd run RES` in the foreground of a process that the test owns; returns when it answers."""
        # The one that runs already would answer for the one that is refused.
        before = self.processes.get(res)
        eventually(f"{self.name}: the process before has ended", lambda: before is None or before.poll() is not None, 5)
        log = open(os.path.join(self.dir, f"{res}.log"), "ab")
        argv = self.prefix() + self.cluster.wrap([*under, self.program or URBD, "run", res])
        p = subprocess.Popen(argv, env=self.env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                             start_new_session=True, preexec_fn=end_with_us)
        log.close()
        self.processes[res] = p

        def answers():
            if p.poll() is not None:
                raise Failed(f"{self.name}: `urbd run {res}` ended with {p.returncode}\n{self.log(res)[-3000:]}")
            return os.path.exists(os.path.join(self.run_dir, f"{res}.sock")) and self.call("status", res).rc == 0

        eventually(f"{self.name}: urbd answers", answers, timeout)
        return p

    def serving(self, res="r0"):
        """The id of the process that runs the resource."""
        with open(os.path.join(self.run_dir, f"{res}.pid")) as f:
            return int(f.read())

    def keepers(self):
        """The processes that hold devices when nobody serves them."""
        return [pid for pid in self._all_pids() if self._is_keeper(pid)]

    @staticmethod
    def _is_keeper(pid):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                return b"keep" in f.read().split(b"\0")
        return False

    def let_io_fail(self):
        """Where no process serves, ends the keepers and what they keep: whoever waits for a device gets an error."""
        if self.pids():
            return
        for pid in self.keepers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually("the keepers are gone", lambda: not self.keepers(), 20)

    def kill_process(self, res="r0", sig=signal.SIGKILL):
        """Ends the resource's process alone: its devices stay with the keeper."""
        pid = self.serving(res)
        os.kill(pid, sig)
        p = self.processes.pop(res, None)
        if p:
            p.wait(20)
        eventually(f"process {pid} is gone", lambda: not self._alive(pid), 20)

    def kill(self, res="r0", sig=signal.SIGKILL):
        """kill -9 of the resource's process, its children and its keeper (a power failure of the program)."""
        p = self.processes.pop(res, None)
        pids = [p.pid] if p else []
        pids += [pid for pid in self._all_pids() if pid not in pids and self._serves(pid, res)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)
        if p:
            p.wait(20)
        eventually("the killed processes are gone", lambda: not any(self._alive(x) for x in pids), 20)

    crash = kill

    def stop(self, res="r0"):
        """Orderly `down`; the process ends with status 0."""
        self.verb("down", res)
        p = self.processes.pop(res, None)
        if p:
            try:
                rc = p.wait(20)
            except subprocess.TimeoutExpired:
                p.kill()
                raise TookTooLong(f"{self.name}: `urbd run` does not end after `down`\n{self.log(res)[-3000:]}") from None
            assert rc == 0, f"{self.name}: `urbd run {res}` ended with {rc} after `down`\n{self.log(res)[-3000:]}"

    def freeze(self, res="r0"):
        os.kill(self.serving(res), signal.SIGSTOP)

    def thaw(self, res="r0"):
        os.kill(self.serving(res), signal.SIGCONT)

    @staticmethod
    def _alive(pid):
        st = _proc_stat(pid)
        return st is not None and st[0] not in "ZX"

    @staticmethod
    def _serves(pid, res):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                return res.encode() in f.read().split(b"\0")
        return False

    def pids(self):
        """All processes of this node but keepers, also detached ones."""
        keepers = self.keepers()
        return [pid for pid in self._all_pids() if pid not in keepers]

    def _all_pids(self):
        """They carry the node's run directory in their environment.  Keepers last: who kills all in this order leaves
        nobody who would start another keeper."""
        mark, found = b"URBD_RUN_DIR=" + self.run_dir.encode(), []
        for p in os.listdir("/proc"):
            if p.isdigit() and int(p) != os.getpid():
                with contextlib.suppress(OSError):
                    with open(f"/proc/{p}/environ", "rb") as f:
                        if mark in f.read().split(b"\0") and self._alive(int(p)):
                            found.append(int(p))
        return sorted(found, key=self._is_keeper)

    def log(self, res=None):
        text = ""
        for name in sorted(os.listdir(self.dir) if os.path.isdir(self.dir) else []):
            if name.endswith(".log") and res in (None, name[:-4]):
                with open(os.path.join(self.dir, name), errors="replace") as f:
                    text += f.read()
        if os.path.isdir(self.run_dir):
            for name in sorted(os.listdir(self.run_dir)):
                if name.endswith(".log"):
                    with open(os.path.join(self.run_dir, name), errors="replace") as f:
                        text += f.read()
        return text

    # ---- state ---------------------------------------------------------------
    def status(self, res="r0"):
        """The resource's object of `urbd status --json`."""
        r = self.call("status", "--json", res)
        if r.rc:
            raise Failed(f"{self.name}: status ended with {r.rc}: {r.err}\n{self.log(res)[-3000:]}")
        return next(x for x in json.loads(r.out) if x["name"] == res)

    def state(self, volume=0, res="r0"):
        """role, suspended, disk, conn, repl, peer_disk, peer_role, oos (KiB), received and sent (KiB)."""
        s = self.status(res)
        dev = next((d for d in s["devices"] if d["volume"] == volume), {})
        out = {"role": s["role"], "suspended": s["suspended"], "disk": dev.get("disk-state"),
               "conn": None, "repl": "Off", "peer_disk": "DUnknown", "peer_role": "Unknown"}
        for c in s["connections"][:1]:
            out.update(conn=c["connection-state"], peer_role=c["peer-role"])
            for p in c["peer_devices"]:
                if p["volume"] == volume:
                    out.update(repl=p["replication-state"], peer_disk=p["peer-disk-state"], oos=p.get("out-of-sync"),
                               received=p.get("received"), sent=p.get("sent"), pending=p.get("pending"),
                               unacked=p.get("unacked"))
        return out

    # ---- I/O through the NBD export ---------------------------------------------
    def uri(self, volume=0, res="r0"):
        return self.verb("nbd-uri", f"{res}/{volume}").out.strip()

    @contextlib.contextmanager
    def nbd(self, volume=0, res="r0"):
        from nbdio import Export
        e = Export(self.uri(volume, res))
        try:
            yield e
        finally:
            e.close()

    def write(self, offset, data, volume=0, fua=False):
        with self.nbd(volume) as h:
            h.write(offset, data, fua)

    def read(self, offset, length, volume=0):
        with self.nbd(volume) as h:
            return h.read(offset, length)

    def flush(self, volume=0):
        with self.nbd(volume) as h:
            h.flush()

    def discard(self, offset, length, volume=0):
        with self.nbd(volume) as h:
            h.trim(offset, length)

    # ---- the end ---------------------------------------------------------------
    def close(self):
        """Kills what runs, unmounts, frees loop devices.  Returns what an orderly end should not have left."""
        left = []
        for path in reversed(self.mounts):  # mounted by tests, on the outside
            subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL)
        for disk in self.disks:  # a process with requests on a hanging disk cannot be killed
            with contextlib.suppress(OSError, AssertionError):
                disk.heal()
        loops = {dev: attachment(dev) for dev in self.loops()}  # only now do their backing files have names
        for res in list(self.processes):
            self.kill(res)
        def gone():
            # Again and again: a process whose keeper is killed before it may just have started another.
            for pid in self._all_pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not self._all_pids()

        eventually("the node's processes are gone", gone, 20)
        for disk in self.disks:
            disk.close()
        pid = _read_pidfile(self.pidfile)
        if pid:
            _kill_group(pid)  # and with it the namespace, and every mount in it
        for dev, whose in loops.items():  # whose server was killed; a number may be another test's by now
            if attachment(dev) == whose:
                subprocess.run(["losetup", "-d", dev], stderr=subprocess.DEVNULL)
        make_free_loops_writable()
        with contextlib.suppress(KernelPeerError):
            self.cluster.lab.ip(f"link del {self.port}")
        return left

    def loops(self):
        """Loop devices of this node: their backing files are named in the node's mount namespace only."""
        found = self.run(["grep", "-ls", f"^{self.dir}/", *glob.glob("/sys/block/loop*/loop/backing_file")],
                         stdout=subprocess.PIPE, text=True).stdout
        return ["/dev/" + path.split("/")[3] for path in found.split()]

    def mounted(self):
        """What is mounted below the node's directory, as the node sees it."""
        with open(f"/proc/{self.holder}/mounts") as f:
            return [x.split()[1] for x in f if x.split()[1].startswith(self.dir)]

    def device(self, volume=0, res="r0"):
        """The block device that applications of this node use, by a path that leads there from everywhere: into the
        node's mount namespace.  Programs that resolve symbolic links must be told not to (mount -c)."""
        return eventually(f"{self.name}: {res}/{volume} has a device", lambda: self._door(volume, res), 20)

    def _door(self, volume, res):
        path = self.verb("sh-dev", f"{res}/{volume}").out.strip()
        door = self.run(["readlink", path], stdout=subprocess.PIPE, text=True).stdout.strip()
        door = f"/proc/{self.holder}/root{door or path}"
        return os.path.exists(door) and door

    def dd(self, device, data, offset=0):
        """Writes past the page cache to a device as the node sees it, from `offset` MiB on."""
        argv = ["dd", f"of={device}", "bs=1M", f"seek={offset}", "oflag=direct", "conv=notrunc", "status=none"]
        r = self.run(argv, input=data, capture_output=True, timeout=60)
        assert r.returncode == 0, r

    def door(self, volume=0, res="r0"):
        """The same path as the node sees it."""
        return os.path.join(self.run_dir, f"{res}.dev", str(volume))

    def side_door(self, volume=0, res="r0"):
        """The loop device behind it, by its own name."""
        number = os.minor(os.stat(self.device(volume, res)).st_rdev)
        return f"/dev/loop{number}"


def same_beginning(nodes, volume=0, size=8 * MIB):
    """The first `size` bytes of the backing disks, without metadata, which differ."""
    def equal():
        texts = []
        for n in nodes:
            with open(n.disk_file(volume), "rb") as f:
                texts.append(f.read(size))
        return all(text == texts[0] for text in texts)
    eventually("the same data", equal, 20)


class KernelNode(Node):
    """A guest with the in-kernel DRBD 8.4; names of states as urbd's (those of DRBD 9)."""

    kind = "kernel"

    def __init__(self, cluster, guest):
        self.cluster, self.guest, self.name, self.ip = cluster, guest, guest.name, guest.ip
        self.reset()

    def reset(self):
        if not self.guest.running:
            self.guest.start()
        self.guest.heal()
        self.guest.exec("drbdadm down all; drbdsetup down r0; dmsetup remove_all --force; rm -f /kp/drbd.d/*.res; "
                        "dmesg -c > /dev/null")

    def put_res(self, name, text):
        self.guest.put_res(name, text)

    def disk_path(self, volume=0):
        return f"/dev/ubd{'ac'[volume]}"  # ubdb is for external metadata

    def disk_file(self, volume=0):
        return self.guest.disk([0, 2][volume])

    def data_size(self, volume=0):
        # opening a Secondary's device is refused, sysfs does not care
        return 512 * int(self.guest.sh(f"cat /sys/block/drbd{volume}/size"))

    def call(self, *args, timeout=60.0, **_):
        if args[0] == "nbd-uri":
            raise Failed("a kernel node has no NBD export")
        r = self.guest.exec("drbdadm " + " ".join(map(str, args)), timeout=timeout)
        return Call(r.rc, r.out, r.err)

    def create_md(self, res="r0"):
        self.guest.sh(f"dd if=/dev/zero of={self.disk_path()} bs=1M count=1 conv=notrunc 2>/dev/null; "
                      f"drbdadm create-md --force {res}")

    def start(self, res="r0", timeout=20.0):
        if not self.guest.running:
            self.guest.start()
        return self.guest.sh(f"drbdadm up {res} 2>&1", timeout=timeout)

    def stop(self, res="r0"):
        self.verb("down", res)

    def crash(self):
        self.guest.crash()

    kill = crash

    def cut(self):
        self.guest.cut()

    def heal(self):
        self.guest.heal()

    def log(self, res=None):
        with contextlib.suppress(Exception):
            return self.guest.exec("dmesg | tail -60").out
        return self.guest.console()[-4000:]

    def dmesg(self):
        return self.guest.sh("dmesg")

    def state(self, volume=0, res="r0"):
        d = self.guest.proc_drbd().get(volume, {})
        cs = d.get("cs")
        role, _, peer_role = d.get("ro", "/").partition("/")
        disk, _, peer_disk = d.get("ds", "/").partition("/")
        connecting = {"WFConnection": "Connecting", "WFReportParams": "Connecting"}
        if cs in (None, "Unconfigured", "StandAlone", "Disconnecting", "Unconnected", "Timeout", "BrokenPipe",
                  "NetworkFailure", "ProtocolError", "TearDown") or cs in connecting:
            conn, repl = connecting.get(cs, cs), "Off"
        else:
            conn, repl = "Connected", "Established" if cs == "Connected" else cs
        oos = int(d["oos"]) if "oos" in d else None
        return {"role": role, "peer_role": peer_role, "disk": disk, "peer_disk": peer_disk, "conn": conn, "repl": repl,
                "oos": oos, "suspended": d.get("flags", "r")[:1] == "s", "protocol": d.get("proto"),
                "sent": int(d.get("ns", 0)), "received": int(d.get("nr", 0))}

    def write(self, offset, data, volume=0, fua=False):
        dev = f"/dev/drbd{volume}"
        if offset % 512 or len(data) % 512:
            raise ValueError("whole sectors only")
        if offset % 4096 == 0 and len(data) % 4096 == 0:
            bs = next(b for b in (MIB, 65536, 4096) if offset % b == 0 and len(data) % b == 0)
        else:
            bs = 512
        if len(data) <= MIB and offset % len(data) == 0:
            bs = len(data)
        self.guest.sh(f"dd of={dev} bs={bs} seek={offset // bs} oflag=direct conv=notrunc iflag=fullblock 2>/dev/null",
                      input=data)

    def read(self, offset, length, volume=0):
        bs = next(b for b in (MIB, 65536, 4096, 512) if offset % b == 0 and length % b == 0)
        name = f"read-{time.time_ns():x}"
        self.guest.sh(f"dd if=/dev/drbd{volume} of=/kp/{name} bs={bs} skip={offset // bs} count={length // bs} "
                      f"iflag=direct 2>/dev/null")
        path = os.path.join(self.guest.share, name)
        with open(path, "rb") as f:
            data = f.read()
        os.unlink(path)
        assert len(data) == length, f"{self.name}: short read"
        return data

    def flush(self, volume=0):
        self.guest.sh(f"dd if=/dev/null of=/dev/drbd{volume} conv=notrunc,fsync 2>/dev/null")

    def discard(self, offset, length, volume=0):
        self.guest.sh(f"blkdiscard -o {offset} -l {length} /dev/drbd{volume}")

    def close(self):
        if self.guest.running:
            self.reset()
        return []
