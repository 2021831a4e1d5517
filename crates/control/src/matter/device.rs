//! What is the matter with this node's own disks.

use super::{List, Weight, sentence};
use crate::states::{ConnectionState, DiskState, ReplicationState, Role};
use crate::status::{ConnectionStatus, DeviceStatus, IntentionalClient, ResourceStatus};

impl List<'_> {
    pub(super) fn device(&mut self, r: &ResourceStatus, d: &DeviceStatus) {
        let object = format!("{}/{}", self.resource, d.volume);
        let mut add =
            |weight, code: &str, text: String, next: String| self.add(object.clone(), weight, code, text, next);
        // What the metadata says is what the state says.
        let cause = d.cause.as_ref().filter(|c| !c.code.starts_with("was-"));
        let why = cause.map(|c| format!(" ({})", c.text)).unwrap_or_default();
        let fetch = fetch(r, d.volume);
        match d.disk {
            DiskState::UpToDate => {}
            DiskState::Diskless if d.client == IntentionalClient::Yes => {}
            // Among several peers it serves reads by them, and is not to write.
            DiskState::Diskless if r.role == Role::Primary && is_in_mesh(r) => {
                let text = format!("No disk is attached: reads are done by a peer, and writes fail{why}.");
                let next = format!(
                    "move the applications to another node; or stop them here, then: urbd secondary {0}; urbd attach {0}",
                    r.name
                );
                add(Weight::Error, "disk-missing", text, next);
            }
            DiskState::Diskless => {
                let disk = d.backing_dev.as_deref().unwrap_or("the disk");
                let text = format!("No disk is attached: this node keeps no copy{why}.");
                add(Weight::Error, "disk-missing", text, format!("when {disk} works again: urbd attach {object}"));
            }
            DiskState::Failed | DiskState::Detaching => {
                let text = format!("The disk is being given up{why}.");
                add(Weight::Error, "disk-failed", text, format!("replace it; then: urbd attach {object}"));
            }
            DiskState::Attaching => {
                add(Weight::Running, "disk-attaching", "The disk is being attached.".into(), String::new());
            }
            DiskState::Negotiating => {
                let text = "The disk is attached, and waits for the peer to say whose data is newer.".into();
                add(Weight::Running, "disk-negotiating", text, String::new());
            }
            DiskState::Inconsistent if is_target(r, d.volume) => {}
            DiskState::Inconsistent if no_good_copy(r, d.volume) => {
                let text = "No node in reach has good data: this disk is Inconsistent, and so is every other.".into();
                let next = format!(
                    "where the data to keep is, or for empty disks on any one node: urbd primary --force {}",
                    r.name
                );
                add(Weight::Error, "no-good-copy", text, next);
            }
            DiskState::Inconsistent if d.fresh => {
                let text = "This disk is new: it has no data yet.".into();
                let others = away(r);
                let start = match others.is_empty() || good_peer(r, d.volume).is_some() {
                    true => fetch,
                    false => format!("to copy another node's, start that ({others}): urbd up {}", r.name),
                };
                let next = format!("{start}; if all disks are new, on one node: urbd primary --force {}", r.name);
                add(Weight::Error, "disk-new", text, next);
            }
            DiskState::Inconsistent => {
                let text = format!("This disk is Inconsistent, part old and part new, until it is copied again{why}.");
                add(Weight::Error, "disk-inconsistent", text, fetch);
            }
            DiskState::Outdated => {
                let text = format!("This disk has old data, and cannot be used before the newer data is here{why}.");
                add(Weight::Warning, "disk-outdated", text, fetch);
            }
            DiskState::Consistent if survives(r, d.volume) => {
                let text = "A Primary was lost: the nodes that are left agree on who has the newest data.".into();
                add(Weight::Running, "survivors-agreeing", text, String::new());
            }
            DiskState::Consistent | DiskState::DUnknown => {
                let text = "It is not known yet whether this disk has the newest data: the peer must say so.".into();
                let gone = if r.connections.len() > 1 { "all others are" } else { "the peer is" };
                let next = format!("{fetch}; if {gone} gone for good: urbd primary --force {}", r.name);
                add(Weight::Warning, "disk-maybe-old", text, next);
            }
        }
        if let Some(whose) = only_good_copy(r, d) {
            let text = format!("One good copy of the data is left, {whose}.");
            add(Weight::Running, "one-good-copy", text, String::new());
        }
        if !d.quorum {
            let text = "This volume has no quorum: too few nodes are in reach.".into();
            add(Weight::Error, "no-quorum", text, "bring the other nodes back".into());
        }
        let fault = d.cause.as_ref().filter(|c| c.code == "activity-log-damaged" && d.disk == DiskState::UpToDate);
        if let Some(cause) = fault {
            add(Weight::Note, &cause.code, sentence(&cause.text), String::new());
        }
    }
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
fn fetch(r: &ResourceStatus, volume: u16) -> String {
    let alone = |c: &&ConnectionStatus| c.connection == ConnectionState::StandAlone;
    let name = &r.name;
    let copies = good_peer(r, volume).map(|c| format!("urbd invalidate {name}/{volume} copies {}'s", c.name));
    if let Some(c) = r.connections.iter().find(alone) {
        return format!("urbd connect {name}:{}", c.name);
    }
    match (away(r), copies) {
        (others, Some(copies)) if others.is_empty() => copies,
        (others, None) if others.is_empty() => format!("on a node with good data: urbd status {name}"),
        (others, None) => format!("bring {others} back (there: urbd status {name})"),
        (others, Some(copies)) => {
            format!("bring {others} back (there: urbd status {name}); if that is gone for good: {copies}")
        }
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

/// A connected peer with good data.
fn good_peer(r: &ResourceStatus, volume: u16) -> Option<&ConnectionStatus> {
    let good = |c: &ConnectionStatus| c.peer_device(volume).is_some_and(|p| p.peer_disk == DiskState::UpToDate);
    r.connections.iter().find(|c| c.connection == ConnectionState::Connected && good(c))
}

/// The names of the peers that are not connected: `bravo`, `bravo or charlie`.
pub(super) fn away(r: &ResourceStatus) -> String {
    let away = r.connections.iter().filter(|c| c.connection != ConnectionState::Connected);
    let names = away.map(|c| if c.name.is_empty() { "the peer" } else { c.name.as_str() });
    names.collect::<Vec<_>>().join(" or ")
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
