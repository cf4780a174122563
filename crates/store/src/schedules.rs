//! Schedules: their rows, and the due times that replicas claim.
//!
//! The next due time is a column of the schedule. A compare-and-set moves it on and inserts the passed due times as
//! occurrences, in one transaction ([`advance`]). Replicas claim occurrences by a lease, and record their result
//! ([`occurrences`]). Wakes of agents are occurrences, too ([`wakes`]).

mod advance;
mod occurrences;
mod sweep;
mod wakes;

use domain::schedule::{MAX_SCHEDULES, Recurrence};
use protocol::id::{AgentId, ScheduleId, WorkspaceId};
use protocol::principal::Principal;
use protocol::schedule::ScheduleSpec;
use sea_orm::{DatabaseTransaction, Value};

use crate::agents::{ORIGIN_API, ORIGIN_CONFIG};
use crate::error::{StoreError, parsed, parsed_json, signed};
use crate::mutation::Mutation;
use crate::page::{Columns, ListPage, PageBound, TextPage};
use crate::repositories::AgentRepository;
use crate::runs::principal_if_any;
use crate::sql::{Sql, SqlRow, row_lock};

pub use advance::{
    AdvanceSchedules, DueSchedules, NewOccurrence, RunSchedule, ScheduleAdvance, ScheduleRan,
};
pub use occurrences::{
    ClaimOccurrences, ClaimedOccurrence, OccurrenceRecord, OccurrenceResult, OccurrenceSource,
    RecordOccurrences, TriedOccurrence,
};
pub use sweep::SweepWakes;
pub use wakes::{CancelWake, RequestWake, WakeCancelled, WakeRecord, WakeScope, WakeStored};

/// A schedule. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleRecord {
    pub id: ScheduleId,
    pub workspace: WorkspaceId,
    pub origin: String,
    pub spec: ScheduleSpec,
    /// The agent of the specification, if it exists.
    pub agent: Option<AgentId>,
    pub paused_at: Option<i64>,
    /// `None`: it is disabled, paused or over.
    pub next_due_at: Option<i64>,
    pub version: i64,
    pub created_at: i64,
    pub updated_at: i64,
    pub updated_by: Principal,
}

/// Creates, changes or removes a schedule.
#[derive(Clone)]
pub enum SaveSchedule {
    /// Over the API; the name must be free.
    Create(Box<ScheduleRecord>),
    /// Over the API: replaces the settings. `if_match`: the expected current version.
    Update {
        record: Box<ScheduleRecord>,
        if_match: Option<i64>,
    },
    /// Begins or ends a pause, also of a schedule of the config file.
    Pause {
        id: ScheduleId,
        workspace: WorkspaceId,
        paused_at: Option<i64>,
        by: Principal,
        at: i64,
    },
    /// Over the API, with its occurrences.
    Delete {
        id: ScheduleId,
        workspace: WorkspaceId,
        if_match: Option<i64>,
    },
    /// From the config file: found by name, changed only if different.
    Configure(Box<ScheduleRecord>),
    /// Disables schedules missing from the config file. From then on they belong to the API.
    DisableUnnamed {
        workspace: WorkspaceId,
        names: Vec<String>,
        at: i64,
    },
}

/// Result of [`SaveSchedule`].
#[derive(Clone, Debug, PartialEq)]
pub enum SavedSchedule {
    Saved(Box<ScheduleRecord>),
    Done,
    Unknown,
    /// The config file owns it.
    ReadOnly,
    /// The current version differs.
    Mismatch(i64),
    /// The workspace has [`MAX_SCHEDULES`].
    Full,
}

