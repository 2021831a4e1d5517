//! A Primary whose process ended, and the next one that wants to be Primary again for the applications that wait.

use crate::rig::{Pair, Shape, VOLUME};
use units::{Duration, NodeMask};
use urbd_core::decide::Handler;
use urbd_core::{Access, Command, Effect, Inherited, Resource, ResourceConfig};
use wire::{ConnState, DiskState, Role};

const MINUTE: Duration = Duration::from_secs(60);

fn role(pair: &Pair, n: usize) -> Role {
    pair.nodes[n].core.snapshot().role
}

/// Of node 0.
fn disk(pair: &Pair) -> DiskState {
    pair.nodes[0].core.snapshot().devices[0].disk
}

/// Has a command of node 0 failed?
fn failed(pair: &Pair) -> bool {
    pair.nodes[0].answers.iter().flatten().any(|(_, result)| result.is_err())
}

/// Node 0's process is killed.
fn kill(pair: &mut Pair) {
    pair.unlink();
    let node = &mut pair.nodes[0];
    node.core = Resource::new(node.cfg.clone(), 19);
}

/// It is killed; the next one attaches, and wants to be Primary again. `alone`: as one that had no peer.
fn restart(pair: &mut Pair, alone: bool) {
    restart_with(pair, Inherited { beside: alone.then(NodeMask::default), ..Inherited::default() });
}

fn restart_with(pair: &mut Pair, inherited: Inherited) {
    kill(pair);
    let now = pair.now;
    let node = &mut pair.nodes[0];
    node.answers = Some(Vec::new());
    node.told = true;
    let (peer, discard_my_data, tentative) = (node.peer, false, false);
    node.core.on_command(now, 1, Command::Attach { volume: VOLUME });
    node.core.on_command(now, 2, Command::Connect { peer, discard_my_data, tentative });
    node.core.on_command(now, 3, Command::PrimaryAgain(inherited));
    pair.run(100);
}

fn written(change: fn(&mut ResourceConfig)) -> Pair {
    let mut pair = Pair::with(true, change);
    pair.writes(20, 4, || 7);
    pair
}

/// The peer is Primary for a while, and Secondary again.
fn peer_was_primary(pair: &mut Pair, writes: bool) {
    // In 9's dialect it is known a moment after the loss that nobody else has more.
    pair.command(1, Command::Primary { force: false });
    pair.until(MINUTE, |p| role(p, 1) == Role::Primary);
    if writes {
        pair.write_on(1, 3);
        pair.run(100);
    }
    pair.command(1, Command::Secondary { force: false });
    pair.run(100);
}

#[test]
pub(crate) fn beside_its_peer_it_is_primary_again_in_the_same_generation() {
    let mut pair = written(|_| {});
    let before = pair.nodes[0].core.generations(VOLUME).unwrap()[0];
    restart(&mut pair, false);
    assert_eq!(role(&pair, 0), Role::Secondary, "the peer was not heard of");
    pair.link();
    pair.until(MINUTE, |p| role(p, 0) == Role::Primary);
    assert_eq!(pair.nodes[0].core.generations(VOLUME).unwrap()[0], before);
    assert!(pair.nodes[0].notes.contains(&"primary-again"));
    pair.until(MINUTE, |p| p.states() == [ConnState::Connected; 2]);
    pair.writes(20, 4, || 9);
}

#[test]
fn without_its_peer_it_waits_no_longer_than_a_primary_does_and_goes_on_in_a_new_generation() {
    let mut pair = written(|_| {});
    let before = pair.nodes[0].core.generations(VOLUME).unwrap()[0];
    let patience = pair.nodes[0].cfg.connections[0].timeout;
    restart(&mut pair, false);
    let start = pair.now;
    pair.until(MINUTE, |p| role(p, 0) == Role::Primary);
    assert!(pair.now.since(start) + Duration::from_millis(1) >= patience && pair.now.since(start) <= patience);
    pair.run(100);
    assert_ne!(pair.nodes[0].core.generations(VOLUME).unwrap()[0], before);
    // The peer comes back later, and gets what it lacks.
    pair.write(3);
    pair.run(100);
    pair.link();
    pair.until(MINUTE, |p| p.states() == [ConnState::Connected; 2]);
    assert_eq!(role(&pair, 0), Role::Primary);
}

#[test]
fn who_was_alone_waits_for_nobody() {
    for told in [true, false] {
        let mut pair = written(|_| {});
        if !told {
            // Its metadata say so.
            pair.unlink();
            pair.run(100);
            pair.write(3);
            pair.run(100);
        }
        restart(&mut pair, told);
        assert_eq!(role(&pair, 0), Role::Primary, "told: {told}");
    }
}

#[test]
fn if_the_peer_is_primary_now_it_fails() {
    let mut pair = written(|_| {});
    kill(&mut pair);
    pair.command(1, Command::Primary { force: false });
    pair.run(100);
    assert_eq!(role(&pair, 1), Role::Primary);
    restart(&mut pair, false);
    pair.link();
    pair.until(MINUTE, failed);
    assert_eq!(role(&pair, 0), Role::Secondary);
    assert!(pair.nodes[0].notes.contains(&"replaced-meanwhile"));
}

