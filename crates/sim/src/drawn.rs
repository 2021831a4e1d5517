//! Options that users may set, drawn for seeds of a range of their own, from a random source of their own: what older
//! seeds draw stays as it is. The ends of each option's documented range (`docs/spec/config-and-cli.md` 2) are as
//! likely as what lies between them.

use crate::coming::Coming;
use crate::plan::{Setup, Step, node_id, pick};
use crate::widest::Widest;
use units::{Duration, Instant, Rng};
use urbd_core::decide::private::Decides;
use urbd_core::{
    Command, ConnectionConfig, Counters, DiskConfig, OnCongestion, Protocol, ResourceConfig, ResyncConfig,
    ResyncController, RrConflict,
};

/// The first seed of the range.
pub(crate) const DRAWN: u64 = 1_000_000;

/// What is drawn for a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drawn {
    /// By node: most options need not be alike.
    pub nodes: Vec<NodeOptions>,
    /// Bytes per second of each stream of the network; 0 = no limit.
    pub bandwidth: u64,
    /// `on-congestion`, for both nodes.
    pub on_congestion: OnCongestion,
    /// `rr-conflict`, for both nodes.
    pub rr_conflict: RrConflict,
    /// `always-asbp`, for both nodes.
    pub always_asbp: bool,
    /// `data-integrity-alg` is set, on both nodes.
    pub integrity: bool,
    /// Everything takes exactly as long as `latency` says: how often something went to and fro can be told by the time.
    pub in_step: bool,
    /// The network damages one in so many payloads that have a digest; 0: none.
    pub damage: u64,
    /// By node: what an operation of its disk, and a packet that it sends, may take longer than `latency` says.
    pub slower: Vec<(Duration, Duration)>,
    /// `[from][to]`: what a packet on this link may take longer than that.
    pub far: Vec<Vec<Duration>>,
    /// What seeds of the last range draw besides.
    pub widest: Widest,
    /// What seeds with volumes that come and go have besides.
    pub coming: Coming,
    /// By node: by which rules it decides.
    pub decides: Vec<Decides>,
    /// By node: is it not to have a disk?
    pub clients: Vec<bool>,
}

/// What may be unlike on the nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeOptions {
    /// `al-extents`.
    pub al_extents: u32,
    /// `al-updates`.
    pub al_updates: bool,
    /// `disk-flushes` and `disk-drain`; off only on disks without a volatile cache.
    pub flushes: bool,
    /// `discard-zeroes-if-aligned`.
    pub zeroes_if_aligned: bool,
    /// Does the disk discard, and do discarded sectors read as zeroes?
    pub discards: (bool, bool),
    /// And does it do just that? If not, all discarded sectors read as zeroes, whatever it has said.
    pub true_to_discards: bool,
    /// Where counters begin.
    pub counters: Counters,
    /// The resync controllers' options.
    pub resync: ResyncConfig,
    /// `use-rle`.
    pub use_rle: bool,
    /// `csums-after-crash-only`.
    pub csums_after_crash_only: bool,
    /// `congestion-fill` in sectors.
    pub congestion_fill: u64,
    /// `congestion-extents`.
    pub congestion_extents: u32,
    /// `max-buffers`.
    pub max_buffers: u32,
    /// `timeout`, `ping-int`, `ping-timeout`, `connect-int`.
    pub times: [Duration; 4],
}

impl Default for NodeOptions {
    fn default() -> NodeOptions {
        let address = "127.0.0.1:7789".parse().expect("an address");
        let c = ConnectionConfig::new(node_id(0), "peer", (address, address));
        NodeOptions {
            // A small log shows more.
            al_extents: 67,
            al_updates: true,
            flushes: true,
            zeroes_if_aligned: true,
            discards: (true, true),
            true_to_discards: false,
            counters: Counters::default(),
            resync: ResyncConfig::default(),
            use_rle: c.use_rle,
            csums_after_crash_only: c.csums_after_crash_only,
            congestion_fill: c.congestion_fill,
            congestion_extents: c.congestion_extents,
            max_buffers: c.max_buffers,
            times: [c.timeout, c.ping_int, c.ping_timeout, c.connect_int],
        }
    }
}

impl Drawn {
    /// Everything as it is by default.
    pub(crate) fn plain(nodes: usize) -> Drawn {
        Drawn {
            nodes: vec![NodeOptions::default(); nodes],
            bandwidth: 0,
            on_congestion: OnCongestion::default(),
            rr_conflict: RrConflict::default(),
            always_asbp: false,
            integrity: false,
            in_step: false,
            damage: 0,
            slower: vec![(Duration(0), Duration(0)); nodes],
            far: vec![vec![Duration(0); nodes]; nodes],
            widest: Widest::default(),
            coming: Coming::default(),
            decides: vec![Decides::default(); nodes],
            clients: vec![false; nodes],
        }
    }

    /// Draws what this seed's cluster has, and makes the rest of it suit.
    pub(crate) fn draw(seed: u64, setup: &mut Setup) {
        if seed < DRAWN {
            return;
        }
        let mut rng = Rng::new(seed ^ 0x6f70_7469);
        let mut drawn = Drawn {
            nodes: setup.versions.iter().map(|_| NodeOptions::draw(&mut rng, setup)).collect(),
            bandwidth: *pick(&mut rng, &[0, 0, 100_000, 2_000_000, 50_000_000]),
            on_congestion: OnCongestion::Block,
            rr_conflict: *pick(
                &mut rng,
                &[RrConflict::Disconnect, RrConflict::Violently, RrConflict::CallPriLost, RrConflict::RetryConnect],
            ),
            always_asbp: rng.chance(1, 4),
            ..setup.drawn.clone()
        };
        if rng.chance(1, 4) && !setup.extras.two_primaries {
            setup.protocol = Protocol::A;
            drawn.on_congestion = if rng.chance(3, 4) { OnCongestion::PullAhead } else { OnCongestion::Disconnect };
            drawn.bandwidth = *pick(&mut rng, &[0, 100_000, 2_000_000]);
        }
        for volume in &mut setup.volumes {
            if rng.chance(1, 3) {
                // Devices whose sizes are no multiple of 4 KiB.
                volume.sectors.iter_mut().for_each(|sectors| *sectors += rng.below(8));
            }
            volume.log = *pick(&mut rng, &[(1, 8), (1, 8), (4, 4), (2, 32), (8, 16)]);
        }
        setup.drawn = drawn;
    }
}

