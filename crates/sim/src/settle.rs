//! After the faults: everything is mended, a patient operator does what is sensible, and the cluster must recover.

use crate::cluster::{Cluster, Volume};
use crate::disk::DiskFaults;
use crate::extras;
use crate::help::Help;
use crate::plan::{node_id, volume_nr};
use units::Duration;
use urbd_core::{Command, QuorumConfig, RequestKind};
use wire::{ConnState, DiskState, Role, StateWord};

/// The operator looks again after this long.
const ROUND: Duration = Duration::from_secs(5);
/// So many rounds are enough for anything.
const ROUNDS: u32 = 60;
/// So many requests in a round of [`Cluster::go_on`].
const BUSY: u32 = 500;
/// So many rounds of it at most.
const MOST_BUSY: u32 = 200;
/// What has begun before faults ended may wait so long for an answer that does not come.
const OLDEST: Duration = Duration::from_secs(35);
/// How long nothing but pings may be sent when all is well.
const SILENCE: Duration = Duration::from_secs(30);

impl Cluster {
    /// Ends all faults and waits until everything is UpToDate.
    pub(crate) fn recover(&mut self) {
        self.mend_all();
        self.mended = Some(self.now);
        self.haste();
        self.forget_refusals();
        for round in 0..ROUNDS {
            self.run_until(self.now + ROUND);
            if self.failure.is_some() {
                return;
            }
            let volumes = 0..self.setup.volumes.len();
            let clean = |v: usize| (0..self.nodes.len()).all(|n| self.unequal_blocks(n, v) == 0);
            let busy = self.nodes.iter().any(|n| !n.requests.is_empty() || !n.commands.is_empty());
            let busy = busy || self.handlers.any() || self.nodes.iter().any(|n| n.leaving.is_some());
            if !busy && volumes.clone().all(|v| self.is_settled(v) && clean(v)) {
                if self.setup.extras.rot && !self.verified {
                    self.find_rot();
                    continue;
                }
                return self.finish_run();
            }
            self.operate(round);
        }
        let states = self.describe();
        self.fail(format!(
            "not recovered after {} s without faults: {states}",
            ROUND.0 / 1_000_000_000 * u64::from(ROUNDS)
        ));
    }

    /// Faults end.
    fn mend_all(&mut self) {
        self.end_handlers();
        self.setup.drawn.damage = 0;
        for n in 0..self.nodes.len() {
            self.heal(n);
            for volume in &mut self.nodes[n].volumes {
                volume.data.faults = DiskFaults::default();
            }
            self.nodes[n].dies_after = None;
            self.nodes[n].paused = false;
            if self.setup.extras.clocks {
                self.nodes[n].clock.run_at(self.now, 100);
            }
            self.start(n);
            self.wake(n);
        }
    }

    /// Resyncs and the network may take all there is from now on: what slow ones do has been seen.
    fn haste(&mut self) {
        let plain = crate::drawn::Drawn::plain(self.nodes.len());
        if self.setup.drawn == plain {
            return;
        }
        self.setup.drawn.bandwidth = 0;
        self.net.hurry(self.now);
        self.setup.drawn.slower = plain.slower;
        self.setup.drawn.far = plain.far;
        // `retry-connect` waits for ever for a person who decides.
        self.setup.drawn.rr_conflict = plain.rr_conflict;
        for n in 0..self.nodes.len() {
            self.setup.drawn.nodes[n].resync = plain.nodes[n].resync.clone();
            self.setup.drawn.nodes[n].times = plain.nodes[n].times;
            let config = crate::cluster::configuration(&self.setup, n);
            self.command(n, Command::ChangeOptions(Box::new(config)));
        }
    }

    /// Applications go on, beside an operator who mends what is broken, until there were so many events.
    pub(crate) fn go_on(&mut self, least: u64) {
        for round in 0..MOST_BUSY {
            if self.events >= least || self.failure.is_some() {
                return;
            }
            self.mend_all();
            self.operate(round);
            let primary = |c: &Cluster, n: usize| c.nodes[n].volumes[0].word.is_some_and(|w| w.role == Role::Primary);
            let n = (0..self.nodes.len()).find(|n| primary(self, *n)).unwrap_or_else(|| self.better_node());
            self.command(n, Command::Primary { force: false });
            self.want_open(n, true);
            self.run_with_checks(self.now + ROUND);
            for _ in 0..BUSY {
                self.plain_request(n);
                self.run_with_checks(self.now + Duration::from_millis(1));
            }
        }
    }

