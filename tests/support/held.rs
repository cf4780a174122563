//! A run that its runner holds open while the test calls the host API in place of the runner.

use reqwest::{Method, RequestBuilder};
use serde_json::Value;

use super::client::{ApiResponse, Client, send};
use super::script::{Gate, sse_around};
use super::stage::{Stage, VerifiedOutcome};

pub struct HeldRun {
    pub run_id: String,
    /// The run request that the runner received.
    pub run_request: Value,
    pub token: String,
    pub host: Client,
    gate: Gate,
}

impl HeldRun {
    /// Returns once the runner has the request.
    pub async fn start(stage: &Stage, event: &Value) -> Self {
        Self::start_by(stage, event, stage.client.posting(event)).await
    }

    /// Like `start`, with an event posted by this client.
    pub async fn start_as(stage: &Stage, client: &Client, event: &Value) -> Self {
        Self::start_by(stage, event, client.posting(event)).await
    }

    /// Like `start`, with this `traceparent` header on the event.
    pub async fn start_with(stage: &Stage, event: &Value, traceparent: &str) -> Self {
        let posting = stage.client.posting(event);
        Self::start_by(stage, event, posting.header("traceparent", traceparent)).await
    }

    async fn start_by(stage: &Stage, event: &Value, posting: RequestBuilder) -> Self {
        let gate = Gate::new();
        let hold = gate.clone();
        let event_id = event["event_id"].as_str().unwrap();
        stage.runner.answer(event_id, move |run| {
            sse_around(&hold, "", run.talk(1).concat())
        });
        let run_id = send(posting).await.unwrap().run_id();
        let run_request = stage.runner.run_request(&run_id).await;
        let host = run_request.host();
        Self {
            run_id,
            token: host.key.clone(),
            host,
            run_request: run_request.json(),
            gate,
        }
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.host.request(method, path)
    }

    pub async fn get(&self, path: &str) -> ApiResponse {
        self.host.get(path).await
    }

    pub async fn post(&self, path: &str) -> ApiResponse {
        let request = self.request(Method::POST, path);
        send(request.json(&serde_json::json!({}))).await.unwrap()
    }

    pub async fn call(&self, path: &str, body: &Value) -> ApiResponse {
        send(self.request(Method::POST, path).json(body))
            .await
            .unwrap()
    }

    pub async fn put(&self, path: &str, value: &Value) -> ApiResponse {
        let body = serde_json::json!({ "value": value });
        send(self.request(Method::PUT, path).json(&body))
            .await
            .unwrap()
    }

    pub async fn put_at_version(&self, version: i64, path: &str, value: &Value) -> ApiResponse {
        let body = serde_json::json!({ "value": value });
        let request = self.request(Method::PUT, path).json(&body);
        send(request.header("if-match", version)).await.unwrap()
    }

    pub async fn delete(&self, path: &str) -> ApiResponse {
        self.host.delete(path).await
    }

    /// Lets the runner continue, without waiting for it.
    pub fn release(&self) {
        self.gate.cancel();
    }

    /// Lets the runner send one delta and complete.
    pub async fn end(&self, stage: &Stage) -> VerifiedOutcome {
        self.gate.cancel();
        stage.outcome(&self.run_id).await
    }
}
