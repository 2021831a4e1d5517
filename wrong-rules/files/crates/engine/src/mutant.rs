//! Deliberately wrong ways to write, to try the tests: `tests/durability` must object to each.
//!
//! This file is not in the product: it is put into a copy, whose rules ask it (`wrong-rules/README.md`).

macro_rules! mutants {
    ($($variant:ident $name:literal $rule:literal;)*) => {
        /// A rule that can be broken.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Mutant {
            $(#[doc = $rule] $variant,)*
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Mutant] = &[$(Mutant::$variant,)*];

            /// What it does wrong, lower case with hyphens.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Mutant::$variant => $name,)* }
            }

            /// Those that `WRONG_RULES` names, separated by commas; all without it.
            pub fn tried() -> impl Iterator<Item = Mutant> {
                let named = std::env::var("WRONG_RULES").ok();
                let tried = move |m: &Mutant| named.as_ref().is_none_or(|names| names.split(',').any(|name| name == m.name()));
                Mutant::ALL.iter().copied().filter(tried)
            }
        }
    };
}

mutants! {
    DsyncDropped "dsync-dropped" "the kernel is told which writes must be durable";
    MergedNotDurable "merged-not-durable" "a durable write of several pieces is durable";
    MetaNotDurable "metadata-not-durable" "a durable write of metadata is durable";
    ZeroesNotDurable "zeroes-not-durable" "durable zeroes are durable";
    DataNotFlushed "data-not-flushed" "what metadata says of data on another disk is durable there first";
}

thread_local! {
    static CHOSEN: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Is this rule to be broken now?
pub(crate) fn mutant(mutant: Mutant) -> bool {
    CHOSEN.get() == Some(mutant)
}

/// Breaks a rule for everything that this thread does from now on; `None` = none.
pub fn choose_mutant(mutant: Option<Mutant>) {
    CHOSEN.set(mutant);
}
