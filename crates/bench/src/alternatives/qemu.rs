//! qemu's block layer in `qemu-storage-daemon`: mirrors of its own, and an iSCSI initiator, each offered by NBD.
//!
//! Its NBD server works on at most 16 requests of a connection at once: several connections are needed to compare.

use super::{PATIENCE, Server, Tgt, program};
use crate::error::{Error, Result};
use crate::process::Process;
use crate::target::Watched;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One daemon that offers one of its nodes.
pub struct Exported {
    process: Process,
    socket: PathBuf,
}

impl Exported {
    /// Offers the node `top` of `blockdevs` on `DIR/NAME.sock`.
    fn start(dir: &Path, name: &str, blockdevs: &[String], top: &str, more: &[String]) -> Result<Exported> {
        let socket = dir.join(format!("{name}.sock"));
        let mut command = Command::new(program("qemu-storage-daemon", "qemu-system-common")?);
        for blockdev in blockdevs {
            command.arg("--blockdev").arg(blockdev);
        }
        command.args(more);
        command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={},max-connections=0", socket.display()));
        command.arg("--export").arg(format!("type=nbd,id=e,node-name={top},name=x,writable=on"));
        let mut process = Process::start(name, dir, command)?;
        process.wait_until("listens", PATIENCE, || UnixStream::connect(&socket).is_ok())?;
        Ok(Exported { process, socket })
    }

    /// A file as it is, for another daemon.
    fn file(dir: &Path, name: &str, file: &Path) -> Result<Exported> {
        let blockdev = format!("driver=file,node-name=f,filename={}", file.display());
        Exported::start(dir, name, &[blockdev], "f", &[])
    }

    /// The blockdev of somebody who uses this over NBD.
    fn as_blockdev(&self, node: &str) -> String {
        format!("driver=nbd,node-name={node},server.type=unix,server.path={},export=x", self.socket.display())
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///x?socket={}", self.socket.display())
    }
}

/// Two copies, one of them in another process: a write is done when both have it.
pub struct Quorum {
    first: Exported,
    second: Exported,
}

impl Quorum {
    /// With these two files.
    ///
    /// # Errors
    /// If it is not installed or does not start.
    pub fn start(dir: &Path, files: &[PathBuf; 2]) -> Result<Quorum> {
        let second = Exported::file(dir, "quorum-second", &files[1])?;
        let local = format!("driver=file,node-name=l,filename={}", files[0].display());
        // Two writes of one block that are under way together may end in either order on either copy, and a vote of
        // two against one another fails the read: it is read from one copy, which is the faster way as well.
        let quorum =
            "driver=quorum,node-name=q,vote-threshold=2,read-pattern=fifo,children.0=l,children.1=r".to_owned();
        let first = Exported::start(dir, "quorum-first", &[local, second.as_blockdev("r"), quorum], "q", &[])?;
        Ok(Quorum { first, second })
    }
}

impl Server for Quorum {
    fn uri(&self) -> String {
        self.first.uri()
    }

    fn watched(&self) -> Vec<Watched> {
        two(&self.first, &self.second)
    }
}

/// A mirror whose writes wait for both sides (`copy-mode=write-blocking`).
pub struct Mirror {
    first: Exported,
    second: Exported,
    /// The mirror ends when this is closed.
    _control: UnixStream,
}

