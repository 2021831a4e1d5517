//! What every verb needs to know: which configuration, which node, which run directory.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use clap::ArgMatches;
use config::{Config, Disk, Errors, LoadOptions, LocalResource, ThisHost, Warning};
use control::Client;
use control::client::{ClientError, socket_path};

use crate::config_link;
use crate::objects::{Name, Takes};
use crate::problem::{Problem, exit};
use crate::verbs::told;

/// How long a running resource may take to answer a question or a quick command.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a command that waits for disks or peers may take.
pub(crate) const LONG_TIMEOUT: Duration = Duration::from_secs(600);

/// How a warning about the configuration begins, which is one line.
pub(crate) const WARNING: &str = "urbd: warning: ";

/// Resources of this node, and why others that may be are not among them.
pub(crate) type Own = (Vec<LocalResource>, Vec<Problem>);

/// The general options and the environment, and the configuration once it was needed.
#[derive(Debug)]
pub(crate) struct Context {
    /// The configuration file.
    pub(crate) config_file: PathBuf,
    /// Our name in the configuration.
    pub(crate) node: String,
    /// Where sockets, logs and pid files are.
    pub(crate) run_dir: PathBuf,
    /// Say what would be done, do nothing.
    pub(crate) dry_run: bool,
    /// How often `--verbose` was given.
    pub(crate) verbose: u8,
    /// Act on the stacked resources.
    pub(crate) stacked: bool,
    /// Is the configuration read with other files than those that it names?
    pub(crate) tests_files: bool,
    /// Is who reads the configuration to say what it warns of?
    pub(crate) warns: bool,
    /// Only what runs is there, as for drbdsetup: no file is read.
    pub(crate) of_running: bool,
    load: LoadOptions,
    config: OnceLock<Config>,
}

impl Context {
    /// From the general options, then the environment, then the defaults.
    pub(crate) fn new(args: &ArgMatches) -> Context {
        let option = |name: &str| args.get_one::<String>(name).cloned();
        let files = |name| args.get_many::<String>(name).into_iter().flatten().map(PathBuf::from).collect();
        let (additional, exclude): (Vec<PathBuf>, Vec<PathBuf>) = (files("config-to-test"), files("config-to-exclude"));
        Context {
            tests_files: !(additional.is_empty() && exclude.is_empty()),
            load: LoadOptions { additional, exclude, ..LoadOptions::default() },
            dry_run: args.get_flag("dry-run"),
            verbose: args.get_count("verbose"),
            stacked: args.get_flag("stacked"),
            ..Context::of(option("config"), option("node"))
        }
    }

    /// Without options.
    pub(crate) fn of_environment() -> Context {
        Context::of(None, None)
    }

    /// With these options; else as the environment says.
    pub(crate) fn of(config_file: Option<String>, node: Option<String>) -> Context {
        Context {
            config_file: config_file.map_or_else(default_config_file, PathBuf::from),
            node: node.or_else(|| variable("URBD_NODE")).unwrap_or_else(host_name),
            run_dir: variable("URBD_RUN_DIR").map_or_else(default_run_dir, PathBuf::from),
            dry_run: false,
            verbose: 0,
            stacked: false,
            tests_files: false,
            warns: false,
            of_running: false,
            load: LoadOptions::default(),
            config: OnceLock::new(),
        }
    }

    /// The same options, and the configuration not read yet: it may have changed.
    pub(crate) fn unread(&self) -> Context {
        Context {
            config_file: self.config_file.clone(),
            node: self.node.clone(),
            run_dir: self.run_dir.clone(),
            load: self.load.clone(),
            config: OnceLock::new(),
            ..*self
        }
    }

    /// Has nobody named a configuration file?
    pub(crate) fn is_of_usual_file(&self, args: &ArgMatches) -> bool {
        args.get_one::<String>("config").is_none() && variable("URBD_CONF").is_none()
    }

    /// The configuration that this object's resource was made from, if that was noted; else the usual one.
    pub(crate) fn find_file(&mut self, object: Option<&String>) {
        let name = object.and_then(|text| Name::parse(text, Takes::PeerDevice).ok());
        let file = name.and_then(|name| config_link::find(&self.run_dir, &name.resource));
        self.config_file = file.unwrap_or_else(|| self.config_file.clone());
    }

    /// Is everything as a service unit finds it, so that no option or variable need be passed on?
    pub(crate) fn is_default(&self) -> bool {
        let file = installed_config_file();
        let places = self.config_file == Path::new(file) && self.run_dir == Path::new("/run/urbd");
        places && self.node == host_name() && !self.stacked && variable("URBD_DEV_DIR").is_none()
    }

