"""A strict double of LINSTOR's satellite: its calls, in its order, with its time limits, and its reading of events2
(docs/spec/integrations.md 1a to 1g).  It knows that page and nothing of urbd: it runs the three programs and reads what they print.

    s = Satellite(machine)              # machine: anything with name, ip, prefix() and env()
    s.begin()                           # versions, events2, the full sync with a controller
    s.run(resources)                    # one run of the device manager
    s.agrees()                          # its own picture is what `drbdsetup status --json` says

What the real one would write an error report of, or hang at, is Broken here, with the calls that came before.
"""

import fcntl
import json
import os
import subprocess
import time
import xml.etree.ElementTree as ET

CALL, GONE, USABLE, PROMOTABLE = 45, 5, 15, 2  # seconds that it waits for a program, a `destroy`, a replica, a first promotion
HELD_OPEN = "Device is held open by someone"
CONCURRENT = "Concurrent state changes detected and aborted"
PLACEHOLDER = "/dev/drbd/this/is/not/used"
V09 = 0x8374026D
LSBLK = "NAME,SIZE,PKNAME,KNAME,ROTA,TYPE,FSTYPE,MAJ:MIN,MODEL,SERIAL,WWN,STATE,DISC-GRAN,DISC-MAX"
HELP = ("resource-options", "peer-device-options", "new-peer", "disk-options", "new-minor")
SETTLED = ("Consistent", "Diskless", "Failed", "Inconsistent", "Outdated", "UpToDate")
CONNECTIONS = ("StandAlone", "Disconnecting", "Unconnected", "Timeout", "BrokenPipe", "NetworkFailure", "ProtocolError",
               "TearDown", "Connecting", "Connected")
SEEN_DEFAULTS = {"Resource/on-no-quorum": "suspend-io", "Net/cram-hmac-alg": "sha1", "Net/protocol": "C",
                 "Disk/block-size": "512", "Disk/discard-granularity": "4096", "Disk/discard-zeroes-if-aligned": "yes",
                 "Disk/rs-discard-granularity": "65536", "PeerDevice/c-plan-ahead": "0", "PeerDevice/resync-rate": "204800"}


class Broken(AssertionError):
    """What the real one makes an error report of, or waits for without an end."""


