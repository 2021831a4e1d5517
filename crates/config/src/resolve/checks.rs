//! What must be unique on one host, over all resources; and references between resources.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;

use units::same_host;

use crate::backing::MetaDisk;
use crate::document::{Document, HostNode, ResourceNode};
use crate::error::{Error, ErrorKind, Findings, Span};
use crate::index::Index;
use crate::model::{Host, HostMatch, Resource, ThisHost, volume_name};
use crate::options::Setting;

/// Checks that need all resources.
pub(super) fn across_resources(
    resources: &[Resource],
    index: &Index,
    document: &Document,
    this_host: Option<&ThisHost>,
    findings: &mut Findings,
) {
    let mut taken = Taken { seen: HashMap::new(), this_host, findings };
    for resource in resources {
        let Some(node) = document.resource(&resource.name) else { continue };
        for (host, host_node) in resource.hosts.iter().zip(&node.hosts) {
            for name in machine_names(host) {
                taken.volumes(&name, resource, node, host, host_node);
            }
        }
        taken.addresses(resource);
    }
    resync_after(resources, index, findings);
}

/// The machines that a host section may stand for.
fn machine_names(host: &Host) -> Vec<String> {
    match &host.is {
        HostMatch::Names(names) => names.clone(),
        HostMatch::Floating(address) => vec![address.ip.to_string()],
        HostMatch::Stacked { hosts, .. } => hosts.clone(),
    }
}

/// The machine that uses something, the place that says so, and the owner there.
type Use = (String, Span, String);

/// What is in use on which machine.
struct Taken<'a> {
    /// By the first label of the machine's name, in small letters: names of one machine have the same.
    seen: HashMap<(String, String), Vec<Use>>,
    /// Whose disks are looked at; `None`: every machine's.
    this_host: Option<&'a ThisHost>,
    findings: &'a mut Findings,
}

