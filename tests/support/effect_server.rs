//! An HTTP tool that counts its effects by ticket, and can close the connection at any byte of its response.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::within;

/// Delivery of responses to calls with an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    Complete,
    /// Closes the connection after this number of bytes.
    Cut(usize),
    /// Holds the connection open without a response.
    Held,
}

/// Tickets of the effects so far, in order. Empty: the call had no ticket.
type Effects = Vec<String>;

/// Closes its connections on drop.
pub struct EffectServer {
    pub url: String,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    effects: watch::Sender<Effects>,
    delivery: Mutex<Delivery>,
}

impl EffectServer {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            effects: watch::Sender::default(),
            delivery: Mutex::new(Delivery::Complete),
        });
        let mut tasks = JoinSet::new();
        let serving = Arc::clone(&shared);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(Arc::clone(&serving), stream));
            }
        });
        Self {
            url,
            shared,
            _tasks: tasks,
        }
    }

    /// The tool `act`, which has an effect, with more settings; and the tool `find`, which knows what became of a call.
    pub fn tools(&self, more: &str) -> String {
        format!(
            "[[tools]]\ntool_name = \"act\"\nurl = \"{url}/act\"\ntimeout_seconds = 3.0\n{more}\n\
             [[tools]]\ntool_name = \"find\"\nurl = \"{url}/calls/{{ticket}}\"\nmethod = \"GET\"\neffect = \"read\"\n\
             parameters = {{ type = \"object\", required = [\"ticket\"], properties = \
             {{ ticket = {{ type = \"string\" }} }} }}\n",
            url = self.url
        )
    }

    pub fn deliver(&self, delivery: Delivery) {
        *self.shared.delivery() = delivery;
    }

    pub fn effects(&self) -> Effects {
        self.shared.effects.borrow().clone()
    }

    /// Waits for this number of effects.
    pub async fn acted(&self, count: usize) {
        let mut effects = self.shared.effects.subscribe();
        let acting = effects.wait_for(|effects| effects.len() >= count);
        within("an effect", acting).await.unwrap();
    }
}

impl Shared {
    fn delivery(&self) -> std::sync::MutexGuard<'_, Delivery> {
        self.delivery.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves one request.
async fn serve(shared: Arc<Shared>, mut stream: TcpStream) {
    let Some(head) = request_head(&mut stream).await else {
        return;
    };
    let path = head.lines().next().and_then(|line| line.split(' ').nth(1));
    let path = path.unwrap_or_default();
    if let Some(ticket) = path.strip_prefix("/calls/") {
        let effects = shared.effects.borrow().clone();
        let answer = match effects.iter().position(|effect| effect == ticket) {
            Some(at) => json!({"outcome": "done", "result": {"effect": at + 1}}),
            None => json!({"outcome": "not_done"}),
        };
        let _ = stream.write_all(response(&answer).as_bytes()).await;
        return;
    }
    // Gateways of other tests may look for a runner that had this port before.
    if path != "/act" {
        let _ = stream
            .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            .await;
        return;
    }
    let headers: BTreeMap<_, _> = head
        .lines()
        .filter_map(|line| line.split_once(": "))
        .collect();
    let ticket = headers.get("idempotency-key").copied().unwrap_or_default();
    let delivery = *shared.delivery();
    let mut number = 0;
    shared.effects.send_modify(|effects| {
        effects.push(ticket.to_owned());
        number = effects.len();
    });
    let response = response(&json!({"effect": number}));
    match delivery {
        Delivery::Complete => {
            let _ = stream.write_all(response.as_bytes()).await;
        }
        Delivery::Cut(bytes) => {
            let _ = stream.write_all(&response.as_bytes()[..bytes]).await;
        }
        Delivery::Held => {
            // Until the caller is gone.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    }
}

/// The head of a request, after its body has arrived. `None`: the caller is gone.
async fn request_head(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let mut lines = head.lines();
            let length = lines.find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                return Some(head);
            }
        }
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
}

/// A complete response.
pub fn response(body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}
