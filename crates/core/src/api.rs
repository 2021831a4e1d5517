//! What goes into a [`Resource`](crate::Resource) and what comes out of it.
//! Nothing here carries payload: callers name it by [`BufRef`]. The crate's head has the order of calls.

use crate::decide::Handler;
use crate::decide::state::State;
pub use crate::decide::state::{ConnectionState, SuspendReason, SuspendReasons};
pub use crate::notice::{Event, Notice, Severity};
use crate::replaced::{Copied, Replaced};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use units::{ByteLen, Generation, NodeId, NodeMask, Sector, SectorRange, VolumeNr};

/// A piece of a payload buffer that the caller (the engine) owns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufRef {
    /// The caller's handle.
    pub id: u32,
    /// First byte within the buffer.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

/// A payload: pieces of buffers, in order. One piece does not allocate.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Segments {
    /// Nothing (discards, flushes).
    #[default]
    None,
    /// One piece.
    One(BufRef),
    /// Several, as merged writes have. Shared, as a write's data is named by several effects.
    Many(Arc<Vec<BufRef>>),
}

impl Segments {
    /// The pieces, in order.
    #[must_use]
    pub fn as_slice(&self) -> &[BufRef] {
        match self {
            Segments::None => &[],
            Segments::One(one) => std::slice::from_ref(one),
            Segments::Many(many) => many,
        }
    }

    /// Several pieces.
    #[must_use]
    pub fn many(pieces: Vec<BufRef>) -> Segments {
        Segments::Many(Arc::new(pieces))
    }

    /// Bytes in all pieces.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.as_slice().iter().map(|b| u64::from(b.len)).sum()
    }

    /// Is there no byte?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds pieces at the end.
    pub fn append(&mut self, more: Segments) {
        *self = match (std::mem::take(self), more) {
            (Segments::None, m) => m,
            (s, Segments::None) => s,
            (s, m) => {
                let mut all = match s {
                    Segments::Many(v) => v,
                    other => Arc::new(other.as_slice().to_vec()),
                };
                Arc::make_mut(&mut all).extend_from_slice(m.as_slice());
                Segments::Many(all)
            }
        };
    }
}

/// A front end's request for a volume. The caller has checked range and alignment (512 bytes) against the size it
/// was told ([`Snapshot`]); the core checks again and fails what does not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockRequest {
    /// The caller's name for it, given back in [`Effect::Complete`]. Unique among requests in flight.
    pub tag: u64,
    /// Which volume.
    pub volume: VolumeNr,
    /// What to do.
    pub kind: RequestKind,
    /// Where; ignored for flushes.
    pub sector: Sector,
    /// How much, a multiple of 512; 0 for flushes. At most 128 MiB for discard and zeroes, 1 MiB for data: the caller
    /// splits larger ones ([`MAX_DATA`]).
    pub len: ByteLen,
    /// A write's payload, or where a read's data shall go. The buffers stay valid until [`Effect::Complete`].
    pub data: Segments,
}

/// Largest read or write in one [`BlockRequest`]: 1 MiB (`docs/spec/wire-protocol.md` 5.1).
pub const MAX_DATA: u64 = 1 << 20;
/// Largest discard or write-zeroes in one [`BlockRequest`]: 128 MiB.
pub const MAX_DISCARD: u64 = 128 << 20;

/// What a front end asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// Read into the request's buffers.
    Read,
    /// Write the request's buffers.
    Write {
        /// Durable on completion.
        fua: bool,
    },
    /// Everything completed before is durable when this completes, on the peers too
    /// (`docs/spec/data-path-and-resync.md` 1.10).
    Flush,
    /// The range's content is not needed any more; it reads as zeroes afterwards where the disks promise that.
    Discard,
    /// The range reads as zeroes.
    WriteZeroes {
        /// The space may be given back.
        unmap: bool,
        /// Durable on completion.
        fua: bool,
    },
}

