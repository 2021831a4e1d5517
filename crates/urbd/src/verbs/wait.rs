//! `wait-connect` and `wait-sync` (`docs/spec/config-and-cli.md` 4.6).

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use control::client::ClientError;
use control::query::{self, Progress, WaitFor, wait_progress};
use control::{ConnectionStatus, DiskState, Event, PeerDeviceStatus, ResourceStatus};

use crate::cli::Call;
use crate::objects::Target;
use crate::problem::{Problem, exit};

pub(crate) fn connect(call: &Call, target: &Target) -> Result<u8, Problem> {
    wait(call, target, WaitFor::Connect)
}

pub(crate) fn sync(call: &Call, target: &Target) -> Result<u8, Problem> {
    wait(call, target, WaitFor::Sync)
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
    let mut bar = (wait_for == WaitFor::Sync && io::stderr().is_terminal()).then(Bar::default);
    let started = Instant::now();
    let mut stream = call.context.client(resource)?.subscribe(false, bar.is_some()).map_err(failed)?;
    let mut status: Option<ResourceStatus> = None;
    loop {
        let next = match &status {
            None => Outcome::Waiting(None),
            Some(status) => judge(status, target, wait_for, &patience, started.elapsed()),
        };
        let left = match next {
            Outcome::Done => return finish(bar, 0),
            Outcome::TimedOut(missing) => {
                finish(bar, exit::TIMEOUT)?;
                let what = if wait_for == WaitFor::Connect { "not connected" } else { "not in sync" };
                return Err(Problem::new(exit::TIMEOUT, format!("{target}: time is up, still {what}: {missing}"))
                    .hint(format!("look at: urbd status {resource}; urbd why {resource}")));
            }
            Outcome::Waiting(left) => left,
        };
        match stream.next(left) {
            Ok(Event::Status(new)) => {
                if let Some(bar) = &mut bar {
                    bar.draw(&new, target);
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

fn finish(bar: Option<Bar>, exit: u8) -> Result<u8, Problem> {
    if bar.is_some_and(|bar| bar.drawn) {
        eprintln!();
    }
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
        if wait_progress(connection, peer_device, wait_for, patience.after_split_brain) != Progress::Waiting {
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

/// A progress bar on the terminal.
#[derive(Debug, Default)]
struct Bar {
    drawn: bool,
}

impl Bar {
    fn draw(&mut self, status: &ResourceStatus, target: &Target) {
        let busy = || in_scope(status, target).filter_map(|(_, p)| Some((query::percent_done(status, p)?, p)));
        if let Some(least) = busy().map(|(percent, _)| percent).reduce(f64::min) {
            self.drawn = true;
            let left = busy().filter_map(|(_, p)| query::seconds_left(p)).max();
            eprint!("\r{}", bar_text(&target.name.resource, least, left));
            let _ = io::stderr().flush();
        }
    }
}

/// `left`: seconds to go, if that can be told.
fn bar_text(name: &str, percent: f64, left: Option<u64>) -> String {
    let cells = 40;
    let full = ((percent / 100.0 * cells as f64) as usize).min(cells);
    let left = left.map_or("--:--:--".to_owned(), |s| format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60));
    // Blanks wipe out the rest of a longer line.
    format!("{name} [{}{}] {percent:6.2} %  {left} left   ", "=".repeat(full), ".".repeat(cells - full))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Name;
    use control::{
        ConnectionState, IntentionalClient, ReplicationState, ResyncSuspended, Role, Suspended, WriteOrdering,
    };

    fn status(connection: ConnectionState, replication: ReplicationState) -> ResourceStatus {
        let peer_device = PeerDeviceStatus {
            volume: 0,
            replication,
            peer_disk: DiskState::UpToDate,
            peer_client: IntentionalClient::No,
            resync_suspended: ResyncSuspended::default(),
            statistics: None,
            sync: None,
        };
        let connection = ConnectionStatus {
            failed_authentications: 0,
            peer_node_id: Some(1),
            name: "bravo".into(),
            connection,
            peer_role: Role::Unknown,
            tls: false,
            protocol: None,
            reason: None,
            statistics: None,
            paths: Vec::new(),
            peer_devices: vec![peer_device],
        };
        ResourceStatus {
            name: "r0".into(),
            node_id: Some(0),
            role: Role::Secondary,
            suspended: Suspended::default(),
            force_io_failures: false,
            write_ordering: WriteOrdering::Flush,
            devices: Vec::new(),
            connections: vec![connection],
            memory: None,
        }
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

    #[test]
    fn the_bar_is_full_at_100_percent() {
        assert_eq!(bar_text("r0", 0.0, None), format!("r0 [{}]   0.00 %  --:--:-- left   ", ".".repeat(40)));
        assert_eq!(bar_text("r0", 100.0, Some(3725)), format!("r0 [{}] 100.00 %  1:02:05 left   ", "=".repeat(40)));
    }
}
