//! What several nodes' metadata say together: who is behind whom, what a connect would come to, and what can be done.
//! The rules are the core's (`decide::foretell`); here is which node is which, and the advice.

use meta::{Superblock, Version};
use units::{Generation, NodeId};
use urbd_core::decide::foretell::{self, Attached, Copy, Dialect, Extent, Meeting, Outcome};
use urbd_core::decide::{DiskState, Reason};

use super::find::Inspected;
use super::words;

/// Two of those that were inspected, by their places in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    /// The one by whom `meeting` calls the first.
    pub(super) first: usize,
    /// The other one.
    pub(super) second: usize,
    /// What they decide, or why nobody can say.
    pub(super) meeting: Result<Meeting, String>,
    /// KiB that each has marked for the other one, when its disk is attached.
    pub(super) marked: [u64; 2],
    /// Nodes of the resource, as far as these metadata know.
    pub(super) nodes: usize,
}

impl Pair {
    /// Is what is marked copied although the generation is the same? Among several nodes urbd does that, by a rule of
    /// its own, and the kernel's DRBD does not.
    pub(super) fn has_unsettled_marks(&self) -> bool {
        let equal = self.meeting.as_ref().is_ok_and(|m| m.outcome == Outcome::Equal && m.dialect == Dialect::V9);
        equal && self.nodes > 2 && self.marked != [0, 0]
    }
}

/// Something that can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// What it is.
    pub(super) title: String,
    /// What to type: on which node, and the command.
    pub(super) commands: Vec<(String, String)>,
    /// What is lost by it.
    pub(super) loses: String,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Together {
    /// What each disk is worth when it is attached.
    pub(super) attached: Vec<Attached>,
    /// Each two.
    pub(super) pairs: Vec<Pair>,
    /// One word: `equal`, `no-data`, `behind`, `split-brain`, `by-chance`, `unrelated`, `refused`,
    /// `unknown`; `alone` of one.
    pub(super) state: &'static str,
    /// The same in a sentence.
    pub(super) summary: String,
    /// Numbered from 1 where it is shown.
    pub(super) choices: Vec<Choice>,
}

/// Has it no data yet?
fn is_fresh(sb: &Superblock) -> bool {
    sb.current.is_none() || sb.current.same(Generation::JUST_CREATED)
}

/// Nodes that metadata know of, beside their own.
pub(super) fn known(sb: &Superblock) -> impl Iterator<Item = NodeId> {
    NodeId::all().filter(|node| Some(*node) != sb.node_id && sb.peers[node.index()].is_known())
}

/// Which node each is. One of format v08 has no number: any will do that no other one has, unless another one's
/// metadata are of v09, which have a slot for it. A disk of v09 has none before its first attach.
fn nodes(all: &[Inspected]) -> Vec<Result<NodeId, String>> {
    let stored: Vec<Option<NodeId>> = all.iter().map(|one| one.superblock.node_id).collect();
    let mut taken: Vec<NodeId> = stored.iter().copied().flatten().collect();
    let is_v09 = |one: &Inspected| one.superblock.version() == Version::V09;
    let of_9 = all.iter().any(is_v09);
    let nobody_was_attached = all.iter().all(|one| one.superblock.node_id.is_none() && is_v09(one));
    let mut name = |one: &Inspected, stored: Option<NodeId>| {
        if let Some(node) = stored {
            return Ok(node);
        }
        let others = all.iter().filter(|other| is_v09(other));
        let mut wanted: Vec<NodeId> = others.flat_map(|other| known(&other.superblock)).collect();
        wanted.sort();
        wanted.dedup();
        wanted.retain(|node| !taken.contains(node));
        let any = NodeId::all().find(|node| !taken.contains(node));
        let node = match wanted.as_slice() {
            [only] => Some(*only),
            _ if !of_9 || is_fresh(&one.superblock) || nobody_was_attached => wanted.first().copied().or(any),
            _ => None,
        };
        taken.extend(node);
        node.ok_or_else(|| format!("{}: its metadata do not say which node it is", one.name))
    };
    all.iter().zip(stored).map(|(one, stored)| name(one, stored)).collect()
}