/// Why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum IoError {
    /// No copy of the data could be read or written (EIO).
    Io,
    /// The disk is full (ENOSPC).
    NoSpace,
    /// The node is not Primary (EROFS for writes, EACCES otherwise).
    NotPrimary,
    /// The range does not lie in the device, or is not aligned (EINVAL).
    OutOfRange,
    /// The disk does not know the operation (EOPNOTSUPP).
    NotSupported,
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoError::Io => "input/output error",
            IoError::NoSpace => "no space left on the device",
            IoError::NotPrimary => "this node is not Primary",
            IoError::OutOfRange => "outside the device",
            IoError::NotSupported => "not supported",
        })
    }
}

/// The name of a disk operation in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u64);

/// An operation on the *data area* of a volume's backing disk. Sector 0 is the first byte of the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskOp {
    /// Read into buffers.
    Read {
        /// First sector.
        sector: Sector,
        /// Where to.
        data: Segments,
    },
    /// Read into a buffer that the caller allocates; it comes back with [`DiskDone::data`]. Used for peers.
    ReadNew {
        /// First sector.
        sector: Sector,
        /// How much.
        len: ByteLen,
        /// Look whether all of it is zeroes, for [`DiskDone::zeroes`].
        detect_zeroes: bool,
    },
    /// Write buffers.
    Write {
        /// First sector.
        sector: Sector,
        /// What.
        data: Segments,
        /// Durable on completion.
        fua: bool,
    },
    /// Give the space back; must read as zeroes afterwards if `zeroes`.
    Discard {
        /// First sector.
        sector: Sector,
        /// How much.
        len: ByteLen,
        /// Where the disk does not promise zeroes, write them (`docs/spec/data-path-and-resync.md` 5.3).
        zeroes: bool,
    },
    /// Write zeroes.
    WriteZeroes {
        /// First sector.
        sector: Sector,
        /// How much.
        len: ByteLen,
        /// Deallocating is allowed.
        unmap: bool,
        /// Durable on completion.
        fua: bool,
    },
    /// Everything completed before becomes durable.
    Flush,
}

impl DiskOp {
    /// What it changes on the disk; `None` for reads and flushes.
    #[must_use]
    pub fn changes(&self) -> Option<SectorRange> {
        match self {
            DiskOp::Write { sector, data, .. } => SectorRange::new(*sector, ByteLen(data.len())),
            DiskOp::Discard { sector, len, .. } | DiskOp::WriteZeroes { sector, len, .. } => {
                SectorRange::new(*sector, *len)
            }
            DiskOp::Read { .. } | DiskOp::ReadNew { .. } | DiskOp::Flush => None,
        }
    }
}

/// An operation on a volume's *metadata*; offsets are bytes on the metadata device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetaOp {
    /// Write one or more blocks (each 4 KiB or the 4 KiB-aligned superblock), then complete. With `flush_before`, all
    /// that completed earlier on this device is durable before the first byte of this is; with `fua`, this is durable
    /// on completion.
    Write {
        /// Byte offset, a multiple of 512.
        offset: u64,
        /// The bytes, a multiple of 512.
        bytes: Box<[u8]>,
        /// Flush the device (and, with external metadata, the data device) first.
        flush_before: bool,
        /// Force unit access.
        fua: bool,
    },
    /// Read `len` bytes at `offset`; the answer is in [`MetaDone::result`].
    Read {
        /// Byte offset, a multiple of 512.
        offset: u64,
        /// A multiple of 512.
        len: u64,
    },
}

/// Why a disk operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskError {
    /// EIO or any other.
    Io,
    /// ENOSPC.
    NoSpace,
    /// EOPNOTSUPP.
    NotSupported,
}

/// The end of a [`DiskOp`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskDone {
    /// Which.
    pub op: OpId,
    /// How it ended.
    pub result: Result<(), DiskError>,
    /// For [`DiskOp::ReadNew`] that succeeded: the data. The core gives it back by [`Effect::Release`], or sends it.
    pub data: Segments,
    /// For a read with `detect_zeroes` that succeeded: every byte is zero. Otherwise false.
    pub zeroes: bool,
}

