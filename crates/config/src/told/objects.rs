//! Volumes, peers and paths come and go (`docs/spec/connection-and-state.md` 12.12).

use units::VolumeNr;

use super::{Refused, call, call::Call};
use crate::backing::{Backing, MetaDisk};
use crate::model::{LocalConnection, LocalPath, LocalResource, LocalVolume};
use crate::options::Settings;
use crate::table::Group;

/// No such minor.
const NO_MINOR: i32 = 127;
/// The disk is there already.
const HAS_DISK: i32 = 124;
/// No peer has this node id.
const NO_PEER: i32 = 171;
/// The same pair of addresses.
const PAIR_IN_USE: i32 = 173;
/// The name is taken.
const EXISTS: i32 = 174;
/// Not to be told from a path of another connection.
const SAME_PATH: i32 = 176;
/// The minor, or the volume, is taken.
const MINOR_EXISTS: i32 = 161;
/// Greatest minor number.
const MAX_MINOR: u32 = (1 << 20) - 1;

/// May a new resource, or a connection, be called so? The language has names with blanks, too, which run as ever.
///
/// # Errors
/// The kernel's status: 126 for none, 162 for what cannot be part of a file's name.
pub fn check_name(name: &str) -> Result<(), Refused> {
    let strange = |c: char| c.is_control() || c.is_whitespace() || c == '/';
    match name {
        "" => Err(Refused::new(126, "a name is missing")),
        "all" => Err(Refused::invalid("`all` stands for all resources, and is no name")),
        name if name.contains(strange) || name.starts_with('.') => {
            Err(Refused::invalid(format!("'{name}' is no name: it has a blank, a slash or a control character")))
        }
        _ => Ok(()),
    }
}

impl LocalResource {
    fn own(&self, name: &str) -> Result<(), Refused> {
        if name == self.name { Ok(()) } else { Err(Refused::new(158, format!("this is {}, not {name}", self.name))) }
    }

    pub(super) fn rename_resource(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let [resource, new] = call.take("RES NEW-NAME")?;
        self.own(resource)?;
        check_name(new)?;
        if new == resource {
            return Err(Refused::new(EXISTS, format!("it is called {new} already")));
        }
        self.be_called(new)
    }

    /// Its volumes have that name where they wait for one another, too.
    ///
    /// # Errors
    /// None for a name that can be one.
    pub(super) fn be_called(&mut self, name: &str) -> Result<(), Refused> {
        let before = std::mem::replace(&mut self.name, name.to_owned());
        for volume in &mut self.volumes {
            let after = volume.disk.resync_after.as_deref().and_then(crate::model::volume_name);
            if let Some((_, nr)) = after.filter(|(of, _)| *of == before) {
                let text = nr.map_or_else(|| name.to_owned(), |nr| format!("{name}/{nr}"));
                volume.settings.put(call::setting(&[Group::Disk], "resync-after", Some(&text))?);
            }
        }
        Ok(())
    }

    /// The volume of a minor.
    pub(super) fn by_minor(&mut self, text: &str) -> Result<&mut LocalVolume, Refused> {
        let minor: u32 = call::number("minor", text)?;
        let name = &self.name;
        let found = self.volumes.iter_mut().find(|v| v.minor == minor);
        found.ok_or_else(|| Refused::new(NO_MINOR, format!("{name} has no minor {minor}")))
    }

    pub(super) fn peer(&mut self, resource: &str, id: &str) -> Result<&mut LocalConnection, Refused> {
        self.own(resource)?;
        let id = call::node_id(id)?;
        let name = &self.name;
        let found = self.peers.iter_mut().find(|p| p.peer_node_id == id);
        found.ok_or_else(|| Refused::new(NO_PEER, format!("{name} has no peer with the node id {id}")))
    }

    pub(super) fn new_minor(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let [resource, minor, nr] = call.take("RES MINOR VOLUME")?;
        self.own(resource)?;
        let (minor, nr): (u32, u16) = (call::number("minor", minor)?, call::number("volume", nr)?);
        if minor > MAX_MINOR {
            return Err(Refused::invalid(format!("minor {minor} is above {MAX_MINOR}")));
        }
        let private = ["diskless", "_name", "_implicit"];
        let settings: Settings = call.settings(&[Group::Device], &private)?.into_iter().collect();
        match self.volumes.iter().find(|v| v.minor == minor || v.nr.0 == nr) {
            Some(same) if (same.minor, same.nr.0) == (minor, nr) => return Ok(()),
            Some(other) => {
                let text = format!("{} has volume {} with minor {}", self.name, other.nr, other.minor);
                return Err(Refused::new(MINOR_EXISTS, text));
            }
            None => {}
        }
        self.volumes.push(LocalVolume {
            nr: VolumeNr(nr),
            implicit: call.flag("_implicit"),
            minor,
            name: call.value("_name").map(str::to_owned),
            backing: None,
            disk: (&settings).into(),
            device: (&settings).into(),
            resync_after_minor: None,
            settings,
        });
        Ok(())
    }

