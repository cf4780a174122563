//! Attacks by an author of an endpoint URL, an owner of a name, or a server. O2–O4, O6, O10, O14.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Counts requests and answers each with the same bytes.
struct CountingServer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    /// Largest number of requests over one connection.
    max_requests: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl CountingServer {
    async fn at(address: SocketAddr, answer: impl Into<Vec<u8>>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer: Arc<[u8]> = answer.into().into();
        let (connections, max_requests) = (Arc::default(), Arc::default());
        let mut tasks = JoinSet::new();
        let counts = (Arc::clone(&connections), Arc::clone(&max_requests));
        tasks.spawn(accept(listener, answer, counts));
        Self {
            address,
            connections,
            max_requests,
            _tasks: tasks,
        }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

type Counts = (Arc<AtomicUsize>, Arc<AtomicUsize>);

async fn accept(listener: TcpListener, answer: Arc<[u8]>, (connections, max_requests): Counts) {
    let mut tasks = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.fetch_add(1, Ordering::SeqCst);
        tasks.spawn(answer_all(
            stream,
            Arc::clone(&answer),
            Arc::clone(&max_requests),
        ));
    }
}

async fn answer_all(mut stream: TcpStream, answer: Arc<[u8]>, max_requests: Arc<AtomicUsize>) {
    let mut requests = 0;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while let Ok(1) = stream.read(&mut byte).await {
        head.push(byte[0]);
        if head.ends_with(b"\r\n\r\n") {
            requests += 1;
            max_requests.fetch_max(requests, Ordering::SeqCst);
            head.clear();
            if stream.write_all(&answer).await.is_err() {
                return;
            }
        }
    }
}

fn loopback(last: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), port)
}

fn egress(allow: &[&str], lookup: Lookup) -> Egress {
    let allow = allow.iter().map(|rule| rule.parse().unwrap()).collect();
    Egress::with_lookup(allow, PATIENCE, lookup).unwrap()
}

/// Resolves every name to these address lists in rotation.
fn in_turn(answers: Vec<Vec<SocketAddr>>) -> Lookup {
    let lookups = AtomicUsize::new(0);
    Lookup::by(move |_| {
        let answer = answers[lookups.fetch_add(1, Ordering::SeqCst) % answers.len()].clone();
        Box::pin(async move { Ok(answer) })
    })
}

fn in_disguise(address: SocketAddr) -> SocketAddr {
    let IpAddr::V4(plain) = address.ip() else {
        panic!("an IPv4 address");
    };
    SocketAddr::new(plain.to_ipv6_mapped().into(), address.port())
}

#[test]
fn rejects_every_url_of_the_corpus() {
    let corpus = include_str!("../../../tests/fixtures/ssrf.txt");
    let egress = egress(&[], Lookup::of_the_system());
    let urls = corpus.lines().filter(|line| !line.starts_with('#'));
    let mut count = 0;
    for line in urls {
        let url: String = serde_json::from_str(line).unwrap();
        assert!(egress.check_url(&url).is_err(), "{line} may be registered");
        // A rewritten URL must be rejected too, unless it is public.
        if let Ok(parsed) = Url::parse(&url)
            && egress.request(Method::GET, &parsed).is_ok()
        {
            let host = parsed.host_str().unwrap();
            assert!(
                parsed.scheme() == "https" && parsed.port().is_none() && host.contains("example")
                    || host.starts_with("xn--"),
                "{line} may be requested as {parsed}"
            );
        }
        count += 1;
    }
    assert!(count > 200, "{count}");
}

/// `127.0.0.2` plays the public address of a name, `127.0.0.1` a forbidden one.
#[tokio::test]
async fn dns_rebinding_never_reaches_forbidden_addresses() {
    let inside = CountingServer::at(loopback(1, 0), OK).await;
    let port = inside.address.port();
    let closing = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
    let outside = CountingServer::at(loopback(2, port), closing).await;
    let (bad, good) = (loopback(1, 0), loopback(2, 0));
    let answers = vec![
        vec![good],
        vec![bad],
        vec![good, bad],
        vec![bad, good],
        vec![good, good, in_disguise(bad)],
        vec![in_disguise(bad)],
        vec![],
    ];
    let passes = [true, false, false, false, false, false, false];
    let guarded = egress(&["127.0.0.2/32"], in_turn(answers));
    let url = Url::parse(&format!("http://rebind.example:{port}/")).unwrap();
    let mut passed = 0;
    for turn in 0..1_000 {
        // As if the URL had been checked while the name was public.
        let answer = guarded.send(guarded.client.get(url.clone())).await;
        assert_eq!(answer.is_ok(), passes[turn % passes.len()], "turn {turn}");
        passed += usize::from(answer.is_ok());
    }
    assert_eq!((inside.connections(), outside.connections()), (0, passed));
}

#[tokio::test]
async fn reused_connections_keep_their_checked_address() {
    let inside = CountingServer::at(loopback(1, 0), OK).await;
    let outside = CountingServer::at(loopback(2, inside.address.port()), OK).await;
    let answers = vec![vec![loopback(2, 0)], vec![loopback(1, 0)]];
    let guarded = egress(&["127.0.0.2/32"], in_turn(answers));
    let url = Url::parse(&format!("http://rebind.example:{}/", inside.address.port())).unwrap();
    for _ in 0..50 {
        if let Ok(answer) = guarded.send(guarded.client.get(url.clone())).await {
            assert_eq!(answer.text().await.unwrap(), "ok");
        }
    }
    assert_eq!(inside.connections(), 0);
    assert!(
        outside.max_requests.load(Ordering::SeqCst) > 1,
        "no connection was reused"
    );
}

