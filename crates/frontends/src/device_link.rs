//! The stable name of a volume's device: `BASE/by-res/RESOURCE/VOLUME`, a symbolic link to whatever serves it now.
//!
//! Two nodes that run on one machine may have one base. Each notes in its run directory which link it has made, in
//! `RUN_DIR/RESOURCE-VOLUME.link`, and removes no other. The last that becomes Primary has the name.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// Names the base directory if it is not [`DEFAULT_BASE`].
pub const BASE_VARIABLE: &str = "URBD_DEV_DIR";
/// Where the links are by default.
pub const DEFAULT_BASE: &str = "/dev/urbd";

/// One node's links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLinks {
    base: PathBuf,
    run_dir: PathBuf,
}

impl DeviceLinks {
    /// Links below `base` of the node that has this run directory.
    pub fn new(base: impl Into<PathBuf>, run_dir: impl Into<PathBuf>) -> DeviceLinks {
        DeviceLinks { base: base.into(), run_dir: run_dir.into() }
    }

    /// Links below the directory that the environment names in [`BASE_VARIABLE`], else [`DEFAULT_BASE`].
    pub fn from_env(run_dir: &Path) -> DeviceLinks {
        let base = std::env::var_os(BASE_VARIABLE).filter(|base| !base.is_empty()).unwrap_or(DEFAULT_BASE.into());
        DeviceLinks::new(base, run_dir)
    }

    /// The link's path, whether it exists or not. Fails with `InvalidInput` for a resource name that is not one path
    /// component.
    pub fn path(&self, resource: &str, volume: u32) -> io::Result<PathBuf> {
        Ok(self.directory(resource)?.join(volume.to_string()))
    }

    /// Creates the link, or turns an existing one to `device`, in one step: whoever follows it at that moment finds the
    /// old device or the new one. Returns the link's path.
    pub fn create(&self, resource: &str, volume: u32, device: &Path) -> io::Result<PathBuf> {
        let directory = self.directory(resource)?;
        fs::create_dir_all(&directory)?;
        let new = directory.join(format!(".{volume}.{}", std::process::id()));
        absent_is_fine(fs::remove_file(&new))?;
        std::os::unix::fs::symlink(device, &new)?;
        let link = directory.join(volume.to_string());
        // Noted first: a link that nobody has noted would never be removed.
        let made = fs::symlink_metadata(&new).and_then(|made| self.note(resource, volume, &made));
        made.and_then(|()| fs::rename(&new, &link)).inspect_err(|_| drop(fs::remove_file(&new)))?;
        Ok(link)
    }

    /// Removes this node's link, and the resource's directory with its last one. It is no error if there is none, or
    /// only another node's; anything else of that name stays and is an error.
    pub fn remove(&self, resource: &str, volume: u32) -> io::Result<()> {
        let directory = self.directory(resource)?;
        let link = directory.join(volume.to_string());
        match fs::symlink_metadata(&link) {
            Ok(found) if !found.is_symlink() => {
                let what = format!("{} is not a symbolic link: remove it by hand", link.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
            }
            Ok(found) if self.has_noted(resource, volume, &found) => absent_is_fine(fs::remove_file(&link))?,
            Ok(_) => {}
            Err(error) => absent_is_fine(Err(error))?,
        }
        absent_is_fine(fs::remove_file(self.record(resource, volume)))?;
        match fs::remove_dir(&directory) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => absent_is_fine(Err(error)),
            _ => Ok(()),
        }
    }

    /// Does the link lead to this node's device? Not if there is none, nor if another node has taken the name since.
    pub fn is_own(&self, resource: &str, volume: u32) -> bool {
        let found = self.path(resource, volume).and_then(fs::symlink_metadata);
        found.is_ok_and(|found| found.is_symlink() && self.has_noted(resource, volume, &found))
    }

    fn record(&self, resource: &str, volume: u32) -> PathBuf {
        let mut name = OsString::from(resource);
        name.push(format!("-{volume}.link"));
        self.run_dir.join(name)
    }

