//! What happens next: the peer sends something, the disk does something, somebody asks something.

use super::packets;
use super::rig::Rig;
use crate::input::Input;
use units::{BitSet, Duration, VolumeNr};
use urbd_core::{Command, DiskError, LinkDown, RequestKind};
use wire::{
    AuthBytes, BarrierAck, BitmapSender, BlockAck, BlockData, BlockId, ConnState, Digest, DiskState, Packet,
    ResizeFlags, Role, Socket, StateChange, StateChangeResult,
};

/// Attach, connect, and (for a Primary) promote.
pub(super) fn prepare(rig: &mut Rig, input: &mut Input<'_>, role: Role) {
    for v in rig.cfg.volumes.clone() {
        if v.disk.is_some() && !input.one_in(16) {
            rig.command(Command::Attach { volume: v.volume });
            rig.settle();
        }
    }
    let discard_my_data = input.one_in(16);
    rig.command(Command::Connect { peer: rig.peer, discard_my_data, tentative: input.one_in(32) });
    if role == Role::Primary {
        rig.command(Command::Primary { force: true });
        rig.settle();
        rig.handlers_exit(input.pick(&[4, 5, 6, 7, 3, 1]));
        rig.settle();
    }
    shake_hands(rig, input);
}

/// The handshake as an honest peer does it, but for what the input spoils.
fn shake_hands(rig: &mut Rig, input: &mut Input<'_>) {
    rig.link_up(input.flag());
    let steps = 4 + 3 * rig.cfg.volumes.len();
    for step in 0..steps {
        if input.one_in(64) {
            continue;
        }
        if input.one_in(64) {
            one(rig, input);
        }
        match step {
            0 => {
                let packet = packets::features(rig, input);
                rig.receive(Socket::Data, VolumeNr(0), &packet);
                if rig.cfg.connections[0].cram_hmac.is_some() {
                    authenticate(rig, input);
                }
            }
            1 => {
                let packet = packets::protocol(rig, input);
                rig.receive(Socket::Data, VolumeNr(0), &packet);
            }
            2 => {
                let packet = packets::sync_param(input);
                rig.receive(Socket::Data, VolumeNr(0), &packet);
            }
            _ => {
                let volume = rig.cfg.volumes[((step - 3) / 3).min(rig.cfg.volumes.len() - 1)].volume;
                let packet = match (step - 3) % 3 {
                    0 => packets::sizes(rig, volume, input),
                    1 => packets::uuids(rig, volume, input),
                    _ => packets::state(rig, volume, input),
                };
                rig.receive(Socket::Data, volume, &packet);
            }
        }
        if input.flag() {
            rig.settle();
        }
    }
}

fn authenticate(rig: &mut Rig, input: &mut Input<'_>) {
    let challenge = AuthBytes::new(&[if input.one_in(16) { 3 } else { 5 }; 64]).expect("64 bytes");
    let response = AuthBytes::new(&[if input.one_in(16) { 8 } else { 7 }; 16]).expect("16 bytes");
    rig.receive(Socket::Data, VolumeNr(0), &Packet::AuthChallenge(Box::new(challenge)));
    rig.receive(Socket::Data, VolumeNr(0), &Packet::AuthResponse(Box::new(response)));
}

/// One move.
pub(super) fn one(rig: &mut Rig, input: &mut Input<'_>) {
    match input.u8() % 32 {
        0..6 => answer(rig, input),
        6..10 => {
            let (stream, volume, packet) = packets::any(rig, input);
            rig.receive(stream, volume, &packet);
        }
        10 | 11 => follow_resync(rig, input),
        12 | 13 => {
            let volume = packets::volume(rig, input);
            let packet = packets::write(rig, volume, input);
            rig.receive(Socket::Data, volume, &packet);
        }
        14 => raw_packet(rig, input),
        15..19 => request(rig, input),
        19..22 => {
            let index = input.below(rig.jobs.len().max(1) as u64) as usize;
            let result = if input.one_in(16) { Err(DiskError::Io) } else { Ok(()) };
            rig.job_done(index, result);
        }
        22..24 => rig.settle(),
        24 | 25 => rig.wait(Duration::from_millis(input.pick(&[1, 100, 500, 1000, 10_000, 60_000]))),
        26 => rig.handlers_exit(input.pick(&[0, 3, 4, 5, 6, 7, 20])),
        27 | 28 => administrator(rig, input),
        29 => rig.link_down(input.pick(&[LinkDown::Closed, LinkDown::Timeout, LinkDown::Violation])),
        _ if !rig.link => shake_hands(rig, input),
        _ => {
            let volume = packets::volume(rig, input);
            let packet = packets::state(rig, volume, input);
            rig.receive(Socket::Data, volume, &packet);
        }
    }
}

