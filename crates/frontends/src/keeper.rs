//! The keeper: a process that only holds descriptors, so that what they stand for outlives the process that serves it.
//!
//! It listens on a socket and takes, gives and closes descriptors as it is asked: the connection to the kernel's FUSE,
//! loop devices on its files, the sockets on which NBD clients find a server, memory with what the process was told.
//! It reads no configuration and does no
//! I/O on what it holds, with one exception: while no process is there it answers who only looks at the files and
//! doors, from what the last process has said of them (`answering`). All who watch it are gone then; the next one
//! takes the connection before it reads from it ([`Keeper::take`]). It does so, too, beside a process that does not
//! work while the kernel has something for it.
//!
//! Whoever serves a resource (one process at a time; a lock of that process sees to it) puts its descriptors here as
//! soon as it has them. When it dies the next one fetches them and goes on: a descriptor that was passed is the same
//! open file, so the kernel notices nothing.
//!
//! One connection carries one order ([`MESSAGE`] bytes, a descriptor with the first of them) and its answer. There is
//! nothing that a keeper of another version could understand differently: an order that it does not know it refuses.

mod answering;
mod serving;
mod text;

pub use serving::serve;
pub use text::read_text;

use crate::sys;
use std::fs::Permissions;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Bytes of an order, and of each message of its answer: version, what, kind, a zero, number (little endian).
pub const MESSAGE: usize = 8;

/// The version of the protocol: the first byte of every message.
pub const VERSION: u8 = 1;

/// How long the other end may take to say something.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a kept descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The connection to the kernel's FUSE; its number is the version of what the files promise
    /// ([`CONTRACT`](crate::fuse::CONTRACT)). Closed first: with it gone nothing waits for an answer any more.
    Connection,
    /// The root directory of the FUSE file system.
    Root,
    /// A loop device on the file of the volume with this number.
    Device,
    /// The socket that NBD clients of the volume with this number connect to.
    Listener,
    /// Something that the last process has to say to the next one, which needs no descriptor (any will do).
    Note,
    /// Which loop device stands on the file of the volume with this number, held or not: a descriptor that names it
    /// without being a use of it.
    Tag,
}

/// A place for one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// What it is.
    pub kind: Kind,
    /// Which one of them.
    pub number: u32,
}

/// What is asked, and what is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Put,
    Release,
    Fetch,
    Watch,
    End,
    /// Answers: a descriptor of many, all is done, no.
    Item,
    Done,
    Refused,
    /// From now on the connection is read by who says this, and not by the keeper.
    Take,
    /// Its socket gets another path, which the descriptor's text says.
    Move,
}

const WORDS: [Word; 10] = [
    Word::Put,
    Word::Release,
    Word::Fetch,
    Word::Watch,
    Word::End,
    Word::Item,
    Word::Done,
    Word::Refused,
    Word::Take,
    Word::Move,
];
/// In the place of the zero, with which programs speak that do not know that a keeper answers anything: who fetches
/// says by it that he takes the connection before he reads from it, and the keeper that it has to be taken.
const KNOWS: u8 = 1;
const KINDS: [Kind; 6] = [Kind::Connection, Kind::Root, Kind::Device, Kind::Listener, Kind::Note, Kind::Tag];
/// What the last process has said of its files: what the keeper answers with while none is there.
pub const FACTS: Place = Place { kind: Kind::Note, number: 17 };
/// What it has read and not answered, if the kernel does not hand it out again.
pub const REQUESTS: Place = Place { kind: Kind::Note, number: 16 };
/// The same of what the keeper has read beside a process that did not work.
pub const LEFT: Place = Place { kind: Kind::Note, number: 18 };
/// What the last process was told ([`Keeper::put_text`]).
pub const TOLD: Place = Place { kind: Kind::Note, number: 19 };
/// For orders that name no place.
const NO_PLACE: Place = Place { kind: Kind::Connection, number: 0 };

/// Where a keeper listens. All copies follow it when it is moved.
#[derive(Clone, Debug)]
pub struct Keeper {
    path: Arc<RwLock<PathBuf>>,
}

