//! The applications, and what the oracle makes of their requests.

use crate::cluster::{Cluster, Input, Request};
use crate::net::Wish;
use crate::oracle::{Moment, View, Written};
use crate::payload::{ContentId, Owner, Payload, Piece, ZEROES};
use crate::plan::{bytes, node_id, volume_nr};
use crate::promises::{Received, chooses_a_victim, is_outlived};
use crate::ranges::sectors;
use units::{ByteLen, Duration, Sector, SectorRange};
use urbd_core::{Access, BlockRequest, Event, IoError, Notice, Openers, Protocol, RequestKind, Resource};
use wire::{ConnState, DiskState, Role, StateWord};

/// Requests that an application has in flight at most.
const MOST_REQUESTS: usize = 64;
/// Contents below this are what disks held at first.
pub(crate) const FIRST_WRITE: u64 = 16;

impl Cluster {
    /// An application asks for something, at a node that can take it.
    pub(crate) fn io(&mut self, v: usize, kind: RequestKind, range: SectorRange, preferred: usize) {
        self.note_wish();
        let fits = |n: &usize| {
            let node = &self.nodes[*n];
            let volume = &node.volumes[v];
            let room = node.requests.len() < MOST_REQUESTS;
            node.core.is_some() && volume.open && volume.writable && room && range.end.0 <= volume.size
        };
        let Some(n) = std::iter::once(preferred).chain(self.peers(preferred)).find(fits) else { return };
        if range.is_empty() {
            return;
        }
        let moment = self.tick();
        self.nodes[n].volumes[v].reach.note(moment);
        let tag = moment;
        let id = (FIRST_WRITE + moment) as ContentId;
        let (content, data) = match kind {
            RequestKind::Write { .. } => (id, Payload::of_write(id, range)),
            // Something that must be overwritten.
            RequestKind::Read => (id, Payload::of_write(id, range)),
            _ => (ZEROES, Payload::default()),
        };
        let data = self.nodes[n].buffers.add(Owner::Application, data);
        let written = Written { write: tag, content, range, issued: moment };
        if is_write(kind) {
            self.issue(n, v, &written);
        }
        let flush = kind == RequestKind::Flush;
        let request = BlockRequest {
            tag,
            volume: volume_nr(v),
            kind,
            sector: if flush { Sector(0) } else { range.start },
            len: if flush { ByteLen(0) } else { bytes(range.end.0 - range.start.0) },
            data: data.clone(),
        };
        let core = self.nodes[n].core.as_ref().expect("it fits");
        let role = core.state_word(volume_nr(v)).expect("the volume exists").role;
        let sent = vec![None; self.nodes.len()];
        let told = vec![false; self.nodes.len()];
        self.nodes[n].requests.insert(tag, Request { volume: v, kind, written, data, sent, told, role });
        self.nodes[n].inbox.push_back(Input::Request(request));
        self.wake(n);
    }

    fn issue(&mut self, n: usize, v: usize, w: &Written) {
        self.nodes[n].volumes[v].view.may_get(w);
        if self.setup.extras.two_primaries {
            // A Primary without a disk reads the other one's: also what is not sent to it.
            self.peers(n).for_each(|peer| self.nodes[peer].volumes[v].view.may_get(w));
        }
    }

    /// Writes to this range go out to a peer: those whose data the packet has.
    pub(crate) fn mirrored(
        &mut self,
        (n, peer): (usize, usize),
        v: usize,
        range: SectorRange,
        data: &Payload,
        connection: u64,
    ) {
        let mut sent = Vec::new();
        let epoch = self.nodes[n].epochs[peer].present();
        for request in self.nodes[n].requests.values_mut() {
            // A longer one to the same place may be there in part, and wait for what never went to the peer.
            let inside = |piece: &Piece| piece.id == request.written.content;
            let meant = (data.0.is_empty() && request.written.content == ZEROES) || data.0.iter().any(inside);
            if request.volume == v && is_write(request.kind) && request.written.range.overlaps(range) && meant {
                // A later packet for the same place may be another request's.
                let first = request.sent[peer].filter(|(before, _)| *before == connection);
                request.sent[peer] = first.or(Some((connection, epoch)));
                sent.push(request.written);
            }
        }
        for written in sent {
            self.nodes[peer].volumes[v].view.may_get(&written);
        }
    }

