//! What a crate has: its types with their fields, and its functions with what each may change.

use super::source::{MACRO, Source, is_test, last_of};
use super::types::{Names, Scope, Ty, arguments, parts};
use super::walk::has_closure;
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{Block, Expr, FnArg, Generics, Item, Pat, PathArguments, ReceiverKind, Signature, Type, Visibility};

/// A struct, or an enum, whose variants have fields.
pub(super) struct Struct<'a> {
    pub(super) key: String,
    pub(super) module: Vec<String>,
    pub(super) params: Vec<String>,
    pub(super) scope: Scope,
    pub(super) fields: Vec<Field<'a>>,
    pub(super) variants: Vec<(String, Vec<Field<'a>>)>,
}

pub(super) struct Field<'a> {
    pub(super) name: String,
    pub(super) ty: &'a Type,
    pub(super) vis: &'a Visibility,
}

#[derive(Clone, Copy)]
pub(super) enum Body<'a> {
    Block(&'a Block),
    Expr(&'a Expr),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Function,
    /// Declared in a trait, without a body.
    Declared,
    /// A constant or a static, which may name functions.
    Constant,
    Macro,
}

pub(super) struct Func<'a> {
    pub(super) name: String,
    pub(super) file: String,
    pub(super) kind: Kind,
    /// The type, or the trait, whose method it is.
    pub(super) owner: Option<String>,
    /// Is it called as `x.name()`?
    pub(super) receiver: bool,
    pub(super) scope: Scope,
    pub(super) params: Vec<(&'a Pat, Ty)>,
    pub(super) ret: Ty,
    pub(super) body: Option<Body<'a>>,
    /// Types of the crate that it is given to change, by reference or whole, `self` among them.
    pub(super) changes: BTreeSet<String>,
    /// The types that it counts as a method of, and if it may change them.
    pub(super) counts: BTreeMap<String, bool>,
}

impl Func<'_> {
    pub(super) fn is_function(&self) -> bool {
        self.kind == Kind::Function
    }
}

pub(super) struct Items<'a> {
    pub(super) names: Names,
    pub(super) structs: Vec<Struct<'a>>,
    pub(super) funcs: Vec<Func<'a>>,
    /// Types by the trait that they implement.
    pub(super) implementers: BTreeMap<String, BTreeSet<String>>,
    /// Associated types of implementations, such as `Target` of a `Deref`, by type and name.
    pub(super) associated: BTreeMap<(String, String), (Ty, Ty)>,
}

