//! Document to [`Config`]: merging, expansion, and every check that needs no machine
//! (`docs/spec/config-and-cli.md` 1.6 to 1.9).

mod checks;
mod connections;
mod hosts;

use std::sync::Arc;

use units::Duration;

pub(crate) use self::checks::target;
pub(crate) use self::hosts::merged_volumes;
use crate::backing::{Backing, MetaDisk};
use crate::document::{Document, HostKind, HostNode, ResourceNode, Sections};
use crate::error::{Error, ErrorKind, Errors, Findings};
use crate::grammar::clash_error;
use crate::index::Index;
use crate::model::{Config, HostMatch, Resource, ThisHost};
use crate::options::{Clash, Setting, Settings, StartupOptions};

/// Builds the configuration; all problems are collected before it gives up.
pub(crate) fn resolve(
    file: Arc<str>,
    document: Document,
    this_host: Option<&ThisHost>,
    mut findings: Findings,
) -> Result<Config, Errors> {
    let mut resources = Vec::with_capacity(document.resources.len());
    for node in &document.resources {
        if let Some(resource) = resource(&document, node, &mut findings) {
            resources.push(resource);
        }
    }
    let index = Index::of(resources.iter().map(|r| r.name.as_str()));
    stack(&document, &mut resources, &index, &mut findings);
    checks::across_resources(&resources, &index, &document, this_host, &mut findings);
    let global = document.global.as_ref().map(Into::into).unwrap_or_default();
    let warnings = findings.into_result()?;
    Ok(Config { file, global, resources, index, document, warnings })
}

/// The sections of a resource with everything from its template or from `common` filled in.
pub(crate) fn merged_sections(document: &Document, node: &ResourceNode) -> Sections {
    let mut merged = node.sections.clone();
    let outer = node.template.as_ref().map(|(_, sections)| sections).or(document.common.as_ref());
    let Some(outer) = outer else { return merged };
    for (inner, outer) in [
        (&mut merged.options, &outer.options),
        (&mut merged.net, &outer.net),
        (&mut merged.disk, &outer.disk),
        (&mut merged.startup, &outer.startup),
        (&mut merged.handlers, &outer.handlers),
        (&mut merged.urbd, &outer.urbd),
        (&mut merged.proxy.settings, &outer.proxy.settings),
    ] {
        inherit(inner, &[outer]);
    }
    if merged.proxy.plugins.is_empty() {
        merged.proxy.plugins.clone_from(&outer.proxy.plugins);
    }
    merged
}

/// Fills `inner` from equally near outer sections; the result is what they disagree about.
fn inherit(inner: &mut Settings, outer: &[&Settings]) -> Vec<Clash> {
    inner.own_all();
    outer.iter().flat_map(|outer| inner.inherit(outer)).collect()
}

fn report(clashes: Vec<Clash>, findings: &mut Findings) {
    for clash in clashes {
        findings.error(clash_error(&clash));
    }
}

fn resource(document: &Document, node: &ResourceNode, findings: &mut Findings) -> Option<Resource> {
    let span = &node.name.span;
    if node.hosts.is_empty() {
        findings.error(
            Error::new(ErrorKind::Host, span, format!("resource `{}` has no host section", node.name.text))
                .help("write an `on HOST { … }` section for each host"),
        );
        return None;
    }
    let sections = merged_sections(document, node);
    let hosts = hosts::hosts(node, &sections.disk, findings)?;
    let connections = connections::connections(node, &hosts, &sections.net, findings);
    warn_without_effect(&sections, findings);
    Some(Resource {
        name: node.name.text.clone(),
        span: span.clone(),
        hosts,
        connections,
        options: (&sections.options).into(),
        startup: startup(&sections.startup, findings),
        handlers: (&sections.handlers).into(),
        urbd: (&sections.urbd).into(),
        resync_goal: (&sections.urbd).into(),
        private: sections.urbd.iter().chain(sections.handlers.iter()).cloned().collect(),
        settings: sections.options,
        of_84: node.is_of_84(),
    })
}

