//! The statement tree: words, then `;` or `{ … }`. It knows no keyword but `skip`, so every file that is well formed
//! gets a tree, and every token keeps its place.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Span};
use crate::lexer::{Lexer, Token};

/// Deepest nesting accepted; the grammar needs six.
const MAX_DEPTH: usize = 16;

/// One statement: at least one token, and perhaps a body.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) tokens: Vec<Token>,
    pub(crate) body: Option<Body>,
}

/// The statements between a pair of braces.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(crate) statements: Vec<Statement>,
    /// The place of the opening brace.
    pub(crate) open: Span,
}

impl Statement {
    /// The place of the first word.
    pub(crate) fn span(&self) -> &Span {
        &self.tokens[0].span
    }

    /// The first word if it is a bare one.
    pub(crate) fn keyword(&self) -> &str {
        self.tokens[0].word().unwrap_or("")
    }
}

/// Reads a whole file. `skip` statements are dropped here, since their content need not be well formed.
pub(crate) fn parse(file: Arc<str>, text: &str) -> Result<Vec<Statement>, Error> {
    let mut reader = Reader { lexer: Lexer::new(file, text) };
    reader.statements(None, 0).map(|body| body.statements)
}

struct Reader<'a> {
    lexer: Lexer<'a>,
}

impl Reader<'_> {
    fn statements(&mut self, opened_at: Option<&Span>, depth: usize) -> Result<Body, Error> {
        let mut statements: Vec<Statement> = Vec::new();
        loop {
            let Some(first) = self.lexer.next_token()? else {
                return match opened_at {
                    None => Ok(Body { statements, open: self.lexer.here() }),
                    Some(open) => Err(self.ends_too_early(open)),
                };
            };
            if first.is_mark('}') {
                if let Some(open) = opened_at {
                    return Ok(Body { statements, open: open.clone() });
                }
                return Err(Error::new(ErrorKind::Syntax, &first.span, "this closing brace has no opening one"));
            }
            // `via proxy on H { … }` ends a host statement with or without a semicolon.
            if first.is_mark(';') && statements.last().is_some_and(|s| s.keyword() == "host" && s.body.is_some()) {
                continue;
            }
            if first.word().is_none() {
                let message = format!("a statement cannot begin with {}", first.shown());
                return Err(Error::new(ErrorKind::Syntax, &first.span, message)
                    .help("remove it; no semicolon is needed behind a closing brace"));
            }
            if first.is_keyword("skip") {
                self.skip(&first.span)?;
            } else {
                statements.push(self.statement(first, depth)?);
            }
        }
    }

    fn statement(&mut self, first: Token, depth: usize) -> Result<Statement, Error> {
        let mut tokens = vec![first];
        loop {
            let Some(token) = self.lexer.next_token()? else {
                return Err(self.ends_too_early(&tokens[0].span));
            };
            if token.is_mark(';') {
                return Ok(Statement { tokens, body: None });
            }
            if token.is_mark('{') {
                if depth == MAX_DEPTH {
                    return Err(Error::new(ErrorKind::Syntax, &token.span, "sections are nested too deeply"));
                }
                let body = self.statements(Some(&token.span), depth + 1)?;
                return Ok(Statement { tokens, body: Some(body) });
            }
            if token.is_mark('}') {
                let last = tokens.last().expect("a statement has a first token");
                let message = format!("the semicolon behind {} is missing", last.shown());
                return Err(Error::new(ErrorKind::Syntax, &last.span, message));
            }
            tokens.push(token);
        }
    }

    /// Up to the next `;`, or over one balanced block.
    fn skip(&mut self, start: &Span) -> Result<(), Error> {
        let mut depth = 0usize;
        while let Some(token) = self.lexer.next_token()? {
            if token.is_mark('{') {
                depth += 1;
            } else if token.is_mark('}') {
                depth = depth.checked_sub(1).ok_or_else(|| {
                    Error::new(ErrorKind::Syntax, start, "this `skip` is followed neither by `;` nor by a block")
                })?;
            }
            if depth == 0 && (token.is_mark('}') || token.is_mark(';')) {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Syntax, start, "the file ends inside this `skip`")
            .help("close its block with `}`, or end it with `;`"))
    }

    fn ends_too_early(&self, open: &Span) -> Error {
        Error::new(ErrorKind::Syntax, &self.lexer.here(), "the file ends inside a section or statement")
            .related(open, "which begins here")
            .help("a closing `}` or `;` is missing")
    }
}
