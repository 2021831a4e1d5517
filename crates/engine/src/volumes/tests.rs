use super::*;
use crate::buffers::ClassPlan;
use units::Sector;

const V: VolumeNr = VolumeNr(0);

struct Lab {
    volumes: Volumes,
    ring: Ring<Token>,
    pool: &'static Pool,
    outcomes: Vec<Outcome>,
    _files: Vec<tempfile::NamedTempFile>,
}

/// Buffers in use by an idle volume: the one of zeroes, and the reserve for metadata.
const IDLE: usize = 1 + RESERVE;

impl Lab {
    /// A volume of 4 MiB on a file in `place`, with metadata on another file if `external`.
    fn new(place: &std::path::Path, external: bool) -> Lab {
        let file = || {
            let file = tempfile::NamedTempFile::new_in(place).unwrap();
            file.as_file().set_len(4 << 20).unwrap();
            file
        };
        let pool = Pool::leak(&[ClassPlan { size: 4096, count: 10 }, ClassPlan { size: 1 << 20, count: 4 }]);
        let (data, meta) = (file(), file());
        let paths = Paths { data: data.path().to_owned(), meta: external.then(|| meta.path().to_owned()) };
        let volumes = Volumes::new(pool, BTreeMap::from([(V, paths)]));
        let mut lab =
            Lab { volumes, ring: Ring::new(16).unwrap(), pool, outcomes: Vec::new(), _files: vec![data, meta] };
        match lab.volumes.open(V) {
            Some(Outcome::Opened(V, Ok(opened))) => assert_eq!(opened.backing, ByteLen(4 << 20)),
            other => panic!("{other:?}"),
        }
        lab
    }

    fn on_all_places(test: impl Fn(Lab)) {
        for place in [std::env::temp_dir(), PathBuf::from("/dev/shm")].into_iter().filter(|p| p.is_dir()) {
            test(Lab::new(&place, false));
            test(Lab::new(&place, true));
        }
    }

    fn turn(&mut self) {
        let mut done = Vec::new();
        self.volumes.feed_starved(&mut self.ring, &mut self.outcomes);
        self.ring.turn(None, &mut done).unwrap();
        for d in done {
            let Token::Disk(slot) = d.token else { panic!("{:?}", d.token) };
            self.volumes.on_done(&mut self.ring, slot, d, &mut self.outcomes);
        }
    }

    fn outcome(&mut self) -> Outcome {
        while self.outcomes.is_empty() {
            self.turn();
        }
        self.outcomes.remove(0)
    }

    fn disk(&mut self, action: DiskOp) -> (Result<(), DiskError>, Segments) {
        let at_once = self.volumes.disk(&mut self.ring, OpId(1), V, action);
        match at_once.unwrap_or_else(|| self.outcome()) {
            Outcome::Disk(DiskDone { op: OpId(1), result, data, .. }) => (result, data),
            other => panic!("{other:?}"),
        }
    }

    fn meta(&mut self, action: MetaOp) -> Result<Box<[u8]>, DiskError> {
        let at_once = self.volumes.meta(&mut self.ring, OpId(2), V, action);
        match at_once.unwrap_or_else(|| self.outcome()) {
            Outcome::Meta(MetaDone { op: OpId(2), result }) => result,
            other => panic!("{other:?}"),
        }
    }

    fn named(&self, byte: u8, len: u32) -> BufRef {
        let mut buf = self.pool.take(len as usize).unwrap();
        buf.bytes_mut().fill(byte);
        BufRef { id: buf.into_id().0, offset: 0, len }
    }

    fn bytes(&self, data: &Segments) -> Vec<u8> {
        let mut all = Vec::new();
        self.volumes.each_piece(data, |bytes| all.extend_from_slice(bytes));
        all
    }

    fn release(&self, data: &Segments) {
        data.as_slice().iter().for_each(|p| drop(self.pool.reclaim(BufId(p.id))));
    }

    /// What the disk holds there.
    fn read(&mut self, sector: u64, len: u64) -> Vec<u8> {
        let (result, data) =
            self.disk(DiskOp::ReadNew { sector: Sector(sector), len: ByteLen(len), detect_zeroes: false });
        result.unwrap();
        let bytes = self.bytes(&data);
        self.release(&data);
        bytes
    }
}

