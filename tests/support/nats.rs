//! The NATS server from the environment, a proxy to it that can be cut, and a raw client.

use std::sync::{Arc, Once};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use url::Url;

use super::{skipped, within};

static SKIPPED: Once = Once::new();

/// Returns `None` and prints a notice without `RUNNEL_TEST_NATS_URL`.
pub fn nats_server() -> Option<String> {
    if let Ok(url) = std::env::var("RUNNEL_TEST_NATS_URL") {
        return Some(url);
    }
    skipped(&SKIPPED, "nats", "there is no RUNNEL_TEST_NATS_URL");
    None
}

fn address(url: &str) -> String {
    let url = Url::parse(url).unwrap();
    format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(4222))
}

/// Publishes on a subject, as any client of the server can.
pub async fn publish(server: &str, subject: &str, payloads: &[Vec<u8>]) {
    let mut socket = TcpStream::connect(address(server)).await.unwrap();
    let mut bytes = b"CONNECT {\"verbose\":false}\r\n".to_vec();
    for payload in payloads {
        bytes.extend_from_slice(format!("PUB {subject} {}\r\n", payload.len()).as_bytes());
        bytes.extend_from_slice(payload);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"PING\r\n");
    socket.write_all(&bytes).await.unwrap();
    let mut lines = BufReader::new(socket).lines();
    let answered = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            assert!(!line.starts_with("-ERR"), "{line}");
            if line == "PONG" {
                return;
            }
        }
        panic!("the server hung up");
    };
    within("the server to have read it", answered).await;
}

/// A raw NATS subscriber.
pub struct NatsSubscriber(tokio::io::Lines<BufReader<TcpStream>>);

impl NatsSubscriber {
    /// Subscribes to `pattern`. Returns once the subscription is active.
    pub async fn to(server: &str, pattern: &str) -> Self {
        let mut socket = TcpStream::connect(address(server)).await.unwrap();
        let hello = format!("CONNECT {{\"verbose\":false}}\r\nSUB {pattern} 1\r\nPING\r\n");
        socket.write_all(hello.as_bytes()).await.unwrap();
        let mut listener = Self(BufReader::new(socket).lines());
        while listener.line().await != "PONG" {}
        listener
    }

    /// The subject of the next message that contains `part`.
    pub async fn subject_of(&mut self, part: &str) -> String {
        let mut subject = String::new();
        loop {
            let line = self.line().await;
            match line
                .strip_prefix("MSG ")
                .and_then(|head| head.split(' ').next())
            {
                Some(named) => named.clone_into(&mut subject),
                None if line.contains(part) => return subject,
                None => {}
            }
        }
    }

    async fn line(&mut self) -> String {
        let line = within("the NATS server to speak", self.0.next_line()).await;
        line.unwrap().expect("the server hung up")
    }
}

/// A local port that forwards to the server while it is connected.
pub struct NatsProxy {
    pub url: String,
    is_connected: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl NatsProxy {
    /// Starts disconnected.
    pub async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let is_connected = watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(carry(
            listener,
            Arc::from(address(server)),
            is_connected.subscribe(),
        ));
        Self {
            url,
            is_connected,
            _tasks: tasks,
        }
    }

    pub fn mend(&self) {
        self.is_connected.send_replace(true);
    }

    pub fn cut(&self) {
        self.is_connected.send_replace(false);
    }
}

async fn carry(listener: TcpListener, server: Arc<str>, is_connected: watch::Receiver<bool>) {
    let mut calls = JoinSet::new();
    loop {
        let (mut near, _) = listener.accept().await.unwrap();
        if !*is_connected.borrow() {
            continue;
        }
        let (server, mut is_connected) = (Arc::clone(&server), is_connected.clone());
        calls.spawn(async move {
            let mut far = TcpStream::connect(&*server).await.unwrap();
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                _ = is_connected.wait_for(|is_connected| !is_connected) => {}
            }
        });
    }
}
