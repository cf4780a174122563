//! The last model calls of agents on this replica, from which reservations are derived.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::budget::{CallBound, ExpectedCall, PastCall, RecentCalls};
use protocol::id::AgentId;

/// Maximum agents and models. Beyond it, the pair with the oldest call is forgotten.
const MAX_PAIRS: usize = 4096;

/// An agent and a model.
type Pair = (AgentId, String);

#[derive(Default)]
pub(super) struct CallBook(Mutex<PairCalls>);

#[derive(Default)]
struct PairCalls {
    by_pair: HashMap<Pair, (u64, RecentCalls)>,
    /// Number of calls so far, as a clock.
    calls: u64,
}

impl CallBook {
    /// Expected use of a call. `None`: this replica has seen no call of the pair.
    pub(super) fn expected(
        &self,
        agent: AgentId,
        model: &str,
        bound: CallBound,
    ) -> Option<ExpectedCall> {
        let pair = (agent, model.to_owned());
        let book = self.book();
        let (_, recent) = book.by_pair.get(&pair)?;
        recent.expected(bound)
    }

    pub(super) fn add(&self, agent: AgentId, model: &str, call: PastCall) {
        let pair = (agent, model.to_owned());
        let mut book = self.book();
        if book.by_pair.len() >= MAX_PAIRS && !book.by_pair.contains_key(&pair) {
            let oldest = book.by_pair.iter().min_by_key(|(_, (last, _))| *last);
            if let Some(oldest) = oldest.map(|(pair, _)| pair.clone()) {
                book.by_pair.remove(&oldest);
            }
        }
        book.calls += 1;
        let now = book.calls;
        let (last, recent) = book.by_pair.entry(pair).or_default();
        *last = now;
        recent.add(call);
    }

    // The state is consistent after any panic.
    fn book(&self) -> MutexGuard<'_, PairCalls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn forgets_the_oldest_pair_beyond_the_maximum() {
        let book = CallBook::default();
        let agent = |n: usize| AgentId(Uuid::from_u128(n as u128));
        let call = PastCall {
            prompt_tokens: 1,
            prompt_cost_micros: 0,
            completion_tokens: 2000,
        };
        let bound = CallBound {
            prompt_tokens: 1,
            cached_cost_micros: 0,
            max_completion_tokens: 9000,
        };
        for n in 0..MAX_PAIRS {
            book.add(agent(n), "m", call);
        }
        book.add(agent(0), "m", call);
        book.add(agent(MAX_PAIRS), "m", call);
        assert_eq!(book.book().by_pair.len(), MAX_PAIRS);
        let expected = |n| book.expected(agent(n), "m", bound);
        assert_eq!(expected(0).unwrap().completion_tokens, 2000);
        assert_eq!(expected(1), None);
        assert_eq!(book.expected(agent(0), "other", bound), None);
    }
}
