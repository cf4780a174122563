//! Bodies that nobody wants any more.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt as _;

/// What of a refused body is still read, and for how long, so that its sender comes to read the
/// answer. Past that the connection is closed.
const DRAINED_BYTES: usize = 32 * 1024 * 1024;
const DRAINED: Duration = Duration::from_secs(10);

/// Reads a body that is not wanted.
pub(crate) async fn drain_body(body: Body) {
    drain(&mut body.into_data_stream()).await;
}

/// Reads on and keeps nothing.
pub(crate) async fn drain(frames: &mut BodyDataStream) {
    let reading = async {
        let mut room = DRAINED_BYTES;
        while let Some(Ok(frame)) = frames.next().await {
            match room.checked_sub(frame.len()) {
                Some(left) => room = left,
                None => return,
            }
        }
    };
    // Too slow: it has had its chance.
    let _ = tokio::time::timeout(DRAINED, reading).await;
}
