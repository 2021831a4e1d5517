"""urbd top in a terminal, urbd web in a browser, metrics and alert rules for Prometheus: what is shown of real resources."""

import contextlib
import html
import json
import os
import re
import socket
import subprocess
import tempfile
import time
import urllib.request

import pytest

import cluster as C
import sentences
from cluster import Cluster, URBD, eventually
from test_two_nodes import Load

DIST = os.path.join(C.TESTS, "..", "dist")


@pytest.fixture(scope="module")
def pair():
    """Two resources: r0 is Primary and has its peer; the peer of `alone` does not run."""
    with Cluster() as c:
        a, b = c.node("a"), c.node("b")
        c.configure(net="verify-alg sha1;")
        alone = C.config_text(c.nodes, name="alone", port=7799, minor=9)
        for n in (a, b):
            disk = os.path.join(n.dir, "alone.img")
            with open(disk, "wb") as f:
                f.truncate(8 << 20)
            alone = alone.replace(f"disk {n.disk_path()};", f"disk {disk};")
        for n in (a, b):
            n.put_res("alone", alone)
            n.create_md()
            n.urbd("up", "r0")
        a.create_md("alone")
        a.urbd("up", "alone")
        a.wait(conn="Connected")
        a.urbd("new-current-uuid", "--clear-bitmap", "r0/0")
        a.wait(disk="UpToDate", peer_disk="UpToDate")
        a.urbd("primary", "r0")
        yield a, b


# ---- top -------------------------------------------------------------------------------


@contextlib.contextmanager
def terminal(node, command, columns=80, lines=24, **env):
    """A tmux server of its own with that command; gives a function that runs tmux commands."""
    # One that is just ending takes its socket away.
    socket_path = tempfile.mktemp(prefix="tmux-", dir=node.dir)

    def tmux(*args):
        return subprocess.run(["tmux", "-S", socket_path, "-f", "/dev/null", *args], env=node.env(TERM="screen-256color", **env),
                              stdout=subprocess.PIPE, text=True, timeout=20, check=True).stdout

    tmux("new-session", "-d", "-x", str(columns), "-y", str(lines), f"{command}; echo ended with $?; exec sleep 60")
    try:
        yield tmux
    finally:
        subprocess.run(["tmux", "-S", socket_path, "kill-server"], stderr=subprocess.DEVNULL, timeout=20)


def shows(tmux, *words):
    """Waits until all words are on the screen; the lines."""
    def there():
        screen = tmux("capture-pane", "-p")
        return screen.split("\n") if all(w in screen for w in words) else None
    return eventually(f"the screen shows {words}", there, 20)


def test_top(pair):
    a, _ = pair
    load = Load(a, sectors=2048)
    with terminal(a, f"{URBD} top") as tmux:
        shows(tmux, "2 resources", ">!alone", "b is not reached", "urbd adjust alone")
        tmux("send-keys", "Down")
        shows(tmux, "> r0", "r0: nothing is the matter.")
        tmux("send-keys", "Enter")
        lines = shows(tmux, "write total", "write peer", "Established", "UpToDate")
        assert re.search(r"write total +\d+ +\d+.*s", "\n".join(lines)), lines
        tmux("resize-window", "-x", "40", "-y", "10")
        lines = shows(tmux, "r0", "volume 0")
        assert all(len(line) <= 40 for line in lines)
        tmux("resize-window", "-x", "80", "-y", "24")
        tmux("send-keys", "Escape")
        shows(tmux, "Enter detail")
        tmux("send-keys", "s")
        shows(tmux, "sorted by name")
        tmux("send-keys", "?")
        shows(tmux, "Nothing here changes anything.")
        tmux("send-keys", "q")
        shows(tmux, "ended with 0")
    load.interrupt()


