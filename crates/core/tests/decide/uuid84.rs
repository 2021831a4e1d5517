use crate::table::{self, Args};
use units::Generation;
use urbd_core::decide::uuid84::Ancestor;
use urbd_core::decide::uuid84::{Comparison, Input, NEW_BM_OFFSET, Node, UuidSet, Verdict, compare};

/// `0`, `4`, or a letter; `+` adds the sync-UUID offset, `'` sets the Primary bit.
fn generation(text: &str) -> Generation {
    let base = match text.as_bytes()[0] {
        b'0' => 0,
        b'4' => 4,
        letter @ b'A'..=b'Z' => u64::from(letter) << 32,
        _ => panic!("generation {text}"),
    };
    let offset = if text.contains('+') { NEW_BM_OFFSET } else { 0 };
    Generation(base + offset + u64::from(text.contains('\'')))
}

fn show(generation: Generation) -> String {
    let n = generation.base().0;
    let (n, plus) = if n >= NEW_BM_OFFSET { (n - NEW_BM_OFFSET, "+") } else { (n, "") };
    let name = if n < 5 { n.to_string() } else { char::from((n >> 32) as u8).to_string() };
    format!("{name}{plus}{}", if generation.primary_bit() { "'" } else { "" })
}

fn set(text: &str) -> UuidSet {
    let g: Vec<Generation> = text.split(':').map(generation).collect();
    let at = |i: usize| g.get(i).copied().unwrap_or(Generation::NONE);
    UuidSet { current: at(0), bitmap: at(1), history: [at(2), at(3)] }
}

fn show_set(s: &UuidSet) -> String {
    [s.current, s.bitmap, s.history[0], s.history[1]].map(show).join(":")
}

fn input(args: &Args) -> Input {
    let (crashed, primary) = (args.word("crashed"), args.word("primary"));
    let is = |who: &Option<String>, name: &str| who.as_deref().is_some_and(|w| w == name || w == "both");
    let side = |name: &str| Node {
        uuids: set(&args.word(name).expect("both sides given")),
        crashed_primary: is(&crashed, name),
        primary: is(&primary, name),
    };
    Input {
        me: side("me"),
        peer: side("peer"),
        protocol: args.number("proto", 101),
        peer_wsame: !args.flag("old-peer"),
        resolve_conflicts: args.flag("R"),
    }
}

pub(crate) fn verdict_text(v: Verdict) -> String {
    match v {
        Verdict::NoSync => "no-sync".into(),
        Verdict::Source { full: false } => "source".into(),
        Verdict::Source { full: true } => "source-full".into(),
        Verdict::Target { full: false } => "target".into(),
        Verdict::Target { full: true } => "target-full".into(),
        Verdict::SplitBrain(Ancestor::InBitmaps) => "split-brain-auto".into(),
        Verdict::SplitBrain(_) => "split-brain".into(),
        Verdict::Unrelated => "unrelated".into(),
        Verdict::RequiresProtocol(n) => format!("requires-protocol-{n}"),
        Verdict::RequiresWsame => "requires-wsame".into(),
    }
}

fn text(input: &Input, c: &Comparison) -> String {
    let number = c.verdict.number().map_or("-".to_string(), |n| n.to_string());
    let mut out = format!("{} rule={} hg={number} {}", verdict_text(c.verdict), c.rule, c.reason.name());
    if c.own != input.me.uuids {
        out += &format!(" me:={}", show_set(&c.own));
    }
    if c.peer != input.peer.uuids {
        out += &format!(" peer:={}", show_set(&c.peer));
    }
    out
}

