//! Which packet goes where.

use crate::Resource;
use crate::api::Segments;
use crate::connection::{Connection, Phase};
use crate::decide::StateChangeResult as Code;
use crate::decide::topic::Topic;
use crate::housekeeping::chores::is_routine;
use crate::peer_device::WhenBad;
use crate::resync::session::{Answer, Want};
use crate::rows::hit;
use units::{Instant, NodeId, VolumeNr};
use wire::{BlockAck, BlockId, DagtagRequest, Packet, Socket, VerifyReply, VerifyResult, VerifyResultId};

impl Resource {
    pub(crate) fn packet(
        &mut self,
        i: NodeId,
        (stream, phase): (Socket, Phase),
        volume: VolumeNr,
        packet: Packet,
        payload: Segments,
    ) {
        match (stream, phase) {
            (Socket::Control, _) => self.control_packet(i, volume, packet),
            (Socket::Data, Phase::Running) => self.queue_data(i, volume, packet, payload),
            (Socket::Data, _) => {
                self.out.release(payload);
                self.out.chores.mark();
                self.handshake_packet(i, phase, &packet);
            }
        }
    }

    /// Before the peer's P_PROTOCOL only these are in order (`docs/spec/wire-protocol.md` 7).
    fn handshake_packet(&mut self, i: NodeId, phase: Phase, packet: &Packet) {
        match (phase, packet) {
            (Phase::Features, Packet::ConnectionFeatures(theirs)) => self.features_received(i, theirs),
            (Phase::Challenge, Packet::AuthChallenge(bytes)) => self.challenge_received(i, bytes),
            (Phase::Challenge, Packet::AuthResponse(bytes)) => self.response_received(i, bytes),
            (Phase::Parameters, Packet::Protocol(theirs)) => self.protocol_received(i, theirs),
            (Phase::Challenge, Packet::Protocol(_)) => {
                let text = "the peer does not authenticate; set cram-hmac-alg and shared-secret on both nodes";
                self.out.refuse(i, Topic::AuthenticationFailed, text);
            }
            (Phase::Parameters, Packet::AuthChallenge(bytes)) => self.challenge_received(i, bytes),
            (_, other) => {
                self.out.protocol_error(i, Topic::OutOfPhase, format!("{} in the middle of the handshake", name(other)))
            }
        }
    }

