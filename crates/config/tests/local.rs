//! What a host gets to see: merged options, warnings, refusals.

use std::path::Path;

use units::{ByteLen, Duration, NodeId, VolumeNr};
use urbd_config::{
    Config, ErrorKind, Errors, FrontEnd, LoadOptions, LocalResource, Memory, Protocol, ResyncController, Running,
    ThisHost, load_text,
};

fn load(text: &str) -> Config {
    load_text(&Memory::default(), Path::new("drbd.conf"), text, &LoadOptions::default())
        .unwrap_or_else(|errors| panic!("{errors}"))
}

fn sample(name: &str) -> Config {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/config/good").join(name).join("drbd.conf");
    load(&std::fs::read_to_string(file).unwrap())
}

/// Two hosts with `inside` in the resource.
fn two_nodes(inside: &str) -> Config {
    load(&format!(
        "resource r0 {{ {inside} device minor 1; disk /dev/vg0/a; meta-disk internal;\n\
         on alpha {{ node-id 0; address 10.1.1.1:7900; }} on bravo {{ node-id 1; address 10.1.1.2:7900; }} }}"
    ))
}

#[test]
fn the_innermost_value_wins() {
    let config = sample("13-options-levels");
    let alpha = config.resource_as_seen_by("lv", &ThisHost::named("alpha")).unwrap();
    let bravo = config.resource_as_seen_by("lv", &ThisHost::named("bravo")).unwrap();
    let net = &alpha.peers[0].net;
    assert_eq!(
        (net.protocol, net.ping_int, net.timeout),
        (Protocol::C, Duration::from_secs(12), Duration::from_secs(9))
    );
    assert_eq!((alpha.volumes[0].disk.al_extents, bravo.volumes[0].disk.al_extents), (4001, 2003));
    let device = &alpha.peers[0].peer_devices[0];
    assert_eq!((device.volume, device.options.c_max_rate), (VolumeNr(0), ByteLen(50 << 20)));
    assert_eq!(alpha.peers[0].peer_devices[1].options.c_max_rate, ByteLen(20 << 20));
    assert_eq!(alpha.handlers.command("split-brain"), Some("/bin/true res"));
    assert_eq!(alpha.handlers.command("pri-lost"), Some("/bin/true lost"));
    assert_eq!(alpha.handlers.command("fence-peer"), None);
    assert_eq!((alpha.node_id, bravo.node_id), (NodeId::new(0).unwrap(), NodeId::new(1).unwrap()));
    assert_eq!(alpha.peers[0].paths[0].local, bravo.peers[0].paths[0].remote);
}

#[test]
fn a_diskless_peer_gets_no_bitmap_and_no_slot() {
    let config = sample("19-diskless");
    let alpha = config.resource_as_seen_by("dl", &ThisHost::named("alpha")).unwrap();
    let bitmaps: Vec<bool> = alpha.peers.iter().map(|p| p.peer_devices[0].options.bitmap).collect();
    assert_eq!(bitmaps, [true, false, false]);
    assert_eq!((alpha.metadata_slots, alpha.host_count), (1, 4));
    let charlie = config.resource_as_seen_by("dl", &ThisHost::named("charlie")).unwrap();
    assert_eq!(charlie.volumes[0].backing, None);
}

#[test]
fn resync_after_becomes_a_minor_of_this_host() {
    let config = sample("20-resync-after");
    let last = config.resource_as_seen_by("last", &ThisHost::named("bravo")).unwrap();
    assert_eq!(last.volumes[0].resync_after_minor, Some(102));
}

/// Resources `r0` to `r3` of one volume each; `r1 r0` means that r1 waits for r0.
fn in_order(after: &[(&str, &str)]) -> Result<Config, Errors> {
    let resource = |n: usize| {
        let waits = after.iter().filter(|(who, _)| *who == format!("r{n}"));
        let waits: String = waits.map(|(_, what)| format!("disk {{ resync-after {what}; }}")).collect();
        format!(
            "resource r{n} {{ volume 0 {{ device minor {n}; disk /dev/x{n}; {waits} }} on alpha {{ node-id 0; address \
             127.0.0.1:{n}1; }} on bravo {{ node-id 1; address 127.0.0.2:{n}1; }} }}\n"
        )
    };
    let text: String = (0..4).map(resource).collect();
    load_text(&Memory::default(), Path::new("drbd.conf"), &text, &LoadOptions::default())
}

