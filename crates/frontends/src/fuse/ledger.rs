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
//! What a keeper reads beside a process that does not work goes to a ledger of the keeper's own: the process may go
//! on with its own at any time. An entry with a message that the keeper cannot answer is marked as left. The process
//! copies it to its own ledger, and then marks it as taken; only the keeper makes it an empty one. Of two entries with
//! the same message, one in each ledger, the process's counts: it was killed between the two.
//!
//! Layout: `ENTRIES` entries of `ENTRY` bytes (the message's first `WRITE_HEADER` bytes, then where the rest is, and
//! the mark), the first of which names the layout; then the rest of the messages, in pieces of `PIECE` bytes.

use super::{PAYLOAD_MAX, WRITE_HEADER};
use crate::shared::Shared;
use crate::sys;
use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

pub(super) const ENTRIES: usize = 1024;
const ENTRY: usize = 128;
const PIECE: usize = 512;
/// Where in an entry the mark is, and which there are; 0 is none.
const MARK: usize = 88;
const LEFT: u64 = 1;
const TAKEN: u64 = 2;
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
    /// The keeper's own, for a process.
    keepers: Option<Box<Ledger>>,
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
            keepers: None,
        }
    }

    /// The same, with the keeper's own.
    #[must_use]
    pub fn with_keepers(mut self, keepers: Ledger) -> Ledger {
        self.keepers = Some(Box::new(keepers));
        self
    }

    /// The keeper's own.
    #[must_use]
    pub fn keepers(&self) -> Option<&Ledger> {
        self.keepers.as_deref()
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
    pub fn read(&mut self, fd: BorrowedFd<'_>) -> Option<Result<usize, i32>> {
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

    /// The same of a keeper's own ledger, whose entries with the mark of taken ones are empty from here on.
    ///
    /// # Errors
    /// If it is not what it should be.
    pub fn reclaim(&mut self, found: &mut Vec<usize>) -> io::Result<()> {
        for entry in 1..ENTRIES {
            if self.mark(entry).load(Ordering::Acquire) == TAKEN {
                self.clear(entry);
                self.mark(entry).store(0, Ordering::Release);
            }
        }
        self.unanswered(found)
    }

    /// The keeper leaves the message in its ledger to the process.
    pub fn leave(&mut self, entry: usize) {
        self.mark(entry).store(LEFT, Ordering::Release);
    }

    /// It has answered it, after all.
    pub fn withdraw(&mut self, entry: usize) {
        if self.mark(entry).compare_exchange(LEFT, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.forget(entry);
        }
    }

    /// The keeper does not read any more, or was killed: whatever is in its ledger is left.
    pub fn leave_all(&self) {
        let there = (1..ENTRIES).filter(|entry| self.u32(*entry, 0) != 0);
        there.for_each(|entry| _ = self.mark(entry).compare_exchange(0, LEFT, Ordering::AcqRel, Ordering::Acquire));
    }

    /// Takes what the keeper has left in its ledger: the entries here are put into `found`. False: there is no room for
    /// all of it.
    pub fn adopt(&mut self, other: &Ledger, mut found: impl FnMut(usize)) -> bool {
        let is_left = |from: &usize| other.mark(*from).load(Ordering::Acquire) == LEFT;
        // All of those first: when one is answered here it is not known any more that it is the same.
        for from in (1..ENTRIES).filter(is_left).filter(|from| self.has(other.unique(*from))) {
            other.mark(from).store(TAKEN, Ordering::Release);
        }
        for from in (1..ENTRIES).filter(is_left) {
            let Some(entry) = self.prepare() else { return false };
            self.copy(entry, other.message(from));
            match other.mark(from).compare_exchange(LEFT, TAKEN, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => found(entry),
                Err(_) => self.forget(entry),
            }
        }
        true
    }

    /// The same of the keeper's ledger that this process knows.
    pub fn adopt_left(&mut self, found: impl FnMut(usize)) -> bool {
        let keepers = self.keepers.take();
        let all = keepers.as_ref().is_none_or(|keepers| self.adopt(keepers, found));
        self.keepers = keepers;
        all
    }

    /// Fills a prepared entry, its length last.
    fn copy(&mut self, entry: usize, (header, rest): (&[u8; WRITE_HEADER], &[u8])) {
        let (at, start) = (entry * ENTRY, self.u32(entry, WRITE_HEADER) as usize);
        self.memory.bytes_mut(AREA + start..AREA + start + rest.len()).copy_from_slice(rest);
        for part in [4..WRITE_HEADER, 0..4] {
            compiler_fence(Ordering::SeqCst);
            self.memory.bytes_mut(at + part.start..at + part.end).copy_from_slice(&header[part]);
        }
        compiler_fence(Ordering::SeqCst);
        self.reading = None;
        self.take(entry, start..start + rest.len().next_multiple_of(PIECE));
    }

    /// Is the message with this number in one of the entries?
    fn has(&self, unique: u64) -> bool {
        (1..ENTRIES).any(|entry| self.u32(entry, 0) != 0 && self.unique(entry) == unique)
    }

    fn unique(&self, entry: usize) -> u64 {
        let at = entry * ENTRY + 8;
        u64::from_ne_bytes(*self.memory.bytes(at..at + 8).first_chunk().expect("eight bytes"))
    }

    fn mark(&self, entry: usize) -> &AtomicU64 {
        self.memory.word((entry * ENTRY + MARK) / size_of::<AtomicU64>())
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
    use std::os::fd::AsFd;
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
        ledger.read(file.as_fd()).unwrap().unwrap()
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
        assert_eq!(ledger.read(silent.as_fd()), Some(Err(-libc::EAGAIN)));
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

    /// Two processes' views of the same memory.
    fn twice(ledger: &Ledger) -> Ledger {
        Ledger::inherit(ledger.descriptor().try_clone_to_owned().unwrap()).unwrap()
    }

    fn adopted(ledger: &mut Ledger, left: &Ledger) -> Vec<u64> {
        let mut entries = Vec::new();
        assert!(ledger.adopt(left, |entry| entries.push(entry)));
        let mut uniques: Vec<u64> = entries.into_iter().map(|entry| ledger.unique(entry)).collect();
        uniques.sort_unstable();
        uniques
    }

    #[test]
    fn what_a_keeper_leaves_the_process_has_once() {
        let (mut own, mut keepers) = (Ledger::new().unwrap(), Ledger::new().unwrap());
        let left = twice(&keepers);
        let long = WRITE_HEADER + 5000;
        let entries: Vec<usize> = (1..=5).map(|tag| read(&mut keepers, &message(long, tag))).collect();
        assert!(adopted(&mut own, &left).is_empty(), "the keeper may still answer them");
        entries[..4].iter().for_each(|entry| keepers.leave(*entry));
        keepers.withdraw(entries[0]);
        assert_eq!(adopted(&mut own, &left), [2, 3, 4]);
        // The keeper cannot take back what the process has.
        keepers.withdraw(entries[1]);
        assert_eq!(keepers.unique(entries[1]), 2);
        assert!(adopted(&mut own, &left).is_empty());
        // It was killed before it said what it does with the last one.
        left.leave_all();
        assert_eq!(adopted(&mut own, &left), [5]);
        // All of it is there with all that it says, and the keeper's entries are empty the next time.
        let (_, found) = inherit(own.descriptor().try_clone_to_owned().unwrap()).unwrap();
        let whole = |entry: &usize| own.message(*entry).1 == &message(long, own.unique(*entry))[WRITE_HEADER..];
        assert!(found.len() == 4 && found.iter().all(whole));
        let mut found = vec![0];
        keepers.reclaim(&mut found).unwrap();
        assert!(found.is_empty());
    }

    #[test]
    fn a_process_that_is_killed_while_it_takes_it_leaves_it_once() {
        let (mut own, mut keepers) = (Ledger::new().unwrap(), Ledger::new().unwrap());
        read(&mut own, &message(WRITE_HEADER + 700, 7));
        for tag in [7, 8] {
            let entry = read(&mut keepers, &message(WRITE_HEADER + 700, tag));
            keepers.leave(entry);
        }
        let (mut next, unanswered) = inherit(own.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((unanswered.len(), adopted(&mut next, &keepers)), (1, vec![8]));
        assert!(adopted(&mut next, &keepers).is_empty());
    }

    #[test]
    fn what_has_no_room_stays_with_the_keeper() {
        let (mut own, mut keepers) = (Ledger::new().unwrap(), Ledger::new().unwrap());
        for tag in [77, 1] {
            let entry = read(&mut keepers, &message(WRITE_HEADER, tag));
            keepers.leave(entry);
        }
        let mut filled = Vec::new();
        while !own.is_full() {
            filled.push(read(&mut own, &message(WRITE_HEADER + PAYLOAD_MAX, filled.len() as u64 + 1)));
        }
        assert!(!own.adopt(&keepers, |_| panic!("no room")));
        own.forget(filled[0]);
        assert_eq!(adopted(&mut own, &keepers), [77], "the first one of its own was in both, and has been carried out");
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
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(ledger.read(null.as_fd()).is_none(), "nothing is asked of the kernel");
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
