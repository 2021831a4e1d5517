//! The cache of hot extents (`docs/spec/on-disk-format.md` 3.6, 3.7).
//!
//! It differs from the reference in one point: while a transaction is being written, the next one already collects
//! changes. The rules of 3.7 still hold, because only one transaction is in flight and each batch becomes hot only when
//! its own transaction is committed.

use super::block::Builder;
use super::{CONTEXT_LEN, ExtentRange, MAX_UPDATES, MIN_EXTENTS, NO_EXTENT};
use crate::Block;
use crate::layout::AlShape;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// "No slot" in the idle list.
const NIL: u16 = u16::MAX;

/// The number of the transaction that makes a request's extents hot. Later tickets compare greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Ticket(pub u64);

/// What [`ActivityLog::acquire`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquire {
    /// All extents are hot on disk: write now.
    Active,
    /// The extents are taken; write when the transaction of this ticket is committed.
    Pending(Ticket),
    /// Nothing is taken; ask again, oldest request first, when something is released or committed.
    Busy(Busy),
}

/// Why [`ActivityLog::acquire`] took nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Busy {
    /// All slots are in use by requests. Until enough are free, hits are refused too, so that a cold request is not
    /// starved by a stream of hot ones.
    NoFreeSlot,
    /// The next transaction is full (64 changes): it goes out first.
    BatchFull,
}

/// A transaction that is in flight: its bitmap pages are to be written first, then its block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// Requests with this ticket or an older one may go when it is committed.
    pub ticket: Ticket,
    /// Its number on disk.
    pub tr_number: u32,
    /// Index of its block in the ring: see [`Layout::al_block_at`](crate::Layout::al_block_at).
    pub block_index: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// What is on disk is true; `new` equals `on_disk`.
    Settled,
    /// `new` is to go out with the next transaction.
    Next,
    /// `new` is in the transaction being written.
    InFlight,
}

#[derive(Clone, Debug)]
struct Slot {
    on_disk: u32,
    new: u32,
    state: State,
    users: u32,
    older: u16,
    newer: u16,
}

/// Which extents are hot, in which slot, used by how many requests.
///
/// One request takes all its extents or none, so requests never wait for each other while holding something.
#[derive(Clone, Debug)]
pub struct ActivityLog {
    shape: AlShape,
    slots: Vec<Slot>,
    by_extent: HashMap<u32, u16, BuildHasherDefault<ExtentHasher>>,
    free: Vec<u16>,
    /// Idle hot slots: `oldest` was released first and is recycled first.
    oldest: u16,
    newest: u16,
    idle: u32,
    next: Vec<u16>,
    in_flight: Vec<u16>,
    flight: Option<Transaction>,
    next_ticket: u64,
    next_tr: u32,
    cursor: u16,
    /// Free or idle slots that a refused request waits for.
    starving: Option<u32>,
}

impl ActivityLog {
    /// An empty cache over a ring of INITIALIZED blocks. `extents` is brought into 67 to [`AlShape::max_extents`].
    /// `first_tr` must be 0 or a multiple of [`AlShape::blocks`]: replay takes a fresh ring whose first written block
    /// is torn for unused only if that block is the one of number 0 (`docs/spec/on-disk-format.md` 3.9 step 3).
    #[must_use]
    pub fn new(extents: u16, shape: AlShape, first_tr: u32) -> ActivityLog {
        let mut log = ActivityLog {
            shape,
            slots: Vec::new(),
            by_extent: HashMap::default(),
            free: Vec::new(),
            oldest: NIL,
            newest: NIL,
            idle: 0,
            next: Vec::with_capacity(MAX_UPDATES),
            in_flight: Vec::with_capacity(MAX_UPDATES),
            flight: None,
            next_ticket: 1,
            next_tr: first_tr,
            cursor: 0,
            starving: None,
        };
        log.empty(extents);
        log
    }

