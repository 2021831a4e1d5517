//! Fixed-offset big-endian fields of a block. Offsets are compile-time facts of the format, always inside the block.

pub(crate) fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

pub(crate) fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

pub(crate) fn be64(b: &[u8], at: usize) -> u64 {
    u64::from(be32(b, at)) << 32 | u64::from(be32(b, at + 4))
}

pub(crate) fn le16(b: &[u8], at: usize) -> u16 {
    be16(b, at).swap_bytes()
}

pub(crate) fn le32(b: &[u8], at: usize) -> u32 {
    be32(b, at).swap_bytes()
}

pub(crate) fn le64(b: &[u8], at: usize) -> u64 {
    be64(b, at).swap_bytes()
}

pub(crate) fn put16(b: &mut [u8], at: usize, v: u16) {
    b[at..at + 2].copy_from_slice(&v.to_be_bytes());
}

pub(crate) fn put32(b: &mut [u8], at: usize, v: u32) {
    b[at..at + 4].copy_from_slice(&v.to_be_bytes());
}

pub(crate) fn put64(b: &mut [u8], at: usize, v: u64) {
    b[at..at + 8].copy_from_slice(&v.to_be_bytes());
}
