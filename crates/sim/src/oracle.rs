//! What applications may see: every copy's expected content, and which acknowledged writes it includes.
//!
//! Each node has a *view* of each volume: what its copy must hold if it is good. Writes enter the views of all nodes
//! that get them; a resync hands the source's view over to the target.

use crate::apps::FIRST_WRITE;
use crate::payload::{Content, ContentId, Payload, ZEROES};
use crate::ranges::{Changed, Ranges, sectors};
use units::SectorRange;

/// A point in the order of everything that happens.
pub(crate) type Moment = u64;

/// Names a write; several may have the same content (zeroes).
pub(crate) type WriteId = u64;

/// A write as one sector knows it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Entry {
    write: WriteId,
    content: ContentId,
    /// Acknowledged, failed, or lost with its node: it does not take effect any later.
    ended: Option<Moment>,
    /// A later write was acknowledged: reads that begin after this do not see it any more.
    superseded: Option<Moment>,
}

/// What a sector may hold.
#[derive(Clone, PartialEq, Debug)]
enum Cell {
    /// This, from before anything that is under way.
    Settled(ContentId),
    /// One of these.
    Open(Vec<Entry>),
}

/// One copy's expected content.
#[derive(Clone, Debug)]
pub(crate) struct View {
    cells: Ranges<Cell>,
    /// By node: how many of the writes that were acknowledged there are included.
    pub(crate) includes: Vec<u64>,
}

/// A write as the oracle wants to know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) write: WriteId,
    pub(crate) content: ContentId,
    pub(crate) range: SectorRange,
    pub(crate) issued: Moment,
}

impl View {
    pub(crate) fn new(len: u64, content: ContentId, nodes: usize) -> View {
        View { cells: Ranges::new(len, Cell::Settled(content)), includes: vec![0; nodes] }
    }

    /// The copy may get this write from now on.
    pub(crate) fn may_get(&mut self, w: &Written) {
        let entry = Entry { write: w.write, content: w.content, ended: None, superseded: None };
        self.cells.update(w.range, |cell| {
            let cell = cell.open();
            if !cell.iter().any(|e| e.write == w.write) {
                cell.push(entry);
            }
        });
    }

    /// The copy counts as it is from now on, and this write is still under way: what is there instead may have followed
    /// it already, if that was issued later.
    pub(crate) fn still_under_way(&mut self, w: &Written, now: Moment) {
        self.cells.update(w.range, |cell| {
            let later = |e: &&mut Entry| e.write == 0 && issued(e.content).is_none_or(|at| at > w.issued);
            cell.open().iter_mut().filter(later).for_each(|e| e.ended = Some(now));
        });
        self.may_get(w);
    }

    /// The write is over, and if `acknowledged`, the copy has it. `oldest_read`: when the oldest read that is still
    /// under way began.
    pub(crate) fn ended(&mut self, w: &Written, acknowledged: bool, now: Moment, oldest_read: Moment) {
        self.cells.update(w.range, |cell| {
            let cell = cell.open();
            for e in cell.iter_mut() {
                if e.write == w.write {
                    e.ended = Some(now);
                } else if acknowledged && e.ended.is_some_and(|t| t < w.issued) && e.superseded.is_none() {
                    e.superseded = Some(now);
                }
            }
            cell.retain(|e| e.superseded.is_none_or(|t| t > oldest_read));
        });
    }

    /// It is known only now that the copy has this write, which ended at `completed`. Where nothing is left of it, its
    /// place was compared, or written anew, meanwhile.
    pub(crate) fn confirmed(&mut self, w: &Written, completed: Moment, now: Moment, oldest_read: Moment) {
        self.cells.update(w.range, |cell| {
            let cell = cell.open();
            if !cell.iter().any(|e| e.write == w.write) {
                return;
            }
            for e in cell.iter_mut() {
                if e.write == w.write {
                    e.ended = Some(completed);
                } else if e.ended.is_some_and(|t| t < w.issued) && e.superseded.is_none() {
                    e.superseded = Some(now);
                }
            }
            cell.retain(|e| e.superseded.is_none_or(|t| t > oldest_read));
        });
    }

