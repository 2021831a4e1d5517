//! `events2` (`docs/spec/config-and-cli.md` 4.3): turns a sequence of statuses into `exists`, `create`, `change` and
//! `destroy` lines.

use std::collections::BTreeMap;

use crate::fields;
use crate::message::HelperCall;
use crate::paint::{self, Side, paint};
use crate::query;
use crate::rates;
use crate::states::{ConnectionState, DiskState, ReplicationState, Role};
use crate::status::{ConnectionStatus, DeviceStatus, PathStatus, PeerDeviceStatus, ResourceStatus};

/// How much to print.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// `--statistics`.
    pub statistics: bool,
    /// `--full`: every field on every line.
    pub full: bool,
    /// With escape codes.
    pub color: bool,
}

/// Remembers what was printed of each resource.
#[derive(Debug, Clone)]
pub struct Renderer {
    options: Options,
    known: BTreeMap<String, ResourceStatus>,
    initial: bool,
}

impl Renderer {
    /// Nothing is known yet: objects are printed as `exists` until [`Renderer::ready`].
    pub fn new(options: Options) -> Renderer {
        Renderer { options, known: BTreeMap::new(), initial: true }
    }

    /// The end of the initial state. Later objects begin with `create`.
    pub fn ready(&mut self) -> String {
        self.initial = false;
        "exists -".to_owned()
    }

    /// The lines for one atomic change (or for a resource that is new).
    pub fn status(&mut self, new: &ResourceStatus) -> Vec<String> {
        let old = self.known.insert(new.name.clone(), new.clone());
        let birth = if self.initial { "exists" } else { "create" };
        let mut group = Group { options: self.options, birth, name: &new.name, lines: Vec::new() };
        group.resource(old.as_ref(), new);
        group.lines
    }

    /// The lines for what another process has taken over: the connections ended with the last one, the devices did not.
    pub fn taken_over(&mut self, name: &str) -> Vec<String> {
        let Some(mut status) = self.known.get(name).cloned() else { return Vec::new() };
        for c in status.connections.iter_mut().filter(|c| c.connection > ConnectionState::Disconnecting) {
            (c.connection, c.peer_role) = (ConnectionState::Unconnected, Role::Unknown);
            c.paths.iter_mut().for_each(|path| path.established = false);
            for p in &mut c.peer_devices {
                (p.replication, p.peer_disk) = (ReplicationState::Off, DiskState::DUnknown);
            }
        }
        self.status(&status)
    }

    /// The line for a resource that has another name.
    pub fn renamed(&mut self, from: &str, to: &str) -> Vec<String> {
        let Some(mut status) = self.known.remove(from) else { return Vec::new() };
        status.name = to.to_owned();
        self.known.insert(to.to_owned(), status);
        vec![format!("rename resource name:{from} new_name:{to}")]
    }

    /// The lines for a resource that went away.
    pub fn gone(&mut self, name: &str) -> Vec<String> {
        let Some(old) = self.known.remove(name) else { return Vec::new() };
        let mut group = Group { options: self.options, birth: "create", name, lines: Vec::new() };
        for connection in old.connections.iter().rev() {
            group.destroyed_connection(connection);
        }
        for device in old.devices.iter().rev() {
            group.destroyed_device(device);
        }
        group.lines.push(format!("destroy resource name:{name}"));
        group.lines
    }

    /// The line for a handler that is called (`status` absent) or has ended.
    pub fn helper(&self, resource: &str, call: &HelperCall, status: Option<i32>) -> String {
        let word = if status.is_some() { "response" } else { "call" };
        let mut line = format!("{word} helper name:{resource}");
        if let Some((id, name)) = &call.peer {
            line += &format!(" peer-node-id:{id} conn-name:{name}");
        }
        if let Some(volume) = call.volume {
            line += &format!(" volume:{volume}");
        }
        if let Some(minor) = call.minor {
            line += &format!(" minor:{minor}");
        }
        line += &format!(" helper:{}", call.helper);
        if let Some(status) = status {
            line += &format!(" status:{status}");
        }
        line
    }
}

/// The lines of one atomic change of one resource. Lists are walked backwards: the tools print them so.
struct Group<'a> {
    options: Options,
    birth: &'static str,
    name: &'a str,
    lines: Vec<String>,
}

/// Whether a field is printed: always for a new object or with `--full`, otherwise if it changed.
fn wanted<T: PartialEq>(full: bool, old: Option<T>, new: T) -> bool {
    full || old != Some(new)
}

