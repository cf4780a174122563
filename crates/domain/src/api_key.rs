//! Checks of new API keys.

use protocol::admin::Fault;
use protocol::api_key::ApiKeySpec;

use crate::agent::is_name;

/// The end of the year 9999, in epoch seconds. Later times are milliseconds by mistake.
const LATEST: i64 = 253_402_300_799;

/// Returns all faults of a new key.
pub fn check_api_key(spec: &ApiKeySpec, now_seconds: i64) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !is_name(&spec.name) {
        let message = "must have 1 to 128 bytes and no control characters";
        faults.push(Fault::new("/name", message));
    }
    if let Some(at) = spec.expires_at
        && !(now_seconds + 1..=LATEST).contains(&at)
    {
        let message = "must be a time in the future, in epoch seconds";
        faults.push(Fault::new("/expires_at", message));
    }
    faults
}

#[cfg(test)]
mod tests {
    use protocol::api_key::KeyRole;

    use super::*;

    #[test]
    fn new_keys_expire_in_the_future() {
        let now = 1_000_000;
        for (expires_at, is_valid) in [
            (None, true),
            (Some(now + 1), true),
            (Some(LATEST), true),
            (Some(now), false),
            (Some(-1), false),
            (Some(LATEST + 1), false),
            (Some(i64::MAX), false),
        ] {
            let spec = ApiKeySpec {
                name: "key".to_owned(),
                role: KeyRole::Client,
                expires_at,
            };
            let faults = check_api_key(&spec, now);
            let pointers: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
            let expected = if is_valid {
                vec![]
            } else {
                vec!["/expires_at"]
            };
            assert_eq!(pointers, expected, "{expires_at:?}");
        }
    }
}
