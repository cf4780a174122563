//! Validates messages of a server before JSON values are built.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use domain::json_repair::repair_json_text;
use domain::json_text::check_json_text;
use rmcp::model::RequestId;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio_util::codec::Decoder;

use super::content_blocks::readable;
use telemetry::tolerance::{Peer, tolerated};

/// Error code that replaces an unreadable response.
pub(super) const UNREADABLE: i32 = -31_999;

/// An unreadable message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RejectedMessage {
    /// An error response for the pending request, if any.
    pub(super) instead: Option<String>,
}

/// The members that identify a pending request. Other members are skipped.
#[derive(Deserialize)]
struct PendingId {
    id: Option<RequestId>,
    method: Option<IgnoredAny>,
}

/// Validates a message. Text that is not JSON passes; the parser reports it.
pub(super) fn check_message(message: &[u8]) -> Result<(), RejectedMessage> {
    let Err(fault) = check_json_text(message) else {
        return Ok(());
    };
    let envelope: Option<PendingId> = serde_json::from_slice(message).ok();
    // A message with a method is a request of the server with its own id.
    let answered = envelope.filter(|envelope| envelope.method.is_none());
    let answered = answered.and_then(|envelope| envelope.id);
    let instead = answered.map(|id| {
        let error = json!({"code": UNREADABLE, "message": format!("it {fault}")});
        json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()
        // The caller would otherwise wait for its timeout.
    });
    Err(RejectedMessage { instead })
}

/// Members that mark a JSON-RPC message.
#[derive(Deserialize)]
struct MessageMarkers<'a> {
    #[serde(borrow)]
    jsonrpc: Option<Cow<'a, str>>,
    method: Option<Cow<'a, str>>,
    result: Option<IgnoredAny>,
    error: Option<IgnoredAny>,
}

/// True if a line is a message. Other lines on standard output, such as logs, are noise.
fn is_message(line: &[u8]) -> bool {
    // Programs on Windows may begin with a byte order mark.
    let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
    let begins = line.iter().find(|byte| !byte.is_ascii_whitespace());
    let marks: Option<MessageMarkers<'_>> = serde_json::from_slice(line).ok();
    // Without this check an array would be deserialized by position.
    begins == Some(&b'{')
        && marks.is_some_and(|marks| {
            let has_body =
                marks.method.is_some() || marks.result.is_some() || marks.error.is_some();
            marks.jsonrpc.as_deref() == Some("2.0") && has_body
        })
}

/// Replaces invalid characters with U+FFFD. Other defects stay.
pub(super) fn repaired<'a>(message: &'a [u8], server: &str) -> Cow<'a, [u8]> {
    let repaired = repair_json_text(message);
    if matches!(repaired, Cow::Owned(_)) {
        tolerated(Peer::ToolServer, "text_repaired", server);
    }
    repaired
}

/// Replaces invalid UTF-8 in a chunked stream with U+FFFD. A character may span two chunks.
#[derive(Debug, Default)]
pub(super) struct Utf8Repairer {
    /// Incomplete character at the end of the last chunk.
    open: Vec<u8>,
}

impl Utf8Repairer {
    pub(super) fn push(&mut self, chunk: Bytes) -> Bytes {
        if self.open.is_empty() && std::str::from_utf8(&chunk).is_ok() {
            return chunk;
        }
        let mut bytes = std::mem::take(&mut self.open);
        bytes.extend_from_slice(&chunk);
        let (mut text, mut rest) = (String::new(), bytes.as_slice());
        loop {
            let fault = match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    break;
                }
                Err(fault) => fault,
            };
            let (valid, bad) = rest.split_at(fault.valid_up_to());
            text.push_str(std::str::from_utf8(valid).unwrap_or_default());
            let Some(length) = fault.error_len() else {
                self.open = bad.to_vec();
                break;
            };
            text.push(char::REPLACEMENT_CHARACTER);
            rest = &bad[length..];
        }
        text.into()
    }
}

