use crate::pairwise::{self, Context, PLAIN, effects, good_volume, is_cluster_wide, judge, sanitise, valid};
use crate::table::{self, Args};
use crate::words;
use meta::PeerFlags;
use urbd_core::decide::change::{Change, Set};
use urbd_core::decide::effects::Effect;
use urbd_core::decide::rules::{DisconnectStep, metadata_flags, next_disconnect_step};
use urbd_core::decide::state::{Replication, State};
use urbd_core::decide::view::Kind;
use urbd_core::decide::{ConnState, DiskState, Role, StateChange, StateChangeResult, StateWord};
use urbd_core::{Fencing, OnNoData, dialect84};

pub(crate) const FENCING: [(&str, Fencing); 3] = [
    ("dont-care", Fencing::DontCare),
    ("resource-only", Fencing::ResourceOnly),
    ("resource-and-stonith", Fencing::ResourceAndStonith),
];

fn by_name<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str, text: &str) -> T {
    *all.iter().find(|v| name(**v) == text).unwrap_or_else(|| panic!("{text} is no state"))
}

fn role(t: &str) -> Role {
    by_name(Role::ALL, Role::name, t)
}

fn conn(t: &str) -> ConnState {
    by_name(ConnState::ALL, ConnState::name, t)
}

fn disk(t: &str) -> DiskState {
    by_name(DiskState::ALL, DiskState::name, t)
}

/// `Primary/Secondary,Connected,UpToDate/UpToDate[,flag…]`
fn state(text: &str) -> StateWord {
    let words: Vec<&str> = text.split(',').collect();
    let (me, peer) = words[0].split_once('/').expect("role/peer");
    let (own, pdsk) = words[2].split_once('/').expect("disk/pdsk");
    let flag = |name: &str| words[3..].contains(&name);
    StateWord {
        role: role(me),
        peer: role(peer),
        conn: conn(words[1]),
        disk: disk(own),
        pdsk: disk(pdsk),
        susp: flag("susp"),
        aftr_isp: flag("aftr"),
        peer_isp: flag("peer"),
        user_isp: flag("user"),
        susp_nod: flag("no-data"),
        susp_fen: flag("fencing"),
        quorum: false,
    }
}

fn show(s: &StateWord) -> String {
    let flags = [
        (s.susp, ",susp"),
        (s.aftr_isp, ",aftr"),
        (s.peer_isp, ",peer"),
        (s.user_isp, ",user"),
        (s.susp_nod, ",no-data"),
        (s.susp_fen, ",fencing"),
    ];
    let flags: String = flags.iter().filter(|f| f.0).map(|f| f.1).collect();
    format!("{}/{},{},{}/{}{flags}", s.role, s.peer, s.conn, s.disk, s.pdsk)
}

/// `role:Primary,conn:Connected,disk:…,pdsk:…,user:on`
fn change(text: &str) -> StateChange {
    let mut out = StateChange::default();
    for part in text.split(',') {
        let (field, value) = part.split_once(':').expect("field:value");
        let on = value == "on";
        match field {
            "role" => out.role = Some(role(value)),
            "peer" => out.peer = Some(role(value)),
            "conn" => out.conn = Some(conn(value)),
            "disk" => out.disk = Some(disk(value)),
            "pdsk" => out.pdsk = Some(disk(value)),
            "susp" => out.susp = Some(on),
            "aftr" => out.aftr_isp = Some(on),
            "peer-pause" => out.peer_isp = Some(on),
            "user" => out.user_isp = Some(on),
            other => panic!("field {other}"),
        }
    }
    out
}