#[test]
fn resyncs_may_wait_for_each_other_in_chains_but_not_in_circles() {
    let chain = in_order(&[("r1", "r0"), ("r2", "r1/0"), ("r3", "r1")]).unwrap();
    assert_eq!(chain.warnings(), []);
    let unknown = in_order(&[("r1", "other")]).unwrap();
    assert_eq!(unknown.warnings().len(), 1, "a boot does not fail for it");
    for (circle, way) in [
        (&[("r1", "r1/0")][..], "r1/0 waits for r1/0"),
        (&[("r1", "r0"), ("r0", "r1/0")], "r0/0 waits for r1/0, which waits for r0/0"),
        (
            &[("r3", "r2"), ("r2", "r1"), ("r1", "r3")],
            "r1/0 waits for r3/0, which waits for r2/0, which waits for r1/0",
        ),
    ] {
        let errors = in_order(circle).unwrap_err();
        assert!(errors.first().message.ends_with(way), "{errors}");
        assert_eq!(errors.exit_code(), 10);
    }
}

#[test]
fn our_own_section_is_inherited_too() {
    let text = "common { urbd { resync-controller adaptive; front-end fuse; } }\n\
                resource r0 { urbd { front-end nbd; } volume 0 { device minor 1; disk /dev/x; }\n\
                on alpha { node-id 0; address 127.0.0.1:1; } on bravo { node-id 1; address 127.0.0.2:1; } }";
    let r0 = load(text).resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap();
    assert_eq!((r0.urbd.front_end, r0.urbd.resync_controller), (FrontEnd::Nbd, ResyncController::Adaptive));
}

#[test]
fn options_without_effect_are_named_once_with_their_place() {
    let config = two_nodes("net { tcp-cork no; timeout 50; csums-alg \"\"; }");
    let warnings: Vec<String> = config.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings, ["drbd.conf:1:21: option `tcp-cork` is accepted, but urbd does not act on it yet"]);
}

/// The real drbdadm passes such numbers on, and the module limits them.
#[test]
fn the_size_of_the_activity_log_is_limited_not_refused() {
    for (written, used) in [("7", 67), ("67", 67), ("99999", 65_534)] {
        let config = two_nodes(&format!("disk {{ al-extents {written}; }}"));
        let r0 = config.resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap();
        assert_eq!(r0.volumes[0].disk.al_extents, used);
        assert_eq!(config.warnings().len(), usize::from(written != "67"), "{:?}", config.warnings());
    }
}

#[test]
fn secrets_stay_out_of_debug_output() {
    let config = two_nodes("net { cram-hmac-alg sha1; shared-secret \"open sesame\"; }");
    let r0 = config.resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap();
    assert_eq!(r0.peers[0].net.shared_secret.as_deref(), Some("open sesame"));
    let shown = format!("{r0:?} {config:?}");
    assert!(shown.contains("cram-hmac-alg") && !shown.contains("sesame"), "{shown}");
}

#[test]
fn what_cannot_run_is_refused_with_the_reason() {
    for (inside, wanted) in [
        ("net { transport rdma; }", "a transport other than tcp"),
        ("net { tls yes; }", "TLS"),
        ("net { allow-two-primaries; protocol B; }", "needs protocol C"),
        ("net { fencing resource-and-stonith; protocol A; }", "needs protocol B or C"),
        ("net { on-congestion pull-ahead; }", "needs protocol A"),
        ("net { cram-hmac-alg sha1; }", "shared-secret"),
        ("net { shared-secret x; }", "cram-hmac-alg"),
    ] {
        let r0 = two_nodes(inside).resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap();
        let errors = r0.check_startable().unwrap_err();
        assert!(errors.to_string().contains(wanted), "{inside}: {errors}");
    }
    let fine = "net { protocol A; on-congestion pull-ahead; transport tcp; cram-hmac-alg sha1; shared-secret x; }";
    two_nodes(fine).resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap().check_startable().unwrap();
    let proxied = sample("12-proxy-via").resource_as_seen_by("pv", &ThisHost::named("alpha")).unwrap();
    assert!(proxied.check_startable().unwrap_err().to_string().contains("DRBD proxy"));
}

