//! The text of a plan, as `seeds.txt` keeps it and `--seed` takes it: `SEED`, `SEED+LUCK`, each perhaps with
//! `:TOKEN,TOKEN,…`, of the seed's plan only these steps, in this order.
//!
//! A token is the step's number in the whole plan of the seed, perhaps with what is otherwise than drawn:
//! `N[@SECONDS][/VALUE]`. The value is `START-END`, the sectors of a request or of what rots, or a number, the effects
//! after which a process dies. No other step has one.

use crate::plan::{Plan, Planned, Step};
use units::{Instant, Sector, SectorRange};

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// What of a step can be said otherwise than it was drawn, besides its time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Value {
    /// Sectors.
    Range(SectorRange),
    /// Effects.
    Number(u32),
}

impl Step {
    pub(crate) fn value(&self) -> Option<Value> {
        match self {
            Step::Io { range, .. } | Step::Rot { range, .. } => Some(Value::Range(*range)),
            Step::DieAfter { effects, .. } => Some(Value::Number(*effects)),
            _ => None,
        }
    }

    /// The same with another value. `None`: it cannot have that.
    pub(crate) fn with(mut self, value: Value) -> Option<Step> {
        match (&mut self, value) {
            (Step::Io { range, .. } | Step::Rot { range, .. }, Value::Range(other)) => *range = other,
            (Step::DieAfter { effects, .. }, Value::Number(other)) => *effects = other,
            _ => return None,
        }
        Some(self)
    }
}

impl Plan {
    /// The plan of a text. `None`: it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Plan> {
        let (seed, tokens) = text.split_once(':').map_or((text, None), |(seed, tokens)| (seed, Some(tokens)));
        let (seed, luck) = seed.split_once('+').unwrap_or((seed, "0"));
        let whole = Plan { luck: luck.parse().ok()?, ..Plan::draw(seed.parse().ok()?) };
        let Some(tokens) = tokens else { return Some(whole) };
        let steps = tokens.split(',').map(|token| parse_token(token, &whole)).collect::<Option<Vec<_>>>()?;
        let in_order = steps.is_sorted_by_key(|planned| planned.at);
        in_order.then_some(Plan { steps, least_events: 0, ..whole })
    }

    /// The plans of a text: one in a line, as [`Plan::parse`] reads it, and words behind a `#`.
    ///
    /// # Errors
    /// A line is none: the line.
    pub fn parse_all(text: &str) -> Result<Vec<Plan>, String> {
        let entries = text.lines().filter_map(|line| line.split('#').next()).map(str::trim);
        let plans = entries.filter(|entry| !entry.is_empty());
        plans.map(|entry| Plan::parse(entry).ok_or_else(|| format!("{entry} is no plan"))).collect()
    }

    /// The text that [`Plan::parse`] reads.
    #[must_use]
    pub fn name(&self) -> String {
        let whole = Plan::draw(self.seed);
        let luck = if self.luck == 0 { String::new() } else { format!("+{}", self.luck) };
        if self.steps == whole.steps && self.least_events == whole.least_events {
            return format!("{}{luck}", self.seed);
        }
        let tokens: Vec<String> = self.steps.iter().map(|planned| token(planned, &whole)).collect();
        format!("{}{luck}:{}", self.seed, tokens.join(","))
    }
}

fn parse_token(text: &str, whole: &Plan) -> Option<Planned> {
    let (text, value) = text.split_once('/').map_or((text, None), |(text, value)| (text, Some(value)));
    let (number, at) = text.split_once('@').map_or((text, None), |(number, at)| (number, Some(at)));
    let drawn = whole.steps.get(number.parse::<usize>().ok()?)?.clone();
    let at = at.map_or(Some(drawn.at), parse_seconds)?;
    let step = match value {
        Some(value) => drawn.step.with(parse_value(value)?)?,
        None => drawn.step,
    };
    Some(Planned { at, step, ..drawn })
}

fn token(planned: &Planned, whole: &Plan) -> String {
    let drawn = &whole.steps[planned.number];
    let mut text = planned.number.to_string();
    if planned.at != drawn.at {
        text = format!("{text}@{}", seconds(planned.at));
    }
    match planned.step.value() {
        same if same == drawn.step.value() => text,
        Some(Value::Range(range)) => format!("{text}/{}-{}", range.start.0, range.end.0),
        Some(Value::Number(number)) => format!("{text}/{number}"),
        None => text,
    }
}

fn parse_value(text: &str) -> Option<Value> {
    let Some((start, end)) = text.split_once('-') else { return text.parse().ok().map(Value::Number) };
    let range = SectorRange { start: Sector(start.parse().ok()?), end: Sector(end.parse().ok()?) };
    (!range.is_empty()).then_some(Value::Range(range))
}

/// Seconds with as many decimals as it takes.
fn seconds(at: Instant) -> String {
    let text = format!("{}.{:09}", at.0 / SECOND, at.0 % SECOND);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn parse_seconds(text: &str) -> Option<Instant> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 9 || !decimals.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(SECOND)?;
    format!("{decimals:0<9}").parse::<u64>().ok()?.checked_add(whole).map(Instant)
}
