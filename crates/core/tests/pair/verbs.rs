//! Whatever is asked in whatever state, and in whatever order: each command has its answer within 10 s, or within the
//! time-outs of the configuration where that is longer.

use crate::rig::{Pair, VOLUME};
use units::{Duration, NodeId};
use urbd_core::{Command, LinkDown, ResourceConfig};
use wire::Packet;

const LIMIT: Duration = Duration::from_secs(10);

fn config(cfg: &mut ResourceConfig) {
    let disk = cfg.volumes[0].disk.as_mut().expect("a disk");
    // What is begun here does not end by itself.
    disk.resync.plan_ahead = 0;
    disk.resync.rate = 4 << 10;
    let net = &mut cfg.connections[0];
    net.verify = Some("crc32c".to_owned());
    net.ping_int = Duration::from_secs(3);
    net.timeout = Duration::from_secs(1);
}

/// Every command, the ends of the process last.
fn verbs(peer: NodeId) -> Vec<Command> {
    let volume = VOLUME;
    let mut all = Vec::new();
    for force in [false, true] {
        all.extend([
            Command::Detach { volume, force },
            Command::Disconnect { peer, force },
            Command::Primary { force },
            Command::Secondary { force },
        ]);
    }
    for (discard_my_data, tentative) in [(false, false), (true, false), (false, true)] {
        all.push(Command::Connect { peer, discard_my_data, tentative });
    }
    for clear_bitmap in [false, true] {
        all.push(Command::NewCurrentUuid { volume, clear_bitmap });
    }
    all.extend([
        Command::Attach { volume },
        Command::invalidate(volume),
        Command::invalidate_remote(volume, peer),
        Command::PauseSync { volume },
        Command::ResumeSync { volume },
        Command::SuspendIo { volume },
        Command::ResumeIo { volume },
        Command::Outdate { volume },
        Command::Resize { volume, flags: wire::ResizeFlags::default() },
        Command::Verify { volume, peer: None, start: None, stop: None, repair: false },
        Command::Down(false),
        Command::Down(true),
    ]);
    all
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Connected,
    /// This node has disconnected.
    StandAlone,
    /// The peer has gone.
    Connecting,
    /// The peer says nothing more.
    Silent,
    /// The peer answers pings, but nothing that it is asked to agree to.
    Evasive,
    /// The other node gets everything from the first.
    Resync,
    /// The same, paused by the first.
    PausedResync,
    Verify,
    /// The first node has no disk.
    Diskless,
}

use State::{Connected, Connecting, Diskless, Evasive, PausedResync, Resync, Silent, StandAlone, Verify};

struct Verbs {
    pair: Pair,
    state: State,
    closed: [usize; 2],
}

impl Verbs {
    fn new(state: State, node: usize) -> Verbs {
        let mut pair = Pair::with(true, config);
        pair.nodes.iter_mut().for_each(|n| n.answers = Some(Vec::new()));
        let mut verbs = Verbs { pair, state: Connected, closed: [0; 2] };
        let peer = verbs.pair.nodes[node].peer;
        match state {
            Connected | Evasive | Silent => {}
            StandAlone => verbs.begin(node, Command::Disconnect { peer, force: false }),
            Connecting => {
                verbs.pair.unlink();
                verbs.state = Connecting;
            }
            Resync | PausedResync => verbs.begin(1, Command::invalidate(VOLUME)),
            Verify => {
                verbs.begin(0, Command::Verify { volume: VOLUME, peer: None, start: None, stop: None, repair: false })
            }
            Diskless => verbs.begin(0, Command::Detach { volume: VOLUME, force: false }),
        }
        if state == PausedResync {
            verbs.begin(0, Command::PauseSync { volume: VOLUME });
        }
        verbs.state = state;
        match state {
            Silent => verbs.pair.nodes[1 - node].lost = |_| true,
            Evasive => {
                let is_answer =
                    |packet: &Packet| matches!(packet, Packet::StateChgReply(_) | Packet::ConnStChgReply(_));
                verbs.pair.nodes[1 - node].lost = is_answer;
            }
            _ => {}
        }
        verbs
    }

