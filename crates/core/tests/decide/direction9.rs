//! Which way data goes after a split brain, and of a node that was told to discard its data.

use urbd_core::decide::direction9::{Input, wanted};
use urbd_core::decide::split_brain::{Policies, Side};
use urbd_core::decide::uuid9::Strategy;
use urbd_core::decide::{DiskState, Reason, Role};
use wire::AfterSplitBrain;

const SIDE: Side =
    Side { role: Role::Secondary, disk: DiskState::UpToDate, discard_my_data: false, was_primary: false, changes: 1 };

const INPUT: Input = Input {
    quorate: None,
    found: Strategy::SplitBrainAutoRecover,
    rule: Reason::BitmapBoth,
    protocol: 124,
    me: SIDE,
    peer: SIDE,
    policies: Policies {
        none: AfterSplitBrain::Disconnect,
        one: AfterSplitBrain::Disconnect,
        two: AfterSplitBrain::Disconnect,
    },
    always_asbp: false,
    resolve_conflicts: true,
};

const DISCARDS: Side = Side { discard_my_data: true, ..SIDE };

#[test]
fn one_that_discards_its_data_is_the_target() {
    assert_eq!(wanted(&INPUT).0, Strategy::SplitBrainDisconnect);
    assert_eq!(wanted(&Input { me: DISCARDS, ..INPUT }).0, Strategy::TargetUseBitmap);
    assert_eq!(wanted(&Input { peer: DISCARDS, ..INPUT }).0, Strategy::SourceUseBitmap);
    assert_eq!(wanted(&Input { me: DISCARDS, peer: DISCARDS, ..INPUT }).0, Strategy::SplitBrainDisconnect);
    let full = Input { found: Strategy::SplitBrainDisconnect, ..INPUT };
    assert_eq!(wanted(&Input { me: DISCARDS, ..full }).0, Strategy::TargetSetBitmap);
}

#[test]
fn it_goes_back_to_older_data_unless_that_is_none() {
    let source = Input { found: Strategy::SourceUseBitmap, me: DISCARDS, ..INPUT };
    assert_eq!(wanted(&source), (Strategy::TargetUseBitmap, Reason::DiscardMyData));
    assert_eq!(wanted(&Input { protocol: 120, ..source }).0, Strategy::SourceUseBitmap);
    let bad = Side { disk: DiskState::Inconsistent, ..SIDE };
    assert_eq!(wanted(&Input { peer: bad, ..source }).0, Strategy::SourceUseBitmap);
    let target = Input { found: Strategy::TargetSetBitmap, me: SIDE, peer: DISCARDS, ..INPUT };
    assert_eq!(wanted(&target).0, Strategy::SourceSetBitmap);
}

/// No policy has a disk that lacks something overwrite a better one; a person may.
#[test]
fn no_policy_chooses_the_worse_disk() {
    let policies = Policies { none: AfterSplitBrain::DiscardZeroChanges, ..INPUT.policies };
    let unchanged = Side { changes: 0, ..SIDE };
    let good = Input { me: unchanged, policies, ..INPUT };
    assert_eq!(wanted(&good).0, Strategy::TargetUseBitmap);
    for disk in [DiskState::Inconsistent, DiskState::Outdated] {
        let worse = Side { disk, ..SIDE };
        let chosen = wanted(&Input { peer: worse, ..good });
        assert_eq!(chosen, (Strategy::SplitBrainDisconnect, Reason::OutdatedWouldWin));
        let told = Input { me: Side { discard_my_data: true, ..unchanged }, peer: worse, ..good };
        assert_eq!(wanted(&told).0, Strategy::TargetUseBitmap);
        // As good as the other one: it may.
        let both = Input { me: Side { disk, ..unchanged }, peer: worse, ..good };
        assert_eq!(wanted(&both).0, Strategy::TargetUseBitmap);
    }
}

