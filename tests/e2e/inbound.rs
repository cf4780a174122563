//! Checks of inbound requests: host and origin, security headers for browsers, and weak master keys.

use aws_lc_rs::digest::{SHA256, digest};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::support::client::{Client, message, send};
use crate::support::held::HeldRun;
use crate::support::routes::{Face, operations};
use crate::support::slow::connect;
use crate::support::{OwnStage, Stage, hex, within};

/// The status of `GET path` with these `Host` and `Origin` headers.
async fn status_with_headers(
    client: &Client,
    path: &str,
    host: Option<&str>,
    origin: Option<&str>,
) -> u16 {
    let mut request = client.request(Method::GET, path);
    for (name, value) in [("host", host), ("origin", origin)] {
        if let Some(value) = value {
            request = request.header(name, value);
        }
    }
    // The API page is HTML, so read no JSON.
    let response = within("an answer", request.send()).await.unwrap();
    response.status().as_u16()
}

#[tokio::test]
async fn rejects_unknown_host_headers() {
    let stage = Stage::with(|config| {
        config.server =
            "public_url = \"https://runnel.example\"\nallowed_hosts = [\"gateway\"]".into();
    })
    .await;
    let client = &stage.client;
    for path in [
        "/v1/runs",
        "/healthz",
        "/docs/",
        "/openapi.json",
        "/nowhere",
    ] {
        let existing = status_with_headers(client, path, None, None).await;
        for host in [
            "127.0.0.1",
            "localhost:8700",
            "[::1]",
            "runnel.example",
            "gateway:8700",
            "10.1.2.3",
        ] {
            assert_eq!(
                status_with_headers(client, path, Some(host), None).await,
                existing,
                "{path} {host}"
            );
        }
        for host in [
            "evil.example",
            "evil.example:80",
            "runnel.example.evil",
            "127.0.0.1.evil.example",
            "x",
        ] {
            assert_eq!(
                status_with_headers(client, path, Some(host), None).await,
                403,
                "{path} {host}"
            );
        }
        for origin in [
            "http://localhost:3000",
            "https://runnel.example",
            "http://127.0.0.1",
        ] {
            assert_eq!(
                status_with_headers(client, path, None, Some(origin)).await,
                existing,
                "{path} {origin}"
            );
        }
        for origin in [
            "http://evil.example",
            "null",
            "https://evil.example",
            "file://",
        ] {
            assert_eq!(
                status_with_headers(client, path, None, Some(origin)).await,
                403,
                "{path} {origin}"
            );
        }
    }
    let refused = client
        .request(Method::GET, "/v1/runs")
        .header("host", "evil.example");
    let refused = send(refused).await.unwrap();
    assert_eq!(refused.error("code"), "unauthorized");
    let message = refused.error("message").as_str().unwrap();
    assert!(message.contains("server.allowed_hosts"), "{message}");
    let posting = client.posting(&crate::support::client::message("m-1"));
    let refused = send(posting.header("origin", "http://evil.example"))
        .await
        .unwrap();
    assert_eq!(refused.status, 403);
    assert_eq!(client.get("/v1/runs").await.body["items"], json!([]));
}

#[tokio::test]
async fn rejects_foreign_host_and_origin_on_every_route() {
    let stage = Stage::new().await;
    let client = &stage.client;
    for operation in operations(client).await {
        let path = operation.path_with(|_| "x".to_owned());
        for (name, value) in [("host", "evil.example"), ("origin", "http://evil.example")] {
            let request = client.request(operation.method.clone(), &path);
            let refused = within("an answer", request.header(name, value).send()).await;
            assert_eq!(refused.unwrap().status(), 403, "{} {name}", operation.id);
        }
    }
}

