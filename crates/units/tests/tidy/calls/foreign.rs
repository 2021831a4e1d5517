//! What methods of the standard library return, as far as what comes after them depends on it.

use super::types::Ty;

/// What one gets of a container.
pub(super) fn element(ty: &Ty) -> Ty {
    match ty {
        Ty::Foreign(name, args) if name == "Result" => args.first().cloned().unwrap_or(Ty::Unknown),
        Ty::Foreign(name, args) if is_map(name) => Ty::Tuple(args.clone()),
        Ty::Foreign(_, args) => args.last().cloned().unwrap_or(Ty::Unknown),
        _ => Ty::Unknown,
    }
}

fn is_map(name: &str) -> bool {
    ["BTreeMap", "HashMap"].contains(&name)
}

/// What parameters a closure has that is handed to this method.
pub(super) fn closure_takes(receiver: &Ty, method: &str, count: usize) -> Vec<Ty> {
    let element = element(receiver);
    match (receiver, method) {
        (_, "fold" | "try_fold" | "scan") => vec![Ty::Unknown, element],
        (Ty::Foreign(name, args), "retain") if is_map(name) => args.clone(),
        (Ty::Foreign(name, args), "map_err" | "or_else" | "unwrap_or_else") if name == "Result" => {
            vec![args.get(1).cloned().unwrap_or(Ty::Unknown)]
        }
        _ => vec![element; count],
    }
}

