//! Command lines as getopt reads them (`docs/spec/config-and-cli.md` 3.1), for all three names of the program: options
//! stand anywhere, their values behind `=` or a blank, short ones in one word; long names may be shortened.

use config::Kind;

use crate::cli;
use crate::verbs::{self, Verb, options};

/// Whether an option takes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// Never; `--flag=yes` is the flag, `--flag=no` is nothing.
    None,
    /// Only behind `=`.
    Optional,
    /// Behind `=`, or the next word.
    Required,
}

/// An option that may stand on a command line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    /// Its long name.
    pub(crate) long: &'static str,
    /// Its short name.
    pub(crate) short: Option<char>,
    /// Whether it takes a value.
    pub(crate) value: Value,
}

/// How an option was called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Name {
    /// By its whole name, also if it was shortened; or by one that nobody knows.
    Long(String),
    /// By its letter.
    Short(char),
}

/// An option of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given {
    /// Its name.
    pub(crate) name: Name,
    /// Its value, if it has one.
    pub(crate) value: Option<String>,
}

impl Given {
    /// As one word.
    pub(crate) fn spelled(&self) -> String {
        match (&self.name, self.value.as_deref()) {
            (Name::Long(name), None) => format!("--{name}"),
            (Name::Long(name), Some(value)) => format!("--{name}={value}"),
            (Name::Short(letter), None) => format!("-{letter}"),
            (Name::Short(letter), Some(value)) if value.is_empty() || value.starts_with('=') => {
                format!("-{letter}={value}")
            }
            (Name::Short(letter), Some(value)) => format!("-{letter}{value}"),
        }
    }
}

/// A command line, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// The options, in their order.
    pub(crate) options: Vec<Given>,
    /// The other words, in their order.
    pub(crate) operands: Vec<String>,
}

/// Takes a command line apart. What `own` knows goes before what `others` know; what nobody knows has no value. Options
/// behind `--` are options, too: it separates those of the tool from those of its backend, and here both are one.
pub(crate) fn read(words: &[String], own: &[Known], others: &[Known]) -> Line {
    let mut line = Line::default();
    let mut separated = false;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--" && !separated {
            separated = true;
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let known = by_long(own, name).or_else(|| by_long(others, name));
            let name = Name::Long(known.map_or(name, |known| known.long).to_owned());
            let takes = known.map_or(Value::Optional, |known| known.value);
            let value = match (takes, value) {
                (Value::None, Some("no")) => continue,
                (Value::None, Some("yes")) => None,
                (Value::Required, None) => words.next().cloned(),
                (_, value) => value.map(str::to_owned),
            };
            line.options.push(Given { name, value });
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            let mut left = letters.chars();
            while let Some(letter) = left.next() {
                let is = |known: &&Known| known.short == Some(letter);
                let known = own.iter().find(is).or_else(|| others.iter().find(is));
                let value = match known.map(|known| known.value) {
                    Some(Value::Required) => match std::mem::replace(&mut left, "".chars()).as_str() {
                        "" => words.next().cloned(),
                        joined => Some(joined.strip_prefix('=').unwrap_or(joined).to_owned()),
                    },
                    _ => None,
                };
                line.options.push(Given { name: Name::Short(letter), value });
            }
        } else {
            line.operands.push(word.clone());
        }
    }
    line
}

/// The option with this name, or else the only one whose name begins so.
fn by_long<'a>(known: &'a [Known], name: &str) -> Option<&'a Known> {
    if let Some(exact) = known.iter().find(|known| known.long == name) {
        return Some(exact);
    }
    let mut beginning = known.iter().filter(|known| !name.is_empty() && known.long.starts_with(name));
    let first = beginning.next()?;
    beginning.all(|other| other.long == first.long).then_some(first)
}

/// The options of a verb, with the general ones.
pub(crate) fn of(verb: &Verb) -> Vec<Known> {
    let mut known: Vec<Known> = own(verb).collect();
    if verb.name == "primary" {
        known.push(Known { long: OVERWRITE, short: None, value: Value::None });
    }
    let has_t = known.iter().any(|known| known.short == Some('t'));
    known.extend(general().filter(|general| !has_t || general.short != Some('t')));
    known
}

/// The options of all verbs: to find the verb behind its options.
pub(crate) fn of_all() -> Vec<Known> {
    verbs::all().flat_map(of).collect()
}

/// What 8.4 calls `--force` of `primary`.
pub(crate) const OVERWRITE: &str = "overwrite-data-of-peer";

fn own(verb: &Verb) -> impl Iterator<Item = Known> + use<> {
    let options = verb.options.iter().filter(|option| !option.positional).map(|option| Known {
        long: option.name,
        short: option.short,
        value: if option.value.is_some() { Value::Required } else { Value::None },
    });
    let settings = options::settable(verb.settings).map(|spec| Known {
        long: spec.name,
        short: None,
        value: if matches!(spec.kind, Kind::Bool { .. }) { Value::Optional } else { Value::Required },
    });
    options.chain(settings)
}

fn general() -> impl Iterator<Item = Known> {
    let aliases = [("config-file", Some('c'), true), ("help", Some('h'), false), ("version", Some('V'), false)];
    let known = |(long, short, has_value): (&'static str, Option<char>, bool)| Known {
        long,
        short,
        value: if has_value { Value::Required } else { Value::None },
    };
    cli::GENERAL.into_iter().chain(aliases).map(known)
}

/// The words of a call in the order that the parser of a verb wants: the verb, its objects, its options. Without a verb
/// that is known they stay as they are.
pub(crate) fn in_order(words: &[String]) -> Option<Vec<String>> {
    let all = of_all();
    let verb = read(words, &[], &all).operands.first().and_then(|name| verbs::find(name))?;
    let mut line = read(words, &of(verb), &all);
    line.operands.first().filter(|first| *first == verb.name)?;
    for option in &mut line.options {
        match &option.name {
            Name::Long(name) if name == OVERWRITE => option.name = Name::Long("force".to_owned()),
            Name::Short('t') if verb.options.iter().all(|option| option.short != Some('t')) => {
                option.name = Name::Long("config-to-test".to_owned());
            }
            _ => {}
        }
    }
    // Objects first: an option that lacks its value must not take one of them for it.
    Some(line.operands.into_iter().chain(line.options.iter().map(Given::spelled)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_takes_a_value_everywhere_or_nowhere() {
        let all = of_all();
        for known in &all {
            for other in all.iter().filter(|other| other.long == known.long) {
                assert_eq!(known.value, other.value, "--{}", known.long);
            }
            for other in all.iter().filter(|other| known.short.is_some() && other.short == known.short) {
                assert_eq!(known.value, other.value, "-{:?}", known.short);
            }
        }
    }

    #[test]
    fn what_is_spelled_is_read_again() {
        let all = of_all();
        for text in ["-c=FILE", "--node=a=b", "-vvv", "-t10", "--force", "--nonsense=1", "--config=", "-c==x"] {
            let once = read(&[text.to_owned()], &[], &all);
            let spelled: Vec<String> = once.options.iter().map(Given::spelled).collect();
            assert_eq!(read(&spelled, &[], &all), once, "{text}");
        }
    }
}
