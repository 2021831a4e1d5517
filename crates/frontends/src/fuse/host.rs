//! Mounts of a process that the service manager keeps in a mount namespace of its own: they belong where everybody sees
//! them.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::sys;

/// Names the namespace, as `/proc/1/ns/mnt`; the service unit sets it.
const NAMESPACE: &str = "URBD_MOUNTS_IN";

/// Runs `act` where the machine's programs see what is mounted.
///
/// # Errors
/// That of `act`, or the namespace cannot be entered.
pub(super) fn within<T: Send>(act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    within_namespace(std::env::var_os(NAMESPACE), act)
}

fn within_namespace<T: Send>(namespace: Option<OsString>, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let Some(namespace) = namespace else { return act() };
    // A namespace is entered by one thread, and this one ends with what it does there.
    thread::scope(|scope| {
        let there = scope.spawn(|| enter(&namespace).and_then(|()| act()));
        there.join().unwrap_or_else(|_| Err(io::Error::other("the thread that mounts has ended")))
    })
}

fn enter(namespace: &OsStr) -> io::Result<()> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("entering {}: {e}", namespace.display()));
    let file = File::open(namespace).map_err(named)?;
    // The thread's root and directory are its own from then on, as setns demands.
    sys::own_directories().map_err(named)?;
    let entered = move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Mount));
    entered.map_err(|e| named(e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_namespace_nothing_is_entered() {
        assert_eq!(within_namespace(None, || Ok(7)).unwrap(), 7);
        let error = within_namespace(Some("/nonexistent".into()), || Ok(7)).unwrap_err();
        assert!(error.to_string().contains("/nonexistent"), "{error}");
    }
}
