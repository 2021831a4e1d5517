//! `completion`, and what its scripts ask for: the words that may follow on a command line.

use std::ffi::OsString;
use std::path::Path;

use config::{Config, Kind, LocalResource, OptionSpec, Version};
use engine::digests::Algorithm;

use crate::cli::{self, Call};
use crate::context::Context;
use crate::objects::Takes;
use crate::problem::Problem;
use crate::verbs::{self, Opt, Verb, drbdmeta, drbdsetup, options, status};

/// The first argument of a call by one of the scripts; the words of the command line follow, the unfinished one last.
pub(crate) const ASKED: &str = "--completion-of";
/// In place of words: names of files may follow.
const FILES: &str = ":files";

/// `completion SHELL`: the script for that shell, which asks this program.
pub(crate) fn print(call: &Call) -> Result<u8, Problem> {
    let script = match call.value("shell").unwrap_or_default() {
        "bash" => include_str!("../../../../dist/completion/urbd.bash"),
        "zsh" => include_str!("../../../../dist/completion/urbd.zsh"),
        "fish" => include_str!("../../../../dist/completion/urbd.fish"),
        other => return Err(Problem::usage(format!("no completion for '{other}'")).hint("one of: bash zsh fish")),
    };
    status::print(script);
    Ok(0)
}

/// Prints the words that may stand where the last of `words` is, one a line. Never fails: who completes is typing.
pub(crate) fn answer(words: &[OsString]) -> u8 {
    let words: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let [program, before @ .., current] = words.as_slice() else { return 0 };
    let program = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let known = Known::of_this_host(before);
    let mut found = match program {
        "drbdsetup" => of_drbdsetup(before, current, &known),
        "drbdmeta" => drbdmeta::candidates(before, &known.minors()),
        _ => of_verb(before, current, &known),
    };
    found.retain(|word| word.starts_with(current) || word == FILES);
    found.dedup();
    status::print(&found.into_iter().map(|word| word + "\n").collect::<String>());
    0
}

/// What this host has.
struct Known {
    configured: Vec<LocalResource>,
    running: Vec<String>,
}

impl Known {
    /// A configuration that is not valid has no names.
    fn of_this_host(before: &[&str]) -> Known {
        let general = |long: &str, short: &str| {
            let at = before.iter().position(|word| *word == long || (!short.is_empty() && *word == short));
            let joined = before.iter().find_map(|word| word.strip_prefix(long)?.strip_prefix('='));
            at.and_then(|at| before.get(at + 1).copied()).or(joined).map(str::to_owned)
        };
        let context = Context::of(general("--config", "-c"), general("--node", ""));
        let config = config::load(&context.config_file).ok();
        let mine = |config: &Config| config.each_for(&context.this_host()).0;
        Known { configured: config.as_ref().map(mine).unwrap_or_default(), running: context.running_resources() }
    }

    fn resources(&self) -> Vec<String> {
        let mut names: Vec<String> = self.configured.iter().map(|r| r.name.clone()).collect();
        names.extend(self.running.iter().filter(|name| !self.configured.iter().any(|r| r.name == **name)).cloned());
        names
    }

    fn minors(&self) -> Vec<String> {
        self.configured.iter().flat_map(|r| &r.volumes).map(|v| v.minor.to_string()).collect()
    }

    fn find(&self, resource: &str) -> Option<&LocalResource> {
        self.configured.iter().find(|r| r.name == resource)
    }

    /// Objects that begin as what is typed: names first, and parts of a resource once its name stands there.
    fn objects(&self, takes: Takes, current: &str) -> Vec<String> {
        if matches!(takes, Takes::Nothing | Takes::Hosts) {
            return Vec::new();
        }
        let mut found = self.resources();
        found.push("all".to_owned());
        if current.starts_with("minor-") {
            found.extend(self.minors().into_iter().map(|minor| format!("minor-{minor}")));
        }
        let Some(resource) = self.find(current.split([':', '/']).next().unwrap_or_default()) else { return found };
        let with_volumes = |object: &str| -> Vec<String> {
            resource.volumes.iter().map(|volume| format!("{object}/{}", volume.nr.0)).collect()
        };
        let of_peers = matches!(takes, Takes::Peer | Takes::PeerDevice);
        for peer in resource.peers.iter().filter(|_| of_peers) {
            let object = format!("{}:{}", resource.name, peer.peer_name);
            if takes == Takes::PeerDevice && current.contains('/') {
                found.extend(with_volumes(&object));
            }
            found.push(object);
        }
        if matches!(takes, Takes::Volume | Takes::PeerDevice) {
            found.extend(with_volumes(&resource.name));
        }
        found
    }
}

