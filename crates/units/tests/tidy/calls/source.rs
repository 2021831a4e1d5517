//! A crate's sources, parsed: without its tests, and with what its macros expand to, as far as that can be read.

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use std::collections::BTreeSet;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// What a macro's text becomes: a free function with this before its name.
pub(super) const MACRO: &str = "macro_";

/// A file of a crate.
pub(super) struct Source {
    /// Relative to the crate's `src`.
    pub(super) path: String,
    /// From the crate's root on.
    pub(super) module: Vec<String>,
    pub(super) ast: syn::File,
    /// Non-blank lines outside of tests.
    pub(super) lines: usize,
}

/// Parses a crate: paths relative to its `src`, and texts. Files that only tests have are left out. Returns also what
/// the measure cannot see, as complaints.
pub(super) fn parse(texts: &[(String, String)]) -> (Vec<Source>, Vec<String>) {
    let mut sources = Vec::new();
    for (path, text) in texts {
        let ast = syn::parse_file(text).unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut tests = Tests::default();
        tests.visit_file(&ast);
        let is_code = |(i, line): &(usize, &str)| {
            !line.trim().is_empty() && !tests.lines.iter().any(|(from, to)| (*from..=*to).contains(&(i + 1)))
        };
        let lines = text.lines().enumerate().filter(is_code).count();
        sources.push((Source { path: path.clone(), module: module_of(path), ast, lines }, tests.files));
    }
    let hidden: BTreeSet<Vec<String>> = sources
        .iter()
        .flat_map(|(source, files)| files.iter().map(|name| [source.module.clone(), vec![name.clone()]].concat()))
        .collect();
    let is_hidden = |module: &[String]| (1..=module.len()).any(|n| hidden.contains(&module[..n]));
    let mut sources: Vec<Source> = sources.into_iter().map(|(source, _)| source).collect();
    sources.retain(|source| !is_hidden(&source.module));
    let mut expanded = Macros { complaints: Vec::new(), sources: Vec::new(), at: (String::new(), Vec::new()) };
    for source in &sources {
        expanded.at = (source.path.clone(), source.module.clone());
        expanded.visit_file(&source.ast);
    }
    sources.append(&mut expanded.sources);
    (sources, expanded.complaints)
}

/// `a/mod.rs` and `a.rs` are `a`, the crate's head is nothing.
fn module_of(path: &str) -> Vec<String> {
    let name = path.strip_suffix(".rs").unwrap_or(path);
    let parts = name.split('/').filter(|part| !["mod", "lib", "main"].contains(part));
    parts.map(str::to_owned).collect()
}

/// Is it compiled for tests only?
pub(super) fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path().is_ident("test")
            || attr.path().is_ident("cfg") && attr.parse_args::<Ident>().is_ok_and(|name| name == "test")
    })
}

/// What only tests have of a file: lines, and modules in files of their own.
#[derive(Default)]
struct Tests {
    lines: Vec<(usize, usize)>,
    files: Vec<String>,
}

impl<'a> Visit<'a> for Tests {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !is_test(attributes(item)) {
            return visit::visit_item(self, item);
        }
        self.lines.push((item.span().start().line, item.span().end().line));
        if let syn::Item::Mod(module) = item
            && module.content.is_none()
        {
            self.files.push(module.ident.to_string());
        }
    }
}

pub(super) fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(i) => &i.attrs,
        syn::Item::Enum(i) => &i.attrs,
        syn::Item::Fn(i) => &i.attrs,
        syn::Item::Impl(i) => &i.attrs,
        syn::Item::Macro(i) => &i.attrs,
        syn::Item::Mod(i) => &i.attrs,
        syn::Item::Static(i) => &i.attrs,
        syn::Item::Struct(i) => &i.attrs,
        syn::Item::Trait(i) => &i.attrs,
        syn::Item::Type(i) => &i.attrs,
        syn::Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

/// Makes sources of what stands in definitions of macros, and of items that are handed to one.
struct Macros {
    complaints: Vec<String>,
    sources: Vec<Source>,
    at: (String, Vec<String>),
}

impl Macros {
    fn add(&mut self, ast: syn::File) {
        let (path, module) = self.at.clone();
        self.sources.push(Source { path, module, ast, lines: 0 });
    }

    /// Items, or the body of a function, or at least what looks like calls.
    fn take(&mut self, name: &str, tokens: &TokenStream) {
        match syn::parse2::<syn::File>(tokens.clone()) {
            Ok(file) if !file.items.is_empty() && !file.items.iter().all(|i| matches!(i, syn::Item::Macro(_))) => {
                self.add(file);
            }
            _ => {
                let body = match syn::Block::parse_within.parse2(tokens.clone()) {
                    Ok(_) => tokens.to_string(),
                    Err(_) => signs_of_calls(tokens),
                };
                let text = format!("fn {MACRO}{name}() {{ {body} }}");
                self.add(syn::parse_str(&text).unwrap_or_else(|e| panic!("{text}: {e}")));
            }
        }
    }
}

