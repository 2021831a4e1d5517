//! The numbers of the NBD protocol (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>).

use crate::{Errno, Export};

pub(super) const NBDMAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
pub(super) const IHAVEOPT: u64 = u64::from_be_bytes(*b"IHAVEOPT");
pub(super) const REP_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const SIMPLE_MAGIC: u32 = 0x6744_6698;
pub(super) const STRUCTURED_MAGIC: u32 = 0x668e_33ef;

/// Magic, option, length.
pub(super) const OPTION_HEADER: usize = 16;
/// Magic, flags, type, cookie, offset, length.
pub(super) const REQUEST_LEN: usize = 28;

pub(super) const FLAG_FIXED_NEWSTYLE: u16 = 1;
pub(super) const FLAG_NO_ZEROES: u16 = 2;

pub(super) const OPT_EXPORT_NAME: u32 = 1;
pub(super) const OPT_ABORT: u32 = 2;
pub(super) const OPT_LIST: u32 = 3;
pub(super) const OPT_STARTTLS: u32 = 5;
pub(super) const OPT_INFO: u32 = 6;
pub(super) const OPT_GO: u32 = 7;
pub(super) const OPT_STRUCTURED_REPLY: u32 = 8;
pub(super) const OPT_LIST_META_CONTEXT: u32 = 9;
pub(super) const OPT_SET_META_CONTEXT: u32 = 10;

pub(super) const REP_ACK: u32 = 1;
pub(super) const REP_SERVER: u32 = 2;
pub(super) const REP_INFO: u32 = 3;
pub(super) const REP_META_CONTEXT: u32 = 4;
pub(super) const REP_ERR_UNSUP: u32 = 1 << 31 | 1;
pub(super) const REP_ERR_POLICY: u32 = 1 << 31 | 2;
pub(super) const REP_ERR_INVALID: u32 = 1 << 31 | 3;
pub(super) const REP_ERR_UNKNOWN: u32 = 1 << 31 | 6;
pub(super) const REP_ERR_TOO_BIG: u32 = 1 << 31 | 9;

pub(super) const INFO_EXPORT: u16 = 0;
pub(super) const INFO_NAME: u16 = 1;
pub(super) const INFO_BLOCK_SIZE: u16 = 3;

/// The only metadata context, and the number it gets.
pub(super) const BASE_ALLOCATION: &[u8] = b"base:allocation";
pub(super) const BASE_ALLOCATION_ID: u32 = 1;

const TRANSMIT_HAS_FLAGS: u16 = 1;
const TRANSMIT_READ_ONLY: u16 = 1 << 1;
const TRANSMIT_FLUSH: u16 = 1 << 2;
const TRANSMIT_FUA: u16 = 1 << 3;
const TRANSMIT_TRIM: u16 = 1 << 5;
const TRANSMIT_WRITE_ZEROES: u16 = 1 << 6;
const TRANSMIT_DF: u16 = 1 << 7;
const TRANSMIT_MULTI_CONN: u16 = 1 << 8;
const TRANSMIT_FAST_ZERO: u16 = 1 << 11;

pub(super) const CMD_READ: u16 = 0;
pub(super) const CMD_WRITE: u16 = 1;
pub(super) const CMD_DISC: u16 = 2;
pub(super) const CMD_FLUSH: u16 = 3;
pub(super) const CMD_TRIM: u16 = 4;
pub(super) const CMD_WRITE_ZEROES: u16 = 6;
pub(super) const CMD_BLOCK_STATUS: u16 = 7;

pub(super) const CMD_FLAG_FUA: u16 = 1;
pub(super) const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub(super) const CMD_FLAG_DF: u16 = 1 << 2;
pub(super) const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
pub(super) const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

pub(super) const REPLY_FLAG_DONE: u16 = 1;
pub(super) const REPLY_OFFSET_DATA: u16 = 1;
pub(super) const REPLY_BLOCK_STATUS: u16 = 5;
pub(super) const REPLY_ERROR: u16 = 1 << 15 | 1;

/// The transmission flags of an export.
pub(super) fn transmission_flags(export: &Export, structured: bool) -> u16 {
    let writable = !export.read_only;
    [
        (true, TRANSMIT_HAS_FLAGS),
        (export.read_only, TRANSMIT_READ_ONLY),
        (export.can_flush, TRANSMIT_FLUSH),
        (export.can_fua, TRANSMIT_FUA),
        (export.can_trim && writable, TRANSMIT_TRIM),
        (export.can_zero && writable, TRANSMIT_WRITE_ZEROES),
        (export.can_zero && export.can_fast_zero && writable, TRANSMIT_FAST_ZERO),
        (structured, TRANSMIT_DF),
        (export.can_multi_conn, TRANSMIT_MULTI_CONN),
    ]
    .into_iter()
    .filter(|(on, _)| *on)
    .fold(0, |flags, (_, bit)| flags | bit)
}

/// The protocol has its own short list of error numbers; what is not on it becomes the nearest one that is.
pub(super) fn wire_errno(errno: Errno) -> u32 {
    match errno.raw() {
        libc::EPERM | libc::EACCES | libc::EROFS => 1,
        libc::ENOMEM => 12,
        libc::EINVAL => 22,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => 28,
        libc::EOVERFLOW => 75,
        libc::EOPNOTSUPP => 95,
        libc::ESHUTDOWN => 108,
        _ => 5,
    }
}

pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}