impl Keeper {
    /// The keeper of a resource: `RUN_DIR/RES.keeper`.
    #[must_use]
    pub fn of(run_dir: &Path, resource: &str) -> Keeper {
        Keeper { path: Arc::new(RwLock::new(path_of(run_dir, resource))) }
    }

    /// The socket.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.path.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its resource has another name: its socket moves, and what stands in the way there goes. It is at one of the two
    /// places at any time.
    ///
    /// # Errors
    /// As [`Keeper::put`]; one of an older version does not do it.
    pub fn rename(&self, run_dir: &Path, resource: &str) -> io::Result<()> {
        let to = path_of(run_dir, resource);
        let path = to.to_str().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "its path is no text"))?;
        text::with_text(path, |text| self.order(Word::Move, NO_PLACE, Some(text)).map(drop))?;
        *self.path.write().unwrap_or_else(PoisonError::into_inner) = to;
        Ok(())
    }

    /// Is there one? A hanging one counts.
    #[must_use]
    pub fn is_there(&self) -> bool {
        UnixStream::connect(self.path()).is_ok()
    }

    /// Makes the socket. What a dead keeper left there is replaced.
    ///
    /// # Errors
    /// If there is a keeper (`AddrInUse`), or the socket cannot be made.
    pub fn bind(&self) -> io::Result<UnixListener> {
        if self.is_there() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "there is a keeper already"));
        }
        let path = self.path();
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => {
                let listener = UnixListener::bind(&path)?;
                // Who can connect to it gets what it has: the secrets, too.
                std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
                Ok(listener)
            }
        }
    }

    /// Starts a keeper: `command` must come to [`serve`] with its standard input. It has a session of its own, is no
    /// child of ours, and gets nothing of us but that and the environment.
    ///
    /// # Errors
    /// If the socket or the process cannot be made.
    pub fn start(&self, mut command: Command) -> io::Result<()> {
        let listener = self.bind()?;
        command.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        sys::orphan(&mut command);
        let ended = command.spawn().and_then(|mut child| child.wait());
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(io::Error::other(format!("it ended with {status}"))),
            Err(e) => Err(e),
        }
        .inspect_err(|_| drop(std::fs::remove_file(self.path())))
    }

    /// Gives it a descriptor. One that it has for the same place is closed.
    ///
    /// # Errors
    /// If there is no keeper, or it refuses.
    pub fn put(&self, place: Place, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.order(Word::Put, place, Some(descriptor)).map(drop)
    }

    /// Makes it close a descriptor. It is no error if it has none.
    ///
    /// # Errors
    /// As [`Keeper::put`].
    pub fn release(&self, place: Place) -> io::Result<()> {
        self.order(Word::Release, place, None).map(drop)
    }

    /// Copies of all that it holds, in the order of their places.
    ///
    /// # Errors
    /// As [`Keeper::put`]; `InvalidData` if a program of another version has put something there that this one does
    /// not know.
    pub fn fetch(&self) -> io::Result<Vec<(Place, OwnedFd)>> {
        self.order(Word::Fetch, NO_PLACE, None).map(|(_, held)| held)
    }

    /// From now on the keeper does not read the connection, until all who have said this, or watch it, are gone: the
    /// descriptor is to be kept as long.
    ///
    /// # Errors
    /// As [`Keeper::put`]. One of an older version does not know it, and does not read anything.
    pub fn take(&self) -> io::Result<OwnedFd> {
        self.order(Word::Take, NO_PLACE, None).map(|(socket, _)| socket.into())
    }

    /// A descriptor that becomes readable when the keeper ends, or has put something aside ([`is_there_still`]).
    ///
    /// # Errors
    /// As [`Keeper::put`].
    pub fn watch(&self) -> io::Result<OwnedFd> {
        self.order(Word::Watch, NO_PLACE, None).map(|(socket, _)| socket.into())
    }

    /// Ends it: what it holds is closed. Returns when it is gone.
    ///
    /// # Errors
    /// If there is none, or it does not end in time.
    pub fn end(&self) -> io::Result<()> {
        let (socket, _) = self.order(Word::End, NO_PLACE, None)?;
        match sys::receive(&socket, &mut [0; MESSAGE])? {
            (0, _) => Ok(()),
            _ => Err(io::Error::other("the keeper has more to say after its end")),
        }
    }

    fn order(
        &self,
        word: Word,
        place: Place,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<(UnixStream, Vec<(Place, OwnedFd)>)> {
        let socket = UnixStream::connect(self.path())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        sys::send(&socket, &message(word, place), descriptor)?;
        let mut held = Vec::new();
        loop {
            match hear(&socket)? {
                // What an older one has of this says nothing: it does not read.
                Some(Heard { word: Word::Item, place: FACTS, knows: false, .. }) => {}
                Some(Heard { word: Word::Item, place, descriptor: Some(descriptor), .. }) => {
                    held.push((place, descriptor));
                }
                Some(Heard { word: Word::Done, .. }) => return Ok((socket, held)),
                Some(Heard { word: Word::Refused, .. }) => return Err(io::Error::other("the keeper does not do that")),
                _ => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the keeper ended")),
            }
        }
    }
}

