//! Agent queries.

use std::collections::HashMap;

use protocol::admin::AgentSpec;
use protocol::id::{AgentId, RunnerId, WorkspaceId};
use protocol::principal::PrincipalKind;
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect};

use super::{ORIGIN_CONFIG, agent_record, columns, is_unchanged};
use crate::capacity::live_runs_by;
use crate::entity::agents;
use crate::error::{StoreError, parsed};
use crate::model::registry::AgentRecord;
use crate::page::{ListPage, PageBound, PageOf};
use crate::repositories::AgentRepository;

impl AgentRepository<'_> {
    pub async fn find_agent(
        self,
        workspace: &WorkspaceId,
        id: AgentId,
    ) -> Result<Option<AgentRecord>, StoreError> {
        let row = agents::Entity::find_by_id(id.to_string())
            .filter(agents::Column::WorkspaceId.eq(workspace.as_str()))
            .one(&self.db.readers)
            .await?;
        row.map(agent_record).transpose()
    }

    /// Id of the agent of the workspace with this id, or else this name.
    pub async fn find_agent_id(
        self,
        workspace: &WorkspaceId,
        named: &str,
    ) -> Result<Option<AgentId>, StoreError> {
        let column = match named.parse::<AgentId>() {
            // An agent may have another agent's id as its name: the id wins.
            Ok(id) if self.find_agent(workspace, id).await?.is_some() => return Ok(Some(id)),
            _ => agents::Column::Name.eq(named),
        };
        let id: Option<String> = agents::Entity::find()
            .select_only()
            .column(agents::Column::Id)
            .filter(agents::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(column)
            .into_tuple()
            .one(&self.db.readers)
            .await?;
        id.map(|id| parsed("agents.id", &id, &id)).transpose()
    }

    /// Agents of the workspace by name, after `after`.
    pub async fn list_agents(
        self,
        workspace: &WorkspaceId,
        after: Option<&str>,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<ListPage<AgentRecord>, StoreError> {
        let own = agents::Column::WorkspaceId.eq(workspace.as_str());
        let page = PageOf {
            rows: agents::Entity::find()
                .filter(own.clone())
                .filter(agents::Column::Name.gt(after.unwrap_or_default()))
                .order_by_asc(agents::Column::Name),
            key: agents::Column::Id,
            owner: own.into(),
            without: None,
        };
        let found = page.read::<String>(&self.db.readers, bound.into()).await?;
        found.try_map(agent_record)
    }

    /// Enabled agents of a workspace with limits of their own, by name.
    pub async fn limited_agents(
        self,
        workspace: &WorkspaceId,
    ) -> Result<Vec<AgentRecord>, StoreError> {
        let rows = agents::Entity::find()
            .filter(agents::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(agents::Column::Enabled.eq(true))
            .order_by_asc(agents::Column::Name)
            .all(&self.db.readers)
            .await?;
        let agents = rows.into_iter().map(agent_record);
        // In memory: limits are part of the specification, which is text.
        let limited = agents.filter(|agent| {
            let agent = agent.as_ref();
            agent.map_or(true, |agent| agent.spec.limits.is_some())
        });
        limited.collect()
    }

    /// Live runs of a workspace by their agents, as ids.
    pub async fn count_live_runs_by_agent(
        self,
        workspace: &WorkspaceId,
    ) -> Result<HashMap<String, u64>, StoreError> {
        live_runs_by(&self.db.readers, workspace, "agent_id").await
    }

    /// Enabled agents of the config file other than `names`, by name.
    pub async fn other_configured_agents(
        self,
        workspace: &WorkspaceId,
        names: &[String],
    ) -> Result<Vec<String>, StoreError> {
        let beside = agents::Entity::find()
            .select_only()
            .column(agents::Column::Name)
            .filter(agents::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(agents::Column::Origin.eq(ORIGIN_CONFIG))
            .filter(agents::Column::Enabled.eq(true))
            .filter(agents::Column::Name.is_not_in(names))
            .order_by_asc(agents::Column::Name);
        Ok(beside.into_tuple().all(&self.db.readers).await?)
    }

    /// Enabled agents with these names that were created over the API.
    pub async fn agents_from_api(
        self,
        workspace: &WorkspaceId,
        names: &[String],
    ) -> Result<Vec<String>, StoreError> {
        let made = agents::Entity::find()
            .select_only()
            .column(agents::Column::Name)
            .filter(agents::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(agents::Column::Origin.ne(ORIGIN_CONFIG))
            .filter(agents::Column::Enabled.eq(true))
            .filter(agents::Column::Name.is_in(names))
            .order_by_asc(agents::Column::Name);
        Ok(made.into_tuple().all(&self.db.readers).await?)
    }

    /// True when an earlier start stored the same agent from the config file.
    pub async fn is_configured(
        self,
        workspace: &WorkspaceId,
        spec: &AgentSpec,
    ) -> Result<bool, StoreError> {
        let row = agents::Entity::find()
            .filter(agents::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(agents::Column::Name.eq(spec.name.as_str()))
            .one(&self.db.readers)
            .await?;
        Ok(row.is_some_and(|row| {
            is_unchanged(&row, &columns(spec, &[], &PrincipalKind::Config.into()))
        }))
    }

    /// Agents bound to one of these runners, by name.
    pub async fn agents_of_runners(
        self,
        workspace: &WorkspaceId,
        runners: &[RunnerId],
        limit: u64,
    ) -> Result<Vec<AgentRecord>, StoreError> {
        let rows = agents::Entity::find()
            .filter(agents::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(agents::Column::RunnerId.is_in(runners.iter().map(ToString::to_string)))
            .order_by_asc(agents::Column::Name)
            .limit(limit)
            .all(&self.db.readers)
            .await?;
        rows.into_iter().map(agent_record).collect()
    }
}
