//! Disks that fail, or go, while a copy or a verify is under way.

use crate::node::Together;
use crate::recording::{Said, conversation};
use crate::replay::{Replay, conversations};
use crate::{SMALL, VOLUME, disk};
use units::{Duration, Instant, Sector, SectorRange};
use urbd_core::{Command, OnIoError, RequestKind};
use wire::{ConnState, DiskState, DpFlags, Packet, UuidFlags};

const EVERYWHERE: SectorRange = SectorRange { start: Sector(0), end: Sector(1 << 20) };

/// Node 0 is Primary, with equal data.
fn writes(pair: &mut Together) {
    pair.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
    pair.command(0, Command::Primary { force: false });
}

/// Node 1 is brought up to date by node 0, which cannot read some blocks and says so (`on-io-error pass_on`). What is
/// left of it is not copied at the next connect: in the recording neither disk is good by then. That of the core is
/// what it was, as it is the only one: it does not say otherwise, and its second connect is not that of the recording.
#[test]
fn what_the_source_cannot_read_stays_marked() {
    for node in [0, 1] {
        let [first, mut second, mut third] = <[_; 3]>::try_from(conversations("48")).expect("three");
        if node == 0 {
            second.retain(|s| !matches!(&s.packet, Packet::State(word) if word.conn == ConnState::PausedSyncS));
        }
        let mut replay = Replay::with_disks(first, node, |_| {}, |start| start.on_io_error = OnIoError::PassOn);
        replay.live(node == 1);
        if node == 1 {
            replay.node.command(replay.now, Command::invalidate(VOLUME));
        } else {
            replay.node.failing = Some(SectorRange { start: Sector(128), end: Sector(192) });
        }
        replay.again(second);
        replay.live(node == 1);
        // The core had asked for half as much again with what could not be read, and so was it asked.
        let own = third.iter_mut().filter(|s| s.from.index() == usize::from(node));
        own.for_each(|s| match &mut s.packet {
            Packet::Uuids110(u) if node == 1 => u.dirty_bits += 16,
            Packet::Uuids110(u) => u.flags = UuidFlags(u.flags.0 & !UuidFlags::INCONSISTENT.0),
            Packet::State(word) if node == 0 => word.disk = DiskState::UpToDate,
            _ => {}
        });
        if node == 0 {
            // What follows from that is something else.
            let agreed = |s: &Said| matches!(s.packet, Packet::TwopcYes(_));
            third.truncate(third.iter().position(agreed).expect("they connect"));
        }
        replay.again(third);
        replay.link_up(node == 1);
        replay.play();
        let states = [
            "Connecting Secondary/Unknown WFConnection UpToDate/Inconsistent",
            "Connected Secondary/Secondary Connected Inconsistent/Inconsistent",
        ];
        assert_eq!(replay.node.state(), states[usize::from(node)]);
    }
}

/// Node 0 lets go of its disk before the last blocks that it was told of are so on its disk; those are copied again.
fn forgets_what_was_copied(said: &mut Vec<Said>) {
    // The core has the first one of four on its disk, the recorded node the first three of five.
    let of = |s: &Said, sector: u64| match &s.packet {
        Packet::RsDagtagReq(r) => r.block.sector.0 == sector,
        Packet::RsDataReply(r) => r.sector.0 == sector,
        Packet::RsWriteAck(a) => a.sector.0 == sector,
        _ => false,
    };
    let mut again: Vec<Said> = said.iter().filter(|s| of(s, 64) || of(s, 128)).cloned().collect();
    for s in &mut again {
        match &mut s.packet {
            Packet::RsDagtagReq(r) => r.block.block_id.0 += 1,
            Packet::RsDataReply(r) => r.block_id.0 += 1,
            Packet::RsWriteAck(a) => a.block_id.0 += 1,
            _ => {}
        }
    }
    let begins = |s: &&Said| matches!(&s.packet, Packet::State(word) if word.conn == ConnState::SyncTarget);
    let at = said.iter().rfind(begins).expect("it is copied").at;
    let later = again.into_iter().zip(1..).map(|(s, n)| Said { at: at + Duration(n * 100_000), ..s });
    said.extend(later);
    said.sort_by_key(|s| s.at);
}

/// The core asks whether its peer is there before it copies the rest.
fn peer_is_there(said: &mut Vec<Said>, peer: usize) {
    let begins = |s: &&Said| matches!(&s.packet, Packet::State(word) if word.conn == ConnState::SyncSource);
    let at = said.iter().rfind(begins).expect("it is copied").at;
    let answers = |s: &&Said| s.from.index() == peer && s.packet == Packet::PingAck;
    let answer = said.iter().find(answers).expect("it is there").clone();
    said.push(Said { at, ..answer });
    said.sort_by_key(|s| s.at);
}

