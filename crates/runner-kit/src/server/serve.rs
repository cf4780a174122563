//! The accept loop of a runner.

use std::io;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Connections at one time; one more waits to be accepted.
const CONNECTIONS: usize = 4096;
/// How long the head of a request may take. It also ends idle connections, for hyper waits for the next head from the
/// end of the answer before it: it must be longer than gateways keep connections that they do not use, or a request
/// meets the end of its connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long live runs may take to hear that we stop.
const GRACE: Duration = Duration::from_secs(5);
/// After a failed accept: the process is out of file descriptors, and spinning helps nobody.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The parent of every run's token: fires when the server stops. A router without a server never does.
#[derive(Clone, Debug, Default)]
pub(super) struct Stop(CancellationToken);

impl Stop {
    pub(super) fn child(&self) -> CancellationToken {
        self.0.child_token()
    }
}

/// Serves until `stop` fires, then fires the tokens of the live runs and gives them 5 s to end.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    let router = router.layer(Extension(Stop(stop.clone())));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! { biased;
            () = stop.cancelled() => break,
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
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, ended).await.is_err() {
        tracing::warn!("live runs did not end in time, their connections are closed");
    }
    Ok(())
}

async fn serve_connection(socket: TcpStream, router: Router, stop: CancellationToken) {
    // Deltas are small and must not wait for each other.
    let _ = socket.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = %error, "a connection ended early");
    }
}
