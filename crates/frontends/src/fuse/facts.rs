//! What a process says of its files and doors while it serves them, in memory that the keeper has as well: with it the
//! keeper answers those who only look when the process is gone ([`absent`](super::absent)).
//!
//! Each fact is one word, so that a process that is killed between two of them leaves none in halves.
//!
//! Two more words are about a process that is there and does not work, as it was stopped or hangs: it counts its turns,
//! and the keeper what it has read beside it and could not answer. Both only grow, and each has one writer.

use super::abi::ROOT;
use super::door::Door;
use crate::shared::Shared;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Release};

const LAYOUT: &[u8; 16] = b"urbd facts 1\n\0\0\0";
/// In words: the layout's name, how many volumes, whom the files belong to, whether there is a ledger, how long the
/// secret is; then the secret. The last two: how many turns, and how much was put aside.
const COUNT: usize = 2;
const OWNER: usize = 3;
const LEDGER: usize = 4;
const SECRET_LEN: usize = 5;
const SECRET: usize = 6 * 8;
const SECRET_MAX: usize = 512 - 2 * 8 - SECRET;
const VOLUMES: usize = 512 / 8;
const TURNS: usize = VOLUMES - 2;
const ASIDE: usize = VOLUMES - 1;
/// Words of each volume, and which they are.
const EACH: usize = 4;
const NUMBER: usize = 0;
const SIZE: usize = 1;
const DOOR: usize = 2;
const CLEAN: usize = 3;
/// A volume has its number in sixteen bits.
const VOLUMES_MAX: u64 = 1 << 16;

/// All of them.
#[derive(Debug)]
pub struct Facts(Shared);

/// One volume's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fact {
    pub(super) volume: u32,
    pub(super) size: u64,
    pub(super) door: Option<Door>,
    /// All that was written, and acknowledged, has been flushed.
    pub(super) clean: bool,
}

impl Facts {
    /// For these volumes, in this order, without doors, and not flushed. `ledger`: what is not answered is in a
    /// [`Ledger`](super::ledger::Ledger).
    ///
    /// # Errors
    /// If there is no memory, or the secret is too long.
    pub fn new(volumes: &[u32], owner: (u32, u32), secret: &str, ledger: bool) -> io::Result<Facts> {
        if secret.len() > SECRET_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the resource's name is too long"));
        }
        let mut memory = Shared::create(((VOLUMES + EACH * volumes.len()) * 8).next_multiple_of(4096))?;
        memory.bytes_mut(SECRET..SECRET + secret.len()).copy_from_slice(secret.as_bytes());
        let facts = Facts(memory);
        facts.set(COUNT, volumes.len() as u64);
        facts.set(OWNER, u64::from(owner.0) << 32 | u64::from(owner.1));
        facts.set(LEDGER, u64::from(ledger));
        facts.set(SECRET_LEN, secret.len() as u64);
        for (at, volume) in volumes.iter().enumerate() {
            facts.set(VOLUMES + EACH * at + NUMBER, u64::from(*volume));
        }
        let mut facts = facts;
        facts.0.bytes_mut(0..LAYOUT.len()).copy_from_slice(LAYOUT);
        Ok(facts)
    }

    /// What another process has said.
    ///
    /// # Errors
    /// If it is not what it should be: another version's, perhaps.
    pub fn inherit(left: OwnedFd) -> io::Result<Facts> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the facts that it left are another version's");
        let len = std::fs::File::from(left.try_clone()?).metadata()?.len();
        let len = usize::try_from(len).ok().filter(|len| *len >= VOLUMES * 8).ok_or_else(wrong)?;
        let facts = Facts(Shared::map(left, len)?);
        let count = facts.get(COUNT);
        let fits = count <= VOLUMES_MAX && (VOLUMES + EACH * count as usize) * 8 <= len;
        let named = facts.get(SECRET_LEN) as usize <= SECRET_MAX;
        if facts.0.bytes(0..LAYOUT.len()) != LAYOUT || !fits || !named {
            facts.unmap();
            return Err(wrong());
        }
        Ok(facts)
    }

    /// For the keeper.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }

    /// The size of the file of the volume at this place.
    pub fn set_size(&self, at: usize, size: u64) {
        self.set(VOLUMES + EACH * at + SIZE, size);
    }

    /// Where its door leads to.
    pub fn set_door(&self, at: usize, door: Option<Door>) {
        self.set(VOLUMES + EACH * at + DOOR, door.map_or(0, packed));
    }

    /// Has all that was written to it been flushed? To be taken back before a write may be acknowledged.
    pub fn set_clean(&self, at: usize, clean: bool) {
        self.set(VOLUMES + EACH * at + CLEAN, u64::from(clean));
    }

    /// The process that serves the files is at work, and asks for what was put aside ([`Facts::aside`]). One of an
    /// older version never says so.
    pub fn count_turn(&self) {
        self.set(TURNS, self.get(TURNS) + 1);
    }

    /// How often it was. 0: it does not say so.
    pub(crate) fn turns(&self) -> u64 {
        self.get(TURNS)
    }

    /// The keeper has read something beside the process that it cannot answer, or that concerns the process. To be
    /// called when it was read.
    pub(super) fn put_aside(&self) {
        self.set(ASIDE, self.get(ASIDE) + 1);
    }

    /// How much that was.
    #[must_use]
    pub fn aside(&self) -> u64 {
        self.get(ASIDE)
    }

    /// Is what was not answered in a ledger?
    #[must_use]
    pub fn uses_ledger(&self) -> bool {
        self.get(LEDGER) != 0
    }

    /// Are they in the memory that this descriptor stands for?
    pub(crate) fn is(&self, fd: BorrowedFd<'_>) -> bool {
        self.0.is(fd)
    }

    /// Leaves the memory to others.
    pub fn unmap(self) {
        self.0.unmap();
    }

    pub(super) fn owner(&self) -> (u32, u32) {
        let owner = self.get(OWNER);
        ((owner >> 32) as u32, owner as u32)
    }

    pub(super) fn secret(&self) -> &[u8] {
        let len = (self.get(SECRET_LEN) as usize).min(SECRET_MAX);
        self.0.bytes(SECRET..SECRET + len)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Fact> {
        (0..self.get(COUNT) as usize).map(|at| {
            let word = |which: usize| self.get(VOLUMES + EACH * at + which);
            let door = word(DOOR);
            Fact {
                volume: word(NUMBER) as u32,
                size: word(SIZE),
                door: (door != 0).then(|| unpacked(door)),
                clean: word(CLEAN) != 0,
            }
        })
    }

    /// The volume whose file has this node.
    pub(super) fn of_node(&self, node: u64) -> Option<Fact> {
        self.all().find(|fact| u64::from(fact.volume) + ROOT + 1 == node)
    }

    pub(super) fn of_volume(&self, volume: u32) -> Option<Fact> {
        self.all().find(|fact| fact.volume == volume)
    }

    fn set(&self, word: usize, value: u64) {
        self.0.word(word).store(value, Release);
    }

    fn get(&self, word: usize) -> u64 {
        self.0.word(word).load(Acquire)
    }
}

