//! Reading a dump (`docs/spec/on-disk-format.md` 6.2).

use super::lexer::{Lexer, Token};
use crate::layout::{AlShape, Geometry};
use crate::superblock::{DeviceFlags, Format, PeerFlags, PeerRecord, Placement, Superblock, Version};
use std::fmt;
use units::{Generation, NodeId, NodeMask, Sector};

/// `count` times the same 64 bits of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// How often, at least 1.
    pub count: u64,
    /// The bits, lowest first.
    pub value: u64,
}

/// A parsed dump. It has no positions: they are those of the device that it is restored to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dump {
    /// The superblock, with positions 0.
    pub superblock: Superblock,
    /// The bits of each slot, from bit 0.
    pub slots: Vec<Vec<Run>>,
}

/// Where and why a dump is not one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// Line, from 1.
    pub line: u32,
    /// What was expected, what was there.
    pub message: String,
}

/// Parses the whole text of a dump.
pub fn parse(text: &str) -> Result<Dump, ParseError> {
    let mut p = Parser::new(text);
    let (dump, is_unclean) = p.whole()?;
    match is_unclean {
        Some(refusal) => Err(refusal),
        None => Ok(dump),
    }
}

/// The same of a dump that is only looked at: it may be one of unclean metadata, which is not to be restored
/// (`is_unclean`): what is hot in the activity log is not in it.
pub fn parse_to_look(text: &str) -> Result<(Dump, bool), ParseError> {
    let (dump, refusal) = Parser::new(text).whole()?;
    Ok((dump, refusal.is_some()))
}

/// Does a text begin as a dump does?
#[must_use]
pub fn is_one(text: &str) -> bool {
    let mut p = Parser::new(text);
    p.keyword("version").is_ok() && p.text().is_ok()
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
    line: u32,
    /// Line of the word taken last.
    taken: u32,
}

