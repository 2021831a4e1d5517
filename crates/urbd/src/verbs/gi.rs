//! `show-gi`, `get-gi`, `set-gi`: data generation identifiers (`docs/spec/config-and-cli.md` 4.5 and
//! `docs/spec/on-disk-format.md` 10).

use control::{GenerationIdentifiers, Reply, Request};
use meta::{Geometry, Layout, MetaDisk, Superblock, Version, gi};
use units::{ByteLen, NodeId, Sector};

use crate::cli::Call;
use crate::objects::Target;
use crate::offline::{self, Place};
use crate::problem::{Problem, exit};
use crate::verbs::{metadata, status};

/// The node whose record v08 functions are asked for; they ignore it.
const ANY_NODE: NodeId = NodeId::new(0).expect("0 is a node id");

pub(crate) fn get(call: &Call, target: &Target) -> Result<u8, Problem> {
    for_each(call, target, |superblock, node| println!("{}", gi::text(superblock, node)))
}

pub(crate) fn show(call: &Call, target: &Target) -> Result<u8, Problem> {
    for_each(call, target, |superblock, node| print!("{}", gi::legend(superblock, node)))
}

/// `set-gi OBJECT --gi GI`: says what was and what will be, asks; no is exit 0, as documented.
pub(crate) fn set(call: &Call, target: &Target) -> Result<u8, Problem> {
    let text = call.value("gi").ok_or_else(|| Problem::usage("set-gi needs --gi"))?;
    metadata::for_each_free_disk(call, target, |place| {
        let superblock = place.find(false)?.found.superblock;
        for peer in peers(call, target, &superblock)? {
            set_one(place, peer, text, call.flag("force"))?;
        }
        Ok(0)
    })
}

/// Overwrites the identifiers of one device against one peer.
///
/// # Errors
/// Exit 10: `text` is malformed; exit 20: the device is in use; exit 255: no metadata.
pub(crate) fn set_one(place: &Place, peer: NodeId, text: &str, force: bool) -> Result<(), Problem> {
    let opened = place.find(true)?;
    let old = &opened.found.superblock;
    let new = gi::set(old, peer, text)
        .map_err(|why| Problem::new(exit::FAILURE, format!("{}: '{text}': {why}", place.label)))?;
    println!("previously {}\nset GI to  {}", gi::text(old, peer), gi::text(&new, peer));
    if offline::confirm("Write new GI to disk?", force) {
        opened.write(place, &new)?;
    }
    Ok(())
}

/// For each peer device: of the running device, else from the metadata.
fn for_each(call: &Call, target: &Target, mut act: impl FnMut(&Superblock, NodeId)) -> Result<u8, Problem> {
    let resource = &target.name.resource;
    if call.context.is_running(resource) {
        let running = status::one(call.context, resource)?;
        let volumes = running.devices.iter().filter(|d| target.name.volume.is_none_or(|v| v == d.volume));
        for device in volumes {
            let request = Request::Generations { volume: device.volume, peer: target.peer() };
            match call.context.client(resource)?.ask(&request) {
                Ok(Reply::Generations(gi)) => {
                    let size = device.statistics.map_or(0, |s| s.size_sectors);
                    act(&as_superblock(&gi, Sector(size)), ANY_NODE);
                }
                Ok(other) => return Err(Problem::new(exit::BROKEN, format!("{target}: unexpected answer: {other:?}"))),
                // No disk: the documented status of this case is 1.
                Err(e) => return Err(Problem { exit: exit::USAGE, ..Problem::client(&target.to_string(), &e) }),
            }
        }
        return Ok(0);
    }
    metadata::for_each_disk(target, |place| {
        let superblock = place.find(false)?.found.superblock;
        for peer in peers(call, target, &superblock)? {
            act(&superblock, peer);
        }
        Ok(0)
    })
}

/// What a running device says, in the form in which both formats are printed.
fn as_superblock(running: &GenerationIdentifiers, size: Sector) -> Superblock {
    let layout = Layout::new(MetaDisk::Internal, Geometry::V08, ByteLen(1 << 20)).expect("1 MiB holds metadata");
    let mut superblock = Superblock::fresh(Version::V08, &layout);
    superblock.effective_size = size;
    gi::set(&superblock, ANY_NODE, &identifiers(running)).expect("numbers and flags, as it wants them")
}

/// As `get-gi` prints them for v08.
fn identifiers(running: &GenerationIdentifiers) -> String {
    let uuids = [running.current, running.bitmap, running.history[0], running.history[1]];
    let flags = [
        running.consistent,
        running.was_up_to_date,
        running.primary,
        running.connected,
        running.full_sync,
        running.peer_outdated,
        running.crashed_primary,
    ];
    format!("{}:{}", uuids.map(|u| format!("{u:016X}")).join(":"), flags.map(|f| u8::from(f).to_string()).join(":"))
}

/// Which peer records are meant.
fn peers(call: &Call, target: &Target, superblock: &Superblock) -> Result<Vec<NodeId>, Problem> {
    if superblock.version() == Version::V08 {
        return Ok(vec![ANY_NODE]);
    }
    match call.number("node-id")? {
        Some(id) => Ok(vec![node_id(id)?]),
        None => Ok(target.peers().map(|p| p.peer_node_id).collect()),
    }
}

/// A node id from a command line.
///
/// # Errors
/// Exit 1: it is above 31.
pub(crate) fn node_id(id: u64) -> Result<NodeId, Problem> {
    let id = u8::try_from(id).ok().and_then(NodeId::new);
    id.ok_or_else(|| Problem::usage("a node id is 0 to 31"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_device_prints_as_its_metadata_would() {
        let running = GenerationIdentifiers {
            current: 0xA1,
            bitmap: 0,
            history: [0xB1, 0xB2],
            consistent: true,
            was_up_to_date: true,
            primary: false,
            crashed_primary: false,
            connected: true,
            full_sync: false,
            peer_outdated: false,
        };
        let text = gi::text(&as_superblock(&running, Sector(2048)), ANY_NODE);
        assert_eq!(text, "00000000000000A1:0000000000000000:00000000000000B1:00000000000000B2:1:1:0:1:0:0:0");
    }
}
