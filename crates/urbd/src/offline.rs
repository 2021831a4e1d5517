//! What drbdmeta does, on devices that are not in use (`docs/spec/config-and-cli.md` 3.5, 9.1 and
//! `docs/spec/on-disk-format.md` 10). The bytes are planned by the `meta` crate; here are the questions and the I/O.

use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use meta::activity_log::replay::Replay;
use meta::create::{self, CreateOptions, InitialBitmap};
use meta::dump;
use meta::existing::{self, Verdict};
use meta::find::{self, FindError, Found};
use meta::{BLOCK_LEN, BitmapArea, DeviceFlags, Format, Geometry, Layout, MetaDisk, Superblock, Version};
use meta::{apply_al, convert, gi, layout, resize};
use units::{BitSet, ByteLen, NodeId};

use crate::last_known;
use crate::metadata_io::{Access, Store};
use crate::problem::{Problem, exit};

/// No valid metadata: the value −1 of the newer tools.
pub(crate) const NO_METADATA: u8 = 255;

/// The largest activity log that is read, in bytes: twice of what `create-md` permits.
pub(crate) const MOST_LOG: u64 = 64 << 20;

/// Where the metadata of one volume is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The volume, for messages.
    pub(crate) label: String,
    /// The device or file that has the metadata.
    pub(crate) path: PathBuf,
    /// Where on it.
    pub(crate) kind: MetaDisk,
    /// The expected format; `None` takes what is there.
    pub(crate) version: Option<Version>,
    /// As what this program was called, for hints.
    pub(crate) called: Called,
    /// The volume's minor number, by which its last known size is noted.
    pub(crate) minor: Option<u32>,
}

/// How a place was named.
#[derive(Debug, Clone)]
pub(crate) enum Called {
    /// `urbd VERB RES/VOL`
    Urbd,
    /// `drbdmeta MINOR FORMAT DEVICE INDEX COMMAND`
    Drbdmeta {
        /// As given.
        minor: String,
        /// As given.
        version: Version,
    },
}

/// Metadata that was read.
pub(crate) struct Opened {
    /// The device it is on.
    pub(crate) store: Store,
    /// What is there.
    pub(crate) found: Found,
}

impl Place {
    /// Opens the device.
    ///
    /// # Errors
    /// Exit 20: it cannot be opened or is in use.
    pub(crate) fn open(&self, change: bool) -> Result<Store, Problem> {
        let access = match (change, self.kind) {
            (false, _) => Access::Read,
            (true, MetaDisk::Indexed(_)) => Access::Shared,
            (true, _) => Access::Exclusive,
        };
        Store::open(&self.path, access)
    }

    /// Opens the device and finds the metadata on it.
    ///
    /// # Errors
    /// Exit 20 as [`Place::open`]; exit 255: there is no valid metadata.
    pub(crate) fn find(&self, change: bool) -> Result<Opened, Problem> {
        let store = self.open(change)?;
        let found = match self.look(&store)? {
            Ok(found) => found,
            Err(why) => return Err(self.nothing_there(&store, &why)),
        };
        if let Some(wanted) = self.version.filter(|v| *v != found.superblock.version()) {
            let has = found.superblock.version();
            let message = format!("{}: the metadata is {has}, not {wanted}", self.label);
            return Err(Problem::new(NO_METADATA, message).hint("use the right format, or create-md to convert it"));
        }
        Ok(Opened { store, found })
    }

    fn look(&self, store: &Store) -> Result<Result<Found, FindError>, Problem> {
        let device = ByteLen(store.len());
        let Some(at) = layout::superblock_at(self.kind, device) else { return Ok(Err(FindError::DeviceTooSmall)) };
        let block = store.read_block(at.0)?;
        Ok(find::check(self.kind, device, &block))
    }

