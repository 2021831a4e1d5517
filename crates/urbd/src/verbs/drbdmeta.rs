//! Called as `drbdmeta`: `[--force] DEVICE FORMAT DEV INDEX COMMAND [ARGUMENTS]`
//! (`docs/spec/config-and-cli.md` 3.5). Options may stand anywhere.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use meta::create::{CreateOptions, InitialBitmap};
use meta::{AlShape, Geometry, MetaDisk, Superblock, Version, gi};
use units::{Generation, NodeId, Sector};

use crate::cli::settle;
use crate::offline::{self, Called, Creation, Place};
use crate::problem::{Problem, exit};
use crate::verbs::gi::{node_id, set_one};
use crate::verbs::{metadata, status, superblock};
use crate::words::{self, Given, Known, Name, Value};

/// Runs it; gives the exit status.
pub(crate) fn run(arguments: &[OsString]) -> u8 {
    let words: Vec<String> = arguments.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    settle(Request::parse(&words).and_then(|request| request.carry_out()))
}

/// One call, taken apart.
#[derive(Debug)]
struct Request {
    place: Place,
    version: Version,
    command: String,
    arguments: Vec<String>,
    options: Vec<(String, Option<String>)>,
}

/// Options that take a value, as `--name=value` or `--name value`.
const WITH_VALUE: [&str; 9] = [
    "node-id",
    "al-stripes",
    "al-stripe-size-kB",
    "peer-max-bio-size",
    "effective-size",
    "bitmap-block-size",
    "initialize-bitmap",
    "initial-current-uuid",
    "output-format",
];
/// Options without a value.
const FLAGS: [&str; 7] =
    ["force", "ignore-sanity-checks", "consistent", "uptodate", "peers-outdated", "rotate-uuids", "tentative"];
/// Options that only `create-md` takes.
const OF_CREATE: [&str; 12] = [
    "al-stripes",
    "al-stripe-size-kB",
    "peer-max-bio-size",
    "effective-size",
    "bitmap-block-size",
    "initialize-bitmap",
    "ignore-sanity-checks",
    "initial-current-uuid",
    "consistent",
    "uptodate",
    "peers-outdated",
    "rotate-uuids",
];
const COMMANDS: &str = "create-md wipe-md apply-al check-resize outdate invalidate dstate get-gi show-gi set-gi dump-md \
                        restore-md read-dev-uuid write-dev-uuid forget-peer repair-md dump-superblock hexdump-superblock";

/// What may stand behind these words.
pub(crate) fn candidates(before: &[&str], minors: &[String]) -> Vec<String> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    match before.iter().filter(|word| !word.starts_with("--")).count() {
        0 => minors.to_vec(),
        1 => words("v08 v09"),
        2 => words(":files"),
        3 => words("internal flex-external"),
        4 => words(COMMANDS),
        _ => FLAGS.iter().chain(&WITH_VALUE).map(|name| format!("--{name}")).collect(),
    }
}

fn bad_call(message: impl Into<String>) -> Problem {
    Problem::new(exit::BROKEN, message.into())
        .hint(format!(
            "usage: drbdmeta [--force] MINOR v08|v09 DEVICE internal|flex-external|SLOT COMMAND [ARGUMENTS]; commands: {COMMANDS}"
        ))
}

fn lacks_node_id(command: &str) -> Problem {
    Problem::new(exit::FAILURE, format!("The {command} command requires the --node-id option"))
}