    /// Takes the extents of a write. On `Active` and `Pending` each extent has one user more, until
    /// [`release`](Self::release) with the same range. Does not allocate. Panics if `range` has more than 64 extents
    /// (requests have at most 33).
    pub fn acquire(&mut self, range: ExtentRange) -> Acquire {
        if self.starving.is_some() && !self.fed() {
            return Acquire::Busy(Busy::NoFreeSlot);
        }
        if range.count() == 1 {
            // The fast path: one look-up for a write to a hot extent.
            if let Some(&i) = self.by_extent.get(&range.first()) {
                self.use_slot(i);
                return self.acquired(self.slot_ticket(i));
            }
        }
        if let Err(busy) = self.room_for(range) {
            return Acquire::Busy(busy);
        }
        let mut ticket = None;
        // Present extents first: they must not be recycled for the absent ones.
        for extent in range.iter() {
            if let Some(&i) = self.by_extent.get(&extent) {
                self.use_slot(i);
                ticket = ticket.max(self.slot_ticket(i));
            }
        }
        for extent in range.iter() {
            if !self.by_extent.contains_key(&extent) {
                let i = self.assign(extent);
                self.slots[usize::from(i)].users = 1;
                ticket = ticket.max(self.slot_ticket(i));
            }
        }
        self.acquired(ticket)
    }

    /// Makes an extent hot before it is needed, in the next transaction, without a user. Takes only a free or idle
    /// slot, and never starves anyone; returns false if there was none, the batch is full, or the extent is hot
    /// already.
    pub fn prefetch(&mut self, extent: u32) -> bool {
        let wanted = extent < NO_EXTENT && self.starving.is_none() && !self.by_extent.contains_key(&extent);
        if !wanted || self.next.len() == MAX_UPDATES || self.available() == 0 {
            return false;
        }
        self.assign(extent);
        true
    }

    /// Is the extent hot, or about to be?
    #[must_use]
    pub fn is_known(&self, extent: u32) -> bool {
        self.by_extent.contains_key(&extent)
    }

    /// Is every extent of `range` hot on disk, so that [`acquire`](Self::acquire) needs no transaction?
    #[must_use]
    pub fn is_hot(&self, range: ExtentRange) -> bool {
        range.iter().all(|e| self.by_extent.get(&e).is_some_and(|&i| self.slot_ticket(i).is_none()))
    }

    /// Gives back what [`acquire`](Self::acquire) took, also if its transaction was not committed yet. The extents stay
    /// hot. Only when nothing about the write is unaccounted for (`docs/spec/on-disk-format.md` 3.7, I2). Returns true
    /// if a slot became idle, so that refused requests are worth asking again. Panics if the range is not held.
    pub fn release(&mut self, range: ExtentRange) -> bool {
        let mut became_idle = false;
        for extent in range.iter() {
            let i = *self.by_extent.get(&extent).expect("released extent is in the activity log");
            let slot = &mut self.slots[usize::from(i)];
            slot.users = slot.users.checked_sub(1).expect("released extent has a user");
            if slot.users == 0 && slot.state == State::Settled {
                self.push_idle(i);
                became_idle = true;
            }
        }
        became_idle
    }

    /// Are there changes for a next transaction, and none in flight?
    #[must_use]
    pub fn wants_transaction(&self) -> bool {
        self.flight.is_none() && !self.next.is_empty()
    }

    /// Starts the next transaction with all changes collected so far: from now on they are fixed. `None` if there are
    /// no changes or one is in flight. The caller writes the dirty bitmap pages of [`evicted`](Self::evicted) extents,
    /// waits for them, writes [`emit_block`](Self::emit_block) with a flush before it and FUA, then calls
    /// [`commit`](Self::commit). If any of these writes fails the disk is to be detached.
    pub fn start_transaction(&mut self) -> Option<Transaction> {
        if !self.wants_transaction() {
            return None;
        }
        std::mem::swap(&mut self.next, &mut self.in_flight);
        for &i in &self.in_flight {
            self.slots[usize::from(i)].state = State::InFlight;
        }
        let transaction = Transaction {
            ticket: Ticket(self.next_ticket),
            tr_number: self.next_tr,
            block_index: self.shape.block_of(self.next_tr),
        };
        self.next_ticket += 1;
        self.flight = Some(transaction);
        self.flight
    }

    /// The transaction in flight.
    #[must_use]
    pub fn in_flight(&self) -> Option<Transaction> {
        self.flight
    }

