//! Packets about blocks: writes, reads, resync, verify, their acknowledgements, and epochs.

use crate::command::Command;
use crate::dialect::Version;
use crate::fields::{Fields, Put};
use crate::inline::Digest;
use crate::packet::Unsendable;
use crate::peers::Dagtag;
use crate::violation::Violation;
use crate::{MAX_BLOCK, MAX_DISCARD};
use std::fmt;
use units::{ByteLen, Sector, SectorRange};

/// No device has this sector (8 EiB): offsets in bytes below it fit 63 bits.
const SECTOR_LIMIT: u64 = 1 << 54;

/// The cookie of a request, echoed in its answers (`docs/spec/wire-protocol.md` 3.2). Only equality means something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u64);

impl BlockId {
    /// Marks resync and verify blocks; never the cookie of an application's request.
    pub const SYNCER: BlockId = BlockId(u64::MAX);
}

impl fmt::Debug for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == BlockId::SYNCER { f.write_str("SYNCER") } else { write!(f, "{:#x}", self.0) }
    }
}

/// `dp_flags`: how a write is to be done (`docs/spec/wire-protocol.md` 3.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DpFlags(pub u32);

bitflags::bitflags! {
    impl DpFlags: u32 {
        /// No flag.
        const NONE = 0;
        /// Synchronous write (a hint).
        const RW_SYNC = 0x002;
        /// The receiver may clear bitmap bits after the write.
        const MAY_SET_IN_SYNC = 0x004;
        /// Force unit access (from version 95 on).
        const FUA = 0x010;
        /// Flush before the write (from version 95 on).
        const FLUSH = 0x020;
        /// Discard, or in P_ZEROES "unmapping is allowed" (from version 95 on).
        const DISCARD = 0x040;
        /// The receiver must send P_RECV_ACK (from version 100 on).
        const SEND_RECEIVE_ACK = 0x080;
        /// The receiver must send P_WRITE_ACK (from version 100 on).
        const SEND_WRITE_ACK = 0x100;
        /// WRITE SAME: removed from the protocol; a packet with it is refused.
        const WRITE_SAME = 0x200;
        /// Write zeroes (P_ZEROES only).
        const ZEROES = 0x400;
    }
}

impl DpFlags {
    /// Those flags that may be sent in a protocol version. The others mean nothing to its speakers, who infer the
    /// kind of acknowledgement from the negotiated protocol (`docs/spec/wire-protocol.md` 3.4).
    #[must_use]
    pub const fn for_version(self, version: Version) -> DpFlags {
        let old = DpFlags::RW_SYNC.0 | DpFlags::MAY_SET_IN_SYNC.0;
        let from_95 = DpFlags::FUA.0 | DpFlags::FLUSH.0 | DpFlags::DISCARD.0 | DpFlags::ZEROES.0;
        let from_100 = DpFlags::SEND_RECEIVE_ACK.0 | DpFlags::SEND_WRITE_ACK.0;
        DpFlags(
            self.0
                & match version.number() {
                    ..95 => old,
                    95..100 => old | from_95,
                    _ => old | from_95 | from_100,
                },
        )
    }
}

impl fmt::Debug for DpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// P_DATA without its payload (`docs/spec/wire-protocol.md` 5.1): `size` bytes of data follow on the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where to write.
    pub sector: Sector,
    /// Cookie for the acknowledgement.
    pub block_id: BlockId,
    /// Sequence number of this direction (`docs/spec/wire-protocol.md` 3.3).
    pub seq: u32,
    /// How to write.
    pub flags: DpFlags,
    /// Integrity digest of the payload; empty if none is configured.
    pub digest: Digest,
    /// Payload bytes: a multiple of 512 up to 1 MiB; 0 only with `FLUSH`.
    pub size: ByteLen,
}

/// P_TRIM or P_ZEROES (`docs/spec/wire-protocol.md` 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteRange {
    /// Where to start.
    pub sector: Sector,
    /// Cookie for the acknowledgement.
    pub block_id: BlockId,
    /// Sequence number of this direction.
    pub seq: u32,
    /// How to do it.
    pub flags: DpFlags,
    /// Bytes: a multiple of 512, up to 128 MiB.
    pub size: ByteLen,
}

