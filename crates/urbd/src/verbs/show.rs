//! `show`: the running configuration as `drbdsetup show` prints it (`docs/spec/config-and-cli.md` 4.5).

mod json;

use std::fmt::Write;

use config::{Backing, Group, Kind, LocalPath, MetaDisk, Running, RunningConnection, RunningVolume};
use config::{Setting, Settings, Unit, Value};

use crate::cli::{self, Call};
use crate::problem::Problem;
use crate::verbs::{adjust, status};

/// Of the named resources; of all that run if none is named.
pub(crate) fn show(call: &Call) -> Result<u8, Problem> {
    let (names, mut worst) = status::named(call.context, &call.objects());
    let (in_json, defaults) = (call.flag("json"), call.flag("show-defaults"));
    let mut all = Vec::new();
    for name in names {
        let shown = adjust::running(call, &name).map(|running| {
            if in_json {
                all.push(json::resource(&running));
            } else {
                status::print(&text(&running, defaults));
            }
            0
        });
        worst = worst.max(cli::settle(shown));
    }
    if in_json {
        status::print(&format!("{:#}\n", serde_json::Value::Array(all)));
    }
    Ok(worst)
}

/// With `defaults` also of options that have theirs.
fn text(running: &Running, defaults: bool) -> String {
    let mut page = Page { defaults, ..Page::default() };
    page.block(&format!("resource \"{}\"", running.name), |page| {
        page.options("options", &running.options, &[Group::Resource], |_| true);
        page.block("_this_host", |page| {
            if let Some(node_id) = running.node_id {
                page.line(&format!("node-id\t\t\t{node_id};"));
            }
            running.volumes.iter().for_each(|v| volume(page, v));
        });
        running.connections.iter().for_each(|c| connection(page, c));
    });
    page.text.push('\n');
    page.text
}

fn volume(page: &mut Page, volume: &RunningVolume) {
    page.block(&format!("volume {}", volume.nr), |page| {
        page.line(&format!("device\t\t\tminor {};", volume.minor));
        match &volume.backing {
            None => page.line("disk\t\t\tnone;"),
            Some(Backing { path, meta_disk }) => {
                page.line(&format!("disk\t\t\t\"{path}\";"));
                page.line(&match meta_disk {
                    MetaDisk::Internal => "meta-disk\t\t\tinternal;".to_owned(),
                    MetaDisk::External { path } => format!("meta-disk\t\t\t\"{path}\";"),
                    MetaDisk::Indexed { path, index } => format!("meta-disk\t\t\t\"{path}\" [ {index} ];"),
                });
            }
        }
        page.options("disk", &volume.options, &DISK, |s| DISK.contains(&s.spec.group));
    });
}

fn connection(page: &mut Page, connection: &RunningConnection) {
    page.block("connection", |page| {
        page.line(&format!("_peer_node_id {};", connection.peer_node_id));
        for LocalPath { local, remote, .. } in &connection.paths {
            page.block("path", |page| {
                page.line(&format!("_this_host {local};"));
                page.line(&format!("_remote_host {remote};"));
            });
        }
        if connection.standalone {
            page.line("_cstate StandAlone;");
        }
        page.options("net", &connection.options, &[Group::Net], |_| true);
        for (nr, options) in &connection.peer_devices {
            let set = |s: &&Setting| s.spec.group == Group::PeerDevice && !s.is_default();
            if page.defaults || options.iter().any(|s| set(&s)) {
                let head = format!("volume {nr}");
                page.block(&head, |page| page.options("disk", options, &[Group::PeerDevice], |s| set(&s)));
            }
        }
    });
}

#[derive(Default)]
struct Page {
    text: String,
    depth: usize,
    defaults: bool,
}

const DISK: [Group; 2] = [Group::Disk, Group::Device];

/// Every option of these groups, as it is set or by its default, and what else is set (`_name`).
fn every(settings: &Settings, groups: &[Group]) -> Vec<Setting> {
    let specs = config::options().filter(|spec| groups.contains(&spec.group));
    let mut all: Vec<Setting> =
        specs.map(|spec| settings.find(spec.name).cloned().unwrap_or_else(|| Setting::default_of(spec))).collect();
    all.extend(settings.iter().filter(|s| config::options().all(|spec| spec.name != s.spec.name)).cloned());
    all
}

impl Page {
    fn line(&mut self, line: &str) {
        let indent = self.depth * 4;
        let _ = writeln!(self.text, "{:indent$}{line}", "");
    }

    fn block(&mut self, head: &str, inside: impl FnOnce(&mut Page)) {
        self.line(&format!("{head} {{"));
        self.depth += 1;
        inside(self);
        self.depth -= 1;
        self.line("}");
    }

    /// A section with the options that differ from their defaults; nothing if there are none. With defaults: all of the
    /// groups.
    fn options(&mut self, section: &str, settings: &Settings, groups: &[Group], wanted: impl Fn(&Setting) -> bool) {
        let is_shown = |s: &Setting| self.defaults || wanted(s) && !s.is_default();
        let shown: Vec<Setting> = every(settings, groups).into_iter().filter(is_shown).collect();
        if shown.is_empty() {
            return;
        }
        self.block(section, |page| {
            for setting in &shown {
                let remark = if setting.is_default() { " # default" } else { "" };
                page.line(&format!("{:<16}\t{};{remark}", setting.spec.name, value(setting)));
            }
        });
    }
}

/// As the language reads it back: texts quoted, numbers with their unit where it is not plain.
fn value(setting: &Setting) -> String {
    match &setting.value {
        Value::Number(n) => match setting.spec.kind {
            Kind::Number { unit: Unit::Sector, .. } => format!("{n}s"),
            Kind::Number { unit: Unit::KibPerSecond, .. } => format!("{n}k"),
            _ => n.to_string(),
        },
        Value::Word(word) => (*word).to_owned(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::Text(text) => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// The words that a parser sees, without comments; order and layout of sections as they are. A state that is not
    /// StandAlone need not be told.
    fn words(text: &str) -> Vec<String> {
        let lines = text.lines().map(|line| line.split(" #").next().unwrap_or_default());
        let told = lines.filter(|line| !line.contains("_cstate") || line.contains("StandAlone"));
        told.flat_map(str::split_whitespace).map(str::to_owned).collect()
    }

    #[test]
    fn what_the_real_tool_printed_comes_out_again() {
        let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/config/runtime");
        for case in ["options-changed", "three-node-mixed", "two-node-connected"] {
            let real = fs::read_to_string(runtime.join(case).join("show.txt")).unwrap();
            let running = Running::parse_show(&real).unwrap();
            let ours: String = running.iter().map(|r| text(r, false)).collect();
            assert_eq!(words(&ours), words(&real), "{case}");
        }
    }
}
