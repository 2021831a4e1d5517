//! Volumes and peers that are made and removed at run time (`docs/spec/connection-and-state.md` 4.8, 12.12).

use crate::rig::{Pair, Shape, VOLUME};
use std::net::SocketAddr;
use units::{Duration, NodeId, VolumeNr};
use urbd_core::ConnectionState::StandAlone;
use urbd_core::{Command, ConnectionConfig, DiskConfig, Openers, ResourceConfig, VolumeConfig};
use wire::{ConnState, DiskState, Role};

const V09: Shape = Shape { version: meta::Version::V09, slots: 2, ..Shape::DEFAULT };
const SECOND: VolumeNr = VolumeNr(1);
const LIMIT: Duration = Duration::from_secs(20);

fn third() -> NodeId {
    NodeId::new(2).expect("a node id")
}

fn newest(cfg: &mut ResourceConfig) {
    cfg.connections[0].max_version = wire::Version::MAX.number();
}

/// Both dialects: connected, both UpToDate, the first one Primary.
fn pairs() -> [Pair; 2] {
    [Pair::on(V09, true, |_| {}), Pair::on(V09, true, newest)]
}

/// Not connected, and without disks.
fn apart(mut pair: Pair) -> Pair {
    pair.command(0, Command::Secondary { force: false });
    pair.run(200);
    let peer = pair.nodes[0].peer;
    pair.command(0, Command::Disconnect { peer, force: false });
    pair.run(100);
    let peer = pair.nodes[1].peer;
    pair.command(1, Command::Disconnect { peer, force: false });
    pair.run(100);
    for n in [0, 1] {
        pair.command(n, Command::Detach { volume: VOLUME, force: false });
    }
    pair.run(200);
    pair
}

fn add_volume(cfg: &mut ResourceConfig) {
    cfg.volumes.push(VolumeConfig { volume: SECOND, disk: Some(DiskConfig::default()) });
}

fn remove_volume(cfg: &mut ResourceConfig) {
    cfg.volumes.retain(|v| v.volume != SECOND);
}

fn add_third(cfg: &mut ResourceConfig) {
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let max_version = cfg.connections[0].max_version;
    let new = ConnectionConfig::new(third(), "third", (address(7790), address(7791)));
    cfg.connections.push(ConnectionConfig { max_version, ..new });
}

/// Of those without any peer.
fn add_third_alone(cfg: &mut ResourceConfig) {
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let new = ConnectionConfig::new(third(), "third", (address(7790), address(7791)));
    cfg.connections.push(ConnectionConfig { max_version: wire::Version::MAX.number(), ..new });
}

fn remove_peer(cfg: &mut ResourceConfig, peer: NodeId) {
    cfg.connections.retain(|c| c.peer != peer);
}

/// Each volume and its disk; each peer, its connection, and the volumes between.
type There = (Vec<(u16, DiskState)>, Vec<(usize, urbd_core::ConnectionState, Vec<u16>)>);

fn there(pair: &Pair, n: usize) -> There {
    let snapshot = pair.nodes[n].core.snapshot();
    let numbers = |all: &[urbd_core::PeerDeviceSnapshot]| all.iter().map(|pd| pd.volume.0).collect();
    (
        snapshot.devices.iter().map(|d| (d.volume.0, d.disk)).collect(),
        snapshot.connections.iter().map(|c| (c.peer.index(), c.state, numbers(&c.peer_devices))).collect(),
    )
}

fn code(ended: Option<Result<(), urbd_core::CommandError>>) -> Option<i32> {
    ended.map(|result| result.err().map_or(0, |error| error.code))
}

#[test]
fn what_a_configuration_has_more_is_made_and_nothing_of_it_starts() {
    for pair in pairs() {
        let mut pair = apart(pair);
        assert_eq!(code(pair.reconfigure(0, add_volume)), Some(0));
        assert_eq!(
            there(&pair, 0),
            (vec![(0, DiskState::Diskless), (1, DiskState::Diskless)], vec![(1, StandAlone, vec![0, 1])])
        );
        assert_eq!(code(pair.reconfigure(0, add_third)), Some(0));
        assert_eq!(there(&pair, 0).1, vec![(1, StandAlone, vec![0, 1]), (2, StandAlone, vec![0, 1])]);
        let third = pair.nodes[0].core.snapshot().connections[1].clone();
        assert_eq!((third.peer_name.as_str(), third.peer_devices[0].peer_disk), ("third", DiskState::DUnknown));
        // Both volumes are used, beside each other.
        for volume in [VOLUME, SECOND] {
            pair.command(0, Command::Attach { volume });
        }
        pair.run(200);
        assert_eq!(there(&pair, 0).0, vec![(0, DiskState::UpToDate), (1, DiskState::UpToDate)]);
    }
}