/// The right answer to something that the core waits for.
fn answer(rig: &mut Rig, input: &mut Input<'_>) {
    let asked = &mut rig.asked;
    let (stream, volume, packet) = match input.u8() % 8 {
        0 | 1 => {
            let Some(sent) = asked.writes.pop_front() else { return };
            let kind = input.pick::<fn(BlockAck) -> Packet>(&[
                Packet::WriteAck,
                Packet::WriteAck,
                Packet::RsWriteAck,
                Packet::RecvAck,
                Packet::NegAck,
            ]);
            let (volume, packet) = (sent.volume, kind(sent.ack));
            asked.writes.push_front(sent);
            rig.receive(Socket::Control, volume, &packet);
            rig.asked.writes.pop_front();
            return;
        }
        2 => {
            let Some((barrier, set_size)) = asked.barriers.pop_front() else { return };
            (Socket::Control, VolumeNr(0), Packet::BarrierAck(BarrierAck { barrier, set_size }))
        }
        3 => {
            let Some((volume, r)) = asked.reads.pop_front() else { return };
            (Socket::Data, volume, Packet::DataReply(data(r.sector, r.block_id, r.size, rig.digest_len)))
        }
        4 => {
            let Some((volume, r)) = asked.resync_requests.pop_front() else { return };
            (Socket::Data, volume, Packet::RsDataReply(data(r.sector, BlockId::SYNCER, r.size, rig.digest_len)))
        }
        5 => {
            let Some((volume, r)) = asked.resync_data.pop_front() else { return };
            let ack = BlockAck { sector: r.sector, block_id: BlockId::SYNCER, size: r.size, seq: 1 };
            (Socket::Control, volume, Packet::RsWriteAck(ack))
        }
        6 => {
            let Some((volume, whole)) = asked.state_changes.pop_front() else { return };
            let result = if input.one_in(4) { StateChangeResult::FailedByPeer } else { StateChangeResult::Success };
            let packet = if whole { Packet::ConnStChgReply(result) } else { Packet::StateChgReply(result) };
            (Socket::Control, volume, packet)
        }
        _ => {
            asked.pings = 0;
            (Socket::Control, VolumeNr(0), Packet::PingAck)
        }
    };
    rig.receive(stream, volume, &packet);
}

fn data(sector: units::Sector, block_id: BlockId, size: units::ByteLen, digest_len: usize) -> BlockData {
    BlockData { sector, block_id, digest: Digest::new(&vec![9; digest_len]).unwrap_or(Digest::EMPTY), size }
}

/// The next step of a resync as an honest peer does it.
fn follow_resync(rig: &mut Rig, input: &mut Input<'_>) {
    let pds = rig.snapshot.connections[0].peer_devices.clone();
    let pd = &pds[input.below(pds.len() as u64) as usize];
    match pd.replication {
        ConnState::WFBitMapS | ConnState::WFBitMapT => send_bitmap(rig, pd.volume, input),
        ConnState::WFSyncUUID => {
            let generation = units::Generation(0x7000 + u64::from(input.u8()));
            rig.receive(Socket::Data, pd.volume, &Packet::SyncUuid(generation));
        }
        ConnState::SyncTarget => {
            rig.settle();
            while let Some((volume, r)) = rig.asked.resync_requests.pop_front() {
                let reply = Packet::RsDataReply(data(r.sector, BlockId::SYNCER, r.size, rig.digest_len));
                rig.receive(Socket::Data, volume, &reply);
                rig.settle();
            }
            rig.receive(Socket::Control, VolumeNr(0), &Packet::PingAck);
        }
        ConnState::SyncSource => {
            let volume = pd.volume;
            let (sector, size) = packets::place(rig, volume, input);
            let request = wire::BlockRequest { sector, block_id: BlockId::SYNCER, size };
            rig.receive(Socket::Data, volume, &Packet::RsDataRequest(request));
            if input.one_in(4) {
                let mut packet = packets::state(rig, volume, input);
                if let Packet::State(word) = &mut packet {
                    (word.conn, word.disk) = (ConnState::Connected, DiskState::UpToDate);
                }
                rig.receive(Socket::Data, volume, &packet);
            }
        }
        ConnState::Connected if input.one_in(16) => {
            let change = StateChange { conn: Some(ConnState::Disconnecting), ..StateChange::default() };
            rig.receive(Socket::Data, VolumeNr(0), &Packet::ConnStChgReq(change));
        }
        _ => {}
    }
}

