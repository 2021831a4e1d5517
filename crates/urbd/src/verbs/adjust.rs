//! `adjust`: what differs between a running resource and its configuration, and taking it over
//! (`docs/spec/config-and-cli.md` 5.3).

use std::collections::BTreeSet;

use config::{AdjustScope, Config, Disk, Group, LoadOptions, LocalResource, Plan, Running, Setting, Step, shell_line};
use control::{Command, ConnectionState, DiskState, Request, ResourceStatus};
use units::VolumeNr;

use crate::cli::Call;
use crate::objects::Target;
use crate::problem::{Problem, exit};
use crate::verbs::options::AFTER;
use crate::verbs::{commands, lifecycle, metadata, status};

/// Starts what does not run; otherwise the running process takes over the configuration, or is started anew if it has
/// other volumes or peers.
pub(crate) fn adjust(call: &Call, target: &Target) -> Result<u8, Problem> {
    let only_show = call.flag("tentative");
    if !only_show && !call.context.is_running(&target.name.resource) {
        return match is_partial(call, target) {
            true => Err(Problem::new(exit::FAILURE, format!("{target}: does not run, and is started as a whole"))
                .hint(format!("run: urbd up {}", target.name.resource))),
            false => lifecycle::up(call, target),
        };
    }
    // What could not be started after the next crash is not taken over either.
    lifecycle::check_startable(call.context, target.local()?)?;
    lifecycle::warn(target.local()?);
    let plan = plan(call, target)?;
    let partial = is_partial(call, target);
    if only_show || partial {
        plan.notes.iter().for_each(|note| eprintln!("urbd: {target}: {note}"));
    }
    if only_show || call.context.verbose > 0 {
        plan_lines(&plan).iter().for_each(|line| println!("{line}"));
    }
    if only_show {
        return Ok(0);
    }
    if !partial && has_other_objects(&plan) {
        return restart(call, target, &plan);
    }
    let plan = with_disks_that_stay(call, target, plan)?;
    if let Some(note) = plan.notes.first().filter(|_| !partial) {
        return Err(Problem::new(exit::FAILURE, format!("{target}: {note}")).hint("nothing was changed"));
    }
    check_shrinking(call, target, &plan)?;
    check_rest(call, target, &plan)?;
    carry_out(call, target, &plan).map(|()| 0)
}

/// Was it called for a part of the resource only?
fn is_partial(call: &Call, target: &Target) -> bool {
    target.name.volume.is_some() || target.name.peer.is_some() || call.flag("skip-net") || call.flag("skip-disk")
}

/// A running process takes over the options of all parts at once. Where only a part was asked for and the rest differs
/// as well, nothing is changed.
fn check_rest(call: &Call, target: &Target, plan: &Plan) -> Result<(), Problem> {
    if !is_partial(call, target) || plan.steps.iter().all(|step| command(step).is_some()) {
        return Ok(());
    }
    let running = running(call, &target.name.resource)?;
    let whole = plan_lines(&Plan::adjust(Some(&running), target.local()?, &AdjustScope::default()));
    let asked = plan_lines(plan);
    let changes = |line: &&String| !["attach", "detach", "connect", "disconnect"].iter().any(|v| is_about(line, v));
    let Some(other) = whole.iter().filter(changes).find(|line| !asked.contains(line)) else { return Ok(()) };
    Err(Problem::new(exit::FAILURE, format!("{target}: other parts differ from the configuration, too: {other}")).hint(
        format!(
            "nothing was changed; options are taken over for the whole resource: urbd adjust {}",
            target.name.resource
        ),
    ))
}

fn is_about(line: &str, verb: &str) -> bool {
    line.split(' ').nth(1) == Some(verb)
}

/// Are there other volumes or peers than before? One that only gets another minor is no other volume.
fn has_other_objects(plan: &Plan) -> bool {
    let (mut come, mut go) = (BTreeSet::new(), BTreeSet::new());
    for step in &plan.steps {
        match step {
            Step::NewMinor { volume, .. } => come.insert((Some(*volume), None)),
            Step::DelMinor { volume, .. } => go.insert((Some(*volume), None)),
            Step::NewPeer { peer, .. } => come.insert((None, Some(*peer))),
            Step::DelPeer { peer } => go.insert((None, Some(*peer))),
            _ => continue,
        };
    }
    come != go
}

