//! The renderers against what the real tools printed for the same states (`vectors/config/runtime`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use urbd_control::{
    ConnectionState, ConnectionStatistics, ConnectionStatus, DeviceStatistics, DeviceStatus, DiskState, HelperCall,
    IntentionalClient, PathAddress, PathStatus, PeerDeviceStatistics, PeerDeviceStatus, ReplicationState,
    ResourceStatus, ResyncSuspended, Role, Suspended, SyncDetails, VerifyDetails, events, human, json, query,
};

fn runtime() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/config/runtime")
}

fn cases() -> Vec<PathBuf> {
    let mut cases: Vec<PathBuf> = fs::read_dir(runtime()).unwrap().map(|e| e.unwrap().path()).collect();
    cases.sort();
    assert!(cases.len() >= 9);
    cases
}

/// One line of a state description: an object and its properties.
struct Described {
    kind: String,
    values: BTreeMap<String, String>,
}

impl Described {
    fn parse(words: &str) -> Described {
        let mut words = words.split_whitespace();
        let kind = words.next().unwrap().to_owned();
        let values = words.map(|w| w.split_once('=').unwrap()).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        Described { kind, values }
    }

    fn text(&self, key: &str) -> Option<String> {
        self.values.get(key).cloned()
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.values.get(key).map(|v| v.parse().unwrap())
    }

    fn or_zero(&self, key: &str) -> u64 {
        self.number(key).unwrap_or(0)
    }

    fn flag(&self, key: &str) -> bool {
        self.or_zero(key) != 0
    }

    fn resource(&self) -> ResourceStatus {
        let suspended = self.or_zero("susp");
        ResourceStatus {
            name: self.text("res").unwrap(),
            node_id: self.number("nodeid").map(|n| n as u8),
            role: Role::ALL[self.or_zero("role") as usize],
            suspended: Suspended {
                user: suspended & 1 != 0,
                no_data: suspended & 2 != 0,
                fencing: suspended & 4 != 0,
                quorum: suspended & 8 != 0,
            },
            force_io_failures: self.flag("failio"),
            ..ResourceStatus::new("")
        }
    }

    fn client(&self) -> IntentionalClient {
        if self.flag("client") { IntentionalClient::Yes } else { IntentionalClient::No }
    }

    fn device(&self) -> DeviceStatus {
        let statistics = DeviceStatistics {
            size_sectors: 2_097_016,
            read_sectors: 2048,
            written_sectors: 4096,
            al_writes: 3,
            upper_pending: self.or_zero("up") as u32,
            upper_blocked: self.flag("ub"),
            lower_blocked: self.flag("lb"),
            ..DeviceStatistics::default()
        };
        DeviceStatus {
            volume: self.or_zero("vol") as u16,
            minor: self.or_zero("minor") as u32,
            disk: DiskState::ALL[self.or_zero("disk") as usize],
            client: self.client(),
            open: Some(self.flag("open")),
            quorum: self.number("q") != Some(0),
            backing_dev: self.text("bdev"),
            statistics: (!self.flag("nostat")).then_some(statistics),
            ..DeviceStatus::new(0, DiskState::Diskless)
        }
    }

    fn connection(&self) -> ConnectionStatus {
        ConnectionStatus {
            peer_node_id: self.number("peer").map(|n| n as u8),
            name: self.text("name").unwrap(),
            connection: ConnectionState::ALL[self.or_zero("cs") as usize],
            peer_role: Role::ALL[self.or_zero("role") as usize],
            statistics: Some(ConnectionStatistics {
                congested: self.flag("cong"),
                ap_in_flight_sectors: self.or_zero("apif"),
                rs_in_flight_sectors: self.or_zero("rsif"),
            }),
            ..ConnectionStatus::new("", ConnectionState::StandAlone)
        }
    }

