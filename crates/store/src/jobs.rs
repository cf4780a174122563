//! Jobs: acts on many runs. The runs are chosen when the job is created, in batches.
//!
//! A replica claims a job for one batch. The lease and its epoch exclude others; after a crash the next replica
//! repeats the batch, so an act must be repeatable.

use std::time::Duration;

use protocol::id::{ApiKeyId, JobId, RunId, WorkspaceId};
use protocol::job::{JobError, JobKind};
use sea_orm::{DatabaseTransaction, Value};

use crate::database_clock::{lease_end_sql, millis};
use crate::error::{StoreError, parsed, parsed_json, signed, unsigned};
use crate::mutation::Mutation;
use crate::page::ListPage;
use crate::repositories::{LeaseRepository, RetentionRepository};
use crate::sql::{Sql, SqlRow, inserted};

/// Maximum unfinished jobs of a workspace. Further ones are refused.
pub const MAX_OPEN_JOBS: u64 = 20;
/// Runs of a batch.
const BATCH: usize = 50;
/// Maximum jobs deleted per transaction.
const SWEPT: u64 = 200;

/// A job. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    pub id: JobId,
    pub workspace: WorkspaceId,
    pub kind: JobKind,
    /// The key that started it.
    pub key: ApiKeyId,
    pub reason: Option<String>,
    pub total: u64,
    pub progress: JobProgress,
    pub created_at: i64,
    pub started_at: Option<i64>,
    pub finished_at: Option<i64>,
    pub cancel_requested_at: Option<i64>,
}

/// Results of a job so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobProgress {
    pub done: u64,
    pub failed: u64,
    /// The first failures.
    pub errors: Vec<JobError>,
}

impl JobProgress {
    /// Runs with a result.
    pub fn count(&self) -> u64 {
        self.done + self.failed
    }
}

/// Stores a job with its runs. False: the workspace has [`MAX_OPEN_JOBS`] unfinished ones.
pub struct CreateJob {
    pub job: JobRecord,
    /// In the order of the act.
    pub runs: Vec<RunId>,
}

impl Mutation for CreateJob {
    type Output = bool;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let job = &self.job;
        let open = "SELECT CAST(COUNT(*) AS BIGINT) AS n FROM jobs WHERE workspace_id = $1 \
                    AND finished_at IS NULL";
        let own = vec![job.workspace.as_str().into()];
        let open = tx.query_sql(open.to_owned(), own).await?;
        let open = open.first().map_or(Ok(0), |row| row.number("n"))?;
        if open >= signed(MAX_OPEN_JOBS) {
            return Ok(false);
        }
        let insert = "INSERT INTO jobs (id, workspace_id, kind, api_key_id, reason, total, done, failed, errors, \
                      created_at, lease_epoch, lease_expires_at) \
                      VALUES ($1, $2, $3, $4, $5, $6, 0, 0, '[]', $7, 0, 0)";
        let values: Vec<Value> = vec![
            job.id.to_string().into(),
            job.workspace.as_str().into(),
            job.kind.as_str().into(),
            job.key.to_string().into(),
            job.reason.clone().into(),
            signed(job.total).into(),
            job.created_at.into(),
        ];
        tx.execute_sql(insert.to_owned(), values).await?;
        let batches = (0_i64..)
            .zip(self.runs.chunks(BATCH))
            .map(|(number, runs)| {
                let ids: Vec<_> = runs.iter().map(ToString::to_string).collect();
                [
                    job.id.to_string().into(),
                    number.into(),
                    ids.join(" ").into(),
                ]
            });
        let into = "job_batches (job_id, number, run_ids)";
        inserted(tx, into, batches.collect()).await?;
        Ok(true)
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &bool,
    ) -> Result<bool, StoreError> {
        let find = "SELECT id FROM jobs WHERE id = $1".to_owned();
        let found = tx.query_sql(find, vec![self.job.id.to_string().into()]);
        Ok(!found.await?.is_empty())
    }
}

/// Claims the job that has waited longest, for one batch.
pub struct ClaimJob {
    pub lease: Duration,
    pub at: i64,
}

/// A claimed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedJob {
    pub job: JobRecord,
    pub epoch: i64,
    /// Runs of the batch without a result; none after the last one.
    pub runs: Vec<RunId>,
}

