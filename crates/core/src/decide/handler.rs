//! The events for which a program of the administrator is called (`docs/spec/connection-and-state.md` 8.6).

macro_rules! handlers {
    ($($variant:ident $name:literal)*) => {
        /// A handler's event.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Handler {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Handler {
            /// The event's name: the program's first argument.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Handler::$variant => $name,)* }
            }
        }
    };
}

handlers! {
    PriOnInconDegr "pri-on-incon-degr"
    PriLostAfterSb "pri-lost-after-sb"
    PriLost "pri-lost"
    FencePeer "fence-peer"
    UnfencePeer "unfence-peer"
    LocalIoError "local-io-error"
    InitialSplitBrain "initial-split-brain"
    SplitBrain "split-brain"
    BeforeResyncTarget "before-resync-target"
    BeforeResyncSource "before-resync-source"
    AfterResyncTarget "after-resync-target"
    OutOfSync "out-of-sync"
    QuorumLost "quorum-lost"
}

impl std::fmt::Display for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// As its name, in quotes.
impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.name().fmt(f)
    }
}

impl Handler {
    /// Those that the core waits for, if a program is configured for them: what they say decides how it goes on.
    pub const WAITED_FOR: [Handler; 3] = [Handler::FencePeer, Handler::BeforeResyncTarget, Handler::BeforeResyncSource];

    /// Must the connection be dropped because of this exit code? Only the before-resync handlers can say so.
    #[must_use]
    pub const fn drops_connection(self, exit_code: i32) -> bool {
        match self {
            Handler::BeforeResyncTarget => exit_code > 0,
            Handler::BeforeResyncSource => exit_code > 0 && exit_code != 3,
            _ => false,
        }
    }
}