/// The end of a [`MetaOp`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaDone {
    /// Which.
    pub op: OpId,
    /// For a read, the bytes; for a write, none.
    pub result: Result<Box<[u8]>, DiskError>,
}

/// What the caller found when it opened a volume's disks for an [`Effect::OpenDisk`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenedDisk {
    /// Bytes of the backing device.
    pub backing: ByteLen,
    /// Bytes of the metadata device (the same as `backing` for internal metadata).
    pub meta_device: ByteLen,
    /// Can the disk deallocate ranges?
    pub can_discard: bool,
    /// Do deallocated ranges read as zeroes?
    pub discard_zeroes: bool,
    /// Has the disk no volatile cache, so that a flush does nothing?
    pub write_through: bool,
    /// Logical block size in bytes: 512 or 4096.
    pub block_size: u32,
}

/// Both TCP connections to a peer are up and have survived their liveness wait (`docs/spec/wire-protocol.md` 1.6).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkUp {
    /// The RESOLVE-CONFLICTS flag: this node accepted the meta stream.
    pub resolve_conflicts: bool,
    /// 64 bytes from a secure random source, for the authentication challenge.
    pub challenge: [u8; 64],
}

/// Why a link went down, as the transport saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkDown {
    /// The peer closed a stream, or a send failed.
    Closed,
    /// Nothing more came or went for too long.
    Timeout,
    /// The bytes did not decode, or a digest did not match.
    Violation,
}

/// What the core wants done. Drain with [`Resource::poll_effect`](crate::Resource::poll_effect) in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Append a packet to a stream. If `payload` is not empty its bytes follow the packet's fixed part on the wire, and
    /// the caller keeps the buffers alive until they are sent (its own reference).
    Send {
        /// To whom.
        peer: NodeId,
        /// On which stream.
        stream: wire::Socket,
        /// For the header; 0 or [`VolumeNr::NONE`] where the packet is about the whole connection.
        volume: VolumeNr,
        /// What.
        packet: wire::Packet,
        /// Bulk bytes behind it.
        payload: Segments,
    },
    /// Start trying to connect to `peer` until [`Resource::on_link_up`](crate::Resource::on_link_up), or
    /// [`Effect::CloseLink`].
    Connect {
        /// To whom.
        peer: NodeId,
        /// Not before this time (a failed handshake waits 1 s).
        not_before: units::Instant,
        /// What the peer opens is accepted before that time as well.
        accept_before: bool,
    },
    /// What the streams to `peer` speak from the next packet on, both ways (headers, digests).
    Dialect {
        /// Whom it concerns.
        peer: NodeId,
        /// Headers and layouts.
        dialect: wire::Dialect,
        /// `data-integrity-alg`: the caller appends digests of this algorithm to data packets it sends, and checks and
        /// strips those it receives; a mismatch is [`LinkDown::Violation`].
        integrity: Option<String>,
    },
    /// Compute HMAC(`algorithm`, shared secret, `message`) and answer with
    /// [`Resource::on_hmac`](crate::Resource::on_hmac) and the same `token`.
    Hmac {
        /// Whom it concerns.
        peer: NodeId,
        /// To be given back.
        token: u32,
        /// `cram-hmac-alg`.
        algorithm: String,
        /// The bytes to authenticate.
        message: Vec<u8>,
    },
    /// Stop trying to connect to `peer`, or send what is queued and close both streams. What comes then is dropped.
    CloseLink {
        /// Whom it concerns.
        peer: NodeId,
    },
    /// Digest each piece of `data` with `algorithm` and answer with
    /// [`Resource::on_digests`](crate::Resource::on_digests).
    Digest {
        /// To be given back.
        op: OpId,
        /// `csums-alg` or `verify-alg`.
        algorithm: String,
        /// What to digest; stays owned by the core.
        data: Segments,
        /// Bytes of one piece; the last one may be shorter. One digest each, in order.
        piece: u64,
    },
    /// Open a volume's disks (exclusively) and answer with
    /// [`Resource::on_disk_opened`](crate::Resource::on_disk_opened).
    OpenDisk {
        /// Which.
        volume: VolumeNr,
    },
    /// Close a volume's disks. All operations on them have ended, or (forced) their completions are to be swallowed:
    /// the disk must not be opened again before the last of them really ended.
    CloseDisk {
        /// Which.
        volume: VolumeNr,
    },
    /// Do this on the data area.
    Disk {
        /// Its name in [`DiskDone`].
        op: OpId,
        /// Which volume.
        volume: VolumeNr,
        /// What.
        action: DiskOp,
    },
    /// Do this on the metadata.
    Meta {
        /// Its name in [`MetaDone`].
        op: OpId,
        /// Which volume.
        volume: VolumeNr,
        /// What.
        action: MetaOp,
    },
    /// Copy what a peer sent into (part of) a read request's own buffers; drop `from`. Before [`Effect::Complete`].
    Deliver {
        /// Received payload.
        from: Segments,
        /// The request's buffers, as many bytes.
        to: Segments,
    },
    /// A request of the front end has ended; its buffers are the caller's again (but for sends still in progress).
    Complete {
        /// The request's tag.
        tag: u64,
        /// How it ended.
        result: Result<(), IoError>,
    },
    /// The core no longer needs these buffers (payload it was given with a packet or a [`DiskDone`]).
    Release(Segments),
    /// Run a handler and answer with [`Resource::on_handler_exit`](crate::Resource::on_handler_exit).
    RunHandler {
        /// To be given back.
        id: u64,
        /// What for.
        call: HandlerCall,
    },
    /// An administrator's command has ended.
    CommandDone {
        /// The id it was given with.
        id: u64,
        /// How it ended.
        result: Result<(), CommandError>,
    },
    /// The size or the writability of a volume's device changed: tell the front ends.
    Device {
        /// Which.
        volume: VolumeNr,
        /// Bytes it has; 0 = not usable.
        size: ByteLen,
        /// May it be opened, and how.
        access: Access,
        /// Is discard offered?
        discard: bool,
    },
    /// The state was stored: each one in its order. A disk that a command gives up is Detaching in it.
    StateStored(Box<State>),
    /// Something in the status changed; [`Resource::snapshot`](crate::Resource::snapshot) shows what.
    StatusChanged,
    /// For the log. In a box: it is rare, and larger than all others.
    Log(Box<Notice>),
    /// `down` is complete: nothing is open any more, the process may end.
    Stopped,
}

