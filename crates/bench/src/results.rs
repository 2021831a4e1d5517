//! What was measured: one value per round for every job, contender and metric, and the bars that are judged by them.

use crate::error::{Error, Result};
use crate::latency::{Latencies, percentiles};
use crate::machine::Machine;
use crate::workload::{Outcome, StageTime};
use serde::{Deserialize, Serialize};

/// The version of the stored form; a reader refuses others.
pub const VERSION: u32 = 1;

/// Requests per second.
pub const IOPS: &str = "IOPS";
/// Throughput.
pub const MIB_S: &str = "MiB/s";
/// Mean latency in microseconds.
pub const LATENCY: &str = "latency us";
/// 99th percentile of the latency in microseconds.
pub const P99: &str = "p99 us";
/// CPU microseconds per request, of all processes that replicate.
pub const CPU: &str = "CPU us";

/// Everything of one call.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// Where.
    pub machine: Machine,
    /// `quick`, `full` or `tiny`.
    pub scale: String,
    /// Rounds, in each of which every contender had its turn.
    pub rounds: u32,
    /// The cases, in the order in which they ran.
    pub cases: Vec<CaseReport>,
}

/// One case.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CaseReport {
    /// Its name for `--only`.
    pub name: String,
    /// A heading.
    pub title: String,
    /// What is compared, on what.
    pub about: String,
    /// The figures.
    pub rows: Vec<Row>,
    /// Latencies over all rounds.
    pub latencies: Vec<LatencyRow>,
    /// Where the time of requests went on urbd's nodes, over all rounds.
    #[serde(default)]
    pub stages: Vec<StageRow>,
    /// What it is judged by.
    pub bars: Vec<Bar>,
    /// Contenders that could not be measured here, and why.
    pub absent: Vec<Absent>,
    /// What else is to be known.
    #[serde(default)]
    pub notes: Vec<String>,
    /// CPUs that other programs used meanwhile: the larger, the less the figures mean.
    pub foreign_cpus: f64,
    /// Seconds that it took.
    pub took: f64,
}

/// One metric of one contender at one job.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// E.g. `4k random write QD64`.
    pub job: String,
    /// E.g. `urbd`.
    pub contender: String,
    /// E.g. [`IOPS`].
    pub metric: String,
    /// One per round.
    pub values: Vec<f64>,
}

/// The distribution of latencies of one contender at one job.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct LatencyRow {
    /// As in [`Row`].
    pub job: String,
    /// As in [`Row`].
    pub contender: String,
    /// Over all rounds.
    pub latencies: Latencies,
}

/// Where the time of one contender's requests went at one job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StageRow {
    /// As in [`Row`].
    pub job: String,
    /// As in [`Row`].
    pub contender: String,
    /// One stage on one node, over all rounds.
    pub stage: StageTime,
}

/// Who could not take part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Absent {
    /// The contender.
    pub contender: String,
    /// Why, and what would help.
    pub why: String,
}

/// On which side of the bar is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// The measured value must not be smaller.
    AtLeast,
    /// The measured value must not be larger.
    AtMost,
}

/// A bar, and where we are.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Bar {
    /// What is compared.
    pub what: String,
    /// Where good is.
    pub relation: Relation,
    /// Where the bar is.
    pub want: f64,
    /// One per round: ratios are made within a round. Empty: could not be measured.
    pub values: Vec<f64>,
}

impl Bar {
    /// The median over the rounds.
    #[must_use]
    pub fn measured(&self) -> Option<f64> {
        median(&self.values)
    }

    /// Whether it is met; `None`: not measured.
    #[must_use]
    pub fn is_met(&self) -> Option<bool> {
        self.measured().map(|value| match self.relation {
            Relation::AtLeast => value >= self.want,
            Relation::AtMost => value <= self.want,
        })
    }
}

impl Report {
    /// From its stored form.
    ///
    /// # Errors
    /// If it is not one, or of another version.
    pub fn from_json(text: &str) -> Result<Report> {
        let report: Report = serde_json::from_str(text).map_err(|e| Error::new(format!("not a report: {e}")))?;
        if report.version != VERSION {
            return Err(Error::new(format!("a report of version {}, this is {VERSION}", report.version)));
        }
        Ok(report)
    }
}

