//! The names of a volume's device: symbolic links to the volume's door, the one path by which a device is opened.
//!
//! `BASE/by-res/RESOURCE/VOLUME` is there in any case. The names that the kernel's DRBD would give are kept, too:
//! `drbdMINOR`, `drbd/by-res/…` and `drbd/by-disk/…`; not those of a volume whose minor the kernel's DRBD has.
//!
//! Two nodes that run on one machine may have one base. A link is the node's to whose door it leads; no node removes
//! another one's. The last that becomes Primary has the name.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

/// Names the base directory if it is not [`DEFAULT_BASE`]; DRBD's names are then in there as well.
pub const BASE_VARIABLE: &str = "URBD_DEV_DIR";
/// Where the links are by default.
pub const DEFAULT_BASE: &str = "/dev/urbd";
/// Where DRBD's names are by default.
const DEFAULT_DRBD: &str = "/dev";

/// The links of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLinks {
    base: PathBuf,
    /// DRBD's names are in here, or not kept.
    drbd: Option<PathBuf>,
    kernel: KernelDrbd,
    run_dir: PathBuf,
    /// The name that the resource had when the files of its devices were made, if that is another one.
    files: Option<String>,
}

/// Which minors the kernel's DRBD has. That it is loaded says nothing: agents and tools load it on demand.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KernelDrbd {
    /// Tells its major number, if it is loaded.
    devices: PathBuf,
    /// Has an entry for each block device, `MAJOR:MINOR`.
    block: PathBuf,
}

/// What a volume is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The resource.
    pub resource: String,
    /// The volume's number.
    pub volume: u32,
    /// The resource has this volume only, and its file does not number it: DRBD's name is the resource's.
    pub implicit: bool,
    /// The device's minor number.
    pub minor: u32,
    /// What the configuration calls it beside that, if anything.
    pub name: Option<String>,
    /// The path of its disk.
    pub disk: Option<String>,
}

impl DeviceLinks {
    /// Links below `base`, and DRBD's names below `drbd`, of the node that has this run directory.
    pub fn new(base: impl Into<PathBuf>, drbd: Option<PathBuf>, run_dir: &Path) -> DeviceLinks {
        let run_dir = std::path::absolute(run_dir).unwrap_or_else(|_| run_dir.to_owned());
        DeviceLinks { base: base.into(), drbd, kernel: KernelDrbd::default(), run_dir, files: None }
    }

    /// Links below the directory that the environment names in [`BASE_VARIABLE`], else [`DEFAULT_BASE`]; with DRBD's
    /// names if `drbd`.
    pub fn from_env(run_dir: &Path, drbd: bool) -> DeviceLinks {
        let named = std::env::var_os(BASE_VARIABLE).filter(|base| !base.is_empty()).map(PathBuf::from);
        let beside = named.clone().unwrap_or(DEFAULT_DRBD.into());
        let drbd = drbd.then_some(beside);
        DeviceLinks::new(named.unwrap_or(DEFAULT_BASE.into()), drbd, run_dir)
    }

    /// The same of a resource whose devices were made when it had this name.
    #[must_use]
    pub fn with_files(self, files: &str) -> DeviceLinks {
        DeviceLinks { files: Some(files.to_owned()), ..self }
    }

    /// The name that is in those of the files.
    fn files<'a>(&'a self, resource: &'a str) -> &'a str {
        self.files.as_deref().unwrap_or(resource)
    }

    /// The directory of a resource's doors. Fails with `InvalidInput` for a resource name that is not one path
    /// component.
    pub fn doors(&self, resource: &str) -> io::Result<PathBuf> {
        let files = self.files(resource);
        one_component(files)?;
        Ok(self.run_dir.join(format!("{files}.dev")))
    }

    /// A volume's door. Fails as [`DeviceLinks::doors`].
    pub fn door(&self, resource: &str, volume: u32) -> io::Result<PathBuf> {
        Ok(self.doors(resource)?.join(volume.to_string()))
    }

    /// The file that says which loop device a volume has. Fails as [`DeviceLinks::doors`].
    pub fn loop_note(&self, resource: &str, volume: u32) -> io::Result<PathBuf> {
        let files = self.files(resource);
        one_component(files)?;
        Ok(self.run_dir.join(format!("{files}-{volume}.loop")))
    }