    fn nothing_there(&self, store: &Store, why: &FindError) -> Problem {
        if let Ok(Some(old)) = last_known::elsewhere(self, store) {
            return self.has_grown(&old, store);
        }
        let message = format!("{}: No valid meta data found on {}: {why}", self.label, self.path.display());
        let create = self.command("create-md");
        let head = store.read(0, store.len().min(existing::PROBE_LEN as u64) as usize);
        // Perhaps that of the resource, on a disk that has grown; or the disk is another one.
        let right = match head.ok().as_deref().and_then(existing::detect) {
            Some(data) => format!("there is {} on it: make sure that it is the right disk; ", data.signature),
            None => String::new(),
        };
        Problem::new(NO_METADATA, message).hint(match self.kind {
            MetaDisk::Internal => format!(
                "{right}if the disk has grown, its metadata is at its old end: {}; on a new disk write fresh metadata \
                 with: {create}",
                self.command("check-resize")
            ),
            _ => format!("{right}write fresh metadata with: {create}"),
        })
    }

    /// The device is larger than when its metadata was written to its end.
    fn has_grown(&self, old: &Found, store: &Store) -> Problem {
        let (before, now) = (old.layout.device().0 / 1024, store.len() / 1024);
        let message = format!(
            "{}: {} has grown from {before} to {now} KiB, and its metadata is at its old end",
            self.label,
            self.path.display()
        );
        Problem::new(NO_METADATA, message)
            .hint(format!("to move it, and keep all data: {}", self.command("check-resize")))
    }

    /// The command line that does `verb` to it.
    fn command(&self, verb: &str) -> String {
        match &self.called {
            Called::Urbd => format!("urbd {verb} {}", self.label),
            Called::Drbdmeta { minor, version } => {
                let peers = if verb == "create-md" && *version == Version::V09 { " 1" } else { "" };
                format!("drbdmeta {minor} {version} {} {} {verb}{peers}", self.path.display(), self.kind)
            }
        }
    }
}

impl Opened {
    /// Writes a changed superblock to where the old one is.
    ///
    /// # Errors
    /// Exit 10: the device failed.
    pub(crate) fn write(&self, place: &Place, superblock: &Superblock) -> Result<(), Problem> {
        self.store.write(self.found.layout.superblock_at().0, &superblock.emit()[..])?;
        self.store.sync()?;
        last_known::note(place, &self.store, superblock);
        Ok(())
    }
}

/// Asks on the terminal; only `yes` is yes. Without a terminal the answer is no.
pub(crate) fn confirm(question: &str, force: bool) -> bool {
    if force {
        return true;
    }
    eprintln!("{question}");
    if !io::stdin().is_terminal() {
        eprintln!("urbd: there is no terminal to ask on: taken as no (--force answers yes)");
        return false;
    }
    eprint!("[need to type 'yes' to confirm] ");
    let _ = io::stderr().flush();
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).is_ok() && answer.trim() == "yes"
}

/// What `create-md` is asked for.
pub(crate) struct Creation {
    /// The format to write.
    pub(crate) version: Version,
    /// Slots, granularity, activity log.
    pub(crate) geometry: Geometry,
    /// What goes into the superblock.
    pub(crate) options: CreateOptions,
    /// Answers questions with yes.
    pub(crate) force: bool,
    /// Even over a file system.
    pub(crate) ignore_sanity_checks: bool,
    /// No random id for the metadata: whoever calls writes one later.
    pub(crate) keep_device_uuid_zero: bool,
    /// Was the format asked for? Else metadata of the other one is neither converted nor replaced.
    pub(crate) format_asked: bool,
}

