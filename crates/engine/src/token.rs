//! What each operation in flight was for.

use crate::connector::SocketId;
use units::{NodeId, VolumeNr};

/// The token of a ring operation: which part of the resource its completion belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    /// A job of the volumes.
    Disk(u32),
    /// The listener on a local address.
    Listen(SocketId),
    /// The attempt to open a connection to a peer.
    Open(NodeId, SocketId),
    /// A socket of a peer.
    Link(NodeId, SocketId),
    /// The NBD listener of a volume.
    NbdListen(VolumeNr),
    /// An NBD client.
    Nbd(ClientId),
    /// The control listener.
    ControlListen,
    /// A control client.
    Control(ClientId),
    /// A handler's process has ended.
    Handler(u64),
    /// The application inside the process has something to say.
    Application,
    /// The kernel has FUSE messages for us.
    Fuse,
    /// The kernel has put a FUSE request into a slot.
    FuseSlot,
    /// What another resource's resync means for ours has changed.
    Dependency,
    /// A volume's block device was attached, resized or detached.
    FuseWork(VolumeNr),
    /// It is known who uses the block devices.
    UseCheck,
    /// A signal asks us to stop.
    Signal,
    /// The keeper has ended, or put something aside.
    Keeper,
    /// Memory for buffers has come, or was given back.
    Memory,
}

/// The name of a client, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ClientId(pub(crate) u64);
