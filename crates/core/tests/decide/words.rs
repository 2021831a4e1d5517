//! The words that rows use for states and policies.

use crate::table::Args;
use units::Sector;
use urbd_core::decide::state::Replication;
use urbd_core::decide::{ConnState, DiskState, Role};
use urbd_core::dialect84;
use urbd_core::{Policies, RrConflict};
use wire::AfterSplitBrain;

pub(crate) fn policy(args: &Args, key: &str) -> AfterSplitBrain {
    args.pick(key, &named(AfterSplitBrain::ALL, AfterSplitBrain::name), AfterSplitBrain::Disconnect)
}

pub(crate) fn rr_conflict(args: &Args) -> RrConflict {
    let words = [
        ("disconnect", RrConflict::Disconnect),
        ("call-pri-lost", RrConflict::CallPriLost),
        ("violently", RrConflict::Violently),
        ("retry-connect", RrConflict::RetryConnect),
        ("auto-discard", RrConflict::AutoDiscard),
    ];
    args.pick("rr", &words, RrConflict::Disconnect)
}

pub(crate) fn primary_or_not(primary: bool) -> Role {
    if primary { Role::Primary } else { Role::Secondary }
}

pub(crate) fn policies(args: &Args) -> Policies {
    Policies { none: policy(args, "0pri"), one: policy(args, "1pri"), two: policy(args, "2pri") }
}

fn named<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str) -> Vec<(&'static str, T)> {
    all.iter().map(|&v| (name(v), v)).collect()
}

pub(crate) fn disk(args: &Args, key: &str, default: DiskState) -> DiskState {
    args.pick(key, &named(DiskState::ALL, DiskState::name), default)
}

pub(crate) fn conn(args: &Args, key: &str, default: ConnState) -> ConnState {
    args.pick(key, &named(ConnState::ALL, ConnState::name), default)
}

/// What goes on, by 8.4's name of it.
pub(crate) fn replication(args: &Args, key: &str) -> Replication {
    dialect84::connection_and_replication(conn(args, key, ConnState::Connected)).1
}

pub(crate) fn role(args: &Args, key: &str) -> Role {
    args.pick(key, &named(Role::ALL, Role::name), Role::Secondary)
}

pub(crate) fn sector(args: &Args, key: &str) -> Sector {
    Sector(args.number(key, 0))
}

/// `who=me|peer|both` as (me, peer).
pub(crate) fn sides(args: &Args, key: &str) -> (bool, bool) {
    args.pick(
        key,
        &[("me", (true, false)), ("peer", (false, true)), ("both", (true, true)), ("none", (false, false))],
        (false, false),
    )
}
