//! The canonical text of a configuration, `dump` (`docs/spec/config-and-cli.md` 1.10).

mod xml;

use std::fmt::Write as _;

use crate::address::Family;
use crate::document::{
    ConnectionNode, HostKind, HostNode, HostRef, MetaDiskNode, ProxyNode, ProxyOptions, ResourceNode, Sections,
    VolumeNode,
};
use crate::error::Findings;
use crate::model::{Config, Connection, HostMatch, Resource, ThisHost};
use crate::options::{Setting, Settings};
use crate::resolve::{merged_sections, merged_volumes};
use crate::table::{Group, Kind};

impl Config {
    /// The canonical text, with what the resources inherit. `verbose`: with everything expanded: inherited options,
    /// generated connections. `only`: the names of the resources to print; empty means all.
    #[must_use]
    pub fn dump(&self, host: &ThisHost, verbose: bool, only: &[&str]) -> String {
        let mut out = Printer { text: format!("# {}\n", self.file), level: 0 };
        self.dump_global(&mut out, verbose);
        if let Some(common) = &self.document.common {
            out.block("common", |out| sections(out, common));
            out.text.push('\n');
        }
        for (resource, node) in self.resources.iter().zip(&self.document.resources) {
            if only.is_empty() || only.contains(&resource.name.as_str()) {
                self.dump_one(&mut out, resource, node, host, verbose);
            }
        }
        out.text
    }

    /// One resource, without what is around it; `None` if there is no such resource.
    #[must_use]
    pub fn dump_resource(&self, host: &ThisHost, verbose: bool, name: &str) -> Option<String> {
        let mut both = self.resources.iter().zip(&self.document.resources);
        let (resource, node) = both.find(|(resource, _)| resource.name == name)?;
        let mut out = Printer { text: String::new(), level: 0 };
        self.dump_one(&mut out, resource, node, host, verbose);
        Some(out.text)
    }

    fn dump_one(&self, out: &mut Printer, resource: &Resource, node: &ResourceNode, host: &ThisHost, verbose: bool) {
        self.dump_header(out, resource, node, host);
        out.block(&format!("resource {}", quoted(&resource.name)), |out| {
            if verbose { self.dump_expanded(out, resource, node) } else { self.dump_as_written(out, resource, node) }
        });
        out.text.push('\n');
    }

    fn dump_global(&self, out: &mut Printer, verbose: bool) {
        let shown = ["disable-ip-verification", "minor-count", "dialog-refresh", "usage-count"];
        let written = self.document.global.as_ref();
        let settings: Vec<&Setting> =
            shown.iter().filter_map(|name| written?.find(name)).filter(|s| !s.is_default()).collect();
        if settings.is_empty() && !verbose {
            return;
        }
        out.block("global", |out| {
            for setting in settings {
                match setting.spec.kind {
                    Kind::Flag => out.line(&format!("{};", setting.spec.name)),
                    _ => out.line(&format!("{} {};", setting.spec.name, setting.text)),
                }
            }
        });
        out.text.push('\n');
    }

    fn dump_header(&self, out: &mut Printer, resource: &Resource, node: &ResourceNode, host: &ThisHost) {
        let ignored = if self.concerns(resource, host) { "not ignored" } else { "ignored" };
        let is_stacked =
            resource.hosts.iter().any(|h| matches!(h.is, HostMatch::Stacked { .. }) && self.matches(h, host));
        let stacked = if is_stacked { "stacked" } else { "not stacked" };
        out.line(&format!("# resource {} on {}: {ignored}, {stacked}", quoted(&resource.name), host.name));
        out.line(&format!("# defined at {}:{}", node.open.file, node.open.line));
    }

