//! Asks the processes of all resources, or of some, how they are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use control::client::{ClientError, socket_path};
use control::{Client, ResourceStatus};

/// A process that does not answer within this time is left alone for [`REST`].
const PATIENCE: Duration = Duration::from_millis(500);
const REST: Duration = Duration::from_secs(10);

/// What is known of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// Its status; or why there is none, in words.
    pub status: Result<ResourceStatus, String>,
}

/// Keeps a connection to each process.
#[derive(Debug)]
pub struct Looker {
    run_dir: PathBuf,
    /// `None`: all that run.
    names: Option<Vec<String>>,
    clients: BTreeMap<String, Client>,
    /// Until when a silent process is left alone.
    silent: BTreeMap<String, Instant>,
}

impl Looker {
    /// Of the resources with a socket in `run_dir`; of only these, if any are named.
    pub fn new(run_dir: &Path, names: Vec<String>) -> Looker {
        let names = Some(names).filter(|names| !names.is_empty());
        Looker { run_dir: run_dir.to_owned(), names, clients: BTreeMap::new(), silent: BTreeMap::new() }
    }

    /// The present state of each resource, by name. One that has ended is left out, unless it was named.
    pub fn look(&mut self) -> Vec<Seen> {
        let (named, names) = match &self.names {
            Some(names) => (true, names.clone()),
            None => (false, self.running()),
        };
        self.clients.retain(|name, _| names.contains(name));
        let seen = names.into_iter().filter_map(|name| match self.ask(&name) {
            Err(ClientError::NotRunning(_)) if !named => None,
            Err(ClientError::NotRunning(_)) => Some(Seen { name, status: Err("it does not run".to_owned()) }),
            Err(e) => Some(Seen { name, status: Err(e.to_string()) }),
            Ok(status) => Some(Seen { name, status: Ok(status) }),
        });
        seen.collect()
    }

    fn running(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.run_dir).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|e| Some(e.file_name().to_str()?.strip_suffix(".sock")?.to_owned())).collect();
        names.sort();
        names
    }

    fn ask(&mut self, name: &str) -> Result<ResourceStatus, ClientError> {
        if self.silent.get(name).is_some_and(|until| Instant::now() < *until) {
            return Err(ClientError::Io(std::io::ErrorKind::TimedOut.into()));
        }
        if let Some(client) = self.clients.get_mut(name)
            && let Ok(status) = client.status()
        {
            return Ok(status);
        }
        // It may be another process now, or it had to make room for other clients.
        self.clients.remove(name);
        let begin = Instant::now();
        let asked = Client::connect(&socket_path(&self.run_dir, name), Some(PATIENCE))
            .and_then(|mut client| Ok((client.status()?, client)));
        match asked {
            Ok((status, client)) => {
                self.silent.remove(name);
                self.clients.insert(name.to_owned(), client);
                Ok(status)
            }
            Err(e) => {
                if begin.elapsed() >= PATIENCE {
                    self.silent.insert(name.to_owned(), Instant::now() + REST);
                }
                Err(e)
            }
        }
    }
}
