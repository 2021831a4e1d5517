use crate::table::{self, Args};
use crate::words::{disk, sector};
use units::Sector;
use urbd_core::decide::sizes::Grown;
use urbd_core::decide::sizes::{
    Known, Limits, PeerSizes, SizesReceived, SizesVerdict, grown_area_source, may_resize, on_sizes, usable,
    when_connected,
};
use urbd_core::decide::{DiskState, Role};

fn limits(args: &Args) -> Limits {
    Limits {
        own: sector(args, "own"),
        peer: sector(args, "peer-limit"),
        known: match (args.flag("9"), args.flag("all")) {
            (false, _) => Known::One,
            (true, false) => Known::NotAll,
            (true, true) => Known::All,
        },
        last_agreed: sector(args, "last"),
        user: sector(args, "user"),
        assume_peer_has_space: args.flag("assume"),
    }
}

fn sizes_row(args: &Args) -> String {
    let verdict = on_sizes(&SizesReceived {
        peer: PeerSizes { device: sector(args, "d"), user: sector(args, "u"), current: sector(args, "c") },
        limits: limits(args),
        current: sector(args, "current"),
        disk: disk(args, "disk", DiskState::UpToDate),
        peer_disk: disk(args, "pdsk", DiskState::UpToDate),
        connected: args.flag("connected"),
        role: crate::words::primary_or_not(args.flag("primary")),
        no_resync: args.flag("no-resync"),
    });
    match verdict {
        SizesVerdict::Refuse(reason) => format!("refuse {}", reason.name()),
        SizesVerdict::Keep(reason) => format!("keep {}", reason.name()),
        SizesVerdict::Adopt(a) => {
            let (marked, resynced) = (a.grown != Grown::Equal, a.grown == Grown::Resynced);
            let flags = [(marked, " set-bits"), (a.send_sizes, " send-sizes"), (resynced, " resync")];
            let flags: String = flags.iter().filter(|f| f.0).map(|f| f.1).collect();
            format!("size={} user={} peer={}{flags}", a.size.0, a.user.0, a.peer.0)
        }
    }
}

#[test]
pub(crate) fn table() {
    table::check("sizes", |command, args| match command {
        "usable" => usable(&limits(args)).0.to_string(),
        "sizes" => sizes_row(args),
        "connected" => {
            let fresh = crate::words::sides(args, "fresh");
            let (own, theirs) = (sector(args, "own"), sector(args, "c"));
            let limits = Limits {
                own: sector(args, "disk"),
                peer: sector(args, "d"),
                known: Known::NotAll,
                last_agreed: own,
                ..Limits::default()
            };
            let agreed = [(own, fresh.0), (theirs, fresh.1)].map(|(size, fresh)| (!fresh).then_some(size));
            when_connected(&limits, agreed, [own, theirs]).0.to_string()
        }
        "grown" => {
            let primary = crate::words::sides(args, "primary");
            if grown_area_source(primary.0, primary.1, args.flag("R")) { "source" } else { "target" }.to_string()
        }
        "resize" => {
            let [diskless, syncing, no_resync] = ["diskless", "syncing", "no-resync"].map(|f| args.flag(f));
            let may = may_resize(diskless, syncing, args.number("proto", 101), no_resync);
            may.map_or_else(|r| format!("refused {}", r.name()), |()| "ok".to_string())
        }
        other => panic!("command {other}"),
    });
}

/// Data that is in use never shrinks during a connect, whatever the peer says.
#[test]
fn a_connect_never_shrinks_usable_data() {
    let values = [0, 8, 16, 24].map(Sector);
    let disks = [DiskState::Outdated, DiskState::Consistent, DiskState::UpToDate];
    for n in 0..4usize.pow(6) {
        let pick = |k: u32| values[n / 4usize.pow(k) % 4];
        for (disk, known) in disks.into_iter().flat_map(|disk| [(disk, Known::One), (disk, Known::NotAll)]) {
            let current = Sector(16);
            let verdict = on_sizes(&SizesReceived {
                peer: PeerSizes { device: pick(0), user: pick(1), current: pick(2) },
                limits: Limits {
                    own: Sector(24),
                    peer: pick(3),
                    known,
                    last_agreed: pick(4),
                    user: pick(5),
                    assume_peer_has_space: false,
                },
                current,
                disk,
                peer_disk: DiskState::DUnknown,
                connected: false,
                role: Role::Primary,
                no_resync: false,
            });
            if let SizesVerdict::Adopt(a) = verdict {
                assert!(a.size >= current, "{n} {a:?}");
            }
        }
    }
}