impl Group<'_> {
    fn resource(&mut self, old: Option<&ResourceStatus>, new: &ResourceStatus) {
        self.resource_line(old, new);
        let old_connection = |c: &ConnectionStatus| old.and_then(|o| find_connection(o, c));
        for connection in new.connections.iter().rev() {
            self.connection_line(old_connection(connection), connection);
        }
        for device in new.devices.iter().rev() {
            self.device_line(old.and_then(|o| o.device(device.volume)), device);
        }
        for connection in new.connections.iter().rev() {
            self.peer_devices(old, old_connection(connection), new, connection);
        }
        let Some(old) = old else { return };
        for connection in old.connections.iter().rev().filter(|c| find_connection(new, c).is_none()) {
            self.destroyed_connection(connection);
        }
        for device in old.devices.iter().rev().filter(|d| new.device(d.volume).is_none()) {
            self.destroyed_device(device);
        }
    }

    fn resource_line(&mut self, old: Option<&ResourceStatus>, new: &ResourceStatus) {
        let (full, color) = (self.options.full, self.options.color);
        let mut words = Vec::new();
        if wanted(full, old.map(|o| o.role), new.role) {
            words.push(format!("role:{}", paint(color, Side::Local, paint::role(new.role), new.role.as_str())));
        }
        if wanted(full, old.map(|o| o.suspended), new.suspended) {
            words.push(format!("suspended:{}", new.suspended));
        }
        if wanted(full, old.map(|o| o.force_io_failures), new.force_io_failures) {
            words.push(format!("force-io-failures:{}", fields::yes_no(new.force_io_failures)));
        }
        if self.statistics() && wanted(full, old.map(|o| o.write_ordering), new.write_ordering) {
            words.push(format!("write-ordering:{}", new.write_ordering));
        }
        let promotion = query::promotion(new);
        let old_promotion = old.map(query::promotion);
        let changed = !words.is_empty() || old_promotion != Some(promotion);
        let something = old.is_none() || if full { resource_differs(old, new) } else { changed };
        if wanted(full, old_promotion, promotion) || old.is_some_and(|o| o.role != new.role) {
            words.push(format!("may_promote:{} promotion_score:{}", fields::yes_no(promotion.0), promotion.1));
        }
        if something {
            self.push(old.is_none(), "resource", String::new(), words);
        }
    }

    fn connection_line(&mut self, old: Option<&ConnectionStatus>, new: &ConnectionStatus) {
        let (full, color) = (self.options.full, self.options.color);
        let mut words = Vec::new();
        if wanted(full, old.map(|o| o.connection), new.connection) {
            words.push(fields::connection(new, color));
        }
        if wanted(full, old.map(|o| o.peer_role), new.peer_role) {
            words.push(fields::peer_role(new, color));
        }
        let state_changed = old.is_none_or(|o| o.connection != new.connection || o.peer_role != new.peer_role);
        let counters_changed = old.is_none_or(|o| o.statistics != new.statistics);
        if self.statistics() && (full || counters_changed) {
            words.extend(fields::connection_counters(new));
        }
        if state_changed || (self.statistics() && counters_changed) {
            self.push(old.is_none(), "connection", peer_keys(new), words);
        }
    }

    fn device_line(&mut self, old: Option<&DeviceStatus>, new: &DeviceStatus) {
        let (full, color) = (self.options.full, self.options.color);
        let state_changed = old.is_none_or(|o| {
            (o.disk, o.quorum, o.open, &o.backing_dev, o.client)
                != (new.disk, new.quorum, new.open, &new.backing_dev, new.client)
        });
        let mut words = Vec::new();
        if full || state_changed {
            words.push(format!("backing_dev:{}", new.backing_dev.as_deref().unwrap_or("none")));
            words.push(fields::disk(new, color));
            words.push(format!("client:{}", new.client.as_str()));
            if new.open.is_some() {
                words.push(fields::open(new, false));
            }
            // Here neither the open state nor a quorum that holds is painted, unlike in `status`.
            words.push(fields::quorum(new, color && !new.quorum));
        }
        let counters_changed = old.is_none_or(|o| o.statistics != new.statistics);
        if self.statistics() && (full || counters_changed) {
            words.extend(match &new.statistics {
                Some(statistics) => fields::device_counters(statistics, true),
                None => fields::unknown_device_counters(),
            });
            if let Some(statistics) = new.statistics.filter(|_| counters_changed) {
                words.push(format!("blocked:{}", fields::blocked(&statistics)));
            }
        }
        if state_changed || (self.statistics() && counters_changed) {
            self.push(old.is_none(), "device", format!(" volume:{} minor:{}", new.volume, new.minor), words);
        }
    }

    fn peer_devices(
        &mut self,
        old_resource: Option<&ResourceStatus>,
        old: Option<&ConnectionStatus>,
        resource: &ResourceStatus,
        new: &ConnectionStatus,
    ) {
        for peer_device in new.peer_devices.iter().rev() {
            let before = old.and_then(|o| o.peer_device(peer_device.volume));
            let done_before = before.and_then(|b| done(old_resource?, b));
            self.peer_device_line(before, done_before, new, peer_device, done(resource, peer_device));
        }
        for path in new.paths.iter().rev() {
            let before = old.and_then(|o| find_path(o, path));
            if before.is_none_or(|b| b.established != path.established) {
                let established = vec![format!("established:{}", fields::yes_no(path.established))];
                self.push(before.is_none(), "path", path_keys(new, path), established);
            }
        }
        let Some(old) = old else { return };
        for gone in old.peer_devices.iter().rev().filter(|p| new.peer_device(p.volume).is_none()) {
            self.destroy("peer-device", &format!("{} volume:{}", peer_keys(old), gone.volume));
        }
        for gone in old.paths.iter().rev().filter(|p| find_path(new, p).is_none()) {
            self.destroy("path", &path_keys(old, gone));
        }
    }

    fn peer_device_line(
        &mut self,
        old: Option<&PeerDeviceStatus>,
        done_before: Option<String>,
        connection: &ConnectionStatus,
        new: &PeerDeviceStatus,
        done: Option<String>,
    ) {
        let (full, color) = (self.options.full, self.options.color);
        let mut changed = false;
        let mut note = |differs: bool| {
            changed |= differs;
            full || differs
        };
        let mut words = Vec::new();
        if note(old.map(|o| o.replication) != Some(new.replication)) {
            words.push(fields::replication(new, color));
        }
        if note(old.map(|o| (o.peer_disk, o.peer_client)) != Some((new.peer_disk, new.peer_client))) {
            words.push(fields::peer_disk(new, color));
            words.push(format!("peer-client:{}", new.peer_client.as_str()));
        }
        if note(old.map(|o| o.resync_suspended) != Some(new.resync_suspended)) {
            words.push(format!("resync-suspended:{}", new.resync_suspended));
        }
        if note(done != done_before)
            && let Some(done) = done
        {
            words.push(format!("done:{done}"));
        }
        if self.statistics() {
            let counters = |p: &PeerDeviceStatus| (p.statistics, p.sync);
            if note(old.map(counters) != Some(counters(new))) {
                words.extend(fields::peer_device_counters(new, true));
            }
        }
        if changed || old.is_none() {
            self.push(old.is_none(), "peer-device", format!("{} volume:{}", peer_keys(connection), new.volume), words);
        }
    }

    fn destroyed_connection(&mut self, connection: &ConnectionStatus) {
        for gone in connection.peer_devices.iter().rev() {
            self.destroy("peer-device", &format!("{} volume:{}", peer_keys(connection), gone.volume));
        }
        for gone in connection.paths.iter().rev() {
            self.destroy("path", &path_keys(connection, gone));
        }
        self.destroy("connection", &peer_keys(connection));
    }

    fn destroyed_device(&mut self, device: &DeviceStatus) {
        self.destroy("device", &format!(" volume:{}", device.volume));
    }

    fn statistics(&self) -> bool {
        self.options.statistics || self.options.full
    }

    fn push(&mut self, new: bool, object: &str, keys: String, words: Vec<String>) {
        let action = if new { self.birth } else { "change" };
        let mut line = format!("{action} {object} name:{}{keys}", self.name);
        for word in words {
            line.push(' ');
            line.push_str(&word);
        }
        self.lines.push(line);
    }

    fn destroy(&mut self, object: &str, keys: &str) {
        self.lines.push(format!("destroy {object} name:{}{keys}", self.name));
    }
}

