//! What is the matter with the peers: reached or not, and what is copied to or from them.

use super::{List, Next, Weight, next, sentence};
use crate::query;
use crate::states::{ConnectionState, DiskState, ReplicationState, Role};
use crate::status::{Attempt, Cause, ConnectionStatus, IntentionalClient, PeerDeviceStatus, ResourceStatus, SlowedBy};

impl List<'_> {
    pub(super) fn connection(&mut self, r: &ResourceStatus, c: &ConnectionStatus) {
        let who = Who { resource: &r.name, c };
        match c.connection {
            ConnectionState::Connected => {
                self.unsteady(&who);
                for p in &c.peer_devices {
                    self.peer_device(r, &who, p);
                }
                if c.statistics.is_some_and(|s| s.congested) {
                    let text = format!("The network to {} is congested: data waits to be sent.", who.name());
                    self.add(who.object(), Weight::Running, "congested", text, None);
                }
            }
            ConnectionState::StandAlone => self.stand_alone(r, &who),
            ConnectionState::Disconnecting | ConnectionState::TearDown => {
                let text = format!("The connection to {} is being closed.", who.name());
                self.add(who.object(), Weight::Running, "disconnecting", text, None);
            }
            _ => {
                self.not_reached(r, &who);
                self.stranger(&who);
            }
        }
    }

    /// Somebody connects who is not the peer: perhaps it is, and has another address than it is said to have.
    fn stranger(&mut self, who: &Who) {
        let (name, resource, (_, peer)) = (who.name(), who.resource, who.addresses());
        if let Some(from) = &who.c.stranger {
            let text = format!("Somebody connects from {from}, and is not let in: {name} is to be at {peer}.");
            let next = next!("if it is {name}: correct its address here; then: urbd adjust {resource}");
            self.add(who.object(), Weight::Warning, "unknown-address", text, Some(next));
        }
    }

    /// Given up, or never begun.
    fn stand_alone(&mut self, r: &ResourceStatus, who: &Who) {
        let (name, object) = (who.name(), who.object());
        if let Some(cause) = split_brain(who.c) {
            let next = ways_out(r, who);
            return self.add(object, Weight::Error, "split-brain", sentence(&cause.text), Some(next));
        }
        match &who.c.cause {
            Some(cause) => {
                let why = cause.text.trim_end_matches("; not connecting any more").trim_end_matches('.');
                let text = format!("Not connected to {name} and not trying: {why}.");
                let next = before_connecting(r, &cause.code, who);
                self.add(object, Weight::Error, &cause.code, text, Some(next));
            }
            None => {
                let text = format!("Not connected to {name} and not trying, as somebody asked for it (disconnect).");
                let next = next!("urbd connect {object}");
                self.add(object, Weight::Warning, "disconnected", text, Some(next));
            }
        }
    }

    /// It is being tried.
    fn not_reached(&mut self, r: &ResourceStatus, who: &Who) {
        let (name, resource, object) = (who.name(), who.resource, who.object());
        let (local, peer) = who.addresses();
        if who.c.failed_authentications > 0 {
            let text = format!("{name} is not let in, or does not let this node in: the shared secrets differ.");
            let next =
                next!("make cram-hmac-alg and shared-secret equal on both; then on both: urbd adjust {resource}");
            return self.add(object, Weight::Error, "wrong-secret", text, Some(next));
        }
        let cause = who.c.cause.as_ref();
        if let Some(cause) = cause.filter(|cause| cause.code == "incompatible-versions") {
            let text = format!("{name} speaks no protocol version that this node speaks: {}.", cause.text);
            let next = next!(
                "upgrade the older of the two nodes; beside DRBD 9.0.0 to 9.0.25, which speaks 110 to 117: urbd {{ \
                 protocol-version-max 101; }}"
            );
            return self.add(object, Weight::Error, "incompatible-versions", text, Some(next));
        }
        let left = cause.is_some_and(|cause| cause.code == "peer-disconnected");
        let (local_ip, peer_ip) = (local_address(who), peer_address(who));
        let (code, why, next) = match &who.c.attempt {
            Some(Attempt::Refused) if left => (
                "peer-left",
                format!("{name} has disconnected because somebody asked for it there (disconnect or down)"),
                next!("when it is to be connected again, on {name}: urbd adjust {resource}"),
            ),
            Some(Attempt::PortTaken) => (
                "port-taken",
                format!("{name} cannot reach this node: another program listens on {local}"),
                next!(
                    "find it with: ss -ltnp, or, if it is a connection of its own, ss -tnp; end it, or give the resource \
                     another port and: urbd adjust {resource}"
                ),
            ),
            Some(Attempt::NoSuchAddress) => (
                "no-such-address",
                format!("{name} is not reached: {local} is not an address of this machine"),
                next!("compare: ip address; and the address in the resource's section for this node"),
            ),
            Some(Attempt::Refused) => (
                "refused",
                format!("{name} is not reached: its machine refuses connections to {peer}, so nothing listens there"),
                next!(
                    "on {name}, which starts or connects it: urbd adjust {resource}; if that does not help, it may say why, \
                     there: urbd status {resource}; else compare addresses and ports on both"
                ),
            ),
            Some(Attempt::TimedOut) => (
                "no-answer",
                format!("{name} is not reached: nothing answers at {peer} (machine off, network cut, or a firewall)"),
                next!("ping -c 3 {peer_ip}; then look on {name} itself"),
            ),
            Some(Attempt::Unreachable) => (
                "no-route",
                format!("{name} is not reached: no route leads to {peer}"),
                next!("make one; this says if there is: ip route get {peer_ip}"),
            ),
            Some(Attempt::NobodyThere) => (
                "nobody-there",
                format!(
                    "{name} is not reached: nobody has the address {peer_ip}, so its machine, or the link to it, is off"
                ),
                next!(
                    "switch {name} on, or mend the link; when this answers it connects by itself: ping -c 3 {peer_ip}"
                ),
            ),
            Some(Attempt::Ended) => (
                "ended-at-once",
                format!("{name} is not reached: who answers at {peer} ends each connection at once"),
                next!("on {name}: urbd status {resource}; its address for this node must be {local_ip}"),
            ),
            Some(Attempt::Failed(error)) => {
                ("not-reached", format!("{name} is not reached at {peer}: {error}"), next!("urbd why {resource}"))
            }
            None if who.c.losses.is_some() => return self.unsteady(who),
            None => return self.lost(r, who),
        };
        self.add(object, Weight::Warning, code, format!("{why}."), Some(next));
    }

    /// A connection that is made again and again, and lost each time.
    fn unsteady(&mut self, who: &Who) {
        let Some(lost) = &who.c.losses else { return };
        let (name, resource, address) = (who.name(), who.resource, peer_address(who));
        let minutes = lost.seconds.div_ceil(60);
        let span = if minutes == 1 { "minute".to_owned() } else { format!("{minutes} minutes") };
        let data = if lost.with_data { ", each time while data was on its way" } else { "" };
        let why = if lost.why.is_empty() { String::new() } else { format!("; the last time: {}", lost.why) };
        let text = format!(
            "The connection to {name} comes and goes: it was lost {} times in the last {span}{data}{why}.",
            lost.times
        );
        if lost.holds {
            let text = format!("{} Now it holds.", text);
            return self.add(who.object(), Weight::Running, "link-unsteady", text, None);
        }
        // What makes the connection are small packets, and they pass.
        let next = match lost.with_data {
            true => {
                let size = if address.contains(':') { 1452 } else { 1472 };
                next!(
                    "small packets pass, so compare the MTU of all that is on the way: ping -c 3 -M do -s {size} \
                     {address}; if that is answered: on {name}: urbd why {resource}"
                )
            }
            false => next!("on {name}: urbd why {resource}"),
        };
        self.add(who.object(), Weight::Warning, "link-unsteady", text, Some(next));
    }

    /// A connection that ended, or was refused by one of the nodes.
    fn lost(&mut self, r: &ResourceStatus, who: &Who) {
        let (name, resource, object) = (who.name(), who.resource, who.object());
        match &who.c.cause {
            Some(cause) => {
                let text = format!("{name} is not connected: {}.", cause.text.trim_end_matches('.'));
                if let Some(next) = what_passes(r, &cause.code, who) {
                    return self.add(object, Weight::Error, &cause.code, text, Some(next));
                }
                let address = peer_address(who);
                let (weight, next) = match cause.code.as_str() {
                    "another-came-first" => {
                        let next = comes_later(r, cause);
                        let weight = if next.is_some() { Weight::Warning } else { Weight::Running };
                        return self.add(object, weight, &cause.code, text, next);
                    }
                    "ping-timeout" | "handshake-timeout" => {
                        (Weight::Warning, next!("ping -c 3 {address}; on {name}: urbd status {resource}"))
                    }
                    _ => (Weight::Warning, next!("on {name}: urbd status {resource}")),
                };
                self.add(object, weight, &cause.code, text, Some(next));
            }
            None => {
                let text = format!("{name} is not connected yet: it is being tried.");
                let next = next!("on {name}: urbd status {resource}");
                self.add(object, Weight::Warning, "connecting", text, Some(next));
            }
        }
    }

    fn peer_device(&mut self, r: &ResourceStatus, who: &Who, p: &PeerDeviceStatus) {
        use ReplicationState::{Ahead, Behind, PausedSyncS, PausedSyncT, SyncSource, SyncTarget, VerifyS, VerifyT};
        let (name, object, resource) = (who.name(), format!("{}/{}", who.object(), p.volume), &r.name);
        match p.replication {
            SyncSource | SyncTarget => {
                let to = if p.replication == SyncSource { "to" } else { "from" };
                let text = format!("Data is being copied {to} {name}: {}.", progress_words(r, p));
                self.add(
                    object,
                    Weight::Running,
                    "resync",
                    text,
                    Some(next!("to wait for it: urbd wait-sync {resource}")),
                );
            }
            PausedSyncS | PausedSyncT => self.paused(r, &object, &name, p),
            VerifyS | VerifyT => {
                let text = format!("The data is being compared with {name}: {}.", progress_words(r, p));
                self.add(object, Weight::Running, "verify", text, None);
            }
            Ahead | Behind => {
                let (from, to) = if p.replication == Ahead { ("this node", &*name) } else { (&*name, "this node") };
                let text =
                    format!("The network is too slow: {from} no longer sends each write to {to}, and resyncs later.");
                let next = next!("look at the network; or raise congestion-fill");
                self.add(object, Weight::Warning, "congestion", text, Some(next));
            }
            ReplicationState::Established => self.established(r, who, object, p),
            _ => {}
        }
    }

    fn paused(&mut self, r: &ResourceStatus, object: &str, name: &str, p: &PeerDeviceStatus) {
        let (why, resource) = (p.resync_suspended, &r.name);
        let (reason, next) = if why.user {
            ("somebody asked for it here (pause-sync)".to_owned(), Some(next!("urbd resume-sync {object}")))
        } else if why.dependency {
            ("another resync comes first (resync-after)".to_owned(), None)
        } else if why.max_parallel {
            ("enough other resyncs run".to_owned(), None)
        } else {
            let next = next!("on {name}: urbd status {resource}; urbd resume-sync {resource}");
            (format!("{name} asked for it"), Some(next))
        };
        let text =
            format!("The copying between this node and {name} is paused, because {reason}: {}.", progress_words(r, p));
        let weight = if why.dependency || why.max_parallel { Weight::Running } else { Weight::Warning };
        self.add(object.to_owned(), weight, "resync-paused", text, next);
    }

    fn established(&mut self, r: &ResourceStatus, who: &Who, object: String, p: &PeerDeviceStatus) {
        let (name, resource) = (who.name(), &r.name);
        match p.peer_disk {
            DiskState::Diskless if p.peer_client == IntentionalClient::Yes => {}
            DiskState::Diskless | DiskState::Failed | DiskState::Detaching => {
                let text = format!("{name} has no disk attached, and keeps no copy.");
                let next = next!("on {name}: urbd attach {resource}");
                self.add(object, Weight::Error, "peer-disk-missing", text, Some(next));
            }
            DiskState::Outdated => {
                let text = format!("The disk of {name} has old data, and is not being copied.");
                let next = newer_than_outdated(r, &name, p.volume);
                self.add(object, Weight::Warning, "peer-disk-outdated", text, Some(next));
            }
            // Said once, of this node's own disk.
            DiskState::Inconsistent if r.device(p.volume).is_some_and(|d| d.disk == DiskState::Inconsistent) => {}
            DiskState::Inconsistent => {
                // Perhaps it is copied from another node.
                let (whence, next) = match r.connections.len() > 1 {
                    true => (" from here", next!("on {name}: urbd status {resource}")),
                    false => ("", next!("on {name}: urbd invalidate {resource}")),
                };
                let text = format!("The disk of {name} is Inconsistent, and is not being copied{whence}.");
                self.add(object, Weight::Error, "peer-disk-inconsistent", text, Some(next));
            }
            _ => {
                let differ = p.statistics.map_or(0, |s| s.out_of_sync_sectors);
                if differ > 0 && r.device(p.volume).is_some_and(|d| d.disk == DiskState::UpToDate) {
                    self.out_of_sync(r, who, (object, p.volume), differ / 2);
                }
            }
        }
    }

    /// Blocks are marked as different, and nothing copies them.
    fn out_of_sync(&mut self, r: &ResourceStatus, who: &Who, (object, volume): (String, u16), kib: u64) {
        let (name, resource) = (who.name(), &r.name);
        let here = r.role == Role::Primary;
        let there = who.c.peer_role == Role::Primary;
        let third = r.connections.iter().find(|c| c.peer_role == Role::Primary && c.name != who.c.name);
        if let Some(third) = third.filter(|_| !here && !there) {
            // Who the Primary counts as the same is the same: they have marked more than they must.
            let text = format!(
                "This node and {name}, both Secondary, keep {kib} KiB marked as perhaps different, until nobody is Primary."
            );
            let third = &third.name;
            let next = next!("what {third} says counts: on it, urbd status {resource}");
            return self.add(object, Weight::Note, "marked-between-secondaries", text, Some(next));
        }
        let text = format!("{kib} KiB differ between this node and {name}.");
        // Connecting anew copies what is marked in 8.4's dialect only.
        let marked = match who.c.protocol {
            Some(120..) => "--reset-bitmap=no ",
            Some(118..) => "",
            _ => {
                let peer = who.object();
                let next = next!("urbd disconnect {peer}; urbd connect {peer} (the Primary's data is kept)");
                return self.add(object, Weight::Warning, "out-of-sync", text, Some(next));
            }
        };
        let next = match (here, there) {
            (true, _) => {
                next!("on {name}, whose copy of them is replaced: urbd invalidate {marked}{resource}/{volume}")
            }
            (_, true) => {
                next!("urbd invalidate {marked}{resource}/{volume} (this node's copy of them is replaced)")
            }
            _ => {
                next!("on the node with the worse copy, which is replaced: urbd invalidate {marked}{resource}/{volume}")
            }
        };
        self.add(object, Weight::Warning, "out-of-sync", text, Some(next));
    }
}

