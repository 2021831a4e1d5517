//! What must hold at any time, and when nothing is going on.

use crate::apps::is_write;
use crate::cluster::{Cluster, Node, Volume};
use crate::extras::outside;
use crate::net::Wish;
use crate::on_disk::{self, extents_of};
use crate::oracle::Moment;
use crate::payload::{Owner, Payload};
use crate::plan::{node_id, volume_nr};
use crate::ranges::{Changed, sectors};
use units::{Sector, SectorRange};
use wire::{ConnState as C, DiskState, Role, StateWord};

/// A sector that somebody wants to understand.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) volume: usize,
    pub(crate) sector: u64,
    pub(crate) seen: String,
}

impl Cluster {
    /// A line of the trace if the watched sector has changed.
    pub(crate) fn note_watched(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let range = sectors(watch.sector, watch.sector + 1);
        let node = |n: &crate::cluster::Node| {
            let v = &n.volumes[watch.volume];
            let disk = |r: &crate::ranges::Ranges<_>| Payload::read(r, range).0.first().map(|p| p.id);
            let (now, durable) = (disk(v.data.data()), disk(v.data.durable()));
            format!("{now:?} durable {durable:?} includes {:?} view {}", v.view.includes, v.view.describe(range))
        };
        let all = self.nodes.iter().enumerate().map(|(n, of)| format!("= n{n} {}", node(of)));
        let line = all.collect::<Vec<_>>().join(" ");
        if line != watch.seen {
            watch.seen.clone_from(&line);
            self.trace.note(self.now, || line);
        }
    }

    /// An application's write goes to the disk: its extents must be in the activity log there
    /// (`docs/spec/on-disk-format.md` 3.7, I1).
    pub(crate) fn check_activity_log(&mut self, n: usize, v: usize, range: SectorRange) -> Result<(), String> {
        if self.superblock(n, v)?.has(on_disk::UNLOGGED) {
            // It says that a crash asks for a full resync.
            return Ok(());
        }
        let hot = self.hot_extents(n, v)?;
        match extents_of(range).find(|extent| !hot.contains(extent)) {
            Some(e) => Err(format!("write to {range:?} of volume {v}, but extent {e} is not in the activity log")),
            None => Ok(()),
        }
    }

    /// Data are about to be changed on a disk, which may do what it has at the same time in any order: nothing else may
    /// be changing these sectors (`docs/spec/data-path-and-resync.md` 1.5).
    pub(crate) fn check_alone(&self, n: usize, v: usize, range: SectorRange) -> Result<(), String> {
        let mut others = self.nodes[n].flights.values().filter(|f| f.volume == v).filter_map(|f| f.changes);
        match others.find(|other| other.overlaps(range)) {
            Some(other) => Err(format!("{range:?} of volume {v} is written while {other:?} is still being written")),
            None => Ok(()),
        }
    }

    /// The nodes that are to have disks.
    pub(crate) fn with_disks(&self) -> impl Iterator<Item = usize> + use<> {
        let clients = self.setup.drawn.clients.clone();
        (0..clients.len()).filter(move |n| !clients[*n])
    }

