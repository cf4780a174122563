//! A TCP relay that counts bytes between agent and host API: heads, bodies and framing as on the wire.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

#[derive(Default)]
struct RelayState {
    upstream: OnceLock<String>,
    requests: AtomicU64,
    answers: AtomicU64,
}

/// Forwards every connection to the upstream. It stops on drop.
pub(super) struct CountingRelay {
    pub(super) address: String,
    shared: Arc<RelayState>,
    _serving: JoinSet<()>,
}

impl CountingRelay {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let shared = Arc::new(RelayState::default());
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            _serving: serving,
        })
    }

    /// Sets the upstream address. Until then, the relay closes new connections.
    pub(super) fn set_upstream(&self, upstream: &str) {
        let _ = self.shared.upstream.set(upstream.to_owned());
    }

    /// Takes the bytes of requests and of responses since the last call.
    pub(super) fn counted(&self) -> (u64, u64) {
        let shared = &self.shared;
        (
            shared.requests.swap(0, Ordering::Relaxed),
            shared.answers.swap(0, Ordering::Relaxed),
        )
    }
}

async fn serve(listener: TcpListener, shared: Arc<RelayState>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((socket, _)) = accepted {
                connections.spawn(forward(socket, Arc::clone(&shared)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Forwards one connection until either side closes.
async fn forward(mut near: TcpStream, shared: Arc<RelayState>) -> io::Result<()> {
    let upstream = shared.upstream.get().ok_or(io::ErrorKind::NotConnected)?;
    let mut far = TcpStream::connect(upstream).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (mut from_near, mut to_near) = near.split();
    let (mut from_far, mut to_far) = far.split();
    tokio::select! {
        ended = pump(&mut from_near, &mut to_far, &shared.requests) => ended,
        ended = pump(&mut from_far, &mut to_near, &shared.answers) => ended,
    }
}

async fn pump(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    count: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        // Count before the write, so that a response is counted when its reader has it.
        count.fetch_add(read as u64, Ordering::Relaxed);
        to.write_all(&buffer[..read]).await?;
    }
}
