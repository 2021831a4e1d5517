//! Do the connection parameters of two nodes match (`docs/spec/connection-and-state.md` 5.2)?

use super::Reason;
use super::split_brain::{Policies, Policy};

/// What P_PROTOCOL carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// 1 = A, 2 = B, 3 = C.
    pub wire_protocol: u32,
    /// after-sb-*.
    pub policies: Policies,
    /// discard-my-data.
    pub discard_my_data: bool,
    /// Tentative connect.
    pub dry_run: bool,
    /// allow-two-primaries.
    pub two_primaries: bool,
    /// data-integrity-alg, empty for none; compared from protocol 87 on.
    pub integrity_alg: String,
}

/// Compares own and the peer's parameters; `Err` ends the connection (Disconnecting, StandAlone on both sides).
///
/// `integrity_supported`: this node can compute `own.integrity_alg`.
///
/// # Errors
/// The first parameter that does not match.
pub fn compare(own: &Parameters, peer: &Parameters, protocol: u32, integrity_supported: bool) -> Result<(), Reason> {
    let mirrored = |mine: Policy, theirs: Policy| mine == theirs.mirrored();
    let checks = [
        (own.wire_protocol == peer.wire_protocol, Reason::WireProtocolDiffers),
        (mirrored(own.policies.none, peer.policies.none), Reason::AfterSb0Differs),
        (mirrored(own.policies.one, peer.policies.one), Reason::AfterSb1Differs),
        (mirrored(own.policies.two, peer.policies.two), Reason::AfterSb2Differs),
        (!(own.discard_my_data && peer.discard_my_data), Reason::BothDiscardMyData),
        (own.two_primaries == peer.two_primaries, Reason::TwoPrimariesDiffers),
        (protocol < 87 || own.integrity_alg == peer.integrity_alg, Reason::IntegrityAlgDiffers),
        (own.integrity_alg.is_empty() || integrity_supported, Reason::IntegrityAlgUnsupported),
        (protocol >= 92 || !(own.dry_run || peer.dry_run), Reason::DryRunUnsupported),
    ];
    checks.into_iter().find(|(ok, _)| !ok).map_or(Ok(()), |(_, reason)| Err(reason))
}
