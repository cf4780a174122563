//! Rotation of signing keys: published, signing, verifying, expired.
//!
//! A new key is published before it signs, so that all verifiers have it by then. The previous key verifies
//! until all its signatures have expired. Valid signatures therefore verify at any time of a rotation.

/// Time between publication and first signature. It exceeds the cache time of replicas and of other verifiers.
pub const LEAD_MS: i64 = 10 * MINUTE;

/// Maximum keys of one purpose for an explicit rotation, because each cursor is tried with all keys.
pub const MAX_KEYS: usize = 40;

const MINUTE: i64 = 60_000;
const DAY: i64 = 24 * 60 * MINUTE;

/// Purpose of a key. A key signs for one purpose only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyPurpose {
    RunToken,
    Cursor,
}

impl KeyPurpose {
    /// All purposes.
    pub const ALL: [Self; 2] = [Self::RunToken, Self::Cursor];

    /// Returns the name used in the database and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RunToken => "run_token",
            Self::Cursor => "cursor",
        }
    }

    /// Parses the name of a purpose.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|purpose| purpose.as_str() == text)
    }

    /// Returns the time for which a key verifies after its last signature.
    pub const fn overlap_ms(self) -> i64 {
        match self {
            // A token is valid for 15 minutes plus some seconds; clocks of replicas differ.
            Self::RunToken => 17 * MINUTE,
            // A cursor has no expiry and may be stored. After a month, readers restart the list.
            Self::Cursor => 30 * DAY,
        }
    }
}

/// Times of one key, in epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTimes {
    pub kid: String,
    pub created_at: i64,
    /// Time from which the next key signs. `None`: no next key is known.
    pub sign_until: Option<i64>,
    /// Time from which it no longer verifies. `None`: it may still sign.
    pub verify_until: Option<i64>,
}

impl KeyTimes {
    fn may_sign(&self, now: i64) -> bool {
        self.sign_until.is_none_or(|until| now < until) && !self.is_expired(now)
    }

    /// Returns true if the key no longer verifies.
    pub fn is_expired(&self, now: i64) -> bool {
        self.verify_until.is_some_and(|until| until <= now)
    }
}

/// Phase of a key. Keys verify in all phases but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPhase {
    /// Published, not signing yet.
    Waiting,
    Signing,
    /// No longer signing.
    Verifying,
    Expired,
}

impl KeyPhase {
    /// Returns the display name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Signing => "signing",
            Self::Verifying => "verifying",
            Self::Expired => "over",
        }
    }
}

/// Returns the phase of each key of one purpose. `keys`: oldest first.
pub fn key_phases(keys: &[KeyTimes], now: i64) -> Vec<KeyPhase> {
    // The oldest usable key signs: newer ones are published, but not yet in all caches.
    let signing = keys.iter().position(|key| key.may_sign(now));
    let phase = |(index, key): (usize, &KeyTimes)| {
        if key.is_expired(now) {
            KeyPhase::Expired
        } else if Some(index) == signing {
            KeyPhase::Signing
        } else if signing.is_some_and(|signing| index > signing) {
            // Keys after the signing key have not signed yet.
            KeyPhase::Waiting
        } else {
            KeyPhase::Verifying
        }
    };
    keys.iter().enumerate().map(phase).collect()
}

/// Cause of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationCause {
    /// The newest key has this age in milliseconds, or no key signs.
    Age(i64),
    /// An operator requested it.
    Requested,
    /// A key may be compromised: all existing keys stop verifying at once.
    Compromised,
}

/// Result of an [`RotationCause`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotationPlan {
    /// The newest key is recent.
    NotDue,
    /// A published key will sign soon.
    AlreadyScheduled { kid: String, signs_from: i64 },
    /// More than [`MAX_KEYS`] keys would verify.
    TooMany,
    /// Create a key that signs from `signs_from`, and retire the existing keys.
    ScheduleSuccessor {
        signs_from: i64,
        retired: Vec<KeyTimes>,
    },
    /// Create a key that signs at once, and withdraw the existing keys.
    Replace { withdrawn: Vec<String> },
}

