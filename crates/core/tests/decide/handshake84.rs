use crate::table::{self, Args};
use crate::words;
use units::Generation;
use urbd_core::decide::handshake84::{
    Decision, Input, Occasion, Outcome, StateReceived, UuidsReceived, UuidsVerdict, decide, generations_after,
    occasion, on_uuids, peer_disk_counts_as, rebooted_while_suspended,
};
use urbd_core::decide::split_brain::Side;
use urbd_core::decide::uuid84::Ancestor;
use urbd_core::decide::uuid84::{self, Comparison, UuidSet, Verdict};
use urbd_core::decide::{DiskState, Reason};
use urbd_core::{Policies, RrConflict};
use wire::AfterSplitBrain;

const SPLIT_AUTO: Verdict = Verdict::SplitBrain(Ancestor::InBitmaps);
const SPLIT: Verdict = Verdict::SplitBrain(Ancestor::InHistory);
const SPLIT_EMPTY: Verdict = Verdict::SplitBrain(Ancestor::Unknown);

const VERDICTS: [(&str, Verdict); 11] = [
    ("no-sync", Verdict::NoSync),
    ("source", Verdict::Source { full: false }),
    ("target", Verdict::Target { full: false }),
    ("source-full", Verdict::Source { full: true }),
    ("target-full", Verdict::Target { full: true }),
    ("split-brain-auto", SPLIT_AUTO),
    ("split-brain", SPLIT),
    ("split-brain-empty", SPLIT_EMPTY),
    ("unrelated", Verdict::Unrelated),
    ("requires-protocol-91", Verdict::RequiresProtocol(91)),
    ("requires-wsame", Verdict::RequiresWsame),
];

const OCCASIONS: [(&str, Occasion); 4] = [
    ("connect", Occasion::Connect),
    ("own-attach", Occasion::OwnAttach),
    ("peer-attach", Occasion::PeerAttach),
    ("peer-serves", Occasion::PeerServes),
];

fn comparison(verdict: Verdict, reason: Reason) -> Comparison {
    let set = UuidSet { bitmap: Generation(0x100), ..UuidSet::default() };
    Comparison { verdict, rule: 0, reason, own: set, peer: set }
}

fn decision_text(d: Decision) -> &'static str {
    match d {
        Decision::NoSync => "no-sync",
        Decision::Source { full: false } => "source",
        Decision::Source { full: true } => "source-full",
        Decision::Target { full: false } => "target",
        Decision::Target { full: true } => "target-full",
        Decision::Disconnect => "disconnect",
        Decision::Retry => "retry",
        Decision::FailOwnDisk => "fail-own-disk",
        Decision::TreatPeerAsDiskless => "treat-peer-as-diskless",
    }
}

fn outcome_text(out: &Outcome, compared: Reason) -> String {
    let mut text = decision_text(out.decision).to_string();
    if out.reason != compared {
        text += &format!(" {}", out.reason.name());
    }
    if out.demote {
        text += " demote-first";
    }
    for h in &out.handlers {
        text += &format!(" call={}", h.name());
    }
    text
}

fn decide_row(args: &Args) -> String {
    let verdict = args.pick("verdict", &VERDICTS, Verdict::NoSync);
    let (primary, discard) = (words::sides(args, "primary"), words::sides(args, "discard"));
    let reason = match (args.flag("rule40"), args.flag("rule41")) {
        (true, _) => Reason::CrashedPrimary,
        (_, true) => Reason::CrashedPrimaryBesidePrimary,
        _ => Reason::BitmapBoth,
    };
    let comparison = comparison(verdict, reason);
    let was_primary = words::sides(args, "was-primary");
    let node = |name: &str, primary, discard_my_data, was_primary| Side {
        role: words::primary_or_not(primary),
        discard_my_data,
        was_primary,
        disk: words::disk(args, name, DiskState::UpToDate),
        changes: args.number(&format!("{name}-changes"), 0),
    };
    let input = Input {
        comparison,
        occasion: args.pick("occasion", &OCCASIONS, Occasion::Connect),
        me: node("me", primary.0, discard.0, was_primary.0),
        peer: node("peer", primary.1, discard.1, was_primary.1),
        policies: words::policies(args),
        always_asbp: args.flag("always-asbp"),
        rr_conflict: words::rr_conflict(args),
        dry_run: args.flag("dry-run"),
        resolve_conflicts: args.flag("R"),
        demotable: !args.flag("in-use"),
        writes_elsewhere: args.flag("writes-elsewhere"),
        peer_is_source: args.flag("peer-is-source"),
        survivor_insists: args.flag("survivor-insists"),
    };
    outcome_text(&decide(&input), comparison.reason)
}

