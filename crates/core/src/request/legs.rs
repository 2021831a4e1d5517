//! What each peer has of a write, and what of its word is still to come: one leg per peer.
//!
//! Owns [`Legs`]. What happens towards a peer is told to it by the name of the event; the questions that every answer
//! brings with it (may the write be completed, can nothing change any more) are answered from a tally. It neither sends
//! nor touches a bitmap: `replicate.rs` does what follows.

use std::fmt;
use units::{NodeId, NodeMask};

/// Has a peer a write?
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Has {
    /// It has not said so, or has refused it.
    No,
    Yes,
    /// It has, and has cleared its bits.
    InSync,
}

/// What a peer has said of a write that was sent to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// It must answer before completion.
    Awaited,
    /// Only a barrier's acknowledgement says that it has it for good, and must come before completion.
    BarrierAwaited(Has),
    /// Nothing is waited for: it has answered, or need not.
    Given(Has),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leg {
    /// It was not sent, and no bits say so: the peer came later.
    Unknown,
    /// It was not sent, and its bits have said so at once.
    Marked,
    /// It was sent on the present link. Accounted: bitmaps were exchanged since, and had it.
    Sent { answer: Answer, accounted: bool },
    /// The link went while I/O was frozen: kept for the peer's return, and waited for if it has not said to have it.
    Kept { has: Has, accounted: bool },
    /// A barrier was acknowledged since: nothing can change any more.
    Confirmed { has: Has, accounted: bool },
    /// The peer went, and does not count as having it. Its bits have said so at once, if bitmaps had not before: a
    /// resync may have copied it since.
    Lost { accounted: bool },
}

/// What a peer must say of a write before it is completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// Nothing: it counts as having it as soon as it is on its way (protocol A).
    Nothing,
    Ack,
    /// That it has it for good, which it says with a barrier's acknowledgement only.
    Barrier,
}

/// What became of an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acked {
    /// The peer has nothing to answer.
    Unasked,
    /// Nothing can change any more.
    TooLate,
    /// The wait for the peer may have ended with it.
    Counts { ends_wait: bool },
}

/// Whose legs are of a sort: what would have to be searched for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Tally {
    /// Completion waits for them.
    awaited: NodeMask,
    /// Something can still change.
    open: NodeMask,
    /// Were sent it, and have it.
    has: NodeMask,
    /// Were sent it, and may lack it.
    lacks: NodeMask,
}

/// One leg per peer, by its node id.
#[derive(Clone)]
pub(crate) struct Legs {
    legs: [Leg; NodeId::COUNT],
    tally: Tally,
}

impl fmt::Debug for Legs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries((0..).zip(&self.legs).filter(|(_, leg)| **leg != Leg::Unknown)).finish()
    }
}

impl Answer {
    fn has(self) -> Has {
        match self {
            Answer::Awaited => Has::No,
            Answer::BarrierAwaited(has) | Answer::Given(has) => has,
        }
    }

    fn is_awaited(self) -> bool {
        !matches!(self, Answer::Given(_))
    }
}

impl Leg {
    fn has(self) -> Has {
        match self {
            Leg::Sent { answer, .. } => answer.has(),
            Leg::Kept { has, .. } | Leg::Confirmed { has, .. } => has,
            Leg::Unknown | Leg::Marked | Leg::Lost { .. } => Has::No,
        }
    }

    fn is_awaited(self) -> bool {
        match self {
            Leg::Sent { answer, .. } => answer.is_awaited(),
            Leg::Kept { has, .. } => has == Has::No,
            Leg::Unknown | Leg::Marked | Leg::Confirmed { .. } | Leg::Lost { .. } => false,
        }
    }
}

impl Tally {
    fn note(&mut self, peer: NodeId, leg: Leg) {
        let has = leg.has();
        let (was_sent, is_open) = match leg {
            Leg::Unknown | Leg::Marked => (false, false),
            Leg::Sent { .. } | Leg::Kept { .. } => (true, true),
            Leg::Confirmed { .. } | Leg::Lost { .. } => (true, false),
        };
        self.awaited.put(peer, leg.is_awaited());
        self.open.put(peer, is_open);
        self.has.put(peer, has > Has::No);
        self.lacks.put(peer, was_sent && has == Has::No);
    }
}

static UNKNOWN: [Leg; NodeId::COUNT] = [Leg::Unknown; NodeId::COUNT];

impl Legs {
    /// The write begins. It is not sent to `unsent`, whose bits say so.
    pub(crate) fn new(unsent: NodeMask) -> Legs {
        let mut legs = UNKNOWN;
        unsent.into_iter().for_each(|peer| legs[peer.index()] = Leg::Marked);
        Legs { legs, tally: Tally::default() }
    }

