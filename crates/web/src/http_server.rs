//! HTTP/1.1 server with limits per connection: size and time of request headers, write stalls, and connection
//! counts.
//!
//! `axum::serve` has no timeout for incomplete headers. It also lets a client that never reads occupy megabytes.

mod files;
mod peers;
mod stall;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use files::affordable_connections;
use telemetry::metrics;

use peers::{ConnectionSlot, Peers};

pub use peers::network_of;
use stall::StallGuard;

/// Kernel send buffer of a connection, in bytes.
const SEND_BUFFER_BYTES: u32 = 256 * 1024;
const BACKLOG: u32 = 1024;
/// Limit of request line and headers, in bytes. Beyond it the status is 431.
const MAX_HEAD_BYTES: usize = 32 * 1024;
const BUFFER_BYTES: usize = 64 * 1024;
/// Backoff after a failed accept. The usual cause is a lack of file descriptors, which closing connections
/// release.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// Minimum interval between warnings about failed accepts.
const WARNING_INTERVAL: Duration = Duration::from_mins(1);

/// Limits of [`serve`].
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Maximum number of connections. More wait in the kernel's backlog.
    pub max_connections: usize,
    /// Maximum number of connections per address; more are closed. 0 is unlimited.
    pub max_per_peer: usize,
    /// True: loopback connections are exempt from `max_per_peer`.
    pub exempt_loopback: bool,
    /// Addresses exempt from `max_per_peer`, such as proxies.
    pub exempt_addresses: Arc<[IpAddr]>,
    /// Timeout for the headers of a request, from the start of the connection or the previous response.
    pub header_timeout: Duration,
    /// Timeout for a write without progress.
    pub write_timeout: Duration,
    /// Time for responses in flight after a shutdown begins.
    pub drain: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            max_per_peer: 0,
            exempt_loopback: false,
            exempt_addresses: Arc::new([]),
            header_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(30),
        }
    }
}

impl ServerOptions {
    /// Maximum number of connections for an address; 0 is unlimited.
    fn max_connections_of(&self, peer: IpAddr) -> usize {
        // On dual-stack sockets, IPv4 addresses are mapped into IPv6.
        let peer = peer.to_canonical();
        let is_spared =
            self.exempt_loopback && peer.is_loopback() || self.exempt_addresses.contains(&peer);
        if is_spared { 0 } else { self.max_per_peer }
    }
}

/// Listens on `addr` with limited send buffers, which accepted connections inherit. Must run in a Tokio runtime.
pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    // Connections in TIME_WAIT must not prevent a restart.
    socket.set_reuseaddr(true)?;
    // Before `listen`: accepted sockets inherit the size.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Serves `app` until `stop`. Then closes idle connections, gives responses in flight `options.drain` to finish,
/// and drops the rest. Returns when no connection is left.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    options: ServerOptions,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    accept_until_stop(listener, app, &options, &stop, &mut connections).await;
    drain(connections, options.drain).await;
}

async fn accept_until_stop(
    listener: TcpListener,
    app: Router,
    options: &ServerOptions,
    stop: &CancellationToken,
    connections: &mut JoinSet<()>,
) {
    let peers = Peers::default();
    let mut warned_at: Option<Instant> = None;
    loop {
        let has_capacity = connections.len() < options.max_connections;
        // In order: a stop must win over new connections.
        tokio::select! { biased;
            () = stop.cancelled() => return,
            Some(ended) = connections.join_next() => log_panic(ended),
            // At the limit, connections wait in the kernel's backlog.
            accepted = listener.accept(), if has_capacity => match accepted {
                Ok((stream, peer)) => {
                    let slot = match peers.enter(peer.ip(), options.max_connections_of(peer.ip())) {
                        Ok(slot) => slot,
                        Err(limit) => {
                            tracing::debug!(%peer, "{}", limit.refusal.message);
                            // Dropped without a response: reading the request would cost what the limit protects.
                            continue;
                        }
                    };
                    let app = PeerService::new(app.clone(), peer);
                    let connection =
                        serve_connection(stream, slot, app, options.clone(), stop.clone());
                    connections.spawn(connection);
                }
                Err(error) if is_peer_error(&error) => {}
                Err(error) => {
                    if warned_at.is_none_or(|warned_at| warned_at.elapsed() >= WARNING_INTERVAL) {
                        warned_at = Some(Instant::now());
                        tracing::warn!(%error, "connections cannot be accepted, retrying");
                    }
                    back_off(stop).await;
                }
            },
        }
    }
}

/// The app of one connection. It adds the peer address to each request.
struct PeerService {
    app: TowerToHyperService<Router>,
    peer: SocketAddr,
}

impl PeerService {
    fn new(app: Router, peer: SocketAddr) -> Self {
        let app = TowerToHyperService::new(app);
        Self { app, peer }
    }
}

impl Service<hyper::Request<Incoming>> for PeerService {
    type Response = <TowerToHyperService<Router> as Service<hyper::Request<Incoming>>>::Response;
    type Error = <TowerToHyperService<Router> as Service<hyper::Request<Incoming>>>::Error;
    type Future = <TowerToHyperService<Router> as Service<hyper::Request<Incoming>>>::Future;