#[test]
pub(crate) fn table() {
    table::check("uuid84", |command, args| match command {
        "compare" => {
            let input = input(args);
            text(&input, &compare(&input))
        }
        "life" => {
            let mut mine = set(&args.word("set").expect("a set"));
            match args.word("does").expect("an event").as_str() {
                "new-generation" => mine.start_generation(generation("N")),
                "retire-bitmap" => mine.retire_bitmap(),
                "start-source" => {
                    mine.start_sync_source(generation("R"));
                }
                "start-target" => mine.start_sync_target(generation(&args.word("sync").expect("sync UUID"))),
                "finish-target" => mine.finish_sync_target(&set(&args.word("source").expect("the source's set"))),
                other => panic!("event {other}"),
            }
            show_set(&mine)
        }
        other => panic!("command {other}"),
    });
}

fn swapped(i: &Input) -> Input {
    Input { me: i.peer, peer: i.me, resolve_conflicts: !i.resolve_conflicts, ..*i }
}

/// Both nodes evaluate the comparison; whatever the sets are, they must not both be source or both be target.
fn assert_mirrored(i: &Input) {
    let (mine, peers) = (compare(i), compare(&swapped(i)));
    assert_eq!(mine.verdict, peers.verdict.mirrored(), "\n{i:?}\n{mine:?}\n{peers:?}");
    let copies_agree = mine.own == peers.peer && mine.peer == peers.own;
    assert!(copies_agree, "the two nodes correct the sets differently:\n{i:?}\n{mine:?}\n{peers:?}");
}

/// Every pair of sets over five generations (0, 4, A, A+offset, B; currents also C) mirrors.
#[test]
pub(crate) fn all_small_pairs_mirror() {
    let slots = ["0", "4", "A", "A+", "B"].map(generation);
    let mut sets = Vec::new();
    for current in ["0", "4", "A", "A+", "B", "C"].map(generation) {
        for bitmap in slots {
            for h0 in slots {
                for h1 in slots {
                    sets.push(UuidSet { current, bitmap, history: [h0, h1] });
                }
            }
        }
    }
    let node = |uuids| Node { uuids, ..Node::default() };
    for &me in &sets {
        for &peer in &sets {
            for protocol in [90, 95, 101] {
                let (me, peer) = (node(me), node(peer));
                assert_mirrored(&Input { me, peer, protocol, peer_wsame: true, resolve_conflicts: true });
            }
        }
    }
}

#[test]
pub(crate) fn all_crash_and_role_combinations_mirror() {
    for bits in 0..64u32 {
        let bit = |n: u32| bits >> n & 1 == 1;
        let node = |n: u32| Node { uuids: set("A:0:B:C"), crashed_primary: bit(n), primary: bit(n + 1) };
        let input = Input { me: node(0), peer: node(2), protocol: 101, peer_wsame: bit(4), resolve_conflicts: bit(5) };
        assert_mirrored(&input);
    }
}

/// Bit 0 of a UUID tells who was Primary, not which data: it changes no verdict.
#[test]
pub(crate) fn primary_bits_never_matter() {
    let sets = ["A:B:C:D", "B:0:C:D", "A:B+:B:C", "B+:0:C:D", "A:0:B:C", "C:B:D:0", "4:0:0:0"];
    for me in sets {
        for peer in sets {
            for bits in 0..256u32 {
                let mark = |s: UuidSet, shift: u32| {
                    let m = |g: Generation, n: u32| g.with_primary_bit(bits >> (shift + n) & 1 == 1);
                    UuidSet {
                        current: m(s.current, 0),
                        bitmap: m(s.bitmap, 1),
                        history: [m(s.history[0], 2), m(s.history[1], 3)],
                    }
                };
                let with = |me, peer| {
                    let node = |uuids| Node { uuids, ..Node::default() };
                    compare(&Input {
                        me: node(me),
                        peer: node(peer),
                        protocol: 101,
                        peer_wsame: true,
                        resolve_conflicts: false,
                    })
                };
                let plain = with(set(me), set(peer));
                assert_eq!(with(mark(set(me), 0), mark(set(peer), 4)).verdict, plain.verdict, "{me} {peer} {bits:08b}");
            }
        }
    }
}
