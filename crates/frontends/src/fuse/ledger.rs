//! Where the kernel cannot hand out requests again (before Linux 6.9): what was read and not answered lies in memory
//! that the keeper holds, and the next process answers it under the kernel's old numbers.
//!
//! While there is no process the keeper goes on with it: it answers what it can, and leaves the rest there.
//!
//! A message is read straight into that memory, which is present and locked: a process that is killed has all of it
//! there, or the kernel still has it. It stays there until it is answered. A process that dies between an answer and
//! the end of its entry leaves a request that is carried out twice, before anything newer is read; its second answer is
//! refused.
//!
//! Layout: `ENTRIES` entries of `ENTRY` bytes (the message's first `WRITE_HEADER` bytes, then where the rest is),
//! the first of which names the layout; then the rest of the messages, in pieces of `PIECE` bytes.

use super::{PAYLOAD_MAX, WRITE_HEADER};
use crate::shared::Shared;
use crate::sys;
use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{Ordering, compiler_fence};

pub(super) const ENTRIES: usize = 1024;
const ENTRY: usize = 128;
const PIECE: usize = 512;
/// Room for payloads: what is under way, and one more of any length.
const ROOM: usize = (3 << 20) + PAYLOAD_MAX;
const AREA: usize = ENTRIES * ENTRY;
const LAYOUT: &[u8] = b"urbd requests 1\n";

/// The requests that were read and not answered.
#[derive(Debug)]
pub struct Ledger {
    memory: Shared,
    /// What each entry takes of the area.
    taken: Vec<Option<Range<usize>>>,
    /// The same, in order.
    ranges: Vec<Range<usize>>,
    free: Vec<usize>,
    /// Prepared for the next message.
    reading: Option<usize>,
    by_tag: HashMap<u64, usize>,
}

