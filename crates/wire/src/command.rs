//! The command table: which packets exist, on which stream, in which dialect, with which lengths.

use crate::dialect::{Dialect, Features};
use std::fmt;

/// One of the two TCP streams of a connection (`docs/spec/wire-protocol.md` 1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Socket {
    /// Bulk data and everything ordered with it ("D").
    Data,
    /// Acknowledgements and pings ("M", DRBD's meta socket).
    Control,
}

macro_rules! commands {
    ($($name:ident = $number:literal, $wire_name:literal;)*) => {
        /// A packet's command (`docs/spec/wire-protocol.md` 4), named as there without `P_`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Command {
            $(#[doc = $wire_name] $name = $number,)*
        }

        impl Command {
            /// Every command.
            pub const ALL: &'static [Command] = &[$(Command::$name),*];

            /// The command with this number.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Command> {
                match number {
                    $($number => Some(Command::$name),)*
                    _ => None,
                }
            }

            /// The name in DRBD's documentation, such as `P_DATA`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Command::$name => $wire_name,)*
                }
            }
        }
    };
}

commands! {
    Data = 0x00, "P_DATA";
    DataReply = 0x01, "P_DATA_REPLY";
    RsDataReply = 0x02, "P_RS_DATA_REPLY";
    Barrier = 0x03, "P_BARRIER";
    Bitmap = 0x04, "P_BITMAP";
    UnplugRemote = 0x07, "P_UNPLUG_REMOTE";
    DataRequest = 0x08, "P_DATA_REQUEST";
    RsDataRequest = 0x09, "P_RS_DATA_REQUEST";
    SyncParam = 0x0a, "P_SYNC_PARAM";
    Protocol = 0x0b, "P_PROTOCOL";
    Uuids = 0x0c, "P_UUIDS";
    Sizes = 0x0d, "P_SIZES";
    State = 0x0e, "P_STATE";
    SyncUuid = 0x0f, "P_SYNC_UUID";
    AuthChallenge = 0x10, "P_AUTH_CHALLENGE";
    AuthResponse = 0x11, "P_AUTH_RESPONSE";
    StateChgReq = 0x12, "P_STATE_CHG_REQ";
    Ping = 0x13, "P_PING";
    PingAck = 0x14, "P_PING_ACK";
    RecvAck = 0x15, "P_RECV_ACK";
    WriteAck = 0x16, "P_WRITE_ACK";
    RsWriteAck = 0x17, "P_RS_WRITE_ACK";
    Superseded = 0x18, "P_SUPERSEDED";
    NegAck = 0x19, "P_NEG_ACK";
    NegDreply = 0x1a, "P_NEG_DREPLY";
    NegRsDreply = 0x1b, "P_NEG_RS_DREPLY";
    BarrierAck = 0x1c, "P_BARRIER_ACK";
    StateChgReply = 0x1d, "P_STATE_CHG_REPLY";
    OvRequest = 0x1e, "P_OV_REQUEST";
    OvReply = 0x1f, "P_OV_REPLY";
    OvResult = 0x20, "P_OV_RESULT";
    CsumRsRequest = 0x21, "P_CSUM_RS_REQUEST";
    RsIsInSync = 0x22, "P_RS_IS_IN_SYNC";
    SyncParam89 = 0x23, "P_SYNC_PARAM89";
    CompressedBitmap = 0x24, "P_COMPRESSED_BITMAP";
    DelayProbe = 0x27, "P_DELAY_PROBE";
    OutOfSync = 0x28, "P_OUT_OF_SYNC";
    RsCancel = 0x29, "P_RS_CANCEL";
    ConnStChgReq = 0x2a, "P_CONN_ST_CHG_REQ";
    ConnStChgReply = 0x2b, "P_CONN_ST_CHG_REPLY";
    RetryWrite = 0x2c, "P_RETRY_WRITE";
    ProtocolUpdate = 0x2d, "P_PROTOCOL_UPDATE";
    TwopcPrepare = 0x2e, "P_TWOPC_PREPARE";
    TwopcAbort = 0x2f, "P_TWOPC_ABORT";
    Dagtag = 0x30, "P_DAGTAG";
    Trim = 0x31, "P_TRIM";
    RsThinReq = 0x32, "P_RS_THIN_REQ";
    RsDeallocated = 0x33, "P_RS_DEALLOCATED";
    TwopcPrepRsz = 0x35, "P_TWOPC_PREP_RSZ";
    Zeroes = 0x36, "P_ZEROES";
    PeerAck = 0x40, "P_PEER_ACK";
    PeersInSync = 0x41, "P_PEERS_IN_SYNC";
    Uuids110 = 0x42, "P_UUIDS110";
    PeerDagtag = 0x43, "P_PEER_DAGTAG";
    CurrentUuid = 0x44, "P_CURRENT_UUID";
    TwopcYes = 0x45, "P_TWOPC_YES";
    TwopcNo = 0x46, "P_TWOPC_NO";
    TwopcCommit = 0x47, "P_TWOPC_COMMIT";
    TwopcRetry = 0x48, "P_TWOPC_RETRY";
    ConfirmStable = 0x49, "P_CONFIRM_STABLE";
    RsCancelAhead = 0x4a, "P_RS_CANCEL_AHEAD";
    Disconnect = 0x4b, "P_DISCONNECT";
    RsDagtagReq = 0x4c, "P_RS_DAGTAG_REQ";
    RsCsumDagtagReq = 0x4d, "P_RS_CSUM_DAGTAG_REQ";
    RsThinDagtagReq = 0x4e, "P_RS_THIN_DAGTAG_REQ";
    OvDagtagReq = 0x4f, "P_OV_DAGTAG_REQ";
    OvDagtagReply = 0x50, "P_OV_DAGTAG_REPLY";
    WriteAckInSync = 0x51, "P_WRITE_ACK_IN_SYNC";
    RsNegAck = 0x52, "P_RS_NEG_ACK";
    OvResultId = 0x53, "P_OV_RESULT_ID";
    RsDeallocatedId = 0x54, "P_RS_DEALLOCATED_ID";
    FlushRequests = 0x55, "P_FLUSH_REQUESTS";
    FlushForward = 0x56, "P_FLUSH_FORWARD";
    FlushRequestsAck = 0x57, "P_FLUSH_REQUESTS_ACK";
    EnableReplicationNext = 0x58, "P_ENABLE_REPLICATION_NEXT";
    EnableReplication = 0x59, "P_ENABLE_REPLICATION";
    InitialMeta = 0xfff1, "P_INITIAL_META";
    InitialData = 0xfff2, "P_INITIAL_DATA";
    ConnectionFeatures = 0xfffe, "P_CONNECTION_FEATURES";
}

