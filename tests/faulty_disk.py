"""Backing disks that fail, fill up, slow down and hang, where the kernel has no device mapper.

    disk = FaultyDisk(node)             # before the cluster is configured: the node's disk_path changes
    disk.fail("reads")                  # EIO from now on
    disk.fail("writes")                 # EIO, or what FaultyDisk(node, write_error="ENOSPC") says
    disk.hang()                         # requests are taken and not answered
    disk.slow(8_000_000)                # bits a second
    disk.heal()                         # all of it ends; what hung is answered

The node's backing file is served by nbdkit through filters that inject faults, and nbdfuse makes a file of that again,
in the node's own mount namespace: urbd opens it with O_DIRECT like any other, and gets the errors from the kernel.
`node.disk_file()` stays the real file: what is on the disk, whatever it answers.

A process with requests on a hanging disk cannot be killed before the disk answers, as with a real one.
"""

import contextlib
import os
import socket
import subprocess

from cluster import end_with_us, eventually

FAULTS = {"reads": ["pread"], "writes": ["pwrite", "zero", "trim"]}


class FaultyDisk:
    def __init__(self, node, volume=0, write_error="EIO", share="100%"):
        """While a fault is on, `share` of the requests of that kind fail."""
        self.node = node
        self.dir = os.path.join(node.dir, f"faulty{volume}")
        self.path = os.path.join(self.dir, "mnt", "disk")
        self.on = set()  # faults that are on
        os.makedirs(os.path.dirname(self.path))
        node.disks.append(self)
        self.processes = []
        self._serve(node.disk_file(volume), {"reads": "EIO", "writes": write_error}, share)
        self._mount()
        paths = {v: node.disk_path(v) for v in range(node.volumes)}
        paths[volume] = self.path
        node.disk_path = lambda v=0: paths[v]

    def _file(self, name):
        return os.path.join(self.dir, name)

    def _spawn(self, argv, probe):
        p = subprocess.Popen([*self.node.prefix(), *argv], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             preexec_fn=end_with_us)
        self.processes.append(p)

        def there():
            assert p.poll() is None, f"{argv} ended with {p.returncode}"
            return self.node.run(["test", *probe]).returncode == 0

        eventually(f"{argv[0]} answers", there, 20)

    def _serve(self, file, errors, share):
        options = [f"pause-control={self._file('pause')}", f"rate-file={self._file('rate')}"]
        for fault, operations in FAULTS.items():
            for op in operations:
                options += [f"error-{op}={errors[fault]}", f"error-{op}-rate={share}",
                            f"error-{op}-file={self._file(fault)}"]
        filters = ["--filter=pause", "--filter=rate", "--filter=error"]
        self._spawn(["nbdkit", "-f", "-t", "8", "-U", self._file("nbd"), *filters, "file", file, *options],
                    ["-S", self._file("nbd")])

    def _mount(self):
        self._spawn(["nbdfuse", self.path, f"nbd+unix:///?socket={self._file('nbd')}"], ["-f", self.path])

    def fail(self, fault):
        """Requests of that kind, "reads" or "writes", fail from now on."""
        assert fault in FAULTS
        self.on.add(fault)
        open(self._file(fault), "w").close()

    def works(self, fault):
        """The end of fail()."""
        self.on.discard(fault)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(fault))

    def hang(self):
        """Requests that are under way are answered, all later ones wait."""
        self._pause(b"p")
        self.on.add("hang")

    def resume(self):
        """Answers what waited."""
        if "hang" in self.on:
            self._pause(b"r")
            self.on.discard("hang")

    def _pause(self, letter):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(20)
            s.connect(self._file("pause"))
            s.sendall(letter)
            answer = s.recv(1)
        assert answer == letter.upper(), answer

    def slow(self, bits):
        """So many bits a second, both ways together; 0 is full speed again."""
        with open(self._file("rate.new"), "w") as f:
            f.write(f"{bits}\n")
        os.rename(self._file("rate.new"), self._file("rate"))
        (self.on.add if bits else self.on.discard)("slow")

    def heal(self):
        for fault in FAULTS:
            self.works(fault)
        if "slow" in self.on:
            self.slow(0)
        self.resume()

    def close(self):
        """Ends the servers; a request that still hangs fails."""
        for p in reversed(self.processes):
            p.kill()
        for p in self.processes:
            p.wait(20)