    /// The control stream: processed at once, never behind data.
    fn control_packet(&mut self, i: NodeId, d: VolumeNr, packet: Packet) {
        // Mostly it is this one.
        if let Packet::WriteAck(ack) = &packet
            && let Some(pd) = self.node.connections[i].peer_devices.get_mut(d)
        {
            pd.link.io.is_answered(ack.seq);
            return self.write_acked(i, d, ack, false);
        }
        self.out.chores.mark_unless(is_routine(&packet));
        match &packet {
            Packet::Ping => return self.send_connection(i, Socket::Control, Packet::PingAck),
            Packet::PingAck => return self.ping_acked(i),
            Packet::BarrierAck(ack) => return self.barrier_acked(i, ack),
            Packet::ConnStChgReply(result) => return self.peer_answered_change(i, *result),
            Packet::TwopcYes(_) | Packet::TwopcNo(_) | Packet::TwopcRetry(_) => return self.vote_received(i, &packet),
            Packet::PeerAck(ack) => return self.peer_has_told(i, ack),
            Packet::FlushForward(asked) => return self.flush_forwarded(i, asked),
            Packet::DelayProbe(_) => return,
            _ => {}
        }
        if !self.node.devices.contains(d) {
            return self.out.protocol_error(
                i,
                Topic::UnknownVolume,
                format!("{} for unknown volume {d}", name(&packet)),
            );
        }
        let seq = match &packet {
            Packet::OvResult(result) => Some(result.seq),
            Packet::OvResultId(result) => Some(result.block.seq),
            other => other.block_ack().map(|ack| ack.seq),
        };
        let c = &mut self.node.connections[i];
        if let Some(seq) = seq {
            c.peer_devices[d].link.io.is_answered(seq);
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
            return self.out.protocol_error(i, Topic::UnknownAnswer, text);
        }
        if matches!(packet, Packet::Superseded(_)) {
            hit("conflicts", || "lost: superseded".to_owned());
        }
        match packet {
            Packet::RecvAck(a) | Packet::WriteAck(a) | Packet::Superseded(a) => self.write_acked(i, d, &a, false),
            Packet::RsWriteAck(a) if is_resync(&a) || self.node.connections[i].names_requests() => {
                self.resync_acked(i, d, &a, true)
            }
            Packet::RsWriteAck(a) => self.write_acked(i, d, &a, true),
            Packet::RsNegAck(a) => self.resync_acked(i, d, &a, false),
            Packet::WriteAckInSync(a) => self.write_acked(i, d, &a, true),
            Packet::PeersInSync(told) => self.peers_in_sync(i, d, &told),
            Packet::NegAck(a) if is_resync(&a) => self.resync_acked(i, d, &a, false),
            Packet::NegAck(a) => self.write_refused(i, d, &a),
            Packet::RetryWrite(a) => self.write_to_repeat(i, d, &a),
            Packet::NegDreply(a) => self.read_refused(i, d, &a),
            Packet::RsIsInSync(a) => self.resync_answered(i, d, &a, Answer::InSync),
            Packet::NegRsDreply(a) => self.resync_answered(i, d, &a, Answer::Failed),
            Packet::RsCancel(a) => self.resync_answered(i, d, &a, Answer::Cancelled),
            Packet::StateChgReply(result) => self.peer_answered_change(i, result),
            Packet::OvResult(r) => self.verify_result(i, d, &r),
            Packet::OvResultId(result) => {
                let VerifyResultId { block: BlockAck { sector, size, seq, .. }, outcome } = *result;
                self.verify_result(i, d, &VerifyResult { sector, size, seq, outcome });
            }
            other => self.out.protocol_error(i, Topic::WrongStream, format!("{} on the control stream", name(&other))),
        }
    }

