//! Things that a resource has one of per peer, or per volume, by the peer's node id and the volume's number.
//!
//! A name stays what it is when another peer or volume comes or goes: there is no index that shifts.

use crate::{NodeId, NodeMask, VolumeNr};
use std::ops::{Index, IndexMut, Range};
use std::sync::Arc;

/// One thing per peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peers<T> {
    members: NodeMask,
    /// By node id: how many members come before it. Of others: [`NOWHERE`].
    places: [u8; NodeId::COUNT],
    /// By ascending node id.
    values: Vec<T>,
}

/// Behind all places that there may be.
const NOWHERE: u8 = NodeId::COUNT as u8;

impl<T> Default for Peers<T> {
    fn default() -> Self {
        Peers { members: NodeMask::default(), places: [NOWHERE; NodeId::COUNT], values: Vec::new() }
    }
}

impl<T> Peers<T> {
    /// Adds a peer's, or replaces it.
    pub fn insert(&mut self, peer: NodeId, value: T) {
        if let Some(place) = self.get_mut(peer) {
            *place = value;
            return;
        }
        let at = self.members.into_iter().take_while(|member| *member < peer).count();
        self.members.insert(peer);
        self.values.insert(at, value);
        self.find_places();
    }

    /// Removes a peer's.
    pub fn remove(&mut self, peer: NodeId) -> Option<T> {
        let at = self.place(peer);
        let value = (at < self.values.len()).then(|| self.values.remove(at))?;
        self.members.remove(peer);
        self.find_places();
        Some(value)
    }

    /// Others are members now.
    fn find_places(&mut self) {
        self.places = [NOWHERE; NodeId::COUNT];
        (0..).zip(self.members).for_each(|(at, member)| self.places[member.index()] = at);
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

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// A peer's, if there is that peer.
    #[must_use]
    pub fn get(&self, peer: NodeId) -> Option<&T> {
        self.values.get(self.place(peer))
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, peer: NodeId) -> Option<&mut T> {
        let at = self.place(peer);
        self.values.get_mut(at)
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

    /// Behind all values if there is no such peer.
    fn place(&self, peer: NodeId) -> usize {
        usize::from(self.places[peer.index() % NodeId::COUNT])
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

    #[inline]
    fn index(&self, peer: NodeId) -> &T {
        self.get(peer).expect("a peer of this resource")
    }
}

impl<T> IndexMut<NodeId> for Peers<T> {
    #[inline]
    fn index_mut(&mut self, peer: NodeId) -> &mut T {
        self.get_mut(peer).expect("a peer of this resource")
    }
}

/// One thing per volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volumes<T> {
    /// Ascending.
    numbers: Arc<[VolumeNr]>,
    row: Row,
    values: Vec<T>,
}

/// The first of some numbers, and those that follow it without a gap: mostly all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Row {
    first: u16,
    len: u16,
}

impl Row {
    fn of(numbers: &[VolumeNr]) -> Row {
        let first = numbers.first().map_or(0, |nr| nr.0);
        let len = numbers.iter().zip(first..).take_while(|(nr, next)| nr.0 == *next).count();
        Row { first, len: len as u16 }
    }
}

impl<T> Default for Volumes<T> {
    fn default() -> Self {
        Volumes { numbers: Arc::default(), row: Row::default(), values: Vec::new() }
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
                self.row = Row::of(&self.numbers);
                self.values.insert(at, value);
            }
        }
    }

    /// Removes a volume's.
    pub fn remove(&mut self, volume: VolumeNr) -> Option<T> {
        let at = self.place(volume)?;
        self.numbers = self.numbers.iter().copied().filter(|nr| *nr != volume).collect();
        self.row = Row::of(&self.numbers);
        Some(self.values.remove(at))
    }

    /// One thing for each of the volumes that these are of.
    pub fn map<U>(&self, f: impl FnMut(&T) -> U) -> Volumes<U> {
        let (numbers, row) = (Arc::clone(&self.numbers), self.row);
        Volumes { numbers, row, values: self.values.iter().map(f).collect() }
    }

    /// Whose there are, ascending. Does not borrow: volumes may come and go meanwhile.
    #[must_use]
    pub fn ids(&self) -> Numbers {
        let in_row = usize::from(self.row.len);
        let others = (in_row < self.numbers.len()).then(|| (Arc::clone(&self.numbers), in_row));
        Numbers { row: self.row.first..self.row.first + self.row.len, others }
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
        self.values.get(self.place(volume)?)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, volume: VolumeNr) -> Option<&mut T> {
        let at = self.place(volume)?;
        self.values.get_mut(at)
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
        let behind_first = volume.0.wrapping_sub(self.row.first);
        if behind_first < self.row.len { Some(usize::from(behind_first)) } else { self.place_behind_gap(volume) }
    }

    #[cold]
    fn place_behind_gap(&self, volume: VolumeNr) -> Option<usize> {
        self.numbers.binary_search(&volume).ok()
    }
}

