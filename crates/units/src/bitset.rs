//! A fixed-size set of bit numbers with a running count and fast scanning.
//!
//! A bitmap of 16 TiB has 64 million words: who looks for a bit says how far.

use std::ops::Range;

/// A set of numbers `0..len`, one bit each. The number of set bits is kept, so `count` is free.
#[derive(Clone, PartialEq, Eq)]
pub struct BitSet {
    words: Vec<u64>,
    len: u64,
    count: u64,
}

#[cfg(debug_assertions)]
thread_local! {
    static WORDS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

fn count_words(_looked_at: u64) {
    #[cfg(debug_assertions)]
    WORDS.set(WORDS.get() + _looked_at);
}

impl BitSet {
    /// An empty set over `0..len`.
    #[must_use]
    pub fn new(len: u64) -> BitSet {
        let words = usize::try_from(len.div_ceil(64)).expect("bitmap fits the address space");
        BitSet { words: vec![0; words], len, count: 0 }
    }

    /// How many numbers the set is over.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Is no bit set?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many bits are set.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Is bit `i` set? Panics if `i >= len`.
    #[must_use]
    pub fn contains(&self, i: u64) -> bool {
        assert!(i < self.len, "bit {i} outside 0..{}", self.len);
        self.words[(i / 64) as usize] >> (i % 64) & 1 == 1
    }

    /// The bits as 64-bit words, bit n of the set in word n / 64 at weight n % 64. Bits past `len` are 0.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Replaces word `w`; bits past `len` are dropped. Returns true if it changed something.
    pub fn put_word(&mut self, w: usize, value: u64) -> bool {
        let value = value & self.word_mask(w);
        let old = std::mem::replace(&mut self.words[w], value);
        self.count = self.count - u64::from(old.count_ones()) + u64::from(value.count_ones());
        old != value
    }

    /// Ors `value` into word `w`; bits past `len` are dropped. Returns how many bits became set.
    pub fn or_word(&mut self, w: usize, value: u64) -> u64 {
        let new = value & self.word_mask(w) & !self.words[w];
        self.words[w] |= new;
        self.count += u64::from(new.count_ones());
        u64::from(new.count_ones())
    }

    /// Sets bits `from..to` (clamped to `len`); returns how many became set.
    pub fn set_range(&mut self, from: u64, to: u64) -> u64 {
        self.change_range(from, to, true)
    }

    /// Clears bits `from..to` (clamped to `len`); returns how many became clear.
    pub fn clear_range(&mut self, from: u64, to: u64) -> u64 {
        self.change_range(from, to, false)
    }

    /// Sets every bit.
    pub fn set_all(&mut self) {
        self.set_range(0, self.len);
    }

    /// Clears every bit.
    pub fn clear_all(&mut self) {
        self.words.fill(0);
        self.count = 0;
    }

    /// Words in which this thread has looked for a bit, with debug assertions: what a test can count.
    #[cfg(debug_assertions)]
    #[must_use]
    pub fn words_looked_at() -> u64 {
        WORDS.get()
    }

    /// The first set bit `within` (clamped to `len`). It takes as long as the bits before it are many.
    #[must_use]
    pub fn next_set(&self, within: Range<u64>) -> Option<u64> {
        self.scan(within, 0)
    }

    /// The first clear bit `within` (clamped to `len`). It takes as long as the bits before it are many.
    #[must_use]
    pub fn next_clear(&self, within: Range<u64>) -> Option<u64> {
        self.scan(within, u64::MAX)
    }

    /// How many bits are set in `from..to` (clamped to `len`).
    #[must_use]
    pub fn count_range(&self, from: u64, to: u64) -> u64 {
        let mut n = 0;
        self.each_word(from, to, |w, mask| n += u64::from((self.words[w] & mask).count_ones()));
        n
    }

    /// Changes the length; new bits are set if `fill`, bits past the new length are dropped.
    pub fn resize(&mut self, len: u64, fill: bool) {
        let old = self.len;
        if len < old {
            self.clear_range(len, old);
        }
        self.words.resize(usize::try_from(len.div_ceil(64)).expect("bitmap fits the address space"), 0);
        self.len = len;
        if fill && len > old {
            self.set_range(old, len);
        }
    }

    fn word_mask(&self, w: usize) -> u64 {
        let tail = self.len - (w as u64) * 64;
        if tail >= 64 { u64::MAX } else { (1 << tail) - 1 }
    }

    fn scan(&self, within: Range<u64>, invert: u64) -> Option<u64> {
        let end = within.end.min(self.len);
        if within.start >= end {
            return None;
        }
        let (first, last) = ((within.start / 64) as usize, ((end - 1) / 64) as usize);
        let words = self.words[first..=last].iter().map(|word| word ^ invert);
        let mut words = words.enumerate().map(|(n, word)| match n {
            0 => (0, word & u64::MAX << (within.start % 64)),
            _ => (n, word),
        });
        let found = words.find(|(_, word)| *word != 0);
        count_words(found.map_or(last - first, |(n, _)| n) as u64 + 1);
        let (n, word) = found?;
        Some((first + n) as u64 * 64 + u64::from(word.trailing_zeros())).filter(|bit| *bit < end)
    }

    fn each_word(&self, from: u64, to: u64, mut f: impl FnMut(usize, u64)) {
        let to = to.min(self.len);
        if from >= to {
            return;
        }
        let (first, last) = ((from / 64) as usize, ((to - 1) / 64) as usize);
        for w in first..=last {
            let mut mask = u64::MAX;
            if w == first {
                mask &= u64::MAX << (from % 64);
            }
            if w == last {
                mask &= u64::MAX >> (63 - (to - 1) % 64);
            }
            f(w, mask);
        }
    }

    fn change_range(&mut self, from: u64, to: u64, on: bool) -> u64 {
        let mut words = std::mem::take(&mut self.words);
        let mut changed = 0;
        self.each_word(from, to, |w, mask| {
            let new = if on { words[w] | mask } else { words[w] & !mask };
            changed += u64::from((new ^ words[w]).count_ones());
            words[w] = new;
        });
        self.words = words;
        self.count = if on { self.count + changed } else { self.count - changed };
        changed
    }
}

impl std::fmt::Debug for BitSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BitSet({} of {})", self.count, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_as_a_set(
            len in 1u64..300, ops in proptest::collection::vec((any::<bool>(), 0u64..310, 0u64..310), 0..40),
        ) {
            let mut b = BitSet::new(len);
            let mut model = BTreeSet::new();
            for (on, x, y) in ops {
                let (from, to) = (x.min(y), x.max(y));
                let before = model.len();
                if on {
                    model.extend(from..to.min(len));
                    prop_assert_eq!(b.set_range(from, to), (model.len() - before) as u64);
                } else {
                    model.retain(|i| !(from..to).contains(i));
                    prop_assert_eq!(b.clear_range(from, to), (before - model.len()) as u64);
                }
                prop_assert_eq!(b.count(), model.len() as u64);
                prop_assert_eq!(b.next_set(x..y), (x..y.min(len)).find(|i| model.contains(i)));
                prop_assert_eq!(b.next_clear(x..y), (x..y.min(len)).find(|i| !model.contains(i)));
                prop_assert_eq!(b.count_range(from, to), model.range(from..to).count() as u64);
            }
            let new_len = len + 70;
            b.resize(new_len, true);
            prop_assert_eq!(b.count(), model.len() as u64 + 70);
            b.resize(len, false);
            prop_assert_eq!(b.count(), model.len() as u64);
        }
    }
}
