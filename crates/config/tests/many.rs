//! Configurations of many thousand resources, which a search through all for each would not end with.

use std::cell::Cell;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use urbd_config::{Config, Errors, Files, LoadOptions, Memory, ThisHost, load_from};

const MANY: usize = 20_000;

fn resource(n: usize, more: &str) -> String {
    let (net, port) = (n / 8000, 7000 + n % 8000);
    format!(
        "resource r{n} {{ {more} device minor {n}; disk /dev/vg/l{n}; meta-disk internal;
           on alpha {{ node-id 0; address 10.{net}.0.1:{port}; }} on bravo {{ node-id 1; address 10.{net}.0.2:{port}; }} }}\n"
    )
}

fn load(more: impl Fn(usize) -> String) -> Result<Config, Errors> {
    let mut text = String::new();
    for n in 0..MANY {
        write!(text, "{}", resource(n, &more(n))).unwrap();
    }
    let mut files = Memory::default();
    files.insert("/etc/urbd.conf", text);
    load_from(&files, Path::new("/etc/urbd.conf"), &LoadOptions::default())
}

#[test]
fn each_is_found() {
    let config = load(|_| String::new()).unwrap();
    let local = config.resources_for(&ThisHost::named("alpha")).unwrap();
    assert_eq!(local.len(), MANY);
    for n in [0, 1, MANY / 2, MANY - 1] {
        assert_eq!(config.resource(&format!("r{n}")).unwrap().name, format!("r{n}"));
        assert_eq!(local[n].volumes[0].minor, n as u32);
    }
    assert!(config.resource("r20000").is_none());
}

#[test]
fn each_may_wait_for_the_one_before() {
    let config = load(|n| match n {
        0 => String::new(),
        n => format!("disk {{ resync-after r{}; }}", n - 1),
    });
    let local = config.unwrap().resources_for(&ThisHost::named("alpha")).unwrap();
    assert_eq!(local[0].volumes[0].resync_after_minor, None);
    assert!((1..MANY).all(|n| local[n].volumes[0].resync_after_minor == Some(n as u32 - 1)));
}

#[test]
fn the_longest_circle_is_named() {
    let refused = load(|n| format!("disk {{ resync-after r{}; }}", (n + MANY - 1) % MANY)).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("makes a circle: r0/0 waits for r19999/0, which waits for r19998/0,"), "{:.200}", text);
}

#[test]
fn a_small_circle_is_found_among_those_that_lead_to_it() {
    let refused = load(|n| match n {
        15_000 => "disk { resync-after r15002; }".to_owned(),
        0 => String::new(),
        n => format!("disk {{ resync-after r{}; }}", n - 1),
    });
    let text = refused.unwrap_err().to_string();
    let circle = "r15000/0 waits for r15002/0, which waits for r15001/0, which waits for r15000/0\n";
    assert!(text.contains(circle), "{:.300}", text);
}

#[test]
fn each_may_have_its_warning() {
    let config = load(|n| format!("disk {{ resync-after nobody{n}; }}")).unwrap();
    assert_eq!(config.warnings().len(), MANY);
}

/// Counts how often a directory is read.
#[derive(Default)]
struct Counted(Memory, Cell<usize>);

impl Files for Counted {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.read(path)
    }

    fn names_in(&self, directory: &Path) -> Vec<String> {
        self.1.set(self.1.get() + 1);
        self.0.names_in(directory)
    }

    fn identity(&self, path: &Path) -> PathBuf {
        self.0.identity(path)
    }
}

#[test]
fn each_may_have_its_file() {
    let mut files = Counted::default();
    files.0.insert("/etc/urbd.conf", "include \"urbd.d/*.res\";");
    for n in 0..MANY {
        files.0.insert(format!("/etc/urbd.d/r{n}.res"), resource(n, ""));
    }
    let config = load_from(&files, Path::new("/etc/urbd.conf"), &LoadOptions::default()).unwrap();
    assert_eq!((config.resources.len(), files.1.get()), (MANY, 1));
}
