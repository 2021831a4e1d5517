//! The tests of these tests: each of these wrong versions of a rule must be noticed by one of them.

use crate::{again, comparing, holes, log_room, order, overdue, overtaking, strangers};
use urbd_core::{Layer, Mutant};

const CHECKS: &[(Mutant, fn())] = &[
    (Mutant::BarrierNeverOverdue, overdue::an_unanswered_barrier_is_overdue),
    (Mutant::OnlyPingsCount, overdue::who_sends_anything_is_alive),
    (Mutant::FencedByFormer, overdue::a_handler_of_a_former_connection_does_not_fence),
    (Mutant::EpochTooLong, overdue::an_epoch_has_max_epoch_size_writes_at_most),
    (Mutant::HoleInRing, holes::after_a_hole_in_the_log_everything_may_differ),
    (Mutant::AttachOverHole, holes::after_a_hole_in_the_log_everything_may_differ),
    (Mutant::ResyncWriteOvertaken, overtaking::a_write_waits_for_the_resync_of_its_block),
    (Mutant::AbandonedLosesPlace, overtaking::a_write_waits_for_what_an_ended_resync_still_writes),
    (Mutant::AgainAnyGeneration, again::if_the_peer_was_primary_meanwhile_it_fails),
    (Mutant::AgainAwaitsNobody, again::beside_its_peer_it_is_primary_again_in_the_same_generation),
    (Mutant::AgainForcesBad, again::nobody_goes_on_with_a_disk_that_was_given_up_before),
    (Mutant::AgainOnPeersNewer, again::nobody_goes_on_without_a_disk_with_what_the_peer_has_written_since),
    (Mutant::AgainAnyPeerFollows, again::nobody_goes_on_with_data_that_does_not_come_from_what_was_in_use),
    (Mutant::AgainResumedForEver, again::what_the_administrator_has_said_counts_once),
    (Mutant::AnyAckClears, comparing::both_know_the_same_of_a_block_that_was_different_and_is_written),
    (Mutant::ShortBlockRefused, comparing::the_last_block_is_compared_though_it_is_short),
    (Mutant::ShortBlockUnverified, comparing::the_last_block_is_compared_though_it_is_short),
    (Mutant::DigestBeforeWrite, comparing::a_digest_is_taken_when_the_peers_older_writes_are_down),
    (Mutant::DigestBesideWrite, comparing::a_write_waits_for_the_digest_of_its_block),
    (Mutant::IdleRoomTwice, log_room::what_a_request_needs_itself_is_no_room_for_it),
    (Mutant::TransactionsDoNotWrap, log_room::after_the_last_number_comes_the_first),
    (Mutant::EpochFlushCoversLater, order::the_flush_of_an_epoch_covers_what_was_written_before_it_began),
    (Mutant::OverlapsReordered, order::what_overlaps_gets_to_the_disk_as_it_came),
    (Mutant::FencedWhileConnected, overdue::a_peer_that_is_back_is_not_fenced),
    (Mutant::VacantUnmarked, strangers::writes_are_marked_for_everybody_but_the_peer),
    (Mutant::NumbersDoNotWrap, behind_the_last_number_comes_the_first),
];

fn behind_the_last_number_comes_the_first() {
    assert!(units::is_after(1, u32::MAX) && !units::is_after(u32::MAX, 1));
}

#[test]
fn every_wrong_rule_of_a_pair_is_noticed() {
    let survivors = Mutant::unnoticed(Layer::Pair, CHECKS);
    assert!(survivors.is_empty(), "no test notices that these rules are broken: {survivors:#?}");
}
