//! A receiver of webhooks on bare TCP that reacts to each request as scripted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::until;

/// Reaction to a request.
#[derive(Clone, Debug)]
pub enum Reaction {
    Status(u16),
    /// Status and a header line.
    Headed(u16, String),
    /// Status 200 with this body.
    Body(String),
    /// Reads the request, and never responds.
    Hang,
    /// Closes the connection without a response.
    Close,
    Reset,
    /// A status of 200, then a body of one byte each 100 ms without end.
    Drip,
    /// A head of one byte each 100 ms without end.
    DripHead,
}

/// A received request.
#[derive(Clone, Debug)]
pub struct ReceivedMessage {
    pub path: String,
    /// By lower-case name.
    pub headers: BTreeMap<String, String>,
    pub text: String,
    pub body: Value,
}

impl ReceivedMessage {
    /// `type` of the message.
    pub fn kind(&self) -> &str {
        self.body["type"].as_str().unwrap()
    }
}

#[derive(Default)]
struct ReceiverState {
    reactions: Mutex<VecDeque<Reaction>>,
    always: Mutex<Option<Reaction>>,
    received: Mutex<Vec<ReceivedMessage>>,
}

/// Stops on drop.
pub struct Receiver {
    pub url: String,
    state: Arc<ReceiverState>,
    _server: JoinSet<()>,
}

impl Receiver {
    /// Responds to each request by 204.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let state = Arc::<ReceiverState>::default();
        let shared = Arc::clone(&state);
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                open.spawn(async move {
                    serve(stream, &state).await;
                });
            }
        });
        Self {
            url,
            state,
            _server: server,
        }
    }

    /// Reactions to the next requests, before that of `always`.
    pub fn react(&self, reactions: impl IntoIterator<Item = Reaction>) {
        self.state.reactions.lock().unwrap().extend(reactions);
    }

    /// Drops the reactions of `react` that no request has received.
    pub fn drop_reactions(&self) {
        self.state.reactions.lock().unwrap().clear();
    }

    /// Reaction to all other requests. `None`: 204.
    pub fn always(&self, reaction: Option<Reaction>) {
        *self.state.always.lock().unwrap() = reaction;
    }

    pub fn received(&self) -> Vec<ReceivedMessage> {
        self.state.received.lock().unwrap().clone()
    }

    /// Types of all requests so far.
    pub fn kinds(&self) -> Vec<String> {
        let received = self.received();
        received.iter().map(|one| one.kind().to_owned()).collect()
    }

    /// Waits for this number of requests.
    pub async fn wait_for(&self, count: usize) -> Vec<ReceivedMessage> {
        until("requests of webhooks", async || {
            self.state.received.lock().unwrap().len() >= count
        })
        .await;
        self.received()
    }
}

async fn serve(mut stream: TcpStream, state: &ReceiverState) {
    let Some(message) = read(&mut stream).await else {
        return;
    };
    state.received.lock().unwrap().push(message);
    let scripted = state.reactions.lock().unwrap().pop_front();
    let reaction = scripted.or_else(|| state.always.lock().unwrap().clone());
    let mut body = String::new();
    let (status, header) = match reaction.unwrap_or(Reaction::Status(204)) {
        Reaction::Status(status) => (status, String::new()),
        Reaction::Headed(status, header) => (status, format!("{header}\r\n")),
        Reaction::Body(text) => {
            body = text;
            (200, String::new())
        }
        Reaction::Hang => return drip(&mut stream, b"").await,
        Reaction::Close => return,
        Reaction::Reset => {
            let _ = stream.set_zero_linger();
            return;
        }
        Reaction::Drip => {
            let head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
            let _ = stream.write_all(head).await;
            return drip(&mut stream, b"x").await;
        }
        Reaction::DripHead => return drip(&mut stream, b"H").await,
    };
    let length = body.len();
    let response = format!(
        "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n{header}\r\n{body}"
    );
    let _ = stream.write_all(response.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// Sends these bytes again and again until the client leaves.
async fn drip(stream: &mut TcpStream, bytes: &[u8]) {
    let mut buffer = [0; 64];
    loop {
        tokio::select! {
            read = stream.read(&mut buffer) => if !matches!(read, Ok(1..)) {
                return;
            },
            () = tokio::time::sleep(Duration::from_millis(100)) => {
                if stream.write_all(bytes).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// One request with a `content-length`.
async fn read(stream: &mut TcpStream) -> Option<ReceivedMessage> {
    let (mut raw, mut buffer) = (Vec::new(), [0; 8192]);
    loop {
        if let Some(end) = raw.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(raw[..end].to_vec()).unwrap();
            let lines = head
                .lines()
                .skip(1)
                .filter_map(|line| line.split_once(": "));
            let headers: BTreeMap<_, _> = lines
                .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
                .collect();
            let length: usize = headers.get("content-length")?.parse().unwrap();
            let body = &raw[end + 4..];
            if body.len() >= length {
                let text = String::from_utf8(body[..length].to_vec()).unwrap();
                return Some(ReceivedMessage {
                    path: head.split(' ').nth(1)?.to_owned(),
                    body: serde_json::from_str(&text).unwrap(),
                    headers,
                    text,
                });
            }
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => raw.extend_from_slice(&buffer[..count]),
        }
    }
}
