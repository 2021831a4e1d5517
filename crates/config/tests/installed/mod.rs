//! Samples of `vectors/config` as if they were installed.

use std::fs;
use std::path::Path;

use urbd_config::Memory;

/// The sample as if it were installed in /etc.
pub(crate) fn files(sample: &Path) -> Memory {
    fn add(files: &mut Memory, from: &Path, to: &Path) {
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let target = to.join(entry.file_name());
            if entry.path().is_dir() {
                add(files, &entry.path(), &target);
            } else {
                files.insert(target, fs::read(entry.path()).unwrap());
            }
        }
    }
    let mut files = Memory::default();
    add(&mut files, sample, Path::new("/etc"));
    files
}