/// The Primary that would lose is left to people, and these have chosen: both nodes come to the same.
#[test]
fn a_person_chooses_where_a_primary_would_have_to_be_demoted() {
    let policies = Policies {
        none: AfterSplitBrain::DiscardLeastChanges,
        one: AfterSplitBrain::CallPriLost,
        two: AfterSplitBrain::CallPriLost,
    };
    let primary = Side { role: Role::Primary, ..SIDE };
    let at_primary = Input { me: primary, peer: DISCARDS, policies, ..INPUT };
    assert_eq!(wanted(&at_primary), (Strategy::SourceUseBitmap, Reason::DiscardMyData));
    let at_other = Input { me: DISCARDS, peer: primary, policies, resolve_conflicts: false, ..INPUT };
    assert_eq!(wanted(&at_other), (Strategy::TargetUseBitmap, Reason::DiscardMyData));
    let nobody = Input { me: SIDE, ..at_other };
    assert_eq!(wanted(&nobody), (Strategy::SourceUseBitmap, Reason::TieBroken));
}

/// A Primary by force beside a disk that is worthless, though of a newer generation.
#[test]
fn no_inconsistent_disk_overwrites_a_good_primary() {
    let bad = Side { disk: DiskState::Inconsistent, ..SIDE };
    let forced = Side { role: Role::Primary, ..SIDE };
    let source = Input { found: Strategy::SourceUseBitmap, rule: Reason::BitmapSelf, me: bad, peer: forced, ..INPUT };
    assert_eq!(wanted(&source), (Strategy::TargetSetBitmap, Reason::DiskStateDecides));
    let target = Input { found: Strategy::TargetUseBitmap, rule: Reason::BitmapPeer, me: forced, peer: bad, ..INPUT };
    assert_eq!(wanted(&target), (Strategy::SourceSetBitmap, Reason::DiskStateDecides));
    assert_eq!(wanted(&Input { me: SIDE, ..target }).0, Strategy::TargetUseBitmap);
    let worse = Side { disk: DiskState::Outdated, ..forced };
    assert_eq!(wanted(&Input { me: worse, ..target }).0, Strategy::TargetUseBitmap);
    let better = Side { disk: DiskState::Outdated, ..SIDE };
    assert_eq!(wanted(&Input { peer: better, ..target }).0, Strategy::TargetUseBitmap);
}

fn sides() -> impl Iterator<Item = Side> {
    let flags = [false, true];
    let roles = [Role::Secondary, Role::Primary];
    let all = roles.into_iter().flat_map(move |role| flags.map(|discard| (role, discard)));
    let all = all.flat_map(move |(role, discard)| flags.map(|was| (role, discard, was)));
    let all = all.flat_map(|of| [0, 1, 2].map(|changes| (of, changes)));
    all.map(|((role, discard_my_data, was_primary), changes)| Side {
        role,
        discard_my_data,
        was_primary,
        changes,
        disk: DiskState::UpToDate,
    })
}

/// Whatever the policies, both nodes come to the same.
#[test]
fn the_verdicts_of_both_nodes_mirror_each_other() {
    use AfterSplitBrain as P;
    let none = [P::Disconnect, P::DiscardYoungerPrimary, P::DiscardOlderPrimary, P::DiscardZeroChanges];
    let one = [P::Disconnect, P::Consensus, P::ViolentlyAs0pri, P::DiscardSecondary];
    let mut decided = 0;
    for (none, one) in none.into_iter().chain([P::DiscardLeastChanges]).flat_map(|n| one.map(|o| (n, o))) {
        let policies = Policies { none, one, two: P::ViolentlyAs0pri };
        for (me, peer) in sides().flat_map(|me| sides().map(move |peer| (me, peer))) {
            for found in [Strategy::SplitBrainAutoRecover, Strategy::SplitBrainDisconnect] {
                let here = Input { found, me, peer, policies, always_asbp: true, ..INPUT };
                let there = Input { me: peer, peer: me, resolve_conflicts: false, ..here };
                let (here, there) = (wanted(&here).0, wanted(&there).0);
                let mirrored = here.reverse().unwrap_or(here);
                assert_eq!(mirrored, there, "{me:?} {peer:?} {policies:?}");
                decided += u32::from(here.direction().is_some());
            }
        }
    }
    assert!(decided > 1000, "{decided}");
}
