//! The one shape of a block request that every front end produces, and the one place that admits it.

use std::fmt;

/// Shortest unit of a request in bytes: a device sector.
pub const SECTOR: u32 = 512;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Read `len` bytes; the completion carries exactly `len` bytes of payload.
    Read,
    /// Write `len` bytes; the payload comes with the request.
    Write,
    /// Everything completed before this request was received must become durable. `offset` and `len` are 0.
    Flush,
    /// The contents of the range no longer matter; reading it later may return anything.
    Discard,
    /// The range must read as zeroes afterwards.
    WriteZeroes {
        /// The blocks may be deallocated, provided that they read as zeroes.
        may_unmap: bool,
        /// Fail with [`Errno::ENOTSUP`] at once, having changed nothing, if this is not faster than writing zeroes.
        fast: bool,
    },
}

/// A block request that an [`Export`] has admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's cookie, echoed in the reply. Chosen by the client: use it to answer, never as a key.
    pub tag: u64,
    /// What to do.
    pub kind: Kind,
    /// First byte on the export; a multiple of the export's minimum block size.
    pub offset: u64,
    /// Bytes; a multiple of the minimum block size, 0 only for [`Kind::Flush`].
    pub len: u32,
    /// The completion must wait until this request's own data is durable.
    pub fua: bool,
}

impl Request {
    /// Bytes that follow the request in the client's stream (a write's payload), else 0.
    pub fn payload_in(&self) -> u32 {
        if self.kind == Kind::Write { self.len } else { 0 }
    }

    /// Bytes that follow a successful reply's header (what a read returns), else 0.
    pub fn payload_out(&self) -> u32 {
        if self.kind == Kind::Read { self.len } else { 0 }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The tag of the [`Request`].
    pub tag: u64,
    /// Success, or the error that the client is to see.
    pub result: Result<(), Errno>,
}

/// A positive Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

impl Errno {
    /// Operation not permitted.
    pub const EPERM: Errno = Errno(libc::EPERM);
    /// No such file or directory.
    pub const ENOENT: Errno = Errno(libc::ENOENT);
    /// Input/output error.
    pub const EIO: Errno = Errno(libc::EIO);
    /// Out of memory.
    pub const ENOMEM: Errno = Errno(libc::ENOMEM);
    /// Permission denied.
    pub const EACCES: Errno = Errno(libc::EACCES);
    /// Invalid argument.
    pub const EINVAL: Errno = Errno(libc::EINVAL);
    /// No space left on the device.
    pub const ENOSPC: Errno = Errno(libc::ENOSPC);
    /// Read-only file system.
    pub const EROFS: Errno = Errno(libc::EROFS);
    /// Operation not supported.
    pub const ENOTSUP: Errno = Errno(libc::EOPNOTSUPP);
    /// The server is shutting down.
    pub const ESHUTDOWN: Errno = Errno(libc::ESHUTDOWN);

    /// From an error number as system calls report it; anything that is not a positive number becomes [`Errno::EIO`].
    pub const fn from_raw(raw: i32) -> Errno {
        if raw > 0 { Errno(raw) } else { Errno::EIO }
    }

    /// The positive error number.
    pub const fn raw(self) -> i32 {
        self.0
    }
}

impl From<&std::io::Error> for Errno {
    fn from(error: &std::io::Error) -> Errno {
        Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&std::io::Error::from_raw_os_error(self.0), f)
    }
}

impl std::error::Error for Errno {}

/// Sizes in bytes, all powers of two times [`SECTOR`], as NBD's block size information announces them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths must be multiples of this.
    pub min: u32,
    /// What performs well.
    pub preferred: u32,
    /// Longest read or write. Discards and zeroes carry no payload and may be longer.
    pub max: u32,
}

impl BlockSizes {
    /// 512 bytes, 4 KiB, 32 MiB.
    pub const DEFAULT: BlockSizes = BlockSizes { min: SECTOR, preferred: 4096, max: 32 << 20 };
}

impl Default for BlockSizes {
    fn default() -> Self {
        BlockSizes::DEFAULT
    }
}

