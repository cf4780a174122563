//! Authentication of runners by the token of a live run.

use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath};
use http::request::Parts;
use protocol::id::RunId;

use super::{LiveCaller, RunCaller, bearer};
use crate::auth_rate_limit::ClientNetwork;
use crate::error::ApiError;
use crate::error::limits::rate_limited;
use crate::memory_budget::Sender;
use crate::query::trace_header;
use crate::recheck::{AcceptedCredential, AfterCancel, CallerCredential, RunAccess, run_moved};
use crate::response_memory::ResponseMemory;
use crate::state::ApiState;
use keys::token::TokenFault;
use runs::call_limits::CallKind;
use runs::grant::Grant;
use runs::pauses::PauseWait;

impl FromRequestParts<ApiState> for RunCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        authenticate_run(parts, state, AfterCancel::Open).await
    }
}

impl FromRequestParts<ApiState> for LiveCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        // `Refused` applies to the checks later in the call; the present state is checked below.
        let caller = authenticate_run(parts, state, AfterCancel::Refused).await?;
        if state.runs.grants.is_cancel_requested(&caller.grant) {
            return Err(ApiError::cancelled());
        }
        Ok(Self(caller))
    }
}

/// Authenticates the run token in the request header.
async fn authenticate_run(
    parts: &mut Parts,
    state: &ApiState,
    after_cancel: AfterCancel,
) -> Result<RunCaller, ApiError> {
    let token = bearer(&parts.headers).map(str::to_owned);
    run_of(parts, token, state, after_cancel).await
}

/// Authenticates a run token from a request body. Fails if the run was cancelled. A wrong token counts against
/// the rate limit like one in a header.
pub async fn run_of_token(
    parts: &mut Parts,
    token: &str,
    state: &ApiState,
) -> Result<RunCaller, ApiError> {
    let caller = run_of(parts, Ok(token.to_owned()), state, AfterCancel::Refused).await?;
    if state.runs.grants.is_cancel_requested(&caller.grant) {
        return Err(ApiError::cancelled());
    }
    Ok(caller)
}

/// Routes that a frozen run may use: without them its runner would lose the run.
const OPEN_WHILE_FROZEN: [&str; 4] = [
    "/host/v1/run/cancel",
    "/host/v1/run/heartbeat",
    "/host/v1/run/results",
    "/host/v1/token",
];

/// A new route is delayed until it is listed above.
fn is_delayed_by_freeze(parts: &Parts) -> bool {
    let route = parts.extensions.get::<MatchedPath>();
    !OPEN_WHILE_FROZEN.contains(&route.map_or("", MatchedPath::as_str))
}

async fn run_of(
    parts: &mut Parts,
    token: Result<String, ApiError>,
    state: &ApiState,
    after_cancel: AfterCancel,
) -> Result<RunCaller, ApiError> {
    let source = ClientNetwork::of(parts);
    let now = state.runs.clock().now_seconds();
    // Before the signature check: wrong tokens over the limit must not cost CPU. Held until the check is over.
    let queue_permit = state.auth_rate_limit().pass(source, now).await?;
    let found = find_live_grant(&token?, state).await?;
    // The token was valid, so it does not count as a wrong one.
    if matches!(found, Err(TokenRejection::Moved)) {
        return Err(run_moved());
    }
    let grant = found.map_err(|refusal| {
        let log = || tracing::info!(?refusal, "a run token was refused");
        // All causes give the same response; only the log shows them.
        state.auth_rate_limit().refuse(source, now, log)
    })?;
    // A frozen call waits below, and must not keep other callers of its address from their check.
    drop(queue_permit);
    // The grant may be cached longer than its deadline.
    let aborts = &state.runs.aborts;
    if aborts.time_left(&grant).is_zero() && !aborts.is_extended(&grant).await {
        return Err(ApiError::deadline_exceeded());
    }
    // After the token check: other callers must not use up the rate of a run.
    if !state.runs.calls().admit_call(&grant) {
        return Err(rate_limited());
    }
    let call_permit = state.runs.calls().begin(&grant, CallKind::Host)?;
    let answer = ResponseMemory::of(&parts.extensions)?;
    answer.charge_to(Sender::Run(grant.run.id, grant.run.endpoint_id));
    // Until the response is sent, because the runner may read it slowly.
    answer.hold(call_permit);
    let access = RunAccess {
        driven_here: state.runs.aborts.drives(&grant),
        grant: Arc::clone(&grant),
        after_cancel,
    };
    if is_delayed_by_freeze(parts)
        && state.runs.pauses.delay_call(&access.grant).await? == PauseWait::Over
    {
        access.check(state).await?;
    }
    AcceptedCredential::note(parts, CallerCredential::Run(access.clone()));
    let caller = RunCaller {
        grant,
        answer,
        trace_parent: state.runs.spans().parent_of(trace_header(&parts.headers)),
        access,
    };
    parts.extensions.insert(caller.sender());
    Ok(caller)
}

/// The reason for a rejection. It goes to the log, not to the caller.
#[derive(Debug)]
#[expect(dead_code, reason = "the log shows all its fields")]
enum TokenRejection {
    Fault(TokenFault),
    DoesNotLive(RunId),
    /// A resume gives the runner a new token.
    Moved,
}

/// The grant of the live run of a token.
async fn find_live_grant(
    token: &str,
    state: &ApiState,
) -> Result<Result<Arc<Grant>, TokenRejection>, ApiError> {
    let claims = match state.runs.keys().verify(token).await {
        Ok(claims) => claims,
        Err(fault) => return Ok(Err(TokenRejection::Fault(fault))),
    };
    let grants = &state.runs.grants;
    let grant = grants.find_grant(claims.run_id).await?;
    // The hash excludes tokens of another snapshot.
    let grant = grant.filter(|grant| {
        grant.run.workspace.as_str() == claims.ws
            && grant.run.runner_id == claims.sub
            && grant.run.snapshot_sha256 == claims.res
    });
    let ended = TokenRejection::DoesNotLive(claims.run_id);
    Ok(match grant {
        Some(grant) if grant.attempt == claims.attempt => Ok(grant),
        Some(grant) if grants.has_moved(claims.attempt, &grant).await? => {
            Err(TokenRejection::Moved)
        }
        // The token of an earlier delivery.
        Some(_) | None => Err(ended),
    })
}
