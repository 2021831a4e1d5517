//! What is counted without calls: fields in reach, bools, questions of dialect and version.

use super::items::{Field, Items, Struct};
use super::source::{Source, arguments, attributes, is_test, last_of};
use super::types::{Scope, Ty};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Lit, Pat, Type, Visibility};

/// How many struct fields each file may read and write: those of all structs that its functions are given to change,
/// and of what is in their fields, as far as the file sees these and they are not behind `&`.
pub(super) fn fields_in_reach(items: &Items<'_>, sources: &[Source]) -> BTreeMap<String, usize> {
    let mut structs: BTreeMap<&str, Vec<&Struct<'_>>> = BTreeMap::new();
    items.structs.iter().for_each(|def| structs.entry(&def.key).or_default().push(def));
    let mut all = BTreeMap::new();
    for source in sources {
        let of_file = items.funcs.iter().filter(|func| func.is_function() && func.file == source.path);
        let mut open: Vec<String> = of_file.flat_map(|func| func.changes.iter().cloned()).collect();
        let (mut seen, mut fields) = (BTreeSet::new(), BTreeSet::new());
        while let Some(key) = open.pop() {
            if !seen.insert(key.clone()) {
                continue;
            }
            for def in structs.get(key.as_str()).into_iter().flatten() {
                for field in def.fields.iter().filter(|field| sees(&source.module, &def.module, field.vis)) {
                    fields.insert((key.clone(), field.name.clone()));
                    owned(items, &def.scope, field.ty, &mut open);
                }
                let within = def.variants.iter().flat_map(|(_, fields)| fields);
                within.for_each(|field| owned(items, &def.scope, field.ty, &mut open));
            }
        }
        all.insert(source.path.clone(), fields.len());
    }
    all
}

/// May a module name a field of a struct that is defined in that one?
fn sees(from: &[String], place: &[String], vis: &Visibility) -> bool {
    match vis {
        Visibility::Public(_) => true,
        Visibility::Inherited => from.starts_with(place),
        Visibility::Restricted(within) => match last_of(&within.path).as_str() {
            "crate" => true,
            "self" => from.starts_with(place),
            "super" => from.starts_with(&place[..place.len().saturating_sub(1)]),
            _ => {
                let path = within.path.segments.iter().map(|segment| segment.ident.to_string());
                from.starts_with(&path.filter(|part| part != "crate").collect::<Vec<_>>())
            }
        },
    }
}

/// Types of the crate that can be changed by who can change one of this type.
fn owned(items: &Items<'_>, scope: &Scope, ty: &Type, all: &mut Vec<String>) {
    match ty {
        Type::Reference(t) if t.mutability.is_none() => {}
        Type::Reference(t) => owned(items, scope, &t.elem, all),
        ty => {
            fn keys(ty: &Ty, all: &mut Vec<String>) {
                match ty {
                    Ty::Own(key, args) => {
                        all.push(key.clone());
                        args.iter().for_each(|ty| keys(ty, all));
                    }
                    Ty::Foreign(_, args) | Ty::Tuple(args) => args.iter().for_each(|ty| keys(ty, all)),
                    _ => {}
                }
            }
            keys(&items.names.ty(scope, ty), all);
        }
    }
}

/// Fields of structs that are a `bool`; and all that have one: also within a tuple, an array, an option, and of
/// variants.
pub(super) fn bools(items: &Items<'_>) -> (usize, usize) {
    let of_variants = items.structs.iter().flat_map(|def| def.variants.iter().flat_map(|(_, fields)| fields));
    let of_structs = || items.structs.iter().flat_map(|def| &def.fields);
    let is_one = |field: &&Field<'_>| matches!(field.ty, Type::Path(ty) if ty.path.is_ident("bool"));
    let plain = of_structs().filter(is_one).count();
    (plain, of_structs().chain(of_variants).map(|field| bools_in(field.ty)).sum())
}

fn bools_in(ty: &Type) -> usize {
    struct Found(usize);
    impl<'a> Visit<'a> for Found {
        fn visit_type_path(&mut self, ty: &'a syn::TypePath) {
            self.0 += usize::from(ty.path.is_ident("bool"));
            visit::visit_type_path(self, ty);
        }
    }
    let mut found = Found(0);
    found.visit_type(ty);
    found.0
}

/// What asks which dialect is spoken.
const QUESTIONS: &[&str] = &["in_mesh9", "speaks9", "is_9", "company"];
/// What has one value for each dialect.
const KINDS: &[&str] = &["Spoken", "Company"];
/// What holds a protocol's number.
const NUMBERS: &[&str] = &["version", "protocol", "max_version", "protocol_version", "number"];
/// The dialect's room.
const ROOM: &[&str] = &["dialect.rs", "dialect/"];

/// Questions of dialect and version outside the dialect's room, by file: a call of one of `QUESTIONS`, or of what does
/// nothing but that; `nine().is_some()`; a match on a value of `KINDS`; a comparison of one of `NUMBERS` with a
/// number or a constant, by operator, range or match.
pub(super) fn questions(sources: &[Source]) -> BTreeMap<String, usize> {
    let mut asked: BTreeSet<String> = QUESTIONS.iter().map(|name| (*name).to_owned()).collect();
    // Who hides a question behind another name has asked nothing else.
    loop {
        let mut hidden = Hidden { asked: asked.clone() };
        sources.iter().for_each(|source| hidden.visit_file(&source.ast));
        if hidden.asked.len() == asked.len() {
            break;
        }
        asked = hidden.asked;
    }
    let mut all = BTreeMap::new();
    for source in sources.iter().filter(|source| !ROOM.iter().any(|room| source.path.starts_with(room))) {
        let mut counter = Counter { asked: &asked, count: 0 };
        counter.visit_file(&source.ast);
        if counter.count > 0 {
            *all.entry(source.path.clone()).or_default() += counter.count;
        }
    }
    all
}

