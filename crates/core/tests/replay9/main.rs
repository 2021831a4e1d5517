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
mod hostile;
mod in_sync;
mod joining;
mod losing;
mod mesh;
mod node;
mod recording;
mod replay;
mod sources;
mod starts;
mod tolerance;

use node::Start;
use recording::{Said, conversation};
use replay::{Replay, until_parted};
use starts::{others_of, resync_options};
use units::{Duration, Generation, NodeId, NodeMask, Sector, VolumeNr};
use urbd_core::{Command, ConnectionConfig, OnIoError, Protocol, RequestKind};
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

/// The node that adopts the other's generation is not replaced: 9.2.18 puts that of the other's vacant slot into its
/// history, which 9.3.3 does not.
#[test]
fn an_older_release_is_replaced() {
    let mut replay = Replay::connect("34", 0, |_| {});
    replay.live(false);
    assert_eq!(replay.node.state(), "Connected Primary/Secondary Connected UpToDate/UpToDate");
}

/// Node 1 is 9.2.18. In its place the core would agree on more with a 9.3.3.
#[test]
fn an_older_release_is_understood() {
    let mut replay = Replay::whole(until_parted(conversation("33")), 0, |_| {});
    replay.live(false);
    assert_eq!(replay.node.state(), "Connecting Primary/Unknown WFConnection UpToDate/DUnknown");
}

#[test]
fn a_whole_life_over_another_transport() {
    let alone = "Connecting Primary/Unknown WFConnection UpToDate/DUnknown";
    from_the_start("39", [alone, "StandAlone Secondary/Unknown StandAlone UpToDate/DUnknown"], |_| {});
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
    let primary = |pair: &mut node::Together| pair.command(0, Command::Primary { force: false });
    let mut replay = Replay::of_joined(said, node, equal, change, primary);
    replay.follow();
    if node == 1 {
        replay.hear_position_of_verify();
    }
    replay
}

#[test]
fn disks_are_compared() {
    for number in ["12", "40"] {
        for node in [0, 1] {
            let mut replay = verified(until_parted(conversation(number)), with_crc, node);
            replay.play();
            let done = "verify-done: online verify done: 8 KiB differ, 0 KiB skipped";
            assert!(replay.node.notes.iter().any(|note| note.starts_with(done)), "{:#?}", replay.node.notes);
        }
    }
}