impl Ledger {
    /// An empty one.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new() -> io::Result<Ledger> {
        let mut memory = Shared::create(AREA + ROOM)?;
        memory.bytes_mut(0..LAYOUT.len()).copy_from_slice(LAYOUT);
        Ok(Ledger::over(memory))
    }

    fn over(memory: Shared) -> Ledger {
        Ledger {
            memory,
            taken: vec![None; ENTRIES],
            ranges: Vec::with_capacity(ENTRIES),
            free: (1..ENTRIES).rev().collect(),
            reading: None,
            by_tag: HashMap::with_capacity(ENTRIES),
        }
    }

    /// What another process has left; [`Ledger::unanswered`] says what is in there.
    ///
    /// # Errors
    /// If it is another version's.
    pub fn inherit(left: OwnedFd) -> io::Result<Ledger> {
        let ledger = Ledger::over(Shared::map(left, AREA + ROOM)?);
        if ledger.memory.bytes(0..LAYOUT.len()) != LAYOUT {
            return Err(wrong("another version's"));
        }
        Ok(ledger)
    }

    /// Looks what is there: the entries without an answer are put into `found`. To be called before anything is read,
    /// by who goes on with what another process has left.
    ///
    /// # Errors
    /// If it is not what it should be.
    pub fn unanswered(&mut self, found: &mut Vec<usize>) -> io::Result<()> {
        self.taken.fill(None);
        self.ranges.clear();
        self.free.clear();
        self.by_tag.clear();
        self.reading = None;
        found.clear();
        for entry in (1..ENTRIES).rev() {
            let whole = self.u32(entry, 0) as usize;
            if whole == 0 {
                self.free.push(entry);
                continue;
            }
            let start = self.u32(entry, WRITE_HEADER) as usize;
            let range = start..start + whole.saturating_sub(WRITE_HEADER).next_multiple_of(PIECE);
            let fits = whole <= WRITE_HEADER + PAYLOAD_MAX && range.end <= ROOM;
            // Who takes no room may have been read where there is another one's by now.
            let overlaps = |other: &Range<usize>| other.start < range.end && range.start < other.end;
            if !fits || !range.is_empty() && self.ranges.iter().any(overlaps) {
                return Err(wrong("damaged"));
            }
            self.take(entry, range);
            found.push(entry);
        }
        found.reverse();
        Ok(())
    }

    /// Is it in the memory that this descriptor stands for?
    #[must_use]
    pub fn is(&self, fd: BorrowedFd<'_>) -> bool {
        self.memory.is(fd)
    }

    /// Leaves it to others.
    pub fn unmap(self) {
        self.memory.unmap();
    }

    /// For the keeper.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.descriptor()
    }

    /// Reads a message, if there is room for any: its entry, or what the kernel says.
    pub fn read(&mut self, fd: RawFd) -> Option<Result<usize, i32>> {
        let entry = self.prepare()?;
        let start = self.u32(entry, WRITE_HEADER) as usize;
        let at = entry * ENTRY;
        let (header, payload) = self.memory.two_mut(at..at + WRITE_HEADER, AREA + start..AREA + start + PAYLOAD_MAX);
        let n = sys::read_parts(fd, &mut [IoSliceMut::new(header), IoSliceMut::new(payload)]);
        if n <= 0 {
            return Some(Err(n));
        }
        self.reading = None;
        let rest = (n as usize).saturating_sub(WRITE_HEADER).next_multiple_of(PIECE);
        self.take(entry, start..start + rest);
        Some(Ok(entry))
    }

    /// Is there room for one more message?
    pub fn is_full(&self) -> bool {
        self.reading.is_none() && (self.free.is_empty() || self.gap().is_none())
    }

    /// A message's first bytes, and the rest of it.
    pub fn message(&self, entry: usize) -> (&[u8; WRITE_HEADER], &[u8]) {
        let at = entry * ENTRY;
        let header = self.memory.bytes(at..at + WRITE_HEADER).first_chunk().expect("as long as that");
        let rest = (self.u32(entry, 0) as usize).saturating_sub(WRITE_HEADER).min(PAYLOAD_MAX);
        let start = AREA + self.u32(entry, WRITE_HEADER) as usize;
        (header, self.memory.bytes(start..start + rest))
    }

    /// The kernel knows the request in this entry as `tag`.
    pub fn name(&mut self, entry: usize, tag: u64) {
        self.by_tag.insert(tag, entry);
    }

    /// The request was answered.
    pub fn answered(&mut self, tag: u64) {
        if let Some(entry) = self.by_tag.remove(&tag) {
            self.forget(entry);
        }
    }

    /// Nothing is to be answered.
    pub fn forget(&mut self, entry: usize) {
        self.clear(entry);
        if let Some(range) = self.taken[entry].take().filter(|range| !range.is_empty()) {
            self.ranges.retain(|other| *other != range);
        }
        self.free.push(entry);
    }

    /// An empty entry with room for the longest message.
    fn prepare(&mut self) -> Option<usize> {
        if self.reading.is_none() {
            let start = self.gap()?;
            let entry = self.free.pop()?;
            self.clear(entry);
            let at = entry * ENTRY + WRITE_HEADER;
            self.memory.bytes_mut(at..at + 4).copy_from_slice(&(start as u32).to_ne_bytes());
            // Before the kernel puts a message there.
            compiler_fence(Ordering::SeqCst);
            self.reading = Some(entry);
        }
        self.reading
    }

    /// Where the longest payload has room.
    fn gap(&self) -> Option<usize> {
        let ends = self.ranges.iter().map(|range| range.end);
        let starts = self.ranges.iter().map(|range| range.start).chain([ROOM]);
        [0].into_iter().chain(ends).zip(starts).find(|(from, to)| to - from >= PAYLOAD_MAX).map(|(from, _)| from)
    }

    fn take(&mut self, entry: usize, range: Range<usize>) {
        if !range.is_empty() {
            let at = self.ranges.partition_point(|other| other.start < range.start);
            self.ranges.insert(at, range.clone());
        }
        self.taken[entry] = Some(range);
    }

    /// The entry has no message. Its length goes first: this process may be killed between two bytes, and half a
    /// message is none.
    fn clear(&mut self, entry: usize) {
        let at = entry * ENTRY;
        for part in [at..at + 4, at + 4..at + WRITE_HEADER] {
            self.memory.bytes_mut(part).fill(0);
            compiler_fence(Ordering::SeqCst);
        }
    }

    fn u32(&self, entry: usize, at: usize) -> u32 {
        let at = entry * ENTRY + at;
        let bytes = self.memory.bytes(at..at + 4);
        u32::from_ne_bytes(*bytes.first_chunk().expect("four bytes"))
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the requests that it left: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixDatagram;

    /// A message that says how long it is, as the kernel's do.
    fn message(len: usize, tag: u64) -> Vec<u8> {
        let mut bytes = vec![tag as u8; len];
        bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        bytes[8..16].copy_from_slice(&tag.to_ne_bytes());
        bytes
    }

    fn inherit(left: OwnedFd) -> io::Result<(Ledger, Vec<usize>)> {
        let (mut ledger, mut found) = (Ledger::inherit(left)?, Vec::new());
        ledger.unanswered(&mut found)?;
        Ok((ledger, found))
    }

    fn read(ledger: &mut Ledger, message: &[u8]) -> usize {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(message).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        ledger.read(file.as_raw_fd()).unwrap().unwrap()
    }

    #[test]
    fn what_is_not_answered_is_there_for_the_next_process() {
        let mut ledger = Ledger::new().unwrap();
        let messages: Vec<Vec<u8>> =
            (1..=40u64).map(|tag| message(if tag % 2 == 0 { 60 } else { 80 + tag as usize * 1000 }, tag)).collect();
        for (tag, bytes) in (1..).zip(&messages) {
            let entry = read(&mut ledger, bytes);
            ledger.name(entry, tag);
        }
        (1..=40).filter(|tag| tag % 3 == 0).for_each(|tag| ledger.answered(tag));
        // Prepared for one more, which does not come.
        let (nobody, silent) = UnixDatagram::pair().unwrap();
        silent.set_nonblocking(true).unwrap();
        assert_eq!(ledger.read(silent.as_raw_fd()), Some(Err(-libc::EAGAIN)));
        drop(nobody);
        let left = ledger.descriptor().as_fd().try_clone_to_owned().unwrap();
        drop(ledger);
        let (mut next, unanswered) = inherit(left).unwrap();
        let mut found: Vec<Vec<u8>> = unanswered
            .iter()
            .map(|entry| {
                let (header, rest) = next.message(*entry);
                let whole = [header.as_slice(), rest].concat();
                let len = u32::from_ne_bytes(*whole.first_chunk().unwrap()) as usize;
                whole[..len].to_vec()
            })
            .collect();
        let mut want: Vec<Vec<u8>> = (1..).zip(messages).filter(|(tag, _)| tag % 3 != 0).map(|(_, m)| m).collect();
        found.sort();
        want.sort();
        assert_eq!(found, want);
        unanswered.into_iter().for_each(|entry| next.forget(entry));
        let again = next.descriptor().as_fd().try_clone_to_owned().unwrap();
        assert!(inherit(again).unwrap().1.is_empty());
    }

    #[test]
    fn a_message_without_payload_is_in_nobodys_way() {
        let mut ledger = Ledger::new().unwrap();
        let before = read(&mut ledger, &message(WRITE_HEADER + 100_000, 1));
        // Behind that one's payload, which is answered; the next one's is longer.
        let small = read(&mut ledger, &message(WRITE_HEADER, 2));
        ledger.forget(before);
        let large = read(&mut ledger, &message(WRITE_HEADER + 200_000, 3));
        let left = ledger.descriptor().as_fd().try_clone_to_owned().unwrap();
        let mut unanswered = inherit(left).unwrap().1;
        unanswered.sort_unstable();
        let mut want = [small, large];
        want.sort_unstable();
        assert_eq!(unanswered, want);
    }

    #[test]
    fn a_full_ledger_reads_nothing_until_something_is_answered() {
        let mut ledger = Ledger::new().unwrap();
        let mut tags = 1..;
        while !ledger.is_full() {
            let tag = tags.next().unwrap();
            let entry = read(&mut ledger, &message(WRITE_HEADER + PAYLOAD_MAX, tag));
            ledger.name(entry, tag);
        }
        assert_eq!(ledger.by_tag.len(), ROOM / PAYLOAD_MAX);
        assert!(ledger.read(-1).is_none(), "nothing is asked of the kernel");
        ledger.answered(2);
        assert!(!ledger.is_full());
        read(&mut ledger, &message(WRITE_HEADER + PAYLOAD_MAX, 100));
        assert!(ledger.is_full());
        for small in 0..3 * ENTRIES as u64 {
            ledger.answered(1);
            let entry = read(&mut ledger, &message(WRITE_HEADER, 1000 + small));
            ledger.name(entry, 1);
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        let other = Shared::create(AREA + ROOM).unwrap().descriptor().try_clone_to_owned().unwrap();
        assert!(inherit(other).is_err_and(|e| e.to_string().contains("another version")));
        let short = tempfile::tempfile().unwrap();
        assert!(inherit(short.into()).is_err());
        let mut damaged = Ledger::new().unwrap();
        damaged.memory.bytes_mut(ENTRY..ENTRY + 4).copy_from_slice(&u32::MAX.to_ne_bytes());
        let left = damaged.descriptor().try_clone_to_owned().unwrap();
        assert!(inherit(left).is_err_and(|e| e.to_string().contains("damaged")));
    }
}
