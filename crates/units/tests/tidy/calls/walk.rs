//! Whom a function calls.
//!
//! A call is resolved by its name and its receiver, where the receiver's type is plain: `self`, a field, a parameter,
//! a variable, what a known function returns. If it is a type of this crate, its method is called (or that of what it
//! dereferences to; of a trait's object or parameter: that of every type that has the trait). If it is a type of
//! another crate, nobody of this crate is called, unless by a trait of this crate. Everything else counts as a call
//! to all methods of that name (with as many parameters). Naming a function, as in `map(Self::x)`, is a call; so is
//! naming a constant that names it. What a closure calls its function calls; whoever calls a function that is kept in
//! a field calls all functions that are named without being called, and all that closures call that are put into
//! fields.

use super::foreign::{closure_takes, element, returned};
use super::items::{Body, Func, Items};
use super::lookup::Lookup;
use super::source::{MACRO, arguments, last_of, signs_of_calls, words};
use super::types::{Ty, parts};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, Member, Pat, Stmt, UnOp};

/// What a type has that derives it, or gets it from the language; not one that acts.
const DERIVED: &[&str] = &[
    "clone",
    "eq",
    "ne",
    "cmp",
    "partial_cmp",
    "hash",
    "fmt",
    "into",
    "try_into",
    "to_string",
    "to_owned",
    "borrow",
    "max",
    "min",
    "clamp",
    "clone_from",
    "cloned",
    "copied",
    "by_ref",
];

/// Who calls whom.
pub(super) struct Calls {
    pub(super) to: Vec<BTreeSet<usize>>,
    /// Calls whose receiver is not known: who calls, and the name.
    pub(super) unresolved: BTreeSet<(usize, String)>,
}

struct Walker<'m, 'a> {
    look: Lookup<'m, 'a>,
    /// Whose body it is.
    at: usize,
    /// Types of variables.
    env: Vec<BTreeMap<String, Ty>>,
    /// Within a closure that is put into a field.
    kept: bool,
    calls: Calls,
    /// Functions that are named without being called, and who calls what is in a field.
    values: BTreeSet<usize>,
    indirect: BTreeSet<usize>,
}

/// Whom the functions of a crate call.
pub(super) fn calls(items: &Items<'_>) -> Calls {
    let calls = Calls { to: vec![BTreeSet::new(); items.funcs.len()], unresolved: BTreeSet::new() };
    let (values, indirect) = (BTreeSet::new(), BTreeSet::new());
    let look = Lookup::new(items);
    let mut walker = Walker { look, at: 0, env: Vec::new(), kept: false, calls, values, indirect };
    for (i, func) in items.funcs.iter().enumerate() {
        walker.function(i, func);
    }
    for caller in walker.indirect {
        walker.calls.to[caller].extend(walker.values.iter().copied());
    }
    walker.calls
}

impl<'m, 'a> Walker<'m, 'a> {
    fn function(&mut self, i: usize, func: &'m Func<'a>) {
        self.at = i;
        self.env = vec![BTreeMap::new()];
        if let Some(own) = func.scope.own.clone().filter(|_| func.receiver) {
            self.env[0].insert("self".into(), own);
        }
        for (pat, ty) in &func.params {
            self.bind(pat, ty);
        }
        match func.body {
            Some(Body::Block(block)) => _ = self.block(block),
            Some(Body::Expr(expr)) => _ = self.expr(expr),
            None => {}
        }
    }

    fn func(&self) -> &'m Func<'a> {
        &self.look.items.funcs[self.at]
    }

    // -- whom a name means -------------------------------------------------------------------------------------------

    fn call(&mut self, targets: &[usize]) {
        self.calls.to[self.at].extend(targets);
        if self.kept {
            self.values.extend(targets);
        }
    }