/// The Primary has begun a generation since.
#[test]
fn what_a_verify_found_is_copied_at_the_next_connect() {
    for node in [0, 1] {
        let mut replay = Replay::reconnect("12", node, with_crc);
        replay.came_back = true;
        replay.primary(0);
        replay.link_up(node == 1);
        replay.play();
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

/// No generation tells of what a verify found when nobody wrote since: it is forgotten.
#[test]
fn what_a_verify_found_is_forgotten_where_generations_are_equal() {
    for node in [0, 1] {
        let mut replay = Replay::reconnect("40", node, with_crc);
        replay.came_back = true;
        if node == 0 {
            replay.node.command(replay.now, Command::Primary { force: false });
            replay.node.turn(replay.now);
        }
        replay.link_up(node == 1);
        replay.play();
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

/// Nodes 0 and 2 do not reach each other. All are promoted, one after the other, and write; what an end of the chain
/// lacks comes to it when nobody is Primary. At last node 1, Primary, makes the device smaller.
#[test]
fn a_chain_passes_on_what_is_agreed_on_and_written() {
    for node in [0, 1, 2] {
        let chain = |nodes: &mut node::Together| {
            nodes.forgive();
            nodes.cut(0, 2);
        };
        let mut said = between("52", 2_500, 19_600);
        // Node 2 asks whether it may be Primary although its copy is outdated, which the core does not.
        said.retain(|said| node != 2 || transaction(&said.packet) != Some(3_342_041_926));
        let mut replay = Replay::of_joined(said, node, equal_three, |_| {}, chain);
        replay.follow();
        replay.play();
        let disks = replay.node.core.snapshot();
        assert_eq!(disks.devices[0].disk, wire::DiskState::UpToDate, "node {node}");
        assert_eq!(replay.node.size(), Sector(768), "node {node}");
    }
}

/// Two are promoted at the same time, again and again.
#[test]
fn promotions_collide() {
    for node in [0, 1, 2] {
        let nothing = |nodes: &mut node::Together| nodes.forgive();
        let mut replay = Replay::of_joined(between("54", 2_500, 13_900), node, equal_three, |_| {}, nothing);
        replay.follow();
        replay.play();
        for place in [0, 1] {
            assert_eq!(replay.node.state_towards(place), SECONDARIES, "node {node}");
        }
    }
}

/// Node 0 is Primary and writes, discards and zeroes, until node 2 leaves.
#[test]
fn discards_of_three() {
    for node in [0, 1, 2] {
        let fresh = |said: &[Said], node| disk(said, node, true, Sector(1024));
        let primary = |nodes: &mut node::Together| {
            nodes.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
            nodes.command(0, Command::Primary { force: false });
        };
        let mut replay = Replay::of_joined(between("68", 2_500, 6_400), node, fresh, |_| {}, primary);
        replay.write_from_the_start();
        replay.follow();
        if node != 0 {
            replay.hear_position();
        }
        replay.play();
    }
}

/// Node 0, Primary, is gone, and neither of the others knew what the other one had: they connect, and who has less gets
/// the rest.
#[test]
fn survivors_that_connect_compare_what_they_have() {
    for node in [1, 2] {
        let primary = |nodes: &mut node::Together| {
            nodes.forgive();
            nodes.command(0, Command::Primary { force: false });
            nodes.cut(1, 2);
        };
        let small = |said: &[Said], node| {
            let mut starts = equal_three(said, node);
            (starts[0].1.size, starts[0].1.room) = (SMALL, SMALL);
            starts
        };
        let change = |c: &mut ConnectionConfig| c.protocol = Protocol::A;
        let mut said = conversation("27");
        // The link to node 1 was cut behind where this was seen.
        let (begin, ids) = (said[0].at, [0, 1].map(|n| NodeId::new(n).unwrap()));
        said.retain(|s| [s.from, s.to] != ids || s.at.since(begin) < Duration::from_millis(342));
        let mut replay = Replay::of_joined(said, node, small, change, primary);
        replay.hear_position();
        if node == 2 {
            replay.follow();
        }
        replay.lose(0, Duration::from_millis(1_000));
        replay.links_up();
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
/// resync; the recorded node does not. When it acknowledges the write it has said less before than the recorded one.
fn remember(said: &mut Said) {
    match &mut said.packet {
        Packet::Uuids110(u) => u.history[0] = Generation(0x012b_7ba4_7657_8b6a),
        Packet::WriteAck(ack) => ack.seq = 1,
        _ => {}
    }
}

/// Node 0 is Primary: what is added is copied from it. Later it says that the disks are clean there, and writes.
#[test]
fn a_device_grows() {
    for node in [0, 1] {
        for (from, to, size, room) in [(0, 1_000, 2048, 2304), (1_000, 2_000, 2304, 8192)] {
            let primary = |pair: &mut node::Together| {
                pair.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
                pair.command(0, Command::Primary { force: false });
                if from > 0 && node == 0 {
                    pair.act(0, |node, now| {
                        node.write(now, VOLUME, RequestKind::Write { fua: false }, Sector(0), 4096)
                    });
                    pair.pass(500);
                }
            };
            let grown = |said: &[Said], node| with_room(said, node, size, room);
            let mut said = between("20", from, to);
            said.iter_mut().filter(|said| said.from.index() == 1).for_each(remember);
            let mut replay = Replay::of_joined(said, node, grown, |_| {}, primary);
            replay.follow();
            if from > 0 && node == 1 {
                replay.hear_position();
            }
            replay.play();
            assert_eq!(replay.node.size(), Sector(room), "node {node}");
            let states = ["Primary/Secondary", "Secondary/Primary"];
            let state = format!("Connected {} Connected UpToDate/UpToDate", states[usize::from(node)]);
            assert_eq!(replay.node.state(), state, "{:#?}", replay.node.notes);
        }
    }
}
