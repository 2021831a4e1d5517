//! Reads of a peer (`docs/spec/data-path-and-resync.md` 2, 4).

use crate::Resource;
use crate::api::{DiskOp, IoError, Segments};
use crate::decide::io_error::Failure;
use crate::decide::topic::Topic;
use crate::op::Op;
use crate::peer_write::write::PACKET_COST;
use units::{NodeId, VolumeNr};
use wire::{BlockData, DiskState, Packet};

impl Resource {
    pub(crate) fn peer_read(&mut self, peer: NodeId, volume: VolumeNr, request: wire::BlockRequest) {
        let range = request.range().expect("the decoder checks ranges");
        if !self.node.devices[volume].holds(range) || range.len().0 > self.node.connections[peer].max_answer() {
            let text = format!("read of {range} beyond the device or too long");
            return self.out.protocol_error(peer, Topic::ReadOutOfPlace, text);
        }
        if self.node.state.disk(volume) != DiskState::UpToDate {
            return self.send_ack(peer, volume, Packet::NegDreply, range, request.block_id);
        }
        self.node.devices[volume].stats.read_bytes += range.len().0;
        self.node.connections[peer].working += range.len().0 + PACKET_COST;
        let session = self.node.connections[peer].session;
        let action = DiskOp::ReadNew { sector: range.start, len: range.len(), detect_zeroes: false };
        self.disk(volume, Op::PeerRead { connection: peer, device: volume, request, session }, action);
    }

    pub(crate) fn peer_read_done(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        request: wire::BlockRequest,
        session: u64,
        result: Result<(), IoError>,
        data: Segments,
    ) {
        let range = request.range().expect("checked");
        self.node.connections[peer].working -= range.len().0 + PACKET_COST;
        if let Err(e) = result {
            self.data_error(volume, Failure::Read, "read", range, e);
        }
        let c = &self.node.connections[peer];
        if c.session != session || c.link.is_none() {
            return self.out.release(data);
        }
        match result {
            Ok(()) => {
                let reply = BlockData {
                    sector: range.start,
                    block_id: request.block_id,
                    digest: wire::Digest::EMPTY,
                    size: range.len(),
                };
                self.node.connections[peer].peer_devices[volume].link.io.sent_bytes += range.len().0;
                self.send_data(peer, volume, Packet::DataReply(reply), data.clone());
                self.out.release(data);
            }
            Err(_) => {
                self.out.release(data);
                self.send_ack(peer, volume, Packet::NegDreply, range, request.block_id);
            }
        }
    }
}
