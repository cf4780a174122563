//! The API page, served entirely by this gateway.

use http::HeaderMap;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use reqwest::Method;
use serde_json::Value;
use url::Url;

use crate::support::client::{Client, send};
use crate::support::{Stage, within};

struct Fetched {
    url: Url,
    headers: HeaderMap,
    text: String,
}

/// Fetches a path without a credential and follows redirects.
async fn fetch(client: &Client, path: &str) -> Fetched {
    let request = client.anonymous(Method::GET, path);
    let response = within("a file of the page", request.send()).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    let (url, headers) = (response.url().clone(), response.headers().clone());
    let bytes = within("all of the file", response.bytes()).await.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Fetched { url, headers, text }
}

/// The texts between each `start` and the next `end`.
fn between<'a>(text: &'a str, start: &'a str, end: char) -> impl Iterator<Item = &'a str> {
    let found = text.split(start).skip(1);
    found.map(move |rest| rest.split(end).next().unwrap())
}

/// Path of a URL that the page references. Asserts that this gateway serves it.
#[track_caller]
fn own_path(page: &Url, named: &str) -> String {
    let url = page.join(named).unwrap();
    assert_eq!(url.origin(), page.origin(), "{named}");
    url.path().to_owned()
}

#[tokio::test]
async fn api_page_loads_only_own_files() {
    let stage = Stage::new().await;
    let page = fetch(&stage.client, "/docs").await;
    assert_eq!(page.url.path(), "/docs/");
    assert_eq!(page.headers[CONTENT_TYPE], "text/html");

    let named = between(&page.text, " src=\"", '"').chain(between(&page.text, " href=\"", '"'));
    let paths: Vec<_> = named.map(|named| own_path(&page.url, named)).collect();
    let ends_with = |end: &str| paths.iter().filter(|path| path.ends_with(end)).count();
    assert_eq!((ends_with(".js"), ends_with(".css")), (3, 2), "{paths:?}");
    for path in &paths {
        let file = fetch(&stage.client, path).await;
        assert_eq!(file.url.path(), path);
        assert!(!file.text.is_empty(), "{path}");
        assert_eq!(file.headers["x-content-type-options"], "nosniff");
        if file.headers[CONTENT_TYPE] == "text/css" {
            assert!(!file.text.contains("@import"), "{path}");
            for named in between(&file.text, "url(", ')') {
                assert_starts_with!(named.trim_matches(['"', '\'']), "data:");
            }
        }
    }

    let start = paths.iter().find(|path| path.ends_with("initializer.js"));
    let start = fetch(&stage.client, start.unwrap()).await;
    let documents = between(&start.text, "\"url\": \"", '"');
    let documents: Vec<_> = documents.map(|named| own_path(&page.url, named)).collect();
    let expected = [
        "/docs/gateway.json",
        "/docs/host.json",
        "/openapi/runner.json",
    ];
    assert_eq!(documents, expected);
    for path in documents {
        let document = fetch(&stage.client, &path).await;
        let document: Value = serde_json::from_str(&document.text).unwrap();
        assert!(document["paths"].is_object(), "{path}");
        let servers = &document["servers"];
        assert_eq!(servers, &Value::Null, "the routes are tried here");
    }
    assert_eq!(
        between(&start.text, "\"validatorUrl\": \"", '"').next(),
        Some("none")
    );
}

#[tokio::test]
async fn api_page_begins_with_posting_events() {
    let stage = Stage::new().await;
    let page = fetch(&stage.client, "/docs").await;
    assert!(page.text.contains("<title>Runnel API</title>"));
    let document = fetch(&stage.client, "/openapi.json").await.text;
    let (_, paths) = document.split_once("\"paths\":{").unwrap();
    assert!(paths.starts_with("\"/v1/events\":{"), "{}", &paths[..80]);
    assert!(document.contains("(/docs/guide)"), "the guide is linked");
    let shown = fetch(&stage.client, "/docs/gateway.json").await.text;
    let (_, paths) = shown.split_once("\"paths\":{").unwrap();
    assert!(paths.starts_with("\"/v1/events\":{"), "{}", &paths[..80]);
    assert!(!paths.contains("\"/host/v1/"), "routes of runners");
}

#[tokio::test]
async fn every_link_of_the_guide_is_served() {
    let stage = Stage::new().await;
    let guide = fetch(&stage.client, "/docs/guide").await;
    assert_eq!(guide.headers[CONTENT_TYPE], "text/html; charset=utf-8");
    assert!(guide.text.contains("<h1 id=\"clients\">Clients</h1>"));
    let links: Vec<_> = between(&guide.text, " href=\"", '"').collect();
    assert!(links.contains(&"../openapi.json"), "{links:?}");
    for link in links {
        let linked = fetch(&stage.client, &own_path(&guide.url, link)).await;
        let anchor = link.split_once('#').map_or("", |(_, anchor)| anchor);
        let is_named = linked.text.contains(&format!(" id=\"{anchor}\""));
        assert!(anchor.is_empty() || is_named, "{link}");
    }
    for inline in ["<style", " style=", "<script", "<!--"] {
        assert!(!guide.text.contains(inline), "{inline}");
    }
}

#[tokio::test]
async fn api_page_policy_allows_own_scripts_only() {
    let stage = Stage::new().await;
    for path in ["/docs", "/docs/index.html", "/docs/swagger-initializer.js"] {
        let file = fetch(&stage.client, path).await;
        let policy = file.headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
        let directives = policy.split(';').map(|directive| {
            let (name, sources) = directive.trim().split_once(' ').unwrap();
            (name, sources)
        });
        let directives: Vec<_> = directives.collect();
        for holds in [
            ("default-src", "'none'"),
            ("script-src", "'self'"),
            ("style-src", "'self'"),
            ("connect-src", "'self'"),
            ("font-src", "'self'"),
            ("base-uri", "'none'"),
            ("form-action", "'none'"),
            ("frame-ancestors", "'none'"),
        ] {
            assert!(directives.contains(&holds), "{path}: {policy}");
        }
        let mut sources = directives
            .iter()
            .flat_map(|(_, sources)| sources.split(' '));
        assert!(sources.all(|source| ["'none'", "'self'", "data:"].contains(&source)));
    }

    // The policy forbids inline scripts, so the page must have none.
    let page = fetch(&stage.client, "/docs").await;
    for script in between(&page.text, "<script", '<') {
        let (attributes, inside) = script.split_once('>').unwrap();
        assert!(attributes.contains(" src=\""), "{script}");
        assert_eq!(inside.trim(), "");
    }
    for inline in ["<style", " style=", " onload=", "javascript:"] {
        assert!(!page.text.contains(inline), "{inline}");
    }
}

#[tokio::test]
async fn unknown_api_page_files_are_not_found() {
    let stage = Stage::new().await;
    for (method, path, status) in [
        (Method::GET, "/docs/nothing.js", 404),
        (Method::GET, "/docs/..%2fCargo.toml", 404),
        (Method::GET, "/docs/a/b", 404),
        (Method::GET, "/docs/x%ff", 404),
        (Method::POST, "/docs/", 405),
    ] {
        let answer = send(stage.client.anonymous(method, path)).await.unwrap();
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.error("message").is_string(), "{path}");
    }
}
