//! Option sections: `net`, `disk`, `options`, `startup`, `handlers`, `proxy`, `syncer`, `urbd`, `global`.

use std::borrow::Cow;

use super::Grammar;
use super::cursor::Cursor;
use crate::document::{ProxyOptions, Sections};
use crate::error::{Error, ErrorKind, Span, nearest};
use crate::options::{Setting, Settings};
use crate::table::{Group, Kind, OptionSpec, option, options};
use crate::tree::{Body, Statement};
use crate::value::Value;

/// The options that may stand in `disk { }`.
pub(super) const DISK: &[Group] = &[Group::Disk, Group::Device, Group::PeerDevice];

/// Options of disks that versions before 8.4 had: they mean nothing any more.
const WITHOUT_MEANING: &[&str] = &["use-bmbv", "no-use-bmbv"];

/// What options of the old `syncer` section, and of disks, are called now.
const SYNCER: &[(&str, &str)] = &[("rate", "resync-rate"), ("after", "resync-after")];

impl Grammar<'_> {
    /// Handles a statement if it is an option section (or `protocol`); `false` if it is none.
    pub(super) fn section(&mut self, into: &mut Sections, st: &Statement) -> Result<bool, Error> {
        let cursor = Cursor::after_keyword(st);
        let (name, groups, target): (_, &[Group], _) = match st.keyword() {
            "protocol" => {
                self.shorthands.push(st.span().clone());
                self.setting(&mut into.net, &[Group::Net], "resource", st);
                return Ok(true);
            }
            "net" => ("net", &[Group::Net], &mut into.net),
            "options" => ("options", &[Group::Resource], &mut into.options),
            "startup" => ("startup", &[Group::Startup], &mut into.startup),
            "handlers" => ("handlers", &[Group::Handlers], &mut into.handlers),
            "disk" if cursor.has_body() => {
                once(&mut into.seen, "disk", st.span())?;
                self.disk_section(into, cursor.body()?);
                return Ok(true);
            }
            "syncer" => {
                once(&mut into.seen, "syncer", st.span())?;
                self.syncer(into, cursor.body()?);
                return Ok(true);
            }
            "urbd" => {
                once(&mut into.seen, "urbd", st.span())?;
                return self.urbd_section(into, cursor.body()?).map(|()| true);
            }
            "proxy" => {
                once(&mut into.seen, "proxy", st.span())?;
                self.proxy_options(&mut into.proxy, cursor.body()?)?;
                return Ok(true);
            }
            _ => return Ok(false),
        };
        once(&mut into.seen, name, st.span())?;
        self.settings(target, groups, name, cursor.body()?);
        Ok(true)
    }

    /// All option statements of a block.
    pub(super) fn settings(&mut self, into: &mut Settings, groups: &[Group], section: &str, body: &Body) {
        for st in &body.statements {
            self.setting(into, groups, section, st);
        }
    }

    /// One option statement.
    pub(super) fn setting(&mut self, into: &mut Settings, groups: &[Group], section: &str, st: &Statement) {
        let (st, old_name) = renamed(groups, st);
        let st = &st;
        if let Some(old) = old_name {
            self.findings.warn(st.span(), format!("`{old}` is now called `{}`", st.keyword()));
        }
        if groups.contains(&Group::Disk) && WITHOUT_MEANING.contains(&st.keyword()) {
            let message = format!("`{}` is an option of old versions, and has no effect", st.keyword());
            return self.findings.warn(st.span(), message);
        }
        let result = lookup(groups, section, st).and_then(|(spec, negated)| value(spec, negated, st));
        match result {
            Err(error) => self.findings.error(error),
            Ok(setting) => {
                if Value::beyond_limits(setting.spec, &setting.text).is_some()
                    && let Value::Number(used) = setting.value
                {
                    let message =
                        format!("`{} {}` is beyond the limits: {used} is used", setting.spec.name, setting.text);
                    self.findings.warn(&setting.span, message);
                }
                self.add(into, setting);
            }
        }
    }

    fn add(&mut self, into: &mut Settings, setting: Setting) {
        let Err(clash) = into.add(setting) else { return };
        let (weaker, stronger) = match (&clash.here, &clash.there) {
            // What is set in the section itself goes before the statement outside of it.
            (here, there) if here.spec.name == "protocol" && self.shorthands.contains(&here.span) => (here, there),
            (here, there) if here.spec.name == "protocol" && self.shorthands.contains(&there.span) => (there, here),
            // No data depends on how long a boot script waits.
            (here, there) if here.spec.group == Group::Startup => (here, there),
            _ => return self.findings.error(super::clash_error(&clash)),
        };
        let (name, used) = (stronger.spec.name, &stronger.text);
        let message = format!("`{name}` is {} and {used}: {used} is used", weaker.text);
        self.findings.warn(&weaker.span, message);
        into.put(stronger.clone());
    }

    /// `disk { }` of a resource or of `common`: 8.4 also writes `fencing` here.
    fn disk_section(&mut self, into: &mut Sections, body: &Body) {
        for st in &body.statements {
            if st.keyword() == "fencing" {
                self.setting(&mut into.net, &[Group::Net], "disk", st);
            } else {
                self.setting(&mut into.disk, DISK, "disk", st);
            }
        }
    }

    /// `urbd { option… resync-goal { … } }`.
    fn urbd_section(&mut self, into: &mut Sections, body: &Body) -> Result<(), Error> {
        for st in &body.statements {
            if st.keyword() != "resync-goal" {
                self.setting(&mut into.urbd, &[Group::Urbd], "urbd", st);
                continue;
            }
            once(&mut into.seen, "resync-goal", st.span())?;
            self.settings(&mut into.urbd, &[Group::ResyncGoal], "resync-goal", Cursor::after_keyword(st).body()?);
        }
        Ok(())
    }

    /// The deprecated `syncer { }` hands its options to the sections where they belong now.
    fn syncer(&mut self, into: &mut Sections, body: &Body) {
        for st in &body.statements {
            let (st, _) = renamed(DISK, st);
            let name = st.keyword().trim_start_matches("no-").to_owned();
            if option(&[Group::Net], &name).is_some() {
                self.setting(&mut into.net, &[Group::Net], "syncer", &st);
            } else if option(&[Group::Resource], &name).is_some() {
                self.setting(&mut into.options, &[Group::Resource], "syncer", &st);
            } else {
                self.setting(&mut into.disk, DISK, "syncer", &st);
            }
        }
        if let Some(st) = body.statements.first() {
            let message = "section `syncer` is deprecated; write its options into `net`, `disk` and `options`";
            self.findings.warn(st.span(), message);
        }
    }

    /// `proxy { option… plugin { … } }`.
    pub(super) fn proxy_options(&mut self, into: &mut ProxyOptions, body: &Body) -> Result<(), Error> {
        for st in &body.statements {
            if st.keyword() != "plugin" {
                self.setting(&mut into.settings, &[Group::Proxy], "proxy", st);
                continue;
            }
            for plugin in &Cursor::after_keyword(st).body()?.statements {
                let words: Vec<&str> = plugin.tokens.iter().filter_map(|t| t.word()).collect();
                into.plugins.push(words.join(" "));
            }
        }
        Ok(())
    }
}

