//! Circles, and what is reached.

use std::collections::BTreeSet;

/// Who calls whom.
pub(super) struct Graph {
    pub(super) to: Vec<BTreeSet<usize>>,
}

impl Graph {
    /// The strongly connected components, each after those that it leads to.
    pub(super) fn components(&self) -> Vec<Vec<usize>> {
        let n = self.to.len();
        let (mut index, mut low) = (vec![usize::MAX; n], vec![0; n]);
        let (mut stack, mut on, mut found, mut next) = (Vec::new(), vec![false; n], Vec::new(), 0);
        for root in 0..n {
            if index[root] != usize::MAX {
                continue;
            }
            // Without recursion: a node, and which of those that it leads to are left.
            let mut work = vec![(root, self.to[root].iter())];
            (index[root], low[root], on[root]) = (next, next, true);
            next += 1;
            stack.push(root);
            while let Some((v, rest)) = work.last_mut() {
                let v = *v;
                match rest.next() {
                    Some(&w) if index[w] == usize::MAX => {
                        (index[w], low[w], on[w]) = (next, next, true);
                        next += 1;
                        stack.push(w);
                        work.push((w, self.to[w].iter()));
                    }
                    Some(&w) if on[w] => low[v] = low[v].min(index[w]),
                    Some(_) => {}
                    None => {
                        work.pop();
                        if let Some((above, _)) = work.last() {
                            low[*above] = low[*above].min(low[v]);
                        }
                        if low[v] == index[v] {
                            let at = stack.iter().rposition(|w| *w == v).unwrap();
                            let component = stack.split_off(at);
                            component.iter().for_each(|w| on[*w] = false);
                            found.push(component);
                        }
                    }
                }
            }
        }
        found
    }

    /// Of each node, which ones it reaches, itself included.
    pub(super) fn reach(&self) -> Vec<Bits> {
        let mut of_component: Vec<usize> = vec![0; self.to.len()];
        let mut sets: Vec<Bits> = Vec::new();
        for component in self.components() {
            let mut all = Bits(vec![0; self.to.len().div_ceil(64)]);
            for v in &component {
                of_component[*v] = sets.len();
                all.insert(*v);
            }
            for w in component.iter().flat_map(|v| &self.to[*v]) {
                if let Some(beneath) = sets.get(of_component[*w]).filter(|_| !all.contains(*w)) {
                    all.0.iter_mut().zip(&beneath.0).for_each(|(a, b)| *a |= b);
                }
            }
            sets.push(all);
        }
        of_component.into_iter().map(|c| sets[c].clone()).collect()
    }

    /// One of the shortest ways.
    pub(super) fn way(&self, from: usize, to: usize) -> Option<Vec<usize>> {
        let mut before = vec![None; self.to.len()];
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(v) = queue.pop_front() {
            if v == to {
                let mut way = vec![v];
                while way.last() != Some(&from) {
                    way.push(before[*way.last().unwrap()]?);
                }
                way.reverse();
                return Some(way);
            }
            for w in self.to[v].iter().filter(|w| **w != from) {
                if before[*w].is_none() {
                    before[*w] = Some(v);
                    queue.push_back(*w);
                }
            }
        }
        None
    }
}

/// A set of nodes.
#[derive(Clone)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    fn insert(&mut self, v: usize) {
        self.0[v / 64] |= 1 << (v % 64);
    }

    pub(super) fn contains(&self, v: usize) -> bool {
        self.0[v / 64] >> (v % 64) & 1 == 1
    }
}
