//! `setup`: the first configuration of two or three hosts, from what the operator says, and what to do next.

mod disk;
mod question;

use std::env;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{IsTerminal, Write, stdin};
use std::net::{IpAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use config::{Config, Disk, LoadOptions};
use units::same_host;

use crate::cli::Call;
use crate::context::local_addresses;
use crate::offline::confirm;
use crate::problem::{Problem, exit};

/// The port of the first resource, as in DRBD's examples.
const FIRST_PORT: u16 = 7789;

/// What becomes a resource.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    name: String,
    hosts: Vec<Host>,
    port: u16,
    minor: u32,
    secret: String,
}

/// One host: `NAME=ADDRESS[:PORT]:DISK`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Host {
    name: String,
    address: IpAddr,
    port: Option<u16>,
    /// `None`: the word none.
    disk: Option<PathBuf>,
}

/// `setup [RES HOST=ADDRESS:DISK HOST=ADDRESS:DISK]`; without words it asks, on a terminal.
pub(crate) fn setup(call: &Call) -> Result<u8, Problem> {
    let words = call.objects();
    let context = call.context;
    let words = match words.len() {
        0 if stdin().is_terminal() => question::words(&context.node, &local_addresses(), call.flag("keep-data"))?,
        _ => words,
    };
    let [name, hosts @ ..] = words.as_slice() else { return Err(usage("which hosts and disks?")) };
    let hosts: Vec<Host> = hosts.iter().map(|word| Host::parse(word)).collect::<Result<_, _>>()?;
    let file = file_to_write(call)?;
    let before = present(&file)?;
    let known = Known::of(&file, before.as_deref(), &context.load_options())?;
    let plan = Plan::new(call, name, hosts, &known)?;
    plan.check(call)?;
    let text = before.clone().map_or_else(String::new, |text| text.trim_end().to_owned() + "\n\n") + &plan.text();
    check_text(call, &file, &text, &plan.name)?;
    if let Some(before) = before {
        let question = format!("{} is there already. Add the resource {} at its end?", file.display(), plan.name);
        if !confirm(&question, call.flag("force")) {
            return Err(Problem::usage(format!("{}: nothing was written", file.display()))
                .hint("--force adds the resource at its end; --output names another file"));
        }
        write(&PathBuf::from(format!("{}.before-setup", file.display())), &before)?;
    }
    write(&file, &text)?;
    println!("{}", plan.next_steps(&context.node, &file));
    Ok(0)
}

/// The file that was named; else the one that urbd reads, unless it is what the package of DRBD's tools leaves: options
/// and no resource. That one stays as it is, and urbd has a file of its own.
fn file_to_write(call: &Call) -> Result<PathBuf, Problem> {
    let read = &call.context.config_file;
    if let Some(named) = call.value("output").or(call.value("config")) {
        return Ok(named.into());
    }
    let default = env::var_os("URBD_CONF").is_none() && read == Path::new("/etc/drbd.conf");
    if default && present(read)?.is_some_and(|text| is_without_resource(read, &text)) {
        return Ok("/etc/urbd.conf".into());
    }
    Ok(read.clone())
}

fn usage(why: &str) -> Problem {
    Problem::usage(why).hint(
        "urbd setup r0 alpha=10.0.0.1:/dev/vg0/data bravo=10.0.0.2:/dev/vg0/data; on a terminal without words it asks",
    )
}

/// The text of the file, if it is there.
fn present(file: &Path) -> Result<Option<String>, Problem> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Problem::new(exit::BROKEN, format!("{}: {e}", file.display()))),
    }
}

/// The file as a whole is there or not; only its owner reads the secret.
fn write(file: &Path, text: &str) -> Result<(), Problem> {
    let failed = |e: std::io::Error| Problem::new(exit::BROKEN, format!("{}: {e}", file.display()));
    let new = PathBuf::from(format!("{}.new", file.display()));
    let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new).map_err(failed)?;
    out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).map_err(failed)?;
    fs::rename(&new, file).map_err(failed)
}

/// What is taken already.
#[derive(Default)]
struct Known {
    names: Vec<String>,
    ports: Vec<u16>,
    minors: Vec<u32>,
}

impl Known {
    fn of(file: &Path, text: Option<&str>, options: &LoadOptions) -> Result<Known, Problem> {
        let Some(text) = text.filter(|text| !is_without_resource(file, text)) else { return Ok(Known::default()) };
        let config = load(file, text, options)?;
        let mut known = Known::default();
        for resource in &config.resources {
            known.names.push(resource.name.clone());
            for host in &resource.hosts {
                known.ports.extend(host.address.iter().map(|address| address.port));
                known.minors.extend(host.volumes.iter().map(|volume| volume.minor));
            }
        }
        Ok(known)
    }
}

/// Is this a configuration that says nothing of any resource?
fn is_without_resource(file: &Path, text: &str) -> bool {
    let loaded = config::load_text(&Disk, file, text, &LoadOptions::default());
    loaded.is_ok_and(|config| config.resources.is_empty())
}

