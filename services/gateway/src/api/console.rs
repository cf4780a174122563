//! `/console`: the console, a page for operators and authors of agents. `npm run build` in `console/` writes its files,
//! which are embedded in the binary.

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY};
use http::{HeaderMap, HeaderValue};
use include_dir::{Dir, File, include_dir};

use super::static_files::{Caching, EmbeddedContent, POLICY, StaticFile};
use web::error::routing::no_route;
use web::state::ApiState;

/// Each file of the console twice: `NAME.br` and `NAME.gz`.
static FILES: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/assets/console");
const INDEX: &str = "index.html";
/// Directory of files whose names change with their content.
const HASHED: &str = "assets/";

/// Routes of the console. They are not part of the API document.
pub(super) fn page() -> Router<ApiState> {
    let index = async |headers: HeaderMap| respond(INDEX, &headers);
    Router::new()
        // Relative: a proxy may serve the gateway under a path prefix.
        .route("/console", get(async || Redirect::permanent("console/")))
        .route("/console/", get(index))
        .route("/console/sign-in", get(sign_in_return))
        .route(
            "/console/{*path}",
            get(
                async |path: Result<Path<String>, PathRejection>, headers: HeaderMap| match path {
                    Ok(Path(path)) => respond(&path, &headers),
                    Err(_) => no_route().into_response(),
                },
            ),
        )
}

/// The page at the redirect URI of a sign-in. It alone may also connect to the token endpoint of `auth.oidc`.
async fn sign_in_return(State(state): State<ApiState>, headers: HeaderMap) -> Response {
    let mut response = respond(INDEX, &headers);
    // The address has the provider's code, and is used once.
    let caching = HeaderValue::from_static("no-store");
    response.headers_mut().insert(CACHE_CONTROL, caching);
    let Some(sign_in) = &state.sign_in else {
        return response;
    };
    let flow = sign_in.code_flow(state.runs.clock().now_ms()).await;
    if let Some(policy) = flow.and_then(|flow| policy_with(&flow.token_origin)) {
        response
            .headers_mut()
            .insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// The policy of all files, with requests also to this origin.
fn policy_with(origin: &str) -> Option<HeaderValue> {
    let own = "connect-src 'self'";
    HeaderValue::try_from(POLICY.replace(own, &format!("{own} {origin}"))).ok()
}

/// The file, or the page for the path of a view. A path that names a file type but no file is not found, so that a
/// browser does not read the page as a script.
fn respond(path: &str, request: &HeaderMap) -> Response {
    let file = match content_type(path) {
        Some(content_type) => file(path, content_type),
        None => file(INDEX, "text/html; charset=utf-8"),
    };
    match file {
        Some(file) => file.respond(request),
        None => no_route().into_response(),
    }
}

fn file(path: &str, content_type: &'static str) -> Option<StaticFile> {
    let packed = |ending: &str| FILES.get_file(format!("{path}.{ending}"));
    let bytes = |file: &'static File<'static>| Bytes::from_static(file.contents());
    Some(StaticFile {
        content_type: HeaderValue::from_static(content_type),
        caching: if path.starts_with(HASHED) {
            Caching::Immutable
        } else {
            Caching::Revalidated
        },
        content: EmbeddedContent::Packed {
            gzip: packed("gz").map(bytes)?,
            brotli: packed("br").map(bytes),
        },
    })
}

/// Media type by extension. Ids in the paths of views have dots, too (`gpt-4.1`), so other extensions name no file.
fn content_type(path: &str) -> Option<&'static str> {
    let (_, extension) = path.rsplit_once('.')?;
    Some(match extension {
        "css" => "text/css; charset=utf-8",
        "html" => "text/html; charset=utf-8",
        "ico" => "image/x-icon",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" | "webmanifest" => "application/json",
        "md" => "text/markdown; charset=utf-8",
        "png" => "image/png",
        "svg" => "image/svg+xml",
        "txt" => "text/plain; charset=utf-8",
        "woff2" => "font/woff2",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read as _;
    use std::path::Path;

    use flate2::read::GzDecoder;

    use super::*;

    fn paths<'a>(directory: &'a Dir<'_>, found: &mut BTreeSet<&'a Path>) {
        found.extend(directory.files().map(File::path));
        for inner in directory.dirs() {
            paths(inner, found);
        }
    }

    /// Names of the embedded files, without the ending of their encoding.
    fn names() -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        paths(&FILES, &mut found);
        let name = |path: &&Path| path.with_extension("").to_str().unwrap().to_owned();
        found.iter().map(name).collect()
    }

    #[test]
    fn every_file_has_both_encodings_and_a_type() {
        let names = names();
        assert!(names.contains(INDEX), "{names:?}");
        for name in &names {
            let file = file(name, content_type(name).expect(name)).expect(name);
            let EmbeddedContent::Packed { gzip, brotli } = file.content else {
                panic!("{name}");
            };
            assert!(brotli.is_some_and(|brotli| !brotli.is_empty()), "{name}");
            let mut content = Vec::new();
            GzDecoder::new(&*gzip).read_to_end(&mut content).unwrap();
            assert!(!content.is_empty(), "{name}");
        }
    }
}
