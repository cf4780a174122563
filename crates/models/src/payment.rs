//! Payer of provider calls, decided before the provider is called.

use std::sync::{Mutex, MutexGuard, PoisonError};

use egress::tokens::TokenHold;
use protocol::message::LlmTokenUsage;

/// Payer of provider calls. It exists only after a budget reservation or for operator actions, so no request is
/// unpaid. Sums the token usage of all responses to embedding requests.
pub struct Payment(Mutex<BilledUsage>);

#[derive(Default)]
struct BilledUsage {
    /// Expected tokens, until a request reserves them in the limits of its model and provider.
    expected_tokens: u64,
    held_tokens: Vec<TokenHold<()>>,
    is_requested: bool,
    counted: Option<LlmTokenUsage>,
    /// A response had no token count.
    is_uncounted: bool,
}

impl Payment {
    /// A run pays; its budgets hold a reservation.
    pub fn reserved(expected_tokens: u64) -> Self {
        Self(Mutex::new(BilledUsage {
            expected_tokens,
            ..BilledUsage::default()
        }))
    }

    /// The operator pays: document indexing and searches outside runs. Limits of tokens do not count these.
    pub fn by_operator() -> Self {
        Self(Mutex::default())
    }

    /// The tokens to reserve for the first request; 0 for later ones, since the first reserves for all.
    pub(super) fn take_expected_tokens(&self) -> u64 {
        std::mem::take(&mut self.used().expected_tokens)
    }

    pub(super) fn hold_tokens(&self, hold: TokenHold<()>) {
        self.used().held_tokens.push(hold);
    }

    /// Replaces the reserved tokens by those that the call has used.
    pub fn settle_tokens(&self, used: u64) {
        let holds = std::mem::take(&mut self.used().held_tokens);
        for hold in holds {
            hold.settle(used);
        }
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
