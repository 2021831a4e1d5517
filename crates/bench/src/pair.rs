//! Nodes of urbd on this machine: processes of the program itself, with a configuration made for the purpose.

use crate::error::{Error, Result};
use crate::in_process::InProcess;
use crate::nbd::NbdTarget;
use crate::process::{Process, output};
use crate::target::{Behind, Watched};
use control::client::socket_path;
use control::{Client, ConnectionState, DiskState, Event, PeerDeviceStatus, ReplicationState, ResourceStatus};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a node may take to start, to connect, to answer.
const PATIENCE: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(10);

/// How applications reach the first node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    /// The load is inside its loop.
    Inside,
    /// Its NBD socket.
    Nbd,
    /// Its block device by FUSE and loop.
    Device,
}

/// What processes are started from.
#[derive(Clone, Debug)]
pub struct Programs {
    /// urbd, which is measured.
    pub urbd: PathBuf,
    /// urbd-lab: a node with the load inside, and disks of known speed.
    pub lab: PathBuf,
}

/// What a pair is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Backing file of the first node, which is Primary; `None`: it has no disk.
    pub first: Option<PathBuf>,
    /// Backing file of the second node.
    pub second: PathBuf,
    /// Backing file of a third node. `None`: there are two.
    pub third: Option<PathBuf>,
    /// All speak DRBD 9's dialect with each other, as three have to.
    pub nine: bool,
    /// A, B or C.
    pub protocol: char,
    /// How applications reach the first node.
    pub front: Front,
    /// More for the section `net`.
    pub net: String,
    /// More for the section `disk`.
    pub disk: String,
}

impl Plan {
    /// Protocol C with both files.
    #[must_use]
    pub fn new(first: &Path, second: &Path, front: Front) -> Plan {
        Plan {
            first: Some(first.to_owned()),
            second: second.to_owned(),
            third: None,
            nine: false,
            protocol: 'C',
            front,
            net: String::new(),
            disk: String::new(),
        }
    }

    /// The nodes: their names and their disks.
    fn nodes(&self) -> impl Iterator<Item = (&'static str, Option<&Path>)> {
        let third = self.third.as_deref().map(Some);
        NODES.into_iter().zip([self.first.as_deref(), Some(self.second.as_path())].into_iter().chain(third))
    }

    /// The configuration.
    fn text(&self, resource: &str, ports: [u16; 3]) -> String {
        let front = if self.front == Front::Device { "fuse" } else { "nbd" };
        let newest = if self.nine { 124 } else { 101 };
        let mut text = format!(
            "global {{ usage-count no; }}\nresource {resource} {{\n  urbd {{ front-end {front}; hand-over no; protocol-version-max {newest}; }}\n  net {{ protocol {}; \
             {} }}\n  disk {{ {} }}\n",
            self.protocol, self.net, self.disk
        );
        for (id, ((node, disk), port)) in self.nodes().zip(ports).enumerate() {
            let backing = match disk {
                Some(path) => format!("disk {}; meta-disk internal;", path.display()),
                None => "disk none;".into(),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "  on {node} {{ node-id {id}; address ipv4 127.0.0.1:{port}; volume 0 {{ device minor 0; {backing} }} }}"
            );
        }
        let mesh = if self.third.is_some() { "  connection-mesh { hosts first second third; }\n" } else { "" };
        text + mesh + "}\n"
    }
}

/// Names of the nodes in the configuration.
const NODES: [&str; 3] = ["first", "second", "third"];

/// Roles of the two processes in outcomes.
pub const PRIMARY: &str = "primary";
/// See [`PRIMARY`].
pub const SECONDARY: &str = "secondary";
/// See [`PRIMARY`]; of three nodes.
pub const THIRD: &str = "third";

/// Two nodes or three, connected and UpToDate.
pub struct Pair {
    // Dropped in this order: the primary goes down before its peers.
    primary: Process,
    secondaries: Vec<Process>,
    programs: Programs,
    dir: PathBuf,
    resource: String,
    plan: Plan,
    ports: [u16; 3],
    inside: Option<InProcess>,
}

