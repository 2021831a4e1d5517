//! What is the matter with this node's own disks.

use super::{List, Next, Weight, next, sentence};
use crate::states::{ConnectionState, DiskState, ReplicationState, Role};
use crate::status::{ConnectionStatus, DeviceStatus, IntentionalClient, ResourceStatus};

impl List<'_> {
    pub(super) fn device(&mut self, r: &ResourceStatus, d: &DeviceStatus) {
        let object = format!("{}/{}", self.resource, d.volume);
        let mut add =
            |weight, code: &str, text: String, next: Option<Next>| self.add(object.clone(), weight, code, text, next);
        let name = &r.name;
        // What the metadata said at the attach is no reason for what the state is now.
        let cause = d.cause.as_ref().filter(|c| !c.code.starts_with("was-") && !c.text.starts_with("disk is "));
        let why = cause.map(|c| format!(" ({})", c.text)).unwrap_or_default();
        let fetch = || fetch(r, d.volume);
        match d.disk {
            DiskState::UpToDate => {}
            DiskState::Diskless if d.client == IntentionalClient::Yes => {}
            // Among several peers a Primary takes no disk into use.
            DiskState::Diskless if r.role == Role::Primary && is_in_mesh(r) => {
                let text = format!("No disk is attached: reads and writes are done by the peers{why}.");
                let next = next!(
                    "move the applications to another node; or stop them here, then: urbd secondary {name}; urbd attach \
                     {name}"
                );
                add(Weight::Error, "disk-missing", text, Some(next));
            }
            DiskState::Diskless => {
                let disk = d.backing_dev.as_deref().unwrap_or("the disk");
                let text = format!("No disk is attached: this node keeps no copy{why}.");
                let next = next!("when {disk} works again: urbd attach {object}");
                add(Weight::Error, "disk-missing", text, Some(next));
            }
            DiskState::Failed | DiskState::Detaching => {
                let text = format!("The disk is being given up{why}.");
                add(Weight::Error, "disk-failed", text, Some(next!("replace it; then: urbd attach {object}")));
            }
            DiskState::Attaching => {
                add(Weight::Running, "disk-attaching", "The disk is being attached.".into(), None);
            }
            DiskState::Negotiating => {
                let text = "The disk is attached, and waits for the peer to say whose data is newer.".into();
                add(Weight::Running, "disk-negotiating", text, None);
            }
            DiskState::Inconsistent if is_target(r, d.volume) => {}
            DiskState::Inconsistent if no_good_copy(r, d.volume) => {
                let text = "No node in reach has good data: this disk is Inconsistent, and so is every other.".into();
                let next =
                    next!("where the data to keep is, or for empty disks on any one node: urbd primary --force {name}");
                add(Weight::Error, "no-good-copy", text, Some(next));
            }
            DiskState::Inconsistent if d.fresh => {
                let text = "This disk is new: it has no data yet.".into();
                let others = away(r);
                let start = match others.is_empty() || good_peer(r, d.volume).is_some() {
                    true => fetch(),
                    false => next!("to copy another node's data, on {others}: urbd adjust {name}"),
                };
                let next = next!("{start}; if all disks are new, on one node: urbd primary --force {name}");
                add(Weight::Error, "disk-new", text, Some(next));
            }
            DiskState::Inconsistent => {
                let text = format!("This disk is Inconsistent, part old and part new, until it is copied again{why}.");
                add(Weight::Error, "disk-inconsistent", text, Some(fetch()));
            }
            DiskState::Outdated => {
                let text = format!("This disk has old data, and cannot be used before the newer data is here{why}.");
                add(Weight::Warning, "disk-outdated", text, Some(fetch()));
            }
            DiskState::Consistent if survives(r, d.volume) => {
                let text = "A Primary was lost: the nodes that are left agree on who has the newest data.".into();
                add(Weight::Running, "survivors-agreeing", text, None);
            }
            DiskState::Consistent | DiskState::DUnknown => {
                let text = "It is not known yet whether this disk has the newest data: the peer must say so.".into();
                let gone = if r.connections.len() > 1 { "all others are" } else { "the peer is" };
                let fetch = fetch();
                let next = next!("{fetch}; if {gone} gone for good, here: urbd primary --force {name}");
                add(Weight::Warning, "disk-maybe-old", text, Some(next));
            }
        }
        if let Some(whose) = only_good_copy(r, d) {
            let text = format!("One good copy of the data is left, {whose}.");
            add(Weight::Running, "one-good-copy", text, None);
        }
        if !d.quorum {
            let votes = d.votes.as_ref().map(|votes| format!(" ({votes})")).unwrap_or_default();
            let text = format!("This volume has no quorum: too few nodes are in reach{votes}.");
            let weight = if r.role == Role::Primary { Weight::Error } else { Weight::Warning };
            add(weight, "no-quorum", text, without_quorum(r));
        }
        let fault = d.cause.as_ref().filter(|c| c.code == "activity-log-damaged" && d.disk == DiskState::UpToDate);
        if let Some(cause) = fault {
            add(Weight::Note, &cause.code, sentence(&cause.text), None);
        }
    }
}

/// Has each volume good data, here or, where a node without a disk may be Primary, at a connected peer?
pub(super) fn can_be_primary(r: &ResourceStatus) -> bool {
    let good = |d: &DeviceStatus| match d.disk {
        DiskState::UpToDate => true,
        DiskState::Diskless => !is_in_mesh(r) && good_peer(r, d.volume).is_some(),
        _ => good_peer(r, d.volume).is_some() && is_target(r, d.volume) && !is_in_mesh(r),
    };
    r.devices.iter().all(good)
}