/// The statement with the name that its option has now, and the old one if that is another.
fn renamed<'a>(groups: &[Group], st: &'a Statement) -> (Cow<'a, Statement>, Option<&'static str>) {
    let known = SYNCER.iter().find(|(old, _)| *old == st.keyword() && groups.contains(&Group::Disk));
    let Some((old, new)) = known else { return (Cow::Borrowed(st), None) };
    let mut st = st.clone();
    if let crate::lexer::Lexeme::Word { text, .. } = &mut st.tokens[0].lexeme {
        *text = (*new).to_owned();
    }
    (Cow::Owned(st), Some(old))
}

/// A section may be there only once.
pub(super) fn once(seen: &mut Vec<(&'static str, Span)>, name: &'static str, span: &Span) -> Result<(), Error> {
    if let Some((_, first)) = seen.iter().find(|(n, _)| *n == name) {
        return Err(Error::new(ErrorKind::Duplicate, span, format!("a second `{name}` section"))
            .related(first, "the first one is here")
            .help("put all options into one section"));
    }
    seen.push((name, span.clone()));
    Ok(())
}

fn lookup(groups: &[Group], section: &str, st: &Statement) -> Result<(&'static OptionSpec, bool), Error> {
    let name = st.keyword();
    if let Some(spec) = option(groups, name) {
        return Ok((spec, false));
    }
    if let Some(spec) = name.strip_prefix("no-").and_then(|positive| option(groups, positive))
        && matches!(spec.kind, Kind::Bool { .. })
    {
        return Ok((spec, true));
    }
    let error = Error::new(ErrorKind::Syntax, st.span(), format!("`{name}` is not an option of `{section}`"));
    let elsewhere = options().find(|o| o.name == name && !groups.contains(&o.group));
    let known: Vec<&str> = options().filter(|o| groups.contains(&o.group)).map(|o| o.name).collect();
    Err(match (elsewhere.and_then(|o| home(o.group)), nearest(name, known.iter().copied())) {
        (Some(home), _) => error.help(format!("it belongs into section `{home}`")),
        (None, Some(near)) => error.help(format!("did you mean `{near}`?")),
        (None, None) => error.help(format!("known here: {}", known.join(", "))),
    })
}

/// The section of the option with this name.
pub(super) fn home_of(name: &str) -> Option<&'static str> {
    options().find(|o| o.name == name).and_then(|o| home(o.group))
}

fn home(group: Group) -> Option<&'static str> {
    Some(match group {
        Group::Global => "global",
        Group::Resource => "options",
        Group::Net => "net",
        Group::Disk | Group::Device | Group::PeerDevice => "disk",
        Group::Startup => "startup",
        Group::Handlers => "handlers",
        Group::Urbd => "urbd",
        Group::ResyncGoal => "resync-goal",
        Group::Proxy => return None,
    })
}

fn value(spec: &'static OptionSpec, negated: bool, st: &Statement) -> Result<Setting, Error> {
    let mut cursor = Cursor::after_keyword(st);
    let span = cursor.span().clone();
    let text = match spec.kind {
        // `no-NAME`, and also `no-NAME yes`; who writes `no-NAME no` means yes.
        _ if negated => match cursor.optional_word().map(|w| w.text).as_deref() {
            Some("no") => "yes".to_owned(),
            None | Some("yes") => "no".to_owned(),
            Some(other) => other.to_owned(),
        },
        Kind::Bool { .. } | Kind::Flag => cursor.optional_word().map_or("yes".to_owned(), |w| w.text),
        Kind::Text { .. } if spec.name == "become-primary-on" => {
            let words = cursor.words("a host name, or `both`")?;
            words.iter().map(|w| w.text.as_str()).collect::<Vec<_>>().join(" ")
        }
        _ => cursor.word(&format!("a value for `{}`", spec.name))?.text,
    };
    cursor.end()?;
    let value =
        Value::parse(spec, &text).map_err(|bad| Error::new(ErrorKind::Value, &span, bad.message).help(bad.help))?;
    Ok(Setting::new(spec, text, value, st.span().clone()))
}