impl Taken<'_> {
    fn claim(&mut self, machine: &str, thing: String, owner: &str, span: &Span) {
        let label = machine.split('.').next().unwrap_or(machine).to_ascii_lowercase();
        let uses = self.seen.entry((label, thing.clone())).or_default();
        // One volume in two sections that may be for this machine is another mistake: which of them is for it?
        let taken = |(name, _, other): &&Use| other != owner && same_host(name, machine);
        if let Some((_, first, other)) = uses.iter().find(taken) {
            let message = format!("{thing} is used twice on host `{machine}`, by {owner} and {other}");
            self.findings.error(
                Error::new(ErrorKind::Duplicate, span, message)
                    .related(first, "the first use is here")
                    .help("change one of them"),
            );
            return;
        }
        uses.push((machine.to_owned(), span.clone(), owner.to_owned()));
    }

    /// Are this machine's disks to be looked at? Another machine's may be placeholders, the same in all resources.
    fn has_disks_of(&self, machine: &str) -> bool {
        let is_address = |host: &ThisHost| host.addresses.iter().any(|address| address.to_string() == machine);
        self.this_host.is_none_or(|host| same_host(&host.name, machine) || is_address(host))
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
            if matches!(host.is, HostMatch::Stacked { .. }) || !self.has_disks_of(machine) {
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

/// A volume by the name of its resource and its number.
type VolumeName = (String, u16);

/// Unknown targets are not fatal: a boot must not fail for an order of resyncs. Circles are: all in them would wait for
/// ever. What different hosts say is taken together, as a resync that waits on one node waits on both.
fn resync_after(resources: &[Resource], index: &Index, findings: &mut Findings) {
    let mut after: BTreeMap<VolumeName, Vec<(VolumeName, &Setting)>> = BTreeMap::new();
    for resource in resources {
        for volume in resource.hosts.iter().flat_map(|h| &h.volumes) {
            let Some(setting) = volume.settings.find("resync-after").filter(|s| !s.is_default()) else { continue };
            let Some((other, nr)) = target(resources, index, &setting.text) else {
                let text = &setting.text;
                let message = format!("there is no `{text}` to resync after: the dependency is ignored");
                findings.warn(&setting.span, message);
                continue;
            };
            let edges = after.entry((resource.name.clone(), volume.nr.0)).or_default();
            edges.push(((other.name.clone(), nr), setting));
        }
    }
    for from in in_circles(&after) {
        let Some(way) = way_back(&after, &from) else { continue };
        let (_, setting) = &after[&from].iter().find(|(to, _)| *to == way[0]).expect("the way begins with it");
        let names: Vec<String> = way.iter().map(|(resource, nr)| format!("{resource}/{nr}")).collect();
        let message = format!(
            "`resync-after {}` makes a circle: {}/{} waits for {}",
            setting.text,
            from.0,
            from.1,
            names.join(", which waits for ")
        );
        let error = Error::new(ErrorKind::Value, &setting.span, message);
        return findings
            .error(error.help("take one `resync-after` of the circle away: none of its resyncs could begin"));
    }
}

/// The volumes that wait for something that waits for them, and those between two such circles.
fn in_circles(after: &BTreeMap<VolumeName, Vec<(VolumeName, &Setting)>>) -> BTreeSet<VolumeName> {
    let edges = after.iter().flat_map(|(from, to)| to.iter().map(move |(to, _)| (from, to)));
    let there = on_the_way(edges.clone());
    let edges = edges.filter(|(from, to)| there.contains(*from) && there.contains(*to));
    on_the_way(edges.map(|(from, to)| (to, from))).into_iter().cloned().collect()
}

/// The ends of edges from which a way goes on for ever: without those from which none leads, again and again.
fn on_the_way<'a>(edges: impl Iterator<Item = (&'a VolumeName, &'a VolumeName)>) -> HashSet<&'a VolumeName> {
    let mut leading_to: HashMap<&VolumeName, Vec<&VolumeName>> = HashMap::new();
    let mut ways: HashMap<&VolumeName, usize> = HashMap::new();
    for (from, to) in edges {
        leading_to.entry(to).or_default().push(from);
        *ways.entry(from).or_default() += 1;
        ways.entry(to).or_default();
    }
    let mut ends: Vec<&VolumeName> = ways.iter().filter(|(_, n)| **n == 0).map(|(name, _)| *name).collect();
    while let Some(end) = ends.pop() {
        ways.remove(end);
        for from in leading_to.remove(end).into_iter().flatten() {
            let Some(left) = ways.get_mut(from) else { continue };
            *left -= 1;
            if *left == 0 {
                ends.push(from);
            }
        }
    }
    ways.into_keys().collect()
}

/// The shortest chain of dependencies that leads from a volume to itself: what comes after it, itself at the end.
fn way_back(after: &BTreeMap<VolumeName, Vec<(VolumeName, &Setting)>>, from: &VolumeName) -> Option<Vec<VolumeName>> {
    let mut reached_from: HashMap<&VolumeName, &VolumeName> = HashMap::new();
    let mut reached = VecDeque::from([from]);
    while let Some(last) = reached.pop_front() {
        for (next, _) in after.get(last).into_iter().flatten() {
            if next == from {
                let mut way = vec![next.clone()];
                let mut at = last;
                while at != from {
                    way.push(at.clone());
                    at = reached_from[at];
                }
                way.reverse();
                return Some(way);
            }
            if !reached_from.contains_key(next) {
                reached_from.insert(next, last);
                reached.push_back(next);
            }
        }
    }
    None
}

/// The resource and volume number that `RES` or `RES/VOL` names. Without a number: the lowest volume.
pub(crate) fn target<'a>(resources: &'a [Resource], index: &Index, text: &str) -> Option<(&'a Resource, u16)> {
    let (name, nr) = volume_name(text)?;
    let resource = resources.get(index.find(name)?)?;
    let volumes = &resource.hosts.first()?.volumes;
    let nr = match nr {
        Some(nr) => volumes.iter().find(|v| v.nr == nr)?.nr.0,
        None => volumes.first()?.nr.0,
    };
    Some((resource, nr))
}
