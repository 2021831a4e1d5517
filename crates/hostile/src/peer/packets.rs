//! Packets that a peer might send: their fields are right, slightly wrong, or nonsense, as the input has it.

use super::rig::Rig;
use crate::input::Input;
use units::{ByteLen, Generation, Sector, VolumeNr};
use wire::{
    AfterSplitBrain, AlgName, BarrierAck, BarrierNr, BlockAck, BlockData, BlockId, BlockRange, BlockRequest,
    ChecksumRequest, ConnState, ConnectionFeatures, DelayProbe, Digest, DiskState, DpFlags, Features, Packet, Protocol,
    QueueLimits, ReplicationProtocol, ResizeFlags, ResyncController, Role, Sizes, Socket, StateChange,
    StateChangeResult, StateWord, SyncParam, UuidFlags, Uuids, VerifyOutcome, VerifyReply, VerifyResult, Write,
    WriteRange,
};

/// A volume that exists, or one that does not.
pub(super) fn volume(rig: &Rig, input: &mut Input<'_>) -> VolumeNr {
    let volumes = &rig.cfg.volumes;
    if input.one_in(32) { VolumeNr(input.u16()) } else { volumes[input.below(volumes.len() as u64) as usize].volume }
}

/// A place on the device, now and then beyond it or across its end.
pub(super) fn place(rig: &Rig, volume: VolumeNr, input: &mut Input<'_>) -> (Sector, ByteLen) {
    let sectors = rig.sectors(volume);
    let sector = match input.u8() % 16 {
        0 => input.odd(),
        1 => sectors.saturating_sub(input.below(9)),
        2..8 => input.below(sectors),
        _ => input.below(sectors) / 8 * 8,
    };
    let len = match input.u8() % 16 {
        0 => input.odd() / 512 * 512,
        1 => 1 << 20,
        2..6 => 512 * (1 + input.below(32)),
        _ => 4096,
    };
    let inside = sectors.saturating_sub(sector).max(1) * 512;
    let len = if input.one_in(32) { len } else { len.min(inside) };
    (Sector(sector), ByteLen(len))
}

fn digest(len: usize) -> Digest {
    Digest::new(&vec![9; len]).unwrap_or(Digest::EMPTY)
}

fn flags(input: &mut Input<'_>) -> DpFlags {
    match input.u8() % 8 {
        0 => DpFlags(input.u32() & !DpFlags::WRITE_SAME.0),
        1 => DpFlags::SEND_RECEIVE_ACK,
        2 => DpFlags::NONE,
        3 => DpFlags::SEND_WRITE_ACK | DpFlags::FUA | DpFlags::MAY_SET_IN_SYNC,
        _ => DpFlags::SEND_WRITE_ACK,
    }
}

fn ack(rig: &Rig, volume: VolumeNr, input: &mut Input<'_>) -> BlockAck {
    let known = rig.asked.writes.get(input.below(8) as usize).map(|s| s.ack);
    let (sector, size) = place(rig, volume, input);
    let block_id = match input.u8() % 4 {
        0 => BlockId::SYNCER,
        1 => BlockId(input.odd()),
        _ => known.map_or(BlockId::SYNCER, |k| k.block_id),
    };
    let known = known.unwrap_or(BlockAck { sector, block_id, size, seq: 1 });
    BlockAck {
        sector: if input.one_in(8) { sector } else { known.sector },
        block_id,
        size: if input.one_in(8) { size } else { known.size },
        seq: if input.one_in(4) { input.odd() as u32 } else { known.seq },
    }
}

pub(super) fn features(rig: &Rig, input: &mut Input<'_>) -> Packet {
    let offer = ConnectionFeatures::OFFER;
    Packet::ConnectionFeatures(ConnectionFeatures {
        protocol_max: if input.one_in(16) { input.odd() as u32 } else { rig.cfg.connections[0].max_version },
        features: if input.one_in(4) { Features(input.u32()) } else { offer.features },
        ..offer
    })
}

pub(super) fn protocol(rig: &Rig, input: &mut Input<'_>) -> Packet {
    let cfg = &rig.cfg.connections[0];
    let mut p = Protocol {
        protocol: cfg.protocol,
        after_sb_0pri: cfg.after_sb.none.from_peers_view(),
        after_sb_1pri: cfg.after_sb.one.from_peers_view(),
        after_sb_2pri: cfg.after_sb.two.from_peers_view(),
        discard_my_data: input.one_in(8),
        dry_run: input.one_in(32),
        two_primaries: cfg.two_primaries,
        integrity_alg: cfg.integrity.as_deref().and_then(AlgName::new).unwrap_or_default(),
    };
    match input.u8() % 32 {
        0 => p.two_primaries = !p.two_primaries,
        1 => p.integrity_alg = AlgName::new("md5").unwrap_or_default(),
        2 => p.after_sb_0pri = input.pick(AfterSplitBrain::ALL),
        3 => p.protocol = ReplicationProtocol::A,
        _ => {}
    }
    Packet::Protocol(Box::new(p))
}

