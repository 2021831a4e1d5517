//! Comparison of generations by 9's rules: the test vectors of the specification, each seen from both nodes.

use crate::table::{self, Args};
use units::{Generation, NodeId, NodeMask};
use urbd_core::decide::DiskState;
use urbd_core::decide::uuid9::{Comparison, Gate, Input, Side, UNKNOWN, compare, with_disks};
use wire::{UuidFlags, Uuids110, WireMask};

fn node(n: u8) -> NodeId {
    NodeId::new(n).expect("a node id")
}

/// `0`, `4`, `?` for all ones, or a letter; `'` sets the Primary bit.
fn generation(text: &str) -> Generation {
    let base = match text.as_bytes()[0] {
        b'0' => 0,
        b'4' => 4,
        b'?' => return UNKNOWN,
        letter @ b'A'..=b'Z' => u64::from(letter) << 32,
        _ => panic!("generation {text}"),
    };
    Generation(base + u64::from(text.contains('\'')))
}

/// A node of a row, from `A,bm1:B,hist:C,bits:3,Inconsistent,crashed`.
struct Given {
    uuids: Uuids110,
    disk: DiskState,
    lost_primary: Option<u64>,
}

fn given(text: &str) -> Given {
    let mut slots =
        [Some(Generation::NONE), Some(Generation::NONE), Some(Generation::NONE), None, None, None, None, None];
    let mut out = Given {
        uuids: Uuids110 {
            current: Generation::NONE,
            dirty_bits: 0,
            flags: UuidFlags::NONE,
            nodes: WireMask::NONE,
            tracked: NodeMask::default(),
            bitmaps: Vec::new(),
            history: Vec::new(),
        },
        disk: DiskState::UpToDate,
        lost_primary: None,
    };
    let mut words = text.split(',');
    out.uuids.current = generation(words.next().expect("a current generation"));
    for word in words {
        let flag = |out: &mut Given, flag| out.uuids.flags |= flag;
        match word.split_once(':') {
            Some(("hist", g)) => out.uuids.history.push(generation(g)),
            Some(("bits", n)) => out.uuids.dirty_bits = n.parse().expect("a number"),
            Some(("lost", n)) => out.lost_primary = Some(n.parse().expect("a number")),
            Some((slot, g)) => {
                let n: usize = slot.strip_prefix("bm").expect("bmN").parse().expect("a number");
                slots[n] = Some(generation(g));
                if n > 2 {
                    flag(&mut out, UuidFlags(UuidFlags::HAS_UNALLOCATED.0 | (n as u64) << 56));
                }
            }
            None => match word {
                "crashed" => flag(&mut out, UuidFlags::CRASHED_PRIMARY),
                "reconnect" => flag(&mut out, UuidFlags::RECONNECT),
                "lost-quorum" => flag(&mut out, UuidFlags::PRIMARY_LOST_QUORUM),
                "sync-target" => flag(&mut out, UuidFlags::SYNC_TARGET),
                disk => out.disk = *DiskState::ALL.iter().find(|d| d.name() == disk).expect("a disk state"),
            },
        }
    }
    for (n, slot) in slots.into_iter().enumerate() {
        if let Some(slot) = slot {
            out.uuids.tracked.insert(node(n as u8));
            out.uuids.bitmaps.push(slot);
        }
    }
    out
}

fn show(c: Comparison) -> String {
    format!("{}:{}", c.rule.name(), c.strategy)
}

fn side(n: u8, given: &Given) -> Side<'_> {
    Side { node: node(n), uuids: &given.uuids, disk: given.disk, lost_primary: given.lost_primary }
}

/// X is node 0, Y node 1.
fn vector(command: &str, args: &Args) -> String {
    let [x, y] = ["x", "y"].map(|side| given(&args.word(side).expect("both sides given")));
    let protocol = args.number("proto", 124);
    let (early, resolve_conflicts) = (args.flag("early"), args.flag("R"));
    let gate = |of: &str, given: &Given| {
        let heard = given.lost_primary.unwrap_or(0);
        match args.word(of).as_deref() {
            None => Gate::Cautious,
            Some("released") => Gate::Released { heard },
            Some("later") => Gate::Later { heard },
            Some(other) => panic!("gate {other}"),
        }
    };
    let (me, peer) = (side(0, &x), side(1, &y));
    let at_x = Input { me, peer, protocol, early, resolve_conflicts, gate: gate("gx", &x) };
    let resolve_conflicts = !resolve_conflicts;
    let at_y = Input { me: peer, peer: me, resolve_conflicts, gate: gate("gy", &y), ..at_x };
    let run = match command {
        "compare" => compare,
        "connect" => with_disks,
        _ => panic!("command {command}"),
    };
    format!("{} / {}", show(run(&at_x)), show(run(&at_y)))
}

#[test]
pub(crate) fn table() {
    table::check("uuid9", vector);
}