/// `create-md`. Gives 1 if a question was answered with no.
///
/// # Errors
/// Exit 40: it would cut off a file system; exit 20: the device cannot be opened; exit 10: what was asked for is not
/// possible.
pub(crate) fn create(place: &Place, creation: &Creation) -> Result<u8, Problem> {
    let store = place.open(true)?;
    let impossible = |why: String| Problem::new(exit::FAILURE, format!("{}: {why}", place.label));
    let device = ByteLen(store.len());
    let layout = Layout::new(place.kind, creation.geometry, device).map_err(|e| impossible(e.to_string()))?;
    let old = place.look(&store)?.ok();
    if let Some(moved) = last_known::elsewhere(place, &store)?.filter(|_| old.is_none() && !creation.force) {
        return Err(Problem { exit: exit::FAILURE, ..place.has_grown(&moved, &store) });
    }
    if let Some(old) = &old {
        let has = old.superblock.version();
        if has != creation.version {
            if !creation.format_asked {
                return Err(other_format(place, has, creation.version));
            }
            check_slots(place, old, creation)?;
            let question = format!(
                "{}: {} has valid {has} metadata. Convert it to {}?",
                place.label,
                place.path.display(),
                creation.version
            );
            if confirm(&question, creation.force) {
                return convert_to(place, &Opened { store, found: old.clone() }, creation.version);
            }
        }
        let question = format!(
            "{}: {} has valid {has} metadata.\nReplace it by fresh metadata? Both nodes then need a full synchronisation.",
            place.label,
            place.path.display()
        );
        if !confirm(&question, creation.force) {
            return Ok(exit::USAGE);
        }
    }
    if !data_may_go(place, &store, &layout, creation)? {
        return Ok(exit::USAGE);
    }
    let mut options = creation.options.clone();
    if options.device_uuid == 0 && !creation.keep_device_uuid_zero {
        options.device_uuid = random_number();
    }
    let (superblock, steps) =
        create::plan(creation.version, &layout, &options).map_err(|e| impossible(e.to_string()))?;
    store.carry_out(&steps)?;
    last_known::note(place, &store, &superblock);
    println!("{}: New drbd meta data block successfully created.", place.label);
    Ok(0)
}

/// The configuration means one format, and the disk has metadata of the other one, which a pair may use.
fn other_format(place: &Place, has: Version, means: Version) -> Problem {
    let text = format!(
        "{}: {} has {has} metadata, and the configuration means {means}: which one is not decided here",
        place.label,
        place.path.display()
    );
    Problem::new(exit::FAILURE, text).hint(format!(
        "nothing was changed; to convert it, and keep the data: {0} --format={means}; fresh metadata of the format that \
         is there: {0} --format={has}",
        place.command("create-md")
    ))
}

/// A conversion keeps the bitmaps that there are. More of them would be missed later, when a peer finds no room.
///
/// # Errors
/// Exit 1: more were asked for. The real drbdmeta warns, and makes do with fewer.
fn check_slots(place: &Place, old: &Found, creation: &Creation) -> Result<(), Problem> {
    let (has, wanted) = (old.layout.geometry().slots(), creation.geometry.slots());
    if wanted <= has || creation.version == Version::V08 {
        return Ok(());
    }
    if !matches!(place.called, Called::Urbd) {
        eprintln!("Warning: setting max_peers to {has} instead of {wanted}");
        return Ok(());
    }
    let text = format!(
        "{}: {} has {} metadata with room for {}, and not for {wanted}",
        place.label,
        place.path.display(),
        old.superblock.version(),
        if has == 1 { "one peer".to_owned() } else { format!("{has} peers") }
    );
    Err(Problem::usage(text).hint(format!(
        "urbd wipe-md {0}; then this again: a peer's data is copied here, all of it. Or --max-peers={has}: what is here stays",
        place.label
    )))
}

fn convert_to(place: &Place, opened: &Opened, version: Version) -> Result<u8, Problem> {
    let found = &opened.found;
    let converted = convert::superblock(&found.superblock, version, &found.layout).map_err(|_| {
        Problem::new(exit::FAILURE, format!("{}: this bitmap cannot be converted", place.label))
            .hint("use dump-md, wipe-md, create-md and restore-md instead")
    })?;
    opened.write(place, &converted)?;
    println!("{}: metadata converted to {version}", place.label);
    Ok(0)
}

/// Whether metadata may be written over what is on the device.
fn data_may_go(place: &Place, store: &Store, layout: &Layout, creation: &Creation) -> Result<bool, Problem> {
    let head = store.read(0, store.len().min(existing::PROBE_LEN as u64) as usize)?;
    let Some(data) = existing::detect(&head) else { return Ok(true) };
    let device = place.path.display();
    match data.verdict(layout) {
        Verdict::Refuse if !creation.ignore_sanity_checks => {
            let message = format!("{}: found {} on {device}: metadata would destroy it", place.label, data.signature);
            Err(Problem::new(exit::WOULD_DESTROY, message).hint(format!(
                "use external metadata, or shrink the file system to {} KiB, or zero the start of {device} if its \
                 content is not needed",
                layout.capacity().0 / 2
            )))
        }
        _ => {
            let question = format!(
                "{}: found {} on {device}.\nThis might destroy existing data. Write metadata?",
                place.label, data.signature
            );
            Ok(confirm(&question, creation.force))
        }
    }
}

