//! What a core has to tell: people by a text, programs by an event.

use crate::decide::handshake84::Decision;
use crate::decide::uuid9::Strategy;
use crate::decide::view::View;
use units::{NodeId, VolumeNr};

/// A line for the log, and for `why`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// How much it matters.
    pub severity: Severity,
    /// The volume it is about.
    pub volume: Option<VolumeNr>,
    /// The peer it is about.
    pub peer: Option<NodeId>,
    /// A stable kebab-case name of the reason, for machines.
    pub reason: &'static str,
    /// For people: what happened, why, what to do.
    pub text: String,
    /// For programs: what happened.
    pub event: Event,
}

/// How much a [`Notice`] matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Something may be lost or is unavailable.
    Error,
    /// Someone should look.
    Warning,
    /// Normal.
    Info,
}

/// What a [`Notice`] tells of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The state of the volume has changed, its own or towards the peer (`docs/spec/connection-and-state.md` 2).
    State {
        /// What it was.
        old: View,
        /// What it is.
        new: View,
    },
    /// The nodes have compared their generations in 8.4's dialect, and this follows (section 5.7).
    Compared(Decision),
    /// The same in 9's dialect (section 5.8).
    Compared9(Strategy),
    /// A resync has ended.
    ResyncEnded {
        /// Blocks of 4 KiB that could not be copied.
        failed: u64,
    },
    /// The peer is not acceptable, and not connected to any more until an administrator says otherwise.
    GaveUp,
    /// Something that its reason names.
    Other,
}
