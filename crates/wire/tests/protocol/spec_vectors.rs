//! The test vectors in `docs/spec/wire-protocol.md`, appendix A.

use crate::peer::{self, dialect};
use units::{BitSet, ByteLen, NodeId, Sector, VolumeNr};
use urbd_wire::{
    BarrierAck, BarrierNr, BitmapReceiver, BitmapSender, BlockAck, BlockId, CompressedBitmap, ConnState,
    ConnectionFeatures, Decision, Dialect, Digest, DiskNumbering, DiskState, DpFlags, Features, Packet, Prepare,
    QueueLimits, ResizeFlags, Role, Sizes, Socket, StateChange, StateWord, Step, Transaction, Version, Vote, WireMask,
    Write, WriteRange, digest_len, first_packet,
};

/// What two 8.4 nodes speak.
const NEWEST: Dialect = Dialect { version: Version::MAX_84, features: Features::OF_84 };

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|b| u8::from_str_radix(b, 16).unwrap()).collect()
}

/// Emits to the bytes, and the bytes decode to the packet.
fn check(socket: Socket, packet: &Packet, dialect: Dialect, integrity_alg: &str, text: &str) {
    let (mut bytes, expected) = (Vec::new(), hex(text));
    packet.emit(VolumeNr(0), &dialect, &mut bytes).unwrap();
    assert_eq!(bytes, expected);
    let Ok(Step::Packet(d)) = peer::decoder(socket, dialect, integrity_alg).step(&expected) else { panic!("{text}") };
    assert_eq!((&d.packet, d.consumed), (packet, expected.len()));
}

#[test]
fn first_packets() {
    assert_eq!(first_packet(&hex("83 74 02 67 ff f2 00 00")), Ok(Some(Socket::Data)));
    assert_eq!(first_packet(&hex("83 74 02 67 ff f1 00 00")), Ok(Some(Socket::Control)));
    assert_eq!(first_packet(&hex("83 74 02 67 ff f1 00")), Ok(None));
}

#[test]
fn connection_features_of_8_4() {
    let mut expected = hex("83 74 02 67 ff fe 00 48 00 00 00 56 00 00 00 0f 00 00 00 65");
    expected.resize(80, 0);
    let mut bytes = Vec::new();
    Packet::ConnectionFeatures(ConnectionFeatures::OFFER).emit(VolumeNr(0), &Dialect::HANDSHAKE, &mut bytes).unwrap();
    assert_eq!(bytes, expected);
}

const OF_9: Dialect = Dialect { version: Version::MAX, features: Features::ALL };

#[test]
fn a_connect_in_two_phases() {
    let node = |n| NodeId::new(n).unwrap();
    let transaction = Transaction {
        tid: 0x1234_5678,
        initiator: node(0),
        target: Some(node(1)),
        nodes_to_reach: WireMask(!3),
        has_reachable: true,
        primary_incapable: false,
    };
    let change =
        StateChange { role: Some(Role::Secondary), conn: Some(ConnState::WFReportParams), ..StateChange::default() };
    let both = WireMask(3);
    let none = WireMask::NONE;
    let prepare = Packet::TwopcPrepare(Box::new(Prepare { transaction, change }));
    check_of_9(
        Socket::Data,
        &prepare,
        "86 20 ec 20 ff ff 00 2e 00 00 00 24 00 00 00 00 12 34 56 78 c0 00 00 00 00 00 00 01 ff ff ff ff \
         ff ff ff fc 00 00 00 00 00 00 00 00 00 00 01 f3 00 00 00 92",
    );
    let yes = Packet::TwopcYes(Box::new(Vote::on_change(&transaction, both, none, none)));
    check_of_9(
        Socket::Control,
        &yes,
        "86 20 ec 20 ff ff 00 45 00 00 00 20 00 00 00 00 12 34 56 78 00 00 00 00 00 00 00 00 00 00 00 03 \
         00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00",
    );
    let decision = Decision::of_change(transaction, none, both, &change);
    assert_eq!(decision.reachable_nodes(), Some(both));
    check_of_9(
        Socket::Data,
        &Packet::TwopcCommit(Box::new(decision)),
        "86 20 ec 20 ff ff 00 47 00 00 00 24 00 00 00 00 12 34 56 78 c0 00 00 00 00 00 00 01 ff ff ff ff \
         ff ff ff fc 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 03",
    );
}

