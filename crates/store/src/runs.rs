//! Runs: finding, listing, counting.

use std::time::Duration;

use domain::run::Run;
use domain::trace::TraceParent;
use protocol::id::{EndpointId, RunId, RunnerId, WorkspaceId};
use protocol::raw::RawJson;
use protocol::run::RunStatus;
use sea_orm::sea_query::{Alias, Expr, Func, Query};
use sea_orm::{
    ColumnTrait, Condition, ConnectionTrait, EntityTrait, ExprTrait, Order, QueryFilter,
    QueryOrder, QuerySelect, QueryTrait,
};

use crate::connect::Store;
use crate::conversation::{ConversationsOf, of_conversations};
use crate::database_clock::ago;
use crate::entity::{events, runs, transcript_items};
use crate::error::{StoreError, parsed, unsigned};
use crate::new_run::frozen_in;
use crate::page::{Budget, Found, PageBound, PageOf};
use crate::sql::{Row, Sql, padded};

/// Which runs a list shows.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    pub statuses: Vec<RunStatus>,
    pub agent_id: Option<protocol::id::AgentId>,
    pub runner_id: Option<RunnerId>,
    pub conversations: Option<ConversationsOf>,
    /// One conversation, by its key.
    pub conversation_key: Option<String>,
}

/// Which part of a list of runs, and which way.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunWindow<'a> {
    /// Only runs older than this one.
    pub before: Option<RunPosition>,
    /// Only runs newer than this one.
    pub after: Option<RunPosition>,
    /// Oldest first; else newest first.
    pub forward: bool,
    pub limit: u64,
    /// What the rows of a page may have together; the first one comes however large it is.
    pub bytes: usize,
    pub budget: Budget<'a>,
}

/// The place of a run in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPosition {
    pub created_at: i64,
    pub run_id: RunId,
}

/// What a run is made from.
#[derive(Clone, Debug)]
pub struct RunInputs {
    /// The frozen agent specification, as JSON.
    pub agent_spec: String,
    /// The authorization snapshot, as JSON.
    pub snapshot: String,
    /// The envelope, as JSON.
    pub envelope: String,
    pub event_seq: Option<i64>,
    /// When the event arrived, in epoch milliseconds.
    pub arrived_at: i64,
    /// The newest place of the transcript, the event's own message apart; 0 for none.
    pub transcript_before: i64,
}

/// How far runs are counted: a count costs as much as it counts.
const COUNTED: u64 = 1000;

impl Store {
    /// A run of the workspace.
    pub async fn find_run(
        &self,
        workspace: &WorkspaceId,
        id: RunId,
    ) -> Result<Option<Run>, StoreError> {
        find(&self.readers, workspace, id).await
    }

    /// A run of any workspace: for callers that have checked, or will compare, whose it is.
    pub async fn find_run_anywhere(&self, id: RunId) -> Result<Option<Run>, StoreError> {
        let model = runs::Entity::find_by_id(id.to_string())
            .one(&self.readers)
            .await?;
        model.map(to_domain).transpose()
    }

    /// Runs of the workspace within a window.
    pub async fn list_runs(
        &self,
        workspace: &WorkspaceId,
        filter: &RunFilter,
        window: &RunWindow<'_>,
    ) -> Result<Found<Run>, StoreError> {
        let mut query = runs::Entity::find().filter(of(workspace, filter));
        if let Some(RunPosition { created_at, run_id }) = window.before {
            let same = runs::Column::CreatedAt.eq(created_at);
            let same = same.and(runs::Column::Id.lt(run_id.to_string()));
            query = query.filter(runs::Column::CreatedAt.lt(created_at).or(same));
        }
        if let Some(RunPosition { created_at, run_id }) = window.after {
            let same = runs::Column::CreatedAt.eq(created_at);
            let same = same.and(runs::Column::Id.gt(run_id.to_string()));
            query = query.filter(runs::Column::CreatedAt.gt(created_at).or(same));
        }
        let order = if window.forward {
            Order::Asc
        } else {
            Order::Desc
        };
        let page = PageOf {
            rows: query
                .order_by(runs::Column::CreatedAt, order.clone())
                .order_by(runs::Column::Id, order),
            key: runs::Column::Id,
            owner: Condition::all(),
            without: None,
        };
        let bound = PageBound {
            limit: window.limit,
            bytes: window.bytes,
            budget: window.budget,
        };
        let found = page.read::<String>(&self.readers, bound).await?;
        found.try_map(to_domain)
    }

