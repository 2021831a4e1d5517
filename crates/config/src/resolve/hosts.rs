//! Hosts, their node ids and volumes.

use units::{NodeId, VolumeNr};

use super::{inherit, report, warn_settings};
use crate::document::{HostKind, HostNode, ResourceNode, VolumeNode};
use crate::error::{Error, ErrorKind, Findings};
use crate::model::{Host, HostMatch, Volume};
use crate::options::Settings;
use crate::table::Group;

/// The start value of the checksum that orders hosts without node ids.
const NODE_ID_SEED: u32 = 0x1a65_6f21;

/// All hosts of a resource; `None` if they are too broken to go on.
pub(super) fn hosts(node: &ResourceNode, disk: &Settings, findings: &mut Findings) -> Option<Vec<Host>> {
    let before = findings.errors.len();
    duplicate_names(node, findings);
    mixed_volumes(&node.volumes, findings);
    let ids = node_ids(node, findings);
    let volumes: Vec<Vec<Volume>> = node.hosts.iter().map(|h| volumes(node, h, disk, findings)).collect();
    if findings.errors.len() == before {
        same_volumes(node, &volumes, findings);
    }
    if findings.errors.len() > before {
        return None;
    }
    let host = |((host, node_id), volumes): ((&HostNode, Option<NodeId>), Vec<Volume>)| {
        let is = match &host.kind {
            HostKind::On(names) => HostMatch::Names(names.iter().map(|n| n.text.clone()).collect()),
            HostKind::Floating(address) => HostMatch::Floating(address.clone()),
            HostKind::Stacked(lower) => HostMatch::Stacked { lower: lower.text.clone(), hosts: Vec::new() },
            HostKind::ThisHost => HostMatch::Names(Vec::new()),
        };
        let address = host.address.as_ref().map(|(address, _)| address.clone());
        Some(Host { is, node_id: node_id?, address, volumes, span: host.span.clone() })
    };
    node.hosts.iter().zip(ids).zip(volumes).map(host).collect()
}

fn duplicate_names(node: &ResourceNode, findings: &mut Findings) {
    let mut seen: Vec<&crate::document::Named> = Vec::new();
    for host in &node.hosts {
        let HostKind::On(names) = &host.kind else { continue };
        for name in names {
            match seen.iter().find(|n| n.text == name.text) {
                Some(first) => findings.error(
                    Error::new(ErrorKind::Duplicate, &name.span, format!("host `{}` is there twice", name.text))
                        .related(&first.span, "the first section is here"),
                ),
                None => seen.push(name),
            }
        }
    }
}

fn mixed_volumes(volumes: &[VolumeNode], findings: &mut Findings) {
    let implicit = volumes.iter().find(|v| v.implicit);
    let explicit = volumes.iter().find(|v| !v.implicit);
    if let (Some(implicit), Some(explicit)) = (implicit, explicit) {
        let message = "statements of the implicit volume 0 and `volume` sections cannot be mixed";
        findings.error(
            Error::new(ErrorKind::Volumes, &explicit.span, message)
                .related(&implicit.span, "the implicit volume begins here")
                .help("put these statements into `volume 0 { … }`"),
        );
    }
}

fn node_ids(node: &ResourceNode, findings: &mut Findings) -> Vec<Option<NodeId>> {
    let written: Vec<Option<NodeId>> =
        node.hosts.iter().map(|h| h.node_id.as_ref().and_then(|(id, _)| NodeId::new(*id))).collect();
    for (i, host) in node.hosts.iter().enumerate() {
        let Some((id, span)) = &host.node_id else { continue };
        let first = node.hosts[..i].iter().filter_map(|h| h.node_id.as_ref()).find(|(other, _)| other == id);
        if let Some((_, first)) = first {
            findings.error(
                Error::new(ErrorKind::Duplicate, span, format!("node-id {id} is there twice in this resource"))
                    .related(first, "the first one is here")
                    .help("each host needs its own node-id, 0 to 31"),
            );
        }
    }
    if written.iter().all(Option::is_some) {
        return written;
    }
    if node.is_of_84() {
        return implicit_node_ids(node, findings);
    }
    let missing = node.hosts.iter().rfind(|h| h.node_id.is_none()).expect("one is missing");
    findings.error(Error::new(ErrorKind::Missing, &missing.span, "this host has no `node-id`").help(
        "only a resource of exactly two hosts without connection sections may leave out all node-ids; \
             add `node-id N;` with N from 0 to 31",
    ));
    written
}

/// The ids that the real tools compute for an 8.4-style resource: part of the identity of existing metadata.
fn implicit_node_ids(node: &ResourceNode, findings: &mut Findings) -> Vec<Option<NodeId>> {
    let text = |host: &HostNode| host.address.as_ref().map(|(address, _)| address.text.clone());
    let outside = |host: &HostNode| host.proxy.as_ref().and_then(|p| p.outside.as_ref()).map(|a| a.text.clone());
    let (a, b) = (&node.hosts[0], &node.hosts[1]);
    let pair = [(text(a), text(b)), (outside(a), outside(b))]
        .into_iter()
        .find_map(|(a, b)| Some((a?, b?)).filter(|(a, b)| a != b));
    let port = |host: &HostNode| host.address.as_ref().map(|(address, _)| address.port);
    if let (None, Some(one), Some(two)) = (&pair, port(a), port(b))
        && one != two
    {
        // Two nodes on one machine, which the real tools do not know; no metadata has ids from them.
        return vec![NodeId::new(u8::from(one > two)), NodeId::new(u8::from(two > one))];
    }
    let Some((one, two)) = pair else {
        findings.error(
            Error::new(
                ErrorKind::Missing,
                &node.name.span,
                "the node-ids of this resource cannot be computed from its addresses",
            )
            .help("both hosts need different `address` statements, or each its `node-id`"),
        );
        return vec![None, None];
    };
    let first_is_zero = signed_checksum(&one) > signed_checksum(&two);
    let (first, second) = if first_is_zero { (0, 1) } else { (1, 0) };
    vec![NodeId::new(first), NodeId::new(second)]
}

