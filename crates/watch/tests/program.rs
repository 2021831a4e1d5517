//! The program `urbd-watch`, called as `urbd top` and `urbd web` call it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A run directory in which nothing runs, and the configuration of one resource.
fn node() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = "resource r0 {\n  device minor 7; disk /nonexistent; meta-disk internal;\n  \
                on alpha { address 127.0.0.1:7789; }\n  on bravo { address 127.0.0.2:7789; }\n}\n";
    fs::write(dir.path().join("urbd.conf"), text).unwrap();
    dir
}

/// Its exit status, what it prints, and what it complains about.
fn call(dir: &TempDir, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_urbd-watch"));
    process.arg0("urbd").args(arguments).stdin(Stdio::null());
    process.env("URBD_CONF", dir.path().join("urbd.conf")).env("URBD_NODE", "alpha").env("URBD_RUN_DIR", dir.path());
    let output = process.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn what_is_configured_and_does_not_run_is_shown() {
    let (status, picture, complaint) = call(&node(), &["top", "--once"]);
    assert_eq!((status, complaint.as_str()), (Some(0), ""));
    assert!(picture.contains("r0") && picture.contains("it was not started"), "{picture}");
}

#[test]
fn problems_are_said_as_urbd_says_them() {
    for (arguments, expected, says) in [
        (&["top", "r9"][..], 1, "urbd: none of these resources is known"),
        (&["web", "--listen", "192.0.2.1:80"], 1, "urbd: --listen "),
        (&["top", "--nonsense"], 1, "Usage: urbd top"),
        (&["status"], 1, "urbd: this program is for top and web"),
    ] {
        let (status, said, complaint) = call(&node(), arguments);
        assert_eq!((status, said.as_str()), (Some(expected), ""), "{arguments:?}");
        assert!(complaint.contains(says), "{arguments:?}: {complaint}");
    }
}

#[test]
fn a_dry_run_of_web_says_where_it_would_be() {
    let (status, said, _) = call(&node(), &["--dry-run", "web", "--listen", "7781"]);
    assert_eq!((status, said.as_str()), (Some(0), "http://127.0.0.1:7781/\n"));
}
