//! Checksums of payload and the challenge-response authentication.
//!
//! `docs/spec/wire-protocol.md` section 10 names the algorithms; crc32c travels little-endian.

use crc::{CRC_16_T10_DIF, Crc, Table};
use digest::Digest;
use hmac::{Hmac, Mac};
use std::io::Read;

/// Length of the random challenge of cram-hmac, in bytes.
pub const CHALLENGE_LEN: usize = 64;

const T10_DIF: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_T10_DIF);

/// A digest algorithm by its configured name (`data-integrity-alg`, `verify-alg`, `csums-alg`, `cram-hmac-alg`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// CRC-32C (Castagnoli), 4 bytes, little-endian.
    Crc32c,
    /// CRC-16 of T10 DIF, 2 bytes, little-endian.
    Crct10dif,
    /// MD5, 16 bytes.
    Md5,
    /// SHA-1, 20 bytes.
    Sha1,
    /// SHA-256, 32 bytes.
    Sha256,
    /// SHA-384, 48 bytes.
    Sha384,
    /// SHA-512, 64 bytes.
    Sha512,
}

/// A digest of up to 64 bytes, without allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Value {
    bytes: [u8; 64],
    len: u8,
}

impl Algorithm {
    /// All of them, by the names that the kernel's crypto API has for them.
    pub const ALL: [(&'static str, Algorithm); 7] = [
        ("crc32c", Algorithm::Crc32c),
        ("crct10dif", Algorithm::Crct10dif),
        ("md5", Algorithm::Md5),
        ("sha1", Algorithm::Sha1),
        ("sha256", Algorithm::Sha256),
        ("sha384", Algorithm::Sha384),
        ("sha512", Algorithm::Sha512),
    ];

    /// The algorithm that the kernel's crypto API knows by `name`; `None` if it is none of ours.
    #[must_use]
    pub fn parse(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, algorithm)| algorithm)
    }

    /// Whether it has a keyed form, for authentication.
    #[must_use]
    pub fn is_keyed(self) -> bool {
        !matches!(self, Algorithm::Crc32c | Algorithm::Crct10dif)
    }

    /// Digest length in bytes.
    #[must_use]
    pub const fn output_len(self) -> usize {
        match self {
            Algorithm::Crc32c => 4,
            Algorithm::Crct10dif => 2,
            Algorithm::Md5 => 16,
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 => 32,
            Algorithm::Sha384 => 48,
            Algorithm::Sha512 => 64,
        }
    }

    /// The digest of `data`.
    #[must_use]
    pub fn digest(self, data: &[u8]) -> Value {
        match self {
            Algorithm::Crc32c => Value::new(&crc32c::crc32c(data).to_le_bytes()),
            Algorithm::Crct10dif => Value::new(&T10_DIF.checksum(data).to_le_bytes()),
            Algorithm::Md5 => Value::new(&md5::Md5::digest(data)),
            Algorithm::Sha1 => Value::new(&sha1::Sha1::digest(data)),
            Algorithm::Sha256 => Value::new(&sha2::Sha256::digest(data)),
            Algorithm::Sha384 => Value::new(&sha2::Sha384::digest(data)),
            Algorithm::Sha512 => Value::new(&sha2::Sha512::digest(data)),
        }
    }

    /// HMAC (RFC 2104) of `message` under `key`; `None` for those without a keyed form.
    #[must_use]
    pub fn hmac(self, key: &[u8], message: &[u8]) -> Option<Value> {
        macro_rules! keyed {
            ($hash:ty) => {{
                let mut mac = <Hmac<$hash> as Mac>::new_from_slice(key).expect("any key length is valid for HMAC");
                mac.update(message);
                Some(Value::new(&mac.finalize().into_bytes()))
            }};
        }
        match self {
            Algorithm::Crc32c | Algorithm::Crct10dif => None,
            Algorithm::Md5 => keyed!(md5::Md5),
            Algorithm::Sha1 => keyed!(sha1::Sha1),
            Algorithm::Sha256 => keyed!(sha2::Sha256),
            Algorithm::Sha384 => keyed!(sha2::Sha384),
            Algorithm::Sha512 => keyed!(sha2::Sha512),
        }
    }
}

impl Value {
    /// Its bytes, as they travel.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    fn new(digest: &[u8]) -> Value {
        let mut bytes = [0; 64];
        bytes[..digest.len()].copy_from_slice(digest);
        Value { bytes, len: digest.len() as u8 }
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// Fills `bytes` from the operating system's random source.
///
/// # Errors
/// If `/dev/urandom` cannot be read.
pub fn os_random(bytes: &mut [u8]) -> std::io::Result<()> {
    std::fs::File::open("/dev/urandom")?.read_exact(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(v: Value) -> String {
        format!("{v:?}")
    }

    #[test]
    fn published_vectors() {
        assert_eq!(hex(Algorithm::Crc32c.digest(b"123456789")), "839206e3");
        // The value of the catalogue of CRCs is d0db.
        assert_eq!(hex(Algorithm::Crct10dif.digest(b"123456789")), "dbd0");
        assert!(hex(Algorithm::Sha384.digest(b"abc")).starts_with("cb00753f45a35e8b"));
        assert_eq!(hex(Algorithm::Md5.digest(b"abc")), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(hex(Algorithm::Sha1.digest(b"abc")), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(hex(Algorithm::Sha256.digest(b"abc")).starts_with("ba7816bf8f01cfea"));
        assert!(hex(Algorithm::Sha512.digest(b"abc")).starts_with("ddaf35a193617aba"));
        // RFC 2202 case 2 and RFC 4231 case 2.
        let (key, text) = (b"Jefe", b"what do ya want for nothing?");
        assert_eq!(hex(Algorithm::Md5.hmac(key, text).unwrap()), "750c783e6ab0b503eaa86e310a5db738");
        assert_eq!(hex(Algorithm::Sha1.hmac(key, text).unwrap()), "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
        assert!(hex(Algorithm::Sha256.hmac(key, text).unwrap()).starts_with("5bdcc146bf60754e"));
        assert!(hex(Algorithm::Sha512.hmac(key, text).unwrap()).starts_with("164b7a7bfcf819e2"));
        assert!(Algorithm::Crc32c.hmac(key, text).is_none());
    }

    #[test]
    fn names_and_lengths() {
        for name in ["crc32c", "md5", "sha1", "sha256", "sha512"] {
            let alg = Algorithm::parse(name).unwrap();
            assert_eq!(alg.digest(b"x").as_bytes().len(), alg.output_len());
        }
        assert!(Algorithm::parse("rot13").is_none());
    }

    #[test]
    fn random_bytes_differ() {
        let (mut a, mut b) = ([0; CHALLENGE_LEN], [0; CHALLENGE_LEN]);
        os_random(&mut a).unwrap();
        os_random(&mut b).unwrap();
        assert_ne!(a, b);
    }
}
