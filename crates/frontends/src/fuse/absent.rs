//! Answers for a process that is gone, or does not work, given by the keeper until the next one goes on, or that one
//! does: who looks at files, doors and the file system is answered, and nothing waits but what reads or writes data, or
//! wants to open a device.
//!
//! What has to wait is read as well, as who looks is behind it in the kernel's queue. Either the kernel hands it out
//! once more to the next process ([`super::resend`]), then nothing of it is kept; or it stays in the ledger.
//! Nothing is refused that the next process would do.
//!
//! A process that was stopped may work again at any time, and reads then as well. Each message goes to one of the two.
//! What the keeper cannot answer it counts, after it has read it ([`Facts::aside`]); the process answers what it has
//! itself, and then has the kernel hand out the rest once more. The keeper never does that beside it: the process would
//! get once more what it has.
//!
//! Whoever asks for a door is answered if all that he does is look. Who opens it waits, and may be killed.
//!
//! Nothing is allocated once this exists: it is at work when memory is short because of what waits.

use super::abi::*;
use super::door::{Caller, Intent, Knock, Question, door_node, door_of};
use super::facts::{Fact, Facts};
use super::ledger::{ENTRIES, Ledger};
use super::session::{NAME_MAX, emit_attributes, emit_entry};
use super::{MESSAGE_MAX, WRITE_HEADER, resend};
use crate::sys::{read_parts, write_message};
use crate::{BlockSizes, Errno};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Messages taken at a time.
const BATCH: usize = 64;
/// Those who wait at doors and are looked at; others wait as well, and are not.
const WAITING: usize = 256;
/// Room for the longest answer: a page of names.
const ANSWER: usize = 8192;
/// How soon somebody is looked at again who has not gone to sleep yet, how soon to see whether he was killed, and how
/// long to wait for his going to sleep.
const SOON: Duration = Duration::from_millis(2);
const ALIVE: Duration = Duration::from_millis(250);
const RUNS: Duration = Duration::from_secs(1);

/// Who answers. It may be used again and again, each time beginning with [`Absent::begin`].
#[derive(Debug)]
pub struct Absent {
    message: Vec<u8>,
    out: Vec<u8>,
    waiting: Vec<Waiting>,
    unanswered: Vec<usize>,
}

/// What there is to answer with.
#[derive(Debug)]
pub struct Means<'a> {
    /// The connection; reading it must not block.
    pub connection: BorrowedFd<'a>,
    /// What the process has said.
    pub facts: &'a Facts,
    /// What was read and not answered, if the kernel does not hand it out again: by the process, or beside it by the
    /// keeper.
    pub ledger: Option<&'a mut Ledger>,
    /// The process is there, and has stopped with this turn. Nothing more is read when there is another one.
    pub beside: Option<u64>,
}

impl Means<'_> {
    /// The process works again.
    fn is_over(&self) -> bool {
        self.beside.is_some_and(|turn| self.facts.turns() != turn)
    }
}

/// Somebody at a door.
#[derive(Debug)]
struct Waiting {
    knock: Knock,
    entry: Option<usize>,
    since: Instant,
    /// That he opens it is known.
    opens: bool,
}

/// What becomes of a message.
enum Verdict {
    /// What was appended is the answer.
    Body,
    /// There is none.
    Silence,
    /// The next process answers.
    Held,
    Knock(Knock),
    /// Who waits for the answer to this one was interrupted.
    Interrupted(u64),
}

impl Default for Absent {
    fn default() -> Absent {
        Absent {
            // Not zeroes, which would be memory that comes when it is touched.
            message: vec![u8::MAX; MESSAGE_MAX],
            out: Vec::with_capacity(ANSWER),
            waiting: Vec::with_capacity(WAITING),
            unanswered: Vec::with_capacity(ENTRIES),
        }
    }
}

