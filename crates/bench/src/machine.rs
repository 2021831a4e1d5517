//! What was measured on: no figure means anything without it.

use serde::{Deserialize, Serialize};
use std::fs;

/// The machine.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// As the processor calls itself.
    pub processor: String,
    /// Processors that may be used.
    pub cpus: usize,
    /// MiB of memory.
    pub memory_mib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// Load average over a minute when it began.
    pub load: f64,
    /// The version of urbd, and how it was built.
    pub urbd: String,
    /// UTC, as in `2026-01-31T12:00:00Z`.
    pub time: String,
}

impl Machine {
    /// This one, now.
    #[must_use]
    pub fn this() -> Machine {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let processor = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let memory_kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or_default();
        let build = if cfg!(debug_assertions) { "debug build: figures mean nothing" } else { "release build" };
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Machine {
            processor,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_kib / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: read("/proc/loadavg").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or_default(),
            urbd: format!("{} ({build})", env!("CARGO_PKG_VERSION")),
            time: utc(since_1970.as_secs()),
        }
    }

    /// One line.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "{} x {}, {} MiB, Linux {}, urbd {}, load {:.1}, {}",
            self.cpus, self.processor, self.memory_mib, self.kernel, self.urbd, self.load, self.time
        )
    }
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Seconds since 1970 as a date, by the Gregorian calendar's 400-year cycle (days are counted from 1 March).
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86400, seconds % 86400);
    let since_march_0 = days + 719_468;
    let (era, day) = (since_march_0 / 146_097, since_march_0 % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(4_102_444_799), "2099-12-31T23:59:59Z");
    }

    #[test]
    fn this_machine_is_known() {
        let machine = Machine::this();
        assert!(machine.cpus > 0 && machine.memory_mib > 0 && !machine.kernel.is_empty(), "{machine:?}");
    }
}