    /// A write, or now and then a read or a flush, in a place that is often hot.
    fn plain_request(&mut self, n: usize) {
        let v = self.rng.below(self.setup.volumes.len() as u64) as usize;
        let size = self.setup.volumes[v].smallest();
        let spread = if self.rng.chance(1, 2) { 64 } else { size };
        let start = self.rng.below(spread) / 8 * 8;
        let range = crate::ranges::sectors(start, (start + 8 * (1 + self.rng.below(8))).min(size));
        let kind = match self.rng.below(16) {
            0..=10 => RequestKind::Write { fua: false },
            11 => RequestKind::Write { fua: true },
            12 => RequestKind::Flush,
            _ => RequestKind::Read,
        };
        self.io(v, kind, range, n);
    }

    fn finish_run(&mut self) {
        self.check_settled();
        // The last resync's end is told to third nodes a moment later (P_PEERS_IN_SYNC).
        self.run_until(self.now + Duration::from_secs(1));
        let before = self.packets;
        self.run_until(self.now + SILENCE);
        let sent = self.packets - before;
        if self.failure.is_none() && sent > 0 {
            self.fail(format!("{sent} packets were sent although nothing happened"));
        }
        if self.failure.is_none() {
            self.check_leftovers();
            self.check_settled_metadata();
        }
    }

    /// Both copies are compared by the nodes: they must know of all that differs, and copy it when they connect again.
    fn find_rot(&mut self) {
        for v in 0..self.setup.volumes.len() {
            self.command(0, extras::verify(v));
            for _ in 0..ROUNDS {
                self.run_until(self.now + ROUND);
                if self.is_settled(v) {
                    break;
                }
            }
            self.check_differences_are_known(v);
        }
        self.verified = true;
        self.want_open(1, false);
        self.command(1, Command::Secondary { force: true });
        self.run_until(self.now + Duration::from_secs(1));
        self.command(0, Command::Primary { force: false });
        self.run_until(self.now + Duration::from_secs(1));
        for command in extras::renewal(0) {
            self.command(0, command);
            self.run_until(self.now + Duration::from_secs(1));
        }
    }

    /// Blocks that a node has marked for its peers.
    pub(crate) fn unequal_blocks(&self, n: usize, v: usize) -> u64 {
        let size = self.nodes[n].volumes[v].size;
        let Some(core) = &self.nodes[n].core else { return 1 };
        let differ = |peer| core.known_different(volume_nr(v), node_id(peer), crate::ranges::sectors(0, size));
        self.peers(n).filter(|peer| self.setup.has_disk(*peer)).map(differ).sum()
    }

    /// A transaction has waited in vain, although nobody is away and nothing is lost.
    pub(crate) fn check_answered(&mut self, n: usize, text: &str) {
        if self.mended.is_some_and(|since| self.now > since + OLDEST) {
            self.fail(format!("node {n}: {text}"));
        }
    }

    /// What an operator would do now.
    fn operate(&mut self, round: u32) {
        self.end_handlers();
        self.complete_volumes(round);
        for n in 0..self.nodes.len() {
            self.start(n);
            for v in 0..self.setup.volumes.len() {
                self.mend_volume(n, v);
            }
        }
        let two_differ = (0..self.setup.volumes.len()).any(|v| self.two_that_differ(v));
        if two_differ && self.may_help(Help::DemoteOne) {
            self.want_open(1, false);
            self.command(1, Command::Secondary { force: true });
        }
        if self.nodes.len() > 2 {
            self.reunite(round);
        } else if !self.all_alone().is_empty() {
            // The first attempts are plain: maybe only the words were missing. Then one side is chosen to give in.
            let victim = self.has_to_give_way().unwrap_or_else(|| self.worse_node());
            let discard = round >= 4 && self.may_help(Help::Discard);
            if round >= 20 && round % 8 == 4 && self.may_help(Help::NewMetadata) {
                return self.create_metadata(victim);
            }
            if discard || (round >= 4 && self.may_help(Help::PartPrimaries)) {
                self.give_up_primaries(victim);
            }
            for (n, peer) in self.all_alone() {
                let discard_my_data = discard && n == victim;
                self.command(n, Command::Connect { peer: node_id(peer), discard_my_data, tentative: false });
            }
        }
        if self.nodes.len() == 2 && round >= 4 && self.may_help(Help::DemoteDiskless) {
            self.demote_diskless();
        }
        if round >= 8 && round.is_multiple_of(8) && self.may_help(Help::DeclareGood) {
            self.declare_good();
        }
        if round % 8 == 6 && self.may_help(Help::Leave) {
            self.leave_with_useless_disks();
        }
        if round % 16 == 13 && self.may_help(Help::Renew) {
            self.reset_links(|_| true);
        }
    }

