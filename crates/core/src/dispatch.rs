//! Which packet goes where.

use crate::Resource;
use crate::api::{Segments, Severity};
use crate::connection::{Connection, Phase};
use crate::decide::StateChangeResult as Code;
use crate::decide::topic::Topic;
use crate::housekeeping::chores::is_routine;
use crate::peer_device::WhenBad;
use crate::peer_write::held::changes_data;
use crate::resync::session::{Answer, Want};
use crate::rows::hit;
use units::{Instant, NodeId, VolumeNr};
use wire::{BlockAck, BlockId, DagtagRequest, Packet, Socket, VerifyReply, VerifyResult, VerifyResultId};

impl Resource {
    pub(crate) fn packet(
        &mut self,
        peer: NodeId,
        (stream, phase): (Socket, Phase),
        volume: VolumeNr,
        packet: Packet,
        payload: Segments,
    ) {
        match (stream, phase) {
            (Socket::Control, _) => self.control_packet(peer, volume, packet),
            (Socket::Data, Phase::Running) => self.queue_data(peer, volume, packet, payload),
            (Socket::Data, _) => {
                self.out.release(payload);
                self.out.chores.mark();
                self.handshake_packet(peer, phase, &packet);
            }
        }
    }

    /// Before the peer's P_PROTOCOL only these are in order (`docs/spec/wire-protocol.md` 7).
    fn handshake_packet(&mut self, peer: NodeId, phase: Phase, packet: &Packet) {
        match (phase, packet) {
            (Phase::Features, Packet::ConnectionFeatures(theirs)) => self.features_received(peer, theirs),
            (Phase::Challenge, Packet::AuthChallenge(bytes)) => self.challenge_received(peer, bytes),
            (Phase::Challenge, Packet::AuthResponse(bytes)) => self.response_received(peer, bytes),
            (Phase::Parameters, Packet::Protocol(theirs)) => self.protocol_received(peer, theirs),
            (Phase::Challenge, Packet::Protocol(_)) => {
                let text = "the peer does not authenticate; set cram-hmac-alg and shared-secret on both nodes";
                self.out.refuse(peer, Topic::AuthenticationFailed, text);
            }
            (Phase::Parameters, Packet::AuthChallenge(bytes)) => self.challenge_received(peer, bytes),
            (_, other) => self.out.protocol_error(
                peer,
                Topic::OutOfPhase,
                format!("{} in the middle of the handshake", name(other)),
            ),
        }
    }

    /// The control stream: processed at once, never behind data.
    fn control_packet(&mut self, peer: NodeId, volume: VolumeNr, packet: Packet) {
        // Mostly it is this one.
        if let Packet::WriteAck(ack) = &packet
            && let Some(pd) = self.node.connections[peer].peer_devices.get_mut(volume)
        {
            pd.link.io.is_answered(ack.seq);
            return self.write_acked(peer, volume, ack, false);
        }
        self.out.chores.mark_unless(is_routine(&packet));
        match &packet {
            Packet::Ping => return self.send_connection(peer, Socket::Control, Packet::PingAck),
            Packet::PingAck => return self.ping_acked(peer),
            Packet::BarrierAck(ack) => return self.barrier_acked(peer, ack),
            Packet::ConnStChgReply(result) => return self.peer_answered_change(peer, *result),
            Packet::TwopcYes(_) | Packet::TwopcNo(_) | Packet::TwopcRetry(_) => {
                return self.vote_received(peer, &packet);
            }
            Packet::PeerAck(ack) => return self.peer_has_told(peer, ack),
            Packet::FlushForward(asked) => return self.flush_forwarded(peer, asked),
            Packet::DelayProbe(_) => return,
            _ => {}
        }
        if !self.node.devices.contains(volume) {
            // It was removed, and the peer did not know yet.
            return;
        }
        let seq = match &packet {
            Packet::OvResult(result) => Some(result.seq),
            Packet::OvResultId(result) => Some(result.block.seq),
            other => other.block_ack().map(|ack| ack.seq),
        };
        let c = &mut self.node.connections[peer];
        if let Some(seq) = seq {
            c.peer_devices[volume].link.io.is_answered(seq);
        }
        let cfg = &c.cfg;
        let unasked = match &packet {
            // "Received" is not "written", which is what protocol C waits for.
            Packet::RecvAck(_) => cfg.protocol != crate::Protocol::B,
            Packet::Superseded(_) | Packet::RetryWrite(_) => !cfg.two_primaries,
            _ => false,
        };
        if unasked {
            let text = format!("{}, which the configuration rules out", name(&packet));
            return self.out.protocol_error(peer, Topic::UnknownAnswer, text);
        }
        if matches!(packet, Packet::Superseded(_)) {
            hit("conflicts", || "lost: superseded".to_owned());
        }
        match packet {
            Packet::RecvAck(a) | Packet::WriteAck(a) | Packet::Superseded(a) => {
                self.write_acked(peer, volume, &a, false)
            }
            Packet::RsWriteAck(a) if is_resync(&a) || self.node.connections[peer].names_requests() => {
                self.resync_acked(peer, volume, &a, true)
            }
            Packet::RsWriteAck(a) => self.write_acked(peer, volume, &a, true),
            Packet::RsNegAck(a) => self.resync_acked(peer, volume, &a, false),
            Packet::WriteAckInSync(a) => self.write_acked(peer, volume, &a, true),
            Packet::PeersInSync(told) => self.peers_in_sync(peer, volume, &told),
            Packet::NegAck(a) if is_resync(&a) => self.resync_acked(peer, volume, &a, false),
            Packet::NegAck(a) => self.write_refused(peer, volume, &a),
            Packet::RetryWrite(a) => self.write_to_repeat(peer, volume, &a),
            Packet::NegDreply(a) => self.read_refused(peer, volume, &a),
            Packet::RsIsInSync(a) => self.resync_answered(peer, volume, &a, Answer::InSync),
            Packet::NegRsDreply(a) => self.resync_answered(peer, volume, &a, Answer::Failed),
            Packet::RsCancel(a) => self.resync_answered(peer, volume, &a, Answer::Cancelled),
            Packet::StateChgReply(result) => self.peer_answered_change(peer, result),
            Packet::OvResult(r) => self.verify_result(peer, volume, &r),
            Packet::OvResultId(result) => {
                let VerifyResultId { block: BlockAck { sector, size, seq, .. }, outcome } = *result;
                self.verify_result(peer, volume, &VerifyResult { sector, size, seq, outcome });
            }
            other => {
                self.out.protocol_error(peer, Topic::WrongStream, format!("{} on the control stream", name(&other)))
            }
        }
    }

