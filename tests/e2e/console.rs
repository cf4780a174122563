//! Files of the console: encodings, caching, policy, and the setting that turns it off. `console/e2e` tests the page.

use http::HeaderMap;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, REFERRER_POLICY,
    VARY, X_CONTENT_TYPE_OPTIONS,
};
use reqwest::Method;

use crate::support::client::{Client, send};
use crate::support::playground::Playground;
use crate::support::{Stage, TempDirectory, within};

/// `Accept-Encoding` of browsers with TLS.
const BROTLI: (&str, &str) = ("accept-encoding", "gzip, deflate, br, zstd");
/// `Accept-Encoding` of browsers without TLS.
const GZIP: (&str, &str) = ("accept-encoding", "gzip, deflate");
const PAGE: &str = "text/html; charset=utf-8";

struct Fetched {
    status: u16,
    path: String,
    headers: HeaderMap,
    bytes: Vec<u8>,
}

impl Fetched {
    fn header(&self, name: impl http::header::AsHeaderName) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes).unwrap()
    }
}

async fn fetch(client: &Client, path: &str, headers: &[(&str, &str)]) -> Fetched {
    let mut request = client.anonymous(Method::GET, path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = within("a file of the console", request.send())
        .await
        .unwrap();
    let (status, path) = (response.status().as_u16(), response.url().path().to_owned());
    let headers = response.headers().clone();
    let bytes = within("all of the file", response.bytes()).await.unwrap();
    Fetched {
        status,
        path,
        headers,
        bytes: bytes.into(),
    }
}

/// Paths of the scripts and style sheets that the page loads.
fn loaded(page: &str) -> Vec<String> {
    let named = [" src=\"", " href=\""].map(|start| page.split(start).skip(1));
    let named = named.into_iter().flatten();
    let paths = named.map(|rest| rest.split('"').next().unwrap().to_owned());
    paths.filter(|path| path.contains("/assets/")).collect()
}

#[tokio::test]
async fn root_and_views_lead_to_the_console() {
    let stage = Stage::new().await;
    for path in ["/", "/console"] {
        let page = fetch(&stage.client, path, &[]).await;
        assert_eq!((page.status, page.path.as_str()), (200, "/console/"));
    }
    let page = fetch(&stage.client, "/console/", &[]).await;
    assert!(
        page.text().starts_with("<!doctype html>"),
        "{}",
        page.text()
    );
    for view in [
        "runs/01a2",
        "models/gpt-4.1",
        "runners/plugin:a%2Fb/c?x=y.js",
    ] {
        let path = format!("/console/{view}");
        let shown = fetch(&stage.client, &path, &[]).await;
        assert_eq!((shown.status, shown.header(CONTENT_TYPE)), (200, PAGE));
        assert_eq!(
            (shown.path, shown.bytes),
            (
                path.split('?').next().unwrap().to_owned(),
                page.bytes.clone()
            )
        );
    }
}

#[tokio::test]
async fn unknown_console_files_are_not_found() {
    let stage = Stage::new().await;
    for (method, path, status) in [
        (Method::GET, "/console/assets/nothing.js", 404),
        (Method::GET, "/console/index.html.gz.js", 404),
        (Method::GET, "/console/..%2f..%2fCargo.json", 404),
        (Method::GET, "/console/x%ff", 404),
        (Method::POST, "/console/", 405),
    ] {
        let answer = send(stage.client.anonymous(method, path)).await.unwrap();
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.error("message").is_string(), "{path}");
    }
}