    /// The data stream, once nothing older is in the way.
    pub(crate) fn data_packet(&mut self, i: NodeId, volume: VolumeNr, packet: Packet, payload: Segments) {
        self.out.chores.mark_unless(is_routine(&packet));
        match &packet {
            Packet::Barrier(nr) => return self.peer_barrier(i, *nr),
            Packet::UnplugRemote => return,
            Packet::ProtocolUpdate(p) | Packet::Protocol(p) => return self.protocol_changed(i, p),
            Packet::ConnStChgReq(change) => return self.peer_asks_change(i, None, change),
            Packet::TwopcPrepare(prepare) => return self.prepare_received(i, volume, prepare),
            Packet::TwopcPrepRsz(prepare) => return self.resize_prepared(i, volume, prepare),
            Packet::TwopcCommit(decision) => return self.decision_received(i, volume, decision, true),
            Packet::TwopcAbort(decision) => return self.decision_received(i, volume, decision, false),
            Packet::Disconnect => return self.peer_refuses(i),
            Packet::State(theirs) if volume == VolumeNr::NONE => return self.role_received(i, theirs),
            Packet::DelayProbe(_) => return,
            Packet::Dagtag(at) => return self.node.connections[i].position_heard(*at),
            Packet::PeerDagtag(named) => return self.lost_primary_named(i, named),
            Packet::FlushRequests(sequence) => return self.flush_asked(i, *sequence),
            Packet::FlushRequestsAck(answer) => return self.flush_answered(i, answer),
            _ => {}
        }
        let d = volume;
        if !self.node.devices.contains(d) {
            self.out.release(payload);
            if matches!(packet, Packet::State(_)) {
                self.node.connections[i].speaks_in_attempt(self.node.now);
            }
            let tolerated = matches!(
                packet,
                Packet::SyncParam(_)
                    | Packet::Sizes(_)
                    | Packet::Uuids(_)
                    | Packet::Uuids110(_)
                    | Packet::CurrentUuid(_)
                    | Packet::EnableReplicationNext(_)
                    | Packet::State(_)
            );
            if !tolerated {
                self.out.protocol_error(
                    i,
                    Topic::UnknownVolume,
                    format!("{} for unknown volume {volume}", name(&packet)),
                );
            }
            return;
        }
        match packet {
            Packet::Data(w) => {
                self.peer_wrote(i, d, w.range().expect("the decoder checks ranges"));
                self.peer_data(i, d, &w, payload);
            }
            Packet::Trim(w) => {
                self.peer_wrote(i, d, w.range().expect("the decoder checks ranges"));
                self.peer_trim(i, d, &w);
            }
            Packet::Zeroes(w) => {
                self.peer_wrote(i, d, w.range().expect("the decoder checks ranges"));
                self.peer_zeroes(i, d, &w);
            }
            Packet::DataRequest(r) => self.peer_read(i, d, r),
            Packet::DataReply(r) => self.read_answered(i, d, &r, payload),
            Packet::OutOfSync(r) => self.peer_out_of_sync(i, d, r),
            Packet::RsDataRequest(r) => self.resync_requested(i, d, r, Want::Data),
            Packet::RsThinReq(r) => self.resync_requested(i, d, r, Want::Thin),
            Packet::CsumRsRequest(r) => self.resync_requested(i, d, r.block, Want::Unless(r.digest)),
            Packet::OvRequest(r) => self.resync_requested(i, d, r, Want::Verify),
            Packet::OvReply(r) => self.verify_answered(i, d, &r),
            Packet::OvDagtagReq(r) => self.resync_requested9(i, d, &r, Want::Verify),
            Packet::OvDagtagReply(r) => {
                let DagtagRequest { block, digest, .. } = *r;
                self.verify_answered(i, d, &VerifyReply { block, digest });
            }
            Packet::RsDataReply(r) => self.resync_data(i, d, &r, payload),
            Packet::RsDeallocated(r) => self.resync_deallocated(i, d, r.range(), BlockId::SYNCER),
            Packet::Bitmap(_) | Packet::CompressedBitmap(_) => self.bitmap_received(i, d, &packet),
            Packet::SyncParam(p) => self.sync_param_received(i, d, &p),
            Packet::Sizes(s) => self.sizes_received(i, d, &s),
            Packet::Uuids(u) => self.uuids_received(i, d, &u),
            Packet::Uuids110(u) => self.uuids110_received(i, d, *u),
            Packet::CurrentUuid(u) => self.current_uuid_received(i, d, u),
            Packet::EnableReplicationNext(on) => {
                self.node.connections[i].peer_devices[d].link.told.when_bad_next = WhenBad::new(on);
            }
            Packet::EnableReplication(on) => self.replication_enabled(i, d, on),
            Packet::RsDagtagReq(r) => self.resync_requested9(i, d, &r, Want::Data),
            Packet::RsThinDagtagReq(r) => self.resync_requested9(i, d, &r, Want::Thin),
            Packet::RsCsumDagtagReq(r) => self.resync_requested9(i, d, &r, Want::Unless(r.digest.clone())),
            Packet::RsDeallocatedId(a) => self.resync_deallocated(i, d, a.range(), a.block_id),
            Packet::State(s) => self.state_received(i, d, &s),
            Packet::SyncUuid(g) => self.sync_uuid_received(i, d, g),
            Packet::StateChgReq(change) => self.peer_asks_change(i, Some(d), &change),
            other => {
                self.out.release(payload);
                self.out.protocol_error(i, Topic::WrongStream, format!("{} on the data stream", name(&other)));
            }
        }
    }

    /// Options changed on a live connection: what cannot differ must not.
    fn protocol_changed(&mut self, i: NodeId, p: &wire::Protocol) {
        let own = self.node.connections[i].cfg.integrity.clone().unwrap_or_default();
        if own != p.integrity_alg.as_str() {
            let text = format!("the peer changed data-integrity-alg to \"{}\", here it is \"{own}\"", p.integrity_alg);
            self.out.give_up(i, Topic::IntegrityAlgDiffers, text);
        }
    }

    pub(crate) fn refuse_change(&mut self, i: NodeId, d: Option<VolumeNr>, result: Code) {
        let packet = if d.is_some() || self.node.connections[i].version() < 100 {
            Packet::StateChgReply(result)
        } else {
            Packet::ConnStChgReply(result)
        };
        self.send(i, Socket::Control, d.unwrap_or(self.node.devices.first()), packet);
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
