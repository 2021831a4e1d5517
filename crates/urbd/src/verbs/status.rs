//! Verbs that only look: status, events, one-word queries.

use inotify::{Inotify, WatchMask};
use std::collections::BTreeSet;
use std::env;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use control::client::{Client, ClientError, socket_path};
use control::what_if::WhatIf;
use control::{Command, ConnectionStatus, Event, Reply, Request, ResourceStatus};
use control::{events, human, json, matter, query, what_if};

use crate::cli::{self, Call};
use crate::context::{ANSWER_TIMEOUT, Context};
use crate::objects::{self, Takes, Target};
use crate::problem::{Problem, exit};
use crate::verbs::absent::{absent, explained};
use crate::verbs::metadata;

/// `status`: all running resources, or those named.
pub(crate) fn status(call: &Call) -> Result<u8, Problem> {
    let (resources, worst) = collect(call.context, &call.objects());
    let text = if call.flag("json") && is_drbds_name() {
        json::status(&resources)
    } else if call.flag("json") {
        json::status_with_matters(&resources, |r| losses(call.context, &r.name, None).ok())
    } else if !is_drbds_name() && worst == 0 && names_all(&call.objects()) {
        page_of_all(call.context, &resources, &human_options(call)?)
    } else if resources.is_empty() && worst != 0 {
        String::new()
    } else {
        page(&resources, &human_options(call)?)
    };
    print(&text);
    Ok(worst)
}

/// The status as drbdadm prints it, each resource followed by what is the matter with it. Called by the name of one of
/// DRBD's tools, we print what they do and no more: programs read it.
fn page(resources: &[ResourceStatus], options: &human::Options) -> String {
    if resources.is_empty() || is_drbds_name() {
        return human::status(resources, options);
    }
    let mut sorted: Vec<&ResourceStatus> = resources.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let each = sorted.into_iter().map(|resource| {
        let status = human::status(std::slice::from_ref(resource), options);
        format!("{}\n{}\n", status.trim_end_matches('\n'), matter::lines(resource, options.width))
    });
    each.collect()
}

/// Of all that is configured: also what does not run.
fn page_of_all(context: &Context, resources: &[ResourceStatus], options: &human::Options) -> String {
    let running: Vec<String> = resources.iter().map(|r| r.name.clone()).collect();
    let absent = absent(context, &running);
    if absent.is_empty() {
        return page(resources, options);
    }
    let mut parts: Vec<(&str, String)> = absent.iter().map(|a| (a.name.as_str(), a.line() + "\n")).collect();
    parts.extend(resources.iter().map(|r| (r.name.as_str(), page(std::slice::from_ref(r), options))));
    parts.sort();
    parts.into_iter().map(|(_, text)| text).collect()
}

fn names_all(objects: &[String]) -> bool {
    objects.is_empty() || objects.iter().any(|name| name == "all")
}

fn is_drbds_name() -> bool {
    let called = env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or_default();
    ["drbdadm", "drbdsetup", "drbdmeta"].iter().any(|n| name == *n)
}

/// The names of whole resources on a command line: those that run if there are none, or `all`. What is not known is
/// reported: the second value is the greatest exit status of those.
pub(crate) fn named(context: &Context, texts: &[String]) -> (Vec<String>, u8) {
    if texts.is_empty() || texts.iter().any(|n| n == "all") {
        return (context.running_resources(), 0);
    }
    let mut names = Vec::new();
    let mut worst = 0;
    for text in texts {
        match Target::find(context, text, Takes::Resource) {
            Ok(target) => names.push(target.name.resource),
            Err(problem) => worst = worst.max(cli::settle(Err(problem))),
        }
    }
    (names, worst)
}

