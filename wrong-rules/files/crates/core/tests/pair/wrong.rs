//! The tests of these tests: each of these wrong versions of a rule must be noticed by one of them.

use crate::overdue;
use std::panic::catch_unwind;
use urbd_core::{Layer, Mutant, choose_mutant};

const CHECKS: &[(Mutant, fn())] = &[
    (Mutant::BarrierNeverOverdue, overdue::an_unanswered_barrier_is_overdue),
    (Mutant::OnlyPingsCount, overdue::who_sends_anything_is_alive),
    (Mutant::FencedByFormer, overdue::a_handler_of_a_former_connection_does_not_fence),
    (Mutant::EpochTooLong, overdue::an_epoch_has_max_epoch_size_writes_at_most),
];

#[test]
fn every_wrong_rule_of_a_pair_is_noticed() {
    let mut survivors = Vec::new();
    for mutant in Mutant::tried().filter(|m| m.layer() == Layer::Pair) {
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
