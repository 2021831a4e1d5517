//! Which rows of the decision tables were decisive: counted with the feature `rows`, for reports on what tests reach.
//!
//! Without the feature [`hit`] does nothing, and its argument is not evaluated. Counts are of the calling thread.

/// The tables, each with all of its rows (`docs/spec/connection-and-state.md`: 5.7, 6.3 to 6.5, 2.8, 8.4).
pub const TABLES: &[(&str, &[&str])] = &[
    (
        "generations",
        &["0", "10", "20", "30", "34", "35", "36", "37", "40", "41", "50", "51", "60", "70", "71", "80", "90", "100"],
    ),
    (
        "after-sb",
        &[
            "0pri disconnect",
            "0pri discard-younger-primary",
            "0pri discard-older-primary",
            "0pri discard-zero-changes",
            "0pri discard-least-changes",
            "0pri discard-local",
            "0pri discard-remote",
            "1pri disconnect",
            "1pri consensus",
            "1pri violently-as0p",
            "1pri discard-secondary",
            "1pri call-pri-lost-after-sb",
            "2pri disconnect",
            "2pri violently-as0p",
            "2pri call-pri-lost-after-sb",
        ],
    ),
    ("sanitising", &["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"]),
    ("validity", &["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"]),
    ("soft", &["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"]),
    (
        "effects",
        &[
            "ExposeCurrent",
            "ClearCrashedPrimary",
            "Call(PriOnInconDegr)",
            "Call(LocalIoError)",
            "ResendRequests",
            "RestartLocalIo",
            "LiftNoData",
            "LiftFencing",
            "DropPendingGeneration",
            "CreatePendingGeneration",
            "CompleteWithoutPeer",
            "SendSyncUuid",
            "SendUuids",
            "SendSizes",
            "SendState",
            "SendBitmap",
            "MarkGenerationPending",
            "NewGeneration",
            "GenerationWithFirstWrite",
            "WriteBitmap",
            "SetAllBitsThenResync",
        ],
    ),
    ("promotion", &["Request", "FencePeer", "WaitThenRequest", "Done", "Failed"]),
    // Two Primaries that write to the same place (`docs/spec/data-path-and-resync.md` 3): what the node that decides
    // makes of the other one's write, why it is to be repeated, what waits, and what becomes of who loses.
    (
        "conflicts",
        &[
            "superseded Write",
            "superseded Discard",
            "superseded Zeroes",
            "repeat Write",
            "repeat Discard",
            "repeat Zeroes",
            "repeat: in part",
            "repeat: durable",
            "repeat: refused",
            "waits: own disk",
            "waits: number",
            "waits: own writes",
            "waits: the other's",
            "lost: superseded",
            "lost: repeated",
            "lost: given up",
            "lost: marked",
        ],
    ),
    ("attach", &["log Keep", "log Discard", "log Apply", "bitmap Load", "bitmap SetAll", "refused"]),
];

/// This row of this table was decisive.
#[cfg(not(feature = "rows"))]
#[inline(always)]
pub(crate) fn hit(_: &'static str, _: impl FnOnce() -> String) {}

#[cfg(feature = "rows")]
thread_local! {
    static HIT: std::cell::RefCell<std::collections::BTreeMap<String, u64>> = const {
        std::cell::RefCell::new(std::collections::BTreeMap::new())
    };
}

/// This row of this table was decisive.
#[cfg(feature = "rows")]
pub(crate) fn hit(table: &'static str, row: impl FnOnce() -> String) {
    HIT.with_borrow_mut(|hit| *hit.entry(format!("{table} {}", row())).or_default() += 1);
}

/// How often each row was decisive for this thread since this was asked last, by `TABLE ROW`.
#[cfg(feature = "rows")]
#[must_use]
pub fn take_rows() -> std::collections::BTreeMap<String, u64> {
    HIT.take()
}
