//! When a signing key is shown, signs, only verifies, and is over.
//!
//! A new key is shown before it signs, so that whoever verifies has it by then; the key before it
//! verifies until everything that it signed is over. So no moment of a rotation refuses what is good.

/// How long a new key is shown before it signs: longer than any replica, and whoever caches the
/// published keys, takes to see it.
pub const LEAD_MS: i64 = 10 * MINUTE;

/// Keys of one purpose at most, when somebody asks for one more: each cursor is tried with all.
pub const MOST_KEYS: usize = 40;

const MINUTE: i64 = 60_000;
const DAY: i64 = 24 * 60 * MINUTE;

/// What a key signs. No key signs two kinds of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyPurpose {
    RunToken,
    Cursor,
}

impl KeyPurpose {
    /// Every purpose.
    pub const ALL: [Self; 2] = [Self::RunToken, Self::Cursor];

    /// The name in the database and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RunToken => "run_token",
            Self::Cursor => "cursor",
        }
    }

    /// The purpose of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|purpose| purpose.as_str() == text)
    }

    /// How long after its last signature a key still verifies.
    pub const fn overlap_ms(self) -> i64 {
        match self {
            // A token lives 15 minutes and is taken some seconds longer; replicas' clocks differ.
            Self::RunToken => 17 * MINUTE,
            // A cursor has no end: somebody reads on tomorrow, or the page that they kept. After a
            // month they begin the list anew.
            Self::Cursor => 30 * DAY,
        }
    }
}

/// The times of one key, in epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTimes {
    pub kid: String,
    pub created_at: i64,
    /// From here on the next key signs. `None`: no next key is known.
    pub sign_until: Option<i64>,
    /// From here on it opens nothing. `None`: it may still sign.
    pub verify_until: Option<i64>,
}

impl KeyTimes {
    fn may_sign(&self, now: i64) -> bool {
        self.sign_until.is_none_or(|until| now < until) && !self.is_over(now)
    }

    /// True when nothing that it signed is good any more.
    pub fn is_over(&self, now: i64) -> bool {
        self.verify_until.is_some_and(|until| until <= now)
    }
}

/// Where a key stands. All but the last verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPhase {
    /// Shown, and does not sign yet.
    Waiting,
    Signing,
    /// Has signed.
    Verifying,
    Over,
}

impl KeyPhase {
    /// The name that people read.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Signing => "signing",
            Self::Verifying => "verifying",
            Self::Over => "over",
        }
    }
}

/// The phase of each key of one purpose. `keys`: oldest first. The oldest that may sign does.
pub fn key_phases(keys: &[KeyTimes], now: i64) -> Vec<KeyPhase> {
    let signing = keys.iter().position(|key| key.may_sign(now));
    let phase = |(index, key): (usize, &KeyTimes)| {
        if key.is_over(now) {
            KeyPhase::Over
        } else if Some(index) == signing {
            KeyPhase::Signing
        } else if signing.is_some_and(|signing| index > signing) {
            KeyPhase::Waiting
        } else {
            KeyPhase::Verifying
        }
    };
    keys.iter().enumerate().map(phase).collect()
}

/// Why a new key is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// The newest key is as old as this, in milliseconds, or there is none that signs.
    Age(i64),
    /// Somebody asked.
    Asked,
    /// A key may be in wrong hands: none of those before opens anything from now on.
    Leak,
}

/// What follows from an [`Occasion`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotationPlan {
    /// The newest key is young.
    NotDue,
    /// A key is shown already and will sign.
    UnderWay { kid: String, signs_from: i64 },
    /// More than [`MOST_KEYS`] would verify.
    TooMany,
    /// A key is made and signs from `signs_from`; those before it are retired.
    Succeed {
        signs_from: i64,
        retired: Vec<KeyTimes>,
    },
    /// A key is made and signs at once; those before it are gone.
    Replace { withdrawn: Vec<String> },
}

