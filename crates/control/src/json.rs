//! `status --json`: the schema of `drbdsetup status --json` (`docs/spec/config-and-cli.md` 4.2). Always valid JSON;
//! what we know beyond the schema stands behind its keys.

use serde_json::{Map, Value, json};

use crate::latency;
use crate::matter::matters;
use crate::rates::{self, Progress};
use crate::status::{ConnectionStatus, DeviceStatus, PathAddress, PeerDeviceStatus, ResourceStatus, VerifyDetails};
use crate::what_if::{self, WhatIf};

/// Printed when the remaining time is not known.
const UNKNOWN_SECONDS: u64 = 987_654_321;

/// The array of all resources, sorted by name, ending with a newline.
pub fn status(resources: &[ResourceStatus]) -> String {
    array(resources, resource)
}

/// The same, and behind `urbd-matters` of each what is the matter with it, in sentences; behind `urbd-what-if` what
/// each single loss would do, if that is known.
pub fn status_with_matters(
    resources: &[ResourceStatus],
    what_if: impl Fn(&ResourceStatus) -> Option<Vec<WhatIf>>,
) -> String {
    array(resources, |r| {
        let mut value = resource(r);
        if let Value::Object(object) = &mut value {
            object.insert("urbd-matters".into(), json!(matters(r)));
            object.extend(what_if(r).map(|all| ("urbd-what-if".into(), what_if::json(&all))));
        }
        value
    })
}

fn array(resources: &[ResourceStatus], value: impl Fn(&ResourceStatus) -> Value) -> String {
    let mut sorted: Vec<&ResourceStatus> = resources.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let array = Value::Array(sorted.into_iter().map(value).collect());
    format!("{array:#}\n")
}

fn resource(resource: &ResourceStatus) -> Value {
    let mut object = object(json!({
        "name": resource.name,
        "node-id": resource.node_id.map_or(-1, i32::from),
        "role": resource.role.as_str(),
        "suspended": resource.suspended.any(),
        "suspended-user": resource.suspended.user,
        "suspended-no-data": resource.suspended.no_data,
        "suspended-fencing": resource.suspended.fencing,
        "suspended-quorum": resource.suspended.quorum,
        "force-io-failures": resource.force_io_failures,
        "write-ordering": resource.write_ordering.as_str(),
        "devices": resource.devices.iter().map(device).collect::<Vec<_>>(),
        "connections": resource.connections.iter().map(|c| connection(resource, c)).collect::<Vec<_>>(),
    }));
    if let Some(memory) = &resource.memory {
        let of = json!({
            "buffers": memory.buffers / 1024,
            "buffers-min": memory.buffers_least / 1024,
            "buffers-max": memory.buffers_most / 1024,
            "bitmaps": memory.bitmaps / 1024,
            "locked": memory.locked / 1024,
            "lockable": memory.lockable.map(|bytes| bytes / 1024),
        });
        object.insert("urbd-memory".into(), of);
    }
    Value::Object(object)
}

fn device(device: &DeviceStatus) -> Value {
    let mut object = object(json!({
        "volume": device.volume,
        "minor": device.minor,
        "disk-state": device.disk.as_str(),
        "client": device.client == crate::IntentionalClient::Yes,
        "open": device.open.unwrap_or(false),
        "quorum": device.quorum,
    }));
    if let Some(statistics) = &device.statistics {
        extend(
            &mut object,
            json!({
                "size": statistics.size_sectors / 2,
                "read": statistics.read_sectors / 2,
                "written": statistics.written_sectors / 2,
                "al-writes": statistics.al_writes,
                "bm-writes": statistics.bm_writes,
                "upper-pending": statistics.upper_pending,
                "lower-pending": statistics.lower_pending,
            }),
        );
    }
    if !device.latencies.is_empty() {
        object.insert("urbd-latency".into(), latency::json(&device.latencies));
    }
    if let Some(path) = &device.device_path {
        object.insert("device-path".into(), json!(path));
    }
    if let Some(uri) = &device.nbd_uri {
        object.insert("nbd-uri".into(), json!(uri));
    }
    Value::Object(object)
}

