//! What is left of a loop device when all who held it were killed: the device, if somebody else has it open, and its
//! number, which is read-only for whoever gets it next (the kernel keeps that beyond the device's end).
//!
//! So that it is known which number that is, it is written down as long as a device stands on the file.

use super::{LoopDevice, set_read_only};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Writes down, in the file `note`, which device stands on a volume's file.
///
/// # Errors
/// If it cannot be written.
pub fn note(note: &Path, device: LoopDevice) -> io::Result<()> {
    // In one step: whoever is killed meanwhile leaves the one before, or this one.
    let next = next(note);
    std::fs::write(&next, format!("{}\n", device.number))?;
    std::fs::rename(next, note)
}

/// Takes what is written there for over.
///
/// # Errors
/// If it cannot be removed.
pub fn forget(note: &Path) -> io::Result<()> {
    for file in [note, &next(note)] {
        match std::fs::remove_file(file) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

fn next(note: &Path) -> PathBuf {
    note.with_extension("loop-next")
}

/// Frees the devices that stand on a file called `name`, and makes the number that is written down in `note` writable
/// for whoever has it next. Only for who knows that nobody serves the file, nor holds its connection.
///
/// # Errors
/// If something is left.
pub fn clear(note: &Path, name: &str) -> io::Result<()> {
    for device in super::all()?.into_iter().filter(|device| device.stands_on(name)) {
        let node = device.open(false)?;
        // With the node open it stays whose it is.
        if device.stands_on(name) {
            set_read_only(&node, false)?;
            device.detach()?;
        }
    }
    if let Some(device) = noted(note)
        && device.backing_file()?.is_none()
        && device.is_read_only()
    {
        set_read_only(&device.open(false)?, false)?;
    }
    forget(note)
}

fn noted(note: &Path) -> Option<LoopDevice> {
    let number = std::fs::read_to_string(note).ok()?.trim().parse().ok()?;
    Some(LoopDevice { number }).filter(|device| device.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_noted_until_it_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r0-0.loop");
        assert_eq!(noted(&path), None);
        for number in [0, 7] {
            note(&path, LoopDevice { number }).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{number}\n"));
        }
        for wrong in ["", "x", "-1", "999999"] {
            std::fs::write(&path, wrong).unwrap();
            assert_eq!(noted(&path), None, "{wrong}");
        }
        clear(&path, "nobody's file").unwrap();
        assert!(!path.exists());
        forget(&path).unwrap();
    }
}