impl NodeOptions {
    pub(crate) fn draw(rng: &mut Rng, setup: &Setup) -> NodeOptions {
        let plain = NodeOptions::default();
        let seconds = |rng: &mut Rng, of: &[u64]| Duration::from_millis(*pick(rng, of));
        // Most options are as they are by default: a few at a time show what each does.
        let some = |rng: &mut Rng| rng.chance(1, 3);
        NodeOptions {
            al_extents: if some(rng) { *pick(rng, &[67, 68, 1237, 6433, 65_534]) } else { plain.al_extents },
            al_updates: !some(rng),
            flushes: !(setup.write_through && some(rng)),
            zeroes_if_aligned: !some(rng),
            discards: if some(rng) {
                *pick(rng, &[(false, false), (true, false), (true, true)])
            } else {
                plain.discards
            },
            true_to_discards: false,
            counters: Counters::default(),
            resync: if some(rng) { resync(rng) } else { plain.resync },
            use_rle: !some(rng),
            csums_after_crash_only: some(rng),
            congestion_fill: *pick(rng, &[0, 1, 20, 200, 2048]),
            congestion_extents: *pick(rng, &[67, 1237, 65_534]),
            max_buffers: if some(rng) { *pick(rng, &[32, 63, 64, 2048, 131_072]) } else { plain.max_buffers },
            times: if some(rng) {
                [
                    seconds(rng, &[1000, 6000, 60_000]),
                    seconds(rng, &[1000, 10_000, 120_000]),
                    seconds(rng, &[100, 500, 30_000]),
                    seconds(rng, &[1000, 10_000, 120_000]),
                ]
            } else {
                plain.times
            },
        }
    }

    /// This node's disk options by these.
    pub(crate) fn disk(&self, disk: DiskConfig) -> DiskConfig {
        DiskConfig {
            al_extents: self.al_extents,
            al_updates: self.al_updates,
            disk_flushes: self.flushes,
            disk_drain: self.flushes,
            discard_zeroes_if_aligned: self.zeroes_if_aligned,
            resync: self.resync.clone(),
            ..disk
        }
    }
}

impl Drawn {
    /// A connection's options by these.
    pub(crate) fn connection(&self, n: usize, c: &mut ConnectionConfig) {
        let own = &self.nodes[n];
        c.on_congestion = self.on_congestion;
        c.rr_conflict = self.rr_conflict;
        c.always_asbp = self.always_asbp;
        c.integrity = self.integrity.then(|| "sha1".to_owned());
        c.use_rle = own.use_rle;
        c.csums_after_crash_only = own.csums_after_crash_only;
        c.congestion_fill = own.congestion_fill;
        c.congestion_extents = own.congestion_extents;
        c.max_buffers = own.max_buffers;
        [c.timeout, c.ping_int, c.ping_timeout, c.connect_int] = own.times;
        // What two kernels make of each other is not what is tried here.
        let beside = self.decides[c.peer.index()];
        c.decides = if beside == Decides::AsUrbd { self.decides[n] } else { Decides::AsUrbd };
    }
}

fn resync(rng: &mut Rng) -> ResyncConfig {
    ResyncConfig {
        rate: *pick(rng, &[1, 250, 100_000, 8_388_608]),
        plan_ahead: *pick(rng, &[0, 1, 20, 300]),
        delay_target: *pick(rng, &[1, 10, 100]),
        fill_target: *pick(rng, &[0, 1, 100, 1_048_576]),
        max_rate: *pick(rng, &[1000, 102_400, 4_194_304]),
        min_rate: *pick(rng, &[0, 250, 4_194_304]),
        controller: *pick(rng, &[ResyncController::Adaptive, ResyncController::Drbd, ResyncController::Fixed]),
        discard_granularity: *pick(rng, &[0, 4096, 65_536, 1_048_576]),
        ..ResyncConfig::default()
    }
}

/// `adjust` while all goes on: some node's options become others. Those of the disk, which may change at any time.
pub(crate) fn add_adjusts(seed: u64, setup: &Setup, steps: &mut Vec<(Instant, Step)>) {
    if seed < DRAWN {
        return;
    }
    let mut rng = Rng::new(seed ^ 0x6164_6a75);
    let began = Instant(2_400_000_000);
    let span = steps.last().map_or(began, |(at, _)| (*at).max(began)).since(began).0.max(1_000_000);
    for _ in 0..rng.below(4) {
        let (at, n) = (began + Duration(rng.below(span)), rng.below(setup.nodes() as u64) as usize);
        let mut other = setup.clone();
        let before = setup.drawn.nodes[n].clone();
        let now = NodeOptions::draw(&mut rng, setup);
        other.drawn.nodes[n] = NodeOptions {
            discards: before.discards,
            true_to_discards: before.true_to_discards,
            counters: before.counters,
            al_extents: before.al_extents,
            ..now
        };
        let config: ResourceConfig = crate::cluster::configuration(&other, n);
        steps.push((at, Step::Command(n, Command::ChangeOptions(Box::new(config)))));
    }
    steps.sort_by_key(|(at, _)| *at);
}