/// Compares them all. `resource` is what it is called in commands.
pub(super) fn compare(all: &[Inspected], resource: &str) -> Together {
    let nodes = nodes(all);
    let members = all.iter().map(|one| known(&one.superblock).count() + 1).chain([all.len()]).max().unwrap_or_default();
    let several = members > 2;
    let any = NodeId::all().next();
    let copy = |n: usize| {
        let one: &Inspected = &all[n];
        let node = nodes[n].as_ref().ok().copied().or(any)?;
        let (marked, with_log) = (one.marked.as_slice(), one.with_log.as_deref());
        Some(Copy { superblock: &one.superblock, node, marked, with_log, capacity: one.capacity })
    };
    let copies: Vec<Copy<'_>> = (0..all.len()).filter_map(copy).collect();
    let attached: Vec<Attached> = copies.iter().map(|copy| foretell::attach(copy, several)).collect();
    let mut pairs = Vec::new();
    for first in 0..copies.len() {
        for second in first + 1..copies.len() {
            let [a, b] = [first, second].map(|n| &copies[n]);
            let meeting = same_node(&all[first], &all[second])
                .map_or(Ok(()), Err)
                .and_then(|()| nodes[first].clone().and(nodes[second].clone()))
                .map(|_| foretell::meet(a, b, several));
            let marked = [(first, b.node), (second, a.node)].map(|(n, other)| {
                let sb = &all[n].superblock;
                let slot = sb.peer(other).slot.or_else(|| sb.vacant_slot()).map(usize::from);
                let bits = slot.and_then(|slot| attached[n].marked.get(slot)).copied().unwrap_or_default();
                kib(sb, bits)
            });
            pairs.push(Pair { first, second, meeting, marked, nodes: members });
        }
    }
    Situation { all, pairs: &pairs, attached: &attached, resource }.judge(pairs.clone(), attached.clone())
}

/// Bits of a bitmap in KiB of the disk.
pub(super) fn kib(sb: &Superblock, bits: u64) -> u64 {
    let whole = bits.saturating_mul(u64::from(sb.geometry.bytes_per_bit()) / 1024);
    whole.min(sb.effective_size.0.div_ceil(2))
}

fn same_node(a: &Inspected, b: &Inspected) -> Option<String> {
    let (one, other) = (&a.superblock, &b.superblock);
    let node = one.node_id.filter(|_| one.node_id == other.node_id)?;
    Some(format!(
        "both are of node {}: two volumes of one node, or one is a copy of the other; inspect those of different nodes",
        node.index()
    ))
}

/// What advice is given on.
struct Situation<'a> {
    all: &'a [Inspected],
    pairs: &'a [Pair],
    attached: &'a [Attached],
    resource: &'a str,
}

