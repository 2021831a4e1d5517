//! `apply-al`: bringing the bitmap up to what the activity log says after a crash
//! (`docs/spec/on-disk-format.md` 3.10).
//!
//! Where a transaction is missing in the middle, the reference goes on without it; here every extent is marked.
//!
//! [`decide`] says what is to be done; the caller then reads each page of [`ApplyAl::pages`], marks it with
//! [`ApplyAl::mark`], writes it back, flushes, and carries out [`ApplyAl::finish`]. Doing it twice is harmless.

use crate::Block;
use crate::activity_log::block;
use crate::activity_log::replay::{Replay, ReplayError, replay};
use crate::bitmap::BitmapArea;
use crate::find::Found;
use crate::layout::Layout;
use crate::plan::Step;
use crate::superblock::{DeviceFlags, Superblock};
use std::collections::BTreeSet;

/// What `apply-al` does on a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApplyAl {
    layout: Layout,
    area: BitmapArea,
    hot: BTreeSet<u32>,
    /// A transaction is missing: every extent may have been hot.
    all: bool,
    reinitialize: bool,
    superblock: Option<Superblock>,
    replay: Result<Replay, ReplayError>,
}

/// Decides from the superblock and the bytes of the whole activity log area. An unusable log is an error only if this
/// node was Primary: then nothing tells which blocks may differ.
///
/// With bitmaps for several peers the same is done for a Secondary, which the reference does not do: what it got from
/// one peer another one may lack, and marks of that may have been in memory only.
pub fn decide(found: &Found, ring: &[u8]) -> Result<ApplyAl, ReplayError> {
    let sb = &found.superblock;
    let replay = replay(ring, found.layout.geometry().al(), sb.format, sb.al_extents);
    let counts = sb.flags.contains(DeviceFlags::PRIMARY_IND) || found.layout.geometry().slots() > 1;
    let mut plan = ApplyAl {
        layout: found.layout,
        area: BitmapArea::new(found.layout.geometry(), sb.effective_size),
        hot: BTreeSet::new(),
        all: false,
        reinitialize: true,
        superblock: None,
        replay: replay.clone(),
    };
    let mut marks = false;
    match replay {
        Err(e) if counts => return Err(e),
        Err(_) => {}
        Ok(r) => {
            plan.reinitialize = r.has_records || r.must_reinitialize;
            marks = r.has_records && counts;
            if marks {
                plan.all = r.gap;
                plan.hot = r.hot;
            }
        }
    }
    if marks || !sb.is_clean() {
        let mut clean = sb.clone();
        clean.mark_clean();
        plan.superblock = Some(clean);
    }
    Ok(plan)
}

impl ApplyAl {
    /// Bitmap pages to change, ascending. They may be all that there are: 8 million of 30 TiB with 31 slots.
    pub fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        let all = 0..if self.all { self.area.pages() } else { 0 };
        let mut next = 0;
        // Neighbouring extents share a page.
        let new = move |pages: std::ops::Range<u64>| {
            let pages = pages.start.max(next)..pages.end;
            next = next.max(pages.end);
            pages
        };
        let hot = self.hot.iter().filter(|_| !self.all);
        all.chain(hot.map(|&extent| self.area.pages_of_extent(extent)).flat_map(new))
    }

    /// Marks what belongs on `page`; returns how many bits became set.
    pub fn mark(&self, page: u64, data: &mut Block) -> u64 {
        if self.all {
            return self.area.extents_on_page(page).map(|e| self.area.mark_extent_on_page(e, page, data)).sum();
        }
        let on_page = self.hot.range(self.area.extents_on_page(page));
        on_page.map(|&e| self.area.mark_extent_on_page(e, page, data)).sum()
    }

    /// Hot extents that are marked (none if the node was not Primary, and has one peer).
    #[must_use]
    pub fn hot(&self) -> &BTreeSet<u32> {
        &self.hot
    }

    /// Is every extent marked, as the log does not tell which were hot?
    #[must_use]
    pub fn marks_all(&self) -> bool {
        self.all
    }

    /// Hot extents wholly beyond the bitmap, which are not marked.
    pub fn beyond(&self) -> impl Iterator<Item = u32> + '_ {
        self.hot.iter().copied().filter(|&e| self.area.pages_of_extent(e).is_empty())
    }

    /// What the ring said, for messages. An error here was ignored because the node was not Primary, and
    /// has one peer.
    pub fn replay(&self) -> Result<&Replay, ReplayError> {
        self.replay.as_ref().map_err(|e| *e)
    }

    /// Is there nothing to do at all?
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        !self.reinitialize && self.superblock.is_none()
    }

    /// What follows when the marked pages are on stable storage: first the activity log, last the superblock.
    #[must_use]
    pub fn finish(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.reinitialize {
            steps.extend([initialize_al(&self.layout), Step::Flush]);
        }
        if let Some(sb) = &self.superblock {
            steps.extend([Step::block(self.layout.superblock_at(), &sb.emit()), Step::Flush]);
        }
        steps
    }

    /// The superblock as it is afterwards, if it changes.
    #[must_use]
    pub fn superblock(&self) -> Option<&Superblock> {
        self.superblock.as_ref()
    }
}

/// Fills the whole activity log area with INITIALIZED blocks (`docs/spec/on-disk-format.md` 3.3).
#[must_use]
pub fn initialize_al(layout: &Layout) -> Step {
    Step::Repeat { at: layout.al_at(), block: block::initialized(), count: layout.geometry().al().blocks() }
}
