//! Dry runs of events.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use domain::admission::{Admission, Capacity};
use domain::authorization::Decision;
use domain::binding::AgentMatch;
use protocol::admin::{AgentScope, Concurrency, Fault};
use protocol::context::AvailableApis;
use protocol::error::{AgentApiError, ErrorBody};
use protocol::event::EventEnvelope;
use protocol::id::{AgentId, RunId, RunnerId};
use protocol::resources::AgentResources;
use serde::Serialize;

use crate::admin::budgets::AppliedBudget;
use crate::client::event_body::EventBody;
use runs::WorkspaceBudget;
use runs::preview::{AgentPreview, Preview, PreviewCandidate, PreviewOutcome};
use web::auth::AdminCaller;
use web::error::{ApiError, ApiResult};
use web::query::PathOf;
use web::state::ApiState;

/// Maximum number of candidates in a response.
const MAX_CANDIDATES: usize = 200;

/// The outcome that an event would have now. Nothing is stored.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct EventDryRun {
    event_type: String,
    /// An event with this id exists. Posting it again returns the first response, or 409.
    known_event: bool,
    /// The status that `POST /v1/events` would return for a new event.
    status: u16,
    /// One of `created`, `queued`, `steered`, `no_agent` and `refused`.
    outcome: &'static str,
    /// The run that would absorb the event (policy `steer`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    steered_into: Option<RunId>,
    /// The error, if the event would be refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<AgentApiError>,
    /// Name of the agent that would receive the event.
    winner: Option<String>,
    /// All agents, at most 200: first the winner or the tied agents, then the others by name.
    candidates: Vec<CandidateView>,
    /// Number of agents beyond those 200.
    more_candidates: usize,
    /// The requested agent, or else the winner.
    agent: Option<AgentDryRun>,
}

/// An agent and its standing.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct CandidateView {
    #[schema(value_type = String)]
    id: AgentId,
    name: String,
    enabled: bool,
    scope: AgentScope,
    priority: i64,
    #[serde(flatten)]
    standing: StandingView,
}

/// The standing of an agent in the selection.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct StandingView {
    /// `wins`, `ties` or `loses`.
    standing: &'static str,
    /// The reason of a loss: `disabled`, `refused`, `event_type`, `scope`, `filter`, `less_specific_scope` or
    /// `lower_priority`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// The reason as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// The outcome at one agent, as if it were selected.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct AgentDryRun {
    #[schema(value_type = String)]
    id: AgentId,
    name: String,
    version: i64,
    #[serde(flatten)]
    standing: StandingView,
    /// Faults of the agent's specification against the current manifest of its runner; at most eight.
    faults: Vec<Fault>,
    runner: RunnerDryRun,
    admission: AdmissionView,
    /// Resources that a run would be granted. Null if the runner cannot be called.
    resources: Option<AgentResources>,
    available_apis: Option<AvailableApis>,
    /// Granted operations, as in the `scope` claim of a run token.
    operations: Vec<String>,
    /// Authorization decisions, as in `GET /v1/runs/{run_id}/authorization`.
    #[schema(value_type = Vec<Object>)]
    decisions: Vec<Decision>,
    /// Budgets that the calls of a run would count for. Empty if the runner cannot be called.
    budgets: Vec<AppliedBudget>,
}

/// The runner of an agent and its endpoint.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RunnerDryRun {
    #[schema(value_type = String)]
    id: RunnerId,
    /// `accepted`, `incompatible`, `absent`, or `unknown` if no endpoint has listed it.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest_sha256: Option<String>,
    /// Name of the endpoint.
    endpoint: Option<String>,
    endpoint_health: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint_health_reason: Option<String>,
}

/// The decision of the agent's concurrency policy at this moment.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct AdmissionView {
    policy: Concurrency,
    /// One of `start`, `queue`, `interrupt`, `steer`, `reject` and `queue_full`.
    decision: &'static str,
    /// The run that absorbs the event, or that causes its rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    run_id: Option<RunId>,
    /// Runs that would be cancelled.
    #[schema(value_type = Vec<String>)]
    cancels: Vec<RunId>,
    /// Active runs of this agent in the conversation, oldest first.
    active: Vec<ActiveRunView>,
    /// Number of queued runs after them.
    queued: u64,
    /// Live runs of the workspace and their limit.
    workspace: CapacityView,
    /// Live runs of the endpoint and their limit.
    endpoint: CapacityView,
    /// Live runs of the agent and their limit.
    agent: CapacityView,
}

