//! `dump-xml`: the same for programs (`docs/spec/config-and-cli.md` 1.10).

use super::{Printer, by_group};
use crate::address::Address;
use crate::backing::MetaDisk;
use crate::document::{ConnectionNode, HostKind, HostNode, ProxyNode, ProxyOptions, ResourceNode, Sections};
use crate::error::Findings;
use crate::model::{Config, Connection, Host, HostMatch, Resource};
use crate::options::{Setting, Settings};
use crate::resolve::merged_volumes;
use crate::table::{Group, Kind};

impl Config {
    /// The configuration as XML, in the form of the real drbdadm: hosts complete, connections generated, options as
    /// written. Where the real tool prints an address of `(null)`, this leaves the element out.
    #[must_use]
    pub fn dump_xml(&self) -> String {
        let mut out = Printer { text: String::new(), level: 0 };
        element(&mut out, "config", &[("file", &self.file)], |out| {
            global(out, self.document.global.as_ref());
            if let Some(common) = &self.document.common {
                element(out, "common", &[], |out| sections(out, common));
            }
            for (resource, node) in self.resources.iter().zip(&self.document.resources) {
                one_resource(out, resource, node);
            }
        });
        out.text
    }

    /// One resource as XML, without what is around it; `None` if there is no such resource.
    #[must_use]
    pub fn dump_resource_xml(&self, name: &str) -> Option<String> {
        let mut both = self.resources.iter().zip(&self.document.resources);
        let (resource, node) = both.find(|(resource, _)| resource.name == name)?;
        let mut out = Printer { text: String::new(), level: 0 };
        one_resource(&mut out, resource, node);
        Some(out.text)
    }
}

fn global(out: &mut Printer, settings: Option<&Settings>) {
    let shown = [("disable-ip-verification", ""), ("minor-count", "count"), ("dialog-refresh", "refresh")];
    let found = shown.iter().filter_map(|(name, attribute)| Some((settings?.find(name)?, attribute)));
    let found: Vec<(&Setting, &&str)> = found.filter(|(s, _)| !s.is_default()).collect();
    if found.is_empty() {
        return;
    }
    element(out, "global", &[], |out| {
        for (setting, attribute) in found {
            match setting.spec.kind {
                Kind::Flag => out.line(&format!("<{}/>", setting.spec.name)),
                _ => out.line(&format!("<{} {attribute}=\"{}\"/>", setting.spec.name, escaped(&setting.text))),
            }
        }
    });
}

fn one_resource(out: &mut Printer, resource: &Resource, node: &ResourceNode) {
    let place = format!("{}:{}", node.open.file, node.open.line);
    element(out, "resource", &[("name", &resource.name), ("conf-file-line", &place)], |out| {
        for (host, section) in resource.hosts.iter().zip(&node.hosts) {
            one_host(out, node, host, section);
        }
        for connection in &resource.connections {
            one_connection(out, resource, node, connection);
        }
        sections(out, &node.sections);
    });
}

fn one_host(out: &mut Printer, node: &ResourceNode, host: &Host, section: &HostNode) {
    let name = match &host.is {
        HostMatch::Names(names) => names.join(" "),
        HostMatch::Stacked { hosts, .. } => hosts.join(" "),
        HostMatch::Floating(_) => String::new(),
    };
    let head = if name.is_empty() { ("floating", "1") } else { ("name", name.as_str()) };
    // Only the places of the volumes are merged; their options stand as written.
    let merged = merged_volumes(node, section, &Settings::default(), &mut Findings::default());
    element(out, "host", &[head], |out| {
        for (volume, written) in host.volumes.iter().zip(&merged) {
            element(out, "volume", &[("vnr", &volume.nr.0.to_string())], |out| {
                let own = section.volumes.iter().find(|v| v.nr == written.nr);
                options(out, "disk", &own.map(|v| by_group(&v.options)).unwrap_or_default());
                let device = written.device.as_ref().and_then(|d| d.name.as_deref()).unwrap_or_default();
                out.line(&format!("<device minor=\"{}\">{}</device>", volume.minor, escaped(device)));
                let none = if written.disk.is_some() { "none" } else { "" };
                let path = volume.backing.as_ref().map_or(none, |b| b.path.as_str());
                out.line(&format!("<disk>{}</disk>", escaped(path)));
                let (index, place) = match volume.backing.as_ref().map(|b| &b.meta_disk) {
                    None if written.meta_disk.is_none() => return,
                    None | Some(MetaDisk::Internal) => (String::new(), "internal"),
                    Some(MetaDisk::External { path }) => (String::new(), path.as_str()),
                    Some(MetaDisk::Indexed { path, index }) => (format!(" index=\"{index}\""), path.as_str()),
                };
                out.line(&format!("<meta-disk{index}>{}</meta-disk>", escaped(place)));
            });
        }
        if let Some(address) = &host.address {
            out.line(&endpoint("address", address));
        }
    });
}

