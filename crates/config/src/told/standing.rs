//! How a resource stands beside what it is: what a process leaves to the one that follows it.

use std::collections::BTreeSet;

use units::{NodeId, NodeMask, VolumeNr};

use super::Refused;
use crate::model::LocalResource;

/// Which peers are connected to, or sought, and which disks stay detached: as commands have left them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The peers that are connected to, or sought.
    pub connects: NodeMask,
    /// The volumes whose disk stays detached although it is known.
    pub detached: BTreeSet<VolumeNr>,
    /// What the configuration file says goes before all of it, where that has the resource: the process has left in
    /// order, or somebody has started another one by a command.
    pub behind_file: bool,
    /// The name that it had when its devices were made, and that their files have, if it has another one since.
    pub files: Option<String>,
}

const BEHIND_FILE: &str = "_behind-file\n";
const FILES: &str = "_files ";

/// What [`LocalResource::kept`] says, behind what the file says.
#[must_use]
pub fn behind_file(kept: &str) -> String {
    if kept.ends_with(BEHIND_FILE) { kept.to_owned() } else { kept.to_owned() + BEHIND_FILE }
}

impl Standing {
    /// As `up` leaves it: all peers are sought, and no disk stays detached.
    #[must_use]
    pub fn up(local: &LocalResource) -> Standing {
        Standing { connects: local.peers.iter().map(|p| p.peer_node_id).collect(), ..Standing::default() }
    }

    /// The same, and all disks stay detached.
    #[must_use]
    pub fn without_disks(mut self, local: &LocalResource) -> Standing {
        self.detached = local.volumes.iter().filter(|v| v.backing.is_some()).map(|v| v.nr).collect();
        self
    }
}

impl LocalResource {
    /// What it was told, and how it stands: [`LocalResource::from_kept`] reads it.
    #[must_use]
    pub fn kept(&self, standing: &Standing) -> String {
        let peers = self.peers.iter().map(|p| p.peer_node_id).filter(|id| standing.connects.contains(*id));
        let connects: String = peers.map(|id| format!("connect {} {id}\n", self.name)).collect();
        let detached: String = standing.detached.iter().map(|nr| format!("_detached {} {nr}\n", self.name)).collect();
        let files = standing.files.as_ref().filter(|files| **files != self.name);
        let files = files.map(|files| format!("{FILES}{files}\n")).unwrap_or_default();
        let kept = self.told() + &connects + &detached + &files;
        if standing.behind_file { behind_file(&kept) } else { kept }
    }

    /// What [`LocalResource::kept`] says.
    ///
    /// # Errors
    /// As [`LocalResource::from_told`]; 171, 127: it names a peer, or a volume, that is not there.
    pub fn from_kept(text: &str) -> Result<(LocalResource, Standing), Refused> {
        let behind_file = text.ends_with(BEHIND_FILE);
        let text = text.strip_suffix(BEHIND_FILE).unwrap_or(text);
        let stands = |line: &&str| ["connect ", "_detached ", FILES].iter().any(|word| line.starts_with(word));
        let (stands, builds): (Vec<&str>, Vec<&str>) = text.lines().partition(stands);
        let local = LocalResource::from_told(&builds.join("\n"))?;
        let mut standing = Standing { behind_file, ..Standing::default() };
        for line in stands {
            if let Some(files) = line.strip_prefix(FILES) {
                standing.files = Some(files.to_owned());
                continue;
            }
            let number = line.rsplit_once(' ').and_then(|(_, number)| number.parse::<u16>().ok());
            if line.starts_with("connect ") {
                let id = number.and_then(|n| u8::try_from(n).ok()).and_then(NodeId::new);
                let peer = local.peers.iter().map(|p| p.peer_node_id).find(|peer| Some(*peer) == id);
                let peer = peer.ok_or_else(|| Refused::new(171, format!("`{line}` names no peer")))?;
                standing.connects.insert(peer);
            } else {
                let volume = number.map(VolumeNr).filter(|nr| local.volume(*nr).is_some());
                let volume = volume.ok_or_else(|| Refused::new(127, format!("`{line}` names no volume")))?;
                standing.detached.insert(volume);
            }
        }
        Ok((local, standing))
    }

    /// The same of what the keeper of `resource` has. Who has renamed the resource, and was killed before he could tell
    /// the keeper so, has left the name before.
    ///
    /// # Errors
    /// As [`LocalResource::from_kept`].
    pub fn from_keeper_of(resource: &str, text: &str) -> Result<(LocalResource, Standing), Refused> {
        let (mut local, mut standing) = LocalResource::from_kept(text)?;
        if local.name != resource {
            standing.files.get_or_insert_with(|| local.name.clone());
            local.be_called(resource)?;
            local.derive();
        }
        Ok((local, standing))
    }
}