    /// All pairs of nodes, the lower one first.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = [usize; 2]> + use<> {
        let nodes = self.nodes.len();
        (0..nodes).flat_map(move |a| (a + 1..nodes).map(move |b| [a, b]))
    }

    /// Is the volume mirrored everywhere, and idle?
    pub(crate) fn is_settled(&self, v: usize) -> bool {
        let good = |n: usize, disk: DiskState| match self.setup.has_disk(n) {
            true => disk == DiskState::UpToDate,
            false => disk == DiskState::Diskless,
        };
        let fine =
            |n: usize, peer: usize, w: StateWord| w.conn == C::Connected && good(n, w.disk) && good(peer, w.pdsk);
        let towards = |n: usize, peer: usize| self.nodes[n].volumes[v].towards[peer];
        let mirrored = |n: usize| self.peers(n).all(|peer| towards(n, peer).is_some_and(|w| fine(n, peer, w)));
        self.nodes.iter().enumerate().all(|(n, node)| {
            let idle = !node.requests.values().any(|r| is_write(r.kind)) && node.inbox.is_empty();
            // Also a flush counts: what has arrived may wait for it.
            idle && node.flights.is_empty() && node.core.is_some() && mirrored(n)
        }) && self.net.is_quiet()
    }

    /// Two nodes that are connected, run, and have heard all that the other says, see each other as they are: one
    /// Primary at most, mirrored states, and each knows the other's role and disk (S6, S9 and B.4 of
    /// `docs/spec/connection-and-state.md` B).
    fn check_mirrored(&self, [m, n]: [usize; 2], v: usize) -> Result<(), String> {
        let idle = |n: &Node| n.inbox.is_empty() && n.flights.is_empty() && !n.paused;
        let awake = self.nodes.iter().all(idle) && [m, n].iter().all(|n| self.nodes[*n].core.is_some());
        let words = [(m, n), (n, m)].map(|(n, peer)| self.nodes[n].volumes[v].towards[peer]);
        let [Some(a), Some(b)] = words else { return Ok(()) };
        let together = a.conn >= C::Connected && b.conn >= C::Connected;
        if !awake || !together || !self.net.is_quiet() || self.net.is_cut() {
            return Ok(());
        }
        // What is not there, not yet or not any more, is one to the peer.
        let disk = |d: DiskState| if d < DiskState::Inconsistent { DiskState::Diskless } else { d };
        let two = a.role == Role::Primary && b.role == Role::Primary && !self.setup.extras.two_primaries;
        // What has begun and what is just ending may be known to one side only.
        let last =
            |conn| matches!(conn, C::Connected | C::SyncSource | C::SyncTarget | C::PausedSyncS | C::PausedSyncT);
        if !last(a.conn) || !last(b.conn) {
            return Ok(());
        }
        let pairs = [(&a, &b), (&b, &a)];
        // Who has no disk does not trust a copy of another generation than its users have seen, or than a better one.
        let distrusts = |me: &StateWord, other: &StateWord| {
            let doubts = me.pdsk == DiskState::Consistent && other.disk == DiskState::UpToDate;
            doubts && me.disk < DiskState::Inconsistent
        };
        let seen = pairs
            .iter()
            .all(|(me, other)| me.peer == other.role && (disk(me.pdsk) == disk(other.disk) || distrusts(me, other)));
        if two || !seen || !mirrored(a.conn, b.conn) {
            return Err(format!(
                "nodes {m} and {n} are connected and quiet, but they do not see each other as they are: {a:?} and {b:?}"
            ));
        }
        Ok(())
    }

    /// Volumes that are mirrored, idle and clean hold the same everywhere, and what applications wrote.
    pub(crate) fn check_settled(&mut self) {
        for v in 0..self.setup.volumes.len() {
            for pair in self.pairs() {
                if let Err(text) = self.check_mirrored(pair, v) {
                    self.fail(format!("volume {v}: {text}"));
                }
            }
            if self.nodes.len() > 2
                && let Err(text) = self.compare_pairs(v)
            {
                self.fail(format!("volume {v}: {text}"));
            }
            if self.is_settled(v)
                && let Err(text) = self.compare_copies(v)
            {
                self.fail(format!("volume {v}: {text}"));
            }
        }
    }

    /// Nothing is under way anywhere: each two nodes that are connected, count as UpToDate and have nothing marked hold
    /// the same, whatever they are to the others.
    fn compare_pairs(&self, v: usize) -> Result<(), String> {
        let idle = |n: &Node| n.inbox.is_empty() && n.flights.is_empty() && n.requests.is_empty() && !n.paused;
        // What a Primary wrote last is on some only, until they notice that it is gone.
        let noticed = (0..self.nodes.len()).all(|n| self.peers(n).all(|peer| !self.takes_for_alive(n, peer)));
        if !self.net.is_quiet() || self.net.is_cut() || !self.nodes.iter().all(idle) || !noticed {
            return Ok(());
        }
        self.pairs().filter(|pair| self.count_as_equal(*pair, v)).try_for_each(|pair| {
            let size = pair.map(|n| self.nodes[n].volumes[v].size).into_iter().min().unwrap_or_default();
            self.compare_two(pair, v, sectors(0, size))
        })
    }

    /// Has a node not noticed yet that a peer's process is gone, or that it has closed their connection?
    pub(crate) fn takes_for_alive(&self, n: usize, peer: usize) -> bool {
        matches!(self.net.wishes[n][peer], Wish::Connected(_)) && !self.peer_listens(n, peer)
    }

    /// Are these two connected and UpToDate, in one generation, with nothing marked of each other?
    fn count_as_equal(&self, [a, b]: [usize; 2], v: usize) -> bool {
        let good =
            |w: StateWord| w.conn == C::Connected && w.disk == DiskState::UpToDate && w.pdsk == DiskState::UpToDate;
        let generation = |n: usize| self.nodes[n].core.as_ref().and_then(|core| core.generations(volume_nr(v)));
        let same = generation(a).zip(generation(b)).is_some_and(|(mine, theirs)| mine[0].same(theirs[0]));
        let clean = |(n, peer): (usize, usize)| {
            let volume = &self.nodes[n].volumes[v];
            let whole = sectors(0, volume.size);
            let marked = |core: &urbd_core::Resource| core.known_different(volume_nr(v), node_id(peer), whole);
            volume.towards[peer].is_some_and(good) && self.nodes[n].core.as_ref().is_some_and(|core| marked(core) == 0)
        };
        same && clean((a, b)) && clean((b, a))
    }

    /// Two Primaries that are connected to each other, as both say, or one of them of both, are never right without
    /// `allow-two-primaries`.
    pub(crate) fn check_one_primary(&self, n: usize, peer: usize, word: &StateWord) -> Result<(), String> {
        let two = word.conn >= C::Connected && word.role == Role::Primary && word.peer == Role::Primary;
        if two && !self.setup.extras.two_primaries {
            return Err(format!("node {n} is Primary, and connected to node {peer}, which is, too: {word:?}"));
        }
        Ok(())
    }

    fn compare_copies(&mut self, v: usize) -> Result<(), String> {
        let size = self.with_disks().map(|n| self.nodes[n].volumes[v].size).min().expect("several nodes");
        let whole = sectors(0, size);
        for n in 0..self.nodes.len() {
            let core = self.nodes[n].core.as_ref().expect("settled");
            let differ = |peer| core.known_different(volume_nr(v), node_id(peer), whole) > 0;
            if self.peers(n).filter(|peer| self.setup.has_disk(*peer)).any(differ) {
                return Ok(());
            }
        }
        let rotten = self.nodes.iter().any(|n| !n.volumes[v].rotten.is_empty());
        if rotten && self.only_rot_differs(v, whole) {
            return Ok(());
        }
        let changed = if rotten { Changed::All } else { self.changed_since_compared(v, size) };
        let now = self.tick();
        let view = |n: usize| &self.nodes[n].volumes[v].view;
        let fullest = |n: &usize| self.peers(*n).all(|peer| view(*n).includes_all_of(view(peer)));
        let last = self.with_disks().last().expect("several nodes");
        let fuller = self.with_disks().find(fullest).unwrap_or(last);
        let inside = |part: &SectorRange| SectorRange { start: part.start, end: part.end.min(whole.end) };
        let mut parts: Vec<SectorRange> = match &changed {
            Changed::All => vec![whole],
            Changed::Parts(parts) => parts.iter().map(inside).collect(),
        };
        parts.retain(|part| part.start < part.end);
        parts.iter().try_for_each(|part| self.compare_part(v, *part))?;
        // Who gave in after a split brain is judged where the resync ends.
        let allowed = self.allowed_by(fuller, v, &parts, now);
        allowed.map_err(|e| format!("all copies lost a write: {e}"))?;
        if self.has_kernels() && !self.are_alike(v, whole) {
            // Each may go on to hold what it holds.
            return Ok(());
        }
        let view = &self.nodes[fuller].volumes[v].view;
        let (includes, len) = (view.includes.clone(), view.len());
        let clients = self.with_disks().count() < self.nodes.len();
        let copy = clients.then(|| self.nodes[fuller].volumes[v].data.data().clone());
        for (node, client) in self.nodes.iter_mut().zip(&self.setup.drawn.clients) {
            let Volume { view, data, compared, .. } = &mut node.volumes[v];
            // Who has no disk reads the others' copies.
            let data = copy.as_ref().filter(|_| *client).unwrap_or(data.data());
            view.includes.clone_from(&includes);
            match &changed {
                Changed::All => view.rebase_with(len, data),
                Changed::Parts(parts) => parts.iter().for_each(|part| view.rebase_part(*part, data)),
            }
            view.take_changed();
            *compared = size;
            let volume = &mut node.volumes[v];
            volume.alone.fill(false);
            (volume.worthless, volume.left_at) = (false, None);
            volume.served = false;
            volume.received.clear();
            volume.gave_in = false;
            volume.outlived = false;
            volume.doubtful.clear();
        }
        Ok(())
    }

    /// The copies differ, but only where a disk has rotten, and nobody has compared them yet.
    fn only_rot_differs(&self, v: usize, whole: SectorRange) -> bool {
        let copy = |n: usize| Payload::read(self.nodes[n].volumes[v].data.data(), whole);
        let differ = differences(&copy(0), &copy(1), whole.start);
        let rotten = &self.nodes[0].volumes[v].rotten;
        !self.verified && !differ.is_empty() && differ.iter().all(|range| !outside(*range, rotten))
    }

    /// After a verify: both nodes know of every block that differs.
    pub(crate) fn check_differences_are_known(&mut self, v: usize) {
        let size = self.nodes.iter().map(|n| n.volumes[v].size).min().expect("two nodes");
        let copy = |n: usize| Payload::read(self.nodes[n].volumes[v].data.data(), sectors(0, size));
        for range in differences(&copy(0), &copy(1), Sector(0)) {
            for n in 0..self.nodes.len() {
                let known = |core: &urbd_core::Resource| core.known_different(volume_nr(v), node_id(1 - n), range);
                if self.nodes[n].core.as_ref().is_some_and(|core| known(core) == 0) {
                    self.fail(format!(
                        "verify of volume {v} is over, and node {n} does not know that {range:?} differs"
                    ));
                }
            }
        }
    }

    /// Where copies or expectations have changed since the copies were last found to be equal: everywhere else they
    /// still are.
    fn changed_since_compared(&mut self, v: usize, size: u64) -> Changed {
        let mut changed = Changed::Parts(Vec::new());
        for node in &mut self.nodes {
            let volume = &mut node.volumes[v];
            changed = changed.and(volume.data.take_changed()).and(volume.view.take_changed());
            if volume.compared != size {
                changed = Changed::All;
            }
        }
        changed
    }

    /// Are all copies the same here?
    fn compare_part(&self, v: usize, part: SectorRange) -> Result<(), String> {
        let mut copies = self.with_disks();
        let first = copies.next().expect("several nodes");
        copies.try_for_each(|n| self.compare_two([first, n], v, part))
    }

    /// Are these two?
    fn compare_two(&self, nodes: [usize; 2], v: usize, part: SectorRange) -> Result<(), String> {
        let [a, b] = nodes.map(|n| Payload::read(self.nodes[n].volumes[v].data.data(), part));
        let mut differ = differences(&a, &b, part.start).into_iter();
        let Some(range) = differ.find(|range| !self.may_differ(nodes, v, *range)) else { return Ok(()) };
        let part = |p: &Payload| p.slice(range.start.0 - part.start.0, range.end.0 - range.start.0);
        let (a, b) = (part(&a), part(&b));
        Err(format!(
            "the copies of nodes {} and {} are UpToDate and clean, but differ in {range:?}: {a:?} and {b:?}",
            nodes[0], nodes[1]
        ))
    }

    /// Do these parts hold what this node's view expects of them?
    fn allowed_by(&self, n: usize, v: usize, parts: &[SectorRange], now: Moment) -> Result<(), String> {
        let volume = &self.nodes[n].volumes[v];
        let allowed = |part: &SectorRange| volume.view.allows(*part, &Payload::read(volume.data.data(), *part), now);
        parts.iter().try_for_each(allowed)
    }

    /// After everything has ended nothing may be left over.
    pub(crate) fn check_leftovers(&mut self) {
        for n in 0..self.nodes.len() {
            let node = &self.nodes[n];
            let (buffers, requests) = (node.buffers.count(Owner::Core), node.requests.len());
            if node.flights.is_empty() && node.inbox.is_empty() && buffers > 0 {
                self.fail(format!("node {n} never released {buffers} buffers"));
            } else if requests > 0 {
                let text = format!("node {n} never completed {:?}", node.requests.values().next());
                self.fail(text);
            } else if let Some(command) = node.commands.values().next() {
                let text = format!("node {n} never ended the command {command:?}");
                self.fail(text);
            }
        }
    }
}

/// Do these belong together? Pauses are told in packets of their own.
fn mirrored(a: C, b: C) -> bool {
    let kind = |conn| match conn {
        C::PausedSyncS => C::SyncSource,
        C::PausedSyncT => C::SyncTarget,
        other => other,
    };
    let pairs = [(C::Connected, C::Connected), (C::SyncSource, C::SyncTarget), (C::SyncTarget, C::SyncSource)];
    pairs.contains(&(kind(a), kind(b)))
}

/// Where two payloads of the same length differ, if they are of this place.
pub(crate) fn differences(a: &Payload, b: &Payload, place: Sector) -> Vec<SectorRange> {
    let (mut i, mut j) = (a.placed(place), b.placed(place));
    let (mut x, mut y) = (i.next(), j.next());
    let mut found = Vec::new();
    while let (Some((p, mine)), Some((q, theirs))) = (x, y) {
        if mine != theirs {
            found.push(SectorRange { start: p.start.max(q.start), end: p.end.min(q.end) });
        }
        if p.end <= q.end {
            x = i.next();
        }
        if q.end <= p.end {
            y = j.next();
        }
    }
    found
}
