//! `/docs`: the API documents in Swagger UI, and the guide for clients. All files are embedded in the binary,
//! compressed; the page loads nothing from other hosts.

mod guide;

use std::io::Read as _;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use flate2::read::GzDecoder;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
};
use utoipa_swagger_ui::{Config, SwaggerFile, Url, serve};

use crate::api::openapi::selected::{client_document, host_document};
use crate::api::openapi::served::serialized;
use web::error::routing::no_route;
use web::state::ApiState;

/// Content security policy: own scripts and requests to this gateway only. Icons are inlined in the style sheet.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// Documents of the page, in files of their own: the full document has more routes of runners than of clients.
const CLIENT_FILE: &str = "gateway.json";
const HOST_FILE: &str = "host.json";

/// Swagger UI settings. The external validator is off. A key stays in the local storage of the browser until *Logout*,
/// so that a reload does not ask for it again; only scripts of this gateway can read it.
static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    let documents = [
        Url::with_primary("Gateway", CLIENT_FILE, true),
        Url::new("Host API", HOST_FILE),
        Url::new("Runner", "../openapi/runner.json"),
    ];
    let config = Config::new(documents)
        .validator_url("none")
        .persist_authorization(true)
        .try_it_out_enabled(true)
        .display_request_duration(true)
        .filter(true)
        .default_models_expand_depth(0);
    Arc::new(config)
});

/// Routes of the page and its files. They are not part of the API document.
pub(super) fn page() -> Router<ApiState> {
    Router::new()
        // Relative: a proxy may serve the gateway under a path prefix.
        .route("/", get(async || Redirect::temporary("docs/")))
        // Relative file names on the page need the trailing slash.
        .route("/docs", get(async || Redirect::permanent("docs/")))
        .route("/docs/", get(async || index()))
        .route(
            "/docs/guide",
            get(async || respond("text/html; charset=utf-8", guide::page())),
        )
        .route(
            "/docs/{file}",
            get(
                async |name: Result<Path<String>, PathRejection>| match name {
                    Ok(Path(name)) if name == "index.html" => index(),
                    Ok(Path(name)) => file(&name),
                    Err(_) => no_route().into_response(),
                },
            ),
        )
}

/// The page, with our title in place of Swagger UI's.
fn index() -> Response {
    static INDEX: LazyLock<String> = LazyLock::new(|| {
        let page = embedded("index.html").map(|page| page.bytes);
        let page = String::from_utf8_lossy(page.as_deref().unwrap_or_default()).into_owned();
        page.replace("<title>Swagger UI</title>", "<title>Runnel API</title>")
    });
    respond("text/html", INDEX.as_str())
}

fn file(name: &str) -> Response {
    // Serialized once: the documents do not change while the process runs.
    static CLIENT: LazyLock<Bytes> = LazyLock::new(|| serialized(&client_document()));
    static HOST: LazyLock<Bytes> = LazyLock::new(|| serialized(&host_document()));
    match name {
        CLIENT_FILE => return respond("application/json", CLIENT.clone()),
        HOST_FILE => return respond("application/json", HOST.clone()),
        "guide.css" => return respond("text/css", guide::STYLE),
        _ => {}
    }
    match embedded(name) {
        Some(file) => respond(&file.content_type, file.bytes),
        None => no_route().into_response(),
    }
}

fn embedded(name: &str) -> Option<SwaggerFile<'static>> {
    let found = serve(name, Arc::clone(&CONFIG));
    let mut file = found.expect("our settings are JSON and the files are UTF-8")?;
    // Sent unpacked: not every client accepts gzip.
    if file.gzpipped {
        let mut unpacked = Vec::new();
        let read = GzDecoder::new(&*file.bytes).read_to_end(&mut unpacked);
        read.expect("the embedded files are gzip");
        file.bytes = unpacked.into();
    }
    Some(file)
}

fn respond(content_type: &str, body: impl Into<Body>) -> Response {
    let cache = HeaderValue::from_static("public, max-age=300");
    let no_referrer = HeaderValue::from_static("no-referrer");
    let content_type = HeaderValue::try_from(content_type).expect("a media type is ASCII");
    (
        [
            (CONTENT_TYPE, content_type),
            (CONTENT_SECURITY_POLICY, POLICY),
            (REFERRER_POLICY, no_referrer),
            (CACHE_CONTROL, cache),
        ],
        body.into(),
    )
        .into_response()
}