impl Mutation for SaveSchedule {
    type Output = SavedSchedule;
    const SAVEPOINT: bool = true;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<SavedSchedule, StoreError> {
        match self {
            Self::Create(record) => create(tx, record).await,
            Self::Update { record, if_match } => update(tx, record, *if_match).await,
            Self::Pause {
                id,
                workspace,
                paused_at,
                by,
                at,
            } => {
                let Some(before) = locked(tx, workspace, *id).await? else {
                    return Ok(SavedSchedule::Unknown);
                };
                if before.paused_at.is_some() == paused_at.is_some() {
                    return Ok(SavedSchedule::Saved(Box::new(before)));
                }
                let mut record = ScheduleRecord {
                    paused_at: *paused_at,
                    version: before.version + 1,
                    updated_at: *at,
                    updated_by: by.clone(),
                    ..before
                };
                record.next_due_at = record.due_after(*at);
                saved(tx, record).await
            }
            Self::Delete {
                id,
                workspace,
                if_match,
            } => {
                if let Err(refused) = owned(tx, workspace, *id, *if_match).await? {
                    return Ok(refused);
                }
                let id = id.to_string();
                // At most the newest hundred, and those that are pending.
                let occurrences = "DELETE FROM schedule_occurrences WHERE owner_id = $1".to_owned();
                tx.execute_sql(occurrences, vec![id.as_str().into()])
                    .await?;
                let row = "DELETE FROM schedules WHERE id = $1".to_owned();
                tx.execute_sql(row, vec![id.into()]).await?;
                Ok(SavedSchedule::Done)
            }
            Self::Configure(record) => configure(tx, record).await,
            Self::DisableUnnamed {
                workspace,
                names,
                at,
            } => disable_unnamed(tx, workspace, names, *at).await,
        }
    }

    // A repeated creation would find its own name taken.
    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &SavedSchedule,
    ) -> Result<bool, StoreError> {
        let (Self::Create(_), SavedSchedule::Saved(record)) = (self, output) else {
            return Ok(false);
        };
        let sql = "SELECT id FROM schedules WHERE id = $1".to_owned();
        let found = tx
            .query_sql(sql, vec![record.id.to_string().into()])
            .await?;
        Ok(!found.is_empty())
    }
}

async fn create(
    tx: &DatabaseTransaction,
    record: &ScheduleRecord,
) -> Result<SavedSchedule, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) AS n FROM schedules WHERE workspace_id = $1";
    let own = vec![record.workspace.as_str().into()];
    // Requests at the same time can exceed the limit by one each.
    let count = tx.query_sql(sql.to_owned(), own).await?;
    let count = count.first().map_or(Ok(0), |row| row.number("n"))?;
    if count >= signed(MAX_SCHEDULES) {
        return Ok(SavedSchedule::Full);
    }
    insert(tx, record).await?;
    saved(tx, record.clone()).await
}

async fn update(
    tx: &DatabaseTransaction,
    record: &ScheduleRecord,
    if_match: Option<i64>,
) -> Result<SavedSchedule, StoreError> {
    let before = match owned(tx, &record.workspace, record.id, if_match).await? {
        Ok(before) => before,
        Err(refused) => return Ok(refused),
    };
    saved(tx, record.after(&before)).await
}

async fn configure(
    tx: &DatabaseTransaction,
    record: &ScheduleRecord,
) -> Result<SavedSchedule, StoreError> {
    let sql = format!(
        "SELECT {} FROM schedules WHERE workspace_id = $1 AND name = $2 {}",
        COLUMNS.selected(),
        row_lock(tx)
    );
    let values = vec![
        record.workspace.as_str().into(),
        record.spec.name.as_str().into(),
    ];
    let found = tx.query_sql(sql, values).await?;
    let Some(before) = found.first().map(read_schedule).transpose()? else {
        insert(tx, record).await?;
        return saved(tx, record.clone()).await;
    };
    // Every start configures again: an unchanged schedule keeps its next due time, which may have passed.
    let is_same = before.origin == record.origin
        && before.spec == record.spec
        && before.agent == record.agent;
    if is_same {
        return Ok(SavedSchedule::Saved(Box::new(before)));
    }
    saved(tx, record.after(&before)).await
}

