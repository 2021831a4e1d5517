//! Who may write: quorum (`docs/spec/connection-and-state.md` 9).
//!
//! Each other node that counts is put in one class, and the classes are counted. What follows is a function of these
//! numbers, the options, and of whether there was quorum before.

use super::DiskState as D;
use std::fmt;

/// `quorum`, or `quorum-minimum-redundancy`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Threshold {
    /// Nothing is asked for.
    #[default]
    Off,
    /// More than half of those who count.
    Majority,
    /// All who count.
    All,
    /// So many nodes, 1 to 32, however many there are.
    AtLeast(u8),
}

impl Threshold {
    /// How many of `voters` it takes.
    #[must_use]
    pub fn of(self, voters: u32) -> u32 {
        match self {
            Threshold::Off => 0,
            Threshold::Majority => voters / 2 + 1,
            Threshold::All => voters,
            Threshold::AtLeast(nodes) => nodes.into(),
        }
    }
}

/// `on-no-quorum`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum OnNoQuorum {
    /// Freeze requests.
    #[default]
    SuspendIo,
    /// Fail them.
    IoError,
}

/// What a resource asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QuorumConfig {
    nodes: Threshold,
    up_to_date: Threshold,
    without: OnNoQuorum,
}

impl QuorumConfig {
    /// A volume is written to only where so many `nodes` are within reach (`quorum`), and so many UpToDate disks
    /// (`quorum-minimum-redundancy`); else requests freeze or fail (`on-no-quorum`).
    #[must_use]
    pub const fn new(nodes: Threshold, up_to_date: Threshold, without: OnNoQuorum) -> QuorumConfig {
        QuorumConfig { nodes, up_to_date, without }
    }

    /// Is anything asked for?
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.nodes != Threshold::Off
    }

    /// How many nodes must be within reach.
    #[must_use]
    pub fn nodes(&self) -> Threshold {
        self.nodes
    }

    /// How many of them with good data.
    #[must_use]
    pub fn up_to_date(&self) -> Threshold {
        self.up_to_date
    }

    /// What requests get without.
    #[must_use]
    pub fn without(&self) -> OnNoQuorum {
        self.without
    }
}

/// What a volume may do, as far as quorum is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Standing {
    /// Quorum is not asked for.
    #[default]
    Unasked,
    /// The votes say that there is quorum.
    Has,
    /// They do not, but this disk was the only one with quorum when its node went: it has it still, until the votes say
    /// so, too, or the disk is not UpToDate any more (9.5).
    Keeps,
    /// There is none.
    Lacks(OnNoQuorum),
}

impl Standing {
    /// May the volume be written to?
    #[must_use]
    pub fn is_quorate(self) -> bool {
        !matches!(self, Standing::Lacks(_))
    }

    /// Did the votes say so?
    #[must_use]
    pub fn is_by_votes(self) -> bool {
        matches!(self, Standing::Unasked | Standing::Has)
    }
}

/// Is a node to have a disk for a volume?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Part {
    /// Yes.
    #[default]
    Disk,
    /// No (`bitmap no`). It decides a draw (`peer-tiebreaker yes`).
    Tiebreaker,
    /// No, and it counts for nothing.
    Client,
}

/// What the metadata of a node know of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Nothing: it has no bitmap there, was never seen with a disk, and is not noted to exist.
    No,
    /// It exists.
    Yes,
    /// The same, and its disk is Outdated.
    Outdated,
}

/// What is known of another node's part in a volume besides the state (9.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Voter {
    /// By the metadata here. A node that is not configured any more, and was not forgotten, is known by them alone.
    pub known: Known,
    /// Is it to have a disk?
    pub part: Part,
}

/// Another node's disk, as this one knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Within reach: the volume's handshake with it is complete.
    Here(D),
    /// Not within reach: what was known last.
    Away(D),
}

/// What a node counts as (9.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Class {
    /// It does not count.
    Nobody,
    /// Within reach, with good data.
    UpToDate,
    /// Within reach, with a disk that is to have good data.
    Present,
    /// Within reach, and not to have a disk.
    Diskless,
    /// Not within reach, and it cannot be promoted: its data is known to be old.
    Outdated,
    /// Not within reach, and it knows that it has no quorum: it went while this node had it.
    Quorumless,
    /// Not within reach. It may be promoted, and have quorum.
    Unknown,
    /// Not within reach, and not to have a disk.
    MissingDiskless,
}

impl Class {
    /// All that count.
    pub const COUNTED: [Class; 7] = [
        Class::UpToDate,
        Class::Present,
        Class::Diskless,
        Class::Outdated,
        Class::Quorumless,
        Class::Unknown,
        Class::MissingDiskless,
    ];
}

