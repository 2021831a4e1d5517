//! The commands of drbdsetup that build a resource and take it apart (`docs/spec/connection-and-state.md` 12.12). What
//! runs is told them; the first one, `new-resource`, starts the process.

use config::{Group, Kind, LocalResource, LocalVolume, Setting, volume_name};
use control::{Command, ErrorCode, Failure};

use super::help;
use crate::config_link;
use crate::context::Context;
use crate::problem::{Problem, exit};
use crate::verbs::told::{self, Words};
use crate::verbs::{background, lifecycle, status};
use crate::words::{self, Given, Known, Name, Value};

/// What the resources that drbdsetup makes speak at most: who names node ids has DRBD 9.
const NEWEST: &str = "--_urbd-protocol-version-max=124";

/// The commands, and which options of the configuration they take.
const COMMANDS: [(&str, &[Group]); 12] = [
    ("new-resource", &[Group::Resource]),
    ("new-minor", &[Group::Device]),
    ("new-peer", &[Group::Net]),
    ("new-path", &[]),
    ("del-path", &[]),
    ("del-peer", &[]),
    ("forget-peer", &[]),
    ("del-minor", &[]),
    ("del-resource", &[]),
    ("rename-resource", &[]),
    ("attach", &[Group::Disk]),
    ("detach", &[]),
];

/// Their flags, and the commands that take them.
const FLAGS: [(&str, &[&str]); 2] = [("force", &["detach", "del-peer"]), ("diskless", &["new-minor", "detach"])];

/// Is it one that is handled here? An `attach` that names no disk, and a `detach` that keeps it, are verbs as others.
pub(super) fn is_one(line: &[String]) -> bool {
    let is = |command: &str| COMMANDS.iter().any(|(name, _)| *name == command);
    let Some(command) = command_of(line).filter(|command| is(command)) else { return false };
    let line = words::read(line, &own(&command), &words::of_all());
    let forgets = |given: &Given| matches!(&given.name, Name::Long(name) if name == "diskless");
    match command.as_str() {
        "attach" => line.operands.len() > 2,
        "detach" => line.options.iter().any(forgets),
        _ => true,
    }
}

fn command_of(line: &[String]) -> Option<String> {
    words::read(line, &[], &words::of_all()).operands.into_iter().next()
}

/// The options of a command: those of its groups, and its own.
fn own(command: &str) -> Vec<Known> {
    let groups = COMMANDS.iter().find(|(name, _)| *name == command).map_or(&[][..], |(_, groups)| groups);
    let settings = config::options().filter(|spec| groups.contains(&spec.group)).map(|spec| Known {
        long: spec.name,
        short: None,
        value: if matches!(spec.kind, Kind::Bool { .. } | Kind::Flag) { Value::Optional } else { Value::Required },
    });
    let flags = ["diskless", "force"].map(|long| Known { long, short: None, value: Value::None });
    settings.chain(flags).collect()
}

/// What a call says.
struct Building<'a> {
    context: &'a Context,
    command: String,
    arguments: Vec<String>,
    options: Vec<Given>,
}

/// Runs it.
///
/// # Errors
/// What cannot be, with the exit status of drbdsetup.
pub(super) fn run(context: &Context, line: &[String]) -> Result<u8, Problem> {
    let command = command_of(line).unwrap_or_default();
    let words::Line { mut operands, options } = words::read(line, &own(&command), &words::of_all());
    operands.remove(0);
    let call = Building { context, command, arguments: operands, options };
    call.check_count()?;
    call.check_options()?;
    match call.command.as_str() {
        "new-resource" => call.new_resource(),
        "new-minor" => call.new_minor(),
        "del-resource" => call.del_resource(),
        "del-peer" => call.del_peer(),
        "rename-resource" => call.rename_resource(),
        "forget-peer" => call.forget_peer(),
        "attach" => call.attach(),
        "detach" => call.detach(),
        "del-minor" => {
            let local = call.by_minor()?;
            call.tell(&local.name)
        }
        _ => call.tell(&call.arguments[0]),
    }
}

