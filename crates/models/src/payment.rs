//! Payer of embedding requests, decided before the provider is called.

use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::message::LlmTokenUsage;

/// Payer of provider calls. It exists only after a budget reservation or for operator actions, so no request is
/// unpaid. Sums the token usage of all responses.
#[derive(Debug)]
pub struct Payment(Mutex<BilledUsage>);

#[derive(Debug, Default)]
struct BilledUsage {
    is_requested: bool,
    counted: Option<LlmTokenUsage>,
    /// A response had no token count.
    is_uncounted: bool,
}

impl Payment {
    /// A run pays; its budgets hold a reservation.
    pub fn reserved() -> Self {
        Self(Mutex::default())
    }

    /// The operator pays: document indexing and searches outside runs.
    pub fn by_operator() -> Self {
        Self(Mutex::default())
    }

    /// Records a request that the provider may bill.
    pub(super) fn ask(&self) {
        self.used().is_requested = true;
    }

    /// Records a response with this usage.
    pub(super) fn count(&self, usage: Option<&LlmTokenUsage>) {
        let mut used = self.used();
        // A missing count makes the sum too low, so the sum is not used at all.
        let Some(usage) = usage else {
            used.is_uncounted = true;
            return;
        };
        let add = |one: Option<i64>, more: Option<i64>| match (one, more) {
            (Some(one), Some(more)) => Some(one.saturating_add(more)),
            (one, more) => one.or(more),
        };
        let sum = used.counted.get_or_insert_default();
        sum.prompt_tokens = add(sum.prompt_tokens, usage.prompt_tokens);
        sum.total_tokens = add(sum.total_tokens, usage.total_tokens);
    }

    /// True if the provider may bill anything.
    pub fn is_used(&self) -> bool {
        self.used().is_requested
    }

    /// Total usage. `None` if a response had no count.
    pub fn counted(&self) -> Option<LlmTokenUsage> {
        let used = self.used();
        used.counted.clone().filter(|_| !used.is_uncounted)
    }

    fn used(&self) -> MutexGuard<'_, BilledUsage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
