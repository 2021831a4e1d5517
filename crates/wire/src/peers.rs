//! What nodes of one resource tell each other about third nodes: positions in the stream of writes, who has which
//! write, who is in sync (`docs/spec/wire-protocol.md` 13).

use crate::agreement::{node, number};
use crate::block::{BlockId, block_size, put_size, sector_of};
use crate::fields::{Fields, Put};
use crate::packet::Unsendable;
use crate::violation::Violation;
use std::fmt;
use units::{ByteLen, NodeId, NodeMask, Sector};

/// A set of nodes as it travels: bits 32 to 63 mean nothing, and are set where the mask is a complement
/// (`docs/spec/wire-protocol.md` 3.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct WireMask(pub u64);

impl WireMask {
    /// No node.
    pub const NONE: WireMask = WireMask(0);
    /// Every node.
    pub const ALL: WireMask = WireMask(u64::MAX);

    /// The nodes of the set.
    #[must_use]
    pub const fn nodes(self) -> NodeMask {
        NodeMask(self.0 as u32)
    }

    /// The complement of a set.
    #[must_use]
    pub fn all_but(nodes: NodeMask) -> WireMask {
        WireMask(!u64::from(nodes.0))
    }

    /// The set without these nodes.
    #[must_use]
    pub fn without(self, nodes: NodeMask) -> WireMask {
        WireMask(self.0 & WireMask::all_but(nodes).0)
    }
}

impl From<NodeMask> for WireMask {
    fn from(nodes: NodeMask) -> WireMask {
        WireMask(nodes.0.into())
    }
}

impl fmt::Debug for WireMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nodes{:#x}", self.0)
    }
}

/// A position in one node's stream of writes: how many sectors it had written as Primary, after the write in question
/// (`docs/spec/wire-protocol.md` 13.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Dagtag(pub u64);

/// P_PEER_ACK: which nodes have the sender's writes up to `dagtag` (`docs/spec/wire-protocol.md` 13.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAck {
    /// Who has them.
    pub nodes: WireMask,
    /// Position of the last of them.
    pub dagtag: Dagtag,
}

/// P_PEERS_IN_SYNC: these nodes have the same data as the sender (`docs/spec/wire-protocol.md` 13.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeersInSync {
    /// First sector.
    pub sector: Sector,
    /// The nodes.
    pub nodes: WireMask,
    /// Bytes: a multiple of 512.
    pub size: ByteLen,
}

/// P_PEER_DAGTAG: the last write that the sender has from a node (`docs/spec/wire-protocol.md` 13.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerDagtag {
    /// Its position.
    pub dagtag: Dagtag,
    /// The node that wrote it.
    pub node: NodeId,
}

/// P_CONFIRM_STABLE: writes that are on stable storage before their epoch ends (`docs/spec/wire-protocol.md` 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmStable {
    /// Cookie of the oldest of them.
    pub oldest: BlockId,
    /// Cookie of the youngest of them.
    pub youngest: BlockId,
    /// How many they are.
    pub set_size: u32,
}

/// P_FLUSH_FORWARD or P_FLUSH_REQUESTS_ACK (`docs/spec/wire-protocol.md` 13.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushAnswer {
    /// The number of P_FLUSH_REQUESTS, never 0.
    pub sequence: u64,
    /// P_FLUSH_FORWARD: who asked. P_FLUSH_REQUESTS_ACK: the Primary whose writes are known.
    pub node: NodeId,
}

impl PeerAck {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<PeerAck, Violation> {
        Ok(PeerAck { nodes: WireMask(f.u64()?), dagtag: Dagtag(f.u64()?) })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.put64(self.nodes.0);
        out.put64(self.dagtag.0);
    }
}

impl PeersInSync {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<PeersInSync, Violation> {
        let (sector, nodes, size) = (f.u64()?, WireMask(f.u64()?), f.u32()?);
        f.bytes(4)?;
        let size = block_size(f, size, u32::MAX)?;
        Ok(PeersInSync { sector: sector_of(f, sector, size)?, nodes, size })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        out.put64(self.sector.0);
        out.put64(self.nodes.0);
        put_size(out, self.size)?;
        out.put32(0);
        Ok(())
    }
}

impl PeerDagtag {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<PeerDagtag, Violation> {
        let (dagtag, n) = (Dagtag(f.u64()?), f.u32()?);
        Ok(PeerDagtag { dagtag, node: node(f, "node", n)? })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.put64(self.dagtag.0);
        out.put32(number(self.node));
    }
}

impl ConfirmStable {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<ConfirmStable, Violation> {
        let stable = ConfirmStable { oldest: BlockId(f.u64()?), youngest: BlockId(f.u64()?), set_size: f.u32()? };
        f.bytes(4)?;
        Ok(stable)
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.put64(self.oldest.0);
        out.put64(self.youngest.0);
        out.put32(self.set_size);
        out.put32(0);
    }
}

impl FlushAnswer {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<FlushAnswer, Violation> {
        let (sequence, n) = (flush_sequence(f)?, f.u32()?);
        Ok(FlushAnswer { sequence, node: node(f, "node", n)? })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.put64(self.sequence);
        out.put32(number(self.node));
    }
}

pub(crate) fn flush_sequence(f: &mut Fields<'_>) -> Result<u64, Violation> {
    match f.u64()? {
        0 => Err(Violation::UnknownValue { command: f.command(), field: "flush sequence", value: 0 }),
        n => Ok(n),
    }
}
