"""`urbd inspect`: metadata of real tools and kernels, of every form, size and damage; it only looks, and memory has a bound."""

import json
import lzma
import os
import re
import shutil
import struct
import subprocess
import tarfile

import pytest

import cluster as C
import scratch
from cluster import MIB

VECTORS = os.path.join(C.TESTS, "..", "vectors", "metadata")
with open(os.path.join(VECTORS, "manifest.json")) as manifest:
    WHOLE = {e["file"]: e for e in json.load(manifest) if isinstance(e.get("base_offset"), int) and e["meta_disk"] != "-"}
TIB = 1 << 40
REAL = "/usr/sbin/drbdmeta"
MINOR = str(1_010_000 + os.getpid() % 30_000)
# KiB of memory at the peak: twice of what the program needs for anything.
MOST = 16 * 1024


def inspect(*arguments, rc=0):
    r = subprocess.run([C.URBD, "inspect", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert r.returncode == rc and "panicked" not in r.stderr, r
    return r


def read(*arguments):
    return json.loads(inspect("--json", *arguments).stdout)


# A program begins with the peak of who has started it: that must be a small one, and not the tests' own.
MEASURES = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print("peak", usage.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak(*argv):
    """Runs a program; KiB of memory that it had at most (VmHWM)."""
    r = subprocess.run(["/usr/bin/python3", "-I", "-S", "-c", MEASURES, *argv], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r
    return int(re.search(r"^peak (\d+)$", r.stderr, re.M)[1])


@pytest.fixture
def place():
    """A directory that holds sparse files of any size."""
    path = scratch.make("urbd-test-", C.scratch_dir())
    yield path
    shutil.rmtree(path)


def disk(place, name, size=64 * MIB, base=0, data=b""):
    path = os.path.join(place, name)
    with open(path, "wb") as f:
        f.truncate(size)
        f.seek(base)
        f.write(data)
    return path


def vector(place, name):
    entry = WHOLE[name]
    with lzma.open(os.path.join(VECTORS, name)) as f:
        return disk(place, name, entry["device_bytes"], entry["base_offset"], f.read())


def drbdmeta(path, version, index, *command, real=False):
    program = ([REAL] if real else ["drbdmeta"]) + ["--force", MINOR, version, path, index, *map(str, command)]
    r = subprocess.run(program, executable=REAL if real else C.URBD, capture_output=True, text=True, timeout=60,
                       env={**os.environ, "URBD_RUN_DIR": os.path.join(os.path.dirname(path), "run")})
    left = f"/var/lib/drbd/drbd-minor-{MINOR}.lkbd"
    if os.path.exists(left):
        os.remove(left)
    assert r.returncode == 0, r
    return r.stdout


# ---- what real tools and kernels have written ------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in WHOLE if n.endswith(".bin.xz")])
def test_every_vector_is_found_where_it_is(place, name):
    path = vector(place, name)
    entry = WHOLE[name]
    [found] = read(path)["disks"]
    assert found["place"] == entry["meta_disk"]
    # 51 is of format v08 in the ring of 8.3.
    version = re.search(r"v0[89]", name)
    assert version is None or found["format"] == version[0]
    with open(path, "rb") as f:
        f.seek(found["superblock-at"] + 60)
        assert f.read(4) in (b"\x83\x74\x02\x6b", b"\x83\x74\x02\x6c", b"\x83\x74\x02\x6d")
    assert "urbd: " not in inspect(path).stderr


@pytest.mark.parametrize("name", [n for n in WHOLE if n.endswith("-before.bin.xz") and n[0] in "456"])
def test_what_an_attach_marks_is_what_the_real_apply_al_marks(place, name):
    [before], [after] = [read(vector(place, n))["disks"] for n in (name, name.replace("-before", "-after"))]
    assert not before["activity-log"]["clean"] and after["activity-log"]["clean"]
    marked = [p["marked-kib-attached"] for p in before["peers"]]
    assert marked == [p["marked-kib"] for p in after["peers"]]
    if name.startswith("40"):
        assert marked[0] > before["peers"][0]["marked-kib"] and before["activity-log"]["hot-extents"] > 10


@pytest.mark.parametrize("name", sorted(n for n in os.listdir(VECTORS) if n.endswith(".dump.txt")))
def test_every_dump_says_what_its_disk_says(place, name):
    dump = os.path.join(VECTORS, name)
    [found] = read(dump)["disks"]
    assert found["place"] == "dump" and found["name"] == "vm"
    image = name.replace("-unclean.dump.txt", "-before.bin.xz").replace(".dump.txt", ".bin.xz")
    [of_disk] = read(vector(place, image))["disks"]
    keys = ["format", "node-id", "current", "history", "size-kib", "slots", "bytes-per-bit"]
    assert {k: found[k] for k in keys} == {k: of_disk[k] for k in keys}
    said = [[(p["node-id"], p["slot"], p["bitmap"], p["marked-kib"]) for p in d["peers"]] for d in (found, of_disk)]
    assert said[0] == said[1]
    assert found["activity-log"]["clean"] == of_disk["activity-log"]["clean"]
    if "unclean" in name:
        assert found["activity-log"]["unusable"] and found["notes"]


# What is so at each step of the traces (vectors/metadata/README.md).
STEPS = {
    "90-kernel-9.3.3-trace-superblocks": {
        "b_connected": "no-data", "c_primary": "A>B A>C", "g_written_c_gone": "A>C B>C", "h_sec": "A>C B>C",
        "k_all_sec": "equal", "l_down": "equal"},
    "91-kernel-8.4.11-trace-superblocks": {
        "a_attached": "no-data", "c_primary_syncing": "A>B", "d_synced": "A>B", "g_written_disc": "A>B",
        "k_both_secondary": "equal", "l_b_primary": "B>A", "m_disc_again": "B>A", "n_down": "B>A"},
    "92-kernel-9.3.3-trace-2node-p1-superblocks": {
        "b_connected": "no-data", "c_primary": "A>B", "d_synced": "by-chance", "g_written_c_gone": "A>B", "l_down": "equal"},
}


@pytest.mark.parametrize("trace", STEPS)
def test_what_kernels_left_at_each_step(place, trace):
    nodes = {}
    with tarfile.open(os.path.join(VECTORS, trace + ".tar.xz")) as tar:
        for member in (m for m in tar.getmembers() if m.isfile()):
            step, node, _ = os.path.basename(member.name).split(".")
            nodes.setdefault(step, {})[node] = tar.extractfile(member).read()
    for step, expected in STEPS[trace].items():
        disks = [f"{n}={disk(place, n, 64 * MIB, 64 * MIB - 4096, sb)}" for n, sb in sorted(nodes[step].items())]
        told = read(*disks)
        moves = [p["nodes"] if p["source"] == p["nodes"][0] else p["nodes"][::-1] for p in told["pairs"] if p.get("source")]
        state = " ".join(">".join(move) for move in moves) or told["state"]
        assert state == expected, (step, told)


@pytest.mark.parametrize("version,index,size,create", [
    ("v08", "internal", 64 * MIB, []), ("v08", "flex-external", 4 * MIB, []), ("v08", "1", 400 * MIB, []),
    ("v09", "internal", 200 * MIB + 512, ["7"]), ("v09", "flex-external", 4 * MIB, ["3"]), ("v09", "2", 400 * MIB, ["1"])])
@pytest.mark.parametrize("real", [False, True], ids=["ours", "real"])
def test_what_drbdmeta_writes(place, version, index, size, create, real):
    """The real one where it is installed, which the tests of drbdmeta insist on, too."""
    path = disk(place, "disk", size)
    drbdmeta(path, version, index, "create-md", *create, real=real)
    peer = ["--node-id", "2"] if version == "v09" else []
    if version == "v09":
        drbdmeta(path, version, index, "set-gi", "123456789ABCDEF0:1111111111111110:2222222222222220:0:1:1", *peer, real=real)
    else:
        drbdmeta(path, version, index, "set-gi", "123456789ABCDEF0:1111111111111110:2222222222222220:0:1:1:0:1", real=real)
    [found] = read(path)["disks"]
    assert (found["format"], found["place"]) == (version, index)
    assert found["current"] == "123456789ABCDEF0" and found["history"][0] == "2222222222222220"
    assert {"consistent", "was UpToDate"} <= set(found["flags"]) and found["disk-state"] == "UpToDate"
    assert read("--meta", index, path)["disks"] == [found]
    text = inspect(path).stdout
    assert "123456789ABCDEF0" in text and f"metadata {version}" in text


def test_two_of_one_file_need_a_slot(place):
    path = disk(place, "meta", 400 * MIB)
    for slot in "02":
        drbdmeta(path, "v08", slot, "create-md")
    r = inspect(path, rc=1)
    assert "metadata of several volumes are on it: 0, 2" in r.stderr and "urbd inspect --meta 0 " in r.stderr
    assert read("--meta", "2", path)["disks"][0]["superblock-at"] == 256 * MIB


def test_a_block_device_that_cannot_be_written(place):
    path = disk(place, "disk")
    drbdmeta(path, "v09", "internal", "create-md", "2")
    device = subprocess.run(["losetup", "--find", "--show", "--read-only", path], capture_output=True, text=True, check=True)
    device = device.stdout.strip()
    try:
        [found] = read(device)["disks"]
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
    assert found["length"] == 64 * MIB and found["slots"] == 2 and found["name"] == os.path.basename(device)


# ---- what is no metadata ---------------------------------------------------------------------------


def test_nothing_there_says_what_was_looked_for(place):
    path = disk(place, "empty", 300 * MIB)
    r = inspect(path, rc=255)
    assert "internal, at its end (byte 314568704): no metadata here" in r.stderr and not r.stdout
    assert "external, at its beginning (byte 0)" in r.stderr and "the 2 further slots" in r.stderr
    assert "urbd: hint: is it the backing disk (drbdadm sh-ll-dev RES)" in r.stderr
    r = inspect("--meta", "flexible", path, rc=255)
    assert "external, at its beginning" in r.stderr and "internal" not in r.stderr
    assert "too small for metadata" in inspect(disk(place, "tiny", 1000), rc=255).stderr
    assert "is no place for metadata" in inspect("--meta", "nowhere", path, rc=1).stderr


def test_what_cannot_be_opened(place):
    for path in (os.path.join(place, "none"), place, "/dev/null"):
        r = inspect(path, rc=20)
        assert path in r.stderr and "urbd: hint: name a disk" in r.stderr
    path = disk(place, "disk")
    os.chmod(path, 0o600)
    os.chmod(place, 0o755)
    r = subprocess.run(["setpriv", "--reuid", "65534", "--clear-groups", C.URBD, "inspect", path], capture_output=True, text=True)
    assert r.returncode == 20 and "Permission denied" in r.stderr and f"sudo urbd inspect {path}" in r.stderr, r


def test_who_may_only_read_is_enough(place):
    path = disk(place, "disk")
    drbdmeta(path, "v08", "internal", "create-md")
    os.chmod(path, 0o444)
    os.chmod(place, 0o755)
    r = subprocess.run(["setpriv", "--reuid", "65534", "--clear-groups", C.URBD, "inspect", path], capture_output=True, text=True)
    assert r.returncode == 0 and "just created" in r.stdout, r


def test_one_that_is_damaged_keeps_no_other_one_from_being_told_of(place):
    path = vector(place, "40-al-v08-partial-ring-before.bin.xz")
    r = inspect("--json", os.path.join(place, "none"), path, disk(place, "empty"), rc=255)
    assert [d["path"] for d in json.loads(r.stdout)["disks"]] == [path] and r.stderr.count("urbd: hint") == 2


def test_a_block_with_a_wrong_checksum_is_told_of(place):
    path = vector(place, "40-al-v08-partial-ring-before.bin.xz")
    with open(path, "r+b") as f:
        f.seek(1073704960 + 4096 + 100)
        f.write(b"damage")
    text = inspect(path).stdout
    assert "1 of its blocks have a wrong checksum" in re.sub(r"\s+", " ", text), text


def test_what_was_cut_off(place):
    path = vector(place, "09-v08-internal-15T-sb.bin.xz")
    os.truncate(path, 15 * TIB // 2)
    assert "at its end" in inspect(path, rc=255).stderr
    path = disk(place, "meta", 400 * MIB)
    drbdmeta(path, "v09", "2", "create-md", "1", "--effective-size", str(TIB // 512))
    os.truncate(path, 257 * MIB)
    assert "the file is cut off" in re.sub(r"\s+", " ", inspect(path).stdout)
    with open(os.path.join(VECTORS, "34-v09-restored-1G-p5-9.34.0.dump.txt")) as f:
        text = f.read()
    for length in (100, 1000, 20_000, len(text) - 40):
        cut = os.path.join(place, "cut")
        with open(cut, "w") as f:
            f.write(text[:length])
        r = inspect(cut, rc=10)
        assert "is no whole dump: line" in r.stderr and "make it anew" in r.stderr


def test_two_of_one_node_are_not_compared(place):
    paths = [disk(place, name) for name in ("one", "two")]
    for path in paths:
        drbdmeta(path, "v09", "internal", "create-md", "1")
        with open(path, "r+b") as f:
            f.seek(64 * MIB - 4096 + 92)
            assert struct.unpack(">i", f.read(4)) == (-1,)
            f.seek(-4, 1)
            f.write(struct.pack(">i", 3))
    told = read(*paths)
    assert told["state"] == "unknown" and "both are of node 3" in told["summary"] and told["choices"] == [], told


# ---- the largest -----------------------------------------------------------------------------------


def crc32c(data):
    """As the activity log has it: no start value, nothing inverted."""
    crc = 0
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


TABLE = []
for number in range(256):
    for _ in range(8):
        number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
    TABLE.append(number)


def transaction(number, slots, start, extents):
    """A block of the activity log without updates: extents are in these slots (`docs/spec/on-disk-format.md` 3.2)."""
    context = extents + [0xFFFFFFFF] * (919 - len(extents))
    tail = struct.pack(">HHHH16x", 0, 0, slots, start) + b"\xff" * 384 + struct.pack(">919I", *context)
    block = struct.pack(">III", 0x69CB65A2, number, 0) + tail
    return block[:8] + struct.pack(">I", crc32c(block)) + tail


def largest(place, name, slots, hot, *create):
    """30 TiB of a Primary that crashed with so many hot extents, all over the disk."""
    path = disk(place, name, 30 * TIB)
    drbdmeta(path, "v09", "internal", "create-md", slots, "--initialize-bitmap", "skip", "--effective-size", 60_000_000_000,
             *create)
    drbdmeta(path, "v09", "internal", "set-gi", "123456789ABCDEF0:1111111111111110:::1:1:1:1:0", "--node-id", "1")
    step = 7_000_000 // hot
    with open(path, "r+b") as f:
        f.seek(30 * TIB - 4096 - 32768)
        for number, start in enumerate(range(0, hot, 919)):
            f.write(transaction(number, hot, start, [slot * step for slot in range(start, min(hot, start + 919))]))
    return path


def test_thirty_tebibytes_are_inspected_in_bounded_memory(place):
    path = largest(place, "disk", 31, 6000)
    [found] = read(path)["disks"]
    assert found["size-kib"] == 30_000_000_000 and found["slots"] == 31
    assert found["activity-log"]["hot-extents"] == 6000 and not found["activity-log"]["clean"]
    assert peak(C.URBD, "inspect", path) < MOST


def test_thirty_tebibytes_with_a_full_bitmap_are_inspected_in_bounded_memory(place):
    """A slot that is set all over: 60 MiB with a bit for 64 KiB, which are read."""
    path = largest(place, "disk", 1, 100, "--bitmap-block-size", "65536")
    area = 30_000_000_000 * 1024 // 65536 // 8
    with open(path, "r+b") as f:
        f.seek(30 * TIB - 4096 - 32768 - (30 * TIB // 65536 // 8))
        for _ in range(area // MIB):
            f.write(b"\xff" * MIB)
    [found] = read(path)["disks"]
    assert found["activity-log"]["hot-extents"] == 100
    assert peak(C.URBD, "inspect", path) < MOST


def test_an_activity_log_of_thirty_tebibytes_is_applied_in_bounded_memory(place):
    path = largest(place, "disk", 31, 6000)
    link = os.path.join(place, "drbdmeta")
    os.symlink(C.URBD, link)
    assert peak(link, "--force", "-", "v09", path, "internal", "apply-al") < MOST
    [found] = read(path)["disks"]
    assert found["activity-log"] == {"clean": True, "hot-extents": 0, "damaged-blocks": 0, "unusable": None}


def test_a_hole_in_the_log_of_thirty_tebibytes_marks_everything_in_bounded_memory(place):
    path = largest(place, "disk", 1, 6000, "--bitmap-block-size", "1048576")
    with open(path, "r+b") as f:
        f.seek(30 * TIB - 4096 - 32768 + 3 * 4096)
        f.write(bytes(4096))
    [found] = read(path)["disks"]
    assert "missing in the middle" in found["activity-log"]["unusable"]
    link = os.path.join(place, "drbdmeta")
    os.symlink(C.URBD, link)
    assert peak(link, "--force", "-", "v09", path, "internal", "apply-al") < MOST
