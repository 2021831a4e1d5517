//! Names of types, as far as one needs them to say whose method is called.

use std::collections::BTreeMap;
use syn::{GenericArgument, PathArguments, ReturnType, Type, TypeParamBound};

/// A type without its references, boxes and lifetimes.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Ty {
    Unknown,
    /// A struct, enum or trait of the crate, by its key in [`Names`].
    Own(String, Vec<Ty>),
    /// Of another crate, or of the language.
    Foreign(String, Vec<Ty>),
    Tuple(Vec<Ty>),
    /// A closure or a pointer to a function.
    Fn(Vec<Ty>, Box<Ty>),
    /// A type parameter, of which no trait says more.
    Param(String),
}

impl Ty {
    pub(super) fn foreign(name: &str, args: &[Ty]) -> Ty {
        Ty::Foreign(name.into(), args.to_vec())
    }

    pub(super) fn plain() -> Ty {
        Ty::foreign("plain", &[])
    }

    pub(super) fn option(of: Ty) -> Ty {
        Ty::foreign("Option", &[of])
    }

    pub(super) fn iterator(of: Ty) -> Ty {
        Ty::foreign("Iterator", &[of])
    }

    /// With type parameters replaced.
    pub(super) fn with(&self, map: &BTreeMap<String, Ty>) -> Ty {
        let all = |args: &[Ty]| args.iter().map(|arg| arg.with(map)).collect::<Vec<_>>();
        match self {
            Ty::Own(name, args) => Ty::Own(name.clone(), all(args)),
            Ty::Foreign(name, args) => Ty::Foreign(name.clone(), all(args)),
            Ty::Tuple(args) => Ty::Tuple(all(args)),
            Ty::Fn(args, ret) => Ty::Fn(all(args), Box::new(ret.with(map))),
            Ty::Param(name) => map.get(name).cloned().unwrap_or(Ty::Unknown),
            Ty::Unknown => Ty::Unknown,
        }
    }

    /// Which parameters of this type are what in that one.
    pub(super) fn matched(&self, actual: &Ty, map: &mut BTreeMap<String, Ty>) {
        match (self, actual) {
            (Ty::Param(name), actual) => _ = map.entry(name.clone()).or_insert_with(|| actual.clone()),
            (Ty::Own(_, a), Ty::Own(_, b)) | (Ty::Foreign(_, a), Ty::Foreign(_, b)) | (Ty::Tuple(a), Ty::Tuple(b)) => {
                a.iter().zip(b).for_each(|(a, b)| a.matched(b, map));
            }
            _ => {}
        }
    }
}

/// What names of types mean where they are used.
#[derive(Default)]
pub(super) struct Names {
    /// Of each name of a struct, enum, trait or alias, the modules that have one.
    pub(super) places: BTreeMap<String, Vec<Vec<String>>>,
    /// Of each module, what its `use` lines name, with the whole path from the crate's head, or from another crate.
    pub(super) uses: BTreeMap<Vec<String>, BTreeMap<String, Vec<String>>>,
    /// The crate's own modules, by their last name.
    pub(super) modules: BTreeMap<String, Vec<Vec<String>>>,
    /// `type X = ...`, by key.
    pub(super) aliases: BTreeMap<String, (Vec<String>, Vec<String>, Type)>,
}

/// Where a type is named.
#[derive(Clone, Default)]
pub(super) struct Scope {
    pub(super) module: Vec<String>,
    pub(super) own: Option<Ty>,
    pub(super) params: BTreeMap<String, Ty>,
}

impl Names {
    pub(super) fn key(&self, name: &str, module: &[String]) -> String {
        match self.places.get(name) {
            Some(places) if places.len() > 1 => format!("{name} of {}", module.join("::")),
            _ => name.to_owned(),
        }
    }

