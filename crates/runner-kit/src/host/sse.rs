//! Events of a model stream. The gateway writes each on one `data:` line.

use std::io;

use futures_util::stream::{self, BoxStream, Stream, StreamExt, TryStreamExt};
use protocol::error::AgentApiError;
use protocol::model::LlmStreamEvent;
use reqwest::Response;
use serde::Deserialize;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;

use crate::host::HostError;

/// Limit of an event, in bytes; the gateway stays below it.
const LINE_BYTES: usize = 16 * 1024 * 1024;

/// Data of an event: a chunk of the answer, or its end.
#[derive(Deserialize)]
struct SseData {
    error: Option<AgentApiError>,
    #[serde(flatten)]
    event: LlmStreamEvent,
}

/// Events of a response, up to its end or the first error.
pub(super) fn events(answer: Response) -> BoxStream<'static, Result<LlmStreamEvent, HostError>> {
    let bytes = answer.bytes_stream().map_err(io::Error::other);
    let lines = LinesCodec::new_with_max_length(LINE_BYTES);
    until_error(FramedRead::new(StreamReader::new(bytes), lines)).boxed()
}

fn until_error(
    lines: impl Stream<Item = Result<String, LinesCodecError>> + Send + Unpin + 'static,
) -> impl Stream<Item = Result<LlmStreamEvent, HostError>> + Send {
    stream::unfold(Some(lines), |lines| async move {
        let mut lines = lines?;
        loop {
            let event = match lines.next().await? {
                Ok(line) => match line.strip_prefix("data:") {
                    Some(data) => read(data),
                    // `event:` lines, comments (heartbeats) and the empty lines between events.
                    None => continue,
                },
                Err(LinesCodecError::MaxLineLengthExceeded) => {
                    Err(HostError::answer_too_large(LINE_BYTES))
                }
                Err(LinesCodecError::Io(error)) => Err(HostError::cut(error)),
            };
            // Drops the response after an error: the position in the stream is lost.
            let lines = event.is_ok().then_some(lines);
            return Some((event, lines));
        }
    })
}

fn read(data: &str) -> Result<LlmStreamEvent, HostError> {
    let data: SseData = serde_json::from_str(data).map_err(HostError::unreadable_answer)?;
    match data.error {
        Some(error) => Err(error.into()),
        None => Ok(data.event),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(lines: &[&str], expected: &[&str]) {
        let lines: Vec<_> = lines.iter().map(|line| Ok((*line).to_owned())).collect();
        let events = until_error(stream::iter(lines)).map(|event| match event {
            Ok(LlmStreamEvent {
                chunk: Some(chunk), ..
            }) => chunk
                .content
                .map(|content| content.plain_text())
                .unwrap_or_default(),
            Ok(event) => format!("{:?}", event.usage.and_then(|usage| usage.total_tokens)),
            Err(error) => error.code,
        });
        assert_eq!(events.collect::<Vec<_>>().await, expected);
    }

    #[tokio::test]
    async fn ends_event_stream_after_error() {
        let chunk = r#"data: {"chunk":{"role":"assistant","content":"hi"}}"#;
        let usage = r#"data:{"usage":{"total_tokens":7}}"#;
        let error = r#"data: {"error":{"code":"rate_limited","message":"wait","retryable":true,"details":{}}}"#;
        check(
            &["event: chunk", chunk, "", ": alive", usage, ""],
            &["hi", "Some(7)"],
        )
        .await;
        check(&[chunk, error, chunk], &["hi", "rate_limited"]).await;
        check(
            &[chunk, "data: {", chunk],
            &["hi", "callback.invalid_answer"],
        )
        .await;
    }
}
