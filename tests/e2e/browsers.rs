//! Web pages of other origins: CORS, and streams that an `EventSource` opens by a link.

use reqwest::{Method, RequestBuilder, Response};
use rstest::rstest;
use serde_json::json;

use crate::support::client::{Client, message, send, stream};
use crate::support::script::{Gate, sse, sse_around};
use crate::support::{Engine, Postgres, Sqlite, Stage, within};

const PAGE: &str = "https://app.example";

async fn stage_with_page(engine: Engine) -> Option<Stage> {
    let listed = format!("cors_origins = [\"{PAGE}\"]");
    Stage::on(engine, |config| config.server = listed).await
}

/// A preflight request as a browser sends it.
fn preflight(client: &Client, path: &str, origin: &str) -> RequestBuilder {
    client
        .anonymous(Method::OPTIONS, path)
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "authorization,content-type,idempotency-key",
        )
}

async fn header_of(request: RequestBuilder, name: &str) -> Option<String> {
    let response: Response = within("an answer", request.send()).await.unwrap();
    let value = response.headers().get(name)?;
    Some(value.to_str().unwrap().to_owned())
}

#[tokio::test]
async fn allows_cors_for_listed_origins_only() {
    let stage = stage_with_page(Sqlite).await.unwrap();
    let client = &stage.client;
    let allowed = |request| header_of(request, "access-control-allow-origin");
    let expected = Some(PAGE.to_owned());
    assert_eq!(
        allowed(preflight(client, "/v1/events", PAGE)).await,
        expected
    );
    let asks = || preflight(client, "/v1/events", PAGE);
    let headers = header_of(asks(), "access-control-allow-headers")
        .await
        .unwrap();
    for name in [
        "authorization",
        "content-type",
        "idempotency-key",
        "last-event-id",
    ] {
        assert!(headers.contains(name), "{headers}");
    }
    let name = "access-control-allow-credentials";
    assert_eq!(header_of(asks(), name).await, None, "no cookies");

    let list = |origin: &str| {
        client
            .request(Method::GET, "/v1/runs")
            .header("origin", origin)
    };
    assert_eq!(allowed(list(PAGE)).await, expected);
    let keyless = client
        .anonymous(Method::GET, "/v1/runs")
        .header("origin", PAGE);
    assert_eq!(allowed(keyless).await, expected, "a page reads its errors");
    for origin in [
        "https://evil.example",
        "https://app.example.evil",
        "http://app.example",
        "null",
    ] {
        assert_eq!(
            allowed(preflight(client, "/v1/events", origin)).await,
            None,
            "{origin}"
        );
        assert_eq!(allowed(list(origin)).await, None, "{origin}");
    }
    assert_eq!(
        allowed(preflight(client, "/host/v1/run", PAGE)).await,
        None,
        "of runners"
    );
}

/// A request of an `EventSource`.
fn event_source(client: &Client, url: &str) -> RequestBuilder {
    let path = url
        .strip_prefix(&client.url)
        .expect("a link of this gateway");
    let request = client.anonymous(Method::GET, path).header("origin", PAGE);
    request.header("cache-control", "no-store")
}

async fn link(client: &Client, run_id: &str) -> String {
    let path = format!("/v1/runs/{run_id}/stream-link");
    let made = client.create(&path, &json!({})).await.expect(200);
    made.body["url"].as_str().unwrap().to_owned()
}

#[rstest]
#[tokio::test]
async fn stream_link_opens_one_resumable_stream(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_with_page(engine).await);
    let gate = Gate::new();
    let hold = gate.clone();
    let run_id = stage
        .start(move |run| {
            let [first, rest] = [run.delta(1, "a"), run.delta(2, "b") + &run.completed(3)];
            sse_around(&hold, first, rest)
        })
        .await;
    let url = link(&stage.client, &run_id).await;
    let preview = send(event_source(&stage.client, &url)).await.unwrap();
    assert_eq!(preview.status, 400, "a preview opens nothing");

    let mut opened = stream(event_source(&stage.client, &url)).await.unwrap();
    assert_eq!(opened.response.status(), 200);
    let first = loop {
        let frame = opened.frame().await.unwrap();
        if frame.id.is_some() {
            break frame;
        }
    };
    assert_eq!((first.id, first.data.as_str()), (Some(0), ""));
    assert_eq!(opened.event().await.unwrap().id, Some(1));
    drop(opened);
    let again = stream(event_source(&stage.client, &url)).await.unwrap();
    assert_eq!(again.response.status(), 401, "it opens one stream");

    gate.cancel();
    let resumed = event_source(&stage.client, &url).header("last-event-id", "1");
    let rest = stream(resumed).await.unwrap().rest().await;
    let ids: Vec<_> = rest.iter().map(|frame| frame.id).collect();
    assert_eq!(ids, [Some(2), Some(3)]);
    let over = event_source(&stage.client, &url).header("last-event-id", "3");
    assert_eq!(stream(over).await.unwrap().response.status(), 204);

    let audit = stage
        .client
        .get(&format!("/v1/runs/{run_id}/audit"))
        .await
        .body;
    let entries = audit["items"].as_array().unwrap().iter();
    let entries = entries.filter(|entry| entry["action"] == "stream_link");
    let operations: Vec<_> = entries.map(|entry| &entry["operation"]).collect();
    assert_eq!(operations, ["create", "open"], "{audit}");
}

#[tokio::test]
async fn stream_link_ends_with_its_key() {
    let stage = stage_with_page(Sqlite).await.unwrap();
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    stage.client.finished(&run_id).await;
    let spec = json!({"name": "page", "role": "client"});
    let key = stage.admin.create("/v1/api-keys", &spec).await.body;
    let client = Client::new(&stage.client.url, key["key"].as_str().unwrap());
    let url = link(&client, &run_id).await;
    let path = format!("/v1/api-keys/{}", key["id"].as_str().unwrap());
    assert_eq!(stage.admin.delete(&path).await.status, 204);
    let refused = stream(event_source(&client, &url)).await.unwrap();
    assert_eq!(refused.response.status(), 401);
}
