//! Numbered places for things in flight, whose numbers are never mistaken for an older tenant's.

/// A slab with generations. A key is `generation << 32 | index + 1`: never 0 and never all ones, so that it can be a
/// `block_id` on the wire (`docs/spec/wire-protocol.md` 3.2).
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    used: usize,
}

#[derive(Clone, Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

const GENERATION_LIMIT: u32 = 0x7fff_ffff;

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { places: Vec::new(), free: Vec::new(), used: 0 }
    }
}

impl<T> Slab<T> {
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, value: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        assert!(place.value.is_none(), "slab place {index} is in use");
        place.value = Some(value);
        place.generation = if place.generation + 1 == GENERATION_LIMIT { 0 } else { place.generation + 1 };
        self.used += 1;
        u64::from(place.generation) << 32 | u64::from(index + 1)
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        let index = self.index(key)?;
        let value = self.places[index].value.take();
        self.free.push(index as u32);
        self.used -= 1;
        value
    }

    /// What there is at this key ends, where it is.
    pub(crate) fn forget(&mut self, key: u64) {
        let Some(index) = self.index(key) else { return };
        self.places[index].value = None;
        self.free.push(index as u32);
        self.used -= 1;
    }

    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        self.index(key).and_then(|i| self.places[i].value.as_ref())
    }

    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        self.index(key).and_then(|i| self.places[i].value.as_mut())
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.places
            .iter()
            .enumerate()
            .filter_map(|(i, p)| p.value.as_ref().map(|v| (u64::from(p.generation) << 32 | (i as u64 + 1), v)))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|p| p.value.as_mut())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn index(&self, key: u64) -> Option<usize> {
        let index = usize::try_from((key & 0xffff_ffff).checked_sub(1)?).ok()?;
        let place = self.places.get(index)?;
        (u64::from(place.generation) == key >> 32 && place.value.is_some()).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_finds_nothing() {
        let mut s = Slab::default();
        let a = s.insert("a");
        assert_eq!(s.remove(a), Some("a"));
        let b = s.insert("b");
        assert_ne!(a, b);
        assert_eq!(s.get(a), None);
        assert_eq!(s.remove(a), None);
        assert_eq!(s.get(b), Some(&"b"));
        assert_eq!((s.len(), s.iter().count()), (1, 1));
        assert_eq!(s.get(0), None);
        assert_eq!(s.get(u64::MAX), None);
    }
}