/// CRC-32C with a start value of its own and no final inversion, as a signed number.
fn signed_checksum(text: &str) -> i32 {
    (!crc32c::crc32c_append(!NODE_ID_SEED, text.as_bytes())).cast_signed()
}

/// One volume of a host with everything from the resource filled in.
pub(crate) fn merged_volumes(
    node: &ResourceNode,
    host: &HostNode,
    disk: &Settings,
    findings: &mut Findings,
) -> Vec<VolumeNode> {
    let mut volumes = host.volumes.clone();
    for outer in &node.volumes {
        if !volumes.iter().any(|v| v.nr == outer.nr) {
            let mut volume = VolumeNode::new(outer.nr, outer.implicit, &outer.span);
            volume.span = host.span.clone();
            volumes.push(volume);
        }
    }
    volumes.sort_by_key(|v| v.nr);
    for volume in &mut volumes {
        let outer = node.volumes.iter().find(|v| v.nr == volume.nr);
        let sources: Vec<&Settings> = [Some(disk), outer.map(|o| &o.options)].into_iter().flatten().collect();
        report(inherit(&mut volume.options, &sources), findings);
        let Some(outer) = outer else { continue };
        volume.device = volume.device.take().or_else(|| outer.device.clone());
        volume.disk = volume.disk.take().or_else(|| outer.disk.clone());
        volume.meta_disk = volume.meta_disk.take().or_else(|| outer.meta_disk.clone());
        volume.tiebreaker = volume.tiebreaker.or(outer.tiebreaker);
        volume.implicit &= outer.implicit;
    }
    volumes
}

fn volumes(node: &ResourceNode, host: &HostNode, disk: &Settings, findings: &mut Findings) -> Vec<Volume> {
    mixed_volumes(&host.volumes, findings);
    let stacked = matches!(host.kind, HostKind::Stacked(_));
    let merged = merged_volumes(node, host, disk, findings);
    merged.into_iter().filter_map(|volume| checked_volume(host, volume, stacked, findings)).collect()
}

fn checked_volume(host: &HostNode, volume: VolumeNode, stacked: bool, findings: &mut Findings) -> Option<Volume> {
    let Some(device) = &volume.device else {
        let message = format!("volume {} of this host has no `device`", volume.nr);
        findings.error(Error::new(ErrorKind::Missing, &host.span, message).help("write `device minor N;`"));
        return None;
    };
    let backing = match (&volume.disk, &volume.meta_disk) {
        (Some(_), _) => volume.backing(),
        (None, Some(_)) if !stacked => {
            let message = format!("volume {} of this host has a `meta-disk`, but no `disk`", volume.nr);
            let error = Error::new(ErrorKind::Missing, &host.span, message);
            findings.error(error.help("write `disk DEVICE;`, or `disk none;` for a host without storage"));
            return None;
        }
        // Neither disk nor metadata: the real tools take this for a host without storage.
        (None, _) => None,
    };
    warn_settings(&volume.options, findings);
    Some(Volume {
        nr: VolumeNr(volume.nr),
        implicit: volume.implicit,
        minor: device.minor,
        name: device.name.as_deref().and_then(|name| name.strip_prefix("/dev/")).filter(is_free).map(str::to_owned),
        backing,
        disk: (&volume.options).into(),
        device: (&volume.options.of(Group::Device)).into(),
        tiebreaker: volume.tiebreaker.unwrap_or(true),
        settings: volume.options,
    })
}

fn same_volumes(node: &ResourceNode, volumes: &[Vec<Volume>], findings: &mut Findings) {
    for (host, mine) in node.hosts.iter().zip(volumes) {
        let all = volumes.iter().flatten().map(|v| v.nr);
        for nr in all {
            if !mine.iter().any(|v| v.nr == nr) {
                let message = format!("volume {} is missing on this host, although another host has it", nr.0);
                findings.error(Error::new(ErrorKind::Volumes, &host.span, message).help(
                    "all hosts of a resource must define the same volume numbers (`disk none;` if without storage)",
                ));
            }
        }
    }
}

/// Is it no name that goes with the minor?
fn is_free(name: &&str) -> bool {
    name.starts_with("drbd_")
}

#[cfg(test)]
mod tests {
    use super::signed_checksum;

    #[test]
    fn hosts_without_ids_are_ordered_as_by_the_real_tools() {
        // As drbdadm 9.22 numbered these pairs: the host with the greater checksum is node 0.
        assert!(signed_checksum("10.1.1.1") < signed_checksum("10.1.1.2"));
        assert!(signed_checksum("fd00::1") < signed_checksum("fd00::11"));
        assert!(signed_checksum("fd00::3") > signed_checksum("fd00::13"));
        assert!(signed_checksum("10.1.4.1") > signed_checksum("10.1.4.2"));
    }
}