/// The disk of a connected peer is Outdated: where better data may be.
fn newer_than_outdated(r: &ResourceStatus, name: &str, volume: u16) -> Next {
    let (resource, several) = (&r.name, r.connections.len() > 1);
    match r.device(volume).map(|d| d.disk) {
        // To invalidate the peer's would leave no copy at all.
        Some(DiskState::Diskless) if !several => next!(
            "if this node's disk has newer data: urbd attach {resource}; if it is gone for good, on {name}: urbd primary \
             --force {resource}"
        ),
        Some(DiskState::Outdated) if !several => {
            next!("on the node whose data is to be kept: urbd primary --force {resource}")
        }
        // Among several nodes it may be on another one, which that node does not reach: it says so. Beside a good disk
        // of the same data it is not Outdated for long.
        _ => next!("on {name}: urbd status {resource}"),
    }
}

/// How far, how fast, how long still, and what it waits for: `12.3 % done, 45.0 MiB/s, 0:01:05 left, slowed by …`.
pub fn progress_words(r: &ResourceStatus, p: &PeerDeviceStatus) -> String {
    let mut words = format!("{:.1} % done", query::percent_done(r, p).unwrap_or_default());
    let rate = query::rate_mib_per_s(p);
    if rate > 0.0 {
        words += &format!(", {rate:.1} MiB/s");
    }
    if let Some(s) = query::seconds_left(p) {
        words += &format!(", {} left", query::clock(s));
    }
    match slowed_words(r, p) {
        Some(slowed) => words + ", " + slowed,
        None => words,
    }
}

