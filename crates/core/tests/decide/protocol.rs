use crate::{table, words};
use urbd_core::decide::protocol::{Parameters, compare};
use urbd_core::decide::split_brain::{Policies, Policy};

/// `mine/theirs`, or one word for both.
fn pair(text: Option<String>, default: &str) -> (String, String) {
    let text = text.unwrap_or(default.to_string());
    match text.split_once('/') {
        Some((a, b)) => (a.to_string(), b.to_string()),
        None => (text.clone(), text),
    }
}

fn policy(name: &str) -> Policy {
    words::POLICIES.iter().find(|(n, _)| *n == name).expect("a policy").1
}

#[test]
fn table() {
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
            Parameters {
                wire_protocol: u32::from(of(&wire).as_bytes()[0] - b'A' + 1),
                policies: Policies {
                    none: policy(&of(&policies[0])),
                    one: policy(&of(&policies[1])),
                    two: policy(&of(&policies[2])),
                },
                discard_my_data: one(discard),
                dry_run: one(dry),
                two_primaries: one(two),
                integrity_alg: of(&alg),
            }
        };
        let supported = !args.flag("unsupported");
        match compare(&side(true), &side(false), args.number("proto", 101), supported) {
            Ok(()) => "ok".to_string(),
            Err(reason) => format!("disconnect {}", reason.name()),
        }
    });
}
