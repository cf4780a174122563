//! Watches the runners of the command line. Discovery stores their lists; the watch reads them, binds agents to
//! runners that appear, and reports the state of each endpoint.

use std::time::Duration;

use anyhow::{Context as _, bail};
use domain::agent::check_agent_for;
use domain::manifest::mistyped_words;
use protocol::admin::{AgentSpec, Fault};
use protocol::event::EventEnvelope;
use protocol::id::{AgentId, DEFAULT_WORKSPACE, RunnerId, WorkspaceId};
use protocol::manifest::AgentRunnerManifest;
use protocol::principal::PrincipalKind;
use serde_json::json;
use store::{RunnerRecord, RunnerStatus, SaveAgent, SavedAgent};
use uuid::Uuid;

use super::grants;
use super::own_runners::SECRET_VARIABLE;
use super::settings::GeneratedSettings;
use crate::config::DevLayers;
use runs::Runs;
use runs::discovery::DiscoveryFindings;

/// Interval of reads of the store.
const POLL: Duration = Duration::from_millis(200);

/// The watch of all endpoints of the command line.
pub(super) struct RunnerWatch {
    runs: Runs,
    workspace: WorkspaceId,
    settings: GeneratedSettings,
    layers: DevLayers,
    /// By endpoint: what was reported last.
    reported: Vec<Option<EndpointState>>,
}

/// State of an endpoint; each change is reported.
#[derive(Clone, PartialEq)]
struct EndpointState {
    health: String,
    reason: Option<String>,
    findings: DiscoveryFindings,
    runners: Vec<RunnerRecord>,
}

impl RunnerWatch {
    pub(super) fn new(runs: Runs, settings: GeneratedSettings, layers: DevLayers) -> Self {
        Self {
            reported: vec![None; settings.own.endpoints.len()],
            workspace: WorkspaceId(DEFAULT_WORKSPACE.to_owned()),
            runs,
            settings,
            layers,
        }
    }