/// What a running resync or verify waits for most; `None` if that is not known. Where nobody is Primary there are no
/// applications to make way for.
pub fn slowed_words(r: &ResourceStatus, p: &PeerDeviceStatus) -> Option<&'static str> {
    let somebody = r.role == Role::Primary || r.connections.iter().any(|c| c.peer_role == Role::Primary);
    Some(match p.sync?.slowed_by? {
        SlowedBy::Application if !somebody => return None,
        SlowedBy::Limit => "limited by the configured rate",
        SlowedBy::Application => "making way for applications",
        SlowedBy::Disk => "as fast as this node's disk",
        SlowedBy::Network => "as fast as the network",
        SlowedBy::Peer => "waiting for the network or the peer's disk",
        SlowedBy::Requests => "as fast as the peer asks",
    })
}

/// What is known of a split brain with that peer.
fn split_brain(c: &ConnectionStatus) -> Option<&Cause> {
    // Whose data never had anything in common with this node's has not parted from it.
    let unrelated = c.cause.as_ref().is_some_and(|cause| cause.code == "unrelated-data");
    let given_up = c.connection == ConnectionState::StandAlone && !unrelated;
    let causes = c.peer_devices.iter().filter(|_| given_up).filter_map(|p| p.cause.as_ref());
    causes.into_iter().find(|cause| cause.code == "split-brain")
}

