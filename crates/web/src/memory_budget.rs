//! Memory budgets for bodies: requests are held while they are parsed, responses until the client has read them.

use std::convert::Infallible;
use std::ops::Deref;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use egress::limiter::{KeyedLimiter, LimitRefusal, LimitSpec, Permit, Share};
use futures_util::stream;
use http::HeaderValue;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use protocol::id::{ApiKeyId, EndpointId, RunId};

use crate::error::{ApiError, ApiResult};

/// The sender to which memory is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sender {
    /// A run and the endpoint of its runner. A runner holds the tokens of all runs of its endpoint, so these
    /// share a limit.
    Run(RunId, EndpointId),
    Key(ApiKeyId),
    /// All requests without a credential.
    Nobody,
}

/// Key of a share of memory.
#[derive(Clone, PartialEq, Eq, Hash)]
enum MemoryKey {
    Sender(Sender),
    Endpoint(EndpointId),
}

/// Threshold and error messages of a budget.
#[derive(Clone, Copy, Debug)]
pub struct BudgetSpec {
    /// Maximum size of an uncounted body, in bytes. The connection limit bounds these.
    pub small: usize,
    /// Refusal when the sender's share is full.
    pub own_full: LimitRefusal,
    /// Refusal when the endpoint's share is full.
    pub endpoint_full: LimitRefusal,
    /// Refusal when the budget is full.
    pub full: LimitRefusal,
}

/// Request bodies other than model requests.
const BODIES: BudgetSpec = BudgetSpec {
    small: 16 * 1024,
    own_full: LimitRefusal::new(
        "body_bytes_of_sender",
        "other bodies under the same credential fill its share of the gateway's memory for them; wait for their \
         answers, or send less at once",
    ),
    endpoint_full: LimitRefusal::new(
        "body_bytes_of_endpoint",
        "other bodies of runs of the same endpoint fill its share of the gateway's memory for them; retry after \
             `Retry-After` seconds, or send less at once",
    ),
    full: LimitRefusal::new(
        "body_bytes",
        "other bodies fill the gateway's memory for them; retry after `Retry-After` seconds, or send less at once",
    ),
};

/// A memory budget of this process. One sender gets at most half of it; all runs of one endpoint get three
/// quarters. Each share is at least one body of maximum size.
#[derive(Clone)]
pub struct MemoryBudget {
    small: usize,
    of_sender: LimitSpec,
    of_endpoint: LimitSpec,
    limiter: KeyedLimiter<MemoryKey>,
}

/// A permit of a memory budget, returned on drop.
pub struct MemoryPermit {
    small: usize,
    permit: Permit<MemoryKey>,
}

/// A body and its memory permit.
pub struct BufferedBody {
    pub bytes: Bytes,
    pub(crate) _permit: Option<MemoryPermit>,
}

impl Deref for BufferedBody {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

impl MemoryBudget {
    /// The budget for request bodies, an extension of every request. A single body may have `largest` bytes.
    pub fn of_bodies(bytes: usize, largest: usize) -> Self {
        Self::new(BODIES, bytes, largest)
    }

    /// A budget of this many bytes. A single body may have `largest` bytes, even if the budget is smaller.
    pub fn new(spec: BudgetSpec, bytes: usize, largest: usize) -> Self {
        Self {
            small: spec.small,
            of_sender: spec.own_full.at(largest.max(bytes / 2)),
            of_endpoint: spec.endpoint_full.at(largest.max(bytes / 4 * 3)),
            limiter: KeyedLimiter::new(spec.full.at(bytes)),
        }
    }

    /// Creates an empty permit for this sender.
    pub fn permit_for(&self, sender: Sender) -> MemoryPermit {
        let mut shares = vec![Share {
            key: MemoryKey::Sender(sender),
            limit: self.of_sender,
        }];
        if let Sender::Run(_, endpoint) = sender {
            shares.push(Share {
                key: MemoryKey::Endpoint(endpoint),
                limit: self.of_endpoint,
            });
        }
        MemoryPermit {
            small: self.small,
            permit: self.limiter.empty_permit(shares),
        }
    }

    /// Takes a permit, or fails at once: waiting requests would hold large bodies.
    pub fn take(&self, sender: Sender, bytes: usize) -> ApiResult<MemoryPermit> {
        let mut taken = self.permit_for(sender);
        taken.grow_to(bytes)?;
        Ok(taken)
    }
}

impl MemoryPermit {
    /// Grows the permit to this many bytes, or fails and keeps its size. Small bodies are free.
    pub fn grow_to(&mut self, bytes: usize) -> ApiResult<()> {
        self.grow(bytes).map_err(ApiError::from)
    }

    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), LimitSpec> {
        if bytes <= self.small {
            return Ok(());
        }
        self.permit.grow(bytes)
    }

