//! The packet enumeration: one variant per packet, parsed from and emitted to bytes.

use crate::agreement::{Decision, Prepare, PrepareResize, Vote};
use crate::bitmap::parse_words;
use crate::block::{
    BarrierAck, BarrierNr, BlockAck, BlockData, BlockRange, BlockRequest, ChecksumRequest, DagtagRequest, DelayProbe,
    VerifyReply, VerifyResult, VerifyResultId, Write, WriteRange,
};
use crate::command::Command;
use crate::dialect::{Dialect, HeaderFormat};
use crate::fields::{Fields, Put};
use crate::generations::{CurrentUuid, Uuids110};
use crate::handshake::{ConnectionFeatures, Protocol, Sizes, SyncParam, Uuids};
use crate::header::Header;
use crate::inline::AuthBytes;
use crate::peers::{ConfirmStable, Dagtag, FlushAnswer, PeerAck, PeerDagtag, PeersInSync, flush_sequence};
use crate::run_length::CompressedBitmap;
use crate::state::{DiskNumbering, StateWord};
use crate::state_change::{StateChange, StateChangeResult};
use crate::violation::Violation;
use std::fmt;
use units::{Generation, VolumeNr};

/// A packet without its volume number and without block payload. Variants are named as in
/// `docs/spec/wire-protocol.md` 4, without `P_`. What is large and rare is boxed, as every write passes a few packets
/// from hand to hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// "This TCP connection is the data stream": first packet of who opened it.
    InitialData,
    /// "This TCP connection is the control stream": first packet of who opened it.
    InitialMeta,
    /// What the sender speaks.
    ConnectionFeatures(ConnectionFeatures),
    /// Random bytes to answer.
    AuthChallenge(Box<AuthBytes>),
    /// The answer to a challenge.
    AuthResponse(Box<AuthBytes>),
    /// Options that both must share.
    Protocol(Box<Protocol>),
    /// Those options, changed on a live connection.
    ProtocolUpdate(Box<Protocol>),
    /// Resync and verify options; P_SYNC_PARAM or P_SYNC_PARAM89 by version.
    SyncParam(Box<SyncParam>),
    /// Sizes of disk and device.
    Sizes(Box<Sizes>),
    /// Data generations.
    Uuids(Box<Uuids>),
    /// The sender's state of the volume.
    State(StateWord),
    /// The generation of the resync that starts.
    SyncUuid(Generation),
    /// Change the state of this volume on both nodes.
    StateChgReq(StateChange),
    /// The answer.
    StateChgReply(StateChangeResult),
    /// Change the state of all volumes on both nodes.
    ConnStChgReq(StateChange),
    /// The answer.
    ConnStChgReply(StateChangeResult),

    /// A replicated write; payload follows.
    Data(Write),
    /// A replicated discard.
    Trim(WriteRange),
    /// A replicated "write zeroes".
    Zeroes(WriteRange),
    /// End of an epoch.
    Barrier(BarrierNr),
    /// An epoch is on stable storage.
    BarrierAck(BarrierAck),
    /// No more requests for now.
    UnplugRemote,
    /// Read this for me.
    DataRequest(BlockRequest),
    /// What was read; payload follows.
    DataReply(BlockData),
    /// The write was received.
    RecvAck(BlockAck),
    /// The write is done.
    WriteAck(BlockAck),
    /// A resync write (`block_id` is `SYNCER`) or an application's write is done, and the block is in sync.
    RsWriteAck(BlockAck),
    /// Conflicting writes: yours is covered by mine.
    Superseded(BlockAck),
    /// Conflicting writes: do yours again.
    RetryWrite(BlockAck),
    /// The write failed.
    NegAck(BlockAck),
    /// The read failed.
    NegDreply(BlockAck),

    /// Send this block for resync.
    RsDataRequest(BlockRequest),
    /// The same; if it is all zeroes say so instead.
    RsThinReq(BlockRequest),
    /// The same, unless its digest is this.
    CsumRsRequest(ChecksumRequest),
    /// A block for resync; payload follows.
    RsDataReply(BlockData),
    /// The block reads as zeroes here.
    RsDeallocated(BlockRange),
    /// The digests are equal.
    RsIsInSync(BlockAck),
    /// The resync request failed.
    NegRsDreply(BlockAck),
    /// The resync request is not served now.
    RsCancel(BlockAck),
    /// Written here but not replicated.
    OutOfSync(BlockRange),

    /// Send the digest of this block.
    OvRequest(BlockRequest),
    /// The digest.
    OvReply(VerifyReply),
    /// What the comparison said.
    OvResult(VerifyResult),

    /// Plain bitmap words, bit n of the words at weight n % 64; none ends the bitmap. At most 511.
    Bitmap(Vec<u64>),
    /// Run-length coded bitmap.
    CompressedBitmap(CompressedBitmap),

    /// Prepare a change of state.
    TwopcPrepare(Box<Prepare>),
    /// Prepare a change of size.
    TwopcPrepRsz(Box<PrepareResize>),
    /// Carry it out.
    TwopcCommit(Box<Decision>),
    /// Give it up.
    TwopcAbort(Box<Decision>),
    /// It can be carried out.
    TwopcYes(Box<Vote>),
    /// It cannot.
    TwopcNo(Box<Vote>),
    /// Not now.
    TwopcRetry(Box<Vote>),
    /// The handshake has shown that the two nodes must not be connected.
    Disconnect,

    /// The generations of the sender's data, one bitmap for each node.
    Uuids110(Box<Uuids110>),
    /// The sender's current generation.
    CurrentUuid(CurrentUuid),
    /// Position of the write before the next one on this connection.
    Dagtag(Dagtag),
    /// Who has the sender's writes.
    PeerAck(PeerAck),
    /// Position of the last write from a third node.
    PeerDagtag(PeerDagtag),
    /// Who has the same data in a range.
    PeersInSync(PeersInSync),
    /// Writes that are on stable storage before their epoch ends.
    ConfirmStable(ConfirmStable),
    /// Tell who has your writes up to now; with a sequence number.
    FlushRequests(u64),
    /// A third node has asked; what came before on this stream is what it asked for.
    FlushForward(FlushAnswer),
    /// The writes that the Primary had begun are known here.
    FlushRequestsAck(FlushAnswer),
    /// Are writes to be sent to the sender when it becomes the target of a resync?
    EnableReplicationNext(bool),
    /// Are writes to be sent to the sender from now on?
    EnableReplication(bool),

    /// The write is done, and the block is in sync.
    WriteAckInSync(BlockAck),
    /// The resync write failed.
    RsNegAck(BlockAck),
    /// The resync request is not served now: the sender is Ahead.
    RsCancelAhead(BlockAck),
    /// The block of this request reads as zeroes here.
    RsDeallocatedId(BlockAck),
    /// Send this block for resync.
    RsDagtagReq(Box<DagtagRequest>),
    /// The same, unless its digest is this.
    RsCsumDagtagReq(Box<DagtagRequest>),
    /// The same; if it is all zeroes say so instead.
    RsThinDagtagReq(Box<DagtagRequest>),
    /// Send the digest of this block.
    OvDagtagReq(Box<DagtagRequest>),
    /// The digest.
    OvDagtagReply(Box<DagtagRequest>),
    /// What the comparison of this request's block said.
    OvResultId(Box<VerifyResultId>),

    /// Are you there?
    Ping,
    /// Yes.
    PingAck,
    /// Obsolete; to be ignored.
    DelayProbe(DelayProbe),
}

