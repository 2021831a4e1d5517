//! To which peers `connect --discard-my-data RES` says it, where several are configured and none is named.
//!
//! Two nodes that discard their data towards each other refuse each other for good. So who has this node's data must
//! not be told it: it is told to those only that refused this node, or were refused by it, for their data.

use control::{ConnectionState, ConnectionStatus, ErrorCode, Failure, ResourceStatus};

/// Whether each peer, in the order of the status, is told that this node discards its data. The others are connected
/// to as they are.
///
/// # Errors
/// Several are not connected, and nothing says which of them it is for.
pub(super) fn whom_to_tell(r: &ResourceStatus) -> Result<Vec<bool>, Failure> {
    let away = |c: &ConnectionStatus| c.connection != ConnectionState::Connected;
    let several = r.connections.iter().filter(|c| away(c)).count() > 1;
    let told: fn(&ConnectionStatus) -> bool = if r.connections.iter().any(parted_for_data) {
        parted_for_data
    } else if several {
        return Err(unclear(r));
    } else if r.connections.iter().any(away) {
        |c| c.connection != ConnectionState::Connected
    } else {
        // It is refused, with the reason.
        |_| true
    };
    Ok(r.connections.iter().map(told).collect())
}

/// Was it given up, and not because somebody asked for that, nor because both discarded their data?
fn parted_for_data(c: &ConnectionStatus) -> bool {
    let causes = c.cause.iter().chain(c.peer_devices.iter().filter_map(|p| p.cause.as_ref()));
    let mut codes = causes.map(|cause| cause.code.as_str()).peekable();
    let found = codes.peek().is_some();
    c.connection == ConnectionState::StandAlone && found && codes.all(|code| code != "both-discard-my-data")
}

fn unclear(r: &ResourceStatus) -> Failure {
    let away = r.connections.iter().filter(|c| c.connection != ConnectionState::Connected);
    let names: Vec<&str> = away.map(|c| c.name.as_str()).collect();
    let text = format!(
        "several peers are not connected ({}): say whose data replaces this node's. Two nodes that both discard their \
         data refuse each other",
        names.join(", ")
    );
    let (name, all) = (&r.name, names.join("|"));
    let hint = format!(
        "towards each node whose data is kept: urbd connect --discard-my-data {name}:{{{all}}}; towards each whose data \
         is discarded as well: urbd connect {name}:{{{all}}}"
    );
    Failure::new(ErrorCode::INVALID_REQUEST, text).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{Cause, ConnectionState::*};

    fn told(peers: &[(ConnectionState, &str)]) -> Result<Vec<bool>, Failure> {
        let mut r = ResourceStatus::new("r0");
        for (nr, (state, code)) in peers.iter().enumerate() {
            let cause = Some(Cause { code: (*code).to_owned(), text: String::new() }).filter(|_| !code.is_empty());
            let name = ["a", "b", "c"][nr];
            r.connections.push(ConnectionStatus { cause, ..ConnectionStatus::new(name, *state) });
        }
        whom_to_tell(&r)
    }

    #[test]
    fn it_is_said_to_those_that_have_other_data() {
        for (peers, expected) in [
            (&[(StandAlone, "bitmap-both"), (Connected, "")][..], &[true, false][..]),
            (&[(StandAlone, "bitmap-both"), (StandAlone, "bitmap-both")], &[true, true]),
            (&[(StandAlone, "bitmap-both"), (StandAlone, "")], &[true, false]),
            (&[(StandAlone, "both-discard-my-data"), (StandAlone, "bitmap-both")], &[false, true]),
            (&[(StandAlone, "bitmap-both"), (Connecting, "link-lost")], &[true, false]),
            (&[(StandAlone, ""), (Connected, "")], &[true, false]),
            (&[(StandAlone, "both-discard-my-data"), (Connected, "")], &[true, false]),
            (&[(Connecting, "link-lost"), (Connected, "")], &[true, false]),
            (&[(Connected, ""), (Connected, "")], &[true, true]),
        ] {
            assert_eq!(told(peers).as_deref(), Ok(expected), "{peers:?}");
        }
        for peers in [
            &[(StandAlone, ""), (StandAlone, "")][..],
            &[(Connecting, ""), (StandAlone, "both-discard-my-data")],
            &[(Connecting, ""), (Connecting, "link-lost")],
        ] {
            let refused = told(peers).unwrap_err();
            assert!(
                refused.hint.is_some_and(|hint| hint.contains("urbd connect --discard-my-data r0:{a|b}")),
                "{peers:?}"
            );
        }
    }
}
