//! Passed due times become occurrences, and each schedule gets its next due time.

use std::collections::HashMap;

use protocol::id::{ScheduleId, WorkspaceId};
use protocol::schedule::OccurrenceStatus;
use sea_orm::{DatabaseTransaction, Value};

use super::occurrences::MANUAL;
use super::{COLUMNS, ScheduleRecord, read_schedule};
use crate::database_clock::now_once;
use crate::error::{StoreError, parsed, signed};
use crate::mutation::Mutation;
use crate::repositories::AgentRepository;
use crate::sql::{Sql, executed, returned};

/// Stored occurrences of a schedule that have ended.
const STORED: i64 = 100;

/// Begin of a statement that inserts occurrences of schedules.
const INSERT: &str = "INSERT INTO schedule_occurrences (owner_id, due_at, kind, number, status, free_at, tries, \
     lease_epoch, finished_at)";

/// Schedules whose due time has passed at `now`, by the clock of the database in epoch milliseconds.
pub struct DueSchedules {
    pub now: i64,
    pub records: Vec<ScheduleRecord>,
}

/// A due time. Times are epoch milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewOccurrence {
    pub due_at: i64,
    /// With the jitter.
    pub free_at: i64,
    pub status: OccurrenceStatus,
}

/// Passed due times of a schedule, and the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleAdvance {
    pub id: ScheduleId,
    /// The version and due time that the plan is for. Another replica or a change may be first.
    pub version: i64,
    pub due_at: i64,
    pub next_due_at: Option<i64>,
    /// In the order of their due times.
    pub occurrences: Vec<NewOccurrence>,
}

/// Moves schedules on by compare-and-set of their due times, and inserts the passed ones as occurrences.
pub struct AdvanceSchedules {
    pub advances: Vec<ScheduleAdvance>,
    /// Epoch milliseconds.
    pub at: i64,
}

impl Mutation for AdvanceSchedules {
    /// Number of schedules that this call moved on.
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    // Replicas change many rows each: without a common lock they could wait for each other's rows.
    fn lock(&self) -> Option<String> {
        Some("schedules".to_owned())
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let rows = self.advances.iter().map(|one| {
            [
                Value::from(one.id.to_string()),
                one.version.into(),
                one.due_at.into(),
                one.next_due_at.into(),
                signed(one.occurrences.len() as u64).into(),
            ]
        });
        let sql = "UPDATE schedules SET next_due_at = ?4, occurrences = schedules.occurrences + ?5 FROM rows \
                   WHERE schedules.id = ?1 AND schedules.version = ?2 AND schedules.next_due_at = ?3 \
                   RETURNING id, occurrences";
        // Without a row, another replica or a change was first.
        let mut last = HashMap::new();
        for row in returned(tx, rows.collect(), sql).await? {
            let id = row.text("id")?;
            let id: ScheduleId = parsed("schedules.id", &id, &id)?;
            last.insert(id, row.number("occurrences")?);
        }
        let moved = self
            .advances
            .iter()
            .filter_map(|one| Some((one, *last.get(&one.id)?)));
        let new = moved.clone().flat_map(|(one, last)| {
            // Numbers without gaps, so that the newest hundred are a range.
            let first = last - signed(one.occurrences.len() as u64) + 1;
            (first..).zip(&one.occurrences).map(|(number, new)| {
                let is_over = new.status != OccurrenceStatus::Pending;
                [
                    Value::from(one.id.to_string()),
                    new.due_at.into(),
                    "due".into(),
                    number.into(),
                    new.status.as_str().into(),
                    new.free_at.into(),
                    0_i64.into(),
                    0_i64.into(),
                    is_over.then_some(self.at).into(),
                ]
            })
        });
        // A manual occurrence may have the same time.
        let sql = format!("{INSERT} VALUES rows ON CONFLICT (owner_id, due_at) DO NOTHING");
        executed(tx, new.collect(), &sql).await?;
        let old =
            moved.map(|(one, last)| [Value::from(one.id.to_string()), (last - STORED).into()]);
        delete_old(tx, old.collect()).await?;
        Ok(last.len() as u64)
    }
}

/// An occurrence of now, also of a disabled or paused schedule.
pub struct RunSchedule {
    pub id: ScheduleId,
    pub workspace: WorkspaceId,
    /// Epoch milliseconds.
    pub at: i64,
}

/// Result of [`RunSchedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleRan {
    /// With the due time of the occurrence, in epoch milliseconds.
    Queued(i64),
    Unknown,
    /// The schedule has as many pending occurrences as it may.
    Full,
}

impl Mutation for RunSchedule {
    type Output = ScheduleRan;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<ScheduleRan, StoreError> {
        let id = self.id.to_string();
        let number = "UPDATE schedules SET occurrences = occurrences + 1 WHERE id = $1 AND workspace_id = $2 \
                      RETURNING occurrences";
        let values = vec![id.as_str().into(), self.workspace.as_str().into()];
        let numbered = tx.query_sql(number.to_owned(), values).await?;
        let Some(number) = numbered.first() else {
            return Ok(ScheduleRan::Unknown);
        };
        let number = number.number("occurrences")?;
        // The update above has locked the schedule, so this count is that of the commit.
        let count = "SELECT CAST(COUNT(*) AS BIGINT) AS n FROM schedule_occurrences \
                     WHERE owner_id = $1 AND status = 'pending'";
        let count = tx.query_sql(count.to_owned(), vec![id.as_str().into()]);
        let count = count.await?.first().map_or(Ok(0), |row| row.number("n"))?;
        if count >= STORED {
            return Ok(ScheduleRan::Full);
        }
        let old = [id.as_str().into(), (number - STORED).into()];
        delete_old(tx, vec![old]).await?;
        // An occurrence may have the same millisecond.
        for due_at in self.at..self.at + STORED {
            let sql = format!(
                "{INSERT} VALUES ($1, $2, '{MANUAL}', $3, 'pending', $2, 0, 0, NULL) \
                 ON CONFLICT (owner_id, due_at) DO NOTHING RETURNING due_at"
            );
            let values = vec![id.as_str().into(), due_at.into(), number.into()];
            if !tx.query_sql(sql, values).await?.is_empty() {
                return Ok(ScheduleRan::Queued(due_at));
            }
        }
        Ok(ScheduleRan::Full)
    }
}

/// Deletes the ended occurrences of schedules up to a number.
async fn delete_old(tx: &impl Sql, rows: Vec<[Value; 2]>) -> Result<(), StoreError> {
    let sql = "DELETE FROM schedule_occurrences WHERE (owner_id, due_at) IN (SELECT o.owner_id, o.due_at \
               FROM rows, schedule_occurrences o WHERE o.owner_id = ?1 AND o.number <= ?2 AND o.status <> 'pending')";
    executed(tx, rows, sql).await
}

impl AgentRepository<'_> {
    /// Schedules whose due time has passed, the oldest first.
    pub async fn due_schedules(self, limit: u64) -> Result<DueSchedules, StoreError> {
        let readers = &self.db.readers;
        let now = now_once(readers.backend());
        let sql = format!(
            "SELECT {}, {now} AS now FROM schedules WHERE next_due_at <= {now} ORDER BY next_due_at LIMIT {limit}",
            COLUMNS.selected()
        );
        let rows = readers.query_sql(sql, Vec::new()).await?;
        let now = rows.first().map_or(Ok(0), |row| row.number("now"))?;
        let records = rows.iter().map(read_schedule).collect::<Result<_, _>>()?;
        Ok(DueSchedules { now, records })
    }
}
