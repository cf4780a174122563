//! A cheap runner: its response is prepared, and each event is one write, like a model's tokens. It can also answer
//! 202 and append its results.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::appends::AppendingRun;
use crate::stage::announce;

pub(crate) const RUNNER_ID: &str = "plugin:bench/stub/default";
/// Placeholder of the run id in the prepared response.
const RUN_ID_PLACEHOLDER: &str = "00000000-0000-0000-0000-000000000000";

/// Queued runs whose appends have not begun. Full: their connections wait.
const BEGINNING: usize = 1024;

/// The stub's current script.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StubScript {
    /// Events before `run.completed`.
    pub(crate) deltas: usize,
    /// Events per write.
    pub(crate) per_write: usize,
    /// Writes before the hold: then one more for each tick, and the rest after a release.
    pub(crate) hold_after: Option<usize>,
    /// Answer 202 and append the results, each after the response to the one before.
    pub(crate) is_async: bool,
}

impl StubScript {
    pub(crate) fn to_json(self) -> Value {
        json!({
            "deltas": self.deltas, "per_write": self.per_write, "hold_after": self.hold_after,
            "is_async": self.is_async,
        })
    }
}

/// A prepared response; `ids` are the offsets of the run id.
struct StubResponse {
    script: StubScript,
    bytes: Vec<u8>,
    ids: Vec<usize>,
    /// The ends of the writes.
    ends: Vec<usize>,
}

/// Signals to held runs, counted since the start.
#[derive(Clone, Copy, Default)]
struct HoldSignals {
    ticks: u64,
    releases: u64,
}

/// Counters of the stub, and its current response.
pub(crate) struct BenchStubState {
    prepared: Mutex<Arc<StubResponse>>,
    signals: watch::Sender<HoldSignals>,
    connections: AtomicU64,
    runs: AtomicU64,
    /// Results that a gateway has accepted from async runs.
    appended: Arc<AtomicU64>,
    /// Times at which a held run received its cancel, and at which its socket closed.
    pub(crate) cancelled: Mutex<HashMap<String, Instant>>,
    pub(crate) closed: Mutex<HashMap<String, Instant>>,
}

impl BenchStubState {
    pub(crate) fn new(script: StubScript) -> Arc<Self> {
        Arc::new(Self {
            prepared: Mutex::new(Arc::new(prepare(script))),
            signals: watch::Sender::default(),
            connections: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            appended: Arc::default(),
            cancelled: Mutex::default(),
            closed: Mutex::default(),
        })
    }

    fn play(&self, body: &[u8]) -> Option<()> {
        let settings: Value = serde_json::from_slice(body).ok()?;
        let count = |name: &str| usize::try_from(settings.get(name)?.as_u64()?).ok();
        let script = StubScript {
            deltas: count("deltas")?,
            per_write: count("per_write")?.max(1),
            hold_after: count("hold_after"),
            is_async: settings.get("is_async")?.as_bool()?,
        };
        let prepared = Arc::new(prepare(script));
        *self.prepared.lock().unwrap_or_else(PoisonError::into_inner) = prepared;
        Some(())
    }

