//! The configuration from one host's point of view (`docs/spec/config-and-cli.md` 1.6 and 1.8).

use std::net::IpAddr;

use units::same_host;

use crate::address::Family;
use crate::choices::{Fencing, OnCongestion, Protocol};
use crate::discard;
use crate::error::{Error, ErrorKind, Errors, Findings};
use crate::model::{
    Config, Connection, Host, HostMatch, LocalConnection, LocalPath, LocalResource, LocalVolume, PeerDevice, Resource,
    ThisHost,
};
use crate::options::{Quorum, Setting, Settings};
use crate::resolve::{device_below, target};
use crate::table::{Group, option};

impl LocalResource {
    /// Does it offer DRBD 9's dialect to its peers? Not to be spoken with metadata of format v08.
    #[must_use]
    pub fn offers_nine(&self) -> bool {
        is_nine(self.urbd.protocol_version_max)
    }

    /// Is new metadata of format v09? Else of v08, which knows one peer, and 8.4's dialect only.
    #[must_use]
    pub fn makes_v09(&self) -> bool {
        self.offers_nine() || self.host_count > 2
    }
}

/// Is it a protocol version of DRBD 9's dialect?
#[must_use]
pub fn is_nine(version: u32) -> bool {
    /// What lies between 8.4's newest version and this one is spoken by nobody.
    const OLDEST: u32 = 110;
    version >= OLDEST
}

impl Config {
    /// One resource as `host` sees it.
    ///
    /// # Errors
    /// Unknown resource or no section for this host (exit status 1); more than one section for this host (10).
    pub fn resource_as_seen_by(&self, resource: &str, host: &ThisHost) -> Result<LocalResource, Error> {
        let Some(resource) = self.resource(resource) else {
            self.any_resource()?;
            let known: Vec<&str> = self.resources.iter().map(|r| r.name.as_str()).collect();
            let message = format!("there is no resource `{resource}` in {}", self.file);
            return Err(Error::without_place(ErrorKind::Unknown, message).help(format!("known: {}", known.join(", "))));
        };
        match self.section_for(resource, host)? {
            Some(at) => Ok(self.local(resource, at, host)),
            None => Err(Error::without_place(
                ErrorKind::Host,
                format!("resource `{}` is not for this host (`{}`)", resource.name, host.name),
            )
            .help(format!(
                "its hosts are: {}; correct an `on` statement, or this host's name (hostnamectl, --node)",
                host_names([resource])
            ))),
        }
    }

    /// All resources for `host`, in the order of the files.
    ///
    /// # Errors
    /// When two sections of a resource match this host (exit status 10), no resource is for it, or there is none (1).
    pub fn resources_for(&self, host: &ThisHost) -> Result<Vec<LocalResource>, Errors> {
        self.any_resource()?;
        let (found, errors) = self.each_for(host);
        if let Some(error) = errors.into_iter().next() {
            return Err(error.into());
        }
        if found.is_empty() {
            let message = format!("no resource in {} is for this host (`{}`)", self.file, host.name);
            let help = format!(
                "the hosts in the file are: {}; correct an `on` statement, or this host's name (hostnamectl, --node)",
                host_names(&self.resources)
            );
            return Err(Error::without_place(ErrorKind::Host, message).help(help).into());
        }
        Ok(found)
    }

