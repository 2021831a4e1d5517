//! From the configuration file's model to what the core and the engine work by.

use crate::connector::Settings;
use crate::digests::Algorithm;
use crate::links::LinkSettings;
use crate::sys;
use crate::volumes::Paths;
use config::{
    AfterSb0Pri, AfterSb1Pri, AfterSb2Pri, LocalConnection, LocalResource, LocalVolume, MetaDisk, PeerDeviceOptions,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use units::{ByteLen, NodeId, VolumeNr};
use urbd_core::decide::Handler;
use urbd_core::{
    ConnectionConfig, DiskConfig, Fencing, OnCongestion, OnIoError, OnNoData, OnNoQuorum, OnSuspendedOutdated, Part,
    Policies, Protocol, QuorumConfig, ResourceConfig, ResyncConfig, ResyncController, RrConflict, Threshold,
    VolumeConfig,
};
use wire::AfterSplitBrain;

/// What a resource's configuration means for this node's core. The start of a process whose devices nobody uses and its
/// change of options both come here: what a process takes over while it runs, it could also be started with.
///
/// # Errors
/// What of the configuration cannot be run, in words.
pub fn resource_config(local: &LocalResource) -> Result<ResourceConfig, String> {
    runnable(local).map(|setup| setup.core)
}

/// All of it, without exception.
///
/// # Errors
/// As [`resource_config`].
pub(crate) fn runnable(local: &LocalResource) -> Result<Setup, String> {
    local.check_startable().map_err(|errors| errors.to_string())?;
    let setup = Setup::of(local)?;
    match setup.unusable.values().next() {
        Some(why) => Err(why.clone()),
        None => Ok(setup),
    }
}

/// A configuration as core and engine know it.
pub(crate) struct Setup {
    pub(crate) core: ResourceConfig,
    /// How each peer is reached.
    pub(crate) links: BTreeMap<NodeId, LinkSettings>,
    /// Peers with which there can be no connection as it is configured, and why: they are left alone.
    pub(crate) unusable: BTreeMap<NodeId, String>,
}

impl Setup {
    /// As much of it as can be used. What only connections need is no error: applications may be waiting for the
    /// devices.
    ///
    /// # Errors
    /// What cannot be used of what the devices need.
    pub(crate) fn of(local: &LocalResource) -> Result<Setup, String> {
        let volumes = local.volumes.iter().map(|v| Ok(VolumeConfig { volume: v.nr, disk: disk_config(local, v)? }));
        let volumes = volumes.collect::<Result<_, String>>()?;
        let (mut connections, mut links, mut unusable) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for peer in &local.peers {
            let checked = local.check_connection(peer).map_err(|errors| errors.to_string());
            let version = protocol_version_max(local);
            let addresses = addresses(peer);
            let nowhere = || (SocketAddr::from(([0; 4], 0)), SocketAddr::from(([0; 4], 0)));
            let known = addresses.as_ref().ok().copied();
            connections.push(connection_config(peer, known.unwrap_or_else(nowhere), version.clone().ok()));
            if let (Some(addresses), Ok(version)) = (known, &version) {
                links.insert(peer.peer_node_id, link_settings(local, peer, addresses, *version));
            }
            let usable = checked.and(check_algorithms(peer)).and(version.map(drop)).and(addresses.map(drop));
            unusable.extend(usable.err().map(|why| (peer.peer_node_id, why)));
        }
        // Whether a peer is to be fenced is always asked; a resync waits only for what was configured.
        let asked = |h: &Handler| *h == Handler::FencePeer || local.handlers.command(h.name()).is_some();
        let core = ResourceConfig {
            name: local.name.clone(),
            node: local.node_id,
            on_no_data: match local.options.on_no_data_accessible {
                config::OnNoData::IoError => OnNoData::IoError,
                config::OnNoData::SuspendIo => OnNoData::SuspendIo,
            },
            quorum: quorum_config(local),
            on_suspended_outdated: match local.options.on_suspended_primary_outdated {
                config::OnSuspendedPrimaryOutdated::Disconnect => OnSuspendedOutdated::Disconnect,
                config::OnSuspendedPrimaryOutdated::ForceSecondary => OnSuspendedOutdated::ForceSecondary,
            },
            handlers: Handler::WAITED_FOR.into_iter().filter(asked).collect(),
            volumes,
            connections,
        };
        Ok(Setup { core, links, unusable })
    }
}

fn quorum_config(local: &LocalResource) -> QuorumConfig {
    let threshold = |quorum| match quorum {
        config::Quorum::Off => Threshold::Off,
        config::Quorum::Majority => Threshold::Majority,
        config::Quorum::All => Threshold::All,
        config::Quorum::AtLeast(nodes) => Threshold::AtLeast(nodes),
    };
    // 8.4's dialect has none, and who runs with a file that says so all the same runs without.
    if !local.offers_nine() {
        return QuorumConfig::default();
    }
    let without = match local.options.on_no_quorum {
        config::OnNoQuorum::SuspendIo => OnNoQuorum::SuspendIo,
        config::OnNoQuorum::IoError => OnNoQuorum::IoError,
    };
    QuorumConfig::new(threshold(local.options.quorum), threshold(local.options.quorum_minimum_redundancy), without)
}

fn link_settings(
    local: &LocalResource,
    peer: &LocalConnection,
    (own, remote): (SocketAddr, SocketAddr),
    version: u32,
) -> LinkSettings {
    let bytes = |b: ByteLen| u32::try_from(b.0).unwrap_or(u32::MAX);
    let connector = Settings {
        local: own,
        peer: remote,
        connect_int: peer.net.connect_int,
        ping_timeout: peer.net.ping_timeout,
        sock_check_timeout: peer.net.socket_check_timeout,
    };
    LinkSettings {
        connector,
        marked: (version >= wire::Version::MIN_9.number()).then_some(local.node_id),
        send_buffer: bytes(peer.net.sndbuf_size),
        receive_buffer: bytes(peer.net.rcvbuf_size),
        timeout: peer.net.timeout,
    }
}

/// Where the volumes' data and metadata lie.
pub(crate) fn disk_paths(local: &LocalResource) -> BTreeMap<VolumeNr, Paths> {
    let paths = |v: &LocalVolume| {
        let backing = v.backing.as_ref()?;
        let meta = match &backing.meta_disk {
            MetaDisk::Internal => None,
            MetaDisk::External { path } | MetaDisk::Indexed { path, .. } => Some(PathBuf::from(path)),
        };
        Some((v.nr, Paths { data: PathBuf::from(&backing.path), meta }))
    };
    local.volumes.iter().filter_map(paths).collect()
}

fn disk_config(local: &LocalResource, volume: &LocalVolume) -> Result<Option<DiskConfig>, String> {
    let Some(backing) = &volume.backing else { return Ok(None) };
    let options = &volume.disk;
    let meta = match &backing.meta_disk {
        MetaDisk::Internal => meta::MetaDisk::Internal,
        MetaDisk::External { .. } => meta::MetaDisk::FlexExternal,
        MetaDisk::Indexed { index, .. } => meta::MetaDisk::Indexed(
            u8::try_from(*index)
                .map_err(|_| format!("meta-disk index {index} of volume {} is too large", volume.nr))?,
        ),
    };
    // 8.4 has fencing in the disk section, 9 in the net section; the model has it with the connections.
    let fencing = local.peers.iter().map(|p| fencing(p.net.fencing)).max().unwrap_or_default();
    Ok(Some(DiskConfig {
        meta,
        size: (options.size.0 > 0).then(|| options.size.to_bytes()),
        on_io_error: match options.on_io_error {
            config::OnIoError::PassOn => OnIoError::PassOn,
            config::OnIoError::CallLocalIoError => OnIoError::CallHandler,
            config::OnIoError::Detach => OnIoError::Detach,
        },
        fencing,
        disk_flushes: options.disk_flushes,
        disk_drain: options.disk_drain,
        md_flushes: options.md_flushes,
        al_extents: options.al_extents,
        al_updates: options.al_updates,
        discard_zeroes_if_aligned: options.discard_zeroes_if_aligned,
        disk_timeout: options.disk_timeout,
        resync: resync_config(local, volume),
    }))
}

fn resync_config(local: &LocalResource, volume: &LocalVolume) -> ResyncConfig {
    let device = local.peers.iter().flat_map(|p| &p.peer_devices).find(|d| d.volume == volume.nr);
    let options = device.map_or_else(PeerDeviceOptions::default, |d| d.options.clone());
    let kib = |b: ByteLen| u32::try_from(b.0 / 1024).unwrap_or(u32::MAX);
    let tenths = |d: units::Duration| u32::try_from(d.as_millis() / 100).unwrap_or(u32::MAX);
    let after = volume.resync_after_minor;
    ResyncConfig {
        rate: kib(options.resync_rate),
        plan_ahead: tenths(options.c_plan_ahead),
        delay_target: tenths(options.c_delay_target),
        fill_target: u32::try_from(options.c_fill_target.0).unwrap_or(u32::MAX),
        max_rate: kib(options.c_max_rate),
        min_rate: kib(options.c_min_rate),
        after: after.and_then(|minor| local.volumes.iter().find(|v| v.minor == minor)).map(|v| v.nr),
        controller: match local.urbd.resync_controller {
            config::ResyncController::Fixed => ResyncController::Fixed,
            config::ResyncController::Drbd => ResyncController::Drbd,
            config::ResyncController::Adaptive => ResyncController::Adaptive,
        },
        finish_within: Some(local.resync_goal.finish_within).filter(|d| d.0 > 0),
        latency_budget: local.resync_goal.latency_budget,
        discard_granularity: u32::try_from(volume.disk.rs_discard_granularity.0).unwrap_or(0),
    }
}

fn connection_config(
    peer: &LocalConnection,
    addresses: (SocketAddr, SocketAddr),
    version: Option<u32>,
) -> ConnectionConfig {
    let net = &peer.net;
    let mut c = ConnectionConfig::new(peer.peer_node_id, &peer.peer_name, addresses);
    c.protocol = match net.protocol {
        config::Protocol::A => Protocol::A,
        config::Protocol::B => Protocol::B,
        config::Protocol::C => Protocol::C,
    };
    c.max_version = version.unwrap_or(c.max_version);
    let mut options = peer.peer_devices.iter().map(|device| &device.options);
    c.part = match options.clone().any(|options| options.bitmap) || peer.peer_devices.is_empty() {
        true => Part::Disk,
        false if options.all(|options| options.peer_tiebreaker) => Part::Tiebreaker,
        false => Part::Client,
    };
    c.cram_hmac = net.cram_hmac_alg.clone();
    c.integrity = net.data_integrity_alg.clone();
    c.two_primaries = net.allow_two_primaries;
    c.timeout = net.timeout;
    c.ping_int = net.ping_int;
    c.ping_timeout = net.ping_timeout;
    c.connect_int = net.connect_int;
    c.ko_count = net.ko_count;
    c.max_epoch_size = net.max_epoch_size;
    c.max_buffers = net.max_buffers;
    c.after_sb = Policies {
        none: after_0p(net.after_sb_0pri),
        one: after_1p(net.after_sb_1pri),
        two: after_2p(net.after_sb_2pri),
    };
    c.rr_conflict = rr_conflict(net.rr_conflict);
    c.always_asbp = net.always_asbp;
    c.use_rle = net.use_rle;
    c.csums = net.csums_alg.clone();
    c.csums_after_crash_only = net.csums_after_crash_only;
    c.verify = net.verify_alg.clone();
    (c.computes_csums, c.computes_verify) = (computes_csums(peer), computes_verify(peer));
    c.on_congestion = match net.on_congestion {
        config::OnCongestion::Block => OnCongestion::Block,
        config::OnCongestion::PullAhead => OnCongestion::PullAhead,
        config::OnCongestion::Disconnect => OnCongestion::Disconnect,
    };
    (c.congestion_fill, c.congestion_extents) = (net.congestion_fill.0, net.congestion_extents);
    c
}

/// The newest version that is offered. Between the two dialects lie versions that urbd does not speak.
fn protocol_version_max(local: &LocalResource) -> Result<u32, String> {
    let version = local.urbd.protocol_version_max;
    if wire::Version::new(version).is_some() {
        return Ok(version);
    }
    let [min, max_84, min_9, max] =
        [wire::Version::MIN, wire::Version::MAX_84, wire::Version::MIN_9, wire::Version::MAX].map(|v| v.number());
    Err(format!(
        "protocol-version-max {version}: urbd speaks versions {min} to {max_84} (DRBD 8.4) and {min_9} to {max} (DRBD 9); \
         use one of these"
    ))
}

/// By what tells blocks apart: of those that differ, one in 65536 would pass for equal by two bytes, and stay.
fn computes_csums(peer: &LocalConnection) -> bool {
    peer.net.csums_alg.as_deref().is_none_or(|name| Algorithm::parse(name).is_some_and(|a| a.output_len() >= 4))
}

fn computes_verify(peer: &LocalConnection) -> bool {
    peer.net.verify_alg.as_deref().is_none_or(|name| Algorithm::parse(name).is_some())
}

/// What of a configuration has no effect here, but does not keep the resource from running, in words: algorithms
/// without which the copies are as equal.
#[must_use]
pub fn warnings(local: &LocalResource) -> Vec<String> {
    let mut all: Vec<(String, Vec<&str>)> = Vec::new();
    for peer in &local.peers {
        let mut warn = |option: &str, name: &Option<String>, consequence: &str| {
            let (name, known) = (name.as_deref().unwrap_or_default(), known_algorithms(false));
            let text =
                format!("urbd cannot use `{name}` as {option}: {consequence}; set it on all nodes to one of {known}");
            match all.iter_mut().find(|(said, _)| *said == text) {
                Some((_, peers)) => peers.push(&peer.peer_name),
                None => all.push((text, vec![&peer.peer_name])),
            }
        };
        if !computes_verify(peer) {
            warn("verify-alg", &peer.net.verify_alg, "`verify` is refused");
        }
        if !computes_csums(peer) {
            warn("csums-alg", &peer.net.csums_alg, "a resync copies all that is marked");
        }
    }
    let words = |(text, peers): (String, Vec<&str>)| match peers.len() {
        1 => format!("connection to {}: {text}", peers[0]),
        _ => format!("connections to {}: {text}", peers.join(", ")),
    };
    all.into_iter().map(words).collect()
}

fn known_algorithms(keyed: bool) -> String {
    let fit = Algorithm::ALL.iter().filter(|(_, algorithm)| !keyed || algorithm.is_keyed());
    fit.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Each algorithm without which the nodes do not understand each other must be one of ours: a digest that is never made
/// is found by no peer.
pub(crate) fn check_algorithms(peer: &LocalConnection) -> Result<(), String> {
    let named = [("cram-hmac-alg", &peer.net.cram_hmac_alg), ("data-integrity-alg", &peer.net.data_integrity_alg)];
    for (option, name) in named.into_iter().filter_map(|(option, name)| Some((option, name.as_ref()?))) {
        let keyed = option == "cram-hmac-alg";
        let known = Algorithm::parse(name);
        if known.is_none_or(|algorithm| keyed && !algorithm.is_keyed()) {
            return Err(format!(
                "connection to {}: urbd cannot use `{name}` as {option}; use one of {}",
                peer.peer_name,
                known_algorithms(keyed)
            ));
        }
    }
    Ok(())
}

fn addresses(peer: &LocalConnection) -> Result<(SocketAddr, SocketAddr), String> {
    let path = peer.paths.iter().find(|p| !p.proxied);
    let path = path.ok_or_else(|| match peer.paths.is_empty() {
        true => format!("connection endpoint(s) missing: {} has no path", peer.peer_name),
        false => format!("connection to {} has no path without a proxy", peer.peer_name),
    })?;
    let (mut local, mut remote) = (path.local.socket_addr(), path.remote.socket_addr());
    set_scope(&mut local, path.local.scope.as_deref())?;
    // Each host has its own names of interfaces, and a link-local address is only reached from one of the same link.
    match (local, &mut remote) {
        (SocketAddr::V6(own), SocketAddr::V6(other)) if other.ip().is_unicast_link_local() && own.scope_id() > 0 => {
            other.set_scope_id(own.scope_id());
        }
        _ => set_scope(&mut remote, path.remote.scope.as_deref())?,
    }
    Ok((local, remote))
}

/// The interface of a link-local address as the kernel wants it.
fn set_scope(address: &mut SocketAddr, interface: Option<&str>) -> Result<(), String> {
    let (SocketAddr::V6(v6), Some(interface)) = (address, interface) else { return Ok(()) };
    match sys::interface_number(interface) {
        0 => Err(format!("address [{}%{interface}]: this host has no network interface {interface}", v6.ip())),
        number => {
            v6.set_scope_id(number);
            Ok(())
        }
    }
}

fn fencing(f: config::Fencing) -> Fencing {
    match f {
        config::Fencing::DontCare => Fencing::DontCare,
        config::Fencing::ResourceOnly => Fencing::ResourceOnly,
        config::Fencing::ResourceAndStonith => Fencing::ResourceAndStonith,
    }
}

fn after_0p(policy: AfterSb0Pri) -> AfterSplitBrain {
    match policy {
        AfterSb0Pri::Disconnect => AfterSplitBrain::Disconnect,
        AfterSb0Pri::DiscardYoungerPrimary => AfterSplitBrain::DiscardYoungerPrimary,
        AfterSb0Pri::DiscardOlderPrimary => AfterSplitBrain::DiscardOlderPrimary,
        AfterSb0Pri::DiscardZeroChanges => AfterSplitBrain::DiscardZeroChanges,
        AfterSb0Pri::DiscardLeastChanges => AfterSplitBrain::DiscardLeastChanges,
        AfterSb0Pri::DiscardLocal => AfterSplitBrain::DiscardLocal,
        AfterSb0Pri::DiscardRemote => AfterSplitBrain::DiscardRemote,
    }
}

fn after_1p(policy: AfterSb1Pri) -> AfterSplitBrain {
    match policy {
        AfterSb1Pri::Disconnect => AfterSplitBrain::Disconnect,
        AfterSb1Pri::Consensus => AfterSplitBrain::Consensus,
        AfterSb1Pri::DiscardSecondary => AfterSplitBrain::DiscardSecondary,
        AfterSb1Pri::CallPriLostAfterSb => AfterSplitBrain::CallPriLost,
        AfterSb1Pri::ViolentlyAs0p => AfterSplitBrain::ViolentlyAs0pri,
    }
}

fn after_2p(policy: AfterSb2Pri) -> AfterSplitBrain {
    match policy {
        AfterSb2Pri::Disconnect => AfterSplitBrain::Disconnect,
        AfterSb2Pri::CallPriLostAfterSb => AfterSplitBrain::CallPriLost,
        AfterSb2Pri::ViolentlyAs0p => AfterSplitBrain::ViolentlyAs0pri,
    }
}

fn rr_conflict(policy: config::RrConflict) -> RrConflict {
    match policy {
        config::RrConflict::Disconnect => RrConflict::Disconnect,
        config::RrConflict::CallPriLost => RrConflict::CallPriLost,
        config::RrConflict::Violently => RrConflict::Violently,
        config::RrConflict::RetryConnect => RrConflict::RetryConnect,
        config::RrConflict::AutoDiscard => RrConflict::AutoDiscard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Memory, ThisHost, load_from};

    const CONF: &str = "resource r0 {
        net { after-sb-1pri discard-secondary; ping-timeout 7; max-buffers 4000; }
        disk { al-extents 6007; c-min-rate 4M; on-io-error pass_on; }
        volume 0 { device minor 10; disk /dev/vg0/r0; meta-disk internal; }
        volume 1 { device minor 11; disk /dev/vg0/r1; meta-disk /dev/vg0/md[2]; }
        on alpha { node-id 0; address 10.1.1.1:7789; }
        on bravo { node-id 1; address 10.1.1.2:7790; }
    }";

    fn local(text: &str) -> LocalResource {
        let mut files = Memory::default();
        files.insert("/etc/drbd.conf", text);
        let config = load_from(&files, "/etc/drbd.conf".as_ref(), &Default::default()).unwrap();
        config.resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap()
    }

    #[test]
    fn every_part_arrives() {
        let local = local(CONF);
        let c = resource_config(&local).unwrap();
        assert_eq!((c.name.as_str(), c.node.index(), c.volumes.len()), ("r0", 0, 2));
        let peer = &c.connections[0];
        assert_eq!((peer.peer_name.as_str(), peer.peer.index()), ("bravo", 1));
        assert_eq!(peer.addresses, ("10.1.1.1:7789".parse().unwrap(), "10.1.1.2:7790".parse().unwrap()));
        assert_eq!((peer.max_buffers, peer.ping_timeout.as_millis()), (4000, 700));
        assert_eq!(peer.after_sb.one, AfterSplitBrain::DiscardSecondary);
        let disk = c.volumes[1].disk.as_ref().unwrap();
        assert_eq!((disk.meta, disk.al_extents, disk.resync.min_rate), (meta::MetaDisk::Indexed(2), 6007, 4096));
        assert_eq!((disk.on_io_error, disk.resync.plan_ahead), (OnIoError::PassOn, 20));
        let paths = disk_paths(&local);
        assert_eq!(paths[&VolumeNr(0)], Paths { data: "/dev/vg0/r0".into(), meta: None });
        assert_eq!(paths[&VolumeNr(1)].meta, Some("/dev/vg0/md".into()));
        assert_eq!(runnable(&local).unwrap().links[&peer.peer].connector.connect_int.as_millis(), 10_000);
    }

    /// All names that LINSTOR chooses from are known.
    #[test]
    fn what_only_compares_is_no_reason_not_to_run() {
        let with = |net: &str| local(&CONF.replace("net {", &format!("net {{ {net}")));
        for name in ["crct10dif", "crc32c", "sha384", "sha512", "sha256", "sha1", "md5"] {
            let local = with(&format!("verify-alg {name};"));
            let c = &resource_config(&local).unwrap().connections[0];
            assert!(c.computes_verify && warnings(&local).is_empty(), "{name}");
        }
        let local = with("verify-alg xxhash64; csums-alg rot13;");
        let c = &resource_config(&local).unwrap().connections[0];
        assert_eq!((c.verify.as_deref(), c.csums.as_deref()), (Some("xxhash64"), Some("rot13")), "the peer is told");
        assert!(!c.computes_verify && !c.computes_csums);
        let said = warnings(&local).join("\n");
        for part in ["`xxhash64` as verify-alg: `verify` is refused", "`rot13` as csums-alg: a resync copies all"] {
            assert!(said.contains(part) && said.contains("to bravo") && said.contains("sha384"), "{said}");
        }
        // Two bytes are too few to leave out what has the same.
        let c = &resource_config(&with("verify-alg crct10dif; csums-alg crct10dif;")).unwrap().connections[0];
        assert!(c.computes_verify && !c.computes_csums);
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        for (option, why) in [
            ("tls yes;", "tls"),
            ("on-congestion pull-ahead; protocol B;", "needs protocol A"),
            ("allow-two-primaries; protocol B;", "needs protocol C"),
            ("data-integrity-alg rot13;", "crc32c, crct10dif, md5, sha1, sha256, sha384, sha512"),
            ("cram-hmac-alg crc32c; shared-secret x;", "use one of md5, sha1, sha256, sha384, sha512"),
        ] {
            let text = CONF.replace("ping-timeout 7;", option);
            let refused = resource_config(&local(&text)).expect_err(option);
            assert!(refused.contains(why), "{option}: {refused}");
        }
    }
}