    /// The whole path: `crate`, `self`, `super` and what was imported are replaced. `None`: another crate's.
    pub(super) fn whole(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let (mut at, mut rest) = (module.to_vec(), path);
        match path.first()?.as_str() {
            "crate" => (at, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                if let Some(used) = self.uses.get(module).and_then(|uses| uses.get(first)) {
                    if used.first().is_some_and(|part| part == first) && used.len() == 1 {
                        return None;
                    }
                    let all = [used.clone(), path[1..].to_vec()].concat();
                    return match used[0].as_str() {
                        "crate" | "self" | "super" => self.whole(module, &all),
                        root if self.is_module(module, root) => {
                            self.whole(module, &[vec!["self".into()], all].concat())
                        }
                        _ => None,
                    };
                }
                if path.len() > 1 && !self.is_module(module, first) && !self.places.contains_key(first) {
                    return None;
                }
            }
        }
        Some([at, rest.to_vec()].concat())
    }

    fn is_module(&self, within: &[String], name: &str) -> bool {
        self.modules.get(name).is_some_and(|all| all.iter().any(|m| m[..m.len() - 1] == *within || m.len() == 1))
    }

    /// The key of what a path names, if it is a type of this crate.
    pub(super) fn find(&self, module: &[String], path: &[String]) -> Option<String> {
        let whole = self.whole(module, path)?;
        let (name, within) = whole.split_last()?;
        let places = self.places.get(name)?;
        let place = match places.as_slice() {
            [one] => one,
            all => {
                let exact = all.iter().find(|place| *place == within);
                exact.or_else(|| {
                    // Handed on by a module above it.
                    let mut beneath = all.iter().filter(|place| place.starts_with(within));
                    beneath.next().filter(|_| beneath.next().is_none())
                })?
            }
        };
        Some(self.key(name, place))
    }

    pub(super) fn ty(&self, scope: &Scope, ty: &Type) -> Ty {
        match ty {
            Type::Reference(t) => self.ty(scope, &t.elem),
            Type::Paren(t) => self.ty(scope, &t.elem),
            Type::Group(t) => self.ty(scope, &t.elem),
            Type::Ptr(t) => self.ty(scope, &t.elem),
            Type::Slice(t) => Ty::foreign("Vec", &[self.ty(scope, &t.elem)]),
            Type::Array(t) => Ty::foreign("Vec", &[self.ty(scope, &t.elem)]),
            Type::Tuple(t) => Ty::Tuple(t.elems.iter().map(|t| self.ty(scope, t)).collect()),
            Type::ImplTrait(t) => self.bounds(scope, t.bounds.iter()).unwrap_or(Ty::Unknown),
            Type::TraitObject(t) => self.bounds(scope, t.bounds.iter()).unwrap_or(Ty::Unknown),
            Type::FnPtr(t) => Ty::Fn(
                t.inputs.iter().map(|arg| self.ty(scope, &arg.ty)).collect(),
                Box::new(self.ret(scope, &t.output)),
            ),
            Type::Path(t) if t.qself.is_none() => self.path(scope, &t.path),
            _ => Ty::Unknown,
        }
    }

    pub(super) fn ret(&self, scope: &Scope, ret: &ReturnType) -> Ty {
        match ret {
            ReturnType::Default => Ty::Tuple(Vec::new()),
            ReturnType::Type(_, ty) => self.ty(scope, ty),
        }
    }

