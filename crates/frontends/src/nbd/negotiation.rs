//! The handshake as a state machine: client flags, then options until one of them starts the transmission.

use super::Exports;
use super::options::{OPTION_MAX, OptionRequest, SelectedContext};
use super::proto::*;
use super::session::{Progress, Transmission};
use crate::Export;

/// A client that haggles longer than this is closed.
const OPTIONS_MAX: u32 = 1024;
/// A too long option is skipped up to this many bytes; beyond it the connection is closed.
const SKIP_MAX: u32 = 1 << 20;

/// What has been agreed so far.
#[derive(Debug, Default)]
pub(super) struct Negotiation {
    flags: Option<u16>,
    options: u32,
    structured: bool,
    context: SelectedContext,
}

impl Negotiation {
    pub(super) fn advance(&mut self, input: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Progress {
        let Some(flags) = self.flags else {
            return self.client_flags(input);
        };
        if input.len() < OPTION_HEADER {
            return Progress::NeedMore(OPTION_HEADER);
        }
        if be64(input, 0) != IHAVEOPT {
            return Progress::Close(0, Some("an option does not start with the option magic"));
        }
        let (number, len) = (be32(input, 8), be32(input, 12));
        let n = OPTION_HEADER + len as usize;
        if len as usize <= OPTION_MAX && input.len() < n {
            return Progress::NeedMore(n);
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Progress::Close(0, Some("too many options"));
        }
        if len as usize > OPTION_MAX {
            return too_big(number, len, out);
        }
        let option = OptionRequest { number, data: &input[OPTION_HEADER..n], exports };
        if flags & FLAG_FIXED_NEWSTYLE == 0 && number != OPT_EXPORT_NAME {
            return Progress::Close(n, Some("an option other than EXPORT_NAME without fixed newstyle"));
        }
        self.answer(&option, n, flags & FLAG_NO_ZEROES != 0, out)
    }

    fn client_flags(&mut self, input: &[u8]) -> Progress {
        if input.len() < 4 {
            return Progress::NeedMore(4);
        }
        match be32(input, 0) {
            flags @ 0..=3 => {
                self.flags = Some(flags as u16);
                Progress::Consumed(4)
            }
            _ => Progress::Close(4, Some("unknown client flags")),
        }
    }

    fn answer(&mut self, option: &OptionRequest<'_>, n: usize, no_zeroes: bool, out: &mut Vec<u8>) -> Progress {
        match option.number {
            OPT_EXPORT_NAME => match option.export_name() {
                Some(export) => {
                    option.transmission_info(export, self.structured, no_zeroes, out);
                    return Progress::Transmission(n, self.transmission(export));
                }
                None => return Progress::Close(n, Some("no export of that name")),
            },
            OPT_ABORT => {
                option.ack(out);
                return Progress::Close(n, None);
            }
            OPT_GO => {
                if let Some(export) = option.info(self.structured, out) {
                    return Progress::Transmission(n, self.transmission(export));
                }
            }
            OPT_INFO => {
                option.info(self.structured, out);
            }
            OPT_LIST => option.list(out),
            OPT_STARTTLS => option.reply(REP_ERR_POLICY, b"this server does not offer TLS", out),
            OPT_STRUCTURED_REPLY if option.data.is_empty() && !self.structured => {
                self.structured = true;
                option.ack(out);
            }
            OPT_STRUCTURED_REPLY => option.reply(REP_ERR_INVALID, b"structured replies take no data, once", out),
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT if !self.structured => {
                option.reply(REP_ERR_INVALID, b"negotiate structured replies first", out);
            }
            OPT_LIST_META_CONTEXT => option.list_contexts(out),
            OPT_SET_META_CONTEXT => self.context = option.set_contexts(out),
            _ => option.reply(REP_ERR_UNSUP, b"", out),
        }
        Progress::Consumed(n)
    }

    fn transmission(&self, export: &Export) -> Transmission {
        let base_allocation = self.structured && self.context.as_deref() == Some(export.name.as_str());
        Transmission { export: export.clone(), structured: self.structured, base_allocation }
    }
}

fn too_big(number: u32, len: u32, out: &mut Vec<u8>) -> Progress {
    if len > SKIP_MAX || number == OPT_EXPORT_NAME {
        return Progress::Close(OPTION_HEADER, Some("an option is too long"));
    }
    super::options::reply(number, REP_ERR_TOO_BIG, b"the option is too long", out);
    Progress::Skip { n: OPTION_HEADER, payload: len }
}
