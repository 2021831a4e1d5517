//! For a terminal.

use super::number::number;
use super::stages;
use crate::results::{Bar, CPU, CaseReport, IOPS, LATENCY, MIB_S, P99, Relation, Report, Row, median, spread};
use std::fmt::Write;

/// The whole report.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{}", report.machine.line());
    let _ = writeln!(out, "{} rounds, interleaved; medians, in brackets the least and the most\n", report.rounds);
    for case in &report.cases {
        self::case(&mut out, case);
    }
    let all = report.cases.iter().flat_map(|c| &c.bars);
    let (met, judged) = all.fold((0, 0), |(met, judged), bar| match bar.is_met() {
        Some(true) => (met + 1, judged + 1),
        Some(false) => (met, judged + 1),
        None => (met, judged),
    });
    let _ = writeln!(out, "{met} of {judged} bars are met");
    out
}

fn case(out: &mut String, case: &CaseReport) {
    let _ = writeln!(out, "{} ({})", case.title, case.name);
    for job in case.jobs() {
        let _ = writeln!(out, "  {job}");
        let rows: Vec<&Row> = case.rows.iter().filter(|r| r.job == job).collect();
        let mut contenders: Vec<&str> = rows.iter().map(|r| r.contender.as_str()).collect();
        contenders.sort_unstable();
        contenders.dedup();
        for contender in contenders {
            let _ = writeln!(out, "    {contender:24} {}", figures(&rows, contender));
            if let Some(line) = stages::line(&super::stages_of(case, job, contender)) {
                let _ = writeln!(out, "    {:24} mean us: {line}", "");
            }
        }
    }
    for bar in &case.bars {
        let _ = writeln!(out, "  {}", self::bar(bar));
    }
    for note in &case.notes {
        let _ = writeln!(out, "  {note}");
    }
    for absent in &case.absent {
        let _ = writeln!(out, "  absent: {}: {}", absent.contender, absent.why);
    }
    if case.foreign_cpus > 0.2 {
        let _ = writeln!(out, "  others used {:.1} CPUs meanwhile: figures are worth less", case.foreign_cpus);
    }
    out.push('\n');
}

/// The metrics that everybody wants to see, then the others.
fn figures(rows: &[&Row], contender: &str) -> String {
    let usual = [IOPS, MIB_S, LATENCY, P99, CPU];
    let of = |metric: &str| rows.iter().find(|r| r.contender == contender && r.metric == metric);
    let known = usual.iter().filter_map(|metric| of(metric));
    let others = rows.iter().filter(|r| r.contender == contender && !usual.contains(&r.metric.as_str()));
    let others = others.filter(|r| !r.metric.starts_with("CPU "));
    let shown = known.chain(others).map(|row| {
        let value = median(&row.values).unwrap_or_default();
        let (least, most) = spread(&row.values).unwrap_or_default();
        match row.metric == IOPS || row.metric == MIB_S {
            true => format!("{} {} ({}..{})", number(value), row.metric, number(least), number(most)),
            false => format!("{} {}", number(value), row.metric),
        }
    });
    shown.collect::<Vec<_>>().join("  ")
}

/// One line about a bar.
pub(super) fn bar(bar: &Bar) -> String {
    let want = want(bar);
    match (bar.measured(), bar.is_met()) {
        (Some(value), Some(met)) => {
            let (least, most) = spread(&bar.values).unwrap_or_default();
            let verdict = if met { "met   " } else { "MISSED" };
            let range = format!("({}..{})", number(least), number(most));
            format!("{verdict} {}: {} {range}, bar {want}", bar.what, number(value))
        }
        _ => format!("not measured: {}, bar {want}", bar.what),
    }
}

/// Where the bar is, with its direction.
pub(super) fn want(bar: &Bar) -> String {
    match bar.relation {
        Relation::AtLeast => format!(">= {}", number(bar.want)),
        Relation::AtMost => format!("<= {}", number(bar.want)),
    }
}
