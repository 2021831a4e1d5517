//! Two nodes of a pair that write only with quorum: what freezes, what fails, what goes on
//! (`docs/spec/connection-and-state.md` 9.4).

use crate::rig::{Pair, Shape, VOLUME};
use meta::DeviceFlags;
use units::Duration;
use urbd_core::{
    Command, OnNoData, OnNoQuorum, OnSuspendedOutdated, QuorumConfig, RequestKind, ResourceConfig, SuspendReason,
    Threshold,
};
use wire::{ConnState, DiskState, Role};

const V09: Shape = Shape { version: meta::Version::V09, ..Shape::DEFAULT };
const MAJORITY: QuorumConfig = QuorumConfig::new(Threshold::Majority, Threshold::Off, OnNoQuorum::SuspendIo);
const WAIT: Duration = Duration::from_secs(60);

fn asks(cfg: &mut ResourceConfig, quorum: QuorumConfig) {
    cfg.connections[0].max_version = wire::Version::MAX.number();
    cfg.quorum = quorum;
}

/// Connected, both UpToDate, the first one Primary, quorum of two.
fn pair(without: OnNoQuorum) -> Pair {
    let mut pair =
        Pair::on(V09, true, |cfg| asks(cfg, QuorumConfig::new(Threshold::Majority, Threshold::Off, without)));
    assert_eq!(pair.states(), [ConnState::Connected; 2], "{:?}", pair.nodes[0].notes);
    assert_eq!(pair.nodes[0].core.snapshot().role, Role::Primary);
    pair.writes(4, 1, || 7);
    pair
}

fn has_quorum(pair: &Pair, node: usize) -> bool {
    pair.nodes[node].core.snapshot().devices[0].no_quorum.is_none()
}

fn is_frozen_without(pair: &Pair, node: usize) -> bool {
    pair.nodes[node].core.snapshot().suspended.because_of(SuspendReason::Quorum)
}

fn completed(pair: &Pair) -> u64 {
    pair.nodes[0].counts.completed
}

/// A write is under way to the peer, which is lost: it waited for nothing but that.
fn loses_peer_with_a_write(pair: &mut Pair, block: u64) {
    pair.nodes[1].lost = |packet| matches!(packet, wire::Packet::WriteAck(_));
    pair.write(block);
    pair.run(30);
    pair.unlink();
    pair.nodes[1].lost = |_| false;
    pair.run(30);
}

fn reconnect(pair: &mut Pair) {
    pair.until(WAIT, |p| p.nodes.iter().all(|n| n.link_wanted));
    pair.link();
    pair.until(WAIT, |p| p.states() == [ConnState::Connected; 2]);
    pair.run(100);
}

#[test]
fn a_primary_without_quorum_freezes_what_waits_for_the_lost_peer_and_goes_on_when_that_is_back() {
    let mut pair = pair(OnNoQuorum::SuspendIo);
    let (before, generation) = (completed(&pair), pair.nodes[0].core.generations(VOLUME).unwrap()[0]);
    assert!(has_quorum(&pair, 0) && has_quorum(&pair, 1));
    loses_peer_with_a_write(&mut pair, 11);
    pair.write(12);
    pair.request_on(0, 0, RequestKind::Flush);
    pair.request_on(0, 3, RequestKind::Read);
    pair.run(200);
    assert_eq!(completed(&pair), before, "nothing is completed without quorum");
    assert!(!has_quorum(&pair, 0) && is_frozen_without(&pair, 0));
    assert!(!has_quorum(&pair, 1) && is_frozen_without(&pair, 1), "nor has the other one quorum");
    let flags = pair.nodes[0].superblock().flags;
    assert!(flags.contains(DeviceFlags::PRIMARY_LOST_QUORUM) && !flags.contains(DeviceFlags::HAVE_QUORUM));
    // A command does not thaw it.
    pair.command(0, Command::ResumeIo { volume: VOLUME });
    pair.run(50);
    assert_eq!(completed(&pair), before);
    reconnect(&mut pair);
    pair.until(WAIT, |p| completed(p) == before + 4);
    assert!(has_quorum(&pair, 0) && !is_frozen_without(&pair, 0) && has_quorum(&pair, 1));
    let superblock = pair.nodes[0].superblock();
    let flags = superblock.flags;
    assert!(!flags.contains(DeviceFlags::PRIMARY_LOST_QUORUM) && flags.contains(DeviceFlags::HAVE_QUORUM));
    assert_eq!(superblock.members.0, 0b11);
    // Nobody wrote alone: no generation began.
    let now = pair.nodes[0].core.generations(VOLUME).unwrap()[0];
    assert!(now.same(generation), "{now} {generation}");
    assert_eq!(pair.nodes[0].core.snapshot().connections[0].peer_devices[0].out_of_sync.0, 0);
}

