//! The tests of these tests: every wrong version of a decision must be noticed by one of them.

use crate::{disks, handshake84, kernel_trace, life, protocol, requests, rules, sizes, uuid84, worlds};
use std::panic::{catch_unwind, set_hook, take_hook};
use std::thread;
use urbd_core::{Layer, Mutant, choose_mutant};

/// A check with its name; the quick ones first.
type Check = (&'static str, fn());

const CHECKS: &[Check] = &[
    ("table uuid84", uuid84::table),
    ("table handshake84", handshake84::table),
    ("table rules", rules::table),
    ("table attach84", disks::attach),
    ("table io_error", disks::io_errors),
    ("table fencing", disks::fencing),
    ("table routing", requests::routing),
    ("table roles", requests::role_changes),
    ("table protocol", protocol::table),
    ("table sizes", sizes::table),
    ("trace of the kernel", kernel_trace::rotation_follows_the_kernel),
    ("all small pairs mirror", uuid84::all_small_pairs_mirror),
    ("crash and role combinations mirror", uuid84::all_crash_and_role_combinations_mirror),
    ("primary bits never matter", uuid84::primary_bits_never_matter),
    ("both ends agree", handshake84::both_ends_agree_and_nothing_unsafe_happens),
    ("sanitising is stable", rules::sanitising_is_stable),
    ("wishes keep the state legal", rules::wishes_keep_the_state_legal),
    ("a lost peer starts a generation", rules::a_primary_that_loses_a_peers_data_starts_a_generation),
    ("writes reach good data", requests::every_admitted_write_reaches_good_data),
    ("no history loses a write", life::no_history_loses_an_acknowledged_write),
    ("small worlds", worlds::every_short_history_ends_well),
];

/// What the small worlds find without any table: they know nothing but which copy lacks what. Not what is held by
/// another rule as well (bitmaps reach back further than the generations that rules 60 and 80 look at; a Primary that
/// attaches alone begins a generation, so that an old disk is not taken for the newer one when the two meet), or is
/// only a nuisance. Nor what users read meanwhile.
const FOUND_BY_WORLDS: &[Mutant] = &[
    Mutant::IgnoreCrashedPrimary,
    Mutant::SplitBrainBySource,
    Mutant::InconsistentMayWin,
    Mutant::PrimaryOverwritten,
    Mutant::KeepGeneration,
    Mutant::DisklessRiseUnnoticed,
    Mutant::DiscardActivityLog,
];

/// The first check that objects to a mutant.
fn objection(mutant: Option<Mutant>) -> Option<&'static str> {
    choose_mutant(mutant);
    worlds::forget_answers();
    let found = CHECKS.iter().find(|check| catch_unwind(check.1).is_err());
    choose_mutant(None);
    worlds::forget_answers();
    found.map(|(name, _)| *name)
}

fn try_all() -> Vec<&'static str> {
    assert_eq!(objection(None), None, "without a mutant nothing may fail");
    let mut survivors = Vec::new();
    for mutant in Mutant::tried().filter(|m| m.layer() == Layer::Decision) {
        let found = objection(Some(mutant));
        println!("{:32} caught by {}", mutant.name(), found.unwrap_or("NOBODY"));
        survivors.extend(found.is_none().then(|| mutant.rule()));
    }
    survivors
}

#[test]
fn every_wrong_decision_is_caught() {
    const NAME: &str = "mutants";
    let hook = take_hook();
    set_hook(Box::new(move |panic| {
        if thread::current().name() != Some(NAME) {
            hook(panic);
        }
    }));
    let tried = thread::Builder::new().name(NAME.to_owned()).spawn(try_all).expect("a thread can be started");
    let survivors = tried.join().expect("all decisions are right without a mutant");
    assert!(survivors.is_empty(), "no test notices that these rules are broken: {survivors:#?}");
}

#[test]
fn small_worlds_find_wrong_decisions() {
    let survivors: Vec<_> = Mutant::tried()
        .filter(|mutant| FOUND_BY_WORLDS.contains(mutant))
        .filter(|mutant| match worlds::worlds_object_to(*mutant) {
            Some(text) => {
                println!("{:32} {}", mutant.name(), text.lines().next().unwrap_or_default());
                false
            }
            None => true,
        })
        .collect();
    assert!(survivors.is_empty(), "no world notices that these rules are broken: {survivors:?}");
}