impl Request {
    fn parse(words: &[String]) -> Result<Request, Problem> {
        if words.is_empty() || words.iter().any(|w| w == "--help" || w == "-h") {
            return Err(bad_call("a command is missing"));
        }
        let known = |value| move |long: &&'static str| Known { long, short: None, value };
        let known: Vec<Known> =
            WITH_VALUE.iter().map(known(Value::Required)).chain(FLAGS.iter().map(known(Value::None))).collect();
        let line = words::read(words, &known, &[]);
        let positional = line.operands;
        let named = |given: Given| match given.name {
            Name::Long(name) => (name, given.value),
            Name::Short(letter) => (letter.to_string(), given.value),
        };
        let options: Vec<(String, Option<String>)> = line.options.into_iter().map(named).collect();
        let known = |name: &String| WITH_VALUE.contains(&name.as_str()) || FLAGS.contains(&name.as_str());
        if let Some((unknown, _)) = options.iter().find(|(name, _)| !known(name)) {
            return Err(bad_call(format!("option --{unknown} is not known")));
        }
        // Callers find out so whether an option is known.
        let lacks = |(name, value): &&(String, Option<String>)| WITH_VALUE.contains(&name.as_str()) && value.is_none();
        if let Some((name, _)) = options.iter().find(lacks) {
            return Err(bad_call(format!("option '--{name}' requires an argument")));
        }
        if let Some((flag, _)) = options.iter().find(|(name, value)| FLAGS.contains(&name.as_str()) && value.is_some())
        {
            return Err(bad_call(format!("option --{flag} takes no value")));
        }
        let [minor, format, device, index, command, arguments @ ..] = positional.as_slice() else {
            return Err(bad_call("too few arguments"));
        };
        let version = match format.as_str() {
            "v08" => Version::V08,
            "v09" => Version::V09,
            other => return Err(bad_call(format!("'{other}' is no metadata format that is known: v08, v09"))),
        };
        let kind = match index.as_str() {
            "internal" | "flex-internal" => MetaDisk::Internal,
            "flex-external" => MetaDisk::FlexExternal,
            slot => MetaDisk::Indexed(slot.parse().map_err(|_| bad_call(format!("'{slot}' is no index")))?),
        };
        if let Some((idle, _)) = options.iter().find(|(n, _)| command != "create-md" && OF_CREATE.contains(&n.as_str()))
        {
            return Err(Problem::new(exit::FAILURE, format!("option --{idle} has no effect on {command}")));
        }
        let takes = match command.as_str() {
            "create-md" | "set-gi" | "restore-md" | "write-dev-uuid" => 1,
            _ => 0,
        };
        // The real one says so first, whatever stands behind the command.
        if command == "forget-peer" && version == Version::V09 && options.iter().all(|(name, _)| name != "node-id") {
            return Err(lacks_node_id(command));
        }
        if arguments.len() > takes {
            return Err(bad_call(format!("too many arguments for {command}")));
        }
        let label = match minor.parse::<u32>() {
            _ if minor == "-" => device.clone(),
            Ok(_) => format!("minor {minor}"),
            // A resource's name.
            Err(_) => minor.clone(),
        };
        let called = Called::Drbdmeta { minor: minor.clone(), version };
        let minor = minor.strip_prefix("minor-").unwrap_or(minor).parse().ok();
        let place = Place { label, path: PathBuf::from(device), kind, version: Some(version), called, minor };
        Ok(Request { place, version, command: command.clone(), arguments: arguments.to_vec(), options })
    }

