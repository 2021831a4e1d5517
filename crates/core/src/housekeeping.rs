//! What the end of a turn looks after besides reads and writes: commands that wait, attaching, resync, metadata, what
//! front ends are told.
//!
//! While a resource is *calm*, none of that has anything to do, and is left out: a turn with nothing but reads and
//! writes would spend a quarter of its instructions here. A resource becomes calm at the end of a turn in which all of
//! it was looked after and nothing is left that goes on by itself, nor by time. Every input ends that but the time, a
//! request, and a packet or the end of a disk operation that is routine ([`is_routine`], [`Op::is_routine`]); and so
//! does every change of a state or of the superblock, wherever it comes from. With debug assertions, as in the
//! simulator, every other resource does nevertheless what could be left out, and it must come to nothing.

use crate::Resource;
use crate::api::Effect;
use crate::connection::{Connection, PeerDevice};
use crate::decide::state::Replication;
use crate::device::Device;
use crate::dialect9::Loss;
use crate::resource::Op;
use meta::DeviceFlags;
use units::{NodeId, VolumeNr};
use wire::Packet;

impl Resource {
    /// The end of a turn, after reads and writes.
    pub(crate) fn keep_house(&mut self) {
        if self.calm {
            for d in self.devices.ids() {
                self.pump_al(d);
            }
        }
        if !self.calm || self.doubts_calm {
            self.look_after_everything();
        }
        if std::mem::take(&mut self.status_changed) {
            self.emit(Effect::StatusChanged);
        }
    }

    /// Does what is due, and decides whether the resource is calm from now on.
    fn look_after_everything(&mut self) {
        let (calm, effects) = (self.calm, self.effects.len());
        self.look_after_each();
        debug_assert!(
            !calm || self.calm && self.effects.len() == effects,
            "a calm resource had something to do: {:?}",
            self.effects.iter().skip(effects).collect::<Vec<_>>()
        );
        self.calm = self.is_settled();
        debug_assert!(!calm || self.calm, "a calm resource is not settled");
    }

    fn look_after_each(&mut self) {
        self.follow_dependencies();
        self.tell_of_lost_primaries();
        self.reconcile();
        self.check_lagging();
        for i in self.connections.ids() {
            self.leave_ahead(i);
            self.repair_after_reconnect(i);
            self.pump_resync(i);
        }
        for d in self.devices.ids() {
            self.pump_attach(d);
        }
        self.pump_again();
        self.pump_commands();
        self.pump_disks();
        // A disk that is let go of may have nothing left to write as of now: nothing else may ever come in.
        if self.devices.ids().any(|d| self.devices[d].closing && self.metadata_idle(d)) {
            self.pump_commands();
            self.pump_disks();
        }
    }

    fn pump_disks(&mut self) {
        for d in self.devices.ids() {
            self.pump_al(d);
            self.pump_metadata(d);
            self.announce_device(d);
        }
    }

    /// Is nothing left that goes on by itself?
    fn is_settled(&self) -> bool {
        let device = |(d, dev): (VolumeNr, &Device)| {
            let backing = dev.backing.as_ref();
            // The mark of a former Primary goes when its writes are accounted for.
            let marked =
                !self.state.is_primary() && backing.is_some_and(|b| b.md.flags.contains(DeviceFlags::PRIMARY_IND));
            let full_sync = backing.is_some_and(|b| b.full_sync);
            !marked
                && !full_sync
                && !dev.will_be_logged()
                && !dev.closing
                && dev.attaching.is_none()
                && self.metadata_idle(d)
        };
        let pair = |i: NodeId, d: VolumeNr, p: &PeerDevice| {
            let at_rest = !self.state.is_connected(i) || self.state.replication(i, d) == Replication::Established;
            at_rest && !p.repair.is_wanted() && p.resync.is_idle()
        };
        let connection = |(i, c): (NodeId, &Connection)| {
            c.asked_later.is_none() && c.loss == Loss::Told && c.peer_devices.iter().all(|(d, p)| pair(i, d, p))
        };
        self.pending.is_empty()
            && self.again.is_none()
            && self.devices.iter().all(device)
            && self.connections.iter().all(connection)
    }
}

impl Op {
    /// Does its end, if it ended well, concern nobody but reads and writes?
    pub(crate) fn is_routine(&self) -> bool {
        matches!(
            self,
            Op::LocalWrite(_)
                | Op::LocalRead(_)
                | Op::LocalFlush(_)
                | Op::PeerWrite(_)
                | Op::PeerRead { .. }
                | Op::EpochFlush { .. }
        )
    }
}

/// Is it a packet that concerns nobody but reads and writes?
pub(crate) fn is_routine(packet: &Packet) -> bool {
    matches!(
        packet,
        Packet::Data(_)
            | Packet::DataRequest(_)
            | Packet::DataReply(_)
            | Packet::Barrier(_)
            | Packet::UnplugRemote
            | Packet::RecvAck(_)
            | Packet::WriteAck(_)
            | Packet::BarrierAck(_)
    )
}
