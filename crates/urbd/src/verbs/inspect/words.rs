//! What was found, for people.

use std::fmt::Write as _;

use meta::{DeviceFlags, MetaDisk, PeerFlags, PeerRecord, Superblock, Version};
use units::{Generation, NodeId};
use urbd_core::decide::Reason;
use urbd_core::decide::foretell::{Attached, Dialect, Extent, Meeting, Outcome};

use super::find::{Inspected, Log, Source};
use super::together::{Pair, Together, kib, known};

/// Columns of a line.
const WIDTH: usize = 100;

const DEVICE_FLAGS: [(DeviceFlags, &str); 8] = [
    (DeviceFlags::CONSISTENT, "consistent"),
    (DeviceFlags::WAS_UP_TO_DATE, "was UpToDate"),
    (DeviceFlags::PRIMARY_IND, "Primary"),
    (DeviceFlags::CRASHED_PRIMARY, "crashed Primary"),
    (DeviceFlags::AL_CLEAN, "activity log clean"),
    (DeviceFlags::AL_DISABLED, "activity log not written"),
    (DeviceFlags::PRIMARY_LOST_QUORUM, "lost quorum as Primary"),
    (DeviceFlags::HAVE_QUORUM, "had quorum"),
];

const PEER_FLAGS: [(PeerFlags, &str); 6] = [
    (PeerFlags::CONNECTED, "peer connected"),
    (PeerFlags::OUTDATED, "peer outdated"),
    (PeerFlags::FENCING, "fencing in force"),
    (PeerFlags::FULL_SYNC, "full sync"),
    (PeerFlags::DEVICE_SEEN, "had a disk"),
    (PeerFlags::NODE_EXISTS, "node exists"),
];

/// The flags of a device; what has no name by its number.
pub(super) fn device_flags(flags: DeviceFlags) -> Vec<String> {
    named(flags.0, DEVICE_FLAGS.iter().map(|(flag, name)| (flag.0, *name)))
}

/// The same of a peer.
pub(super) fn peer_flags(flags: PeerFlags) -> Vec<String> {
    named(flags.0, PEER_FLAGS.iter().map(|(flag, name)| (flag.0, *name)))
}