    /// A write that was under way is seen or not, but not any later than now: its node is gone.
    pub(crate) fn lost(&mut self, w: &Written, now: Moment) {
        self.ended(w, false, now, now);
    }

    /// Whatever these sectors hold now is as good as what they held: the power was lost before a flush.
    pub(crate) fn may_hold(&mut self, range: SectorRange, content: ContentId, now: Moment) {
        self.cells.update(range, |cell| {
            let cell = cell.open();
            if !cell.iter().any(|e| e.content == content && e.superseded.is_none()) {
                cell.push(Entry { write: 0, content, ended: Some(now), superseded: None });
            }
        });
    }

    /// Nothing is expected of the copy but what it holds.
    pub(crate) fn rebase(&mut self, disk: &Ranges<Content>) {
        self.rebase_with(self.len(), disk);
    }

    /// What these sectors may hold, piece by piece.
    pub(crate) fn expected(&self, range: SectorRange) -> Vec<(SectorRange, ContentId)> {
        let live = |e: &Entry| e.superseded.is_none();
        let cells = self.cells.runs(range);
        cells.flat_map(|(piece, cell)| cell.entries().filter(live).map(move |e| (piece, e.content))).collect()
    }

    /// The same, and it has so many sectors from now on.
    pub(crate) fn rebase_with(&mut self, len: u64, disk: &Ranges<Content>) {
        let held = disk.runs(sectors(0, len)).map(|(range, content)| (range, Cell::Settled(content.id)));
        let beyond = sectors(disk.len().min(len), len);
        let rest: Vec<_> = self.cells.runs(beyond).map(|(range, cell)| (range, cell.clone())).collect();
        self.cells = Ranges::of_runs(held.chain(rest));
    }

    /// Nothing is expected of this part of the copy but what it holds.
    pub(crate) fn rebase_part(&mut self, part: SectorRange, disk: &Ranges<Content>) {
        let part = SectorRange { start: part.start, end: part.end.min(units::Sector(self.len())) };
        for (range, content) in disk.runs(part) {
            self.cells.set(range, Cell::Settled(content.id));
        }
    }

    /// The copy counts again, as it is. Where it holds what was expected of it anyway, a write that failed may still be
    /// there or not: its peer, which counts as equal, may have it otherwise.
    pub(crate) fn accept(&mut self, disk: &Ranges<Content>, now: Moment) {
        let size = self.len();
        for (range, content) in disk.all() {
            let range = SectorRange { start: range.start, end: range.end.min(units::Sector(size)) };
            let live = |e: Entry| e.content == content.id && e.superseded.is_none_or(|t| t > now);
            let wrong = self.cells.runs(range).filter(|(_, cell)| !cell.entries().any(live)).map(|(piece, _)| piece);
            for piece in wrong.collect::<Vec<_>>() {
                self.cells.set(piece, Cell::Settled(content.id));
            }
        }
    }

    /// So many sectors there are.
    pub(crate) fn len(&self) -> u64 {
        self.cells.len()
    }

    /// Where expectations have changed since this was asked last.
    pub(crate) fn take_changed(&mut self) -> Changed {
        self.cells.take_changed()
    }

    /// Takes another copy's view of so many sectors, which both nodes have; these writes are still under way here.
    pub(crate) fn adopt(&mut self, other: View, size: u64, under_way: impl Iterator<Item = Written>) {
        let size = size.min(other.len());
        let rest =
            self.cells.runs(sectors(size.min(self.len()), self.len())).map(|(range, cell)| (range, cell.clone()));
        let rest: Vec<_> = rest.collect();
        let taken = other.cells.runs(sectors(0, size)).map(|(range, cell)| (range, cell.clone()));
        self.cells = Ranges::of_runs(taken.chain(rest));
        self.includes = other.includes;
        under_way.for_each(|w| self.may_get(&w));
    }

    /// What is expected of a range, for people.
    pub(crate) fn describe(&self, range: SectorRange) -> String {
        let word = |e: Entry| format!("{}{}", e.content, if e.superseded.is_some() { " (old)" } else { "" });
        let cells = self.cells.runs(range).map(|(_, cell)| cell.entries().map(word).collect::<Vec<_>>().join(","));
        cells.collect::<Vec<_>>().join(" ")
    }