impl<'a> Items<'a> {
    /// `wholes`: whoever is given one of these to change counts as its method.
    pub(super) fn of(sources: &'a [Source], wholes: &[&str]) -> Items<'a> {
        let mut items = Items {
            names: names(sources),
            structs: Vec::new(),
            funcs: Vec::new(),
            implementers: BTreeMap::new(),
            associated: BTreeMap::new(),
        };
        // Traits' implementers come first: a parameter may be of any type that has a trait.
        for functions in [false, true] {
            for source in sources {
                let mut collector = Collector {
                    file: &source.path,
                    scope: Scope { module: source.module.clone(), ..Scope::default() },
                    generics: Vec::new(),
                    functions,
                    items: &mut items,
                };
                collector.visit_file(&source.ast);
            }
        }
        items.count(wholes);
        items
    }

    /// Says of each function which types it counts as a method of.
    fn count(&mut self, wholes: &[&str]) {
        let contexts = self.contexts(wholes);
        let derefs: Vec<(String, String)> = self
            .associated
            .iter()
            .filter_map(|((key, name), (_, ty))| match ty {
                Ty::Own(target, _) if name == "Target" => Some((key.clone(), target.clone())),
                _ => None,
            })
            .collect();
        for func in self.funcs.iter_mut().filter(|func| func.is_function()) {
            let mut counts: BTreeMap<String, bool> = BTreeMap::new();
            if let Some(owner) = &func.owner {
                // A method with a body in a trait is one of each type that has the trait.
                let acts = func.changes.contains(owner);
                counts.insert(owner.clone(), acts);
                counts.extend(self.implementers.get(owner).into_iter().flatten().map(|ty| (ty.clone(), acts)));
            }
            let given = func.changes.iter().chain(&func.owner).filter_map(|key| contexts.get(key)).flatten();
            let given = given.chain(func.changes.iter().filter(|key| wholes.contains(&key.as_str())));
            counts.extend(given.map(|key| (key.clone(), true)));
            // What changes a part that a type dereferences to changes that type.
            let mut grown = true;
            while grown {
                grown = false;
                for (key, target) in &derefs {
                    grown |= counts.get(target) == Some(&true) && counts.insert(key.clone(), true) != Some(true);
                }
            }
            func.counts = counts;
        }
    }

    /// Structs that hold `&mut` of a whole (or share it with interior mutability), with these: they are it.
    fn contexts(&self, wholes: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
        let mut contexts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        loop {
            let before: usize = contexts.values().map(BTreeSet::len).sum();
            for def in &self.structs {
                let (mut lent, mut own) = (BTreeSet::new(), BTreeSet::new());
                for field in def.fields.iter().chain(def.variants.iter().flat_map(|(_, fields)| fields)) {
                    self.changeable(&def.scope, &[], field.ty, Access::Held, &mut lent);
                    self.changeable(&def.scope, &[], field.ty, Access::Own, &mut own);
                }
                let mut of: BTreeSet<String> = lent.into_iter().filter(|key| wholes.contains(&key.as_str())).collect();
                of.extend(own.iter().filter_map(|key| contexts.get(key)).flatten().cloned());
                of.remove(&def.key);
                if !of.is_empty() {
                    contexts.entry(def.key.clone()).or_default().extend(of);
                }
            }
            if contexts.values().map(BTreeSet::len).sum::<usize>() == before {
                return contexts;
            }
        }
    }

    /// What those functions are given to change that are in values of a type.
    fn given_later(&self, scope: &Scope, ty: &Type) -> BTreeSet<String> {
        struct Inputs<'t>(Vec<&'t Type>);
        impl<'t> Visit<'t> for Inputs<'t> {
            fn visit_named_arg(&mut self, arg: &'t syn::NamedArg) {
                self.0.push(&arg.ty);
            }
        }
        let (mut inputs, mut all) = (Inputs(Vec::new()), BTreeSet::new());
        inputs.visit_type(ty);
        inputs.0.iter().for_each(|ty| self.changeable(scope, &[], ty, Access::Own, &mut all));
        all
    }

    /// Fields that keep functions which are given a whole: a closure in one is a method that nobody counts.
    pub(super) fn kept_functions(&self, wholes: &[&str]) -> Vec<String> {
        let mut complaints = Vec::new();
        for def in &self.structs {
            for field in def.fields.iter().chain(def.variants.iter().flat_map(|(_, fields)| fields)) {
                let given = self.given_later(&def.scope, field.ty);
                if let Some(whole) = given.iter().find(|key| wholes.contains(&key.as_str())) {
                    let (key, name) = (&def.key, &field.name);
                    complaints.push(format!("{key}.{name}: keeps functions that change {whole}: call them by name"));
                }
            }
        }
        complaints
    }

    /// Types of the crate that who has one of `ty` may change.
    fn changeable(&self, scope: &Scope, generics: &[&Generics], ty: &Type, access: Access, out: &mut BTreeSet<String>) {
        match ty {
            Type::Reference(t) => {
                let within = if t.mutability.is_none() { Access::Shared } else { access.lent() };
                self.changeable(scope, generics, &t.elem, within, out);
            }
            Type::Paren(t) => self.changeable(scope, generics, &t.elem, access, out),
            Type::Group(t) => self.changeable(scope, generics, &t.elem, access, out),
            Type::Ptr(t) => self.changeable(scope, generics, &t.elem, Access::Lent, out),
            Type::Slice(t) => self.changeable(scope, generics, &t.elem, access, out),
            Type::Array(t) => self.changeable(scope, generics, &t.elem, access, out),
            Type::Tuple(t) => t.elems.iter().for_each(|t| self.changeable(scope, generics, t, access, out)),
            // Who keeps a function has nothing that it could be called with.
            Type::FnPtr(t) if access != Access::Held => {
                t.inputs.iter().for_each(|arg| self.changeable(scope, generics, &arg.ty, Access::Held, out));
            }
            Type::ImplTrait(t) => self.changeable_by(scope, generics, t.bounds.iter(), access, out),
            Type::TraitObject(t) => self.changeable_by(scope, generics, t.bounds.iter(), access, out),
            Type::Path(t) => {
                let names = parts(&t.path);
                let param = generics.iter().flat_map(|g| g.type_params()).find(|p| names == [p.ident.to_string()]);
                if let Some(param) = param {
                    self.changeable_by(scope, &[], param.bounds.iter(), access, out);
                    for predicate in generics.iter().flat_map(|g| &g.where_clause).flat_map(|clause| &clause.predicates)
                    {
                        if let syn::WherePredicate::Type(p) = predicate
                            && let Type::Path(path) = &p.bounded_ty
                            && path.path.is_ident(&param.ident)
                        {
                            self.changeable_by(scope, &[], p.bounds.iter(), access, out);
                        }
                    }
                    return;
                }
                let found = if names == ["Self"] {
                    scope.own.clone().and_then(|ty| if let Ty::Own(key, _) = ty { Some(key) } else { None })
                } else {
                    self.names.find(&scope.module, &names)
                };
                if let Some((module, _, ty)) = found.as_ref().and_then(|key| self.names.aliases.get(key)) {
                    let scope = Scope { module: module.clone(), ..Scope::default() };
                    self.changeable(&scope, &[], ty, access, out);
                } else if let Some(key) = found
                    && access.changes()
                {
                    out.extend(self.implementers.get(&key).into_iter().flatten().cloned());
                    out.insert(key);
                }
                let within = match last_of(&t.path).as_str() {
                    "Cell" | "RefCell" | "Mutex" | "RwLock" | "UnsafeCell" | "RefMut" | "MutexGuard" => Access::Lent,
                    "Rc" | "Arc" | "Weak" | "Ref" => Access::Shared,
                    _ => access,
                };
                for segment in &t.path.segments {
                    arguments(&segment.arguments).for_each(|t| self.changeable(scope, generics, t, within, out));
                }
            }
            _ => {}
        }
    }

    fn changeable_by<'b>(
        &self,
        scope: &Scope,
        generics: &[&Generics],
        bounds: impl Iterator<Item = &'b syn::TypeParamBound>,
        access: Access,
        out: &mut BTreeSet<String>,
    ) {
        for bound in bounds {
            let syn::TypeParamBound::Trait(bound) = bound else { continue };
            let Some(last) = bound.path.segments.last() else { continue };
            if let PathArguments::Parenthesized(args) = &last.arguments
                && access != Access::Held
            {
                args.inputs.iter().for_each(|arg| self.changeable(scope, generics, &arg.ty, Access::Held, out));
            }
            if let PathArguments::AngleBracketed(list) = &last.arguments {
                for arg in &list.args {
                    match arg {
                        syn::GenericArgument::Type(t) => self.changeable(scope, generics, t, access.lent(), out),
                        syn::GenericArgument::AssocType(t) => {
                            self.changeable(scope, generics, &t.ty, access.lent(), out);
                        }
                        _ => {}
                    }
                }
            }
            if access.changes()
                && let Some(key) = self.names.find(&scope.module, &parts(&bound.path))
            {
                out.extend(self.implementers.get(&key).into_iter().flatten().cloned());
            }
        }
    }
}

