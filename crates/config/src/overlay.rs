//! Options that are given to a running resource, on top of its configuration (`docs/spec/config-and-cli.md` 3.2,
//! `disk-options` and its like).

use units::{NodeId, VolumeNr};

use crate::document::{ResourceNode, VolumeNode};
use crate::error::{Error, ErrorKind};
use crate::model::{Config, ThisHost};
use crate::options::{Setting, Settings};
use crate::table::Group;

/// What gets other options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlayScope<'a> {
    /// The resource.
    pub resource: &'a str,
    /// Only this volume.
    pub volume: Option<VolumeNr>,
    /// Only the connection to this peer.
    pub peer: Option<NodeId>,
}

impl Config {
    /// Sets options where they win over everything that is written. Resource options hold for the resource, net options
    /// for its connections, disk and device options for this host's volumes, peer-device options for what both are.
    /// Afterwards only [`Config::dump`] knows of it; read that text to get the new model.
    ///
    /// # Errors
    /// There is no such resource, or it has no section for `host`.
    pub fn overlay(&mut self, scope: OverlayScope<'_>, host: &ThisHost, settings: &Settings) -> Result<(), Error> {
        let local = self.resource_as_seen_by(scope.resource, host)?;
        let resource = self.resource(scope.resource).expect("just seen").clone();
        let node = self.document.resource_mut(scope.resource).expect("just seen");
        let own = resource.hosts.iter().position(|h| h.node_id == local.node_id);
        let own = own.ok_or_else(|| Error::without_place(ErrorKind::Host, "no section for this host"))?;
        let is_meant = |other: usize| scope.peer.is_none_or(|peer| resource.hosts[other].node_id == peer);
        let others: Vec<usize> = (0..resource.hosts.len()).filter(|&other| other != own && is_meant(other)).collect();
        let volumes = local.volumes.iter().map(|v| v.nr).filter(|nr| scope.volume.is_none_or(|wanted| wanted == *nr));
        let volumes: Vec<VolumeNr> = volumes.collect();
        for setting in settings.iter() {
            match setting.spec.group {
                Group::Resource => node.sections.options.put(setting.clone()),
                Group::Net => node.put_net(own, &others, setting),
                Group::PeerDevice => volumes.iter().for_each(|nr| node.put_peer_device(own, &others, *nr, setting)),
                _ => volumes.iter().for_each(|nr| node.put_volume(own, *nr, setting)),
            }
        }
        Ok(())
    }
}

impl ResourceNode {
    /// Does a written connection join the host section `own` with one of `others`?
    fn joins(&self, connection: usize, own: usize, others: &[usize]) -> bool {
        let connection = &self.connections[connection];
        let refs = connection.paths.first().map_or(&connection.hosts, |p| &p.hosts);
        let named = |host: usize| refs.iter().any(|r| self.hosts[host].answers_to(&r.name.text));
        named(own) && others.iter().any(|&other| named(other))
    }

    fn put_net(&mut self, own: usize, others: &[usize], setting: &Setting) {
        let joined: Vec<usize> = (0..self.connections.len()).filter(|&c| self.joins(c, own, others)).collect();
        for c in joined {
            self.connections[c].net.put(setting.clone());
        }
        self.meshes.iter_mut().for_each(|mesh| mesh.net.put(setting.clone()));
        if self.connections.is_empty() && self.meshes.is_empty() {
            self.sections.net.put(setting.clone());
        }
    }

    fn put_peer_device(&mut self, own: usize, others: &[usize], nr: VolumeNr, setting: &Setting) {
        let joined: Vec<usize> = (0..self.connections.len()).filter(|&c| self.joins(c, own, others)).collect();
        if joined.is_empty() {
            // Without a section of its own a connection has what its two hosts' volumes say, which must agree.
            return std::iter::once(own).chain(others.iter().copied()).for_each(|h| self.put_volume(h, nr, setting));
        }
        for c in joined {
            let connection = &mut self.connections[c];
            let at = connection.volumes.iter().position(|(n, _, _)| *n == nr.0).unwrap_or_else(|| {
                connection.volumes.push((nr.0, Settings::default(), connection.span.clone()));
                connection.volumes.len() - 1
            });
            connection.volumes[at].1.put(setting.clone());
        }
    }

    fn put_volume(&mut self, host: usize, nr: VolumeNr, setting: &Setting) {
        let implicit = self.volumes.iter().any(|v| v.nr == nr.0 && v.implicit);
        let host = &mut self.hosts[host];
        let at = host.volumes.iter().position(|v| v.nr == nr.0).unwrap_or_else(|| {
            host.volumes.push(VolumeNode::new(nr.0, implicit, &host.span));
            host.volumes.len() - 1
        });
        host.volumes[at].options.put(setting.clone());
    }
}
