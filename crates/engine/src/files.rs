//! How the files of a resource's devices are called in the run directory: as the resource was when they were made. It
//! may have another name since, and they are in use. `RUN_DIR/NAME.files` is a link that says whose they are then: its
//! text is the resource's name of now.

use control::client::socket_path;
use frontends::keeper::Keeper;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use units::VolumeNr;

const ENDING: &str = ".files";

fn link(run_dir: &Path, files: &str) -> PathBuf {
    run_dir.join(format!("{files}{ENDING}"))
}

/// The resource whose files these are, if a link says so.
pub(crate) fn resource_of(run_dir: &Path, files: &str) -> Option<String> {
    std::fs::read_link(link(run_dir, files)).ok()?.to_str().map(str::to_owned)
}

/// How files of a resource are called: as itself, unless those are another one's.
pub(crate) fn names_of(run_dir: &Path, resource: &str) -> Vec<String> {
    let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    let noted = entries.filter_map(|e| Some(e.file_name().to_str()?.strip_suffix(ENDING)?.to_owned()));
    let own = noted.filter(|files| resource_of(run_dir, files).is_some_and(|of| of == resource));
    own.chain(resource_of(run_dir, resource).is_none().then(|| resource.to_owned())).collect()
}

/// The volumes of which something is called so in the run directory, with this ending: `NAME-VOLUME.loop`.
pub(crate) fn volumes(run_dir: &Path, name: &str, ending: &str) -> Vec<VolumeNr> {
    let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    let volume = |file: &str| file.strip_prefix(name)?.strip_prefix('-')?.strip_suffix(ending)?.parse().ok();
    entries.filter_map(|e| volume(e.file_name().to_str()?)).map(VolumeNr).collect()
}

/// They are this resource's from now on.
///
/// # Errors
/// If the link cannot be made.
pub(crate) fn note(run_dir: &Path, files: &str, resource: &str) -> io::Result<()> {
    if files == resource {
        return forget(run_dir, files);
    }
    let (link, new) = (link(run_dir, files), run_dir.join(format!(".{files}{ENDING}.{}", std::process::id())));
    let _ = std::fs::remove_file(&new);
    std::os::unix::fs::symlink(resource, &new)?;
    std::fs::rename(&new, &link).inspect_err(|_| drop(std::fs::remove_file(&new)))
}

/// They are nobody's, or of the resource that is called so.
///
/// # Errors
/// If there is a link, and it cannot be removed.
pub(crate) fn forget(run_dir: &Path, files: &str) -> io::Result<()> {
    match std::fs::remove_file(link(run_dir, files)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// The name for new files of a resource: its own, unless those of one that was called so are in use.
///
/// # Errors
/// If it cannot be noted.
pub(crate) fn choose(run_dir: &Path, resource: &str) -> io::Result<String> {
    let others = |files: &str| resource_of(run_dir, files).is_some_and(|of| of != resource && is_there(run_dir, &of));
    let is_free = |files: &String| !others(files) && (files == resource || !is_there(run_dir, files));
    let numbered = (1..).map(|n: u32| format!("{resource}~{n}"));
    let files = std::iter::once(resource.to_owned()).chain(numbered).find(is_free).expect("there is no last number");
    note(run_dir, &files, resource)?;
    Ok(files)
}

/// Does a process serve it, or hold its devices?
fn is_there(run_dir: &Path, resource: &str) -> bool {
    UnixStream::connect(socket_path(run_dir, resource)).is_ok() || Keeper::of(run_dir, resource).is_there()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn what_one_uses_another_does_not_get() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path();
        assert_eq!(choose(run_dir, "r0").unwrap(), "r0");
        note(run_dir, "r0", "r1").unwrap();
        assert_eq!(names_of(run_dir, "r1"), ["r0", "r1"]);
        assert!(names_of(run_dir, "r0").is_empty());
        let listener = UnixListener::bind(socket_path(run_dir, "r1")).unwrap();
        assert_eq!(choose(run_dir, "r0").unwrap(), "r0~1");
        assert_eq!(choose(run_dir, "r1").unwrap(), "r1");
        // It is its own, also the next time.
        assert_eq!(choose(run_dir, "r0").unwrap(), "r0~1");
        let third = UnixListener::bind(socket_path(run_dir, "r0~1")).unwrap();
        assert_eq!(choose(run_dir, "r0").unwrap(), "r0~2");
        // Of one that is gone nothing is in use.
        drop((listener, third));
        std::fs::remove_file(socket_path(run_dir, "r1")).unwrap();
        assert_eq!((choose(run_dir, "r0").unwrap(), resource_of(run_dir, "r0")), ("r0".to_owned(), None));
    }
}