impl Command {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// Does the running protocol (after the features packets) allow this packet on `socket`?
    #[must_use]
    pub const fn is_on(self, socket: Socket) -> bool {
        match self {
            Command::DelayProbe => true,
            Command::InitialData | Command::InitialMeta | Command::ConnectionFeatures => false,
            _ => matches!((self.is_control(), socket), (true, Socket::Control) | (false, Socket::Data)),
        }
    }

    const fn is_control(self) -> bool {
        use Command as C;
        matches!(
            self,
            C::Ping
                | C::PingAck
                | C::RecvAck
                | C::WriteAck
                | C::RsWriteAck
                | C::Superseded
                | C::NegAck
                | C::NegDreply
                | C::NegRsDreply
                | C::BarrierAck
                | C::StateChgReply
                | C::OvResult
                | C::RsIsInSync
                | C::RsCancel
                | C::ConnStChgReply
                | C::RetryWrite
                | C::PeerAck
                | C::PeersInSync
                | C::TwopcYes
                | C::TwopcNo
                | C::TwopcRetry
                | C::ConfirmStable
                | C::RsCancelAhead
                | C::WriteAckInSync
                | C::RsNegAck
                | C::OvResultId
                | C::FlushForward
        )
    }

    /// Does the volume field of the header mean nothing (`docs/spec/wire-protocol.md` 2.3)?
    #[must_use]
    pub const fn is_connection_level(self) -> bool {
        use Command as C;
        matches!(
            self,
            C::AuthChallenge
                | C::AuthResponse
                | C::Protocol
                | C::ProtocolUpdate
                | C::Ping
                | C::PingAck
                | C::Barrier
                | C::BarrierAck
                | C::ConnStChgReq
                | C::ConnStChgReply
                | C::Dagtag
                | C::PeerDagtag
                | C::PeerAck
                | C::ConfirmStable
                | C::Disconnect
                | C::FlushRequests
                | C::FlushForward
                | C::FlushRequestsAck
                | C::DelayProbe
                | C::InitialData
                | C::InitialMeta
                | C::ConnectionFeatures
        )
    }

