//! One page with everything in it: nothing is fetched from elsewhere.

use super::number::number;
use super::plot::{self, Colour, Column, escape};
use super::text::want;
use crate::results::{Bar, CPU, CaseReport, IOPS, LATENCY, MIB_S, P99, Report, median, spread};
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

/// The whole page.
#[must_use]
pub fn html(report: &Report) -> String {
    let mut out = String::from("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<meta name=\"viewport\" content=\"width=device-width\"><title>urbd bench</title><style>{STYLE}</style></head><body>"
    );
    head(&mut out, report);
    for case in &report.cases {
        section(&mut out, case);
    }
    out + "</body></html>\n"
}

fn head(out: &mut String, report: &Report) {
    let m = &report.machine;
    let bars: Vec<&Bar> = report.cases.iter().flat_map(|c| &c.bars).collect();
    let count = |is: Option<bool>| bars.iter().filter(|b| b.is_met() == is).count();
    let took: f64 = report.cases.iter().map(|c| c.took).sum();
    let _ = write!(
        out,
        "<h1>urbd, measured</h1><p class=\"soft\">{} x {}, {} MiB, Linux {}; urbd {}; {}; load {:.1} when it began</p>",
        m.cpus,
        escape(&m.processor),
        m.memory_mib,
        escape(&m.kernel),
        escape(&m.urbd),
        m.time,
        m.load
    );
    let _ = write!(
        out,
        "<div class=\"tiles\"><div><b class=\"met\">{}</b>bars met</div><div><b class=\"missed\">{}</b>missed</div>\
         <div><b>{}</b>not measured here</div><div><b>{}</b>interleaved rounds ({})</div><div><b>{:.0} s</b>in all</div></div>",
        count(Some(true)),
        count(Some(false)),
        count(None),
        report.rounds,
        escape(&report.scale),
        took
    );
    out.push_str(
        "<p>Every contender has its turn in every round. Bars of the plots are medians over the rounds, the thin lines \
         go from the least to the most. What is judged is the median of the ratios within rounds.</p>",
    );
    let foreign = report.cases.iter().map(|c| c.foreign_cpus).fold(0.0, f64::max);
    if foreign > 0.2 {
        let _ = write!(
            out,
            "<p class=\"missed\">The machine was busy: other programs used up to {foreign:.1} of its {} CPUs. Repeat \
             this when it is idle.</p>",
            m.cpus
        );
    }
    if !bars.is_empty() {
        bar_table(out, report);
    }
}

fn bar_table(out: &mut String, report: &Report) {
    out.push_str(
        "<h2>Bars</h2><div class=\"scroll\"><table><tr><th>case</th><th>what</th><th class=\"r\">bar</th><th class=\"r\">measured</th>\
         <th class=\"r\">spread</th><th></th></tr>",
    );
    for (case, bar) in report.cases.iter().flat_map(|c| c.bars.iter().map(move |b| (c, b))) {
        let (class, verdict) = match bar.is_met() {
            Some(true) => ("met", "met"),
            Some(false) => ("missed", "missed"),
            None => ("soft", "not measured"),
        };
        let measured = bar.measured().map(number).unwrap_or_default();
        let range = spread(&bar.values).map(|(a, b)| format!("{} … {}", number(a), number(b))).unwrap_or_default();
        let _ = write!(
            out,
            "<tr><td><a href=\"#{0}\">{0}</a></td><td>{1}</td><td class=\"r\">{2}</td><td class=\"r\">{measured}</td>\
             <td class=\"r soft\">{range}</td><td class=\"{class}\">{verdict}</td></tr>",
            escape(&case.name),
            escape(&bar.what),
            escape(&want(bar)),
        );
    }
    out.push_str("</table></div>");
}

fn section(out: &mut String, case: &CaseReport) {
    let _ = write!(
        out,
        "<h2 id=\"{}\">{}</h2><p class=\"soft\">{}</p>",
        case.name,
        escape(&case.title),
        escape(&case.about)
    );
    for absent in &case.absent {
        let _ = write!(out, "<p>Absent: <b>{}</b>: {}</p>", escape(&absent.contender), escape(&absent.why));
    }
    for note in &case.notes {
        let _ = write!(out, "<p>{}</p>", escape(note));
    }
    if case.foreign_cpus > 0.2 {
        let cpus = case.foreign_cpus;
        let _ = write!(out, "<p class=\"soft\">Other programs used {cpus:.1} CPUs meanwhile.</p>");
    }
    let contenders = contenders(case);
    out.push_str("<div class=\"plots\">");
    for job in case.jobs() {
        job_plots(out, case, job, &contenders);
    }
    out.push_str("</div>");
    figures(out, case);
}

