"""What takes a kernel of its own, with udev and systemd: `make guests [SUITE=trixie] [ROUNDS=n]`, on Debian's cloud kernel.

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


@pytest.mark.parametrize("part", ["kills", "restarts"])
def test_a_file_system_goes_on(guest, part):
    """See long.py."""
    said = guest.run(f"cd /urbd/tests; python3 -B long.py --part {part} --rounds {ROUNDS} --batch 10 --directory /var/tmp/{part}",
                     60 + 20 * ROUNDS)
    print(said)
    assert f"{part}: {ROUNDS} rounds" in said and "0 failures" in said, said