/// How many nodes of each class there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// [`Class::UpToDate`].
    pub up_to_date: u32,
    /// [`Class::Present`].
    pub present: u32,
    /// [`Class::Diskless`].
    pub diskless: u32,
    /// [`Class::Outdated`].
    pub outdated: u32,
    /// [`Class::Quorumless`].
    pub quorumless: u32,
    /// [`Class::Unknown`].
    pub unknown: u32,
    /// [`Class::MissingDiskless`].
    pub missing_diskless: u32,
}

impl Count {
    /// One more.
    pub fn note(&mut self, class: Class) {
        let place = match class {
            Class::Nobody => return,
            Class::UpToDate => &mut self.up_to_date,
            Class::Present => &mut self.present,
            Class::Diskless => &mut self.diskless,
            Class::Outdated => &mut self.outdated,
            Class::Quorumless => &mut self.quorumless,
            Class::Unknown => &mut self.unknown,
            Class::MissingDiskless => &mut self.missing_diskless,
        };
        *place += 1;
    }

    fn voters(&self) -> u32 {
        self.outdated + self.quorumless + self.unknown + self.up_to_date + self.present
    }
}

/// What the votes come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// There is no quorum.
    Lacks,
    /// There is.
    Has,
    /// There is, by nodes without disks alone, which decide a draw.
    ByTiebreaker,
}

/// The votes of a volume, as one node counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tally {
    /// What they come to.
    pub verdict: Verdict,
    /// Nodes that count.
    pub voters: u32,
    /// Of those, within reach.
    pub seen: u32,
    /// How many must be.
    pub needed: u32,
    /// Of those within reach, with good data.
    pub up_to_date: u32,
    /// How many must be.
    pub needed_up_to_date: u32,
}

impl fmt::Display for Tally {
    /// For people: who is within reach, and how many it takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { verdict, voters, seen, needed, up_to_date, needed_up_to_date } = self;
        let word = if *verdict == Verdict::Lacks { "no quorum" } else { "quorum" };
        write!(f, "{word}: {seen} of {voters} voters in reach, {needed} needed")?;
        if *needed_up_to_date > 0 {
            write!(f, "; {up_to_date} of them UpToDate, {needed_up_to_date} needed")?;
        }
        match verdict {
            Verdict::ByTiebreaker => f.write_str("; a node without a disk decides the draw"),
            _ => Ok(()),
        }
    }
}

/// Counts (9.2). `had`: the votes said so before, whatever is enforced. `quorate_source`: for a node without a disk,
/// some peer with good data says that it has quorum.
#[must_use]
pub fn tally(count: &Count, config: &QuorumConfig, had: bool, quorate_source: bool) -> Tally {
    let mut count = *count;
    let all = count.voters();
    let absent = count.outdated + count.quorumless + count.unknown;
    if absent >= config.nodes.of(all) {
        // They could have found each other.
        count.unknown += std::mem::take(&mut count.quorumless);
    }
    let seen = count.up_to_date + count.present;
    // Nobody who is away can be promoted: who is here decides.
    let voters = if count.unknown == 0 { seen } else { all };
    let (needed, needed_up_to_date) = (config.nodes.of(voters), config.up_to_date.of(voters));
    let enough = (seen >= needed && count.up_to_date >= needed_up_to_date) || quorate_source;
    let draw = voters > 0 && voters.is_multiple_of(2) && seen + 1 == needed;
    let most_diskless = count.diskless > (count.diskless + count.missing_diskless) / 2;
    let verdict = match enough {
        true => Verdict::Has,
        false if draw && most_diskless && had => Verdict::ByTiebreaker,
        false => Verdict::Lacks,
    };
    Tally { verdict, voters, seen, needed, up_to_date: count.up_to_date, needed_up_to_date }
}

/// What another node counts as (9.1, 9.3). `with_disk`: this node has one. `left_quorum`: this node has quorum, and the
/// other one is no member.
#[must_use]
pub fn class_of(voter: &Voter, seen: Seen, with_disk: bool, left_quorum: bool) -> Class {
    if voter.part == Part::Client || with_disk && voter.known == Known::No {
        return Class::Nobody;
    }
    let tiebreaker = voter.part == Part::Tiebreaker;
    match seen {
        Seen::Away(_) if tiebreaker => Class::MissingDiskless,
        Seen::Away(disk) if disk <= D::Outdated || voter.known == Known::Outdated => Class::Outdated,
        Seen::Away(_) if left_quorum => Class::Quorumless,
        Seen::Away(_) => Class::Unknown,
        Seen::Here(D::Diskless) if tiebreaker || !with_disk => Class::Diskless,
        Seen::Here(D::UpToDate) => Class::UpToDate,
        Seen::Here(_) => Class::Present,
    }
}