    fn prepared(&self) -> Arc<StubResponse> {
        Arc::clone(&self.prepared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn note(times: &Mutex<HashMap<String, Instant>>, run: &str) {
    let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
    times.insert(run.to_owned(), Instant::now());
}

fn prepare(script: StubScript) -> StubResponse {
    if script.is_async {
        let bytes = Vec::from("HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n");
        let ends = vec![bytes.len()];
        let ids = Vec::new();
        return StubResponse {
            script,
            bytes,
            ids,
            ends,
        };
    }
    let mut bytes = Vec::from(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    let (mut ids, mut ends) = (Vec::new(), Vec::new());
    for number in 1..=script.deltas + 1 {
        let is_last = number > script.deltas;
        if is_last || (number > 1 && (number - 1).is_multiple_of(script.per_write.max(1))) {
            ends.push(bytes.len());
        }
        let (kind, data) = if is_last {
            ("run.completed", r#"{"finish_reason":"stop"}"#.to_owned())
        } else {
            let chunk = format!(r#"{{"chunk":{{"role":"assistant","content":"word {number} "}}}}"#);
            ("message.delta", chunk)
        };
        let head = format!("event: {kind}\nid: {number}\ndata: {{\"run_id\":\"");
        let tail = format!("\",\"type\":\"{kind}\",\"data\":{data},\"sequence\":{number}}}\n\n");
        let length = head.len() + RUN_ID_PLACEHOLDER.len() + tail.len();
        bytes.extend_from_slice(format!("{length:x}\r\n{head}").as_bytes());
        ids.push(bytes.len());
        bytes.extend_from_slice(format!("{RUN_ID_PLACEHOLDER}{tail}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    ends.push(bytes.len());
    ends.retain(|end| *end > 0);
    // The head goes with the first event.
    StubResponse {
        script,
        bytes,
        ids,
        ends,
    }
}

pub(crate) async fn serve_as_process() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    announce(&listener)?;
    serve(listener, BenchStubState::new(StubScript::default())).await;
    Ok(())
}

pub(crate) async fn serve(listener: TcpListener, shared: Arc<BenchStubState>) {
    let (mut connections, mut appending) = (JoinSet::new(), JoinSet::new());
    let (begin, mut begun) = mpsc::channel::<AppendingRun>(BEGINNING);
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((socket, _)) = accepted {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                connections.spawn(serve_connection(socket, Arc::clone(&shared), begin.clone()));
            },
            // The tasks are not those of the connections, which the gateway may close meanwhile.
            Some(run) = begun.recv() => {
                appending.spawn(run.append_all(Arc::clone(&shared.appended)));
            }
            Some(_) = connections.join_next() => {}
            Some(_) = appending.join_next() => {}
        }
    }
}

/// The parts of a request that the stub reads.
pub(crate) struct StubRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    run: String,
    pub(crate) body: Vec<u8>,
}

/// Serves requests in order until the peer closes.
async fn serve_connection(
    mut socket: TcpStream,
    shared: Arc<BenchStubState>,
    begin: mpsc::Sender<AppendingRun>,
) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(16 * 1024);
    let mut answer = Vec::new();
    while let Some(request) = read_request(&mut socket, &mut buffer).await? {
        match (request.method.as_str(), request.path.as_str()) {
            ("POST", "/runs") => {
                let script = run(&mut socket, &shared, &request.run, &mut answer).await?;
                if script.is_async {
                    let run = AppendingRun::of(&request.run, &request.body, script.deltas);
                    let run = run.ok_or(io::ErrorKind::InvalidData)?;
                    let _ = begin.send(run).await;
                }
            }
            ("GET", "/runners") => write_response(&mut socket, "200 OK", &manifests(&[])).await?,
            ("POST", "/control") => {
                let status = match shared.play(&request.body) {
                    Some(()) => "200 OK",
                    None => "400 Bad Request",
                };
                write_response(&mut socket, status, &json!({})).await?;
            }
            ("GET", "/control") => {
                let seen = json!({
                    "connections": shared.connections.load(Ordering::Relaxed),
                    "runs": shared.runs.load(Ordering::Relaxed),
                    "appended": shared.appended.load(Ordering::Relaxed),
                });
                write_response(&mut socket, "200 OK", &seen).await?;
            }
            ("POST", "/release") => {
                shared.signals.send_modify(|signals| signals.releases += 1);
                write_response(&mut socket, "200 OK", &json!({})).await?;
            }
            ("POST", "/tick") => {
                shared.signals.send_modify(|signals| signals.ticks += 1);
                write_response(&mut socket, "200 OK", &json!({})).await?;
            }
            ("POST", path) if path.ends_with("/cancel") => {
                note(&shared.cancelled, &request.run);
                write_response(&mut socket, "202 Accepted", &json!({})).await?;
            }
            _ => write_response(&mut socket, "404 Not Found", &json!({})).await?,
        }
    }
    Ok(())
}

/// Sends the prepared response, and returns its script.
async fn run(
    socket: &mut TcpStream,
    shared: &BenchStubState,
    run: &str,
    answer: &mut Vec<u8>,
) -> io::Result<StubScript> {
    shared.runs.fetch_add(1, Ordering::Relaxed);
    let prepared = shared.prepared();
    answer.clear();
    answer.extend_from_slice(&prepared.bytes);
    if run.len() == RUN_ID_PLACEHOLDER.len() {
        for at in &prepared.ids {
            answer[*at..at + run.len()].copy_from_slice(run.as_bytes());
        }
    }
    let mut signals = shared.signals.subscribe();
    let begin = *signals.borrow();
    let script = prepared.script;
    let free = script.hold_after.unwrap_or(usize::MAX);
    let (mut from, last) = (0, prepared.ends.len() - 1);
    for (number, end) in prepared.ends.iter().enumerate() {
        if let Some(beyond) = number.checked_sub(free) {
            let may_write = |now: &HoldSignals| {
                let is_due = number < last && now.ticks - begin.ticks > beyond as u64;
                is_due || now.releases != begin.releases
            };
            let mut byte = [0];
            tokio::select! {
                _ = signals.wait_for(may_write) => {}
                _ = socket.read(&mut byte) => {
                    note(&shared.closed, run);
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
            }
        }
        socket.write_all(&answer[from..*end]).await?;
        from = *end;
    }
    Ok(script)
}

/// The manifest of one runner with permission for these models.
pub(crate) fn manifests(models: &[&str]) -> Value {
    json!({"runners": [{
        "id": RUNNER_ID,
        "name": "default",
        "label": {"en_US": "Stub"},
        "capabilities": {
            "streaming": true, "interrupt": true, "tool_calling": false,
            "knowledge_retrieval": false, "multimodal_input": false, "event_context": false,
            "platform_api": false, "stateful_session": false, "self_managed_context": false,
            "skill_authoring": false, "steering": false, "interactions": false,
        },
        "permissions": {"history": ["page"], "models": models},
    }]})
}

pub(crate) async fn write_response(
    socket: &mut TcpStream,
    status: &str,
    body: &Value,
) -> io::Result<()> {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    socket.write_all(format!("{head}{body}").as_bytes()).await
}

/// Reads a request; `None` if the peer closed. Later bytes stay in `buffer`.
pub(crate) async fn read_request(
    socket: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<StubRequest>> {
    let head_end = loop {
        let found = buffer.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(at) = found {
            break at + 4;
        }
        if socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ');
    let mut request = StubRequest {
        method: first.next().unwrap_or_default().to_owned(),
        path: first.next().unwrap_or_default().to_owned(),
        run: String::new(),
        body: Vec::new(),
    };
    let mut length = 0;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap_or(0);
        } else if name.eq_ignore_ascii_case("runnel-run-id") {
            value.trim().clone_into(&mut request.run);
        }
    }
    while buffer.len() < head_end + length {
        if socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    request.body = buffer[head_end..head_end + length].to_vec();
    buffer.drain(..head_end + length);
    Ok(Some(request))
}
