//! Verbs that send one command to the running resource (`docs/spec/config-and-cli.md` 3.2).

use control::client::ClientError;
use control::{Command, ErrorCode, Role};

use crate::cli::Call;
use crate::objects::Target;
use crate::offline;
use crate::problem::{NO_REASON, Problem, exit};
use crate::verbs::status::Stops;
use crate::verbs::{metadata, objects, options, status, told, wait};

/// Sends a command for `target`; prints the notes that come back.
pub(crate) fn send(call: &Call, target: &Target, command: Command) -> Result<u8, Problem> {
    send_or(call, target, command, |e| Problem::client(&target.to_string(), e))
}

/// The same; `refused` says why the process does not do it.
fn send_or(
    call: &Call,
    target: &Target,
    command: Command,
    refused: impl Fn(&ClientError) -> Problem,
) -> Result<u8, Problem> {
    told::send_or(call.context, &target.name.resource, &target.to_string(), command, refused).map(|()| 0)
}

pub(crate) fn primary(call: &Call, target: &Target) -> Result<u8, Problem> {
    send(call, target, Command::Primary { force: call.flag("force") })
}

/// A resource that does not run is not Primary: nothing to do.
pub(crate) fn secondary(call: &Call, target: &Target) -> Result<u8, Problem> {
    if !call.context.is_running(&target.name.resource) {
        return Ok(0);
    }
    send(call, target, Command::Secondary { force: call.flag("force") })
}

pub(crate) fn connect(call: &Call, target: &Target) -> Result<u8, Problem> {
    let discard_my_data = call.flag("discard-my-data");
    if !discard_my_data || target.peer().is_some() {
        return send(call, target, Command::Connect { peer: target.peer(), discard_my_data });
    }
    let status = status::one(call.context, &target.name.resource)?;
    let told = control::discard::whom_to_tell(&status).map_err(|why| Problem::refused(&target.to_string(), &why))?;
    for id in status.connections.iter().filter_map(|c| c.peer_node_id) {
        let (peer, discard_my_data) = (Some(id.to_string()), told.contains(&id));
        send(call, target, Command::Connect { peer, discard_my_data })?;
    }
    Ok(0)
}

/// A resource that does not run is not connected: nothing to do.
pub(crate) fn disconnect(call: &Call, target: &Target) -> Result<u8, Problem> {
    if !call.context.is_running(&target.name.resource) {
        return Ok(0);
    }
    let command = Command::Disconnect { peer: target.peer(), force: call.flag("force") };
    let stops = Stops::before(call.context, &target.name.resource, command.clone());
    let done = send(call, target, command).map_err(|problem| stops.explain(problem))?;
    stops.warn(&target.name.resource);
    Ok(done)
}

pub(crate) fn attach(call: &Call, target: &Target) -> Result<u8, Problem> {
    check_other_disks(call, target)?;
    objects::tell_disks(call, target)?;
    let attached = send(call, target, Command::Attach { volume: target.name.volume })?;
    let local = target.local()?;
    target.volumes().filter_map(|volume| metadata::place(local, volume)).for_each(|place| offline::note_size(&place));
    Ok(attached)
}

/// May one volume be attached by itself? Among several peers a node connects anew for that, and no node shakes hands
/// about a volume without a disk.
fn check_other_disks(call: &Call, target: &Target) -> Result<(), Problem> {
    let (name, local) = (&target.name.resource, target.local()?);
    if target.name.volume.is_none() || local.peers.len() < 2 || !call.context.is_running(name) {
        return Ok(());
    }
    let status = status::one(call.context, name)?;
    let others = local.volumes.iter().filter(|v| v.backing.is_some() && Some(v.nr.0) != target.name.volume);
    let out = |nr: u16| status.device(nr).is_some_and(|d| d.disk == control::DiskState::Diskless);
    let Some(other) = others.map(|v| v.nr.0).find(|nr| out(*nr)) else { return Ok(()) };
    let text = format!(
        "{target}: volume {other} has no disk either, and the other nodes would not be connected to again: attach both, \
         urbd attach {name}"
    );
    Err(Problem::new(exit::FAILURE, text))
}

/// A resource that does not run has no disk attached: nothing to do.
pub(crate) fn detach(call: &Call, target: &Target) -> Result<u8, Problem> {
    if !call.context.is_running(&target.name.resource) {
        return Ok(0);
    }
    send(call, target, Command::Detach { volume: target.name.volume, force: call.flag("force") })
}