fn one_connection(out: &mut Printer, resource: &Resource, node: &ResourceNode, connection: &Connection) {
    let written = node.connections.iter().find(|c| c.span == connection.span);
    element(out, "connection", &[], |out| {
        let in_paths = written.is_some_and(|w| !w.paths.is_empty());
        for at in 0..connection.paths.len() {
            if in_paths {
                element(out, "path", &[], |out| ends(out, resource, node, connection, written, at));
            } else {
                ends(out, resource, node, connection, written, at);
            }
        }
        let mesh = node.meshes.iter().find(|m| m.span == connection.span);
        if let Some(net) = written.map(|w| &w.net).or(mesh.map(|m| &m.net)) {
            options(out, "net", net);
        }
        if let Some(written) = written {
            options(out, "disk", &written.disk);
            for (nr, settings, _) in &written.volumes {
                element(out, "volume", &[("vnr", &nr.to_string())], |out| options(out, "disk", settings));
            }
        }
    });
}

/// The two hosts of path number `at`.
fn ends(
    out: &mut Printer,
    resource: &Resource,
    node: &ResourceNode,
    connection: &Connection,
    written: Option<&ConnectionNode>,
    at: usize,
) {
    let refs = written.map(|w| w.paths.get(at).map_or(&w.hosts, |p| &p.hosts));
    for side in [0, 1] {
        let section = &node.hosts[connection.hosts[side]];
        let name = match &section.kind {
            HostKind::On(names) => names[0].text.clone(),
            HostKind::Floating(address) => address.to_string(),
            _ => resource.hosts[connection.hosts[side]].name(),
        };
        let address = endpoint("address", &connection.paths[at].addresses[side]);
        match refs.and_then(|r| r[side].proxy.as_ref()).or(section.proxy.as_ref()) {
            None => out.line(&format!("<host name=\"{}\">{address}</host>", escaped(&name))),
            Some(proxy) => element(out, "host", &[("name", &name)], |out| {
                out.line(&address);
                one_proxy(out, proxy);
            }),
        }
    }
}

fn one_proxy(out: &mut Printer, proxy: &ProxyNode) {
    element(out, "proxy", &[("hostname", &proxy.on.join(" "))], |out| {
        for (word, address) in [("inside", &proxy.inside), ("outside", &proxy.outside)] {
            address.iter().for_each(|address| out.line(&endpoint(word, address)));
        }
        proxy_options(out, "options", &proxy.options);
    });
}

fn proxy_options(out: &mut Printer, name: &str, proxy: &ProxyOptions) {
    if proxy.plugins.is_empty() {
        return options(out, name, &proxy.settings);
    }
    element(out, "section", &[("name", name)], |out| {
        proxy.settings.iter().for_each(|setting| option(out, setting));
        element(out, "section", &[("name", "plugin")], |out| {
            proxy.plugins.iter().for_each(|plugin| out.line(&format!("<option name=\"{}\"/>", escaped(plugin))));
        });
    });
}

fn sections(out: &mut Printer, sections: &Sections) {
    options(out, "options", &sections.options);
    options(out, "net", &sections.net);
    options(out, "disk", &by_group(&sections.disk));
    options(out, "startup", &sections.startup.iter().filter(|s| s.spec.name != "become-primary-on").cloned().collect());
    proxy_options(out, "proxy", &sections.proxy);
    options(out, "handlers", &sections.handlers);
    options(out, "urbd", &sections.urbd.of(Group::Urbd));
    options(out, "resync-goal", &sections.urbd.of(Group::ResyncGoal));
}

fn options(out: &mut Printer, name: &str, settings: &Settings) {
    if settings.is_empty() {
        return;
    }
    element(out, "section", &[("name", name)], |out| settings.iter().for_each(|setting| option(out, setting)));
}

fn option(out: &mut Printer, setting: &Setting) {
    let (name, value) = (setting.spec.name, escaped(&setting.text));
    match setting.spec.kind {
        Kind::Flag => out.line(&format!("<option name=\"{name}\"/>")),
        _ => out.line(&format!("<option name=\"{name}\" value=\"{value}\"/>")),
    }
}

fn endpoint(word: &str, address: &Address) -> String {
    let (family, port, text) = (address.family, address.port, escaped(&address.text));
    format!("<{word} family=\"{family}\" port=\"{port}\">{text}</{word}>")
}

fn element(out: &mut Printer, name: &str, attributes: &[(&str, &str)], body: impl FnOnce(&mut Printer)) {
    let attributes: String = attributes.iter().map(|(k, v)| format!(" {k}=\"{}\"", escaped(v))).collect();
    out.line(&format!("<{name}{attributes}>"));
    out.level += 1;
    body(out);
    out.level -= 1;
    out.line(&format!("</{name}>"));
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&apos;")
}
