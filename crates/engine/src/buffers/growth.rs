//! Pools grow while their buffers run short, up to what is configured, and shrink when they are not used.
//!
//! The memory is fetched and given back by a thread of its own, as both may take long when memory is short: the loop
//! goes on with the buffers that there are. One event descriptor says that the thread has done something.

use super::{Chunk, ChunkState, Class, Pool};
use crate::memory::Place;
use crate::sys;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use units::{Duration, Instant};

/// How often it is looked whether there are buffers that nobody uses.
const LOOK: Duration = Duration::from_secs(3);
/// The longest pause between two looks that find nothing to give back.
const LONGEST_PAUSE: Duration = Duration::from_secs(640);
/// How long a class is left alone for which there was no memory.
const RETRY: Duration = Duration::from_secs(1);
/// Orders that the thread has not carried out yet.
const ORDERS: usize = 64;
/// The thread calls the kernel and nothing else.
const STACK: usize = 64 << 10;

/// Fetches memory for pools, and gives it back.
pub(crate) struct Growth {
    pools: Vec<&'static Pool>,
    orders: SyncSender<Order>,
    ended: Receiver<(Order, bool)>,
    event: Rc<OwnedFd>,
    /// When to look for unused memory, and the pause after that.
    look: Option<Instant>,
    pause: Duration,
}

#[derive(Clone, Copy)]
struct Order {
    pool: usize,
    class: usize,
    chunk: usize,
    place: Place,
    fetch: bool,
}

impl Growth {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the kernel has none to give.
    pub(crate) fn start(pools: &[&'static Pool]) -> io::Result<Growth> {
        let (orders, taken) = sync_channel::<Order>(ORDERS);
        let (tell, ended) = sync_channel(2 * ORDERS);
        let event = sys::event()?;
        let readable = Rc::new(event.try_clone()?);
        let work = move || {
            sys::leave_descriptors(&event);
            while let Ok(order) = taken.recv() {
                let done = if order.fetch { order.place.fetch().is_ok() } else { order.place.give_back() };
                if tell.send((order, done)).is_err() {
                    return;
                }
                sys::ring_event(&event);
            }
        };
        thread::Builder::new().name("urbd-memory".into()).stack_size(STACK).spawn(work)?;
        Ok(Growth { pools: pools.to_vec(), orders, ended, event: readable, look: None, pause: LOOK })
    }

    /// Readable when [`Growth::on_done`] is to be called.
    pub(crate) fn event(&self) -> Rc<OwnedFd> {
        self.event.clone()
    }

    /// Orders memory for the classes that run short.
    pub(crate) fn order(&mut self, now: Instant) {
        for nr in 0..self.pools.len() {
            let pool = self.pools[nr];
            if !pool.wanting.replace(false) {
                continue;
            }
            for (class_nr, class) in pool.classes.iter().enumerate() {
                self.order_for(nr, class_nr, class, now);
            }
        }
    }

    fn order_for(&mut self, pool: usize, class_nr: usize, class: &Class, now: Instant) {
        let coming = class.chunks.iter().any(|chunk| chunk.state.get() == ChunkState::Coming);
        let failed = class.failed.get().is_some_and(|at| now < at + RETRY);
        if !class.wanting.replace(false) || coming || failed {
            return;
        }
        // As much again as there is.
        let (size, present) = (class.size, class.present.get());
        let most = (present * size / crate::memory::CHUNK).max(1);
        let absent = class.chunks.iter().enumerate().filter(|(_, chunk)| chunk.state.get() == ChunkState::Absent);
        for (nr, chunk) in absent.take(most) {
            let order = Order { pool, class: class_nr, chunk: nr, place: Place::of(class.area, nr), fetch: true };
            if self.orders.try_send(order).is_err() {
                return;
            }
            chunk.state.set(ChunkState::Coming);
        }
    }

    /// The thread has done something.
    pub(crate) fn on_done(&mut self, now: Instant) {
        sys::take_event(&self.event);
        while let Ok((order, done)) = self.ended.try_recv() {
            let pool = self.pools[order.pool];
            let class = &pool.classes[order.class];
            let chunk = &class.chunks[order.chunk];
            match (order.fetch, done) {
                (true, true) => {
                    chunk.state.set(ChunkState::Present);
                    class.failed.set(None);
                    pool.furnish(class, chunk, order.place);
                    (self.look, self.pause) = (Some(self.look.unwrap_or(now + LOOK)), LOOK);
                }
                (true, false) => {
                    chunk.state.set(ChunkState::Absent);
                    class.failed.set(Some(now));
                }
                (false, _) => chunk.state.set(ChunkState::Absent),
            }
        }
    }

    /// When to call [`Growth::look`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.look
    }