def test_top_without_colours_or_terminal(pair):
    a, _ = pair
    colour = re.compile(r"\x1b\[(\d+;)*3([1-7]|8;5;\d+)[;m]")
    for env, colored in (({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)):
        with terminal(a, f"{URBD} top", **env) as tmux:
            shows(tmux, ">!alone")
            assert bool(colour.search(tmux("capture-pane", "-p", "-e"))) == colored, env
            tmux("send-keys", "C-c")
            shows(tmux, "ended with 0")
    r = a.urbd("top")
    assert "\x1b" not in r.out and all(len(line) <= 80 for line in r.out.split("\n"))
    assert re.search(r"^  r0 +Pri +UpToDate +1/1 ", r.out, re.M) and "b is not reached" in r.out, r.out
    assert a.urbd("top", "r0").out.count("\n") == 2
    assert a.call("top", "nonsense").rc == 1


def test_top_of_who_may_not_look(pair):
    """Somebody who sees the sockets and may not connect is told so; a picture without states is no success."""
    a, _ = pair
    places = [os.path.dirname(a.dir), a.dir, a.run_dir]
    modes = [os.stat(place).st_mode & 0o777 for place in places]
    try:
        for place, mode in zip(places, modes, strict=True):
            os.chmod(place, mode | 0o055)
        r = subprocess.run([URBD, "top", "--once"], env=a.env(), capture_output=True, text=True, timeout=20, user=65534, group=65534)
    finally:
        for place, mode in zip(places, modes, strict=True):
            os.chmod(place, mode)
    assert r.returncode == 20 and "alone, r0: permission denied: only root may look at it" in r.stderr, r
    assert "hint: do it as root" in r.stderr and re.search(r"^ !r0 +.*permission denied", r.stdout, re.M), r


# ---- web -------------------------------------------------------------------------------


@contextlib.contextmanager
def page(node):
    """`urbd web` of a node; gives its address, which a browser of this machine reaches."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    # Not in the node's network: the browser is not there. Its sockets are files.
    p = subprocess.Popen([URBD, "web", "--listen", str(port)], env=node.env(), stdout=subprocess.PIPE, text=True,
                         preexec_fn=C.end_with_us)
    try:
        address = p.stdout.readline().strip()
        assert address == f"http://127.0.0.1:{port}/"
        yield address
    finally:
        p.kill()
        p.wait(20)


def test_web_in_a_browser(pair, tmp_path):
    """What a browser makes of the page: both resources, states, sentences, plots; nothing is fetched from elsewhere."""
    a, _ = pair
    with page(a) as address:
        time.sleep(1)
        dom = dom_of(address, tmp_path)
        assert 'id="summary" role="status" class="bad">2 resources, 1 with something the matter.' in dom, dom[:3000]
        cards = dict(re.findall(r'<article class="([a-z ]+)" data-resource="([a-z0-9]+)"', dom))
        assert cards == {"error": "alone", "well open": "r0"}, cards
        assert "<b>a</b> Primary" in dom and "<b>b</b> Secondary" in dom and "Established" in dom
        assert "b is not reached" in dom and "urbd adjust alone" in dom
        assert dom.count("<svg") == 3 and "<polyline" in dom and "Latency by stage" in dom
        assert "not answer" not in dom
        with urllib.request.urlopen(address + "metrics", timeout=20) as f:
            samples = [line for line in f.read().decode().split("\n") if line.startswith("urbd_resource_primary{")]
        assert samples == ['urbd_resource_primary{resource="alone"} 0', 'urbd_resource_primary{resource="r0"} 1']


def dom_of(address, tmp_path):
    """What a browser makes of the page with the plots of the resource r0."""
    r = subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                        f"--user-data-dir={tmp_path}", "--virtual-time-budget=3000", "--window-size=400,900",
                        "--dump-dom", address + "#r0"],
                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=100)
    return html.unescape(r.stdout)


def said(node):
    """What `status` says, in one line."""
    return " ".join(node.urbd("status", "r0").out.split())


def test_the_page_says_that_one_good_copy_is_left(tmp_path):
    with Cluster() as cluster:
        nodes = [cluster.node(name, size=64 << 20) for name in "ab"]
        text = C.config_text(nodes)
        assert "resync-rate 200M;" in text
        for n in nodes:
            n.put_res("r0", text.replace("resync-rate 200M;", "resync-rate 250K;"))
            n.create_md()
            n.urbd("up", "r0")
        nodes[0].wait(conn="Connected")
        nodes[0].urbd("primary", "--force", "r0")
        eventually("it is copied", lambda: "One good copy of the data is left, on this node." in said(nodes[0]), 30)
        assert "One good copy of the data is left, on a." in said(nodes[1])
        with page(nodes[0]) as address:
            dom = dom_of(address, tmp_path)
        assert 'role="status" class="">1 resource, 1 with one good copy left.' in dom, dom[:3000]


def three_with_two_volumes(c):
    """a is Primary, and copies both volumes slowly to b; c is cut off."""
    nodes = [c.node(name, volumes=2) for name in "abc"]
    hosts = ""
    for i, n in enumerate(nodes):
        volumes = " ".join(f"volume {v} {{ device minor {v}; disk {n.disk_path(v)}; meta-disk internal; }}" for v in (0, 1))
        hosts += f"  on {n.name} {{ node-id {i}; address {n.ip}:{C.PORT}; {volumes} }}\n"
    for n in nodes:
        n.put_res("r0", f"resource r0 {{\n  net {{ {C.FAST_NET} }}\n  disk {{ c-plan-ahead 0; resync-rate 500K; }}\n{hosts}"
                  "  connection-mesh { hosts a b c; }\n}\n")
        n.create_md()
        n.urbd("up", "r0")
    for n in nodes:
        eventually("all are connected", lambda: n.urbd("cstate", "r0").out == "Connected\n" * 2, 30)
    nodes[0].urbd("primary", "--force", "r0")
    nodes[2].cut()
    eventually("one is missed", lambda: "Connecting" in nodes[0].urbd("cstate", "r0").out, 30)
    return nodes


def test_three_nodes_with_two_volumes(tmp_path):
    """Every view names both peers and both volumes: ours, and DRBD's own monitor, which follows `drbdsetup events2`."""
    with Cluster() as cluster:
        a, _, _ = three_with_two_volumes(cluster)
        with terminal(a, f"{URBD} top") as tmux:
            lines = shows(tmux, "1 resource ", ">?r0", "1/2", "c is not")
            assert all(len(line) <= 80 for line in lines)
            tmux("send-keys", "Enter")
            lines = "\n".join(shows(tmux, "peer b", "peer c", "no requests"))
            assert len(re.findall(r"^    volume [01] +SyncSource +Inconsistent", lines, re.M)) == 2, lines
        with page(a) as address:
            time.sleep(1)
            dom = dom_of(address, tmp_path)
        assert 'class="bad">1 resource, 1 with something the matter.' in dom, dom[:3000]
        assert dom.count("<b>a</b> Primary") == 1 and "<b>b</b> Secondary" in dom and "<b>c</b> not connected" in dom
        assert re.findall(r'<label class="bar">([^<]*)<progress', dom) == ["b, volume 0", "b, volume 1"], dom
        assert dom.count("wait-sync") == 1, "several are waited for by one command"
        text = a.urbd("metrics").out
        r = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=20)
        assert r.returncode == 0 and not r.stdout + r.stderr, r
        for sample in ('urbd_peer_device_replication_state{resource="r0",peer="b",volume="1",state="SyncSource"} 1',
                       'urbd_connection_connected{resource="r0",peer="c"} 0'):
            assert sample in text, sample
        tools = os.path.join(a.dir, "tools")
        os.mkdir(tools)
        for name in ("drbdadm", "drbdsetup"):
            os.symlink(URBD, os.path.join(tools, name))
        with terminal(a, f"env PATH={tools}:$PATH drbdmon", columns=100, lines=30) as tmux:
            # All of it on one screen: it is drawn in steps.
            lines = "\n".join(shows(tmux, "RES: r0", "Primary", "SyncSource", "1 (1 degraded)"))
            assert re.search(r" b +Connected +Secondary", lines) and re.search(r" c +Connecting +Unknown", lines), lines


