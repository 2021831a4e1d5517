//! Writers of metadata: what is under way to the disk.

use meta::Superblock;
use std::collections::BTreeSet;
use units::Generation;

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
    /// A generation that this node has begun in memory, and that peers are to hear of before it is its own on disk.
    pub(super) beginning: Option<Beginning>,
    /// Version that has a generation which a Primary has begun: the peers are told when it is on disk.
    pub(super) heard: Option<u64>,
    /// A generation that peers may have heard of from this node, which is neither its present one nor one of its past.
    pub(super) noted: Option<Generation>,
}

/// A generation is noted on disk before peers hear of it, and becomes the present one there when they have it
/// (connection 7.2). Who dies in between is behind a peer that has it, and has not parted from it.
#[derive(Debug)]
pub(super) struct Beginning {
    /// The superblock from before.
    before: Superblock,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// To be noted, or to be noted anew.
    Due,
    /// It is being noted.
    Noting,
    /// It is noted, and peers have heard of it.
    Told,
}

/// What the disk is to have of a generation that has begun in memory.
pub(super) enum Wanted {
    /// The superblock as it is.
    Present,
    /// The one from before, with the note.
    Note(Box<Superblock>),
    /// Nothing now.
    Nothing,
}

impl MdWriter {
    /// Of a disk whose superblock has this note.
    pub(crate) fn with_note(noted: Option<Generation>) -> MdWriter {
        MdWriter { noted, ..MdWriter::default() }
    }

    /// A generation has begun that peers are to hear of; the superblock was this one before.
    pub(crate) fn begin_noted(&mut self, before: Superblock) {
        let Some(beginning) = &mut self.beginning else {
            self.beginning = Some(Beginning { before, step: Step::Due });
            return;
        };
        if beginning.step == Step::Told {
            // Who was lost meanwhile may have this one.
            beginning.before.push_history(before.current, None);
        }
        beginning.step = Step::Due;
    }

    /// The superblock as it is has a generation that a Primary has begun.
    pub(crate) fn generation_heard(&mut self) {
        self.heard = Some(self.wanted);
    }

    /// The superblock before another generation begins.
    pub(crate) fn superblock_before(&self, md: &Superblock) -> Superblock {
        let mut before = md.clone();
        self.noted.into_iter().for_each(|noted| before.push_history(noted, None));
        before
    }

    /// Another generation begins: one that was noted is past.
    pub(crate) fn past_note(&mut self, md: &mut Superblock) {
        self.noted.take().into_iter().for_each(|noted| md.push_history(noted, None));
    }

    /// A generation has begun that nobody is there to hear of.
    pub(crate) fn begin_unnoted(&mut self) {
        self.beginning = None;
    }

    /// Are peers to hear of the present generation?
    pub(crate) fn is_untold(&self) -> bool {
        self.beginning.as_ref().is_some_and(|beginning| beginning.step != Step::Told)
    }

    /// Have peers heard of the present generation, and is it not to be this node's own before they have it?
    pub(crate) fn is_told(&self) -> bool {
        self.beginning.as_ref().is_some_and(|beginning| beginning.step == Step::Told)
    }

    /// Peers have heard of it.
    pub(super) fn put_told(&mut self) {
        self.beginning.iter_mut().for_each(|beginning| beginning.step = Step::Told);
    }

    /// What is to be written. `current`: the present generation in memory; `confirmed`: the peers that have heard of it
    /// have it on disk.
    pub(super) fn superblock_due(&mut self, current: Generation, confirmed: bool) -> Wanted {
        match &mut self.beginning {
            Some(Beginning { step: Step::Told, .. }) if confirmed => {
                self.beginning = None;
                Wanted::Present
            }
            Some(Beginning { before, step: step @ Step::Due }) => {
                *step = Step::Noting;
                Wanted::Note(Box::new(before.with_note(current)))
            }
            Some(_) => Wanted::Nothing,
            None => Wanted::Present,
        }
    }

    /// A write of the superblock has ended: was it that of the note, and is that what peers are to hear of?
    pub(super) fn has_noted(&self) -> bool {
        self.beginning.as_ref().is_some_and(|beginning| beginning.step == Step::Noting)
    }
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
