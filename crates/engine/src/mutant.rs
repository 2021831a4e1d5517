//! Deliberately wrong ways to write, to try the tests: `tests/durability` must object to each.
//!
//! Without the feature `mutants` [`mutant`] is a constant `false`, and nothing of this is in a program; with it, a
//! program cannot be built without debug assertions, so that no release has it.

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("the feature `mutants` is for tests: it must not be in a program that is built for use");

macro_rules! mutants {
    ($($variant:ident $name:literal $rule:literal;)*) => {
        /// A rule that can be broken.
        #[cfg_attr(not(feature = "mutants"), allow(unreachable_pub, reason = "it is public for tests only"))]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Mutant {
            $(#[doc = $rule] $variant,)*
        }

        #[cfg(feature = "mutants")]
        impl Mutant {
            /// All of them.
            pub const ALL: &[Mutant] = &[$(Mutant::$variant,)*];

            /// What it does wrong, lower case with hyphens.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Mutant::$variant => $name,)* }
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

/// Is this rule to be broken now?
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn mutant(_: Mutant) -> bool {
    false
}

#[cfg(feature = "mutants")]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Is this rule to be broken now?
#[cfg(feature = "mutants")]
pub(crate) fn mutant(mutant: Mutant) -> bool {
    CHOSEN.get() == Some(mutant)
}

/// Breaks a rule for everything that this thread does from now on; `None` = none.
#[cfg(feature = "mutants")]
pub fn choose_mutant(mutant: Option<Mutant>) {
    CHOSEN.set(mutant);
}