/// The same as [`check`], for packets about no volume.
fn check_of_9(socket: Socket, packet: &Packet, text: &str) {
    let (mut bytes, expected) = (Vec::new(), hex(text));
    packet.emit(VolumeNr::NONE, &OF_9, &mut bytes).unwrap();
    assert_eq!(bytes, expected);
    let Ok(Step::Packet(d)) = peer::decoder(socket, OF_9, "").step(&expected) else { panic!("{text}") };
    assert_eq!((&d.packet, d.consumed, d.volume), (packet, expected.len(), VolumeNr::NONE));
}

#[test]
fn connection_features_of_9() {
    let mut expected = hex("83 74 02 67 ff fe 00 48 00 00 00 56 00 00 03 ff 00 00 00 7c 00 00 00 01 00 00 00 02");
    expected.resize(80, 0);
    let (mut bytes, node) = (Vec::new(), |n| NodeId::new(n).unwrap());
    let offer = Packet::ConnectionFeatures(ConnectionFeatures::of_9(node(1), node(2)));
    offer.emit(VolumeNr(0), &Dialect::HANDSHAKE, &mut bytes).unwrap();
    assert_eq!(bytes, expected);
}

#[test]
fn protocol_with_and_without_integrity() {
    let head = "86 20 ec 20 00 00 00 0b 00 00 00";
    let fields = "00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00";
    let plain = Packet::Protocol(Box::new(peer::protocol("")));
    check(Socket::Data, &plain, NEWEST, "", &format!("{head} 19 {fields} 00"));
    let crc32c = Packet::Protocol(Box::new(peer::protocol("crc32c")));
    check(Socket::Data, &crc32c, NEWEST, "", &format!("{head} 1f {fields} 63 72 63 33 32 63 00"));
}

#[test]
fn sizes_of_a_1_gib_disk() {
    let (physical_block_size, logical_block_size, io_min) = (4096, 512, 4096);
    let limits = QueueLimits {
        physical_block_size,
        logical_block_size,
        io_min,
        discard_enabled: true,
        ..QueueLimits::default()
    };
    let sizes = Sizes {
        disk_size: Sector(1 << 21),
        user_size: Sector(0),
        current_size: Sector(1 << 21),
        max_bio_size: 1 << 20,
        queue_order_type: 0,
        flags: ResizeFlags::default(),
        limits: Some(limits),
    };
    let text = "86 20 ec 20 00 00 00 0d 00 00 00 38 00 00 00 00 00 00 00 00 00 20 00 00 00 00 00 00 00 00 00 00 \
                00 00 00 00 00 20 00 00 00 10 00 00 00 00 00 00 00 00 10 00 00 00 02 00 00 00 00 00 00 00 10 00 \
                00 00 00 00 01 00 00 00";
    check(Socket::Data, &Packet::Sizes(Box::new(sizes)), NEWEST, "", text);
}

#[test]
fn state_words() {
    use DiskNumbering::{Classic, WithDetaching};
    let word = StateWord::undisturbed;
    use ConnState::{Connected, SyncSource, WFConnection};
    use DiskState::{DUnknown, Inconsistent, UpToDate};
    use Role::{Primary, Secondary, Unknown};
    for (state, classic, detaching) in [
        (word(Secondary, Unknown, WFConnection, UpToDate, DUnknown), 0xd082, 0xf282),
        (word(Secondary, Unknown, WFConnection, Inconsistent, DUnknown), 0xc882, 0xea82),
        (word(Primary, Secondary, Connected, UpToDate, UpToDate), 0x110a9, 0x132a9),
        (word(Primary, Secondary, SyncSource, UpToDate, Inconsistent), 0x9109, 0xb309),
    ] {
        assert_eq!((state.to_bits(Classic), state.to_bits(WithDetaching)), (classic, detaching));
        assert_eq!(StateWord::from_bits(classic, Classic), Ok(state));
        assert_eq!(StateWord::from_bits(detaching, WithDetaching), Ok(state));
    }
}