/// P_DATA_REPLY or P_RS_DATA_REPLY without its payload (`docs/spec/wire-protocol.md` 5.2, 5.3): `size` bytes follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockData {
    /// As in the request.
    pub sector: Sector,
    /// As in the request.
    pub block_id: BlockId,
    /// Integrity digest of the payload; empty if none is configured.
    pub digest: Digest,
    /// Payload bytes: a multiple of 512, 512 to 1 MiB.
    pub size: ByteLen,
}

/// A request for a block: P_DATA_REQUEST, P_RS_DATA_REQUEST, P_RS_THIN_REQ, P_OV_REQUEST
/// (`docs/spec/wire-protocol.md` 5.6, 5.7, 5.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRequest {
    /// First sector.
    pub sector: Sector,
    /// Cookie for the answer; `SYNCER` for resync and verify.
    pub block_id: BlockId,
    /// Bytes: a multiple of 512, 512 to 1 MiB.
    pub size: ByteLen,
}

/// P_CSUM_RS_REQUEST (`docs/spec/wire-protocol.md` 5.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChecksumRequest {
    /// Which block.
    pub block: BlockRequest,
    /// Digest of the target's present content. Its length is what the peer sent, not necessarily the algorithm's.
    pub digest: Digest,
}

/// P_OV_REPLY (`docs/spec/wire-protocol.md` 5.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyReply {
    /// Which block.
    pub block: BlockRequest,
    /// Digest of the block. Its length is what the peer sent, not necessarily the algorithm's.
    pub digest: Digest,
}

/// A request of resync or verify, or the answer of a verify, that names the write which it depends on
/// (`docs/spec/wire-protocol.md` 5.7, 5.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DagtagRequest {
    /// Which block. Its cookie is `SYNCER` below version 122.
    pub block: BlockRequest,
    /// The node whose stream of writes it depends on; means nothing without a dependency.
    pub node: u32,
    /// The position that must have been reached; 0 for no dependency.
    pub dagtag: Dagtag,
    /// Digest of the block, where the packet has one. Its length is what the peer sent, not necessarily the
    /// algorithm's.
    pub digest: Digest,
}

/// P_OV_RESULT_ID (`docs/spec/wire-protocol.md` 5.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyResultId {
    /// Which block.
    pub block: BlockAck,
    /// The result.
    pub outcome: VerifyOutcome,
}

/// An acknowledgement of a block (`docs/spec/wire-protocol.md` 5.8): many packets share this layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAck {
    /// As in the request.
    pub sector: Sector,
    /// As in the request.
    pub block_id: BlockId,
    /// Bytes, as in the request; 8.4 may send 0 in P_NEG_ACK (`docs/spec/wire-protocol.md` 17.4).
    pub size: ByteLen,
    /// Sequence number of this direction.
    pub seq: u32,
}

/// What a verify run found out about one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyOutcome {
    /// Not compared.
    Skipped,
    /// Equal.
    InSync,
    /// Different.
    OutOfSync,
}

/// P_OV_RESULT (`docs/spec/wire-protocol.md` 5.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyResult {
    /// First sector of the block.
    pub sector: Sector,
    /// Size of the block in bytes.
    pub size: ByteLen,
    /// Sequence number of this direction.
    pub seq: u32,
    /// The result.
    pub outcome: VerifyOutcome,
}

/// P_OUT_OF_SYNC or P_RS_DEALLOCATED (`docs/spec/wire-protocol.md` 5.10, 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// First sector.
    pub sector: Sector,
    /// Bytes.
    pub size: ByteLen,
}

/// The number of an epoch; echoed, only equality means something (`docs/spec/wire-protocol.md` 3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BarrierNr(pub u32);

/// P_BARRIER_ACK (`docs/spec/wire-protocol.md` 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierAck {
    /// The epoch, as in P_BARRIER.
    pub barrier: BarrierNr,
    /// How many writes the epoch had.
    pub set_size: u32,
}

/// P_DELAY_PROBE: obsolete, received and ignored (`docs/spec/wire-protocol.md` 5.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayProbe {
    /// Its number.
    pub seq: u32,
    /// Its offset.
    pub offset: u32,
}

macro_rules! ranges {
    ($($name:ident),*) => {$(
        impl $name {
            /// The sectors it is about; `None` if they would end beyond 2^64.
            #[must_use]
            pub fn range(&self) -> Option<SectorRange> {
                SectorRange::new(self.sector, self.size)
            }
        }
    )*};
}
ranges!(Write, WriteRange, BlockData, BlockRequest, BlockAck, VerifyResult, BlockRange);