    /// Does this and waits until it has come to rest.
    fn begin(&mut self, node: usize, command: Command) {
        self.pair.command_with_id(node, 0, command.clone());
        self.turns(50);
        let answers = self.pair.nodes[node].answers.as_mut().map(std::mem::take).unwrap_or_default();
        assert!(matches!(answers.as_slice(), [(_, Ok(()))]), "{command:?}: {answers:?}");
    }

    fn turns(&mut self, turns: usize) {
        for _ in 0..turns {
            self.pair.run(1);
            self.carry_links();
        }
    }

    /// What one node closes the other one loses; two that want a link get one.
    fn carry_links(&mut self) {
        let now = self.pair.now;
        for i in 0..2 {
            let closed = self.pair.nodes[i].notes.iter().filter(|n| **n == "link closed").count();
            if std::mem::replace(&mut self.closed[i], closed) != closed && self.state != Silent {
                self.pair.nodes[i].inbox.clear();
                let other = &mut self.pair.nodes[1 - i];
                if !other.stopped {
                    other.link_down(now, LinkDown::Closed);
                }
            }
        }
        let wanted = self.pair.nodes.iter().all(|n| n.link_wanted && !n.stopped);
        if wanted && !matches!(self.state, Connecting | Silent) {
            self.pair.link();
        }
    }

    /// Does `node` answer all of these commands in time, or is it gone?
    fn answers(&mut self, node: usize, ids: &[u64]) -> bool {
        let start = self.pair.now;
        loop {
            let n = &self.pair.nodes[node];
            let known = n.answers.as_deref().unwrap_or_default();
            if n.stopped || ids.iter().all(|id| known.iter().any(|(answered, _)| answered == id)) {
                return true;
            }
            let idle = self.pair.is_idle();
            if idle {
                let timer = self.pair.nodes.iter().filter(|n| !n.stopped).filter_map(|n| n.core.poll_timeout()).min();
                let Some(timer) = timer else { return false };
                self.pair.now = self.pair.now.max(timer);
            }
            if self.pair.now.since(start) > LIMIT {
                return false;
            }
            self.turns(1);
        }
    }
}

/// All pairs of commands to one node, the second one when the first has ended and while it has not.
fn all_pairs(state: State, node: usize) {
    let peer = Verbs::new(Connected, node).pair.nodes[node].peer;
    let mut hung = Vec::new();
    for first in verbs(peer) {
        for second in verbs(peer) {
            for at_once in [false, true] {
                let mut verbs = Verbs::new(state, node);
                verbs.pair.command_with_id(node, 11, first.clone());
                let mut good = at_once || verbs.answers(node, &[11]);
                if !verbs.pair.nodes[node].stopped {
                    verbs.pair.command_with_id(node, 12, second.clone());
                    good &= verbs.answers(node, &[11, 12]);
                }
                if !good {
                    hung.push(format!("{first:?}, {second:?}{}", if at_once { " at once" } else { "" }));
                }
            }
        }
    }
    assert!(hung.is_empty(), "no answer from node {node} in state {state:?}:\n{}", hung.join("\n"));
}

macro_rules! states {
    ($($name:ident $state:expr;)*) => {
        $(
            #[test]
            fn $name() {
                // The Primary, and the other one.
                all_pairs($state, 0);
                all_pairs($state, 1);
            }
        )*
    };
}

states! {
    every_pair_of_verbs_while_connected Connected;
    every_pair_of_verbs_while_stand_alone StandAlone;
    every_pair_of_verbs_while_connecting Connecting;
    every_pair_of_verbs_beside_a_silent_peer Silent;
    every_pair_of_verbs_beside_a_peer_that_agrees_to_nothing Evasive;
    every_pair_of_verbs_during_a_resync Resync;
    every_pair_of_verbs_during_a_paused_resync PausedResync;
    every_pair_of_verbs_during_a_verify Verify;
    every_pair_of_verbs_without_a_disk Diskless;
}
