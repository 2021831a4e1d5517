//! Telling the service manager when the resource is ready (`Type=notify` of systemd's service units).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says that the disks are attached and the sockets are there. Nothing happens without a service manager that asked
/// for it.
///
/// # Errors
/// If it asked for it and cannot be reached.
pub(crate) fn ready() -> io::Result<()> {
    tell_service_manager("READY=1")
}

/// Tells the service manager something else in its own words (sd_notify(3)). Nothing happens without one.
///
/// # Errors
/// If it cannot be reached.
pub fn tell_service_manager(message: &str) -> io::Result<()> {
    std::env::var_os("NOTIFY_SOCKET").map_or(Ok(()), |place| send(&place, message.as_bytes()))
}

fn send(place: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(place)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrives_by_path_and_by_abstract_name() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let name = format!("urbd-notify-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        let sockets = [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (UnixDatagram::bind_addr(&abstract_address).unwrap(), format!("@{name}").into()),
        ];
        for (socket, place) in sockets {
            send(&place, b"READY=1").unwrap();
            let mut message = [0; 16];
            let n = socket.recv(&mut message).unwrap();
            assert_eq!(&message[..n], b"READY=1");
        }
        assert!(send(OsStr::new("/nonexistent/socket"), b"READY=1").is_err());
    }
}
