//! What a write costs the core.

use crate::rig::{Pair, VOLUME};
use units::{Duration, Rng};
use urbd_core::{Protocol, Stage};

/// Random blocks in 64 extents, never neighbours.
fn random_blocks() -> impl FnMut() -> u64 {
    let mut rng = Rng::new(5);
    move || rng.next_u64() % (32 * 1024) * 2
}

#[test]
fn a_random_write_allocates_nothing() {
    for depth in [1, 64] {
        let mut pair = Pair::new(true);
        // Extents become hot and containers grow to their size.
        pair.writes(20_000, 2 * depth, random_blocks());
        let [a, b] = pair.writes(5_000, depth, random_blocks());
        assert_eq!((a.allocations, b.allocations), (0, 0), "at depth {depth}: {a:?} {b:?}");
        assert_eq!((a.meta_writes, b.meta_writes), (0, 0), "hot extents need no metadata");
        assert_eq!((a.disk_writes, b.disk_writes), (a.data_packets, a.data_packets));
    }
}

#[test]
fn at_depth_one_barriers_travel_with_writes() {
    let mut pair = Pair::new(true);
    pair.writes(100, 1, random_blocks());
    let [a, b] = pair.writes(1_000, 1, random_blocks());
    assert!((999..=1_001).contains(&a.barriers) && b.acks == 1_000, "{a:?} {b:?}");
    assert_eq!((a.flushes, b.flushes), (0, 0), "no volatile cache, no flush");
    // The last barrier leaves by itself when nothing follows.
    let before = pair.nodes[0].counts.barriers;
    pair.run(1_100);
    assert_eq!(pair.nodes[0].counts.barriers, before + 1);
}

#[test]
fn at_depth_one_the_peer_writes_durably_instead_of_flushing() {
    let mut pair = Pair::new(false);
    pair.writes(100, 1, random_blocks());
    let [a, b] = pair.writes(1_000, 1, random_blocks());
    assert!(b.flushes == 0 && b.durable_writes == 1_000, "{a:?} {b:?}");
    // A deeper queue: one flush for all of an epoch is less than each of its writes made durable.
    pair.writes(640, 64, random_blocks());
    let [a, b] = pair.writes(6_400, 64, random_blocks());
    assert!(b.flushes == a.barriers && b.durable_writes == 0, "{a:?} {b:?}");
}

#[test]
fn deep_queues_share_epochs() {
    let mut pair = Pair::new(false);
    pair.writes(1_000, 64, random_blocks());
    let [a, b] = pair.writes(6_400, 64, random_blocks());
    assert!(a.barriers <= 200 && b.flushes <= 200, "{a:?} {b:?}");
}

#[test]
fn sequential_writes_are_merged() {
    let mut pair = Pair::new(true);
    let mut block = 0..;
    let [a, b] = pair.writes(16_384, 64, || block.next().unwrap());
    assert!(a.data_packets * 10 < 3 * a.completed, "packets per write: {a:?}");
    assert_eq!((a.disk_writes, b.disk_writes, b.acks), (a.data_packets, a.data_packets, a.data_packets));
    // Once more over hot extents: lists are there.
    block = 0..;
    let [a, b] = pair.writes(16_384, 64, || block.next().unwrap());
    assert_eq!((a.allocations, b.allocations), (0, 0), "{a:?} {b:?}");
}

#[test]
fn interleaved_streams_are_merged() {
    let mut pair = Pair::new(true);
    // Four writers of one sequential stream each, their requests mixed.
    let mut n = 0;
    let [a, _] = pair.writes(16_384, 64, || {
        n += 1;
        (n % 4) * (1 << 16) + n / 4
    });
    assert!(a.data_packets * 10 < 3 * a.completed, "packets per write: {a:?}");
}

#[test]
fn a_sequential_stream_needs_few_metadata_writes() {
    let mut pair = Pair::new(true);
    let mut block = 0..;
    let [a, b] = pair.writes(1 << 18, 64, || block.next().unwrap());
    assert!(a.meta_writes <= 8, "for one GiB: {a:?}");
    assert_eq!(b.meta_writes, 0, "{b:?}");
}

