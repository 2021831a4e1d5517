//! Reads the recordings in `vectors/`: pcapng files of Ethernet frames, cut into the byte streams of the TCP
//! connections they hold.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One TCP connection, in both directions.
pub(crate) struct Connection {
    /// Who sent the SYN.
    pub(crate) opener: Flow,
    /// The other one.
    pub(crate) acceptor: Flow,
    /// It was there before the recording began. Who sent the SYN is not known then.
    pub(crate) joined: bool,
}

/// What one end sent.
pub(crate) struct Flow {
    pub(crate) from: Ipv4Addr,
    #[allow(dead_code, reason = "not each test program asks who")]
    pub(crate) to: Ipv4Addr,
    pub(crate) bytes: Vec<u8>,
    /// How many of them were there, and since when, in the recording's clock (nanoseconds).
    #[allow(dead_code, reason = "not each test program asks when")]
    pub(crate) times: Vec<(usize, u64)>,
}

/// All recordings in a folder of `vectors/`, in order of their names.
pub(crate) fn recordings_in(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors").join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.to_string_lossy().contains(".pcapng"));
    files.sort();
    files
}

/// The connections of a recording, in the order in which they were opened. What was open before is left out.
#[allow(dead_code, reason = "each test program uses one of both")]
pub(crate) fn connections(path: &Path) -> Vec<Connection> {
    let mut all = connections_joined(path);
    all.retain(|c| !c.joined);
    all
}

/// The connections of a recording, those that were open before it too: what they carry must begin with a packet.
pub(crate) fn connections_joined(path: &Path) -> Vec<Connection> {
    let mut all: Vec<Ends> = Vec::new();
    let mut live = BTreeMap::new();
    for (at, frame) in frames(&contents(path)) {
        let Some(segment) = Segment::parse(frame) else { continue };
        if segment.syn && !segment.ack {
            let fresh = !live.get(&segment.key()).is_some_and(|&n: &usize| all[n].is_retransmitted_syn(&segment));
            if fresh {
                live.insert(segment.key(), all.len());
                live.insert(segment.reverse_key(), all.len());
                all.push(Ends::new(&segment));
                continue;
            }
        }
        if !live.contains_key(&segment.key()) && !segment.payload.is_empty() {
            live.insert(segment.key(), all.len());
            live.insert(segment.reverse_key(), all.len());
            all.push(Ends::join(&segment));
        }
        let Some(&n) = live.get(&segment.key()) else { continue };
        all[n].take(&segment, at);
    }
    all.into_iter().map(Ends::finish).collect()
}

fn contents(path: &Path) -> Vec<u8> {
    if path.extension().is_some_and(|e| e == "xz") {
        let out = Command::new("xz").arg("-dc").arg(path).output().expect("xz is installed");
        assert!(out.status.success(), "xz cannot read {}", path.display());
        return out.stdout;
    }
    std::fs::read(path).unwrap()
}

/// The frames of the enhanced packet blocks (type 6) of a little-endian pcapng file, each with its time.
fn frames(file: &[u8]) -> Vec<(u64, &[u8])> {
    let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut out) = (0, Vec::new());
    while at < file.len() {
        let (kind, length) = (number(at), number(at + 4));
        if kind == 6 {
            let time = (number(at + 12) as u64) << 32 | number(at + 16) as u64;
            out.push((time, &file[at + 28..at + 28 + number(at + 20)]));
        }
        at += length;
    }
    out
}

type Key = (Ipv4Addr, u16, Ipv4Addr, u16);

struct Segment<'a> {
    from: (Ipv4Addr, u16),
    to: (Ipv4Addr, u16),
    seq: u32,
    syn: bool,
    ack: bool,
    payload: &'a [u8],
}

impl<'a> Segment<'a> {
    fn parse(frame: &'a [u8]) -> Option<Segment<'a>> {
        if frame.get(12..14)? != [8, 0] || frame[23] != 6 {
            return None;
        }
        let short = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let address = |at: usize| Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
        let tcp = 14 + usize::from(frame[14] & 15) * 4;
        let end = match short(16) {
            0 => frame.len(), // segmentation offload of a packet too large for the field
            total => 14 + usize::from(total),
        };
        Some(Segment {
            from: (address(26), short(tcp)),
            to: (address(30), short(tcp + 2)),
            seq: u32::from(short(tcp + 4)) << 16 | u32::from(short(tcp + 6)),
            syn: frame[tcp + 13] & 2 != 0,
            ack: frame[tcp + 13] & 16 != 0,
            payload: &frame[tcp + usize::from(frame[tcp + 12] >> 4) * 4..end],
        })
    }

    fn key(&self) -> Key {
        (self.from.0, self.from.1, self.to.0, self.to.1)
    }

    fn reverse_key(&self) -> Key {
        (self.to.0, self.to.1, self.from.0, self.from.1)
    }
}

struct Ends {
    opener: Key,
    first_seq: u32,
    sides: [Side; 2],
    joined: bool,
}

#[derive(Default)]
struct Side {
    next: Option<u32>,
    waiting: BTreeMap<u32, Vec<u8>>,
    bytes: Vec<u8>,
    times: Vec<(usize, u64)>,
}

impl Ends {
    fn new(syn: &Segment<'_>) -> Ends {
        let opening = Side { next: Some(syn.seq.wrapping_add(1)), ..Side::default() };
        Ends { opener: syn.key(), first_seq: syn.seq, sides: [opening, Side::default()], joined: false }
    }

    fn join(first: &Segment<'_>) -> Ends {
        Ends { opener: first.key(), first_seq: first.seq, sides: [Side::default(), Side::default()], joined: true }
    }

    fn is_retransmitted_syn(&self, segment: &Segment<'_>) -> bool {
        self.opener == segment.key() && self.first_seq == segment.seq
    }

    fn take(&mut self, segment: &Segment<'_>, at: u64) {
        let side = &mut self.sides[usize::from(segment.key() != self.opener)];
        if self.joined && side.next.is_none() && !segment.payload.is_empty() {
            side.next = Some(segment.seq);
        }
        if segment.syn {
            side.next = Some(segment.seq.wrapping_add(1));
        } else if side.next.is_some() && !segment.payload.is_empty() {
            side.take(segment);
            side.times.push((side.bytes.len(), at));
        }
    }

    fn finish(self) -> Connection {
        let (a, _, b, _) = self.opener;
        let [opener, acceptor] = self.sides;
        Connection {
            opener: Flow { from: a, to: b, bytes: opener.bytes, times: opener.times },
            acceptor: Flow { from: b, to: a, bytes: acceptor.bytes, times: acceptor.times },
            joined: self.joined,
        }
    }
}

impl Side {
    fn take(&mut self, segment: &Segment<'_>) {
        let held = self.waiting.entry(segment.seq).or_default();
        if segment.payload.len() > held.len() {
            *held = segment.payload.to_vec();
        }
        let mut next = self.next.unwrap();
        while let Some((&seq, _)) = self.waiting.iter().find(|&(&s, _)| next.wrapping_sub(s) < 1 << 31) {
            let payload = self.waiting.remove(&seq).unwrap();
            let known = next.wrapping_sub(seq) as usize;
            if let Some(new) = payload.get(known..) {
                self.bytes.extend_from_slice(new);
                next = next.wrapping_add(new.len() as u32);
            }
        }
        self.next = Some(next);
    }
}