/// Node 1 has what came last on its disk before it hears that node 0 has no disk any more.
fn writes_at_once(said: &mut [Said]) {
    let last = |s: &&mut Said| matches!(&s.packet, Packet::RsDataReply(r) if r.sector == Sector(256));
    let last = said.iter_mut().find(last).expect("it is copied");
    last.at = Instant(last.at.0 - 1_000_000);
    for s in said.iter_mut().filter(|s| s.from.index() == 1) {
        if let Packet::Uuids110(u) = &mut s.packet
            && u.dirty_bits == 96
        {
            u.dirty_bits = 64;
        }
    }
    said.sort_by_key(|s| s.at);
}

/// Node 1 gives its copy up and is brought up to date by node 0, which lets go of its disk, by force, while it is asked
/// for more, and attaches it again.
#[test]
fn a_source_lets_go_of_its_disk() {
    for node in [0, 1] {
        let mut said = conversation("50");
        if node == 0 {
            forgets_what_was_copied(&mut said);
            let own = said.iter_mut().filter(|s| s.from.index() == 0);
            own.for_each(|s| {
                if let Packet::Uuids110(u) = &mut s.packet
                    && u.dirty_bits == 96
                {
                    u.dirty_bits = 120;
                }
            });
        } else {
            writes_at_once(&mut said);
        }
        peer_is_there(&mut said, usize::from(1 - node));
        let mut replay = Replay::whole(said, node, |_| {});
        replay.answer_in_time();
        if node == 0 {
            replay.ask_more();
        }
        replay.live(node == 1);
        assert_eq!(replay.node.state(), "Connected Secondary/Secondary Connected UpToDate/UpToDate");
    }
}

/// Node 0 is Primary and has the disks compared; node 1 lets go of its disk by force, and says of what it is asked for
/// then that it is skipped.
#[test]
fn a_verify_ends_with_the_peers_disk() {
    for node in [0, 1] {
        let mut said = conversation("74");
        // Long after that they ask each other whether they are there.
        let begin = said[0].at;
        said.retain(|s| s.at.since(begin) < Duration::from_secs(15));
        let mut replay = Replay::whole(said, node, crate::with_crc);
        replay.live(node == 1);
        let ends = [
            "Connected Primary/Secondary Connected UpToDate/Diskless",
            "Connected Secondary/Primary Connected Diskless/UpToDate",
        ];
        assert_eq!(replay.node.state(), ends[usize::from(node)]);
    }
}

/// Node 0 is Primary, has the disks compared, and writes to the same blocks meanwhile.
#[test]
fn what_is_compared_is_written_to() {
    let mut said = conversation("75");
    // A kernel needs a moment to see that a verify is over, and says of what is written meanwhile that it is in sync.
    let over = said.iter().rfind(|s| matches!(s.packet, Packet::OvResultId(_))).expect("a verify").at;
    let own = said.iter_mut().filter(|s| s.from.index() == 1 && s.at > over);
    own.for_each(|s| {
        if let Packet::WriteAckInSync(ack) = s.packet {
            s.packet = Packet::WriteAck(ack);
        }
    });
    let mut replay = Replay::whole(said, 1, crate::with_crc);
    replay.live(true);
    assert_eq!(replay.node.state(), "Connected Secondary/Primary Connected UpToDate/UpToDate");

    let mut said = conversation("75");
    compare_faster(&mut said);
    let mut replay = Replay::whole(said, 0, crate::with_crc);
    replay.answer_in_time();
    replay.write_from_the_start();
    replay.follow();
    replay.acknowledge_in_own_time();
    replay.link_up(false);
    replay.play();
    assert_eq!(replay.node.state(), "Connected Primary/Secondary Connected UpToDate/UpToDate");
}

/// A kernel asks for some blocks as soon as others were answered, whatever its rate is; the core keeps to its rate, and
/// has asked for all before the first write.
fn compare_faster(said: &mut [Said]) {
    let mut first = None;
    for s in said.iter_mut().filter(|s| s.from.index() == 0) {
        match &mut s.packet {
            Packet::SyncParam(p) => p.resync_rate = 4096,
            Packet::OvDagtagReq(r) => r.dagtag = *first.get_or_insert(r.dagtag),
            _ => {}
        }
    }
    // It takes a moment to see that all is compared, and writes meanwhile.
    let compared = |s: &&Said| matches!(s.packet, Packet::OvDagtagReply(_));
    let at = said.iter().rfind(compared).expect("a verify").at;
    let over = |s: &Said| matches!(&s.packet, Packet::State(word) if word.conn == ConnState::Connected);
    let first = said.iter_mut().find(|s| s.from.index() == 0 && s.at > at && over(s));
    first.expect("it is over").at = at;
    said.sort_by_key(|s| s.at);
}

