//! The answer page of an interaction link. It needs no API key and no scripts.

mod html;

use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use domain::interaction::form_post::submission_of_form;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION,
    REFERRER_POLICY, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use protocol::JsonObject;
use store::InteractionRecord;

use crate::client::interactions::{
    LinkCaller, accept_answer, answer_faults, check_open, read_request,
};
use html::{AnswerFormPage, PageNotice};
use web::error::{ApiError, ApiResult};
use web::json::{media_type, read_body};
use web::state::ApiState;

/// Maximum number of form pairs: 50 fields with at most 100 options each, a button, and a margin for unknown
/// pairs.
const MAX_PAIRS: usize = 6_000;

/// Fields of the form.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
pub(crate) struct AnswerForm {
    /// Id of the chosen action. Field values are `field-0`, `field-1` and so on, in the order of the fields.
    #[schema(max_length = 128)]
    action: Option<String>,
}

/// A caller with a link token in the page URL.
pub(crate) struct PageCaller(LinkCaller);

impl FromRequestParts<ApiState> for PageCaller {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, PageError> {
        let caller = LinkCaller::from_request_parts(parts, state).await;
        caller.map(Self).map_err(PageError)
    }
}

/// Shows an interaction as a form while it accepts an answer.
///
/// The page needs no scripts and loads no resources. The token in its URL is the credential.
#[utoipa::path(get, path = "/v1/interactions/{interaction}/page", tag = "client",
    params(("interaction" = String, Path, description = "The token of a link")), responses(
    (status = 200, description = "The form, or a confirmation of the answer", content_type = "text/html", body = String),
    (status = 400, description = "The address is not valid", content_type = "text/html", body = String),
    (status = 401, description = "The link token is not valid", content_type = "text/html", body = String),
    (status = 410, description = "The interaction has expired, or its run was cancelled", content_type = "text/html", body = String),
    (status = 429, description = "A limit is reached; retry after `Retry-After` seconds", content_type = "text/html", body = String),
    (status = 503, description = "Temporarily unavailable; retry after `Retry-After` seconds", content_type = "text/html", body = String)))]
pub(crate) async fn show_interaction_page(
    PageCaller(link): PageCaller,
    State(state): State<ApiState>,
) -> Result<Response, PageError> {
    let (_, question) = link.question(&state).await?;
    let record = &question.record;
    // A link that was used stays valid, so that a reload shows the confirmation.
    if record.answered.is_some() {
        return Ok(page(StatusCode::OK, html::notice(PageNotice::Answered)));
    }
    check_open(&state, record)?;
    form(StatusCode::OK, record, &JsonObject::new(), &[])
}

/// Submits the form of an answer page.
///
/// An accepted answer redirects to the page, which then confirms it. An invalid answer returns the form with
/// error messages.
#[utoipa::path(post, path = "/v1/interactions/{interaction}/page", tag = "client",
    params(("interaction" = String, Path, description = "The token of a link")),
    request_body(content = AnswerForm, content_type = "application/x-www-form-urlencoded"), responses(
    (status = 303, description = "Accepted; redirects to the page"),
    (status = 400, description = "The form with error messages", content_type = "text/html", body = String),
    (status = 401, description = "The link token is not valid", content_type = "text/html", body = String),
    (status = 408, description = "The body was not complete in time", content_type = "text/html", body = String),
    (status = 409, description = "The interaction has a different answer, or the agent cannot accept it now", content_type = "text/html", body = String),
    (status = 410, description = "The interaction has expired, or its run was cancelled", content_type = "text/html", body = String),
    (status = 413, description = "The body is larger than 256 KiB", content_type = "text/html", body = String),
    (status = 429, description = "A limit is reached; retry after `Retry-After` seconds", content_type = "text/html", body = String),
    (status = 503, description = "Temporarily unavailable; retry after `Retry-After` seconds", content_type = "text/html", body = String)))]
pub(crate) async fn submit_interaction_page(
    PageCaller(link): PageCaller,
    State(state): State<ApiState>,
    request: Request,
) -> Result<Response, PageError> {
    let pairs = read_form(request, &state).await?;
    // After the body: it may take long, and the state of the interaction changes meanwhile.
    let (workspace, question) = link.question(&state).await?;
    let record = &question.record;
    let interaction = read_request(record).map_err(ApiError::from)?;
    let submission = submission_of_form(&interaction, &pairs);
    // With an answer, the intake compares: an equal one succeeds, thus a repeated form does no harm.
    if record.answered.is_none() {
        check_open(&state, record)?;
        let faults = answer_faults(record, &interaction, &submission).map_err(ApiError::from)?;
        if !faults.is_empty() {
            return form(StatusCode::BAD_REQUEST, record, &submission.values, &faults);
        }
    }
    accept_answer(&state, &workspace, &question, submission).await?;
    // Relative: a proxy may serve the gateway under a path prefix.
    let back = (LOCATION, HeaderValue::from_static("page"));
    // 303, so that a reload of the page does not send the form again.
    let mut response = (StatusCode::SEE_OTHER, [back]).into_response();
    secure(response.headers_mut());
    Ok(response)
}

async fn read_form(request: Request, state: &ApiState) -> ApiResult<Vec<(String, String)>> {
    if media_type(request.headers()) != "application/x-www-form-urlencoded" {
        let message = "send the form as `application/x-www-form-urlencoded`";
        return Err(ApiError::invalid_argument(message));
    }
    let body = read_body(request, state).await?;
    let pairs = url::form_urlencoded::parse(&body).into_owned();
    // A bound on the work for a body of separators.
    Ok(pairs.take(MAX_PAIRS).collect())
}

fn form(
    status: StatusCode,
    record: &InteractionRecord,
    values: &JsonObject,
    faults: &[protocol::admin::Fault],
) -> Result<Response, PageError> {
    let request = read_request(record).map_err(ApiError::from)?;
    let form = AnswerFormPage {
        request: &request,
        expires_at: record.expires_at.div_euclid(1000),
        values,
        faults,
    };
    Ok(page(status, form.html()))
}

/// An error rendered as a page.
pub(crate) struct PageError(ApiError);

impl From<ApiError> for PageError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let notice = PageNotice::of(error.code(), error.reason(), error.message());
        let text = html::notice(notice);
        // Counted and logged like any error; only the body differs.
        let refused = error.into_response();
        let mut response = page(refused.status(), text);
        let wait = refused.headers().get(RETRY_AFTER).cloned();
        if let Some(wait) = wait {
            response.headers_mut().insert(RETRY_AFTER, wait);
        }
        response
    }
}

fn page(status: StatusCode, html: String) -> Response {
    let kind = (
        CONTENT_TYPE,
        HeaderValue::from_static("text/html; charset=utf-8"),
    );
    let mut response = (status, [kind], html).into_response();
    secure(response.headers_mut());
    response
}

/// Adds security and cache headers.
fn secure(headers: &mut HeaderMap) {
    const FRAMES: HeaderName = HeaderName::from_static("x-frame-options");
    const ROBOTS: HeaderName = HeaderName::from_static("x-robots-tag");
    headers.insert(CONTENT_SECURITY_POLICY, html::POLICY.clone());
    // Shared caches and the back button must not show the interaction of another user.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Hide the URL from other sites. With `no-referrer` browsers would post the form with `Origin: null`, which
    // is rejected as a foreign origin.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(FRAMES, HeaderValue::from_static("DENY"));
    headers.insert(ROBOTS, HeaderValue::from_static("noindex"));
}