impl Pair {
    /// Starts the nodes with fresh metadata; what the disks hold counts as equal. Everything that is needed is made
    /// in `dir`.
    ///
    /// # Errors
    /// If that does not work; with what the program said.
    pub fn start(programs: &Programs, dir: &Path, plan: Plan) -> Result<Pair> {
        fs::create_dir_all(dir).map_err(Error::io(dir.display()))?;
        let dir = dir.canonicalize().map_err(Error::io(dir.display()))?;
        // Its own: names of devices are one machine's.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let resource = format!("bench-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let ports = [free_port()?, free_port()?, free_port()?];
        let config = Config { programs, dir: &dir, resource: &resource };
        write_config(&dir, &plan, &resource, ports)?;
        let room: &[&str] = if plan.nine { &["--format=v09", "--max-peers=2"] } else { &[] };
        for (node, _) in plan.nodes().filter(|(_, disk)| disk.is_some()) {
            output(config.urbd(node).args(["create-md", "--force"]).args(room).arg(&resource))?;
        }
        let others = plan.nodes().skip(1).map(|(node, _)| config.run(&programs.urbd, node, &["run"], None));
        let secondaries = others.collect::<Result<_>>()?;
        let (inside, primary) = match plan.front {
            Front::Inside => {
                let (inside, theirs) = InProcess::pair()?;
                (Some(inside), config.run(&programs.lab, "first", &["bench", "node"], Some(theirs))?)
            }
            _ => (None, config.run(&programs.urbd, "first", &["run"], None)?),
        };
        let mut pair =
            Pair { primary, secondaries, programs: programs.clone(), dir: dir.clone(), resource, plan, ports, inside };
        pair.promote()?;
        Ok(pair)
    }

    fn promote(&mut self) -> Result<()> {
        // One of them is connected a little before the other, and before its disk is attached: it then refuses what
        // follows.
        self.wait_on_all("connected, with disks", |s, diskless| {
            let attached =
                |disk| diskless || !matches!(disk, DiskState::Diskless | DiskState::Attaching | DiskState::Negotiating);
            !s.connections.is_empty()
                && s.connections.iter().all(|c| c.connection == ConnectionState::Connected)
                && s.devices.iter().all(|d| attached(d.disk))
        })?;
        // Whoever has a disk says that all are equal.
        let judge = if self.plan.first.is_some() { NODES[0] } else { NODES[1] };
        output(self.urbd(judge).args(["new-current-uuid", "--clear-bitmap"]).arg(format!("{}/0", self.resource)))?;
        self.wait_synced()?;
        output(self.urbd(NODES[0]).arg("primary").arg(&self.resource))?;
        Ok(())
    }

    /// Waits until all are connected and everything is UpToDate.
    ///
    /// # Errors
    /// If it takes too long.
    pub fn wait_synced(&mut self) -> Result<()> {
        self.wait_on_all("up to date on all nodes", is_synced)
    }

    /// Waits until every node's status is as `there` wants it, who also hears whether that node has no disk.
    fn wait_on_all(&mut self, what: &str, there: impl Fn(&ResourceStatus, bool) -> bool) -> Result<()> {
        let socket = |node: &str| socket_path(&self.dir.join(node), &self.resource);
        let nodes: Vec<_> = self.plan.nodes().map(|(node, disk)| (socket(node), disk.is_none())).collect();
        self.primary.wait_until(what, PATIENCE, || {
            let status = |socket: &PathBuf| Client::connect(socket, Some(ANSWER)).and_then(|mut c| c.status());
            nodes.iter().all(|(socket, diskless)| status(socket).is_ok_and(|s| there(&s, *diskless)))
        })
    }

    /// Copies the whole of the first node's disk to the second's, which is given up: how long that takes, from the
    /// command until the second node says that it is UpToDate. Nobody else asks the nodes for anything meanwhile.
    ///
    /// # Errors
    /// If it is refused, or nothing happens for too long.
    pub fn resync(&mut self) -> Result<Duration> {
        let socket = socket_path(&self.dir.join(NODES[1]), &self.resource);
        let failed = |e| Error::new(format!("resync: {e}"));
        let connect = || Client::connect(&socket, Some(ANSWER)).map_err(failed);
        let mut events = connect()?.subscribe(false, false).map_err(failed)?;
        while !matches!(events.next(Some(ANSWER)).map_err(failed)?, Event::Ready) {}
        let mut operator = connect()?;
        let start = Instant::now();
        operator.command(control::Command::Invalidate { volume: None, keep_bitmap: false }).map_err(failed)?;
        for synced in [false, true] {
            let there = |event| matches!(event, Event::Status(status) if is_synced(&status, false) == synced);
            while !there(events.next(Some(PATIENCE)).map_err(failed)?) {}
        }
        let took = start.elapsed();
        self.wait_synced()?;
        Ok(took)
    }

