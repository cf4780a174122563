//! Skills registered by runs for later runs of their agent.

use domain::canonical::canonical_json;
use domain::skill::{AGENT_SKILLS, bytes_of};
use protocol::id::{AgentId, RunId, WorkspaceId};
use protocol::resources::SkillResource;
use protocol::skill::{NewSkill, RegisteredSkill, SkillFile};
use sea_orm::{
    ColumnTrait, DatabaseTransaction, EntityTrait, IntoActiveModel, PaginatorTrait, QueryFilter,
};
use uuid::Uuid;

use crate::advisory_key::AdvisoryKey;
use crate::entity::{agent_skills, agents};
use crate::error::{StoreError, parsed, parsed_json};
use crate::mutation::Mutation;
use crate::repositories::AgentRepository;
use crate::sql::{Sql, SqlRow, locked};
use crate::state::lock_live_run;
use secrets::digest::sha256_hex;

/// A skill with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSkillRecord {
    pub skill_name: String,
    pub description: String,
    /// Without front matter.
    pub content: String,
    /// Sorted by path.
    pub files: Vec<SkillFile>,
    pub registered: RegisteredSkill,
}

/// Registers a checked skill for later runs of the live run's agent. It replaces only a skill of the same agent
/// and name.
#[derive(Clone, Debug)]
pub struct RegisterSkill {
    pub run_id: RunId,
    pub workspace: WorkspaceId,
    pub agent_id: AgentId,
    pub skill: NewSkill,
    pub at: i64,
}

/// Result of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkillRegistered {
    /// Stored now or before: the same content under the same name is the same skill.
    Registered(RegisteredSkill),
    /// The agent has the maximum number of skills.
    Full,
    RunEnded,
    AgentGone,
}

impl Mutation for RegisterSkill {
    type Output = SkillRegistered;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn weight(&self) -> usize {
        bytes_of(&self.skill)
    }

    fn advisory_keys(&self) -> Vec<AdvisoryKey> {
        vec![AdvisoryKey::of(&self.agent_id.to_string())]
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<SkillRegistered, StoreError> {
        // First, so the run cannot end between this check and the commit.
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(SkillRegistered::RunEnded);
        }
        if !lock_agent(tx, &self.workspace, self.agent_id).await? {
            return Ok(SkillRegistered::AgentGone);
        }
        let key = (self.agent_id.to_string(), self.skill.skill_name.clone());
        let found = agent_skills::Entity::find_by_id(key).one(tx).await?;
        // The version counts on across replacements, so a client sees every change of a skill.
        let version = found.as_ref().map_or(0, |row| row.version);
        let row = self.row(version + 1);
        match found {
            // Idempotent: the same content keeps its version, so a repeated registration changes nothing.
            Some(found) if found.sha256 == row.sha256 => {
                return Ok(SkillRegistered::Registered(registered(&found)?));
            }
            Some(_) => {
                let active = row.clone().into_active_model();
                // All columns: `into_active_model` marks loaded values as unchanged, and the update would write none.
                let active = sea_orm::ActiveModelTrait::reset_all(active);
                agent_skills::Entity::update(active).exec(tx).await?;
            }
            None if self.is_full(tx).await? => return Ok(SkillRegistered::Full),
            None => {
                agent_skills::Entity::insert(row.clone().into_active_model())
                    .exec_without_returning(tx)
                    .await?;
            }
        }
        Ok(SkillRegistered::Registered(registered(&row)?))
    }
}

impl RegisterSkill {
    fn row(&self, version: i64) -> agent_skills::Model {
        let mut skill = self.skill.clone();
        skill.files.sort_by(|one, other| one.path.cmp(&other.path));
        agent_skills::Model {
            agent_id: self.agent_id.to_string(),
            workspace_id: self.workspace.to_string(),
            files: canonical_json(&skill.files),
            sha256: sha256_hex(canonical_json(&skill).as_bytes()),
            version,
            run_id: self.run_id.to_string(),
            registered_at: self.at,
            skill_name: skill.skill_name,
            description: skill.description,
            content: skill.content,
        }
    }

    async fn is_full(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let own = agent_skills::Column::AgentId.eq(self.agent_id.to_string());
        let count = agent_skills::Entity::find().filter(own).count(tx).await?;
        Ok(count >= AGENT_SKILLS)
    }
}

