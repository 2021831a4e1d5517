//! Two-phase commit: the requests that travel on the data stream and the answers on the control stream
//! (`docs/spec/wire-protocol.md` 8).

use crate::dialect::{Dialect, Features};
use crate::fields::{Fields, Put};
use crate::handshake::{ResizeFlags, size};
use crate::peers::WireMask;
use crate::state::DiskNumbering;
use crate::state_change::StateChange;
use crate::violation::Violation;
use units::{NodeId, Sector};

/// Who changes what, and who is to hear of it: the head of every request (`docs/spec/wire-protocol.md` 8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Drawn at random by the initiator, never 0. With `initiator` it names the transaction.
    pub tid: u32,
    /// The node that began it.
    pub initiator: NodeId,
    /// The node whose connection to the initiator changes; `None`: every node.
    pub target: Option<NodeId>,
    /// Nodes that have not got this request yet.
    pub nodes_to_reach: WireMask,
    /// P_TWOPC_COMMIT and P_TWOPC_ABORT carry the reachable nodes. Needs `Features::TWOPC_V2`.
    pub has_reachable: bool,
    /// The only Primary has no access to data. Needs `Features::TWOPC_V2`.
    pub primary_incapable: bool,
}

const HAS_FLAGS: u32 = 1 << 31;
const HAS_REACHABLE: u32 = 1 << 30;
const PRI_INCAPABLE: u32 = 1 << 29;

/// P_TWOPC_PREPARE: a change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepare {
    /// Who and whom.
    pub transaction: Transaction,
    /// What, in the initiator's view.
    pub change: StateChange,
}

/// P_TWOPC_PREP_RSZ: a change of size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrepareResize {
    /// Who and whom.
    pub transaction: Transaction,
    /// The size that the administrator asked for; 0 for "as large as the disks are".
    pub user_size: Sector,
    /// How it is meant.
    pub flags: ResizeFlags,
}

/// P_TWOPC_COMMIT or P_TWOPC_ABORT. What its two last fields mean depends on the request that it ends
/// (`docs/spec/wire-protocol.md` 8.1); those of an abort mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Who and whom.
    pub transaction: Transaction,
    /// The Primaries; of a change of size those that have a disk.
    pub primary_nodes: WireMask,
    detail: u64,
}

/// P_TWOPC_YES, P_TWOPC_NO or P_TWOPC_RETRY (`docs/spec/wire-protocol.md` 8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    /// As in the request.
    pub tid: u32,
    /// As in the request.
    pub initiator: NodeId,
    /// Nodes that the voter and its children reach.
    pub reachable_nodes: WireMask,
    /// The Primaries among them; in answer to a change of size those that have a disk.
    pub primary_nodes: WireMask,
    detail: u64,
}

impl Transaction {
    fn parse(f: &mut Fields<'_>, dialect: &Dialect) -> Result<Transaction, Violation> {
        let tid = f.u32()?;
        let (initiator, target, flags) = if dialect.has(Features::TWOPC_V2) {
            let flags = f.u32()?;
            f.u16()?;
            (f.u8()?.into(), f.u8()?.cast_signed().into(), flags)
        } else {
            (f.u32()?, i64::from(f.u32()?.cast_signed()), HAS_FLAGS)
        };
        let initiator = node(f, "initiator", initiator)?;
        let target = match target {
            -1 => None,
            n => Some(node(f, "target", u32::try_from(n).unwrap_or(u32::MAX))?),
        };
        let nodes_to_reach = WireMask(f.u64()?);
        let (has_reachable, primary_incapable) = (flags & HAS_REACHABLE != 0, flags & PRI_INCAPABLE != 0);
        Ok(Transaction { tid, initiator, target, nodes_to_reach, has_reachable, primary_incapable })
    }

    fn emit(&self, dialect: &Dialect, out: &mut Vec<u8>) {
        let target = self.target.map_or(u32::MAX, number);
        out.put32(self.tid);
        if dialect.has(Features::TWOPC_V2) {
            let flag = |on: bool, bit: u32| if on { bit } else { 0 };
            out.put32(
                HAS_FLAGS | flag(self.has_reachable, HAS_REACHABLE) | flag(self.primary_incapable, PRI_INCAPABLE),
            );
            out.put16(0);
            out.put8(number(self.initiator) as u8);
            out.put8(target as u8);
        } else {
            out.put32(number(self.initiator));
            out.put32(target);
        }
        out.put64(self.nodes_to_reach.0);
    }
}

impl Prepare {
    pub(crate) fn parse(f: &mut Fields<'_>, dialect: &Dialect) -> Result<Prepare, Violation> {
        let transaction = Transaction::parse(f, dialect)?;
        // A receiver would add these to the Primaries that it reports.
        let value = f.u64()?;
        if value != 0 {
            return Err(Violation::UnknownValue { command: f.command(), field: "primary nodes", value });
        }
        let (mask, val) = (f.u32()?, f.u32()?);
        let change = StateChange::from_bits(mask, val, DiskNumbering::of(dialect.version))
            .map_err(|e| e.into_violation(f.command(), mask))?;
        Ok(Prepare { transaction, change })
    }

