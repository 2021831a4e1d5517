//! Two model nodes live through random outages, crashes, promotions and interrupted resyncs with lost packets. Only the
//! decisions and the UUID primitives of the crate are used. An oracle knows every acknowledged write.

use std::collections::BTreeSet;
use units::{Generation, Rng};
use urbd_core::decide::DiskState;
use urbd_core::decide::handshake84::{self, Decision, Occasion};
use urbd_core::decide::split_brain::Side;
use urbd_core::decide::uuid84::{self, Comparison, Input, UuidSet, Verdict};
use urbd_core::{Policies, RrConflict};
use wire::AfterSplitBrain;

const BLOCKS: usize = 6;

#[derive(Clone, Debug)]
struct Node {
    uuids: UuidSet,
    primary: bool,
    crashed: bool,
    disk: DiskState,
    data: [u64; BLOCKS],
    dirty: [bool; BLOCKS],
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Link {
    Down,
    Replicating,
    /// Node of this index is the source; the other's copy of its set is the one of the handshake.
    Syncing(usize, UuidSet),
}

struct World {
    rng: Rng,
    nodes: [Node; 2],
    link: Link,
    version: u64,
    /// Per block: the version that was acknowledged last, and is not lost to a resolved split brain.
    acked: [u64; BLOCKS],
    log: Vec<String>,
    rules: BTreeSet<u8>,
}

impl World {
    fn new(seed: u64) -> World {
        let uuids = UuidSet { current: Generation(0x10_0000), ..UuidSet::default() };
        let node = Node {
            uuids,
            primary: false,
            crashed: false,
            disk: DiskState::UpToDate,
            data: [0; BLOCKS],
            dirty: [false; BLOCKS],
        };
        World {
            rng: Rng::new(seed),
            nodes: [node.clone(), node],
            link: Link::Replicating,
            version: 0,
            acked: [0; BLOCKS],
            log: Vec::new(),
            rules: BTreeSet::new(),
        }
    }

    fn fresh(&mut self) -> Generation {
        Generation(self.rng.next_u64() & 0x0000_ffff_ffff_fff0 | 0x10)
    }

    fn step(&mut self) {
        let n = self.rng.below(2) as usize;
        match self.rng.below(12) {
            0 => self.cut(),
            1 | 2 => self.promote(n),
            3 => self.demote(n),
            4 => self.crash(n),
            5..=7 => self.write(n),
            8 => self.sync_some(),
            _ => match self.link {
                Link::Down => self.connect(),
                Link::Replicating => {}
                Link::Syncing(..) => self.finish(),
            },
        }
    }

    fn start_generation(&mut self, n: usize) {
        let fresh = self.fresh();
        let node = &mut self.nodes[n];
        if node.disk == DiskState::UpToDate {
            node.uuids.start_generation(fresh.with_primary_bit(true));
        }
    }

    fn cut(&mut self) {
        if self.link == Link::Down {
            return;
        }
        self.log.push("cut".into());
        let link = std::mem::replace(&mut self.link, Link::Down);
        for n in 0..2 {
            let source = matches!(link, Link::Syncing(source, _) if source == n);
            if self.nodes[n].primary && (source || self.nodes[n].uuids.bitmap.is_none()) {
                self.start_generation(n);
            }
        }
    }

    fn promote(&mut self, n: usize) {
        let peer_primary = self.link != Link::Down && self.nodes[1 - n].primary;
        if self.nodes[n].primary || peer_primary || self.nodes[n].disk != DiskState::UpToDate {
            return;
        }
        self.log.push(format!("promote {n}"));
        self.nodes[n].primary = true;
        if self.link == Link::Down {
            self.start_generation(n);
        }
    }

    fn demote(&mut self, n: usize) {
        if self.nodes[n].primary {
            self.log.push(format!("demote {n}"));
        }
        self.nodes[n].primary = false;
    }

    fn write(&mut self, n: usize) {
        if !self.nodes[n].primary {
            return;
        }
        let block = self.rng.below(BLOCKS as u64) as usize;
        self.version += 1;
        self.log.push(format!("write {n} block {block} = {}", self.version));
        self.nodes[n].data[block] = self.version;
        self.acked[block] = self.version;
        if self.link == Link::Down {
            self.nodes[n].dirty[block] = true;
        } else {
            self.nodes[1 - n].data[block] = self.version;
        }
    }

    /// A Primary dies in the middle of a write that reaches either disk or none; the activity log remembers the block.
    fn crash(&mut self, n: usize) {
        self.log.push(format!("crash {n}"));
        let connected = self.link != Link::Down;
        if self.nodes[n].primary {
            let block = self.rng.below(BLOCKS as u64) as usize;
            self.version += 1;
            if self.rng.chance(1, 2) {
                self.nodes[n].data[block] = self.version;
            }
            if connected && self.rng.chance(1, 2) {
                self.nodes[1 - n].data[block] = self.version;
            }
            self.nodes[n].dirty[block] = true;
            self.nodes[n].crashed = true;
        }
        self.nodes[n].primary = false;
        self.cut();
    }