/// A random number that is not 0, from the operating system.
pub(crate) fn random_number() -> u64 {
    let mut bytes = [0; 8];
    let read = fs::File::open("/dev/urandom").and_then(|mut f| io::Read::read_exact(&mut f, &mut bytes));
    match read {
        Ok(()) => u64::from_ne_bytes(bytes).max(1),
        // Without /dev there is still the clock; the number only has to differ from device to device.
        Err(_) => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64).max(1),
    }
}

/// `wipe-md`. No metadata is no error.
///
/// # Errors
/// Exit 20: the device cannot be opened.
pub(crate) fn wipe(place: &Place, force: bool) -> Result<u8, Problem> {
    let store = place.open(true)?;
    let Ok(found) = place.look(&store)? else {
        println!("{}: no valid metadata on {}: nothing to wipe", place.label, place.path.display());
        return Ok(0);
    };
    let question = format!("{}: destroy the metadata on {}?", place.label, place.path.display());
    if !confirm(&question, force) {
        return Ok(exit::USAGE);
    }
    store.carry_out(&create::wipe(&found.layout))?;
    last_known::forget(place);
    println!("{}: metadata wiped", place.label);
    Ok(0)
}

/// The same before an attach, unless that is to see the activity log.
///
/// # Errors
/// As `apply-al`.
pub(crate) fn make_clean(place: &Place) -> Result<(), Problem> {
    let Opened { found, store } = place.find(true)?;
    last_known::note(place, &store, &found.superblock);
    drop(store);
    let primary = found.superblock.flags.contains(DeviceFlags::PRIMARY_IND);
    if !primary && found.layout.geometry().slots() > 1 {
        return Ok(());
    }
    apply_al(place).map(|_| ())
}

/// Notes where the metadata are on a disk that a process has attached.
pub(crate) fn note_size(place: &Place) {
    if let Ok(Opened { found, store }) = place.find(false) {
        last_known::note(place, &store, &found.superblock);
    }
}

/// `apply-al`: silent if there is nothing to do.
///
/// # Errors
/// Exit 255: no metadata; exit 20: the device cannot be opened; exit 10: the activity log is not usable.
pub(crate) fn apply_al(place: &Place) -> Result<u8, Problem> {
    let Opened { store, found } = place.find(true)?;
    let area = found.layout.geometry().al().bytes().0;
    if area > MOST_LOG {
        let text = format!("{}: an activity log of {} MiB, which no tool creates: damaged", place.label, area >> 20);
        return Err(
            Problem::new(exit::FAILURE, text).hint(format!("look at it: urbd inspect {}", place.path.display()))
        );
    }
    let ring = store.read(found.layout.al_at().0, area as usize)?;
    let plan = apply_al::decide(&found, &ring).map_err(|why| {
        Problem::new(exit::FAILURE, format!("{}: the activity log is not usable: {why}", place.label))
            .hint(format!("if the peer has good data: {}", place.command("invalidate")))
    })?;
    if let Some(complaint) = plan.replay().ok().and_then(Replay::complaint) {
        eprintln!("urbd: warning: {}: {complaint}", place.label);
    }
    for page in plan.pages() {
        let at = found.layout.bitmap_page_at(page).0;
        let mut block = store.read_block(at)?;
        if plan.mark(page, &mut block) > 0 {
            store.write(at, &block[..])?;
        }
    }
    store.sync()?;
    if plan.marks_all() {
        println!("{}: marked everything in the bitmap", place.label);
    } else if !plan.hot().is_empty() {
        println!("{}: marked {} activity log extents in the bitmap", place.label, plan.hot().len());
    }
    store.carry_out(&plan.finish())?;
    Ok(0)
}

