//! Asks the processes of all resources, or of some, how they are.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use control::client::{ClientError, socket_path};
use control::{Client, ResourceStatus};

/// A process that does not answer within this time is left alone for [`REST`].
const PATIENCE: Duration = Duration::from_millis(500);
const REST: Duration = Duration::from_secs(10);
/// What does not run is asked for again after this time, and when what runs changes.
const ABSENT: Duration = Duration::from_secs(5);

/// Gives the name of each resource that is configured and not among those named, which run, and why it does not run.
type AskAbsent = Box<dyn Fn(&[String]) -> Reasons + Send>;
/// A name and a reason each.
type Reasons = Vec<(String, String)>;

/// What is known of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// Its status, or why there is none.
    pub status: Result<ResourceStatus, Unseen>,
}

/// Why there is no status, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unseen {
    /// No process runs the resource.
    NotRunning(String),
    /// The process does not answer.
    Silent(String),
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unseen::NotRunning(why) => write!(f, "not running: {why}"),
            Unseen::Silent(why) => f.write_str(why),
        }
    }
}

/// Keeps a connection to each process.
pub struct Looker {
    run_dir: PathBuf,
    /// `None`: all that run.
    names: Option<Vec<String>>,
    clients: BTreeMap<String, Client>,
    /// Until when a silent process is left alone.
    silent: BTreeMap<String, Instant>,
    ask_absent: Option<AskAbsent>,
    /// What was answered, when, and for which that run.
    absent: Option<(Instant, Vec<String>, Reasons)>,
}

impl fmt::Debug for Looker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Looker").field("run_dir", &self.run_dir).field("names", &self.names).finish_non_exhaustive()
    }
}

impl Looker {
    /// Of the resources with a socket in `run_dir`; of only these, if any are named.
    pub fn new(run_dir: &Path, names: Vec<String>) -> Looker {
        let names = Some(names).filter(|names| !names.is_empty());
        Looker {
            run_dir: run_dir.to_owned(),
            names,
            clients: BTreeMap::new(),
            silent: BTreeMap::new(),
            ask_absent: None,
            absent: None,
        }
    }

    /// Also shows what is configured and does not run, by the answer of `ask`.
    #[must_use]
    pub fn with_absent(mut self, ask: impl Fn(&[String]) -> Vec<(String, String)> + Send + 'static) -> Looker {
        self.ask_absent = Some(Box::new(ask));
        self
    }

    /// The present state of each resource, by name. One that has ended is left out, unless it was named or is to be
    /// shown by [`Looker::with_absent`].
    pub fn look(&mut self) -> Vec<Seen> {
        let (named, names) = match &self.names {
            Some(names) => (true, names.clone()),
            None => (false, self.running()),
        };
        self.clients.retain(|name, _| names.contains(name));
        let mut gone = Vec::new();
        let mut seen = Vec::new();
        for name in names {
            match self.ask(&name) {
                Err(ClientError::NotRunning(_)) => gone.push(name),
                Err(e) => seen.push(Seen { name, status: Err(Unseen::Silent(control::plain(&e.to_string()))) }),
                Ok(status) => seen.push(Seen { name, status: Ok(status) }),
            }
        }
        let running: Vec<String> = seen.iter().map(|s| s.name.clone()).collect();
        let absent = self.absent(running);
        let not_running = |name: String, why: String| Seen { name, status: Err(Unseen::NotRunning(why)) };
        if named {
            for name in gone {
                let why = absent.iter().find(|(absent, _)| *absent == name).map(|(_, why)| why.clone());
                seen.push(not_running(name, why.unwrap_or_else(|| "it was not started, or it was stopped".to_owned())));
            }
        } else {
            seen.extend(absent.into_iter().map(|(name, why)| not_running(name, why)));
        }
        seen.sort_by(|a, b| a.name.cmp(&b.name));
        seen
    }

    /// What does not run, by the latest answer if it is young enough.
    fn absent(&mut self, running: Vec<String>) -> Reasons {
        let Some(ask) = &self.ask_absent else { return Vec::new() };
        if let Some((when, of, answer)) = &self.absent
            && *of == running
            && when.elapsed() < ABSENT
        {
            return answer.clone();
        }
        let answer = ask(&running);
        self.absent = Some((Instant::now(), running, answer.clone()));
        answer
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_configured_and_does_not_run_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        // Left behind by a process that was killed.
        fs::write(dir.path().join("r1.sock"), "").unwrap();
        let ask = |running: &[String]| {
            assert!(running.is_empty());
            vec![
                ("r1".to_owned(), "its process was killed".to_owned()),
                ("r0".to_owned(), "its unit failed".to_owned()),
            ]
        };
        let seen = |names: &[&str]| {
            let names = names.iter().map(|&n| n.to_owned()).collect();
            let seen = Looker::new(dir.path(), names).with_absent(ask).look();
            seen.into_iter().map(|s| format!("{} {}", s.name, s.status.unwrap_err())).collect::<Vec<_>>()
        };
        assert_eq!(seen(&[]), ["r0 not running: its unit failed", "r1 not running: its process was killed"]);
        assert_eq!(seen(&["r1"]), ["r1 not running: its process was killed"]);
        assert_eq!(seen(&["r2"]), ["r2 not running: it was not started, or it was stopped"]);
        assert!(Looker::new(dir.path(), Vec::new()).look().is_empty());
    }
}
