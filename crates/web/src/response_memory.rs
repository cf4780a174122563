//! Memory budget for responses: a response occupies memory until the client has read it.
//!
//! Pages reserve memory before they read rows. The middleware counts every complete response of known length, so
//! a new route cannot skip it. Streams have no length; their sources bound them.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Extensions;
use axum::response::{IntoResponse as _, Response};
use egress::limiter::LimitRefusal;
use http::Method;
use http::header::CONTENT_LENGTH;
use hyper::body::{Frame, SizeHint};
use store::{OverBudget, PageBound, PageBudget};

use crate::error::{ApiError, ApiResult};
use crate::memory_budget::{BudgetSpec, MemoryBudget, MemoryPermit, Sender, in_chunks};
use runs::call_limits::CallPermit;

/// Maximum size of an uncounted response, in bytes. The connection limit bounds these.
const SMALL: usize = 64 * 1024;
/// Minimum budget for one response, in bytes, for any configuration.
const LARGEST: usize = 32 * 1024 * 1024;

const ANSWERS: BudgetSpec = BudgetSpec {
    small: SMALL,
    own_full: LimitRefusal::new(
        "answer_bytes_of_sender",
        "answers under the same credential that are not read yet fill its share of the gateway's memory for them; read \
         them, or ask for less at once",
    ),
    endpoint_full: LimitRefusal::new(
        "answer_bytes_of_endpoint",
        "answers to runs of the same endpoint that are not read yet fill its share of the gateway's memory for them; \
         retry after `Retry-After` seconds, or ask for less at once",
    ),
    full: LimitRefusal::new(
        "answer_bytes",
        "answers that are not read yet fill the gateway's memory for them; retry after `Retry-After` seconds, or ask \
         for less at once",
    ),
};

/// Memory budget for all responses of this process.
#[derive(Clone)]
pub struct ResponseBudget(MemoryBudget);

impl ResponseBudget {
    pub fn new(bytes: usize) -> Self {
        Self(MemoryBudget::new(ANSWERS, bytes, LARGEST))
    }

    /// Creates an empty permit for one response.
    pub fn permit_for(&self, method: &Method) -> ResponseMemory {
        let state = ResponseMemoryState {
            taken: self.0.permit_for(Sender::Nobody),
            rows: 0,
            slot: None,
        };
        ResponseMemory {
            memory_budget: self.0.clone(),
            is_safe: method.is_safe(),
            state: Arc::new(Mutex::new(state)),
        }
    }
}

/// Memory permit of one response. It is an extension of the request, and its caller holds a clone.
#[derive(Clone)]
pub struct ResponseMemory {
    memory_budget: MemoryBudget,
    /// The method is safe, so a complete response may still be refused.
    is_safe: bool,
    state: Arc<Mutex<ResponseMemoryState>>,
}

struct ResponseMemoryState {
    taken: MemoryPermit,
    /// Bytes of rows read for the response.
    rows: usize,
    /// The concurrency slot of the host call.
    slot: Option<CallPermit>,
}

impl ResponseMemory {
    /// Takes the response memory from the request's extensions.
    pub fn of(extensions: &Extensions) -> ApiResult<Self> {
        let memory = extensions.get::<Self>().cloned();
        memory.ok_or_else(ApiError::panicked)
    }

    /// Charges this sender from now on.
    pub fn charge_to(&self, sender: Sender) {
        self.state().taken = self.memory_budget.permit_for(sender);
    }

    /// Holds the slot of a host call until the client has read the response.
    pub fn hold(&self, slot: CallPermit) {
        self.state().slot = Some(slot);
    }

    /// Reserves this many more bytes before they are read.
    pub fn reserve(&self, bytes: usize) -> ApiResult<()> {
        self.take(bytes).map_err(ApiError::from)
    }

    /// A permit for what a stream holds while it is read: this one ends with the head of the response.
    pub fn permit_for_stream(&self, sender: Sender) -> MemoryPermit {
        self.memory_budget.permit_for(sender)
    }

    /// Fails if the sender's share is full.
    pub fn check_available(&self) -> ApiResult<()> {
        let mut state = self.state();
        // One byte more than a small response, because small ones are not counted.
        let bytes = state.taken.bytes();
        state.taken.grow(bytes + SMALL + 1)?;
        state.taken.shrink(bytes);
        Ok(())
    }

