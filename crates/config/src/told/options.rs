//! Options of what is there (`docs/spec/config-and-cli.md` 2, 3.4).

use units::VolumeNr;

use super::{Refused, call, call::Call};
use crate::model::LocalResource;
use crate::options::{Setting, Settings};
use crate::table::Group;

/// Sets what others but the given have to its default before.
const RESET: &str = "set-defaults";

/// What no option verb changes: the size is `resize`'s, a name is the object's.
fn stays(setting: &Setting) -> bool {
    setting.spec.immutable || matches!(setting.spec.name, "size" | "_name" | "bitmap" | "peer-tiebreaker")
}

fn put(into: &mut Settings, of: Group, reset: bool, given: &[Setting]) {
    if reset {
        *into = into.iter().filter(|s| s.spec.group != of || stays(s)).cloned().collect();
    }
    given.iter().filter(|s| s.spec.group == of).for_each(|s| into.put(s.clone()));
}

impl LocalResource {
    pub(super) fn resource_options(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let [_] = call.take("RES")?;
        let given = call.settings(&[Group::Resource], &[RESET])?;
        put(&mut self.settings, Group::Resource, call.flag(RESET), &given);
        Ok(())
    }

    /// As in 8.4 also the speed of a resync and fencing, towards all peers: those are not reset.
    pub(super) fn disk_options(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let [minor] = call.take("MINOR")?;
        let flags = [RESET, "assume-clean", "assume-peer-has-space"];
        let given = call.settings(&[Group::Disk, Group::Device, Group::PeerDevice, Group::Net], &flags)?;
        let volume = self.by_minor(minor)?;
        put(&mut volume.settings, Group::Disk, call.flag(RESET), &given);
        let nr = volume.nr;
        for peer in &mut self.peers {
            put(&mut peer.settings, Group::Net, false, &given);
            let devices = peer.peer_devices.iter_mut().filter(|d| d.volume == nr);
            devices.for_each(|d| put(&mut d.settings, Group::PeerDevice, false, &given));
        }
        Ok(())
    }

    pub(super) fn net_options(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let [resource, id] = call.take("RES NODE-ID")?;
        let given = call.settings(&[Group::Net], &[RESET, "_name"])?;
        let peer = self.peer(resource, id)?;
        put(&mut peer.settings, Group::Net, call.flag(RESET), &given);
        Ok(())
    }

    pub(super) fn peer_device_options(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let [resource, id, nr] = call.take("RES NODE-ID VOLUME")?;
        let nr = VolumeNr(call::number("volume", nr)?);
        let given = call.settings(&[Group::PeerDevice], &[RESET])?;
        let peer = self.peer(resource, id)?;
        let device = peer.peer_devices.iter_mut().find(|d| d.volume == nr);
        let device = device.ok_or_else(|| Refused::new(127, format!("there is no volume {nr}")))?;
        put(&mut device.settings, Group::PeerDevice, call.flag(RESET), &given);
        Ok(())
    }
}