/// Plans the rotation of the keys of one purpose, oldest first.
pub fn plan_rotation(
    purpose: KeyPurpose,
    keys: &[KeyTimes],
    cause: RotationCause,
    now: i64,
) -> RotationPlan {
    let phases = key_phases(keys, now);
    let signing = phases.iter().position(|phase| *phase == KeyPhase::Signing);
    match cause {
        RotationCause::Compromised => {
            // Also keys that only verify: an attacker may have copied any of them.
            let withdrawn = keys.iter().map(|key| key.kid.clone()).collect();
            return RotationPlan::Replace { withdrawn };
        }
        RotationCause::Age(max_age_ms) => {
            let is_young = |key: &KeyTimes| now < key.created_at.saturating_add(max_age_ms);
            // Without a signing key, even a young newest key is replaced at once.
            if signing.is_some() && keys.last().is_some_and(is_young) {
                return RotationPlan::NotDue;
            }
        }
        RotationCause::Requested => {
            // A repeated request must not push the signing key out before its successor is known to all.
            if let Some(newest) = keys.last()
                && phases.last() == Some(&KeyPhase::Waiting)
                && let Some(signs_from) = signing.and_then(|signing| keys[signing].sign_until)
            {
                let kid = newest.kid.clone();
                return RotationPlan::AlreadyScheduled { kid, signs_from };
            }
            // No cursor is tried with an expired key.
            let verifying = phases.iter().filter(|phase| **phase != KeyPhase::Expired);
            if verifying.count() >= MAX_KEYS {
                return RotationPlan::TooMany;
            }
        }
    }
    // Without a signing key, the new key signs at once.
    let signs_from = signing.map_or(now, |_| now + LEAD_MS);
    let retire = |key: &KeyTimes| KeyTimes {
        sign_until: Some(signs_from),
        verify_until: Some(signs_from + purpose.overlap_ms()),
        ..key.clone()
    };
    // Keys with an end were retired by an earlier rotation; a new end would prolong them.
    let endless = keys.iter().filter(|key| key.sign_until.is_none());
    RotationPlan::ScheduleSuccessor {
        signs_from,
        retired: endless.map(retire).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_795_291_200_000;
    const MONTH: RotationCause = RotationCause::Age(30 * DAY);
    const TAIL: i64 = 17 * MINUTE;

    /// A key by its age, and the ends of its signing and verifying, relative to `NOW`.
    fn key(kid: &str, age: i64, sign: Option<i64>, verify: Option<i64>) -> KeyTimes {
        KeyTimes {
            kid: kid.to_owned(),
            created_at: NOW - age,
            sign_until: sign.map(|at| NOW + at),
            verify_until: verify.map(|at| NOW + at),
        }
    }

    fn check_phases(keys: &[KeyTimes], expected: &[KeyPhase]) {
        assert_eq!(key_phases(keys, NOW), expected, "{keys:?}");
    }

    #[test]
    fn oldest_usable_key_signs_and_newer_key_waits() {
        use KeyPhase::{Expired, Signing, Verifying, Waiting};
        let young = key("new", MINUTE, None, None);
        check_phases(&[], &[]);
        check_phases(&[key("a", 9 * DAY, None, None)], &[Signing]);
        // The new key waits until the last millisecond and signs in the next.
        let old = key("old", DAY, Some(1), Some(1 + TAIL));
        check_phases(&[old, young.clone()], &[Signing, Waiting]);
        let old = key("old", DAY, Some(0), Some(TAIL));
        check_phases(&[old, young.clone()], &[Verifying, Signing]);
        // The old key verifies until the last millisecond.
        let old = key("old", DAY, Some(-TAIL), Some(1));
        check_phases(&[old, young.clone()], &[Verifying, Signing]);
        let old = key("old", DAY, Some(-TAIL), Some(0));
        check_phases(&[old, young.clone()], &[Expired, Signing]);
        // An expired key never signs.
        check_phases(&[key("x", DAY, None, Some(0)), young], &[Expired, Signing]);
        check_phases(&[key("x", DAY, Some(0), Some(1))], &[Verifying]);
    }

    #[track_caller]
    fn check_plan(keys: &[KeyTimes], cause: RotationCause, expected: &RotationPlan) {
        let plan = plan_rotation(KeyPurpose::RunToken, keys, cause, NOW);
        assert_eq!(plan, *expected, "{cause:?} {keys:?}");
    }

    #[test]
    fn creates_key_only_when_newest_reaches_age() {
        let first = RotationPlan::ScheduleSuccessor {
            signs_from: NOW,
            retired: vec![],
        };
        check_plan(&[], MONTH, &first);
        let young = key("a", 30 * DAY - 1, None, None);
        check_plan(&[young], MONTH, &RotationPlan::NotDue);
        let old = key("a", 30 * DAY, None, None);
        let retired = key("a", 30 * DAY, Some(LEAD_MS), Some(LEAD_MS + TAIL));
        let succeed = RotationPlan::ScheduleSuccessor {
            signs_from: NOW + LEAD_MS,
            retired: vec![retired.clone()],
        };
        check_plan(std::slice::from_ref(&old), MONTH, &succeed);
        // A later decision finds the rotation done.
        let waiting = key("b", 0, None, None);
        check_plan(&[retired, waiting], MONTH, &RotationPlan::NotDue);
        // A clock that was set back creates no key.
        let ahead = key("a", -DAY, None, None);
        check_plan(&[ahead], MONTH, &RotationPlan::NotDue);
        // No key signs, so the next key signs at once.
        check_plan(&[key("a", DAY, Some(0), Some(TAIL))], MONTH, &first);
    }

    #[test]
    fn requested_rotation_ignores_age_but_never_overlaps() {
        let signing = key("a", MINUTE, None, None);
        let retired = key("a", MINUTE, Some(LEAD_MS), Some(LEAD_MS + TAIL));
        let succeed = RotationPlan::ScheduleSuccessor {
            signs_from: NOW + LEAD_MS,
            retired: vec![retired.clone()],
        };
        check_plan(&[signing], RotationCause::Requested, &succeed);
        let waiting = key("b", 0, None, None);
        let under_way = RotationPlan::AlreadyScheduled {
            kid: "b".to_owned(),
            signs_from: NOW + LEAD_MS,
        };
        check_plan(&[retired, waiting], RotationCause::Requested, &under_way);

        let mut many: Vec<_> = (0..MAX_KEYS - 1)
            .map(|n| key(&n.to_string(), DAY, Some(-1), Some(TAIL)))
            .collect();
        many.push(key("signs", DAY, None, None));
        check_plan(&many, RotationCause::Requested, &RotationPlan::TooMany);
        many[0].verify_until = Some(NOW);
        let plan = plan_rotation(KeyPurpose::RunToken, &many, RotationCause::Requested, NOW);
        assert!(
            matches!(plan, RotationPlan::ScheduleSuccessor { .. }),
            "{plan:?}"
        );
    }

    #[test]
    fn compromise_withdraws_all_earlier_keys() {
        let keys = [
            key("old", DAY, Some(-1), Some(TAIL)),
            key("signs", DAY, Some(LEAD_MS), Some(LEAD_MS + TAIL)),
            key("waits", 0, None, None),
        ];
        let withdrawn = ["old", "signs", "waits"].map(str::to_owned).to_vec();
        check_plan(
            &keys,
            RotationCause::Compromised,
            &RotationPlan::Replace { withdrawn },
        );
        let withdrawn = vec![];
        check_plan(
            &[],
            RotationCause::Compromised,
            &RotationPlan::Replace { withdrawn },
        );
    }

    /// For every minute of two rotations, each signature verifies until it expires.
    #[test]
    fn signatures_verify_until_they_expire_during_rotation() {
        const LIFE: i64 = 15 * MINUTE + 5_000;
        let mut keys: Vec<KeyTimes> = Vec::new();
        let mut signed: Vec<(String, i64)> = Vec::new();
        for minute in 0..3_000 {
            let now = NOW + minute * MINUTE;
            let made = format!("made {minute}");
            let plan = plan_rotation(KeyPurpose::RunToken, &keys, RotationCause::Age(DAY), now);
            if let RotationPlan::ScheduleSuccessor { retired, .. } = plan {
                for key in &mut keys {
                    let new = retired.iter().find(|retired| retired.kid == key.kid);
                    *key = new.unwrap_or(key).clone();
                }
                keys.push(KeyTimes {
                    kid: made,
                    created_at: now,
                    sign_until: None,
                    verify_until: None,
                });
            }
            keys.retain(|key| !key.is_expired(now));
            let phases = key_phases(&keys, now);
            let signs = phases.iter().position(|phase| *phase == KeyPhase::Signing);
            let signer = &keys[signs.expect("one signs at all times")];
            assert!(signer.created_at == NOW || now - signer.created_at >= LEAD_MS);
            signed.push((signer.kid.clone(), now));
            signed.retain(|(_, at)| now < at + LIFE);
            for (kid, at) in &signed {
                let verifies = keys.iter().any(|key| key.kid == *kid);
                assert!(verifies, "{kid} signed at {at} and is gone at {now}");
            }
            assert!(keys.len() <= 3, "{keys:?}");
        }
        assert_eq!(keys[0].created_at, NOW + 2 * DAY, "it did not rotate twice");
    }
}