/// Node 0 is Primary and writes; node 1 cannot write it, and lets go of its disk.
#[test]
fn the_peers_disk_fails() {
    for node in [0, 1] {
        let mut replay = Replay::joined("28", node, |said, node| disk(said, node, true, SMALL), |_| {}, writes);
        if node == 1 {
            replay.node.failing = Some(EVERYWHERE);
        }
        replay.follow();
        replay.play();
        let ends = [
            "Connected Primary/Secondary Connected UpToDate/Diskless",
            "Connected Secondary/Primary Connected Diskless/UpToDate",
        ];
        assert_eq!(replay.node.state(), ends[usize::from(node)]);
    }
}

/// Node 0 is Primary, cannot read its disk, and lets go of it; it goes on with that of node 1.
#[test]
fn the_primarys_disk_fails() {
    for node in [0, 1] {
        let mut said = conversation("29");
        // The core begins the generation as soon as the disk has failed, and asks then for what it could not read. What
        // only the peer has must be durable there.
        let begins = said.iter().position(|s| matches!(s.packet, Packet::CurrentUuid(_))).expect("P_CURRENT_UUID");
        if node == 0 {
            let mut begins = said.remove(begins);
            begins.at = said[0].at;
            said.insert(1, begins);
            said.iter_mut().for_each(|s| {
                if let Packet::Data(write) = &mut s.packet {
                    write.flags |= DpFlags::FUA;
                }
            });
        }
        let before = |pair: &mut Together| {
            writes(pair);
            for sector in [0, 8, 16] {
                let write = RequestKind::Write { fua: false };
                pair.act(0, |node, now| node.write(now, VOLUME, write, Sector(sector), 4096));
            }
            pair.act(0, |node, now| node.close(now, VOLUME));
            pair.pass(500);
        };
        let mut replay = Replay::of_joined(said, node, |said, node| disk(said, node, true, SMALL), |_| {}, before);
        if node == 0 {
            replay.node.failing = Some(EVERYWHERE);
        } else {
            replay.hear_position();
        }
        replay.follow();
        replay.play();
        let ends = [
            "Connected Primary/Secondary Connected Diskless/UpToDate",
            "Connected Secondary/Primary Connected UpToDate/Diskless",
        ];
        assert_eq!(replay.node.state(), ends[usize::from(node)]);
    }
}

/// Node 0 is Primary, has let go of its disk, and reads from node 1, which cannot read it (`on-io-error pass_on`). The
/// disk of node 1 is the only good one, and stays that: the core does not say otherwise.
#[test]
fn the_only_copy_cannot_be_read() {
    for node in [0, 1] {
        let mut said = conversation("46");
        if node == 1 {
            said.retain(|s| !matches!(s.packet, Packet::State(_)));
        } else {
            // It would ask once more before it reads, on the other stream, that the copy is not good any more.
            let at = said.last().expect("it is refused").at;
            let refused = said.iter_mut().find(|s| matches!(s.packet, Packet::NegDreply(_)));
            refused.expect("it is refused").at = at + Duration(1);
            said.sort_by_key(|s| s.at);
        }
        let before = |pair: &mut Together| {
            writes(pair);
            let write = |pair: &mut Together| {
                for sector in [0, 8, 16] {
                    let write = RequestKind::Write { fua: false };
                    pair.act(0, |node, now| node.write(now, VOLUME, write, Sector(sector), 4096));
                }
                pair.pass(500);
            };
            write(pair);
            pair.command(0, Command::Detach { volume: VOLUME, force: false });
            pair.pass(500);
            write(pair);
        };
        let passes_on = |said: &[Said], node| {
            let mut starts = disk(said, node, true, SMALL);
            starts[0].1.on_io_error = OnIoError::PassOn;
            starts
        };
        let mut replay = Replay::of_joined(said, node, passes_on, |_| {}, before);
        replay.node.failing = (node == 1).then_some(EVERYWHERE);
        replay.follow();
        replay.play();
        let ends = [
            "Connected Primary/Secondary Connected Diskless/Inconsistent",
            "Connected Secondary/Primary Connected UpToDate/Diskless",
        ];
        assert_eq!(replay.node.state(), ends[usize::from(node)], "{:#?}", replay.node.notes);
    }
}
