//! Volumes and peers that are made and removed at run time (`docs/spec/connection-and-state.md` 4.8, 12.12).
//!
//! A configuration is taken over as a whole, or not at all. What it has more than there is, is made: a volume Diskless,
//! a connection StandAlone. What it has no more is removed, if nothing uses it.

pub(super) mod wanted;

use crate::api::{CommandError, ConnectionState, failure};
use crate::command::objects::wanted::{Parting, Wanted};
use crate::command::pending::Waiting;
use crate::config::{ConnectionConfig, ResourceConfig, VolumeConfig};
use crate::connection::Connection;
use crate::decide::StateChangeResult as Code;
use crate::decide::state::{PairState, PeerState, State, VolumeState};
use crate::device::{Backing, Device};
use crate::members::{Peers, Volumes};
use crate::node::Node;
use crate::op::Op;
use crate::peer_device::PeerDevice;
use crate::peer_write::write::PeerWrite;
use crate::request::under_way::Request;
use crate::slab::Slab;
use meta::PeerFlags;
use units::{NodeId, VolumeNr};
use wire::DiskState;

/// The disk of a volume that is to be removed is not Diskless (`del-minor`).
const MINOR_CONFIGURED: i32 = 160;
/// A peer that is to be removed is not StandAlone.
const NET_CONFIGURED: i32 = 125;
const NO_SUCH_VOLUME: i32 = 127;
const NO_SUCH_PEER: i32 = 171;
/// What is wanted cannot be, whatever the state.
const INVALID: i32 = 162;

/// One step from what there is to what is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step<'a> {
    RemovePeer(NodeId),
    RemoveVolume(VolumeNr),
    MakeVolume(&'a VolumeConfig),
    MakePeer(&'a ConnectionConfig),
}

impl Wanted {
    /// Was a peer asked, which has not answered?
    pub(super) fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    pub(super) fn asks(&mut self, parting: Parting) {
        self.asked = Some(parting);
    }

    /// Why a peer does not let go of a volume.
    pub(super) fn refused(&mut self) -> Option<CommandError> {
        self.refused.take()
    }

    /// A peer has let go of a volume that is to be removed, or not. A peer that is lost does not matter.
    pub(super) fn let_go_by_peer(&mut self, state: &State, outcome: Result<(), CommandError>) {
        let Some(parting @ (peer, ..)) = self.asked.take() else { return };
        match outcome {
            Ok(()) => self.parted.push(parting),
            Err(error) if state.is_connected(peer) => self.refused = Some(error),
            Err(_) => {}
        }
    }

    pub(super) fn cfg(&self) -> &ResourceConfig {
        &self.cfg
    }

    pub(super) fn into_cfg(self) -> ResourceConfig {
        *self.cfg
    }

    /// As it was before the peer was asked.
    pub(super) fn unasked(self) -> Wanted {
        Wanted { asked: None, ..self }
    }
}

impl Waiting {
    /// `ChangeOptions`.
    pub(super) fn reconfigure(cfg: Box<ResourceConfig>) -> Waiting {
        Waiting::Reconfigure(Wanted { cfg, asked: None, parted: Vec::new(), refused: None })
    }
}

impl Step<'_> {
    pub(super) fn removes(&self) -> bool {
        matches!(self, Step::RemovePeer(_) | Step::RemoveVolume(_))
    }

    pub(super) fn volume_made(&self) -> Option<VolumeNr> {
        if let Step::MakeVolume(cfg) = self { Some(cfg.volume) } else { None }
    }

    /// Is something under way that ends by itself, and is about what is to be removed?
    pub(super) fn has_left_overs(
        &self,
        requests: &Slab<Request>,
        peer_writes: &Slab<PeerWrite>,
        ops: &Slab<Op>,
    ) -> bool {
        let about = |volume: VolumeNr, peer: Option<NodeId>| match *self {
            Step::RemovePeer(of) => peer == Some(of),
            Step::RemoveVolume(of) => volume == of,
            Step::MakeVolume(_) | Step::MakePeer(_) => false,
        };
        let op = |op: &Op| match *op {
            // Those of requests and of a peer's writes are looked at with these.
            Op::LocalWrite(_) | Op::LocalRead(_) | Op::LocalFlush(_) | Op::PeerWrite(_) => false,
            Op::PeerRead { connection, device, .. }
            | Op::ResyncRead { connection, device, .. }
            | Op::ResyncWrite { connection, device, .. }
            | Op::ResyncDigest { connection, device, .. }
            | Op::EpochFlush { connection, device, .. } => about(device, Some(connection)),
            Op::LossFlush { lost, device, .. } => about(device, Some(lost)),
            Op::AlBlock(volume)
            | Op::BitmapPage(volume, _)
            | Op::Superblock(volume)
            | Op::Attach(volume)
            | Op::LogReset(volume) => about(volume, None),
        };
        requests.iter().any(|(_, request)| about(request.device(), None))
            || peer_writes.iter().any(|(_, write)| about(write.device, Some(write.connection)))
            || ops.iter().any(|(_, known)| op(known))
    }

    /// What is made begins as with a new process; of what is removed the metadata stay on the disk as they are.
    pub(super) fn take(self, state: &mut State, devices: &mut Volumes<Device>, connections: &mut Peers<Connection>) {
        match self {
            Step::RemovePeer(peer) => {
                state.peers.remove(peer);
                connections.remove(peer);
                connections.values_mut().for_each(|c| c.survivor.forget(peer));
            }
            Step::RemoveVolume(volume) => {
                state.volumes.remove(volume);
                for peer in state.peers.values_mut() {
                    peer.volumes.remove(volume);
                }
                devices.remove(volume);
                connections.values_mut().for_each(|c| c.forget_volume(volume));
            }
            Step::MakeVolume(cfg) => {
                // Of a Primary nobody uses it yet.
                let made = VolumeState::diskless(state.is_primary());
                state.volumes.insert(cfg.volume, made);
                for peer in state.peers.values_mut() {
                    peer.volumes.insert(cfg.volume, PairState::UNKNOWN);
                }
                devices.insert(cfg.volume, Device::new(cfg));
                for c in connections.values_mut() {
                    c.peer_devices.insert(cfg.volume, PeerDevice::default());
                }
            }
            Step::MakePeer(cfg) => {
                let mut made = PeerState::stand_alone(devices.ids());
                for (volume, dev) in devices.iter() {
                    let md = dev.backing.as_ref().map(|b| &b.md);
                    if md.is_some_and(|md| md.peer(cfg.peer).flags.contains(PeerFlags::OUTDATED)) {
                        made.volumes[volume].disk = DiskState::Outdated;
                    }
                }
                state.peers.insert(cfg.peer, made);
                connections.insert(cfg.peer, Connection::new(cfg, devices.ids()));
            }
        }
    }
}

