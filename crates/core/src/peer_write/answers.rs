//! What a peer is told of its writes, and when it may complete them (`docs/spec/wire-protocol.md` 11).

use crate::Resource;
use crate::config::Protocol;
use crate::connection::Connection;
use crate::peer_write::write::{PeerWrite, Told};
use units::{NodeId, SectorRange, VolumeNr};
use wire::{BlockAck, BlockId, DiskState, DpFlags, Packet, Socket};

impl Resource {
    /// Which answer a finished write gets (`docs/spec/wire-protocol.md` 11.2).
    pub(super) fn final_ack(&mut self, peer: NodeId, volume: VolumeNr, w: &PeerWrite, ok: bool) {
        // Neither node may have a good copy. The peer, which has told of its own, may not have heard of this one yet:
        // that travels on the other stream than the acknowledgement, which it would take for one of a good copy.
        if !ok
            || (self.node.state.disk(volume) != DiskState::UpToDate
                && self.node.state.peer_disk(peer, volume) != DiskState::UpToDate)
        {
            return self.refuse_peer_write(peer, volume, w.range, w.block_id);
        }
        if !w.flags.contains(DpFlags::SEND_WRITE_ACK) {
            return;
        }
        let pair = self.node.state.pair(peer, volume);
        let may_clear = w.flags.contains(DpFlags::MAY_SET_IN_SYNC) && pair.disk >= DiskState::Inconsistent;
        if pair.replication.is_working() && may_clear {
            self.node.devices[volume].clear_out_of_sync(peer, w.range);
            let named = self.node.connections[peer].names_requests();
            self.send_ack(
                peer,
                volume,
                if named { Packet::WriteAckInSync } else { Packet::RsWriteAck },
                w.range,
                w.block_id,
            );
        } else {
            self.send_ack(peer, volume, Packet::WriteAck, w.range, w.block_id);
        }
    }

    pub(super) fn refuse_peer_write(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange, block_id: BlockId) {
        self.node.connections[peer].peer_devices[volume].link.io.refused_writes = true;
        self.lacks_peers_write(volume);
        self.send_ack(peer, volume, Packet::NegAck, range, block_id);
    }

    pub(crate) fn send_ack(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        packet: fn(BlockAck) -> Packet,
        range: SectorRange,
        block_id: BlockId,
    ) {
        let seq = self.node.connections[peer].peer_devices[volume].link.io.next_seq();
        let ack = BlockAck { sector: range.start, block_id, size: range.len(), seq };
        self.send(peer, Socket::Control, volume, packet(ack));
    }
}

impl Connection {
    /// When the peer may complete a write with these flags. During a resync it asks for P_WRITE_ACK in any case.
    ///
    /// With protocol B it is told at once that a single write has come, but where there are several at a time it waits
    /// for the disk, as with protocol C: else each write that it completes would make the next one wait until all
    /// before that are on the disk, which then has nothing to do. A disk that is flushed at each barrier gains nothing.
    pub(super) fn may_complete(&self, flags: DpFlags, needs_flushes: impl FnOnce() -> bool) -> Told {
        let asks = |flag| flags.contains(flag);
        let (received, written) = (asks(DpFlags::SEND_RECEIVE_ACK), asks(DpFlags::SEND_WRITE_ACK));
        let gains = || !self.epochs.come_singly() && !needs_flushes();
        match self.cfg.protocol {
            _ if asks(DpFlags::MAY_SET_IN_SYNC) => Told::Early,
            Protocol::C if written => Told::WhenWritten,
            Protocol::B if received && !written && gains() => Told::ReceivedWhenWritten,
            _ => Told::Early,
        }
    }

    /// Before protocol 100 a write does not say which answer it wants: the configured protocol does.
    pub(super) fn unsaid_flags(&self) -> DpFlags {
        match self.cfg.protocol {
            _ if self.version() >= 100 => DpFlags::NONE,
            Protocol::A => DpFlags::NONE,
            Protocol::B => DpFlags::SEND_RECEIVE_ACK,
            Protocol::C => DpFlags::SEND_WRITE_ACK,
        }
    }
}