/// Locks the agent's row, so counts and deletes come before or after. False: no such agent.
async fn lock_agent(
    tx: &DatabaseTransaction,
    workspace: &WorkspaceId,
    agent: AgentId,
) -> Result<bool, StoreError> {
    let query = agents::Entity::find_by_id(agent.to_string())
        .filter(agents::Column::WorkspaceId.eq(workspace.as_str()));
    Ok(locked(tx, query).one(tx).await?.is_some())
}

/// Deletes a skill on behalf of an operator. False: no such skill.
#[derive(Clone, Debug)]
pub struct WithdrawSkill {
    pub workspace: WorkspaceId,
    pub agent_id: AgentId,
    pub skill_name: String,
}

impl Mutation for WithdrawSkill {
    type Output = bool;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let deleted = agent_skills::Entity::delete_many()
            .filter(agent_skills::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(agent_skills::Column::AgentId.eq(self.agent_id.to_string()))
            .filter(agent_skills::Column::SkillName.eq(self.skill_name.as_str()))
            .exec(tx)
            .await?;
        Ok(deleted.rows_affected == 1)
    }
}

/// Deletes the skills that runs registered for a deleted agent.
pub(crate) async fn delete_skills(tx: &DatabaseTransaction, agent: &str) -> Result<(), StoreError> {
    agent_skills::Entity::delete_many()
        .filter(agent_skills::Column::AgentId.eq(agent))
        .exec(tx)
        .await?;
    Ok(())
}

/// Skills of all agents, as granted, sorted by agent and name.
pub(crate) async fn skills_of_workspace(
    conn: &impl Sql,
    workspace: &WorkspaceId,
) -> Result<Vec<(AgentId, SkillResource)>, StoreError> {
    let sql = "SELECT agent_id, skill_name, description, sha256, version, run_id, registered_at \
               FROM agent_skills WHERE workspace_id = $1";
    let rows = conn.query_sql(sql.to_owned(), vec![workspace.as_str().into()]);
    let rows = rows.await?;
    let skills: Result<Vec<_>, _> = rows.iter().map(read_skill).collect();
    let mut skills = skills?;
    // Sorted here, because the databases collate differently.
    skills.sort_by(|(agent, one), (other_agent, other)| {
        let (one, other) = (&one.skill_name, &other.skill_name);
        agent.0.cmp(&other_agent.0).then_with(|| one.cmp(other))
    });
    Ok(skills)
}

fn read_skill(row: &SqlRow) -> Result<(AgentId, SkillResource), StoreError> {
    let name = row.text("skill_name")?;
    let agent = row.text("agent_id")?;
    let skill = SkillResource {
        display_name: None,
        description: Some(row.text("description")?),
        registered: Some(RegisteredSkill {
            run_id: parsed("agent_skills.run_id", &name, &row.text("run_id")?)?,
            version: row.number("version")?,
            sha256: row.text("sha256")?,
            registered_at: row.number("registered_at")?.div_euclid(1000),
        }),
        skill_name: name,
    };
    Ok((parsed("agent_skills.agent_id", &agent, &agent)?, skill))
}

fn registered(row: &agent_skills::Model) -> Result<RegisteredSkill, StoreError> {
    Ok(RegisteredSkill {
        run_id: parsed("agent_skills.run_id", &row.skill_name, &row.run_id)?,
        version: row.version,
        sha256: row.sha256.clone(),
        registered_at: row.registered_at.div_euclid(1000),
    })
}

fn record(row: agent_skills::Model) -> Result<AgentSkillRecord, StoreError> {
    Ok(AgentSkillRecord {
        registered: registered(&row)?,
        files: parsed_json("agent_skills.files", &row.skill_name, &row.files)?,
        skill_name: row.skill_name,
        description: row.description,
        content: row.content,
    })
}

impl AgentRepository<'_> {
    /// Skills of an agent by name, without content.
    pub async fn list_agent_skills(
        self,
        workspace: &WorkspaceId,
        agent: AgentId,
    ) -> Result<Vec<SkillResource>, StoreError> {
        let skills = skills_of_workspace(&self.db.readers, workspace).await?;
        let own = skills.into_iter().filter(|(owner, _)| *owner == agent);
        Ok(own.map(|(_, skill)| skill).collect())
    }

    pub async fn find_agent_skill(
        self,
        workspace: &WorkspaceId,
        agent: AgentId,
        name: &str,
    ) -> Result<Option<AgentSkillRecord>, StoreError> {
        let key = (agent.to_string(), name.to_owned());
        let row = agent_skills::Entity::find_by_id(key)
            .filter(agent_skills::Column::WorkspaceId.eq(workspace.as_str()))
            .one(&self.db.readers)
            .await?;
        row.map(record).transpose()
    }
}
