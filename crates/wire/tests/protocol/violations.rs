//! What a peer may not send (`docs/spec/wire-protocol.md` 16): each row gives its named reason and reaction.

use crate::peer::{self, dialect};
use units::NodeId;
use urbd_wire::{
    BitmapReceiver, Command, ConnectionFeatures, Dialect, Features, HeaderFormat, Packet, Reaction, Refusal, Socket,
    Step, StreamDecoder, Version, Violation, first_packet,
};

/// What two 8.4 nodes speak.
const NEWEST: Dialect = Dialect { version: Version::MAX_84, features: Features::OF_84 };

/// A packet with the given length field.
fn packet(command: u16, length: u32, body: &[u8]) -> Vec<u8> {
    let header = urbd_wire::Header { volume: units::VolumeNr(0), command, length };
    [&header.emit(HeaderFormat::H100).unwrap(), body].concat()
}

fn with_body(command: Command, body: &[u8]) -> Vec<u8> {
    packet(command.number(), body.len() as u32, body)
}

fn refused(socket: Socket, bytes: &[u8]) -> Violation {
    let violation = peer::decoder(socket, NEWEST, "").step(bytes).unwrap_err();
    assert_eq!(
        violation.reaction(),
        if authenticates(&violation) { Reaction::StandAlone } else { Reaction::Reconnect }
    );
    violation
}

fn authenticates(violation: &Violation) -> bool {
    matches!(violation, Violation::BadLength { command: Command::AuthChallenge, .. })
}

/// sector, block id, and four more numbers.
fn block(sector: u64, numbers: &[u32]) -> Vec<u8> {
    let numbers = numbers.iter().flat_map(|n| n.to_be_bytes());
    sector.to_be_bytes().into_iter().chain([7; 8]).chain(numbers).collect()
}

fn accepted(socket: Socket, bytes: &[u8]) -> Packet {
    match peer::decoder(socket, NEWEST, "").step(bytes) {
        Ok(Step::Packet(d)) => d.packet,
        other => panic!("{other:?}"),
    }
}

#[test]
fn headers() {
    for socket in [Socket::Data, Socket::Control] {
        let mut bytes = packet(Command::Ping.number(), 0, &[]);
        bytes[3] = 0x21;
        assert_eq!(refused(socket, &bytes), Violation::BadMagic { magic: 0x8620_ec21 });
        bytes[3] = 0x20;
        bytes[15] = 1;
        assert_eq!(refused(socket, &bytes), Violation::HeaderPadding { pad: 1 });
    }
    let old = [0x83, 0x74, 2, 0x67, 0, 0x13, 0, 0];
    assert_eq!(refused(Socket::Control, &old), Violation::BadMagic { magic: 0x8374_0267 });
    let mut decoder = StreamDecoder::control(dialect(99, Features::NONE));
    assert!(matches!(decoder.step(&packet(Command::Ping.number(), 0, &[])), Err(Violation::BadMagic { .. })));
}

#[test]
fn every_command_is_unknown_on_the_stream_where_it_does_not_belong() {
    for (socket, control) in [(Socket::Data, false), (Socket::Control, true)] {
        let decoder = peer::decoder(socket, NEWEST, "");
        let unknown = (0..=u16::MAX).filter(|&n| !Command::from_number(n).is_some_and(|c| c.is_on(socket)));
        let unknown: Vec<u16> = unknown.collect();
        for &command in &unknown {
            let step = decoder.clone().step(&packet(command, 0, &[]));
            assert_eq!(step, Err(Violation::UnknownCommand { command, control }), "{command:#x}");
        }
        let elsewhere = if control { [0x00, 0x0e, 0x12, 0x28] } else { [0x13, 0x16, 0x1d, 0x29] };
        let never = [0x05, 0x06, 0x25, 0x26, 0x34, 0x37, 0x5a, 0x100, 0xfff1, 0xfff2, 0xfffe];
        assert!(elsewhere.iter().chain(&never).all(|n| unknown.contains(n)));
        assert_eq!(65536 - unknown.len(), if control { 28 } else { 49 });
    }
}