#[test]
fn what_a_configuration_has_no_more_is_removed_and_may_come_again() {
    for pair in pairs() {
        let mut pair = apart(pair);
        let peer = pair.nodes[0].peer;
        pair.reconfigure(0, add_volume);
        pair.reconfigure(0, add_third);
        assert_eq!(code(pair.reconfigure(0, |cfg| cfg.volumes.retain(|v| v.volume == SECOND))), Some(0));
        assert_eq!(there(&pair, 0).0, vec![(1, DiskState::Diskless)]);
        assert_eq!(code(pair.reconfigure(0, |cfg| remove_peer(cfg, peer))), Some(0));
        assert_eq!(there(&pair, 0).1, vec![(2, StandAlone, vec![1])]);
        // Neither is missed by a command that names it.
        let gone = [
            Command::Attach { volume: VOLUME },
            Command::Connect { peer, discard_my_data: false, tentative: false },
            Command::Verify { volume: SECOND, peer: Some(peer), start: None, stop: None, repair: false },
        ];
        for (id, command) in (0..).zip(gone) {
            pair.command_with_id(0, id, command);
        }
        pair.run(20);
        let codes = [0, 1, 2].map(|id| code(pair.answer_to(0, id)));
        assert_eq!(codes, [Some(127), Some(158), Some(158)]);
        // All of it at once comes back, as it was.
        let other = pair.nodes[1].cfg.connections[0].clone();
        let back = |cfg: &mut ResourceConfig| {
            cfg.volumes = vec![VolumeConfig { volume: VOLUME, disk: Some(DiskConfig::default()) }];
            cfg.connections = vec![ConnectionConfig { peer, peer_name: "other".to_owned(), ..other.clone() }];
        };
        assert_eq!(code(pair.reconfigure(0, back)), Some(0));
        assert_eq!(there(&pair, 0), (vec![(0, DiskState::Diskless)], vec![(1, StandAlone, vec![0])]));
        for n in [0, 1] {
            pair.command(n, Command::Attach { volume: VOLUME });
        }
        pair.run(200);
        for n in [0, 1] {
            let peer = pair.nodes[n].peer;
            pair.command(n, Command::Connect { peer, discard_my_data: false, tentative: false });
        }
        pair.run(20);
        pair.link();
        pair.run(200);
        assert_eq!(pair.states(), [ConnState::Connected; 2], "{:?}", pair.nodes[0].notes);
    }
}

#[test]
fn what_is_in_use_is_not_removed_and_nothing_else_of_the_configuration_counts() {
    for mut pair in pairs() {
        pair.reconfigure(0, add_volume);
        let before = there(&pair, 0);
        let peer = pair.nodes[0].peer;
        // A disk that is attached, beside a volume that could go, and a peer that would come.
        let refused = pair.reconfigure(0, |cfg| {
            cfg.volumes.clear();
            add_third(cfg);
        });
        assert_eq!(code(refused), Some(160));
        assert_eq!(code(pair.reconfigure(0, |cfg| remove_peer(cfg, peer))), Some(125));
        // Somebody has it open.
        let (now, open) = (pair.now, Openers { writers: 0, readers: 1 });
        pair.nodes[0].core.on_openers(now, SECOND, open);
        assert_eq!(code(pair.reconfigure(0, remove_volume)), Some(-12));
        pair.nodes[0].core.on_openers(now, SECOND, Openers::default());
        assert_eq!(code(pair.reconfigure(0, |cfg| cfg.node = third())), Some(162));
        let own = pair.nodes[0].cfg.node;
        let itself = |cfg: &mut ResourceConfig| {
            add_third(cfg);
            cfg.connections[1].peer = own;
        };
        assert_eq!(code(pair.reconfigure(0, itself)), Some(162));
        assert_eq!(there(&pair, 0), before);
        assert_eq!(pair.states(), [ConnState::Connected; 2]);
        pair.writes(10, 2, || 5);
    }
}