    /// The resources for `host`, in the order of the files, and for each that has two sections for it why nobody knows
    /// which is meant (exit status 10): that does not concern the others.
    #[must_use]
    pub fn each_for(&self, host: &ThisHost) -> (Vec<LocalResource>, Vec<Error>) {
        let mut found = Vec::new();
        let mut errors = Vec::new();
        for resource in &self.resources {
            match self.section_for(resource, host) {
                Ok(Some(at)) => found.push(self.local(resource, at, host)),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        (found, errors)
    }

    /// A configuration may be without resources, but nothing can be done to those.
    fn any_resource(&self) -> Result<(), Error> {
        if !self.resources.is_empty() {
            return Ok(());
        }
        let message = format!("{} defines no resource", self.file);
        let help = "write a `resource NAME { … }` section, or name the right file with --config";
        Err(Error::without_place(ErrorKind::Empty, message).help(help))
    }

    /// Is `resource` one that `host` takes part in? Stacked sections count here, whatever `host.stacked` says.
    pub(crate) fn concerns(&self, resource: &Resource, host: &ThisHost) -> bool {
        resource.hosts.iter().any(|section| self.matches(section, host))
    }

    /// The section of `resource` that is for `host`.
    fn section_for(&self, resource: &Resource, host: &ThisHost) -> Result<Option<usize>, Error> {
        let fits = |section: &Host| {
            matches!(section.is, HostMatch::Stacked { .. }) == host.stacked && self.matches(section, host)
        };
        let mut matching = resource.hosts.iter().enumerate().filter(|(_, section)| fits(section));
        let Some((at, first)) = matching.next() else { return Ok(None) };
        match matching.next() {
            None => Ok(Some(at)),
            Some((_, second)) => Err(Error::new(
                ErrorKind::Host,
                &second.span,
                format!("two host sections of resource `{}` match this host (`{}`)", resource.name, host.name),
            )
            .related(&first.span, "the first one is here")),
        }
    }

    pub(crate) fn matches(&self, section: &Host, host: &ThisHost) -> bool {
        match &section.is {
            HostMatch::Names(names) => names.iter().any(|name| same_host(name, &host.name)),
            HostMatch::Floating(address) => host.addresses.contains(&address.ip),
            HostMatch::Stacked { lower, .. } => {
                let lower = self.resource(lower);
                lower.is_some_and(|l| l.hosts.iter().any(|h| !is_stacked(h) && self.matches(h, host)))
            }
        }
    }

    fn local(&self, resource: &Resource, at: usize, this: &ThisHost) -> LocalResource {
        let host = &resource.hosts[at];
        let below = match &host.is {
            HostMatch::Stacked { lower, .. } => {
                self.resource(lower).and_then(|l| l.hosts.iter().find(|h| !is_stacked(h) && self.matches(h, this)))
            }
            _ => None,
        };
        let others_with_disk = resource.hosts.iter().enumerate();
        let others_with_disk =
            others_with_disk.filter(|(i, h)| *i != at && h.volumes.iter().any(|v| v.backing.is_some())).count();
        let volumes = host.volumes.iter().map(|volume| LocalVolume {
            nr: volume.nr,
            implicit: volume.implicit,
            minor: volume.minor,
            name: volume.name.clone(),
            backing: match below.and_then(|b| b.volume(volume.nr)) {
                Some(lower) => Some(device_below(lower.minor)),
                None => volume.backing.clone(),
            },
            disk: volume.disk.clone(),
            device: volume.device.clone(),
            resync_after_minor: volume.disk.resync_after.as_ref().and_then(|text| self.minor_of(text, this)),
            settings: volume.settings.clone(),
        });
        let peers = resource.connections.iter().filter_map(|c| connection(resource, c, at));
        let private = with_version(resource);
        LocalResource {
            name: resource.name.clone(),
            host: host.name(),
            node_id: host.node_id,
            options: resource.options.clone(),
            startup: resource.startup.clone(),
            handlers: resource.handlers.clone(),
            urbd: (&private).into(),
            resync_goal: resource.resync_goal.clone(),
            volumes: volumes.collect(),
            peers: peers.collect(),
            settings: resource.settings.clone(),
            private,
            host_count: resource.hosts.len(),
            metadata_slots: u32::try_from(others_with_disk.max(1)).expect("at most 32 hosts"),
        }
    }

    /// The minor on this host of the volume that `RES` or `RES/VOL` names.
    fn minor_of(&self, text: &str, this: &ThisHost) -> Option<u32> {
        let (resource, nr) = target(&self.resources, &self.index, text)?;
        let at = self.section_for(resource, this).ok()??;
        resource.hosts[at].volumes.iter().find(|v| v.nr.0 == nr).map(|v| v.minor)
    }

    /// Are this host's addresses on its interfaces? Not asked when `disable-ip-verification` is set, for stacked hosts
    /// and for the loopback network. For the verbs that `docs/spec/config-and-cli.md` 1.5 lists.
    ///
    /// # Errors
    /// Each address of `resource` that is not local (exit status 10).
    pub fn check_addresses(&self, resource: &LocalResource, host: &ThisHost) -> Result<(), Errors> {
        if self.global.disable_ip_verification || host.stacked {
            return Ok(());
        }
        let mut findings = Findings::default();
        for peer in &resource.peers {
            for path in &peer.paths {
                let ip = path.local.ip;
                let loopback = matches!(ip, IpAddr::V4(ip) if ip.is_loopback());
                if !loopback && !host.addresses.contains(&ip) {
                    let message =
                        format!("{ip}, the address of this host for `{}`, is not configured here", resource.name);
                    findings.error(
                        Error::new(ErrorKind::Address, &peer.span, message)
                            .help("configure it on an interface, or set `global { disable-ip-verification; }`"),
                    );
                }
            }
        }
        findings.into_result().map(|_| ())
    }
}

/// A difference that a process does not take over while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedSinceStart {
    /// In words.
    pub what: String,
    /// Does the next process have it, also where that takes over devices that are in use?
    pub by_next_process: bool,
}

impl LocalResource {
    /// Can urbd run this? Call before `up`; the configuration itself is in order.
    ///
    /// # Errors
    /// What urbd does not support (proxy, other transports, TLS; exit status 1), three or more hosts without any
    /// connection (1), and net options that contradict each other (10).
    pub fn check_startable(&self) -> Result<(), Errors> {
        let mut findings = Findings::default();
        if self.peers.is_empty() && self.host_count > 2 {
            let message =
                format!("resource `{}` has {} hosts, but no connection for this one", self.name, self.host_count);
            findings.error(
                Error::without_place(ErrorKind::Unsupported, message)
                    .help("nothing would be replicated; add a `connection-mesh { hosts …; }`"),
            );
        }
        let quorum =
            [("quorum", self.options.quorum), ("quorum-minimum-redundancy", self.options.quorum_minimum_redundancy)];
        let asked = quorum.into_iter().filter(|(_, value)| *value != Quorum::Off && !self.offers_nine());
        for (name, _) in asked {
            let message = format!("resource `{}` has the option `{name}`, which DRBD 8.4's dialect lacks", self.name);
            let help = "a node without quorum would go on writing: set it to `off`, or speak DRBD 9's dialect; \
                        `fencing` and a fence-peer handler keep a node from writing alone, too";
            let place = self.settings.find(name).map(|setting| &setting.span);
            findings.error(match place {
                Some(span) => Error::new(ErrorKind::Unsupported, span, message).help(help),
                None => Error::without_place(ErrorKind::Unsupported, message).help(help),
            });
        }
        for peer in &self.peers {
            self.find_in_connection(peer, &mut findings);
        }
        findings.into_result().map(|_| ())
    }

