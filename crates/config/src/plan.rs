//! From what runs to what is configured: ordered steps (`docs/spec/config-and-cli.md` 5).

use std::fmt;

use units::{NodeId, VolumeNr};

use crate::backing::Backing;
use crate::model::{LocalConnection, LocalPath, LocalResource, LocalVolume};
use crate::options::{Setting, Settings};
use crate::running::{Running, RunningConnection, RunningVolume};
use crate::table::{Group, option};
use crate::value::Value;

/// When a step is done, relative to the others of all resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names are those of the table in the specification, 5.1")]
pub enum Stage {
    Prerequisite,
    Resource,
    DiskDown,
    DiskPrepare,
    NetDisconnect,
    NetDown,
    NetPrepare,
    NetPath,
    Net,
    PeerDevice,
    Disk,
    Connect,
}

/// One thing to do. Option settings are complete: what is not in them has its default.
#[derive(Clone, Debug)]
pub enum Step {
    /// Make the resource.
    NewResource {
        /// This host's node id.
        node_id: NodeId,
        /// Resource options.
        options: Settings,
    },
    /// Replace all resource options.
    ResourceOptions {
        /// The new ones.
        options: Settings,
    },
    /// Let go of a backing disk.
    Detach {
        /// The volume.
        volume: VolumeNr,
        /// Its minor.
        minor: u32,
    },
    /// Remove a device.
    DelMinor {
        /// The volume.
        volume: VolumeNr,
        /// Its minor.
        minor: u32,
    },
    /// Make a device.
    NewMinor {
        /// The volume.
        volume: VolumeNr,
        /// Its minor.
        minor: u32,
        /// Will it have no disk on purpose?
        diskless: bool,
        /// Device options.
        options: Settings,
    },
    /// End a connection, keeping its configuration.
    Disconnect {
        /// The peer.
        peer: NodeId,
    },
    /// Remove a connection.
    DelPeer {
        /// The peer.
        peer: NodeId,
    },
    /// Remove a path.
    DelPath {
        /// The peer.
        peer: NodeId,
        /// The path.
        path: LocalPath,
    },
    /// Make a connection, not yet connecting.
    NewPeer {
        /// The peer.
        peer: NodeId,
        /// Its name.
        name: String,
        /// Net options, `_name` first.
        options: Settings,
    },
    /// Add a path.
    NewPath {
        /// The peer.
        peer: NodeId,
        /// The path.
        path: LocalPath,
    },
    /// Replace all net options.
    NetOptions {
        /// The peer.
        peer: NodeId,
        /// The new ones, `_name` first.
        options: Settings,
    },
    /// Replace (or, for a new connection, set) all peer-device options.
    PeerDeviceOptions {
        /// The peer.
        peer: NodeId,
        /// The volume.
        volume: VolumeNr,
        /// The new ones.
        options: Settings,
        /// Are there old ones to be reset?
        reset: bool,
    },
    /// Take a backing disk, after its metadata was made clean.
    Attach {
        /// The volume.
        volume: VolumeNr,
        /// Its minor.
        minor: u32,
        /// Where data and metadata are.
        backing: Backing,
        /// Disk options.
        options: Settings,
    },
    /// Replace all disk options.
    DiskOptions {
        /// The volume.
        volume: VolumeNr,
        /// Its minor.
        minor: u32,
        /// The new ones, without `size`.
        options: Settings,
    },
    /// Change the limit of the size.
    Resize {
        /// The volume.
        volume: VolumeNr,
        /// Its minor.
        minor: u32,
        /// The new limit; `None` = what fits.
        size: Option<Setting>,
    },
    /// Begin to connect.
    Connect {
        /// The peer.
        peer: NodeId,
        /// In case of split brain, give up this node's changes.
        discard_my_data: bool,
        /// Only try the handshake.
        tentative: bool,
    },
}

/// The ordered steps for one resource.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The resource.
    pub resource: String,
    /// What to do, in order of the stages.
    pub steps: Vec<Step>,
    /// What cannot be adjusted, and why.
    pub notes: Vec<String>,
}

