//! Access to granted resources by name.

use protocol::resources::{
    AgentOperation, AgentResource, KnowledgeBaseResource, KnowledgeOperation, ModelOperation,
    ModelResource, SkillResource, ToolOperation, ToolResource,
};

use super::{AuthorizationSnapshot, ModelNotGranted, NotGranted};

/// Characters of a refused name that an error repeats.
const SHOWN_CHARS: usize = 100;
/// Granted models that an error names.
const SHOWN_MODELS: usize = 20;

impl AuthorizationSnapshot {
    /// Returns a granted model for one operation. The error does not reveal whether the model exists.
    pub fn model(
        &self,
        id: &str,
        operation: ModelOperation,
    ) -> Result<&ModelResource, ModelNotGranted> {
        let models = self.resources.models.iter();
        let granted = models.filter(|one| one.operations.contains(&operation));
        // The same error for a missing and a denied model: runs must not probe the catalog.
        let found = granted.clone().find(|one| one.model_id == id);
        found.ok_or_else(|| ModelNotGranted {
            operation: match operation {
                ModelOperation::Invoke => "models:invoke",
                ModelOperation::Stream => "models:stream",
                ModelOperation::Rerank => "models:rerank",
                ModelOperation::CountTokens => "models:count_tokens",
            },
            // The name comes from the runner and ends in logs.
            model: id.chars().take(SHOWN_CHARS).collect(),
            granted: granted
                .take(SHOWN_MODELS)
                .map(|one| one.model_id.clone())
                .collect(),
        })
    }

    /// Returns a granted tool for one operation.
    pub fn tool(&self, name: &str, operation: ToolOperation) -> Result<&ToolResource, NotGranted> {
        let found = self
            .resources
            .tools
            .iter()
            .find(|one| one.tool_name == name);
        // Granted for another operation is not granted for this one.
        let granted = found.filter(|one| one.operations.contains(&operation));
        granted.ok_or(NotGranted {
            operation: match operation {
                ToolOperation::Detail => "tools:detail",
                ToolOperation::Call => "tools:call",
            },
        })
    }

    /// Returns a granted knowledge base for one operation.
    pub fn knowledge_base(
        &self,
        id: &str,
        operation: KnowledgeOperation,
    ) -> Result<&KnowledgeBaseResource, NotGranted> {
        let bases = &self.resources.knowledge_bases;
        let found = bases.iter().find(|one| one.kb_id == id);
        let granted = found.filter(|one| one.operations.contains(&operation));
        granted.ok_or(NotGranted {
            operation: match operation {
                KnowledgeOperation::List => "knowledge_bases:list",
                KnowledgeOperation::Retrieve => "knowledge_bases:retrieve",
            },
        })
    }

    /// Returns the knowledge bases that the run may list.
    pub fn listed_knowledge_bases(&self) -> Result<Vec<KnowledgeBaseResource>, NotGranted> {
        // An error, not an empty list: the runner learns that the permission is missing.
        self.granted("knowledge_bases:list")?;
        let is_listed =
            |one: &&KnowledgeBaseResource| one.operations.contains(&KnowledgeOperation::List);
        let listed = self.resources.knowledge_bases.iter().filter(is_listed);
        Ok(listed.cloned().collect())
    }

    /// Returns a granted agent by id or name. The error does not reveal whether the agent exists.
    pub fn agent(&self, id: &str) -> Result<&AgentResource, NotGranted> {
        let agents = &self.resources.agents;
        // Ids win over names, since an agent may be named like another agent's id.
        let of_id = agents.iter().find(|one| one.agent_id == id);
        let of_name = || {
            let is_named = |one: &&AgentResource| one.display_name.as_deref() == Some(id);
            agents.iter().find(is_named)
        };
        let found = of_id.or_else(of_name);
        let granted = found.filter(|one| one.operations.contains(&AgentOperation::Call));
        granted.ok_or(NotGranted {
            operation: "agents:call",
        })
    }

    /// Returns a granted skill.
    pub fn skill(&self, name: &str) -> Result<&SkillResource, NotGranted> {
        let found = self
            .resources
            .skills
            .iter()
            .find(|one| one.skill_name == name);
        found.ok_or(NotGranted {
            operation: "skills:activate",
        })
    }
}