fn named(mut rest: u32, names: impl Iterator<Item = (u32, &'static str)>) -> Vec<String> {
    let flags = rest;
    let set = names.filter(|(flag, _)| flags & flag == *flag);
    let mut words: Vec<String> = set.inspect(|(flag, _)| rest &= !flag).map(|(_, name)| name.to_owned()).collect();
    words.extend((rest != 0).then(|| format!("unknown {rest:#x}")));
    words
}

/// Peers that metadata know, with what they are called: of format v08 the only one has no number.
pub(super) fn peers(sb: &Superblock) -> Vec<(Option<NodeId>, &PeerRecord)> {
    match sb.version() {
        Version::V08 => vec![(None, sb.v08_peer())],
        Version::V09 => known(sb).map(|node| (Some(node), sb.peer(node))).collect(),
    }
}

/// Past generations, youngest first.
pub(super) fn history(sb: &Superblock) -> Vec<Generation> {
    sb.history.iter().copied().filter(|past| !past.is_none()).collect()
}

/// Where metadata are, in words.
pub(super) fn place(source: &Source) -> String {
    match source {
        Source::Dump => "the text of a dump".to_owned(),
        Source::Disk { kind: MetaDisk::Internal, at, len } => format!("internal, at byte {at} of {len}"),
        Source::Disk { kind: MetaDisk::FlexExternal, len, .. } => format!("external, all of its {len} bytes"),
        Source::Disk { kind: MetaDisk::Indexed(slot), at, .. } => format!("external, slot {slot} at byte {at}"),
    }
}

pub(super) fn log(log: &Log) -> String {
    let mut text = if log.is_clean {
        "clean".to_owned()
    } else {
        format!(
            "not clean: the disk is in use, or its node went down without detaching it; {} extents of 4 MiB were being \
             written",
            log.hot
        )
    };
    if let Some(why) = log.unusable.as_ref().filter(|_| !log.is_clean) {
        text = format!("not clean, and of no use ({why}): everything may differ that a Primary has written");
    }
    if log.damaged > 0 {
        let _ = write!(text, "; {} of its blocks have a wrong checksum", log.damaged);
    }
    text
}

fn generation(generation: Generation) -> String {
    match generation {
        Generation::NONE => "none".to_owned(),
        g if g.same(Generation::JUST_CREATED) => format!("{g}, just created: no data yet"),
        g => g.to_string(),
    }
}

/// A page that grows line by line.
struct Page(String);

impl Page {
    /// A paragraph, wrapped, with this before its first line, and as many blanks before the others as `indent` says.
    fn put(&mut self, first: &str, indent: usize, text: &str) {
        let mut line = first.to_owned();
        let mut is_empty = true;
        for word in text.split_whitespace() {
            if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
                let _ = writeln!(self.0, "{}", line.trim_end());
                line = " ".repeat(indent);
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line += word;
            is_empty = false;
        }
        let _ = writeln!(self.0, "{}", line.trim_end());
    }

    fn field(&mut self, name: &str, text: &str) {
        self.put(&format!("  {name:14}"), 16, text);
    }
}

/// All of it.
pub(super) fn text(all: &[Inspected], together: &Together) -> String {
    let mut page = Page(String::new());
    for (one, attached) in all.iter().zip(&together.attached) {
        one_disk(&mut page, one, attached);
        page.0.push('\n');
    }
    for pair in &together.pairs {
        one_pair(&mut page, all, pair);
    }
    if !together.pairs.is_empty() {
        page.0.push('\n');
    }
    page.put("", 0, &together.summary);
    choices(&mut page, together);
    page.0
}

fn one_disk(page: &mut Page, one: &Inspected, attached: &Attached) {
    let sb = &one.superblock;
    let path: String = one.path.to_string_lossy().chars().filter(|c| !c.is_control()).collect();
    let node = sb.node_id.map(|node| format!(", node {}", node.index())).unwrap_or_default();
    let whose = if path == one.name { path } else { format!("{}: {path}", one.name) };
    page.put("", 2, &format!("{whose}: metadata {}{node}; {}", sb.version(), place(&one.source)));
    let size = match sb.effective_size.0 {
        0 => "never agreed on with a peer".to_owned(),
        sectors => format!("{} KiB agreed on last", sectors.div_ceil(2)),
    };
    let (slots, per_bit) = (sb.geometry.slots(), sb.geometry.bytes_per_bit() / 1024);
    let slots = if slots == 1 { "1 bitmap slot".to_owned() } else { format!("{slots} bitmap slots") };
    page.field("size", &format!("{size}; {slots}, a bit for {per_bit} KiB"));
    page.field("activity log", &log(&one.log));
    page.field("flags", &words_or_none(&device_flags(sb.flags)));
    page.field("disk", &format!("{} when it is attached: {}", attached.disk(), attached.reason()));
    page.field("generation", &generation(sb.current));
    for (node, record) in peers(sb) {
        one_peer(page, one, attached, node, record);
    }
    let past: Vec<String> = history(sb).iter().map(Generation::to_string).collect();
    page.field("history", &words_or_none(&past));
    for note in &one.notes {
        page.field("note", note);
    }
}

fn words_or_none(words: &[String]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

fn one_peer(page: &mut Page, one: &Inspected, attached: &Attached, node: Option<NodeId>, record: &PeerRecord) {
    let sb = &one.superblock;
    let name = node.map_or_else(|| "the peer".to_owned(), |node| format!("node {}", node.index()));
    let mut text = match record.bitmap_uuid {
        Generation::NONE => "nothing is counted for it".to_owned(),
        since => format!("its bitmap counts from {}", generation(since)),
    };
    if let Some(slot) = record.slot.map(usize::from) {
        let bits = |of: &[u64]| kib(sb, of.get(slot).copied().unwrap_or_default());
        let (now, then) = (bits(&one.marked), bits(&attached.marked));
        let _ = write!(text, "; slot {slot} marks {now} KiB as different");
        if now != then {
            let _ = write!(text, " ({then} KiB when the disk is attached)");
        }
    } else {
        text += "; no slot";
    }
    page.field(&name, &text);
    if record.flags.0 != 0 {
        page.field("", &peer_flags(record.flags).join(", "));
    }
}

/// What a pair comes to, in a sentence.
pub(super) fn verdict(all: &[Inspected], pair: &Pair) -> String {
    let meeting = match &pair.meeting {
        Ok(meeting) => meeting,
        Err(why) => return format!("nobody can say: {why}"),
    };
    let names = [pair.first, pair.second].map(|n| all[n].name.as_str());
    let most = pair.marked[0] + pair.marked[1];
    let copied = |[from, to]: [&str; 2], extent| match extent {
        Extent::Everything => format!("{to} is behind {from}, which copies everything to it"),
        Extent::Marked => format!("{to} is behind {from}, which copies what is marked, {most} KiB at most"),
        Extent::MarkedFor(node) => {
            format!("{to} is behind {from}, which copies what it has marked for node {}", node.index())
        }
    };
    match meeting.outcome {
        Outcome::Equal if pair.has_unsettled_marks() => format!(
            "they have the same generation; of several nodes, two of urbd copy what is marked, {most} KiB at most"
        ),
        Outcome::Equal => "they have the same data, nothing is copied".to_owned(),
        Outcome::FromFirst(extent) => copied(names, extent),
        Outcome::FromSecond(extent) => copied([names[1], names[0]], extent),
        Outcome::ByChance => format!(
            "they have the same generation, and who accepts the connection decides which one copies what is marked to the \
             other, {most} KiB at most"
        ),
        Outcome::SplitBrain => "split brain: they stay apart".to_owned(),
        Outcome::Unrelated => "unrelated data: they stay apart".to_owned(),
        Outcome::Refused => format!("they stay apart: {}", why_refused(meeting)),
    }
}

/// Why two stay apart, whoever of them has said so.
pub(super) fn why_refused(meeting: &Meeting) -> &'static str {
    match meeting.reason {
        Reason::PeerDiskTooSmall => "the disk of one is smaller than the data of the other one",
        Reason::SourceIsInconsistent => "the one with the newer data has no consistent disk",
        reason => reason.text(),
    }
}

fn one_pair(page: &mut Page, all: &[Inspected], pair: &Pair) {
    let [first, second] = [pair.first, pair.second].map(|n| all[n].name.as_str());
    page.put("", 2, &format!("{first} and {second}: {}.", verdict(all, pair)));
    if let Ok(meeting) = &pair.meeting {
        let dialect = match meeting.dialect {
            Dialect::V84 => "DRBD 8.4's",
            Dialect::V9 => "DRBD 9's",
        };
        let why = format!(
            "By {dialect} rule {} ({}), as {first} sees it: {}.",
            meeting.rule.name(),
            meeting.verdict,
            meeting.rule.text()
        );
        page.put("  ", 2, &why);
        if meeting.reason != meeting.rule && meeting.outcome != Outcome::Refused {
            page.put("  ", 2, &format!("What decides is {}: {}.", meeting.reason.name(), meeting.reason.text()));
        }
    }
}

fn choices(page: &mut Page, together: &Together) {
    if together.choices.is_empty() {
        return;
    }
    page.0 += "\nWhat can be done (with the kernel's DRBD type drbdadm in place of urbd):\n";
    for (n, choice) in together.choices.iter().enumerate() {
        page.put(&format!("{:2}. ", n + 1), 4, &choice.title);
        for (on, command) in &choice.commands {
            let _ = writeln!(page.0, "      on {on}: {command}");
        }
        page.put("    ", 4, &format!("Loses: {}.", choice.loses));
    }
}
