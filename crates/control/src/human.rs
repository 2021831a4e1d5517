//! `status` for people (`docs/spec/config-and-cli.md` 4.1).

use std::fmt::Write;

use crate::fields;
use crate::paint::{self, Hue, Side, paint};
use crate::rates;
use crate::states::{ConnectionState, DiskState, ReplicationState};
use crate::status::{ConnectionStatus, DeviceStatus, IntentionalClient, PeerDeviceStatus, ResourceStatus};

/// How much to print, and for whom.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How often `--verbose` was given.
    pub verbose: u8,
    /// `--statistics`.
    pub statistics: bool,
    /// With escape codes.
    pub color: bool,
    /// Whether the output goes to a terminal.
    pub terminal: bool,
    /// Columns.
    pub width: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { verbose: 0, statistics: false, color: false, terminal: false, width: 80 }
    }
}

/// What is printed when nothing runs.
pub const NOTHING_CONFIGURED: &str = "# No currently configured DRBD found.\n";

/// All resources, sorted by name, each followed by an empty line.
pub fn status(resources: &[ResourceStatus], options: &Options) -> String {
    if resources.is_empty() {
        return NOTHING_CONFIGURED.to_owned();
    }
    let mut sorted: Vec<&ResourceStatus> = resources.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let mut page = Page { options: *options, text: String::new() };
    for resource in sorted {
        page.resource(resource);
    }
    page.text
}

struct Page {
    options: Options,
    text: String,
}

impl Page {
    fn verbose(&self) -> bool {
        self.options.verbose > 0
    }

    fn resource(&mut self, resource: &ResourceStatus) {
        let (verbose, color) = (self.verbose(), self.options.color);
        let mut line = Line::new(0, 4, self.options.width);
        line.word(&resource.name);
        if verbose {
            line.word(&format!("node-id:{}", resource.node_id.map_or(-1, i32::from)));
        }
        let role = paint(color, Side::Local, paint::role(resource.role), resource.role.as_str());
        line.painted(&format!("role:{role}"), "role:".len() + resource.role.as_str().len());
        if verbose || resource.suspended.any() {
            line.word(&format!("suspended:{}", resource.suspended));
        }
        if verbose || resource.force_io_failures {
            let hue = if resource.force_io_failures { Hue::Bad } else { Hue::Plain };
            let word = fields::yes_no(resource.force_io_failures);
            let painted = paint(color, Side::Local, hue, word);
            line.painted(&format!("force-io-failures:{painted}"), "force-io-failures:".len() + word.len());
        }
        if verbose && self.options.statistics {
            line.wrap();
            line.word(&format!("write-ordering:{}", resource.write_ordering));
            if let Some(memory) = &resource.memory {
                line.wrap();
                line.words(fields::memory(memory));
            }
        }
        line.end(&mut self.text);

        let single = resource.devices.len() == 1 && resource.devices[0].volume == 0;
        for device in &resource.devices {
            self.device(device, single);
        }
        let mut connections: Vec<&ConnectionStatus> = resource.connections.iter().collect();
        connections.sort_by(|a, b| a.name.cmp(&b.name));
        for connection in connections {
            self.connection(resource, connection);
        }
        self.text.push('\n');
    }

    fn device(&mut self, device: &DeviceStatus, single: bool) {
        let (verbose, color) = (self.verbose(), self.options.color);
        let mut line = Line::new(2, 6, self.options.width);
        if verbose || !single {
            line.word(&format!("volume:{}", device.volume));
        }
        if verbose {
            line.word(&format!("minor:{}", device.minor));
        }
        line.field(fields::disk(device, color));
        if device.disk == DiskState::Diskless && (verbose || !self.options.terminal) {
            line.word(&format!("client:{}", device.client.as_str()));
        }
        if verbose {
            line.word(&format!("backing_dev:{}", device.backing_dev.as_deref().unwrap_or("none")));
        }
        if verbose || !device.quorum {
            line.field(fields::quorum(device, color));
        }
        if verbose || device.open.is_some() {
            line.field(fields::open(device, color));
        }
        if let Some(statistics) = &device.statistics {
            if self.options.statistics {
                line.wrap();
                line.words(fields::device_counters(statistics, verbose));
            }
            let blocked = fields::blocked(statistics);
            if verbose || blocked != "no" {
                line.word(&format!("blocked:{blocked}"));
            }
        }
        line.end(&mut self.text);
    }

