//! The pure half: whatever classes the votes know, what is foretold of this node's votes is what counting says when the
//! classes have become what the loss makes of them. `crates/sim/tests/what_if.rs` drives whole nodes.

use super::*;
use crate::config::Fencing;
use crate::decide::quorum::{Class, Count, QuorumConfig, Threshold, tally};
use crate::members::{Peers, Volumes};

const V: VolumeNr = VolumeNr(0);

fn node(n: usize) -> NodeId {
    NodeId::new(n as u8).expect("a node id")
}

/// Another node that is of this class for one with a disk that has quorum.
fn peer(class: Class) -> (PeerState, PairFacts, bool) {
    let there = |disk| together(disk, Role::Secondary, true);
    let away = |disk| PairState { disk, ..PairState::UNKNOWN };
    let (pair, part, member) = match class {
        Class::UpToDate => (there(D::UpToDate), Part::Disk, true),
        Class::Present => (there(D::Inconsistent), Part::Disk, true),
        Class::Diskless => (there(D::Diskless), Part::Tiebreaker, true),
        Class::Outdated => (away(D::Outdated), Part::Disk, false),
        Class::Quorumless => (away(D::DUnknown), Part::Disk, false),
        Class::MissingDiskless => (away(D::DUnknown), Part::Tiebreaker, false),
        Class::Unknown | Class::Nobody => (away(D::DUnknown), Part::Disk, true),
    };
    let connection = if pair.replication == Replication::Off { N::Connecting } else { N::Connected };
    let volumes: Volumes<PairState> = [(V, pair)].into_iter().collect();
    (PeerState { connection, unfenced: false, volumes }, super::member(part), member)
}

fn cluster(own: Class, classes: &[Class], quorum: QuorumConfig, had: bool) -> (State, Facts) {
    let built: Vec<_> = classes.iter().map(|class| peer(*class)).collect();
    let mut state = State::new(node(0), [], &[V]);
    state.volumes[V].disk = if own == Class::UpToDate { D::UpToDate } else { D::Inconsistent };
    state.volumes[V].standing = if had { Standing::Has } else { Standing::Lacks(quorum.without()) };
    let mut peers = Peers::default();
    for (n, (peer, facts, member)) in (1..).zip(built) {
        state.members.put(node(n), member);
        state.peers.insert(node(n), peer);
        let volumes = [(V, facts)].into_iter().collect();
        peers.insert(node(n), PeerFacts { two_primaries: false, verify_alg: false, protocol: 124, volumes });
    }
    let volume = VolumeFacts {
        open: false,
        exposed_is_current: true,
        at_attach: D::UpToDate,
        call_local_io_error: false,
        part: Part::Disk,
        unconfigured: NodeMask::default(),
        unconfigured_outdated: NodeMask::default(),
    };
    let facts = Facts {
        fencing: Fencing::default(),
        on_no_data: OnNoData::IoError,
        quorum,
        state_sent: false,
        holds_back: false,
        volumes: [(V, volume)].into_iter().collect(),
        peers,
    };
    (state, facts)
}

/// What a node that is lost becomes for the others: it may be promoted, and have quorum; not with a bad disk.
fn lost(class: Class) -> Class {
    match class {
        Class::Present => Class::Outdated,
        Class::Diskless => Class::MissingDiskless,
        _ => Class::Unknown,
    }
}

/// All of up to five nodes, each in each class, this one's copy good or not, with and without quorum before.
#[test]
fn votes_are_foretold_as_they_are_counted_in_every_state() {
    let (majority, two) = (Threshold::Majority, Threshold::AtLeast(2));
    let asked = [(majority, Threshold::Off), (majority, majority), (Threshold::All, Threshold::Off), (two, two)];
    let mut compared = 0;
    for peers in 1..=4_u32 {
        for code in 0..7_u32.pow(peers) {
            let classes: Vec<Class> = (0..peers).map(|n| Class::COUNTED[(code / 7_u32.pow(n) % 7) as usize]).collect();
            if !classes.is_sorted_by_key(|class| Class::COUNTED.iter().position(|other| other == class)) {
                continue;
            }
            for (nodes, up_to_date) in asked {
                for (own, had) in [(Class::UpToDate, true), (Class::Present, true), (Class::UpToDate, false)] {
                    let quorum = QuorumConfig::new(nodes, up_to_date, OnNoQuorum::SuspendIo);
                    compared += compare(own, &classes, quorum, had);
                }
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
}

fn compare(own: Class, classes: &[Class], quorum: QuorumConfig, had: bool) -> usize {
    let (state, facts) = cluster(own, classes, quorum, had);
    let mut compared = 0;
    for (n, class) in (1..).zip(classes) {
        let cases = [
            (Loss::Peer(node(n)), Some(lost(*class))),
            (Loss::Link(node(n)), Some(lost(*class))),
            (Loss::PeerDisk(node(n)), (*class != Class::Diskless).then_some(Class::Present)),
        ];
        let cases = cases.into_iter().filter_map(|(loss, becomes)| Some((loss, becomes?)));
        for (loss, becomes) in cases.filter(|_| state.is_connected(node(n))) {
            let mut count = Count::default();
            count.note(own);
            for (m, class) in (1..).zip(classes) {
                // Without quorum nobody is known to have none.
                let class = if m == n { becomes } else { *class };
                count.note(if class == Class::Quorumless && !had { Class::Unknown } else { class });
            }
            let counted = tally(&count, &quorum, had, false);
            let said = foretold(&state, &facts, node(0), loss);
            let here = said[0].here.expect("this node lives on");
            let Some(votes) = here.votes else { continue };
            if (here.quorum == Answer::Yes) == (counted.verdict != Verdict::Lacks) {
                assert_eq!(votes, counted, "{own:?} {classes:?} {quorum:?} {had} {loss:?}");
            } else {
                // What those that are left agree on afterwards takes quorum that a draw gave.
                assert_eq!(
                    counted.verdict,
                    Verdict::ByTiebreaker,
                    "{own:?} {classes:?} {quorum:?} {had} {loss:?} {here:?}"
                );
            }
            compared += 1;
        }
    }
    compared
}
