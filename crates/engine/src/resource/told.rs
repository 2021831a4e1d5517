//! What this process is told: objects come and go, and have other options, while it runs. All of it is one value, the
//! resource as this node sees it; each change makes another one, is looked at whole, and is then taken over whole.

use crate::setup::{self, Setup};
use config::{LocalResource, Refused};
use control::{Command, ErrorCode, Failure, ReplicationState, ResourceStatus};
use std::collections::BTreeMap;
use units::{NodeId, VolumeNr};
use urbd_core::{ConnectionState, Snapshot};
use wire::DiskState;

fn refused(Refused { code, text }: Refused) -> Failure {
    Failure::new(ErrorCode(code), text)
}

fn invalid(what: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::INVALID_REQUEST, what.into())
}

/// The state that a change meets.
pub(super) struct Now<'a> {
    pub(super) local: &'a LocalResource,
    pub(super) snapshot: Snapshot,
    /// Volumes that somebody has open.
    pub(super) open: Vec<VolumeNr>,
    pub(super) unusable: &'a BTreeMap<NodeId, String>,
}

impl Now<'_> {
    /// What this process becomes.
    pub(super) fn by(&self, told: &Told<'_>) -> Result<LocalResource, Failure> {
        match told {
            Told::Text(text) => self.by_text(text),
            Told::Calls(calls) => self.by_calls(calls),
        }
    }

    /// What this process becomes by another text, if that is possible while it runs.
    fn by_text(&self, text: &str) -> Result<LocalResource, Failure> {
        let local = LocalResource::from_told(text).map_err(refused)?;
        if (&local.name, local.node_id) != (&self.local.name, self.local.node_id) {
            return Err(invalid(format!(
                "this is {} as node {}, not {} as node {}",
                self.local.name, self.local.node_id, local.name, local.node_id
            )));
        }
        if let Some(fixed) = self.local.fixed_since_start(&local).first() {
            let text = format!("{}, which a process that runs cannot follow", fixed.what);
            let hint = format!("start it anew: urbd restart {}", self.local.name);
            return Err(invalid(text).with_hint(hint));
        }
        local.check_wanted().map_err(|e| invalid(e.to_string()))?;
        setup::runnable(&local).map_err(invalid)?;
        Ok(local)
    }

    /// What it becomes when it does what these commands say, all of them or none.
    fn by_calls(&self, calls: &[Vec<String>]) -> Result<LocalResource, Failure> {
        let mut local = self.local.clone();
        for words in calls {
            self.prepare(&mut local, words)?;
            local.tell(words).map_err(refused)?;
        }
        local.check_wanted().and_then(|()| local.check_startable()).map_err(|e| invalid(e.to_string()))?;
        let Setup { unusable, .. } = Setup::of(&local).map_err(invalid)?;
        // A peer may lack its path as yet.
        let sought = |id: NodeId| local.peers.iter().any(|p| p.peer_node_id == id && !p.paths.is_empty());
        let known = |id: NodeId, why: &String| self.unusable.get(&id) == Some(why);
        if let Some((_, why)) = unusable.iter().find(|(id, why)| sought(**id) && !known(**id, why)) {
            return Err(invalid(why.clone()));
        }
        local.peers.iter().try_for_each(setup::check_algorithms).map_err(invalid)?;
        Ok(local)
    }

    /// What a command asks for beside what was told: a disk or a connection in another state.
    fn prepare(&self, local: &mut LocalResource, words: &[String]) -> Result<(), Failure> {
        let word = |at: usize| words.get(at).map_or("", String::as_str);
        let by_minor = |minor: &str| local.volumes.iter().find(|v| v.minor.to_string() == minor).map(|v| v.nr);
        match word(0) {
            // A disk that was detached is not the process's any more.
            "attach" => match by_minor(word(1)).filter(|nr| self.is_diskless(*nr)) {
                Some(_) => local.tell(&["detach".to_owned(), word(1).to_owned()]).map_err(refused),
                None => Ok(()),
            },
            "detach" => match by_minor(word(1)).filter(|nr| !self.is_diskless(*nr)) {
                Some(nr) => Err(Failure::new(ErrorCode::MINOR_CONFIGURED, format!("volume {nr} has its disk"))),
                None => Ok(()),
            },
            "del-path" => {
                let peer = local.peers.iter().find(|p| p.peer_node_id.to_string() == word(2));
                match peer.filter(|p| p.paths.len() == 1 && !self.is_alone(p.peer_node_id)) {
                    Some(_) => Err(invalid("Can not delete last path, use disconnect first!")),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn is_diskless(&self, volume: VolumeNr) -> bool {
        let device = self.snapshot.devices.iter().find(|d| d.volume == volume);
        device.is_none_or(|d| d.disk == DiskState::Diskless)
    }

    fn is_alone(&self, peer: NodeId) -> bool {
        let connection = self.snapshot.connections.iter().find(|c| c.peer == peer);
        connection.is_none_or(|c| c.state == ConnectionState::StandAlone)
    }

    /// The volumes and peers that `new` does not have: none that is in use goes.
    pub(super) fn check_gone(&self, new: &LocalResource) -> Result<(), Failure> {
        let name = &self.local.name;
        let kept = |nr: VolumeNr| new.volumes.iter().any(|v| v.nr == nr);
        let volumes: Vec<_> = self.local.volumes.iter().map(|v| v.nr).filter(|nr| !kept(*nr)).collect();
        let kept = |id: NodeId| new.peers.iter().any(|p| p.peer_node_id == id);
        let peers: Vec<_> = self.local.peers.iter().filter(|p| !kept(p.peer_node_id)).collect();
        for nr in &volumes {
            if self.open.contains(nr) {
                let text = format!("applications use the device of {name}/{nr}, which is to go");
                let hint = format!("nothing was changed; close it (unmount it), and then: urbd adjust {name}");
                return Err(Failure::new(ErrorCode::DEVICE_IN_USE, text).with_hint(hint));
            }
            if !self.is_diskless(*nr) {
                let text = format!("volume {nr} of {name} has its disk");
                let hint = format!("first: urbd detach {name}/{nr}");
                return Err(Failure::new(ErrorCode::MINOR_CONFIGURED, text).with_hint(hint));
            }
        }
        if let Some(peer) = peers.iter().find(|p| !self.is_alone(p.peer_node_id)) {
            let peer = &peer.peer_name;
            let text = format!("{name} has a connection to {peer}, or is trying to");
            let hint = format!("first: urbd disconnect {name}:{peer}");
            return Err(Failure::new(ErrorCode::NET_CONFIGURED, text).with_hint(hint));
        }
        Ok(())
    }
}

/// What was asked for.
#[derive(Clone, Copy)]
pub(super) enum Told<'a> {
    /// To be what a text says.
    Text(&'a str),
    /// To do what these commands say.
    Calls(&'a [Vec<String>]),
}

/// Is it a command by which a volume goes?
pub(super) fn removes_volumes(local: &LocalResource, asked: &Command) -> bool {
    match asked {
        Command::Tell { calls } => calls.iter().any(|words| words.first().is_some_and(|word| word == "del-minor")),
        Command::ChangeOptions { config } => {
            let goes = |new: &LocalResource| local.volumes.iter().any(|v| new.volumes.iter().all(|n| n.nr != v.nr));
            LocalResource::from_told(config).is_ok_and(|new| goes(&new))
        }
        _ => false,
    }
}

/// The speed of a resync is decided on its target: what `new` changes of it on a source has no effect now.
pub(super) fn idle_at_source(old: &LocalResource, new: &LocalResource, status: &ResourceStatus) -> Vec<String> {
    const OF_TARGET: [&str; 5] = ["resync-rate", "c-plan-ahead", "c-delay-target", "c-fill-target", "c-max-rate"];
    let mut notes = Vec::new();
    for after in &new.peers {
        let Some(before) = old.peers.iter().find(|p| p.peer_node_id == after.peer_node_id) else { continue };
        let peer = status.connections.iter().find(|c| c.name == before.peer_name);
        for after in &after.peer_devices {
            let Some(before) = before.peer_devices.iter().find(|d| d.volume == after.volume) else { continue };
            let now = peer.and_then(|c| c.peer_device(after.volume.0)).map(|p| p.replication);
            if !matches!(now, Some(ReplicationState::SyncSource | ReplicationState::PausedSyncS)) {
                continue;
            }
            let text = |of: &config::PeerDevice, name| of.settings.find(name).map(|s| s.value.clone());
            let changed = OF_TARGET.into_iter().filter(|name| text(before, name) != text(after, name));
            let changed: Vec<&str> = changed.collect();
            if !changed.is_empty() {
                notes.push(format!(
                    "warning: volume {} is the source of a resync, whose speed its target decides: set {} there",
                    after.volume,
                    changed.join(", ")
                ));
            }
        }
    }
    notes
}