impl Building<'_> {
    fn refused(&self, code: ErrorCode, text: &str) -> Problem {
        Problem::refused(&self.object(), &Failure::new(code, text))
    }

    /// How it is called in messages.
    fn object(&self) -> String {
        match self.arguments.as_slice() {
            [resource, peer, ..] if self.command.ends_with("peer") || self.command.ends_with("path") => {
                format!("{resource}:{peer}")
            }
            [first, ..] => first.clone(),
            [] => self.command.clone(),
        }
    }

    fn check_count(&self) -> Result<(), Problem> {
        let command = &self.command;
        let usage = if command == "detach" { "{minor}".to_owned() } else { help::usage(command).unwrap_or_default() };
        let wanted = usage.matches('{').count();
        let why = match self.arguments.len() {
            n if n < wanted => "too few arguments",
            n if n > wanted => "too many arguments",
            _ => return Ok(()),
        };
        let call = format!("drbdsetup {command} {}", self.arguments.join(" "));
        Err(Problem::new(exit::BROKEN, format!("{}: {why}", call.trim_end()))
            .hint(format!("usage: drbdsetup {command} {usage}")))
    }

    /// Options that do not exist, or not with this value, are a bad call.
    fn check_options(&self) -> Result<(), Problem> {
        let groups = COMMANDS.iter().find(|(name, _)| *name == self.command).map_or(&[][..], |(_, groups)| groups);
        let bad = |text: String| Problem::new(exit::BROKEN, format!("drbdsetup {}: {text}", self.command));
        for given in &self.options {
            let Name::Long(name) = &given.name else { return Err(bad(format!("unknown option {}", given.spelled()))) };
            let flag = FLAGS.iter().find(|(flag, of)| flag == name && of.contains(&self.command.as_str()));
            if flag.is_some() {
                continue;
            }
            let turned_off = name.strip_prefix("no-").and_then(|name| config::option(groups, name));
            match (config::option(groups, name), &given.value) {
                (Some(spec), Some(value)) => {
                    let parsed = Setting::parse(spec, value).map_err(|wrong| bad(wrong.message).hint(wrong.help));
                    parsed.map(drop)?;
                }
                (Some(_), None) => {}
                (None, _) if turned_off.is_some() => {}
                (None, _) => return Err(bad(format!("unknown option --{name}"))),
            }
        }
        Ok(())
    }

    fn flag(&self, wanted: &str) -> bool {
        self.options.iter().any(|given| matches!(&given.name, Name::Long(name) if name == wanted))
    }

    /// The call as a process is told it.
    fn words(&self) -> Words {
        let minor = |at: usize, word: &String| match (at, self.command.as_str()) {
            (0, "attach" | "detach" | "del-minor") | (1, "new-minor") => number_of(word).to_owned(),
            _ => word.clone(),
        };
        let arguments = self.arguments.iter().enumerate().map(|(at, word)| minor(at, word));
        let options =
            self.options.iter().map(Given::spelled).filter(|o| !matches!(o.as_str(), "--force" | "--diskless"));
        std::iter::once(self.command.clone()).chain(arguments).chain(options).collect()
    }

    fn tell(&self, resource: &str) -> Result<u8, Problem> {
        self.check_runs(resource)?;
        told::tell(self.context, resource, &self.object(), vec![self.words()]).map(|()| 0)
    }

    fn check_runs(&self, resource: &str) -> Result<(), Problem> {
        match self.context.is_running(resource) {
            true => Ok(()),
            false => Err(self
                .refused(ErrorCode::UNKNOWN_RESOURCE, "")
                .hint(format!("make it first: drbdsetup new-resource {resource} NODE-ID"))),
        }
    }

    /// The resource whose minor the first argument is.
    fn by_minor(&self) -> Result<LocalResource, Problem> {
        let minor = number_of(&self.arguments[0]);
        let mut all = told::all(self.context).into_iter();
        let found = all.find(|local| local.volumes.iter().any(|v| v.minor.to_string() == minor));
        found.ok_or_else(|| self.refused(ErrorCode::NO_SUCH_MINOR, ""))
    }

    fn new_resource(&self) -> Result<u8, Problem> {
        let name = &self.arguments[0];
        config::check_name(name).map_err(|e| self.refused(ErrorCode(e.code), &e.text))?;
        if self.context.is_running(name) {
            return Err(self.refused(ErrorCode::ALREADY_EXISTS, "").hint(format!("drbdsetup down {name}")));
        }
        if engine::is_waited_for(&self.context.run_dir, name) {
            return Err(self
                .refused(ErrorCode::ALREADY_EXISTS, "its process has ended, and applications use its devices")
                .hint(format!(
                    "go on with what it was told: urbd restart {name}; or end it: urbd down --force {name}"
                )));
        }
        let mut words = self.words();
        words.push(format!("--_host={}", self.context.node));
        words.push(NEWEST.to_owned());
        let local = LocalResource::new_resource(&words).map_err(|e| self.refused(ErrorCode(e.code), &e.text))?;
        lifecycle::check_servable(self.context, &local)?;
        engine::resource_config(&local).map_err(|why| Problem::usage(format!("{name}: {why}")))?;
        background::start_told(self.context, &local)
    }

    fn new_minor(&self) -> Result<u8, Problem> {
        let (resource, minor) = (&self.arguments[0], number_of(&self.arguments[1]));
        let has = |local: &LocalResource| local.volumes.iter().any(|v| v.minor.to_string() == minor);
        if let Some(other) = told::all(self.context).into_iter().find(|other| other.name != *resource && has(other)) {
            return Err(self.refused(ErrorCode::EXISTS, &format!("{} has minor {minor}", other.name)));
        }
        self.tell(resource)
    }

    fn del_resource(&self) -> Result<u8, Problem> {
        let name = &self.arguments[0];
        self.check_runs(name)?;
        let local = told::in_force(self.context, name)?;
        if !local.peers.is_empty() {
            return Err(self
                .refused(ErrorCode::NET_CONFIGURED, "")
                .hint(format!("drbdsetup del-peer {name} NODE-ID; or: drbdsetup down {name}")));
        }
        if !local.volumes.is_empty() {
            return Err(self
                .refused(ErrorCode::MINOR_CONFIGURED, "")
                .hint(format!("drbdsetup del-minor MINOR; or: drbdsetup down {name}")));
        }
        lifecycle::stop(self.context, name, false)
    }

    /// Volumes of others whose resyncs come after its volumes' are told the new name.
    fn rename_resource(&self) -> Result<u8, Problem> {
        let (from, to) = (&self.arguments[0], &self.arguments[1]);
        self.check_runs(from)?;
        let run_dir = &self.context.run_dir;
        let noted = config_link::also(run_dir, from, to);
        if let Err(problem) = self.tell(from) {
            noted.into_iter().for_each(|()| config_link::forget(run_dir, to));
            return Err(problem);
        }
        config_link::forget(run_dir, from);
        for other in told::all(self.context) {
            let calls: Vec<Words> = other.volumes.iter().filter_map(|volume| after_renamed(volume, from, to)).collect();
            if !calls.is_empty() {
                told::tell(self.context, &other.name, &other.name, calls)?;
            }
        }
        lifecycle::leave_other_unit(self.context, to).map(|()| 0)
    }

    /// Disconnects first.
    fn del_peer(&self) -> Result<u8, Problem> {
        let (name, id) = (&self.arguments[0], &self.arguments[1]);
        self.check_runs(name)?;
        told::disconnect(self.context, name, &self.object(), std::slice::from_ref(id), self.flag("force"))?;
        self.tell(name)
    }

    /// What the metadata of attached disks have of it.
    fn forget_peer(&self) -> Result<u8, Problem> {
        let (name, id) = (&self.arguments[0], &self.arguments[1]);
        self.check_runs(name)?;
        let peer = id.parse().map_err(|_| self.refused(ErrorCode::NO_SUCH_PEER, &format!("{id} is no node id")))?;
        told::send(self.context, name, &self.object(), Command::ForgetPeer { peer }).map(|()| 0)
    }

    /// The disk is the process's when it is attached; one that cannot be is not.
    fn attach(&self) -> Result<u8, Problem> {
        let mut local = self.by_minor()?;
        let minor = number_of(&self.arguments[0]);
        let nr = local.volumes.iter().find(|v| v.minor.to_string() == minor).expect("it was found by that").nr;
        let status = status::one(self.context, &local.name)?;
        let detached = status.device(nr.0).is_none_or(|d| d.disk == control::DiskState::Diskless);
        let words = self.with_order(self.words())?;
        if detached {
            // Its activity log is applied before it is used.
            let forget = told::words(["detach", minor]);
            let wanted = local.tell(&forget).and_then(|()| local.tell(&words));
            wanted.map_err(|e| self.refused(ErrorCode(e.code), &e.text))?;
            lifecycle::make_clean(&local, |volume| volume == nr)?;
        }
        let (name, object) = (&local.name, self.object());
        told::tell(self.context, name, &object, vec![words])?;
        told::send(self.context, name, &object, Command::Attach { volume: Some(nr.0) }).map(|()| 0).inspect_err(|_| {
            // It was refused: the volume is without a disk, as before.
            let _ = told::tell(self.context, name, &object, vec![told::words(["detach", minor])]);
        })
    }

    /// `resync-after` is a minor here, and a volume's name where it is told.
    fn with_order(&self, words: Words) -> Result<Words, Problem> {
        let all = told::all(self.context);
        let named = |word: String| {
            let Some(minor) = word.strip_prefix("--resync-after=").filter(|minor| *minor != "-1") else {
                return Ok(word);
            };
            let volume = |local: &LocalResource| {
                let volume = local.volumes.iter().find(|v| v.minor.to_string() == minor)?;
                Some(format!("--resync-after={}/{}", local.name, volume.nr))
            };
            all.iter().find_map(volume).ok_or_else(|| self.refused(ErrorCode::NO_SUCH_ORDER, ""))
        };
        words.into_iter().map(named).collect()
    }

    /// The process forgets the disk.
    fn detach(&self) -> Result<u8, Problem> {
        let local = self.by_minor()?;
        let minor = number_of(&self.arguments[0]);
        let nr = local.volumes.iter().find(|v| v.minor.to_string() == minor).map(|v| v.nr.0);
        let (name, object) = (&local.name, self.object());
        told::send(self.context, name, &object, Command::Detach { volume: nr, force: self.flag("force") })?;
        told::tell(self.context, name, &object, vec![told::words(["detach", minor])]).map(|()| 0)
    }
}

/// What a volume is told whose resyncs come after those of a volume of `from`.
fn after_renamed(volume: &LocalVolume, from: &str, to: &str) -> Option<Words> {
    let (_, nr) = volume_name(volume.disk.resync_after.as_deref()?).filter(|(name, _)| *name == from)?;
    let named = nr.map_or_else(|| to.to_owned(), |nr| format!("{to}/{nr}"));
    Some(told::words(["disk-options", &volume.minor.to_string(), &format!("--resync-after={named}")]))
}

/// A minor is a number, `/dev/drbdN` or `/dev/drbd/N`.
pub(super) fn number_of(word: &str) -> &str {
    word.strip_prefix("/dev/drbd").map_or(word, |rest| rest.trim_start_matches('/'))
}
