//! Payment for embedding requests, decided before the provider is called.

use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::message::LlmTokenUsage;

/// Payment for one use of a provider. It is made where a budget was asked, or where an operator is the user, so that no
/// request goes out that neither of them pays. It gathers what the provider has counted.
#[derive(Debug)]
pub struct Paid(Mutex<Used>);

#[derive(Debug, Default)]
struct Used {
    is_asked: bool,
    counted: Option<LlmTokenUsage>,
    /// An answer came without a count.
    is_uncounted: bool,
}

impl Paid {
    /// By a run, whose budgets have reserved the most that it may use.
    pub fn reserved() -> Self {
        Self(Mutex::default())
    }

    /// By the operator: documents that are added, and searches that no run makes.
    pub fn by_operator() -> Self {
        Self(Mutex::default())
    }

    /// Something was asked that the provider may bill.
    pub(super) fn ask(&self) {
        self.used().is_asked = true;
    }

    /// An answer has come with this count.
    pub(super) fn count(&self, told: Option<&LlmTokenUsage>) {
        let mut used = self.used();
        let Some(told) = told else {
            used.is_uncounted = true;
            return;
        };
        let add = |one: Option<i64>, more: Option<i64>| match (one, more) {
            (Some(one), Some(more)) => Some(one.saturating_add(more)),
            (one, more) => one.or(more),
        };
        let sum = used.counted.get_or_insert_default();
        sum.prompt_tokens = add(sum.prompt_tokens, told.prompt_tokens);
        sum.total_tokens = add(sum.total_tokens, told.total_tokens);
    }

    /// Whether a provider may bill anything.
    pub fn is_used(&self) -> bool {
        self.used().is_asked
    }

    /// The sum over all answers. `None`: one answer had no count.
    pub fn counted(&self) -> Option<LlmTokenUsage> {
        let used = self.used();
        used.counted.clone().filter(|_| !used.is_uncounted)
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
