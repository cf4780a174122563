//! `POST /in/{source}`: events of other systems, by their own signatures (`docs/sources.md`).

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use domain::api_key::AgentReach;
use domain::event::check_posted;
use http::StatusCode;
use http::request::Parts;
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::api_key::KeyRole;
use protocol::error::ErrorBody;
use protocol::event::EventEnvelope;
use protocol::source::{SourceReceipt, SourceScheme};
use serde_json::Value;
use store::SourceRecord;

use runs::artifacts::BodyFiles;
use runs::intake::{EventSender, IntakeError};
use runs::own_limits::StartingKey;
use runs::sources::{
    ReceivedSource, SourceChallenge, SourceContent, SourceEvent, SourceOutcome, SourceRequest,
    count,
};
use web::auth_rate_limit::ClientNetwork;
use web::error::{ApiError, ApiResult};
use web::json::{BODY_BYTES, parse_part, read_body};
use web::memory_budget::Sender;
use web::query::PathOf;
use web::recheck::{AcceptedCredential, CallerCredential};
use web::state::ApiState;

/// Receives a request of another system.
///
/// The source verifies its signature and makes an event of it, or nothing. A repeated request is accepted, and has no
/// second event. Answers to the checks of an address by Slack and Feishu are `{"challenge": …}`. The body has at
/// most 1 MiB.
#[utoipa::path(post, path = "/in/{source}", tag = "client",
    params(("source" = String, Path, description = "Name of a source of the workspace `default`, or id of any source"),
        ("msg_signature" = Option<String>, Query, description = "Signature of WeCom"),
        ("timestamp" = Option<String>, Query, description = "Timestamp of WeCom"),
        ("nonce" = Option<String>, Query, description = "Nonce of WeCom")),
    request_body(content = Value, description = "The body as the sender makes it, of any media type"), responses(
    (status = 200, description = "Accepted, or ignored by the source. The body is empty for chat platforms", body = SourceReceipt),
    (status = 400, description = "The source cannot make an event of the request", body = ErrorBody),
    (status = 401, description = "No such source, or the signature is not valid", body = ErrorBody),
    (status = 409, description = "The event was not accepted", body = ErrorBody),
    (status = 413, description = "The body is larger than 1 MiB", body = ErrorBody),
    (status = 429, description = "A limit is reached. Retry after `Retry-After` seconds", body = ErrorBody),
    (status = 503, description = "Temporarily unavailable; retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn receive_source_event(
    State(state): State<ApiState>,
    PathOf(source): PathOf<String>,
    request: Request,
) -> ApiResult<Response> {
    receive(&state, &source, None, request).await
}

/// Answers `WeCom`'s check of an address with its decrypted `echostr`.
#[utoipa::path(get, path = "/in/{source}", tag = "client",
    params(("source" = String, Path, description = "Name of a source of the workspace `default`, or id of any source"),
        ("msg_signature" = Option<String>, Query, description = "Signature of WeCom"),
        ("timestamp" = Option<String>, Query, description = "Timestamp of WeCom"),
        ("nonce" = Option<String>, Query, description = "Nonce of WeCom"),
        ("echostr" = Option<String>, Query, description = "The encrypted text")), responses(
    (status = 200, description = "The decrypted text", content_type = "text/plain", body = String),
    (status = 401, description = "No such source, or the signature is not valid", body = ErrorBody),
    (status = 429, description = "A limit is reached. Retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn answer_source_check(
    State(state): State<ApiState>,
    PathOf(source): PathOf<String>,
    request: Request,
) -> ApiResult<Response> {
    receive(&state, &source, None, request).await
}

/// Receives a request of a system that signs nothing: the path has the secret.
#[utoipa::path(post, path = "/in/{source}/{secret}", tag = "client",
    params(("source" = String, Path, description = "Name of a source of the workspace `default`, or id of any source"),
        ("secret" = String, Path, description = "The secret of a source with the scheme `none`")),
    request_body(content = Value, description = "The body as the sender makes it, of any media type"), responses(
    (status = 200, description = "Accepted, or ignored by the source", body = SourceReceipt),
    (status = 400, description = "The source cannot make an event of the request", body = ErrorBody),
    (status = 401, description = "No such source, or the secret is not valid", body = ErrorBody),
    (status = 409, description = "The event was not accepted", body = ErrorBody),
    (status = 413, description = "The body is larger than 1 MiB", body = ErrorBody),
    (status = 429, description = "A limit is reached. Retry after `Retry-After` seconds", body = ErrorBody),
    (status = 503, description = "Temporarily unavailable; retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn receive_secret_event(
    State(state): State<ApiState>,
    PathOf((source, secret)): PathOf<(String, String)>,
    request: Request,
) -> ApiResult<Response> {
    receive(&state, &source, Some(&secret), request).await
}

async fn receive(
    state: &ApiState,
    named: &str,
    secret_in_path: Option<&str>,
    request: Request,
) -> ApiResult<Response> {
    let (mut parts, body) = request.into_parts();
    let network = ClientNetwork::of(&parts);
    let limit = state.auth_rate_limit();
    let now = state.runs.clock().now_seconds();
    let sources = &state.runs.sources;
    let refuse = |log: &dyn Fn()| {
        count(SourceOutcome::Refused);
        // The same answer for an unknown source and for a wrong signature.
        unverified(limit.refuse(network, now, log))
    };
    // Only for the look-up: a slow body must not hold a permit of the queue.
    let queue_permit = limit.pass(network, now).await?;
    let found = sources.find_open(named).await?;
    drop(queue_permit);
    let source = found.ok_or_else(|| refuse(&|| {}))?;
    charge(&mut parts, &source);
    let head = parts.clone();
    let body = read_body(Request::from_parts(parts, body), state).await?;
    let request = SourceRequest {
        method: &head.method,
        headers: &head.headers,
        query: head.uri.query().unwrap_or_default(),
        body: body.as_ref(),
        secret_in_path,
    };
    let received = sources.verify(&source, request).map_err(|refusal| {
        refuse(&|| {
            tracing::warn!(
                source.id = %source.id,
                source.name = source.name,
                "refused a request to source {}: {refusal}",
                source.name
            );
        })
    })?;
    match received {
        ReceivedSource::Challenge(challenge) => {
            count(SourceOutcome::Challenge);
            Ok(match challenge {
                SourceChallenge::Json(answer) => Json(answer).into_response(),
                SourceChallenge::Text(answer) => answer.into_response(),
            })
        }
        // Boxed: the other requests need no room for the acceptance of an event.
        ReceivedSource::Content(content) => Box::pin(accept(state, &source, content)).await,
    }
}

/// Rewrites a 401: the sender has no other credential. Other errors stay.
fn unverified(refused: ApiError) -> ApiError {
    if refused.code() != "unauthenticated" {
        return refused;
    }
    let message = "no source has this path and signature; check both, and the clock";
    ApiError::new(StatusCode::UNAUTHORIZED, "unauthenticated", message)
}

/// Charges the body to the source: requests without a valid signature crowd out those of this source only.
fn charge(parts: &mut Parts, source: &SourceRecord) {
    parts.extensions.insert(Sender::Key(source.key()));
    // The key may be revoked while the body arrives.
    let credential = CallerCredential::Key {
        id: source.key(),
        workspace: source.workspace.clone(),
        role: KeyRole::Client,
    };
    AcceptedCredential::note(parts, credential);
}

/// Makes an event of a verified request, and posts it.
async fn accept(
    state: &ApiState,
    source: &SourceRecord,
    content: SourceContent,
) -> ApiResult<Response> {
    let event = match state.runs.sources.event_of(source, content).await {
        SourceEvent::Event(event) => envelope_of(event),
        SourceEvent::Fault(fault) => Err(EventFaults(vec![fault])),
        SourceEvent::Nothing => {
            count(SourceOutcome::Ignored);
            return Ok(receipt(source, None));
        }
        SourceEvent::Busy => return Err(ApiError::unavailable("try again later")),
    };
    let event = event.map_err(|EventFaults(faults)| {
        count(SourceOutcome::Faulty);
        // Only the pointer: the messages may repeat content of the request.
        let pointer = faults.first().map_or("", |fault| &fault.pointer);
        tracing::warn!(
            source.id = %source.id,
            source.name = source.name,
            pointer,
            "source {} cannot make an event of a request; see `runnel sources try {}`",
            source.name,
            source.name
        );
        ApiError::invalid_argument("the source cannot make an event of this request")
    })?;
    let sent_id = event.event_id.clone();
    let scope = AgentReach::of(source.agents.clone());
    let sender = EventSender {
        workspace: &source.workspace,
        key: StartingKey::unlimited(source.key()),
        scope: &scope,
    };
    let files = BodyFiles::default();
    let intake = &state.runs.intake;
    match intake.accept(sender, event, &files, None, None).await {
        Ok(accepted) => {
            count(if accepted.replayed {
                SourceOutcome::Duplicate
            } else {
                SourceOutcome::Accepted
            });
            Ok(receipt(source, Some(accepted.answer.event_id)))
        }
        // The same key with other content, such as a count of retries: the first request stands.
        Err(IntakeError::IdempotencyMismatch | IntakeError::EventExists) => {
            count(SourceOutcome::Duplicate);
            Ok(receipt(source, sent_id))
        }
        Err(refused) => Err(not_accepted(source, refused)),
    }
}

/// The error for the sender: whether and when to repeat, but nothing about agents and runs.
fn not_accepted(source: &SourceRecord, refused: IntakeError) -> ApiError {
    count(SourceOutcome::NotAccepted);
    tracing::warn!(
        source.id = %source.id,
        source.name = source.name,
        cause = refused.name(),
        "an event of source {} was not accepted: {}",
        source.name,
        refused.name()
    );
    let seconds = match &refused {
        IntakeError::TooFast { wait } => u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).max(1),
        _ => 5,
    };
    let (status, _) = ApiError::from(refused).into_parts();
    match status {
        429 => {
            let message = "a limit is reached; repeat the request later".to_owned();
            ApiError::rate_limited_by("source_events", message, seconds)
        }
        500.. => ApiError::unavailable("temporarily unavailable; repeat the request later"),
        _ => ApiError::conflict("not_accepted", "the event was not accepted"),
    }
}

/// The answer to an accepted request. Chat platforms show its body or parse it, so they get none.
fn receipt(source: &SourceRecord, event_id: Option<String>) -> Response {
    match source.settings.scheme {
        SourceScheme::Slack
        | SourceScheme::Feishu
        | SourceScheme::Dingtalk
        | SourceScheme::Wecom => StatusCode::OK.into_response(),
        _ => Json(SourceReceipt { event_id }).into_response(),
    }
}

/// All faults of an event.
pub(crate) struct EventFaults(pub(crate) Vec<Fault>);

/// The envelope of an event, with the checks of posted ones.
pub(crate) fn envelope_of(event: JsonObject) -> Result<EventEnvelope, EventFaults> {
    let mut event = event;
    // The payload came within the limit of the route.
    let raw = event.remove("raw");
    let document = Value::Object(event).to_string();
    if document.len() > BODY_BYTES {
        let fault = Fault::new("", "the event is larger than 1 MiB");
        return Err(EventFaults(vec![fault]));
    }
    // From text, so that the checks and faults are those of a posted event.
    let parsed = parse_part::<EventEnvelope>(document.as_bytes());
    let mut event = parsed.map_err(|fault| EventFaults(vec![fault]))?;
    event.raw = raw;
    let faults = check_posted(&event);
    if faults.is_empty() {
        Ok(event)
    } else {
        Err(EventFaults(faults))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn event_faults_have_pointers_of_the_event() {
        let check = |event: Value, expected: &[&str]| {
            let Value::Object(event) = event else {
                panic!("an object")
            };
            let found = envelope_of(event).map_err(|EventFaults(faults)| {
                faults.into_iter().map(|fault| fault.pointer).collect()
            });
            let pointers: Vec<String> = found.err().unwrap_or_default();
            assert_eq!(pointers, expected);
        };
        check(json!({"event_type": "t", "raw": {"a": [1]}}), &[]);
        check(
            json!({"event_type": "t", "input": {"txt": "x"}}),
            &["/input/txt"],
        );
        check(
            json!({"event_type": "", "event_id": "ü"}),
            &["/event_type", "/event_id"],
        );
        check(
            json!({"event_type": "t", "data": {"a": "x".repeat(BODY_BYTES)}}),
            &[""],
        );
    }
}