    /// May a peer that speaks `dialect` send this packet? P_TRIM is taken without its feature, because 8.4 nodes
    /// send it from version 95 on whatever was agreed. P_ENABLE_REPLICATION is taken from DRBD 9 that speaks an old
    /// version, and means nothing then (`docs/spec/wire-protocol.md` 16.1).
    #[must_use]
    pub const fn is_accepted(self, dialect: &Dialect) -> bool {
        self.is_in(dialect) || (!dialect.version.is_9() && self.is_about_replication())
    }

    const fn is_about_replication(self) -> bool {
        matches!(self, Command::EnableReplicationNext | Command::EnableReplication)
    }

    /// Does the dialect have it?
    const fn is_in(self, dialect: &Dialect) -> bool {
        let (since, until) = self.versions();
        let version = dialect.version.number();
        let feature = match self {
            Command::RsThinReq | Command::RsDeallocated | Command::RsDeallocatedId => Features::THIN_RESYNC,
            Command::RsDagtagReq | Command::RsCsumDagtagReq | Command::OvDagtagReq | Command::OvDagtagReply => {
                Features::RESYNC_DAGTAG
            }
            Command::RsThinDagtagReq => Features(Features::RESYNC_DAGTAG.0 | Features::THIN_RESYNC.0),
            Command::EnableReplicationNext | Command::EnableReplication => Features::RESYNC_WITHOUT_REPLICATION,
            Command::Zeroes => Features::WRITE_ZEROES,
            _ => Features::NONE,
        };
        since <= version && version <= until && dialect.has(feature)
    }

    /// May this node send this packet in `dialect`?
    #[must_use]
    pub const fn is_sendable(self, dialect: &Dialect) -> bool {
        let trim_ok = !matches!(self, Command::Trim) || dialect.has(Features::TRIM);
        self.is_in(dialect) && trim_ok && !matches!(self, Command::DelayProbe)
    }

    const fn versions(self) -> (u32, u32) {
        use Command as C;
        match self {
            C::SyncParam => (86, 88),
            C::OvRequest | C::OvReply => (88, u32::MAX),
            C::OvResult => (88, 121),
            C::SyncParam89 | C::CsumRsRequest | C::RsIsInSync => (89, u32::MAX),
            C::CompressedBitmap => (90, u32::MAX),
            C::Trim | C::RsThinReq | C::Zeroes => (95, u32::MAX),
            C::RsDeallocated => (95, 121),
            C::OutOfSync | C::RsCancel => (96, u32::MAX),
            C::ProtocolUpdate => (100, u32::MAX),
            C::Uuids | C::SyncUuid | C::StateChgReq | C::StateChgReply => (86, 109),
            C::ConnStChgReq | C::ConnStChgReply => (100, 109),
            C::Superseded => (86, 101),
            C::RetryWrite => (100, 101),
            C::TwopcPrepare | C::TwopcAbort | C::TwopcCommit | C::TwopcYes | C::TwopcNo | C::TwopcRetry => {
                (110, u32::MAX)
            }
            C::Dagtag | C::PeerAck | C::PeersInSync | C::Uuids110 | C::PeerDagtag | C::CurrentUuid => (110, u32::MAX),
            C::TwopcPrepRsz => (112, u32::MAX),
            C::ConfirmStable => (114, u32::MAX),
            C::RsCancelAhead => (115, u32::MAX),
            C::Disconnect => (118, u32::MAX),
            C::RsDagtagReq | C::RsCsumDagtagReq | C::RsThinDagtagReq => (118, u32::MAX),
            C::OvDagtagReq | C::OvDagtagReply => (118, u32::MAX),
            C::WriteAckInSync | C::RsNegAck | C::OvResultId | C::RsDeallocatedId => (122, u32::MAX),
            C::FlushRequests | C::FlushForward | C::FlushRequestsAck => (123, u32::MAX),
            C::EnableReplicationNext | C::EnableReplication => (118, u32::MAX),
            _ => (86, u32::MAX),
        }
    }

