//! Endpoints of connections (`docs/spec/config-and-cli.md` 1.5).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// TCP over IPv4.
    Ipv4,
    /// TCP over IPv6.
    Ipv6,
    /// Super sockets (also written `sci`). Parsed only.
    Ssocks,
    /// InfiniBand sockets direct. Parsed only.
    Sdp,
}

/// An address and port. Two addresses are equal if they mean the same endpoint, however they are written.
#[derive(Clone, Debug)]
pub struct Address {
    /// Kind of socket.
    pub family: Family,
    /// The address.
    pub ip: IpAddr,
    /// The interface of a link-local IPv6 address (behind `%`).
    pub scope: Option<String>,
    /// The port, 1 to 65535.
    pub port: u16,
    /// The address as written, without brackets, with the scope.
    pub(crate) text: String,
}

impl Address {
    /// Reads the text of an address that was found behind the family's word.
    pub(crate) fn parse(family: Family, text: &str, port: u16) -> Option<Address> {
        let (ip, scope) = match family {
            Family::Ipv6 => {
                let (ip, scope) = text.split_once('%').map_or((text, None), |(ip, scope)| (ip, Some(scope)));
                (IpAddr::V6(ip.parse::<Ipv6Addr>().ok()?), scope)
            }
            _ => (IpAddr::V4(text.parse::<Ipv4Addr>().ok()?), None),
        };
        Some(Address { family, ip, scope: scope.map(str::to_owned), port, text: text.to_owned() })
    }

    /// The same address with another port.
    pub(crate) fn with_port(&self, port: u16) -> Address {
        Address { port, ..self.clone() }
    }

    /// For sockets. The scope of a link-local address is not part of it; see [`Address::scope`].
    #[must_use]
    pub fn socket_addr(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }

    /// `10.1.1.1:7790`, `fd00:1::1:7790`.
    pub(crate) fn plain(&self) -> String {
        format!("{}:{}", self.text, self.port)
    }

    /// As an argument of drbdsetup: `ipv4:10.1.1.1:7789`.
    #[must_use]
    pub fn argument(&self) -> String {
        match self.family {
            Family::Ipv6 => format!("ipv6:[{}]:{}", self.text, self.port),
            family => format!("{family}:{}:{}", self.text, self.port),
        }
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Address) -> bool {
        (self.family, self.ip, self.port, &self.scope) == (other.family, other.ip, other.port, &other.scope)
    }
}

impl Eq for Address {}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ipv4 => "ipv4",
            Family::Ipv6 => "ipv6",
            Family::Ssocks => "ssocks",
            Family::Sdp => "sdp",
        })
    }
}

/// As in a configuration: `ipv4 10.1.1.1:7789`, `ipv6 [fd00::1]:7789`.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family {
            Family::Ipv6 => write!(f, "ipv6 [{}]:{}", self.text, self.port),
            family => write!(f, "{family} {}:{}", self.text, self.port),
        }
    }
}
