//! Conversations that two kernels had in DRBD 9's dialect, with one of both replaced by the core: it gets that node's
//! configuration and metadata and what the other node said, and must say what that node said.

mod bind;
#[path = "../../../wire/tests/capture/mod.rs"]
mod capture;
mod comparing;
mod copying;
mod coverage;
mod crossing;
mod failing;
mod growing;
mod hearsay;
mod hostile;
mod in_sync;
mod joining;
mod kernels;
mod live;
mod losing;
mod mesh;
mod node;
mod phases;
mod quorum;
mod recording;
mod replay;
mod sources;
mod starts;
mod tolerance;
mod unsettled;
mod whole;

use node::Start;
use recording::{Said, conversation};
use replay::Replay;
use starts::{others_of, resync_options};
use units::{Duration, Generation, NodeId, NodeMask, Sector, VolumeNr};
use urbd_core::{
    Command, ConnectionConfig, OnIoError, OnNoQuorum, Protocol, QuorumConfig, RequestKind, ResourceConfig, Threshold,
};
use wire::{Packet, UuidFlags, Uuids110, WireMask};

const VOLUME: VolumeNr = VolumeNr(0);

const SECONDARIES: &str = "Connected Secondary/Secondary Connected UpToDate/UpToDate";
const FRESH: &str = "Connected Secondary/Secondary Connected Inconsistent/Inconsistent";

/// Each node in turn replaced, in a recording that begins with the connect.
fn from_the_start(number: &str, ends: [&str; 2], change: fn(&mut ConnectionConfig)) {
    for node in [0, 1] {
        let mut replay = Replay::connect(number, node, change);
        replay.live(node == 1);
        assert_eq!(replay.node.state(), ends[usize::from(node)], "node {node}");
    }
}

#[test]
fn two_nodes_with_fresh_disks_connect() {
    from_the_start("01", [FRESH; 2], |_| {});
}

#[test]
fn two_volumes_are_declared_equal_and_written_to() {
    from_the_start("31", [SECONDARIES; 2], |_| {});
}

/// 9.2.18 keeps other generations in its history than 9.3.3: whoever adopts what the other one declares equal also
/// that of its vacant slot, and who begins the first one not what it had before. `keeps`: what the core has there.
fn history_of_9_2(said: &mut [Said], node: u8, current: impl Fn(Generation) -> bool, keeps: Generation) {
    for s in said.iter_mut().filter(|s| s.from.index() == usize::from(node)) {
        if let Packet::Uuids110(u) = &mut s.packet
            && current(u.current)
        {
            u.history[0] = keeps;
        }
    }
}

#[test]
fn an_older_release_is_replaced() {
    for node in [0, 1] {
        let mut said = conversation("34");
        history_of_9_2(&mut said, 1, |_| true, Generation::NONE);
        let mut replay = Replay::whole(said, node, |_| {});
        replay.live(node == 1);
        let states = ["Primary/Secondary", "Secondary/Primary"];
        let state = format!("Connected {} Connected UpToDate/UpToDate", states[usize::from(node)]);
        assert_eq!(replay.node.state(), state);
    }
}

/// Who is in sync 9.2.18 says on the one stream just after it has ended the resync on the other one: the peer reads
/// that first.
fn says_before_it_ends(said: &mut [Said]) {
    let at = said.iter().position(|s| s.from.index() == 1 && matches!(s.packet, Packet::PeersInSync(_)));
    let at = at.expect("it says who is in sync");
    let ends = said[..at].iter().rposition(|s| s.from.index() == 1 && matches!(s.packet, Packet::Uuids110(_)));
    let ends = ends.expect("it ends the resync");
    said[at].at = said[ends].at;
    said[ends..=at].rotate_right(1);
}

/// 9.2.18 asks the Primary to say who has its writes before it copies anything, the core when it has all.
fn asks_at_the_end(said: &mut [Said]) {
    let copied = said.iter().rposition(|s| matches!(s.packet, Packet::RsDataReply(_))).expect("it is copied");
    let answer = said.iter().position(|s| matches!(s.packet, Packet::FlushRequestsAck(_))).expect("it is asked");
    said[answer].at = said[copied].at + Duration(100_000);
    said[answer..=copied].rotate_left(1);
}

