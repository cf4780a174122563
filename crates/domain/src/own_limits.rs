//! Checks of the limits of API keys and agents.

use protocol::admin::Fault;
use protocol::limiter::OwnLimits;

/// Maximum of `rate`, `burst` and `concurrency`.
const MAX_LIMIT: u32 = 1_000_000;
const MAX_TOKENS: u32 = 1_000_000_000;

/// Returns all faults of the member `limits` of a key or an agent.
pub(crate) fn check_limits(limits: &OwnLimits) -> Vec<Fault> {
    // Limits without effect would give false safety.
    if *limits == OwnLimits::default() {
        let message =
            "must have rate, concurrency or tokens_per_minute; leave it out for no limits";
        return vec![Fault::new("/limits", message)];
    }
    let mut faults = Vec::new();
    for (name, value, max) in [
        ("rate", limits.rate, MAX_LIMIT),
        ("burst", limits.burst, MAX_LIMIT),
        ("concurrency", limits.concurrency, MAX_LIMIT),
        ("tokens_per_minute", limits.tokens_per_minute, MAX_TOKENS),
    ] {
        if value.is_some_and(|value| !(1..=max).contains(&value)) {
            let message = format!("must be from 1 to {max}");
            faults.push(Fault::new(format!("/limits/{name}"), message));
        }
    }
    if limits.burst.is_some() && limits.rate.is_none() {
        faults.push(Fault::new("/limits/burst", "has no effect without rate"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn refuses_limits_without_effect() {
        let all = json!({"rate": 1, "burst": 1, "concurrency": 1, "tokens_per_minute": 1});
        let large = json!({"rate": MAX_LIMIT, "tokens_per_minute": MAX_TOKENS});
        let over = json!({"rate": 0, "burst": 0, "concurrency": MAX_LIMIT + 1,
            "tokens_per_minute": MAX_TOKENS + 1});
        let of_over = [
            "/limits/rate",
            "/limits/burst",
            "/limits/concurrency",
            "/limits/tokens_per_minute",
        ];
        let check = |limits: Value, expected: &[&str]| {
            let faults = check_limits(&serde_json::from_value(limits.clone()).unwrap());
            let pointers: Vec<_> = faults.into_iter().map(|fault| fault.pointer).collect();
            assert_eq!(pointers, expected, "{limits}");
        };
        check(all, &[]);
        check(large, &[]);
        check(json!({"concurrency": 1}), &[]);
        check(json!({"tokens_per_minute": 1}), &[]);
        check(json!({}), &["/limits"]);
        check(json!({"burst": 1, "concurrency": 1}), &["/limits/burst"]);
        check(over, &of_over);
    }
}