impl CaseReport {
    /// Adds a round's value.
    pub fn record(&mut self, job: &str, contender: &str, metric: &str, value: f64) {
        let is_it = |r: &&mut Row| r.job == job && r.contender == contender && r.metric == metric;
        match self.rows.iter_mut().find(is_it) {
            Some(row) => row.values.push(value),
            None => {
                let (job, contender, metric) = (job.to_owned(), contender.to_owned(), metric.to_owned());
                self.rows.push(Row { job, contender, metric, values: vec![value] });
            }
        }
    }

    /// Adds a round's outcome.
    ///
    /// # Errors
    /// If requests failed: figures of a failed run are not kept.
    pub fn outcome(&mut self, job: &str, contender: &str, outcome: &Outcome) -> Result<()> {
        if let Some(what) = &outcome.first_error {
            return Err(Error::new(format!("{contender}, {job}: {} requests failed: {what}", outcome.errors)));
        }
        self.record(job, contender, IOPS, outcome.iops());
        self.record(job, contender, MIB_S, outcome.mib_per_second());
        self.record(job, contender, LATENCY, outcome.latencies.mean());
        self.record(job, contender, P99, outcome.latencies.percentile(99.0));
        let per_request = 1e6 / outcome.requests.max(1) as f64;
        if !outcome.cpu.is_empty() {
            let all: f64 = outcome.cpu.iter().map(|(_, seconds)| seconds).sum();
            self.record(job, contender, CPU, all * per_request);
        }
        let gib = outcome.bytes as f64 / f64::from(1 << 30);
        for (role, seconds) in &outcome.cpu {
            self.record(job, contender, &cpu_of(role), seconds * per_request);
            self.record(job, contender, &cpu_per_gib(role), seconds / gib.max(1e-9));
        }
        self.add_latencies(job, contender, &outcome.latencies);
        outcome.counts.iter().for_each(|(metric, value)| self.record(job, contender, metric, *value));
        outcome.stages.iter().for_each(|stage| self.add_stage(job, contender, stage));
        Ok(())
    }

    fn add_stage(&mut self, job: &str, contender: &str, stage: &StageTime) {
        let of = |s: &StageTime| (s.role.clone(), s.latency.request.clone(), s.latency.stage.clone());
        let is_it = |r: &&mut StageRow| r.job == job && r.contender == contender && of(&r.stage) == of(stage);
        match self.stages.iter_mut().find(is_it) {
            Some(row) => row.stage.latency.add(&stage.latency),
            None => {
                let (job, contender) = (job.to_owned(), contender.to_owned());
                self.stages.push(StageRow { job, contender, stage: stage.clone() });
            }
        }
    }

    fn add_latencies(&mut self, job: &str, contender: &str, latencies: &Latencies) {
        match self.latencies.iter_mut().find(|r| r.job == job && r.contender == contender) {
            Some(row) => row.latencies.add(latencies),
            None => {
                let (job, contender) = (job.to_owned(), contender.to_owned());
                self.latencies.push(LatencyRow { job, contender, latencies: latencies.clone() });
            }
        }
    }

    /// Who could not take part, and why.
    pub fn absent(&mut self, contender: &str, why: impl ToString) {
        if !self.absent.iter().any(|a| a.contender == contender) {
            self.absent.push(Absent { contender: contender.to_owned(), why: why.to_string() });
        }
    }

    /// Something to be known, once.
    pub fn note(&mut self, text: &str) {
        if !self.notes.iter().any(|n| n == text) {
            self.notes.push(text.to_owned());
        }
    }

    /// The values of a metric, one per round; empty if it was not measured.
    #[must_use]
    pub fn values(&self, job: &str, contender: &str, metric: &str) -> &[f64] {
        let is_it = |r: &&Row| r.job == job && r.contender == contender && r.metric == metric;
        self.rows.iter().find(is_it).map_or(&[], |r| &r.values)
    }

    /// The ratio of two contenders in each round.
    #[must_use]
    pub fn ratios(&self, job: &str, metric: &str, ours: &str, theirs: &str) -> Vec<f64> {
        ratios(self.values(job, ours, metric), self.values(job, theirs, metric))
    }

    /// Adds a bar.
    pub fn bar(&mut self, what: impl Into<String>, relation: Relation, want: f64, values: Vec<f64>) {
        self.bars.push(Bar { what: what.into(), relation, want, values });
    }

