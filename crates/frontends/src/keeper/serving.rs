//! The keeper's process.

use super::answering::Answering;
use super::{FACTS, Heard, Kind, PATIENCE, Place, TOLD, Word, hear, message, text};
use crate::shared::Shared;
use crate::sys;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a keeper that nobody speaks to looks whether anybody still could.
const IDLE: Duration = Duration::from_secs(30);
/// Those who watch whose end is noticed at once.
const WATCHERS: usize = 8;

/// Is the keeper's process: takes orders until it is told to end. What it holds is then closed, and the socket removed.
/// If somebody else removes the socket it ends, too, as soon as nobody watches it: it can never be asked again.
///
/// # Errors
/// If nothing can be accepted any more.
pub fn serve(listener: &UnixListener) -> io::Result<()> {
    let path = path_of(listener);
    let own = path.as_deref().and_then(identity);
    let mut serving = Serving {
        path,
        // Whoever is killed closes in the order of the numbers: the connection has to go before the devices, whose
        // last close waits for it.
        first: Some(std::fs::File::open("/dev/null")?.into()),
        held: Vec::with_capacity(64),
        watchers: Vec::with_capacity(2 * WATCHERS),
        answering: Answering::default(),
        told: None,
    };
    let mut looked = Instant::now();
    loop {
        let ready = serving.wait(listener.as_fd());
        serving.forget_watchers();
        serving.answer();
        if !ready {
            if serving.watchers.is_empty() && looked.elapsed() >= IDLE {
                looked = Instant::now();
                if serving.path.as_deref().and_then(identity) != own {
                    return Ok(());
                }
            }
            continue;
        }
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            // A client that gave up, or no descriptors left: neither is a reason to let go of what is held.
            Err(e) if transient(&e) => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            Err(e) => return Err(e),
        };
        // Who says nothing, or nonsense, is not answered.
        match serving.obey(&socket) {
            Ok(Next::End) => {
                // A later keeper's socket stays.
                if let Some(path) = serving.path.filter(|path| identity(path) == own) {
                    let _ = std::fs::remove_file(path);
                }
                // In the order of their places.
                serving.held.into_iter().for_each(drop);
                return Ok(());
            }
            Ok(Next::Watch) => serving.watchers.push(socket),
            Ok(Next::Listen) | Err(_) => {}
        }
    }
}

struct Serving {
    /// Of its socket.
    path: Option<PathBuf>,
    /// Has a lower number than all that comes later.
    first: Option<OwnedFd>,
    held: Vec<(Place, OwnedFd)>,
    watchers: Vec<UnixStream>,
    answering: Answering,
    /// The text that it has, locked.
    told: Option<Shared>,
}

enum Next {
    Listen,
    Watch,
    End,
}

impl Serving {
    /// Waits for an order, the end of a watcher, or something to answer. Is there an order?
    fn wait(&self, listener: BorrowedFd<'_>) -> bool {
        let connection = self.answering.awaits(&self.held, !self.watchers.is_empty());
        let others = connection.into_iter().chain(self.watchers.iter().map(AsFd::as_fd));
        sys::wait_for_any(listener, others, self.answering.look_in().unwrap_or(IDLE))
    }

    /// If the last one is gone no process is there any more.
    fn forget_watchers(&mut self) {
        if !self.watchers.is_empty() {
            self.watchers.retain(is_open);
            if self.watchers.is_empty() {
                self.answering.begin(&self.held);
            }
        }
    }

    /// Answers in the place of a process that does not. One that is there has to know when something was put aside.
    fn answer(&mut self) {
        if self.answering.go_on(&self.held, !self.watchers.is_empty()) {
            self.watchers.iter().for_each(sys::wake);
        }
    }

    fn obey(&mut self, socket: &UnixStream) -> io::Result<Next> {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let Some(Heard { word, place, descriptor, knows }) = hear(socket)? else { return Ok(Next::Listen) };
        let mut next = Next::Listen;
        match (word, descriptor) {
            (Word::Put, Some(descriptor)) => self.put(place, descriptor)?,
            (Word::Release, None) => self.release(place),
            (Word::Fetch, None) => {
                if !knows {
                    // It reads the connection without saying so, and says nothing of its files.
                    self.answering.end();
                    self.release(FACTS);
                }
                for (place, descriptor) in &self.held {
                    sys::send(socket, &message(Word::Item, *place), Some(descriptor.as_fd()))?;
                }
            }
            (Word::Watch, None) => next = Next::Watch,
            (Word::Take, None) => {
                self.answering.end();
                next = Next::Watch;
            }
            (Word::End, None) => next = Next::End,
            (Word::Move, Some(to)) if self.move_to(to.as_fd()).is_ok() => {}
            _ => return sys::send(socket, &message(Word::Refused, place), None).map(|()| next),
        }
        sys::send(socket, &message(Word::Done, place), None).map(|()| next)
    }

    fn put(&mut self, place: Place, descriptor: OwnedFd) -> io::Result<()> {
        let descriptor = match self.first.take_if(|_| place.kind == Kind::Connection) {
            Some(first) => sys::duplicate_onto(descriptor.as_fd(), first)?,
            None => descriptor,
        };
        self.answering.learn(place, descriptor.as_fd());
        if place == TOLD {
            let before = std::mem::replace(&mut self.told, text::hold(descriptor.as_fd()));
            before.into_iter().for_each(Shared::unmap);
        }
        match self.held.binary_search_by_key(&place, |(place, _)| *place) {
            Ok(at) => self.held[at].1 = descriptor,
            Err(at) => self.held.insert(at, (place, descriptor)),
        }
        Ok(())
    }

    fn move_to(&mut self, to: BorrowedFd<'_>) -> io::Result<()> {
        let to = PathBuf::from(text::read_text(to)?);
        let from = self.path.as_ref().ok_or(io::ErrorKind::NotFound)?;
        std::fs::rename(from, &to)?;
        self.path = Some(to);
        Ok(())
    }

    fn release(&mut self, place: Place) {
        self.answering.forget(place);
        if place == TOLD {
            self.told.take().into_iter().for_each(Shared::unmap);
        }
        self.held.retain(|(other, _)| *other != place);
    }
}

fn transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Is the other end there? It never says anything.
pub(super) fn is_open(socket: &UnixStream) -> bool {
    !sys::wait_for(socket, Duration::ZERO)
}

fn path_of(listener: &UnixListener) -> Option<PathBuf> {
    Some(listener.local_addr().ok()?.as_pathname()?.to_owned())
}

/// What a path leads to.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}