    /// All is mirrored and idle, and a node has blocks marked that nothing copies before the nodes connect anew.
    pub(crate) fn only_marks_are_left(&self) -> bool {
        (0..self.setup.volumes.len()).all(|v| self.is_settled(v))
    }

    /// Both nodes are Primary and know of blocks that differ, and nothing copies them: nobody but an operator can say
    /// whose count.
    fn two_that_differ(&self, v: usize) -> bool {
        let rests = |w: &StateWord| w.role == Role::Primary && w.conn == ConnState::Connected;
        (0..2).all(|n| self.nodes[n].volumes[v].word.as_ref().is_some_and(rests))
            && (0..2).any(|n| self.unequal_blocks(n, v) > 0)
    }

    /// Who shall give in cannot be Primary. Nor can one that has no good data of some volume of its own: it would
    /// refuse a peer that has other data than its users have seen, and nothing but that peer can serve them.
    fn give_up_primaries(&mut self, victim: usize) {
        let lacks_data = |w: &StateWord| w.role == Role::Primary && w.disk < DiskState::UpToDate;
        let words = |c: &Cluster, n: usize| c.nodes[n].volumes.iter().filter_map(|v| v.word).collect::<Vec<_>>();
        let lacking = |c: &Cluster, n: usize| words(c, n).iter().any(lacks_data);
        let giving_up = |n: &usize| *n == victim || lacking(self, *n);
        for n in (0..self.nodes.len()).filter(giving_up).collect::<Vec<_>>() {
            self.want_open(n, false);
            self.command(n, Command::Secondary { force: true });
        }
        self.run_until(self.now + Duration::from_secs(1));
    }

    /// A disk that lacks what its Primary's users have seen is not taken into use beside them, nor is its node let in.
    pub(crate) fn demote_diskless(&mut self) {
        let diskless = |w: &StateWord| w.role == Role::Primary && w.disk < DiskState::Inconsistent;
        for n in 0..self.nodes.len() {
            if self.nodes[n].volumes.iter().filter_map(|v| v.word).any(|w| diskless(&w)) {
                self.want_open(n, false);
                self.command(n, Command::Secondary { force: true });
            }
        }
    }

    /// A disk that the peer does not accept can be attached when nobody is asked.
    fn leave_with_useless_disks(&mut self) {
        let victim = self.worse_node();
        let useless = |w: &StateWord| w.disk <= DiskState::Negotiating && w.conn >= ConnState::Connected;
        if self.nodes[victim].volumes.iter().any(|v| v.towards.iter().flatten().any(useless)) {
            self.want_open(victim, false);
            self.command(victim, Command::Secondary { force: true });
            for peer in self.peers(victim) {
                self.command(victim, Command::Disconnect { peer: node_id(peer), force: true });
            }
        }
    }

    /// The nodes do not know each other's data any more, or one node's data has no room on the other's disk: that one
    /// begins anew, with a disk that is large enough.
    pub(crate) fn create_metadata(&mut self, n: usize) {
        if !self.setup.has_disk(n) {
            return;
        }
        self.die(n, false);
        for v in 0..self.setup.volumes.len() {
            let others = self.peers(n);
            let setup = &mut self.setup.volumes[v];
            let largest = others.max_by_key(|peer| (setup.capacity(*peer), std::cmp::Reverse(*peer))).expect("a peer");
            if setup.capacity(n) < setup.capacity(largest) {
                // Metadata for more peers take more of the device.
                setup.sectors[n] = setup.sectors[n].max(setup.sectors[largest]);
                setup.slots[n] = setup.slots[largest];
                let setup = setup.clone();
                self.nodes[n].volumes[v] = Volume::new(&setup, n, self.setup.same_content);
                self.nodes[n].volumes[v].worthless = true;
                continue;
            }
            let steps = self.setup.volumes[v].create_md(n);
            self.nodes[n].volumes[v].meta_disk().create_meta(&steps);
            self.nodes[n].volumes[v].worthless = true;
        }
        self.start(n);
    }

