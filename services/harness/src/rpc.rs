//! JSON-RPC 2.0 over standard input and output of a process, one message per line.

use std::time::Duration;

use agent_core::RunFailure;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};

use crate::failure::protocol_error;

/// Maximum bytes of a line.
pub(crate) const LINE_BYTES: usize = 8 * 1024 * 1024;
/// Maximum lines without a message in the output of one process, such as greetings of a package runner.
const NOISE_LINES: usize = 64;
/// Capacity of the outbox, in messages.
const OUTBOX: usize = 64;
/// Timeout of a send to a full outbox: the process reads none of its input.
const WRITE_TIME: Duration = Duration::from_secs(30);

/// JSON-RPC error code of an unsupported method.
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;

/// Message from the process.
#[derive(Debug, PartialEq)]
pub(crate) enum RpcMessage {
    Response {
        id: u64,
        result: Result<Value, RpcError>,
    },
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
}

/// Error response of the process.
#[derive(Debug, PartialEq)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    /// Message and data, at most 1,000 characters of each.
    pub(crate) message: String,
}

impl RpcError {
    /// Failure of a run that depends on this method.
    pub(crate) fn failure_of(&self, method: &str) -> RunFailure {
        protocol_error(format!("`{method}` failed: {}", self.message))
    }
}

/// Sends messages. Clones share the outbox.
#[derive(Clone)]
pub(crate) struct RpcSender(mpsc::Sender<String>);

/// Reads messages in order.
pub(crate) struct RpcReceiver {
    lines: FramedRead<ChildStdout, LinesCodec>,
    noise: usize,
    /// Task that writes queued messages.
    _tasks: JoinSet<()>,
}

/// Opens both directions. Writing ends with the last sender, or with the receiver.
pub(crate) fn open(stdin: ChildStdin, stdout: ChildStdout) -> (RpcSender, RpcReceiver) {
    let (outbox, waiting) = mpsc::channel(OUTBOX);
    let mut tasks = JoinSet::new();
    tasks.spawn(write(stdin, waiting));
    let lines = FramedRead::new(stdout, LinesCodec::new_with_max_length(LINE_BYTES));
    let inbox = RpcReceiver {
        lines,
        noise: 0,
        _tasks: tasks,
    };
    (RpcSender(outbox), inbox)
}

async fn write(mut stdin: ChildStdin, mut waiting: mpsc::Receiver<String>) {
    while let Some(line) = waiting.recv().await {
        // The reader reports the end of the process; an error here needs no second report.
        if stdin.write_all(line.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
            return;
        }
    }
}

impl RpcSender {
    /// Sends a request. The caller chooses a unique id.
    pub(crate) async fn request(
        &self,
        id: u64,
        method: &str,
        params: Value,
    ) -> Result<(), RunFailure> {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await
    }

    /// Sends a notification: a message without a response.
    pub(crate) async fn notify(&self, method: &str, params: Value) -> Result<(), RunFailure> {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
            .await
    }

    /// Sends the result of a request. `id`: as received, also a text.
    pub(crate) async fn answer(&self, id: &Value, result: Value) -> Result<(), RunFailure> {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
            .await
    }

    /// Rejects a request for an unsupported method.
    pub(crate) async fn refuse(&self, id: &Value, method: &str) -> Result<(), RunFailure> {
        let message = format!("Method not found: {method}");
        let error = json!({"code": METHOD_NOT_FOUND, "message": message});
        self.send(&json!({"jsonrpc": "2.0", "id": id, "error": error}))
            .await
    }

    /// Queues one message as a line. Fails after [`WRITE_TIME`] with a full outbox.
    pub(crate) async fn send(&self, message: &Value) -> Result<(), RunFailure> {
        let sending = self.0.send(format!("{message}\n"));
        match tokio::time::timeout(WRITE_TIME, sending).await {
            // A closed channel means that the process has ended, which the reader reports.
            Ok(_) => Ok(()),
            Err(_) => Err(protocol_error(format!(
                "the harness has read none of its input for {} s",
                WRITE_TIME.as_secs()
            ))),
        }
    }
}

