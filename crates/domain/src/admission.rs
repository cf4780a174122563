//! Admission of an event to a busy conversation (`docs/protocol.md`, Conversation policies).

use protocol::admin::Concurrency;
use protocol::id::RunId;

/// Maximum queued runs per conversation and agent.
pub const MAX_QUEUED_RUNS: u64 = 100;
/// Maximum absorbed events that wait for a pull of one run.
pub const MAX_STEERING_EVENTS: u64 = 100;

/// An active run of the same agent in the event's conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveRun {
    pub run_id: RunId,
    /// True after the dispatch.
    pub running: bool,
    pub cancel_requested: bool,
    /// Absorbed events that the run has not pulled yet.
    pub steering: u64,
}

/// Load of the conversation for this agent, read under the conversation's lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversationLoad {
    /// Active runs, oldest first.
    pub active: Vec<ActiveRun>,
    /// Runs that wait for the end of the active runs.
    pub queued: u64,
}

impl ConversationLoad {
    /// Returns true if runs are queued, or if a cancelled run will leave absorbed events.
    fn has_pending_events(&self) -> bool {
        // A cancelled run pulls nothing more and leaves its absorbed events to later runs.
        let leaves_some = |run: &ActiveRun| run.cancel_requested && run.steering > 0;
        self.queued > 0 || self.active.iter().any(leaves_some)
    }
}

/// Number of live runs and their limit, for a workspace or an endpoint. Queued runs count as live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    pub live: u64,
    /// `None`: unlimited.
    pub limit: Option<u64>,
}

impl Capacity {
    /// Returns the limit if no further run may start.
    pub fn reached(&self) -> Option<u64> {
        self.limit.filter(|limit| self.live >= *limit)
    }
}

/// Decision on an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Start a run now.
    Start,
    /// Queue a run until the active runs have ended.
    Queue,
    /// Queue a run and cancel these active runs.
    Interrupt(Vec<RunId>),
    /// No new run: this active run pulls the event.
    Absorb(RunId),
    /// Reject: this run is active.
    Busy(RunId),
    /// Reject: the queue is full.
    QueueFull,
}

impl Admission {
    /// Returns true if the event gets a run of its own.
    pub fn makes_run(&self) -> bool {
        matches!(self, Self::Start | Self::Queue | Self::Interrupt(_))
    }
}

/// Policy for an event that no run can pull: steering starts a parallel run.
pub fn without_steering(policy: Concurrency) -> Concurrency {
    match policy {
        Concurrency::Steer => Concurrency::Concurrent,
        policy => policy,
    }
}

