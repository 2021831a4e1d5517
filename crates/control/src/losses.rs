//! How often links to the peers were lost lately: one that comes and goes looks like one that works, whenever one
//! looks.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::states::ConnectionState;
use crate::status::{Cause, LinkLosses};

/// What of the past is told. Where it is quiet for the shorter of these times, nothing is.
const LATELY: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(300)];
/// Fewer losses are what happens when a cable is pulled.
const UNSTEADY: usize = 3;
/// A link that is there for less than this does not hold yet.
const HOLDS: Duration = Duration::from_secs(10);
/// More are not remembered.
const REMEMBERED: usize = 200;
/// Ends that somebody or something wants, and that say themselves what they are for.
const WANTED: [&str; 3] = ["peer-disconnected", "another-came-first", "attach-reconnects"];

/// The links to all peers, by their node ids. Times are those since any fixed moment.
#[derive(Debug, Default)]
pub struct Losses(BTreeMap<u8, OfPeer>);

/// What is seen of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Its state.
    pub state: ConnectionState,
    /// Is data copied or compared?
    pub busy: bool,
    /// Bytes that the peer had not taken when the last link ended.
    pub left: usize,
}

#[derive(Debug, Default)]
struct OfPeer {
    /// It was when it was last looked at.
    connected: bool,
    /// Data was copied or compared then.
    busy: bool,
    lost: VecDeque<Loss>,
}

#[derive(Debug)]
struct Loss {
    at: Duration,
    /// Was data on its way?
    with_data: bool,
    why: String,
}

impl Losses {
    /// Looks at the connection to a peer after a change. `cause`: why its last link ended.
    pub fn look(&mut self, peer: u8, seen: Seen, cause: Option<&Cause>, now: Duration) {
        let known = self.0.entry(peer).or_default();
        match seen.state {
            ConnectionState::Connected => (known.connected, known.busy) = (true, seen.busy),
            // Somebody wanted it, or it was given up and says why.
            ConnectionState::StandAlone | ConnectionState::Disconnecting => *known = OfPeer::default(),
            _ if !std::mem::take(&mut known.connected) => {}
            _ if cause.is_some_and(|cause| WANTED.contains(&cause.code.as_str())) => {}
            _ => {
                if known.lost.len() == REMEMBERED {
                    known.lost.pop_front();
                }
                let why = cause.map(|cause| cause.text.clone()).unwrap_or_default();
                known.lost.push_back(Loss { at: now, with_data: known.busy || seen.left > 0, why });
            }
        }
    }

    /// What was, was before an administrator's command.
    pub fn forget(&mut self, peer: u8) {
        self.0.entry(peer).or_default().lost.clear();
    }

    /// Does the link to a peer come and go?
    pub fn of(&self, peer: u8, now: Duration) -> Option<LinkLosses> {
        let OfPeer { lost, connected, .. } = self.0.get(&peer)?;
        let since = |loss: &Loss| now.saturating_sub(loss.at);
        let last = lost.back().filter(|last| since(last) <= LATELY[0])?;
        LATELY.into_iter().find_map(|lately| {
            let within = || lost.iter().filter(|loss| since(loss) <= lately);
            let times = within().count();
            let longest = within().zip(within().skip(1)).map(|(one, next)| next.at - one.at).max().unwrap_or_default();
            (times >= UNSTEADY).then(|| LinkLosses {
                times: u32::try_from(times).unwrap_or(u32::MAX),
                seconds: u32::try_from(lately.as_secs()).unwrap_or(u32::MAX),
                with_data: within().all(|loss| loss.with_data),
                holds: *connected && since(last) > HOLDS.max(longest * 2),
                why: last.why.clone(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: u8 = 1;

    /// One that was lost at these seconds.
    fn lost_at(seconds: &[u64]) -> Losses {
        let loss = |s: &u64| Loss { at: second(*s), with_data: *s != 7, why: format!("at {s}") };
        let known = OfPeer { lost: seconds.iter().map(loss).collect(), ..OfPeer::default() };
        Losses(BTreeMap::from([(PEER, known)]))
    }

    fn second(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn what_is_lost_again_and_again_is_told_until_it_is_quiet() {
        let told = |seconds: &[u64], now| lost_at(seconds).of(PEER, second(now)).map(|l| (l.times, l.seconds));
        assert_eq!(told(&[], 9), None);
        assert_eq!(told(&[1, 5], 9), None);
        assert_eq!(told(&[1, 5, 9], 9), Some((3, 60)));
        assert_eq!(told(&[1, 5, 9, 20], 64), Some((3, 60)));
        // Slower ones, as where each takes `ko-count` times `timeout`.
        assert_eq!(told(&[1, 45, 90, 135], 140), Some((4, 300)));
        assert_eq!(told(&[1, 5, 9, 20], 81), None);
        assert_eq!(told(&[1, 45, 90, 135], 196), None);
    }

    #[test]
    fn who_is_there_for_longer_than_between_losses_holds() {
        let holds = |seconds: &[u64], now, connected| {
            let mut losses = lost_at(seconds);
            losses.0.entry(PEER).or_default().connected = connected;
            losses.of(PEER, second(now)).unwrap().holds
        };
        assert!(!holds(&[1, 2, 3], 13, true));
        assert!(holds(&[1, 2, 3], 14, true));
        assert!(!holds(&[1, 2, 3], 14, false));
        assert!(!holds(&[1, 11, 12], 32, true));
        assert!(holds(&[1, 11, 12], 33, true));
    }

    #[test]
    fn that_data_was_on_its_way_is_told_if_it_always_was() {
        let with_data = |seconds: &[u64]| lost_at(seconds).of(PEER, second(9)).unwrap();
        assert!(with_data(&[1, 2, 3]).with_data);
        assert!(!with_data(&[1, 2, 7]).with_data);
        assert_eq!(with_data(&[1, 2, 7]).why, "at 7");
        let mut losses = lost_at(&[1, 2, 3]);
        losses.forget(PEER);
        assert_eq!(losses.of(PEER, second(4)), None);
    }

    #[test]
    fn what_somebody_wants_is_no_loss() {
        let after = |state, code: Option<&str>| {
            let cause = code.map(|code| Cause { code: code.into(), text: "why".into() });
            let mut losses = Losses::default();
            for s in 1..=3 {
                for state in [ConnectionState::Connected, state, ConnectionState::Connecting] {
                    losses.look(PEER, Seen { state, busy: false, left: 1 }, cause.as_ref(), second(s));
                }
            }
            losses.of(PEER, second(4)).map(|l| (l.times, l.with_data, l.why))
        };
        assert_eq!(after(ConnectionState::BrokenPipe, Some("link-lost")), Some((3, true, "why".into())));
        assert_eq!(after(ConnectionState::BrokenPipe, Some("peer-disconnected")), None);
        assert_eq!(after(ConnectionState::StandAlone, None), None);
    }
}
