//! Every pair of running state and configuration of `vectors/config/adjust`: the commands that the real drbdadm gives.

use std::fs;
use std::path::{Path, PathBuf};

use urbd_config::{AdjustScope, LoadOptions, Memory, Plan, Running, ThisHost, in_order, load_text, shell_line};

/// One sample, taken apart.
struct Sample {
    name: String,
    conf: String,
    running: String,
    /// Words behind `adjust`, and the commands of 9.22.
    arguments: Vec<String>,
    commands: Vec<String>,
}

fn samples() -> Vec<Sample> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/config/adjust");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 37);
    files.iter().map(|file| sample(file)).collect()
}

fn sample(file: &Path) -> Sample {
    let text = fs::read_to_string(file).unwrap();
    let mut sample = Sample {
        name: file.file_stem().unwrap().to_str().unwrap().to_owned(),
        conf: String::new(),
        running: String::new(),
        arguments: Vec::new(),
        commands: Vec::new(),
    };
    for part in text.split("=== ").skip(1) {
        let (head, body) = part.split_once('\n').unwrap();
        if head == "drbd.conf" {
            body.clone_into(&mut sample.conf);
        } else if head.starts_with("running") {
            body.clone_into(&mut sample.running);
        } else if head.starts_with("9.22.0 $") {
            let call = head.split("  (rc=0").next().unwrap();
            sample.arguments = call.split_whitespace().skip(5).map(str::to_owned).collect();
            sample.commands = body.lines().map(str::to_owned).collect();
        }
    }
    assert!(!sample.conf.is_empty() && !sample.arguments.is_empty(), "{}", sample.name);
    sample
}

fn planned(sample: &Sample) -> Vec<String> {
    let options = LoadOptions::default();
    let config = load_text(&Memory::default(), Path::new("/etc/drbd.conf"), &sample.conf, &options).unwrap();
    let resources = config.resources_for(&ThisHost::named("alpha")).unwrap();
    let running = Running::parse_show(&sample.running).unwrap();
    let mut scope = AdjustScope::default();
    for argument in &sample.arguments {
        match argument.as_str() {
            "--skip-net" => scope.skip_net = true,
            "--skip-disk" => scope.skip_disk = true,
            "--discard-my-data" => scope.discard_my_data = true,
            object => {
                let peer = object.split_once(':').map(|(_, peer)| peer);
                let find = |name| resources[0].peers.iter().find(|p| p.peer_name == name).unwrap().peer_node_id;
                scope.only_peer = peer.map(find);
            }
        }
    }
    let plan = |r: &_| Plan::adjust(running.iter().find(|x| x.name == config.resources[0].name), r, &scope);
    let plans: Vec<Plan> = resources.iter().map(plan).collect();
    let commands = in_order(&plans).into_iter().flat_map(|(name, step)| step.commands(name));
    // 9.22 does not know repair-md.
    commands.map(|c| shell_line(&c)).filter(|c| !c.ends_with("repair-md")).collect()
}

#[test]
fn plans_are_those_of_the_real_drbdadm() {
    let mut different = Vec::new();
    for sample in samples() {
        let planned = planned(&sample);
        if planned != sample.commands {
            different.push(format!("{}:\n  want {:#?}\n  got {planned:#?}", sample.name, sample.commands));
        }
    }
    assert!(different.is_empty(), "{} differ\n{}", different.len(), different.join("\n"));
}

/// What was brought up from a configuration needs no adjusting to it.
#[test]
fn a_fresh_resource_needs_nothing() {
    for sample in samples() {
        let options = LoadOptions::default();
        let config = load_text(&Memory::default(), Path::new("/etc/drbd.conf"), &sample.conf, &options).unwrap();
        for resource in config.resources_for(&ThisHost::named("alpha")).unwrap() {
            let running = Running::from_configuration(&resource);
            let plan = Plan::adjust(Some(&running), &resource, &AdjustScope::default());
            assert!(plan.is_empty() && plan.notes.is_empty(), "{}: {plan}", sample.name);
        }
    }
}

/// The real tools stay silent about a changed node id of this host.
#[test]
fn a_changed_node_id_is_reported() {
    let sample = samples().into_iter().find(|s| s.name.starts_with("27")).unwrap();
    let config =
        load_text(&Memory::default(), Path::new("/etc/drbd.conf"), &sample.conf, &LoadOptions::default()).unwrap();
    let wanted = config.resource_as_seen_by("r0", &ThisHost::named("alpha")).unwrap();
    let running = Running::parse_show(&sample.running).unwrap();
    let plan = Plan::adjust(running.first(), &wanted, &AdjustScope::default());
    assert!(plan.is_empty());
    assert!(plan.notes[0].contains("changed to 3"), "{:?}", plan.notes);
}
