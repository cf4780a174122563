//! Memory budgets for bodies: requests are held while they are parsed, responses until the client has read them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use http::HeaderValue;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use protocol::id::{ApiKeyId, EndpointId, RunId};
use store::OverBudget;

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

impl Sender {
    fn endpoint(self) -> Option<EndpointId> {
        match self {
            Self::Run(_, endpoint) => Some(endpoint),
            Self::Key(_) | Self::Nobody => None,
        }
    }
}

/// Threshold and error messages of a budget.
#[derive(Clone, Copy, Debug)]
pub struct BudgetSpec {
    /// Maximum size of an uncounted body, in bytes. The connection limit bounds these.
    pub small: usize,
    /// Reason and message when the sender's share is full.
    pub own_full: (&'static str, &'static str),
    /// Reason and message when the endpoint's share is full.
    pub endpoint_full: (&'static str, &'static str),
    /// Reason and message when the budget is full.
    pub full: (&'static str, &'static str),
}

/// Request bodies other than model requests.
const BODIES: BudgetSpec = BudgetSpec {
    small: 16 * 1024,
    own_full: (
        "body_bytes_of_sender",
        "other bodies under the same credential fill its share of the gateway's memory for them; wait for their \
         answers, or send less at once",
    ),
    endpoint_full: (
        "body_bytes_of_endpoint",
        "other bodies of runs of the same endpoint fill its share of the gateway's memory for them; retry after \
             `Retry-After` seconds, or send less at once",
    ),
    full: (
        "body_bytes",
        "other bodies fill the gateway's memory for them; retry after `Retry-After` seconds, or send less at once",
    ),
};

/// A memory budget of this process. One sender gets at most half of it; all runs of one endpoint get three
/// quarters. Each share is at least one body of maximum size.
#[derive(Clone)]
pub struct MemoryBudget {
    spec: BudgetSpec,
    of_sender: usize,
    of_endpoint: usize,
    used: Arc<Mutex<BudgetUse>>,
}

struct BudgetUse {
    /// Below 0 if responses were counted beyond the budget.
    left: i64,
    by_sender: HashMap<Sender, usize>,
    by_endpoint: HashMap<EndpointId, usize>,
}

/// The memory budget for request bodies. An extension of every request.
#[derive(Clone)]
pub struct BodyMemory(MemoryBudget);

/// A permit of a memory budget, returned on drop.
pub struct MemoryPermit {
    memory_budget: MemoryBudget,
    sender: Sender,
    bytes: usize,
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

impl BodyMemory {
    /// A budget of this many bytes. A single body may have `largest` bytes.
    pub fn new(bytes: usize, largest: usize) -> Self {
        Self(MemoryBudget::new(BODIES, bytes, largest))
    }

    /// Creates an empty permit for this sender.
    pub fn permit_for(&self, sender: Sender) -> MemoryPermit {
        self.0.permit_for(sender)
    }
}

impl MemoryBudget {
    /// A budget of this many bytes. A single body may have `largest` bytes, even if the budget is smaller.
    pub fn new(spec: BudgetSpec, bytes: usize, largest: usize) -> Self {
        let used = BudgetUse {
            left: signed(bytes),
            by_sender: HashMap::new(),
            by_endpoint: HashMap::new(),
        };
        Self {
            spec,
            of_sender: largest.max(bytes / 2),
            of_endpoint: largest.max(bytes / 4 * 3),
            used: Arc::new(Mutex::new(used)),
        }
    }

    pub fn permit_for(&self, sender: Sender) -> MemoryPermit {
        MemoryPermit {
            memory_budget: self.clone(),
            sender,
            bytes: 0,
        }
    }

    /// Takes a permit, or fails at once: waiting requests would hold large bodies.
    pub fn take(&self, sender: Sender, bytes: usize) -> ApiResult<MemoryPermit> {
        let mut taken = self.permit_for(sender);
        taken.grow_to(bytes)?;
        Ok(taken)
    }

    fn used(&self) -> MutexGuard<'_, BudgetUse> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn over((reason, message): (&'static str, &'static str)) -> OverBudget {
    OverBudget { reason, message }
}

// The conversion saturates; no process has more memory.
fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl MemoryPermit {
    /// Grows the permit to this many bytes, or fails and keeps its size. Small bodies are free.
    pub fn grow_to(&mut self, bytes: usize) -> ApiResult<()> {
        self.grow(bytes).map_err(ApiError::from)
    }

    pub fn grow(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let more = bytes.saturating_sub(self.bytes);
        let spec = self.memory_budget.spec;
        if bytes <= spec.small || more == 0 {
            return Ok(());
        }
        // One lock for all three checks: separate checks could all pass and exceed the budget together.
        let mut used = self.memory_budget.used();
        let own = used.by_sender.get(&self.sender).unwrap_or(&0) + more;
        if own > self.memory_budget.of_sender {
            return Err(over(spec.own_full));
        }
        let endpoint = self.sender.endpoint();
        let of_endpoint = endpoint.and_then(|endpoint| used.by_endpoint.get(&endpoint));
        let of_endpoint = of_endpoint.unwrap_or(&0) + more;
        if endpoint.is_some() && of_endpoint > self.memory_budget.of_endpoint {
            return Err(over(spec.endpoint_full));
        }
        if signed(more) > used.left {
            return Err(over(spec.full));
        }
        used.take(self.sender, more);
        drop(used);
        self.bytes += more;
        Ok(())
    }

    /// Counts bytes that are already in memory, even beyond the budget.
    pub fn grow_unchecked(&mut self, bytes: usize) {
        let more = bytes.saturating_sub(self.bytes);
        self.memory_budget.used().take(self.sender, more);
        self.bytes += more;
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
        self.bytes
    }

    /// Returns the excess over this many bytes to the budget.
    pub fn shrink(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        if less == 0 {
            return;
        }
        self.bytes -= less;
        let mut used = self.memory_budget.used();
        used.left += signed(less);
        give_back(&mut used.by_sender, self.sender, less);
        if let Some(endpoint) = self.sender.endpoint() {
            give_back(&mut used.by_endpoint, endpoint, less);
        }
    }
}

impl BudgetUse {
    fn take(&mut self, sender: Sender, more: usize) {
        self.left -= signed(more);
        *self.by_sender.entry(sender).or_default() += more;
        if let Some(endpoint) = sender.endpoint() {
            *self.by_endpoint.entry(endpoint).or_default() += more;
        }
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

/// Decrements a count and removes it at zero.
fn give_back<K: Copy + Eq + Hash>(counts: &mut HashMap<K, usize>, of: K, less: usize) {
    if let Some(count) = counts.get_mut(&of) {
        *count = count.saturating_sub(less);
        if *count == 0 {
            counts.remove(&of);
        }
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.shrink(0);
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
        let used = memory_budget.used();
        assert_eq!(used.left, signed(64 * MIB));
        assert!(used.by_sender.is_empty() && used.by_endpoint.is_empty());
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
        assert_eq!(memory_budget.used().left, signed(128 * MIB));
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
