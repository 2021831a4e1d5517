//! Two model nodes, the link between them, one block on each disk, and everything that can happen to them.

use super::node::{Node, generation};
use super::oracle::{Meeting, Oracle};
use crate::pairwise::view;
use units::Generation;
use urbd_core::decide::handshake84::{self, Decision, Occasion, StateReceived, UuidsReceived, UuidsVerdict};
use urbd_core::decide::roles::{self, Promotion, Step};
use urbd_core::decide::routing::{self, Admission, ToPeer};
use urbd_core::decide::uuid84::{self, Verdict};
use urbd_core::decide::view::Kind;
use urbd_core::decide::{ConnState as C, DiskState as D, Role, StateChange, StateChangeResult as Code, StateWord};
use urbd_core::dialect84;

/// What became of the resync between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Down,
    Up,
    /// The node of this index is the source.
    Syncing(usize),
}

/// The two copies of the one block. Blocks do not influence each other, nor any decision: one stands for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copies {
    /// They are not the same.
    pub(super) differ: bool,
    /// Node n's lacks an acknowledged write that is in the other's.
    pub(super) lacks: [bool; 2],
}

/// How far a resync's start gets before the link breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Only this node has taken its decision.
    DecidedBy(usize),
    Decided,
    /// The source's disk has the new generation, its packet is lost.
    SourceKnows,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Both,
    /// The link broke when the target was done.
    TargetOnly,
    /// The target died before its superblock was down.
    SourceOnly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Write(usize),
    /// The write that is under way reaches these disks, and is acknowledged to nobody.
    Crash(usize, [bool; 2]),
    Boot(usize),
    Cut,
    /// Node 0 resolves conflicts or not; somebody was told to discard; how far it gets.
    Connect(bool, Option<usize>, Start),
    Copy,
    Finish(Finish),
    Promote(usize, bool),
    Demote(usize),
    Detach(usize),
    FailDisk(usize),
    Attach(usize, bool, Start),
    Invalidate(usize),
    Outdate(usize),
    NewGeneration(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct World {
    pub(super) nodes: [Node; 2],
    pub(super) link: Link,
    pub(super) copies: Copies,
    /// Independently of any generation: since both were the same, node n's copy may have got writes that the other
    /// did not get.
    pub(super) moved: [bool; 2],
    /// The user took a decision that may lose data.
    pub(super) forced: bool,
}

const NOTHING: StateChange = StateChange {
    role: None,
    peer: None,
    conn: None,
    disk: None,
    pdsk: None,
    susp: None,
    aftr_isp: None,
    peer_isp: None,
    user_isp: None,
    susp_nod: None,
    susp_fen: None,
};

/// Everything that can be tried; most of it is refused by most worlds.
pub(super) fn all_ops() -> Vec<Op> {
    let mut ops = vec![Op::Cut, Op::Copy];
    ops.extend([Finish::Both, Finish::TargetOnly, Finish::SourceOnly].map(Op::Finish));
    let starts = [Start::Both, Start::SourceKnows, Start::Decided, Start::DecidedBy(0), Start::DecidedBy(1)];
    for resolves in [false, true] {
        for start in starts {
            ops.extend([None, Some(0), Some(1)].map(|discard| Op::Connect(resolves, discard, start)));
            ops.extend([0, 1].map(|n| Op::Attach(n, resolves, start)));
        }
    }
    for n in [0, 1] {
        ops.extend([Op::Write(n), Op::Boot(n), Op::Promote(n, false), Op::Promote(n, true), Op::Demote(n)]);
        ops.extend([Op::Detach(n), Op::FailDisk(n), Op::Invalidate(n), Op::Outdate(n), Op::NewGeneration(n)]);
        ops.extend([[false; 2], [true, false], [false, true], [true; 2]].map(|reached| Op::Crash(n, reached)));
    }
    ops
}

impl Op {
    /// Somebody decides who had no need to.
    pub(super) fn is_force(self) -> bool {
        matches!(
            self,
            Op::Promote(_, true)
                | Op::Invalidate(_)
                | Op::Outdate(_)
                | Op::NewGeneration(_)
                | Op::Connect(_, Some(_), _)
        )
    }
}

impl World {
    /// Both hold the same, and have never met.
    pub(super) fn new() -> World {
        let node = Node::new();
        World { nodes: [node, node], link: Link::Down, copies: Copies::default(), moved: [false; 2], forced: false }
    }

    /// Fresh metadata on both, on disks of any content.
    pub(super) fn just_created() -> World {
        let mut world = World::new();
        world.copies.differ = true;
        for node in &mut world.nodes {
            (node.uuids.current, node.exposed, node.bit) = (Generation::JUST_CREATED, Generation::NONE, true);
            node.word.disk = D::Inconsistent;
            node.refresh_flags();
        }
        world
    }

    /// A generation that nobody has.
    fn fresh(&self) -> Generation {
        let of = |g: Generation| (g.0 & 0xffff_ffff_ffff) >> 8;
        let sets = self.nodes.iter().flat_map(|n| [Some(n.uuids), n.peer_uuids]).flatten();
        let known = sets.flat_map(|s| [s.current, s.bitmap, s.history[0], s.history[1]]);
        generation(known.chain(self.nodes.map(|n| n.exposed)).map(of).max().unwrap_or(0) + 1)
    }

    /// Lets `op` happen. `Ok(false)`: it cannot now.
    ///
    /// # Errors
    /// What is wrong about what follows.
    pub(super) fn step(&mut self, op: Op, oracle: &mut Oracle) -> Result<bool, String> {
        let happened = match op {
            Op::Write(n) => self.write(n),
            Op::Crash(n, reached) => self.crash(n, reached),
            Op::Boot(n) => self.boot(n),
            Op::Cut => self.cut(),
            Op::Connect(resolves, discard, start) => self.connect(resolves, discard, start, oracle)?,
            Op::Copy => self.copy(),
            Op::Finish(how) => self.finish(how)?,
            Op::Promote(n, force) => self.promote(n, force),
            Op::Demote(n) => self.demote(n),
            Op::Detach(n) => self.detach(n),
            Op::FailDisk(n) => self.nodes[n].has_disk() && self.lose_disk(n, false),
            Op::Attach(n, resolves, start) => self.attach(n, resolves, start, oracle)?,
            Op::Invalidate(n) => self.invalidate(n),
            Op::Outdate(n) => self.outdate(n),
            Op::NewGeneration(n) => self.new_generation(n),
        };
        self.note_moves();
        Ok(happened)
    }

    /// Who may write where the other does not get it?
    fn note_moves(&mut self) {
        for n in 0..2 {
            let (me, peer) = (&self.nodes[n], &self.nodes[1 - n]);
            let together = self.link != Link::Down && me.connected() && peer.connected();
            if me.primary() && me.has_disk() && !(together && peer.has_disk()) {
                self.moved[n] = true;
            } else if me.primary() && !me.has_disk() && together && peer.has_disk() {
                self.moved[1 - n] = true;
            }
        }
    }

    fn agreed(&mut self) {
        (self.moved, self.forced) = ([false; 2], false);
        self.copies = Copies::default();
    }

    // -- data ---------------------------------------------------------------------------------------------------------

    fn write(&mut self, n: usize) -> bool {
        let word = self.nodes[n].word;
        if !self.nodes[n].up || routing::admit(&view(&word), 101) != Admission::Go {
            return false;
        }
        let there = told(&word) == ToPeer::Data && self.nodes[1 - n].has_disk();
        match (word.disk >= D::Inconsistent, there) {
            (true, true) => self.copies = Copies::default(),
            (true, false) => {
                self.nodes[n].bit = true;
                (self.copies.differ, self.copies.lacks[1 - n]) = (true, true);
            }
            (false, true) => {
                if self.begin_for_write(1 - n) {
                    self.tell_generations(1 - n);
                }
                self.nodes[1 - n].bit = true;
                self.nodes[n].outrun = true;
                (self.copies.differ, self.copies.lacks[n]) = (true, true);
            }
            (false, false) => return false,
        }
        true
    }

    /// The first write of a Primary without a disk reaches this node.
    fn begin_for_write(&mut self, n: usize) -> bool {
        let due = self.nodes[n].with_first_write;
        if due {
            let fresh = self.fresh();
            self.nodes[n].start_generation(fresh);
        }
        due
    }

    fn crash(&mut self, n: usize, reached: [bool; 2]) -> bool {
        if !self.nodes[n].up || (reached != [false; 2] && !self.nodes[n].primary()) {
            return false;
        }
        let peer = 1 - n;
        if self.nodes[n].primary() {
            let word = self.nodes[n].word;
            let told = told(&word);
            let admitted = routing::admit(&view(&word), 101) == Admission::Go;
            let can = [
                admitted && word.disk >= D::Inconsistent,
                admitted && told == ToPeer::Data && self.nodes[peer].has_disk(),
            ];
            if (reached[n] && !can[0]) || (reached[peer] && !can[1]) {
                return false;
            }
            self.nodes[n].hot |= can[0];
            if reached[peer] && !can[0] {
                self.begin_for_write(peer);
                self.nodes[peer].bit = true;
            }
            match reached {
                [true, true] => self.copies = Copies::default(),
                [false, false] => {}
                _ => self.copies.differ = true,
            }
        }
        self.nodes[n].die();
        self.drop_link();
        true
    }

    fn boot(&mut self, n: usize) -> bool {
        if self.nodes[n].up {
            return false;
        }
        self.nodes[n].up = true;
        self.nodes[n].word.conn = C::WFConnection;
        let fresh = self.fresh();
        self.nodes[n].attach(fresh);
        true
    }

    // -- the link -----------------------------------------------------------------------------------------------------

    fn cut(&mut self) -> bool {
        let up = self.link != Link::Down;
        self.drop_link();
        up
    }

    fn drop_link(&mut self) {
        self.link = Link::Down;
        for n in 0..2 {
            if self.nodes[n].up && self.nodes[n].word.conn > C::WFConnection {
                self.set(n, StateChange { conn: Some(C::NetworkFailure), ..NOTHING });
                self.nodes[n].peer_uuids = None;
                self.set(n, StateChange { conn: Some(C::Unconnected), ..NOTHING });
                self.set(n, StateChange { conn: Some(C::WFConnection), ..NOTHING });
            }
        }
    }

    /// A fact about node `n`.
    fn set(&mut self, n: usize, change: StateChange) {
        let fresh = self.fresh();
        let brought = self.nodes[n].must(&change, fresh);
        if brought.send_uuids && self.link != Link::Down {
            self.tell_generations(n);
        }
    }

    fn tell_generations(&mut self, n: usize) {
        if self.nodes[n].word.disk < D::Negotiating {
            return;
        }
        let (set, peer) = (self.nodes[n].uuids, &mut self.nodes[1 - n]);
        let (primary, diskless) = (peer.primary(), peer.word.disk < D::Inconsistent);
        peer.peer_uuids = Some(set);
        if diskless && (primary || peer.connected()) {
            peer.exposed = set.current;
        }
    }

    /// Each tells the other its role and disk, until nothing is new.
    fn tell_states(&mut self) {
        for round in 0..6 {
            let before = self.nodes.map(|n| n.word);
            for n in [round % 2, 1 - round % 2] {
                if self.link != Link::Down {
                    let (role, disk) = (self.nodes[1 - n].word.role, self.nodes[1 - n].word.disk);
                    let disk = (disk != D::Negotiating).then_some(disk);
                    self.set(n, StateChange { peer: Some(role), pdsk: disk, ..NOTHING });
                }
            }
            if self.nodes.map(|n| n.word) == before {
                break;
            }
        }
    }

    fn connect(
        &mut self,
        resolves: bool,
        discard: Option<usize>,
        start: Start,
        oracle: &mut Oracle,
    ) -> Result<bool, String> {
        if self.link != Link::Down || !self.nodes.iter().all(|n| n.up) || !self.matters(resolves, discard) {
            return Ok(false);
        }
        for n in 0..2 {
            self.set(n, StateChange { conn: Some(C::WFReportParams), ..NOTHING });
        }
        self.link = Link::Up;
        for n in 0..2 {
            if !self.accepts_generations(n) {
                self.drop_link();
                return Ok(false);
            }
        }
        let discards = std::array::from_fn(|n| discard == Some(n));
        self.meet(resolves, discards, start, oracle)
    }

    /// Who resolves conflicts decides between two that crashed; who discards, in a split brain.
    fn matters(&self, resolves: bool, discard: Option<usize>) -> bool {
        let [me, peer] = self.nodes.map(|n| n.side());
        let input = uuid84::Input { me, peer, protocol: 101, peer_wsame: true, resolve_conflicts: resolves };
        let split = discard.is_none() || matches!(uuid84::compare(&input).verdict, Verdict::SplitBrain { .. });
        split && (!resolves || (me.crashed_primary && peer.crashed_primary))
    }

    /// A diskless Primary accepts only what its users have seen.
    fn accepts_generations(&mut self, n: usize) -> bool {
        let (me, peer) = (self.nodes[n], self.nodes[1 - n]);
        if peer.word.disk < D::Negotiating {
            return true;
        }
        let (verdict, _) = handshake84::on_uuids(&UuidsReceived {
            role: me.word.role,
            disk: me.word.disk,
            replication: dialect84::connection_and_replication(me.word.conn).1,
            peer_attaching: me.word.pdsk < D::Inconsistent,
            protocol: 101,
            own_current: me.uuids.current,
            exposed: me.exposed,
            peer_current: peer.uuids.current,
            peer_outrun: false,
            skip_initial_sync: false,
        });
        self.nodes[n].peer_uuids = Some(peer.uuids);
        if let UuidsVerdict::Store { expose: Some(g) } = verdict {
            self.nodes[n].exposed = g;
        }
        verdict != UuidsVerdict::Disconnect
    }

    /// Both look at each other's generations and states, as they are now, and decide.
    fn meet(&mut self, resolves: bool, discards: [bool; 2], start: Start, oracle: &mut Oracle) -> Result<bool, String> {
        let words = self.nodes.map(|n| n.word);
        let first = words.iter().all(|w| w.conn == C::WFReportParams);
        let meeting = self.occasions().map(|occasions| Meeting::of(self, occasions, resolves, discards));
        let compared = meeting.map(|m| oracle.judge(&m, self)).transpose()?;
        let mut conns = [C::Connected; 2];
        for n in 0..2 {
            if start == Start::DecidedBy(1 - n) {
                continue;
            }
            let theirs = words[1 - n];
            let mut change = StateChange { peer: Some(theirs.role), ..NOTHING };
            let counts_as = self.counts_as(1 - n);
            if theirs.disk != D::Negotiating {
                change.pdsk = Some(counts_as);
            }
            let decision = compared.as_ref().map(|c| c[n].decision);
            match decision {
                Some(Decision::Disconnect | Decision::Retry) => {
                    self.drop_link();
                    return Ok(true);
                }
                Some(Decision::FailOwnDisk) => {
                    self.lose_disk(n, true);
                    self.tell_states();
                    return Ok(true);
                }
                Some(Decision::TreatPeerAsDiskless) => change.pdsk = Some(D::Diskless),
                Some(Decision::Source { full } | Decision::Target { full }) => self.nodes[n].bit |= full,
                Some(Decision::NoSync) | None => {}
            }
            let source_or_none = !matches!(decision, Some(Decision::Target { .. }));
            if words[n].disk == D::Negotiating && source_or_none {
                change.disk = Some(self.nodes[n].at_attach);
            }
            let conn = decision.map_or(C::Connected, |d| {
                let replication = d.replication().expect("refusals are dealt with");
                dialect84::conn_state(urbd_core::ConnectionState::Connected, replication)
            });
            if theirs.disk == D::Negotiating && (conn > C::Connected || words[n].disk < D::Negotiating) {
                change.pdsk = Some(counts_as);
            }
            if let Some(c) = &compared {
                self.nodes[n].uuids = c[n].own;
                self.nodes[n].peer_uuids = Some(c[n].peer);
            }
            (change.conn, conns[n]) = (Some(conn), conn);
            let fresh = self.fresh();
            match self.nodes[n].change(&change, if first { Kind::Wish } else { Kind::Fact }, fresh) {
                Ok(brought) if brought.send_uuids => self.tell_generations(n),
                Ok(_) => {}
                Err(_) => {
                    self.drop_link();
                    return Ok(true);
                }
            }
        }
        if matches!(start, Start::DecidedBy(_)) {
            self.drop_link();
            return Ok(true);
        }
        match (conns, compared) {
            ([C::Connected, C::Connected], compared) => {
                if compared.is_some_and(|c| c[0].decision == Decision::NoSync) {
                    self.agreed();
                }
                self.tell_states();
            }
            ([C::WFBitMapS, C::WFBitMapT], _) => self.start_sync(0, start),
            ([C::WFBitMapT, C::WFBitMapS], _) => self.start_sync(1, start),
            // One refused. It sees in the other's state that a resync begins there, compares once more, and gives up.
            _ => self.drop_link(),
        }
        Ok(true)
    }

    // -- resync -------------------------------------------------------------------------------------------------------

    fn start_sync(&mut self, source: usize, start: Start) {
        let target = 1 - source;
        if self.nodes.iter().any(|n| n.word.conn <= C::Connected) || start == Start::Decided {
            self.drop_link();
            return;
        }
        let bit = self.nodes[0].bit || self.nodes[1].bit;
        (self.nodes[0].bit, self.nodes[1].bit) = (bit, bit);
        self.set(target, StateChange { conn: Some(C::WFSyncUUID), ..NOTHING });
        self.begin_generation_of_resync(source, start == Start::SourceKnows);
    }

    fn begin_generation_of_resync(&mut self, source: usize, lost: bool) {
        let target = 1 - source;
        let random = self.fresh();
        let sync = self.nodes[source].uuids.start_sync_source(random);
        self.set(source, StateChange { conn: Some(C::SyncSource), ..NOTHING });
        if lost {
            self.drop_link();
            return;
        }
        self.nodes[target].uuids.start_sync_target(sync);
        if let Some(set) = self.nodes[target].peer_uuids {
            self.nodes[target].exposed = set.current;
        }
        self.set(target, StateChange { conn: Some(C::SyncTarget), disk: Some(D::Inconsistent), ..NOTHING });
        self.link = Link::Syncing(source);
        (self.moved[target], self.forced) = (false, false);
        // What the target had alone is given up.
        self.copies.lacks[source] = false;
        self.tell_states();
    }

    fn syncing(&self) -> Option<usize> {
        match self.link {
            Link::Syncing(source) if self.nodes[source].word.conn == C::SyncSource => Some(source),
            _ => None,
        }
    }

    fn copy(&mut self) -> bool {
        if self.syncing().is_none() || !self.nodes[0].bit {
            return false;
        }
        self.copies = Copies::default();
        self.nodes.iter_mut().for_each(|n| n.bit = false);
        true
    }

    fn finish(&mut self, how: Finish) -> Result<bool, String> {
        let Some(source) = self.syncing() else { return Ok(false) };
        let target = 1 - source;
        if self.nodes[target].word.conn != C::SyncTarget {
            return Ok(false);
        }
        self.copy();
        if self.copies.differ {
            return Err("the resync ends, and the copies differ".to_owned());
        }
        if how != Finish::SourceOnly {
            let set = self.nodes[target].peer_uuids.ok_or("a target that knows no generation of its source")?;
            self.nodes[target].uuids.finish_sync_target(&set);
            self.nodes[target].peer_uuids = Some(self.nodes[target].uuids);
            let good = Some(D::UpToDate);
            self.set(target, StateChange { conn: Some(C::Connected), disk: good, pdsk: good, ..NOTHING });
            (self.moved, self.forced) = ([false; 2], false);
        }
        if how != Finish::TargetOnly {
            self.nodes[source].uuids.retire_bitmap();
            self.nodes[source].peer_uuids = Some(self.nodes[source].uuids);
            self.set(source, StateChange { conn: Some(C::Connected), pdsk: Some(D::UpToDate), ..NOTHING });
        }
        match how {
            Finish::Both => {
                self.link = Link::Up;
                self.tell_states();
            }
            Finish::TargetOnly => self.drop_link(),
            Finish::SourceOnly => {
                self.nodes[target].die();
                self.drop_link();
            }
        }
        Ok(true)
    }

    // -- operators ----------------------------------------------------------------------------------------------------

    /// Asks node `n`, and its peer if there is one, and lets both make the change.
    fn agree(&mut self, n: usize, change: StateChange, theirs: StateChange) -> Option<Code> {
        if let Err(code) = self.nodes[n].may(&change) {
            return Some(code);
        }
        if self.link != Link::Down && self.nodes[1 - n].may(&theirs).is_err_and(|c| c != Code::NothingToDo) {
            return Some(Code::FailedByPeer);
        }
        if self.link != Link::Down {
            self.set(1 - n, theirs);
        }
        self.set(n, change);
        None
    }

    fn promote(&mut self, n: usize, force: bool) -> bool {
        if !self.nodes[n].up || self.nodes[n].primary() {
            return false;
        }
        let mut promotion = Promotion::new(force);
        loop {
            let disk = self.nodes[n].word.disk;
            let (rise, forced) = (promotion.request(disk), promotion.forces(disk));
            let away = self.nodes[n].word.conn < C::Connected;
            let pdsk = rise.peer_disk.filter(|_| away);
            let change = StateChange { role: Some(Role::Primary), disk: rise.disk, pdsk, ..NOTHING };
            let theirs = StateChange { peer: change.role, pdsk: change.disk, disk: change.pdsk, ..NOTHING };
            let code = self.agree(n, change, theirs);
            match promotion.next(code.unwrap_or(Code::Success), self.nodes[n].word.disk) {
                Step::Done => {
                    self.promoted(n, forced);
                    return true;
                }
                Step::Request(_) => {}
                _ => return false,
            }
        }
    }

    fn promoted(&mut self, n: usize, forced: bool) {
        let word = self.nodes[n].word;
        let effects = roles::promoted(forced, word.conn >= C::Connected, word.disk, word.pdsk);
        if effects.new_generation {
            let fresh = self.fresh();
            self.nodes[n].start_generation(fresh);
            if effects.send_uuids && self.link != Link::Down {
                self.tell_generations(n);
            }
        }
        self.forced |= forced;
        if self.link != Link::Down {
            self.tell_states();
        }
    }

    fn demote(&mut self, n: usize) -> bool {
        if !self.nodes[n].primary()
            || self.nodes[n].may(&StateChange { role: Some(Role::Secondary), ..NOTHING }).is_err()
        {
            return false;
        }
        self.set(n, StateChange { role: Some(Role::Secondary), ..NOTHING });
        self.nodes[n].hot = false;
        if self.link != Link::Down {
            self.tell_states();
        }
        true
    }

    fn detach(&mut self, n: usize) -> bool {
        let failed = Some(D::Failed);
        self.nodes[n].has_disk()
            && self.agree(n, StateChange { disk: failed, ..NOTHING }, StateChange { pdsk: failed, ..NOTHING }).is_none()
            && self.lose_disk(n, true)
    }

    fn lose_disk(&mut self, n: usize, in_order: bool) -> bool {
        if matches!(self.link, Link::Syncing(_)) {
            self.link = Link::Up;
        }
        if self.nodes[n].word.disk != D::Failed {
            self.set(n, StateChange { disk: Some(D::Failed), ..NOTHING });
        }
        if self.link != Link::Down {
            self.tell_states();
        }
        let fresh = self.fresh();
        self.nodes[n].lose_disk(in_order, fresh);
        if self.link != Link::Down {
            self.tell_states();
        }
        true
    }

    fn attach(&mut self, n: usize, resolves: bool, start: Start, oracle: &mut Oracle) -> Result<bool, String> {
        let fresh = self.fresh();
        if (resolves || start != Start::Both)
            && (!self.nodes[n].connected() || (resolves && !self.nodes[1 - n].crashed))
        {
            return Ok(false);
        }
        if !self.nodes[n].up || self.nodes[n].word.disk != D::Diskless || !self.nodes[n].attach(fresh) {
            return Ok(false);
        }
        if self.nodes[n].word.disk != D::Negotiating {
            return Ok(true);
        }
        // Both sides tell each other their generations; the peer learns that there is a disk.
        for m in 0..2 {
            if !self.accepts_generations(m) {
                self.drop_link();
                return Ok(true);
            }
        }
        self.meet(resolves, [false; 2], start, oracle)
    }

    fn invalidate(&mut self, n: usize) -> bool {
        if !self.nodes[n].has_disk() {
            return false;
        }
        if self.link == Link::Down {
            if self.nodes[n].primary() {
                return false;
            }
            self.nodes[n].bit = true;
            self.set(n, StateChange { disk: Some(D::Inconsistent), ..NOTHING });
            self.forced = true;
            return true;
        }
        let (mine, theirs) = (Some(C::StartingSyncT), Some(C::StartingSyncS));
        if self.agree(n, StateChange { conn: mine, ..NOTHING }, StateChange { conn: theirs, ..NOTHING }).is_some() {
            return false;
        }
        self.nodes.iter_mut().for_each(|n| n.bit = true);
        self.set(n, StateChange { conn: Some(C::WFSyncUUID), ..NOTHING });
        self.begin_generation_of_resync(1 - n, false);
        true
    }

    fn outdate(&mut self, n: usize) -> bool {
        let change = StateChange { disk: Some(D::Outdated), ..NOTHING };
        if !self.nodes[n].has_disk() || self.nodes[n].may(&change).is_err() {
            return false;
        }
        self.set(n, change);
        if self.link != Link::Down {
            self.tell_states();
        }
        true
    }

    /// `new-current-uuid` on a node that is alone.
    fn new_generation(&mut self, n: usize) -> bool {
        if self.link != Link::Down || !self.nodes[n].has_disk() {
            return false;
        }
        let fresh = self.fresh();
        self.nodes[n].uuids.retire_bitmap();
        self.nodes[n].start_generation(fresh);
        self.moved[n] = true;
        self.forced |= self.nodes[n].word.disk != D::UpToDate;
        true
    }

    /// What the comparison is about for each, if there is one.
    fn occasions(&self) -> Option<[Occasion; 2]> {
        let of = |n: usize| {
            let (me, peer) = (&self.nodes[n].word, &self.nodes[1 - n].word);
            handshake84::occasion(&StateReceived {
                peer_uuids_known: peer.disk >= D::Negotiating,
                replication: dialect84::connection_and_replication(me.conn).1,
                peer_replication: dialect84::connection_and_replication(peer.conn).1,
                disk: me.disk,
                peer_disk: peer.disk,
                consider_resync: false,
                compared: true,
            })
        };
        Some([of(0)?, of(1)?])
    }

    /// What node `n`'s disk counts as for the other.
    pub(super) fn counts_as(&self, n: usize) -> D {
        let node = &self.nodes[n];
        handshake84::peer_disk_counts_as(node.word.disk, node.at_attach == D::Inconsistent)
    }
}

/// What the other node is told of a write.
fn told(word: &StateWord) -> ToPeer {
    let seen = view(word);
    routing::write(seen.replication, seen.peer_disk, 101)
}