#[tokio::test]
async fn console_files_are_confined_and_cached_by_name() {
    let stage = Stage::new().await;
    let page = fetch(&stage.client, "/console/", &[]).await;
    let paths = loaded(page.text());
    assert!(paths.iter().any(|path| path.ends_with("js")), "{paths:?}");
    // The redirect URI of a sign-in, in a gateway without one.
    let sign_in = fetch(&stage.client, "/console/sign-in", &[]).await;
    assert_eq!(
        sign_in.header(CONTENT_SECURITY_POLICY),
        page.header(CONTENT_SECURITY_POLICY)
    );
    for path in ["/console/"]
        .into_iter()
        .chain(paths.iter().map(String::as_str))
    {
        let file = fetch(&stage.client, path, &[BROTLI]).await;
        assert_eq!(file.status, 200, "{path}");
        let policy = file.header(CONTENT_SECURITY_POLICY);
        let sources = policy.split(';').map(str::trim).collect::<Vec<_>>();
        assert_eq!(
            sources,
            [
                "default-src 'none'",
                "script-src 'self'",
                "style-src 'self'",
                "connect-src 'self'",
                "img-src 'self' data:",
                "font-src 'self'",
                "base-uri 'none'",
                "form-action 'none'",
                "frame-ancestors 'none'",
            ]
        );
        assert_eq!(file.header(X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert_eq!(file.header(REFERRER_POLICY), "no-referrer");
        assert_eq!(file.header("cross-origin-opener-policy"), "same-origin");
        let is_hashed = path.contains("/assets/");
        let caching = ["no-cache", "public, max-age=31536000, immutable"];
        assert_eq!(file.header(CACHE_CONTROL), caching[usize::from(is_hashed)]);
    }
}

#[tokio::test]
async fn console_files_are_sent_in_the_accepted_encoding() {
    let stage = Stage::new().await;
    let page = fetch(&stage.client, "/console/", &[]).await;
    let script = loaded(page.text())
        .into_iter()
        .find(|path| path.ends_with("js"));
    let script = script.unwrap();
    let plain = fetch(&stage.client, &script, &[]).await;
    assert_eq!(plain.header(CONTENT_ENCODING), "");
    assert_eq!(plain.header(CONTENT_TYPE), "text/javascript; charset=utf-8");
    assert!(!plain.text().is_empty());
    for (accepted, encoding, start) in [
        (BROTLI, "br", None),
        (GZIP, "gzip", Some([0x1f, 0x8b])),
        (("accept-encoding", "br;q=0, gzip;q=0"), "", None),
    ] {
        let file = fetch(&stage.client, &script, &[accepted]).await;
        assert_eq!(file.header(CONTENT_ENCODING), encoding);
        assert_eq!(file.header(VARY), "accept-encoding");
        assert_eq!(file.bytes == plain.bytes, encoding.is_empty(), "{encoding}");
        assert!(start.is_none_or(|start| file.bytes.starts_with(&start)));
    }
}

#[tokio::test]
async fn unchanged_page_is_not_sent_again() {
    let stage = Stage::new().await;
    let page = fetch(&stage.client, "/console/", &[]).await;
    let tag = page.header(ETAG);
    let unchanged = fetch(
        &stage.client,
        "/console/",
        &[("if-none-match", tag), BROTLI],
    )
    .await;
    assert_eq!((unchanged.status, unchanged.bytes.len()), (304, 0));
    assert_eq!(unchanged.header(ETAG), tag);
    let other = fetch(&stage.client, "/console/", &[("if-none-match", "\"x\"")]).await;
    assert_eq!((other.status, other.bytes), (200, page.bytes));
}

#[tokio::test]
async fn console_can_be_turned_off() {
    let stage = Stage::with(|config| "console = false".clone_into(&mut config.server)).await;
    for path in [
        "/console",
        "/console/",
        "/console/runs",
        "/console/index.html",
    ] {
        let answer = send(stage.client.anonymous(Method::GET, path))
            .await
            .unwrap();
        assert_eq!(answer.status, 404, "{path}");
    }
    assert_eq!(fetch(&stage.client, "/", &[]).await.path, "/docs/");

    let directory = TempDirectory::new();
    let variables = [("RUNNEL__SERVER__CONSOLE", "false")];
    let playground = Playground::start_with(&directory.file("runnel-data"), &[], &variables).await;
    assert!(
        !playground.greeting.contains("/console"),
        "{}",
        playground.greeting
    );
    playground.stop().await;
}
