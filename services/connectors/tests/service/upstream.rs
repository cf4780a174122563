//! A platform in this process that answers with bytes of the test, and misbehaves.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    /// The method and the path.
    pub(crate) line: String,
    pub(crate) headers: String,
    pub(crate) body: String,
}

/// One act of an answer.
pub(crate) enum Act {
    Write(Vec<u8>),
    /// Writes until the other side has closed the connection.
    WriteForEver(Vec<u8>),
    /// Waits until the other side has closed the connection.
    Hang,
    /// Waits until so many requests have come.
    Until(usize),
    /// Waits for an event of the test.
    After(BoxFuture<'static, ()>),
    Close,
}

type UpstreamAnswer = dyn Fn(&ReceivedRequest, usize) -> Vec<Act> + Send + Sync;

/// Closed on drop.
pub(crate) struct FakePlatform {
    pub(crate) address: SocketAddr,
    shared: Arc<PlatformState>,
    _server: JoinSet<()>,
}

struct PlatformState {
    answer: Box<UpstreamAnswer>,
    received: Mutex<Vec<ReceivedRequest>>,
    /// Requests, and connections that the other side closed within an answer.
    counts: watch::Sender<(usize, usize)>,
}

impl FakePlatform {
    /// `answer` gets each request with its number, from 0.
    pub(crate) async fn start(
        answer: impl Fn(&ReceivedRequest, usize) -> Vec<Act> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(PlatformState {
            answer: Box::new(answer),
            received: Mutex::default(),
            counts: watch::Sender::new((0, 0)),
        });
        let (mut server, serving) = (JoinSet::new(), Arc::clone(&shared));
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(serve(socket, Arc::clone(&serving)));
            }
        });
        Self {
            address,
            shared,
            _server: server,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn received(&self) -> Vec<ReceivedRequest> {
        self.shared.received.lock().unwrap().clone()
    }

    /// Waits until that many connections were closed within an answer.
    pub(crate) async fn has_lost(&self, connections: usize) {
        let mut counts = self.shared.counts.subscribe();
        counts
            .wait_for(|counts| counts.1 >= connections)
            .await
            .unwrap();
    }
}

async fn serve(mut socket: TcpStream, shared: Arc<PlatformState>) {
    let mut rest = Vec::new();
    while let Some(request) = read(&mut socket, &mut rest).await {
        let number = {
            let mut received = shared.received.lock().unwrap();
            received.push(request.clone());
            received.len() - 1
        };
        shared.counts.send_modify(|counts| counts.0 += 1);
        for act in (shared.answer)(&request, number) {
            if matches!(act, Act::Close) {
                return;
            }
            if !perform(&mut socket, act, &shared).await {
                shared.counts.send_modify(|counts| counts.1 += 1);
                return;
            }
        }
    }
}

/// False once the connection is closed by the other side.
async fn perform(socket: &mut TcpStream, act: Act, shared: &PlatformState) -> bool {
    match act {
        Act::Write(bytes) => socket.write_all(&bytes).await.is_ok(),
        Act::WriteForEver(bytes) => {
            while socket.write_all(&bytes).await.is_ok() {
                tokio::task::yield_now().await;
            }
            false
        }
        Act::Hang => {
            let mut byte = [0];
            while matches!(socket.read(&mut byte).await, Ok(read) if read > 0) {}
            false
        }
        Act::After(event) => {
            event.await;
            true
        }
        Act::Close => true,
        Act::Until(requests) => {
            let mut counts = shared.counts.subscribe();
            counts.wait_for(|counts| counts.0 >= requests).await.is_ok()
        }
    }
}

async fn read(socket: &mut TcpStream, rest: &mut Vec<u8>) -> Option<ReceivedRequest> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        if let Some((received, length)) = parse(rest) {
            rest.drain(..length);
            return Some(received);
        }
        match socket.read(&mut buffer).await {
            Ok(read) if read > 0 => rest.extend_from_slice(&buffer[..read]),
            _ => return None,
        }
    }
}

fn parse(bytes: &[u8]) -> Option<(ReceivedRequest, usize)> {
    let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")?;
    let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let (line, headers) = text.split_once("\r\n").unwrap_or((&text, ""));
    let headers = headers.to_ascii_lowercase();
    let length = headers
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.trim().parse().unwrap());
    let body = bytes.get(head + 4..head + 4 + length)?;
    let received = ReceivedRequest {
        line: line.trim_end_matches(" HTTP/1.1").to_owned(),
        body: String::from_utf8_lossy(body).into_owned(),
        headers,
    };
    Some((received, head + 4 + length))
}

/// A response with its length.
pub(crate) fn complete(status: u16, content_type: &str, body: &str) -> Vec<Act> {
    let head = format!(
        "HTTP/1.1 {status} Status\r\ncontent-type: {content_type}\r\nretry-after: 7\r\n\
         location: /elsewhere\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    vec![Act::Write((head + body).into_bytes())]
}

/// The head of a stream that ends with its connection, and its first bytes.
pub(crate) fn stream(first: &str) -> Act {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    Act::Write(format!("{head}{first}").into_bytes())
}
