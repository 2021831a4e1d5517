//! The memory plan: page-aligned buffers of a few sizes, counted by reference.
//!
//! A write's payload is one buffer that the disk write and the sends to all peers share. [`Pool::take`] returning
//! `None` is back-pressure: the caller stops receiving until a buffer comes back.
//!
//! A few buffers of each size are there from the start, and suffice to go on. A pool that grows gets more while they
//! run short (`buffers/growth.rs`), which nobody waits for.
#![allow(unsafe_code)]

pub(crate) mod growth;

use crate::memory::{self, CHUNK};
use std::cell::{Cell, RefCell};
use std::fmt;
use units::Instant;

/// Alignment of every buffer, in bytes: what O_DIRECT needs at most on the disks we know.
pub const ALIGNMENT: usize = 4096;

/// Clients' sockets that find a buffer each, besides those that serve requests.
const CLIENTS: usize = 48;

/// How many buffers of which size a pool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassPlan {
    /// Bytes per buffer; a non-zero multiple of [`ALIGNMENT`].
    pub size: usize,
    /// Number of buffers.
    pub count: usize,
}

/// How many buffers of which size a pool holds that grows and shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowingPlan {
    /// Bytes per buffer; a power of two from [`ALIGNMENT`] to 2 MiB.
    pub size: usize,
    /// Number of buffers that are always there.
    pub least: usize,
    /// Number of buffers that there may be.
    pub most: usize,
}

/// A set of aligned buffers. Lives until the process ends (`&'static`), so that memory which the kernel still writes
/// into is never given back to the allocator.
pub struct Pool {
    classes: Box<[Class]>,
    slots: Box<[Slot]>,
    /// A class runs short.
    wanting: Cell<bool>,
}

/// A counted reference to one buffer. Cloning shares the buffer; the last reference returns it to its pool.
pub struct Buf {
    pool: &'static Pool,
    slot: u32,
    /// The slot's memory when the reference was made: an operation that was given up keeps what it was given.
    address: *mut u8,
}

/// The name of a buffer for code that must not touch its bytes. Owns the reference that [`Buf::into_id`] gave up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufId(pub u32);

/// A part of a buffer: `len` bytes from `at`.
#[derive(Clone)]
pub struct Span {
    buf: Buf,
    at: u32,
    len: u32,
}

struct Class {
    size: usize,
    least: usize,
    most: usize,
    /// Buffers that there are, in use or not.
    present: Cell<usize>,
    /// Has room for all that there may be: giving a buffer back needs no memory.
    free: RefCell<Vec<u32>>,
    /// Memory of no slot: it came back from operations that had been given up.
    spare: RefCell<Vec<*mut u8>>,
    /// Address space for what it may grow by.
    area: *mut u8,
    chunks: Box<[Chunk]>,
    wanting: Cell<bool>,
    /// When there was no memory for it.
    failed: Cell<Option<Instant>>,
    /// Most buffers in use since it was looked for unused ones.
    peak: Cell<usize>,
}

/// Memory that a class grows by.
struct Chunk {
    state: Cell<ChunkState>,
    /// Its slots.
    first: u32,
    count: u32,
    /// Of these, so many are in use.
    used: Cell<u32>,
    /// An operation that was given up may write into it at any time.
    pinned: Cell<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChunkState {
    Absent,
    Coming,
    Present,
    Going,
}

/// Of a slot that is there from the start.
const NO_CHUNK: u16 = u16::MAX;

struct Slot {
    class: u8,
    /// Where in its class's chunks it is.
    chunk: u16,
    address: Cell<*mut u8>,
    /// All references, named ones included.
    refs: Cell<u32>,
    /// References that exist only as a [`BufId`].
    named: Cell<u32>,
}

impl Pool {
    /// Sets the buffers of `plan` (ascending sizes) aside. The memory is never freed; call it once per process.
    /// Panics if a size is not a multiple of [`ALIGNMENT`], if sizes do not ascend, or if memory runs out.
    #[must_use]
    pub fn leak(plan: &[ClassPlan]) -> &'static Pool {
        let fixed = |c: &ClassPlan| GrowingPlan { size: c.size, least: c.count, most: c.count };
        Pool::build(&plan.iter().map(fixed).collect::<Vec<_>>(), memory::map_memory)
    }