/// `forget-peer`: a node's record is that of an unused one. Its slot says from now on what has changed since ever, as
/// another vacant one does, else all of the disk: whoever gets it lacks that.
///
/// # Errors
/// Exit 10: the device failed, or the metadata are of format v08.
pub(crate) fn forget_peer(place: &Place, opened: &Opened, peer: NodeId) -> Result<u8, Problem> {
    let Opened { store, found } = opened;
    let mut superblock = found.superblock.clone();
    if superblock.format != Format::V09 {
        let text = format!("{}: v08 metadata knows only one peer, which cannot be forgotten", place.label);
        return Err(Problem::new(exit::FAILURE, text));
    }
    let (slot, vacant) = (superblock.peer(peer).slot.map(usize::from), superblock.vacant_slot().map(usize::from));
    superblock.forget_peer(peer);
    if let Some(slot) = slot {
        let area = BitmapArea::new(superblock.geometry, superblock.effective_size);
        let mut slots: Vec<BitSet> = (0..area.slots()).map(|_| BitSet::new(area.bits())).collect();
        for page in 0..area.pages() {
            area.load(page, &*store.read_block(found.layout.bitmap_page_at(page).0)?, &mut slots);
        }
        match vacant {
            Some(vacant) => slots[slot] = slots[vacant].clone(),
            None => slots[slot].set_all(),
        }
        let mut block = [0; BLOCK_LEN];
        for page in 0..area.pages() {
            area.store(page, &slots, &mut block);
            store.write(found.layout.bitmap_page_at(page).0, &block)?;
        }
        store.sync()?;
    }
    opened.write(place, &superblock)?;
    Ok(0)
}

/// `dump-md`: the text.
///
/// # Errors
/// Exit 255: no metadata; exit 1: it is unclean and not `force`d; exit 20: the device cannot be opened.
pub(crate) fn dump(place: &Place, force: bool, command: &str, host: &str) -> Result<String, Problem> {
    let Opened { store, found } = place.find(!force)?;
    if !found.superblock.is_clean() && !force {
        let message = format!(
            "{}: Found meta data is \"unclean\", please apply-al first: its bitmap cannot be trusted yet",
            place.label
        );
        return Err(Problem::usage(message)
            .hint(format!("run: {} (or dump it all the same with --force)", place.command("apply-al"))));
    }
    let needed = BitmapArea::new(found.layout.geometry(), found.superblock.effective_size).pages() * 4096;
    let available = store.len().saturating_sub(found.layout.bitmap_at().0);
    let bitmap = store.read(found.layout.bitmap_at().0, needed.min(available) as usize)?;
    let mut text = String::new();
    let header = dump::Header { time: &utc_now(), host, command };
    let written = dump::write(&mut text, header, &found, None, &bitmap, dump::Dialect::WithoutMembers);
    written.map_err(|e| Problem::new(exit::FAILURE, format!("{}: {e}", place.label)))?;
    Ok(text)
}

fn utc_now() -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format!("{} +0000 [{seconds}]", crate::verbs::status::date_and_time(seconds))
}

/// `restore-md`: writes metadata from its text.
///
/// # Errors
/// Exit 10: the text is no dump, or does not fit the device; exit 20: the device cannot be opened; exit 40: it would
/// cut off a file system.
pub(crate) fn restore(place: &Place, text: &str, force: bool) -> Result<u8, Problem> {
    let refused = |why: String| Problem::new(exit::FAILURE, format!("{}: {why}", place.label));
    let dump = dump::parse(text).map_err(|e| refused(format!("line {}: {}", e.line, e.message)))?;
    let store = place.open(true)?;
    let version = place.version.unwrap_or(dump.superblock.version());
    let device = ByteLen(store.len());
    let restored = dump::restore(&dump, version, place.kind, device, None, false)
        .map_err(|e| refused(format!("the dump does not fit {}: {e}", place.path.display())))?;
    let question = format!("{}: write the metadata of the dump to {}?", place.label, place.path.display());
    if !confirm(&question, force) {
        return Ok(exit::USAGE);
    }
    let creation = Creation {
        version,
        geometry: restored.found.layout.geometry(),
        options: CreateOptions::default(),
        force,
        ignore_sanity_checks: false,
        keep_device_uuid_zero: true,
        format_asked: true,
    };
    if !data_may_go(place, &store, &restored.found.layout, &creation)? {
        return Ok(exit::USAGE);
    }
    store.carry_out(&restored.steps)?;
    last_known::note(place, &store, &restored.found.superblock);
    if restored.bitmap_truncated {
        eprintln!("urbd: {}: the device is smaller than the dumped one: bits beyond its end were dropped", place.label);
    }
    if restored.is_unclean {
        eprintln!("urbd: {}: the dump was unclean: run apply-al before attaching", place.label);
    }
    if restored.lost_flags {
        eprintln!(
            "urbd: {}: the dump has no flags (older tools lose them): the data counts as inconsistent",
            place.label
        );
    }
    println!("{}: metadata restored", place.label);
    Ok(0)
}

