//! Chores: what the end of a turn looks after besides reads and writes.
//!
//! A chore is due in each turn as long as it goes on by itself ([`Resource::goes_on`]). All of them are due once after
//! every input but the time, a request, and a packet or the end of a disk operation that is routine ([`is_routine`],
//! [`Op::is_routine`]); and after every change of a state or of the superblock, wherever it comes from. So nothing is
//! due in a turn with nothing but reads and writes, which would spend a quarter of its instructions here. With debug
//! assertions, as in the simulator, nodes of odd numbers try what is not due, and it must come to nothing.

pub(crate) mod chores;

use crate::Resource;
use crate::api::Effect;
use crate::decide::state::Replication;
use crate::device::Device;
use crate::housekeeping::chores::{Chore, Chores};
use crate::node::Node;
use crate::peer_device::PeerDevice;
use meta::DeviceFlags;
use units::{Instant, NodeId, VolumeNr};

impl Resource {
    /// The end of a turn, after reads and writes.
    pub(crate) fn keep_house(&mut self) {
        if self.out.chores == Chores::NONE {
            self.node.devices.ids().for_each(|volume| self.pump_al(volume));
        } else {
            self.do_chores();
        }
        if cfg!(debug_assertions) && self.node.cfg.node.index() % 2 == 1 {
            self.try_idle_chores();
        }
        // What the activity log has let go may have found a congested link.
        self.end_links();
        if std::mem::take(&mut self.out.status_changed) {
            self.out.emit(Effect::StatusChanged);
        }
    }

    /// What one of them changes is marked: those behind it have to do with it now, those before it in the next turn.
    fn do_chores(&mut self) {
        for chore in Chore::ALL {
            if self.out.chores.take(chore) {
                self.do_chore(chore);
            } else if chore == Chore::Disks {
                self.node.devices.ids().for_each(|volume| self.pump_al(volume));
            }
        }
        self.out.chores = self.out.chores.with(Chore::ALL.into_iter().filter(|chore| self.goes_on(*chore)));
    }

    fn do_chore(&mut self, chore: Chore) {
        match chore {
            Chore::Dependencies => self.follow_dependencies(),
            Chore::Mesh => {
                // The others are asked before they are told anything, and again when that is all that was waited for.
                let steps = [
                    Self::settle_survivors,
                    Self::check_survivors,
                    Self::tell_of_lost_primaries,
                    Self::reconcile,
                    Self::check_lagging,
                    Self::settle_survivors,
                    Self::say_what_is_unsaid,
                ];
                for step in steps {
                    step(self);
                    self.end_links();
                }
            }
            Chore::Copying => {
                for peer in self.node.connections.ids() {
                    for step in [Self::leave_ahead, Self::repair_after_reconnect, Self::pump_resync] {
                        step(self, peer);
                        self.end_links();
                    }
                }
            }
            Chore::Attach => {
                for volume in self.node.devices.ids() {
                    self.pump_attach(volume);
                    self.end_links();
                }
            }
            Chore::Again => self.pump_again(),
            Chore::Commands => self.pump_commands(),
            Chore::Disks => {
                self.pump_disks();
                // A disk that is let go of may have nothing left to write as of now: nothing else may ever come in.
                if self.node.devices.ids().any(|volume| {
                    self.node.devices[volume].disk.leaving.is_some() && self.node.devices[volume].metadata_idle()
                }) {
                    self.pump_commands();
                    self.pump_disks();
                }
            }
        }
        self.end_links();
        self.pump_begun();
    }

    fn pump_disks(&mut self) {
        for volume in self.node.devices.ids() {
            self.pump_al(volume);
            self.pump_metadata(volume);
            self.announce_device(volume);
        }
    }

