//! `disk-options`, `net-options`, `peer-device-options`, `resource-options`: other options for what runs, until the
//! next `adjust` (`docs/spec/config-and-cli.md` 2.10, 3.2).

use config::{
    Config, Disk, Group, Kind, LoadOptions, LocalResource, LocalVolume, OptionSpec, OverlayScope, Setting, Settings,
    Unit,
};
use control::Command;
use units::{NodeId, VolumeNr};

use crate::cli::Call;
use crate::objects::Target;
use crate::problem::{Problem, exit};
use crate::verbs::{adjust, commands, lifecycle};

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
    let host = call.context.this_host();
    let mut running = adjust::in_force(call, name)?;
    let seen = |config: &Config| config.resource_as_seen_by(name, &host).map_err(|e| Problem::usage(e.to_string()));
    let now = seen(&running)?;
    let configured = if given.is_empty() && !call.flag("set-defaults") { Some(target.local()?) } else { None };
    let reset = call.flag("set-defaults") || configured.is_some();
    // The running process knows no other resource: whether volumes wait in a circle shows in the whole configuration.
    let ordered = given.iter().any(|s| s.spec.name == AFTER);
    let mut all = if ordered { Some(call.context.config()?.clone()) } else { None };
    for (peer, volume) in parts(target, &now) {
        let effective = |of: &LocalResource| -> Settings {
            let mine = effective(of, peer, volume);
            mine.iter().filter(|s| settable(groups).any(|spec| spec == s.spec)).cloned().collect()
        };
        let before = if reset { effective(&now) } else { Settings::default() };
        let wanted = configured.map_or_else(|| given.clone(), effective);
        let cleared = before.iter().map(|s| Setting::default_of(s.spec));
        let settings: Settings = cleared.chain(wanted.iter().cloned()).collect();
        let scope = OverlayScope { resource: name, volume, peer };
        for config in [Some(&mut running), all.as_mut()].into_iter().flatten() {
            config.overlay(scope, &host, &settings).map_err(|e| Problem::usage(e.to_string()))?;
        }
    }
    if let Some(all) = all {
        config::load_text(&Disk, &call.context.config_file, &all.dump(&host, false, &[]), &LoadOptions::default())
            .map_err(|e| refused(target, e.first()))?;
    }
    let changed = seen(&load(call, &running)?)?;
    lifecycle::check_startable(call.context, &changed)?;
    for idle in given.iter().filter(|s| !s.spec.honoured && !s.is_default()) {
        eprintln!("urbd: warning: {target}: option `{}` is accepted, but urbd does not act on it yet", idle.spec.name);
    }
    commands::send(call, target, Command::ChangeOptions { config: running.dump(&host, false, &[]) })
}

/// Options that were laid over a configuration show in its text only.
fn load(call: &Call, config: &Config) -> Result<Config, Problem> {
    let text = config.dump(&call.context.this_host(), false, &[]);
    config::load_text(&Disk, &call.context.config_file, &text, &LoadOptions::default())
        .map_err(|e| Problem::new(exit::FAILURE, e.to_string()))
}

/// Limits the device of each volume to a size (`resize --size`), until the next `adjust`.
///
/// # Errors
/// Exit 1: `text` is no size; else as the option verbs.
pub(crate) fn set_size(call: &Call, target: &Target, text: &str) -> Result<(), Problem> {
    let name = &target.name.resource;
    let host = call.context.this_host();
    let spec = config::option(&[Group::Disk], "size").expect("in the table");
    let size = Setting::parse(spec, text).map_err(|bad| Problem::usage(format!("{target}: {}", bad.message)))?;
    let settings: Settings = [size].into_iter().collect();
    let mut running = adjust::in_force(call, name)?;
    let volume = target.name.volume.map(VolumeNr);
    let scope = OverlayScope { resource: name, volume, peer: None };
    running.overlay(scope, &host, &settings).map_err(|e| Problem::usage(e.to_string()))?;
    commands::send(call, target, Command::ChangeOptions { config: running.dump(&host, false, &[]) }).map(drop)
}

fn refused(target: &Target, error: &config::Error) -> Problem {
    let exit = u8::try_from(error.exit_code()).unwrap_or(exit::BROKEN);
    let problem = Problem::new(exit, format!("{target}: {}", error.message));
    match &error.help {
        Some(help) => problem.hint(help.clone()),
        None => problem,
    }
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

/// Each pair of a peer and a volume that a target stands for; without peers, each volume.
fn parts(target: &Target, now: &LocalResource) -> Vec<(Option<NodeId>, Option<VolumeNr>)> {
    let wanted = target.name.peer.as_ref().map(|_| target.peers().map(|p| p.peer_node_id).collect::<Vec<_>>());
    let peers = now.peers.iter().map(|p| p.peer_node_id);
    let mut peers: Vec<Option<NodeId>> =
        peers.filter(|id| wanted.as_ref().is_none_or(|w| w.contains(id))).map(Some).collect();
    if peers.is_empty() {
        peers.push(None);
    }
    let volumes = now.volumes.iter().map(|v| v.nr);
    let volumes: Vec<VolumeNr> = volumes.filter(|nr| target.name.volume.is_none_or(|v| v == nr.0)).collect();
    peers.into_iter().flat_map(|peer| volumes.iter().map(move |nr| (peer, Some(*nr)))).collect()
}

/// The option by which resyncs wait for each other.
pub(crate) const AFTER: &str = "resync-after";

fn after(volume: &LocalVolume) -> Option<Setting> {
    let spec = config::option(&[Group::Disk], AFTER)?;
    Setting::parse(spec, volume.disk.resync_after.as_ref()?).ok()
}

/// All options that hold for this peer and volume.
fn effective(of: &LocalResource, peer: Option<NodeId>, volume: Option<VolumeNr>) -> Settings {
    let peers = || of.peers.iter().filter(|p| peer.is_none_or(|id| id == p.peer_node_id));
    let is_meant = |nr: VolumeNr| volume.is_none_or(|wanted| wanted == nr);
    // A volume's `resync-after` is a minor in its settings; the language has names.
    let plain = |v: &LocalVolume| v.settings.iter().filter(|s| s.spec.name != AFTER).cloned().collect::<Vec<_>>();
    let volumes = of.volumes.iter().filter(|v| is_meant(v.nr));
    let disk = volumes.flat_map(|v| plain(v).into_iter().chain(after(v)));
    let devices = peers().flat_map(|p| &p.peer_devices).filter(|d| is_meant(d.volume));
    let devices = devices.flat_map(|d| d.settings.iter().cloned());
    let net = peers().flat_map(|p| p.settings.iter().cloned());
    let all = of.settings.iter().cloned().chain(net).chain(disk).chain(devices);
    let mut found: Vec<Setting> = Vec::new();
    for setting in all {
        if !found.iter().any(|f| f.spec == setting.spec) {
            found.push(setting);
        }
    }
    found.into_iter().collect()
}
