//! The file system: what each message asks and how it is answered.

use std::collections::BTreeMap;
use std::ops::Range;

use super::abi::*;
use super::absent::{emit_statfs, root_attr};
use super::door::{Caller, Door, Knock, Question, door_node, door_of};
use super::{PAYLOAD_MAX, SLOT_PAYLOAD_MAX, WRITE_HEADER};
use crate::{Errno, Export, Kind, Request};

/// Requests that the kernel may have in flight in the background: direct I/O of a loop device is such.
const MAX_BACKGROUND: u16 = 512;
pub(super) const NAME_MAX: u32 = 255;

/// What [`Session::parse`] made of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing to do.
    None,
    /// The answer was appended to `out`; it goes out in one `write` of its own.
    Reply,
    /// A request to execute and then answer with [`Session::reply`].
    Request {
        /// [`Export::id`] of the volume.
        volume: u32,
        /// Admitted by the volume's export; the tag is the kernel's unique number.
        request: Request,
        /// Where a write's payload is, in the message or in the slot's payload; else empty.
        payload: Range<usize>,
    },
    /// The kernel is unmounting; the answer was appended to `out`.
    Destroyed,
    /// Somebody asks for a door, and waits for [`Session::let_in`] or [`Session::refuse`].
    Knock(Knock),
    /// Who waits for the answer to the question with this number was interrupted by a signal. There is nothing to
    /// answer, but the question may now be refused.
    Interrupted(u64),
    /// A volume's file was closed for the last time by one of those who had it open; the answer was appended to `out`.
    /// Only of a session with doors.
    Released(u32),
}

/// One mounted file system.
#[derive(Debug)]
pub struct Session {
    exports: Vec<Export>,
    owner: (u32, u32),
    slots: Slots,
    can_resend: bool,
    doors: Option<Doors>,
}

/// The second kind of entries.
#[derive(Debug)]
struct Doors {
    /// What follows the volume's number in the name of its file.
    secret: String,
    open: BTreeMap<u32, Door>,
}

/// Whether requests travel in slots, through an io_uring, rather than as messages on the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slots {
    Unwanted,
    Wanted,
    Agreed,
}

/// How a message is answered at once.
enum Answer {
    Body,
    Data { volume: u32, request: Request, payload: Range<usize> },
    Silence,
    Event(Event),
}

impl Session {
    /// A file system with one file per export, named by what follows the last `/` of the export's name (its volume
    /// number). The files belong to user and group `owner`, who alone may open them.
    pub fn new(exports: Vec<Export>, owner: (u32, u32)) -> Session {
        Session { exports, owner, slots: Slots::Unwanted, can_resend: false, doors: None }
    }

    /// With doors in the place of files. `secret` makes the names of the files ([`Session::file`]).
    #[must_use]
    pub fn with_doors(mut self, secret: String) -> Session {
        self.doors = Some(Doors { secret, open: BTreeMap::new() });
        self
    }

    /// On a connection that the kernel has greeted another process on: whether it hands out unanswered requests once
    /// more was said to that one.
    #[must_use]
    pub fn inherited(mut self, can_resend: bool) -> Session {
        self.can_resend = can_resend;
        self
    }

    /// The name of a volume's file.
    pub fn file(&self, volume: u32) -> Option<String> {
        self.exports.iter().find(|export| export.id == volume).map(|export| self.file_name(export))
    }

    /// Where the volume's door leads to from now on. `None`: there is none, and who asks for it has to be refused.
    pub fn set_door(&mut self, volume: u32, door: Option<Door>) {
        let Some(doors) = &mut self.doors else { return };
        match door {
            Some(door) => drop(doors.open.insert(volume, door)),
            None => drop(doors.open.remove(&volume)),
        }
    }

    /// Where the volume's door leads to.
    pub fn door(&self, volume: u32) -> Option<Door> {
        self.doors.as_ref()?.open.get(&volume).copied()
    }

