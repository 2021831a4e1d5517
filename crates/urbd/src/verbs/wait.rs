//! `wait-connect` and `wait-sync` (`docs/spec/config-and-cli.md` 4.6).

use std::io;
use std::time::{Duration, Instant};

use control::client::ClientError;
use control::query::{self, WaitFor, wait_progress};
use control::{
    ConnectionState, ConnectionStatus, DiskState, Event, PeerDeviceStatus, ReplicationState, ResourceStatus,
};

use crate::cli::Call;
use crate::objects::Target;
use crate::problem::{Problem, exit};
use crate::progress::{Done, Progress};

pub(crate) fn connect(call: &Call, target: &Target) -> Result<u8, Problem> {
    wait(call, target, WaitFor::Connect)
}

pub(crate) fn sync(call: &Call, target: &Target) -> Result<u8, Problem> {
    wait(call, target, WaitFor::Sync)
}

/// Waits for the end of a verify that was just begun, and of the copying if it repairs; prints how much differs. Exit
/// status 4: something does.
///
/// # Errors
/// Exit 10: it was interrupted.
pub(crate) fn verified(call: &Call, target: &Target) -> Result<u8, Problem> {
    let resource = &target.name.resource;
    let failed = |e: ClientError| Problem::client(resource, &e);
    let mut progress = Progress::new(resource);
    let mut stream = call.context.client(resource)?.subscribe(true, false).map_err(failed)?;
    let status = loop {
        let Event::Status(status) = stream.next(None).map_err(failed)? else { continue };
        let verifying =
            |p: &PeerDeviceStatus| matches!(p.replication, ReplicationState::VerifyS | ReplicationState::VerifyT);
        if !in_scope(&status, target).any(|(_, p)| verifying(p)) {
            break status;
        }
        tell(&mut progress, &status, target);
    };
    progress.end();
    let lost = |(c, p): &(&ConnectionStatus, &PeerDeviceStatus)| {
        c.connection != ConnectionState::Connected
            || p.cause.as_ref().is_some_and(|why| why.code == "verify-interrupted")
    };
    if let Some((c, p)) = in_scope(&status, target).find(lost) {
        let object = format!("{resource}:{}/{}", c.name, p.volume);
        return Err(Problem::new(exit::FAILURE, format!("{object}: the verify was interrupted"))
            .hint(format!("look at: urbd why {resource}; then again: urbd verify --wait {object}")));
    }
    if call.flag("repair") {
        wait(call, target, WaitFor::Sync)?;
    }
    let status = super::status::one(call.context, resource)?;
    let mut worst = 0;
    for (connection, peer_device) in in_scope(&status, target) {
        let differ = peer_device.statistics.map_or(0, |s| s.out_of_sync_sectors) / 2;
        println!("{resource}:{}/{}: {differ} KiB differ", connection.name, peer_device.volume);
        if differ > 0 {
            worst = exit::DIFFERENT;
        }
    }
    Ok(worst)
}

/// How long to wait; `None` is for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Patience {
    usual: Option<Duration>,
    /// If this node's data is outdated.
    outdated: Option<Duration>,
    after_split_brain: bool,
}

impl Patience {
    /// From the options, else the `startup` section. A smaller limit for a worse situation: the larger is lowered.
    fn new(call: &Call, target: &Target) -> Result<Patience, Problem> {
        let startup = target.local.as_ref().map(|local| &local.startup);
        let limit = |name: &str, configured: Option<units::Duration>| -> Result<Option<Duration>, Problem> {
            let configured = configured.map_or(Duration::ZERO, |d| Duration::from_millis(d.as_millis()));
            let given = call.number(name)?.map_or(configured, Duration::from_secs);
            Ok(Some(given).filter(|limit| !limit.is_zero()))
        };
        let wfc = limit("wfc-timeout", startup.map(|s| s.wfc_timeout))?;
        let degraded = limit("degr-wfc-timeout", startup.map(|s| s.degr_wfc_timeout))?;
        let outdated = limit("outdated-wfc-timeout", startup.map(|s| s.outdated_wfc_timeout))?;
        Ok(Patience {
            usual: wfc,
            outdated: shorter(outdated, shorter(degraded, wfc)),
            after_split_brain: call.flag("wait-after-sb") || startup.is_some_and(|s| s.wait_after_sb),
        })
    }

    fn of(&self, status: &ResourceStatus, peer_device: &PeerDeviceStatus) -> Option<Duration> {
        let outdated = status.device(peer_device.volume).is_some_and(|d| d.disk == DiskState::Outdated);
        if outdated { self.outdated } else { self.usual }
    }
}

/// The shorter of two limits, of which `None` is for ever.
fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (limit, None) | (None, limit) => limit,
    }
}

