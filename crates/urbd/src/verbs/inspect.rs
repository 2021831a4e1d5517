//! `inspect`: what metadata say, in words, of disks and of dumps, alone and together. It only looks, at disks that may
//! be in use, and needs neither a configuration nor a process.

mod find;
#[cfg(test)]
mod hostile_tests;
mod json;
mod together;
mod words;

use std::path::{Path, PathBuf};

use meta::MetaDisk;

use crate::cli::Call;
use crate::problem::{Problem, exit};
use crate::verbs::status;

/// Reads all that is named, tells of each, and of all together.
///
/// # Errors
/// Exit 1: a bad call. What cannot be read is told of, the others are inspected all the same, and the exit status is
/// the worst: 20 it cannot be opened, 255 there are no valid metadata, 10 the disk fails or a dump is none.
pub(crate) fn run(call: &Call) -> Result<u8, Problem> {
    let kind = call.value("meta").map(place).transpose()?;
    let resource = call.value("resource").unwrap_or("RES");
    let mut worst = 0;
    let mut all = Vec::new();
    for argument in call.objects() {
        let (name, path) = named(&argument);
        match find::read(name, &path, kind) {
            Ok(inspected) => all.push(inspected),
            Err(problem) => {
                problem.report();
                worst = worst.max(problem.exit);
            }
        }
    }
    tell_apart(&mut all);
    let together = together::compare(&all, resource);
    if call.flag("json") {
        status::print(&json::text(&all, &together));
    } else if !all.is_empty() {
        status::print(&words::text(&all, &together));
    }
    Ok(worst)
}

/// `--meta`: where on the disk the metadata are.
fn place(word: &str) -> Result<MetaDisk, Problem> {
    match word {
        "internal" | "flex-internal" => Ok(MetaDisk::Internal),
        "flexible" | "flex-external" | "external" => Ok(MetaDisk::FlexExternal),
        slot => slot.parse().map(MetaDisk::Indexed).map_err(|_| {
            Problem::new(exit::USAGE, format!("--meta={slot}: is no place for metadata"))
                .hint("internal (at the end), flexible (a disk of their own), or the number of a slot, 0 to 255")
        }),
    }
}

/// `NAME=PATH`, unless there is a file of that whole name.
fn named(argument: &str) -> (Option<&str>, PathBuf) {
    match argument.split_once('=').filter(|(name, _)| is_name(name) && !Path::new(argument).exists()) {
        Some((name, path)) => (Some(name), PathBuf::from(path)),
        None => (None, PathBuf::from(argument)),
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// Two of one name get their paths.
fn tell_apart(all: &mut [find::Inspected]) {
    let names: Vec<String> = all.iter().map(|one| one.name.clone()).collect();
    for (n, one) in all.iter_mut().enumerate() {
        if names.iter().enumerate().any(|(other, name)| other != n && *name == names[n]) {
            let path: String = one.path.to_string_lossy().chars().filter(|c| !c.is_control()).collect();
            one.name = format!("{}({path})", names[n]);
        }
    }
}
