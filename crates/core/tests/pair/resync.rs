//! What a resync and a verify cost, and what they do when a disk or the peer does not answer.

use crate::rig::{Pair, VOLUME};
use units::{ByteLen, Duration, Sector};
use urbd_core::{Command, ResourceConfig, ResyncController, Segments};
use wire::{BlockId, ConnState, DiskState, Packet, Socket};

const MINUTE: Duration = Duration::from_secs(60);
/// Blocks of 4 KiB of the rig's device, of 4 GiB less its metadata.
const BLOCKS: u64 = (4 << 30) / 4096;

fn fast(cfg: &mut ResourceConfig) {
    let disk = cfg.volumes[0].disk.as_mut().expect("a disk");
    disk.resync.plan_ahead = 0;
    disk.resync.rate = 4 << 20;
    disk.disk_timeout = Duration::from_secs(5);
    cfg.connections[0].max_buffers = 32_768;
    cfg.connections[0].verify = Some("crc32c".to_owned());
}

fn connected(pair: &Pair) -> bool {
    pair.states() == [ConnState::Connected; 2]
}

/// Node 1 throws its data away and fetches it.
fn invalidate(pair: &mut Pair) {
    pair.command(1, Command::invalidate(VOLUME));
    pair.until(MINUTE, |p| p.states() == [ConnState::SyncSource, ConnState::SyncTarget]);
}

fn verify(pair: &mut Pair) {
    pair.command(0, Command::Verify { volume: VOLUME, peer: None, start: None, stop: None, repair: false });
    pair.until(MINUTE, |p| p.states() == [ConnState::VerifyS, ConnState::VerifyT]);
}

#[test]
fn a_resync_asks_for_256_kib_at_a_time() {
    let mut pair = Pair::with(true, fast);
    let before = [0, 1].map(|i| pair.nodes[i].counts);
    invalidate(&mut pair);
    pair.until(MINUTE, connected);
    let [a, b] = [0, 1].map(|i| pair.nodes[i].counts - before[i]);
    let least = BLOCKS / 64;
    assert!((least - 1..least + 64).contains(&b.requests), "{b:?}");
    assert_eq!((a.disk_reads, b.disk_writes), (b.requests, b.requests), "{a:?} {b:?}");
}

/// DRBD 9 confirms what it frees when it has gathered more of it. Meanwhile it asks for the rest.
#[test]
fn a_target_need_not_confirm_what_it_frees() {
    let mut pair = Pair::with(true, fast);
    pair.nodes[0].empty = true;
    pair.nodes[1].lost = |packet| matches!(packet, Packet::RsWriteAck(_));
    let before = pair.nodes[0].counts;
    invalidate(&mut pair);
    pair.until(MINUTE, |p| (p.nodes[0].counts - before).disk_reads >= BLOCKS / 64);
    assert_eq!(pair.states(), [ConnState::SyncSource, ConnState::SyncTarget]);
}

/// Whatever the target's bitmap says: what is marked here its copy lacks.
#[test]
fn a_resync_has_not_ended_while_blocks_are_marked() {
    let mut pair = Pair::with(true, fast);
    pair.nodes[0].empty = true;
    pair.nodes[1].lost = |packet| matches!(packet, Packet::RsWriteAck(ack) if ack.sector.0 > 1 << 16);
    invalidate(&mut pair);
    pair.until(MINUTE, |p| p.nodes[0].notes.contains(&"resync-incomplete"));
    let snapshot = pair.nodes[0].core.snapshot();
    let device = &snapshot.connections[0].peer_devices[0];
    assert!(device.out_of_sync.0 > 0 && device.peer_disk != DiskState::UpToDate, "{device:?}");
}

/// The peer asked before it knew that the resync is over. Its answer would clear what writes have marked since.
#[test]
fn nothing_is_served_when_the_resync_is_over() {
    let mut pair = Pair::with(true, fast);
    invalidate(&mut pair);
    pair.until(MINUTE, connected);
    let before = pair.nodes[0].counts;
    let block = wire::BlockRequest { sector: Sector(0), block_id: BlockId::SYNCER, size: ByteLen(4096) };
    let (now, peer) = (pair.now, pair.nodes[0].peer);
    for packet in [Packet::RsThinReq(block), Packet::RsDataRequest(block)] {
        pair.nodes[0].core.on_packet(now, peer, Socket::Data, VOLUME, packet, Segments::None);
    }
    pair.run(10);
    assert_eq!((pair.nodes[0].counts - before).disk_reads, 0);
    assert!(connected(&pair));
}

