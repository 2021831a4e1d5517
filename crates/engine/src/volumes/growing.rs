//! A backing device that becomes larger while it is in use: internal metadata move to its new end, as `check-resize`
//! moves them on a disk that is not attached (`docs/spec/on-disk-format.md` 7), when nothing of them is on its way.
//! That is done when the size matters: at a `resize`, here or at a peer, and who asks for it waits.

use super::{OpenVolume, Volumes, Work};
use crate::links::LinkEvent;
use crate::token::ClientId;
use control::Command as Asked;
use meta::create::InitialBitmap;
use meta::plan::Step;
use meta::{Block, MetaDisk, find, layout, resize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use units::{ByteLen, Duration, Instant, VolumeNr};
use urbd_core::OpenedDisk;

/// What is to be measured, who waits for that, and for how long.
#[derive(Default)]
pub(crate) struct Waiting {
    volumes: BTreeSet<VolumeNr>,
    commands: Vec<(Option<ClientId>, Asked)>,
    /// Those behind it wait, too.
    packet: Option<LinkEvent>,
    until: Option<Instant>,
}

/// For so long a moment is waited for in which no metadata are being written.
const PATIENCE: Duration = Duration::from_secs(2);

impl Waiting {
    pub(crate) fn holds_packets(&self) -> bool {
        self.packet.is_some()
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// A command waits until these are measured.
    pub(crate) fn command(&mut self, now: Instant, volumes: BTreeSet<VolumeNr>, who: Option<ClientId>, asked: Asked) {
        self.volumes.extend(volumes);
        self.commands.push((who, asked));
        self.until = Some(now + PATIENCE);
    }

    /// A packet waits until its volume is measured.
    pub(crate) fn packet(&mut self, now: Instant, volume: VolumeNr, packet: LinkEvent) {
        self.volumes.insert(volume);
        self.packet = Some(packet);
        self.until = Some(now + PATIENCE);
    }

    /// Those that are to be looked at now.
    pub(crate) fn take(&mut self) -> BTreeSet<VolumeNr> {
        std::mem::take(&mut self.volumes)
    }

    /// One cannot be measured yet. False: it is not waited for any longer.
    pub(crate) fn later(&mut self, now: Instant, volume: VolumeNr) -> bool {
        let waits = self.until.is_some_and(|until| now < until);
        waits && self.volumes.insert(volume)
    }

    /// Who can go on, if all is measured.
    #[allow(clippy::type_complexity)]
    pub(crate) fn over(&mut self) -> Option<(Vec<(Option<ClientId>, Asked)>, Option<LinkEvent>)> {
        self.volumes.is_empty().then(|| std::mem::take(self)).map(|over| (over.commands, over.packet))
    }
}

/// What came of a look at a backing device.
pub(crate) enum Growth {
    /// It has not grown, or is not open.
    None,
    /// Metadata are being written.
    Later,
    /// It is as large as this, and its metadata are at its end.
    Done(OpenedDisk),
    /// They stay where they are.
    Failed(String),
}

/// Memory that any disk can be read into past the page cache.
struct Pages {
    bytes: Vec<u8>,
    from: usize,
}

const PAGE: usize = 4096;
/// Metadata are copied in pieces of at most so many bytes.
const PIECE: usize = 1 << 20;

impl Pages {
    fn new() -> Pages {
        let bytes = vec![0; PIECE + PAGE];
        let from = bytes.as_ptr().align_offset(PAGE);
        Pages { bytes, from }
    }

    fn first(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + len]
    }

    fn write(&mut self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.first(bytes.len()).copy_from_slice(bytes);
        file.write_all_at(self.first(bytes.len()), at)
    }

    fn copy(&mut self, file: &File, from: u64, to: u64, len: u64) -> io::Result<()> {
        // Upwards, and the places may overlap: the end first.
        let mut left = len;
        while left > 0 {
            let piece = left.min(PIECE as u64);
            left -= piece;
            file.read_exact_at(self.first(piece as usize), from + left)?;
            file.write_all_at(self.first(piece as usize), to + left)?;
        }
        Ok(())
    }

    fn fill(&mut self, file: &File, at: u64, len: u64, byte: u8) -> io::Result<()> {
        self.first(PIECE).fill(byte);
        let pieces = (0..len).step_by(PIECE);
        pieces.into_iter().try_for_each(|done| {
            let piece = (len - done).min(PIECE as u64) as usize;
            file.write_all_at(self.first(piece), at + done)
        })
    }
}

impl Volumes {
    /// Takes in the present size of a volume's backing device, if that has grown.
    pub(crate) fn take_in_growth(&mut self, volume: VolumeNr) -> Growth {
        let (Some((old, new)), Some(open)) = (self.grown(volume), self.open.get(&volume)) else { return Growth::None };
        let is_metadata = |work: &Work| matches!(work, Work::MetaWrite { .. } | Work::MetaRead { .. });
        if self.jobs.iter().flatten().any(|job| job.volume == volume && is_metadata(&job.work)) {
            return Growth::Later;
        }
        let internal = Rc::ptr_eq(&open.data, &open.meta);
        let moved = open.data.grown(new.0).and_then(|(disk, file)| {
            let moved = if internal { move_metadata(&file, old, new) } else { Ok(()) };
            moved.map(|()| Rc::new(disk))
        });
        match moved {
            Err(why) => Growth::Failed(why.to_string()),
            Ok(disk) => {
                let meta = if internal { disk.clone() } else { open.meta.clone() };
                let open = OpenVolume { data: disk, meta };
                let opened = open.described();
                self.open.insert(volume, open);
                Growth::Done(opened)
            }
        }
    }
}

fn move_metadata(file: &File, old: ByteLen, new: ByteLen) -> io::Result<()> {
    let refused = |why: String| io::Error::other(why);
    let mut pages = Pages::new();
    let at = layout::superblock_at(MetaDisk::Internal, old).ok_or_else(|| refused("it was too small".into()))?;
    file.read_exact_at(pages.first(PAGE), at.0)?;
    let block: &Block = pages.first(PAGE).first_chunk().expect("a page");
    let found = find::check(MetaDisk::Internal, old, block).map_err(|e| refused(e.to_string()))?;
    let planned = resize::plan_move(&found, new, InitialBitmap::Zero);
    let (_, to, steps) = planned.map_err(|e| refused(e.to_string()))?;
    // A loss of power in between would leave no superblock.
    if to.bitmap_at().0 < at.0 + PAGE as u64 {
        return Err(refused("the new place of the metadata begins within the old one".into()));
    }
    steps.iter().try_for_each(|step| match step {
        Step::Write { at, bytes } => pages.write(file, at.0, bytes),
        Step::Fill { at, len, byte } => pages.fill(file, at.0, len.0, *byte),
        Step::Copy { from, to, len } => pages.copy(file, from.0, to.0, len.0),
        Step::Repeat { at, block, count } => {
            (0..u64::from(*count)).try_for_each(|n| pages.write(file, at.0 + n * PAGE as u64, &block[..]))
        }
        Step::Flush => file.sync_data(),
    })
}