impl Write {
    /// `payload` is the number of bytes that follow fixed part and digest.
    pub(crate) fn parse(f: &mut Fields<'_>, digest_len: usize, payload: u32) -> Result<Write, Violation> {
        let (sector, block_id, seq, flags) = (f.u64()?, BlockId(f.u64()?), f.u32()?, DpFlags(f.u32()?));
        if flags.contains(DpFlags::WRITE_SAME) {
            return Err(Violation::WriteSameFlag);
        }
        let only_flush = payload == 0 && flags.contains(DpFlags::FLUSH);
        let digest = digest(f.bytes(digest_len)?, f)?;
        let size = if only_flush { ByteLen(0) } else { block_size(f, payload, MAX_BLOCK)? };
        Ok(Write { sector: sector_of(f, sector, size)?, block_id, seq, flags, digest, size })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.put64(self.sector.0);
        out.put64(self.block_id.0);
        out.put32(self.seq);
        out.put32(self.flags.0);
        out.extend_from_slice(self.digest.as_slice());
    }
}

impl WriteRange {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<WriteRange, Violation> {
        let (sector, block_id, seq, flags) = (f.u64()?, BlockId(f.u64()?), f.u32()?, DpFlags(f.u32()?));
        if flags.contains(DpFlags::WRITE_SAME) {
            return Err(Violation::WriteSameFlag);
        }
        let size = f.u32()?;
        let size = block_size(f, size, MAX_DISCARD)?;
        Ok(WriteRange { sector: sector_of(f, sector, size)?, block_id, seq, flags, size })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        out.put64(self.sector.0);
        out.put64(self.block_id.0);
        out.put32(self.seq);
        out.put32(self.flags.0);
        put_size(out, self.size)
    }
}

impl BlockData {
    pub(crate) fn parse(f: &mut Fields<'_>, digest_len: usize, payload: u32) -> Result<BlockData, Violation> {
        let (sector, block_id) = (f.u64()?, BlockId(f.u64()?));
        f.bytes(8)?; // seq_num and dp_flags, always 0
        let digest = digest(f.bytes(digest_len)?, f)?;
        let size = block_size(f, payload, MAX_BLOCK)?;
        Ok(BlockData { sector: sector_of(f, sector, size)?, block_id, digest, size })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.put64(self.sector.0);
        out.put64(self.block_id.0);
        out.put64(0);
        out.extend_from_slice(self.digest.as_slice());
    }
}

impl BlockRequest {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<BlockRequest, Violation> {
        let (sector, block_id, size) = (f.u64()?, BlockId(f.u64()?), f.u32()?);
        f.bytes(4)?; // padding: 8.4 sends arbitrary bytes
        let size = block_size(f, size, MAX_BLOCK)?;
        Ok(BlockRequest { sector: sector_of(f, sector, size)?, block_id, size })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        out.put64(self.sector.0);
        out.put64(self.block_id.0);
        put_size(out, self.size)?;
        out.put32(0);
        Ok(())
    }
}

impl ChecksumRequest {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<ChecksumRequest, Violation> {
        Ok(ChecksumRequest { block: BlockRequest::parse(f)?, digest: digest(f.rest(), f)? })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        self.block.emit(out)?;
        out.extend_from_slice(self.digest.as_slice());
        Ok(())
    }
}

impl VerifyReply {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<VerifyReply, Violation> {
        Ok(VerifyReply { block: BlockRequest::parse(f)?, digest: digest(f.rest(), f)? })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        self.block.emit(out)?;
        out.extend_from_slice(self.digest.as_slice());
        Ok(())
    }
}

impl DagtagRequest {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<DagtagRequest, Violation> {
        let (sector, block_id, size) = (f.u64()?, BlockId(f.u64()?), f.u32()?);
        let (node, dagtag) = (f.u32()?, Dagtag(f.u64()?));
        let size = block_size(f, size, MAX_BLOCK)?;
        let block = BlockRequest { sector: sector_of(f, sector, size)?, block_id, size };
        Ok(DagtagRequest { block, node, dagtag, digest: digest(f.rest(), f)? })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        out.put64(self.block.sector.0);
        out.put64(self.block.block_id.0);
        put_size(out, self.block.size)?;
        out.put32(self.node);
        out.put64(self.dagtag.0);
        out.extend_from_slice(self.digest.as_slice());
        Ok(())
    }
}

