//! Every broken configuration of `vectors/config/bad`: exit status, kind and line as the real tools gave them.

use std::path::{Path, PathBuf};

use serde_json::Value;
use urbd_config::{self as config, Config, ErrorKind, Errors, LoadOptions, ThisHost, Version};

/// Samples whose line differs on purpose: (sample, our line, why). The real line is 0, or that of the whole resource.
const OUR_LINES: &[(&str, u64, &str)] = &[
    ("15-duplicate-disk", 7, "the second use, not 0"),
    ("19-address-used-twice", 8, "the second host section, not 0"),
    ("20-same-endpoint-both-sides", 4, "the second address, not 0"),
    ("21-volume-mismatch", 5, "the host that lacks the volume"),
    ("22-implicit-explicit-mix", 3, "the volume section, not the end of the resource"),
    ("29-mesh-unknown-host", 5, "the name, not the resource"),
    ("44-stacked-on-unknown", 2, "the name, not the resource"),
    ("45-ambiguous-inheritance", 3, "the second value, not the resource"),
    ("46-ambiguous-peer-device", 2, "a value, not the resource"),
    ("49-proxy-one-side", 4, "the host without proxy, not the resource"),
    ("35-resync-after-unknown", 3, "the option, not the resource"),
];

/// Samples where we differ on purpose in the outcome: (sample, our exit status, why).
const OUR_OUTCOME: &[(&str, i32, &str)] = &[
    ("56-module-version-lt-bug", 0, "`lt` works"),
    ("63-discard-node-name", 0, "a word of 8.4, which each host reads as discard-local or discard-remote"),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/config/bad")
}

/// What `up all` as alpha would check before it runs anything.
fn up_as_alpha(path: &Path) -> Result<Config, Errors> {
    let options = LoadOptions { module_version: Version(9, 2, 14), ..LoadOptions::default() };
    let config = config::load_from(&config::Disk, path, &options)?;
    config.resources_for(&ThisHost::named("alpha"))?;
    Ok(config)
}

fn kind_word(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Lexer => "lexer",
        ErrorKind::Syntax => "syntax",
        ErrorKind::Value => "value",
        ErrorKind::Duplicate => "duplicate",
        ErrorKind::Missing => "missing",
        ErrorKind::Device => "device",
        ErrorKind::Address => "address",
        ErrorKind::Volumes => "volumes",
        ErrorKind::Connection => "connection",
        ErrorKind::Include => "include",
        ErrorKind::Range => "range",
        ErrorKind::Host => "host",
        ErrorKind::Stacking => "stacking",
        ErrorKind::Inheritance => "inheritance",
        ErrorKind::Proxy => "proxy",
        ErrorKind::Version => "version",
        ErrorKind::Empty => "empty",
        ErrorKind::Unsupported | ErrorKind::Unknown | ErrorKind::File => "other",
    }
}

/// `None` if the sample behaves as expected, else what is different.
fn difference(sample: &Value) -> Option<String> {
    let name = sample["sample"].as_str().unwrap();
    let lines = [&sample["line_9_22"], &sample["line_9_34"]].map(Value::as_u64);
    let ours = OUR_LINES.iter().find(|(n, _, _)| *n == name).map(|(_, line, _)| *line);
    let line_fits = |line: u64| ours.map_or(lines.contains(&Some(line)), |ours| ours == line);
    let outcome = OUR_OUTCOME.iter().find(|(n, _, _)| *n == name).map(|(_, rc, _)| i64::from(*rc));
    let rc = outcome.or(sample["rc"].as_i64()).unwrap();
    match up_as_alpha(&folder().join(name).with_extension("conf")) {
        Ok(_) if rc != 0 => Some(format!("{name}: accepted, but should give {rc}")),
        Ok(config) => {
            let warned = config.warnings().iter().any(|w| line_fits(u64::from(w.span.line)));
            let wants = lines[0].is_some() && outcome.is_none() || sample["kind"] == "warning";
            (wants && !warned && lines[0].is_some()).then(|| format!("{name}: no warning: {:?}", config.warnings()))
        }
        Err(errors) => {
            let first = errors.first();
            // The real tools word two syntax rules elsewhere: a quoted string that is wrong is a matter of the lexer.
            let lexical = first.kind == ErrorKind::Lexer && sample["kind"] == "syntax" && name.starts_with("09");
            let kind_fits = sample["kind"] == kind_word(first.kind) || lexical;
            let line = first.span.as_ref().map_or(0, |s| u64::from(s.line));
            let place_fits = if lines[0].is_none() { first.span.is_none() } else { line_fits(line) };
            let help = first.help.as_deref().unwrap_or("");
            let fits = i64::from(errors.exit_code()) == rc && kind_fits && place_fits && !first.message.is_empty();
            (!fits).then(|| {
                format!(
                    "{name}: want rc {rc} {} {lines:?}\n   got rc {} {:?}\n   {errors}\n{help}",
                    sample["kind"],
                    errors.exit_code(),
                    first.kind
                )
            })
        }
    }
}

#[test]
fn every_broken_sample_is_refused_as_by_the_real_tools() {
    let text = std::fs::read_to_string(folder().join("expected.json")).unwrap();
    let samples: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(samples.len(), 66);
    let different: Vec<String> = samples.iter().filter_map(difference).collect();
    assert!(different.is_empty(), "{} differ:\n{}", different.len(), different.join("\n"));
}

/// What a user reads for the commonest slips (`docs/spec/config-and-cli.md` 9.2).
#[test]
fn messages_say_what_and_what_to_do() {
    for (sample, wanted) in [
        ("01-missing-semicolon", "a semicolon is missing before `meta-disk`"),
        ("02-unknown-keyword-resource", "did you mean `device`?"),
        ("03-unknown-net-option", "did you mean `protocol`?"),
        ("04-value-too-big", "`ping-int 121` is above the maximum 120 seconds"),
        ("06-bad-enum", "write one of: A, B, C"),
        ("08-bad-unit", "`10T` is not a number"),
        ("09-unterminated-quote", "the closing quote of this string is missing"),
        ("11-quoted-too-long", "more than 255 characters"),
        ("14-duplicate-minor", "minor 1 is used twice on host `alpha`, by r1/0 and r0/0"),
        ("53-no-resource-for-host", "the hosts in the file are: xray, yoda"),
        ("58-unquoted-ipv6", "write the word ipv6 in front of it"),
    ] {
        let errors = up_as_alpha(&folder().join(sample).with_extension("conf")).unwrap_err();
        assert!(errors.to_string().contains(wanted), "{sample}: {errors}");
    }
}
