//! What comes before a resync: the peer's bitmap, and the generation that it makes of the target.

use crate::decide::sizes::Grown;
use units::{Generation, Sector};

/// Of a resync that has not begun. The fields belong to this file; `bitmap_exchange.rs` says when.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    peers_bitmap: PeersBitmap,
    /// As target: P_SYNC_UUID came before the state that it belongs to.
    early_sync_uuid: Option<Generation>,
    /// As source: to be sent when our superblock names it.
    sync_uuid_due: Option<Generation>,
    /// 8.4: `resize` has given the device this size here, and this becomes of what is new when the peer has it, too.
    growth: Option<(Sector, Grown)>,
}

/// How much of the peer's bitmap is here.
#[derive(Debug, Default)]
pub(crate) enum PeersBitmap {
    /// Nothing that is not dealt with.
    #[default]
    Awaited,
    Arriving(wire::BitmapReceiver),
    /// All of it came before this node knew of the resync that it belongs to: its bits are in the own one.
    Early,
}

impl Exchange {
    /// The disk or the link is gone: what was said of a resync that had not begun is not about the next one, nor is the
    /// generation of one that did not reach the disk to be announced after the next attach.
    pub(crate) fn forget(&mut self) {
        *self = Exchange::default();
    }

    /// As far as the peer's bitmap is here. It is awaited anew unless it is put back.
    pub(crate) fn take_bitmap(&mut self) -> PeersBitmap {
        std::mem::take(&mut self.peers_bitmap)
    }

    pub(crate) fn put_bitmap(&mut self, bitmap: PeersBitmap) {
        self.peers_bitmap = bitmap;
    }

    /// Did all of it come before its resync was known? From now on it did not.
    pub(crate) fn take_early_bitmap(&mut self) -> bool {
        let early = matches!(self.peers_bitmap, PeersBitmap::Early);
        if early {
            self.peers_bitmap = PeersBitmap::Awaited;
        }
        early
    }

    /// By `resize` the device has this size.
    pub(crate) fn grew(&mut self, to: Sector, grown: Grown) {
        self.growth = Some((to, grown));
    }

    /// What becomes of what is new, while the peer's answer to that is awaited.
    pub(crate) fn growth(&self) -> Option<Grown> {
        self.growth.map(|(_, grown)| grown)
    }

    /// The peer has this size. Is what is new to be resynced now?
    pub(crate) fn peer_grew(&mut self, to: Sector) -> bool {
        matches!(self.growth.take_if(|(size, _)| *size == to), Some((_, Grown::Resynced)))
    }

    pub(crate) fn sync_uuid_is_early(&mut self, sync: Generation) {
        self.early_sync_uuid = Some(sync);
    }

    pub(crate) fn take_early_sync_uuid(&mut self) -> Option<Generation> {
        self.early_sync_uuid.take()
    }

    /// The peer is to be told of this generation as soon as the superblock that names it is on disk.
    pub(crate) fn owe_sync_uuid(&mut self, sync: Generation) {
        self.sync_uuid_due = Some(sync);
    }

    pub(crate) fn take_owed_sync_uuid(&mut self) -> Option<Generation> {
        self.sync_uuid_due.take()
    }
}
