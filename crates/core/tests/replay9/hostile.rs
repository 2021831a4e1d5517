//! Peers that say what no peer says: recorded conversations with packets left out, said twice, said too late, or taken
//! from other recordings. Nothing of that makes the core panic, or keeps it from connecting to a better peer.

use crate::capture::recordings_in;
use crate::node::{Node, Start, Together};
use crate::recording::{Said, conversation};
use crate::starts::start_of;
use crate::{SMALL, disk};
use std::collections::{BTreeMap, VecDeque};
use units::{Duration, Instant, NodeId, Rng, VolumeNr};
use urbd_core::{Command, ConnectionConfig, LinkUp, RequestKind};
use wire::{BlockRequest, Packet};

/// Conversations that begin with a connect.
const WHOLE: [&str; 6] = ["01", "31", "34", "39", "33", "17"];
/// The same, with resyncs and verifies; of nodes that have what the recorded ones had.
const COPYING: [&str; 7] = ["10", "11", "23", "36", "37", "47", "22"];
/// Of nodes that are connected: they are first brought there.
const JOINED: [&str; 6] = ["02", "26", "12", "30", "40", "42"];

/// Every packet that a node says to another in some recording.
fn everything() -> Vec<Said> {
    let names = recordings_in("wire9").into_iter().map(|p| p.file_name().unwrap().to_string_lossy()[..2].to_owned());
    // That one has packets of 8.4's dialect.
    names.filter(|name| name != "32").flat_map(|name| conversation(&name)).collect()
}

/// The peer's part of a conversation, spoilt.
fn spoil(said: &[Said], others: &[Said], rng: &mut Rng) -> VecDeque<Said> {
    let mut out = VecDeque::new();
    let mut late = None;
    for packet in said {
        match rng.next_u64() % 24 {
            0 => {}
            1 => out.extend([packet.clone(), packet.clone()]),
            2 => late = Some(packet.clone()),
            3 => {
                let other = others[(rng.next_u64() % others.len() as u64) as usize].clone();
                out.extend([Said { at: packet.at, ..other }, packet.clone()]);
            }
            _ => out.push_back(packet.clone()),
        }
        if rng.next_u64().is_multiple_of(4) {
            out.extend(late.take().map(|late| Said { at: packet.at, ..late }));
        }
    }
    out
}

/// What an administrator or a client does at any time.
fn meddle(node: &mut Node, now: Instant, rng: &mut Rng) {
    let peer = node.peer;
    match rng.next_u64() % 14 {
        0 => node.command(now, Command::Primary { force: false }),
        1 => node.command(now, Command::Secondary { force: false }),
        2 => node.command(now, Command::Disconnect { peer, force: false }),
        3 => node.command(now, Command::NewCurrentUuid { volume: crate::VOLUME, clear_bitmap: true }),
        4 => node.command(now, Command::invalidate(crate::VOLUME)),
        5 => node.command(now, Command::Detach { volume: crate::VOLUME, force: true }),
        6 => node.command(now, Command::invalidate_remote(crate::VOLUME, peer)),
        7 => node.command(now, Command::PauseSync { volume: crate::VOLUME }),
        8 => node.command(now, Command::ResumeSync { volume: crate::VOLUME }),
        9 => {
            let (start, stop, repair) = (None, None, rng.next_u64().is_multiple_of(2));
            node.command(now, Command::Verify { volume: crate::VOLUME, peer: None, start, stop, repair });
        }
        10 => node.command(now, Command::Primary { force: true }),
        _ => {
            let (kind, sector) = (RequestKind::Write { fua: false }, units::Sector(rng.next_u64() % 64 * 8));
            node.write(now, crate::VOLUME, kind, sector, 4096);
        }
    }
    node.turn(now);
}

/// What the node has asked for: a peer that answers names that, and not what was recorded.
#[derive(Default)]
struct Asked {
    transaction: Option<u32>,
    requests: BTreeMap<u64, BlockRequest>,
}

impl Asked {
    fn note(&mut self, packet: &Packet) {
        match packet {
            Packet::TwopcPrepare(p) => self.transaction = Some(p.transaction.tid),
            Packet::RsDagtagReq(r) | Packet::RsCsumDagtagReq(r) | Packet::RsThinDagtagReq(r) => {
                self.requests.insert(r.block.sector.0, r.block);
            }
            Packet::OvDagtagReq(r) => drop(self.requests.insert(r.block.sector.0, r.block)),
            _ => {}
        }
    }

