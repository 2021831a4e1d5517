//! Who stands at the devices' doors: threads that wait to be let in, and those that are on their way in.

use super::{FuseServer, VolumeNr, commit};
use crate::ring::{FuseSlot, Ring};
use crate::sys;
use crate::token::Token;
use frontends::Errno;
use frontends::fuse::{Call, Caller, Intent, Knock, Ran, Session};
use std::io::{self, IoSlice};
use units::{Duration, Instant};

/// All of them.
#[derive(Default)]
pub(super) struct Doors {
    openings: Vec<Opening>,
    entering: Vec<Entering>,
    /// Of a name that it knows the kernel asks once more after a refusal, in the same call.
    refused: Vec<(Entering, Errno)>,
    look_at: Option<Instant>,
    pause: Option<Duration>,
}

/// A thread that waits to be let in.
pub(crate) struct Opening {
    pub(crate) volume: VolumeNr,
    knock: Knock,
    slot: Option<Box<FuseSlot>>,
    call: Option<Call>,
    /// What for. `None`: not known yet.
    pub(crate) intent: Option<Intent>,
    pub(crate) came: Instant,
    /// A promotion was tried for it.
    pub(crate) tried: bool,
    /// How often the peers had answered since the process started when it was first looked at beside a Primary.
    pub(crate) heard: Option<u32>,
    /// As soon as the device is held.
    let_in: bool,
}

/// A thread in the call in which it was let in.
struct Entering {
    volume: VolumeNr,
    caller: Caller,
    call: Call,
    since: Instant,
    /// What it had had of the processors when it was let in, if that is counted.
    ran: Option<Ran>,
}

/// How often who is on the way in is looked at: the pause grows from the first to the second.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// How often it is looked whether who waits was killed.
const ALIVE: Duration = Duration::from_millis(100);
/// A thread that runs is about to wait in its call, or has left it. Measured: 50 ms are too few on a loaded machine.
const RUNS: Duration = Duration::from_secs(1);
/// The same of a thread of the kernel's, which works for somebody else and is never seen in a call.
const WORKS: Duration = Duration::from_millis(200);
/// With so much of a processor a thread that runs has left its call. One that has had less may not even have begun to
/// open the device: where many want to run, it can wait for its turn longer than any time that we would wait.
const ENOUGH: Duration = Duration::from_millis(5);

/// How soon that is. The same call a little later is another one, which may look the same.
const AGAIN: Duration = Duration::from_millis(20);
/// How often it is looked at once what a thread does.
const TRIES: u32 = 4;

impl Doors {
    /// Must the device be held?
    pub(super) fn need(&self, volume: VolumeNr) -> bool {
        self.openings.iter().any(|o| o.volume == volume && o.let_in) || self.entering.iter().any(|e| e.volume == volume)
    }

    fn look_soon(&mut self, now: Instant) {
        self.pause = None;
        self.look_at = Some(now + LOOK.0);
    }
}

impl Entering {
    /// Is it in another call by now, or gone?
    fn has_left(&self, now: Instant) -> bool {
        self.has_left_if(now, self.caller.call(), self.caller.ran())
    }

    /// The same, of a thread that is seen in this call, and has run as long as that.
    fn has_left_if(&self, now: Instant, seen: io::Result<Option<Call>>, ran: Option<Ran>) -> bool {
        let has_run = |enough: fn(Ran, Ran) -> bool| self.ran.zip(ran).is_none_or(|(then, now)| enough(then, now));
        let worked = || now >= self.since + WORKS && has_run(|then, now| now.turns > then.turns);
        match seen {
            Ok(Some(call)) if call.is_opaque() => worked(),
            Ok(Some(call)) => call != self.call,
            Ok(None) if self.call.is_opaque() => worked(),
            Ok(None) => now >= self.since + RUNS && has_run(|then, now| now.time >= then.time + ENOUGH.0),
            Err(_) if self.caller.0 == 0 => now >= self.since + RUNS,
            Err(_) => true,
        }
    }
}

