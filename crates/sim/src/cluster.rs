//! The cluster: its nodes, its network, and the queue of everything that is going to happen.

use crate::checks::Watch;
use crate::clocks::Clock;
use crate::codec::Codec;
use crate::disk::Disk;
use crate::epochs::Epochs;
use crate::handlers::Answer;
use crate::metadata::Known;
use crate::net::Net;
use crate::oracle::{Moment, View, Written};
use crate::payload::{Buffers, Payload};
use crate::plan::{Plan, Setup, Step, VolumeSetup, bytes, node_id, others, volume_nr};
use crate::restless::Restless;
use crate::trace::Trace;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use units::{ByteLen, Duration, Instant, Rng, SectorRange, VolumeNr};
use urbd_core::decide::Handler;
use urbd_core::{
    BlockRequest, Command, CommandError, ConnectionConfig, DiskConfig, DiskDone, LinkDown, LinkUp, MetaDone,
    OnSuspendedOutdated, OpId, OpenedDisk, Openers, Part, RequestKind, Resource, ResourceConfig, Segments,
    VolumeConfig,
};
use wire::{AfterSplitBrain, Packet, Role, Socket, StateWord};

/// A run with more events has gone astray.
const MOST_EVENTS: u64 = 8_000_000;

/// Everything.
pub(crate) struct Cluster {
    pub(crate) setup: Setup,
    pub(crate) now: Instant,
    pub(crate) rng: Rng,
    pub(crate) nodes: Vec<Node>,
    pub(crate) net: Net,
    pub(crate) trace: Trace,
    pub(crate) failure: Option<String>,
    pub(crate) events: u64,
    pub(crate) packets: u64,
    /// When the last step of a scenario began.
    pub(crate) step_began: Instant,
    /// How often each reason was given.
    pub(crate) reached: BTreeMap<&'static str, u64>,
    /// What the cores said to whom it concerns, if it is kept.
    pub(crate) notices: Option<Vec<(usize, String)>>,
    /// Since when there are no faults any more.
    pub(crate) mended: Option<Instant>,
    /// The volume that a scenario's steps are about.
    pub(crate) steps_about: usize,
    pub(crate) watch: Option<Watch>,
    /// Counts everything that the oracle orders.
    pub(crate) moment: Moment,
    pub(crate) serial: u64,
    /// By node: writes acknowledged there, of all volumes.
    pub(crate) acknowledged: Vec<u64>,
    /// By volume and node: so many of the writes that were acknowledged there count for nothing, as a person, a policy
    /// or the protocol has let a copy without them win.
    pub(crate) given_up: Vec<Vec<u64>>,
    /// Who alone may be promoted, as cluster managers keep it for handlers that fence.
    pub(crate) only: Option<usize>,
    pub(crate) handlers: crate::handlers::Running,
    /// What has rotten on a disk is known to the nodes from now on.
    pub(crate) verified: bool,
    /// When what happens next: its number, for those at the same time, and its place in `scheduled`.
    queue: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    scheduled: Vec<Option<Event>>,
    /// Places in `scheduled` that are free.
    free: Vec<usize>,
    next_event: u64,
    pub(crate) restless: Restless,
    /// Why the operator may have to help.
    pub(crate) reasons: crate::help::Reasons,
}

/// Something that happens at its time.
#[derive(Debug)]
pub(crate) enum Event {
    Step(Step),
    /// A process takes a turn.
    Turn(usize, u32),
    Timer(usize, u32, Instant),
    /// A disk operation ends.
    Disk(usize, u64),
    /// Something reaches a process.
    Input(usize, u32, Input),
    /// A handler for fencing is done with what it does: node, its life, the call, what.
    Fence(usize, u32, u64, Answer),
    /// A stream delivers its next item: connection, from, data or control.
    Stream(u64, usize, usize),
    /// Both nodes of a pair, the lower one first, want to be connected.
    Meet([usize; 2]),
    /// One end learns that it is connected.
    Established(u64, usize),
    /// One stream has ended some time ago: the link is down.
    LastWords(u64, usize),
    /// A process that leaves has had its time.
    Leave(usize, u32),
}

