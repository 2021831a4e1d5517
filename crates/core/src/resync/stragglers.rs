//! Answers to a resync or verify that was given up before all of them were here.

use crate::pings::PingNr;

/// Nothing but the moment tells such answers from those to the next one: a ping comes back behind all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stragglers {
    /// None can come any more.
    #[default]
    Nothing,
    /// Some may come on this link.
    MayCome,
    /// The same until this ping is answered. Nothing new is asked or answered before.
    Before(PingNr),
}

impl Stragglers {
    /// A resync or verify is given up. Are answers to it awaited?
    pub(super) fn given_up(&mut self, awaited: bool) {
        if awaited || *self != Stragglers::Nothing {
            *self = Stragglers::MayCome;
        }
    }

    pub(super) fn may_come(self) -> bool {
        self != Stragglers::Nothing
    }

    /// Is the ping waited for?
    pub(crate) fn hold_up(self) -> bool {
        matches!(self, Stragglers::Before(_))
    }

    /// A ping was answered.
    pub(super) fn answered(&mut self, is_answered: impl Fn(PingNr) -> bool) {
        if matches!(self, Stragglers::Before(ping) if is_answered(*ping)) {
            *self = Stragglers::Nothing;
        }
    }
}