pub(super) fn sync_param(input: &mut Input<'_>) -> Packet {
    let name = if input.one_in(16) { "sha1" } else { "" };
    let controller = ResyncController {
        plan_ahead: input.odd() as u32,
        delay_target: input.odd() as u32,
        fill_target: input.odd() as u32,
        max_rate: input.odd() as u32,
    };
    let csums_alg = AlgName::new(name).unwrap_or_default();
    Packet::SyncParam(Box::new(SyncParam {
        resync_rate: input.odd() as u32,
        verify_alg: csums_alg,
        csums_alg,
        controller,
    }))
}

pub(super) fn sizes(rig: &Rig, volume: VolumeNr, input: &mut Input<'_>) -> Packet {
    let own = rig.sectors(volume);
    let size = |input: &mut Input<'_>| match input.u8() % 16 {
        0 => input.odd(),
        1 => own / 2,
        2 => own + 8 * input.below(100),
        3 => 0,
        _ => own,
    };
    let number = |input: &mut Input<'_>| if input.one_in(4) { input.odd() as u32 } else { 512 };
    let limits = QueueLimits {
        physical_block_size: number(input),
        logical_block_size: number(input),
        alignment_offset: 0,
        io_min: number(input),
        io_opt: number(input),
        discard_enabled: input.flag(),
        discard_zeroes_data: input.flag(),
        write_same_capable: false,
        bitmap_block_shift: 0,
    };
    let with_limits = rig.dialect.is_some_and(|d| d.has(Features::WRITE_SAME));
    Packet::Sizes(Box::new(Sizes {
        disk_size: Sector(size(input)),
        user_size: Sector(if input.one_in(8) { size(input) } else { 0 }),
        current_size: Sector(size(input)),
        max_bio_size: if input.one_in(8) { input.odd() as u32 } else { 1 << 20 },
        queue_order_type: input.u16(),
        flags: ResizeFlags { forced: input.one_in(8), assume_clean: input.one_in(8) },
        limits: with_limits.then_some(limits),
    }))
}

pub(super) fn uuids(rig: &Rig, volume: VolumeNr, input: &mut Input<'_>) -> Packet {
    let own = rig.snapshot.devices.iter().find(|d| d.volume == volume).map(|d| d.generations);
    let own = own.unwrap_or([Generation(0x1000), Generation::NONE, Generation::NONE, Generation::NONE]);
    let one = |input: &mut Input<'_>| match input.u8() % 16 {
        0..6 => own[0],
        6 => own[1],
        7 => own[2],
        8 => own[3],
        9 | 10 => Generation::JUST_CREATED,
        11 | 12 => Generation::NONE,
        13 => Generation(input.odd()),
        _ => Generation(0x9000),
    };
    let flags = if input.one_in(4) { UuidFlags(u64::from(input.u8() & 15)) } else { UuidFlags::NONE };
    Packet::Uuids(Box::new(Uuids {
        current: one(input),
        bitmap: if input.flag() { one(input) } else { Generation::NONE },
        history: if input.flag() { [one(input), one(input)] } else { [Generation::NONE; 2] },
        dirty_bits: if input.one_in(4) { input.odd() } else { 0 },
        flags,
    }))
}

fn sent_disk(disk: DiskState) -> DiskState {
    if disk == DiskState::Detaching { DiskState::Failed } else { disk }
}

