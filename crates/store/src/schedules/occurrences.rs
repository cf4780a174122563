//! Occurrences: claimed by a lease, recorded by compare-and-set of its epoch.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::schedule::OccurrenceCause;
use protocol::event::EventEnvelope;
use protocol::id::{AgentId, RunId, ScheduleId, WorkspaceId};
use protocol::run::RunStatus;
use protocol::schedule::OccurrenceStatus;
use sea_orm::{DatabaseTransaction, Value};

use super::{COLUMNS, ScheduleRecord, read_schedule};
use crate::database_clock::{lease_end_sql, millis, now_once};
use crate::error::{StoreError, parsed, parsed_json, unsigned};
use crate::mutation::Mutation;
use crate::repositories::AgentRepository;
use crate::sql::{Sql, SqlRow, executed, padded, unlocked_rows};

/// Claims free occurrences, the oldest first.
pub struct ClaimOccurrences {
    pub limit: u64,
    pub lease: Duration,
}

/// Origin of an occurrence.
#[derive(Clone, Debug, PartialEq)]
pub enum OccurrenceSource {
    Schedule {
        record: Arc<ScheduleRecord>,
        cause: OccurrenceCause,
    },
    Wake {
        workspace: WorkspaceId,
        agent: AgentId,
        event: Box<EventEnvelope>,
    },
}

/// A claimed occurrence.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimedOccurrence {
    pub owner: String,
    /// Epoch milliseconds.
    pub due_at: i64,
    /// Time since it was free, in milliseconds.
    pub age_ms: i64,
    /// Tries, with this one.
    pub tries: u64,
    pub epoch: i64,
    pub source: OccurrenceSource,
}

impl Mutation for ClaimOccurrences {
    type Output = Vec<ClaimedOccurrence>;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Vec<ClaimedOccurrence>, StoreError> {
        let now = now_once(tx.backend());
        let until = lease_end_sql(tx.backend(), "$1");
        // The lease is the time from which another replica may claim it again. One statement claims, so two replicas never get the same occurrence.
        let claim = format!(
            "UPDATE schedule_occurrences SET lease_epoch = lease_epoch + 1, tries = tries + 1, free_at = {until} \
             WHERE (owner_id, due_at) IN (SELECT owner_id, due_at FROM schedule_occurrences \
             WHERE status = 'pending' AND free_at <= {now} ORDER BY free_at LIMIT {} {}) \
             AND status = 'pending' AND free_at <= {now} \
             RETURNING owner_id, due_at, kind, tries, lease_epoch, {now} - due_at AS age",
            self.limit,
            unlocked_rows(tx)
        );
        let rows = tx.query_sql(claim, vec![millis(self.lease).into()]).await?;
        let mut claims = Vec::with_capacity(rows.len());
        for row in &rows {
            claims.push(OccurrenceClaim::read(row)?);
        }
        let schedules = schedules_of(tx, &claims).await?;
        let mut wakes = wakes_of(tx, &claims).await?;
        let claimed = claims.into_iter().filter_map(|claim| {
            let source = match claim.kind.as_str() {
                WAKE => wakes.remove(&claim.owner)?,
                kind => OccurrenceSource::Schedule {
                    // A deleted schedule deletes its occurrences.
                    record: Arc::clone(schedules.get(&claim.owner)?),
                    cause: match kind {
                        MANUAL => OccurrenceCause::Manual,
                        _ => OccurrenceCause::DueTime,
                    },
                },
            };
            Some(ClaimedOccurrence {
                owner: claim.owner,
                due_at: claim.due_at,
                age_ms: claim.age_ms,
                tries: claim.tries,
                epoch: claim.epoch,
                source,
            })
        });
        Ok(claimed.collect())
    }
}

/// Kinds of occurrences, besides those of due times.
pub(super) const MANUAL: &str = "manual";
pub(super) const WAKE: &str = "wake";

struct OccurrenceClaim {
    owner: String,
    due_at: i64,
    kind: String,
    age_ms: i64,
    tries: u64,
    epoch: i64,
}

