//! What a process is told: the same resource comes out of the commands that build it, in whatever order they come.

use std::fs;
use std::path::Path;

use units::Rng;
use urbd_config::{AdjustScope, Config, LocalResource, Plan, Running, Standing, ThisHost, behind_file, load_from};

mod installed;

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn refused(of: &mut LocalResource, line: &str) -> (i32, String) {
    let before = of.told();
    let refused = of.tell(&words(line)).expect_err(line);
    assert_eq!(of.told(), before, "{line}: refused, and changed something");
    (refused.code, refused.text)
}

fn built(lines: &[&str]) -> LocalResource {
    let mut resource = LocalResource::new_resource(&words(lines[0])).unwrap();
    for line in &lines[1..] {
        resource.tell(&words(line)).unwrap_or_else(|e| panic!("{line}: {e:?}"));
    }
    resource
}

/// All hosts of all resources of all samples.
#[test]
fn what_is_configured_can_be_told() {
    let mut seen = 0;
    for sample in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/config/good")).unwrap() {
        let sample = sample.unwrap().path();
        let config: Config =
            load_from(&installed::files(&sample), Path::new("/etc/drbd.conf"), &Default::default()).unwrap();
        for resource in &config.resources {
            for host in resource.hosts.iter().map(|h| h.name()) {
                let Ok(local) = config.resource_as_seen_by(&resource.name, &ThisHost::named(host)) else { continue };
                if local.peers.iter().flat_map(|p| &p.paths).any(|p| p.proxied) {
                    continue;
                }
                let text = local.told();
                let again = LocalResource::from_told(&text).unwrap_or_else(|e| panic!("{e:?} in:\n{text}"));
                assert_eq!(again.told(), text);
                let plan = Plan::adjust(Some(&Running::from_configuration(&again)), &local, &AdjustScope::default());
                let after = |line: &str| line.contains("resync-after");
                let rest = plan.to_string();
                assert!(rest.lines().all(after), "{}: {rest}", sample.display());
                assert!(again.is_same(&local), "{}: {text}", sample.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 60, "only {seen}");
}

#[test]
fn what_is_kept_says_who_is_sought_and_what_stays_detached() {
    let local = built(&BUILD);
    let mut standing = Standing::default();
    for step in 0..4 {
        let text = local.kept(&standing);
        let (again, stands) = LocalResource::from_kept(&text).unwrap_or_else(|e| panic!("{e:?} in:\n{text}"));
        assert!(again.is_same(&local) && stands == standing, "{text}");
        match step {
            0 => standing = Standing::up(&local),
            1 => standing.behind_file = true,
            _ => standing = standing.without_disks(&local),
        }
    }
    let text = local.kept(&standing);
    assert!(text.ends_with("\n_behind-file\n") && behind_file(&text) == text, "{text}");
    assert!(text.contains("\nconnect r0 1\n") && text.contains("\n_detached r0 0\n"), "{text}");
    let refused = |text: &str| LocalResource::from_kept(text).unwrap_err();
    assert_eq!(refused(&text.replace("connect r0 1", "connect r0 9")).code, 171);
    assert_eq!(refused(&text.replace("_detached r0 0", "_detached r0 70")).code, 127);
    let other = text.replacen(", 1", ", 99", 1);
    assert!(refused(&other).text.contains("another form, of another release: # urbd: what was told, 99"));
    // Of a text that was cut off, too, nothing is made that was not told.
    assert!(LocalResource::from_kept("").is_err() && LocalResource::from_kept(&text[..10]).is_err());
}

const BUILD: [&str; 14] = [
    "new-resource r0 0 --_host=alpha --on-no-data-accessible=suspend-io",
    "new-minor r0 1000 0",
    "new-minor r0 1001 7 --max-bio-size=128k",
    "new-peer r0 1 --_name=bravo --protocol=B",
    "new-peer r0 2 --_name=charlie --timeout=30",
    "new-path r0 1 ipv4:10.1.1.1:7789 ipv4:10.1.1.2:7789",
    "new-path r0 2 ipv4:10.1.1.1:7789 ipv6:[fd00::3]:7789",
    "attach 1000 /dev/vg/a /dev/vg/a internal --al-extents=67",
    "attach 1001 /dev/vg/b /dev/vg/m 3",
    "peer-device-options r0 1 0 --c-max-rate=8M",
    "peer-device-options r0 2 7 --bitmap=no",
    "net-options r0 1 --max-buffers=4000",
    "disk-options 1000 --on-io-error=pass_on",
    "resource-options r0 --auto-promote=no",
];

/// Which commands each one needs to have been before it.
const NEEDS: [&[usize]; 14] = [&[], &[0], &[0], &[0], &[0], &[3], &[4], &[1], &[2], &[1, 3], &[2, 4], &[3], &[7], &[0]];

#[test]
fn each_legal_order_ends_in_the_same_resource() {
    let sorted = |of: &LocalResource| {
        let text = of.told();
        let mut lines: Vec<String> = text
            .lines()
            .map(|line| {
                let mut words: Vec<&str> = line.split(' ').collect();
                words.sort_unstable();
                words.join(" ")
            })
            .collect();
        lines.sort();
        lines
    };
    let wanted = sorted(&built(&BUILD));
    let mut rng = Rng::new(35);
    for round in 0..200 {
        let mut done: Vec<usize> = vec![0];
        while done.len() < BUILD.len() {
            let ready: Vec<usize> = (0..BUILD.len())
                .filter(|n| !done.contains(n) && NEEDS[*n].iter().all(|before| done.contains(before)))
                .collect();
            done.push(ready[rng.below(ready.len() as u64) as usize]);
        }
        let lines: Vec<&str> = done.iter().map(|n| BUILD[*n]).collect();
        assert_eq!(sorted(&built(&lines)), wanted, "round {round}: {lines:#?}");
    }
}

#[test]
fn what_the_kernel_refuses_is_refused_with_its_status() {
    let mut r0 = built(&BUILD);
    for (line, code, text) in [
        ("new-minor r0 1000 1", 161, "volume 0 with minor 1000"),
        ("new-minor r0 1002 7", 161, "volume 7 with minor 1001"),
        ("new-minor r0 1048576 8", 162, "above"),
        ("new-minor r1 1002 8", 158, "this is r0"),
        ("new-peer r0 0", 162, "peer node id cannot be my own node id"),
        ("new-peer r0 32", 162, "peer node id out of range"),
        ("new-peer r0 1", 162, "Connection for peer node id 1 already exists"),
        ("new-peer r0 3 --_name=bravo", 174, "exists already"),
        ("new-peer r0 3 --_name=a/b", 162, "no name"),
        ("new-peer r0 3 --nonsense=1", 126, "nonsense"),
        ("new-peer r0 3 --protocol=D", 162, "protocol"),
        ("new-path r0 1 ipv4:10.1.1.1:7789 ipv4:10.1.1.2:7789", 173, "bravo has this path"),
        ("new-path r0 2 ipv4:10.1.1.1:7789 ipv4:10.1.1.2:7790", 176, "indistinguishable"),
        ("new-path r0 3 ipv4:10.1.1.1:7789 ipv4:10.1.1.9:7789", 171, "no peer"),
        ("new-path r0 1 10.1.1.1 ipv4:10.1.1.9:7789", 162, "no address"),
        ("del-path r0 1 ipv4:10.1.1.1:7789 ipv4:10.1.1.9:7789", 162, "no such path"),
        ("del-peer r0 3", 171, "no peer"),
        ("del-minor 1003", 127, "no minor 1003"),
        ("attach 1000 /dev/x /dev/x internal", 124, "has the disk /dev/vg/a already"),
        ("detach 1003", 127, "no minor 1003"),
        ("disk-options 1003 --al-extents=67", 127, "no minor"),
        ("disk-options 1000 --on-io-error=never", 162, "on-io-error"),
        ("net-options r0 4 --timeout=30", 171, "no peer"),
        ("peer-device-options r0 1 3 --c-max-rate=1M", 127, "no volume 3"),
        ("resource-options r0 --timeout=3", 126, "timeout"),
        ("primary r0", 137, "primary"),
    ] {
        let said = refused(&mut r0, line);
        assert_eq!(said.0, code, "{line}: {}", said.1);
        assert!(said.1.contains(text), "{line}: {}", said.1);
    }
    // Exactly what is there already.
    let before = r0.told();
    r0.tell(&words("new-minor r0 1000 0")).unwrap();
    assert_eq!(r0.told(), before);
}

#[test]
fn what_comes_goes_again() {
    let mut r0 = built(&BUILD);
    for line in [
        "detach 1000",
        "del-minor 1000",
        "detach 1001",
        "del-minor 1001",
        "del-path r0 1 ipv4:10.1.1.1:7789 ipv4:10.1.1.2:7789",
        "del-peer r0 1",
        "del-peer r0 2",
        "resource-options r0 --set-defaults",
    ] {
        r0.tell(&words(line)).unwrap_or_else(|e| panic!("{line}: {e:?}"));
    }
    assert_eq!(r0.told(), built(&["new-resource r0 0 --_host=alpha"]).told());
}

#[test]
fn options_are_set_and_reset() {
    let mut r0 = built(&BUILD);
    let options = |r0: &LocalResource| {
        let peer = &r0.peers[0];
        (peer.net.protocol, peer.net.max_buffers, peer.peer_name.clone())
    };
    let (_, _, name) = options(&r0);
    r0.tell(&words("net-options r0 1 --set-defaults --protocol=A")).unwrap();
    assert_eq!(options(&r0), (urbd_config::Protocol::A, 2048, name));
    // As in 8.4 fencing, and the speed of a resync.
    r0.tell(&words("disk-options 1000 --c-max-rate=9M --fencing=resource-only")).unwrap();
    assert!(r0.peers.iter().all(|p| p.net.fencing == urbd_config::Fencing::ResourceOnly));
    assert_eq!(r0.peers[1].peer_devices[0].options.c_max_rate.0, 9 << 20);
    assert_ne!(r0.peers[1].peer_devices[1].options.c_max_rate.0, 9 << 20);
    r0.tell(&words("resize 1000 --size=8M")).unwrap();
    r0.tell(&words("disk-options 1000 --set-defaults")).unwrap();
    assert_eq!(r0.volumes[0].disk.size.to_bytes().0, 8 << 20, "the size is `resize`'s");
    assert_eq!(r0.volumes[0].disk.al_extents, 1237);
}

#[test]
fn strange_words_come_back_as_they_were() {
    let mut r0 = LocalResource::begin("r0", "alpha", units::NodeId::new(0).unwrap());
    let secret = "a b\\c\"d'e\nf  --x=y#$(rm)ü";
    r0.tell(&["new-peer", "r0", "1", "--_name=b", &format!("--shared-secret={secret}")].map(str::to_owned)).unwrap();
    let again = LocalResource::from_told(&r0.told()).unwrap();
    assert_eq!(again.peers[0].net.shared_secret.as_deref(), Some(secret));
    assert_eq!(again.told(), r0.told());
}

#[test]
fn another_form_is_not_read() {
    for text in
        ["", "new-resource r0 0\n", "# urbd: what was told, 2\nnew-resource r0 0\n", "# urbd: what was told, 1\n"]
    {
        assert!(LocalResource::from_told(text).is_err(), "{text:?}");
    }
}
