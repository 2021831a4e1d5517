//! The resource gets another name while it runs: everything that is found by the name moves, and nothing that is open
//! is touched. The files of its devices keep the name that they have ([`files`]).

use super::super::{log, nbd_path};
use super::Handover;
use crate::claim::{self, Moving};
use crate::control_server::ControlServer;
use crate::nbd_server::NbdServer;
use crate::{files, log as journal};
use control::client::socket_path;
use control::{ErrorCode, Event, Failure};
use frontends::keeper::Keeper;
use std::io;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use units::VolumeNr;

impl Handover {
    /// How the files of this resource's devices are called.
    pub(in crate::resource) fn files<'a>(&'a self, resource: &'a str) -> &'a str {
        self.standing.files.as_deref().unwrap_or(resource)
    }

    /// They keep that name.
    fn set_files(&mut self, files: String) {
        self.standing.files = Some(files);
    }

    /// The keeper follows the resource, if there is one.
    fn rename_keeper(&mut self, run_dir: &Path, resource: &str) -> io::Result<()> {
        match self.keeper.is_there() {
            true => self.keeper.rename(run_dir, resource)?,
            false => self.keeper = Keeper::of(run_dir, resource),
        }
        self.command
            .iter_mut()
            .flat_map(|command| command.arguments.last_mut())
            .for_each(|name| *name = resource.into());
        Ok(())
    }

    /// Before anything else of the change is done. Whoever is killed in the middle has one of the two names: that under
    /// which its keeper is found.
    pub(in crate::resource) fn rename(
        &mut self,
        run_dir: &Path,
        (from, to): (&str, &str),
        (control, nbd): (&mut ControlServer, &mut NbdServer),
    ) -> Result<(), Failure> {
        if from == to {
            return Ok(());
        }
        let exists = |text: &str| Failure::new(ErrorCode::ALREADY_EXISTS, format!("{to}: {text}"));
        let failed = |what: &str, e: std::io::Error| {
            Failure::new(ErrorCode::INVALID_REQUEST, format!("{from} cannot be called {to}: {what}: {e}"))
        };
        let sockets =
            [socket_path(run_dir, to), Keeper::of(run_dir, to).path(), nbd_path(run_dir, to, VolumeNr(u16::MAX))];
        // Nobody could connect to one whose path is too long.
        if let Some(e) = sockets.iter().find_map(|path| SocketAddr::from_pathname(path).err()) {
            return Err(failed("its sockets", e));
        }
        let moving = match Moving::begin(run_dir, to) {
            Ok(Some(moving)) => moving,
            Ok(None) => return Err(exists("there is a resource of that name")),
            Err(e) => return Err(failed("the lock", e)),
        };
        if Keeper::of(run_dir, to).is_there() {
            let hint = format!("go on with that one: urbd restart {to}; or end it: urbd down --force {to}");
            return Err(exists("its process has ended, and its devices are kept").with_hint(hint));
        }
        let files = self.files(from).to_owned();
        let before = files::resource_of(run_dir, &files);
        files::note(run_dir, &files, to).map_err(|e| failed("noting whose files its devices have", e))?;
        let moved = control.rename(to, &socket_path(run_dir, to)).map_err(|e| failed("the control socket", e));
        let kept = moved.and_then(|()| {
            let kept = self.rename_keeper(run_dir, to).map_err(|e| failed("its keeper does not move", e));
            kept.inspect_err(|_| drop(control.rename(from, &socket_path(run_dir, from))))
        });
        if let Err(failure) = kept {
            let _ = files::note(run_dir, &files, before.as_deref().unwrap_or(from));
            return Err(failure);
        }
        self.set_files(files);
        for (nr, e) in nbd.rename(to, |nr| nbd_path(run_dir, to, nr)) {
            log("warning", &format!("the socket for NBD clients of volume {nr} stays where it was: {e}"));
        }
        // Last: until then nobody else can begin with the old name.
        if let Err(e) = moving.end(&claim::lock_file(run_dir, from)) {
            log("error", &format!("the lock of {from} does not become that of {to}: {e}"));
        }
        log("info", &format!("{from} is called {to} from now on"));
        if let Err(e) = journal::rename(to, run_dir) {
            log("warning", &format!("the log stays where it was: {e}"));
        }
        control.publish(Event::Renamed { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }
}
