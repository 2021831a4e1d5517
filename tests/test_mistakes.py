"""Ten likely mistakes: each is answered with what is the matter, what to do next, and a documented exit status."""

import os
import shutil
import socket
import subprocess

import pytest

import fake_peer as F
import sentences
from cluster import Cluster, MIB, PORT, URBD, eventually
from fake_peer import FakePeer, in_network

SECRET = 'cram-hmac-alg sha256; shared-secret "right";'
NOBODY = 65534


@pytest.fixture(scope="module")
def pair():
    with Cluster() as c:
        a, b = c.node("a"), c.node("b")
        c.configure(net=SECRET)
        for n in (a, b):
            n.create_md()
        yield a, b, c


@pytest.fixture(autouse=True)
def stopped(pair):
    yield
    a, b, c = pair
    for n in (a, b):
        n.call("down", "--force", "r0")
    c.configure(net=SECRET)


def says(node, *words, verb="why", timeout=40):
    """Waits until `status` or `why` has a line with all words; the verb's whole output."""
    def there():
        out = " ".join(node.urbd(verb, "r0").out.split())
        return out if all(w in out for w in words) else None
    return eventually(f"{node.name}: {verb} says {words}", there, timeout)


def test_peer_not_up(pair):
    a, _, _ = pair
    a.urbd("up", "r0")
    said = says(a, "b is not reached: its machine refuses connections", "on b, which starts or connects it: urbd adjust r0", verb="status")
    assert f"{pair[1].ip}:{PORT}" in said
    assert says(a, "b is not reached", "next: on b, which starts or connects it: urbd adjust r0")
    # What programs read is as it was: no sentence in it.
    link = os.path.join(a.dir, "drbdadm")
    os.path.lexists(link) or os.symlink(URBD, link)
    for argv in ([link, "status", "r0"], [URBD, "events2", "--now", "r0"]):
        r = a.run(argv, env=a.env(), capture_output=True, text=True)
        assert r.returncode == 0 and "not reached" not in r.stdout and "Next" not in r.stdout, r.stdout
    drbds = os.path.join(a.dir, "drbdsetup")
    os.path.lexists(drbds) or os.symlink(URBD, drbds)
    r = a.run([drbds, "status", "--json", "r0"], env=a.env(), capture_output=True, text=True)
    assert r.returncode == 0 and "next" not in r.stdout, r.stdout
    # By its own name it is for programs that want the sentences.
    [matter] = [m for m in a.status()["urbd-matters"] if m["object"] == "r0:b"]
    assert matter["text"].startswith("b is not reached") and matter["next"].startswith("on b, which starts or connects it: urbd adjust r0"), matter
    assert matter["weight"] == "warning" and matter["code"] == "refused", matter


def test_wrong_address_of_the_peer(pair):
    """The peer is not where it is said to be: it comes from elsewhere, and is not let in."""
    a, b, c = pair
    a.put_res("r0", c.configure(net=SECRET).replace(f"{b.ip}:{PORT}", f"{b.ip[:-3]}250:{PORT}"))
    for n in (a, b):
        n.urbd("up", "r0")
    says(a, f"Somebody connects from {b.ip}, and is not let in", "correct its address here", verb="status")
    says(b, f"who answers at {a.ip}:{PORT} ends each connection at once", f"must be {b.ip}", verb="status")


def test_network_cut(pair):
    a, b, _ = pair
    b.urbd("up", "r0")
    b.cut()
    try:
        a.urbd("up", "r0")
        # The machine's neighbour is not found, or nothing answers: both say where to look.
        said = ("nothing answers at", "nobody has the address")
        eventually("it is said", lambda: any(w in a.urbd("why", "r0").out for w in said), 40)
    finally:
        b.heal()
    a.wait(conn="Connected", timeout=40)
    assert "not reached" not in a.urbd("status", "r0").out


def test_wrong_secret(pair):
    a, b, c = pair
    b.put_res("r0", c.configure(net=SECRET).replace('"right"', '"wrong"'))
    for n in (a, b):
        n.urbd("up", "r0")
    for n in (a, b):
        said = says(n, "the shared secrets differ", "make cram-hmac-alg and shared-secret equal on both")
        looks = (["status"], ["status", "--json"], ["metrics"], ["events2", "--now"], ["top"])
        everything = said + n.log() + "".join(n.urbd(*args).out for args in looks)
        for pid in n.pids():
            with open(f"/proc/{pid}/cmdline") as cmdline, open(f"/proc/{pid}/environ") as environ:
                everything += cmdline.read() + environ.read()
        assert '"right"' not in everything and '"wrong"' not in everything, "a secret is shown"