#[test]
fn neighbouring_zero_blocks_are_deallocated_together() {
    // DRBD's planner sends its requests in rounds: many answers come at once.
    let mut pair = Pair::with(true, |cfg| {
        fast(cfg);
        let resync = &mut cfg.volumes[0].disk.as_mut().expect("a disk").resync;
        (resync.plan_ahead, resync.fill_target, resync.max_rate) = (20, 1 << 20, 0);
        resync.controller = ResyncController::Drbd;
    });
    pair.nodes[0].empty = true;
    let before = pair.nodes[1].counts;
    invalidate(&mut pair);
    pair.until(MINUTE, connected);
    let b = pair.nodes[1].counts - before;
    assert_eq!(b.disk_writes, 0, "no payload: {b:?}");
    assert!(b.requests >= BLOCKS / 256 - 1 && b.discards * 4 < b.requests, "{b:?}");
}

#[test]
fn verify_reads_runs_of_blocks_once() {
    let mut pair = Pair::with(true, fast);
    let before = [0, 1].map(|i| pair.nodes[i].counts);
    verify(&mut pair);
    pair.until(MINUTE, connected);
    let [a, b] = [0, 1].map(|i| pair.nodes[i].counts - before[i]);
    // On the wire one request for each block, as the protocol wants it; on disk up to 1 MiB at a time.
    assert!((BLOCKS - 64..=BLOCKS).contains(&a.comparisons), "{a:?}");
    for node in [a, b] {
        assert!(node.disk_reads <= BLOCKS / 256 + 64, "{node:?}");
    }
    assert!(pair.nodes[0].notes.contains(&"verify-done"));
}

#[test]
fn verify_tells_equal_from_different_blocks_for_every_block() {
    let mut pair = Pair::with(true, fast);
    pair.nodes[1].digest = 1;
    verify(&mut pair);
    pair.until(MINUTE, connected);
    for node in &pair.nodes {
        let device = &node.core.snapshot().connections[0].peer_devices[0];
        assert_eq!(device.out_of_sync.0, node.core.snapshot().devices[0].size.0 / 4096 * 4096);
    }
}

/// A running resync or verify goes on with the algorithm that both nodes began with.
#[test]
fn other_algorithms_hold_from_the_next_verify_on() {
    let mut pair = Pair::with(true, fast);
    verify(&mut pair);
    let mut cfg = pair.nodes[0].cfg.clone();
    cfg.connections[0].verify = None;
    pair.command(0, Command::ChangeOptions(Box::new(cfg)));
    pair.until(MINUTE, connected);
    assert_eq!(pair.nodes[1].core.snapshot().connections[0].peer_devices[0].out_of_sync.0, 0);
}

/// Each lost packet is one that somebody waits for; pings are answered all the time.
#[test]
fn answers_that_never_come_end_the_connection() {
    type Start = fn(&mut Pair);
    type Lost = fn(&Packet) -> bool;
    let silent: [(&str, usize, Start, Lost); 6] = [
        ("resync data", 0, invalidate, |p| matches!(p, Packet::RsDataReply(_))),
        ("resync requests", 1, invalidate, |p| matches!(p, Packet::RsThinReq(_))),
        ("resync acknowledgements", 1, invalidate, |p| matches!(p, Packet::RsWriteAck(_))),
        ("verify requests", 0, verify, |p| matches!(p, Packet::OvRequest(_))),
        ("digests", 1, verify, |p| matches!(p, Packet::OvReply(_))),
        ("verify results", 0, verify, |p| matches!(p, Packet::OvResult(_))),
    ];
    for (what, loser, start, lost) in silent {
        let mut pair = Pair::with(true, fast);
        pair.nodes[loser].lost = lost;
        start(&mut pair);
        let seconds = pair.until(MINUTE, |p| p.nodes.iter().any(|n| n.notes.contains(&"resync-timeout")));
        // timeout x ko-count: 42 s.
        assert!((40.0..45.0).contains(&seconds), "{what}: after {seconds} s");
        let victim = pair.nodes.iter().find(|n| n.notes.contains(&"resync-timeout")).expect("one");
        assert!(victim.notes.contains(&"link closed"), "{what}");
    }
}

#[test]
fn a_disk_that_hangs_under_a_resync_is_given_up_after_disk_timeout() {
    type Start = fn(&mut Pair);
    let hanging: [(&str, usize, Start); 4] = [
        ("the source's disk", 0, invalidate),
        ("the target's disk", 1, invalidate),
        ("the asking side's disk", 0, verify),
        ("the answering side's disk", 1, verify),
    ];
    for (what, victim, start) in hanging {
        let mut pair = Pair::with(true, fast);
        pair.nodes[victim].hangs = true;
        start(&mut pair);
        let lost = |p: &Pair| p.nodes[victim].core.snapshot().devices[0].disk <= DiskState::Failed;
        let seconds = pair.until(MINUTE, lost);
        assert!((4.9..8.0).contains(&seconds), "{what}: after {seconds} s");
    }
}

