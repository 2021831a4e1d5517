"""Doubles of two control planes that run on DRBD without LINSTOR: miroir and blockstor.

They make the calls of the real ones, in their order, and read what those read, by rules of their own: nothing here is shared
with urbd. Three things a double does not do: it loads no module; it does not look for a device of major 147, which urbd's
has not; and its files say node-local names (`/dev/urbd/drbdN` for `/dev/drbdN`).

Both know a node as a `Machine`: its name, its address, its network, and a place for configuration files.
"""

import concurrent.futures
import contextlib
import json
import os
import re
import socket
import subprocess
import threading
import time

from cluster import MIB, URBD, eventually

TOOLS = ("drbdadm", "drbdsetup", "drbdmeta")
PLACEHOLDER = "/dev/drbd/this/is/not/used"


class Refused(AssertionError):
    """A program ended otherwise than its caller needs."""


class Answer:
    def __init__(self, rc, text, seconds):
        self.rc, self.text, self.seconds = rc, text, seconds


class Machine:
    """A node of a cluster, with the three programs in its PATH, and disks in loop devices."""

    def __init__(self, node):
        self.node, self.name, self.ip = node, node.name, node.ip
        self.bin = os.path.join(node.dir, "bin")
        self.etc = os.path.join(node.dir, "res.d")
        self.pool = os.path.join(node.dir, "pool")
        os.makedirs(self.bin)
        os.makedirs(self.pool)
        for tool in TOOLS:
            os.symlink(URBD, os.path.join(self.bin, tool))
        with open(node.conf, "w") as f:
            f.write('global { usage-count no; udev-always-use-vnr; }\ncommon { handlers { } startup { } options { }\n'
                    'disk { on-io-error detach; c-min-rate 10M; } net { verify-alg crc32c; } }\ninclude "res.d/*.res";\n')
        self.loops = {}  # path of a link -> loop device
        self.calls = []  # (exit status, seconds, words)

    def env(self):
        return {**self.node.env(), "LC_ALL": "C", "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def run(self, *words, limit=120):
        """stdout and stderr are one text; stdin is empty."""
        words = [str(w) for w in words]
        began = time.monotonic()
        r = self.node.run(words, env=self.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=limit)
        answer = Answer(r.returncode, r.stdout, time.monotonic() - began)
        self.calls.append((answer.rc, round(answer.seconds, 3), " ".join(words)))
        return answer

    def run_apart(self, *words, limit=60):
        """The same with two streams."""
        return self.node.run([str(w) for w in words], env=self.env(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             timeout=limit)

    def must(self, *words, limit=120):
        answer = self.run(*words, limit=limit)
        if answer.rc:
            raise Refused(f"{self.name}: {' '.join(map(str, words))}: exit {answer.rc}: {answer.text}\n{self.node.log()[-2000:]}")
        return answer.text

    @contextlib.contextmanager
    def overheard(self, resource):
        """What programs ask the process of a resource meanwhile, a line each: all goes through a relay."""
        path, lines = os.path.join(self.node.run_dir, resource + ".sock"), []
        os.rename(path, path + ".behind")
        relay = Relay(path, path + ".behind", lines)
        try:
            yield lines
        finally:
            relay.close()
            os.rename(path + ".behind", path)

    def stream(self, *words):
        """A program that does not end."""
        return subprocess.Popen(self.node.prefix() + list(words), env=self.env(), stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    # ---- disks ---------------------------------------------------------------
    def make_disk(self, name, size):
        """A file of the pool in a loop device, and a link to that."""
        file = os.path.join(self.pool, name)
        with open(file, "ab") as f:
            f.truncate(size)
        return self.attach_loop(name)

    def attach_loop(self, name):
        file, link = os.path.join(self.pool, name), os.path.join(self.pool, name + ".dev")
        made = subprocess.run(["losetup", "-f", "--show", file], check=True, capture_output=True, text=True)
        # Whoever had this number before may have been killed while it was read-only.
        subprocess.run(["blockdev", "--setrw", made.stdout.strip()], check=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(link)
        os.symlink(made.stdout.strip(), link)
        self.loops[link] = made.stdout.strip()
        return link

    def grow_disk(self, link, size):
        os.truncate(link[:-len(".dev")], size)
        subprocess.run(["losetup", "-c", self.loops[link]], check=True)

    def free_loop(self, link):
        """As `losetup -d` by who deletes a volume: nobody may hold the device."""
        loop = self.loops.pop(link)
        r = subprocess.run(["losetup", "-d", loop], capture_output=True, text=True)
        assert r.returncode == 0, r.stderr
        with open("/sys/block/" + os.path.basename(loop) + "/size") as f:
            assert f.read().strip() == "0", f"{self.name}: {loop} is held by somebody after its resource is down"
        os.unlink(link)

    def close(self):
        for loop in self.loops.values():
            subprocess.run(["losetup", "-d", loop], stderr=subprocess.DEVNULL)

    def device(self, minor):
        return f"/dev/urbd/drbd{minor}"

    def left(self):
        """What is there though nothing should be: processes of resources, sockets, devices, disks."""
        found = [f"process {pid}" for pid in self.node.pids() + self.node.keepers() if pid != os.getpid()]
        # The lock of a name, and what was logged, stay.
        found += [x for x in os.listdir(self.node.run_dir) if not x.endswith((".pid", ".log"))]
        found += self.node.run(["find", "/dev/urbd", "-mindepth", "1", "!", "-type", "d"], stdout=subprocess.PIPE,
                               text=True).stdout.split()
        return found + list(self.loops)


class Relay:
    """Listens in the place of a socket, and passes on what is said to who listens there."""

    def __init__(self, path, behind, lines):
        self.behind, self.lines = behind, lines
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(path)
        self.socket.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self.socket.accept()
                to = socket.socket(socket.AF_UNIX)
                to.connect(self.behind)
                threading.Thread(target=self.copy, args=(caller, to, self.lines), daemon=True).start()
                threading.Thread(target=self.copy, args=(to, caller, []), daemon=True).start()

    @staticmethod
    def copy(one, other, lines):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                lines += data.decode().splitlines()
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class Events:
    """A reader of `drbdsetup events2 ...`: lines are three words and KEY:VALUE, and stderr is in the same stream."""

    def __init__(self, machine, *words):
        self.program = machine.stream("drbdsetup", "events2", *words)
        self.lines, self.is_complete, self.strange = [], threading.Event(), []
        self.objects, self.is_closed = {}, False
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()
        assert self.is_complete.wait(20), f"{machine.name}: no `exists -` in {self.lines} {self.strange}"

    def read(self):
        for line in self.program.stdout:
            words = line.split()
            if words[:2] == ["exists", "-"]:
                self.is_complete.set()
                continue
            if len(words) < 2 or words[0] not in ("exists", "create", "change", "destroy", "call", "response"):
                self.strange.append(line)
                continue
            self.lines.append(line.rstrip())
            self.take(words[0], words[1], dict(w.split(":", 1) for w in words[2:] if ":" in w))

    def take(self, action, kind, keys):
        name = (kind, keys.get("name"), keys.get("conn-name"), keys.get("volume"))
        if kind in ("connection", "peer-device") and "conn-name" not in keys:
            self.strange.append(f"{action} {kind} {keys}")
        elif action == "destroy":
            self.objects.pop(name, None)
        elif kind in ("resource", "device", "connection", "peer-device"):
            if action == "change" and name not in self.objects:
                self.strange.append(f"change of what is not there: {name}")
            self.objects.setdefault(name, {}).update(keys)

    def check(self):
        assert not self.strange, self.strange
        # A disk that has failed is given up for good by who reads this; nothing here makes one fail.
        failed = [line for line in self.lines if " disk:Failed" in line]
        assert not failed, failed
        assert self.is_closed or self.program.poll() is None, "events2 has ended"

    def close(self):
        self.is_closed = True
        self.program.kill()
        self.program.wait(10)
        self.thread.join(10)


class Volume:
    """What the cluster wants: legs are {machine: disk (a link), or None}."""

    def __init__(self, name, minor, port, size, policy="freeze"):
        self.name, self.minor, self.port, self.size, self.policy = name, minor, port, size, policy
        self.ids, self.legs, self.options, self.clients = {}, {}, "", set()

    def add(self, machine, disk):
        # An id is never given to another node while the volume lives.
        self.ids.setdefault(machine, len(self.ids))
        self.legs[machine] = disk

    def disks(self):
        return sorted((m for m, disk in self.legs.items() if disk), key=self.ids.get)


class Miroir:
    """Its agent on one node."""

    SPLIT = ("StandAlone",)

    def __init__(self, machine):
        self.m = machine
        self.split_brains = []

    def start(self):
        self.m.must("drbdsetup", "status")
        version = self.m.must("drbdadm", "--version")
        words = dict(line.split("=", 1) for line in version.splitlines() if "=" in line)
        parts = [int(x) for x in words["DRBD_KERNEL_VERSION"].split(".")[:3]]
        if parts < [9, 3, 1]:
            raise Refused(f"kernel version {parts}: the agent does not start")
        assert words["DRBDADM_VERSION"]
        running = json.loads(self.m.must("drbdsetup", "status", "--json"))
        self.events = Events(self.m, "all")
        return [r["name"] for r in running]

    def marker(self, volume, what):
        return os.path.join(self.m.etc, f"{volume.name}.{what}")

    def mark(self, volume, what):
        with open(self.marker(volume, what), "w"):
            pass

    def write_file(self, volume):
        quorum = {"freeze": "quorum majority; on-no-quorum io-error;", "last-man-standing": "quorum off;"}[volume.policy]
        lines = [f'resource "{volume.name}" {{', f"  options {{ auto-promote yes; {quorum} {volume.options} }}",
                 '  net { protocol C; cram-hmac-alg sha1; shared-secret "kDq0vJ8hQ2mW5tY1"; after-sb-0pri disconnect; '
                 "after-sb-1pri disconnect; after-sb-2pri disconnect; }"]
        for machine, disk in volume.legs.items():
            inner = f"device minor {volume.minor}; "
            if disk is None:
                inner += "disk none; "
                if machine in volume.clients:
                    inner += "tiebreaker no; " + "disk { discard-granularity 65536; } " * (machine is self.m)
            else:
                inner += f'disk "{disk if machine is self.m else PLACEHOLDER}"; meta-disk internal; '
                inner += "disk { rs-discard-granularity 65536; } " if machine is self.m else ""
            lines.append(f'  on "{machine.name}" {{ node-id {volume.ids[machine]}; address ipv4 {machine.ip}:{volume.port}; '
                         f"volume 0 {{ {inner}}} }}")
        hosts = " ".join(f'"{machine.name}"' for machine in volume.legs)
        lines.append(f"  connection-mesh {{ hosts {hosts}; }}\n}}\n")
        self.m.node.put_res(volume.name, "\n".join(lines))

    def status(self, volume):
        """The object of the resource; None if it does not run."""
        answer = self.m.run("drbdsetup", "status", "--json", volume.name)
        if answer.rc:
            return None
        found = json.loads(answer.text)
        return found[0] if found else None

    def disk_state(self, volume):
        status = self.status(volume)
        return status["devices"][0]["disk-state"] if status else None

    # ---- a leg ---------------------------------------------------------------
    def dump(self, volume):
        """blank, attached, new or live."""
        words = ("drbdadm", "dump-md", f"{volume.name}/0")
        answer = self.m.run(*words)
        if answer.rc and "unclean" in answer.text:
            self.m.must("drbdadm", "apply-al", f"{volume.name}/0")
            answer = self.m.run(*words)
        if answer.rc:
            if "valid meta data" in answer.text and "o valid meta data" in answer.text:
                return "blank"
            raise Refused(f"{self.m.name}: dump-md: exit {answer.rc}: {answer.text}")
        if "might be stale" in answer.text:
            return "attached"
        current = re.search(r"current-uuid 0x([0-9A-F]{16});", answer.text).group(1)
        bitmaps = re.findall(r"bitmap-uuid 0x([0-9A-F]{16});", answer.text)
        assert bitmaps, answer.text
        return "new" if int(current, 16) == 4 and not any(int(b, 16) for b in bitmaps) else "live"

    def make_metadata(self, volume):
        if os.path.exists(self.marker(volume, "md-created")):
            return
        if self.disk_state(volume) not in (None, "", "Diskless"):
            return self.mark(volume, "md-created")
        kind = self.dump(volume)
        if kind == "blank":
            self.m.must("drbdadm", "create-md", "--force", "--max-peers", "7", f"{volume.name}/0")
            assert self.dump(volume) == "new"
        elif kind == "live":
            self.mark(volume, "md-adopted")
        self.mark(volume, "md-created")

    def full_pass(self, volume, skip_disk=False):
        """The file, the metadata, `adjust`, and what has become of it."""
        self.write_file(volume)
        if volume.legs[self.m] is not None and not skip_disk:
            self.make_metadata(volume)
        return self.adjust(volume, skip_disk)

    def adjust(self, volume, skip_disk=False):
        words = ["drbdadm", "adjust", *(["--skip-disk"] if skip_disk else []), volume.name]
        answer = self.m.run(*words)
        if answer.rc and "no valid meta" in answer.text.lower():
            os.unlink(self.marker(volume, "md-created"))
            self.make_metadata(volume)
            answer = self.m.run(*words)
        if answer.rc and "Unknown resource" in answer.text:
            answer = self.m.run("drbdadm", "up", volume.name)
        if answer.rc:
            raise Refused(f"{self.m.name}: {' '.join(words)}: exit {answer.rc}: {answer.text}")
        status = self.status(volume)
        assert status is not None, f"{self.m.name}: adjusted, and not there"
        return status

    def look(self, volume):
        """What it does every 30 s and at each event."""
        status = self.status(volume)
        device = status["devices"][0]
        assert isinstance(status["suspended-user"], bool) and isinstance(device["quorum"], bool)
        for c in status["connections"]:
            assert isinstance(c["peer-node-id"], int) and c["peer-role"]
            if c["connection-state"] in self.SPLIT:
                self.split_brains.append(f"{self.m.name}: towards {c['name']}: {self.m.node.log()[-1500:]}")
            for p in c["peer_devices"]:
                assert isinstance(p["out-of-sync"], int) and p["replication-state"] and p["peer-disk-state"]
                assert isinstance(p["percent-in-sync"], (int, float)) and 0 <= p["percent-in-sync"] <= 100
        return status

    def is_good(self, volume):
        """Everybody is connected, and all disks are UpToDate."""
        status = self.look(volume)
        wanted = "UpToDate" if volume.legs[self.m] is not None else "Diskless"
        if status["devices"][0]["disk-state"] != wanted or len(status["connections"]) != len(volume.legs) - 1:
            return False
        names = {m.name: "UpToDate" if disk else "Diskless" for m, disk in volume.legs.items()}
        return all(c["connection-state"] == "Connected" and p["replication-state"] == "Established"
                   and p["peer-disk-state"] == names[c["name"]] for c in status["connections"] for p in c["peer_devices"])

    def is_blank(self, volume):
        """All disks are Inconsistent, and all that have one are connected."""
        status = self.look(volume)
        disks = [m.name for m in volume.disks()]
        peers = {c["name"]: c for c in status["connections"]}
        return status["devices"][0]["disk-state"] == "Inconsistent" and all(
            name in peers and peers[name]["connection-state"] == "Connected"
            and peers[name]["peer_devices"][0]["peer-disk-state"] == "Inconsistent" for name in disks if name != self.m.name)

    # ---- use -----------------------------------------------------------------
    def stage(self, volume, where):
        """Finds a file system or makes one, and mounts it: promoted by opening alone."""
        device = self.m.device(volume.minor)
        found = self.m.run("blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device)
        if found.rc == 2:
            assert not found.text, found.text  # else it could not be looked at, and is taken for blank
            self.m.must("mkfs.ext4", "-q", "-F", "-m0", device)
        else:
            assert found.rc == 0 and "TYPE=ext4" in found.text, found.text
            assert self.m.run("fsck", "-a", device).rc in (0, 1)
        os.makedirs(where, exist_ok=True)
        self.m.must("mount", "-t", "ext4", "-o", "defaults", device, where)
        self.m.node.mounts.append(where)
        self.m.must("blockdev", "--getsize64", device)

    def unstage(self, where):
        self.m.must("umount", where)
        self.m.node.mounts.remove(where)

    def grow_file_system(self, volume):
        device = self.m.device(volume.minor)
        self.m.must("blockdev", "--getsize64", device)
        self.m.must("dumpe2fs", "-h", device)
        grown = self.m.run("resize2fs", device)
        # A sandbox may not do that to a file system in use; the device is as large all the same.
        assert grown.rc == 0 or "Permission denied to resize filesystem" in grown.text, grown.text

    # ---- snapshot ------------------------------------------------------------
    def mount_point(self, volume):
        """Of the device, by its number."""
        status = self.m.run("stat", "-L", "-c", "%t:%T", self.m.device(volume.minor))
        number = ":".join(str(int(x, 16)) for x in status.text.strip().split(":"))
        lines = self.m.run("cat", "/proc/self/mountinfo").text.splitlines()
        return next((line.split()[4] for line in lines if line.split()[2] == number), None)

    def cut(self, volume, name):
        """The copy of a leg's disk, while I/O is suspended everywhere."""
        self.m.must("drbdadm", "suspend-io", volume.name, limit=30)
        file = volume.legs[self.m][:-len(".dev")]
        self.m.must("sync", "-d", file)
        self.m.must("cp", "--reflink=auto", "--sparse=always", file, os.path.join(self.m.pool, name))

    # ---- the end -------------------------------------------------------------
    def delete(self, volume):
        """Also on a node that the volume leaves."""
        status = self.status(volume)
        for c in status["connections"] if status else []:
            self.m.run("drbdsetup", "disconnect", volume.name, c["peer-node-id"], limit=10)
        self.m.must("drbdsetup", "down", volume.name, limit=30)
        disk = volume.legs[self.m]
        if disk:
            self.m.must("drbdmeta", "--force", volume.minor, "v09", disk, "internal", "wipe-md")
            self.m.free_loop(disk)
        for name in os.listdir(self.m.etc):
            if name.startswith(volume.name + "."):
                os.unlink(os.path.join(self.m.etc, name))


def miroir_birth(agents, volume):
    """On the lowest node id with a disk, once all are blank and connected."""
    first = agents[volume.disks()[0]]
    for m in volume.disks():
        eventually(f"{m.name}: all disks are blank and connected", lambda: agents[m].is_blank(volume), 30)
    first.m.must("drbdadm", "new-current-uuid", "--clear-bitmap", f"{volume.name}/0")
    miroir_settled(agents, volume)


def miroir_settled(agents, volume, limit=40):
    for m in volume.legs:
        eventually(f"{m.name} is good: {agents[m].status(volume)}", lambda: agents[m].is_good(volume), limit, 0.1)


def miroir_snapshot(agents, volume, name):
    """Of all legs at one moment: the Primary first, then the others; each is told twice."""
    first = next((m for m in volume.legs if agents[m].look(volume)["role"] == "Primary"), None)
    order = sorted(volume.legs, key=lambda m: m is not first)
    frozen = agents[first].mount_point(volume) if first else None
    if frozen:
        first.must("fsfreeze", "-f", frozen)
    for m in order:
        m.must("drbdadm", "suspend-io", volume.name, limit=30)
        assert agents[m].look(volume)["suspended-user"]
    for m in volume.disks():
        agents[m].cut(volume, name)
    for m in order:
        m.must("drbdadm", "resume-io", volume.name, limit=30)
        assert not agents[m].look(volume)["suspended-user"]
    if frozen:
        first.must("fsfreeze", "-u", frozen)
    return frozen


def miroir_restored(agents, volume, name, minor, port):
    """A volume of the copies, with the metadata that is in them."""
    made = Volume(name, minor, port, volume.size, volume.policy)
    for m in volume.disks():
        made.add(m, m.attach_loop(name))
    for m in made.legs:
        assert agents[m].full_pass(made) and os.path.exists(agents[m].marker(made, "md-adopted"))
    miroir_settled(agents, made)
    return made


def miroir_split_brain(agents, volume, winner):
    """Of day 1: the three calls, on every node."""
    for m in volume.legs:
        m.run("drbdadm", "disconnect", volume.name)
    for m in volume.legs:
        more = [] if m is winner or volume.legs[m] is None else ["--discard-my-data"]
        m.must("drbdadm", "connect", *more, volume.name)


def at_once(calls):
    """Each on its machine, all begun before one has ended; each must succeed."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(machine.must, *words) for machine, words in calls]:
            done.result()


def size_of(machine, volume):
    return int(machine.must("blockdev", "--getsize64", machine.device(volume.minor)))


def same_data(volume):
    """The disks hold the same, up to the metadata."""
    def read(m):
        with open(volume.legs[m][:-len(".dev")], "rb") as f:
            return f.read(volume.size - MIB)
    assert len({read(m) for m in volume.disks()}) == 1, "disks differ"


class Blockstor:
    """Its satellite on one node. It deletes all files when it starts, and writes them again."""

    def __init__(self, machine):
        self.m = machine
        self.winner = False

    def start(self):
        for name in os.listdir(self.m.etc):
            os.unlink(os.path.join(self.m.etc, name))
        running = self.running()
        for name in running:
            self.m.run("drbdsetup", "down", name, limit=5)
        self.events = Events(self.m, "--statistics", "--full")
        return running

    def running(self):
        """The first word of each line that begins in column 1 and is no comment."""
        text = self.m.must("drbdsetup", "status")
        if "No currently configured DRBD" in text:
            return []
        return [line.split()[0] for line in text.splitlines() if line and not line[0].isspace() and line[0] != "#"]

    def marker(self, volume):
        return os.path.join(self.m.etc, volume.name + ".md-created")

    def write_file(self, volume):
        quorum = {"majority": "quorum majority; on-no-quorum suspend-io;", "off": ""}[volume.policy]
        lines = [f"resource {volume.name} {{", "  protocol C;", f"  options {{ {quorum} auto-promote yes; {volume.options} }}",
                 "  net { max-buffers 8000; after-sb-0pri discard-zero-changes; }"]
        for machine, disk in volume.legs.items():
            disk = "none" if disk is None else disk if machine is self.m else PLACEHOLDER
            lines.append(f"  on {machine.name} {{ address {machine.ip}:{volume.port + volume.ids[machine]}; node-id "
                         f"{volume.ids[machine]}; volume 0 {{ device /dev/drbd{volume.minor} minor {volume.minor}; "
                         f"disk {disk}; meta-disk internal; }} }}")
        legs = list(volume.legs)
        for n, one in enumerate(legs):
            for other in legs[n + 1:]:
                hosts = " ".join(f"host {m.name} address {m.ip}:{volume.port + volume.ids[m]};" for m in (one, other))
                lines.append(f"  connection {{ {hosts} disk {{ c-max-rate 400M; }} }}")
        # Not renamed into its place.
        with open(os.path.join(self.m.etc, volume.name + ".res"), "w") as f:
            f.write("\n".join(lines) + "\n}\n")

    def is_loaded(self, volume):
        status = self.m.run("drbdsetup", "status", volume.name)
        return status.rc == 0 and bool(status.text.strip())

    def is_diskless(self, volume):
        return " disk:Diskless" in self.m.must("drbdsetup", "status", "--verbose", volume.name)

    def round(self, volume, seed=None):
        """What it does every 10 s, and at each change."""
        self.write_file(volume)
        disk = volume.legs[self.m]
        if disk and not os.path.exists(self.marker(volume)):
            self.activate(volume, seed)
        loaded = self.is_loaded(volume)
        if loaded and disk is not None:
            self.is_diskless(volume)
        answer = self.m.run("drbdadm", "adjust", volume.name)
        if answer.rc and "(158)" in answer.text:
            answer = self.m.run("drbdadm", "up", volume.name)
        if answer.rc:
            raise Refused(f"{self.m.name}: adjust {volume.name}: exit {answer.rc}: {answer.text}")
        return answer

    def activate(self, volume, seed):
        there = self.m.run("drbdadm", "dump-md", volume.name)
        if there.rc or not there.text.strip():
            self.m.must("drbdadm", "create-md", "--force", "--max-peers=15", volume.name)
        if seed:
            for node in [volume.ids[self.m], *(i for m, i in volume.ids.items() if m is not self.m)]:
                self.m.must("drbdmeta", "--force", f"{volume.name}/0", "v09", volume.legs[self.m], "internal", "set-gi",
                            "--node-id", node, f"{seed}:{seed}:0:0")
        with open(self.marker(volume), "w"):
            pass

    def seen(self, volume, kind, key):
        """By events2, of all objects of this kind."""
        return [o.get(key) for (k, name, *_), o in list(self.events.objects.items()) if k == kind and name == volume.name]

    def is_good(self, volume):
        others = [disk for m, disk in volume.legs.items() if m is not self.m]
        peers = sorted(self.seen(volume, "peer-device", "peer-disk"))
        own = "UpToDate" if volume.legs[self.m] else "Diskless"
        return (self.seen(volume, "device", "disk") == [own] and self.seen(volume, "connection", "connection") == ["Connected"]
                * len(others) and peers == sorted("UpToDate" if d else "Diskless" for d in others)
                and set(self.seen(volume, "peer-device", "replication")) == {"Established"})

    def make_file_system(self, volume):
        self.m.must("drbdadm", "primary", "--force", volume.name)
        device = self.m.device(volume.minor)
        assert self.m.run("blkid", "-o", "export", device).rc == 2
        self.m.must("mkfs.ext4", "-q", "-F", device)
        self.m.must("drbdadm", "secondary", volume.name)

    def remove_peer(self, volume, peer):
        """Its file still names the peer. What is said to names in this order decides."""
        self.m.run("drbdadm", "disconnect", f"{peer.name}:{volume.name}")
        gone = self.m.run("drbdadm", "del-peer", f"{peer.name}:{volume.name}")
        if gone.rc and "not defined in your config" not in gone.text:
            raise Refused(f"{self.m.name}: del-peer: exit {gone.rc}: {gone.text}")
        self.m.run("drbdmeta", "--force", f"{volume.name}/0", "v09", volume.legs[self.m] or "none", "internal",
                   "forget-peer", volume.ids[peer])

    def delete(self, volume):
        if self.m.run("drbdadm", "down", volume.name).rc:
            self.m.run("drbdsetup", "down", volume.name)
        if volume.legs[self.m]:
            self.m.free_loop(volume.legs[self.m])
        for name in os.listdir(self.m.etc):
            if name.startswith(volume.name + "."):
                os.unlink(os.path.join(self.m.etc, name))

    def looks_for_free_disks(self, disk):
        """Minor 0, whatever that is: 0 means that DRBD has the disk."""
        return self.m.run("drbdmeta", "0", "v09", disk, "internal", "dump-md").rc


def blockstor_settled(satellites, volume, limit=40):
    for m in volume.legs:
        eventually(f"{m.name} is good", lambda: satellites[m].is_good(volume), limit, 0.1)