/// A process makes its volumes and connections when it starts, so another one follows it, and takes over the devices
/// that are in use; a volume that goes must not be. What would keep it from starting is found before it is stopped.
fn restart(call: &Call, target: &Target, plan: &Plan) -> Result<u8, Problem> {
    let local = target.local()?;
    lifecycle::check_startable(call.context, local)?;
    metadata::check_room(local)?;
    let comes = |nr: VolumeNr| plan.steps.iter().any(|s| matches!(s, Step::NewMinor { volume, .. } if *volume == nr));
    lifecycle::make_clean(local, comes)?;
    let goes = |step: &Step| if let Step::DelMinor { volume, .. } = step { Some(*volume) } else { None };
    for volume in plan.steps.iter().filter_map(goes).filter(|volume| !comes(*volume)) {
        commands::send(call, target, Command::TakeAway { volume: volume.0 })?;
    }
    lifecycle::restart(call, target)
}

/// One command a line, quoted for a shell.
pub(crate) fn plan_lines(plan: &Plan) -> Vec<String> {
    plan.steps.iter().flat_map(|step| step.commands(&plan.resource)).map(|command| shell_line(&command)).collect()
}

/// What would have to be done to bring `target` to its configuration.
pub(crate) fn plan(call: &Call, target: &Target) -> Result<Plan, Problem> {
    let wanted = target.local()?;
    let scope = scope(call, target);
    if !call.context.is_running(&wanted.name) {
        return Ok(Plan::up(wanted, &scope));
    }
    let in_force = in_force(call, &wanted.name)?;
    let seen = in_force.resource_as_seen_by(&wanted.name, &call.context.this_host());
    let seen = seen.map_err(|e| Problem::new(exit::BROKEN, e.to_string()))?;
    let running = running(call, &wanted.name)?;
    let plan = Plan::adjust(Some(&running), wanted, &scope);
    if !is_partial(call, target) {
        check_fixed(&seen, wanted, has_other_objects(&plan))?;
        check_places(&seen, wanted)?;
    }
    Ok(plan)
}

/// What a process has from its start is not changed. `restarts`: another one follows it, as there are other volumes or
/// peers.
fn check_fixed(in_force: &LocalResource, wanted: &LocalResource, restarts: bool) -> Result<(), Problem> {
    let name = &wanted.name;
    let fixed = in_force.fixed_since_start(wanted);
    let Some(found) = fixed.into_iter().find(|fixed| !(restarts && fixed.by_next_process)) else { return Ok(()) };
    let next = match found.by_next_process {
        true => format!("urbd restart {name} (devices that are in use stay)"),
        false => format!("urbd down {name}; urbd up {name}"),
    };
    let text = format!("{name}: {}, which a process that runs cannot follow", found.what);
    Err(Problem::new(exit::FAILURE, text).hint(format!("nothing was changed; start it anew: {next}")))
}

/// Where a volume's disk and metadata are.
fn place(of: &LocalResource, nr: VolumeNr) -> Option<(&str, &config::MetaDisk)> {
    let volume = of.volumes.iter().find(|v| v.nr == nr)?;
    volume.backing.as_ref().map(|backing| (backing.path.as_str(), &backing.meta_disk))
}

/// Of its data, and of its metadata.
fn paths(of: &LocalResource, nr: VolumeNr) -> Option<[&str; 2]> {
    place(of, nr).map(|(disk, meta)| match meta {
        config::MetaDisk::Internal => [disk, disk],
        config::MetaDisk::External { path } | config::MetaDisk::Indexed { path, .. } => [disk, path],
    })
}

/// A disk that comes must be there.
fn check_places(in_force: &LocalResource, wanted: &LocalResource) -> Result<(), Problem> {
    for nr in wanted.volumes.iter().map(|v| v.nr).filter(|nr| place(in_force, *nr) != place(wanted, *nr)) {
        let Some(paths) = paths(wanted, nr) else { continue };
        if let Some((path, error)) = paths.into_iter().find_map(|p| Some((p, std::fs::metadata(p).err()?))) {
            let text = format!("{}/{nr}: cannot open {path}: {error}", wanted.name);
            return Err(
                Problem::new(exit::FAILURE, text).hint("nothing was changed; make the disk, or correct its name")
            );
        }
    }
    Ok(())
}