#[test]
fn merged_writes_read_back_and_buffers_return() {
    Lab::on_all_places(|mut lab| {
        let parts = Segments::many(vec![lab.named(1, 4096), lab.named(2, 512), lab.named(3, 1024)]);
        lab.disk(DiskOp::Write { sector: Sector(16), data: parts.clone(), fua: true }).0.unwrap();
        let want: Vec<u8> = [[1u8; 4096].as_slice(), &[2; 512], &[3; 1024]].concat();
        assert_eq!(lab.read(16, 5632), want);
        // Into the buffers of a request, one or several.
        let one = Segments::One(lab.named(0, 4096));
        let several = Segments::many(vec![lab.named(0, 512), lab.named(0, 512)]);
        lab.disk(DiskOp::Read { sector: Sector(16), data: one.clone() }).0.unwrap();
        lab.disk(DiskOp::Read { sector: Sector(24), data: several.clone() }).0.unwrap();
        assert_eq!((lab.bytes(&one), lab.bytes(&several)), (vec![1; 4096], [[2; 512], [3; 512]].concat()));
        [parts, one, several].iter().for_each(|data| lab.release(data));
        assert_eq!(lab.pool.in_use(), IDLE);
    });
}

#[test]
fn zeroes_are_made_whatever_the_filesystem_can() {
    Lab::on_all_places(|mut lab| {
        for (unmap, durable) in [(true, false), (false, true), (false, false)] {
            let data = Segments::One(lab.named(7, 1 << 20));
            lab.disk(DiskOp::Write { sector: Sector(0), data: data.clone(), fua: false }).0.unwrap();
            lab.release(&data);
            let len = ByteLen(300 << 10);
            lab.disk(DiskOp::WriteZeroes { sector: Sector(8), len, unmap, fua: durable }).0.unwrap();
            let bytes = lab.read(0, 1 << 20);
            let end = 4096 + (300 << 10);
            assert!(bytes[4096..end].iter().all(|b| *b == 0));
            assert!(bytes[..4096].iter().chain(&bytes[end..]).all(|b| *b == 7));
        }
        lab.disk(DiskOp::Discard { sector: Sector(0), len: ByteLen(8192), zeroes: true }).0.unwrap();
        assert_eq!(lab.read(0, 8192), vec![0; 8192]);
        lab.disk(DiskOp::Flush).0.unwrap();
    });
}

#[test]
fn metadata_of_any_length_goes_there_and_back() {
    Lab::on_all_places(|mut lab| {
        for (len, flush_before) in [(4096, true), ((2 << 20) + 4096, false), (512, true)] {
            let bytes: Box<[u8]> = (0..len).map(|i| (i % 251) as u8).collect();
            let write = MetaOp::Write { offset: 8192, bytes: bytes.clone(), flush_before, fua: true };
            assert_eq!(lab.meta(write).unwrap().len(), 0);
            assert!(lab.meta(MetaOp::Read { offset: 8192, len: len as u64 }).unwrap() == bytes);
        }
        assert_eq!(lab.meta(MetaOp::Read { offset: 8 << 20, len: 4096 }), Err(DiskError::Io), "past the end");
    });
}

/// Requests that hold all buffers may wait for the activity log.
#[test]
fn metadata_needs_no_buffer_that_requests_could_hold() {
    Lab::on_all_places(|mut lab| {
        let taken: Vec<_> = std::iter::from_fn(|| lab.pool.take(1 << 20).or_else(|| lab.pool.take(1))).collect();
        let read = DiskOp::ReadNew { sector: Sector(0), len: ByteLen(512), detect_zeroes: false };
        assert!(lab.volumes.disk(&mut lab.ring, OpId(1), V, read).is_none());
        for _ in 0..3 {
            let bytes: Box<[u8]> = (0..3 * 4096).map(|i| (i % 251) as u8).collect();
            for op in 2..2 + 2 * RESERVE as u64 {
                let write = MetaOp::Write { offset: 8192, bytes: bytes.clone(), flush_before: true, fua: true };
                assert!(lab.volumes.meta(&mut lab.ring, OpId(op), V, write).is_none());
            }
            for _ in 0..2 * RESERVE {
                assert!(matches!(lab.outcome(), Outcome::Meta(MetaDone { result: Ok(_), .. })));
            }
            assert!(lab.meta(MetaOp::Read { offset: 8192, len: 3 * 4096 }).unwrap() == bytes);
        }
        drop(taken);
        assert!(matches!(lab.outcome(), Outcome::Disk(DiskDone { op: OpId(1), result: Ok(()), .. })));
    });
}