    /// Waits until the first node's status is as `there` wants it.
    ///
    /// # Errors
    /// If it takes too long.
    pub fn wait(&mut self, what: &str, there: impl Fn(&ResourceStatus) -> bool) -> Result<()> {
        let socket = socket_path(&self.dir.join(NODES[0]), &self.resource);
        let look = || {
            let status = Client::connect(&socket, Some(ANSWER)).and_then(|mut client| client.status());
            status.is_ok_and(|s| !s.connections.is_empty() && there(&s))
        };
        self.primary.wait_until(what, PATIENCE, look)
    }

    /// A verb on the first node.
    ///
    /// # Errors
    /// If it fails; with what it said.
    pub fn verb(&self, verb: &str) -> Result<String> {
        self.verb_on(NODES[0], verb)
    }

    /// A verb on the second node.
    ///
    /// # Errors
    /// If it fails; with what it said.
    pub fn verb_on_second(&self, verb: &str) -> Result<String> {
        self.verb_on(NODES[1], verb)
    }

    fn verb_on(&self, node: &str, verb: &str) -> Result<String> {
        output(self.urbd(node).arg(verb).arg(&self.resource))
    }

    /// Goes on with another protocol or other options of the sections `net` and `disk`.
    ///
    /// # Errors
    /// If a node refuses.
    pub fn change(&mut self, change: impl FnOnce(&mut Plan)) -> Result<()> {
        change(&mut self.plan);
        write_config(&self.dir, &self.plan, &self.resource, self.ports)?;
        for (node, _) in self.plan.nodes() {
            self.verb_on(node, "adjust")?;
        }
        self.wait_synced()
    }

    /// The status of the first two nodes.
    ///
    /// # Errors
    /// If one does not answer.
    pub fn status(&self) -> Result<[ResourceStatus; 2]> {
        let ask = |node: &str| {
            let socket = socket_path(&self.dir.join(node), &self.resource);
            let status = Client::connect(&socket, Some(ANSWER)).and_then(|mut client| client.status());
            status.map_err(|e| Error::new(format!("{node} node: {e}")))
        };
        Ok([ask(NODES[0])?, ask(NODES[1])?])
    }

    /// Bytes of the device.
    ///
    /// # Errors
    /// If the node does not answer.
    pub fn size(&self) -> Result<u64> {
        let [first, _] = self.status()?;
        let statistics = first.devices.first().and_then(|d| d.statistics.as_ref());
        Ok(statistics.map_or(0, |s| s.size_sectors * 512))
    }

    /// Metadata blocks of 4 KiB that the first node has written: activity log and bitmap.
    ///
    /// # Errors
    /// If the node does not answer.
    pub fn metadata_writes(&self) -> Result<u64> {
        let [first, _] = self.status()?;
        let statistics = first.devices.first().and_then(|d| d.statistics.as_ref());
        Ok(statistics.map_or(0, |s| s.al_writes + s.bm_writes))
    }

    /// The processes.
    #[must_use]
    pub fn watched(&self) -> Vec<Watched> {
        let node = |role, process: &Process, name: &str| Watched {
            control: Some(socket_path(&self.dir.join(name), &self.resource)),
            ..Watched::new(role, process.pid())
        };
        let others = NODES[1..].iter().zip([SECONDARY, THIRD]).zip(&self.secondaries);
        let others = others.map(|((name, role), process)| node(role, process, name));
        [node(PRIMARY, &self.primary, NODES[0])].into_iter().chain(others).collect()
    }

    /// The load inside the first node. Panics if the pair was not started with [`Front::Inside`].
    pub fn inside(&mut self) -> Behind<&mut InProcess> {
        let watched = self.watched();
        Behind { target: self.inside.as_mut().expect("the pair has its load inside"), watched }
    }

    /// Clients of its NBD socket.
    ///
    /// # Errors
    /// If the node does not answer.
    pub fn nbd(&self) -> Result<Behind<NbdTarget>> {
        Ok(Behind { target: NbdTarget::new(&self.nbd_uri()?)?, watched: self.watched() })
    }

    /// The address of its NBD socket.
    ///
    /// # Errors
    /// If the node does not answer.
    pub fn nbd_uri(&self) -> Result<String> {
        let [first, _] = self.status()?;
        let uri = first.devices.first().and_then(|d| d.nbd_uri.clone());
        uri.ok_or_else(|| Error::new("the node offers no NBD socket"))
    }

    /// Its block device.
    ///
    /// # Errors
    /// If this host has none; with what the node said.
    pub fn device(&self) -> Result<PathBuf> {
        let [first, _] = self.status()?;
        let path = first.devices.first().and_then(|d| d.device_path.clone());
        path.map(PathBuf::from).ok_or_else(|| Error::new(format!("no block device: {}", self.primary.last_words())))
    }