    /// A request has ended.
    pub(crate) fn completed(
        &mut self,
        n: usize,
        core: &Resource,
        tag: u64,
        result: Result<(), IoError>,
    ) -> Result<(), String> {
        let request = self.nodes[n].requests.remove(&tag).ok_or_else(|| format!("request {tag} ended twice"))?;
        let v = request.volume;
        self.trace.mix(tag << 8 | u64::from(result.is_ok()));
        let content = self.nodes[n].buffers.content(&request.data)?;
        self.nodes[n].buffers.release(&request.data, Owner::Application)?;
        let word = core.state_word(volume_nr(v)).expect("the volume exists");
        let words: Vec<_> = self.words(n, v, core).collect();
        if let Err(error) = result {
            self.check_reason(n, &request, &words, error)?;
        }
        match request.kind {
            RequestKind::Read => {
                // Who reads on a Secondary is promised a copy, and not the newest one (state 8.3). What a Primary was
                // asked is answered as a Primary answers, whatever becomes of the node meanwhile (data 4.3).
                if result.is_ok() && (word.role == Role::Primary || request.role == Role::Primary) {
                    let view = &self.nodes[n].volumes[v].view;
                    let range = request.written.range;
                    view.allows(range, &content, request.written.issued).map_err(|e| format!("wrong read: {e}"))?;
                }
                Ok(())
            }
            RequestKind::Flush if result.is_ok() => self.flushed(n, v, &words, &request),
            RequestKind::Flush => Ok(()),
            _ => self.write_ended(n, v, &words, &request, result),
        }
    }

    fn write_ended(
        &mut self,
        n: usize,
        v: usize,
        words: &[(usize, StateWord)],
        request: &Request,
        result: Result<(), IoError>,
    ) -> Result<(), String> {
        let now = self.tick();
        let acknowledged = result.is_ok();
        let written = request.written;
        let fua = is_durable(request.kind);
        let reading = self.oldest_read(n, now).min(if fua { written.issued } else { now });
        if acknowledged {
            self.acknowledged[n] += 1;
            self.check_told(n, words, request)?;
        }
        let count = self.acknowledged[n];
        for (epochs, sent) in self.nodes[n].epochs.iter_mut().zip(&request.sent) {
            if let Some(sent) = *sent {
                epochs.note_completed(sent, now, acknowledged.then_some((v, written, count)));
            }
        }
        let volume = &mut self.nodes[n].volumes[v];
        volume.view.ended(&written, acknowledged, now, reading);
        if !acknowledged {
            return Ok(());
        }
        let before = std::mem::replace(&mut volume.view.includes[n], count);
        let mut holders = Vec::new();
        if words.first().is_some_and(|(_, word)| word.disk == DiskState::UpToDate) {
            holders.push(n);
        }
        for (peer, word) in words {
            let peer = *peer;
            if self.is_mirrored(n, peer, word, request) {
                // A flush of ours that is under way asks what the peer held when it began.
                let reading = self.oldest_read(peer, now).min(reading);
                let volume = &mut self.nodes[peer].volumes[v];
                volume.view.ended(&written, true, now, reading);
                volume.view.includes[n] = count;
                holders.push(peer);
            } else if self.was_written_by_who_is_gone(n, peer, request) {
                let volume = &mut self.nodes[peer].volumes[v];
                volume.view.confirmed(&written, now, now, reading);
                volume.view.includes[n] = count;
                volume.had_it_as_it_left(n, before, count);
                // It may be in its cache only, until a flush of its own.
                volume.unflushed.push((now, written.range, peer));
            } else if request.sent[peer].is_some() && self.went_on_with(n, (peer, word), v, &written) {
                let volume = &mut self.nodes[peer].volumes[v];
                let left_at = volume.left_at.as_mut().map(|includes| &mut includes[n]);
                for includes in left_at.into_iter().chain([&mut volume.view.includes[n]]) {
                    *includes = if *includes == before { count } else { *includes };
                }
            }
        }
        for holder in holders {
            self.nodes[holder].volumes[v].unflushed.push((now, written.range, n));
            if holder != n && self.setup.protocol_between(n, holder) == Protocol::B {
                self.nodes[holder].volumes[v].received.push(Received { count, by: n, written });
            } else {
                self.check_holder(holder, v, &written, now, fua)?;
            }
        }
        Ok(())
    }