/// The status of the named resources, of all that run if none is named. What does not run or answer is reported.
fn collect(context: &Context, names: &[String]) -> (Vec<ResourceStatus>, u8) {
    let all = names_all(names);
    if let Some(problem) = all.then(|| context.may_look().err()).flatten() {
        problem.report();
        return (Vec::new(), problem.exit);
    }
    let names = if all { context.running_resources() } else { names.to_vec() };
    let mut found = Vec::new();
    let mut worst = 0;
    for (name, answer) in names.iter().zip(cli::of_each(&names, |name| one(context, name))) {
        match answer {
            Ok(status) => found.push(status),
            // A socket that nobody listens on was left behind by a process that was killed.
            Err(problem) if all && problem.exit == exit::FAILURE => {}
            Err(problem) => {
                // One that is not configured either is a wrong name.
                let unknown = (problem.exit == exit::FAILURE).then(|| context.resource(name).err()).flatten();
                let unknown = unknown.filter(|e| e.exit == exit::USAGE).map(|e| objects::unknown(name, e));
                let gone = (problem.exit == exit::FAILURE && unknown.is_none() && !is_drbds_name())
                    .then(|| explained(context, name.clone()).refusal());
                unknown.as_ref().or(gone.as_ref()).unwrap_or(&problem).report();
                // drbdadm's own status for a name that it does not find.
                let exit = unknown.filter(|_| is_drbds_name()).map_or(problem.exit, |unknown| unknown.exit);
                worst = worst.max(exit);
            }
        }
    }
    (found, worst)
}

/// The status of one running resource.
pub(crate) fn one(context: &Context, resource: &str) -> Result<ResourceStatus, Problem> {
    context.client(resource)?.status().map_err(|e| Problem::client(resource, &e))
}

fn human_options(call: &Call) -> Result<human::Options, Problem> {
    let terminal = io::stdout().is_terminal();
    Ok(human::Options {
        verbose: call.context.verbose,
        statistics: call.flag("statistics"),
        color: wants_color(call)?,
        terminal,
        width: if terminal { columns() } else { 80 },
    })
}

