//! The `.lkbd` file: the last known size of a backing device (`docs/spec/on-disk-format.md` 7.3).

use units::ByteLen;

/// Content of the file. Missing parts are unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LastKnown {
    /// Size of the backing device.
    pub size: ByteLen,
    /// Its path.
    pub path: Option<String>,
    /// Id of its metadata.
    pub device_uuid: Option<u64>,
}

impl LastKnown {
    /// Reads the file; `None` if it does not start with a size.
    #[must_use]
    pub fn parse(text: &str) -> Option<LastKnown> {
        let mut lines = text.lines();
        let first = lines.next()?;
        let (size, path) = first.split_once('\t').unwrap_or((first, ""));
        let uuid = lines.next().and_then(|l| l.strip_prefix("uuid:"));
        Some(LastKnown {
            size: ByteLen(size.trim().parse().ok()?),
            path: Some(path.trim_end()).filter(|p| !p.is_empty()).map(str::to_owned),
            device_uuid: uuid.and_then(|u| {
                let u = u.trim();
                u64::from_str_radix(u.strip_prefix("0x").unwrap_or(u), 16).ok().filter(|&u| u != 0)
            }),
        })
    }

    /// The file's text.
    #[must_use]
    pub fn emit(&self) -> String {
        let mut out = self.size.0.to_string();
        if let Some(path) = &self.path {
            out += &format!("\t{path}");
        }
        out.push('\n');
        if let Some(uuid) = self.device_uuid {
            out += &format!("uuid:\t{uuid:016X}\n");
        }
        out
    }

    /// May metadata with this device UUID, found at the last known place, be believed without force?
    #[must_use]
    pub fn matches(&self, device_uuid: u64) -> bool {
        self.device_uuid.is_none_or(|u| u == device_uuid)
    }
}
