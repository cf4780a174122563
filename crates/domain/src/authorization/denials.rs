//! Bounds of denied calls: a run ends after too many.

/// Denied calls of a run with an audit entry each. Later ones share an entry for each action and rule.
const ENTRY_EACH: u64 = 1_000;
/// Denied calls after which a run ends.
pub const MOST_DENIALS: u64 = 10_000;

/// The reason of a run that ends for its denied calls.
pub const DENIED_CALLS: &str = "runner.denied_calls";

/// The consequence of a denied call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDenial {
    /// An entry of its own.
    Entry,
    /// One more call of a shared entry.
    SharedEntry,
    /// The same, and the run ends.
    End,
}

/// `count`: the run's denied calls, this one among them.
pub fn after_denial(count: u64) -> AfterDenial {
    match count {
        0..=ENTRY_EACH => AfterDenial::Entry,
        MOST_DENIALS.. => AfterDenial::End,
        _ => AfterDenial::SharedEntry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_entries_then_ends_the_run() {
        for (count, expected) in [
            (1, AfterDenial::Entry),
            (1_000, AfterDenial::Entry),
            (1_001, AfterDenial::SharedEntry),
            (9_999, AfterDenial::SharedEntry),
            (10_000, AfterDenial::End),
            (10_001, AfterDenial::End),
        ] {
            assert_eq!(after_denial(count), expected, "{count}");
        }
    }
}
