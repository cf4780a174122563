//! Concurrency limit for calls of one MCP server, or of all HTTP tools. One endpoint and one tool get at most
//! three quarters of the slots, so that a slow tool leaves capacity for others. Calls queue within their own
//! timeout.

use std::sync::Arc;
use std::time::Duration;

use protocol::id::EndpointId;
use tokio::time::{Instant, timeout_at};

use egress::limiter::{KeyedLimiter, LimitRefusal, LimitSpec, Share};
use egress::upstream::UpstreamError;

const OF_ENDPOINT: LimitRefusal = LimitRefusal::new(
    "tool_places_of_endpoint",
    "runs of the same endpoint have three quarters of the places for calls there, and none became free in time",
);
const OF_TOOL: LimitRefusal = LimitRefusal::new(
    "tool_places_of_tool",
    "calls of this tool have three quarters of the places for calls there, and none became free in time",
);
const OF_ALL: LimitRefusal = LimitRefusal::new(
    "tool_places",
    "all places for calls there are in use, and none became free in time",
);

/// Endpoint and tool of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallSource {
    pub(super) endpoint: EndpointId,
    pub(super) tool: Arc<str>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum SlotKey {
    Endpoint(EndpointId),
    Tool(Arc<str>),
}

/// Concurrency slots of one server or of HTTP tools. Cheap to clone.
#[derive(Clone)]
pub(super) struct CallSlots {
    limiter: KeyedLimiter<SlotKey>,
    /// Maximum number of slots per endpoint and per tool.
    share: usize,
}

impl CallSlots {
    pub(super) fn new(max: usize) -> Self {
        Self {
            limiter: KeyedLimiter::new(OF_ALL.at(max)),
            share: (max / 4 * 3).max(1),
        }
    }

    /// Number of calls in progress.
    pub(super) fn used(&self) -> usize {
        self.limiter.used()
    }

    /// Waits for a slot and runs the call, both within `timeout`. Without a slot the call is not made.
    pub(super) async fn run<T>(
        &self,
        caller: CallSource,
        timeout: Duration,
        calling: impl Future<Output = Result<T, UpstreamError>>,
    ) -> Result<T, UpstreamError> {
        // The queue and the call share one deadline, so a caller waits `timeout` in total.
        let end = Instant::now() + timeout;
        let share = |key, refusal: LimitRefusal| Share {
            key,
            limit: refusal.at(self.share),
        };
        let shares = [
            share(SlotKey::Endpoint(caller.endpoint), OF_ENDPOINT),
            share(SlotKey::Tool(caller.tool), OF_TOOL),
        ];
        let slot = self.limiter.acquire_until(shares, end).await;
        let slot = slot.map_err(|LimitSpec { refusal, .. }| UpstreamError::Busy {
            reason: refusal.reason,
            message: refusal.message,
            wait: None,
        })?;
        // Dropped on a timeout of the call as well: an aborted call must not hold its slot.
        let called = timeout_at(end, calling).await;
        drop(slot);
        called.unwrap_or(Err(UpstreamError::Timeout))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt as _;
    use futures_util::future::join_all;
    use uuid::Uuid;

    use super::*;

    fn caller(endpoint: u128, tool: &str) -> CallSource {
        CallSource {
            endpoint: EndpointId(Uuid::from_u128(endpoint)),
            tool: tool.into(),
        }
    }

    /// Calls that never end.
    fn stuck(
        slots: &CallSlots,
        count: usize,
        caller: &CallSource,
    ) -> impl Future<Output = Vec<()>> + use<> {
        let calls: Vec<_> = (0..count)
            .map(|_| {
                let (slots, caller) = (slots.clone(), caller.clone());
                async move {
                    let hour = Duration::from_hours(1);
                    let _ = slots.run::<()>(caller, hour, pending()).await;
                }
            })
            .collect();
        join_all(calls)
    }

    fn is_served(slots: &CallSlots, caller: CallSource) -> bool {
        let hour = Duration::from_hours(1);
        let called = slots.run(caller, hour, ready(Ok(())));
        called.now_or_never().is_some()
    }

    async fn reason(slots: &CallSlots, caller: CallSource) -> &'static str {
        let moment = Duration::from_millis(1);
        let called = slots.run::<()>(caller, moment, ready(Ok(()))).await;
        called.unwrap_err().reason()
    }

    #[tokio::test]
    async fn endpoints_leave_slots_for_others() {
        let slots = CallSlots::new(8);
        let mut slow = Box::pin(stuck(&slots, 20, &caller(1, "slow")));
        assert!(slow.as_mut().now_or_never().is_none());
        assert_eq!(slots.used(), 6);
        assert!(is_served(&slots, caller(2, "fast")));
        assert_eq!(reason(&slots, caller(1, "fast")).await, OF_ENDPOINT.reason);
        assert_eq!(reason(&slots, caller(2, "slow")).await, OF_TOOL.reason);
        let mut rest = Box::pin(stuck(&slots, 2, &caller(2, "other")));
        assert!(rest.as_mut().now_or_never().is_none());
        assert_eq!(reason(&slots, caller(3, "fast")).await, OF_ALL.reason);
        drop(slow);
        assert_eq!(slots.used(), 2);
        assert!(is_served(&slots, caller(1, "slow")));
        drop(rest);
        assert_eq!(slots.used(), 0);
    }

    #[tokio::test]
    async fn queued_calls_run_when_slots_free_up() {
        let slots = CallSlots::new(4);
        let first = stuck(&slots, 3, &caller(1, "slow"));
        let mut first = Box::pin(first);
        assert!(first.as_mut().now_or_never().is_none());
        let hour = Duration::from_hours(1);
        let mut second = Box::pin(slots.run(caller(1, "fast"), hour, ready(Ok(7))));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert_eq!(second.await.unwrap(), 7);
        assert_eq!(slots.used(), 0);
    }
}
