//! A connection to a peer and its peer devices: what is known of the other side.
//!
//! A link speaks one of two dialects, 8.4's or DRBD 9's, as the nodes agree at its beginning ([`Spoken`]). 9's is
//! offered only where `max_version` of the connection's configuration permits it.

use crate::config::ConnectionConfig;
use crate::decide::StateChange;
use crate::decide::private::Private;
use crate::dialect9::mesh::unsettled::AllUnsettled;
use crate::dialect9::nine::Nine;
use crate::dialect9::survivors::loss::{Loss, Survivor};
use crate::members::Volumes;
use crate::peer_device::PeerDevice;
use crate::peer_write::held::DataQueue;
use crate::pings::Pings;
use crate::received_log::PeerEpochs;
use crate::transfer_log::TransferLog;
use units::{Instant, VolumeNr};
use wire::Dialect;

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) cfg: ConnectionConfig,
    /// Both streams are up.
    pub(crate) link: Option<Link>,
    pub(crate) discard_my_data: bool,
    pub(crate) tentative: bool,
    pub(crate) offered: wire::ConnectionFeatures,
    /// Counts links: what an operation started for an older one must not touch.
    pub(crate) session: u64,
    pub(crate) peer_devices: Volumes<PeerDevice>,
    pub(crate) peer_verify: wire::AlgName,

    // Sending (spec 1.6).
    pub(crate) log: TransferLog,
    /// Unanswered requests were last looked at.
    pub(crate) overdue_checked: Instant,

    // Receiving (spec 2).
    pub(crate) held: DataQueue,
    /// What the disks do for the peer: bytes, and something per request. Over all sessions.
    pub(crate) working: u64,
    pub(crate) epochs: PeerEpochs,

    /// Writes of the peer of which it has not said who has them (9).
    pub(crate) unsettled: AllUnsettled,
    /// The position of the last one that this node has (9). Over all sessions.
    pub(crate) heard_at: Option<u64>,
    /// It was Primary when the link went: have the others been told (9)?
    pub(crate) loss: Loss,
    /// What the two have told each other of a Primary that both may have lost (9).
    pub(crate) survivor: Survivor,
    /// This node has ended the connection itself, to compare anew, and waits so long for the peer (9).
    pub(crate) left_until: Option<Instant>,
    /// So long the two let a third node come first, which may have crashed as Primary (9).
    pub(crate) crashed_until: Option<Instant>,

    // Liveness (spec 10).
    pub(crate) last_heard: Instant,
    pub(crate) pings: Pings,
    /// A change of a volume that the peer has asked for, and that waits until what was sent there is durable.
    pub(crate) asked_later: Option<(VolumeNr, StateChange)>,
    /// The fence-peer handler is running, begun in this session.
    pub(crate) fencing: Option<u64>,
    /// Tries in a row that were refused because of the secret.
    pub(crate) refusals: u32,
    /// The last try ended as the peer, which has not crashed, took itself for the source in the same generation.
    pub(crate) survivor_insists: bool,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) resolve_conflicts: bool,
    /// The peer only wants to know what would happen.
    pub(crate) peer_tentative: bool,
    pub(crate) challenge: [u8; 64],
    pub(crate) spoken: Spoken,
    pub(crate) phase: Phase,
    pub(crate) phase_since: Instant,
    /// Our answer to the peer's challenge is out.
    pub(crate) answered: bool,
    pub(crate) expected: Option<wire::AuthBytes>,
    pub(crate) response: Option<wire::AuthBytes>,
}

/// What is spoken on a link. What only one of the dialects keeps is in its variant.
#[derive(Debug)]
pub(crate) enum Spoken {
    /// Not agreed yet.
    Nothing,
    /// 8.4's dialect.
    Of84(Dialect),
    /// 9's.
    Of9(Dialect, Box<Nine>),
}

impl Spoken {
    /// What is spoken from now on.
    pub(crate) fn new(dialect: Dialect) -> Spoken {
        if dialect.version.is_9() { Spoken::Of9(dialect, Box::default()) } else { Spoken::Of84(dialect) }
    }
}

