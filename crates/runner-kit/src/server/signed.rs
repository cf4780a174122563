//! Authentication: the gateway signs every request but the health check.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;

use crate::server::KitServer;
use crate::server::rejection::RequestRejection;
use crate::server::unverified::UnverifiedBody;
use crate::signature::SignedHeaders;
use clock::Clock;

const BODY_TIMEOUT: Duration = Duration::from_secs(30);

const ATTEMPT: &str = "runnel-attempt";

/// Facts of an authenticated request.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignedArrival {
    /// Signature time on the gateway's clock, in epoch seconds.
    pub(super) signed_at: i64,
    /// Attempt of a run, from 1.
    pub(super) attempt: u32,
}

/// Passes a request with a valid signature and a new id; its body is read and bounded here.
pub(super) async fn require_signature(
    State(server): State<Arc<KitServer>>,
    request: Request,
    next: Next,
) -> Result<Response, RequestRejection> {
    let (parts, body) = request.into_parts();
    let clock = Clock::system();
    let headers = SignedHeaders::of(&parts.headers)?;
    // Before the body is read: a stale request costs no memory.
    let timestamp = headers.fresh_timestamp(clock.now_seconds())?;
    let counted = server.unverified.begin();
    let body = tokio::select! {
        body = read(body, server.options.body_bytes, &counted) => body?,
        () = counted.dropped() => return Err(RequestRejection::Crowded),
    };
    // Read again: a slow body may have outlived the tolerance.
    let now = clock.now_seconds();
    server.secret.verify(headers, &body, now)?;
    // The sender is authenticated; the body no longer counts as unverified.
    drop(counted);
    // After the signature check: unsigned requests must not fill the memory of ids.
    if !server.seen.insert(headers.id, timestamp, now) {
        return Err(RequestRejection::Replayed);
    }
    let attempt = parts.headers.get(ATTEMPT);
    let attempt = attempt.and_then(|value| value.to_str().ok()?.parse().ok());
    let mut request = Request::from_parts(parts, Body::from(body));
    request.extensions_mut().insert(SignedArrival {
        signed_at: timestamp,
        // Gateways without the header start each run once.
        attempt: attempt.unwrap_or(1),
    });
    Ok(next.run(request).await)
}

async fn read(
    body: Body,
    limit: usize,
    counted: &UnverifiedBody,
) -> Result<Bytes, RequestRejection> {
    let reading = async {
        let mut chunks = body.into_data_stream();
        let mut bytes = BytesMut::new();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| RequestRejection::Unread)?;
            if bytes.len() + chunk.len() > limit {
                return Err(RequestRejection::TooLarge(limit));
            }
            bytes.extend_from_slice(&chunk);
            // The capacity, not the length: it is what the process holds.
            counted.grow_to(bytes.capacity());
        }
        Ok(bytes.freeze())
    };
    tokio::time::timeout(BODY_TIMEOUT, reading)
        .await
        .unwrap_or(Err(RequestRejection::Unread))
}
