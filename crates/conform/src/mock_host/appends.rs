//! Appended results of a mock run, after the runner answered with `202`.

use std::time::Duration;

use axum::Json;
use axum::extract::{FromRequest, Request, State};
use protocol::host_api::{AppendedResults, RunHeartbeat};
use secrecy::{ExposeSecret, SecretString};
use store::result_digest;
use tokio::time::{Instant, timeout_at};

use super::routes::MockRunCaller;
use super::{MockHost, MockRunState};
use host_api::results::{body_limit, sequenced_results};
use web::error::appended::{
    append_limit_exceeded, appends_pending, not_deferred, sequence_conflict, sequence_gap,
};
use web::error::{ApiError, ApiResult};
use web::json::json_bytes_of;

/// A runner's call may arrive before its `202`; wait this long for it.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// Appended results of a run.
#[derive(Default)]
pub(super) struct AppendLog {
    /// Time of the runner's last call; `None` before its `202`.
    last_call_at: Option<Instant>,
    /// Last accepted sequence.
    through: u64,
    bytes: usize,
    /// Digests of accepted results.
    digests: Vec<String>,
    /// Accepted and not yet processed.
    waiting: Vec<String>,
    /// Number of processed results.
    judged: u64,
}

/// Next step of a run with appended results.
pub(crate) enum AppendStep {
    AppendedBatch(Vec<String>),
    /// No call within the lease, which is given.
    LeaseExpired(Duration),
    /// The deadline of the wait has passed.
    Late,
}

impl MockHost {
    /// Marks the run as answered with `202`; results are appended from now on.
    pub(crate) fn defer(&self, token: &SecretString) {
        let now = Instant::now();
        self.with(token, |part| {
            part.appends
                .send_modify(|appends| appends.last_call_at = Some(now));
        });
    }

    /// Marks this many more results as processed, including their state updates.
    pub(crate) fn mark_processed(&self, token: &SecretString, results: usize) {
        self.with(token, |part| {
            part.appends
                .send_modify(|appends| appends.judged += results as u64);
        });
    }

    /// Waits for appended results until `until`.
    pub(crate) async fn appended(&self, token: &SecretString, until: Instant) -> AppendStep {
        let Some(part) = self.find(token.expose_secret()) else {
            return AppendStep::Late;
        };
        let lease = self.0.append_lease;
        let mut changes = part.appends.subscribe();
        loop {
            let (results, last_call_at) = part.take_appended();
            if !results.is_empty() {
                return AppendStep::AppendedBatch(results);
            }
            let lease_end = last_call_at + lease;
            // The run owns the sender, so it cannot be dropped.
            if timeout_at(lease_end.min(until), changes.changed())
                .await
                .is_ok()
            {
                continue;
            }
            if until <= Instant::now() {
                return AppendStep::Late;
            }
            // A call between the two checks has renewed the lease.
            if part.appends.borrow().last_call_at == Some(last_call_at) {
                return AppendStep::LeaseExpired(lease);
            }
        }
    }
}

impl MockRunState {
    fn take_appended(&self) -> (Vec<String>, Instant) {
        let mut taken = (Vec::new(), Instant::now());
        self.appends.send_if_modified(|appends| {
            let last_call_at = appends.last_call_at.unwrap_or(taken.1);
            taken = (std::mem::take(&mut appends.waiting), last_call_at);
            // No waiter depends on this change, so none is woken.
            false
        });
        taken
    }

    /// Waits until all earlier appended results are processed.
    pub(super) async fn after_appended(&self) -> ApiResult<()> {
        let through = self.appends.borrow().through;
        let mut appends = self.appends.subscribe();
        let judged = appends.wait_for(|appends| appends.judged >= through);
        let judged = tokio::time::timeout(ANSWER_PATIENCE, judged).await;
        judged.map(drop).map_err(|_| appends_pending())
    }

    /// Waits for the runner's `202`.
    async fn deferred(&self) -> ApiResult<()> {
        let mut appends = self.appends.subscribe();
        let answered = appends.wait_for(|appends| appends.last_call_at.is_some());
        let answered = tokio::time::timeout(ANSWER_PATIENCE, answered).await;
        answered.map(drop).map_err(|_| not_deferred())
    }
}

