//! The status as Prometheus text.

use control::{ConnectionState, DiskState, ResourceStatus, Role};
use std::fmt::Write;

/// All metrics of a resource, in the text exposition format.
pub(crate) fn text(status: &ResourceStatus) -> String {
    let mut out = String::new();
    let resource = &status.name;
    gauge(&mut out, "urbd_resource_primary", "1 if this node is Primary.", |sample| {
        sample(format!("resource=\"{resource}\""), u64::from(status.role == Role::Primary));
    });
    gauge(&mut out, "urbd_resource_suspended", "1 if I/O is frozen.", |sample| {
        sample(format!("resource=\"{resource}\""), u64::from(status.suspended.any()));
    });
    devices(&mut out, status);
    latencies(&mut out, status);
    connections(&mut out, status);
    out
}

fn devices(out: &mut String, status: &ResourceStatus) {
    type Value = fn(&control::DeviceStatistics) -> u64;
    gauge(out, "urbd_device_up_to_date", "1 if the local disk is UpToDate.", |sample| {
        for d in &status.devices {
            let labels = format!("resource=\"{}\",volume=\"{}\"", status.name, d.volume);
            sample(labels, u64::from(d.disk == DiskState::UpToDate));
        }
    });
    let table: [(&str, &str, &str, Value); 6] = [
        ("urbd_device_size_bytes", "gauge", "Usable size.", |s| s.size_sectors * 512),
        ("urbd_device_read_bytes_total", "counter", "Read from the local disk.", |s| s.read_sectors * 512),
        ("urbd_device_written_bytes_total", "counter", "Written to the local disk.", |s| s.written_sectors * 512),
        ("urbd_device_al_writes_total", "counter", "Activity log transactions.", |s| s.al_writes),
        ("urbd_device_bitmap_writes_total", "counter", "Bitmap blocks written.", |s| s.bm_writes),
        ("urbd_device_upper_pending", "gauge", "Application requests in flight.", |s| u64::from(s.upper_pending)),
    ];
    for (name, kind, help, value) in table {
        family(out, name, kind, help, |sample| {
            for d in &status.devices {
                if let Some(statistics) = &d.statistics {
                    let labels = format!("resource=\"{}\",volume=\"{}\"", status.name, d.volume);
                    sample(labels, value(statistics));
                }
            }
        });
    }
}

/// The ends of the buckets, in nanoseconds: powers of two from 4 us to 17 s.
const ENDS: std::ops::RangeInclusive<u32> = 12..=34;

fn latencies(out: &mut String, status: &ResourceStatus) {
    let name = "urbd_request_duration_seconds";
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "# HELP {name} Time that requests (of applications; peer-write: of the peer) spent in a stage of their way.\n\
         # TYPE {name} histogram"
    );
    for d in &status.devices {
        for s in &d.latencies {
            let (resource, volume) = (&status.name, d.volume);
            let labels =
                format!("resource=\"{resource}\",volume=\"{volume}\",request=\"{}\",stage=\"{}\"", s.request, s.stage);
            for nanos in ENDS.map(|bits| 1u64 << bits) {
                let (le, count) = (nanos as f64 / 1e9, s.count_below(nanos));
                let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{le}\"}} {count}");
            }
            let (sum, count) = (s.sum_ns as f64 / 1e9, s.count());
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(out, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}");
        }
    }
}

fn connections(out: &mut String, status: &ResourceStatus) {
    gauge(out, "urbd_connection_connected", "1 if the peer is connected.", |sample| {
        for c in &status.connections {
            let labels = format!("resource=\"{}\",peer=\"{}\"", status.name, c.name);
            sample(labels, u64::from(c.connection == ConnectionState::Connected));
        }
    });
    type Value = fn(&control::PeerDeviceStatistics) -> u64;
    let table: [(&str, &str, &str, Value); 4] = [
        ("urbd_peer_device_out_of_sync_bytes", "gauge", "Bytes that differ.", |s| s.out_of_sync_sectors * 512),
        ("urbd_peer_device_sent_bytes_total", "counter", "Data sent.", |s| s.sent_sectors * 512),
        ("urbd_peer_device_received_bytes_total", "counter", "Data received.", |s| s.received_sectors * 512),
        ("urbd_peer_device_pending", "gauge", "Requests the peer has not answered.", |s| u64::from(s.pending)),
    ];
    for (name, kind, help, value) in table {
        family(out, name, kind, help, |sample| {
            for c in &status.connections {
                for p in &c.peer_devices {
                    if let Some(statistics) = &p.statistics {
                        let (resource, peer, volume) = (&status.name, &c.name, p.volume);
                        let labels = format!("resource=\"{resource}\",peer=\"{peer}\",volume=\"{volume}\"");
                        sample(labels, value(statistics));
                    }
                }
            }
        });
    }
}

fn gauge(out: &mut String, name: &str, help: &str, samples: impl FnOnce(&mut dyn FnMut(String, u64))) {
    family(out, name, "gauge", help, samples);
}

fn family(out: &mut String, name: &str, kind: &str, help: &str, samples: impl FnOnce(&mut dyn FnMut(String, u64))) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    samples(&mut |labels, value| {
        let _ = writeln!(out, "{name}{{{labels}}} {value}");
    });
}