    /// Does this peer certainly have a write that is complete here? With protocol A that is not known yet.
    fn is_mirrored(&mut self, n: usize, peer: usize, word: &StateWord, request: &Request) -> bool {
        let by = |number| request.sent[peer].is_some_and(|(sent, _)| sent == number);
        let connected = matches!(self.net.wishes[n][peer], Wish::Connected(number) if by(number));
        connected
            && self.setup.protocol_between(n, peer) != Protocol::A
            && self.peer_is_equal(n, peer, request.volume, word)
    }

    /// What a node says of a volume towards each of its peers, if it has it.
    pub(crate) fn words(
        &self,
        n: usize,
        v: usize,
        core: &Resource,
    ) -> impl Iterator<Item = (usize, StateWord)> + use<> {
        let word = |peer| core.state_word_towards(volume_nr(v), node_id(peer)).map(|word| (peer, word));
        let words: Vec<_> = self.peers(n).filter_map(word).collect();
        words.into_iter()
    }

    /// Is the other end of this node's connection to a peer up?
    pub(crate) fn peer_listens(&self, n: usize, peer: usize) -> bool {
        let Wish::Connected(number) = self.net.wishes[n][peer] else { return false };
        self.net.is_up_at(number, peer)
    }

    /// This node's disk must hold what was acknowledged.
    fn check_holder(
        &self,
        holder: usize,
        v: usize,
        written: &Written,
        now: Moment,
        durable: bool,
    ) -> Result<(), String> {
        let (volume, range) = (&self.nodes[holder].volumes[v], written.range);
        let on_disk = Payload::read(volume.data.data(), range);
        let allowed = volume.view.allows(range, &on_disk, now);
        allowed.map_err(|e| format!("acknowledged, but not on the disk of node {holder}: {e}"))?;
        if durable {
            let on_disk = Payload::read(volume.data.durable(), range);
            let allowed = volume.view.allows_durable(written, &on_disk);
            allowed.map_err(|e| format!("FUA write acknowledged, but not durable on node {holder}: {e}"))?;
        }
        Ok(())
    }

    /// A flush is complete: all that was acknowledged before it was asked for is durable on the good disks.
    fn flushed(&mut self, n: usize, v: usize, words: &[(usize, StateWord)], request: &Request) -> Result<(), String> {
        let began = request.written.issued;
        let own_good = words.first().is_some_and(|(_, word)| word.disk == DiskState::UpToDate);
        // With protocols A and B a flush waits for the peer only where that has the good copy.
        let mut good: Vec<usize> = own_good.then_some(n).into_iter().collect();
        for (peer, word) in words {
            let promised = self.setup.protocol_between(n, *peer) == Protocol::C || !own_good;
            if promised && self.peer_is_equal(n, *peer, v, word) {
                good.push(*peer);
            }
        }
        for holder in good {
            let volume = &mut self.nodes[holder].volumes[v];
            let unflushed = std::mem::take(&mut volume.unflushed);
            // The other node's own writes, from when it was Primary, are in its activity log for as long as it may lose
            // them.
            let counts = |(at, _, by): &(Moment, SectorRange, usize)| *at < began && (holder == n || *by == n);
            let (covered, rest): (Vec<_>, Vec<_>) = unflushed.into_iter().partition(counts);
            volume.unflushed = rest;
            // Where the other of two Primaries has written as well, only its own flush says something.
            let two = self.setup.extras.two_primaries;
            let others: Vec<_> = volume.unflushed.iter().filter(|_| two).map(|(_, range, _)| *range).collect();
            for (_, range, _) in covered {
                let durable = Payload::read(volume.data.durable(), range);
                let allowed = volume.view.allows_but(&others, range, &durable, began);
                allowed.map_err(|e| format!("flush complete, but node {holder} may still lose: {e}"))?;
            }
        }
        Ok(())
    }