/// Which parts to adjust, and how to connect.
#[derive(Clone, Debug, Default)]
pub struct AdjustScope {
    /// Leave connections alone (`--skip-net`).
    pub skip_net: bool,
    /// Leave disks alone (`--skip-disk`).
    pub skip_disk: bool,
    /// Only the connection to this peer (`RES:PEER`).
    pub only_peer: Option<NodeId>,
    /// Only the disk of this volume (`RES/VOL`).
    pub only_volume: Option<VolumeNr>,
    /// `--discard-my-data`.
    pub discard_my_data: bool,
    /// `--tentative`.
    pub tentative: bool,
}

impl Step {
    /// When it is done.
    #[must_use]
    pub fn stage(&self) -> Stage {
        match self {
            Step::NewResource { .. } => Stage::Prerequisite,
            Step::ResourceOptions { .. } => Stage::Resource,
            Step::Detach { .. } | Step::DelMinor { .. } => Stage::DiskDown,
            Step::NewMinor { .. } => Stage::DiskPrepare,
            Step::Disconnect { .. } => Stage::NetDisconnect,
            Step::DelPeer { .. } | Step::DelPath { .. } => Stage::NetDown,
            Step::NewPeer { .. } => Stage::NetPrepare,
            Step::NewPath { .. } => Stage::NetPath,
            Step::NetOptions { .. } => Stage::Net,
            Step::PeerDeviceOptions { .. } => Stage::PeerDevice,
            Step::Attach { .. } | Step::DiskOptions { .. } | Step::Resize { .. } => Stage::Disk,
            Step::Connect { .. } => Stage::Connect,
        }
    }

    /// Does its failure make the remaining steps of the resource pointless?
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        use Stage::{DiskDown, DiskPrepare, NetDown, NetPrepare, Prerequisite};
        matches!(self.stage(), Prerequisite | DiskDown | DiskPrepare | NetDown | NetPrepare)
    }
}

impl Plan {
    /// What brings up a resource that does not run.
    #[must_use]
    pub fn up(wanted: &LocalResource, scope: &AdjustScope) -> Plan {
        let mut builder = Builder::new(wanted, scope);
        builder.push(Step::NewResource { node_id: wanted.node_id, options: wanted.settings.clone() });
        for volume in wanted.volumes.iter().filter(|v| scope.only_volume.is_none_or(|only| only == v.nr)) {
            match scope.skip_disk {
                false => builder.new_volume(volume),
                true => builder.new_minor(volume),
            }
        }
        let meant = |id: NodeId| !scope.skip_net && scope.only_peer.is_none_or(|only| only == id);
        for peer in wanted.peers.iter().filter(|p| meant(p.peer_node_id)) {
            builder.new_peer(peer);
        }
        builder.finish()
    }

    /// What brings a running resource to its configuration. `None` for `running`: it does not run.
    #[must_use]
    pub fn adjust(running: Option<&Running>, wanted: &LocalResource, scope: &AdjustScope) -> Plan {
        let Some(running) = running else { return Plan::up(wanted, scope) };
        let mut builder = Builder::new(wanted, scope);
        if running.node_id.is_some_and(|id| id != wanted.node_id) {
            builder.plan.notes.push(format!(
                "the node-id of this host changed to {}, which a running resource cannot follow: take `{}` down, and up again",
                wanted.node_id.index(),
                wanted.name
            ));
        }
        if !running.options.same_meaning(&wanted.settings) {
            builder.push(Step::ResourceOptions { options: wanted.settings.clone() });
        }
        builder.volumes(running);
        builder.connections(running);
        builder.finish()
    }