impl FuseServer {
    /// Somebody asks for a door.
    pub(super) fn on_knock(&mut self, ring: &mut Ring<Token>, knock: Knock, slot: Option<Box<FuseSlot>>) {
        let (volume, now) = (super::volume_nr(knock.volume), sys::now());
        let call = if knock.caller.is_own() { Some(Call::default()) } else { known_call(knock.caller) };
        let intent = match &call {
            Some(_) if knock.caller.is_own() => Some(Intent::Look),
            Some(call) => Some(intent_of(knock.caller, call)),
            None => None,
        };
        let tried = false;
        let opening = Opening { volume, knock, slot, call, intent, came: now, tried, heard: None, let_in: false };
        if intent == Some(Intent::Look) {
            return self.open(ring, opening);
        }
        let is =
            |e: &Entering| e.volume == volume && e.caller == knock.caller && opening.call.as_ref() == Some(&e.call);
        if let Some(entering) = self.doors.entering.iter_mut().find(|e| is(e))
            && self.volumes.get(&volume).is_some_and(|node| node.is_ready())
        {
            (entering.since, entering.ran) = (now, knock.caller.ran());
            return self.open(ring, opening);
        }
        let again = self.doors.refused.iter().position(|(e, _)| is(e) && now < e.since + AGAIN);
        if let Some((_, errno)) = again.map(|at| self.doors.refused.swap_remove(at)) {
            return self.shut(ring, opening, errno);
        }
        self.doors.openings.push(opening);
        self.doors.look_soon(now);
    }

    /// Who waits for this question's answer was interrupted. Only death is a reason to answer: no program expects its
    /// `open` of a disk to be interrupted.
    pub(super) fn on_interrupt(&mut self, ring: &mut Ring<Token>, unique: u64) {
        let is = |o: &Opening| o.knock.unique == unique && o.knock.caller.is_killed();
        if let Some(at) = self.doors.openings.iter().position(is) {
            let opening = self.doors.openings.swap_remove(at);
            self.shut(ring, opening, Errno::from_raw(libc::EINTR));
        }
    }

    /// Those who wait for a decision.
    pub(crate) fn waiting_openings(&mut self) -> impl Iterator<Item = &mut Opening> {
        self.doors.openings.iter_mut().filter(|opening| !opening.let_in && opening.intent.is_some())
    }

    /// Does anyone wait, or come in?
    pub(crate) fn has_openings(&self) -> bool {
        !self.doors.openings.is_empty() || !self.doors.entering.is_empty()
    }

    /// Does anyone wait for a decision?
    pub(crate) fn anyone_waits(&self) -> bool {
        self.doors.openings.iter().any(|opening| !opening.let_in && opening.intent.is_some())
    }

    /// Refuses those who `errno` says something for.
    pub(crate) fn refuse_openings(&mut self, ring: &mut Ring<Token>, errno: impl Fn(&Opening) -> Option<Errno>) {
        let now = sys::now();
        let mut at = 0;
        while let Some(opening) = self.doors.openings.get(at) {
            let Some(errno) = errno(opening).filter(|_| !opening.let_in) else {
                at += 1;
                continue;
            };
            let opening = self.doors.openings.swap_remove(at);
            if let Some(call) = opening.call.clone() {
                let caller = opening.knock.caller;
                let who = Entering { volume: opening.volume, caller, call, since: now, ran: None };
                self.doors.refused.retain(|(e, _)| now < e.since + AGAIN);
                self.doors.refused.push((who, errno));
            }
            self.shut(ring, opening, errno);
        }
    }

    /// Lets those in whose device is held.
    pub(super) fn open_doors(&mut self, ring: &mut Ring<Token>) {
        let mut at = 0;
        while let Some(opening) = self.doors.openings.get(at) {
            let node = self.volumes.get_mut(&opening.volume).filter(|node| opening.let_in && node.is_ready());
            let Some(node) = node else {
                at += 1;
                continue;
            };
            node.let_in();
            let opening = self.doors.openings.swap_remove(at);
            let (volume, caller, since) = (opening.volume, opening.knock.caller, sys::now());
            let call = opening.call.clone().unwrap_or_default();
            // Before it is answered: it does not run.
            self.doors.entering.push(Entering { volume, caller, call, since, ran: caller.ran() });
            self.doors.look_soon(since);
            self.open(ring, opening);
        }
    }

    /// The same, and has those devices held that are not.
    pub(crate) fn open_ready(&mut self, ring: &mut Ring<Token>) {
        self.open_doors(ring);
        self.start_tasks(ring);
    }

