//! Verbs that programs of their own serve: how they are found, what reaches them, and what is said without them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// The program alone in a folder.
struct Folder {
    dir: TempDir,
}

impl Folder {
    fn new() -> Folder {
        let folder = Folder { dir: tempfile::tempdir().unwrap() };
        folder.copy(env!("CARGO_BIN_EXE_urbd").as_ref(), "urbd");
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Puts another program beside it.
    fn add(&self, name: &str, script: &str) {
        let text = self.path(&format!("{name}.text"));
        fs::write(&text, script).unwrap();
        fs::set_permissions(&text, PermissionsExt::from_mode(0o755)).unwrap();
        self.copy(&text, name);
    }

    /// Puts a copy of a program into the folder, by `cp`.
    ///
    /// While this process has a program's file open for writing, a child that another test's thread starts inherits
    /// the descriptor until it runs its own program; until then the kernel refuses to run the file (ETXTBSY).
    fn copy(&self, program: &Path, name: &str) {
        let status = Command::new("cp").args(["-p".as_ref(), program, self.path(name).as_path()]).status().unwrap();
        assert!(status.success(), "cp: {status}");
    }

    fn call(&self, arguments: &[&str]) -> Output {
        Command::new(self.path("urbd")).args(arguments).stdin(Stdio::null()).output().unwrap()
    }
}

#[test]
fn the_simulator_and_the_benchmark_are_programs_of_their_own() {
    let folder = Folder::new();
    let absent = folder.call(&["bench", "bars", "--list"]);
    let complaint = String::from_utf8(absent.stderr).unwrap();
    assert_eq!(absent.status.code(), Some(20));
    assert!(
        complaint.contains("urbd-lab, which is not in") && complaint.contains("install the package"),
        "{complaint}"
    );
    // All words reach it as they are, and its exit status comes back.
    folder.add("urbd-lab", "#!/bin/sh\necho \"$@\" \"$URBD_PROGRAM\"\nexit 10\n");
    let called = folder.call(&["sim", "--help", "--seed=3", "x"]);
    assert_eq!(called.status.code(), Some(10));
    let said = String::from_utf8(called.stdout).unwrap();
    assert_eq!(said, format!("sim --help --seed=3 x {}\n", folder.path("urbd").display()));
    let help = String::from_utf8(folder.call(&["help"]).stdout).unwrap();
    assert!(!help.contains(" sim ") && !help.contains(" bench "), "out of the operator's sight: {help}");
}

#[test]
fn what_shows_resources_is_a_program_of_its_own() {
    let folder = Folder::new();
    for verb in ["top", "web"] {
        let absent = folder.call(&[verb]);
        let complaint = String::from_utf8(absent.stderr).unwrap();
        assert_eq!(absent.status.code(), Some(20));
        let expected = format!("urbd: {verb} needs the program urbd-watch, which is not in ");
        assert!(complaint.starts_with(&expected) && complaint.contains("urbd: hint: "), "{complaint}");
    }
    // What was typed reaches it in the parser's order, and its exit status comes back.
    folder.add("urbd-watch", "#!/bin/sh\necho \"$@\"\nexit 7\n");
    let called = folder.call(&["-c", "/x", "--once", "top", "--color=always", "r0", "r1"]);
    assert_eq!(called.status.code(), Some(7), "{called:?}");
    assert_eq!(String::from_utf8(called.stdout).unwrap(), "top r0 r1 -c/x --once --color=always\n");
    // What is wrong with a call, and help, does not need it.
    for (arguments, status, says) in
        [(["top", "--nonsense"], 1, "--nonsense"), (["web", "--help"], 0, "--listen"), (["help", "top"], 0, "--once")]
    {
        let called = folder.call(&arguments);
        let said = String::from_utf8([called.stdout, called.stderr].concat()).unwrap();
        assert!(called.status.code() == Some(status) && said.contains(says), "{arguments:?}: {said}");
    }
}
