//! Replays results that another instance of the validator has accepted or rejected for the same run.

use super::{ResultEffect, ResultLimits, ResultValidator, Verdict};

const UNBOUNDED: ResultLimits = ResultLimits {
    event_bytes: usize::MAX,
    run_bytes: usize::MAX,
    run_events: u64::MAX,
    state_value_bytes: usize::MAX,
};

/// Verdict on a result that is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierVerdict {
    Accepted,
    Rejected,
}

impl ResultValidator<'_> {
    /// Replays one result to restore the state of the run. An accepted result counts regardless of time, limits and
    /// artifacts. A rejected result is counted without a strike. Returns the usage of the result.
    pub fn replay(&mut self, number: u64, raw: &[u8], verdict: EarlierVerdict) -> Option<String> {
        if verdict == EarlierVerdict::Rejected {
            self.events += 1;
            self.bytes = self.bytes.saturating_add(raw.len());
            // The number stays taken, so that a repetition is a duplicate as before.
            self.taken.accept(Some(number), raw);
            self.tally.rejected += 1;
            return None;
        }
        let limits = std::mem::replace(&mut self.limits, UNBOUNDED);
        // The first validation checked the limits and uploads; both may have changed since.
        let artifacts = self.artifacts.take();
        let strikes = self.strikes;
        let verdict = self.validate_event(raw, None);
        (self.limits, self.artifacts, self.strikes) = (limits, artifacts, strikes);
        self.count(&verdict);
        match verdict {
            Verdict::Accept(accepted) => {
                // The run is still live, so this result has not ended it.
                self.ended &= !matches!(accepted.effect, ResultEffect::End(_));
                accepted.usage.map(|usage| usage.get().to_owned())
            }
            Verdict::Duplicate | Verdict::Reject(_) | Verdict::Fail(..) => None,
        }
    }
}
