//! The configuration as programs use it: everything merged, expanded and checked.

use std::net::IpAddr;
use std::sync::Arc;

use units::{NodeId, VolumeNr, same_host};

use crate::address::Address;
use crate::backing::Backing;
use crate::document::Document;
use crate::error::{Span, Warning};
use crate::index::Index;
use crate::options::{
    DeviceOptions, DiskOptions, GlobalOptions, Handlers, NetOptions, PeerDeviceOptions, ResourceOptions, ResyncGoal,
    Setting, Settings, StartupOptions, UrbdOptions,
};
use crate::value::Value;

/// A checked configuration of any number of resources, seen from no particular host.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of the main file.
    pub file: Arc<str>,
    /// The `global` section.
    pub global: GlobalOptions,
    /// All resources, in the order of the files.
    pub resources: Vec<Resource>,
    pub(crate) index: Index,
    pub(crate) document: Document,
    pub(crate) warnings: Vec<Warning>,
}

/// One resource with all its hosts.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Its name.
    pub name: String,
    /// Where it is defined.
    pub span: Span,
    /// All hosts, in the order of the file.
    pub hosts: Vec<Host>,
    /// All connections, with generated ones: implicit, and one for each pair of a mesh.
    pub connections: Vec<Connection>,
    /// Merged `options`.
    pub options: ResourceOptions,
    /// Merged `startup`.
    pub startup: StartupOptions,
    /// Merged `handlers`.
    pub handlers: Handlers,
    /// Merged `urbd`.
    pub urbd: UrbdOptions,
    /// What a resync shall achieve.
    pub resync_goal: ResyncGoal,
    /// What `options` was made from.
    pub settings: Settings,
    /// What `handlers`, `urbd` and `resync_goal` were made from.
    pub private: Settings,
    /// Has it 8.4's form: two hosts whose node ids are computed, and no sections of connections?
    pub of_84: bool,
}

/// How a host section says which host it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMatch {
    /// `on NAME [NAME…]`: by host name.
    Names(Vec<String>),
    /// `floating ADDRESS`: by owning the address.
    Floating(Address),
    /// `stacked-on-top-of RES`: whichever host runs the lower resource as primary; with the names of its hosts.
    Stacked {
        /// The lower resource.
        lower: String,
        /// The hosts of the lower resource.
        hosts: Vec<String>,
    },
}

/// One host of a resource.
#[derive(Clone, Debug)]
pub struct Host {
    /// Whose section it is.
    pub is: HostMatch,
    /// Its node id, written or computed.
    pub node_id: NodeId,
    /// Its `address`; connections may use others.
    pub address: Option<Address>,
    /// Its volumes, in order of their numbers.
    pub volumes: Vec<Volume>,
    /// Where the section begins.
    pub span: Span,
}

/// One volume on one host.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its number.
    pub nr: VolumeNr,
    /// Was it written without `volume { }`?
    pub implicit: bool,
    /// The minor number, 0 to 2^20 − 1.
    pub minor: u32,
    /// What `device` calls it beside `drbdMINOR`: a name that begins with `drbd_`, without `/dev/`.
    pub name: Option<String>,
    /// The backing storage; `None` on a host that is diskless on purpose.
    pub backing: Option<Backing>,
    /// Merged disk options.
    pub disk: DiskOptions,
    /// Merged device options.
    pub device: DeviceOptions,
    /// `tiebreaker no`: does not count for quorum although diskless.
    pub tiebreaker: bool,
    /// What `disk`, `device` and the peer-device options were made from.
    pub settings: Settings,
}

/// A connection of two hosts.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Indexes into [`Resource::hosts`].
    pub hosts: [usize; 2],
    /// At least one; addresses in the order of `hosts`.
    pub paths: Vec<Path>,
    /// Merged net options.
    pub net: NetOptions,
    /// What `net` was made from.
    pub settings: Settings,
    /// Merged peer-device options for each volume number.
    pub peer_devices: Vec<PeerDevice>,
    /// Where it is defined; for a generated one, the resource.
    pub span: Span,
}

/// The two endpoints of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Where each of the two hosts listens.
    pub addresses: [Address; 2],
    /// Under which address each of the two hosts is reached from the other, if that differs (NAT).
    pub outside: [Option<Address>; 2],
    /// If it runs through DRBD proxy: where each of the two hosts reaches its own proxy.
    pub proxies: Option<[Address; 2]>,
}

/// Options of one volume towards the other end of one connection.
#[derive(Clone, Debug)]
pub struct PeerDevice {
    /// The volume.
    pub volume: VolumeNr,
    /// Merged options.
    pub options: PeerDeviceOptions,
    /// What `options` was made from.
    pub settings: Settings,
}

/// Who is asking: what identifies this machine.
#[derive(Clone, Debug, Default)]
pub struct ThisHost {
    /// `uname -n`, or what `--node` or `URBD_NODE` says.
    pub name: String,
    /// The addresses of the local interfaces, for `floating` and for the check of addresses.
    pub addresses: Vec<IpAddr>,
    /// Act as the upper, stacked host (`--stacked`).
    pub stacked: bool,
}