impl Absent {
    /// The process is gone: what it has read and not answered is answered, as far as it can be, and what was left to it
    /// in `left`.
    ///
    /// # Errors
    /// If it cannot be had.
    pub fn begin(&mut self, means: &mut Means<'_>, left: Option<&Ledger>) -> io::Result<()> {
        self.waiting.clear();
        let Some(ledger) = &mut means.ledger else {
            return match write_message(means.connection, &[IoSlice::new(&resend())]) {
                n if n < 0 => Err(io::Error::from_raw_os_error(-n)),
                _ => Ok(()),
            };
        };
        ledger.unanswered(&mut self.unanswered)?;
        if let Some(left) = left {
            left.leave_all();
            // What there is no room for the next process finds there.
            ledger.adopt(left, |entry| self.unanswered.push(entry));
        }
        while let Some(entry) = self.unanswered.pop() {
            self.handle_entry(means, entry);
        }
        Ok(())
    }

    /// The process is there, and does not work.
    ///
    /// # Errors
    /// If there is no place for what cannot be answered.
    pub fn begin_beside(&mut self, means: &mut Means<'_>) -> io::Result<()> {
        self.waiting.clear();
        means.ledger.as_mut().map_or(Ok(()), |ledger| ledger.reclaim(&mut self.unanswered))
    }

    /// The process works again, and gets the questions of those at the doors.
    pub fn end_beside(&mut self) {
        self.waiting.clear();
    }

    /// Answers what there is to read. False: the file system is gone.
    pub fn pump(&mut self, means: &mut Means<'_>) -> bool {
        for _ in 0..BATCH {
            if means.is_over() {
                return true;
            }
            let read = match &mut means.ledger {
                Some(ledger) => match ledger.read(means.connection) {
                    Some(Ok(entry)) => {
                        let opcode = u32_at(ledger.message(entry).0, 4);
                        let answered = self.handle_entry(means, entry);
                        if let (Some(ledger), false, Some(_)) = (&mut means.ledger, answered, means.beside) {
                            ledger.leave(entry);
                        }
                        self.count(means, answered, opcode);
                        continue;
                    }
                    Some(Err(e)) => e,
                    None => return true,
                },
                None => read_parts(means.connection, &mut [IoSliceMut::new(&mut self.message)]),
            };
            match read {
                n if n > 0 => {
                    let answered = self.handle(means, n as usize, None);
                    self.count(means, answered, u32_at(&self.message, 4));
                }
                // Taken back while it was read.
                n if n == -libc::ENOENT || n == -libc::EINTR => {}
                n => return n != -libc::ENODEV,
            }
        }
        true
    }

    /// A process that is there has to know what was not answered, and of a last close.
    fn count(&self, means: &Means<'_>, answered: bool, opcode: u32) {
        if means.beside.is_some() && (!answered || opcode == opcode::RELEASE) {
            means.facts.put_aside();
        }
    }

    /// How soon to look at those at the doors again.
    pub fn look_in(&self) -> Option<Duration> {
        let unknown = self.waiting.iter().any(|waiting| !waiting.opens);
        (!self.waiting.is_empty()).then_some(if unknown { SOON } else { ALIVE })
    }

    /// Looks at those at the doors.
    pub fn look(&mut self, means: &mut Means<'_>) {
        let mut at = 0;
        while let Some(waiting) = self.waiting.get_mut(at) {
            let knock = waiting.knock;
            let overdue = waiting.since.elapsed() > RUNS;
            if !waiting.opens {
                let seen = knock.caller.glance();
                waiting.opens = overdue || seen.is_some_and(|intent| intent != Intent::Look);
                if seen == Some(Intent::Look) && self.show(means, at) {
                    continue;
                }
            } else if knock.caller.is_killed() {
                self.give_up(means, at);
                continue;
            }
            at += 1;
        }
    }