/// Doors belong to root, and a group.
fn packed(door: Door) -> u64 {
    let ((major, minor), (_, group)) = (door.device, door.owner);
    1 << 63 | u64::from(major & 0x7ff) << 52 | u64::from(minor & 0xf_ffff) << 32 | u64::from(group)
}

fn unpacked(word: u64) -> Door {
    Door { device: ((word >> 52 & 0x7ff) as u32, (word >> 32 & 0xf_ffff) as u32), owner: (0, word as u32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_says_another_one_reads() {
        let facts = Facts::new(&[0, 7], (3, 4), "r0-12", true).unwrap();
        let door = Door { device: (7, 1_000_000), owner: (0, 6) };
        facts.set_size(1, 1 << 40);
        facts.set_door(1, Some(door));
        facts.set_clean(0, true);
        let next = Facts::inherit(facts.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((next.owner(), next.secret(), next.uses_ledger()), ((3, 4), &b"r0-12"[..], true));
        let first = Fact { volume: 0, size: 0, door: None, clean: true };
        let second = Fact { volume: 7, size: 1 << 40, door: Some(door), clean: false };
        assert_eq!(next.all().collect::<Vec<_>>(), [first, second]);
        assert_eq!((next.of_node(ROOT + 1), next.of_node(ROOT + 8)), (Some(first), Some(second)));
        assert!(next.of_node(ROOT).is_none() && next.of_volume(1).is_none());
        facts.set_door(1, None);
        assert_eq!(next.of_volume(7).unwrap().door, None, "it is the same memory");
        assert_eq!((next.turns(), next.aside()), (0, 0));
        facts.count_turn();
        next.put_aside();
        assert_eq!((next.turns(), facts.aside()), (1, 1));
    }

    #[test]
    fn what_is_none_is_refused() {
        assert!(Facts::new(&[], (0, 0), &"x".repeat(SECRET_MAX + 1), false).is_err());
        let longest = Facts::new(&[], (0, 0), &"x".repeat(SECRET_MAX), false).unwrap();
        assert_eq!((longest.turns(), longest.aside()), (0, 0));
        for len in [4096, 8192] {
            let other = Shared::create(len).unwrap().descriptor().try_clone_to_owned().unwrap();
            assert!(Facts::inherit(other).is_err_and(|e| e.to_string().contains("another version")));
        }
        assert!(Facts::inherit(tempfile::tempfile().unwrap().into()).is_err());
        let facts = Facts::new(&[0], (0, 0), "", false).unwrap();
        facts.set(COUNT, 4096);
        assert!(Facts::inherit(facts.descriptor().try_clone_to_owned().unwrap()).is_err());
    }
}
