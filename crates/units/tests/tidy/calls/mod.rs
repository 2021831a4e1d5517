//! How much of a crate one must know to know what a call does: counted by calls, as imports do not show calls between
//! `impl` blocks of one type.
//!
//! The numbers of [`LIMITS`] may fall, and never rise. Who lowers one lowers its limit with the same commit.
//!
//! * A **method** of a type is a function in one of its `impl` blocks (or of a trait that it has), and also every
//!   function and every method of another type that is given one of the crate's *wholes* to change, by `&mut`, by
//!   value, in a cell, in a struct that holds one so, as a trait's object or as a type parameter. What changes the
//!   target of a type's `Deref` counts for both types; questions of the target (`&self`) count for the target only.
//! * A **call** is what `walk.rs` says: by name and receiver; what cannot be resolved is a call to all of that name.
//! * A **knot** is a set of methods each of which reaches all others. A method **reaches** itself and whatever is
//!   called on its way. Ways lead through everything that the crate has; counted are methods of one type, and the
//!   type for which the number is the highest counts. The whole crate's knot counts all functions.
//! * What the measure could not see is refused: fields that keep functions which are given a whole, and macros that
//!   name functions or types by what they are called with.
//! * **Files in a circle**: each calls, by some way over files, all others.
//! * **Fields in reach**, **bools**, **questions of dialect**: `shape.rs`.
//! * **Lines** are non-blank ones without tests, in hundreds.
//!
//! `cargo test -p urbd-units --test tidy -- --nocapture calls` prints the table. With `CALLS_OF=NAME` it prints what
//! the methods of that name call and reach, and who calls them; with `CALLS_OF=FROM..TO` one of the shortest ways;
//! with `CALLS_OF=knot` who is in it; with `CALLS_OF=unresolved` which calls were not resolved.

mod foreign;
mod graph;
mod items;
mod lookup;
mod shape;
mod source;
mod tricks;
mod types;
mod walk;

use crate::{expect_none, rust_files};
use graph::{Bits, Graph};
use items::{Func, Items};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The crates that are measured, with their wholes: who is given one of these to change can change all of it.
const CRATES: [(&str, &[&str]); 3] =
    [("core", &["Resource", "Node", "Cx"]), ("engine", &["Runner"]), ("sim", &["Cluster"])];

/// What is true today, of each of [`CRATES`] in that order.
#[rustfmt::skip]
const LIMITS: &[(&str, [usize; 3])] = &[
    // The core's have risen once: nodes without disks in 9's dialect (their handshake, generations that they begin at
    // their peers, what they trust). The engine's, too: a command is asked again of who has just closed a device.
    // And once more: several peers of a Primary without a disk (what confirms its generations, whom it trusts).
    // All three have risen for `what-if`: what a loss would do, asked and told, and compared in whole clusters.
    ("methods of the largest type", [730, 100, 232]),
    ("of these with &mut", [659, 64, 159]),
    ("knot of methods", [4, 2, 1]),
    ("knot of all functions", [4, 3, 2]),
    ("mean reach of a method", [71, 12, 24]),
    ("files in one circle of calls", [63, 7, 34]),
    ("fields in reach of a file", [415, 78, 208]),
    ("files with over 60 in reach", [66, 5, 32]),
    ("bools as fields", [149, 56, 60]),
    ("bools in fields and variants", [210, 72, 84]),
    ("questions of dialect and version", [217, 1, 1]),
    // Of a new function these may become more: the commit says for what.
    // The engine's: a process that takes volumes and peers in and lets them go; both: a node is forgotten.
    // The core's: quorum, its table, what freezes and fails without; what v08 disks make of an offer. The engine's
    // also: a handler's environment, what the keeper is told. The simulator's: seeds with quorum.
    // The core's, again: what two disks would come to (`decide::foretell`), for who looks at them.
    // The engine's: metadata that move while their device is in use, answers that wait until `events2` has printed.
    // The engine's, again: who probes beside a node that has just been left; whom a demotion by force has left behind;
    // a resource gets another name while it runs.
    // The core's, again: a copy that a command names as the good one, or as the source.
    ("lines, in hundreds", [309, 138, 107]),
];

/// What is known of a type by its methods.
struct OfType {
    methods: usize,
    acting: usize,
    knot: usize,
    /// In all, of all its methods.
    reach: usize,
}

impl OfType {
    fn mean_reach(&self) -> usize {
        {
            if self.methods > 600 {};
            (self.reach + self.methods / 2) / self.methods.max(1)
        }
    }
}

