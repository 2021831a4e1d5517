//! Bytes to words, as `docs/spec/config-and-cli.md` 1.2 defines them.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Span};

/// Longest bare word.
const MAX_WORD: usize = 128;
/// Longest quoted string.
const MAX_STRING: usize = 255;
/// Stands for bytes that are not UTF-8; harmless in comments, refused elsewhere.
const NOT_UTF8: char = '\u{fffd}';

/// What a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lexeme {
    /// A bare or quoted word, without quotes and escapes.
    Word { text: String, quoted: bool },
    /// One of `{ } ; : [ ]`.
    Mark(char),
}

/// A lexeme and its place.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) lexeme: Lexeme,
    pub(crate) span: Span,
}

impl Token {
    pub(crate) fn is_mark(&self, mark: char) -> bool {
        self.lexeme == Lexeme::Mark(mark)
    }

    /// The text of a word, `None` for a mark.
    pub(crate) fn word(&self) -> Option<&str> {
        match &self.lexeme {
            Lexeme::Word { text, .. } => Some(text),
            Lexeme::Mark(_) => None,
        }
    }

    /// Is it this word, written without quotes?
    pub(crate) fn is_keyword(&self, keyword: &str) -> bool {
        matches!(&self.lexeme, Lexeme::Word { text, quoted: false } if text == keyword)
    }

    /// For messages.
    pub(crate) fn shown(&self) -> String {
        match &self.lexeme {
            Lexeme::Word { text, .. } => format!("`{text}`"),
            Lexeme::Mark(mark) => format!("`{mark}`"),
        }
    }
}

/// Reads one file token by token.
pub(crate) struct Lexer<'a> {
    chars: std::iter::Peekable<std::str::Chars<'a>>,
    file: Arc<str>,
    line: u32,
    column: u32,
    in_bracket: bool,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(file: Arc<str>, text: &'a str) -> Lexer<'a> {
        Lexer { chars: text.chars().peekable(), file, line: 1, column: 1, in_bracket: false }
    }

    /// The place where reading stopped.
    pub(crate) fn here(&self) -> Span {
        Span { file: self.file.clone(), line: self.line, column: self.column, length: 1 }
    }

    /// The next token, `None` at the end of the file.
    pub(crate) fn next_token(&mut self) -> Result<Option<Token>, Error> {
        self.skip_blanks();
        let mut span = self.here();
        let Some(&c) = self.chars.peek() else { return Ok(None) };
        let lexeme = match c {
            '{' | '}' | ';' | ':' | '[' | ']' => {
                self.advance();
                self.in_bracket = c == '[' || (self.in_bracket && c == ':');
                return Ok(Some(Token { lexeme: Lexeme::Mark(c), span }));
            }
            '"' => self.quoted(&span)?,
            c if self.is_word_char(c) => self.bare(&span)?,
            NOT_UTF8 => return Err(Error::new(ErrorKind::Lexer, &span, "this is not UTF-8 text")),
            c => {
                return Err(Error::new(ErrorKind::Lexer, &span, format!("`{c}` cannot stand in a bare word"))
                    .help("put the whole value into double quotes"));
            }
        };
        span.length = if self.line == span.line { self.column - span.column } else { 1 };
        Ok(Some(Token { lexeme, span }))
    }

    fn advance(&mut self) -> Option<char> {
        let c = self.chars.next()?;
        if c == '\n' {
            self.line += 1;
            self.column = 1;
        } else {
            self.column += 1;
        }
        Some(c)
    }

    fn skip_blanks(&mut self) {
        while let Some(&c) = self.chars.peek() {
            match c {
                ' ' | '\t' | '\r' | '\n' => {
                    self.advance();
                }
                '#' => while self.chars.peek().is_some_and(|c| *c != '\n') && self.advance().is_some() {},
                _ => break,
            }
        }
    }

    fn is_word_char(&self, c: char) -> bool {
        // The scope of an IPv6 address is the only place for `%` inside a word.
        c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '_' | '-') || (c == '%' && self.in_bracket)
    }

    fn bare(&mut self, start: &Span) -> Result<Lexeme, Error> {
        let mut text = String::new();
        while let Some(&c) = self.chars.peek() {
            // `20%`: a number may end with it.
            let percent = c == '%' && !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            if !self.is_word_char(c) && !percent {
                break;
            }
            if text.len() == MAX_WORD {
                let message = format!("the word `{}…` has more than {MAX_WORD} characters", &text[..32]);
                return Err(Error::new(ErrorKind::Lexer, start, message)
                    .help("put it into double quotes (up to 255 characters), or shorten it"));
            }
            text.push(c);
            self.advance();
        }
        Ok(Lexeme::Word { text, quoted: false })
    }

    fn quoted(&mut self, start: &Span) -> Result<Lexeme, Error> {
        let mut text = String::new();
        self.advance();
        loop {
            let c = match self.advance() {
                Some('"') => return Ok(Lexeme::Word { text, quoted: true }),
                Some('\\') => self.advance(),
                other => other,
            };
            let Some(c) = c.filter(|c| *c != '\n') else {
                return Err(Error::new(ErrorKind::Lexer, start, "the closing quote of this string is missing")
                    .help("a quoted string must end on the line on which it begins"));
            };
            if c == NOT_UTF8 || c.is_control() && c != '\t' {
                let message = "this string contains a control character or bytes that are not UTF-8";
                return Err(Error::new(ErrorKind::Lexer, start, message));
            }
            text.push(c);
            if text.len() > MAX_STRING {
                let message = format!("this quoted string has more than {MAX_STRING} characters");
                return Err(Error::new(ErrorKind::Lexer, start, message)
                    .help("move a long command into a script and name the script here"));
            }
        }
    }
}
