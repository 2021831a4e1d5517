//! One thread per connection on a Unix socket.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

use urbd_frontends::Export;
use urbd_frontends::nbd::{Exports, Session, Step};

use super::disk::Disk;

pub struct Server {
    pub disk: Arc<Disk>,
    directory: tempfile::TempDir,
}

impl Server {
    /// Serves every export from the same disk until the test process ends.
    pub fn start(disk: Disk, exports: Vec<Export>) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let disk = Arc::new(disk);
        let listener = UnixListener::bind(directory.path().join("nbd")).unwrap();
        let shared = disk.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (disk, exports) = (shared.clone(), exports.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &disk, &exports));
            }
        });
        Server { disk, directory }
    }

    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.directory.path().join("nbd").display())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

fn serve(mut stream: UnixStream, disk: &Disk, exports: &dyn Exports) -> Option<()> {
    let (mut input, mut out, mut payload) = (Vec::new(), Vec::new(), Vec::new());
    let mut session = Session::start(&mut out).with_owner_extents();
    loop {
        let step = session.parse(&input, exports, &mut out);
        stream.write_all(&out).ok()?;
        out.clear();
        match step {
            Step::NeedMore { at_least } => receive(&mut stream, &mut input, at_least)?,
            Step::Consumed { n } => drop(input.drain(..n)),
            Step::Request { n, request, payload_len } => {
                let len = payload_len as usize;
                receive(&mut stream, &mut input, n + len)?;
                payload.clear();
                payload.extend_from_slice(&input[n..n + len]);
                input.drain(..n + len);
                let result = disk.execute(&request, &mut payload);
                stream.write_all(&session.reply(&request, result)).ok()?;
                if result.is_ok() && request.payload_out() > 0 {
                    stream.write_all(&payload).ok()?;
                }
            }
            Step::BlockStatus { n, query } => {
                input.drain(..n);
                session.block_status_reply(&query, &disk.extents(query.offset, query.len), &mut out);
            }
            Step::Close { violation, .. } => {
                if let Some(violation) = violation {
                    println!("closed: {violation}");
                }
                return None;
            }
        }
    }
}

/// Reads until `input` has at least `len` bytes; `None` when the client has gone.
fn receive(stream: &mut UnixStream, input: &mut Vec<u8>, len: usize) -> Option<()> {
    let mut chunk = [0; 1 << 16];
    while input.len() < len {
        let n = stream.read(&mut chunk).ok().filter(|n| *n > 0)?;
        input.extend_from_slice(&chunk[..n]);
    }
    Some(())
}