    /// Extents that the transaction in flight replaces: their dirty bitmap pages must be on disk before its block.
    pub fn evicted(&self) -> impl Iterator<Item = u32> + '_ {
        self.in_flight.iter().map(|&i| self.slots[usize::from(i)].on_disk).filter(|&e| e != NO_EXTENT)
    }

    /// Fills the block of the transaction in flight. Panics if there is none.
    pub fn emit_block(&self, block: &mut Block) {
        let transaction = self.flight.expect("a transaction is in flight");
        self.fill(block, transaction.tr_number, &self.in_flight);
    }

    /// The block of the transaction in flight is on stable storage: its extents are hot now. Returns the ticket up to
    /// which requests may go. Panics if none is in flight.
    pub fn commit(&mut self) -> Ticket {
        let transaction = self.flight.take().expect("a transaction is in flight");
        self.advance();
        for n in 0..self.in_flight.len() {
            let i = self.in_flight[n];
            let slot = &mut self.slots[usize::from(i)];
            slot.on_disk = slot.new;
            slot.state = State::Settled;
            if slot.users == 0 {
                self.push_idle(i);
            }
        }
        self.in_flight.clear();
        transaction.ticket
    }

    /// A transaction without changes that describes the next window of slots. Writing [`AlShape::blocks`] of them in a
    /// row makes a ring that stands for itself, for a changed ring or place (`docs/spec/on-disk-format.md` 3.3, 7.1).
    /// Returns the index of the block. Panics if a transaction is in flight.
    pub fn emit_context_block(&mut self, block: &mut Block) -> u32 {
        assert!(self.flight.is_none(), "a transaction is in flight");
        let (tr, index) = (self.next_tr, self.shape.block_of(self.next_tr));
        self.fill(block, tr, &[]);
        self.advance();
        index
    }

    /// Changes the number of extents and the ring; false, and nothing changed, while any extent is used or a change is
    /// pending. All dirty bitmap pages must be on disk before. If the ring changed it must be rewritten.
    pub fn reconfigure(&mut self, extents: u16, shape: AlShape) -> bool {
        let busy = self.flight.is_some() || !self.next.is_empty() || self.available() as usize != self.slots.len();
        if busy {
            return false;
        }
        self.shape = shape;
        self.empty(extents);
        true
    }

    /// Changes only the ring, with I/O suspended; the hot extents stay. The number of slots must fit the new ring,
    /// else false. Panics if a transaction is in flight.
    pub fn change_ring(&mut self, shape: AlShape) -> bool {
        assert!(self.flight.is_none(), "a transaction is in flight");
        if self.slots.len() > usize::from(shape.max_extents()) {
            return false;
        }
        self.shape = shape;
        self.cursor = 0;
        true
    }

    /// Gives up on requests that were refused: hits are accepted again.
    pub fn forget_waiters(&mut self) {
        self.starving = None;
    }

    /// Slots: `al-extents` in force.
    #[must_use]
    pub fn capacity(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Extents that are hot or about to be.
    #[must_use]
    pub fn hot_count(&self) -> usize {
        self.by_extent.len()
    }

    /// Slots that some request uses.
    #[must_use]
    pub fn used_count(&self) -> usize {
        self.slots.iter().filter(|s| s.users > 0).count()
    }

    /// The number that the next transaction will have.
    #[must_use]
    pub fn next_tr_number(&self) -> u32 {
        self.flight.map_or(self.next_tr, |t| t.tr_number.wrapping_add(1))
    }

    /// The ring.
    #[must_use]
    pub fn shape(&self) -> AlShape {
        self.shape
    }

    fn empty(&mut self, extents: u16) {
        let n = extents.clamp(MIN_EXTENTS, self.shape.max_extents());
        let slot = Slot { on_disk: NO_EXTENT, new: NO_EXTENT, state: State::Settled, users: 0, older: NIL, newer: NIL };
        self.slots = vec![slot; usize::from(n)];
        // Slots are handed out from the highest down, as the reference does.
        self.free = (0..n).collect();
        self.by_extent = HashMap::with_capacity_and_hasher(usize::from(n) * 2, BuildHasherDefault::default());
        (self.oldest, self.newest, self.idle) = (NIL, NIL, 0);
        (self.cursor, self.starving) = (0, None);
    }

    fn acquired(&mut self, ticket: Option<Ticket>) -> Acquire {
        self.starving = None;
        ticket.map_or(Acquire::Active, Acquire::Pending)
    }

    fn available(&self) -> u32 {
        self.free.len() as u32 + self.idle
    }

    fn fed(&self) -> bool {
        self.starving.is_none_or(|needed| self.available() >= needed)
    }

    fn room_for(&mut self, range: ExtentRange) -> Result<(), Busy> {
        assert!(range.count() <= MAX_UPDATES as u64, "a request of {} extents exceeds a transaction", range.count());
        let (mut absent, mut idle) = (0, 0);
        for extent in range.iter() {
            match self.by_extent.get(&extent) {
                None => absent += 1,
                Some(&i) => idle += u32::from(self.is_idle(i)),
            }
        }
        if absent == 0 {
            return Ok(());
        }
        if self.available() < absent + idle {
            self.starving = Some(absent + idle);
            return Err(Busy::NoFreeSlot);
        }
        if self.next.len() + absent as usize > MAX_UPDATES { Err(Busy::BatchFull) } else { Ok(()) }
    }

    fn is_idle(&self, i: u16) -> bool {
        let slot = &self.slots[usize::from(i)];
        slot.users == 0 && slot.state == State::Settled && slot.on_disk != NO_EXTENT
    }

    fn slot_ticket(&self, i: u16) -> Option<Ticket> {
        match self.slots[usize::from(i)].state {
            State::Settled => None,
            State::InFlight => Some(Ticket(self.next_ticket - 1)),
            State::Next => Some(Ticket(self.next_ticket)),
        }
    }

    fn use_slot(&mut self, i: u16) {
        if self.is_idle(i) {
            self.unlink_idle(i);
        }
        self.slots[usize::from(i)].users += 1;
    }

    /// Gives `extent` a free slot, or that of the extent released longest ago.
    fn assign(&mut self, extent: u32) -> u16 {
        let i = self.free.pop().unwrap_or_else(|| {
            let i = self.oldest;
            self.unlink_idle(i);
            let old = self.slots[usize::from(i)].on_disk;
            self.by_extent.remove(&old);
            i
        });
        let slot = &mut self.slots[usize::from(i)];
        slot.new = extent;
        slot.state = State::Next;
        self.by_extent.insert(extent, i);
        self.next.push(i);
        i
    }

    fn push_idle(&mut self, i: u16) {
        let newest = self.newest;
        let slot = &mut self.slots[usize::from(i)];
        (slot.older, slot.newer) = (newest, NIL);
        match newest {
            NIL => self.oldest = i,
            n => self.slots[usize::from(n)].newer = i,
        }
        self.newest = i;
        self.idle += 1;
    }

    fn unlink_idle(&mut self, i: u16) {
        let (older, newer) = (self.slots[usize::from(i)].older, self.slots[usize::from(i)].newer);
        match older {
            NIL => self.oldest = newer,
            o => self.slots[usize::from(o)].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            n => self.slots[usize::from(n)].older = older,
        }
        self.idle -= 1;
    }

    fn fill(&self, block: &mut Block, tr_number: u32, updates: &[u16]) {
        let n = self.slots.len();
        let start = usize::from(self.cursor);
        let mut builder = Builder::new(block, tr_number, n as u16, self.cursor);
        for &i in updates {
            builder.update(i, self.slots[usize::from(i)].new);
        }
        for (k, slot) in self.slots[start..n.min(start + CONTEXT_LEN)].iter().enumerate() {
            builder.context(k, slot.on_disk);
        }
        builder.seal();
    }

    fn advance(&mut self) {
        self.next_tr = self.next_tr.wrapping_add(1);
        let next = usize::from(self.cursor) + CONTEXT_LEN;
        self.cursor = if next >= self.slots.len() { 0 } else { next as u16 };
    }
}

/// Spreads extent numbers; deterministic, unlike the standard library's default.
#[derive(Clone, Default)]
struct ExtentHasher(u64);

impl Hasher for ExtentHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u32(u32::from(b));
        }
    }

    fn write_u32(&mut self, n: u32) {
        let x = (self.0 ^ u64::from(n)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = x ^ (x >> 32);
    }
}