/// A crate's numbers, and whose they are.
struct Measure {
    types: BTreeMap<String, OfType>,
    numbers: Vec<(&'static str, usize, String)>,
    complaints: Vec<String>,
    listing: String,
}

impl Measure {
    /// Of the crate whose files (paths relative to its `src`) these are.
    fn of(texts: &[(String, String)], wholes: &[&str]) -> Measure {
        let (sources, mut complaints) = source::parse(texts);
        let items = Items::of(&sources, wholes);
        complaints.append(&mut items.kept_functions(wholes));
        let calls = walk::calls(&items);
        let unresolved = calls.unresolved;
        let graph = Graph { to: calls.to };
        let components = graph.components();
        let reach = graph.reach();

        let mut types: BTreeMap<String, OfType> = BTreeMap::new();
        let keys: BTreeSet<&String> = items.funcs.iter().flat_map(|func| func.counts.keys()).collect();
        for key in keys {
            let is = |i: usize| items.funcs[i].is_function() && items.funcs[i].counts.contains_key(key);
            let members: Vec<usize> = (0..items.funcs.len()).filter(|i| is(*i)).collect();
            let knot = components.iter().map(|c| c.iter().filter(|i| is(**i)).count()).max().unwrap_or(0);
            let acting = members.iter().filter(|i| items.funcs[**i].counts[key]).count();
            let reached = |i: &usize| members.iter().filter(|w| reach[*i].contains(**w)).count();
            let reach = members.iter().map(reached).sum();
            types.insert(key.clone(), OfType { methods: members.len(), acting, knot, reach });
        }
        let most = |of: &dyn Fn(&OfType) -> usize| {
            let best = types.iter().max_by_key(|(_, ty)| of(ty));
            best.map_or((0, String::new()), |(key, ty)| (of(ty), key.clone()))
        };
        let functions = |c: &Vec<usize>| c.iter().filter(|i| items.funcs[**i].is_function()).count();
        let whole_knot = components.iter().map(functions).max().unwrap_or(0);
        let files = file_circle(&items, &graph);
        let fields = shape::fields_in_reach(&items, &sources);
        let (widest, most_fields) = fields.iter().max_by_key(|(_, fields)| **fields).expect("a file");
        let (bools, all_bools) = shape::bools(&items);
        let questions = shape::questions(&sources);
        let lines: usize = sources.iter().map(|source| source.lines).sum();
        let (methods, largest) = most(&|ty| ty.methods);
        let (acting, actor) = most(&|ty| ty.acting);
        let (knot, knotted) = most(&|ty| ty.knot);
        let (reaches, reacher) = most(&OfType::mean_reach);
        let numbers = vec![
            ("methods of the largest type", methods, largest),
            ("of these with &mut", acting, actor),
            ("knot of methods", knot, knotted),
            ("knot of all functions", whole_knot, String::new()),
            ("mean reach of a method", reaches, reacher),
            ("files in one circle of calls", files.len(), String::new()),
            ("fields in reach of a file", *most_fields, widest.clone()),
            ("files with over 60 in reach", fields.values().filter(|fields| **fields > 60).count(), String::new()),
            ("bools as fields", bools, String::new()),
            ("bools in fields and variants", all_bools, String::new()),
            ("questions of dialect and version", questions.values().sum(), format!("{} files", questions.len())),
            ("lines, in hundreds", lines.div_ceil(100), lines.to_string()),
        ];
        let listing = match std::env::var("CALLS_OF") {
            Ok(what) => list(&what, &items, &graph, &reach, &components, &unresolved),
            Err(_) => String::new(),
        };
        Measure { types, numbers, complaints, listing }
    }
}

/// The largest set of files that call each other.
fn file_circle(items: &Items<'_>, graph: &Graph) -> Vec<String> {
    let files: Vec<&String> = items.funcs.iter().map(|func| &func.file).collect::<BTreeSet<_>>().into_iter().collect();
    let at = |file: &String| files.binary_search(&file).expect("a file");
    let mut to = vec![BTreeSet::new(); files.len()];
    for (i, targets) in graph.to.iter().enumerate() {
        let from = at(&items.funcs[i].file);
        to[from].extend(targets.iter().map(|w| at(&items.funcs[*w].file)).filter(|w| *w != from));
    }
    let components = Graph { to }.components();
    let largest = components.into_iter().filter(|c| c.len() > 1).max_by_key(Vec::len).unwrap_or_default();
    largest.into_iter().map(|i| files[i].clone()).collect()
}

/// What an engineer wants to see who is to lower a number.
fn list(
    what: &str,
    items: &Items<'_>,
    graph: &Graph,
    reach: &[Bits],
    components: &[Vec<usize>],
    unresolved: &BTreeSet<(usize, String)>,
) -> String {
    let name = |i: usize| {
        let func = &items.funcs[i];
        format!("{}: {}", func.file, func.owner.iter().chain([&func.name]).cloned().collect::<Vec<_>>().join("::"))
    };
    let named = |what: &str| -> Vec<usize> {
        let is = |func: &Func<'_>| {
            func.name == what || what == format!("{}::{}", func.owner.as_deref().unwrap_or(""), func.name)
        };
        (0..items.funcs.len()).filter(|i| is(&items.funcs[*i])).collect()
    };
    let mut text = String::new();
    let mut section = |title: &str, of: &mut dyn Iterator<Item = usize>| {
        let of: Vec<usize> = of.collect();
        let files: BTreeSet<&str> = of.iter().map(|i| items.funcs[*i].file.as_str()).collect();
        let mut all: Vec<String> = of.iter().map(|i| name(*i)).collect();
        all.sort();
        let _ = writeln!(text, "{title}: {} in {} files\n  {}", all.len(), files.len(), all.join("\n  "));
    };
    if what == "knot" {
        let mut knots: Vec<&Vec<usize>> = components.iter().filter(|c| c.len() > 1).collect();
        knots.sort_by_key(|knot| std::cmp::Reverse(knot.len()));
        for component in knots {
            section("these call each other", &mut component.iter().copied());
        }
    } else if what == "unresolved" {
        let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        unresolved.iter().for_each(|(caller, called)| by_name.entry(called).or_default().push(*caller));
        for (called, callers) in by_name {
            section(&format!("{called} on something unknown, by"), &mut callers.into_iter());
        }
    } else if let Some((from, to)) = what.split_once("..") {
        let ends = named(from).into_iter().flat_map(|a| named(to).into_iter().map(move |b| (a, b)));
        for way in ends.filter_map(|(a, b)| graph.way(a, b)) {
            let steps: Vec<String> = way.into_iter().map(name).collect();
            let _ = writeln!(text, "{}", steps.join("\n  -> "));
        }
    } else {
        for i in named(what) {
            section(&format!("{} calls", name(i)), &mut graph.to[i].iter().copied());
            section("and is called by", &mut (0..items.funcs.len()).filter(|w| graph.to[*w].contains(&i)));
            section("and reaches", &mut (0..items.funcs.len()).filter(|w| reach[i].contains(*w)));
        }
    }
    text
}

