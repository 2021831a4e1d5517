//! The tests of these tests: each of these wrong versions of a rule must be noticed by one of them.

use crate::vectors;
use units::mutant::{Layer, Mutant};

const CHECKS: &[(Mutant, fn())] = &[
    (Mutant::ForgottenFromNow, vectors::v09_rotation_follows_the_kernel),
    (Mutant::SlotCountsFromNow, vectors::v09_rotation_follows_the_kernel),
    (Mutant::ComingUnwritten, vectors::what_is_to_come_is_stored_for_all),
];

#[test]
fn every_wrong_rule_of_metadata_is_noticed() {
    let survivors = Mutant::unnoticed(Layer::Metadata, CHECKS);
    assert!(survivors.is_empty(), "no test notices that these rules are broken: {survivors:#?}");
}
