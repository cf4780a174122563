//! Routes: several models of the catalog that answer for one id.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};

use egress::upstream::UpstreamError;

/// Longest wait of a rate-limited provider that a call waits for, instead of calling the next candidate.
const SHORT_WAIT: Duration = Duration::from_secs(2);
/// Cool-down of a failed candidate whose provider names no wait.
const COOLDOWN: Duration = Duration::from_secs(10);

/// Models that answer for one id of the catalog.
#[derive(Clone, Debug, Default)]
pub struct ModelRoute {
    /// Ids and weights. One of weight 0 gets no calls.
    pub weighted: Vec<(String, u64)>,
    /// Ids of the models that are called after these, in this order.
    pub fallback: Vec<String>,
    /// Maximum wait for the first event of a stream while another candidate is left. `None`: the silence limit of
    /// the provider.
    pub first_byte: Option<Duration>,
}

impl ModelRoute {
    /// Candidates of a call in calling order. Calls with the same key have the same order, because prompt caches
    /// belong to one model. Candidates in cool-down come last.
    pub fn order(&self, key: &str, is_resting: impl Fn(&str) -> bool) -> Vec<&str> {
        let scored = self.weighted.iter().filter(|(_, weight)| *weight > 0);
        let mut scored: Vec<_> = scored
            .map(|(id, weight)| (score(key, id, *weight), id.as_str()))
            .collect();
        scored.sort_by(|(one, _), (other, _)| other.partial_cmp(one).unwrap_or(Ordering::Equal));
        let weighted = scored.into_iter().map(|(_, id)| id);
        let all: Vec<_> = weighted
            .chain(self.fallback.iter().map(String::as_str))
            .collect();
        let (resting, mut order): (Vec<_>, Vec<_>) = all.into_iter().partition(|id| is_resting(id));
        order.extend(resting);
        order
    }
}

/// Score of a candidate in weighted rendezvous hashing: the highest wins with a probability of its share of the
/// weights. A removed candidate moves only its own keys.
#[expect(
    clippy::cast_precision_loss,
    reason = "a share of the weights need not be exact"
)]
fn score(key: &str, id: &str, weight: u64) -> f64 {
    let hash = digest(&SHA256, format!("{key}\n{id}").as_bytes());
    let head = hash.as_ref().first_chunk().copied().unwrap_or_default();
    // Between 0 and 1, both excluded: the logarithm of either has no use.
    let fraction = (u64::from_be_bytes(head) as f64 + 1.0) / (u64::MAX as f64 + 2.0);
    -(weight as f64) / fraction.min(1.0 - f64::EPSILON).ln()
}

/// Next step after a candidate failed before its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// Call the next candidate. This one cools down.
    Next { cooldown: Duration },
    /// Call the next candidate: this one cannot take the request.
    Exclude,
    /// Call the same candidate once more after this wait.
    Repeat { wait: Duration },
    /// Report the failure: the next candidate would refuse the request as well.
    Report,
}

/// Decides by the failure. `repeats`: calls of this candidate that were repeated for the request.
pub fn after_failure(failure: &UpstreamError, repeats: u32) -> AfterFailure {
    match failure {
        UpstreamError::Unsupported(_) => AfterFailure::Exclude,
        UpstreamError::RateLimited {
            retry_after: Some(wait),
        } if *wait <= SHORT_WAIT && repeats == 0 => AfterFailure::Repeat { wait: *wait },
        // The queue of the provider is full on this replica: other calls of the model are under way.
        UpstreamError::Busy { .. } => AfterFailure::Next {
            cooldown: Duration::ZERO,
        },
        UpstreamError::RateLimited { retry_after } | UpstreamError::Failing { retry_after, .. } => {
            AfterFailure::Next {
                cooldown: retry_after.unwrap_or(COOLDOWN),
            }
        }
        failure if failure.is_retryable() => AfterFailure::Next { cooldown: COOLDOWN },
        _ => AfterFailure::Report,
    }
}