    /// Gives back what has not been used since the last look.
    pub(crate) fn look(&mut self, now: Instant) {
        if self.look.is_none_or(|at| now < at) {
            return;
        }
        let (mut given, mut left) = (false, false);
        for (nr, pool) in self.pools.iter().enumerate() {
            for (class_nr, class) in pool.classes.iter().enumerate() {
                let order = |chunk: usize| {
                    let place = Place::of(class.area, chunk);
                    self.orders.try_send(Order { pool: nr, class: class_nr, chunk, place, fetch: false }).is_ok()
                };
                given |= pool.shrink(class, order);
                left |= class.chunks.iter().any(|chunk| chunk.state.get() == ChunkState::Present);
            }
        }
        self.pause = if given { LOOK } else { LONGEST_PAUSE.min(self.pause + self.pause) };
        self.look = left.then_some(now + self.pause);
    }
}

impl Pool {
    /// The chunk's buffers are there.
    fn furnish(&self, class: &Class, chunk: &Chunk, place: Place) {
        let mut free = class.free.borrow_mut();
        for (n, slot) in (chunk.first..chunk.first + chunk.count).enumerate() {
            let own = &self.slots[slot as usize];
            // One that was parted from its memory has other memory for good.
            if own.address.get().is_null() {
                own.address.set(place.at(n * class.size));
            }
        }
        // The first ones are taken last: they are the least likely to keep the chunk from being given back.
        free.extend((chunk.first..chunk.first + chunk.count).rev());
        class.present.set(class.present.get() + chunk.count as usize);
    }

    /// Takes chunks out of use that were not needed since the last time, as far as `order` takes them; true if it took
    /// one.
    fn shrink(&self, class: &Class, mut order: impl FnMut(usize) -> bool) -> bool {
        let in_use = class.present.get() - class.free.borrow().len();
        // With what is held in reserve before more is ordered.
        let needed = class.peak.replace(in_use).div_ceil(3) * 4;
        let mut given = false;
        for (nr, chunk) in class.chunks.iter().enumerate().rev() {
            if chunk.state.get() != ChunkState::Present || chunk.used.get() > 0 || chunk.pinned.get() {
                continue;
            }
            let left = class.present.get() - chunk.count as usize;
            if left < needed.max(class.least) {
                continue;
            }
            if !order(nr) {
                break;
            }
            chunk.state.set(ChunkState::Going);
            class.present.set(left);
            given = true;
        }
        if given {
            let going = |slot: &u32| {
                let chunk = &class.chunks[usize::from(self.slots[*slot as usize].chunk)];
                chunk.state.get() == ChunkState::Going
            };
            let mut free = class.free.borrow_mut();
            free.retain(|slot| !self.is_grown(*slot) || !going(slot));
            // What was there from the start is taken first.
            free.sort_unstable_by_key(|slot| std::cmp::Reverse(*slot));
        }
        given
    }

