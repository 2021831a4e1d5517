//! One node of a model world: what its disk remembers, what its process knows. Every state change goes through the
//! crate's rules, and the effects of it that are about data are carried out.

use crate::pairwise::{self, Context, PLAIN, view};
use meta::{DeviceFlags, PeerFlags};
use std::cell::RefCell;
use std::collections::HashMap;
use units::Generation;
use urbd_core::Fencing;
use urbd_core::decide::attach84::{self, ActivityLog, Bitmap};
use urbd_core::decide::effects::Effect;
use urbd_core::decide::rules;
use urbd_core::decide::uuid84::{self, UuidSet};
use urbd_core::decide::view::Kind;
use urbd_core::decide::{ConnState, DiskState, Role, StateChange, StateChangeResult, StateWord};

/// The state of a process that has just started.
const IDLE: StateWord = StateWord::undisturbed(
    Role::Secondary,
    Role::Unknown,
    ConnState::StandAlone,
    DiskState::Diskless,
    DiskState::DUnknown,
);

/// A new generation of this number. Bits of roles are left out: nothing but the policies looks at them.
pub(super) fn generation(number: u64) -> Generation {
    Generation(number << 8)
}

/// What the rules say of a change: the word that follows, and what that brings with it.
type Judged = Result<(StateWord, Vec<Effect>), StateChangeResult>;

/// What they look at, as far as worlds differ in it.
type Question = (StateWord, StateChange, Kind, bool, (DiskState, DiskState), bool);

thread_local! {
    /// Worlds ask the same few questions again and again.
    static ANSWERS: RefCell<HashMap<Question, Judged>> = RefCell::default();
}

fn judged(old: &StateWord, change: &StateChange, kind: Kind, ctx: &Context) -> Judged {
    let question = (*old, *change, kind, ctx.exposed_is_current, ctx.at_attach, ctx.bitmap_in_use);
    let known = ANSWERS.with_borrow(|answers| answers.get(&question).cloned());
    known.unwrap_or_else(|| {
        let judged = pairwise::judge(old, change, kind, ctx).map(|new| (new, pairwise::effects(old, &new, ctx)));
        ANSWERS.with_borrow_mut(|answers| answers.insert(question, judged.clone()));
        judged
    })
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Its process runs.
    pub(super) up: bool,
    pub(super) word: StateWord,
    /// The generations on its disk.
    pub(super) uuids: UuidSet,
    /// What the superblock says of the state.
    pub(super) flags: DeviceFlags,
    /// And of its peer's.
    pub(super) peer_flags: PeerFlags,
    /// The disk was let go of in order: there is nothing to replay.
    pub(super) clean: bool,
    /// The bitmap's bit.
    pub(super) bit: bool,
    /// The activity log's extent.
    pub(super) hot: bool,
    /// The mark in memory.
    pub(super) crashed: bool,
    pub(super) exposed: Generation,
    pub(super) outrun: bool,
    /// A generation begins with the first write of its peer.
    pub(super) with_first_write: bool,
    /// What it knows of its peer's generations.
    pub(super) peer_uuids: Option<UuidSet>,
    /// What the disk was worth when it was attached.
    pub(super) at_attach: DiskState,
}

/// What a change of state brought with it that is about both nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Brought {
    pub(super) new_generation: bool,
    pub(super) send_uuids: bool,
}

impl Node {
    /// A node that runs, alone, with a good disk of the first generation.
    pub(super) fn new() -> Node {
        let uuids = UuidSet { current: generation(1), ..UuidSet::default() };
        let (flags, peer_flags) = rules::metadata_flags(&view(&IDLE), false);
        let mut node = Node {
            up: true,
            word: IDLE,
            uuids,
            flags,
            peer_flags,
            clean: true,
            bit: false,
            hot: false,
            crashed: false,
            exposed: uuids.current,
            outrun: false,
            with_first_write: false,
            peer_uuids: None,
            at_attach: DiskState::Diskless,
        };
        node.word.disk = DiskState::UpToDate;
        node.word.conn = ConnState::WFConnection;
        node.refresh_flags();
        node
    }

    pub(super) fn has_disk(&self) -> bool {
        self.up && self.word.disk >= DiskState::Inconsistent
    }

    pub(super) fn primary(&self) -> bool {
        self.up && self.word.role == Role::Primary
    }

    pub(super) fn connected(&self) -> bool {
        self.up && self.word.conn >= ConnState::Connected
    }

    pub(super) fn context(&self) -> Context {
        let negotiating = self.word.disk == DiskState::Negotiating;
        let peer =
            if self.peer_flags.contains(PeerFlags::OUTDATED) { DiskState::Outdated } else { DiskState::DUnknown };
        Context {
            verify_alg: false,
            exposed_is_current: self.exposed.same(self.uuids.current),
            at_attach: if negotiating { (self.at_attach, peer) } else { (DiskState::Diskless, DiskState::DUnknown) },
            bitmap_in_use: !self.uuids.bitmap.is_none(),
            ..PLAIN
        }
    }