/// Node 1 is 9.2.18. Both are Primary, one after the other; it disconnects while node 0 is that, and connects again.
#[test]
fn an_older_release_is_understood() {
    for node in [0, 1] {
        let mut said = conversation("33");
        says_before_it_ends(&mut said);
        if node == 1 {
            sources::begin_late(&mut said, 1, 0);
            asks_at_the_end(&mut said);
        }
        let first = Generation(0xacaf_879d_b322_fa5c);
        history_of_9_2(&mut said, 1, |g| !g.same(first) && !g.same(Generation::JUST_CREATED), first);
        let mut replay = Replay::whole(said, node, |_| {});
        replay.follow();
        if node == 0 {
            for sector in [72, 80] {
                let write = RequestKind::Write { fua: false };
                replay.act_at(Duration::from_millis(760), move |node, now| {
                    node.write(now, VOLUME, write, Sector(sector), 4096);
                });
            }
        }
        replay.links_up();
        replay.play();
        let states = ["Primary/Secondary", "Secondary/Primary"];
        let state = format!("Connected {} Connected UpToDate/UpToDate", states[usize::from(node)]);
        assert_eq!(replay.node.state(), state);
    }
}

#[test]
fn a_whole_life_over_another_transport() {
    let alone = "Connecting Primary/Unknown WFConnection UpToDate/DUnknown";
    from_the_start("39", [alone, "StandAlone Secondary/Unknown StandAlone Outdated/DUnknown"], |_| {});
}

#[test]
fn a_challenge_is_answered_with_the_own_node_id() {
    for node in [0, 1] {
        let mut replay = Replay::connect("17", node, |c| c.cram_hmac = Some("sha256".to_owned()));
        replay.link_up_with_secret(node == 1, true);
        replay.play();
        assert_eq!(replay.node.state(), FRESH);
    }
}

/// Both have been Primary while they were apart.
#[test]
fn a_split_brain_is_left_to_people() {
    for node in [0, 1] {
        let mut replay = Replay::connect("22", node, |_| {});
        replay.came_back = true;
        replay.link_up(node == 1);
        replay.play();
        assert_eq!(replay.node.state(), "StandAlone Secondary/Unknown StandAlone UpToDate/DUnknown");
        assert!(replay.node.notes.iter().any(|note| note.starts_with("split-brain")), "{:#?}", replay.node.notes);
    }
}

#[test]
fn another_secret_is_none() {
    for node in [0, 1] {
        let mut replay = Replay::connect("18", node, |c| c.cram_hmac = Some("sha1".to_owned()));
        replay.link_up_with_secret(node == 1, false);
        replay.play();
        assert!(replay.node.state().starts_with("Connecting"), "{}", replay.node.state());
    }
}

/// The secret is being changed at this moment: that ends one try, and not the replication.
#[test]
fn a_secret_that_is_not_there_now_is_asked_for_again() {
    let mut replay = Replay::connect("18", 0, |c| c.cram_hmac = Some("sha1".to_owned()));
    replay.node.forgive = true;
    replay.link_up_with_secret(false, false);
    // The recorded node answers.
    replay.expected[0].retain(|said| !matches!(said.packet, Packet::AuthResponse(_)));
    replay.play();
    assert!(replay.node.state().starts_with("Connecting"), "{}", replay.node.state());
    assert!(replay.node.notes.iter().any(|note| note.starts_with("no-hmac")), "{:#?}", replay.node.notes);
}

/// Disks of nodes that have the same data, or have just been made; of 256 KiB, or of 4 MiB.
fn disk(said: &[Said], node: NodeId, fresh: bool, size: Sector) -> Vec<(VolumeNr, Start)> {
    let told = |s: &Said| if let Packet::Uuids110(u) = &s.packet { Some(u.current.base()) } else { None };
    let current = said.iter().find_map(told).unwrap_or(Generation(0x1234_5678_9abc_def0));
    let peer = NodeId::new(if node.index() == 0 { 1 } else { 0 }).unwrap();
    let uuids = Uuids110 {
        current: if fresh { Generation::JUST_CREATED } else { current },
        dirty_bits: if fresh { size.0 / 8 } else { 0 },
        flags: if fresh { UuidFlags::INCONSISTENT } else { UuidFlags::NONE },
        nodes: WireMask::NONE,
        tracked: if fresh { NodeMask::of(peer) } else { NodeMask(3) },
        bitmaps: vec![Generation::NONE; if fresh { 1 } else { 2 }],
        history: Vec::new(),
    };
    let slots = others_of(said, node).len().max(1) as u32;
    vec![(
        VOLUME,
        Start {
            slots,
            size,
            room: size,
            uuids,
            marked: None,
            good: !fresh,
            discard: true,
            resync: resync_options(said, node),
            on_io_error: OnIoError::default(),
        },
    )]
}