/// Applies the agent's concurrency policy.
pub fn admit(policy: Concurrency, occupancy: &ConversationLoad) -> Admission {
    let Some(oldest) = occupancy.active.first() else {
        return Admission::Start;
    };
    match policy {
        Concurrency::Concurrent => Admission::Start,
        // Names the oldest run, so that repeated posts report the same one.
        Concurrency::Reject => Admission::Busy(oldest.run_id),
        Concurrency::Enqueue | Concurrency::Interrupt if occupancy.queued >= MAX_QUEUED_RUNS => {
            Admission::QueueFull
        }
        Concurrency::Enqueue => Admission::Queue,
        Concurrency::Interrupt => {
            // A run that is already cancelling gets no second cancellation.
            let live = occupancy.active.iter().filter(|run| !run.cancel_requested);
            Admission::Interrupt(live.map(|run| run.run_id).collect())
        }
        Concurrency::Steer => {
            // Before its dispatch a run has no runner that could pull; above the bound the event gets its own run.
            let takes = |run: &&ActiveRun| {
                run.running && !run.cancel_requested && run.steering < MAX_STEERING_EVENTS
            };
            match occupancy.active.iter().find(takes) {
                Some(run) => Admission::Absorb(run.run_id),
                // Earlier events wait for a run that is ending. Queue to keep the order.
                None if occupancy.has_pending_events() => {
                    if occupancy.queued >= MAX_QUEUED_RUNS {
                        Admission::QueueFull
                    } else {
                        Admission::Queue
                    }
                }
                // No run can take the event: a parallel run answers sooner than a queued one.
                None => Admission::Start,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn run(number: u128) -> ActiveRun {
        let run_id = RunId(Uuid::from_u128(number));
        ActiveRun {
            run_id,
            running: true,
            cancel_requested: false,
            steering: 0,
        }
    }

    fn check(policy: Concurrency, active: &[ActiveRun], queued: u64, expected: &Admission) {
        let occupancy = ConversationLoad {
            active: active.to_vec(),
            queued,
        };
        assert_eq!(
            &admit(policy, &occupancy),
            expected,
            "{policy:?} {occupancy:?}"
        );
    }

    #[test]
    fn starts_run_in_idle_conversation() {
        for policy in [
            Concurrency::Concurrent,
            Concurrency::Reject,
            Concurrency::Enqueue,
            Concurrency::Interrupt,
            Concurrency::Steer,
        ] {
            check(policy, &[], 0, &Admission::Start);
        }
    }

    #[test]
    fn reports_capacity_limit_only_when_reached() {
        let reached = |live, limit| Capacity { live, limit }.reached();
        assert_eq!(reached(1, Some(2)), None);
        assert_eq!(reached(2, Some(2)), Some(2));
        assert_eq!(reached(3, Some(2)), Some(2));
        assert_eq!(reached(u64::MAX, None), None);
    }

    #[test]
    fn applies_each_concurrency_policy_to_busy_conversations() {
        let (one, two) = (run(1), run(2));
        let both = [one, two];
        check(Concurrency::Concurrent, &both, 0, &Admission::Start);
        check(Concurrency::Reject, &both, 0, &Admission::Busy(one.run_id));
        check(Concurrency::Enqueue, &both, 99, &Admission::Queue);
        check(Concurrency::Enqueue, &both, 100, &Admission::QueueFull);
        check(
            Concurrency::Interrupt,
            &both,
            0,
            &Admission::Interrupt(vec![one.run_id, two.run_id]),
        );
        let ending = ActiveRun {
            cancel_requested: true,
            ..one
        };
        check(
            Concurrency::Interrupt,
            &[ending],
            1,
            &Admission::Interrupt(Vec::new()),
        );
        check(Concurrency::Interrupt, &[one], 100, &Admission::QueueFull);
    }

    #[test]
    fn steers_only_into_runs_that_can_pull() {
        let one = run(1);
        check(
            Concurrency::Steer,
            &[one],
            0,
            &Admission::Absorb(one.run_id),
        );
        check(
            Concurrency::Steer,
            &[ActiveRun {
                running: false,
                ..one
            }],
            0,
            &Admission::Start,
        );
        check(
            Concurrency::Steer,
            &[ActiveRun {
                cancel_requested: true,
                ..one
            }],
            0,
            &Admission::Start,
        );
        // Queued events run first.
        let (ending, two) = (
            ActiveRun {
                cancel_requested: true,
                ..one
            },
            run(2),
        );
        check(Concurrency::Steer, &[ending], 1, &Admission::Queue);
        check(Concurrency::Steer, &[ending], 100, &Admission::QueueFull);
        check(
            Concurrency::Steer,
            &[ending, two],
            1,
            &Admission::Absorb(two.run_id),
        );
        check(
            Concurrency::Steer,
            &[ActiveRun {
                cancel_requested: true,
                steering: 1,
                ..one
            }],
            0,
            &Admission::Queue,
        );
        check(
            Concurrency::Steer,
            &[ActiveRun {
                steering: 100,
                ..one
            }],
            0,
            &Admission::Start,
        );
        let occupancy = ConversationLoad {
            active: vec![one],
            queued: 0,
        };
        assert_eq!(
            admit(without_steering(Concurrency::Steer), &occupancy),
            Admission::Start
        );
    }
}