impl<'a> Visit<'a> for Macros {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_macro(&mut self, item: &'a syn::ItemMacro) {
        let Some(name) = &item.ident else {
            // Items that are handed to a macro; what it makes of them is in its definition.
            return match syn::parse2::<syn::File>(item.mac.tokens.clone()) {
                Ok(file) => self.add(file),
                Err(_) => self.take(&last_of(&item.mac.path), &item.mac.tokens),
            };
        };
        let tokens: Vec<TokenTree> = item.mac.tokens.clone().into_iter().collect();
        for rule in tokens.split(|token| is_sign(token, ';')) {
            if let Some(TokenTree::Group(body)) = rule.last() {
                for sign in hidden(&body.stream()) {
                    self.complaints.push(format!("{}: macro {name} has \"{sign}\": write that name out", self.at.0));
                }
                self.take(&name.to_string(), &plain(body.stream()));
            }
        }
    }

    fn visit_impl_item_macro(&mut self, item: &'a syn::ImplItemMacro) {
        self.complaints.push(format!("{}: a macro makes methods of an impl: write them out", self.at.0));
        visit::visit_impl_item_macro(self, item);
    }
}

pub(super) fn last_of(path: &syn::Path) -> String {
    path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
}

fn is_sign(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

/// Names of functions and types in a macro's text that only its callers know.
fn hidden(tokens: &TokenStream) -> Vec<&'static str> {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let dollar = tokens.get(i + 1).is_some_and(|token| is_sign(token, '$'));
        let called = matches!(tokens.get(i + 3), Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Parenthesis);
        match token {
            TokenTree::Group(group) => found.append(&mut hidden(&group.stream())),
            TokenTree::Ident(word) if word == "fn" && dollar => found.push("fn $"),
            TokenTree::Ident(word) if word == "impl" && dollar => found.push("impl $"),
            dot if is_sign(dot, '.') && dollar && called => found.push(".$"),
            _ => {}
        }
    }
    found
}

/// A macro's text as if it were code: `$x` is `x`, and `$(...),*` is what stands within.
fn plain(tokens: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut all = TokenStream::new();
    let mut i = 0;
    while i < tokens.len() {
        match (&tokens[i], tokens.get(i + 1)) {
            (dollar, Some(TokenTree::Group(group))) if is_sign(dollar, '$') => {
                all.extend(plain(group.stream()));
                let is_repeat = |t: &TokenTree| ['*', '+', '?'].iter().any(|sign| is_sign(t, *sign));
                i += 2;
                // A separator, and how often.
                match (tokens.get(i), tokens.get(i + 1)) {
                    (Some(repeat), _) if is_repeat(repeat) => i += 1,
                    (Some(separator), Some(repeat)) if is_repeat(repeat) => {
                        all.extend([separator.clone()]);
                        i += 2;
                    }
                    _ => {}
                }
                continue;
            }
            (dollar, Some(TokenTree::Ident(_))) if is_sign(dollar, '$') => {}
            (TokenTree::Group(group), _) => {
                all.extend([TokenTree::Group(Group::new(group.delimiter(), plain(group.stream())))]);
            }
            (token, _) => all.extend([token.clone()]),
        }
        i += 1;
    }
    all
}

/// What looks like a call in tokens that are no code, as statements: each on something of an unknown type.
pub(super) fn signs_of_calls(tokens: &TokenStream) -> String {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let mut text = String::new();
    for (i, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => text += &signs_of_calls(&group.stream()),
            TokenTree::Ident(name) if syn::parse_str::<Ident>(&name.to_string()).is_ok() => {
                let called =
                    matches!(tokens.get(i + 1), Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Parenthesis);
                let before = |n: usize, sign| i >= n && is_sign(&tokens[i - n], sign);
                if before(1, '.') && called {
                    text += &format!("any . {name} ();");
                } else if before(1, ':') && before(2, ':') && i >= 3 && matches!(tokens[i - 3], TokenTree::Ident(_)) {
                    text += &format!("{}::{name};", tokens[i - 3]);
                } else if called {
                    text += &format!("{name}();");
                }
            }
            _ => {}
        }
    }
    text
}

/// What a macro is called with, if that is expressions: `assert!(a, "{}", b)`, `vec![a; 3]`, `matches!(a, Some(_) if
/// b)`.
pub(super) fn arguments(mac: &syn::Macro) -> Option<Vec<syn::Expr>> {
    let tokens = mac.tokens.clone();
    if last_of(&mac.path) == "matches" || last_of(&mac.path) == "assert_matches" {
        // As a match, whose arms bind what the pattern names.
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let comma = tokens.iter().position(|token| is_sign(token, ','))?;
        let text = |tokens: &[TokenTree]| tokens.iter().cloned().collect::<TokenStream>().to_string();
        let pattern = text(&tokens[comma + 1..]);
        let pattern = pattern.trim_end().trim_end_matches(',');
        return Some(vec![
            syn::parse_str(&format!("match {} {{ {pattern} => true, _ => false }}", text(&tokens[..comma]))).ok()?,
        ]);
    }
    let list = syn::punctuated::Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
    if let Ok(all) = list.parse2(tokens.clone()) {
        return Some(all.into_iter().collect());
    }
    let statements = syn::Block::parse_within.parse2(tokens).ok()?;
    let block = syn::Block { brace_token: syn::token::Brace::default(), stmts: statements };
    Some(vec![syn::Expr::Block(syn::ExprBlock { attrs: Vec::new(), label: None, block })])
}

/// All words of a macro's call.
pub(super) fn words(tokens: &TokenStream) -> Vec<String> {
    let mut all = Vec::new();
    for token in tokens.clone() {
        match token {
            TokenTree::Group(group) => all.append(&mut words(&group.stream())),
            TokenTree::Ident(name) => all.push(name.to_string()),
            _ => {}
        }
    }
    all
}
