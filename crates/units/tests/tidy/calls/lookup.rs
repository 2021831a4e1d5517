//! What names mean: whose method, which field.

use super::foreign::element;
use super::items::{Field, Items, Struct};
use super::source::last_of;
use super::types::{Scope, Ty};
use std::collections::BTreeMap;

/// The functions and types of a crate by their names.
pub(super) struct Lookup<'m, 'a> {
    pub(super) items: &'m Items<'a>,
    /// Methods that are called on something, by name.
    pub(super) methods: BTreeMap<&'m str, Vec<usize>>,
    /// Functions of types and traits, by these and their names.
    pub(super) owned: BTreeMap<(&'m str, &'m str), Vec<usize>>,
    pub(super) free: BTreeMap<&'m str, Vec<usize>>,
    pub(super) structs: BTreeMap<&'m str, Vec<&'m Struct<'a>>>,
    traits_of: BTreeMap<&'m str, Vec<&'m str>>,
}

impl<'m, 'a> Lookup<'m, 'a> {
    pub(super) fn new(items: &'m Items<'a>) -> Lookup<'m, 'a> {
        let mut look = Lookup {
            items,
            methods: BTreeMap::new(),
            owned: BTreeMap::new(),
            free: BTreeMap::new(),
            structs: BTreeMap::new(),
            traits_of: BTreeMap::new(),
        };
        for (i, func) in items.funcs.iter().enumerate() {
            if let Some(owner) = &func.owner {
                look.owned.entry((owner, &func.name)).or_default().push(i);
                if func.receiver {
                    look.methods.entry(&func.name).or_default().push(i);
                }
            } else {
                look.free.entry(&func.name).or_default().push(i);
            }
        }
        for def in &items.structs {
            look.structs.entry(&def.key).or_default().push(def);
        }
        for (trait_, types) in &items.implementers {
            types.iter().for_each(|ty| look.traits_of.entry(ty).or_default().push(trait_));
        }
        look
    }

    /// The methods of a type or a trait.
    pub(super) fn find(&self, key: &str, name: &str) -> Vec<usize> {
        let mut found = self.owned.get(&(key, name)).cloned().unwrap_or_default();
        // A trait's: those of all that have it.
        for ty in self.items.implementers.get(key).into_iter().flatten() {
            found.extend(self.owned.get(&(ty.as_str(), name)).into_iter().flatten());
        }
        if found.is_empty() {
            let target = self.items.associated.get(&(key.to_owned(), "Target".to_owned()));
            if let Some((_, Ty::Own(target, _))) = target.filter(|(_, t)| !matches!(t, Ty::Own(k, _) if k == key)) {
                found = self.find(target, name);
            }
        }
        if found.is_empty() {
            let traits =
                self.traits_of.get(key).into_iter().flatten().chain(self.traits_of.get("any").into_iter().flatten());
            found.extend(traits.flat_map(|t| self.owned.get(&(*t, name)).into_iter().flatten()));
            found.extend(self.owned.get(&("any", name)).into_iter().flatten());
        }
        found
    }

    /// What they return, if it is the same.
    pub(super) fn returned(&self, targets: &[usize], receiver: Option<&Ty>, args: &[Ty]) -> Ty {
        let mut all = targets.iter().map(|i| {
            let func = &self.items.funcs[*i];
            let mut map = BTreeMap::new();
            if let (Some(own), Some(actual)) = (&func.scope.own, receiver) {
                own.matched(actual, &mut map);
            }
            func.params.iter().zip(args).for_each(|((_, ty), arg)| ty.matched(arg, &mut map));
            func.ret.with(&map)
        });
        let first = all.next().unwrap_or(Ty::Unknown);
        if all.all(|ty| ty == first) { first } else { Ty::Unknown }
    }

    pub(super) fn of_trait_path(&self, module: &[String], path: &[String], name: &str) -> Vec<usize> {
        let key = if path.is_empty() { None } else { self.items.names.find(module, path) };
        key.map(|key| self.find(&key, name)).unwrap_or_default()
    }