    /// The machine gets the disks that were taken out of it the last time, the first time new ones.
    pub(crate) fn exchange_disks(&mut self, n: usize) {
        self.die(n, false);
        if self.nodes[n].taken_out.is_empty() {
            let fresh = |setup| Volume { worthless: true, ..Volume::new(setup, n, false) };
            self.nodes[n].taken_out = self.setup.volumes.iter().map(fresh).collect();
        }
        let node = &mut self.nodes[n];
        std::mem::swap(&mut node.volumes, &mut node.taken_out);
        self.start(n);
    }

    fn mend_volume(&mut self, n: usize, v: usize) {
        let Some(word) = self.nodes[n].volumes[v].word else { return };
        let volume = volume_nr(v);
        if word.disk == DiskState::Diskless && self.setup.has_disk(n) {
            self.command(n, Command::Attach { volume });
        }
        if word.user_isp {
            self.command(n, Command::ResumeSync { volume });
        }
        if word.susp || word.susp_nod || word.susp_fen {
            self.command(n, Command::ResumeIo { volume });
        }
    }

    /// Nodes that have given up connecting, or try in vain, and to which peer.
    fn all_alone(&self) -> Vec<(usize, usize)> {
        let pairs = (0..self.nodes.len()).flat_map(|n| self.peers(n).map(move |peer| (n, peer)));
        pairs.filter(|(n, peer)| self.is_alone(*n, *peer)).collect()
    }

    /// Has this node given up connecting to that peer, or does one of the two refuse the other at each try?
    pub(crate) fn is_alone(&self, n: usize, peer: usize) -> bool {
        self.nodes[n].volumes[0].towards[peer].is_some_and(|w| match w.conn {
            ConnState::StandAlone => true,
            state => state < ConnState::Connected && self.reasons.tries_in_vain(n, peer),
        })
    }

    pub(crate) fn score(&self, n: usize) -> u32 {
        let words = self.nodes[n].volumes.iter().filter_map(|v| v.word);
        let score = |w: StateWord| (w.disk as u32) * 2 + u32::from(w.role == Role::Primary);
        words.map(score).sum()
    }

    /// The node whose data shall live on.
    pub(crate) fn better_node(&self) -> usize {
        let first = |n: &usize| (self.score(*n), std::cmp::Reverse(*n));
        (0..self.nodes.len()).max_by_key(first).expect("some nodes")
    }

    /// The one that gives in first.
    fn worse_node(&self) -> usize {
        let better = self.better_node();
        self.peers(better).min_by_key(|n| self.score(*n)).expect("a peer")
    }

    /// No copy is good: the operator says which one counts.
    fn declare_good(&mut self) {
        let good =
            |v: usize| self.nodes.iter().any(|n| n.volumes[v].word.is_some_and(|w| w.disk == DiskState::UpToDate));
        if (0..self.setup.volumes.len()).any(|v| !good(v)) {
            if self.setup.extras.quorum().is_on() {
                // A person who has no good copy left asks for no quorum of them.
                self.setup.extras.ask_for(QuorumConfig::default());
                for n in 0..self.nodes.len() {
                    let config = crate::cluster::configuration(&self.setup, n);
                    self.command(n, Command::ChangeOptions(Box::new(config)));
                }
            }
            let n = self.better_node();
            self.want_open(n, false);
            self.command(n, Command::Secondary { force: true });
            self.run_until(self.now + Duration::from_secs(1));
            self.command(n, Command::Primary { force: true });
        }
    }

    /// The states of all volumes in words.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for (n, node) in self.nodes.iter().enumerate() {
            for (v, volume) in node.volumes.iter().enumerate() {
                let state = |w: &StateWord| format!("{:?} {:?} {:?}/{:?}", w.role, w.conn, w.disk, w.pdsk);
                let states: Vec<_> = volume.towards.iter().flatten().map(state).collect();
                let states = if states.is_empty() { "down".to_owned() } else { states.join(", ") };
                let differ = self.unequal_blocks(n, v);
                text += &format!("[node {n} volume {v}: {states}, {differ} blocks differ] ");
            }
            let (requests, commands) = (node.requests.len(), node.commands.len());
            text += &format!(
                "[node {n}: {requests} requests, {commands} commands, {} disk operations] ",
                node.flights.len()
            );
        }
        if self.handlers.any() {
            text += &format!("{:?}", self.handlers);
        }
        text
    }
}
