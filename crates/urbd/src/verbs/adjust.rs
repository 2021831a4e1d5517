//! `adjust`: what differs between a running resource and its configuration, and taking it over
//! (`docs/spec/config-and-cli.md` 5.3).

use std::collections::BTreeSet;

use config::{AdjustScope, Group, LocalResource, Plan, Running, Setting, Step, shell_line};
use control::{Command, ConnectionState, DiskState, ResourceStatus};
use units::{VolumeNr, same_host};

use crate::cli::Call;
use crate::objects::Target;
use crate::problem::{Problem, exit};
use crate::verbs::options::AFTER;
use crate::verbs::status::Stops;
use crate::verbs::{commands, lifecycle, metadata, status, told};

/// Starts what does not run; otherwise the running process takes over the configuration, or is started anew if it has
/// other volumes or peers.
pub(crate) fn adjust(call: &Call, target: &Target) -> Result<u8, Problem> {
    let only_show = call.flag("tentative");
    if !only_show && !call.context.is_running(&target.name.resource) {
        let only_without_disks = call.flag("skip-disk") && !call.flag("skip-net") && target.name.is_whole();
        return match is_partial(call, target) {
            true if only_without_disks => lifecycle::up_without_disks(call, target),
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
    if has_other_objects(&plan) {
        metadata::check_room(target.local()?)?;
    }
    let plan = with_disks_that_stay(call, target, plan)?;
    if let Some(note) = plan.notes.first().filter(|_| !partial) {
        return Err(Problem::new(exit::FAILURE, format!("{target}: {note}")).hint("nothing was changed"));
    }
    check_going(call, target, &plan)?;
    check_shrinking(call, target, &plan)?;
    carry_out(call, target, &plan).map(|()| 0)
}

/// Would `adjust` change the running resource? Not all of that is a step: handlers, and urbd's own section.
pub(crate) fn would_change(call: &Call, target: &Target) -> Result<bool, Problem> {
    Ok(!plan(call, target)?.is_empty() || is_told_otherwise(call, target)?)
}

/// Was the running process told anything else than what is configured?
fn is_told_otherwise(call: &Call, target: &Target) -> Result<bool, Problem> {
    Ok(!told::in_force(call.context, &target.name.resource)?.is_same(target.local()?))
}

/// Was it called for a part of the resource only?
fn is_partial(call: &Call, target: &Target) -> bool {
    !target.name.is_whole() || call.flag("skip-net") || call.flag("skip-disk")
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
    let in_force = as_it_runs(call, wanted)?;
    let running = as_it_is_now(call, &in_force, &call.context.own_resources()?)?;
    let mut plan = Plan::adjust(Some(&running), wanted, &scope);
    if !is_partial(call, target) {
        if in_force.offers_nine() != wanted.offers_nine() {
            change_dialect(&mut plan, &status::one(call.context, &wanted.name)?, wanted);
        }
        check_fixed(&in_force, wanted)?;
        check_places(&in_force, wanted)?;
    }
    Ok(plan)
}

/// The dialect of a connection is agreed when it is made: one that would be made in the other one is made anew.
fn change_dialect(plan: &mut Plan, status: &ResourceStatus, wanted: &LocalResource) {
    let offers_nine = wanted.offers_nine() && !metadata::is_old(wanted);
    for peer in wanted.peers.iter().map(|p| p.peer_node_id) {
        let id = u8::try_from(peer.index()).ok();
        let Some(now) = status.connections.iter().find(|c| c.peer_node_id == id) else { continue };
        let Some(speaks_nine) = now.protocol.map(config::is_nine) else { continue };
        let connects = |step: &Step| matches!(step, Step::Connect { .. });
        let is_made = plan.steps.iter().any(|step| matches!(step, Step::Connect { peer: of, .. } if *of == peer));
        if speaks_nine != offers_nine && !is_made {
            // Before peers that are new: one that does not offer DRBD 9's dialect as yet is let in beside nobody.
            let at = plan.steps.iter().position(connects).unwrap_or(plan.steps.len());
            plan.steps.insert(at, Step::Connect { peer, discard_my_data: false, tentative: false });
            plan.steps.insert(0, Step::Disconnect { peer });
        }
    }
}

/// What a process has from its start is not changed.
fn check_fixed(in_force: &LocalResource, wanted: &LocalResource) -> Result<(), Problem> {
    let name = &wanted.name;
    let Some(found) = in_force.fixed_since_start(wanted).into_iter().next() else { return Ok(()) };
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
    let in_force = told::in_force(call.context, &wanted.name)?;
    let stays = |nr: VolumeNr| place(&in_force, nr) == place(wanted, nr);
    let comes = |nr: VolumeNr| plan.steps.iter().any(|s| matches!(s, Step::Attach { volume, .. } if *volume == nr));
    // The process itself has what it is to go on with in another way.
    let held: Vec<&str> = in_force.volumes.iter().filter_map(|v| paths(&in_force, v.nr)).flatten().collect();
    let free = |nr: VolumeNr| paths(wanted, nr).is_some_and(|[_, meta]| !held.contains(&meta));
    let is_new = |nr: VolumeNr| in_force.volumes.iter().all(|v| v.nr != nr);
    lifecycle::make_clean(wanted, |nr| comes(nr) && is_new(nr) && free(nr))?;
    lifecycle::make_clean(wanted, |nr| comes(nr) && !is_new(nr) && !stays(nr) && free(nr)).map_err(|problem| {
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

/// What the running process was told, with the disks and connections as they are now.
pub(crate) fn running(call: &Call, resource: &str) -> Result<Running, Problem> {
    let all = if call.context.of_running { told::all(call.context) } else { call.context.own_resources()? };
    as_it_is_now(call, &told::in_force(call.context, resource)?, &all)
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

/// The running resource, if it is this host's of the configuration.
fn as_it_runs(call: &Call, wanted: &LocalResource) -> Result<LocalResource, Problem> {
    let running = told::changeable(call.context, &wanted.name)?;
    if running.host.is_empty() || same_host(&running.host, &wanted.host) {
        return Ok(running);
    }
    let (name, before, now) = (&wanted.name, &running.host, &wanted.host);
    let text = format!("{name}: runs as host `{before}`, and is now configured for this host as `{now}`");
    Err(Problem::new(exit::FAILURE, text)
        .hint(format!("nothing was changed; start it anew: urbd restart {name} (devices that are in use stay)")))
}

fn as_it_is_now(call: &Call, in_force: &LocalResource, all: &[LocalResource]) -> Result<Running, Problem> {
    let status = status::one(call.context, &in_force.name)?;
    let mut running = Running::from_configuration(in_force);
    add_order(&mut running, in_force, all);
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
    Ok(running)
}

/// Lets go of what goes away, tells the process what it is to be, then attaches and connects.
fn carry_out(call: &Call, target: &Target, plan: &Plan) -> Result<(), Problem> {
    let lets_go = |step: &Step| match step {
        Step::DelPeer { peer } => Some(Command::Disconnect { peer: Some(peer.to_string()), force: false }),
        Step::Detach { .. } | Step::Disconnect { .. } => command(step),
        _ => None,
    };
    for command in plan.steps.iter().filter_map(lets_go) {
        let stops = Stops::before(call.context, &target.name.resource, command.clone());
        commands::send(call, target, command).map_err(|problem| stops.explain(problem))?;
        stops.warn(&target.name.resource);
    }
    let wanted = target.local()?;
    let (name, object) = (&target.name.resource, target.to_string());
    if is_partial(call, target) {
        let is_told = |step: &&Step| !matches!(step, Step::Disconnect { .. } | Step::Connect { .. });
        let calls: Vec<_> = plan.steps.iter().filter(is_told).map(|step| wanted.words(step)).collect();
        if !calls.is_empty() {
            told::tell(call.context, name, &object, calls)?;
        }
    } else if is_told_otherwise(call, target)? {
        commands::send(call, target, Command::ChangeOptions { config: wanted.told() })?;
    }
    for step in plan.steps.iter().filter(|step| !matches!(step, Step::Detach { .. } | Step::Disconnect { .. })) {
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

/// A volume that goes is in use by nobody: else nothing is let go of for it.
fn check_going(call: &Call, target: &Target, plan: &Plan) -> Result<(), Problem> {
    let name = &target.name.resource;
    let goes = |step: &Step| if let Step::DelMinor { volume, .. } = step { Some(*volume) } else { None };
    let going: Vec<VolumeNr> = plan.steps.iter().filter_map(goes).collect();
    if going.is_empty() {
        return Ok(());
    }
    let status = status::one(call.context, name)?;
    let is_open = |nr: &&VolumeNr| status.device(nr.0).is_some_and(|d| d.open == Some(true));
    let Some(nr) = going.iter().find(is_open) else { return Ok(()) };
    let text = format!("applications use the device of {name}/{nr}, which is to go");
    Err(Problem::new(exit::IN_USE, text)
        .hint(format!("nothing was changed; close it (unmount it), and then: urbd adjust {name}")))
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
