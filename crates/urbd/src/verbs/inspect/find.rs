//! Finding and reading metadata, of a disk or of the text that `dump-md` makes. Everything is opened for reading only,
//! and the bitmap is counted piece by piece: memory does not grow with the disk.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use meta::activity_log::replay::{self, Replay};
use meta::find::{self, Found};
use meta::tally::{self, Tally};
use meta::{BLOCK_LEN, BitmapArea, Block, DeviceFlags, Format, MetaDisk, Superblock, Version, dump, layout};
use units::{ByteLen, Sector};

use crate::metadata_io::{Access, Store};
use crate::offline::{MOST_LOG, NO_METADATA};
use crate::problem::{Problem, exit};
use crate::progress::Progress;

/// How much is read at a time, in bytes: a multiple of [`BLOCK_LEN`].
const PIECE: u64 = 1 << 20;
/// The largest text of a dump that is read, in bytes.
const MOST_TEXT: u64 = 256 << 20;

/// What an argument was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A disk or a file that has metadata.
    Disk {
        /// Where on it.
        kind: MetaDisk,
        /// Byte position of the superblock.
        at: u64,
        /// Bytes of the disk.
        len: u64,
    },
    /// The text of a dump.
    Dump,
}

/// What the activity log says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Log {
    /// Nothing in it counts.
    pub(super) is_clean: bool,
    /// Extents of 4 MiB that were being written.
    pub(super) hot: usize,
    /// Blocks whose checksum is wrong.
    pub(super) damaged: u32,
    /// Why it does not tell what was being written.
    pub(super) unusable: Option<String>,
}

/// What was read.
#[derive(Clone, Debug)]
pub(super) struct Inspected {
    /// What the node is called in what follows.
    pub(super) name: String,
    /// As given.
    pub(super) path: PathBuf,
    /// What it is.
    pub(super) source: Source,
    /// The metadata.
    pub(super) superblock: Superblock,
    /// Its activity log.
    pub(super) log: Log,
    /// Bits that are set, by slot.
    pub(super) marked: Vec<u64>,
    /// The same with what is hot in the log; `None` if that is not known.
    pub(super) with_log: Option<Vec<u64>>,
    /// The most that the disk can hold beside its metadata; `None` where they are not on it.
    pub(super) capacity: Option<Sector>,
    /// What is odd about it, in sentences.
    pub(super) notes: Vec<String>,
}

/// Reads what an argument names.
///
/// # Errors
/// Exit 20: it cannot be opened; exit 255: there are no valid metadata; exit 10: the disk fails, or the text is no
/// dump.
pub(super) fn read(name: Option<&str>, path: &Path, kind: Option<MetaDisk>) -> Result<Inspected, Problem> {
    let store = Store::open(path, Access::Read).map_err(|problem| cannot_open(path, problem))?;
    if kind.is_none() && is_dump(path) {
        return read_dump(name, path);
    }
    store.read_anew();
    let (source, found) = search(&store, path, kind)?;
    let name = name.map_or_else(|| own_name(path), str::to_owned);
    read_disk(name, path, &store, source, &found)
}

fn cannot_open(path: &Path, problem: Problem) -> Problem {
    let denied = fs::File::open(path).is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied);
    Problem { hint: None, ..problem }.hint(if denied {
        format!("disks are root's: sudo urbd inspect {}", path.display())
    } else {
        "name a disk (/dev/...), a file that is one, or a text that drbdadm dump-md or urbd dump-md has made".to_owned()
    })
}

fn own_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().chars().filter(|c| !c.is_control()).collect()
}

/// Does a file begin as the text of a dump?
fn is_dump(path: &Path) -> bool {
    let mut head = Vec::new();
    let regular = fs::metadata(path).is_ok_and(|found| found.is_file());
    let read = fs::File::open(path).and_then(|file| file.take(PIECE).read_to_end(&mut head));
    let text = String::from_utf8_lossy(&head);
    regular && read.is_ok() && (dump::is_one(&text) || text.starts_with("# DRBD meta data dump"))
}

