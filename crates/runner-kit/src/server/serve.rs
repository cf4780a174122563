//! Accept loop of a runner.

use std::io;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Limit of connections; further ones wait in the accept queue.
const CONNECTIONS: usize = 4096;
/// Timeout of a request head. It also closes idle connections, because hyper awaits the next head from the end
/// of the last response. It must exceed the idle timeout of gateways; otherwise a request may meet a closing
/// connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Grace period of live runs after the stop signal.
const GRACE: Duration = Duration::from_secs(5);
/// Buffer of a connection: the largest request head, and the unread part of a body.
const BUFFER_BYTES: usize = 32 * 1024;
/// Pause after a failed accept: the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Stop of the server, and the tasks that it waits for. Never fires without a server.
#[derive(Clone, Debug, Default)]
pub(super) struct ShutdownSignal {
    /// Parent of every run's token.
    pub(super) stop: CancellationToken,
    /// Resumable runs.
    pub(super) runs: TaskTracker,
}

/// Serves until `stop` fires, then fires the tokens of live runs and waits up to 5 s for them.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    let runs = TaskTracker::new();
    let signal = ShutdownSignal {
        stop: stop.clone(),
        runs: runs.clone(),
    };
    let router = router.layer(Extension(signal));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! { biased;
            // First and biased: a flood of connections must not delay the stop.
            () = stop.cancelled() => break,
            // Frees the results of ended connections, and with them the slots of new ones.
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((socket, _)) => {
                    connections.spawn(serve_connection(socket, router.clone(), stop.clone()));
                }
                Err(error) => {
                    tracing::warn!(error = %error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    // New connections are refused at once instead of waiting in the accept queue.
    drop(listener);
    let ended = async {
        while connections.join_next().await.is_some() {}
        // Runs without a connection end their work, too.
        runs.close();
        runs.wait().await;
    };
    if tokio::time::timeout(GRACE, ended).await.is_err() {
        tracing::warn!("live runs did not end in time, their connections are closed");
    }
    Ok(())
}

async fn serve_connection(socket: TcpStream, router: Router, stop: CancellationToken) {
    // Small deltas must not wait for Nagle's algorithm.
    let _ = socket.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            // Responses in progress end; idle connections close.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = %error, "a connection ended early");
    }
}
