//! The part of a document that is made from a report, between two markers.

use super::number::number;
use super::text::want;
use crate::error::{Error, Result};
use crate::results::{CPU, CaseReport, IOPS, MIB_S, P99, Report, median, spread};
use std::fmt::Write;

/// What stands before the part.
pub const BEGIN: &str = "<!-- urbd bench: begin -->";
/// What stands behind it.
pub const END: &str = "<!-- urbd bench: end -->";

/// `document` with the part between its markers made anew.
///
/// # Errors
/// If it has not both markers, in this order.
pub fn renew(document: &str, report: &Report) -> Result<String> {
    let missing = || Error::new(format!("the document has no lines {BEGIN} and {END}"));
    let begin = document.find(BEGIN).ok_or_else(missing)? + BEGIN.len();
    let end = document[begin..].find(END).ok_or_else(missing)? + begin;
    Ok(format!("{}\n{}{}", &document[..begin], markdown(report), &document[end..]))
}

/// The bars as a table, and the figures of every case.
#[must_use]
pub fn markdown(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "\n{}, {} rounds, {}.\n", report.machine.line(), report.rounds, report.scale);
    out.push_str("| case | bar | wanted | measured | spread | |\n|---|---|---|---|---|---|\n");
    for (case, bar) in report.cases.iter().flat_map(|c| c.bars.iter().map(move |b| (c, b))) {
        let (a, b) = spread(&bar.values).unwrap_or_default();
        let (measured, verdict) = match (bar.measured(), bar.is_met()) {
            (Some(value), Some(true)) => (number(value), "met"),
            (Some(value), _) => (number(value), "**missed**"),
            _ => (String::new(), "not measured"),
        };
        let range = if bar.values.is_empty() { String::new() } else { format!("{} to {}", number(a), number(b)) };
        let _ = writeln!(out, "| {} | {} | {} | {measured} | {range} | {verdict} |", case.name, bar.what, want(bar));
    }
    for case in &report.cases {
        figures(&mut out, case);
    }
    out
}

fn figures(out: &mut String, case: &CaseReport) {
    let _ = writeln!(out, "\n### {}\n\n{}\n", case.title, case.about);
    for absent in &case.absent {
        let _ = writeln!(out, "Absent: {}: {}\n", absent.contender, absent.why);
    }
    if case.foreign_cpus > 0.2 {
        let _ = writeln!(out, "Other programs used {:.1} CPUs meanwhile.\n", case.foreign_cpus);
    }
    if case.rows.is_empty() {
        return;
    }
    out.push_str("| job | contender | IOPS | MiB/s | p99, us | CPU per request, us |\n|---|---|---|---|---|---|\n");
    for job in case.jobs() {
        let rows = case.rows.iter().filter(|r| r.job == job && r.metric == IOPS);
        for row in rows {
            let cell = |metric| median(case.values(job, &row.contender, metric)).map(number).unwrap_or_default();
            let cells = [IOPS, MIB_S, P99, CPU].map(cell);
            let _ = writeln!(out, "| {job} | {} | {} |", row.contender, cells.join(" | "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Relation;

    fn report() -> Report {
        let mut case = CaseReport { name: "c".into(), title: "T".into(), about: "A".into(), ..CaseReport::default() };
        case.record("job", "urbd", IOPS, 100.0);
        case.bar("x / y", Relation::AtLeast, 0.6, vec![0.5]);
        Report { cases: vec![case], ..Report::default() }
    }

    #[test]
    fn only_the_part_between_the_markers_changes() {
        let document = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = renew(&document, &report()).unwrap();
        assert!(new.starts_with("before\n") && new.ends_with("\nafter\n") && !new.contains("old"));
        assert!(new.contains("| c | x / y | >= 0.60 | 0.50 | 0.50 to 0.50 | **missed** |"), "{new}");
        assert!(new.contains("| job | urbd | 100 |"));
        assert_eq!(renew(&new, &report()).unwrap(), new, "making it twice changes nothing");
        assert!(renew("no markers", &report()).is_err());
        assert!(renew(&format!("{END}{BEGIN}"), &report()).is_err());
    }
}
