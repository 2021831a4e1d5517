//! What is the matter with this node's own disks.

use super::{List, Weight, sentence};
use crate::states::{ConnectionState, DiskState, ReplicationState};
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
            DiskState::Inconsistent => {
                let text = format!("This disk is Inconsistent, part old and part new, until it is copied again{why}.");
                // A new one is so, too.
                let next = match r.connections.iter().any(|c| c.connection == ConnectionState::Connected) {
                    true => fetch,
                    false => format!("{fetch}; if no node has had data yet: urbd primary --force {}", r.name),
                };
                add(Weight::Error, "disk-inconsistent", text, next);
            }
            DiskState::Outdated => {
                let text = format!("This disk has old data, and cannot be used before the newer data is here{why}.");
                add(Weight::Warning, "disk-outdated", text, fetch);
            }
            DiskState::Consistent | DiskState::DUnknown => {
                let text = "It is not known yet whether this disk has the newest data: the peer must say so.".into();
                let next = format!("{fetch}; if the peer is gone for good: urbd primary --force {}", r.name);
                add(Weight::Warning, "disk-maybe-old", text, next);
            }
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

/// How the volume gets good data.
fn fetch(r: &ResourceStatus, volume: u16) -> String {
    let alone = |c: &ConnectionStatus| c.connection == ConnectionState::StandAlone;
    match r.connections.iter().find(|c| alone(c)) {
        Some(c) => format!("urbd connect {}:{}", r.name, c.name),
        None if r.connections.iter().all(|c| c.connection == ConnectionState::Connected) => {
            format!("urbd invalidate {}/{volume} copies the peer's", r.name)
        }
        None => "bring the peer with the good data back".to_owned(),
    }
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