    /// How many runs of the workspace there are; `None`: more than 1000.
    pub async fn count_runs(
        &self,
        workspace: &WorkspaceId,
        filter: &RunFilter,
    ) -> Result<Option<u64>, StoreError> {
        let some = runs::Entity::find()
            .select_only()
            .column(runs::Column::Id)
            .filter(of(workspace, filter))
            .limit(COUNTED + 1)
            .into_query();
        let count = Func::count(Expr::cust("*")).cast_as(Alias::new("bigint"));
        let counting = Query::select()
            .expr_as(count, Alias::new("n"))
            .from_subquery(some, Alias::new("some_runs"))
            .to_owned();
        let row = self.readers.query_one(&counting).await?;
        let n: i64 = row.map_or(Ok(0), |row| row.try_get("", "n"))?;
        Ok(u64::try_from(n).ok().filter(|n| *n <= COUNTED))
    }

    /// What a run is made from, read again when it is dispatched.
    pub async fn find_run_inputs(&self, run: &Run) -> Result<Option<RunInputs>, StoreError> {
        let frozen = self.find_frozen(run.id).await?;
        let event = events::Entity::find_by_id((run.workspace.to_string(), run.event_id.clone()))
            .one(&self.readers)
            .await?;
        let Some((frozen, event)) = frozen.zip(event) else {
            return Ok(None);
        };
        let transcript_before = match &run.conversation_key {
            None => 0,
            Some(key) => self.transcript_before(&run.event_id, key).await?,
        };
        Ok(Some(RunInputs {
            agent_spec: frozen.text("agent_spec")?,
            snapshot: frozen.text("snapshot")?,
            envelope: event.envelope,
            event_seq: event.event_seq,
            arrived_at: event.received_at,
            transcript_before,
        }))
    }

    /// The authorization snapshot of a run, as JSON.
    pub async fn find_snapshot(&self, id: RunId) -> Result<Option<String>, StoreError> {
        let frozen = self.find_frozen(id).await?;
        frozen.map(|frozen| frozen.text("snapshot")).transpose()
    }

    async fn find_frozen(&self, id: RunId) -> Result<Option<Row>, StoreError> {
        let (table, key) = frozen_in(self.readers.backend());
        let sql = format!("SELECT agent_spec, snapshot FROM {table} WHERE {key} = $1");
        let found = self.readers.query_sql(sql, vec![id.to_string().into()]);
        Ok(found.await?.pop())
    }

    /// The newest place of the conversation, the run's own message apart.
    async fn transcript_before(&self, event_id: &str, key: &str) -> Result<i64, StoreError> {
        let newest: Option<i64> = transcript_items::Entity::find()
            .select_only()
            .column(transcript_items::Column::Seq)
            .filter(transcript_items::Column::ConversationKey.eq(key))
            .filter(transcript_items::Column::EventId.ne(event_id))
            .order_by_desc(transcript_items::Column::Seq)
            .into_tuple()
            .one(&self.readers)
            .await?;
        Ok(newest.unwrap_or(0))
    }

    /// Runs that have waited for a dispatch since `age` ago, oldest first; all of them for `None`.
    pub async fn created_runs(
        &self,
        age: Option<Duration>,
        limit: u64,
    ) -> Result<Vec<Run>, StoreError> {
        let backend = self.readers.get_database_backend();
        let created = Expr::col(runs::Column::CreatedAt);
        let is_old = age.map(|age| created.lte(ago(backend, age)));
        let models = runs::Entity::find()
            .filter(runs::Column::FinishedAt.is_null())
            .filter(runs::Column::Status.eq(RunStatus::Created.as_str()))
            .filter(Condition::all().add_option(is_old))
            .order_by_asc(runs::Column::CreatedAt)
            .limit(limit)
            .all(&self.readers)
            .await?;
        Ok(readable(models))
    }

