//! The end of each action, computed from the specification alone, one action after the other. It shares no code with
//! the scheduler.

use super::spec::{ActionSpec, Spec, Step};

/// The end of an action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
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

impl End {
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
pub(super) fn ends(spec: &Spec) -> Vec<End> {
    let mut ends: Vec<End> = Vec::new();
    for action in &spec.actions {
        ends.push(end_of(action, spec, &ends));
    }
    ends
}

fn end_of(action: &ActionSpec, spec: &Spec, ends: &[End]) -> End {
    let mut needs: Vec<End> = action.deps.iter().map(|&one| ends[one]).collect();
    if let Some((one, _)) = action.bind {
        needs.push(ends[one]);
    }
    if needs.iter().any(|end| end.is_final() && !end.opens()) {
        return End::BlockedByOther;
    }
    if needs.iter().any(|end| !end.is_final()) {
        return End::Stuck;
    }
    if let Some((one, is)) = action.when {
        let other = ends[one];
        if !other.is_final() {
            return End::Stuck;
        }
        let holds = match is {
            0 => matches!(other, End::Completed { .. }),
            1 => matches!(other, End::Failed { .. }),
            2 => other == End::Skipped,
            _ => matches!(other, End::BlockedByOther | End::BlockedByInput),
        };
        if !holds {
            return End::Skipped;
        }
    }
    let lacks_input = action.bind.is_some_and(|(one, has_default)| {
        // The output of a fan-out is a list, which has no member of that name.
        let is_list = spec.actions[one].each.is_some();
        !has_default && (is_list || !matches!(ends[one], End::Completed { .. }))
    });
    if let Some((items, survives)) = &action.each {
        let all: Vec<End> = items
            .iter()
            .map(|script| {
                if lacks_input {
                    End::BlockedByInput
                } else {
                    attempts(action, script, true)
                }
            })
            .collect();
        if all.contains(&End::Uncertain) {
            return End::Stuck;
        }
        let good = all
            .iter()
            .filter(|end| **end == End::Completed { opens: true })
            .count();
        return if all.len() - good > usize::from(*survives) {
            End::Failed {
                opens: goes_on(action.mode),
            }
        } else {
            End::Completed { opens: true }
        };
    }
    if lacks_input {
        return End::BlockedByInput;
    }
    attempts(action, &action.script, false)
}

fn goes_on(mode: u8) -> bool {
    mode == 1 || mode == 3
}

/// Plays the attempts of one action or item.
fn attempts(action: &ActionSpec, script: &[Step], is_item: bool) -> End {
    let failed = End::Failed {
        opens: goes_on(action.mode) && !is_item,
    };
    if action.approval == Some(false) {
        return failed;
    }
    let mut steps = script.iter().copied();
    let (mut round, mut tries) = (1, 0);
    loop {
        tries += 1;
        let opens = match steps.next().unwrap_or(Step::Ok) {
            Step::Ok => true,
            Step::Unsatisfying => false,
            Step::Err { sent: 1, .. } if action.class == 2 => return End::Uncertain,
            Step::Err { retryable, sent } => {
                let may_be_sent_again = action.class != 2 || sent == 0;
                let retries = action.mode == 2 || action.mode == 3;
                if retries && retryable && may_be_sent_again && tries < action.max_attempts {
                    continue;
                }
                return failed;
            }
        };
        match action.repeat {
            Some((most, done)) if round < most && round < done => {
                round += 1;
                tries = 0;
            }
            _ => return End::Completed { opens },
        }
    }
}
