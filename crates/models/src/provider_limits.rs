//! Limits of concurrency, rate and tokens of a provider or a model on this replica. Calls beyond them wait in a queue, for a
//! limited time.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::DefaultClock;
use protocol::limiter::{LimitedKind, LimiterStatus, MeasuredLimit};
use tokio::time::{Instant, sleep_until};

use super::Payment;
use egress::limiter::{KeyedLimiter, LimitRefusal, LimitSpec, Permit};
use egress::rate::{CallRate, KeyedRate};
use egress::tokens::KeyedTokens;
use egress::upstream::UpstreamError;

/// Limits of a provider or a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProviderLimitSpec {
    /// Maximum requests in flight, until their answers are read. `None`: no limit.
    pub concurrency: Option<usize>,
    /// `None`: no limit.
    pub rate: Option<CallRate>,
    /// Input and output tokens in a minute. `None`: no limit.
    pub tokens_per_minute: Option<NonZeroU32>,
    /// Maximum wait of a request.
    pub queue: Duration,
}

/// Refusals of a limiter, by limit.
#[derive(Clone, Copy)]
struct LimitRefusals {
    concurrency: LimitRefusal,
    rate: LimitRefusal,
    tokens: LimitRefusal,
}

const OF_PROVIDER: LimitRefusals = LimitRefusals {
    concurrency: LimitRefusal::new(
        "provider_concurrency",
        "the provider has reached its limit of concurrent requests",
    ),
    rate: LimitRefusal::new(
        "provider_rate",
        "the provider has reached its limit of requests in a minute",
    ),
    tokens: LimitRefusal::new(
        "provider_tokens",
        "the provider has reached its limit of tokens in a minute (tokens_per_minute)",
    ),
};
const OF_MODEL: LimitRefusals = LimitRefusals {
    concurrency: LimitRefusal::new(
        "model_concurrency",
        "the model has reached its limit of concurrent requests",
    ),
    rate: LimitRefusal::new(
        "model_rate",
        "the model has reached its limit of requests in a minute",
    ),
    tokens: LimitRefusal::new(
        "model_tokens",
        "the model has reached its limit of tokens in a minute (tokens_per_minute)",
    ),
};

/// Limiters of a provider or a model.
pub(super) struct ProviderLimits {
    spec: ProviderLimitSpec,
    refusals: LimitRefusals,
    slots: Option<KeyedLimiter<()>>,
    rate: Option<KeyedRate<()>>,
    tokens: KeyedTokens<()>,
    by_concurrency: CallCounts,
    by_rate: CallCounts,
    by_tokens: CallCounts,
}

/// Calls that a limit delays, and calls that it has refused.
#[derive(Default)]
struct CallCounts {
    queued: AtomicU64,
    refused: AtomicU64,
}

/// A call in the queue of a limit.
struct QueuedCall<'a>(&'a CallCounts);

impl CallCounts {
    fn enter(&self) -> QueuedCall<'_> {
        self.queued.fetch_add(1, Ordering::Relaxed);
        QueuedCall(self)
    }

    fn refuse(&self, refusal: LimitRefusal, wait: Option<Duration>) -> UpstreamError {
        self.refused.fetch_add(1, Ordering::Relaxed);
        UpstreamError::Busy {
            reason: refusal.reason,
            message: refusal.message,
            wait,
        }
    }
}

