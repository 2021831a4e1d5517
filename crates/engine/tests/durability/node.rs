//! A node in a process of its own, which can be killed: this test program, called once more. Its application does what
//! the other end of its standard input says.

use config::{LoadOptions, Memory, Standing, ThisHost};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use units::VolumeNr;
use urbd_engine::{Application, Claim, Errno, Kind, Options, Request, run_with};

/// The unit of requests in bytes.
pub(crate) const BLOCK: usize = 4096;
const ARGUMENTS: &str = "URBD_TEST_NODE";
/// On its way to the node a request takes so many bytes, and its result one.
const WORDS: usize = 16;
/// What a node does in no time.
const PATIENCE: Duration = Duration::from_secs(30);

/// What an application asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wish {
    pub(crate) kind: Kind,
    pub(crate) fua: bool,
    pub(crate) block: usize,
    pub(crate) blocks: usize,
    /// What a write writes into every byte.
    pub(crate) fill: u8,
}

const KINDS: [Kind; 5] = [
    Kind::Read,
    Kind::Write,
    Kind::Flush,
    Kind::WriteZeroes { may_unmap: false, fast: false },
    Kind::WriteZeroes { may_unmap: true, fast: false },
];

impl Wish {
    pub(crate) fn write(block: usize, blocks: usize, fill: u8) -> Wish {
        Wish { kind: Kind::Write, fua: false, block, blocks, fill }
    }

    pub(crate) fn flush() -> Wish {
        Wish { kind: Kind::Flush, fua: false, block: 0, blocks: 0, fill: 0 }
    }

    pub(crate) fn zeroes(block: usize, blocks: usize, may_unmap: bool) -> Wish {
        Wish { kind: Kind::WriteZeroes { may_unmap, fast: false }, fua: false, block, blocks, fill: 0 }
    }

    /// Durable when it completes.
    pub(crate) fn durable(self) -> Wish {
        Wish { fua: true, ..self }
    }

    fn emit(self) -> [u8; WORDS] {
        let kind = KINDS.iter().position(|k| *k == self.kind).expect("one of those") as u8;
        let mut words = [0; WORDS];
        words[..3].copy_from_slice(&[kind, u8::from(self.fua), self.fill]);
        words[4..8].copy_from_slice(&(self.blocks as u32).to_le_bytes());
        words[8..].copy_from_slice(&(self.block as u64).to_le_bytes());
        words
    }

    fn parse(words: &[u8; WORDS]) -> Wish {
        let blocks = u32::from_le_bytes(words[4..8].try_into().unwrap()) as usize;
        let block = u64::from_le_bytes(words[8..].try_into().unwrap()) as usize;
        Wish { kind: KINDS[usize::from(words[0])], fua: words[1] != 0, fill: words[2], blocks, block }
    }
}

/// Does what it is told.
struct Obedient {
    socket: UnixStream,
    wishes: VecDeque<Wish>,
    usable: bool,
    fills: Vec<(u64, u8)>,
}

