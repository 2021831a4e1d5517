//! Where a process says what it does: the journal, with priorities and fields; else lines with the time, in a file that
//! is rotated or on standard error.
//!
//! Nothing here waits: who writes the log also serves I/O.

use crate::sys;
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// The journal's own protocol (systemd's documentation: "Native Journal Protocol").
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Size in bytes at which a file is followed by the next.
const FILE_MAX: u64 = 1 << 20;
/// How many full files are kept: `RES.log.1` is the newest.
const FILES_KEPT: u32 = 3;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Priority {
    Error = 3,
    Warning = 4,
    Info = 6,
}

/// What a line is about, for who searches the journal.
pub(crate) type Field<'a> = (&'static str, &'a str);

/// Where lines go.
enum Sink {
    /// Standard error, with the time.
    Lines,
    /// Standard error, which the service manager reads: with the priority in front (sd-daemon(3)).
    Prefixed,
    /// The journal, and how many lines it could not take.
    Journal(UnixDatagram, u64),
    /// A file that is standard error as well, so that nothing which others write there is lost.
    File { path: PathBuf, size: u64 },
}

struct Log {
    sink: Sink,
    resource: String,
}

static LOG: Mutex<Log> = Mutex::new(Log { sink: Sink::Lines, resource: String::new() });

/// From now on the process speaks for `resource`. `file`: what standard error is, if it is to be rotated; else the
/// journal is used if it reads standard error.
///
/// # Errors
/// If that file cannot be looked at.
pub fn begin(resource: &str, file: Option<&Path>) -> io::Result<()> {
    let sink = match file {
        Some(path) => Sink::File { path: path.to_owned(), size: fs::metadata(path)?.len() },
        None if is_of_journal(std::env::var("JOURNAL_STREAM").ok().as_deref()) => match journal(Path::new(JOURNAL)) {
            Ok(socket) => Sink::Journal(socket, 0),
            Err(_) => Sink::Prefixed,
        },
        None => Sink::Lines,
    };
    *LOG.lock().unwrap_or_else(PoisonError::into_inner) = Log { sink, resource: resource.to_owned() };
    Ok(())
}

/// The process speaks for `resource` now, whose log moves in the run directory, with the full ones.
///
/// # Errors
/// If it does not.
pub(crate) fn rename(resource: &str, run_dir: &Path) -> io::Result<()> {
    let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let before = std::mem::replace(&mut log.resource, resource.to_owned());
    let Sink::File { path, .. } = &mut log.sink else { return Ok(()) };
    let of = |name: &str| run_dir.join(format!("{name}.log"));
    if std::path::absolute(&*path)? != std::path::absolute(of(&before))? {
        return Ok(());
    }
    for n in 1..=FILES_KEPT {
        // There are not always so many.
        let _ = fs::rename(full(path, n), full(&of(resource), n));
    }
    fs::rename(&*path, of(resource))?;
    *path = of(resource);
    Ok(())
}

fn full(path: &Path, n: u32) -> PathBuf {
    PathBuf::from(format!("{}.{n}", path.display()))
}

/// `JOURNAL_STREAM` names the device and inode of the stream that the service manager has made; a process further down
/// may have another standard error.
fn is_of_journal(stream: Option<&str>) -> bool {
    let stderr = io::stderr().as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
    let is = stderr.map(|stderr| format!("{}:{}", stderr.dev(), stderr.ino()));
    is.is_ok_and(|is| stream == Some(&*is))
}

fn journal(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// One line: `error`, `warning` or `info`, and the text.
pub(crate) fn log(severity: &str, text: &str) {
    log_with(severity, text, &[]);
}

/// One line with what it is about.
pub(crate) fn log_with(severity: &str, text: &str, fields: &[Field<'_>]) {
    let priority = match severity {
        "error" => Priority::Error,
        "warning" => Priority::Warning,
        _ => Priority::Info,
    };
    LOG.lock().unwrap_or_else(PoisonError::into_inner).write(priority, severity, &control::plain(text), fields);
}

impl Log {
    fn write(&mut self, priority: Priority, severity: &str, text: &str, fields: &[Field<'_>]) {
        match &mut self.sink {
            Sink::Lines => say(&format!("{} {severity}: {text}\n", now())),
            Sink::Prefixed => say(&format!("<{}>{text}\n", priority as u8)),
            Sink::Journal(socket, lost) => {
                let before = std::mem::take(lost);
                let mut of_all = fields.to_vec();
                let count = before.to_string();
                if before > 0 {
                    of_all.push(("URBD_LINES_LOST", &count));
                }
                if socket.send(&entry(priority, &self.resource, text, &of_all)).is_err() {
                    // It does not keep up, or starts anew: the next line says so.
                    *lost = before + 1;
                }
            }
            Sink::File { path, size } => {
                let line = format!("{} {severity}: {text}\n", now());
                say(&line);
                *size += line.len() as u64;
                if *size >= FILE_MAX {
                    // If it cannot be followed it grows on.
                    let _ = rotate(path);
                    *size = 0;
                }
            }
        }
    }
}

/// Who reads standard error may be gone: that ends nothing.
fn say(line: &str) {
    let _ = io::stderr().write_all(line.as_bytes());
}

/// RFC 3339, in UTC.
fn now() -> humantime::Rfc3339Timestamp {
    humantime::format_rfc3339_millis(SystemTime::now())
}

/// A message of the journal: `FIELD=value`, or with its length if the value has several lines.
fn entry(priority: Priority, resource: &str, text: &str, fields: &[Field<'_>]) -> Vec<u8> {
    let priority = (priority as u8).to_string();
    let of_all =
        [("MESSAGE", text), ("PRIORITY", &priority), ("SYSLOG_IDENTIFIER", "urbd"), ("URBD_RESOURCE", resource)];
    let mut bytes = Vec::new();
    for (name, value) in of_all.iter().chain(fields) {
        bytes.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            bytes.push(b'\n');
            bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            bytes.push(b'=');
        }
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(b'\n');
    }
    bytes
}

/// The full file becomes `.1`, and a fresh one is standard output and standard error.
fn rotate(path: &Path) -> io::Result<()> {
    let old = |n: u32| full(path, n);
    for n in (1..FILES_KEPT).rev().filter(|n| old(*n).exists()) {
        fs::rename(old(n), old(n + 1))?;
    }
    fs::rename(path, old(1))?;
    let how = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    sys::become_output(&rustix::fs::open(path, how, Mode::RUSR | Mode::WUSR)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_journal_is_sent() {
        let dir = std::env::temp_dir().join(format!("urbd-log-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("socket");
        let server = UnixDatagram::bind(&path).unwrap();
        let mut log = Log { sink: Sink::Journal(journal(&path).unwrap(), 2), resource: "r0".into() };
        log.write(Priority::Warning, "warning", "two\nlines", &[("URBD_PEER", "bravo"), ("URBD_REASON", "x-y")]);
        let mut bytes = [0; 512];
        let n = server.recv(&mut bytes).unwrap();
        let expected = b"MESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\nPRIORITY=4\nSYSLOG_IDENTIFIER=urbd\nURBD_RESOURCE=r0\n\
                         URBD_PEER=bravo\nURBD_REASON=x-y\nURBD_LINES_LOST=2\n";
        assert_eq!(&bytes[..n], expected);
        drop(server);
        for lines in 1..4 {
            log.write(Priority::Info, "info", "nobody hears this", &[]);
            assert!(matches!(log.sink, Sink::Journal(_, lost) if lost == lines));
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn another_stream_is_not_the_journals() {
        assert!(!is_of_journal(None));
        assert!(!is_of_journal(Some("1:2")));
    }
}