    /// The same for a resource that no file has: only what runs, or ran, is there.
    pub(crate) fn without_file(&self) -> Context {
        Context { of_running: true, ..self.unread() }
    }

    /// Does no file have the resource? Of one that cannot be read, or is not valid, nobody knows.
    pub(crate) fn is_in_no_file(&self, resource: &str) -> bool {
        let missing = !self.config_file.exists();
        self.of_running || missing || self.config().is_ok_and(|config| config.resource(resource).is_none())
    }

    /// The configuration; read on first use. Its warnings then go to stderr, if the verb is one that says them.
    ///
    /// # Errors
    /// Exit 10: it is not valid; exit 20: it cannot be read.
    pub(crate) fn config(&self) -> Result<&Config, Problem> {
        if let Some(config) = self.config.get() {
            return Ok(config);
        }
        let config = config::load_from(&Disk, &self.config_file, &self.load_options()).map_err(|e| invalid(&e))?;
        if self.warns {
            warning_lines(config.warnings()).iter().for_each(|line| eprintln!("{WARNING}{line}"));
        }
        Ok(self.config.get_or_init(|| config))
    }

    /// How configurations are read: only this host's own disks may not be used twice.
    pub(crate) fn load_options(&self) -> LoadOptions {
        LoadOptions { this_host: Some(self.this_host()), ..self.load.clone() }
    }

    /// Who we are, for the configuration.
    pub(crate) fn this_host(&self) -> ThisHost {
        ThisHost { stacked: self.stacked, ..ThisHost::named(&self.node) }.with_addresses(local_addresses())
    }

    /// One resource as this node sees it.
    ///
    /// # Errors
    /// Exit 1: unknown here; exit 10: the configuration is not valid.
    pub(crate) fn resource(&self, name: &str) -> Result<LocalResource, Problem> {
        if self.of_running {
            return told::in_force(self, name);
        }
        self.config()?.resource_as_seen_by(name, &self.this_host()).map_err(|e| invalid(&e.into()))
    }

    /// The resources that this node takes part in, in the order of the configuration.
    ///
    /// # Errors
    /// Exit 10: the configuration is not valid; exit 1: nothing in it is for this node.
    pub(crate) fn own_resources(&self) -> Result<Vec<LocalResource>, Problem> {
        self.each_own_resource().map(|(found, _)| found)
    }

    /// The same, and what is wrong with each of the others that keeps it from being one of them.
    ///
    /// # Errors
    /// As [`Context::own_resources`].
    pub(crate) fn each_own_resource(&self) -> Result<Own, Problem> {
        if self.of_running {
            return Ok((told::all(self), Vec::new()));
        }
        let (config, host) = (self.config()?, self.this_host());
        let (found, errors) = config.each_for(&host);
        if found.is_empty() {
            config.resources_for(&host).map_err(|e| invalid(&e))?;
        }
        Ok((found, errors.into_iter().map(|e| invalid(&e.into())).collect()))
    }

    /// The same for who only looks: a configuration without resources has none to be shown, as on a fresh machine.
    ///
    /// # Errors
    /// Exit 10: the configuration is not valid; exit 1: it has resources, but none for this node.
    pub(crate) fn resources_to_look_at(&self) -> Result<Own, Problem> {
        if self.of_running {
            return self.each_own_resource();
        }
        if self.config()?.resources.is_empty() { Ok(Own::default()) } else { self.each_own_resource() }
    }

    /// The names of the resources that are configured for this node, in the order of the configuration; none if that is
    /// not valid, or is not there. Nothing is printed.
    pub(crate) fn configured_here(&self) -> Vec<String> {
        let names = |config: &Config| config.each_for(&self.this_host()).0.into_iter().map(|r| r.name).collect();
        match self.config.get() {
            Some(config) => names(config),
            None => {
                let config = config::load_from(&Disk, &self.config_file, &self.load_options());
                config.as_ref().map(names).unwrap_or_default()
            }
        }
    }

