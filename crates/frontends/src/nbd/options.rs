//! The options of the handshake: what each one asks and how it is answered.

use super::Exports;
use super::proto::*;
use crate::Export;

/// Longest option data in bytes that is looked at. A name is at most 4096.
pub(super) const OPTION_MAX: usize = 16 << 10;
const NAME_MAX: usize = 4096;

/// The name of the export for which the client selected `base:allocation`.
pub(super) type SelectedContext = Option<String>;

/// One complete option.
pub(super) struct OptionRequest<'a> {
    pub(super) number: u32,
    pub(super) data: &'a [u8],
    pub(super) exports: &'a dyn Exports,
}

/// Appends the server's first bytes.
pub(super) fn greeting(out: &mut Vec<u8>) {
    out.extend_from_slice(&NBDMAGIC.to_be_bytes());
    out.extend_from_slice(&IHAVEOPT.to_be_bytes());
    out.extend_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
}

/// Appends one option reply.
pub(super) fn reply(option: u32, kind: u32, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&REP_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    // Replies are names of exports and a few fixed bytes.
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

impl<'a> OptionRequest<'a> {
    pub(super) fn reply(&self, kind: u32, data: &[u8], out: &mut Vec<u8>) {
        reply(self.number, kind, data, out);
    }

    pub(super) fn ack(&self, out: &mut Vec<u8>) {
        self.reply(REP_ACK, b"", out);
    }

    /// `EXPORT_NAME`: the data is the name.
    pub(super) fn export_name(&self) -> Option<&'a Export> {
        self.find(self.data)
    }

    /// The answer to `EXPORT_NAME`, which has no reply header.
    pub(super) fn transmission_info(&self, export: &Export, structured: bool, no_zeroes: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(&export.size.to_be_bytes());
        out.extend_from_slice(&transmission_flags(export, structured).to_be_bytes());
        if !no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
    }

    /// `LIST`.
    pub(super) fn list(&self, out: &mut Vec<u8>) {
        if !self.data.is_empty() {
            return self.reply(REP_ERR_INVALID, b"LIST takes no data", out);
        }
        self.exports.for_each(&mut |export| {
            let mut entry = (export.name.len() as u32).to_be_bytes().to_vec();
            entry.extend_from_slice(export.name.as_bytes());
            self.reply(REP_SERVER, &entry, out);
        });
        self.ack(out);
    }

    /// `INFO` and `GO`: describes the export and acknowledges, or says why not.
    pub(super) fn info(&self, structured: bool, out: &mut Vec<u8>) -> Option<&'a Export> {
        let Some((name, wanted)) = self.parse_info() else {
            self.reply(REP_ERR_INVALID, b"malformed INFO or GO", out);
            return None;
        };
        let Some(export) = self.find(name) else {
            self.reply(REP_ERR_UNKNOWN, b"no export of that name", out);
            return None;
        };
        let mut info = [0; 12];
        info[..2].copy_from_slice(&INFO_EXPORT.to_be_bytes());
        info[2..10].copy_from_slice(&export.size.to_be_bytes());
        info[10..].copy_from_slice(&transmission_flags(export, structured).to_be_bytes());
        self.reply(REP_INFO, &info, out);
        let wants = |kind: u16| wanted.chunks_exact(2).any(|bytes| be16(bytes, 0) == kind);
        if wants(INFO_NAME) {
            let mut info = INFO_NAME.to_be_bytes().to_vec();
            info.extend_from_slice(export.name.as_bytes());
            self.reply(REP_INFO, &info, out);
        }
        // Unasked too: a client that did not ask may still look, and must not guess a minimum of one byte.
        let mut info = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
        for size in [export.block.min, export.block.preferred, export.block.max] {
            info.extend_from_slice(&size.to_be_bytes());
        }
        self.reply(REP_INFO, &info, out);
        self.ack(out);
        Some(export)
    }

    /// `LIST_META_CONTEXT`: no query lists everything, `base:` everything of that namespace.
    pub(super) fn list_contexts(&self, out: &mut Vec<u8>) {
        self.contexts(
            |queries| queries.is_empty() || queries.iter().any(|q| matches!(*q, b"base:" | BASE_ALLOCATION)),
            out,
        );
    }

    /// `SET_META_CONTEXT`: replaces what was selected before, also by nothing and also when it fails.
    pub(super) fn set_contexts(&self, out: &mut Vec<u8>) -> SelectedContext {
        self.contexts(|queries| queries.contains(&BASE_ALLOCATION), out)
    }

    fn contexts(&self, matches: impl Fn(&[&[u8]]) -> bool, out: &mut Vec<u8>) -> SelectedContext {
        let Some((name, queries)) = self.parse_queries() else {
            self.reply(REP_ERR_INVALID, b"malformed metadata context query", out);
            return None;
        };
        let Some(export) = self.find(name) else {
            self.reply(REP_ERR_UNKNOWN, b"no export of that name", out);
            return None;
        };
        let selected = matches(&queries);
        if selected {
            // While listing, the number is reserved and must be ignored by the client.
            let id = if self.number == OPT_SET_META_CONTEXT { BASE_ALLOCATION_ID } else { 0 };
            let mut context = id.to_be_bytes().to_vec();
            context.extend_from_slice(BASE_ALLOCATION);
            self.reply(REP_META_CONTEXT, &context, out);
        }
        self.ack(out);
        selected.then(|| export.name.clone())
    }

    /// Name, then a list of information types (as raw bytes).
    fn parse_info(&self) -> Option<(&'a [u8], &'a [u8])> {
        let (name, rest) = counted(self.data)?;
        let (count, wanted) = rest.split_at_checked(2)?;
        (wanted.len() == 2 * usize::from(be16(count, 0))).then_some((name, wanted))
    }

    /// Export name, then queries.
    fn parse_queries(&self) -> Option<(&'a [u8], Vec<&'a [u8]>)> {
        let (name, rest) = counted(self.data)?;
        let (count, mut rest) = rest.split_at_checked(4)?;
        // Every query takes at least four bytes of an option of limited length, which bounds the list.
        let mut queries = Vec::new();
        for _ in 0..be32(count, 0) {
            let (query, behind) = counted(rest)?;
            queries.push(query);
            rest = behind;
        }
        rest.is_empty().then_some((name, queries))
    }

    fn find(&self, name: &[u8]) -> Option<&'a Export> {
        if name.len() > NAME_MAX {
            return None;
        }
        let name = std::str::from_utf8(name).ok()?;
        self.exports.find(name).or_else(|| if name.is_empty() { self.exports.default_export() } else { None })
    }
}

/// Splits a string with a 32-bit length in front from what follows.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_at_checked(4)?;
    rest.split_at_checked(be32(len, 0) as usize)
}