const SMALL: Sector = Sector(512);

fn equal(said: &[Said], node: NodeId) -> Vec<(VolumeNr, Start)> {
    disk(said, node, false, SMALL)
}

#[test]
fn fresh_disks_are_declared_equal() {
    for node in [0, 1] {
        let mut replay = Replay::joined("03", node, |said, node| disk(said, node, true, SMALL), |_| {}, |_| {});
        replay.follow();
        replay.play();
        assert_eq!(replay.node.state(), SECONDARIES);
    }
}

/// Both become Primary and Secondary, one after the other; the second one writes, and closes the device so soon that it
/// is known after its demotion only who has the write.
#[test]
fn roles_are_changed_in_two_phases() {
    for node in [0, 1] {
        let mut replay = Replay::joined("15", node, equal, |_| {}, |_| {});
        replay.follow();
        if node == 1 {
            replay.close_early();
        }
        replay.play();
        assert_eq!(replay.node.state(), SECONDARIES);
    }
}

#[test]
fn a_disconnect_is_agreed_on() {
    for node in [0, 1] {
        let mut replay = Replay::joined("09", node, equal, |_| {}, |_| {});
        replay.follow();
        replay.play();
        let state = ["Connecting Secondary/Unknown WFConnection", "StandAlone Secondary/Unknown StandAlone"];
        assert!(replay.node.state().starts_with(state[usize::from(node)]), "{}", replay.node.state());
    }
}

/// Node 0 is Primary and changes its data.
fn changes(number: &str, size: Sector, change: fn(&mut ConnectionConfig)) {
    for node in [0, 1] {
        let mut replay = Replay::joined(
            number,
            node,
            |said, node| disk(said, node, true, size),
            change,
            |pair| {
                pair.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
                pair.command(0, Command::Primary { force: false });
            },
        );
        replay.follow();
        if node == 1 {
            replay.hear_position();
        }
        replay.play();
    }
}

#[test]
fn writes_in_protocol_c() {
    changes("04", SMALL, |_| {});
}

#[test]
fn writes_in_protocol_b() {
    changes("05", SMALL, |c| c.protocol = Protocol::B);
}

#[test]
fn writes_in_protocol_a() {
    changes("06", SMALL, |c| c.protocol = Protocol::A);
}

#[test]
fn discards_and_zeroes() {
    changes("14", Sector(8192), |_| {});
}

#[test]
fn writes_with_digests() {
    changes("24", SMALL, |c| c.integrity = Some("crc32c".to_owned()));
}

/// Node 0 is Primary and was written to while they were apart.
fn copied_after_an_outage(number: &str, change: fn(&mut ConnectionConfig)) {
    for node in [0, 1] {
        let mut replay = Replay::connect(number, node, change);
        replay.came_back = true;
        replay.primary(0);
        replay.live(node == 1);
        let states = ["Primary/Secondary", "Secondary/Primary"];
        let state = format!("Connected {} Connected UpToDate/UpToDate", states[usize::from(node)]);
        assert_eq!(replay.node.state(), state);
    }
}

#[test]
fn a_bitmap_says_what_is_copied() {
    copied_after_an_outage("10", |_| {});
}

#[test]
fn what_has_the_same_digest_is_not_copied() {
    copied_after_an_outage("11", |c| c.csums = Some("sha256".to_owned()));
}

#[test]
fn a_plain_bitmap_says_what_is_copied() {
    copied_after_an_outage("36", |c| c.use_rle = false);
}