    /// Writes of the applications that have not ended and that this node's copy may get: its own, and what the others
    /// have sent.
    pub(crate) fn under_way(&self, n: usize, v: usize) -> Vec<Written> {
        let own = self.nodes[n].requests.values();
        let theirs = self.peers(n).flat_map(|peer| self.nodes[peer].requests.values());
        own.chain(theirs.filter(|r| r.sent[n].is_some()))
            .filter(|r| r.volume == v && is_write(r.kind))
            .map(|r| r.written)
            .collect()
    }

    pub(crate) fn oldest_read(&self, n: usize, now: Moment) -> Moment {
        let reads = self.nodes[n].requests.values().filter(|r| !is_write(r.kind) || is_durable(r.kind));
        reads.map(|r| r.written.issued).min().unwrap_or(now)
    }

    // -- openers ------------------------------------------------------------------------------------------------------

    pub(crate) fn device_changed(&mut self, n: usize, v: usize, size: ByteLen, access: Access) {
        let before = self.nodes[n].volumes[v].size;
        if self.nodes.len() > 2 && before > 0 && size.0 / 512 > before {
            self.may_hold_what_grew(n, v, sectors(before, size.0 / 512));
        }
        let volume = &mut self.nodes[n].volumes[v];
        volume.size = size.0 / 512;
        volume.writable = access == Access::ReadWrite;
        self.adjust_openers(n, v);
    }

    /// Nobody has promised anything of what a device has grown by: any copy's will do.
    fn may_hold_what_grew(&mut self, n: usize, v: usize, grown: SectorRange) {
        let now = self.tick();
        for of in 0..self.nodes.len() {
            let data = self.nodes[of].volumes[v].data.data();
            let grown = sectors(grown.start.0, grown.end.0.min(data.len()));
            let held: Vec<_> = data.runs(grown).map(|(range, content)| (range, content.id)).collect();
            let view = &mut self.nodes[n].volumes[v].view;
            held.into_iter().for_each(|(range, content)| view.may_hold(range, content, now));
        }
    }

    pub(crate) fn want_open(&mut self, n: usize, open: bool) {
        self.nodes[n].wants_open = open;
        for v in 0..self.nodes[n].volumes.len() {
            self.adjust_openers(n, v);
        }
    }

    fn adjust_openers(&mut self, n: usize, v: usize) {
        let node = &mut self.nodes[n];
        let open = node.wants_open && node.volumes[v].writable && node.leaving.is_none();
        if open != node.volumes[v].open {
            node.volumes[v].open = open;
            let openers = Openers { writers: u32::from(open), readers: 0 };
            self.input(n, Duration::from_millis(1), Input::Openers(volume_nr(v), openers));
        }
    }

    // -- what the nodes' states mean for the oracle -------------------------------------------------------------------

    /// What happens within a turn and is not seen after it.
    pub(crate) fn noticed(&mut self, n: usize, v: usize, notice: &Notice) {
        let reason = notice.reason;
        let about = notice.peer.map(|peer| peer.index());
        let peers = self.peers(n).filter(|peer| about.is_none_or(|about| about == *peer));
        let volume = &mut self.nodes[n].volumes[v];
        if let Event::State { old, new } = &notice.event {
            volume.reach.note_change(about, old, new, self.moment);
        }
        let is_target = |w: &StateWord| matches!(w.conn, ConnState::SyncTarget | ConnState::PausedSyncT);
        let source = peers.clone().find(|peer| volume.towards[*peer].as_ref().is_some_and(is_target));
        match notice.event {
            Event::ResyncEnded { failed: 0 } if source.is_some() => volume.synced = source,
            Event::Other if reason == "new-generation" => {
                volume.generation_began = true;
                // A Secondary begins one for its peer only, which may have been promoted in this very turn.
                volume.served |= volume.word.is_some_and(|w| w.role == Role::Secondary);
                // It may be demoted, or connected again, in this very turn.
                let primary = volume.word.is_some_and(|w| w.role == Role::Primary);
                peers.for_each(|peer| volume.alone[peer] |= primary);
                if let Some(begun_by) = about.filter(|_| !primary) {
                    self.goes_on_without(n, begun_by, v);
                }
            }
            _ if chooses_a_victim(reason) => volume.gave_in = true,
            Event::Compared9(strategy) if reason != "disk-state-decides" => {
                volume.outlived = is_outlived(reason, strategy);
            }
            Event::Other if reason == "was-inconsistent" => volume.came_inconsistent = true,
            Event::State { old, new } if (old.disk, new.disk) == (DiskState::UpToDate, DiskState::Failed) => {
                volume.arrived.closed = true;
            }
            // The process may die in this very turn, or lose its connection.
            Event::State { old, new } if (old.role, new.role) == (Role::Secondary, Role::Primary) => {
                for (alone, word) in volume.alone.iter_mut().zip(&volume.towards) {
                    *alone |= word.is_some_and(|w| w.conn < ConnState::Connected);
                }
                if let Some(peer) = volume.towards.iter().position(|w| w.as_ref().is_some_and(works_on_the_peers_copy))
                {
                    self.sees_the_peers_copy(n, peer, v);
                }
            }
            _ => {}
        }
    }