#[test]
pub(crate) fn if_the_peer_was_primary_meanwhile_it_fails() {
    let mut pair = written(|_| {});
    kill(&mut pair);
    peer_was_primary(&mut pair, false);
    restart(&mut pair, false);
    pair.link();
    pair.until(MINUTE, failed);
    assert_eq!(role(&pair, 0), Role::Secondary);
    pair.until(MINUTE, |p| p.states() == [ConnState::Connected; 2]);
    assert_eq!(role(&pair, 0), Role::Secondary, "nor later");
}

/// What a volume holds that has come to the resource was not in use, and no reason to let other volumes' I/O fail.
#[test]
fn a_volume_that_has_come_may_be_old() {
    let mut pair = written(|_| {});
    kill(&mut pair);
    peer_was_primary(&mut pair, true);
    restart_with(&mut pair, Inherited { came: vec![VOLUME], ..Inherited::default() });
    pair.link();
    pair.until(MINUTE, |p| role(p, 0) == Role::Primary);
    pair.until(MINUTE, |p| p.states() == [ConnState::Connected; 2]);
    assert!(!failed(&pair));
}

/// In 9's dialect the copy of who has not crashed is the better one of two of one generation (5.8, A10): that is no
/// other one's data. What another Primary has written is.
#[test]
fn in_9s_dialect_what_a_crash_left_is_copied_from_the_peer() {
    for peer_writes in [false, true] {
        let newest = |cfg: &mut ResourceConfig| cfg.connections[0].max_version = wire::Version::MAX.number();
        let mut pair = Pair::on(Shape { version: meta::Version::V09, ..Shape::DEFAULT }, true, newest);
        pair.writes(20, 4, || 7);
        let generation = |p: &Pair, n: usize| p.nodes[n].core.generations(VOLUME).unwrap()[0].base();
        let before = generation(&pair, 0);
        kill(&mut pair);
        if peer_writes {
            peer_was_primary(&mut pair, true);
        }
        restart(&mut pair, false);
        pair.link();
        if peer_writes {
            pair.until(MINUTE, failed);
            assert!(pair.nodes[0].notes.contains(&"replaced-meanwhile"));
            assert_eq!(role(&pair, 0), Role::Secondary);
            continue;
        }
        pair.until(MINUTE, |p| role(p, 0) == Role::Primary);
        pair.until(MINUTE, |p| p.states() == [ConnState::Connected; 2]);
        assert_eq!([0, 1].map(|n| generation(&pair, n)), [before; 2]);
        pair.writes(20, 4, || 9);
    }
}

/// Its users have seen what was written to the peer since, whatever the metadata of the disk say.
#[test]
pub(crate) fn nobody_goes_on_with_a_disk_that_was_given_up_before() {
    let mut pair = written(|_| {});
    kill(&mut pair);
    let (now, node) = (pair.now, &mut pair.nodes[0]);
    node.answers = Some(Vec::new());
    node.told = true;
    let (peer, beside) = (node.peer, Some(NodeMask::default()));
    node.core.on_command(
        now,
        1,
        Command::PrimaryAgain(Inherited { beside, without_disk: vec![VOLUME], ..Inherited::default() }),
    );
    pair.run(100);
    pair.command(0, Command::Attach { volume: VOLUME });
    pair.run(100);
    assert_eq!((role(&pair, 0), disk(&pair)), (Role::Secondary, DiskState::Outdated));
    assert!(!failed(&pair), "it waits");
    // Nor does an administrator make it so: that would take what was written to the peer for lost.
    pair.command(0, Command::ResumeIo { volume: VOLUME });
    pair.run(100);
    assert_eq!((role(&pair, 0), disk(&pair)), (Role::Secondary, DiskState::Outdated));
    pair.command(0, Command::Connect { peer, discard_my_data: false, tentative: false });
    pair.link();
    pair.until(MINUTE, |p| role(p, 0) == Role::Primary && disk(p) == DiskState::UpToDate);
}

/// The peer's data is newer, and the own disk, which would be copied to, was let go of before they meet.
#[test]
pub(crate) fn nobody_goes_on_without_a_disk_with_what_the_peer_has_written_since() {
    let mut pair = written(|_| {});
    kill(&mut pair);
    peer_was_primary(&mut pair, true);
    restart(&mut pair, false);
    pair.command(0, Command::Detach { volume: VOLUME, force: false });
    pair.run(100);
    assert_eq!((role(&pair, 0), disk(&pair)), (Role::Secondary, DiskState::Diskless));
    assert!(!failed(&pair), "the peer may have the same");
    pair.link();
    pair.until(MINUTE, failed);
    assert!(pair.nodes[0].notes.contains(&"replaced-meanwhile"));
    assert_eq!(role(&pair, 0), Role::Secondary);
}

