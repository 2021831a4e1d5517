//! What was written, section by section: checked values with their places, nothing merged yet. `dump` prints this.

use std::sync::Arc;

use units::same_host;

use crate::address::Address;
use crate::backing::{Backing, MetaDisk};
use crate::error::Span;
use crate::index::Index;
use crate::options::Settings;

/// All files together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Document {
    pub(crate) global: Option<Settings>,
    pub(crate) common: Option<Sections>,
    pub(crate) resources: Vec<ResourceNode>,
    names: Index,
}

/// A word and its place.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) text: String,
    pub(crate) span: Span,
}

/// The option sections of `common` or a resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sections {
    pub(crate) options: Settings,
    pub(crate) net: Settings,
    pub(crate) disk: Settings,
    pub(crate) startup: Settings,
    pub(crate) handlers: Settings,
    pub(crate) proxy: ProxyOptions,
    pub(crate) urbd: Settings,
    /// Sections seen, for "only once".
    pub(crate) seen: Vec<(&'static str, Span)>,
}

/// A `proxy { }` section with options.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProxyOptions {
    pub(crate) settings: Settings,
    pub(crate) plugins: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct ResourceNode {
    pub(crate) name: Named,
    /// The place of the opening brace: the real tools give its line in `dump`.
    pub(crate) open: Span,
    pub(crate) sections: Sections,
    pub(crate) template: Option<(Arc<str>, Sections)>,
    pub(crate) volumes: Vec<VolumeNode>,
    pub(crate) hosts: Vec<HostNode>,
    pub(crate) connections: Vec<ConnectionNode>,
    pub(crate) meshes: Vec<MeshNode>,
}

#[derive(Clone, Debug)]
pub(crate) struct VolumeNode {
    pub(crate) nr: u16,
    /// Made of statements outside `volume { }`.
    pub(crate) implicit: bool,
    pub(crate) span: Span,
    pub(crate) options: Settings,
    pub(crate) device: Option<DeviceNode>,
    pub(crate) disk: Option<DiskNode>,
    pub(crate) meta_disk: Option<MetaDiskNode>,
    pub(crate) tiebreaker: Option<bool>,
}

#[derive(Clone, Debug)]
pub(crate) struct DeviceNode {
    pub(crate) name: Option<String>,
    pub(crate) minor: u32,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct DiskNode {
    /// `None`: `disk none`.
    pub(crate) path: Option<String>,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct MetaDiskNode {
    /// `internal` or a path.
    pub(crate) place: String,
    pub(crate) index: Option<u32>,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) enum HostKind {
    On(Vec<Named>),
    Floating(Address),
    Stacked(Named),
    /// Only in running configurations.
    ThisHost,
}

#[derive(Clone, Debug)]
pub(crate) struct HostNode {
    pub(crate) kind: HostKind,
    pub(crate) span: Span,
    pub(crate) node_id: Option<(u8, Span)>,
    pub(crate) address: Option<(Address, Span)>,
    pub(crate) options: Settings,
    pub(crate) volumes: Vec<VolumeNode>,
    pub(crate) proxy: Option<ProxyNode>,
}

#[derive(Clone, Debug)]
pub(crate) struct ProxyNode {
    pub(crate) on: Vec<String>,
    pub(crate) inside: Option<Address>,
    pub(crate) outside: Option<Address>,
    pub(crate) options: ProxyOptions,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct ConnectionNode {
    pub(crate) span: Span,
    pub(crate) hosts: Vec<HostRef>,
    pub(crate) paths: Vec<PathNode>,
    pub(crate) net: Settings,
    pub(crate) disk: Settings,
    pub(crate) volumes: Vec<(u16, Settings, Span)>,
    pub(crate) seen: Vec<(&'static str, Span)>,
    pub(crate) running: RunningNode,
}

/// What only the output of `drbdsetup show` says about a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningNode {
    pub(crate) peer_node_id: Option<u8>,
    pub(crate) cstate: Option<String>,
    pub(crate) standalone: bool,
    pub(crate) paths: Vec<(Address, Address)>,
}

#[derive(Clone, Debug)]
pub(crate) struct PathNode {
    pub(crate) span: Span,
    pub(crate) hosts: Vec<HostRef>,
}

#[derive(Clone, Debug)]
pub(crate) struct HostRef {
    pub(crate) name: Named,
    pub(crate) address: Option<Address>,
    pub(crate) port: Option<u16>,
    pub(crate) proxy: Option<ProxyNode>,
    pub(crate) outside: Option<Address>,
}

#[derive(Clone, Debug)]
pub(crate) struct MeshNode {
    pub(crate) span: Span,
    pub(crate) hosts: Vec<Named>,
    pub(crate) net: Settings,
    pub(crate) seen: Vec<(&'static str, Span)>,
}

impl ResourceNode {
    /// Has it the only form that 8.4 knows? Exactly two hosts, whose node ids are computed.
    pub(crate) fn is_of_84(&self) -> bool {
        let names_nodes = self.hosts.iter().any(|host| host.node_id.is_some());
        self.hosts.len() == 2 && !names_nodes && self.connections.is_empty() && self.meshes.is_empty()
    }
}

impl VolumeNode {
    pub(crate) fn new(nr: u16, implicit: bool, span: &Span) -> VolumeNode {
        VolumeNode {
            nr,
            implicit,
            span: span.clone(),
            options: Settings::default(),
            device: None,
            disk: None,
            meta_disk: None,
            tiebreaker: None,
        }
    }
}

impl VolumeNode {
    /// Where data and metadata are, if there is a disk. Metadata is internal unless something else is said.
    pub(crate) fn backing(&self) -> Option<Backing> {
        let path = self.disk.as_ref()?.path.clone()?;
        let meta_disk = match self.meta_disk.as_ref().map(|m| (m.place.as_str(), m.index)) {
            None | Some(("internal", _)) => MetaDisk::Internal,
            Some((path, None)) => MetaDisk::External { path: path.to_owned() },
            Some((path, Some(index))) => MetaDisk::Indexed { path: path.to_owned(), index },
        };
        Some(Backing { path, meta_disk })
    }
}

impl Document {
    pub(crate) fn resource(&self, name: &str) -> Option<&ResourceNode> {
        self.resources.get(self.names.find(name)?)
    }

    pub(crate) fn add(&mut self, resource: ResourceNode) {
        self.names.add(&resource.name.text, self.resources.len());
        self.resources.push(resource);
    }
}

impl HostNode {
    /// Names as they appear in `on` statements; one made-up name for the other kinds.
    pub(crate) fn answers_to(&self, name: &str) -> bool {
        match &self.kind {
            HostKind::On(names) => names.iter().any(|n| same_host(&n.text, name)),
            HostKind::Floating(address) => {
                [floating_name(address), address.plain(), address.to_string(), address.text.clone()]
                    .contains(&name.to_owned())
            }
            HostKind::Stacked(lower) => lower.text == name,
            HostKind::ThisHost => false,
        }
    }
}

/// The name of a floating host since 9.23, `10.1.1.1_7790`: everything but `A–Z a–z 0–9 + - . _` becomes `_`.
pub(crate) fn floating_name(address: &Address) -> String {
    let keep = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
    address.plain().chars().map(|c| if keep(c) { c } else { '_' }).collect()
}
