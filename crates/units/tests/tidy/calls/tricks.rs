//! The measure is not fooled: a small core is cut by each trick that hides a call or a method, and is still what it
//! was.

use super::Measure;

/// What all tricks hide: `a`, `b` and `c` call each other.
const HEAD: &str = "pub struct Resource { n: u32, part: Part } pub struct Part { n: u32 }";
const REST: &str = "impl Resource {
    pub fn on(&mut self) { self.begin(); if self.is() { self.a(); } }
    fn begin(&mut self) { self.n += 1; }
    fn is(&self) -> bool { self.n > 0 }
    fn end(&mut self) { self.n -= 1; }
}";
const A: &str = "impl Resource { fn a(&mut self) { self.b(); } }";
const B: &str = "impl Resource { fn b(&mut self) { self.c(); } }";
const C: &str = "impl Resource { fn c(&mut self) { self.a(); self.end(); } }";

/// Methods, those that act, the knot, and how many methods all of them reach together.
type Figures = (usize, usize, usize, usize);

fn measure(files: &[(&str, String)]) -> Measure {
    let texts: Vec<_> = files.iter().map(|(path, text)| ((*path).to_owned(), text.clone())).collect();
    Measure::of(&texts, &["Resource", "Node", "Cx"])
}

fn figures_of(measure: &Measure, ty: &str) -> Figures {
    assert_eq!(measure.complaints, Vec::<String>::new());
    let ty = &measure.types[ty];
    (ty.methods, ty.acting, ty.knot, ty.reach)
}

/// With these in the place of `a` and `b`.
fn cut(a: &str, b: &str) -> Figures {
    figures_of(&measure(&[("lib.rs", [HEAD, REST, a, b, C].join("\n"))]), "Resource")
}

fn uncut() -> Figures {
    cut(A, B)
}

/// So many methods that the trick itself needs are there in addition: ways lead through them, or to them, and they
/// may be in the knot.
fn assert_not_fooled(cut: Figures, more: usize) {
    let whole = uncut();
    assert_eq!((cut.0, cut.1), (whole.0 + more, whole.1 + more));
    assert!((whole.2..=whole.2 + more).contains(&cut.2), "a knot of {}, not {}", cut.2, whole.2);
    assert!(cut.3 >= whole.3 + more, "{cut:?} reach less than {whole:?}");
    assert!(more > 0 || cut.3 == whole.3, "{cut:?} reach more than {whole:?}");
}

#[test]
fn the_core_that_is_cut_has_a_knot() {
    // `on` reaches all seven; `a`, `b` and `c` each other and `end`.
    assert_eq!(uncut(), (7, 6, 3, 7 + 3 * 4 + 3));
    let all = measure(&[("lib.rs", [HEAD, REST, A, B, C].join("\n"))]);
    let number = |name| all.numbers.iter().find(|(known, ..)| *known == name).unwrap().1;
    assert_eq!(number("knot of all functions"), 3);
    assert_eq!(number("mean reach of a method"), 3);
    assert_eq!(number("files in one circle of calls"), 0);
}

#[test]
fn another_file() {
    let use_it = "use crate::Resource;\n";
    let files = [("lib.rs", [HEAD, REST, A, C].join("\n")), ("b.rs", [use_it, B].concat())];
    let all = measure(&files);
    assert_not_fooled(figures_of(&all, "Resource"), 0);
    assert_eq!(all.numbers.iter().find(|(name, ..)| *name == "files in one circle of calls").unwrap().1, 2);
}

#[test]
fn a_free_function() {
    for b in [
        "fn b(r: &mut Resource) { r.c(); }",
        "fn b(r: Option<&mut Resource>) { if let Some(r) = r { r.c(); } }",
        "fn b((r, _): (&mut Resource, u32)) { r.c(); }",
        "type R = Resource; fn b(r: &mut R) { r.c(); }",
        "fn b(r: &mut impl AsMut<Resource>) { r.as_mut().c(); }",
        "fn b<R: AsMut<Resource>>(r: &mut R) { r.as_mut().c(); }",
        "fn b<R>(r: &mut R) where R: std::ops::DerefMut<Target = Resource> { r.c(); }",
        "fn b(r: Box<Resource>) { r.c(); }",
        "fn b(r: &std::cell::RefCell<Resource>) { r.borrow_mut().c(); }",
    ] {
        assert_not_fooled(cut("impl Resource { fn a(&mut self) { b(self); } }", b), 0);
    }
    let renamed = ("b.rs", "use crate::Resource as Other;\npub fn b(r: &mut Other) { r.c(); }".to_owned());
    let a = "use b::b as step; impl Resource { fn a(&mut self) { step(self); } }";
    let files = [("lib.rs", [HEAD, REST, a, C].join("\n")), renamed];
    assert_not_fooled(figures_of(&measure(&files), "Resource"), 0);
    let a = "impl Resource { fn a(&mut self) { fn go(r: &mut Resource) { r.b(); } go(self); } }";
    assert_not_fooled(cut(a, B), 1);
}