#[test]
fn io_fails_without_quorum_where_that_is_wanted() {
    let mut pair = pair(OnNoQuorum::IoError);
    let before = completed(&pair);
    pair.nodes[0].failed = Some(Vec::new());
    loses_peer_with_a_write(&mut pair, 11);
    pair.write(12);
    pair.request_on(0, 3, RequestKind::Read);
    pair.request_on(0, 0, RequestKind::Flush);
    pair.run(300);
    assert_eq!(completed(&pair), before);
    assert_eq!(pair.nodes[0].failed.as_ref().map(Vec::len), Some(4));
    assert!(!has_quorum(&pair, 0) && !is_frozen_without(&pair, 0));
    reconnect(&mut pair);
    pair.writes(4, 2, || 13);
    assert_eq!(completed(&pair), before + 4);
}

/// What waits is decided anew when the option changes (9.4).
#[test]
fn an_option_thaws_what_is_frozen_or_fails_it() {
    for (change, fails) in [
        (QuorumConfig::default(), false),
        (QuorumConfig::new(Threshold::Majority, Threshold::Off, OnNoQuorum::IoError), true),
    ] {
        let mut pair = pair(OnNoQuorum::SuspendIo);
        let before = completed(&pair);
        loses_peer_with_a_write(&mut pair, 11);
        pair.write(12);
        pair.run(100);
        assert_eq!(completed(&pair), before);
        pair.nodes[0].failed = Some(Vec::new());
        assert_eq!(pair.reconfigure(0, |cfg| cfg.quorum = change), Some(Ok(())));
        pair.run(300);
        let failed = pair.nodes[0].failed.as_ref().map_or(0, Vec::len);
        assert_eq!((completed(&pair) - before, failed), if fails { (0, 2) } else { (2, 0) });
        assert!(!is_frozen_without(&pair, 0));
        assert_eq!(has_quorum(&pair, 0), !fails);
    }
}

/// The other way round: it is asked for while the peer is away.
#[test]
fn who_asks_for_quorum_alone_freezes_at_once() {
    let mut pair = Pair::on(V09, true, |cfg| asks(cfg, QuorumConfig::default()));
    pair.writes(2, 1, || 3);
    pair.unlink();
    pair.run(50);
    pair.writes(2, 1, || 4);
    assert_eq!(pair.reconfigure(0, |cfg| cfg.quorum = MAJORITY), Some(Ok(())));
    pair.run(20);
    assert!(is_frozen_without(&pair, 0));
    let before = completed(&pair);
    pair.write(9);
    pair.run(100);
    assert_eq!(completed(&pair), before);
}

#[test]
fn nobody_is_promoted_without_quorum_but_by_force() {
    let mut pair = pair(OnNoQuorum::SuspendIo);
    pair.command(0, Command::Secondary { force: false });
    pair.run(100);
    pair.unlink();
    pair.run(50);
    pair.nodes[1].answers = Some(Vec::new());
    pair.command_with_id(1, 50, Command::Primary { force: false });
    pair.until(WAIT, |p| p.answer_to(1, 50).is_some());
    let error = pair.answer_to(1, 50).unwrap().unwrap_err();
    assert_eq!(error.code, -25);
    assert_eq!(error.text, "no quorum: 1 of 2 voters in reach, 2 needed: bring the other nodes back");
    assert_eq!(pair.nodes[1].core.snapshot().role, Role::Secondary);
    pair.command_with_id(1, 51, Command::Primary { force: true });
    pair.until(WAIT, |p| p.answer_to(1, 51).is_some());
    assert_eq!(pair.answer_to(1, 51), Some(Ok(())));
    assert!(has_quorum(&pair, 1) && !is_frozen_without(&pair, 1));
}

/// Who goes in order is Outdated, and does not count any more, whichever of the two asks for it: the Primary goes on
/// alone.
#[test]
fn a_peer_that_leaves_in_order_takes_no_quorum_with_it() {
    for asks in [0, 1] {
        let mut pair = pair(OnNoQuorum::SuspendIo);
        let peer = pair.nodes[asks].peer;
        pair.command(asks, Command::Disconnect { peer, force: false });
        pair.run(100);
        assert!(has_quorum(&pair, 0), "{:?}", pair.nodes[0].notes);
        assert!(!has_quorum(&pair, 1));
        assert_eq!(pair.nodes[1].core.snapshot().devices[0].disk, DiskState::Outdated);
        pair.writes(4, 2, || 5);
        assert_eq!(pair.nodes[0].superblock().members.0, 0b01);
        assert!(pair.nodes[0].superblock().flags.contains(DeviceFlags::HAVE_QUORUM));
    }
}

