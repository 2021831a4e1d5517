//! Verbs that send one command to the running resource (`docs/spec/config-and-cli.md` 3.2).

use config::MetaDisk;
use control::client::ClientError;
use control::{Command, ErrorCode, Role};

use crate::cli::Call;
use crate::context::LONG_TIMEOUT;
use crate::objects::Target;
use crate::problem::{Problem, exit};
use crate::verbs::{metadata, options, status, wait};

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
    let resource = &target.name.resource;
    let mut client = call.context.client(resource)?;
    client.set_timeout(Some(LONG_TIMEOUT)).map_err(|e| Problem::client(resource, &e))?;
    let notes = client.command(command).map_err(|e| refused(&e))?;
    for note in notes {
        eprintln!("urbd: {target}: {note}");
    }
    Ok(0)
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
    send(call, target, Command::Disconnect { peer: target.peer(), force: call.flag("force") })
}

pub(crate) fn attach(call: &Call, target: &Target) -> Result<u8, Problem> {
    check_places(call, target)?;
    check_other_disks(call, target)?;
    send(call, target, Command::Attach { volume: target.name.volume })
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

/// `drbdsetup attach` names disks. The running process knows only those of its configuration.
fn check_places(call: &Call, target: &Target) -> Result<(), Problem> {
    let given = ["disk", "meta-disk", "meta-index"].map(|name| call.value(name));
    if given == [None; 3] {
        return Ok(());
    }
    target.local()?;
    for volume in target.volumes() {
        let configured = volume.backing.as_ref().map(|backing| {
            let disk = backing.path.as_str();
            match &backing.meta_disk {
                MetaDisk::Internal => [disk.to_owned(), disk.to_owned(), "internal".to_owned()],
                MetaDisk::External { path } => [disk.to_owned(), path.clone(), "flexible".to_owned()],
                MetaDisk::Indexed { path, index } => [disk.to_owned(), path.clone(), index.to_string()],
            }
        });
        let words = |all: [&str; 3]| all.join(" ");
        let wanted = words(given.map(Option::unwrap_or_default));
        let has = configured.as_ref().map_or("none".to_owned(), |all| words(all.each_ref().map(String::as_str)));
        if wanted != has {
            return Err(Problem::new(exit::FAILURE, format!("{target}: its configured disk is {has}, not {wanted}"))
                .hint("urbd attaches what is configured: change the configuration, then: urbd adjust"));
        }
    }
    Ok(())
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
    if !call.context.is_running(&target.name.resource) {
        if keep_bitmap {
            let resource = &target.name.resource;
            return Err(Problem::new(
                exit::FAILURE,
                format!("{target}: --reset-bitmap=no needs a connection to the peer"),
            )
            .hint(format!("urbd up {resource}; without the option all of it is replaced")));
        }
        return metadata::invalidate(call, target);
    }
    send(call, target, Command::Invalidate { volume: target.name.volume, keep_bitmap })
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
    send(call, target, Command::InvalidateRemote { peer, volume, keep_bitmap })
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
    let refused =
        |e: &ClientError| beside_a_primary(call, target, e).unwrap_or_else(|| Problem::client(&target.to_string(), e));
    let started = send_or(call, target, command, refused)?;
    if call.flag("wait") { wait::verified(call, target) } else { Ok(started) }
}

/// Two Secondaries are not compared beside a Primary, whose writes come to them at different moments: the code of that
/// says only that it cannot be done.
fn beside_a_primary(call: &Call, target: &Target, error: &ClientError) -> Option<Problem> {
    let ClientError::Refused(failure) = error else { return None };
    if failure.code != ErrorCode::NOT_SUPPORTED_BY_PEER {
        return None;
    }
    let resource = &target.name.resource;
    let status = status::one(call.context, resource).ok()?;
    if status.role == Role::Primary {
        return None;
    }
    let primary = status.connections.iter().find(|c| c.peer_role == Role::Primary)?;
    let named = target.peer()?;
    if status.connection(&named).is_some_and(|c| c.name == primary.name) {
        return None;
    }
    let (primary, code) = (&primary.name, failure.code.0);
    let text =
        format!("{target}: State change failed: ({code}) {primary} is Primary, and not one of the two to compare");
    Some(Problem::new(failure.code.exit_status(), text).hint(format!(
        "compare each with the Primary: urbd verify {resource}:{primary}; on {named} the same; or first, on {primary}: \
         urbd secondary {resource}"
    )))
}

pub(crate) fn suspend_io(call: &Call, target: &Target) -> Result<u8, Problem> {
    send(call, target, Command::SuspendIo { volume: target.name.volume })
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
    if call.flag("force-resync") {
        return Err(Problem::usage(format!("{target}: --force-resync is not supported"))
            .hint(format!("for a full resync of the peer: urbd invalidate-remote {target}")));
    }
    let clear_bitmap = call.flag("clear-bitmap");
    send(call, target, Command::NewCurrentUuid { volume: target.name.volume, clear_bitmap })
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
