//! Token and deadlines of a run, on the gateway's clock.

use std::fmt;
use std::time::Duration;

use protocol::host_api::RenewedToken;
use protocol::request::HostAccess;
use tokio::sync::watch;
use tokio::time::Instant;

/// Remaining seconds of validity at which a token is renewed.
const RENEWAL_WINDOW: f64 = 60.0;
/// Seconds without another attempt after a renewal.
const RENEWAL_PAUSE: f64 = 5.0;
/// Tolerance in seconds: the expiry of a token is at most the deadline, but may be rounded to seconds.
const ROUNDING: f64 = 2.0;
/// Upper bound of a run's duration.
const LONGEST_RUN: Duration = Duration::from_hours(24);

/// Epoch seconds on the gateway's clock, which may differ from ours.
#[derive(Debug)]
pub(super) struct GatewayClock {
    seconds: f64,
    read_at: Instant,
}

impl GatewayClock {
    /// Clock that shows `now_seconds` at this moment.
    pub(super) fn new(now_seconds: i64) -> Self {
        Self {
            seconds: seconds(now_seconds),
            read_at: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> f64 {
        self.seconds + self.read_at.elapsed().as_secs_f64()
    }
}

/// Deadline of the run and timeout of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Epoch seconds.
    deadline_at: f64,
    call_timeout: Duration,
}

/// Time limit of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum CallTime {
    Left(Duration),
    /// The run's deadline has passed.
    Over,
}

impl Times {
    pub(super) fn new(deadline_at: Option<f64>, call_timeout: Duration) -> Self {
        Self {
            deadline_at: deadline_at.unwrap_or(f64::INFINITY),
            call_timeout,
        }
    }

    /// The call's own timeout, or the rest of the run if that is less.
    pub(super) fn call_time(&self, now: f64) -> CallTime {
        match self.run_time(now) {
            CallTime::Left(left) => CallTime::Left(left.min(self.call_timeout)),
            CallTime::Over => CallTime::Over,
        }
    }

    /// Rest of the run, at most a day.
    pub(super) fn run_time(&self, now: f64) -> CallTime {
        let left = self.deadline_at - now;
        if left <= 0.0 {
            return CallTime::Over;
        }
        // Larger than any `Duration`: longer than any run.
        let left = Duration::try_from_secs_f64(left).unwrap_or(LONGEST_RUN);
        CallTime::Left(left.min(LONGEST_RUN))
    }
}

/// Access shared by the clones of a host. Its `Debug` output is empty.
pub(super) struct Credentials(watch::Sender<Token>);

struct Token {
    base_url: String,
    value: String,
    expires_at: f64,
    /// No renewal attempt before this time.
    pause_until: f64,
    /// Attempt that the token belongs to.
    attempt: u32,
}

/// Access of one call. Contains a secret.
pub struct CallAccess {
    /// Base URL of the host API, such as `http://127.0.0.1:8700/host/v1`.
    pub base_url: String,
    pub token: String,
    pub(super) attempt: u32,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credentials([redacted])")
    }
}

impl Credentials {
    pub(super) fn new(access: HostAccess, attempt: u32) -> Self {
        Self(watch::Sender::new(Token::new(access, attempt)))
    }

    pub(super) fn access(&self) -> CallAccess {
        let token = self.0.borrow();
        CallAccess {
            base_url: token.base_url.clone(),
            token: token.value.clone(),
            attempt: token.attempt,
        }
    }

    pub(super) fn attempt(&self) -> u32 {
        self.0.borrow().attempt
    }

    /// Replaces the token by a renewed one of this attempt; a later attempt keeps its own.
    pub(super) fn renew(&self, renewed: RenewedToken, attempt: u32) {
        self.0.send_if_modified(|current| {
            if current.attempt == attempt {
                current.value = renewed.token;
                current.expires_at = seconds(renewed.token_expires_at);
            }
            // Calls wait for later attempts only.
            false
        });
    }

    /// Replaces the access by that of a later attempt.
    pub(super) fn resume(&self, access: HostAccess, attempt: u32) {
        self.0.send_if_modified(|current| {
            let is_later = attempt > current.attempt;
            if is_later {
                *current = Token::new(access, attempt);
            }
            is_later
        });
    }

    /// Completes when the access is of a later attempt.
    pub(super) async fn resumed_after(&self, attempt: u32) {
        let mut changes = self.0.subscribe();
        // `self` owns the sender, so it cannot be dropped.
        let _ = changes.wait_for(|token| token.attempt > attempt).await;
    }

