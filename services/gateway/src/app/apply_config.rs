//! Applies configured endpoints, agents, sources, webhooks and schedules to the database, and enters the hooks. All
//! discovery and validation precedes the first write, because other replicas use the same rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context as _;
use domain::agent::check_agent_for;
use protocol::admin::{AgentSpec, Fault};
use protocol::id::{AgentId, DEFAULT_WORKSPACE, RunnerId, WorkspaceId};
use protocol::manifest::AgentRunnerManifest;
use protocol::principal::PrincipalKind;
use store::{RunnerRecord, SaveAgent, SaveEndpoint, Store, StoreError};
use uuid::Uuid;

use super::{Declared, DeclaredNames, unknown_policy_names};
use runs::Runs;
use runs::discovery::DiscoveredEndpoint;

/// Applies configured endpoints, agents, sources, webhooks and schedules. Entries that are gone from the configuration
/// are disabled.
pub(super) async fn apply(runs: &Runs, declared: Declared) -> anyhow::Result<()> {
    let workspace = WorkspaceId(DEFAULT_WORKSPACE.to_owned());
    let store = runs.store();
    let discovering = declared
        .endpoints
        .iter()
        .map(|spec| runs.endpoints.ask_endpoint(&workspace, spec));
    // All endpoints at once: the start waits for the slowest one only.
    let discovered = futures_util::future::try_join_all(discovering).await;
    let discovered = discovered.context("an endpoint of the configuration cannot be entered")?;
    let refused = faults_by_manifest(
        store,
        &workspace,
        &declared.agents,
        &DiscoveredLists::of(&discovered),
    )
    .await?;
    apply_endpoints(runs, &workspace, discovered).await?;
    warn_unserved_runners(store, &workspace, &declared.agents).await?;
    let files = declared.catalog.files.iter();
    let files: Vec<_> = files.map(|file| file.name.as_str()).collect();
    let declared_names = DeclaredNames {
        catalog: &declared.catalog,
        files: &files,
        tools: None,
    };
    for warning in unknown_policy_names(&declared.agents, &declared_names) {
        tracing::warn!(agent.name = warning.agent, "{}", warning.text);
    }
    apply_agents(runs, &workspace, declared.agents, refused).await?;
    // After the agents, which they name.
    let sources = runs.sources.configure(&workspace, declared.sources);
    sources
        .await
        .context("a source of the configuration cannot be entered")?;
    let webhooks = runs.webhooks.configure(&workspace, declared.webhooks);
    webhooks
        .await
        .context("a webhook of the configuration cannot be entered")?;
    let hooks = runs.configure_hooks(&workspace, declared.hooks);
    hooks
        .await
        .context("a hook of the configuration cannot be entered")?;
    let schedules = runs.schedules.configure(&workspace, declared.schedules);
    schedules
        .await
        .context("a schedule of the configuration cannot be entered")
}

/// Current runner lists of the configured endpoints.
struct DiscoveredLists<'a> {
    manifests: BTreeMap<&'a RunnerId, &'a AgentRunnerManifest>,
    /// Names of endpoints that returned a list.
    by: BTreeSet<&'a str>,
}

impl<'a> DiscoveredLists<'a> {
    fn of(discovered: &'a [DiscoveredEndpoint]) -> Self {
        let mut listed = Self {
            manifests: BTreeMap::new(),
            by: BTreeSet::new(),
        };
        for endpoint in discovered {
            for manifest in endpoint.listed().into_iter().flatten() {
                // If two endpoints list the same runner, the first list counts.
                listed.manifests.entry(&manifest.id).or_insert(manifest);
                listed.by.insert(endpoint.name());
            }
        }
        listed
    }
}

/// Checks the configured agents against their runners' manifests: the current list, else the last stored one.
/// Three cases are not faults, or do not disable the agent:
/// - A runner that is not discovered yet: its events are refused until it is.
/// - A runner that changed after the same agent specification was stored: the agent stays enabled. Every other
///   agent with faults is stored as disabled, with its faults.
async fn faults_by_manifest(
    store: &Store,
    workspace: &WorkspaceId,
    agents: &[AgentSpec],
    listed: &DiscoveredLists<'_>,
) -> anyhow::Result<BTreeMap<String, Vec<Fault>>> {
    let mut refused = BTreeMap::new();
    for spec in agents {
        let before;
        let manifest = if let Some(manifest) = listed.manifests.get(&spec.runner_id) {
            *manifest
        } else if let Some(manifest) = manifest_before(store, workspace, spec, listed).await? {
            before = manifest;
            &before
        } else {
            continue;
        };
        let unfit = check_agent_for(spec, manifest);
        if unfit.is_empty() {
            continue;
        }
        // A disabled agent serves no events, and an unchanged one was valid when it was stored.
        if !spec.enabled || store.agents().is_configured(workspace, spec).await? {
            tracing::warn!(
                agent.name = spec.name,
                faults = unfit.len(),
                "agent {} no longer fits its runner: {} {}",
                spec.name,
                unfit[0].pointer,
                unfit[0].message
            );
            continue;
        }
        let faults: Vec<_> = unfit
            .iter()
            .map(|fault| format!("{} {}", fault.pointer, fault.message))
            .collect();
        tracing::error!(
            agent.name = spec.name,
            faults = unfit.len(),
            "agent {} does not fit its runner {} and is disabled, other agents are served: {}; correct its config, or update the \
             runner, and restart",
            spec.name,
            spec.runner_id,
            faults.join("; ")
        );
        refused.insert(spec.name.clone(), unfit);
    }
    Ok(refused)
}