    /// A message in the ledger, which stays there if it has to wait: then it is false.
    fn handle_entry(&mut self, means: &mut Means<'_>, entry: usize) -> bool {
        let Some(ledger) = &mut means.ledger else { return true };
        let (header, rest) = ledger.message(entry);
        if u32_at(header, 4) == opcode::WRITE {
            return false;
        }
        let n = (u32_at(header, 0) as usize).min(WRITE_HEADER + rest.len());
        self.message[..WRITE_HEADER].copy_from_slice(header);
        self.message[WRITE_HEADER..WRITE_HEADER + rest.len()].copy_from_slice(rest);
        let answered = self.handle(means, n, Some(entry));
        if let Some(ledger) = means.ledger.as_mut().filter(|_| answered) {
            ledger.forget(entry);
        }
        answered
    }

    /// False: it has to wait.
    fn handle(&mut self, means: &mut Means<'_>, n: usize, entry: Option<usize>) -> bool {
        let Some(message) = Message::parse(&self.message[..n]) else { return true };
        self.out.clear();
        self.out.extend_from_slice(&[0; OUT_HEADER]);
        let unique = message.unique;
        match answer(means.facts, &message, &mut self.out) {
            Ok(Verdict::Body) => send(means.connection, unique, None, &mut self.out),
            Ok(Verdict::Silence) => {}
            Ok(Verdict::Held) => return false,
            Ok(Verdict::Interrupted(unique)) => {
                let at = self.waiting.iter().position(|w| w.knock.unique == unique && w.knock.caller.is_killed());
                if let Some(at) = at {
                    self.give_up(means, at);
                }
            }
            Ok(Verdict::Knock(knock)) => return self.on_knock(means, knock, entry),
            Err(errno) => send(means.connection, unique, Some(errno), &mut self.out),
        }
        true
    }

    fn on_knock(&mut self, means: &mut Means<'_>, knock: Knock, entry: Option<usize>) -> bool {
        let opens = match knock.caller.glance() {
            Some(Intent::Look) if self.shown(means, &knock) => return true,
            Some(_) => true,
            None => false,
        };
        if self.waiting.len() < self.waiting.capacity() {
            self.waiting.push(Waiting { knock, entry, since: Instant::now(), opens });
        }
        false
    }

    /// Shows the door to who waits there. False: there is none yet.
    fn show(&mut self, means: &mut Means<'_>, at: usize) -> bool {
        let knock = self.waiting[at].knock;
        let shown = self.shown(means, &knock);
        if shown {
            self.over(means, at);
        }
        shown
    }

    fn shown(&mut self, means: &Means<'_>, knock: &Knock) -> bool {
        let Some(door) = means.facts.of_volume(knock.volume).and_then(|fact| fact.door) else { return false };
        self.out.clear();
        self.out.extend_from_slice(&[0; OUT_HEADER]);
        let (attr, body) = (door.attr(knock.volume), &mut Body(&mut self.out));
        match knock.question {
            Question::Name => emit_entry(&attr, body),
            Question::Attributes => emit_attributes(&attr, body),
        }
        send(means.connection, knock.unique, None, &mut self.out);
        true
    }

    /// He is about to die, and waits for an answer only.
    fn give_up(&mut self, means: &mut Means<'_>, at: usize) {
        self.out.clear();
        self.out.extend_from_slice(&[0; OUT_HEADER]);
        let errno = Some(Errno::from_raw(libc::EINTR));
        send(means.connection, self.waiting[at].knock.unique, errno, &mut self.out);
        self.over(means, at);
    }

    fn over(&mut self, means: &mut Means<'_>, at: usize) {
        let waiting = self.waiting.swap_remove(at);
        match (&mut means.ledger, waiting.entry) {
            (Some(ledger), Some(entry)) if means.beside.is_some() => ledger.withdraw(entry),
            (Some(ledger), Some(entry)) => ledger.forget(entry),
            _ => {}
        }
    }
}

/// Sends what is in `out`, which begins with room for the header.
fn send(connection: BorrowedFd<'_>, unique: u64, error: Option<Errno>, out: &mut Vec<u8>) {
    if error.is_some() {
        out.truncate(OUT_HEADER);
    }
    let header = out_header(out.len() as u32, error, unique);
    out[..OUT_HEADER].copy_from_slice(&header);
    // ENOENT: nobody waits for it any more.
    write_message(connection, &[IoSlice::new(out)]);
}

