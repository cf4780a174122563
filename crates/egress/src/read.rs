//! Bounded reads of response bodies.

use crate::{EgressError, Response};

/// The first `limit` bytes of a response. The rest stays unread, which closes the connection.
pub async fn read_at_most(mut response: Response, most: usize) -> Result<Vec<u8>, EgressError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        let room = most - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == most {
            break;
        }
    }
    Ok(body)
}