    /// What of [`LocalResource::check_startable`] is about one peer: the devices can be served without it.
    ///
    /// # Errors
    /// As there.
    pub fn check_connection(&self, peer: &LocalConnection) -> Result<(), Errors> {
        let mut findings = Findings::default();
        self.find_in_connection(peer, &mut findings);
        findings.into_result().map(|_| ())
    }

    fn find_in_connection(&self, peer: &LocalConnection, findings: &mut Findings) {
        let mut refuse = |what: &str, help: &str| {
            let message = format!("resource `{}` uses {what} towards `{}`", self.name, peer.peer_name);
            findings.error(Error::new(ErrorKind::Unsupported, &peer.span, message).help(help));
        };
        if peer.paths.iter().any(|p| p.proxied) {
            refuse(
                "DRBD proxy",
                "it is not supported; remove the proxy sections, or use protocol A with a larger sndbuf-size",
            );
        }
        if peer.paths.iter().any(|p| matches!(p.local.family, Family::Ssocks | Family::Sdp)) {
            refuse("a socket family other than TCP", "write the address with ipv4 or ipv6");
        }
        if peer.net.transport.as_deref().is_some_and(|t| t != "tcp") {
            refuse("a transport other than tcp", "remove the `transport` option");
        }
        if peer.net.tls {
            refuse("TLS", "it is not supported yet; remove the `tls` option or use a tunnel");
        }
        self.check_net(peer, findings);
    }

    /// Is it to be taken over? A verb refuses what this finds, and leaves what runs as it is. A process that is started
    /// all the same serves its devices, as applications may be using them, but is not promoted.
    ///
    /// # Errors
    /// `allow-two-primaries` with more than one peer (exit status 10).
    pub fn check_wanted(&self) -> Result<(), Errors> {
        let mut findings = Findings::default();
        let several = self.peers.len() > 1;
        for peer in self.peers.iter().filter(|peer| several && peer.net.allow_two_primaries) {
            let message = format!(
                "the connection of `{}` to `{}` has `allow-two-primaries`, and there are {} peers: with it urbd connects \
                 one of them at a time as yet, and nothing would keep the others from being Primary as well",
                self.name,
                peer.peer_name,
                self.peers.len()
            );
            let help =
                "set it to `no`; or take the other peers out of the resource, for as long as two nodes are Primary";
            findings.error(Error::new(ErrorKind::Value, &peer.span, message).help(help));
        }
        findings.into_result().map(|_| ())
    }