/// Decides about the keys of one purpose, oldest first.
pub fn plan_rotation(
    purpose: KeyPurpose,
    keys: &[KeyTimes],
    occasion: Occasion,
    now: i64,
) -> RotationPlan {
    let phases = key_phases(keys, now);
    let signing = phases.iter().position(|phase| *phase == KeyPhase::Signing);
    match occasion {
        Occasion::Leak => {
            let withdrawn = keys.iter().map(|key| key.kid.clone()).collect();
            return RotationPlan::Replace { withdrawn };
        }
        Occasion::Age(most) => {
            let is_young = |key: &KeyTimes| now < key.created_at.saturating_add(most);
            if signing.is_some() && keys.last().is_some_and(is_young) {
                return RotationPlan::NotDue;
            }
        }
        Occasion::Asked => {
            if let Some(newest) = keys.last()
                && phases.last() == Some(&KeyPhase::Waiting)
                && let Some(signs_from) = signing.and_then(|signing| keys[signing].sign_until)
            {
                let kid = newest.kid.clone();
                return RotationPlan::UnderWay { kid, signs_from };
            }
            let verifying = phases.iter().filter(|phase| **phase != KeyPhase::Over);
            if verifying.count() >= MOST_KEYS {
                return RotationPlan::TooMany;
            }
        }
    }
    // With nobody to sign meanwhile there is nothing to wait for.
    let signs_from = signing.map_or(now, |_| now + LEAD_MS);
    let retire = |key: &KeyTimes| KeyTimes {
        sign_until: Some(signs_from),
        verify_until: Some(signs_from + purpose.overlap_ms()),
        ..key.clone()
    };
    let endless = keys.iter().filter(|key| key.sign_until.is_none());
    RotationPlan::Succeed {
        signs_from,
        retired: endless.map(retire).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_795_291_200_000;
    const MONTH: Occasion = Occasion::Age(30 * DAY);
    const TAIL: i64 = 17 * MINUTE;

    /// A key by its age, and when it ends to sign and to verify, all from `NOW`.
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
    fn the_oldest_key_that_may_sign_signs_and_a_newer_one_waits() {
        use KeyPhase::{Over, Signing, Verifying, Waiting};
        let young = key("new", MINUTE, None, None);
        check_phases(&[], &[]);
        check_phases(&[key("a", 9 * DAY, None, None)], &[Signing]);
        // The new key waits to the last millisecond, and signs in the next one.
        let old = key("old", DAY, Some(1), Some(1 + TAIL));
        check_phases(&[old, young.clone()], &[Signing, Waiting]);
        let old = key("old", DAY, Some(0), Some(TAIL));
        check_phases(&[old, young.clone()], &[Verifying, Signing]);
        // The old one verifies to the last millisecond.
        let old = key("old", DAY, Some(-TAIL), Some(1));
        check_phases(&[old, young.clone()], &[Verifying, Signing]);
        let old = key("old", DAY, Some(-TAIL), Some(0));
        check_phases(&[old, young.clone()], &[Over, Signing]);
        // Whatever may sign and is over does not.
        check_phases(&[key("x", DAY, None, Some(0)), young], &[Over, Signing]);
        check_phases(&[key("x", DAY, Some(0), Some(1))], &[Verifying]);
    }

    #[track_caller]
    fn check_plan(keys: &[KeyTimes], occasion: Occasion, expected: &RotationPlan) {
        let plan = plan_rotation(KeyPurpose::RunToken, keys, occasion, NOW);
        assert_eq!(plan, *expected, "{occasion:?} {keys:?}");
    }

    #[test]
    fn a_key_is_made_when_the_newest_is_of_age_and_only_then() {
        let first = RotationPlan::Succeed {
            signs_from: NOW,
            retired: vec![],
        };
        check_plan(&[], MONTH, &first);
        let young = key("a", 30 * DAY - 1, None, None);
        check_plan(&[young], MONTH, &RotationPlan::NotDue);
        let old = key("a", 30 * DAY, None, None);
        let retired = key("a", 30 * DAY, Some(LEAD_MS), Some(LEAD_MS + TAIL));
        let succeed = RotationPlan::Succeed {
            signs_from: NOW + LEAD_MS,
            retired: vec![retired.clone()],
        };
        check_plan(std::slice::from_ref(&old), MONTH, &succeed);
        // Whoever decides after that finds it done.
        let waiting = key("b", 0, None, None);
        check_plan(&[retired, waiting], MONTH, &RotationPlan::NotDue);
        // A clock that was set back makes nothing.
        let ahead = key("a", -DAY, None, None);
        check_plan(&[ahead], MONTH, &RotationPlan::NotDue);
        // Nobody signs: the next one does at once.
        check_plan(&[key("a", DAY, Some(0), Some(TAIL))], MONTH, &first);
    }

    #[test]
    fn who_asks_gets_a_key_whatever_the_age_but_not_two_at_a_time() {
        let signing = key("a", MINUTE, None, None);
        let retired = key("a", MINUTE, Some(LEAD_MS), Some(LEAD_MS + TAIL));
        let succeed = RotationPlan::Succeed {
            signs_from: NOW + LEAD_MS,
            retired: vec![retired.clone()],
        };
        check_plan(&[signing], Occasion::Asked, &succeed);
        let waiting = key("b", 0, None, None);
        let under_way = RotationPlan::UnderWay {
            kid: "b".to_owned(),
            signs_from: NOW + LEAD_MS,
        };
        check_plan(&[retired, waiting], Occasion::Asked, &under_way);

        let mut many: Vec<_> = (0..MOST_KEYS - 1)
            .map(|n| key(&n.to_string(), DAY, Some(-1), Some(TAIL)))
            .collect();
        many.push(key("signs", DAY, None, None));
        check_plan(&many, Occasion::Asked, &RotationPlan::TooMany);
        many[0].verify_until = Some(NOW);
        let plan = plan_rotation(KeyPurpose::RunToken, &many, Occasion::Asked, NOW);
        assert!(matches!(plan, RotationPlan::Succeed { .. }), "{plan:?}");
    }

    #[test]
    fn after_a_leak_no_key_before_is_left() {
        let keys = [
            key("old", DAY, Some(-1), Some(TAIL)),
            key("signs", DAY, Some(LEAD_MS), Some(LEAD_MS + TAIL)),
            key("waits", 0, None, None),
        ];
        let withdrawn = ["old", "signs", "waits"].map(str::to_owned).to_vec();
        check_plan(&keys, Occasion::Leak, &RotationPlan::Replace { withdrawn });
        let withdrawn = vec![];
        check_plan(&[], Occasion::Leak, &RotationPlan::Replace { withdrawn });
    }

    /// Every minute of two rotations: what was signed at any time verifies as long as it is good.
    #[test]
    fn what_a_key_signed_verifies_until_it_is_over_by_itself() {
        const LIFE: i64 = 15 * MINUTE + 5_000;
        let mut keys: Vec<KeyTimes> = Vec::new();
        let mut signed: Vec<(String, i64)> = Vec::new();
        for minute in 0..3_000 {
            let now = NOW + minute * MINUTE;
            let made = format!("made {minute}");
            let plan = plan_rotation(KeyPurpose::RunToken, &keys, Occasion::Age(DAY), now);
            if let RotationPlan::Succeed { retired, .. } = plan {
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
            keys.retain(|key| !key.is_over(now));
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
