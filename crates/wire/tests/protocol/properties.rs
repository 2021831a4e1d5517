//! What holds for every packet, every dialect and any bytes.

use crate::peer;
use proptest::prelude::*;
use units::{BitSet, ByteLen, Generation, NodeId, NodeMask, Sector, VolumeNr};
use urbd_wire::*;

fn dialects() -> impl Strategy<Value = Dialect> {
    // Only 9.2.0 to 9.2.2 mix version 121 with RESYNC_DAGTAG, and are refused.
    let of_9 = (118u32..=124, 0u32..1024).prop_map(|(v, f)| (v, if v == 121 { f & !0x10 } else { f }));
    prop_oneof![(86u32..=101, 0u32..16), of_9].prop_map(|(v, f)| peer::dialect(v, Features(f)))
}

fn blocks(max: u64) -> impl Strategy<Value = (Sector, BlockId, ByteLen)> {
    let size = (1..=max / 512).prop_map(|n| ByteLen(n * 512));
    (0u64..1 << 53, any::<u64>(), size).prop_map(|(s, id, size)| (Sector(s), BlockId(id), size))
}

fn digests() -> impl Strategy<Value = Digest> {
    proptest::collection::vec(any::<u8>(), 0..=64).prop_map(|b| Digest::new(&b).unwrap())
}

fn names() -> impl Strategy<Value = AlgName> {
    prop_oneof!["[!-~]{0,63}", Just(String::new())].prop_map(|s| AlgName::new(&s).unwrap())
}

fn generations() -> impl Strategy<Value = Generation> {
    any::<u64>().prop_map(Generation)
}

fn states() -> impl Strategy<Value = StateWord> {
    let disk = || proptest::sample::select(DiskState::ALL);
    let role = || proptest::sample::select(Role::ALL);
    let conn = proptest::sample::select(ConnState::ALL);
    (role(), role(), conn, disk(), disk(), any::<[bool; 7]>()).prop_map(|(role, peer, conn, disk, pdsk, f)| {
        let [susp, aftr_isp, peer_isp, user_isp, susp_nod, susp_fen, quorum] = f;
        StateWord { role, peer, conn, disk, pdsk, susp, aftr_isp, peer_isp, user_isp, susp_nod, susp_fen, quorum }
    })
}

fn state_changes() -> impl Strategy<Value = StateChange> {
    (states(), any::<[bool; 11]>()).prop_map(|(s, on)| StateChange {
        role: on[0].then_some(s.role),
        peer: on[1].then_some(s.peer),
        conn: on[2].then_some(s.conn),
        disk: on[3].then_some(s.disk),
        pdsk: on[4].then_some(s.pdsk),
        susp: on[5].then_some(s.susp),
        aftr_isp: on[6].then_some(s.aftr_isp),
        peer_isp: on[7].then_some(s.peer_isp),
        user_isp: on[8].then_some(s.user_isp),
        susp_nod: on[9].then_some(s.susp_nod),
        susp_fen: on[10].then_some(s.susp_fen),
    })
}

fn options() -> impl Strategy<Value = Packet> {
    use ReplicationProtocol::{A, B, C};
    let policy = || proptest::sample::select(AfterSplitBrain::ALL);
    let protocol =
        (proptest::sample::select(&[A, B, C][..]), policy(), policy(), policy(), any::<[bool; 3]>(), names()).prop_map(
            |(protocol, after_sb_0pri, after_sb_1pri, after_sb_2pri, flags, integrity_alg)| {
                let [discard_my_data, dry_run, two_primaries] = flags;
                Protocol {
                    protocol,
                    after_sb_0pri,
                    after_sb_1pri,
                    after_sb_2pri,
                    discard_my_data,
                    dry_run,
                    two_primaries,
                    integrity_alg,
                }
            },
        );
    let sync_param = (any::<[u32; 5]>(), names(), names()).prop_map(|(n, verify_alg, csums_alg)| {
        let controller = ResyncController { plan_ahead: n[1], delay_target: n[2], fill_target: n[3], max_rate: n[4] };
        Packet::SyncParam(Box::new(SyncParam { resync_rate: n[0], verify_alg, csums_alg, controller }))
    });
    prop_oneof![
        (protocol, any::<bool>()).prop_map(|(p, update)| match update {
            true => Packet::ProtocolUpdate(Box::new(p)),
            false => Packet::Protocol(Box::new(p)),
        }),
        sync_param
    ]
}

