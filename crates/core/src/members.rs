//! Things that a resource has one of per peer, or per volume, by the peer's node id and the volume's number.
//!
//! A name stays what it is when another peer or volume comes or goes: there is no index that shifts.

use std::ops::{Index, IndexMut};
use std::sync::Arc;
use units::{NodeId, NodeMask, VolumeNr};

/// One thing per peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peers<T> {
    members: NodeMask,
    /// By ascending node id.
    values: Vec<T>,
}

impl<T> Default for Peers<T> {
    fn default() -> Self {
        Peers { members: NodeMask::default(), values: Vec::new() }
    }
}

impl<T> Peers<T> {
    /// Adds a peer's, or replaces it.
    pub fn insert(&mut self, peer: NodeId, value: T) {
        let at = self.rank(peer);
        if self.members.contains(peer) {
            self.values[at] = value;
        } else {
            self.members.insert(peer);
            self.values.insert(at, value);
        }
    }

    /// Removes a peer's.
    pub fn remove(&mut self, peer: NodeId) -> Option<T> {
        let at = self.place(peer)?;
        self.members.remove(peer);
        Some(self.values.remove(at))
    }

    /// Whose there are.
    #[must_use]
    pub fn members(&self) -> NodeMask {
        self.members
    }

    /// Whose there are, ascending. Does not borrow: peers may come and go meanwhile.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<T> {
        self.members.into_iter()
    }

    /// Is there this peer?
    #[must_use]
    pub fn contains(&self, peer: NodeId) -> bool {
        self.members.contains(peer)
    }

    /// Is there no peer?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A peer's, if there is that peer.
    #[must_use]
    pub fn get(&self, peer: NodeId) -> Option<&T> {
        self.place(peer).map(|at| &self.values[at])
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, peer: NodeId) -> Option<&mut T> {
        self.place(peer).map(|at| &mut self.values[at])
    }

    /// All, by ascending node id.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &T)> {
        self.members.into_iter().zip(&self.values)
    }

    /// All, by ascending node id.
    pub fn values(&self) -> std::slice::Iter<'_, T> {
        self.values.iter()
    }

    /// All, by ascending node id, to be changed.
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.values.iter_mut()
    }

    /// How many come before this peer.
    fn rank(&self, peer: NodeId) -> usize {
        self.members.and(NodeMask(NodeMask::of(peer).0 - 1)).len()
    }

    fn place(&self, peer: NodeId) -> Option<usize> {
        self.members.contains(peer).then(|| self.rank(peer))
    }
}

impl<T> FromIterator<(NodeId, T)> for Peers<T> {
    fn from_iter<I: IntoIterator<Item = (NodeId, T)>>(all: I) -> Self {
        let mut peers = Peers::default();
        all.into_iter().for_each(|(peer, value)| peers.insert(peer, value));
        peers
    }
}

impl<T> Index<NodeId> for Peers<T> {
    type Output = T;

    fn index(&self, peer: NodeId) -> &T {
        self.get(peer).expect("a peer of this resource")
    }
}

impl<T> IndexMut<NodeId> for Peers<T> {
    fn index_mut(&mut self, peer: NodeId) -> &mut T {
        self.get_mut(peer).expect("a peer of this resource")
    }
}

/// One thing per volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volumes<T> {
    /// Ascending.
    numbers: Arc<[VolumeNr]>,
    values: Vec<T>,
}

impl<T> Default for Volumes<T> {
    fn default() -> Self {
        Volumes { numbers: Arc::default(), values: Vec::new() }
    }
}

impl<T> Volumes<T> {
    /// Adds a volume's, or replaces it.
    pub fn insert(&mut self, volume: VolumeNr, value: T) {
        match self.numbers.binary_search(&volume) {
            Ok(at) => self.values[at] = value,
            Err(at) => {
                let (before, behind) = self.numbers.split_at(at);
                self.numbers = [before, &[volume], behind].concat().into();
                self.values.insert(at, value);
            }
        }
    }

    /// Removes a volume's.
    pub fn remove(&mut self, volume: VolumeNr) -> Option<T> {
        let at = self.place(volume)?;
        self.numbers = self.numbers.iter().copied().filter(|nr| *nr != volume).collect();
        Some(self.values.remove(at))
    }

    /// One thing for each of the volumes that these are of.
    pub fn map<U>(&self, f: impl FnMut(&T) -> U) -> Volumes<U> {
        Volumes { numbers: Arc::clone(&self.numbers), values: self.values.iter().map(f).collect() }
    }

    /// Whose there are, ascending. Does not borrow: volumes may come and go meanwhile.
    #[must_use]
    pub fn ids(&self) -> Numbers {
        Numbers { all: Arc::clone(&self.numbers), next: 0 }
    }