fn occasion_row(args: &Args) -> String {
    let found = occasion(&StateReceived {
        peer_uuids_known: !args.flag("no-uuids"),
        replication: words::replication(args, "conn"),
        peer_replication: words::replication(args, "peer-conn"),
        disk: words::disk(args, "me", DiskState::UpToDate),
        peer_disk: words::disk(args, "peer", DiskState::UpToDate),
        consider_resync: args.flag("consider-resync"),
        compared: !args.flag("not-compared"),
    });
    found.map_or("none", |o| OCCASIONS.iter().find(|(_, v)| *v == o).expect("listed").0).to_string()
}

fn uuids_row(args: &Args) -> String {
    let generation = |key: &str| Generation(args.number(key, 0));
    let (verdict, reason) = on_uuids(&UuidsReceived {
        role: words::primary_or_not(args.flag("primary")),
        disk: words::disk(args, "disk", DiskState::UpToDate),
        replication: words::replication(args, "conn"),
        peer_attaching: args.flag("peer-attaching"),
        protocol: args.number("proto", 101),
        own_current: generation("own"),
        exposed: generation("exposed"),
        peer_current: generation("peer"),
        peer_outrun: args.flag("peer-outrun"),
        skip_initial_sync: args.flag("skip"),
    });
    let what = match verdict {
        UuidsVerdict::Store { expose: None } => "store".to_string(),
        UuidsVerdict::Store { expose: Some(g) } => format!("store expose={}", g.0),
        UuidsVerdict::SkipInitialSync => "skip-initial-sync".to_string(),
        UuidsVerdict::Disconnect => "disconnect".to_string(),
    };
    format!("{what} {}", reason.name())
}

/// This node was the source of a resync whose end it has missed (rule 34): what becomes of its bitmap UUID?
fn missed_end_row(args: &Args) -> String {
    let set = |bitmap, history: [u64; 2]| UuidSet {
        current: Generation(32),
        bitmap: Generation(bitmap),
        history: history.map(Generation),
    };
    let node = |uuids| uuid84::Node { uuids, crashed_primary: false, primary: false };
    let (me, peer) = (node(set(16, [8, 0])), node(set(0, [16, 8])));
    let comparison =
        uuid84::compare(&uuid84::Input { me, peer, protocol: 101, peer_wsame: true, resolve_conflicts: true });
    assert_eq!(comparison.rule, 34);
    let decided = Outcome {
        decision: Decision::Source { full: false },
        reason: comparison.reason,
        handlers: Vec::new(),
        demote: false,
    };
    let occasion = args.pick("occasion", &OCCASIONS, Occasion::Connect);
    let own = generations_after(&comparison, me.uuids, occasion, &decided);
    if own.bitmap.is_none() { "cleared" } else { "kept" }.to_string()
}

#[test]
pub(crate) fn table() {
    table::check("handshake84", |command, args| match command {
        "decide" => decide_row(args),
        "occasion" => occasion_row(args),
        "uuids" => uuids_row(args),
        "peer-disk" => {
            let disk = words::disk(args, "peer", DiskState::Negotiating);
            peer_disk_counts_as(disk, args.flag("inconsistent")).name().to_string()
        }
        "missed-end" => missed_end_row(args),
        "rebooted" => rebooted_while_suspended(
            Decision::NoSync,
            args.pick("occasion", &OCCASIONS, Occasion::Connect),
            words::disk(args, "peer", DiskState::Consistent),
            args.flag("unconfirmed"),
            args.flag("suspended"),
            args.flag("pending"),
        )
        .to_string(),
        other => panic!("command {other}"),
    });
}

