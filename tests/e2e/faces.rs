//! Faces: runs over the protocols of other systems.

#[path = "faces/a2a.rs"]
mod a2a;
#[path = "faces/ag_ui.rs"]
mod ag_ui;
#[path = "faces/chat.rs"]
mod chat;
#[path = "faces/mcp.rs"]
mod mcp;
#[path = "faces/open_responses.rs"]
mod open_responses;
#[path = "faces/responses.rs"]
mod responses;

use serde_json::{Value, json};

use crate::interactions;
use crate::support::client::Client;
use crate::support::script::{Gate, Run, ScriptStep, sse, sse_around};
use crate::support::{Engine, OwnStage, until};

/// Base URL of OpenAI's API.
const OPENAI: &str = "/faces/openai/v1";

/// A stage whose agent `main` may ask questions. Other agents take other events.
async fn stage(engine: Engine) -> Option<OwnStage> {
    let stage = interactions::stage(engine).await?;
    stage.runner.answer_all(talk);
    Some(stage)
}

/// Tool call, text in pieces and as a message, and the end.
fn talk(run: &Run) -> Vec<ScriptStep> {
    let started =
        json!({"tool_call_id": "t-1", "tool_name": "search", "parameters": {"query": "tables"}});
    let completed = json!({"tool_call_id": "t-1", "tool_name": "search", "result": {"found": 2}});
    let message = json!({"message": {"role": "assistant", "content": "Two tables."}});
    let frames = [
        run.result(1, "tool.call.started", &started.to_string()),
        run.result(2, "tool.call.completed", &completed.to_string()),
        run.delta(3, "Two "),
        run.delta(4, "tables"),
        run.result(5, "message.completed", &message.to_string()),
        run.delta(6, "Which one?"),
        run.completed(7),
    ];
    sse(frames.concat())
}

/// Text of `talk`.
const TALK: &str = "Two tables.\n\nWhich one?";

/// A script that asks with these members in the question, and ends.
fn asking(more: Value) -> impl Fn(&Run) -> Vec<ScriptStep> + Send + Sync + 'static {
    move |run| {
        let question = interactions::question("q", &more);
        let data = json!({"action": "interaction.requested", "payload": question});
        let frames = [
            run.delta(1, "One question."),
            run.result(2, "action.requested", &data.to_string()),
            run.completed(3),
        ];
        sse(frames.concat())
    }
}

/// A script that asks, waits at the gate, and ends with a text.
fn waiting(gate: &Gate) -> impl Fn(&Run) -> Vec<ScriptStep> + Send + Sync + 'static {
    let gate = gate.clone();
    move |run| {
        let question = interactions::question("q", &json!({"await": true}));
        let data = json!({"action": "interaction.requested", "payload": question});
        let ask = run.result(1, "action.requested", &data.to_string());
        let rest = [run.delta(2, "Booked."), run.completed(3)].concat();
        sse_around(&gate, ask, rest)
    }
}

/// Lets the run continue when it has the answer.
async fn open_after_answer(stage: &OwnStage, gate: &Gate) {
    until("the answer", async || {
        let answered = stage.client.get("/v1/interactions?status=submitted").await;
        answered.body["items"] != json!([])
    })
    .await;
    gate.cancel();
}

/// The function by which questions reach a client of OpenAI's API.
fn ask_user() -> Value {
    json!({"name": "ask_user", "description": "Asks the user.", "parameters": {"type": "object"}})
}

async fn key(stage: &OwnStage, spec: Value) -> Client {
    let mut named = json!({"name": "face", "role": "client"});
    let members = spec.as_object().unwrap().clone();
    named.as_object_mut().unwrap().extend(members);
    let made = stage.admin.create("/v1/api-keys", &named).await.expect(201);
    Client::new(&stage.client.url, made.body["key"].as_str().unwrap())
}

/// The context of the newest run.
fn last_context(stage: &OwnStage) -> Value {
    let requests = stage.runner.requests();
    let newest = requests.iter().rev().find(|request| request.is_run());
    newest.unwrap().json()["context"].clone()
}