    fn dump_as_written(&self, out: &mut Printer, resource: &Resource, node: &ResourceNode) {
        template(out, node);
        let mut volumes: Vec<&VolumeNode> = node.volumes.iter().collect();
        volumes.sort_by_key(|v| v.nr);
        for volume in volumes {
            one_volume(out, volume, false);
        }
        for (host, section) in resource.hosts.iter().zip(&node.hosts) {
            let mut volumes = section.volumes.clone();
            volumes.sort_by_key(|v| v.nr);
            for volume in volumes.iter_mut().filter(|v| !v.options.is_empty() && v.disk.is_none()) {
                let outer = node.volumes.iter().find(|outer| outer.nr == volume.nr);
                volume.disk = outer.and_then(|outer| outer.disk.clone());
            }
            if matches!(section.kind, HostKind::Stacked(_)) {
                volumes.clear();
            }
            one_host(out, section, host, &volumes, false);
        }
        for connection in &node.connections {
            written_connection(out, connection);
        }
        for mesh in &node.meshes {
            out.block("connection-mesh", |out| {
                let names: Vec<String> = mesh.hosts.iter().map(|n| quoted(&n.text)).collect();
                out.line(&format!("hosts {};", names.join(" ")));
                out.section("net", &mesh.net);
            });
        }
        sections(out, &node.sections);
    }

    fn dump_expanded(&self, out: &mut Printer, resource: &Resource, node: &ResourceNode) {
        template(out, node);
        let merged = merged_sections(&self.document, node);
        for (host, section) in resource.hosts.iter().zip(&node.hosts) {
            // Problems of merging were reported when the configuration was loaded.
            let mut volumes = merged_volumes(node, section, &merged.disk, &mut Findings::default());
            for volume in volumes.iter_mut().filter(|_| !matches!(section.kind, HostKind::Stacked(_))) {
                let span = volume.span.clone();
                if volume.disk.as_ref().is_some_and(|d| d.path.is_some()) {
                    let default = MetaDiskNode { place: "internal".to_owned(), index: None, span };
                    volume.meta_disk = volume.meta_disk.take().or(Some(default));
                } else {
                    volume.meta_disk = None;
                    volume.disk = Some(crate::document::DiskNode { path: None, span });
                }
            }
            one_host(out, section, host, &volumes, true);
        }
        for connection in &resource.connections {
            expanded_connection(out, resource, node, &merged, connection);
        }
        sections(out, &merged);
    }
}

fn template(out: &mut Printer, node: &ResourceNode) {
    if let Some((file, _)) = &node.template {
        out.line(&format!("template-file {};", quoted(file)));
    }
}

fn sections(out: &mut Printer, sections: &Sections) {
    out.section("options", &sections.options);
    out.section("net", &sections.net);
    out.section("disk", &by_group(&sections.disk));
    let startup = sections.startup.iter().filter(|s| s.spec.name != "become-primary-on");
    let (flags, others): (Vec<_>, Vec<_>) = startup.partition(|s| s.spec.kind == Kind::Flag);
    out.section("startup", &others.into_iter().chain(flags).cloned().collect());
    if !sections.proxy.settings.is_empty() || !sections.proxy.plugins.is_empty() {
        out.block("proxy", |out| proxy_options(out, &sections.proxy));
    }
    out.section("handlers", &sections.handlers);
    if !sections.urbd.is_empty() {
        out.block("urbd", |out| {
            out.settings(&sections.urbd.of(Group::Urbd));
            out.section("resync-goal", &sections.urbd.of(Group::ResyncGoal));
        });
    }
}

/// What stands in `disk { }`, in the order of the real tools.
fn by_group(disk: &Settings) -> Settings {
    // Until 9.32 `bitmap` was the last option of peer devices; newer ones stand behind it.
    let place = |s: &Setting| match (s.spec.name, s.spec.group) {
        (_, Group::Device) => 0,
        ("bitmap", _) => 3,
        ("resync-without-replication" | "peer-tiebreaker", _) => 4,
        (_, Group::PeerDevice) => 2,
        _ => 1,
    };
    let mut settings: Vec<Setting> = disk.iter().cloned().collect();
    settings.sort_by_key(place);
    settings.into_iter().collect()
}

fn proxy_options(out: &mut Printer, options: &ProxyOptions) {
    out.settings(&options.settings);
    if !options.plugins.is_empty() {
        out.block("plugin", |out| options.plugins.iter().for_each(|plugin| out.line(&format!("{plugin};"))));
    }
}

