"""The Debian packages: installed, started, upgraded under load, removed, in a container with a systemd of its own.

By default on this machine's own system. `URBD_PACKAGE_SYSTEMS` names directories with others, separated by colons:
mmdebstrap --variant=minbase --include=systemd,systemd-sysv,udev,dbus,iproute2,procps,e2fsprogs trixie DIR"""

import contextlib
import os
import subprocess

import pytest

import cluster as C
import container
import scratch

BUILD = os.path.join(container.DIST, "deb", "build")
SYSTEMS = os.environ.get("URBD_PACKAGE_SYSTEMS", "/").split(":")
CONFIG = """resource r0 {
  device minor 7; disk /srv/disk; meta-disk internal;
  on alpha { address 127.0.0.1:7789; }
  on bravo { address 127.0.0.2:7789; }
}
"""
# Each line is on the disk before the next; the number of the last one is what was acknowledged.
WRITER = "n=0; while [ ! -e /data/stop ]; do n=$((n+1)); echo $n >>/data/lines; sync /data/lines || exit 1; echo $n >/run/written.new; mv /run/written.new /run/written; done"


@pytest.fixture(scope="module")
def packages():
    """Two versions."""
    with scratch.lasting("urbd-packages-", C.scratch_dir()) as place:
        quick = {**os.environ, "DPKG_DEB_COMPRESSOR_LEVEL": "0"}
        subprocess.run([BUILD, "--binaries", os.path.dirname(C.URBD), "--output", place, "--version", "0.1.0-1"], check=True,
                       stdout=subprocess.DEVNULL, env=quick)
        for name in ("urbd", "urbd-lab"):
            again = f"cd {place} && dpkg-deb -R {name}_0.1.0-1_amd64.deb x && sed -i s/0.1.0-1/0.1.0-2/ x/DEBIAN/control && " \
                    f"dpkg-deb -b x {name}_0.1.0-2_amd64.deb >/dev/null && rm -r x"
            subprocess.run(["sh", "-c", again], check=True, env=quick)
        yield str(place)


