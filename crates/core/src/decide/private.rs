//! Rules of urbd's own about what two nodes that connect make of their copies (`docs/compatibility.md`,
//! [decision 19](../../../../docs/adr/0019-a-rule-of-ones-own-knows-its-peer.md)).
//!
//! Two nodes must come to conclusions that fit together. A rule that DRBD does not have and that changes such a
//! conclusion counts only between nodes that both have it, and both know that: they have agreed on
//! a feature bit. One that is added later gets a bit of its own. A rule that holds whatever the peer concludes needs no
//! agreement.

use wire::Features;

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
    /// That it has the rule, and knows that this node has it: both have said so with this bit.
    Agreement(Features),
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
    /// Who hears of a generation says so when it is on its disk, and the Primary waits for that.
    SaysWhenDurable,
    /// What is past for a Primary is so for who has its generation.
    LearnsPast,
    /// A Primary that has not written yet, and that who crashed as Primary would overwrite, begins its generation
    /// first. The peer finds by DRBD's own rules that it is behind.
    BeginsFirst,
    /// Who has brought a node up to date, and is not Primary, tells all that have the same as it that they are equal.
    /// Who does not hear it within `ping-timeout` compares.
    SaysWhoHasAll,
}

impl Private {
    /// All of them.
    pub const ALL: [Private; 12] = [
        Private::InStep,
        Private::NothingToTake,
        Private::ReconcileByMarks,
        Private::OvertakenByPrimary,
        Private::OneChangeAtLeast,
        Private::CrashedComesFirst,
        Private::StaysCrashed,
        Private::Follow,
        Private::SaysWhenDurable,
        Private::LearnsPast,
        Private::BeginsFirst,
        Private::SaysWhoHasAll,
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
            | Private::StaysCrashed
            | Private::SaysWhoHasAll => Needs::Agreement(Features::URBD_RULES),
            Private::SaysWhenDurable | Private::LearnsPast => Needs::Agreement(Features::URBD_GENERATIONS),
            Private::Follow | Private::BeginsFirst => Needs::Nothing,
        }
    }
}

impl Decides {
    /// Does a node that decides so have the rule? `agreed`: the features that its peer and it have.
    #[must_use]
    pub fn by(self, rule: Private, agreed: Features) -> bool {
        match (self, rule.needs()) {
            (Decides::AsUrbd, Needs::Agreement(bit)) => agreed.contains(bit),
            (Decides::AsUrbd, Needs::Nothing) => true,
            (Decides::AsOlderUrbd, needs) => needs == Needs::Agreement(Features::URBD_RULES),
            (Decides::AsDrbd93 | Decides::AsLaterDrbd, _) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_decides_as_drbd_has_none_and_beside_others_only_what_needs_no_agreement_counts() {
        for rule in Private::ALL {
            assert!(Decides::AsUrbd.by(rule, Features::OF_URBD));
            assert_eq!(Decides::AsUrbd.by(rule, Features::ALL), rule.needs() == Needs::Nothing, "{rule:?}");
            for kernel in [Decides::AsDrbd93, Decides::AsLaterDrbd] {
                assert!(
                    ![Features::ALL, Features::OF_URBD].into_iter().any(|agreed| kernel.by(rule, agreed)),
                    "{rule:?}"
                );
            }
        }
    }
}