    /// Is there nothing to do?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

/// The steps of several plans in the order in which they are run: by stage, then by resource.
#[must_use]
pub fn in_order(plans: &[Plan]) -> Vec<(&str, &Step)> {
    let mut all: Vec<(&str, &Step)> =
        plans.iter().flat_map(|p| p.steps.iter().map(|s| (p.resource.as_str(), s))).collect();
    all.sort_by_key(|(_, step)| step.stage());
    all
}

struct Builder<'a> {
    wanted: &'a LocalResource,
    scope: &'a AdjustScope,
    plan: Plan,
}

impl<'a> Builder<'a> {
    fn new(wanted: &'a LocalResource, scope: &'a AdjustScope) -> Builder<'a> {
        Builder { wanted, scope, plan: Plan { resource: wanted.name.clone(), ..Plan::default() } }
    }

    fn push(&mut self, step: Step) {
        self.plan.steps.push(step);
    }

    fn finish(mut self) -> Plan {
        self.plan.steps.sort_by_key(Step::stage);
        self.plan
    }

    fn volumes(&mut self, running: &Running) {
        let scope = self.scope;
        if scope.skip_disk {
            return;
        }
        let in_scope = |nr: VolumeNr| scope.only_volume.is_none_or(|only| only == nr);
        for old in running.volumes.iter().filter(|old| in_scope(old.nr)) {
            if !self.wanted.volumes.iter().any(|new| new.nr == old.nr) {
                self.del_volume(old);
            }
        }
        for new in self.wanted.volumes.iter().filter(|new| in_scope(new.nr)) {
            match running.volumes.iter().find(|old| old.nr == new.nr) {
                None => self.new_volume(new),
                Some(old) if old.minor != new.minor => {
                    self.del_volume(old);
                    self.new_volume(new);
                }
                Some(old) => self.change_volume(old, new),
            }
        }
    }

    fn new_volume(&mut self, volume: &LocalVolume) {
        self.new_minor(volume);
        self.attach(volume);
    }

    fn new_minor(&mut self, volume: &LocalVolume) {
        self.push(Step::NewMinor {
            volume: volume.nr,
            minor: volume.minor,
            diskless: volume.backing.is_none(),
            options: volume.settings.of(Group::Device),
        });
    }

    fn del_volume(&mut self, volume: &RunningVolume) {
        self.push(Step::Detach { volume: volume.nr, minor: volume.minor });
        self.push(Step::DelMinor { volume: volume.nr, minor: volume.minor });
    }

    fn attach(&mut self, volume: &LocalVolume) {
        if let Some(backing) = volume.backing.clone() {
            let options = volume.numbered().of(Group::Disk);
            self.push(Step::Attach { volume: volume.nr, minor: volume.minor, backing, options });
        }
    }

    fn change_volume(&mut self, old: &RunningVolume, new: &LocalVolume) {
        let (old_options, new_options) = (old.options.of(Group::Disk), new.numbered().of(Group::Disk));
        let reattach = old.backing != new.backing || immutable_differs(&old_options, &new_options);
        if reattach {
            if old.backing.is_some() {
                self.push(Step::Detach { volume: old.nr, minor: old.minor });
            }
            self.attach(new);
            return;
        }
        if new.backing.is_none() {
            return;
        }
        let (volume, minor) = (new.nr, new.minor);
        let without_size = |s: &Settings| -> Settings { s.iter().filter(|s| s.spec.name != "size").cloned().collect() };
        let size = |s: &Settings| s.find("size").filter(|s| !s.is_default()).map(|s| s.value.clone());
        let options = without_size(&new_options);
        if !without_size(&old_options).same_meaning(&options) {
            self.push(Step::DiskOptions { volume, minor, options });
        }
        if size(&old_options) != size(&new_options) {
            self.push(Step::Resize { volume, minor, size: new_options.find("size").cloned() });
        }
    }

    fn connections(&mut self, running: &Running) {
        let scope = self.scope;
        if scope.skip_net {
            return;
        }
        let in_scope = |peer: NodeId| scope.only_peer.is_none_or(|only| only == peer);
        for old in running.connections.iter().filter(|old| in_scope(old.peer_node_id)) {
            if !self.wanted.peers.iter().any(|new| new.peer_node_id == old.peer_node_id) {
                self.push(Step::DelPeer { peer: old.peer_node_id });
            }
        }
        for new in self.wanted.peers.iter().filter(|new| in_scope(new.peer_node_id)) {
            match running.connections.iter().find(|old| old.peer_node_id == new.peer_node_id) {
                None => self.new_peer(new),
                Some(old) if immutable_differs(&old.options, &new.settings) => {
                    self.push(Step::DelPeer { peer: old.peer_node_id });
                    self.new_peer(new);
                }
                Some(old) => self.change_connection(running, old, new),
            }
        }
    }

    fn new_peer(&mut self, peer: &LocalConnection) {
        let id = peer.peer_node_id;
        self.push(Step::NewPeer { peer: id, name: peer.peer_name.clone(), options: peer.named_settings() });
        for path in &peer.paths {
            self.push(Step::NewPath { peer: id, path: path.clone() });
        }
        for device in peer.peer_devices.iter().filter(|d| !d.settings.is_empty()) {
            let (volume, options) = (device.volume, device.settings.clone());
            self.push(Step::PeerDeviceOptions { peer: id, volume, options, reset: false });
        }
        self.connect(id);
    }

    fn connect(&mut self, peer: NodeId) {
        let AdjustScope { discard_my_data, tentative, .. } = *self.scope;
        self.push(Step::Connect { peer, discard_my_data, tentative });
    }

    fn change_connection(&mut self, running: &Running, old: &RunningConnection, new: &LocalConnection) {
        let peer = new.peer_node_id;
        let same = |a: &LocalPath, b: &LocalPath| a.local == b.local && a.remote == b.remote;
        let gone: Vec<_> = old.paths.iter().filter(|o| !new.paths.iter().any(|n| same(o, n))).collect();
        // Without any of its paths a connection has to be made again.
        let loses_all = !old.paths.is_empty() && gone.len() == old.paths.len();
        if loses_all && !old.standalone {
            self.push(Step::Disconnect { peer });
        }
        for path in gone {
            self.push(Step::DelPath { peer, path: path.clone() });
        }
        for path in new.paths.iter().filter(|n| !old.paths.iter().any(|o| same(o, n))) {
            self.push(Step::NewPath { peer, path: path.clone() });
        }
        let options = new.named_settings();
        if !old.options.same_meaning(&options) {
            self.push(Step::NetOptions { peer, options });
        }
        for device in &new.peer_devices {
            // A peer device exists if its volume and its connection (known by a path) did before.
            let existed = !old.paths.is_empty() && running.volumes.iter().any(|v| v.nr == device.volume);
            let before = old.peer_devices.iter().find(|(nr, _)| *nr == device.volume);
            let before = before.map(|(_, settings)| settings.clone()).unwrap_or_default();
            if !existed || !before.same_meaning(&device.settings) {
                let (volume, options) = (device.volume, device.settings.clone());
                self.push(Step::PeerDeviceOptions { peer, volume, options, reset: true });
            }
        }
        if old.standalone || loses_all {
            self.connect(peer);
        }
    }
}

fn immutable_differs(old: &Settings, new: &Settings) -> bool {
    let only = |s: &Settings| -> Settings { s.iter().filter(|s| s.spec.immutable).cloned().collect() };
    !only(old).same_meaning(&only(new))
}

impl LocalConnection {
    /// The net options with the peer's name in front, as `new-peer` takes them.
    #[must_use]
    pub fn named_settings(&self) -> Settings {
        let spec = option(&[Group::Net], "_name").expect("the option table has `_name`");
        let name = self.peer_name.clone();
        let name = Setting::new(spec, name.clone(), Value::Text(name), self.span.clone());
        std::iter::once(name).chain(self.settings.iter().filter(|s| s.spec != spec).cloned()).collect()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            for command in step.commands(&self.resource) {
                writeln!(f, "{}", crate::command::shell_line(&command))?;
            }
        }
        Ok(())
    }
}
