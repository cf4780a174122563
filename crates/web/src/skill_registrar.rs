//! Stores the skills that runs register by the tool `register_skill`.

use async_trait::async_trait;
use egress::upstream::UpstreamError;
use protocol::id::{AgentId, RunId, WorkspaceId};
use protocol::skill::NewSkill;
use serde_json::{Value, json};
use store::{AgentSkillRecord, ChangeStamp, RegisterSkill, SkillRegistered, Store};
use tools::{RegisteredPackage, Registrar};

/// Stores skills of one run for its agent.
#[derive(Clone, Copy)]
pub struct StoreRegistrar<'a> {
    pub store: &'a Store,
    pub run: RunId,
    pub workspace: &'a WorkspaceId,
    pub agent: AgentId,
    pub at: i64,
}

#[async_trait]
impl Registrar for StoreRegistrar<'_> {
    async fn register(&self, skill: NewSkill) -> Result<Value, UpstreamError> {
        let skill_name = skill.skill_name.clone();
        let register = RegisterSkill {
            run_id: self.run,
            workspace: self.workspace.clone(),
            agent_id: self.agent,
            skill,
            at: self.at,
        };
        let stamp = ChangeStamp::of(self.run, self.at);
        let registered = self.store.change(stamp, register);
        let refused = |why: &str| Err(UpstreamError::Unsupported(why.to_owned()));
        match registered.await {
            Ok(SkillRegistered::Registered(registered)) => {
                Ok(json!({"skill_name": skill_name, "registered": registered}))
            }
            Ok(SkillRegistered::Full) => refused(
                "the agent has 50 skills that runs have registered, which is the most; replace one of \
                 them, or have the operator withdraw some",
            ),
            Ok(SkillRegistered::RunEnded) => refused("the run is over"),
            Ok(SkillRegistered::AgentGone) => refused("the agent was deleted"),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, run.id = %self.run, "cannot store a skill");
                let message = "the gateway could not write the skill; call again later";
                Err(UpstreamError::Lost(message.to_owned()))
            }
        }
    }
}

/// Converts a stored skill for the tools.
pub fn registered_package(record: AgentSkillRecord) -> RegisteredPackage {
    let files = record.files.into_iter();
    RegisteredPackage::new(
        &record.skill_name,
        &record.description,
        &record.content,
        files.map(|file| (file.path, file.content)).collect(),
    )
}
