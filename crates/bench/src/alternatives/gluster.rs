//! GlusterFS with two copies (`replica 2`): two bricks, a client that replicates and mounts, nbdkit on a file there.
//!
//! The programs are started with their graphs of translators; the management daemon, which would write to the machine's
//! `/var/lib` and keep its port, is not needed.

use super::{Nbdkit, PATIENCE, Server, program};
use crate::error::{Error, Result};
use crate::pair::{filled_file, free_port};
use crate::process::Process;
use crate::target::Watched;
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A replicated volume with one file, served over NBD.
pub struct Gluster {
    // Ended before its file goes.
    server: Nbdkit,
    volume: Volume,
}

/// A mounted volume with two copies.
struct Volume {
    client: Process,
    bricks: Vec<Process>,
    mount: PathBuf,
}

impl Gluster {
    /// With a file of that many bytes, below `dir`.
    ///
    /// # Errors
    /// If it is not installed, may not mount, or the file system of `dir` has no extended attributes.
    pub fn start(dir: &Path, size: u64) -> Result<Gluster> {
        let volume = Volume::start(dir)?;
        let file = volume.mount.join("disk");
        filled_file(&file, size)?;
        let server = Nbdkit::start(dir, &file)?;
        Ok(Gluster { server, volume })
    }
}

impl Server for Gluster {
    fn uri(&self) -> String {
        self.server.uri()
    }

    fn watched(&self) -> Vec<Watched> {
        let mut all = self.server.watched();
        all.push(Watched::new("client", self.volume.client.pid()));
        let bricks = self.volume.bricks.iter().zip(["first brick", "second brick"]);
        all.extend(bricks.map(|(brick, role)| Watched::new(role, brick.pid())));
        all
    }
}

impl Volume {
    fn start(dir: &Path) -> Result<Volume> {
        let (brick, client) = (program("glusterfsd", "glusterfs-server")?, program("glusterfs", "glusterfs-client")?);
        let mut bricks = Vec::new();
        let mut graph = String::new();
        for name in ["one", "two"] {
            let (folder, port) = (made(dir, name)?, free_port()?);
            let mut process = daemon(&brick, dir, name, &brick_graph(&folder, port), None)?;
            process.wait_until("listens", PATIENCE, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())?;
            bricks.push(process);
            let options = [
                ("transport-type", "tcp".to_owned()),
                ("remote-host", "127.0.0.1".to_owned()),
                ("remote-port", port.to_string()),
                ("remote-subvolume", folder.display().to_string()),
            ];
            graph += &translator(name, "protocol/client", &options, "");
        }
        graph += &translator("copies", "cluster/replicate", &[("afr-pending-xattr", "one,two".to_owned())], "one two");
        let mount = made(dir, "gluster")?;
        let below = device(&mount);
        let client = daemon(&client, dir, "gluster-client", &graph, Some(&mount))?;
        let mut volume = Volume { client, bricks, mount };
        let mount = volume.mount.clone();
        volume.client.wait_until("mounts", PATIENCE, || device(&mount).is_some_and(|there| Some(there) != below))?;
        Ok(volume)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // A mount whose process ends is left behind dead otherwise.
        let _ = frontends::fuse::unmount(&self.mount);
    }
}

/// The number of the file system there, if it answers.
fn device(path: &Path) -> Option<u64> {
    path.metadata().ok().map(|m| m.dev())
}

fn made(dir: &Path, name: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    std::fs::create_dir_all(&path).map_err(Error::io(path.display()))?;
    Ok(path)
}

/// Starts `program` in the foreground with that graph of translators.
fn daemon(program: &Path, dir: &Path, name: &str, graph: &str, mount: Option<&Path>) -> Result<Process> {
    let file = dir.join(format!("{name}.vol"));
    std::fs::write(&file, graph).map_err(Error::io(file.display()))?;
    let mut command = Command::new(program);
    command.args(["-N", "-f"]).arg(&file).args(["-l", "/dev/stdout"]).args(mount);
    Process::start(name, dir, command)
}

fn brick_graph(folder: &Path, port: u16) -> String {
    let name = folder.display().to_string();
    let server = [
        ("transport-type", "tcp".to_owned()),
        ("transport.socket.bind-address", "127.0.0.1".to_owned()),
        ("transport.socket.listen-port", port.to_string()),
        (&format!("auth.addr.{name}.allow"), "127.0.0.1".to_owned()),
    ];
    [
        translator("files", "storage/posix", &[("directory", name.clone())], ""),
        translator("locks", "features/locks", &[], "files"),
        // The last one below the server has the name that the client asks for.
        translator(&name, "performance/io-threads", &[], "locks"),
        translator("server", "protocol/server", &server, &name),
    ]
    .concat()
}

fn translator(name: &str, kind: &str, options: &[(&str, String)], below: &str) -> String {
    let mut text = format!("volume {name}\n  type {kind}\n");
    for (option, value) in options {
        let _ = writeln!(text, "  option {option} {value}");
    }
    if !below.is_empty() {
        let _ = writeln!(text, "  subvolumes {below}");
    }
    text + "end-volume\n"
}
