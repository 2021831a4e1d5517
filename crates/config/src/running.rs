//! What runs now: the other side of `adjust`.

use std::path::Path;

use units::{NodeId, VolumeNr};

use crate::address::Address;
use crate::backing::Backing;
use crate::document::{ConnectionNode, HostNode, ResourceNode, VolumeNode};
use crate::error::Errors;
use crate::files::Memory;
use crate::grammar::Grammar;
use crate::load_options::LoadOptions;
use crate::model::{LocalPath, LocalResource};
use crate::options::Settings;

/// A running resource.
#[derive(Clone, Debug, Default)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// This host's node id, if it says.
    pub node_id: Option<NodeId>,
    /// Resource options that differ from their defaults.
    pub options: Settings,
    /// Its volumes.
    pub volumes: Vec<RunningVolume>,
    /// Its connections.
    pub connections: Vec<RunningConnection>,
}

/// A running volume.
#[derive(Clone, Debug)]
pub struct RunningVolume {
    /// Its number.
    pub nr: VolumeNr,
    /// Its minor.
    pub minor: u32,
    /// Its disk; `None`: detached, or diskless on purpose.
    pub backing: Option<Backing>,
    /// Disk and device options.
    pub options: Settings,
}

/// A running connection.
#[derive(Clone, Debug)]
pub struct RunningConnection {
    /// The peer.
    pub peer_node_id: NodeId,
    /// Does it try to connect, or is it connected? Otherwise it is StandAlone.
    pub standalone: bool,
    /// Its paths.
    pub paths: Vec<LocalPath>,
    /// Net options, `_name` among them.
    pub options: Settings,
    /// Peer-device options per volume.
    pub peer_devices: Vec<(VolumeNr, Settings)>,
}

impl Running {
    /// Reads the output of `drbdsetup show` (also in the form of 9.22, with `_is_standalone`).
    ///
    /// # Errors
    /// Where the text is not such an output.
    pub fn parse_show(text: &str) -> Result<Vec<Running>, Errors> {
        let (files, options) = (Memory::default(), LoadOptions::default());
        let mut grammar = Grammar::new(&files, &options);
        grammar.text(Path::new("(drbdsetup show)"), text);
        let document = grammar.document;
        grammar.findings.into_result()?;
        Ok(document.resources.iter().map(running).collect())
    }

    /// A resource that was brought up from this configuration, with all disks attached and all connections wanted. A
    /// program that keeps the configuration it started with changes the fields that are different by now.
    #[must_use]
    pub fn from_configuration(resource: &LocalResource) -> Running {
        let volumes = resource.volumes.iter().map(|v| RunningVolume {
            nr: v.nr,
            minor: v.minor,
            backing: v.backing.clone(),
            options: v.numbered(),
        });
        let connections = resource.peers.iter().map(|p| RunningConnection {
            peer_node_id: p.peer_node_id,
            standalone: false,
            paths: p.paths.clone(),
            options: p.named_settings(),
            peer_devices: p.peer_devices.iter().map(|d| (d.volume, d.settings.clone())).collect(),
        });
        Running {
            name: resource.name.clone(),
            node_id: Some(resource.node_id),
            options: resource.settings.clone(),
            volumes: volumes.collect(),
            connections: connections.collect(),
        }
    }
}

fn running(node: &ResourceNode) -> Running {
    let this: Option<&HostNode> = node.hosts.first();
    let node_id = this.and_then(|h| h.node_id.as_ref()).and_then(|(id, _)| NodeId::new(*id));
    Running {
        name: node.name.text.clone(),
        node_id,
        options: node.sections.options.clone(),
        volumes: this.map(|h| h.volumes.iter().filter_map(volume).collect()).unwrap_or_default(),
        connections: node.connections.iter().filter_map(connection).collect(),
    }
}

fn volume(node: &VolumeNode) -> Option<RunningVolume> {
    let minor = node.device.as_ref()?.minor;
    Some(RunningVolume { nr: VolumeNr(node.nr), minor, backing: node.backing(), options: node.options.clone() })
}

fn connection(node: &ConnectionNode) -> Option<RunningConnection> {
    let state = &node.running;
    let path = |(local, remote): &(Address, Address)| LocalPath {
        local: local.clone(),
        remote: remote.clone(),
        proxied: false,
    };
    Some(RunningConnection {
        peer_node_id: NodeId::new(state.peer_node_id?)?,
        standalone: state.standalone || state.cstate.as_deref() == Some("StandAlone"),
        paths: state.paths.iter().map(path).collect(),
        options: node.net.clone(),
        peer_devices: node.volumes.iter().map(|(nr, s, _)| (VolumeNr(*nr), s.clone())).collect(),
    })
}
