//! The `key:value` words that `status` and `events2` have in common (`docs/spec/config-and-cli.md` 4.4).

use crate::paint::{self, Side, paint};
use crate::rates::Progress;
use crate::status::{
    ConnectionStatus, DeviceStatistics, DeviceStatus, MemoryStatus, PeerDeviceStatistics, PeerDeviceStatus,
};

pub(crate) fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

pub(crate) fn kib(sectors: u64) -> u64 {
    sectors / 2
}

/// `blocked:`: which layer holds requests back.
pub(crate) fn blocked(statistics: &DeviceStatistics) -> &'static str {
    match (statistics.upper_blocked, statistics.lower_blocked) {
        (false, false) => "no",
        (true, false) => "upper",
        (false, true) => "lower",
        (true, true) => "upper,lower",
    }
}

pub(crate) fn disk(device: &DeviceStatus, color: bool) -> String {
    format!("disk:{}", paint(color, Side::Local, paint::disk(device.disk, device.client), device.disk.as_str()))
}

pub(crate) fn peer_disk(peer_device: &PeerDeviceStatus, color: bool) -> String {
    let hue = paint::disk(peer_device.peer_disk, peer_device.peer_client);
    format!("peer-disk:{}", paint(color, Side::Peer, hue, peer_device.peer_disk.as_str()))
}

pub(crate) fn replication(peer_device: &PeerDeviceStatus, color: bool) -> String {
    let (side, hue) = paint::replication(peer_device.replication);
    format!("replication:{}", paint(color, side, hue, peer_device.replication.as_str()))
}

pub(crate) fn connection(connection: &ConnectionStatus, color: bool) -> String {
    let hue = paint::connection(connection.connection);
    format!("connection:{}", paint(color, Side::Local, hue, connection.connection.as_str()))
}

pub(crate) fn peer_role(connection: &ConnectionStatus, color: bool) -> String {
    let hue = paint::role(connection.peer_role);
    format!("role:{}", paint(color, Side::Peer, hue, connection.peer_role.as_str()))
}

pub(crate) fn quorum(device: &DeviceStatus, color: bool) -> String {
    let hue = if device.quorum { paint::Hue::Good } else { paint::Hue::Bad };
    // Only a lost quorum is worth a colour by default; "yes" is printed green with --verbose.
    format!("quorum:{}", paint(color, Side::Local, hue, yes_no(device.quorum)))
}

pub(crate) fn open(device: &DeviceStatus, color: bool) -> String {
    match device.open {
        None => "open:unknown".to_owned(),
        Some(true) => format!("open:{}", paint(color, Side::Local, paint::Hue::Primary, "yes")),
        Some(false) => "open:no".to_owned(),
    }
}

/// The memory plan, in KiB.
pub(crate) fn memory(memory: &MemoryStatus) -> Vec<String> {
    let kib = |bytes: u64| bytes / 1024;
    vec![
        format!("buffers:{}", kib(memory.buffers)),
        format!("buffers-min:{}", kib(memory.buffers_least)),
        format!("buffers-max:{}", kib(memory.buffers_most)),
        format!("bitmaps:{}", kib(memory.bitmaps)),
        format!("locked:{}", kib(memory.locked)),
        format!("lockable:{}", memory.lockable.map_or_else(|| "unlimited".to_owned(), |bytes| kib(bytes).to_string())),
    ]
}

/// Counters of a device; `long` adds those of `--verbose`.
pub(crate) fn device_counters(statistics: &DeviceStatistics, long: bool) -> Vec<String> {
    let read_written =
        [format!("read:{}", kib(statistics.read_sectors)), format!("written:{}", kib(statistics.written_sectors))];
    let mut words = Vec::new();
    if long {
        words.push(format!("size:{}", kib(statistics.size_sectors)));
    }
    words.extend(read_written);
    if long {
        words.push(format!("al-writes:{}", statistics.al_writes));
        words.push(format!("bm-writes:{}", statistics.bm_writes));
        words.push(format!("upper-pending:{}", statistics.upper_pending));
        words.push(format!("lower-pending:{}", statistics.lower_pending));
        words.push(format!("al-suspended:{}", yes_no(statistics.al_suspended)));
    }
    words
}

