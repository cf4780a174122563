//! Who has had an event, and with it what came with the event.

use domain::run::Run;
use sea_orm::sea_query::{Expr, ExprTrait, Query};
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QuerySelect};

use crate::connect::Store;
use crate::entity::{runs, steering_items};
use crate::error::StoreError;
use crate::steering::PULLED;

/// Which runs of a conversation share what came with their events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharers {
    /// Those of one runner.
    Runner,
    /// Those of one agent.
    Agent,
}

impl Store {
    /// Whether a run, or one of its runner or agent in its conversation, was made for an event or has pulled it.
    pub async fn has_had_event(
        &self,
        run: &Run,
        event_id: &str,
        sharers: Sharers,
    ) -> Result<bool, StoreError> {
        let Some(key) = &run.conversation_key else {
            return Ok(run.event_id == event_id);
        };
        // Asked of each run: a list of the pulls of the event would be looked for in those of all workspaces.
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
            .one(&self.readers)
            .await?;
        Ok(found.is_some())
    }
}