fn load(file: &Path, text: &str, options: &LoadOptions) -> Result<Config, Problem> {
    let invalid = |e: config::Errors| Problem::new(exit::FAILURE, e.to_string());
    config::load_text(&Disk, file, text, options).map_err(invalid)
}

/// The file as it would be must be one that `up` takes.
fn check_text(call: &Call, file: &Path, text: &str, resource: &str) -> Result<(), Problem> {
    let config = load(file, text, &call.context.load_options())?;
    let seen = config.resource_as_seen_by(resource, &call.context.this_host());
    let local = seen.map_err(|e| Problem::new(exit::FAILURE, e.to_string()))?;
    let invalid = |e: config::Errors| Problem::new(exit::FAILURE, e.to_string());
    local.check_startable().map_err(invalid)?;
    local.check_wanted().map_err(invalid)
}

impl Host {
    fn parse(word: &str) -> Result<Host, Problem> {
        let bad = |why: &str| Problem::usage(format!("'{word}': {why}")).hint("write it as HOST=ADDRESS[:PORT]:DISK");
        let (name, place) = word.split_once('=').ok_or_else(|| bad("the sign = is missing"))?;
        let (address, rest) = match place.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").ok_or_else(|| bad("behind an IPv6 address in [] comes :DISK"))?,
            None => place.split_once(':').ok_or_else(|| bad("the disk is missing"))?,
        };
        let address = address.parse().map_err(|_| bad("no IP address (names are not looked up)"))?;
        let (port, disk) = match rest.split_once(':') {
            Some((port, disk)) => (Some(port.parse().map_err(|_| bad("the port is no number up to 65535"))?), disk),
            None => (None, rest),
        };
        let disk = Some(disk).filter(|disk| *disk != "none").map(PathBuf::from);
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if name.is_empty() || !name.chars().all(fits) {
            return Err(bad("this is no name of a host"));
        }
        if disk.as_ref().is_some_and(|disk| !disk.is_absolute()) {
            return Err(bad("a disk begins with /"));
        }
        Ok(Host { name: name.to_owned(), address, port, disk })
    }
}

impl Plan {
    fn new(call: &Call, name: &str, hosts: Vec<Host>, known: &Known) -> Result<Plan, Problem> {
        let free = |first: u32, taken: &dyn Fn(u32) -> bool| (first..).find(|n| !taken(*n)).unwrap_or(first);
        let port = call.number("port")?;
        let port = port.map_or_else(
            || Ok(free(FIRST_PORT.into(), &|n| known.ports.iter().any(|p| u32::from(*p) == n)) as u16),
            u16::try_from,
        );
        let minor = call.number("minor")?;
        let minor = minor.map_or_else(|| Ok(free(0, &|n| known.minors.contains(&n))), u32::try_from);
        let range = |what: &str| Problem::usage(format!("--{what}: the number is too large"));
        if known.names.iter().any(|known| known == name) {
            return Err(Problem::usage(format!("the configuration has a resource {name} already"))
                .hint("choose another name, or change the file by hand and then: urbd adjust"));
        }
        let secret = random_secret().map_err(|e| Problem::new(exit::BROKEN, format!("no random numbers: {e}")))?;
        Ok(Plan {
            name: name.to_owned(),
            hosts,
            port: port.map_err(|_| range("port"))?,
            minor: minor.map_err(|_| range("minor"))?,
            secret,
        })
    }

    fn port(&self, host: &Host) -> u16 {
        host.port.unwrap_or(self.port)
    }

    /// # Errors
    /// Exit 1: what the operator has said cannot be right.
    fn check(&self, call: &Call) -> Result<(), Problem> {
        let node = &call.context.node;
        if !(2..=3).contains(&self.hosts.len()) {
            return Err(usage(&format!("{} hosts: there must be two or three", self.hosts.len())));
        }
        if self.hosts.iter().filter(|host| host.disk.is_some()).count() < 2 {
            return Err(Problem::usage("fewer than two disks: nothing would be mirrored"));
        }
        if let Some(host) = self.hosts.iter().find(|host| host.disk.is_none()) {
            let text = format!("{} has no disk: urbd has no hosts yet that only vote (tie-breakers)", host.name);
            return Err(Problem::usage(text).hint("give it a disk, or leave it out"));
        }
        for (n, host) in self.hosts.iter().enumerate() {
            let others = &self.hosts[..n];
            if others.iter().any(|other| same_host(&other.name, &host.name)) {
                return Err(Problem::usage(format!("two hosts with the name {}", host.name)));
            }
            if others.iter().any(|other| (other.address, self.port(other)) == (host.address, self.port(host))) {
                let text = format!("{}:{} is the address of two hosts", host.address, self.port(host));
                return Err(Problem::usage(text));
            }
            if host.address.is_unspecified() || host.address.is_multicast() {
                return Err(Problem::usage(format!("{}: not the address of a host", host.address)));
            }
            if self.hosts.iter().any(|other| other.address.is_ipv4() != host.address.is_ipv4()) {
                return Err(Problem::usage("all hosts need addresses of one kind, IPv4 or IPv6"));
            }
        }
        let Some(own) = self.hosts.iter().find(|host| same_host(&host.name, node)) else {
            let names: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
            return Err(Problem::usage(format!(
                "this host is {node} (uname -n), and not one of: {}",
                names.join(", ")
            ))
            .hint("name the hosts as `uname -n` prints it on each; setup is called on one of them"));
        };
        self.check_address(own)?;
        match &own.disk {
            Some(path) => disk::check(path, call.flag("keep-data")),
            None => Ok(()),
        }
    }