def test_port_taken(pair):
    a, _, _ = pair

    def listen():
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((a.ip, PORT))
        s.listen()
        return s

    with in_network(a, listen):
        r = a.call("up", "r0")
        assert r.rc == 1 and f"port {PORT} of {a.ip} is in use by another program" in r.err and "ss -ltnp" in r.err, r
        assert a.call("status", "r0").rc == 10, "nothing was started"
    a.urbd("up", "r0")


def test_wrong_host_name(pair):
    a, _, _ = pair
    for verb in ("up", "adjust", "create-md"):
        r = a.call("--node", "nemo", verb, "r0")
        assert r.rc == 1 and "not for this host (`nemo`)" in r.err and "its hosts are: a, b" in r.err, r
        assert "--node" in r.err, "what to do"


def test_disk_in_use(pair):
    a, _, _ = pair
    a.urbd("up", "r0")
    r = a.call("create-md", "--force", "r0")
    assert r.rc == 20 and "in use" in r.err and "urbd down r0" in r.err, r
    a.urbd("down", "r0")
    holder = subprocess.Popen(["losetup", "--show", "-f", a.disk_file()], stdout=subprocess.PIPE, text=True)
    loop = holder.communicate(timeout=20)[0].strip()
    try:
        a.put_res("r0", pair[2].configure(net=SECRET).replace(a.disk_path(), loop))
        place = os.path.join(a.dir, "mnt")
        os.makedirs(place, exist_ok=True)
        disk_image(a.disk_file())
        a.run(["mount", loop, place], check=True, timeout=20)
        try:
            r = a.call("create-md", "--force", "r0")
            assert r.rc == 20 and f"in use by the file system mounted on {place}" in r.err and "unmount" in r.err, r
        finally:
            a.run(["umount", place], check=True, timeout=20)
    finally:
        subprocess.run(["losetup", "-d", loop], check=True, timeout=20)
        with open(a.disk_file(), "r+b") as f:
            f.write(bytes(1 << 20))
    pair[2].configure(net=SECRET)
    a.create_md()


def disk_image(path):
    subprocess.run(["mkfs.ext4", "-q", "-F", path], check=True, timeout=30)


def test_metadata_missing(pair):
    a, _, _ = pair
    a.urbd("wipe-md", "--force", "r0")
    r = a.call("up", "r0")
    assert r.rc == 1 and "No valid meta data found" in r.err and "urbd create-md r0/0" in r.err, r
    a.create_md()


def test_nobody_is_primary(pair):
    a, b, _ = pair
    for n in (a, b):
        n.urbd("up", "r0")
    a.wait(conn="Connected")
    assert a.run(["mount", "/dev/urbd/by-res/r0/0", "/mnt"], capture_output=True).returncode != 0
    says(a, "No node in reach has good data", "urbd primary --force r0", verb="status")
    # As long as there is no good data that would be refused.
    assert "urbd primary r0" not in says(a, "the device cannot be opened or mounted")
    b.urbd("primary", "--force", "r0")
    says(a, "This node is Secondary: the device can be used on b only", "on b, urbd secondary r0; here, urbd primary r0")
    a.wait(disk="UpToDate")
    assert "!" not in a.urbd("status", "r0").out, "nothing is wrong with a Secondary"


def test_split_brain(pair):
    a, b, _ = pair
    for n in (a, b):
        n.create_md()
        n.urbd("up", "r0")
    a.wait(conn="Connected")
    a.urbd("new-current-uuid", "--clear-bitmap", "r0/0")
    a.wait(disk="UpToDate", peer_disk="UpToDate")
    for n in (a, b):
        n.urbd("disconnect", "r0")
    for n, kib in ((a, 64), (b, 12)):
        n.urbd("primary", "--force", "r0")
        n.write(0, os.urandom(kib << 10))
        n.urbd("secondary", "r0")
    for n in (a, b):
        n.urbd("connect", "r0")
    says(a, "Split brain: since the nodes parted, this node has changed 64 KiB of its data, the peer 12 KiB.")
    said = says(b, "this node has changed 12 KiB of its data, the peer 64 KiB.", verb="status")
    for way in ("This node's: urbd secondary r0; urbd connect --discard-my-data r0:a; on a: urbd connect r0.",
                "Those of a: on a, urbd secondary r0; urbd connect --discard-my-data r0; here: urbd connect r0:a.", "None: copy the data"):
        assert way in said, said
    # The first of the three ways, as it is written there.
    b.urbd("secondary", "r0")
    b.urbd("connect", "--discard-my-data", "r0:a")
    a.urbd("connect", "r0")
    a.wait(conn="Connected", disk="UpToDate", peer_disk="UpToDate")
    assert "Split brain" not in a.urbd("why", "r0").out.split("Decisions")[0]