/// `dstate`: one word.
///
/// # Errors
/// Exit 255: no metadata; exit 20: the device cannot be opened.
pub(crate) fn disk_state(place: &Place) -> Result<String, Problem> {
    Ok(format!("{:?}", gi::disk_state(&place.find(false)?.found.superblock)))
}

/// `outdate`: the data is old.
///
/// # Errors
/// Exit 5: it is inconsistent, which is worse; exit 255: no metadata; exit 20: the device cannot be opened.
pub(crate) fn outdate(place: &Place) -> Result<u8, Problem> {
    let opened = place.find(true)?;
    let mut superblock = opened.found.superblock.clone();
    if !gi::outdate(&mut superblock) {
        let message = format!("{}: the data is inconsistent, which is worse than outdated", place.label);
        return Err(Problem::new(exit::TIMEOUT, message));
    }
    opened.write(place, &superblock)?;
    Ok(0)
}

/// `invalidate`: the data is to be fetched from a peer.
///
/// # Errors
/// Exit 255: no metadata; exit 20: the device cannot be opened.
pub(crate) fn invalidate(place: &Place) -> Result<u8, Problem> {
    let opened = place.find(true)?;
    let mut superblock = opened.found.superblock.clone();
    gi::invalidate(&mut superblock);
    opened.write(place, &superblock)?;
    Ok(0)
}

/// `check-resize`: moves internal metadata to the end of a device that has grown. Where it was follows from the
/// metadata itself: only at the end of a device of the old size are its positions right.
///
/// # Errors
/// Exit 255: there is metadata neither at the end nor at an old end; exit 20: the device cannot be opened.
pub(crate) fn check_resize(place: &Place) -> Result<u8, Problem> {
    let store = place.open(true)?;
    let why = match place.look(&store)? {
        Ok(found) => {
            last_known::note(place, &store, &found.superblock);
            return Ok(0);
        }
        Err(why) => why,
    };
    let found = match place.kind {
        MetaDisk::Internal => match last_known::elsewhere(place, &store)? {
            None => old_end(&store)?,
            found => found,
        },
        _ => None,
    };
    let Some(found) = found else { return Err(place.nothing_there(&store, &why)) };
    let device = ByteLen(store.len());
    let (_, _, steps) = resize::plan_move(&found, device, InitialBitmap::Zero)
        .map_err(|e| Problem::new(exit::FAILURE, format!("{}: {e}", place.label)))?;
    store.carry_out(&steps)?;
    last_known::note(place, &store, &found.superblock);
    println!("{}: moved the metadata to the new end of {}", place.label, place.path.display());
    Ok(0)
}

/// Looks backwards for metadata that was at the end of the device when that was smaller.
fn old_end(store: &Store) -> Result<Option<Found>, Problem> {
    const WINDOW: u64 = 1 << 20;
    let block_len = BLOCK_LEN as u64;
    let mut end = store.len() / block_len * block_len;
    while end > 0 {
        let start = end.saturating_sub(WINDOW);
        let window = store.read(start, (end - start) as usize)?;
        for (n, block) in window.as_chunks::<BLOCK_LEN>().0.iter().enumerate().rev() {
            let device = ByteLen(start + (n as u64 + 1) * block_len);
            if let Ok(found) = find::check(MetaDisk::Internal, device, block) {
                return Ok(Some(found));
            }
        }
        end = start;
    }
    Ok(None)
}
