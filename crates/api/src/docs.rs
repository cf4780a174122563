//! `/docs`: the API document as a page to read and to try. Its files are in the binary, and it loads
//! nothing from elsewhere.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
};
use utoipa_swagger_ui::{Config, serve};

use crate::ApiState;
use crate::error::ApiError;

/// What the page may do: run its own scripts and call this gateway. Its icons are written into its
/// style sheet.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// Nobody else is asked whether the document is valid, and no key outlives the page.
static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    let config = Config::from("../openapi.json")
        .use_base_layout()
        .validator_url("none")
        .persist_authorization(false)
        .try_it_out_enabled(true)
        .display_request_duration(true)
        .filter(true)
        .default_models_expand_depth(0);
    Arc::new(config)
});

/// The page and its files. They are no part of the API, so the document does not list them.
pub(super) fn page() -> Router<ApiState> {
    Router::new()
        // The page names its files relative to this slash.
        .route("/docs", get(async || Redirect::permanent("docs/")))
        .route("/docs/", get(async || file("index.html")))
        .route(
            "/docs/{file}",
            get(
                async |name: Result<Path<String>, PathRejection>| match name {
                    Ok(Path(name)) => file(&name),
                    Err(_) => ApiError::no_route().into_response(),
                },
            ),
        )
}

fn file(name: &str) -> Response {
    let found = serve(name, Arc::clone(&CONFIG));
    let Some(file) = found.expect("our settings are JSON and the files are UTF-8") else {
        return ApiError::no_route().into_response();
    };
    let cache = HeaderValue::from_static("public, max-age=300");
    let no_referrer = HeaderValue::from_static("no-referrer");
    let content_type = HeaderValue::try_from(file.content_type).expect("a media type is ASCII");
    (
        [
            (CONTENT_TYPE, content_type),
            (CONTENT_SECURITY_POLICY, POLICY),
            (REFERRER_POLICY, no_referrer),
            (CACHE_CONTROL, cache),
        ],
        file.bytes,
    )
        .into_response()
}