impl RpcReceiver {
    /// Next message; `None` at the end of the output. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<RpcMessage>, RunFailure> {
        while let Some(line) = self.next_line().await? {
            match RpcMessage::parse(&line) {
                Some(frame) => return Ok(Some(frame)),
                None => self.count_noise(&line)?,
            }
        }
        Ok(None)
    }

    /// Next non-empty line. Cancel-safe.
    pub(crate) async fn next_line(&mut self) -> Result<Option<String>, RunFailure> {
        while let Some(line) = self.lines.next().await {
            match line {
                Ok(line) if line.trim().is_empty() => {}
                Ok(line) => return Ok(Some(line)),
                Err(LinesCodecError::MaxLineLengthExceeded) => {
                    return Err(protocol_error(format!(
                        "the harness wrote a line of more than {LINE_BYTES} bytes"
                    )));
                }
                Err(LinesCodecError::Io(error)) => {
                    return Err(protocol_error(format!(
                        "the output of the harness cannot be read: {error}"
                    )));
                }
            }
        }
        Ok(None)
    }

    /// Counts a line without a message. Fails beyond [`NOISE_LINES`].
    pub(crate) fn count_noise(&mut self, line: &str) -> Result<(), RunFailure> {
        self.noise += 1;
        // Only the size: the line may hold text of the conversation.
        let bytes = line.len();
        tracing::debug!(bytes, "skipped a line of the harness that is no message");
        if self.noise > NOISE_LINES {
            return Err(protocol_error(format!(
                "the harness wrote more than {NOISE_LINES} lines that are no message; is its command in the protocol's mode?"
            )));
        }
        Ok(())
    }
}

impl RpcMessage {
    /// Parses one line; `None` if it is no message. `jsonrpc` is optional: Codex omits it.
    fn parse(line: &str) -> Option<Self> {
        let Ok(Value::Object(mut message)) = serde_json::from_str(line) else {
            return None;
        };
        let id = message.remove("id").filter(|id| !id.is_null());
        let method = match message.remove("method") {
            Some(Value::String(method)) => Some(method),
            _ => None,
        };
        let params = message.remove("params").unwrap_or_default();
        match (id, method) {
            (Some(id), Some(method)) => Some(Self::Request { id, method, params }),
            (None, Some(method)) => Some(Self::Notification { method, params }),
            (Some(id), None) => {
                // Responses refer to requests of this side, whose ids are numbers.
                let id = id.as_u64()?;
                let result = match message.remove("error") {
                    Some(error) if !error.is_null() => Err(RpcError::read(&error)),
                    _ => Ok(message.remove("result").unwrap_or_default()),
                };
                Some(Self::Response { id, result })
            }
            (None, None) => None,
        }
    }
}

impl RpcError {
    fn read(error: &Value) -> Self {
        let message = error["message"].as_str().unwrap_or("no message");
        let mut message: String = message.chars().take(1_000).collect();
        // Several harnesses put the cause into `data` only.
        let data = &error["data"];
        if !data.is_null() {
            let data = data
                .as_str()
                .map_or_else(|| data.to_string(), str::to_owned);
            message.push_str(": ");
            message.extend(data.chars().take(1_000));
        }
        Self {
            code: error["code"].as_i64().unwrap_or_default(),
            message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_three_kinds_of_messages() {
        let parse = |text: &str| RpcMessage::parse(text);
        assert_eq!(
            parse(r#"{"jsonrpc":"2.0","id":7,"result":{"a":1}}"#),
            Some(RpcMessage::Response {
                id: 7,
                result: Ok(json!({"a": 1}))
            })
        );
        assert_eq!(
            parse(r#"{"id":"x","method":"m"}"#),
            Some(RpcMessage::Request {
                id: json!("x"),
                method: "m".to_owned(),
                params: Value::Null
            })
        );
        assert_eq!(
            parse(r#"{"method":"m","params":[1]}"#),
            Some(RpcMessage::Notification {
                method: "m".to_owned(),
                params: json!([1])
            })
        );
        for noise in ["hello", "[]", "{}", r#"{"id":"x","result":1}"#, "{\"id\":1"] {
            assert_eq!(parse(noise), None, "{noise}");
        }
    }

    #[test]
    fn keeps_the_cause_of_an_error() {
        let line = r#"{"id":1,"error":{"code":-32000,"message":"no","data":{"details":"why"}}}"#;
        let Some(RpcMessage::Response {
            result: Err(error), ..
        }) = RpcMessage::parse(line)
        else {
            panic!("not an error")
        };
        assert_eq!(error.code, -32000);
        assert_eq!(error.message, r#"no: {"details":"why"}"#);
    }
}
