//! Sending and receiving a volume's bitmap (`docs/spec/wire-protocol.md` 9): one bit per 4 KiB, set = out of sync.

use crate::dialect::{Dialect, Version};
use crate::fields::Fields;
use crate::packet::Packet;
use crate::run_length::CompressedBitmap;
use crate::violation::Violation;
use units::BitSet;

/// Bitmap words of one P_BITMAP at most.
const fn words_per_packet(version: Version) -> usize {
    (crate::MAX_PACKET - version.header_len()) / 8
}

/// Cuts a bitmap into packets. All packets of one bitmap must leave on the data stream without another between them.
#[derive(Clone, Debug)]
pub struct BitmapSender {
    version: Version,
    run_lengths: bool,
    bit: u64,
    word: usize,
    done: bool,
}

impl BitmapSender {
    /// Starts at bit 0. `use_rle` is the configuration's option; versions before 90 have no run lengths anyway.
    #[must_use]
    pub fn new(dialect: &Dialect, use_rle: bool) -> BitmapSender {
        let run_lengths = use_rle && dialect.version.number() >= 90;
        BitmapSender { version: dialect.version, run_lengths, bit: 0, word: 0, done: false }
    }

    /// The next packet; `None` when the bitmap is complete. `bits` must not change between the calls.
    pub fn next_packet(&mut self, bits: &BitSet) -> Option<Packet> {
        if self.done {
            return None;
        }
        Some(self.compressed(bits).map_or_else(|| self.plain(bits), Packet::CompressedBitmap))
    }

    /// `None` if run lengths are not to be used or would be longer than the bits themselves.
    fn compressed(&mut self, bits: &BitSet) -> Option<CompressedBitmap> {
        if !self.run_lengths {
            return None;
        }
        let room = crate::MAX_PACKET - self.version.header_len() - 1;
        let (packet, covered) = CompressedBitmap::encode(bits, self.bit, room)?;
        if covered < 8 * packet.code_len() as u64 {
            return None;
        }
        self.bit += covered;
        self.word = (self.bit / 64) as usize;
        self.done = self.bit == bits.len();
        Some(packet)
    }

    fn plain(&mut self, bits: &BitSet) -> Packet {
        let rest = bits.words().get(self.word..).unwrap_or(&[]);
        let words = rest[..rest.len().min(words_per_packet(self.version))].to_vec();
        self.done = words.is_empty();
        self.word += words.len();
        self.bit = (self.word as u64 * 64).min(bits.len());
        Packet::Bitmap(words)
    }
}

/// Follows the packets of one incoming bitmap.
#[derive(Clone, Debug)]
pub struct BitmapReceiver {
    version: Version,
    bits: u64,
    bit: u64,
    word: usize,
}

impl BitmapReceiver {
    /// For a bitmap of `bits` bits: the volume's size in 4 KiB blocks, rounded up.
    #[must_use]
    pub fn new(dialect: &Dialect, bits: u64) -> BitmapReceiver {
        BitmapReceiver { version: dialect.version, bits, bit: 0, word: 0 }
    }

    /// Takes a P_BITMAP. Calls `set(from, to)` for every run `from..to` of set bits, in ascending order. Returns true
    /// when the bitmap is complete.
    ///
    /// Errors: `BitmapLength`; nothing was set then.
    pub fn plain(&mut self, words: &[u64], mut set: impl FnMut(u64, u64)) -> Result<bool, Violation> {
        let total = usize::try_from(self.bits.div_ceil(64)).unwrap_or(usize::MAX);
        let expected = words_per_packet(self.version).min(total - self.word);
        if words.len() != expected {
            return Err(Violation::BitmapLength { words: words.len(), expected });
        }
        for &word in words {
            let base = self.word as u64 * 64;
            each_run(word, |from, to| {
                if base + from < self.bits {
                    set(base + from, (base + to).min(self.bits));
                }
            });
            self.word += 1;
        }
        self.bit = (self.word as u64 * 64).min(self.bits);
        Ok(words.is_empty())
    }

    /// Takes a P_COMPRESSED_BITMAP; otherwise as [`BitmapReceiver::plain`].
    ///
    /// Errors: `BitmapCodeCut`, `BitmapOverrun`; runs before the fault were set.
    pub fn compressed(&mut self, packet: &CompressedBitmap, mut set: impl FnMut(u64, u64)) -> Result<bool, Violation> {
        for run in packet.runs() {
            let (value, run) = run?;
            let end = self.bit.checked_add(run).filter(|&end| end <= self.bits);
            let end = end.ok_or(Violation::BitmapOverrun { bit: self.bit, run, bits: self.bits })?;
            if value {
                set(self.bit, end);
            }
            self.bit = end;
        }
        self.word = usize::try_from(self.bit / 64).unwrap_or(usize::MAX);
        Ok(self.bit == self.bits)
    }
}

/// Calls `f(from, to)` for each run of set bits in a word.
fn each_run(word: u64, mut f: impl FnMut(u64, u64)) {
    let mut at = 0;
    while at < 64 {
        let rest = word >> at;
        if rest == 0 {
            return;
        }
        let from = at + rest.trailing_zeros();
        let to = from + (word >> from).trailing_ones();
        f(from.into(), to.into());
        at = to;
    }
}

pub(crate) fn parse_words(f: &mut Fields<'_>) -> Result<Vec<u64>, Violation> {
    let bytes = f.rest();
    let (words, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(Violation::Truncated { command: f.command() });
    }
    Ok(words.iter().map(|w| u64::from_le_bytes(*w)).collect())
}
