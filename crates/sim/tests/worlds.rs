//! Small worlds of three nodes (`src/worlds.rs`): after all have met there is one content, and nobody who lacks what
//! was acknowledged was copied from.

use urbd_sim::{Options, WORLDS, count_worlds, run_seed};

/// One of so many is tried; with `WORLDS=all` each.
const SHARE: u64 = 15;

#[test]
fn all_histories_end_well() {
    let count = count_worlds();
    let share = if std::env::var("WORLDS").is_ok_and(|which| which == "all") { 1 } else { SHARE };
    let failure = |seed| run_seed(seed, Options::default()).failure.map(|text| format!("seed {seed}: {text}"));
    let tried = (WORLDS..WORLDS + 3 * count).step_by(share as usize);
    let failed: Vec<String> = tried.filter_map(failure).collect();
    assert!(failed.is_empty(), "{} of {count} worlds, with three protocols each: {failed:#?}", failed.len());
}
