//! Packet headers in their three formats (`docs/spec/wire-protocol.md` 2).

use crate::dialect::HeaderFormat;
use crate::violation::Violation;
use units::VolumeNr;

const MAGIC_80: u32 = 0x8374_0267;
const MAGIC_95: u16 = 0x835a;
const MAGIC_100: u32 = 0x8620_ec20;

/// A packet header. `length` counts the bytes that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The volume; 0 in the 8-byte formats, which carry none.
    pub volume: VolumeNr,
    /// The command number, not yet looked up.
    pub command: u16,
    /// Bytes after the header: fixed part, digest, payload.
    pub length: u32,
}

impl Header {
    /// Reads a header of one of the 8-byte formats (`wide == false`) or the 16-byte format (`wide == true`).
    ///
    /// `Ok(None)` if `bytes` is too short to tell. Errors: `BadMagic`, `HeaderPadding`.
    pub fn parse(wide: bool, bytes: &[u8]) -> Result<Option<Header>, Violation> {
        let Some(&[a, b, c, d, e, f, g, h]) = bytes.first_chunk::<8>() else {
            return Ok(None);
        };
        let magic = u32::from_be_bytes([a, b, c, d]);
        if wide {
            return Header::parse_wide(magic, [e, f, g, h], bytes);
        }
        if magic == MAGIC_80 {
            let (command, length) = (u16::from_be_bytes([e, f]), u16::from_be_bytes([g, h]).into());
            Ok(Some(Header { volume: VolumeNr(0), command, length }))
        } else if u16::from_be_bytes([a, b]) == MAGIC_95 {
            let (command, length) = (u16::from_be_bytes([c, d]), u32::from_be_bytes([e, f, g, h]));
            Ok(Some(Header { volume: VolumeNr(0), command, length }))
        } else {
            Err(Violation::BadMagic { magic })
        }
    }

    fn parse_wide(magic: u32, [e, f, g, h]: [u8; 4], bytes: &[u8]) -> Result<Option<Header>, Violation> {
        if magic != MAGIC_100 {
            return Err(Violation::BadMagic { magic });
        }
        let Some(tail) = bytes.get(8..).and_then(<[u8]>::first_chunk::<8>) else {
            return Ok(None);
        };
        let (length, pad) = tail.split_at(4);
        let number = |b: &[u8]| b.iter().fold(0u32, |n, &x| n << 8 | u32::from(x));
        if number(pad) != 0 {
            return Err(Violation::HeaderPadding { pad: number(pad) });
        }
        let volume = VolumeNr(u16::from_be_bytes([e, f]));
        Ok(Some(Header { volume, command: u16::from_be_bytes([g, h]), length: number(length) }))
    }

    /// The header's bytes; the first `format.size()` of the array count. `None` if the format cannot carry the length
    /// or the volume.
    #[must_use]
    pub fn emit(&self, format: HeaderFormat) -> Option<[u8; 16]> {
        let mut out = [0; 16];
        if format != HeaderFormat::H100 && self.volume != VolumeNr(0) {
            return None;
        }
        match format {
            HeaderFormat::H80 => {
                out[..4].copy_from_slice(&MAGIC_80.to_be_bytes());
                out[4..6].copy_from_slice(&self.command.to_be_bytes());
                out[6..8].copy_from_slice(&u16::try_from(self.length).ok()?.to_be_bytes());
            }
            HeaderFormat::H95 => {
                out[..2].copy_from_slice(&MAGIC_95.to_be_bytes());
                out[2..4].copy_from_slice(&self.command.to_be_bytes());
                out[4..8].copy_from_slice(&self.length.to_be_bytes());
            }
            HeaderFormat::H100 => {
                out[..4].copy_from_slice(&MAGIC_100.to_be_bytes());
                out[4..6].copy_from_slice(&self.volume.0.to_be_bytes());
                out[6..8].copy_from_slice(&self.command.to_be_bytes());
                out[8..12].copy_from_slice(&self.length.to_be_bytes());
            }
        }
        Some(out)
    }
}
