//! The `sh-` verbs: plain values, one a line (`docs/spec/config-and-cli.md` 3.3), and `nbd-uri`.

use std::path::Path;

use config::{LocalVolume, MetaDisk};

use crate::cli::{self, Call};
use crate::objects::{Takes, Target, targets};
use crate::problem::{Problem, exit};
use crate::verbs::status;

/// Four lines per volume. A volume that was written without `volume { }` is linked by its resource's name alone.
pub(crate) fn udev(call: &Call, target: &Target) -> Result<u8, Problem> {
    // Who reads no file cannot know, and names the volume.
    let always_numbered = call.context.of_running || call.context.config()?.global.udev_always_use_vnr;
    for_each_volume(target, |volume| {
        let by_res = match volume.implicit && !always_numbered {
            true => format!("drbd/by-res/{}", target.name.resource),
            false => format!("drbd/by-res/{}/{}", target.name.resource, volume.nr),
        };
        let mut lines = format!("DEVICE=drbd{}\nSYMLINK={by_res}\nSYMLINK_BY_RES={by_res}", volume.minor);
        if let Some(backing) = &volume.backing {
            let disk = backing.path.strip_prefix("/dev/").unwrap_or(&backing.path);
            lines += &format!("\nSYMLINK_BY_DISK=drbd/by-disk/{disk}");
        }
        Ok(lines)
    })
}

/// `URBD_NAMES=…`: the absolute names of the device that is made of a file of ours; nothing for another file.
pub(crate) fn udev_names(call: &Call) -> Result<u8, Problem> {
    let file = call.value("backing-file").and_then(|file| engine::device_of_file(&call.context.run_dir, file));
    let Some((resource, volume)) = file else { return Ok(0) };
    let target = Target::find(call.context, &format!("{resource}/{volume}"), Takes::Volume)?;
    for volume in target.volumes() {
        let mut names = vec![format!("/dev/urbd/by-res/{resource}/{}", volume.nr)];
        if engine::kernel_has_minor(volume.minor) {
            println!("URBD_NAMES={}", names.join(" "));
            continue;
        }
        names.push(format!("/dev/drbd{}", volume.minor));
        names.push(format!("/dev/drbd/by-res/{resource}/{}", volume.nr));
        names.extend(volume.name.as_ref().map(|name| format!("/dev/{name}")));
        if let Some(disk) = volume.backing.as_ref().and_then(|backing| backing.path.strip_prefix("/dev/")) {
            names.push(format!("/dev/drbd/by-disk/{disk}"));
        }
        println!("URBD_NAMES={}", names.join(" "));
    }
    Ok(0)
}

/// All names on one line.
pub(crate) fn resources(call: &Call) -> Result<u8, Problem> {
    let (found, worst) = targets(call.context, &[], Takes::OptionalResource)?;
    let names: Vec<String> = found.into_iter().map(|target| target.name.resource).collect();
    println!("{}", names.join(" "));
    Ok(worst)
}

pub(crate) fn resource(_: &Call, target: &Target) -> Result<u8, Problem> {
    println!("{}", target.name.resource);
    Ok(0)
}

fn for_each_volume(
    target: &Target,
    mut value: impl FnMut(&LocalVolume) -> Result<String, Problem>,
) -> Result<u8, Problem> {
    target.local()?;
    for volume in target.volumes() {
        println!("{}", value(volume)?);
    }
    Ok(0)
}

/// The path that applications open: of the running device, else the configured place of its link.
pub(crate) fn device(call: &Call, target: &Target) -> Result<u8, Problem> {
    let running = match call.context.is_running(&target.name.resource) {
        true => Some(status::one(call.context, &target.name.resource)?),
        false => None,
    };
    for_each_volume(target, |volume| {
        let path = running.as_ref().and_then(|r| r.device(volume.nr.0)).and_then(|d| d.device_path.clone());
        match path {
            Some(path) => Ok(path),
            None => engine::device_name(&call.context.run_dir, &target.name.resource, volume.nr)
                .map(|path| path.display().to_string())
                .map_err(|e| Problem::usage(e.to_string())),
        }
    })
}

pub(crate) fn minor(_: &Call, target: &Target) -> Result<u8, Problem> {
    for_each_volume(target, |volume| Ok(volume.minor.to_string()))
}

/// `none` for a volume without a disk.
pub(crate) fn backing(_: &Call, target: &Target) -> Result<u8, Problem> {
    for_each_volume(target, |v| Ok(v.backing.as_ref().map_or("none".to_owned(), |b| b.path.clone())))
}

