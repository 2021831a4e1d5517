//! Text that nobody meant to write: no panic, no endless loop, and what is accepted can be dumped and read again.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use urbd_config::{LoadOptions, Memory, ThisHost, load_text};

/// Fragments that mean something to the language.
const FRAGMENTS: &[&str] = &[
    "{",
    "}",
    ";",
    ":",
    "[",
    "]",
    "\"",
    "\\",
    "#",
    "\n",
    " ",
    "resource",
    "on",
    "floating",
    "skip",
    "volume",
    "0",
    "65536",
    "net",
    "disk",
    "none",
    "device",
    "minor",
    "connection",
    "path",
    "host",
    "connection-mesh",
    "hosts",
    "address",
    "ipv6",
    "10.1.1.1:7789",
    "[fd00::1%lo]:1",
    "node-id",
    "99999999999",
    "proxy",
    "via",
    "inside",
    "outside",
    "options",
    "protocol",
    "syncer",
    "rate",
    "template-file",
    "include",
    "\"*\"",
    "common",
    "global",
    "stacked-on-top-of",
    "meta-disk",
    "internal",
    "[0]",
    "4294967296G",
    "no-",
    "urbd",
    "_this_host",
    "_peer_node_id",
    "\u{fffd}",
    "ä",
    "%",
];

fn texts() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/config/good");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path().join("drbd.conf")).collect();
    files.sort();
    files.iter().map(|f| fs::read_to_string(f).unwrap()).collect()
}

/// Replaces a stretch of `text` by a fragment; positions are taken modulo the length.
fn spoil(text: &str, edits: &[(usize, usize, usize)]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for (at, length, fragment) in edits {
        let from = at % (chars.len() + 1);
        let to = (from + length).min(chars.len());
        chars.splice(from..to, FRAGMENTS[fragment % FRAGMENTS.len()].chars());
    }
    chars.into_iter().collect()
}

fn try_out(text: &str) -> Result<(), TestCaseError> {
    let (files, options) = (Memory::default(), LoadOptions::default());
    let host = ThisHost::named("alpha");
    match load_text(&files, Path::new("/etc/drbd.conf"), text, &options) {
        Err(errors) => {
            prop_assert!(errors.iter().count() > 0);
            prop_assert!(matches!(errors.exit_code(), 1 | 10 | 20));
            prop_assert!(!errors.to_string().is_empty());
        }
        Ok(config) => {
            let stacked = text.contains("stacked-on-top-of");
            let dumped = config.dump(&host, false, &[]);
            let again = load_text(&files, Path::new("/etc/drbd.conf"), &dumped, &options);
            prop_assert!(stacked || again.is_ok(), "{dumped}\n{again:?}");
            let closed = config.dump(&host, true, &[]).ends_with("}\n\n");
            prop_assert!(closed);
            let _ = config.resources_for(&host);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn spoilt_samples(
        which in 0..38usize,
        edits in prop::collection::vec((any::<usize>(), 0..12usize, any::<usize>()), 1..6),
    ) {
        let texts = texts();
        try_out(&spoil(&texts[which % texts.len()], &edits))?;
    }

    #[test]
    fn heaps_of_fragments(words in prop::collection::vec(0..FRAGMENTS.len(), 0..60)) {
        let text: Vec<&str> = words.into_iter().map(|w| FRAGMENTS[w]).collect();
        try_out(&text.join(" "))?;
    }

    #[test]
    fn any_text(text in ".{0,200}") {
        try_out(&text)?;
    }
}

#[test]
fn deep_nesting_ends_in_an_error() {
    let text = "a {".repeat(100_000);
    let errors = load_text(&Memory::default(), Path::new("x"), &text, &LoadOptions::default()).unwrap_err();
    assert!(errors.to_string().contains("nested too deeply"));
}

#[test]
fn a_file_that_includes_itself_is_read_once() {
    let mut files = Memory::default();
    files.insert("/etc/drbd.conf", "include \"drbd.conf\"; include \"*.conf\";");
    let config = urbd_config::load_from(&files, Path::new("/etc/drbd.conf"), &LoadOptions::default()).unwrap();
    assert!(config.resources.is_empty());
    let errors = config.resources_for(&ThisHost::named("alpha")).unwrap_err();
    assert_eq!(errors.exit_code(), 1, "{errors}");
}
