//! Roles, routing of requests, suspension.

use crate::pairwise::view;
use crate::table::{self, Args};
use crate::words::{conn, disk, role};
use urbd_core::decide::roles::{self, Promoted, Promotion, Rise, Step};
use urbd_core::decide::routing::{self, Admission};
use urbd_core::decide::{ConnState, DiskState, Role, StateChangeResult, StateWord, suspend};

fn word(args: &Args, prefix: &str) -> StateWord {
    let key = |k: &str| format!("{prefix}{k}");
    StateWord {
        role: if args.flag(&key("secondary")) { Role::Secondary } else { Role::Primary },
        peer: role(args, &key("peer-role")),
        conn: conn(args, &key("conn"), ConnState::Connected),
        disk: disk(args, &key("disk"), DiskState::UpToDate),
        pdsk: disk(args, &key("pdsk"), DiskState::UpToDate),
        susp: args.flag(&key("susp")),
        aftr_isp: false,
        peer_isp: false,
        user_isp: false,
        susp_nod: args.flag(&key("no-data")),
        susp_fen: args.flag(&key("fencing")),
        quorum: false,
    }
}

#[test]
pub(crate) fn routing() {
    table::check("routing", |command, args| match command {
        "admit" => match routing::admit(&view(&word(args, "")), args.number("proto", 101)) {
            Admission::Go => "go".to_string(),
            Admission::Wait(reason) => format!("wait {}", reason.name()),
            Admission::Fail(reason) => format!("fail {}", reason.name()),
        },
        "write" => {
            let s = word(args, "");
            let local = if s.disk >= DiskState::Inconsistent { "local " } else { "" };
            let seen = view(&s);
            format!("{local}peer={:?}", routing::write(seen.replication, seen.peer_disk, args.number("proto", 101)))
        }
        "read" => format!("{:?}", routing::read(&view(&word(args, "")), !args.flag("dirty"))),
        "resume" => format!("{:?}", suspend::resume_io(&view(&word(args, "")), args.flag("pending"))),
        other => panic!("command {other}"),
    });
}

/// No admitted write is lost from sight: it goes to an UpToDate disk, and what a connected peer with data does not get
/// is recorded or announced.
#[test]
pub(crate) fn every_admitted_write_reaches_good_data() {
    for &conn in ConnState::ALL {
        for &disk in DiskState::ALL {
            for &pdsk in DiskState::ALL {
                for protocol in [86, 95, 96, 101] {
                    let pdsk = if conn < ConnState::Connected { pdsk.min(DiskState::DUnknown) } else { pdsk };
                    let s = StateWord::undisturbed(Role::Primary, Role::Secondary, conn, disk, pdsk);
                    let seen = view(&s);
                    if routing::admit(&seen, protocol) != Admission::Go {
                        continue;
                    }
                    let told = routing::write(seen.replication, seen.peer_disk, protocol);
                    let good_local = s.disk == DiskState::UpToDate;
                    let good_peer = told == routing::ToPeer::Data && s.pdsk == DiskState::UpToDate;
                    assert!(good_local || good_peer, "{s:?} {told:?}");
                    let syncing = (ConnState::SyncSource..=ConnState::PausedSyncT).contains(&conn);
                    if syncing && s.pdsk >= DiskState::Inconsistent {
                        assert_eq!(told, routing::ToPeer::Data, "a resync would miss it: {s:?}");
                    }
                }
            }
        }
    }
}

fn change_text(c: &Rise) -> String {
    let disk = c.disk.map_or(String::new(), |d| format!(" disk={d}"));
    let pdsk = c.peer_disk.map_or(String::new(), |d| format!(" pdsk={d}"));
    format!("Primary{disk}{pdsk}")
}

fn step_text(step: Step, forced: bool) -> String {
    match step {
        Step::Request(c) => format!("request({})", change_text(&c)),
        Step::WaitThenRequest(c) => format!("wait,request({})", change_text(&c)),
        Step::FencePeer => "call=fence-peer".to_string(),
        Step::Done => if forced { "done(forced)" } else { "done" }.to_string(),
        Step::Failed(code) => format!("failed({})", code.code()),
    }
}

/// Plays a promotion: `results=-7,fenced,3` are the outcomes of each step in turn.
fn promote(args: &Args) -> String {
    let own = disk(args, "disk", DiskState::UpToDate);
    let mut promotion = Promotion::new(args.flag("force"));
    let mut said = vec![step_text(Step::Request(promotion.request(own)), false)];
    let mut last = StateChangeResult::Success;
    for outcome in args.word("results").expect("results").split(',') {
        let step = match outcome {
            "fenced" | "not-fenced" => promotion.fenced(outcome == "fenced", last, own),
            code => {
                last = StateChangeResult::from_code(code.parse().expect("a code"));
                promotion.next(last, own)
            }
        };
        said.push(step_text(step, promotion.forces(own)));
    }
    said.join(" ")
}

fn promoted_text(p: Promoted) -> String {
    let all = [(p.new_generation, "new-generation"), (p.send_uuids, "send-uuids")];
    let said = all.iter().filter(|f| f.0).map(|f| f.1).collect::<Vec<_>>();
    if said.is_empty() { "nothing".to_owned() } else { said.join(" ") }
}

#[test]
pub(crate) fn role_changes() {
    table::check("roles", |command, args| match command {
        "promote" => promote(args),
        "promoted" => {
            let s = word(args, "");
            promoted_text(roles::promoted(args.flag("forced"), s.conn >= ConnState::Connected, s.disk, s.pdsk))
        }
        other => panic!("command {other}"),
    });
}