    /// The lowest number; 0 if there is no volume.
    #[must_use]
    pub fn first(&self) -> VolumeNr {
        self.numbers.first().copied().unwrap_or(VolumeNr(0))
    }

    /// The next higher number.
    #[must_use]
    pub fn after(&self, volume: VolumeNr) -> Option<VolumeNr> {
        self.numbers.iter().copied().find(|nr| *nr > volume)
    }

    /// Is there this volume?
    #[must_use]
    pub fn contains(&self, volume: VolumeNr) -> bool {
        self.place(volume).is_some()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Is there no volume?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// A volume's, if there is that volume.
    #[must_use]
    pub fn get(&self, volume: VolumeNr) -> Option<&T> {
        self.place(volume).map(|at| &self.values[at])
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, volume: VolumeNr) -> Option<&mut T> {
        self.place(volume).map(|at| &mut self.values[at])
    }

    /// All, by ascending number.
    pub fn iter(&self) -> impl Iterator<Item = (VolumeNr, &T)> {
        self.numbers.iter().copied().zip(&self.values)
    }

    /// All, by ascending number.
    pub fn values(&self) -> std::slice::Iter<'_, T> {
        self.values.iter()
    }

    /// All, by ascending number, to be changed.
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.values.iter_mut()
    }

    fn place(&self, volume: VolumeNr) -> Option<usize> {
        // Most resources have one volume or two.
        match &*self.numbers {
            [first, ..] if *first == volume => Some(0),
            [_, second, ..] if *second == volume => Some(1),
            all => all.binary_search(&volume).ok(),
        }
    }
}

impl<T> FromIterator<(VolumeNr, T)> for Volumes<T> {
    fn from_iter<I: IntoIterator<Item = (VolumeNr, T)>>(all: I) -> Self {
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(volume, _)| *volume);
        all.dedup_by_key(|(volume, _)| *volume);
        Volumes {
            numbers: all.iter().map(|(volume, _)| *volume).collect(),
            values: all.into_iter().map(|(_, v)| v).collect(),
        }
    }
}

impl<T> Index<VolumeNr> for Volumes<T> {
    type Output = T;

    fn index(&self, volume: VolumeNr) -> &T {
        self.get(volume).expect("a volume of this resource")
    }
}

impl<T> IndexMut<VolumeNr> for Volumes<T> {
    fn index_mut(&mut self, volume: VolumeNr) -> &mut T {
        self.get_mut(volume).expect("a volume of this resource")
    }
}

/// Numbers of volumes, ascending.
#[derive(Clone, Debug)]
pub struct Numbers {
    all: Arc<[VolumeNr]>,
    next: usize,
}

impl Iterator for Numbers {
    type Item = VolumeNr;

    fn next(&mut self) -> Option<VolumeNr> {
        let number = self.all.get(self.next).copied();
        self.next += 1;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId::new(n).expect("a node id")
    }

    #[test]
    fn who_comes_or_goes_changes_nobody_elses_name() {
        let mut peers: Peers<&str> = [(node(7), "seven"), (node(0), "zero")].into_iter().collect();
        peers.insert(node(3), "three");
        assert_eq!(peers.iter().collect::<Vec<_>>(), [(node(0), &"zero"), (node(3), &"three"), (node(7), &"seven")]);
        let ids = peers.ids();
        assert_eq!(peers.remove(node(0)), Some("zero"));
        assert_eq!((peers[node(7)], peers.get(node(0)), peers.contains(node(0))), ("seven", None, false));
        assert_eq!(ids.collect::<Vec<_>>(), [node(0), node(3), node(7)]);
        peers.values_mut().for_each(|name| *name = "gone");
        assert_eq!((peers[node(3)], peers.members().len()), ("gone", 2));
    }

    #[test]
    fn volumes_are_found_by_their_numbers() {
        let nr = VolumeNr;
        let mut volumes: Volumes<u32> = [(nr(9), 90), (nr(2), 20), (nr(4), 40)].into_iter().collect();
        assert_eq!(volumes.ids().map(|v| volumes[v]).collect::<Vec<_>>(), [20, 40, 90]);
        let twice = volumes.map(|value| value * 2);
        assert_eq!(volumes.remove(nr(4)), Some(40));
        assert_eq!((volumes.get(nr(4)), volumes[nr(9)], volumes.len()), (None, 90, 2));
        assert_eq!((twice[nr(4)], volumes.remove(nr(5))), (80, None));
        volumes.insert(nr(0), 1);
        volumes.insert(nr(9), 91);
        assert_eq!(volumes.iter().collect::<Vec<_>>(), [(nr(0), &1), (nr(2), &20), (nr(9), &91)]);
    }
}