/// A process is started with it all the same, as applications may wait for it.
#[test]
fn two_primaries_among_three_are_not_taken_over() {
    let hosts = "device minor 1; disk /dev/x; meta-disk internal; on a { node-id 0; address 10.0.0.1:1; } \
                 on b { node-id 1; address 10.0.0.2:1; } on c { node-id 2; address 10.0.0.3:1; }";
    let seen = |inside: &str| {
        let config = load(&format!("resource r0 {{ {hosts} {inside} }}"));
        config.resource_as_seen_by("r0", &ThisHost::named("a")).unwrap()
    };
    let of_one = "connection { host a; host b; net { allow-two-primaries; } } connection { host a; host c; } \
                  connection { host b; host c; }";
    for refused in ["connection-mesh { hosts a b c; } net { allow-two-primaries yes; }", of_one] {
        let r0 = seen(refused);
        r0.check_startable().unwrap();
        let errors = r0.check_wanted().unwrap_err();
        assert_eq!((errors.first().kind, errors.exit_code()), (ErrorKind::Value, 10));
        let text = errors.to_string();
        for part in ["to `b` has `allow-two-primaries`", "2 peers", "one of them at a time", "set it to `no`"] {
            assert!(text.contains(part), "{text}");
        }
    }
    seen("connection-mesh { hosts a b c; } net { allow-two-primaries no; }").check_wanted().unwrap();
    let two = two_nodes("net { allow-two-primaries; }");
    two.resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap().check_wanted().unwrap();
}

/// Control planes write one before the second copy is made; the real drbdadm takes it, and starts the resource.
#[test]
fn a_mesh_of_one_host_has_no_connection() {
    let text = "resource r0 { device minor 1; disk /dev/x; meta-disk internal;\n\
                on a { node-id 0; address 10.0.0.1:1; } connection-mesh { hosts a; } }";
    let config = load(text);
    assert!(config.warnings().is_empty(), "{:?}", config.warnings());
    let seen = config.resource_as_seen_by("r0", &ThisHost::named("a")).unwrap();
    assert!(seen.peers.is_empty());
    seen.check_startable().unwrap();
    seen.check_wanted().unwrap();
}

#[test]
fn three_hosts_without_connections_cannot_start() {
    let config = load(
        "resource r0 { device minor 1; disk /dev/x; on a { node-id 0; address 10.0.0.1:1; }\n\
         on b { node-id 1; address 10.0.0.2:1; } on c { node-id 2; address 10.0.0.3:1; } }",
    );
    assert!(config.warnings()[0].message.contains("connection-mesh"));
    let errors = config.resource_as_seen_by("r0", &ThisHost::named("a")).unwrap().check_startable().unwrap_err();
    assert!(errors.to_string().contains("no connection"), "{errors}");
}

#[test]
fn addresses_are_looked_up_on_this_host() {
    let config = two_nodes("");
    let alpha = ThisHost::named("alpha");
    let r0 = config.resource_as_seen_by("r0", &alpha).unwrap();
    let errors = config.check_addresses(&r0, &alpha).unwrap_err();
    assert_eq!((errors.first().kind, errors.exit_code()), (ErrorKind::Address, 10));
    config.check_addresses(&r0, &alpha.with_addresses(["10.1.1.1".parse().unwrap()])).unwrap();
}

#[test]
fn names_of_hosts_match_as_in_the_real_tools() {
    let config = sample("26-hostname-matching");
    for name in ["alpha", "ALPHA", "alpha.example.com", "bravo.anything.org"] {
        assert!(config.resource_as_seen_by("hn", &ThisHost::named(name)).is_ok(), "{name}");
    }
    for name in ["alpha.example.org", "alph", "charlie"] {
        let error = config.resource_as_seen_by("hn", &ThisHost::named(name)).unwrap_err();
        assert_eq!((error.kind, error.exit_code()), (ErrorKind::Host, 1), "{name}");
    }
}

#[test]
fn waiting_times_must_fall() {
    let config = two_nodes("startup { wfc-timeout 10; degr-wfc-timeout 20; outdated-wfc-timeout 0; }");
    let startup = config.resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap().startup;
    let ten = Duration::from_secs(10);
    assert_eq!((startup.wfc_timeout, startup.degr_wfc_timeout, startup.outdated_wfc_timeout), (ten, ten, ten));
    assert_eq!(config.warnings().len(), 2, "{:?}", config.warnings());
}