    pub(crate) fn emit(&self, dialect: &Dialect, out: &mut Vec<u8>) {
        self.transaction.emit(dialect, out);
        let (mask, val) = self.change.to_bits(DiskNumbering::of(dialect.version));
        out.put64(0);
        out.put32(mask);
        out.put32(val);
    }
}

impl PrepareResize {
    pub(crate) fn parse(f: &mut Fields<'_>, dialect: &Dialect) -> Result<PrepareResize, Violation> {
        let transaction = Transaction::parse(f, dialect)?;
        Ok(PrepareResize { transaction, user_size: size(f)?, flags: ResizeFlags::from_bits(f.u16()?) })
    }

    pub(crate) fn emit(&self, dialect: &Dialect, out: &mut Vec<u8>) {
        self.transaction.emit(dialect, out);
        out.put64(self.user_size.0);
        out.put16(self.flags.to_bits());
        out.put_padded(&[], 6);
    }
}

impl Decision {
    /// The end of a change of state. `change` is said only where the transaction has no reachable nodes.
    #[must_use]
    pub fn of_change(
        transaction: Transaction,
        primary_nodes: WireMask,
        reachable_nodes: WireMask,
        change: &StateChange,
    ) -> Decision {
        let (mask, val) = change.to_bits(DiskNumbering::WithDetaching);
        let change = u64::from(mask) << 32 | u64::from(val);
        let detail = if transaction.has_reachable { reachable_nodes.0 } else { change };
        Decision { transaction, primary_nodes, detail }
    }

    /// The end of a change of size. `size`: what all devices have from now on.
    #[must_use]
    pub const fn of_resize(transaction: Transaction, diskful_primaries: WireMask, size: Sector) -> Decision {
        Decision { transaction, primary_nodes: diskful_primaries, detail: size.0 }
    }

    /// Gives a transaction up.
    #[must_use]
    pub const fn abort(transaction: Transaction) -> Decision {
        Decision { transaction, primary_nodes: WireMask(0), detail: 0 }
    }

    /// The nodes that are connected when the change is made; `None` if this packet does not carry them.
    #[must_use]
    pub fn reachable_nodes(&self) -> Option<WireMask> {
        self.transaction.has_reachable.then_some(WireMask(self.detail))
    }

    /// The size that all devices have from now on, if the transaction is a change of size; `None` if no device can
    /// have it.
    #[must_use]
    pub fn size(&self) -> Option<Sector> {
        (self.detail <= 1 << 54).then_some(Sector(self.detail))
    }

    pub(crate) fn parse(f: &mut Fields<'_>, dialect: &Dialect) -> Result<Decision, Violation> {
        let transaction = Transaction::parse(f, dialect)?;
        Ok(Decision { transaction, primary_nodes: WireMask(f.u64()?), detail: f.u64()? })
    }

    pub(crate) fn emit(&self, dialect: &Dialect, out: &mut Vec<u8>) {
        self.transaction.emit(dialect, out);
        out.put64(self.primary_nodes.0);
        out.put64(self.detail);
    }
}

impl Vote {
    /// About a change of state.
    #[must_use]
    pub const fn on_change(
        transaction: &Transaction,
        reachable_nodes: WireMask,
        primary_nodes: WireMask,
        weak_nodes: WireMask,
    ) -> Vote {
        let Transaction { tid, initiator, .. } = *transaction;
        Vote { tid, initiator, reachable_nodes, primary_nodes, detail: weak_nodes.0 }
    }

    /// About a change of size. `max_size`: the largest that the voter and its children can have; 2^41 sectors
    /// without a disk.
    #[must_use]
    pub const fn on_resize(
        transaction: &Transaction,
        reachable_nodes: WireMask,
        diskful_primaries: WireMask,
        max_size: Sector,
    ) -> Vote {
        let Transaction { tid, initiator, .. } = *transaction;
        Vote { tid, initiator, reachable_nodes, primary_nodes: diskful_primaries, detail: max_size.0 }
    }

    /// Nodes without quorum's benefit, in answer to a change of state.
    #[must_use]
    pub const fn weak_nodes(&self) -> WireMask {
        WireMask(self.detail)
    }

    /// The largest possible size, in answer to a change of size.
    #[must_use]
    pub const fn max_size(&self) -> Sector {
        Sector(self.detail)
    }

    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<Vote, Violation> {
        let (tid, initiator) = (f.u32()?, f.u32()?);
        let initiator = node(f, "initiator", initiator)?;
        let (reachable_nodes, primary_nodes) = (WireMask(f.u64()?), WireMask(f.u64()?));
        Ok(Vote { tid, initiator, reachable_nodes, primary_nodes, detail: f.u64()? })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.put32(self.tid);
        out.put32(number(self.initiator));
        out.put64(self.reachable_nodes.0);
        out.put64(self.primary_nodes.0);
        out.put64(self.detail);
    }
}

pub(crate) fn number(node: NodeId) -> u32 {
    node.index() as u32
}

/// Errors: `UnknownValue` for a number above 31.
pub(crate) fn node(f: &Fields<'_>, field: &'static str, n: u32) -> Result<NodeId, Violation> {
    let known = u8::try_from(n).ok().and_then(NodeId::new);
    known.ok_or(Violation::UnknownValue { command: f.command(), field, value: n.into() })
}