impl Drop for QueuedCall<'_> {
    fn drop(&mut self) {
        self.0.queued.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request in flight.
pub(super) type RequestPermit = Option<Permit<()>>;

impl ProviderLimits {
    pub(super) fn of_provider(spec: ProviderLimitSpec) -> Self {
        Self::new(spec, OF_PROVIDER)
    }

    pub(super) fn of_model(spec: ProviderLimitSpec) -> Self {
        Self::new(spec, OF_MODEL)
    }

    fn new(spec: ProviderLimitSpec, refusals: LimitRefusals) -> Self {
        let slots = spec.concurrency.map(|max| refusals.concurrency.at(max));
        let rate = spec.rate.map(CallRate::quota);
        Self {
            spec,
            refusals,
            slots: slots.map(KeyedLimiter::new),
            rate: rate.map(|quota| KeyedRate::new(quota, DefaultClock::default())),
            tokens: KeyedTokens::default(),
            by_concurrency: CallCounts::default(),
            by_rate: CallCounts::default(),
            by_tokens: CallCounts::default(),
        }
    }

    /// Admits one request, in order of arrival. Fails after the wait of the queue. `tokens`: those of the request, held
    /// by its payment; 0: it counts for no limit of tokens.
    pub(super) async fn admit(
        &self,
        paid: &Payment,
        tokens: u64,
    ) -> Result<RequestPermit, UpstreamError> {
        let end = Instant::now() + self.spec.queue;
        let permit = match &self.slots {
            None => None,
            Some(slots) => {
                let _queued = self.by_concurrency.enter();
                let acquired = slots.acquire_until([], end).await;
                let refuse = |LimitSpec { refusal, .. }| self.by_concurrency.refuse(refusal, None);
                Some(acquired.map_err(refuse)?)
            }
        };
        if let Some(rate) = &self.rate {
            let _queued = self.by_rate.enter();
            while let Err(wait) = rate.admit(&()) {
                let next = Instant::now() + wait;
                // An admission after the end of the queue helps no caller, so do not wait for it.
                if next > end {
                    return Err(self.by_rate.refuse(self.refusals.rate, Some(wait)));
                }
                sleep_until(next).await;
            }
        }
        if let Some(per_minute) = self.spec.tokens_per_minute
            && tokens > 0
        {
            let _queued = self.by_tokens.enter();
            let reserved = self
                .tokens
                .reserve_until(&(), per_minute, tokens, end)
                .await;
            let refuse = |wait| self.by_tokens.refuse(self.refusals.tokens, Some(wait));
            paid.hold_tokens(reserved.map_err(refuse)?);
        }
        Ok(permit)
    }

    /// The limiters of this provider or model.
    pub(super) fn statuses(&self, kind: LimitedKind, id: &str) -> Vec<LimiterStatus> {
        let status = |limit, max, counts: &CallCounts| LimiterStatus {
            kind,
            id: id.to_owned(),
            name: id.to_owned(),
            limit,
            max,
            burst: None,
            in_flight: None,
            available: None,
            queued: counts.queued.load(Ordering::Relaxed),
            refused: counts.refused.load(Ordering::Relaxed),
        };
        let slots = self.slots.as_ref().zip(self.spec.concurrency);
        let slots = slots.map(|(slots, max)| LimiterStatus {
            in_flight: Some(slots.used() as u64),
            ..status(MeasuredLimit::Concurrency, max as u64, &self.by_concurrency)
        });
        let rate = self.spec.rate.map(|rate| LimiterStatus {
            burst: Some(rate.burst.get().into()),
            ..status(
                MeasuredLimit::Rate,
                rate.per_minute.get().into(),
                &self.by_rate,
            )
        });
        let tokens = self.spec.tokens_per_minute.map(|max| {
            let (limit, max) = (MeasuredLimit::TokensPerMinute, max.get());
            let level = self.tokens.level(&());
            LimiterStatus {
                in_flight: Some(level.map_or(0, |level| level.reserved)),
                available: Some(level.map_or(max.into(), |level| level.available)),
                ..status(limit, max.into(), &self.by_tokens)
            }
        });
        rate.into_iter().chain(slots).chain(tokens).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn admit(limits: &ProviderLimits) -> Result<RequestPermit, UpstreamError> {
        limits.admit(&Payment::by_operator(), 0).await
    }

    fn reason(refused: Result<RequestPermit, UpstreamError>) -> &'static str {
        refused.err().map_or("admitted", |error| error.reason())
    }

    #[tokio::test(start_paused = true)]
    async fn queue_of_a_provider_is_bounded_in_time() {
        let limits = ProviderLimits::of_provider(ProviderLimitSpec {
            concurrency: Some(1),
            queue: Duration::from_secs(5),
            ..ProviderLimitSpec::default()
        });
        let first = admit(&limits).await.unwrap();
        let begun = Instant::now();
        assert_eq!(reason(admit(&limits).await), "provider_concurrency");
        assert_eq!(begun.elapsed().as_secs(), 5);
        let (second, ()) = tokio::join!(admit(&limits), async { drop(first) });
        assert_eq!(reason(second), "admitted");
    }

    #[tokio::test]
    async fn rate_refuses_waits_beyond_the_queue() {
        let one = NonZeroU32::MIN;
        let limits = ProviderLimits::of_model(ProviderLimitSpec {
            rate: Some(CallRate {
                per_minute: one,
                burst: one,
            }),
            queue: Duration::from_secs(5),
            ..ProviderLimitSpec::default()
        });
        assert_eq!(reason(admit(&limits).await), "admitted");
        assert_eq!(reason(admit(&limits).await), "model_rate");
        let statuses = limits.statuses(LimitedKind::Model, "m");
        let counts = statuses
            .iter()
            .map(|rate| (rate.max, rate.queued, rate.refused));
        assert_eq!(counts.collect::<Vec<_>>(), [(1, 0, 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_wait_for_tokens_until_the_queue_ends() {
        let limits = ProviderLimits::of_model(ProviderLimitSpec {
            tokens_per_minute: NonZeroU32::new(60),
            queue: Duration::from_secs(5),
            ..ProviderLimitSpec::default()
        });
        let begun = Instant::now();
        let first = Payment::reserved(200);
        let limits = &limits;
        let admit = async |paid: &Payment| {
            let tokens = paid.take_expected_tokens();
            reason(limits.admit(paid, tokens).await)
        };
        assert_eq!(admit(&first).await, "admitted");
        // A later batch of the same call.
        assert_eq!(admit(&first).await, "admitted");
        assert_eq!(admit(&Payment::reserved(1)).await, "model_tokens");
        assert_eq!(begun.elapsed().as_secs(), 5);
        let second = Payment::reserved(1);
        let (second, ()) = tokio::join!(admit(&second), async { first.settle_tokens(62) });
        assert_eq!(second, "admitted");
    }
}
