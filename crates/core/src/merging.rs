//! The order in which the writes of one turn are looked at, so that neighbours meet
//! (`docs/spec/data-path-and-resync.md` 12.5, method M1).

use crate::api::{BlockRequest, BufRef, RequestKind, Segments};
use crate::request::write::{Owner, Owners};
use std::collections::VecDeque;
use std::sync::Arc;
use units::Instant;

/// A request that nobody has looked at yet.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) came: Instant,
    pub(crate) request: BlockRequest,
}

/// Kept to reuse its memory.
#[derive(Debug, Default)]
pub(crate) struct Merging {
    keys: Vec<Key>,
    sorted: Vec<Option<Waiting>>,
    /// Lists of merged writes that are done.
    pieces: Vec<Arc<Vec<BufRef>>>,
    owners: Vec<Vec<Owner>>,
}

/// So many lists are kept.
const KEPT: usize = 256;

/// In sectors; `at` is the place in the queue.
#[derive(Clone, Copy, Debug)]
struct Key {
    start: u64,
    end: u64,
    at: u32,
}

impl Merging {
    /// Adds a follower's data and owner to a write's.
    pub(crate) fn join(&mut self, (data, owners): (&mut Segments, &mut Owners), more: &Segments, owner: Owner) {
        let mut pieces = match std::mem::take(data) {
            Segments::Many(pieces) => pieces,
            few => {
                let mut pieces = self.pieces.pop().unwrap_or_default();
                Arc::make_mut(&mut pieces).extend_from_slice(few.as_slice());
                pieces
            }
        };
        Arc::make_mut(&mut pieces).extend_from_slice(more.as_slice());
        *data = Segments::Many(pieces);
        if let Owners::One(one) = *owners {
            let mut all = self.owners.pop().unwrap_or_default();
            all.push(one);
            *owners = Owners::Many(all);
        }
        if let Owners::Many(all) = owners {
            all.push(owner);
        }
    }

    /// A write needs its list of pieces no longer.
    pub(crate) fn keep_pieces(&mut self, data: Segments) {
        if let Segments::Many(mut pieces) = data
            && self.pieces.len() < KEPT
            && let Some(list) = Arc::get_mut(&mut pieces)
        {
            list.clear();
            self.pieces.push(pieces);
        }
    }

    /// A write needs its list of owners no longer.
    pub(crate) fn keep_owners(&mut self, mut owners: Vec<Owner>) {
        if owners.capacity() > 0 && self.owners.len() < KEPT {
            owners.clear();
            self.owners.push(owners);
        }
    }

    /// Sorts the writes at the head of the queue by their place if that makes neighbours of some that were none. The
    /// order of writes that are under way at the same time is free unless they overlap: then nothing changes.
    pub(crate) fn bring_neighbours_together(&mut self, queue: &mut VecDeque<Waiting>) {
        self.keys.clear();
        let writes =
            queue.iter().map(|w| &w.request).take_while(|r| matches!(r.kind, RequestKind::Write { .. })).zip(0..);
        let key = |(r, at): (&BlockRequest, u32)| Key { start: r.sector.0, end: r.sector.0 + r.len.0 / 512, at };
        self.keys.extend(writes.map(key));
        if self.keys.len() < 2 || self.keys.is_sorted_by_key(|key| key.start) {
            return;
        }
        let together = |keys: &[Key]| keys.windows(2).filter(|w| w[0].end == w[1].start).count();
        let before = together(&self.keys);
        // Those that begin at the same place overlap, in whichever order.
        self.keys.sort_unstable_by_key(|key| key.start);
        let overlap = self.keys.windows(2).any(|w| w[0].end > w[1].start);
        if overlap || together(&self.keys) <= before {
            return;
        }
        self.sorted.extend(queue.drain(..self.keys.len()).map(Some));
        // From the last one on, as each goes before what is in the queue.
        for key in self.keys.iter().rev() {
            if let Some(waiting) = self.sorted[key.at as usize].take() {
                queue.push_front(waiting);
            }
        }
        self.sorted.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Segments;
    use units::{ByteLen, Sector, VolumeNr};

    fn order(requests: &[(u64, u64)]) -> Vec<u64> {
        let request = |(tag, &(sector, sectors)): (usize, &(u64, u64))| Waiting {
            came: Instant(0),
            request: BlockRequest {
                tag: tag as u64,
                volume: VolumeNr(0),
                kind: if sectors == 0 { RequestKind::Flush } else { RequestKind::Write { fua: false } },
                sector: Sector(sector),
                len: ByteLen(sectors * 512),
                data: Segments::None,
            },
        };
        let mut queue: VecDeque<Waiting> = requests.iter().enumerate().map(request).collect();
        Merging::default().bring_neighbours_together(&mut queue);
        queue.iter().map(|w| w.request.tag).collect()
    }

    #[test]
    fn only_neighbours_change_the_order() {
        assert_eq!(order(&[(0, 8), (100, 8), (8, 8), (108, 8)]), [0, 2, 1, 3]);
        assert_eq!(order(&[(8, 8), (0, 8)]), [1, 0], "descending writes");
        assert_eq!(order(&[(50, 8), (0, 8), (200, 8)]), [0, 1, 2], "nothing to gain");
        // The first and the third would be neighbours, and the last would come before the second.
        assert_eq!(order(&[(0, 8), (104, 8), (8, 8), (100, 8)]), [0, 1, 2, 3], "overlaps keep their order");
        assert_eq!(order(&[(0, 8), (100, 8), (8, 8), (100, 16)]), [0, 1, 2, 3], "of writes to the same place as well");
        assert_eq!(order(&[(8, 8), (100, 8), (0, 0), (0, 8)]), [0, 1, 2, 3], "nothing passes a flush");
        assert_eq!(order(&[]), []);
    }

    /// All queues of five that are made of short writes to a few places, and flushes.
    #[test]
    fn what_overlaps_keeps_its_order() {
        let kinds: Vec<(u64, u64)> = (0..4).flat_map(|at| [(at, 1), (at, 2)]).chain([(0, 0)]).collect();
        let together = |r: &[(u64, u64)]| r.windows(2).filter(|w| w[0].1 > 0 && w[0].0 + w[0].1 == w[1].0).count();
        let mut changed = 0;
        for n in 0..kinds.len().pow(5) {
            let queue: Vec<(u64, u64)> = (0..5).map(|i| kinds[n / kinds.len().pow(i) % kinds.len()]).collect();
            let order = order(&queue);
            let after: Vec<(u64, u64)> = order.iter().map(|tag| queue[*tag as usize]).collect();
            let mut all = order.clone();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4], "{queue:?}");
            let bound = |a: (u64, u64), b: (u64, u64)| a.1 == 0 || b.1 == 0 || (a.0 < b.0 + b.1 && b.0 < a.0 + a.1);
            for (late, early) in (0..5).flat_map(|i| (0..i).map(move |j| (i, j))).filter(|(i, j)| order[*i] < order[*j])
            {
                assert!(!bound(after[late], after[early]), "{queue:?} became {after:?}");
            }
            if order != [0, 1, 2, 3, 4] {
                changed += 1;
                assert!(together(&after) > together(&queue), "{queue:?} became {after:?}");
            }
        }
        assert!(changed > 0);
    }
}
