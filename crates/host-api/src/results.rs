//! Appended results of a runner that answered with `202`, under a lease.

use std::borrow::Cow;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request, State};
use domain::json_repair::repair_json_text;
use domain::normalize::ResultLimits;
use protocol::error::ErrorBody;
use protocol::host_api::{AppendedResults, RunHeartbeat, RunResults};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use store::{Heartbeating, ResultsAppended};

use runs::call_limits::CallKind;
use telemetry::tolerance::{Peer, tolerated};
use web::auth::{AuditedCall, RunCaller};
use web::error::appended::{append_limit_exceeded, not_deferred, sequence_conflict, sequence_gap};
use web::error::{ApiError, ApiResult};
use web::json::{json_bytes_of, parse_raw};
use web::state::ApiState;

/// Maximum results of a call.
const MAX_RESULTS: usize = 1000;
/// Allowance for the JSON around the results, in bytes.
const AROUND_BYTES: usize = 64 * 1024;

/// The original results of a call with their sequences.
pub(crate) struct SequencedResults(Vec<(u64, String)>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AppendBody {
    results: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct AppendedEnvelope<'a> {
    #[serde(borrow, default)]
    run_id: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(default)]
    sequence: Value,
}

impl AppendedEnvelope<'_> {
    /// Finds a fault that processing would always reject, so that the runner can correct it. Returns field and
    /// rule. A result for another run is not reported here: processing fails the run for it.
    fn fault(&self) -> Option<(&'static str, &'static str)> {
        let is_object =
            |part: Option<&RawValue>| part.is_none_or(|part| part.get().starts_with('{'));
        if self.run_id.as_deref().is_none_or(str::is_empty) {
            Some(("run_id", "must be the id of this run"))
        } else if self
            .kind
            .as_deref()
            .is_none_or(|kind| kind.is_empty() || kind.len() > 128)
        {
            Some(("type", "must be the type of a result, 1 to 128 bytes"))
        } else if !is_object(self.data) {
            Some(("data", "must be an object"))
        } else if !is_object(self.usage) {
            Some(("usage", "must be an object"))
        } else {
            None
        }
    }
}

impl FromRequest<ApiState> for SequencedResults {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> ApiResult<Self> {
        let limits = state.runs.limits().results;
        let body = json_bytes_of(request, state, body_limit(limits)).await?;
        sequenced_results(&body, limits).map(Self)
    }
}

/// Body limit of appended results, in bytes.
pub fn body_limit(limits: ResultLimits) -> usize {
    limits.event_bytes.saturating_add(AROUND_BYTES)
}

/// Parses the results of a body with their sequences.
pub fn sequenced_results(body: &Bytes, limits: ResultLimits) -> ApiResult<Vec<(u64, String)>> {
    let AppendBody { results } = read(body)?;
    if results.is_empty() || results.len() > MAX_RESULTS {
        let message = format!("must hold 1 to {MAX_RESULTS} results");
        return Err(ApiError::invalid("/results", message));
    }
    let mut sequenced_results: Vec<(u64, String)> = Vec::with_capacity(results.len());
    for (index, raw) in results.iter().enumerate() {
        let result_pointer = format!("/results/{index}");
        // Checked here, so that a runner learns of it while it can still correct the result.
        let envelope: Result<AppendedEnvelope<'_>, _> = serde_json::from_str(raw.get());
        let Ok(envelope) = envelope else {
            return Err(ApiError::invalid(
                result_pointer,
                "must be an AgentRunResult",
            ));
        };
        if let Some((member, message)) = envelope.fault() {
            return Err(ApiError::invalid(
                format!("{result_pointer}/{member}"),
                message,
            ));
        }
        let pointer = format!("{result_pointer}/sequence");
        let Some(sequence) = envelope.sequence.as_u64().filter(|sequence| *sequence > 0) else {
            let message = "must be an integer from 1 on: the position of this result";
            return Err(ApiError::invalid(pointer, message));
        };
        if sequenced_results
            .last()
            .is_some_and(|(last, _)| sequence != last + 1)
        {
            let message = "must be one more than that of the result before";
            return Err(ApiError::invalid(pointer, message));
        }
        if raw.get().len() > limits.event_bytes {
            let max_bytes = limits.event_bytes;
            let message = format!(
                "{result_pointer} is larger than the {max_bytes} bytes of limits.event_bytes; upload it as an artifact"
            );
            return Err(ApiError::too_large(message));
        }
        sequenced_results.push((sequence, raw.get().to_owned()));
    }
    Ok(sequenced_results)
}

/// Parses a body whose strings may be invalid JSON. Results are stored unchanged and repaired during processing.
/// Invalid UTF-8 cannot be stored, so it is repaired here.
fn read(body: &Bytes) -> ApiResult<AppendBody> {
    let repaired = repair_json_text(body);
    if matches!(repaired, Cow::Borrowed(_)) {
        // The usual case: nothing to repair, and no copy.
        return parse_raw(body);
    }
    let repaired_body: AppendBody = parse_raw(&repaired)?;
    tolerated(Peer::Runner, "text_repaired", "POST /host/v1/run/results");
    // The original text is stored if it is valid UTF-8; processing repairs it.
    Ok(serde_json::from_slice(body).unwrap_or(repaired_body))
}