    fn check_address(&self, own: &Host) -> Result<(), Problem> {
        let mine = local_addresses();
        if !mine.contains(&own.address) {
            let list: Vec<String> = mine.iter().filter(|a| !a.is_loopback()).map(ToString::to_string).collect();
            return Err(Problem::usage(format!("{} is not an address of this host", own.address))
                .hint(format!("its addresses are: {}", list.join(", "))));
        }
        let port = self.port(own);
        match TcpListener::bind((own.address, port)) {
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {
                Err(Problem::usage(format!("port {port} of {} is in use", own.address))
                    .hint("choose another: --port N"))
            }
            _ => Ok(()),
        }
    }

    /// The resource in the language of the configuration.
    fn text(&self) -> String {
        let mut text = format!("# Written by `urbd setup`; man urbd.conf\nresource {} {{\n", self.name);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  net {{\n    cram-hmac-alg sha256;\n    shared-secret \"{}\";\n    verify-alg crc32c;\n  }}",
            self.secret
        );
        let _ = writeln!(text, "  device minor {};\n  meta-disk internal;", self.minor);
        for (id, host) in self.hosts.iter().enumerate() {
            let disk = host.disk.as_ref().map_or_else(|| "none".to_owned(), |disk| format!("\"{}\"", disk.display()));
            let port = self.port(host);
            let address = match host.address {
                IpAddr::V4(address) => format!("{address}:{port}"),
                IpAddr::V6(address) => format!("ipv6 [{address}]:{port}"),
            };
            let _ = writeln!(
                text,
                "  on {} {{\n    node-id {id};\n    disk {disk};\n    address {address};\n  }}",
                host.name
            );
        }
        if self.hosts.len() > 2 {
            let names: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
            let _ = writeln!(text, "  connection-mesh {{\n    hosts {};\n  }}", names.join(" "));
        }
        text + "}\n"
    }

    fn next_steps(&self, node: &str, file: &Path) -> String {
        let (name, file) = (&self.name, file.display());
        let start = |host: &Host| {
            let create = if host.disk.is_some() { format!("    urbd create-md {name}\n") } else { String::new() };
            format!("{create}    systemctl enable --now urbd@{name}    # without systemd: urbd up {name}\n")
        };
        let mut text = format!("Written: {file} (mode 600, as it has the secret). Nothing else was changed. Next:\n");
        for host in self.hosts.iter().filter(|host| same_host(&host.name, node)) {
            text += &format!("  here ({node}):\n{}", start(host));
            for other in self.hosts.iter().filter(|other| !same_host(&other.name, node)) {
                text += &format!("    scp {file} {}:{file}\n", other.name);
            }
        }
        for host in self.hosts.iter().filter(|host| !same_host(&host.name, node)) {
            text += &format!("  on {}, when it has the file:\n{}", host.name, start(host));
        }
        text += &format!(
            "  once, on the host whose data is to be kept (with empty disks: on any):\n    urbd primary --force {name}\n\
             \x20   urbd status {name}                       # copies everything to the other {}\n\
             \x20   mkfs.ext4 $(urbd sh-dev {name})            # unless there is data to keep\n",
            if self.hosts.len() > 2 { "hosts" } else { "host" }
        );
        if self.hosts.len() > 2 {
            text += "Three hosts that are connected at the same time are newer than two: keep backups.\n";
        }
        text + "Every host must let the others in: TCP port " + &self.port.to_string() + "."
    }
}

/// 32 letters and digits.
fn random_secret() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_taken_apart() {
        let host = Host::parse("alpha=10.0.0.1:/dev/vg0/data").unwrap();
        assert_eq!((host.name.as_str(), host.port), ("alpha", None));
        assert_eq!(Host::parse("a=[fd00::1]:7790:/dev/x").unwrap().port, Some(7790));
        assert_eq!(Host::parse("a=10.0.0.3:none").unwrap().disk, None);
        for (word, why) in [
            ("alpha", "the sign ="),
            ("=1.1.1.1:/dev/x", "no name of a host"),
            ("a b=1.1.1.1:/dev/x", "no name of a host"),
            ("a=1.1.1.1", "the disk is missing"),
            ("a=bravo:/dev/x", "no IP address"),
            ("a=1.1.1.1:dev/x", "begins with /"),
            ("a=1.1.1.1:99999:/dev/x", "no number up to"),
            ("a=[fd00::1/dev/x", "comes :DISK"),
        ] {
            let problem = Host::parse(word).unwrap_err();
            assert!(problem.message.contains(why) && problem.exit == 1, "{word}: {problem}");
        }
    }
}