    fn set(&mut self, peer: NodeId, leg: Leg) {
        self.legs[peer.index()] = leg;
        self.tally.note(peer, leg);
    }

    fn leg(&self, peer: NodeId) -> Leg {
        self.legs[peer.index()]
    }

    // -- what happens towards a peer ---------------------------------------------------------------------------------

    pub(crate) fn sent(&mut self, peer: NodeId, wanted: Wanted) {
        let answer = match wanted {
            Wanted::Nothing => Answer::Given(Has::Yes),
            Wanted::Ack => Answer::Awaited,
            Wanted::Barrier => Answer::BarrierAwaited(Has::No),
        };
        self.set(peer, Leg::Sent { answer, accounted: false });
    }

    /// The peer says that it has it, and perhaps that it has cleared its bits.
    pub(crate) fn acked(&mut self, peer: NodeId, in_sync: bool) -> Acked {
        let (answer, accounted) = match self.leg(peer) {
            Leg::Sent { answer, accounted } => (answer, accounted),
            Leg::Confirmed { .. } | Leg::Lost { .. } => return Acked::TooLate,
            Leg::Unknown | Leg::Marked | Leg::Kept { .. } => return Acked::Unasked,
        };
        let has = answer.has().max(if in_sync { Has::InSync } else { Has::Yes });
        let by_barrier = matches!(answer, Answer::BarrierAwaited(_));
        let now = if by_barrier { Answer::BarrierAwaited(has) } else { Answer::Given(has) };
        self.set(peer, Leg::Sent { answer: now, accounted });
        Acked::Counts { ends_wait: answer == Answer::Awaited }
    }

    /// The peer says that it lacks it. True: the wait for the peer has ended.
    pub(crate) fn refused(&mut self, peer: NodeId) -> bool {
        let leg = self.leg(peer);
        match leg {
            Leg::Sent { accounted, .. } => self.set(peer, Leg::Sent { answer: Answer::Given(Has::No), accounted }),
            Leg::Confirmed { accounted, .. } => self.set(peer, Leg::Confirmed { has: Has::No, accounted }),
            Leg::Unknown | Leg::Marked | Leg::Kept { .. } | Leg::Lost { .. } => return false,
        }
        leg.is_awaited()
    }

    /// Nothing more of the peer is waited for, which counts as having it: it wants it again.
    /// False: nothing was waited for.
    pub(crate) fn waits_no_longer(&mut self, peer: NodeId) -> bool {
        let Leg::Sent { answer, accounted } = self.leg(peer) else { return false };
        if answer.is_awaited() {
            self.set(peer, Leg::Sent { answer: Answer::Given(answer.has().max(Has::Yes)), accounted });
        }
        answer.is_awaited()
    }

    /// The barrier behind it was acknowledged. Says it that the peer has what it has not answered? True: the wait for
    /// the peer has ended.
    pub(crate) fn confirmed(&mut self, peer: NodeId, for_good: bool) -> bool {
        let Leg::Sent { answer, accounted } = self.leg(peer) else { return false };
        let has = answer.has();
        let said = if answer.is_awaited() && for_good { has.max(Has::Yes) } else { has };
        self.set(peer, Leg::Confirmed { has: said, accounted });
        answer.is_awaited()
    }

    /// Bitmaps are exchanged, and have it: what the peer says of it later does not matter to them.
    pub(crate) fn account(&mut self, peer: NodeId) {
        if let Leg::Sent { accounted, .. } | Leg::Kept { accounted, .. } = &mut self.legs[peer.index()] {
            *accounted = true;
        }
    }

    /// The link went while I/O is frozen. True: it is kept, as the peer's answer is missing, or as the peer has it and
    /// `also_acked` are kept.
    pub(crate) fn kept(&mut self, peer: NodeId, also_acked: bool) -> bool {
        let Leg::Sent { answer, .. } = self.leg(peer) else { return false };
        let has = if answer.is_awaited() { Has::No } else { answer.has() };
        let kept = answer.is_awaited() || also_acked && has > Has::No;
        if kept {
            self.set(peer, Leg::Kept { has, accounted: false });
        }
        kept
    }

    /// The peer is gone. True: bitmaps that were exchanged since, on another link, have it.
    pub(crate) fn lost(&mut self, peer: NodeId) -> bool {
        let accounted = matches!(self.leg(peer), Leg::Kept { accounted: true, .. });
        self.set(peer, Leg::Lost { accounted });
        accounted
    }

    // -- what is known -----------------------------------------------------------------------------------------------

