//! Skills that runs register for later runs of their agent.

use serde::{Deserialize, Serialize};

use crate::id::RunId;

/// Request of a run to register a skill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSkill {
    pub skill_name: String,
    pub description: String,
    /// Instructions: the body of `SKILL.md`, without front matter.
    pub content: String,
    #[serde(default)]
    pub files: Vec<SkillFile>,
}

/// An additional file of a registered skill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SkillFile {
    /// Relative path with slashes.
    pub path: String,
    pub content: String,
}

/// Origin of a skill that a run registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RegisteredSkill {
    /// Run that registered this content.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: RunId,
    /// Increases with every change of the content under this name.
    pub version: i64,
    /// SHA-256 of the skill's complete content, lower-case hex.
    pub sha256: String,
    /// Time of the registration, in epoch seconds.
    pub registered_at: i64,
}

/// A skill that a run of the agent registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentSkill {
    pub skill_name: String,
    pub description: String,
    pub registered: RegisteredSkill,
}

/// A registered skill with its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentSkillContent {
    #[serde(flatten)]
    pub skill: AgentSkill,
    /// `SKILL.md`, as `activate` returns it.
    pub content: String,
    pub files: Vec<SkillFile>,
}
