//! Discards the rest of a refused body.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt as _;

/// Limits in bytes and time for discarding a refused body. Clients that read no response before they finish
/// sending get it this way. Beyond the limits the connection closes.
const MAX_DISCARDED_BYTES: usize = 32 * 1024 * 1024;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads and discards a body.
pub async fn discard_request_body(body: Body) {
    discard_body(&mut body.into_data_stream()).await;
}

/// Reads and discards the remaining frames.
pub async fn discard_body(frames: &mut BodyDataStream) {
    let reading = async {
        let mut bytes_left = MAX_DISCARDED_BYTES;
        while let Some(Ok(frame)) = frames.next().await {
            match bytes_left.checked_sub(frame.len()) {
                Some(left) => bytes_left = left,
                // The client sends more than the limit: the connection closes.
                None => return,
            }
        }
    };
    // After the timeout, the rest stays unread and the connection closes.
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, reading).await;
}
