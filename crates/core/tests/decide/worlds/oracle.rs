//! What two nodes that meet may decide, under every policy, role and old protocol that matters. The oracle knows
//! nothing of generations, only which copy lacks an acknowledged write of the other:
//!
//! * A copy that lacks what was acknowledged never wins unless somebody asked for it. There is no resync only if the
//!   copies are equal.
//! * Every difference is in a bitmap, or the resync is a full one.
//! * The two decisions are mirror images, or one refuses. Both correct the generations alike.
//! * Split brain (or unrelated data) is said only if both may have written apart. The one exception is counted: the
//!   history has room for two generations, and one that has fallen out is not recognised. That refuses too much, never
//!   too little.

use super::world::World;
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use urbd_core::decide::handshake84::{self, Decision, Input, Occasion, Outcome};
use urbd_core::decide::split_brain::Side;
use urbd_core::decide::uuid84::{self, Comparison, UuidSet, Verdict};
use urbd_core::decide::{DiskState as D, Reason};
use urbd_core::{Policies, RrConflict};
use wire::AfterSplitBrain as P;

/// Two nodes that look at each other, in the order of their numbers.
#[derive(Clone, Debug)]
pub(super) struct Meeting {
    comparison: [uuid84::Input; 2],
    occasions: [Occasion; 2],
    disks: [D; 2],
    counts_as: [D; 2],
    discards: [bool; 2],
    changes: [u64; 2],
    facts: Facts,
}

/// What is true, whatever generations say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Facts {
    differ: bool,
    /// Some node's bitmap has the difference.
    marked: bool,
    lacks: [bool; 2],
    moved: [bool; 2],
    forced: bool,
}

/// What one node concludes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) decision: Decision,
    pub(super) own: UuidSet,
    pub(super) peer: UuidSet,
}

/// How a node is configured.
#[derive(Clone, Copy, Debug)]
struct Setting {
    policies: Policies,
    always_asbp: bool,
    rr_conflict: RrConflict,
    demotable: bool,
    dry_run: bool,
    was_primary: [bool; 2],
}

const CAUTIOUS: Setting = Setting {
    policies: Policies { none: P::Disconnect, one: P::Disconnect, two: P::Disconnect },
    always_asbp: false,
    rr_conflict: RrConflict::Disconnect,
    demotable: true,
    dry_run: false,
    was_primary: [false; 2],
};

/// Checks every decision; a pair of decisions that differs in nothing it looks at is tried with all settings once.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    tried: HashSet<u64>,
    /// Meetings, and pairs of decisions that were checked.
    pub(super) meetings: u64,
    pub(super) decisions: u64,
    /// Split brains that none were: the older generation had fallen out of a history of two. Safe, but a nuisance.
    pub(super) forgotten: u64,
    /// How often each rule of the comparison matched.
    pub(super) rules: BTreeMap<u8, u64>,
    /// How often each reason was given.
    pub(super) reasons: BTreeMap<&'static str, u64>,
}

impl Meeting {
    pub(super) fn of(world: &World, occasions: [Occasion; 2], resolves: bool, discards: [bool; 2]) -> Meeting {
        let [a, b] = [0, 1].map(|n| world.nodes[n].side());
        let input = |me, peer, resolve_conflicts| uuid84::Input {
            me,
            peer,
            protocol: 101,
            peer_wsame: true,
            resolve_conflicts,
        };
        let disks = [0, 1].map(|n| {
            let node = &world.nodes[n];
            if node.word.disk == D::Negotiating { node.at_attach } else { node.word.disk }
        });
        let facts = Facts {
            differ: world.copies.differ,
            marked: world.nodes.iter().any(|n| n.bit),
            lacks: world.copies.lacks,
            moved: world.moved,
            forced: world.forced,
        };
        Meeting {
            comparison: [input(a, b, resolves), input(b, a, !resolves)],
            occasions,
            disks,
            counts_as: [world.counts_as(0), world.counts_as(1)],
            discards,
            changes: world.nodes.map(|n| u64::from(n.bit)),
            facts,
        }
    }

    fn compare(&self) -> [Comparison; 2] {
        [0, 1].map(|n| uuid84::compare(&self.comparison[n]))
    }

    fn decide(&self, n: usize, comparison: &Comparison, setting: &Setting) -> Outcome {
        let peers_view = |p: P| if n == 0 { p } else { p.from_peers_view() };
        let Policies { none, one, two } = setting.policies;
        let node = |of: usize| Side {
            role: crate::words::primary_or_not(self.comparison[of].me.primary),
            disk: if of == n { self.disks[of] } else { self.counts_as[of] },
            discard_my_data: self.discards[of],
            was_primary: setting.was_primary[of],
            changes: self.changes[of],
        };
        handshake84::decide(&Input {
            comparison: *comparison,
            occasion: self.occasions[n],
            me: node(n),
            peer: node(1 - n),
            policies: Policies { none: peers_view(none), one: peers_view(one), two: peers_view(two) },
            always_asbp: setting.always_asbp,
            rr_conflict: setting.rr_conflict,
            dry_run: setting.dry_run,
            resolve_conflicts: self.comparison[n].resolve_conflicts,
            demotable: setting.demotable,
            writes_elsewhere: false,
            peer_is_source: false,
            survivor_insists: false,
        })
    }