fn wait(call: &Call, target: &Target, wait_for: WaitFor) -> Result<u8, Problem> {
    let resource = &target.name.resource;
    let patience = Patience::new(call, target)?;
    let failed = |e: ClientError| Problem::client(resource, &e);
    let mut progress = (wait_for == WaitFor::Sync).then(|| Progress::new(resource));
    let started = Instant::now();
    let mut stream = call.context.client(resource)?.subscribe(progress.is_some(), false).map_err(failed)?;
    let mut status: Option<ResourceStatus> = None;
    loop {
        let next = match &status {
            None => Outcome::Waiting(None),
            Some(status) => judge(status, target, wait_for, &patience, started.elapsed()),
        };
        let left = match next {
            Outcome::Done => return finish(progress, 0),
            Outcome::TimedOut(missing) => {
                finish(progress, exit::TIMEOUT)?;
                let what = if wait_for == WaitFor::Connect { "not connected" } else { "not in sync" };
                return Err(Problem::new(exit::TIMEOUT, format!("{target}: time is up, still {what}: {missing}"))
                    .hint(format!("look at: urbd status {resource}; urbd why {resource}")));
            }
            Outcome::Waiting(left) => left,
        };
        match stream.next(left) {
            Ok(Event::Status(new)) => {
                if let Some(progress) = &mut progress {
                    tell(progress, &new, target);
                }
                status = Some(new);
            }
            Ok(_) => {}
            // The time limit of one peer device is over: judge again.
            Err(ClientError::Io(e)) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(e) => return Err(failed(e)),
        }
    }
}

fn finish(progress: Option<Progress>, exit: u8) -> Result<u8, Problem> {
    progress.into_iter().for_each(|mut progress| progress.end());
    Ok(exit)
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// Until the next time limit, if there is one.
    Waiting(Option<Duration>),
    /// Which peer devices are missing.
    TimedOut(String),
}

/// Where the peer devices of `target` are, `elapsed` after the start.
fn judge(
    status: &ResourceStatus,
    target: &Target,
    wait_for: WaitFor,
    patience: &Patience,
    elapsed: Duration,
) -> Outcome {
    let mut missing = Vec::new();
    let mut waiting = false;
    let mut next_limit = None;
    for (connection, peer_device) in in_scope(status, target) {
        if wait_progress(connection, peer_device, wait_for, patience.after_split_brain) != query::Progress::Waiting {
            continue;
        }
        match patience.of(status, peer_device) {
            Some(limit) if limit <= elapsed => missing.push(format!("{}/{}", connection.name, peer_device.volume)),
            limit => {
                waiting = true;
                next_limit = shorter(next_limit, limit.map(|l| l - elapsed));
            }
        }
    }
    match (waiting, missing.is_empty()) {
        (true, _) => Outcome::Waiting(next_limit),
        (false, true) => Outcome::Done,
        (false, false) => Outcome::TimedOut(missing.join(" ")),
    }
}

fn in_scope<'a>(
    status: &'a ResourceStatus,
    target: &Target,
) -> impl Iterator<Item = (&'a ConnectionStatus, &'a PeerDeviceStatus)> {
    let (peer, volume) = (target.peer(), target.name.volume);
    let named = peer.as_ref().map(|p| status.connection(p).map(|c| c.name.as_str()));
    let connections = status.connections.iter().filter(move |c| named.is_none_or(|name| name == Some(c.name.as_str())));
    connections
        .flat_map(|c| c.peer_devices.iter().map(move |p| (c, p)))
        .filter(move |(_, p)| volume.is_none_or(|v| p.volume == v))
}

/// Tells how far the copying in scope is: the least of it, and the longest time.
fn tell(progress: &mut Progress, status: &ResourceStatus, target: &Target) {
    let busy = || in_scope(status, target).filter_map(|(_, p)| Some((query::percent_done(status, p)?, p)));
    if let Some((percent, slowest)) = busy().reduce(|a, b| if b.0 < a.0 { b } else { a }) {
        let left = busy().filter_map(|(_, p)| query::seconds_left(p)).max();
        let note = query::slowed_words(status, slowest).unwrap_or_default();
        let mib_per_s = busy().map(|(_, p)| query::rate_mib_per_s(p)).sum();
        progress.tell(Instant::now(), Done { percent, mib_per_s, left, note });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Name;

    fn status(connection: ConnectionState, replication: ReplicationState) -> ResourceStatus {
        let peer_device = PeerDeviceStatus::new(0, replication, DiskState::UpToDate);
        let connection =
            ConnectionStatus { peer_devices: vec![peer_device], ..ConnectionStatus::new("bravo", connection) };
        ResourceStatus { connections: vec![connection], ..ResourceStatus::new("r0") }
    }

    fn judged(connection: ConnectionState, replication: ReplicationState, wait_for: WaitFor, elapsed: u64) -> Outcome {
        let target =
            Target { name: Name { resource: "r0".into(), peer: None, volume: None }, local: None, invalid: None };
        let patience = Patience { usual: Some(Duration::from_secs(10)), outdated: None, after_split_brain: false };
        judge(&status(connection, replication), &target, wait_for, &patience, Duration::from_secs(elapsed))
    }

    #[test]
    fn a_resync_counts_as_connected_but_not_as_synchronised() {
        use ConnectionState::Connected;
        let left = Outcome::Waiting(Some(Duration::from_secs(7)));
        assert_eq!(judged(Connected, ReplicationState::SyncTarget, WaitFor::Connect, 3), Outcome::Done);
        assert_eq!(judged(Connected, ReplicationState::SyncTarget, WaitFor::Sync, 3), left);
        assert_eq!(judged(Connected, ReplicationState::Established, WaitFor::Sync, 3), Outcome::Done);
    }

    #[test]
    fn standalone_ends_the_wait_and_time_runs_out() {
        use ReplicationState::Off;
        assert_eq!(judged(ConnectionState::StandAlone, Off, WaitFor::Connect, 3), Outcome::Done);
        let timed_out = Outcome::TimedOut("bravo/0".into());
        assert_eq!(judged(ConnectionState::Connecting, Off, WaitFor::Connect, 10), timed_out);
    }
}