    /// Answers who asks for a door: here it is. `out` is appended to. If there is none, it is an error.
    pub fn let_in(&self, knock: &Knock, out: &mut Vec<u8>) {
        let Some(door) = self.door(knock.volume) else { return Session::refuse(knock.unique, Errno::ENOENT, out) };
        let start = out.len();
        out.extend_from_slice(&[0; OUT_HEADER]);
        let mut body = Body(out);
        let attr = door.attr(knock.volume);
        match knock.question {
            Question::Name => emit_entry(&attr, &mut body),
            Question::Attributes => emit_attributes(&attr, &mut body),
        }
        let header = out_header((out.len() - start) as u32, None, knock.unique);
        out[start..start + OUT_HEADER].copy_from_slice(&header);
    }

    /// Answers with an error. `out` is appended to.
    pub fn refuse(unique: u64, errno: Errno, out: &mut Vec<u8>) {
        out.extend_from_slice(&out_header(OUT_HEADER as u32, Some(errno), unique));
    }

    /// Asks the kernel, when it greets, to hand over requests in slots ([`Session::parse_slot`]).
    #[must_use]
    pub fn wanting_slots(mut self) -> Session {
        self.slots = Slots::Wanted;
        self
    }

    /// Has the kernel agreed to slots? Then it waits until each of its queues has one (`FUSE_IO_URING_CMD_REGISTER`);
    /// what is not a request (`FORGET`, `INTERRUPT`) still comes as a message.
    pub fn has_slots(&self) -> bool {
        self.slots == Slots::Agreed
    }

    /// Has the kernel said, when it greeted, that it can hand out unanswered requests once more ([`super::resend`])?
    pub fn can_resend(&self) -> bool {
        self.can_resend
    }

    /// The export of volume `id`, to change its size or to make it read-only or writable. That takes effect for the
    /// requests and the `stat` that follow; a file that is open for writing starts to fail with `EPERM`.
    pub fn export_mut(&mut self, id: u32) -> Option<&mut Export> {
        self.exports.iter_mut().find(|export| export.id == id)
    }

    /// A volume has come.
    pub fn add_export(&mut self, export: Export) {
        self.exports.push(export);
    }

    /// A volume is gone: its file and its door are nobody's.
    pub fn remove_export(&mut self, id: u32) {
        self.exports.retain(|export| export.id != id);
        self.set_door(id, None);
    }

    /// Handles one complete message. `out` is appended to.
    pub fn parse(&mut self, message: &[u8], out: &mut Vec<u8>) -> Event {
        let Some(message) = Message::parse(message) else { return Event::None };
        self.handle(&message, out)
    }

    /// Handles one complete message whose first [`WRITE_HEADER`] bytes were read apart from the rest, if it is a write:
    /// then `payload` is what it writes. `None`: it is not; the parts must be joined, and parsed as a whole.
    pub fn parse_write(&mut self, header: &[u8; WRITE_HEADER], payload: &[u8], out: &mut Vec<u8>) -> Option<Event> {
        let message = Message::write_in_parts(header, payload)?;
        Some(message.map_or(Event::None, |message| self.handle(&message, out)))
    }

    /// Handles the request that the kernel has put into a slot: its headers, and its payload of at least
    /// [`SLOT_PAYLOAD_MAX`] bytes. `out` is appended to. Every event but a request is answered at once, with
    /// [`commit`](super::commit).
    pub fn parse_slot(&mut self, header: &[u8; SLOT_HEADER], payload: &[u8], out: &mut Vec<u8>) -> Event {
        let Some(payload) = payload.get(..slot_entry(header).1) else { return Event::None };
        self.handle(&Message::in_slot(header, payload), out)
    }

    fn handle(&mut self, message: &Message<'_>, out: &mut Vec<u8>) -> Event {
        let start = out.len();
        out.extend_from_slice(&[0; OUT_HEADER]);
        if message.opcode == opcode::INIT {
            self.can_resend = offers(message, HAS_RESEND);
            if self.slots != Slots::Unwanted {
                self.slots = if offers(message, OVER_IO_URING) { Slots::Agreed } else { Slots::Wanted };
            }
        }
        let answer = self.answer(message, out);
        let error = match answer {
            Ok(Answer::Body) => None,
            Ok(Answer::Silence) => {
                out.truncate(start);
                return Event::None;
            }
            Ok(Answer::Event(event @ Event::Released(_))) => {
                out[start..start + OUT_HEADER].copy_from_slice(&out_header(OUT_HEADER as u32, None, message.unique));
                return event;
            }
            Ok(Answer::Event(event)) => {
                out.truncate(start);
                return event;
            }
            Ok(Answer::Data { volume, request, payload }) => {
                out.truncate(start);
                return Event::Request { volume, request, payload };
            }
            Err(errno) => {
                out.truncate(start + OUT_HEADER);
                Some(errno)
            }
        };
        let header = out_header((out.len() - start) as u32, error, message.unique);
        out[start..start + OUT_HEADER].copy_from_slice(&header);
        if message.opcode == opcode::DESTROY { Event::Destroyed } else { Event::Reply }
    }