async fn disable_unnamed(
    tx: &DatabaseTransaction,
    workspace: &WorkspaceId,
    names: &[String],
    at: i64,
) -> Result<SavedSchedule, StoreError> {
    let sql = format!(
        "SELECT {} FROM schedules WHERE workspace_id = $1 AND origin = $2 ORDER BY id {}",
        COLUMNS.selected(),
        row_lock(tx)
    );
    let values = vec![workspace.as_str().into(), ORIGIN_CONFIG.into()];
    for row in tx.query_sql(sql, values).await? {
        let mut record = read_schedule(&row)?;
        // Its occurrences and its pause stay: the file may have it again.
        if !names.contains(&record.spec.name) {
            ORIGIN_API.clone_into(&mut record.origin);
            record.spec.enabled = false;
            record.next_due_at = None;
            record.version += 1;
            record.updated_at = at;
            saved(tx, record).await?;
        }
    }
    Ok(SavedSchedule::Done)
}

impl ScheduleRecord {
    /// Its due times. `None`: a newer gateway wrote it, or its time zone is gone.
    pub fn recurrence(&self) -> Option<Recurrence> {
        Recurrence::of(&self.spec, self.created_at.div_euclid(1000)).ok()
    }

    /// Next due time after this time, in epoch milliseconds. `None`: it is disabled, paused or over.
    pub fn due_after(&self, time: i64) -> Option<i64> {
        // Paused and disabled ones have no due time, so that none is a misfire later.
        let is_active = self.spec.enabled && self.paused_at.is_none();
        let recurrence = self.recurrence().filter(|_| is_active)?;
        let next = recurrence.next_after(time.div_euclid(1000))?;
        Some(next * 1000)
    }

    /// These settings as the next version of a stored schedule, which may be paused.
    fn after(&self, before: &Self) -> Self {
        let mut next = Self {
            id: before.id,
            paused_at: before.paused_at,
            version: before.version + 1,
            created_at: before.created_at,
            ..self.clone()
        };
        next.next_due_at = next.due_after(next.updated_at);
        next
    }
}

// Locked, so that a replica moves the due time on before the change or not at all.
async fn locked(
    tx: &DatabaseTransaction,
    workspace: &WorkspaceId,
    id: ScheduleId,
) -> Result<Option<ScheduleRecord>, StoreError> {
    let sql = format!(
        "SELECT {} FROM schedules WHERE id = $1 AND workspace_id = $2 {}",
        COLUMNS.selected(),
        row_lock(tx)
    );
    let values = vec![id.to_string().into(), workspace.as_str().into()];
    let found = tx.query_sql(sql, values).await?;
    found.first().map(read_schedule).transpose()
}

/// The locked schedule, if the API may change it.
async fn owned(
    tx: &DatabaseTransaction,
    workspace: &WorkspaceId,
    id: ScheduleId,
    if_match: Option<i64>,
) -> Result<Result<ScheduleRecord, SavedSchedule>, StoreError> {
    let Some(record) = locked(tx, workspace, id).await? else {
        return Ok(Err(SavedSchedule::Unknown));
    };
    Ok(if record.origin == ORIGIN_CONFIG {
        Err(SavedSchedule::ReadOnly)
    } else if if_match.is_some_and(|version| version != record.version) {
        Err(SavedSchedule::Mismatch(record.version))
    } else {
        Ok(record)
    })
}

async fn insert(tx: &DatabaseTransaction, record: &ScheduleRecord) -> Result<(), StoreError> {
    let sql = "INSERT INTO schedules (id, workspace_id, name, origin, enabled, spec, occurrences, version, created_at, \
               updated_at, updated_by) VALUES ($1, $2, $3, '', FALSE, '', 0, 0, $4, 0, '')";
    let values = vec![
        record.id.to_string().into(),
        record.workspace.as_str().into(),
        record.spec.name.as_str().into(),
        record.created_at.into(),
    ];
    tx.execute_sql(sql.to_owned(), values).await
}