def test_lintian_finds_no_error(packages):
    debs = [os.path.join(packages, name) for name in os.listdir(packages) if "0.1.0-1" in name]
    r = subprocess.run(["lintian", "--fail-on", "error", "--allow-root", *debs], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr


@pytest.fixture(params=SYSTEMS)
def host(request, packages):
    with booted(request.param, packages) as m:
        yield m


@contextlib.contextmanager
def booted(system, packages):
    with scratch.lasting("urbd-machines-", C.scratch_dir()) as place:
        m = container.Machine(os.path.join(place, "alpha"), "alpha", below=system, installed=False)
        m.write("/etc/drbd.conf", CONFIG)
        os.makedirs(m.path("/srv"), exist_ok=True)
        with open(m.path("/srv/disk"), "wb") as f:
            f.truncate(48 << 20)
        for name in os.listdir(packages):
            with open(os.path.join(packages, name), "rb") as deb, open(m.path(f"/srv/{name}"), "wb") as copy:
                copy.write(deb.read())
        try:
            m.boot()
            yield m
        finally:
            m.remove()


def deb(name, version):
    return f"/srv/{name}_0.1.0-{version}_{'all' if 'utils' in name else 'amd64'}.deb"


def pid(m):
    return m.run("systemctl", "show", "-P", "MainPID", "urbd@r0").strip()


def test_a_life_of_the_package(host):
    m = host
    m.run("dpkg", "-i", deb("urbd", 1))
    assert m.run("man", "-w", "urbd-up").strip() if m.call("man", "-w", "man").returncode == 0 else True
    r = m.call("urbd", "bench", "bars", "--list")
    assert r.returncode == 20 and "install the package urbd-lab" in r.stderr
    assert "r0" in m.run("urbd", "top", "--once") and m.run("urbd", "web", "-d") == "http://127.0.0.1:7780/\n"
    # What the pages name is there: the agent, its fencing handler, alerts and board.
    for path in ("lib/ocf/resource.d/urbd/drbd", "lib/urbd/crm-fence-peer", "lib/urbd/crm-unfence-peer"):
        m.run("test", "-x", f"/usr/{path}")
    for path in ("examples/prometheus/urbd.rules.yml", "examples/grafana/urbd.json", "guide/three-nodes.md", "security.md"):
        m.run("test", "-s", f"/usr/share/doc/urbd/{path}")
    m.run("dpkg", "-i", deb("urbd-lab", 1))
    assert "nbd" in m.run("urbd", "bench", "bars", "--list")
    m.run("urbd", "create-md", "r0")
    m.run("systemctl", "enable", "--now", "urbd@r0")
    m.run("urbd", "primary", "--force", "r0")
    device = m.run("urbd", "sh-dev", "r0").strip()
    m.run("mkfs.ext4", "-q", device)
    m.run("mkdir", "-p", "/data")
    m.run("mount", device, "/data")

    # In use and written to: upgraded, and not a line is missing. A new process serves the device.
    before = pid(m)
    m.run("systemd-run", "--quiet", "--unit=writer", "sh", "-c", WRITER)
    C.eventually("the writer writes", lambda: m.call("test", "-s", "/run/written").returncode == 0)
    m.run("dpkg", "-i", deb("urbd", 2), deb("urbd-lab", 2), timeout=120)
    after = pid(m)
    assert before != after and after != "0"
    assert "(deleted)" not in m.run("readlink", f"/proc/{after}/exe")
    upto = int(m.run("cat", "/run/written"))
    C.eventually("the writer writes on", lambda: int(m.run("cat", "/run/written")) > upto + 10)
    m.run("touch", "/data/stop")
    C.eventually("the writer has ended", lambda: m.call("systemctl", "is-active", "writer").stdout.strip() == "inactive")
    written = int(m.run("cat", "/run/written"))
    assert m.run("cat", "/data/lines").split() == [str(n) for n in range(1, written + 1)]

    # It is not removed while in use, and then still works.
    r = m.call("dpkg", "-r", "urbd-lab", "urbd")
    assert r.returncode != 0 and "r0 is not stopped, so the package is not removed" in r.stderr, r
    m.run("touch", "/data/still-there")
    m.run("dpkg", "-i", deb("urbd", 2))
    m.run("umount", "/data")
    m.run("dpkg", "-r", "urbd")
    assert m.call("pgrep", "-x", "urbd").stdout == "" and set(m.run("ls", "/run/urbd").split()) <= {"r0.pid"}
    m.run("dpkg", "-P", "urbd")
    assert m.call("test", "-e", "/usr/sbin/urbd").returncode and m.call("test", "-e", "/etc/drbd.conf").returncode == 0


def test_the_names_of_the_real_tools(host):
    m = host
    m.call("dpkg", "--force-all", "-r", "drbd-utils")
    m.run("dpkg", "-i", "--force-confold", deb("urbd", 1), deb("urbd-drbd-utils", 1))
    assert "DRBDADM_VERSION_CODE=" in m.run("drbdadm", "--version")
    assert m.run("drbdadm", "sh-resources").strip() == "r0", "the configuration that was there stays"
    assert m.run("drbdsetup", "status") == "# No currently configured DRBD found.\n" or m.call("drbdsetup", "status").returncode == 0
    m.run("dpkg", "-r", "urbd-drbd-utils")
    assert m.call("test", "-e", "/usr/sbin/drbdadm").returncode


def test_an_rpm_has_the_same_files_and_scripts(packages):
    """Made from the Debian package. This machine's own rpm installs and removes it, in a database of its own."""
    made = subprocess.run([os.path.join(container.DIST, "rpm", "build"), "--from", os.path.join(packages, "urbd_0.1.0-1_amd64.deb"),
                           "--output", packages], check=True, capture_output=True, text=True).stdout.strip()
    listed = subprocess.run(["rpm", "-qpl", made], check=True, capture_output=True, text=True).stdout.split()
    in_deb = subprocess.run(["dpkg-deb", "--fsys-tarfile", os.path.join(packages, "urbd_0.1.0-1_amd64.deb")], check=True, capture_output=True)
    names = subprocess.run(["tar", "-t"], input=in_deb.stdout, check=True, capture_output=True).stdout.decode().split()
    wanted = {n[1:].replace("/zsh/vendor-completions/", "/zsh/site-functions/") for n in names if not n.endswith("/")}
    assert set(listed) == wanted - {"/usr/share/doc/urbd/changelog.Debian.gz"}
    with booted("/", packages) as m:
        rpm = ["rpm", "--nodeps", "--dbpath", "/srv/rpm"]
        file = "/srv/" + os.path.basename(made)
        m.run(*rpm, "-i", file)
        m.run("urbd", "create-md", "r0")
        m.run("systemctl", "start", "urbd@r0")
        m.run("urbd", "primary", "--force", "r0")
        m.run("sh", "-c", "mkfs.ext4 -q $(urbd sh-dev r0) && mkdir -p /data && mount $(urbd sh-dev r0) /data")
        r = m.call(*rpm, "-e", "urbd")
        assert r.returncode != 0 and "r0 is not stopped, so the package is not removed" in r.stderr, r
        m.run("umount", "/data")
        m.run(*rpm, "-e", "urbd")
        assert m.call("pgrep", "-x", "urbd").stdout == "" and m.call("test", "-e", "/usr/sbin/urbd").returncode