fn send_bitmap(rig: &mut Rig, volume: VolumeNr, input: &mut Input<'_>) {
    let Some(dialect) = rig.dialect else { return };
    let bits = if input.one_in(8) { input.odd().min(1 << 16) } else { rig.sectors(volume).div_ceil(8) };
    let mut set = BitSet::new(bits);
    if input.flag() {
        set.set_range(input.below(bits.max(1)), bits);
    }
    let mut sender = BitmapSender::new(&dialect, input.flag());
    while let Some(packet) = sender.next_packet(&set) {
        rig.receive(Socket::Data, volume, &packet);
        if input.one_in(16) {
            one(rig, input);
        }
    }
}

/// A packet with a right header and any content.
fn raw_packet(rig: &mut Rig, input: &mut Input<'_>) {
    let Some(dialect) = rig.dialect else { return };
    let volume = packets::volume(rig, input);
    let content = {
        let n = usize::from(input.u8());
        input.bytes(n).to_vec()
    };
    let length = content.len() as u32;
    let header = wire::Header { volume, command: u16::from(input.u8() % 0x40), length };
    let format = wire::HeaderFormat::choose(dialect.version, length);
    let Some(bytes) = header.emit(format) else { return };
    let mut bytes = bytes[..format.size()].to_vec();
    bytes.extend_from_slice(&content);
    let stream = if input.flag() { Socket::Data } else { Socket::Control };
    rig.receive_bytes(stream, &bytes);
}

fn request(rig: &mut Rig, input: &mut Input<'_>) {
    let volume = packets::volume(rig, input);
    let (sector, len) = packets::place(rig, volume, input);
    let kind = match input.u8() % 8 {
        0..3 => RequestKind::Write { fua: input.one_in(4) },
        3 | 4 => RequestKind::Read,
        5 => RequestKind::Flush,
        6 => RequestKind::Discard,
        _ => RequestKind::WriteZeroes { unmap: input.flag(), fua: false },
    };
    let len = match kind {
        RequestKind::Flush => 0,
        RequestKind::Read | RequestKind::Write { .. } => len.0.min(1 << 20),
        _ => len.0.min(128 << 20),
    };
    rig.request(volume, kind, sector.0, len);
}

fn administrator(rig: &mut Rig, input: &mut Input<'_>) {
    let volume = packets::volume(rig, input);
    let peer = rig.peer;
    let command = match input.u8() % 20 {
        0 => Command::Primary { force: input.flag() },
        1 => Command::Secondary { force: input.flag() },
        2 => Command::Disconnect { peer, force: input.flag() },
        3..6 => Command::Connect { peer, discard_my_data: input.one_in(4), tentative: false },
        6 => Command::Detach { volume, force: input.flag() },
        7..9 => Command::Attach { volume },
        9 => Command::invalidate(volume),
        10 => Command::invalidate_remote(volume, peer),
        11 => Command::PauseSync { volume },
        12 => Command::ResumeSync { volume },
        13 => Command::SuspendIo { volume },
        14 => Command::ResumeIo { volume },
        15 => Command::Outdate { volume },
        16 => Command::NewCurrentUuid { volume, clear_bitmap: input.flag() },
        17 => Command::Resize { volume, flags: ResizeFlags { forced: input.flag(), assume_clean: input.flag() } },
        18 => Command::Verify { volume, peer: None, start: None, stop: None, repair: input.flag() },
        _ => Command::ChangeOptions(Box::new(rig.cfg.clone())),
    };
    rig.command(command);
}
