//! A disk in memory that remembers what it was asked.

use std::sync::Mutex;

use urbd_frontends::nbd::Extent;
use urbd_frontends::{Errno, Kind, Request};

const BLOCK: usize = 4096;

pub struct Disk {
    state: Mutex<State>,
}

struct State {
    bytes: Vec<u8>,
    seen: Vec<Request>,
}

impl Disk {
    pub fn new(size: usize) -> Disk {
        Disk { state: Mutex::new(State { bytes: vec![0; size], seen: Vec::new() }) }
    }

    /// Executes an admitted request; a read fills `payload`, a write takes it.
    pub fn execute(&self, request: &Request, payload: &mut Vec<u8>) -> Result<(), Errno> {
        let mut state = self.state.lock().unwrap();
        state.seen.push(*request);
        let start = request.offset as usize;
        let Some(range) = state.bytes.get_mut(start..start + request.len as usize) else { return Err(Errno::EIO) };
        match request.kind {
            Kind::Read => {
                payload.clear();
                payload.extend_from_slice(range);
            }
            Kind::Write => range.copy_from_slice(payload),
            Kind::Flush => (),
            Kind::Discard | Kind::WriteZeroes { .. } => range.fill(0),
        }
        Ok(())
    }

    /// Blocks of zeroes are holes.
    pub fn extents(&self, offset: u64, len: u32) -> Vec<Extent> {
        let state = self.state.lock().unwrap();
        let range = &state.bytes[offset as usize..offset as usize + len as usize];
        let mut extents: Vec<Extent> = Vec::new();
        for block in range.chunks(BLOCK) {
            let hole = block.iter().all(|byte| *byte == 0);
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.len += block.len() as u32,
                _ => extents.push(Extent { len: block.len() as u32, hole, zero: hole }),
            }
        }
        extents
    }

    /// The requests so far, which are then forgotten.
    pub fn seen(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().seen)
    }

    pub fn contents(&self) -> Vec<u8> {
        self.state.lock().unwrap().bytes.clone()
    }
}
