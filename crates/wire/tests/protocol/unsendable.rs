//! What this node must not send is refused, and leaves nothing in the buffer.

use crate::peer::{self, dialect};
use units::{ByteLen, Sector, VolumeNr};
use urbd_wire::{
    BlockId, Command, Dialect, Digest, DpFlags, Features, HeaderFormat, Packet, ResizeFlags, Sizes, Unsendable,
    Version, Write, WriteRange,
};

fn emit(packet: &Packet, volume: u16, dialect: &Dialect) -> Result<Vec<u8>, Unsendable> {
    let mut out = vec![1, 2, 3];
    match packet.emit(VolumeNr(volume), dialect, &mut out) {
        Ok(()) => Ok(out.split_off(3)),
        Err(e) => {
            assert_eq!(out, [1, 2, 3]);
            Err(e)
        }
    }
}

fn write(size: u64) -> Packet {
    let (block_id, flags) = (BlockId(1), DpFlags::NONE);
    Packet::Data(Write { sector: Sector(0), block_id, seq: 1, flags, digest: Digest::EMPTY, size: ByteLen(size) })
}

#[test]
fn blocks_above_the_versions_limit() {
    for (version, limit) in [(86, 32 << 10), (94, 32 << 10), (95, 128 << 10), (99, 128 << 10), (100, 1 << 20)] {
        let dialect = dialect(version, Features::NONE);
        assert!(emit(&write(limit), 0, &dialect).is_ok());
        let bytes = limit + 512 + 24;
        assert_eq!(emit(&write(limit + 512), 0, &dialect), Err(Unsendable::TooLong { bytes }));
    }
}

#[test]
fn header_formats_by_version_and_length() {
    use HeaderFormat::{H80, H95, H100};
    let choose = |version, length| HeaderFormat::choose(Version::new(version).unwrap(), length);
    for (version, length, format) in [
        (94, 65535, H80),
        (95, 32768, H80),
        (95, 32769, H95),
        (99, 0, H80),
        (99, 1 << 20, H95),
        (100, 0, H100),
        (101, 1 << 20, H100),
    ] {
        assert_eq!(choose(version, length), format, "{version} {length}");
    }
    assert_eq!(emit(&write(32 << 10), 0, &dialect(95, Features::NONE)).unwrap()[..2], [0x83, 0x5a]);
    assert_eq!(emit(&write(4096), 0, &dialect(95, Features::NONE)).unwrap()[..2], [0x83, 0x74]);
}

#[test]
fn volumes_in_dialects_without_them() {
    let old = dialect(99, Features::NONE);
    assert_eq!(emit(&write(512), 3, &old), Err(Unsendable::NoVolumes { volume: VolumeNr(3) }));
    assert_eq!(emit(&Packet::Ping, 3, &old).unwrap().len(), 8);
    let new = dialect(100, Features::NONE);
    assert_eq!(emit(&write(512), 3, &new).unwrap()[4..6], [0, 3]);
    assert_eq!(emit(&Packet::Ping, 3, &new).unwrap()[4..6], [0, 0]);
}

#[test]
fn discards_without_the_feature() {
    let (block_id, flags) = (BlockId(1), DpFlags::DISCARD);
    let trim = Packet::Trim(WriteRange { sector: Sector(0), block_id, seq: 1, flags, size: ByteLen(512) });
    let not_there = Unsendable::NotInDialect { command: Command::Trim, version: 101 };
    assert_eq!(emit(&trim, 0, &dialect(101, Features::OF_84.without(Features::TRIM))), Err(not_there));
    assert!(emit(&trim, 0, &dialect(101, Features::TRIM)).is_ok());
}

#[test]
fn sizes_without_the_limits_that_the_dialect_needs() {
    let sizes = Packet::Sizes(Box::new(Sizes {
        disk_size: Sector(8),
        user_size: Sector(0),
        current_size: Sector(8),
        max_bio_size: 4096,
        queue_order_type: 0,
        flags: ResizeFlags::default(),
        limits: None,
    }));
    assert_eq!(emit(&sizes, 0, &dialect(101, Features::WRITE_SAME)), Err(Unsendable::NoQueueLimits));
    assert_eq!(emit(&sizes, 0, &dialect(101, Features::NONE)).unwrap().len(), 16 + 32);
}

#[test]
fn integrity_before_version_87() {
    let protocol = Packet::Protocol(Box::new(peer::protocol("sha1")));
    assert_eq!(emit(&protocol, 0, &dialect(86, Features::NONE)), Err(Unsendable::NoIntegrityAlg));
    assert!(emit(&protocol, 0, &dialect(87, Features::NONE)).is_ok());
}

#[test]
fn flags_that_a_version_knows() {
    let all = DpFlags(0x5ff);
    let known = |version| all.for_version(Version::new(version).unwrap()).0;
    assert_eq!((known(94), known(95), known(99), known(100)), (0x006, 0x476, 0x476, 0x5f6));
}

#[test]
fn a_packet_is_small_enough_to_be_passed_by_value() {
    assert!(size_of::<Packet>() <= 160, "{} bytes", size_of::<Packet>());
}