    /// This copy has part in a generation of that peer, which is Primary: whom that one goes on without, this copy goes
    /// on without, too.
    fn goes_on_without(&mut self, n: usize, primary: usize, v: usize) {
        let without = self.nodes[primary].volumes[v].alone.clone();
        let mine = self.nodes[n].volumes[v].alone.iter_mut().zip(without).enumerate();
        mine.filter(|(of, _)| *of != n && *of != primary).for_each(|(_, (mine, theirs))| *mine |= theirs);
    }

    /// Looks at a process after its turn.
    pub(crate) fn observe(&mut self, n: usize, core: &Resource) {
        for v in 0..self.nodes[n].volumes.len() {
            let words: Vec<_> = self.words(n, v, core).collect();
            let volume = &mut self.nodes[n].volumes[v];
            volume.arrived.closed = false;
            volume.reach.note_words(words.iter().copied(), self.moment);
            for peer in 0..volume.towards.len() {
                if !words.iter().any(|(there, _)| *there == peer) {
                    volume.towards[peer] = None;
                }
            }
            if words.is_empty() && core.state_word(volume_nr(v)).is_none() {
                // It was removed, and nobody had it open.
                (volume.size, volume.writable, volume.open) = (0, false, false);
            }
            let old = std::mem::replace(&mut volume.word, words.first().map(|(_, word)| *word));
            let before: Vec<_> = words.iter().map(|(p, word)| volume.towards[*p].replace(*word)).collect();
            if words.iter().zip(&before).all(|((_, word), old)| *old == Some(*word)) {
                continue;
            }
            for ((peer, word), old) in words.iter().zip(&before).filter(|((_, word), old)| **old != Some(*word)) {
                self.observe_towards(n, *peer, v, old.as_ref(), word);
            }
            let word = words[0].1;
            let good = |w: &StateWord| w.disk == DiskState::UpToDate;
            let was_good = old.as_ref().is_some_and(good);
            let volume = &mut self.nodes[n].volumes[v];
            if was_good && !good(&word) {
                let includes = volume.view.includes.clone();
                volume.left_at.get_or_insert(includes);
            }
            let synced = std::mem::take(&mut volume.synced);
            if let Some(source) = synced.filter(|_| !was_good) {
                let secondary = old.is_none_or(|w| w.role == Role::Secondary);
                self.resynced(n, source, v, secondary);
                let volume = &mut self.nodes[n].volumes[v];
                if !good(&word) {
                    // And gone again in the same turn.
                    volume.left_at = Some(volume.view.includes.clone());
                }
            } else if !was_good && good(&word) {
                self.became_good(n, v, old.as_ref(), &word);
            }
            for ((peer, word), old) in words.iter().zip(&before) {
                if equals(word) && !old.is_some_and(|w| equals(&w)) {
                    self.met_as_equals(n, *peer, v);
                }
            }
        }
    }