/// One volume as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The owner's handle for the volume (for instance its volume number); not seen by clients.
    pub id: u32,
    /// `RESOURCE/VOLUME`.
    pub name: String,
    /// Bytes; a multiple of `block.min`.
    pub size: u64,
    /// Granularity and limits.
    pub block: BlockSizes,
    /// Refuse everything that changes data.
    pub read_only: bool,
    /// [`Kind::Discard`] is offered.
    pub can_trim: bool,
    /// [`Kind::WriteZeroes`] is offered.
    pub can_zero: bool,
    /// `fast` zeroes are offered (they may still fail with [`Errno::ENOTSUP`]).
    pub can_fast_zero: bool,
    /// [`Kind::Flush`] is offered.
    pub can_flush: bool,
    /// `fua` is offered.
    pub can_fua: bool,
    /// Several connections see one coherent volume: a flush on one covers writes completed on all.
    pub can_multi_conn: bool,
}

impl Export {
    /// A writable export that offers everything. `size` in bytes is rounded down to whole sectors.
    pub fn new(id: u32, name: impl Into<String>, size: u64) -> Export {
        Export {
            id,
            name: name.into(),
            size: size - size % u64::from(SECTOR),
            block: BlockSizes::DEFAULT,
            read_only: false,
            can_trim: true,
            can_zero: true,
            can_fast_zero: true,
            can_flush: true,
            can_fua: true,
            can_multi_conn: true,
        }
    }

    /// The same export, refusing every change.
    pub fn read_only(mut self) -> Export {
        self.read_only = true;
        self
    }

    /// Admits a request or says with which error it is refused, in this order: not offered or malformed
    /// ([`Errno::EINVAL`], [`Errno::ENOTSUP`]), read-only ([`Errno::EPERM`]), unaligned or too long
    /// ([`Errno::EINVAL`]), out of range ([`Errno::ENOSPC`] for writes and zeroes, else [`Errno::EINVAL`]).
    pub fn admit(&self, tag: u64, kind: Kind, offset: u64, len: u64, fua: bool) -> Result<Request, Errno> {
        self.offers(kind, fua)?;
        if kind == Kind::Flush {
            let request = Request { tag, kind, offset: 0, len: 0, fua: false };
            return if offset == 0 && len == 0 { Ok(request) } else { Err(Errno::EINVAL) };
        }
        if self.read_only && kind != Kind::Read {
            return Err(Errno::EPERM);
        }
        if len > self.longest(kind) {
            return Err(Errno::EINVAL);
        }
        match self.covers(offset, len) {
            // `longest` fits 32 bits, so the conversion cannot fail.
            Ok(()) => Ok(Request { tag, kind, offset, len: len as u32, fua: fua && kind != Kind::Read }),
            Err(Errno::ENOSPC) if matches!(kind, Kind::Read | Kind::Discard) => Err(Errno::EINVAL),
            Err(errno) => Err(errno),
        }
    }