    fn method(&mut self, receiver: &Ty, name: &str, args: &[Ty]) -> Ty {
        match receiver {
            Ty::Own(key, _) => {
                let found = self.look.find(key, name);
                if !found.is_empty() {
                    self.call(&found);
                    return self.look.returned(&found, Some(receiver), args);
                }
                if name == "into" || name == "try_into" {
                    self.convert(receiver);
                }
                if DERIVED.contains(&name) {
                    return receiver.clone();
                }
                if let Some((of, item)) = self.look.items.associated.get(&(key.clone(), "Item".into())) {
                    let mut map = BTreeMap::new();
                    of.matched(receiver, &mut map);
                    let next = self.look.find(key, "next");
                    self.call(&next);
                    return returned(&Ty::iterator(item.with(&map)), name, args);
                }
                self.unresolved(name, args)
            }
            Ty::Foreign(foreign, _) => {
                let mut found = self.look.find(&format!("foreign {foreign}"), name);
                found.retain(|i| self.look.items.funcs[*i].receiver);
                if found.is_empty() {
                    return returned(receiver, name, args);
                }
                self.call(&found);
                self.look.returned(&found, Some(receiver), args)
            }
            _ => self.unresolved(name, args),
        }
    }

    /// `x.into()` calls `from` of whoever is made of such.
    fn convert(&mut self, from: &Ty) {
        let is_from = |func: &Func<'_>| {
            (func.name == "from" || func.name == "try_from") && func.params.first().is_some_and(|(_, ty)| ty == from)
        };
        let all: Vec<usize> =
            (0..self.look.items.funcs.len()).filter(|i| is_from(&self.look.items.funcs[*i])).collect();
        self.call(&all);
    }

    fn unresolved(&mut self, name: &str, args: &[Ty]) -> Ty {
        let mut found = self.look.methods.get(name).cloned().unwrap_or_default();
        found.retain(|i| self.look.items.funcs[*i].params.len() == args.len());
        if !found.is_empty() {
            self.calls.unresolved.insert((self.at, name.to_owned()));
        }
        self.call(&found);
        self.look.returned(&found, None, args)
    }

    /// What a path names: functions, constants, a variant's or a struct's constructor.
    fn named(&mut self, path: &syn::ExprPath, called: Option<&[Ty]>) -> Ty {
        let names = parts(&path.path);
        let (name, before) = names.split_last().expect("a path is not empty");
        if before.is_empty()
            && path.qself.is_none()
            && let Some(ty) = self.env.iter().rev().find_map(|scope| scope.get(name))
        {
            return ty.clone();
        }
        let scope = self.func().scope.clone();
        let of_type = match &path.qself {
            Some(of) => Some(self.look.items.names.ty(&scope, &of.ty)),
            None if before.is_empty() => None,
            None => {
                let mut above = path.path.clone();
                above.segments.pop();
                above.segments.pop_punct();
                Some(self.look.items.names.path(&scope, &above))
            }
        };
        if let Some(Ty::Own(key, _)) = &of_type {
            let mut found = self.look.find(key, name);
            if found.is_empty() {
                if self.look.has_variant(key, name) {
                    return of_type.unwrap();
                }
                // A trait's, of any type: `<T as Trait>::x`.
                found = self.look.of_trait_path(&scope.module, before, name);
            }
            if !found.is_empty() {
                return self.mention(&found, called);
            }
            if DERIVED.contains(&name.as_str()) || name == "default" || name == "from" {
                return of_type.unwrap();
            }
        } else if let Some(of) = &of_type
            && before.last().is_some_and(|last| last.starts_with(char::is_uppercase))
        {
            let found = self.look.of_trait_path(&scope.module, before, name);
            if !found.is_empty() {
                return self.mention(&found, called);
            }
            return match of {
                Ty::Unknown | Ty::Param(_) => {
                    let args = called.unwrap_or_default();
                    let mut found = self.look.methods.get(name.as_str()).cloned().unwrap_or_default();
                    found.retain(|i| called.is_none() || self.look.items.funcs[*i].params.len() + 1 == args.len());
                    self.mention(&found, called)
                }
                _ if name == "take" || name == "new" || name == "default" || name == "from" => of.clone(),
                _ => Ty::Unknown,
            };
        }
        // A struct's constructor, or a function or constant outside of types.
        let ty = self.look.items.names.path(&scope, &path.path);
        if let Ty::Own(key, _) = &ty
            && self.look.structs.contains_key(key.as_str())
        {
            return ty;
        }
        let whole = match self.look.items.names.whole(&scope.module, &names) {
            Some(whole) => whole,
            // Of another crate; a name that is nowhere here is looked for anyway.
            None if !before.is_empty() => return Ty::Unknown,
            None => names.clone(),
        };
        let Some((name, within)) = whole.split_last() else { return Ty::Unknown };
        let all = self.look.free.get(name.as_str()).cloned().unwrap_or_default();
        let module = |i: &usize| &self.look.items.funcs[*i].scope.module;
        let mut found: Vec<usize> = all.iter().copied().filter(|i| module(i) == within).collect();
        if found.is_empty() {
            found = all.iter().copied().filter(|i| module(i).starts_with(within)).collect();
        }
        if found.is_empty() { Ty::Unknown } else { self.mention(&found, called) }
    }

    fn mention(&mut self, found: &[usize], called: Option<&[Ty]>) -> Ty {
        self.call(found);
        let constant = found.iter().all(|i| matches!(self.look.items.funcs[*i].body, Some(Body::Expr(_))));
        if constant {
            return self.look.returned(found, None, &[]);
        }
        match called {
            // The receiver may stand before the parameters.
            Some(args) => {
                let first = self.look.items.funcs[found[..].first().copied().unwrap_or_default()].receiver;
                let (receiver, args) =
                    if first && !args.is_empty() { (args.first(), &args[1..]) } else { (None, args) };
                self.look.returned(found, receiver, args)
            }
            None => {
                self.values.extend(found);
                let ret = self.look.returned(found, None, &[]);
                Ty::Fn(Vec::new(), Box::new(ret))
            }
        }
    }

    // -- names of variables ------------------------------------------------------------------------------------------

    fn bind(&mut self, pat: &Pat, ty: &Ty) {
        match pat {
            Pat::Ident(p) => {
                let name = p.ident.to_string();
                if p.subpat.is_some() || !name.starts_with(char::is_uppercase) {
                    self.env.last_mut().expect("a scope").insert(name, ty.clone());
                }
                p.subpat.iter().for_each(|(_, pat)| self.bind(pat, ty));
            }
            Pat::Reference(p) => self.bind(&p.pat, ty),
            Pat::Paren(p) => self.bind(&p.pat, ty),
            Pat::Guard(p) => {
                self.bind(&p.pat, ty);
                self.expr(&p.guard);
            }
            Pat::Or(p) => p.cases.iter().for_each(|pat| self.bind(pat, ty)),
            Pat::Type(p) => {
                let said = self.look.items.names.ty(&self.func().scope, &p.ty);
                let vague = matches!(&said, Ty::Foreign(_, args) if args.contains(&Ty::Unknown));
                self.bind(&p.pat, if said == Ty::Unknown || vague && *ty != Ty::Unknown { ty } else { &said });
            }
            Pat::Slice(p) => p.elems.iter().for_each(|pat| self.bind(pat, &element(ty))),
            Pat::Tuple(p) => {
                let of = if let Ty::Tuple(of) = ty { of.clone() } else { Vec::new() };
                self.bind_all(&p.elems, &of);
            }
            Pat::TupleStruct(p) => match (last_of(&p.path).as_str(), ty) {
                ("Some" | "Ok", ty) => p.elems.iter().for_each(|pat| self.bind(pat, &element(ty))),
                ("Err", Ty::Foreign(_, args)) => {
                    let of = args.get(1).cloned().unwrap_or(Ty::Unknown);
                    p.elems.iter().for_each(|pat| self.bind(pat, &of));
                }
                _ => {
                    let of: Vec<Ty> =
                        self.look.fields(&self.func().scope, &p.path, ty).into_iter().map(|(_, ty)| ty).collect();
                    self.bind_all(&p.elems, &of);
                }
            },
            Pat::Struct(p) => {
                let of = self.look.fields(&self.func().scope, &p.path, ty);
                for field in &p.fields {
                    let name = member(&field.member);
                    let ty = of.iter().find(|(known, _)| *known == name).map_or(Ty::Unknown, |(_, ty)| ty.clone());
                    self.bind(&field.pat, &ty);
                }
            }
            _ => {}
        }
    }

    fn bind_all<'p>(&mut self, pats: impl IntoIterator<Item = &'p Pat>, of: &[Ty]) {
        let pats: Vec<&Pat> = pats.into_iter().collect();
        let rest = pats.iter().position(|pat| matches!(pat, Pat::Rest(_)));
        for (i, pat) in pats.iter().enumerate() {
            let at = if rest.is_some_and(|rest| i > rest) { (i + of.len()).checked_sub(pats.len()) } else { Some(i) };
            self.bind(pat, &at.and_then(|at| of.get(at)).cloned().unwrap_or(Ty::Unknown));
        }
    }

    fn scoped<R>(&mut self, go: impl FnOnce(&mut Self) -> R) -> R {
        self.env.push(BTreeMap::new());
        let result = go(self);
        self.env.pop();
        result
    }

    // -- code --------------------------------------------------------------------------------------------------------

    fn block(&mut self, block: &Block) -> Ty {
        self.scoped(|me| {
            let mut last = Ty::Tuple(Vec::new());
            for statement in &block.stmts {
                last = me.statement(statement);
            }
            last
        })
    }

    fn statement(&mut self, statement: &Stmt) -> Ty {
        match statement {
            Stmt::Local(local) => {
                let init = local.init.as_ref();
                let ty = init.map_or(Ty::Unknown, |init| self.expr(&init.expr));
                if let Some((_, other)) = init.and_then(|init| init.diverge.as_ref()) {
                    self.expr(other);
                }
                self.bind(&local.pat, &ty);
            }
            Stmt::Item(_) => {}
            Stmt::Expr(expr, semicolon) => {
                let ty = self.expr(expr);
                if semicolon.is_none() {
                    return ty;
                }
            }
            Stmt::Macro(mac) => {
                let ty = self.macro_(&mac.mac);
                if mac.semi_token.is_none() {
                    return ty;
                }
            }
        }
        Ty::Tuple(Vec::new())
    }

    fn macro_(&mut self, mac: &syn::Macro) -> Ty {
        let name = last_of(&mac.path);
        let body = self.look.free.get(format!("{MACRO}{name}").as_str()).cloned().unwrap_or_default();
        self.call(&body);
        if !body.is_empty() {
            // Whatever it is called with may be the name of what it calls.
            for word in words(&mac.tokens) {
                let found = self.look.methods.get(word.as_str()).cloned().unwrap_or_default();
                self.call(&found);
            }
        }
        match arguments(mac) {
            Some(args) => {
                let types: Vec<Ty> = args.iter().map(|arg| self.expr(arg)).collect();
                match name.as_str() {
                    "vec" => Ty::foreign("Vec", &types[..types.len().min(1)]),
                    "matches" | "cfg" => Ty::plain(),
                    "format" => Ty::foreign("String", &[]),
                    _ => Ty::Unknown,
                }
            }
            None => {
                // Of a macro's language only the names are known.
                if let Ok(block) = syn::parse_str::<Block>(&format!("{{ {} }}", signs_of_calls(&mac.tokens))) {
                    self.block(&block);
                }
                Ty::Unknown
            }
        }
    }

    fn args<'e>(
        &mut self,
        args: impl IntoIterator<Item = &'e Expr>,
        hint: impl Fn(&Self, usize, usize) -> Vec<Ty>,
    ) -> Vec<Ty> {
        args.into_iter()
            .enumerate()
            .map(|(i, arg)| match arg {
                Expr::Closure(closure) => {
                    let takes = hint(self, i, closure.inputs.len());
                    self.closure(closure, &takes)
                }
                other => self.expr(other),
            })
            .collect()
    }

    fn closure(&mut self, closure: &syn::ExprClosure, takes: &[Ty]) -> Ty {
        self.scoped(|me| {
            for (i, pat) in closure.inputs.iter().enumerate() {
                me.bind(pat, takes.get(i).unwrap_or(&Ty::Unknown));
            }
            let ret = me.expr(&closure.body);
            let said = me.look.items.names.ret(&me.func().scope, &closure.output);
            let known = !matches!(closure.output, syn::ReturnType::Default) && said != Ty::Unknown;
            Ty::Fn(Vec::new(), Box::new(if known { said } else { ret }))
        })
    }

    fn call_of(&mut self, call: &syn::ExprCall) -> Ty {
        let Expr::Path(path) = &*call.func else {
            self.indirect.insert(self.at);
            let func = self.expr(&call.func);
            self.args(&call.args, |_, _, _| Vec::new());
            return if let Ty::Fn(_, ret) = func { *ret } else { Ty::Unknown };
        };
        // Looked for once to know what closures are given, and once more with what the arguments are.
        let before = self.calls.to[self.at].clone();
        self.calls.to[self.at].clear();
        self.named(path, Some(&[]));
        let targets: Vec<usize> = self.calls.to[self.at].iter().copied().collect();
        self.calls.to[self.at] = before;
        let types = self.args(&call.args, |me, i, _| {
            let receiver = targets.iter().any(|t| self_first(me.look.items, *t, call.args.len()));
            me.look.expected(&targets, usize::from(receiver), i)
        });
        let names = parts(&path.path);
        let name = names.last().map_or("", String::as_str);
        let first = || types.first().cloned().unwrap_or(Ty::Unknown);
        match (names.len(), name) {
            (1, "Some") => Ty::option(first()),
            (1, "Ok") => Ty::foreign("Result", &[first()]),
            (1, "Err") => Ty::foreign("Result", &[Ty::Unknown, first()]),
            (2.., "new" | "from" | "pin") if ["Box", "Rc", "Arc"].contains(&names[names.len() - 2].as_str()) => first(),
            (2.., "take" | "replace") if names[names.len() - 2] == "mem" => first(),
            (2.., "once" | "repeat_n") if names[names.len() - 2] == "iter" => Ty::iterator(first()),
            _ => match self.named(path, Some(&types)) {
                // A variable that is a closure.
                Ty::Fn(_, ret) => *ret,
                other => other,
            },
        }
    }

    fn expr(&mut self, expr: &Expr) -> Ty {
        match expr {
            Expr::Path(path) => self.named(path, None),
            Expr::Field(e) => {
                let of = self.expr(&e.base);
                self.look.field(&of, &member(&e.member))
            }
            Expr::MethodCall(e) => {
                let receiver = self.expr(&e.receiver);
                let name = e.method.to_string();
                let targets = match &receiver {
                    Ty::Own(key, _) => self.look.find(key, &name),
                    _ => Vec::new(),
                };
                let item = match &receiver {
                    Ty::Own(key, _) => {
                        self.look.items.associated.get(&(key.clone(), "Item".into())).map(|(_, ty)| ty.clone())
                    }
                    _ => None,
                };
                let through = item.map_or_else(|| receiver.clone(), Ty::iterator);
                let types = self.args(&e.args, |me, i, count| {
                    let found = me.look.expected(&targets, 0, i);
                    if found.is_empty() { closure_takes(&through, &name, count) } else { found }
                });
                let ret = self.method(&receiver, &name, &types);
                match e.turbofish.as_ref().and_then(|t| t.args.first()) {
                    Some(syn::GenericArgument::Type(ty)) if name == "collect" => {
                        match self.look.items.names.ty(&self.func().scope, ty) {
                            Ty::Foreign(kind, args) if args.contains(&Ty::Unknown) && kind == "Vec" => ret,
                            said => said,
                        }
                    }
                    _ => ret,
                }
            }
            Expr::Call(call) => self.call_of(call),
            Expr::Index(e) => {
                let of = self.expr(&e.expr);
                let at = self.expr(&e.index);
                self.index(&of, &at, matches!(&*e.index, Expr::Range(_)))
            }
            Expr::Reference(e) => self.expr(&e.expr),
            Expr::Paren(e) => self.expr(&e.expr),
            Expr::Group(e) => self.expr(&e.expr),
            Expr::Cast(e) => {
                self.expr(&e.expr);
                self.look.items.names.ty(&self.func().scope, &e.ty)
            }
            Expr::Try(e) => element(&self.expr(&e.expr)),
            Expr::Unary(e) => {
                let of = self.expr(&e.expr);
                match (e.op, &of) {
                    (UnOp::Neg(_), Ty::Own(..)) => self.operator(&of, "neg"),
                    (UnOp::Not(_), Ty::Own(..)) => self.operator(&of, "not"),
                    (UnOp::Not(_), _) => Ty::plain(),
                    _ => of,
                }
            }
            Expr::Binary(e) => {
                let (left, right) = (self.expr(&e.left), self.expr(&e.right));
                match (operator(&e.op), &left) {
                    (None, _) => Ty::plain(),
                    (Some(name), Ty::Own(..)) => self.operator(&left, name),
                    (Some(_), Ty::Unknown) => right,
                    _ => left,
                }
            }
            Expr::Assign(e) => {
                self.expr(&e.left);
                self.keep(&e.right, matches!(&*e.left, Expr::Field(_)));
                Ty::Tuple(Vec::new())
            }
            Expr::Lit(_) => Ty::plain(),
            Expr::Range(e) => {
                let ends: Vec<Ty> = e.start.iter().chain(&e.end).map(|end| self.expr(end)).collect();
                Ty::iterator(ends.into_iter().find(|ty| *ty != Ty::Unknown).unwrap_or(Ty::Unknown))
            }
            Expr::Tuple(e) => Ty::Tuple(e.elems.iter().map(|e| self.expr(e)).collect()),
            Expr::Array(e) => {
                let types: Vec<Ty> = e.elems.iter().map(|e| self.keep(e, true)).collect();
                Ty::foreign("Vec", &types[..types.len().min(1)])
            }
            Expr::Repeat(e) => {
                let of = self.expr(&e.expr);
                Ty::foreign("Vec", &[of])
            }
            Expr::Struct(e) => {
                e.fields.iter().for_each(|field| _ = self.keep(&field.expr, true));
                e.rest.iter().for_each(|rest| _ = self.expr(rest));
                let scope = &self.func().scope;
                let ty = self.look.items.names.path(scope, &e.path);
                if let Ty::Own(key, _) = &ty {
                    // At its end.
                    let targets = self.look.owned.get(&(key.as_str(), "drop")).cloned().unwrap_or_default();
                    self.call(&targets);
                    return ty;
                }
                if e.path.segments.len() < 2 {
                    return ty;
                }
                let mut above = e.path.clone();
                above.segments.pop();
                above.segments.pop_punct();
                self.look.items.names.path(scope, &above)
            }
            Expr::Macro(e) => self.macro_(&e.mac),
            Expr::Block(e) => self.block(&e.block),
            Expr::Unsafe(e) => self.block(&e.block),
            Expr::Const(e) => self.block(&e.block),
            Expr::Loop(e) => {
                self.block(&e.body);
                Ty::Unknown
            }
            Expr::While(e) => self.scoped(|me| {
                me.expr(&e.cond);
                me.block(&e.body);
                Ty::Tuple(Vec::new())
            }),
            Expr::ForLoop(e) => {
                let over = self.expr(&e.expr);
                if let Ty::Own(key, _) = &over {
                    let targets = [self.look.find(key, "into_iter"), self.look.find(key, "next")].concat();
                    self.call(&targets);
                }
                let of = self.look.items_of(&over);
                self.scoped(|me| {
                    me.bind(&e.pat, &of);
                    me.block(&e.body);
                });
                Ty::Tuple(Vec::new())
            }
            Expr::If(e) => {
                let then = self.scoped(|me| {
                    me.expr(&e.cond);
                    me.block(&e.then_branch)
                });
                let other = e.else_branch.as_ref().map(|(_, other)| self.expr(other));
                if matches!(then, Ty::Unknown) { other.unwrap_or(Ty::Unknown) } else { then }
            }
            Expr::Let(e) => {
                let ty = self.expr(&e.expr);
                self.bind(&e.pat, &ty);
                Ty::plain()
            }
            Expr::Match(e) => {
                let of = self.expr(&e.expr);
                let mut ty = Ty::Unknown;
                for arm in &e.arms {
                    let found = self.scoped(|me| {
                        me.bind(&arm.pat, &of);
                        me.expr(&arm.body)
                    });
                    let empty = |ty: &Ty| matches!(ty, Ty::Unknown) || *ty == Ty::Tuple(Vec::new());
                    if empty(&ty) || vague(&ty) && !empty(&found) {
                        ty = found;
                    }
                }
                ty
            }
            Expr::Closure(e) => {
                let takes = vec![Ty::Unknown; e.inputs.len()];
                self.closure(e, &takes)
            }
            other => {
                visit::visit_expr(self, other);
                Ty::Unknown
            }
        }
    }

    /// Something that is put into a field: closures in it may be called from anywhere.
    fn keep(&mut self, expr: &Expr, field: bool) -> Ty {
        let kept = field && has_closure(expr) || self.kept;
        let before = std::mem::replace(&mut self.kept, kept);
        let ty = self.expr(expr);
        self.kept = before;
        ty
    }

    fn index(&mut self, of: &Ty, _at: &Ty, part: bool) -> Ty {
        match of {
            Ty::Own(key, _) => {
                let targets = [self.look.find(key, "index"), self.look.find(key, "index_mut")].concat();
                self.call(&targets);
                match self.look.items.associated.get(&(key.clone(), "Output".into())) {
                    Some((own, out)) => {
                        let mut map = BTreeMap::new();
                        own.matched(of, &mut map);
                        out.with(&map)
                    }
                    None => Ty::Unknown,
                }
            }
            Ty::Foreign(name, args) if ["BTreeMap", "HashMap"].contains(&name.as_str()) => {
                args.last().cloned().unwrap_or(Ty::Unknown)
            }
            other if part => other.clone(),
            other => element(other),
        }
    }

    fn operator(&mut self, of: &Ty, name: &str) -> Ty {
        let Ty::Own(key, _) = of else { return of.clone() };
        let found = self.look.find(key, name);
        self.call(&found);
        if found.is_empty() { of.clone() } else { self.look.returned(&found, Some(of), &[]) }
    }
}