impl Application for Obedient {
    fn descriptor(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    fn on_readable(&mut self) {
        let mut words = [0; WORDS * 256];
        let n = self.socket.read(&mut words).unwrap();
        if n == 0 {
            // The test is gone.
            std::process::exit(1);
        }
        let (whole, rest) = words[..n].as_chunks();
        assert!(rest.is_empty(), "wishes come in one piece");
        self.wishes.extend(whole.iter().map(Wish::parse));
    }

    fn on_device(&mut self, _: VolumeNr, size: u64) {
        self.usable = size > 0;
    }

    fn next(&mut self) -> Option<(VolumeNr, Request)> {
        let wish = if self.usable { self.wishes.pop_front()? } else { return None };
        let (offset, len) = ((wish.block * BLOCK) as u64, (wish.blocks * BLOCK) as u32);
        self.fills.push((offset, wish.fill));
        Some((VolumeNr(0), Request { tag: 0, kind: wish.kind, offset, len, fua: wish.fua }))
    }

    fn fill(&mut self, request: &Request, payload: &mut [u8]) {
        let fill = self.fills.iter().rev().find(|(offset, _)| *offset == request.offset);
        payload.fill(fill.expect("it was wished for").1);
    }

    fn on_done(&mut self, _: &Request, result: Result<(), Errno>, _: &[u8]) {
        self.socket.write_all(&[u8::from(result.is_ok())]).unwrap();
    }
}

/// `None`: this process is no node.
pub(crate) fn arguments() -> Option<String> {
    std::env::var(ARGUMENTS).ok()
}

/// Runs until it is killed, or the test is gone.
pub(crate) fn be_a_node(arguments: &str) {
    let (name, dir) = arguments.split_once(' ').unwrap();
    let text = std::fs::read_to_string(Path::new(dir).join("conf")).unwrap();
    let config = config::load_text(&Memory::default(), Path::new("test"), &text, &LoadOptions::default()).unwrap();
    let resource = config.resource_as_seen_by("r0", &ThisHost::named(name)).unwrap();
    let options = Options {
        standing: Standing::up(&resource),
        resource,
        helper: None,
        run_dir: run_dir(Path::new(dir), name),
        keeper: None,
    };
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
    let application = Obedient { socket, wishes: VecDeque::new(), usable: false, fills: Vec::new() };
    let claim = Claim::take(&options.run_dir, "r0", None).unwrap();
    run_with(options, claim, Some(Box::new(application))).unwrap();
}

fn run_dir(dir: &Path, name: &str) -> PathBuf {
    dir.join(name)
}

/// A node that runs. Killed when dropped.
pub(crate) struct Node {
    child: Child,
    socket: UnixStream,
    run_dir: PathBuf,
}

impl Node {
    /// The node of that name in the configuration `dir/conf`.
    pub(crate) fn start(dir: &Path, name: &str) -> Node {
        let (socket, input) = UnixStream::pair().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let log = std::fs::File::options().create(true).append(true).open(dir.join(format!("{name}.log"))).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "what_was_promised_survives", "--nocapture"])
            .env(ARGUMENTS, format!("{name} {}", dir.display()))
            .stdin(Stdio::from(OwnedFd::from(input)))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        Node { child: child.unwrap(), socket, run_dir: run_dir(dir, name) }
    }

    /// Has its application make these requests, all in one turn.
    pub(crate) fn ask(&mut self, wishes: &[Wish]) {
        let words: Vec<u8> = wishes.iter().flat_map(|w| w.emit()).collect();
        self.socket.write_all(&words).unwrap();
    }

    /// Waits until so many more of the requests are complete.
    pub(crate) fn wait(&mut self, requests: usize) {
        let mut results = vec![0; requests];
        self.socket.read_exact(&mut results).expect("requests complete");
        assert!(results.iter().all(|ok| *ok == 1), "requests succeed: {results:?}");
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// After [`Node::kill`].
    pub(crate) fn bury(&mut self) {
        let _ = self.child.wait();
    }

    fn client(&self) -> Option<control::client::Client> {
        control::client::Client::connect(&control::client::socket_path(&self.run_dir, "r0"), Some(PATIENCE)).ok()
    }

    pub(crate) fn command(&self, command: control::Command) {
        self.client().expect("it answers").command(command).unwrap();
    }

    /// Are both disks UpToDate, as this node sees it, and nothing is being copied?
    pub(crate) fn is_settled(&self) -> bool {
        let Some(status) = self.client().and_then(|mut c| c.status().ok()) else { return false };
        let own = status.devices.iter().all(|d| d.disk == control::DiskState::UpToDate);
        let mut devices = status.connections.iter().flat_map(|c| &c.peer_devices);
        let peers = devices.all(|d| {
            d.peer_disk == control::DiskState::UpToDate && d.replication == control::ReplicationState::Established
        });
        own && peers && !status.connections.is_empty()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        self.bury();
    }
}
