//! The last known size of each backing device with internal metadata (`docs/spec/on-disk-format.md` 7.3): where the
//! metadata of a device is that has grown meanwhile. Other programs look for these files, too.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use meta::find::Found;
use meta::lkbd::LastKnown;
use meta::{MetaDisk, Superblock, find, layout};
use units::ByteLen;

use crate::metadata_io::Store;
use crate::offline::Place;
use crate::problem::Problem;

/// Where other programs look for the files. Where sockets are elsewhere than usual, as in tests, these are beside them.
fn directory() -> PathBuf {
    let own = env::var_os("URBD_RUN_DIR").filter(|value| !value.is_empty() && value != "/run/urbd");
    own.map_or_else(
        || PathBuf::from("/var/lib/drbd"),
        |mut name| {
            name.push(".known");
            PathBuf::from(name)
        },
    )
}

fn file(place: &Place) -> Option<PathBuf> {
    // The tests of this file's crate call verbs in their own process, which has no world of its own.
    let minor = place.minor.filter(|_| !cfg!(test))?;
    Some(directory().join(format!("drbd-minor-{minor}.lkbd")))
}

/// Notes the size, once there are internal metadata. It is a help for later: that it cannot be written stops nothing.
pub(crate) fn note(place: &Place, store: &Store, superblock: &Superblock) {
    if place.kind != MetaDisk::Internal {
        return forget(place);
    }
    let Some(file) = file(place) else { return };
    let path = Some(place.path.display().to_string());
    let device_uuid = Some(superblock.device_uuid).filter(|uuid| *uuid != 0);
    let text = LastKnown { size: ByteLen(store.len()), path, device_uuid }.emit();
    if fs::read_to_string(&file).is_ok_and(|old| old == text) {
        return;
    }
    if let Some(parent) = file.parent() {
        let _ = fs::create_dir(parent);
    }
    let _ = fs::write(&file, text);
}

/// The device has no metadata any more.
pub(crate) fn forget(place: &Place) {
    if let Some(file) = file(place) {
        let _ = fs::remove_file(file);
    }
}

/// Internal metadata that are where they were when the device had another size.
///
/// # Errors
/// The device cannot be read.
pub(crate) fn elsewhere(place: &Place, store: &Store) -> Result<Option<Found>, Problem> {
    let text = file(place).and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    let Some(known) = LastKnown::parse(&text).filter(|_| place.kind == MetaDisk::Internal) else { return Ok(None) };
    let is_this = known.path.as_deref().is_none_or(|path| Path::new(path) == place.path);
    if !is_this || known.size.0 >= store.len() {
        return Ok(None);
    }
    let Some(at) = layout::superblock_at(MetaDisk::Internal, known.size) else { return Ok(None) };
    let block = store.read_block(at.0)?;
    let found = find::check(MetaDisk::Internal, known.size, &block).ok();
    Ok(found.filter(|found| known.matches(found.superblock.device_uuid)))
}
