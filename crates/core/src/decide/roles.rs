//! Promotion and demotion, 8.4 (`docs/spec/connection-and-state.md` 8.2, 8.4).

use super::{ConnState as C, DiskState as D, Role, StateChange, StateChangeResult as Code};
use crate::rows::hit;

/// A promotion in progress. Start with [`Promotion::request`]; hand every result to [`Promotion::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promotion {
    force: bool,
    forced: bool,
    disk_up_to_date: bool,
    peer_outdated: bool,
    waited: bool,
    tries_left: u8,
}

/// What to do next for a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Request this change (cluster-wide if connected).
    Request(StateChange),
    /// Call `fence-peer`; hand the outcome to [`Promotion::fenced`].
    FencePeer,
    /// Wait for ping-timeout + 0.1 s (the other Primary may be dead), then request this for the last time.
    WaitThenRequest(StateChange),
    /// Primary. `forced`: users now see data that was not UpToDate.
    Done {
        /// The disk was declared UpToDate by force.
        forced: bool,
    },
    /// Refused.
    Failed(Code),
}

impl Promotion {
    /// How often the role is requested at most.
    pub const TRIES: u8 = 4;

    /// `force`: the administrator accepts data that is not known to be good.
    #[must_use]
    pub const fn new(force: bool) -> Promotion {
        Promotion {
            force,
            forced: false,
            disk_up_to_date: false,
            peer_outdated: false,
            waited: false,
            tries_left: Self::TRIES,
        }
    }

    /// The change to request now.
    #[must_use]
    pub fn request(&self) -> StateChange {
        StateChange {
            role: Some(Role::Primary),
            disk: self.disk_up_to_date.then_some(D::UpToDate),
            pdsk: self.peer_outdated.then_some(D::Outdated),
            ..StateChange::default()
        }
    }

    /// The connection may have come back while a handler ran: a peer that is there says itself what its disk is.
    #[must_use]
    pub fn beside(mut self, conn: C) -> Promotion {
        self.peer_outdated &= conn < C::Connected;
        self
    }

    /// A disk that is good by now, as a resync has ended while an answer was on its way: nothing is forced, so no
    /// generation begins that the peer, which has the same data, would not know as its own.
    #[must_use]
    pub fn with_disk(mut self, disk: D) -> Promotion {
        if disk == D::UpToDate {
            (self.forced, self.disk_up_to_date) = (false, false);
        }
        self
    }

    /// What follows from the result of a request; `disk` is the own disk's state now.
    pub fn next(&mut self, result: Code, disk: D) -> Step {
        let step = self.judge(result, disk);
        hit("promotion", || format!("{step:?}").split(['(', ' ']).next().unwrap_or_default().to_owned());
        step
    }

    fn judge(&mut self, result: Code, disk: D) -> Step {
        if result.is_success() {
            return Step::Done { forced: self.forced };
        }
        self.tries_left = self.tries_left.saturating_sub(1);
        if self.tries_left == 0 || self.waited {
            return Step::Failed(result);
        }
        match result {
            Code::FailedByPeer if self.peer_outdated => {
                self.peer_outdated = false;
                Step::Request(self.request())
            }
            Code::NoUpToDateDisk if self.force && !self.forced && (D::Inconsistent..D::UpToDate).contains(&disk) => {
                self.forced = true;
                self.disk_up_to_date = true;
                Step::Request(self.request())
            }
            Code::NoUpToDateDisk if disk == D::Consistent && !self.peer_outdated => Step::FencePeer,
            Code::PrimaryNop if !self.peer_outdated => Step::FencePeer,
            Code::TwoPrimaries => {
                self.waited = true;
                Step::WaitThenRequest(self.request())
            }
            other => Step::Failed(other),
        }
    }

    /// What follows after `fence-peer`: `fenced` as of `fencing::after_call`, `result` the code that led here. While
    /// the handler ran a resync may have made the disk good: then nothing needs to be forced any more.
    pub fn fenced(&mut self, fenced: bool, result: Code, disk: D) -> Step {
        *self = self.with_disk(disk);
        if fenced {
            self.disk_up_to_date |= disk == D::Consistent;
        } else if self.force {
            self.peer_outdated = true;
        } else {
            return Step::Failed(result);
        }
        Step::Request(self.request())
    }
}

/// What a change of role brings with it, after all pending requests are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RoleEffects {
    /// Forget discard-my-data.
    pub drop_discard_my_data: bool,
    /// Start a new generation.
    pub new_generation: bool,
    /// Bit 0 of the current generation becomes this.
    pub primary_bit: bool,
    /// Send UUIDS.
    pub send_uuids: bool,
    /// Send STATE.
    pub send_state: bool,
}

/// The effects of a successful promotion. `peer_disk` and `conn` as of after it.
///
/// Differs from DRBD 8.4 (`docs/compatibility.md`): alone, it always starts a generation, also if a bitmap UUID is set.
#[must_use]
pub fn promoted(forced: bool, conn: C, disk: D, peer_disk: D) -> RoleEffects {
    let connected = conn >= C::Connected;
    let alone = !connected || peer_disk <= D::Failed;
    RoleEffects {
        drop_discard_my_data: true,
        new_generation: disk >= D::Inconsistent && (forced || alone),
        primary_bit: true,
        send_uuids: connected && (forced || (disk >= D::Inconsistent && alone)),
        send_state: connected,
    }
}

/// The effects of a demotion.
#[must_use]
pub fn demoted(conn: C) -> RoleEffects {
    RoleEffects { send_state: conn >= C::Connected, ..RoleEffects::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_good_while_a_handler_ran_is_not_forced() {
        let mut promotion = Promotion::new(true);
        assert!(matches!(promotion.next(Code::NoUpToDateDisk, D::Inconsistent), Step::Request(_)));
        assert_eq!(promotion.next(Code::PrimaryNop, D::Inconsistent), Step::FencePeer);
        let Step::Request(change) = promotion.fenced(false, Code::PrimaryNop, D::UpToDate) else { panic!() };
        assert_eq!(change.disk, None);
        assert_eq!(promotion.next(Code::Success, D::UpToDate), Step::Done { forced: false });
        // Still not good: it is forced, and a new generation begins.
        let mut promotion = Promotion::new(true);
        promotion.next(Code::NoUpToDateDisk, D::Inconsistent);
        promotion.next(Code::PrimaryNop, D::Inconsistent);
        promotion.fenced(false, Code::PrimaryNop, D::Inconsistent);
        assert_eq!(promotion.next(Code::Success, D::UpToDate), Step::Done { forced: true });
    }
}
