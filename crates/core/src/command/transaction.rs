//! The one transaction that this node takes part in, of whichever dialect.

use crate::command::agreement::asked::Agreement;
use crate::command::two_phase::slot::TwoPhase;

/// A change that other nodes must agree to.
#[derive(Debug)]
pub(crate) enum Transaction {
    /// 8.4: one peer was asked.
    Request(Agreement),
    /// 9: all are, and told afterwards.
    TwoPhase(Box<TwoPhase>),
}
