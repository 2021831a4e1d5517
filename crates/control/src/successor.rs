//! Says that a process takes a resource over, while nobody listens on its control socket: between the one that leaves
//! and the one that comes a resource is not down.
//!
//! The file `RUN_DIR/RES.next` names the process that comes. It counts only while that process lives and is what it
//! says: what a killed one leaves behind delays nobody.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The control socket of a resource: `RUN_DIR/RES.sock`.
pub fn socket_path(run_dir: &Path, resource: &str) -> PathBuf {
    run_dir.join(format!("{resource}.sock"))
}

/// As long as this value lives, and its process, the resource is being taken over.
#[derive(Debug)]
pub struct Successor {
    path: PathBuf,
}

impl Successor {
    /// This process takes the resource over. To be said before the other one is asked to leave, and dropped when this
    /// one listens on the control socket.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn announce(run_dir: &Path, resource: &str) -> io::Result<Successor> {
        let path = path_beside(&socket_path(run_dir, resource));
        fs::write(&path, std::process::id().to_string())?;
        Ok(Successor { path })
    }

    /// Removes what one that was killed has left.
    pub fn clear(run_dir: &Path, resource: &str) {
        let _ = fs::remove_file(path_beside(&socket_path(run_dir, resource)));
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        // Another one may have been announced since.
        if named_in(&self.path) == Some(std::process::id()) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Does a process take over the resource with this control socket?
pub(crate) fn is_coming(socket: &Path) -> bool {
    let resource = socket.file_stem().and_then(|stem| stem.to_str());
    named_in(&path_beside(socket)).zip(resource).is_some_and(|(pid, resource)| runs(pid, resource))
}

/// Is this process one that runs the resource, by its command line? Its number may be somebody else's by now.
fn runs(pid: u32, resource: &str) -> bool {
    let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = command_line.split(|byte| *byte == 0).collect();
    words.windows(2).any(|pair| pair == [b"run".as_slice(), resource.as_bytes()])
}

fn path_beside(socket: &Path) -> PathBuf {
    socket.with_extension("next")
}

fn named_in(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn who_has_died_or_is_somebody_else_does_not_come() {
        let dir = tempfile::tempdir().unwrap();
        let socket = socket_path(dir.path(), "my.db");
        assert!(!is_coming(&socket));
        let successor = Successor::announce(dir.path(), "my.db").unwrap();
        assert!(dir.path().join("my.db.next").exists());
        assert!(!is_coming(&socket), "the process of that number is about something else");
        drop(successor);
        assert!(!dir.path().join("my.db.next").exists());
        for text in ["", "x", "4294967295", "-1"] {
            fs::write(dir.path().join("my.db.next"), text).unwrap();
            assert!(!is_coming(&socket), "{text}");
        }
    }

    #[test]
    fn who_lives_and_runs_the_resource_comes() {
        let dir = tempfile::tempdir().unwrap();
        let piped = std::process::Stdio::piped;
        let mut command = std::process::Command::new("sh");
        let command = command.args(["-c", "echo; read line", "run", "my.db"]);
        let mut other = command.stdin(piped()).stdout(piped()).spawn().unwrap();
        // It is that program when it has said something.
        other.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let socket = socket_path(dir.path(), "my.db");
        fs::write(dir.path().join("my.db.next"), other.id().to_string()).unwrap();
        assert!(is_coming(&socket));
        drop(other.stdin.take());
        other.wait().unwrap();
        assert!(!is_coming(&socket));
    }
}