pub(crate) fn wants_color(call: &Call) -> Result<bool, Problem> {
    match call.value("color") {
        // https://no-color.org: set, and not empty.
        None | Some("auto") => {
            Ok(io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
        }
        Some("always") => Ok(true),
        Some("never") => Ok(false),
        Some(other) => Err(Problem::usage(format!("--color={other}: must be auto, always or never"))),
    }
}

fn columns() -> usize {
    terminal_size::terminal_size().map_or(80, |(terminal_size::Width(columns), _)| columns.into())
}

/// Writes to stdout; a reader that went away (`| head`) is no error.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// `role`: one word.
pub(crate) fn role(call: &Call, target: &Target) -> Result<u8, Problem> {
    println!("{}", one(call.context, &target.name.resource)?.role);
    Ok(0)
}

/// `cstate`: one word per connection.
pub(crate) fn connection_state(call: &Call, target: &Target) -> Result<u8, Problem> {
    let status = one(call.context, &target.name.resource)?;
    match target.peer() {
        None => status.connections.iter().for_each(|c| println!("{}", c.connection)),
        Some(peer) => {
            let no_such = || Problem::new(exit::FAILURE, format!("{target}: no such connection"));
            println!("{}", status.connection(&peer).ok_or_else(no_such)?.connection);
        }
    }
    Ok(0)
}

/// `peer-role`: one word per connection.
pub(crate) fn peer_role(call: &Call, target: &Target) -> Result<u8, Problem> {
    let status = one(call.context, &target.name.resource)?;
    let meant = target.peer();
    let named = |c: &&ConnectionStatus| meant.as_ref().is_none_or(|peer| c.name == *peer);
    status.connections.iter().filter(named).for_each(|c| println!("{}", c.peer_role));
    Ok(0)
}

/// `dstate`: ours and the peers', one line per volume; from the metadata if the resource does not run.
pub(crate) fn disk_state(call: &Call, target: &Target) -> Result<u8, Problem> {
    if !call.context.is_running(&target.name.resource) {
        return metadata::disk_state(call, target);
    }
    let status = one(call.context, &target.name.resource)?;
    let wanted = target.name.volume;
    for device in status.devices.iter().filter(|d| wanted.is_none_or(|v| d.volume == v)) {
        println!("{}", query::disk_states(&status, device.volume).unwrap_or_default());
    }
    Ok(0)
}

/// `metrics`: of all running resources, or those named.
pub(crate) fn metrics(call: &Call) -> Result<u8, Problem> {
    let (resources, worst) = collect(call.context, &call.objects());
    let mut running: Vec<(String, bool)> = resources.iter().map(|r| (r.name.clone(), true)).collect();
    if worst == 0 && names_all(&call.objects()) {
        let names: Vec<String> = running.iter().map(|(name, _)| name.clone()).collect();
        running.extend(call.context.configured_here().into_iter().filter(|n| !names.contains(n)).map(|n| (n, false)));
        running.sort();
    }
    print(&(control::metrics::running(&running) + &control::metrics::text(&resources, call.flag("fine"))));
    Ok(worst)
}

/// A reply that is a text.
pub(crate) fn text(context: &Context, resource: &str, request: &Request) -> Result<String, Problem> {
    match context.client(resource)?.ask(request) {
        Ok(Reply::Text(text)) => Ok(text),
        Ok(other) => Err(Problem::new(exit::BROKEN, format!("{resource}: unexpected answer: {other:?}"))),
        Err(e) => Err(Problem::client(resource, &e)),
    }
}

/// What each single loss would do to a running resource, or what this command would take away.
pub(crate) fn losses(context: &Context, resource: &str, before: Option<Command>) -> Result<Vec<WhatIf>, Problem> {
    context.client(resource)?.what_if(before).map_err(|e| Problem::client(resource, &e))
}

/// `what-if`: for each node, link and disk: what stops when it is lost.
pub(crate) fn what_if(call: &Call) -> Result<u8, Problem> {
    let (resources, mut worst) = collect(call.context, &call.objects());
    let mut all = serde_json::Map::new();
    let mut text = String::new();
    for name in resources.iter().map(|r| &r.name) {
        match losses(call.context, name, None) {
            Ok(told) if call.flag("json") => drop(all.insert(name.clone(), what_if::json(&told))),
            Ok(told) => {
                text += &format!("{name}:\n");
                text += &what_if::lines(&told).lines().map(|line| format!("  {line}\n")).collect::<String>();
            }
            Err(problem) => worst = worst.max(cli::settle(Err(problem))),
        }
    }
    if call.flag("json") {
        text = format!("{:#}\n", serde_json::Value::Object(all));
    }
    print(&text);
    Ok(worst)
}

/// `why`: what is the matter, in sentences; then a line for each decision and change: when, what, and its code.
pub(crate) fn why(call: &Call, target: &Target) -> Result<u8, Problem> {
    let resource = &target.name.resource;
    let mut client = call.context.client(resource).map_err(|problem| match problem.exit {
        exit::FAILURE => explained(call.context, resource.clone()).problem(),
        _ => problem,
    })?;
    let status = client.status().map_err(|e| Problem::client(resource, &e))?;
    let found = matter::matters(&status);
    let mut text = String::new();
    for m in &found {
        text += &format!("{}: {}\n", m.object, m.text);
        text += &m.next.iter().map(|next| format!("    next: {next}\n")).collect::<String>();
    }
    if found.iter().all(|m| m.weight > matter::Weight::Running) {
        text += &format!("{resource}: nothing is the matter.\n");
    }
    // A process of an older release does not know it.
    let votes = client.what_if(None).unwrap_or_default();
    for now in votes.iter().filter(|w| w.loss == what_if::Loss::Nothing && votes_are_counted(w)) {
        text += &format!("{resource}/{}: {}\n", now.volume, now.sentence());
    }
    let mut client = call.context.client(resource)?;
    match client.ask(&Request::Why) {
        Ok(Reply::Why(entries)) => {
            text += if entries.is_empty() { "" } else { "Decisions and what they changed, newest last, in UTC:\n" };
            for entry in entries {
                let then = entry.ago_ms.and_then(|ago| SystemTime::now().checked_sub(Duration::from_millis(ago)));
                let since_1970 = then.and_then(|then| then.duration_since(UNIX_EPOCH).ok());
                let when = since_1970.map(|t| date_and_time(t.as_secs()) + " ").unwrap_or_default();
                text += &format!("{when}{}: {} [{}]\n", entry.object, control::plain(&entry.text), entry.code);
            }
            print(&text);
            Ok(0)
        }
        Ok(other) => Err(Problem::new(exit::BROKEN, format!("{resource}: unexpected answer: {other:?}"))),
        Err(e) => Err(Problem::client(resource, &e)),
    }
}

fn votes_are_counted(of: &WhatIf) -> bool {
    of.here.as_ref().is_some_and(|here| here.votes.is_some())
}

/// Says on standard error what this command stops, here or on a Primary elsewhere, before it is given; and in other
/// words if it is refused. Not by the names of DRBD's tools, which do not say it.
pub(crate) struct Stops(Option<String>);

impl Stops {
    pub(crate) fn before(context: &Context, resource: &str, command: Command) -> Stops {
        let frozen = |status: &ResourceStatus| status.suspended.any() && status.role == control::Role::Primary;
        let known = || {
            let frozen = frozen(&one(context, resource).ok()?);
            let told = losses(context, resource, Some(command)).ok()?;
            let stops: Vec<String> = told.iter().filter(|_| !frozen).filter_map(WhatIf::stops).collect();
            stops.into_iter().next()
        };
        Stops((!is_drbds_name()).then(known).flatten())
    }

    /// It was done.
    pub(crate) fn warn(&self, resource: &str) {
        if let Some(stops) = &self.0 {
            eprintln!("urbd: warning: {resource}: what stops with this: {stops}");
        }
    }

    /// It was refused.
    pub(crate) fn explain(&self, problem: Problem) -> Problem {
        match &self.0 {
            Some(stops) if problem.hint.is_none() => problem.hint(format!("what would stop: {stops}")),
            _ => problem,
        }
    }
}

/// What the event loop of `events2` wakes up for.
enum Wake {
    /// From the resource of that name; `Err` is the end of its stream.
    From(String, Result<Box<Event>, ClientError>),
    /// Everything that came before it is printed when this is dropped.
    Printed(#[expect(dead_code, reason = "what counts is its end")] Sender<()>),
    /// A character on standard input; `None` at its end.
    Input(Option<u8>),
    /// Another process goes on with the resource of that name.
    TakenOver(String),
    /// There is something new in the directory of the sockets.
    Started,
}

/// How often to look whether another resource was started.
const LOOK_FOR_NEW: Duration = Duration::from_millis(500);

/// `events2`: the present state, and then each change. Nothing ever goes to stderr: readers restart on any output
/// there.
pub(crate) fn events(call: &Call) -> Result<u8, Problem> {
    let options = events::Options {
        statistics: call.flag("statistics"),
        full: call.flag("full"),
        color: call.value("color").is_some() && wants_color(call)?,
    };
    let mut printer = Printer { renderer: events::Renderer::new(options), timestamps: call.flag("timestamps") };
    let objects = call.objects();
    if objects.len() > 1 && objects.iter().all(|name| name != "all") {
        return Err(Problem::usage("events2 follows one resource or all").hint("leave out the names to follow all"));
    }
    let only = objects.first().filter(|_| objects.len() == 1).filter(|name| *name != "all").cloned();
    call.context.may_look()?;
    let names = only.clone().map_or_else(|| call.context.running_resources(), |name| vec![name]);
    let statistics = options.statistics || options.full;

    let (sender, receiver) = mpsc::channel();
    let mut followed: Vec<String> = Vec::new();
    for name in names {
        match one(call.context, &name) {
            Ok(status) => {
                printer.lines(|r| r.status(&status))?;
                followed.push(name);
            }
            // To go on would say that nothing runs.
            Err(problem) if problem.is_denied() => return Err(problem),
            Err(_) => {}
        }
    }
    printer.lines(|r| vec![r.ready()])?;
    if call.flag("poll") {
        read_input(sender.clone());
    } else if call.flag("now") {
        return Ok(0);
    }
    if call.flag("now") {
        return answer_polls(call, &receiver, &followed, options);
    }
    let processes = Processes::default();
    for name in &followed {
        follow(call.context, name, (statistics, false), (&sender, &processes));
    }
    watch_for_new(call.context, &sender);
    Follower { call, only, statistics, sender, followed, processes }.run(&receiver, &mut printer)
}

/// `--now --poll`: each `n` prints everything again.
fn answer_polls(
    call: &Call,
    receiver: &Receiver<Wake>,
    names: &[String],
    options: events::Options,
) -> Result<u8, Problem> {
    while let Ok(Wake::Input(Some(b'n' | b'\n'))) = receiver.recv() {
        let mut printer = Printer { renderer: events::Renderer::new(options), timestamps: call.flag("timestamps") };
        for status in names.iter().filter_map(|name| one(call.context, name).ok()) {
            printer.lines(|r| r.status(&status))?;
        }
        printer.lines(|r| vec![r.ready()])?;
    }
    Ok(0)
}

struct Follower<'a> {
    call: &'a Call<'a>,
    only: Option<String>,
    statistics: bool,
    sender: Sender<Wake>,
    followed: Vec<String>,
    processes: Processes,
}

/// Those whose events are being read, by their numbers.
type Processes = Arc<Mutex<BTreeSet<u32>>>;

impl Follower<'_> {
    fn run(mut self, receiver: &Receiver<Wake>, printer: &mut Printer) -> Result<u8, Problem> {
        loop {
            match receiver.recv_timeout(LOOK_FOR_NEW) {
                Ok(Wake::From(name, Ok(event))) => {
                    if let Event::Renamed { from, to } = &*event {
                        self.renamed(from, to);
                    }
                    printer.event(&name, *event)?;
                }
                Ok(Wake::Printed(_)) => {}
                // To ask again and again would keep others out.
                Ok(Wake::From(name, Err(refused @ ClientError::Refused(_)))) => {
                    return Err(Problem::client(&name, &refused));
                }
                Ok(Wake::From(name, Err(_))) => {
                    printer.lines(|r| r.gone(&name))?;
                    self.followed.retain(|n| *n != name);
                }
                Ok(Wake::TakenOver(name)) => printer.lines(|r| r.taken_over(&name))?,
                Ok(Wake::Input(Some(b'n'))) => {
                    for status in self.followed.iter().filter_map(|name| one(self.call.context, name).ok()) {
                        printer.lines(|r| r.status(&status))?;
                    }
                }
                Ok(Wake::Input(Some(b'\n'))) => {}
                Ok(Wake::Input(_)) => return Ok(0),
                Ok(Wake::Started) | Err(_) => self.look_for_new(),
            }
        }
    }

    /// It is followed on, also by who follows it alone.
    fn renamed(&mut self, from: &str, to: &str) {
        let names = self.followed.iter_mut().chain(&mut self.only);
        names.filter(|name| *name == from).for_each(|name| *name = to.to_owned());
    }

    fn look_for_new(&mut self) {
        let running = self.call.context.running_resources();
        let wanted = running.into_iter().filter(|name| self.only.as_ref().is_none_or(|only| only == name));
        for name in wanted.filter(|name| !self.followed.contains(name)).collect::<Vec<_>>() {
            let Ok(client) = self.call.context.client(&name) else { continue };
            // One that has got this name just now says so itself.
            if !with(&self.processes, |processes| processes.contains(&client.pid)) {
                follow(self.call.context, &name, (self.statistics, true), (&self.sender, &self.processes));
                self.followed.push(name);
            }
        }
    }
}