    fn urbd(&self, node: &str) -> Command {
        Config { programs: &self.programs, dir: &self.dir, resource: &self.resource }.urbd(node)
    }
}

/// Connected, and nothing left to copy, as this node sees it.
fn is_synced(s: &ResourceStatus, diskless: bool) -> bool {
    let mut peers = s.connections.iter().flat_map(|c| &c.peer_devices).peekable();
    // What a node without a disk works with is its peer's.
    let peer_is_good = |p: &PeerDeviceStatus| !diskless || p.peer_disk == DiskState::UpToDate;
    peers.peek().is_some()
        && peers.all(|p| p.replication == ReplicationState::Established && peer_is_good(p))
        && s.devices.iter().all(|d| diskless || d.disk == DiskState::UpToDate)
}

/// What starts the program for a node.
struct Config<'a> {
    programs: &'a Programs,
    dir: &'a Path,
    resource: &'a str,
}

impl Config<'_> {
    fn urbd(&self, node: &str) -> Command {
        self.command(&self.programs.urbd, node)
    }

    fn command(&self, program: &Path, node: &str) -> Command {
        let mut command = Command::new(program);
        command.env("URBD_CONF", config_file(self.dir)).env("URBD_NODE", node);
        command.env("URBD_RUN_DIR", self.dir.join(node));
        command.env("URBD_DEV_DIR", self.dir.join(node).join("dev"));
        command
    }

    fn run(&self, program: &Path, node: &str, verb: &[&str], input: Option<OwnedFd>) -> Result<Process> {
        let mut command = self.command(program, node);
        command.args(verb).arg(self.resource);
        let mut process = Process::start_with(node, self.dir, command, input.map_or(Stdio::null(), Stdio::from))?;
        let socket = socket_path(&self.dir.join(node), self.resource);
        process.wait_until("answers", PATIENCE, || Client::connect(&socket, Some(ANSWER)).is_ok())?;
        Ok(process)
    }
}

fn config_file(dir: &Path) -> PathBuf {
    dir.join("urbd.conf")
}

fn write_config(dir: &Path, plan: &Plan, resource: &str, ports: [u16; 3]) -> Result<()> {
    let file = config_file(dir);
    fs::write(&file, plan.text(resource, ports)).map_err(Error::io(file.display()))
}

/// A TCP port that nobody uses. Somebody may take it before we do: then the node says so.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    Ok(listener.map_err(Error::io("looking for a free port"))?.port())
}

/// A file of that many bytes, all of them written: no block of it is made while something is measured.
///
/// # Errors
/// If there is no room.
pub fn filled_file(path: &Path, size: u64) -> Result<PathBuf> {
    use std::io::Write;
    let failed = || Error::io(format!("writing {size} bytes to {}", path.display()));
    let folder = path.parent().unwrap_or(path);
    if !crate::process::has_room(folder, size) {
        let what = format!("no room for {} MiB in {}", size >> 20, folder.display());
        return Err(Error::new(format!("{what}: take a smaller --size, or another --dir")));
    }
    let mut file = File::create(path).map_err(failed())?;
    let part = vec![0xa5; 1 << 20];
    let mut left = size;
    while left > 0 {
        let n = left.min(part.len() as u64);
        file.write_all(&part[..n as usize]).map_err(failed())?;
        left -= n;
    }
    file.sync_all().map_err(failed())?;
    Ok(path.to_owned())
}

/// Whether the first `size` bytes of both files are equal.
///
/// # Errors
/// Where they first differ, to a MiB; or what kept them from being read.
pub fn compare(files: &[PathBuf; 2], size: u64) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let open = |path: &PathBuf| File::open(path).map_err(Error::io(path.display()));
    let (a, b) = (open(&files[0])?, open(&files[1])?);
    let mut parts = [vec![0; 1 << 20], vec![0; 1 << 20]];
    let mut at = 0;
    while at < size {
        let n = (size - at).min(1 << 20) as usize;
        for ((file, path), part) in [&a, &b].into_iter().zip(files).zip(&mut parts) {
            file.read_exact_at(&mut part[..n], at).map_err(Error::io(path.display()))?;
        }
        if parts[0][..n] != parts[1][..n] {
            return Err(Error::new(format!("both disks differ in the MiB at byte {at}")));
        }
        at += n as u64;
    }
    Ok(())
}