fn context(args: &Args) -> Context {
    let at_attach = args.word("at-attach");
    Context {
        two_primaries: args.flag("two-primaries"),
        fencing: args.pick("fencing", &FENCING, Fencing::DontCare),
        on_no_data: if args.flag("suspend-no-data") { OnNoData::SuspendIo } else { OnNoData::IoError },
        open: args.flag("open"),
        verify_alg: !args.flag("no-verify-alg"),
        protocol: args.number("proto", 101),
        state_sent: args.flag("state-sent"),
        holds_back: args.flag("word-awaited"),
        peer_undecided: args.flag("peer-undecided"),
        exposed_is_current: !args.flag("exposed-differs"),
        at_attach: at_attach.map_or((DiskState::Diskless, DiskState::DUnknown), |t| {
            let (own, peer) = t.split_once('/').expect("disk/pdsk");
            (disk(own), disk(peer))
        }),
        bitmap_in_use: args.flag("bitmap-in-use"),
        call_local_io_error: args.flag("call-local-io-error"),
        other_volume: other_volume(args),
        second_peer: args.word("second").map(|t| second(&t)),
    }
}

/// `Role,Connection,Disk`: a second peer.
fn second(text: &str) -> StateWord {
    let words: Vec<&str> = text.split(',').collect();
    StateWord::undisturbed(Role::Primary, role(words[0]), conn(words[1]), DiskState::UpToDate, disk(words[2]))
}

/// The second peer's part in a state.
fn show_second(state: &State) -> String {
    let second = state.peers.get(pairwise::second_peer()).map(|peer| {
        let pair = peer.volumes[pairwise::VOLUME];
        let conn = dialect84::conn_state(peer.connection, pair.replication);
        let unfenced = if peer.unfenced { ",unfenced" } else { "" };
        format!(" second={},{conn},{}{unfenced}", pair.role, pair.disk)
    });
    second.unwrap_or_default()
}

/// What a row says of another volume of the resource.
fn other_volume(args: &Args) -> Option<(DiskState, urbd_core::decide::state::PairState)> {
    let (mut disk, mut pair) = good_volume();
    let peer_primary = args.flag("other-volume-peer-primary");
    let missing = args.flag("other-volume-missing");
    let bad = args.flag("other-disk-bad");
    let lacks_data = args.flag("others-lack-data");
    let unknown = args.flag("other-peer-disk-unknown");
    if peer_primary {
        pair.role = Role::Primary;
    }
    if missing {
        pair.replication = Replication::Off;
    }
    if bad || lacks_data {
        disk = DiskState::Inconsistent;
    }
    if lacks_data {
        pair.disk = DiskState::Inconsistent;
    }
    if unknown {
        (pair.replication, pair.disk) = (Replication::Off, DiskState::DUnknown);
    }
    (peer_primary || missing || bad || lacks_data || unknown).then_some((disk, pair))
}

fn code_text(code: StateChangeResult) -> String {
    format!("{} {code:?}", code.code())
}

fn effect_text(e: Effect) -> String {
    match e {
        Effect::Call(h) => format!("call={}", h.name()),
        other => format!("{other:?}"),
    }
}

fn code(text: &str) -> StateChangeResult {
    StateChangeResult::from_code(text.parse().expect("a code"))
}