    fn translate(&self, packet: &mut Packet) {
        match packet {
            Packet::TwopcYes(v) | Packet::TwopcNo(v) | Packet::TwopcRetry(v) => {
                v.tid = self.transaction.unwrap_or(v.tid);
            }
            Packet::RsDataReply(r) => {
                if let Some(asked) = self.requests.get(&r.sector.0) {
                    (r.block_id, r.size) = (asked.block_id, asked.size);
                }
            }
            Packet::RsIsInSync(a) | Packet::RsDeallocatedId(a) | Packet::RsCancel(a) | Packet::NegRsDreply(a) => {
                if let Some(asked) = self.requests.get(&a.sector.0) {
                    (a.block_id, a.size) = (asked.block_id, asked.size);
                }
            }
            _ => {}
        }
    }
}

/// A node that hears a conversation from the connect on.
fn begin(said: &[Said], own: NodeId, starts: &[(VolumeNr, Start)], csums: Option<&str>) -> Node {
    let start = Instant(said[0].at.0 - 1_000_000);
    let mut node = Node::new(own, starts, start, |c| c.csums = csums.map(str::to_owned));
    node.forgive = true;
    node.link_up(start, LinkUp { resolve_conflicts: true, challenge: [3; 64] });
    node
}

fn options(c: &mut ConnectionConfig) {
    (c.verify, c.csums) = (Some("crc32c".to_owned()), Some("sha1".to_owned()));
}

fn listen(said: &[Said], own: NodeId, mut node: Node, others: &[Said], rng: &mut Rng) -> bool {
    let start = Instant(said[0].at.0 - 1_000_000);
    let theirs: Vec<Said> = said.iter().filter(|s| s.from != own).cloned().collect();
    let mut now = start;
    let mut asked = Asked::default();
    for mut said in spoil(&theirs, others, rng) {
        now = now.max(said.at);
        node.pass(now);
        if rng.next_u64().is_multiple_of(24) {
            meddle(&mut node, now, rng);
        }
        if node.wants_link(now) {
            node.link_up(now, LinkUp { resolve_conflicts: true, challenge: [3; 64] });
        }
        node.sent.drain(..).for_each(|sent| asked.note(&sent.packet));
        asked.translate(&mut said.packet);
        node.hear(now, said.stream, said.volume, said.packet);
    }
    // However that ended: it goes on.
    node.pass(now + Duration::from_secs(120));
    let _ = node.core.snapshot();
    node.notes.iter().any(|note| note.starts_with("resync-start") || note.starts_with("verify-start"))
}

fn own_of(seed: u64) -> NodeId {
    NodeId::new((seed / 7 % 2) as u8).unwrap()
}

#[test]
fn no_peer_makes_it_panic() {
    let others = everything();
    assert!(others.iter().any(|s| matches!(s.packet, Packet::RsDagtagReq(_))), "of resyncs, too");
    let whole = WHOLE.map(conversation);
    for seed in 0..3000 {
        let said = &whole[(seed % WHOLE.len() as u64) as usize];
        let mut rng = Rng::new(seed);
        let fresh = rng.next_u64().is_multiple_of(2);
        let node = begin(said, own_of(seed), &disk(said, own_of(seed), fresh, SMALL), None);
        listen(said, own_of(seed), node, &others, &mut rng);
    }
}

/// They get as far as a resync, in either role.
#[test]
fn no_peer_of_a_resync_makes_it_panic() {
    let others = everything();
    let whole = COPYING.map(|number| (conversation(number), (number == "11").then_some("sha256")));
    let mut resyncs = 0;
    for seed in 0..2000 {
        let (said, csums) = &whole[(seed % COPYING.len() as u64) as usize];
        let (own, mut rng) = (own_of(seed), Rng::new(seed));
        let mut node = begin(said, own, &[(crate::VOLUME, start_of(said, own, crate::VOLUME))], *csums);
        if own.index() == 0 && !rng.next_u64().is_multiple_of(4) {
            node.command(Instant(said[0].at.0 - 1_000_000), Command::Primary { force: false });
        }
        resyncs += u32::from(listen(said, own, node, &others, &mut rng));
    }
    assert!(resyncs > 200, "{resyncs} had a resync");
}

#[test]
fn no_peer_that_is_connected_makes_it_panic() {
    let others = everything();
    let whole = JOINED.map(conversation);
    let mut resyncs = 0;
    for seed in 0..1500 {
        let said = &whole[(seed % JOINED.len() as u64) as usize];
        let (own, mut rng) = (own_of(seed), Rng::new(seed));
        let fresh = seed % JOINED.len() as u64 <= 1;
        let begin = Instant(said[0].at.0 - 2_000_000_000);
        let mut pair = Together::new(begin, |node| disk(said, node, fresh, SMALL), &options);
        if !fresh && rng.next_u64().is_multiple_of(2) {
            pair.command(0, Command::Primary { force: false });
        }
        let mut node = pair.leave(own.index() as u8);
        node.forgive = true;
        resyncs += u32::from(listen(said, own, node, &others, &mut rng));
    }
    assert!(resyncs > 200, "{resyncs} had a resync");
}
