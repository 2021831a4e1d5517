//! The simulator's command line.

use std::fs;
use std::process::{Command, Output, Stdio};

fn call(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_urbd-lab")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn lines(arguments: &[&str]) -> Vec<String> {
    let output = call(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn clusters_are_simulated() {
    let dir = tempfile::tempdir().unwrap();
    let passed = lines(&["sim", "--seed", "3:0,1,2,3,4,5,6,7"]);
    assert!(passed.last().unwrap().starts_with("seed 3 passed: "), "{passed:?}");
    let once = lines(&["sim", "--seed", "3", "--trace"]);
    assert!(once.len() > 100 && once == lines(&["sim", "--seed", "3", "--trace"]), "the same seed, the same run");
    let many = lines(&["sim", "--seeds", "3", "--first", "5", "--jobs", "1"]);
    assert!(many.last().unwrap().starts_with("3 seeds, 0 failed; "), "{many:?}");
    let scenario = lines(&["sim", "--scenario", "split-brain-is-refused", "--seed", "1"]);
    assert!(scenario[0].ends_with(", seed 1: passed"), "{scenario:?}");
    let ledger = dir.path().join("ledger");
    for _ in 0..2 {
        lines(&["sim", "--hours", "0.00003", "--jobs", "1", "--ledger", ledger.to_str().unwrap()]);
    }
    let kept = fs::read_to_string(&ledger).unwrap();
    let seeds = kept.lines().find_map(|line| line.strip_prefix("seeds ")).unwrap().parse::<u64>().unwrap();
    assert!(seeds >= 2, "the second run goes on behind the first: {kept}");
}

#[test]
fn what_the_simulator_cannot_do_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("ledger");
    fs::write(&broken, "seeds many\n").unwrap();
    let broken = broken.to_str().unwrap();
    let table: [(&[&str], i32, &str); 7] = [
        (&["--seed", "x"], 1, "N[+LUCK]"),
        (&["--seed", "1", "--watch", "3"], 1, "VOLUME:SECTOR"),
        (&["--hours", "1"], 1, "--ledger"),
        (&["--shrink", "1"], 1, "need --seed"),
        (&["--seeds", "2", "--jobs", "0"], 1, "at least 1"),
        (&["--scenario", "no-such"], 20, "no scenario"),
        (&["--hours", "1", "--ledger", broken], 20, "not a line of a ledger"),
    ];
    for (arguments, status, words) in table {
        let arguments = [&["sim"], arguments].concat();
        assert_eq!(call(&arguments).status.code().unwrap(), status, "{arguments:?}");
        let complaint = String::from_utf8(call(&arguments).stderr).unwrap();
        assert!(complaint.contains(words), "{arguments:?}: {complaint}");
    }
}
