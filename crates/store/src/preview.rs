//! Decision inputs of a dry run, read without locks; nothing is written.

use std::sync::Arc;

use domain::event::ConversationIdentity;
use protocol::id::WorkspaceId;
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder};

use crate::agent_skills::skills_of_workspace;
use crate::agents::agent_record;
use crate::capacity::{count_live, limits_of};
use crate::conversation::live_runs;
use crate::entity::{agents, conversations};
use crate::error::StoreError;
use crate::generations::ConversationGenerations;
use crate::model::ingest::DecisionFacts;
use crate::new_run::{bound_runners, with_runners};
use crate::repositories::ConversationRepository;

impl ConversationRepository<'_> {
    /// Current decision inputs for an event of this conversation. The candidates are all agents of the workspace
    /// by name, with disabled ones.
    pub async fn current_facts(
        self,
        workspace: &WorkspaceId,
        conversation: Option<&ConversationIdentity>,
        max_live_runs: Option<u64>,
    ) -> Result<DecisionFacts, StoreError> {
        let all = agents::Entity::find()
            .filter(agents::Column::WorkspaceId.eq(workspace.as_str()))
            .order_by_asc(agents::Column::Name)
            .all(&self.db.readers)
            .await?
            .into_iter()
            .map(agent_record)
            .collect::<Result<_, _>>()?;
        let key = match conversation {
            None => None,
            Some(identity) => self.key_of(workspace, identity).await?,
        };
        let skills = skills_of_workspace(&self.db.readers, workspace).await?;
        let runners = bound_runners(&self.db.readers, workspace).await?;
        let candidates: Arc<[_]> = with_runners(all, skills, &runners).into();
        let limits = limits_of(&self.db.readers, workspace, max_live_runs).await?;
        let limits = limits.with_agents(&candidates);
        Ok(DecisionFacts {
            unanswerable: None,
            child_refused: None,
            candidates,
            position: None,
            generations: ConversationGenerations::default(),
            live: live_runs(&self.db.readers, key.as_deref()).await?,
            capacities: count_live(&self.db.readers, workspace, limits).await?,
        })
    }

    async fn key_of(
        self,
        workspace: &WorkspaceId,
        identity: &ConversationIdentity,
    ) -> Result<Option<String>, StoreError> {
        let row = conversations::Entity::find()
            .filter(conversations::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(conversations::Column::BotId.eq(identity.bot_id.as_str()))
            .filter(conversations::Column::ConversationId.eq(identity.conversation_id.as_str()))
            .filter(conversations::Column::ThreadId.eq(identity.thread_id.as_str()))
            .one(&self.db.readers)
            .await?;
        Ok(row.map(|row| row.key))
    }
}