    /// What differs in `new` that a process has from its start, and does not change while it runs: in words of the
    /// language, each with what is done about it.
    #[must_use]
    pub fn fixed_since_start(&self, new: &LocalResource) -> Vec<FixedSinceStart> {
        let mut all = Vec::new();
        for volume in &self.volumes {
            let Some(other) = new.volumes.iter().find(|v| v.nr == volume.nr) else { continue };
            if volume.minor != other.minor {
                let what = format!("minor {} of volume {} becomes {}", volume.minor, volume.nr, other.minor);
                all.push(FixedSinceStart { what, by_next_process: false });
            }
        }
        let (was, is) = (&self.urbd, &new.urbd);
        let own = [
            ("front-end", was.front_end != is.front_end),
            ("fuse-io-uring", was.fuse_io_uring != is.fuse_io_uring),
            ("hand-over", was.hand_over != is.hand_over),
            ("drbd-names", was.drbd_names != is.drbd_names),
            ("status-group", was.status_group != is.status_group),
        ];
        all.extend(own.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| {
            let what = format!("`{name}` in the section `urbd` has another value");
            FixedSinceStart { what, by_next_process: true }
        }));
        all
    }

    /// Net options that contradict each other; DRBD refuses them when the connection is made.
    fn check_net(&self, peer: &LocalConnection, findings: &mut Findings) {
        let net = &peer.net;
        let rules = [
            (net.allow_two_primaries && net.protocol != Protocol::C, "`allow-two-primaries` needs protocol C"),
            (
                net.fencing == Fencing::ResourceAndStonith && net.protocol == Protocol::A,
                "`fencing resource-and-stonith` needs protocol B or C",
            ),
            (
                net.on_congestion == OnCongestion::PullAhead && net.protocol != Protocol::A,
                "`on-congestion pull-ahead` needs protocol A",
            ),
            (
                net.cram_hmac_alg.is_some() != net.shared_secret.is_some(),
                "`cram-hmac-alg` and `shared-secret` must be set together",
            ),
        ];
        for (_, rule) in rules.into_iter().filter(|(broken, _)| *broken) {
            let message = format!("in the connection of `{}` to `{}`: {rule}", self.name, peer.peer_name);
            findings.error(Error::new(ErrorKind::Value, &peer.span, message).help("change one of the options"));
        }
    }
}

/// One connection of `resource` as its host number `me` sees it; `None` if it is between others.
fn connection(resource: &Resource, connection: &Connection, me: usize) -> Option<LocalConnection> {
    let mine = connection.hosts.iter().position(|h| *h == me)?;
    let theirs = 1 - mine;
    let peer = &resource.hosts[connection.hosts[theirs]];
    let path = |path: &crate::model::Path| {
        let beyond = path.outside[theirs].as_ref().unwrap_or(&path.addresses[theirs]);
        let remote = path.proxies.as_ref().map_or(beyond, |inside| &inside[mine]);
        LocalPath { local: path.addresses[mine].clone(), remote: remote.clone(), proxied: path.proxies.is_some() }
    };
    let settings = discard::as_seen_by(&connection.settings, |name| resource.hosts[me].answers_to(name));
    Some(LocalConnection {
        peer_node_id: peer.node_id,
        peer_name: peer.name(),
        paths: connection.paths.iter().map(path).collect(),
        net: (&settings).into(),
        peer_devices: connection.peer_devices.iter().map(|d| towards(d, peer)).collect(),
        settings,
        span: connection.span.clone(),
    })
}

/// A peer device with what follows from the peer's volume: no bitmap for a diskless peer, no vote if it says so.
fn towards(device: &PeerDevice, peer: &Host) -> PeerDevice {
    let mut settings = device.settings.clone();
    if let Some(volume) = peer.volume(device.volume) {
        if volume.backing.is_none() {
            derive(&mut settings, Group::PeerDevice, "bitmap", "no");
        }
        if !volume.tiebreaker {
            derive(&mut settings, Group::PeerDevice, "peer-tiebreaker", "no");
        }
    }
    PeerDevice { volume: device.volume, options: (&settings).into(), settings }
}

/// urbd's own options with what follows from the form of the file: who names node ids has DRBD 9, and is offered its
/// dialect unless `protocol-version-max` says what is. It is part of what a process is told.
fn with_version(resource: &Resource) -> Settings {
    const NAME: &str = "protocol-version-max";
    let mut own = resource.private.clone();
    if !resource.of_84 && own.find(NAME).is_none() {
        derive(&mut own, Group::Urbd, NAME, "124");
    }
    own
}

fn derive(settings: &mut Settings, group: Group, name: &str, value: &str) {
    let setting = option(&[group], name).and_then(|spec| Setting::parse(spec, value).ok());
    setting.into_iter().for_each(|setting| settings.put(setting));
}

fn is_stacked(host: &Host) -> bool {
    matches!(host.is, HostMatch::Stacked { .. })
}

fn host_names<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> String {
    let mut names: Vec<String> = resources.into_iter().flat_map(|r| &r.hosts).map(Host::name).collect();
    names.sort();
    names.dedup();
    names.join(", ")
}