/// How one comes to a type within another one.
#[derive(Clone, Copy, PartialEq)]
enum Access {
    /// By value, as a function's argument.
    Own,
    /// By value, as a field, which makes no context.
    Held,
    /// By `&mut`, or through a cell.
    Lent,
    /// By `&`.
    Shared,
}

impl Access {
    fn changes(self) -> bool {
        matches!(self, Access::Own | Access::Lent)
    }

    fn lent(self) -> Access {
        if self == Access::Shared { self } else { Access::Lent }
    }
}

/// Names of types and modules, and what is imported where.
fn names(sources: &[Source]) -> Names {
    let mut names = Names::default();
    for source in sources {
        let mut finder = Finder { module: source.module.clone(), names: &mut names };
        finder.name_module();
        finder.visit_file(&source.ast);
    }
    for places in names.places.values_mut() {
        places.sort();
        places.dedup();
    }
    names.aliases = std::mem::take(&mut names.aliases)
        .into_values()
        .map(|(module, mut params, ty)| {
            let name = params.remove(0);
            (names.key(&name, &module), (module, params, ty))
        })
        .collect();
    names
}

struct Finder<'a> {
    module: Vec<String>,
    names: &'a mut Names,
}

impl Finder<'_> {
    fn name_module(&mut self) {
        if let Some(name) = self.module.last() {
            self.names.modules.entry(name.clone()).or_default().push(self.module.clone());
        }
    }

    fn name(&mut self, name: &syn::Ident) {
        self.names.places.entry(name.to_string()).or_default().push(self.module.clone());
    }

    fn import(&mut self, tree: &syn::UseTree, before: &[String]) {
        let path = |name: &syn::Ident| [before.to_vec(), vec![name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(p) => self.import(&p.tree, &path(&p.ident)),
            syn::UseTree::Group(g) => g.items.iter().for_each(|tree| self.import(tree, before)),
            syn::UseTree::Name(n) if n.ident == "self" => {
                if let Some(last) = before.last() {
                    self.used(last.clone(), before.to_vec());
                }
            }
            syn::UseTree::Name(n) => self.used(n.ident.to_string(), path(&n.ident)),
            syn::UseTree::Rename(r) => self.used(r.rename.to_string(), path(&r.ident)),
            _ => {}
        }
    }

    fn used(&mut self, name: String, path: Vec<String>) {
        self.names.uses.entry(self.module.clone()).or_default().insert(name, path);
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item(&mut self, item: &'a Item) {
        if is_test(super::source::attributes(item)) {
            return;
        }
        match item {
            Item::Struct(i) => self.name(&i.ident),
            Item::Enum(i) => self.name(&i.ident),
            Item::Union(i) => self.name(&i.ident),
            Item::Trait(i) => self.name(&i.ident),
            Item::Type(i) => {
                self.name(&i.ident);
                let params = i.generics.type_params().map(|p| p.ident.to_string());
                let alias = (self.module.clone(), std::iter::once(i.ident.to_string()).chain(params).collect());
                let key = format!("{} of {}", i.ident, self.module.join("::"));
                self.names.aliases.insert(key, (alias.0, alias.1, (*i.ty).clone()));
            }
            Item::Use(i) => self.import(&i.tree, &[]),
            _ => {}
        }
        if let Item::Mod(module) = item {
            self.module.push(module.ident.to_string());
            self.name_module();
            visit::visit_item(self, item);
            self.module.pop();
        } else {
            visit::visit_item(self, item);
        }
    }
}

struct Collector<'i, 'a> {
    file: &'i str,
    scope: Scope,
    generics: Vec<&'a Generics>,
    /// Functions are collected; else everything else.
    functions: bool,
    items: &'i mut Items<'a>,
}

impl<'a> Collector<'_, 'a> {
    fn fields(fields: &'a syn::Fields) -> Vec<Field<'a>> {
        let name = |(i, field): (usize, &'a syn::Field)| Field {
            name: field.ident.as_ref().map_or(i.to_string(), ToString::to_string),
            ty: &field.ty,
            vis: &field.vis,
        };
        fields.iter().enumerate().map(name).collect()
    }

    fn define(
        &mut self,
        name: &syn::Ident,
        generics: &'a Generics,
        fields: Vec<Field<'a>>,
        variants: Vec<(String, Vec<Field<'a>>)>,
    ) {
        let mut scope = self.scope.clone();
        self.items.names.generics(&mut scope, generics);
        let key = self.items.names.key(&name.to_string(), &scope.module);
        let params = generics.type_params().map(|p| p.ident.to_string()).collect();
        let module = scope.module.clone();
        self.items.structs.push(Struct { key, module, params, scope, fields, variants });
    }

    fn function(&mut self, sig: &'a Signature, body: Option<&'a Block>, owner: Option<String>) {
        if !self.functions {
            return;
        }
        let mut scope = self.scope.clone();
        self.items.names.generics(&mut scope, &sig.generics);
        let generics: Vec<&Generics> = self.generics.iter().copied().chain([&sig.generics]).collect();
        let (mut params, mut changes, mut receiver) = (Vec::new(), BTreeSet::new(), false);
        for input in &sig.inputs {
            match input {
                FnArg::Receiver(own) => {
                    receiver = true;
                    let changed = match &own.kind {
                        ReceiverKind::Value => true,
                        ReceiverKind::Reference(_, _, mutable) => mutable.is_some(),
                        ReceiverKind::Typed(_, ty) => {
                            let mut all = BTreeSet::new();
                            self.items.changeable(&scope, &generics, ty, Access::Own, &mut all);
                            !all.is_empty()
                        }
                        _ => true,
                    };
                    changes.extend(owner.clone().filter(|_| changed));
                }
                FnArg::Typed(typed) => {
                    params.push((&*typed.pat, self.items.names.ty(&scope, &typed.ty)));
                    self.items.changeable(&scope, &generics, &typed.ty, Access::Own, &mut changes);
                }
            }
        }
        if let syn::ReturnType::Type(_, ty) = &sig.output {
            // It makes a closure that is a method.
            changes.append(&mut self.items.given_later(&scope, ty));
        }
        let name = sig.ident.to_string();
        let is_macro = name.starts_with(MACRO);
        let kind = if is_macro { Kind::Macro } else { body.map_or(Kind::Declared, |_| Kind::Function) };
        let ret = self.items.names.ret(&scope, &sig.output);
        self.items.funcs.push(Func {
            name,
            file: self.file.to_owned(),
            kind,
            owner,
            receiver,
            scope,
            params,
            ret,
            body: body.map(Body::Block),
            changes,
            counts: BTreeMap::new(),
        });
    }

    fn constant(&mut self, name: &syn::Ident, ty: &'a Type, value: &'a Expr, owner: Option<String>) {
        if self.functions {
            let ret = self.items.names.ty(&self.scope, ty);
            let changes = self.items.given_later(&self.scope, ty);
            let is_method = !changes.is_empty() && has_closure(value);
            self.items.funcs.push(Func {
                name: name.to_string(),
                file: self.file.to_owned(),
                kind: if is_method { Kind::Function } else { Kind::Constant },
                owner,
                receiver: false,
                scope: self.scope.clone(),
                params: Vec::new(),
                ret,
                body: Some(Body::Expr(value)),
                changes,
                counts: BTreeMap::new(),
            });
        }
    }

    /// Functions of an impl or a trait.
    fn within(&mut self, own: Ty, generics: &'a Generics, go: impl FnOnce(&mut Self)) {
        let scope = self.scope.clone();
        self.items.names.generics(&mut self.scope, generics);
        self.scope.own = Some(own);
        self.generics.push(generics);
        go(self);
        self.generics.pop();
        self.scope = scope;
    }

    fn implement(&mut self, item: &'a syn::ItemImpl) {
        let mut scope = self.scope.clone();
        self.items.names.generics(&mut scope, &item.generics);
        let own = self.items.names.ty(&scope, &item.self_ty);
        let owner = match &own {
            Ty::Own(key, _) => Some(key.clone()),
            Ty::Foreign(name, _) => Some(format!("foreign {name}")),
            _ => Some("any".to_owned()),
        };
        let trait_ = item.trait_.as_ref().and_then(|(path, _)| self.items.names.find(&self.scope.module, &parts(path)));
        if let (Some(trait_), Some(owner), false) = (trait_, &owner, self.functions) {
            self.items.implementers.entry(trait_).or_default().insert(owner.clone());
        }
        self.within(own.clone(), &item.generics, |me| {
            for inner in &item.items {
                match inner {
                    syn::ImplItem::Fn(f) if !is_test(&f.attrs) => {
                        me.function(&f.sig, Some(&f.block), owner.clone());
                        visit::visit_block(me, &f.block);
                    }
                    syn::ImplItem::Const(c) => me.constant(&c.ident, &c.ty, &c.expr, owner.clone()),
                    syn::ImplItem::Type(t) => {
                        let ty = me.items.names.ty(&me.scope, &t.ty);
                        let key = (owner.clone().unwrap_or_default(), t.ident.to_string());
                        me.items.associated.insert(key, (own.clone(), ty));
                    }
                    _ => {}
                }
            }
        });
    }

    fn declare(&mut self, item: &'a syn::ItemTrait) {
        let key = self.items.names.key(&item.ident.to_string(), &self.scope.module);
        self.within(Ty::Own(key.clone(), Vec::new()), &item.generics, |me| {
            for inner in &item.items {
                if let syn::TraitItem::Fn(f) = inner {
                    me.function(&f.sig, f.default.as_ref(), Some(key.clone()));
                    f.default.iter().for_each(|block| visit::visit_block(me, block));
                }
            }
        });
    }
}

impl<'a> Visit<'a> for Collector<'_, 'a> {
    fn visit_item(&mut self, item: &'a Item) {
        if is_test(super::source::attributes(item)) {
            return;
        }
        match item {
            Item::Mod(module) => {
                self.scope.module.push(module.ident.to_string());
                visit::visit_item(self, item);
                self.scope.module.pop();
            }
            Item::Struct(i) if !self.functions => {
                self.define(&i.ident, &i.generics, Self::fields(&i.fields), Vec::new())
            }
            Item::Enum(i) if !self.functions => {
                let variants = i.variants.iter().map(|v| (v.ident.to_string(), Self::fields(&v.fields))).collect();
                self.define(&i.ident, &i.generics, Vec::new(), variants);
            }
            Item::Fn(i) => {
                // One within another function knows nothing of what that is a method of.
                let scope = self.scope.clone();
                self.scope.own = None;
                self.function(&i.sig, Some(&i.block), None);
                visit::visit_item(self, item);
                self.scope = scope;
            }
            Item::Const(i) => self.constant(&i.ident, &i.ty, &i.expr, None),
            Item::Static(i) => self.constant(&i.ident, &i.ty, &i.expr, None),
            Item::Impl(i) => self.implement(i),
            Item::Trait(i) => self.declare(i),
            _ => {}
        }
    }
}
