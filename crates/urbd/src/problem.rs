//! What went wrong: one line that says what and why, one that says what to do, and the exit status of the documented
//! tools (`docs/spec/config-and-cli.md` 3.2, 3.4, 3.5).

use std::fmt;

use control::client::ClientError;
use control::{ErrorCode, Failure};

/// Exit statuses that several verbs share.
pub mod exit {
    /// Bad call, unknown object, question answered with no.
    pub const USAGE: u8 = 1;
    /// A `wait-*` ran into its time limit; the data is worse than outdated.
    pub const TIMEOUT: u8 = 5;
    /// `verify --wait` found differences, and they are still there.
    pub const DIFFERENT: u8 = 4;
    /// The configuration is not valid; refused by the running process.
    pub const FAILURE: u8 = 10;
    /// Bad call of drbdsetup or drbdmeta, device in use, a program could not be started, no answer in time.
    pub const BROKEN: u8 = 20;
    /// A device is in use.
    pub const IN_USE: u8 = 11;
    /// `create-md` would destroy a file system.
    pub const WOULD_DESTROY: u8 = 40;
}

/// What a running process adds to "not supported" if it adds no reason.
pub(crate) const NO_REASON: &str = "Not supported";

/// An error that ends the work on one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What happened, and why.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
    /// Exit status.
    pub exit: u8,
}

impl Problem {
    /// With this exit status, and no hint yet.
    pub fn new(exit: u8, message: impl Into<String>) -> Problem {
        Problem { message: message.into(), hint: None, exit }
    }

    /// A bad call or unknown object: exit 1.
    pub fn usage(message: impl Into<String>) -> Problem {
        Problem::new(exit::USAGE, message)
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }

    /// A refusal by the running process, in the words that other programs match:
    /// `OBJECT: State change failed: (-N) TEXT`.
    pub(crate) fn refused(object: &str, failure: &Failure) -> Problem {
        let mut message = format!("{object}: {}", failure.code);
        let is_unsupported = failure.code == ErrorCode::NOT_SUPPORTED_BY_PEER && !failure.message.is_empty();
        if is_unsupported && failure.message != NO_REASON {
            // The text of this code blames the peer's protocol, whatever the reason is.
            message = format!("{object}: State change failed: ({}) {}", failure.code.0, failure.message);
        } else if !failure.message.is_empty() && failure.message != failure.code.text() {
            message += &format!("\nadditional info: {}", failure.message);
        }
        Problem { message, hint: failure.hint.clone(), exit: failure.code.exit_status() }
    }

    /// What the control socket's client reports, for `resource`.
    pub(crate) fn client(resource: &str, error: &ClientError) -> Problem {
        match error {
            ClientError::NotRunning(_) => Problem::not_running(resource),
            ClientError::Refused(failure) => Problem::refused(resource, failure),
            ClientError::Denied(_) => Problem::denied(resource),
            other => Problem::new(exit::BROKEN, format!("{resource}: {other}"))
                .hint(format!("look at the log of the running process, or restart it: urbd down --force {resource}")),
        }
    }

    /// This user may not talk to the processes that run resources.
    pub fn denied(what: &str) -> Problem {
        Problem::new(exit::BROKEN, format!("{what}: permission denied: only root may look at it"))
            .hint("do it as root (sudo urbd ...), or be a member of the resource's status-group, which may look")
    }

    /// The resource does not run. drbdsetup has two texts for that, and programs match either.
    pub(crate) fn not_running(resource: &str) -> Problem {
        let text = format!(
            "{resource}: {}\n{resource}: No such resource (it does not run on this node)",
            ErrorCode::UNKNOWN_RESOURCE
        );
        Problem::new(exit::FAILURE, text).hint(format!("start it with: urbd up {resource}"))
    }

    /// Did somebody else use a disk that only one may use?
    pub(crate) fn is_in_use(&self) -> bool {
        self.exit == exit::BROKEN && self.message.contains(" is in use")
    }

    /// May this user not look at it?
    pub(crate) fn is_denied(&self) -> bool {
        self.exit == exit::BROKEN && self.message.contains(": permission denied")
    }

    /// Prints it on stderr.
    pub fn report(&self) {
        eprintln!("{self}");
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "urbd: {}", control::plain(&self.message))?;
        match &self.hint {
            Some(hint) => write!(f, "\nurbd: hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_said_has_no_number() {
        let gone = std::fs::File::open("/nonexistent/file").unwrap_err();
        let problem = Problem::new(exit::BROKEN, format!("cannot read it: {gone}"));
        assert_eq!(problem.to_string(), "urbd: cannot read it: No such file or directory");
    }

    #[test]
    fn what_is_not_supported_says_its_own_reason() {
        let refused =
            |text: &str| Problem::refused("r0", &Failure::new(ErrorCode::NOT_SUPPORTED_BY_PEER, text)).message;
        let own = "a Primary is not brought up to date: make it Secondary first";
        assert_eq!(refused(own), format!("r0: State change failed: (-17) {own}"));
        assert!(refused(NO_REASON).contains("the peer's protocol cannot do that"));
    }

    #[test]
    fn refusals_keep_the_words_that_programs_match() {
        let failure = Failure::new(ErrorCode::DEVICE_IN_USE, "pid 17 (mount) holds /dev/ublkb0").with_hint("unmount");
        let problem = Problem::refused("r0", &failure);
        assert_eq!(problem.exit, 11);
        assert_eq!(
            problem.to_string(),
            "urbd: r0: State change failed: (-12) Device is held open by someone\n\
             additional info: pid 17 (mount) holds /dev/ublkb0\nurbd: hint: unmount"
        );
    }
}