/// What a process learns.
#[derive(Debug)]
pub(crate) enum Input {
    /// From which peer; and links are told apart by the number of the connection.
    LinkUp(usize, u64, LinkUp),
    LinkDown(usize, u64, LinkDown),
    Packet(usize, u64, Socket, VolumeNr, Packet, Payload),
    Disk(DiskDone),
    Meta(MetaDone),
    Opened(VolumeNr, OpenedDisk),
    Handler(u64, i32),
    Command(u64, Command),
    Request(BlockRequest),
    Openers(VolumeNr, Openers),
}

/// A machine with its disks, and the process on it.
pub(crate) struct Node {
    pub(crate) volumes: Vec<Volume>,
    pub(crate) core: Option<Resource>,
    /// Counts processes: what was meant for an older one is dropped.
    pub(crate) life: u32,
    pub(crate) paused: bool,
    pub(crate) clock: Clock,
    pub(crate) inbox: VecDeque<Input>,
    pub(crate) turn_scheduled: bool,
    pub(crate) timer: Option<Instant>,
    pub(crate) hasty_timers: u32,
    pub(crate) buffers: Buffers,
    pub(crate) flights: BTreeMap<u64, Flight>,
    pub(crate) requests: BTreeMap<u64, Request>,
    /// Commands that have not ended.
    pub(crate) commands: BTreeMap<u64, Command>,
    pub(crate) dies_after: Option<(u32, bool)>,
    /// By peer: of the present link, once its dialect is agreed.
    pub(crate) codecs: Vec<Option<Codec>>,
    /// By peer.
    pub(crate) epochs: Vec<Epochs>,
    /// How the last command ended.
    pub(crate) last_result: Option<(Instant, Result<(), CommandError>)>,
    /// The applications want their devices open.
    pub(crate) wants_open: bool,
    /// Disks that lie in a drawer, with what is known of them.
    pub(crate) taken_out: Vec<Volume>,
    /// The process makes room for the next one.
    pub(crate) leaving: Option<crate::coming::Leaving>,
    /// What the last process has left to the next one.
    pub(crate) inherited: Option<crate::coming::Inheritance>,
}

/// A volume on a node.
pub(crate) struct Volume {
    pub(crate) data: Disk,
    pub(crate) meta: Option<Disk>,
    /// Of the metadata.
    pub(crate) known: Known,
    pub(crate) view: View,
    pub(crate) arrived: crate::epochs::Arrived,
    /// By peer: what it was when this node last lost a connection to that, and which one.
    pub(crate) parted: Vec<Option<(u64, View)>>,
    /// The node's role and disk; what it says of a peer is in `towards`.
    pub(crate) word: Option<StateWord>,
    /// By peer.
    pub(crate) towards: Vec<Option<StateWord>>,
    /// The disk is not what the view says: it was given up while the node went on, including so much.
    pub(crate) left_at: Option<Vec<u64>>,
    /// By peer: the node was Primary without its disk since both were last equal.
    pub(crate) alone: Vec<bool>,
    /// The core said that a new generation began, which is not on the disk yet.
    pub(crate) generation_began: bool,
    /// It began a generation, as its Primary had lost its disk, since the copies were last compared.
    pub(crate) served: bool,
    /// The operator gave this copy up.
    pub(crate) worthless: bool,
    /// The operator has said (by a promotion with force and the like) that this copy counts, whatever it holds.
    pub(crate) declared: bool,
    /// The power was lost, or both of two Primaries, while these acknowledged writes were not flushed: nobody may rely
    /// on them.
    pub(crate) doubtful: Vec<SectorRange>,
    /// These have changed by themselves.
    pub(crate) rotten: Vec<SectorRange>,
    /// Since the last look at the process: a resync from this peer ended here with all blocks, and a disk without
    /// consistent data was attached.
    pub(crate) synced: Option<usize>,
    /// The last resync that ended here: from which peer, and when.
    pub(crate) copied: Option<(usize, Moment)>,
    pub(crate) came_inconsistent: bool,
    /// The volume's size when both copies were last found to be equal; 0: never.
    pub(crate) compared: u64,
    /// Front end: size and writability.
    pub(crate) size: u64,
    pub(crate) writable: bool,
    pub(crate) open: bool,
    /// An open that waits for the last operations of a former one.
    pub(crate) opening: bool,
    /// Acknowledged and not known to be flushed.
    pub(crate) unflushed: Vec<(Moment, SectorRange, usize)>,
    /// Writes of the other node that were acknowledged when this one had received them (protocol B).
    pub(crate) received: Vec<crate::promises::Received>,
    /// After a split brain somebody, or a policy, has chosen whose writes are lost, and no resync has ended since.
    pub(crate) gave_in: bool,
    /// It had crashed as Primary, and the node that survived that is the source (`promises::is_outlived`).
    pub(crate) outlived: bool,
    /// Why requests may fail.
    pub(crate) reach: crate::errors::Reach,
}