pub(super) fn state(rig: &Rig, volume: VolumeNr, input: &mut Input<'_>) -> Packet {
    let own = rig.snapshot.connections[0].peer_devices.iter().find(|p| p.volume == volume);
    let conn = own.map_or(ConnState::Connected, |p| p.replication);
    // What an honest peer would call the state that we are in.
    let mirrored = match conn {
        ConnState::SyncSource => ConnState::SyncTarget,
        ConnState::SyncTarget => ConnState::SyncSource,
        ConnState::WFBitMapS => ConnState::WFBitMapT,
        ConnState::WFBitMapT => ConnState::WFBitMapS,
        ConnState::WFReportParams => ConnState::WFReportParams,
        other if other > ConnState::Connected => other,
        _ => ConnState::Connected,
    };
    let disk = input.pick(&[DiskState::UpToDate, DiskState::UpToDate, DiskState::Inconsistent, DiskState::Diskless]);
    let mut word = StateWord {
        user_isp: input.one_in(16),
        ..StateWord::undisturbed(Role::Secondary, rig.snapshot.role, mirrored, disk, DiskState::UpToDate)
    };
    match input.u8() % 8 {
        0 => word.conn = input.pick(ConnState::ALL),
        1 => word.disk = sent_disk(input.pick(DiskState::ALL)),
        2 => word.role = Role::Primary,
        3 => {
            word.conn = input.pick(ConnState::ALL);
            word.role = input.pick(Role::ALL);
            word.peer = input.pick(Role::ALL);
            word.disk = sent_disk(input.pick(DiskState::ALL));
            word.pdsk = sent_disk(input.pick(DiskState::ALL));
            let bits = input.u8();
            (word.susp, word.aftr_isp, word.peer_isp) = (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0);
            (word.susp_nod, word.susp_fen) = (bits & 8 > 0, bits & 16 > 0);
        }
        4 => word.conn = ConnState::Connected,
        _ => {}
    }
    Packet::State(word)
}

fn state_change(input: &mut Input<'_>) -> StateChange {
    let mut change = StateChange::default();
    match input.u8() % 8 {
        0 => change.role = Some(input.pick(Role::ALL)),
        1 => change.conn = Some(input.pick(ConnState::ALL)),
        2 => change.disk = Some(sent_disk(input.pick(DiskState::ALL))),
        3 => change.pdsk = Some(sent_disk(input.pick(DiskState::ALL))),
        4 => {
            change.conn = Some(input.pick(&[ConnState::StartingSyncS, ConnState::StartingSyncT, ConnState::TearDown]));
        }
        5 => (change.role, change.peer) = (Some(Role::Primary), Some(Role::Secondary)),
        6 => (change.susp, change.user_isp) = (Some(input.flag()), Some(input.flag())),
        _ => {
            change.role = Some(input.pick(Role::ALL));
            change.peer = Some(input.pick(Role::ALL));
            change.conn = Some(input.pick(ConnState::ALL));
            change.disk = Some(sent_disk(input.pick(DiskState::ALL)));
            change.pdsk = Some(sent_disk(input.pick(DiskState::ALL)));
        }
    }
    change
}

pub(super) const FLOODS: usize = 12;

/// Packet number `n` of a flood.
pub(super) fn flood(rig: &Rig, kind: usize, n: u64) -> (Socket, Packet) {
    let sectors = rig.sectors(rig.cfg.volumes[0].volume);
    let (sector, size) = (Sector(n * 8 % (sectors - 8)), ByteLen(4096));
    let block_id = BlockId(n + 1);
    let (seq, flags) = (n as u32 + 1, DpFlags::SEND_WRITE_ACK);
    let packet = match kind {
        0 => Packet::Data(Write { sector, block_id, seq, flags, digest: Digest::EMPTY, size }),
        1 => Packet::Trim(WriteRange { sector, block_id, seq, flags, size }),
        2 => Packet::DataRequest(BlockRequest { sector: Sector(0), block_id, size: ByteLen(1 << 20) }),
        3 => Packet::RsDataRequest(BlockRequest { sector, block_id: BlockId::SYNCER, size }),
        4 => Packet::Barrier(BarrierNr(n as u32)),
        5 => Packet::OutOfSync(BlockRange { sector, size }),
        6 => Packet::StateChgReq(StateChange { peer: Some(Role::Primary), ..StateChange::default() }),
        7 => Packet::Bitmap(vec![u64::MAX; sectors.div_ceil(512) as usize]),
        8 => Packet::UnplugRemote,
        9 => Packet::OvRequest(BlockRequest { sector, block_id: BlockId::SYNCER, size }),
        10 => return (Socket::Control, Packet::Ping),
        _ => {
            let ack = BlockAck { sector, block_id, size, seq };
            return (Socket::Control, Packet::NegAck(ack));
        }
    };
    (Socket::Data, packet)
}

/// A packet of any kind, on the stream where it belongs (or, now and then, on the other).
pub(super) fn any(rig: &Rig, input: &mut Input<'_>) -> (Socket, VolumeNr, Packet) {
    let v = volume(rig, input);
    let (stream, packet) = if input.flag() {
        (Socket::Data, on_data(rig, v, input))
    } else {
        (Socket::Control, on_control(rig, v, input))
    };
    let stream = match (input.one_in(64), stream) {
        (true, Socket::Data) => Socket::Control,
        (true, Socket::Control) => Socket::Data,
        (false, stream) => stream,
    };
    (stream, v, packet)
}