impl Mutation for ClaimJob {
    type Output = Option<ClaimedJob>;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Option<ClaimedJob>, StoreError> {
        let now = lease_end_sql(tx.backend(), "0");
        let until = lease_end_sql(tx.backend(), "$1");
        let is_free = format!("finished_at IS NULL AND lease_expires_at <= {now}");
        let claim = format!(
            "UPDATE jobs SET lease_epoch = lease_epoch + 1, lease_expires_at = {until}, \
             started_at = COALESCE(started_at, $2) WHERE {is_free} AND id = \
             (SELECT id FROM jobs WHERE {is_free} ORDER BY lease_expires_at, id LIMIT 1) \
             RETURNING {COLUMNS}, lease_epoch"
        );
        // One statement claims, so two replicas never get the same batch.
        let values = vec![millis(self.lease).into(), self.at.into()];
        let found = tx.query_sql(claim, values).await?;
        let Some(row) = found.first() else {
            return Ok(None);
        };
        let (job, epoch) = (read_job(row)?, row.number("lease_epoch")?);
        // Batches have one size, so the number of processed runs locates the next one.
        let done = usize::try_from(job.progress.count()).unwrap_or(usize::MAX);
        let find = "SELECT run_ids FROM job_batches WHERE job_id = $1 AND number = $2";
        let number = signed((done / BATCH) as u64);
        let values = vec![job.id.to_string().into(), number.into()];
        let batch = tx.query_sql(find.to_owned(), values).await?;
        let ids = batch.first().map(|row| row.text("run_ids")).transpose()?;
        let ids = ids.unwrap_or_default();
        let id = job.id.to_string();
        let left = ids.split_whitespace().skip(done % BATCH);
        let runs = left.map(|run| parsed("job_batches.run_ids", &id, run));
        let runs = runs.collect::<Result<_, _>>()?;
        Ok(Some(ClaimedJob { job, epoch, runs }))
    }
}

/// Records the progress of a claimed job and gives the claim up. False: another replica has claimed it.
pub struct RecordJob {
    pub id: JobId,
    pub epoch: i64,
    pub progress: JobProgress,
    /// No replica claims the job before.
    pub wait: Duration,
    /// Set: the job is over.
    pub finished_at: Option<i64>,
}

impl Mutation for RecordJob {
    type Output = bool;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let update = format!(
            "UPDATE jobs SET done = $3, failed = $4, errors = $5, finished_at = $6, lease_expires_at = {} \
             WHERE id = $1 AND lease_epoch = $2 AND finished_at IS NULL RETURNING id",
            lease_end_sql(tx.backend(), "$7")
        );
        let errors = serde_json::to_string(&self.progress.errors).unwrap_or_default();
        let id = self.id.to_string();
        let values: Vec<Value> = vec![
            id.as_str().into(),
            self.epoch.into(),
            signed(self.progress.done).into(),
            signed(self.progress.failed).into(),
            errors.into(),
            self.finished_at.into(),
            millis(self.wait).into(),
        ];
        // The epoch is another one: a replica has claimed the job after this lease expired.
        if tx.query_sql(update, values).await?.is_empty() {
            return Ok(false);
        }
        if self.finished_at.is_some() {
            // A finished job needs its progress only.
            let delete = "DELETE FROM job_batches WHERE job_id = $1".to_owned();
            tx.execute_sql(delete, vec![id.into()]).await?;
        }
        Ok(true)
    }
}

/// Requests the end of a job. Without effect on a finished one.
pub struct CancelJob {
    pub workspace: WorkspaceId,
    pub id: JobId,
    pub at: i64,
}

impl Mutation for CancelJob {
    /// `None`: there is no such job.
    type Output = Option<JobRecord>;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Option<JobRecord>, StoreError> {
        let update = format!(
            "UPDATE jobs SET cancel_requested_at = CASE WHEN finished_at IS NULL \
             THEN COALESCE(cancel_requested_at, $3) ELSE cancel_requested_at END \
             WHERE id = $1 AND workspace_id = $2 RETURNING {COLUMNS}"
        );
        let values = vec![
            self.id.to_string().into(),
            self.workspace.as_str().into(),
            self.at.into(),
        ];
        // Its workspace is a condition, so a foreign job looks like a missing one.
        let found = tx.query_sql(update, values).await?;
        found.first().map(read_job).transpose()
    }
}