    /// What a node says towards a peer is other than after its last turn.
    fn observe_towards(&mut self, n: usize, peer: usize, v: usize, old: Option<&StateWord>, word: &StateWord) {
        if self.nodes.len() > 2
            && let Err(text) = self.check_one_primary(n, peer, word)
        {
            self.fail(text);
        }
        self.trace.mix((word.conn as u64) << 16 | (word.disk as u64) << 8 | word.pdsk as u64);
        let was_good = old.is_some_and(|w| w.disk == DiskState::UpToDate);
        let volume = &mut self.nodes[n].volumes[v];
        volume.alone[peer] |=
            word.role == Role::Primary && (word.conn < ConnState::Connected || word.pdsk < DiskState::Inconsistent);
        let promoted = word.role == Role::Primary && old.is_none_or(|w| w.role == Role::Secondary);
        // A Primary's volume may come without data: its users have seen nothing before.
        let without = |v: &crate::cluster::Volume| v.view.includes.iter().all(|count| *count == 0);
        let came = self.setup.drawn.coming.keeps && word.role == Role::Primary && without(volume);
        let came = came && !old.is_some_and(|w| w.disk == DiskState::UpToDate || works_on_the_peers_copy(w));
        if (promoted || came) && works_on_the_peers_copy(word) {
            self.sees_the_peers_copy(n, peer, v);
        }
        let volume = &mut self.nodes[n].volumes[v];
        let targets = (ConnState::WFBitMapT..=ConnState::PausedSyncT).contains(&word.conn);
        if was_good && word.role == Role::Primary && targets && volume.gave_in && works_on_the_peers_copy(word) {
            // `rr-conflict violently`: its data change under its users.
            self.sees_the_peers_copy(n, peer, v);
        }
        let volume = &mut self.nodes[n].volumes[v];
        if was_good && word.disk == DiskState::Inconsistent && !targets && word.pdsk == DiskState::UpToDate {
            // `on-io-error pass_on` beside a good copy: that one counts from now on.
            volume.worthless = true;
        }
    }

    /// Both copies are good, and the nodes are connected. What that peer's was acknowledged to have, this one has, too,
    /// if it looks so: an acknowledgement may have been on its way when a link was lost.
    fn met_as_equals(&mut self, n: usize, peer: usize, v: usize) {
        let peers = self.peers_view(n, peer, v);
        if self.nodes[n].volumes[v].view.includes_all_of(&peers) {
            return;
        }
        let now = self.tick();
        let volume = &mut self.nodes[n].volumes[v];
        let whole = crate::ranges::sectors(0, volume.size.min(peers.len()));
        if peers.allows(whole, &Payload::read(volume.data.data(), whole), now).is_ok() {
            for (mine, theirs) in volume.view.includes.iter_mut().zip(peers.includes) {
                *mine = theirs.max(*mine);
            }
        }
    }

    fn became_good(&mut self, n: usize, v: usize, old: Option<&StateWord>, word: &StateWord) {
        let came = std::mem::take(&mut self.nodes[n].volumes[v].came_inconsistent);
        // A promotion by force: the operator wants what an older disk holds.
        let declared = &self.nodes[n].volumes[v];
        let alone = declared.towards.iter().flatten().all(|w| w.conn < ConnState::Connected);
        let forced = declared.declared && word.role == Role::Primary && alone;
        let older = |w: &StateWord| w.disk == DiskState::Inconsistent || (forced && w.disk == DiskState::Outdated);
        if came || old.is_some_and(older) {
            return self.declared_good(n, v);
        }
        let under_way = self.under_way(n, v);
        let now = self.tick();
        let volume = &mut self.nodes[n].volumes[v];
        if let Some(includes) = volume.left_at.take()
            && old.is_none_or(|w| w.role == Role::Secondary)
        {
            volume.view.accept(volume.data.data(), now);
            volume.view.includes = includes;
            under_way.iter().for_each(|w| volume.view.still_under_way(w, now));
        }
    }

    /// What was Inconsistent is UpToDate without a resync: what it holds is what the operator wants.
    fn declared_good(&mut self, n: usize, v: usize) {
        let under_way = self.under_way(n, v);
        let now = self.tick();
        let volume = &mut self.nodes[n].volumes[v];
        if !std::mem::take(&mut volume.declared) {
            return self.fail(format!("volume {v} of node {n} went from Inconsistent to UpToDate without a resync"));
        }
        volume.take_as_it_is(now);
        under_way.iter().for_each(|w| volume.view.still_under_way(w, now));
        volume.left_at = None;
        // The other copy was the better one, so the operator has split them: who gives in is the policies' choice.
        for peer in self.peers(n) {
            let other = &mut self.nodes[peer].volumes[v];
            (other.worthless, other.alone[n]) = (true, true);
        }
    }