    pub(super) fn has_variant(&self, key: &str, name: &str) -> bool {
        self.structs.get(key).into_iter().flatten().any(|def| def.variants.iter().any(|(variant, _)| variant == name))
            || !self.structs.contains_key(key) && name.starts_with(char::is_uppercase)
    }

    pub(super) fn field(&self, of: &Ty, name: &str) -> Ty {
        match of {
            Ty::Own(key, args) => {
                for def in self.structs.get(key.as_str()).into_iter().flatten() {
                    if let Some(field) = def.fields.iter().find(|field| field.name == name) {
                        return self.items.names.ty(&def.scope, field.ty).with(&Self::map(def, args));
                    }
                }
                match self.items.associated.get(&(key.clone(), "Target".into())) {
                    Some((_, target)) if target != of => self.field(&target.clone(), name),
                    _ => Ty::Unknown,
                }
            }
            Ty::Tuple(parts) => name.parse().ok().and_then(|i: usize| parts.get(i).cloned()).unwrap_or(Ty::Unknown),
            Ty::Foreign(kind, args) if kind == "Reverse" => args.first().cloned().unwrap_or(Ty::Unknown),
            _ => Ty::Unknown,
        }
    }

    fn map(def: &Struct<'_>, args: &[Ty]) -> BTreeMap<String, Ty> {
        def.params.iter().cloned().zip(args.iter().cloned()).collect()
    }

    /// The fields that a pattern of this path has, if it is a struct's or a variant's.
    pub(super) fn fields(&self, scope: &Scope, path: &syn::Path, of: &Ty) -> Vec<(String, Ty)> {
        let name = last_of(path);
        let (ty, variant) = match self.items.names.path(scope, path) {
            own @ Ty::Own(..) if !matches!(&own, Ty::Own(key, _) if self.is_enum(key)) => (own, None),
            _ => {
                let mut above = path.clone();
                above.segments.pop();
                above.segments.pop_punct();
                let of_path =
                    if above.segments.is_empty() { Ty::Unknown } else { self.items.names.path(scope, &above) };
                (if of_path == Ty::Unknown { of.clone() } else { of_path }, Some(name))
            }
        };
        let Ty::Own(key, mut args) = ty else { return Vec::new() };
        if let (true, Ty::Own(actual, more)) = (args.is_empty(), of)
            && *actual == key
        {
            args.clone_from(more);
        }
        for def in self.structs.get(key.as_str()).into_iter().flatten() {
            let fields = match &variant {
                None => Some(&def.fields),
                Some(variant) => def.variants.iter().find(|(name, _)| name == variant).map(|(_, fields)| fields),
            };
            if let Some(fields) = fields {
                let map = Self::map(def, &args);
                let ty = |field: &Field<'_>| self.items.names.ty(&def.scope, field.ty).with(&map);
                return fields.iter().map(|field| (field.name.clone(), ty(field))).collect();
            }
        }
        Vec::new()
    }

    fn is_enum(&self, key: &str) -> bool {
        self.structs.get(key).into_iter().flatten().any(|def| !def.variants.is_empty())
    }

    /// What functions expect of a closure that is their parameter.
    pub(super) fn expected(&self, targets: &[usize], receiver: usize, at: usize) -> Vec<Ty> {
        let of = |i: &usize| match self.items.funcs[*i].params.get(at.checked_sub(receiver)?) {
            Some((_, Ty::Fn(args, _))) => Some(args.clone()),
            _ => None,
        };
        targets.iter().find_map(of).unwrap_or_default()
    }

    pub(super) fn items_of(&self, ty: &Ty) -> Ty {
        match ty {
            Ty::Own(key, _) => match self.items.associated.get(&(key.clone(), "Item".into())) {
                Some((of, item)) => {
                    let mut map = BTreeMap::new();
                    of.matched(ty, &mut map);
                    item.with(&map)
                }
                None => Ty::Unknown,
            },
            other => element(other),
        }
    }
}
