//! Health check and stop signal of a runner's process.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

/// Timeout of the health check.
const HEALTH_TIME: Duration = Duration::from_secs(3);

/// Checks the service at this address on the same machine: for container health checks. Blocks for at most a few
/// seconds.
pub fn is_healthy(mut listen: SocketAddr) -> bool {
    if listen.ip().is_unspecified() {
        // The unspecified address is for binding; a client needs a real one.
        listen.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let check = || -> io::Result<bool> {
        let mut socket = TcpStream::connect_timeout(&listen, HEALTH_TIME)?;
        socket.set_read_timeout(Some(HEALTH_TIME))?;
        // HTTP/1.0: the server closes the connection, so no header is needed.
        socket.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
        let mut head = [0; 12];
        socket.read_exact(&mut head)?;
        Ok(head.ends_with(b" 200"))
    };
    check().unwrap_or(false)
}

/// Returns on Ctrl-C or SIGTERM.
pub async fn stop_requested() -> io::Result<()> {
    // Orchestrators send SIGTERM, terminals send SIGINT.
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminated.recv() => Ok(()),
    }
}
