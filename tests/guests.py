"""What takes a kernel of its own, with udev and systemd: `make guests [SUITE=trixie] [ROUNDS=n]`, on Debian's cloud kernel.

udev and systemd know the device and go on knowing it, fstab mounts it at each boot, volume groups stand on it, its disk is
a mapped device, UUID= is a side door, scans do not hang on suspended I/O, and files on it outlive kills and restarts of the
process. Some tests of test_gate.py and test_handover.py run there as they are. It needs no KVM, takes ten to twenty
minutes, and is not part of `make test`.

Debian 12's (Linux 6.1) does not hand out unanswered requests of FUSE once more; Debian 13's does.
"""

import os
import re

import pytest

from guest import Guest

SUITE = os.environ.get("SUITE") or "bookworm"
ROUNDS = int(os.environ.get("ROUNDS") or 5)
# One node, whose peer never comes.
CONFIG = """resource r0 {
  options { auto-promote no; }
  net { protocol C; }
  volume 0 { device minor 0; disk /var/lib/disk; meta-disk internal; }
  on guest { node-id 0; address 127.0.0.1:7789; }
  on nobody { node-id 1; address 127.0.0.2:7789; }
}
"""
PRIMARY = """[Unit]
Description=Primary of r0
Requires=urbd@r0.service
After=urbd@r0.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/urbd primary r0
ExecStop=/usr/sbin/urbd secondary r0
[Install]
WantedBy=multi-user.target
"""
NAME = "/dev/drbd/by-res/r0/0"
# An emulated processor is slow.
pytestmark = pytest.mark.limit(900 + 60 * ROUNDS)


@pytest.fixture(scope="module")
def guest():
    with Guest(SUITE) as g:
        yield g


def put(guest, path, text):
    guest.run(f"mkdir -p $(dirname {path}); cat >{path} <<'END'\n{text}END")


@pytest.fixture(scope="module")
def installed(guest):
    """As the package does; the resource runs, its node is Primary and the device has a file system."""
    guest.run("install -m 755 /urbd/target/debug/urbd /usr/sbin/; install -m 644 /urbd/dist/urbd*.service /usr/lib/systemd/system/")
    guest.run("install -m 644 /urbd/dist/65-urbd.rules /usr/lib/udev/rules.d/; udevadm control --reload; systemctl daemon-reload")
    put(guest, "/etc/urbd.conf", CONFIG)
    guest.run("chmod 600 /etc/urbd.conf; truncate -s 128M /var/lib/disk; urbd create-md --force r0; systemctl enable --now urbd@r0")
    guest.run(f"urbd primary --force r0; mkfs.ext4 -q {NAME}; udevadm settle")
    return guest


def test_the_kernel_is_the_one_that_is_meant(guest):
    major, minor = re.match(r"(\d+)\.(\d+)\.", guest.run("uname -r")).groups()
    assert ((int(major), int(minor)) < (6, 9)) == (SUITE == "bookworm")


def test_udev_and_systemd_know_the_device(installed):
    known = installed.run(f"udevadm info --query=property {NAME}")
    assert NAME in known and "ID_FS_TYPE=ext4" in known, known
    for name in (NAME, "/dev/drbd0", "/dev/urbd/by-res/r0/0"):
        unit = installed.run(f"systemd-escape -p --suffix=device {name}").strip()
        assert installed.run(f"systemctl is-active '{unit}'") == "active\n", name


def test_fstab_mounts_it_at_each_boot(installed):
    put(installed, "/etc/systemd/system/primary-r0.service", PRIMARY)
    installed.run(f"""
        mkdir -p /srv/data
        echo '{NAME} /srv/data ext4 _netdev,x-systemd.requires=primary-r0.service 0 0' >>/etc/fstab
        systemctl daemon-reload; systemctl enable primary-r0.service; mount /srv/data; echo first >/srv/data/file; sync -f /srv/data""")
    for boot in ("second", "third"):
        installed.reboot()
        installed.run("mount /dev/vdb /urbd; timeout 100 sh -c 'until mountpoint -q /srv/data; do sleep 0.5; done'")
        assert "first" in installed.run("cat /srv/data/file"), boot
        log = installed.run("journalctl -b -u urbd@r0 -u srv-data.mount --no-pager -o cat")
        assert "rror" not in log, log
        installed.run(f"echo {boot} >>/srv/data/file; sync -f /srv/data")
    assert installed.run("cat /srv/data/file").split() == ["first", "second", "third"]


