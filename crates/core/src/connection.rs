//! A connection to a peer and its peer devices: what is known of the other side.

use crate::config::{ConnectionConfig, VolumeConfig};
use crate::decide::StateChange;
use crate::decide::private::Private;
use crate::decide::state::Replication;
use crate::dialect9::mesh::unsettled::AllUnsettled;
use crate::dialect9::nine::Nine;
use crate::dialect9::survivors::loss::{Loss, Survivor};
use crate::members::Volumes;
use crate::peer_write::held::DataQueue;
use crate::pings::Pings;
use crate::received_log::PeerEpochs;
use crate::resync::before::asked::BeforeResync;
use crate::resync::repair::due::Repair;
use crate::resync::session::Resync;
use crate::transfer_log::TransferLog;
use units::{Instant, Sector, VolumeNr};
use wire::{Dialect, DiskState};

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

#[derive(Debug, Default)]
pub(crate) struct PeerDevice {
    pub(crate) sizes: Option<wire::Sizes>,
    pub(crate) uuids: Option<wire::Uuids>,
    /// The peer wants to be sent what is written while its disk is Inconsistent (9).
    pub(crate) wants_writes_when_bad: bool,
    /// The same, from the next time on that it becomes Inconsistent.
    pub(crate) will_want_writes_when_bad: bool,
    /// A resync of everything is to begin (9).
    pub(crate) begins_all: bool,
    /// Its generations, as it told of them last (9).
    pub(crate) uuids110: Option<Box<wire::Uuids110>>,
    /// What the peer said last of what goes on (9). A source whose bitmap is awaited need not have said so.
    pub(crate) says: Replication,
    /// What it said last of its disk since the nodes were connected (9).
    pub(crate) says_disk: Option<DiskState>,
    /// This volume was Established with the peer, and that was lost or ended (9's RECONNECT).
    pub(crate) was_established: bool,
    /// Why what is marked stays when both are equal by their generations (9).
    pub(crate) keeps: Keeps,
    /// The peer has said last that it has marked something for this node's copy, which is good, and since then that
    /// nothing is marked up to here (9).
    pub(crate) marked_by_peer: Option<Sector>,
    /// One of the two was brought up to date by a third node, and has another generation than the other one by now (9).
    pub(crate) parted: bool,
    /// The peer, which is not here, may have come to this node's generation without this one having heard of it (9).
    pub(crate) end_unheard: bool,
    /// The peer's capacity, remembered over connections; 0 = it never had a disk.
    pub(crate) peer_capacity: Sector,
    /// Next sequence number is this plus one (`docs/spec/wire-protocol.md` 3.3).
    pub(crate) seq: u32,
    /// The highest sequence number seen from the peer.
    pub(crate) peer_seq: u32,
    /// The number that the peer's last answer would have if it had sent nothing but answers.
    pub(crate) peer_answers: u32,
    /// The peer's writes that were taken up, or answered at once; wraps around.
    pub(crate) peer_writes: u32,
    pub(crate) peers_bitmap: PeersBitmap,
    pub(crate) early_sync_uuid: Option<units::Generation>,
    /// A resync or verify on this link was given up before all its answers were here. Nothing but the moment tells
    /// them from those of the next one.
    pub(crate) answers_may_come: bool,
    /// The handler that must end before a resync begins.
    pub(crate) before_resync: BeforeResync,
    /// To be sent when our superblock names it.
    pub(crate) sync_uuid_due: Option<units::Generation>,
    pub(crate) resync: Resync,
    pub(crate) consider_resync: bool,
    /// The peer's generations are those from before it knew of the disk that is being attached here.
    pub(crate) uuids_stale: bool,
    /// The peer said last that its disk is being attached.
    pub(crate) attaching: bool,
    /// The generations of both sides were compared since the peer has its disk, and its data was not refused.
    pub(crate) compared: bool,
    /// A resync is about to begin, but the peer has not compared yet what led to it.
    pub(crate) undecided: bool,
    /// Since when the peer has refused a write of this node, and it has not been heard what became of its disk (9).
    pub(crate) refuses: Option<Instant>,
    /// Writes of the peer were refused on this link: a disk that was attached here since lacks them.
    pub(crate) refused_writes: bool,
    /// The next verify goes on from this bit.
    pub(crate) verify_from: u64,
    /// Marked blocks, as the peer was told last: both nodes decide about a split brain by the same numbers.
    pub(crate) changes_told: u64,
    /// A write has failed here that the peer may have, and no resync has ended since.
    pub(crate) write_failed: bool,
    pub(crate) repair: Repair,
    /// Application data sent and not confirmed by a barrier ack.
    pub(crate) sectors_in_flight: u64,
    /// Ahead: since when everything that was sent is confirmed.
    pub(crate) caught_up: Option<Instant>,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) pending: u32,
    pub(crate) unacked: u32,
}

