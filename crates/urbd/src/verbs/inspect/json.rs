//! What was found, for programs. `docs/guide/inspect.md` describes it.

use meta::{PeerRecord, Superblock};
use serde_json::{Value, json};
use units::{Generation, NodeId};
use urbd_core::decide::foretell::{Attached, Dialect, Extent, Outcome};

use super::find::{Inspected, Source};
use super::together::{Choice, Pair, Together, kib};
use super::words;

/// The whole document, ending with a newline.
pub(super) fn text(all: &[Inspected], together: &Together) -> String {
    let disks: Vec<Value> = all.iter().zip(&together.attached).map(|(one, attached)| disk(one, attached)).collect();
    let document = json!({
        "disks": disks,
        "pairs": together.pairs.iter().map(|p| pair(all, p)).collect::<Vec<_>>(),
        "state": together.state,
        "summary": together.summary,
        "choices": together.choices.iter().map(choice).collect::<Vec<_>>(),
    });
    format!("{document:#}\n")
}

fn disk(one: &Inspected, attached: &Attached) -> Value {
    let sb = &one.superblock;
    let (at, len) = match one.source {
        Source::Disk { at, len, .. } => (Some(at), Some(len)),
        Source::Dump => (None, None),
    };
    let place = match one.source {
        Source::Disk { kind, .. } => kind.to_string(),
        Source::Dump => "dump".to_owned(),
    };
    json!({
        "name": one.name,
        "path": one.path.to_string_lossy(),
        "place": place,
        "superblock-at": at,
        "length": len,
        "format": sb.version().to_string(),
        "node-id": sb.node_id.map(NodeId::index),
        "size-kib": sb.effective_size.0.div_ceil(2),
        "slots": sb.geometry.slots(),
        "bytes-per-bit": sb.geometry.bytes_per_bit(),
        "device-uuid": format!("{:016X}", sb.device_uuid),
        "activity-log": {
            "clean": one.log.is_clean,
            "hot-extents": one.log.hot,
            "damaged-blocks": one.log.damaged,
            "unusable": one.log.unusable,
        },
        "flags": words::device_flags(sb.flags),
        "disk-state": attached.disk().to_string(),
        "disk-state-reason": attached.reason().name(),
        "crashed-primary": attached.is_of_crashed_primary(),
        "current": hex(sb.current),
        "peers": words::peers(sb).into_iter().map(|(node, p)| peer(sb, one, attached, node, p)).collect::<Vec<_>>(),
        "history": words::history(sb).into_iter().map(hex).collect::<Vec<_>>(),
        "notes": one.notes,
    })
}

fn hex(generation: Generation) -> String {
    generation.to_string()
}

fn peer(sb: &Superblock, one: &Inspected, attached: &Attached, node: Option<NodeId>, record: &PeerRecord) -> Value {
    let marked = |of: &[u64]| record.slot.and_then(|slot| of.get(usize::from(slot))).map(|bits| kib(sb, *bits));
    json!({
        "node-id": node.map(NodeId::index),
        "slot": record.slot,
        "bitmap": hex(record.bitmap_uuid),
        "marked-kib": marked(&one.marked),
        "marked-kib-attached": marked(&attached.marked),
        "flags": words::peer_flags(record.flags),
    })
}

fn pair(all: &[Inspected], pair: &Pair) -> Value {
    let mut value = json!({
        "nodes": [all[pair.first].name, all[pair.second].name],
        "marked-kib": pair.marked,
        "verdict": words::verdict(all, pair),
    });
    let Ok(meeting) = &pair.meeting else {
        value["outcome"] = json!("unknown");
        return value;
    };
    let (outcome, source, extent) = match meeting.outcome {
        Outcome::Equal => ("equal", None, None),
        Outcome::FromFirst(extent) => ("resync", Some(pair.first), Some(extent)),
        Outcome::FromSecond(extent) => ("resync", Some(pair.second), Some(extent)),
        Outcome::ByChance => ("by-chance", None, Some(Extent::Marked)),
        Outcome::SplitBrain => ("split-brain", None, None),
        Outcome::Unrelated => ("unrelated", None, None),
        Outcome::Refused => ("refused", None, None),
    };
    value["outcome"] = json!(outcome);
    value["source"] = json!(source.map(|n| &all[n].name));
    value["everything"] = json!(extent == Some(Extent::Everything));
    value["unsettled-marks"] = json!(pair.has_unsettled_marks());
    value["dialect"] = json!(if meeting.dialect == Dialect::V84 { "8.4" } else { "9" });
    value["rule"] = json!(meeting.rule.name());
    value["rule-text"] = json!(meeting.rule.text());
    value["strategy"] = json!(meeting.verdict);
    value["reason"] = json!(meeting.reason.name());
    value
}

fn choice(choice: &Choice) -> Value {
    let commands: Vec<Value> =
        choice.commands.iter().map(|(on, command)| json!({ "on": on, "command": command })).collect();
    json!({ "title": choice.title, "commands": commands, "loses": choice.loses })
}
