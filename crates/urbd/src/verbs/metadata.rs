//! The metadata verbs of the configuration's volumes; the work is done by [`crate::offline`].

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use config::{LocalResource, LocalVolume};
use control::DiskState;
use meta::create::CreateOptions;
use meta::{AlShape, Geometry, MetaDisk, Version};
use units::{Generation, Sector};

use crate::cli::Call;
use crate::last_known;
use crate::objects::{Takes, Target};
use crate::offline::{self, Called, Creation, Place};
use crate::problem::{Problem, exit};
use crate::verbs::status;

/// Does `act` for each volume of the target that has a disk here; the greatest exit status wins.
pub(crate) fn for_each_disk(
    target: &Target,
    mut act: impl FnMut(&Place) -> Result<u8, Problem>,
) -> Result<u8, Problem> {
    let local = target.local()?;
    let mut worst = 0;
    for volume in target.volumes() {
        match place(local, volume) {
            Some(place) => worst = worst.max(crate::cli::settle(act(&place))),
            // A whole resource may have diskless volumes; to name one is a mistake.
            None if target.name.volume.is_some() => {
                return Err(Problem::new(exit::FAILURE, format!("{target}: has no disk on this host")));
            }
            None => {}
        }
    }
    Ok(worst)
}

/// The same, refused while the running process has the disk attached.
pub(crate) fn for_each_free_disk(
    call: &Call,
    target: &Target,
    act: impl FnMut(&Place) -> Result<u8, Problem>,
) -> Result<u8, Problem> {
    refuse_attached(call, target)?;
    for_each_disk(target, act)
}

fn refuse_attached(call: &Call, target: &Target) -> Result<(), Problem> {
    let resource = &target.name.resource;
    if !call.context.is_running(resource) {
        return Ok(());
    }
    let running = status::one(call.context, resource)?;
    for volume in target.volumes() {
        let attached = running.device(volume.nr.0).is_some_and(|d| d.disk != DiskState::Diskless);
        if attached {
            let message = format!("{resource}/{}: the disk is in use by the running process", volume.nr.0);
            return Err(Problem::new(exit::BROKEN, message)
                .hint(format!("run first: urbd detach {resource}/{0} (or: urbd down {resource})", volume.nr.0)));
        }
    }
    Ok(())
}

/// Where the metadata of a volume is.
pub(crate) fn place(local: &LocalResource, volume: &LocalVolume) -> Option<Place> {
    let backing = volume.backing.as_ref()?;
    let (path, kind) = match &backing.meta_disk {
        config::MetaDisk::Internal => (&backing.path, MetaDisk::Internal),
        config::MetaDisk::External { path } => (path, MetaDisk::FlexExternal),
        config::MetaDisk::Indexed { path, index } => (path, MetaDisk::Indexed(u8::try_from(*index).ok()?)),
    };
    let label = format!("{}/{}", local.name, volume.nr.0);
    Some(Place {
        label,
        path: PathBuf::from(path),
        kind,
        version: None,
        called: Called::Urbd,
        minor: Some(volume.minor),
    })
}

/// A disk of the resource that is not there, with data or metadata.
pub(crate) fn missing(local: &LocalResource) -> Option<PathBuf> {
    let data = local.volumes.iter().filter_map(|v| v.backing.as_ref()).map(|backing| PathBuf::from(&backing.path));
    let meta = local.volumes.iter().filter_map(|volume| place(local, volume)).map(|place| place.path);
    let gone = |path: &PathBuf| path.metadata().is_err_and(|e| matches!(e.kind(), std::io::ErrorKind::NotFound));
    data.chain(meta).find(gone)
}

/// Has a volume metadata of format v08, with which 8.4's dialect is spoken whatever is configured?
pub(crate) fn is_old(local: &LocalResource) -> bool {
    let found = local.volumes.iter().filter_map(|volume| place(local, volume)?.find(false).ok());
    found.into_iter().any(|opened| opened.found.superblock.version() == Version::V08)
}