/// How a volume's device may be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Not at all (Secondary, or no data).
    None,
    /// For reading and writing (Primary).
    ReadWrite,
}

/// A call of a handler script (`docs/spec/connection-and-state.md` 8.6).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandlerCall {
    /// What has happened.
    pub event: Handler,
    /// For volume events.
    pub volume: Option<VolumeNr>,
    /// For connection events.
    pub peer: Option<NodeId>,
}

/// What an administrator asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Open the disk and read its metadata.
    Attach {
        /// Which.
        volume: VolumeNr,
    },
    /// Let go of the disk.
    Detach {
        /// Which.
        volume: VolumeNr,
        /// Without waiting and without asking peers.
        force: bool,
    },
    /// Start connecting.
    Connect {
        /// To whom.
        peer: NodeId,
        /// If data diverged, drop ours.
        discard_my_data: bool,
        /// Decide and report only.
        tentative: bool,
    },
    /// Stop being connected.
    Disconnect {
        /// From whom.
        peer: NodeId,
        /// Without asking the peer.
        force: bool,
    },
    /// Become Primary.
    Primary {
        /// Also without UpToDate data, or without fencing the peer.
        force: bool,
    },
    /// Become Primary again, as applications have waited since the last process.
    PrimaryAgain(Inherited),
    /// Become Secondary. Fails while a device is held open.
    Secondary {
        /// Fail the openers' I/O instead of refusing.
        force: bool,
    },
    /// A copy is worthless, or what is marked as different of it is.
    Replace(VolumeNr, Replaced, Copied),
    /// Pause resync.
    PauseSync {
        /// Which.
        volume: VolumeNr,
    },
    /// Go on with resync.
    ResumeSync {
        /// Which.
        volume: VolumeNr,
    },
    /// Freeze I/O.
    SuspendIo {
        /// Which.
        volume: VolumeNr,
    },
    /// Thaw I/O, whatever froze it.
    ResumeIo {
        /// Which.
        volume: VolumeNr,
    },
    /// End what `SuspendIo` began. What else freezes I/O goes on doing so, and no peer is given up that is waited for.
    EndFreeze {
        /// Which.
        volume: VolumeNr,
    },
    /// Mark our data Outdated.
    Outdate {
        /// Which.
        volume: VolumeNr,
    },
    /// This node's copy is the good one: the others, just created as it is, are replaced by it (spec 12.8).
    ForceResync(VolumeNr),
    /// Start a new data generation.
    NewCurrentUuid {
        /// Which.
        volume: VolumeNr,
        /// Also declare both sides clean (skips the initial sync).
        clear_bitmap: bool,
    },
    /// The backing device grew, or the configured size changed.
    Resize {
        /// Which.
        volume: VolumeNr,
        /// How it is meant.
        flags: wire::ResizeFlags,
    },
    /// A volume's backing device has become larger, and internal metadata lie at its new end already. The device keeps
    /// its size until another one is agreed on.
    Grew(VolumeNr, OpenedDisk),
    /// Compare a volume's copy with the peer's (`None`: who it is mirrored to).
    Verify {
        /// Which.
        volume: VolumeNr,
        /// With whom.
        peer: Option<NodeId>,
        /// From here.
        start: Option<Sector>,
        /// To here.
        stop: Option<Sector>,
        /// Repair what differs when it ends, by reconnecting.
        repair: bool,
    },
    /// Ask each peer whether it is there: one that does not say so within ping-timeout is lost.
    Ping,
    /// The metadata of the attached disks keep nothing of a node that is no peer any more
    /// (`docs/spec/connection-and-state.md` 7.13).
    ForgetPeer(NodeId),
    /// New options (`adjust`).
    ChangeOptions(Box<crate::ResourceConfig>),
    /// Secondary, disconnect all (true: even if a peer does not agree), detach all, stop.
    Down(bool),
}

