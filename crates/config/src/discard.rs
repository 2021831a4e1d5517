//! `after-sb-0pri discard-node-NAME`, a word of 8.4: after a split brain the changes of that host are thrown away. Each
//! host reads it as `discard-local` or `discard-remote`.

use crate::options::{Setting, Settings};
use crate::value::{self, Value};

/// The setting that names a host, and that host.
pub(crate) fn named(settings: &Settings) -> Option<(&Setting, &str)> {
    match settings.find(value::OF_HOSTS).map(|setting| (setting, &setting.value)) {
        Some((setting, Value::Text(name))) => Some((setting, name)),
        _ => None,
    }
}

/// The same settings for one of the two hosts of a connection, without a name. `is_named`: has that host this one?
pub(crate) fn as_seen_by(settings: &Settings, is_named: impl Fn(&str) -> bool) -> Settings {
    let mut seen = settings.clone();
    if let Some((setting, name)) = named(settings) {
        let word = if is_named(name) { "discard-local" } else { "discard-remote" };
        let mut translated = setting.clone();
        (translated.text, translated.value) = (word.to_owned(), Value::Word(word));
        seen.put(translated);
    }
    seen
}