/// Is the metadata this node's, with room for each configured peer? Else a process does not attach the disk. What
/// cannot be read is found out when it starts.
///
/// # Errors
/// Exit 10: it is not.
pub(crate) fn check_room(local: &LocalResource) -> Result<(), Problem> {
    let peers = local.peers.iter().map(|p| p.peer_node_id);
    for volume in local.volumes.iter() {
        let Some(Ok(opened)) = place(local, volume).map(|place| place.find(false)) else { continue };
        let md = &opened.found.superblock;
        if let Some(other) = md.node_id.filter(|id| md.version() == Version::V09 && *id != local.node_id) {
            let text =
                format!("{}/{}: its metadata is that of node-id {other}, not {}", local.name, volume.nr, local.node_id);
            let next = "nothing was changed; give this host its node-id back, or new metadata (wipe-md, create-md), for \
                        which all data is copied from a peer";
            return Err(Problem::new(exit::FAILURE, text).hint(next));
        }
        let slots = match md.version() {
            Version::V08 => 1,
            Version::V09 => md.geometry.slots() as usize,
        };
        let known = (0..md.peers.len()).filter(|n| md.version() == Version::V09 && md.peers[*n].slot.is_some());
        let known: Vec<usize> = known.collect();
        let new = peers.clone().filter(|peer| !known.contains(&peer.index())).count();
        if known.len() + new <= slots {
            continue;
        }
        let gone = known.iter().find(|n| !peers.clone().any(|peer| peer.index() == **n));
        let next = match gone {
            Some(id) => format!("nothing was changed; give the new node the node-id of the one that has left: {id}"),
            None => format!(
                "nothing was changed; new metadata need a full copy of a peer's data, while this node is Secondary: urbd \
                 down {0}; urbd wipe-md {0}; urbd create-md --max-peers={1} {0}; urbd up {0}",
                local.name,
                local.peers.len()
            ),
        };
        let many = if slots == 1 { "one peer".to_owned() } else { format!("{slots} peers") };
        let text = format!("{}/{}: its metadata has room for {many}, and none for a new one", local.name, volume.nr);
        return Err(Problem::new(exit::FAILURE, text).hint(next));
    }
    Ok(())
}

pub(crate) fn create(call: &Call, target: &Target) -> Result<u8, Problem> {
    let local = target.local()?;
    let creation = creation(call, local)?;
    for_each_free_disk(call, target, |place| offline::create(place, &creation))
}

/// What the options of `create-md` ask for. Two hosts that speak 8.4's dialect get its metadata, unless something needs
/// the newer one.
pub(crate) fn creation(call: &Call, local: &LocalResource) -> Result<Creation, Problem> {
    let number = |name: &str, default: u64| call.number(name).map(|n| n.unwrap_or(default));
    let needs_v09 = ["max-peers", "bitmap-block-size", "initial-current-uuid"].iter().any(|o| call.value(o).is_some())
        || ["consistent", "uptodate", "peers-outdated", "rotate-uuids"].iter().any(|o| call.flag(o));
    let version = match call.value("format") {
        Some("v08") => Version::V08,
        Some("v09") => Version::V09,
        Some(other) => return Err(Problem::usage(format!("--format={other}: must be v08 or v09"))),
        None if needs_v09 || local.makes_v09() => Version::V09,
        None => Version::V08,
    };
    let slots = match version {
        Version::V08 => 1,
        Version::V09 => number("max-peers", local.metadata_slots.into())?,
    };
    let stripe_kib = call.amount("al-stripe-size-kB", 1024)?.unwrap_or(32);
    let bytes_per_bit = call.amount("bitmap-block-size", 1)?.unwrap_or(4096);
    let bad = |e: meta::layout::LayoutError| Problem::usage(e.to_string());
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let shape = AlShape::new(small(number("al-stripes", 1)?), small(stripe_kib / 4)).map_err(bad)?;
    let geometry = Geometry::new(small(slots), small(bytes_per_bit), shape).map_err(bad)?;
    Ok(Creation {
        version,
        geometry,
        options: create_options(call)?,
        force: call.flag("force"),
        ignore_sanity_checks: call.flag("ignore-sanity-checks"),
        keep_device_uuid_zero: false,
        format_asked: needs_v09 || call.value("format").is_some() || local.host_count > 2,
    })
}

fn create_options(call: &Call) -> Result<CreateOptions, Problem> {
    let current = call.value("initial-current-uuid").map(generation).transpose()?;
    // Data that is declared good needs a generation that no other device has.
    let rotates = call.flag("rotate-uuids");
    let declared_good = call.flag("consistent") || call.flag("uptodate") || rotates;
    let generated = || Generation(offline::random_number() & !1);
    Ok(CreateOptions {
        effective_size: Sector(call.amount("effective-size", 512)?.unwrap_or(0)),
        max_bio: u32::try_from(call.amount("peer-max-bio-size", 1)?.unwrap_or(0)).unwrap_or(u32::MAX),
        current: current.or_else(|| declared_good.then(generated)),
        consistent: call.flag("consistent"),
        up_to_date: call.flag("uptodate"),
        peers_outdated: call.flag("peers-outdated"),
        day0: rotates.then(generated),
        ..CreateOptions::default()
    })
}