impl OccurrenceClaim {
    fn read(row: &SqlRow) -> Result<Self, StoreError> {
        let owner = row.text("owner_id")?;
        Ok(Self {
            due_at: row.number("due_at")?,
            kind: row.text("kind")?,
            age_ms: row.number("age")?,
            tries: unsigned("schedule_occurrences.tries", &owner, row.number("tries")?)?,
            epoch: row.number("lease_epoch")?,
            owner,
        })
    }
}

/// The rows of all owners of a kind, in one statement.
async fn rows_of(
    tx: &impl Sql,
    select: &str,
    claims: &[OccurrenceClaim],
    is_wanted: impl Fn(&OccurrenceClaim) -> bool,
) -> Result<Vec<SqlRow>, StoreError> {
    let mut owners: Vec<_> = claims
        .iter()
        .filter(|claim| is_wanted(claim))
        .map(|claim| claim.owner.as_str())
        .collect();
    // A schedule may have several occurrences in one claim.
    owners.sort_unstable();
    owners.dedup();
    if owners.is_empty() {
        return Ok(Vec::new());
    }
    let values: Vec<Value> = padded(owners).into_iter().map(Value::from).collect();
    let placeholders: Vec<_> = (1..=values.len()).map(|at| format!("${at}")).collect();
    let sql = format!("{select} WHERE id IN ({})", placeholders.join(", "));
    tx.query_sql(sql, values).await
}

async fn schedules_of(
    tx: &impl Sql,
    claims: &[OccurrenceClaim],
) -> Result<HashMap<String, Arc<ScheduleRecord>>, StoreError> {
    let select = format!("SELECT {} FROM schedules", COLUMNS.selected());
    let rows = rows_of(tx, &select, claims, |claim| claim.kind != WAKE).await?;
    let read = |row: &SqlRow| Ok((row.text("id")?, Arc::new(read_schedule(row)?)));
    rows.iter().map(read).collect()
}

async fn wakes_of(
    tx: &impl Sql,
    claims: &[OccurrenceClaim],
) -> Result<HashMap<String, OccurrenceSource>, StoreError> {
    let select = "SELECT id, workspace_id, agent_id, event FROM agent_wakes";
    let rows = rows_of(tx, select, claims, |claim| claim.kind == WAKE).await?;
    let read = |row: &SqlRow| {
        let id = row.text("id")?;
        let event = parsed_json("agent_wakes.event", &id, &row.text("event")?)?;
        let wake = OccurrenceSource::Wake {
            workspace: WorkspaceId(row.text("workspace_id")?),
            agent: parsed("agent_wakes.agent_id", &id, &row.text("agent_id")?)?,
            event: Box::new(event),
        };
        Ok((id, wake))
    };
    rows.iter().map(read).collect()
}

/// Result of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OccurrenceResult {
    /// The event is stored. `reason`: cause of a missing run.
    Triggered {
        run: Option<RunId>,
        reason: Option<String>,
    },
    Failed {
        reason: String,
    },
    /// The next try begins after `wait`.
    Refused {
        reason: String,
        wait: Duration,
    },
}

/// A try of a claimed occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriedOccurrence {
    pub owner: String,
    pub due_at: i64,
    pub epoch: i64,
    pub result: OccurrenceResult,
}

/// Records tries. One whose lease another replica has by now changes nothing.
pub struct RecordOccurrences {
    pub tries: Vec<TriedOccurrence>,
    /// Epoch milliseconds.
    pub at: i64,
}

impl Mutation for RecordOccurrences {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        // Two statements for all tries: the epochs decide for each row.
        let (mut ended, mut waiting) = (Vec::new(), Vec::new());
        for one in &self.tries {
            let (status, run, reason) = match &one.result {
                OccurrenceResult::Triggered { run, reason } => {
                    (OccurrenceStatus::Triggered, *run, reason.clone())
                }
                OccurrenceResult::Failed { reason } => {
                    (OccurrenceStatus::Failed, None, Some(reason.clone()))
                }
                OccurrenceResult::Refused { reason, wait } => {
                    waiting.push([
                        Value::from(one.owner.as_str()),
                        one.due_at.into(),
                        one.epoch.into(),
                        reason.as_str().into(),
                        millis(*wait).into(),
                    ]);
                    continue;
                }
            };
            ended.push([
                Value::from(one.owner.as_str()),
                one.due_at.into(),
                one.epoch.into(),
                status.as_str().into(),
                run.map(|run| run.to_string()).into(),
                reason.into(),
                self.at.into(),
            ]);
        }
        let own = "FROM rows WHERE schedule_occurrences.owner_id = ?1 AND schedule_occurrences.due_at = ?2 \
                   AND schedule_occurrences.lease_epoch = ?3 AND schedule_occurrences.status = 'pending'";
        let end = format!(
            "UPDATE schedule_occurrences SET status = ?4, run_id = ?5, reason = ?6, finished_at = ?7 {own}"
        );
        executed(tx, ended, &end).await?;
        let wait = format!(
            "UPDATE schedule_occurrences SET reason = ?4, free_at = {} {own}",
            lease_end_sql(tx.backend(), "?5")
        );
        executed(tx, waiting, &wait).await
    }
}

