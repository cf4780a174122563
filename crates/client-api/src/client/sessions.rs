//! Sessions of people, who sign in with an `OpenID` provider.

use axum::Json;
use axum::extract::{Request, State};
use http::StatusCode;
use keys::api_key::{IssueError, issue, shown};
use protocol::api_key::{CreatedApiKey, SignInSettings};
use protocol::error::ErrorBody;
use protocol::principal::{Principal, PrincipalKind};
use secrecy::ExposeSecret as _;
use web::auth::{RequestId, bearer};
use web::auth_rate_limit::ClientNetwork;
use web::error::{ApiError, ApiResult};
use web::sign_in::{SignIn, SignInError};
use web::state::ApiState;

/// Seconds after which a sign-in is tried again during an outage of the provider.
const OUTAGE_SECONDS: u32 = 60;

/// Retrieves what a program needs to sign a person in.
#[utoipa::path(get, path = "/v1/sign-in", tag = "client", responses(
    (status = 200, description = "The provider, and its endpoints for the device flow and the code flow", body = SignInSettings),
    (status = 404, description = "The configuration has no `auth.oidc`", body = ErrorBody),
    (status = 503, description = "The provider cannot be read. Retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn get_sign_in(State(state): State<ApiState>) -> ApiResult<Json<SignInSettings>> {
    let sign_in = configured(&state)?;
    let document = sign_in.document(state.runs.clock().now_ms()).await;
    let document = document.map_err(|error| unavailable(&error))?;
    let rules = sign_in.rules();
    Ok(Json(SignInSettings {
        issuer: rules.issuer.clone(),
        audience: rules.audience.clone(),
        client_id: rules.client_id.clone(),
        scope: rules.scopes.join(" "),
        authorization_endpoint: document.code_flow().map(|flow| flow.authorization_endpoint),
        device_authorization_endpoint: document.device_authorization_endpoint,
        token_endpoint: document.token_endpoint,
    }))
}

/// Creates a session: an API key that expires.
///
/// The credential of the request is an ID token or a signed access token of the provider. The rules of `auth.oidc` give
/// the role. An admin ends a session like any key, with `DELETE /v1/api-keys/{api_key_id}`.
#[utoipa::path(post, path = "/v1/sessions", tag = "client",
    params(("Authorization" = String, Header, description = "`Bearer` and a token of the provider")), responses(
    (status = 201, description = "Created. `key` is only in this response", body = CreatedApiKey),
    (status = 401, description = "No valid token of the provider", body = ErrorBody),
    (status = 403, description = "No rule of `auth.oidc` gives the person a role", body = ErrorBody),
    (status = 404, description = "The configuration has no `auth.oidc`", body = ErrorBody),
    (status = 429, description = "Too many invalid credentials from this address", body = ErrorBody),
    (status = 503, description = "The provider cannot be read. Retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn create_session(
    State(state): State<ApiState>,
    request: Request,
) -> ApiResult<(StatusCode, Json<CreatedApiKey>)> {
    let sign_in = configured(&state)?;
    let (parts, _) = request.into_parts();
    let (source, now_ms) = (ClientNetwork::of(&parts), state.runs.clock().now_ms());
    let now = now_ms.div_euclid(1000);
    let limit = state.auth_rate_limit();
    // Before the signature check: guesses over the limit must not cost it.
    let _queue_permit = limit.pass(source, now).await?;
    let verified = sign_in.verify(bearer(&parts.headers)?, now_ms).await;
    let person = match verified {
        Ok(person) => person,
        Err(SignInError::Refused(fault)) if fault.is_of_valid_token() => {
            return Err(ApiError::unauthorized(format!(
                "you have no role here: {fault}"
            )));
        }
        Err(SignInError::Refused(fault)) => {
            // The response is equal for every cause; the log has it.
            return Err(limit.refuse(source, now, || tracing::warn!("refused a sign-in: {fault}")));
        }
        Err(error) => return Err(unavailable(&error)),
    };
    let by = Principal::identified(PrincipalKind::Person, person.subject);
    let stamp = RequestId::of(&parts.headers).stamp(&state, by);
    let issued = issue(
        state.runs.store(),
        &stamp,
        &sign_in.rules().workspace,
        &person.key,
    )
    .await;
    let (record, key) = issued.map_err(|error| match error {
        // Deny by default: without its agents, the key would reach all.
        IssueError::UnknownAgent(_) => ApiError::unauthorized(
            "you have no role here: a rule of auth.oidc.roles names an agent that does not exist",
        ),
        IssueError::Store(error) => error.into(),
    })?;
    tracing::info!(api_key.id = %record.id, api_key.name = record.name, role = record.role.as_str(),
        "a person signed in, with API key {}", record.id);
    let created = CreatedApiKey {
        api_key: shown(record),
        key: key.expose_secret().to_owned(),
    };
    Ok((StatusCode::CREATED, Json(created)))
}

fn configured(state: &ApiState) -> ApiResult<&SignIn> {
    let advice = "in this gateway; use an API key, or set auth.oidc";
    let absent = || ApiError::not_found("sign-in", advice);
    state.sign_in.as_ref().ok_or_else(absent)
}

fn unavailable(error: &SignInError) -> ApiError {
    ApiError::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "runtime_error",
        error.to_string(),
    )
    .retryable_after(OUTAGE_SECONDS)
}