    /// Is this what a read that began at `began` may return?
    pub(crate) fn allows(&self, range: SectorRange, got: &Payload, began: Moment) -> Result<(), String> {
        self.allows_if(range, got, |_| false, |e| e.superseded.is_none_or(|t| t > began))
    }

    /// Is this what may be durable when a write that must be has ended: its content, or one that it did not follow,
    /// also if a later write, which need not be durable, has followed that one?
    pub(crate) fn allows_durable(&self, w: &Written, got: &Payload) -> Result<(), String> {
        // Of two Primaries one may write several times while the other's write is on its way back: only the last is
        // remembered here.
        let later = |content| issued(content).is_some_and(|at| at > w.issued);
        self.allows_if(w.range, got, later, |e| e.superseded.is_none() || e.ended.is_none_or(|t| t >= w.issued))
    }

    fn allows_if(
        &self,
        range: SectorRange,
        got: &Payload,
        anyway: impl Fn(ContentId) -> bool,
        counts: impl Fn(&Entry) -> bool,
    ) -> Result<(), String> {
        for (part, content) in got.placed(range.start) {
            if content.shift != 0 {
                return Err(format!("{part:?} holds write {} of elsewhere (shift {})", content.id, content.shift));
            }
            for (piece, cell) in self.cells.runs(part) {
                let fine = |e: Entry| e.content == content.id && counts(&e);
                if !anyway(content.id) && !cell.entries().any(fine) {
                    return Err(format!("{piece:?} holds write {}, expected one of {cell:?}", content.id));
                }
            }
        }
        Ok(())
    }

    /// The same, but for what lies in these ranges.
    pub(crate) fn allows_but(
        &self,
        doubtful: &[SectorRange],
        range: SectorRange,
        got: &Payload,
        began: Moment,
    ) -> Result<(), String> {
        let mut doubtful = doubtful.to_vec();
        doubtful.sort_unstable_by_key(|r| r.start);
        let mut at = range.start;
        for end in doubtful.into_iter().chain([SectorRange { start: range.end, end: range.end }]) {
            if at < end.start {
                let part = SectorRange { start: at, end: end.start.min(range.end) };
                let content = got.slice(part.start.0 - range.start.0, part.end.0.saturating_sub(part.start.0));
                self.allows(part, &content, began)?;
            }
            at = at.max(end.end);
        }
        Ok(())
    }

    /// Where the content is that of a write which this copy has never heard of, which may be on the other one, and
    /// which was issued after all that may be here: of what was acknowledged here nothing is missing there.
    pub(crate) fn written_over(&self, other: &View, got: &Payload) -> Vec<SectorRange> {
        let mut out = Vec::new();
        for (part, content) in got.placed(units::Sector(0)) {
            let known = |piece| {
                let all = self.cells.runs(piece).flat_map(|(_, cell)| cell.entries());
                all.map(|e| e.write.max(issued(e.content).unwrap_or(0))).max().unwrap_or(0)
            };
            let pieces = other.cells.runs(SectorRange { end: part.end.min(units::Sector(other.len())), ..part });
            for (piece, cell) in pieces {
                let latest = known(piece);
                if cell.entries().any(|e| e.content == content.id && e.superseded.is_none() && e.write > latest) {
                    out.push(piece);
                }
            }
        }
        out
    }

    /// Does this copy include all acknowledged writes that the other one does?
    pub(crate) fn includes_all_of(&self, other: &View) -> bool {
        self.includes.iter().zip(&other.includes).all(|(mine, theirs)| mine >= theirs)
    }
}

impl Cell {
    fn entries(&self) -> impl Iterator<Item = Entry> {
        let (one, many) = match self {
            Cell::Settled(content) => (Some(Entry::settled(*content)), [].as_slice()),
            Cell::Open(entries) => (None, entries.as_slice()),
        };
        one.into_iter().chain(many.iter().copied())
    }

