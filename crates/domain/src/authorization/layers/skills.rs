//! Skills, and the tools that read and register them.

use protocol::resources::{SkillResource, ToolResource};

use super::{Layer, LayerEvaluation};
use crate::tool_policy::{lists_by_name, rule_for};

/// Rule of the manifest capability that enables skills.
const AUTHORING: &str = "capabilities.skill_authoring is false";

impl LayerEvaluation<'_> {
    /// Decides the skills that the run may activate: the operator's, and those that runs of the agent registered.
    pub(in crate::authorization) fn skills(
        &mut self,
        skills: &[SkillResource],
        registered: &[SkillResource],
    ) -> Vec<SkillResource> {
        // The operator's skill wins: a run must not replace instructions that the operator wrote.
        let is_free =
            |skill: &&SkillResource| skills.iter().all(|one| one.skill_name != skill.skill_name);
        let mut granted = Vec::new();
        for skill in skills.iter().chain(registered.iter().filter(is_free)) {
            let checks = [
                (
                    Layer::Manifest,
                    self.manifest.capabilities.skill_authoring,
                    AUTHORING,
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

    /// Decides the gateway's own skill tools, for runs with a granted skill.
    pub(in crate::authorization) fn skill_tools(
        &mut self,
        tools: &[ToolResource],
        has_skills: bool,
    ) -> Vec<ToolResource> {
        // The tools have no use without a skill and would cost prompt tokens.
        if !has_skills {
            return Vec::new();
        }
        let mut granted = Vec::new();
        for tool in tools {
            let mut operations = tool.operations.clone();
            operations
                .retain(|operation| self.decide("tools", &tool.tool_name, operation.as_str(), &[]));
            if !operations.is_empty() {
                granted.push(ToolResource {
                    operations,
                    ..tool.clone()
                });
            }
        }
        granted
    }

    /// Decides the tool that registers skills for later runs. It needs its name in the policy.
    pub(in crate::authorization) fn register_skill(
        &mut self,
        tool: Option<&ToolResource>,
    ) -> Option<ToolResource> {
        let tool = tool?;
        let name = &tool.tool_name;
        let policy = &self.agent.resource_policy.tools;
        // Patterns exclude it: an agent gets the right to change its own skills only by an explicit choice.
        let is_named = lists_by_name(policy, name);
        let rule = rule_for(policy, name);
        let picked = self.selected.tools.as_ref();
        let checks = [
            (
                Layer::Manifest,
                self.manifest.capabilities.skill_authoring,
                AUTHORING,
            ),
            (
                Layer::AgentPolicy,
                is_named,
                "resource_policy.tools does not list it by its name; \"*\" is not enough",
            ),
            (
                Layer::ConfigSelector,
                picked.is_none_or(|names| names.contains(name)),
                "the config's tools do not name it",
            ),
        ];
        let mut operations = tool.operations.clone();
        operations.retain(|operation| self.decide("tools", name, operation.as_str(), &checks));
        if operations.is_empty() {
            return None;
        }
        let approval = self.approval_of(tool, rule);
        Some(ToolResource {
            operations,
            approval,
            ..tool.clone()
        })
    }
}