    pub(super) fn del_minor(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let [minor] = call.take("MINOR")?;
        let nr = self.by_minor(minor)?.nr;
        self.volumes.retain(|v| v.nr != nr);
        Ok(())
    }

    pub(super) fn attach(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let [minor, disk, meta, index] = call.take("MINOR DISK META-DISK INDEX")?;
        let settings = call.settings(&[Group::Disk], &[])?;
        let volume = self.by_minor(minor)?;
        if let Some(backing) = &volume.backing {
            return Err(Refused::new(HAS_DISK, format!("volume {} has the disk {} already", volume.nr, backing.path)));
        }
        let path = meta.to_owned();
        let meta_disk = match index {
            "internal" | "flex-internal" if meta == disk => MetaDisk::Internal,
            "internal" | "flex-internal" => {
                return Err(Refused::invalid(format!("internal metadata are on {disk} itself, not on {meta}")));
            }
            "flexible" | "flex-external" => MetaDisk::External { path },
            index => MetaDisk::Indexed { path, index: call::number("index", index)? },
        };
        volume.backing = Some(Backing { path: disk.to_owned(), meta_disk });
        volume.settings = volume.settings.of(Group::Device);
        settings.into_iter().for_each(|setting| volume.settings.put(setting));
        Ok(())
    }

    /// The process knows the disk no more.
    pub(super) fn detach(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let [minor] = call.take("MINOR")?;
        let volume = self.by_minor(minor)?;
        volume.backing = None;
        volume.settings = volume.settings.of(Group::Device);
        Ok(())
    }

    pub(super) fn new_peer(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let [resource, id] = call.take("RES NODE-ID")?;
        self.own(resource)?;
        let id = call::node_id(id)?;
        if id == self.node_id {
            return Err(Refused::invalid("peer node id cannot be my own node id"));
        }
        if self.peers.iter().any(|p| p.peer_node_id == id) {
            return Err(Refused::invalid(format!("Connection for peer node id {id} already exists")));
        }
        let given = call.value("_name").filter(|name| !name.is_empty());
        let name = given.map_or_else(|| format!("peer-{id}"), str::to_owned);
        check_name(&name)?;
        if self.peers.iter().any(|p| p.peer_name == name) {
            return Err(Refused::new(EXISTS, format!("a connection to `{name}` exists already")));
        }
        let settings = call.settings(&[Group::Net], &["_name"])?;
        self.peers.push(LocalConnection::new(id, &name, settings.into_iter().collect()));
        Ok(())
    }

    pub(super) fn del_peer(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let [resource, id] = call.take("RES NODE-ID")?;
        let id = self.peer(resource, id)?.peer_node_id;
        self.peers.retain(|p| p.peer_node_id != id);
        Ok(())
    }

    pub(super) fn new_path(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let [resource, id, local, remote] = call.take("RES NODE-ID LOCAL REMOTE")?;
        let (local, remote) = (call::address(local)?, call::address(remote)?);
        let id = self.peer(resource, id)?.peer_node_id;
        for peer in &self.peers {
            for path in &peer.paths {
                if path.local == local && path.remote == remote {
                    return Err(Refused::new(PAIR_IN_USE, format!("{} has this path already", peer.peer_name)));
                }
                if peer.peer_node_id != id && path.local == local && path.remote.ip == remote.ip {
                    let text = format!("path indistinguishable from one of {}", peer.peer_name);
                    return Err(Refused::new(SAME_PATH, text));
                }
            }
        }
        self.peer(resource, &id.to_string())?.paths.push(LocalPath { local, remote, proxied: false });
        Ok(())
    }

    pub(super) fn del_path(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let [resource, id, local, remote] = call.take("RES NODE-ID LOCAL REMOTE")?;
        let (local, remote) = (call::address(local)?, call::address(remote)?);
        let peer = self.peer(resource, id)?;
        let at = peer.paths.iter().position(|p| p.local == local && p.remote == remote);
        let at = at.ok_or_else(|| Refused::invalid("no such path"))?;
        peer.paths.remove(at);
        Ok(())
    }
}