/// How far a link has come (`docs/spec/wire-protocol.md` 7.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    Features,
    Challenge,
    /// We sent P_PROTOCOL and the volumes' parameters.
    Parameters,
    /// The peer's P_PROTOCOL was fine.
    Running,
}

impl Connection {
    pub(crate) fn new(cfg: &ConnectionConfig, volumes: impl Iterator<Item = VolumeNr>) -> Connection {
        Connection {
            cfg: cfg.clone(),
            link: None,
            discard_my_data: false,
            tentative: false,
            offered: wire::ConnectionFeatures::OFFER,
            session: 0,
            peer_devices: volumes.map(|volume| (volume, PeerDevice::default())).collect(),
            peer_verify: wire::AlgName::NONE,
            log: TransferLog::default(),
            overdue_checked: Instant(0),
            held: DataQueue::default(),
            working: 0,
            epochs: PeerEpochs::default(),
            unsettled: AllUnsettled::new(),
            heard_at: None,
            loss: Loss::Told,
            survivor: Survivor::default(),
            left_until: None,
            crashed_until: None,
            last_heard: Instant(0),
            pings: Pings::default(),
            asked_later: None,
            fencing: None,
            refusals: 0,
            survivor_insists: false,
        }
    }

    /// Agreed protocol version; the newest of 8.4 before it is agreed.
    pub(crate) fn version(&self) -> u32 {
        self.dialect().map_or(101, |dialect| dialect.version.number())
    }

    /// The volume that a change names which is about this one, or about all. Below protocol 100 there is one only.
    pub(crate) fn names(&self, about: Option<VolumeNr>, first: VolumeNr) -> Option<VolumeNr> {
        about.or((self.version() < 100).then_some(first))
    }

    pub(crate) fn dialect(&self) -> Option<Dialect> {
        match self.link.as_ref()?.spoken {
            Spoken::Nothing => None,
            Spoken::Of84(dialect) | Spoken::Of9(dialect, _) => Some(dialect),
        }
    }

    /// What a link keeps that speaks 9's dialect.
    pub(crate) fn nine(&self) -> Option<&Nine> {
        match &self.link.as_ref()?.spoken {
            Spoken::Of9(_, nine) => Some(nine),
            _ => None,
        }
    }

    pub(crate) fn speaks9(&self) -> bool {
        matches!(self.link, Some(Link { spoken: Spoken::Of9(..), .. }))
    }

    /// The same, to be changed.
    pub(crate) fn nine_mut(&mut self) -> Option<&mut Nine> {
        match &mut self.link.as_mut()?.spoken {
            Spoken::Of9(_, nine) => Some(nine),
            _ => None,
        }
    }

    pub(crate) fn has(&self, feature: wire::Features) -> bool {
        self.dialect().is_some_and(|dialect| dialect.features.contains(feature))
    }

    /// Does a rule of urbd's own count beside this peer?
    pub(crate) fn decides_by(&self, rule: Private) -> bool {
        let agreed = self.dialect().map_or(wire::Features::NONE, |dialect| dialect.features);
        self.cfg.decides.by(rule, agreed)
    }

    pub(crate) fn resolve_conflicts(&self) -> bool {
        self.link.as_ref().is_some_and(|l| l.resolve_conflicts)
    }

    /// Largest data write that the peer takes for a volume, in bytes; at least a block, whatever it says.
    pub(crate) fn max_data(&self, volume: VolumeNr) -> u64 {
        let version = self.dialect().map_or(1 << 20, |x| u64::from(x.version.max_block()));
        let peer = self.peer_devices[volume].link.told.sizes.as_ref().map_or(4096, |s| u64::from(s.max_bio_size));
        version.min(peer).max(4096) / 512 * 512
    }

    /// Can the peer be told to discard?
    pub(crate) fn takes_discards(&self) -> bool {
        self.has(wire::Features::TRIM) && self.version() >= 95
    }

    /// Largest block that can be sent in answer to a read.
    pub(crate) fn max_answer(&self) -> u64 {
        self.dialect().map_or(1 << 20, |x| u64::from(x.version.max_block()))
    }

    /// Largest discard that the peer takes.
    pub(crate) fn max_discard(&self) -> u64 {
        if self.has(wire::Features::WRITE_SAME) { 128 << 20 } else { 4 << 20 }
    }
}