#[tokio::test]
async fn gateway_never_calls_itself() {
    let ours = CountingServer::at(loopback(1, 0), OK).await;
    let port = ours.address.port();
    let looked_up = Arc::new(Mutex::new(Vec::new()));
    let names = Arc::clone(&looked_up);
    let lookup = Lookup::by(move |name| {
        names.lock().unwrap().push(name.to_owned());
        // A name that moves between check and connection.
        let moved = name == "moves.example" && names.lock().unwrap().len() % 2 == 1;
        let address = if moved {
            loopback(3, 0)
        } else {
            loopback(1, 0)
        };
        Box::pin(async move { Ok(vec![address]) })
    });
    let rules = [
        "127.0.0.0/8".to_owned(),
        format!("gateway.example:{port}"),
        format!("moves.example:{port}"),
    ];
    let rules: Vec<_> = rules.iter().map(String::as_str).collect();
    let open = egress(&rules, lookup);
    let guarded = open.clone().refusing_own(ours.address);
    let ask = async |egress: &Egress, host: &str| {
        let url = Url::parse(&format!("http://{host}:{port}/")).unwrap();
        egress
            .send(egress.request(Method::GET, &url)?)
            .await
            .map(drop)
    };
    let refused = |outcome: Result<(), EgressError>| {
        matches!(
            outcome,
            Err(EgressError::Blocked {
                reason: Refusal::Own
            })
        )
    };
    for host in ["127.0.0.1", "gateway.example"] {
        assert!(refused(ask(&guarded, host).await), "{host}");
    }
    assert_eq!(ours.connections(), 0);
    assert!(
        guarded
            .check_url(&format!("http://127.0.0.1:{port}/"))
            .is_err()
    );
    assert!(
        guarded
            .check_url(&format!("http://127.0.0.1:{}/", port ^ 1))
            .is_ok()
    );
    looked_up.lock().unwrap().clear();
    assert!(
        refused(ask(&guarded, "moves.example").await),
        "the body of a blocked response is not read"
    );
    assert_eq!(*looked_up.lock().unwrap(), ["moves.example"; 2]);
    // The same two targets without the guard.
    for host in ["127.0.0.1", "gateway.example"] {
        assert!(ask(&open, host).await.is_ok(), "{host}");
    }
}

#[tokio::test]
async fn early_response_bytes_answer_no_request() {
    let answer = [OK, "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison"].concat();
    let server = CountingServer::at(loopback(1, 0), answer).await;
    let guarded = egress(&["127.0.0.1/32"], Lookup::of_the_system());
    let url = Url::parse(&format!("http://{}/", server.address)).unwrap();
    let mut answered = 0;
    for _ in 0..50 {
        let request = guarded.request(Method::GET, &url).unwrap();
        if let Ok(answer) = guarded.send(request).await
            && let Ok(text) = answer.text().await
        {
            assert_eq!(text, "ok");
            answered += 1;
        }
    }
    assert!(answered > 0, "no question was answered");
}

#[tokio::test]
async fn drops_connections_after_malformed_http() {
    let fifty = "HTTP/1.1 100 Continue\r\n\r\n".repeat(50);
    for (answer, again) in [
        (OK, true),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nokk",
            false,
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok", false),
        ("HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nok", false),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\nokHTTP",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551618\r\n\r\nok",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nok",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, gzip\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nok",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-2\r\nok\r\n0\r\n\r\n",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok0\r\n\r\n",
            false,
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\nok", false),
        ("HTTP/1.1 200 OK\r\n folded: yes\r\n\r\nok", false),
        (
            "HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 2\r\n\r\nok",
            false,
        ),
        ("HTTP/2.0 200 OK\r\ncontent-length: 2\r\n\r\nok", false),
        ("HTTP/0.9 200 OK\r\n\r\nok", false),
        ("HTTP/1.1 20 OK\r\n\r\n", false),
        ("ICY 200 OK\r\n\r\nok", false),
        ("SSH-2.0-OpenSSH_9\r\n", false),
        (
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
            false,
        ),
        (&fifty, false),
    ] {
        let server = CountingServer::at(loopback(1, 0), answer).await;
        let guarded = egress(&["127.0.0.1/32"], Lookup::of_the_system());
        let url = Url::parse(&format!("http://{}/", server.address)).unwrap();
        for _ in 0..3 {
            let request = guarded.request(Method::GET, &url).unwrap();
            // Some of these requests never end; valid ones get the time that a busy machine needs.
            let patience = Duration::from_millis(if again { 10_000 } else { 500 });
            let request = request.timeout(patience);
            if let Ok(answer) = guarded.send(request).await {
                let _ = answer.bytes().await;
            }
        }
        let requests = server.max_requests.load(Ordering::SeqCst);
        assert_eq!(
            requests > 1,
            again,
            "{answer:?}: {requests} requests on one connection"
        );
    }
}