    fn peer_device(&self) -> PeerDeviceStatus {
        let sync = self.number("rst").map(|total_sectors| SyncDetails {
            total_sectors,
            since_start_ms: self.or_zero("dts"),
            paused_ms: self.or_zero("dtp"),
            dt0_ms: self.or_zero("dt0"),
            db0_sectors: self.or_zero("db0"),
            dt1_ms: self.or_zero("dt1"),
            db1_sectors: self.or_zero("db1"),
            want_kib_per_s: self.or_zero("want"),
            verify: self.number("ovstart").map(|start_sector| VerifyDetails {
                start_sector,
                stop_sector: self.or_zero("ovstop"),
                position_sector: self.or_zero("ovpos"),
                left_sectors: self.or_zero("ovleft"),
                skipped_sectors: 0,
            }),
            ..SyncDetails::default()
        });
        PeerDeviceStatus {
            volume: self.or_zero("vol") as u16,
            replication: ReplicationState::ALL[self.or_zero("repl") as usize - 9],
            peer_disk: DiskState::ALL[self.or_zero("pdsk") as usize],
            peer_client: self.client(),
            resync_suspended: ResyncSuspended { user: self.flag("rsusp"), ..ResyncSuspended::default() },
            statistics: Some(PeerDeviceStatistics {
                received_sectors: self.or_zero("recv"),
                sent_sectors: self.or_zero("sent"),
                out_of_sync_sectors: self.or_zero("oos"),
                pending: self.or_zero("pend") as u32,
                unacked: 0,
            }),
            sync,
            ..PeerDeviceStatus::new(0, ReplicationState::Off, DiskState::DUnknown)
        }
    }

    fn path(&self) -> PathStatus {
        PathStatus {
            local: address(&self.values["my"]),
            peer: address(&self.values["to"]),
            established: self.flag("est"),
        }
    }

    /// Creates or replaces the object.
    fn apply(&self, resources: &mut Vec<ResourceStatus>) {
        let name = self.text("res").unwrap();
        if self.kind == "res" {
            match resources.iter_mut().find(|r| r.name == name) {
                Some(old) => {
                    let (devices, connections) = (old.devices.clone(), old.connections.clone());
                    *old = ResourceStatus { devices, connections, ..self.resource() };
                }
                None => resources.push(self.resource()),
            }
            return;
        }
        let resource = resources.iter_mut().find(|r| r.name == name).unwrap();
        if self.kind == "dev" {
            return put(&mut resource.devices, self.device(), |a, b| a.volume == b.volume);
        }
        let peer = self.number("peer").map(|n| n as u8);
        let connection = resource.connections.iter_mut().find(|c| c.peer_node_id == peer);
        match (self.kind.as_str(), connection) {
            ("conn", Some(old)) => {
                let (paths, peer_devices) = (old.paths.clone(), old.peer_devices.clone());
                *old = ConnectionStatus { paths, peer_devices, ..self.connection() };
            }
            ("conn", None) => resource.connections.push(self.connection()),
            ("pd", Some(c)) => put(&mut c.peer_devices, self.peer_device(), |a, b| a.volume == b.volume),
            ("path", Some(c)) => put(&mut c.paths, self.path(), |a, b| a.local == b.local),
            (kind, _) => panic!("{kind} without its connection"),
        }
    }

    fn destroy(&self, resource: &mut ResourceStatus) {
        match self.kind.as_str() {
            "dev" => resource.devices.clear(),
            "conn" => resource.connections.clear(),
            "pd" => resource.connections[0].peer_devices.clear(),
            "path" => resource.connections[0].paths.clear(),
            kind => panic!("{kind}"),
        }
    }

    fn helper(&self) -> HelperCall {
        HelperCall {
            helper: self.text("hn").unwrap(),
            peer: self.number("peer").map(|id| (id as u8, self.text("name").unwrap())),
            volume: self.number("vol").map(|v| v as u16),
            minor: None,
        }
    }
}

fn address(text: &str) -> PathAddress {
    let (family, rest) = text.split_once(':').unwrap();
    let (address, port) = rest.rsplit_once(':').unwrap();
    PathAddress {
        family: family.to_owned(),
        address: address.trim_matches(['[', ']']).to_owned(),
        port: port.parse().unwrap(),
    }
}

fn put<T>(list: &mut Vec<T>, new: T, same: impl Fn(&T, &T) -> bool) {
    match list.iter_mut().find(|old| same(old, &new)) {
        Some(old) => *old = new,
        None => list.push(new),
    }
}

/// The state before the first notification, and the notifications.
fn described(case: &Path) -> (Vec<ResourceStatus>, Vec<String>) {
    let text = fs::read_to_string(case.join("state.txt")).unwrap();
    let (notifications, objects): (Vec<&str>, Vec<&str>) =
        text.lines().filter(|l| !l.starts_with('#')).partition(|l| l.starts_with('!'));
    let mut resources = Vec::new();
    for object in objects {
        Described::parse(object).apply(&mut resources);
    }
    (resources, notifications.into_iter().filter(|l| *l != "!exists done").map(str::to_owned).collect())
}

fn wanted(case: &Path, file: &str) -> Option<String> {
    fs::read_to_string(case.join(file)).ok()
}