/// Number of live runs and their limit. Both are null without a limit.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct CapacityView {
    live: Option<u64>,
    most: Option<u64>,
}

impl From<Capacity> for CapacityView {
    fn from(Capacity { live, limit }: Capacity) -> Self {
        let live = limit.map(|_| live);
        Self { live, most: limit }
    }
}

/// An active run of the agent in the event's conversation.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct ActiveRunView {
    #[schema(value_type = String)]
    run_id: RunId,
    running: bool,
    cancel_requested: bool,
    /// Number of absorbed events that the run has not pulled yet.
    steering: u64,
}

/// Tests an event without posting it.
///
/// The response names the selected agent, the reasons of the selection, and the resources that its run would
/// get. Nothing is stored. The body is that of `POST /v1/events` with one event.
#[utoipa::path(post, path = "/v1/agents/dry-run", tag = "admin", security(("api_key" = [])),
    request_body = EventEnvelope, responses(
    (status = 200, description = "The outcome that the event would have, accepted or refused", body = EventDryRun),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn dry_run_event(
    caller: AdminCaller,
    State(state): State<ApiState>,
    body: EventBody,
) -> ApiResult<Json<EventDryRun>> {
    dry_run(&state, &caller, body, None).await
}

/// Tests an event at one agent without posting it.
///
/// The response shows whether the agent would be selected, and which resources its run would get. Nothing is
/// stored. The body is that of `POST /v1/events` with one event.
#[utoipa::path(post, path = "/v1/agents/{agent_id}/dry-run", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent")),
    request_body = EventEnvelope, responses(
    (status = 200, description = "The outcome that the event would have, accepted or refused", body = EventDryRun),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent", body = ErrorBody)))]
pub(crate) async fn dry_run_agent(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<AgentId>,
    body: EventBody,
) -> ApiResult<Json<EventDryRun>> {
    dry_run(&state, &caller, body, Some(id)).await
}

async fn dry_run(
    state: &ApiState,
    caller: &AdminCaller,
    body: EventBody,
    agent: Option<AgentId>,
) -> ApiResult<Json<EventDryRun>> {
    // The response holds the outcome of one event.
    let EventBody::One(posted) = body else {
        let message = "a dry run takes one event; send each of the batch by itself";
        return Err(ApiError::invalid_argument(message));
    };
    let faults = posted.faults();
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    let preview = state
        .runs
        .previews
        .preview_event(&caller.workspace, posted.event, agent)
        .await?;
    let requested_id = || agent.map(|id| id.to_string()).unwrap_or_default();
    let preview = preview.ok_or_else(|| ApiError::not_found("agent", requested_id()))?;
    let agent = preview.agent.as_ref();
    let budgets = match agent.and_then(|agent| agent.snapshot.as_ref()) {
        Some(snapshot) => state.runs.usage.budgets_for(snapshot).await?,
        None => Vec::new(),
    };
    Ok(Json(view(preview, &budgets)))
}

fn view(preview: Preview, budgets: &[WorkspaceBudget]) -> EventDryRun {
    let event = &preview.event;
    let winner = preview
        .candidates
        .iter()
        .find(|one| one.standing == AgentMatch::Wins)
        .map(|one| one.candidate.agent.spec.name.clone());
    // The winner and tied agents come first, so the limit cuts only agents that lose.
    let shown = preview.candidates.iter().take(MAX_CANDIDATES);
    let candidates: Vec<_> = shown.map(|one| candidate_view(one, event)).collect();
    let agent = preview.agent.map(|agent| agent_view(agent, event, budgets));
    let (status, outcome, steered_into, error) = match preview.outcome {
        Ok(PreviewOutcome::NoAgent) => (202, "no_agent", None, None),
        Ok(PreviewOutcome::Created) => (202, "created", None, None),
        Ok(PreviewOutcome::Queued) => (202, "queued", None, None),
        Ok(PreviewOutcome::Steered(run)) => (202, "steered", Some(run), None),
        Err(error) => {
            // The same conversion as for a posted event, so that status and code agree.
            let (status, error) = ApiError::from(error).into_parts();
            (status, "refused", None, Some(error))
        }
    };
    EventDryRun {
        known_event: preview.event_is_stored,
        status,
        outcome,
        steered_into,
        error,
        winner,
        more_candidates: preview.candidates.len() - candidates.len(),
        candidates,
        agent,
        event_type: preview.event.event_type,
    }
}

fn standing_view(one: &PreviewCandidate, event: &EventEnvelope) -> StandingView {
    let (standing, loss) = match one.standing {
        AgentMatch::Wins => ("wins", None),
        AgentMatch::Ties => ("ties", None),
        AgentMatch::Loses(loss) => ("loses", Some(loss)),
    };
    let agent = &one.candidate.agent;
    // A refusal outweighs other reasons: until it is fixed, no event can match.
    if let (Some(_), Some(fault)) = (loss, agent.refused.first()) {
        let Fault { pointer, message } = fault;
        let detail =
            format!("the gateway refuses it, it does not fit its runner: {pointer} {message}");
        return StandingView {
            standing,
            reason: Some("refused"),
            detail: Some(detail),
        };
    }
    StandingView {
        standing,
        reason: loss.map(domain::binding::MismatchReason::as_str),
        detail: loss.map(|loss| loss.detail(&agent.spec, event)),
    }
}

fn candidate_view(one: &PreviewCandidate, event: &EventEnvelope) -> CandidateView {
    let agent = &one.candidate.agent;
    CandidateView {
        id: agent.id,
        name: agent.spec.name.clone(),
        enabled: agent.spec.enabled,
        scope: agent.spec.scope.clone(),
        priority: agent.spec.priority,
        standing: standing_view(one, event),
    }
}

fn agent_view(
    preview: AgentPreview,
    event: &EventEnvelope,
    budgets: &[WorkspaceBudget],
) -> AgentDryRun {
    let standing = standing_view(&preview.considered, event);
    let runner = runner_view(&preview);
    let admission = admission_view(&preview);
    let (resources, available_apis, operations, decisions) = match preview.snapshot {
        Some(snapshot) => (
            Some(Arc::unwrap_or_clone(snapshot.resources)),
            Some(snapshot.available_apis),
            snapshot.operations.iter().cloned().collect(),
            snapshot.decisions.to_vec(),
        ),
        // Without a snapshot the runner cannot be called.
        None => (None, None, Vec::new(), Vec::new()),
    };
    let agent = preview.considered.candidate.agent;
    AgentDryRun {
        id: agent.id,
        name: agent.spec.name,
        version: agent.version,
        standing,
        faults: Fault::first(&preview.faults),
        runner,
        admission,
        resources,
        available_apis,
        operations,
        decisions,
        budgets: budgets.iter().map(AppliedBudget::of).collect(),
    }
}

fn runner_view(preview: &AgentPreview) -> RunnerDryRun {
    let candidate = &preview.considered.candidate;
    let runner = candidate.runner.as_ref();
    let endpoint = preview.endpoint.as_ref();
    RunnerDryRun {
        id: candidate.agent.spec.runner_id.clone(),
        status: runner.map_or("unknown", |runner| runner.status.as_str()),
        reason: runner.and_then(|runner| runner.reason.clone()),
        manifest_sha256: runner.map(|runner| runner.manifest_sha256.clone()),
        endpoint: endpoint.map(|endpoint| endpoint.name.clone()),
        endpoint_health: endpoint.map(|endpoint| endpoint.health.clone()),
        endpoint_health_reason: endpoint.and_then(|endpoint| endpoint.health_reason.clone()),
    }
}

fn admission_view(preview: &AgentPreview) -> AdmissionView {
    let (decision, run_id, cancels) = match &preview.admission {
        Admission::Start => ("start", None, Vec::new()),
        Admission::Queue => ("queue", None, Vec::new()),
        Admission::Interrupt(cancels) => ("interrupt", None, cancels.clone()),
        Admission::Absorb(run) => ("steer", Some(*run), Vec::new()),
        Admission::Busy(run) => ("reject", Some(*run), Vec::new()),
        Admission::QueueFull => ("queue_full", None, Vec::new()),
    };
    let active = preview.occupancy.active.iter().map(|run| ActiveRunView {
        run_id: run.run_id,
        running: run.running,
        cancel_requested: run.cancel_requested,
        steering: run.steering,
    });
    AdmissionView {
        policy: preview.considered.candidate.agent.spec.concurrency,
        decision,
        run_id,
        cancels,
        active: active.collect(),
        queued: preview.occupancy.queued,
        workspace: preview.workspace.into(),
        endpoint: preview.at_endpoint.into(),
        agent: preview.of_agent.into(),
    }
}
