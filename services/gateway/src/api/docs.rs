//! `/docs`: the API documents in Swagger UI, and the guide for clients. All files are embedded in the binary,
//! compressed; the page loads nothing from other hosts.

mod guide;

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use http::{HeaderMap, HeaderValue};
use utoipa_swagger_ui::{Config, Url, serve};

use super::static_files::{Caching, EmbeddedContent, StaticFile};
use crate::api::openapi::selected::{client_document, host_document};
use crate::api::openapi::served::serialized;
use web::error::routing::no_route;
use web::state::ApiState;

const INDEX: &str = "index.html";
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
    let index = async |headers: HeaderMap| respond(INDEX, &headers);
    Router::new()
        // Relative file names on the page need the trailing slash.
        .route("/docs", get(async || Redirect::permanent("docs/")))
        .route("/docs/", get(index))
        .route(
            "/docs/{file}",
            get(
                async |name: Result<Path<String>, PathRejection>, headers: HeaderMap| match name {
                    Ok(Path(name)) => respond(&name, &headers),
                    Err(_) => no_route().into_response(),
                },
            ),
        )
}

fn respond(name: &str, request: &HeaderMap) -> Response {
    match file(name) {
        Some(file) => file.respond(request),
        None => no_route().into_response(),
    }
}

fn file(name: &str) -> Option<StaticFile> {
    // Made once: they do not change while the process runs.
    static CLIENT: LazyLock<Bytes> = LazyLock::new(|| serialized(&client_document()));
    static HOST: LazyLock<Bytes> = LazyLock::new(|| serialized(&host_document()));
    static INDEX_PAGE: LazyLock<Bytes> = LazyLock::new(index);
    let (content_type, content) = match name {
        CLIENT_FILE => ("application/json", CLIENT.clone()),
        HOST_FILE => ("application/json", HOST.clone()),
        INDEX => ("text/html", INDEX_PAGE.clone()),
        "guide" => ("text/html; charset=utf-8", guide::page().into()),
        "guide.css" => ("text/css", guide::STYLE.into()),
        _ => {
            let (content_type, content) = embedded(name)?;
            return Some(static_file(&content_type, content));
        }
    };
    Some(static_file(content_type, EmbeddedContent::Plain(content)))
}

fn static_file(content_type: &str, content: EmbeddedContent) -> StaticFile {
    StaticFile {
        content_type: HeaderValue::try_from(content_type).expect("a media type is ASCII"),
        caching: Caching::Short,
        content,
    }
}

/// The page, with our title in place of Swagger UI's.
fn index() -> Bytes {
    let page = embedded(INDEX).map(|(_, content)| content.plain());
    let page = String::from_utf8_lossy(page.as_deref().unwrap_or_default()).into_owned();
    let page = page.replace("<title>Swagger UI</title>", "<title>Runnel API</title>");
    page.into()
}

/// Media type and content of a file of Swagger UI.
fn embedded(name: &str) -> Option<(String, EmbeddedContent)> {
    let found = serve(name, Arc::clone(&CONFIG));
    let file = found.expect("our settings are JSON and the files are UTF-8")?;
    let bytes = Bytes::from(file.bytes.into_owned());
    let content = if file.gzpipped {
        EmbeddedContent::Packed {
            gzip: bytes,
            brotli: None,
        }
    } else {
        EmbeddedContent::Plain(bytes)
    };
    Some((file.content_type, content))
}