#[test]
pub(crate) fn table() {
    table::check("rules", |command, args| {
        let word = |key: &str| args.word(key).unwrap_or_else(|| panic!("{key} is missing"));
        match command {
            "change" => {
                let old = state(&word("from"));
                let force = match args.word("force").as_deref() {
                    None => Kind::Wish,
                    Some("hard") => Kind::Fact,
                    Some("ignore-outdate") => Kind::WishIgnoringOutdate,
                    Some(other) => panic!("force {other}"),
                };
                match pairwise::judge_state(&old, &change(&word("set")), force, &context(args)) {
                    Ok(state) => {
                        let new = pairwise::word(&state);
                        let wide = if is_cluster_wide(&old, &new) { " (cluster-wide)" } else { "" };
                        format!("{}{}{wide}", show(&new), show_second(&state))
                    }
                    Err(code) => code_text(code),
                }
            }
            "valid" => valid(&state(&word("state")), &context(args)).map_or_else(code_text, |()| "ok".to_string()),
            "effects" => {
                let found = effects(&state(&word("from")), &state(&word("to")), &context(args));
                found.into_iter().map(effect_text).collect::<Vec<_>>().join(" ")
            }
            "flags" => {
                let (own, peers) = metadata_flags(&pairwise::view(&state(&word("state"))), args.flag("crashed"));
                let of_peer = [(PeerFlags::CONNECTED, 4), (PeerFlags::OUTDATED, 32)];
                let bits = of_peer.iter().filter(|(flag, _)| peers.contains(*flag)).map(|(_, bit)| bit).sum::<u32>();
                format!("{:#05x}", own.0 | bits)
            }
            "disconnect" => {
                let steps = [
                    ("plain", DisconnectStep::Plain),
                    ("outdate-peer", DisconnectStep::OutdatePeer),
                    ("outdate-self", DisconnectStep::OutdateSelf),
                    ("forced", DisconnectStep::Forced),
                ];
                let step = args.pick("step", &steps, DisconnectStep::Plain);
                let conn = words::conn(args, "conn", ConnState::Connected);
                let (connection, _) = dialect84::connection_and_replication(conn);
                format!("{:?}", next_disconnect_step(step, code(&word("result")), connection))
            }
            other => panic!("command {other}"),
        }
    });
}

fn all_states(mut visit: impl FnMut(StateWord)) {
    let known = [Role::Primary, Role::Secondary];
    for &peer in Role::ALL {
        for role in known {
            for &conn in ConnState::ALL {
                for &disk in DiskState::ALL {
                    for &pdsk in DiskState::ALL {
                        for flags in 0..4 {
                            visit(StateWord {
                                aftr_isp: flags & 1 != 0,
                                peer_isp: flags & 2 != 0,
                                ..StateWord::undisturbed(role, peer, conn, disk, pdsk)
                            });
                        }
                    }
                }
            }
        }
    }
}

/// To sanitise twice is to sanitise once: the rules do not fight each other.
#[test]
pub(crate) fn sanitising_is_stable() {
    for fencing in FENCING.map(|f| f.1) {
        let ctx = Context { fencing, on_no_data: OnNoData::SuspendIo, ..PLAIN };
        all_states(|s| {
            let once = sanitise(&s, &s, &ctx);
            let twice = sanitise(&once, &once, &ctx);
            assert_eq!(once, twice, "from {}", show(&s));
        });
    }
}

/// A wish never leads from a legal state to an illegal one, and never leaves a Primary without data.
#[test]
pub(crate) fn wishes_keep_the_state_legal() {
    let changes: Vec<StateChange> = [
        "role:Primary",
        "role:Secondary",
        "peer:Primary",
        "disk:Outdated",
        "disk:Failed",
        "disk:UpToDate",
        "pdsk:Outdated",
        "conn:Disconnecting",
        "conn:Disconnecting,pdsk:Outdated",
        "conn:Disconnecting,disk:Outdated",
        "conn:StartingSyncS",
        "conn:StartingSyncT",
        "conn:VerifyS",
        "conn:SyncTarget",
        "conn:WFConnection",
        "user:on",
    ]
    .map(change)
    .to_vec();
    for fencing in FENCING.map(|f| f.1) {
        let ctx = Context { fencing, ..PLAIN };
        all_states(|s| {
            let old = sanitise(&s, &s, &ctx);
            if valid(&old, &ctx).is_err() {
                return;
            }
            for wish in &changes {
                if let Ok(new) = judge(&old, wish, Kind::Wish, &ctx) {
                    assert_eq!(valid(&new, &ctx), Ok(()), "{} -> {}", show(&old), show(&new));
                    let data = new.disk == DiskState::UpToDate || new.pdsk == DiskState::UpToDate;
                    assert!(new.role != Role::Primary || data, "{} -> {}", show(&old), show(&new));
                }
            }
        });
    }
}