    /// Was it sent to a peer, and is not kept? True: and bitmaps that were exchanged since have it.
    pub(crate) fn was_asked(&self, peer: NodeId) -> Option<bool> {
        match self.leg(peer) {
            Leg::Sent { accounted, .. } | Leg::Lost { accounted } => Some(accounted),
            Leg::Confirmed { .. } => Some(false),
            Leg::Unknown | Leg::Marked | Leg::Kept { .. } => None,
        }
    }

    /// Does completion wait for a peer?
    pub(crate) fn awaits_any(&self) -> bool {
        !self.tally.awaited.is_empty()
    }

    /// Does it wait for this one?
    pub(crate) fn awaits(&self, peer: NodeId) -> bool {
        self.tally.awaited.contains(peer)
    }

    /// Does it wait for any other one?
    pub(crate) fn awaits_others(&self, peer: NodeId) -> bool {
        !self.tally.awaited.without(NodeMask::of(peer)).is_empty()
    }

    /// Can something still change?
    pub(crate) fn is_open(&self) -> bool {
        !self.tally.open.is_empty()
    }

    pub(crate) fn anybody_has(&self) -> bool {
        !self.tally.has.is_empty()
    }

    /// May somebody lack it who was sent it?
    pub(crate) fn somebody_lacks(&self) -> bool {
        !self.tally.lacks.is_empty()
    }

    /// Was it sent to anybody?
    pub(crate) fn was_sent(&self) -> bool {
        self.anybody_has() || self.somebody_lacks()
    }

    pub(crate) fn has(&self, peer: NodeId) -> bool {
        self.tally.has.contains(peer)
    }

    pub(crate) fn is_in_sync(&self, peer: NodeId) -> bool {
        self.leg(peer).has() == Has::InSync
    }

    /// Who has it, and has cleared its bits.
    pub(crate) fn in_sync(&self) -> NodeMask {
        self.holders().into_iter().filter(|peer| self.is_in_sync(*peer)).collect()
    }

    /// Who has it.
    pub(crate) fn holders(&self) -> NodeMask {
        self.tally.has
    }

    /// Was it sent on the present link, and has not been answered with a word of having it?
    pub(crate) fn is_unanswered(&self, peer: NodeId) -> bool {
        matches!(self.leg(peer), Leg::Sent { answer, .. } if answer.has() == Has::No)
    }

    /// Is it kept for the peer's return?
    pub(crate) fn is_kept(&self, peer: NodeId) -> bool {
        matches!(self.leg(peer), Leg::Kept { .. })
    }

    /// Did the peer get it not, or was lost, and its bits have said so at once?
    pub(crate) fn is_marked(&self, peer: NodeId) -> bool {
        matches!(self.leg(peer), Leg::Marked | Leg::Lost { accounted: false })
    }

    /// Were bitmaps exchanged after it was sent? They had it: a resync may have copied it since.
    pub(crate) fn is_accounted(&self, peer: NodeId) -> bool {
        match self.leg(peer) {
            Leg::Sent { accounted, .. } | Leg::Kept { accounted, .. } => accounted,
            Leg::Confirmed { accounted, .. } | Leg::Lost { accounted } => accounted,
            Leg::Unknown | Leg::Marked => false,
        }
    }

    /// Was it sent on the present link, and nothing has confirmed it?
    pub(crate) fn is_on_link(&self, peer: NodeId) -> bool {
        matches!(self.leg(peer), Leg::Sent { .. })
    }