/// Node 0 writes while its peer is a target that replicates again.
#[test]
fn what_is_written_meanwhile_is_sent() {
    copied_after_an_outage("37", |_| {});
}

/// Both have been Primary while they were apart, and node 1 was told to discard its data.
#[test]
fn who_is_told_to_discards_its_data() {
    copied_after_an_outage("23", |_| {});
}

/// Node 0 is made Primary by force, with fresh disks on both.
fn forced(number: &str, size: Sector, granule: u32) {
    for node in [0, 1] {
        let fresh = |said: &[Said], node| {
            let mut starts = disk(said, node, true, size);
            starts[0].1.resync.discard_granularity = granule;
            starts
        };
        let mut replay = Replay::joined(number, node, fresh, |_| {}, |_| {});
        replay.follow();
        replay.play();
        let states = ["Primary/Secondary", "Secondary/Primary"];
        let state = format!("Connected {} Connected UpToDate/UpToDate", states[usize::from(node)]);
        assert_eq!(replay.node.state(), state);
    }
}

#[test]
fn who_is_made_primary_by_force_is_copied() {
    forced("02", Sector(384), 0);
}

#[test]
fn what_is_all_zeroes_is_not_sent() {
    forced("26", Sector(1024), 32768);
}

fn with_crc(c: &mut ConnectionConfig) {
    c.verify = Some("crc32c".to_owned());
}

/// Node 0 is Primary, and has the disks compared; two blocks differ.
fn verified(said: Vec<Said>, change: fn(&mut ConnectionConfig), node: u8) -> Replay {
    let primary = |pair: &mut node::Together| {
        pair.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
        pair.command(0, Command::Primary { force: false });
    };
    let fresh = |said: &[Said], node| disk(said, node, true, SMALL);
    let mut replay = Replay::of_joined(said, node, fresh, change, primary);
    replay.follow();
    if node == 1 {
        replay.hear_position_of_verify();
    }
    replay
}

/// Node 0 writes before they connect again: what was found is copied then. In the other recording it does not: no
/// generation tells of it, and it is forgotten.
#[test]
fn disks_are_compared_and_connect_again() {
    for (number, writes) in [("12", true), ("40", false)] {
        for node in [0, 1] {
            let mut replay = verified(conversation(number), with_crc, node);
            if writes && node == 0 {
                let write = RequestKind::Write { fua: false };
                replay.act_at(Duration::from_millis(1_200), move |node, now| {
                    node.write(now, VOLUME, write, Sector(160), 4096);
                });
            }
            replay.links_up();
            replay.play();
            let done = "verify-done: online verify done: 8 KiB differ, 0 KiB skipped";
            assert!(replay.node.notes.iter().any(|note| note.starts_with(done)), "{:#?}", replay.node.notes);
            let copied = replay.node.notes.iter().any(|note| note.starts_with("resync-done"));
            assert_eq!(copied, writes, "{number}, node {node}: {:#?}", replay.node.notes);
        }
    }
}

/// Node 0 pauses, node 1 gives its copy up.
#[test]
fn an_invalidated_disk_is_copied_when_the_pause_is_over() {
    for node in [0, 1] {
        let mut replay = Replay::joined("30", node, |said, node| disk(said, node, false, Sector(256)), |_| {}, |_| {});
        replay.follow();
        replay.play();
        assert_eq!(replay.node.state(), SECONDARIES);
    }
}

/// Node 1 gives up what a verify has marked.
#[test]
fn only_what_is_marked_is_invalidated() {
    for node in [0, 1] {
        let mut replay = verified(conversation("42"), |c| c.verify = Some("sha1".to_owned()), node);
        replay.play();
        let states = ["Primary/Secondary", "Secondary/Primary"];
        let state = format!("Connected {} Connected UpToDate/UpToDate", states[usize::from(node)]);
        assert_eq!(replay.node.state(), state);
    }
}

/// Node 0 gives up the copy of node 1, and later node 1 that of node 0; a whole life from the connect on.
#[test]
fn a_peer_is_invalidated() {
    for node in [0, 1] {
        let mut replay = Replay::connect("47", node, |_| {});
        replay.live(node == 1);
        assert_eq!(replay.node.state(), SECONDARIES);
    }
}