/// The same situation as the peer sees it.
fn mirrored(i: &Input) -> Input {
    let policy = |p: AfterSplitBrain| p.from_peers_view();
    Input {
        comparison: Comparison {
            verdict: i.comparison.verdict.mirrored(),
            own: i.comparison.peer,
            peer: i.comparison.own,
            ..i.comparison
        },
        me: i.peer,
        peer: i.me,
        policies: Policies { none: policy(i.policies.none), one: policy(i.policies.one), two: policy(i.policies.two) },
        resolve_conflicts: !i.resolve_conflicts,
        ..i.clone()
    }
}

fn gives_up(d: Decision) -> bool {
    matches!(d, Decision::Disconnect | Decision::Retry)
}

/// S8 to S10 of the specification's appendix B, for one pair of decisions.
fn assert_safe(i: &Input) {
    let (mine, peers) = (decide(i), decide(&mirrored(i)));
    let mirror = match mine.decision {
        Decision::Source { full } => Decision::Target { full },
        Decision::Target { full } => Decision::Source { full },
        other => other,
    };
    let agree = mirror == peers.decision || gives_up(mine.decision) || gives_up(peers.decision);
    assert!(agree, "\n{i:?}\n{mine:?}\n{peers:?}");
    if let (Decision::Source { full }, false) = (mine.decision, gives_up(peers.decision)) {
        assert!(i.me.disk > DiskState::Inconsistent, "an Inconsistent source: {i:?}");
        let unusable = matches!(i.comparison.verdict, Verdict::SplitBrain(Ancestor::InHistory | Ancestor::Unknown));
        assert!(full || !unusable, "a bitmap resync without a usable bitmap: {i:?}");
    }
    let asked_for = i.always_asbp || i.me.discard_my_data != i.peer.discard_my_data;
    let by_disk = (i.me.disk == DiskState::Inconsistent) != (i.peer.disk == DiskState::Inconsistent);
    if i.comparison.verdict == SPLIT && !asked_for && !by_disk {
        assert!(gives_up(mine.decision) && gives_up(peers.decision), "resolved by itself: {i:?}");
    }
}

#[test]
pub(crate) fn both_ends_agree_and_nothing_unsafe_happens() {
    let disks = [DiskState::Inconsistent, DiskState::Outdated, DiskState::Consistent, DiskState::UpToDate];
    let one = [
        AfterSplitBrain::Disconnect,
        AfterSplitBrain::Consensus,
        AfterSplitBrain::ViolentlyAs0pri,
        AfterSplitBrain::DiscardSecondary,
        AfterSplitBrain::CallPriLost,
    ];
    let two = [AfterSplitBrain::Disconnect, AfterSplitBrain::ViolentlyAs0pri, AfterSplitBrain::CallPriLost];
    let rr = [RrConflict::Disconnect, RrConflict::Violently, RrConflict::CallPriLost, RrConflict::RetryConnect];
    for (n, (_, verdict)) in VERDICTS.iter().enumerate() {
        for bits in 0..1u32 << 10 {
            let bit = |k: u32| bits >> k & 1 == 1;
            for (p, none) in AfterSplitBrain::ALL.iter().copied().take(7).enumerate() {
                for disk in 0..16usize {
                    let changes = [(0, 0), (0, 5), (3, 0), (3, 5), (5, 5)][(p + disk + bits as usize) % 5];
                    let node = |disk, primary, discard_my_data, was_primary, changes| {
                        let role = words::primary_or_not(primary);
                        Side { role, disk, discard_my_data, was_primary, changes }
                    };
                    assert_safe(&Input {
                        comparison: comparison(*verdict, Reason::BitmapBoth),
                        occasion: Occasion::Connect,
                        me: node(disks[disk / 4], bit(0), bit(2), bit(4), changes.0),
                        peer: node(disks[disk % 4], bit(1), bit(3) && !bit(2), bit(5), changes.1),
                        policies: Policies { none, one: one[(p + disk) % 5], two: two[(p + disk / 4) % 3] },
                        always_asbp: bit(6),
                        rr_conflict: rr[(disk + n) % 4],
                        dry_run: bit(7) && bit(3) && bit(0),
                        resolve_conflicts: bit(8),
                        demotable: bit(9),
                        writes_elsewhere: false,
                        peer_is_source: false,
                        survivor_insists: false,
                    });
                }
            }
        }
    }
}