#[tokio::test]
async fn sends_no_cors_but_nosniff_and_no_store() {
    let stage = Stage::new().await;
    let admin = stage.admin.clone();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let host = Client::new(&stage.client.url, &run.token);
    for operation in operations(&stage.client).await {
        let path = operation.path_with(|_| "x".to_owned());
        let caller = match operation.face {
            Face::Host => &host,
            _ => &admin,
        };
        let preflight = caller
            .anonymous(Method::OPTIONS, &path)
            .header("origin", "http://localhost:3000")
            .header("access-control-request-method", operation.method.as_str())
            .header("access-control-request-headers", "authorization");
        assert_eq!(send(preflight).await.unwrap().status, 405, "{path}");
        if operation.id == "cancel_own_run" {
            continue;
        }
        for request in [
            caller.request(operation.method.clone(), &path),
            caller.anonymous(operation.method.clone(), &path),
        ] {
            // Read no JSON: one of the responses is HTML.
            let asking = request.header("origin", "http://localhost:3000").send();
            let answer = within("an answer", asking).await.unwrap();
            let header = |name: &str| {
                answer
                    .headers()
                    .get(name)
                    .map(|value| value.to_str().unwrap())
            };
            for (name, _) in answer.headers() {
                assert!(
                    !name.as_str().starts_with("access-control-"),
                    "{path}: {name}"
                );
            }
            assert_eq!(header("x-content-type-options"), Some("nosniff"), "{path}");
            let cache = match operation.id.as_str() {
                "jwks" => "public, max-age=300",
                // A stream, which proxies must not change either.
                "stream_workspace_feed" if answer.status().is_success() => "no-cache, no-transform",
                _ => "no-store",
            };
            assert_eq!(header("cache-control"), Some(cache), "{path}");
            assert_eq!(header("set-cookie"), None, "{path}");
            assert_eq!(header("server"), None, "{path}");
        }
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn rejects_weak_and_foreign_master_keys() {
    let stage = OwnStage::new().await;
    let counting = hex(&std::array::from_fn::<u8, 32, _>(|at| {
        u8::try_from(at).unwrap()
    }));
    for key in [
        "",
        "secret",
        "changeme",
        &"0".repeat(64),
        &"f".repeat(64),
        &"ab".repeat(31),
        &"ab".repeat(33),
        &"5a".repeat(32),
        &counting,
        // "0123456789abcdef0123456789abcdef" and "change-me-change-me-change-me-32"
        "3031323334353637383961626364656630313233343536373839616263646566",
        "6368616e67652d6d652d6368616e67652d6d652d6368616e67652d6d652d3332",
    ] {
        let before = stage.gateway.replace_master_key(key);
        let printed = stage.gateway.command(&["serve"]).await;
        assert_eq!(printed.status.code(), Some(1), "{key}: {printed:?}");
        assert!(printed.stderr.contains("auth.master_key"), "{printed:?}");
        assert!(!printed.stdout.contains("listening"), "{printed:?}");
        assert!(
            key.len() < 12 || !printed.stderr.contains(key),
            "{printed:?}"
        );
        stage.gateway.replace_master_key(&before);
    }
    // A valid key that did not seal this database is also rejected.
    let other = hex(digest(&SHA256, b"another's").as_ref());
    let before = stage.gateway.replace_master_key(&other);
    stage.gateway.command(&["serve"]).await.exited(1);
    stage.gateway.replace_master_key(&before);
}

#[tokio::test]
async fn ends_streams_within_seconds_of_key_revocation() {
    let seldom = "heartbeat_seconds = 300.0";
    let stage = Stage::with(|config| seldom.clone_into(&mut config.server)).await;
    let admin = stage.admin.clone();
    let spec = json!({"name": "viewer", "role": "client"});
    let made = admin.create("/v1/api-keys", &spec).await.body;
    let viewer = Client::new(&stage.client.url, made["key"].as_str().unwrap());
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let mut theirs = Vec::new();
    for _ in 0..20 {
        theirs.push(viewer.follow(&run.run_id, 0).await);
    }
    let ours = stage.client.follow(&run.run_id, 0).await;
    let path = format!("/v1/api-keys/{}", made["id"].as_str().unwrap());
    assert_eq!(admin.delete(&path).await.status, 204);
    for stream in theirs {
        assert_eq!(
            stream.rest().await,
            [],
            "the stream ends, the run continues"
        );
    }
    assert_eq!(stage.client.run(&run.run_id).await["status"], "running");
    run.end(&stage).await;
    assert_eq!(ours.rest().await.len(), 2);
}

/// The status line of the response to this head.
async fn status_line(stage: &Stage, head: &str) -> String {
    let mut stream = connect(&stage.client.url).await;
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = BufReader::new(stream).lines();
    let first = within("an answer", answer.next_line()).await.unwrap();
    first.unwrap()
}

#[tokio::test]
async fn rejects_transfer_codings_except_chunked() {
    let stage = Stage::new().await;
    let request = |codings: &str| {
        format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{codings}\r\n0\r\n\r\n")
    };
    for (codings, status) in [
        ("transfer-encoding: chunked\r\n", "HTTP/1.1 200"),
        ("Transfer-Encoding: gzip, chunked\r\n", "HTTP/1.1 501"),
        (
            "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
            "HTTP/1.1 501",
        ),
        ("Transfer-Encoding: identity, chunked\r\n", "HTTP/1.1 501"),
        ("Transfer-Encoding: chunked, chunked\r\n", "HTTP/1.1 400"),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "HTTP/1.1 400",
        ),
    ] {
        let status_line = status_line(&stage, &request(codings)).await;
        assert!(
            status_line.starts_with(status),
            "{codings:?}: {status_line}"
        );
    }
}

#[tokio::test]
async fn requires_exactly_one_host_header() {
    let stage = Stage::new().await;
    for (head, status) in [
        (
            "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
            "HTTP/1.1 200",
        ),
        ("GET /healthz HTTP/1.1\r\n\r\n", "HTTP/1.1 400"),
        (
            "GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
            "HTTP/1.1 400",
        ),
        (
            "GET http://localhost/healthz HTTP/1.1\r\n\r\n",
            "HTTP/1.1 400",
        ),
        ("GET /healthz HTTP/1.0\r\n\r\n", "HTTP/1.0 200"),
    ] {
        let status_line = status_line(&stage, head).await;
        assert!(status_line.starts_with(status), "{head:?}: {status_line}");
    }
}
