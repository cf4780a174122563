//! The end of each action, computed only from the specification, one action after the other. It shares no code with
//! the scheduler.

use super::spec::{ActionSpec, AttemptEnd, Spec};

/// The end of an action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OracleEnd {
    Completed {
        opens: bool,
    },
    Failed {
        opens: bool,
    },
    Skipped,
    BlockedByOther,
    BlockedByInput,
    Uncertain,
    /// It waits for an action whose effect is uncertain.
    Stuck,
}

impl OracleEnd {
    fn is_final(self) -> bool {
        !matches!(self, Self::Uncertain | Self::Stuck)
    }

    pub(super) fn opens(self) -> bool {
        match self {
            Self::Completed { opens } | Self::Failed { opens } => opens,
            Self::Skipped => true,
            _ => false,
        }
    }
}

/// The end of every action, for every order in which attempts end.
pub(super) fn ends(spec: &Spec) -> Vec<OracleEnd> {
    let mut ends: Vec<OracleEnd> = Vec::new();
    for action in &spec.actions {
        ends.push(end_of(action, spec, &ends));
    }
    ends
}

fn end_of(action: &ActionSpec, spec: &Spec, ends: &[OracleEnd]) -> OracleEnd {
    let mut needs: Vec<OracleEnd> = action.deps.iter().map(|&one| ends[one]).collect();
    if let Some((one, _)) = action.bind {
        needs.push(ends[one]);
    }
    if needs.iter().any(|end| end.is_final() && !end.opens()) {
        return OracleEnd::BlockedByOther;
    }
    if needs.iter().any(|end| !end.is_final()) {
        return OracleEnd::Stuck;
    }
    if let Some((one, is)) = action.when {
        let other = ends[one];
        if !other.is_final() {
            return OracleEnd::Stuck;
        }
        let holds = match is {
            0 => matches!(other, OracleEnd::Completed { .. }),
            1 => matches!(other, OracleEnd::Failed { .. }),
            2 => other == OracleEnd::Skipped,
            _ => matches!(other, OracleEnd::BlockedByOther | OracleEnd::BlockedByInput),
        };
        if !holds {
            return OracleEnd::Skipped;
        }
    }
    let lacks_input = action.bind.is_some_and(|(one, has_default)| {
        // The output of a fan-out is a list, which has no member of that name.
        let is_list = spec.actions[one].each.is_some();
        !has_default && (is_list || !matches!(ends[one], OracleEnd::Completed { .. }))
    });
    if let Some((items, survives)) = &action.each {
        let all: Vec<OracleEnd> = items
            .iter()
            .map(|script| {
                if lacks_input {
                    OracleEnd::BlockedByInput
                } else {
                    attempts(action, script, true)
                }
            })
            .collect();
        if all.contains(&OracleEnd::Uncertain) {
            return OracleEnd::Stuck;
        }
        let good = all
            .iter()
            .filter(|end| **end == OracleEnd::Completed { opens: true })
            .count();
        return if all.len() - good > usize::from(*survives) {
            OracleEnd::Failed {
                opens: goes_on(action.mode),
            }
        } else {
            OracleEnd::Completed { opens: true }
        };
    }
    if lacks_input {
        return OracleEnd::BlockedByInput;
    }
    attempts(action, &action.script, false)
}

fn goes_on(mode: u8) -> bool {
    mode == 1 || mode == 3
}

/// Plays the attempts of one action or item.
fn attempts(action: &ActionSpec, script: &[AttemptEnd], is_item: bool) -> OracleEnd {
    let failed = OracleEnd::Failed {
        opens: goes_on(action.mode) && !is_item,
    };
    if action.approval == Some(false) {
        return failed;
    }
    let mut steps = script.iter().copied();
    let (mut round, mut tries) = (1, 0);
    loop {
        tries += 1;
        let opens = match steps.next().unwrap_or(AttemptEnd::Ok) {
            AttemptEnd::Ok => true,
            AttemptEnd::Unsatisfying => false,
            AttemptEnd::Err { sent: 1, .. } if action.class == 2 => return OracleEnd::Uncertain,
            AttemptEnd::Err { retryable, sent } => {
                let may_be_sent_again = action.class != 2 || sent == 0;
                let retries = action.mode == 2 || action.mode == 3;
                if retries && retryable && may_be_sent_again && tries < action.max_attempts {
                    continue;
                }
                return failed;
            }
        };
        match action.repeat {
            Some((max, done)) if round < max && round < done => {
                round += 1;
                tries = 0;
            }
            _ => return OracleEnd::Completed { opens },
        }
    }
}