/// A disk operation under way.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) volume: usize,
    pub(crate) op: OpId,
    pub(crate) work: Work,
    /// Sectors of data that it changes.
    pub(crate) changes: Option<SectorRange>,
    /// What it writes, and whether it is durable then.
    pub(crate) written: Option<(Payload, bool)>,
    /// The disk was closed: nobody is told.
    pub(crate) orphan: bool,
    /// Flushes: what it covers, on data and metadata.
    pub(crate) marks: (u64, u64),
}

#[derive(Clone, Debug)]
pub(crate) enum Work {
    Read(SectorRange, Segments),
    /// Shall it look for zeroes?
    ReadNew(SectorRange, bool),
    Write(units::Sector, Payload, bool),
    Zero(SectorRange, bool),
    /// What this disk cannot do.
    NotSupported,
    Flush,
    /// It was carried out when it was submitted.
    Done,
    MetaWrite {
        at: u64,
        bytes: Box<[u8]>,
        flush: bool,
        fua: bool,
    },
    MetaRead {
        at: u64,
        len: u64,
    },
}

/// An application's request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) volume: usize,
    pub(crate) kind: RequestKind,
    pub(crate) written: Written,
    pub(crate) data: Segments,
    /// By peer: the connection by which it was sent there, and in which epoch.
    pub(crate) sent: Vec<Option<(u64, u64)>>,
    /// By peer: was it told that it lacks it?
    pub(crate) told: Vec<bool>,
    /// The node's role when it came.
    pub(crate) role: Role,
}

impl Cluster {
    pub(crate) fn new(plan: &Plan, trace: Trace) -> Cluster {
        let setup = plan.setup.clone();
        let nodes: Vec<Node> = (0..setup.nodes()).map(|n| Node::new(&setup, n)).collect();
        let mut cluster = Cluster {
            now: Instant(0),
            rng: Rng::new(plan.seed ^ (plan.luck << 40)),
            net: Net::new(nodes.len()),
            trace,
            failure: None,
            events: 0,
            packets: 0,
            step_began: Instant(0),
            reached: BTreeMap::new(),
            notices: None,
            mended: None,
            steps_about: 0,
            watch: None,
            moment: 2,
            serial: 0,
            acknowledged: vec![0; nodes.len()],
            given_up: vec![vec![0; nodes.len()]; setup.volumes.len()],
            only: None,
            handlers: crate::handlers::Running::default(),
            verified: false,
            queue: BinaryHeap::new(),
            scheduled: Vec::new(),
            free: Vec::new(),
            next_event: 0,
            restless: Restless::default(),
            reasons: crate::help::Reasons::new(nodes.len()),
            nodes,
            setup,
        };
        for planned in &plan.steps {
            cluster.at(planned.at, Event::Step(planned.step.clone()));
        }
        cluster
    }