    pub(super) fn path(&self, scope: &Scope, path: &syn::Path) -> Ty {
        let names = parts(path);
        let Some(last) = path.segments.last() else { return Ty::Unknown };
        let args = arguments(&last.arguments).map(|t| self.ty(scope, t)).collect::<Vec<_>>();
        let name = last.ident.to_string();
        if names.len() == 1 {
            if name == "Self" {
                return scope.own.clone().unwrap_or(Ty::Unknown);
            }
            if let Some(param) = scope.params.get(&name) {
                return param.clone();
            }
        } else if names[0] == "Self" || scope.params.contains_key(&names[0]) {
            return Ty::Unknown;
        }
        if let Some(key) = self.find(&scope.module, &names) {
            if let Some((module, params, ty)) = self.aliases.get(&key) {
                let params = params.iter().cloned().zip(args).collect();
                return self.ty(&Scope { module: module.clone(), own: None, params }, ty);
            }
            return Ty::Own(key, args);
        }
        match name.as_str() {
            "Box" | "Rc" | "Arc" | "Pin" | "Ref" | "RefMut" | "MutexGuard" | "Cow" | "ManuallyDrop" | "Reverse" => {
                args.into_iter().next_back().unwrap_or(Ty::Unknown)
            }
            "Iter" | "IterMut" | "IntoIter" | "Drain" | "Peekable" | "Rev" | "Values" | "ValuesMut" | "Range"
            | "RangeInclusive" => Ty::iterator(args.into_iter().next_back().unwrap_or(Ty::Unknown)),
            _ => Ty::Foreign(name, args),
        }
    }

    /// What traits say of a type: a closure's signature, an iterator's item, or a trait of this crate.
    pub(super) fn bounds<'a>(&self, scope: &Scope, bounds: impl Iterator<Item = &'a TypeParamBound>) -> Option<Ty> {
        let mut found = None;
        for bound in bounds {
            let TypeParamBound::Trait(bound) = bound else { continue };
            let last = bound.path.segments.last()?;
            let name = last.ident.to_string();
            if let PathArguments::Parenthesized(args) = &last.arguments {
                let inputs = args.inputs.iter().map(|arg| self.ty(scope, &arg.ty)).collect();
                return Some(Ty::Fn(inputs, Box::new(self.ret(scope, &args.output))));
            }
            if name.ends_with("Iterator") {
                return Some(Ty::iterator(
                    associated(&last.arguments, "Item").map_or(Ty::Unknown, |t| self.ty(scope, t)),
                ));
            }
            let derefs = ["AsMut", "AsRef", "Borrow", "BorrowMut", "Into"].contains(&name.as_str());
            if let Some(inner) = arguments(&last.arguments).next().filter(|_| derefs) {
                found = Some(Ty::foreign("AsRef", &[self.ty(scope, inner)]));
            } else if let Some(target) = associated(&last.arguments, "Target") {
                found = Some(self.ty(scope, target));
            } else if let Some(key) = self.find(&scope.module, &parts(&bound.path)) {
                found = Some(Ty::Own(key, Vec::new()));
            }
        }
        found
    }

    /// The scope of a function: its type parameters, and those of what it is in.
    pub(super) fn generics(&self, scope: &mut Scope, generics: &syn::Generics) {
        for param in generics.type_params() {
            scope.params.insert(param.ident.to_string(), Ty::Param(param.ident.to_string()));
        }
        for param in generics.type_params() {
            if let Some(ty) = self.bounds(scope, param.bounds.iter()) {
                scope.params.insert(param.ident.to_string(), ty);
            }
        }
        for predicate in generics.where_clause.iter().flat_map(|clause| &clause.predicates) {
            if let syn::WherePredicate::Type(predicate) = predicate
                && let Type::Path(path) = &predicate.bounded_ty
                && let Some(name) = path.path.get_ident()
                && let Some(ty) = self.bounds(scope, predicate.bounds.iter())
            {
                scope.params.insert(name.to_string(), ty);
            }
        }
    }
}

pub(super) fn parts(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

/// The types among a path's arguments.
pub(super) fn arguments(args: &PathArguments) -> impl Iterator<Item = &Type> {
    let list = match args {
        PathArguments::AngleBracketed(list) => Some(&list.args),
        _ => None,
    };
    list.into_iter().flatten().filter_map(|arg| match arg {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}

fn associated<'a>(args: &'a PathArguments, name: &str) -> Option<&'a Type> {
    let PathArguments::AngleBracketed(list) = args else { return None };
    list.args.iter().find_map(|arg| match arg {
        GenericArgument::AssocType(assoc) if assoc.ident == name => Some(&assoc.ty),
        _ => None,
    })
}