/// Valid messages of a process, one per line. Unreadable responses are replaced by errors. Noise and oversized
/// lines are dropped.
pub(super) struct MessageLines {
    server: Arc<str>,
    noise: Arc<AtomicU64>,
    max_bytes: usize,
    /// Number of scanned bytes of the current line.
    looked: usize,
    is_dropping: bool,
}

impl MessageLines {
    /// `noise` counts lines that are not messages.
    pub(super) fn new(server: Arc<str>, noise: Arc<AtomicU64>, max_bytes: usize) -> Self {
        Self {
            server,
            noise,
            max_bytes,
            looked: 0,
            is_dropping: false,
        }
    }

    fn count_noise(&self) {
        // Only the first line is logged; a chatty server would fill the log.
        if self.noise.fetch_add(1, Ordering::Relaxed) == 0 {
            tolerated(Peer::ToolServer, "noise_on_stdout", &self.server);
            tracing::warn!(
                mcp.server = &*self.server,
                "MCP server {} writes lines to standard output that are not JSON-RPC messages; they are ignored and \
                 counted: let it log to standard error",
                self.server
            );
        }
    }
}

impl Decoder for MessageLines {
    type Item = Bytes;
    type Error = std::io::Error;

    fn decode(&mut self, read: &mut BytesMut) -> Result<Option<Bytes>, Self::Error> {
        loop {
            // Bytes before `looked` have no line end; scanning them again would take quadratic time.
            let new = read.get(self.looked..).unwrap_or_default();
            let Some(end) = new.iter().position(|byte| *byte == b'\n') else {
                break;
            };
            let line = read.split_to(self.looked + end + 1);
            self.looked = 0;
            let is_dropped = std::mem::take(&mut self.is_dropping) || line.len() > self.max_bytes;
            if is_dropped || line.trim_ascii().is_empty() {
                continue;
            }
            let line = match repaired(&line, &self.server) {
                Cow::Borrowed(_) => line.freeze(),
                Cow::Owned(repaired) => repaired.into(),
            };
            match check_message(&line) {
                Ok(()) if is_message(&line) => {
                    return Ok(Some(match readable(&line, &self.server) {
                        Cow::Borrowed(_) => line,
                        // The line break ends the message for the SDK.
                        Cow::Owned(read) => [&read, b"\n".as_slice()].concat().into(),
                    }));
                }
                Ok(()) => self.count_noise(),
                Err(RejectedMessage { instead: None }) => {}
                Err(RejectedMessage {
                    instead: Some(error),
                }) => return Ok(Some(format!("{error}\n").into())),
            }
        }
        self.looked = read.len();
        if self.looked > self.max_bytes {
            read.clear();
            (self.looked, self.is_dropping) = (0, true);
        }
        Ok(None)
    }

