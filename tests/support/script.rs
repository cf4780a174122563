//! Scripts of the stub runner: responses to `POST /runs`, byte for byte.

use std::fmt::Display;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Pauses a script until the test cancels the token.
pub type Gate = CancellationToken;

/// A step of a script. The stub closes the socket after the last step.
#[derive(Clone)]
pub enum ScriptStep {
    Send(Vec<u8>),
    /// Sends the chunks in order, with a pause after each.
    Pace(Vec<Vec<u8>>, Duration),
    /// Sends these bytes at this interval until the gateway closes, which `StubRunner::closed` counts.
    Repeat(Vec<u8>, Duration),
    Hold(Gate),
    /// Waits until the gateway closes. `StubRunner::closed` counts that, and failed writes, too.
    AwaitClose,
    /// Closes with RST instead of FIN.
    Reset,
}

pub type RunScript = fn(&Run) -> Vec<ScriptStep>;

/// The run that a script answers.
pub struct Run {
    pub id: String,
    /// Empty for a resume.
    pub event_id: String,
    pub attempt: u32,
    /// Last stored result by a resume; 0 for none.
    pub after: u64,
}

impl Run {
    /// A result as JSON; `sequence` is written verbatim.
    pub fn json(&self, sequence: impl Display, kind: &str, data: &str) -> String {
        let id = &self.id;
        format!(r#"{{"run_id":"{id}","type":"{kind}","data":{data},"sequence":{sequence}}}"#)
    }

    pub fn result(&self, sequence: impl Display, kind: &str, data: &str) -> String {
        frame(&self.json(sequence, kind, data))
    }

    /// A result without a sequence number.
    pub fn unnumbered(&self, kind: &str, data: &str) -> String {
        frame(&format!(
            r#"{{"run_id":"{}","type":"{kind}","data":{data}}}"#,
            self.id
        ))
    }

    pub fn delta(&self, sequence: impl Display, text: &str) -> String {
        self.result(sequence, "message.delta", &chunk(text))
    }

    pub fn completed(&self, sequence: impl Display) -> String {
        self.result(sequence, "run.completed", r#"{"finish_reason":"stop"}"#)
    }

    pub fn failed(&self, sequence: impl Display) -> String {
        self.result(
            sequence,
            "run.failed",
            r#"{"code":"boom","message":"it broke"}"#,
        )
    }

    /// Deltas up to `count` and `run.completed`, without the results that the gateway has stored.
    pub fn rest(&self, count: u64) -> String {
        let deltas = (self.after + 1..=count).map(|n| self.delta(n, &format!("{n} ")));
        deltas.chain([self.completed(count + 1)]).collect()
    }

    /// Deltas 1..=count and `run.completed`.
    pub fn talk(&self, count: usize) -> Vec<String> {
        let mut frames: Vec<_> = (1..=count)
            .map(|n| self.delta(n, &format!("{n} ")))
            .collect();
        frames.push(self.completed(count + 1));
        frames
    }
}

/// The payload of a `message.delta`.
pub fn chunk(text: &str) -> String {
    format!(r#"{{"chunk":{{"role":"assistant","content":"{text}"}}}}"#)
}

pub fn frame(json: &str) -> String {
    format!("data: {json}\n\n")
}

pub fn send(bytes: impl AsRef<[u8]>) -> ScriptStep {
    ScriptStep::Send(bytes.as_ref().to_vec())
}

/// A response head with `headers`, each ended by CRLF. The end of the connection ends the body.
pub fn head(status: &str, headers: &str) -> ScriptStep {
    send(format!(
        "HTTP/1.1 {status}\r\n{headers}connection: close\r\n\r\n"
    ))
}

pub fn sse_head() -> ScriptStep {
    head("200 OK", "content-type: text/event-stream\r\n")
}

/// A complete stream in one write, then a clean close.
pub fn sse(body: impl AsRef<[u8]>) -> Vec<ScriptStep> {
    vec![sse_head(), send(body)]
}

/// A stream that sends `body` and then waits for the gateway to close.
pub fn sse_and_wait(body: impl AsRef<[u8]>) -> Vec<ScriptStep> {
    vec![sse_head(), send(body), ScriptStep::AwaitClose]
}

/// A stream that sends `first`, waits at `gate`, and then sends `rest`.
pub fn sse_around(gate: &Gate, first: impl AsRef<[u8]>, rest: impl AsRef<[u8]>) -> Vec<ScriptStep> {
    let hold = ScriptStep::Hold(gate.clone());
    vec![sse_head(), send(first), hold, send(rest)]
}

/// A stream in chunked coding; each part is a separate chunk.
pub fn sse_in_chunks<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<ScriptStep> {
    let mut body = Vec::new();
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        body.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        body.extend_from_slice(part);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"0\r\n\r\n");
    vec![chunked_head(), send(body)]
}

fn chunked_head() -> ScriptStep {
    head(
        "200 OK",
        "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n",
    )
}

/// A complete response with other headers.
pub fn answer(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Vec<ScriptStep> {
    vec![head(status, headers), send(body)]
}
