//! Child runs of other agents.

use protocol::context::AgentRunContext;
use serde_json::{Value, json};

use crate::testing::{TestHost, answer, call, context, end, ending, run, text};

fn asking_context(agents: &Value) -> AgentRunContext {
    let mut context = context("go", &json!({}));
    context.resources.agents = serde_json::from_value(agents.clone()).unwrap();
    context
}

fn helper() -> Value {
    json!([{"agent_id": "a-1", "display_name": "helper", "description": "Counts words.",
        "operations": ["call"]}])
}

fn child(status: &str, more: &Value) -> Value {
    let id = "01934f3e-0000-7000-8000-000000000001";
    let mut child = json!({"run_id": id, "parent_run_id": id, "agent_id": id, "status": status,
        "status_reason": null, "created_at": 0, "finished_at": 1, "deadline_at": 60,
        "finish_reason": null, "outcome": null, "output": null, "error": null, "usage": null});
    let more = more.as_object().unwrap().clone();
    child.as_object_mut().unwrap().extend(more);
    child
}

fn asking_host() -> TestHost {
    let host = TestHost::default();
    let arguments = json!({"agent": "helper", "prompt": "count"});
    host.model("m", vec![call("c1", "ask_agent", &arguments), end()]);
    host.model("m", vec![text("done"), end()]);
    host
}

async fn tool_message_of(host: &TestHost) -> String {
    let results = run(host, asking_context(&helper())).await;
    assert_eq!(ending(&results), ("run.completed", None));
    assert_eq!(answer(&results), "done");
    let messages = host.request(1);
    let tool_message = messages.iter().find(|message| message.role == "tool");
    tool_message.unwrap().plain_text()
}

#[tokio::test]
async fn returns_agent_answers_as_tool_results() {
    let host = asking_host();
    let output = json!({"output": {"role": "assistant", "content": "seven"}});
    let answer = Ok(child("completed", &output));
    host.script().agents.insert("helper".to_owned(), answer);
    assert_eq!(tool_message_of(&host).await, "seven");
    assert_eq!(
        host.calls("ask_agent"),
        ["ask_agent helper count turn-1-call-0"]
    );
    let request = host.script().requests[0].clone();
    let tool = request.tools.iter().find(|tool| tool.name == "ask_agent");
    let tool = tool.unwrap();
    assert_eq!(
        tool.parameters["properties"]["agent"]["enum"],
        json!(["helper"])
    );
    assert!(
        tool.description.ends_with("\n- helper: Counts words."),
        "{}",
        tool.description
    );
}

#[tokio::test]
async fn reports_agent_failures_to_model() {
    let failed = json!({"error": {"code": "boom", "message": "it broke", "retryable": false}});
    for (answer, expected) in [
        (
            Ok(child("failed", &failed)),
            "Error: The run of the agent ended as failed: it broke",
        ),
        (
            Err(("conflict", "no more child runs".to_owned())),
            "Error: The agent was not called: no more child runs",
        ),
    ] {
        let host = asking_host();
        host.script().agents.insert("helper".to_owned(), answer);
        assert_eq!(tool_message_of(&host).await, expected);
    }
}

#[tokio::test]
async fn omits_agent_tool_without_granted_agents() {
    let host = asking_host();
    let results = run(&host, asking_context(&json!([]))).await;
    assert_eq!(ending(&results), ("run.completed", None));
    assert_eq!(host.calls("ask_agent"), Vec::<String>::new());
    let tools = host.script().requests[0].tools.clone();
    assert!(tools.iter().all(|tool| tool.name != "ask_agent"));
}
