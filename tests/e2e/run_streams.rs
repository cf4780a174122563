//! The operations of generated clients: streams and batches have separate routes.

use reqwest::Method;
use reqwest::header::ACCEPT;
use serde_json::{Value, json};

use crate::support::client::{Client, message, send};
use crate::support::script::sse;
use crate::support::stream::Stream;
use crate::support::{Stage, within};

/// A request with the headers of a client that knows nothing of streams.
async fn answer(client: &Client, method: Method, path: &str, body: Option<&Value>) -> Stream {
    let request = client.request(method, path).header(ACCEPT, "*/*");
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    Stream::new(within("an answer", request.send()).await.unwrap())
}

#[tokio::test]
async fn stream_routes_need_no_accept_header() {
    let stage = Stage::new().await;
    stage.runner.answer_all(|run| sse(run.talk(3).concat()));
    let (client, event) = (&stage.client, message("streamed"));
    let posted = answer(client, Method::POST, "/v1/runs/stream", Some(&event)).await;
    assert_eq!(posted.header("content-type"), "text/event-stream");
    let run_id = posted.run_id();
    let events: Vec<_> = posted
        .rest()
        .await
        .into_iter()
        .map(|frame| frame.data)
        .collect();
    assert_eq!(events, client.ledger(&run_id).await.0);
    assert_eq!(events.len(), 4);

    let path = format!("/v1/runs/{run_id}/stream");
    let rest = answer(client, Method::GET, &format!("{path}?after=1"), None).await;
    let rest: Vec<_> = rest
        .rest()
        .await
        .into_iter()
        .map(|frame| frame.data)
        .collect();
    assert_eq!(rest, events[1..]);
    let end = format!("{path}?after={}", events.len());
    let over = answer(client, Method::GET, &end, None).await;
    assert_eq!(over.response.status(), 204);

    // A repeated request continues the stream of the first one.
    let again = client.request(Method::POST, "/v1/runs/stream").json(&event);
    let again = within("a replay", again.header("last-event-id", 1).send()).await;
    let again = Stream::new(again.unwrap());
    assert_eq!(again.header("idempotent-replayed"), "true");
    let again: Vec<_> = again
        .rest()
        .await
        .into_iter()
        .map(|frame| frame.data)
        .collect();
    assert_eq!(again, events[1..]);
}

#[tokio::test]
async fn refuses_stream_of_event_without_agent() {
    let stage = Stage::new().await;
    let mut event = message("unbound");
    event["event_type"] = json!("message.deleted");
    let refused = stage.client.create("/v1/runs/stream", &event).await;
    refused.assert_detail(409, "reason", "no_agent");
    assert_eq!(refused.detail("event_id"), "unbound");
    stage.client.get("/v1/events/unbound").await.expect(200);
}

#[tokio::test]
async fn batch_route_takes_lists_only() {
    let stage = Stage::new().await;
    let one = json!({"specversion": "1.0", "id": "1", "source": "/s", "type": "message.received",
        "data": {"conversation": {"conversation_id": "c-1"}, "input": {"text": "hello"}}});
    let path = "/v1/event-batches";
    let taken = stage.client.create(path, &json!([one])).await.expect(202);
    assert_eq!(taken.body["items"][0]["event_id"], "/s#1");
    stage.client.create(path, &one).await.expect(400);

    // A batch has no stream.
    let streamed = stage.client.request(Method::POST, "/v1/runs/stream");
    let streamed = streamed
        .header("content-type", "application/cloudevents-batch+json")
        .body(json!([one]).to_string());
    let refused = send(streamed).await.unwrap();
    assert_eq!(refused.status, 400, "{}", refused.body);
}
