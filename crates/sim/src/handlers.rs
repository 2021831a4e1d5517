//! Handlers, and the cluster manager behind those that fence: it keeps who alone may be promoted.
//!
//! A handler may fail in any way, be late, or never answer; what it claims is true: a peer that was shot is dead, and
//! one that counts as outdated is not promoted by anybody.

use crate::cluster::{Cluster, Event, Input, configuration};
use crate::plan::Step;
use std::collections::{BTreeMap, BTreeSet};
use units::Duration;
use urbd_core::decide::Handler;
use urbd_core::{Command, HandlerCall};
use wire::{DiskState, Role};

/// How a handler for fencing ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// It shoots the peer.
    Shot,
    /// It keeps the peer from being promoted; says what it knows of it.
    Constrained,
    /// It fails with this exit status.
    Failed(i32),
}

/// Handlers that have not ended, by node and call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running {
    calls: BTreeSet<(usize, u64)>,
    hung: BTreeSet<(usize, u64)>,
    /// Those that a resync waits for: one at a time per volume of a node.
    before_resync: BTreeMap<(usize, u64), HandlerCall>,
    /// Faults are over: they are quick, and succeed.
    mended: bool,
}

impl Running {
    pub(crate) fn ended(&mut self, n: usize, id: u64) {
        self.calls.remove(&(n, id));
        self.before_resync.remove(&(n, id));
    }

    pub(crate) fn died(&mut self, n: usize) {
        self.calls.retain(|(of, _)| *of != n);
        self.hung.retain(|(of, _)| *of != n);
        self.before_resync.retain(|(of, _), _| *of != n);
    }

    pub(crate) fn any(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Does one run that will not end by itself?
    pub(crate) fn hang(&self) -> bool {
        !self.hung.is_empty()
    }
}

impl Cluster {
    pub(crate) fn run_handler(&mut self, n: usize, id: u64, call: &HandlerCall) {
        if self.resyncs_wait_for(call) {
            if self.handlers.before_resync.iter().any(|((of, _), other)| *of == n && other.volume == call.volume) {
                self.fail(format!("n{n} calls {} beside one that has not ended", call.event));
            }
            self.handlers.before_resync.insert((n, id), call.clone());
        }
        if !self.setup.extras.handlers {
            if let Some((status, takes)) = self.next_end(call) {
                let ends = Event::Input(n, self.nodes[n].life, Input::Handler(id, status));
                return self.at(self.now + takes, ends);
            }
            let status = if call.event == Handler::FencePeer { self.setup.fence_exit } else { 0 };
            return self.input(n, Duration::from_millis(50), Input::Handler(id, status));
        }
        if call.event == Handler::UnfencePeer && self.only == Some(n) {
            self.only = None;
        }
        let life = self.nodes[n].life;
        self.handlers.calls.insert((n, id));
        let mended = self.handlers.mended;
        let most = if mended { 50 } else { [50, 1000, 20_000, 120_000][self.rng.below(4) as usize] };
        let ends = self.now + Duration(self.rng.below(most * 1_000_000));
        if !mended && self.rng.chance(1, 12) {
            self.handlers.hung.insert((n, id));
            return;
        }
        if call.event != Handler::FencePeer {
            let status = if mended { 0 } else { [0, 0, 1, 127, 255][self.rng.below(5) as usize] };
            return self.at(ends, Event::Input(n, life, Input::Handler(id, status)));
        }
        let answer = match self.rng.below(8) {
            _ if mended => Answer::Constrained,
            0 => Answer::Failed([0, 1, 2, 8, 42, 127, 255, -9][self.rng.below(8) as usize]),
            1 | 2 => Answer::Shot,
            _ => Answer::Constrained,
        };
        self.at(ends, Event::Fence(n, life, id, answer));
    }

    fn resyncs_wait_for(&self, call: &HandlerCall) -> bool {
        call.event != Handler::FencePeer && configuration(&self.setup, 0).handlers.contains(&call.event)
    }

    /// How the next call of a handler ends that the plan has something to say about.
    fn next_end(&mut self, call: &HandlerCall) -> Option<(i32, Duration)> {
        let ends = match call.event {
            Handler::BeforeResyncTarget => &mut self.setup.before_target,
            Handler::BeforeResyncSource => &mut self.setup.before_source,
            _ => return None,
        };
        if ends.len() > 1 { Some(ends.remove(0)) } else { ends.first().copied() }
    }

    /// A handler does what it is for, and answers.
    pub(crate) fn fence(&mut self, n: usize, life: u32, id: u64, answer: Answer) {
        if self.nodes[n].life != life {
            // Its node has died, and it with it.
            return;
        }
        let other = 1 - n;
        let status = match answer {
            Answer::Failed(status) => status,
            Answer::Shot => {
                self.die(other, true);
                self.at(self.now + Duration::from_secs(10), Event::Step(Step::Start(other)));
                7
            }
            Answer::Constrained if self.only == Some(other) => 1,
            Answer::Constrained => self.constrain(n),
        };
        self.trace.note(self.now, || format!("fence-peer of n{n}: {answer:?}, {status}"));
        self.input(n, Duration::from_millis(1), Input::Handler(id, status));
    }

    /// Nobody but this node may be promoted from now on. Returns the exit status that tells of the peer.
    fn constrain(&mut self, n: usize) -> i32 {
        let peer = &self.nodes[1 - n];
        let word = |f: fn(&wire::StateWord) -> bool| peer.volumes.iter().all(|v| v.word.as_ref().is_some_and(f));
        if peer.core.is_some() && word(|w| w.role == Role::Primary) {
            return 6;
        }
        self.only = Some(n);
        if peer.core.is_none() {
            5
        } else if word(|w| w.disk == DiskState::Inconsistent) {
            3
        } else {
            4
        }
    }

    /// A cluster manager promotes nobody whose peer has fenced it.
    pub(crate) fn cluster_manager_allows(&self, n: usize, command: &Command) -> bool {
        !matches!(command, Command::Primary { force: false }) || self.only.is_none_or(|only| only == n)
    }

    /// Somebody ends the handlers that hang, and the constraint.
    pub(crate) fn end_handlers(&mut self) {
        for (n, id) in std::mem::take(&mut self.handlers.hung) {
            self.input(n, Duration::from_millis(1), Input::Handler(id, -9));
        }
        self.handlers.mended = true;
        self.only = None;
    }
}
