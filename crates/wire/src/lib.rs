//! DRBD packets to and from bytes, for protocol versions 86 to 101 (DRBD 8.4) and 118 to 124 (DRBD 9).
//!
//! Purpose: one typed value per packet ([`Packet`]), the three header formats, the state word, the bitmap's run-length
//! code, and an incremental reader for each of the two streams of a connection ([`StreamDecoder`]). Implements
//! `docs/spec/wire-protocol.md`.
//!
//! Invariants: a parsed packet keeps every rule that can be checked without knowing the device (lengths, alignment,
//! enumerations, no sector beyond any device); block payload is never part of a packet, only its length is: the payload
//! bytes follow the packet on the stream. What this crate emits, it parses to an equal value.
//!
//! Must never: do I/O, panic on any input, allocate by a size the peer chose (the most is one 4 KiB packet), know
//! whether a packet makes sense in the connection's present state (that is the replication core's to decide).
#![forbid(unsafe_code)]

mod agreement;
mod bitmap;
mod block;
mod command;
mod dialect;
mod fields;
mod generations;
mod handshake;
mod header;
mod inline;
mod packet;
mod peers;
mod run_length;
mod state;
mod state_change;
mod stream;
mod violation;

pub use agreement::{Decision, Prepare, PrepareResize, Transaction, Vote};
pub use bitmap::{BitmapReceiver, BitmapSender};
pub use block::{
    BarrierAck, BarrierNr, BlockAck, BlockData, BlockId, BlockRange, BlockRequest, ChecksumRequest, DagtagRequest,
    DelayProbe, DpFlags, VerifyOutcome, VerifyReply, VerifyResult, VerifyResultId, Write, WriteRange,
};
pub use command::{Command, Socket};
pub use dialect::{Dialect, Features, HeaderFormat, Refusal, Version};
pub use generations::{CurrentUuid, Uuids110};
pub use handshake::{
    AfterSplitBrain, ConnectionFeatures, Protocol, QueueLimits, ReplicationProtocol, ResizeFlags, ResyncController,
    Sizes, SyncParam, UuidFlags, Uuids,
};
pub use header::Header;
pub use inline::{AlgName, AuthBytes, Digest, InlineBytes, digest_len};
pub use packet::{Packet, Unsendable};
pub use peers::{ConfirmStable, Dagtag, FlushAnswer, PeerAck, PeerDagtag, PeersInSync, WireMask};
pub use run_length::CompressedBitmap;
pub use state::{ConnState, DiskNumbering, DiskState, Role, StateWord};
pub use state_change::{StateChange, StateChangeError, StateChangeResult};
pub use stream::{Decoded, FIRST_PACKET_LEN, Step, StreamDecoder, first_packet};
pub use violation::{Reaction, Violation};

/// Largest packet without block payload, header included (`docs/spec/wire-protocol.md` 2.4).
pub const MAX_PACKET: usize = 4096;
/// Largest block payload of one packet in any version, in bytes.
pub const MAX_BLOCK: u32 = 1 << 20;
/// Largest range of one P_TRIM or P_ZEROES, in bytes.
pub const MAX_DISCARD: u32 = 128 << 20;