impl<T> FromIterator<(VolumeNr, T)> for Volumes<T> {
    fn from_iter<I: IntoIterator<Item = (VolumeNr, T)>>(all: I) -> Self {
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(volume, _)| *volume);
        all.dedup_by_key(|(volume, _)| *volume);
        let numbers: Arc<[VolumeNr]> = all.iter().map(|(volume, _)| *volume).collect();
        Volumes { row: Row::of(&numbers), numbers, values: all.into_iter().map(|(_, v)| v).collect() }
    }
}

impl<T> Index<VolumeNr> for Volumes<T> {
    type Output = T;

    #[inline]
    fn index(&self, volume: VolumeNr) -> &T {
        self.get(volume).expect("a volume of this resource")
    }
}

impl<T> IndexMut<VolumeNr> for Volumes<T> {
    #[inline]
    fn index_mut(&mut self, volume: VolumeNr) -> &mut T {
        self.get_mut(volume).expect("a volume of this resource")
    }
}

/// Numbers of volumes, ascending.
#[derive(Clone, Debug)]
pub struct Numbers {
    row: Range<u16>,
    /// All numbers, if some are behind a gap, and where the next of those is.
    others: Option<(Arc<[VolumeNr]>, usize)>,
}

impl Iterator for Numbers {
    type Item = VolumeNr;

    fn next(&mut self) -> Option<VolumeNr> {
        if let Some(number) = self.row.next() {
            return Some(VolumeNr(number));
        }
        let (all, next) = self.others.as_mut()?;
        let number = all.get(*next).copied();
        *next += 1;
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

    #[test]
    fn numbers_in_a_row_and_behind_a_gap_are_found_alike() {
        let nr = VolumeNr;
        let mut volumes: Volumes<u16> = [3, 4, 5, 8, 9].into_iter().map(|n| (nr(n), n)).collect();
        let check = |volumes: &Volumes<u16>, there: &[u16]| {
            assert_eq!(volumes.ids().map(|v| v.0).collect::<Vec<_>>(), there);
            for n in (0..12).chain(0xfff0..=0xffff) {
                assert_eq!(volumes.get(nr(n)).copied(), Some(n).filter(|n| there.contains(n)), "{n} of {there:?}");
            }
        };
        check(&volumes, &[3, 4, 5, 8, 9]);
        volumes.remove(nr(3));
        check(&volumes, &[4, 5, 8, 9]);
        volumes.remove(nr(5));
        check(&volumes, &[4, 8, 9]);
        volumes.insert(nr(0xfffe), 0xfffe);
        volumes.insert(nr(5), 5);
        check(&volumes, &[4, 5, 8, 9, 0xfffe]);
        check(&volumes.map(|n| *n), &[4, 5, 8, 9, 0xfffe]);
        [4, 5, 8, 9].into_iter().for_each(|n| _ = volumes.remove(nr(n)));
        check(&volumes, &[0xfffe]);
        assert_eq!((volumes.remove(nr(0xfffe)), volumes.ids().next()), (Some(0xfffe), None));
    }

    #[test]
    fn every_peer_is_found_whoever_else_is_there() {
        let mut peers: Peers<usize> = Peers::default();
        for n in (0..32).rev().chain([7]) {
            peers.insert(node(n), usize::from(n));
            assert!(peers.iter().all(|(peer, value)| peer.index() == *value && peers.get(peer) == Some(value)));
        }
        for n in 0..32 {
            assert_eq!((peers.remove(node(n)), peers.remove(node(n))), (Some(usize::from(n)), None));
            assert!(NodeId::all().all(|peer| peers.get(peer).is_some() == (peer.index() > usize::from(n))));
        }
    }
}