/// Finds functions that are nothing but a question: one expression, or its contrary.
struct Hidden {
    asked: BTreeSet<String>,
}

impl Hidden {
    fn function(&mut self, sig: &syn::Signature, block: &syn::Block) {
        let says = matches!(&sig.output, syn::ReturnType::Type(_, ty) if bools_in(ty) == 1);
        let [syn::Stmt::Expr(only, None)] = block.stmts.as_slice() else { return };
        if says && self.is_question(only) {
            self.asked.insert(sig.ident.to_string());
        }
    }

    fn is_question(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Unary(e) => self.is_question(&e.expr),
            Expr::Paren(e) => self.is_question(&e.expr),
            expr => Counter { asked: &self.asked, count: 0 }.is_one(expr),
        }
    }
}

impl<'a> Visit<'a> for Hidden {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }
}

struct Counter<'q> {
    asked: &'q BTreeSet<String>,
    count: usize,
}

impl Counter<'_> {
    fn is_one(&self, expr: &Expr) -> bool {
        match expr {
            Expr::MethodCall(e) => {
                let name = e.method.to_string();
                let nine = |e: &Expr| matches!(e, Expr::MethodCall(e) if e.method == "nine");
                self.asked.contains(&name)
                    || (name == "is_some" || name == "is_none") && nine(&e.receiver)
                    || name == "contains" && is_range(&e.receiver) && e.args.first().is_some_and(is_version)
            }
            Expr::Call(e) => matches!(&*e.func, Expr::Path(path) if self.asked.contains(&last_of(&path.path))),
            // `map(Connection::speaks9)`.
            Expr::Path(path) => path.path.segments.len() > 1 && self.asked.contains(&last_of(&path.path)),
            Expr::Binary(e) => {
                let compares = matches!(
                    e.op,
                    BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_) | BinOp::Eq(_) | BinOp::Ne(_)
                );
                let (a, b) = (&*e.left, &*e.right);
                compares && (is_version(a) && is_number(b) || is_number(a) && is_version(b))
            }
            Expr::Match(e) => {
                let kinds = e.arms.iter().any(|arm| is_kind(&arm.pat));
                kinds || is_version(&e.expr) && e.arms.iter().any(|arm| is_number_pattern(&arm.pat))
            }
            Expr::Let(e) => is_kind(&e.pat),
            _ => false,
        }
    }
}

impl<'a> Visit<'a> for Counter<'_> {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        if self.is_one(expr) {
            self.count += 1;
            // The function of a call is no second question.
            if let Expr::Call(e) = expr {
                e.args.iter().for_each(|arg| self.visit_expr(arg));
                return;
            }
        }
        visit::visit_expr(self, expr);
    }

    fn visit_macro(&mut self, mac: &'a syn::Macro) {
        for arg in arguments(mac).unwrap_or_default() {
            self.visit_expr(&arg);
        }
    }
}

fn is_kind(pat: &Pat) -> bool {
    struct Found(bool);
    impl<'a> Visit<'a> for Found {
        fn visit_path(&mut self, path: &'a syn::Path) {
            self.0 |= path.segments.iter().rev().nth(1).is_some_and(|kind| KINDS.iter().any(|k| kind.ident == k));
        }
    }
    let mut found = Found(false);
    found.visit_pat(pat);
    found.0
}

fn is_version(expr: &Expr) -> bool {
    let is = |name: &syn::Ident| NUMBERS.iter().any(|known| name == known);
    match expr {
        Expr::MethodCall(e) => is(&e.method) && e.args.is_empty(),
        Expr::Field(e) => matches!(&e.member, syn::Member::Named(name) if is(name)),
        Expr::Path(e) => e.path.get_ident().is_some_and(is),
        Expr::Unary(e) => is_version(&e.expr),
        Expr::Reference(e) => is_version(&e.expr),
        Expr::Paren(e) => is_version(&e.expr),
        _ => false,
    }
}

fn is_number(expr: &Expr) -> bool {
    match expr {
        Expr::Lit(e) => matches!(e.lit, Lit::Int(_)),
        Expr::Path(e) => e.path.get_ident().is_some_and(|name| name.to_string().chars().all(|c| !c.is_lowercase())),
        Expr::MethodCall(e) => e.method == "number",
        _ => false,
    }
}

fn is_range(expr: &Expr) -> bool {
    match expr {
        Expr::Range(e) => e.start.iter().chain(&e.end).any(|end| is_number(end)),
        Expr::Paren(e) => is_range(&e.expr),
        _ => false,
    }
}

fn is_number_pattern(pat: &Pat) -> bool {
    match pat {
        Pat::Lit(p) => matches!(p.lit, Lit::Int(_)),
        Pat::Range(_) => true,
        Pat::Or(p) => p.cases.iter().any(is_number_pattern),
        Pat::Guard(p) => is_number_pattern(&p.pat),
        _ => false,
    }
}