    pub(crate) fn at(&mut self, time: Instant, event: Event) {
        self.next_event += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.scheduled.push(None);
            self.scheduled.len() - 1
        });
        self.scheduled[place] = Some(event);
        self.queue.push(Reverse((time, self.next_event, place)));
    }

    /// After a random time of up to `most`.
    pub(crate) fn after(&mut self, most: Duration, event: Event) {
        let delay = self.delay(most);
        self.at(self.now + delay, event);
    }

    pub(crate) fn delay(&mut self, most: Duration) -> Duration {
        if self.setup.drawn.in_step {
            return most;
        }
        let most = if self.rng.chance(1, 50) { most.0 * 5 } else { most.0 };
        Duration(self.rng.below(most.max(1)))
    }

    /// Lets things happen until `end`, or a failure.
    pub(crate) fn run_until(&mut self, end: Instant) {
        while let Some(Reverse((time, _, place))) = self.queue.peek().copied() {
            if time > end || self.failure.is_some() {
                break;
            }
            self.queue.pop();
            let event = self.scheduled[place].take().expect("scheduled");
            self.free.push(place);
            self.now = time;
            self.events += 1;
            self.trace.mix(time.0);
            self.note_event(&event);
            self.happen(event);
            self.note_watched();
            if self.events == MOST_EVENTS {
                self.fail(format!("the run has had {MOST_EVENTS} events"));
            }
        }
        self.now = self.now.max(end);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Step(step) => {
                self.note_wish();
                self.trace.note(self.now, || format!("* {step:?}"));
                self.step(step);
            }
            Event::Turn(n, life) => {
                if self.nodes[n].life == life {
                    self.turn(n);
                }
            }
            Event::Timer(n, life, at) => {
                if self.nodes[n].life == life && self.nodes[n].timer == Some(at) {
                    self.nodes[n].timer = None;
                    self.wake(n);
                }
            }
            Event::Disk(n, serial) => self.disk_done(n, serial),
            Event::Input(n, life, input) => {
                if self.nodes[n].life == life {
                    self.nodes[n].inbox.push_back(input);
                    self.wake(n);
                }
            }
            Event::Stream(number, from, which) => self.deliver(number, from, which),
            Event::Fence(n, life, id, answer) => self.fence(n, life, id, answer),
            Event::Meet(nodes) => self.meet(nodes),
            Event::Established(number, n) => self.established(number, n),
            Event::LastWords(number, n) => self.link_ended(number, n),
            Event::Leave(n, life) => {
                if self.nodes[n].life == life {
                    self.go_on_leaving(n);
                }
            }
        }
    }

    /// The process will take a turn soon.
    pub(crate) fn wake(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if !node.turn_scheduled && !node.paused && node.core.is_some() {
            node.turn_scheduled = true;
            let life = node.life;
            self.after(self.setup.latency.2, Event::Turn(n, life));
        }
    }

    /// Hands something to a process after a random time of up to `most`.
    pub(crate) fn input(&mut self, n: usize, most: Duration, input: Input) {
        let life = self.nodes[n].life;
        self.after(most, Event::Input(n, life, input));
    }

    pub(crate) fn fail(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.trace.note(self.now, || format!("FAILED: {text}"));
        self.failure.get_or_insert(text);
    }

    /// All nodes but this one.
    pub(crate) fn peers(&self, n: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        others(n, self.nodes.len())
    }

    pub(crate) fn tick(&mut self) -> Moment {
        self.moment += 2;
        self.moment
    }
}

impl Node {
    fn new(setup: &Setup, n: usize) -> Node {
        let volume = |v: &VolumeSetup| Volume::new(v, n, setup.same_content);
        Node {
            volumes: setup.volumes.iter().map(volume).collect(),
            core: None,
            life: 0,
            paused: false,
            clock: Clock::default(),
            inbox: VecDeque::new(),
            turn_scheduled: false,
            timer: None,
            hasty_timers: 0,
            buffers: Buffers::default(),
            flights: BTreeMap::new(),
            requests: BTreeMap::new(),
            commands: BTreeMap::new(),
            dies_after: None,
            codecs: vec![None; setup.nodes()],
            epochs: vec![Epochs::default(); setup.nodes()],
            last_result: None,
            wants_open: false,
            taken_out: Vec::new(),
            leaving: None,
            inherited: None,
        }
    }
}