fn sizes() -> impl Strategy<Value = Packet> {
    let size = || (0u64..=1 << 54).prop_map(Sector);
    let limits = (any::<[u32; 5]>(), any::<[bool; 3]>(), 0u8..=8).prop_map(|(n, flags, shift)| QueueLimits {
        physical_block_size: n[0],
        logical_block_size: n[1],
        alignment_offset: n[2],
        io_min: n[3],
        io_opt: n[4],
        discard_enabled: flags[0],
        discard_zeroes_data: flags[1],
        write_same_capable: flags[2],
        bitmap_block_shift: shift,
    });
    (size(), size(), size(), any::<(u32, u16)>(), any::<[bool; 2]>(), limits).prop_map(|(d, u, c, n, flags, limits)| {
        Packet::Sizes(Box::new(Sizes {
            disk_size: d,
            user_size: u,
            current_size: c,
            max_bio_size: n.0,
            queue_order_type: n.1,
            flags: ResizeFlags { forced: flags[0], assume_clean: flags[1] },
            limits: Some(limits),
        }))
    })
}

fn handshake_packets() -> impl Strategy<Value = Packet> {
    let auth = |range| proptest::collection::vec(any::<u8>(), range).prop_map(|b| AuthBytes::new(&b).unwrap());
    let uuids = (generations(), generations(), [generations(), generations()], any::<(u64, u64)>());
    let uuids = uuids.prop_map(|(current, bitmap, history, (dirty_bits, flags))| {
        Packet::Uuids(Box::new(Uuids { current, bitmap, history, dirty_bits, flags: UuidFlags(flags) }))
    });
    prop_oneof![
        options(),
        sizes(),
        uuids,
        auth(64..=128usize).prop_map(|b| Packet::AuthChallenge(Box::new(b))),
        auth(1..=64usize).prop_map(|b| Packet::AuthResponse(Box::new(b))),
        states().prop_map(Packet::State),
        generations().prop_map(Packet::SyncUuid),
        state_changes().prop_map(Packet::StateChgReq),
        state_changes().prop_map(Packet::ConnStChgReq),
        any::<i32>().prop_map(|c| Packet::StateChgReply(StateChangeResult::from_code(c))),
        any::<i32>().prop_map(|c| Packet::ConnStChgReply(StateChangeResult::from_code(c))),
    ]
}

/// The integrity digest's length is the connection's, so it is set in the test.
fn writes() -> impl Strategy<Value = Packet> {
    let flags = any::<u32>().prop_map(|f| DpFlags(f & !DpFlags::WRITE_SAME.0));
    let write = (blocks(32 << 10), any::<u32>(), flags.clone()).prop_map(|((sector, block_id, size), seq, flags)| {
        Packet::Data(Write { sector, block_id, seq, flags, digest: Digest::EMPTY, size })
    });
    let range = (blocks(128 << 20), any::<u32>(), flags, any::<bool>());
    let range = range.prop_map(|((sector, block_id, size), seq, flags, zeroes)| {
        let range = WriteRange { sector, block_id, seq, flags, size };
        if zeroes { Packet::Zeroes(range) } else { Packet::Trim(range) }
    });
    let data = (blocks(32 << 10), any::<bool>()).prop_map(|((sector, block_id, size), resync)| {
        let data = BlockData { sector, block_id, digest: Digest::EMPTY, size };
        if resync { Packet::RsDataReply(data) } else { Packet::DataReply(data) }
    });
    prop_oneof![write, range, data]
}