/// Its users have done without its disk, which was good before that. Nobody else has what it has got alone, and a
/// person says that this is to be dropped.
#[test]
pub(crate) fn nobody_goes_on_with_data_that_does_not_come_from_what_was_in_use() {
    let mut pair = written(|_| {});
    pair.unlink();
    pair.run(100);
    pair.write(3);
    pair.run(100);
    kill(&mut pair);
    peer_was_primary(&mut pair, true);
    let (now, node) = (pair.now, &mut pair.nodes[0]);
    node.answers = Some(Vec::new());
    node.told = true;
    let peer = node.peer;
    node.core.on_command(
        now,
        1,
        Command::PrimaryAgain(Inherited { without_disk: vec![VOLUME], ..Inherited::default() }),
    );
    node.core.on_command(now, 2, Command::Attach { volume: VOLUME });
    pair.run(100);
    assert_eq!((role(&pair, 0), disk(&pair)), (Role::Secondary, DiskState::Outdated));
    pair.command(0, Command::Connect { peer, discard_my_data: true, tentative: false });
    pair.link();
    pair.until(MINUTE, failed);
    assert!(pair.nodes[0].notes.contains(&"replaced-meanwhile"));
    pair.until(MINUTE, |p| p.states() == [ConnState::Connected; 2]);
    assert_eq!((role(&pair, 0), disk(&pair)), (Role::Secondary, DiskState::UpToDate));
}

fn fenced(cfg: &mut ResourceConfig) {
    cfg.handlers.push(Handler::FencePeer);
    cfg.volumes[0].disk.as_mut().unwrap().fencing = urbd_core::Fencing::ResourceOnly;
}

/// The handlers that node 0 has started end.
fn handlers_end(pair: &mut Pair, status: i32) {
    let now = pair.now;
    let node = &mut pair.nodes[0];
    (0..8).for_each(|id| node.core.on_handler_exit(now, id, status));
    node.told = true;
    pair.run(100);
}

/// Fencing is configured and does not succeed: frozen until the peer is there.
#[test]
fn an_unfenced_peer_is_waited_for() {
    let mut pair = written(fenced);
    restart(&mut pair, true);
    handlers_end(&mut pair, 5);
    assert_eq!(role(&pair, 0), Role::Secondary);
    handlers_end(&mut pair, 1);
    pair.run(100);
    assert!(!failed(&pair), "it goes on waiting");
    pair.link();
    pair.until(MINUTE, |p| role(p, 0) == Role::Primary);
}

#[test]
fn the_administrator_lets_it_go_on() {
    let mut pair = written(fenced);
    restart(&mut pair, true);
    handlers_end(&mut pair, 1);
    assert_eq!(role(&pair, 0), Role::Secondary);
    assert!(pair.nodes[0].notes.contains(&"waits-to-be-primary"));
    pair.command(0, Command::ResumeIo { volume: VOLUME });
    pair.run(100);
    handlers_end(&mut pair, 1);
    assert_eq!(role(&pair, 0), Role::Primary);
    assert_eq!(pair.nodes[0].core.snapshot().devices[0].disk, DiskState::UpToDate);
}

/// He lets it go on now, not later, when something else is the matter.
#[test]
pub(crate) fn what_the_administrator_has_said_counts_once() {
    let mut pair = written(fenced);
    restart(&mut pair, true);
    handlers_end(&mut pair, 1);
    pair.command(0, Command::Detach { volume: VOLUME, force: false });
    pair.run(100);
    pair.command(0, Command::ResumeIo { volume: VOLUME });
    pair.run(100);
    assert_eq!((role(&pair, 0), disk(&pair)), (Role::Secondary, DiskState::Diskless), "there is no data");
    pair.command(0, Command::Attach { volume: VOLUME });
    pair.run(100);
    handlers_end(&mut pair, 1);
    assert_eq!(role(&pair, 0), Role::Secondary, "the peer is not fenced");
    assert!(!failed(&pair), "it waits");
    pair.command(0, Command::ResumeIo { volume: VOLUME });
    pair.run(100);
    handlers_end(&mut pair, 1);
    assert_eq!(role(&pair, 0), Role::Primary);
}

/// The front end hears of it only when it is so.
#[test]
fn the_device_is_announced_when_it_may_be_used() {
    let mut core = Resource::new(Pair::new(true).nodes[0].cfg.clone(), 5);
    let now = units::Instant(1);
    let beside = Some(NodeMask::default());
    core.on_command(now, 1, Command::PrimaryAgain(Inherited { beside, ..Inherited::default() }));
    core.on_turn_end(now);
    let effects: Vec<Effect> = std::iter::from_fn(|| core.poll_effect()).collect();
    let usable = |e: &Effect| matches!(e, Effect::Device { access: Access::ReadWrite, .. });
    assert!(!effects.iter().any(usable));
    assert!(!effects.iter().any(|e| matches!(e, Effect::CommandDone { .. })));
}
