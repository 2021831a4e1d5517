//! Which size a device gets (`docs/spec/connection-and-state.md` 5.3 and 12.6).

use super::{DiskState, Reason, Role};
use units::Sector;

const NONE: Sector = Sector(0);

/// What a SIZES packet says, in sectors; 0 = none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PeerSizes {
    /// Capacity of the peer's backing device; 0 = diskless.
    pub device: Sector,
    /// The peer's configured limit.
    pub user: Sector,
    /// The size of the peer's device now.
    pub current: Sector,
}

/// Of which nodes that have, or had, a disk the capacity is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Known {
    /// 8.4: there is one peer, and what it once had is remembered.
    #[default]
    One,
    /// 9: all of them.
    All,
    /// 9: not of all.
    NotAll,
}

/// What a node with a disk knows about the size, in sectors; 0 = none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    /// The most that own disk and metadata can hold.
    pub own: Sector,
    /// The capacity that the peer's disk was last known to have; of several the smallest.
    pub peer: Sector,
    /// Whose that is.
    pub known: Known,
    /// The size agreed last, from the metadata.
    pub last_agreed: Sector,
    /// The configured size.
    pub user: Sector,
    /// Peers that are not connected are to be taken for big enough (`--assume-peer-has-space`).
    pub assume_peer_has_space: bool,
}

/// The usable size of a device with a disk. A configured size that is too big is ignored.
#[must_use]
pub fn usable(limits: &Limits) -> Sector {
    let one = limits.known == Known::One;
    let peer = if limits.assume_peer_has_space && one { limits.own } else { limits.peer };
    let size = match (peer, limits.own) {
        (peer, own) if limits.known == Known::All || !one && limits.assume_peer_has_space => smallest([peer, own]),
        (peer, own) if !one => smallest([peer, own, limits.last_agreed]),
        (NONE, own) if limits.last_agreed != NONE => smallest([limits.last_agreed, own]),
        (peer, NONE) if limits.last_agreed != NONE => smallest([limits.last_agreed, peer]),
        (peer, own) => smallest([peer, own]),
    };
    if limits.user > size || limits.user == NONE { size } else { limits.user }
}

/// The smallest one, 0 not counting.
fn smallest<const N: usize>(sizes: [Sector; N]) -> Sector {
    sizes.into_iter().filter(|s| *s != NONE).min().unwrap_or(NONE)
}

/// What [`on_sizes`] looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizesReceived {
    /// The packet.
    pub peer: PeerSizes,
    /// Own limits; `peer` as known before the packet.
    pub limits: Limits,
    /// The device's size now.
    pub current: Sector,
    /// Own disk.
    pub disk: DiskState,
    /// The peer's disk as known now.
    pub peer_disk: DiskState,
    /// The volume is Connected or beyond.
    pub connected: bool,
    /// This node's role.
    pub role: Role,
    /// The packet's flag "no resync of the grown area".
    pub no_resync: bool,
}

/// What follows from a SIZES packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizesVerdict {
    /// End the connection (StandAlone); forget the peer's limit.
    Refuse(Reason),
    /// Nothing changes.
    Keep(Reason),
    /// Go on with these values.
    Adopt(Adopted),
}

/// The values to go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// The device's size.
    pub size: Sector,
    /// The configured limit from now on.
    pub user: Sector,
    /// The peer's limit to remember.
    pub peer: Sector,
    /// Send SIZES: the size changed.
    pub send_sizes: bool,
    /// What becomes of what is new at the end.
    pub grown: Grown,
}

/// What becomes of the blocks by which a device has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grown {
    /// Nothing: there are none, or they are the same on both disks.
    Equal,
    /// They are marked in the bitmap.
    Marked,
    /// The same, and they are resynced now (direction: [`grown_area_source`]).
    Resynced,
}

/// Judges a SIZES packet.
#[must_use]
pub fn on_sizes(input: &SizesReceived) -> SizesVerdict {
    if input.disk < DiskState::Negotiating { without_disk(input) } else { with_disk(input) }
}