    /// Has node `n` some trace of the other's present generation? There is room for two old ones only.
    fn remembers(&self, n: usize) -> bool {
        let (set, other) = (&self.comparison[n].me.uuids, self.comparison[n].peer.uuids.current);
        [set.current, set.bitmap, set.history[0], set.history[1]].iter().any(|g| g.same(other))
    }

    fn context(&self, what: &str, compared: &[Comparison; 2], outcomes: &[Outcome; 2]) -> String {
        format!("{what}\n{:#?}\n{compared:#?}\n{outcomes:?}", self)
    }
}

fn split(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::SplitBrain { .. })
}

fn refuses(decision: Decision) -> bool {
    matches!(decision, Decision::Disconnect | Decision::Retry | Decision::FailOwnDisk | Decision::TreatPeerAsDiskless)
}

fn mirrored(decision: Decision) -> Decision {
    match decision {
        Decision::Source { full } => Decision::Target { full },
        Decision::Target { full } => Decision::Source { full },
        Decision::FailOwnDisk => Decision::TreatPeerAsDiskless,
        Decision::TreatPeerAsDiskless => Decision::FailOwnDisk,
        other => other,
    }
}

impl Oracle {
    /// Both decide as cautiously as can be; what they decide with other settings is checked too.
    ///
    /// # Errors
    /// What is wrong with a decision.
    pub(super) fn judge(&mut self, meeting: &Meeting, _world: &World) -> Result<[Seen; 2], String> {
        self.meetings += 1;
        let compared = meeting.compare();
        if meeting.comparison[0].resolve_conflicts && meeting.discards == [false; 2] {
            self.check_old_protocols(meeting)?;
        }
        *self.rules.entry(compared[0].rule).or_default() += 1;
        self.check_comparison(meeting, &compared)?;
        let outcomes = self.check(meeting, &compared, &CAUTIOUS)?;
        if self.is_new(meeting, &compared) {
            for setting in settings(meeting, &compared) {
                self.check(meeting, &compared, &setting)?;
            }
        }
        let own = |n: usize| {
            let before = meeting.comparison[n].me.uuids;
            handshake84::generations_after(&compared[n], before, meeting.occasions[n], &outcomes[n])
        };
        Ok([0, 1].map(|n| Seen { decision: outcomes[n].decision, own: own(n), peer: compared[n].peer }))
    }

    fn is_new(&mut self, m: &Meeting, compared: &[Comparison; 2]) -> bool {
        let mut key = DefaultHasher::new();
        let sides = [0, 1].map(|n| (m.comparison[n].me.primary, m.comparison[n].me.crashed_primary));
        (sides, m.comparison[0].resolve_conflicts, m.occasions, m.disks, m.counts_as).hash(&mut key);
        (m.discards, m.changes, m.facts).hash(&mut key);
        compared.iter().for_each(|c| (c.verdict.number(), c.reason.name()).hash(&mut key));
        self.tried.insert(key.finish())
    }

    /// Nodes that were updated meet again with what generations newer protocols left: one refuses, or both agree.
    fn check_old_protocols(&mut self, m: &Meeting) -> Result<(), String> {
        for (protocol, peer_wsame) in [(101, false), (95, true), (90, false)] {
            let [a, b] = [0, 1].map(|n| {
                let input = uuid84::Input { protocol, peer_wsame, ..m.comparison[n] };
                uuid84::compare(&input).verdict
            });
            let refused = |v| matches!(v, Verdict::RequiresWsame | Verdict::RequiresProtocol(_));
            if a.mirrored() != b && !refused(a) && !refused(b) {
                return Err(format!("with protocol {protocol} {a:?} meets {b:?}\n{m:#?}"));
            }
        }
        Ok(())
    }

    fn check_comparison(&mut self, m: &Meeting, compared: &[Comparison; 2]) -> Result<(), String> {
        let (mine, peers) = (&compared[0], &compared[1]);
        let text = |what: &str| format!("{what}\n{m:#?}\n{compared:#?}");
        if mine.verdict.mirrored() != peers.verdict {
            return Err(text("the verdicts are no mirror images"));
        }
        if mine.own != peers.peer || mine.peer != peers.own {
            return Err(text("each corrects the generations in another way"));
        }
        let worthless = m.disks.iter().any(|d| *d <= D::Inconsistent);
        if (split(mine.verdict) || mine.verdict == Verdict::Unrelated)
            && m.facts.moved != [true; 2]
            && !m.facts.forced
            && !worthless
        {
            if (0..2).any(|n| m.remembers(n)) {
                return Err(text("a split brain or unrelated data, but not both went their own way"));
            }
            self.forgotten += 1;
        }
        Ok(())
    }