#[test]
fn every_recorded_running_state_can_be_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/config/runtime");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        for file in ["show.txt", "show-defaults.txt", "show--show-defaults.txt"] {
            let Ok(text) = std::fs::read_to_string(entry.path().join(file)) else { continue };
            let running = Running::parse_show(&text).unwrap_or_else(|e| panic!("{:?} {file}: {e}", entry.path()));
            read += running.len();
        }
    }
    assert!(read >= 5, "only {read} resources read");
}

#[test]
fn the_goal_of_a_resync_is_a_block_with_units() {
    let goal = |inside: &str| {
        let config = two_nodes(&format!("urbd {{ front-end none; resync-goal {{ {inside} }} }}"));
        let text = config.dump(&ThisHost::named("alpha"), false, &[]);
        let goal = config.resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap().resync_goal;
        let again = load(&text).resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap().resync_goal;
        assert_eq!(again, goal, "dump is read back");
        (goal.finish_within, goal.latency_budget, text)
    };
    let (within, budget, text) = goal("finish-within 2h; latency-budget 50%;");
    assert_eq!((within, budget), (Duration::from_secs(7200), 50));
    assert!(text.contains("resync-goal {") && text.contains("2h;") && text.contains("50%;"), "{text}");
    assert_eq!(goal("finish-within 3days;").0, Duration::from_secs(3 * 86_400));
    assert_eq!((goal("").0, goal("").1), (Duration(0), 20));
    for bad in
        ["finish-within 2x;", "latency-budget 0%;", "latency-budget 20h;", "front-end none;", "finish-within 366d;"]
    {
        let text = format!("resource r0 {{ urbd {{ resync-goal {{ {bad} }} }} }}");
        let error = load_text(&Memory::default(), Path::new("f"), &text, &LoadOptions::default()).unwrap_err();
        assert_eq!(error.exit_code(), 10, "{bad}: {error}");
    }
}

#[test]
fn busy_poll_is_in_microseconds() {
    let busy_poll = |text: &str| {
        let config = two_nodes(&format!("urbd {{ {text} }}"));
        config.resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap().urbd.busy_poll
    };
    let cases = [("", 100_000), ("busy-poll 0;", 0), ("busy-poll 50us;", 50_000), ("busy-poll 1ms;", 1_000_000)];
    for (text, nanoseconds) in cases {
        assert_eq!(busy_poll(text), Duration(nanoseconds), "{text}");
    }
    let text = "resource r0 { urbd { busy-poll 1001; } }";
    let error = load_text(&Memory::default(), Path::new("f"), text, &LoadOptions::default()).unwrap_err();
    assert!(error.exit_code() == 10 && error.to_string().contains("the range is 0 to 1000 microseconds"), "{error}");
}

/// Options given to what runs win, wherever the file has them, and only there.
#[test]
fn short_and_full_names_are_one_host_everywhere() {
    let text = |first: &str, second: &str, more: &str| {
        format!(
            "resource r0 {{ device minor 1; disk /dev/vg0/a; on {first} {{ node-id 0; address 10.1.1.1:7900; }} \
             on {second} {{ node-id 1; address 10.1.1.2:7900; }} {more} }}"
        )
    };
    let read = |text: &str| load_text(&Memory::default(), Path::new("drbd.conf"), text, &LoadOptions::default());
    for (first, second, hosts) in [
        ("alpha.example.com", "bravo.example.com", "host alpha; host Bravo;"),
        ("alpha", "bravo", "host alpha.example.com; host BRAVO;"),
    ] {
        for more in [format!("connection {{ {hosts} }}"), "connection-mesh { hosts ALPHA bravo; }".to_owned()] {
            let config = read(&text(first, second, &more)).unwrap_or_else(|errors| panic!("{more}: {errors}"));
            for name in ["alpha", "Alpha", "alpha.example.com"] {
                let local = config.resource_as_seen_by("r0", &ThisHost::named(name)).unwrap();
                assert_eq!((Some(local.node_id), local.peers.len()), (NodeId::new(0), 1), "{name} {more}");
            }
        }
    }
    let refused = |text: &str| read(text).unwrap_err().to_string();
    let twice = read(&text("alpha", "Alpha.example.com", "")).unwrap();
    let twice = twice.resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap_err();
    assert_eq!(twice.kind, ErrorKind::Host, "{twice}");
    // Two hosts with one label are two hosts, and the label alone says neither.
    let two = read(&text("alpha.here", "alpha.there", "connection { host alpha.here; host alpha.there; }")).unwrap();
    assert_eq!(two.resources[0].connections.len(), 1);
    let either = refused(&text("alpha.here", "alpha.there", "connection { host alpha; host alpha.there; }"));
    assert!(either.contains("`alpha` may be alpha.here or alpha.there"), "{either}");
    // One minor on one host, in two resources that write its name differently.
    let other = "resource r1 { device minor 1; disk /dev/vg0/b; on alpha.example.com { node-id 0; address 10.1.1.1:7901; } \
                 on charlie { node-id 1; address 10.1.1.3:7901; } }";
    let minors = refused(&(text("ALPHA", "bravo", "") + other));
    assert!(minors.contains("minor 1 is used twice on host `alpha.example.com`"), "{minors}");
    assert!(read(&(text("alpha.else", "bravo", "") + other)).is_ok());
}