    /// The data stream, once nothing older is in the way.
    pub(crate) fn data_packet(&mut self, peer: NodeId, volume: VolumeNr, packet: Packet, payload: Segments) {
        self.out.chores.mark_unless(is_routine(&packet));
        match &packet {
            Packet::Barrier(nr) => return self.peer_barrier(peer, *nr),
            Packet::UnplugRemote => return,
            Packet::ProtocolUpdate(p) | Packet::Protocol(p) => return self.protocol_changed(peer, p),
            Packet::ConnStChgReq(change) => return self.peer_asks_change(peer, None, change),
            Packet::TwopcPrepare(prepare) => return self.prepare_received(peer, volume, prepare),
            Packet::TwopcPrepRsz(prepare) => return self.resize_prepared(peer, volume, prepare),
            Packet::TwopcCommit(decision) => return self.decision_received(peer, volume, decision, true),
            Packet::TwopcAbort(decision) => return self.decision_received(peer, volume, decision, false),
            Packet::Disconnect => return self.peer_refuses(peer),
            Packet::State(theirs) if volume == VolumeNr::NONE => return self.role_received(peer, theirs),
            Packet::DelayProbe(_) => return,
            Packet::Dagtag(at) => return self.node.connections[peer].position_heard(*at),
            Packet::PeerDagtag(named) => return self.lost_primary_named(peer, named),
            Packet::FlushRequests(sequence) => return self.flush_asked(peer, *sequence),
            Packet::FlushRequestsAck(answer) => return self.flush_answered(peer, answer),
            _ => {}
        }
        if !self.node.devices.contains(volume) {
            self.out.release(payload);
            return self.about_no_volume(peer, volume, &packet);
        }
        match packet {
            Packet::Data(w) => {
                self.peer_wrote(peer, volume, w.range().expect("the decoder checks ranges"));
                self.peer_data(peer, volume, &w, payload);
            }
            Packet::Trim(w) => {
                self.peer_wrote(peer, volume, w.range().expect("the decoder checks ranges"));
                self.peer_trim(peer, volume, &w);
            }
            Packet::Zeroes(w) => {
                self.peer_wrote(peer, volume, w.range().expect("the decoder checks ranges"));
                self.peer_zeroes(peer, volume, &w);
            }
            Packet::DataRequest(r) => self.peer_read(peer, volume, r),
            Packet::DataReply(r) => self.read_answered(peer, volume, &r, payload),
            Packet::OutOfSync(r) => self.peer_out_of_sync(peer, volume, r),
            Packet::RsDataRequest(r) => self.resync_requested(peer, volume, r, Want::Data),
            Packet::RsThinReq(r) => self.resync_requested(peer, volume, r, Want::Thin),
            Packet::CsumRsRequest(r) => self.resync_requested(peer, volume, r.block, Want::Unless(r.digest)),
            Packet::OvRequest(r) => self.resync_requested(peer, volume, r, Want::Verify),
            Packet::OvReply(r) => self.verify_answered(peer, volume, &r),
            Packet::OvDagtagReq(r) => self.resync_requested9(peer, volume, &r, Want::Verify),
            Packet::OvDagtagReply(r) => {
                let DagtagRequest { block, digest, .. } = *r;
                self.verify_answered(peer, volume, &VerifyReply { block, digest });
            }
            Packet::RsDataReply(r) => self.resync_data(peer, volume, &r, payload),
            Packet::RsDeallocated(r) => self.resync_deallocated(peer, volume, r.range(), BlockId::SYNCER),
            Packet::Bitmap(_) | Packet::CompressedBitmap(_) => self.bitmap_received(peer, volume, &packet),
            Packet::SyncParam(p) => self.sync_param_received(peer, volume, &p),
            Packet::Sizes(s) => self.sizes_received(peer, volume, &s),
            Packet::Uuids(u) => self.uuids_received(peer, volume, &u),
            Packet::Uuids110(u) => self.uuids110_received(peer, volume, *u),
            Packet::CurrentUuid(u) => self.current_uuid_received(peer, volume, u),
            Packet::EnableReplicationNext(on) => {
                self.node.connections[peer].peer_devices[volume].link.told.when_bad_next = WhenBad::new(on);
            }
            Packet::EnableReplication(on) => self.replication_enabled(peer, volume, on),
            Packet::RsDagtagReq(r) => self.resync_requested9(peer, volume, &r, Want::Data),
            Packet::RsThinDagtagReq(r) => self.resync_requested9(peer, volume, &r, Want::Thin),
            Packet::RsCsumDagtagReq(r) => self.resync_requested9(peer, volume, &r, Want::Unless(r.digest.clone())),
            Packet::RsDeallocatedId(a) => self.resync_deallocated(peer, volume, a.range(), a.block_id),
            Packet::State(s) => self.state_received(peer, volume, &s),
            Packet::SyncUuid(g) => self.sync_uuid_received(peer, volume, g),
            Packet::StateChgReq(change) => self.peer_asks_change(peer, Some(volume), &change),
            other => {
                self.out.release(payload);
                self.out.protocol_error(peer, Topic::WrongStream, format!("{} on the data stream", name(&other)));
            }
        }
    }

