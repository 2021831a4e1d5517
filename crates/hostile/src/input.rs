//! Bytes as a source of choices: the interpreter that fuzzers and random tests share.

/// A cursor over the bytes of a case; when they are used up every choice is 0.
#[derive(Debug)]
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    /// Starts at the first byte.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { bytes }
    }

    /// Are all bytes used up?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) << 16 | u32::from(self.u16())
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }

    /// Yes or no.
    pub fn flag(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// Yes once in `n` times (`n` at most 256), no when the input is used up.
    pub fn one_in(&mut self, n: u16) -> bool {
        u16::from(self.u8()) % n == n - 1
    }

    /// A number below `n`; `n` is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        let raw = if n <= 256 { u64::from(self.u8()) } else { u64::from(self.u16()) };
        raw % n
    }

    /// One of these; there is at least one.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// A number of a kind that breaks things: ends of ranges, neighbours of powers of two, anything.
    pub fn odd(&mut self) -> u64 {
        match self.u8() % 6 {
            0 => 0,
            1 => u64::MAX - u64::from(self.u8()),
            2 => (1u64 << (self.u8() % 64)).wrapping_add(u64::from(self.u8() % 3)).wrapping_sub(1),
            3 => u64::from(self.u8()),
            4 => u64::from(self.u32()),
            _ => self.u64(),
        }
    }

    /// Up to `most` bytes.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(most.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }
}
