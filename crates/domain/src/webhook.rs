//! Webhooks: checks of new ones, retries and circuit of their deliveries.

use std::time::Duration;

use protocol::admin::Fault;
use protocol::webhook::{WebhookEventType, WebhookSpec};

use crate::agent::is_name;

/// Maximum webhooks of a workspace.
pub const MAX_WEBHOOKS: u64 = 100;
/// Tries of a delivery, over a day.
pub const MAX_TRIES: u64 = 12;
/// Failures in a row that open the circuit.
pub const CIRCUIT_FAILURES: u64 = 5;
/// Maximum agents of a webhook: each is a row for each type.
const MAX_AGENTS: usize = 16;

/// Waits between the tries, in seconds: 23.9 hours in total.
const WAITS: [u64; 11] = [
    5, 30, 120, 300, 900, 1800, 3600, 7200, 14_400, 21_600, 36_000,
];
/// First wait of an open circuit.
const CIRCUIT_WAIT: Duration = Duration::from_secs(30);
/// Maximum wait of an open circuit.
const MAX_CIRCUIT_WAIT: Duration = Duration::from_mins(10);

/// Returns all faults of a webhook, except those of its URL, its secret and its agents.
pub fn check_webhook(spec: &WebhookSpec) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !is_name(&spec.name) {
        let message = "must have 1 to 128 bytes and no control characters";
        faults.push(Fault::new("/name", message));
    }
    if spec.events.is_empty() {
        faults.push(Fault::new("/events", "must have at least one type"));
    }
    for (index, event) in spec.events.iter().enumerate() {
        let pointer = || format!("/events/{index}");
        if *event == WebhookEventType::Test {
            let message = "is the type of test calls; leave it out";
            faults.push(Fault::new(pointer(), message));
        } else if spec.events[..index].contains(event) {
            faults.push(Fault::new(pointer(), "is in the list already"));
        }
    }
    if let Some(agents) = &spec.agents
        && !(1..=MAX_AGENTS).contains(&agents.len())
    {
        let message = "must have 1 to 16 agents; leave it out for all agents";
        faults.push(Fault::new("/agents", message));
    }
    faults
}

/// Wait after a failed try; `None`: it was the last one. `tries`: the number of tries so far. `jitter` from 0 to 1
/// shortens the wait by up to a fifth, so that deliveries of one outage do not return together. `retry_after`: the
/// wait that the receiver demands.
pub fn next_try(tries: u64, jitter: f64, retry_after: Option<Duration>) -> Option<Duration> {
    let index = usize::try_from(tries.saturating_sub(1)).ok()?;
    let wait = Duration::from_secs(*WAITS.get(index)?);
    let wait = wait.mul_f64(1.0 - 0.2 * jitter.clamp(0.0, 1.0));
    Some(wait.max(retry_after.unwrap_or_default()))
}

/// Time for which no try begins after this many failures in a row; `None`: the circuit stays closed.
pub fn circuit_wait(failures: u64) -> Option<Duration> {
    let doublings = failures.checked_sub(CIRCUIT_FAILURES)?;
    let factor = 1_u32 << doublings.min(10);
    Some((CIRCUIT_WAIT * factor).min(MAX_CIRCUIT_WAIT))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tries_twelve_times_within_a_day() {
        for jitter in [0.0, 1.0] {
            let mut total = Duration::ZERO;
            let mut tries = 1;
            while let Some(wait) = next_try(tries, jitter, None) {
                total += wait;
                tries += 1;
            }
            assert_eq!(tries, MAX_TRIES);
            let day = Duration::from_hours(24);
            assert!(total < day && total > day * 3 / 4, "{total:?}");
        }
    }

    #[test]
    fn obeys_longer_waits_of_the_receiver() {
        let minute = Some(Duration::from_mins(1));
        assert_eq!(next_try(1, 0.0, minute), minute);
        assert_eq!(next_try(4, 0.0, minute), Some(Duration::from_mins(5)));
        assert_eq!(next_try(12, 0.0, minute), None);
    }

    #[test]
    fn circuit_opens_after_five_failures() {
        assert_eq!(circuit_wait(4), None);
        assert_eq!(circuit_wait(5), Some(CIRCUIT_WAIT));
        assert_eq!(circuit_wait(6), Some(CIRCUIT_WAIT * 2));
        assert_eq!(circuit_wait(1_000_000), Some(MAX_CIRCUIT_WAIT));
    }

    #[test]
    fn reports_all_faults_of_a_webhook() {
        let spec = json!({"name": "", "events": ["run.failed", "run.failed", "webhook.test"], "agents": []});
        let spec: WebhookSpec = serde_json::from_value(spec).unwrap();
        let pointers: Vec<_> = check_webhook(&spec)
            .into_iter()
            .map(|fault| fault.pointer)
            .collect();
        assert_eq!(pointers, ["/name", "/events/1", "/events/2", "/agents"]);
        let good = json!({"name": "n", "events": ["run.failed"]});
        let good: WebhookSpec = serde_json::from_value(good).unwrap();
        assert!(check_webhook(&good).is_empty());
    }
}
