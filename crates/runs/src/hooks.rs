//! Hooks of the configuration: signed HTTP calls that allow, deny or replace a value before it is used.
//!
//! Each caller passes its value through [`Hooks::pass`]. The hooks of a moment run in configuration order, and each
//! gets the replacement of the one before.

mod call;
mod refused;

use std::sync::OnceLock;
use std::time::Duration;

use protocol::hook::{HookAnswer, HookFormat, HookMoment, HookRequest, HookValue};
use protocol::id::{AgentId, RunId, WorkspaceId};
use protocol::peer_text::shown;
use serde_json::Value;
use store::{Store, StoreError};
use tokio::sync::Semaphore;
use url::Url;
use uuid::Uuid;

use crate::grant::Grant;
use crate::named_agents::named_agents;
use clock::Clock;
use egress::Egress;
use secrets::signature::SigningSecret;
use telemetry::metrics;

pub use refused::{HookCause, HookRefused};

/// Memory of all calls, in KiB: each request with its answer. Full: a call waits, within its timeout.
const MEMORY_KIB: usize = 128 * 1024;

/// A hook of the configuration.
pub struct HookSpec {
    pub name: String,
    pub url: Url,
    pub secret: SigningSecret,
    pub on: Vec<HookMoment>,
    /// Names or ids. `None`: all agents.
    pub agents: Option<Vec<String>>,
    /// From the begin of a call to the last byte of its answer.
    pub timeout: Duration,
    pub on_failure: HookFailure,
}

/// Consequence of a hook that does not answer as documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookFailure {
    /// The value passes unchanged.
    Open,
    /// The value is refused.
    Closed,
}

/// A hook with the ids of its agents.
struct Hook {
    spec: HookSpec,
    agents: Option<Vec<AgentId>>,
}

/// The hooks of this gateway.
pub struct Hooks {
    egress: Egress,
    clock: Clock,
    memory: Semaphore,
    /// In configuration order. Set once, at the start.
    configured: OnceLock<Vec<Hook>>,
}

/// A hook that cannot be entered.
#[derive(Debug, thiserror::Error)]
pub enum HookEntryError {
    /// `faults`: pointers into the hook, with messages.
    #[error("hook {name}: {faults}; correct its agents, and restart")]
    Agents { name: String, faults: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The value that hooks get, described.
#[derive(Clone, Copy, Debug)]
pub struct HookSubject<'a> {
    pub moment: HookMoment,
    pub workspace: &'a WorkspaceId,
    pub event_id: &'a str,
    pub run: Option<(RunId, AgentId)>,
    /// Name of the tool, or id of the model.
    pub target: Option<&'a str>,
    /// Form of the value of a model call.
    pub format: Option<HookFormat>,
}

impl<'a> HookSubject<'a> {
    /// A value of a run. `target`: its tool or model.
    pub fn of_run(moment: HookMoment, grant: &'a Grant, target: &'a str) -> Self {
        let run = &grant.run;
        Self {
            moment,
            workspace: &run.workspace,
            event_id: &run.event_id,
            run: Some((run.id, run.agent_id)),
            target: Some(target),
            format: None,
        }
    }
}

impl Hooks {
    pub(crate) fn new(egress: Egress, clock: Clock) -> Self {
        Self {
            egress,
            clock,
            memory: Semaphore::new(MEMORY_KIB),
            configured: OnceLock::new(),
        }
    }

    /// Enters the hooks of the configuration. Called once, before the gateway serves.
    pub(crate) async fn configure(
        &self,
        store: &Store,
        workspace: &WorkspaceId,
        specs: Vec<HookSpec>,
    ) -> Result<(), HookEntryError> {
        let mut hooks = Vec::new();
        for spec in specs {
            let agents = match &spec.agents {
                None => None,
                Some(named) => {
                    let found = named_agents(store, workspace, named).await?;
                    Some(found.map_err(|faults| {
                        let faults = faults.iter();
                        let faults = faults.map(|one| format!("{} {}", one.pointer, one.message));
                        HookEntryError::Agents {
                            name: spec.name.clone(),
                            faults: faults.collect::<Vec<_>>().join("; "),
                        }
                    })?)
                }
            };
            hooks.push(Hook { spec, agents });
        }
        // A second call would be a fault of this process, and the first hooks stand.
        let _ = self.configured.set(hooks);
        Ok(())
    }

    /// True if a hook is called at this moment. `agent`: that of the run.
    pub fn applies(&self, moment: HookMoment, agent: Option<AgentId>) -> bool {
        self.of(moment, agent).next().is_some()
    }

    fn of(&self, moment: HookMoment, agent: Option<AgentId>) -> impl Iterator<Item = &Hook> {
        let hooks = self.configured.get().into_iter().flatten();
        hooks.filter(move |hook| hook.applies(moment, agent))
    }

