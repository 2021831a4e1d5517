//! Why a decision came out as it did: names for machines, sentences for people.

macro_rules! reasons {
    ($($variant:ident $name:literal $text:literal;)*) => {
        /// The reason of a decision. Names are stable; programs may match on them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $(#[doc = $text] $variant,)*
        }

        impl Reason {
            /// Every reason there is.
            pub const ALL: &[Reason] = &[$(Reason::$variant,)*];

            /// The stable name, lower case with hyphens.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Reason::$variant => $name,)* }
            }

            /// One sentence for people.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Reason::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    // Comparison of generations (5.7); the names are those of DRBD's logs where it has one.
    JustCreatedBoth "just-created-both" "neither node ever had data";
    JustCreatedSelf "just-created-self" "this node's metadata is fresh, the peer has data";
    JustCreatedPeer "just-created-peer" "the peer's metadata is fresh, this node has data";
    SourceMissedFinish "sync-source-missed-finish" "a resync to the peer ended, but this node did not notice";
    SourcePeerMissedFinish "sync-source-peer-missed-finish" "a resync to the peer did not end properly";
    TargetPeerMissedFinish "sync-target-peer-missed-finish" "a resync from the peer ended, but the peer did not notice";
    TargetMissedFinish "sync-target-missed-finish" "a resync from the peer did not end properly";
    SameGeneration "same-generation" "both nodes have the same generation and neither crashed as Primary";
    CrashedPrimary "crashed-primary" "same generation, but a node crashed as Primary: its writes may be missing on the other";
    CrashedPrimaryBesidePrimary "crashed-primary-beside-primary" "a node crashed as Primary and a node is Primary now: the Primary wins";
    SurvivorInsists "survivor-insists" "same generation, this node crashed as Primary, and the peer, which did not, takes itself for the source";
    RequiresNewerPeer "requires-newer-peer" "crashed Primary beside a running one: the peer's software is too old to handle this";
    BitmapPeer "bitmap-peer" "the peer's bitmap starts at this node's generation";
    TargetMissedStart "sync-target-missed-start" "this node missed the start of a resync from the peer";
    HistoryPeer "history-peer" "this node's generation is in the peer's history";
    BitmapSelf "bitmap-self" "this node's bitmap starts at the peer's generation";
    SourceMissedStart "sync-source-missed-start" "the peer missed the start of a resync from this node";
    HistorySelf "history-self" "the peer's generation is in this node's history";
    BitmapBoth "bitmap-both" "both nodes moved on from the same generation, recorded in both bitmaps";
    HistoryBoth "history-both" "both nodes moved on from an older common generation";
    BitmapInHistory "bitmap-in-history" "one node's bitmap starts at a generation of the other's history: both moved on since";
    EmptyHistoryBoth "empty-history-both" "no common generation is known; both histories have empty slots";
    UnrelatedData "unrelated-data" "the two nodes' data never had a common generation";
    Reconnected "reconnected" "both nodes have lost only the link to each other";
    LostQuorum "lost-quorum" "the same generation, and a node that lost quorum, or only one that lost no more than the link";
    BothOff "both-off" "the same generation, and both nodes have been down";
    BitmapPeerOther "bitmap-peer-other" "the peer's bitmap of another node starts at this node's generation";
    BitmapSelfOther "bitmap-self-other" "this node's bitmap of another node starts at the peer's generation";
    ReconcileBitmap "reconcile-bitmap" "both were left by a Primary, and the bitmaps say who lacks its last writes";
    ReconcileDagtag "reconcile-dagtag" "both were left by a Primary, and one has more of its writes";
    CircularGenerations "circular-generations" "each node's generation counts as older than the other's";

    // Split brain (6).
    NoSplitBrainPolicy "no-split-brain-policy" "the after-sb policy for this number of Primaries is disconnect";
    PolicyNotValidHere "policy-not-valid-here" "the configured policy word has no meaning for this option";
    YoungerPrimaryLost "younger-primary-lost" "the node that became Primary later loses its changes";
    OlderPrimaryLost "older-primary-lost" "the node that was Primary first loses its changes";
    NoChangesToLose "no-changes-to-lose" "a side without changes since the split takes the other's";
    BothChanged "both-changed" "both sides changed data, so zero-changes decides nothing";
    FewerChangesLost "fewer-changes-lost" "the side with fewer changed blocks loses its changes";
    QuorumWins "quorum-wins" "exactly one side has quorum: its data wins";
    TieBroken "tie-broken" "both sides are equal; the RESOLVE-CONFLICTS side loses";
    LocalLost "local-lost" "policy discard-local";
    RemoteLost "remote-lost" "policy discard-remote";
    SecondaryLost "secondary-lost" "policy discard-secondary: the Primary wins";
    NoConsensus "no-consensus" "the zero-Primaries policy would overwrite the Primary";
    OutdatedWouldWin "outdated-would-win" "the after-sb policy would have an Outdated disk overwrite a better one: a person must choose the victim";
    CannotDemote "cannot-demote" "this node lost the split brain but cannot be demoted, it is in use";
    DiscardMyData "discard-my-data" "exactly one side was told to discard its data";
    EmptyHistoryNotAutomatic "empty-history-not-automatic" "without a known common generation only a person may choose the victim";

    // Handshake (5.2, 5.4, 5.6, 5.7).
    DiskStateDecides "disk-state-decides" "one disk is Inconsistent: the other one is the source";
    SourceIsInconsistent "source-is-inconsistent" "this node would be the source but its disk is not consistent";
    PrimaryWouldBeTarget "primary-would-be-target" "this node is Primary with good data and would become sync target";
    PrimaryOverwritten "primary-overwritten" "rr-conflict violently: the Primary becomes sync target";
    PrimaryIsOutdated "primary-is-outdated" "a node crashed as Primary, and the Primary's disk is Outdated or being attached: \
        neither is known to have everything; demote the Primary and try again";
    DryRun "dry-run" "tentative connect: decided, reported, not done";
    ExposedDataDiffers "exposed-data-differs" "Primary without good data: the peer's generation is not the one its users have seen";
    PeerLacksOwnWrites "peer-lacks-own-writes" "diskless Primary: the peer did not get all writes that were completed";
    SkipInitialSync "skip-initial-sync" "fresh metadata adopts the peer's generation without resync";
    UuidsStored "uuids-stored" "the peer's generations were taken note of";
    WireProtocolDiffers "wire-protocol-differs" "the nodes are configured with different replication protocols (A, B, C)";
    AfterSb0Differs "after-sb-0pri-differs" "the nodes have different after-sb-0pri policies";
    AfterSb1Differs "after-sb-1pri-differs" "the nodes have different after-sb-1pri policies";
    AfterSb2Differs "after-sb-2pri-differs" "the nodes have different after-sb-2pri policies";
    BothDiscardMyData "both-discard-my-data" "both nodes were told to discard their data";
    TwoPrimariesMeet "two-primaries" "both nodes are Primary, which is not allowed: make one Secondary first";
    FrozenGivesIn "frozen-gives-in" "I/O is frozen here, and the peer has newer data: this node becomes Secondary";
    TwoPrimariesDiffers "allow-two-primaries-differs" "only one node allows two Primaries";
    IntegrityAlgDiffers "data-integrity-alg-differs" "the nodes have different data-integrity algorithms";
    DryRunUnsupported "dry-run-unsupported" "a tentative connect needs protocol 92";

    // Sizes (5.3, 12.6).
    PeerDiskTooSmall "peer-disk-too-small" "the peer's disk is smaller than this node's data";
    SizesContradict "sizes-contradict" "the peer says that its device is larger than its disk, or than its limit";
    OwnDiskTooSmall "own-disk-too-small" "the peer's device is larger than this node's disk";
    SourceDependsOnPrimary "source-depends-on-primary" "the source lacks what a Primary beside it is writing: the Primary comes first";
    SourceOfAnother "source-of-another" "this node brings another one up to date, which comes first";
    TargetOfAnother "target-of-another" "a third node brings one of the two up to date, which comes first";
    CrashedPrimaryAway "crashed-primary-away" "none of the two knows who has more of what an absent third node wrote";
    HandshakeChanged "initial-handshake-changed" "this node's generations changed during the handshake";
    ResyncUnspoken "resync-unspoken" "a resync is needed, which urbd does not do yet in DRBD 9's dialect";
    SizeUnchanged "size-unchanged" "the size stays as it is";
    PeerIsDiskless "peer-is-diskless" "the peer has no disk either, its size says nothing";
    PrimaryWouldShrink "primary-would-shrink" "the device of a diskless Primary cannot become smaller: demote first";
    NoDisk "no-disk" "this needs a local disk";
    ResizeDuringResync "resize-during-resync" "no resize while a resync or verify is running";
    ResizeNeedsProtocol93 "resize-needs-protocol-93" "a resize without resync needs protocol 93";

    // Fencing (8.5).
    FencingWhileConnected "fencing-while-connected" "the peer is connected: no fencing";
    FencingWithoutGoodDisk "fencing-without-good-disk" "this node's own data is not good enough to fence the peer";
    FencingNotConfigured "fencing-not-configured" "policy dont-care: the peer counts as fenced";
    FencingHandlerDisabled "fencing-handler-disabled" "no handler program: the peer counts as fenced";
    FencingOvertaken "fencing-overtaken" "the connection changed while the handler ran: its answer is void";
    FencingHandlerBroken "fencing-handler-broken" "the handler's exit code means nothing";
    PeerIsInconsistent "peer-is-inconsistent" "handler: the peer's disk is Inconsistent";
    PeerWasOutdated "peer-was-outdated" "handler: the peer's disk is Outdated";
    PeerAssumedDead "peer-assumed-dead" "handler: the peer is unreachable and assumed dead";
    PeerUnreachable "peer-unreachable" "handler: the peer is unreachable, but this node's data is not UpToDate either";
    PeerIsPrimary "peer-is-primary" "handler: the peer is Primary, so this node's data is old";
    PeerWasShot "peer-was-shot" "handler: the peer was powered off or rebooted";
    PeerWasShotUnexpectedly "peer-was-shot-unexpectedly" "handler: the peer was powered off, though the policy is not resource-and-stonith";

    // Attach (11.3).
    DataNotCurrent "data-not-current" "the disk holds another generation than the users have seen";
    LacksOwnWrites "lacks-own-writes" "this node has writes that only its peer has, or gets";
    WasInconsistent "was-inconsistent" "metadata: the data was not consistent";
    WasOutdated "was-outdated" "metadata: the data was known to be old";
    PeerWasOutdatedBefore "peer-was-outdated-before" "metadata: the peer was outdated, so this is the newest data";
    NoFencingToWaitFor "no-fencing-to-wait-for" "metadata: the data was UpToDate, and no fencing policy asks for more";
    PeerMayBeNewer "peer-may-be-newer" "metadata: the data was UpToDate, but the peer may have gone on";

    // Requests (10, 11.5).
    NotPrimary "not-primary" "this node is not Primary";
    IoSuspended "io-suspended" "I/O is suspended";
    DiskNotReady "disk-not-ready" "the disk is being attached";
    ResyncStarting "resync-starting" "a resync is starting; requests wait until both bitmaps are known";
    NoGoodData "no-good-data" "no UpToDate disk is in reach";
    ErrorPassedOn "error-passed-on" "on-io-error pass-on: the disk stays in service";
    DiskGivenUp "disk-given-up" "the disk failed and is given up";
    DetachForced "detach-forced" "disk-timeout or forced detach: the disk is given up at once";
}

impl Reason {
    /// Is this about what a node has and is at present (a disk that can grow or be attached, a Primary that can be
    /// demoted)? Then the nodes go on trying to connect. What is configured, and whose data counts, a person changes.
    #[must_use]
    pub const fn may_pass(self) -> bool {
        matches!(
            self,
            Reason::PeerDiskTooSmall
                | Reason::OwnDiskTooSmall
                | Reason::PrimaryWouldShrink
                | Reason::ExposedDataDiffers
                | Reason::PeerLacksOwnWrites
                | Reason::SourceIsInconsistent
                | Reason::PrimaryIsOutdated
        )
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_well_formed() {
        let names: BTreeSet<&str> = Reason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        for name in names {
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{name}");
        }
    }
}