    /// Leaves out what no form of the report shows, so that little is to be stored: digits from the sixth on, and the
    /// distributions but for a few percentiles.
    pub(crate) fn thin(&mut self) {
        let values = self.rows.iter_mut().map(|r| &mut r.values).chain(self.bars.iter_mut().map(|b| &mut b.values));
        values.flatten().for_each(|value| *value = five_digits(*value));
        self.latencies.iter_mut().for_each(|row| row.latencies = row.latencies.thinned());
        for StageRow { stage, .. } in &mut self.stages {
            let l = &mut stage.latency;
            l.buckets = percentiles(&[50.0, 99.0, 100.0], l.count(), |percent| l.percentile_ns(percent));
        }
    }

    /// The jobs, in the order in which they ran.
    #[must_use]
    pub fn jobs(&self) -> Vec<&str> {
        let mut jobs: Vec<&str> = Vec::new();
        self.rows.iter().for_each(|r| {
            if !jobs.contains(&r.job.as_str()) {
                jobs.push(&r.job);
            }
        });
        jobs
    }
}

fn five_digits(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

/// CPU microseconds per request of the process with that role.
#[must_use]
pub fn cpu_of(role: &str) -> String {
    format!("CPU us, {role}")
}

/// CPU seconds per GiB of the process with that role.
#[must_use]
pub fn cpu_per_gib(role: &str) -> String {
    format!("CPU s/GiB, {role}")
}

/// `a / b` in each round that both have.
#[must_use]
pub fn ratios(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).filter(|(_, b)| **b > 0.0).map(|(a, b)| a / b).collect()
}

/// The middle one; of an even number, the mean of the two in the middle. `None` of nothing.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n.is_multiple_of(2) => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
        _ => Some(sorted[middle]),
    }
}

/// The smallest and the largest.
#[must_use]
pub fn spread(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    Some((least, values.iter().copied().max_by(f64::total_cmp)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::StageLatency;

    #[test]
    fn medians_and_spreads() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((1.0, 3.0)));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn bars_are_judged_by_ratios_within_rounds() {
        let mut case = CaseReport::default();
        // The machine was twice as slow in the second round: no ratio changes.
        for (ours, theirs) in [(70.0, 100.0), (35.0, 50.0), (80.0, 100.0)] {
            case.record("job", "urbd", IOPS, ours);
            case.record("job", "other", IOPS, theirs);
        }
        let ratios = case.ratios("job", IOPS, "urbd", "other");
        assert_eq!(ratios, [0.7, 0.7, 0.8]);
        case.bar("at least", Relation::AtLeast, 0.7, ratios.clone());
        case.bar("at most", Relation::AtMost, 0.6, ratios);
        case.bar("not measured", Relation::AtMost, 0.6, case.ratios("job", IOPS, "urbd", "nobody"));
        assert_eq!(case.bars.iter().map(Bar::is_met).collect::<Vec<_>>(), [Some(true), Some(false), None]);
    }

    #[test]
    fn a_failed_run_leaves_no_figures() {
        let mut case = CaseReport::default();
        let failed = Outcome { errors: 2, first_error: Some("EIO".into()), ..Outcome::default() };
        let said = case.outcome("job", "urbd", &failed).unwrap_err().to_string();
        assert_eq!(said, "urbd, job: 2 requests failed: EIO");
        assert!(case.rows.is_empty());
    }

    #[test]
    fn reports_of_other_versions_are_refused() {
        let report = Report { version: VERSION + 1, ..Report::default() };
        let text = serde_json::to_string(&report).unwrap();
        assert!(Report::from_json(&text).unwrap_err().to_string().contains("version 2"));
        assert!(Report::from_json("{}").is_err());
    }

    #[test]
    fn thinned_figures_show_the_same() {
        let buckets = (0..20).map(|n| (256 << n, 10)).collect();
        let latency = StageLatency { request: "write".into(), stage: "disk".into(), sum_ns: 123_456, buckets };
        let stage = StageTime { role: "primary".into(), latency };
        let before = stage.latency.clone();
        let mut case = CaseReport::default();
        case.record("job", "urbd", IOPS, 164.120_306_629_900_94);
        case.stages.push(StageRow { job: "job".into(), contender: "urbd".into(), stage });
        case.thin();
        assert_eq!(case.values("job", "urbd", IOPS), [164.12]);
        let after = &case.stages[0].stage.latency;
        assert_eq!(after.buckets, [(256 << 9, 100), (256 << 19, 100)]);
        assert_eq!((after.mean_ns(), after.percentile_ns(99.0)), (before.mean_ns(), before.percentile_ns(99.0)));
        assert_eq!([0.0, 1e-9, 123_456_789.0].map(five_digits), [0.0, 1e-9, 123_460_000.0]);
    }
}
