//! Everything a peer can get wrong in the bytes it sends, each with a name.

use crate::Command;
use std::fmt;

/// What to do with the connection after a violation (`docs/spec/wire-protocol.md` 0: drop-R and drop-S).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// End the connection and connect again (drop-R).
    Reconnect,
    /// End the connection and stay StandAlone until an administrator reconnects (drop-S).
    StandAlone,
}

/// The peer sent bytes that break the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The first bytes of a header are not those of a header format allowed here.
    BadMagic {
        /// The first four bytes, big-endian.
        magic: u32,
    },
    /// The padding of a 16-byte header is not 0.
    HeaderPadding {
        /// The padding's value.
        pad: u32,
    },
    /// A command number that no packet of this protocol has on this stream.
    UnknownCommand {
        /// The number.
        command: u16,
        /// Was it read from the control stream?
        control: bool,
    },
    /// A known packet that the agreed version or features do not have.
    NotInDialect {
        /// The packet.
        command: Command,
        /// The agreed protocol version.
        version: u32,
    },
    /// A packet other than the one that the handshake requires at this place.
    OutOfPhase {
        /// Number of the command that came.
        command: u16,
        /// What had to come.
        expected: Command,
    },
    /// The length field does not fit the packet.
    BadLength {
        /// The packet.
        command: Command,
        /// What the length field says.
        length: u32,
        /// Smallest allowed length.
        min: u32,
        /// Largest allowed length.
        max: u32,
    },
    /// Fewer bytes than the layout needs.
    Truncated {
        /// The packet.
        command: Command,
    },
    /// A block's size is 0, not a multiple of 512 bytes, or above the limit.
    BadBlockSize {
        /// The packet.
        command: Command,
        /// Size in bytes.
        size: u32,
        /// The limit in bytes.
        max: u32,
    },
    /// A sector that no device can have.
    SectorBeyondAnyDevice {
        /// The packet.
        command: Command,
        /// The sector.
        sector: u64,
    },
    /// P_DATA with the WRITE SAME flag, which has no meaning any more.
    WriteSameFlag,
    /// An enumeration field has a number without meaning.
    UnknownValue {
        /// The packet.
        command: Command,
        /// The field.
        field: &'static str,
        /// The number.
        value: u64,
    },
    /// The mask of a state change covers only a part of a field.
    PartialMask {
        /// The field.
        field: &'static str,
        /// The mask.
        mask: u32,
    },
    /// An algorithm's name lacks its end, is too long, or holds unprintable characters.
    BadAlgorithmName {
        /// The packet.
        command: Command,
    },
    /// A plain bitmap packet has not the number of words that is due at this position.
    BitmapLength {
        /// Words in the packet.
        words: usize,
        /// Words due.
        expected: usize,
    },
    /// A compressed bitmap packet names another code than run lengths (2), or claims more padding than it has bits.
    BitmapCode {
        /// The encoding byte.
        encoding: u8,
    },
    /// A code word of a compressed bitmap is cut off.
    BitmapCodeCut,
    /// A run of a compressed bitmap ends beyond the device.
    BitmapOverrun {
        /// Bit number where the run starts.
        bit: u64,
        /// Length of the run in bits.
        run: u64,
        /// Bits in the bitmap.
        bits: u64,
    },
    /// No protocol version is spoken by both nodes, or the peer's range is not one.
    NoCommonVersion {
        /// Lowest version the peer speaks.
        peer_min: u32,
        /// Highest version the peer speaks.
        peer_max: u32,
    },
}

impl Violation {
    /// What to do with the connection.
    #[must_use]
    pub fn reaction(&self) -> Reaction {
        match self {
            Violation::NoCommonVersion { .. }
            | Violation::OutOfPhase { expected: Command::ConnectionFeatures, .. }
            | Violation::BadLength { command: Command::ConnectionFeatures | Command::AuthChallenge, .. } => {
                Reaction::StandAlone
            }
            _ => Reaction::Reconnect,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::BadMagic { magic } => {
                write!(
                    f,
                    "no packet header: it starts with {magic:#010x}; the peer is no DRBD node or the stream is out of step"
                )
            }
            Violation::HeaderPadding { pad } => {
                write!(f, "packet header with padding {pad:#010x} where 0 must be")
            }
            Violation::UnknownCommand { command, control } => {
                let stream = if *control { "control" } else { "data" };
                write!(f, "command {command:#06x} does not exist on the {stream} stream")
            }
            Violation::NotInDialect { command, version } => {
                write!(f, "{command} is not part of protocol version {version} with the agreed features")
            }
            Violation::OutOfPhase { command, expected } => match Command::from_number(*command) {
                Some(command) => write!(f, "{command} came where {expected} had to come"),
                None => write!(f, "command {command:#06x} came where {expected} had to come"),
            },
            Violation::BadLength { command, length, min, max } if min == max => {
                write!(f, "{command} of {length} bytes; it must have {min}")
            }
            Violation::BadLength { command, length, min, max } => {
                write!(f, "{command} of {length} bytes; it must have {min} to {max}")
            }
            Violation::Truncated { command } => write!(f, "{command} ends before its last field"),
            Violation::BadBlockSize { command, size, max } => {
                write!(f, "{command} for a block of {size} bytes; it must be a multiple of 512 from 512 to {max}")
            }
            Violation::SectorBeyondAnyDevice { command, sector } => {
                write!(f, "{command} at sector {sector}, which is beyond any device")
            }
            Violation::WriteSameFlag => {
                write!(f, "P_DATA with the WRITE SAME flag, which no protocol version has any more")
            }
            Violation::UnknownValue { command, field, value } => {
                write!(f, "{command} with {field} {value}, which means nothing")
            }
            Violation::PartialMask { field, mask } => {
                write!(f, "state change request with mask {mask:#010x}, which covers only a part of {field}")
            }
            Violation::BadAlgorithmName { command } => {
                write!(f, "{command} with an algorithm name that is unterminated, too long or unprintable")
            }
            Violation::BitmapLength { words, expected } => {
                write!(f, "P_BITMAP with {words} words where {expected} were due")
            }
            Violation::BitmapCode { encoding } => {
                write!(f, "P_COMPRESSED_BITMAP with encoding byte {encoding:#04x}; only run lengths (code 2) exist")
            }
            Violation::BitmapCodeCut => write!(f, "P_COMPRESSED_BITMAP ends within a code word"),
            Violation::BitmapOverrun { bit, run, bits } => {
                write!(f, "P_COMPRESSED_BITMAP with a run of {run} bits at bit {bit} of a bitmap of {bits} bits")
            }
            Violation::NoCommonVersion { peer_min, peer_max } => {
                write!(f, "the peer speaks protocol versions {peer_min} to {peer_max}, none of which is spoken here")
            }
        }
    }
}

impl std::error::Error for Violation {}