pub(crate) fn metadata_device(_: &Call, target: &Target) -> Result<u8, Problem> {
    for_each_volume(target, |volume| {
        let backing = volume.backing.as_ref().ok_or_else(|| diskless(target, volume))?;
        Ok(match &backing.meta_disk {
            MetaDisk::Internal => backing.path.clone(),
            MetaDisk::External { path } | MetaDisk::Indexed { path, .. } => path.clone(),
        })
    })
}

/// `internal`, `flexible`, or the number of a slot.
pub(crate) fn metadata_index(_: &Call, target: &Target) -> Result<u8, Problem> {
    for_each_volume(target, |volume| {
        let backing = volume.backing.as_ref().ok_or_else(|| diskless(target, volume))?;
        Ok(match &backing.meta_disk {
            MetaDisk::Internal => "internal".to_owned(),
            MetaDisk::External { .. } => "flexible".to_owned(),
            MetaDisk::Indexed { index, .. } => index.to_string(),
        })
    })
}

fn diskless(target: &Target, volume: &LocalVolume) -> Problem {
    let message = format!("{}/{}: has no disk on this host", target.name.resource, volume.nr.0);
    Problem::new(exit::FAILURE, message)
}

/// Our address of each path, once per volume.
pub(crate) fn address(_: &Call, target: &Target) -> Result<u8, Problem> {
    for_each_volume(target, |_| {
        let paths = target.peers().flat_map(|peer| &peer.paths);
        Ok(paths.map(|path| path.local.ip.to_string()).collect::<Vec<_>>().join("\n"))
    })
}

/// Only checks the configuration.
pub(crate) fn nothing(call: &Call) -> Result<u8, Problem> {
    let config = call.context.config()?;
    // A file may be checked on a host that it is not for.
    let (own, _) = config.each_for(&call.context.this_host());
    let worst = own.iter().map(|local| {
        let usable = engine::resource_config(local).map(|_| 0);
        cli::settle(usable.map_err(|why| Problem::new(exit::FAILURE, format!("{}: {why}", local.name))))
    });
    Ok(worst.max().unwrap_or(0))
}

/// Asked for before the kernel's module is loaded; we have none.
pub(crate) fn module_parameters(call: &Call) -> Result<u8, Problem> {
    let highest = call.context.resources_to_look_at()?.0.iter().flat_map(|r| &r.volumes).map(|v| v.minor + 1).max();
    println!("minor_count={}", highest.unwrap_or(1).max(32));
    Ok(0)
}

/// The resource that a stacked one lies on: the backing device tells.
pub(crate) fn lower_resource(call: &Call, target: &Target) -> Result<u8, Problem> {
    let config = call.context.config()?;
    let upper = config.resource(&target.name.resource);
    let lower = upper.iter().flat_map(|r| &r.hosts).find_map(|host| match &host.is {
        config::HostMatch::Stacked { lower, .. } => Some(lower.clone()),
        _ => None,
    });
    match lower {
        Some(lower) => {
            println!("{lower}");
            Ok(0)
        }
        None => Ok(exit::USAGE),
    }
}

/// Names of resources whose running configuration is another.
pub(crate) fn adjustable(call: &Call) -> Result<u8, Problem> {
    let (found, mut worst) = targets(call.context, &call.objects(), Takes::OptionalResource)?;
    for target in found {
        match super::adjust::would_change(call, &target) {
            Ok(true) => println!("{}", target.name.resource),
            Ok(false) => {}
            // The names of the others are no less true.
            Err(problem) => worst = worst.max(crate::cli::settle(Err(problem))),
        }
    }
    Ok(worst)
}

/// The file that the resource is defined in.
pub(crate) fn config_file(call: &Call, target: &Target) -> Result<u8, Problem> {
    if let Some(resource) = call.context.config()?.resource(&target.name.resource) {
        println!("{}", Path::new(&*resource.span.file).display());
    }
    Ok(0)
}

/// `nbd-uri`: of each volume; from the running process, else where its socket will be.
pub(crate) fn nbd_uri(call: &Call, target: &Target) -> Result<u8, Problem> {
    let resource = &target.name.resource;
    let running = match call.context.is_running(resource) {
        true => Some(status::one(call.context, resource)?),
        false => None,
    };
    for_each_volume(target, |volume| {
        let known = running.as_ref().and_then(|r| r.device(volume.nr.0)).and_then(|d| d.nbd_uri.clone());
        let socket = call.context.run_dir.join(format!("{resource}-{}.nbd", volume.nr.0));
        let standard = format!("nbd+unix:///{resource}/{}?socket={}", volume.nr.0, socket.display());
        Ok(known.unwrap_or(standard))
    })
}
