//! The server of models and tools, with fixed latencies and counters of requests.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::arms::Arm;
use super::policy::{self, PolicyOutput};
use super::real::RealModel;
use super::seen::ModelRequest;
use super::world;
use crate::stub::{read_request, write_response};

/// Latency of a model call.
pub(super) const MODEL: Duration = Duration::from_millis(300);
/// Latency of a tool call.
pub(super) const TOOL: Duration = Duration::from_millis(100);
/// Latency of the call during which a runner restarts.
const SLOW: Duration = Duration::from_secs(2);
const SLOW_TOOL: &str = "check_calendar";
/// The model of child agents.
pub(super) const CHILD: &str = "child";
/// Characters per token; the estimate is the same for all arms.
pub(super) const TOKEN_CHARS: usize = 4;

/// Counts of one play.
#[derive(Clone, Debug, Default)]
pub(super) struct PlayCounts {
    pub(super) model_calls: usize,
    /// Model calls of child runs.
    pub(super) child_calls: usize,
    pub(super) chars_in: usize,
    pub(super) chars_out: usize,
    pub(super) chars_shown: usize,
    pub(super) repairs: usize,
    /// Calls by tool.
    pub(super) tools: BTreeMap<String, usize>,
}

#[derive(Default)]
struct PlayState {
    salt: String,
    tally: PlayCounts,
    /// True when the slow tool was called in this play.
    slow_tool_was_called: bool,
}

/// State shared by the connections.
struct CompareState {
    state: Mutex<PlayState>,
    slow: Notify,
    real: Option<RealModel>,
}

/// The server. It stops on drop.
pub(super) struct CompareUpstream {
    pub(super) address: String,
    shared: Arc<CompareState>,
    _serving: JoinSet<()>,
}

impl CompareUpstream {
    /// Serves the scripted model, or forwards requests to a real one.
    pub(super) async fn start(real: Option<RealModel>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let shared = Arc::new(CompareState {
            state: Mutex::default(),
            slow: Notify::new(),
            real,
        });
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            _serving: serving,
        })
    }

    /// Begins a play: resets the counters and sets the salt of the tokens.
    pub(super) fn begin(&self, salt: &str) {
        *self.shared.state() = PlayState {
            salt: salt.to_owned(),
            ..PlayState::default()
        };
    }

    /// The counts since the play began.
    pub(super) fn tally(&self) -> PlayCounts {
        self.shared.state().tally.clone()
    }

    /// Returns once the slow tool was called.
    pub(super) async fn slow_tool_called(&self) {
        self.shared.slow.notified().await;
    }
}

impl CompareState {
    fn state(&self) -> MutexGuard<'_, PlayState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(listener: TcpListener, shared: Arc<CompareState>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((socket, _)) = accepted {
                connections.spawn(serve_connection(socket, Arc::clone(&shared)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_connection(mut socket: TcpStream, shared: Arc<CompareState>) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut socket, &mut buffer).await? {
        let body = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
        match request.path.strip_prefix("/tools/") {
            Some(tool) => next_choice(&mut socket, &shared, tool, &body).await?,
            None => respond(&mut socket, &shared, &body).await?,
        }
    }
    Ok(())
}

async fn next_choice(
    socket: &mut TcpStream,
    shared: &CompareState,
    tool: &str,
    args: &Value,
) -> io::Result<()> {
    let (salt, is_slow) = {
        let mut state = shared.state();
        *state.tally.tools.entry(tool.to_owned()).or_default() += 1;
        let is_slow = tool == SLOW_TOOL && !state.slow_tool_was_called;
        state.slow_tool_was_called |= is_slow;
        (state.salt.clone(), is_slow)
    };
    if is_slow {
        shared.slow.notify_one();
    }
    tokio::time::sleep(if is_slow { SLOW } else { TOOL }).await;
    match world::answer(tool, args, &salt) {
        world::ToolResponse::Json(answer) => write_response(socket, "200 OK", &answer).await,
        world::ToolResponse::Fails(why) => {
            write_response(socket, "409 Conflict", &json!({"error": why})).await
        }
        world::ToolResponse::Text(text) => {
            let length = text.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n"
            );
            socket.write_all(head.as_bytes()).await?;
            socket.write_all(text.as_bytes()).await
        }
    }
}