    fn is_grown(&self, slot: u32) -> bool {
        self.slots[slot as usize].chunk != super::NO_CHUNK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::{Buf, GrowingPlan};
    use crate::memory::CHUNK;

    const MIB: usize = 1 << 20;

    fn growing() -> (&'static Pool, Growth) {
        let small = GrowingPlan { size: 4096, least: 4, most: 4 + 3 * 512 };
        let pool = Pool::leak_growing(&[small, GrowingPlan { size: MIB, least: 1, most: 4 }]);
        (pool, Growth::start(&[pool]).unwrap())
    }

    fn at(seconds: u64) -> Instant {
        Instant(0) + Duration::from_secs(seconds)
    }

    /// Lets the thread do what was ordered.
    fn settle(growth: &mut Growth, now: Instant) {
        let busy = |growth: &Growth| {
            let chunks = growth.pools.iter().flat_map(|pool| &pool.classes).flat_map(|class| &class.chunks);
            chunks.into_iter().any(|c| matches!(c.state.get(), ChunkState::Coming | ChunkState::Going))
        };
        while busy(growth) {
            growth.on_done(now);
            thread::yield_now();
        }
    }

    fn take_all(pool: &'static Pool, len: usize) -> Vec<Buf> {
        std::iter::from_fn(|| pool.take(len)).collect()
    }

    /// Descriptors of each thread that fetches memory, but for the standard three.
    fn descriptors_of_threads() -> Vec<Vec<u32>> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        let ours = |task: &std::path::PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim_end() == "urbd-memory")
        };
        let descriptors = |task: std::path::PathBuf| {
            let names =
                std::fs::read_dir(task.join("fd")).into_iter().flatten().flatten().map(|entry| entry.file_name());
            names.filter_map(|name| name.to_str()?.parse().ok()).filter(|number| *number > 2).collect()
        };
        tasks.filter(ours).map(descriptors).collect()
    }

    #[test]
    fn the_thread_has_no_descriptor_but_its_event() {
        let (_, mut growth) = growing();
        let began = std::time::Instant::now();
        // Those of other tests may be beginning or ending.
        while descriptors_of_threads().iter().any(|descriptors| descriptors.len() > 1) {
            assert!(began.elapsed().as_secs() < 60, "{:?}", descriptors_of_threads());
            thread::yield_now();
        }
        assert!(!descriptors_of_threads().is_empty());
        // It still hears of its orders, and tells what it has done.
        let event = growth.event();
        drop(take_all(growth.pools[0], 4096));
        growth.order(at(0));
        let mut fds = [libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&*event), events: libc::POLLIN, revents: 0 }];
        while fds[0].revents == 0 {
            sys::poll(&mut fds, -1).unwrap();
        }
        settle(&mut growth, at(0));
    }

    #[test]
    fn it_grows_to_its_bound_and_shrinks_when_nobody_uses_it() {
        let (pool, mut growth) = growing();
        assert_eq!((pool.bytes(), pool.most()), (4 * 4096 + MIB, 4 * 4096 + 3 * CHUNK + 4 * MIB));
        let mut held = Vec::new();
        // The large ones of the class above are lent as well.
        for _ in 0..8 {
            held.extend(take_all(pool, 4096));
            growth.order(at(0));
            settle(&mut growth, at(0));
        }
        assert_eq!(held.len(), 4 + 3 * 512 + 4, "all that there may be");
        assert_eq!(pool.bytes(), pool.most());
        let mut addresses: Vec<usize> = held.iter().map(|buf| buf.address() as usize).collect();
        addresses.sort_unstable();
        assert!(addresses.windows(2).all(|w| w[1] - w[0] >= 4096), "each has memory of its own");
        held.iter_mut().for_each(|buf| buf.bytes_mut().fill(7));
        growth.look(at(10));
        settle(&mut growth, at(10));
        assert_eq!(pool.bytes(), pool.most(), "they are in use");
        drop(held);
        growth.look(at(600));
        growth.look(at(1800));
        settle(&mut growth, at(1800));
        assert_eq!(pool.bytes(), 4 * 4096 + MIB, "what was there at the start");
        growth.look(at(3600));
        assert_eq!(growth.deadline(), None, "and nothing is to be looked at");
        // And once more, with fresh memory.
        let held = take_all(pool, 4096);
        growth.order(at(3600));
        settle(&mut growth, at(3600));
        let more = take_all(pool, 4096);
        assert!(more.len() >= 512 && more.iter().all(|buf| buf.bytes()[0] == 0), "{}", more.len());
        drop((held, more));
    }

    #[test]
    fn memory_that_a_given_up_operation_may_write_into_is_not_given_back() {
        let (pool, mut growth) = growing();
        let first = pool.take(MIB).unwrap();
        growth.order(at(0));
        settle(&mut growth, at(0));
        let lent = pool.take(MIB).unwrap();
        let id = lent.id();
        drop(lent);
        let id = pool.take(MIB).filter(|buf| buf.id() == id).unwrap().into_id();
        let operation = pool.reclaim(id);
        let address = operation.address();
        pool.part(id);
        drop((first, pool.reclaim(id)));
        for now in [600, 1800, 3600] {
            growth.look(at(now));
            settle(&mut growth, at(now));
        }
        assert_eq!(operation.address(), address);
        assert!(pool.bytes() > 4 * 4096 + MIB);
        pool.salvage(operation);
    }
}