/// Node 1 lets go of its disk and takes it into service again, while node 0, Primary, writes.
#[test]
fn a_disk_comes_back_to_a_connected_node() {
    let mut said = conversation("19");
    let begin = said[0].at;
    said.retain(|said| said.at.since(begin) < Duration::from_millis(300));
    // Node 1 tells the generation that it has: the one that the Primary's slot counts from.
    let slot = |s: &Said| if let Packet::Uuids110(u) = &s.packet { u.bitmap(NodeId::new(1)?) } else { None };
    let current = said.iter().find_map(slot).expect("a slot");
    for node in [0, 1] {
        let start = |said: &[Said], of: NodeId| {
            let mut starts = disk(said, of, node == 0, Sector(256));
            if node == 1 {
                starts[0].1.uuids.current = current;
            }
            starts
        };
        let equal = |pair: &mut node::Together| {
            if node == 0 {
                pair.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
            }
            pair.command(0, Command::Primary { force: false });
        };
        let mut replay = Replay::of_joined(said.clone(), node, start, |_| {}, equal);
        replay.follow();
        if node == 0 {
            replay.write_alone();
        } else {
            let told = |s: &Said| if let Packet::RsDagtagReq(r) = &s.packet { Some(r.dagtag) } else { None };
            replay.hear_position_at(said.iter().find_map(told).expect("a request"));
        }
        replay.play();
        let states = ["Primary/Secondary", "Secondary/Primary"];
        let state = format!("Connected {} Connected UpToDate/UpToDate", states[usize::from(node)]);
        assert_eq!(replay.node.state(), state);
    }
}

/// Three nodes with fresh disks come up, and each connects with each.
#[test]
fn three_nodes_with_fresh_disks_connect() {
    for node in [0, 1, 2] {
        let mut replay = Replay::whole(conversation("07"), node, |_| {});
        replay.links_up();
        replay.play();
        for place in [0, 1] {
            assert_eq!(replay.node.state_towards(place), FRESH, "node {node}");
        }
    }
}

/// Node 0 of three is Primary and writes; then it is demoted.
#[test]
fn three_nodes_hear_who_has_what() {
    for node in [0, 1, 2] {
        let mut replay = Replay::joined(
            "08",
            node,
            |said, node| disk(said, node, true, SMALL),
            |_| {},
            |nodes| {
                nodes.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
                nodes.command(0, Command::Primary { force: false });
            },
        );
        replay.follow();
        if node != 0 {
            replay.hear_position();
        }
        replay.play();
        for place in [0, 1] {
            assert_eq!(replay.node.state_towards(place), SECONDARIES, "node {node}");
        }
    }
}

/// More than half of the nodes must be within reach, else I/O freezes.
fn majority(cfg: &mut ResourceConfig) {
    cfg.quorum = QuorumConfig::new(Threshold::Majority, Threshold::Off, OnNoQuorum::SuspendIo);
}

/// A part of a conversation, in milliseconds.
fn between(number: &str, from: u64, to: u64) -> Vec<Said> {
    let mut said = conversation(number);
    let begin = said[0].at;
    let at = |said: &Said| said.at.since(begin);
    said.retain(|said| (Duration::from_millis(from)..Duration::from_millis(to)).contains(&at(said)));
    said
}

/// Of which transaction it is.
fn transaction(packet: &Packet) -> Option<u32> {
    match packet {
        Packet::TwopcPrepare(p) => Some(p.transaction.tid),
        Packet::TwopcCommit(d) | Packet::TwopcAbort(d) => Some(d.transaction.tid),
        Packet::TwopcYes(v) | Packet::TwopcNo(v) | Packet::TwopcRetry(v) => Some(v.tid),
        _ => None,
    }
}

/// Disks of three nodes that have the same data.
fn equal_three(said: &[Said], node: NodeId) -> Vec<(VolumeNr, Start)> {
    let mut starts = disk(said, node, false, Sector(1024));
    (starts[0].1.uuids.tracked, starts[0].1.uuids.bitmaps) = (NodeMask(7), vec![Generation::NONE; 3]);
    starts
}

