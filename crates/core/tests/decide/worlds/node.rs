//! One node of a model world: what its disk remembers, what its process knows. Every state change goes through the
//! crate's rules, and the effects of it that are about data are carried out.

use crate::rules84::plain;
use units::Generation;
use urbd_core::Fencing;
use urbd_core::decide::attach84::{self, ActivityLog, Bitmap};
use urbd_core::decide::effects84::{self, Effect, Facts};
use urbd_core::decide::rules84::{self, Context, Force, MetadataFlags};
use urbd_core::decide::uuid84::{self, UuidSet};
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

#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Its process runs.
    pub(super) up: bool,
    pub(super) word: StateWord,
    /// The generations on its disk.
    pub(super) uuids: UuidSet,
    /// What the superblock says of the state.
    pub(super) flags: MetadataFlags,
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
        let mut node = Node {
            up: true,
            word: IDLE,
            uuids,
            flags: rules84::metadata_flags(&IDLE, false),
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
        let peer = if self.flags.peer_outdated { DiskState::Outdated } else { DiskState::DUnknown };
        Context {
            verify_alg: false,
            exposed_is_current: self.exposed.same(self.uuids.current),
            at_attach: negotiating.then_some((self.at_attach, peer)),
            ..plain()
        }
    }

    /// Would this change be accepted?
    pub(super) fn may(&self, change: &StateChange) -> Result<(), StateChangeResult> {
        rules84::judge(&self.word, change, Force::Soft, &self.context()).map(|_| ())
    }

    /// Judges and carries out a change; `fresh` is the next generation, if one is needed.
    pub(super) fn change(
        &mut self,
        change: &StateChange,
        force: Force,
        fresh: Generation,
    ) -> Result<Brought, StateChangeResult> {
        let old = self.word;
        let new = match rules84::judge(&old, change, force, &self.context()) {
            Err(StateChangeResult::NothingToDo) => return Ok(Brought::default()),
            other => other?,
        };
        self.word = new;
        let facts = Facts {
            protocol: 101,
            bitmap_uuid_zero: !self.attached() || self.uuids.bitmap.is_none(),
            all_volumes_connected: new.conn >= ConnState::Connected,
            all_peer_disks_outdated: new.pdsk <= DiskState::Outdated,
            all_disks_up_to_date: new.disk == DiskState::UpToDate,
            ..Facts::default()
        };
        let mut brought = Brought::default();
        let writes_here = new.conn >= ConnState::Connected && new.peer == Role::Primary;
        self.with_first_write &= writes_here && new.pdsk < DiskState::Inconsistent && new.disk == DiskState::UpToDate;
        for effect in effects84::effects(&old, &new, &facts) {
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
        self.change(change, Force::Hard, fresh).expect("a fact is never refused here")
    }

    pub(super) fn start_generation(&mut self, fresh: Generation) {
        self.uuids.start_generation(fresh);
        self.exposed = fresh;
        self.with_first_write = false;
    }

    /// There is a disk that is not given up.
    fn attached(&self) -> bool {
        self.word.disk >= DiskState::Negotiating
    }

    /// The superblock follows the state at once: when it reaches the disk is the business of other tests.
    pub(super) fn refresh_flags(&mut self) {
        if self.word.disk < DiskState::Inconsistent {
            return;
        }
        let connected = self.word.conn >= ConnState::Connected;
        self.flags = rules84::metadata_flags(&self.word, self.crashed);
        let through_us = connected && self.word.peer == Role::Primary && self.word.pdsk < DiskState::Inconsistent;
        self.flags.primary_ind = self.word.role == Role::Primary || through_us;
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
            self.flags.primary_ind = false;
            self.flags.crashed_primary = self.crashed;
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
            full_sync: false,
            al_disabled: false,
            al_clean: self.clean,
            current: self.uuids.current,
            exposed: self.exposed,
            outrun: self.outrun,
            primary: self.primary(),
            peer_primary: self.word.peer == Role::Primary,
            connected,
            peer_disk: self.word.pdsk,
            fencing: Fencing::DontCare,
        });
        let Ok(attach) = judged else { return false };
        self.bit |= attach.bitmap == Bitmap::SetAll || (attach.activity_log == ActivityLog::Apply && self.hot);
        self.hot = false;
        (self.crashed, self.at_attach) = (attach.crashed_primary, attach.disk);
        let disk = if attach.negotiate { DiskState::Negotiating } else { attach.disk };
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
