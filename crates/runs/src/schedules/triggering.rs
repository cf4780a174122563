//! Moves due times on, and triggers occurrences.
//!
//! Every replica does both. An occurrence belongs to the replica that claimed it until its lease ends. Its event has an
//! id of its own, so a repeated try finds the stored event: each occurrence runs once.

use std::time::Duration;

use domain::api_key::AgentReach;
use domain::schedule::{OccurrenceId, due_plan, max_jitter_ms, occurrence_event};
use futures_util::{StreamExt as _, stream};
use protocol::event::EventEnvelope;
use protocol::id::{AgentId, WorkspaceId};
use protocol::schedule::OccurrenceStatus;
use store::{
    AdvanceSchedules, ClaimOccurrences, ClaimedOccurrence, NewOccurrence, OccurrenceResult,
    OccurrenceSource, RecordOccurrences, ScheduleAdvance, ScheduleRecord, StoreError,
    TriedOccurrence, failpoint, sha256_hex,
};

use super::Schedules;
use crate::artifacts::BodyFiles;
use crate::hooks::{HookCause, HookRefused};
use crate::intake::{AcceptedEvent, IntakeError, IntakeRequest};
use crate::own_limits::{KeyStart, StartLimit};
use telemetry::metrics;

/// Schedules of one transaction.
const ADVANCED: u64 = 1000;
/// Without events of clients.
const ALONE: TriggerPace = TriggerPace {
    claimed: 256,
    concurrent: 32,
};
/// An occurrence costs as much as an event of a client, so few of them run beside those.
const BESIDE_CLIENTS: TriggerPace = TriggerPace {
    claimed: 32,
    concurrent: 2,
};
/// Longer than the tries of one claim. Another replica repeats them afterwards.
const LEASE: Duration = Duration::from_mins(1);
/// Time between two looks for due times.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// Time after which a refused occurrence fails.
const MAX_AGE_MS: i64 = 3600 * 1000;
/// Waits after refusals double from the first to the last.
const FIRST_WAIT: Duration = Duration::from_secs(2);
const MAX_WAIT: Duration = Duration::from_mins(1);

/// Number of occurrences that are triggered together.
struct TriggerPace {
    /// Occurrences of one claim.
    claimed: u64,
    /// Events at the same time.
    concurrent: usize,
}

/// The event of an occurrence, and the agent that gets it.
struct DueEvent {
    workspace: WorkspaceId,
    only: Option<AgentId>,
    event: EventEnvelope,
}

impl Schedules {
    /// Triggers the schedules of all workspaces until the process stops.
    pub async fn keep_triggering(&self) {
        let loops = async {
            // Concurrent: a long queue of occurrences must not delay due times, which would then be misfires.
            tokio::join!(self.keep_advancing(), self.keep_queue());
        };
        self.deps.until_closing(loops).await;
    }