fn of_verb(before: &[&str], current: &str, known: &Known) -> Vec<String> {
    if let Some(values) = general_value(before, current) {
        return values;
    }
    let Some((verb, behind)) = find_verb(before) else {
        let verbs = verbs::all().filter(|verb| !verb.hidden).map(|verb| verb.name.to_owned());
        let mut found: Vec<String> = if current.starts_with('-') { Vec::new() } else { verbs.collect() };
        found.push("help".to_owned());
        found.extend(general_options(current));
        return found;
    };
    let Some(verb) = verbs::find(verb) else { return Vec::new() };
    if let Some(values) = value_of_option(verb, behind, current, known) {
        return values;
    }
    if current.starts_with('-') {
        return options_of(verb, current);
    }
    match verb.options.iter().find(|option| option.positional) {
        Some(option) => words_of(option),
        None => known.objects(verb.takes, current),
    }
}

/// The word in the place of the verb, and what stands behind it.
fn find_verb<'a>(before: &'a [&'a str]) -> Option<(&'a str, &'a [&'a str])> {
    let mut is_value = false;
    for (n, word) in before.iter().enumerate() {
        let was_value = std::mem::replace(&mut is_value, takes_value(word));
        if !was_value && !word.starts_with('-') && *word != "help" {
            return Some((word, &before[n + 1..]));
        }
    }
    None
}

fn takes_value(word: &str) -> bool {
    FILE_OPTIONS.contains(&word) || word == "--node"
}

/// General options whose value is a file.
const FILE_OPTIONS: [&str; 6] = ["-c", "--config", "--config-file", "--config-to-test", "-E", "--config-to-exclude"];

/// Values of the general options, wherever they stand.
fn general_value(before: &[&str], current: &str) -> Option<Vec<String>> {
    let files = || Some(vec![FILES.to_owned()]);
    match before.last() {
        Some(&"--node") => Some(Vec::new()),
        Some(word) if FILE_OPTIONS.contains(word) => files(),
        _ if current.split_once('=').is_some_and(|(name, _)| FILE_OPTIONS.contains(&name)) => files(),
        _ => None,
    }
}

fn general_options(current: &str) -> Vec<String> {
    let shown =
        |(name, _, has_value): (&str, Option<char>, bool)| format!("--{name}{}", if has_value { "=" } else { "" });
    if current.starts_with('-') { cli::GENERAL.into_iter().map(shown).collect() } else { Vec::new() }
}

/// Where a value of one of the verb's options is to come: its words.
fn value_of_option(verb: &Verb, behind: &[&str], current: &str, known: &Known) -> Option<Vec<String>> {
    let (name, prefix) = match current.split_once('=') {
        Some((name, _)) => (name.strip_prefix("--")?, format!("{name}=")),
        None => (behind.last()?.strip_prefix("--")?, String::new()),
    };
    let values = match verb.options.iter().find(|option| option.name == name && option.value.is_some()) {
        Some(option) => words_of(option),
        None => words_of_setting(options::settable(verb.settings).find(|spec| spec.name == name)?, &prefix, known)?,
    };
    let files = values.first().is_some_and(|value| value == FILES);
    Some(if files { values } else { values.into_iter().map(|value| format!("{prefix}{value}")).collect() })
}