struct Printer {
    renderer: events::Renderer,
    timestamps: bool,
}

impl Printer {
    /// Prints what the renderer gives. An error means that nobody reads any more.
    fn lines(&mut self, render: impl FnOnce(&mut events::Renderer) -> Vec<String>) -> Result<(), Problem> {
        let mut out = io::stdout().lock();
        let mut text = String::new();
        for line in render(&mut self.renderer) {
            if self.timestamps {
                text += &timestamp(SystemTime::now());
                text.push(' ');
            }
            text += &line;
            text.push('\n');
        }
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        written.map_err(|e| Problem::new(exit::BROKEN, format!("standard output: {e}")))
    }

    fn event(&mut self, resource: &str, event: Event) -> Result<(), Problem> {
        match event {
            Event::Status(status) => self.lines(|r| r.status(&status)),
            Event::Ready | Event::Confirm { .. } => Ok(()),
            Event::HelperCalled(call) => self.lines(|r| vec![r.helper(resource, &call, None)]),
            Event::HelperReturned { call, status } => self.lines(|r| vec![r.helper(resource, &call, Some(status))]),
            Event::Renamed { from, to } => self.lines(|r| r.renamed(&from, &to)),
            Event::Gone => self.lines(|r| r.gone(resource)),
        }
    }
}