/// S4 of the specification's appendix B: a Primary that goes on alone starts a generation or cannot write. (An
/// Inconsistent peer disk needs none: it is recognised by its state.)
#[test]
pub(crate) fn a_primary_that_loses_a_peers_data_starts_a_generation() {
    let lost = [ConnState::Timeout, ConnState::BrokenPipe, ConnState::NetworkFailure, ConnState::TearDown];
    for fencing in FENCING.map(|f| f.1) {
        let ctx = Context { fencing, on_no_data: OnNoData::SuspendIo, ..PLAIN };
        all_states(|s| {
            let old = sanitise(&s, &s, &ctx);
            let had = matches!(old.pdsk, DiskState::Consistent | DiskState::UpToDate);
            let alone_possible = old.role == Role::Primary && old.disk == DiskState::UpToDate;
            if old.conn < ConnState::Connected || !had || !alone_possible {
                return;
            }
            for conn in lost {
                let wish = StateChange { conn: Some(conn), ..StateChange::default() };
                let new = judge(&old, &wish, Kind::Fact, &ctx).expect("a fact");
                let found = effects(&old, &new, &ctx);
                let frozen = new.susp_fen || new.susp_nod;
                let wanted = if frozen { Effect::MarkGenerationPending } else { Effect::NewGeneration };
                assert!(found.contains(&wanted), "{} -> {}: {found:?}", show(&old), show(&new));
            }
        });
    }
}

/// A resync or verify begins only where none is on its way, whichever node asks for it.
#[test]
fn no_resync_or_verify_begins_beside_another() {
    let context = Context { verify_alg: true, ..PLAIN };
    let beginnings = [ConnState::VerifyS, ConnState::VerifyT, ConnState::StartingSyncS, ConnState::StartingSyncT];
    for &conn in ConnState::ALL.iter().filter(|c| **c > ConnState::Connected) {
        let (disk, pdsk) = match conn {
            ConnState::StartingSyncT
            | ConnState::WFBitMapT
            | ConnState::WFSyncUUID
            | ConnState::SyncTarget
            | ConnState::PausedSyncT
            | ConnState::Behind => (DiskState::Inconsistent, DiskState::UpToDate),
            ConnState::VerifyS | ConnState::VerifyT => (DiskState::UpToDate, DiskState::UpToDate),
            _ => (DiskState::UpToDate, DiskState::Inconsistent),
        };
        let old = StateWord::undisturbed(Role::Secondary, Role::Secondary, conn, disk, pdsk);
        for wished in beginnings.into_iter().filter(|w| *w != conn) {
            let change = StateChange { conn: Some(wished), ..StateChange::default() };
            let judged = judge(&old, &change, Kind::Wish, &context);
            assert_eq!(judged, Err(StateChangeResult::ResyncRunning), "{conn} to {wished}");
        }
    }
}

/// A volume that has been added, and that nobody uses yet, keeps the others from nothing, until it has data.
#[test]
fn the_others_do_not_wait_for_an_unused_volume() {
    let old = StateWord::undisturbed(
        Role::Secondary,
        Role::Secondary,
        ConnState::Connected,
        DiskState::Inconsistent,
        DiskState::Inconsistent,
    );
    let context = Context { other_volume: Some(good_volume()), on_no_data: OnNoData::SuspendIo, ..PLAIN };
    let change = |unused: bool| {
        let role = Change::from(Set::Role(Role::Primary));
        if unused { role.and(Set::Unused(pairwise::VOLUME)) } else { role }
    };
    assert_eq!(pairwise::successor(&old, &change(false), &context), Err(StateChangeResult::NoUpToDateDisk));
    let primary = pairwise::successor(&old, &change(true), &context).expect("the others have data");
    assert!(primary.is_primary() && primary.volumes[pairwise::VOLUME].unused && !primary.is_frozen());
    // With data it is a volume like others.
    for set in [Set::Disk(pairwise::VOLUME, DiskState::UpToDate), Set::Role(Role::Secondary)] {
        let state = pairwise::follows(&primary, &set.into(), &context).expect("in order");
        assert!(!state.volumes[pairwise::VOLUME].unused, "{set:?}");
    }
}