impl Node {
    /// What is removed first, then what is made.
    pub(super) fn steps_to<'a>(&self, cfg: &'a ResourceConfig) -> Vec<Step<'a>> {
        let peer = |peer: &NodeId| !cfg.connections.iter().any(|c| c.peer == *peer);
        let volume = |volume: &VolumeNr| !cfg.volumes.iter().any(|v| v.volume == *volume);
        let peers = self.connections.ids().filter(peer).map(Step::RemovePeer);
        let volumes = self.devices.ids().filter(volume).map(Step::RemoveVolume);
        let new_volumes = cfg.volumes.iter().filter(|v| !self.devices.contains(v.volume)).map(Step::MakeVolume);
        let new_peers = cfg.connections.iter().filter(|c| !self.connections.contains(c.peer)).map(Step::MakePeer);
        peers.chain(volumes).chain(new_volumes).chain(new_peers).collect()
    }

    /// The first peer that has a volume that is to be removed, and has not let go of it.
    pub(super) fn still_has(&self, steps: &[Step<'_>], wanted: &Wanted) -> Option<Parting> {
        let removed = |step: &Step<'_>| if let Step::RemoveVolume(volume) = *step { Some(volume) } else { None };
        let of_all = |volume| {
            let with = move |(peer, c): (NodeId, &Connection)| {
                self.state.replicates(peer, volume).then_some((peer, c.session, volume))
            };
            self.connections.iter().filter_map(with)
        };
        steps.iter().filter_map(removed).flat_map(of_all).find(|parting| !wanted.parted.contains(parting))
    }

    /// Connected peers that have let go of a volume.
    pub(super) fn parted(&self, wanted: &Wanted) -> Vec<(NodeId, VolumeNr)> {
        let here = wanted.parted.iter().filter(|(peer, session, _)| self.is_in_session(*peer, *session));
        here.map(|(peer, _, volume)| (*peer, *volume)).collect()
    }

    fn is_in_session(&self, peer: NodeId, session: u64) -> bool {
        self.state.is_connected(peer) && self.connections.get(peer).is_some_and(|c| c.session == session)
    }

    /// May all of these be taken?
    pub(super) fn why_not(
        &self,
        steps: &[Step<'_>],
        cfg: &ResourceConfig,
        requests: &Slab<Request>,
    ) -> Result<(), CommandError> {
        if cfg.node != self.cfg.node {
            return Err(failure(INVALID, "a resource cannot be that of another node: take it down first"));
        }
        let peers = steps.iter().any(|step| matches!(step, Step::RemovePeer(_) | Step::MakePeer(_)));
        let alone = |dev: &Device| {
            let only = dev.backing.as_ref().filter(|b| b.bitmaps.len() == 1);
            // One that is nobody's is given to whoever is connected to first.
            let is_owned = |b: &Backing| b.md.peers.iter().any(|p| p.slot == Some(0));
            only.is_some_and(|b| is_owned(b) && !cfg.connections.iter().any(|c| b.md.peer(c.peer).slot == Some(0)))
        };
        let swapped = self.devices.iter().find(|(_, dev)| peers && !cfg.connections.is_empty() && alone(dev));
        if let Some((volume, _)) = swapped {
            let text = format!("the only bitmap slot of volume {volume} is another peer's: detach it first");
            return Err(failure(INVALID, text));
        }
        steps.iter().try_for_each(|step| match *step {
            Step::RemovePeer(peer) => self.why_peer_stays(peer),
            Step::RemoveVolume(volume) => self.why_volume_stays(volume, requests),
            Step::MakePeer(peer) if peer.peer == cfg.node => {
                Err(failure(INVALID, "peer node id cannot be my own node id"))
            }
            Step::MakePeer(_) | Step::MakeVolume(_) => Ok(()),
        })
    }

    fn why_volume_stays(&self, volume: VolumeNr, requests: &Slab<Request>) -> Result<(), CommandError> {
        let (dev, disk) = (&self.devices[volume], self.state.disk(volume));
        let attached = dev.backing.is_some() || dev.disk.attaching.is_some() || dev.disk.leaving.is_some();
        if attached || disk != DiskState::Diskless {
            let text = format!("volume {volume} cannot be removed: its disk is {disk}; detach it first");
            return Err(failure(MINOR_CONFIGURED, text));
        }
        let asked = requests.iter().any(|(_, request)| request.device() == volume && is_waited_for(request));
        // What was asked by somebody who has closed it since ends by itself, unless I/O is frozen.
        let stays = (dev.disk.upper_pending > 0 || asked) && self.state.is_frozen();
        if dev.openers.writers + dev.openers.readers > 0 || stays {
            let text = format!("volume {volume} cannot be removed: it is in use; close it first");
            return Err(failure(Code::DeviceInUse.code(), text));
        }
        Ok(())
    }

    fn why_peer_stays(&self, peer: NodeId) -> Result<(), CommandError> {
        let (state, name) = (&self.state.peers[peer], &self.connections[peer].cfg.peer_name);
        if state.connection != ConnectionState::StandAlone {
            let text = format!("{name} cannot be removed: it is not disconnected; disconnect it first");
            return Err(failure(NET_CONFIGURED, text));
        }
        if state.unfenced || self.connections[peer].log.kept().next().is_some() {
            let text = format!("{name} cannot be removed: I/O is frozen, and waits for it; resume-io first");
            return Err(failure(Code::PrimaryNop.code(), text));
        }
        Ok(())
    }

    /// Is a command about a volume or a peer that there is no more?
    pub(super) fn lacks_object_of(&self, what: &Waiting) -> Option<CommandError> {
        let (peer, volume) = what.is_about();
        if let Some(volume) = volume.filter(|volume| !self.devices.contains(*volume)) {
            return Some(failure(NO_SUCH_VOLUME, format!("volume {volume} was removed")));
        }
        let peer = peer.filter(|peer| !self.connections.contains(*peer));
        peer.map(|peer| failure(NO_SUCH_PEER, format!("peer {peer} was removed")))
    }
}

/// Why a peer is not forgotten that is still one.
pub(super) fn why_not_forgotten(peer: NodeId) -> CommandError {
    failure(NET_CONFIGURED, format!("node {peer} is a peer of this resource: remove it first"))
}

/// Does an application wait for it? Of a completed write a peer may be about to say that it has it for good.
fn is_waited_for(request: &Request) -> bool {
    if let Request::Write(write) = request { write.is_open() } else { true }
}

impl Connection {
    fn forget_volume(&mut self, volume: VolumeNr) {
        self.peer_devices.remove(volume);
        self.asked_later.take_if(|(of, _)| *of == volume);
        let attempt = self.nine_mut().and_then(|nine| nine.attempt.as_mut());
        attempt.into_iter().for_each(|attempt| attempt.forget_volume(volume));
        for write in self.unsettled.iter_mut().filter(|write| write.volume == volume) {
            // The peer will name its position all the same.
            write.volume = VolumeNr::NONE;
        }
    }
}