fn block_packets() -> impl Strategy<Value = Packet> {
    let requests: [fn(BlockRequest) -> Packet; 4] =
        [Packet::DataRequest, Packet::RsDataRequest, Packet::RsThinReq, Packet::OvRequest];
    let acks: [fn(BlockAck) -> Packet; 10] = [
        Packet::RecvAck,
        Packet::WriteAck,
        Packet::RsWriteAck,
        Packet::Superseded,
        Packet::RetryWrite,
        Packet::NegAck,
        Packet::NegDreply,
        Packet::RsIsInSync,
        Packet::NegRsDreply,
        Packet::RsCancel,
    ];
    let request = || blocks(1 << 20).prop_map(|(sector, block_id, size)| BlockRequest { sector, block_id, size });
    let ack = (blocks(128 << 20), any::<u32>());
    let ack = ack.prop_map(|((sector, block_id, size), seq)| BlockAck { sector, block_id, size, seq });
    let outcomes = [VerifyOutcome::Skipped, VerifyOutcome::InSync, VerifyOutcome::OutOfSync];
    let result = (blocks(1 << 20), any::<u32>(), proptest::sample::select(outcomes.to_vec()));
    prop_oneof![
        (request(), 0..4usize).prop_map(move |(r, n)| requests[n](r)),
        (ack, 0..10usize).prop_map(move |(a, n)| acks[n](a)),
        (request(), digests()).prop_map(|(block, digest)| Packet::CsumRsRequest(ChecksumRequest { block, digest })),
        (request(), digests()).prop_map(|(block, digest)| Packet::OvReply(VerifyReply { block, digest })),
        result.prop_map(|((sector, _, size), seq, outcome)| {
            Packet::OvResult(VerifyResult { sector, size, seq, outcome })
        }),
        blocks(1 << 20).prop_map(|(sector, _, size)| Packet::RsDeallocated(BlockRange { sector, size })),
        blocks(1 << 31).prop_map(|(sector, _, size)| Packet::OutOfSync(BlockRange { sector, size })),
        any::<u32>().prop_map(|n| Packet::Barrier(BarrierNr(n))),
        any::<(u32, u32)>()
            .prop_map(|(n, set_size)| Packet::BarrierAck(BarrierAck { barrier: BarrierNr(n), set_size })),
    ]
}

fn transactions() -> impl Strategy<Value = Transaction> {
    let node = || (0u8..32).prop_map(|n| NodeId::new(n).unwrap());
    (any::<u32>(), node(), proptest::option::of(node()), any::<u64>(), any::<[bool; 2]>()).prop_map(
        |(tid, initiator, target, nodes, [has_reachable, primary_incapable])| {
            let nodes_to_reach = WireMask(nodes);
            Transaction { tid, initiator, target, nodes_to_reach, has_reachable, primary_incapable }
        },
    )
}

fn agreement_packets() -> impl Strategy<Value = Packet> {
    let masks = || any::<[u64; 3]>().prop_map(|m| m.map(WireMask));
    let prepare = (transactions(), state_changes())
        .prop_map(|(transaction, change)| Packet::TwopcPrepare(Box::new(Prepare { transaction, change })));
    let resize = (transactions(), 0u64..=1 << 54, any::<[bool; 2]>()).prop_map(|(transaction, size, flags)| {
        let flags = ResizeFlags { forced: flags[0], assume_clean: flags[1] };
        Packet::TwopcPrepRsz(Box::new(PrepareResize { transaction, user_size: Sector(size), flags }))
    });
    let decision =
        (transactions(), masks(), state_changes(), 0..4).prop_map(|(t, [a, b, _], change, kind)| match kind {
            0 => Packet::TwopcCommit(Box::new(Decision::of_change(t, a, b, &change))),
            1 => Packet::TwopcCommit(Box::new(Decision::of_resize(t, a, Sector(b.0)))),
            2 => Packet::TwopcAbort(Box::new(Decision::of_change(t, a, b, &change))),
            _ => Packet::TwopcAbort(Box::new(Decision::abort(t))),
        });
    let vote = (transactions(), masks(), 0..4).prop_map(|(t, [a, b, c], kind)| match kind {
        0 => Packet::TwopcYes(Box::new(Vote::on_change(&t, a, b, c))),
        1 => Packet::TwopcYes(Box::new(Vote::on_resize(&t, a, b, Sector(c.0)))),
        2 => Packet::TwopcNo(Box::new(Vote::on_change(&t, a, b, c))),
        _ => Packet::TwopcRetry(Box::new(Vote::on_change(&t, a, b, c))),
    });
    prop_oneof![prepare, resize, decision, vote, Just(Packet::Disconnect)]
}

