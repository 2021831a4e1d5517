//! One message is one line of JSON.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest line that is accepted, in bytes.
pub const MAX_LINE: usize = 4 << 20;

/// A message as bytes to send, with its newline.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("messages have string keys and no failing serializers");
    line.push(b'\n');
    line
}

/// Collects received bytes and takes messages out of them. It never holds more than [`MAX_LINE`] bytes of an
/// unfinished line.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    scanned: usize,
}

impl Decoder {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete message; `Ok(None)` if more bytes are needed.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] if the line exceeds [`MAX_LINE`] (the stream is unusable after that);
    /// [`FrameError::Malformed`] if it is not a message of this type (the line is consumed).
    pub fn message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some(end) = self.buffer[self.scanned..].iter().position(|&b| b == b'\n').map(|n| n + self.scanned) else {
            self.scanned = self.buffer.len();
            return if self.scanned > MAX_LINE { Err(FrameError::TooLong) } else { Ok(None) };
        };
        if end > MAX_LINE {
            return Err(FrameError::TooLong);
        }
        let parsed = serde_json::from_slice(&self.buffer[..end]);
        self.buffer.drain(..=end);
        self.scanned = 0;
        parsed.map(Some).map_err(|e| FrameError::Malformed(e.to_string()))
    }
}

/// Why a received line is no message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameError {
    /// Longer than [`MAX_LINE`].
    TooLong,
    /// Not the JSON of a known message.
    Malformed(String),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong => write!(f, "a message longer than {MAX_LINE} bytes"),
            FrameError::Malformed(why) => write!(f, "a message that is not understood: {why}"),
        }
    }
}

impl std::error::Error for FrameError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Command, Request};

    #[test]
    fn messages_survive_any_splitting() {
        let requests = [
            Request::Hello { version: 1 },
            Request::Status,
            Request::Command(Command::Connect { peer: Some("bravo".into()), discard_my_data: true }),
        ];
        let bytes: Vec<u8> = requests.iter().flat_map(encode).collect();
        for size in 1..bytes.len() {
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for chunk in bytes.chunks(size) {
                decoder.push(chunk);
                while let Some(request) = decoder.message::<Request>().unwrap() {
                    seen.push(request);
                }
            }
            assert_eq!(seen, requests, "chunks of {size}");
        }
    }

    #[test]
    fn a_bad_line_does_not_spoil_the_next() {
        let mut decoder = Decoder::default();
        decoder.push(b"{\"no-such\":1}\n\"status\"\n");
        assert!(matches!(decoder.message::<Request>(), Err(FrameError::Malformed(_))));
        assert_eq!(decoder.message::<Request>(), Ok(Some(Request::Status)));
        assert_eq!(decoder.message::<Request>(), Ok(None));
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut decoder = Decoder::default();
        decoder.push(&vec![b'x'; MAX_LINE + 1]);
        assert_eq!(decoder.message::<Request>(), Err(FrameError::TooLong));
    }
}