async fn respond(socket: &mut TcpStream, shared: &CompareState, body: &Value) -> io::Result<()> {
    let model = body["model"].as_str().unwrap_or_default();
    let arm = Arm::of(model);
    let seen = ModelRequest::of(arm, body);
    let salt = {
        let mut state = shared.state();
        let tally = &mut state.tally;
        if model == CHILD {
            tally.child_calls += 1;
        } else {
            tally.model_calls += 1;
            tally.chars_in += seen.chars;
            tally.chars_shown += seen.shown;
            tally.repairs += usize::from(seen.is_repair);
        }
        state.salt.clone()
    };
    let choice = match (&shared.real, arm) {
        (Some(real), Some(arm)) => real
            .answer(arm, &seen, body)
            .await
            .inspect_err(|error| println!("the real model failed: {error:#}"))
            .ok(),
        (_, Some(arm)) => {
            tokio::time::sleep(MODEL).await;
            policy::next(arm, &seen).map(|output| choice(&output))
        }
        (_, None) => {
            tokio::time::sleep(MODEL).await;
            let topic = if seen.text.contains("topic 2") { 2 } else { 1 };
            let message = json!({"content": format!("finding-{topic}-{salt}")});
            Some(json!({"message": message, "finish_reason": "stop"}))
        }
    };
    let Some(choice) = choice else {
        return write_response(
            socket,
            "500 Off Script",
            &json!({"error": {"message": "off script"}}),
        )
        .await;
    };
    let message = &choice["message"];
    if model != CHILD {
        let mut out = message["content"]
            .as_str()
            .map_or(0, |text| text.chars().count());
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        out += calls
            .map(|call| call["function"].to_string().chars().count())
            .sum::<usize>();
        shared.state().tally.chars_out += out;
    }
    let tokens = |chars: usize| chars / TOKEN_CHARS;
    let usage = json!({
        "prompt_tokens": tokens(seen.chars), "completion_tokens": 1, "total_tokens": tokens(seen.chars) + 1,
    });
    if body["stream"] == true {
        return stream(socket, &choice, &usage).await;
    }
    let answer =
        json!({"id": "bench", "object": "chat.completion", "choices": [choice], "usage": usage});
    write_response(socket, "200 OK", &answer).await
}

/// The output as a choice of a completion.
fn choice(output: &PolicyOutput) -> Value {
    let call = |number: usize, name: &str, args: &Value| {
        json!({
            "id": format!("call_{number}"), "type": "function",
            "function": {"name": name, "arguments": args.to_string()},
        })
    };
    let calls = match output {
        PolicyOutput::Text(text) => {
            let message = json!({"role": "assistant", "content": text});
            return json!({"index": 0, "message": message, "finish_reason": "stop"});
        }
        PolicyOutput::Carrier(args) => vec![call(1, "AgentProtocolOutput", args)],
        PolicyOutput::Calls(calls) => {
            let calls = (1..).zip(calls);
            calls
                .map(|(number, (name, args))| call(number, name, args))
                .collect()
        }
    };
    let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
    json!({"index": 0, "message": message, "finish_reason": "tool_calls"})
}

/// Streams one chunk with the message, one with the finish reason, one with the usage.
async fn stream(socket: &mut TcpStream, choice: &Value, usage: &Value) -> io::Result<()> {
    let mut delta = choice["message"].clone();
    for (index, call) in (0..).zip(delta["tool_calls"].as_array_mut().into_iter().flatten()) {
        call["index"] = json!(index);
    }
    let chunk = |choices: Value, usage: &Value| {
        let event = json!({"id": "bench", "object": "chat.completion.chunk", "choices": choices, "usage": usage});
        format!("data: {event}\n\n")
    };
    let none = Value::Null;
    let body = [
        chunk(
            json!([{"index": 0, "delta": delta, "finish_reason": null}]),
            &none,
        ),
        chunk(
            json!([{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]),
            &none,
        ),
        chunk(json!([]), usage),
        "data: [DONE]\n\n".to_owned(),
    ]
    .concat();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n"
    );
    socket.write_all(format!("{head}{body}").as_bytes()).await
}