fn third_node_packets() -> impl Strategy<Value = Packet> {
    let node = || (0u8..32).prop_map(|n| NodeId::new(n).unwrap());
    let list = |n| proptest::collection::vec(generations(), n);
    let uuids = (generations(), any::<[u64; 3]>(), any::<u32>(), list(32..=32usize), list(0..=32usize)).prop_map(
        |(current, [dirty_bits, flags, nodes], tracked, mut bitmaps, history)| {
            bitmaps.truncate(tracked.count_ones() as usize);
            let (flags, nodes, tracked) = (UuidFlags(flags), WireMask(nodes), NodeMask(tracked));
            Packet::Uuids110(Box::new(Uuids110 { current, dirty_bits, flags, nodes, tracked, bitmaps, history }))
        },
    );
    let flush = (1u64.., node()).prop_map(|(sequence, node)| FlushAnswer { sequence, node });
    prop_oneof![
        uuids,
        (generations(), any::<u64>())
            .prop_map(|(current, weak)| { Packet::CurrentUuid(CurrentUuid { current, weak_nodes: WireMask(weak) }) }),
        any::<u64>().prop_map(|n| Packet::Dagtag(Dagtag(n))),
        any::<[u64; 2]>().prop_map(|[m, d]| Packet::PeerAck(PeerAck { nodes: WireMask(m), dagtag: Dagtag(d) })),
        (any::<u64>(), node()).prop_map(|(d, node)| Packet::PeerDagtag(PeerDagtag { dagtag: Dagtag(d), node })),
        (blocks(1 << 31), any::<u64>()).prop_map(|((sector, _, size), m)| {
            Packet::PeersInSync(PeersInSync { sector, nodes: WireMask(m), size })
        }),
        (any::<[u64; 2]>(), any::<u32>()).prop_map(|([a, b], set_size)| {
            Packet::ConfirmStable(ConfirmStable { oldest: BlockId(a), youngest: BlockId(b), set_size })
        }),
        (1u64..).prop_map(Packet::FlushRequests),
        flush.clone().prop_map(Packet::FlushForward),
        flush.prop_map(Packet::FlushRequestsAck),
        any::<bool>().prop_map(Packet::EnableReplicationNext),
        any::<bool>().prop_map(Packet::EnableReplication),
    ]
}

fn block_packets_of_9() -> impl Strategy<Value = Packet> {
    let acks: [fn(BlockAck) -> Packet; 4] =
        [Packet::WriteAckInSync, Packet::RsNegAck, Packet::RsCancelAhead, Packet::RsDeallocatedId];
    let requests: [fn(Box<DagtagRequest>) -> Packet; 5] = [
        Packet::RsDagtagReq,
        Packet::RsThinDagtagReq,
        Packet::OvDagtagReq,
        Packet::RsCsumDagtagReq,
        Packet::OvDagtagReply,
    ];
    let ack = || {
        (blocks(1 << 20), any::<u32>()).prop_map(|((sector, block_id, size), seq)| BlockAck {
            sector,
            block_id,
            size,
            seq,
        })
    };
    let outcomes = [VerifyOutcome::Skipped, VerifyOutcome::InSync, VerifyOutcome::OutOfSync];
    let request = (blocks(1 << 20), any::<u32>(), any::<u64>(), digests(), 0..5usize);
    prop_oneof![
        (ack(), 0..4usize).prop_map(move |(a, n)| acks[n](a)),
        request.prop_map(move |((sector, block_id, size), node, dagtag, digest, n)| {
            let digest = if n < 3 { Digest::EMPTY } else { digest };
            let block = BlockRequest { sector, block_id, size };
            requests[n](Box::new(DagtagRequest { block, node, dagtag: Dagtag(dagtag), digest }))
        }),
        (ack(), proptest::sample::select(outcomes.to_vec()))
            .prop_map(|(block, outcome)| Packet::OvResultId(Box::new(VerifyResultId { block, outcome }))),
    ]
}

fn bitmap_packets() -> impl Strategy<Value = Packet> {
    let words = proptest::collection::vec(any::<u64>(), 0..=510).prop_map(Packet::Bitmap);
    let compressed = bitsets().prop_filter_map("empty", |b| CompressedBitmap::encode(&b, 0, 4079));
    prop_oneof![words, compressed.prop_map(|(c, _)| Packet::CompressedBitmap(c))]
}

fn bitsets() -> impl Strategy<Value = BitSet> {
    let ranges = proptest::collection::vec((0u64..100_000, 1u64..2000), 0..60);
    (0u64..100_000, ranges, any::<bool>(), any::<bool>()).prop_map(|(len, ranges, invert, comb)| {
        let mut bits = BitSet::new(len);
        ranges.iter().for_each(|&(from, n)| {
            bits.set_range(from, from + n);
        });
        for w in 0..bits.words().len() {
            let word = bits.words()[w];
            let word = if comb && w % 700 < 600 { word ^ 0x5555_5555_5555_5555 } else { word };
            bits.put_word(w, if invert { !word } else { word });
        }
        bits
    })
}

fn packets() -> impl Strategy<Value = Packet> {
    prop_oneof![
        handshake_packets(),
        writes(),
        block_packets(),
        bitmap_packets(),
        agreement_packets(),
        third_node_packets(),
        block_packets_of_9(),
        Just(Packet::Ping),
        Just(Packet::PingAck),
        Just(Packet::UnplugRemote),
    ]
}

