//! The frame of a runner's process: its health from outside, and the signal that stops it.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

/// The longest time that a healthy service takes to answer.
const HEALTH_TIME: Duration = Duration::from_secs(3);

/// Asks the service that listens on that address, from the same machine. For health checks of containers. Blocks for
/// some seconds at most.
pub fn is_healthy(mut listen: SocketAddr) -> bool {
    if listen.ip().is_unspecified() {
        listen.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let asked = || -> io::Result<bool> {
        let mut socket = TcpStream::connect_timeout(&listen, HEALTH_TIME)?;
        socket.set_read_timeout(Some(HEALTH_TIME))?;
        socket.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
        let mut head = [0; 12];
        socket.read_exact(&mut head)?;
        Ok(head.ends_with(b" 200"))
    };
    asked().unwrap_or(false)
}

/// Returns on Ctrl-C, and on the signal that ends a service.
pub async fn asked_to_stop() -> io::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminated.recv() => Ok(()),
    }
}