    /// Reports each change until it is dropped.
    pub(super) async fn keep(mut self, report: impl Fn(String)) {
        let mut has_failed = false;
        while !self.reported.is_empty() {
            for index in 0..self.reported.len() {
                match self.look(index).await {
                    Ok(lines) => {
                        has_failed = false;
                        lines.into_iter().for_each(&report);
                    }
                    // Reported once: the poll repeats five times a second.
                    Err(error) if !has_failed => {
                        has_failed = true;
                        report(format!("agents cannot be bound, trying again: {error:#}"));
                    }
                    Err(_) => {}
                }
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Lines about an endpoint that has changed.
    async fn look(&mut self, index: usize) -> anyhow::Result<Vec<String>> {
        let endpoint = &self.settings.own.endpoints[index];
        let endpoints = self.runs.store().endpoints();
        let found = endpoints
            .find_endpoint_by_name(&self.workspace, &endpoint.name)
            .await?;
        let Some(record) = found else {
            return Ok(Vec::new());
        };
        let mut runners = endpoints.runners_of(&self.workspace, record.id).await?;
        // The time of each list is no change.
        for runner in &mut runners {
            runner.seen_at = 0;
        }
        let state = EndpointState {
            health: record.health.clone(),
            reason: record.health_reason.clone(),
            findings: serde_json::from_value(record.findings.clone()).unwrap_or_default(),
            runners,
        };
        let before = self.reported[index].as_ref();
        if before == Some(&state) {
            return Ok(Vec::new());
        }
        let was_healthy = before.is_some_and(|before| before.health == "healthy");
        let url = endpoint.url.as_str().trim_end_matches('/').to_owned();
        let lines = match state.health.as_str() {
            "healthy" => self.bind(index, &state, &url).await?,
            "unreachable" if was_healthy => vec![format!("{url} is down, waiting for it")],
            "unreachable" => vec![format!("{url} is not up yet, waiting for it")],
            "unhealthy" => vec![unhealthy(&url, state.reason.as_deref())],
            _ => Vec::new(),
        };
        // Only now: a failed binding is tried again at the next poll.
        self.reported[index] = Some(state);
        Ok(lines)
    }

    /// Binds agents to the listed runners. Returns a line for each.
    async fn bind(
        &mut self,
        index: usize,
        state: &EndpointState,
        url: &str,
    ) -> anyhow::Result<Vec<String>> {
        let listed = state.runners.iter().filter(|runner| runner.is_bindable());
        let listed: Vec<_> = listed.collect();
        let ids: Vec<RunnerId> = listed.iter().map(|runner| runner.id.clone()).collect();
        // Remembered first, because the settings are written from it.
        self.settings.own.remember(index, ids)?;
        let backup = self.settings.write()?;
        let mut lines: Vec<_> = backup
            .iter()
            .map(|backup| super::backup_line(backup))
            .collect();
        let agents = self.layers.load(self.settings.listen)?.agents;
        let names = agents.iter().map(|agent| agent.name.clone()).collect();
        let own: Vec<_> = self.settings.own.ids().into_iter().cloned().collect();
        for runner in listed {
            let is_default = own.first() == Some(&runner.id);
            for agent in agents.iter().filter(|agent| agent.runner_id == runner.id) {
                let name = &agent.name;
                let option = if is_default {
                    String::new()
                } else {
                    format!("--conversation {name} ")
                };
                match self.bind_agent(agent, runner).await? {
                    Err(faults) => lines.push(unconfigured(name, &faults)),
                    Ok(rights) => {
                        lines.push(format!(
                            "{name} at {url} is up; try: runnel send {option}\"Hello\""
                        ));
                        lines.extend(rights.iter().map(|right| format!("{name} {right}")));
                    }
                }
            }
        }
        let DiscoveryFindings {
            accepted, rejected, ..
        } = &state.findings;
        let mistyped = accepted
            .iter()
            .flat_map(|found| mistyped_words(&found.warnings));
        lines.extend(
            rejected
                .iter()
                .chain(mistyped)
                .map(|fault| format!("{url}: manifest {} {}", fault.pointer, fault.message)),
        );
        let incompatible = |runner: &&RunnerRecord| runner.status == RunnerStatus::Incompatible;
        for runner in state.runners.iter().filter(incompatible) {
            let reason = runner.reason.as_deref().unwrap_or_default();
            lines.push(format!("{url}: {}: {reason}", runner.id));
        }
        if lines.is_empty() {
            lines.push(format!("{url} lists no runner"));
        }
        // Agents of runners that the endpoint no longer lists.
        let disable = SaveAgent::DisableUnnamed {
            workspace: self.workspace.clone(),
            names,
            at: self.runs.clock().now_ms(),
        };
        let stamp = self.runs.stamp(PrincipalKind::Config);
        self.runs.store().change(stamp, disable).await?;
        Ok(lines)
    }

    /// Stores the agent. Returns its grants, or the faults of its config.
    async fn bind_agent(
        &self,
        agent: &AgentSpec,
        runner: &RunnerRecord,
    ) -> anyhow::Result<Result<Vec<String>, Vec<Fault>>> {
        let manifest: AgentRunnerManifest = serde_json::from_str(&runner.manifest)?;
        let refused = check_agent_for(agent, &manifest);
        let configure = SaveAgent::Configure {
            new_id: AgentId(Uuid::now_v7()),
            workspace: self.workspace.clone(),
            spec: agent.clone(),
            refused: refused.clone(),
            at: self.runs.clock().now_ms(),
        };
        let stamp = self.runs.stamp(PrincipalKind::Config);
        let saved = self.runs.store().change(stamp, configure).await?;
        if !refused.is_empty() {
            return Ok(Err(refused));
        }
        let SavedAgent::Saved(saved) = saved else {
            bail!("agent {} cannot be stored", agent.name);
        };
        Ok(Ok(self.granted(saved.id).await?))
    }

    async fn granted(&self, agent: AgentId) -> anyhow::Result<Vec<String>> {
        let previews = &self.runs.previews;
        let preview = previews
            .preview_event(&self.workspace, message(), Some(agent))
            .await?;
        let agent = preview.and_then(|preview| preview.agent);
        let snapshot = agent.and_then(|agent| agent.snapshot);
        let snapshot = snapshot.context("its grants cannot be previewed")?;
        Ok(grants::summary(&snapshot.decisions))
    }
}

/// A message as `runnel send` posts it.
pub(super) fn message() -> EventEnvelope {
    let message = json!({
        "event_type": "message.received", "input": {"text": "Hello"},
        "conversation": {"conversation_id": "dev"},
    });
    serde_json::from_value(message).expect("the message is a valid event")
}

fn unhealthy(url: &str, reason: Option<&str>) -> String {
    let reason = reason.unwrap_or("the endpoint is unhealthy");
    // The health reason holds the status as text.
    let is_refused = reason.contains("401") || reason.contains("403");
    let advice = if is_refused {
        format!("; start it with the {SECRET_VARIABLE} of this playground")
    } else {
        String::new()
    };
    format!("{url}: {reason}{advice}")
}

fn unconfigured(name: &str, faults: &[Fault]) -> String {
    let faults = faults
        .iter()
        .map(|fault| format!("{} {}", fault.pointer, fault.message));
    let faults: Vec<_> = faults.collect();
    format!(
        "agent {name} needs a config: {}; set it in [[agents]] of runnel-dev.toml with name = \"{name}\", and restart dev",
        faults.join("; ")
    )
}
