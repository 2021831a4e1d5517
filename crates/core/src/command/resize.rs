//! Another size on command (`docs/spec/connection-and-state.md` 12.6). In 8.4's dialect each node concludes it from
//! what the other one says; in 9's all agree on it.

use crate::Resource;
use crate::api::{CommandError, failure};
use crate::command::caller::Caller;
use crate::command::pending::{Progress, Resizing, SOON, Waiting};
use crate::command::two_phase::new_size::NewSize;
use crate::decide::{Reason, StateChangeResult as Code, sizes};
use crate::node::Node;
use units::{Duration, VolumeNr};
use wire::ResizeFlags;

/// So long a resize makes way for other transactions.
const PATIENCE: Duration = Duration::from_secs(30);

impl Resource {
    pub(super) fn resize(&mut self, id: Caller, volume: VolumeNr, flags: ResizeFlags) {
        let nine = self.sizes_by_9();
        let allowed = self.has_disk(volume).and_then(|()| self.may_resize(volume, flags, nine));
        match allowed {
            Err(refusal) => self.end(Some(id), Err(refusal)),
            Ok(()) if nine => {
                let until = self.node.now + PATIENCE;
                self.wait_for(id, Waiting::Resize(Resizing { volume, flags, until, asked: false }));
            }
            Ok(()) => {
                let size = sizes::usable(&self.size_limits(volume));
                if size < self.devices[volume].size && self.devices[volume].in_use() {
                    return self.end(Some(id), Err(would_shrink_in_use()));
                }
                let grows = size > self.devices[volume].size;
                let grown = if flags.assume_clean { sizes::Grown::Equal } else { sizes::Grown::Resynced };
                self.adopt_size(volume, size, !flags.assume_clean);
                if self.node.state.replicates_anywhere(volume) {
                    for c in self.node.connections.values_mut().filter(|_| grows) {
                        c.peer_devices[volume].link.exchange.grew(size, grown);
                    }
                    self.node.connections.ids().for_each(|peer| self.send_sizes(peer, volume));
                }
                self.end(Some(id), Ok(()));
            }
        }
    }

    pub(super) fn step_resize(&mut self, id: Caller, resizing: Resizing) -> Progress {
        let asked = Progress::Waits(Waiting::Resize(Resizing { asked: true, ..resizing }));
        if resizing.asked {
            // If not, another command has ended it.
            return if self.asks_for_size(id) { asked } else { self.resize_later(resizing) };
        }
        // Disks and peers may have come and gone meanwhile.
        let volume = resizing.volume;
        if let Err(refusal) = self.has_disk(volume).and_then(|()| self.may_resize(volume, resizing.flags, true)) {
            return Progress::Ended(Err(refusal));
        }
        match self.ask_for_size(id, volume, resizing.flags) {
            Some(result) => Progress::Ended(result),
            None if self.asks_for_size(id) => asked,
            None => self.resize_later(resizing),
        }
    }

    /// What came of asking all.
    pub(super) fn resize_answered(&mut self, id: Caller, outcome: Result<(), CommandError>) {
        let Some(at) = self.pending.iter().position(|p| p.id == id) else { return };
        let Waiting::Resize(resizing) = self.pending[at].what else { return };
        let busy = Code::ConcurrentStateChange.code();
        let progress = match outcome {
            Err(refusal) if refusal.code == busy => self.resize_later(resizing),
            other => Progress::Ended(other),
        };
        self.pending.remove(at);
        self.goes_on_or_ends(at, id, progress);
    }

    /// The size that the nodes agree on, by what those said that were reached.
    pub(super) fn size_agreed(&self, volume: VolumeNr, asked: &NewSize) -> Result<units::Sector, CommandError> {
        let dev = &self.node.devices[volume];
        let away = self.away_with_disk(volume, asked);
        let limits = sizes::Limits {
            peer: asked.most_of_peers(),
            known: if away.is_empty() { sizes::Known::All } else { sizes::Known::NotAll },
            user: asked.user(),
            assume_peer_has_space: asked.flags().forced,
            ..self.size_limits(volume)
        };
        let size = sizes::usable(&limits);
        let wanted = if limits.user.0 == 0 { limits.own } else { limits.user.min(limits.own) };
        if size < dev.size {
            return self.may_shrink(volume, &limits).map(|()| size);
        }
        if size > dev.size || wanted <= size {
            return Ok(size);
        }
        let text = match asked.smallest() {
            Some((node, most)) if most <= size => {
                format!("{} has room for {} KiB only: let its disk grow first", self.name_of(node), most.0 / 2)
            }
            _ => {
                let away: Vec<_> = away.into_iter().map(|node| self.name_of(node)).collect();
                format!(
                    "it is not known what the disk holds of {}: connect it, or say --assume-peer-has-space",
                    away.join(", ")
                )
            }
        };
        Err(failure(111, text))
    }
}

impl Node {
    fn may_resize(&self, volume: VolumeNr, flags: ResizeFlags, nine: bool) -> Result<(), CommandError> {
        if flags.forced && !nine {
            let text = "the peer says itself how large its device is: let that grow first, and resize while connected";
            return Err(failure(Code::NotSupported.code(), text));
        }
        let oldest = self.connected().map(|(_, c)| c.version()).min().unwrap_or(u32::MAX);
        let may = sizes::may_resize(!self.usable(volume), self.state.copies(volume), oldest, flags.assume_clean);
        may.map_err(|reason| match reason {
            Reason::ResizeDuringResync => failure(130, "a resync is running: resize when it has ended"),
            other => failure(153, other.to_string()),
        })
    }

    fn resize_later(&self, resizing: Resizing) -> Progress {
        if self.now >= resizing.until {
            let text = "the nodes do not come to agree on something else: try again";
            return Progress::Ended(Err(failure(Code::ConcurrentStateChange.code(), text)));
        }
        Progress::Later(Waiting::Resize(Resizing { asked: false, ..resizing }), self.now + SOON)
    }

    /// The nodes do not agree on a size, for this reason.
    pub(super) fn resize_failed(&self, volume: VolumeNr, code: Code) -> CommandError {
        match code {
            Code::FailedByPeer => failure(code.code(), "a peer refuses to change the size; its log says why"),
            other => self.refusal(volume, other),
        }
    }

    fn may_shrink(&self, volume: VolumeNr, limits: &sizes::Limits) -> Result<(), CommandError> {
        if limits.user.0 == 0 {
            return Err(failure(170, "the device would shrink: say to which size (--size)"));
        }
        if self.devices[volume].in_use() {
            return Err(would_shrink_in_use());
        }
        Ok(())
    }

    pub(super) fn name_of(&self, node: units::NodeId) -> String {
        self.connections.get(node).map_or_else(|| format!("node {}", node.index()), |c| c.cfg.peer_name.clone())
    }
}

fn would_shrink_in_use() -> CommandError {
    failure(Code::DeviceInUse.code(), "the device would shrink, and is in use: close it first")
}