    fn open(&mut self) -> &mut Vec<Entry> {
        if let Cell::Settled(content) = *self {
            *self = Cell::Open(vec![Entry::settled(content)]);
        }
        let Cell::Open(entries) = self else { unreachable!("just opened") };
        entries
    }
}

/// When the write with this content was issued; zeroes are many writes'.
fn issued(content: ContentId) -> Option<Moment> {
    (content != ZEROES).then(|| u64::from(content).saturating_sub(FIRST_WRITE))
}

impl Entry {
    fn settled(content: ContentId) -> Entry {
        Entry { write: 0, content, ended: Some(0), superseded: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(write: WriteId, issued: Moment) -> Written {
        Written { write, content: write as u32, range: sectors(0, 8), issued }
    }

    fn sees(view: &View, id: u32, began: Moment) -> bool {
        view.allows(sectors(0, 8), &Payload::of_write(id, sectors(0, 8)), began).is_ok()
    }

    #[test]
    fn reads_return_the_last_or_a_concurrent_write() {
        let mut v = View::new(64, 1, 2);
        let (a, b) = (write(10, 1), write(11, 2));
        v.may_get(&a);
        v.may_get(&b);
        assert!(sees(&v, 1, 2) && sees(&v, 10, 2) && sees(&v, 11, 2));
        v.ended(&a, true, 3, 0);
        assert!(sees(&v, 1, 2), "a read from before the acknowledgement");
        assert!(!sees(&v, 1, 3) && sees(&v, 10, 4) && sees(&v, 11, 4));
        v.ended(&b, true, 5, 6);
        assert!(sees(&v, 10, 6) && sees(&v, 11, 6), "they were concurrent");
        let c = write(12, 7);
        v.may_get(&c);
        v.ended(&c, true, 8, 9);
        assert!(!sees(&v, 10, 9) && !sees(&v, 11, 9) && sees(&v, 12, 9));
    }

    #[test]
    fn what_is_there_may_have_followed_a_write_that_ends_later() {
        let (long, before, after) = (write(10, 10), 8, 12);
        for (held, stays) in [(before, false), (after, true)] {
            let mut v = View::new(64, held + FIRST_WRITE as u32, 2);
            v.still_under_way(&long, 20);
            v.ended(&long, true, 30, 30);
            assert!(sees(&v, 10, 30));
            assert_eq!(sees(&v, held + FIRST_WRITE as u32, 30), stays, "{held}");
        }
    }

    #[test]
    fn durable_is_a_write_or_what_it_did_not_follow() {
        let mut v = View::new(64, 1, 2);
        let (before, durable, beside, after) = (write(10, 1), write(11, 3), write(12, 4), write(13, 6));
        for w in [&before, &durable, &beside, &after] {
            v.may_get(w);
        }
        v.ended(&before, true, 2, 2);
        v.ended(&beside, true, 5, 3);
        v.ended(&after, true, 7, 3);
        v.ended(&durable, true, 8, 3);
        let fine = |id| v.allows_durable(&durable, &Payload::of_write(id, sectors(0, 8))).is_ok();
        assert_eq!([1, 10, 11, 12, 13].map(fine), [false, false, true, true, true]);
    }

    #[test]
    fn what_was_written_over_unheard_hides_what_was_there() {
        let mut here = View::new(64, 1, 2);
        let mut there = here.clone();
        here.may_get(&write(10, 1));
        here.ended(&write(10, 1), true, 2, 2);
        there.may_get(&write(8, 1));
        there.may_get(&write(12, 4));
        let hidden = |id| here.written_over(&there, &Payload::of_write(id, sectors(0, 8)));
        assert_eq!([1, 8, 10, 12].map(|id| hidden(id).len()), [0, 0, 0, 1]);
        assert_eq!(hidden(12), [sectors(0, 8)]);
    }

    #[test]
    fn content_of_elsewhere_is_found() {
        let mut v = View::new(64, 1, 2);
        v.may_get(&write(10, 1));
        assert!(v.allows(sectors(0, 4), &Payload::of_write(10, sectors(4, 8)), 1).is_err());
    }
}
