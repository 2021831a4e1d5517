//! Walks over the tokens of one statement.

use crate::address::{Address, Family};
use crate::document::Named;
use crate::error::{Error, ErrorKind, Span};
use crate::lexer::Token;
use crate::tree::{Body, Statement};

pub(super) struct Cursor<'a> {
    statement: &'a Statement,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Behind the first word.
    pub(super) fn after_keyword(statement: &'a Statement) -> Cursor<'a> {
        Cursor { statement, at: 1 }
    }

    pub(super) fn peek(&self) -> Option<&'a Token> {
        self.statement.tokens.get(self.at)
    }

    /// The place of the next token, or of the last one at the end.
    pub(super) fn span(&self) -> &'a Span {
        let tokens = &self.statement.tokens;
        &tokens.get(self.at).unwrap_or(&tokens[tokens.len() - 1]).span
    }

    pub(super) fn eat_keyword(&mut self, keyword: &str) -> bool {
        let hit = self.peek().is_some_and(|t| t.is_keyword(keyword));
        self.at += usize::from(hit);
        hit
    }

    pub(super) fn eat_mark(&mut self, mark: char) -> bool {
        let hit = self.peek().is_some_and(|t| t.is_mark(mark));
        self.at += usize::from(hit);
        hit
    }

    pub(super) fn optional_word(&mut self) -> Option<Named> {
        let token = self.peek()?;
        let text = token.word()?.to_owned();
        self.at += 1;
        Some(Named { text, span: token.span.clone() })
    }

    /// A word; `what` says what it is for.
    pub(super) fn word(&mut self, what: &str) -> Result<Named, Error> {
        let found = self.peek();
        self.optional_word().ok_or_else(|| {
            let found = found.map_or("the end of the statement".to_owned(), Token::shown);
            Error::new(ErrorKind::Syntax, self.span(), format!("{what} is expected here, not {found}"))
        })
    }

    /// All remaining words, at least one.
    pub(super) fn words(&mut self, what: &str) -> Result<Vec<Named>, Error> {
        let mut words = vec![self.word(what)?];
        while let Some(word) = self.optional_word() {
            words.push(word);
        }
        Ok(words)
    }

    /// A plain number of up to 8 digits without suffix.
    pub(super) fn integer(&mut self, what: &str, max: u32) -> Result<u32, Error> {
        let word = self.word(what)?;
        let digits = word.text.len() <= 8 && word.text.bytes().all(|b| b.is_ascii_digit());
        match word.text.parse::<u32>() {
            Ok(n) if digits && n <= max => Ok(n),
            Ok(n) if digits => {
                Err(Error::new(ErrorKind::Range, &word.span, format!("{what} {n} is above the maximum {max}")))
            }
            _ => {
                Err(Error::new(ErrorKind::Syntax, &word.span, format!("{what} must be a number, not `{}`", word.text))
                    .help("units are not possible here"))
            }
        }
    }

    /// `[ipv4|ipv6|ssocks|sdp|sci] IP:PORT`, IPv6 in brackets.
    pub(super) fn address(&mut self) -> Result<Address, Error> {
        let span = self.span().clone();
        let family = [
            ("ipv4", Family::Ipv4),
            ("ipv6", Family::Ipv6),
            ("ssocks", Family::Ssocks),
            ("sci", Family::Ssocks),
            ("sdp", Family::Sdp),
        ];
        let named = family.into_iter().find(|(word, _)| self.eat_keyword(word)).map(|(_, family)| family);
        let family = named.unwrap_or(Family::Ipv4);
        let ip = if self.eat_mark('[') { self.bracketed(&span)? } else { self.word("an IP address")?.text };
        if family != Family::Ipv6 && ip.contains(':') {
            return Err(Error::new(ErrorKind::Address, &span, format!("[{ip}] is an IPv6 address"))
                .help(format!("write the word ipv6 in front of it: `ipv6 [{ip}]:PORT`")));
        }
        // A look-alike with a wrong last part is reported before the missing port.
        if Address::parse(family, &ip, 1).is_none() {
            let error = Error::new(ErrorKind::Address, &span, format!("`{ip}` is not an {family} address"));
            return Err(error.help("only literal IP addresses are possible, since a name could change its meaning"));
        }
        if !self.eat_mark(':') {
            return Err(Error::new(ErrorKind::Address, &span, format!("the port is missing behind the address {ip}"))
                .help(format!("write `{ip}:PORT`, for example port 7789")));
        }
        let port = self.port()?;
        Ok(Address::parse(family, &ip, port).expect("has been tried with port 1"))
    }

    /// Does an address with port follow, and not a name?
    pub(super) fn at_address(&self) -> bool {
        let is_mark = |ahead: usize, mark| self.statement.tokens.get(self.at + ahead).is_some_and(|t| t.is_mark(mark));
        is_mark(1, ':') || is_mark(1, '[') || is_mark(2, ':')
    }

    pub(super) fn port(&mut self) -> Result<u16, Error> {
        let span = self.span().clone();
        match self.integer("the port", 65_535)? {
            0 => Err(Error::new(ErrorKind::Range, &span, "port 0 is not possible").help("the range is 1 to 65535")),
            port => Ok(u16::try_from(port).expect("bounded above")),
        }
    }

    fn bracketed(&mut self, span: &Span) -> Result<String, Error> {
        let mut text = String::new();
        while !self.eat_mark(']') {
            match self.peek().map(|t| (t, t.word())) {
                Some((_, Some(word))) => text.push_str(word),
                Some((token, None)) if token.is_mark(':') => text.push(':'),
                _ => return Err(Error::new(ErrorKind::Syntax, span, "the closing `]` of this address is missing")),
            }
            self.at += 1;
        }
        Ok(text)
    }

    /// Nothing may follow, and no block.
    pub(super) fn end(&self) -> Result<(), Error> {
        self.no_more_words()?;
        match &self.statement.body {
            None => Ok(()),
            Some(_) => {
                let last = &self.statement.tokens[self.statement.tokens.len() - 1];
                Err(Error::new(ErrorKind::Syntax, &last.span, format!("no block can follow {}", last.shown()))
                    .help("end the statement with `;`"))
            }
        }
    }

    /// A block must follow, and nothing before it.
    pub(super) fn body(&self) -> Result<&'a Body, Error> {
        self.no_more_words()?;
        self.statement.body.as_ref().ok_or_else(|| {
            let last = &self.statement.tokens[self.statement.tokens.len() - 1];
            Error::new(ErrorKind::Syntax, &last.span, format!("a block `{{ … }}` must follow {}", last.shown()))
        })
    }

    pub(super) fn has_body(&self) -> bool {
        self.statement.body.is_some()
    }

    fn no_more_words(&self) -> Result<(), Error> {
        match self.peek() {
            None => Ok(()),
            Some(token) => {
                let message = format!("a semicolon is missing before {}", token.shown());
                Err(Error::new(ErrorKind::Syntax, &token.span, message)
                    .help("or one of the words belongs into double quotes"))
            }
        }
    }
}
