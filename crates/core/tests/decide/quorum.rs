use crate::table::{self, Args};
use urbd_core::decide::DiskState as D;
use urbd_core::decide::quorum::{Class, Count, Known, Seen, Tally, Verdict, Voter, class_of, tally};
use urbd_core::{OnNoQuorum, Part, QuorumConfig, Threshold};

fn threshold(args: &Args, key: &str) -> Threshold {
    match args.word(key).as_deref() {
        None | Some("off") => Threshold::Off,
        Some("majority") => Threshold::Majority,
        Some("all") => Threshold::All,
        Some(number) => Threshold::AtLeast(number.parse().expect("a number")),
    }
}

fn count(args: &Args) -> Count {
    Count {
        up_to_date: args.number("up-to-date", 0),
        present: args.number("present", 0),
        diskless: args.number("diskless", 0),
        outdated: args.number("outdated", 0),
        quorumless: args.number("quorumless", 0),
        unknown: args.number("unknown", 0),
        missing_diskless: args.number("missing-diskless", 0),
    }
}

#[test]
fn votes_are_counted_as_the_table_says() {
    table::check("quorum", |command, args| {
        assert_eq!(command, "tally");
        let (nodes, up_to_date) = (threshold(args, "quorum"), threshold(args, "redundancy"));
        let config = QuorumConfig::new(nodes, up_to_date, OnNoQuorum::default());
        tally(&count(args), &config, args.flag("had"), args.flag("source")).to_string()
    });
}

/// Every way in which up to `nodes` can be of these classes.
fn each_count(nodes: u32, mut f: impl FnMut(&Count)) {
    for n in 1..=nodes {
        for mut code in 0..7_u32.pow(n) {
            let mut count = Count::default();
            for _ in 0..n {
                count.note(Class::COUNTED[(code % 7) as usize]);
                code /= 7;
            }
            f(&count);
        }
    }
}

const MAJORITY: QuorumConfig = QuorumConfig::new(Threshold::Majority, Threshold::Off, OnNoQuorum::SuspendIo);

fn has(count: &Count, config: &QuorumConfig, had: bool) -> bool {
    tally(count, config, had, false).verdict != Verdict::Lacks
}

/// Two halves of one cluster that do not see each other: what the one sees is unknown to the other.
#[test]
fn of_two_halves_that_know_nothing_of_each_other_one_has_quorum_at_most() {
    for disks in 1..=5_u32 {
        for here in 0..=disks {
            for (diskless, diskless_here) in (0..=3_u32).flat_map(|all| (0..=all).map(move |n| (all, n))) {
                let side = |up_to_date: u32, others: u32, diskless: u32, missing_diskless: u32| {
                    let count = Count { up_to_date, unknown: others, diskless, missing_diskless, ..Count::default() };
                    // Both had quorum: the worst case.
                    up_to_date > 0 && has(&count, &MAJORITY, true)
                };
                let other = diskless - diskless_here;
                let (a, b) =
                    (side(here, disks - here, diskless_here, other), side(disks - here, here, other, diskless_here));
                assert!(!(a && b), "{here} of {disks} disks, {diskless_here} of {diskless} without");
            }
        }
    }
}

/// More of what is good never loses quorum: a node that comes, or whose data becomes good.
#[test]
fn who_comes_or_gets_better_takes_no_quorum_away() {
    each_count(5, |count| {
        let have = |count: &Count| has(count, &MAJORITY, true);
        let better = |from: fn(&mut Count) -> &mut u32, to: fn(&mut Count) -> &mut u32| {
            let mut after = *count;
            if *from(&mut after) == 0 {
                return;
            }
            *from(&mut after) -= 1;
            *to(&mut after) += 1;
            assert!(!have(count) || have(&after), "{count:?} has quorum, {after:?} has not");
        };
        better(|c| &mut c.present, |c| &mut c.up_to_date);
        better(|c| &mut c.unknown, |c| &mut c.up_to_date);
        better(|c| &mut c.unknown, |c| &mut c.quorumless);
        better(|c| &mut c.unknown, |c| &mut c.outdated);
        better(|c| &mut c.missing_diskless, |c| &mut c.diskless);
    });
}

/// What is enough without having had quorum is enough with it, and a tie is broken only by who had it.
#[test]
fn a_draw_is_decided_only_for_who_had_quorum() {
    each_count(5, |count| {
        for nodes in [Threshold::Majority, Threshold::All, Threshold::AtLeast(2)] {
            let config = QuorumConfig::new(nodes, Threshold::Off, OnNoQuorum::SuspendIo);
            let [without, with] = [false, true].map(|had| tally(count, &config, had, false));
            let draw = with.verdict == Verdict::ByTiebreaker;
            assert_ne!(without.verdict, Verdict::ByTiebreaker);
            assert!(draw || with.verdict == without.verdict, "{count:?}");
            assert!(!draw || count.diskless > 0 && without.verdict == Verdict::Lacks, "{count:?}");
            let Tally { seen, up_to_date, .. } = with;
            assert_eq!((seen, up_to_date), (count.up_to_date + count.present, count.up_to_date));
        }
    });
}

#[test]
fn each_node_is_of_the_class_that_the_specification_says() {
    let voter = Voter { known: Known::Yes, part: Part::Disk };
    let noted = Voter { known: Known::Outdated, ..voter };
    let client = Voter { part: Part::Tiebreaker, ..voter };
    let silent = Voter { part: Part::Client, ..voter };
    let (away, here) = (Seen::Away, Seen::Here);
    let rows = [
        (voter, away(D::DUnknown), true, false, Class::Unknown),
        (voter, away(D::DUnknown), true, true, Class::Quorumless),
        (voter, away(D::Outdated), true, true, Class::Outdated),
        (voter, away(D::Inconsistent), true, false, Class::Outdated),
        (voter, away(D::Diskless), true, false, Class::Outdated),
        (noted, away(D::DUnknown), true, true, Class::Outdated),
        (voter, here(D::UpToDate), true, false, Class::UpToDate),
        (voter, here(D::Consistent), true, false, Class::Present),
        (voter, here(D::Inconsistent), true, true, Class::Present),
        (voter, here(D::Outdated), true, false, Class::Present),
        (noted, here(D::UpToDate), true, false, Class::UpToDate),
        // A disk that was detached, and is to come back.
        (voter, here(D::Diskless), true, false, Class::Present),
        (voter, here(D::Diskless), false, false, Class::Diskless),
        (client, here(D::Diskless), true, false, Class::Diskless),
        (client, away(D::DUnknown), true, true, Class::MissingDiskless),
        (silent, here(D::Diskless), true, false, Class::Nobody),
        (silent, away(D::DUnknown), true, false, Class::Nobody),
        // Never connected, and no bitmap is kept for it.
        (Voter { known: Known::No, ..client }, away(D::DUnknown), true, false, Class::Nobody),
        (Voter { known: Known::No, ..voter }, away(D::DUnknown), false, false, Class::Unknown),
        (Voter { known: Known::No, ..voter }, here(D::UpToDate), false, false, Class::UpToDate),
    ];
    for (voter, seen, with_disk, left, class) in rows {
        assert_eq!(class_of(&voter, seen, with_disk, left), class, "{voter:?} {seen:?} {with_disk} {left}");
    }
}