fn one_host(out: &mut Printer, section: &HostNode, host: &crate::model::Host, volumes: &[VolumeNode], expanded: bool) {
    let head = match &section.kind {
        HostKind::On(names) => {
            format!("on {}", names.iter().map(|n| quoted(&n.text)).collect::<Vec<_>>().join(" "))
        }
        HostKind::Floating(address) => format!("{:<16} {address}", "floating"),
        HostKind::Stacked(lower) => format!("stacked-on-top-of {}", quoted(&lower.text)),
        HostKind::ThisHost => "_this_host".to_owned(),
    };
    out.block(&head, |out| {
        if let HostMatch::Stacked { hosts, .. } = &host.is {
            out.line(&format!("# on {} ", hosts.join(" ")));
        }
        out.line(&format!("node-id {};", host.node_id.index()));
        out.section("options", &section.options);
        for volume in volumes {
            one_volume(out, volume, expanded);
        }
        if let (Some((address, _)), false) = (&section.address, matches!(section.kind, HostKind::Floating(_))) {
            out.line(&format!("{:<16} {address};", "address"));
        }
        if let Some(p) = section.proxy.as_ref().filter(|_| !expanded) {
            out.line(&format!("proxy on {} {{", p.on.join(" ")));
            proxy_body(out, p);
        }
    });
}

fn one_volume(out: &mut Printer, volume: &VolumeNode, expanded: bool) {
    if volume.implicit {
        volume_statements(out, volume, expanded);
    } else {
        out.block(&format!("volume {}", volume.nr), |out| volume_statements(out, volume, expanded));
    }
}

fn volume_statements(out: &mut Printer, volume: &VolumeNode, expanded: bool) {
    out.section("disk", &by_group(&volume.options));
    if let Some(device) = &volume.device {
        let minor = device.minor;
        match &device.name {
            Some(name) => out.statement("device", &format!("{name} minor {minor}")),
            None if expanded => out.statement("device", &format!("/dev/drbd{minor} minor {minor}")),
            None => out.statement("device", &format!("minor {minor}")),
        }
    }
    if let Some(disk) = &volume.disk {
        out.statement("disk", &disk.path.as_deref().map_or("none".to_owned(), quoted));
    }
    match &volume.meta_disk {
        None => {}
        Some(meta) if meta.place == "internal" => out.statement("meta-disk", "internal"),
        Some(MetaDiskNode { place, index, .. }) => {
            let index = index.map(|i| format!(" [{i}]")).unwrap_or_default();
            let width = if expanded { 16 } else { out.width() };
            out.line(&format!("{:<width$} {}{index};", "meta-disk", quoted(place)));
        }
    }
    if let Some(votes) = volume.tiebreaker {
        out.statement("tiebreaker", if votes { "yes" } else { "no" });
    }
}

fn written_connection(out: &mut Printer, connection: &ConnectionNode) {
    out.block("connection", |out| {
        connection.hosts.iter().for_each(|host| host_ref(out, host));
        for path in &connection.paths {
            out.block("path", |out| path.hosts.iter().for_each(|host| host_ref(out, host)));
        }
        out.section("net", &connection.net);
        out.section("disk", &connection.disk);
        for (nr, settings, _) in &connection.volumes {
            out.block(&format!("volume {nr}"), |out| out.section("disk", settings));
        }
    });
}

fn expanded_connection(
    out: &mut Printer,
    resource: &Resource,
    node: &ResourceNode,
    merged: &Sections,
    connection: &Connection,
) {
    let written = node.connections.iter().find(|c| c.span == connection.span);
    out.block("connection", |out| {
        for (at, path) in connection.paths.iter().enumerate() {
            let refs = written.map(|w| w.paths.get(at).map_or(&w.hosts, |p| &p.hosts));
            out.block("path", |out| {
                for side in [0, 1] {
                    let section = &node.hosts[connection.hosts[side]];
                    let proxy = refs.and_then(|r| r[side].proxy.as_ref()).or(section.proxy.as_ref()).cloned();
                    let name = match &section.kind {
                        HostKind::Floating(address) if address.family == Family::Ipv4 => address.plain(),
                        HostKind::Floating(address) => address.to_string(),
                        HostKind::Stacked(lower) => lower.text.clone(),
                        HostKind::On(names) => names[0].text.clone(),
                        HostKind::ThisHost => resource.hosts[connection.hosts[side]].name(),
                    };
                    let name = crate::document::Named { text: name, span: connection.span.clone() };
                    let proxy = proxy.map(|p| with_resource_options(p, &merged.proxy));
                    let (address, outside) = (Some(path.addresses[side].clone()), path.outside[side].clone());
                    host_ref(out, &HostRef { name, address, port: None, proxy, outside });
                }
            });
        }
        out.section("net", &connection.settings);
        if let Some(written) = written {
            out.section("disk", &written.disk);
        }
        let mut devices: Vec<_> = connection.peer_devices.iter().collect();
        let written_first = |nr: u16| written.and_then(|w| w.volumes.iter().position(|(n, _, _)| *n == nr));
        devices.sort_by_key(|d| (written_first(d.volume.0).unwrap_or(usize::MAX), d.volume.0));
        for device in devices {
            out.block(&format!("volume {}", device.volume.0), |out| out.section("disk", &device.settings));
        }
    });
}