fn on_data(rig: &Rig, v: VolumeNr, input: &mut Input<'_>) -> Packet {
    let (sector, size) = place(rig, v, input);
    let block_id = BlockId(if input.one_in(8) { input.odd() } else { u64::from(input.u8()) + 1 });
    let request = BlockRequest { sector, block_id, size };
    let seq = input.u8().into();
    match input.u8() % 28 {
        0..4 => write(rig, v, input),
        4 => Packet::Trim(WriteRange { sector, block_id, seq, flags: flags(input), size }),
        5 => Packet::Zeroes(WriteRange { sector, block_id, seq, flags: flags(input), size }),
        6 | 7 => Packet::Barrier(BarrierNr(input.odd() as u32)),
        8 | 9 => Packet::DataRequest(request),
        10 => Packet::DataReply(BlockData { sector, block_id, digest: digest(rig.digest_len), size }),
        11 => Packet::OutOfSync(BlockRange { sector, size }),
        12 => Packet::RsDataRequest(BlockRequest { block_id: BlockId::SYNCER, ..request }),
        13 => Packet::RsThinReq(BlockRequest { block_id: BlockId::SYNCER, ..request }),
        14 => Packet::CsumRsRequest(ChecksumRequest { block: request, digest: digest(20) }),
        15 => {
            let block_id = BlockId::SYNCER;
            Packet::RsDataReply(BlockData { sector, block_id, digest: digest(rig.digest_len), size })
        }
        16 => Packet::RsDeallocated(BlockRange { sector, size }),
        17 => Packet::Bitmap((0..input.below(512)).map(|_| 0x5555_5555_5555_5555).collect()),
        18 => sync_param(input),
        19 => sizes(rig, v, input),
        20 => uuids(rig, v, input),
        21 => state(rig, v, input),
        22 => Packet::SyncUuid(Generation(input.odd())),
        23 => Packet::StateChgReq(state_change(input)),
        24 => Packet::ConnStChgReq(state_change(input)),
        25 => Packet::OvRequest(request),
        26 => Packet::OvReply(VerifyReply { block: request, digest: digest(20) }),
        _ => match input.u8() % 4 {
            0 => Packet::UnplugRemote,
            1 => protocol(rig, input),
            2 => match protocol(rig, input) {
                Packet::Protocol(p) => Packet::ProtocolUpdate(p),
                other => other,
            },
            _ => Packet::DelayProbe(DelayProbe { seq: input.u32(), offset: 0 }),
        },
    }
}

pub(super) fn write(rig: &Rig, v: VolumeNr, input: &mut Input<'_>) -> Packet {
    let (sector, size) = place(rig, v, input);
    let size = ByteLen(size.0.min(1 << 20));
    let block_id = BlockId(u64::from(input.u8()) + 1);
    let mut flags = flags(input);
    let size = if input.one_in(32) {
        flags |= DpFlags::FLUSH;
        ByteLen(0)
    } else {
        size
    };
    Packet::Data(Write { sector, block_id, seq: 1, flags, digest: digest(rig.digest_len), size })
}

fn on_control(rig: &Rig, v: VolumeNr, input: &mut Input<'_>) -> Packet {
    let answer = ack(rig, v, input);
    match input.u8() % 16 {
        0 => Packet::Ping,
        1 => Packet::PingAck,
        2 => {
            let (barrier, set_size) = rig.asked.barriers.front().copied().unwrap_or((BarrierNr(1), 1));
            let set_size = if input.flag() { set_size } else { input.odd() as u32 };
            let barrier = if input.flag() { barrier } else { BarrierNr(input.odd() as u32) };
            Packet::BarrierAck(BarrierAck { barrier, set_size })
        }
        3 => Packet::RecvAck(answer),
        4 => Packet::WriteAck(answer),
        5 => Packet::RsWriteAck(answer),
        6 => Packet::Superseded(answer),
        7 => Packet::RetryWrite(answer),
        8 => Packet::NegAck(answer),
        9 => Packet::NegDreply(answer),
        10 => Packet::RsIsInSync(answer),
        11 => Packet::NegRsDreply(answer),
        12 => Packet::RsCancel(answer),
        13 => {
            let outcome = input.pick(&[VerifyOutcome::InSync, VerifyOutcome::OutOfSync, VerifyOutcome::Skipped]);
            Packet::OvResult(VerifyResult { sector: answer.sector, size: answer.size, seq: answer.seq, outcome })
        }
        14 => Packet::StateChgReply(StateChangeResult::from_code(1 - i32::from(input.u8() % 24))),
        _ => Packet::ConnStChgReply(StateChangeResult::from_code(1 - i32::from(input.u8() % 24))),
    }
}