    /// Clears what killed processes have left of a volume's loop device. Only for who knows that none of the resource's
    /// is left, and no keeper.
    ///
    /// # Errors
    /// If something is left.
    pub fn clear_loop(&self, resource: &str, volume: u32) -> io::Result<()> {
        let name = crate::fuse::file_name(volume, &self.secret(resource));
        crate::loopdev::leftover::clear(&self.loop_note(resource, volume)?, &name)
    }

    /// Makes the names of files those of this node, on a machine with several: a loop device tells what it stands on.
    /// Always the same one, as the next process has to know them.
    pub fn secret(&self, resource: &str) -> String {
        let place = self.doors(resource).unwrap_or_default();
        // FNV-1a.
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = place.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325, mix);
        format!("{}-{hash:016x}", self.files(resource))
    }

    /// Resource and volume of the file of this node on which a loop device stands, by the path that the kernel tells:
    /// that of the file, or, for one that another process has opened, `/` and its name.
    pub fn of_file<'a>(&self, path: &'a str) -> Option<(&'a str, u16)> {
        let (_, file) = path.rsplit_once('/')?;
        let (volume, secret) = file.strip_prefix('.')?.split_once('-')?;
        let (resource, _) = secret.rsplit_once('-')?;
        (self.secret(resource) == secret).then_some((resource, volume.parse().ok()?))
    }

    /// The link that is there in any case, whether it exists or not. Fails as [`DeviceLinks::doors`].
    pub fn path(&self, resource: &str, volume: u32) -> io::Result<PathBuf> {
        one_component(resource)?;
        Ok(self.base.join("by-res").join(resource).join(volume.to_string()))
    }

    /// Are DRBD's names of this volume left to the kernel's DRBD, as it has the minor?
    pub fn leaves_to_kernel(&self, names: &Names) -> bool {
        self.drbd.is_some() && self.kernel.has(names.minor)
    }

    /// Makes all links to the volume's door, each in one step: whoever follows one at that moment finds the old door or
    /// the new one. Another node's are replaced if they are to be `taken`.
    ///
    /// # Errors
    /// If one cannot be made, or something else than a link has its name. The others are made all the same.
    pub fn create(&self, names: &Names, taken: bool) -> io::Result<()> {
        let door = self.door(&names.resource, names.volume)?;
        let mut result = Ok(());
        for link in self.links(names)? {
            let made = match fs::symlink_metadata(&link) {
                Ok(found) if !found.is_symlink() => {
                    let what = format!("{} is not a symbolic link: remove it by hand", link.display());
                    Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
                }
                Ok(_) if !taken || fs::read_link(&link).is_ok_and(|to| to == door) => Ok(()),
                _ => replace(&link, &door),
            };
            result = result.and(made);
        }
        result
    }

    /// Makes all links to the volume's door as it is called by now, then removes this node's that it is called no more.
    /// `before`: what its resource was called.
    ///
    /// # Errors
    /// As [`DeviceLinks::create`] and [`DeviceLinks::remove`].
    pub fn rename(&self, before: &str, names: &Names, taken: bool) -> io::Result<()> {
        let made = self.create(names, taken);
        let stay = self.links(names)?;
        made.and(self.remove_but(before, names.volume, &stay))
    }

    /// Removes this node's links to the volume's door, and directories that are empty then. It is no error if there
    /// are none, or only another node's.
    ///
    /// # Errors
    /// If one cannot be removed.
    pub fn remove(&self, resource: &str, volume: u32) -> io::Result<()> {
        self.remove_but(resource, volume, &[])
    }

    fn remove_but(&self, resource: &str, volume: u32, stay: &[PathBuf]) -> io::Result<()> {
        let door = self.door(resource, volume)?;
        let path = self.path(resource, volume)?;
        let mut result = if stay.contains(&path) { Ok(()) } else { remove_link(&path, &door, &self.base) };
        if let Some(drbd) = &self.drbd {
            let is_name = |path: &Path| path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"drbd"));
            let own = entries(drbd).filter(|path| is_name(path) && path.is_symlink());
            let nested = ["by-res", "by-disk"].map(|by| drbd.join("drbd").join(by));
            let all = own.chain(nested.iter().flat_map(|from| links_below(from)));
            for link in all.filter(|link| !stay.contains(link)) {
                result = result.and(remove_link(&link, &door, drbd));
            }
        }
        result
    }

    /// Does the name lead to this node's door? Not if there is none, nor if another node has taken it since.
    pub fn is_own(&self, resource: &str, volume: u32) -> bool {
        let door = self.door(resource, volume);
        let to = self.path(resource, volume).and_then(fs::read_link);
        door.is_ok_and(|door| to.is_ok_and(|to| to == door))
    }

    fn links(&self, names: &Names) -> io::Result<Vec<PathBuf>> {
        let mut links = vec![self.path(&names.resource, names.volume)?];
        let Some(base) = self.drbd.as_ref().filter(|_| !self.leaves_to_kernel(names)) else { return Ok(links) };
        links.push(base.join(format!("drbd{}", names.minor)));
        let one = |name: &&String| name.starts_with("drbd_") && one_component(name).is_ok();
        links.extend(names.name.as_ref().filter(one).map(|name| base.join(name)));
        let by_res = base.join("drbd/by-res").join(&names.resource);
        links.push(if names.implicit { by_res } else { by_res.join(names.volume.to_string()) });
        let disk = names.disk.as_deref().map(|disk| disk.strip_prefix("/dev/").unwrap_or(disk));
        let plain = |disk: &&str| Path::new(disk).components().all(|c| matches!(c, Component::Normal(_)));
        links.extend(disk.map(|disk| disk.trim_start_matches('/')).filter(plain).map(|disk| {
            let by_disk = base.join("drbd/by-disk");
            by_disk.join(disk)
        }));
        Ok(links)
    }
}