/// A disk, or metadata, in the place of other ones is looked at before those are let go of. One that is where it was
/// stays attached: nothing that urbd acts on needs it to be attached anew.
fn with_disks_that_stay(call: &Call, target: &Target, mut plan: Plan) -> Result<Plan, Problem> {
    let wanted = target.local()?;
    let in_force = in_force(call, &wanted.name)?;
    let in_force = in_force.resource_as_seen_by(&wanted.name, &call.context.this_host());
    let in_force = in_force.map_err(|e| Problem::new(exit::BROKEN, e.to_string()))?;
    let stays = |nr: VolumeNr| place(&in_force, nr) == place(wanted, nr);
    let comes = |nr: VolumeNr| plan.steps.iter().any(|s| matches!(s, Step::Attach { volume, .. } if *volume == nr));
    // The process itself has what it is to go on with in another way.
    let held: Vec<&str> = in_force.volumes.iter().filter_map(|v| paths(&in_force, v.nr)).flatten().collect();
    let free = |nr: VolumeNr| paths(wanted, nr).is_some_and(|[_, meta]| !held.contains(&meta));
    lifecycle::make_clean(wanted, |nr| comes(nr) && !stays(nr) && free(nr)).map_err(|problem| {
        let next = problem.hint.as_ref().map_or_else(String::new, |hint| format!("; {hint}"));
        Problem { exit: exit::FAILURE, ..problem }.hint(format!("nothing was changed{next}"))
    })?;
    let goes = |nr: VolumeNr| plan.steps.iter().any(|s| matches!(s, Step::Detach { volume, .. } if *volume == nr));
    let again: Vec<VolumeNr> =
        wanted.volumes.iter().map(|v| v.nr).filter(|nr| goes(*nr) && comes(*nr) && stays(*nr)).collect();
    plan.steps.retain(|step| match step {
        Step::Detach { volume, .. } | Step::Attach { volume, .. } => !again.contains(volume),
        _ => true,
    });
    Ok(plan)
}

fn scope(call: &Call, target: &Target) -> AdjustScope {
    AdjustScope {
        skip_net: call.flag("skip-net"),
        skip_disk: call.flag("skip-disk"),
        only_peer: target.name.peer.as_ref().and_then(|_| target.peers().next()).map(|p| p.peer_node_id),
        only_volume: target.name.volume.map(VolumeNr),
        discard_my_data: call.flag("discard-my-data"),
        tentative: false,
    }
}

/// The configuration that the running process works by, with the disks and connections as they are now.
pub(crate) fn running(call: &Call, resource: &str) -> Result<Running, Problem> {
    let in_force = in_force(call, resource)?;
    let in_force = in_force.resource_as_seen_by(resource, &call.context.this_host());
    let in_force = in_force.map_err(|e| Problem::new(exit::BROKEN, e.to_string()))?;
    let status = status::one(call.context, resource)?;
    let mut running = Running::from_configuration(&in_force);
    add_order(&mut running, &in_force, &call.context.own_resources()?);
    Ok(as_it_is_now(running, &status))
}

/// The running process knows other resources by name only: gives each dependency on one its minor, as configured ones
/// have it.
fn add_order(running: &mut Running, in_force: &LocalResource, all: &[LocalResource]) {
    let spec = config::option(&[Group::Disk], AFTER).expect("in the table");
    for volume in running.volumes.iter_mut().filter(|v| v.options.find(AFTER).is_none()) {
        let own = in_force.volumes.iter().find(|v| v.nr == volume.nr);
        let named = own.and_then(|v| v.disk.resync_after.as_deref()).and_then(config::volume_name);
        let Some((name, nr)) = named else { continue };
        let Some(other) = all.iter().find(|r| r.name == name) else { continue };
        let before = other.volumes.iter().find(|v| nr.is_none_or(|nr| v.nr == nr));
        let setting = before.and_then(|v| Setting::parse(spec, &v.minor.to_string()).ok());
        volume.options = volume.options.iter().cloned().chain(setting).collect();
    }
}

/// The configuration that the running process works by.
pub(crate) fn in_force(call: &Call, resource: &str) -> Result<Config, Problem> {
    let text = status::text(call.context, resource, &Request::Show)?;
    let unusable = |why: String| {
        Problem::new(exit::BROKEN, format!("{resource}: the running configuration is not understood: {why}"))
            .hint(format!("restart the resource: urbd down {resource}; urbd up {resource}"))
    };
    let config = config::load_text(&Disk, &call.context.config_file, &text, &LoadOptions::default());
    config.map_err(|e| unusable(e.to_string()))
}

fn as_it_is_now(mut running: Running, status: &ResourceStatus) -> Running {
    for volume in &mut running.volumes {
        if status.device(volume.nr.0).is_none_or(|d| d.disk == DiskState::Diskless) {
            volume.backing = None;
        }
    }
    for connection in &mut running.connections {
        let id = u8::try_from(connection.peer_node_id.index()).ok();
        let now = status.connections.iter().find(|c| c.peer_node_id == id);
        connection.standalone = now.is_none_or(|c| c.connection == ConnectionState::StandAlone);
    }
    running
}

