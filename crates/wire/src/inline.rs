//! Short byte strings kept in place: digests, challenges, algorithm names.

use crate::command::Command;
use crate::violation::Violation;
use std::fmt;

/// Up to `N` bytes without an allocation. `N` is at most 255.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct InlineBytes<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

/// A digest as it stands on the wire, 0 to 64 bytes; empty where no digest is configured. Only one that is not empty
/// takes memory: data packets pass through many hands, mostly without one.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Digest(Option<Box<InlineBytes<64>>>);

/// A challenge or its answer, up to 128 bytes (`docs/spec/wire-protocol.md` 7.3).
pub type AuthBytes = InlineBytes<128>;

impl<const N: usize> InlineBytes<N> {
    /// No bytes.
    pub const EMPTY: InlineBytes<N> = InlineBytes { len: 0, bytes: [0; N] };

    /// `None` if `bytes` is longer than `N`.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<InlineBytes<N>> {
        let mut out = Self::EMPTY;
        out.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        out.len = u8::try_from(bytes.len()).ok()?;
        Some(out)
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// Are there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Digest {
    /// No digest.
    pub const EMPTY: Digest = Digest(None);

    /// `None` if `bytes` is longer than 64.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Digest> {
        let bytes = InlineBytes::new(bytes)?;
        Some(Digest((!bytes.is_empty()).then(|| Box::new(bytes))))
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |bytes| bytes.as_slice())
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Are there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl<const N: usize> Default for InlineBytes<N> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<const N: usize> fmt::Debug for InlineBytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// The name of a digest algorithm, at most 63 printable ASCII characters; empty for "none".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AlgName(InlineBytes<63>);

impl AlgName {
    /// No algorithm.
    pub const NONE: AlgName = AlgName(InlineBytes::EMPTY);

    /// `None` if `name` is longer than 63 bytes or holds anything but printable ASCII.
    #[must_use]
    pub fn new(name: &str) -> Option<AlgName> {
        let printable = name.bytes().all(|b| b.is_ascii_graphic());
        if printable { InlineBytes::new(name.as_bytes()).map(AlgName) } else { None }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.0.as_slice()).unwrap_or("")
    }

    /// Is it "none"?
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a NUL-terminated name; what follows the NUL is ignored.
    pub(crate) fn parse(bytes: &[u8], command: Command) -> Result<AlgName, Violation> {
        let end = bytes.iter().position(|&b| b == 0);
        end.and_then(|end| std::str::from_utf8(&bytes[..end]).ok())
            .and_then(AlgName::new)
            .ok_or(Violation::BadAlgorithmName { command })
    }
}

impl fmt::Debug for AlgName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for AlgName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Bytes in a digest of the algorithm with this name (`docs/spec/wire-protocol.md` 10.3); `None` if it is not known.
/// The empty name ("none") has 0.
#[must_use]
pub fn digest_len(name: &str) -> Option<usize> {
    Some(match name {
        "" => 0,
        "crct10dif" => 2,
        "crc32" | "crc32c" => 4,
        "xxhash64" => 8,
        "md5" => 16,
        "sha1" => 20,
        "sha224" | "sha3-224" => 28,
        "sha256" | "sha3-256" => 32,
        "sha384" | "sha3-384" => 48,
        "sha512" | "sha3-512" => 64,
        _ => return None,
    })
}
