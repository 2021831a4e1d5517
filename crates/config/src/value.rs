//! Option values: what a text means under an option's rule (`docs/spec/config-and-cli.md` 1.3).

use crate::table::{Kind, OptionSpec, Unit};

/// The option that may name a host, whose changes are thrown away then (`discard.rs`).
pub(crate) const OF_HOSTS: &str = "after-sb-0pri";

/// A checked option value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number in the option's default unit.
    Number(u64),
    /// One of the option's words.
    Word(&'static str),
    /// A boolean.
    Bool(bool),
    /// Free text.
    Text(String),
}

/// Why a text is not a value of an option: what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadValue {
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub help: String,
}

impl Value {
    /// Reads `text` as a value of `spec`.
    ///
    /// # Errors
    /// When the text is no number with a known unit, out of range, none of the words, or too long.
    pub fn parse(spec: &OptionSpec, text: &str) -> Result<Value, BadValue> {
        match &spec.kind {
            // "Automatic" is a default beyond the limits; running configurations say it aloud.
            Kind::Number { default, .. } if text == default.to_string() => Ok(Value::Number(*default)),
            Kind::Number { unit, min, max, .. } => number(spec, text, *unit, *min, *max).map(Value::Number),
            Kind::Choice { words, .. } => word(text, words)
                .map(Value::Word)
                .or_else(|| host_to_discard(spec, text))
                .ok_or_else(|| no_choice(spec, text, words)),
            Kind::NumberOrWord { words, min, max, .. } => match word(text, words) {
                Some(word) => Ok(Value::Word(word)),
                None if text.starts_with(|c: char| c.is_ascii_digit()) => {
                    number(spec, text, Unit::One, *min, *max).map(Value::Number)
                }
                None => Err(no_choice(spec, text, words)),
            },
            Kind::Bool { .. } | Kind::Flag => boolean(spec, text),
            Kind::ResyncAfter { .. } if text == "-1" => Ok(Value::Text(String::new())),
            Kind::Text { max, .. } | Kind::ResyncAfter { max } => limited(spec, text, *max),
            Kind::Command => limited(spec, text, 255),
        }
    }

    /// The value that `text` would have without the limits of an option that moves values to them; `None` if it is
    /// within them, or if the option is another.
    pub(crate) fn beyond_limits(spec: &OptionSpec, text: &str) -> Option<u64> {
        let Kind::Number { unit, min, max, .. } = spec.kind else { return None };
        parse_number(text, unit.factor()).filter(|n| spec.limited && !(min..=max).contains(n))
    }

    /// The value when nothing is configured.
    #[must_use]
    pub fn default_of(spec: &OptionSpec) -> Value {
        match &spec.kind {
            Kind::Number { default, .. } => Value::Number(*default),
            Kind::Choice { default, .. } | Kind::NumberOrWord { default, .. } => Value::Word(default),
            Kind::Bool { default } => Value::Bool(*default),
            Kind::Flag => Value::Bool(false),
            Kind::Text { default, .. } => Value::Text((*default).to_owned()),
            Kind::ResyncAfter { .. } | Kind::Command => Value::Text(String::new()),
        }
    }
}

/// The value of [`OF_HOSTS`], if `text` names a host.
fn host_to_discard(spec: &OptionSpec, text: &str) -> Option<Value> {
    let name = text.strip_prefix("discard-node-").filter(|name| spec.name == OF_HOSTS && !name.is_empty())?;
    Some(Value::Text(name.to_owned()))
}

fn word(text: &str, words: &'static [&'static str]) -> Option<&'static str> {
    words.iter().copied().find(|w| *w == text)
}

fn no_choice(spec: &OptionSpec, text: &str, words: &[&str]) -> BadValue {
    BadValue {
        message: format!("`{text}` is not a value of `{}`", spec.name),
        help: format!("write one of: {}", words.join(", ")),
    }
}

fn boolean(spec: &OptionSpec, text: &str) -> Result<Value, BadValue> {
    match text {
        "yes" => Ok(Value::Bool(true)),
        "no" => Ok(Value::Bool(false)),
        _ => Err(BadValue {
            message: format!("`{}` takes `yes` or `no`, not `{text}`", spec.name),
            help: format!("write `{0} yes;` (or `{0};`) or `{0} no;`", spec.name),
        }),
    }
}