/// By force the link ends without a word: what the peer does then nobody knows.
#[test]
fn a_peer_that_is_left_by_force_takes_quorum_with_it() {
    let mut pair = pair(OnNoQuorum::SuspendIo);
    let peer = pair.nodes[0].peer;
    pair.command(0, Command::Disconnect { peer, force: true });
    pair.run(100);
    assert!(!has_quorum(&pair, 0) && is_frozen_without(&pair, 0));
}

/// A Secondary comes up alone: it has no quorum, and says so, and is not in the way of who comes.
#[test]
fn a_node_that_comes_up_alone_has_none_until_the_other_is_there() {
    let mut pair = pair(OnNoQuorum::SuspendIo);
    pair.unlink();
    pair.run(20);
    pair.nodes[1].answers = Some(Vec::new());
    for command in [Command::Detach { volume: VOLUME, force: false }, Command::Attach { volume: VOLUME }] {
        pair.command_with_id(1, 60, command);
        pair.run(100);
    }
    assert!(!has_quorum(&pair, 1));
    reconnect(&mut pair);
    assert!(has_quorum(&pair, 1) && has_quorum(&pair, 0));
    pair.writes(2, 1, || 6);
}

/// The Primary is cut off and freezes, the other one is promoted and writes. When they meet, the first one is Primary
/// with older data: it stays that, or becomes Secondary by itself, its users get errors, and its copy is brought up to
/// date.
#[test]
fn a_frozen_primary_gives_in_to_newer_data_if_that_is_wanted() {
    for gives_in in [false, true] {
        let mut pair = Pair::on(V09, true, |cfg| {
            asks(cfg, MAJORITY);
            cfg.connections[0].rr_conflict = urbd_core::decide::split_brain::RrConflict::RetryConnect;
            if gives_in {
                cfg.on_suspended_outdated = OnSuspendedOutdated::ForceSecondary;
            }
        });
        pair.writes(4, 1, || 7);
        let before = completed(&pair);
        pair.nodes[0].failed = Some(Vec::new());
        loses_peer_with_a_write(&mut pair, 11);
        pair.write(12);
        pair.run(100);
        assert!(is_frozen_without(&pair, 0));
        assert_eq!(pair.reconfigure(1, |cfg| cfg.quorum = QuorumConfig::default()), Some(Ok(())));
        pair.command(1, Command::Primary { force: true });
        pair.run(100);
        pair.write_on(1, 20);
        pair.run(100);
        pair.until(WAIT, |p| p.nodes.iter().all(|n| n.link_wanted));
        pair.link();
        // They try again each second.
        pair.pass(Duration::from_secs(5));
        let role = pair.nodes[0].core.snapshot().role;
        let failed = pair.nodes[0].failed.as_ref().map(Vec::len);
        assert_eq!(completed(&pair), before, "nobody has got what was written without quorum");
        if gives_in {
            assert_eq!((role, failed), (Role::Secondary, Some(2)), "{:?}", pair.nodes[0].notes);
            pair.until(WAIT, |p| p.nodes[0].core.snapshot().devices[0].disk == DiskState::UpToDate);
            assert_eq!(pair.states(), [ConnState::Connected; 2]);
            assert_eq!(pair.nodes[0].core.snapshot().connections[0].peer_devices[0].out_of_sync.0, 0);
        } else {
            assert_eq!((role, failed), (Role::Primary, Some(0)));
            assert_ne!(pair.states(), [ConnState::Connected; 2]);
        }
    }
}

/// The users of a Primary without a disk wait for the peer's, which comes back while both are connected: in 9's dialect
/// there is data within reach from then on (2.2, E1). Without the peer's word of it nothing would ever end their wait.
#[test]
fn what_waits_for_the_peers_disk_goes_on_when_that_is_good_again() {
    let mut pair = Pair::on(V09, true, |cfg| {
        asks(cfg, QuorumConfig::default());
        cfg.on_no_data = OnNoData::SuspendIo;
    });
    let waits = |pair: &Pair| pair.nodes[0].core.snapshot().suspended.because_of(SuspendReason::NoData);
    let detach = |force| Command::Detach { volume: VOLUME, force };
    pair.command(0, detach(false));
    pair.run(100);
    pair.writes(4, 1, || 7);
    let before = completed(&pair);
    pair.unlink();
    pair.command(1, detach(true));
    reconnect(&mut pair);
    assert!(waits(&pair), "{:?}", pair.nodes[0].notes);
    pair.write(11);
    pair.request_on(0, 3, RequestKind::Read);
    pair.run(100);
    assert_eq!(completed(&pair), before);
    pair.command(1, Command::Attach { volume: VOLUME });
    pair.until(WAIT, |p| completed(p) == before + 2);
    assert!(!waits(&pair));
}
