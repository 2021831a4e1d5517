//! Connections: written, one for each pair of a mesh, or the implicit one of two hosts.

use units::VolumeNr;

use super::{inherit, report, warn_settings};
use crate::address::Address;
use crate::discard;
use crate::document::{ConnectionNode, HostNode, HostRef, ProxyNode, ResourceNode};
use crate::error::{Error, ErrorKind, Findings, Span};
use crate::model::{Connection, Host, Path, PeerDevice};
use crate::options::Settings;
use crate::table::Group;

struct Builder<'a> {
    node: &'a ResourceNode,
    hosts: &'a [Host],
    net: &'a Settings,
    findings: &'a mut Findings,
    done: Vec<Connection>,
}

/// One end of a path before it is checked.
struct End<'a> {
    host: usize,
    address: Option<Address>,
    outside: Option<Address>,
    proxy: Option<&'a ProxyNode>,
    span: &'a Span,
}

/// All connections of a resource.
pub(super) fn connections(
    node: &ResourceNode,
    hosts: &[Host],
    net: &Settings,
    findings: &mut Findings,
) -> Vec<Connection> {
    let mut builder = Builder { node, hosts, net, findings, done: Vec::new() };
    for connection in &node.connections {
        builder.written(connection);
    }
    for mesh in &node.meshes {
        let known: Vec<usize> = mesh.hosts.iter().filter_map(|name| builder.host(&name.text, &name.span)).collect();
        for (i, a) in known.iter().enumerate() {
            for b in &known[i + 1..] {
                builder.generated([*a, *b], &mesh.net, &mesh.span);
            }
        }
    }
    if node.connections.is_empty() && node.meshes.is_empty() {
        match hosts.len() {
            1 => {}
            2 => builder.generated([0, 1], &Settings::default(), &node.name.span),
            n => {
                let message = format!(
                    "resource `{}` has {n} hosts, but no connection is defined: nothing will be replicated; \
                     add a `connection-mesh {{ hosts …; }}`",
                    node.name.text
                );
                builder.findings.warn(&node.name.span, message);
            }
        }
    }
    builder.done
}

impl<'a> Builder<'a> {
    fn host(&mut self, name: &str, span: &Span) -> Option<usize> {
        let fitting: Vec<usize> = (0..self.hosts.len()).filter(|&i| self.node.hosts[i].answers_to(name)).collect();
        let exact = fitting.iter().copied().find(|&i| self.hosts[i].has_name(name));
        if let (None, [one, other, ..]) = (exact, &fitting[..]) {
            let names = [*one, *other].map(|i| self.hosts[i].name());
            let message = format!("`{name}` may be {} or {}", names[0], names[1]);
            self.findings
                .error(Error::new(ErrorKind::Connection, span, message).help("write the name with its domain"));
            return None;
        }
        let found = exact.or(fitting.first().copied());
        if found.is_none() {
            let message = format!("there is no host section for `{name}` in this resource");
            let known: Vec<String> = self.hosts.iter().map(Host::name).collect();
            let error = Error::new(ErrorKind::Connection, span, message);
            self.findings.error(error.help(format!("the hosts are: {}", known.join(", "))));
        }
        found
    }

