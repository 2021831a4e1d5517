//! Names of nodes, volumes and data generations.

use std::fmt;

/// A node's number in its resource, 0 to 31.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u8);

impl NodeId {
    /// Node ids in a resource: 0 to 31.
    pub const COUNT: usize = 32;

    /// `None` if `n` is above 31.
    #[must_use]
    pub const fn new(n: u8) -> Option<NodeId> {
        if n < Self::COUNT as u8 { Some(NodeId(n)) } else { None }
    }

    /// All that there may be, ascending.
    pub fn all() -> impl Iterator<Item = NodeId> {
        (0..Self::COUNT as u8).map(NodeId)
    }

    /// 0 to 31.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A set of nodes, bit n for node n.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NodeMask(pub u32);

impl NodeMask {
    /// The set of one node.
    #[must_use]
    pub fn of(node: NodeId) -> NodeMask {
        NodeMask(1 << node.0)
    }

    /// Is `node` in the set?
    #[must_use]
    pub fn contains(self, node: NodeId) -> bool {
        self.0 >> node.0 & 1 == 1
    }

    /// Puts `node` into the set.
    pub fn insert(&mut self, node: NodeId) {
        self.0 |= 1 << node.0;
    }

    /// Takes `node` out of the set.
    pub fn remove(&mut self, node: NodeId) {
        self.0 &= !(1 << node.0);
    }

    /// Puts `node` into the set, or takes it out.
    pub fn put(&mut self, node: NodeId, is_member: bool) {
        self.0 = self.0 & !(1 << node.0) | u32::from(is_member) << node.0;
    }

    /// Is nobody in the set?
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many are in the set?
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Who is in the set and not in `other`.
    #[must_use]
    pub fn without(self, other: NodeMask) -> NodeMask {
        NodeMask(self.0 & !other.0)
    }

    /// Who is in both sets.
    #[must_use]
    pub fn and(self, other: NodeMask) -> NodeMask {
        NodeMask(self.0 & other.0)
    }

    /// Who is in either set.
    #[must_use]
    pub fn or(self, other: NodeMask) -> NodeMask {
        NodeMask(self.0 | other.0)
    }

    /// The set with `node` in it.
    #[must_use]
    pub fn with(self, node: NodeId) -> NodeMask {
        self.or(NodeMask::of(node))
    }
}

impl FromIterator<NodeId> for NodeMask {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> NodeMask {
        nodes.into_iter().fold(NodeMask::default(), NodeMask::with)
    }
}

impl IntoIterator for NodeMask {
    type Item = NodeId;
    type IntoIter = Nodes;

    fn into_iter(self) -> Nodes {
        Nodes(self)
    }
}

/// The nodes of a set, ascending.
#[derive(Clone, Debug)]
pub struct Nodes(NodeMask);

impl Iterator for Nodes {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        if self.0.is_empty() {
            return None;
        }
        let first = self.0.0.trailing_zeros() as u8;
        self.0.0 &= self.0.0 - 1;
        Some(NodeId(first))
    }
}

/// A volume's number in its resource, 0 to 65534.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VolumeNr(pub u16);

impl VolumeNr {
    /// What packets of DRBD 9 that are about no volume have in its place.
    pub const NONE: VolumeNr = VolumeNr(0xffff);
}

/// A data generation identifier (UUID): 64 bits, of which bit 0 says "this node was Primary"
/// (`docs/spec/on-disk-format.md` 5.1). 0 is "none", 4 is "just created".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

impl Generation {
    /// No generation.
    pub const NONE: Generation = Generation(0);
    /// A device that was just created and never had data (`UUID_JUST_CREATED`).
    pub const JUST_CREATED: Generation = Generation(4);

    /// The generation without its Primary bit: what comparisons look at.
    #[must_use]
    pub const fn base(self) -> Generation {
        Generation(self.0 & !1)
    }

    /// Is the Primary bit set?
    #[must_use]
    pub const fn primary_bit(self) -> bool {
        self.0 & 1 == 1
    }

    /// The same generation with the Primary bit as given.
    #[must_use]
    pub const fn with_primary_bit(self, on: bool) -> Generation {
        Generation(if on { self.0 | 1 } else { self.0 & !1 })
    }

    /// Do both name the same data (Primary bits ignored)?
    #[must_use]
    pub const fn same(self, other: Generation) -> bool {
        self.base().0 == other.base().0
    }

    /// Does it stand for no data yet: is it none, or that of a device that was just created?
    #[must_use]
    pub const fn is_fresh(self) -> bool {
        self.is_none() || self.same(Generation::JUST_CREATED)
    }

    /// Is it (but for the Primary bit) 0?
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.base().0 == 0
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node{}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for VolumeNr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vol{}", self.0)
    }
}

impl fmt::Display for VolumeNr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for NodeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nodes{:#x}", self.0)
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", self.0)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", self.0)
    }
}