fn beside_limit(number: usize, limit: usize) -> Option<String> {
    match number.cmp(&limit) {
        std::cmp::Ordering::Less => Some(format!("{number}: lower the limit to {number}, from {limit}")),
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(format!("{number}: at most {limit} are allowed")),
    }
}

#[test]
fn a_number_falls_and_its_limit_with_it() {
    assert_eq!(beside_limit(3, 3), None);
    assert_eq!(beside_limit(2, 3).unwrap(), "2: lower the limit to 2, from 3");
    assert_eq!(beside_limit(4, 3).unwrap(), "4: at most 3 are allowed");
}

#[test]
fn calls_are_not_more_than_they_were() {
    let files = rust_files();
    let mut complaints = Vec::new();
    for (at, (krate, wholes)) in CRATES.iter().enumerate() {
        let folder = format!("crates/{krate}/src/");
        let own =
            files.iter().filter_map(|file| Some((file.path.strip_prefix(&folder)?.to_owned(), file.text.clone())));
        let measure = Measure::of(&own.collect::<Vec<_>>(), wholes);
        let known: Vec<&str> = measure.numbers.iter().map(|(name, ..)| *name).collect();
        assert_eq!(known, LIMITS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "the table has other numbers");
        println!("{krate}:");
        for ((name, number, whose), (_, limits)) in measure.numbers.iter().zip(LIMITS) {
            let limit = limits[at];
            println!("  {name:<34}{number:>6}  {whose}");
            let complaint = beside_limit(*number, limit);
            complaints.extend(complaint.map(|text| format!("{krate}: {name}: {text} ({whose})")));
        }
        let mut types: Vec<_> = measure.types.iter().collect();
        types.sort_by_key(|(_, ty)| std::cmp::Reverse(ty.methods));
        for (key, ty) in types.into_iter().take(8) {
            let (methods, acting, knot) = (ty.methods, ty.acting, ty.knot);
            println!("    {key:<24}{methods:>4} methods ({acting} with &mut), knot {knot}, reach {}", ty.mean_reach());
        }
        print!("{}", measure.listing);
        complaints.extend(measure.complaints.into_iter().map(|text| format!("{krate}: {text}")));
    }
    expect_none(complaints);
}