fn path_of(run_dir: &Path, resource: &str) -> PathBuf {
    run_dir.join(format!("{resource}.keeper"))
}

/// To be asked when the descriptor of [`Keeper::watch`] is readable: false if the keeper has ended. Else it may have
/// put something aside ([`Facts::aside`](crate::fuse::facts::Facts::aside)).
#[must_use]
pub fn is_there_still(watch: BorrowedFd<'_>) -> bool {
    sys::is_woken(watch)
}

fn message(word: Word, place: Place) -> [u8; MESSAGE] {
    let [a, b, c, d] = place.number.to_le_bytes();
    let knows = if matches!(word, Word::Fetch | Word::Item) { KNOWS } else { 0 };
    [VERSION, word as u8, place.kind as u8, knows, a, b, c, d]
}

/// A message.
struct Heard {
    word: Word,
    place: Place,
    descriptor: Option<OwnedFd>,
    /// See [`KNOWS`].
    knows: bool,
}

/// The next message; `None` if the other end is gone.
///
/// # Errors
/// If it cannot be received; `InvalidData` if another version may understand it.
fn hear(socket: &UnixStream) -> io::Result<Option<Heard>> {
    let mut bytes = [0; MESSAGE];
    let (n, descriptor) = sys::receive(socket, &mut bytes)?;
    let [version, word, kind, knows, a, b, c, d] = bytes;
    if n < MESSAGE {
        return Ok(None);
    }
    let word = WORDS.get(usize::from(word)).filter(|_| version == VERSION);
    let Some((word, kind)) = word.zip(KINDS.get(usize::from(kind))) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not understood, perhaps of another version"));
    };
    let place = Place { kind: *kind, number: u32::from_le_bytes([a, b, c, d]) };
    Ok(Some(Heard { word: *word, place, descriptor, knows: knows == KNOWS }))
}

#[cfg(test)]
mod tests {
    use super::serving::is_open;
    use super::*;
    use std::fs::File;
    use std::io::{Seek, Write};
    use std::os::fd::AsFd;

    fn started() -> (tempfile::TempDir, Keeper, std::thread::JoinHandle<io::Result<()>>) {
        let directory = tempfile::tempdir().unwrap();
        let keeper = Keeper::of(directory.path(), "r0");
        let listener = keeper.bind().unwrap();
        (directory, keeper, std::thread::spawn(move || serve(&listener)))
    }

    fn place(kind: Kind, number: u32) -> Place {
        Place { kind, number }
    }

