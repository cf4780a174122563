//! A runner that answers 202 and appends its results later.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::Stage;
use crate::support::client::{ApiResponse, Client, send};
use crate::support::script::{ScriptStep, head};

/// A run whose runner has answered 202, and its token for appending results.
pub struct Deferred {
    pub run_id: String,
    pub host: Client,
}

impl Deferred {
    pub async fn start(stage: &Stage, event: &Value) -> Self {
        let answer = vec![head("202 Accepted", "content-length: 0\r\n")];
        Self::start_with_answer(stage, event, answer).await
    }

    /// Like `start`, with `steps` as the runner's `202` response.
    pub async fn start_with_answer(stage: &Stage, event: &Value, steps: Vec<ScriptStep>) -> Self {
        let event_id = event["event_id"].as_str().unwrap();
        stage.runner.answer(event_id, move |_| steps.clone());
        let run_id = stage.client.post(event).await.run_id();
        let host = stage.host_of(&run_id).await;
        Self { run_id, host }
    }

    pub fn result(&self, sequence: u64, kind: &str, data: &Value) -> Value {
        json!({"run_id": self.run_id, "type": kind, "data": data, "sequence": sequence})
    }

    pub fn delta(&self, sequence: u64, text: &str) -> Value {
        let chunk = json!({"chunk": {"role": "assistant", "content": text}});
        self.result(sequence, "message.delta", &chunk)
    }

    pub fn completed(&self, sequence: u64) -> Value {
        self.result(sequence, "run.completed", &json!({"finish_reason": "stop"}))
    }

    pub async fn append_as(&self, host: &Client, results: &[Value]) -> ApiResponse {
        Self::try_append(host, results).await.unwrap()
    }

    async fn try_append(host: &Client, results: &[Value]) -> reqwest::Result<ApiResponse> {
        let request = host.request(Method::POST, "/run/results");
        send(request.json(&json!({"results": results}))).await
    }

    pub async fn append(&self, results: &[Value]) -> ApiResponse {
        self.append_as(&self.host, results).await
    }

    pub async fn accepted(&self, results: &[Value], through: u64) {
        let answer = self.append(results).await.expect(200);
        assert_eq!(answer.body, json!({"accepted_through": through}));
    }

    /// Appends to a gateway that crashes as it writes these results to the ledger: before or after its response.
    /// True when they were acknowledged.
    pub async fn append_before_crash(&self, results: &[Value]) -> bool {
        let answer = Self::try_append(&self.host, results).await;
        let is_acknowledged = answer.is_ok();
        if let Ok(answer) = answer {
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
        is_acknowledged
    }

    pub async fn heartbeat(&self) -> ApiResponse {
        let request = self.host.request(Method::POST, "/run/heartbeat");
        send(request.json(&json!({}))).await.unwrap()
    }
}
