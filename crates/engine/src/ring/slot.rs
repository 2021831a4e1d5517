//! The memory of a FUSE request slot: headers and payload that this process and the kernel hand to each other.

use frontends::fuse::{SLOT_HEADER, SLOT_PAYLOAD_MAX};
use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;

/// A slot of one of the kernel's queues. Whoever has it may touch it: an operation that gives it to the kernel owns it
/// until the kernel has put a request there.
pub struct FuseSlot {
    memory: NonNull<u8>,
    parts: [libc::iovec; 2],
    queue: u16,
    /// The request that is answered by giving the slot back; `None`: the slot is new to the kernel.
    answers: Option<u64>,
}

/// `FUSE_IO_URING_CMD_REGISTER`
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`
const COMMIT_AND_FETCH: u32 = 2;

impl FuseSlot {
    /// Bytes of memory that a slot takes.
    pub const SIZE: usize = (SLOT_PAYLOAD_MAX + SLOT_HEADER).next_multiple_of(ALIGNMENT);

    /// A slot for queue `queue` (the number of a processor). Its memory is never moved.
    #[must_use]
    pub fn new(queue: u16) -> FuseSlot {
        // SAFETY: the size is not zero.
        let memory = unsafe { std::alloc::alloc_zeroed(Self::layout()) };
        let Some(memory) = NonNull::new(memory) else { std::alloc::handle_alloc_error(Self::layout()) };
        let part = |at, len| libc::iovec { iov_base: memory.as_ptr().wrapping_add(at).cast(), iov_len: len };
        let parts = [part(SLOT_PAYLOAD_MAX, SLOT_HEADER), part(0, SLOT_PAYLOAD_MAX)];
        FuseSlot { memory, parts, queue, answers: None }
    }

    fn layout() -> Layout {
        Layout::from_size_align(Self::SIZE, ALIGNMENT).expect("a constant that fits")
    }

    /// The headers and the payload, to read and to write.
    pub fn contents(&mut self) -> (&mut [u8; SLOT_HEADER], &mut [u8]) {
        let [header, payload] = self.parts;
        // SAFETY: both lie inside the allocation and do not overlap; the kernel has no use of them as long as no
        // operation owns the slot, and the reference to it is the only one.
        unsafe {
            let payload = std::slice::from_raw_parts_mut(payload.iov_base.cast(), payload.iov_len);
            (&mut *header.iov_base.cast(), payload)
        }
    }

    /// What the slot held was the request `id`, and the slot holds the answer now.
    pub fn set_answers(&mut self, id: u64) {
        self.answers = Some(id);
    }

    /// Has the kernel seen the slot before?
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.answers.is_some()
    }

    /// The command's number, its arguments (`struct fuse_uring_cmd_req`), and the iovecs that a new slot is made of.
    pub(super) fn command(&self) -> (u32, [u8; 80], &[libc::iovec]) {
        let mut arguments = [0; 80];
        arguments[8..16].copy_from_slice(&self.answers.unwrap_or(0).to_ne_bytes());
        arguments[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        if self.is_registered() { (COMMIT_AND_FETCH, arguments, &[]) } else { (REGISTER, arguments, &self.parts) }
    }
}

/// Pages: the payload starts on one.
const ALIGNMENT: usize = crate::buffers::ALIGNMENT;

impl Drop for FuseSlot {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout. The kernel does not know the slot (any more): operations in flight are
        // never dropped.
        unsafe { std::alloc::dealloc(self.memory.as_ptr(), Self::layout()) };
    }
}

impl fmt::Debug for FuseSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FuseSlot(queue {}, answers {:?})", self.queue, self.answers)
    }
}
