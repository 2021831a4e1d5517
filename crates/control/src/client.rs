//! A blocking client for one resource's control socket.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::frame::{Decoder, FrameError, encode};
use crate::message::{Command, Event, Failure, Reply, Request, VERSION};
use crate::status::ResourceStatus;
use crate::successor::is_coming;
use crate::what_if::WhatIf;

pub use crate::successor::socket_path;

/// How long a process that hangs up is taken to be dying rather than broken.
const DYING: Duration = Duration::from_secs(5);

/// How long a process may need to take a resource over from another one.
const TAKING_OVER: Duration = Duration::from_secs(10);
/// How often it is looked whether it has.
const PAUSE: Duration = Duration::from_millis(5);

/// A connection to a running resource, after the greeting.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    decoder: Decoder,
    path: PathBuf,
    timeout: Option<Duration>,
    /// Process id of the running resource.
    pub pid: u32,
}

/// Why a client did not get what it asked for.
#[derive(Debug)]
pub enum ClientError {
    /// Nothing listens on the socket: the resource does not run.
    NotRunning(PathBuf),
    /// This user may not connect to the socket.
    Denied(PathBuf),
    /// The socket failed, or no answer came in time.
    Io(io::Error),
    /// The other side sent something that is not understood.
    Frame(FrameError),
    /// The other side ended the connection.
    Closed,
    /// The answer does not fit the question.
    Unexpected(String),
    /// The resource refused.
    Refused(Failure),
    /// The process leaves the resource to another one, and none has come in time.
    Leaving,
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::NotRunning(path) => write!(f, "nothing listens on {}", path.display()),
            ClientError::Denied(path) => write!(f, "{}: permission denied", path.display()),
            ClientError::Io(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                f.write_str("no answer from the running process in time")
            }
            ClientError::Io(e) => write!(f, "control socket: {e}"),
            ClientError::Frame(e) => write!(f, "control socket: {e}"),
            ClientError::Closed => f.write_str("the running process ended the connection"),
            ClientError::Unexpected(what) => write!(f, "unexpected answer on the control socket: {what}"),
            ClientError::Refused(failure) => failure.fmt(f),
            ClientError::Leaving => f.write_str("the running process leaves the resource to another one"),
        }
    }
}

impl ClientError {
    /// Whether the other side went away in the middle.
    fn hung_up(&self) -> bool {
        match self {
            ClientError::Closed => true,
            ClientError::Io(e) => matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe),
            _ => false,
        }
    }

    /// Whether the other side went away before it had read what it was asked.
    fn was_not_read(&self) -> bool {
        self.hung_up() && !matches!(self, ClientError::Closed)
    }
}