/// Deletes jobs that finished long ago.
struct SweepJobs {
    before: i64,
}

impl Mutation for SweepJobs {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        // In one order, so that replicas do not deadlock.
        let sql = format!(
            "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE finished_at < $1 ORDER BY id \
             LIMIT {SWEPT}) RETURNING id"
        );
        let deleted = tx.query_sql(sql, vec![self.before.into()]).await?;
        Ok(deleted.len() as u64)
    }
}

impl RetentionRepository<'_> {
    /// Deletes a batch of jobs that finished before this time, in epoch milliseconds; returns their number.
    pub async fn sweep_jobs(self, before: i64) -> Result<u64, StoreError> {
        // Skips the writer when there is nothing to do.
        let sql = "SELECT 1 FROM jobs WHERE finished_at < $1 LIMIT 1".to_owned();
        let old = self.db.readers.query_sql(sql, vec![before.into()]).await?;
        if old.is_empty() {
            return Ok(0);
        }
        self.db.write(SweepJobs { before }).await
    }
}

impl LeaseRepository<'_> {
    /// A job of the workspace.
    pub async fn find_job(
        self,
        workspace: &WorkspaceId,
        id: JobId,
    ) -> Result<Option<JobRecord>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM jobs WHERE id = $1 AND workspace_id = $2");
        let values = vec![id.to_string().into(), workspace.as_str().into()];
        let found = self.db.readers.query_sql(sql, values).await?;
        found.first().map(read_job).transpose()
    }

    /// Jobs of the workspace, newest first, older than `before`.
    pub async fn newest_jobs(
        self,
        workspace: &WorkspaceId,
        before: Option<&str>,
        limit: u64,
    ) -> Result<ListPage<JobRecord>, StoreError> {
        let mut values: Vec<Value> = vec![workspace.as_str().into()];
        let older = before.map_or("", |before| {
            values.push(before.into());
            "AND id < $2"
        });
        // One more than the page shows whether another follows.
        let sql = format!(
            "SELECT {COLUMNS} FROM jobs WHERE workspace_id = $1 {older} ORDER BY id DESC LIMIT {}",
            limit + 1
        );
        let found = self.db.readers.query_sql(sql, values).await?;
        let items = found
            .iter()
            .take(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(ListPage {
            items: items.map(read_job).collect::<Result<_, _>>()?,
            has_more: found.len() as u64 > limit,
        })
    }

    /// True if a job is unfinished, so that a claim may find one.
    pub async fn has_open_job(self) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM jobs WHERE finished_at IS NULL LIMIT 1".to_owned();
        Ok(!self.db.readers.query_sql(sql, Vec::new()).await?.is_empty())
    }
}

const COLUMNS: &str = "id, workspace_id, kind, api_key_id, reason, total, done, failed, errors, created_at, \
     started_at, finished_at, cancel_requested_at";

fn read_job(row: &SqlRow) -> Result<JobRecord, StoreError> {
    let id = row.text("id")?;
    let count = |column, name| unsigned(column, &id, row.number(name)?);
    let kind = JobKind::parse(&row.text("kind")?).ok_or_else(|| StoreError::Corrupt {
        column: "jobs.kind",
        row: id.clone(),
    })?;
    Ok(JobRecord {
        id: parsed("jobs.id", &id, &id)?,
        workspace: WorkspaceId(row.text("workspace_id")?),
        kind,
        key: parsed("jobs.api_key_id", &id, &row.text("api_key_id")?)?,
        reason: row.text_if_any("reason")?,
        total: count("jobs.total", "total")?,
        progress: JobProgress {
            done: count("jobs.done", "done")?,
            failed: count("jobs.failed", "failed")?,
            errors: parsed_json("jobs.errors", &id, &row.text("errors")?)?,
        },
        created_at: row.number("created_at")?,
        started_at: row.number_if_any("started_at")?,
        finished_at: row.number_if_any("finished_at")?,
        cancel_requested_at: row.number_if_any("cancel_requested_at")?,
    })
}
