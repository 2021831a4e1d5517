//! Which part of a recording is replayed with which node replaced: what `recordings.md` lists is true.

use crate::capture::recordings_in;
use crate::recording::Said;
use std::collections::BTreeMap;
use std::sync::Mutex;
use units::{Duration, Instant, NodeId};

const TABLE: &str = include_str!("recordings.md");

/// Packets that a test leaves out, or hears at another time, do not make a part of it.
const NEAR: Duration = Duration::from_millis(50);

/// When a recording begins, and when each node says or hears something for the first and the last time.
struct Whole {
    begin: Instant,
    nodes: BTreeMap<NodeId, (Instant, Instant)>,
}

static RECORDINGS: Mutex<BTreeMap<u8, Whole>> = Mutex::new(BTreeMap::new());

/// What is said in all of the recording.
pub(crate) fn note_recording(recording: u8, said: &[Said]) {
    let mut nodes = BTreeMap::new();
    for s in said {
        for node in [s.from, s.to] {
            nodes.entry(node).or_insert((s.at, s.at)).1 = s.at;
        }
    }
    let begin = said.first().expect("somebody says something").at;
    let mut all = RECORDINGS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    all.entry(recording).or_insert(Whole { begin, nodes });
}

/// The part that is replayed.
pub(crate) struct Played {
    recording: u8,
    node: NodeId,
    first: Instant,
    last: Instant,
    /// The replay has come to the end of it.
    pub(crate) over: bool,
}

impl Played {
    pub(crate) fn of(said: &[Said], node: NodeId) -> Played {
        let own = || said.iter().filter(|s| s.from == node || s.to == node);
        let first = own().map(|s| s.at).min().expect("the node takes part");
        let last = own().map(|s| s.at).max().expect("the node takes part");
        Played { recording: said[0].recording, node, first, last, over: false }
    }

    /// A further part.
    pub(crate) fn go_on(&mut self, said: &[Said]) {
        self.last = self.last.max(Played::of(said, self.node).last);
        self.over = false;
    }

    /// In words of the table, in seconds since the recording begins.
    fn text(&self) -> String {
        let all = RECORDINGS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let whole = &all[&self.recording];
        let (first, last) = whole.nodes[&self.node];
        let seconds = |at: Instant| format!("{:.1}", at.since(whole.begin).0 as f64 / 1e9);
        let begins = self.first <= first + NEAR;
        let ends = self.last + NEAR >= last;
        match (begins, ends) {
            (true, true) => "whole".to_owned(),
            (true, false) => format!("to {}", seconds(self.last)),
            (false, true) => format!("from {}", seconds(self.first)),
            (false, false) => format!("{} to {}", seconds(self.first), seconds(self.last)),
        }
    }
}

/// What the table says of a recording: of each node which parts, and why there is no more.
fn row(recording: u8) -> Option<Vec<&'static str>> {
    let begins = format!("| {recording:02} |");
    let line = TABLE.lines().find(|line| line.starts_with(&begins))?;
    Some(line.split('|').skip(2).map(str::trim).collect())
}

impl Drop for Played {
    fn drop(&mut self) {
        if !self.over || std::thread::panicking() {
            return;
        }
        let text = self.text();
        let row = row(self.recording).unwrap_or_else(|| panic!("not in recordings.md: {:02}", self.recording));
        let listed = row[self.node.index()].split(", ").any(|part| part == text);
        assert!(listed, "recordings.md does not list of {:02}, node {}: {text}", self.recording, self.node.index());
    }
}

/// Each recording has its row. What is not replayed, or not whole, has a reason.
#[test]
fn all_recordings_are_listed() {
    for file in recordings_in("wire9") {
        let name = file.file_name().expect("a file").to_string_lossy().into_owned();
        let row = row(name[..2].parse().expect("a number"));
        let row = row.unwrap_or_else(|| panic!("not in recordings.md: {name}"));
        let [nodes @ .., reason, ""] = row.as_slice() else { panic!("a row of {name}: {row:?}") };
        let whole = nodes.iter().all(|node| node.is_empty() || *node == "whole");
        assert!(whole || !reason.is_empty(), "no reason why {name} is not replayed whole");
    }
}