/// The words that an option takes, as its help names them: `a|b`; a FILE or PATH is a file.
fn words_of(option: &Opt) -> Vec<String> {
    match option.value.unwrap_or_default() {
        "FILE" | "PATH" => vec![FILES.to_owned()],
        words if words.contains('|') => words.split('|').map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// `None`: it takes no value in a word of its own.
fn words_of_setting(spec: &OptionSpec, prefix: &str, known: &Known) -> Option<Vec<String>> {
    let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
    match spec.kind {
        Kind::Choice { words: all, .. } => words(all),
        Kind::NumberOrWord { words: all, .. } => words(all),
        Kind::Bool { .. } if prefix.is_empty() => None,
        Kind::Bool { .. } => words(&["yes", "no"]),
        Kind::Flag => None,
        Kind::Number { default, .. } => Some(vec![default.to_string()]),
        Kind::ResyncAfter { .. } => Some(known.objects(Takes::Volume, "")),
        Kind::Text { .. } => match spec.name {
            "verify-alg" | "csums-alg" | "data-integrity-alg" | "cram-hmac-alg" => {
                Some(Algorithm::ALL.map(|(name, _)| name.to_owned()).into())
            }
            _ => Some(Vec::new()),
        },
        Kind::Command => Some(Vec::new()),
    }
}

fn options_of(verb: &Verb, current: &str) -> Vec<String> {
    let own = verb.options.iter().filter(|option| !option.hidden && !option.positional);
    let mut found: Vec<String> =
        own.map(|option| format!("--{}{}", option.name, if option.value.is_some() { "=" } else { "" })).collect();
    found.extend(options::settable(verb.settings).map(|spec| match spec.kind {
        Kind::Bool { .. } | Kind::Flag => format!("--{}", spec.name),
        _ => format!("--{}=", spec.name),
    }));
    found.extend(general_options(current));
    found.push("--help".to_owned());
    found
}

/// Of `drbdsetup`: commands, then minors, or resources, node ids of peers and volumes.
fn of_drbdsetup(before: &[&str], current: &str, known: &Known) -> Vec<String> {
    let positional: Vec<&str> = before.iter().filter(|word| !word.starts_with('-')).copied().collect();
    let Some((command, objects)) = positional.split_first() else { return drbdsetup::commands() };
    let verb = verbs::find(drbdsetup::verb_of(command));
    if let Some(verb) = verb.filter(|_| current.starts_with('-')) {
        let more = value_of_option(verb, &[], current, known);
        return more.unwrap_or_else(|| options_of(verb, "--").into_iter().filter(|o| !is_general(o)).collect());
    }
    if drbdsetup::takes_a_minor(command) {
        return if objects.is_empty() { known.minors() } else { Vec::new() };
    }
    let resource = objects.first().and_then(|name| known.find(name));
    match (objects.len(), resource) {
        (0, _) => known.resources().into_iter().chain(["all".to_owned()]).collect(),
        (1, Some(r)) => r.peers.iter().map(|peer| peer.peer_node_id.to_string()).collect(),
        (2, Some(r)) => r.volumes.iter().map(|volume| volume.nr.0.to_string()).collect(),
        _ => Vec::new(),
    }
}

fn is_general(option: &str) -> bool {
    let name = option.trim_start_matches("--").trim_end_matches('=');
    cli::GENERAL.iter().any(|(general, ..)| *general == name)
}

/// The version of the tools whose outputs ours follow (`docs/spec/config-and-cli.md` 3.6).
const TOOLS_VERSION: Version = Version(9, 34, 0);

/// `version`, `--version`: assignments that scripts evaluate.
pub(crate) fn version(_: &Call) -> Result<u8, Problem> {
    status::print(&version_words());
    Ok(0)
}

/// The text of `--version`.
pub(crate) fn version_words() -> String {
    let code = |Version(major, minor, patch)| {
        format!("0x{:06x}", (u32::from(major) << 16) + (u32::from(minor) << 8) + u32::from(patch))
    };
    let dotted = |Version(major, minor, patch)| format!("{major}.{minor}.{patch}");
    let urbd = env!("CARGO_PKG_VERSION");
    format!(
        "DRBDADM_BUILDTAG=urbd-{urbd}\nDRBDADM_API_VERSION=2\nDRBD_KERNEL_VERSION_CODE={}\nDRBD_KERNEL_VERSION={}\n\
         DRBDADM_VERSION_CODE={}\nDRBDADM_VERSION={}\nURBD_VERSION={urbd}\n",
        code(Version::MODULE),
        dotted(Version::MODULE),
        code(TOOLS_VERSION),
        dotted(TOOLS_VERSION),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_codes_are_hexadecimal_pairs() {
        let words = version_words();
        assert!(words.contains("DRBD_KERNEL_VERSION_CODE=0x090301\n"), "{words}");
        assert!(words.contains("DRBDADM_VERSION_CODE=0x092200\n"), "{words}");
    }

    fn known() -> Known {
        let text = "resource r0 { volume 0 { device minor 5; disk /dev/a; meta-disk internal; } volume 1 { device minor 6; \
                    disk /dev/b; meta-disk internal; } on alpha { address 10.0.0.1:7; } on bravo { address 10.0.0.2:7; } }";
        let files = config::Memory::default();
        let config = config::load_text(&files, Path::new("/urbd.conf"), text, &config::LoadOptions::default()).unwrap();
        let configured = config.resources_for(&config::ThisHost::named("alpha")).unwrap();
        Known { configured, running: vec!["gone".to_owned()] }
    }

    fn words(line: &str) -> String {
        let (before, current) = line.rsplit_once(' ').unwrap();
        let before: Vec<&str> = before.split_whitespace().skip(1).collect();
        let known = known();
        let mut found = match line.split(' ').next().unwrap() {
            "drbdsetup" => of_drbdsetup(&before, current, &known),
            _ => of_verb(&before, current, &known),
        };
        found.retain(|word| word.starts_with(current) || word == FILES);
        found.join(" ")
    }

    #[test]
    fn what_may_follow() {
        for (line, expected) in [
            ("urbd wait-", "wait-connect wait-sync"),
            ("urbd -c x.conf prim", "primary"),
            ("urbd help wip", "wipe-md"),
            ("urbd -c ", ":files"),
            ("urbd --config=/e", ":files"),
            ("urbd --no", "--node="),
            ("urbd nonsense ", ""),
            ("urbd up ", "r0 gone all"),
            ("urbd up r0 ", "r0 gone all"),
            ("urbd primary r0/", ""),
            ("urbd attach r0", "r0 r0/0 r0/1"),
            ("urbd connect r0:", "r0:bravo"),
            ("urbd verify r0:", "r0:bravo"),
            ("urbd verify r0:bravo/", "r0:bravo/0 r0:bravo/1"),
            ("urbd dstate minor-", "minor-5 minor-6"),
            ("urbd create-md --format=", "--format=v08 --format=v09"),
            ("urbd create-md --format ", "v08 v09"),
            ("urbd restore-md --file ", ":files"),
            ("urbd net-options --after-sb-1pri=disc", "--after-sb-1pri=disconnect --after-sb-1pri=discard-secondary"),
            ("urbd net-options --protocol ", "A B C"),
            ("urbd net-options --allow-two-primaries=", "--allow-two-primaries=yes --allow-two-primaries=no"),
            ("urbd net-options --allow-two-primaries ", "r0 gone all"),
            ("urbd net-options --max-ep", "--max-epoch-size="),
            ("urbd disk-options --resync-after=r0", "--resync-after=r0"),
            ("urbd status --sta", "--stacked --statistics"),
            ("urbd completion ", "bash zsh fish"),
            ("drbdsetup wait-sync-v", "wait-sync-volume"),
            ("drbdsetup detach ", "5 6"),
            ("drbdsetup verify ", "r0 gone all"),
            ("drbdsetup verify r0 ", "1"),
            ("drbdsetup verify r0 1 ", "0 1"),
            ("drbdsetup primary --fo", "--force"),
        ] {
            let mut found: Vec<_> = words(line).split(' ').map(str::to_owned).collect();
            let mut expected: Vec<_> = expected.split(' ').map(str::to_owned).collect();
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "{line}");
        }
    }
}
