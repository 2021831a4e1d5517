//! Promotion and demotion, 8.4 (`docs/spec/connection-and-state.md` 8.2, 8.4).

use super::{DiskState as D, StateChangeResult as Code};
use crate::rows::hit;

/// A promotion in progress. Start with [`Promotion::request`]; hand every result to [`Promotion::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promotion {
    force: Force,
    consistent_is_good: bool,
    peer_outdated: bool,
    tries_left: u8,
}

/// Does the administrator accept data that is not known to be good?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Force {
    No,
    /// Yes, where there is no other.
    IfNeeded,
    /// There is no other.
    Needed,
}

/// What to do next for a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Request this change (cluster-wide if connected).
    Request(Rise),
    /// Call `fence-peer`; hand the outcome to [`Promotion::fenced`].
    FencePeer,
    /// Wait for ping-timeout + 0.1 s (the other Primary may be dead), then request this for the last time.
    WaitThenRequest(Rise),
    /// Primary.
    Done,
    /// Refused.
    Failed(Code),
}

/// What a promotion declares about a volume beside the role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rise {
    /// The own disk becomes this.
    pub disk: Option<D>,
    /// A peer's disk becomes this, unless that peer is connected and says itself what it is: the connection may have
    /// come back while a handler ran.
    pub peer_disk: Option<D>,
}

impl Promotion {
    /// How often the role is requested at most.
    pub const TRIES: u8 = 4;

    /// `force`: the administrator accepts data that is not known to be good.
    #[must_use]
    pub const fn new(force: bool) -> Promotion {
        Promotion {
            force: if force { Force::IfNeeded } else { Force::No },
            consistent_is_good: false,
            peer_outdated: false,
            tries_left: Self::TRIES,
        }
    }

    /// Is there something that it would change although the node is Primary already: a disk to be declared good?
    #[must_use]
    pub fn changes(&self, disks: impl IntoIterator<Item = D>) -> bool {
        self.force != Force::No && disks.into_iter().any(|disk| disk != D::UpToDate)
    }

    /// What to request now for a volume whose disk is `disk`.
    #[must_use]
    pub fn request(&self, disk: D) -> Rise {
        let good = self.forces(disk) || (self.consistent_is_good && disk == D::Consistent);
        Rise { disk: good.then_some(D::UpToDate), peer_disk: self.peer_outdated.then_some(D::Outdated) }
    }

    /// Is a disk in this state declared UpToDate by force: do users now see data that was not known to be good? Not one
    /// that is good by now, as a resync has ended while an answer was on its way: no generation begins for it that the
    /// peer, which has the same data, would not know as its own.
    #[must_use]
    pub fn forces(&self, disk: D) -> bool {
        self.force == Force::Needed && (D::Inconsistent..D::UpToDate).contains(&disk)
    }

    /// What follows from the result of a request; `disk` is the state of the disk that the result is about.
    pub fn next(&mut self, result: Code, disk: D) -> Step {
        let step = self.judge(result, disk);
        hit("promotion", || format!("{step:?}").split(['(', ' ']).next().unwrap_or_default().to_owned());
        step
    }

    fn judge(&mut self, result: Code, disk: D) -> Step {
        if result.is_success() {
            return Step::Done;
        }
        self.tries_left = self.tries_left.saturating_sub(1);
        if self.tries_left == 0 {
            return Step::Failed(result);
        }
        match result {
            Code::FailedByPeer if self.peer_outdated => {
                self.peer_outdated = false;
                Step::Request(self.request(disk))
            }
            Code::NoUpToDateDisk if self.force == Force::IfNeeded && (D::Inconsistent..D::UpToDate).contains(&disk) => {
                self.force = Force::Needed;
                Step::Request(self.request(disk))
            }
            Code::NoUpToDateDisk if disk == D::Consistent && !self.peer_outdated => Step::FencePeer,
            Code::PrimaryNop if !self.peer_outdated => Step::FencePeer,
            // Who is away counts as Outdated then, which may give quorum (9.4).
            Code::NoQuorum if self.force != Force::No && !self.peer_outdated => {
                self.peer_outdated = true;
                Step::Request(self.request(disk))
            }
            Code::TwoPrimaries => {
                self.tries_left = 1;
                Step::WaitThenRequest(self.request(disk))
            }
            other => Step::Failed(other),
        }
    }

    /// What follows after `fence-peer`: `fenced` as of `fencing::after_call`, `result` the code that led here. While
    /// the handler ran a resync may have made the disk good: then nothing needs to be forced any more.
    pub fn fenced(&mut self, fenced: bool, result: Code, disk: D) -> Step {
        if fenced {
            self.consistent_is_good = true;
        } else if self.force != Force::No {
            self.peer_outdated = true;
        } else {
            return Step::Failed(result);
        }
        Step::Request(self.request(disk))
    }
}

/// What a promotion means for the generations of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promoted {
    /// Start a new one.
    pub new_generation: bool,
    /// Send UUIDS.
    pub send_uuids: bool,
}

/// That of a successful promotion. `peer_disk` and `connected`, whether the volume replicates, as of after it.
///
/// Differs from DRBD 8.4 (`docs/compatibility.md`): alone, it always starts a generation, also if a bitmap UUID is set.
#[must_use]
pub fn promoted(forced: bool, connected: bool, disk: D, peer_disk: D) -> Promoted {
    let alone = !connected || peer_disk <= D::Failed;
    Promoted {
        new_generation: disk >= D::Inconsistent && (forced || alone),
        send_uuids: connected && (forced || (disk >= D::Inconsistent && alone)),
    }
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
        assert_eq!(promotion.next(Code::Success, D::UpToDate), Step::Done);
        assert!(!promotion.forces(D::UpToDate));
        // Still not good: it is forced, and a new generation begins.
        let mut promotion = Promotion::new(true);
        promotion.next(Code::NoUpToDateDisk, D::Inconsistent);
        promotion.next(Code::PrimaryNop, D::Inconsistent);
        promotion.fenced(false, Code::PrimaryNop, D::Inconsistent);
        assert_eq!(promotion.next(Code::Success, D::UpToDate), Step::Done);
        assert!(promotion.forces(D::Inconsistent));
    }
}