/// All who took part, ours first: each has a colour of its own.
fn contenders(case: &CaseReport) -> Vec<(&str, Colour)> {
    let mut all: Vec<&str> = Vec::new();
    for row in &case.rows {
        if !all.contains(&row.contender.as_str()) {
            all.push(&row.contender);
        }
    }
    let (ours, others): (Vec<&str>, Vec<&str>) = all.into_iter().partition(|name| is_ours(name));
    let ours = ours.into_iter().enumerate().map(|(i, name)| (name, Colour::Ours(i)));
    ours.chain(others.into_iter().enumerate().map(|(i, name)| (name, Colour::Others(i)))).collect()
}

fn is_ours(contender: &str) -> bool {
    ["urbd", "resync", "during"].iter().any(|start| contender.starts_with(start))
}

/// A bar for everybody for whom this was measured.
fn columns<'a>(case: &CaseReport, job: &str, contenders: &[(&'a str, Colour)], metric: &str) -> Vec<Column<'a>> {
    let mut found = Vec::new();
    for (label, colour) in contenders {
        let values = case.values(job, label, metric);
        if let (Some(median), Some(spread)) = (median(values), spread(values)) {
            found.push(Column { label, median, spread, colour: *colour });
        }
    }
    found
}

fn job_plots(out: &mut String, case: &CaseReport, job: &str, contenders: &[(&str, Colour)]) {
    let columns = |metric: &str| columns(case, job, contenders, metric);
    // Large requests are told by throughput, small ones by number.
    let metric = if job.contains("1M ") || job.contains("MiB") { MIB_S } else { IOPS };
    let mut drawn: Vec<String> = vec![plot::bars(job, metric, &columns(metric))];
    let cpu = columns(CPU);
    if !cpu.is_empty() {
        drawn.push(plot::bars("CPU, all processes that serve it", "us per request", &cpu));
    }
    for metric in ["metadata writes/GiB", "packets/write", "syscalls/write, primary", "syscalls/write, secondary"] {
        let columns = columns(metric);
        if !columns.is_empty() {
            drawn.push(plot::bars("", metric, &columns));
        }
    }
    let told = case.latencies.iter().filter(|l| l.job == job && l.latencies.count() > 200);
    let curves: Vec<_> = told
        .filter_map(|l| Some((contenders.iter().find(|(name, _)| *name == l.contender)?.1, &l.latencies)))
        .collect();
    if !curves.is_empty() {
        drawn.push(plot::latencies("", &curves));
    }
    for (contender, colour) in contenders {
        drawn.extend(stage_plot(case, job, contender, *colour));
    }
    let _ = write!(out, "<div>{}</div>", drawn.join(""));
}

/// Where the time of a contender's requests went: mean and 99th percentile of each stage.
fn stage_plot(case: &CaseReport, job: &str, contender: &str, colour: Colour) -> Option<String> {
    let shares = super::stages::shares(&super::stages_of(case, job, contender));
    let columns: Vec<Column<'_>> =
        shares.iter().map(|s| Column { label: &s.name, median: s.mean, spread: (s.mean, s.p99), colour }).collect();
    let title = format!("{contender}: where the time goes");
    (!columns.is_empty()).then(|| plot::bars(&title, "us, mean; the line ends at p99", &columns))
}

fn figures(out: &mut String, case: &CaseReport) {
    if case.rows.is_empty() {
        return;
    }
    out.push_str(
        "<details><summary>all figures</summary><div class=\"scroll\"><table><tr><th>job</th><th>contender</th><th>metric</th>\
         <th class=\"r\">median</th><th class=\"r\">least</th><th class=\"r\">most</th></tr>",
    );
    let order = [IOPS, MIB_S, LATENCY, P99, CPU];
    let mut rows: Vec<_> = case.rows.iter().collect();
    rows.sort_by_key(|r| order.iter().position(|m| *m == r.metric).unwrap_or(order.len()));
    for job in case.jobs() {
        for row in rows.iter().filter(|r| r.job == job) {
            let (least, most) = spread(&row.values).unwrap_or_default();
            let _ = write!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td></tr>",
                escape(&row.job),
                escape(&row.contender),
                escape(&row.metric),
                median(&row.values).map(number).unwrap_or_default(),
                number(least),
                number(most)
            );
        }
    }
    out.push_str("</table></div></details>");
}