/// Node 0, Primary, writes until it is gone, and neither of the others knew what the other one had: they connect, and
/// who has less gets the rest.
#[test]
fn survivors_that_connect_compare_what_they_have() {
    for node in [0, 1, 2] {
        let primary = |nodes: &mut node::Together| {
            nodes.forgive();
            nodes.command(0, Command::Primary { force: false });
            if node == 0 {
                // It has written before.
                let write = RequestKind::Write { fua: false };
                nodes.act(0, |node, now| node.write(now, VOLUME, write, Sector(0), 4096));
                nodes.pass(500);
            }
            nodes.cut(1, 2);
        };
        let small = |said: &[Said], node| {
            let mut starts = equal_three(said, node);
            (starts[0].1.size, starts[0].1.room) = (SMALL, SMALL);
            starts
        };
        let change = |c: &mut ConnectionConfig| c.protocol = Protocol::A;
        let mut said = conversation("27");
        // The link to node 1 was cut behind where this was seen: neither got what the other one said.
        let (begin, mut lost) = (said[0].at, [0, 1].map(|n| NodeId::new(n).unwrap()));
        if node == 0 {
            lost.reverse();
            // What it is asked then it does not hear any more.
            let gone = said.iter().rposition(|s| s.from.index() == 0).expect("it writes");
            said.truncate(gone + 1);
        }
        said.retain(|s| [s.from, s.to] != lost || s.at.since(begin) < Duration::from_millis(342));
        let mut replay = Replay::of_joined(said, node, small, change, primary);
        if node != 1 {
            replay.follow();
        }
        if node != 0 {
            replay.hear_position();
            replay.lose(0, Duration::from_millis(1_000));
            replay.links_up();
        }
        replay.play();
        assert_eq!(replay.node.core.snapshot().devices[0].disk, wire::DiskState::UpToDate, "node {node}");
    }
}

/// Disks of two nodes of 1 MiB, that have the same data, and room for more.
fn with_room(said: &[Said], node: NodeId, size: u64, room: u64) -> Vec<(VolumeNr, Start)> {
    let mut starts = disk(said, node, true, Sector(size));
    starts[0].1.room = Sector(room);
    starts
}

/// Node 1 ends the resync. The core keeps in its history which generation its disk had before, as after any other
/// resync; the recorded node does not. And it has got that in one piece, which it has acknowledged.
fn remember(said: &mut Said) {
    match &mut said.packet {
        Packet::Uuids110(u) => u.history[0] = Generation(0x012b_7ba4_7657_8b6a),
        Packet::WriteAck(ack) => ack.seq = 2,
        _ => {}
    }
}

/// What node 1 has room for: the core learns how large a disk is when that is attached.
fn is_large_from_the_start(said: &mut Said) {
    if let Packet::TwopcYes(vote) = &mut said.packet {
        let head = wire::Transaction {
            tid: vote.tid,
            initiator: vote.initiator,
            target: None,
            nodes_to_reach: WireMask::NONE,
            has_reachable: false,
            primary_incapable: false,
        };
        **vote = wire::Vote::on_resize(&head, vote.reachable_nodes, vote.primary_nodes, LARGE);
    }
}

const LARGE: Sector = Sector(8192);

/// Node 0 is Primary, and the disks become larger: what is added is copied from it. Later it says that the disks are
/// clean there, and writes.
#[test]
fn a_device_grows() {
    for node in [0, 1] {
        let primary = |pair: &mut node::Together| {
            pair.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
            pair.command(0, Command::Primary { force: false });
        };
        let mut said = conversation("20");
        said.iter_mut().filter(|said| said.from.index() == 1).for_each(remember);
        if node == 1 {
            said.iter_mut().filter(|said| said.from.index() == 1).for_each(is_large_from_the_start);
        }
        let grown = |said: &[Said], node| with_room(said, node, 2048, LARGE.0);
        let mut replay = Replay::of_joined(said, node, grown, |_| {}, primary);
        replay.follow();
        replay.play();
        assert_eq!(replay.node.size(), LARGE, "node {node}");
        let states = ["Primary/Secondary", "Secondary/Primary"];
        let state = format!("Connected {} Connected UpToDate/UpToDate", states[usize::from(node)]);
        assert_eq!(replay.node.state(), state, "{:#?}", replay.node.notes);
    }
}
