//! What this node knows: its configuration, the time, the state, and what it keeps of its volumes and of its peers.
//!
//! Questions are asked of a [`Node`]: they stand in the rooms that they belong to, and get `&self`. So they cannot act:
//! what is said and done goes through [`crate::Resource`], which alone has what takes part in that.
//!
//! Invariant: `state` is stored by `state.rs` alone.

use crate::config::ResourceConfig;
use crate::connection::Connection;
use crate::decide::state::State;
use crate::device::Device;
use crate::members::{Peers, Volumes};
use units::{Instant, VolumeNr};

/// What a resource knows on one node. Its public methods are questions to a [`crate::Resource`], which derefs to it.
#[derive(Debug)]
pub struct Node {
    pub(crate) cfg: ResourceConfig,
    pub(crate) now: Instant,
    pub(crate) state: State,
    pub(crate) devices: Volumes<Device>,
    pub(crate) connections: Peers<Connection>,
}

impl Node {
    /// Secondary, all volumes Diskless, all connections StandAlone.
    pub(crate) fn new(cfg: ResourceConfig) -> Node {
        let volumes: Vec<VolumeNr> = cfg.volumes.iter().map(|v| v.volume).collect();
        Node {
            state: State::new(cfg.node, cfg.connections.iter().map(|c| c.peer), &volumes),
            devices: cfg.volumes.iter().map(|v| (v.volume, Device::new(v))).collect(),
            connections: cfg
                .connections
                .iter()
                .map(|c| (c.peer, Connection::new(c, volumes.iter().copied())))
                .collect(),
            now: Instant(0),
            cfg,
        }
    }
}