    /// A Primary without good data of its own works on this peer's.
    fn sees_the_peers_copy(&mut self, n: usize, peer: usize, v: usize) {
        let source = self.peers_view(n, peer, v);
        let under_way = self.under_way(n, v);
        let volume = &mut self.nodes[n].volumes[v];
        let includes = volume.view.includes.clone();
        volume.left_at.get_or_insert(includes);
        volume.view.adopt(source, volume.size, under_way.into_iter());
    }

    /// This node has lost a connection to a peer: what it does from now on the other end does not get by it.
    pub(crate) fn parted(&mut self, n: usize, peer: usize, number: u64) {
        for volume in &mut self.nodes[n].volumes {
            volume.parted[peer] = Some((number, volume.view.clone()));
        }
    }

    /// What the peer's copy was as this node's connection, or its last one, shows it.
    fn peers_view(&self, n: usize, peer: usize, v: usize) -> View {
        let theirs = &self.nodes[peer].volumes[v];
        let mine = match self.net.wishes[n][peer] {
            Wish::Connected(number) => Some(number),
            _ => self.nodes[n].volumes[v].parted[peer].as_ref().map(|(number, _)| *number),
        };
        match &theirs.parted[n] {
            Some((number, view)) if mine == Some(*number) => view.clone(),
            _ => theirs.view.clone(),
        }
    }

    /// Does a third node have all that a target had and its source lacks, and was the source Primary without that one,
    /// or that one without both? Then they have gone their own ways, which they will see when they meet; until then
    /// nothing is lost. What a Primary completed when it had given both up need not be on either, and may be on one of
    /// them by chance.
    fn is_safe_elsewhere(&self, target: usize, source: usize, v: usize) -> bool {
        let volume = |n: usize| &self.nodes[n].volumes[v];
        let includes = |n: usize, by: usize| volume(n).view.includes[by];
        let lacked = |by: &usize| includes(target, *by) > includes(source, *by);
        let parted = |n: usize| volume(source).alone[n] || (volume(n).alone[source] && volume(n).alone[target]);
        let thirds = self.peers(target).filter(|n| *n != source && parted(*n));
        let has = |n: usize| (0..self.nodes.len()).filter(lacked).all(|by| includes(n, by) >= includes(target, by));
        thirds.into_iter().any(has)
    }