/// The manifest of the runner's last list. `None` if its endpoint now returns a list without this runner.
async fn manifest_before(
    store: &Store,
    workspace: &WorkspaceId,
    spec: &AgentSpec,
    listed: &DiscoveredLists<'_>,
) -> anyhow::Result<Option<AgentRunnerManifest>> {
    let runner = store
        .endpoints()
        .find_runner(workspace, &spec.runner_id)
        .await?;
    let Some(runner) = runner.filter(RunnerRecord::is_bindable) else {
        return Ok(None);
    };
    let endpoint = store
        .endpoints()
        .find_endpoint(workspace, runner.endpoint_id)
        .await?;
    // The endpoint returned a list without this runner, so the stored manifest is out of date.
    if endpoint.is_none_or(|endpoint| listed.by.contains(endpoint.name.as_str())) {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&runner.manifest)?))
}

async fn apply_endpoints(
    runs: &Runs,
    workspace: &WorkspaceId,
    discovered: Vec<DiscoveredEndpoint>,
) -> anyhow::Result<()> {
    let store = runs.store();
    let names: Vec<_> = discovered.iter().map(|one| one.name().to_owned()).collect();
    // The warnings come before the write: after it, the old state is gone.
    for (name, is_configured) in store.endpoints().enabled_endpoints(workspace).await? {
        match (names.contains(&name), is_configured) {
            (false, true) => tracing::warn!(
                endpoint.name = name,
                "endpoint {name} of an earlier configuration, or of another replica's, is disabled with its runners: \
                 this configuration lacks it"
            ),
            (true, false) => tracing::warn!(
                endpoint.name = name,
                "endpoint {name} was created over the API; the configuration replaces it"
            ),
            (true, true) | (false, false) => {}
        }
    }
    let disable = SaveEndpoint::DisableUnnamed {
        workspace: workspace.clone(),
        names,
    };
    let stamp = runs.stamp(PrincipalKind::Config);
    store.change(stamp, disable).await?;
    let entering = discovered
        .into_iter()
        .map(|one| runs.endpoints.configure_endpoint(one));
    for entered in futures_util::future::join_all(entering).await {
        entered.context("an endpoint of the configuration cannot be entered")?;
    }
    Ok(())
}

async fn warn_unserved_runners(
    store: &Store,
    workspace: &WorkspaceId,
    agents: &[AgentSpec],
) -> anyhow::Result<()> {
    for spec in agents {
        let runner = store
            .endpoints()
            .find_runner(workspace, &spec.runner_id)
            .await?;
        if !runner.is_some_and(|runner| runner.is_bindable()) {
            tracing::warn!(
                agent.name = spec.name,
                "no endpoint serves runner {} yet",
                spec.runner_id
            );
        }
    }
    Ok(())
}

async fn apply_agents(
    runs: &Runs,
    workspace: &WorkspaceId,
    agents: Vec<AgentSpec>,
    mut refused: BTreeMap<String, Vec<Fault>>,
) -> anyhow::Result<()> {
    // One timestamp for all agents of this start.
    let (store, at) = (runs.store(), runs.clock().now_ms());
    let names: Vec<_> = agents.iter().map(|spec| spec.name.clone()).collect();
    for name in store
        .agents()
        .other_configured_agents(workspace, &names)
        .await?
    {
        tracing::warn!(
            agent.name = name,
            "agent {name} of an earlier configuration, or of another replica's, is disabled: this configuration lacks it"
        );
    }
    for name in store.agents().agents_from_api(workspace, &names).await? {
        tracing::warn!(
            agent.name = name,
            "agent {name} was created over the API; the configuration replaces it"
        );
    }
    let disable = SaveAgent::DisableUnnamed {
        workspace: workspace.clone(),
        names,
        at,
    };
    let stamp = || runs.stamp(PrincipalKind::Config);
    store.change(stamp(), disable).await?;
    for spec in agents {
        let name = spec.name.clone();
        // In an `Arc` because the write may be repeated.
        let configure = Arc::new(SaveAgent::Configure {
            new_id: AgentId(Uuid::now_v7()),
            workspace: workspace.clone(),
            refused: refused.remove(&name).unwrap_or_default(),
            spec,
            at,
        });
        let mut entered = store.change(stamp(), Arc::clone(&configure)).await;
        if matches!(entered, Err(StoreError::Taken)) {
            // A replica that started at the same time was first; its rows are visible now.
            entered = store.change(stamp(), configure).await;
        }
        entered.with_context(|| format!("agent {name} of the configuration cannot be entered"))?;
    }
    Ok(())
}