/// The waiting times must fall: outdated ≤ degraded ≤ normal, where 0 is for ever. What is larger is lowered.
fn startup(settings: &Settings, findings: &mut Findings) -> StartupOptions {
    let mut startup = StartupOptions::from(settings);
    let longer = |a: Duration, b: Duration| b.0 != 0 && (a.0 == 0 || a > b);
    let mut lower = |name: &str, value: &mut Duration, limit_name: &str, limit: Duration| {
        let Some(setting) = settings.find(name).filter(|_| longer(*value, limit)) else { return };
        let message = format!("`{name}` is longer than `{limit_name}`: {} s are used", limit.as_millis() / 1000);
        findings.warn(&setting.span, message);
        *value = limit;
    };
    lower("degr-wfc-timeout", &mut startup.degr_wfc_timeout, "wfc-timeout", startup.wfc_timeout);
    lower("outdated-wfc-timeout", &mut startup.outdated_wfc_timeout, "degr-wfc-timeout", startup.degr_wfc_timeout);
    startup
}

/// Options that are accepted but change nothing yet.
fn warn_without_effect(sections: &Sections, findings: &mut Findings) {
    for settings in [&sections.options, &sections.startup, &sections.urbd] {
        warn_settings(settings, findings);
    }
}

fn warn_settings(settings: &Settings, findings: &mut Findings) {
    for setting in settings.iter().filter(|s| !s.spec.honoured && !s.is_default()) {
        let message = format!("option `{}` is accepted, but urbd does not act on it yet", setting.spec.name);
        findings.warn(&setting.span, message);
    }
    let without = |s: &&Setting| s.spec.name == "front-end" && matches!(s.text.as_str(), "ublk" | "nbd");
    for setting in settings.iter().filter(without) {
        let message = format!("there is no front end `{}` yet: only the NBD socket is offered", setting.text);
        findings.warn(&setting.span, message);
    }
}

/// Gives stacked hosts their names and their backing devices: the lower resource's devices of the same volume numbers.
fn stack(document: &Document, resources: &mut [Resource], index: &Index, findings: &mut Findings) {
    let is_stacked = |host: &HostNode| matches!(host.kind, HostKind::Stacked(_));
    if !document.resources.iter().any(|node| node.hosts.iter().any(is_stacked)) {
        return;
    }
    let lowers: Vec<Resource> = resources.to_vec();
    for resource in resources.iter_mut() {
        let Some(node) = document.resource(&resource.name) else { continue };
        for (host, host_node) in resource.hosts.iter_mut().zip(&node.hosts) {
            let HostKind::Stacked(lower_name) = &host_node.kind else { continue };
            let Some(lower) = index.find(&lower_name.text).map(|at| &lowers[at]).filter(|l| l.name != resource.name)
            else {
                if document.resource(&lower_name.text).is_none() || lower_name.text == resource.name {
                    let message = format!("there is no resource `{}` to stack on", lower_name.text);
                    findings.error(Error::new(ErrorKind::Stacking, &lower_name.span, message));
                }
                continue;
            };
            let names = lower.hosts.iter().flat_map(|h| match &h.is {
                HostMatch::Names(names) => names.clone(),
                _ => vec![h.name()],
            });
            host.is = HostMatch::Stacked { lower: lower.name.clone(), hosts: names.collect() };
            for volume in &mut host.volumes {
                match lower.hosts[0].volume(volume.nr) {
                    Some(below) => volume.backing = Some(device_below(below.minor)),
                    None => {
                        let message = format!("resource `{}` has no volume {} to stack on", lower.name, volume.nr.0);
                        findings.error(Error::new(ErrorKind::Stacking, &host.span, message));
                    }
                }
            }
        }
    }
}

/// The backing storage of a stacked volume: a DRBD device, with internal metadata.
pub(crate) fn device_below(minor: u32) -> Backing {
    Backing { path: format!("/dev/drbd{minor}"), meta_disk: MetaDisk::Internal }
}
