//! Do the connection parameters of two nodes match (`docs/spec/connection-and-state.md` 5.2)?

use super::Reason;
use wire::{AfterSplitBrain, Protocol};

/// Compares own and the peer's parameters; `Err` ends the connection (Disconnecting, StandAlone on both sides).
///
/// Who has an algorithm for data integrity that urbd cannot compute is not connected in the first place.
///
/// # Errors
/// The first parameter that does not match.
pub fn compare(own: &Protocol, peer: &Protocol, version: u32) -> Result<(), Reason> {
    let mirrored = |mine: AfterSplitBrain, theirs: AfterSplitBrain| mine == theirs.from_peers_view();
    let checks = [
        (own.protocol == peer.protocol, Reason::WireProtocolDiffers),
        (mirrored(own.after_sb_0pri, peer.after_sb_0pri), Reason::AfterSb0Differs),
        (mirrored(own.after_sb_1pri, peer.after_sb_1pri), Reason::AfterSb1Differs),
        (mirrored(own.after_sb_2pri, peer.after_sb_2pri), Reason::AfterSb2Differs),
        (!(own.discard_my_data && peer.discard_my_data), Reason::BothDiscardMyData),
        (own.two_primaries == peer.two_primaries, Reason::TwoPrimariesDiffers),
        (version < 87 || own.integrity_alg == peer.integrity_alg, Reason::IntegrityAlgDiffers),
        (version >= 92 || !(own.dry_run || peer.dry_run), Reason::DryRunUnsupported),
    ];
    checks.into_iter().find(|(ok, _)| !ok).map_or(Ok(()), |(_, reason)| Err(reason))
}