fn limited(spec: &OptionSpec, text: &str, max: usize) -> Result<Value, BadValue> {
    if text.len() <= max {
        return Ok(Value::Text(text.to_owned()));
    }
    Err(BadValue {
        message: format!("the value of `{}` has {} characters; at most {max} are possible", spec.name, text.len()),
        help: "shorten it".to_owned(),
    })
}

fn number(spec: &OptionSpec, text: &str, unit: Unit, min: u64, max: u64) -> Result<u64, BadValue> {
    let (value, suffixes) = match unit {
        Unit::TimeSpan => (parse_suffixed(text, SPANS), "s, m, h, d"),
        Unit::Microsecond => (parse_suffixed(text, MICROSECONDS), "us, ms"),
        Unit::Percent => (parse_suffixed(text, &[("", 1), ("%", 1)]), "%"),
        _ => (parse_number(text, unit.factor()), "s (512 bytes), K, M, G"),
    };
    let Some(value) = value else {
        return Err(BadValue {
            message: format!("`{text}` is not a number (option `{}`)", spec.name),
            help: format!("write digits and at most one of the suffixes {suffixes}"),
        });
    };
    if spec.limited {
        return Ok(value.clamp(min, max));
    }
    let (which, limit) = match value {
        v if v < min => ("below the minimum", min),
        v if v > max => ("above the maximum", max),
        v => return Ok(v),
    };
    Err(BadValue {
        message: format!("`{} {text}` is {which} {limit}{}", spec.name, unit.label()),
        help: format!("the range is {min} to {max}{}", unit.label()),
    })
}

/// A number with an optional suffix, in units of `factor` bytes, rounded up. `None`: not a number, or too large.
#[must_use]
pub fn parse_number(text: &str, factor: u64) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let multiplier: u128 = match &text[digits.len()..] {
        "" => u128::from(factor),
        "s" => 512,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return None,
    };
    if digits.is_empty() || digits.len() > 20 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let bytes = digits.parse::<u128>().ok()?.checked_mul(multiplier)?;
    u64::try_from(bytes.div_ceil(u128::from(factor))).ok()
}

const MICROSECONDS: &[(&str, u64)] = &[("", 1), ("us", 1), ("ms", 1000)];

/// Suffixes of time spans, in seconds.
const SPANS: &[(&str, u64)] =
    &[("", 1), ("s", 1), ("m", 60), ("h", 3600), ("d", 86_400), ("day", 86_400), ("days", 86_400)];

/// A number with one of these suffixes, times what that stands for.
fn parse_suffixed(text: &str, suffixes: &[(&str, u64)]) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let (_, factor) = suffixes.iter().find(|(suffix, _)| *suffix == &text[digits.len()..])?;
    let bare = digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| bare)?.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::{SPANS, parse_number, parse_suffixed};

    #[test]
    fn time_spans() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200), ("3d", 259_200), ("1day", 86_400)] {
            assert_eq!(parse_suffixed(text, SPANS), Some(seconds), "{text}");
        }
        for bad in ["", "h", "2H", "1.5h", "-1h", "2 h", "2w", "+2h", "99999999999999999999d", "999999999999999999d"] {
            assert_eq!(parse_suffixed(bad, SPANS), None, "{bad}");
        }
    }

    #[test]
    fn suffixes_and_rounding() {
        assert_eq!(parse_number("100", 1024), Some(100));
        assert_eq!(parse_number("4G", 1024), Some(4 << 20));
        assert_eq!(parse_number("24s", 512), Some(24));
        assert_eq!(parse_number("1s", 1024), Some(1), "rounded up");
        assert_eq!(parse_number("8K", 1), Some(8192));
        assert_eq!(parse_number("1m", 1), Some(1 << 20));
        for bad in ["", "K", "10T", "10kB", "1 M", "-1", "1.5M", "99999999999999999999G", "1MM"] {
            assert_eq!(parse_number(bad, 1), None, "{bad}");
        }
    }
}
