//! A command of drbdsetup taken apart.

use units::NodeId;

use super::Refused;
use crate::address::{Address, Family};
use crate::options::Setting;
use crate::table::{Group, Kind, option};

/// Its words by their kinds.
pub(super) struct Call<'a> {
    pub(super) command: &'a str,
    pub(super) arguments: Vec<&'a str>,
    /// In their order; without a value: a flag.
    pub(super) options: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Call<'a> {
    pub(super) fn read(words: &'a [String]) -> Result<Call<'a>, Refused> {
        let (mut positional, mut options) = (Vec::new(), Vec::new());
        for word in words {
            match word.strip_prefix("--") {
                None => positional.push(word.as_str()),
                Some(option) => {
                    let (name, value) = option.split_once('=').map_or((option, None), |(n, v)| (n, Some(v)));
                    options.push((name, value));
                }
            }
        }
        let Some((command, arguments)) = positional.split_first() else {
            return Err(Refused::invalid("no command"));
        };
        Ok(Call { command, arguments: arguments.to_vec(), options })
    }

    pub(super) fn value(&self, name: &str) -> Option<&'a str> {
        self.options.iter().find(|(n, _)| *n == name).and_then(|(_, value)| *value)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.options.iter().any(|(n, value)| *n == name && value.is_none_or(|v| v == "yes"))
    }

    /// Exactly so many arguments.
    pub(super) fn take<const N: usize>(&self, usage: &str) -> Result<[&'a str; N], Refused> {
        self.arguments.clone().try_into().map_err(|_| Refused::invalid(format!("{} takes: {usage}", self.command)))
    }

    /// The options among `groups`; `flags` are none.
    pub(super) fn settings(&self, groups: &[Group], flags: &[&str]) -> Result<Vec<Setting>, Refused> {
        let meant = self.options.iter().filter(|(name, _)| !flags.contains(name));
        meant.map(|(name, value)| setting(groups, name, *value)).collect()
    }
}

/// One option; without a value it is a flag, or a yes.
pub(super) fn setting(groups: &[Group], name: &str, value: Option<&str>) -> Result<Setting, Refused> {
    let (spec, value) = match (option(groups, name), name.strip_prefix("no-").and_then(|n| option(groups, n))) {
        (Some(spec), _) => (spec, value),
        (None, Some(spec)) if value.is_none() => (spec, Some("no")),
        _ => return Err(Refused::new(126, format!("there is no option `{name}` here"))),
    };
    let value = match (value, spec.kind) {
        (Some(value), _) => value,
        (None, Kind::Bool { .. } | Kind::Flag) => "yes",
        (None, _) => return Err(Refused::invalid(format!("option `{name}` needs a value"))),
    };
    Setting::parse(spec, value).map_err(|bad| Refused::invalid(bad.message))
}

pub(super) fn number<T: std::str::FromStr>(what: &str, text: &str) -> Result<T, Refused> {
    text.parse().map_err(|_| Refused::invalid(format!("'{text}' is no {what}")))
}

pub(super) fn node_id(text: &str) -> Result<NodeId, Refused> {
    let id: u8 = number("node id", text)?;
    NodeId::new(id).ok_or_else(|| Refused::invalid("peer node id out of range"))
}

/// `ipv4:10.1.1.1:7789`, `ipv6:[fd00::1]:7789`; without a family: IPv4.
pub(super) fn address(text: &str) -> Result<Address, Refused> {
    let bad = || Refused::invalid(format!("'{text}' is no address: write ipv4:ADDRESS:PORT or ipv6:[ADDRESS]:PORT"));
    let families =
        [("ipv4:", Family::Ipv4), ("ipv6:", Family::Ipv6), ("ssocks:", Family::Ssocks), ("sdp:", Family::Sdp)];
    let known = families.into_iter().find_map(|(head, family)| Some((text.strip_prefix(head)?, family)));
    let (rest, family) = known.unwrap_or((text, Family::Ipv4));
    let (ip, port) = rest.rsplit_once(':').ok_or_else(bad)?;
    let ip = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(ip);
    let port: u16 = port.parse().map_err(|_| bad())?;
    Address::parse(family, ip, port).filter(|_| port > 0).ok_or_else(bad)
}

/// Lines of words, as `shell_line` writes them: what follows a backslash stands for itself.
pub(super) fn lines(text: &str) -> Vec<Vec<String>> {
    let (mut lines, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ' ' => words.extend(word.take()),
            '\n' => {
                words.extend(word.take());
                if !words.is_empty() {
                    lines.push(std::mem::take(&mut words));
                }
            }
            '\\' => word.get_or_insert_default().extend(letters.next()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    lines.extend(Some(words).filter(|words| !words.is_empty()));
    lines
}
