use crate::{table, words};
use urbd_core::decide::protocol::compare;
use wire::{AfterSplitBrain, AlgName, Protocol, ReplicationProtocol};

/// `mine/theirs`, or one word for both.
fn pair(text: Option<String>, default: &str) -> (String, String) {
    let text = text.unwrap_or(default.to_string());
    match text.split_once('/') {
        Some((a, b)) => (a.to_string(), b.to_string()),
        None => (text.clone(), text),
    }
}

fn policy(name: &str) -> AfterSplitBrain {
    AfterSplitBrain::ALL.iter().copied().find(|p| p.name() == name).expect("a policy")
}

fn protocol(letter: &str) -> ReplicationProtocol {
    match letter {
        "A" => ReplicationProtocol::A,
        "B" => ReplicationProtocol::B,
        "C" => ReplicationProtocol::C,
        other => panic!("no protocol: {other}"),
    }
}

#[test]
pub(crate) fn table() {
    table::check("protocol", |command, args| {
        assert_eq!(command, "protocol");
        let wire = pair(args.word("wire"), "C");
        let policies = ["0pri", "1pri", "2pri"].map(|k| pair(args.word(k), "disconnect"));
        let (discard, dry) = (words::sides(args, "discard"), words::sides(args, "dry-run"));
        let two = words::sides(args, "two-primaries");
        let alg = pair(args.word("integrity"), "");
        let side = |first: bool| {
            let of = |p: &(String, String)| if first { p.0.clone() } else { p.1.clone() };
            let one = |p: (bool, bool)| if first { p.0 } else { p.1 };
            Protocol {
                protocol: protocol(&of(&wire)),
                after_sb_0pri: policy(&of(&policies[0])),
                after_sb_1pri: policy(&of(&policies[1])),
                after_sb_2pri: policy(&of(&policies[2])),
                discard_my_data: one(discard),
                dry_run: one(dry),
                two_primaries: one(two),
                integrity_alg: AlgName::new(&of(&alg)).expect("short"),
            }
        };
        match compare(&side(true), &side(false), args.number("proto", 101)) {
            Ok(()) => "ok".to_string(),
            Err(reason) => format!("disconnect {}", reason.name()),
        }
    });
}
