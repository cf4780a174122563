//! Counts what the agent and the host API send each other: heads, bodies and framing, as they are on the wire.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

#[derive(Default)]
struct Shared {
    upstream: OnceLock<String>,
    requests: AtomicU64,
    answers: AtomicU64,
}

/// Passes every connection on. Gone on drop.
pub(super) struct Relay {
    pub(super) address: String,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

impl Relay {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let shared = Arc::new(Shared::default());
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            _serving: serving,
        })
    }

    /// Where connections go. Until it is known they are closed.
    pub(super) fn lead_to(&self, upstream: &str) {
        let _ = self.shared.upstream.set(upstream.to_owned());
    }

    /// Bytes of requests and of answers since this was asked last.
    pub(super) fn counted(&self) -> (u64, u64) {
        let shared = &self.shared;
        (
            shared.requests.swap(0, Ordering::Relaxed),
            shared.answers.swap(0, Ordering::Relaxed),
        )
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((socket, _)) = accepted {
                connections.spawn(pass(socket, Arc::clone(&shared)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Ends as soon as one of the two has closed.
async fn pass(mut near: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
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
        // Before it is passed on: who has an answer finds it counted.
        count.fetch_add(read as u64, Ordering::Relaxed);
        to.write_all(&buffer[..read]).await?;
    }
}