    /// The names of the resources that have a control socket, sorted.
    pub(crate) fn running_resources(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.run_dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|e| Some(e.file_name().to_str()?.strip_suffix(".sock")?.to_owned()));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Whether we may see which resources run.
    ///
    /// # Errors
    /// Exit 20: the run directory is closed to us.
    pub(crate) fn may_look(&self) -> Result<(), Problem> {
        match fs::read_dir(&self.run_dir) {
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                Err(Problem::denied(&format!("this machine's resources ({})", self.run_dir.display())))
            }
            _ => Ok(()),
        }
    }

    /// A connection to the process that runs `resource`.
    ///
    /// # Errors
    /// Exit 10: it does not run; exit 20: it does not answer.
    pub(crate) fn client(&self, resource: &str) -> Result<Client, Problem> {
        Client::connect(&self.socket(resource), Some(ANSWER_TIMEOUT)).map_err(|e| Problem::client(resource, &e))
    }

    /// Whether a process runs `resource`: one that answers, or hangs, or takes over from another one. One that is being
    /// killed does not, although its socket may still accept connections for a moment.
    pub(crate) fn is_running(&self, resource: &str) -> bool {
        let socket = self.socket(resource);
        let connects = || Client::connect(&socket, Some(ANSWER_TIMEOUT));
        match std::os::unix::net::UnixStream::connect(&socket).map_err(|e| e.kind()) {
            Ok(_) | Err(ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                !matches!(connects(), Err(ClientError::NotRunning(_)))
            }
            // Not for us to say: what is done next is refused for the same reason.
            Err(kind) => kind == ErrorKind::PermissionDenied,
        }
    }

    /// Where the control sockets are.
    pub(crate) fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// The control socket of `resource`.
    pub(crate) fn socket(&self, resource: &str) -> PathBuf {
        socket_path(&self.run_dir, resource)
    }
}

/// One line for each thing that is warned of, with the first place where it stands.
fn warning_lines(warnings: &[Warning]) -> Vec<String> {
    let mut places: Vec<(&Warning, usize)> = Vec::new();
    for warning in warnings {
        match places.iter_mut().find(|(first, _)| first.message == warning.message) {
            Some((_, more)) => *more += 1,
            None => places.push((warning, 0)),
        }
    }
    let line = |(first, more): (&Warning, usize)| match more {
        0 => first.to_string(),
        1 => format!("{first} (and at one more place)"),
        more => format!("{first} (and at {more} more places)"),
    };
    places.into_iter().map(line).collect()
}

fn invalid(errors: &Errors) -> Problem {
    Problem::new(u8::try_from(errors.exit_code()).unwrap_or(exit::FAILURE), errors.to_string())
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn default_config_file() -> PathBuf {
    if let Some(file) = variable("URBD_CONF") {
        return file.into();
    }
    installed_config_file().into()
}

fn installed_config_file() -> &'static str {
    let candidates = ["/etc/urbd.conf", "/etc/drbd.conf"];
    candidates.into_iter().find(|f| Path::new(f).exists()).unwrap_or("/etc/urbd.conf")
}

/// Root's, unless this user runs resources: who has none of their own asks about those of the machine.
fn default_run_dir() -> PathBuf {
    let uid = fs::metadata("/proc/self").map_or(0, |m| m.uid());
    let roots = PathBuf::from("/run/urbd");
    let own = match variable("XDG_RUNTIME_DIR") {
        Some(dir) if uid != 0 => Path::new(&dir).join("urbd"),
        None if uid != 0 => env::temp_dir().join(format!("urbd-{uid}")),
        _ => return roots,
    };
    if !own.exists() && roots.exists() { roots } else { own }
}

fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim_end().to_owned()
}

/// The addresses of our interfaces as the kernel lists them in /proc.
pub(crate) fn local_addresses() -> Vec<IpAddr> {
    let v4 = fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let v6 = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let mut addresses = parse_fib_trie(&v4);
    addresses.extend(parse_if_inet6(&v6));
    addresses
}

/// An address is local if the line after it says so: `|-- 10.1.1.1` / `/32 host LOCAL`.
fn parse_fib_trie(text: &str) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    let mut last = None;
    for line in text.lines().map(str::trim_start) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line.starts_with("/32 host LOCAL") {
            found.extend(last.filter(|a| !found.contains(a)));
        }
    }
    found
}

/// One interface a line, the address as 32 hex digits at its beginning.
fn parse_if_inet6(text: &str) -> Vec<IpAddr> {
    let digits = text.lines().filter_map(|line| line.split_whitespace().next());
    digits.filter_map(|hex| u128::from_str_radix(hex, 16).ok()).map(|bits| IpAddr::V6(bits.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_read_from_proc() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.1.1.0\n        /24 link UNICAST\n     |-- 10.1.1.1\n        \
                    /32 host LOCAL\n     |-- 10.1.1.255\n        /32 link BROADCAST\n";
        assert_eq!(parse_fib_trie(trie), ["10.1.1.1".parse::<IpAddr>().unwrap()]);
        let inet6 = "00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(parse_if_inet6(inet6), ["::1".parse::<IpAddr>().unwrap()]);
        assert!(local_addresses().contains(&"127.0.0.1".parse().unwrap()));
    }
}
