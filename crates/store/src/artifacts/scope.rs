//! Who has had an event, and with it what came with the event.

use domain::run::Run;
use sea_orm::sea_query::{Expr, ExprTrait, Query};
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QuerySelect};

use crate::connect::Store;
use crate::entity::{runs, steering_items};
use crate::error::StoreError;
use crate::steering::PULLED;

impl Store {
    /// Whether a run, or one of its runner in its conversation, was made for an event or has pulled it.
    pub async fn has_had_event(&self, run: &Run, event_id: &str) -> Result<bool, StoreError> {
        let Some(key) = &run.conversation_key else {
            return Ok(run.event_id == event_id);
        };
        let pulled = Query::select()
            .column(steering_items::Column::RunId)
            .from(steering_items::Entity)
            .and_where(Expr::col(steering_items::Column::EventId).eq(event_id))
            .and_where(Expr::col(steering_items::Column::Status).eq(PULLED))
            .to_owned();
        let found: Option<String> = runs::Entity::find()
            .select_only()
            .column(runs::Column::Id)
            .filter(runs::Column::WorkspaceId.eq(run.workspace.as_str()))
            .filter(runs::Column::ConversationKey.eq(key.as_str()))
            .filter(runs::Column::RunnerId.eq(run.runner_id.to_string()))
            .filter(
                runs::Column::EventId
                    .eq(event_id)
                    .or(runs::Column::Id.in_subquery(pulled)),
            )
            .limit(1)
            .into_tuple()
            .one(&self.readers)
            .await?;
        Ok(found.is_some())
    }
}