/// Every packet that is an answer about one block.
macro_rules! block_acks {
    ($ack:ident) => {
        Packet::RecvAck($ack)
            | Packet::WriteAck($ack)
            | Packet::RsWriteAck($ack)
            | Packet::Superseded($ack)
            | Packet::RetryWrite($ack)
            | Packet::NegAck($ack)
            | Packet::NegDreply($ack)
            | Packet::RsIsInSync($ack)
            | Packet::NegRsDreply($ack)
            | Packet::RsCancel($ack)
            | Packet::WriteAckInSync($ack)
            | Packet::RsNegAck($ack)
            | Packet::RsCancelAhead($ack)
    };
}

/// Why a packet cannot be sent. A fault of the caller, never of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsendable {
    /// The dialect does not have this packet.
    NotInDialect {
        /// The packet.
        command: Command,
        /// The agreed version.
        version: u32,
    },
    /// The dialect has no volume numbers, and this volume is not 0.
    NoVolumes {
        /// The volume.
        volume: VolumeNr,
    },
    /// More bytes than the packet may have in this dialect.
    TooLong {
        /// How many.
        bytes: u64,
    },
    /// P_PROTOCOL of version 86 has no integrity algorithm.
    NoIntegrityAlg,
    /// P_SIZES needs the queue limits in this dialect.
    NoQueueLimits,
}