    /// The same with what is always there of `plan`; the rest comes when it is needed (`buffers/growth.rs`).
    #[must_use]
    pub fn leak_growing(plan: &[GrowingPlan]) -> &'static Pool {
        Pool::build(plan, memory::map_least)
    }

    fn build(plan: &[GrowingPlan], map: fn(usize) -> std::io::Result<*mut u8>) -> &'static Pool {
        assert!(plan.windows(2).all(|w| w[0].size < w[1].size), "buffer sizes must ascend: {plan:?}");
        let total: usize = plan.iter().map(|c| c.size * c.least).sum();
        let mut next = map(total).expect("memory for the buffers");
        let mut slots: Vec<Slot> = Vec::with_capacity(plan.iter().map(|c| c.most).sum());
        // The largest ones get the huge pages.
        let mut addresses: Vec<Vec<*mut u8>> = Vec::new();
        for c in plan.iter().rev() {
            assert!(c.size > 0 && c.size.is_multiple_of(ALIGNMENT), "buffer size {} is not aligned", c.size);
            assert!(
                c.least == c.most || CHUNK.is_multiple_of(c.size),
                "buffers of {} bytes do not fill a chunk",
                c.size
            );
            let own = (0..c.least).map(|n| next.wrapping_add(n * c.size)).collect();
            next = next.wrapping_add(c.least * c.size);
            addresses.push(own);
        }
        let mut classes = Vec::new();
        for (class, (c, addresses)) in plan.iter().zip(addresses.into_iter().rev()).enumerate() {
            let slot = |chunk, address| Slot {
                class: class as u8,
                chunk,
                address: Cell::new(address),
                refs: Cell::new(0),
                named: Cell::new(0),
            };
            let (first, each) = (slots.len() as u32, CHUNK / c.size.min(CHUNK));
            slots.extend(addresses.into_iter().map(|address| slot(NO_CHUNK, address)));
            let mut free = Vec::with_capacity(c.most);
            free.extend((first..slots.len() as u32).rev());
            let mut chunks = Vec::new();
            while slots.len() < first as usize + c.most {
                let (at, count) = (slots.len() as u32, each.min(first as usize + c.most - slots.len()));
                let nr = u16::try_from(chunks.len()).expect("a pool is smaller than 128 GiB");
                slots.extend((0..count).map(|_| slot(nr, std::ptr::null_mut())));
                chunks.push(Chunk::absent(at, count as u32));
            }
            classes.push(Class {
                size: c.size,
                least: c.least,
                most: c.most,
                present: Cell::new(c.least),
                free: RefCell::new(free),
                spare: RefCell::default(),
                area: memory::reserve(chunks.len()).expect("address space for the buffers"),
                chunks: chunks.into(),
                wanting: Cell::new(false),
                failed: Cell::new(None),
                peak: Cell::new(0),
            });
        }
        Box::leak(Box::new(Pool { classes: classes.into(), slots: slots.into(), wanting: Cell::new(false) }))
    }

    /// The plan for a resource: `max_buffers` pages of 4 KiB (DRBD's unit) for small writes, and bigger buffers for
    /// the sockets of `peers` and of clients. A read of up to `max_request` bytes finds its pieces of 1 MiB all at
    /// once. What is always there is enough to carry out requests of up to 1 MiB, a few at a time.
    #[must_use]
    pub fn plan(max_buffers: usize, peers: usize, max_request: usize) -> Vec<GrowingPlan> {
        let kib = 1024;
        let share = |bytes: usize, size: usize| (bytes / size).clamp(4, 4096);
        let budget = max_buffers * 4 * kib;
        let largest = 1024 * kib;
        let streams = 2 * peers + CLIENTS;
        let class = |size: usize, least, most| GrowingPlan { size, least, most };
        vec![
            class(4 * kib, 64, max_buffers.clamp(256, 65536)),
            class(16 * kib, 4, share(budget, 16 * kib)),
            class(64 * kib, 4, share(budget, 64 * kib)),
            class(128 * kib, 2 * peers + 2, share(budget, 128 * kib) + 2 * streams),
            class(256 * kib, 1, share(budget / 2, 256 * kib)),
            class(largest, 2, share(budget, largest) + 4 + max_request.div_ceil(largest)),
        ]
    }

    /// A free buffer of at least `len` bytes, in the smallest class that has one; `None` if all are in use or `len`
    /// is above the largest class. Its contents are whatever was there before.
    #[must_use]
    pub fn take(&'static self, len: usize) -> Option<Buf> {
        let fitting = self.classes.iter().filter(|c| c.size >= len);
        let slot = fitting.take(2).find_map(|class| self.pop(class))?;
        Some(self.reference(slot))
    }

    /// The same, but not of the largest class, nor of a larger one than is needed: those are being saved.
    #[must_use]
    pub fn take_spared(&'static self, len: usize) -> Option<Buf> {
        let (_, smaller) = self.classes.split_last()?;
        let slot = self.pop(smaller.iter().find(|c| c.size >= len)?)?;
        Some(self.reference(slot))
    }

    /// Takes a slot of the class into use. More are wanted as soon as few are left.
    fn pop(&self, class: &Class) -> Option<u32> {
        let mut free = class.free.borrow_mut();
        let popped = free.pop();
        let present = class.present.get();
        if free.len() <= present / 4 && present < class.most {
            class.wanting.set(true);
            self.wanting.set(true);
        }
        class.peak.set(class.peak.get().max(present - free.len()));
        let slot = &self.slots[popped? as usize];
        slot.refs.set(1);
        if let Some(chunk) = class.chunks.get(usize::from(slot.chunk)) {
            chunk.used.set(chunk.used.get() + 1);
        }
        popped
    }

    /// Bytes that there may be, in use or not, for buffers of `len` bytes as [`Pool::take`] gives them; as many for
    /// each buffer of the next class. What is longer than the largest class comes in pieces of that.
    #[must_use]
    pub fn bytes_for(&self, len: usize) -> usize {
        let largest = self.classes.len() - 1;
        let first = self.classes.iter().position(|c| c.size >= len).unwrap_or(largest);
        self.classes[first..].iter().take(2).map(Class::reachable).sum::<usize>() * self.classes[first].size
    }

    /// Takes back a reference that [`Buf::into_id`] gave up. Panics if none was given up.
    #[must_use]
    pub fn reclaim(&'static self, id: BufId) -> Buf {
        let slot = &self.slots[id.0 as usize];
        assert!(slot.named.get() > 0, "{id:?} names no reference");
        slot.named.set(slot.named.get() - 1);
        self.reference(id.0)
    }

    /// As [`Pool::reclaim`], but only if the buffer may be written then; else `None` and nothing changes.
    #[must_use]
    pub fn reclaim_sole(&'static self, id: BufId) -> Option<Buf> {
        (self.slots[id.0 as usize].refs.get() == 1).then(|| self.reclaim(id))
    }

    /// One more reference to the buffer that `id` names. Panics if `id` names no reference.
    #[must_use]
    pub fn share(&'static self, id: BufId) -> Buf {
        assert!(self.slots[id.0 as usize].named.get() > 0, "{id:?} names no reference");
        self.add_reference(id.0)
    }

    /// Number of buffers in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.classes.iter().map(|c| c.present.get() - c.free.borrow().len()).sum()
    }

    /// Pieces of memory that came back by [`Pool::salvage`] and serve no buffer at present.
    #[cfg(test)]
    pub(crate) fn spares(&self) -> usize {
        self.classes.iter().map(|c| c.spare.borrow().len()).sum()
    }

    /// Bytes set aside at present.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.classes.iter().map(|c| c.size * c.present.get()).sum()
    }

    /// Bytes that are always set aside.
    #[must_use]
    pub fn least(&self) -> usize {
        self.classes.iter().map(|c| c.size * c.least).sum()
    }

    /// Bytes that it may grow to.
    #[must_use]
    pub fn most(&self) -> usize {
        self.classes.iter().map(|c| c.size * c.most).sum()
    }

    /// The same as far as there is memory, when there was none for more.
    #[must_use]
    pub fn reachable(&self) -> usize {
        self.classes.iter().map(|c| c.size * c.reachable()).sum()
    }

    fn add_reference(&'static self, slot: u32) -> Buf {
        let refs = &self.slots[slot as usize].refs;
        refs.set(refs.get() + 1);
        self.reference(slot)
    }

    /// A reference that has been counted.
    fn reference(&'static self, slot: u32) -> Buf {
        Buf { pool: self, slot, address: self.slots[slot as usize].address.get() }
    }

    /// Gives the name `id` back although an operation that was given up has its reference and may write into the
    /// memory at any time: from now on the name means other memory. The contents are lost. When the operation ends,
    /// its reference is to be given to [`Pool::salvage`]. Panics if the name is not lent.
    pub fn part(&'static self, id: BufId) {
        let slot = &self.slots[id.0 as usize];
        assert!(slot.named.get() == 0 && slot.refs.get() == 1, "{id:?} is not lent");
        let class = &self.classes[slot.class as usize];
        let spare = class.spare.borrow_mut().pop();
        slot.address.set(spare.unwrap_or_else(|| memory::map_memory(class.size).expect("memory for a buffer")));
        // The spare memory may be a part of a chunk, too: of one that was pinned when it was parted with.
        if let Some(chunk) = class.chunks.get(usize::from(slot.chunk)) {
            chunk.pinned.set(true);
        }
        slot.named.set(1);
    }

    /// Takes the memory back from an operation from which its buffer had been parted. Panics if it had not been.
    pub fn salvage(&'static self, buf: Buf) {
        let slot = buf.slot();
        assert!(slot.address.get() != buf.address, "buffer {} is still the operation's", buf.slot);
        self.classes[slot.class as usize].spare.borrow_mut().push(buf.address);
        // Its reference went with the name.
        std::mem::forget(buf);
    }
}

