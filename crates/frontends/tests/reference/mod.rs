//! A tiny blocking server over memory, to prove the protocol code with real clients.

#![allow(dead_code, unreachable_pub)] // Each test file uses its own part.

pub mod disk;
pub mod fuse_server;
pub mod nbd_server;

use std::process::{Command, Output};

/// Whether a program is installed; says so if not, since the caller then skips.
pub fn installed(program: &str) -> bool {
    let found = std::env::var("PATH")
        .unwrap_or_default()
        .split(':')
        .chain(["/usr/sbin", "/sbin"])
        .any(|dir| std::path::Path::new(dir).join(program).exists());
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

/// Runs a program for at most a minute and returns what it printed. Panics if it fails.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = attempt(program, args);
    assert!(output.status.success(), "{program} {args:?}: {}", describe(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a program for at most a minute.
pub fn attempt(program: &str, args: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-k", "5", "60", program])
        .args(args)
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
        .output()
        .expect("coreutils' timeout must be there")
}

pub fn describe(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}