/// Is the function a method that is called by its path, with its receiver before its parameters?
fn self_first(items: &Items<'_>, target: usize, args: usize) -> bool {
    items.funcs[target].receiver && items.funcs[target].params.len() + 1 == args
}

fn vague(ty: &Ty) -> bool {
    match ty {
        Ty::Unknown => true,
        Ty::Own(_, args) | Ty::Foreign(_, args) | Ty::Tuple(args) => args.iter().any(vague),
        _ => false,
    }
}

pub(super) fn has_closure(expr: &Expr) -> bool {
    struct Found(bool);
    impl<'a> Visit<'a> for Found {
        fn visit_expr_closure(&mut self, _: &'a syn::ExprClosure) {
            self.0 = true;
        }
    }
    let mut found = Found(false);
    found.visit_expr(expr);
    found.0
}

pub(super) fn member(member: &Member) -> String {
    match member {
        Member::Named(name) => name.to_string(),
        Member::Unnamed(at) => at.index.to_string(),
    }
}

/// The method that an operator calls; `None`: one that compares.
fn operator(op: &BinOp) -> Option<&'static str> {
    Some(match op {
        BinOp::Add(_) => "add",
        BinOp::Sub(_) => "sub",
        BinOp::Mul(_) => "mul",
        BinOp::Div(_) => "div",
        BinOp::Rem(_) => "rem",
        BinOp::BitXor(_) => "bitxor",
        BinOp::BitAnd(_) => "bitand",
        BinOp::BitOr(_) => "bitor",
        BinOp::Shl(_) => "shl",
        BinOp::Shr(_) => "shr",
        BinOp::AddAssign(_) => "add_assign",
        BinOp::SubAssign(_) => "sub_assign",
        BinOp::MulAssign(_) => "mul_assign",
        BinOp::DivAssign(_) => "div_assign",
        BinOp::RemAssign(_) => "rem_assign",
        BinOp::BitXorAssign(_) => "bitxor_assign",
        BinOp::BitAndAssign(_) => "bitand_assign",
        BinOp::BitOrAssign(_) => "bitor_assign",
        BinOp::ShlAssign(_) => "shl_assign",
        BinOp::ShrAssign(_) => "shr_assign",
        _ => return None,
    })
}

impl<'v> Visit<'v> for Walker<'_, '_> {
    fn visit_expr(&mut self, expr: &'v Expr) {
        self.expr(expr);
    }

    fn visit_item(&mut self, _: &'v syn::Item) {}
}
