//! Data generations between nodes of one resource (`docs/spec/wire-protocol.md` 5.14).

use crate::fields::{Fields, Put};
use crate::handshake::UuidFlags;
use crate::packet::Unsendable;
use crate::peers::WireMask;
use crate::violation::Violation;
use units::{Generation, NodeId, NodeMask};

/// P_UUIDS110: the generations of the sender's data, with one bitmap generation for each node that it tracks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uuids110 {
    /// The current generation; of a node that is the target of a resync from a third node, its source's.
    pub current: Generation,
    /// Bits out of sync towards the receiver.
    pub dirty_bits: u64,
    /// Flags.
    pub flags: UuidFlags,
    /// Weak nodes if `STABLE` is set, else authoritative nodes.
    pub nodes: WireMask,
    /// The nodes that have an entry in `bitmaps`.
    pub tracked: NodeMask,
    /// The generation that each bitmap is about, in ascending order of node ids.
    pub bitmaps: Vec<Generation>,
    /// Earlier generations, newest first; at most 32.
    pub history: Vec<Generation>,
}

/// P_CURRENT_UUID: of a node without a disk, or of one that begins a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentUuid {
    /// The generation, perhaps with its Primary bit; 0 for none.
    pub current: Generation,
    /// Nodes that do not hear of it.
    pub weak_nodes: WireMask,
}

/// More than these are drained and ignored.
const HISTORY: usize = 32;

impl Uuids110 {
    /// The Primaries that the sender's data depends on.
    #[must_use]
    pub fn primaries(&self) -> NodeMask {
        if self.flags.contains(UuidFlags::STABLE) { NodeMask::default() } else { self.nodes.nodes() }
    }

    /// The generation that the sender's bitmap towards `node` is about; `None` if it did not say.
    #[must_use]
    pub fn bitmap(&self, node: NodeId) -> Option<Generation> {
        if !self.tracked.contains(node) {
            return None;
        }
        let before = self.tracked.0 & ((1u32 << node.index()) - 1);
        self.bitmaps.get(before.count_ones() as usize).copied()
    }

    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<Uuids110, Violation> {
        let (current, dirty_bits, flags) = (Generation(f.u64()?), f.u64()?, UuidFlags(f.u64()?));
        let (nodes, mask) = (WireMask(f.u64()?), f.u64()?);
        let unknown = Violation::UnknownValue { command: f.command(), field: "bitmap nodes", value: mask };
        let tracked = u32::try_from(mask).map(NodeMask).map_err(|_| unknown)?;
        let bitmaps = (0..tracked.0.count_ones()).map(|_| f.u64().map(Generation)).collect::<Result<_, _>>()?;
        let (rest, _) = f.rest().as_chunks::<8>();
        let history = rest.iter().take(HISTORY).map(|b| Generation(u64::from_be_bytes(*b))).collect();
        Ok(Uuids110 { current, dirty_bits, flags, nodes, tracked, bitmaps, history })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        if self.bitmaps.len() != self.tracked.0.count_ones() as usize || self.history.len() > HISTORY {
            return Err(Unsendable::TooLong { bytes: 8 * (self.bitmaps.len() + self.history.len()) as u64 });
        }
        let head = [self.current.0, self.dirty_bits, self.flags.0, self.nodes.0, self.tracked.0.into()];
        head.into_iter().for_each(|n| out.put64(n));
        self.bitmaps.iter().chain(&self.history).for_each(|g| out.put64(g.0));
        Ok(())
    }
}

impl CurrentUuid {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<CurrentUuid, Violation> {
        Ok(CurrentUuid { current: Generation(f.u64()?), weak_nodes: WireMask(f.u64()?) })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.put64(self.current.0);
        out.put64(self.weak_nodes.0);
    }
}