    fn connect(&mut self) {
        let [a, b] = &self.nodes;
        let side = |n: &Node| uuid84::Node { uuids: n.uuids, crashed_primary: n.crashed, primary: n.primary };
        let input = Input {
            me: side(a),
            peer: side(b),
            protocol: 101,
            peer_wsame: true,
            resolve_conflicts: self.rng.chance(1, 2),
        };
        let comparison = uuid84::compare(&input);
        self.rules.insert(comparison.rule);
        let split = matches!(comparison.verdict, Verdict::SplitBrain { .. });
        let discard = (split && !(a.primary && b.primary)).then(|| self.rng.below(2) as usize);
        if a.primary && b.primary {
            return;
        }
        if discard.is_some_and(|loser| self.nodes[loser].primary) {
            return;
        }
        let decision = self.decide(comparison, discard, input.resolve_conflicts);
        self.log.push(format!("connect: {comparison:?} {decision:?}"));
        let (source, full) = match decision {
            Decision::NoSync => return self.agree(),
            Decision::Source { full } => (0, full),
            Decision::Target { full } => (1, full),
            _ => return,
        };
        self.nodes[0].uuids = comparison.own;
        self.nodes[1].uuids = comparison.peer;
        if split {
            self.acked = self.nodes[source].data;
        }
        self.start_sync(source, full);
    }

    fn decide(&self, comparison: Comparison, discard: Option<usize>, resolve_conflicts: bool) -> Decision {
        let side = |n: usize| Side {
            role: crate::words::primary_or_not(self.nodes[n].primary),
            was_primary: false,
            disk: self.nodes[n].disk,
            discard_my_data: discard == Some(n),
            changes: self.nodes[n].dirty.iter().filter(|d| **d).count() as u64,
        };
        let none = AfterSplitBrain::Disconnect;
        handshake84::decide(&handshake84::Input {
            comparison,
            occasion: Occasion::Connect,
            me: side(0),
            peer: side(1),
            policies: Policies { none, one: none, two: none },
            always_asbp: false,
            rr_conflict: RrConflict::default(),
            dry_run: false,
            resolve_conflicts,
            demotable: true,
            writes_elsewhere: false,
            peer_is_source: false,
            survivor_insists: false,
        })
        .decision
    }

    /// Connected without resync: then both must have the same, and all that was acknowledged.
    fn agree(&mut self) {
        assert_eq!(self.nodes[0].data, self.nodes[1].data, "equal generations, different data\n{}", self.story());
        self.check_acked(0);
        self.both_up_to_date();
        self.link = Link::Replicating;
    }

    fn both_up_to_date(&mut self) {
        for node in &mut self.nodes {
            node.disk = DiskState::UpToDate;
            node.crashed = false;
            node.dirty = [false; BLOCKS];
        }
    }

    fn check_acked(&self, n: usize) {
        for block in 0..BLOCKS {
            let has = self.nodes[n].data[block];
            assert!(has >= self.acked[block], "block {block} of node {n} lost an acknowledged write\n{}", self.story());
        }
    }

    fn start_sync(&mut self, source: usize, full: bool) {
        let target = 1 - source;
        self.check_acked(source);
        let random = self.fresh();
        for block in 0..BLOCKS {
            let dirty = full || self.nodes[0].dirty[block] || self.nodes[1].dirty[block];
            self.nodes[0].dirty[block] = dirty;
            self.nodes[1].dirty[block] = dirty;
        }
        let handshake = self.nodes[source].uuids;
        self.nodes[target].disk = self.nodes[target].disk.min(DiskState::Outdated);
        if self.rng.chance(1, 8) {
            self.log.push("lost before the sync started".into());
            self.link = Link::Replicating;
            return self.cut();
        }
        self.nodes[source].disk = DiskState::UpToDate;
        let sync = self.nodes[source].uuids.start_sync_source(random);
        self.link = Link::Syncing(source, handshake);
        if self.rng.chance(1, 8) {
            self.log.push("sync UUID lost".into());
            return self.cut();
        }
        self.nodes[target].uuids.start_sync_target(sync);
        self.nodes[target].disk = DiskState::Inconsistent;
    }

    fn sync_block(&mut self, source: usize, block: usize) {
        self.nodes[1 - source].data[block] = self.nodes[source].data[block];
        self.nodes[0].dirty[block] = false;
        self.nodes[1].dirty[block] = false;
    }

    fn sync_some(&mut self) {
        if let Link::Syncing(source, _) = self.link {
            let block = self.rng.below(BLOCKS as u64) as usize;
            self.sync_block(source, block);
        }
    }

    fn finish(&mut self) {
        let Link::Syncing(source, handshake) = self.link else { return };
        for block in 0..BLOCKS {
            if self.nodes[0].dirty[block] {
                self.sync_block(source, block);
            }
        }
        assert_eq!(self.nodes[0].data, self.nodes[1].data, "a finished resync left differences\n{}", self.story());
        let missed = self.rng.below(8);
        self.log.push(format!("finish, missed by {missed}"));
        if missed != 0 {
            self.nodes[1 - source].uuids.finish_sync_target(&handshake);
            self.nodes[1 - source].disk = DiskState::UpToDate;
        }
        if missed != 1 {
            self.nodes[source].uuids.retire_bitmap();
        }
        if missed <= 1 {
            return self.cut();
        }
        self.link = Link::Replicating;
        self.both_up_to_date();
    }

    fn story(&self) -> String {
        format!("{}\n{:#?}\nacked {:?}", self.log.join("\n"), self.nodes, self.acked)
    }
}

#[test]
pub(crate) fn no_history_loses_an_acknowledged_write() {
    let mut rules = BTreeSet::new();
    for seed in 0..20_000 {
        let mut world = World::new(seed);
        for _ in 0..60 {
            world.step();
        }
        rules.extend(world.rules);
    }
    let wanted = [34, 35, 40, 50, 51, 60, 70, 71, 80, 90, 100];
    assert!(wanted.iter().all(|r| rules.contains(r)), "the histories are too tame: only rules {rules:?} matched");
}