impl fmt::Display for Unsendable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsendable::NotInDialect { command, version } => {
                write!(f, "{command} cannot be sent: protocol version {version} with the agreed features lacks it")
            }
            Unsendable::NoVolumes { volume } => {
                write!(f, "nothing about volume {volume} can be sent: protocol versions below 100 have only volume 0")
            }
            Unsendable::TooLong { bytes } => {
                write!(f, "{bytes} bytes are too many for this packet and protocol version")
            }
            Unsendable::NoIntegrityAlg => {
                write!(
                    f,
                    "data-integrity-alg cannot be agreed: protocol version 86 lacks it; unset it or cap no version"
                )
            }
            Unsendable::NoQueueLimits => write!(f, "P_SIZES cannot be sent without queue limits in this dialect"),
        }
    }
}

impl std::error::Error for Unsendable {}

impl Packet {
    /// The command it is sent with in `dialect`.
    #[must_use]
    pub const fn command(&self, dialect: &Dialect) -> Command {
        match self {
            Packet::InitialData => Command::InitialData,
            Packet::InitialMeta => Command::InitialMeta,
            Packet::ConnectionFeatures(_) => Command::ConnectionFeatures,
            Packet::AuthChallenge(_) => Command::AuthChallenge,
            Packet::AuthResponse(_) => Command::AuthResponse,
            Packet::Protocol(_) => Command::Protocol,
            Packet::ProtocolUpdate(_) => Command::ProtocolUpdate,
            Packet::SyncParam(_) => SyncParam::command(dialect),
            Packet::Sizes(_) => Command::Sizes,
            Packet::Uuids(_) => Command::Uuids,
            Packet::State(_) => Command::State,
            Packet::SyncUuid(_) => Command::SyncUuid,
            Packet::StateChgReq(_) => Command::StateChgReq,
            Packet::StateChgReply(_) => Command::StateChgReply,
            Packet::ConnStChgReq(_) => Command::ConnStChgReq,
            Packet::ConnStChgReply(_) => Command::ConnStChgReply,
            Packet::Data(_) => Command::Data,
            Packet::Trim(_) => Command::Trim,
            Packet::Zeroes(_) => Command::Zeroes,
            Packet::Barrier(_) => Command::Barrier,
            Packet::BarrierAck(_) => Command::BarrierAck,
            Packet::UnplugRemote => Command::UnplugRemote,
            Packet::DataRequest(_) => Command::DataRequest,
            Packet::DataReply(_) => Command::DataReply,
            Packet::RecvAck(_) => Command::RecvAck,
            Packet::WriteAck(_) => Command::WriteAck,
            Packet::RsWriteAck(_) => Command::RsWriteAck,
            Packet::Superseded(_) => Command::Superseded,
            Packet::RetryWrite(_) => Command::RetryWrite,
            Packet::NegAck(_) => Command::NegAck,
            Packet::NegDreply(_) => Command::NegDreply,
            Packet::RsDataRequest(_) => Command::RsDataRequest,
            Packet::RsThinReq(_) => Command::RsThinReq,
            Packet::CsumRsRequest(_) => Command::CsumRsRequest,
            Packet::RsDataReply(_) => Command::RsDataReply,
            Packet::RsDeallocated(_) => Command::RsDeallocated,
            Packet::RsIsInSync(_) => Command::RsIsInSync,
            Packet::NegRsDreply(_) => Command::NegRsDreply,
            Packet::RsCancel(_) => Command::RsCancel,
            Packet::OutOfSync(_) => Command::OutOfSync,
            Packet::OvRequest(_) => Command::OvRequest,
            Packet::OvReply(_) => Command::OvReply,
            Packet::OvResult(_) => Command::OvResult,
            Packet::Bitmap(_) => Command::Bitmap,
            Packet::CompressedBitmap(_) => Command::CompressedBitmap,
            Packet::TwopcPrepare(_) => Command::TwopcPrepare,
            Packet::TwopcPrepRsz(_) => Command::TwopcPrepRsz,
            Packet::TwopcCommit(_) => Command::TwopcCommit,
            Packet::TwopcAbort(_) => Command::TwopcAbort,
            Packet::TwopcYes(_) => Command::TwopcYes,
            Packet::TwopcNo(_) => Command::TwopcNo,
            Packet::TwopcRetry(_) => Command::TwopcRetry,
            Packet::Uuids110(_) => Command::Uuids110,
            Packet::CurrentUuid(_) => Command::CurrentUuid,
            Packet::Dagtag(_) => Command::Dagtag,
            Packet::PeerAck(_) => Command::PeerAck,
            Packet::PeerDagtag(_) => Command::PeerDagtag,
            Packet::PeersInSync(_) => Command::PeersInSync,
            Packet::ConfirmStable(_) => Command::ConfirmStable,
            Packet::FlushRequests(_) => Command::FlushRequests,
            Packet::FlushForward(_) => Command::FlushForward,
            Packet::FlushRequestsAck(_) => Command::FlushRequestsAck,
            Packet::EnableReplicationNext(_) => Command::EnableReplicationNext,
            Packet::EnableReplication(_) => Command::EnableReplication,
            Packet::WriteAckInSync(_) => Command::WriteAckInSync,
            Packet::RsNegAck(_) => Command::RsNegAck,
            Packet::RsCancelAhead(_) => Command::RsCancelAhead,
            Packet::RsDeallocatedId(_) => Command::RsDeallocatedId,
            Packet::RsDagtagReq(_) => Command::RsDagtagReq,
            Packet::RsCsumDagtagReq(_) => Command::RsCsumDagtagReq,
            Packet::RsThinDagtagReq(_) => Command::RsThinDagtagReq,
            Packet::OvDagtagReq(_) => Command::OvDagtagReq,
            Packet::OvDagtagReply(_) => Command::OvDagtagReply,
            Packet::OvResultId(_) => Command::OvResultId,
            Packet::Disconnect => Command::Disconnect,
            Packet::Ping => Command::Ping,
            Packet::PingAck => Command::PingAck,
            Packet::DelayProbe(_) => Command::DelayProbe,
        }
    }