/// Lets go of what goes away, hands over the new options, then attaches and connects.
fn carry_out(call: &Call, target: &Target, plan: &Plan) -> Result<(), Problem> {
    let (before, after): (Vec<&Step>, Vec<&Step>) =
        plan.steps.iter().partition(|step| matches!(step, Step::Detach { .. } | Step::Disconnect { .. }));
    for command in before.into_iter().filter_map(command) {
        commands::send(call, target, command)?;
    }
    let name = &target.name.resource;
    let config = call.context.config()?.dump(&call.context.this_host(), false, &[name]);
    // Not all of it is a step: handlers, and urbd's own section.
    let differs = !is_partial(call, target) && status::text(call.context, name, &Request::Show)? != config;
    if differs || after.iter().any(|step| command(step).is_none()) {
        let new_config = Command::ChangeOptions { config };
        commands::send(call, target, new_config).map_err(|p| {
            if p.hint.is_some() { p } else { p.hint(format!("restart it: urbd down {name}; urbd up {name}")) }
        })?;
    }
    for step in after {
        let before =
            if let Step::Resize { volume, .. } = step { Some((*volume, size(call, target, *volume)?)) } else { None };
        if let Some(command) = command(step) {
            commands::send(call, target, command)?;
        }
        if let Some((volume, before)) = before {
            check_size(call, target, volume, before)?;
        }
    }
    Ok(())
}

/// Of the device, in KiB, and if all peers are connected.
fn size(call: &Call, target: &Target, nr: VolumeNr) -> Result<(u64, bool), Problem> {
    let status = status::one(call.context, &target.name.resource)?;
    let size = status.device(nr.0).and_then(|d| d.statistics.as_ref()).map_or(0, |s| s.size_sectors / 2);
    Ok((size, status.connections.iter().all(|c| c.connection == ConnectionState::Connected)))
}

/// A device that is in use does not become smaller, and options are not changed for that.
fn check_shrinking(call: &Call, target: &Target, plan: &Plan) -> Result<(), Problem> {
    let name = &target.name.resource;
    for step in &plan.steps {
        let Step::Resize { volume, .. } = step else { continue };
        let limit =
            target.local()?.volumes.iter().find(|v| v.nr == *volume).map_or(0, |v| v.disk.size.to_bytes().0 / 1024);
        let status = status::one(call.context, name)?;
        let open = status.device(volume.0).is_some_and(|d| d.open == Some(true));
        let (size, _) = size(call, target, *volume)?;
        if open && limit > 0 && limit < size {
            let text = format!("{name}/{volume}: it has {size} KiB, would have {limit} KiB, and is in use");
            return Err(
                Problem::new(exit::IN_USE, text).hint("nothing was changed; close it first, or take `size` out")
            );
        }
    }
    Ok(())
}

/// A resize that lacks a peer, or room, leaves the device as it is, and succeeds: `size` is a limit.
fn check_size(call: &Call, target: &Target, nr: VolumeNr, (before, _): (u64, bool)) -> Result<(), Problem> {
    let name = &target.name.resource;
    let limit = target.local()?.volumes.iter().find(|v| v.nr == nr).map_or(0, |v| v.disk.size.to_bytes().0 / 1024);
    let (size, connected) = size(call, target, nr)?;
    let wanted = match limit {
        // What there is room for is known if all say so.
        0 if connected || size != before => return Ok(()),
        0 => "is not limited any more".to_owned(),
        limit if size >= limit => return Ok(()),
        limit => format!("may be {limit} KiB"),
    };
    let text = format!("{name}/{nr}: the size stays {size} KiB, although it {wanted}");
    let next = "connect the peers, and let all backing disks be large enough";
    Err(Problem::new(exit::FAILURE, text).hint(format!("{next}; then: urbd resize {name}/{nr}")))
}

/// The command for a step that is not a change of the configuration.
fn command(step: &Step) -> Option<Command> {
    match step {
        Step::Detach { volume, .. } => Some(Command::Detach { volume: Some(volume.0), force: false }),
        Step::Attach { volume, .. } => Some(Command::Attach { volume: Some(volume.0) }),
        Step::Disconnect { peer } => Some(Command::Disconnect { peer: Some(peer.to_string()), force: false }),
        Step::Connect { peer, discard_my_data, .. } => {
            Some(Command::Connect { peer: Some(peer.to_string()), discard_my_data: *discard_my_data })
        }
        // The new size is an option that was taken over before.
        Step::Resize { volume, .. } => {
            Some(Command::Resize { volume: Some(volume.0), assume_clean: false, assume_peer_has_space: false })
        }
        _ => None,
    }
}