impl Volume {
    pub(crate) fn new(setup: &VolumeSetup, n: usize, same: bool) -> Volume {
        let (sectors, nodes) = (setup.sectors[n], setup.sectors.len());
        // 3 to 7 say what became of a sector.
        let garbage = match n {
            _ if same => 1,
            0 | 1 => 1 + n as u32,
            _ => 6 + n as u32,
        };
        let layout = setup.layout(n);
        let steps = setup.create_md(n);
        let base = [layout.superblock_at(), layout.al_at(), layout.bitmap_at()].into_iter().min().expect("three").0;
        let disk = |base, end, steps: &[meta::Step]| Disk::new(sectors, garbage, base, end, steps);
        let (data, meta) = if setup.external {
            (disk(0, 0, &[]), Some(disk(base, layout.device().0, &steps)))
        } else {
            (disk(base, layout.device().0, &steps), None)
        };
        Volume {
            data,
            meta,
            known: Known::default(),
            arrived: crate::epochs::Arrived::default(),
            view: View::new(sectors, garbage, nodes),
            parted: vec![None; nodes],
            word: None,
            towards: vec![None; nodes],
            left_at: None,
            alone: vec![false; nodes],
            generation_began: false,
            served: false,
            worthless: false,
            declared: false,
            doubtful: Vec::new(),
            rotten: Vec::new(),
            synced: None,
            copied: None,
            came_inconsistent: false,
            compared: 0,
            size: 0,
            writable: false,
            open: false,
            opening: false,
            unflushed: Vec::new(),
            received: Vec::new(),
            gave_in: false,
            outlived: false,
            reach: crate::errors::Reach::new(nodes),
        }
    }

    /// Nothing is expected of the copy but what it holds, or where a disk has rotten, what was expected before: the
    /// other copy may have that still.
    pub(crate) fn take_as_it_is(&mut self, now: Moment) {
        let rotten: Vec<_> = self.rotten.iter().flat_map(|range| self.view.expected(*range)).collect();
        self.view.rebase(self.data.data());
        rotten.into_iter().for_each(|(range, content)| self.view.may_hold(range, content, now));
    }

    /// Nobody may rely on what was acknowledged and is not known to be flushed.
    pub(crate) fn doubt_unflushed(&mut self) {
        self.doubtful.extend(self.unflushed.drain(..).map(|(_, range, _)| range));
    }

    /// What the copy holds now is as good as what is expected of it.
    pub(crate) fn may_hold_what_it_holds(&mut self, now: Moment) {
        for (range, content) in self.data.data().all() {
            self.view.may_hold(range, content.id, now);
        }
    }

    /// The disk with the metadata.
    pub(crate) fn meta_disk(&mut self) -> &mut Disk {
        self.meta.as_mut().unwrap_or(&mut self.data)
    }
}

impl VolumeSetup {
    pub(crate) fn layout(&self, n: usize) -> meta::Layout {
        let (kind, device) = if self.external {
            (meta::MetaDisk::FlexExternal, ByteLen(2 << 20))
        } else {
            (meta::MetaDisk::Internal, bytes(self.sectors[n]))
        };
        let (stripes, blocks) = self.log;
        let log = meta::AlShape::new(stripes, blocks).expect("a possible ring");
        let geometry = meta::Geometry::new(self.slots[n].max(1), 4096, log).expect("a possible geometry");
        meta::Layout::new(kind, geometry, device).expect("large enough")
    }

