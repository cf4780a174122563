//! Skills, and the tools that read them.

use protocol::resources::{SkillResource, ToolResource};

use super::{Layer, Trimming};

impl Trimming<'_> {
    /// Which skills may be activated.
    pub(in crate::authorization) fn skills(
        &mut self,
        skills: &[SkillResource],
    ) -> Vec<SkillResource> {
        let mut granted = Vec::new();
        for skill in skills {
            let checks = [
                (
                    Layer::Manifest,
                    self.manifest.capabilities.skill_authoring,
                    "capabilities.skill_authoring is false",
                ),
                (
                    Layer::AgentPolicy,
                    self.agent.resource_policy.skills.names(&skill.skill_name),
                    "resource_policy.skills does not name it",
                ),
            ];
            if self.decide("skills", &skill.skill_name, "activate", &checks) {
                granted.push(skill.clone());
            }
        }
        granted
    }

    /// The gateway's own tools about skills: for who was granted a skill.
    pub(in crate::authorization) fn skill_tools(
        &mut self,
        tools: &[ToolResource],
        has_skills: bool,
    ) -> Vec<ToolResource> {
        if !has_skills {
            return Vec::new();
        }
        for tool in tools {
            for operation in &tool.operations {
                self.decide("tools", &tool.tool_name, operation.as_str(), &[]);
            }
        }
        tools.to_vec()
    }
}