#[test]
fn a_resource_that_two_sections_match_does_not_take_the_others_with_it() {
    let config = load(
        "resource r0 { device minor 1; disk /dev/vg0/a; on alpha.a { node-id 0; address 10.1.1.1:7900; } \
         on alpha.b { node-id 1; address 10.1.1.2:7900; } }\n\
         resource r1 { device minor 2; disk /dev/vg0/b; on alpha { node-id 0; address 10.1.1.1:7901; } \
         on bravo { node-id 1; address 10.1.1.2:7901; } }",
    );
    let (found, errors) = config.each_for(&ThisHost::named("alpha"));
    assert_eq!(found.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["r1"]);
    assert_eq!(errors.iter().map(|e| (e.exit_code(), e.kind)).collect::<Vec<_>>(), [(10, ErrorKind::Host)]);
}

#[test]
fn what_is_said_twice_is_a_warning_where_it_does_no_harm() {
    let said = |inside: &str| {
        let config = two_nodes(inside);
        let local = config.resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap();
        let warnings: Vec<String> = config.warnings().iter().map(ToString::to_string).collect();
        (local.startup.wfc_timeout, local.peers[0].net.protocol, warnings.join("\n"))
    };
    let (wfc, _, warnings) = said("startup { wfc-timeout 10; wfc-timeout 20; }");
    assert_eq!(wfc, Duration::from_secs(20));
    assert!(warnings.contains("`wfc-timeout` is 10 and 20: 20 is used"), "{warnings}");
    for inside in ["protocol C; net { protocol A; }", "net { protocol A; } protocol C;"] {
        let (_, protocol, warnings) = said(inside);
        assert_eq!(protocol, Protocol::A, "{inside}");
        assert!(warnings.contains("`protocol` is C and A: A is used"), "{inside}: {warnings}");
    }
    assert_eq!(said("protocol C; net { protocol C; }").2, "");
}

#[test]
fn words_of_8_4_are_understood() {
    let config = two_nodes("disk { use-bmbv; rate 10M; no-disk-flushes yes; no-md-flushes; no-disk-drain no; }");
    for host in ["alpha", "bravo"] {
        let local = config.resource_as_seen_by("r0", &ThisHost::named(host)).unwrap();
        let disk = &local.volumes[0].disk;
        assert_eq!((disk.disk_flushes, disk.md_flushes, disk.disk_drain), (false, false, true));
        assert_eq!(local.peers[0].peer_devices[0].options.resync_rate, ByteLen(10 << 20));
    }
    let warnings: Vec<String> = config.warnings().iter().map(ToString::to_string).collect();
    for wanted in ["`use-bmbv` is an option of old versions", "`rate` is now called `resync-rate`"] {
        assert_eq!(warnings.iter().filter(|w| w.contains(wanted)).count(), 1, "{wanted}: {warnings:?}");
    }
}

