//! Schedule of discoveries.

use std::time::Duration;

use store::EndpointRecord;
use uuid::Uuid;

use super::Endpoints;
use super::outcome::ListOutcome;

/// Time after which another replica may claim a due endpoint that has no result. Longer than a discovery may
/// take.
pub(super) const CLAIM_TIME: Duration = Duration::from_secs(30);
/// An endpoint with static manifests needs no discovery.
const NEVER: i64 = i64::MAX;

impl Endpoints {
    /// Time of the next discovery after this outcome.
    pub(super) fn next_check(
        &self,
        record: &EndpointRecord,
        outcome: &ListOutcome,
        now: i64,
    ) -> i64 {
        let pause = match outcome {
            ListOutcome::Found(_) if record.manifests.is_some() => return NEVER,
            ListOutcome::Found(_) => self.deps.limits.discovery_ttl,
            ListOutcome::Failed { .. } => self.deps.limits.discovery_retry,
        };
        let random = f64::from(Uuid::new_v4().as_bytes()[0]) / 255.0;
        now + millis(spread(pause, random))
    }

    /// Time until which the registration itself discovers a new endpoint.
    pub(super) fn first_check(&self) -> i64 {
        self.deps.clock.now_ms() + millis(CLAIM_TIME)
    }
}

/// Varies the pause by up to a tenth, so that endpoints of one registration do not stay in step.
fn spread(pause: Duration, random: f64) -> Duration {
    pause.mul_f64(0.9 + 0.2 * random.clamp(0.0, 1.0))
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varies_pause_by_up_to_a_tenth() {
        let check = |random: f64, expected: f64| {
            let spread = spread(Duration::from_mins(5), random).as_secs_f64();
            assert!((spread - expected).abs() < 1e-6, "{random}: {spread}");
        };
        check(0.0, 270.0);
        check(0.5, 300.0);
        check(1.0, 330.0);
        check(9.0, 330.0);
    }
}