    /// A resync is complete: the target is as good as its source, this peer.
    fn resynced(&mut self, n: usize, peer: usize, v: usize, was_secondary: bool) {
        let mut source = self.peers_view(n, peer, v);
        self.count_unheard(&mut source, [n, peer], v);
        let on_the_way: Vec<Written> = self.nodes[peer].epochs[n].early(v).copied().collect();
        let source_volume = &self.nodes[peer].volumes[v];
        let parted_from = source_volume.alone.clone();
        // Or it served a Primary that had lost its disk, which was promoted with that later, and alone.
        let two_primaries = self.setup.extras.two_primaries;
        let alone = source_volume.alone[n] || (source_volume.served && self.nodes[n].volumes[v].alone[peer]);
        // Or it has what a third node wrote that was Primary without this one.
        let third = |p: usize| {
            let (theirs, mine) = (&self.nodes[p].volumes[v], &self.nodes[n].volumes[v]);
            theirs.alone[n] && source.includes[p] > mine.view.includes[p]
        };
        let alone = alone || (0..self.nodes.len()).filter(|p| *p != n && *p != peer).any(third);
        let under_way = self.under_way(n, v);
        let now = self.tick();
        let nodes = self.nodes.len();
        let elsewhere = self.is_safe_elsewhere(n, peer, v) || self.is_with_its_writer(&source, [n, peer], v);
        let volume = &mut self.nodes[n].volumes[v];
        // Whom the source went on without, this copy went on without, too.
        let without = volume.alone.iter_mut().zip(parted_from).enumerate();
        without.filter(|(of, _)| nodes > 2 && *of != n).for_each(|(_, (mine, theirs))| *mine |= theirs);
        volume.came_inconsistent = false;
        volume.copied = Some((peer, now));
        let whole = crate::ranges::sectors(0, volume.size);
        let content = Payload::read(volume.data.data(), whole);
        // An acknowledgement may have been on its way when the link was lost: then the source has more than it seems.
        let counted = source.includes_all_of(&volume.view);
        let fewer = !counted && volume.view.allows(whole, &content, now).is_err();
        // A Primary that is gone may have completed nothing without this node: where it has written anew all the same,
        // nothing else is to be seen.
        let ahead = volume.view.includes_all_of(&source);
        let mut hidden = if ahead { volume.view.written_over(&source, &content) } else { Vec::new() };
        hidden.extend(&volume.doubtful);
        let allowed = volume.view.allows_but(&hidden, whole, &content, now);
        let lost = allowed.err().filter(|_| fewer);
        // Who was promoted without this node need not have what was acknowledged here: with protocols A and B nobody
        // has promised that it has all of it, and otherwise both have gone their own way, and the nodes know that.
        let asynchronous = self.setup.is_asynchronous();
        let counts_nodes = self.setup.counts_nodes_alone();
        let parted = asynchronous || two_primaries || volume.gave_in || counts_nodes;
        let parted = parted && !self.setup.keeps_all_by_quorum();
        let given_up = &mut self.given_up[v];
        let lacking = (0..given_up.len()).filter(|by| volume.view.includes[*by] > source.includes[*by]);
        let lacking: Vec<usize> = lacking.collect();
        // Or the same writes were lost where a victim was chosen, and this copy had them from there.
        let before = nodes > 2 && lacking.iter().all(|by| volume.view.includes[*by] <= given_up[*by]);
        let outlived = asynchronous && volume.outlived;
        let chosen = (alone && parted) || outlived || volume.worthless || before;
        let excused = chosen || elsewhere;
        if chosen {
            lacking.iter().for_each(|by| given_up[*by] = given_up[*by].max(volume.view.includes[*by]));
        }
        let text = format!(
            "volume {v}: a resync made node {n} lose acknowledged writes: it had {:?}, the source, node {peer}, {:?}, which was \
             Primary alone: {alone}; a victim was chosen: {}",
            volume.view.includes, source.includes, volume.gave_in
        );
        if !counted && !fewer {
            // What a victim had alone is given up, also where nothing of it was to be seen any more.
            for (mine, theirs) in volume.view.includes.iter_mut().zip(source.includes.iter().copied()) {
                *mine = if chosen { theirs } else { theirs.max(*mine) };
            }
        }
        volume.left_at = None;
        volume.worthless = false;
        volume.unflushed.clear();
        volume.doubtful.clear();
        volume.received.clear();
        (volume.gave_in, volume.outlived) = (false, false);
        // A Primary's applications have seen through its view all along.
        if fewer || (counted && was_secondary) {
            let grown = crate::ranges::sectors(source.len().min(volume.size), volume.size);
            volume.view.adopt(source, volume.size, under_way.into_iter());
            // Nobody has promised anything of what the source has grown by.
            volume.view.rebase_part(grown, volume.data.data());
        }
        if asynchronous {
            // What the source has completed may still be on its way, one write after the other.
            volume.may_hold_what_it_holds(now);
            for write in &on_the_way {
                volume.view.may_hold(write.range, write.content, now);
            }
        }
        if let Some(lost) = lost.filter(|_| !excused) {
            self.fail(format!("{text}: {lost}"));
        }
    }
}

/// Has a node no good copy of its own, but its peer's within reach?
fn works_on_the_peers_copy(word: &StateWord) -> bool {
    word.disk != DiskState::UpToDate && word.pdsk == DiskState::UpToDate && word.conn >= ConnState::Connected
}

/// Are both copies good, and the nodes connected?
fn equals(word: &StateWord) -> bool {
    word.disk == DiskState::UpToDate && word.pdsk == DiskState::UpToDate && word.conn >= ConnState::Connected
}

/// Must it be durable when it ends?
pub(crate) fn is_durable(kind: RequestKind) -> bool {
    matches!(kind, RequestKind::Write { fua: true } | RequestKind::WriteZeroes { fua: true, .. })
}

pub(crate) fn is_write(kind: RequestKind) -> bool {
    !matches!(kind, RequestKind::Read | RequestKind::Flush)
}