/// Follows one resource from a thread of its own, also when another process goes on with it, until nobody runs it.
/// `since_start`: from its first state on, as this program was there before it.
fn follow(
    context: &Context,
    name: &str,
    (statistics, mut since_start): (bool, bool),
    (sender, processes): (&Sender<Wake>, &Processes),
) {
    let (mut name, mut socket) = (name.to_owned(), context.socket(name));
    let (sender, processes, run_dir) = (sender.clone(), processes.clone(), context.run_dir().to_owned());
    thread::spawn(move || {
        let mut process = None;
        let why = loop {
            let client = Client::connect(&socket, Some(ANSWER_TIMEOUT));
            let pid = client.as_ref().ok().map(|client| client.pid);
            let Ok(mut stream) = client.and_then(|c| c.pass_on(statistics, since_start)) else {
                break ClientError::Closed;
            };
            since_start = false;
            if process.is_some() && pid != process && sender.send(Wake::TakenOver(name.clone())).is_err() {
                return;
            }
            with(&processes, |processes| {
                process.iter().for_each(|pid| _ = processes.remove(pid));
                processes.extend(pid);
            });
            process = pid;
            let mut heard = false;
            let ended = loop {
                let event = match stream.next(None) {
                    Ok(event) => event,
                    Err(e) => break e,
                };
                heard = true;
                if let Event::Confirm { number } = event {
                    let (all, printed) = mpsc::channel();
                    if sender.send(Wake::Printed(all)).is_err() {
                        return;
                    }
                    let _ = printed.recv();
                    match stream.confirm(number) {
                        Ok(()) => continue,
                        Err(e) => break e,
                    }
                }
                let renamed = match &event {
                    Event::Renamed { to, .. } => Some(to.clone()),
                    _ => None,
                };
                if sender.send(Wake::From(name.clone(), Ok(Box::new(event)))).is_err() {
                    return;
                }
                if let Some(to) = renamed {
                    (name, socket) = (to.clone(), socket_path(&run_dir, &to));
                }
            };
            if !heard || matches!(ended, ClientError::Refused(_)) {
                break ended;
            }
        };
        with(&processes, |processes| process.iter().for_each(|pid| _ = processes.remove(pid)));
        let _ = sender.send(Wake::From(name, Err(why)));
    });
}

