//! Model server and tool server of the script. Both answer after a fixed delay and measure their real working
//! time.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::stub::{read_request, write_response};

/// Delays: before the first piece, between pieces, and before the tool's response.
pub(super) const FIRST: Duration = Duration::from_millis(50);
pub(super) const NEXT: Duration = Duration::from_millis(5);
pub(super) const TOOL: Duration = Duration::from_millis(50);
/// Pieces of one model response.
pub(super) const PIECES: usize = 40;

/// Messages of the user. The second turn needs the conversation history.
pub(super) const LINES: [&str; 2] = ["I am Ada. How is the weather?", "Who am I?"];
const REMEMBERED: &str = "I am Ada.";

/// The server of model and tool. It stops on drop.
pub(super) struct ScriptServers {
    pub(super) address: String,
    worked: Arc<Mutex<Duration>>,
    _serving: JoinSet<()>,
}

impl ScriptServers {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let worked = Arc::default();
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, Arc::clone(&worked)));
        Ok(Self {
            address,
            worked,
            _serving: serving,
        })
    }

    /// Takes the working time of model and tool since the last call: from the last byte of each request to the
    /// last byte of its response.
    pub(super) fn worked(&self) -> Duration {
        std::mem::take(&mut *self.worked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn serve(listener: TcpListener, worked: Arc<Mutex<Duration>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((socket, _)) = accepted {
                connections.spawn(serve_connection(socket, Arc::clone(&worked)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_connection(mut socket: TcpStream, worked: Arc<Mutex<Duration>>) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(16 * 1024);
    while let Some(request) = read_request(&mut socket, &mut buffer).await? {
        let begin = Instant::now();
        if request.path.ends_with("/chat/completions") {
            match pieces(&request.body) {
                Some(pieces) => stream_pieces(&mut socket, &pieces).await?,
                None => write_response(&mut socket, "500 Off Script", &json!({})).await?,
            }
        } else {
            tokio::time::sleep(TOOL).await;
            write_response(&mut socket, "200 OK", &json!({"degrees": 20})).await?;
        }
        *worked.lock().unwrap_or_else(PoisonError::into_inner) += begin.elapsed();
    }
    Ok(())
}

/// Returns the pieces of the model's response; `None` if the request is not part of the script.
fn pieces(body: &[u8]) -> Option<Vec<Value>> {
    let request: Value = serde_json::from_slice(body).ok()?;
    let messages = request["messages"].as_array()?;
    let last = messages.last()?;
    let says = |line: &str| last["content"].to_string().contains(line);
    let text = |text: String| json!({"content": text});
    let words = || (1..=PIECES).map(|number| text(format!("word {number} ")));
    if last["role"] == "tool" {
        return says("degrees").then(|| words().collect());
    }
    if says(LINES[0]) {
        let function = json!({"name": "look", "arguments": "{\"city\":\"Berlin\"}"});
        let call = json!({"index": 0, "id": "call_1", "type": "function", "function": function});
        let calling = json!({"tool_calls": [call]});
        return Some(vec![text("Let me look.".to_owned()), calling]);
    }
    let remembers = Value::from(messages.clone())
        .to_string()
        .contains(REMEMBERED);
    (says(LINES[1]) && remembers).then(|| words().collect())
}

/// Streams the pieces, one write each.
async fn stream_pieces(socket: &mut TcpStream, pieces: &[Value]) -> io::Result<()> {
    tokio::time::sleep(FIRST).await;
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    socket.write_all(head.as_bytes()).await?;
    let mut calls = false;
    for delta in pieces {
        calls |= delta.get("tool_calls").is_some();
        frame(
            socket,
            &json!([{"index": 0, "delta": delta, "finish_reason": null}]),
            &json!(null),
        )
        .await?;
        tokio::time::sleep(NEXT).await;
    }
    let reason = if calls { "tool_calls" } else { "stop" };
    let end = json!([{"index": 0, "delta": {}, "finish_reason": reason}]);
    frame(socket, &end, &json!(null)).await?;
    let usage = json!({"prompt_tokens": 50, "completion_tokens": pieces.len(), "total_tokens": 50 + pieces.len()});
    frame(socket, &json!([]), &usage).await?;
    socket
        .write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        .await
}

async fn frame(socket: &mut TcpStream, choices: &Value, usage: &Value) -> io::Result<()> {
    let event = json!({"id": "bench", "object": "chat.completion.chunk", "choices": choices, "usage": usage});
    let frame = format!("data: {event}\n\n");
    let chunk = format!("{:x}\r\n{frame}\r\n", frame.len());
    socket.write_all(chunk.as_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks how many pieces answer these messages.
    fn check(messages: &Value, expected: Option<usize>) {
        let body = json!({"messages": messages}).to_string();
        let answered = pieces(body.as_bytes()).map(|pieces| pieces.len());
        assert_eq!(answered, expected, "{messages}");
    }

    #[test]
    fn scripted_model_requires_conversation_history() {
        let [first, second] = LINES.map(|line| json!({"role": "user", "content": line}));
        let looked = json!({"role": "tool", "content": "{\"degrees\":20}"});
        check(&json!([first]), Some(2));
        check(&json!([first, looked]), Some(PIECES));
        check(&json!([first, second]), Some(PIECES));
        check(&json!([second]), None);
        check(&json!([first, {"role": "tool", "content": "Error"}]), None);
    }
}