def test_its_names_stay_when_its_process_is_another_one(installed):
    """Systemd unmounts what is on a device whose unit is gone."""
    installed.run("kill -9 $(cat /run/urbd/r0.pid); echo again >>/srv/data/file; sync -f /srv/data")
    installed.run(f"udevadm trigger --action=change $(lsblk -no NAME -p {NAME}); udevadm settle; sleep 1")
    known = installed.run(f"udevadm info --query=property {NAME}; stat -c %a /dev/urbd /dev/drbd /dev/drbd/by-res")
    assert f"SYSTEMD_ALIAS=/dev/urbd/by-res/r0/0 /dev/drbd0 {NAME}" in known and known.endswith("755\n755\n755\n"), known
    assert installed.run("systemctl is-active srv-data.mount dev-drbd0.device") == "active\nactive\n"


def test_volume_groups_above_and_below(installed):
    """A volume group on the device is activated by who makes the node Primary, not by udev; its holders are named."""
    installed.call("umount /srv/data; systemctl stop primary-r0")
    installed.run(f"urbd primary r0; wipefs -aq {NAME}; pvcreate -qq -y {NAME}; vgcreate -qq vg0 {NAME}")
    installed.run("lvcreate -qq -y -L 40M -n lv0 vg0; mkfs.ext4 -q /dev/vg0/lv0; mkdir -p /mnt/lv; mount /dev/vg0/lv0 /mnt/lv")
    for way in ("systemctl restart urbd@r0", "kill -9 $(cat /run/urbd/r0.pid)"):
        installed.run(f"{way}; echo '{way}' >>/mnt/lv/f; sync -f /mnt/lv; udevadm settle", 180)
    status, said = installed.call("urbd secondary r0")
    assert status == 11 and "used by the device dm-0" in said and "(urbd)" not in said, said
    installed.run("umount /mnt/lv; vgchange -qq -an vg0; udevadm settle; sleep 2; urbd secondary r0; udevadm settle; urbd primary r0")
    installed.run("udevadm settle; sleep 2")
    assert installed.run("dmsetup ls") == "No devices found\n"
    assert installed.run("vgchange -qq -ay vg0; mount /dev/vg0/lv0 /mnt/lv; cat /mnt/lv/f").count("\n") == 2
    # The machine is rebooted as it is. Nothing is activated then, and nothing lost.
    installed.call("systemctl disable primary-r0")
    installed.run("sed -i /drbd/d /etc/fstab; echo last >>/mnt/lv/f; sync -f /mnt/lv")
    installed.reboot()
    assert installed.run("mount /dev/vdb /urbd; dmsetup ls") == "No devices found\n"
    installed.run("systemctl start urbd@r0; urbd primary r0; vgchange -qq -ay vg0; fsck.ext4 -nf /dev/vg0/lv0", 300)
    assert installed.run("mount /dev/vg0/lv0 /mnt/lv; tail -1 /mnt/lv/f") == "last\n"


