//! Attach, I/O errors, fencing.

use crate::rules::FENCING;
use crate::table::{self, Args};
use crate::words::{disk, primary_or_not, sides};
use meta::{DeviceFlags, PeerFlags};
use units::Generation;
use urbd_core::Fencing;
use urbd_core::OnIoError;
use urbd_core::decide::attach84::{self, Attach};
use urbd_core::decide::fencing::{self, Call, Situation};
use urbd_core::decide::io_error::{self, Failure};
use urbd_core::decide::{DiskState, Reason};

fn attach_text(result: Result<Attach, Reason>) -> String {
    match result {
        Err(reason) => format!("refused {}", reason.name()),
        Ok(a) => {
            let flags = if a.crashed_primary { " crashed-primary" } else { "" };
            let peer = a.peer_disk.map_or(String::new(), |d| format!(" peer={d}"));
            format!("{} {} al={:?} bitmap={:?}{peer}{flags}", a.disk, a.reason.name(), a.activity_log, a.bitmap)
        }
    }
}

#[test]
pub(crate) fn attach() {
    table::check("attach84", |command, args| {
        assert_eq!(command, "attach");
        let raw = args.word("flags").expect("flags");
        let raw = u32::from_str_radix(raw.trim_start_matches("0x"), 16).expect("hexadecimal flags");
        let on = |bit: u32| raw & bit != 0;
        let primary = sides(args, "primary");
        attach_text(attach84::decide(&attach84::Input {
            flags: DeviceFlags(raw & !0x2c),
            peers: PeerFlags::default()
                .with(PeerFlags::CONNECTED, on(4))
                .with(PeerFlags::FULL_SYNC, on(8))
                .with(PeerFlags::OUTDATED, on(32)),
            al_clean: on(128),
            current: Generation(args.number("current", 16)),
            outrun: args.flag("outrun"),
            exposed: Generation(args.number("exposed", 0)),
            role: primary_or_not(primary.0),
            peer_primary: primary.1,
            connected: args.flag("connected"),
            peer_disk: disk(args, "peer", DiskState::DUnknown),
            fencing: args.pick("fencing", &FENCING, Fencing::DontCare),
        }))
    });
}

const FAILURES: [(&str, Failure); 5] = [
    ("read", Failure::Read),
    ("write", Failure::Write),
    ("flush", Failure::Flush),
    ("metadata", Failure::Metadata),
    ("forced", Failure::Forced),
];

const ON_IO_ERROR: [(&str, OnIoError); 3] =
    [("pass-on", OnIoError::PassOn), ("detach", OnIoError::Detach), ("call-local-io-error", OnIoError::CallHandler)];

#[test]
pub(crate) fn io_errors() {
    table::check("io_error", |command, args| {
        assert_eq!(command, "error");
        let failure = args.pick("of", &FAILURES, Failure::Read);
        let policy = args.pick("on-io-error", &ON_IO_ERROR, OnIoError::Detach);
        let own = disk(args, "disk", DiskState::UpToDate);
        let (disk, reason) = io_error::decide(failure, policy, own, !args.flag("alone"));
        format!("{} {}", disk.map_or("keep", DiskState::name), reason.name())
    });
}

fn situation(args: &Args) -> Situation {
    Situation {
        policy: args.pick("policy", &FENCING, Fencing::ResourceOnly),
        connected: args.flag("connected"),
        best_disk: disk(args, "disk", DiskState::UpToDate),
        handler: !args.flag("no-handler"),
    }
}

#[test]
pub(crate) fn fencing() {
    table::check("fencing", |command, args| match command {
        "before" => match fencing::before_call(&situation(args)) {
            Call::Handler => "call=fence-peer".to_string(),
            Call::Fenced(reason) => format!("fenced {}", reason.name()),
            Call::NotFenced { lift, reason } => {
                format!("not-fenced {}{}", reason.name(), if lift { " lift" } else { "" })
            }
        },
        "after" => {
            let peer = disk(args, "peer", DiskState::DUnknown);
            let a = fencing::after_call(args.number("exit", 0), &situation(args), peer, args.flag("overtaken"));
            let peer = a.peer_at_most.map_or(String::new(), |d| format!(" peer<={d}"));
            let own = a.own_at_most.map_or(String::new(), |d| format!(" own<={d}"));
            format!("{} {}{peer}{own}", if a.fenced { "fenced" } else { "not-fenced" }, a.reason.name())
        }
        "loss" => {
            let policy = args.pick("policy", &FENCING, Fencing::ResourceOnly);
            fencing::due_after_loss(policy, args.flag("primary"), disk(args, "peer", DiskState::DUnknown)).to_string()
        }
        "unfence" => {
            let policy = args.pick("policy", &FENCING, Fencing::ResourceOnly);
            fencing::unfence(policy, args.flag("all-up-to-date")).to_string()
        }
        other => panic!("command {other}"),
    });
    let volumes = [(Fencing::ResourceAndStonith, DiskState::Outdated), (Fencing::ResourceOnly, DiskState::Consistent)];
    assert_eq!(fencing::effective(volumes), Fencing::ResourceOnly);
    assert_eq!(fencing::effective([]), Fencing::DontCare);
}
