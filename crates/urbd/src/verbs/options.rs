//! `disk-options`, `net-options`, `peer-device-options`, `resource-options`: other options for what runs, until the
//! next `adjust` (`docs/spec/config-and-cli.md` 2.10, 3.2).

use config::{Group, Kind, LocalResource, OptionSpec, Setting, Settings, Unit};
use control::{ErrorCode, Failure};
use units::{NodeId, VolumeNr};

use crate::cli::Call;
use crate::objects::Target;
use crate::problem::{Problem, exit};
use crate::verbs::told;

/// What `disk-options` takes: as in 8.4 also the speed of a resync, and fencing.
pub(crate) const DISK: &[Group] = &[Group::Disk, Group::PeerDevice, Group::Net];
/// What `net-options` takes.
pub(crate) const NET: &[Group] = &[Group::Net];
/// What `peer-device-options` takes.
pub(crate) const PEER_DEVICE: &[Group] = &[Group::PeerDevice];
/// What `resource-options` takes.
pub(crate) const RESOURCE: &[Group] = &[Group::Resource];

/// The options that can be given with one of these lists.
pub(crate) fn settable(groups: &'static [Group]) -> impl Iterator<Item = &'static OptionSpec> {
    // The size is changed with `resize`; what is immutable and the peer's name, only by making the object anew.
    let fixed = |s: &OptionSpec| s.immutable || matches!(s.name, "size" | "_name" | "bitmap");
    let meant = move |s: &&OptionSpec| match s.group {
        Group::Net if groups.len() > 1 => s.name == "fencing",
        group => groups.contains(&group),
    };
    config::options().filter(move |s| meant(s) && !fixed(s))
}

/// The range and the default, for `--help`.
pub(crate) fn describe(spec: &OptionSpec) -> String {
    let unit = |unit: Unit| match unit {
        Unit::Byte => " bytes",
        Unit::KibPerSecond => " KiB/s",
        Unit::Sector => " sectors",
        Unit::Decisecond => " tenths of a second",
        Unit::Second | Unit::TimeSpan => " seconds",
        Unit::Millisecond => " milliseconds",
        Unit::Microsecond => " us",
        Unit::Percent => " %",
        Unit::One => "",
    };
    match spec.kind {
        Kind::Number { unit: u, default, min, max } => format!("{min} to {max}{}; default {default}", unit(u)),
        Kind::NumberOrWord { words, default, min, max } => {
            format!("{} or {min} to {max}; default {default}", words.join(", "))
        }
        Kind::Choice { words, default } => format!("{}; default {default}", words.join(", ")),
        Kind::Bool { default } => format!("yes, no; default {}", if default { "yes" } else { "no" }),
        Kind::Flag => "Flag".to_owned(),
        Kind::ResyncAfter { .. } => "RES/VOL, or a minor number; default -1: none".to_owned(),
        Kind::Text { .. } | Kind::Command => "Default: none".to_owned(),
    }
}

pub(crate) fn disk(call: &Call, target: &Target) -> Result<u8, Problem> {
    change(call, target, DISK)
}

pub(crate) fn net(call: &Call, target: &Target) -> Result<u8, Problem> {
    change(call, target, NET)
}

pub(crate) fn peer_device(call: &Call, target: &Target) -> Result<u8, Problem> {
    change(call, target, PEER_DEVICE)
}

pub(crate) fn resource(call: &Call, target: &Target) -> Result<u8, Problem> {
    change(call, target, RESOURCE)
}

/// Options given: those change. None given: all are as configured again. `--set-defaults`: the others are reset first.
fn change(call: &Call, target: &Target, groups: &'static [Group]) -> Result<u8, Problem> {
    let given = given(call, target, groups)?;
    let name = &target.name.resource;
    if !call.context.is_running(name) {
        return Err(Problem::not_running(name));
    }
    let now = told::changeable(call.context, name)?;
    let reset = call.flag("set-defaults");
    let configured = if given.is_empty() && !reset { Some(target.local()?) } else { None };
    let mut changed = now.clone();
    let mut calls = Vec::new();
    let mut parts = parts(target, &now, groups);
    if configured.is_some() && groups == DISK {
        // As in 8.4, what this verb sets towards the peers.
        parts.extend(self::parts(target, &now, PEER_DEVICE));
    }
    for part in parts {
        let wanted = match configured {
            Some(configured) => part.of(configured),
            None => given.clone(),
        };
        let mut words = part.words(name);
        words.extend((reset || configured.is_some()).then(|| "--set-defaults".to_owned()));
        words.extend(wanted.iter().map(|s| format!("--{}={}", s.spec.name, s.text)));
        changed
            .tell(&words)
            .map_err(|e| Problem::refused(&target.to_string(), &Failure::new(ErrorCode(e.code), e.text)))?;
        calls.push(words);
    }
    if given.iter().any(|s| s.spec.name == AFTER) {
        check_order(call, target, &changed)?;
    }
    let startable = changed.check_startable().and_then(|()| changed.check_wanted());
    startable.map_err(|e| Problem::new(exit::FAILURE, e.to_string()))?;
    for idle in given.iter().filter(|s| !s.spec.honoured && !s.is_default()) {
        eprintln!("urbd: warning: {target}: option `{}` is accepted, but urbd does not act on it yet", idle.spec.name);
    }
    told::tell(call.context, name, &target.to_string(), calls).map(|()| 0)
}

/// Whether volumes would wait in a circle, for resources that run and such that are only configured.
fn check_order(call: &Call, target: &Target, changed: &LocalResource) -> Result<(), Problem> {
    let mut all = told::all(call.context);
    if !call.context.of_running {
        let configured = call.context.own_resources()?.into_iter();
        let absent: Vec<_> = configured.filter(|c| all.iter().all(|running| running.name != c.name)).collect();
        all.extend(absent);
    }
    let Some(way) = told::circle(changed, &all) else { return Ok(()) };
    let text = format!("{target}: `{AFTER}` makes a circle: {}", way.join(" -> "));
    Err(Problem::new(exit::FAILURE, text).hint("nothing was changed; let one of them wait for none: --resync-after=-1"))
}

/// Limits the device of each volume to a size (`resize --size`), until the next `adjust`.
///
/// # Errors
/// Exit 1: `text` is no size; else as the option verbs.
pub(crate) fn set_size(call: &Call, target: &Target, text: &str) -> Result<(), Problem> {
    let name = &target.name.resource;
    let spec = config::option(&[Group::Disk], "size").expect("in the table");
    Setting::parse(spec, text).map_err(|bad| Problem::usage(format!("{target}: {}", bad.message)))?;
    let now = told::changeable(call.context, name)?;
    let meant = now.volumes.iter().filter(|v| target.name.volume.is_none_or(|nr| nr == v.nr.0));
    let calls = meant.map(|v| told::words(["resize", &v.minor.to_string(), &format!("--size={text}")])).collect();
    told::tell(call.context, name, &target.to_string(), calls)
}

fn given(call: &Call, target: &Target, groups: &'static [Group]) -> Result<Settings, Problem> {
    let one = |spec: &'static OptionSpec| Some((spec, call.value(spec.name)?));
    let parse = |(spec, text): (&'static OptionSpec, &str)| {
        let text = match (spec.kind, text.parse::<u32>()) {
            (Kind::ResyncAfter { .. }, Ok(minor)) => volume_of(call, minor)?,
            _ => text.to_owned(),
        };
        Setting::parse(spec, &text).map_err(|bad| Problem::usage(format!("{target}: {}", bad.message)).hint(bad.help))
    };
    settable(groups).filter_map(one).map(parse).collect()
}

/// The volume with this minor, as configurations name it.
fn volume_of(call: &Call, minor: u32) -> Result<String, Problem> {
    let resources = call.context.own_resources()?;
    let found = resources.iter().find_map(|r| Some((r, r.volumes.iter().find(|v| v.minor == minor)?)));
    let (resource, volume) =
        found.ok_or_else(|| Problem::usage(format!("minor {minor} belongs to no resource of this host")))?;
    Ok(format!("{}/{}", resource.name, volume.nr))
}

/// An object that has options.
enum Part {
    Resource,
    Disk { nr: VolumeNr, minor: u32 },
    Net(NodeId),
    PeerDevice(NodeId, VolumeNr),
}

/// Those that a target stands for.
fn parts(target: &Target, now: &LocalResource, groups: &[Group]) -> Vec<Part> {
    let wanted: Option<Vec<NodeId>> =
        target.name.peer.as_ref().map(|_| target.peers().map(|p| p.peer_node_id).collect());
    let peers = now.peers.iter().map(|p| p.peer_node_id).filter(|id| wanted.as_ref().is_none_or(|w| w.contains(id)));
    let volumes = || now.volumes.iter().filter(|v| target.name.volume.is_none_or(|nr| nr == v.nr.0));
    match groups {
        [Group::Resource] => vec![Part::Resource],
        [Group::Net] => peers.map(Part::Net).collect(),
        [Group::PeerDevice] => peers.flat_map(|id| volumes().map(move |v| Part::PeerDevice(id, v.nr))).collect(),
        _ => volumes().map(|v| Part::Disk { nr: v.nr, minor: v.minor }).collect(),
    }
}

impl Part {
    fn words(&self, resource: &str) -> Vec<String> {
        match self {
            Part::Resource => told::words(["resource-options", resource]),
            Part::Disk { minor, .. } => told::words(["disk-options", &minor.to_string()]),
            Part::Net(id) => told::words(["net-options", resource, &id.to_string()]),
            Part::PeerDevice(id, nr) => {
                told::words(["peer-device-options", resource, &id.to_string(), &nr.to_string()])
            }
        }
    }

    /// Its options, as far as they can be set while it runs.
    fn of(&self, configured: &LocalResource) -> Settings {
        let peer = |id: NodeId| configured.peers.iter().find(move |p| p.peer_node_id == id);
        let (own, all) = match self {
            Part::Resource => (RESOURCE, Some(&configured.settings)),
            Part::Disk { nr, .. } => {
                let fencing = configured.peers.iter().find_map(|p| p.settings.find("fencing"));
                let spec = config::option(&[Group::Net], "fencing").expect("in the table");
                let fencing = fencing.cloned().unwrap_or_else(|| Setting::default_of(spec));
                let volume = configured.volumes.iter().find(|v| v.nr == *nr);
                return volume.iter().flat_map(|v| set(&v.settings, Group::Disk, DISK)).chain([fencing]).collect();
            }
            Part::Net(id) => (NET, peer(*id).map(|p| &p.settings)),
            Part::PeerDevice(id, nr) => {
                let device = peer(*id).and_then(|p| p.peer_devices.iter().find(|d| d.volume == *nr));
                (PEER_DEVICE, device.map(|d| &d.settings))
            }
        };
        all.into_iter().flat_map(|all| set(all, own[0], own)).collect()
    }
}

/// What is set of one group, and can be while it runs.
fn set(all: &Settings, group: Group, groups: &'static [Group]) -> Vec<Setting> {
    let meant = |s: &&Setting| s.spec.group == group && settable(groups).any(|spec| spec == s.spec);
    all.iter().filter(meant).cloned().collect()
}

/// The option by which resyncs wait for each other.
pub(crate) const AFTER: &str = "resync-after";
