//! A real model in place of the scripted one. Small models choose badly, so the tool choice is pinned.

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use url::Url;

use super::arms::{Arm, OutputForm};
use super::seen::ModelRequest;
use super::tasks::{Task, steps};
use crate::client::LoadConnection;

/// Maximum tokens of one output.
const MAX_TOKENS: u32 = 256;

/// An OpenAI-compatible model.
#[derive(Clone, Debug)]
pub(super) struct RealModel {
    address: String,
    path: String,
    model: String,
}

impl RealModel {
    /// The model of this name at a base URL such as `http://127.0.0.1:18090/v1`.
    pub(super) fn new(base: &Url, model: &str) -> anyhow::Result<Self> {
        ensure!(
            base.scheme() == "http",
            "--model-url is a plain http URL of this machine"
        );
        let host = base.host_str().context("--model-url has a host")?;
        let port = base
            .port_or_known_default()
            .context("--model-url has a port")?;
        Ok(Self {
            address: format!("{host}:{port}"),
            path: format!("{}/chat/completions", base.path().trim_end_matches('/')),
            model: model.to_owned(),
        })
    }

    /// Requests one completion and returns the choice: a message and its finish reason.
    pub(super) async fn answer(
        &self,
        arm: Arm,
        seen: &ModelRequest,
        body: &Value,
    ) -> anyhow::Result<Value> {
        let mut parameters = json!({
            "model": self.model, "messages": body["messages"], "stream": false,
            "max_tokens": MAX_TOKENS, "temperature": 0, "seed": 1,
        });
        if let Some(choice) = choice(arm, seen) {
            parameters["tools"] = body["tools"].clone();
            parameters["tool_choice"] = choice;
        }
        let body = parameters.to_string();
        let request = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.path,
            self.address,
            body.len()
        );
        let mut connection = LoadConnection::open(&self.address).await?;
        connection.send(request.as_bytes()).await?;
        let mut answer = Vec::new();
        let status = connection
            .answer(|part| answer.extend_from_slice(part))
            .await?;
        let text = String::from_utf8_lossy(&answer);
        ensure!(status == 200, "the model answered {status}: {text}");
        let mut answer: Value = serde_json::from_slice(&answer)?;
        Ok(answer["choices"][0].take())
    }
}

/// The pinned tool choice. Loops call the task's tools in order and then answer. The carrier is the only tool of
/// its arms. Fences need no tool.
fn choice(arm: Arm, seen: &ModelRequest) -> Option<Value> {
    let function = |name: &str| json!({"type": "function", "function": {"name": name}});
    match arm.form() {
        OutputForm::Native => {
            let (task, turn) = Task::of(&seen.text)?;
            let steps = steps(task, turn);
            steps
                .get(seen.results.len())
                .map(|step| function(step.target))
        }
        OutputForm::Carrier => Some(function("AgentProtocolOutput")),
        OutputForm::Fenced => None,
    }
}
