//! What a process was told, and telling it more: the programs are told to a process as commands of drbdsetup
//! (`docs/spec/config-and-cli.md` 3.4).

use config::{Disk, LoadOptions, LocalResource, Standing, ThisHost, volume_name};
use control::client::ClientError;
use control::{Command, ConnectionState, Request};
use units::VolumeNr;

use crate::cli;
use crate::context::{Context, LONG_TIMEOUT};
use crate::objects::Target;
use crate::problem::{Problem, exit};
use crate::verbs::status;

/// Words of one command, without the program's name.
pub(crate) type Words = Vec<String>;

/// The words of a command.
pub(crate) fn words<const N: usize>(words: [&str; N]) -> Words {
    words.map(str::to_owned).into()
}

/// The resource that the process runs.
///
/// # Errors
/// Exit 10: it does not run; exit 20: it does not answer, or not in a form that this release reads.
pub(crate) fn in_force(context: &Context, resource: &str) -> Result<LocalResource, Problem> {
    let text = status::text(context, resource, &Request::Show)?;
    match host_of_old_form(resource, &text) {
        Some(host) => of_old_form(context, resource, &host, &text),
        None => read(resource, &text),
    }
}

/// The same of a process that is to be told something.
///
/// # Errors
/// As [`in_force`]; exit 10: it is of a release that cannot be told so.
pub(crate) fn changeable(context: &Context, resource: &str) -> Result<LocalResource, Problem> {
    let text = status::text(context, resource, &Request::Show)?;
    match host_of_old_form(resource, &text) {
        Some(_) => Err(Problem::new(exit::FAILURE, format!("{resource}: its process is of an older release")).hint(
            format!("nothing was changed; start it anew: urbd restart {resource} (devices that are in use stay)"),
        )),
        None => read(resource, &text),
    }
}

/// What a process is to be when it begins.
pub(crate) struct Wanted {
    /// The resource.
    pub(crate) local: LocalResource,
    /// How it stands.
    pub(crate) standing: Standing,
    /// It is what the last process was told.
    pub(crate) is_kept: bool,
}

impl Wanted {
    /// As `up` leaves it.
    pub(crate) fn up(local: LocalResource) -> Wanted {
        Wanted { standing: Standing::up(&local), local, is_kept: false }
    }
}

/// What a keeper's text of what a process was told says.
///
/// # Errors
/// Exit 20: a process of another release was told it.
pub(crate) fn kept(resource: &str, text: &str) -> Result<Wanted, Problem> {
    let (local, standing) = LocalResource::from_keeper_of(resource, text).map_err(|refused| {
        Problem::new(exit::BROKEN, format!("{resource}: {}", refused.text)).hint(format!(
            "nothing was changed; go on with that release; or end it, with its devices: urbd down --force {resource}"
        ))
    })?;
    Ok(Wanted { local, standing, is_kept: true })
}

/// Does no process run the resource, and no file have it, and is there what the last process was told?
pub(crate) fn is_left(context: &Context, resource: &str) -> bool {
    let told = || engine::what_was_told(&context.run_dir, resource);
    !context.is_running(resource) && context.is_in_no_file(resource) && told().is_some()
}

/// What is said of such a one where a file is needed, or a process.
pub(crate) fn left(resource: &str) -> Problem {
    Problem::new(exit::FAILURE, format!("{resource}: its process has ended, and no file has it"))
        .hint(format!("go on with what it was told: urbd restart {resource}; or end it: urbd down {resource}"))
}

/// What a resource is to be that is started by a verb: what the file says; or of one that no file has what its process,
/// or the last one, was told. The context is that in which it is looked at, if that is another one.
///
/// # Errors
/// As [`Target::local`] and [`kept`].
pub(crate) fn wanted(context: &Context, target: &Target) -> Result<(Option<Context>, LocalResource), Problem> {
    let name = &target.name.resource;
    if target.local.is_none()
        && context.is_in_no_file(name)
        && let Some(told) = engine::what_was_told(&context.run_dir, name)
    {
        return Ok((Some(context.without_file()), kept(name, &told)?.local));
    }
    Ok((None, target.local()?.clone()))
}

fn read(resource: &str, text: &str) -> Result<LocalResource, Problem> {
    LocalResource::from_told(text).map_err(|refused| not_understood(resource, &refused.text))
}