def test_side_doors(installed):
    """By UUID a device is opened under its own name: that promotes nothing, and counts as use."""
    installed.call("umount -R /mnt/lv /srv/data; vgchange -an vg0; urbd primary r0")
    installed.run(f"wipefs -aq {NAME}; mkfs.ext4 -qU 01234567-89ab-cdef-0123-456789abcdef {NAME}; udevadm settle; mkdir -p /mnt/u")
    by_uuid = "UUID=01234567-89ab-cdef-0123-456789abcdef"
    installed.run(f"mount {by_uuid} /mnt/u; echo there >/mnt/u/f; sync -f /mnt/u")
    status, said = installed.call("urbd secondary r0")
    assert status == 11 and "mounted on /mnt/u" in said, said
    installed.run("kill -9 $(cat /run/urbd/r0.pid); echo again >>/mnt/u/f; sync -f /mnt/u; umount /mnt/u")
    installed.run("timeout 60 sh -c 'until urbd secondary r0; do sleep 0.5; done'; udevadm settle; sleep 1")
    for option in ("rw", "ro"):
        status, said = installed.call(f"mount -o {option} {by_uuid} /mnt/u; findmnt -no OPTIONS /mnt/u; umount /mnt/u; urbd role r0")
        print(option, status, said)
        assert "rw," not in said and said.endswith("Secondary\n"), said


def test_looked_at_while_io_is_suspended(installed):
    """By udev, LVM, lsblk and blkid, on a Secondary: nobody hangs."""
    installed.call("urbd secondary r0")
    installed.run("urbd suspend-io r0")
    device = installed.run(f"readlink -f {NAME}; lsblk -no NAME -p {NAME}").split()[-1]
    for look in (f"udevadm trigger --action=change {device}; udevadm settle --timeout=60", "pvs", "lsblk -f", f"blkid -p {device}"):
        print(installed.call(f"timeout 90 sh -c '{look}'", 100))
        assert installed.call("true")[0] == 0
    assert installed.call("ps -eo stat,args | grep '^D' | grep -v grep")[1] == ""
    installed.run("urbd resume-io r0")


def test_the_backing_disk_is_a_mapped_device(installed):
    """Its table is exchanged under the applications, and the process killed and restarted."""
    put(installed, "/etc/urbd.conf", CONFIG + CONFIG.replace("r0", "r1").replace("minor 0", "minor 1")
        .replace("/var/lib/disk", "/dev/mapper/back").replace("7789", "7790"))
    installed.run("""
        truncate -s 96M /var/lib/disk1; loop=$(losetup -f --show /var/lib/disk1)
        dmsetup create back --table "0 196608 linear $loop 0"; udevadm settle
        urbd create-md --force r1; systemctl start urbd@r1; urbd primary --force r1
        mkfs.ext4 -q /dev/drbd/by-res/r1/0; mkdir -p /mnt/m; mount /dev/drbd/by-res/r1/0 /mnt/m""")
    for way in ("urbd restart r1", "kill -9 $(cat /run/urbd/r1.pid)", "dmsetup suspend back; dmsetup resume back"):
        installed.run(f"{way}; echo '{way}' >>/mnt/m/f; sync -f /mnt/m", 180)
    assert installed.run("cat /mnt/m/f").count("\n") == 3
    assert installed.call("dmsetup remove back")[0], "it is in use"
    installed.run("umount /mnt/m; fsck.ext4 -nf /dev/drbd/by-res/r1/0; urbd secondary r1; urbd down r1; dmsetup remove back", 180)


@pytest.mark.parametrize("tests", ["test_gate.py -k 'every_way_in or two_nodes_at_once or killed_while or suspended'",
                                   "test_handover.py -k 'alone and ledger or answered_by and ledger or stop_leaves'"])
def test_of_the_suite(guest, tests):
    """Short ones, as they are."""
    said = guest.run(f"cd /urbd/tests; python3 -B -m pytest -q -p no:cacheprovider --tb=short {tests}", 600)
    print(said)
    assert " passed" in said and "failed" not in said


@pytest.mark.parametrize("part", ["kills", "restarts"])
def test_a_file_system_goes_on(guest, part):
    """See long.py."""
    said = guest.run(f"cd /urbd/tests; python3 -B long.py --part {part} --rounds {ROUNDS} --batch 10 --directory /var/tmp/{part}",
                     60 + 20 * ROUNDS)
    print(said)
    assert f"{part}: {ROUNDS} rounds" in said and "0 failures" in said, said