    /// Is something left of it that goes on by itself, or by time, or waits for the end of reads and writes?
    fn goes_on(&self, chore: Chore) -> bool {
        match chore {
            Chore::Dependencies => false,
            Chore::Mesh => {
                let lags = self.node.devices.values().any(|dev| dev.lags_since.is_some());
                lags || self.awaits_survivors()
                    || self.is_to_settle()
                    || self.has_unsaid()
                    || self.node.witnesses_timer().is_some()
            }
            Chore::Copying => self
                .node
                .connections
                .iter()
                .any(|(peer, c)| c.peer_devices.iter().any(|(volume, pair)| self.copies_on(peer, volume, pair))),
            Chore::Attach => self.node.devices.values().any(|dev| dev.disk.attaching.is_some()),
            Chore::Again => self.again.is_some(),
            Chore::Commands => {
                let asked_later = self.node.connections.values().any(|c| c.asked_later.is_some());
                asked_later
                    || !self.pending.is_empty()
                    || !self.begun.is_empty()
                    || self.node.devices.values().any(|dev| dev.disk.leaving.is_some())
            }
            Chore::Disks => self.node.devices.iter().any(|(volume, dev)| self.writes_on(volume, dev)),
        }
    }

    /// When something is to be done about it because time passes.
    fn chore_timer(&self, chore: Chore) -> Option<Instant> {
        match chore {
            Chore::Dependencies | Chore::Disks => None,
            Chore::Mesh => {
                let timers = [
                    self.survivors_timer(),
                    self.lagging_timer(),
                    self.settle_timer(),
                    self.unsaid_timer(),
                    self.node.witnesses_timer(),
                ];
                timers.into_iter().flatten().min()
            }
            Chore::Copying => self.node.connections.ids().filter_map(|peer| self.copying_timer(peer)).min(),
            Chore::Attach => self.attach_timer(),
            Chore::Again => self.again_timer(),
            Chore::Commands => self.command_timer(),
        }
    }

    /// When the first chore is due without anything happening.
    pub(crate) fn next_chore(&self) -> Option<Instant> {
        if self.out.chores == Chores::NONE {
            return None;
        }
        self.out.chores.each().filter_map(|chore| self.chore_timer(chore)).min()
    }

    /// What is not due has nothing to do, and will have nothing to do by itself.
    fn try_idle_chores(&mut self) {
        let (due, effects) = (self.out.chores, self.out.effects.len());
        for chore in Chore::ALL.into_iter().filter(|chore| !due.has(*chore)) {
            self.do_chore(chore);
            let done = self.out.effects.iter().skip(effects).collect::<Vec<_>>();
            assert!(done.is_empty() && self.out.chores == due, "{chore:?} was not due, and had to do: {done:?}");
            assert!(!self.goes_on(chore), "{chore:?} goes on, and is not due");
            let timer = self.chore_timer(chore);
            assert!(timer.is_none(), "{chore:?} is not due, and waits for {timer:?}");
        }
    }
}

impl Node {
    fn copies_on(&self, peer: NodeId, volume: VolumeNr, pair: &PeerDevice) -> bool {
        let at_rest =
            !self.state.is_connected(peer) || self.state.replication(peer, volume) == Replication::Established;
        !at_rest || pair.repair.is_wanted() || !pair.resync.is_idle()
    }

    fn writes_on(&self, volume: VolumeNr, dev: &Device) -> bool {
        let backing = dev.backing.as_ref();
        // The mark of a former Primary goes when its writes are accounted for.
        let marked = !self.state.is_primary() && backing.is_some_and(|b| b.md.flags.contains(DeviceFlags::PRIMARY_IND));
        marked
            || dev.disk.leaving.is_some()
            || backing.is_some_and(|b| b.full_sync)
            || dev.will_be_logged()
            || !self.devices[volume].metadata_idle()
    }

    fn copying_timer(&self, peer: NodeId) -> Option<Instant> {
        let timers = [
            self.resync_timer(peer),
            self.congestion_timer(peer),
            self.repair_timer(peer),
            self.connections[peer].resync_overdue(),
        ];
        timers.into_iter().flatten().min()
    }
}
