//! The one transaction that this node takes part in, of whichever dialect: a request of 8.4's (`agreement.rs`), or a
//! change in two phases (`two_phase.rs`). A second one waits or is refused.

use crate::command::agreement::asked::Agreement;
use crate::command::caller::Caller;
use crate::command::two_phase::slot::TwoPhase;
use units::NodeId;

/// A change that other nodes must agree to.
#[derive(Debug)]
pub(crate) enum Transaction {
    /// 8.4: one peer was asked.
    Request(Agreement),
    /// 9: all are, and told afterwards.
    TwoPhase(Box<TwoPhase>),
}

/// Room for one transaction.
#[derive(Debug, Default)]
pub(crate) struct TransactionSlot(Option<Transaction>);

impl TransactionSlot {
    pub(crate) fn is_free(&self) -> bool {
        self.0.is_none()
    }

    /// It begins, or goes on.
    pub(super) fn begin(&mut self, transaction: Transaction) {
        debug_assert!(self.is_free(), "a transaction beside another one");
        self.0 = Some(transaction);
    }

    pub(super) fn get_mut(&mut self) -> Option<&mut Transaction> {
        self.0.as_mut()
    }

    /// The command that waits for the end of it.
    pub(super) fn command(&self) -> Option<Caller> {
        match &self.0 {
            Some(Transaction::Request(asked)) => Some(asked.command),
            Some(Transaction::TwoPhase(two)) => two.command(),
            None => None,
        }
    }

    /// Another command waits for it from now on.
    pub(super) fn hand_over_to(&mut self, command: Caller) {
        match &mut self.0 {
            Some(Transaction::Request(asked)) => asked.command = command,
            Some(Transaction::TwoPhase(two)) => two.set_command(command),
            None => {}
        }
    }

    // -- 8.4's dialect -----------------------------------------------------------------------------------------------

    pub(super) fn request(&self) -> Option<&Agreement> {
        match &self.0 {
            Some(Transaction::Request(asked)) => Some(asked),
            _ => None,
        }
    }

    pub(super) fn request_mut(&mut self) -> Option<&mut Agreement> {
        match &mut self.0 {
            Some(Transaction::Request(asked)) => Some(asked),
            _ => None,
        }
    }

    /// The one that this peer was asked for is over.
    pub(super) fn take_request(&mut self, peer: NodeId) -> Option<Agreement> {
        let ours = |t: &mut Transaction| matches!(t, Transaction::Request(asked) if asked.participant == peer);
        match self.0.take_if(ours) {
            Some(Transaction::Request(asked)) => Some(asked),
            _ => None,
        }
    }

    // -- 9's ---------------------------------------------------------------------------------------------------------

    pub(super) fn two_phase(&self) -> Option<&TwoPhase> {
        match &self.0 {
            Some(Transaction::TwoPhase(two)) => Some(two),
            _ => None,
        }
    }

    pub(super) fn two_phase_mut(&mut self) -> Option<&mut TwoPhase> {
        match &mut self.0 {
            Some(Transaction::TwoPhase(two)) => Some(two),
            _ => None,
        }
    }

    pub(super) fn take_two_phase(&mut self) -> Option<Box<TwoPhase>> {
        match self.0.take_if(|transaction| matches!(transaction, Transaction::TwoPhase(_))) {
            Some(Transaction::TwoPhase(two)) => Some(two),
            _ => None,
        }
    }
}