#[test]
fn lengths() {
    // (command, control stream, shortest, longest) at protocol 101 with all features
    let table = [
        (Command::Data, false, 24, 24 + (1 << 20)),
        (Command::DataReply, false, 24, 24 + (1 << 20)),
        (Command::RsDataReply, false, 24, 24 + (1 << 20)),
        (Command::Barrier, false, 8, 8),
        (Command::Bitmap, false, 0, 4080),
        (Command::UnplugRemote, false, 0, 0),
        (Command::DataRequest, false, 24, 24),
        (Command::RsDataRequest, false, 24, 24),
        (Command::Protocol, false, 25, 88),
        (Command::ProtocolUpdate, false, 25, 88),
        (Command::Uuids, false, 48, 48),
        (Command::Sizes, false, 56, 56),
        (Command::State, false, 4, 4),
        (Command::SyncUuid, false, 8, 8),
        (Command::AuthChallenge, false, 64, 128),
        (Command::AuthResponse, false, 1, 64),
        (Command::StateChgReq, false, 8, 8),
        (Command::Ping, true, 0, 0),
        (Command::PingAck, true, 0, 0),
        (Command::RecvAck, true, 24, 24),
        (Command::WriteAck, true, 24, 24),
        (Command::RsWriteAck, true, 24, 24),
        (Command::Superseded, true, 24, 24),
        (Command::NegAck, true, 24, 24),
        (Command::NegDreply, true, 24, 24),
        (Command::NegRsDreply, true, 24, 24),
        (Command::BarrierAck, true, 8, 8),
        (Command::StateChgReply, true, 4, 4),
        (Command::OvRequest, false, 24, 24),
        (Command::OvReply, false, 24, 88),
        (Command::OvResult, true, 24, 24),
        (Command::CsumRsRequest, false, 24, 88),
        (Command::RsIsInSync, true, 24, 24),
        (Command::SyncParam89, false, 148, 148),
        (Command::CompressedBitmap, false, 2, 4080),
        (Command::DelayProbe, false, 8, 8),
        (Command::OutOfSync, false, 16, 16),
        (Command::RsCancel, true, 24, 24),
        (Command::ConnStChgReq, false, 8, 8),
        (Command::ConnStChgReply, true, 4, 4),
        (Command::RetryWrite, true, 24, 24),
        (Command::Trim, false, 28, 28),
        (Command::RsThinReq, false, 24, 24),
        (Command::RsDeallocated, false, 16, 16),
        (Command::Zeroes, false, 28, 28),
        (Command::EnableReplicationNext, false, 4, 4),
        (Command::EnableReplication, false, 4, 4),
    ];
    let known = Command::ALL.iter().filter(|c| c.is_accepted(&NEWEST));
    let missing: Vec<_> = known.filter(|c| !table.iter().any(|row| row.0 == **c)).collect();
    assert_eq!(missing, [&Command::InitialMeta, &Command::InitialData, &Command::ConnectionFeatures]);
    for (command, control, min, max) in table {
        let socket = if control { Socket::Control } else { Socket::Data };
        for length in [min - 1, max + 1, i64::from(u32::MAX)].iter().filter_map(|&n| u32::try_from(n).ok()) {
            let (min, max) = (min as u32, max as u32);
            let violation = Violation::BadLength { command, length, min, max };
            assert_eq!(refused(socket, &packet(command.number(), length, &[])), violation);
        }
        for length in [min as u32, max as u32] {
            let step = peer::decoder(socket, NEWEST, "").step(&packet(command.number(), length, &[]));
            assert!(length == 0 || matches!(step, Ok(Step::NeedMore(17..=4096))), "{command} {length}: {step:?}");
        }
    }
}

