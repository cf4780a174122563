//! Runner API over HTTP: discovery, runs, cancellation, health (`docs/protocol.md`, Discovery and `RUN_AGENT`).

mod body;
mod buffer;
mod live;
mod rejection;
mod replay;
mod resumable;
pub mod serve;
mod signed;
mod unverified;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Extension, Path, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use protocol::id::RunnerId;
use protocol::manifest::{AgentRunnerManifest, RunnerList};
use protocol::request::{AgentRunRequest, CancelRequest, EndpointAction, ResumeRequest};
use serde::Deserialize;

use crate::host::{HostClient, ResumeTerms};
use crate::runner::{RunHandle, Runner};
use crate::signature::SigningSecret;
use crate::stream::finish;

use live::{AddError, RunRegistry};
use rejection::RequestRejection;
use replay::SeenIds;
use resumable::{ResumableRun, ResumableRuns};
use serve::ShutdownSignal;
use signed::SignedArrival;
use unverified::UnverifiedBytes;

/// Default of `resume_within_seconds` in a manifest.
const RESUME_WITHIN: Duration = Duration::from_mins(2);

/// Server options; the defaults suit a runner of any gateway.
#[derive(Clone, Copy, Debug)]
pub struct RouterOptions {
    /// Interval of heartbeats on a silent stream. The gateway times out after 60 s.
    pub heartbeat: Duration,
    /// Limit of concurrent runs. Beyond it the server responds 503 with `Retry-After`, which the gateway obeys.
    pub live_runs: usize,
    /// Limit of a request body, in bytes. The gateway accepts events of 1 MiB and repeats their text; state,
    /// tool schemas and configuration are added. All bodies before their signature is verified hold 32 MiB in
    /// the process; above that the oldest are refused with 503.
    pub body_bytes: usize,
}

impl Default for RouterOptions {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(15),
            live_runs: 1024,
            body_bytes: 8 * 1024 * 1024,
        }
    }
}

/// Router of the runner API with default options. Of two runners with one id, the first is served.
pub fn router(runners: Vec<Arc<dyn Runner>>, secret: SigningSecret) -> Router {
    router_with(runners, secret, RouterOptions::default())
}

/// Router of the runner API.
pub fn router_with(
    runners: Vec<Arc<dyn Runner>>,
    secret: SigningSecret,
    options: RouterOptions,
) -> Router {
    router_of(KitServer::new(runners, secret, options))
}

fn router_of(server: KitServer) -> Router {
    let server = Arc::new(server);
    Router::new()
        .route("/", post(call_single_url))
        .route("/runners", get(list_runners))
        .route("/runs", post(start_run))
        .route("/runs/{run_id}/resume", post(resume_run))
        .route("/runs/{run_id}/cancel", post(cancel_run))
        .fallback(async || RequestRejection::NoRoute)
        .method_not_allowed_fallback(async || RequestRejection::NoMethod)
        .layer(middleware::from_fn_with_state(
            Arc::clone(&server),
            signed::require_signature,
        ))
        // The middleware reads and bounds the body.
        .layer(DefaultBodyLimit::disable())
        // After the signature layer, so that health checks need no secret.
        .route("/healthz", get(async || "ok\n"))
        .with_state(server)
}

struct KitServer {
    manifests: Vec<AgentRunnerManifest>,
    runners: HashMap<RunnerId, OfferedRunner>,
    secret: SigningSecret,
    options: RouterOptions,
    seen: SeenIds,
    unverified: Arc<UnverifiedBytes>,
    live: Arc<RunRegistry>,
    resumable: Arc<ResumableRuns>,
    host: HostClient,
}

struct OfferedRunner {
    runner: Arc<dyn Runner>,
    /// Time without a gateway that its runs survive. Absent: they end with their connection.
    resume_within: Option<Duration>,
}

impl KitServer {
    fn new(offered: Vec<Arc<dyn Runner>>, secret: SigningSecret, options: RouterOptions) -> Self {
        let mut manifests = Vec::new();
        let mut runners = HashMap::new();
        for runner in offered {
            let manifest = runner.manifest();
            if runners.contains_key(&manifest.id) {
                let id = &manifest.id;
                tracing::warn!(runner.id = %id, "runner {id} is offered twice, the first is served");
                continue;
            }
            let resume_within = resume_within(&manifest);
            let offered = OfferedRunner {
                runner,
                resume_within,
            };
            runners.insert(manifest.id.clone(), offered);
            manifests.push(manifest);
        }
        let live = Arc::new(RunRegistry::new(options.live_runs));
        let (seen, host) = (SeenIds::default(), HostClient::new());
        Self {
            manifests,
            runners,
            secret,
            options,
            seen,
            unverified: UnverifiedBytes::of_process(),
            live,
            resumable: Arc::default(),
            host,
        }
    }
}

fn resume_within(manifest: &AgentRunnerManifest) -> Option<Duration> {
    let seconds = manifest.resume_within_seconds.map(u64::from);
    let within = seconds.map_or(RESUME_WITHIN, Duration::from_secs);
    manifest.capabilities.resumable.then_some(within)
}

/// Extensions that the middleware sets for run handlers.
type Arrival = (Extension<SignedArrival>, Option<Extension<ShutdownSignal>>);