    /// When to look at those at the doors.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        self.doors.look_at.filter(|_| self.takes_requests())
    }

    /// Looks at those at the doors, if it is time to.
    pub(crate) fn look(&mut self, ring: &mut Ring<Token>, now: Instant) {
        if self.doors.look_at.is_none_or(|at| now < at) {
            return;
        }
        let mut unknown = false;
        for opening in self.doors.openings.iter_mut().filter(|opening| opening.intent.is_none()) {
            opening.call = known_call(opening.knock.caller);
            opening.intent = opening.call.as_ref().map(|call| intent_of(opening.knock.caller, call));
            if now >= opening.came + RUNS {
                opening.intent.get_or_insert(Intent::Write { nonblocking: false });
            }
            unknown |= opening.intent.is_none();
        }
        while let Some(at) = self.doors.openings.iter().position(|o| o.intent == Some(Intent::Look)) {
            let opening = self.doors.openings.swap_remove(at);
            self.open(ring, opening);
        }
        while let Some(at) = self.doors.openings.iter().position(|o| o.knock.caller.is_killed()) {
            let opening = self.doors.openings.swap_remove(at);
            self.shut(ring, opening, Errno::from_raw(libc::EINTR));
        }
        self.doors.entering.retain(|entering| !entering.has_left(now));
        let pause = self.doors.pause.map_or(LOOK.0, |pause| LOOK.1.min(pause + pause));
        self.doors.pause = Some(pause);
        let soon = (unknown || !self.doors.entering.is_empty()).then_some(pause);
        self.doors.look_at = soon.or((!self.doors.openings.is_empty()).then_some(ALIVE)).map(|pause| now + pause);
    }

    /// Nobody at the doors is answered any more; the questions wait for the next process.
    pub(super) fn leave_doors(&mut self) {
        self.doors = Doors::default();
    }

    /// Those who wait ask once more.
    pub(super) fn forget_openings(&mut self) {
        self.doors.openings.clear();
    }

    fn open(&mut self, ring: &mut Ring<Token>, opening: Opening) {
        self.out.clear();
        self.session.let_in(&opening.knock, &mut self.out);
        self.answer_knock(ring, opening);
    }

    fn shut(&mut self, ring: &mut Ring<Token>, opening: Opening, errno: Errno) {
        self.out.clear();
        Session::refuse(opening.knock.unique, errno, &mut self.out);
        self.answer_knock(ring, opening);
    }

    fn answer_knock(&mut self, ring: &mut Ring<Token>, opening: Opening) {
        match opening.slot {
            Some(slot) => commit(ring, &self.fd, slot, &self.out, &[]),
            None => drop(sys::write_message(&self.fd, &[IoSlice::new(&self.out)])),
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.answered(opening.knock.unique);
        }
    }
}

impl Opening {
    /// As soon as the device is held.
    pub(crate) fn let_in(&mut self) {
        self.let_in = true;
    }
}

/// What a thread does. `None`: not to be told yet. Of who is not to be seen from here, or works for somebody else, only
/// the worst can be assumed; who is gone does nothing.
fn known_call(caller: Caller) -> Option<Call> {
    for _ in 0..TRIES {
        match caller.call() {
            Ok(Some(call)) => return Some(call),
            // It was woken on another processor, or has not gone to sleep yet.
            Ok(None) => std::thread::yield_now(),
            Err(_) => return Some(Call::default()),
        }
    }
    None
}

fn intent_of(caller: Caller, call: &Call) -> Intent {
    let gone = caller.0 != 0 && *call == Call::default();
    if gone { Intent::Look } else { caller.intent(call) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_processor_has_not_left_its_call() {
        let start = Instant(0);
        let (call, other) = (Call::from("257 0x1"), Call::from("0 0x3"));
        let ran = |time: Duration, turns| Some(Ran { time: time.0, turns });
        let entering = |call: &Call, ran| Entering {
            volume: VolumeNr(0),
            caller: Caller(1),
            call: call.clone(),
            since: start,
            ran,
        };
        let minute = Duration::from_secs(60);
        let who = entering(&call, ran(minute, 7));
        let left =
            |who: &Entering, after, seen: Option<&Call>, ran| who.has_left_if(start + after, Ok(seen.cloned()), ran);
        // It is seen in another call, or in its own.
        assert!(left(&who, LOOK.0, Some(&other), ran(minute, 8)));
        assert!(!left(&who, minute, Some(&call), ran(minute + minute, 9)));
        // It runs, or would if it were its turn.
        assert!(!left(&who, minute, None, ran(minute, 7)));
        assert!(!left(&who, minute, None, ran(minute + Duration::from_millis(1), 8)));
        assert!(!left(&who, LOOK.1, None, ran(minute + ENOUGH, 8)));
        assert!(left(&who, RUNS, None, ran(minute + ENOUGH, 8)));
        // A thread of the kernel's, which has done what it was asked to, or not begun with it.
        let worker = Call::from("-1 0x0 0x0");
        let who = entering(&worker, ran(minute, 7));
        for seen in [Some(&worker), None] {
            assert!(!left(&who, minute, seen, ran(minute, 7)));
            assert!(!left(&who, LOOK.1, seen, ran(minute, 8)));
            assert!(left(&who, WORKS, seen, ran(minute, 8)));
        }
        // Where the kernel does not count, time is all there is.
        assert!(left(&entering(&call, None), RUNS, None, None));
        assert!(left(&entering(&worker, None), WORKS, Some(&worker), None));
    }
}