/// Where the only good copy of a volume is, of those that are to be there, beside a connected peer. One that is not
/// connected is spoken of as such.
fn only_good_copy(r: &ResourceStatus, d: &DeviceStatus) -> Option<String> {
    let peers = r.connections.iter().filter(|c| c.connection == ConnectionState::Connected);
    let peers = peers.filter_map(|c| Some((c, c.peer_device(d.volume)?)));
    let peers: Vec<_> = peers.filter(|(_, p)| p.peer_client != IntentionalClient::Yes).collect();
    let here = (d.disk == DiskState::UpToDate).then(|| "on this node".to_owned());
    let there = peers.iter().filter(|(_, p)| p.peer_disk == DiskState::UpToDate).map(|(c, _)| format!("on {}", c.name));
    let mut good = here.into_iter().chain(there);
    let first = good.next()?;
    let copies = peers.len() + usize::from(d.client != IntentionalClient::Yes);
    (copies > 1 && good.next().is_none()).then_some(first)
}

/// How the volume gets good data.
fn fetch(r: &ResourceStatus, volume: u16) -> Next {
    let alone = |c: &&ConnectionStatus| c.connection == ConnectionState::StandAlone;
    let (name, is_outdated) = (&r.name, r.device(volume).is_some_and(|d| d.disk == DiskState::Outdated));
    if let Some(c) = r.connections.iter().find(alone) {
        let object = format!("{name}:{}", c.name);
        return next!("urbd connect {object}");
    }
    let others = away(r);
    let Some(good) = good_peer(r, volume).map(|c| &c.name) else {
        return match others.is_empty() {
            true => next!("on a node with good data: urbd status {name}"),
            false => next!("bring {others} back (there: urbd adjust {name})"),
        };
    };
    // Among several nodes a Primary is not brought up to date, and two others are not copied to each other beside it.
    let primary = r.connections.iter().find(|c| c.peer_role == Role::Primary && c.name != *good).map(|c| &c.name);
    match primary {
        _ if is_in_mesh(r) && r.role == Role::Primary => {
            next!("stop the applications here; urbd secondary {name}; urbd invalidate {name}/{volume} copies {good}'s")
        }
        Some(primary) if is_in_mesh(r) => next!(
            "on {primary}, stop the applications; urbd secondary {name}; then here, urbd invalidate {name}/{volume} \
             copies {good}'s"
        ),
        _ if others.is_empty() => next!("urbd invalidate {name}/{volume} copies {good}'s"),
        // Beside a Primary elsewhere a copy is refused; without one an Outdated disk is brought up to date.
        _ if is_outdated => next!(
            "bring {others} back (there: urbd adjust {name}); if that is gone for good, what {good} has is copied by itself"
        ),
        _ => next!(
            "urbd invalidate {name}/{volume} copies {good}'s; if that is refused, bring {others} back (there: urbd \
             adjust {name})"
        ),
    }
}

/// Is a node connected that may have lost the same Primary? A Consistent disk beside one that is as good is a
/// survivor's.
fn survives(r: &ResourceStatus, volume: u16) -> bool {
    let as_good = |c: &ConnectionStatus| {
        let disk = c.peer_device(volume).map(|p| p.peer_disk);
        matches!(disk, Some(DiskState::Consistent | DiskState::UpToDate))
    };
    r.connections.iter().any(|c| c.connection == ConnectionState::Connected && as_good(c))
}

/// A connected peer with good data: the Primary, if that has.
fn good_peer(r: &ResourceStatus, volume: u16) -> Option<&ConnectionStatus> {
    let good = |c: &&ConnectionStatus| c.peer_device(volume).is_some_and(|p| p.peer_disk == DiskState::UpToDate);
    let mut all = r.connections.iter().filter(|c| c.connection == ConnectionState::Connected).filter(good);
    all.clone().find(|c| c.peer_role == Role::Primary).or_else(|| all.next())
}

/// The names of the peers that are not connected: `bravo`, `bravo or charlie`.
pub(super) fn away(r: &ResourceStatus) -> String {
    let away = r.connections.iter().filter(|c| c.connection != ConnectionState::Connected);
    let names = away.map(|c| if c.name.is_empty() { "the peer" } else { c.name.as_str() });
    names.collect::<Vec<_>>().join(" or ")
}

/// What brings quorum back: the nodes that are away.
pub(super) fn without_quorum(r: &ResourceStatus) -> Option<Next> {
    let (name, away) = (&r.name, away(r));
    (!away.is_empty()).then(|| {
        next!(
            "on {away}: urbd adjust {name}; if they are off for good, here: urbd resource-options --quorum=off {name}"
        )
    })
}

/// Are several nodes connected, as DRBD 9 does it?
fn is_in_mesh(r: &ResourceStatus) -> bool {
    r.connections.len() > 1 && r.connections.iter().any(|c| c.protocol.is_some_and(|p| p >= 118))
}

/// Is the volume being copied from a peer?
fn is_target(r: &ResourceStatus, volume: u16) -> bool {
    use ReplicationState::{PausedSyncT, StartingSyncT, SyncTarget, WFBitMapT, WFSyncUUID};
    let states = r.connections.iter().filter_map(|c| c.peer_device(volume)).map(|p| p.replication);
    states.into_iter().any(|s| matches!(s, SyncTarget | PausedSyncT | StartingSyncT | WFBitMapT | WFSyncUUID))
}

/// Somebody is in reach, and has no good data either.
fn no_good_copy(r: &ResourceStatus, volume: u16) -> bool {
    let mut disks = r.connections.iter().filter_map(|c| c.peer_device(volume)).map(|p| p.peer_disk).peekable();
    disks.peek().is_some() && disks.all(|d| d == DiskState::Inconsistent)
}