fn resource_differs(old: Option<&ResourceStatus>, new: &ResourceStatus) -> bool {
    let watched =
        |r: &ResourceStatus| (r.role, r.suspended, r.force_io_failures, r.write_ordering, query::promotion(r));
    old.map(watched) != Some(watched(new))
}

fn done(resource: &ResourceStatus, peer_device: &PeerDeviceStatus) -> Option<String> {
    let size = resource.device(peer_device.volume).and_then(|d| d.statistics).map(|s| s.size_sectors);
    rates::percent_done(peer_device, size).map(|p| format!("{p:.2}"))
}

fn find_connection<'a>(resource: &'a ResourceStatus, like: &ConnectionStatus) -> Option<&'a ConnectionStatus> {
    resource.connections.iter().find(|c| (c.peer_node_id, &c.name) == (like.peer_node_id, &like.name))
}

fn find_path<'a>(connection: &'a ConnectionStatus, like: &PathStatus) -> Option<&'a PathStatus> {
    connection.paths.iter().find(|p| (&p.local, &p.peer) == (&like.local, &like.peer))
}

fn peer_keys(connection: &ConnectionStatus) -> String {
    let id = connection.peer_node_id.map_or(-1, i32::from);
    format!(" peer-node-id:{id} conn-name:{}", connection.name)
}

fn path_keys(connection: &ConnectionStatus, path: &PathStatus) -> String {
    format!("{} local:{} peer:{}", peer_keys(connection), path.local, path.peer)
}