    /// A peer is slow to hear that a volume was removed, or has one that was never here: nothing follows, but that it
    /// does not wait for an answer. A write counts in its epoch.
    fn about_no_volume(&mut self, peer: NodeId, volume: VolumeNr, packet: &Packet) {
        let (answer, range, block_id): (fn(BlockAck) -> Packet, _, _) = match packet {
            Packet::State(_) => return self.node.connections[peer].speaks_in_attempt(self.node.now),
            Packet::StateChgReq(_) => return self.refuse_change(peer, Some(volume), Code::NothingToDo),
            Packet::DataRequest(r) => (Packet::NegDreply, r.range(), r.block_id),
            Packet::Data(w) => (Packet::NegAck, w.range(), w.block_id),
            Packet::Trim(w) | Packet::Zeroes(w) => (Packet::NegAck, w.range(), w.block_id),
            _ => return,
        };
        let Some(range) = range else { return };
        let ack = BlockAck { sector: range.start, block_id, size: range.len(), seq: 0 };
        self.send(peer, Socket::Control, volume, answer(ack));
        if changes_data(packet) {
            self.peer_wrote(peer, VolumeNr::NONE, range);
            let (epoch, told) = self.node.connections[peer].joins_refused();
            self.leave_epoch(peer, epoch, told);
        }
    }

    /// Options changed on a live connection. They are the peer's, and need not be this node's (5.2): a write says
    /// itself how it is to be answered, and from here on what comes is checked by the peer's algorithm.
    fn protocol_changed(&mut self, peer: NodeId, p: &wire::Protocol) {
        let name = p.integrity_alg.as_str();
        if !name.is_empty() && wire::digest_len(name).is_none() {
            let text = format!("the peer changed data-integrity-alg to \"{name}\", which is not supported here");
            return self.out.give_up(peer, Topic::IntegrityAlgDiffers, text);
        }
        let own = self.node.connections[peer].cfg.integrity.as_deref().unwrap_or_default();
        if own != name {
            let text = format!(
                "the peer changed data-integrity-alg to \"{name}\", here it is \"{own}\": make them equal before the \
                 nodes connect the next time"
            );
            self.out.note(Severity::Warning, None, Some(peer), Topic::IntegrityAlgDiffers, text);
        }
    }

    pub(crate) fn refuse_change(&mut self, peer: NodeId, volume: Option<VolumeNr>, result: Code) {
        let first = self.node.devices.first();
        let packet = match self.node.connections[peer].names(volume, first) {
            Some(_) => Packet::StateChgReply(result),
            None => Packet::ConnStChgReply(result),
        };
        self.send(peer, Socket::Control, volume.unwrap_or(first), packet);
    }
}

impl Connection {
    /// Something comes from the peer: the phase of the link that it comes by.
    pub(crate) fn hears(&mut self, now: Instant) -> Option<Phase> {
        let phase = self.link.as_ref()?.phase;
        self.last_heard = now;
        Some(phase)
    }
}

fn is_resync(ack: &BlockAck) -> bool {
    ack.block_id == BlockId::SYNCER
}

/// The packet's name for messages.
fn name(packet: &Packet) -> String {
    let text = format!("{packet:?}");
    let end = text.find(['(', ' ', '{']).unwrap_or(text.len());
    text[..end].to_owned()
}