#[test]
fn data_path() {
    let block_id = BlockId(0x1122_3344_5566_7788);
    let flags = DpFlags::RW_SYNC | DpFlags::SEND_WRITE_ACK;
    let write = Write { sector: Sector(2048), block_id, seq: 1, flags, digest: Digest::EMPTY, size: ByteLen(4096) };
    let text = "86 20 ec 20 00 00 00 00 00 00 10 18 00 00 00 00 00 00 00 00 00 00 08 00 11 22 33 44 55 66 77 88 \
                00 00 00 01 00 00 01 02";
    check(Socket::Data, &Packet::Data(write), NEWEST, "", text);
    let ack = BlockAck { sector: Sector(2048), block_id, size: ByteLen(4096), seq: 1 };
    let text = "86 20 ec 20 00 00 00 16 00 00 00 18 00 00 00 00 00 00 00 00 00 00 08 00 11 22 33 44 55 66 77 88 \
                00 00 10 00 00 00 00 01";
    check(Socket::Control, &Packet::WriteAck(ack), NEWEST, "", text);
    let text = "86 20 ec 20 00 00 00 03 00 00 00 08 00 00 00 00 07 00 00 00 00 00 00 00";
    check(Socket::Data, &Packet::Barrier(BarrierNr(7)), NEWEST, "", text);
    let text = "86 20 ec 20 00 00 00 1c 00 00 00 08 00 00 00 00 07 00 00 00 00 00 00 03";
    let ack = BarrierAck { barrier: BarrierNr(7), set_size: 3 };
    check(Socket::Control, &Packet::BarrierAck(ack), NEWEST, "", text);
    let flags = DpFlags::DISCARD | DpFlags::SEND_WRITE_ACK;
    let trim = WriteRange { sector: Sector(8192), block_id, seq: 2, flags, size: ByteLen(1 << 20) };
    let text = "86 20 ec 20 00 00 00 31 00 00 00 1c 00 00 00 00 00 00 00 00 00 00 20 00 11 22 33 44 55 66 77 88 \
                00 00 00 02 00 00 01 40 00 10 00 00";
    check(Socket::Data, &Packet::Trim(trim), NEWEST, "", text);
}

#[test]
fn digests_stand_between_fixed_part_and_payload() {
    for (name, len) in [("crc32c", 4), ("md5", 16), ("sha1", 20), ("sha256", 32), ("sha512", 64)] {
        assert_eq!(digest_len(name), Some(len));
        let digest = Digest::new(&vec![0xd1; len]).unwrap();
        let (sector, block_id, flags, size) = (Sector(8), BlockId(1), DpFlags::NONE, ByteLen(512));
        let packet = Packet::Data(Write { sector, block_id, seq: 1, flags, digest, size });
        let text = format!(
            "86 20 ec 20 00 00 00 00 00 00 02 {:02x} 00 00 00 00 00 00 00 00 00 00 00 08 00 00 00 00 00 00 00 01 \
             00 00 00 01 00 00 00 00 {}",
            24 + len,
            "d1 ".repeat(len)
        );
        check(Socket::Data, &packet, NEWEST, name, &text);
    }
    assert_eq!(digest_len("rot13"), None);
}

#[test]
fn compressed_bitmaps() {
    for (runs, text) in [
        (&[(true, 32768)][..], "b2 7f cf 5e 00"),
        (&[(false, 262_144)][..], "32 7f cf de 03"),
        (&[(false, 100), (true, 3), (false, 29), (true, 1), (false, 131)][..], "52 df 4c 1e e3 93 02"),
        (&[(true, 1), (false, 1), (true, 1), (false, 1)][..], "82 00"),
    ] {
        let len = runs.iter().map(|r| r.1).sum();
        let (mut bits, mut at) = (BitSet::new(len), 0);
        for &(value, run) in runs {
            if value {
                bits.set_range(at, at + run);
            }
            at += run;
        }
        let (packet, covered) = CompressedBitmap::encode(&bits, 0, 4079).unwrap();
        assert_eq!(covered, len);
        assert_eq!(packet.runs().collect::<Result<Vec<_>, _>>().as_deref(), Ok(runs));
        let mut bytes = Vec::new();
        Packet::CompressedBitmap(packet).emit(VolumeNr(0), &NEWEST, &mut bytes).unwrap();
        assert_eq!(bytes[16..], hex(text));
    }
}

#[test]
fn an_empty_volume_has_one_empty_bitmap_packet() {
    for use_rle in [false, true] {
        let mut sender = BitmapSender::new(&NEWEST, use_rle);
        assert_eq!(sender.next_packet(&BitSet::new(0)), Some(Packet::Bitmap(Vec::new())));
        assert_eq!(sender.next_packet(&BitSet::new(0)), None);
    }
    assert_eq!(BitmapReceiver::new(&NEWEST, 0).plain(&[], |_, _| {}), Ok(true));
}

#[test]
fn plain_packets_hold_510_words_with_the_long_header_and_511_with_the_short_ones() {
    let bits = BitSet::new(64 * 600);
    for (version, first) in [(101, 510), (99, 511), (86, 511)] {
        let mut sender = BitmapSender::new(&dialect(version, Features::NONE), false);
        let lens: Vec<usize> = std::iter::from_fn(|| sender.next_packet(&bits))
            .map(|p| if let Packet::Bitmap(words) = p { words.len() } else { panic!("{p:?}") })
            .collect();
        assert_eq!(lens, [first, 600 - first, 0]);
    }
}