    /// Bounds a page by `limit` rows and by this memory.
    pub fn page(&self, limit: u64) -> PageBound<'_> {
        PageBound::new(limit, self)
    }

    /// Counts a complete response and holds its memory until the client has read it. A response over the budget
    /// is refused, unless the request had an effect: then it is counted beyond the budget.
    pub async fn keep(self, response: Response) -> Response {
        let (mut taken, slot) = {
            let mut state = self.state();
            let empty = self.memory_budget.permit_for(Sender::Nobody);
            (
                std::mem::replace(&mut state.taken, empty),
                state.slot.take(),
            )
        };
        let length = response.body().size_hint().exact();
        let length = length.and_then(|length| usize::try_from(length).ok());
        let Some(length) = length.filter(|length| *length > SMALL) else {
            drop(taken);
            return match slot {
                Some(slot) => response.map(|body| Body::new(SlotBody { body, _slot: slot })),
                None => response,
            };
        };
        match taken.grow(length) {
            Ok(()) => taken.shrink(length),
            // Refusing the response of a write would hide that it took effect.
            Err(refused) if self.is_safe && response.status().is_success() => {
                return ApiError::from(refused).into_response();
            }
            Err(_) => taken.grow_unchecked(length),
        }
        let (mut head, body) = response.into_parts();
        // A complete body of known length is in memory already; this copies no more than its frames.
        let Ok(bytes) = axum::body::to_bytes(body, length).await else {
            return ApiError::panicked().into_response();
        };
        head.headers
            .entry(CONTENT_LENGTH)
            .or_insert_with(|| length.into());
        Response::from_parts(head, in_chunks(bytes, (taken, slot)))
    }

    fn state(&self) -> MutexGuard<'_, ResponseMemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageBudget for ResponseMemory {
    fn take(&self, bytes: usize) -> Result<(), OverBudget> {
        let mut state = self.state();
        state.rows = state.rows.saturating_add(bytes);
        let rows = state.rows;
        state.taken.grow(rows).map_err(|limit| OverBudget {
            reason: limit.refusal.reason,
            message: limit.refusal.message,
        })
    }
}

impl From<OverBudget> for ApiError {
    fn from(over: OverBudget) -> Self {
        Self::rate_limited_by(over.reason, over.message.to_owned(), 1)
    }
}

/// A body that holds the concurrency slot of its call.
struct SlotBody {
    body: Body,
    _slot: CallPermit,
}

impl HttpBody for SlotBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use egress::limiter::{KeyedLimiter, Share};
    use http::StatusCode;
    use http_body_util::BodyExt as _;
    use protocol::id::ApiKeyId;
    use uuid::Uuid;

    use super::*;

    const MIB: usize = 1024 * 1024;

    fn memory(memory_budget: &ResponseBudget, method: &Method) -> ResponseMemory {
        let memory = memory_budget.permit_for(method);
        memory.charge_to(Sender::Key(ApiKeyId(Uuid::nil())));
        memory
    }

    fn answer(bytes: usize) -> Response {
        vec![b' '; bytes].into_response()
    }

    #[tokio::test]
    async fn unread_responses_hold_memory_until_last_chunk() {
        let memory_budget = ResponseBudget::new(8 * MIB);
        let response = memory(&memory_budget, &Method::GET)
            .keep(answer(20 * MIB))
            .await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "of 8 MiB");
        let memory_budget = ResponseBudget::new(64 * MIB);
        let first = memory(&memory_budget, &Method::GET)
            .keep(answer(20 * MIB))
            .await;
        assert_eq!(first.headers()[CONTENT_LENGTH], "20971520");
        let refused = memory(&memory_budget, &Method::GET)
            .keep(answer(20 * MIB))
            .await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(refused.headers().contains_key("retry-after"));
        let mut body = first.into_body();
        let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(piece.len(), 64 * 1024);
        drop(body);
        let refused = memory(&memory_budget, &Method::GET)
            .keep(answer(20 * MIB))
            .await;
        assert_eq!(
            refused.status(),
            StatusCode::TOO_MANY_REQUESTS,
            "a piece is unread"
        );
        drop(piece);
        let next = memory(&memory_budget, &Method::GET)
            .keep(answer(20 * MIB))
            .await;
        assert_eq!(next.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn unsafe_methods_exceed_response_budget() {
        let memory_budget = ResponseBudget::new(64 * MIB);
        let first = memory(&memory_budget, &Method::GET)
            .keep(answer(20 * MIB))
            .await;
        let done = memory(&memory_budget, &Method::POST)
            .keep(answer(40 * MIB))
            .await;
        assert_eq!(done.status(), StatusCode::OK);
        let mut page = memory(&memory_budget, &Method::GET);
        assert!(page.reserve(MIB).is_err());
        drop((first, done));
        page = memory(&memory_budget, &Method::GET);
        assert!(page.reserve(20 * MIB).is_ok());
        assert!(page.reserve(20 * MIB).is_err(), "parts of an answer add up");
    }

    #[tokio::test]
    async fn small_responses_and_streams_hold_call_slot() {
        let memory_budget = ResponseBudget::new(64 * MIB);
        let slots = KeyedLimiter::of_shares();
        for body in [
            Body::from("small"),
            Body::from_stream(futures_util::stream::pending::<Result<Bytes, axum::Error>>()),
            Body::from(vec![0; MIB]),
        ] {
            let memory = memory(&memory_budget, &Method::GET);
            memory.hold(slots.try_acquire(Vec::<Share<_>>::new(), 1).ok().unwrap());
            let response = memory.keep(body.into_response()).await;
            assert_eq!(slots.used(), 1);
            drop(response);
            assert_eq!(slots.used(), 0);
        }
    }
}