/// What the process would answer, if that depends on nothing that only it knows.
fn answer(facts: &Facts, message: &Message<'_>, out: &mut Vec<u8>) -> Result<Verdict, Errno> {
    let mut body = Body(out);
    match message.opcode {
        opcode::RELEASE | opcode::RELEASEDIR | opcode::DESTROY => {}
        opcode::FORGET | opcode::BATCH_FORGET | opcode::NOTIFY_REPLY => return Ok(Verdict::Silence),
        opcode::INTERRUPT => return Ok(Verdict::Interrupted(message.u64(0)?)),
        opcode::LOOKUP if message.node != ROOT => return Err(Errno::from_raw(libc::ENOTDIR)),
        opcode::LOOKUP => return look_up(facts, message, &mut body),
        opcode::GETATTR => return attributes(facts, message, &mut body),
        opcode::SETATTR => set_attributes(facts, message, &mut body)?,
        opcode::OPEN if message.node == ROOT => return Err(Errno::from_raw(libc::EISDIR)),
        opcode::OPEN if facts.of_node(message.node).is_some() => drop(body.u64(&[0]).u32(&[OPEN_FLAGS, 0])),
        opcode::OPEN => return Err(Errno::ENOENT),
        opcode::OPENDIR if message.node == ROOT => drop(body.u64(&[0]).u32(&[0, 0])),
        opcode::OPENDIR => return Err(Errno::from_raw(libc::ENOTDIR)),
        opcode::READDIR => read_directory(facts, message, &mut body)?,
        opcode::STATFS => emit_statfs(facts.all().map(|fact| fact.size), &mut body),
        opcode::FSYNC if facts.of_node(message.node).is_some_and(|fact| fact.clean) => {}
        opcode::READ | opcode::WRITE | opcode::FSYNC | opcode::FALLOCATE | opcode::LSEEK | opcode::INIT => {
            return Ok(Verdict::Held);
        }
        opcode::IOCTL => return Err(Errno::from_raw(libc::ENOTTY)),
        opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::LINK | opcode::CREATE => return Err(Errno::EPERM),
        opcode::UNLINK | opcode::RMDIR | opcode::RENAME | opcode::RENAME2 => return Err(Errno::EPERM),
        // As the process does: the kernel remembers it.
        _ => return Err(Errno::from_raw(libc::ENOSYS)),
    }
    Ok(Verdict::Body)
}

fn look_up(facts: &Facts, message: &Message<'_>, body: &mut Body<'_>) -> Result<Verdict, Errno> {
    let name = message.name()?;
    for fact in facts.all() {
        let number = Decimal::of(fact.volume);
        if name == number.text() {
            return Ok(knock(message, fact.volume, Question::Name));
        }
        let rest = name.strip_prefix(b".").and_then(|name| name.strip_prefix(number.text()));
        if rest.and_then(|rest| rest.strip_prefix(b"-")) == Some(facts.secret()) {
            emit_entry(&attr(facts, &fact), body);
            return Ok(Verdict::Body);
        }
    }
    Err(Errno::ENOENT)
}

fn attributes(facts: &Facts, message: &Message<'_>, body: &mut Body<'_>) -> Result<Verdict, Errno> {
    if let Some((volume, minor)) = door_of(message.node) {
        return match facts.of_volume(volume).and_then(|fact| fact.door) {
            Some(door) if door.device.1 != minor => Err(Errno::from_raw(libc::ESTALE)),
            _ => Ok(knock(message, volume, Question::Attributes)),
        };
    }
    let attr = match facts.of_node(message.node) {
        Some(fact) => attr(facts, &fact),
        None if message.node == ROOT => root_attr(facts.owner()),
        None => return Err(Errno::ENOENT),
    };
    emit_attributes(&attr, body);
    Ok(Verdict::Body)
}