/// How a split brain ends. Nodes that are connected have the same data: all of one side give it up, or none.
fn ways_out(r: &ResourceStatus, who: &Who) -> Next {
    let (name, resource, object) = (who.name(), who.resource, who.object());
    let first = r.connections.iter().find(|c| split_brain(c).is_some());
    if let Some(first) = first.filter(|first| first.name != who.c.name) {
        let first = Who { resource, c: first }.object();
        return next!("the choice is the same as for {first}");
    }
    let beside = r.connections.iter().filter(|c| c.connection == ConnectionState::Connected);
    let beside = beside.map(|c| Who { resource, c }.name()).collect::<Vec<_>>().join(" and ");
    let others = r.connections.iter().filter(|c| split_brain(c).is_some()).count();
    if others > 1 {
        return next!(
            "choose whose changes are thrown away. This node's: urbd secondary {resource}; urbd connect \
             --discard-my-data {resource}; on each other node: urbd connect {resource}. Those of the others: the same \
             on them, and here urbd connect {resource}. None: copy the data of one node elsewhere first (mount it \
             there), then discard that node's"
        );
    }
    if !beside.is_empty() {
        return next!(
            "choose whose changes are thrown away. Those of {name}: on {name}, urbd secondary {resource}; urbd connect \
             --discard-my-data {resource}; then here and on {beside}: urbd connect {resource}. This node's, which \
             {beside} has as well: here and on {beside}, urbd secondary {resource}; urbd connect --discard-my-data \
             {object}; on {name}: urbd connect {resource}. None: copy the data of one node elsewhere first (mount it \
             there), then discard that node's"
        );
    }
    next!(
        "choose whose changes are thrown away. This node's: urbd secondary {resource}; urbd connect --discard-my-data \
         {object}; on {name}: urbd connect {resource}. Those of {name}: on {name}, urbd secondary {resource}; urbd \
         connect --discard-my-data {resource}; here: urbd connect {object}. None: copy \
         the data of one node elsewhere first (mount it there), then discard that node's"
    )
}

