//! Names of what people are told that is not the reason of a decision.

use crate::decide::Reason;

macro_rules! topics {
    ($($variant:ident $name:literal)*) => {
        /// What a notice is about. Names are stable; programs may match on them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Topic {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Topic {
            /// Every topic there is.
            pub const ALL: &[Topic] = &[$(Topic::$variant,)*];

            /// The stable name, lower case with hyphens.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Topic::$variant => $name,)* }
            }
        }
    };
}

topics! {
    ActivityLogApplied "activity-log-applied" ActivityLogDamaged "activity-log-damaged"
    ActivityLogHole "activity-log-hole" ActivityLogUnreadable "activity-log-unreadable"
    AnotherCameFirst "another-came-first" AttachFailed "attach-failed" AttachReconnects "attach-reconnects"
    AttachRefused "attach-refused" AttachUnanswered "attach-unanswered" AuthenticationFailed "authentication-failed"
    AuthenticationRefused "authentication-refused" BadBitmap "bad-bitmap" BarrierAckMismatch "barrier-ack-mismatch"
    BitmapWithoutDisk "bitmap-without-disk" ChangeRefused "change-refused" ChangeUnanswered "change-unanswered"
    Congestion "congestion" ConnectRefused "connect-refused" CsumsAlgDiffers "csums-alg-differs"
    DetachWithdrawn "detach-withdrawn" DiscardMyDataOverridden "discard-my-data-overridden"
    DiskLacksPeersWrites "disk-lacks-peers-writes" HandlerFailed "handler-failed" HandlerRefused "handler-refused"
    HandshakeRefused "handshake-refused" HandshakeTimeout "handshake-timeout"
    IncompatibleVersions "incompatible-versions" IntegrityAlgDiffers "integrity-alg-differs" LagsBehind "lags-behind"
    LateBitmap "late-bitmap" LeftByForce "left-by-force" LeftOut "left-out" LinkLost "link-lost"
    MarkedBesidePrimary "marked-beside-primary" MissingNumber "missing-number" NewGeneration "new-generation"
    NoGrowResync "no-grow-resync" NoHmac "no-hmac" NoIntegrity "no-integrity" NoPeerAcks "no-peer-acks"
    NotDurable "not-durable" NotTheOnlyPeer "not-the-only-peer" OldMetadata "old-metadata" OutOfPhase "out-of-phase"
    Parted "parted" PeerDecides "peer-decides" PeerDecidesOtherwise "peer-decides-otherwise"
    PeerDisconnected "peer-disconnected" PeerLacksWrite "peer-lacks-write" PeerStateRefused "peer-state-refused" PeerStateUnwanted "peer-state-unwanted"
    PingTimeout "ping-timeout" PrimaryAgain "primary-again" PrimaryLost "primary-lost"
    PrimaryOutOfReach "primary-out-of-reach" PullAhead "pull-ahead" QuorumLost "quorum-lost" QuorumThere "quorum-there" ReadOutOfPlace "read-out-of-place"
    RebootedWhileFrozen "rebooted-while-frozen" Reconcile "reconcile" ReconcileLostPrimary "reconcile-lost-primary"
    ReconcileUnanswered "reconcile-unanswered" ReflectedChallenge "reflected-challenge"
    RefusalUnexplained "refusal-unexplained" RepairInVain "repair-in-vain" ReplacedMeanwhile "replaced-meanwhile"
    RequestTimeout "request-timeout" ResizeRefused "resize-refused" ResyncDone "resync-done"
    ResyncGivenUp "resync-given-up" ResyncIncomplete "resync-incomplete" ResyncRefused "resync-refused"
    ResyncStart "resync-start" ResyncTimeout "resync-timeout" ResyncUnnoticed "resync-unnoticed"
    ResyncUnstable "resync-unstable" SecondPrimary "second-primary" SizeChanged "size-changed" SourceWentOn "source-went-on"
    SourcesDiffer "sources-differ" SplitBrain "split-brain" StateChange "state-change"
    StreamOfAnotherNode "stream-of-another-node" SurvivorsAgree "survivors-agree" TooManyRequests "too-many-requests"
    TooManyVolumes "too-many-volumes" TwoSources "two-sources" TwopcTimeout "twopc-timeout"
    UnexpectedChallenge "unexpected-challenge" UnknownAnswer "unknown-answer" UnknownPosition "unknown-position"
    VerifyDone "verify-done" VerifyInterrupted "verify-interrupted"
    VerifyRepair "verify-repair" VerifyStart "verify-start" VolumeCame "volume-came"
    WaitsToBePrimary "waits-to-be-primary" WriteBySecondary "write-by-secondary" WriteOutOfPlace "write-out-of-place"
    WriteRepair "write-repair" WrongNodeId "wrong-node-id" WrongStream "wrong-stream"
}

/// The name that a notice bears: of a reason or of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named(&'static str);

impl Named {
    /// The stable name, lower case with hyphens.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl From<Reason> for Named {
    fn from(reason: Reason) -> Named {
        Named(reason.name())
    }
}

impl From<Topic> for Named {
    fn from(topic: Topic) -> Named {
        Named(topic.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Topic;
    use crate::decide::Reason;
    use std::collections::BTreeSet;

    #[test]
    fn no_name_is_that_of_another_one() {
        let names = || Topic::ALL.iter().map(|t| t.name()).chain(Reason::ALL.iter().map(|r| r.name()));
        assert_eq!(names().collect::<BTreeSet<_>>().len(), names().count());
    }
}
