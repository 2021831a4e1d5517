//! Devices that change their size.

use crate::rig::{Pair, Shape, VOLUME};
use units::{ByteLen, Duration};
use urbd_core::{Command, ConnectionState};

const MINUTE: Duration = Duration::from_secs(60);
/// A little less than the disks have.
const LIMIT: ByteLen = ByteLen((4 << 30) - (16 << 20));

/// A size that both nodes were told to keep to is lifted, by the one after the other, as `adjust` does: the options,
/// and on the first `resize`. Whoever is Primary, and whoever is first: in the end both have all of the disk, and are
/// as good as before.
#[test]
fn a_size_that_is_lifted_on_both_nodes_is_resynced_between_them() {
    for (primary, first) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut pair = Pair::with(true, |cfg| {
            cfg.volumes[0].disk.as_mut().expect("a disk").size = Some(LIMIT);
        });
        pair.until(MINUTE, |pair| pair.states() == [wire::ConnState::Connected; 2]);
        if primary == 1 {
            pair.command(0, Command::Secondary { force: false });
            let end = pair.now + Duration::from_secs(1);
            pair.until(MINUTE, |pair| pair.now >= end);
            pair.command(1, Command::Primary { force: false });
            let end = pair.now + Duration::from_secs(1);
            pair.until(MINUTE, |pair| pair.now >= end);
        }
        for node in [first, 1 - first] {
            let mut cfg = pair.nodes[node].cfg.clone();
            cfg.volumes[0].disk.as_mut().expect("a disk").size = None;
            pair.command(node, Command::ChangeOptions(Box::new(cfg)));
            if node == first {
                pair.command(node, Command::Resize { volume: VOLUME, flags: wire::ResizeFlags::default() });
            }
            let end = pair.now + Duration::from_secs(1);
            pair.until(MINUTE, |pair| pair.now >= end);
        }
        pair.until(MINUTE, |pair| pair.states() == [wire::ConnState::Connected; 2]);
        // A resync that ends before it begins would leave what is new to chance.
        assert!(pair.nodes.iter().all(|n| n.notes.contains(&"resync-done")), "Primary {primary}, first {first}");
        let of = |n: usize| {
            let device = pair.nodes[n].core.snapshot().devices[0].clone();
            (device.size, device.disk)
        };
        assert_eq!(of(0), of(1), "Primary {primary}, first {first}");
        assert_eq!(of(0).1, wire::DiskState::UpToDate, "Primary {primary}, first {first}");
        assert!(of(0).0 > LIMIT, "Primary {primary}, first {first}");
    }
}

/// Blocks far from each other.
fn counting(from: u64) -> impl FnMut() -> u64 {
    let mut blocks = (from..).step_by(3000);
    move || blocks.next().expect("there is no last one")
}

/// The disks become larger under a Primary that writes. From when the core is told of it, metadata are written where
/// they are on a disk of the new size; the device grows by `resize` alone; and what is attached then is found whole.
#[test]
fn disks_that_grow_in_use_keep_their_metadata() {
    for version in [meta::Version::V08, meta::Version::V09] {
        let mut pair = Pair::on(Shape { version, ..Shape::DEFAULT }, true, |cfg| {
            if version == meta::Version::V09 {
                cfg.connections[0].max_version = wire::Version::MAX.number();
            }
        });
        let size = |pair: &Pair, n: usize| pair.nodes[n].core.snapshot().devices[0].size;
        let before = size(&pair, 0);
        pair.writes(200, 4, counting(0));
        pair.until(MINUTE, Pair::is_idle);
        for n in 0..2 {
            let opened = pair.nodes[n].grow(ByteLen(64 << 20));
            pair.command(n, Command::Grew(VOLUME, opened));
            pair.writes(200, 4, counting(1));
            pair.until(MINUTE, Pair::is_idle);
            assert_eq!(size(&pair, n), before, "it keeps its size until `resize`");
            assert_eq!(pair.nodes[n].found().expect("metadata at the new end").truncated_from, None);
        }
        let flags = wire::ResizeFlags { assume_clean: true, ..wire::ResizeFlags::default() };
        pair.command(0, Command::Resize { volume: VOLUME, flags });
        pair.until(MINUTE, Pair::is_idle);
        assert!(size(&pair, 0).0 > before.0 + (63 << 20), "{version:?}");
        assert_eq!(size(&pair, 0), size(&pair, 1));
        pair.command(1, Command::Detach { volume: VOLUME, force: false });
        pair.until(MINUTE, Pair::is_idle);
        pair.command(1, Command::Attach { volume: VOLUME });
        pair.until(MINUTE, |pair| pair.nodes[1].core.snapshot().devices[0].disk == wire::DiskState::UpToDate);
        assert_eq!(pair.nodes[1].core.snapshot().connections[0].state, ConnectionState::Connected);
        for node in &pair.nodes {
            assert_eq!(node.found().expect("metadata").superblock.effective_size.to_bytes(), size(&pair, 0));
        }
    }
}