/// It has no data yet, and nobody waits for it: what the others are written to goes on.
#[test]
fn a_primary_goes_on_beside_a_volume_without_data() {
    for mut pair in pairs() {
        assert_eq!(code(pair.reconfigure(0, add_volume)), Some(0));
        pair.writes(10, 2, || 5);
        let snapshot = pair.nodes[0].core.snapshot();
        assert_eq!((snapshot.role, snapshot.suspended.any()), (Role::Primary, false));
        assert_eq!(pair.states(), [ConnState::Connected; 2]);
    }
}

/// What both nodes say of the second volume: its disk, the replication, the peer's disk.
fn second(pair: &Pair, n: usize) -> Option<(DiskState, ConnState, DiskState)> {
    let snapshot = pair.nodes[n].core.snapshot();
    let disk = snapshot.devices.iter().find(|d| d.volume == SECOND)?.disk;
    let between = snapshot.connections[0].peer_devices.iter().find(|pd| pd.volume == SECOND)?;
    Some((disk, between.replication, between.peer_disk))
}

fn no_link_was_closed(pair: &Pair) {
    for n in [0, 1] {
        let closed = pair.nodes[n].notes.iter().filter(|note| **note == "link closed").count();
        assert_eq!(closed, 0, "{:?}", pair.nodes[n].notes);
    }
}

fn attach_second(pair: &mut Pair, n: usize) {
    pair.command(n, Command::Attach { volume: SECOND });
    pair.run(200);
}

const DISKLESS: Option<(DiskState, ConnState, DiskState)> =
    Some((DiskState::Diskless, ConnState::Connected, DiskState::Diskless));
const GOOD: Option<(DiskState, ConnState, DiskState)> =
    Some((DiskState::UpToDate, ConnState::Connected, DiskState::UpToDate));

/// Made in either order, or on both at once, and attached in either order, a volume comes into use on a connected link.
#[test]
fn a_volume_comes_into_use_without_a_reconnect() {
    for order in [[0, 1], [1, 0]] {
        for attached in [[0, 1], [1, 0]] {
            for mut pair in pairs() {
                for n in order {
                    assert_eq!(code(pair.reconfigure(n, add_volume)), Some(0));
                    pair.nodes[n].notes.clear();
                }
                assert_eq!([0, 1].map(|n| second(&pair, n)), [DISKLESS; 2], "{order:?}");
                for n in attached {
                    attach_second(&mut pair, n);
                }
                assert_eq!([0, 1].map(|n| second(&pair, n)), [GOOD; 2], "{order:?} {:?}", pair.nodes[0].notes);
                pair.request_to(SECOND, 0, 7, urbd_core::RequestKind::Write { fua: false });
                pair.writes(10, 2, || 5);
                no_link_was_closed(&pair);
            }
        }
    }
}

#[test]
fn a_volume_that_both_make_at_once_comes_into_use() {
    for mut pair in pairs() {
        for n in [0, 1] {
            let mut cfg = pair.nodes[n].cfg.clone();
            add_volume(&mut cfg);
            pair.command(n, Command::ChangeOptions(Box::new(cfg)));
        }
        pair.run(20);
        assert_eq!([0, 1].map(|n| second(&pair, n)), [DISKLESS; 2]);
        for n in [0, 1] {
            pair.command(n, Command::Attach { volume: SECOND });
        }
        pair.until(LIMIT, |p| [0, 1].map(|n| second(p, n)) == [GOOD; 2]);
        no_link_was_closed(&pair);
    }
}

/// One has used it alone, and what it has written then is copied to the other one.
#[test]
fn a_volume_that_one_has_used_is_copied_to_the_other() {
    for mut pair in pairs() {
        assert_eq!(code(pair.reconfigure(0, add_volume)), Some(0));
        attach_alone(&mut pair);
        for block in 0..20 {
            pair.request_to(SECOND, 0, block * 1000, urbd_core::RequestKind::Write { fua: false });
        }
        pair.run(200);
        assert_eq!(code(pair.reconfigure(1, add_volume)), Some(0));
        attach_second(&mut pair, 1);
        pair.until(LIMIT, |p| [0, 1].map(|n| second(p, n)) == [GOOD; 2]);
        assert_eq!(pair.nodes[0].core.known_different(SECOND, pair.nodes[0].peer, whole()), 0);
        assert!(pair.nodes[1].counts.disk_writes >= 20, "{:?}", pair.nodes[1].counts);
        no_link_was_closed(&pair);
    }
}

