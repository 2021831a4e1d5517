//! Rules of urbd's own about what two nodes that connect make of their copies (`docs/compatibility.md`,
//! [decision 19](../../../../docs/adr/0019-a-rule-of-ones-own-knows-its-peer.md)).
//!
//! Two nodes must come to conclusions that fit together. A rule that DRBD does not have and that changes such a
//! conclusion counts only between nodes that both have it, and both know that: they have agreed on
//! [`Features::URBD_RULES`](wire::Features::URBD_RULES). A rule that holds whatever the peer concludes needs no
//! agreement.

/// Which rules a node decides by. Only tests have another one than urbd's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Decides {
    /// DRBD's rules, and those of [`Private`].
    #[default]
    AsUrbd,
    /// DRBD's rules, with the gate of reconciliation that 9.3.3 has (`docs/spec/connection-and-state.md` 5.8.2).
    AsDrbd93,
    /// DRBD's rules, with the gate of later releases.
    AsLaterDrbd,
    /// As urbd did before its nodes told each other: its own rules beside anybody, and nobody is followed.
    AsOlderUrbd,
}

/// What must be known of a peer for a rule to count beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// That it has the rule, and knows that this node has it.
    Agreement,
    /// Nothing: whatever the peer concludes fits.
    Nothing,
}

/// A rule of urbd's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Private {
    /// Two good copies that both get what one Primary writes are equal, whatever they have marked.
    InStep,
    /// A Primary takes nothing from who has crashed as one, if nothing is marked.
    NothingToTake,
    /// What is marked in one generation is copied, from the Primary, the better disk, or who has marked it.
    ReconcileByMarks,
    /// Who is Primary by now is the source of who has marked something for it.
    OvertakenByPrimary,
    /// Among several nodes a side of a split brain has changed something, whether anything is marked or not.
    OneChangeAtLeast,
    /// Two that know nothing of a crashed Primary's writes wait a while for it.
    CrashedComesFirst,
    /// Who has crashed as Primary counts so until all have what it has completed (protocols A and B).
    StaysCrashed,
    /// What is marked stays until the peer has said what it has come to, and who has decided otherwise is followed.
    Follow,
    /// A Primary that has not written yet, and that who crashed as Primary would overwrite, begins its generation first.
    /// The peer finds by DRBD's own rules that it is behind.
    BeginsFirst,
}

impl Private {
    /// All of them.
    pub const ALL: [Private; 9] = [
        Private::InStep,
        Private::NothingToTake,
        Private::ReconcileByMarks,
        Private::OvertakenByPrimary,
        Private::OneChangeAtLeast,
        Private::CrashedComesFirst,
        Private::StaysCrashed,
        Private::Follow,
        Private::BeginsFirst,
    ];

    /// What must be known of a peer beside which it counts.
    #[must_use]
    pub const fn needs(self) -> Needs {
        match self {
            Private::InStep
            | Private::NothingToTake
            | Private::ReconcileByMarks
            | Private::OvertakenByPrimary
            | Private::OneChangeAtLeast
            | Private::CrashedComesFirst
            | Private::StaysCrashed => Needs::Agreement,
            Private::Follow | Private::BeginsFirst => Needs::Nothing,
        }
    }
}

impl Decides {
    /// Does a node that decides so have the rule? `agreed`: its peer and it have told each other that they have all.
    #[must_use]
    pub fn by(self, rule: Private, agreed: bool) -> bool {
        match self {
            Decides::AsUrbd => agreed || rule.needs() == Needs::Nothing,
            Decides::AsOlderUrbd => rule.needs() == Needs::Agreement,
            Decides::AsDrbd93 | Decides::AsLaterDrbd => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_decides_as_drbd_has_none_and_beside_others_only_what_needs_no_agreement_counts() {
        for rule in Private::ALL {
            assert!(Decides::AsUrbd.by(rule, true));
            assert_eq!(Decides::AsUrbd.by(rule, false), rule.needs() == Needs::Nothing, "{rule:?}");
            for kernel in [Decides::AsDrbd93, Decides::AsLaterDrbd] {
                assert!(![true, false].into_iter().any(|agreed| kernel.by(rule, agreed)), "{rule:?}");
            }
        }
    }
}
