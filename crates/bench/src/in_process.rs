//! The load inside a node's own loop: no sockets and no system calls between the application and replication.
//!
//! The node is a process of its own (`urbd-lab bench node`). Its standard input is a socket on which workloads come and
//! outcomes go, each one line of JSON.

use crate::error::{Error, Result};
use crate::target::Target;
use crate::workload::{Act, Load, Outcome, Request, Workload};
use engine::{Application, Errno, Kind};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use units::VolumeNr;

/// The volume that is used.
const VOLUME: VolumeNr = VolumeNr(0);
/// An outcome takes this much longer than its workload lasts, at most.
const PATIENCE: Duration = Duration::from_secs(600);

/// The node's side: an application in its loop.
pub struct Inside {
    socket: UnixStream,
    input: Vec<u8>,
    size: u64,
    load: Option<Load>,
    /// When the present turn of the loop began, in nanoseconds.
    now: u64,
}

impl Inside {
    /// Takes workloads from `socket`.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Inside {
        Inside { socket: socket.into(), input: Vec::new(), size: 0, load: None, now: 0 }
    }

    fn start(&mut self, line: &[u8]) {
        let workload = serde_json::from_slice::<Workload>(line).map_err(|e| e.to_string());
        match workload.and_then(|w| Load::new(w, self.size)) {
            Ok(load) => self.load = Some(load),
            Err(what) => self.answer(&Outcome { errors: 1, first_error: Some(what), ..Outcome::default() }),
        }
    }

    fn answer(&mut self, outcome: &Outcome) {
        let mut line = serde_json::to_vec(outcome).unwrap_or_default();
        line.push(b'\n');
        // Whoever asked is gone: nobody is left to tell.
        let _ = self.socket.write_all(&line);
    }
}

impl Application for Inside {
    fn descriptor(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    fn on_readable(&mut self) {
        let mut part = [0; 4096];
        let Ok(n @ 1..) = self.socket.read(&mut part) else {
            // Without whoever measures, the node has nothing to live for.
            std::process::exit(0);
        };
        self.input.extend_from_slice(&part[..n]);
        while let Some(end) = self.input.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            self.start(&line);
        }
    }

    fn on_turn(&mut self, now: units::Instant) {
        self.now = now.0;
    }

    fn on_device(&mut self, volume: VolumeNr, size: u64) {
        if volume == VOLUME {
            self.size = size;
        }
    }

    fn next(&mut self) -> Option<(VolumeNr, engine::Request)> {
        let load = self.load.as_mut()?;
        let request = load.next(self.now);
        if request.is_none() && load.is_over() {
            let outcome = self.load.take()?.into_outcome();
            self.answer(&outcome);
        }
        request.map(|r| (VOLUME, to_engine(&r)))
    }

    fn fill(&mut self, request: &engine::Request, payload: &mut [u8]) {
        if let Some(load) = &self.load {
            let request =
                Request { tag: request.tag as u32, act: Act::Write, offset: request.offset, len: request.len };
            load.fill(&request, payload);
        }
    }

    fn on_done(&mut self, request: &engine::Request, result: Result<(), Errno>, data: &[u8]) {
        if let Some(load) = &mut self.load {
            load.done(self.now, request.tag as u32, result.map_err(|e| e.to_string()), data);
        }
    }
}

fn to_engine(r: &Request) -> engine::Request {
    let kind = match r.act {
        Act::Read => Kind::Read,
        Act::Write => Kind::Write,
        Act::Flush => Kind::Flush,
    };
    engine::Request { tag: u64::from(r.tag), kind, offset: r.offset, len: r.len, fua: false }
}

/// The measuring side.
pub struct InProcess {
    socket: BufReader<UnixStream>,
}

impl InProcess {
    /// Our end, and what becomes the node's standard input.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn pair() -> Result<(InProcess, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair().map_err(Error::io("a pair of sockets"))?;
        ours.set_read_timeout(Some(PATIENCE)).map_err(Error::io("a time limit"))?;
        Ok((InProcess { socket: BufReader::new(ours) }, theirs.into()))
    }
}

impl Target for InProcess {
    fn run(&mut self, workload: &Workload) -> Result<Outcome> {
        let mut line = serde_json::to_vec(workload).map_err(|e| Error::new(e.to_string()))?;
        line.push(b'\n');
        self.socket.get_mut().write_all(&line).map_err(Error::io("asking the node"))?;
        let mut answer = String::new();
        let n = self.socket.read_line(&mut answer).map_err(Error::io("waiting for the node's outcome"))?;
        if n == 0 {
            return Err(Error::new("the node ended in the middle of a measurement"));
        }
        serde_json::from_str(&answer).map_err(|e| Error::new(format!("the node's outcome is not understood: {e}")))
    }
}
