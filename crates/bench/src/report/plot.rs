//! Drawings as inline SVG: bars with the spread of the rounds, and latencies.

use super::number::number;
use crate::latency::Latencies;
use std::fmt::Write;

/// One bar of a chart.
pub(super) struct Column<'a> {
    /// Whose it is.
    pub(super) label: &'a str,
    /// Its height.
    pub(super) median: f64,
    /// From the least to the most.
    pub(super) spread: (f64, f64),
    /// Which colour.
    pub(super) colour: Colour,
}

/// Colours that also people with the common colour blindnesses tell apart (Okabe and Ito): ours, then the others'.
const OURS: [&str; 4] = ["#0072b2", "#56b4e9", "#009e73", "#cc79a7"];
const OTHERS: [&str; 3] = ["#999999", "#e69f00", "#d55e00"];

const WIDTH: f64 = 520.0;
const LABELS: f64 = 165.0;
const FIGURES: f64 = 70.0;
const ROW: f64 = 22.0;

/// Whose colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Colour {
    /// One of ours.
    Ours(usize),
    /// Somebody else's.
    Others(usize),
}

impl Colour {
    fn name(self) -> &'static str {
        match self {
            Colour::Ours(n) => OURS[n % OURS.len()],
            Colour::Others(n) => OTHERS[n % OTHERS.len()],
        }
    }
}

/// Horizontal bars, one below the other, of one unit.
pub(super) fn bars(title: &str, unit: &str, columns: &[Column<'_>]) -> String {
    let most = columns.iter().map(|c| c.spread.1.max(c.median)).fold(0.0, f64::max).max(1e-9);
    let scale = (WIDTH - LABELS - FIGURES) / most;
    let height = ROW * columns.len() as f64 + 26.0;
    let mut out = format!(
        r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{0}"><text x="0" y="14" class="t">{0}</text><text x="{WIDTH}" y="14" class="u" text-anchor="end">{1}</text>"#,
        escape(title),
        escape(unit)
    );
    for (i, c) in columns.iter().enumerate() {
        let y = 22.0 + ROW * i as f64;
        let (width, middle) = ((c.median * scale).max(1.0), y + 9.0);
        let (least, most) = (LABELS + c.spread.0 * scale, LABELS + c.spread.1 * scale);
        let (text, figures) = (middle + 4.0, number(c.median));
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            r#"<text x="{0:.0}" y="{text:.0}" text-anchor="end">{1}</text><rect x="{LABELS}" y="{y:.0}" width="{width:.1}" height="18" rx="2" fill="{2}"/><path d="M{least:.1} {middle:.0}H{most:.1}M{least:.1} {y1:.0}v8M{most:.1} {y1:.0}v8" class="w"/><text x="{WIDTH}" y="{text:.0}" text-anchor="end" class="n">{figures}</text>"#,
            LABELS - 8.0,
            escape(c.label),
            c.colour.name(),
            y1 = middle - 4.0,
        );
    }
    out + "</svg>"
}

/// How many requests took no longer than that, on a logarithmic axis. The colours are told by the bars beside it.
pub(super) fn latencies(title: &str, curves: &[(Colour, &Latencies)]) -> String {
    const HEIGHT: f64 = 172.0;
    const LEFT: f64 = 46.0;
    const BOTTOM: f64 = 150.0;
    const TOP: f64 = 24.0;
    // From half to all but one in ten thousand; in between, by orders of magnitude of what is left.
    let percents = [50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];
    let all = || curves.iter().flat_map(|(_, l)| percents.map(|p| l.percentile(p)));
    let least = all().fold(f64::INFINITY, f64::min).max(0.1).log10().floor();
    let most = all().fold(1.0, f64::max).log10().ceil().max(least + 1.0);
    let x = |p: f64| LEFT + (WIDTH - LEFT - 8.0) * (((100.0 - p) / 50.0).log10() / (0.01f64 / 50.0).log10());
    let y = |us: f64| BOTTOM - (BOTTOM - TOP) * ((us.max(1e-3).log10() - least) / (most - least)).clamp(0.0, 1.0);
    let mut out = format!(
        r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{0}"><text x="0" y="14" class="t">{0}</text><text x="{WIDTH}" y="14" class="u" text-anchor="end">latency by percentile</text>"#,
        escape(title)
    );
    for decade in least as i32..=most as i32 {
        let us = 10f64.powi(decade);
        let label = match decade {
            ..3 => format!("{} us", number(us).trim_end_matches(".00")),
            3..6 => format!("{} ms", us / 1e3),
            _ => format!("{} s", us / 1e6),
        };
        let at = y(us);
        let _ = write!(
            out,
            r#"<path d="M{LEFT} {at:.1}H{WIDTH}" class="g"/><text x="{0}" y="{1:.1}" text-anchor="end" class="u">{label}</text>"#,
            LEFT - 4.0,
            at + 4.0
        );
    }
    for p in [50.0, 90.0, 99.0, 99.9, 99.99] {
        let _ = write!(
            out,
            r#"<text x="{:.1}" y="{:.0}" text-anchor="middle" class="u">{p}</text>"#,
            x(p).min(WIDTH - 14.0),
            BOTTOM + 17.0
        );
    }
    for (colour, latencies) in curves {
        let points: Vec<String> =
            percents.iter().map(|p| format!("{:.1},{:.1}", x(*p), y(latencies.percentile(*p)))).collect();
        let (points, colour) = (points.join(" "), colour.name());
        let _ = write!(out, r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>"#);
    }
    out + "</svg>"
}

/// Text inside of markup.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_names_is_harmless() {
        let column = Column { label: "<b> & \"", median: 1.0, spread: (1.0, 1.0), colour: Colour::Ours(0) };
        let drawn = bars("a < b", "x", &[column]);
        assert!(drawn.contains("&lt;b&gt; &amp; &quot;") && drawn.contains("a &lt; b") && !drawn.contains("<b>"));
    }

    #[test]
    fn longer_bars_are_longer() {
        let column = |median| Column { label: "x", median, spread: (median, median), colour: Colour::Ours(0) };
        let drawn = bars("t", "u", &[column(1.0), column(2.0)]);
        let widths: Vec<f64> =
            drawn.split("width=\"").skip(1).map(|s| s.split('"').next().unwrap().parse().unwrap()).collect();
        assert!((widths[1] / widths[0] - 2.0).abs() < 0.01, "{widths:?}");
        assert!(!bars("nothing", "u", &[]).contains("NaN"));
    }

    #[test]
    fn curves_stay_inside() {
        let mut l = Latencies::default();
        [10_000, 20_000, 5_000_000].into_iter().for_each(|v| l.record(v));
        let drawn = latencies("t", &[(Colour::Ours(0), &l), (Colour::Others(1), &Latencies::default())]);
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        assert_eq!(drawn.matches("<polyline").count(), 2);
    }
}
