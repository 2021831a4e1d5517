//! Cutting the bytes of a stream into packets.

use crate::command::{Command, Socket};
use crate::dialect::Dialect;
use crate::handshake::ConnectionFeatures;
use crate::header::Header;
use crate::inline::digest_len;
use crate::packet::Packet;
use crate::violation::Violation;
use units::VolumeNr;

/// Bytes of the first packet on each TCP connection.
pub const FIRST_PACKET_LEN: usize = 8;

/// Reads the first packet on an accepted TCP connection (`docs/spec/wire-protocol.md` 1.3), which says what the
/// connection is; it has [`FIRST_PACKET_LEN`] bytes. `Ok(None)` if `bytes` is shorter. Errors: close that connection.
pub fn first_packet(bytes: &[u8]) -> Result<Option<Socket>, Violation> {
    let Some(header) = Header::parse(false, bytes)? else {
        return Ok(None);
    };
    let (socket, command) = match Command::from_number(header.command) {
        Some(c @ Command::InitialData) => (Socket::Data, c),
        Some(c @ Command::InitialMeta) => (Socket::Control, c),
        _ => {
            return Err(Violation::OutOfPhase { command: header.command, expected: Command::InitialData });
        }
    };
    if header.length != 0 {
        return Err(Violation::BadLength { command, length: header.length, min: 0, max: 0 });
    }
    Ok(Some(socket))
}

/// What [`StreamDecoder::step`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The buffer must hold at least this many bytes before the next packet can be told; never more than 4096.
    NeedMore(usize),
    /// A packet.
    Packet(Decoded),
}

/// A packet cut from the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The volume in its header; 0 in dialects without volumes, meaningless for connection-level packets.
    pub volume: VolumeNr,
    /// The packet.
    pub packet: Packet,
    /// Bytes of the buffer that it took: header, fixed part, digest.
    pub consumed: usize,
    /// Bytes of block payload that follow those on the stream, at most 1 MiB.
    pub payload_len: u32,
}

/// Reads one direction of one stream. Keeps only what the layout of later packets depends on: the dialect once the
/// features packet is read, and the length of the peer's integrity digest once P_PROTOCOL is read.
///
/// ```
/// use units::VolumeNr;
/// use urbd_wire::{ConnectionFeatures, Dialect, Packet, Step, StreamDecoder};
///
/// let (mut stream, offer) = (Vec::new(), ConnectionFeatures::OFFER);
/// Packet::ConnectionFeatures(offer).emit(VolumeNr(0), &Dialect::HANDSHAKE, &mut stream).unwrap();
///
/// let mut decoder = StreamDecoder::data(offer);
/// assert_eq!(decoder.step(&stream[..5]), Ok(Step::NeedMore(8)));
/// let Ok(Step::Packet(found)) = decoder.step(&stream) else { panic!() };
/// assert_eq!((found.packet, found.consumed), (Packet::ConnectionFeatures(offer), 80));
/// assert_eq!(decoder.dialect().unwrap().version.number(), 101);
/// ```
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    socket: Socket,
    own: ConnectionFeatures,
    dialect: Option<Dialect>,
    digest_len: usize,
}

impl StreamDecoder {
    /// For a data stream, after its first packet: expects P_CONNECTION_FEATURES and agrees on a dialect with `own`.
    #[must_use]
    pub fn data(own: ConnectionFeatures) -> StreamDecoder {
        StreamDecoder { socket: Socket::Data, own, dialect: None, digest_len: 0 }
    }

    /// For a control stream, after its first packet and when the data stream has agreed on a dialect.
    #[must_use]
    pub fn control(dialect: Dialect) -> StreamDecoder {
        StreamDecoder { socket: Socket::Control, own: ConnectionFeatures::OFFER, dialect: Some(dialect), digest_len: 0 }
    }

    /// What was agreed; `None` before the features packet.
    #[must_use]
    pub fn dialect(&self) -> Option<Dialect> {
        self.dialect
    }

    /// Looks for a packet at the start of `buffer`. After `Step::Packet` the caller drops `consumed` bytes, takes
    /// `payload_len` bytes of payload off the stream and calls again. Errors end the connection
    /// ([`Violation::reaction`] says how); the decoder is of no use after that.
    pub fn step(&mut self, buffer: &[u8]) -> Result<Step, Violation> {
        let dialect = self.dialect.unwrap_or(Dialect::HANDSHAKE);
        let header_len = dialect.version.header_len();
        let Some(header) = Header::parse(header_len == 16, buffer)? else {
            return Ok(Step::NeedMore(header_len));
        };
        let command = self.look_up(&header)?;
        let (body_len, payload_len) = self.split(command, &dialect, header.length)?;
        let consumed = header_len + body_len;
        let Some(body) = buffer.get(header_len..consumed) else {
            return Ok(Step::NeedMore(consumed));
        };
        let digest_len = if command.carries_block() { self.digest_len } else { 0 };
        let packet = Packet::parse(command, &dialect, body, digest_len, payload_len)?;
        self.follow(&packet)?;
        Ok(Step::Packet(Decoded { volume: header.volume, packet, consumed, payload_len }))
    }

    fn look_up(&self, header: &Header) -> Result<Command, Violation> {
        let command = Command::from_number(header.command);
        let Some(dialect) = &self.dialect else {
            let expected = Command::ConnectionFeatures;
            let out_of_phase = Violation::OutOfPhase { command: header.command, expected };
            return command.filter(|&c| c == expected).ok_or(out_of_phase);
        };
        let control = self.socket == Socket::Control;
        let command = command
            .filter(|c| c.is_on(self.socket))
            .ok_or(Violation::UnknownCommand { command: header.command, control })?;
        if !command.is_accepted(dialect) {
            return Err(Violation::NotInDialect { command, version: dialect.version.number() });
        }
        Ok(command)
    }

    /// (bytes to parse, bytes of payload after them), from the length field.
    fn split(&self, command: Command, dialect: &Dialect, length: u32) -> Result<(usize, u32), Violation> {
        let (mut min, mut max) = command.lengths(dialect);
        if command.carries_block() {
            min += self.digest_len as u32;
            max = min + crate::MAX_BLOCK;
        }
        if length < min || length > max {
            return Err(Violation::BadLength { command, length, min, max });
        }
        let body = if command.carries_block() { min } else { length };
        Ok((body as usize, length - body))
    }

    fn follow(&mut self, packet: &Packet) -> Result<(), Violation> {
        match packet {
            Packet::ConnectionFeatures(peer) => self.dialect = Some(self.own.agree(peer)?),
            // An unknown algorithm cannot equal ours, so the connection ends before the length matters.
            Packet::Protocol(p) | Packet::ProtocolUpdate(p) => {
                self.digest_len = digest_len(p.integrity_alg.as_str()).unwrap_or(0);
            }
            _ => {}
        }
        Ok(())
    }
}
