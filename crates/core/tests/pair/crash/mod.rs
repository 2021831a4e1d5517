//! The power fails at every moment of a core's life, and of what was on its way to the metadata any part is there: the
//! superblock must be an old or a new one, and whatever may differ from the peer must be in the activity log or the
//! bitmap that are found (`docs/spec/on-disk-format.md` 2.8, 3.7, 4.3, 9.2).
//!
//! Two cores live (writes, an outage, a resync, changes of role, a detached disk) on slow virtual disks, and a journal
//! has all that goes to metadata and data. After every event, of what was not durable every choice of sectors is made:
//! all of them up to nine pieces; beyond that none, all, some alone, all but some, and random ones. It is tried for
//! sectors of 512 and of 4096 bytes, formats v08 and v09, internal, external and indexed metadata, plain and striped
//! logs. Each state is read back; some are attached by a core, of which some crash once more while the log is applied.
//!
//! Two limits of the formats show. A v09 superblock is more than a sector, and has no checksum: with a disk that tears
//! blocks of 4096 bytes, the history and the records of peers 12 to 31 may be of another version than the rest; what
//! decides between two nodes is in the first sector, and is never mixed. And a log that was torn while it was being
//! emptied makes everything count as different: a full resync that a second loss of power costs.

pub(crate) mod journal;
mod states;

use crate::rig::{Pair, Shape, VOLUME};
use journal::Pace;
use meta::{AlShape, MetaDisk, Version};
use states::Disk;
use std::ops::Range;
use units::{Duration, Rng};
use urbd_core::{Command, ResourceConfig};
use wire::{ConnState, Role};

const MINUTE: Duration = Duration::from_secs(60);

fn small_log(cfg: &mut ResourceConfig) {
    let disk = cfg.volumes[0].disk.as_mut().expect("a disk");
    disk.al_extents = 67;
    disk.resync.plan_ahead = 0;
    disk.resync.rate = 4 << 20;
}

/// Writes, an outage, a resync, changes of role, a disk that is let go of and taken back.
fn live(pair: &mut Pair, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut anywhere = move || rng.below(120) * 1024 + rng.below(16);
    let connected = |p: &Pair| p.states() == [ConnState::Connected; 2];
    pair.writes(60, 8, &mut anywhere);
    pair.unlink();
    pair.run(20);
    // More extents than the log has room for: some leave it while their blocks differ.
    pair.writes(120, 16, &mut anywhere);
    pair.link();
    pair.until(MINUTE, connected);
    pair.writes(40, 8, &mut anywhere);
    pair.command(0, Command::Secondary { force: false });
    pair.run(200);
    pair.command(0, Command::Primary { force: false });
    pair.until(MINUTE, |p| p.nodes[0].core.snapshot().role == Role::Primary);
    pair.writes(30, 8, &mut anywhere);
    pair.command(1, Command::Detach { volume: VOLUME, force: false });
    pair.run(200);
    pair.writes(30, 8, &mut anywhere);
    pair.command(1, Command::Attach { volume: VOLUME });
    pair.run(200);
    pair.until(MINUTE, connected);
    pair.unlink();
    pair.run(50);
    pair.writes(20, 8, &mut anywhere);
}

/// How much was tried.
#[derive(Clone, Copy, Default, Debug)]
struct Tried {
    states: u64,
    attached: u64,
}

/// # Errors
/// What a crash lost.
fn try_all(shape: Shape, seeds: Range<u64>) -> Result<Tried, String> {
    let mut tried = Tried::default();
    for seed in seeds {
        let mut pair = Pair::on(shape, false, small_log);
        pair.run(200);
        let mut disks = Vec::new();
        for (n, node) in pair.nodes.iter_mut().enumerate() {
            // A disk writes this much or nothing: both kinds are sold.
            disks.extend([512, 4096].map(|unit| (n, Disk::new(node, unit))));
            node.journal = Some(Vec::new());
            node.pace = Pace::random(seed * 2 + n as u64);
        }
        live(&mut pair, seed);
        for (n, disk) in &mut disks {
            let journal = pair.nodes[*n].journal.as_ref().expect("it was kept");
            let text = |text| format!("node {n}, seed {seed}, {shape:?}: {text}");
            disk.crash_everywhere(journal).map_err(text)?;
            tried.states += disk.states;
            tried.attached += disk.attached;
        }
    }
    Ok(tried)
}

fn must_survive(shape: Shape, seeds: Range<u64>) {
    let tried = try_all(shape, seeds).unwrap_or_else(|text| panic!("{text}"));
    println!("{shape:?}: {tried:?}");
    assert!(tried.states > 1000 && tried.attached > 10, "too few: {tried:?}");
}

#[test]
fn no_crash_loses_metadata_v08() {
    must_survive(Shape::DEFAULT, 0..1);
    must_survive(Shape { kind: MetaDisk::FlexExternal, ..Shape::DEFAULT }, 2..3);
    must_survive(Shape { kind: MetaDisk::Indexed(0), ..Shape::DEFAULT }, 3..4);
}

#[test]
fn no_crash_loses_metadata_v09() {
    let striped = AlShape::new(4, 2).expect("a shape");
    let shape = Shape { version: Version::V09, ..Shape::DEFAULT };
    must_survive(shape, 4..5);
    must_survive(Shape { al: striped, ..shape }, 6..7);
    must_survive(Shape { kind: MetaDisk::FlexExternal, al: striped, ..shape }, 7..8);
}