    fn check(&mut self, m: &Meeting, compared: &[Comparison; 2], setting: &Setting) -> Result<[Outcome; 2], String> {
        self.decisions += 1;
        let outcomes = [0, 1].map(|n| m.decide(n, &compared[n], setting));
        for out in &outcomes {
            *self.reasons.entry(out.reason.name()).or_default() += 1;
        }
        let [mine, peers] = [&outcomes[0], &outcomes[1]].map(|o| o.decision);
        let refused = refuses(mine) || refuses(peers);
        if mirrored(mine) != peers && !refused {
            return Err(m.context("the decisions are no mirror images", compared, &outcomes));
        }
        if refused {
            return Ok(outcomes);
        }
        let f = &m.facts;
        let wrong = match mine {
            Decision::NoSync => {
                let good = m.disks.iter().any(|d| *d > D::Inconsistent);
                (f.differ && good).then_some("no resync, but the copies differ")
            }
            Decision::Source { full } => wrong_sync(m, 0, full, compared, setting, &outcomes),
            Decision::Target { full } => wrong_sync(m, 1, full, compared, setting, &outcomes),
            _ => None,
        };
        match wrong {
            Some(what) => Err(m.context(what, compared, &outcomes)),
            None => Ok(outcomes),
        }
    }
}

/// What is wrong about a resync from node `source`?
fn wrong_sync(
    m: &Meeting,
    source: usize,
    full: bool,
    compared: &[Comparison; 2],
    setting: &Setting,
    outcomes: &[Outcome; 2],
) -> Option<&'static str> {
    let (target, f) = (1 - source, &m.facts);
    let was_split = split(compared[0].verdict);
    let policy = outcomes[0].reason != Reason::DiskStateDecides
        && (setting.policies != CAUTIOUS.policies || m.discards != [false; 2]);
    let chosen = f.forced || (was_split && policy);
    let primary = m.comparison[target].me.primary && m.occasions[target] == Occasion::Connect;
    let wants = setting.rr_conflict == RrConflict::Violently || outcomes[target].demote;
    if f.differ && !f.marked && !full {
        Some("a difference that no bitmap has is not copied")
    } else if m.disks[source] <= D::Inconsistent {
        Some("an Inconsistent source")
    } else if f.lacks[source] && !chosen {
        Some("the source lacks a write that was acknowledged")
    } else if f.lacks == [true; 2] && !was_split && !f.forced {
        Some("both wrote apart, and nobody says so")
    } else if primary && m.disks[target] >= D::Consistent && !wants {
        Some("a Primary with good data becomes the target")
    } else if was_split && !chosen && m.disks[target] > D::Inconsistent {
        Some("a split brain is resolved, and nobody asked for it")
    } else {
        None
    }
}

/// Every setting that can make a difference to these two.
fn settings(m: &Meeting, compared: &[Comparison; 2]) -> Vec<Setting> {
    let was_split = split(compared[0].verdict);
    let primaries = m.comparison.iter().filter(|c| c.me.primary).count();
    let none: Vec<P> = P::ALL.iter().copied().take(7).collect();
    let one = [P::Disconnect, P::Consensus, P::ViolentlyAs0pri, P::DiscardSecondary, P::CallPriLost];
    let two = [P::Disconnect, P::ViolentlyAs0pri, P::CallPriLost];
    let (one, two): (&[P], &[P]) = match primaries {
        _ if !was_split => (&one[..1], &two[..1]),
        0 => (&one[..1], &two[..1]),
        1 => (&one, &two[..1]),
        _ => (&one[..1], &two),
    };
    let none = if was_split { &none[..] } else { &none[..1] };
    let rr = [RrConflict::Disconnect, RrConflict::Violently, RrConflict::CallPriLost, RrConflict::RetryConnect];
    let mut all = vec![Setting { dry_run: true, ..CAUTIOUS }];
    for policies in none
        .iter()
        .flat_map(|&none| one.iter().flat_map(move |&one| two.iter().map(move |&two| Policies { none, one, two })))
    {
        for bits in 0..if was_split { 16u32 } else { 1 } {
            let bit = |k: u32| bits >> k & 1 == 1;
            all.extend(rr.map(|rr_conflict| Setting {
                policies,
                dry_run: false,
                always_asbp: bit(0),
                rr_conflict,
                demotable: bit(1),
                was_primary: [bit(2), bit(3)],
            }));
        }
    }
    all
}
