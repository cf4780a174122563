//! Uploads: begun with a reservation before the first byte, visible once finished.

use std::time::Duration;

use protocol::id::{RunId, WorkspaceId};
use sea_orm::sea_query::{Alias, Expr, Func, SimpleExpr};
use sea_orm::{
    ActiveValue::Set, ColumnTrait, Condition, ConnectionTrait, DatabaseTransaction, EntityTrait,
    ExprTrait, PaginatorTrait, QueryFilter, QuerySelect,
};
use uuid::Uuid;

use super::{ArtifactOrigin, PENDING, READY};
use crate::database_clock::{lease_end, millis, read_now};
use crate::entity::artifacts;
use crate::error::{StoreError, signed};
use crate::model::audit::AuditEntry;
use crate::mutation::Mutation;
use crate::shares::agent_of;
use crate::state::lock_live_run;

/// Reserves quota for an artifact and records the location of its bytes.
#[derive(Clone, Debug)]
pub struct BeginArtifact {
    pub id: Uuid,
    pub workspace: WorkspaceId,
    pub origin: ArtifactOrigin,
    /// The uploading run, if any.
    pub run: Option<RunId>,
    pub location: String,
    /// Maximum bytes.
    pub reserved: u64,
    /// Quota of the workspace in bytes.
    pub workspace_bytes: u64,
    pub shares: ArtifactShares,
    /// Maximum artifacts of one run.
    pub run_artifacts: u64,
    /// Timeout of the upload.
    pub timeout: Duration,
    /// Epoch milliseconds.
    pub at: i64,
}

/// Shares of the workspace quota in bytes: no single owner can use all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArtifactShares {
    pub run: u64,
    /// All runs of one agent.
    pub agent: u64,
    /// All runs together.
    pub runs: u64,
    /// Client uploads not yet bound to an event.
    pub uploads: u64,
}

/// The owner of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareOf {
    Run,
    Agent,
    Runs,
    Uploads,
}

/// Result of a begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    Begun,
    /// The workspace quota is used up.
    Full,
    /// This share of the quota is used up.
    ShareFull(ShareOf),
    /// The run has made the maximum number of artifacts.
    TooMany,
    /// The run has ended.
    RunEnded,
}

impl Mutation for BeginArtifact {
    type Output = Begun;
    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        Some(format!("artifacts {}", self.workspace))
    }

    fn order(&self) -> Uuid {
        self.run.map_or(Uuid::nil(), |run| run.0)
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Begun, StoreError> {
        if let Some(run) = self.run {
            if !lock_live_run(tx, run).await? {
                return Ok(Begun::RunEnded);
            }
            let made = artifacts::Entity::find()
                .filter(artifacts::Column::RunId.eq(run.to_string()))
                .count(tx)
                .await?;
            if made >= self.run_artifacts {
                return Ok(Begun::TooMany);
            }
        }
        let all = usage(tx, &self.workspace, Condition::all()).await?;
        if all.saturating_add(self.reserved) > self.workspace_bytes {
            return Ok(Begun::Full);
        }
        let agent = match self.run {
            Some(run) => agent_of(tx, run).await?,
            None => None,
        };
        if let Some(full) = self.full_share(tx, agent.as_deref()).await? {
            return Ok(Begun::ShareFull(full));
        }
        let row = artifacts::ActiveModel {
            id: Set(self.id.to_string()),
            workspace_id: Set(self.workspace.to_string()),
            origin: Set(self.origin.as_str().to_owned()),
            status: Set(PENDING.to_owned()),
            run_id: Set(self.run.map(|run| run.to_string())),
            agent_id: Set(agent),
            name: Set(String::new()),
            mime_type: Set(String::new()),
            // The reservation counts until the upload finishes with its actual size.
            size: Set(signed(self.reserved)),
            sha256: Set(String::new()),
            place: Set(self.location.clone()),
            created_at: Set(self.at),
            expires_at: Set(read_now(tx).await? + millis(self.timeout)),
            ..Default::default()
        };
        artifacts::Entity::insert(row)
            .exec_without_returning(tx)
            .await?;
        Ok(Begun::Begun)
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &Begun,
    ) -> Result<bool, StoreError> {
        let begun = artifacts::Entity::find_by_id(self.id.to_string());
        Ok(begun.one(tx).await?.is_some())
    }
}

impl BeginArtifact {
    /// The first share whose quota is used up.
    async fn full_share(
        &self,
        tx: &DatabaseTransaction,
        agent: Option<&str>,
    ) -> Result<Option<ShareOf>, StoreError> {
        use artifacts::Column::{AgentId, EventId, Origin, RunId};
        let mut limits = Vec::new();
        if let Some(run) = self.run {
            let of_run = RunId.eq(run.to_string());
            limits.push((ShareOf::Run, self.shares.run, of_run));
            let of_agent = agent.map(|agent| AgentId.eq(agent));
            limits.extend(of_agent.map(|agent| (ShareOf::Agent, self.shares.agent, agent)));
            // Artifacts of runs have an agent, others have none.
            limits.push((ShareOf::Runs, self.shares.runs, AgentId.is_not_null()));
        } else if self.origin == ArtifactOrigin::Client {
            // A bound upload belongs to its event: it no longer counts for the share.
            let unnamed = Origin.eq(self.origin.as_str()).and(EventId.is_null());
            limits.push((ShareOf::Uploads, self.shares.uploads, unnamed));
        }
        for (share, max_bytes, part) in limits {
            let used = usage(tx, &self.workspace, Condition::all().add(part)).await?;
            // Each owner may have one artifact regardless of its share.
            if used > 0 && used.saturating_add(self.reserved) > max_bytes {
                return Ok(Some(share));
            }
        }
        Ok(None)
    }
}