    /// What an answer about one block carries; `None` for every other packet.
    #[must_use]
    pub const fn block_ack(&self) -> Option<&BlockAck> {
        match self {
            block_acks!(ack) => Some(ack),
            _ => None,
        }
    }

    /// Bytes of block payload that follow the packet on the stream; not part of what [`Packet::emit`] writes.
    #[must_use]
    pub const fn payload_len(&self) -> u64 {
        match self {
            Packet::Data(w) => w.size.0,
            Packet::DataReply(b) | Packet::RsDataReply(b) => b.size.0,
            _ => 0,
        }
    }

    /// Appends header, fixed part and digest to `out`; the header's length counts the payload too. The volume of
    /// connection-level packets is not looked at. Does not allocate if `out` has room for [`crate::MAX_PACKET`] more.
    ///
    /// Errors leave `out` as it was.
    pub fn emit(&self, volume: VolumeNr, dialect: &Dialect, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        let start = out.len();
        let result = self.append(volume, dialect, out);
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn append(&self, volume: VolumeNr, dialect: &Dialect, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        let (start, command, version) = (out.len(), self.command(dialect), dialect.version);
        if !command.is_sendable(dialect) {
            return Err(Unsendable::NotInDialect { command, version: version.number() });
        }
        let handshake = matches!(command, Command::InitialData | Command::InitialMeta | Command::ConnectionFeatures);
        let header_len = if handshake { HeaderFormat::H80.size() } else { version.header_len() };
        out.resize(start + header_len, 0);
        self.emit_body(dialect, out)?;

        let body = out.len() - start - header_len;
        let payload = self.payload_len();
        let length = u32::try_from(body as u64 + payload).map_err(|_| Unsendable::TooLong { bytes: payload })?;
        if payload > u64::from(version.max_block()) || body + header_len > crate::MAX_PACKET {
            return Err(Unsendable::TooLong { bytes: length.into() });
        }
        let no_volume = if version.is_9() { VolumeNr::NONE } else { VolumeNr(0) };
        let volume = if command.is_connection_level() { no_volume } else { volume };
        let format = if handshake { HeaderFormat::H80 } else { HeaderFormat::choose(version, length) };
        let header = Header { volume, command: command.number(), length };
        let bytes = header.emit(format).ok_or(Unsendable::NoVolumes { volume })?;
        out[start..start + header_len].copy_from_slice(&bytes[..header_len]);
        Ok(())
    }

    fn emit_body(&self, dialect: &Dialect, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        let numbering = DiskNumbering::of(dialect.version);
        match self {
            Packet::InitialData | Packet::InitialMeta | Packet::UnplugRemote => {}
            Packet::Ping | Packet::PingAck | Packet::Disconnect => {}
            Packet::ConnectionFeatures(p) => p.emit(out),
            Packet::AuthChallenge(b) | Packet::AuthResponse(b) => out.extend_from_slice(b.as_slice()),
            Packet::Protocol(p) | Packet::ProtocolUpdate(p) => p.emit(dialect, out)?,
            Packet::SyncParam(p) => p.emit(dialect, out),
            Packet::Sizes(p) => p.emit(dialect, out)?,
            Packet::Uuids(p) => p.emit(out),
            Packet::State(s) => out.put32(s.to_bits(numbering)),
            Packet::SyncUuid(g) => out.put64(g.0),
            Packet::StateChgReq(c) | Packet::ConnStChgReq(c) => {
                let (mask, val) = c.to_bits(numbering);
                out.put32(mask);
                out.put32(val);
            }
            Packet::StateChgReply(r) | Packet::ConnStChgReply(r) => out.put32(r.code().cast_unsigned()),
            Packet::Data(w) => w.emit(out),
            Packet::Trim(w) | Packet::Zeroes(w) => w.emit(out)?,
            Packet::Barrier(b) => {
                b.emit(out);
                out.put32(0);
            }
            Packet::BarrierAck(b) => b.emit(out),
            Packet::DataReply(b) | Packet::RsDataReply(b) => b.emit(out),
            Packet::DataRequest(r) | Packet::RsDataRequest(r) | Packet::RsThinReq(r) | Packet::OvRequest(r) => {
                r.emit(out)?;
            }
            Packet::CsumRsRequest(r) => r.emit(out)?,
            Packet::OvReply(r) => r.emit(out)?,
            Packet::OvResult(r) => r.emit(out)?,
            block_acks!(a) => a.emit(out)?,
            Packet::RsDeallocated(r) | Packet::OutOfSync(r) => r.emit(out)?,
            Packet::Bitmap(words) => words.iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes())),
            Packet::CompressedBitmap(c) => c.emit(out),
            Packet::TwopcPrepare(p) => p.emit(dialect, out),
            Packet::TwopcPrepRsz(p) => p.emit(dialect, out),
            Packet::TwopcCommit(p) | Packet::TwopcAbort(p) => p.emit(dialect, out),
            Packet::TwopcYes(v) | Packet::TwopcNo(v) | Packet::TwopcRetry(v) => v.emit(out),
            Packet::Uuids110(u) => u.emit(out)?,
            Packet::CurrentUuid(u) => u.emit(out),
            Packet::Dagtag(d) => out.put64(d.0),
            Packet::PeerAck(a) => a.emit(out),
            Packet::PeerDagtag(d) => d.emit(out),
            Packet::PeersInSync(p) => p.emit(out)?,
            Packet::ConfirmStable(c) => c.emit(out),
            Packet::FlushRequests(sequence) => out.put64(*sequence),
            Packet::FlushForward(a) | Packet::FlushRequestsAck(a) => a.emit(out),
            Packet::EnableReplicationNext(on) | Packet::EnableReplication(on) => {
                out.put8((*on).into());
                out.put_padded(&[], 3);
            }
            Packet::RsDeallocatedId(a) => a.emit(out)?,
            Packet::RsDagtagReq(r) | Packet::RsCsumDagtagReq(r) | Packet::RsThinDagtagReq(r) => r.emit(out)?,
            Packet::OvDagtagReq(r) | Packet::OvDagtagReply(r) => r.emit(out)?,
            Packet::OvResultId(r) => r.emit(out)?,
            Packet::DelayProbe(p) => {
                out.put32(p.seq);
                out.put32(p.offset);
            }
        }
        Ok(())
    }

    /// Parses a packet's body. `body` is the fixed part and, for a block, its digest of `digest_len` bytes; `payload`
    /// is the number of bytes after that. Lengths are checked by the caller against the command table.
    pub(crate) fn parse(
        command: Command,
        dialect: &Dialect,
        body: &[u8],
        digest_len: usize,
        payload: u32,
    ) -> Result<Packet, Violation> {
        let f = &mut Fields::new(body, command);
        Ok(match command {
            Command::InitialData => Packet::InitialData,
            Command::InitialMeta => Packet::InitialMeta,
            Command::ConnectionFeatures => Packet::ConnectionFeatures(ConnectionFeatures::parse(f)?),
            Command::AuthChallenge => Packet::AuthChallenge(Box::new(auth(f)?)),
            Command::AuthResponse => Packet::AuthResponse(Box::new(auth(f)?)),
            Command::Protocol => Packet::Protocol(Box::new(Protocol::parse(f, dialect)?)),
            Command::ProtocolUpdate => Packet::ProtocolUpdate(Box::new(Protocol::parse(f, dialect)?)),
            Command::SyncParam | Command::SyncParam89 => Packet::SyncParam(Box::new(SyncParam::parse(f, dialect)?)),
            Command::Sizes => Packet::Sizes(Box::new(Sizes::parse(f, dialect)?)),
            Command::Uuids => Packet::Uuids(Box::new(Uuids::parse(f)?)),
            Command::State => Packet::State(state(f, dialect)?),
            Command::SyncUuid => Packet::SyncUuid(Generation(f.u64()?)),
            Command::StateChgReq => Packet::StateChgReq(state_change(f, dialect)?),
            Command::StateChgReply => Packet::StateChgReply(result(f)?),
            Command::ConnStChgReq => Packet::ConnStChgReq(state_change(f, dialect)?),
            Command::ConnStChgReply => Packet::ConnStChgReply(result(f)?),
            Command::Data => Packet::Data(Write::parse(f, digest_len, payload)?),
            Command::Trim => Packet::Trim(WriteRange::parse(f)?),
            Command::Zeroes => Packet::Zeroes(WriteRange::parse(f)?),
            Command::Barrier => Packet::Barrier(BarrierNr::parse(f)?),
            Command::BarrierAck => Packet::BarrierAck(BarrierAck::parse(f)?),
            Command::UnplugRemote => Packet::UnplugRemote,
            Command::DataRequest => Packet::DataRequest(BlockRequest::parse(f)?),
            Command::DataReply => Packet::DataReply(BlockData::parse(f, digest_len, payload)?),
            Command::RecvAck => Packet::RecvAck(BlockAck::parse(f)?),
            Command::WriteAck => Packet::WriteAck(BlockAck::parse(f)?),
            Command::RsWriteAck => Packet::RsWriteAck(BlockAck::parse(f)?),
            Command::Superseded => Packet::Superseded(BlockAck::parse(f)?),
            Command::RetryWrite => Packet::RetryWrite(BlockAck::parse(f)?),
            Command::NegAck => Packet::NegAck(BlockAck::parse(f)?),
            Command::NegDreply => Packet::NegDreply(BlockAck::parse(f)?),
            Command::RsDataRequest => Packet::RsDataRequest(BlockRequest::parse(f)?),
            Command::RsThinReq => Packet::RsThinReq(BlockRequest::parse(f)?),
            Command::CsumRsRequest => Packet::CsumRsRequest(ChecksumRequest::parse(f)?),
            Command::RsDataReply => Packet::RsDataReply(BlockData::parse(f, digest_len, payload)?),
            Command::RsDeallocated => Packet::RsDeallocated(BlockRange::parse(f)?),
            Command::RsIsInSync => Packet::RsIsInSync(BlockAck::parse(f)?),
            Command::NegRsDreply => Packet::NegRsDreply(BlockAck::parse(f)?),
            Command::RsCancel => Packet::RsCancel(BlockAck::parse(f)?),
            Command::OutOfSync => Packet::OutOfSync(BlockRange::parse(f)?),
            Command::OvRequest => Packet::OvRequest(BlockRequest::parse(f)?),
            Command::OvReply => Packet::OvReply(VerifyReply::parse(f)?),
            Command::OvResult => Packet::OvResult(VerifyResult::parse(f)?),
            Command::Bitmap => Packet::Bitmap(parse_words(f)?),
            Command::CompressedBitmap => Packet::CompressedBitmap(CompressedBitmap::parse(f)?),
            Command::TwopcPrepare => Packet::TwopcPrepare(Box::new(Prepare::parse(f, dialect)?)),
            Command::TwopcPrepRsz => Packet::TwopcPrepRsz(Box::new(PrepareResize::parse(f, dialect)?)),
            Command::TwopcCommit => Packet::TwopcCommit(Box::new(Decision::parse(f, dialect)?)),
            Command::TwopcAbort => Packet::TwopcAbort(Box::new(Decision::parse(f, dialect)?)),
            Command::TwopcYes => Packet::TwopcYes(Box::new(Vote::parse(f)?)),
            Command::TwopcNo => Packet::TwopcNo(Box::new(Vote::parse(f)?)),
            Command::TwopcRetry => Packet::TwopcRetry(Box::new(Vote::parse(f)?)),
            Command::Disconnect => Packet::Disconnect,
            Command::Uuids110 => Packet::Uuids110(Box::new(Uuids110::parse(f)?)),
            Command::CurrentUuid => Packet::CurrentUuid(CurrentUuid::parse(f)?),
            Command::Dagtag => Packet::Dagtag(Dagtag(f.u64()?)),
            Command::PeerAck => Packet::PeerAck(PeerAck::parse(f)?),
            Command::PeerDagtag => Packet::PeerDagtag(PeerDagtag::parse(f)?),
            Command::PeersInSync => Packet::PeersInSync(PeersInSync::parse(f)?),
            Command::ConfirmStable => Packet::ConfirmStable(ConfirmStable::parse(f)?),
            Command::FlushRequests => Packet::FlushRequests(flush_sequence(f)?),
            Command::FlushForward => Packet::FlushForward(FlushAnswer::parse(f)?),
            Command::FlushRequestsAck => Packet::FlushRequestsAck(FlushAnswer::parse(f)?),
            Command::EnableReplicationNext => Packet::EnableReplicationNext(f.u8()? != 0),
            Command::EnableReplication => Packet::EnableReplication(f.u8()? != 0),
            Command::WriteAckInSync => Packet::WriteAckInSync(BlockAck::parse(f)?),
            Command::RsNegAck => Packet::RsNegAck(BlockAck::parse(f)?),
            Command::RsCancelAhead => Packet::RsCancelAhead(BlockAck::parse(f)?),
            Command::RsDeallocatedId => Packet::RsDeallocatedId(BlockAck::parse(f)?),
            Command::RsDagtagReq => Packet::RsDagtagReq(Box::new(DagtagRequest::parse(f)?)),
            Command::RsCsumDagtagReq => Packet::RsCsumDagtagReq(Box::new(DagtagRequest::parse(f)?)),
            Command::RsThinDagtagReq => Packet::RsThinDagtagReq(Box::new(DagtagRequest::parse(f)?)),
            Command::OvDagtagReq => Packet::OvDagtagReq(Box::new(DagtagRequest::parse(f)?)),
            Command::OvDagtagReply => Packet::OvDagtagReply(Box::new(DagtagRequest::parse(f)?)),
            Command::OvResultId => Packet::OvResultId(Box::new(VerifyResultId::parse(f)?)),
            Command::Ping => Packet::Ping,
            Command::PingAck => Packet::PingAck,
            Command::DelayProbe => Packet::DelayProbe(DelayProbe { seq: f.u32()?, offset: f.u32()? }),
        })
    }
}

fn auth(f: &mut Fields<'_>) -> Result<AuthBytes, Violation> {
    AuthBytes::new(f.rest()).ok_or(Violation::Truncated { command: f.command() })
}

fn state(f: &mut Fields<'_>, dialect: &Dialect) -> Result<StateWord, Violation> {
    let word = f.u32()?;
    StateWord::from_bits(word, DiskNumbering::of(dialect.version)).map_err(|(field, n)| Violation::UnknownValue {
        command: f.command(),
        field,
        value: n.into(),
    })
}

fn state_change(f: &mut Fields<'_>, dialect: &Dialect) -> Result<StateChange, Violation> {
    let (mask, val) = (f.u32()?, f.u32()?);
    StateChange::from_bits(mask, val, DiskNumbering::of(dialect.version))
        .map_err(|e| e.into_violation(f.command(), mask))
}

fn result(f: &mut Fields<'_>) -> Result<StateChangeResult, Violation> {
    Ok(StateChangeResult::from_code(f.u32()?.cast_signed()))
}