#[test]
fn layouts_by_version() {
    let lengths = |command: Command, version, features| {
        let bytes = &packet(command.number(), 4097, &[])[8..];
        let header = [&[0x83, 0x5a], &command.number().to_be_bytes()[..], &4097u32.to_be_bytes()[..]].concat();
        assert_eq!(bytes.len(), header.len());
        match peer::decoder(Socket::Data, dialect(version, features), "").step(&header) {
            Err(Violation::BadLength { min, max, .. }) => (min, max),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(lengths(Command::SyncParam, 86, Features::NONE), (4, 4));
    assert_eq!(lengths(Command::SyncParam, 88, Features::NONE), (5, 68));
    assert_eq!(lengths(Command::SyncParam89, 94, Features::NONE), (132, 132));
    assert_eq!(lengths(Command::SyncParam89, 95, Features::NONE), (148, 148));
    assert_eq!(lengths(Command::Protocol, 86, Features::NONE), (24, 24));
    assert_eq!(lengths(Command::Sizes, 99, Features::NONE), (32, 32));
    assert_eq!(lengths(Command::Sizes, 99, Features::WRITE_SAME), (56, 56));
    assert_eq!(lengths(Command::Bitmap, 99, Features::NONE), (0, 4088));
}

#[test]
fn packets_that_the_dialect_lacks() {
    for (command, version, features) in [
        (Command::SyncParam, 89, Features::OF_84),
        (Command::SyncParam89, 88, Features::OF_84),
        (Command::OvRequest, 87, Features::OF_84),
        (Command::CsumRsRequest, 88, Features::OF_84),
        (Command::CompressedBitmap, 89, Features::OF_84),
        (Command::Trim, 94, Features::OF_84),
        (Command::OutOfSync, 95, Features::OF_84),
        (Command::ConnStChgReq, 99, Features::OF_84),
        (Command::ProtocolUpdate, 99, Features::OF_84),
        (Command::RsThinReq, 99, Features::OF_84.without(Features::THIN_RESYNC)),
        (Command::RsDeallocated, 99, Features::OF_84.without(Features::THIN_RESYNC)),
        (Command::Zeroes, 99, Features::OF_84.without(Features::WRITE_ZEROES)),
        (Command::TwopcPrepare, 99, Features::OF_84),
        (Command::Uuids110, 99, Features::OF_84),
        (Command::Dagtag, 99, Features::OF_84),
    ] {
        let bytes = [&[0x83, 0x74, 2, 0x67], &command.number().to_be_bytes()[..], &[0, 0]].concat();
        let violation = Violation::NotInDialect { command, version };
        assert_eq!(peer::decoder(Socket::Data, dialect(version, features), "").step(&bytes), Err(violation));
    }
}

#[test]
fn packets_that_a_dialect_of_9_lacks() {
    let header = |command: Command| {
        let number = command.number().to_be_bytes();
        [&[0x86, 0x20, 0xec, 0x20, 0, 0][..], &number[..], &[0; 8]].concat()
    };
    for (socket, command, version, features) in [
        (Socket::Data, Command::Uuids, 118, Features::ALL),
        (Socket::Data, Command::SyncUuid, 118, Features::ALL),
        (Socket::Data, Command::ConnStChgReq, 124, Features::ALL),
        (Socket::Control, Command::Superseded, 118, Features::ALL),
        (Socket::Control, Command::RetryWrite, 124, Features::ALL),
        (Socket::Control, Command::OvResult, 122, Features::ALL),
        (Socket::Control, Command::OvResultId, 120, Features::ALL),
        (Socket::Data, Command::RsDeallocated, 122, Features::ALL),
        (Socket::Data, Command::RsDeallocatedId, 120, Features::ALL),
        (Socket::Data, Command::RsDeallocatedId, 122, Features::ALL.without(Features::THIN_RESYNC)),
        (Socket::Control, Command::WriteAckInSync, 120, Features::ALL),
        (Socket::Control, Command::RsNegAck, 120, Features::ALL),
        (Socket::Data, Command::FlushRequests, 122, Features::ALL),
        (Socket::Control, Command::FlushForward, 122, Features::ALL),
        (Socket::Data, Command::RsDagtagReq, 124, Features::ALL.without(Features::RESYNC_DAGTAG)),
        (Socket::Data, Command::RsThinDagtagReq, 124, Features::ALL.without(Features::THIN_RESYNC)),
        (Socket::Data, Command::OvDagtagReply, 124, Features::ALL.without(Features::RESYNC_DAGTAG)),
        (Socket::Data, Command::EnableReplication, 124, Features::ALL.without(Features::RESYNC_WITHOUT_REPLICATION)),
    ] {
        let violation = Violation::NotInDialect { command, version };
        let mut decoder = peer::decoder(socket, dialect(version, features), "");
        assert_eq!(decoder.step(&header(command)), Err(violation), "{command} at {version}");
    }
}

/// Some DRBD 9 say it to an 8.4 node, too. It is read, and nothing else of 9 is.
#[test]
fn replication_of_9_is_read_by_an_old_peer() {
    for command in [Command::EnableReplicationNext, Command::EnableReplication] {
        assert!(command.is_accepted(&NEWEST) && !command.is_sendable(&NEWEST));
        let packet = accepted(Socket::Data, &with_body(command, &[1, 0, 0, 0]));
        assert_eq!(packet.command(&NEWEST), command);
    }
}

#[test]
fn dialects_of_9_that_are_refused() {
    let offer = |protocol_max, features| ConnectionFeatures {
        protocol_max,
        features,
        ..ConnectionFeatures::of_9(NodeId::new(0).unwrap(), NodeId::new(1).unwrap())
    };
    let own = offer(124, Features::ALL);
    for version in 86..=130 {
        let agreed = own.agree(&offer(version, Features::ALL.without(Features::RESYNC_DAGTAG)));
        let expected = Version::new(version.min(124));
        assert_eq!(agreed.ok().map(|d| d.version), expected, "{version}");
        assert_eq!(expected.is_none(), (102..118).contains(&version));
    }
    assert!(own.agree(&offer(121, Features::ALL)).is_err());
    assert!(own.agree(&offer(120, Features::ALL)).is_ok());
    assert_eq!(own.agree(&ConnectionFeatures::OFFER).unwrap().version, Version::MAX_84);
    assert_eq!(ConnectionFeatures::OFFER.agree(&own).unwrap().features, Features::OF_84);
}

#[test]
fn values_of_9_that_mean_nothing() {
    let newest = dialect(124, Features::ALL);
    let refused = |socket, command: Command, body: &[u8]| {
        let number = command.number().to_be_bytes();
        let length = (body.len() as u32).to_be_bytes();
        let bytes = [&[0x86, 0x20, 0xec, 0x20, 0, 0][..], &number, &length, &[0; 4], body].concat();
        peer::decoder(socket, newest, "").step(&bytes).unwrap_err()
    };
    let unknown = |command, field, value| Violation::UnknownValue { command, field, value };
    let mut uuids = vec![0; 40];
    uuids[32..40].copy_from_slice(&(1u64 << 32).to_be_bytes());
    assert_eq!(refused(Socket::Data, Command::Uuids110, &uuids), unknown(Command::Uuids110, "bitmap nodes", 1 << 32));
    uuids[32..40].copy_from_slice(&7u64.to_be_bytes());
    assert_eq!(refused(Socket::Data, Command::Uuids110, &uuids), Violation::Truncated { command: Command::Uuids110 });
    let mut prepare = vec![0; 36];
    prepare[10] = 32;
    assert_eq!(refused(Socket::Data, Command::TwopcPrepare, &prepare), unknown(Command::TwopcPrepare, "initiator", 32));
    (prepare[10], prepare[11]) = (0, 0xfe);
    assert_eq!(
        refused(Socket::Data, Command::TwopcPrepare, &prepare),
        unknown(Command::TwopcPrepare, "target", 0xffff_ffff)
    );
    (prepare[11], prepare[27]) = (0xff, 2);
    assert_eq!(
        refused(Socket::Data, Command::TwopcPrepare, &prepare),
        unknown(Command::TwopcPrepare, "primary nodes", 2)
    );
    assert_eq!(
        refused(Socket::Data, Command::FlushRequests, &[0; 8]),
        unknown(Command::FlushRequests, "flush sequence", 0)
    );
    let result = [&[0; 16][..], &[0, 0, 16, 0], &[0; 4], &[0, 0, 0, 3], &[0; 4]].concat();
    assert_eq!(refused(Socket::Control, Command::OvResultId, &result), unknown(Command::OvResultId, "result", 3));
    let mut sizes = vec![0; 56];
    sizes[55] = 9;
    assert_eq!(refused(Socket::Data, Command::Sizes, &sizes), unknown(Command::Sizes, "bitmap block size", 9));
}

#[test]
fn block_sizes() {
    let bad = |command, size, max| Violation::BadBlockSize { command, size, max };
    let data = |payload: u32| [packet(0, 24 + payload, &block(0, &[1, 0]))].concat();
    for size in [0, 1, 511, 513, (1 << 20) - 1] {
        assert_eq!(refused(Socket::Data, &data(size)), bad(Command::Data, size, 1 << 20));
    }
    let flush = packet(0, 24, &block(0, &[1, 0x20]));
    assert!(matches!(accepted(Socket::Data, &flush), Packet::Data(w) if w.size.0 == 0));
    for command in [Command::Trim, Command::Zeroes] {
        for size in [0, 1000, (128 << 20) + 512] {
            let bytes = with_body(command, &block(0, &[1, 0x40, size]));
            assert_eq!(refused(Socket::Data, &bytes), bad(command, size, 128 << 20));
        }
        accepted(Socket::Data, &with_body(command, &block(0, &[1, 0x40, 128 << 20])));
    }
    use Command::{CsumRsRequest, DataRequest, OvReply, OvRequest, RsDataRequest, RsThinReq};
    for command in [DataRequest, RsDataRequest, RsThinReq, OvRequest, CsumRsRequest, OvReply] {
        for size in [0, 100, (1 << 20) + 512] {
            let bytes = with_body(command, &block(0, &[size, 0]));
            assert_eq!(refused(Socket::Data, &bytes), bad(command, size, 1 << 20));
        }
        accepted(Socket::Data, &with_body(command, &block(0, &[1 << 20, 0xdead_beef])));
    }
}

#[test]
fn sectors_beyond_any_device() {
    for (command, length, numbers) in [
        (Command::Data, 24 + 512, &[1, 0][..]),
        (Command::RsDataRequest, 24, &[512, 0]),
        (Command::Trim, 28, &[1, 0x40, 512]),
        (Command::OutOfSync, 16, &[]),
    ] {
        for sector in [u64::MAX, 1 << 63, 1 << 54] {
            let mut body = block(sector, numbers);
            if command == Command::OutOfSync {
                body[8..].copy_from_slice(&[0, 0, 2, 0, 0, 0, 0, 0]);
            }
            let violation = Violation::SectorBeyondAnyDevice { command, sector };
            assert_eq!(refused(Socket::Data, &packet(command.number(), length, &body)), violation);
        }
    }
    let ack = with_body(Command::WriteAck, &block(u64::MAX - 1, &[4096, 1]));
    assert!(matches!(refused(Socket::Control, &ack), Violation::SectorBeyondAnyDevice { .. }));
}

#[test]
fn write_same_is_gone() {
    let write = packet(0, 24 + 512, &block(0, &[1, 0x200]));
    assert_eq!(refused(Socket::Data, &write), Violation::WriteSameFlag);
    assert_eq!(refused(Socket::Data, &with_body(Command::Trim, &block(0, &[1, 0x240, 512]))), Violation::WriteSameFlag);
}

#[test]
fn state_words() {
    for (word, field, value) in [
        (0x0000_0003u32, "role", 3),
        (0x0000_000c, "peer role", 3),
        (24 << 4, "connection state", 24),
        (0x1f0, "connection state", 31),
        (10 << 9, "disk state", 10),
        (15 << 13, "peer disk state", 15),
    ] {
        let unknown = |command| Violation::UnknownValue { command, field, value };
        assert_eq!(refused(Socket::Data, &with_body(Command::State, &word.to_be_bytes())), unknown(Command::State));
        let full: [u32; 2] = [0x007f_ffff, word];
        let request = full.map(u32::to_be_bytes).concat();
        let command = Command::StateChgReq;
        assert_eq!(refused(Socket::Data, &with_body(command, &request)), unknown(command));
    }
    let state = refused(Socket::Data, &with_body(Command::State, &(9u32 << 9).to_be_bytes()));
    assert_eq!(state, Violation::UnknownValue { command: Command::State, field: "disk state", value: 9 });
    let partial = [[0, 0, 0, 0x10], [0; 4]].concat();
    let violation = Violation::PartialMask { field: "connection state", mask: 0x10 };
    assert_eq!(refused(Socket::Data, &with_body(Command::ConnStChgReq, &partial)), violation);
}

#[test]
fn options() {
    let body = |numbers: [u32; 6], name: &[u8]| [numbers.map(u32::to_be_bytes).as_flattened(), name].concat();
    let command = Command::Protocol;
    let bad = |numbers, name: &[u8]| refused(Socket::Data, &with_body(command, &body(numbers, name)));
    for (numbers, field, value) in [
        ([0, 0, 0, 0, 0, 0], "protocol", 0),
        ([4, 0, 0, 0, 0, 0], "protocol", 4),
        ([3, 11, 0, 0, 0, 0], "after-sb-0pri", 11),
        ([3, 0, 99, 0, 0, 0], "after-sb-1pri", 99),
        ([3, 0, 0, u32::MAX, 0, 0], "after-sb-2pri", 0xffff_ffff),
        ([3, 0, 0, 0, 0, 2], "two-primaries", 2),
    ] {
        assert_eq!(bad(numbers, b"\0"), Violation::UnknownValue { command, field, value });
    }
    for name in [&b"sha1"[..], b"sha\n1\0", b"\xff\0", &[b'x'; 64]] {
        assert_eq!(bad([3, 0, 0, 0, 0, 0], name), Violation::BadAlgorithmName { command });
    }
    let param = [&[0; 4], &[b'x'; 64][..], &[0; 80]].concat();
    let command = Command::SyncParam89;
    assert_eq!(refused(Socket::Data, &with_body(command, &param)), Violation::BadAlgorithmName { command });
}

#[test]
fn verify_results() {
    let mut body = block(0, &[4096, 1]);
    body[8..16].copy_from_slice(&4713u64.to_be_bytes());
    let command = Command::OvResult;
    let violation = Violation::UnknownValue { command, field: "result", value: 4713 };
    assert_eq!(refused(Socket::Control, &with_body(command, &body)), violation);
}

#[test]
fn bitmaps() {
    let command = Command::Bitmap;
    assert_eq!(refused(Socket::Data, &with_body(command, &[0; 12])), Violation::Truncated { command });
    let mut receiver = BitmapReceiver::new(&NEWEST, 640);
    for words in [0, 9, 11] {
        assert_eq!(receiver.plain(&vec![0; words], |_, _| {}), Err(Violation::BitmapLength { words, expected: 10 }));
    }
    for encoding in [0, 1, 3, 0xf, 0x82 | 1] {
        let violation = Violation::BitmapCode { encoding };
        assert_eq!(refused(Socket::Data, &with_body(Command::CompressedBitmap, &[encoding, 0])), violation);
    }
    let receive = |code: &[u8], bits| match accepted(Socket::Data, &with_body(Command::CompressedBitmap, code)) {
        Packet::CompressedBitmap(c) => BitmapReceiver::new(&NEWEST, bits).compressed(&c, |_, _| {}),
        other => panic!("{other:?}"),
    };
    let appendix = [0xb2, 0x7f, 0xcf, 0x5e, 0x00]; // 32768 set bits
    assert_eq!(receive(&appendix, 32768), Ok(true));
    assert_eq!(receive(&appendix, 32769), Ok(false));
    assert_eq!(receive(&appendix, 32767), Err(Violation::BitmapOverrun { bit: 0, run: 32768, bits: 32767 }));
    let clear = [0x32, 0x7f, 0xcf, 0x5e, 0x00];
    assert_eq!(receive(&clear, 32767), Err(Violation::BitmapOverrun { bit: 0, run: 32768, bits: 32767 }));
    assert_eq!(receive(&appendix[..4], 32768), Err(Violation::BitmapCodeCut));
    let longest = [&[0x82][..], &[0xff; 8]].concat();
    assert!(matches!(receive(&longest, u64::MAX), Ok(false)));
}

#[test]
fn handshake() {
    let mut data = StreamDecoder::data(ConnectionFeatures::OFFER);
    let write = [0x83, 0x74, 2, 0x67, 0, 0, 0, 24];
    let violation = data.step(&write).unwrap_err();
    assert_eq!(violation, Violation::OutOfPhase { command: 0, expected: Command::ConnectionFeatures });
    assert_eq!(violation.reaction(), Reaction::StandAlone);
    let short = [0x83, 0x74, 2, 0x67, 0xff, 0xfe, 0, 71];
    let violation = data.step(&short).unwrap_err();
    assert!(matches!(violation, Violation::BadLength { command: Command::ConnectionFeatures, length: 71, .. }));
    assert_eq!(violation.reaction(), Reaction::StandAlone);
    assert!(first_packet(&write).is_err());
    assert!(first_packet(&[0x83, 0x74, 2, 0x67, 0xff, 0xf1, 0, 1]).is_err());
}

#[test]
fn versions() {
    let offer =
        |protocol_min, protocol_max| ConnectionFeatures { protocol_min, protocol_max, ..ConnectionFeatures::OFFER };
    let agreed = |min, max| offer(86, 101).agree(&offer(min, max)).map(|d| d.version.number());
    assert_eq!(agreed(86, 101), Ok(101));
    assert_eq!(agreed(86, 124), Ok(101));
    assert_eq!(agreed(80, 90), Ok(90));
    assert_eq!(agreed(87, 0), Ok(87));
    for (peer_min, peer_max) in [(102, 124), (80, 85), (1, 1)] {
        let refusal = Refusal { peer_min, peer_max };
        assert_eq!(agreed(peer_min, peer_max), Err(refusal));
        assert_eq!(Violation::from(refusal).reaction(), Reaction::StandAlone);
    }
    assert!(agreed(0, 0).is_err());
}
