//! Deliberately wrong versions of rules, to try the tests: a test suite that does not object to one lacks a check.
//!
//! This file is not in the product: it is put into a copy, whose rules ask it (`wrong-rules/README.md`).

use std::panic::catch_unwind;

/// Who must object to a mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// Tables, properties and model worlds of decisions (`crates/core/tests/decide`).
    Decision,
    /// Scenarios and seeds of the simulator (`crates/sim/tests/`).
    Cluster,
    /// Two cores that are watched (`crates/core/tests/pair`).
    Pair,
    /// Tests of metadata (`crates/meta/tests/meta`).
    Metadata,
    /// Recordings of kernels that are played to a core (`crates/core/tests/replay9`).
    Recording,
    /// Nobody does as yet: a check is missing, or is too rare. These are tried by nobody but who names one in
    /// `WRONG_RULE`.
    Nobody,
}

macro_rules! mutants {
    ($($variant:ident $name:literal $layer:ident $rule:literal;)*) => {
        /// A rule that can be broken.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Mutant {
            $(#[doc = $rule] $variant,)*
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Mutant] = &[$(Mutant::$variant,)*];

            /// What it does wrong, lower case with hyphens.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Mutant::$variant => $name,)* }
            }

            /// The rule that it breaks, with its section of `docs/spec/`.
            #[must_use]
            pub const fn rule(self) -> &'static str {
                match self { $(Mutant::$variant => $rule,)* }
            }

            /// Whose tests must notice.
            #[must_use]
            pub const fn layer(self) -> Layer {
                match self { $(Mutant::$variant => Layer::$layer,)* }
            }

            /// Those that `WRONG_RULES` names, separated by commas; all without it.
            pub fn tried() -> impl Iterator<Item = Mutant> {
                let named = std::env::var("WRONG_RULES").ok();
                let tried = move |m: &Mutant| named.as_ref().is_none_or(|names| names.split(',').any(|name| name == m.name()));
                Mutant::ALL.iter().copied().filter(tried)
            }

            /// The rules of a layer that can be broken unnoticed by their checks, each of which passes otherwise.
            pub fn unnoticed(layer: Layer, checks: &[(Mutant, fn())]) -> Vec<&'static str> {
                let mut survivors = Vec::new();
                for mutant in Mutant::tried().filter(|m| m.layer() == layer) {
                    let check = checks.iter().find(|(of, _)| *of == mutant).expect("it has a check").1;
                    assert!(catch_unwind(check).is_ok(), "{}: fails without it", mutant.name());
                    choose_mutant(Some(mutant));
                    let found = catch_unwind(check).is_err();
                    choose_mutant(None);
                    println!("{:32} {}", mutant.name(), if found { "noticed" } else { "NOT NOTICED" });
                    survivors.extend((!found).then(|| mutant.rule()));
                }
                survivors
            }
        }
    };
}