impl Command {
    /// This node's data is worthless: all is copied to it.
    #[must_use]
    pub fn invalidate(volume: VolumeNr) -> Command {
        Command::Replace(volume, Replaced::Own { source: None }, Copied::All)
    }

    /// This peer's data is worthless: all is copied to it.
    #[must_use]
    pub fn invalidate_remote(volume: VolumeNr, peer: NodeId) -> Command {
        Command::Replace(volume, Replaced::Peer(peer), Copied::All)
    }
}

/// What a Primary's process has left to the next one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inherited {
    /// The peers that it was connected with, if that is known.
    pub beside: Option<NodeMask>,
    /// Volumes whose disks it did without: these lack writes, whatever their metadata say.
    pub without_disk: Vec<VolumeNr>,
    /// Volumes that it did not have: nobody has seen what they hold, and nothing waits for them.
    pub came: Vec<VolumeNr>,
}

/// Why a command failed: DRBD's code (`docs/spec/config-and-cli.md` A, `connection-and-state.md` 1.7) and words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandError {
    /// A state-change code (negative, e.g. -2) or a configuration code (100 and up).
    pub code: i32,
    /// What, why, and what to do.
    pub text: String,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}) {}", self.code, self.text)
    }
}

/// The front end's knowledge of who has a device open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Openers {
    /// Clients that may write.
    pub writers: u32,
    /// Clients that only read.
    pub readers: u32,
}