    fn connection(&mut self, resource: &ResourceStatus, connection: &ConnectionStatus) {
        let (verbose, color) = (self.verbose(), self.options.color);
        let connected = connection.connection == ConnectionState::Connected;
        let mut line = Line::new(2, 6, self.options.width);
        let node_id = format!("node-id:{}", connection.peer_node_id.map_or(-1, i32::from));
        if connection.name.is_empty() {
            line.word(&node_id);
        } else {
            line.word(&connection.name);
            if verbose {
                line.word(&node_id);
            }
        }
        if verbose || !connected {
            line.field(fields::connection(connection, color));
        }
        if connection.failed_authentications > 0 {
            line.word("authentication:failed");
        }
        if verbose || connected {
            line.field(fields::peer_role(connection, color));
            if verbose || connection.tls {
                line.word(&format!("tls:{}", fields::yes_no(connection.tls)));
            }
        }
        if verbose || connection.statistics.is_some_and(|s| s.congested) {
            line.words(fields::connection_counters(connection));
        }
        line.end(&mut self.text);

        if verbose || self.options.statistics || connected {
            let single = connection.peer_devices.len() == 1 && connection.peer_devices[0].volume == 0;
            for peer_device in &connection.peer_devices {
                let size = resource.device(peer_device.volume).and_then(|d| d.statistics).map(|s| s.size_sectors);
                self.peer_device(peer_device, size, single);
            }
        }
    }

    fn peer_device(&mut self, peer_device: &PeerDeviceStatus, size_sectors: Option<u64>, single: bool) {
        let (verbose, color, statistics) = (self.verbose(), self.options.color, self.options.statistics);
        let replication = peer_device.replication;
        let mut line = Line::new(4, 8, self.options.width);
        if verbose || !single {
            line.word(&format!("volume:{}", peer_device.volume));
        }
        if verbose || replication > ReplicationState::Established {
            line.field(fields::replication(peer_device, color));
        }
        let nothing_known = replication == ReplicationState::Off && peer_device.peer_disk == DiskState::DUnknown;
        if verbose || statistics || !nothing_known {
            line.field(fields::peer_disk(peer_device, color));
            let worth = verbose || !self.options.terminal || peer_device.peer_client == IntentionalClient::Yes;
            if peer_device.peer_disk == DiskState::Diskless && worth {
                line.word(&format!("peer-client:{}", peer_device.peer_client.as_str()));
            }
        }
        if let Some(done) = rates::percent_done(peer_device, size_sectors) {
            line.word(&format!("done:{done:.2}"));
        }
        if verbose || peer_device.resync_suspended.any() {
            line.word(&format!("resync-suspended:{}", peer_device.resync_suspended));
        }
        if statistics {
            line.wrap();
            line.words(fields::peer_device_counters(peer_device, verbose));
            if self.options.verbose > 1 {
                line.words(fields::progress_details(peer_device));
            }
        }
        line.end(&mut self.text);
    }
}

/// One object's lines. The count of used columns leaves out the indentation and one column of the first word, as
/// the original does: output is meant to be the same to the byte.
struct Line {
    first_indent: usize,
    next_indent: usize,
    width: usize,
    column: usize,
    text: String,
}

impl Line {
    fn new(first_indent: usize, next_indent: usize, width: usize) -> Line {
        Line { first_indent, next_indent, width, column: 0, text: String::new() }
    }

    fn word(&mut self, word: &str) {
        self.painted(word, word.chars().count());
    }

    fn words(&mut self, words: Vec<String>) {
        for word in words {
            self.word(&word);
        }
    }

    /// A word that may have escape codes in it.
    fn field(&mut self, word: String) {
        let visible = visible_columns(&word);
        self.painted(&word, visible);
    }

    fn painted(&mut self, word: &str, visible: usize) {
        if self.column > 0 && self.column + 1 + visible > self.width {
            self.wrap();
        }
        if self.column == 0 {
            let indent = if self.text.is_empty() { self.first_indent } else { self.next_indent };
            let _ = write!(self.text, "{:indent$}{word}", "");
            self.column = visible.saturating_sub(1);
        } else {
            let _ = write!(self.text, " {word}");
            self.column += 1 + visible;
        }
    }

    fn wrap(&mut self) {
        if self.column > 0 {
            self.text.push('\n');
            self.column = 0;
        }
    }

    fn end(self, page: &mut String) {
        if !self.text.is_empty() {
            page.push_str(&self.text);
            page.push('\n');
        }
    }
}

fn visible_columns(word: &str) -> usize {
    let mut columns = 0;
    let mut in_escape = false;
    for c in word.chars() {
        match (in_escape, c) {
            (false, '\x1b') => in_escape = true,
            (false, _) => columns += 1,
            (true, 'm') => in_escape = false,
            (true, _) => {}
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_one_letter_pushes_the_next_word() {
        let mut line = Line::new(0, 4, 80);
        line.word("r");
        line.word("role:Primary");
        let mut page = String::new();
        line.end(&mut page);
        assert_eq!(page, "r    role:Primary\n");
    }
}