/// What a node lacks for the two to be connected, which they go on trying.
fn what_passes(r: &ResourceStatus, code: &str, who: &Who) -> Option<Next> {
    let (name, resource, object) = (who.name(), who.resource, who.object());
    let next = match code {
        "peer-disk-too-small" => {
            next!(
                "give {name} a disk as large as this node's, or larger; they connect by themselves then: urbd \
                 wait-connect {object}"
            )
        }
        "own-disk-too-small" => {
            next!(
                "give this node a disk as large as that of {name}; they connect by themselves then: urbd wait-connect \
                 {object}"
            )
        }
        "source-is-inconsistent" => next!("finish the resync of this node from where its data is"),
        // The own disk is attached, and is too old.
        "exposed-data-differs" | "peer-lacks-own-writes" if r.devices.iter().any(|d| is_old(d.disk)) => {
            next!("give {name} back the disk that it had; or stop the applications here; urbd secondary {resource}")
        }
        "exposed-data-differs" | "peer-lacks-own-writes" => {
            next!("give {name} back the disk that it had; or, if this node's own disk has all: urbd attach {resource}")
        }
        "primary-is-outdated" => next!("stop the applications here; urbd secondary {resource}"),
        // With rr-conflict retry-connect.
        "two-primaries" | "second-primary" => next!(
            "on the node that is to be Secondary, stop the applications; urbd secondary {resource}; they connect by \
             themselves then"
        ),
        "primary-would-be-target" => next!(
            "stop the applications here, as {name} has newer data; urbd secondary {resource}; they connect by themselves then"
        ),
        _ => return None,
    };
    Some(next)
}