    /// Runs that have waited behind others for longer than `patience`, by the database's clock.
    pub async fn overdue_runs(
        &self,
        patience: Duration,
        limit: u64,
    ) -> Result<Vec<Run>, StoreError> {
        let backend = self.readers.get_database_backend();
        let created = Expr::col(runs::Column::CreatedAt);
        let models = runs::Entity::find()
            .filter(runs::Column::FinishedAt.is_null())
            .filter(runs::Column::Status.eq(RunStatus::Queued.as_str()))
            .filter(created.lt(ago(backend, patience)))
            .order_by_asc(runs::Column::CreatedAt)
            .limit(limit)
            .all(&self.readers)
            .await?;
        Ok(readable(models))
    }
}

/// The runs that a filter lets through.
fn of(workspace: &WorkspaceId, filter: &RunFilter) -> Condition {
    let own = of_conversations(
        runs::Column::ConversationKey,
        workspace,
        filter.conversations.as_ref(),
        filter.conversation_key.as_deref(),
    );
    let mut all = own.unwrap_or_else(|| runs::Column::WorkspaceId.eq(workspace.as_str()).into());
    if !filter.statuses.is_empty() {
        let names = filter.statuses.iter().map(|status| status.as_str());
        all = all.add(runs::Column::Status.is_in(padded(names)));
        // There is an index of those alone.
        if filter.statuses.iter().all(|status| !status.is_terminal()) {
            all = all.add(runs::Column::FinishedAt.is_null());
        }
    }
    if let Some(agent) = filter.agent_id {
        all = all.add(runs::Column::AgentId.eq(agent.to_string()));
    }
    if let Some(runner) = &filter.runner_id {
        all = all.add(runs::Column::RunnerId.eq(runner.to_string()));
    }
    all
}

pub(crate) async fn find(
    conn: &impl ConnectionTrait,
    workspace: &WorkspaceId,
    id: RunId,
) -> Result<Option<Run>, StoreError> {
    let model = runs::Entity::find_by_id(id.to_string())
        .filter(runs::Column::WorkspaceId.eq(workspace.as_str()))
        .one(conn)
        .await?;
    model.map(to_domain).transpose()
}

/// What can be read of a batch: one corrupt row does not stop the sweep of the others.
pub(crate) fn readable(models: Vec<runs::Model>) -> Vec<Run> {
    let read = |model: runs::Model| match to_domain(model) {
        Ok(run) => Some(run),
        Err(error) => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "a run is left out"
            );
            None
        }
    };
    models.into_iter().filter_map(read).collect()
}

pub(crate) fn to_domain(model: runs::Model) -> Result<Run, StoreError> {
    let row = model.id.as_str();
    let corrupt = |column| StoreError::Corrupt {
        column,
        row: row.to_owned(),
    };
    let json = |column, text: String| RawJson::parse(text).map_err(|_| corrupt(column));
    let json_if_any =
        |column, text: Option<String>| text.map(|text| json(column, text)).transpose();
    Ok(Run {
        id: parsed("runs.id", row, &model.id)?,
        workspace: WorkspaceId(model.workspace_id.clone()),
        agent_id: parsed("runs.agent_id", row, &model.agent_id)?,
        agent_version: model.agent_version,
        runner_id: parsed("runs.runner_id", row, &model.runner_id)?,
        endpoint_id: parsed::<EndpointId>("runs.endpoint_id", row, &model.endpoint_id)?,
        status: RunStatus::parse(&model.status).ok_or_else(|| corrupt("runs.status"))?,
        attempt: u32::try_from(model.attempt).map_err(|_| corrupt("runs.attempt"))?,
        last_sequence: unsigned("runs.last_sequence", row, model.last_sequence)?,
        output: json_if_any("runs.output", model.output)?,
        error: json_if_any("runs.error", model.error)?,
        usage: json_if_any("runs.usage", model.usage)?,
        metadata: json("runs.metadata", model.metadata)?,
        event_id: model.event_id,
        trace_parent: model.trace_parent.as_deref().and_then(TraceParent::parse),
        conversation_key: model.conversation_key,
        status_reason: model.status_reason,
        lease_epoch: model.lease_epoch,
        deadline_at: model.deadline_at,
        cancel_requested_at: model.cancel_requested_at,
        snapshot_sha256: model.snapshot_sha256,
        created_at: model.created_at,
        started_at: model.started_at,
        finished_at: model.finished_at,
        pruned_at: model.pruned_at,
    })
}