impl Class {
    /// Buffers that there may be, or that there are if there was no memory for more.
    fn reachable(&self) -> usize {
        if self.failed.get().is_some() { self.present.get() } else { self.most }
    }
}

impl Chunk {
    fn absent(first: u32, count: u32) -> Chunk {
        let state = Cell::new(ChunkState::Absent);
        Chunk { state, first, count, used: Cell::new(0), pinned: Cell::new(false) }
    }
}

impl Buf {
    /// Bytes it can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pool.classes[self.slot().class as usize].size
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is initialised (zeroed when it was mapped) and lives forever. It is
        // written only through `bytes_mut` or by the kernel for an operation that owns the sole reference; both
        // demand a sole reference, which excludes this borrow of another one.
        unsafe { std::slice::from_raw_parts(self.address(), self.capacity()) }
    }

    /// Its bytes, to write. Panics unless this is the only reference.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.is_sole(), "buffer {} is shared and must not change", self.slot);
        // SAFETY: as in `bytes`; `&mut self` is the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.capacity()) }
    }

    /// Is this the only reference?
    #[must_use]
    pub fn is_sole(&self) -> bool {
        self.slot().refs.get() == 1
    }

    /// Gives up this reference for its name; the buffer stays in use until [`Pool::reclaim`].
    #[must_use]
    pub fn into_id(self) -> BufId {
        let id = BufId(self.slot);
        let named = &self.slot().named;
        named.set(named.get() + 1);
        std::mem::forget(self);
        id
    }

    /// Its name, without giving up the reference.
    #[must_use]
    pub fn id(&self) -> BufId {
        BufId(self.slot)
    }

    /// `len` bytes from `at`. Panics if they are not all inside.
    #[must_use]
    pub fn span(self, at: usize, len: usize) -> Span {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.capacity()), "span {at}+{len} outside the buffer");
        Span { buf: self, at: at as u32, len: len as u32 }
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.address
    }

    fn slot(&self) -> &'static Slot {
        &self.pool.slots[self.slot as usize]
    }
}

