//! Devices that change their size.

use crate::rig::{Pair, VOLUME};
use units::{ByteLen, Duration};
use urbd_core::Command;

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