    /// True for the single caller that renews the token now.
    pub(super) fn claim_renewal(&self, times: &Times, now: f64) -> bool {
        let mut due = false;
        self.0.send_if_modified(|token| {
            due = token.renewal_at(times).is_some_and(|at| at <= now);
            if due {
                // Set under the lock: concurrent calls of all clones must start one renewal.
                token.pause_until = now + RENEWAL_PAUSE;
            }
            false
        });
        due
    }

    /// Time until the next renewal; `None` when the token lives as long as the run.
    pub(super) fn until_renewal(&self, times: &Times, now: f64) -> Option<Duration> {
        let left = self.0.borrow().renewal_at(times)? - now;
        // Rounded up, so that the token is due after the wait.
        let left = left.max(0.0) + 0.001;
        Some(Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX))
    }
}

impl Token {
    fn new(access: HostAccess, attempt: u32) -> Self {
        Self {
            base_url: access.base_url,
            value: access.token,
            expires_at: seconds(access.token_expires_at),
            pause_until: f64::NEG_INFINITY,
            attempt,
        }
    }

    fn renewal_at(&self, times: &Times) -> Option<f64> {
        // The gateway never issues a token beyond the deadline, so a renewal would return the same expiry.
        let lives_as_long_as_the_run = self.expires_at + ROUNDING >= times.deadline_at;
        (!lives_as_long_as_the_run)
            .then(|| (self.expires_at - RENEWAL_WINDOW).max(self.pause_until))
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "epoch seconds are far below 2^52"
)]
fn seconds(epoch: i64) -> f64 {
    epoch as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: f64 = 1_795_291_200.0;
    const ENDS: i64 = 1_795_291_200 + 900;

    fn credentials(token: &str) -> Credentials {
        Credentials::new(access(token), 1)
    }

    fn access(token: &str) -> HostAccess {
        HostAccess {
            base_url: format!("http://{token}"),
            token: token.to_owned(),
            token_expires_at: ENDS,
        }
    }

    fn renewed(token: &str) -> RenewedToken {
        RenewedToken {
            token: token.to_owned(),
            token_expires_at: ENDS + 840,
        }
    }

    fn times(deadline_in: Option<f64>) -> Times {
        Times::new(deadline_in.map(|left| NOW + left), Duration::from_secs(30))
    }

    #[test]
    fn bounds_call_time_by_remaining_run_time() {
        let left = |seconds| CallTime::Left(Duration::from_secs_f64(seconds));
        for (deadline_in, expected) in [
            (None, left(30.0)),
            (Some(300.0), left(30.0)),
            (Some(7.5), left(7.5)),
            (Some(0.0), CallTime::Over),
            (Some(-9.0), CallTime::Over),
            (Some(f64::MAX), left(30.0)),
        ] {
            assert_eq!(
                times(deadline_in).call_time(NOW),
                expected,
                "{deadline_in:?}"
            );
        }
        assert_eq!(times(Some(20.0)).call_time(NOW + 15.0), left(5.0));
        assert_eq!(times(Some(20.0)).call_time(NOW + 20.0), CallTime::Over);
    }

    #[test]
    fn lets_one_caller_renew_in_last_minute() {
        let times = times(Some(3600.0));
        let credentials = credentials("old");
        assert!(!credentials.claim_renewal(&times, NOW));
        let now = NOW
            + credentials
                .until_renewal(&times, NOW)
                .unwrap()
                .as_secs_f64();
        assert!((840.0..841.0).contains(&(now - NOW)));
        assert!(credentials.claim_renewal(&times, now));
        assert!(!credentials.claim_renewal(&times, now), "one is enough");
        assert!(
            credentials.claim_renewal(&times, now + 5.0),
            "the first attempt failed"
        );
        credentials.renew(renewed("new"), 1);
        assert!(!credentials.claim_renewal(&times, now + 10.0));
        assert_eq!(credentials.access().token, "new");
    }

    #[tokio::test]
    async fn later_attempts_replace_the_access() {
        let credentials = credentials("first");
        let mut resumed = Box::pin(credentials.resumed_after(1));
        credentials.renew(renewed("renewed"), 1);
        assert!(futures_util::poll!(&mut resumed).is_pending());
        credentials.resume(access("third"), 3);
        resumed.await;
        credentials.resume(access("second"), 2);
        credentials.renew(renewed("renewed late"), 1);
        let access = credentials.access();
        assert_eq!((access.token.as_str(), access.attempt), ("third", 3));
        assert_eq!(access.base_url, "http://third");
    }

    #[test]
    fn keeps_tokens_that_outlive_the_run() {
        let times = times(Some(900.7));
        let credentials = credentials("only");
        assert!(!credentials.claim_renewal(&times, NOW + 899.0));
        assert_eq!(credentials.until_renewal(&times, NOW), None);
    }
}