/// On a resource that does not run, the metadata is changed instead.
pub(crate) fn invalidate(call: &Call, target: &Target) -> Result<u8, Problem> {
    let keep_bitmap = keeps_bitmap(call)?;
    let no_id = |_| Problem::usage("--sync-from-peer-node-id: node ids are 0 to 31");
    let source = call.number("sync-from-peer-node-id")?.map(u8::try_from).transpose().map_err(no_id)?;
    if !call.context.is_running(&target.name.resource) {
        let option = source.map(|_| "--sync-from-peer-node-id").or(keep_bitmap.then_some("--reset-bitmap=no"));
        if let Some(option) = option {
            let text = format!("{target}: {option} needs a connection to the peer");
            let resource = &target.name.resource;
            let hint = format!("urbd up {resource}; without the option all of it is replaced");
            return Err(Problem::new(exit::FAILURE, text).hint(hint));
        }
        return metadata::invalidate(call, target);
    }
    let volume = target.name.volume;
    let command = match source {
        Some(source) => Command::InvalidateFrom { volume, keep_bitmap, source },
        None => Command::Invalidate { volume, keep_bitmap },
    };
    send_or(call, target, command, |e| not_these_two(call, target, e))
}

/// Is only what is marked as different to be replaced?
fn keeps_bitmap(call: &Call) -> Result<bool, Problem> {
    match call.value("reset-bitmap") {
        None | Some("yes") => Ok(false),
        Some("no") => Ok(true),
        Some(other) => Err(Problem::usage(format!("--reset-bitmap: '{other}' is neither yes nor no"))),
    }
}

pub(crate) fn invalidate_remote(call: &Call, target: &Target) -> Result<u8, Problem> {
    let keep_bitmap = keeps_bitmap(call)?;
    let (peer, volume) = (target.peer(), target.name.volume);
    let command = Command::InvalidateRemote { peer, volume, keep_bitmap };
    send_or(call, target, command, |e| not_these_two(call, target, e))
}

pub(crate) fn pause_sync(call: &Call, target: &Target) -> Result<u8, Problem> {
    send(call, target, Command::PauseSync { peer: target.peer(), volume: target.name.volume })
}

pub(crate) fn resume_sync(call: &Call, target: &Target) -> Result<u8, Problem> {
    send(call, target, Command::ResumeSync { peer: target.peer(), volume: target.name.volume })
}

pub(crate) fn verify(call: &Call, target: &Target) -> Result<u8, Problem> {
    let start_sector = call.value("start").map(sectors).transpose()?;
    let stop_sector = call.value("stop").map(sectors).transpose()?;
    let (peer, volume) = (target.peer(), target.name.volume);
    let repair = call.flag("repair");
    let command = Command::Verify { peer, volume, start_sector, stop_sector, repair };
    let refused = |e: &ClientError| not_these_two(call, target, e);
    let started = send_or(call, target, command, refused)?;
    if call.flag("wait") { wait::verified(call, target) } else { Ok(started) }
}

/// Among several nodes two Secondaries are neither compared nor copied to each other beside a Primary, whose writes
/// come to them at different moments, nor while a third one copies to one of them: the code of that says only that it
/// cannot be done.
fn not_these_two(call: &Call, target: &Target, error: &ClientError) -> Problem {
    let usual = Problem::client(&target.to_string(), error);
    let ClientError::Refused(failure) = error else { return usual };
    if failure.code != ErrorCode::NOT_SUPPORTED_BY_PEER || failure.message != NO_REASON {
        return usual;
    }
    let Ok(status) = status::one(call.context, &target.name.resource) else { return usual };
    if status.connections.len() < 2 || !status.connections.iter().any(|c| c.protocol.is_some_and(|p| p >= 110)) {
        return usual;
    }
    let (resource, code) = (&target.name.resource, failure.code);
    let problem = |text: &str, hint: String| {
        let text = format!("{target}: State change failed: ({}) {text}", code.0);
        Problem::new(code.exit_status(), text).hint(hint)
    };
    let named = target.peer().and_then(|named| Some(status.connection(&named)?.name.clone()));
    let primary = status.connections.iter().find(|c| c.peer_role == Role::Primary).map(|c| &c.name);
    match primary.filter(|primary| named.as_ref() != Some(*primary)) {
        Some(primary) => problem(
            &format!("{primary} is Primary, and not one of the two"),
            format!(
                "compare each with the Primary, or copy from it: urbd verify {resource}:{primary}; urbd invalidate \
                 {resource}; or first, on {primary}: urbd secondary {resource}"
            ),
        ),
        None => problem(
            "another node comes first: it is Primary, and not one of the two, or one of them is being copied to",
            format!("look on each node: urbd status {resource}; wait for a resync: urbd wait-sync {resource}"),
        ),
    }
}