/// Bytes of a part of a workspace's artifacts, including uploads in progress.
async fn usage(
    tx: &DatabaseTransaction,
    workspace: &WorkspaceId,
    part: Condition,
) -> Result<u64, StoreError> {
    // The sum of BIGINT is NUMERIC on `PostgreSQL`.
    let size = Func::sum(Expr::col(artifacts::Column::Size));
    let total = Func::coalesce([size.into(), SimpleExpr::from(0)]);
    let total = Func::cast_as(SimpleExpr::from(total), Alias::new("BIGINT"));
    let bytes: Option<i64> = artifacts::Entity::find()
        .select_only()
        .expr_as(SimpleExpr::from(total), "bytes")
        .filter(artifacts::Column::WorkspaceId.eq(workspace.as_str()))
        .filter(part)
        .into_tuple()
        .one(tx)
        .await?;
    Ok(u64::try_from(bytes.unwrap_or(0)).unwrap_or(0))
}

/// Metadata of an artifact, known after its last byte.
#[derive(Clone, Debug)]
pub struct ArtifactFacts {
    pub runner_id: Option<String>,
    pub conversation_key: Option<String>,
    pub event_id: Option<String>,
    pub name: String,
    pub mime_type: String,
    pub size: u64,
    /// Lower-case hex.
    pub sha256: String,
}

/// Publishes an artifact with all its bytes written.
#[derive(Clone, Debug)]
pub struct FinishArtifact {
    pub id: Uuid,
    pub run: Option<RunId>,
    pub facts: ArtifactFacts,
    /// Retention time.
    pub keep: Duration,
    pub audit: Option<AuditEntry>,
}

/// Result of a finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArtifactFinished {
    /// Readable until then, in epoch milliseconds.
    Ready { expires_at: i64 },
    /// Timed out and abandoned.
    Expired,
    /// The run has ended.
    RunEnded,
}

impl Mutation for FinishArtifact {
    type Output = ArtifactFinished;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run.map_or(Uuid::nil(), |run| run.0)
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<ArtifactFinished, StoreError> {
        if let Some(run) = self.run
            && !lock_live_run(tx, run).await?
        {
            return Ok(ArtifactFinished::RunEnded);
        }
        let (facts, expires_at) = (&self.facts, read_now(tx).await? + millis(self.keep));
        let row = artifacts::ActiveModel {
            status: Set(READY.to_owned()),
            runner_id: Set(facts.runner_id.clone()),
            conversation_key: Set(facts.conversation_key.clone()),
            event_id: Set(facts.event_id.clone()),
            name: Set(facts.name.clone()),
            mime_type: Set(facts.mime_type.clone()),
            size: Set(signed(facts.size)),
            sha256: Set(facts.sha256.clone()),
            expires_at: Set(expires_at),
            ..Default::default()
        };
        let finished = artifacts::Entity::update_many()
            .set(row)
            .filter(artifacts::Column::Id.eq(self.id.to_string()))
            // Guards against the sweep, which may have claimed a slow upload.
            .filter(artifacts::Column::Status.eq(PENDING))
            .exec(tx)
            .await?;
        if finished.rows_affected == 0 {
            let row = artifacts::Entity::find_by_id(self.id.to_string());
            let row = row.one(tx).await?.filter(|row| row.status == READY);
            // An earlier try with a lost reply was committed while this one waited; no other caller finishes it.
            return Ok(
                row.map_or(ArtifactFinished::Expired, |row| ArtifactFinished::Ready {
                    expires_at: row.expires_at,
                }),
            );
        }
        crate::audit::insert(tx, &self.audit).await?;
        Ok(ArtifactFinished::Ready { expires_at })
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &ArtifactFinished,
    ) -> Result<bool, StoreError> {
        let row = artifacts::Entity::find_by_id(self.id.to_string());
        Ok(row.one(tx).await?.is_some_and(|row| row.status == READY))
    }
}

/// Abandons an artifact, begun or finished: it disappears at once, and the sweep deletes its bytes.
#[derive(Clone, Debug)]
pub struct DropArtifact {
    pub id: Uuid,
    pub audit: Option<AuditEntry>,
}

impl Mutation for DropArtifact {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        artifacts::Entity::update_many()
            .col_expr(
                artifacts::Column::ExpiresAt,
                lease_end(tx.get_database_backend(), Duration::ZERO),
            )
            .col_expr(artifacts::Column::Status, Expr::value(super::DELETING))
            // Frees its quota at once; the bytes follow.
            .col_expr(artifacts::Column::Size, Expr::value(0_i64))
            .filter(artifacts::Column::Id.eq(self.id.to_string()))
            .exec(tx)
            .await?;
        crate::audit::insert(tx, &self.audit).await
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &(),
    ) -> Result<bool, StoreError> {
        match &self.audit {
            Some(audit) => crate::audit::is_recorded(tx, audit).await,
            None => Ok(false),
        }
    }
}
