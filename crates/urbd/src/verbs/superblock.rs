//! `dump-superblock` and `repair-md` (`docs/spec/on-disk-format.md` 2.7 and 10).

use std::io::{self, IsTerminal, Write};

use meta::superblock::PeerRecord;
use meta::{Superblock, Version};
use serde_json::json;

use crate::cli::Call;
use crate::last_known;
use crate::objects::Target;
use crate::offline::Place;
use crate::problem::{Problem, exit};
use crate::verbs::{metadata, status};

/// Exit status: the metadata is where the end of the device was when that was smaller.
const AT_OLD_END: u8 = 2;
/// Exit status: there is none that is valid.
const INVALID: u8 = 3;

pub(crate) fn dump_each(call: &Call, target: &Target) -> Result<u8, Problem> {
    metadata::for_each_disk(target, |place| dump(place, call.value("output-format").unwrap_or("hex")))
}

pub(crate) fn repair_each(call: &Call, target: &Target) -> Result<u8, Problem> {
    let tentative = call.flag("tentative");
    metadata::for_each_free_disk(call, target, |place| repair(place, tentative))
}

/// Prints the superblock; `auto` is text on a terminal, else the bytes. It may be in use.
///
/// # Errors
/// Exit 3: there is none; exit 20: the device cannot be opened, or no such form.
pub(crate) fn dump(place: &Place, form: &str) -> Result<u8, Problem> {
    let store = place.open(false)?;
    let (superblock, status) = match place.find(false) {
        Ok(opened) => (opened.found.superblock, 0),
        Err(problem) => match last_known::elsewhere(place, &store)? {
            Some(found) => (found.superblock, AT_OLD_END),
            None => return Err(Problem { exit: INVALID, ..problem }),
        },
    };
    let bytes = superblock.emit();
    let terminal = io::stdout().is_terminal();
    match form {
        "json" => status::print(&format!("{}\n", as_json(&superblock, place))),
        "hex" => status::print(&hex(&bytes[..])),
        "auto" if terminal => status::print(&hex(&bytes[..])),
        "bin" | "binary" | "auto" => {
            let mut out = io::stdout().lock();
            let _ = out.write_all(&bytes[..]).and_then(|()| out.flush());
        }
        other => {
            let text = format!("--output-format={other}: must be bin, hex, json or auto");
            return Err(Problem::new(exit::BROKEN, text));
        }
    }
    Ok(status)
}

fn as_json(md: &Superblock, place: &Place) -> serde_json::Value {
    let number = |n: u64| format!("0x{n:016X}");
    let peer = |p: &PeerRecord| json!({ "bitmap_uuid": number(p.bitmap_uuid.0), "bitmap_index": p.slot.map_or(-1, i64::from) });
    json!({
        "format": md.version().to_string(),
        "device": place.path.display().to_string(),
        "effective_size": md.effective_size.0,
        "current_uuid": number(md.current.0),
        "device_uuid": number(md.device_uuid),
        "history": md.history.iter().map(|h| number(h.0)).collect::<Vec<_>>(),
        "peers": md.peers.iter().map(peer).collect::<Vec<_>>(),
    })
}

fn hex(bytes: &[u8]) -> String {
    let line = |(n, row): (usize, &[u8])| {
        let words: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:08x}  {}\n", n * 16, words.join(" "))
    };
    bytes.chunks(16).enumerate().map(line).collect()
}

/// Makes all unused entries for peers equal, as a peer that is added begins with one of them. `tentative`: only says
/// what would be changed.
///
/// # Errors
/// Exit 255: no metadata; exit 20: the device cannot be opened.
pub(crate) fn repair(place: &Place, tentative: bool) -> Result<u8, Problem> {
    let opened = place.find(!tentative)?;
    let mut superblock = opened.found.superblock.clone();
    if superblock.version() == Version::V08 {
        return Ok(0);
    }
    let own = superblock.node_id.map(|id| id.index());
    let is_unused = |n: &usize| Some(*n) != own && superblock.peers[*n].slot.is_none();
    let unused: Vec<usize> = (0..superblock.peers.len()).filter(is_unused).collect();
    let Some(reference) = unused.last().map(|last| superblock.peers[*last].bitmap_uuid) else { return Ok(0) };
    let differ: Vec<usize> = unused.into_iter().filter(|n| superblock.peers[*n].bitmap_uuid != reference).collect();
    for n in &differ {
        let words = if tentative { "would get" } else { "gets" };
        println!("{}: the unused entry {n} {words} the bitmap UUID {:016X}", place.label, reference.0);
        superblock.peers[*n].bitmap_uuid = reference;
    }
    if !tentative && !differ.is_empty() {
        opened.write(place, &superblock)?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_has_sixteen_bytes_a_line() {
        let text = hex(&[0xAB; 20]);
        assert_eq!(text.lines().count(), 2);
        assert!(text.starts_with("00000000  ab ab") && text.contains("\n00000010  ab ab ab ab\n"), "{text}");
    }
}
