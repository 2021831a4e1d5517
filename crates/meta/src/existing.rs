//! Is there data on a device that create-md would destroy? (`docs/spec/on-disk-format.md` 1.12)

use crate::bytes::{be32, be64, le16, le32, le64};
use crate::layout::{Layout, MetaDisk};
use std::fmt;

/// Bytes at the start of the metadata device that are looked at: 68 KiB.
pub const PROBE_LEN: usize = 69632;

/// What was recognised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signature {
    /// Swap space.
    Swap,
    /// LVM2 physical volume.
    Lvm2,
    /// ext2: without a journal.
    Ext2,
    /// ext3, ext4: with a journal.
    Ext3,
    /// XFS.
    Xfs,
    /// JFS.
    Jfs,
    /// reiserfs.
    Reiser,
    /// Not all zero, and nothing known.
    SomeData,
}

/// What was found, and how large it says it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Existing {
    /// What it is.
    pub signature: Signature,
    /// Its size in bytes, where its header tells.
    pub size: Option<u64>,
}

/// What create-md does about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Ask for confirmation.
    Ask,
    /// Refuse; only `--ignore-sanity-checks` overrides it.
    Refuse,
}

/// Looks at the first bytes of a device ([`PROBE_LEN`], fewer if it is smaller). `None` if all are zero.
#[must_use]
pub fn detect(head: &[u8]) -> Option<Existing> {
    if head.iter().all(|&b| b == 0) {
        return None;
    }
    let mut padded = vec![0; PROBE_LEN.max(head.len())];
    padded[..head.len()].copy_from_slice(head);
    let b = &padded[..];
    let (signature, size) = recognise(b);
    Some(Existing { signature, size })
}

fn recognise(b: &[u8]) -> (Signature, Option<u64>) {
    let is = |at: usize, text: &[u8]| &b[at..at + text.len()] == text;
    let times = |blocks: u64, size: u64| Some(blocks.saturating_mul(size));
    if [4086, 8182].iter().any(|&at| is(at, b"SWAP-SPACE") || is(at, b"SWAPSPACE2")) {
        (Signature::Swap, None)
    } else if is(536, b"LVM2") {
        (Signature::Lvm2, None)
    } else if le16(b, 1080) == 0xEF53 {
        let block = match le32(b, 1048) {
            0 => 1024,
            1 => 2048,
            _ => 4096,
        };
        let journal = le32(b, 1116) & 4 != 0;
        let signature = if journal { Signature::Ext3 } else { Signature::Ext2 };
        (signature, times(u64::from(le32(b, 1028)), block))
    } else if be32(b, 0) == 0x5846_5342 {
        (Signature::Xfs, times(be64(b, 8), u64::from(be32(b, 4))))
    } else if is(32768, b"JFS1") {
        (Signature::Jfs, times(le64(b, 32776), u64::from(le32(b, 32792))))
    } else if is(65588, b"ReIsErFs") || is(65588, b"ReIsEr2Fs") {
        (Signature::Reiser, times(u64::from(le32(b, 65536)), u64::from(le16(b, 65580))))
    } else {
        (Signature::SomeData, None)
    }
}

impl Existing {
    /// What to do about it when metadata is to be written with this layout.
    #[must_use]
    pub fn verdict(&self, layout: &Layout) -> Verdict {
        if self.signature == Signature::SomeData {
            return Verdict::Ask;
        }
        let Some(size) = self.size else { return Verdict::Refuse };
        let fits = size.div_ceil(1024) <= layout.capacity().0 / 2;
        if layout.kind() == MetaDisk::Internal && fits { Verdict::Ask } else { Verdict::Refuse }
    }

    /// What create-md prints about it, in the reference's words, up to the question or including the refusal.
    #[must_use]
    pub fn report(&self, layout: &Layout) -> String {
        let mut out = format!(
            "md_offset {}\nal_offset {}\nbm_offset {}\n\nFound {}\n",
            layout.superblock_at().0,
            layout.al_at().0,
            layout.bitmap_at().0,
            self.signature
        );
        if self.signature == Signature::SomeData {
            return out + "\n ==> This might destroy existing data! <==\n";
        }
        if layout.kind() != MetaDisk::Internal {
            return out + "\nThis would corrupt existing data.\n" + DESTROY_FIRST;
        }
        if let Some(size) = self.size {
            out += &format!("{:12} kB data area apparently used\n", size.div_ceil(1024));
        }
        out += &format!("{:12} kB left usable by current configuration\n", layout.capacity().0 / 2);
        if self.signature == Signature::Lvm2 {
            out += "Could not determine the size of the actually used data area.\n\n";
        }
        match (self.verdict(layout), self.size) {
            (Verdict::Ask, _) => out + PROBABLY_UNUSED,
            (Verdict::Refuse, None) => out + TRUNCATED + DESTROY_FIRST,
            (Verdict::Refuse, Some(_)) => out + "\n" + TRUNCATED + WAYS_OUT,
        }
    }
}

const TRUNCATED: &str = "Device size would be truncated, which
would corrupt data and result in
'access beyond end of device' errors.
";

const DESTROY_FIRST: &str = "If you want me to do this, you need to zero out the first part
of the device (destroy the content).
You should be very sure that you mean it.
Operation refused.

";

const WAYS_OUT: &str = "You need to either
   * use external meta data (recommended)
   * shrink that filesystem first
   * zero out the device (destroy the filesystem)
Operation refused.

";

const PROBABLY_UNUSED: &str = "
Even though it looks like this would place the new meta data into
unused space, you still need to confirm, as this is only a guess.
";

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Signature::Swap => "swap space signature",
            Signature::Lvm2 => "LVM2 physical volume signature",
            Signature::Ext2 => "ext2 filesystem",
            Signature::Ext3 => "ext3 filesystem",
            Signature::Xfs => "xfs filesystem",
            Signature::Jfs => "JFS filesystem",
            Signature::Reiser => "reiser filesystem",
            Signature::SomeData => "some data",
        })
    }
}
