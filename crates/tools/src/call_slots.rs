//! Concurrency limit for calls of one MCP server, or of all HTTP tools. One endpoint and one tool get at most
//! three quarters of the slots, so that a slow tool leaves capacity for others. Calls queue within their own
//! timeout.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use protocol::id::EndpointId;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use egress::upstream::UpstreamError;

/// Reason and message of a call without a slot.
const OF_ENDPOINT: (&str, &str) = (
    "tool_places_of_endpoint",
    "runs of the same endpoint have three quarters of the places for calls there, and none became free in time",
);
const OF_TOOL: (&str, &str) = (
    "tool_places_of_tool",
    "calls of this tool have three quarters of the places for calls there, and none became free in time",
);
const OF_ALL: (&str, &str) = (
    "tool_places",
    "all places for calls there are in use, and none became free in time",
);

/// Endpoint and tool of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallSource {
    pub(super) endpoint: EndpointId,
    pub(super) tool: Arc<str>,
}

/// Concurrency slots of one server or of HTTP tools. Cheap to clone.
#[derive(Clone)]
pub(super) struct CallSlots {
    max: usize,
    /// Maximum number of slots per endpoint and per tool.
    share: usize,
    state: Arc<Mutex<SlotState>>,
}

#[derive(Default)]
struct SlotState {
    used: usize,
    by_endpoint: HashMap<EndpointId, usize>,
    by_tool: HashMap<Arc<str>, usize>,
    /// Queue in arrival order. Calls over their share are skipped.
    waiting: BTreeMap<u64, Waiter>,
    tickets: u64,
}

struct Waiter {
    caller: CallSource,
    ready: oneshot::Sender<CallSlot>,
}

/// A slot, released on drop.
struct CallSlot {
    slots: CallSlots,
    caller: CallSource,
}

/// A queue entry, removed if the call is dropped.
struct QueueEntry<'a> {
    slots: &'a CallSlots,
    number: u64,
}

impl CallSlots {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            share: (max / 4 * 3).max(1),
            state: Arc::default(),
        }
    }

    /// Number of calls in progress.
    pub(super) fn used(&self) -> usize {
        self.state().used
    }

    /// Waits for a slot and runs the call, both within `timeout`. Without a slot the call is not made.
    pub(super) async fn run<T>(
        &self,
        caller: CallSource,
        timeout: Duration,
        calling: impl Future<Output = Result<T, UpstreamError>>,
    ) -> Result<T, UpstreamError> {
        let end = Instant::now() + timeout;
        // The queue and the call share one deadline, so a caller waits `timeout` in total.
        let Some(slot) = self.enter(caller.clone(), end).await else {
            return Err(self.refusal(&caller));
        };
        // Dropped on a timeout of the call as well: an aborted call must not hold its slot.
        let called = timeout_at(end, calling).await;
        drop(slot);
        called.unwrap_or(Err(UpstreamError::Timeout))
    }

    async fn enter(&self, caller: CallSource, end: Instant) -> Option<CallSlot> {
        let (number, slot) = {
            let mut state = self.state();
            if self.has_slot(&state, &caller) {
                return Some(self.take(&mut state, caller));
            }
            let (ready, slot) = oneshot::channel();
            // Tickets order the queue: the map iterates in order of arrival.
            state.tickets += 1;
            let number = state.tickets;
            state.waiting.insert(number, Waiter { caller, ready });
            (number, slot)
        };
        let _ticket = QueueEntry {
            slots: self,
            number,
        };
        timeout_at(end, slot).await.ok()?.ok()
    }

    fn has_slot(&self, state: &SlotState, caller: &CallSource) -> bool {
        let has_share = |count: Option<&usize>| count.is_none_or(|count| *count < self.share);
        state.used < self.max
            && has_share(state.by_endpoint.get(&caller.endpoint))
            && has_share(state.by_tool.get(&caller.tool))
    }

    fn take(&self, state: &mut SlotState, caller: CallSource) -> CallSlot {
        state.used += 1;
        *state.by_endpoint.entry(caller.endpoint).or_default() += 1;
        *state.by_tool.entry(Arc::clone(&caller.tool)).or_default() += 1;
        CallSlot {
            slots: self.clone(),
            caller,
        }
    }

    fn refusal(&self, caller: &CallSource) -> UpstreamError {
        let state = self.state();
        let is_full = |count: Option<&usize>| count.is_some_and(|count| *count >= self.share);
        let (reason, message) = if is_full(state.by_endpoint.get(&caller.endpoint)) {
            OF_ENDPOINT
        } else if is_full(state.by_tool.get(&caller.tool)) {
            OF_TOOL
        } else {
            OF_ALL
        };
        UpstreamError::Busy { reason, message }
    }

    // Counts are consistent after any panic.
    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        // A slot without a receiver is dropped here after the lock is released, since its drop takes the lock.
        let mut unclaimed = Vec::new();
        let mut state = self.slots.state();
        state.used -= 1;
        release_count(&mut state.by_endpoint, &self.caller.endpoint);
        release_count(&mut state.by_tool, &self.caller.tool);
        let waiting: Vec<u64> = state.waiting.keys().copied().collect();
        for number in waiting {
            if state.used >= self.slots.max {
                break;
            }
            let fits = state
                .waiting
                .get(&number)
                .is_some_and(|waiter| self.slots.has_slot(&state, &waiter.caller));
            if fits && let Some(waiter) = state.waiting.remove(&number) {
                let slot = self.slots.take(&mut state, waiter.caller);
                unclaimed.extend(waiter.ready.send(slot).err());
            }
        }
        drop(state);
        drop(unclaimed);
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        // A slot that was already sent is dropped with the channel, which releases it.
        self.slots.state().waiting.remove(&self.number);
    }
}

fn release_count<K: Eq + Hash>(counts: &mut HashMap<K, usize>, of: &K) {
    if let Some(count) = counts.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(of);
        }
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
        assert_eq!(reason(&slots, caller(1, "fast")).await, OF_ENDPOINT.0);
        assert_eq!(reason(&slots, caller(2, "slow")).await, OF_TOOL.0);
        let mut rest = Box::pin(stuck(&slots, 2, &caller(2, "other")));
        assert!(rest.as_mut().now_or_never().is_none());
        assert_eq!(reason(&slots, caller(3, "fast")).await, OF_ALL.0);
        drop(slow);
        assert_eq!(slots.used(), 2);
        assert!(is_served(&slots, caller(1, "slow")));
        drop(rest);
        let state = slots.state();
        assert!(state.by_endpoint.is_empty() && state.by_tool.is_empty());
        assert!(state.waiting.is_empty());
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
        // A dropped call leaves the queue.
        let mut third = Box::pin(slots.run(caller(1, "fast"), hour, ready(Ok(8))));
        assert!(third.as_mut().now_or_never().is_none());
        drop(third);
        assert_eq!(slots.state().waiting.len(), 1);
        drop(first);
        assert_eq!(second.await.unwrap(), 7);
        assert_eq!(slots.used(), 0);
    }
}