struct Common {
    size: Sector,
    bytes_per_bit: u32,
    device_uuid: u64,
    max_bio: u32,
    al: AlShape,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        let mut lexer = Lexer::new(text);
        let (token, line) = lexer.next();
        Parser { lexer, token, line, taken: line }
    }

    /// The dump, and why it must not be restored, if so.
    fn whole(&mut self) -> Result<(Dump, Option<ParseError>), ParseError> {
        self.keyword("version")?;
        let version = match self.text()? {
            "v08" => Version::V08,
            "v09" => Version::V09,
            other => return Err(self.error(format!("version \"{other}\" is not \"v08\" or \"v09\""))),
        };
        self.punct(';')?;
        let mut refusal = None;
        if let Token::Keyword(w) = self.token
            && w.starts_with("This_is_an_unclean")
        {
            refusal =
                Some(self.error("this is a dump of unclean metadata: run apply-al, dump again, then restore".into()));
            while !matches!(self.token, Token::Keyword("uuid" | "max-peers") | Token::End) {
                self.advance();
            }
        }
        let dump = match version {
            Version::V08 => self.body_v08(),
            Version::V09 => self.body_v09(),
        };
        let dump = match (dump, &refusal) {
            (Ok(dump), _) => dump,
            (Err(_), Some(refusal)) => return Err(refusal.clone()),
            (Err(e), None) => return Err(e),
        };
        if self.token != Token::End {
            return Err(self.expected("end of file"));
        }
        Ok((dump, refusal))
    }

    fn body_v08(&mut self) -> Result<Dump, ParseError> {
        self.keyword("uuid")?;
        self.punct('{')?;
        let [current, bitmap, h1, h2] = [self.u64_end()?, self.u64_end()?, self.u64_end()?, self.u64_end()?];
        self.keyword("flags")?;
        let flags = self.u32_end()?;
        self.punct('}')?;
        let common = self.common()?;
        if common.bytes_per_bit != 4096 {
            return Err(self.error(format!("bm-byte-per-bit {}: v08 metadata has 4096", common.bytes_per_bit)));
        }
        let mut sb = blank(Format::V08, Geometry::V08.with_al(common.al), &common);
        sb.current = Generation(current);
        sb.peers[Superblock::V08_PEER].slot = Some(0);
        sb.peers[Superblock::V08_PEER].bitmap_uuid = Generation(bitmap);
        sb.history[0] = Generation(h1);
        sb.history[1] = Generation(h2);
        sb.put_v08_flags(flags);
        self.keyword("bm")?;
        Ok(Dump { superblock: sb, slots: vec![self.bits()?] })
    }

    fn body_v09(&mut self) -> Result<Dump, ParseError> {
        let slots: u32 = self.field("max-peers")?;
        let node_id: i64 = self.field("node-id")?;
        let node_id = match node_id {
            -1 => None,
            n => {
                let id = u8::try_from(n).ok().and_then(NodeId::new);
                Some(id.ok_or_else(|| self.error(format!("node-id {n}: must be -1 to 31")))?)
            }
        };
        self.keyword("current-uuid")?;
        let current = Generation(self.u64_end()?);
        self.keyword("flags")?;
        let flags = DeviceFlags(self.u32_end()?);
        let mut members = NodeMask::default();
        if self.token == Token::Keyword("members") {
            self.keyword("members")?;
            let mask = self.u64_end()?;
            let mask = u32::try_from(mask);
            members = NodeMask(mask.map_err(|_| self.error("members: node ids are 0 to 31".into()))?);
        }
        let peers = self.peers()?;
        self.keyword("history-uuids")?;
        self.punct('{')?;
        let mut history = [Generation::NONE; 32];
        for g in &mut history {
            *g = Generation(self.u64_end()?);
        }
        self.punct('}')?;
        let common = self.common()?;
        let geometry = Geometry::new(slots, common.bytes_per_bit, common.al);
        let geometry = geometry.map_err(|e| self.error(e.to_string()))?;
        let mut sb = blank(Format::V09, geometry, &common);
        (sb.node_id, sb.current, sb.flags) = (node_id, current, flags);
        (sb.members, sb.peers, sb.history) = (members, peers, history);
        let mut bitmaps = Vec::new();
        for slot in 0..slots {
            self.keyword("bitmap")?;
            if self.index()? != i64::from(slot) {
                return Err(self.error(format!("bitmap[{slot}] must come here: bitmaps are in ascending order")));
            }
            bitmaps.push(self.bits()?);
        }
        Ok(Dump { superblock: sb, slots: bitmaps })
    }

    fn peers(&mut self) -> Result<[PeerRecord; NodeId::COUNT], ParseError> {
        let mut peers = [None; NodeId::COUNT];
        for _ in 0..NodeId::COUNT {
            self.keyword("peer")?;
            let index = self.index()?;
            let slot = usize::try_from(index).ok().and_then(|i| peers.get_mut(i)).filter(|p| p.is_none());
            let Some(slot) = slot else {
                return Err(self.error(format!("peer[{index}]: each index from 0 to 31 must occur once")));
            };
            *slot = Some(self.peer()?);
        }
        Ok(peers.map(Option::unwrap_or_default))
    }

    fn peer(&mut self) -> Result<PeerRecord, ParseError> {
        self.punct('{')?;
        let slot: i64 = self.field("bitmap-index")?;
        let slot = match slot {
            -1 => None,
            0..=31 => Some(slot as u8),
            _ => return Err(self.error(format!("bitmap-index {slot}: must be -1 to 31"))),
        };
        self.keyword("bitmap-uuid")?;
        let bitmap_uuid = Generation(self.u64_end()?);
        self.keyword("bitmap-dagtag")?;
        let bitmap_dagtag = self.u64_end()?;
        self.keyword("flags")?;
        let flags = PeerFlags(self.u32_end()?);
        self.punct('}')?;
        Ok(PeerRecord { bitmap_uuid, bitmap_dagtag, flags, slot })
    }

    fn common(&mut self) -> Result<Common, ParseError> {
        let size: u64 = self.field("la-size-sect")?;
        let bytes_per_bit: u32 = self.field("bm-byte-per-bit")?;
        self.keyword("device-uuid")?;
        let device_uuid = self.u64_end()?;
        let max_bio: u32 = self.field("la-peer-max-bio-size")?;
        let stripes: u32 = self.field("al-stripes")?;
        let stripe_blocks: u32 = self.field("al-stripe-size-4k")?;
        let al = AlShape::new(stripes, stripe_blocks).map_err(|e| self.error(e.to_string()))?;
        Ok(Common { size: Sector(size), bytes_per_bit, device_uuid, max_bio, al })
    }

    fn bits(&mut self) -> Result<Vec<Run>, ParseError> {
        self.punct('{')?;
        let mut runs = Vec::new();
        while self.token != Token::Punct('}') {
            let count = match self.token {
                Token::Num(n) => {
                    let n = u64::try_from(n).ok().filter(|&n| n > 0);
                    let n = n.ok_or_else(|| self.expected("a number above 0"))?;
                    self.advance();
                    self.keyword("times")?;
                    n
                }
                _ => 1,
            };
            runs.push(Run { count, value: self.u64_end()? });
        }
        self.punct('}')?;
        Ok(runs)
    }

    fn advance(&mut self) -> Token<'a> {
        self.taken = self.line;
        let (token, line) = self.lexer.next();
        self.line = line;
        std::mem::replace(&mut self.token, token)
    }

    fn keyword(&mut self, word: &str) -> Result<(), ParseError> {
        if self.token != Token::Keyword(word) {
            return Err(self.expected(&format!("keyword '{word}'")));
        }
        self.advance();
        Ok(())
    }

    fn punct(&mut self, c: char) -> Result<(), ParseError> {
        if self.token != Token::Punct(c) {
            let name = match c {
                ';' => "semicolon (;)".to_owned(),
                _ => format!("'{c}'"),
            };
            return Err(self.expected(&name));
        }
        self.advance();
        Ok(())
    }

    fn text(&mut self) -> Result<&'a str, ParseError> {
        let Token::Text(t) = self.token else { return Err(self.expected("a quoted string of up to 20 characters")) };
        self.advance();
        Ok(t)
    }

    fn number<T: TryFrom<i64>>(&mut self) -> Result<T, ParseError> {
        let Token::Num(n) = self.token else { return Err(self.expected("a number")) };
        let value = T::try_from(n).map_err(|_| ParseError { line: self.line, message: format!("{n} is out of range") });
        self.advance();
        value
    }

    fn field<T: TryFrom<i64>>(&mut self, keyword: &str) -> Result<T, ParseError> {
        self.keyword(keyword)?;
        let value = self.number()?;
        self.punct(';')?;
        Ok(value)
    }

    fn index(&mut self) -> Result<i64, ParseError> {
        self.punct('[')?;
        let n = self.number()?;
        self.punct(']')?;
        Ok(n)
    }

    fn u64_end(&mut self) -> Result<u64, ParseError> {
        let Token::U64(n) = self.token else { return Err(self.expected("a 16-digit hex number")) };
        self.advance();
        self.punct(';')?;
        Ok(n)
    }

    fn u32_end(&mut self) -> Result<u32, ParseError> {
        let Token::U32(n) = self.token else { return Err(self.expected("an 8-digit hex number")) };
        self.advance();
        self.punct(';')?;
        Ok(n)
    }

    /// An error at the word that comes next.
    fn expected(&self, what: &str) -> ParseError {
        ParseError { line: self.line, message: format!("{what} expected, found {}", self.token) }
    }

    /// An error at the word taken last.
    fn error(&self, message: String) -> ParseError {
        ParseError { line: self.taken, message }
    }
}

fn blank(format: Format, geometry: Geometry, common: &Common) -> Superblock {
    Superblock {
        format,
        effective_size: common.size,
        current: Generation::NONE,
        members: NodeMask::default(),
        device_uuid: common.device_uuid,
        flags: DeviceFlags::default(),
        al_extents: 257,
        max_bio: common.max_bio,
        node_id: None,
        geometry,
        placement: Placement::default(),
        peers: [PeerRecord::default(); NodeId::COUNT],
        history: [Generation::NONE; 32],
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parse error in line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for ParseError {}