fn with_resource_options(mut proxy: ProxyNode, outer: &ProxyOptions) -> ProxyNode {
    proxy.options.settings.own_all();
    proxy.options.settings.inherit(&outer.settings);
    if proxy.options.plugins.is_empty() {
        proxy.options.plugins.clone_from(&outer.plugins);
    }
    proxy
}

/// `host NAME …;`. The gaps are one blank and an indentation, as the real tools print them.
fn host_ref(out: &mut Printer, host: &HostRef) {
    let gap = " ".repeat(1 + out.level * 4);
    let mut line = format!("host {}", host_name(&host.name.text));
    if let Some(address) = &host.address {
        let _ = write!(line, "{gap}{:<16}{address}", "address");
    } else if let Some(port) = host.port {
        let _ = write!(line, " port {port}");
    }
    if let Some(outside) = &host.outside {
        let _ = write!(line, "{gap}via outside-address {outside}");
    }
    match &host.proxy {
        None => out.line(&format!("{line};")),
        Some(proxy) => {
            out.line(&format!("{line}{gap}via proxy on {} {{", proxy.on.join(" ")));
            proxy_body(out, proxy);
        }
    }
}

/// Addresses stand bare in the real tools' output; everything else is quoted where needed.
fn host_name(name: &str) -> String {
    if name.contains(':') { name.to_owned() } else { quoted(name) }
}

/// The inside of a proxy section, and its closing brace.
fn proxy_body(out: &mut Printer, proxy: &ProxyNode) {
    out.level += 1;
    for (word, address) in [("inside", &proxy.inside), ("outside", &proxy.outside)] {
        if let Some(address) = address {
            out.line(&format!("{word:<16} {address};"));
        }
    }
    if !proxy.options.settings.is_empty() || !proxy.options.plugins.is_empty() {
        out.block("options", |out| proxy_options(out, &proxy.options));
    }
    out.level -= 1;
    out.line("}");
}

/// A value as it must be written: bare if it can be.
pub(crate) fn quoted(value: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '_' | '-');
    let percentage = value.strip_suffix('%').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    if !value.is_empty() && value.len() <= 80 && (value.chars().all(bare) || percentage) {
        return value.to_owned();
    }
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

struct Printer {
    text: String,
    level: usize,
}

impl Printer {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{:indent$}{line}", "", indent = self.level * 4);
    }

    fn block(&mut self, head: &str, body: impl FnOnce(&mut Printer)) {
        self.line(&format!("{head} {{"));
        self.level += 1;
        body(self);
        self.level -= 1;
        self.line("}");
    }

    /// Columns for a name at this level.
    fn width(&self) -> usize {
        24usize.saturating_sub(4 * self.level)
    }

    fn statement(&mut self, name: &str, value: &str) {
        let width = self.width();
        self.line(&format!("{name:<width$} {value:>3};"));
    }

    fn settings(&mut self, settings: &Settings) {
        for setting in settings.iter() {
            match setting.spec.kind {
                Kind::Flag => self.line(&format!("{};", setting.spec.name)),
                _ => self.statement(setting.spec.name, &quoted(&setting.text)),
            }
        }
    }

    fn section(&mut self, name: &str, settings: &Settings) {
        if !settings.is_empty() {
            self.block(name, |out| out.settings(settings));
        }
    }
}