    fn flag(&self, name: &str) -> bool {
        self.options.iter().any(|(n, _)| n == name)
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(n, _)| n == name)?.1.as_deref()
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        let Some((_, value)) = self.options.iter().find(|(n, _)| n == name) else { return Ok(None) };
        let number = value.as_deref().and_then(|v| v.parse().ok());
        number.map(Some).ok_or_else(|| Problem::new(exit::FAILURE, format!("--{name} needs a number")))
    }

    /// An amount in units of `unit` bytes, with a suffix or without.
    fn amount(&self, name: &str, unit: u64) -> Result<Option<u64>, Problem> {
        let Some((_, value)) = self.options.iter().find(|(n, _)| n == name) else { return Ok(None) };
        let amount = value.as_deref().and_then(|v| config::parse_number(v, unit));
        let bad = || Problem::new(exit::FAILURE, format!("--{name} needs a number; its suffix may be s, k, M or G"));
        amount.map(Some).ok_or_else(bad)
    }

    /// The peer that a command is about; v08 has only one.
    fn peer(&self) -> Result<NodeId, Problem> {
        match self.number("node-id")? {
            Some(id) => node_id(id).map_err(|p| Problem { exit: exit::FAILURE, ..p }),
            None if self.version == Version::V08 => node_id(0),
            None => Err(lacks_node_id(&self.command)),
        }
    }

    fn superblock(&self) -> Result<Superblock, Problem> {
        Ok(self.place.find(false)?.found.superblock)
    }

    fn carry_out(&self) -> Result<u8, Problem> {
        let (place, force) = (&self.place, self.flag("force"));
        match self.command.as_str() {
            "create-md" => self.create(),
            "wipe-md" => offline::wipe(place, force),
            "apply-al" => offline::apply_al(place),
            "check-resize" => offline::check_resize(place),
            "outdate" => offline::outdate(place),
            "invalidate" => offline::invalidate(place),
            "dstate" => say(offline::disk_state(place)?),
            "get-gi" => {
                let peer = self.peer()?;
                say(gi::text(&self.superblock()?, peer))
            }
            "show-gi" => {
                let peer = self.peer()?;
                status::print(&gi::legend(&self.superblock()?, peer));
                Ok(0)
            }
            "set-gi" => {
                let [text] = self.arguments.as_slice() else { return Err(bad_call("set-gi needs one argument")) };
                set_one(place, self.peer()?, text, force).map(|()| 0)
            }
            "dump-md" => {
                let command = format!("drbdmeta {} {} dump-md", self.version, place.path.display());
                status::print(&offline::dump(place, force, &command, "urbd")?);
                Ok(0)
            }
            "restore-md" => {
                let [file] = self.arguments.as_slice() else { return Err(bad_call("restore-md needs one file")) };
                let text = fs::read_to_string(file)
                    .map_err(|e| Problem::new(exit::FAILURE, format!("cannot read {file}: {e}")))?;
                offline::restore(place, &text, force)
            }
            "read-dev-uuid" => say(format!("{:016X}", self.superblock()?.device_uuid)),
            "write-dev-uuid" => self.write_device_uuid(),
            "forget-peer" => self.forget_peer(force),
            "repair-md" => superblock::repair(place, self.flag("tentative")),
            "dump-superblock" => superblock::dump(place, self.value("output-format").unwrap_or("auto")),
            "hexdump-superblock" => superblock::dump(place, "hex"),
            other => Err(bad_call(format!("'{other}' is no command that is known"))),
        }
    }

    fn create(&self) -> Result<u8, Problem> {
        let slots = match (self.version, self.arguments.as_slice()) {
            (Version::V08, []) => 1,
            (Version::V09, [peers]) => {
                let peers: u32 = peers.parse().map_err(|_| bad_call(format!("'{peers}' is no number of peers")))?;
                if peers == 0 || peers > 31 {
                    return Err(bad_call(format!("{peers} peers: must be 1 to 31")));
                }
                peers
            }
            _ => return Err(bad_call("create-md needs the number of peers for v09, nothing for v08")),
        };
        let impossible = |e: meta::layout::LayoutError| Problem::new(exit::FAILURE, e.to_string());
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let stripes = small(self.number("al-stripes")?.unwrap_or(1));
        let stripe_kib = self.amount("al-stripe-size-kB", 1024)?.unwrap_or(32);
        let al = AlShape::new(stripes, small(stripe_kib / 4)).map_err(impossible)?;
        let bytes_per_bit = small(self.amount("bitmap-block-size", 1)?.unwrap_or(4096));
        let bitmap = match self.options.iter().find(|(name, _)| name == "initialize-bitmap") {
            None => InitialBitmap::Zero,
            Some((_, mode)) => match mode.as_deref() {
                Some("automatic" | "zeroout" | "pwrite") => InitialBitmap::Zero,
                Some("set-all") => InitialBitmap::Ones,
                Some("skip") => InitialBitmap::Skip,
                _ => {
                    let modes = "--initialize-bitmap must be one of automatic, zeroout, pwrite, set-all, skip";
                    return Err(Problem::new(exit::FAILURE, modes));
                }
            },
        };
        let (up_to_date, rotates) = (self.flag("uptodate"), self.flag("rotate-uuids"));
        let consistent = self.flag("consistent");
        let generated = || Generation(offline::random_number() & !1);
        let current = self.value("initial-current-uuid").map(metadata::generation).transpose()?;
        let declared_good = consistent || up_to_date || rotates;
        let creation = Creation {
            version: self.version,
            geometry: Geometry::new(slots, bytes_per_bit, al).map_err(impossible)?,
            options: CreateOptions {
                effective_size: Sector(self.amount("effective-size", 512)?.unwrap_or(0)),
                bitmap,
                max_bio: small(self.amount("peer-max-bio-size", 1)?.unwrap_or(0)),
                current: current.or_else(|| declared_good.then(generated)),
                consistent,
                up_to_date,
                peers_outdated: self.flag("peers-outdated"),
                day0: rotates.then(generated),
                ..CreateOptions::default()
            },
            force: self.flag("force"),
            ignore_sanity_checks: self.flag("ignore-sanity-checks"),
            keep_device_uuid_zero: true,
            format_asked: true,
        };
        // The device may have metadata of the other format: then it is converted.
        offline::create(&Place { version: None, ..self.place.clone() }, &creation)
    }

    fn write_device_uuid(&self) -> Result<u8, Problem> {
        let [hex] = self.arguments.as_slice() else { return Err(bad_call("write-dev-uuid needs one number")) };
        let digits = hex.strip_prefix("0x").unwrap_or(hex);
        let opened = self.place.find(true)?;
        let mut superblock = opened.found.superblock.clone();
        superblock.device_uuid =
            u64::from_str_radix(digits, 16).map_err(|_| bad_call(format!("'{hex}' is not hexadecimal")))?;
        opened.write(&self.place, &superblock)?;
        Ok(0)
    }

    fn forget_peer(&self, force: bool) -> Result<u8, Problem> {
        if self.version == Version::V08 {
            return Err(bad_call("v08 metadata knows only one peer, which cannot be forgotten"));
        }
        let peer = self.peer()?;
        let opened = self.place.find(true)?;
        if opened.found.superblock.peers[peer.index()].slot.is_none() {
            println!("{}: node {} has no bitmap: nothing to forget", self.place.label, peer.index());
            return Ok(0);
        }
        let question = format!("{}: forget node {} and its bitmap?", self.place.label, peer.index());
        if !offline::confirm(&question, force) {
            return Ok(exit::USAGE);
        }
        offline::forget_peer(&self.place, &opened, peer)
    }
}

