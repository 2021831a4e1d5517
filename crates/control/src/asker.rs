//! Who asks a running resource for something: for who finds it done, and wonders.

use std::fmt;
use std::fs;

use serde::{Deserialize, Serialize};

/// A process that has asked for something, and those that have started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    /// The process, its parent, and so on: number and name.
    pub processes: Vec<(u32, String)>,
    /// The name of its user, or the number.
    pub user: String,
    /// How long ago it was.
    #[serde(default)]
    pub seconds: u64,
}

/// So many processes are named: the tool, the shell around it, the script, and who has started that.
const NAMED: usize = 4;

impl Asker {
    /// A process with this number, of this user, while it lives. Of one in a place that this process cannot see only
    /// the user is known.
    pub fn of(pid: i32, user: u32) -> Asker {
        let mut processes = Vec::new();
        let mut next = u32::try_from(pid).ok().filter(|pid| *pid > 0);
        while let Some(pid) = next.filter(|_| processes.len() < NAMED) {
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { break };
            let Some((name, parent)) = name_and_parent(&stat) else { break };
            processes.push((pid, crate::plain(name)));
            // The first process of all has started everything.
            next = Some(parent).filter(|parent| *parent > 1);
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        Asker { processes, user: name_of(user, &users).map_or_else(|| user.to_string(), crate::plain), seconds: 0 }
    }
}

/// From `/proc/PID/stat`; a name may have brackets and blanks in it.
fn name_and_parent(stat: &str) -> Option<(&str, u32)> {
    let (head, tail) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    Some((name, tail.split(' ').nth(1)?.parse().ok()?))
}

fn name_of(user: u32, passwd: &str) -> Option<&str> {
    let fields = |line: &'_ str| line.split(':').nth(2).and_then(|n| n.parse::<u32>().ok());
    passwd.lines().find(|line| fields(line) == Some(user))?.split(':').next()
}

/// `process 17 (urbd), started by process 16 (sh)`.
impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (pid, name)) in self.processes.iter().enumerate() {
            f.write_str(["", ", started by ", ", by "][at.min(2)])?;
            write!(f, "process {pid} ({name})")?;
        }
        match self.processes.len() {
            0 => f.write_str("a process in another place (a container)"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_those_that_have_started_it() {
        let own = std::process::id();
        let asker = Asker::of(own.cast_signed(), 4_294_967_294);
        assert_eq!(asker.processes[0].0, own);
        assert!(asker.to_string().starts_with(&format!("process {own} (")), "{asker}");
        assert_eq!(asker.user, "4294967294");
        let words = |processes: &[(u32, &str)]| {
            let processes = processes.iter().map(|(pid, name)| (*pid, (*name).to_owned())).collect();
            Asker { processes, user: "root".into(), seconds: 0 }.to_string()
        };
        assert_eq!(words(&[]), "a process in another place (a container)");
        let three = words(&[(9, "urbd"), (8, "sh"), (7, "take-snapshot")]);
        assert_eq!(three, "process 9 (urbd), started by process 8 (sh), by process 7 (take-snapshot)");
    }

    #[test]
    fn names_are_what_they_are() {
        assert_eq!(name_and_parent("17 (a) b (c)) S 3 17 17"), Some(("a) b (c)", 3)));
        assert_eq!(name_and_parent(""), None);
        assert_eq!(name_of(1, "root:x:0:0\ndaemon:x:1:1\n"), Some("daemon"));
        assert_eq!(name_of(7, "root:x:0:0\n"), None);
    }
}
