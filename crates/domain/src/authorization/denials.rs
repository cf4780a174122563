//! Limit of denied calls: a run ends after too many.

/// Denied calls of a run with an audit entry each. Later calls share one entry per action and rule.
const ENTRY_EACH: u64 = 1_000;

/// Reason of a run that ends because of denied calls.
pub const DENIED_CALLS: &str = "runner.denied_calls";

/// Consequence of a denied call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialOutcome {
    /// Write an audit entry.
    Entry,
    /// Increment a shared audit entry.
    SharedEntry,
    /// Increment a shared audit entry and end the run.
    End,
}

/// `count`: denied calls of the run including this one. `max`: the count that ends the run.
pub fn after_denial(count: u64, max: u64) -> DenialOutcome {
    match count {
        // The last denial ends the run without an entry of its own.
        _ if count >= max => DenialOutcome::End,
        // A loop of denied calls must not fill the audit log.
        0..=ENTRY_EACH => DenialOutcome::Entry,
        _ => DenialOutcome::SharedEntry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_entries_then_ends_the_run() {
        for (count, max, expected) in [
            (1, 10_000, DenialOutcome::Entry),
            (1_000, 10_000, DenialOutcome::Entry),
            (1_001, 10_000, DenialOutcome::SharedEntry),
            (9_999, 10_000, DenialOutcome::SharedEntry),
            (10_000, 10_000, DenialOutcome::End),
            (10_001, 10_000, DenialOutcome::End),
            (9, 10, DenialOutcome::Entry),
            (10, 10, DenialOutcome::End),
        ] {
            assert_eq!(after_denial(count, max), expected, "{count} of {max}");
        }
    }
}