    /// Sectors of data that a node has room for.
    pub(crate) fn capacity(&self, n: usize) -> u64 {
        if self.external { self.sectors[n] } else { self.layout(n).capacity().0 }
    }

    /// What makes fresh metadata on a node.
    pub(crate) fn create_md(&self, n: usize) -> Vec<meta::Step> {
        let version = if self.slots[n] == 0 { meta::Version::V08 } else { meta::Version::V09 };
        let planned = meta::create::plan(version, &self.layout(n), &meta::create::CreateOptions::default());
        planned.expect("the layout is good").1
    }
}

/// The configuration of a node.
pub(crate) fn configuration(setup: &Setup, n: usize) -> ResourceConfig {
    let disk = |i: usize, v: &VolumeSetup| DiskConfig {
        size: setup.limit(i),
        meta: if v.external { meta::MetaDisk::FlexExternal } else { meta::MetaDisk::Internal },
        on_io_error: setup.on_io_error,
        fencing: setup.fencing,
        disk_timeout: setup.disk_timeout,
        ..setup.drawn.nodes[n].disk(DiskConfig::default())
    };
    let volumes = setup.volumes.iter().enumerate().filter(|(i, _)| setup.has(n, *i));
    let with_disk = |i, v| setup.has_disk(n).then(|| disk(i, v));
    let volumes = volumes.map(|(i, v)| VolumeConfig { volume: volume_nr(i), disk: with_disk(i, v) }).collect();
    ResourceConfig {
        name: "r0".to_owned(),
        node: node_id(n),
        on_no_data: setup.on_no_data,
        on_suspended_outdated: OnSuspendedOutdated::default(),
        quorum: *setup.extras.quorum(),
        handlers: Handler::WAITED_FOR.into_iter().filter(|handler| is_configured(setup, *handler)).collect(),
        volumes,
        connections: others(n, setup.nodes())
            .filter(|peer| setup.knows(n, *peer))
            .map(|peer| connection(setup, n, peer))
            .collect(),
    }
}

fn is_configured(setup: &Setup, handler: Handler) -> bool {
    match handler {
        Handler::FencePeer => setup.fencing != urbd_core::Fencing::DontCare,
        Handler::BeforeResyncTarget => !setup.before_target.is_empty() || setup.extras.slow_resyncs,
        _ => !setup.before_source.is_empty() || setup.extras.slow_resyncs,
    }
}

fn connection(setup: &Setup, n: usize, peer: usize) -> ConnectionConfig {
    let address = "127.0.0.1:7789".parse().expect("an address");
    let mut c = ConnectionConfig::new(node_id(peer), "peer", (address, address));
    c.protocol = setup.protocol_between(n, peer);
    c.max_epoch_size = setup.max_epoch_size;
    c.ko_count = setup.ko_count;
    c.max_version = setup.versions[n];
    c.csums = setup.digests.then(|| "sha1".to_owned());
    c.verify = setup.digests.then(|| "sha1".to_owned());
    c.after_sb = setup.after_split_brain;
    if n > peer {
        // Who loses is the same node in both configurations.
        c.after_sb.none = match c.after_sb.none {
            AfterSplitBrain::DiscardLocal => AfterSplitBrain::DiscardRemote,
            AfterSplitBrain::DiscardRemote => AfterSplitBrain::DiscardLocal,
            other => other,
        };
    }
    c.two_primaries = setup.extras.two_primaries;
    if !setup.has_disk(peer) {
        c.part = Part::Tiebreaker;
    }
    setup.drawn.connection(n, &mut c);
    c
}

impl Volume {
    /// Writes metadata, after a flush of what is covered by these marks.
    pub(crate) fn write_meta(&mut self, at: u64, bytes: &[u8], flush: Option<(u64, u64)>, durable: bool) {
        if let Some((data, meta)) = flush {
            self.data.flush(data);
            self.arrived.note_flushed(data);
            if let Some(disk) = &mut self.meta {
                disk.flush(meta);
            }
        }
        self.meta_disk().write_meta(at, bytes, durable);
    }
}
