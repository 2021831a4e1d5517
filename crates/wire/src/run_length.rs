//! The run-length code of P_COMPRESSED_BITMAP (`docs/spec/wire-protocol.md` 9.5, 9.6).

use crate::fields::{Fields, Put};
use crate::violation::Violation;
use std::fmt;
use units::BitSet;

/// Low four bits of the encoding byte: run lengths as variable-length integers, the only code there is.
const CODE_RLE_VLI: u8 = 2;

/// One level of the variable-length integers.
struct Level {
    total_bits: u32,
    prefix_bits: u32,
    prefix: u64,
    first: u64,
}

const fn level(total_bits: u32, prefix_bits: u32, prefix: u64, first: u64) -> Level {
    Level { total_bits, prefix_bits, prefix, first }
}

const LEVELS: [Level; 10] = [
    level(2, 1, 0x00, 1),
    level(3, 2, 0x01, 3),
    level(5, 3, 0x03, 5),
    level(7, 4, 0x07, 9),
    level(10, 5, 0x0f, 17),
    level(14, 6, 0x1f, 49),
    level(21, 8, 0x3f, 305),
    level(29, 8, 0x7f, 8497),
    level(42, 8, 0xbf, 2_105_649),
    level(64, 8, 0xff, 17_181_974_833),
];

/// Runs of equal bits, alternating in value, coded in at most 4087 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct CompressedBitmap {
    first_set: bool,
    pad_bits: u8,
    code: Vec<u8>,
}

impl CompressedBitmap {
    /// Codes the bits of `bits` from number `from` on, as many whole runs as fit `max_code` bytes. Returns the code
    /// and how many bits it covers; `None` if there is no bit from `from` on or not one run fits.
    #[must_use]
    pub fn encode(bits: &BitSet, from: u64, max_code: usize) -> Option<(CompressedBitmap, u64)> {
        if from >= bits.len() {
            return None;
        }
        let first_set = bits.contains(from);
        let (mut at, mut value, mut code) = (from, first_set, CodeWriter { bytes: Vec::new(), bits: 0 });
        while at < bits.len() {
            let end = if value { bits.next_clear(at..bits.len()) } else { bits.next_set(at..bits.len()) };
            let end = end.unwrap_or(bits.len());
            if !code.push(end - at, max_code) {
                break;
            }
            (at, value) = (end, !value);
        }
        let pad_bits = u8::try_from(code.bytes.len() * 8 - code.bits).ok()?;
        (at > from).then_some((CompressedBitmap { first_set, pad_bits, code: code.bytes }, at - from))
    }

    /// Bytes of code, without the encoding byte.
    #[must_use]
    pub fn code_len(&self) -> usize {
        self.code.len()
    }

    /// The runs: (value of the bits, length of at least 1).
    pub fn runs(&self) -> impl Iterator<Item = Result<(bool, u64), Violation>> + '_ {
        let (mut at, end, mut value) = (0, self.code.len() * 8 - usize::from(self.pad_bits), self.first_set);
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let Some((run, used)) = decode(window(&self.code, at), end - at) else {
                at = end;
                return Some(Err(Violation::BitmapCodeCut));
            };
            at += used;
            let this = value;
            value = !value;
            Some(Ok((this, run)))
        })
    }

    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<CompressedBitmap, Violation> {
        let encoding = f.u8()?;
        let (code_kind, pad_bits, first_set) = (encoding & 0xf, encoding >> 4 & 7, encoding & 0x80 != 0);
        let code = f.rest();
        if code_kind != CODE_RLE_VLI || code.is_empty() {
            return Err(Violation::BitmapCode { encoding });
        }
        Ok(CompressedBitmap { first_set, pad_bits, code: code.to_vec() })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.put8(u8::from(self.first_set) << 7 | self.pad_bits << 4 | CODE_RLE_VLI);
        out.extend_from_slice(&self.code);
    }
}

impl fmt::Debug for CompressedBitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompressedBitmap({} bytes of code, first bit {})", self.code.len(), u8::from(self.first_set))
    }
}

struct CodeWriter {
    bytes: Vec<u8>,
    bits: usize,
}

impl CodeWriter {
    /// Appends a run; false if it does not fit `max` bytes (or is longer than the code can say).
    fn push(&mut self, run: u64, max: usize) -> bool {
        let Some((word, count)) = encode(run) else {
            return false;
        };
        if self.bits + count > max * 8 {
            return false;
        }
        self.bytes.resize((self.bits + count).div_ceil(8), 0);
        let (byte, shift) = (self.bits / 8, self.bits % 8);
        let spread = (u128::from(word) << shift).to_le_bytes();
        self.bytes[byte..].iter_mut().zip(spread).for_each(|(b, s)| *b |= s);
        self.bits += count;
        true
    }
}

/// The code word of a run and its number of bits; `None` for 0 and for what no level holds.
fn encode(run: u64) -> Option<(u64, usize)> {
    let level = LEVELS.iter().rev().find(|l| run >= l.first)?;
    let data = run - level.first;
    if data >> (level.total_bits - level.prefix_bits) != 0 {
        return None;
    }
    Some((data << level.prefix_bits | level.prefix, level.total_bits as usize))
}

/// The run at the low end of `v`, of which `available` bits are real, and the bits it takes; `None` if cut off.
fn decode(v: u64, available: usize) -> Option<(u64, usize)> {
    let level = LEVELS.iter().find(|l| v & ((1 << l.prefix_bits) - 1) == l.prefix)?;
    if level.total_bits as usize > available {
        return None;
    }
    let data_bits = level.total_bits - level.prefix_bits;
    Some((level.first + (v >> level.prefix_bits & ((1 << data_bits) - 1)), level.total_bits as usize))
}

/// 64 bits of `code` from bit `at` on, zeroes after its end.
fn window(code: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 16];
    let tail = code.get(at / 8..).unwrap_or(&[]);
    let n = tail.len().min(9);
    bytes[..n].copy_from_slice(&tail[..n]);
    (u128::from_le_bytes(bytes) >> (at % 8)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_meet_without_gaps() {
        for pair in LEVELS.windows(2) {
            let last = pair[0].first + (1 << (pair[0].total_bits - pair[0].prefix_bits)) - 1;
            assert_eq!(last + 1, pair[1].first);
            assert_eq!(encode(last).map(|(_, n)| n), Some(pair[0].total_bits as usize));
        }
        let last = 72_057_611_219_902_768;
        assert_eq!(encode(last).map(|(_, n)| n), Some(64));
        assert_eq!(encode(last + 1), None);
        assert_eq!(encode(0), None);
    }

    #[test]
    fn every_level_decodes_what_it_encodes() {
        for n in LEVELS.iter().flat_map(|l| [l.first, l.first + 1]).chain([72_057_611_219_902_768]) {
            let (word, bits) = encode(n).unwrap();
            assert_eq!(decode(word, bits), Some((n, bits)));
            assert_eq!(decode(word, bits - 1), None);
        }
    }
}
