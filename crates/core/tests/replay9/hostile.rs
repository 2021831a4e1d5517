//! Peers that say what no peer says: recorded conversations with packets left out, said twice, said too late, or taken
//! from other recordings. Nothing of that makes the core panic, or keeps it from connecting to a better peer.

use crate::capture::recordings_in;
use crate::node::Node;
use crate::recording::{Said, conversation};
use crate::{SMALL, disk};
use std::collections::VecDeque;
use units::{Duration, Instant, NodeId, Rng};
use urbd_core::{Command, LinkUp, RequestKind};
use wire::Packet;

/// Conversations that begin with a connect.
const WHOLE: [&str; 6] = ["01", "31", "34", "39", "33", "17"];

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
    match rng.next_u64() % 8 {
        0 => node.command(now, Command::Primary { force: false }),
        1 => node.command(now, Command::Secondary { force: false }),
        2 => node.command(now, Command::Disconnect { peer, force: false }),
        3 => node.command(now, Command::NewCurrentUuid { volume: crate::VOLUME, clear_bitmap: true }),
        4 => node.command(now, Command::Invalidate { volume: crate::VOLUME }),
        5 => node.command(now, Command::Detach { volume: crate::VOLUME, force: true }),
        _ => {
            let (kind, sector) = (RequestKind::Write { fua: false }, units::Sector(rng.next_u64() % 64 * 8));
            node.write(now, crate::VOLUME, kind, sector, 4096);
        }
    }
    node.turn(now);
}

fn listen(said: &[Said], node: u8, others: &[Said], seed: u64) {
    let mut rng = Rng::new(seed);
    let own = NodeId::new(node).unwrap();
    let start = Instant(said[0].at.0 - 1_000_000);
    let fresh = rng.next_u64().is_multiple_of(2);
    let mut node = Node::new(own, &disk(said, own, fresh, SMALL), start, |_| {});
    node.forgive = true;
    let theirs: Vec<Said> = said.iter().filter(|s| s.from != own).cloned().collect();
    node.link_up(start, LinkUp { resolve_conflicts: true, challenge: [3; 64] });
    let mut now = start;
    for said in spoil(&theirs, others, &mut rng) {
        now = now.max(said.at);
        node.pass(now);
        if rng.next_u64().is_multiple_of(16) {
            meddle(&mut node, now, &mut rng);
        }
        if node.wants_link(now) {
            node.link_up(now, LinkUp { resolve_conflicts: true, challenge: [3; 64] });
        }
        node.hear(now, said.stream, said.volume, said.packet);
    }
    // However that ended: it goes on.
    node.pass(now + Duration::from_secs(120));
    let _ = node.core.snapshot();
}

#[test]
fn no_peer_makes_it_panic() {
    let others = everything();
    assert!(others.iter().any(|s| matches!(s.packet, Packet::RsDagtagReq(_))), "of resyncs, too");
    let whole = WHOLE.map(conversation);
    for seed in 0..3000 {
        let said = &whole[(seed % WHOLE.len() as u64) as usize];
        listen(said, (seed / 7 % 2) as u8, &others, seed);
    }
}
