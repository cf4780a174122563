//! Bounded reads of response bodies.

use crate::{EgressError, Response};

/// The first `limit` bytes of a response. The rest stays unread, which closes the connection.
pub async fn read_up_to(mut response: Response, limit: usize) -> Result<Vec<u8>, EgressError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        let remaining = limit - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(remaining)]);
        if body.len() == limit {
            break;
        }
    }
    Ok(body)
}
