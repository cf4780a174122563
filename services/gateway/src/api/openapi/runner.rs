//! The document of runner endpoints.

use protocol::interaction::InteractionRequest;
use protocol::manifest::RunnerList;
use protocol::request::{AgentRunRequest, CancelRequest, ResumeRequest};
use protocol::result::{
    ActionRequestedPayload, AgentRunResult, ArtifactCreatedPayload, MessageCompletedPayload,
    MessageDeltaPayload, ProcessorLogPayload, RunCompletedPayload, RunFailedPayload,
    StateUpdatedPayload, ToolCallCompletedPayload, ToolCallStartedPayload,
};
use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Runnel runner",
        version = "1",
        description = "What an HTTP runner serves. Every request is signed after the Standard \
            Webhooks specification: webhook-id, webhook-timestamp, webhook-signature.",
    ),
    paths(list_runners, run_agent, resume_run, cancel_run, healthz),
    components(schemas(
        AgentRunResult,
        MessageDeltaPayload,
        MessageCompletedPayload,
        ToolCallStartedPayload,
        ToolCallCompletedPayload,
        ArtifactCreatedPayload,
        StateUpdatedPayload,
        ActionRequestedPayload,
        InteractionRequest,
        ProcessorLogPayload,
        RunCompletedPayload,
        RunFailedPayload,
    ))
)]
pub(super) struct RunnerDocument;

/// Lists the runners of this endpoint.
///
/// An endpoint with a single URL receives all calls as `POST` on that URL. The field `action` of the body
/// distinguishes them: `list_runners`, `run`, `resume` and `cancel`.
#[utoipa::path(get, path = "/runners", responses(
    (status = 200, description = "The manifests", body = RunnerList)))]
#[expect(dead_code, reason = "only its documentation is used")]
fn list_runners() {}

/// Executes one run.
///
/// Each server-sent event holds one `AgentRunResult`. The last one is `run.completed` or `run.failed`.
#[utoipa::path(post, path = "/runs", request_body = AgentRunRequest, responses(
    (status = 200, description = "The results", content_type = "text/event-stream", body = AgentRunResult),
    (status = 202, description = "The runner will send the results by `POST {base_url}/run/results`: gateway.json has that route, and \
        `POST {base_url}/run/heartbeat`"),
    (status = 429, description = "Retry after `Retry-After` seconds"),
    (status = 503, description = "Retry after `Retry-After` seconds")))]
#[expect(dead_code, reason = "only its documentation is used")]
fn run_agent() {}

/// Attaches to a live run whose connection was lost.
///
/// For runners with the capability `resumable`. The results after `after` have the bytes that the runner sent before.
#[utoipa::path(post, path = "/runs/{run_id}/resume", request_body = ResumeRequest,
    params(("run_id" = String, Path, description = "The run")), responses(
    (status = 200, description = "The results", content_type = "text/event-stream", body = AgentRunResult),
    (status = 202, description = "The runner will send the results by `POST {base_url}/run/results`"),
    (status = 404, description = "The runner does not have the run, or not all results after `after`"),
    (status = 409, description = "The runner has seen this attempt or a higher one, or cannot attach yet"),
    (status = 429, description = "Retry after `Retry-After` seconds"),
    (status = 503, description = "Retry after `Retry-After` seconds")))]
#[expect(dead_code, reason = "only its documentation is used")]
fn resume_run() {}

/// Requests the cancellation of a run.
///
/// Optional; for runners with the capability `interrupt` or `resumable`.
#[utoipa::path(post, path = "/runs/{run_id}/cancel", request_body = CancelRequest,
    params(("run_id" = String, Path, description = "The run")), responses(
    (status = 202, description = "The cancellation is requested"),
    (status = 404, description = "No such run, or not supported")))]
#[expect(dead_code, reason = "only its documentation is used")]
fn cancel_run() {}

/// Checks that the endpoint is alive. Optional.
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "The endpoint is alive")))]
#[expect(dead_code, reason = "only its documentation is used")]
fn healthz() {}
