//! To which peers `connect --discard-my-data RES` says it, where several are configured and none is named.
//!
//! Two nodes that discard their data towards each other refuse each other for good. So who has this node's data must
//! not be told it: it is told to those only that refused this node, or were refused by it, for their data.

use crate::{ConnectionState, ConnectionStatus, ErrorCode, Failure, ResourceStatus};

/// The node ids of the peers that are told that this node discards its data. The others are connected to as they are.
///
/// # Errors
/// Several are not connected, and nothing says which of them it is for.
pub fn whom_to_tell(r: &ResourceStatus) -> Result<Vec<u8>, Failure> {
    let having = |is: fn(&ConnectionStatus) -> bool| -> Vec<u8> {
        r.connections.iter().filter(|c| is(c)).filter_map(|c| c.peer_node_id).collect()
    };
    let (parted, away) = (having(parted_for_data), having(|c| c.connection != ConnectionState::Connected));
    Ok(match (parted.len(), away.len()) {
        (1.., _) => parted,
        // It is refused, with the reason.
        (_, 0) => having(|_| true),
        (_, 1) => away,
        _ => return Err(unclear(r)),
    })
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
    let (name, listed, choice) = (&r.name, names.join(", "), names.join("|"));
    let text = format!("several peers are not connected ({listed}), and nothing says whose data replaces this node's");
    Failure::new(ErrorCode::INVALID_REQUEST, text).with_hint(format!(
        "towards each node whose data is kept: urbd connect --discard-my-data {name}:{{{choice}}}; towards each whose data \
         is discarded as well: urbd connect {name}:{{{choice}}}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cause, ConnectionState::*};

    fn told(peers: &[(ConnectionState, &str)]) -> Result<Vec<bool>, Failure> {
        let mut r = ResourceStatus::new("r0");
        for (nr, (state, code)) in peers.iter().enumerate() {
            let cause = Some(Cause { code: (*code).to_owned(), text: String::new() }).filter(|_| !code.is_empty());
            let name = ["a", "b", "c"][nr];
            let peer_node_id = u8::try_from(nr).ok();
            r.connections.push(ConnectionStatus { cause, peer_node_id, ..ConnectionStatus::new(name, *state) });
        }
        whom_to_tell(&r).map(|told| (0..peers.len()).map(|nr| told.contains(&(nr as u8))).collect())
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