#[test]
fn a_named_host_loses_its_changes_after_a_split_brain() {
    let config = two_nodes("net { after-sb-0pri discard-node-Alpha.example.com; }");
    for (host, decides) in [("alpha", "discard-local"), ("bravo", "discard-remote")] {
        let peer = &config.resource_as_seen_by("r0", &ThisHost::named(host)).unwrap().peers[0];
        assert_eq!(peer.net.after_sb_0pri.to_string(), decides, "{host}");
        assert_eq!(peer.settings.find("after-sb-0pri").unwrap().text, decides, "{host}");
    }
    let text = config.dump(&ThisHost::named("alpha"), false, &[]);
    assert!(text.contains("discard-node-Alpha.example.com"), "{text}");
    let lines = |text: &str| text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&load(&text).dump(&ThisHost::named("alpha"), false, &[])), lines(&text));
    let refused = |policy: &str| {
        let text = format!(
            "resource r0 {{ net {{ after-sb-0pri {policy}; }} device minor 1; disk /dev/vg0/a;\n\
             on alpha {{ node-id 0; address 10.1.1.1:7900; }} on bravo {{ node-id 1; address 10.1.1.2:7900; }} }}"
        );
        load_text(&Memory::default(), Path::new("drbd.conf"), &text, &LoadOptions::default()).unwrap_err().to_string()
    };
    assert!(refused("discard-node-charlie").contains("does not say which of `alpha` and `bravo` is meant"));
    for bad in ["discard-node-", "discard-node"] {
        assert!(refused(bad).contains("discard-zero-changes"), "the choices are listed: {}", refused(bad));
    }
}

/// Two resources as one of their hosts has them from LINSTOR: the other host's disk is a placeholder in both.
#[test]
fn placeholders_for_the_disks_of_other_hosts_may_be_the_same() {
    let resource = |n: usize, own: &str, other: &str| {
        format!(
            "resource r{n} {{ on alpha {{ node-id 0; volume 0 {{ device minor {n}; {own} }} address 10.1.1.1:790{n}; }}\n\
             on bravo {{ node-id 1; volume 0 {{ device minor {n}; {other} }} address 10.1.1.2:790{n}; }} }}\n"
        )
    };
    let read = |own: [&str; 2], other: &str, host: &str| {
        let text = resource(0, own[0], other) + &resource(1, own[1], other);
        let options = LoadOptions { this_host: Some(ThisHost::named(host)), ..LoadOptions::default() };
        load_text(&Memory::default(), Path::new("drbd.conf"), &text, &options)
    };
    let own = ["disk /dev/vg0/a; meta-disk internal;", "disk /dev/vg0/b; meta-disk internal;"];
    for other in [
        "disk /dev/drbd/this/is/not/used; meta-disk internal;",
        "disk /dev/drbd/this/is/not/used; meta-disk /dev/drbd/this/is/not/used;",
        "disk /dev/drbd/this/is/not/used; meta-disk /dev/drbd/this/is/not/used [0];",
    ] {
        let config = read(own, other, "alpha.example").unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(config.resources_for(&ThisHost::named("alpha")).unwrap().len(), 2);
        let errors = read(own, other, "bravo").unwrap_err();
        assert!(errors.to_string().contains("is used twice on host `bravo`"), "{errors}");
    }
    let errors = read([own[0]; 2], "disk none;", "alpha").unwrap_err();
    assert!(errors.to_string().contains("backing disk /dev/vg0/a is used twice on host `alpha`"), "{errors}");
    // A floating host is known by its address.
    let text = (0..2).map(|n| {
        format!(
            "resource r{n} {{ volume 0 {{ device minor {n}; disk /dev/x; meta-disk internal; }}\n\
             floating 10.1.1.1:790{n} {{ node-id 0; }} floating 10.1.1.2:790{n} {{ node-id 1; }} }}\n"
        )
    });
    let this_host = ThisHost::named("x").with_addresses(vec!["10.1.1.1".parse().unwrap()]);
    let options = LoadOptions { this_host: Some(this_host), ..LoadOptions::default() };
    let text: String = text.collect();
    let errors = load_text(&Memory::default(), Path::new("drbd.conf"), &text, &options).unwrap_err();
    let text = errors.to_string();
    assert!(text.contains("host `10.1.1.1`") && !text.contains("host `10.1.1.2`"), "{text}");
}