    /// Passes a value through the hooks of its moment. Returns the last replacement; `None`: the value is unchanged.
    /// `check`: refuses a replacement, with the reason. A refused one is a failure of its hook.
    pub async fn pass(
        &self,
        subject: &HookSubject<'_>,
        value: HookValue<'_>,
        check: impl Fn(&Value) -> Result<(), String>,
    ) -> Result<Option<Value>, HookRefused> {
        let mut replaced = None;
        for hook in self.of(subject.moment, subject.run.map(|(_, agent)| agent)) {
            let current = replaced.as_ref().map_or(value, HookValue::Json);
            let answered = self.call(hook, subject, current).await;
            let answered = answered.and_then(|answer| match answer {
                HookAnswer::Replace { value } => {
                    check(&value).map(|()| HookAnswer::Replace { value })
                }
                other => Ok(other),
            });
            match answered {
                Ok(HookAnswer::Allow) => metrics::hook_called(subject.moment.as_str(), "allowed"),
                // The hook does not want this text, and most of it was sent.
                Ok(HookAnswer::Replace { .. }) if subject.format == Some(HookFormat::Text) => {
                    return Err(hook.denied(subject, "the text of a stream cannot be replaced"));
                }
                Ok(HookAnswer::Replace { value }) => {
                    metrics::hook_called(subject.moment.as_str(), "replaced");
                    replaced = Some(value);
                }
                Ok(HookAnswer::Deny { reason }) => {
                    return Err(hook.denied(subject, &reason));
                }
                Err(failure) => hook.failed(subject, &failure)?,
            }
        }
        Ok(replaced)
    }

    /// Applies the failure of each hook to a value that none can get. `failure`: its reason.
    pub fn fail(&self, subject: &HookSubject<'_>, failure: &str) -> Result<(), HookRefused> {
        let mut hooks = self.of(subject.moment, subject.run.map(|(_, agent)| agent));
        hooks.try_for_each(|hook| hook.failed(subject, failure))
    }

    async fn call(
        &self,
        hook: &Hook,
        subject: &HookSubject<'_>,
        value: HookValue<'_>,
    ) -> Result<HookAnswer, String> {
        let id = format!("hook_{}", Uuid::now_v7().simple());
        let is_of_tool = matches!(
            subject.moment,
            HookMoment::ToolCall | HookMoment::ToolResult
        );
        let request = HookRequest {
            id: &id,
            hook: &hook.spec.name,
            moment: subject.moment,
            created_at: self.clock.now_seconds(),
            workspace_id: subject.workspace.as_str(),
            event_id: Some(subject.event_id),
            run_id: subject.run.map(|(run, _)| run),
            agent_id: subject.run.map(|(_, agent)| agent),
            tool: subject.target.filter(|_| is_of_tool),
            model: subject.target.filter(|_| !is_of_tool),
            format: subject.format,
            value,
        };
        let calling = self.send(&hook.spec, &request);
        let called = tokio::time::timeout(hook.spec.timeout, calling).await;
        called.unwrap_or_else(|_| Err("no answer in time".to_owned()))
    }
}

impl Hook {
    fn applies(&self, moment: HookMoment, agent: Option<AgentId>) -> bool {
        let is_selected = match (&self.agents, agent) {
            (None, _) => true,
            (Some(agents), Some(agent)) => agents.contains(&agent),
            (Some(_), None) => false,
        };
        is_selected && self.spec.on.contains(&moment)
    }

    fn refused(&self, subject: &HookSubject<'_>, cause: HookCause) -> HookRefused {
        HookRefused {
            hook: self.spec.name.clone(),
            moment: subject.moment,
            cause,
        }
    }

    fn denied(&self, subject: &HookSubject<'_>, reason: &str) -> HookRefused {
        let (name, moment) = (&self.spec.name, subject.moment.as_str());
        metrics::hook_called(moment, "denied");
        // Without the reason, which may quote the value.
        tracing::info!(
            hook.name = name,
            hook.moment = moment,
            run.id = subject.run.map(|(run, _)| tracing::field::display(run)),
            event.id = subject.event_id,
            "hook {name} denied a value of {moment}, refusing it"
        );
        self.refused(subject, HookCause::Denied(shown(reason)))
    }

    /// The consequence of a call without an answer.
    fn failed(&self, subject: &HookSubject<'_>, failure: &str) -> Result<(), HookRefused> {
        let (name, moment) = (&self.spec.name, subject.moment.as_str());
        let (outcome, next) = match self.spec.on_failure {
            HookFailure::Open => ("failed_open", "the value passes"),
            HookFailure::Closed => ("failed_closed", "the value is refused"),
        };
        metrics::hook_called(moment, outcome);
        tracing::warn!(
            hook.name = name,
            hook.moment = moment,
            run.id = subject.run.map(|(run, _)| tracing::field::display(run)),
            event.id = subject.event_id,
            failure,
            "hook {name} failed on {moment}: {failure}; {next}"
        );
        match self.spec.on_failure {
            HookFailure::Open => Ok(()),
            HookFailure::Closed => Err(self.refused(subject, HookCause::Unavailable)),
        }
    }
}