def test_version_too_old(pair):
    a, b, c = pair
    c.configure()
    a.urbd("up", "r0")
    peer = FakePeer(b, a).connect()
    try:
        peer.data.sendall(F.features(low=70, high=80))
        says(a, "b speaks no protocol version that this node speaks", "70 to 80", "upgrade the older", verb="status")
    finally:
        peer.close()


def as_user(node, *args, group=NOBODY):
    """Runs urbd as nobody: exit status and output. A copy of it, as nobody may not see where it lies."""
    copy = os.path.join(node.cluster.dir, "urbd")
    if not os.path.exists(copy):
        shutil.copy(URBD, copy)
    r = subprocess.run([copy, *args], env=node.env(), user=NOBODY, group=group, extra_groups=[], stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)
    return r.returncode, r.stdout


def test_no_rights(pair):
    """Who is not root is told so, does nothing, and never gets status 0. Members of the status-group may look."""
    a, _, c = pair
    text = c.configure(net=SECRET, extra="urbd { status-group daemon; }")
    for place in (c.dir, a.dir, a.run_dir):
        os.chmod(place, 0o755)
    os.chmod(a.conf, 0o644)
    a.urbd("up", "r0")
    for args in (["status"], ["status", "r0"], ["why", "r0"], ["events2", "--now"], ["metrics"], ["primary", "r0"],
                 ["down", "r0"], ["disconnect", "r0"]):
        rc, out = as_user(a, *args)
        assert rc == 20 and "r0: permission denied: only root may look at it" in out and "sudo" in out, (args, rc, out)
    os.chmod(a.run_dir, 0o700)
    rc, out = as_user(a, "status")
    assert rc == 20 and "this machine's resources" in out and "permission denied" in out, (rc, out)
    os.chmod(a.run_dir, 0o755)
    daemon = 1
    rc, out = as_user(a, "status", "r0", group=daemon)
    assert rc == 0 and out.startswith("r0 role:Secondary") and "Next:" in out, (rc, out)
    for args in (["primary", "--force", "r0"], ["disconnect", "r0"], ["show", "r0"], ["down", "r0"]):
        rc, out = as_user(a, *args, group=daemon)
        assert rc == 10 and "not permitted" in out and "sudo" in out, (args, rc, out)
    assert a.state()["conn"] != "StandAlone" and '"right"' in text


def test_large_packets_get_lost_on_the_way(pair):
    """The nodes connect, and each time data is to flow the link dies: that is said, and not only that data is copied."""
    a, b, c = pair
    for n in (a, b):
        n.create_md()
    with open(a.disk_file(), "r+b") as f:
        f.write(os.urandom(MIB))
    a.lose_large_packets(b)
    try:
        for n in (a, b):
            n.start("r0")
        a.urbd("primary", "--force", "r0")
        said = says(a, "The connection to b comes and goes: it was lost", "each time while data was on its way", timeout=120)
        assert f"ping -c 3 -M do -s 1472 {b.ip}" in said, said
        says(b, "The connection to a comes and goes: it was lost", "each time while data was on its way")
        shown = " ".join(a.urbd("status", "r0").out.split())
        assert "r0:b: The connection to b comes and goes: it was lost" in shown, shown
        assert "comes and goes" in a.urbd("top", "--once").out
        assert any(m["code"] == "link-unsteady" and m["weight"] == "warning" for m in a.status()["urbd-matters"])
        before = sentences.matter(a, "link-unsteady")
    finally:
        a.take_large_packets()
    a.wait(conn="Connected", peer_disk="UpToDate", timeout=60)
    for node, command in sentences.commands(before["next"], a, (a, b)):
        sentences.typed(node, command)
    eventually("it holds", lambda: sentences.better(a, before), 60)


def test_a_peer_that_dies_again_and_again(pair):
    """Each time one looks it is connected, as something starts it anew."""
    a, b, _ = pair
    a.urbd("up", "r0")
    for _ in range(3):
        b.start()
        a.wait(conn="Connected")
        b.kill()
        a.wait(conn="Connecting")
    b.start()
    a.wait(conn="Connected")
    said = says(a, "The connection to b comes and goes: it was lost 3 times in the last", "on b: urbd why r0", verb="status")
    assert "the peer closed the connection" in said, said
    # Whoever connects anew by command begins anew.
    a.urbd("disconnect", "r0")
    a.urbd("connect", "r0")
    a.wait(conn="Connected")
    assert "comes and goes" not in a.urbd("why", "r0").out