/// What the others' sections say of minors and addresses is true of them, and is looked at on every host.
#[test]
fn minors_and_addresses_of_other_hosts_are_used_once() {
    for (minor, port, complaint) in [(0, 7901, "minor 0"), (1, 7900, "address ipv4 10.1.1.2:7900")] {
        let resource = |n: usize, minor: usize, port: usize| {
            format!(
                "resource r{n} {{ on alpha {{ node-id 0; address 10.1.1.1:790{n};\n\
                 volume 0 {{ device minor {n}; disk /dev/x{n}; meta-disk internal; }} }}\n\
                 on bravo {{ node-id 1; address 10.1.1.2:{port}; volume 0 {{ device minor {minor}; disk none; }} }} }}\n"
            )
        };
        let text = resource(0, 0, 7900) + &resource(1, minor, port);
        let options = LoadOptions { this_host: Some(ThisHost::named("alpha")), ..LoadOptions::default() };
        let errors = load_text(&Memory::default(), Path::new("drbd.conf"), &text, &options).unwrap_err().to_string();
        assert!(errors.contains(&format!("{complaint} is used twice on host `bravo`")), "{errors}");
    }
}

/// Form of the file, what is offered, and whether new metadata is of format v09. The table of
/// `crates/core/tests/pair/peers.rs` has what becomes of an offer beside each metadata and each peer.
#[test]
fn the_form_of_the_file_decides_on_the_dialect() {
    let host = |name: &str, id: Option<u32>, end: u32| {
        let id = id.map_or_else(String::new, |id| format!("node-id {id}; "));
        format!("on {name} {{ {id}address 10.1.1.{end}:7900; }}\n")
    };
    let old = host("alpha", None, 1) + &host("bravo", None, 2);
    let named = host("alpha", Some(0), 1) + &host("bravo", Some(1), 2);
    let floating =
        |ids: [&str; 2]| format!("floating 10.1.1.1:7900 {{ {} }} floating 10.1.1.2:7900 {{ {} }}", ids[0], ids[1]);
    let three = named.clone() + &host("charlie", Some(2), 3);
    let connection = "connection { host alpha; host bravo; }";
    let pinned = |version: u32| format!("urbd {{ protocol-version-max {version}; }} ");
    let none = |hosts: &str| hosts.replacen("; }", "; disk none; }", 1);
    let table: [(&str, String, u32, bool); 13] = [
        ("two hosts without node ids", old.clone(), 101, false),
        ("floating, without node ids", floating(["", ""]), 101, false),
        ("floating, with node ids", floating(["node-id 0;", "node-id 1;"]), 124, true),
        ("node ids", named.clone(), 124, true),
        ("node ids, and a connection", named.clone() + connection, 124, true),
        ("node ids, and a mesh", named.clone() + "connection-mesh { hosts alpha bravo; }", 124, true),
        ("three hosts", three.clone() + "connection-mesh { hosts alpha bravo charlie; }", 124, true),
        ("node ids, and a host without disk", none(&named), 124, true),
        ("three hosts, one without disk", none(&three) + "connection-mesh { hosts alpha bravo charlie; }", 124, true),
        ("node ids, pinned", pinned(101) + &named, 101, false),
        ("without node ids, pinned", pinned(124) + &old, 124, true),
        ("node ids, pinned to an older one of 9", pinned(121) + &named, 121, true),
        // Room for more than one peer is in v09 only.
        ("three hosts, pinned", pinned(101) + &three + "connection-mesh { hosts alpha bravo charlie; }", 101, true),
    ];
    for (form, text, newest, v09) in table {
        let text = format!("resource r0 {{ device minor 1; disk /dev/vg0/a; meta-disk internal;\n{text}}}");
        let alpha = ThisHost { addresses: vec!["10.1.1.1".parse().unwrap()], ..ThisHost::named("alpha") };
        let local = load(&text).resource_as_seen_by("r0", &alpha).unwrap();
        assert_eq!((local.urbd.protocol_version_max, local.makes_v09()), (newest, v09), "{form}");
        assert_eq!(local.offers_nine(), newest > 101, "{form}");
        // What a process is told says it, too: its text names node ids in any case.
        let told = LocalResource::from_told(&local.told()).unwrap();
        assert!(told.is_same(&local) && told.offers_nine() == local.offers_nine(), "{form}: {}", local.told());
    }
}

/// A section of `common` counts as written in each resource.
#[test]
fn a_version_of_common_pins_them_all() {
    let text = "common { urbd { protocol-version-max 101; } }
        resource r0 { device minor 1; disk /dev/vg0/a; meta-disk internal;
        on alpha { node-id 0; address 10.1.1.1:7900; } on bravo { node-id 1; address 10.1.1.2:7900; } }";
    assert!(!load(text).resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap().offers_nine());
}
