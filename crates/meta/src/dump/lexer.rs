//! Words of a dump (`docs/spec/on-disk-format.md` 6.1).

/// A word, with the line (from 1) that it starts on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Token<'a> {
    Punct(char),
    Keyword(&'a str),
    Text(&'a str),
    Num(i64),
    U32(u32),
    U64(u64),
    End,
    Bad(&'a str),
}

pub(super) struct Lexer<'a> {
    rest: &'a str,
    line: u32,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { rest: text, line: 1 }
    }

    /// The next word and its line.
    pub(super) fn next(&mut self) -> (Token<'a>, u32) {
        self.skip_space();
        let Some(first) = self.rest.chars().next() else { return (Token::End, self.line) };
        let token = match first {
            '{' | '}' | '[' | ']' | ';' => Token::Punct(self.take(1).chars().next().unwrap_or(first)),
            '"' => self.text(),
            _ => self.word(),
        };
        (token, self.line)
    }

    fn skip_space(&mut self) {
        loop {
            let trimmed = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
            self.advance(self.rest.len() - trimmed.len());
            if !self.rest.starts_with('#') {
                return;
            }
            self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
    }

    fn advance(&mut self, n: usize) {
        self.take(n);
    }

    fn take(&mut self, n: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(n);
        self.line = self.line.saturating_add(taken.bytes().filter(|&b| b == b'\n').count() as u32);
        self.rest = rest;
        taken
    }

    fn text(&mut self) -> Token<'a> {
        let inner = &self.rest[1..];
        let end = inner.find(['"', '\n']).filter(|&e| inner[e..].starts_with('"'));
        match end {
            Some(n @ 1..=20) => Token::Text(&self.take(n + 2)[1..n + 1]),
            _ => Token::Bad(self.take(1)),
        }
    }

    fn word(&mut self) -> Token<'a> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let n = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        if n == 0 {
            let len = self.rest.chars().next().map_or(0, char::len_utf8);
            return Token::Bad(self.take(len));
        }
        let word = self.take(n);
        if let Some(hex) = word.strip_prefix("0x") {
            let all_hex = hex.bytes().all(|b| b.is_ascii_hexdigit());
            return match hex.len() {
                8 if all_hex => u32::from_str_radix(hex, 16).map_or(Token::Bad(word), Token::U32),
                16 if all_hex => u64::from_str_radix(hex, 16).map_or(Token::Bad(word), Token::U64),
                _ => Token::Bad(word),
            };
        }
        let digits = word.strip_prefix('-').unwrap_or(word);
        if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
            let short = digits.len() <= 19;
            return word.parse().ok().filter(|_| short).map_or(Token::Bad(word), Token::Num);
        }
        if word.starts_with(|c: char| c.is_ascii_digit()) { Token::Bad(word) } else { Token::Keyword(word) }
    }
}

impl std::fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Punct(c) => write!(f, "'{c}'"),
            Token::Keyword(w) | Token::Bad(w) => write!(f, "'{w}'"),
            Token::Text(t) => write!(f, "\"{t}\""),
            Token::Num(n) => write!(f, "the number {n}"),
            Token::U32(n) => write!(f, "0x{n:08X}"),
            Token::U64(n) => write!(f, "0x{n:016X}"),
            Token::End => f.write_str("the end of the file"),
        }
    }
}
