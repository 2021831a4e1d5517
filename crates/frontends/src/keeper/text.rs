//! Text that the keeper has for the next process: in memory only, and locked there, as it has secrets.

use super::{Keeper, Place};
use crate::shared::Shared;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

/// The longest that is read: what is longer is no text of ours.
const LONGEST: u64 = 16 << 20;

impl Keeper {
    /// Gives it a text, in the place of the one that it has there. Whoever is killed before this returns leaves one of
    /// the two, whole.
    ///
    /// # Errors
    /// As [`Keeper::put`]; there is no memory.
    pub fn put_text(&self, place: Place, text: &str) -> io::Result<()> {
        with_text(text, |memory| self.put(place, memory))
    }
}

/// A descriptor that stands for this text.
pub(super) fn with_text<T>(text: &str, f: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
    let mut memory = Shared::create(text.len())?;
    memory.bytes_mut(0..text.len()).copy_from_slice(text.as_bytes());
    let done = f(memory.descriptor());
    memory.unmap();
    done
}

/// The text that this descriptor of the keeper's stands for.
///
/// # Errors
/// It is none, or cannot be read.
pub fn read_text(kept: BorrowedFd<'_>) -> io::Result<String> {
    let file = File::from(kept.try_clone_to_owned()?);
    let len = Some(file.metadata()?.len()).filter(|len| *len <= LONGEST);
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut bytes = vec![0; len.ok_or_else(|| wrong("too long for what was told"))? as usize];
    file.read_exact_at(&mut bytes, 0)?;
    String::from_utf8(bytes).map_err(|_| wrong("no text"))
}

/// Keeps it from being swapped out when the process that made it is gone. Without the permission to lock memory, or
/// of what is no text of ours, there is nothing to hold.
pub(super) fn hold(kept: BorrowedFd<'_>) -> Option<Shared> {
    let copy = kept.try_clone_to_owned().ok()?;
    let len = File::from(kept.try_clone_to_owned().ok()?).metadata().ok()?.len();
    Shared::map(copy, usize::try_from(len).ok().filter(|len| *len as u64 <= LONGEST)?).ok()
}
