//! Writers of metadata: what is under way to the disk.

use std::collections::BTreeSet;

/// What is being written for one device.
#[derive(Debug, Default)]
pub(crate) struct MdWriter {
    /// Version of the superblock in memory.
    pub(super) wanted: u64,
    /// Version being written.
    pub(super) writing: Option<u64>,
    /// Version on disk.
    pub(super) written: u64,
    /// Version that names the present data generation: no write is let through before it is on disk.
    pub(super) generation: u64,
    /// Version that says "in use": no activity-log transaction before it is on disk.
    pub(super) in_use: u64,
    /// Version that says that the activity log is not kept: every write is in it before that is on disk.
    pub(super) unlogged: u64,
    /// Bitmap pages being written.
    pub(super) pages: BTreeSet<u64>,
    /// One of them is preceded by a flush of the data; so much of it is covered.
    pub(super) flushing: Option<(u64, u64)>,
    /// All dirty pages shall be written.
    pub(super) all_pages: bool,
}

impl MdWriter {
    pub(crate) fn page_busy(&self, page: u64) -> bool {
        self.pages.contains(&page)
    }

    pub(crate) fn busy_until_in_use(&self) -> bool {
        self.written < self.in_use
    }

    pub(super) fn idle(&self) -> bool {
        self.writing.is_none() && self.written >= self.wanted && self.pages.is_empty() && !self.all_pages
    }
}