    fn decode_eof(&mut self, read: &mut BytesMut) -> Result<Option<Bytes>, Self::Error> {
        let line = self.decode(read)?;
        if line.is_none() {
            // The rest of an oversized line at the end of the stream.
            read.clear();
        }
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt as _;
    use serde_json::Value;
    use tokio_util::codec::FramedRead;

    use super::*;

    fn many(message: &str) -> String {
        message.replace("MANY", &format!("[{}0]", "0,".repeat(200_000)))
    }

    #[test]
    fn unreadable_responses_become_errors_of_their_call() {
        for (message, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":MANY}"#, json!(7)),
            (r#"{"result":MANY,"id":"a","jsonrpc":"2.0"}"#, json!("a")),
        ] {
            let unsound = check_message(many(message).as_bytes()).unwrap_err();
            let error: Value = serde_json::from_str(&unsound.instead.unwrap()).unwrap();
            assert_eq!(error["id"], id, "{message}");
            assert_eq!(error["error"]["code"], UNREADABLE, "{message}");
        }
        for nobody_waits in [
            r#"{"id":7,"method":"ping","params":MANY}"#,
            r#"{"method":"notifications/message","params":MANY}"#,
            "MANY",
        ] {
            let unsound = check_message(many(nobody_waits).as_bytes()).unwrap_err();
            assert_eq!(unsound.instead, None, "{nobody_waits}");
        }
        for message_limits in [r#"{"id":7,"result":{}}"#, "no JSON", ""] {
            assert!(check_message(message_limits.as_bytes()).is_ok());
        }
    }

    #[tokio::test]
    async fn reads_process_output_line_by_line() {
        let deep = format!(r#"{{"id":7,"result":{}}}"#, "[".repeat(70_000));
        let long = "x".repeat(100_001);
        let message = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        let output = format!("{message}\r\n\n{long}\nb\n{deep}\n{long}{long}\n{message}\nrest");
        let (noise, server) = (Arc::<AtomicU64>::default(), "s".into());
        let lines = MessageLines::new(server, Arc::clone(&noise), 100_000);
        let lines = FramedRead::new(output.as_bytes(), lines);
        let lines: Vec<_> = lines.try_collect().await.unwrap();
        let lines: Vec<_> = lines
            .iter()
            .map(|line| String::from_utf8_lossy(line))
            .collect();
        assert_eq!(
            lines,
            [format!("{message}\r\n"), format!("{message}\n")],
            "deep is no JSON"
        );
        assert_eq!(noise.load(Ordering::Relaxed), 1, "b");
    }

    #[tokio::test]
    async fn unknown_blocks_keep_their_line() {
        let output = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"x"}]}}"#;
        let output = format!("{output}\n{output}\n");
        let lines = MessageLines::new("s".into(), Arc::default(), 1000);
        let lines: Vec<_> = FramedRead::new(output.as_bytes(), lines)
            .try_collect()
            .await
            .unwrap();
        for line in &lines {
            let read: Value = serde_json::from_slice(line).unwrap();
            assert_eq!(read["result"]["content"][0]["type"], "text");
            assert_eq!(line.last(), Some(&b'\n'));
        }
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn only_json_rpc_objects_are_messages() {
        for (line, expected) in [
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, true),
            ("\u{feff}{\"jsonrpc\":\"2.0\",\"method\":\"m\"}", true),
            (r#" {"id":null,"error":{},"jsonrpc":"2.0"}"#, true),
            (r#"{"jsonrpc":"2.0"}"#, false),
            (r#"{"jsonrpc":"1.0","method":"m"}"#, false),
            (r#"{"jsonrpc":2.0,"method":"m"}"#, false),
            (r#"{"level":30,"msg":"x"}"#, false),
            (r#"["2.0","m",{},{}]"#, false),
            ("42", false),
            ("null", false),
            ("[]", false),
            ("listening on stdio", false),
        ] {
            assert_eq!(is_message(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn replaces_bytes_across_chunks() {
        let mut mender = Utf8Repairer::default();
        let text = "aä€😀".as_bytes();
        let mut read = Vec::new();
        for byte in text.iter().copied().chain([0xFF, b'b', 0xC3, b'c']) {
            read.extend(mender.push(Bytes::copy_from_slice(&[byte])));
        }
        assert_eq!(String::from_utf8(read).unwrap(), "aä€😀\u{fffd}b\u{fffd}c");
    }

    #[tokio::test]
    async fn replaces_bad_characters_only() {
        let output = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"a\\u0000b\\ud800c\xFFd\"}\n";
        let lines = MessageLines::new("s".into(), Arc::default(), 1000);
        let lines: Vec<_> = FramedRead::new(&output[..], lines)
            .try_collect()
            .await
            .unwrap();
        let read: Value = serde_json::from_slice(&lines[0]).unwrap();
        assert_eq!(read["result"], "a\u{fffd}b\u{fffd}c\u{fffd}d");
    }
}