/// Cool-downs of candidates on this replica, by model id. Bounded by the catalog.
#[derive(Debug, Default)]
pub(super) struct Cooldowns(Mutex<BTreeMap<String, Instant>>);

impl Cooldowns {
    pub(super) fn is_resting(&self, id: &str, now: Instant) -> bool {
        self.until().get(id).is_some_and(|until| *until > now)
    }

    /// A failed candidate rests until then.
    pub(super) fn rest(&self, id: &str, until: Instant) {
        self.until().insert(id.to_owned(), until);
    }

    /// A candidate has answered.
    pub(super) fn wake(&self, id: &str) {
        self.until().remove(id);
    }

    // The state is consistent after any panic.
    fn until(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(weights: &[(&str, u64)]) -> ModelRoute {
        ModelRoute {
            weighted: weights
                .iter()
                .map(|(id, weight)| ((*id).to_owned(), *weight))
                .collect(),
            fallback: vec!["c".to_owned()],
            first_byte: None,
        }
    }

    #[test]
    fn conversations_stick_and_share_by_weight() {
        let nine_to_one = route(&[("a", 9), ("b", 1), ("unused", 0)]);
        let first = |route: &ModelRoute, n: u32| {
            let key = format!("conversation {n}");
            let order = route.order(&key, |_| false);
            assert_eq!(order, route.order(&key, |_| false));
            assert_eq!(
                (order.len(), order.last()),
                (route.weighted.len(), Some(&"c"))
            );
            order[0].to_owned()
        };
        let of_a = (0..10_000).filter(|n| first(&nine_to_one, *n) == "a");
        let share = of_a.count();
        assert!((8_800..9_200).contains(&share), "{share}");
        // A further candidate takes conversations, and moves none between the others.
        let more = route(&[("a", 9), ("b", 1), ("d", 5), ("unused", 0)]);
        let moved = (0..1000).filter(|n| {
            let (before, after) = (first(&nine_to_one, *n), first(&more, *n));
            before != after && after != "d"
        });
        assert_eq!(moved.count(), 0);
    }

    #[test]
    fn candidates_in_cooldown_come_last() {
        let route = route(&[("a", 1)]);
        assert_eq!(route.order("k", |id| id == "a"), ["c", "a"]);
        let (cooldowns, now) = (Cooldowns::default(), Instant::now());
        cooldowns.rest("a", now + COOLDOWN);
        assert!(cooldowns.is_resting("a", now) && !cooldowns.is_resting("c", now));
        assert!(!cooldowns.is_resting("a", now + COOLDOWN));
        cooldowns.wake("a");
        assert!(!cooldowns.is_resting("a", now));
    }

    #[test]
    fn falls_back_on_failures_of_the_provider_only() {
        let seconds = Duration::from_secs;
        let limited = |wait| UpstreamError::RateLimited {
            retry_after: Some(seconds(wait)),
        };
        let failing = |retry_after| UpstreamError::Failing {
            status: 529,
            message: String::new(),
            retry_after,
        };
        let next = |cooldown| AfterFailure::Next { cooldown };
        for (failure, repeats, expected) in [
            (limited(1), 0, AfterFailure::Repeat { wait: seconds(1) }),
            (limited(1), 1, next(seconds(1))),
            (limited(60), 0, next(seconds(60))),
            (failing(None), 0, next(COOLDOWN)),
            (failing(Some(seconds(7))), 0, next(seconds(7))),
            (UpstreamError::Timeout, 0, next(COOLDOWN)),
            (UpstreamError::Lost(String::new()), 0, next(COOLDOWN)),
            (
                UpstreamError::Unsupported(String::new()),
                0,
                AfterFailure::Exclude,
            ),
            (
                UpstreamError::ContextOverflow(String::new()),
                0,
                AfterFailure::Report,
            ),
            (
                UpstreamError::Credential { status: 401 },
                0,
                AfterFailure::Report,
            ),
        ] {
            assert_eq!(after_failure(&failure, repeats), expected, "{failure}");
        }
    }
}
