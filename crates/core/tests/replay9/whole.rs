//! Three nodes, from their first connect to the end of the recording, that become Primary one after the other.

use crate::joining::from_the_start;
use crate::recording::Said;
use crate::replay::Replay;
use crate::sources::{assert_is_whole, id};
use crate::transaction;
use units::{Duration, Instant, Sector};
use wire::{ConnState, DiskState, Packet, Role, UuidFlags};

/// Nodes 0 and 2 do not reach each other. All are promoted, one after the other, and write; what an end of the chain
/// lacks comes to it when nobody is Primary. Node 1, Primary, makes the device smaller. Node 0 leaves, and comes back
/// when node 2 has written; at last nodes 0 and 2 meet.
fn chain(node: u8) -> Replay {
    let mut said = from_the_start("52", node);
    not_outdated_by_a_promotion(&mut said);
    match node {
        0 => follows_its_source(&mut said),
        1 => {}
        _ => {
            // A kernel that was told of a smaller size takes that for what a peer has room for.
            said.iter_mut().filter(|s| [s.from, s.to] == [id(2), id(0)]).for_each(|s| {
                if let Packet::Sizes(sizes) = &mut s.packet {
                    sizes.disk_size = Sector(1024);
                }
            });
            // Node 2 asks whether it may be Primary although its copy is outdated, which the core does not.
            said.retain(|said| transaction(&said.packet) != Some(3_342_041_926));
        }
    }
    let mut replay = Replay::whole(said, node, |_| {});
    replay.node.forgive = true;
    replay
}

/// A kernel that is promoted takes for outdated who is not there, and says so when they meet.
fn not_outdated_by_a_promotion(said: &mut [Said]) {
    for s in said {
        if let Packet::State(word) = &mut s.packet
            && (word.conn, word.pdsk) == (ConnState::WFConnection, DiskState::Outdated)
        {
            word.pdsk = DiskState::DUnknown;
        }
    }
}

/// A kernel ends what it copies from a node that depends on a Primary, and compares again when that depends on none;
/// the core goes on following until then, ends it, and offers to compare as well.
fn follows_its_source(said: &mut Vec<Said>) {
    let to_1 = |s: &Said| [s.from, s.to] == [id(0), id(1)];
    let again = said.iter().rposition(|s| matches!(s.packet, Packet::Sizes(_)) && to_1(s)).expect("they connect again");
    let meets = said[again].at;
    let stable = |s: &&Said| {
        let is = matches!(&s.packet, Packet::Uuids110(u) if u.flags.contains(UuidFlags::STABLE));
        [s.from, s.to] == [id(1), id(0)] && s.at > meets && is
    };
    let at = said.iter().find(stable).expect("node 1 depends on nobody").at;
    let offer = said.iter().filter(stable).nth(1).expect("it offers to compare").at;
    let copied = meets + Duration::from_millis(100);
    // It asks whether node 1 is there before it ends that.
    let answers = |s: &&mut Said| [s.from, s.to] == [id(1), id(0)] && s.at > copied && s.packet == Packet::PingAck;
    said.iter_mut().find(answers).expect("node 1 is there").at = at + Duration(500);
    for s in said.iter_mut() {
        let ends = match &s.packet {
            Packet::EnableReplication(_) | Packet::Uuids110(_) => true,
            Packet::State(word) => word.conn == ConnState::Connected,
            _ => false,
        };
        if to_1(s) && (meets..at).contains(&s.at) && ends && s.at > copied {
            s.at = at + Duration(1_000);
        } else if s.at >= offer {
            s.at = s.at + Duration::from_millis(400);
        }
    }
    let ended =
        said.iter().find(|s| to_1(s) && s.at == at + Duration(1_000) && matches!(s.packet, Packet::Uuids110(_)));
    let mut offers = ended.expect("it ends").clone();
    if let Packet::Uuids110(u) = &mut offers.packet {
        u.flags |= UuidFlags::GOT_STABLE;
    }
    said.push(offers);
    said.sort_by_key(|s| s.at);
}

#[test]
fn a_chain_passes_on_what_is_agreed_on_and_written() {
    for node in [0, 1, 2] {
        let mut replay = chain(node);
        replay.follow();
        replay.links_up();
        replay.play();
        assert_is_whole(&replay, node);
        assert_eq!(replay.node.size(), Sector(768), "node {node}");
    }
}

/// Two are promoted at the same time, again and again. At last node 0 is promoted, and nodes 1 and 2 disconnect from
/// node 2 and node 0 at the same time.
#[test]
fn promotions_collide() {
    for node in [0, 1, 2] {
        let mut said = from_the_start("54", node);
        if node == 0 {
            asks_again_later(&mut said);
        }
        let mut replay = Replay::whole(said, node, |_| {});
        replay.node.forgive = true;
        replay.in_sync.more = node == 0;
        replay.follow();
        replay.links_up();
        replay.play();
        let state = replay.node.core.snapshot();
        assert_eq!(state.devices[0].disk, DiskState::UpToDate, "node {node}");
    }
}

/// A kernel whose promotion has met another transaction tries again as soon as that is over, the core a tenth of a
/// second later.
fn asks_again_later(said: &mut [Said]) {
    let over = |s: &&Said| matches!(&s.packet, Packet::TwopcCommit(d) if d.transaction.tid == 2_781_284_597);
    let at = said.iter().rfind(over).expect("node 2 leaves").at;
    said.iter_mut().filter(|s| s.at > at).for_each(|s| s.at = s.at + Duration::from_millis(101));
}

/// A kernel asks whether it may be Secondary while its last epoch is under way, the core when all peers have that on
/// their disks: it hears that before.
fn over_before_the_demotion(said: &mut [Said], node: u8) {
    let asks = |s: &Said| match &s.packet {
        Packet::TwopcPrepare(p) => {
            s.from == id(node) && p.change.role == Some(Role::Secondary) && p.change.conn.is_none()
        }
        _ => false,
    };
    let times: Vec<_> = said.iter().filter(|s| asks(s)).map(|s| s.at).collect();
    for s in said.iter_mut().filter(|s| s.to == id(node) && matches!(s.packet, Packet::BarrierAck(_))) {
        let meanwhile = |asked: &&Instant| s.at > **asked && s.at.since(**asked) < Duration::from_millis(10);
        if let Some(asked) = times.iter().find(meanwhile) {
            s.at = Instant(asked.0 - 15_000);
        }
    }
    said.sort_by_key(|s| s.at);
}

/// Node 0 is promoted by who opens its device, writes, and closes it; then once more without a write; and node 2 twice
/// with one. While node 0 has its device open nobody gets in on node 2, which asks nobody for that.
#[test]
fn who_opens_a_device_is_promoted() {
    for node in [0, 1, 2] {
        let mut said = from_the_start("59", node);
        if node == 0 {
            over_before_the_demotion(&mut said, node);
        }
        let mut replay = Replay::whole(said, node, |_| {});
        replay.auto = true;
        replay.follow();
        replay.links_up();
        replay.play();
        assert_is_whole(&replay, node);
        assert_eq!(replay.node.core.snapshot().role, Role::Secondary, "node {node}");
    }
}