/// DRBD 8.4 takes over a peer's rates, DRBD 9 and urbd do not (spec 8.1): each node goes by its own configuration.
#[test]
fn the_peers_rates_do_not_count() {
    let mut pair = Pair::with(true, |cfg| {
        fast(cfg);
        let disk = cfg.volumes[0].disk.as_mut().expect("a disk");
        // The source would have it slow, the target fast.
        disk.resync.rate = if cfg.node.index() == 0 { 1 } else { 4 << 20 };
    });
    invalidate(&mut pair);
    let seconds = pair.until(MINUTE, connected);
    assert!(seconds < 3.0, "4 GiB at 4 GiB/s took {seconds} s");
}

/// What each option of a resync does to the one that is running.
#[test]
fn options_act_on_a_running_resync() {
    type Change = fn(&mut ResourceConfig);
    fn of(cfg: &mut ResourceConfig) -> &mut urbd_core::ResyncConfig {
        &mut cfg.volumes[0].disk.as_mut().expect("a disk").resync
    }
    const SLOW: Change = |cfg| (of(cfg).plan_ahead, of(cfg).rate) = (0, 16 << 10);
    const PLANNER: Change = |cfg| {
        *of(cfg) = urbd_core::ResyncConfig { controller: ResyncController::Drbd, ..urbd_core::ResyncConfig::default() };
    };
    const ADAPTIVE: Change = |cfg| *of(cfg) = urbd_core::ResyncConfig::default();
    // Name, before, change, MiB/s afterwards.
    let table: [(&str, Change, Change, std::ops::Range<f64>); 11] = [
        ("nothing", SLOW, |_| {}, 15.5..16.5),
        ("resync-rate", SLOW, |cfg| of(cfg).rate = 64 << 10, 62.0..66.0),
        ("c-plan-ahead", SLOW, |cfg| of(cfg).plan_ahead = 20, 200.0..f64::MAX),
        ("resync-controller", SLOW, |cfg| *of(cfg) = urbd_core::ResyncConfig::default(), 200.0..f64::MAX),
        ("drbd, nothing", PLANNER, |_| {}, 80.0..110.0),
        ("c-max-rate", PLANNER, |cfg| of(cfg).max_rate = 30 << 10, 25.0..35.0),
        ("c-fill-target", PLANNER, |cfg| (of(cfg).fill_target, of(cfg).max_rate) = (2048, 0), 200.0..f64::MAX),
        ("c-delay-target", PLANNER, |cfg| (of(cfg).fill_target, of(cfg).delay_target) = (0, 1), 0.1..110.0),
        ("adaptive, c-max-rate", ADAPTIVE, |cfg| of(cfg).max_rate = 30 << 10, 28.0..32.0),
        ("resync-rate, less", SLOW, |cfg| of(cfg).rate = 8 << 10, 7.5..8.5),
        ("max-buffers", SLOW, |cfg| (of(cfg).rate, cfg.connections[0].max_buffers) = (4 << 20, 32), 1.0..f64::MAX),
    ];
    for (name, before, change, wanted) in table {
        let mut pair = Pair::with(true, fast);
        let mut cfg = pair.nodes[1].cfg.clone();
        before(&mut cfg);
        pair.command(1, Command::ChangeOptions(Box::new(cfg.clone())));
        invalidate(&mut pair);
        change(&mut cfg);
        pair.command(1, Command::ChangeOptions(Box::new(cfg)));
        let left = |p: &Pair| p.nodes[1].core.snapshot().connections[0].peer_devices[0].out_of_sync.0;
        pair.pass(Duration::from_millis(500));
        let (start, first) = (pair.now, left(&pair));
        pair.pass(Duration::from_secs(2));
        let seconds = pair.now.since(start).0 as f64 / 1e9;
        let rate = if connected(&pair) { 1e9 } else { (first - left(&pair)) as f64 / seconds / 1048576.0 };
        assert!(wanted.contains(&rate), "{name}: {rate:.1} MiB/s, not {wanted:?}");
    }
}

/// A Primary without a disk has its writes from the peer's. The disk comes, and gets all in a short resync, before the
/// barrier behind such a write is acknowledged.
#[test]
fn a_write_from_before_the_disk_came_is_not_marked_when_it_is_confirmed() {
    for turns in 0..120 {
        let mut pair = Pair::new(true);
        let disk = |p: &Pair| p.nodes[0].core.snapshot().devices[0].disk;
        pair.command(0, Command::Detach { volume: VOLUME, force: false });
        pair.until(MINUTE, |p| disk(p) == DiskState::Diskless);
        pair.write(5);
        pair.run(turns);
        pair.command(0, Command::Attach { volume: VOLUME });
        pair.until(MINUTE, |p| disk(p) == DiskState::UpToDate && p.states() == [ConnState::Connected; 2]);
        let end = pair.now + Duration::from_secs(1);
        pair.until(MINUTE, |p| p.now >= end);
        let marked = pair.nodes.each_ref().map(|n| n.core.snapshot().connections[0].peer_devices[0].out_of_sync.0);
        assert_eq!(marked, [0; 2], "{turns}: {:?}", disk(&pair));
    }
}
