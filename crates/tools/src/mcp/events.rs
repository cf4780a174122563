//! Event streams of a server: bounded, and repaired before parsing.

use std::sync::Arc;

use egress::Response;
use futures_util::stream;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use rmcp::transport::streamable_http_client::SseError;
use sse_stream::{Sse, SseStream};
use tokio::time::{Instant, sleep_until};

use super::super::result_size::ANSWER_BYTES;
use super::content_blocks::readable;
use super::message_limits::{RejectedMessage, Utf8Repairer, check_message, repaired};
use egress::EgressError;

/// Maximum size of one response, over all events.
const STREAM_BYTES: usize = 4 * ANSWER_BYTES;

/// Failure of an event stream.
#[derive(Debug, thiserror::Error)]
enum StreamFault {
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error("an event or the complete stream is too large")]
    TooLarge,
}

/// Events of a response. Oversized events and streams end with an error.
pub(super) fn events(
    response: Response,
    server: &Arc<str>,
) -> impl Stream<Item = Result<Sse, SseError>> + Send + use<> {
    let server = Arc::clone(server);
    let (mut open, mut total) = (0_usize, 0_usize);
    let mut last = b'\n';
    let mut mender = Utf8Repairer::default();
    let bounded = response
        .bytes_stream()
        .map_err(|error| StreamFault::from(EgressError::from(error)))
        .and_then(move |chunk| {
            total = total.saturating_add(chunk.len());
            for &byte in &chunk {
                let ends = byte == b'\n' && last == b'\n';
                open = if ends { 0 } else { open + 1 };
                // CRLF and LF end an event alike.
                if byte != b'\r' {
                    last = byte;
                }
            }
            // Twice the response limit: escapes can double the size of a JSON text.
            std::future::ready(if open > 2 * ANSWER_BYTES || total > STREAM_BYTES {
                Err(StreamFault::TooLarge)
            } else {
                Ok(mender.push(chunk))
            })
        });
    SseStream::from_bytes_stream(bounded).map_ok(move |event| validated(event, &server))
}

/// Validates the message of an event.
fn validated(mut event: Sse, server: &str) -> Sse {
    let Some(message) = event.data.take() else {
        return event;
    };
    let message = repaired(message.as_bytes(), server);
    event.data = match check_message(&message) {
        Ok(()) => Some(String::from_utf8_lossy(&readable(&message, server)).into_owned()),
        Err(RejectedMessage { instead }) => instead,
    };
    event
}

/// The same events, but the end is delayed until `rest`.
pub(super) fn ending_after<E: Send>(
    rest: Instant,
    events: impl Stream<Item = Result<Sse, E>> + Send,
) -> impl Stream<Item = Result<Sse, E>> + Send {
    let end = stream::once(sleep_until(rest)).filter_map(|()| std::future::ready(None));
    let events = events.then(move |event| async move {
        if event.is_err() {
            sleep_until(rest).await;
        }
        event
    });
    events.chain(end)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn delays_reconnect_of_empty_streams() {
        let event = || Ok::<_, &str>(Sse::default());
        for items in [vec![], vec![event()], vec![event(), Err("broken")]] {
            let begun = Instant::now();
            let rest = begun + Duration::from_millis(50);
            let count = items.len();
            let received: Vec<_> = ending_after(rest, stream::iter(items)).collect().await;
            assert_eq!(received.len(), count);
            assert!(Instant::now() >= rest);
        }
        let begun = Instant::now();
        let mut events =
            ending_after(begun + Duration::from_hours(1), stream::iter([event()])).boxed();
        assert!(events.next().await.unwrap().is_ok());
        assert!(
            begun.elapsed() < Duration::from_hours(1),
            "an event waits for nothing"
        );
    }
}
