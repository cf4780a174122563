//! Denied host calls of each run, counted on this replica.

use std::collections::HashMap;
use std::sync::Arc;

use dashmap::DashMap;
use domain::authorization::denials::{DENIED_CALLS, DenialOutcome, after_denial};
use protocol::id::RunId;
use protocol::principal::PrincipalKind;
use store::CancelCause;
use uuid::Uuid;

use crate::cancel::Cancellation;
use crate::deps::RunDeps;
use crate::grant::Grant;

/// Audit entries that the later denials of a run share. A runner can invent rule names, so further rules share
/// the last entry.
const SHARED_ENTRIES: usize = 64;
/// Number of counted runs from which runs past their deadline are removed.
const TIDY_AT: usize = 1024;
/// Rule of the entry that many rules share.
const MANY: &str = "many";

/// Denials by run. The count of a run lasts until its deadline.
#[derive(Default)]
pub(super) struct DenialCounts(DashMap<RunId, RunDenials>);

#[derive(Default)]
struct RunDenials {
    denied: u64,
    deadline_at: i64,
    shared: HashMap<(&'static str, String), Uuid>,
    /// The end of the run was requested.
    is_ending: bool,
}

/// The audit entry of a denied call.
#[derive(Debug, PartialEq, Eq)]
pub enum DeniedEntry {
    /// An entry of its own.
    Own,
    /// One entry for all denials of this action by this rule.
    Shared {
        id: Uuid,
        action: &'static str,
        rule: String,
    },
}

impl DenialCounts {
    fn count(
        &self,
        run: RunId,
        deadline_at: i64,
        now: i64,
        action: &'static str,
        rule: &str,
        limit: u64,
    ) -> (DeniedEntry, bool) {
        if self.0.len() >= TIDY_AT && !self.0.contains_key(&run) {
            self.0.retain(|_, count| count.deadline_at > now);
        }
        let mut count = self.0.entry(run).or_default();
        count.deadline_at = deadline_at;
        count.denied = count.denied.saturating_add(1);
        let after = after_denial(count.denied, limit);
        if after == DenialOutcome::Entry {
            return (DeniedEntry::Own, false);
        }
        let shared = &mut count.shared;
        let mut key = (action, rule.to_owned());
        if shared.len() >= SHARED_ENTRIES && !shared.contains_key(&key) {
            // The runner chooses the names, so they must not fill the memory.
            key = (MANY, MANY.to_owned());
        }
        let id = *shared.entry(key.clone()).or_insert_with(Uuid::now_v7);
        let (action, rule) = key;
        let entry = DeniedEntry::Shared { id, action, rule };
        (entry, after == DenialOutcome::End)
    }

    /// True for the first caller, so that the run is ended once.
    fn ends_now(&self, run: RunId) -> bool {
        let count = self.0.get_mut(&run);
        count.is_some_and(|mut count| !std::mem::replace(&mut count.is_ending, true))
    }

    /// The end was not written; the next denial tries again.
    fn end_again(&self, run: RunId) {
        if let Some(mut count) = self.0.get_mut(&run) {
            count.is_ending = false;
        }
    }
}

/// Counts denied calls, and ends runs with too many.
pub struct Denials {
    pub(super) deps: Arc<RunDeps>,
    pub(super) counts: Arc<DenialCounts>,
    pub(super) cancellation: Arc<Cancellation>,
}

impl Denials {
    /// Counts a denied call of a run, and ends the run that has too many.
    pub fn count_denial(&self, grant: &Grant, action: &'static str, rule: &str) -> DeniedEntry {
        let run = &grant.run;
        let (now, limit) = (self.deps.clock.now_ms(), self.deps.limits.run_denied_calls);
        let (entry, ends) =
            self.counts
                .count(run.id, grant.deadline_at(), now, action, rule, limit);
        // Concurrent denials pass the limit together; only one ends the run.
        if ends && run.cancel_requested_at.is_none() && self.counts.ends_now(run.id) {
            tracing::warn!(run.id = %run.id, "run {} has too many denied calls, ending it", run.id);
            let (workspace, id) = (run.workspace.clone(), run.id);
            let (cancellation, counts) = (Arc::clone(&self.cancellation), Arc::clone(&self.counts));
            self.deps.lifecycle.tasks.spawn(async move {
                let request = CancelCause {
                    by: PrincipalKind::Gateway.into(),
                    reason: Some(DENIED_CALLS.to_owned()),
                };
                if cancellation.cancel(&workspace, id, request).await.is_err() {
                    counts.end_again(id);
                }
            });
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_entries_of_a_run_with_many_denials() {
        let denials = DenialCounts::default();
        let run = RunId(Uuid::nil());
        let mut shared = std::collections::HashSet::new();
        let mut own = 0;
        for n in 0..9_999 {
            let key = format!("key {n}");
            match denials.count(run, 10, 0, "state_set", &key, 10_000) {
                (DeniedEntry::Own, false) => own += 1,
                (DeniedEntry::Shared { id, .. }, false) => {
                    shared.insert(id);
                }
                (_, true) => panic!("{n} are not too many"),
            }
        }
        assert_eq!((own, shared.len()), (1_000, SHARED_ENTRIES + 1));
        let (_, ends) = denials.count(run, 10, 0, "state_set", "key", 10_000);
        assert!(ends && denials.ends_now(run) && !denials.ends_now(run));
    }

    #[test]
    fn forgets_runs_past_their_deadline() {
        let denials = DenialCounts::default();
        for _ in 0..=TIDY_AT {
            denials.count(RunId(Uuid::now_v7()), 10, 11, "a", "b", 10_000);
        }
        assert!(denials.0.len() <= 1, "{}", denials.0.len());
    }
}
