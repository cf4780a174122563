//! The connectors against real servers of the platforms, installed from `PyPI`.

use serde_json::{Value, json};

use crate::support::connectors::ConnectedAgent;
use crate::support::until;

#[path = "connector_peers/servers.rs"]
mod servers;

use servers::{a2a_agent, ag_ui_agent, langflow, langgraph};

/// The output text of a run.
fn answer_text(run: &Value) -> &str {
    run["output"]["content"].as_str().unwrap_or_default()
}

async fn says(agent: &ConnectedAgent, text: &str, expected: &str) {
    let ended = agent.ended(text).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(answer_text(&ended), expected, "{ended}");
}

/// Posts a message, answers the interaction of its run with this text and button, and returns the finished run.
async fn answered(agent: &ConnectedAgent, text: &str, answer: &str, button: usize) -> Value {
    let run = agent.post(text).await;
    let path = format!("/v1/interactions?run_id={run}&status=open");
    let mut question = Value::Null;
    until("the question", async || {
        question = agent.client.get(&path).await.body["items"][0].clone();
        !question.is_null()
    })
    .await;
    let request = &question["request"];
    let mut values = json!({});
    if let Some(field) = request["fields"][0]["id"].as_str() {
        values[field] = json!(answer);
    }
    let body = json!({
        "interaction_id": request["interaction_id"], "action_id": request["actions"][button]["id"], "values": values,
    });
    let id = question["id"].as_str().unwrap();
    let path = format!("/v1/interactions/{id}/submit");
    let taken = agent.client.create(&path, &body).await;
    assert!(taken.status < 300, "{request}: {}", taken.body);
    agent.client.finished(&run).await
}

async fn a2a_round(binding: &str) {
    let peer = or_skip!(a2a_agent(binding).await);
    let config = format!("base-url = \"{}\"\nshow-thoughts = true", peer.url);
    let agent = ConnectedAgent::open("a2a-agent", &config).await;
    says(&agent, "hi", "1: hi").await;
    // The platform keeps the context.
    says(&agent, "more", "2: more").await;
    let ended = answered(&agent, "ask", "Oslo", 0).await;
    assert_eq!(answer_text(&ended), "To Oslo", "{ended}");

    let run = agent.post("wait").await;
    until("the task", async || {
        !agent.results(&run, "x.connectors.thought").await.is_empty()
    })
    .await;
    assert_eq!(agent.client.cancel(&run).await.status, 202);
    let ended = agent.client.finished(&run).await;
    assert_eq!(ended["status"], "cancelled", "{ended}");
    until("the agent to cancel the task", async || {
        answer_text(&agent.ended("canceled").await) == "canceled: 1"
    })
    .await;
}

#[tokio::test]
async fn a2a_agents_answer_over_json_rpc() {
    a2a_round("JSONRPC").await;
}

#[tokio::test]
async fn a2a_agents_answer_over_http_and_json() {
    a2a_round("HTTP+JSON").await;
}

#[tokio::test]
async fn ag_ui_agents_stream_ask_and_fail() {
    let peer = or_skip!(ag_ui_agent().await);
    let config = format!("url = \"{}/agent\"\nshow-thoughts = true", peer.url);
    let agent = ConnectedAgent::open("ag-ui-agent", &config).await;
    let first = agent.ended("hi").await;
    assert_eq!(answer_text(&first), "run 1, 1 messages", "{first}");
    let run = first["run_id"].as_str().unwrap();
    let reasoning = agent.results(run, "x.connectors.thought").await;
    assert_eq!(reasoning[0]["data"]["text"], "I count.");
    let calls = agent.results(run, "tool.call.completed").await;
    assert_eq!(calls[0]["data"]["tool_name"], "count");
    // The request includes earlier messages and the state.
    says(&agent, "more", "run 2, 3 messages").await;

    let ended = answered(&agent, "ask", "yes", 0).await;
    assert_eq!(
        answer_text(&ended),
        "approval-1 resolved: \"yes\"",
        "{ended}"
    );

    let ended = agent.ended("fail").await;
    assert_eq!(ended["error"]["code"], "ag_ui.api_error", "{ended}");
    let failed = agent
        .results(ended["run_id"].as_str().unwrap(), "run.failed")
        .await;
    assert_members!(failed[0]["data"]["details"], {"code": "no_seats"});
}

#[tokio::test]
async fn langgraph_servers_stream_and_ask() {
    let peer = or_skip!(langgraph().await);
    let config = format!("base-url = \"{}\"\nassistant-id = \"agent\"", peer.url);
    let agent = ConnectedAgent::open("langgraph-agent", &config).await;
    says(&agent, "hi", "1 messages: hi").await;
    // The platform keeps the thread.
    says(&agent, "more", "3 messages: more").await;
    let ended = answered(&agent, "ask", "", 1).await;
    assert_eq!(answer_text(&ended), "chosen: right", "{ended}");
}

#[tokio::test]
async fn langflow_flows_answer_in_sessions() {
    let peer = or_skip!(langflow().await);
    let config = format!(
        "base-url = \"{}\"\napi-key = \"{}\"\nflow-id = \"{}\"",
        peer.server.url, peer.key, peer.flow
    );
    let agent = ConnectedAgent::open("langflow-agent", &config).await;
    says(&agent, "hi", "hi").await;
    says(&agent, "more", "more").await;
}