    fn generated(&mut self, pair: [usize; 2], net: &Settings, span: &Span) {
        let nodes: [&'a HostNode; 2] = pair.map(|i| &self.node.hosts[i]);
        let ends = [0, 1].map(|i| self.own_end(pair[i], nodes[i]));
        let Some(path) = self.path(ends, span) else { return };
        self.finish(pair, vec![path], net, None, span);
    }

    fn own_end(&self, host: usize, node: &'a HostNode) -> End<'a> {
        let (address, span) = match &node.address {
            Some((address, span)) => (Some(address.clone()), span),
            None => (None, &node.span),
        };
        End { host, address, outside: None, proxy: node.proxy.as_ref(), span }
    }

    fn written(&mut self, connection: &'a ConnectionNode) {
        let span = &connection.span;
        if let (Some(host), Some(_)) = (connection.hosts.first(), connection.paths.first()) {
            let message = "`host` statements inside and outside of `path` cannot be mixed";
            let error = Error::new(ErrorKind::Connection, &host.name.span, message);
            self.findings.error(error.help("put these hosts into a `path { }` of their own"));
            return;
        }
        let groups: Vec<(&Span, &'a [HostRef])> = if connection.paths.is_empty() {
            vec![(span, &connection.hosts)]
        } else {
            connection.paths.iter().map(|p| (&p.span, p.hosts.as_slice())).collect()
        };
        let mut pair: Option<[usize; 2]> = None;
        let mut paths = Vec::new();
        for (span, refs) in groups {
            let Some((hosts, path)) = self.written_path(span, refs) else { return };
            match pair {
                None => pair = Some(hosts),
                Some(first) if first == hosts => {}
                Some(_) => {
                    let message = "all paths of a connection must join the same two hosts, in the same order";
                    self.findings.error(Error::new(ErrorKind::Connection, span, message));
                    return;
                }
            }
            paths.push(path);
        }
        let Some(pair) = pair else { return };
        self.finish(pair, paths, &connection.net, Some(connection), span);
    }

    fn written_path(&mut self, span: &Span, refs: &'a [HostRef]) -> Option<([usize; 2], Path)> {
        let [a, b] = refs else {
            let message = format!("a connection joins exactly two hosts; {} are named here", refs.len());
            self.findings.error(Error::new(ErrorKind::Connection, span, message));
            return None;
        };
        let hosts = [self.host(&a.name.text, &a.name.span), self.host(&b.name.text, &b.name.span)];
        let ([Some(first), Some(second)], node) = (hosts, self.node) else { return None };
        let end = |host: usize, r: &'a HostRef| {
            let own = &node.hosts[host];
            let own_address = own.address.as_ref().map(|(a, _)| a);
            let address = r.address.clone().or_else(|| match r.port {
                Some(port) => own_address.map(|a| a.with_port(port)),
                None => own_address.cloned(),
            });
            let proxy = r.proxy.as_ref().or(own.proxy.as_ref());
            End { host, address, outside: r.outside.clone(), proxy, span: &r.name.span }
        };
        let path = self.path([end(first, a), end(second, b)], span)?;
        Some(([first, second], path))
    }

    fn path(&mut self, ends: [End<'a>; 2], span: &Span) -> Option<Path> {
        let [a, b] = ends;
        if a.host == b.host {
            let error = Error::new(ErrorKind::Connection, b.span, "both ends of this connection are the same host");
            self.findings.error(error);
            return None;
        }
        for end in [&a, &b] {
            if end.address.is_none() {
                let name = self.hosts[end.host].name();
                let message = format!("no address is known for host `{name}` in this connection");
                let error = Error::new(ErrorKind::Address, end.span, message);
                self.findings
                    .error(error.help("write `address IP:PORT;` into the host's section, or behind `host NAME`"));
            }
        }
        let (first, second) = (a.address?, b.address?);
        if first == second && a.proxy.is_none() {
            let message = format!("both ends of this connection are {first}");
            self.findings
                .error(Error::new(ErrorKind::Address, b.span, message).help("each host needs its own address"));
            return None;
        }
        if a.proxy.is_some() != b.proxy.is_some() {
            let lacking = if a.proxy.is_none() { a.span } else { b.span };
            let message = "only one of the two hosts has a proxy section";
            self.findings.error(
                Error::new(ErrorKind::Proxy, lacking, message)
                    .help("both hosts need one, or none")
                    .related(span, "in this connection"),
            );
            return None;
        }
        let inside = |end: &Option<&ProxyNode>| end.and_then(|p| p.inside.clone());
        let proxies = inside(&a.proxy).zip(inside(&b.proxy)).map(|(one, two)| [one, two]);
        Some(Path { addresses: [first, second], outside: [a.outside, b.outside], proxies })
    }

    fn finish(
        &mut self,
        pair: [usize; 2],
        paths: Vec<Path>,
        net: &Settings,
        written: Option<&ConnectionNode>,
        span: &Span,
    ) {
        let same = |c: &&Connection| c.hosts == pair || c.hosts == [pair[1], pair[0]];
        if let Some(first) = self.done.iter().find(same) {
            let names = pair.map(|i| self.hosts[i].name()).join("` and `");
            let error = Error::new(ErrorKind::Connection, span, format!("hosts `{names}` are connected twice"));
            self.findings.error(error.related(&first.span, "the other definition is here"));
            return;
        }
        let mut settings = net.clone();
        report(inherit(&mut settings, &[self.net]), self.findings);
        warn_settings(&settings, self.findings);
        if let Some((setting, name)) = discard::named(&settings)
            && pair.iter().filter(|&&i| self.hosts[i].answers_to(name)).count() != 1
        {
            let names = pair.map(|i| self.hosts[i].name()).join("` and `");
            let message = format!("`{}` does not say which of `{names}` is meant", setting.text);
            let help = "write the name of one of them behind `discard-node-`, or another policy";
            self.findings.error(Error::new(ErrorKind::Value, &setting.span, message).help(help));
        }
        let peer_devices = self.peer_devices(pair, written);
        self.done.push(Connection {
            hosts: pair,
            paths,
            net: (&discard::as_seen_by(&settings, |name| self.hosts[pair[0]].answers_to(name))).into(),
            settings,
            peer_devices,
            span: span.clone(),
        });
    }

    fn peer_devices(&mut self, pair: [usize; 2], written: Option<&ConnectionNode>) -> Vec<PeerDevice> {
        let [a, b] = pair.map(|i| &self.hosts[i]);
        for (nr, _, span) in written.map_or(&[][..], |w| &w.volumes) {
            if a.volume(VolumeNr(*nr)).is_none() || b.volume(VolumeNr(*nr)).is_none() {
                let message = format!("this connection refers to volume {nr}, which its hosts do not have");
                self.findings.error(Error::new(ErrorKind::Volumes, span, message));
            }
        }
        let shared = a.volumes.iter().filter_map(|va| Some((va, b.volume(va.nr)?)));
        let mut devices = Vec::new();
        for (va, vb) in shared {
            let own = written.and_then(|w| w.volumes.iter().find(|(nr, _, _)| *nr == va.nr.0));
            let mut settings = own.map(|(_, settings, _)| settings.clone()).unwrap_or_default();
            let through = written.map(|w| w.disk.clone()).unwrap_or_default();
            let (from_a, from_b) = (va.settings.of(Group::PeerDevice), vb.settings.of(Group::PeerDevice));
            report(inherit(&mut settings, &[&through, &from_a, &from_b]), self.findings);
            warn_settings(&settings, self.findings);
            devices.push(PeerDevice { volume: va.nr, options: (&settings).into(), settings });
        }
        devices
    }
}
