//! Several nodes that do not all connect: the operator chooses one whose data live on, and pair by pair who gives in.

use crate::cluster::Cluster;
use crate::help::Help;
use crate::plan::node_id;
use std::collections::BTreeSet;
use units::Duration;
use urbd_core::Command;
use wire::{ConnState, Role};

/// Plain attempts come first: maybe only the words were missing.
const PLAIN: u32 = 4;
/// When new metadata are made of who has nothing in common with the others, and how often.
const ANEW: u32 = 12;
const EVERY: u32 = 8;

impl Cluster {
    /// All pairs that have given up try again; if they have said why, the one that gives in discards its data.
    pub(crate) fn reunite(&mut self, round: u32) {
        let best = self.better_node();
        if round >= ANEW && round % EVERY == PLAIN && self.renew_strangers(best) {
            return;
        }
        for [a, b] in self.pairs() {
            if !self.is_alone(a, b) && !self.is_alone(b, a) {
                continue;
            }
            let victim = self.victim_of(best, a, b);
            let (choice, anew) = self.reasons_between(a, b);
            let discard = round >= PLAIN && (choice || anew);
            if discard || (round >= PLAIN && self.may_help(Help::PartPrimaries)) {
                self.step_down(victim);
            }
            for (n, peer) in [(a, b), (b, a)] {
                if self.is_alone(n, peer) {
                    let discard_my_data = discard && n == victim;
                    self.command(n, Command::Connect { peer: node_id(peer), discard_my_data, tentative: false });
                }
            }
        }
        if round >= PLAIN && self.only_marks_are_left() {
            // What Secondaries have marked of each other as they lost a Primary is copied when nobody writes.
            (0..self.nodes.len()).for_each(|n| self.step_down(n));
        }
        if round >= PLAIN && self.may_help(Help::DemoteDiskless) {
            self.demote_diskless();
        }
    }

    /// All nodes that have nothing in common with a pair's other one, and give in, get new metadata at once: one that
    /// is brought up to date by another such one would be as strange as before.
    fn renew_strangers(&mut self, best: usize) -> bool {
        let mut strangers = BTreeSet::new();
        for [a, b] in self.pairs() {
            if (self.is_alone(a, b) || self.is_alone(b, a)) && self.reasons_between(a, b).1 {
                strangers.insert(self.victim_of(best, a, b));
            }
        }
        strangers.iter().for_each(|n| self.create_metadata(*n));
        !strangers.is_empty()
    }

    /// Who of two gives in: who says so, or else who is not the best, nor connected to it.
    fn victim_of(&self, best: usize, a: usize, b: usize) -> usize {
        let near = |n: usize| {
            let word = self.nodes[n].volumes[0].towards[best];
            (n == best, word.is_some_and(|w| w.conn >= ConnState::Connected), self.score(n))
        };
        match (self.gives_way_to(a, b), self.gives_way_to(b, a)) {
            (true, false) => a,
            (false, true) => b,
            _ if near(a) < near(b) => a,
            _ => b,
        }
    }

    fn step_down(&mut self, n: usize) {
        if self.nodes[n].volumes.iter().filter_map(|v| v.word).any(|w| w.role == Role::Primary) {
            self.want_open(n, false);
            self.command(n, Command::Secondary { force: true });
            self.run_until(self.now + Duration::from_secs(1));
        }
    }
}