/// What is left of a packet when it goes through a dialect that lacks some of its fields.
fn as_seen(packet: &Packet, dialect: &Dialect, digest: Digest) -> Packet {
    let (mut packet, version) = (packet.clone(), dialect.version.number());
    match &mut packet {
        Packet::Data(w) => w.digest = digest,
        Packet::DataReply(d) | Packet::RsDataReply(d) => d.digest = digest,
        Packet::Protocol(p) | Packet::ProtocolUpdate(p) if version < 87 => p.integrity_alg = AlgName::NONE,
        Packet::SyncParam(p) => {
            p.verify_alg = if version >= 88 { p.verify_alg } else { AlgName::NONE };
            p.csums_alg = if version >= 89 { p.csums_alg } else { AlgName::NONE };
            p.controller = if version >= 95 { p.controller } else { ResyncController::default() };
        }
        Packet::Sizes(s) if !dialect.has(Features::WRITE_SAME) => s.limits = None,
        Packet::Sizes(s) if !dialect.has(Features::BM_BLOCK_SHIFT) => {
            s.limits = s.limits.map(|l| QueueLimits { bitmap_block_shift: 0, ..l });
        }
        Packet::State(s) if !dialect.version.is_9() => (s.disk, s.pdsk) = (old_disk(s.disk), old_disk(s.pdsk)),
        Packet::StateChgReq(c) | Packet::ConnStChgReq(c) => {
            (c.disk, c.pdsk) = (c.disk.map(old_disk), c.pdsk.map(old_disk));
        }
        Packet::TwopcPrepare(p) => p.transaction = transaction_as_seen(p.transaction, dialect),
        Packet::TwopcPrepRsz(p) => p.transaction = transaction_as_seen(p.transaction, dialect),
        Packet::TwopcCommit(d) | Packet::TwopcAbort(d) => d.transaction = transaction_as_seen(d.transaction, dialect),
        _ => {}
    }
    packet
}

/// Below version 110 there is no Detaching.
fn old_disk(disk: DiskState) -> DiskState {
    if disk == DiskState::Detaching { DiskState::Failed } else { disk }
}

fn transaction_as_seen(transaction: Transaction, dialect: &Dialect) -> Transaction {
    let flags = dialect.has(Features::TWOPC_V2);
    let (has_reachable, primary_incapable) =
        (transaction.has_reachable && flags, transaction.primary_incapable && flags);
    Transaction { has_reachable, primary_incapable, ..transaction }
}