fn with_disk(input: &SizesReceived) -> SizesVerdict {
    let nine = input.limits.known != Known::One;
    let PeerSizes { device, user, current } = input.peer;
    if nine && (device != NONE && current > device || user != NONE && current > user) {
        return SizesVerdict::Refuse(Reason::SizesContradict);
    }
    if nine && input.connected && input.limits.own < current {
        return SizesVerdict::Refuse(Reason::OwnDiskTooSmall);
    }
    let peer = match device {
        NONE => input.limits.peer,
        device if nine => smallest([input.limits.peer, device]),
        device => device,
    };
    let user = match input.connected {
        true if input.peer.user == NONE && input.peer.device == NONE => input.limits.user,
        true => input.peer.user,
        false => smallest([input.limits.user, input.peer.user]),
    };
    // In 9's dialect a size that a connected peer's device has already is one that was agreed on.
    let agreed = input.limits.last_agreed;
    let last_agreed = if nine && input.connected { agreed.max(current) } else { agreed };
    let limits = Limits { peer, user, last_agreed, assume_peer_has_space: false, ..input.limits };
    let size = usable(&limits);
    let guarded = !input.connected || input.peer_disk == DiskState::Diskless;
    if size < input.current && input.disk >= DiskState::Outdated && guarded {
        return SizesVerdict::Refuse(Reason::PeerDiskTooSmall);
    }
    let grew = size > input.current;
    SizesVerdict::Adopt(Adopted {
        size,
        user,
        peer: if nine { device } else { peer },
        send_sizes: size != input.current,
        grown: match grew && !input.no_resync {
            false => Grown::Equal,
            true if input.connected && has_data(input.disk, input.peer_disk) => Grown::Resynced,
            true => Grown::Marked,
        },
    })
}

fn has_data(disk: DiskState, peer_disk: DiskState) -> bool {
    disk >= DiskState::Inconsistent && peer_disk >= DiskState::Inconsistent
}

fn without_disk(input: &SizesReceived) -> SizesVerdict {
    let candidate =
        [input.peer.current, input.peer.user, input.peer.device].into_iter().find(|s| *s != NONE).unwrap_or(NONE);
    if candidate == NONE || candidate == input.current {
        SizesVerdict::Keep(Reason::SizeUnchanged)
    } else if input.current != NONE && input.peer.device == NONE {
        SizesVerdict::Keep(Reason::PeerIsDiskless)
    } else if candidate < input.current && input.role == Role::Primary {
        SizesVerdict::Refuse(Reason::PrimaryWouldShrink)
    } else {
        SizesVerdict::Adopt(Adopted {
            size: candidate,
            user: input.limits.user,
            peer: input.peer.device,
            send_sizes: false,
            grown: Grown::Equal,
        })
    }
}

/// What two nodes of 9's dialect have in common when they are connected. `agreed`: what this node and the peer have,
/// if that was ever agreed on. One that was away has another size, and follows; larger disks alone change nothing.
#[must_use]
pub fn when_connected(limits: &Limits, agreed: [Option<Sector>; 2], current: [Sector; 2]) -> Sector {
    let last_agreed = agreed.into_iter().flatten().max().unwrap_or_else(|| smallest(current));
    usable(&Limits { last_agreed, ..*limits })
}

/// Is this node the source for an area that both grew by (spec 12.6)?
#[must_use]
pub fn grown_area_source(me_primary: bool, peer_primary: bool, resolve_conflicts: bool) -> bool {
    if me_primary == peer_primary { resolve_conflicts } else { me_primary }
}

/// May the administrator resize now (spec 12.6, 8.4 preconditions)?
///
/// # Errors
/// The first precondition that does not hold.
pub fn may_resize(diskless: bool, syncing: bool, protocol: u32, no_resync: bool) -> Result<(), Reason> {
    let checks = [
        (!diskless, Reason::NoDisk),
        (!syncing, Reason::ResizeDuringResync),
        (!no_resync || protocol >= 93, Reason::ResizeNeedsProtocol93),
    ];
    checks.into_iter().find(|(ok, _)| !ok).map_or(Ok(()), |(_, reason)| Err(reason))
}