    fn call(&self, mut request: hyper::Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(ConnectInfo(self.peer));
        self.app.call(request)
    }
}

async fn serve_connection(
    stream: TcpStream,
    _slot: ConnectionSlot,
    app: PeerService,
    options: ServerOptions,
    stop: CancellationToken,
) {
    // Without it, small frames of a stream wait for the peer's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection was gone before it was served");
        return;
    }
    let io = TokioIo::new(StallGuard::new(stream, options.write_timeout));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(io, app);
    let mut connection = pin!(connection);
    let served = tokio::select! { biased;
        // First: a response that is complete needs no shutdown.
        served = connection.as_mut() => served,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// The peer caused the error, so accept the next connection at once.
fn is_peer_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

async fn back_off(stop: &CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = sleep(ACCEPT_BACKOFF) => {}
    }
}

async fn drain(mut connections: JoinSet<()>, patience: Duration) {
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            log_panic(ended);
        }
    };
    if timeout(patience, all_ended).await.is_err() {
        let count = connections.len();
        tracing::warn!(
            count,
            "{count} connections did not end in time and are dropped"
        );
        // Waits for the aborted tasks, so that no handler outlives the server.
        connections.shutdown().await;
    }
}

fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "the task of a connection panicked");
        metrics::panicked(metrics::PanickedTask::Connection);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::Future;

    use axum::body::Body;
    use axum::routing::get;
    use bytes::Bytes;
    use futures_util::stream;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc;

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(20);

    fn options() -> ServerOptions {
        ServerOptions {
            max_connections: 100,
            max_per_peer: 0,
            exempt_loopback: false,
            exempt_addresses: Arc::new([]),
            header_timeout: LONG,
            write_timeout: LONG,
            drain: LONG,
        }
    }

    struct BoundedTestServer {
        address: SocketAddr,
        stop: CancellationToken,
        tasks: JoinSet<()>,
    }

    impl BoundedTestServer {
        fn start(app: Router, options: ServerOptions) -> Self {
            let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = listener.local_addr().unwrap();
            let stop = CancellationToken::new();
            let mut tasks = JoinSet::new();
            tasks.spawn(serve(listener, app, options, stop.clone()));
            Self {
                address,
                stop,
                tasks,
            }
        }

        async fn connect(&self, head: &str) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            stream
        }

        async fn stopped(mut self) {
            self.stop.cancel();
            self.tasks.join_next().await.unwrap().unwrap();
        }
    }

    fn hello() -> Router {
        Router::new().route("/", get(|| async { "hello" }))
    }

    /// Streams the frames received from `frames`.
    fn streaming(frames: mpsc::Receiver<Bytes>) -> Router {
        let frames = std::sync::Arc::new(tokio::sync::Mutex::new(Some(frames)));
        Router::new().route(
            "/",
            get(move || async move {
                let frames = frames.lock().await.take().unwrap();
                Body::from_stream(stream::unfold(frames, |mut frames| async move {
                    let frame = frames.recv().await?;
                    Some((Ok::<_, Infallible>(frame), frames))
                }))
            }),
        )
    }

    async fn in_time<T>(future: impl Future<Output = T>) -> T {
        timeout(LONG, future).await.expect("it does not hang")
    }

    async fn read_to_end(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        // A connection reset counts as an end.
        let _ = in_time(stream.read_to_end(&mut bytes)).await;
        String::from_utf8(bytes).unwrap()
    }

    async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
        let (mut text, mut buffer) = (String::new(), [0; 1024]);
        while !text.contains(wanted) {
            let count = in_time(stream.read(&mut buffer)).await.unwrap();
            assert!(count > 0, "the stream ended after {text:?}");
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
        text
    }

    #[tokio::test]
    async fn keeps_connection_alive_after_response() {
        let server = BoundedTestServer::start(hello(), options());
        let mut client = server.connect("").await;
        for _ in 0..2 {
            client
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .await
                .unwrap();
            assert!(
                read_until(&mut client, "hello")
                    .await
                    .starts_with("HTTP/1.1 200 OK")
            );
        }
        in_time(server.stopped()).await;
    }

    #[tokio::test]
    async fn closes_connections_with_incomplete_or_no_headers() {
        let server = BoundedTestServer::start(
            hello(),
            ServerOptions {
                header_timeout: SHORT,
                ..options()
            },
        );
        for head in ["GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ", ""] {
            let started = Instant::now();
            let mut client = server.connect(head).await;
            assert!(
                !read_to_end(&mut client).await.contains("200 OK"),
                "{head:?}"
            );
            assert!(started.elapsed() >= SHORT);
        }
        in_time(server.stopped()).await;
    }

    #[tokio::test]
    async fn rejects_oversized_headers() {
        let server = BoundedTestServer::start(hello(), options());
        let head = format!(
            "GET / HTTP/1.1\r\nX-Large: {}\r\n\r\n",
            "a".repeat(MAX_HEAD_BYTES)
        );
        let mut client = server.connect(&head).await;
        assert!(
            read_until(&mut client, "\r\n")
                .await
                .starts_with("HTTP/1.1 431")
        );
        in_time(server.stopped()).await;
    }

    #[tokio::test]
    async fn drops_clients_that_never_read() {
        let (frames, inbox) = mpsc::channel(1);
        let server = BoundedTestServer::start(
            streaming(inbox),
            ServerOptions {
                write_timeout: SHORT,
                ..options()
            },
        );
        let client = server.connect("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;

        let frame = Bytes::from(vec![b'x'; 64 * 1024]);
        let mut sent = 0;
        // Sending fails after the response and its receiver are dropped.
        while in_time(frames.send(frame.clone())).await.is_ok() {
            sent += frame.len();
        }
        assert!(sent < 32 * 1024 * 1024, "{sent} bytes were held for it");
        drop(client);
        in_time(server.stopped()).await;
    }

    #[tokio::test]
    async fn idle_streams_outlive_write_timeout() {
        let (frames, inbox) = mpsc::channel(1);
        let server = BoundedTestServer::start(
            streaming(inbox),
            ServerOptions {
                write_timeout: SHORT,
                ..options()
            },
        );
        let mut client = server.connect("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        frames.send(Bytes::from_static(b"first")).await.unwrap();
        read_until(&mut client, "first").await;

        let mut byte = [0];
        assert!(
            timeout(SHORT * 3, client.read(&mut byte)).await.is_err(),
            "nothing ends it"
        );
        frames.send(Bytes::from_static(b"second")).await.unwrap();
        read_until(&mut client, "second").await;
        drop(frames);
        in_time(server.stopped()).await;
    }

    #[tokio::test]
    async fn shutdown_finishes_responses_and_accepts_no_connections() {
        let (frames, inbox) = mpsc::channel(1);
        let mut server = BoundedTestServer::start(streaming(inbox), options());
        let mut idle = server.connect("").await;
        let mut client = server.connect("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        frames.send(Bytes::from_static(b"first")).await.unwrap();
        read_until(&mut client, "first").await;

        server.stop.cancel();
        assert_eq!(read_to_end(&mut idle).await, "");
        assert!(in_time(TcpStream::connect(server.address)).await.is_err());
        frames.send(Bytes::from_static(b"last")).await.unwrap();
        drop(frames);
        assert!(read_to_end(&mut client).await.contains("last"));
        in_time(server.tasks.join_next()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn drain_timeout_drops_stalled_connections() {
        let (_frames, inbox) = mpsc::channel(1);
        let server = BoundedTestServer::start(
            streaming(inbox),
            ServerOptions {
                drain: SHORT,
                ..options()
            },
        );
        let mut stalled = server.connect("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        read_until(&mut stalled, "\r\n\r\n").await;
        let _half = server.connect("GET / HT").await;

        let started = Instant::now();
        in_time(server.stopped()).await;
        assert!(started.elapsed() < SHORT + Duration::from_secs(5));
        read_to_end(&mut stalled).await;
    }

    #[tokio::test]
    async fn excess_connections_wait_for_a_free_slot() {
        let server = BoundedTestServer::start(
            hello(),
            ServerOptions {
                max_connections: 1,
                ..options()
            },
        );
        let mut first = server.connect("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        read_until(&mut first, "hello").await;

        let mut second = server.connect("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut byte = [0];
        assert!(timeout(SHORT, second.read(&mut byte)).await.is_err());
        drop(first);
        read_until(&mut second, "hello").await;
        in_time(server.stopped()).await;
    }

    #[test]
    fn limits_peers_except_proxies_and_loopback() {
        let [here, here_too, proxy, other] =
            ["127.0.0.1", "::ffff:127.0.0.2", "10.0.0.5", "10.0.0.6"]
                .map(|text| text.parse::<IpAddr>().unwrap());
        let bounded = ServerOptions {
            max_per_peer: 7,
            exempt_loopback: true,
            exempt_addresses: Arc::new([proxy]),
            ..options()
        };
        assert_eq!(
            [here, here_too, proxy, other].map(|ip| bounded.max_connections_of(ip)),
            [0, 0, 0, 7]
        );
        let all = ServerOptions {
            exempt_loopback: false,
            ..bounded
        };
        assert_eq!(all.max_connections_of(here), 7);
    }

    #[tokio::test]
    async fn closes_connections_over_address_limit() {
        let server = BoundedTestServer::start(
            hello(),
            ServerOptions {
                max_per_peer: 1,
                ..options()
            },
        );
        let mut first = server.connect("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        read_until(&mut first, "hello").await;
        let mut second = server.connect("").await;
        assert_eq!(read_to_end(&mut second).await, "");

        drop(first);
        in_time(async {
            loop {
                let mut next = server.connect("").await;
                let written = next.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
                let mut answer = [0; 8];
                if written.is_ok() && next.read_exact(&mut answer).await.is_ok() {
                    return;
                }
            }
        })
        .await;
        in_time(server.stopped()).await;
    }
}
