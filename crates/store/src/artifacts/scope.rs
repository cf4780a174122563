//! Access to the artifacts of an event through its runs.

use domain::run::Run;
use sea_orm::sea_query::{Expr, ExprTrait, Query};
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QuerySelect};

use crate::entity::{runs, steering_items};
use crate::error::StoreError;
use crate::repositories::ArtifactRepository;
use crate::steering::PULLED;

/// Scope of runs in a conversation that share the artifacts of their events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharers {
    /// All runs of one runner.
    Runner,
    /// All runs of one agent.
    Agent,
}

impl ArtifactRepository<'_> {
    /// True when the run was created for the event or has pulled it. Other runs in the sharing scope of its
    /// conversation count, too.
    pub async fn has_had_event(
        self,
        run: &Run,
        event_id: &str,
        sharers: Sharers,
    ) -> Result<bool, StoreError> {
        let Some(key) = &run.conversation_key else {
            return Ok(run.event_id == event_id);
        };
        // A subquery per run: a list of the event's pulls would search all workspaces.
        let of_run = (steering_items::Entity, steering_items::Column::RunId);
        let pulled = Query::select()
            .expr(Expr::val(1))
            .from(steering_items::Entity)
            .and_where(Expr::col(of_run).equals((runs::Entity, runs::Column::Id)))
            .and_where(Expr::col(steering_items::Column::EventId).eq(event_id))
            .and_where(Expr::col(steering_items::Column::Status).eq(PULLED))
            .to_owned();
        let found: Option<String> = runs::Entity::find()
            .select_only()
            .column(runs::Column::Id)
            .filter(runs::Column::WorkspaceId.eq(run.workspace.as_str()))
            .filter(runs::Column::ConversationKey.eq(key.as_str()))
            .filter(match sharers {
                Sharers::Runner => runs::Column::RunnerId.eq(run.runner_id.to_string()),
                Sharers::Agent => runs::Column::AgentId.eq(run.agent_id.to_string()),
            })
            .filter(runs::Column::EventId.eq(event_id).or(Expr::exists(pulled)))
            .limit(1)
            .into_tuple()
            .one(&self.db.readers)
            .await?;
        Ok(found.is_some())
    }
}