/// May the request be put to the process that comes after the one that hung up?
fn may_be_repeated(request: &Request, e: &ClientError) -> bool {
    match request {
        _ if matches!(e, ClientError::Leaving) => true,
        // They are meant for that process.
        Request::Hello { .. } | Request::Command(Command::HandOver | Command::Down { .. }) => false,
        // Twice is as good as once.
        Request::Command(Command::Primary { .. } | Command::Secondary { .. }) => e.hung_up(),
        Request::Command(_) => e.was_not_read(),
        _ => e.hung_up(),
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(e: io::Error) -> Self {
        ClientError::Io(e)
    }
}

impl From<FrameError> for ClientError {
    fn from(e: FrameError) -> Self {
        ClientError::Frame(e)
    }
}

impl Client {
    /// Connects and greets. `timeout` holds for this and for each later answer (`None`: for ever).
    ///
    /// A process that is being killed may still hold its listening socket for a moment: a connection that ends before
    /// the greeting is tried again for up to five seconds, by when the socket refuses and the answer is `NotRunning`.
    /// While a process takes over from another one, it is waited for.
    ///
    /// # Errors
    /// [`ClientError::NotRunning`] if there is no socket or nobody listens on it; otherwise as [`Client::ask`].
    pub fn connect(path: &Path, timeout: Option<Duration>) -> Result<Client, ClientError> {
        let begin = Instant::now();
        // It listens before it is not coming any more: who was refused and is told so looks once more.
        let mut refused = false;
        loop {
            match Client::connect_once(path, timeout) {
                Err(e) if e.hung_up() && begin.elapsed() < DYING => std::thread::sleep(Duration::from_millis(20)),
                Err(ClientError::NotRunning(_)) if begin.elapsed() < TAKING_OVER && is_coming(path) => {
                    refused = false;
                    std::thread::sleep(PAUSE);
                }
                Err(ClientError::NotRunning(_)) if !refused => refused = true,
                other => return other,
            }
        }
    }

    fn connect_once(path: &Path, timeout: Option<Duration>) -> Result<Client, ClientError> {
        let stream = UnixStream::connect(path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotRunning(path.to_owned()),
            io::ErrorKind::PermissionDenied => ClientError::Denied(path.to_owned()),
            _ => ClientError::Io(e),
        })?;
        stream.set_read_timeout(timeout)?;
        stream.set_write_timeout(timeout)?;
        let mut client = Client { stream, decoder: Decoder::default(), path: path.to_owned(), timeout, pid: 0 };
        match client.ask_once(&Request::Hello { version: VERSION })? {
            Reply::Hello { version: VERSION, pid, .. } => client.pid = pid,
            other => return Err(ClientError::Unexpected(format!("{other:?}"))),
        }
        Ok(client)
    }

    /// Changes how long an answer may take (`None`: for ever).
    ///
    /// # Errors
    /// When the socket refuses it.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), ClientError> {
        self.timeout = timeout;
        Ok(self.stream.set_read_timeout(timeout)?)
    }

    /// Sends a request and waits for its reply; a reply of [`Reply::Error`] becomes an error.
    ///
    /// A process that takes over from another one answers in its place: questions, and commands that the other has not
    /// read, or that do no harm twice. What else was read and not answered may have been done; that is for the caller
    /// to find out.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn ask(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let begin = Instant::now();
        loop {
            match self.ask_once(request) {
                Err(e) if may_be_repeated(request, &e) && begin.elapsed() < TAKING_OVER => {
                    std::thread::sleep(PAUSE);
                    *self = Client::connect(&self.path, self.timeout)?;
                }
                other => return other,
            }
        }
    }

    fn ask_once(&mut self, request: &Request) -> Result<Reply, ClientError> {
        self.stream.write_all(&encode(request))?;
        match self.receive()? {
            Reply::Error(failure) => Err(ClientError::Refused(failure)),
            Reply::Leaving => Err(ClientError::Leaving),
            reply => Ok(reply),
        }
    }

    /// The present status.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn status(&mut self) -> Result<ResourceStatus, ClientError> {
        match self.ask(&Request::Status)? {
            Reply::Status(status) => Ok(status),
            other => Err(ClientError::Unexpected(format!("{other:?}"))),
        }
    }

    /// What this command would take away, or each single loss. Nothing, if the process is older and does not know.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn what_if(&mut self, before: Option<Command>) -> Result<Vec<WhatIf>, ClientError> {
        match self.ask(&Request::WhatIf { before }) {
            Ok(Reply::WhatIf(all)) => Ok(all),
            Ok(other) => Err(ClientError::Unexpected(format!("{other:?}"))),
            Err(e) => Err(e),
        }
    }

    /// Runs a command; returns the notes for the administrator.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn command(&mut self, command: Command) -> Result<Vec<String>, ClientError> {
        match self.ask(&Request::Command(command))? {
            Reply::Ok { info } => Ok(info),
            other => Err(ClientError::Unexpected(format!("{other:?}"))),
        }
    }

    /// Turns the connection into an event stream. `since_start`: with what has happened since the process began with
    /// nothing, if that is not long ago.
    ///
    /// # Errors
    /// When the request cannot be sent.
    pub fn subscribe(self, statistics: bool, since_start: bool) -> Result<EventStream, ClientError> {
        self.listen(&Request::Events { now: false, statistics, since_start, confirms: false })
    }

    /// The same for who passes the events on: a command is answered when all that it has led to was passed on, so each
    /// [`Event::Confirm`] is to be followed by [`EventStream::confirm`] as soon as that is so.
    ///
    /// # Errors
    /// When the request cannot be sent.
    pub fn pass_on(self, statistics: bool, since_start: bool) -> Result<EventStream, ClientError> {
        self.listen(&Request::Events { now: false, statistics, since_start, confirms: true })
    }

    fn listen(mut self, request: &Request) -> Result<EventStream, ClientError> {
        self.stream.write_all(&encode(request))?;
        Ok(EventStream { client: self })
    }

    fn receive(&mut self) -> Result<Reply, ClientError> {
        let mut chunk = [0; 65536];
        loop {
            if let Some(reply) = self.decoder.message()? {
                return Ok(reply);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(n) => self.decoder.push(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// A connection that receives events.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
}

impl EventStream {
    /// All events before the [`Event::Confirm`] of that number have been passed on.
    ///
    /// # Errors
    /// When that cannot be sent.
    pub fn confirm(&mut self, number: u64) -> Result<(), ClientError> {
        Ok(self.client.stream.write_all(&encode(&Request::Confirmed { number }))?)
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// [`ClientError::Closed`] at the end of the stream; [`ClientError::Io`] with kind `WouldBlock` after `timeout`.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Event, ClientError> {
        self.client.set_timeout(timeout)?;
        match self.client.receive()? {
            Reply::Event(event) => Ok(event),
            Reply::Leaving => Err(ClientError::Closed),
            Reply::Error(failure) => Err(ClientError::Refused(failure)),
            other => Err(ClientError::Unexpected(format!("{other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use crate::message::ErrorCode;

    /// Answers each request of one connection with the next scripted reply.
    fn serve(listener: UnixListener, replies: Vec<Reply>) -> thread::JoinHandle<Vec<Request>> {
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            let mut chunk = [0; 1000];
            for reply in replies {
                while let Ok(None) = decoder.message::<Request>().map(|r| r.map(|r| seen.push(r))) {
                    let n = stream.read(&mut chunk).unwrap();
                    decoder.push(&chunk[..n]);
                }
                stream.write_all(&encode(&reply)).unwrap();
            }
            seen
        })
    }

    #[test]
    fn greets_commands_and_reports_refusals() {
        let dir = tempfile::tempdir().unwrap();
        let path = socket_path(dir.path(), "r0");
        assert!(matches!(Client::connect(&path, None), Err(ClientError::NotRunning(_))));

        let listener = UnixListener::bind(&path).unwrap();
        let refusal = Failure::new(ErrorCode::NO_UP_TO_DATE_DISK, "r0").with_hint("connect first");
        let server = serve(
            listener,
            vec![
                Reply::Hello { version: VERSION, program: "test".into(), pid: 7, resource: "r0".into() },
                Reply::Ok { info: vec!["note".into()] },
                Reply::Error(refusal.clone()),
            ],
        );
        let mut client = Client::connect(&path, Some(Duration::from_secs(30))).unwrap();
        assert_eq!(client.pid, 7);
        assert_eq!(client.command(Command::Secondary { force: false }).unwrap(), ["note"]);
        match client.command(Command::Primary { force: false }) {
            Err(ClientError::Refused(failure)) => assert_eq!(failure, refusal),
            other => panic!("{other:?}"),
        }
        assert_eq!(server.join().unwrap().len(), 3);
    }

    #[test]
    fn a_process_that_dies_before_it_greets_is_not_running() {
        let dir = tempfile::tempdir().unwrap();
        let path = socket_path(dir.path(), "r0");
        let listener = UnixListener::bind(&path).unwrap();
        let dying = thread::spawn(move || {
            // One that hangs up after the request, one that is still in the backlog when the socket goes.
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1]).unwrap();
            drop(stream);
            thread::sleep(Duration::from_millis(100));
        });
        assert!(matches!(Client::connect(&path, None), Err(ClientError::NotRunning(_))));
        dying.join().unwrap();
    }
}
