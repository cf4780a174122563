//! Denied host calls of each run, counted on this replica.

use std::collections::HashMap;

use dashmap::DashMap;
use domain::authorization::denials::{AfterDenial, DENIED_CALLS, after_denial};
use protocol::id::RunId;
use uuid::Uuid;

use crate::Runs;
use crate::grant::Grant;

/// Entries that the later denials of a run share. Rules may name what a runner has made up: more share the last.
const SHARED_ENTRIES: usize = 64;
/// Runs that are counted before those past their deadline are forgotten.
const TIDY_AT: usize = 1024;
/// The rule of an entry that denials of many rules share.
const MANY: &str = "many";

/// Denials by runs. A run has a count until its deadline is over.
#[derive(Default)]
pub(super) struct Denials(DashMap<RunId, Count>);

#[derive(Default)]
struct Count {
    denied: u64,
    deadline_at: i64,
    shared: HashMap<(&'static str, String), Uuid>,
    /// The run was asked to end.
    is_ending: bool,
}

/// The audit entry of a denied call.
#[derive(Debug, PartialEq, Eq)]
pub enum DeniedEntry {
    /// Its own.
    Own,
    /// One that stands for all denials of this action by this rule.
    Shared {
        id: Uuid,
        action: &'static str,
        rule: String,
    },
}

impl Denials {
    fn count(
        &self,
        (run, deadline_at, now): (RunId, i64, i64),
        (action, rule): (&'static str, &str),
        most: u64,
    ) -> (DeniedEntry, bool) {
        if self.0.len() >= TIDY_AT && !self.0.contains_key(&run) {
            self.0.retain(|_, count| count.deadline_at > now);
        }
        let mut count = self.0.entry(run).or_default();
        count.deadline_at = deadline_at;
        count.denied = count.denied.saturating_add(1);
        let after = after_denial(count.denied, most);
        if after == AfterDenial::Entry {
            return (DeniedEntry::Own, false);
        }
        let shared = &mut count.shared;
        let mut key = (action, rule.to_owned());
        if shared.len() >= SHARED_ENTRIES && !shared.contains_key(&key) {
            key = (MANY, MANY.to_owned());
        }
        let id = *shared.entry(key.clone()).or_insert_with(Uuid::now_v7);
        let (action, rule) = key;
        let entry = DeniedEntry::Shared { id, action, rule };
        (entry, after == AfterDenial::End)
    }

    /// True for the first who asks: the run is ended once.
    fn ends_now(&self, run: RunId) -> bool {
        let count = self.0.get_mut(&run);
        count.is_some_and(|mut count| !std::mem::replace(&mut count.is_ending, true))
    }

    /// The end could not be written: the next denial asks again.
    fn end_again(&self, run: RunId) {
        if let Some(mut count) = self.0.get_mut(&run) {
            count.is_ending = false;
        }
    }
}

impl Runs {
    /// Counts a denied call of a run, and ends the run that has too many.
    pub fn count_denial(&self, grant: &Grant, action: &'static str, rule: &str) -> DeniedEntry {
        let run = &grant.run;
        let now = self.0.clock.now_ms();
        let whose = (run.id, run.deadline_at, now);
        let most = self.0.limits.run_denied_calls;
        let (entry, ends) = self.0.denials.count(whose, (action, rule), most);
        if ends && run.cancel_requested_at.is_none() && self.0.denials.ends_now(run.id) {
            tracing::warn!(run.id = %run.id, "run {} has too many denied calls, ending it", run.id);
            let (runs, workspace, id) = (self.clone(), run.workspace.clone(), run.id);
            self.0.tasks.spawn(async move {
                let reason = Some(DENIED_CALLS.to_owned());
                if runs.cancel(&workspace, id, reason).await.is_err() {
                    runs.0.denials.end_again(id);
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
        let denials = Denials::default();
        let run = RunId(Uuid::nil());
        let mut shared = std::collections::HashSet::new();
        let mut own = 0;
        for n in 0..9_999 {
            let call = ("state_set", &*format!("key {n}"));
            match denials.count((run, 10, 0), call, 10_000) {
                (DeniedEntry::Own, false) => own += 1,
                (DeniedEntry::Shared { id, .. }, false) => {
                    shared.insert(id);
                }
                (_, true) => panic!("{n} are not too many"),
            }
        }
        assert_eq!((own, shared.len()), (1_000, SHARED_ENTRIES + 1));
        let (_, ends) = denials.count((run, 10, 0), ("state_set", "key"), 10_000);
        assert!(ends && denials.ends_now(run) && !denials.ends_now(run));
    }

    #[test]
    fn forgets_runs_past_their_deadline() {
        let denials = Denials::default();
        for _ in 0..=TIDY_AT {
            denials.count((RunId(Uuid::now_v7()), 10, 11), ("a", "b"), 10_000);
        }
        assert!(denials.0.len() <= 1, "{}", denials.0.len());
    }
}