fn connection(resource: &ResourceStatus, connection: &ConnectionStatus) -> Value {
    let mut object = object(json!({
        "peer-node-id": connection.peer_node_id.map_or(-1, i32::from),
        "name": connection.name,
        "connection-state": connection.connection.as_str(),
        "congested": connection.statistics.is_some_and(|s| s.congested),
        "peer-role": connection.peer_role.as_str(),
        "tls": connection.tls,
    }));
    if let Some(statistics) = &connection.statistics {
        object.insert("ap-in-flight".into(), json!(statistics.ap_in_flight_sectors));
        object.insert("rs-in-flight".into(), json!(statistics.rs_in_flight_sectors));
    }
    let paths = connection.paths.iter().map(|path| {
        json!({
            "this_host": host(&path.local),
            "remote_host": host(&path.peer),
            "established": path.established,
        })
    });
    object.insert("paths".into(), paths.collect());
    let peer_devices = connection.peer_devices.iter().map(|p| {
        let size = resource.device(p.volume).and_then(|d| d.statistics).map_or(0, |s| s.size_sectors);
        peer_device(p, size)
    });
    object.insert("peer_devices".into(), peer_devices.collect());
    if let Some(protocol) = connection.protocol {
        object.insert("protocol-version".into(), json!(protocol));
    }
    if connection.failed_authentications > 0 {
        object.insert("failed-authentications".into(), json!(connection.failed_authentications));
    }
    if let Some(cause) = &connection.cause {
        object.insert("reason".into(), json!(cause.text));
    }
    Value::Object(object)
}

fn host(address: &PathAddress) -> Value {
    json!({"address": address.address, "port": address.port, "family": address.family})
}

fn peer_device(peer_device: &PeerDeviceStatus, size_sectors: u64) -> Value {
    let statistics = peer_device.statistics.unwrap_or_default();
    let progress = Progress::of(peer_device);
    let mut object = object(json!({
        "volume": peer_device.volume,
        "replication-state": peer_device.replication.as_str(),
        "peer-disk-state": peer_device.peer_disk.as_str(),
        "peer-client": peer_device.peer_client == crate::IntentionalClient::Yes,
        "resync-suspended": peer_device.resync_suspended.to_string(),
        "received": statistics.received_sectors / 2,
        "sent": statistics.sent_sectors / 2,
        "out-of-sync": statistics.out_of_sync_sectors / 2,
        "pending": statistics.pending,
        "unacked": statistics.unacked,
        "has-sync-details": progress.is_some(),
        "has-online-verify-details": progress.is_some_and(|p| p.details().verify.is_some()),
        "percent-in-sync": hundredths(rates::percent_in_sync(peer_device, size_sectors).unwrap_or(0.0)),
    }));
    if let Some(progress) = progress {
        extend(&mut object, sync_details(progress));
    }
    Value::Object(object)
}

fn sync_details(progress: Progress) -> Value {
    let details = progress.details();
    let mut object = object(json!({
        "rs-total": details.total_sectors,
        "rs-dt-start-ms": details.since_start_ms,
        "rs-paused-ms": details.paused_ms,
        "rs-dt0-ms": details.dt0_ms,
        "rs-db0-sectors": details.db0_sectors,
        "rs-dt1-ms": details.dt1_ms,
        "rs-db1-sectors": details.db1_sectors,
    }));
    let kind = match details.verify {
        Some(verify) => verify_details(verify),
        None => json!({"rs-failed": details.failed_sectors, "rs-same-csum": details.same_csum_sectors}),
    };
    extend(&mut object, kind);
    extend(
        &mut object,
        json!({
            "want": hundredths(details.want_kib_per_s as f64 / 1024.0),
            "db0/dt0 [MiB/s]": hundredths(progress.recent_rate()),
            "db1/dt1 [MiB/s]": hundredths(progress.window_rate()),
            "estimated-seconds-to-finish": progress.seconds_left().unwrap_or(UNKNOWN_SECONDS),
            "db/dt [MiB/s]": hundredths(progress.average_rate()),
            "percent-resync-done": hundredths(progress.percent_done()),
        }),
    );
    Value::Object(object)
}

fn verify_details(verify: VerifyDetails) -> Value {
    json!({
        "ov-start-sector": verify.start_sector,
        // The end of the device is printed as a signed number: -1.
        "ov-stop-sector": verify.stop_sector as i64,
        "ov-position": verify.position_sector,
        "ov-left": verify.left_sectors,
        "ov-skipped": verify.skipped_sectors,
    })
}

fn hundredths(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn extend(map: &mut Map<String, Value>, more: Value) {
    map.extend(object(more));
}