/// Another one came first. While that one is being connected it goes on by itself; one that speaks 8.4's dialect, and
/// need not, has not been told what this node has.
fn comes_later(r: &ResourceStatus, cause: &Cause) -> Option<Next> {
    let old = |c: &&ConnectionStatus| c.protocol.is_some_and(|version| version < 118) && cause.text.contains("8.4");
    let connected = r.connections.iter().filter(|c| c.connection == ConnectionState::Connected);
    let others = connected.filter(old).map(|c| c.name.as_str()).collect::<Vec<_>>().join(" and ");
    let name = &r.name;
    (!others.is_empty()).then(|| next!("make the file of {others} as it is here; then on {others}: urbd adjust {name}"))
}

fn is_old(disk: DiskState) -> bool {
    matches!(disk, DiskState::Inconsistent | DiskState::Outdated | DiskState::Consistent)
}

/// What to do before the nodes connect again, by the reason why they did not.
fn before_connecting(r: &ResourceStatus, code: &str, who: &Who) -> Next {
    let (name, resource, object) = (who.name(), who.resource, who.object());
    match code {
        "unrelated-data" => next!(
            "on the node whose data is not wanted: urbd down {resource}; urbd create-md {resource}; urbd up {resource}; \
             on the other: urbd connect {resource}"
        ),
        "primary-would-be-target" => {
            // 8.4's dialect gives up a copy after a split brain only.
            match r.connections.len() > 1 {
                false => next!(
                    "{name} has newer data: stop the applications here; urbd secondary {resource}; urbd connect \
                     {object}; on {name}: urbd connect {resource}"
                ),
                true => next!(
                    "{name} has something that this node lacks. Throw it away: on {name}, urbd connect \
                     --discard-my-data {resource}; here, urbd connect {object}. Keep it: stop the applications here; \
                     urbd secondary {resource}; urbd connect {object}; on {name}: urbd connect {resource}"
                ),
            }
        }
        "connect-refused" | "handshake-refused" => {
            next!("on {name}, which says why: urbd status {resource}; then here: urbd connect {object}")
        }
        "connection-not-usable" => next!("correct the file; then: urbd adjust {resource}"),
        "two-primaries" => {
            next!(
                "on the node that is to be Secondary, stop the applications; urbd secondary {resource}; then on both: \
                 urbd connect {resource}"
            )
        }
        "too-many-volumes" => next!(
            "take a protocol-version-max below 100 out of the files; or, where the other node speaks no newer one, give \
             each volume a resource of its own; then on both: urbd adjust {resource}"
        ),
        "no-integrity" => next!(
            "take data-integrity-alg, or a protocol-version-max below 87, out of the files; then on both: urbd adjust \
             {resource}"
        ),
        "survivor-insists" => next!(
            "to give up what was written here last: urbd connect --discard-my-data {object}; to keep it: first \
             invalidate the disk of {name}; then here: urbd connect {object}"
        ),
        "second-primary" => {
            next!(
                "on the node that is to be Secondary, stop the applications; urbd secondary {resource}; then here and on \
                 {name}: urbd connect {resource}"
            )
        }
        "not-the-only-peer" => {
            let others = r.connections.iter().filter(|other| other.connection == ConnectionState::Connected);
            let leave = others.map(|other| format!("urbd disconnect {}; ", Who { resource, c: other }.object()));
            let leave = leave.collect::<String>();
            let old = who.c.cause.as_ref().is_some_and(|cause| cause.text.contains("8.4"));
            match old {
                false => next!("to have {name} instead: {leave}urbd connect {object}"),
                true => next!(
                    "to have {name} instead: {leave}urbd connect {object}; to have all connected: take a \
                     protocol-version-max of 8.4's out of all files, then on each node that runs: urbd adjust {resource}"
                ),
            }
        }
        "both-discard-my-data" => {
            next!("on the node whose data is to be kept, without --discard-my-data: urbd connect {resource}")
        }
        _ if code.ends_with("-differs") => {
            next!("make the option equal on both nodes; then on both: urbd adjust {resource}")
        }
        _ => next!("set that right; then: urbd connect {object}"),
    }
}

