//! `--dry-run`: the commands that drbdadm would run, one a line and quoted for a shell; other programs do run them
//! (`docs/spec/config-and-cli.md` 3.1, 7.3).

use config::{AdjustScope, Group, LocalVolume, PeerDevice, Plan, Step, shell_line};

use crate::cli::Call;
use crate::objects::Target;
use crate::offline::Place;
use crate::problem::Problem;
use crate::verbs::{Verb, adjust, handlers, lifecycle, metadata, objects, options};

/// What a verb is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// `drbdsetup VERB RES`
    Resource,
    /// `drbdsetup VERB MINOR` for each volume
    Minor,
    /// `drbdsetup VERB RES PEER` for each connection
    Peer,
    /// `drbdsetup VERB RES PEER VOL` for each peer device
    PeerDevice,
    /// `drbdmeta MINOR FORMAT DEV INDEX VERB` for each disk
    Metadata,
    /// `Minor`, and if that fails `Metadata`
    MinorElseMetadata,
    /// `PeerDevice`, and if that fails `Metadata`
    PeerDeviceElseMetadata,
    /// `Minor`, then `check-resize`
    Resize,
    /// `VERB-resource`, `VERB-connection` if a peer was named, `VERB-volume` if a volume of his was
    Wait,
    /// As `up` does it
    Attach,
    /// The plan of `up` or `adjust`
    Plan,
    /// The steps of a plan that are about one kind of object
    Objects,
    /// The configured command
    Handler,
}

fn shape(verb: &str) -> Option<Shape> {
    Some(match verb {
        "primary" | "secondary" | "down" | "role" | "resource-options" => Shape::Resource,
        "detach" | "disk-options" | "suspend-io" | "resume-io" | "new-current-uuid" => Shape::Minor,
        "connect" | "disconnect" | "cstate" | "peer-role" | "net-options" | "forget-peer" => Shape::Peer,
        "invalidate-remote" | "verify" | "pause-sync" | "resume-sync" | "peer-device-options" => Shape::PeerDevice,
        "dump-md" | "wipe-md" | "apply-al" | "create-md" | "set-gi" | "repair-md" => Shape::Metadata,
        "invalidate" | "outdate" | "dstate" => Shape::MinorElseMetadata,
        "get-gi" | "show-gi" => Shape::PeerDeviceElseMetadata,
        "resize" | "check-resize" => Shape::Resize,
        "wait-connect" | "wait-sync" | "wait-con-int" => Shape::Wait,
        "attach" => Shape::Attach,
        "new-resource" | "new-minor" | "new-peer" | "new-path" | "del-path" | "del-peer" | "del-minor" => {
            Shape::Objects
        }
        "up" | "adjust" | "adjust-with-progress" | "restart" => Shape::Plan,
        handler if handlers::is_one(handler) => Shape::Handler,
        _ => return None,
    })
}

/// A dry run never does what the verb does: one that has no lines is refused.
pub(crate) fn none(verb: &str) -> Problem {
    Problem::usage(format!("{verb} has no dry run: nothing was done")).hint("call it without --dry-run")
}

/// The lines for a verb that is called once for its whole command line.
pub(crate) fn once(verb: &Verb, call: &Call) -> Result<Vec<String>, Problem> {
    match verb.name {
        "restore-md" => {
            let (target, file) = metadata::restore_arguments(call)?;
            let local = target.local()?;
            let lines = target.volumes().filter_map(|v| metadata::place(local, v).map(|place| (v.minor, place)));
            let file = file.unwrap_or_else(|| "/dev/stdin".to_owned());
            let line = |(minor, place): (u32, Place)| {
                let version = metadata::creation(call, local)?.version;
                let mut words: Vec<String> = vec!["drbdmeta".into(), minor.to_string(), version.to_string()];
                words.extend([place.path.display().to_string(), place.kind.to_string(), "restore-md".into()]);
                words.extend(call.flag("force").then(|| "--force".to_owned()).into_iter().chain([file.clone()]));
                Ok(shell_line(&words))
            };
            lines.map(line).collect()
        }
        "run" => {
            let target = lifecycle::only_resource(call)?;
            plan_lines(verb, call, &target)
        }
        other => Err(none(other)),
    }
}

