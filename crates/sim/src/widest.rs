//! What no seed below 5,800,000 has: three nodes with a protocol for each connection, devices that grow while nodes are
//! away, options that stay changed when a node starts anew, offline tools before a start, disks that discard otherwise,
//! and counters that are about to wrap.

use crate::cluster::{Cluster, configuration};
use crate::drawn::NodeOptions;
use crate::further;
use crate::plan::{Setup, Step, pick, volume_nr};
use meta::{DeviceFlags, Superblock, apply_al};
use units::{ByteLen, Duration, Instant, Rng, Sector};
use urbd_core::{Command, Protocol};

/// The first seed of the range.
pub(crate) const WIDEST: u64 = 5_800_000;

/// What only this range draws.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Widest {
    /// Connections whose protocol is another one.
    pub protocols: Vec<([usize; 2], Protocol)>,
    /// `size` of each volume in sectors, until it grows.
    pub limits: Vec<Option<u64>>,
    /// Before so many of two starts `apply-al` runs, as `drbdadm up` does.
    pub offline_tools: u64,
}

/// Makes the cluster of this seed have what it draws.
pub(crate) fn draw(seed: u64, setup: &mut Setup) {
    let mut rng = further::source(seed, *b"wide");
    further::discards(&mut rng, setup);
    further::integrity(&mut rng, setup);
    further::counters(&mut rng, setup);
    let nodes = setup.nodes();
    let slots: Vec<u32> = (0..nodes).map(|_| *pick(&mut rng, &[2, 3, 4, 7, 31])).collect();
    if rng.chance(1, 2) {
        setup.volumes.iter_mut().for_each(|volume| volume.slots.clone_from(&slots));
    }
    if setup.volumes.len() == 1 && rng.chance(1, 2) {
        setup.volumes.push(setup.volumes[0].clone());
    }
    let mut wide = Widest { offline_tools: rng.below(3), ..Widest::default() };
    if rng.chance(1, 3) {
        for a in 0..nodes {
            for b in a + 1..nodes {
                wide.protocols.push(([a, b], *pick(&mut rng, &[Protocol::A, Protocol::B, Protocol::C])));
            }
        }
    }
    let grows = rng.chance(1, 3);
    let limit = |of: u64| Some(of / 16 * 8).filter(|_| grows);
    wide.limits = setup.volumes.iter().map(|volume| limit(volume.smallest())).collect();
    setup.drawn.widest = wide;
}

/// Devices grow, and options change, while all goes on.
pub(crate) fn add_steps(seed: u64, setup: &Setup, steps: &mut Vec<(Instant, Step)>) {
    let mut rng = further::source(seed, *b"grow");
    let began = Instant(3_600_000_000);
    let span = steps.last().map_or(began, |(at, _)| (*at).max(began)).since(began).0.max(1_000_000);
    let at = |rng: &mut Rng| began + Duration(rng.below(span));
    let node = |rng: &mut Rng| rng.below(setup.nodes() as u64) as usize;
    if setup.drawn.widest.limits.iter().any(Option::is_some) {
        for _ in 0..1 + rng.below(3) {
            steps.push((at(&mut rng), Step::Grow(node(&mut rng))));
        }
    }
    for _ in 0..rng.below(4) {
        let n = node(&mut rng);
        let before = setup.drawn.nodes[n].clone();
        let now = NodeOptions::draw(&mut rng, setup);
        let options = NodeOptions {
            discards: before.discards,
            true_to_discards: before.true_to_discards,
            counters: before.counters,
            al_extents: before.al_extents,
            ..now
        };
        steps.push((at(&mut rng), Step::Adjust(n, Box::new(options))));
    }
    steps.sort_by_key(|(at, _)| *at);
}

impl Setup {
    /// `protocol` of a connection.
    pub(crate) fn protocol_between(&self, a: usize, b: usize) -> Protocol {
        let pair = [a.min(b), a.max(b)];
        let other = self.drawn.widest.protocols.iter().find(|(of, _)| *of == pair);
        other.map_or(self.protocol, |(_, protocol)| *protocol)
    }

    /// Is any connection's protocol other than C?
    pub(crate) fn is_asynchronous(&self) -> bool {
        let mut others = self.drawn.widest.protocols.iter().map(|(_, protocol)| *protocol);
        self.protocol != Protocol::C || others.any(|protocol| protocol != Protocol::C)
    }

    /// `size` of a volume.
    pub(crate) fn limit(&self, volume: usize) -> Option<ByteLen> {
        let limit = self.drawn.widest.limits.get(volume).copied().flatten();
        limit.map(|sectors| Sector(sectors).to_bytes())
    }
}

impl Cluster {
    /// The options of a node become these.
    pub(crate) fn adjust(&mut self, n: usize, options: NodeOptions) {
        self.setup.drawn.nodes[n] = options;
        self.take_over_options(n);
    }

    /// The devices may be as large as the disks, as all nodes are told that run, and then one of them is told to grow.
    pub(crate) fn grow(&mut self, n: usize) {
        self.setup.drawn.widest.limits.fill(None);
        (0..self.nodes.len()).for_each(|n| self.take_over_options(n));
        for v in 0..self.setup.volumes.len() {
            self.command(n, Command::Resize { volume: volume_nr(v), flags: wire::ResizeFlags::default() });
        }
    }

    fn take_over_options(&mut self, n: usize) {
        if self.nodes[n].core.is_some() {
            let config = configuration(&self.setup, n);
            self.command(n, Command::ChangeOptions(Box::new(config)));
        }
    }

    /// `apply-al` on the disks of a node that does not run.
    pub(crate) fn apply_al(&mut self, n: usize) {
        for v in 0..self.setup.volumes.len() {
            let layout = self.setup.volumes[v].layout(n);
            let disk = self.nodes[n].volumes[v].meta_disk();
            let bytes = disk.read_meta(layout.superblock_at().0, meta::BLOCK_LEN as u64);
            let parsed = bytes.and_then(|bytes| Superblock::parse(bytes.first_chunk()?).ok());
            let Some(superblock) = parsed.filter(|s| !s.flags.contains(DeviceFlags::AL_DISABLED)) else { continue };
            let found = meta::Found { superblock, layout, truncated_from: None };
            let ring = disk.read_meta(layout.al_at().0, layout.geometry().al().bytes().0);
            let Some(Ok(plan)) = ring.map(|ring| apply_al::decide(&found, &ring)) else { continue };
            let mut steps = Vec::new();
            for page in plan.pages() {
                let at = layout.bitmap_page_at(page);
                let block = disk.read_meta(at.0, meta::BLOCK_LEN as u64);
                let Some(mut block) = block.and_then(|b| b.first_chunk().copied()) else { continue };
                if plan.mark(page, &mut block) > 0 {
                    steps.push(meta::Step::Write { at, bytes: block.to_vec() });
                }
            }
            steps.extend(plan.finish());
            disk.create_meta(&steps);
        }
    }
}