/// A peer, for sentences.
struct Who<'a> {
    resource: &'a str,
    c: &'a ConnectionStatus,
}

impl Who<'_> {
    fn name(&self) -> String {
        match (self.c.name.as_str(), self.c.peer_node_id) {
            ("", Some(id)) => format!("node {id}"),
            ("", None) => "the peer".to_owned(),
            (name, _) => name.to_owned(),
        }
    }

    fn object(&self) -> String {
        match (self.c.name.as_str(), self.c.peer_node_id) {
            ("", Some(id)) => format!("{}:{id}", self.resource),
            ("", None) => self.resource.to_owned(),
            (name, _) => format!("{}:{name}", self.resource),
        }
    }

    /// Ours and the peer's.
    fn addresses(&self) -> (String, String) {
        let path = self.c.paths.first();
        let words = |a: Option<&crate::PathAddress>| match a {
            Some(a) if a.address.contains(':') => format!("[{}]:{}", a.address, a.port),
            Some(a) => format!("{}:{}", a.address, a.port),
            None => "its address".to_owned(),
        };
        (words(path.map(|p| &p.local)), words(path.map(|p| &p.peer)))
    }
}

fn peer_address(who: &Who) -> String {
    who.c.paths.first().map(|p| p.peer.address.clone()).unwrap_or_default()
}

fn local_address(who: &Who) -> String {
    who.c.paths.first().map(|p| p.local.address.clone()).unwrap_or_default()
}
