//! What must be unique on one host, over all resources; and references between resources.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::document::{Document, HostNode, ResourceNode};
use crate::error::{Error, ErrorKind, Findings, Span};
use crate::model::{Host, HostMatch, MetaDisk, Resource};

/// Checks that need all resources.
pub(super) fn across_resources(resources: &[Resource], document: &Document, findings: &mut Findings) {
    let mut taken = Taken { seen: HashMap::new(), findings };
    for resource in resources {
        let Some(node) = document.resources.iter().find(|n| n.name.text == resource.name) else { continue };
        for (host, host_node) in resource.hosts.iter().zip(&node.hosts) {
            for name in machine_names(host) {
                taken.volumes(&name, resource, node, host, host_node);
            }
        }
        taken.addresses(resource);
    }
    resync_after(resources, findings);
}

/// The machines that a host section may stand for.
fn machine_names(host: &Host) -> Vec<String> {
    match &host.is {
        HostMatch::Names(names) => names.clone(),
        HostMatch::Floating(address) => vec![address.ip.to_string()],
        HostMatch::Stacked { hosts, .. } => hosts.clone(),
    }
}

/// What is in use on which machine: (machine, thing) to place and owner.
struct Taken<'a> {
    seen: HashMap<(String, String), (Span, String)>,
    findings: &'a mut Findings,
}

impl Taken<'_> {
    fn claim(&mut self, machine: &str, thing: String, owner: &str, span: &Span) {
        let key = (machine.to_owned(), thing);
        if let Some((first, other)) = self.seen.get(&key) {
            let (machine, thing) = key;
            let message = format!("{thing} is used twice on host `{machine}`, by {owner} and {other}");
            self.findings.error(
                Error::new(ErrorKind::Duplicate, span, message)
                    .related(first, "the first use is here")
                    .help("change one of them"),
            );
            return;
        }
        self.seen.insert(key, (span.clone(), owner.to_owned()));
    }

    fn volumes(&mut self, machine: &str, resource: &Resource, node: &ResourceNode, host: &Host, host_node: &HostNode) {
        for volume in &host.volumes {
            let owner = format!("{}/{}", resource.name, volume.nr.0);
            let nodes: Vec<_> = host_node.volumes.iter().chain(&node.volumes).filter(|v| v.nr == volume.nr.0).collect();
            let device = nodes.iter().find_map(|v| v.device.as_ref());
            let device_span = device.map_or(&host.span, |d| &d.span);
            self.claim(machine, format!("minor {}", volume.minor), &owner, device_span);
            if let Some(name) =
                device.and_then(|d| d.name.as_ref()).filter(|n| **n != format!("/dev/drbd{}", volume.minor))
            {
                self.claim(machine, format!("device {name}"), &owner, device_span);
            }
            let Some(backing) = &volume.backing else { continue };
            if matches!(host.is, HostMatch::Stacked { .. }) {
                continue;
            }
            let disk_span = nodes.iter().find_map(|v| v.disk.as_ref()).map_or(&host.span, |d| &d.span);
            self.claim(machine, format!("backing disk {}", backing.path), &owner, disk_span);
            let meta_span = nodes.iter().find_map(|v| v.meta_disk.as_ref()).map_or(&host.span, |m| &m.span);
            match &backing.meta_disk {
                MetaDisk::Internal => {}
                MetaDisk::External { path } => {
                    self.claim(machine, format!("metadata device {path}"), &owner, meta_span);
                }
                MetaDisk::Indexed { path, index } => {
                    self.claim(machine, format!("metadata device {path} [{index}]"), &owner, meta_span);
                }
            }
        }
    }

    /// Several connections of one resource may use one address; two resources may not, but for the loopback network.
    fn addresses(&mut self, resource: &Resource) {
        let mut mine: Vec<(String, String, Span)> = Vec::new();
        for connection in &resource.connections {
            for (side, host) in connection.hosts.into_iter().enumerate() {
                for path in connection.paths.iter().filter(|p| p.proxies.is_none()) {
                    let address = &path.addresses[side];
                    if matches!(address.ip, IpAddr::V4(ip) if ip.is_loopback()) {
                        continue;
                    }
                    for machine in machine_names(&resource.hosts[host]) {
                        let claim = (machine, address.to_string(), resource.hosts[host].span.clone());
                        if !mine.contains(&claim) {
                            mine.push(claim);
                        }
                    }
                }
            }
        }
        for (machine, address, span) in mine {
            self.claim(&machine, format!("address {address}"), &format!("resource {}", resource.name), &span);
        }
    }
}

/// Unknown targets are not fatal: a boot must not fail for an order of resyncs.
fn resync_after(resources: &[Resource], findings: &mut Findings) {
    let volumes = |r: &'_ Resource| r.hosts.iter().flat_map(|h| h.volumes.clone()).collect::<Vec<_>>();
    for (resource, volume) in resources.iter().flat_map(|r| volumes(r).into_iter().map(move |v| (r, v))) {
        let Some(setting) = volume.settings.find("resync-after").filter(|s| !s.is_default()) else { continue };
        let text = &setting.text;
        match target(resources, text) {
            None => {
                let message = format!("there is no `{text}` to resync after: the dependency is ignored");
                findings.warn(&setting.span, message);
            }
            Some((other, _)) if other.name != resource.name => {
                let message = format!(
                    "`resync-after {text}` is ignored: resources run in processes of their own, and only volumes of one \
                     resource wait for each other"
                );
                findings.warn(&setting.span, message);
            }
            Some(_) => {}
        }
    }
}

/// The resource and volume number that `RES` or `RES/VOL` names. Without a number: the lowest volume.
pub(crate) fn target<'a>(resources: &'a [Resource], text: &str) -> Option<(&'a Resource, u16)> {
    let (name, nr) = match text.split_once('/') {
        Some((name, nr)) => (name, Some(nr.parse::<u16>().ok()?)),
        None => (text, None),
    };
    let resource = resources.iter().find(|r| r.name == name)?;
    let volumes = &resource.hosts.first()?.volumes;
    let nr = match nr {
        Some(nr) => volumes.iter().find(|v| v.nr.0 == nr)?.nr.0,
        None => volumes.first()?.nr.0,
    };
    Some((resource, nr))
}
