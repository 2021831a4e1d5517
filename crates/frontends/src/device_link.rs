//! The stable name of a volume's device: `BASE/by-res/RESOURCE/VOLUME`, a symbolic link to whatever serves it now.

use std::io;
use std::path::{Component, Path, PathBuf};

/// Names the base directory if it is not [`DEFAULT_BASE`].
pub const BASE_VARIABLE: &str = "URBD_DEV_DIR";
/// Where the links are by default.
pub const DEFAULT_BASE: &str = "/dev/urbd";

/// The directory of links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLinks {
    base: PathBuf,
}

impl DeviceLinks {
    /// Links below `base`.
    pub fn new(base: impl Into<PathBuf>) -> DeviceLinks {
        DeviceLinks { base: base.into() }
    }

    /// Links below the directory that the environment names in [`BASE_VARIABLE`], else [`DEFAULT_BASE`].
    pub fn from_env() -> DeviceLinks {
        DeviceLinks::new(std::env::var_os(BASE_VARIABLE).filter(|base| !base.is_empty()).unwrap_or(DEFAULT_BASE.into()))
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
        std::fs::create_dir_all(&directory)?;
        let new = directory.join(format!(".{volume}.{}", std::process::id()));
        absent_is_fine(std::fs::remove_file(&new))?;
        std::os::unix::fs::symlink(device, &new)?;
        let link = directory.join(volume.to_string());
        std::fs::rename(&new, &link).inspect_err(|_| drop(std::fs::remove_file(&new)))?;
        Ok(link)
    }

    /// Removes the link, and the resource's directory with its last one. It is no error if there is none; anything else
    /// of that name stays and is an error.
    pub fn remove(&self, resource: &str, volume: u32) -> io::Result<()> {
        let directory = self.directory(resource)?;
        let link = directory.join(volume.to_string());
        match std::fs::symlink_metadata(&link) {
            Ok(found) if !found.is_symlink() => {
                let what = format!("{} is not a symbolic link: remove it by hand", link.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
            }
            Ok(_) => absent_is_fine(std::fs::remove_file(&link))?,
            Err(error) => absent_is_fine(Err(error))?,
        }
        match std::fs::remove_dir(&directory) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => absent_is_fine(Err(error)),
            _ => Ok(()),
        }
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
        let base = tempfile::tempdir().unwrap();
        let links = DeviceLinks::new(base.path());
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
    }

    #[test]
    fn what_is_not_a_link_stays() {
        let base = tempfile::tempdir().unwrap();
        let links = DeviceLinks::new(base.path());
        let path = links.path("r0", 0).unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(links.remove("r0", 0).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn names_stay_below_the_base() {
        let links = DeviceLinks::new("/dev/urbd");
        for name in ["", ".", "..", "a/b", "/etc", "a/", "../x"] {
            assert_eq!(links.path(name, 0).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert_eq!(links.path("r 0", 12).unwrap(), Path::new("/dev/urbd/by-res/r 0/12"));
    }
}