/// The peer does not have it, which is known after a while.
fn attach_alone(pair: &mut Pair) {
    pair.command(0, Command::Attach { volume: SECOND });
    pair.until(LIMIT, |p| second(p, 0).is_some_and(|(disk, ..)| disk == DiskState::UpToDate));
}

fn whole() -> units::SectorRange {
    units::SectorRange { start: units::Sector(0), end: units::Sector(1 << 20) }
}

/// A disk that came into use before the nodes knew that both have the volume is compared in a handshake.
#[test]
fn two_disks_that_were_not_compared_are_compared_in_a_handshake() {
    for mut pair in pairs() {
        assert_eq!(code(pair.reconfigure(0, add_volume)), Some(0));
        attach_alone(&mut pair);
        let mut cfg = pair.nodes[1].cfg.clone();
        add_volume(&mut cfg);
        // What the first node says of it does not come through before the other one has attached, too.
        pair.nodes[0].lost = |packet| matches!(packet, wire::Packet::State(_));
        pair.command(1, Command::ChangeOptions(Box::new(cfg)));
        pair.command(1, Command::Attach { volume: SECOND });
        pair.run(200);
        pair.nodes[0].lost = |_| false;
        pair.command(0, Command::PauseSync { volume: SECOND });
        pair.command(0, Command::ResumeSync { volume: SECOND });
        pair.until_beside(
            LIMIT,
            |p| [0, 1].map(|n| second(p, n)) == [GOOD; 2],
            |p| {
                if p.nodes.iter().all(|n| n.link_wanted) {
                    p.link();
                }
            },
        );
        assert!(pair.nodes.iter().any(|n| n.notes.contains(&"volume-came")), "{:?}", pair.nodes[1].notes);
    }
}

/// Whoever has it goes on with it, and with the others, whichever removes it, and it may come again.
#[test]
fn a_volume_is_removed_from_a_connected_node_and_comes_again() {
    for first in [0, 1] {
        for mut pair in pairs() {
            let other = 1 - first;
            for n in [0, 1] {
                pair.reconfigure(n, add_volume);
            }
            for n in [0, 1] {
                attach_second(&mut pair, n);
            }
            pair.run(100);
            pair.command(first, Command::Detach { volume: SECOND, force: false });
            pair.run(300);
            assert_eq!(code(pair.reconfigure(first, remove_volume)), Some(0), "{:?}", pair.nodes[first].notes);
            assert_eq!(second(&pair, first), None);
            let left = Some((DiskState::UpToDate, ConnState::WFReportParams, DiskState::DUnknown));
            assert_eq!(second(&pair, other), left);
            pair.writes(10, 2, || 5);
            if first == 1 {
                // Only the Primary's copy is there.
                for block in 0..20 {
                    pair.request_to(SECOND, 0, block * 1000, urbd_core::RequestKind::Write { fua: false });
                }
                pair.run(200);
            }
            assert_eq!(code(pair.reconfigure(first, add_volume)), Some(0));
            pair.run(20);
            assert_eq!(second(&pair, first), Some((DiskState::Diskless, ConnState::Connected, DiskState::UpToDate)));
            attach_second(&mut pair, first);
            pair.until(LIMIT, |p| [0, 1].map(|n| second(p, n)) == [GOOD; 2]);
            no_link_was_closed(&pair);
            // And both remove it.
            pair.command(0, Command::Secondary { force: false });
            pair.run(300);
            for n in [0, 1] {
                pair.command(n, Command::Detach { volume: SECOND, force: false });
                pair.run(300);
            }
            for n in [0, 1] {
                assert_eq!(code(pair.reconfigure(n, remove_volume)), Some(0), "{:?}", pair.nodes[n].notes);
            }
            pair.command(0, Command::Primary { force: false });
            pair.run(100);
            pair.writes(10, 2, || 5);
            no_link_was_closed(&pair);
        }
    }
}