def test_what_does_not_run_is_on_the_page_and_in_its_metrics(pair, tmp_path):
    a, _ = pair
    a.urbd("down", "alone")
    try:
        with page(a) as address:
            dom = dom_of(address, tmp_path)
            assert "alone: not running: it was not started, or it was stopped. Next: urbd up alone" in dom, dom[:3000]
            assert '<article class="error" data-resource="alone">' in dom, dom[:3000]
            with urllib.request.urlopen(address + "metrics", timeout=20) as answer:
                metrics = answer.read().decode()
            assert 'urbd_resource_running{resource="alone"} 0' in metrics, metrics[:500]
            assert 'urbd_resource_running{resource="r0"} 1' in metrics, metrics[:500]
            sentences.typed(a, re.search(r"alone: not running.*?Next: (urbd [a-z-]+ alone)", dom)[1])
            dom = dom_of(address, tmp_path)
            assert "not running" not in dom and 'data-resource="alone"' in dom, dom[:3000]
    finally:
        a.call("up", "alone")


def test_web_is_for_this_machine_only(pair):
    a, _ = pair
    for address in ("0.0.0.0:7780", "[::]:7780", f"{a.ip}:7780", "192.168.7.1"):
        r = a.call("web", "--listen", address)
        assert r.rc == 1 and "is not a loopback address" in r.err and "ssh -L" in r.err, r
    with page(a) as address:
        port = address.rstrip("/").rsplit(":", 1)[1]
        r = subprocess.run([URBD, "web", "--listen", port], env=a.env(), capture_output=True, text=True, timeout=20)
        assert r.returncode == 20 and "another port" in r.stderr, r