#[test]
fn human_status_is_the_same_to_the_byte() {
    let flavours = [
        ("status.txt", 0, false, false),
        ("status-statistics.txt", 0, true, false),
        ("status-verbose.txt", 1, false, false),
        ("status-verbose-statistics.txt", 1, true, false),
        ("status-color.txt", 0, false, true),
    ];
    let mut compared = 0;
    for case in cases() {
        let (resources, _) = described(&case);
        for (file, verbose, statistics, color) in flavours {
            let Some(expected) = wanted(&case, file) else { continue };
            let options = human::Options { verbose, statistics, color, ..human::Options::default() };
            assert_eq!(human::status(&resources, &options), expected, "{}/{file}", case.display());
            compared += 1;
        }
    }
    assert!(compared >= 30, "{compared}");
}

#[test]
fn json_status_has_the_same_content() {
    let mut compared = 0;
    for case in cases() {
        let Some(expected) = wanted(&case, "status.json") else { continue };
        let (mut resources, _) = described(&case);
        if !expected.contains("\"paths\"") {
            continue;
        }
        resources.sort_by(|a, b| a.name.cmp(&b.name));
        let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
        let ours: serde_json::Value = serde_json::from_str(&json::status(&resources)).unwrap();
        assert_eq!(ours, expected, "{}", case.display());
        compared += 1;
    }
    assert!(compared >= 6, "{compared}");
}

#[test]
fn initial_events_are_the_same_to_the_byte() {
    for case in cases().into_iter().filter(|c| !c.ends_with("event-stream")) {
        for (file, statistics) in [("events2.txt", false), ("events2-statistics.txt", true)] {
            let Some(expected) = wanted(&case, file) else { continue };
            let (resources, _) = described(&case);
            let mut renderer = events::Renderer::new(events::Options { statistics, ..Default::default() });
            let mut lines: Vec<String> = resources.iter().rev().flat_map(|r| renderer.status(r)).collect();
            lines.push(renderer.ready());
            assert_eq!(lines, expected.lines().collect::<Vec<_>>(), "{}/{file}", case.display());
        }
    }
}

/// Plays the notifications; each group (a `+` says that more of it follows) is one atomic change.
fn play(options: events::Options) -> Vec<String> {
    let (mut resources, notifications) = described(&runtime().join("event-stream"));
    let mut renderer = events::Renderer::new(options);
    let mut lines: Vec<String> = resources.iter().flat_map(|r| renderer.status(r)).collect();
    lines.push(renderer.ready());
    for notification in notifications {
        let (action, rest) = notification.split_once(' ').unwrap();
        let described = Described::parse(rest);
        let name = described.text("res").unwrap();
        match action.trim_end_matches('+') {
            "!call" => lines.push(renderer.helper(&name, &described.helper(), None)),
            "!resp" => {
                lines.push(renderer.helper(&name, &described.helper(), Some(described.or_zero("st") as i32)));
            }
            "!rename" => {
                resources[0].name = described.text("new").unwrap();
                lines.extend(renderer.renamed(&name, &resources[0].name));
            }
            "!destroy" if described.kind == "res" => lines.extend(renderer.gone(&name)),
            change => {
                match change {
                    "!destroy" => described.destroy(resources.iter_mut().find(|r| r.name == name).unwrap()),
                    _ => described.apply(&mut resources),
                }
                if !action.ends_with('+') {
                    let told = renderer.status(resources.iter().find(|r| r.name == name).unwrap());
                    // In this stream a connection goes alone; a process says what goes with it.
                    let below = |line: &String| line.contains("destroy peer-device ") || line.contains("destroy path ");
                    lines.extend(told.into_iter().filter(|line| change != "!destroy" || !below(line)));
                }
            }
        }
    }
    lines
}

#[test]
fn a_stream_of_changes_is_the_same_to_the_byte() {
    let flavours = [
        ("events2.txt", events::Options::default()),
        ("events2-statistics.txt", events::Options { statistics: true, ..Default::default() }),
        ("events2-full.txt", events::Options { full: true, ..Default::default() }),
        ("events2-color.txt", events::Options { color: true, ..Default::default() }),
    ];
    for (file, options) in flavours {
        let expected = wanted(&runtime().join("event-stream"), file).unwrap();
        let ours = play(options).join("\n");
        assert_eq!(ours, expected.trim_end(), "{file}");
    }
}

#[test]
fn disk_states_of_a_device() {
    let (resources, _) = described(&runtime().join("quorum-lost"));
    assert_eq!(query::disk_states(&resources[0], 0).unwrap(), "UpToDate/DUnknown/Outdated");
    assert_eq!(query::disk_states(&resources[0], 1), None);
}