    /// Counts bytes that are already in memory, even beyond the budget.
    pub fn grow_unchecked(&mut self, bytes: usize) {
        self.permit.grow_unchecked(bytes);
    }

    /// Sends JSON and holds the permit until the client has read it, so slow readers stay charged.
    pub fn answer(mut self, json: Vec<u8>) -> Response {
        let length = json.len();
        self.shrink(length);
        let head = [
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (CONTENT_LENGTH, HeaderValue::from(length)),
        ];
        (head, in_chunks(json.into(), self)).into_response()
    }

    pub fn bytes(&self) -> usize {
        self.permit.weight()
    }

    /// Returns the excess over this many bytes to the budget.
    pub fn shrink(&mut self, bytes: usize) {
        self.permit.shrink(bytes);
    }
}

/// Splits a body into chunks, produced on demand. `guard` is dropped with the last chunk, read or buffered.
pub fn in_chunks<K: Send + Sync + 'static>(bytes: Bytes, guard: K) -> Body {
    const PIECE: usize = 64 * 1024;
    // The owner is dropped with the last reference to its bytes, wherever hyper holds them.
    let owned = Bytes::from_owner(OwnedBytes {
        bytes,
        _guard: guard,
    });
    let pieces = stream::unfold(owned, |mut rest| async move {
        let piece = rest.split_to(rest.len().min(PIECE));
        (!piece.is_empty()).then(|| (Ok::<_, Infallible>(piece), rest))
    });
    Body::from_stream(pieces)
}

struct OwnedBytes<K> {
    bytes: Bytes,
    _guard: K,
}

impl<K> AsRef<[u8]> for OwnedBytes<K> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use uuid::Uuid;

    use super::*;

    const MIB: usize = 1024 * 1024;

    fn run(number: u128, endpoint: u128) -> Sender {
        let endpoint = EndpointId(Uuid::from_u128(endpoint));
        Sender::Run(RunId(Uuid::from_u128(number)), endpoint)
    }

    fn memory_budget(bytes: usize, largest: usize) -> MemoryBudget {
        MemoryBudget::new(BODIES, bytes, largest)
    }

    fn refused(memory_budget: &MemoryBudget, sender: Sender, bytes: usize) -> Value {
        let refusal = memory_budget.take(sender, bytes).err().unwrap();
        let (_, body) = refusal.into_parts();
        assert_eq!(body.code, "rate_limited");
        body.details["reason"].clone()
    }

    #[test]
    fn permits_return_memory_on_drop() {
        let memory_budget = memory_budget(64 * MIB, 40 * MIB);
        let (one, other) = (run(1, 1), run(2, 2));
        let take = |sender, bytes| memory_budget.take(sender, bytes).ok();
        let mut large = [
            take(one, 20 * MIB),
            take(one, 20 * MIB),
            take(other, 20 * MIB),
        ]
        .map(Option::unwrap);
        assert_eq!(refused(&memory_budget, other, 20 * MIB), "body_bytes");
        assert!(take(other, 4 * MIB).is_some(), "what is left is given");
        assert!(take(one, BODIES.small).is_some());
        large[0].shrink(4 * MIB);
        let fourth = take(other, 20 * MIB);
        assert!(fourth.is_some(), "the first was smaller than declared");
        drop((large, fourth));
        assert_eq!(memory_budget.limiter.used(), 0);
    }

    #[test]
    fn limits_each_sender_to_its_share() {
        let memory_budget = memory_budget(128 * MIB, MIB);
        let (one, other) = (run(1, 1), run(2, 2));
        let mut own = memory_budget.take(one, 60 * MIB).ok().unwrap();
        assert!(own.grow_to(64 * MIB).is_ok());
        assert!(own.grow_to(64 * MIB + 1).is_err());
        assert_eq!(refused(&memory_budget, one, MIB), "body_bytes_of_sender");
        assert!(memory_budget.take(other, 64 * MIB).is_ok());
        drop(own);
        assert!(memory_budget.take(one, MIB).is_ok());
        assert_eq!(memory_budget.limiter.used(), 0);
    }

    #[test]
    fn limits_runs_of_one_endpoint_to_their_share() {
        let memory_budget = memory_budget(128 * MIB, MIB);
        let take = |sender, bytes| memory_budget.take(sender, bytes).ok();
        let all = [1, 2, 3].map(|number| take(run(number, 1), 32 * MIB).unwrap());
        assert_eq!(
            refused(&memory_budget, run(4, 1), MIB),
            "body_bytes_of_endpoint"
        );
        assert_eq!(
            refused(&memory_budget, run(1, 1), MIB),
            "body_bytes_of_endpoint"
        );
        assert!(take(run(5, 2), 32 * MIB).is_some());
        assert!(take(Sender::Key(ApiKeyId(Uuid::from_u128(1))), 32 * MIB).is_some());
        drop(all);
        assert!(take(run(4, 1), MIB).is_some());
    }
}