/// What `up`, `run` and `adjust` would do; what they would refuse is refused.
fn plan_lines(verb: &Verb, call: &Call, target: &Target) -> Result<Vec<String>, Problem> {
    match verb.name {
        "run" => lifecycle::check_servable(call.context, target.local()?)?,
        _ => lifecycle::check_startable(call.context, target.local()?)?,
    }
    lifecycle::warn(target.local()?);
    let plan = match verb.name {
        "adjust" | "adjust-with-progress" => adjust::plan(call, target)?,
        _ => Plan::up(target.local()?, &AdjustScope::default()),
    };
    plan.notes.iter().for_each(|note| eprintln!("urbd: {target}: {note}"));
    Ok(adjust::plan_lines(&plan))
}

/// The lines for one object.
pub(crate) fn lines(verb: &Verb, call: &Call, target: &Target) -> Result<Vec<String>, Problem> {
    let shape = shape(verb.name).ok_or_else(|| none(verb.name))?;
    let local = target.local()?;
    let resource = local.name.as_str();
    let options = given_options(verb, call);
    if options.is_empty() && !verb.settings.is_empty() {
        return as_configured(verb, target);
    }
    let plain = |verb: &str, arguments: &[&str]| -> Vec<String> {
        ["drbdsetup", verb].into_iter().chain(arguments.iter().copied()).map(str::to_owned).collect()
    };
    let setup = |verb: &str, arguments: &[&str]| shell_line(&[plain(verb, arguments), options.clone()].concat());
    let per_minor = |verb: &str| -> Vec<String> {
        target.volumes().map(|volume| setup(verb, &[&volume.minor.to_string()])).collect()
    };
    let per_peer = |verb: &str| -> Vec<String> {
        target.peers().map(|peer| setup(verb, &[resource, &peer.peer_node_id.to_string()])).collect()
    };
    let per_peer_device = |verb: &str| -> Vec<String> {
        let pairs = target.peers().flat_map(|peer| target.volumes().map(move |volume| (peer, volume)));
        pairs.map(|(p, v)| setup(verb, &[resource, &p.peer_node_id.to_string(), &v.nr.to_string()])).collect()
    };
    let per_disk = || -> Result<Vec<String>, Problem> {
        let lines = target.volumes().map(|volume| metadata_line(verb.name, call, target, volume, &options));
        Ok(lines.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    };
    Ok(match shape {
        Shape::Resource => vec![setup(verb.name, &[resource])],
        Shape::Minor => per_minor(verb.name),
        Shape::Peer => per_peer(verb.name),
        Shape::PeerDevice => per_peer_device(verb.name),
        Shape::Metadata => per_disk()?,
        Shape::MinorElseMetadata => [per_minor(verb.name), per_disk()?].concat(),
        Shape::PeerDeviceElseMetadata => [per_peer_device(verb.name), per_disk()?].concat(),
        Shape::Resize => {
            let check = |v: &LocalVolume| shell_line(&plain("check-resize", &[&v.minor.to_string()]));
            target.volumes().flat_map(|v| [setup("resize", &[&v.minor.to_string()]), check(v)]).collect()
        }
        Shape::Wait => {
            let verb = if verb.name == "wait-sync" { "wait-sync" } else { "wait-connect" };
            match (&target.name.peer, target.name.volume) {
                (Some(_), Some(_)) => per_peer_device(&format!("{verb}-volume")),
                (Some(_), None) => per_peer(&format!("{verb}-connection")),
                (None, _) => vec![setup(&format!("{verb}-resource"), &[resource])],
            }
        }
        Shape::Attach => attach_lines(target)?,
        Shape::Plan => plan_lines(verb, call, target)?,
        Shape::Objects => {
            let steps = objects::steps(verb.name, target)?;
            steps.iter().flat_map(|step| step.commands(resource)).map(|words| shell_line(&words)).collect()
        }
        Shape::Handler => handlers::line(verb.name, local).into_iter().collect(),
    })
}

/// Option verbs without options: everything as configured again.
fn as_configured(verb: &Verb, target: &Target) -> Result<Vec<String>, Problem> {
    let local = target.local()?;
    let steps: Vec<Step> = match verb.name {
        "disk-options" => {
            let step = |v: &LocalVolume| {
                let options = v.numbered();
                let options = options.iter().filter(|s| s.spec.group == Group::Disk && s.spec.name != "size");
                Step::DiskOptions { volume: v.nr, minor: v.minor, options: options.cloned().collect() }
            };
            target.volumes().map(step).collect()
        }
        "net-options" => {
            target.peers().map(|p| Step::NetOptions { peer: p.peer_node_id, options: p.named_settings() }).collect()
        }
        "peer-device-options" => {
            let devices = target.peers().flat_map(|p| p.peer_devices.iter().map(move |d| (p.peer_node_id, d)));
            let meant = devices.filter(|(_, d)| target.volumes().any(|v| v.nr == d.volume));
            let step = |(peer, d): (_, &PeerDevice)| {
                let (volume, options) = (d.volume, d.settings.clone());
                Step::PeerDeviceOptions { peer, volume, options, reset: true }
            };
            meant.map(step).collect()
        }
        _ => vec![Step::ResourceOptions { options: local.settings.clone() }],
    };
    Ok(steps.iter().flat_map(|s| s.commands(&local.name)).map(|c| shell_line(&c)).collect())
}

fn attach_lines(target: &Target) -> Result<Vec<String>, Problem> {
    let plan = Plan::up(target.local()?, &AdjustScope::default());
    let wanted = |step: &&Step| match step {
        Step::Attach { volume, .. } => target.name.volume.is_none_or(|nr| nr == volume.0),
        _ => false,
    };
    Ok(plan.steps.iter().filter(wanted).flat_map(|s| s.commands(&plan.resource)).map(|c| shell_line(&c)).collect())
}

fn metadata_line(
    verb: &str,
    call: &Call,
    target: &Target,
    volume: &LocalVolume,
    options: &[String],
) -> Result<Option<String>, Problem> {
    let local = target.local()?;
    let Some(place) = metadata::place(local, volume) else { return Ok(None) };
    let creation = metadata::creation(call, local)?;
    let mut words: Vec<String> = vec!["drbdmeta".into(), volume.minor.to_string(), creation.version.to_string()];
    words.extend([place.path.display().to_string(), place.kind.to_string()]);
    if matches!(verb, "get-gi" | "show-gi" | "set-gi")
        && let Some(peer) = target.peers().next()
    {
        words.push(format!("--node-id={}", peer.peer_node_id));
    }
    words.push(verb.to_owned());
    if verb == "create-md" && creation.version == meta::Version::V09 {
        words.push(creation.geometry.slots().to_string());
    }
    // What is an argument of drbdmeta.
    words.extend(call.value("gi").map(str::to_owned));
    let only_ours = ["--format", "--max-peers", "--gi", "--node-id"];
    words.extend(options.iter().filter(|o| !only_ours.iter().any(|ours| o.starts_with(ours))).cloned());
    Ok(Some(shell_line(&words)))
}

fn given_options(verb: &Verb, call: &Call) -> Vec<String> {
    let given = verb.options.iter().filter_map(|option| match option.value {
        None if call.flag(option.name) => Some(format!("--{}", option.name)),
        None => None,
        Some(_) => call.value(option.name).map(|value| format!("--{}={value}", option.name)),
    });
    let settings = options::settable(verb.settings).map(|spec| spec.name);
    given.chain(settings.filter_map(|name| Some(format!("--{name}={}", call.value(name)?)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{self, Action};

    /// These are refused with `--dry-run`.
    const WITHOUT: [&str; 2] = ["keep", "setup"];

    #[test]
    fn a_verb_that_changes_something_has_lines_or_is_known_to_have_none() {
        for verb in verbs::all() {
            let has = match verb.action {
                Action::Look(_) | Action::LookAt(_) => continue,
                Action::Each(_) | Action::SideBySide(_) => shape(verb.name).is_some(),
                Action::Once(_) => ["restore-md", "run"].contains(&verb.name),
            };
            assert_ne!(has, WITHOUT.contains(&verb.name), "{}", verb.name);
        }
    }
}