# ---- Prometheus -----------------------------------------------------------------------


def test_metrics_are_clean(pair):
    a, _ = pair
    for args in ([], ["--fine"], ["r0"]):
        text = a.urbd("metrics", *args).out
        r = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=20)
        assert r.returncode == 0 and not r.stdout + r.stderr, r
    text = a.urbd("metrics").out
    for sample in ('urbd_peer_device_replication_state{resource="r0",peer="b",volume="0",state="Established"} 1',
                   'urbd_device_open{resource="r0",volume="0"} 0', 'urbd_connection_connected{resource="alone",peer="b"} 0',
                   'urbd_matter{resource="alone",object="alone:b",code="refused",weight="warning"} 1'):
        assert sample in text, sample


def names_in(text):
    return set(re.findall(r"\burbd_[a-z_]+\b", text))


def test_alert_rules():
    """promtool runs the rules against series that begin well and go wrong."""
    folder = os.path.join(DIST, "prometheus")
    for args in (["check", "rules", "urbd.rules.yml"], ["test", "rules", "urbd.rules.test.yml"]):
        r = subprocess.run(["promtool", *args], cwd=folder, capture_output=True, text=True, timeout=60)
        assert r.returncode == 0 and "SUCCESS" in r.stdout, r


def test_rules_and_board_use_metrics_that_exist(pair):
    a, _ = pair
    exist = {line.split()[2] for line in a.urbd("metrics").out.split("\n") if line.startswith("# TYPE")}
    exist |= {"urbd_request_duration_seconds" + end for end in ("_bucket", "_sum", "_count")}
    with open(os.path.join(DIST, "prometheus", "urbd.rules.yml")) as f:
        rules = names_in(f.read())
    with open(os.path.join(DIST, "grafana", "urbd.json")) as f:
        board = json.load(f)
    shown = set()
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            shown |= names_in(target["expr"])
    assert rules and shown and not (rules | shown) - exist, (rules | shown) - exist


# ---- progress --------------------------------------------------------------------------


def test_verify_waits_and_counts(pair):
    a, b = pair
    a.write(65536, b"\x17" * 8192)
    a.flush()
    assert a.urbd("verify", "--wait", "r0").out == "r0:b/0: 0 KiB differ\n"
    with open(b.disk_file(), "r+b") as f:
        f.seek(65536)
        f.write(b"\x18" * 8192)
    found = a.call("verify", "--wait", "r0")
    assert (found.rc, found.out) == (4, "r0:b/0: 8 KiB differ\n"), found
    said = " ".join(a.urbd("status", "r0").out.split())
    assert "8 KiB differ between this node and b. Next: urbd disconnect r0:b; urbd connect r0:b" in said, said
    a.urbd("disconnect", "r0:b")
    a.urbd("connect", "r0:b")
    a.urbd("wait-sync", "r0")
    eventually("copied", lambda: "differ" not in a.urbd("status", "r0").out, 20)


def test_resync_says_what_slows_it(pair):
    a, b = pair
    b.urbd("disk-options", "--resync-rate=300K", "r0/0")
    b.urbd("invalidate", "r0/0")
    for n, word in ((b, "from a"), (a, "to b")):
        seen = []

        def said():
            seen.append(" ".join(n.urbd("status", "r0").out.split()))
            return re.search(rf"copied {word}: .* % done, [^!]* left, [^!]*", seen[-1])
        try:
            found = eventually("it is said", said, 20)
        except C.TookTooLong:
            raise AssertionError(seen[-1]) from None
        assert n is a or "limited by the configured rate" in found[0], found
    metrics = b.urbd("metrics", "r0").out
    for name in ("done_ratio", "bytes_per_second", "eta_seconds"):
        assert re.search(rf'^urbd_peer_device_sync_{name}{{resource="r0",peer="a",volume="0"}} [0-9.]+$', metrics, re.M), metrics
    b.urbd("disk-options", "--resync-rate=200M", "r0/0")
    b.urbd("wait-sync", "r0")
