//! Skills that runs register for later runs of their agent.

use serde::{Deserialize, Serialize};

use crate::id::RunId;

/// What a run says to register a skill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSkill {
    pub skill_name: String,
    pub description: String,
    /// The instructions: the body of `SKILL.md`, without front matter.
    pub content: String,
    #[serde(default)]
    pub files: Vec<SkillFile>,
}

/// A further file of a skill that a run has registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SkillFile {
    /// Relative, with slashes.
    pub path: String,
    pub content: String,
}

/// Where a skill came from that no operator wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RegisteredSkill {
    /// The run that registered this content.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: RunId,
    /// Rises with each other content under the name.
    pub version: i64,
    /// Of all that it says, as lower-case hex.
    pub sha256: String,
    /// Unix seconds.
    pub registered_at: i64,
}

/// A skill that runs of an agent have registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentSkill {
    pub skill_name: String,
    pub description: String,
    pub registered: RegisteredSkill,
}

/// The same with all that it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentSkillContent {
    #[serde(flatten)]
    pub skill: AgentSkill,
    /// `SKILL.md` as `activate` gives it.
    pub content: String,
    pub files: Vec<SkillFile>,
}