#[test]
fn a_method_of_another_type() {
    for a in ["Step.b(self);", "Step::b(&Step, self);", "let step = Step; step.b(self);"] {
        let a = format!("impl Resource {{ fn a(&mut self) {{ {a} }} }}");
        assert_not_fooled(cut(&a, "struct Step; impl Step { fn b(&self, r: &mut Resource) { r.c(); } }"), 0);
    }
}

#[test]
fn a_context() {
    let a = "impl Resource { fn a(&mut self) { Cx { r: self, more: 0 }.b(); } }";
    for b in [
        "struct Cx<'a> { r: &'a mut Resource, more: u32 } impl Cx<'_> { fn b(self) { self.r.c(); } }",
        "struct Cx<'a> { r: &'a mut Resource, more: u32 } impl Cx<'_> { fn b(&mut self) { self.r.c(); } }",
        "struct Cx<'a> { r: &'a std::cell::RefCell<Resource>, more: u32 } impl Cx<'_> { fn b(&self) { self.r.borrow_mut().c(); } }",
    ] {
        assert_not_fooled(cut(a, b), 0);
        // Whatever its name is.
        assert_not_fooled(cut(&a.replace("Cx", "Hand"), &b.replace("Cx", "Hand")), 0);
    }
    let given = "struct Cx<'a> { r: &'a mut Resource } struct Outer<'a> { cx: Cx<'a> }
        fn b(outer: Outer<'_>) { outer.cx.r.c(); }";
    assert_not_fooled(cut("impl Resource { fn a(&mut self) { b(Outer { cx: Cx { r: self } }); } }", given), 0);
}

#[test]
fn what_it_dereferences_to() {
    let split = "pub struct Resource { node: Node } pub struct Node { n: u32 }
        impl std::ops::Deref for Resource { type Target = Node; fn deref(&self) -> &Node { &self.node } }
        impl std::ops::DerefMut for Resource { fn deref_mut(&mut self) -> &mut Node { &mut self.node } }
        impl Resource {
            pub fn on(&mut self) { self.begin(); if self.is() { self.a(); } }
            fn is(&self) -> bool { self.n > 0 }
        }
        impl Node {
            fn begin(&mut self) { self.n += 1; }
            fn end(&mut self) { self.n -= 1; }
            fn a(&mut self) { self.b(); }
            fn b(&mut self) { self.c(); }
            fn c(&mut self) { self.a(); self.end(); }
        }";
    let (methods, acting, knot, reach) = uncut();
    let cut = measure(&[("lib.rs", split.to_owned())]);
    // And `deref` and `deref_mut`.
    assert_eq!(figures_of(&cut, "Resource"), (methods + 2, acting + 1, knot, reach + 2));

    // A question of what the node knows is where it belongs.
    let question = "fn is(&self) -> bool { self.n > 0 }";
    let moved = split.replace(question, "").replace("impl Node {", &format!("impl Node {{ {question}"));
    let (cut, knot_then, ..) = (figures_of(&measure(&[("lib.rs", moved)]), "Resource"), knot);
    assert_eq!((cut.0, cut.1, cut.2), (methods + 1, acting + 1, knot_then));
}

#[test]
fn closures() {
    for a in [
        "let go = |r: &mut Resource| r.b(); go(self);",
        "let go = |r| Resource::b(r); go(self);",
        "Some(self).into_iter().for_each(|r| r.b());",
        "Some(self).map(Self::b);",
        "[Resource::b].into_iter().for_each(|step| step(self));",
    ] {
        assert_not_fooled(cut(&format!("impl Resource {{ fn a(&mut self) {{ {a} }} }}"), B), 0);
    }
    let with = "fn with(&mut self, go: impl FnOnce(&mut Resource)) { go(self); }";
    assert_not_fooled(cut(&format!("impl Resource {{ fn a(&mut self) {{ self.with(|r| r.b()); }} {with} }}"), B), 1);
}

#[test]
fn functions_by_their_paths() {
    for a in
        ["Resource::b(self);", "Self::b(self);", "<Self>::b(self);", "crate::Resource::b(self);", "<Resource>::b(self)"]
    {
        assert_not_fooled(cut(&format!("impl Resource {{ fn a(&mut self) {{ {a} }} }}"), B), 0);
    }
    let table = "const STEPS: [fn(&mut Resource); 1] = [Resource::b];
        impl Resource { fn a(&mut self) { for step in STEPS { step(self); } } }";
    assert_not_fooled(cut(table, B), 0);
}

#[test]
fn fields() {
    let part = "impl Part { fn b(&mut self, r: &mut Resource) { r.c(); } }";
    assert_not_fooled(cut("impl Resource { fn a(&mut self) { self.part.b(self); } }", part), 0);
    let taken = "impl Resource { fn a(&mut self) { let mut part = std::mem::take(&mut self.part); part.b(self); } }";
    assert_not_fooled(cut(taken, part), 0);

    let head = "use std::{cell::RefCell, rc::Weak};
        pub struct Resource { n: u32, part: Part } pub struct Part { up: Weak<RefCell<Resource>> }
        impl Part { fn b(&mut self) { self.up.upgrade().unwrap().borrow_mut().c(); } }";
    let a = "impl Resource { fn a(&mut self) { self.part.b(); } }";
    assert_not_fooled(figures_of(&measure(&[("lib.rs", [head, REST, a, C].join("\n"))]), "Resource"), 0);

    // All of it is one level deeper.
    let inner = "pub struct Outer { inner: Resource } impl Outer { pub fn on(&mut self) { self.inner.on(); } }";
    assert_not_fooled(cut(A, &[B, inner].concat()), 0);
}

#[test]
fn functions_in_fields() {
    let a = "impl Resource { fn a(&mut self) { (self.hook)(self); } }";
    for (hook, made) in [
        ("fn(&mut Resource)", "Resource { n: 0, hook: Resource::b }"),
        ("Box<dyn Fn(&mut Resource)>", "Resource { n: 0, hook: Box::new(|r| r.b()) }"),
        ("Box<dyn Fn(&mut Resource)>", "Resource { n: 0, hook: Box::new(|r: &mut Resource| r.b()) }"),
    ] {
        let head = format!("pub struct Resource {{ n: u32, hook: {hook} }} fn new() -> Resource {{ {made} }}");
        let mut all = measure(&[("lib.rs", [&head, REST, a, B, C].join("\n"))]);
        // Calls are seen, but methods could be closures there.
        assert_eq!(all.complaints, ["Resource.hook: keeps functions that change Resource: call them by name"]);
        all.complaints.clear();
        assert_not_fooled(figures_of(&all, "Resource"), 0);
    }
}

#[test]
fn closures_that_are_methods() {
    for (a, b) in [
        ("b()(self);", "fn b() -> impl FnOnce(&mut Resource) { |r| r.c() }"),
        ("b()(self);", "fn b() -> Box<dyn Fn(&mut Resource)> { Box::new(|r| r.c()) }"),
        ("B(self);", "const B: fn(&mut Resource) = |r| r.c();"),
    ] {
        assert_not_fooled(cut(&format!("impl Resource {{ fn a(&mut self) {{ {a} }} }}"), b), 0);
    }
}

#[test]
fn traits() {
    let step = "trait Step { fn b(&mut self); } impl Step for Resource { fn b(&mut self) { self.c(); } }";
    for a in [
        "self.b();",
        "Step::b(self);",
        "<Self as Step>::b(self);",
        "let step: &mut dyn Step = self; step.b();",
        "let step = self as &mut dyn Step; step.b();",
    ] {
        assert_not_fooled(cut(&format!("impl Resource {{ fn a(&mut self) {{ {a} }} }}"), step), 0);
    }
    // A body in the trait.
    let within = "trait Step { fn c(&mut self); fn b(&mut self) { self.c(); } } impl Step for Resource { fn c(&mut self) { self.a(); self.end(); } }";
    assert_not_fooled(figures_of(&measure(&[("lib.rs", [HEAD, REST, A, within].join("\n"))]), "Resource"), 0);
    // Any type that has the trait.
    for drive in [
        "fn drive<S: Step>(step: &mut S) { step.b(); }",
        "fn drive(step: &mut impl Step) { step.b(); }",
        "fn drive(step: &mut dyn Step) { step.b(); }",
        "fn drive<S>(step: &mut S) where S: Step { step.b(); }",
    ] {
        assert_not_fooled(cut(&format!("impl Resource {{ fn a(&mut self) {{ drive(self); }} }} {drive}"), step), 1);
    }
    // For everything there is.
    let all = "trait Step { fn b(&mut self); } impl<T: AsMut<Resource>> Step for T { fn b(&mut self) { self.as_mut().c(); } }";
    let (_, _, knot, _) = cut(A, all);
    assert_eq!(knot, 2, "`a` and `c`, by way of what is nobody's method");
    let all = measure(&[("lib.rs", [HEAD, REST, A, all, C].join("\n"))]);
    assert_eq!(all.numbers.iter().find(|(name, ..)| *name == "knot of all functions").unwrap().1, 3);
}

#[test]
fn calls_that_nobody_writes() {
    let sum = "impl std::ops::AddAssign<u32> for Resource { fn add_assign(&mut self, _: u32) { self.c(); } }";
    assert_not_fooled(cut("impl Resource { fn a(&mut self) { *self += 1; } }", sum), 0);
    let drop = "struct End<'a> { r: &'a mut Resource } impl Drop for End<'_> { fn drop(&mut self) { self.r.c(); } }";
    assert_not_fooled(cut("impl Resource { fn a(&mut self) { let _end = End { r: self }; } }", drop), 0);
    let each = "struct Each<'a> { r: &'a mut Resource }
        impl Iterator for Each<'_> { type Item = u32; fn next(&mut self) -> Option<u32> { self.r.c(); None } }";
    assert_not_fooled(cut("impl Resource { fn a(&mut self) { for _ in (Each { r: self }) {} } }", each), 0);
    assert_not_fooled(cut("impl Resource { fn a(&mut self) { Each { r: self }.count(); } }", each), 0);
    let made = "struct Made; impl From<&mut Resource> for Made { fn from(r: &mut Resource) -> Made { r.c(); Made } }";
    assert_not_fooled(cut("impl Resource { fn a(&mut self) { let _: Made = self.into(); } }", made), 0);
    let at = "impl std::ops::Index<u32> for Resource { type Output = u32; fn index(&self, _: u32) -> &u32 { &self.n } }
        impl std::ops::IndexMut<u32> for Resource { fn index_mut(&mut self, _: u32) -> &mut u32 { self.c(); &mut self.n } }";
    let (_, _, knot, _) = cut("impl Resource { fn a(&mut self) { self[0] = 1; } }", at);
    assert_eq!(knot, uncut().2);
}

#[test]
fn macros() {
    for (make, a) in [
        ("macro_rules! go { ($r:expr) => { $r.b() }; }", "go!(self)"),
        ("macro_rules! go { ($r:expr) => { $r.b(); $r.n = 0; for _ in 0..$r.n {} }; }", "go!(self);"),
        ("macro_rules! go { ($($r:expr),*) => { $( Resource::b($r); )* }; }", "go!(self);"),
        ("macro_rules! go { ($r:expr, $what:ident) => { Resource::$what($r) }; }", "go!(self, b);"),
        ("macro_rules! go { ($r:expr => $what:path) => { $what($r) }; }", "go!(self => Resource::b);"),
        ("", "assert!(self.b());"),
        ("", "println!(\"{:?}\", self.b());"),
        ("", "assert!(matches!(self.b(), ()));"),
        ("", "assert!(matches!(0, x if self.b() == x));"),
        ("", "other! { when self.b() then { nothing } }"),
    ] {
        assert_not_fooled(cut(&format!("{make} impl Resource {{ fn a(&mut self) {{ {a} }} }}"), B), 0);
    }
    // Methods that a macro has in its text.
    let b =
        "macro_rules! steps { ($($n:literal)*) => { impl Resource { fn b(&mut self) { self.c(); } } }; } steps! { 1 }";
    assert_not_fooled(cut(A, b), 0);
    let b = "steps! { impl Resource { fn b(&mut self) { self.c(); } } }";
    assert_not_fooled(cut(A, b), 0);
    // What cannot be seen is refused.
    for hides in [
        "macro_rules! steps { ($name:ident) => { impl Resource { fn $name(&mut self) { self.c(); } } }; }",
        "macro_rules! steps { ($ty:ident) => { impl $ty { fn b(&mut self) { self.c(); } } }; }",
        "macro_rules! steps { ($r:ident, $step:ident) => { $r.$step() }; }",
        "impl Resource { steps! { b } }",
    ] {
        let complaints = measure(&[("lib.rs", [HEAD, REST, A, hides, C].join("\n"))]).complaints;
        assert_eq!(complaints.len(), 1, "{hides}: {complaints:?}");
    }
}

#[test]
fn tests_are_not_counted() {
    let tests = "#[cfg(test)] mod tests { use super::*; fn more(r: &mut Resource) { r.a(); } }
        #[cfg(test)] mod more; #[test] fn one() { }";
    let more = "use crate::Resource;\nimpl Resource { fn d(&mut self) { self.a(); } }".to_owned();
    let files = [("lib.rs", [HEAD, REST, A, B, C, tests].join("\n")), ("more.rs", more)];
    assert_not_fooled(figures_of(&measure(&files), "Resource"), 0);
}

#[test]
fn a_machine_of_its_own_makes_it_less() {
    let machine = "pub struct Machine { n: u32 }
        impl Machine {
            fn a(&mut self) { self.b(); }
            fn b(&mut self) { self.c(); }
            fn c(&mut self) { self.a(); }
        }";
    let core = "pub struct Resource { n: u32, machine: Machine }
        impl Resource { pub fn on(&mut self) { self.begin(); self.machine.a(); } fn begin(&mut self) { self.n += 1; } }";
    let all = measure(&[("lib.rs", [core, machine].join("\n"))]);
    assert_eq!(figures_of(&all, "Resource"), (2, 2, 1, 3));
    assert_eq!(figures_of(&all, "Machine"), (3, 3, 3, 9));
    let number = |name| all.numbers.iter().find(|(known, ..)| *known == name).unwrap().1;
    assert_eq!(
        (number("knot of methods"), number("knot of all functions")),
        (3, 3),
        "and the machine's own knot counts"
    );
}

#[test]
fn questions_of_dialect() {
    let count = |text: &str| {
        let all = measure(&[("lib.rs", text.to_owned()), ("dialect.rs", "fn own() { c.speaks9(); }".to_owned())]);
        all.numbers.iter().find(|(name, ..)| *name == "questions of dialect and version").unwrap().1
    };
    for (text, expected) in [
        ("fn f() { if c.speaks9() {} }", 1),
        ("fn f() { all.filter(Connection::speaks9) }", 1),
        ("fn f() { if c.version() >= 96 && other < 3 {} }", 1),
        ("fn f() { if 96 <= c.version() {} }", 1),
        ("fn f() { if (96..110).contains(&self.protocol) {} }", 1),
        ("fn f() { if max_version >= Version::MIN_9.number() {} }", 1),
        ("fn f() { if c.protocol == Protocol::C {} }", 0),
        ("fn f() { assert!(matches!(c.version(), 96..)); }", 1),
        ("fn f() { match c.version() { 0..96 => 1, _ => 2 } }", 1),
        ("fn f() { match c.spoken { Spoken::Of9(..) => 1, _ => 2 } }", 1),
        ("fn f() { if let Spoken::Of9(..) = c.spoken {} }", 1),
        ("fn f() { match node.company() { Company::Alone => 1, _ => 2 } }", 2),
        ("fn f() { if c.nine().is_some() {} }", 1),
        // Another name for it is it: where it is made, and where it is used.
        ("fn hidden(c: &C) -> bool { !c.speaks9() } fn f() { if hidden(c) {} if hidden(d) {} }", 3),
        ("#[cfg(test)] mod tests { fn f() { c.speaks9(); } }", 0),
    ] {
        assert_eq!(count(text), expected, "{text}");
    }
}

#[test]
fn fields_in_reach() {
    let count = |own: &str, other: &str| {
        let all = measure(&[("lib.rs", own.to_owned()), ("other.rs", other.to_owned())]);
        all.numbers.iter().find(|(name, ..)| *name == "fields in reach of a file").unwrap().1
    };
    let own = "pub struct Resource { pub(crate) n: u32, pub(crate) all: Vec<Device> }
        pub struct Device { pub(crate) a: bool, pub(crate) b: Option<Box<Backing>>, }";
    let other = "use crate::Resource; fn f(r: &mut Resource) {} pub struct Backing { c: u32, pub(super) d: u32 }";
    assert_eq!(count(own, other), 6);
    assert_eq!(count(own, &other.replace("&mut", "&")), 0);
    // Behind `&` nothing is changed.
    assert_eq!(count(&own.replace("Vec<Device>", "&'static Device"), other), 2);
    // What a file does not see it cannot change.
    let hidden = [
        ("lib.rs", "struct Resource { pub(crate) part: part::Part } fn f(r: &mut Resource) {}".to_owned()),
        ("part.rs", "pub struct Part { a: u32, b: bool }".to_owned()),
    ];
    assert_eq!(measure(&hidden).numbers.iter().find(|(name, ..)| *name == "fields in reach of a file").unwrap().1, 1);
}