/// Times are accepted and forgotten; owner, permissions and size are the configuration's.
fn set_attributes(facts: &Facts, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
    let valid = message.u32(0)?;
    let fact = match door_of(message.node) {
        Some((volume, _)) => facts.of_volume(volume),
        None => facts.of_node(message.node),
    };
    let door = door_of(message.node).and_then(|(volume, _)| Some((volume, fact?.door?)));
    let attr = match (door, &fact) {
        (Some((volume, door)), _) => door.attr(volume),
        (None, Some(fact)) if door_of(message.node).is_none() => attr(facts, fact),
        _ if message.node == ROOT => root_attr(facts.owner()),
        _ => return Err(Errno::ENOENT),
    };
    let size_changes = valid & FATTR_SIZE != 0 && (door.is_some() || message.u64(16)? != attr.size);
    if size_changes || valid & (FATTR_MODE | FATTR_UID | FATTR_GID) != 0 {
        return Err(Errno::EPERM);
    }
    emit_attributes(&attr, body);
    Ok(())
}

fn knock(message: &Message<'_>, volume: u32, question: Question) -> Verdict {
    Verdict::Knock(Knock { volume, unique: message.unique, question, caller: Caller(message.caller) })
}

fn attr(facts: &Facts, fact: &Fact) -> Attr {
    Attr {
        node: u64::from(fact.volume) + ROOT + 1,
        size: fact.size,
        mode: libc::S_IFREG | 0o600,
        links: 1,
        owner: facts.owner(),
        block: BlockSizes::DEFAULT.preferred,
        device: 0,
    }
}

fn read_directory(facts: &Facts, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
    const ITSELF: [&[u8]; 2] = [b".", b".."];
    let (offset, size) = (message.u64(8)?, message.u32(16)? as usize);
    let size = size.min(ANSWER - OUT_HEADER);
    let mut room = size;
    let mut add = |next: u64, node: u64, kind: u8, name: &[u8]| {
        let before = body.0.len();
        let fits = next <= offset || emit_entry_of_directory(body, &DirectoryEntry { node, next, kind, name }, room);
        room -= body.0.len() - before;
        fits
    };
    for (next, name) in (1..).zip(ITSELF) {
        if !add(next, ROOT, libc::DT_DIR, name) {
            return Ok(());
        }
    }
    let doors = facts.all().filter_map(|fact| Some((fact.volume, fact.door?)));
    for (next, (volume, door)) in (3..).zip(doors) {
        if !add(next, door_node(volume, door), libc::DT_BLK, Decimal::of(volume).text()) {
            return Ok(());
        }
    }
    Ok(())
}

/// A number as text, without memory of its own.
struct Decimal {
    digits: [u8; 10],
    from: usize,
}

impl Decimal {
    fn of(mut number: u32) -> Decimal {
        let mut decimal = Decimal { digits: [b'0'; 10], from: 10 };
        loop {
            decimal.from -= 1;
            decimal.digits[decimal.from] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return decimal;
            }
        }
    }

    fn text(&self) -> &[u8] {
        &self.digits[self.from..]
    }
}

/// What `statfs` says of files of these sizes.
pub(super) fn emit_statfs(sizes: impl Iterator<Item = u64>, body: &mut Body<'_>) {
    const BLOCK: u32 = 4096;
    let (files, blocks) = sizes.fold((0, 0), |(files, blocks), size| (files + 1, blocks + size / u64::from(BLOCK)));
    body.u64(&[blocks, 0, 0, files, 0]);
    body.u32(&[BLOCK, NAME_MAX, BLOCK, 0]).u32(&[0; 6]);
}

/// The directory's attributes.
pub(super) fn root_attr(owner: (u32, u32)) -> Attr {
    Attr { node: ROOT, size: 0, mode: libc::S_IFDIR | 0o755, links: 2, owner, block: 4096, device: 0 }
}