#[test]
fn operations_wait_for_buffers_in_order() {
    Lab::on_all_places(|mut lab| {
        let taken: Vec<_> = std::iter::from_fn(|| lab.pool.take(1 << 20)).collect();
        let small: Vec<_> = std::iter::from_fn(|| lab.pool.take(1)).collect();
        for op in 0..3 {
            let read = DiskOp::ReadNew { sector: Sector(0), len: ByteLen(512), detect_zeroes: false };
            assert!(lab.volumes.disk(&mut lab.ring, OpId(op), V, read).is_none());
        }
        assert_eq!(lab.ring.in_flight(), 0);
        drop((taken, small));
        let ended: Vec<OpId> = (0..3)
            .map(|_| match lab.outcome() {
                Outcome::Disk(done) => {
                    lab.release(&done.data);
                    done.op
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ended, [OpId(0), OpId(1), OpId(2)]);
    });
}

#[test]
fn a_closed_disk_opens_again_only_when_its_operations_have_ended() {
    Lab::on_all_places(|mut lab| {
        let read = DiskOp::ReadNew { sector: Sector(0), len: ByteLen(4096), detect_zeroes: false };
        assert!(lab.volumes.disk(&mut lab.ring, OpId(1), V, read.clone()).is_none());
        lab.volumes.close(V);
        let refused = lab.volumes.disk(&mut lab.ring, OpId(3), V, read);
        assert!(matches!(refused, Some(Outcome::Disk(DiskDone { result: Err(DiskError::Io), .. }))));
        assert!(lab.volumes.open(V).is_none(), "an operation is in flight");
        assert!(matches!(lab.outcome(), Outcome::Opened(V, Ok(_))), "its completion is swallowed");
        assert_eq!(lab.pool.in_use(), IDLE);
    });
}

#[test]
fn a_missing_disk_is_named() {
    let mut lab = Lab::new(&std::env::temp_dir(), false);
    lab.volumes.close(V);
    lab.volumes.reconfigure(BTreeMap::from([(V, Paths { data: "/nonexistent/disk".into(), meta: None })]));
    match lab.volumes.open(V) {
        Some(Outcome::Opened(V, Err((104, text)))) => assert!(text.contains("/nonexistent/disk"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_disk_that_was_given_up_touches_no_buffer_of_the_core() {
    Lab::on_all_places(|mut lab| {
        let [one, several] =
            [Segments::One(lab.named(1, 4096)), Segments::many(vec![lab.named(2, 512), lab.named(3, 512)])];
        for data in [&one, &several] {
            let read = DiskOp::Read { sector: Sector(0), data: data.clone() };
            assert!(lab.volumes.disk(&mut lab.ring, OpId(7), V, read).is_none());
        }
        // It hangs: the core gives it up, uses the buffers for something else, and lets go of some of them.
        lab.volumes.close(V);
        let other = vec![9; 4096];
        lab.volumes.copy(&Segments::One(lab.named(9, 4096)), &one);
        lab.release(&several);
        let reused = Segments::many(vec![lab.named(5, 512), lab.named(6, 512)]);
        while lab.volumes.jobs.iter().any(Option::is_some) {
            lab.turn();
        }
        assert!(lab.outcomes.is_empty());
        assert_eq!((lab.bytes(&one), lab.bytes(&reused)), (other, [[5; 512], [6; 512]].concat()));
        [one, reused].iter().for_each(|data| lab.release(data));
    });
}

#[test]
fn memory_comes_back_from_what_was_given_up() {
    let mut lab = Lab::new(&std::env::temp_dir(), false);
    for _ in 0..20 {
        let one = Segments::One(lab.named(1, 4096));
        lab.volumes.disk(&mut lab.ring, OpId(7), V, DiskOp::Read { sector: Sector(0), data: one.clone() });
        lab.volumes.close(V);
        lab.release(&one);
        while lab.volumes.jobs.iter().any(Option::is_some) {
            lab.turn();
        }
        assert!(matches!(lab.volumes.open(V), Some(Outcome::Opened(V, Ok(_)))));
    }
    assert_eq!((lab.pool.in_use(), lab.pool.spares()), (IDLE, 1));
}