/// What `receiver.method(args)` is, where `receiver` is of another crate.
pub(super) fn returned(receiver: &Ty, method: &str, args: &[Ty]) -> Ty {
    let Ty::Foreign(name, of) = receiver else { return Ty::Unknown };
    let element = element(receiver);
    let same = || receiver.clone();
    let from_closure = |at: usize| match args.get(at) {
        Some(Ty::Fn(_, ret)) => (**ret).clone(),
        _ => Ty::Unknown,
    };
    let pair = |other: Option<&Ty>| Ty::Tuple(vec![element.clone(), self::element(other.unwrap_or(&Ty::Unknown))]);
    match method {
        "clone" | "as_ref" | "as_mut" | "as_deref" | "as_deref_mut" | "by_ref" | "to_vec" | "to_owned"
        | "borrow_mut" | "borrow" | "as_slice" | "as_mut_slice"
            if name != "RefCell" && name != "AsRef" =>
        {
            same()
        }
        "borrow" | "borrow_mut" | "lock" | "as_ref" | "as_mut" | "get"
            if ["RefCell", "AsRef", "Cell"].contains(&&**name) =>
        {
            element
        }
        "upgrade" => Ty::option(element),
        "lock" | "read" | "write" => Ty::foreign("Result", &[element]),
        "is_some" | "is_none" | "is_ok" | "is_err" | "is_empty" | "len" | "count" | "any" | "all" | "contains"
        | "contains_key" | "position" | "rposition" | "is_some_and" | "is_none_or" | "is_ok_and" | "eq" | "ne"
        | "cmp" | "to_string" | "partition_point" | "push" | "push_back" | "extend" | "clear" | "retain"
        | "for_each" => Ty::plain(),
        _ => match name.as_str() {
            "Option" => match method {
                "unwrap"
                | "expect"
                | "unwrap_or"
                | "unwrap_or_default"
                | "unwrap_or_else"
                | "insert"
                | "get_or_insert_with"
                | "get_or_insert_default"
                | "get_or_insert" => element,
                "take" | "replace" | "filter" | "or" | "or_else" | "xor" | "copied" | "cloned" | "inspect"
                | "take_if" => same(),
                "map" => Ty::option(from_closure(0)),
                "and_then" => from_closure(0),
                "map_or" | "map_or_else" => match from_closure(1) {
                    Ty::Unknown => args.first().cloned().unwrap_or(Ty::Unknown),
                    known => known,
                },
                "and" => args.first().cloned().unwrap_or(Ty::Unknown),
                "zip" => Ty::option(pair(args.first())),
                "ok_or" | "ok_or_else" => {
                    Ty::foreign("Result", &[element, args.first().cloned().unwrap_or(Ty::Unknown)])
                }
                "into_iter" | "iter" | "iter_mut" => Ty::iterator(element),
                "flatten" => element,
                _ => Ty::Unknown,
            },
            "Result" => match method {
                "unwrap" | "expect" | "unwrap_or" | "unwrap_or_default" | "unwrap_or_else" => element,
                "ok" => Ty::option(element),
                "err" | "unwrap_err" | "expect_err" => match method {
                    "err" => Ty::option(of.get(1).cloned().unwrap_or(Ty::Unknown)),
                    _ => of.get(1).cloned().unwrap_or(Ty::Unknown),
                },
                "map" => Ty::foreign("Result", &[from_closure(0), of.get(1).cloned().unwrap_or(Ty::Unknown)]),
                "map_err" => Ty::foreign("Result", &[element, from_closure(0)]),
                "and_then" => from_closure(0),
                "into_iter" | "iter" => Ty::iterator(element),
                _ => Ty::Unknown,
            },
            "BTreeMap" | "HashMap" => {
                let key = of.first().cloned().unwrap_or(Ty::Unknown);
                let value = of.get(1).cloned().unwrap_or(Ty::Unknown);
                match method {
                    "get" | "get_mut" | "remove" | "insert" => Ty::option(value),
                    "values" | "values_mut" | "into_values" => Ty::iterator(value),
                    "keys" | "into_keys" => Ty::iterator(key),
                    "entry" => Ty::foreign("Entry", &[value]),
                    "iter" | "iter_mut" | "into_iter" | "range" | "range_mut" | "drain" | "extract_if" => {
                        Ty::iterator(element)
                    }
                    "first_key_value" | "last_key_value" | "pop_first" | "pop_last" | "remove_entry" => {
                        Ty::option(element)
                    }
                    "split_off" => same(),
                    _ => Ty::Unknown,
                }
            }
            "Entry" => match method {
                "or_default" | "or_insert" | "or_insert_with" => element,
                "and_modify" => same(),
                _ => Ty::Unknown,
            },
            "Iterator" => match method {
                "next" | "next_back" | "find" | "last" | "max" | "min" | "max_by_key" | "min_by_key" | "max_by"
                | "min_by" | "nth" | "peek" | "peek_mut" | "next_if" | "reduce" => Ty::option(element),
                "find_map" => from_closure(0),
                "map" | "map_while" | "scan" => Ty::iterator(from_closure(0)),
                "filter_map" | "flat_map" => Ty::iterator(self::element(&from_closure(0))),
                "flatten" => Ty::iterator(self::element(&element)),
                "enumerate" => Ty::iterator(Ty::Tuple(vec![Ty::plain(), element])),
                "zip" => Ty::iterator(pair(args.first())),
                "collect" => Ty::foreign("Vec", &[element]),
                "partition" => Ty::Tuple(vec![Ty::foreign("Vec", &[element]); 2]),
                "filter" | "rev" | "skip" | "take" | "chain" | "peekable" | "skip_while" | "take_while" | "inspect"
                | "copied" | "cloned" | "into_iter" | "step_by" | "iter" | "fuse" => same(),
                _ => Ty::Unknown,
            },
            "Vec" | "VecDeque" | "BTreeSet" | "HashSet" | "BinaryHeap" | "str" | "String" => match method {
                "remove" | "swap_remove" if name == "Vec" => element,
                "get" | "get_mut" | "first" | "last" | "first_mut" | "last_mut" | "pop" | "front" | "back"
                | "front_mut" | "back_mut" | "pop_front" | "pop_back" | "pop_first" | "pop_last" | "remove"
                | "pop_front_if" | "pop_if" | "peek"
                    if !of.is_empty() =>
                {
                    Ty::option(element)
                }
                "iter" | "iter_mut" | "into_iter" | "drain" | "range" | "extract_if" | "union" | "intersection"
                | "difference" => Ty::iterator(element),
                "split_off" | "concat" => same(),
                "windows" | "chunks" | "chunks_exact" => Ty::iterator(same()),
                _ => Ty::plain(),
            },
            "plain" | "bool" | "u8" | "u16" | "u32" | "u64" | "u128" | "usize" | "i32" | "i64" | "char" => match method
            {
                "then" if name == "plain" || name == "bool" => Ty::option(from_closure(0)),
                "then_some" => Ty::option(args.first().cloned().unwrap_or(Ty::Unknown)),
                _ => Ty::plain(),
            },
            _ => Ty::Unknown,
        },
    }
}