/// The largest numbers: how the tools print a device whose counters are not known.
pub(crate) fn unknown_device_counters() -> Vec<String> {
    let (signed, unsigned, short) = (i64::MAX, u64::MAX, u32::MAX);
    vec![
        format!("size:{signed}"),
        format!("read:{signed}"),
        format!("written:{signed}"),
        format!("al-writes:{unsigned}"),
        format!("bm-writes:{unsigned}"),
        format!("upper-pending:{short}"),
        format!("lower-pending:{short}"),
        "al-suspended:yes".to_owned(),
    ]
}

/// Counters of a connection.
pub(crate) fn connection_counters(connection: &ConnectionStatus) -> Vec<String> {
    let Some(statistics) = connection.statistics else { return Vec::new() };
    vec![
        format!("congested:{}", yes_no(statistics.congested)),
        format!("ap-in-flight:{}", statistics.ap_in_flight_sectors),
        format!("rs-in-flight:{}", statistics.rs_in_flight_sectors),
    ]
}

/// Counters of a peer device; `long` adds those of `--verbose`.
pub(crate) fn peer_device_counters(peer_device: &PeerDeviceStatus, long: bool) -> Vec<String> {
    let Some(statistics) = peer_device.statistics else { return Vec::new() };
    let PeerDeviceStatistics { received_sectors, sent_sectors, out_of_sync_sectors, pending, unacked } = statistics;
    let mut words = vec![format!("received:{}", kib(received_sectors)), format!("sent:{}", kib(sent_sectors))];
    if long || out_of_sync_sectors != 0 {
        words.push(format!("out-of-sync:{}", kib(out_of_sync_sectors)));
    }
    if long {
        words.push(format!("pending:{pending}"));
        words.push(format!("unacked:{unacked}"));
        words.extend(Progress::of(peer_device).iter().flat_map(|progress| {
            let eta = progress.seconds_left().map_or("nan".to_owned(), |s| s.to_string());
            [format!("dbdt1:{:.2}", progress.window_rate()), format!("eta:{eta}")]
        }));
    }
    words
}

/// What `-vv` adds for a peer device in progress.
pub(crate) fn progress_details(peer_device: &PeerDeviceStatus) -> Vec<String> {
    let Some(progress) = Progress::of(peer_device) else { return Vec::new() };
    let details = progress.details();
    let mut words = vec![
        format!("rs-total:{}", details.total_sectors),
        format!("rs-dt-start-ms:{}", details.since_start_ms),
        format!("rs-paused-ms:{}", details.paused_ms),
        format!("rs-dt0-ms:{}", details.dt0_ms),
        format!("rs-db0-sectors:{}", details.db0_sectors),
        format!("rs-dt1-ms:{}", details.dt1_ms),
        format!("rs-db1-sectors:{}", details.db1_sectors),
    ];
    match details.verify {
        Some(verify) => words.extend([
            format!("ov-start-sector:{}", verify.start_sector),
            format!("ov-stop-sector:{}", verify.stop_sector),
            format!("ov-position:{}", verify.position_sector),
            format!("ov-left:{}", verify.left_sectors),
            format!("ov-skipped:{}", verify.skipped_sectors),
        ]),
        None => words.extend([
            format!("rs-failed:{}", details.failed_sectors),
            format!("rs-same-csum:{}", details.same_csum_sectors),
        ]),
    }
    words.extend([
        format!("want:{:.2}", details.want_kib_per_s as f64 / 1024.0),
        format!("dbdt:{:.2}", progress.average_rate()),
        format!("dbdt0:{:.2}", progress.recent_rate()),
    ]);
    words
}