/// Has the kernel's DRBD a device with this minor? Then the device's names are its own.
pub fn kernel_has_minor(minor: u32) -> bool {
    KernelDrbd::default().has(minor)
}

impl Default for KernelDrbd {
    fn default() -> KernelDrbd {
        KernelDrbd { devices: "/proc/devices".into(), block: "/sys/dev/block".into() }
    }
}

impl KernelDrbd {
    fn has(&self, minor: u32) -> bool {
        let devices = fs::read_to_string(&self.devices).unwrap_or_default();
        let mut numbered = devices.lines().filter_map(|line| line.trim().split_once(' '));
        let major = numbered.find(|(_, name)| *name == "drbd").map(|(major, _)| major);
        major.is_some_and(|major| self.block.join(format!("{major}:{minor}")).symlink_metadata().is_ok())
    }
}

fn one_component(resource: &str) -> io::Result<()> {
    let mut components = Path::new(resource).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(name)), None) if name == resource => Ok(()),
        _ => {
            let what = format!("{resource:?} cannot be a resource name: it is not one path component");
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
    }
}

fn replace(link: &Path, door: &Path) -> io::Result<()> {
    let directory = link.parent().unwrap_or(Path::new("/"));
    create_for_all(directory)?;
    let name = link.file_name().unwrap_or_default().to_string_lossy();
    let new = directory.join(format!(".{name}.{}", std::process::id()));
    absent_is_fine(fs::remove_file(&new))?;
    std::os::unix::fs::symlink(door, &new)?;
    fs::rename(&new, link).inspect_err(|_| drop(fs::remove_file(&new)))
}