/// Writes the settings of a stored schedule.
async fn saved(
    tx: &DatabaseTransaction,
    record: ScheduleRecord,
) -> Result<SavedSchedule, StoreError> {
    let sql = "UPDATE schedules SET name = $2, origin = $3, enabled = $4, spec = $5, agent_id = $6, paused_at = $7, \
               next_due_at = $8, version = $9, updated_at = $10, updated_by = $11 WHERE id = $1";
    let values: Vec<Value> = vec![
        record.id.to_string().into(),
        record.spec.name.as_str().into(),
        record.origin.as_str().into(),
        record.spec.enabled.into(),
        serde_json::to_string(&record.spec)
            .unwrap_or_default()
            .into(),
        record.agent.map(|agent| agent.to_string()).into(),
        record.paused_at.into(),
        record.next_due_at.into(),
        record.version.into(),
        record.updated_at.into(),
        record.updated_by.stored().into(),
    ];
    tx.execute_sql(sql.to_owned(), values).await?;
    Ok(SavedSchedule::Saved(Box::new(record)))
}

const COLUMNS: Columns = Columns {
    variable: &[
        "id",
        "workspace_id",
        "origin",
        "spec",
        "agent_id",
        "updated_by",
    ],
    fixed: &[
        "paused_at",
        "next_due_at",
        "version",
        "created_at",
        "updated_at",
    ],
};

fn read_schedule(row: &SqlRow) -> Result<ScheduleRecord, StoreError> {
    let id = row.text("id")?;
    let agent = row.text_if_any("agent_id")?;
    let updated_by = row.text("updated_by")?;
    let updated_by = principal_if_any("schedules.updated_by", &id, Some(&updated_by))?;
    Ok(ScheduleRecord {
        id: parsed("schedules.id", &id, &id)?,
        workspace: WorkspaceId(row.text("workspace_id")?),
        origin: row.text("origin")?,
        spec: parsed_json("schedules.spec", &id, &row.text("spec")?)?,
        agent: agent
            .map(|agent| parsed("schedules.agent_id", &id, &agent))
            .transpose()?,
        paused_at: row.number_if_any("paused_at")?,
        next_due_at: row.number_if_any("next_due_at")?,
        version: row.number("version")?,
        created_at: row.number("created_at")?,
        updated_at: row.number("updated_at")?,
        updated_by: updated_by.ok_or_else(|| StoreError::Corrupt {
            column: "schedules.updated_by",
            row: id.clone(),
        })?,
    })
}

impl AgentRepository<'_> {
    /// Schedules of the workspace by name, after `after`.
    pub async fn list_schedules(
        self,
        workspace: &WorkspaceId,
        after: Option<&str>,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<ListPage<ScheduleRecord>, StoreError> {
        let own = "workspace_id = $1";
        let page = TextPage {
            columns: COLUMNS,
            from: "schedules",
            owner: own,
            owner_values: vec![workspace.as_str().into()],
            key: ("id", "id"),
        };
        let mut values = page.owner_values.clone();
        values.push(after.unwrap_or_default().into());
        let rest = "name > $2 ORDER BY name";
        let page = page.read(&self.db.readers, rest, values, bound.into());
        page.await?.try_map(|row| read_schedule(&row))
    }

    /// A schedule of the workspace.
    pub async fn find_schedule(
        self,
        workspace: &WorkspaceId,
        id: ScheduleId,
    ) -> Result<Option<ScheduleRecord>, StoreError> {
        let sql = format!(
            "SELECT {} FROM schedules WHERE id = $1 AND workspace_id = $2",
            COLUMNS.selected()
        );
        let values = vec![id.to_string().into(), workspace.as_str().into()];
        let found = self.db.readers.query_sql(sql, values).await?;
        found.first().map(read_schedule).transpose()
    }

    /// True if the config file of an earlier start, or of another replica, has a schedule of the workspace.
    pub async fn has_configured_schedules(
        self,
        workspace: &WorkspaceId,
    ) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM schedules WHERE workspace_id = $1 AND origin = $2 LIMIT 1";
        let values = vec![workspace.as_str().into(), ORIGIN_CONFIG.into()];
        let found = self.db.readers.query_sql(sql.to_owned(), values).await?;
        Ok(!found.is_empty())
    }
}