fn with<T>(processes: &Processes, f: impl FnOnce(&mut BTreeSet<u32>) -> T) -> T {
    f(&mut processes.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Wakes the loop as soon as a resource is started: it may live shorter than the time between two looks.
fn watch_for_new(context: &Context, sender: &Sender<Wake>) {
    let watch = || -> io::Result<Inotify> {
        let inotify = Inotify::init()?;
        inotify.watches().add(context.run_dir(), WatchMask::CREATE | WatchMask::MOVED_TO)?;
        Ok(inotify)
    };
    // Without it (too many watches on the machine) it is found at the next look.
    let Ok(mut inotify) = watch() else { return };
    let sender = sender.clone();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while inotify.read_events_blocking(&mut buffer).is_ok() && sender.send(Wake::Started).is_ok() {}
    });
}

fn read_input(sender: Sender<Wake>) {
    thread::spawn(move || {
        for byte in io::stdin().lock().bytes() {
            if sender.send(Wake::Input(byte.ok())).is_err() {
                return;
            }
        }
        let _ = sender.send(Wake::Input(None));
    });
}

/// `2026-11-21T00:54:14.418432+00:00`, in UTC.
fn timestamp(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = date_and_time(since.as_secs()).replace(' ', "T");
    format!("{text}.{:06}+00:00", since.subsec_micros())
}

/// `2026-11-21 00:54:14` for a number of seconds since 1970, in UTC.
pub(crate) fn date_and_time(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / 86400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Year, month and day of a number of days since 1970-01-01 (the proleptic Gregorian calendar, in eras of 400 years).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_iso_8601() {
        let at = |seconds, micros| UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros);
        assert_eq!(timestamp(at(0, 0)), "1970-01-01T00:00:00.000000+00:00");
        assert_eq!(timestamp(at(951_782_400, 0)), "2000-02-29T00:00:00.000000+00:00");
        assert_eq!(timestamp(at(1_795_222_454, 418_432)), "2026-11-21T00:54:14.418432+00:00");
    }
}