/// For so many seconds I/O can be frozen: up to a day.
const LEASES: std::ops::RangeInclusive<u32> = 1..=86_400;

pub(crate) fn suspend_io(call: &Call, target: &Target) -> Result<u8, Problem> {
    let volume = target.name.volume;
    if let Some(freeze) = call.value("bdev-freeze").filter(|freeze| *freeze != "no") {
        return Err(Problem::usage(format!("--bdev-freeze={freeze}: urbd freezes no file system")).hint(
            "freeze the one that is mounted first: fsfreeze --freeze MOUNTPOINT; and with --bdev-freeze=no here",
        ));
    }
    let Some(lease) = call.number("lease")? else { return send(call, target, Command::SuspendIo { volume }) };
    let seconds = u32::try_from(lease).ok().filter(|seconds| LEASES.contains(seconds)).ok_or_else(|| {
        let (least, most) = (LEASES.start(), LEASES.end());
        Problem::usage(format!("--lease={lease}: must be {least} to {most} seconds"))
            .hint("without it I/O waits for resume-io")
    })?;
    send(call, target, Command::SuspendIoFor { volume, seconds })
}

pub(crate) fn resume_io(call: &Call, target: &Target) -> Result<u8, Problem> {
    send(call, target, Command::ResumeIo { volume: target.name.volume })
}

/// On a resource that does not run, the metadata is changed instead.
pub(crate) fn outdate(call: &Call, target: &Target) -> Result<u8, Problem> {
    if !call.context.is_running(&target.name.resource) {
        return metadata::outdate(call, target);
    }
    send(call, target, Command::Outdate { volume: target.name.volume })
}

pub(crate) fn resize(call: &Call, target: &Target) -> Result<u8, Problem> {
    if let Some(size) = call.value("size") {
        options::set_size(call, target, size)?;
    }
    let [assume_clean, assume_peer_has_space] = ["assume-clean", "assume-peer-has-space"].map(|name| call.flag(name));
    send(call, target, Command::Resize { volume: target.name.volume, assume_clean, assume_peer_has_space })
}

pub(crate) fn new_current_uuid(call: &Call, target: &Target) -> Result<u8, Problem> {
    let volume = target.name.volume;
    match (call.flag("force-resync"), call.flag("clear-bitmap")) {
        (true, true) => Err(Problem::usage(format!("{target}: --force-resync or --clear-bitmap, not both"))
            .hint("the first copies all to the peers, the second declares all equal")),
        (true, false) => send(call, target, Command::ForceResync { volume }),
        (false, clear_bitmap) => send(call, target, Command::NewCurrentUuid { volume, clear_bitmap }),
    }
}

/// A size in sectors: a number of sectors, or a number with a suffix `s` (sectors), `K`, `M`, `G`, `T`, `P` (bytes).
pub(crate) fn sectors(text: &str) -> Result<u64, Problem> {
    let bad =
        || Problem::usage(format!("'{text}' is no size")).hint("write sectors, or K, M, G, T, P behind the number");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| bad())?;
    let sectors_per_unit = match &text[digits.len()..] {
        "" | "s" | "S" => 1,
        "k" | "K" => 2,
        "m" | "M" => 2 << 10,
        "g" | "G" => 2 << 20,
        "t" | "T" => 2 << 30,
        "p" | "P" => 2 << 40,
        _ => return Err(bad()),
    };
    number.checked_mul(sectors_per_unit).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_sectors_unless_a_suffix_says_otherwise() {
        assert_eq!(sectors("100").unwrap(), 100);
        assert_eq!(sectors("100s").unwrap(), 100);
        assert_eq!(sectors("1K").unwrap(), 2);
        assert_eq!(sectors("2G").unwrap(), 4_194_304);
        for bad in ["", "x", "1x", "-1", "1.5G", "99999999999999999P"] {
            assert_eq!(sectors(bad).unwrap_err().exit, 1, "{bad}");
        }
    }
}
