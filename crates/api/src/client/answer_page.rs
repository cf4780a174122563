//! The page of an interaction's link: a person answers there without an API key and without scripts.

mod html;

use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use domain::interaction::form_post::submission_of_form;
use domain::interaction::{check_answer, check_submission};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION,
    REFERRER_POLICY, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use protocol::JsonObject;
use store::InteractionRecord;

use crate::ApiState;
use crate::client::interactions::{LinkCaller, check_open, read_request, take_answer};
use crate::error::{ApiError, ApiResult};
use crate::json::{media_type, read_body};
use html::{Form, Notice};

/// The most name-value pairs of a form: 50 fields of at most 100 options, a button, and some that mean nothing.
const MOST_PAIRS: usize = 6_000;

/// What the form sends.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
pub(crate) struct AnswerForm {
    /// The id of an action. The values of fields stand beside it, as `field-0`, `field-1` … in their order.
    #[schema(max_length = 128)]
    action: Option<String>,
}

/// A link's token in the address of its page.
pub(crate) struct PageCaller(LinkCaller);

impl FromRequestParts<ApiState> for PageCaller {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Refused> {
        let caller = LinkCaller::from_request_parts(parts, state).await;
        caller.map(Self).map_err(Refused)
    }
}

/// Shows an interaction to a person, by its link: as a form while it can be answered.
///
/// The page needs no script and loads nothing. The token in its address is the credential.
#[utoipa::path(get, path = "/v1/interactions/{interaction}/page", tag = "client",
    params(("interaction" = String, Path, description = "The token of a link")), responses(
    (status = 200, description = "The form, or that it was answered", content_type = "text/html", body = String),
    (status = 400, description = "The address is not valid", content_type = "text/html", body = String),
    (status = 401, description = "No link has this token", content_type = "text/html", body = String),
    (status = 410, description = "It has expired, or its run was cancelled", content_type = "text/html", body = String),
    (status = 429, description = "`Retry-After` tells how long to wait", content_type = "text/html", body = String),
    (status = 503, description = "Try again after `Retry-After`", content_type = "text/html", body = String)))]
pub(crate) async fn show_interaction_page(
    PageCaller(link): PageCaller,
    State(state): State<ApiState>,
) -> Result<Response, Refused> {
    let (_, question) = link.question(&state).await?;
    let record = &question.record;
    if record.answered.is_some() {
        return Ok(page(StatusCode::OK, html::notice(Notice::Answered)));
    }
    check_open(&state, record)?;
    form(StatusCode::OK, record, &JsonObject::new(), &[])
}

/// Answers an interaction by the form of its page.
///
/// A good answer leads back to the page, which then says that it was answered. An answer that does not fit is shown
/// with what is wrong.
#[utoipa::path(post, path = "/v1/interactions/{interaction}/page", tag = "client",
    params(("interaction" = String, Path, description = "The token of a link")),
    request_body(content = AnswerForm, content_type = "application/x-www-form-urlencoded"), responses(
    (status = 303, description = "Taken: back to the page"),
    (status = 400, description = "The form, with what is wrong", content_type = "text/html", body = String),
    (status = 401, description = "No link has this token", content_type = "text/html", body = String),
    (status = 408, description = "The body did not come in time", content_type = "text/html", body = String),
    (status = 409, description = "It was answered otherwise before, or the agent cannot take the answer now", content_type = "text/html", body = String),
    (status = 410, description = "It has expired, or its run was cancelled", content_type = "text/html", body = String),
    (status = 413, description = "The body is larger than 256 KiB", content_type = "text/html", body = String),
    (status = 429, description = "`Retry-After` tells how long to wait", content_type = "text/html", body = String),
    (status = 503, description = "Try again after `Retry-After`", content_type = "text/html", body = String)))]
pub(crate) async fn submit_interaction_page(
    PageCaller(link): PageCaller,
    State(state): State<ApiState>,
    request: Request,
) -> Result<Response, Refused> {
    let pairs = read_form(request, &state).await?;
    let (workspace, question) = link.question(&state).await?;
    let record = &question.record;
    let asked = read_request(record).map_err(ApiError::from)?;
    let submission = submission_of_form(&asked, &pairs);
    if record.answered.is_none() {
        check_open(&state, record)?;
        let mut faults = check_submission(&submission);
        faults.extend(check_answer(&asked, &submission));
        if !faults.is_empty() {
            return form(StatusCode::BAD_REQUEST, record, &submission.values, &faults);
        }
    }
    take_answer(&state, &workspace, &question, submission).await?;
    // Relative: a proxy may serve the gateway below a path of its own.
    let back = (LOCATION, HeaderValue::from_static("page"));
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
    Ok(pairs.take(MOST_PAIRS).collect())
}

fn form(
    status: StatusCode,
    record: &InteractionRecord,
    values: &JsonObject,
    faults: &[protocol::admin::Fault],
) -> Result<Response, Refused> {
    let request = read_request(record).map_err(ApiError::from)?;
    let form = Form {
        request: &request,
        expires_at: record.expires_at.div_euclid(1000),
        values,
        faults,
    };
    Ok(page(status, form.html()))
}

/// A refusal as a page.
pub(crate) struct Refused(ApiError);

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let notice = Notice::of(error.code(), error.reason(), error.message());
        let text = html::notice(notice);
        // Counted and logged as any refusal is; its body alone is another one.
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

/// What every response of the page says to browsers and caches.
fn secure(headers: &mut HeaderMap) {
    const FRAMES: HeaderName = HeaderName::from_static("x-frame-options");
    const ROBOTS: HeaderName = HeaderName::from_static("x-robots-tag");
    headers.insert(CONTENT_SECURITY_POLICY, html::POLICY.clone());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // The address is told to no other site. `no-referrer` would have browsers post the form with `Origin: null`, which
    // is refused as a foreign page.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(FRAMES, HeaderValue::from_static("DENY"));
    headers.insert(ROBOTS, HeaderValue::from_static("noindex"));
}
