//! The one transaction that this node takes part in, of whichever dialect.

use crate::Resource;
use crate::command::agreement::asked::Agreement;
use crate::command::two_phase::slot::TwoPhase;
use units::{Instant, NodeId};

/// A change that other nodes must agree to.
#[derive(Debug)]
pub(crate) enum Transaction {
    /// 8.4: one peer was asked.
    Request(Agreement),
    /// 9: all are, and told afterwards.
    TwoPhase(Box<TwoPhase>),
}

impl Resource {
    /// The request of 8.4's dialect that is under way.
    pub(super) fn request84(&self) -> Option<&Agreement> {
        match &self.transaction {
            Some(Transaction::Request(asked)) => Some(asked),
            _ => None,
        }
    }

    pub(super) fn request84_mut(&mut self) -> Option<&mut Agreement> {
        match &mut self.transaction {
            Some(Transaction::Request(asked)) => Some(asked),
            _ => None,
        }
    }

    /// The one that this peer was asked for is over.
    pub(super) fn take_request84(&mut self, i: NodeId) -> Option<Agreement> {
        let ours = |t: &mut Transaction| matches!(t, Transaction::Request(asked) if asked.participant == i);
        match self.transaction.take_if(ours) {
            Some(Transaction::Request(asked)) => Some(asked),
            _ => None,
        }
    }

    /// Since when this peer owes an answer.
    pub(crate) fn asked_since(&self, i: NodeId) -> Option<Instant> {
        self.request84().filter(|asked| asked.participant == i).map(|asked| asked.at)
    }

    /// The command that waits for the end of it.
    pub(super) fn command_under_way(&self) -> Option<u64> {
        match &self.transaction {
            Some(Transaction::Request(asked)) => Some(asked.command),
            Some(Transaction::TwoPhase(two)) => two.command(),
            None => None,
        }
    }

    /// Another command waits for it from now on.
    pub(super) fn hand_over_to(&mut self, command: u64) {
        match &mut self.transaction {
            Some(Transaction::Request(asked)) => asked.command = command,
            Some(Transaction::TwoPhase(two)) => two.set_command(command),
            None => {}
        }
    }
}