impl Span {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buf.bytes()[self.at as usize..(self.at + self.len) as usize]
    }

    /// Its bytes, to write. Panics unless this is the buffer's only reference.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buf.bytes_mut()[self.at as usize..(self.at + self.len) as usize]
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Is it of no bytes?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The buffer it is a part of.
    #[must_use]
    pub fn buf(&self) -> &Buf {
        &self.buf
    }

    /// Gives the buffer back.
    #[must_use]
    pub fn into_buf(self) -> Buf {
        self.buf
    }

    /// Drops the first `n` bytes. Panics if there are fewer.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len(), "span of {} bytes advanced by {n}", self.len);
        self.at += n as u32;
        self.len -= n as u32;
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.buf.address().wrapping_add(self.at as usize)
    }
}

impl Clone for Buf {
    fn clone(&self) -> Buf {
        self.pool.add_reference(self.slot)
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let slot = self.slot();
        slot.refs.set(slot.refs.get() - 1);
        if slot.refs.get() == 0 {
            let class = &self.pool.classes[slot.class as usize];
            class.free.borrow_mut().push(self.slot);
            if let Some(chunk) = class.chunks.get(usize::from(slot.chunk)) {
                chunk.used.set(chunk.used.get() - 1);
            }
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} of {} bytes)", self.slot, self.capacity())
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{}+{}]", self.buf, self.at, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> &'static Pool {
        Pool::leak(&[ClassPlan { size: 4096, count: 2 }, ClassPlan { size: 16384, count: 1 }])
    }

    #[test]
    fn exhaustion_is_back_pressure_and_buffers_return() {
        let pool = pool();
        let a = pool.take(1).unwrap();
        let b = pool.take(4096).unwrap();
        let c = pool.take(100).unwrap();
        assert_eq!((a.capacity(), b.capacity(), c.capacity()), (4096, 4096, 16384));
        assert!(pool.take(1).is_none() && pool.take(16385).is_none());
        assert_eq!(pool.in_use(), 3);
        drop((a, b, c));
        assert_eq!(pool.in_use(), 0);
        assert!(pool.take(16385).is_none());
    }

    #[test]
    fn what_is_saved_is_not_given() {
        let pool = pool();
        let a = pool.take_spared(1).unwrap();
        let _b = pool.take_spared(1).unwrap();
        assert!(pool.take_spared(1).is_none() && pool.take_spared(8192).is_none() && pool.take(1).is_some());
        drop(a);
        assert_eq!(pool.take_spared(1).unwrap().capacity(), 4096);
        assert_eq!([1, 4096, 4097, 65536].map(|len| pool.bytes_for(len)), [3 * 4096, 3 * 4096, 16384, 16384]);
    }

    #[test]
    fn last_reference_frees() {
        let pool = pool();
        let mut a = pool.take(4096).unwrap();
        assert_eq!(a.bytes().as_ptr() as usize % ALIGNMENT, 0);
        a.bytes_mut()[7] = 9;
        let span = a.clone().span(7, 2);
        let id = a.into_id();
        assert_eq!(span.bytes()[0], 9);
        drop(span);
        assert_eq!(pool.in_use(), 1);
        assert_eq!(pool.share(id).bytes()[7], 9);
        drop(pool.reclaim(id));
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    #[should_panic(expected = "is shared")]
    fn a_shared_buffer_does_not_change() {
        let mut a = pool().take(1).unwrap();
        let _other = a.clone();
        a.bytes_mut()[0] = 1;
    }

    #[test]
    fn every_plan_is_valid() {
        for (buffers, streams, request) in [(1, 0, 512), (2048, 1, 32 << 20), (131_072, 31, 32 << 20)] {
            let plan = Pool::plan(buffers, streams, request);
            assert!(plan.windows(2).all(|w| w[0].size < w[1].size));
            assert!(
                plan.iter().all(|c| c.most >= 4 && (1..=c.most).contains(&c.least) && CHUNK.is_multiple_of(c.size))
            );
            assert!(plan.last().is_some_and(|c| c.size * c.most >= request));
            let least: usize = plan.iter().map(|c| c.size * c.least).sum();
            assert!(least <= (4 << 20) + streams * (256 << 10), "{least} bytes at the start");
        }
    }
}
