//! The bare work of a mirrored write, `bench/limit.c`: the mark of 100 %.

use crate::alternatives::{PATIENCE, Server, uri_of};
use crate::error::{Error, Result};
use crate::latency::Latencies;
use crate::pair::{PRIMARY, SECONDARY};
use crate::process::{Process, find_program, output};
use crate::target::{Target, Watched};
use crate::workload::{Outcome, Until, Workload};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("../../../bench/limit.c");

/// The compiled program with two files of equal size. It knows only random writes.
pub struct Limit {
    program: PathBuf,
    files: [PathBuf; 2],
}

impl Limit {
    /// Compiles it in `dir`.
    ///
    /// # Errors
    /// If there is no C compiler, or it fails.
    pub fn new(dir: &Path, files: [PathBuf; 2]) -> Result<Limit> {
        Ok(Limit { program: compile(dir)?, files })
    }
}

fn compile(dir: &Path) -> Result<PathBuf> {
    let compiler = find_program("cc").ok_or_else(|| Error::new("no C compiler (cc) to build the limit with"))?;
    let (source, program) = (dir.join("limit.c"), dir.join("limit"));
    fs::write(&source, SOURCE).map_err(Error::io(source.display()))?;
    output(Command::new(compiler).arg("-O2").arg("-o").arg(&program).arg(&source))?;
    Ok(program)
}

/// The same work for writes of 4 KiB that come over NBD, from one connection at a time.
pub struct ServedLimit {
    process: Process,
    socket: PathBuf,
}

impl ServedLimit {
    /// Compiles it in `dir`, and serves on a socket there.
    ///
    /// # Errors
    /// If there is no C compiler, or the program does not start.
    pub fn start(dir: &Path, files: &[PathBuf; 2]) -> Result<ServedLimit> {
        let socket = dir.join("limit.sock");
        let mut command = Command::new(compile(dir)?);
        // Depth and number of writes are the client's.
        command.args(files).args(["4096", "1", "1", "unpinned"]).arg(&socket);
        let mut process = Process::start("limit", dir, command)?;
        process.wait_until("listens", PATIENCE, || socket.exists())?;
        Ok(ServedLimit { process, socket })
    }
}

impl Server for ServedLimit {
    fn uri(&self) -> String {
        uri_of(&self.socket)
    }

    fn watched(&self) -> Vec<Watched> {
        let pid = self.process.pid();
        // Not every kernel tells who a process's children are.
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let second = children.split_whitespace().next().and_then(|word| word.parse().ok());
        let second = second.map(|pid| Watched::new(SECONDARY, pid));
        [Watched::new(PRIMARY, pid)].into_iter().chain(second).collect()
    }
}

impl Target for Limit {
    fn run(&mut self, workload: &Workload) -> Result<Outcome> {
        let until = match workload.until {
            Until::Requests(n) => n.to_string(),
            Until::Millis(ms) => format!("{ms}ms"),
        };
        let mut command = Command::new(&self.program);
        command.args(&self.files).arg(workload.block.to_string()).arg(workload.depth.to_string());
        let line = output(command.arg(until).arg("unpinned"))?;
        parse(&line, workload).ok_or_else(|| Error::new(format!("the limit said what is not understood: {line}")))
    }
}

/// `59000 IOPS, 5.10 us CPU per write (2.60 + 2.50), 230.5 MiB/s`
fn parse(line: &str, workload: &Workload) -> Option<Outcome> {
    let numbers: Vec<f64> = line.split([' ', '(', ')', ',']).filter_map(|word| word.parse().ok()).collect();
    let [iops, _, first, second, _] = numbers[..] else { return None };
    let requests = (iops as u64).max(1);
    let mut latencies = Latencies::default();
    // A closed loop: what is in flight divided by how much ends in a second.
    latencies.record((f64::from(workload.depth) / iops * 1e9) as u64);
    let cpu = [(PRIMARY, first), (SECONDARY, second)];
    Some(Outcome {
        requests,
        bytes: requests * u64::from(workload.block),
        seconds: requests as f64 / iops,
        latencies,
        cpu: cpu.map(|(role, us)| (role.to_owned(), us * requests as f64 / 1e6)).into(),
        ..Outcome::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Pattern;

    #[test]
    fn its_line_is_understood() {
        let workload = Workload::writes(Pattern::Random, 4096, 64);
        let outcome = parse("59000 IOPS, 5.10 us CPU per write (2.60 + 2.50), 230.5 MiB/s\n", &workload).unwrap();
        assert!((outcome.iops() - 59000.0).abs() < 1.0);
        assert!((outcome.cpu_per_request(SECONDARY).unwrap() - 2.5).abs() < 0.01);
        assert!((outcome.latencies.mean() - 1084.0).abs() < 11.0);
        assert_eq!(parse("nonsense", &workload), None);
    }
}