const RESULTS: AuditedCall<'static> = AuditedCall {
    action: "run_append_result",
    resource: "run",
    operation: "append",
};

/// Appends results to a run that was answered with `202`.
///
/// - **Sequences.** Each result has a `sequence`: 1, 2, 3 and so on over all calls. Results accepted before are
///   skipped, so a call can be retried. A different result under an accepted sequence fails with that sequence,
///   a gap with the expected one.
/// - **Processing.** Accepted results are stored, processed like those of a stream, and then appear in the
///   ledger.
/// - **End.** `run.completed` or `run.failed` ends the run and its token. After an accepted terminal result, a
///   401 means that the run is done.
/// - **Lease.** Without a call or heartbeat for `runs.append_lease_seconds`, the run fails as
///   `runner.orphaned`.
///
/// A cancelled run may call this during its grace period.
#[utoipa::path(post, path = "/host/v1/run/results", tag = "host", security(("run_token" = [])),
    request_body(content = RunResults), responses(
    (status = 200, description = "Stored up to this sequence", body = AppendedResults),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 409, description = "`details.reason`: sequence_gap (`details.expected`), sequence_conflict (`details.sequence`), not_deferred", body = ErrorBody),
    (status = 413, description = "The results of the call exceed `limits.event_bytes`, or those of the run exceed `limits.run_bytes`", body = ErrorBody),
    (status = 429, description = "The dispatch has no response yet and another call waits for it (`details.reason`: early_results), or the run's call rate is too high", body = ErrorBody)))]
pub(crate) async fn append_results(
    caller: RunCaller,
    State(state): State<ApiState>,
    SequencedResults(results): SequencedResults,
) -> ApiResult<Json<AppendedResults>> {
    let bytes = results.iter().map(|(_, raw)| raw.len()).sum();
    // Stored in the transaction of the results: a crash must not separate them.
    let audit = caller.audit_entry(&state, RESULTS, None, bytes);
    let appended = state
        .runs
        .async_runs
        .append_results(&caller.grant, results, audit);
    match appended.await?.ok_or_else(early)? {
        ResultsAppended::Through(accepted_through) => {
            Ok(Json(AppendedResults { accepted_through }))
        }
        ResultsAppended::Gap { expected } => Err(sequence_gap(expected)),
        ResultsAppended::Conflict { sequence } => Err(sequence_conflict(sequence)),
        ResultsAppended::Full => Err(append_limit_exceeded()),
        // Audited here, since the transaction has written nothing.
        ResultsAppended::NotAsync => Err(audited_not_deferred(&caller, &state, RESULTS).await?),
        // The terminal result may have been accepted before; its response was lost.
        ResultsAppended::RunEnded => Err(ApiError::unauthenticated()),
    }
}

/// Renews the lease of a run that was answered with `202`.
#[utoipa::path(post, path = "/host/v1/run/heartbeat", tag = "host", security(("run_token" = [])), responses(
    (status = 200, description = "The lease is renewed", body = RunHeartbeat),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 409, description = "`details.reason`: not_deferred", body = ErrorBody),
    (status = 429, description = "The dispatch has no response yet and another call waits for it (`details.reason`: early_results), or the run's call rate is too high", body = ErrorBody)))]
pub(crate) async fn run_heartbeat(
    caller: RunCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<RunHeartbeat>> {
    let call = AuditedCall {
        action: "run_heartbeat",
        resource: "run",
        operation: "heartbeat",
    };
    let heartbeat = state.runs.async_runs.note_heartbeat(&caller.grant).await?;
    let deferral = match heartbeat.ok_or_else(early)? {
        Heartbeating::Alive(deferral) => deferral,
        Heartbeating::NotAsync => return Err(audited_not_deferred(&caller, &state, call).await?),
        Heartbeating::RunEnded => return Err(ApiError::unauthenticated()),
    };
    caller.record(&state, call, None).await?;
    Ok(Json(RunHeartbeat {
        accepted_through: deferral.accepted_through,
        lease_expires_at: deferral.lease_expires_at.div_euclid(1000),
        cancel_requested: state.runs.grants.is_cancel_requested(&caller.grant),
    }))
}

/// Another call of the run waits for the response to its dispatch.
fn early() -> ApiError {
    CallKind::AnswerWait.limit().into()
}

/// Audits a call of a run without `202`, and returns its error.
async fn audited_not_deferred(
    caller: &RunCaller,
    state: &ApiState,
    call: AuditedCall<'_>,
) -> ApiResult<ApiError> {
    let refused = not_deferred();
    caller.record(state, call, Some(refused.message())).await?;
    Ok(refused)
}