    /// Would this change be accepted?
    pub(super) fn may(&self, change: &StateChange) -> Result<(), StateChangeResult> {
        judged(&self.word, change, Kind::Wish, &self.context()).map(|_| ())
    }

    /// Judges and carries out a change; `fresh` is the next generation, if one is needed.
    pub(super) fn change(
        &mut self,
        change: &StateChange,
        kind: Kind,
        fresh: Generation,
    ) -> Result<Brought, StateChangeResult> {
        let old = self.word;
        let (new, effects) = match judged(&old, change, kind, &self.context()) {
            Err(StateChangeResult::NothingToDo) => return Ok(Brought::default()),
            other => other?,
        };
        self.word = new;
        let mut brought = Brought::default();
        let writes_here = new.conn >= ConnState::Connected && new.peer == Role::Primary;
        self.with_first_write &= writes_here && new.pdsk < DiskState::Inconsistent && new.disk == DiskState::UpToDate;
        for effect in effects {
            match effect {
                Effect::ExposeCurrent => (self.exposed, self.outrun) = (self.uuids.current, false),
                Effect::ClearCrashedPrimary => self.crashed = false,
                Effect::NewGeneration => {
                    self.start_generation(fresh);
                    brought.new_generation = true;
                }
                Effect::GenerationWithFirstWrite => self.with_first_write = true,
                Effect::SendUuids => brought.send_uuids = true,
                _ => {}
            }
        }
        self.refresh_flags();
        Ok(brought)
    }

    /// A change that cannot be refused.
    pub(super) fn must(&mut self, change: &StateChange, fresh: Generation) -> Brought {
        self.change(change, Kind::Fact, fresh).expect("a fact is never refused here")
    }

    pub(super) fn start_generation(&mut self, fresh: Generation) {
        self.uuids.start_generation(fresh);
        self.exposed = fresh;
        self.with_first_write = false;
    }

    /// The superblock follows the state at once: when it reaches the disk is the business of other tests.
    pub(super) fn refresh_flags(&mut self) {
        if self.word.disk < DiskState::Inconsistent {
            return;
        }
        let connected = self.word.conn >= ConnState::Connected;
        (self.flags, self.peer_flags) = rules::metadata_flags(&view(&self.word), self.crashed);
        let through_us = connected && self.word.peer == Role::Primary && self.word.pdsk < DiskState::Inconsistent;
        self.flags.put(DeviceFlags::PRIMARY_IND, self.word.role == Role::Primary || through_us);
        self.clean = false;
    }

    /// The process dies.
    pub(super) fn die(&mut self) {
        self.up = false;
        self.let_go();
        self.word = IDLE;
        (self.exposed, self.outrun, self.peer_uuids) = (Generation::NONE, false, None);
        self.with_first_write = false;
    }

    /// The disk is closed as it is.
    fn let_go(&mut self) {
        (self.crashed, self.at_attach) = (false, DiskState::Diskless);
    }

    /// The disk is gone, in order or not; users who stay see the peer's data from now on.
    pub(super) fn lose_disk(&mut self, in_order: bool, fresh: Generation) {
        if in_order {
            (self.clean, self.hot) = (true, false);
            self.flags.remove(DeviceFlags::PRIMARY_IND);
            self.flags.put(DeviceFlags::CRASHED_PRIMARY, self.crashed);
        }
        self.let_go();
        self.must(&StateChange { disk: Some(DiskState::Diskless), ..StateChange::default() }, fresh);
        if !self.connected() && !self.primary() {
            (self.exposed, self.outrun) = (Generation::NONE, false);
        }
        if let (true, DiskState::UpToDate, Some(set)) = (self.primary(), self.word.pdsk, &self.peer_uuids) {
            self.exposed = set.current;
        }
    }

    /// Opens the disk. False: refused, it is not what users have seen.
    pub(super) fn attach(&mut self, fresh: Generation) -> bool {
        let connected = self.connected();
        let judged = attach84::decide(&attach84::Input {
            flags: self.flags,
            peers: self.peer_flags,
            al_clean: self.clean,
            current: self.uuids.current,
            exposed: self.exposed,
            outrun: self.outrun,
            role: self.word.role,
            peer_primary: self.word.peer == Role::Primary,
            connected,
            peer_disk: self.word.pdsk,
            fencing: Fencing::DontCare,
        });
        let Ok(attach) = judged else { return false };
        self.bit |= attach.bitmap == Bitmap::SetAll || (attach.activity_log == ActivityLog::Apply && self.hot);
        self.hot = false;
        (self.crashed, self.at_attach) = (attach.crashed_primary, attach.disk);
        let disk = if connected { DiskState::Negotiating } else { attach.disk };
        let pdsk = attach.peer_disk.filter(|_| !connected);
        self.word.disk = DiskState::Attaching;
        self.must(&StateChange { disk: Some(disk), pdsk, ..StateChange::default() }, fresh);
        true
    }

    /// What a comparison sees of it.
    pub(super) fn side(&self) -> uuid84::Node {
        uuid84::Node { uuids: self.uuids, crashed_primary: self.crashed, primary: self.primary() }
    }
}