    /// Does the tally say what the legs are?
    pub(crate) fn adds_up(&self) -> bool {
        let mut tally = Tally::default();
        let ids = NodeId::all();
        ids.zip(&self.legs).for_each(|(peer, leg)| tally.note(peer, *leg));
        tally == self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::{Acked, Answer, Has, Leg, Legs, Wanted};
    use units::{NodeId, NodeMask};

    const PEER: NodeId = NodeId::new(3).expect("a node id");
    const OTHER: NodeId = NodeId::new(31).expect("a node id");

    type Event = fn(&mut Legs);

    const EVENTS: [Event; 9] = [
        |l| _ = l.acked(PEER, false),
        |l| _ = l.acked(PEER, true),
        |l| _ = l.refused(PEER),
        |l| _ = l.waits_no_longer(PEER),
        |l| _ = l.confirmed(PEER, false),
        |l| _ = l.confirmed(PEER, true),
        |l| l.account(PEER),
        |l| _ = l.kept(PEER, true),
        |l| _ = l.lost(PEER),
    ];

    fn sent(wanted: Wanted) -> Legs {
        let mut legs = Legs::new(NodeMask::of(OTHER));
        legs.sent(PEER, wanted);
        legs
    }

    /// All that events can make of the leg of a peer that was sent a write.
    fn reachable() -> Vec<Legs> {
        let mut all: Vec<Legs> = [Wanted::Nothing, Wanted::Ack, Wanted::Barrier].map(sent).to_vec();
        let mut at = 0;
        while at < all.len() {
            for event in EVENTS {
                let mut next = all[at].clone();
                event(&mut next);
                if all.iter().all(|legs| legs.leg(PEER) != next.leg(PEER)) {
                    all.push(next);
                }
            }
            at += 1;
        }
        all
    }

    #[test]
    fn whatever_happens_the_tally_says_what_the_legs_are() {
        let all = reachable();
        // 7 answers, 3 words of a kept one, 3 of a confirmed one, and a lost one, each accounted or not.
        assert_eq!(all.len(), 2 * (7 + 3 + 3 + 1), "{all:?}");
        for legs in all {
            assert!(legs.adds_up(), "{legs:?}");
            assert_eq!(legs.awaits_any(), legs.awaits(PEER), "{legs:?}");
            assert!(!legs.awaits_others(PEER), "{legs:?}");
            assert!(!legs.awaits_any() || legs.is_open(), "{legs:?}");
            assert_eq!(legs.anybody_has(), legs.has(PEER), "{legs:?}");
            assert_eq!(legs.somebody_lacks(), !legs.has(PEER), "{legs:?}");
            assert_eq!(legs.holders(), if legs.has(PEER) { NodeMask::of(PEER) } else { NodeMask::default() });
            assert!(legs.was_sent() && legs.is_marked(OTHER) && !legs.has(OTHER), "{legs:?}");
        }
    }

    #[test]
    fn what_is_over_stays_over_and_an_end_of_waiting_is_said_once() {
        for legs in reachable() {
            for event in EVENTS {
                let mut next = legs.clone();
                event(&mut next);
                assert!(legs.is_open() || !next.is_open(), "{legs:?} {next:?}");
                assert!(legs.awaits_any() || !next.awaits_any(), "{legs:?} {next:?}");
            }
            let (mut acked, mut refused, mut confirmed) = (legs.clone(), legs.clone(), legs.clone());
            let on_link = legs.is_on_link(PEER);
            let ends = matches!(acked.acked(PEER, true), Acked::Counts { ends_wait: true });
            assert_eq!(ends, on_link && legs.awaits_any() && !acked.awaits_any(), "{legs:?}");
            assert_eq!(refused.refused(PEER), on_link && legs.awaits_any(), "{legs:?}");
            assert_eq!(confirmed.confirmed(PEER, true), on_link && legs.awaits_any(), "{legs:?}");
        }
    }

    #[test]
    fn an_answer_on_another_link_than_the_one_it_was_sent_on_is_nobodys() {
        for wanted in [Wanted::Nothing, Wanted::Ack, Wanted::Barrier] {
            let mut legs = sent(wanted);
            assert!(legs.kept(PEER, true));
            let before = legs.leg(PEER);
            assert_eq!(legs.acked(PEER, true), Acked::Unasked);
            assert_eq!(legs.was_asked(PEER), None);
            assert!(!legs.refused(PEER) && !legs.waits_no_longer(PEER));
            assert_eq!(legs.leg(PEER), before);
        }
    }

    #[test]
    fn only_a_barrier_ends_the_wait_for_one() {
        let mut legs = sent(Wanted::Barrier);
        assert_eq!(legs.acked(PEER, false), Acked::Counts { ends_wait: false });
        assert!(legs.has(PEER) && legs.awaits(PEER) && !legs.is_unanswered(PEER));
        assert_eq!(legs.leg(PEER), Leg::Sent { answer: Answer::BarrierAwaited(Has::Yes), accounted: false });
        assert!(legs.confirmed(PEER, false));
        assert_eq!(legs.leg(PEER), Leg::Confirmed { has: Has::Yes, accounted: false });
        let mut unanswered = sent(Wanted::Ack);
        assert!(unanswered.confirmed(PEER, false) && !unanswered.has(PEER));
    }

    #[test]
    fn bitmaps_exchanged_on_a_link_account_for_nothing_on_the_next_one() {
        let mut legs = sent(Wanted::Ack);
        legs.account(PEER);
        assert_eq!(legs.was_asked(PEER), Some(true));
        let mut confirmed = legs.clone();
        confirmed.confirmed(PEER, true);
        assert!(confirmed.has(PEER) && confirmed.is_accounted(PEER));
        assert!(legs.kept(PEER, true));
        assert!(!legs.clone().lost(PEER));
        legs.account(PEER);
        assert!(legs.lost(PEER) && !legs.is_marked(PEER));
    }
}