    async fn keep_advancing(&self) {
        let mut is_failing = false;
        loop {
            let advanced = self.advance_due().await;
            note(&advanced, &mut is_failing);
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    async fn keep_queue(&self) {
        let mut is_failing = false;
        loop {
            let triggered = self.trigger_free().await;
            note(&triggered, &mut is_failing);
            tokio::select! {
                () = tokio::time::sleep(BETWEEN_LOOKS) => {}
                () = self.queued.notified(), if !is_failing => {}
            }
        }
    }

    /// Turns passed due times into occurrences, in batches.
    async fn advance_due(&self) -> Result<(), StoreError> {
        let store = &self.deps.store;
        loop {
            let due = store.agents().due_schedules(ADVANCED).await?;
            if due.records.is_empty() {
                return Ok(());
            }
            failpoint::pass("schedule.before_advance").await?;
            let is_last = (due.records.len() as u64) < ADVANCED;
            let advances = due.records.iter().filter_map(|one| advance(one, due.now));
            let advance = AdvanceSchedules {
                advances: advances.collect(),
                at: due.now,
            };
            store.write(advance).await?;
            failpoint::pass("schedule.after_advance").await?;
            self.queued.notify_one();
            if is_last {
                return Ok(());
            }
        }
    }

    /// Triggers free occurrences, in batches.
    async fn trigger_free(&self) -> Result<(), StoreError> {
        let store = &self.deps.store;
        while !self.deps.lifecycle.stopping.is_cancelled()
            && store.agents().has_free_occurrence().await?
        {
            let is_busy = self.intake.activity.is_recent(self.deps.clock.now_ms());
            let pace = if is_busy { BESIDE_CLIENTS } else { ALONE };
            let claim = ClaimOccurrences {
                limit: pace.claimed,
                lease: LEASE,
            };
            let claimed = store.write(claim).await?;
            if claimed.is_empty() {
                break;
            }
            failpoint::pass("schedule.after_claim").await?;
            let tries = stream::iter(claimed).map(|one| self.trigger(one));
            let tries = tries.buffer_unordered(pace.concurrent).collect().await;
            failpoint::pass("schedule.before_record").await?;
            let record = RecordOccurrences {
                tries,
                at: self.deps.clock.now_ms(),
            };
            store.write(record).await?;
            failpoint::pass("schedule.after_record").await?;
        }
        Ok(())
    }

    async fn trigger(&self, claimed: ClaimedOccurrence) -> TriedOccurrence {
        let ClaimedOccurrence {
            owner,
            due_at,
            age_ms,
            tries,
            epoch,
            source,
        } = claimed;
        let accepted = match self.event_of(source, due_at).await {
            Ok(due) => self.post(due).await,
            Err(error) => Err(error),
        };
        let result = result_of(accepted, tries, age_ms);
        report(&owner, &result);
        TriedOccurrence {
            owner,
            due_at,
            epoch,
            result,
        }
    }

    async fn event_of(
        &self,
        source: OccurrenceSource,
        due_at: i64,
    ) -> Result<DueEvent, IntakeError> {
        let (record, cause) = match source {
            OccurrenceSource::Schedule { record, cause } => (record, cause),
            OccurrenceSource::Wake {
                workspace,
                agent,
                event,
            } => {
                return Ok(DueEvent {
                    workspace,
                    only: Some(agent),
                    event: *event,
                });
            }
        };
        let mut only = record.agent;
        if record.spec.agent.is_some() && only.is_none() {
            // The configuration may name an agent that was created later.
            only = self.find_agent(&record.workspace, &record.spec).await?;
            if only.is_none() {
                return Err(IntakeError::AgentGone);
            }
        }
        let id = OccurrenceId {
            schedule: record.id,
            due_at,
        };
        Ok(DueEvent {
            workspace: record.workspace.clone(),
            only,
            event: occurrence_event(&record.spec, id, cause),
        })
    }

    /// Stores the event of an occurrence, or finds it stored.
    async fn post(&self, due: DueEvent) -> Result<AcceptedEvent, IntakeError> {
        let DueEvent {
            workspace,
            only,
            event,
        } = due;
        self.intake.admit_event(&workspace)?;
        let event_id = event.event_id.clone().unwrap_or_default();
        let incoming = IntakeRequest {
            dedupe_key: event_id.clone(),
            // Of the id only: a change of the schedule between two tries must not refuse the second one.
            body_sha256: sha256_hex(event_id.as_bytes()),
            event_id,
            trace_parent: None,
            only,
            scope: AgentReach::All,
            posted_by: None,
            answers: None,
            parent: None,
            start: KeyStart::default(),
            actor_token: None,
        };
        let files = BodyFiles::default();
        let storing = self.intake.store_event(&workspace, event, &files, incoming);
        storing.await
    }
}

/// Logs a failure, once per outage.
fn note(looked: &Result<(), StoreError>, is_failing: &mut bool) {
    if let Err(error) = looked
        && !*is_failing
    {
        let error = error as &dyn std::error::Error;
        tracing::warn!(error, "cannot read or write schedules, trying again");
    }
    *is_failing = looked.is_err();
}

/// Plans a schedule whose due time has passed. `None`: it has none.
fn advance(record: &ScheduleRecord, now_ms: i64) -> Option<ScheduleAdvance> {
    let due_at = record.next_due_at?;
    let mut advance = ScheduleAdvance {
        id: record.id,
        version: record.version,
        due_at,
        next_due_at: None,
        occurrences: Vec::new(),
    };
    let Some(recurrence) = record.recurrence() else {
        tracing::error!(
            schedule.id = %record.id, schedule.name = record.spec.name,
            "schedule {} cannot be read and is not due any more; save it again", record.spec.name
        );
        return Some(advance);
    };
    let (due, now) = (due_at.div_euclid(1000), now_ms.div_euclid(1000));
    let plan = due_plan(&recurrence, record.spec.misfire, due, now);
    let max_jitter = max_jitter_ms(&record.spec);
    let occurrence = |due: i64, status| {
        let id = OccurrenceId {
            schedule: record.id,
            due_at: due * 1000,
        };
        NewOccurrence {
            due_at: id.due_at,
            free_at: id.due_at + id.jitter(max_jitter),
            status,
        }
    };
    let skipped = plan.skipped.into_iter();
    let skipped = skipped.map(|due| occurrence(due, OccurrenceStatus::Skipped));
    let run = plan.run.into_iter();
    let run = run.map(|due| occurrence(due, OccurrenceStatus::Pending));
    advance.occurrences = skipped.chain(run).collect();
    advance.next_due_at = plan.next.map(|next| next * 1000);
    Some(advance)
}

fn result_of(
    accepted: Result<AcceptedEvent, IntakeError>,
    tries: u64,
    age_ms: i64,
) -> OccurrenceResult {
    let error = match accepted {
        Ok(AcceptedEvent { answer, .. }) => {
            return OccurrenceResult::Triggered {
                run: answer.run_id,
                reason: answer.hint.or(answer.reason),
            };
        }
        Err(error) => error,
    };
    let reason = error.to_string();
    match retry_wait(&error, tries) {
        Some(wait) if age_ms < MAX_AGE_MS => OccurrenceResult::Refused { reason, wait },
        _ => OccurrenceResult::Failed { reason },
    }
}

/// Wait before the next try. `None`: no later try can succeed, or overlaps are refused by the agent's concurrency.
fn retry_wait(error: &IntakeError, tries: u64) -> Option<Duration> {
    let doublings = u32::try_from(tries.saturating_sub(1)).map_or(5, |count| count.min(5));
    let wait = (FIRST_WAIT * (1 << doublings)).min(MAX_WAIT);
    match error {
        IntakeError::TooFast { wait: until }
        | IntakeError::Limit(StartLimit::AgentRate { wait: until, .. }) => Some(wait.max(*until)),
        IntakeError::WorkspaceFull { .. }
        | IntakeError::EndpointFull { .. }
        | IntakeError::Limit(StartLimit::AgentRuns { .. })
        | IntakeError::RunnerUnavailable { .. }
        | IntakeError::Hook(HookRefused {
            cause: HookCause::Unavailable,
            ..
        })
        | IntakeError::Stopping => Some(wait),
        IntakeError::Store(error) if error.is_transient() => Some(wait),
        _ => None,
    }
}

/// Counts and logs a try.
fn report(owner: &str, result: &OccurrenceResult) {
    let outcome = match result {
        OccurrenceResult::Triggered { run: Some(_), .. } => "triggered",
        OccurrenceResult::Triggered { run: None, .. } => "no_agent",
        OccurrenceResult::Refused { .. } => "refused",
        OccurrenceResult::Failed { reason } => {
            tracing::warn!(
                schedule.id = owner,
                reason,
                "an occurrence of schedule {owner} failed: {reason}"
            );
            "failed"
        }
    };
    metrics::schedule_triggered(outcome);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_tried_again_and_refusals_are_not() {
        let full = || Err(IntakeError::WorkspaceFull { limit: 1 });
        let result = |tries, age| result_of(full(), tries, age);
        for (tries, seconds) in [(1, 2), (2, 4), (6, 60), (u64::MAX, 60)] {
            let OccurrenceResult::Refused { wait, .. } = result(tries, 0) else {
                panic!("a limit is tried again");
            };
            assert_eq!(wait.as_secs(), seconds);
        }
        let failed = |result: &OccurrenceResult| matches!(result, OccurrenceResult::Failed { .. });
        assert!(failed(&result(3, MAX_AGE_MS)));
        assert!(failed(&result_of(Err(IntakeError::AgentGone), 1, 0)));
        assert!(failed(&result_of(Err(IntakeError::QueueFull), 1, 0)));
    }
}