impl Mirror {
    /// From the first file to the second.
    ///
    /// # Errors
    /// If it is not installed or does not start.
    pub fn start(dir: &Path, files: &[PathBuf; 2]) -> Result<Mirror> {
        let second = Exported::file(dir, "mirror-second", &files[1])?;
        let local = format!("driver=file,node-name=l,filename={}", files[0].display());
        let control = dir.join("mirror.qmp");
        let more = [
            "--chardev".to_owned(),
            format!("socket,id=c,path={},server=on,wait=off", control.display()),
            "--monitor".to_owned(),
            "chardev=c".to_owned(),
        ];
        let first = Exported::start(dir, "mirror-first", &[local, second.as_blockdev("r")], "l", &more)?;
        let mirror = r#"{"execute":"blockdev-mirror","arguments":{"job-id":"m","device":"l","target":"r","sync":"none","copy-mode":"write-blocking"}}"#;
        let control = tell(&control, &[r#"{"execute":"qmp_capabilities"}"#, mirror])?;
        Ok(Mirror { first, second, _control: control })
    }
}

impl Server for Mirror {
    fn uri(&self) -> String {
        self.first.uri()
    }

    fn watched(&self) -> Vec<Watched> {
        two(&self.first, &self.second)
    }
}

/// Gives the daemon commands, and waits for the answer to each.
fn tell(control: &Path, commands: &[&str]) -> Result<UnixStream> {
    let failed = || Error::io("qemu-storage-daemon's monitor");
    let mut stream = UnixStream::connect(control).map_err(failed())?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed())?;
    let mut reader = BufReader::new(stream.try_clone().map_err(failed())?);
    for command in commands {
        stream.write_all(command.as_bytes()).map_err(failed())?;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).map_err(failed())? == 0 || line.contains("\"error\"") {
                return Err(Error::new(format!("qemu-storage-daemon refuses {command}: {}", line.trim())));
            }
            if line.contains("\"return\"") {
                break;
            }
        }
    }
    Ok(stream)
}

/// An initiator of iSCSI, offered by NBD as urbd's client without a disk is.
pub struct Iscsi {
    initiator: Exported,
    target: Tgt,
}

impl Iscsi {
    /// Of the only unit of `target`.
    ///
    /// # Errors
    /// If qemu has no iSCSI driver (libiscsi) or cannot log in.
    pub fn start(dir: &Path, target: Tgt) -> Result<Iscsi> {
        let blockdev = format!(
            "driver=iscsi,node-name=i,transport=tcp,portal={},target={},lun=1,cache.direct=on",
            target.portal(),
            Tgt::NAME
        );
        Ok(Iscsi { initiator: Exported::start(dir, "initiator", &[blockdev], "i", &[])?, target })
    }
}

impl Server for Iscsi {
    fn uri(&self) -> String {
        self.initiator.uri()
    }

    fn watched(&self) -> Vec<Watched> {
        vec![Watched::new("primary", self.initiator.process.pid()), Watched::new("secondary", self.target.pid())]
    }
}

fn two(first: &Exported, second: &Exported) -> Vec<Watched> {
    vec![Watched::new("primary", first.process.pid()), Watched::new("secondary", second.process.pid())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::NbdTarget;
    use crate::target::Target;
    use crate::workload::{Pattern, Until, Workload};

    #[test]
    fn a_quorum_is_read_after_writes_that_overlapped() {
        let dir = std::env::temp_dir().join(format!("urbd-quorum-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let files = ["first", "second"].map(|name| dir.join(name));
        for file in &files {
            std::fs::File::create(file).and_then(|f| f.set_len(1 << 20)).unwrap();
        }
        let read_back = || -> Result<Vec<String>> {
            let quorum = Quorum::start(&dir, &files)?;
            let mut client = NbdTarget::new(&quorum.uri())?;
            let span = 64 << 10;
            let mut errors = Vec::new();
            for seed in 0..200 {
                let part = |w, requests| Workload { seed, span, until: Until::Requests(requests), ..w };
                client.run(&part(Workload::writes(Pattern::Random, 4096, 64), 256))?;
                errors.extend(client.run(&part(Workload::reads(Pattern::Sequential, 4096, 16), 16))?.first_error);
            }
            Ok(errors)
        };
        let outcome = read_back();
        std::fs::remove_dir_all(&dir).unwrap();
        match outcome {
            Ok(errors) => assert_eq!(errors, Vec::<String>::new()),
            Err(e) => assert!(e.to_string().contains("is not installed"), "{e}"),
        }
    }
}
