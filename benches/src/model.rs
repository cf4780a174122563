//! A model server whose items carry their send time. It has a thread of its own and the clock of this process.
//! Also collects and prints the latencies of the items.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::LoadConnection;
use crate::figures::percentile;
use crate::stub::read_request;

/// Items of a stream, and the pause before each except the first.
pub(crate) const ITEMS: usize = 50;
const PAUSE: Duration = Duration::from_millis(5);
/// The model that sends [`HELD_ITEMS`] at once and ends after [`ModelServer::release`].
pub(crate) const HELD: &str = "held";
pub(crate) const HELD_ITEMS: usize = 10;
/// Marker before an item's send time, the same in every API.
const SEND_TIME_MARKER: &str = "\":\"at:";
/// Field with the text so far. It follows an item and is no item itself.
const ACCUMULATED_FIELD: &str = "all_content";

/// Origin of all times.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Serves until the process ends.
pub(crate) struct ModelServer {
    pub(crate) address: String,
    released: watch::Sender<bool>,
}

/// Latencies of one stream's items, in milliseconds.
pub(crate) struct ItemLatencies {
    pub(crate) first: f64,
    pub(crate) each: Vec<f64>,
    /// The body of the response.
    pub(crate) text: String,
}

impl ModelServer {
    pub(crate) fn start() -> anyhow::Result<Self> {
        LazyLock::force(&START);
        let listener = std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?.to_string();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (released, receiver) = watch::channel(false);
        std::thread::Builder::new()
            .name("model".to_owned())
            .spawn(move || runtime.block_on(serve(listener, receiver)))?;
        Ok(Self { address, released })
    }

    /// Ends the streams of the model [`HELD`], and later ones immediately.
    pub(crate) fn release(&self) {
        self.released.send_replace(true);
    }
}

impl ItemLatencies {
    /// Requests one stream and reads it to its end.
    pub(crate) async fn of(address: &str, request: &[u8]) -> anyhow::Result<Self> {
        let mut connection = LoadConnection::open(address).await?;
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
            text,
        })
    }

    /// Sends all requests concurrently, each on its own connection.
    pub(crate) async fn at_once(
        address: &str,
        requests: Vec<Vec<u8>>,
    ) -> anyhow::Result<Vec<Self>> {
        let mut streams = JoinSet::new();
        for request in requests {
            let address = address.to_owned();
            streams.spawn(async move { Self::of(&address, &request).await });
        }
        let mut all = Vec::new();
        while let Some(items) = streams.join_next().await {
            all.push(items??);
        }
        Ok(all)
    }
}

/// Latencies of the items of several streams, in milliseconds.
#[derive(Default)]
pub(crate) struct LatencySamples {
    /// From the request to the first item.
    pub(crate) first: Vec<f64>,
    /// From the send time of each item to its arrival.
    pub(crate) each: Vec<f64>,
}

impl LatencySamples {
    pub(crate) fn add(&mut self, streams: Vec<ItemLatencies>) {
        for items in streams {
            self.first.push(items.first);
            self.each.extend(items.each);
        }
    }
}

/// Prints the latency added to the items of the direct model, and returns it as JSON.
pub(crate) fn print_waits(
    target: &str,
    direct: &LatencySamples,
    through: &LatencySamples,
) -> Value {
    let of = |through: &[f64], direct: &[f64]| {
        [50.0, 99.0].map(|at| (percentile(through, at), percentile(direct, at)))
    };
    let streams = direct.first.len();
    let mut figures = json!({"streams": streams, "items": direct.each.len()});
    for (name, [p50, p99]) in [
        ("first item", of(&through.first, &direct.first)),
        ("each item", of(&through.each, &direct.each)),
    ] {
        println!(
            "{target:<12} {name:<14} +{:.2} ms p50, +{:.2} ms p99 over the direct model \
             ({:.2} and {:.2} ms), {streams} streams of {} items",
            p50.0 - p50.1,
            p99.0 - p99.1,
            p50.1,
            p99.1,
            ITEMS,
        );
        figures[name.replace(' ', "_")] = json!({
            "added_p50_ms": p50.0 - p50.1, "added_p99_ms": p99.0 - p99.1,
            "direct_p50_ms": p50.1, "direct_p99_ms": p99.1,
        });
    }
    figures
}

/// Send time of the next item, if the item is complete.
fn next_time(text: &str, read: &mut usize) -> Option<Duration> {
    let rest = &text[*read..];
    let mut marks = rest.match_indices(SEND_TIME_MARKER);
    let (mark, _) = marks.find(|(at, _)| !rest[..*at].ends_with(ACCUMULATED_FIELD))?;
    let from = mark + SEND_TIME_MARKER.len();
    let length = rest[from..].find('"')?;
    let nanos = rest[from..from + length].parse().ok()?;
    *read += from + length;
    Some(Duration::from_nanos(nanos))
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

async fn serve(
    listener: std::net::TcpListener,
    released: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((socket, _)) = accepted {
                connections.spawn(serve_connection(socket, released.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_connection(
    mut socket: TcpStream,
    mut released: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut socket, &mut buffer).await? {
        let parameters: Value = serde_json::from_slice(&request.body)?;
        let is_held = parameters["model"] == HELD;
        let items = if is_held { HELD_ITEMS } else { ITEMS };
        let mut head = String::from(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        for item in 0..items {
            if item > 0 && !is_held {
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
        if is_held {
            released.wait_for(|released| *released).await?;
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
    fn times_items_only_when_complete() {
        let mut text = String::from("data: {\"delta\":{\"content\":\"at:12");
        let mut read = 0;
        assert_eq!(next_time(&text, &mut read), None);
        text.push_str("34\"}}\n\ndata: {\"chunk\":{\"content\":\"at:5\"}}");
        let times: Vec<_> = std::iter::from_fn(|| next_time(&text, &mut read)).collect();
        assert_eq!(times, [1234, 5].map(Duration::from_nanos));
    }

    #[test]
    fn ignores_accumulated_text_fields() {
        let text =
            r#"{"content":"at:5","all_content":"at:5"}{"content":"at:7","all_content":"at:5at:7"}"#;
        let mut read = 0;
        let times: Vec<_> = std::iter::from_fn(|| next_time(text, &mut read)).collect();
        assert_eq!(times, [5, 7].map(Duration::from_nanos));
    }

    #[tokio::test]
    async fn reads_complete_stream_from_model() {
        let server = ModelServer::start().unwrap();
        let items = ItemLatencies::of(&server.address, &crate::host::direct_request()).await;
        let items = items.unwrap();
        assert_eq!(items.each.len(), ITEMS);
        assert!(items.first >= 0.0 && items.each.iter().all(|item| *item < 5000.0));
    }
}
