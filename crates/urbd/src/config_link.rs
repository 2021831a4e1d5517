//! Which configuration a resource was made from: drbdadm leaves a link to that for who is called at an event, and is
//! not told the file (`docs/spec/config-and-cli.md` 1.1). Other programs look for the links, too.

use std::fs;
use std::path::{Path, PathBuf};

use crate::context::Context;

/// Where sockets are elsewhere than usual the links are beside them.
fn link(run_dir: &Path, resource: &str) -> PathBuf {
    let directory = if run_dir == Path::new("/run/urbd") { Path::new("/run/drbd") } else { run_dir };
    directory.join(format!("drbd-resource-{resource}.conf"))
}

/// Notes the file. Who cannot has the usual one read.
pub(crate) fn note(context: &Context, resource: &str) {
    let Ok(file) = std::path::absolute(&context.config_file) else { return };
    let link = link(&context.run_dir, resource);
    if fs::read_link(&link).is_ok_and(|old| old == file) {
        return;
    }
    let _ = link.parent().map(fs::create_dir_all);
    forget(&context.run_dir, resource);
    let _ = std::os::unix::fs::symlink(file, link);
}

/// The file of one resource is noted for another name, too. `None`: there is none, or one is noted for that.
pub(crate) fn also(run_dir: &Path, resource: &str, name: &str) -> Option<()> {
    let file = fs::read_link(link(run_dir, resource)).ok()?;
    std::os::unix::fs::symlink(file, link(run_dir, name)).ok()
}

/// The file that the resource was made from, if that was noted.
pub(crate) fn find(run_dir: &Path, resource: &str) -> Option<PathBuf> {
    let link = link(run_dir, resource);
    let file = fs::read_link(&link).ok()?;
    Some(link.parent()?.join(file))
}

/// The resource is gone.
pub(crate) fn forget(run_dir: &Path, resource: &str) {
    let _ = fs::remove_file(link(run_dir, resource));
}
