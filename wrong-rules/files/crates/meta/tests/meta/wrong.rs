//! The tests of these tests: each of these wrong versions of a rule must be noticed by one of them.

use crate::vectors;
use std::panic::catch_unwind;
use units::mutant::{Layer, Mutant, choose_mutant};

const CHECKS: &[(Mutant, fn())] = &[
    (Mutant::ForgottenFromNow, vectors::v09_rotation_follows_the_kernel),
    (Mutant::SlotCountsFromNow, vectors::v09_rotation_follows_the_kernel),
    (Mutant::ComingUnwritten, vectors::what_is_to_come_is_stored_for_all),
];

#[test]
fn every_wrong_rule_of_metadata_is_noticed() {
    let mut survivors = Vec::new();
    for mutant in Mutant::tried().filter(|m| m.layer() == Layer::Metadata) {
        let check = CHECKS.iter().find(|(of, _)| *of == mutant).expect("it has a check").1;
        assert!(catch_unwind(check).is_ok(), "{}: fails without it", mutant.name());
        choose_mutant(Some(mutant));
        let found = catch_unwind(check).is_err();
        choose_mutant(None);
        println!("{:32} {}", mutant.name(), if found { "noticed" } else { "NOT NOTICED" });
        survivors.extend((!found).then(|| mutant.rule()));
    }
    assert!(survivors.is_empty(), "no test notices that these rules are broken: {survivors:#?}");
}