/// How much of the peer's bitmap is here.
#[derive(Debug, Default)]
pub(crate) enum PeersBitmap {
    /// Nothing that is not dealt with.
    #[default]
    Awaited,
    Arriving(wire::BitmapReceiver),
    /// All of it came before this node knew of the resync that it belongs to: its bits are in the own one.
    Early,
}

/// Why what is marked between two nodes stays when both are equal by their generations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Keeps {
    /// It does not.
    #[default]
    Nothing,
    /// The peer, which may decide otherwise, has not said yet what it has come to.
    Unheard,
    /// They are equal by what a third node is to each of them, and it is to say itself who has what.
    Doubted,
    /// Among it is what a Primary wrote that was lost before it had said who has it.
    LostWrites,
}

impl PeerDevice {
    /// This node is no target any more: what the peer has said of being its source is about a resync that is over here.
    /// Not every source says when it is over for itself.
    pub(crate) fn forget_source(&mut self) {
        if self.says.is_source() {
            self.says = Replication::Off;
        }
    }

    /// The disk or the link is gone: what was said of a resync that had not begun is not about the next one, nor is the
    /// generation of one that did not reach the disk to be announced after the next attach.
    pub(crate) fn forget_resync_to_come(&mut self) {
        self.sync_uuid_due = None;
        self.peers_bitmap = PeersBitmap::Awaited;
        self.early_sync_uuid = None;
    }
}

impl Connection {
    pub(crate) fn new(cfg: &ConnectionConfig, volumes: &[VolumeConfig]) -> Connection {
        Connection {
            cfg: cfg.clone(),
            link: None,
            discard_my_data: false,
            tentative: false,
            offered: wire::ConnectionFeatures::OFFER,
            session: 0,
            peer_devices: volumes.iter().map(|v| (v.volume, PeerDevice::new(0))).collect(),
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
        self.dialect().map_or(101, |d| d.version.number())
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
        self.dialect().is_some_and(|d| d.features.contains(feature))
    }

    /// Does a rule of urbd's own count beside this peer?
    pub(crate) fn decides_by(&self, rule: Private) -> bool {
        self.cfg.decides.by(rule, self.has(wire::Features::URBD_RULES))
    }

    pub(crate) fn resolve_conflicts(&self) -> bool {
        self.link.as_ref().is_some_and(|l| l.resolve_conflicts)
    }

    /// Largest data write that the peer takes for a volume, in bytes; at least a block, whatever it says.
    pub(crate) fn max_data(&self, d: VolumeNr) -> u64 {
        let version = self.dialect().map_or(1 << 20, |x| u64::from(x.version.max_block()));
        let peer = self.peer_devices[d].sizes.as_ref().map_or(4096, |s| u64::from(s.max_bio_size));
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

impl PeerDevice {
    pub(crate) fn new(sequence: u32) -> PeerDevice {
        PeerDevice {
            wants_writes_when_bad: true,
            will_want_writes_when_bad: true,
            end_unheard: true,
            seq: sequence,
            peer_seq: sequence,
            peer_answers: sequence,
            ..PeerDevice::default()
        }
    }

    pub(crate) fn next_seq(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1);
        self.seq
    }
}