mutants! {
    // Comparison of generations and the handshake (connection-and-state 5, 6).
    IgnoreCrashedPrimary "ignore-crashed-primary" Decision "a crashed Primary's last writes are copied (state 5.7, rule 40)";
    OutdatedPrimaryWins "outdated-primary-wins" Decision "an Outdated Primary overwrites no crashed one (state 5.7, rule 41)";
    SurvivorIsSource "survivor-is-source" Cluster "a crashed Primary's last writes are copied (state 5.7, rule 40; 9.3.3 has it otherwise)";
    BothCrashedSameWay "both-crashed-both-source" Decision "both crashed: one side is the source (state 5.7, rule 40)";
    SplitBrainBySource "split-brain-resolved-silently" Decision "rule 90 is a split brain (state 5.7)";
    HistoryWithoutFullSync "history-by-bitmap" Decision "rules 60 and 80 need a full sync (state 5.7)";
    ForcedTargetUnrelated "forced-target-unrelated" Decision "a target promoted by force is no stranger to its source (state 5.7, rule 100)";
    AgreedIsComparedAnew "agreed-is-compared-anew" Decision "a resync that begins is not compared anew (state 5.6)";
    KeepSyncStart "sync-start-not-undone" Decision "a resync whose start was missed is undone (state 5.7, rules 51, 71)";
    InconsistentMayWin "inconsistent-source" Decision "an Inconsistent disk never wins (state 5.7 step 2)";
    PrimaryOverwritten "primary-overwritten" Decision "a Primary with good data is no target (state 5.7 step 8)";
    WrongVictim "wrong-victim" Decision "discard-least-changes: fewer changes are lost (state 6.3)";
    OutdatedWinsSplitBrain "outdated-wins-split-brain" Cluster "no policy has an Outdated disk win over a better one (state 6.2)";
    NoConsensus "consensus-overwrites-primary" Decision "consensus never chooses the Primary (state 6.4)";
    UndemotedVictim "victim-not-demoted" Decision "a Primary loses only after it was demoted (state 6.5)";
    ExposedDataIgnored "exposed-data-ignored" Decision "a diskless Primary takes no other generation (state 5.4)";
    OwnGenerationExposed "own-generation-exposed" Cluster "without a disk users see the peer's generation (state 7.9)";
    UuidsBeforeDiskLoss "uuids-before-disk-loss" Cluster "a peer's UUIDs are judged by the disk there is now (state 5.4)";
    ComparedBeforeLoss "compared-before-loss" Cluster "what was compared is of the disk that the peer had then (state 5.6)";
    TargetToBeServes "target-to-be-serves" Cluster "a disk that was to be copied to is judged anew when its source's goes (state 5.4)";
    ComparedBeforeGeneration "compared-before-generation" Cluster "what was compared is of the generations of then (state 5.6)";
    RefusedWritesForgotten "refused-writes-forgotten" Cluster "a disk that lacks what was refused is not in service (state 5.6)";
    ForcedBesideUsers "forced-beside-users" Cluster "no copy is called good by force beside users who have seen another (state 5.4)";
    ForcedWhileCompared "forced-while-compared" Cluster "no copy is called good by force while the peer compares them (state 5.4)";
    // State rules (connection-and-state 2).
    TwoPrimaries "two-primaries" Decision "one Primary unless configured (state 2.8)";
    WishConnects "wish-connects" Decision "a wish for a verify or resync ends no handshake (state 2.8, sanitising 3)";
    OutdateEndsVerify "outdate-ends-verify" Cluster "a disk is not outdated during a verify (state 2.8, validity 10)";
    RisesUndecided "rises-before-it-compared" Decision "no promotion between two comparisons of one attach (state 5.6)";
    DemoteInUse "demote-in-use" Decision "a device that is open is not demoted (state 2.8)";
    PrimaryWithoutData "primary-without-data" Decision "a Primary needs good data (state 2.8)";
    SourceStaysUpToDate "sync-target-stays-up-to-date" Decision "a SyncTarget is Inconsistent (state 2.8 clamps)";
    TargetOutlivesSource "target-outlives-source" Decision "a target is no good copy when its source is lost (state 2.8, sanitising 3)";
    NoFreezeForFencing "no-freeze-for-fencing" Decision "resource-and-stonith freezes I/O (state 2.8, rule 7)";
    HandlerIgnored "fencing-handler-ignored" Decision "exit 6 of fence-peer: the peer is Primary (state 8.5)";
    SilentDiskLoss "silent-disk-loss" Decision "the peer is told of a lost disk (state 2.8 effects)";
    KeepGeneration "keep-generation-on-peer-loss" Decision "a Primary that loses its peer starts a generation (state 2.8)";
    KeepGenerationAtAttach "keep-generation-at-attach" Decision "a Primary that attaches alone starts a generation (state 7.11)";
    GenerationWaitsBesideWriter "generation-waits-beside-writer" Decision "frozen beside a Primary: a generation begins (state 7.11)";
    TargetGoneUnnoticed "target-gone-unnoticed" Cluster "a source whose target's disk goes begins a generation (state 7.11)";
    DisklessRiseUnnoticed "diskless-rise-unnoticed" Decision "a Primary without a disk starts a generation (state B.1, S4)";
    FencedSourceInOneGeneration "fenced-source-in-one-generation" Cluster "a Primary thaws as source: a generation begins (state 7.11)";
    SourceJustCreated "source-just-created" Cluster "who is a source has a generation (state 7.11)";
    RebootedWhileFrozen "rebooted-while-frozen" Cluster "a peer that may have rebooted while I/O was frozen gets a resync (state 5.6, rule 4)";
    UnloggedDiskLoss "unlogged-disk-loss" Cluster "without the activity log a disk that failed under a Primary is copied in full (on-disk 3.11)";
    UnloggedUnsaid "unlogged-unsaid" Cluster "no write without the activity log before the superblock says that it is not kept (on-disk 3.11)";
    AheadTellsOnce "ahead-tells-once" Cluster "before a resync without bitmaps the target is told of every marked block (data 6.5)";
    CrashUncopied "crash-uncopied" Cluster "in 9's dialect what a crashed Primary had is copied when both come back (state 5.8, A13)";
    FailedWriteForgotten "failed-write-forgotten" Cluster "in 9's dialect a connect copies what a failed write has marked (state 2.7, row 2)";
    BehindEarly "behind-early" Cluster "a disk that is being attached is behind nobody (data 6.5)";
    AheadInOneGeneration "ahead-in-one-generation" Cluster "a Primary that runs ahead starts a generation (data 6.5)";
    CorrectedTooEarly "corrected-too-early" Decision "who attaches is told what was compared (state 5.7, rules 34, 35)";
    CorrectedSourceIgnored "corrected-source-ignored" Decision "who attaches follows a source that has corrected its set (state 5.7, rule 34)";
    BehindSeesOwn "behind-sees-own" Decision "users of a target see its source's generation (state 7.9)";
    GenerationForRefused "generation-before-acceptance" Cluster "no generation for a diskless Primary that refuses (state 2.8)";
    AgreementForgotten "agreement-forgotten" Cluster "who agrees to the peer's promotion is not promoted by an earlier wish (state 3.1)";
    // Disks (connection-and-state 11).
    AttachStaleDisk "attach-stale-disk" Decision "a disk older than what users saw is refused (state 11.3)";
    AttachUnderWrites "attach-under-writes" Decision "a disk is not good beside writes that it will lack (state 11.3)";
    AttachOutdatedAsGood "attach-outdated-as-good" Decision "an Outdated disk stays so (state 11.3)";
    OutdatedCrash "outdated-disk-counts-as-crashed" Decision "a Primary that crashed beside its Outdated disk left nothing on that (state 11.3)";
    DiscardActivityLog "discard-activity-log" Decision "after a crash of a Primary the log is applied (disk 3.10)";
    PeerOutdatedForgotten "peer-outdated-forgotten" Decision "who outdated the peer has the newest data (state 11.3)";
    FailedDiskReturns "failed-disk-returns" Decision "a disk that is given up does not come back (state 11.4)";
    KeepFailedDisk "keep-failed-disk" Decision "a disk whose flush failed is given up (state 11.5)";
    ReadInconsistent "read-inconsistent-disk" Decision "reads of blocks that differ go to the good disk (data 4.1)";
    ReadOutlivesRole "read-outlives-role" Cluster "a read that failed after a demotion is not tried elsewhere (data 4.3)";
    ReadWithoutPeer "read-from-bad-peer" Decision "only an UpToDate peer answers reads (data 4.1)";
    // Activity log and metadata (on-disk-format 2, 3, 4; data path 1.2).
    SkipActivityLog "skip-activity-log" Cluster "a write's extents are in the activity log first (disk 3.7)";
    WriteBeforeLog "write-before-log-commit" Cluster "a write waits for its transaction (disk 3.7)";
    LogBeforeBitmap "log-before-bitmap" Cluster "bits of an evicted extent are on disk first (disk 3.7)";
    ReleaseExtentEarly "release-extent-early" Cluster "the bit is set before the extent is let go of (data 1.8)";
    LogResetBeforeBitmap "log-reset-before-bitmap" Cluster "a replayed log is emptied after the bitmap is down (disk 3.10)";
    CleanBeforeLog "clean-before-log" Cluster "a disk is marked clean when its log is empty (disk 2.9)";
    WriteBeforeGeneration "write-before-generation" Cluster "no write of a generation that is not durable (state 7.11)";
    GenerationsOneByOne "generations-one-by-one" Cluster "frozen writes end when all volumes have begun their generations (state 7.11)";
    LatePrimaryMark "late-primary-mark" Cluster "the Primary mark is durable before the first write (disk 2.9)";
    SuperblockBeforeData "superblock-before-data" Cluster "data is flushed before the superblock calls it good (disk 2.8)";
    SyncUuidEarly "sync-uuid-early" Cluster "P_SYNC_UUID after its superblock (state 7.4)";
    BitmapReplaced "bitmap-replaced" Cluster "both bitmaps become one (wire 9)";
    FullSyncByBitmap "full-sync-by-bitmap" Cluster "a full sync sets all bits (state 5.7)";
    KeepSyncGeneration "keep-sync-generation" Cluster "a target takes over the source's generations (state 7.4)";
    ForgetOwnBits "bitmap-not-loaded" Cluster "an attach loads the bitmap (disk 4.3)";
    // Payload (wire-protocol 10.1), which whoever drives the core checks.
    DamageAccepted "damage-accepted" Cluster "payload that does not fit its digest ends the connection (wire 10.1)";
    // Writes (data-path-and-resync 1).
    VerifyResultsUncounted "verify-results-uncounted" Cluster "results of a verify take sequence numbers, too (wire 3.3)";
    RepairDropsLink "repair-drops-link" Cluster "who reconnects to copy what is marked takes leave first (state 8.5)";
    FrozenNotAccounted "frozen-not-accounted" Cluster "what is kept for the peer is in the bitmap that is exchanged (data 1.13)";
    FrozenWriteBegins "frozen-write-begins" Cluster "what waited for the log while I/O froze does not begin (data 1.13)";
    FailsForNothing "fails-for-nothing" Cluster "a request fails only without a good copy (state B, S11)";
    CompleteBeforePeer "complete-before-peer" Cluster "protocol C: complete when the peer has it (data 1.7)";
    CompleteBeforeDisk "complete-before-disk" Cluster "complete when the own disk has it (data 1.7)";
    ReceivedIsWritten "received-is-written" Cluster "protocol B: for the only copy 'received' is no answer (data 1.7)";
    IgnoreRefusal "ignore-neg-ack" Cluster "P_NEG_ACK: the peer lacks the write (data 1.8)";
    RefusalOutlivesResync "refusal-outlives-resync" Cluster "a refused write of a sync target: no good copy lacks it (data 1.8)";
    LostGenerationTrusted "lost-generation-trusted" Cluster "what was in flight when the disk went is complete in the peer's new generation (data 1.7)";
    RefusalBeforeDiskLoss "refusal-before-disk-loss" Cluster "a peer that has refused what a lost disk had is no good copy (state 5.4)";
    JudgedBeforeSettled "judged-before-settled" Cluster "users of a disk that is being attached go on: what they have got counts (state 7.9)";
    GivenUpBeforeDurable "given-up-before-durable" Cluster "a copy is given up when the peer's is durable (data 1.7)";
    VolatileOnPeer "volatile-on-peer" Cluster "what only the peer has is durable there (data 1.7)";
    ForgetInFlight "forget-in-flight" Cluster "writes in flight at a loss of the link are marked (data 1.12)";
    OverlapWrites "overlapping-writes" Cluster "overlapping writes follow each other (data 1.3)";
    EpochsMerge "epochs-merge" Cluster "a write after a completed one is in a later epoch (data 1.7)";
    FlushWithoutPeer "flush-without-peer" Cluster "a flush waits for the peer's barrier ack (data 1.10)";
    TrustFailedFlush "trust-failed-flush" Cluster "a failed flush is an error (data 1.10)";
    // The peer's side (data-path-and-resync 2).
    AckOnReceive "ack-on-receive" Cluster "P_WRITE_ACK when the disk has it (data 2.5)";
    AckOfNoCopy "ack-of-no-copy" Cluster "P_NEG_ACK where neither node has a good copy (data 2.5)";
    AckNotHeldBack "recv-ack-not-held-back" Cluster "P_RECV_ACK is held back where later writes do not wait (data 2.6)";
    BarrierBeforeFlush "barrier-ack-before-flush" Cluster "P_BARRIER_ACK after the flush (data 1.11)";
    BarrierBeforeWrites "barrier-ack-before-writes" Cluster "P_BARRIER_ACK when all writes are down (data 2.6)";
    PeerWritesOverlap "peer-writes-overlap" Cluster "overlapping writes of the peer follow each other (data 2.2)";
    ReadBeforeWrite "read-before-write" Cluster "a peer's read waits for its writes (data 4.2)";
    DisklessWithoutBitmap "diskless-without-bitmap" Cluster "the bitmap for a diskless writer is kept here (data 2.3)";
    SupersededEarly "superseded-early" Cluster "P_SUPERSEDED when the superseding write is on the disk (data 3.2)";
    RepetitionForgotten "repetition-forgotten" Cluster "a write that is not repeated after all is marked (data 3.2)";
    RepetitionUnmarked "repetition-unmarked" Cluster "what waits to be repeated is marked as the link or the disk goes (data 3.2)";
    RefusedSupersedes "refused-supersedes" Cluster "what the own disk refused supersedes nothing (data 3.2)";
    NumberAwaited "number-awaited" Cluster "a missing sequence number is waited for until ping-timeout (wire 3.3)";
    DurableSuperseded "durable-superseded" Cluster "a durable write is superseded by a durable one only (data 3.2)";
    // Resync (data-path-and-resync 7).
    ResyncBesideHandler "resync-beside-handler" Cluster "a resync waits for its handler (state 8.6)";
    OutlivedHandlerDecides "outlived-handler-decides" Cluster "a former connection's handler has no say (state 8.6)";
    ResyncReadsUnderWrite "resync-reads-under-write" Cluster "a resync read waits for writes to the block (data 7.4)";
    WriteIntoResync "write-into-resync" Cluster "a write waits for the resync of its blocks (data 7.4)";
    TargetBitmapLate "target-bitmap-late" Cluster "a target's bitmap is on its disk before a block is confirmed (data 7.5)";
    FinishesInLaterGeneration "finishes-in-later-generation" Cluster "a target gets the generation that it has copied (state 7.4)";
    AckOvertakesState "ack-overtakes-state" Cluster "what a target has confirmed tells nothing of words before (data 0.3)";
    FrozenInTheWay "frozen-in-the-way" Cluster "nothing gives way to a write that is frozen, and sent when it thaws (data 3.2)";
    RepeatedAtOnce "repeated-at-once" Cluster "what is repeated waits for what it gave way to (data 3.2)";
    RestartInOneEpoch "restart-in-one-epoch" Cluster "a write that begins again is in a later epoch (data 1.9)";
    LatePeerOutdated "late-peer-outdated" Cluster "a peer that is connected says itself what its disk is (state 8.2)";
    ForcedAfterResync "forced-after-resync" Cluster "a disk that has become good is not forced (state 8.2)";
    VerifyEndsResync "verify-ends-resync" Cluster "a word from before a resync does not end it (data 7.7)";
    SpoiledEndsResync "spoiled-ends-resync" Cluster "nor does such a word of a disk that is no good copy (data 7.7)";
    FinishTooEarly "finish-too-early" Cluster "UpToDate when the last block is written (data 7.7)";
    ClearBeforeWritten "clear-before-written" Cluster "a bit is cleared when the block is written (data 7.5)";
    StaleSyncUuid "stale-sync-uuid" Cluster "a sync UUID belongs to one resync (state 7.4)";
    HistoryFallsOut "history-falls-out" Cluster "a target that never learns of its resync stays known (state 5.7, 80)";
    StaleAnswers "stale-answers" Cluster "an earlier resync's answers are none of this one (data 7.1)";
    BarrierNeverOverdue "barrier-never-overdue" Pair "an unanswered barrier is overdue, too (data 10)";
    OnlyPingsCount "only-pings-count" Pair "who sends anything is alive (state 4.6)";
    FencedByFormer "fenced-by-former" Pair "a handler of a former connection does not fence (state 8.5)";
    ThawedTogether "thawed-together" Cluster "I/O thaws when the last reason is gone (state 2.8)";
    FlushCoversLater "flush-covers-later" Cluster "a flush covers what was written before it began (data 1.10)";
    EpochTooLong "epoch-too-long" Pair "an epoch has max-epoch-size writes at most (data 1.9)";
    FailedBlockCleared "failed-block-cleared" Cluster "a block that could not be copied stays marked (data 7.6)";
    AnyAckClears "any-ack-clears" Pair "a write acknowledgement that says nothing of bits clears none (data 1.8)";
    LateAckClears "late-ack-clears" Cluster "what a peer says late of a write leaves a newer one's bits alone (data 1.8)";
    ResyncWriteOvertaken "resync-write-overtaken" Pair "a peer's write waits for the resync write to its blocks (data 7.4)";
    AbandonedLosesPlace "abandoned-loses-place" Pair "what an ended resync still writes keeps its place (data 7.4)";
    CompletedUnmarked "completed-unmarked" Cluster "a completed write that is lost with the link is marked (data 1.12; A, B)";
    GrownBitsClear "grown-bits-clear" Recording "what a device has grown by differs (disk 7.3)";
    FailedWriteMarkedLate "failed-write-marked-late" Cluster "a failed write is marked at once (data 1.8)";
    FailedReadUnmarked "failed-read-unmarked" Cluster "a block that cannot be read is marked (data 4.3)";
    UnalignedRequests "unaligned-requests" Cluster "resync requests are aligned to their size (data 7.3)";
    ReceivedThenRefused "received-then-refused" Cluster "no P_RECV_ACK of what is refused at once (data 2.5)";
    FailedIsReceived "failed-is-received" Cluster "no P_RECV_ACK, held back, of a write that failed (data 2.6)";
    IdleRoomTwice "idle-room-twice" Pair "room for idle extents of the same request is counted once (disk 3.6)";
    HoleInRing "hole-in-ring" Pair "a hole in the ring: all may differ (disk 3.9)";
    LogBeforeInUse "log-before-in-use" Nobody "no transaction before the superblock says in use (disk 2.9)";
    LogBesidePage "log-beside-page" Cluster "a transaction waits for pages that are being written (disk 3.7)";
    SoleCopyUnflushed "sole-copy-unflushed" Cluster "a flush waits for the peer that has the only copy (data 1.10)";
    FsyncFailsFrozen "fsync-fails-frozen" Cluster "a flush waits while I/O is frozen (data 1.13)";
    NumbersDoNotWrap "numbers-do-not-wrap" Pair "sequence numbers wrap (wire 3.3)";
    TransactionsDoNotWrap "transactions-do-not-wrap" Pair "numbers of transactions wrap (disk 3.9)";
    EpochFlushCoversLater "epoch-flush-covers-later" Pair "an epoch's flush covers what was written before it began (data 1.11)";
    PageFlushCoversLater "page-flush-covers-later" Cluster "a page's flush covers what was written before it began (disk 4.3)";
    FencedWhileConnected "fenced-while-connected" Pair "a peer that is back is not fenced (state 8.5)";
    DiscardStays "discard-stays" Cluster "discard-my-data is for one connection (state 6.1)";
    DiscardSurvivesPromotion "discard-survives-promotion" Cluster "who is Primary discards nothing (state 6.1)";
    UsedIsDemoted "used-is-demoted" Decision "a Primary in use is demoted by no policy (state 6.5)";
    ShortBlockRefused "short-block-refused" Pair "the last block of a device may be short (data 9)";
    ShortBlockUnverified "short-block-unverified" Pair "the last, short block is verified (data 9)";
    DigestBeforeWrite "digest-before-write" Pair "a digest is taken when the peer's older writes are down (data 9)";
    DigestBesideWrite "digest-beside-write" Pair "a peer's write waits for a digest that is being taken (data 9)";
    OverlapsReordered "overlaps-reordered" Pair "overlapping writes of one turn keep their order (data 1.3)";
    FailedReadNotRetried "failed-read-not-retried" Cluster "a failed read is tried at the peer (data 4.3)";
    AgainForcesBad "again-forces-bad" Pair "resume-io forces no copy that is not good (state 8.2)";
    AgainOnPeersNewer "again-on-peers-newer" Pair "users do not go on with a peer's newer data (state 7.9)";
    AgainAnyPeerFollows "again-any-peer-follows" Pair "only a peer whose data comes from here replaces it (state 7.9)";
    AgainAnyGeneration "again-any-generation" Pair "a peer of another generation has gone on (state 7.9)";
    AgainAwaitsNobody "again-awaits-nobody" Pair "peers are waited for before a process is Primary again (state 8.2)";
    AgainResumedForEver "again-resumed-for-ever" Pair "resume-io counts for one try (state 8.2)";
    SecondPrimaryInPhases "second-primary-in-phases" Recording "no second Primary within reach (state 3.2.4)";
    VoteOnAnother "vote-on-another" Recording "a vote counts for its own transaction (state 3.2.5)";
    CommitUnjudged "commit-unjudged" Cluster "what was agreed is judged once more (state 3.2.5)";
    StaysBesidePrimary "stays-beside-primary" Recording "a copy that does not reach a Primary is outdated (state 3.2.6)";
    AnswersForOthers "answers-for-others" Recording "a participant answers when those have that it has asked (state 3.2.5)";
    PrimariesUnheard "primaries-unheard" Recording "votes name Primaries (state 3.2.3)";
    RisesBeforeBroughtUp "rises-before-brought-up" Recording "nobody rises who brings another one up to date (state 3.2)";
    RisesBesidePrimary "rises-beside-primary" Recording "a Primary that is asked through others refuses a second one (state 3.2.4)";
    DecisionNotPassedOn "decision-not-passed-on" Recording "a decision is passed on to who is not reached (state 3.2.6)";
    LostInitiatorAwaited "lost-initiator-awaited" Recording "what a lost node has asked for is off (state 3.2.6)";
    PrimaryTakesHearsay "primary-takes-hearsay" Recording "a Primary's writes overtake what others say (data 6.3)";
    InSyncBesideWrite "in-sync-beside-write" Recording "what is being written is not in sync by hearsay (data 6.3)";
    InSyncOfUnclean "in-sync-of-unclean" Recording "who lacks something here says nothing of others (data 6.3)";
    InSyncAcrossGenerations "in-sync-across-generations" Recording "nodes of another generation are not in sync (data 6.3)";
    InSyncSaidOfMarked "in-sync-said-of-marked" Recording "only who lacks nothing is said to be in sync (data 6.3)";
    InSyncSaidOfWritten "in-sync-said-of-written" Recording "nothing is said of what is being written (data 6.3)";
    CopiedByHearsay "copied-by-hearsay" Recording "what is being copied is not known from hearsay (data 6.3)";
    MarksOfOthersStay "marks-of-others-stay" Cluster "a Primary that has let a peer in says who has all (data 6.3)";
    SettledWithoutOwn "settled-without-own" Recording "a bit is cleared if both have the write (data 2.10)";
    UnsettledNotInLog "unsettled-not-in-log" Cluster "a peer's write stays in the log until it is known who has it (data 2.10)";
    LeftLogUnmarked "left-log-unmarked" Cluster "what leaves the log unsettled is marked (data 2.10)";
    LostWritesUnmarked "lost-writes-unmarked" Recording "a lost Primary's unsettled writes are marked (data 2.8)";
    EqualForgetsUnlogged "equal-forgets-unlogged" Nobody "what is unsettled stays marked as copies become equal (data 2.10)";
    NeverReconciled "never-reconciled" Recording "what a lost Primary wrote is compared (state 7.7)";
    ReconciledUnderPrimary "reconciled-under-primary" Recording "nodes are compared when nobody is Primary (state 7.7)";
    LeftNotAwaited "left-not-awaited" Recording "who was left to compare is awaited before a promotion (state 7.7)";
    AnyLostPrimary "any-lost-primary" Recording "of several lost nodes none is named (state 7.7)";
    TargetUntold "target-untold" Recording "a target is told what it lacks of a third node's (data 2.8)";
    SettledOutOfOrder "settled-out-of-order" Cluster "who has which write is said in order (wire 13.2)";
    AcksMerged "acks-merged" Recording "a peer ack is for writes that the same nodes have (wire 13.2)";
    PositionNotAwaited "position-not-awaited" Recording "a resync request waits for the write it names (data 7.5)";
    FlushAnsweredEarly "flush-answered-early" Recording "a flush of requests waits until all is told (data 7.10)";
    WitnessesNotAwaited "witnesses-not-awaited" Recording "a target waits for all good copies (data 7.10)";
    SurvivorNotDurable "survivor-not-durable" Recording "how much it has of a lost Primary's a node says when that is durable (state 7.7)";
    StrangersUnmarked "strangers-unmarked" Recording "slots of absent nodes mark what they lack (state 7.13)";
    VacantUnmarked "vacant-unmarked" Pair "vacant slots mark all that was ever written (state 7.13)";
    VacantInOneGeneration "vacant-in-one-generation" Recording "a vacant slot asks for a generation, too (state 7.2)";
    VacantUntold "vacant-untold" Recording "peers are told of a vacant slot (state 7.13)";
    NodesUnnoted "nodes-unnoted" Recording "nodes that a peer lists exist (state 7.13)";
    WeakHearToo "weak-hear-too" Recording "who does not hear of a generation counts from the old one (disk 5.3)";
    MissedForgotten "missed-forgotten" Recording "what a source misses in others its target misses (disk 5.3)";
    ForgottenFromNow "forgotten-from-now" Metadata "a forgotten peer's slot counts from the first day (disk 2.7)";
    SlotCountsFromNow "slot-counts-from-now" Metadata "a slot counts from the first generation missed (disk 5.3)";
    ExtentWithoutEnd "extent-without-end" Cluster "an extent has all its bits (disk 3.10)";
    ComingUnwritten "coming-unwritten" Metadata "what a target is to get is marked for all on its disk (data 7.5)";
    NoteEmpty "note-empty" Nobody "a generation is noted on disk before it is told (state 7.2)";
    GenerationUnheard "generation-unheard" Cluster "a generation becomes this node's own when its peers have it on disk (state 7.2)";
    PastUnlearned "past-unlearned" Nobody "what is past for a Primary is so for who has its generation (state 7.2)";
    NoteForgotten "note-forgotten" Nobody "a noted generation is past when another one begins (state 7.2)";
    NoteIsPast "note-is-past" Cluster "a noted generation is no past one yet (disk 5.3)";
    OverwrittenBeforeWriting "overwritten-before-writing" Cluster "a Primary that has not written yet begins its generation before it is overwritten (state 5.8, 7.2.1)";
    AttachOverHole "attach-over-hole" Pair "attach does not pass over a hole in the log (disk 3.9)";
    // Quorum (connection-and-state 9).
    OwnCopyGood "own-copy-good" Recording "an own copy that is not good counts as present (state 9.1)";
    OwnMissingDiskless "own-missing-is-diskless" Recording "a node that is to have a disk, and has none, counts as unknown to itself (state 9.3)";
    AttachingVotes "attaching-votes" Recording "who attaches a disk does not count itself (state 9.3)";
    AwayIsHere "away-is-here" Recording "who is not connected is not in reach (state 9.1)";
    PeersCopyGood "peers-copy-good" Recording "a peer's copy that is not good counts as present (state 9.1)";
    OutdatedVotes "outdated-votes" Recording "who is away with an old copy cannot be promoted (state 9.1)";
    LostMayGoOn "lost-may-go-on" Recording "who was lost without quorum cannot go on (state 9.1)";
    LoserTakesQuorum "loser-takes-quorum" Recording "who has no quorum knows nothing of those that it lost (state 9.1)";
    ClientVotes "client-votes" Recording "who is no tie-breaker counts for nothing (state 9.1)";
    LostTieBreakerVotes "lost-tie-breaker-votes" Recording "a tie-breaker that is away is no voter (state 9.1)";
    StrangerCounts "stranger-counts" Recording "who was never seen, and has no bitmap, does not count (state 9.1)";
    RemovedUncounted "removed-uncounted" Recording "who is not configured any more, and not forgotten, counts (state 9.1)";
    RemovedOutdatedVotes "removed-outdated-votes" Recording "who is not configured any more may be Outdated (state 9.1)";
    DetachedIsPresent "detached-is-present" Recording "to a node without a disk another one without is no voter (state 9.3)";
    LostNeverMeet "lost-never-meet" Recording "those who were lost may have found each other if they are enough (state 9.2)";
    AllVote "all-vote" Recording "where nobody else can be promoted those who are here decide (state 9.2)";
    AllIsMost "all-is-most" Recording "quorum all (state 9.2)";
    NumberIsMost "number-is-most" Recording "quorum by a number (state 9.2)";
    RedundancyIgnored "redundancy-ignored" Recording "quorum-minimum-redundancy (state 9.2)";
    NodesIgnored "nodes-ignored" Recording "quorum asks for nodes, beside good copies (state 9.2)";
    SourceWithoutSay "source-without-say" Recording "a node without a disk has the quorum of a good copy (state 9.3)";
    SourceWithoutQuorum "source-without-quorum" Recording "a good copy without quorum gives none (state 9.3)";
    OddDraw "odd-draw" Recording "only halves of an even number are a draw (state 9.2)";
    FewDraw "few-draw" Recording "less than a half is no draw (state 9.2)";
    AnyTieBreaker "any-tie-breaker" Recording "most nodes without disks decide a draw (state 9.2)";
    DrawWithoutTieBreaker "draw-without-tie-breaker" Recording "a draw is decided by nodes without disks (state 9.2)";
    DrawForNewcomer "draw-for-newcomer" Recording "a draw is decided for who had quorum (state 9.2)";
    LastOneForgets "last-one-forgets" Recording "the only one with quorum keeps it over a restart (state 9.5)";
    NotLastOneKeeps "not-last-one-keeps" Recording "one of several with quorum does not keep it over a restart (state 9.5)";
    KeepsWithoutQuorum "keeps-without-quorum" Recording "who had no quorum has none after a restart (state 9.5)";
    MembersUnwritten "members-unwritten" Recording "metadata have the members (state 9.6)";
}

thread_local! {
    static CHOSEN: std::cell::Cell<Option<Mutant>> = std::cell::Cell::new(of_process());
}

/// The rule that `WRONG_RULE` names is broken in all threads from the beginning: any test may be tried with it.
fn of_process() -> Option<Mutant> {
    let name = std::env::var("WRONG_RULE").ok()?;
    Some(*Mutant::ALL.iter().find(|m| m.name() == name).expect("the name of a wrong rule"))
}

/// Is this rule to be broken now?
#[must_use]
pub fn mutant(mutant: Mutant) -> bool {
    CHOSEN.get() == Some(mutant)
}

/// Breaks a rule for everything that this thread does from now on; `None` = none.
pub fn choose_mutant(mutant: Option<Mutant>) {
    CHOSEN.set(mutant);
}

/// Is whoever drives the core to take payload that does not fit its digest (`Mutant::DamageAccepted`)? It is the driver
/// that has payload and digest; the simulator asks here, and the engine has a test of its own.
#[must_use]
pub fn accepts_damage() -> bool {
    mutant(Mutant::DamageAccepted)
}