/// Who removes a volume in order need not be fenced: the Primary that has it goes on.
#[test]
fn nobody_is_fenced_for_a_volume_that_is_removed() {
    for newest in [false, true] {
        let fences = |cfg: &mut ResourceConfig| {
            cfg.volumes.iter_mut().filter_map(|v| v.disk.as_mut()).for_each(|disk| {
                disk.fencing = urbd_core::Fencing::ResourceAndStonith;
            });
        };
        let mut pair = Pair::on(V09, true, |cfg| {
            fences(cfg);
            if newest {
                self::newest(cfg);
            }
        });
        for n in [0, 1] {
            let made = pair.reconfigure(n, |cfg| {
                add_volume(cfg);
                fences(cfg);
            });
            assert_eq!(code(made), Some(0));
        }
        for n in [0, 1] {
            attach_second(&mut pair, n);
        }
        pair.command(1, Command::Detach { volume: SECOND, force: false });
        pair.run(300);
        assert_eq!(code(pair.reconfigure(1, remove_volume)), Some(0), "{:?}", pair.nodes[0].notes);
        pair.writes(10, 2, || 5);
        pair.request_to(SECOND, 0, 5, urbd_core::RequestKind::Write { fua: false });
        pair.writes(10, 2, || 5);
        assert!(!pair.nodes[0].core.snapshot().suspended.any());
        no_link_was_closed(&pair);
    }
}

/// What comes for a volume that is not there is consumed, and what waits for an answer gets one.
#[test]
fn nothing_about_a_volume_that_is_not_there_ends_a_link() {
    use wire::{BlockAck, BlockId, BlockRange, BlockRequest, DpFlags, Packet, Socket};
    let (sector, size, block_id) = (units::Sector(8), units::ByteLen(4096), BlockId(77));
    let ack = BlockAck { sector, block_id, size, seq: 1 };
    let data = wire::Write { sector, block_id, seq: 1, flags: DpFlags::NONE, size, digest: wire::Digest::EMPTY };
    let request = BlockRequest { sector, block_id, size };
    let on_data = [
        Packet::Data(data),
        Packet::DataRequest(request),
        Packet::RsDataRequest(request),
        Packet::OutOfSync(BlockRange { sector, size }),
        Packet::StateChgReq(wire::StateChange::default()),
        Packet::SyncUuid(units::Generation(8)),
    ];
    let on_control = [Packet::WriteAck(ack), Packet::NegAck(ack), Packet::RsIsInSync(ack), Packet::NegDreply(ack)];
    for mut pair in pairs() {
        let (now, peer) = (pair.now, pair.nodes[1].peer);
        let all = on_data.iter().map(|p| (Socket::Data, p)).chain(on_control.iter().map(|p| (Socket::Control, p)));
        for (stream, packet) in all {
            pair.nodes[1].told = true;
            pair.nodes[1].core.on_packet(now, peer, stream, SECOND, packet.clone(), urbd_core::Segments::None);
        }
        // It counts in its epoch.
        pair.run(50);
        assert_eq!(pair.states(), [ConnState::Connected; 2], "{:?}", pair.nodes[1].notes);
        no_link_was_closed(&pair);
    }
}

/// A peer that is made beside an attached disk gets a slot of its bitmap when it is sought, if there is one.
#[test]
fn a_new_peer_gets_a_slot_or_is_not_sought() {
    for slots in [1, 2] {
        let mut pair = Pair::on(Shape { slots, ..V09 }, true, newest);
        assert_eq!(code(pair.reconfigure(0, add_third)), Some(0));
        let connect = Command::Connect { peer: third(), discard_my_data: false, tentative: false };
        pair.command_with_id(0, 5, connect);
        pair.run(200);
        assert_eq!(code(pair.answer_to(0, 5)), Some(if slots == 2 { 0 } else { 162 }));
        let slot = pair.nodes[0].superblock().peer(third()).slot;
        assert_eq!(slot, Some(1).filter(|_| slots == 2));
        // What is written is marked for it.
        pair.writes(10, 2, || 5);
        let marked = pair.nodes[0].core.known_different(VOLUME, third(), whole());
        assert_eq!(marked, u64::from(slots == 2));
        // It is forgotten, and its slot stays.
        pair.command(0, Command::Disconnect { peer: third(), force: false });
        pair.run(20);
        assert_eq!(code(pair.reconfigure(0, |cfg| remove_peer(cfg, third()))), Some(0));
        pair.writes(10, 2, || 9);
        assert_eq!(code(pair.reconfigure(0, add_third)), Some(0));
        let marked = pair.nodes[0].core.known_different(VOLUME, third(), whole());
        assert_eq!(marked, if slots == 2 { 2 } else { 0 });
        assert_eq!(pair.states(), [ConnState::Connected; 2]);
    }
}

