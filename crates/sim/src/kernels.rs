//! What no seed below 6,000,000 has: two to five nodes of which some decide as kernels do, without urbd's own rules, as
//! 9.3.3 or as later releases (`docs/spec/connection-and-state.md` 5.8.2), and at least one as urbd.
//!
//! Two that decide as kernels do are told to decide by urbd's rules towards each other: what two kernels make of each
//! other is not what is tried here.

use crate::checks::differences;
use crate::cluster::{Cluster, Request};
use crate::further::source;
use crate::many;
use crate::net::Wish;
use crate::payload::Payload;
use crate::plan::{Plan, pick};
use units::{Rng, SectorRange};
use urbd_core::Protocol;
use urbd_core::decide::private::Decides;
use wire::{ConnState, DiskState, StateWord};

/// The first seed of the range.
pub(crate) const KERNELS: u64 = 6_000_000;
/// From here on they decide as an urbd that has its own rules beside anybody, and does not say that it has them.
const OLDER: u64 = 6_500_000;

/// The plan of a seed of this range.
pub(crate) fn draw(seed: u64) -> Plan {
    let mut rng = Rng::new(seed ^ 0x6b65_726e);
    let nodes = *pick(&mut rng, &[2, 3, 3, 3, 4, 5]);
    let mut setup = many::setup(&mut rng, nodes);
    // With the others a kernel's rules lose what only who has crashed as Primary has.
    setup.protocol = Protocol::C;
    let mut own = source(seed, *b"kern");
    let decides = &mut setup.drawn.decides;
    decides.fill_with(|| *pick(&mut own, &[Decides::AsUrbd, Decides::AsDrbd93, Decides::AsLaterDrbd]));
    let first = own.below(nodes as u64) as usize;
    decides[first] = Decides::AsUrbd;
    decides[(first + 1) % nodes] = *pick(&mut own, &[Decides::AsDrbd93, Decides::AsDrbd93, Decides::AsLaterDrbd]);
    if seed >= OLDER {
        let others = setup.drawn.decides.iter_mut().filter(|decides| **decides != Decides::AsUrbd);
        others.for_each(|decides| *decides = Decides::AsOlderUrbd);
    }
    many::draw_for(rng, seed, setup, own.chance(1, 3))
}

impl Cluster {
    /// Does some node decide as kernels do?
    pub(crate) fn has_kernels(&self) -> bool {
        self.setup.drawn.decides.iter().any(|decides| *decides != Decides::AsUrbd)
    }

    /// Two good copies differ here, and nothing says so: a kernel forgets what is marked when two copies of one
    /// generation meet, also of a write that was under way when its Primary died. What was acknowledged there, or, when
    /// all are in sync, anywhere, is on both.
    pub(crate) fn may_differ(&self, nodes: [usize; 2], v: usize, range: SectorRange) -> bool {
        let view = |n: usize| &self.nodes[n].volumes[v].view;
        let all = if self.is_settled(v) { (0..self.nodes.len()).collect() } else { nodes.to_vec() };
        let full = |n: &&usize| all.iter().all(|other| view(**n).includes_all_of(view(*other)));
        let fullest: Vec<_> = all.iter().filter(full).collect();
        let now = self.moment;
        let fits = |n: usize| {
            let copy = Payload::read(self.nodes[n].volumes[v].data.data(), range);
            fullest.iter().any(|judge| view(**judge).allows(range, &copy, now).is_ok())
        };
        self.has_kernels() && nodes.into_iter().all(fits)
    }

    /// Do all hold the same?
    pub(crate) fn are_alike(&self, v: usize, whole: SectorRange) -> bool {
        let copy = |n: usize| Payload::read(self.nodes[n].volumes[v].data.data(), whole);
        let first = copy(0);
        (1..self.nodes.len()).all(|n| differences(&first, &copy(n), whole.start).is_empty())
    }

    /// A write is complete on a node. Who is connected to it, as both say, and calls its copy good, got it, or word
    /// that it lacks it: alone it could be promoted, and be read. What is still on its way may tell either of them
    /// otherwise.
    pub(crate) fn check_told(&self, n: usize, words: &[(usize, StateWord)], request: &Request) -> Result<(), String> {
        for (peer, word) in words.iter().filter(|(_, word)| word.conn >= ConnState::Connected) {
            let Wish::Connected(number) = self.net.wishes[n][*peer] else { continue };
            let theirs = self.nodes[*peer].volumes[request.volume].towards[n];
            let counts = |w: StateWord| w.conn == ConnState::Connected && w.disk == DiskState::UpToDate;
            let heard = |n: usize| self.nodes[n].inbox.is_empty() && self.net.has_arrived(number, n);
            let heard = heard(n) && heard(*peer);
            let copy =
                |n: usize| Payload::read(self.nodes[n].volumes[request.volume].data.data(), request.written.range);
            // Who is told that this node runs ahead knows that it lacks something.
            let behind = word.conn == ConnState::Ahead;
            // Or a resync has copied it.
            let got = request.sent[*peer].is_some() || request.told[*peer] || behind || copy(n) == copy(*peer);
            if !got && heard && self.peer_listens(n, *peer) && theirs.is_some_and(counts) {
                return Err(format!(
                    "{:?} of volume {} is complete on node {n}, and node {peer} calls its copy good and did not hear of \
                     it: {word:?}",
                    request.written.range, request.volume
                ));
            }
        }
        Ok(())
    }
}