#[test]
fn every_request_is_counted_once_in_every_stage_of_its_way() {
    let mut pair = Pair::new(true);
    let mut block = 0..;
    let [a, b] = pair.writes(16_384, 64, || block.next().unwrap());
    assert!(a.data_packets < a.completed, "some were merged: {a:?}");
    let count = |node: usize, stage: Stage| {
        let mut stages = pair.nodes[node].core.latencies(VOLUME).expect("the volume is there");
        let (_, histogram) = stages.find(|(s, _)| *s == stage).expect("all are there");
        (histogram.count(), histogram.sum().0)
    };
    let own = [Stage::WriteQueue, Stage::WriteActivityLog, Stage::WriteDisk, Stage::WritePeer, Stage::WriteTotal];
    let [queue, log, disk, peer, total] = own.map(|stage| count(0, stage));
    assert_eq!([queue, log, disk, peer, total].map(|(count, _)| count), [a.completed; 5]);
    let slower = disk.1.max(peer.1);
    assert!(log.1 > 0 && total.1 >= queue.1 + log.1 + slower, "{queue:?} {log:?} {disk:?} {peer:?} {total:?}");
    let theirs = [Stage::PeerWriteQueue, Stage::PeerWriteDisk, Stage::PeerWriteTotal].map(|stage| count(1, stage));
    assert_eq!(theirs.map(|(count, _)| count), [b.disk_writes; 3]);
    assert_eq!(theirs[2].1, theirs[0].1 + theirs[1].1);
    assert_eq!(count(1, Stage::WriteTotal).0, 0, "the peer has no applications");
}

/// How many operations the peer's slow disk had on average, and at most.
fn queued_at_the_peer(mut pair: Pair, depth: u64) -> (f64, usize) {
    pair.nodes[1].slow = true;
    pair.writes(400, depth, random_blocks());
    pair.run(100);
    let queued = &pair.nodes[1].queued;
    (queued.iter().sum::<usize>() as f64 / queued.len() as f64, queued.iter().copied().max().unwrap_or(0))
}

fn with_protocol(protocol: Protocol) -> Pair {
    match protocol {
        Protocol::A => Pair::with(true, |cfg| cfg.connections[0].protocol = Protocol::A),
        Protocol::B => Pair::with(true, |cfg| cfg.connections[0].protocol = Protocol::B),
        Protocol::C => Pair::new(true),
    }
}

#[test]
fn epochs_do_not_empty_the_queue_of_a_disk_without_a_cache() {
    for protocol in [Protocol::B, Protocol::C] {
        let (mean, _) = queued_at_the_peer(with_protocol(protocol), 8);
        // The rest are on their way; with one epoch after the other it is 3.8.
        assert!(mean > 5.0, "{protocol:?}: {mean} of 8");
    }
}

#[test]
fn epochs_follow_each_other_where_completed_writes_may_be_anywhere() {
    for protocol in [Protocol::A, Protocol::B] {
        let (_, most) = queued_at_the_peer(with_protocol(protocol), 1);
        assert_eq!(most, 1, "{protocol:?}: each write may depend on the one before it");
    }
    // Writes to a volatile cache: all of an epoch are down and flushed before the next one begins.
    let mut pair = Pair::new(false);
    pair.nodes[1].slow = true;
    let [a, b] = pair.writes(400, 8, random_blocks());
    assert!(a.barriers > 40 && b.flushes == a.barriers, "{a:?} {b:?}");
}

#[test]
fn a_single_write_with_protocol_b_does_not_wait_for_the_peers_disk() {
    let [b, c] = [Protocol::B, Protocol::C].map(|protocol| {
        let mut pair = with_protocol(protocol);
        pair.writes(100, 1, random_blocks());
        let mut stages = pair.nodes[0].core.latencies(VOLUME).expect("the volume is there");
        let (_, histogram) = stages.find(|(s, _)| *s == Stage::WritePeer).expect("all are there");
        histogram.sum().0
    });
    assert!(b < c, "{b} and {c} ns");
}

#[test]
fn a_missing_sequence_number_is_waited_for_until_ping_timeout() {
    let two_primaries = |cfg: &mut urbd_core::ResourceConfig| cfg.connections[0].two_primaries = true;
    let mut pair = Pair::with(true, two_primaries);
    pair.command(1, urbd_core::Command::Primary { force: false });
    pair.run(100);
    // The node that resolves conflicts never sees the other's answer to its write.
    pair.nodes[1].lost = |packet| matches!(packet, wire::Packet::WriteAck(_));
    pair.write(0);
    pair.run(20);
    pair.write_on(1, 8);
    pair.run(20);
    assert_eq!(pair.nodes[0].counts.disk_writes, 1, "the other's write waits for the number before it");
    let seconds = pair.until(Duration::from_secs(20), |p| p.nodes[0].notes.contains(&"missing-number"));
    assert!((0.49..0.51).contains(&seconds), "{seconds} s");
    assert!(pair.nodes[0].notes.contains(&"link closed"));
}