    #[test]
    fn what_is_put_is_fetched_until_it_is_released() {
        let (_directory, keeper, thread) = started();
        assert!(keeper.fetch().unwrap().is_empty());
        let (mut a, b) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        keeper.put(place(Kind::Device, 3), b.as_fd()).unwrap();
        keeper.put(place(Kind::Connection, 1), a.as_fd()).unwrap();
        let mut held = keeper.fetch().unwrap();
        let places: Vec<Place> = held.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, [place(Kind::Connection, 1), place(Kind::Device, 3)]);
        File::from(held.remove(0).1).write_all(b"12345").unwrap();
        assert_eq!(a.stream_position().unwrap(), 5, "the same open file");
        keeper.release(place(Kind::Connection, 1)).unwrap();
        keeper.release(place(Kind::Connection, 7)).unwrap();
        assert_eq!(keeper.fetch().unwrap().len(), 1);
        keeper.put(place(Kind::Device, 3), a.as_fd()).unwrap();
        assert_eq!(keeper.fetch().unwrap().len(), 1, "replaced");
        keeper.end().unwrap();
        thread.join().unwrap().unwrap();
        assert!(!keeper.is_there() && !keeper.path().exists());
    }

    #[test]
    fn there_is_one_keeper() {
        let (_directory, keeper, thread) = started();
        assert_eq!(keeper.bind().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        keeper.end().unwrap();
        thread.join().unwrap().unwrap();
        // A dead one's socket is no obstacle.
        drop(UnixListener::bind(keeper.path()).unwrap());
        assert!(keeper.path().exists() && !keeper.is_there());
        keeper.bind().unwrap();
    }

    #[test]
    fn it_moves_with_its_resource_and_ends_where_it_is() {
        let (directory, keeper, thread) = started();
        let (copy, before) = (keeper.clone(), keeper.path());
        keeper.put(place(Kind::Note, 3), tempfile::tempfile().unwrap().as_fd()).unwrap();
        let watch = UnixStream::from(keeper.watch().unwrap());
        keeper.rename(directory.path(), "r1").unwrap();
        assert_eq!(copy.path(), directory.path().join("r1.keeper"));
        assert!(!before.exists() && copy.is_there() && is_open(&watch));
        assert_eq!(copy.fetch().unwrap().len(), 1);
        // The name is another one's now.
        let other = Keeper::of(directory.path(), "r0");
        let listener = other.bind().unwrap();
        copy.end().unwrap();
        thread.join().unwrap().unwrap();
        assert!(!copy.path().exists() && before.exists());
        drop(listener);
    }

    #[test]
    fn it_stays_where_it_cannot_move() {
        let (directory, keeper, thread) = started();
        assert!(keeper.rename(&directory.path().join("nowhere"), "r1").is_err());
        assert!(keeper.is_there() && keeper.path().exists());
        keeper.end().unwrap();
        thread.join().unwrap().unwrap();
    }

    #[test]
    fn its_end_is_noticed() {
        let (_directory, keeper, thread) = started();
        let watch = UnixStream::from(keeper.watch().unwrap());
        assert!(is_open(&watch));
        keeper.end().unwrap();
        thread.join().unwrap().unwrap();
        // Another test's child has a copy of the keeper's end until it runs its program.
        assert!(sys::wait_for(&watch, Duration::from_secs(10)));
        assert!(!is_open(&watch));
        assert!(keeper.fetch().is_err());
    }

    #[test]
    fn what_another_version_keeps_is_not_taken_for_a_dead_keeper() {
        let (_directory, keeper, thread) = started();
        keeper.end().unwrap();
        thread.join().unwrap().unwrap();
        let listener = keeper.bind().unwrap();
        let newer = std::thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            hear(&socket).unwrap();
            let mut item = message(Word::Item, NO_PLACE);
            item[2] = 99;
            sys::send(&socket, &item, Some(tempfile::tempfile().unwrap().as_fd())).unwrap();
        });
        assert_eq!(keeper.fetch().unwrap_err().kind(), io::ErrorKind::InvalidData);
        newer.join().unwrap();
        assert_ne!(keeper.fetch().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn nonsense_is_not_obeyed() {
        let (_directory, keeper, thread) = started();
        let file = tempfile::tempfile().unwrap();
        for bytes in [&[][..], b"x", b"\x02\x00\x00\x00\x00\x00\x00\x00", b"\x01\x09\x00\x00\x00\x00\x00\x00"] {
            let mut socket = UnixStream::connect(keeper.path()).unwrap();
            socket.write_all(bytes).unwrap();
            drop(socket);
        }
        // A word that is an answer, a descriptor where none belongs, none where one belongs.
        assert!(keeper.order(Word::Done, NO_PLACE, None).is_err());
        assert!(keeper.order(Word::Fetch, NO_PLACE, Some(file.as_fd())).is_err());
        assert!(keeper.order(Word::Put, NO_PLACE, None).is_err());
        assert!(keeper.fetch().unwrap().is_empty());
        keeper.end().unwrap();
        thread.join().unwrap().unwrap();
    }
}