/// A node that has left for good: its slot is vacant, and another one may get it. That one lacks what has changed since
/// ever; where no vacant slot has kept account of that, it is all of the disk.
#[test]
fn the_slot_of_a_forgotten_peer_is_anybodys() {
    for slots in [1, 2] {
        let mut pair = Pair::on(Shape { slots, ..V09 }, true, newest);
        let peer = pair.nodes[0].peer;
        let mut blocks = (0..8).map(|n| n * 1000).collect::<Vec<u64>>().into_iter();
        pair.writes(8, 4, || blocks.next().expect("8 writes"));
        pair.nodes[0].answers = Some(Vec::new());
        pair.command_with_id(0, 5, Command::ForgetPeer(peer));
        pair.run(20);
        assert_eq!(code(pair.answer_to(0, 5)), Some(125), "it is one of the resource's");
        assert_eq!(pair.nodes[0].superblock().peer(peer).slot, Some(0));
        pair.command(0, Command::Disconnect { peer, force: false });
        pair.run(100);
        assert_eq!(code(pair.reconfigure(0, |cfg| cfg.connections.clear())), Some(0));
        pair.nodes[0].answers = Some(Vec::new());
        pair.command_with_id(0, 6, Command::ForgetPeer(peer));
        pair.run(100);
        assert_eq!(code(pair.answer_to(0, 6)), Some(0));
        let record = pair.nodes[0].superblock().peers[peer.index()];
        assert_eq!((record.slot, record.flags), (None, meta::PeerFlags(0)));
        // A second time there is nothing to forget.
        pair.command_with_id(0, 7, Command::ForgetPeer(peer));
        pair.run(20);
        assert_eq!(code(pair.answer_to(0, 7)), Some(0));
        assert_eq!(code(pair.reconfigure(0, add_third_alone)), Some(0));
        pair.command(0, Command::Connect { peer: third(), discard_my_data: false, tentative: false });
        pair.run(20);
        assert_eq!(pair.nodes[0].superblock().peer(third()).slot, Some(0));
        let marked = pair.nodes[0].core.known_different(VOLUME, third(), whole());
        assert_eq!(marked, if slots == 1 { whole().end.0 / 8 } else { 8 }, "slots {slots}");
    }
}

/// What is written while a peer is not configured is marked for it, also in the only slot that there is.
#[test]
fn what_a_removed_peer_lacks_is_copied_when_it_comes_back() {
    for slots in [1, 2] {
        for newest in [false, true] {
            let mut pair = Pair::on(Shape { slots, ..V09 }, true, |cfg| {
                if newest {
                    self::newest(cfg);
                }
            });
            let peers = [0, 1].map(|n| pair.nodes[n].peer);
            pair.command(0, Command::Disconnect { peer: peers[0], force: false });
            pair.run(100);
            assert_eq!(code(pair.reconfigure(0, |cfg| cfg.connections.clear())), Some(0));
            let mut blocks = (0..20).map(|n| n * 1000).collect::<Vec<u64>>().into_iter();
            pair.writes(20, 4, || blocks.next().expect("20 writes"));
            let back = pair.nodes[1].cfg.connections[0].clone();
            let back = ConnectionConfig { peer: peers[0], ..back };
            assert_eq!(code(pair.reconfigure(0, |cfg| cfg.connections = vec![back.clone()])), Some(0));
            assert_eq!(pair.nodes[0].core.known_different(VOLUME, peers[0], whole()), 20, "slots {slots}, {newest}");
            let before = pair.nodes[1].counts.disk_writes;
            for n in [0, 1] {
                pair.command(n, Command::Connect { peer: peers[n], discard_my_data: false, tentative: false });
            }
            pair.run(20);
            pair.link();
            pair.until(LIMIT, |p| {
                p.states() == [ConnState::Connected; 2] && p.nodes[1].counts.disk_writes >= before + 20
            });
        }
    }
}

/// Nothing would be marked in the only slot of a disk, if that was not a configured peer's.
#[test]
fn the_peer_that_the_only_slot_belongs_to_is_not_replaced() {
    let mut pair = Pair::on(Shape { slots: 1, ..V09 }, true, newest);
    let peer = pair.nodes[0].peer;
    pair.command(0, Command::Disconnect { peer, force: false });
    pair.run(100);
    let another = |cfg: &mut ResourceConfig| {
        add_third(cfg);
        remove_peer(cfg, peer);
    };
    assert_eq!(code(pair.reconfigure(0, another)), Some(162));
    pair.command(0, Command::Secondary { force: false });
    pair.command(0, Command::Detach { volume: VOLUME, force: false });
    pair.run(200);
    assert_eq!(code(pair.reconfigure(0, another)), Some(0));
}