fn read_dump(name: Option<&str>, path: &Path) -> Result<Inspected, Problem> {
    let failed = |why: String| Problem::new(exit::FAILURE, format!("{}: {why}", path.display()));
    let len = fs::metadata(path).map_err(|e| failed(e.to_string()))?.len();
    if len > MOST_TEXT {
        return Err(failed(format!("a dump of {} MiB is more than is read at once", len >> 20)).hint(
            "make a sparse file of the disk's size (truncate), write the dump to it (restore-md), and inspect that file",
        ));
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(|e| failed(e.to_string()))?;
    file.take(MOST_TEXT).read_to_end(&mut bytes).map_err(|e| failed(e.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| failed("begins as a dump does, but is no text".to_owned()))?;
    let (dump, is_unclean) = dump::parse_to_look(&text).map_err(|e| {
        failed(format!("is no whole dump: line {}: {}", e.line, e.message))
            .hint("it may be cut off: make it anew on its node, with drbdadm dump-md RES/VOL >FILE")
    })?;
    let mut superblock = dump.superblock;
    let mut notes = Vec::new();
    if is_unclean {
        superblock.flags.remove(DeviceFlags::AL_CLEAN);
        if superblock.version() == Version::V08 {
            superblock.format = Format::V08InUse;
        }
        notes.push("the dump was made (with --force) while the activity log was not clean, and does not have it: what was being written is not known".to_owned());
    } else if superblock.version() == Version::V08 {
        // Most tools leave it out of the flags of this format, and dump nothing else.
        superblock.flags.insert(DeviceFlags::AL_CLEAN);
    }
    let lost = superblock.version() == Version::V08 && superblock.v08_flags() & !DeviceFlags::AL_CLEAN.0 == 0;
    if lost && superblock.current.base().0 > 4 {
        notes.push("the dump has no flags, as drbdmeta of drbd-utils 9.22 and older writes it: whether the data is consistent is not known, and counts as no; inspect the disk itself, or make the dump with a newer drbdmeta or with urbd".to_owned());
    }
    let bits = superblock.geometry.bits(superblock.effective_size);
    let marked: Vec<u64> = dump.slots.iter().map(|runs| tally::of_runs(runs, bits)).collect();
    let name = name.map(str::to_owned).or_else(|| host_of_dump(&text)).unwrap_or_else(|| own_name(path));
    let log = Log {
        is_clean: !is_unclean,
        unusable: is_unclean.then(|| "a dump does not have it".to_owned()),
        ..Log::default()
    };
    let with_log = (!is_unclean).then(|| marked.clone());
    let (path, source) = (path.to_owned(), Source::Dump);
    Ok(Inspected { name, path, source, superblock, log, marked, with_log, capacity: None, notes })
}

/// `# HOST> COMMAND`
fn host_of_dump(text: &str) -> Option<String> {
    let head = text.lines().take(10).filter_map(|line| line.strip_prefix("# "));
    let mut hosts = head.filter_map(|line| Some(line.split_once("> ")?.0.trim()));
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    hosts.find(|host| !host.is_empty() && host.len() <= 64 && host.chars().all(fits)).map(str::to_owned)
}

/// Where metadata may be, in the order in which it is looked for.
fn places(len: u64) -> impl Iterator<Item = (MetaDisk, u64)> {
    let slots = (0..=u8::MAX).map(MetaDisk::Indexed);
    let kinds = [MetaDisk::Internal, MetaDisk::FlexExternal].into_iter().chain(slots);
    kinds.filter_map(move |kind| Some((kind, layout::superblock_at(kind, ByteLen(len))?.0)))
}

fn search(store: &Store, path: &Path, asked: Option<MetaDisk>) -> Result<(Source, Found), Problem> {
    let len = store.len();
    let mut seen = Vec::new();
    let mut indexed = Vec::new();
    for (kind, at) in places(len).filter(|(kind, _)| asked.is_none_or(|asked| asked == *kind)) {
        match find::check(kind, ByteLen(len), &*store.read_block(at)?) {
            // What has the size of a slot is one, and not all of a file.
            Ok(found) if kind == MetaDisk::FlexExternal && asked.is_none() && is_slot(&found, len) => {}
            Ok(found) if matches!(kind, MetaDisk::Indexed(_)) && asked.is_none() => {
                if is_slot(&found, len) {
                    indexed.push((kind, at, found));
                }
            }
            Ok(found) => return Ok((Source::Disk { kind, at, len }, found)),
            Err(why) => seen.push((kind, at, why)),
        }
    }
    if indexed.len() > 1 {
        let slots: Vec<String> = indexed.iter().map(|(kind, ..)| kind.to_string()).collect();
        let text = format!("{}: the metadata of several volumes are on it: {}", path.display(), slots.join(", "));
        return Err(Problem::usage(text).hint(format!(
            "say which: urbd inspect --meta {} {}",
            slots[0],
            path.display()
        )));
    }
    match indexed.pop() {
        Some((kind, at, found)) => Ok((Source::Disk { kind, at, len }, found)),
        None => Err(nothing_found(path, len, asked, seen)),
    }
}

/// Have metadata the size of an indexed slot?
fn is_slot(found: &Found, len: u64) -> bool {
    len != layout::INDEXED_SLOT_BYTES
        && u64::from(found.superblock.placement.md_size_sect) * 512 == layout::INDEXED_SLOT_BYTES
}

/// What was looked for, where, and what was there instead.
fn nothing_found(
    path: &Path,
    len: u64,
    asked: Option<MetaDisk>,
    seen: Vec<(MetaDisk, u64, find::FindError)>,
) -> Problem {
    use meta::find::FindError;
    use meta::superblock::SuperblockError;
    let is_nothing = |why: &FindError| matches!(why, FindError::Superblock(SuperblockError::NoMagic(_)));
    let text = format!("{}: No valid meta data found on its {len} bytes", path.display());
    let mut places = Vec::new();
    for (kind, at, why) in seen
        .iter()
        .filter(|(kind, _, why)| asked.is_some() || !matches!(kind, MetaDisk::Indexed(_)) || !is_nothing(why))
    {
        let what = match kind {
            MetaDisk::Internal => "internal, at its end".to_owned(),
            MetaDisk::FlexExternal => "external, at its beginning".to_owned(),
            MetaDisk::Indexed(slot) => format!("external, slot {slot}"),
        };
        if !places.iter().any(|place: &String| place.ends_with(&format!("(byte {at}): {why}"))) {
            places.push(format!("{what} (byte {at}): {why}"));
        }
    }
    let slots = seen.iter().filter(|(kind, ..)| matches!(kind, MetaDisk::Indexed(1..))).count();
    if slots > 0 && asked.is_none() {
        places.push(format!("external, the {slots} further slots of 128 MiB"));
    }
    let looked = if places.is_empty() {
        "it is too small for metadata: truncated, or another file".to_owned()
    } else {
        format!("looked for: {}", places.join("; "))
    };
    let damaged = seen.iter().any(|(_, _, why)| !is_nothing(why));
    Problem::new(NO_METADATA, format!("{text}\n{looked}")).hint(match damaged {
        true => "what is there is damaged, or of a disk of another size: of an image that was cut off, inspect the \
                 whole one; a disk that has grown has its metadata at its old end, and check-resize moves them"
            .to_owned(),
        false => "is it the backing disk (drbdadm sh-ll-dev RES), or the metadata's own (drbdadm sh-md-dev RES)? A \
                  disk that has grown has its metadata at its old end: drbdadm check-resize RES"
            .to_owned(),
    })
}

fn read_disk(name: String, path: &Path, store: &Store, source: Source, found: &Found) -> Result<Inspected, Problem> {
    let mut notes = Vec::new();
    if let Some(size) = found.truncated_from {
        notes.push(format!(
            "the last agreed size, {} sectors, is more than this disk has room for: is it whole?",
            size.0
        ));
    }
    if let Some(holder) = store.holder() {
        notes.push(format!("it is in use by {holder}: what is said here is what was written last"));
    }
    if let Err(why) = find::check_attach(found, found.superblock.node_id)
        && why != find::AttachError::Unclean
    {
        notes.push(format!("it cannot be attached: {why}"));
    }
    let replayed = read_log(store, found);
    let (log, hot) = match replayed {
        Ok(replayed) => (of_replay(found, &replayed), Some(replayed.hot).filter(|_| !replayed.gap)),
        Err(why) => (Log { is_clean: found.superblock.is_clean(), unusable: Some(why), ..Log::default() }, None),
    };
    let (marked, cut) = count(store, path, found)?;
    if cut {
        notes.push(
            "the bitmap is longer than the file: the file is cut off, and what it marks is more than is said"
                .to_owned(),
        );
    }
    let with_log = match &hot {
        Some(hot) => Some(count_hot(store, found, hot, &marked)?),
        None => None,
    };
    store.read_anew();
    let block = store.read_block(found.layout.superblock_at().0)?;
    if find::check(found.layout.kind(), ByteLen(store.len()), &block).as_ref() != Ok(found) {
        notes.push(
            "its metadata changed while they were read: it is in use, and what is said here may not fit together"
                .to_owned(),
        );
    }
    let superblock = found.superblock.clone();
    let capacity = Some(found.layout.capacity()).filter(|_| found.layout.kind() == MetaDisk::Internal);
    let path = path.to_owned();
    Ok(Inspected { name, path, source, superblock, log, marked, with_log, capacity, notes })
}

/// The activity log; an error says why it does not tell anything.
fn read_log(store: &Store, found: &Found) -> Result<Replay, String> {
    let sb = &found.superblock;
    let (shape, len) = (sb.geometry.al(), sb.geometry.al().bytes().0);
    if len > MOST_LOG {
        return Err(format!("it has {} MiB, and up to {} are read", len >> 20, MOST_LOG >> 20));
    }
    let ring = store.read(found.layout.al_at().0, len as usize).map_err(|problem| problem.message)?;
    replay::replay(&ring, shape, sb.format, sb.al_extents).map_err(|e| e.to_string())
}

fn of_replay(found: &Found, replayed: &Replay) -> Log {
    Log {
        is_clean: found.superblock.is_clean(),
        hot: replayed.hot.len(),
        damaged: replayed.damaged,
        unusable: replayed.gap.then(|| "a transaction is missing in the middle".to_owned()),
    }
}

/// Counts what the bitmap has set. Holes of a sparse file are not read. The flag says that the file ends before it.
fn count(store: &Store, path: &Path, found: &Found) -> Result<(Vec<u64>, bool), Problem> {
    let area = area(found);
    let (begin, len) = (found.layout.bitmap_at().0, area.bytes().min(found.layout.bitmap_area().0));
    let end = begin + len.min(store.len().saturating_sub(begin)) / BLOCK_LEN as u64 * BLOCK_LEN as u64;
    let mut tally = Tally::new(area);
    let mut progress = Progress::new(&path.display().to_string());
    let mut at = begin;
    while let Some(data) = store.next_data(at).filter(|data| *data < end) {
        at = data.max(at) - (data.max(at) - begin) % BLOCK_LEN as u64;
        let bytes = store.read(at, (end - at).min(PIECE) as usize)?;
        for (n, page) in bytes.as_chunks::<BLOCK_LEN>().0.iter().enumerate() {
            tally.add((at - begin) / BLOCK_LEN as u64 + n as u64, page);
        }
        at += bytes.len() as u64;
        progress.bytes(at - begin, len);
    }
    progress.end();
    Ok((tally.by_slot().to_vec(), end - begin < len))
}

fn area(found: &Found) -> BitmapArea {
    BitmapArea::new(found.layout.geometry(), found.superblock.effective_size)
}

/// What is set when each hot extent is.
fn count_hot(store: &Store, found: &Found, hot: &BTreeSet<u32>, marked: &[u64]) -> Result<Vec<u64>, Problem> {
    let area = area(found);
    let mut sum = marked.to_vec();
    let mut next = 0;
    let last = found.layout.bitmap_area().0.min(area.bytes()) / BLOCK_LEN as u64;
    for extent in hot {
        let pages = area.pages_of_extent(*extent);
        for page in pages.start.max(next)..pages.end.min(last) {
            let at = found.layout.bitmap_page_at(page).0;
            if at + BLOCK_LEN as u64 > store.len() {
                return Ok(sum);
            }
            let mut block: Box<Block> = store.read_block(at)?;
            let [mut before, mut after] = [Tally::new(area), Tally::new(area)];
            before.add(page, &block);
            for hot in hot.range(area.extents_on_page(page)) {
                area.mark_extent_on_page(*hot, page, &mut block);
            }
            after.add(page, &block);
            let more = after.by_slot().iter().zip(before.by_slot()).map(|(after, before)| after - before);
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        next = next.max(pages.end);
    }
    Ok(sum)
}