/// A resource as one of its hosts sees it: what `up` needs.
#[derive(Clone, Debug)]
pub struct LocalResource {
    /// Its name.
    pub name: String,
    /// This host's name, as in its section.
    pub host: String,
    /// This host's node id.
    pub node_id: NodeId,
    /// Merged resource options.
    pub options: ResourceOptions,
    /// Merged startup options.
    pub startup: StartupOptions,
    /// Merged handlers.
    pub handlers: Handlers,
    /// Merged options of urbd's own section.
    pub urbd: UrbdOptions,
    /// What a resync shall achieve.
    pub resync_goal: ResyncGoal,
    /// This host's volumes, in order of their numbers.
    pub volumes: Vec<LocalVolume>,
    /// One entry per peer that this host has a connection with, in the order of the file.
    pub peers: Vec<LocalConnection>,
    /// What `options` was made from.
    pub settings: Settings,
    /// What `handlers`, `urbd` and `resync_goal` were made from.
    pub private: Settings,
    /// How many hosts the resource has, this one included.
    pub host_count: usize,
    /// How many other hosts of the resource have a disk for some volume, at least 1: the metadata slots of `create-md`.
    pub metadata_slots: u32,
}

/// A volume on this host.
#[derive(Clone, Debug)]
pub struct LocalVolume {
    /// Its number.
    pub nr: VolumeNr,
    /// Was it written without `volume { }`?
    pub implicit: bool,
    /// The minor number.
    pub minor: u32,
    /// What `device` calls it beside `drbdMINOR`: a name that begins with `drbd_`, without `/dev/`.
    pub name: Option<String>,
    /// The backing storage; `None`: this host is diskless on purpose.
    pub backing: Option<Backing>,
    /// Merged disk options. A `resync-after` names a resource and volume; see [`LocalVolume::resync_after_minor`].
    pub disk: DiskOptions,
    /// Merged device options.
    pub device: DeviceOptions,
    /// The minor on this host whose resync comes first.
    pub resync_after_minor: Option<u32>,
    /// What `disk` and `device` were made from.
    pub settings: Settings,
}

impl LocalVolume {
    /// Its options as drbdsetup has them: `resync-after` is a minor of this host; without it if that is unknown.
    #[must_use]
    pub fn numbered(&self) -> Settings {
        let number = |setting: &Setting| {
            if setting.spec.name != "resync-after" || setting.is_default() {
                return Some(setting.clone());
            }
            let minor = self.resync_after_minor?.to_string();
            Some(Setting::new(setting.spec, minor.clone(), Value::Text(minor), setting.span.clone()))
        };
        self.settings.iter().filter_map(number).collect()
    }
}

/// The connection to one peer.
#[derive(Clone, Debug)]
pub struct LocalConnection {
    /// The peer's node id.
    pub peer_node_id: NodeId,
    /// The peer's name (`--_name`, `DRBD_PEERS`): host name, address of a floating host, `alpha_bravo` of a stacked
    /// one.
    pub peer_name: String,
    /// At least one path.
    pub paths: Vec<LocalPath>,
    /// Merged net options.
    pub net: NetOptions,
    /// Merged peer-device options per volume of this host, in order of the volume numbers.
    pub peer_devices: Vec<PeerDevice>,
    /// What `net` was made from.
    pub settings: Settings,
    /// Where the connection is defined.
    pub span: Span,
}

/// A pair of endpoints as this host sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPath {
    /// Where this host listens, and where its outgoing connections come from.
    pub local: Address,
    /// Where the peer (or this host's proxy) is reached.
    pub remote: Address,
    /// Does it run through DRBD proxy? Then it cannot be used.
    pub proxied: bool,
}

impl ThisHost {
    /// A host known by its name only.
    #[must_use]
    pub fn named(name: impl Into<String>) -> ThisHost {
        ThisHost { name: name.into(), ..ThisHost::default() }
    }

    /// Adds the addresses of its interfaces.
    #[must_use]
    pub fn with_addresses(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> ThisHost {
        self.addresses.extend(addresses);
        self
    }
}

impl Config {
    /// The resource of that name.
    #[must_use]
    pub fn resource(&self, name: &str) -> Option<&Resource> {
        self.resources.get(self.index.find(name)?)
    }

    /// What the user should know: options that have no effect, names that are ignored, missing connections.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

impl Host {
    /// The host's name for messages and for `--_name`: the joined names of an `on` section, the address of a floating
    /// one, the joined names of the lower hosts of a stacked one.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.is {
            HostMatch::Names(names) => names.join("_"),
            HostMatch::Floating(address) => crate::document::floating_name(address),
            HostMatch::Stacked { hosts, .. } => hosts.join("_"),
        }
    }

    /// Is this one of its names?
    pub(crate) fn answers_to(&self, name: &str) -> bool {
        match &self.is {
            HostMatch::Names(names) => names.iter().any(|n| same_host(n, name)),
            _ => self.name() == name,
        }
    }

    /// Stands this very name in its `on` statement?
    pub(crate) fn has_name(&self, name: &str) -> bool {
        matches!(&self.is, HostMatch::Names(names) if names.iter().any(|n| n == name))
    }

    /// Its volume of that number.
    #[must_use]
    pub fn volume(&self, nr: VolumeNr) -> Option<&Volume> {
        self.volumes.iter().find(|v| v.nr == nr)
    }
}

/// The resource and, if it has a number, the volume that a text like `RES` or `RES/VOL` names; `None` if what stands
/// for the number is none.
#[must_use]
pub fn volume_name(text: &str) -> Option<(&str, Option<VolumeNr>)> {
    match text.split_once('/') {
        Some((resource, nr)) => Some((resource, Some(VolumeNr(nr.parse().ok()?)))),
        None => Some((text, None)),
    }
}
