//! A provider whose model says when it speaks: each item holds the time at which it left. It has a thread of
//! its own, and the clock of this process.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::client::Connection;
use crate::stub::read_request;

/// Items of a stream, and the pause before each but the first.
pub(super) const ITEMS: usize = 50;
const PAUSE: Duration = Duration::from_millis(5);
/// Before the number that an item holds: every face shows it so.
const MARK: &str = "\":\"at:";

/// All times are told from here.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Serves until the process ends.
pub(super) struct ModelServer {
    pub(super) address: String,
}

/// How long the items of one stream took, in milliseconds.
pub(super) struct Items {
    pub(super) first: f64,
    pub(super) each: Vec<f64>,
}

impl ModelServer {
    pub(super) fn start() -> anyhow::Result<Self> {
        LazyLock::force(&START);
        let listener = std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?.to_string();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name("model".to_owned())
            .spawn(move || runtime.block_on(serve(listener)))?;
        Ok(Self { address })
    }
}

impl Items {
    /// Asks for one stream and reads it to its end.
    pub(super) async fn of(address: &str, request: &[u8]) -> anyhow::Result<Self> {
        let mut connection = Connection::open(address).await?;
        let begin = Instant::now();
        connection.send(request).await?;
        let (mut text, mut read, mut first) = (String::new(), 0, None);
        let mut each = Vec::with_capacity(ITEMS);
        let status = connection
            .answer(|part| {
                text.push_str(&String::from_utf8_lossy(part));
                while each.len() < ITEMS
                    && let Some(left) = next_time(&text, &mut read)
                {
                    let now = Instant::now();
                    first.get_or_insert(now.duration_since(begin));
                    each.push(millis(now.duration_since(*START).saturating_sub(left)));
                }
            })
            .await?;
        ensure!(status == 200, "HTTP {status}: {text}");
        ensure!(each.len() == ITEMS, "{} items came: {text}", each.len());
        let first = first.context("no item")?;
        Ok(Self {
            first: millis(first),
            each,
        })
    }
}

/// When the next item left, if all of it is there.
fn next_time(text: &str, read: &mut usize) -> Option<Duration> {
    let rest = &text[*read..];
    let from = rest.find(MARK)? + MARK.len();
    let length = rest[from..].find('"')?;
    let nanos = rest[from..from + length].parse().ok()?;
    *read += from + length;
    Some(Duration::from_nanos(nanos))
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

async fn serve(listener: std::net::TcpListener) -> anyhow::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((socket, _)) = accepted {
                connections.spawn(converse(socket));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn converse(mut socket: TcpStream) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while read_request(&mut socket, &mut buffer).await?.is_some() {
        let mut head = String::from(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        for item in 0..ITEMS {
            if item > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            let now = Instant::now().duration_since(*START).as_nanos();
            let choice = json!({"index": 0, "delta": {"content": format!("at:{now}")}});
            chunk(
                &mut head,
                &json!({"id": "c", "choices": [choice]}).to_string(),
            )?;
            socket.write_all(head.as_bytes()).await?;
            head.clear();
        }
        let end = json!({"index": 0, "delta": {}, "finish_reason": "stop"});
        chunk(&mut head, &json!({"id": "c", "choices": [end]}).to_string())?;
        chunk(&mut head, "[DONE]")?;
        head.push_str("0\r\n\r\n");
        socket.write_all(head.as_bytes()).await?;
    }
    Ok(())
}

fn chunk(wire: &mut String, data: &str) -> std::fmt::Result {
    let length = "data: \n\n".len() + data.len();
    write!(wire, "{length:x}\r\ndata: {data}\n\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_timed_once_all_of_it_is_there() {
        let mut text = String::from("data: {\"delta\":{\"content\":\"at:12");
        let mut read = 0;
        assert_eq!(next_time(&text, &mut read), None);
        text.push_str("34\"}}\n\ndata: {\"chunk\":{\"content\":\"at:5\"}}");
        let times: Vec<_> = std::iter::from_fn(|| next_time(&text, &mut read)).collect();
        assert_eq!(times, [1234, 5].map(Duration::from_nanos));
    }

    #[tokio::test]
    async fn a_stream_asked_directly_comes_whole() {
        let server = ModelServer::start().unwrap();
        let items = Items::of(&server.address, &super::super::directly()).await;
        let items = items.unwrap();
        assert_eq!(items.each.len(), ITEMS);
        assert!(items.first >= 0.0 && items.each.iter().all(|item| *item < 5000.0));
    }
}
