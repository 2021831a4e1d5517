//! The disks of a volume.

/// Where the data and metadata of a volume are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Path of the backing device or file.
    pub path: String,
    /// Where the metadata is.
    pub meta_disk: MetaDisk,
}

/// Where the metadata of a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaDisk {
    /// At the end of the backing device (`internal` and `flexible-meta-disk internal`).
    Internal,
    /// On another device, sized as needed.
    External {
        /// Path.
        path: String,
    },
    /// On another device, in a slot of 128 MiB.
    Indexed {
        /// Path.
        path: String,
        /// Slot number, from 0.
        index: u32,
    },
}
