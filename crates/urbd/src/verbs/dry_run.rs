//! `--dry-run`: the commands that drbdadm would run, one a line and quoted for a shell; other programs do run them
//! (`docs/spec/config-and-cli.md` 3.1, 7.3).

use config::{AdjustScope, Group, LocalVolume, PeerDevice, Plan, Step, shell_line};

use crate::cli::Call;
use crate::objects::Target;
use crate::problem::Problem;
use crate::verbs::{Verb, metadata, options};

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
    /// `VERB-resource`, or `VERB-connection` if a peer was named
    Wait,
    /// As `up` does it
    Attach,
}

fn shape(verb: &str) -> Option<Shape> {
    Some(match verb {
        "primary" | "secondary" | "down" | "role" | "show" | "resource-options" => Shape::Resource,
        "detach" | "disk-options" | "suspend-io" | "resume-io" | "new-current-uuid" => Shape::Minor,
        "connect" | "disconnect" | "cstate" | "net-options" => Shape::Peer,
        "invalidate-remote" | "verify" | "pause-sync" | "resume-sync" | "peer-device-options" => Shape::PeerDevice,
        "dump-md" | "wipe-md" | "apply-al" | "create-md" => Shape::Metadata,
        "invalidate" | "outdate" | "dstate" => Shape::MinorElseMetadata,
        "get-gi" | "show-gi" => Shape::PeerDeviceElseMetadata,
        "resize" | "check-resize" => Shape::Resize,
        "wait-connect" | "wait-sync" => Shape::Wait,
        "attach" => Shape::Attach,
        _ => return None,
    })
}

/// The lines for one object; `None` if this verb only looks at the configuration or prints its own plan.
pub(crate) fn lines(verb: &Verb, call: &Call, target: &Target) -> Result<Option<Vec<String>>, Problem> {
    let Some(shape) = shape(verb.name) else { return Ok(None) };
    let local = target.local()?;
    let resource = local.name.as_str();
    let options = given_options(verb, call);
    if options.is_empty() && !verb.settings.is_empty() {
        return Ok(Some(as_configured(verb, target)?));
    }
    let setup = |verb: &str, arguments: &[&str]| {
        let words = ["drbdsetup", verb].into_iter().chain(arguments.iter().copied()).map(str::to_owned);
        shell_line(&words.chain(options.iter().cloned()).collect::<Vec<_>>())
    };
    let per_minor = |verb: &str| -> Vec<String> {
        target.volumes().map(|volume| setup(verb, &[&volume.minor.to_string()])).collect()
    };
    let per_peer = |verb: &str| -> Vec<String> {
        target.peers().map(|peer| setup(verb, &[resource, &peer.peer_node_id.to_string()])).collect()
    };
    let per_peer_device = || -> Vec<String> {
        let pairs = target.peers().flat_map(|peer| target.volumes().map(move |volume| (peer, volume)));
        pairs.map(|(p, v)| setup(verb.name, &[resource, &p.peer_node_id.to_string(), &v.nr.to_string()])).collect()
    };
    let per_disk = || -> Result<Vec<String>, Problem> {
        let lines = target.volumes().map(|volume| metadata_line(verb.name, call, target, volume, &options));
        Ok(lines.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    };
    Ok(Some(match shape {
        Shape::Resource => vec![setup(verb.name, &[resource])],
        Shape::Minor => per_minor(verb.name),
        Shape::Peer => per_peer(verb.name),
        Shape::PeerDevice => per_peer_device(),
        Shape::Metadata => per_disk()?,
        Shape::MinorElseMetadata => [per_minor(verb.name), per_disk()?].concat(),
        Shape::PeerDeviceElseMetadata => [per_peer_device(), per_disk()?].concat(),
        Shape::Resize => {
            per_minor("resize").into_iter().zip(per_minor("check-resize")).flat_map(<[_; 2]>::from).collect()
        }
        Shape::Wait if target.name.peer.is_some() => per_peer(&format!("{}-connection", verb.name)),
        Shape::Wait => vec![setup(&format!("{}-resource", verb.name), &[resource])],
        Shape::Attach => attach_lines(target)?,
    }))
}

/// Option verbs without options: everything as configured again.
fn as_configured(verb: &Verb, target: &Target) -> Result<Vec<String>, Problem> {
    let local = target.local()?;
    let steps: Vec<Step> = match verb.name {
        "disk-options" => {
            let step = |v: &LocalVolume| {
                let options = v.settings.iter().filter(|s| s.spec.group == Group::Disk && s.spec.name != "size");
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
    if matches!(verb, "get-gi" | "show-gi")
        && let Some(peer) = target.peers().next()
    {
        words.push(format!("--node-id={}", peer.peer_node_id));
    }
    words.push(verb.to_owned());
    if verb == "create-md" && creation.version == meta::Version::V09 {
        words.push(creation.geometry.slots().to_string());
    }
    let only_ours = ["--format", "--max-peers"];
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