def rounded(x, to):
    return -(-x // to) * to


def metadata(gross, peers=7, block=4):
    """KiB of internal metadata on a backing device of so many KiB."""
    bits = -(-rounded(gross, 4) // (8 * block))
    return rounded(rounded(-(-peers * rounded(bits, 8) // 1024), 4) + 36, 4)


def gross(net):
    """KiB that a backing device needs for a device of so many KiB."""
    size = rounded(net, 4) + 36
    while size != rounded(net, 4) + metadata(size):
        size = rounded(net, 4) + metadata(size)
    return size


# ---- events2 -----------------------------------------------------------------
IDENTITY = {"resource": ("name",), "connection": ("name", "conn-name"), "device": ("name", "volume"),
            "peer-device": ("name", "conn-name", "volume")}
NEEDED = {**IDENTITY, "connection": ("name", "conn-name", "peer-node-id")}


class Stream:
    """`drbdsetup events2 all`, and the picture that it makes.  Nothing is read in between calls: what was printed before a
    program ended is in the pipe when pump() comes."""

    def __init__(self, argv, env):
        (self.process, self.rest, self.begun) = (None, b"", False)
        self.objects, self.lines, self.failed_disks, self.kept = {}, [], set(), []
        self.process = subprocess.Popen(argv, env=env, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
        for pipe in (self.process.stdout, self.process.stderr):
            os.set_blocking(pipe.fileno(), False)
        fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)

    def pump(self):
        """Takes all that has been printed so far."""
        said = self._read(self.process.stderr, "stderr")
        if said:
            raise Broken(f"events2 says on stderr: {said!r}")
        *lines, self.rest = (self.rest + self._read(self.process.stdout, "stdout")).split(b"\n")
        for line in lines:
            self.lines.append(line.decode())
            self.take(line.decode())

    @staticmethod
    def _read(pipe, name):
        data = b""
        while True:
            try:
                more = os.read(pipe.fileno(), 1 << 16)
            except BlockingIOError:
                return data
            if not more:
                raise Broken(f"end of file on {name} of events2, after {data[-500:]!r}")
            data += more

    def take(self, line):
        if not line:
            return
        if line == "exists -":
            self.begun, kept, self.kept = True, self.kept, []
            for other in kept:
                self.take(other)
            return
        action, kind, *words = line.split(" ")
        if kind not in IDENTITY or action not in ("exists", "create", "change", "destroy"):
            return
        if action != "exists" and not self.begun:
            self.kept.append(line)
            return
        values = dict(word.split(":", 1) for word in words if ":" in word)
        if missing := [key for key in IDENTITY[kind] if not values.get(key)]:
            raise Broken(f"no {missing} in {line!r}")
        self.change(line, action, kind, values)

    def change(self, line, action, kind, values):
        key = (kind, *(values[name] for name in IDENTITY[kind]))
        parent = {"connection": ("resource", key[1]), "device": ("resource", key[1]),
                  "peer-device": ("connection", *key[1:3])}.get(kind)
        if parent and parent not in self.objects:
            raise Broken(f"{line!r} is of a {parent[0]} that is not there")
        if values.get("disk") == "Failed":
            self.failed_disks.add(values["name"])
        if "done" in values:
            if not 0 <= float(values["done"]) <= 100:  # also where it is no number
                raise Broken(line)
        if action in ("exists", "create"):
            if missing := [name for name in NEEDED[kind] if name not in values]:
                raise Broken(f"no {missing} in {line!r}")
            if action == "create" and key in self.objects:
                raise Broken(f"{line!r}: it was there already")
            self.objects[key] = values
        elif key not in self.objects:
            raise Broken(f"{line!r} is of what is not there")
        elif action == "change":
            self.objects[key].update(values)
        else:
            below = [other for other in self.objects if self.is_below(other, key)]
            if below:
                raise Broken(f"{line!r}, and {below} are there")
            del self.objects[key]

    @staticmethod
    def is_below(other, key):
        if key[0] == "resource":
            return other[0] != "resource" and other[1] == key[1]
        return key[0] == "connection" and other[0] == "peer-device" and other[1:3] == key[1:]

    def get(self, *key):
        return self.objects.get(key, {})

    def of(self, kind, name):
        return [(key, values) for key, values in self.objects.items() if key[0] == kind and key[1] == name]

    def end(self):
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


# ---- what a controller wants -------------------------------------------------
class Volume:
    def __init__(self, number, minor, net):
        self.number, self.minor, self.net = number, minor, net
        self.day0 = os.urandom(8).hex().upper()


class Resource:
    """What all satellites are told of it. `replicas`: node name -> (node id, is it to have a disk)."""

    def __init__(self, name, port, volumes, nodes, properties=(), secret="kDq0vJ8hQ2mW5tY1cE7r", thin=True):
        self.name, self.port, self.volumes, self.nodes = name, port, volumes, nodes
        self.replicas, self.winner, self.thin = {}, None, thin
        self.properties = {**SEEN_DEFAULTS, **dict(properties), "Net/shared-secret": secret}

    def add(self, node, diskful):
        used = {k for k, _ in self.replicas.values()}
        self.replicas[node] = (min(set(range(32)) - used), diskful)

    def id_of(self, node):
        return self.replicas[node][0]

    def diskful(self, node):
        return self.replicas[node][1]

    def peers(self, node):
        """Whom it is connected with: never two without disks."""
        return [n for n in sorted(self.replicas) if n != node and (self.diskful(n) or self.diskful(node))]


class Options:
    """What `xml-help` lists: name -> type, for each of the five."""

    def __init__(self):
        self.types = {}

    def read(self, command, text):
        root = ET.fromstring(text)
        self.types[command] = {}
        for option in root.iter("option"):
            name, kind = option.attrib["name"], option.attrib["type"].lower()
            if name in ("set-defaults", "_name", "diskless"):
                continue
            if kind in ("numeric", "numeric-or-symbol"):
                int(option.find("min").text), int(option.find("max").text)
            elif kind == "handler":
                assert option.findall("handler")
            elif kind not in ("boolean", "string"):
                raise Broken(f"xml-help {command}: {name} is of the unknown type {kind}")
            self.types[command][name] = kind

    def section(self, place, properties):
        """Statements of one section, and what is left out as no option."""
        commands = {"Resource": HELP[:1], "PeerDevice": HELP[1:2], "Net": HELP[2:3], "Disk": HELP[3:]}[place]
        types = {}
        for command in commands:
            types.update(self.types[command])
        lines, left_out = [], []
        for key, value in sorted(properties.items()):
            where, name = key.split("/")
            if where == place and name not in types:
                left_out.append(key)
            elif where == place:
                quoted = types[name] in ("string", "handler") or name in ("protocol", "on-no-quorum")
                lines.append(f'{name} "{value}";' if quoted else f"{name} {value};")
        return lines, left_out


def block(title, lines, level):
    pad = "    " * level
    inner = [pad + "    " + line if not line.startswith(" ") else line for line in lines]
    return [f"{pad}{title}", pad + "{", *inner, pad + "}"]


# ---- the satellite -----------------------------------------------------------
class Satellite:
    def __init__(self, machine):
        self.machine, self.name = machine, machine.name
        self.calls, self.devices, self.grown = [], {}, set()
        self.options, self.stream, self.skip_disk, self.left_out = Options(), None, set(), set()

    # ---- programs ------------------------------------------------------------
    def call(self, *argv, rc=0, limit=CALL):
        """Runs a program; its exit status must be the one that is wanted (None: any), within the limit.  Then stdout and stderr
        are read to their end, which does not come while a process that it has left behind has them."""
        argv = [str(word) for word in argv]
        began = time.monotonic()
        with subprocess.Popen([*self.machine.prefix(), *argv], env=self.machine.env(), cwd="/", stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            try:
                out, err = program.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                what = "has not ended" if program.poll() is None else "has ended, and somebody keeps its stdout or stderr open"
                program.kill()
                for pipe in (program.stdout, program.stderr):
                    pipe.close()
                raise self.broken(f"after {limit} s `{' '.join(argv)}` {what}") from None
        ended = subprocess.CompletedProcess(argv, program.returncode, out, err)
        self.calls.append(f"{time.monotonic() - began:6.2f} s  {ended.returncode:3}  {' '.join(argv)[:200]}")
        if rc is not None and ended.returncode != rc:
            raise self.broken(f"`{' '.join(argv)}` ended with {ended.returncode}, not {rc}\n{out[-2000:]}{err[-2000:]}")
        self.pump()
        return ended

    def broken(self, what):
        lines = self.stream.lines[-25:] if self.stream else []
        return Broken("\n".join([f"{self.name}: {what}", "calls:", *self.calls[-12:], "events2:", *lines]))

    def pump(self):
        if self.stream:
            try:
                self.stream.pump()
            except Broken as e:
                raise self.broken(str(e)) from None

    def wait(self, what, check, limit):
        deadline = time.monotonic() + limit
        while True:
            self.pump()
            if found := check():
                return found
            if time.monotonic() > deadline:
                raise self.broken(f"not within {limit} s: {what}")
            time.sleep(0.05)

    def shell(self, script, *words, rc=0):
        return self.call("sh", "-c", script, "sh", *words, rc=rc).stdout

    # ---- start, and a controller that connects -----------------------------------
    def begin(self):
        self.shell("mkdir -p /var/lib/linstor.d/.backup; cd /etc/drbd.d && "
                   "test -e linstor-resources.res || echo 'include \"/var/lib/linstor.d/*.res\";' > linstor-resources.res")
        self.has_udev = self.call("which", "udevadm", rc=None).returncode == 0  # it is in no machine of a container
        self.versions()
        self.stream = Stream([*self.machine.prefix(), "drbdsetup", "events2", "all"], self.machine.env())
        self.wait("`exists -`", lambda: self.stream.begun, CALL)
        self.versions()
        for command in HELP:
            self.options.read(command, self.call("drbdsetup", "xml-help", command).stdout)

    def versions(self):
        said = dict(line.split("=", 1) for line in self.call("drbdadm", "--version", rc=None).stdout.splitlines() if "=" in line)
        self.kernel, self.utils = (int(said[key], 16) for key in ("DRBD_KERNEL_VERSION_CODE", "DRBDADM_VERSION_CODE"))
        assert self.kernel >= 0x090013 and self.utils >= 0x080A09, "no DRBD, or no quorum and no tie-breakers"

    def end(self):
        if self.stream:
            self.stream.end()
            self.stream = None

    # ---- the file ------------------------------------------------------------
    def text(self, res):
        """The resource's file, as this node has it."""
        parts = {}
        for place in ("Resource", "Net", "Disk", "PeerDevice"):
            parts[place], left_out = self.options.section(place, res.properties)
            self.left_out.update(left_out)
        lines = block("options", parts["Resource"], 1) + block("net", parts["Net"], 1)
        for node in [self.name, *(n for n in sorted(res.replicas) if n != self.name)]:
            lines += self.host(res, node, parts["Disk"])
        for peer in res.peers(self.name):
            hosts = [f'host "{n}" address ipv4 {res.nodes[n].machine.ip}:{res.port};' for n in (self.name, peer)]
            disk = block("disk", parts["PeerDevice"], 2) if parts["PeerDevice"] else []
            lines += block("connection", disk + block("path", hosts, 2), 1)
        return "\n".join([f'resource "{res.name}"', "{", *lines, "}", ""])

    def host(self, res, node, disk_options):
        lines = []
        for volume in res.volumes:
            disk = "none"
            if res.diskful(node):
                disk = self.devices[res.name, volume.number] if node == self.name else PLACEHOLDER
            inner = [f"disk {disk};"]
            if self.utils >= 0x092200 and self.kernel >= 0x090301:
                inner.append("tiebreaker yes;")
            inner += block("disk", disk_options, 3) if res.diskful(node) else []
            lines += block(f"volume {volume.number}", [*inner, "meta-disk internal;", f"device minor {volume.minor};"], 2)
        return block(f'on "{node}"', [*lines, f"node-id {res.id_of(node)};"], 1)

    def write(self, res):
        """Whether it is another one than before; the header does not count."""
        path, text = f"/var/lib/linstor.d/{res.name}.res", self.text(res)
        old = self.shell('cat "$1" 2>/dev/null || true', path)
        if old[old.find("resource "):] == text:
            return False
        head = f"# made at {time.time()}\n"
        self.shell('printf %s "$2" > "$1_tmp" && mv "$1_tmp" "$1"', path, head + text)
        return True

    # ---- backing devices: a pool of files on loop devices ------------------------
    def backing(self, res, volume):
        return f"/disks/{res.name}_{volume.number:05}"

    def allocate(self, res, volume):
        """Makes it if it is not there; returns whether it is new."""
        path = self.backing(res, volume)
        new = self.shell('test -e "$1" && echo old || truncate -s "$2K" "$1"', path, gross(volume.net)) == ""
        if (res.name, volume.number) not in self.devices:
            # A number that a Secondary's device had, whose programs were killed, is read-only for its next user.
            attach = 'dev=$(losetup -f --show "$1") && blockdev --setrw "$dev" && echo "$dev"'
            self.devices[res.name, volume.number] = self.shell(attach, path).strip()
        return new

    def release(self, res, volume):
        """Nobody here has it open any more, so that it goes away at once; who looks at all disks of the host may delay that."""
        device = self.devices.pop((res.name, volume.number))
        holders = self.shell('find /proc/[0-9]*/fd -lname "$1" 2>/dev/null || true', device)
        if holders:
            raise self.broken(f"{device} is still open: {holders}")
        self.call("losetup", "-d", device)
        gone = 'test "$(cat "/sys/block/${1#/dev/}/loop/backing_file" 2>/dev/null)" != "$2"'
        path = self.backing(res, volume)
        self.wait(f"{device} is gone", lambda: self.call("sh", "-c", gone, "sh", device, path, rc=None).returncode == 0, GONE)
        self.shell('rm "$1"', path)

    def has_metadata(self, device):
        """What stands at the place of the superblock, read past the cache."""
        size = int(self.call("blockdev", "--getsize64", device).stdout)
        at = (size // 4096 - 1)
        word = self.shell('dd if="$1" bs=4096 skip="$2" count=1 iflag=direct status=none | od -An -tx1 -j60 -N4', device, at)
        return int(word.replace(" ", "") or "0", 16) == V09

    # ---- one run of the device manager -------------------------------------------
    def run(self, resources):
        up = [r.name for r in resources if f"{r.name} role:" in self.call("drbdsetup", "status").stdout]
        changed, new = set(), []
        for res in resources:
            if res.diskful(self.name):
                new += [(res, volume) for volume in res.volumes if self.allocate(res, volume)]
            if self.write(res):
                changed.add(res.name)
        listed = self.call("drbdadm", "sh-list-adjustable", "all", rc=None)
        names = [r.name for r in resources] if listed.returncode else listed.stdout.split()
        for res in resources:
            for volume in res.volumes if res.diskful(self.name) else ():
                if not self.attached(res, volume):
                    self.metadata(res, volume, (res, volume) in new)
            if res.name not in up:
                self.port_is_free(res)
            if res.name in changed or res.name.lower() in map(str.lower, names):
                self.adjust(res)
        for res in resources:
            self.look(res)

    def attached(self, res, volume):
        return self.stream.get("device", res.name, str(volume.number)).get("disk", "Diskless") != "Diskless"

    def metadata(self, res, volume, new):
        device, minor = self.devices[res.name, volume.number], volume.minor
        if new:
            self.call("wipefs", "-a", "-f", device)
        if self.has_metadata(device):
            ended = self.call("drbdmeta", minor, "v09", device, "internal", "get-gi", "--node-id", 0, "--force", rc=None)
            if ended.returncode in (1, 255):
                raise self.broken(f"the metadata of {device} are corrupt: {ended.stderr}")
            return
        granularity = ["--bitmap-block-size", 4096] if self.utils >= 0x092100 else []
        self.call("drbdadm", "-vvv", "--max-peers", 7, *granularity, "--", "--force", "create-md", f"{res.name}/{volume.number}")
        self.shell('test -e "/var/lib/drbd/drbd-minor-$1.lkbd"', minor)
        if not self.has_metadata(device):
            raise self.broken(f"create-md has left no metadata on {device}")
        if res.thin or res.winner == self.name:
            self.first_generation(res, volume, device)

    def first_generation(self, res, volume, device):
        """Nothing was ever written: all replicas count from the same generation.  Of thick volumes this is said of the first
        one alone, and the others are copied in full."""
        first = res.winner == self.name
        own = f"{os.urandom(8).hex().upper()}:{volume.day0}:::1:1" if first else f"{volume.day0}::::1:1"
        others = f":{volume.day0}::::" if first else f"{volume.day0}:::::"
        for node_id in range(32):
            text = own if node_id == res.id_of(self.name) else others
            self.call("drbdmeta", "--force", "--node-id", node_id, volume.minor, "v09", device, "internal", "set-gi", text)

    def port_is_free(self, res):
        code = "import socket, sys; s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(('', int(sys.argv[1])))"
        self.call("python3", "-c", code, res.port)

    def adjust(self, res):
        skip = ["--skip-disk"] if res.name in self.skip_disk else []
        self.call("drbdadm", "-vvv", "adjust", *skip, res.name)
        self.shell('cd /var/lib/linstor.d && cp "$1.res" .backup/', res.name)
        # What the controller hears from it, for good.
        self.skip_disk.update(self.stream.failed_disks)

    def look(self, res):
        """At the devices, after each run: on Secondaries and without disks as well."""
        for volume in res.volumes:
            device = f"/dev/drbd{volume.minor}"
            self.call("stat", "-L", "-c", "%t:%T", device)
            for _ in range(10):
                ended = self.call("lsblk", "-P", "-b", "--paths", "-o", LSBLK, device, rc=None)
                if ended.returncode == 0:
                    break
                time.sleep(0.1)
            else:
                raise self.broken(f"lsblk {device}: {ended.stderr}")
            if self.has_udev:
                self.call("udevadm", "info", "-q", "symlink", device)

    # ---- what it does besides ----------------------------------------------------
    def promote(self, res):
        for turn in range(3):
            ended = self.call("drbdadm", "-vvv", "primary", "--force", res.name, rc=None)
            if ended.returncode == 0 or CONCURRENT not in ended.stderr:
                break
            time.sleep(0.5)
        if ended.returncode or self.role(res) != "Primary":
            raise self.broken(f"{res.name} is not promoted: {ended.returncode}, {self.role(res)}: {ended.stderr}")

    def demote(self, res):
        for pause in (0.25, 0.5, 1, 2, 2, 2, 0):
            ended = self.call("drbdadm", "-vvv", "secondary", res.name, rc=None)
            if ended.returncode == 0 or HELD_OPEN not in ended.stderr:
                break
            time.sleep(pause)
        if ended.returncode or self.role(res) != "Secondary":
            raise self.broken(f"{res.name} is not demoted: {ended.returncode}, {self.role(res)}: {ended.stderr}")

    def make_file_system(self, res):
        self.wait("its first disk states", lambda: all(
            self.disk_state(res, v.number) in SETTLED for v in res.volumes), PROMOTABLE)
        self.promote(res)
        for volume in res.volumes:
            device = f"/dev/drbd{volume.minor}"
            self.call("blkid", "-o", "export", device, rc=None)
            self.call("mkfs.ext4", "-q", "-F", "-E", "nodiscard", device)
        self.demote(res)

    def down(self, res):
        """Only what events2 shows; and it says itself that it is gone."""
        self.pump()
        if self.stream.get("resource", res.name):
            self.call("drbdsetup", "down", res.name)
            self.wait(f"`destroy` of {res.name}", lambda: not self.stream.get("resource", res.name), GONE)

    def delete(self, res):
        self.down(res)
        self.shell('rm "/var/lib/linstor.d/$1.res"', res.name)
        for volume in res.volumes:
            if (res.name, volume.number) in self.devices:
                self.release(res, volume)

    def forget(self, res, peer_id):
        """A peer is not to be one any more; `adjust` comes after it."""
        if res.name in self.skip_disk:
            return
        first = self.call("drbdsetup", "del-peer", res.name, peer_id, rc=None).returncode
        second = 0
        if res.diskful(self.name):
            second = self.call("drbdsetup", "forget-peer", res.name, peer_id, rc=None).returncode
        there = [v for _, v in self.stream.of("connection", res.name) if v["peer-node-id"] == str(peer_id)]
        if first and second and there:
            raise self.broken(f"the peer {peer_id} of {res.name} does not go: {first}, {second}")

    def remove_volume(self, res, volume):
        """The file is written without it before this comes."""
        self.write(res)
        if res.diskful(self.name):
            self.call("drbdsetup", "detach", volume.minor)
            self.release(res, volume)
        self.adjust(res)

    def become_diskless(self, res):
        """The controller's file says so already."""
        for volume in res.volumes:
            self.call("drbdsetup", "detach", volume.minor, "--diskless")

            def said():
                device = self.stream.get("device", res.name, str(volume.number))
                return (device.get("disk"), device.get("client")) == ("Diskless", "yes")

            self.wait("`disk:Diskless client:yes`", said, GONE)

    def suspend(self, res):
        self.call("drbdadm", "suspend-io", res.name)
        if "user" not in self.stream.get("resource", res.name).get("suspended", "").split(","):
            raise self.broken("suspend-io has returned, and events2 has not said `suspended:user`")

    def resume(self, res):
        self.call("drbdadm", "resume-io", res.name)

    def snapshot(self, res, volume, name):
        """As `lvcreate -s` does: what the backing device has at this moment."""
        self.call("sync", "-f", self.backing(res, volume))
        self.call("cp", "--sparse=always", self.backing(res, volume), f"/disks/{name}")

    def restore(self, res, volume, name):
        """The snapshot becomes the backing device of a new resource."""
        self.call("cp", "--sparse=always", f"/disks/{name}", self.backing(res, volume))

    def enlarge(self, res, volume):
        """The backing device, while it is attached."""
        self.call("truncate", "-s", f"{gross(volume.net)}K", self.backing(res, volume))
        self.call("losetup", "-c", self.devices[res.name, volume.number])

    def size(self, volume):
        """KiB.  There is no /sys/block/drbdN: the page says what stands in its place."""
        number = self.call("lsblk", "-d", "-n", "-o", "MAJ:MIN", f"/dev/drbd{volume.minor}").stdout.strip()
        return int(self.call("cat", f"/sys/dev/block/{number}/size").stdout) // 2

    def resize(self, res, volume):
        """On one node, when all have enlarged their backing devices."""
        if self.size(volume) != volume.net:
            self.call("drbdsetup", "wait-connect-resource", "--wait-after-sb=yes", "--wfc-timeout=10", res.name)
            clean = ["--", "--assume-clean"] if res.thin else []
            self.call("drbdadm", "-vvv", *clean, "resize", f"{res.name}/{volume.number}")
            self.adjust(res)

    # ---- the picture -------------------------------------------------------------
    def agrees(self, limit=USABLE):
        """Waits until what events2 has told is what `status` says: of each object, and of no other one."""
        def same():
            before = picture(self.stream.objects)
            said = self.call("drbdsetup", "status", "--json")
            status = from_status(json.loads(said.stdout))
            differ.clear()
            differ.extend((before, status))
            return status in (before, picture(self.stream.objects))

        differ = []
        try:
            self.wait("the picture is what status says", same, limit)
        except Broken as e:
            only = [sorted(map(str, a.items() - b.items())) for a, b in (differ, differ[::-1])]
            raise Broken(f"{e}\nevents2 alone: {only[0]}\nstatus alone: {only[1]}") from None

    def usable(self, res):
        """What the controller waits for after a replica was made."""
        def good():
            for volume in res.volumes:
                here = self.stream.get("device", res.name, str(volume.number)).get("disk")
                there = [v.get("peer-disk") for key, v in self.stream.of("peer-device", res.name) if key[3] == str(volume.number)]
                if "UpToDate" not in (here, *there):
                    return False
            return all(self.stream.get("connection", res.name, peer).get("connection") == "Connected"
                       for peer in res.peers(self.name) if res.diskful(peer))

        self.wait(f"{res.name} is usable", good, USABLE)

    def role(self, res):
        self.pump()
        return self.stream.get("resource", res.name).get("role")

    def disk_state(self, res, number=0):
        self.pump()
        return self.stream.get("device", res.name, str(number)).get("disk")


def picture(objects):
    """What can be compared with `status`."""
    found = {}
    for key, values in objects.items():
        wanted = {"resource": ("role",), "connection": ("peer-node-id", "connection", "role"),
                  "device": ("minor", "disk", "client", "quorum"), "peer-device": ("replication", "peer-disk", "peer-client")}
        found[key] = tuple(values.get(name) for name in wanted[key[0]])
        if key[0] == "resource":
            suspended = values.get("suspended", "")
            found[key] += (() if suspended == "no" else tuple(sorted(suspended.split(","))),)
    return found


def from_status(resources):
    yes = {True: "yes", False: "no"}
    found = {}
    for r in resources:
        why = [name for name in ("fencing", "no-data", "quorum", "user") if r[f"suspended-{name}"]]
        found["resource", r["name"]] = (r["role"], tuple(why))
        for d in r["devices"]:
            found["device", r["name"], str(d["volume"])] = (str(d["minor"]), d["disk-state"], yes[d["client"]], yes[d["quorum"]])
        for c in r["connections"]:
            found["connection", r["name"], c["name"]] = (str(c["peer-node-id"]), c["connection-state"], c["peer-role"])
            for p in c["peer_devices"]:
                found["peer-device", r["name"], c["name"], str(p["volume"])] = (
                    p["replication-state"], p["peer-disk-state"], yes[p["peer-client"]])
    return found