    /// Smallest and largest value of the length field, without block payload and integrity digest. Commands with
    /// block payload are told by [`Command::carries_block`].
    pub(crate) const fn lengths(self, dialect: &Dialect) -> (u32, u32) {
        use Command as C;
        let version = dialect.version.number();
        let variable_max = (crate::MAX_PACKET - dialect.version.header_len()) as u32;
        match self {
            C::Data | C::DataReply | C::RsDataReply => (24, 24),
            C::DataRequest | C::RsDataRequest | C::RsThinReq | C::OvRequest => (24, 24),
            C::CsumRsRequest | C::OvReply => (24, 24 + 64),
            C::RecvAck | C::WriteAck | C::RsWriteAck | C::Superseded | C::RetryWrite => (24, 24),
            C::NegAck | C::NegDreply | C::NegRsDreply | C::RsIsInSync | C::RsCancel | C::OvResult => (24, 24),
            C::Trim | C::Zeroes => (28, 28),
            C::OutOfSync | C::RsDeallocated => (16, 16),
            C::Barrier | C::BarrierAck | C::StateChgReq | C::ConnStChgReq | C::SyncUuid | C::DelayProbe => (8, 8),
            C::State | C::StateChgReply | C::ConnStChgReply => (4, 4),
            C::Bitmap => (0, variable_max),
            C::CompressedBitmap => (2, variable_max),
            C::UnplugRemote | C::Ping | C::PingAck | C::InitialMeta | C::InitialData => (0, 0),
            C::SyncParam if version >= 88 => (5, 68),
            C::SyncParam => (4, 4),
            C::SyncParam89 if version >= 95 => (148, 148),
            C::SyncParam89 => (132, 132),
            C::Protocol | C::ProtocolUpdate if version >= 87 => (25, 24 + 64),
            C::Protocol | C::ProtocolUpdate => (24, 24),
            C::Uuids => (48, 48),
            C::Sizes if dialect.has(Features::WRITE_SAME) => (56, 56),
            C::Sizes => (32, 32),
            C::AuthChallenge => (64, 128),
            C::AuthResponse => (1, 64),
            C::ConnectionFeatures => (72, 72),
            C::TwopcPrepare | C::TwopcPrepRsz | C::TwopcCommit | C::TwopcAbort => (36, 36),
            C::TwopcYes | C::TwopcNo | C::TwopcRetry | C::OvResultId => (32, 32),
            C::RsDagtagReq | C::RsThinDagtagReq | C::OvDagtagReq => (32, 32),
            C::RsCsumDagtagReq | C::OvDagtagReply => (32, 32 + 64),
            C::RsCancelAhead | C::WriteAckInSync | C::RsNegAck | C::RsDeallocatedId => (24, 24),
            C::PeersInSync | C::ConfirmStable => (24, 24),
            C::PeerAck | C::CurrentUuid => (16, 16),
            C::PeerDagtag | C::FlushForward | C::FlushRequestsAck => (12, 12),
            C::Dagtag | C::FlushRequests => (8, 8),
            C::EnableReplicationNext | C::EnableReplication => (4, 4),
            C::Disconnect => (0, 0),
            C::Uuids110 => (40, variable_max),
        }
    }

    /// Does block payload (and the integrity digest, if configured) follow the fixed part?
    #[must_use]
    pub const fn carries_block(self) -> bool {
        matches!(self, Command::Data | Command::DataReply | Command::RsDataReply)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
