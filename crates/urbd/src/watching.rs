//! What `urbd top` and `urbd web` are asked to show: for the program that shows it, `urbd-watch`.

use std::ffi::OsString;
use std::path::Path;

use crate::cli::{self, Call};
use crate::problem::Problem;
use crate::verbs::{absent, status};

/// One call of `top` or `web`.
pub struct Watching<'a> {
    call: &'a Call<'a>,
}

/// Runs a command line of `top` or `web`, its first word the name that the program was called by; gives the exit
/// status. What goes wrong is told on stderr.
pub fn run(argv: impl IntoIterator<Item = OsString>, show: impl Fn(&Watching) -> Result<u8, Problem>) -> u8 {
    let argv: Vec<OsString> = argv.into_iter().collect();
    cli::run_watching(&argv, |call| show(&Watching { call }))
}

impl Watching<'_> {
    /// `top` or `web`.
    pub fn verb(&self) -> &str {
        self.call.verb
    }

    /// Whether a flag of the verb was given.
    pub fn flag(&self, name: &str) -> bool {
        self.call.flag(name)
    }

    /// The value of an option of the verb, if it was given.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.call.value(name)
    }

    /// Are colours wanted, by `--color` or else by what standard output is?
    ///
    /// # Errors
    /// Exit 1: `--color` has a value that it does not know.
    pub fn wants_color(&self) -> Result<bool, Problem> {
        status::wants_color(self.call)
    }

    /// Is nothing to be done but to say what would be?
    pub fn is_dry_run(&self) -> bool {
        self.call.context.dry_run
    }

    /// The name of this node.
    pub fn node(&self) -> &str {
        &self.call.context.node
    }

    /// Where the control sockets are.
    pub fn run_dir(&self) -> &Path {
        self.call.context.run_dir()
    }

    /// The names of the resources to look at, none for all of them, and the exit status so far: one that is not known
    /// is told of, and left out.
    ///
    /// # Errors
    /// Exit 20: this user may not look. Another: none of those that were named is known.
    pub fn resources(&self) -> Result<(Vec<String>, u8), Problem> {
        self.call.context.may_look()?;
        let objects = self.call.objects();
        if objects.is_empty() || objects.iter().any(|name| name == "all") {
            return Ok((Vec::new(), 0));
        }
        let (names, worst) = status::named(self.call.context, &objects);
        match names.is_empty() {
            true => Err(Problem::new(worst, "none of these resources is known")),
            false => Ok((names, worst)),
        }
    }

    /// Finds what is configured and not among those named, which run, and why it does not run. The configuration is
    /// read anew each time: it may have changed.
    pub fn absent(&self) -> impl Fn(&[String]) -> Vec<(String, String)> + Send + use<> {
        let asked = self.call.context.unread();
        move |running| {
            let found = absent::absent(&asked.unread(), running);
            found.into_iter().map(|one| (one.name.clone(), one.reason())).collect()
        }
    }
}
