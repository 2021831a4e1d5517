//! A disk in memory: metadata as bytes, data as one stamp per sector.

use units::{ByteLen, Generation, NodeId, Sector};
use urbd_core::{DiskOp, MetaOp, OpId, OpenedDisk};

/// Something that a disk has been asked to do.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Data(DiskOp),
    Meta(MetaOp),
}

/// A job on its way.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) op: OpId,
    pub(super) disk: usize,
    pub(super) job: Job,
}

/// What the metadata says when the run begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    pub(super) version: meta::Version,
    pub(super) up_to_date: bool,
    pub(super) current: Generation,
    pub(super) bitmap: Generation,
    pub(super) peer: NodeId,
}

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) opened: OpenedDisk,
    pub(super) layout: meta::Layout,
    pub(super) open: bool,
    /// From the first byte of the bitmap on.
    image: Vec<u8>,
}

impl Disk {
    pub(super) fn new(size: ByteLen, before: &Before) -> Disk {
        let geometry = meta::Geometry::new(1, 4096, meta::AlShape::DEFAULT).expect("the default geometry");
        let layout = meta::Layout::new(meta::MetaDisk::Internal, geometry, size).expect("big enough");
        let mut sb = meta::Superblock::fresh(before.version, &layout);
        let owner = match before.version {
            meta::Version::V08 => meta::Superblock::V08_PEER,
            meta::Version::V09 => {
                sb.node_id = NodeId::new(0);
                before.peer.index()
            }
        };
        sb.peers[owner].slot = Some(0);
        sb.peers[owner].bitmap_uuid = before.bitmap;
        sb.current = before.current;
        if before.up_to_date {
            sb.flags.put(meta::DeviceFlags::CONSISTENT, true);
            sb.flags.put(meta::DeviceFlags::WAS_UP_TO_DATE, true);
            sb.effective_size = layout.capacity();
        }
        let from = layout.bitmap_at().0;
        let mut image = vec![0; (size.0 - from) as usize];
        let at = (layout.superblock_at().0 - from) as usize;
        image[at..at + meta::BLOCK_LEN].copy_from_slice(&sb.emit()[..]);
        let opened = OpenedDisk {
            backing: size,
            meta_device: size,
            can_discard: true,
            discard_zeroes: false,
            write_through: false,
            block_size: 512,
        };
        Disk { opened, layout, open: false, image }
    }

    /// Is the job inside the part of the device that it is for? Panics if not.
    pub(super) fn check(&self, job: &Job) {
        let data = |sector: Sector, len: u64| {
            let end = sector.0.checked_add(len / 512);
            let inside = end.is_some_and(|end| end <= self.layout.capacity().0);
            assert!(inside && len.is_multiple_of(512) && len > 0, "{job:?} is not inside the data area");
        };
        match job {
            Job::Data(DiskOp::Read { sector, data: d } | DiskOp::Write { sector, data: d, .. }) => {
                data(*sector, d.len());
            }
            Job::Data(
                DiskOp::ReadNew { sector, len, .. }
                | DiskOp::Discard { sector, len, .. }
                | DiskOp::WriteZeroes { sector, len, .. },
            ) => data(*sector, len.0),
            Job::Data(DiskOp::Flush) => {}
            Job::Meta(MetaOp::Write { offset, bytes, .. }) => self.check_meta(*offset, bytes.len() as u64),
            Job::Meta(MetaOp::Read { offset, len }) => self.check_meta(*offset, *len),
        }
    }

    fn check_meta(&self, offset: u64, len: u64) {
        let from = self.layout.bitmap_at().0;
        let end = offset.checked_add(len);
        let inside = offset >= from && end.is_some_and(|end| end <= self.opened.meta_device.0);
        assert!(
            inside && offset.is_multiple_of(512) && len.is_multiple_of(512),
            "metadata at {offset}+{len} is outside its area"
        );
    }

    pub(super) fn meta(&mut self, job: &MetaOp) -> Box<[u8]> {
        let from = self.layout.bitmap_at().0;
        match job {
            MetaOp::Write { offset, bytes, .. } => {
                let at = (offset - from) as usize;
                self.image[at..at + bytes.len()].copy_from_slice(bytes);
                Box::default()
            }
            MetaOp::Read { offset, len } => {
                let at = (offset - from) as usize;
                self.image[at..at + *len as usize].into()
            }
        }
    }
}
