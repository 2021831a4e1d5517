//! One thread that serves a mounted file system until it is unmounted.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use urbd_frontends::fuse::{self, Event, MESSAGE_MAX, Session};
use urbd_frontends::{Errno, Export};

use super::disk::Disk;

/// Unmounts when dropped.
pub struct Mounted {
    pub disk: Arc<Disk>,
    pub session: Arc<Mutex<Session>>,
    directory: tempfile::TempDir,
    thread: Option<JoinHandle<()>>,
}

impl Mounted {
    /// Serves every export from the same disk.
    pub fn start(disk: Disk, exports: Vec<Export>) -> Mounted {
        let directory = tempfile::Builder::new().prefix("urbd-fuse-").tempdir().unwrap();
        let device = File::from(fuse::mount(directory.path()).unwrap());
        let disk = Arc::new(disk);
        let session = Arc::new(Mutex::new(Session::new(exports, (0, 0))));
        let (thread_disk, thread_session) = (disk.clone(), session.clone());
        let thread = std::thread::spawn(move || serve(device, &thread_disk, &thread_session));
        Mounted { disk, session, directory, thread: Some(thread) }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = fuse::unmount(self.path()) {
            println!("unmount {}: {error}", self.path().display());
        } else if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn serve(mut device: File, disk: &Disk, session: &Mutex<Session>) {
    let (mut buffer, mut out, mut payload) = (vec![0; MESSAGE_MAX], Vec::new(), Vec::new());
    loop {
        let n = match device.read(&mut buffer) {
            Ok(n) => n,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOENT | libc::EAGAIN)) => continue,
            // ENODEV: unmounted.
            Err(_) => return,
        };
        let event = session.lock().unwrap().parse(&buffer[..n], &mut out);
        match event {
            Event::None | Event::Knock(_) | Event::Interrupted(_) => (),
            Event::Reply | Event::Released(_) | Event::Destroyed => answer(&mut device, &[IoSlice::new(&out)]),
            Event::Request { request, payload: range, .. } => {
                payload.clear();
                payload.extend_from_slice(&buffer[range]);
                let result: Result<(), Errno> = disk.execute(&request, &mut payload);
                let header = Session::reply(&request, result);
                let sent = if result.is_ok() && request.payload_out() > 0 { &payload[..] } else { &[] };
                answer(&mut device, &[IoSlice::new(&header), IoSlice::new(sent)]);
            }
        }
        out.clear();
    }
}

fn answer(device: &mut File, parts: &[IoSlice<'_>]) {
    // ENOENT: the request was interrupted and forgotten meanwhile.
    if let Err(error) = device.write_vectored(parts) {
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}");
    }
}
