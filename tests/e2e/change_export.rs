//! Export of administrative changes: each at least once, to a file or to a receiver that fails at first.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::gateway::{Config, STUB_API_KEY};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, TempDirectory, serve, until};

/// A receiver that refuses the first requests.
#[derive(Clone, Default)]
struct Receiver {
    refusals: Arc<Mutex<u32>>,
    lines: Arc<Mutex<Vec<Value>>>,
    headers: Arc<Mutex<Vec<HeaderMap>>>,
}

impl Receiver {
    async fn start(&self) -> (String, JoinSet<()>) {
        let router = Router::new().fallback(receive).with_state(self.clone());
        serve(router).await
    }

    fn events(&self) -> Vec<Value> {
        self.lines.lock().unwrap().clone()
    }
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: String) -> StatusCode {
    receiver.headers.lock().unwrap().push(headers);
    let mut refusals = receiver.refusals.lock().unwrap();
    if *refusals > 0 {
        *refusals -= 1;
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let lines = body.lines().map(|line| serde_json::from_str(line).unwrap());
    receiver.lines.lock().unwrap().extend(lines);
    StatusCode::NO_CONTENT
}

fn uids(events: &[Value]) -> BTreeSet<String> {
    let uids = events.iter().map(|event| event["metadata"]["uid"].as_str());
    uids.map(|uid| uid.unwrap().to_owned()).collect()
}

/// Ids of all changes of the workspace.
async fn changes(stage: &OwnStage) -> BTreeSet<String> {
    let listed = stage
        .admin
        .get("/v1/changes?limit=100")
        .await
        .expect(200)
        .body;
    let ids = listed["items"].as_array().unwrap().iter();
    ids.map(|change| change["id"].as_str().unwrap().to_owned())
        .collect()
}

fn lines_of(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Creates, changes and deletes a budget, with one request id.
async fn change_budget(stage: &OwnStage) {
    let path = "/v1/budgets/exported";
    for calls in [1, 2] {
        let put = stage.admin.request(Method::PUT, path);
        let spec = json!({"scope": "run", "calls": calls});
        let put = put
            .header("x-request-id", "request-7")
            .json(&spec)
            .send()
            .await;
        assert!(put.unwrap().status().is_success());
    }
    let deleted = stage.admin.request(Method::DELETE, path).send().await;
    assert!(deleted.unwrap().status().is_success());
}

#[rstest]
#[tokio::test]
async fn exports_changes_to_file(#[values(Sqlite, Postgres)] engine: Engine) {
    let directory = TempDirectory::new();
    let file = directory.file("changes.ndjson");
    let export = format!("[audit]\nexport = {{ file = \"{}\" }}\n", file.display());
    let configure = |config: &mut Config| config.rest = export;
    let stage = or_skip!(OwnStage::on(engine, configure).await);
    change_budget(&stage).await;
    let changes = changes(&stage).await;
    until("all changes in the file", async || {
        uids(&lines_of(&file)) == changes
    })
    .await;
    let events = lines_of(&file);
    assert_eq!(events.len(), changes.len(), "each once");
    let of_budget: Vec<_> = events
        .iter()
        .filter(|event| event["entity"]["type"] == "budget")
        .collect();
    let activities: Vec<_> = of_budget
        .iter()
        .map(|event| event["activity_id"].clone())
        .collect();
    assert_eq!(activities, [1, 3, 4]);
    for event in &of_budget[..2] {
        assert_eq!(event["metadata"]["correlation_uid"], "request-7");
        assert_eq!(event["metadata"]["tenant_uid"], "default");
        assert_eq!(event["actor"]["user"]["type"], "Service");
        assert_eq!(event["entity"]["name"], "exported");
    }

    // A rotated file is created again, with later changes only.
    std::fs::rename(&file, directory.file("old.ndjson")).unwrap();
    change_budget(&stage).await;
    until("later changes in the new file", async || {
        lines_of(&file).len() == 3
    })
    .await;
}

#[tokio::test]
async fn repeats_changes_that_the_receiver_refused() {
    let receiver = Receiver::default();
    *receiver.refusals.lock().unwrap() = 1;
    let (url, _server) = receiver.start().await;
    let export = format!(
        "[audit]\nexport = {{ url = \"{url}/changes\", headers = {{ authorization = \"env:{}\" }} }}\n",
        STUB_API_KEY.0
    );
    let configure = |config: &mut Config| config.rest = export;
    let stage = OwnStage::on(Sqlite, configure).await.unwrap();
    change_budget(&stage).await;
    let changes = changes(&stage).await;
    until("all changes", async || uids(&receiver.events()) == changes).await;
    assert_eq!(*receiver.refusals.lock().unwrap(), 0);
    for headers in receiver.headers.lock().unwrap().iter() {
        assert_eq!(headers["authorization"], STUB_API_KEY.1);
        assert_eq!(headers["content-type"], "application/x-ndjson");
    }
    assert_lacks!(stage.gateway.log(), STUB_API_KEY.1);
}