/// An occurrence of a schedule, with its run. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OccurrenceRecord {
    pub due_at: i64,
    pub is_manual: bool,
    pub status: OccurrenceStatus,
    pub reason: Option<String>,
    pub run_id: Option<RunId>,
    pub run_status: Option<RunStatus>,
    pub tries: u64,
    pub finished_at: Option<i64>,
}

impl AgentRepository<'_> {
    /// True if a replica can claim an occurrence now.
    pub async fn has_free_occurrence(self) -> Result<bool, StoreError> {
        let readers = &self.db.readers;
        let now = now_once(readers.backend());
        let sql = format!(
            "SELECT 1 FROM schedule_occurrences WHERE status = 'pending' AND free_at <= {now} LIMIT 1"
        );
        Ok(!readers.query_sql(sql, Vec::new()).await?.is_empty())
    }

    /// Occurrences that are due and wait, at most `limit`.
    pub async fn count_late_occurrences(self, limit: u64) -> Result<u64, StoreError> {
        let readers = &self.db.readers;
        let now = now_once(readers.backend());
        let sql = format!(
            "SELECT CAST(COUNT(*) AS BIGINT) AS n FROM (SELECT 1 FROM schedule_occurrences WHERE status = 'pending' \
             AND free_at <= {now} LIMIT {limit}) late"
        );
        let found = readers.query_sql(sql, Vec::new()).await?;
        let count = found.first().map_or(Ok(0), |row| row.number("n"))?;
        unsigned("schedule_occurrences", "count", count)
    }

    /// The newest occurrences of a schedule, newest first.
    pub async fn newest_occurrences(
        self,
        schedule: ScheduleId,
        limit: u64,
    ) -> Result<Vec<OccurrenceRecord>, StoreError> {
        let sql = format!(
            "SELECT o.due_at, o.kind, o.status, o.reason, o.run_id, o.tries, o.finished_at, r.status AS run_status \
             FROM schedule_occurrences o LEFT JOIN runs r ON r.id = o.run_id WHERE o.owner_id = $1 \
             ORDER BY o.due_at DESC LIMIT {limit}"
        );
        let id = schedule.to_string();
        let rows = self.db.readers.query_sql(sql, vec![id.as_str().into()]);
        rows.await?
            .iter()
            .map(|row| read_occurrence(&id, row))
            .collect()
    }
}

fn read_occurrence(id: &str, row: &SqlRow) -> Result<OccurrenceRecord, StoreError> {
    let run = row.text_if_any("run_id")?;
    let run_status = row.text_if_any("run_status")?;
    Ok(OccurrenceRecord {
        due_at: row.number("due_at")?,
        is_manual: row.text("kind")? == MANUAL,
        status: read_status(id, row)?,
        reason: row.text_if_any("reason")?,
        run_id: run
            .map(|run| parsed("schedule_occurrences.run_id", id, &run))
            .transpose()?,
        // The retention deletes runs; their ids stay here.
        run_status: run_status.and_then(|status| RunStatus::parse(&status)),
        tries: unsigned("schedule_occurrences.tries", id, row.number("tries")?)?,
        finished_at: row.number_if_any("finished_at")?,
    })
}

pub(super) fn read_status(id: &str, row: &SqlRow) -> Result<OccurrenceStatus, StoreError> {
    let status = OccurrenceStatus::parse(&row.text("status")?);
    status.ok_or_else(|| StoreError::Corrupt {
        column: "schedule_occurrences.status",
        row: id.to_owned(),
    })
}