fn say(line: String) -> Result<u8, Problem> {
    println!("{line}");
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> u8 {
        run(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn bad_calls_exit_with_20() {
        for line in [
            "",
            "900 v09 /dev/null",
            "900 v19 /nonexistent internal create-md 1",
            "900 v09 /nonexistent foo create-md 1",
            "900 v09 /nonexistent internal nope",
            "900 v09 /nonexistent internal create-md 99",
            "900 v09 /nonexistent internal create-md",
            "900 v09 /nonexistent internal create-md 1",
        ] {
            assert_eq!(call(line), 20, "{line}");
        }
    }

    #[test]
    fn options_without_effect_are_refused() {
        for (line, expected) in [
            ("--nonsense 900 v08 /nonexistent internal create-md", 20),
            ("900 v08 /nonexistent internal dstate extra", 20),
            ("900 v08 /nonexistent internal dstate --force=yes", 20),
            ("900 v08 /nonexistent internal dstate --al-stripes=2", 10),
            ("900 v08 /nonexistent internal create-md --initialize-bitmap=zeroes", 10),
        ] {
            assert_eq!(call(line), expected, "{line}");
        }
    }

    #[test]
    fn a_hint_names_a_command_that_exists() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        for (format, command) in [("v08", "create-md"), ("v09", "create-md 1")] {
            fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
            let line = format!("5 {format} {} internal dstate", path.display());
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let problem = Request::parse(&words).and_then(|r| r.carry_out()).unwrap_err();
            let hint = problem.hint.unwrap();
            // The first one moves what is there, and on this disk finds nothing.
            let [_, first, told] = hint.split("drbdmeta ").collect::<Vec<_>>().try_into().unwrap();
            assert_eq!(call(first.split(';').next().unwrap()), 255, "{first}");
            assert_eq!(told, format!("5 {format} {} internal {command}", path.display()));
            assert_eq!(call(told), 0, "{told}");
        }
    }

    /// The session of `vectors/config/drbdmeta/exit-codes.tsv` from step 3 on, on a file of zeroes.
    #[test]
    fn a_session_has_the_exit_codes_of_the_real_tool() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
        let device = path.display();
        for (command, expected) in [
            ("900 v09 DEV internal create-md 2", 0),
            ("900 v09 DEV internal create-md 2", 1),
            ("900 v09 DEV internal create-md 3 --force", 0),
            ("900 v09 DEV internal get-gi --node-id 1", 0),
            ("900 v09 DEV internal get-gi", 10),
            ("900 v09 DEV internal show-gi --node-id 1", 0),
            ("900 v09 DEV internal dstate", 0),
            ("900 v09 DEV internal dump-md", 0),
            ("900 v09 DEV internal apply-al", 0),
            ("900 v09 DEV internal outdate", 5),
            ("900 v09 DEV internal invalidate", 0),
            ("900 v09 DEV internal check-resize", 0),
            ("900 v09 DEV internal set-gi 1234567890ABCDEF:0:0:0:1:1 --node-id 1", 0),
            ("900 v09 DEV internal outdate", 5),
            ("--force 900 v09 DEV internal set-gi 1234567890ABCDEF:0:0:0:1:1 --node-id 1", 0),
            ("900 v09 DEV internal outdate", 0),
            ("900 v09 DEV internal read-dev-uuid", 0),
            ("900 v09 DEV internal write-dev-uuid AABB", 0),
            ("900 v09 DEV internal forget-peer --node-id 3", 0),
            ("900 v09 DEV internal wipe-md", 1),
            ("900 v09 DEV internal wipe-md --force", 0),
            ("900 v09 DEV internal wipe-md --force", 0),
            ("900 v09 DEV internal get-gi --node-id 1", 255),
        ] {
            assert_eq!(call(&command.replace("DEV", &device.to_string())), expected, "{command}");
        }
    }
}