impl VerifyResultId {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<VerifyResultId, Violation> {
        let (block, result) = (BlockAck::parse(f)?, f.u32()?);
        f.bytes(4)?;
        let outcome = match result {
            0 => VerifyOutcome::Skipped,
            1 => VerifyOutcome::InSync,
            2 => VerifyOutcome::OutOfSync,
            n => {
                return Err(Violation::UnknownValue { command: f.command(), field: "result", value: n.into() });
            }
        };
        Ok(VerifyResultId { block, outcome })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        self.block.emit(out)?;
        out.put32(match self.outcome {
            VerifyOutcome::Skipped => 0,
            VerifyOutcome::InSync => 1,
            VerifyOutcome::OutOfSync => 2,
        });
        out.put32(0);
        Ok(())
    }
}

impl BlockAck {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<BlockAck, Violation> {
        let (sector, block_id, size, seq) = (f.u64()?, BlockId(f.u64()?), ByteLen(f.u32()?.into()), f.u32()?);
        Ok(BlockAck { sector: sector_of(f, sector, size)?, block_id, size, seq })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        out.put64(self.sector.0);
        out.put64(self.block_id.0);
        put_size(out, self.size)?;
        out.put32(self.seq);
        Ok(())
    }
}

impl VerifyResult {
    const SKIPPED: u64 = 4710;
    const IN_SYNC: u64 = 4711;
    const OUT_OF_SYNC: u64 = 4712;

    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<VerifyResult, Violation> {
        let BlockAck { sector, block_id, size, seq } = BlockAck::parse(f)?;
        let outcome = match block_id.0 {
            Self::SKIPPED => VerifyOutcome::Skipped,
            Self::IN_SYNC => VerifyOutcome::InSync,
            Self::OUT_OF_SYNC => VerifyOutcome::OutOfSync,
            value => {
                return Err(Violation::UnknownValue { command: f.command(), field: "result", value });
            }
        };
        Ok(VerifyResult { sector, size, seq, outcome })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        let block_id = BlockId(match self.outcome {
            VerifyOutcome::Skipped => Self::SKIPPED,
            VerifyOutcome::InSync => Self::IN_SYNC,
            VerifyOutcome::OutOfSync => Self::OUT_OF_SYNC,
        });
        BlockAck { sector: self.sector, block_id, size: self.size, seq: self.seq }.emit(out)
    }
}

impl BlockRange {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<BlockRange, Violation> {
        let (sector, size) = (f.u64()?, f.u32()?);
        f.bytes(4)?;
        let max = if f.command() == Command::RsDeallocated { MAX_BLOCK } else { u32::MAX };
        let size = block_size(f, size, max)?;
        Ok(BlockRange { sector: sector_of(f, sector, size)?, size })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        out.put64(self.sector.0);
        put_size(out, self.size)?;
        out.put32(0);
        Ok(())
    }
}

impl BarrierNr {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<BarrierNr, Violation> {
        // Opaque; read as little-endian so that a number shows as most kernels count it.
        f.array().map(u32::from_le_bytes).map(BarrierNr)
    }

    pub(crate) fn emit(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }
}

impl BarrierAck {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<BarrierAck, Violation> {
        Ok(BarrierAck { barrier: BarrierNr::parse(f)?, set_size: f.u32()? })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        self.barrier.emit(out);
        out.put32(self.set_size);
    }
}

pub(crate) fn sector_of(f: &Fields<'_>, sector: u64, size: ByteLen) -> Result<Sector, Violation> {
    match sector.checked_add(size.to_sectors_ceil().0) {
        Some(end) if end <= SECTOR_LIMIT => Ok(Sector(sector)),
        _ => Err(Violation::SectorBeyondAnyDevice { command: f.command(), sector }),
    }
}

pub(crate) fn block_size(f: &Fields<'_>, size: u32, max: u32) -> Result<ByteLen, Violation> {
    let len = ByteLen(size.into());
    if size == 0 || size > max || !len.is_sector_aligned() {
        return Err(Violation::BadBlockSize { command: f.command(), size, max });
    }
    Ok(len)
}

fn digest(bytes: &[u8], f: &Fields<'_>) -> Result<Digest, Violation> {
    Digest::new(bytes).ok_or(Violation::Truncated { command: f.command() })
}

pub(crate) fn put_size(out: &mut Vec<u8>, size: ByteLen) -> Result<(), Unsendable> {
    out.put32(u32::try_from(size.0).map_err(|_| Unsendable::TooLong { bytes: size.0 })?);
    Ok(())
}
