//! Limits of `[[model_providers]]` and `[[models]]`.

use std::num::NonZeroU32;
use std::time::Duration;

use super::table::{Reported, Table, integer, seconds};

/// Default wait of a call beyond a limit.
const QUEUE: Duration = Duration::from_secs(5);

/// Limits of a provider or a model, on each replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProviderLimitsEntry {
    /// `None`: no limit.
    pub concurrency: Option<usize>,
    /// Calls in a minute. `None`: no limit.
    pub rate: Option<NonZeroU32>,
    /// Calls at once, after a pause.
    pub burst: Option<NonZeroU32>,
    /// Input and output tokens in a minute. `None`: no limit.
    pub tokens_per_minute: Option<NonZeroU32>,
    pub queue: Duration,
}

impl ProviderLimitsEntry {
    /// True if a limit is set.
    pub fn is_limited(&self) -> bool {
        self.concurrency.is_some() || self.rate.is_some() || self.tokens_per_minute.is_some()
    }

    pub(super) fn read(table: &mut Table<'_>) -> Result<Self, Reported> {
        let concurrency = table.optional("concurrency", integer(1..=100_000));
        let rate = table.optional("rate", integer(1..=1_000_000));
        let burst = table.optional("burst", integer(1..=1_000_000));
        let tokens = table.optional("tokens_per_minute", integer(1..=1_000_000_000));
        let queue = table.optional("queue_seconds", seconds(0.0..=600.0));
        let (concurrency, rate, burst, tokens) = (concurrency?, rate?, burst?, tokens?);
        let queue = queue?;
        table.demand(
            "burst",
            burst.is_none() || rate.is_some(),
            "has no effect without rate",
        )?;
        let is_limited = concurrency.or(rate).or(tokens).is_some();
        let message = "has no effect without concurrency, rate or tokens_per_minute";
        table.demand("queue_seconds", queue.is_none() || is_limited, message)?;
        let number = |value: Option<u64>| {
            let value = u32::try_from(value?).ok()?;
            NonZeroU32::new(value)
        };
        Ok(Self {
            concurrency: concurrency.and_then(|max| usize::try_from(max).ok()),
            rate: number(rate),
            burst: number(burst),
            tokens_per_minute: number(tokens),
            queue: queue.unwrap_or(QUEUE),
        })
    }
}
