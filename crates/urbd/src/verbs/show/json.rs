//! `show --json`: always with defaults, in the layout of drbdsetup (`docs/spec/config-and-cli.md` 4.5), and valid JSON.

use config::{Address, Backing, Group, MetaDisk, Running, RunningConnection, RunningVolume};
use config::{Setting, Settings, Value as Given};
use serde_json::{Map, Value, json};

use super::{DISK, every, value};

/// One resource: an element of the array that is printed.
pub(super) fn resource(running: &Running) -> Value {
    let mut this_host = Map::new();
    if let Some(node_id) = running.node_id {
        this_host.insert("node-id".into(), json!(node_id.index()));
    }
    this_host.insert("volumes".into(), running.volumes.iter().map(volume).collect());
    json!({
        "resource": running.name,
        "options": options(&running.options, &[Group::Resource]),
        "_this_host": this_host,
        "connections": running.connections.iter().map(|c| connection(running, c)).collect::<Vec<_>>(),
    })
}

fn volume(volume: &RunningVolume) -> Value {
    let mut out = json!({
        "volume_nr": volume.nr.0,
        "device_minor": volume.minor,
    });
    match &volume.backing {
        // The real one prints the key `disk` twice here, which no parser can read: urbd leaves the options out.
        None => out["disk"] = json!("none"),
        Some(Backing { path, meta_disk }) => {
            out["backing-disk"] = json!(path);
            match meta_disk {
                MetaDisk::Internal => out["meta-disk"] = json!("internal"),
                MetaDisk::External { path } => out["meta-disk"] = json!(path),
                MetaDisk::Indexed { path, index } => {
                    out["meta-disk"] = json!(path);
                    out["meta-disk-index"] = json!(index);
                }
            }
            out["disk"] = options(&volume.options, &DISK);
        }
    }
    out
}

fn connection(running: &Running, connection: &RunningConnection) -> Value {
    let paths =
        connection.paths.iter().map(|p| json!({"this_host": address(&p.local), "remote_host": address(&p.remote)}));
    // Those without options of their own are not among the peer devices.
    let volumes = running.volumes.iter().map(|v| {
        let set = connection.peer_devices.iter().find(|(nr, _)| *nr == v.nr).map(|(_, set)| set.clone());
        json!({"volume_nr": v.nr.0, "disk": options(&set.unwrap_or_default(), &[Group::PeerDevice])})
    });
    let mut out = json!({
        "_peer_node_id": connection.peer_node_id.index(),
        "paths": paths.collect::<Vec<_>>(),
        "net": options(&connection.options, &[Group::Net]),
        "volumes": volumes.collect::<Vec<_>>(),
    });
    if connection.standalone {
        out["_cstate"] = json!("StandAlone");
    }
    out
}

fn address(address: &Address) -> Value {
    let full = address.to_string();
    let family = full.split_whitespace().next().filter(|f| !f.contains(':')).unwrap_or("ipv4").to_owned();
    json!({"address": address.ip.to_string(), "port": address.port, "family": family})
}

fn options(set: &Settings, groups: &[Group]) -> Value {
    every(set, groups).iter().map(|s| (s.spec.name.to_owned(), option(s))).collect::<Map<_, _>>().into()
}

/// Booleans as such, everything else as text: numbers with their unit.
fn option(setting: &Setting) -> Value {
    match &setting.value {
        Given::Bool(yes) => json!(yes),
        // Of a resource to wait for there may be none, which is written in its own way.
        Given::Text(_) => json!(setting.text),
        Given::Word(word) => json!(word),
        Given::Number(_) => json!(value(setting)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// What the real drbdsetup printed of two set-ups, but for a diskless volume's key `disk`, which it prints twice.
    #[test]
    fn the_keys_and_values_are_those_of_the_real_tool() {
        let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/config/runtime");
        let mut compared = 0;
        for case in ["options-changed", "two-node-connected"] {
            let read = |name: &str| fs::read_to_string(runtime.join(case).join(name)).unwrap();
            // A metadata index is followed by a stray line with a comma.
            let real: Value = serde_json::from_str(&read("show.json").replace("\n,\n", ",\n")).unwrap();
            for (ours, real) in
                Running::parse_show(&read("show.txt")).unwrap().iter().map(resource).zip(real.as_array().unwrap())
            {
                compared += same(case, &ours, real);
            }
        }
        assert!(compared > 150, "{compared}");
    }

    /// Compares what both have; ours must have every key that is not an oddity. Returns how many values were compared.
    fn same(place: &str, ours: &Value, real: &Value) -> usize {
        match (ours, real) {
            (Value::Object(a), Value::Object(b)) => {
                let odd = ["diskless", "_cstate", "_is_standalone", "path"];
                let keys = b.iter().filter(|(key, value)| !odd.contains(&key.as_str()) && **value != json!("(null)"));
                keys.map(|(key, value)| match a.get(key) {
                    Some(have) => same(&format!("{place}/{key}"), have, value),
                    None => panic!("{place}: no {key}: {value}"),
                })
                .sum()
            }
            (Value::Array(a), Value::Array(b)) => {
                assert_eq!(a.len(), b.len(), "{place}");
                a.iter().zip(b).map(|(a, b)| same(place, a, b)).sum()
            }
            (Value::String(none), Value::Object(_)) if none == "none" => 0,
            _ => {
                assert_eq!(ours, real, "{place}");
                1
            }
        }
    }
}