    /// The range is not empty, aligned ([`Errno::EINVAL`]) and inside the export ([`Errno::ENOSPC`]).
    pub fn covers(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let min = u64::from(self.block.min);
        if len == 0 || !len.is_multiple_of(min) || !offset.is_multiple_of(min) {
            return Err(Errno::EINVAL);
        }
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size);
        if inside { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    fn offers(&self, kind: Kind, fua: bool) -> Result<(), Errno> {
        let offered = match kind {
            Kind::Read | Kind::Write => true,
            Kind::Flush => self.can_flush,
            Kind::Discard => self.can_trim,
            Kind::WriteZeroes { fast: true, .. } if !self.can_fast_zero => {
                return Err(Errno::ENOTSUP);
            }
            Kind::WriteZeroes { .. } => self.can_zero,
        };
        if offered && (!fua || self.can_fua) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn longest(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Read | Kind::Write => u64::from(self.block.max),
            _ => u64::from(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZEROES: Kind = Kind::WriteZeroes { may_unmap: true, fast: false };

    fn errno(export: &Export, kind: Kind, offset: u64, len: u64) -> Option<Errno> {
        export.admit(7, kind, offset, len, false).err()
    }

    #[test]
    fn admits_what_fits() {
        let export = Export::new(0, "r0/0", (64 << 20) + 100);
        assert_eq!(export.size, 64 << 20);
        let request = export.admit(7, Kind::Write, 512, 1024, true).unwrap();
        assert_eq!(request, Request { tag: 7, kind: Kind::Write, offset: 512, len: 1024, fua: true });
        assert_eq!((request.payload_in(), request.payload_out()), (1024, 0));
        let read = export.admit(7, Kind::Read, (64 << 20) - 512, 512, true).unwrap();
        assert_eq!((read.payload_in(), read.payload_out(), read.fua), (0, 512, false));
        assert_eq!(errno(&export, Kind::Read, 0, 32 << 20), None);
        assert_eq!(errno(&export, Kind::Discard, 0, 64 << 20), None);
        assert_eq!(errno(&export, Kind::Flush, 0, 0), None);
    }

    #[test]
    fn each_refusal_has_its_errno() {
        let export = Export::new(0, "r0/0", 64 << 20);
        let end = 64 << 20;
        let table = [
            (Kind::Read, end, 512, Errno::EINVAL),
            (Kind::Read, u64::MAX - 511, 512, Errno::EINVAL),
            (Kind::Write, end, 512, Errno::ENOSPC),
            (Kind::Write, end - 512, 1024, Errno::ENOSPC),
            (Kind::Write, u64::MAX - 511, 512, Errno::ENOSPC),
            (ZEROES, end, 512, Errno::ENOSPC),
            (Kind::Discard, end, 512, Errno::EINVAL),
            (Kind::Read, 1, 512, Errno::EINVAL),
            (Kind::Write, 0, 513, Errno::EINVAL),
            (Kind::Write, 0, 0, Errno::EINVAL),
            (Kind::Read, 0, (32 << 20) + 512, Errno::EINVAL),
            (Kind::Discard, 0, 1 << 32, Errno::EINVAL),
            (Kind::Flush, 512, 0, Errno::EINVAL),
            (Kind::Flush, 0, 512, Errno::EINVAL),
        ];
        for (kind, offset, len, expected) in table {
            assert_eq!(errno(&export, kind, offset, len), Some(expected), "{kind:?} {offset} {len}");
        }
    }

    #[test]
    fn read_only_refuses_changes_first() {
        let export = Export::new(0, "r0/0", 1 << 20).read_only();
        for kind in [Kind::Write, Kind::Discard, ZEROES] {
            assert_eq!(errno(&export, kind, 1, 1 << 30), Some(Errno::EPERM), "{kind:?}");
        }
        assert_eq!(errno(&export, Kind::Read, 0, 512), None);
        assert_eq!(errno(&export, Kind::Flush, 0, 0), None);
    }

    #[test]
    fn what_is_not_offered_is_refused() {
        let mut export = Export::new(0, "r0/0", 1 << 20);
        export.can_fast_zero = false;
        let fast = Kind::WriteZeroes { may_unmap: true, fast: true };
        assert_eq!(errno(&export, fast, 0, 512), Some(Errno::ENOTSUP));
        export.can_trim = false;
        export.can_zero = false;
        export.can_flush = false;
        export.can_fua = false;
        for kind in [Kind::Discard, ZEROES, Kind::Flush] {
            assert_eq!(errno(&export, kind, 0, 0), Some(Errno::EINVAL), "{kind:?}");
        }
        assert_eq!(export.admit(1, Kind::Write, 0, 512, true), Err(Errno::EINVAL));
    }

    #[test]
    fn errno_is_positive() {
        assert_eq!(Errno::from_raw(-5), Errno::EIO);
        assert_eq!(Errno::from_raw(0), Errno::EIO);
        assert_eq!(Errno::from_raw(libc::ENOSPC), Errno::ENOSPC);
        assert_eq!(Errno::from(&std::io::Error::from_raw_os_error(libc::EROFS)), Errno::EROFS);
    }
}