impl Situation<'_> {
    fn judge(&self, pairs: Vec<Pair>, attached: Vec<Attached>) -> Together {
        let has = |outcome| self.pairs.iter().any(|p| p.meeting.as_ref().is_ok_and(|m| m.outcome == outcome));
        let moves =
            |m: &Meeting| matches!(m.outcome, Outcome::FromFirst(_) | Outcome::FromSecond(_) | Outcome::ByChance);
        let (state, summary, choices) = if self.all.len() < 2 {
            ("alone", "Only one node's metadata are here: what the others have is not known.".to_owned(), self.alone())
        } else if let Some(why) = self.pairs.iter().find_map(|pair| pair.meeting.as_ref().err()) {
            ("unknown", format!("They cannot be compared: {why}."), Vec::new())
        } else if has(Outcome::SplitBrain) {
            ("split-brain", self.split_brain(), self.choose_one(false))
        } else if has(Outcome::Unrelated) {
            let text = "Unrelated data: there is no generation that both ever had. Are they of the same volume?";
            ("unrelated", text.to_owned(), self.choose_one(true))
        } else if has(Outcome::Refused) {
            ("refused", self.refused(), if self.are_too_small() { self.larger() } else { self.force() })
        } else if self.pairs.iter().any(|p| p.meeting.as_ref().is_ok_and(moves)) {
            self.behind()
        } else if self.all.iter().all(|one| is_fresh(&one.superblock)) {
            ("no-data", "All metadata are fresh: nobody has data yet.".to_owned(), self.begin())
        } else if self.attached.iter().all(|one| one.disk() == DiskState::Inconsistent) {
            ("refused", "All have the same generation, and no disk is consistent.".to_owned(), self.force())
        } else {
            ("equal", self.equal(), vec![self.up("Start all.")])
        };
        Together { attached, pairs, state, summary, choices }
    }

    fn name(&self, n: usize) -> &str {
        &self.all[n].name
    }

    fn names(&self, which: &[usize]) -> String {
        let names: Vec<&str> = which.iter().map(|n| self.name(*n)).collect();
        match names.as_slice() {
            [] => String::new(),
            [only] => (*only).to_owned(),
            [first @ .., last] => format!("{} and {last}", first.join(", ")),
        }
    }

    fn type_on(&self, n: usize, verbs: &[&str]) -> Vec<(String, String)> {
        let command = |verb: &&str| (self.name(n).to_owned(), format!("urbd {verb} {}", self.resource));
        verbs.iter().map(command).collect()
    }

    /// Who gets what from whom, whoever accepts a connection: (source, target, how).
    fn moves(&self) -> Vec<(usize, usize, Extent, &Pair)> {
        let one = |pair: &'_ Pair| match pair.meeting.as_ref().ok()?.outcome {
            Outcome::FromFirst(extent) => Some((pair.first, pair.second, extent)),
            Outcome::FromSecond(extent) => Some((pair.second, pair.first, extent)),
            _ => None,
        };
        self.pairs.iter().filter_map(|pair| one(pair).map(|(from, to, extent)| (from, to, extent, pair))).collect()
    }

    fn equal(&self) -> String {
        if !self.pairs.iter().any(Pair::has_unsettled_marks) {
            return "All have the same data: nothing would be copied.".to_owned();
        }
        "All have the same generation. What is marked is copied between nodes of urbd; the kernel's DRBD leaves it."
            .to_owned()
    }

    fn up(&self, title: &str) -> Choice {
        let commands = (0..self.all.len()).flat_map(|n| self.type_on(n, &["up"])).collect();
        Choice { title: title.to_owned(), commands, loses: "nothing".to_owned() }
    }

    fn alone(&self) -> Vec<Choice> {
        vec![Choice {
            title: "Inspect it together with the other nodes' disks, or with dumps that are made there.".to_owned(),
            commands: vec![("each other node".to_owned(), format!("urbd dump-md {} >NODE.dump", self.resource))],
            loses: "nothing".to_owned(),
        }]
    }

    fn split_brain(&self) -> String {
        let parted = self
            .pairs
            .iter()
            .filter(|pair| pair.meeting.as_ref().is_ok_and(|meeting| meeting.outcome == Outcome::SplitBrain));
        let texts: Vec<String> = parted
            .map(|pair| {
                format!(
                    "{} and {} have both changed the data since they parted ({} KiB are marked on {}, {} KiB on {})",
                    self.name(pair.first),
                    self.name(pair.second),
                    pair.marked[0],
                    self.name(pair.first),
                    pair.marked[1],
                    self.name(pair.second)
                )
            })
            .collect();
        format!("Split brain: {}. Connected, they stay apart, unless an after-sb policy decides.", texts.join("; "))
    }

    /// Somebody's data must go: whose? First a way to look.
    fn choose_one(&self, unrelated: bool) -> Vec<Choice> {
        let look = ["up", "disconnect", "primary"];
        let mut commands: Vec<(String, String)> = (0..self.all.len()).flat_map(|n| self.type_on(n, &look)).collect();
        let mount = format!("mount -o ro $(urbd sh-dev {}) /mnt", self.resource);
        commands.push(("each of them".to_owned(), mount));
        let mut choices = vec![Choice {
            title: "Look first: keep them apart, and compare what is on each. Afterwards: umount, and urbd secondary."
                .to_owned(),
            commands,
            loses: "nothing".to_owned(),
        }];
        choices.extend((0..self.all.len()).map(|keep| self.keep(keep, unrelated)));
        choices
    }

    /// Those who would not take `keep`'s data by themselves give theirs up.
    fn keep(&self, keep: usize, unrelated: bool) -> Choice {
        let parted = |pair: &&Pair| {
            let apart = |m: &Meeting| matches!(m.outcome, Outcome::SplitBrain | Outcome::Unrelated);
            [pair.first, pair.second].contains(&keep) && pair.meeting.as_ref().is_ok_and(apart)
        };
        let mut commands = Vec::new();
        let mut loses = Vec::new();
        for pair in self.pairs.iter().filter(parted) {
            let (victim, side) = if pair.first == keep { (pair.second, 1) } else { (pair.first, 0) };
            if unrelated {
                commands.extend(self.type_on(victim, &["down", "create-md", "up"]));
                loses.push(format!("all data of {}", self.name(victim)));
            } else {
                commands.extend(self.type_on(victim, &["up", "disconnect", "connect --discard-my-data"]));
                loses.push(format!("what {} has written alone ({} KiB)", self.name(victim), pair.marked[side]));
            }
        }
        commands.extend(self.type_on(keep, &["up", "connect"]));
        let loses = if loses.is_empty() { "nothing".to_owned() } else { loses.join(", ") };
        Choice { title: format!("Keep {}'s data.", self.name(keep)), commands, loses }
    }

    fn refused(&self) -> String {
        let why = self.pairs.iter().filter_map(|pair| {
            let meeting = pair.meeting.as_ref().ok().filter(|meeting| meeting.outcome == Outcome::Refused)?;
            Some(format!("{} and {}: {}", self.name(pair.first), self.name(pair.second), words::why_refused(meeting)))
        });
        format!("They would not connect: {}.", why.collect::<Vec<_>>().join("; "))
    }

    fn are_too_small(&self) -> bool {
        let refused = self.pairs.iter().filter_map(|pair| pair.meeting.as_ref().ok());
        refused.filter(|m| m.outcome == Outcome::Refused).all(|m| m.reason == Reason::PeerDiskTooSmall)
    }

    /// A disk is too small for the data of another one.
    fn larger(&self) -> Vec<Choice> {
        let replace = Choice {
            title: "Give the node with the smaller disk a larger one, and create metadata on that (create-md)."
                .to_owned(),
            commands: Vec::new(),
            loses: "what only the smaller disk has".to_owned(),
        };
        let good = (0..self.all.len()).filter(|n| self.attached[*n].disk() == DiskState::UpToDate);
        [replace].into_iter().chain(good.map(|n| self.go_on_alone(n))).collect()
    }

    /// No copy is good: one is declared to be.
    fn force(&self) -> Vec<Choice> {
        let one = |n: usize| Choice {
            title: format!("Declare {}'s data to be good, whatever it lacks.", self.name(n)),
            commands: [self.type_on(n, &["up", "disconnect", "primary --force"]), self.others(n, &["up"])].concat(),
            loses: format!("what {} lacks, for good; its data may be a mixture of old and new", self.name(n)),
        };
        (0..self.all.len()).map(one).collect()
    }

    fn others(&self, n: usize, verbs: &[&str]) -> Vec<(String, String)> {
        (0..self.all.len()).filter(|other| *other != n).flat_map(|other| self.type_on(other, verbs)).collect()
    }

    fn begin(&self) -> Vec<Choice> {
        let one = |n: usize| {
            let up = (0..self.all.len()).flat_map(|n| self.type_on(n, &["up"])).collect();
            let others: Vec<usize> = (0..self.all.len()).filter(|other| *other != n).collect();
            Choice {
                title: format!("Begin with what is on {}'s disk.", self.name(n)),
                commands: [up, self.type_on(n, &["primary --force"])].concat(),
                loses: format!("whatever is on the disk of {}", self.names(&others)),
            }
        };
        (0..self.all.len()).map(one).collect()
    }

    /// Some are behind others, and nobody has parted.
    fn behind(&self) -> (&'static str, String, Vec<Choice>) {
        let moves = self.moves();
        if moves.is_empty() {
            return self.by_chance();
        }
        let best: Vec<usize> = (0..self.all.len()).filter(|n| moves.iter().all(|(_, to, ..)| to != n)).collect();
        let behind: Vec<usize> = (0..self.all.len()).filter(|n| !best.contains(n)).collect();
        if best.is_empty() {
            let text = "Each of them lacks something that another one has: only one after the other can be connected.";
            return ("unknown", text.to_owned(), Vec::new());
        }
        let summary = format!(
            "{} {} the newest data, and would be the source; behind: {}.",
            self.names(&best),
            if best.len() == 1 { "has" } else { "have" },
            self.names(&behind)
        );
        let own: Vec<String> = moves
            .iter()
            .filter_map(|(_, to, _, pair)| {
                let kib = pair.marked[usize::from(pair.second == *to)];
                (kib > 0).then(|| format!("the {kib} KiB that {} has marked are replaced", self.name(*to)))
            })
            .collect();
        let loses = if own.is_empty() { "nothing".to_owned() } else { own.join(", ") };
        let mut choices = vec![Choice { loses, ..self.up("Start all: who is behind gets what it lacks.") }];
        choices.extend(best.iter().map(|n| self.go_on_alone(*n)));
        ("behind", summary, choices)
    }

    fn go_on_alone(&self, n: usize) -> Choice {
        let good = self.attached[n].disk() == DiskState::UpToDate;
        let primary = if good { "primary" } else { "primary --force" };
        Choice {
            title: format!("Go on with {} alone for now.", self.name(n)),
            commands: self.type_on(n, &["up", "disconnect", primary]),
            loses: "nothing now; the others stay as they are, and fall further behind".to_owned(),
        }
    }

    /// All went down as Primary, or beside one, in the same generation.
    fn by_chance(&self) -> (&'static str, String, Vec<Choice>) {
        let summary = "All have the same generation, and went down as Primary or beside one: what was being written may \
                       differ. It is copied from one to the other; which one is the source depends on who accepts the \
                       connection.";
        let up = self.up("Start all.");
        let loses =
            "nothing that was completed everywhere (protocol C); else writes that one of them alone has".to_owned();
        let mut choices = vec![Choice { loses, ..up }];
        choices.extend((0..self.all.len()).map(|n| self.go_on_alone(n)));
        ("by-chance", summary.to_owned(), choices)
    }
}
