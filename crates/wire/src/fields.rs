//! Reading and writing the big-endian fields of a packet's body.

use crate::command::Command;
use crate::violation::Violation;

/// Reads fields one after the other from a packet's body; never panics.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    command: Command,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(body: &'a [u8], command: Command) -> Fields<'a> {
        Fields { rest: body, command }
    }

    pub(crate) fn command(&self) -> Command {
        self.command
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8], Violation> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(Violation::Truncated { command: self.command })?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Violation> {
        self.array::<1>().map(|[b]| b)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Violation> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Violation> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Violation> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Violation> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }
}

/// Appends big-endian fields.
pub(crate) trait Put {
    fn put8(&mut self, v: u8);
    fn put16(&mut self, v: u16);
    fn put32(&mut self, v: u32);
    fn put64(&mut self, v: u64);
    /// `bytes`, then zeroes up to `width`.
    fn put_padded(&mut self, bytes: &[u8], width: usize);
}

impl Put for Vec<u8> {
    fn put8(&mut self, v: u8) {
        self.push(v);
    }

    fn put16(&mut self, v: u16) {
        self.extend_from_slice(&v.to_be_bytes());
    }

    fn put32(&mut self, v: u32) {
        self.extend_from_slice(&v.to_be_bytes());
    }

    fn put64(&mut self, v: u64) {
        self.extend_from_slice(&v.to_be_bytes());
    }

    fn put_padded(&mut self, bytes: &[u8], width: usize) {
        let end = self.len() + width;
        self.extend_from_slice(bytes);
        self.resize(end, 0);
    }
}