/// The directory, and those above it that are not there: all users may look up names in them, whatever this process's
/// umask is, as in any directory of devices. Who may open the device is for the device to say.
fn create_for_all(directory: &Path) -> io::Result<()> {
    let missing: Vec<_> = directory.ancestors().take_while(|above| !above.exists()).collect();
    for directory in missing.into_iter().rev() {
        match fs::create_dir(directory) {
            Ok(()) => fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Removes a link that leads to `door`, and the directories between it and `base` that are empty then.
fn remove_link(link: &Path, door: &Path, base: &Path) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|to| to == door) {
        absent_is_fine(fs::remove_file(link))?;
    }
    let between = link.ancestors().skip(1).take_while(|directory| *directory != base);
    for directory in between {
        if fs::remove_dir(directory).is_err() {
            break;
        }
    }
    Ok(())
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// All symbolic links in a directory and those below it.
fn links_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for path in entries(&directory) {
            match fs::symlink_metadata(&path) {
                Ok(is) if is.is_symlink() => found.push(path),
                Ok(is) if is.is_dir() => left.push(path),
                _ => {}
            }
        }
    }
    found
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

    fn names(resource: &str, volume: u32, minor: u32, disk: Option<&str>) -> Names {
        Names { resource: resource.into(), volume, implicit: false, minor, name: None, disk: disk.map(str::to_owned) }
    }

    #[test]
    fn links_come_turn_and_go() {
        let base = tempfile::tempdir().unwrap();
        let links = DeviceLinks::new(base.path(), None, Path::new("/run/urbd"));
        links.create(&names("r0", 0, 1, Some("/dev/vg/a")), false).unwrap();
        let link = links.path("r0", 0).unwrap();
        assert_eq!(link, base.path().join("by-res/r0/0"));
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("/run/urbd/r0.dev/0"));
        links.create(&names("r0", 1, 2, None), false).unwrap();
        assert_eq!(fs::read_dir(base.path().join("by-res/r0")).unwrap().count(), 2);
        assert!(!base.path().join("drbd1").is_symlink(), "not asked for");
        links.remove("r0", 0).unwrap();
        assert!(base.path().join("by-res/r0/1").is_symlink());
        links.remove("r0", 1).unwrap();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
        links.remove("r0", 1).unwrap();
    }

    #[test]
    fn a_loop_device_tells_whose_it_is() {
        let links = DeviceLinks::new(Path::new("/dev/urbd"), None, Path::new("/run/urbd"));
        for folder in ["/run/urbd/a-b.dev", ""] {
            assert_eq!(links.of_file(&format!("{folder}/.12-{}", links.secret("a-b"))), Some(("a-b", 12)));
        }
        let other = DeviceLinks::new(Path::new("/dev/urbd"), None, Path::new("/srv/other"));
        for path in ["/.0-r0-0123456789abcdef", "/srv/image", "/.0-", "", &format!("/.0-{}", other.secret("r0"))] {
            assert_eq!(links.of_file(path), None, "{path}");
        }
    }

    #[test]
    fn drbd_has_its_names() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        let links = DeviceLinks::new(at("urbd"), Some(base.path().to_owned()), Path::new("/run/urbd"));
        links.create(&names("r0", 3, 1000, Some("/dev/vg/a")), false).unwrap();
        links.create(&Names { implicit: true, ..names("mail", 0, 7, Some("/srv/disk")) }, false).unwrap();
        links.create(&names("r1", 0, 8, Some("/dev/../etc")), false).unwrap();
        let of = |name: &str| fs::read_link(at(name)).ok();
        for name in ["urbd/by-res/r0/3", "drbd1000", "drbd/by-res/r0/3", "drbd/by-disk/vg/a"] {
            assert_eq!(of(name).as_deref(), Some(Path::new("/run/urbd/r0.dev/3")), "{name}");
        }
        for name in ["drbd7", "drbd/by-res/mail", "drbd/by-disk/srv/disk"] {
            assert_eq!(of(name).as_deref(), Some(Path::new("/run/urbd/mail.dev/0")), "{name}");
        }
        fs::write(at("drbd9"), "a device of the kernel").unwrap();
        assert!(links.create(&names("r2", 0, 9, None), true).is_err());
        assert!(at("urbd/by-res/r2/0").is_symlink(), "the others are made");
        // A name of its own, and what would be one elsewhere.
        for (name, made) in [("drbd_mail", true), ("drbd_/../../etc", false), ("null", false)] {
            let named = Names { name: Some(name.to_owned()), ..names("r3", 0, 10, None) };
            links.create(&named, false).unwrap();
            assert_eq!(links.links(&named).unwrap().len(), if made { 4 } else { 3 }, "{name}");
        }
        assert_eq!(of("drbd_mail").as_deref(), Some(Path::new("/run/urbd/r3.dev/0")));
        for (resource, volume) in [("r0", 3), ("mail", 0), ("r1", 0), ("r2", 0), ("r3", 0)] {
            links.remove(resource, volume).unwrap();
        }
        let mut left: Vec<PathBuf> = entries(base.path()).collect();
        left.sort();
        assert_eq!(left, [at("drbd9"), at("urbd")], "what is not ours stays");
    }

    /// Who has just loaded it takes no names away; a device of its own has them.
    #[test]
    fn the_kernels_drbd_has_the_names_of_its_minors() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        let kernel = KernelDrbd { devices: at("devices"), block: at("block") };
        let links = DeviceLinks::new(at("urbd"), Some(base.path().to_owned()), Path::new("/run/urbd"));
        let links = DeviceLinks { kernel, ..links };
        let made = |volume: u32, minor: u32| {
            let of = names("r0", volume, minor, Some(&format!("/dev/vg/{volume}")));
            links.create(&of, false).unwrap();
            assert!(at(&format!("urbd/by-res/r0/{volume}")).is_symlink());
            let by = [format!("drbd{minor}"), format!("drbd/by-res/r0/{volume}"), format!("drbd/by-disk/vg/{volume}")];
            let made = by.map(|name| at(&name).is_symlink());
            assert!(made == [true; 3] || made == [false; 3], "{made:?}");
            assert_eq!(links.leaves_to_kernel(&of), !made[0]);
            made[0]
        };
        fs::create_dir(at("block")).unwrap();
        assert!(made(0, 1), "not loaded");
        fs::write(at("devices"), "Block devices:\n  7 loop\n147 drbd\n 253 drbdx\n").unwrap();
        assert!(made(1, 2), "idle");
        for other in ["147:21", "14:72", "253:3", "7:4"] {
            fs::write(at(&format!("block/{other}")), "").unwrap();
        }
        assert!(made(2, 3) && made(3, 4), "other devices");
        fs::write(at("block/147:5"), "").unwrap();
        assert!(!made(4, 5) && made(5, 6));
        // Names that were made before it had the minor go with the volume.
        fs::write(at("block/147:6"), "").unwrap();
        (0..6).for_each(|volume| links.remove("r0", volume).unwrap());
        assert!(!at("drbd6").is_symlink() && !at("drbd").exists() && !at("urbd/by-res").exists());
    }

    #[test]
    fn a_volume_on_another_disk_has_another_name() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        let links = DeviceLinks::new(at("urbd"), Some(base.path().to_owned()), Path::new("/run/urbd"));
        links.create(&names("r0", 0, 1, Some("/dev/vg/a")), false).unwrap();
        links.create(&names("r1", 0, 2, Some("/dev/vg/c")), false).unwrap();
        links.rename("r0", &names("r0", 0, 1, Some("/dev/lv/b")), false).unwrap();
        let there = |name: &str| at(name).is_symlink();
        assert!(["urbd/by-res/r0/0", "drbd1", "drbd/by-res/r0/0", "drbd/by-disk/lv/b"].into_iter().all(there));
        assert!(!there("drbd/by-disk/vg/a") && there("drbd/by-disk/vg/c") && there("drbd2"));
        links.rename("r0", &names("r0", 0, 1, None), false).unwrap();
        assert!(there("drbd1") && !at("drbd/by-disk/lv").exists());
    }

    #[test]
    fn a_node_removes_its_own_link_only() {
        let base = tempfile::tempdir().unwrap();
        let [a, b] = ["/run/a", "/run/b"].map(|run| DeviceLinks::new(base.path(), None, Path::new(run)));
        let link = a.path("r0", 0).unwrap();
        let of = names("r0", 0, 1, None);
        a.create(&of, false).unwrap();
        b.create(&of, false).unwrap();
        b.remove("r0", 0).unwrap();
        assert!(a.is_own("r0", 0) && !b.is_own("r0", 0), "it has not asked for it");
        b.create(&of, true).unwrap();
        assert!(b.is_own("r0", 0) && !a.is_own("r0", 0));
        a.remove("r0", 0).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("/run/b/r0.dev/0"));
        b.remove("r0", 0).unwrap();
        assert!(!link.is_symlink());
    }

    #[test]
    fn what_is_not_a_link_stays() {
        let base = tempfile::tempdir().unwrap();
        let links = DeviceLinks::new(base.path(), None, Path::new("/run/urbd"));
        let path = links.path("r0", 0).unwrap();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(links.create(&names("r0", 0, 1, None), true).is_err());
        links.remove("r0", 0).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn names_stay_below_the_base() {
        let links = DeviceLinks::new("/dev/urbd", None, Path::new("/run/urbd"));
        for name in ["", ".", "..", "a/b", "/etc", "a/", "../x"] {
            assert_eq!(links.path(name, 0).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
            assert_eq!(links.door(name, 0).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert_eq!(links.path("r 0", 12).unwrap(), Path::new("/dev/urbd/by-res/r 0/12"));
    }
}
