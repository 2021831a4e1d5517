"""A strict double of drbd-reactor's promoter (docs/spec/integrations.md 2): its calls, and its reading of `events2 --full --poll`,
which loses a whole line for one value that it does not know, and takes a key that is missing for "no"."""

import re

from satellite import Broken, CALL, CONNECTIONS, Stream

DISKS = ("Diskless", "Attaching", "Detaching", "Failed", "Negotiating", "Inconsistent", "Outdated", "DUnknown", "Consistent",
         "UpToDate")
REPLICATIONS = ("Off", "Established", "StartingSyncS", "StartingSyncT", "WFBitMapS", "WFBitMapT", "WFSyncUUID", "SyncSource",
                "SyncTarget", "VerifyS", "VerifyT", "PausedSyncS", "PausedSyncT", "Ahead", "Behind")
ROLES = ("Primary", "Secondary", "Unknown")
SWITCH, NUMBER, WORD = ("yes", "no"), r"\d{1,19}", r".+"
PEER = {"name": WORD, "peer-node-id": NUMBER, "conn-name": WORD}
# What each line must have, and what the values may be.
FULL = {
    "resource": {"name": WORD, "role": ROLES, "suspended": WORD, "force-io-failures": SWITCH, "may_promote": SWITCH,
                 "promotion_score": NUMBER, "write-ordering": WORD},
    "connection": {**PEER, "connection": CONNECTIONS, "role": ROLES, "congested": SWITCH, "ap-in-flight": NUMBER,
                   "rs-in-flight": NUMBER},
    "device": {"name": WORD, "volume": NUMBER, "minor": NUMBER, "backing_dev": WORD, "disk": DISKS, "client": SWITCH,
               "open": SWITCH, "quorum": SWITCH, "size": NUMBER, "read": NUMBER, "written": NUMBER, "al-writes": NUMBER,
               "bm-writes": NUMBER, "upper-pending": NUMBER, "lower-pending": NUMBER},
    "peer-device": {**PEER, "volume": NUMBER, "replication": REPLICATIONS, "peer-disk": DISKS, "peer-client": SWITCH,
                    "resync-suspended": WORD, "received": NUMBER, "sent": NUMBER, "out-of-sync": NUMBER, "pending": NUMBER,
                    "unacked": NUMBER},
    "path": {**PEER, "local": WORD, "peer": WORD, "established": SWITCH},
}


class FullStream(Stream):
    def __init__(self, argv, env):
        super().__init__(argv, env)
        self.ask()

    def ask(self):
        self.process.stdin.write(b"n\n")
        self.process.stdin.flush()

    def take(self, line):
        action, kind, *words = line.split(" ")
        if kind in FULL and action in ("exists", "create", "change"):
            values = dict(word.split(":", 1) for word in words)
            for key, wanted in FULL[kind].items():
                value = values.get(key, "")
                if not (value in wanted if isinstance(wanted, tuple) else re.fullmatch(wanted, value)):
                    raise Broken(f"{key}:{value} in {line!r}")
        super().take(line)


class Reactor:
    """On the node of a satellite, whose way to run programs it uses."""

    def __init__(self, satellite):
        self.node, self.used = satellite, 0
        said = satellite.call("drbdadm", "--version").stdout
        for key, least in (("DRBDADM_VERSION_CODE", 0x091D00), ("DRBD_KERNEL_VERSION_CODE", 0x090107)):
            assert int(re.search(rf"^{key}=0x([0-9a-fA-F]+)$", said, re.M)[1], 16) >= least
        machine = satellite.machine
        self.stream = FullStream([*machine.prefix(), "drbdsetup", "events2", "--full", "--poll"], machine.env())
        self.waits("its first state", lambda: self.stream.begun)

    def waits(self, what, check, limit=CALL):
        def looked():
            self.stream.pump()
            return check()

        return self.node.wait(what, looked, limit)

    def new(self, name):
        """Once for each resource; whether the promoter is responsible for it."""
        devices = self.node.call("drbdadm", "sh-ll-dev", name).stdout.split()
        for device in devices:
            if device != "none":
                self.node.call("test", "-b", device)
        self.node.call("drbdadm", "adjust", name)

    def find(self, kind, name, key, value):
        """The next line, `exists` or `change`, on which that is so."""
        def found():
            for at, line in enumerate(self.stream.lines[self.used:], self.used + 1):
                action, what, *words = [*line.split(" "), ""]
                if (what, action) in ((kind, "exists"), (kind, "change")) and {f"name:{name}", f"{key}:{value}"} <= {*words}:
                    self.used = at
                    return True
            return False

        self.waits(f"{key}:{value}", found)

    def end(self):
        self.stream.end()
