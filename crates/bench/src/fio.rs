//! fio's NBD engine: the client program that everybody knows.

use crate::error::{Error, Result};
use crate::latency::Latencies;
use crate::process::{find_program, output};
use crate::target::Target;
use crate::workload::{Outcome, Pattern, Until, Workload};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// An NBD export that fio loads.
pub struct Fio {
    program: PathBuf,
    uri: String,
}

impl Fio {
    /// The export with that URI.
    ///
    /// # Errors
    /// If fio is not installed, or has no NBD engine.
    pub fn new(uri: &str) -> Result<Fio> {
        let program = find_program("fio").ok_or_else(|| Error::new("fio is not installed"))?;
        let engines = output(Command::new(&program).arg("--enghelp"))?;
        if !engines.lines().any(|line| line.trim() == "nbd") {
            return Err(Error::new("this fio has no NBD engine"));
        }
        Ok(Fio { program, uri: uri.to_owned() })
    }
}

impl Target for Fio {
    fn run(&mut self, workload: &Workload) -> Result<Outcome> {
        let mut command = Command::new(&self.program);
        command.args(["--name=bench", "--ioengine=nbd", "--output-format=json+", "--randrepeat=0", "--thread"]);
        command.args(["--group_reporting", &format!("--uri={}", self.uri)]).args(arguments(workload)?);
        let out = output(&mut command)?;
        let start = out.find('{').ok_or_else(|| Error::new(format!("fio said: {out}")))?;
        let json: Value = serde_json::from_str(&out[start..]).map_err(|e| Error::new(format!("fio's JSON: {e}")))?;
        Ok(outcome(&json["jobs"][0], workload))
    }
}

fn arguments(w: &Workload) -> Result<Vec<String>> {
    if w.verify || w.flush_every > 0 {
        return Err(Error::new("fio is not asked to verify or flush here"));
    }
    let rw = match (w.pattern, w.read_percent) {
        (Pattern::Sequential, 0) => "write",
        (Pattern::Sequential, 100) => "read",
        (Pattern::Sequential, _) => "rw",
        (Pattern::Random, 0) => "randwrite",
        (Pattern::Random, 100) => "randread",
        (Pattern::Random, _) => "randrw",
    };
    let parts = w.split(w.offset + w.span);
    let part = &parts[0];
    let mut arguments = vec![
        format!("--rw={rw}"),
        format!("--rwmixread={}", w.read_percent),
        format!("--bs={}", w.block),
        format!("--iodepth={}", part.depth),
        format!("--numjobs={}", parts.len()),
        format!("--size={}", part.span),
        format!("--offset_increment={}", part.span),
        format!("--offset={}", w.offset),
        format!("--randseed={}", w.seed),
    ];
    match part.until {
        Until::Millis(ms) => arguments.extend(["--time_based".into(), format!("--runtime={ms}ms")]),
        Until::Requests(n) => arguments.push(format!("--number_ios={n}")),
    }
    Ok(arguments)
}

/// From one job of fio's output in the form `json+`.
fn outcome(job: &Value, workload: &Workload) -> Outcome {
    let kinds = [&job["read"], &job["write"]];
    let sum = |field: &str| kinds.iter().filter_map(|kind| kind[field].as_u64()).sum::<u64>();
    let mut latencies = Latencies::default();
    for kind in kinds {
        let bins = kind["clat_ns"]["bins"].as_object();
        for (nanos, count) in bins.into_iter().flatten() {
            if let (Ok(nanos), Some(count)) = (nanos.parse(), count.as_u64()) {
                latencies.add(&Latencies::from_buckets(&[(nanos, count)]));
            }
        }
    }
    let errors = job["total_err"].as_u64().unwrap_or_default();
    let runtime = kinds.iter().filter_map(|kind| kind["runtime"].as_f64()).fold(0.0, f64::max);
    Outcome {
        requests: sum("total_ios"),
        bytes: sum("total_ios") * u64::from(workload.block),
        seconds: runtime / 1e3,
        errors,
        first_error: (errors > 0).then(|| format!("fio: error {}", job["error"])),
        latencies,
        ..Outcome::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_jobs_begin_at_blocks() {
        let mut workload = Workload::writes(Pattern::Sequential, 4096, 256);
        (workload.connections, workload.span) = (16, 536_817_664);
        let arguments = arguments(&workload).unwrap();
        let part = 536_817_664 / 16 / 4096 * 4096;
        for wanted in [format!("--size={part}"), format!("--offset_increment={part}")] {
            assert!(arguments.contains(&wanted), "{arguments:?}");
        }
    }

    #[test]
    fn its_output_is_understood() {
        let job = serde_json::json!({
            "total_err": 0,
            "read": {"total_ios": 0, "runtime": 0, "clat_ns": {}},
            "write": {"total_ios": 3, "runtime": 1500, "clat_ns": {"bins": {"1000": 2, "8000": 1}}},
        });
        let outcome = outcome(&job, &Workload::writes(Pattern::Random, 4096, 1));
        assert_eq!((outcome.requests, outcome.bytes, outcome.errors), (3, 12288, 0));
        assert!((outcome.iops() - 2.0).abs() < 1e-9);
        assert_eq!(outcome.latencies.count(), 3);
    }

    #[test]
    fn depth_is_shared_by_its_jobs() {
        let workload = Workload { connections: 16, span: 16 << 20, ..Workload::reads(Pattern::Random, 4096, 256) };
        let arguments = arguments(&workload).unwrap();
        for wanted in ["--rw=randread", "--iodepth=16", "--numjobs=16", "--size=1048576", "--offset_increment=1048576"]
        {
            assert!(arguments.iter().any(|a| a == wanted), "{wanted}: {arguments:?}");
        }
    }
}