async fn call_single_url(
    State(server): State<Arc<KitServer>>,
    arrival: Arrival,
    body: Bytes,
) -> Result<Response, RequestRejection> {
    #[derive(Deserialize)]
    struct RunCall {
        action: EndpointAction,
    }
    match parse::<RunCall>(&body)?.action {
        EndpointAction::ListRunners => Ok(list_runners(State(server)).await.into_response()),
        EndpointAction::Run => start_run(State(server), arrival, body).await,
        EndpointAction::Resume => {
            let run_id = parse::<ResumeRequest>(&body)?.run_id;
            resume_run(State(server), Path(run_id), body).await
        }
        EndpointAction::Cancel => {
            let run_id = parse::<CancelRequest>(&body)?.run_id;
            cancel_run(State(server), Path(run_id))
                .await
                .map(IntoResponse::into_response)
        }
    }
}

async fn list_runners(State(server): State<Arc<KitServer>>) -> Json<RunnerList> {
    Json(RunnerList {
        runners: server.manifests.clone(),
    })
}

async fn start_run(
    State(server): State<Arc<KitServer>>,
    (Extension(call), shutdown): Arrival,
    body: Bytes,
) -> Result<Response, RequestRejection> {
    let request: AgentRunRequest = parse(&body)?;
    let offered = server.runners.get(&request.runner_id);
    let offered = offered.ok_or_else(|| RequestRejection::NoRunner(request.runner_id.clone()))?;
    let (runner, within) = (Arc::clone(&offered.runner), offered.resume_within);
    let run_id = request.context.run_id.clone();
    let shutdown = shutdown.map_or_else(ShutdownSignal::default, |Extension(signal)| signal);
    // Registered before the runner starts, so that an early cancel finds the run.
    let live = server
        .live
        .add(&run_id, shutdown.stop.child_token())
        .map_err(|refused| match refused {
            AddError::Full => RequestRejection::Busy,
            AddError::Present => RequestRejection::RunIsLive(run_id.clone()),
        })?;

    // The signature's timestamp is the gateway's clock: expiry and deadline are compared with it.
    let (deadline_at, now) = (request.context.runtime.deadline_at, call.signed_at);
    let host = match within {
        None => server.host.host(request.host, deadline_at, now),
        Some(within) => server.host.resumable_host(
            request.host,
            ResumeTerms {
                attempt: call.attempt,
                within,
                deadline_at,
                now_seconds: now,
            },
        ),
    };
    let run = RunHandle {
        context: request.context,
        host: host.clone(),
        cancel: live.signal().token().clone(),
    };
    // Called inside the stream, so that a panic of `run` itself fails the run, too.
    let results = stream::once(async move { runner.run(run) })
        .flatten()
        .boxed();
    let counted = host.clone();
    let results = finish(run_id.clone(), live.signal().clone(), results)
        .inspect(move |result| counted.note_result(result.sequence.unwrap_or_default()))
        .boxed();
    let heartbeat = server.options.heartbeat;
    let Some(within) = within else {
        let body = body::ResponseGuard::new(results, heartbeat, host, live);
        return Ok(event_stream(Body::from_stream(body.into_stream())));
    };
    let (run, reader) = ResumableRun::new(&run_id, request.runner_id, host, within);
    server.resumable.add(&run);
    let runs = Arc::clone(&server.resumable);
    let ShutdownSignal { stop, runs: tasks } = shutdown;
    tasks.spawn(run.work(results, live, runs, stop));
    Ok(event_stream(Body::from_stream(body::of_reader(
        reader, heartbeat,
    ))))
}

async fn resume_run(
    State(server): State<Arc<KitServer>>,
    Path(run_id): Path<String>,
    body: Bytes,
) -> Result<Response, RequestRejection> {
    let request: ResumeRequest = parse(&body)?;
    let run = server.resumable.find(&run_id, &request.runner_id);
    let run = run.ok_or(RequestRejection::NoRun(run_id))?;
    let (attempt, after) = (request.attempt, request.after.unwrap_or(0));
    let reader = run.resume(request)?;
    let run_id = run.id();
    tracing::info!(
        run.id = run_id,
        attempt,
        "a gateway resumes run {run_id} after result {after}"
    );
    let body = body::of_reader(reader, server.options.heartbeat);
    Ok(event_stream(Body::from_stream(body)))
}

fn event_stream(body: Body) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-cache, no-transform"),
        (
            // nginx would buffer the stream until its buffer is full.
            axum::http::HeaderName::from_static("x-accel-buffering"),
            "no",
        ),
    ];
    (headers, body).into_response()
}

async fn cancel_run(
    State(server): State<Arc<KitServer>>,
    Path(run_id): Path<String>,
) -> Result<StatusCode, RequestRejection> {
    if server.live.cancel(&run_id) {
        tracing::info!(run.id = run_id, "run {run_id} is cancelled");
        Ok(StatusCode::ACCEPTED)
    } else {
        Err(RequestRejection::NoRun(run_id))
    }
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, RequestRejection> {
    serde_json::from_slice(body).map_err(|error| RequestRejection::InvalidBody(error.to_string()))
}

#[cfg(test)]
mod tests;