    /// The header that answers `request`. After a successful read, [`Request::payload_out`] bytes follow it in the same
    /// `writev`.
    pub fn reply(request: &Request, result: Result<(), Errno>) -> ReplyHeader {
        ReplyHeader::new(request, result)
    }

    fn answer(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<Answer, Errno> {
        let mut body = Body(out);
        match message.opcode {
            opcode::INIT => self.init(message, &mut body)?,
            opcode::RELEASE if self.doors.is_some() => {
                return Ok(Answer::Event(Event::Released(self.export(message)?.id)));
            }
            opcode::DESTROY | opcode::RELEASE | opcode::RELEASEDIR => (),
            opcode::INTERRUPT if self.doors.is_some() => {
                return Ok(Answer::Event(Event::Interrupted(message.u64(0)?)));
            }
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY => {
                return Ok(Answer::Silence);
            }
            opcode::LOOKUP => match self.knock(message)? {
                Some(knock) => return Ok(Answer::Event(Event::Knock(knock))),
                None => self.lookup(message, &mut body)?,
            },
            opcode::GETATTR => match self.knock(message)? {
                Some(knock) => return Ok(Answer::Event(Event::Knock(knock))),
                None => self.attributes(message, &mut body)?,
            },
            opcode::SETATTR => self.set_attributes(message, &mut body)?,
            opcode::OPEN => self.open(message, &mut body)?,
            opcode::OPENDIR if message.node == ROOT => drop(body.u64(&[0]).u32(&[0, 0])),
            opcode::OPENDIR => return Err(Errno::from_raw(libc::ENOTDIR)),
            opcode::READDIR => self.read_directory(message, &mut body)?,
            opcode::STATFS => emit_statfs(self.exports.iter().map(|export| export.size), &mut body),
            opcode::READ => return self.read(message),
            opcode::WRITE => return self.write(message),
            opcode::FSYNC => return self.flush(message),
            opcode::FALLOCATE => return self.fallocate(message),
            opcode::LSEEK => self.seek(message, &mut body)?,
            opcode::IOCTL => return Err(Errno::from_raw(libc::ENOTTY)),
            opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::LINK | opcode::CREATE => {
                return Err(Errno::EPERM);
            }
            opcode::UNLINK | opcode::RMDIR | opcode::RENAME | opcode::RENAME2 => return Err(Errno::EPERM),
            // The kernel remembers this and does without.
            _ => return Err(Errno::from_raw(libc::ENOSYS)),
        }
        Ok(Answer::Body)
    }

    fn payload_max(&self) -> usize {
        if self.has_slots() { SLOT_PAYLOAD_MAX } else { PAYLOAD_MAX }
    }

    fn init(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let (major, minor, readahead, offered) = (message.u32(0)?, message.u32(4)?, message.u32(8)?, message.u32(12)?);
        if major < MAJOR || (major == MAJOR && minor < MINOR_OLDEST) || offered & MAX_PAGES == 0 {
            return Err(Errno::from_raw(libc::EPROTO));
        }
        // A newer major answers our version by asking again in it.
        let minor = if major == MAJOR { minor.min(MINOR) } else { MINOR };
        let (extended, more) = if self.has_slots() { (INIT_EXT, OVER_IO_URING) } else { (0, 0) };
        body.u32(&[MAJOR, minor, readahead, offered & WANTED | extended]);
        body.u16(&[MAX_BACKGROUND, MAX_BACKGROUND / 4 * 3]);
        const TIME_GRANULARITY: u32 = 1;
        let payload = self.payload_max();
        body.u32(&[payload as u32, TIME_GRANULARITY]).u16(&[(payload / 4096) as u16, 0]).u32(&[more, 0]).u32(&[0; 6]);
        Ok(())
    }

    fn index(&self, message: &Message<'_>) -> Result<usize, Errno> {
        if message.node == ROOT {
            return Err(Errno::from_raw(libc::EISDIR));
        }
        self.exports.iter().position(|export| node(export) == message.node).ok_or(Errno::ENOENT)
    }

    fn export(&self, message: &Message<'_>) -> Result<&Export, Errno> {
        self.index(message).map(|index| &self.exports[index])
    }

    /// May the file not be opened for writing? A device stands on it whatever the role, and is told with each request.
    fn forbids_writes(&self, export: &Export) -> bool {
        export.read_only && self.doors.is_none()
    }

    fn attr(&self, index: usize) -> Attr {
        let export = &self.exports[index];
        let permissions = if self.forbids_writes(export) { 0o400 } else { 0o600 };
        Attr {
            node: node(export),
            size: export.size,
            mode: libc::S_IFREG | permissions,
            links: 1,
            owner: self.owner,
            block: export.block.preferred,
            device: 0,
        }
    }

    fn lookup(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        if message.node != ROOT {
            return Err(Errno::from_raw(libc::ENOTDIR));
        }
        let name = message.name()?;
        let is = |export: &Export| self.file_name(export).as_bytes() == name;
        let index = self.exports.iter().position(is).ok_or(Errno::ENOENT)?;
        emit_entry(&self.attr(index), body);
        Ok(())
    }

    /// Is it a question for a door?
    fn knock(&self, message: &Message<'_>) -> Result<Option<Knock>, Errno> {
        let Some(doors) = &self.doors else { return Ok(None) };
        let (volume, question) = match door_of(message.node) {
            Some((volume, minor)) if message.opcode == opcode::GETATTR => match doors.open.get(&volume) {
                // It leads to another device by now: whoever comes this way has an old node.
                Some(door) if door.device.1 != minor => return Err(Errno::from_raw(libc::ESTALE)),
                _ => (volume, Question::Attributes),
            },
            None if message.opcode == opcode::LOOKUP && message.node == ROOT => {
                let name = message.name()?;
                let asked = self.exports.iter().find(|export| last_part(export).as_bytes() == name);
                let Some(asked) = asked else { return Ok(None) };
                (asked.id, Question::Name)
            }
            _ => return Ok(None),
        };
        Ok(Some(Knock { volume, unique: message.unique, question, caller: Caller(message.caller) }))
    }

    /// The name of an export's file.
    fn file_name(&self, export: &Export) -> String {
        match &self.doors {
            Some(doors) => file_name(last_part(export), &doors.secret),
            None => last_part(export).to_owned(),
        }
    }

    fn attributes(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let attr = if message.node == ROOT { root_attr(self.owner) } else { self.attr(self.index(message)?) };
        emit_attributes(&attr, body);
        Ok(())
    }

    /// Times are accepted and forgotten; owner, permissions and size are the configuration's.
    fn set_attributes(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let valid = message.u32(0)?;
        if let Some((volume, _)) = door_of(message.node) {
            let door = self.door(volume).ok_or(Errno::ENOENT)?;
            if valid & (FATTR_SIZE | FATTR_MODE | FATTR_UID | FATTR_GID) != 0 {
                return Err(Errno::EPERM);
            }
            emit_attributes(&door.attr(volume), body);
            return Ok(());
        }
        let size_changes = valid & FATTR_SIZE != 0 && message.u64(16)? != self.export(message)?.size;
        if size_changes || valid & (FATTR_MODE | FATTR_UID | FATTR_GID) != 0 {
            return Err(Errno::EPERM);
        }
        self.attributes(message, body)
    }

    fn open(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let wants_write = message.u32(0)? as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        let export = self.export(message)?;
        if wants_write && self.forbids_writes(export) {
            return Err(Errno::EROFS);
        }
        body.u64(&[0]).u32(&[OPEN_FLAGS, 0]);
        Ok(())
    }

    fn read_directory(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        const DIRECTORY: u8 = libc::DT_DIR;
        let (offset, size) = (message.u64(8)?, message.u32(16)? as usize);
        let listed = self.exports.iter().filter_map(|export| match &self.doors {
            Some(doors) => {
                let door = doors.open.get(&export.id)?;
                Some((door_node(export.id, *door), libc::DT_BLK, last_part(export)))
            }
            None => Some((node(export), libc::DT_REG, last_part(export))),
        });
        let entries = [(ROOT, DIRECTORY, "."), (ROOT, DIRECTORY, "..")].into_iter().chain(listed);
        let start = body.0.len();
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, (node, kind, name)) in (1..).zip(entries).skip(skip) {
            let room = size.min(self.payload_max()).saturating_sub(body.0.len() - start);
            let entry = DirectoryEntry { node, next, kind, name: name.as_bytes() };
            if !emit_entry_of_directory(body, &entry, room) {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let export = self.export(message)?;
        let (offset, len) = (message.u64(8)?, u64::from(message.u32(16)?));
        let len = len.min(export.size.saturating_sub(offset)).min(self.payload_max() as u64);
        if len == 0 {
            return Ok(Answer::Body);
        }
        export.admit(message.unique, Kind::Read, offset, len, false).map(|request| without_payload(export, request))
    }

    fn write(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let (offset, len, flags) = (message.u64(8)?, message.u32(16)?, message.u32(32)?);
        let payload = message.written().filter(|p| p.len() == len as usize).ok_or(Errno::EIO)?;
        let export = self.export(message)?;
        let fua = flags as i32 & libc::O_DSYNC != 0 && export.can_fua;
        let request = export.admit(message.unique, Kind::Write, offset, u64::from(len), fua)?;
        Ok(Answer::Data { volume: export.id, request, payload })
    }

    fn flush(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let export = self.export(message)?;
        if !export.can_flush {
            return Err(Errno::from_raw(libc::ENOSYS));
        }
        export.admit(message.unique, Kind::Flush, 0, 0, false).map(|request| without_payload(export, request))
    }

    fn fallocate(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let export = self.export(message)?;
        let (offset, len, mode) = (message.u64(8)?, message.u64(16)?, message.u32(24)?);
        let kind = fallocate_kind(mode).filter(|_| export.can_zero).ok_or(Errno::ENOTSUP)?;
        export.admit(message.unique, kind, offset, len, false).map(|request| without_payload(export, request))
    }

    /// Everything is data up to the end, where the only hole is.
    fn seek(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let size = self.export(message)?.size;
        let (offset, whence) = (message.u64(8)?, message.u32(16)? as i32);
        let found = match whence {
            libc::SEEK_DATA | libc::SEEK_HOLE if offset >= size => return Err(Errno::from_raw(libc::ENXIO)),
            libc::SEEK_DATA => offset,
            libc::SEEK_HOLE => size,
            _ => return Err(Errno::EINVAL),
        };
        body.u64(&[found]);
        Ok(())
    }
}

/// What the file behind the door to `volume` is called, if there are doors.
pub fn file_name(volume: impl std::fmt::Display, secret: &str) -> String {
    format!(".{volume}-{secret}")
}

fn without_payload(export: &Export, request: Request) -> Answer {
    Answer::Data { volume: export.id, request, payload: 0..0 }
}

pub(super) fn emit_entry(attr: &Attr, body: &mut Body<'_>) {
    const GENERATION: u64 = 0;
    // Valid for no time at all: sizes and roles change, and who opens a door is to ask.
    body.u64(&[attr.node, GENERATION, 0, 0]).u32(&[0, 0]);
    attr.emit(body);
}

pub(super) fn emit_attributes(attr: &Attr, body: &mut Body<'_>) {
    body.u64(&[0]).u32(&[0, 0]);
    attr.emit(body);
}

fn last_part(export: &Export) -> &str {
    export.name.rsplit('/').next().unwrap_or_default()
}

/// A volume's node: the same whatever other volumes there are, as it outlives the process.
fn node(export: &Export) -> u64 {
    u64::from(export.id) + ROOT + 1
}

/// Does this `INIT` offer something of the second word of flags?
fn offers(message: &Message<'_>, flag: u32) -> bool {
    let extended = message.u32(12).is_ok_and(|flags| flags & INIT_EXT != 0);
    extended && message.u32(16).is_ok_and(|more| more & flag != 0)
}
