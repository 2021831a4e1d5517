//! A cluster of which nobody wants anything, in which nothing gets on, and which does not come to rest: what goes round
//! is counted and told.

use crate::cluster::{Cluster, Event, Input};
use std::collections::BTreeMap;
use units::Instant;
use wire::Packet;

/// So many events without a step of the plan, a request, a command or a block that moved are too many: five times what
/// was ever seen.
const MOST: u64 = 1_000_000;
/// While a handler hangs a command is tried again and again, ten times a second, or a hundred if the clock runs fast,
/// and that for hours: of these events every tenth counts.
const OF_HUNG: u64 = 10;
/// Blocks that move are progress until each has done so this often since somebody wanted something: a resync or verify
/// that always begins again is none.
const PASSES: u64 = 16;
/// Of the last ones it is counted what they are.
const COUNTED: u64 = 20_000;
/// So many sorts are named.
const NAMED: usize = 8;

/// What has happened since somebody wanted something.
#[derive(Debug, Default)]
pub(crate) struct Restless {
    events: u64,
    /// Blocks of 4 KiB that were verified, resynced or sent since then.
    moved: u64,
    /// How many there were of those of which only every tenth counts.
    hung: u64,
    /// Since when it is counted, and the reasons that had been given by then.
    since: Instant,
    reasons: BTreeMap<&'static str, u64>,
    counts: BTreeMap<String, u64>,
}

impl Cluster {
    /// Somebody wants something of the cluster.
    pub(crate) fn note_wish(&mut self) {
        (self.restless.events, self.restless.moved) = (0, 0);
    }

    /// This packet is sent, with so many sectors of payload.
    pub(crate) fn note_progress(&mut self, packet: &Packet, payload: u64) {
        let sectors = match packet {
            Packet::OvResult(result) => result.size.0 / 512,
            Packet::RsWriteAck(ack) | Packet::RsIsInSync(ack) => ack.size.0 / 512,
            _ => payload,
        };
        if sectors == 0 {
            return;
        }
        self.restless.moved += sectors.div_ceil(8);
        let blocks: u64 = self.setup.volumes.iter().flat_map(|v| &v.sectors).map(|sectors| sectors / 8).sum();
        if self.restless.moved <= PASSES * blocks {
            self.restless.events = 0;
        }
    }

    /// An event is about to happen.
    pub(crate) fn note_event(&mut self, event: &Event) {
        if self.handlers.hang() && self.nodes.iter().any(|n| !n.commands.is_empty()) {
            self.restless.hung += 1;
            if !self.restless.hung.is_multiple_of(OF_HUNG) {
                return;
            }
        }
        self.restless.events += 1;
        let events = self.restless.events;
        if events <= MOST - COUNTED {
            return;
        }
        if events == MOST - COUNTED + 1 {
            self.restless.since = self.now;
            self.restless.reasons.clone_from(&self.reached);
            self.restless.counts.clear();
        }
        *self.restless.counts.entry(name(event)).or_default() += 1;
        if events == MOST {
            let text = self.describe_unrest();
            self.fail(text);
        }
    }

    fn describe_unrest(&self) -> String {
        let before = |reason| self.restless.reasons.get(reason).copied().unwrap_or_default();
        let reasons = self.reached.iter().map(|(reason, n)| ((*reason).to_owned(), n - before(reason)));
        let counts = self.restless.counts.iter().map(|(name, n)| (name.clone(), *n));
        let seconds = self.now.since(self.restless.since).as_secs_f64();
        format!(
            "there is no end of events: nobody wanted anything, and no block moved, for {MOST} of them. The last {COUNTED}, \
             in {seconds} s: {}; reasons: {}; {}",
            most_frequent(counts.collect()),
            most_frequent(reasons.filter(|(_, n)| *n > 0).collect()),
            self.describe()
        )
    }
}

/// The most frequent ones, with how often there were.
fn most_frequent(mut all: Vec<(String, u64)>) -> String {
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let named: Vec<String> = all.iter().take(NAMED).map(|(name, n)| format!("{name} {n}")).collect();
    if named.is_empty() { "none".to_owned() } else { named.join(", ") }
}

/// What sort of event it is.
fn name(event: &Event) -> String {
    match event {
        Event::Step(_) => "steps".to_owned(),
        Event::Turn(n, _) => format!("turns of node {n}"),
        Event::Timer(n, ..) => format!("timers of node {n}"),
        Event::Disk(n, _) => format!("disk operations of node {n}"),
        Event::Input(n, _, Input::LinkUp(..) | Input::LinkDown(..)) => format!("links of node {n}"),
        Event::Input(n, _, Input::Handler(..)) => format!("handlers of node {n}"),
        Event::Input(n, ..) => format!("inputs of node {n}"),
        Event::Fence(n, ..) => format!("fencing by node {n}"),
        Event::Stream(_, n, _) => format!("packets of node {n}"),
        Event::Meet(_) | Event::Established(..) | Event::LastWords(..) => "connections".to_owned(),
        Event::Leave(n, _) => format!("node {n} leaving"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::trace::Trace;

    /// A verify of a large volume needs more events than these.
    #[test]
    fn blocks_that_move_are_progress_until_they_have_moved_often() {
        let mut cluster = Cluster::new(&Plan::draw(1), Trace::new(false, false));
        let (seq, outcome, size) = (1, wire::VerifyOutcome::InSync, units::ByteLen(1 << 20));
        let verified = Packet::OvResult(wire::VerifyResult { sector: units::Sector(0), size, seq, outcome });
        let mib: u64 = cluster.setup.volumes.iter().flat_map(|v| &v.sectors).map(|sectors| sectors / 2048).sum();
        for beat in 1..=PASSES * mib + 1 {
            cluster.note_event(&Event::Meet([0, 1]));
            cluster.note_progress(&Packet::Ping, 0);
            assert_eq!(cluster.restless.events, 1, "a ping moves nothing");
            cluster.note_progress(&verified, 0);
            assert_eq!(cluster.restless.events == 0, beat <= PASSES * mib, "after {beat} of {mib} MiB");
        }
        (1..MOST).for_each(|_| cluster.note_event(&Event::Meet([0, 1])));
        assert!(cluster.failure.is_some());
    }

    #[test]
    fn what_goes_round_is_told() {
        let mut cluster = Cluster::new(&Plan::draw(1), Trace::new(false, false));
        let timer = |n| Event::Timer(n, 0, Instant(0));
        (1..MOST).for_each(|_| cluster.note_event(&Event::Meet([0, 1])));
        cluster.note_wish();
        (1..MOST - COUNTED).for_each(|_| cluster.note_event(&Event::Meet([0, 1])));
        *cluster.reached.entry("link-lost").or_default() += 7;
        (0..COUNTED).for_each(|_| cluster.note_event(&timer(1)));
        assert_eq!(cluster.failure, None, "somebody wanted something");
        *cluster.reached.entry("link-lost").or_default() += 5;
        cluster.note_event(&timer(0));
        let text = cluster.failure.unwrap_or_default();
        assert!(text.contains("timers of node 1 19999, timers of node 0 1; reasons: link-lost 5;"), "{text}");
    }
}