/// The state of everything, for status output.
#[derive(Clone, PartialEq, Debug)]
pub struct Snapshot {
    /// Resource name.
    pub name: String,
    /// This node.
    pub node: NodeId,
    /// Primary or Secondary.
    pub role: wire::Role,
    /// I/O is frozen because of: user, no-data, fencing, quorum.
    pub suspended: SuspendReasons,
    /// Per volume.
    pub devices: Vec<DeviceSnapshot>,
    /// Per peer.
    pub connections: Vec<ConnectionSnapshot>,
    /// The last decisions, oldest first.
    pub decisions: Vec<(units::Instant, Notice)>,
}

/// One volume.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceSnapshot {
    /// Which.
    pub volume: VolumeNr,
    /// Its disk.
    pub disk: wire::DiskState,
    /// Quorum is asked for and not there: who is within reach, and how many it takes, in words.
    pub no_quorum: Option<String>,
    /// Usable size.
    pub size: ByteLen,
    /// The metadata are in 8.4's format.
    pub old_metadata: bool,
    /// Data generations: current, bitmap, history.
    pub generations: [Generation; 4],
    /// Bytes read from and written to the local disk for applications and peers.
    pub read: ByteLen,
    /// Bytes written.
    pub written: ByteLen,
    /// Activity-log transactions written.
    pub al_writes: u64,
    /// Bitmap blocks written.
    pub bm_writes: u64,
    /// Application requests in flight.
    pub upper_pending: u32,
    /// Local disk requests in flight.
    pub lower_pending: u32,
    /// Is the activity log frozen?
    pub al_suspended: bool,
}

/// One connection.
#[derive(Clone, PartialEq, Debug)]
pub struct ConnectionSnapshot {
    /// To whom.
    pub peer: NodeId,
    /// The peer's host name.
    pub peer_name: String,
    /// StandAlone … Connected, as DRBD 9 counts.
    pub state: ConnectionState,
    /// The peer's role.
    pub role: wire::Role,
    /// Our and the peer's address.
    pub addresses: (SocketAddr, SocketAddr),
    /// Agreed protocol version, if connected.
    pub version: Option<u32>,
    /// Tries in a row that ended because one of the nodes did not know the other's secret; 0 = the last one did not.
    pub refusals: u32,
    /// Per volume.
    pub peer_devices: Vec<PeerDeviceSnapshot>,
}

/// One volume towards one peer.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerDeviceSnapshot {
    /// Which volume.
    pub volume: VolumeNr,
    /// Replication state in 8.4's numbering (Connected = Established); below Connected it is Off.
    pub replication: wire::ConnState,
    /// The peer's disk.
    pub peer_disk: wire::DiskState,
    /// Paused by: us, the peer, a dependency.
    pub paused: (bool, bool, bool),
    /// Bytes that differ.
    pub out_of_sync: ByteLen,
    /// Of a running resync or verify: total bytes when it began.
    pub sync_total: ByteLen,
    /// Of it: still to do.
    pub sync_left: ByteLen,
    /// Of it: could not be copied.
    pub sync_failed: ByteLen,
    /// Current speed in KiB/s.
    pub sync_rate: u64,
    /// When it began.
    pub sync_started: Option<units::Instant>,
    /// How long it was paused.
    pub sync_paused: units::Duration,
    /// Of a checksum-based resync: found equal, not transferred.
    pub sync_same: ByteLen,
    /// What it waits for most.
    pub sync_slowed: Option<crate::resync::marks::SlowedBy>,
    /// Progress since the latest mark and since the oldest one: how long, how much (spec 7.12).
    pub sync_marks: [(units::Duration, ByteLen); 2],
    /// A running verify: where it is, and where it stops.
    pub verify: Option<(Sector, Sector)>,
    /// Bytes sent to and received from the peer for this volume.
    pub sent: ByteLen,
    /// Bytes received.
    pub received: ByteLen,
    /// Requests waiting for the peer's answer.
    pub pending: u32,
    /// Requests of the peer not yet answered.
    pub unacked: u32,
}

/// The end of a command that could not be done.
pub(crate) fn failure(code: i32, text: impl Into<String>) -> CommandError {
    CommandError { code, text: text.into() }
}
