//! The table: one row per sentence. Every code that the module can say must have a row.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::{Weight, lines, matters, wrapped};
use crate::asker::Asker;
use crate::states::{ConnectionState, DiskState, ReplicationState, Role};
use crate::status::{
    Attempt, Cause, ConnectionStatistics, ConnectionStatus, DeviceStatus, IntentionalClient, LinkLosses, Opening,
    PathAddress, PathStatus, PeerDeviceStatistics, PeerDeviceStatus, ResourceStatus, ResyncSuspended, SlowedBy,
    Suspended, SyncDetails,
};

thread_local! {
    /// The sentences of what comes next that were said.
    static SAID: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

pub(super) fn said(sentence: &'static str) {
    SAID.with_borrow_mut(|said| said.insert(sentence));
}

/// The sources of what is said.
const SOURCES: [&str; 3] = [include_str!("../matter.rs"), include_str!("device.rs"), include_str!("connection.rs")];

/// Two nodes that are well, this one Primary.
fn good() -> ResourceStatus {
    let address = |last: u8| PathAddress { family: "ipv4".into(), address: format!("10.0.0.{last}"), port: 7788 };
    let connection = ConnectionStatus {
        peer_role: Role::Secondary,
        paths: vec![PathStatus { local: address(1), peer: address(2), established: true }],
        peer_devices: vec![PeerDeviceStatus::new(0, ReplicationState::Established, DiskState::UpToDate)],
        ..ConnectionStatus::new("bravo", ConnectionState::Connected)
    };
    let backing = Some("/dev/sdb1".into());
    ResourceStatus {
        role: Role::Primary,
        devices: vec![DeviceStatus { backing_dev: backing, ..DeviceStatus::new(0, DiskState::UpToDate) }],
        connections: vec![connection],
        ..ResourceStatus::new("r0")
    }
}

fn cause(code: &str, text: &str) -> Option<Cause> {
    Some(Cause { code: code.into(), text: text.into() })
}

fn with(change: impl FnOnce(&mut ResourceStatus)) -> ResourceStatus {
    let mut status = good();
    change(&mut status);
    status
}

fn disk(disk: DiskState) -> ResourceStatus {
    with(|r| r.devices[0].disk = disk)
}

fn unconnected(change: impl FnOnce(&mut ConnectionStatus)) -> ResourceStatus {
    with(|r| {
        let c = &mut r.connections[0];
        (c.connection, c.peer_role) = (ConnectionState::Connecting, Role::Unknown);
        c.peer_devices[0] = PeerDeviceStatus::new(0, ReplicationState::Off, DiskState::DUnknown);
        change(c);
    })
}

fn without_quorum() -> ResourceStatus {
    ResourceStatus { suspended: Suspended { quorum: true, ..Suspended::default() }, ..unconnected(|_| ()) }
}

fn alone(code: &str) -> ResourceStatus {
    unconnected(|c| (c.connection, c.cause) = (ConnectionState::StandAlone, cause(code, "why")))
}

/// Trying to connect, and refused for this the last time.
fn passing(code: &str) -> ResourceStatus {
    unconnected(|c| c.cause = cause(code, "why"))
}

/// A second peer, charlie, in that state, with this disk, beside the first one.
fn three(state: ConnectionState, disk: DiskState, change: impl FnOnce(&mut ResourceStatus)) -> ResourceStatus {
    with(|r| {
        let mut c = ConnectionStatus::new("charlie", state);
        let replication = match state {
            ConnectionState::Connected => ReplicationState::Established,
            _ => ReplicationState::Off,
        };
        c.peer_devices = vec![PeerDeviceStatus::new(0, replication, disk)];
        r.connections.push(c);
        change(r);
    })
}

fn split(c: &mut ConnectionStatus) {
    (c.connection, c.peer_role) = (ConnectionState::StandAlone, Role::Unknown);
    c.peer_devices[0] = PeerDeviceStatus::new(0, ReplicationState::Off, DiskState::DUnknown);
    c.peer_devices[0].cause = cause("split-brain", "split brain: both have changed");
}

/// So much is marked; `roles`: ours, the peer's.
fn marked(protocol: Option<u32>, roles: (Role, Role)) -> ResourceStatus {
    with(|r| {
        r.role = roles.0;
        (r.connections[0].protocol, r.connections[0].peer_role) = (protocol, roles.1);
        r.connections[0].peer_devices[0].statistics =
            Some(PeerDeviceStatistics { out_of_sync_sectors: 16, ..Default::default() });
    })
}

/// A second peer, which is refused, beside the first one.
fn beside_other(code: &str) -> ResourceStatus {
    with(|r| {
        let mut c = ConnectionStatus::new("charlie", ConnectionState::StandAlone);
        c.cause = cause(code, "why");
        c.peer_devices = vec![PeerDeviceStatus::new(0, ReplicationState::Off, DiskState::DUnknown)];
        r.connections.push(c);
    })
}

fn frozen_by(seconds: u64) -> Option<Asker> {
    Some(Asker { processes: vec![(7, "urbd".into()), (6, "sh".into())], user: "root".into(), seconds })
}

fn losses(seconds: u32, with_data: bool) -> Option<LinkLosses> {
    Some(LinkLosses { times: 9, seconds, with_data, holds: false, why: "why".into() })
}

fn attempt(attempt: Attempt) -> ResourceStatus {
    unconnected(|c| c.attempt = Some(attempt))
}

fn replicating(replication: ReplicationState, change: impl FnOnce(&mut PeerDeviceStatus)) -> ResourceStatus {
    with(|r| {
        let p = &mut r.connections[0].peer_devices[0];
        p.replication = replication;
        p.statistics = Some(PeerDeviceStatistics { out_of_sync_sectors: 2048 * 25, ..Default::default() });
        let (total, done) = (2048 * 100, 2048 * 5);
        p.sync = Some(SyncDetails { total_sectors: total, dt1_ms: 1000, db1_sectors: done, ..Default::default() });
        change(p);
    })
}

fn slowed(by: SlowedBy) -> ResourceStatus {
    replicating(ReplicationState::SyncSource, |p| p.sync.iter_mut().for_each(|s| s.slowed_by = Some(by)))
}

fn nobody_primary(mut r: ResourceStatus) -> ResourceStatus {
    r.role = Role::Secondary;
    r
}

fn paused(by: ResyncSuspended) -> ResourceStatus {
    replicating(ReplicationState::PausedSyncT, |p| p.resync_suspended = by)
}

fn peer_disk(disk: DiskState) -> ResourceStatus {
    with(|r| r.connections[0].peer_devices[0].peer_disk = disk)
}

/// The state, the code, and a part of what is said: of the sentence, and of what comes next.
#[rustfmt::skip]
fn table() -> Vec<(ResourceStatus, &'static str, &'static str, &'static str)> {
    let no = ResyncSuspended::default();
    vec![
        (with(|r| r.suspended = Suspended { user: true, ..Suspended::default() }), "frozen-user", "frozen, because somebody asked", "urbd resume-io r0"),
        (with(|r| (r.suspended.user, r.frozen_for) = (true, std::num::NonZeroU32::new(9))), "frozen-user", "somebody asked for it (suspend-io). It goes on by itself in 9 s (--lease).", "when whoever needs it has ended: urbd resume-io r0"),
        (with(|r| (r.suspended.user, r.frozen_by) = (true, frozen_by(150))), "frozen-user", "frozen for 2 minutes, because user root asked for it (suspend-io): process 7 (urbd), started by process 6 (sh).", "when whoever needs it has ended: urbd resume-io r0"),
        (with(|r| r.suspended = Suspended { no_data: true, ..Suspended::default() }), "frozen-no-data", "no UpToDate data is in reach", "on bravo: urbd adjust r0; or, if this node's disk was lost last: urbd attach r0"),
        (with(|r| {
            r.suspended = Suspended { no_data: true, ..Suspended::default() };
            r.connections.clear();
        }), "frozen-no-data", "no UpToDate data is in reach", "if this node's disk was lost last: urbd attach r0"),
        (with(|r| r.suspended = Suspended { fencing: true, ..Suspended::default() }), "frozen-fencing", "fence-peer handler", "urbd resume-io r0"),
        (without_quorum(), "frozen-quorum", "too few nodes", "on bravo: urbd adjust r0; if they are off for good, here: urbd resource-options --quorum=off r0"),
        (with(|r| r.force_io_failures = true), "io-fails-by-force", "secondary --force", "urbd secondary r0"),
        (with(|r| r.cause = cause("waits-to-be-primary", "it waits")), "waits-to-be-primary", "It waits.", "on bravo, which is to be reached again: urbd adjust r0; without that, if it is surely not Primary, here: urbd resume-io r0"),
        (with(|r| r.cause = cause("replaced-meanwhile", "the peer became Primary")), "replaced-meanwhile", "The peer became Primary.", "unmount it here; where it is to be used: urbd primary r0"),
        (with(|r| {
            (r.role, r.connections[0].peer_role) = (Role::Secondary, Role::Primary);
            r.cause = cause("replaced-meanwhile", "the peer became Primary");
        }), "replaced-meanwhile", "The peer became Primary.", "to have it here again: on bravo, urbd secondary r0; here, urbd primary r0"),
        (with(|r| r.role = Role::Secondary), "nobody-primary", "cannot be opened or mounted", "where it is to be used: urbd primary r0"),
        (with(|r| {
            r.role = Role::Secondary;
            r.connections[0].connection = ConnectionState::Connecting;
        }), "nobody-primary", "in reach", "if bravo is surely not Primary: urbd primary r0"),
        (three(ConnectionState::Connecting, DiskState::DUnknown, |r| {
            r.role = Role::Secondary;
            r.connections[0].connection = ConnectionState::Connecting;
        }), "nobody-primary", "in reach", "if surely none of bravo or charlie is Primary: urbd primary r0"),
        (with(|r| (r.role, r.opening) = (Role::Secondary, Opening::Promotes)), "nobody-primary", "whoever opens the device for writing", "where it is to be used: urbd primary r0"),
        (with(|r| r.opening = Opening::PromotesByDialect), "opening-promotes", "makes its node Primary from now on", "as it was: options { auto-promote no; }, or as it is now: options { auto-promote yes; }; then: urbd adjust r0"),
        (with(|r| (r.role, r.connections[0].peer_role) = (Role::Secondary, Role::Primary)), "primary-elsewhere", "used on bravo only", "on bravo, urbd secondary r0; here, urbd primary r0"),
        (with(|r| (r.devices[0].disk, r.devices[0].cause) = (DiskState::Diskless, cause("disk-given-up", "the disk failed and is given up"))), "disk-missing", "keeps no copy (the disk failed and is given up)", "/dev/sdb1 works again: urbd attach r0/0"),
        (three(ConnectionState::Connected, DiskState::UpToDate, |r| {
            (r.devices[0].disk, r.connections[0].protocol) = (DiskState::Diskless, Some(124));
        }), "disk-missing", "reads and writes are done by the peers.", "urbd secondary r0; urbd attach r0"),
        (disk(DiskState::Failed), "disk-failed", "being given up", "urbd attach r0/0"),
        (disk(DiskState::Detaching), "disk-failed", "being given up", "urbd attach r0/0"),
        (peer_disk(DiskState::Inconsistent), "one-good-copy", "One good copy of the data is left, on this node.", ""),
        (disk(DiskState::Outdated), "one-good-copy", "One good copy of the data is left, on bravo.", ""),
        (disk(DiskState::Attaching), "disk-attaching", "being attached", ""),
        (disk(DiskState::Negotiating), "disk-negotiating", "waits for the peer", ""),
        (disk(DiskState::Inconsistent), "disk-inconsistent", "part old and part new", "urbd invalidate r0/0 copies bravo's"),
        (with(|r| {
            (r.devices[0].disk, r.devices[0].fresh) = (DiskState::Inconsistent, true);
            r.connections[0].connection = ConnectionState::Connecting;
        }), "disk-new", "no data yet", "to copy another node's data, on bravo: urbd adjust r0; if all disks are new, on one node: urbd primary --force r0"),
        (with(|r| (r.devices[0].disk, r.devices[0].fresh) = (DiskState::Inconsistent, true)), "disk-new", "no data yet", "urbd invalidate r0/0 copies bravo's"),
        (with(|r| (r.devices[0].disk, r.connections[0].peer_devices[0].peer_disk) = (DiskState::Inconsistent, DiskState::Inconsistent)), "no-good-copy", "No node in reach has good data", "urbd primary --force r0"),
        (with(|r| (r.devices[0].disk, r.connections[0].connection) = (DiskState::Inconsistent, ConnectionState::Connecting)), "disk-inconsistent", "part old and part new", "bring bravo back (there: urbd adjust r0)"),
        (disk(DiskState::Outdated), "disk-outdated", "old data", "urbd invalidate r0/0"),
        (with(|r| (r.devices[0].disk, r.connections[0].peer_devices[0].peer_disk) = (DiskState::Outdated, DiskState::Outdated)), "disk-outdated", "old data", "on a node with good data: urbd status r0"),
        (three(ConnectionState::Connected, DiskState::UpToDate, |r| {
            r.devices[0].disk = DiskState::Inconsistent;
            r.connections[0].protocol = Some(124);
            r.connections[0].peer_devices[0].peer_disk = DiskState::Inconsistent;
        }), "disk-inconsistent", "part old and part new", "stop the applications here; urbd secondary r0; urbd invalidate r0/0 copies charlie's"),
        (three(ConnectionState::Connected, DiskState::UpToDate, |r| {
            (r.role, r.devices[0].disk) = (Role::Secondary, DiskState::Inconsistent);
            (r.connections[0].protocol, r.connections[0].peer_role) = (Some(124), Role::Primary);
            r.connections[0].peer_devices[0].peer_disk = DiskState::Inconsistent;
        }), "disk-inconsistent", "part old and part new", "on bravo, stop the applications; urbd secondary r0; then here, urbd invalidate r0/0 copies charlie's"),
        (disk(DiskState::Consistent), "survivors-agreeing", "agree on who has the newest data", ""),
        (with(|r| (r.devices[0].disk, r.connections[0].connection) = (DiskState::Consistent, ConnectionState::Connecting)), "disk-maybe-old", "not known yet", "bring bravo back (there: urbd adjust r0); if the peer is gone for good, here: urbd primary --force r0"),
        (three(ConnectionState::Connecting, DiskState::DUnknown, |r| {
            (r.devices[0].disk, r.connections[0].connection) = (DiskState::Consistent, ConnectionState::Connecting);
        }), "disk-maybe-old", "not known yet", "bring bravo or charlie back (there: urbd adjust r0); if all others are gone for good"),
        (three(ConnectionState::Connecting, DiskState::DUnknown, |r| r.devices[0].disk = DiskState::Outdated), "disk-outdated", "old data", "bring charlie back (there: urbd adjust r0); if that is gone for good, what bravo has is copied by itself"),
        (three(ConnectionState::Connecting, DiskState::DUnknown, |r| r.devices[0].disk = DiskState::Inconsistent), "disk-inconsistent", "part old and part new", "urbd invalidate r0/0 copies bravo's; if that is refused, bring charlie back (there: urbd adjust r0)"),
        (with(|r| (r.devices[0].disk, r.connections[0].connection) = (DiskState::Outdated, ConnectionState::StandAlone)), "disk-outdated", "old data", "urbd connect r0:bravo"),
        (with(|r| (r.devices[0].disk, r.devices[0].cause) = (DiskState::Outdated, cause("no-fencing-to-wait-for", "disk is UpToDate: metadata"))), "disk-outdated", "before the newer data is here.", "urbd invalidate r0/0"),
        (with(|r| {
            (r.role, r.devices[0].disk) = (Role::Secondary, DiskState::Outdated);
            r.connections[0].connection = ConnectionState::Connecting;
        }), "nobody-primary", "cannot be opened or mounted.", ""),
        (with(|r| (r.devices[0].quorum, r.devices[0].votes) = (false, Some("1 of 3".into()))), "no-quorum", "too few nodes are in reach (1 of 3).", ""),
        (with(|r| r.devices[0].cause = cause("activity-log-damaged", "one block")), "activity-log-damaged", "One block.", ""),
        (attempt(Attempt::Refused), "refused", "refuses connections to 10.0.0.2:7788", "on bravo, which starts or connects it: urbd adjust r0"),
        (attempt(Attempt::TimedOut), "no-answer", "nothing answers at 10.0.0.2:7788", "ping -c 3 10.0.0.2"),
        (with(|r| r.connections[0].losses = losses(60, true)), "link-unsteady", "bravo comes and goes: it was lost 9 times in the last minute, each time while data was on its way; the last time: why.", "ping -c 3 -M do -s 1472 10.0.0.2"),
        (with(|r| r.connections[0].losses = losses(60, true).map(|l| LinkLosses { holds: true, ..l })), "link-unsteady", "it was lost 9 times in the last minute, each time while data was on its way; the last time: why. Now it holds.", ""),
        (unconnected(|c| c.losses = losses(300, false)), "link-unsteady", "it was lost 9 times in the last 5 minutes; the last time: why.", "on bravo: urbd why r0"),
        (attempt(Attempt::Unreachable), "no-route", "no route leads to 10.0.0.2:7788", "ip route get 10.0.0.2"),
        (attempt(Attempt::NobodyThere), "nobody-there", "nobody has the address 10.0.0.2", "ping -c 3 10.0.0.2"),
        (unconnected(|c| (c.attempt, c.cause) = (Some(Attempt::Refused), cause("peer-disconnected", "the peer disconnects"))), "peer-left", "disconnected because somebody asked for it there", "on bravo: urbd adjust r0"),
        (attempt(Attempt::Ended), "ended-at-once", "who answers at 10.0.0.2:7788 ends", "must be 10.0.0.1"),
        (attempt(Attempt::PortTaken), "port-taken", "another program listens on 10.0.0.1:7788", "ss -ltnp"),
        (attempt(Attempt::NoSuchAddress), "no-such-address", "10.0.0.1:7788 is not an address of this machine", "ip address"),
        (unconnected(|c| c.stranger = Some("10.0.0.9".into())), "unknown-address", "Somebody connects from 10.0.0.9, and is not let in: bravo is to be at 10.0.0.2:7788.", "urbd adjust r0"),
        (attempt(Attempt::Failed("Permission denied".into())), "not-reached", "Permission denied", "urbd why r0"),
        (unconnected(|c| c.failed_authentications = 2), "wrong-secret", "the shared secrets differ", "urbd adjust r0"),
        (unconnected(|c| c.cause = cause("incompatible-versions", "it speaks 70 to 80")), "incompatible-versions", "speaks no protocol version that this node speaks: it speaks 70 to 80", "upgrade"),
        (unconnected(|c| c.cause = cause("ping-timeout", "the peer does not answer")), "ping-timeout", "bravo is not connected: the peer does not answer.", "ping -c 3 10.0.0.2; on bravo: urbd status r0"),
        (unconnected(|c| c.cause = cause("link-lost", "the peer closed it")), "link-lost", "bravo is not connected: the peer closed it.", "on bravo: urbd status r0"),
        (unconnected(|c| c.cause = cause("another-came-first", "bravo is let in later")), "another-came-first", "let in later.", ""),
        (three(ConnectionState::Connecting, DiskState::DUnknown, |r| {
            (r.connections[0].protocol, r.connections[1].cause) = (Some(101), cause("another-came-first", "bravo speaks DRBD 8.4's protocol, as yet"));
        }), "another-came-first", "as yet.", "make the file of bravo as it is here; then on bravo: urbd adjust r0"),
        (unconnected(|_| ()), "connecting", "being tried", "on bravo: urbd status r0"),
        (unconnected(|c| c.connection = ConnectionState::StandAlone), "disconnected", "somebody asked for it (disconnect)", "urbd connect r0:bravo"),
        (unconnected(|c| (c.connection, c.cause) = (ConnectionState::StandAlone, cause("unrelated-data", "no common generation; not connecting any more"))), "unrelated-data", "not trying: no common generation.", "urbd create-md r0; urbd up r0; on the other: urbd connect r0"),
        (unconnected(|c| {
            (c.connection, c.cause) = (ConnectionState::StandAlone, cause("unrelated-data", "no common generation"));
            c.peer_devices[0].cause = cause("split-brain", "split brain");
        }), "unrelated-data", "not trying: no common generation.", "urbd create-md r0"),
        (passing("peer-disk-too-small"), "peer-disk-too-small", "not connected: why.", "give bravo a disk as large"),
        (passing("own-disk-too-small"), "own-disk-too-small", "not connected: why.", "give this node a disk as large as that of bravo"),
        (passing("exposed-data-differs"), "exposed-data-differs", "not connected: why.", "urbd attach r0"),
        (with(|r| {
            (r.devices[0].disk, r.connections[0]) = (DiskState::Outdated, passing("exposed-data-differs").connections.remove(0));
        }), "exposed-data-differs", "not connected: why.", "or stop the applications here; urbd secondary r0"),
        (alone("primary-would-be-target"), "primary-would-be-target", "not trying: why.", "urbd secondary r0; urbd connect r0:bravo"),
        (passing("primary-is-outdated"), "primary-is-outdated", "not connected: why.", "stop the applications here; urbd secondary r0"),
        (three(ConnectionState::StandAlone, DiskState::DUnknown, |r| r.connections[1].cause = cause("primary-would-be-target", "why")), "primary-would-be-target", "not trying: why.", "Throw it away: on charlie, urbd connect --discard-my-data r0; here, urbd connect r0:charlie. Keep it: stop the applications here; urbd secondary r0; urbd connect r0:charlie"),
        (alone("connect-refused"), "connect-refused", "not trying: why.", "on bravo, which says why: urbd status r0; then here: urbd connect r0:bravo"),
        (alone("handshake-refused"), "handshake-refused", "not trying: why.", "on bravo, which says why: urbd status r0; then here: urbd connect r0:bravo"),
        (alone("connection-not-usable"), "connection-not-usable", "not trying: why.", "correct the file; then: urbd adjust r0"),
        (alone("second-primary"), "second-primary", "not trying: why.", "urbd secondary r0; then here and on bravo: urbd connect r0"),
        (passing("second-primary"), "second-primary", "not connected: why.", "urbd secondary r0; they connect by themselves then"),
        (passing("primary-would-be-target"), "primary-would-be-target", "not connected: why.", "stop the applications here, as bravo has newer data; urbd secondary r0; they connect"),
        (alone("too-many-volumes"), "too-many-volumes", "not trying: why.", "then on both: urbd adjust r0"),
        (alone("no-integrity"), "no-integrity", "not trying: why.", "then on both: urbd adjust r0"),
        (alone("survivor-insists"), "survivor-insists", "not trying: why.", "urbd connect --discard-my-data r0:bravo; to keep it: first invalidate the disk of bravo; then here: urbd connect r0:bravo"),
        (alone("two-primaries"), "two-primaries", "not trying: why.", "urbd secondary r0; then on both: urbd connect r0"),
        (passing("source-is-inconsistent"), "source-is-inconsistent", "not connected: why.", "finish the resync"),
        (three(ConnectionState::StandAlone, DiskState::DUnknown, |r| r.connections[1].cause = cause("not-the-only-peer", "it speaks DRBD 8.4's protocol")), "not-the-only-peer", "not trying", "urbd connect r0:charlie; to have all connected: take a protocol-version-max of 8.4's out of all files, then on each node that runs: urbd adjust r0"),
        (alone("both-discard-my-data"), "both-discard-my-data", "not trying: why.", "without --discard-my-data: urbd connect r0"),
        (beside_other("not-the-only-peer"), "not-the-only-peer", "Not connected to charlie and not trying: why.", "to have charlie instead: urbd disconnect r0:bravo; urbd connect r0:charlie"),
        (alone("wire-protocol-differs"), "wire-protocol-differs", "not trying: why.", "equal on both nodes; then on both: urbd adjust r0"),
        (alone("congestion"), "congestion", "not trying: why.", "set that right; then: urbd connect r0:bravo"),
        (unconnected(|c| {
            c.connection = ConnectionState::StandAlone;
            c.peer_devices[0].cause = cause("split-brain", "split brain: this node has changed 8 KiB, the peer 4 KiB");
        }), "split-brain", "Split brain: this node has changed 8 KiB, the peer 4 KiB.", "This node's: urbd secondary r0; urbd connect --discard-my-data r0:bravo; on bravo: urbd connect r0. Those of bravo: on bravo, urbd secondary r0; urbd connect --discard-my-data r0; here: urbd connect r0:bravo. None: copy"),
        (three(ConnectionState::Connected, DiskState::UpToDate, |r| split(&mut r.connections[0])), "split-brain", "Split brain: both have changed.", "Those of bravo: on bravo, urbd secondary r0; urbd connect --discard-my-data r0; then here and on charlie: urbd connect r0. This node's, which charlie has as well: here and on charlie, urbd secondary r0; urbd connect --discard-my-data r0:bravo; on bravo: urbd connect r0."),
        (three(ConnectionState::Connected, DiskState::UpToDate, |r| r.connections.iter_mut().for_each(split)), "split-brain", "Split brain", "This node's: urbd secondary r0; urbd connect --discard-my-data r0; on each other node: urbd connect r0."),
        (three(ConnectionState::Connected, DiskState::UpToDate, |r| {
            r.connections.iter_mut().for_each(split);
            r.connections.swap(0, 1);
        }), "split-brain", "Split brain", "This node's: urbd secondary r0"),
        (unconnected(|c| c.connection = ConnectionState::Disconnecting), "disconnecting", "being closed", ""),
        (with(|r| r.connections[0].statistics = Some(ConnectionStatistics { congested: true, ..Default::default() })), "congested", "waits to be sent", ""),
        (slowed(SlowedBy::Limit), "resync", "to bravo: 75.0 % done, 5.0 MiB/s, 0:00:05 left, limited by the configured rate", "urbd wait-sync r0"),
        (slowed(SlowedBy::Application), "resync", "making way for applications", "urbd wait-sync r0"),
        (nobody_primary(slowed(SlowedBy::Application)), "resync", "0:00:05 left.", "urbd wait-sync r0"),
        (slowed(SlowedBy::Disk), "resync", "as fast as this node's disk", "urbd wait-sync r0"),
        (slowed(SlowedBy::Network), "resync", "as fast as the network", "urbd wait-sync r0"),
        (slowed(SlowedBy::Peer), "resync", "waiting for the network or the peer's disk", "urbd wait-sync r0"),
        (slowed(SlowedBy::Requests), "resync", "as fast as the peer asks", "urbd wait-sync r0"),
        (replicating(ReplicationState::SyncTarget, |_| ()), "resync", "from bravo: 75.0 % done", "urbd wait-sync r0"),
        (paused(ResyncSuspended { user: true, ..no }), "resync-paused", "asked for it here", "urbd resume-sync r0:bravo/0"),
        (paused(ResyncSuspended { peer: true, ..no }), "resync-paused", "bravo asked for it", "on bravo: urbd status r0; urbd resume-sync r0"),
        (paused(ResyncSuspended { dependency: true, ..no }), "resync-paused", "resync-after", ""),
        (paused(ResyncSuspended { max_parallel: true, ..no }), "resync-paused", "other resyncs", ""),
        (replicating(ReplicationState::VerifyS, |_| ()), "verify", "being compared with bravo", ""),
        (replicating(ReplicationState::Ahead, |_| ()), "congestion", "this node no longer sends each write to bravo", "congestion-fill"),
        (replicating(ReplicationState::Behind, |_| ()), "congestion", "bravo no longer sends each write to this node", "congestion-fill"),
        (peer_disk(DiskState::Diskless), "peer-disk-missing", "keeps no copy", "on bravo: urbd attach r0"),
        (peer_disk(DiskState::Failed), "peer-disk-missing", "keeps no copy", "on bravo: urbd attach r0"),
        (peer_disk(DiskState::Outdated), "peer-disk-outdated", "old data", "on bravo: urbd status r0"),
        (with(|r| (r.devices[0].disk, r.connections[0].peer_devices[0].peer_disk) = (DiskState::Diskless, DiskState::Outdated)), "peer-disk-outdated", "old data", "urbd attach r0; if it is gone for good, on bravo: urbd primary --force r0"),
        (with(|r| (r.devices[0].disk, r.connections[0].peer_devices[0].peer_disk) = (DiskState::Outdated, DiskState::Outdated)), "peer-disk-outdated", "old data", "to be kept: urbd primary --force r0"),
        (with(|r| {
            r.connections.push(ConnectionStatus::new("charlie", ConnectionState::Connected));
            r.connections[0].peer_devices[0].peer_disk = DiskState::Outdated;
        }), "peer-disk-outdated", "The disk of bravo has old data", "on bravo: urbd status r0"),
        (peer_disk(DiskState::Inconsistent), "peer-disk-inconsistent", "Inconsistent", "on bravo: urbd invalidate r0"),
        (replicating(ReplicationState::Established, |p| p.sync = None), "out-of-sync", "25600 KiB differ", "urbd disconnect r0:bravo; urbd connect r0:bravo"),
        (marked(Some(101), (Role::Primary, Role::Secondary)), "out-of-sync", "8 KiB differ between this node and bravo.", "urbd disconnect r0:bravo"),
        (marked(Some(118), (Role::Primary, Role::Secondary)), "out-of-sync", "8 KiB differ", "on bravo, whose copy of them is replaced: urbd invalidate r0/0"),
        (marked(Some(124), (Role::Primary, Role::Secondary)), "out-of-sync", "8 KiB differ", "on bravo, whose copy of them is replaced: urbd invalidate --reset-bitmap=no r0/0"),
        (marked(Some(124), (Role::Secondary, Role::Primary)), "out-of-sync", "8 KiB differ", "urbd invalidate --reset-bitmap=no r0/0 (this node's copy"),
        (marked(Some(124), (Role::Secondary, Role::Secondary)), "out-of-sync", "8 KiB differ", "on the node with the worse copy, which is replaced: urbd invalidate --reset-bitmap=no r0/0"),
        (three(ConnectionState::Connected, DiskState::UpToDate, |r| {
            r.role = Role::Secondary;
            r.connections[1].peer_role = Role::Primary;
            let p = &mut r.connections[0].peer_devices[0];
            p.statistics = Some(PeerDeviceStatistics { out_of_sync_sectors: 16, ..Default::default() });
        }), "marked-between-secondaries", "keep 8 KiB marked", "on it, urbd status r0"),
    ]
}

#[test]
fn every_state_has_its_sentence_and_command() {
    for (status, code, text, next) in table() {
        let found = matters(&status);
        let Some(m) = found.iter().find(|m| m.code == code) else { panic!("{code}: {found:?}") };
        assert!(m.text.contains(text), "{code}: {}", m.text);
        assert!(m.text.ends_with('.') && m.text.starts_with(char::is_alphanumeric), "{code}: {}", m.text);
        match &m.next {
            Some(said) => assert!(!next.is_empty() && said.contains(next), "{code}: {said}"),
            None => assert!(next.is_empty(), "{code}: nothing comes next"),
        }
    }
}

#[test]
fn every_code_has_a_row() {
    let rows: Vec<&str> = table().iter().map(|(_, code, ..)| *code).collect();
    let mut codes = 0;
    for line in SOURCES.iter().flat_map(|s| s.lines()) {
        for word in
            line.split('"').skip(1).step_by(2).filter(|_| line.contains("Weight::") || line.trim().ends_with("\","))
        {
            let is_code = word.contains('-') && word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            if is_code {
                codes += 1;
                assert!(rows.contains(&word), "no row for {word}");
            }
        }
    }
    assert!(codes > 25, "only {codes} codes were found: are they written otherwise now?");
}

/// One code has several sentences, each for another state.
#[test]
fn every_sentence_of_what_comes_next_has_a_row() {
    table().iter().for_each(|(status, ..)| drop(matters(status)));
    let made = SOURCES.iter().map(|s| s.matches("next!(").count()).sum::<usize>();
    let said = SAID.with_borrow(|said| said.iter().map(|s| s.split_whitespace().collect()).collect::<Vec<String>>());
    let literal = |source: &str| -> String {
        let quoted = source.trim_start().strip_prefix('"').expect("a sentence stands in the macro itself");
        quoted.split('"').next().unwrap_or_default().replace('\\', "").split_whitespace().collect()
    };
    let written = SOURCES.iter().flat_map(|s| s.split("next!(").skip(1)).map(literal);
    assert_eq!(written.filter(|sentence| !said.contains(sentence)).collect::<Vec<_>>(), [""; 0], "these have no row");
    assert!(made > 50, "only {made} sentences were found: are they written otherwise now?");
    let makers = SOURCES.iter().map(|s| s.matches("Next::new(").count()).sum::<usize>();
    assert_eq!(makers, 1, "sentences are made by the macro alone");
}

#[test]
fn nothing_is_said_of_what_is_well() {
    assert_eq!(matters(&good()), []);
    assert_eq!(lines(&good(), 80), "");
    let client = with(|r| (r.devices[0].disk, r.devices[0].client) = (DiskState::Diskless, IntentionalClient::Yes));
    assert_eq!(matters(&client), []);
    let on_purpose = with(|r| {
        let p = &mut r.connections[0].peer_devices[0];
        (p.peer_disk, p.peer_client) = (DiskState::Diskless, IntentionalClient::Yes);
    });
    assert_eq!(matters(&on_purpose), []);
}

/// All pairs of states of a disk and a connection, with and without a cause: each that is not good has a sentence.
#[test]
fn no_state_that_is_not_good_is_silent() {
    for connection in ConnectionState::ALL {
        for own in DiskState::ALL {
            for peers in DiskState::ALL {
                for replication in ReplicationState::ALL.iter().filter(|_| *connection == ConnectionState::Connected) {
                    let status = with(|r| {
                        r.devices[0].disk = *own;
                        let c = &mut r.connections[0];
                        c.connection = *connection;
                        c.peer_devices[0] = PeerDeviceStatus::new(0, *replication, *peers);
                    });
                    let well = *own == DiskState::UpToDate
                        && *replication <= ReplicationState::Established
                        && *peers >= DiskState::DUnknown;
                    // Passing: a resync is being agreed on.
                    let passing = !matters_of(&status).is_empty() || (2..=6).contains(&(*replication as usize));
                    let negotiating = matches!(peers, DiskState::Attaching | DiskState::Negotiating);
                    let off = *replication == ReplicationState::Off;
                    assert!(well || passing || negotiating || off, "{own} {connection} {replication} {peers}");
                }
                let status = unconnected(|c| c.connection = *connection);
                assert!(*connection == ConnectionState::Connected || !matters(&status).is_empty(), "{connection}");
            }
        }
    }
}

/// Two peers, each in any state: who is not well is told of, whatever the other one is.
#[test]
fn of_two_peers_neither_hides_the_other() {
    for first in ConnectionState::ALL {
        for second in ConnectionState::ALL {
            let status = three(*second, DiskState::DUnknown, |r| r.connections[0].connection = *first);
            for (name, state) in [("bravo", first), ("charlie", second)] {
                let told = matters(&status).iter().any(|m| m.object.starts_with(&format!("r0:{name}")));
                assert!(told || *state == ConnectionState::Connected, "{name}: {first} {second}");
            }
        }
    }
    let both = three(ConnectionState::Connected, DiskState::UpToDate, |r| r.connections.iter_mut().for_each(split));
    let next: Vec<_> = matters(&both).into_iter().filter_map(|m| m.next).collect();
    assert_eq!(next[1], "the choice is the same as for r0:bravo", "said once");
}

#[test]
fn of_several_resyncs_the_command_is_said_once() {
    let status = three(ConnectionState::Connected, DiskState::Inconsistent, |r| {
        for c in &mut r.connections {
            c.peer_devices[0].replication = ReplicationState::SyncSource;
            c.peer_devices.push(PeerDeviceStatus::new(1, ReplicationState::SyncSource, DiskState::Inconsistent));
        }
    });
    let next: Vec<_> = matters(&status).into_iter().map(|m| m.next).collect();
    assert_eq!(next, [Some("to wait for it: urbd wait-sync r0".to_owned()), None, None, None]);
}

fn matters_of(status: &ResourceStatus) -> Vec<String> {
    matters(status).into_iter().filter(|m| m.weight != Weight::Note).map(|m| m.code).collect()
}

#[test]
fn what_matters_most_comes_first() {
    let status = with(|r| {
        r.role = Role::Secondary;
        r.connections[0].connection = ConnectionState::Connecting;
        r.devices[0].disk = DiskState::Failed;
    });
    let weights: Vec<Weight> = matters(&status).iter().map(|m| m.weight).collect();
    assert_eq!(weights, [Weight::Error, Weight::Warning, Weight::Note]);
    assert!(lines(&status, 80).lines().all(|l| l.chars().count() <= 80 && l.starts_with("  ")));
    assert!(!lines(&status, 80).contains("mounted"), "notes are for `why`");
}

#[test]
fn long_words_are_not_cut() {
    assert_eq!(wrapped("a bb ccc", 0, 2, 4), "a bb\n  ccc\n");
    assert_eq!(wrapped("abcdefgh i", 2, 4, 5), "  abcdefgh\n    i\n");
}
