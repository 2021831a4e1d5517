//! What `urbd what-if` says is what happens: all states of two to four nodes, every single loss, whatever is asked for;
//! of five nodes those with `quorum majority`. The pure half of this, with five nodes and all that may be asked for, is
//! in `crates/core/src/decide/what_if/tests.rs`.

use urbd_sim::foretelling::{Compared, asked_for, scenes};

fn agrees(nodes: usize, quorum: usize) {
    let mut compared = Compared::default();
    let asked = asked_for()[quorum];
    scenes(nodes, asked, quorum.is_multiple_of(2)).iter().for_each(|scene| scene.compare(&mut compared));
    let Compared { losses, answers, not_known, other_voters, classes, wrong } = compared;
    println!(
        "{nodes} nodes, {asked:?}: {losses} losses, {answers} answers, {not_known} not known, {} classes, {other_voters} \
         times others counted",
        classes.len()
    );
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(9)].join("\n\n"));
    assert!(answers > 4 * not_known && losses > 30);
}

#[test]
fn two_and_three_nodes() {
    (2..=3).for_each(|nodes| (0..asked_for().len()).for_each(|quorum| agrees(nodes, quorum)));
}

#[test]
fn four_nodes() {
    (0..asked_for().len()).for_each(|quorum| agrees(4, quorum));
}

#[test]
fn five_nodes_of_which_a_majority_writes() {
    agrees(5, 0);
}