fn socket_of(command: Command) -> Socket {
    if command.is_on(Socket::Control) { Socket::Control } else { Socket::Data }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_emitted_is_parsed(packet in packets(), dialect in dialects(), volume in 0u16..65535,
                                 alg in proptest::sample::select(&["", "crc32c", "sha1", "sha512"][..])) {
        let alg = if dialect.version.number() < 87 { "" } else { alg };
        let digest = Digest::new(&vec![0xab; digest_len(alg).unwrap()]).unwrap();
        let packet = as_seen(&packet, &dialect, digest);
        let command = packet.command(&dialect);
        let none = if dialect.version.is_9() { VolumeNr::NONE } else { VolumeNr(0) };
        let volume = match command.is_connection_level() {
            true => none,
            false => VolumeNr(if dialect.version.number() < 100 { 0 } else { volume }),
        };
        let mut bytes = vec![0x55; 3];
        let emitted = packet.emit(volume, &dialect, &mut bytes);
        if !command.is_sendable(&dialect) {
            prop_assert_eq!(emitted, Err(Unsendable::NotInDialect { command, version: dialect.version.number() }));
            prop_assert_eq!(bytes.len(), 3);
            return Ok(());
        }
        prop_assert_eq!(emitted, Ok(()));
        prop_assert!(bytes.len() - 3 <= MAX_PACKET);
        let payload_len = packet.payload_len() as u32;
        let expected = Decoded { volume, consumed: bytes.len() - 3, payload_len, packet };
        bytes.extend([0xee; 40]);
        let mut decoder = peer::decoder(socket_of(command), dialect, alg);
        prop_assert_eq!(decoder.step(&bytes[3..]), Ok(Step::Packet(expected)));
    }

    #[test]
    fn any_bytes_give_a_packet_or_a_reason(dialect in dialects(), control in any::<bool>(), header in 0..4,
                                           command in proptest::sample::select(Command::ALL), length in any::<u32>(),
                                           short in any::<bool>(),
                                           body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let socket = if control { Socket::Control } else { Socket::Data };
        let length = if short { length % 200 } else { length };
        let format = [HeaderFormat::H80, HeaderFormat::H95, HeaderFormat::H100].get(header as usize);
        let header = Header { volume: VolumeNr(0), command: command.number(), length };
        let mut bytes = match format {
            Some(&f) => header.emit(f).map_or(Vec::new(), |b| b[..f.size()].to_vec()),
            None => Vec::new(),
        };
        bytes.extend(&body);
        for mut decoder in [peer::decoder(socket, dialect, ""), StreamDecoder::data(ConnectionFeatures::OFFER)] {
            match decoder.step(&bytes) {
                Ok(Step::NeedMore(n)) => prop_assert!(n > bytes.len() && n <= MAX_PACKET),
                Ok(Step::Packet(d)) => {
                    prop_assert!(d.consumed <= bytes.len() && d.payload_len <= MAX_BLOCK);
                    prop_assert_eq!(u64::from(d.payload_len), d.packet.payload_len());
                }
                Err(violation) => prop_assert!(!violation.to_string().is_empty()),
            }
        }
        let _ = first_packet(&bytes);
    }

    #[test]
    fn a_bent_packet_gives_a_packet_or_a_reason(packet in packets(), dialect in dialects(),
                                                bends in proptest::collection::vec((any::<u16>(), 0u32..8), 1..4)) {
        let mut bytes = Vec::new();
        let packet = as_seen(&packet, &dialect, Digest::EMPTY);
        if packet.emit(VolumeNr(0), &dialect, &mut bytes).is_err() {
            return Ok(());
        }
        for (at, bit) in bends {
            let at = usize::from(at) % bytes.len();
            bytes[at] ^= 1u8 << bit;
        }
        let mut decoder = peer::decoder(socket_of(packet.command(&dialect)), dialect, "");
        if let Ok(Step::Packet(d)) = decoder.step(&bytes) {
            prop_assert!(d.consumed <= bytes.len());
            let command = d.packet.command(&dialect);
            if command.is_sendable(&dialect) && d.payload_len <= dialect.version.max_block() {
                prop_assert_eq!(d.packet.emit(d.volume, &dialect, &mut Vec::new()), Ok(()));
            }
            if let Packet::CompressedBitmap(c) = d.packet {
                let mut receiver = BitmapReceiver::new(&dialect, 100_000);
                let _ = receiver.compressed(&c, |from, to| assert!(from < to && to <= 100_000));
            }
        }
    }

    #[test]
    fn bitmaps_arrive_as_they_were_sent(bits in bitsets(), dialect in dialects(), use_rle in any::<bool>()) {
        let mut sender = BitmapSender::new(&dialect, use_rle);
        let mut receiver = BitmapReceiver::new(&dialect, bits.len());
        let (mut received, mut done) = (BitSet::new(bits.len()), false);
        while let Some(packet) = sender.next_packet(&bits) {
            prop_assert!(!done);
            let mut bytes = Vec::new();
            packet.emit(VolumeNr(0), &dialect, &mut bytes).unwrap();
            let mut decoder = peer::decoder(Socket::Data, dialect, "");
            let Ok(Step::Packet(d)) = decoder.step(&bytes) else { panic!("{packet:?}") };
            let set = |from, to| { received.set_range(from, to); };
            done = match d.packet {
                Packet::Bitmap(words) => receiver.plain(&words, set).unwrap(),
                Packet::CompressedBitmap(c) => receiver.compressed(&c, set).unwrap(),
                other => panic!("{other:?}"),
            };
        }
        prop_assert!(done && received == bits);
    }

    #[test]
    fn a_state_change_keeps_its_meaning_through_mask_and_value(change in state_changes()) {
        let old = StateChange { disk: change.disk.map(old_disk), pdsk: change.pdsk.map(old_disk), ..change };
        for (numbering, change) in [(DiskNumbering::Classic, old), (DiskNumbering::WithDetaching, change)] {
            let (mask, val) = change.to_bits(numbering);
            prop_assert_eq!(val & !mask, 0);
            prop_assert_eq!(StateChange::from_bits(mask, val, numbering), Ok(change));
        }
        let seen = change.from_peers_view();
        let mirrored = (change.peer, change.role, change.pdsk, change.disk);
        prop_assert_eq!((seen.role, seen.peer, seen.disk, seen.pdsk), mirrored);
    }
}