    fn note(&self, resource: &str, volume: u32, made: &Metadata) -> io::Result<()> {
        let path = self.record(resource, volume);
        absent_is_fine(fs::remove_file(&path))?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        writeln!(file, "{}", identity(made))
    }

    fn has_noted(&self, resource: &str, volume: u32, found: &Metadata) -> bool {
        let noted = fs::read_to_string(self.record(resource, volume));
        noted.is_ok_and(|noted| noted.trim_end() == identity(found))
    }

    fn directory(&self, resource: &str) -> io::Result<PathBuf> {
        let mut components = Path::new(resource).components();
        match (components.next(), components.next()) {
            (Some(Component::Normal(name)), None) if name == resource => Ok(self.base.join("by-res").join(name)),
            _ => {
                let what = format!("{resource:?} cannot be a resource name: it is not one path component");
                Err(io::Error::new(io::ErrorKind::InvalidInput, what))
            }
        }
    }
}

/// What tells a link from every other, also from one to the same device: renaming it does not change this.
fn identity(link: &Metadata) -> String {
    format!("{} {} {}.{:09}", link.dev(), link.ino(), link.mtime(), link.mtime_nsec())
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_come_turn_and_go() {
        let (base, run_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let links = DeviceLinks::new(base.path(), run_dir.path());
        let link = links.create("r0", 0, Path::new("/dev/loop7")).unwrap();
        assert_eq!(link, base.path().join("by-res/r0/0"));
        assert_eq!(link, links.path("r0", 0).unwrap());
        assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("/dev/loop7"));
        links.create("r0", 0, Path::new("/dev/loop8")).unwrap();
        assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("/dev/loop8"));
        links.create("r0", 1, Path::new("/dev/loop9")).unwrap();
        assert_eq!(std::fs::read_dir(base.path().join("by-res/r0")).unwrap().count(), 2);
        links.remove("r0", 0).unwrap();
        assert!(base.path().join("by-res/r0/1").is_symlink());
        links.remove("r0", 1).unwrap();
        assert!(!base.path().join("by-res/r0").exists());
        links.remove("r0", 1).unwrap();
        assert_eq!(std::fs::read_dir(run_dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_node_removes_its_own_link_only() {
        let base = tempfile::tempdir().unwrap();
        let run_dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [a, b] = run_dirs.each_ref().map(|dir| DeviceLinks::new(base.path(), dir.path()));
        let device = Path::new("/dev/loop7");
        let link = a.create("r0", 0, device).unwrap();
        assert!(a.is_own("r0", 0) && !b.is_own("r0", 0));
        b.remove("r0", 0).unwrap();
        assert_eq!(std::fs::read_link(&link).unwrap(), device);
        // The same device's number, but another link.
        b.create("r0", 0, device).unwrap();
        assert!(b.is_own("r0", 0) && !a.is_own("r0", 0));
        a.remove("r0", 0).unwrap();
        assert_eq!(std::fs::read_link(&link).unwrap(), device);
        a.remove("r0", 0).unwrap();
        // After a crash: another object with the same run directory.
        DeviceLinks::new(base.path(), run_dirs[1].path()).remove("r0", 0).unwrap();
        assert!(!link.is_symlink());
    }

    #[test]
    fn what_is_not_a_link_stays() {
        let (base, run_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let links = DeviceLinks::new(base.path(), run_dir.path());
        let path = links.path("r0", 0).unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(links.remove("r0", 0).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn names_stay_below_the_base() {
        let links = DeviceLinks::new("/dev/urbd", "/run/urbd");
        for name in ["", ".", "..", "a/b", "/etc", "a/", "../x"] {
            assert_eq!(links.path(name, 0).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert_eq!(links.path("r 0", 12).unwrap(), Path::new("/dev/urbd/by-res/r 0/12"));
    }
}
