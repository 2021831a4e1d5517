//! The verbs of drbdadm that make one kind of a configured resource's objects, or remove them: what drbdsetup would be
//! told (`docs/spec/config-and-cli.md` 3.2).

use config::{AdjustScope, LocalResource, Plan, Step};
use control::{Command, ErrorCode, Failure};
use units::VolumeNr;

use crate::cli::Call;
use crate::objects::Target;
use crate::problem::Problem;
use crate::verbs::{background, lifecycle, metadata, told};

/// What a verb does to the objects that a target stands for.
///
/// # Errors
/// Exit 1: it is not configured; exit 10: the configuration is not valid.
pub(crate) fn steps(verb: &str, target: &Target) -> Result<Vec<Step>, Problem> {
    let local = target.local()?;
    let of_peer = |id| target.peers().any(|p| p.peer_node_id == id);
    let made = Plan::up(local, &AdjustScope::default()).steps.into_iter();
    Ok(match verb {
        "new-resource" => made.filter(|step| matches!(step, Step::NewResource { .. })).collect(),
        "new-minor" => {
            let meant = |nr| target.volumes().any(|v| v.nr == nr);
            made.filter(|step| matches!(step, Step::NewMinor { volume, .. } if meant(*volume))).collect()
        }
        "new-peer" => made.filter(|step| matches!(step, Step::NewPeer { peer, .. } if of_peer(*peer))).collect(),
        "new-path" => made.filter(|step| matches!(step, Step::NewPath { peer, .. } if of_peer(*peer))).collect(),
        "del-path" => {
            let gone = |step| match step {
                Step::NewPath { peer, path } if of_peer(peer) => Some(Step::DelPath { peer, path }),
                _ => None,
            };
            made.filter_map(gone).collect()
        }
        "del-minor" => target.volumes().map(|v| Step::DelMinor { volume: v.nr, minor: v.minor }).collect(),
        _ => target.peers().map(|p| Step::DelPeer { peer: p.peer_node_id }).collect(),
    })
}

pub(crate) fn new_resource(call: &Call, target: &Target) -> Result<u8, Problem> {
    let local = target.local()?;
    if call.context.is_running(&local.name) {
        return Err(Problem::refused(&local.name, &Failure::new(ErrorCode::ALREADY_EXISTS, ""))
            .hint(format!("to make what is missing of it: urbd adjust {}", local.name)));
    }
    lifecycle::check_startable(call.context, local)?;
    let alone = LocalResource { volumes: Vec::new(), peers: Vec::new(), ..local.clone() };
    background::start_told(call.context, &alone)
}

pub(crate) fn new_minor(call: &Call, target: &Target) -> Result<u8, Problem> {
    tell(call, target, "new-minor")
}

pub(crate) fn new_peer(call: &Call, target: &Target) -> Result<u8, Problem> {
    tell(call, target, "new-peer")
}

pub(crate) fn new_path(call: &Call, target: &Target) -> Result<u8, Problem> {
    tell(call, target, "new-path")
}

pub(crate) fn del_path(call: &Call, target: &Target) -> Result<u8, Problem> {
    tell(call, target, "del-path")
}

pub(crate) fn del_minor(call: &Call, target: &Target) -> Result<u8, Problem> {
    tell(call, target, "del-minor")
}

/// Disconnects first.
pub(crate) fn del_peer(call: &Call, target: &Target) -> Result<u8, Problem> {
    let name = &target.name.resource;
    check_runs(call, name)?;
    let peers: Vec<String> = target.peers().map(|p| p.peer_node_id.to_string()).collect();
    told::disconnect(call.context, name, &target.to_string(), &peers, call.flag("force"))?;
    tell(call, target, "del-peer")
}

/// What the metadata of attached disks have of peers that were removed; of a resource that does not run, of all disks.
pub(crate) fn forget_peer(call: &Call, target: &Target) -> Result<u8, Problem> {
    let name = &target.name.resource;
    if !call.context.is_running(name) {
        return metadata::forget_peer(call, target);
    }
    for peer in target.peers().filter_map(|p| u8::try_from(p.peer_node_id.index()).ok()) {
        told::send(call.context, name, &target.to_string(), Command::ForgetPeer { peer })?;
    }
    Ok(0)
}

fn check_runs(call: &Call, name: &str) -> Result<(), Problem> {
    match call.context.is_running(name) {
        true => Ok(()),
        false => Err(Problem::refused(name, &Failure::new(ErrorCode::UNKNOWN_RESOURCE, ""))
            .hint(format!("make it first: urbd new-resource {name}; or all of it: urbd up {name}"))),
    }
}

/// One command for each object, as drbdadm does it: what one of them is refused for does not undo the others.
fn tell(call: &Call, target: &Target, verb: &str) -> Result<u8, Problem> {
    let name = &target.name.resource;
    check_runs(call, name)?;
    told::changeable(call.context, name)?;
    let wanted = target.local()?;
    for step in steps(verb, target)? {
        told::tell(call.context, name, &target.to_string(), vec![wanted.words(&step)])?;
    }
    Ok(0)
}

/// Which disks the volumes have whose process was told of none.
///
/// # Errors
/// As it refuses them.
pub(crate) fn tell_disks(call: &Call, target: &Target) -> Result<(), Problem> {
    let (name, Some(wanted)) = (&target.name.resource, &target.local) else { return Ok(()) };
    if call.context.of_running || !call.context.is_running(name) {
        return Ok(());
    }
    let running = told::in_force(call.context, name)?;
    let lacks = |nr: VolumeNr| running.volumes.iter().any(|v| v.nr == nr && v.backing.is_none());
    let meant = |nr: VolumeNr| target.name.volume.is_none_or(|only| only == nr.0) && lacks(nr);
    let made = Plan::up(wanted, &AdjustScope::default()).steps.into_iter();
    let calls: Vec<_> = made
        .filter(|step| matches!(step, Step::Attach { volume, .. } if meant(*volume)))
        .map(|step| wanted.words(&step))
        .collect();
    if calls.is_empty() {
        return Ok(());
    }
    lifecycle::make_clean(wanted, meant)?;
    told::tell(call.context, name, &target.to_string(), calls)
}
