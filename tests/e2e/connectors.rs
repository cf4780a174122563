//! The connectors as a runner endpoint, with a fake Dify.

use serde_json::{Value, json};

use crate::support::connectors::{ConnectedAgent, DifyFixture, PLATFORM_KEY, connectors};
use crate::support::runner::SECRET;
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::support::{Stage, until};

const CONVERSATION: &str = "11111111-2222-3333-4444-555555555555";
const KEY: &str = "api-key = \"env:CONNECTOR_DIFY\"";

fn event(kind: &str, members: &Value) -> String {
    let mut event = json!({"event": kind, "task_id": "t-1", "conversation_id": CONVERSATION});
    let members = members.as_object().unwrap().clone();
    event.as_object_mut().unwrap().extend(members);
    format!("data: {event}")
}

fn answer(text: &str) -> UpstreamReply {
    let usage = json!({"usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}});
    UpstreamReply::Events(vec![
        event("message", &json!({"answer": text})),
        event("message_end", &json!({"metadata": usage})),
    ])
}

#[tokio::test]
async fn two_turns_share_one_platform_conversation() {
    let house = DifyFixture::open(KEY).await;
    house.platform.reply(answer("Hello"));
    house.platform.reply(answer("Again"));
    for (text, expected) in [("hi", "Hello"), ("more", "Again")] {
        let run = house.post(text).await;
        let ended = house.client.finished(&run).await;
        assert_eq!(ended["status"], "completed", "{ended}");
        assert_eq!(ended["usage"]["total_tokens"], 5, "{ended}");
        let messages = house.results(&run, "message.completed").await;
        assert_eq!(messages[0]["data"]["message"]["content"], expected);
    }
    let requests = house.platform.requests();
    let sent = |at: usize, member: &str| requests[at].body[member].clone();
    assert_eq!([sent(0, "query"), sent(1, "query")], ["hi", "more"]);
    assert_eq!(
        [sent(0, "conversation_id"), sent(1, "conversation_id")],
        [json!(null), json!(CONVERSATION)]
    );
    assert_eq!([sent(0, "user"), sent(1, "user")], ["user_u-1", "user_u-1"]);
    let key = requests[0].headers["authorization"].to_str().unwrap();
    assert_eq!(key, format!("Bearer {}", PLATFORM_KEY.1));
}

#[tokio::test]
async fn cancellation_reaches_the_platform() {
    let house = DifyFixture::open(KEY).await;
    house.platform.reply(UpstreamReply::Hold(vec![event(
        "message",
        &json!({"answer": "Hel"}),
    )]));
    house
        .platform
        .reply(UpstreamReply::Json(200, json!({"result": "success"})));
    let run = house.post("hi").await;
    until("a piece of the answer", async || {
        !house.results(&run, "message.delta").await.is_empty()
    })
    .await;
    assert_eq!(house.client.cancel(&run).await.status, 202);
    let ended = house.client.finished(&run).await;
    assert_eq!(ended["status"], "cancelled", "{ended}");
    house.platform.left(1).await;
    until("the stop of the task", async || {
        house.platform.requests().len() == 2
    })
    .await;
    let stop = &house.platform.requests()[1];
    assert_eq!(stop.path, "/v1/chat-messages/t-1/stop");
    assert_eq!(stop.body["user"], "user_u-1");
}

#[tokio::test]
async fn failures_of_the_platform_hide_the_key() {
    let house = DifyFixture::open(KEY).await;
    let received =
        json!({"code": "unauthorized", "message": format!("no such key: {}", PLATFORM_KEY.1)});
    house.platform.reply(UpstreamReply::Json(401, received));
    let run = house.post("hi").await;
    let ended = house.client.finished(&run).await;
    assert_eq!(ended["error"]["code"], "dify.auth_error", "{ended}");
    let ledger = house.client.ledger(&run).await.0.join("\n");
    assert!(!ledger.contains(PLATFORM_KEY.1), "{ledger}");
}

#[tokio::test]
async fn invalid_configurations_fail_before_the_network() {
    for (config, pointer) in [
        ("api-key = \"env:RUNNEL_CONNECTORS_SECRET\"", "/api-key"),
        ("api-key = \"env:CONNECTOR_NOT_SET\"", "/api-key"),
        ("api-key = \"k\"\nidle-timeout = 0", "/idle-timeout"),
    ] {
        let house = DifyFixture::open(config).await;
        let run = house.post("hi").await;
        let ended = house.client.finished(&run).await;
        assert_eq!(ended["error"]["code"], "dify.config_invalid", "{ended}");
        let failed = house.results(&run, "run.failed").await;
        assert_eq!(
            failed[0]["data"]["details"]["pointer"], pointer,
            "{failed:?}"
        );
        assert!(house.platform.requests().is_empty());
    }
}

#[tokio::test]
async fn keys_go_to_their_hosts_alone() {
    let thief = Upstream::start().await;
    // The fixture lists the first address, which is that of the key's platform.
    let config = format!(
        "inputs = {{ platform = \"http://127.0.0.1:1/\" }}\nbase-url = \"{}/v1\"\n{KEY}",
        thief.url
    );
    let agent = ConnectedAgent::open("dify-agent", &config).await;
    let ended = agent.ended("hi").await;
    let error = &ended["error"];
    assert_eq!(error["code"], "dify.config_invalid", "{ended}");
    assert_contains!(error["message"].to_string(), "CONNECTOR_DIFY_HOSTS");
    assert!(thief.requests().is_empty());
}

#[tokio::test]
async fn legacy_ids_are_offered_on_demand() {
    let stage = Stage::new().await;
    let legacy = connectors(&["--ids", "langbot"]).await;
    let endpoint = json!({"name": "legacy", "base_url": legacy.url, "secret": SECRET});
    let made = stage.admin.create("/v1/runner-endpoints", &endpoint).await;
    assert!(made.status < 300, "{}", made.body);
    until("the ids of LangBot", async || {
        let runners = stage.admin.get("/v1/runners").await.body.to_string();
        runners.contains("plugin:langbot/dify-agent/default")
    })
    .await;
}