/// The original results of a call with their sequences.
pub(super) struct AppendedBatch(Vec<(u64, String)>);

impl FromRequest<MockHost> for AppendedBatch {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &MockHost) -> ApiResult<Self> {
        let limits = state.0.limits;
        let body = json_bytes_of(request, state, body_limit(limits)).await?;
        sequenced_results(&body, limits).map(Self)
    }
}

pub(super) async fn append_results(
    MockRunCaller(part): MockRunCaller,
    State(mock_host): State<MockHost>,
    AppendedBatch(results): AppendedBatch,
) -> ApiResult<Json<AppendedResults>> {
    part.deferred().await?;
    let max_bytes = mock_host.0.limits.run_bytes;
    let mut outcome = Ok(0);
    part.appends
        .send_modify(|appends| outcome = appends.accept(results, max_bytes));
    let accepted_through = outcome?;
    Ok(Json(AppendedResults { accepted_through }))
}

pub(super) async fn run_heartbeat(
    MockRunCaller(part): MockRunCaller,
    State(mock_host): State<MockHost>,
) -> ApiResult<Json<RunHeartbeat>> {
    part.deferred().await?;
    let now = Instant::now();
    let mut accepted_through = 0;
    part.appends.send_modify(|appends| {
        appends.last_call_at = Some(now);
        accepted_through = appends.through;
    });
    let lease = i64::try_from(mock_host.0.append_lease.as_secs()).unwrap_or(i64::MAX);
    let cancel_requested_at = part.progress().cancel_requested_at;
    Ok(Json(RunHeartbeat {
        accepted_through,
        lease_expires_at: mock_host.0.clock.now_seconds().saturating_add(lease),
        cancel_requested: cancel_requested_at.is_some(),
    }))
}

impl AppendLog {
    /// Accepts the new results of a call and returns the last accepted sequence.
    fn accept(&mut self, results: Vec<(u64, String)>, max_bytes: usize) -> ApiResult<u64> {
        let through = self.through;
        let digests: Vec<_> = results.iter().map(|(_, raw)| result_digest(raw)).collect();
        for ((number, _), digest) in results.iter().zip(&digests) {
            let index = usize::try_from(number - 1).unwrap_or(usize::MAX);
            if self
                .digests
                .get(index)
                .is_some_and(|accepted| accepted != digest)
            {
                return Err(sequence_conflict(*number));
            }
        }
        let new = || results.iter().filter(|(number, _)| *number > through);
        if new().next().is_some_and(|(first, _)| *first != through + 1) {
            return Err(sequence_gap(through + 1));
        }
        if new().next().is_some() && self.bytes > max_bytes {
            return Err(append_limit_exceeded());
        }
        // Also with old results only: a repeated call renews the lease.
        self.last_call_at = Some(Instant::now());
        for ((number, raw), digest) in results.into_iter().zip(digests) {
            if number > through {
                self.through = number;
                self.digests.push(digest);
                self.bytes += raw.len();
                self.waiting.push(raw);
            }
        }
        Ok(self.through)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(numbers: std::ops::RangeInclusive<u64>) -> Vec<(u64, String)> {
        numbers
            .map(|number| (number, format!("r{number}")))
            .collect()
    }

    #[test]
    fn accepts_results_once_and_without_gaps() {
        let mut appends = AppendLog::default();
        assert_eq!(appends.accept(results(1..=2), 100).ok(), Some(2));
        assert_eq!(appends.accept(results(1..=3), 100).ok(), Some(3));
        assert_eq!(appends.accept(results(2..=2), 100).ok(), Some(3));
        assert!(appends.accept(results(5..=5), 100).is_err());
        let other = vec![(2, "other".to_owned())];
        assert!(appends.accept(other, 100).is_err(), "another under 2");
        assert_eq!(appends.waiting, ["r1", "r2", "r3"]);
        assert_eq!(appends.accept(results(4..=4), 6).ok(), Some(4));
        assert!(appends.accept(results(5..=5), 6).is_err(), "it has enough");
    }
}
