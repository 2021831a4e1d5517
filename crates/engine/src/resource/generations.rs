//! What is said of a volume's data generations (`docs/spec/config-and-cli.md` 5.4).

use control::{ErrorCode, Failure, GenerationIdentifiers};
use units::{NodeId, VolumeNr};
use urbd_core::ConnectionState;

use super::Runner;

impl Runner {
    /// The volume's generations, as they stand beside this peer.
    ///
    /// # Errors
    /// There is no such volume.
    pub(super) fn generations(&self, volume: VolumeNr, peer: Option<NodeId>) -> Result<GenerationIdentifiers, Failure> {
        let snapshot = self.core.snapshot();
        let device = snapshot.devices.iter().find(|d| d.volume == volume).ok_or_else(|| {
            Failure::new(ErrorCode::NO_SUCH_MINOR, format!("{} has no volume {volume}", self.local.name))
        })?;
        let connection = peer.and_then(|peer| snapshot.connections.iter().find(|c| c.peer == peer));
        let peer_device = connection.and_then(|c| c.peer_devices.iter().find(|p| p.volume == volume));
        let [current, bitmap, older, oldest] = device.generations.map(|g| g.0);
        Ok(GenerationIdentifiers {
            current,
            bitmap,
            history: [older, oldest],
            consistent: device.disk >= wire::DiskState::Outdated && device.disk != wire::DiskState::DUnknown,
            was_up_to_date: device.disk == wire::DiskState::UpToDate,
            primary: snapshot.role == wire::Role::Primary,
            crashed_primary: false,
            connected: connection.is_some_and(|c| c.state == ConnectionState::Connected),
            full_sync: false,
            peer_outdated: peer_device.is_some_and(|p| p.peer_disk <= wire::DiskState::Outdated),
        })
    }
}