/// The value of `--initial-current-uuid`.
pub(crate) fn generation(text: &str) -> Result<Generation, Problem> {
    if text == "generate" {
        return Ok(Generation(offline::random_number() & !1));
    }
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let bad = |_| Problem::usage(format!("--initial-current-uuid={text}: must be hexadecimal, or `generate`"));
    Ok(Generation(u64::from_str_radix(digits, 16).map_err(bad)?))
}

pub(crate) fn dump(call: &Call, target: &Target) -> Result<u8, Problem> {
    // What the running process has attached can be looked at, and is no more than a glance.
    let attached = refuse_attached(call, target).is_err();
    let force = call.flag("force") || attached;
    for_each_disk(target, |place| {
        let command = format!("urbd dump-md {}", place.label);
        let text = offline::dump(place, force, &command, &call.context.node)?;
        let stale = if attached { "# Output might be stale, since the disk is attached\n" } else { "" };
        status::print(&(stale.to_owned() + &text));
        Ok(0)
    })
}

/// `restore-md OBJECT [FILE]`; without FILE (or with `-`) from standard input.
pub(crate) fn restore(call: &Call) -> Result<u8, Problem> {
    let (target, file) = restore_arguments(call)?;
    let unreadable = |name: &str, e: std::io::Error| Problem::new(exit::FAILURE, format!("cannot read {name}: {e}"));
    let mut text = String::new();
    match file.as_deref() {
        None => {
            std::io::stdin().lock().read_to_string(&mut text).map_err(|e| unreadable("standard input", e))?;
        }
        Some(name) => text = fs::read_to_string(name).map_err(|e| unreadable(name, e))?,
    }
    let force = call.flag("force");
    for_each_free_disk(call, &target, |place| offline::restore(place, &text, force))
}

/// The volume and the file of `restore-md`; without a file it is standard input.
///
/// # Errors
/// Exit 1: not one volume and at most one file; else as [`Target::find`].
pub(crate) fn restore_arguments(call: &Call) -> Result<(Target, Option<String>), Problem> {
    let mut words = call.objects();
    let file = call.value("file").map(str::to_owned).or_else(|| (words.len() > 1).then(|| words.pop()).flatten());
    let [object] = words.as_slice() else {
        return Err(Problem::usage("restore-md needs one volume and one file").hint("urbd restore-md r0/0 FILE"));
    };
    let target = Target::find(call.context, object, Takes::Volume)?;
    if target.volumes().count() != 1 {
        return Err(Problem::usage(format!("{object} has several volumes")).hint(format!("name one: {object}/0")));
    }
    Ok((target, file.filter(|name| name != "-")))
}

pub(crate) fn wipe(call: &Call, target: &Target) -> Result<u8, Problem> {
    let force = call.flag("force");
    for_each_free_disk(call, target, |place| offline::wipe(place, force))
}

pub(crate) fn apply_al(call: &Call, target: &Target) -> Result<u8, Problem> {
    for_each_free_disk(call, target, offline::apply_al)
}

/// On a resource that runs, `resize` takes over the new size; otherwise internal metadata is moved to the new end.
/// Of what runs, as drbdsetup, the size of each backing disk is remembered, and nothing is changed on it.
pub(crate) fn check_resize(call: &Call, target: &Target) -> Result<u8, Problem> {
    if call.context.of_running {
        return for_each_disk(target, |place| {
            let found = place.find(false)?;
            last_known::note(place, &found.store, &found.found.superblock);
            Ok(0)
        });
    }
    for_each_free_disk(call, target, offline::check_resize)
}

pub(crate) fn outdate(_: &Call, target: &Target) -> Result<u8, Problem> {
    for_each_disk(target, offline::outdate)
}

/// What they have of the peers that are meant.
pub(crate) fn forget_peer(_: &Call, target: &Target) -> Result<u8, Problem> {
    for_each_disk(target, |place| {
        let mut peers = target.peers().map(|peer| peer.peer_node_id);
        peers.try_for_each(|peer| offline::forget_peer(place, &place.find(true)?, peer).map(drop)).map(|()| 0)
    })
}

pub(crate) fn invalidate(_: &Call, target: &Target) -> Result<u8, Problem> {
    for_each_disk(target, offline::invalidate)
}

/// `dstate` of a resource that does not run: ours from the metadata, the peers' unknown.
pub(crate) fn disk_state(_: &Call, target: &Target) -> Result<u8, Problem> {
    let local = target.local()?;
    let mut worst = 0;
    for volume in target.volumes() {
        let state = match place(local, volume) {
            None => Ok("Diskless".to_owned()),
            Some(place) => offline::disk_state(&place),
        };
        match state {
            Ok(own) => println!("{own}{}", "/DUnknown".repeat(local.peers.len())),
            Err(problem) => worst = worst.max(crate::cli::settle(Err(problem))),
        }
    }
    Ok(worst)
}