fn not_understood(resource: &str, why: &str) -> Problem {
    Problem::new(exit::BROKEN, format!("{resource}: the running configuration is not understood: {why}"))
        .hint(format!("restart the resource: urbd restart {resource} (devices that are in use stay)"))
}

/// The host as which a process of a release before this form runs: it answers with a configuration file.
fn host_of_old_form(resource: &str, text: &str) -> Option<String> {
    let start = format!("# resource {resource} on ");
    let rest = text.lines().find_map(|line| line.strip_prefix(&start))?;
    Some(rest.rsplit_once(':')?.0.to_owned())
}

fn of_old_form(context: &Context, resource: &str, host: &str, text: &str) -> Result<LocalResource, Problem> {
    let config = config::load_text(&Disk, &context.config_file, text, &LoadOptions::default());
    let config = config.map_err(|e| not_understood(resource, &e.to_string()))?;
    let host = ThisHost { name: host.to_owned(), ..context.this_host() };
    config.resource_as_seen_by(resource, &host).map_err(|e| not_understood(resource, &e.to_string()))
}

/// Tells a process what it does all of or nothing; prints the notes that come back. `object`: how it is called in
/// messages.
///
/// # Errors
/// What the process refuses, with its status.
pub(crate) fn tell(context: &Context, resource: &str, object: &str, calls: Vec<Words>) -> Result<(), Problem> {
    send(context, resource, object, Command::Tell { calls })
}

/// One command.
///
/// # Errors
/// As [`tell`].
pub(crate) fn send(context: &Context, resource: &str, object: &str, command: Command) -> Result<(), Problem> {
    send_or(context, resource, object, command, |e| Problem::client(object, e))
}

/// The same; `refused` says why the process does not do it.
///
/// # Errors
/// What `refused` says.
pub(crate) fn send_or(
    context: &Context,
    resource: &str,
    object: &str,
    command: Command,
    refused: impl Fn(&ClientError) -> Problem,
) -> Result<(), Problem> {
    let mut client = context.client(resource)?;
    client.set_timeout(Some(LONG_TIMEOUT)).map_err(|e| Problem::client(resource, &e))?;
    let notes = client.command(command).map_err(|e| refused(&e))?;
    notes.iter().for_each(|note| eprintln!("urbd: {object}: {note}"));
    Ok(())
}

/// Lets these peers go, by their node ids, before they are removed: those that are StandAlone are.
///
/// # Errors
/// As [`send`].
pub(crate) fn disconnect(
    context: &Context,
    resource: &str,
    object: &str,
    peers: &[String],
    force: bool,
) -> Result<(), Problem> {
    let status = status::one(context, resource)?;
    let is_up = |id: &&String| {
        let mut named = status.connections.iter().filter(|c| c.peer_node_id.is_some_and(|own| own.to_string() == **id));
        named.any(|c| c.connection != ConnectionState::StandAlone)
    };
    peers
        .iter()
        .filter(is_up)
        .try_for_each(|id| send(context, resource, object, Command::Disconnect { peer: Some(id.clone()), force }))
}

/// All resources that run, as far as their processes answer.
pub(crate) fn all(context: &Context) -> Vec<LocalResource> {
    cli::of_each(&context.running_resources(), |name| in_force(context, name).ok()).into_iter().flatten().collect()
}

/// The way by which a volume of `changed` waits for itself, as its resyncs come after others' (`resync-after`);
/// `others` are the other resources.
pub(crate) fn circle(changed: &LocalResource, others: &[LocalResource]) -> Option<Vec<String>> {
    let resource = |name: &str| match name == changed.name {
        true => Some(changed),
        false => others.iter().find(|other| other.name == name),
    };
    let next = |(name, nr): &(String, VolumeNr)| {
        let volume = resource(name)?.volumes.iter().find(|v| v.nr == *nr)?;
        let (name, nr) = volume_name(volume.disk.resync_after.as_deref()?)?;
        Some((name.to_owned(), nr.or_else(|| resource(name)?.volumes.first().map(|v| v.nr))?))
    };
    changed.volumes.iter().find_map(|volume| {
        let start = (changed.name.clone(), volume.nr);
        let mut way = vec![start.clone()];
        while let Some(other) = next(way.last().expect("has a start")) {
            if other == start {
                return Some(way.iter().chain([&start]).map(|(name, nr)| format!("{name}/{nr}")).collect());
            }
            if way.contains(&other) {
                return None;
            }
            way.push(other);
        }
        None
    })
}
