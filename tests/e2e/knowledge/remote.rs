//! A knowledge base over the External Knowledge API, with a remote server that misbehaves.

use std::sync::{Arc, Mutex};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::searching_manifest;
use crate::support::client::message;
use crate::support::gateway::{Config, STUB_API_KEY};
use crate::support::held::HeldRun;
use crate::support::runner::StubRunner;
use crate::support::{OwnStage, Sqlite, until, within};

/// A remote server whose response depends on the query. It records its requests.
struct RemoteBaseServer {
    url: String,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    _task: JoinSet<()>,
}

impl RemoteBaseServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/knowledge", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&requests);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(serve(socket, Arc::clone(&all)));
            }
        });
        Self {
            url,
            requests,
            _task: task,
        }
    }
}

async fn serve(mut socket: TcpStream, requests: Arc<Mutex<Vec<(String, Value)>>>) {
    let mut bytes = Vec::new();
    let (head, body) = loop {
        let mut buffer = [0; 4096];
        let Ok(count @ 1..) = socket.read(&mut buffer).await else {
            return;
        };
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && let Ok(body) = serde_json::from_str::<Value>(body)
        {
            break (head.to_owned(), body);
        }
    };
    let query = body["query"].as_str().unwrap().to_owned();
    requests.lock().unwrap().push((head, body));
    let (status, body) = match query.as_str() {
        "good" => (
            "200 OK",
            json!({"records": [
                {"content": "second", "score": 0.5, "title": "b.md", "metadata": {"path": "x/b.md"}},
                {"content": "first", "score": 0.98, "title": "a.md", "metadata": null},
                {"content": "too far", "score": 0.1, "title": "c.md"},
            ]})
            .to_string(),
        ),
        "echo" => {
            let metadata = json!({"k": "of opens-sesame", "opens-sesame": 1});
            let echo = json!({"content": "Bearer opens-sesame", "score": 1.0, "title": "opens-sesame.md", "metadata": metadata});
            ("200 OK", json!({"records": [echo]}).to_string())
        }
        "shape" => ("200 OK", json!({"records": [{"text": 1}]}).to_string()),
        "page" => ("200 OK", "<html>it works</html>".to_owned()),
        "huge" => ("200 OK", format!("{{\"records\":[],\"x\":\"{}\"}}", "x".repeat(5 * 1024 * 1024))),
        "busy" => ("429 Too Many Requests\r\nretry-after: 7", "{}".to_owned()),
        "key" => ("403 Forbidden", json!({"error_code": 1002, "error_msg": "wrong key opens-sesame"}).to_string()),
        "gone" => ("404 Not Found", json!({"error_code": 2001, "error_msg": "no such base"}).to_string()),
        "oops" => ("500 Oops", json!({"error_msg": "key opens-sesame broke"}).to_string()),
        "moved" => ("302 Found\r\nlocation: http://127.0.0.1:1/", String::new()),
        "cut" => {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"records\":[";
            let _ = socket.write_all(head.as_bytes()).await;
            return;
        }
        _ => {
            // Send nothing until the gateway disconnects.
            while socket.read(&mut [0; 64]).await.is_ok_and(|count| count > 0) {}
            return;
        }
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let _ = socket.write_all(head.as_bytes()).await;
    let _ = socket.write_all(body.as_bytes()).await;
}

async fn stage(far: &RemoteBaseServer) -> OwnStage {
    let runner = StubRunner::start_as(searching_manifest()).await;
    let staged = OwnStage::of(Sqlite, runner, |config: &mut Config| {
        config.rest = format!(
            "[[knowledge_bases]]\nkb_id = \"wiki\"\nkb_type = \"dify\"\nbase_url = \"{}\"\n\
             api_key = \"env:{}\"\nknowledge_id = \"kb-1\"\nscore_threshold = 0.25\n",
            far.url, STUB_API_KEY.0
        );
        config.agents[0].resources = r#"knowledge_bases = ["wiki"]"#;
    });
    staged.await.unwrap()
}

#[tokio::test]
async fn translates_queries_for_remote_base() {
    let far = RemoteBaseServer::start().await;
    let stage = stage(&far).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let path = "/knowledge-bases/wiki/retrieve";
    let body = json!({"query_text": "good", "top_k": 2, "filters": {"lang": ["de", "en"]}});
    let found = run.call(path, &body).await.expect(200);
    let results = found.body["results"].as_array().unwrap();
    let passages: Vec<_> = results
        .iter()
        .map(|one| {
            (
                one["content"][0]["text"].as_str().unwrap(),
                one["score"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(passages, [("first", 0.98), ("second", 0.5)]);
    assert_eq!(
        results[1]["metadata"],
        json!({"path": "x/b.md", "name": "b.md", "source": "b.md"})
    );
    let (head, request) = far.requests.lock().unwrap()[0].clone();
    assert_starts_with!(head, "POST /knowledge/retrieval HTTP/1.1");
    assert_contains!(head.to_lowercase(), "authorization: bearer opens-sesame");
    assert_eq!(
        request,
        json!({
            "knowledge_id": "kb-1", "query": "good",
            "retrieval_setting": {"top_k": 2, "score_threshold": 0.25},
            "metadata_condition": {"logical_operator": "or", "conditions": [
                {"name": ["lang"], "comparison_operator": "is", "value": "de"},
                {"name": ["lang"], "comparison_operator": "is", "value": "en"}]},
        })
    );
    let admin = stage.admin.clone();
    let documents = admin.get("/v1/knowledge-bases/wiki/documents").await;
    documents.assert_detail(409, "reason", "remote_base");
    let tried = admin
        .call(
            Method::POST,
            "/v1/knowledge-bases/wiki/retrieve",
            &json!({"query_text": "good"}),
        )
        .await;
    assert_eq!(tried.status, 200, "{}", tried.body);
    run.end(&stage).await;
}

#[tokio::test]
async fn reports_remote_base_faults_without_secrets() {
    let far = RemoteBaseServer::start().await;
    let stage = stage(&far).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let path = "/knowledge-bases/wiki/retrieve";
    for (query, status, code, reason) in [
        ("shape", 502, "runtime_error", "upstream_malformed"),
        ("page", 502, "runtime_error", "upstream_malformed"),
        ("huge", 502, "runtime_error", "upstream_too_large"),
        ("busy", 429, "rate_limited", "upstream_rate_limited"),
        ("key", 502, "runtime_error", "upstream_credential"),
        ("gone", 400, "invalid_argument", "upstream_refused"),
        ("oops", 502, "runtime_error", "upstream_failing"),
        ("moved", 502, "runtime_error", "upstream_failing"),
        ("cut", 502, "runtime_error", "upstream_broken"),
    ] {
        let answer = run.call(path, &json!({"query_text": query})).await;
        let outcome = (answer.status, answer.error("code"), answer.detail("reason"));
        assert_eq!(
            outcome,
            (status, &json!(code), &json!(reason)),
            "{query}: {}",
            answer.body
        );
        assert_lacks!(answer.body.to_string(), "opens-sesame");
    }
    let echoed = run.call(path, &json!({"query_text": "echo"})).await;
    let entry = &echoed.body["results"][0];
    assert_eq!(entry["content"][0]["text"], "Bearer [redacted]");
    assert!(!echoed.body.to_string().contains("opens-sesame"));
    let mixed = json!({"query_text": "good", "filters": {"a": [1, 2], "b": 1}});
    let refused = run.call(path, &mixed).await;
    refused.assert_detail(400, "reason", "unsupported");
    assert!(!stage.gateway.log().contains("opens-sesame"));

    // Cancelling the run aborts a hanging call, and the audit log records it.
    let hanging = run
        .request(Method::POST, path)
        .json(&json!({"query_text": "silence"}));
    let hanging = hanging.send();
    let cancelling = async {
        until("the remote server to be called", async || {
            far.requests
                .lock()
                .unwrap()
                .iter()
                .any(|(_, body)| body["query"] == "silence")
        })
        .await;
        assert_eq!(stage.client.cancel(&run.run_id).await.status, 202);
    };
    let (answer, ()) = within("an answer", async { tokio::join!(hanging, cancelling) }).await;
    assert_eq!(answer.unwrap().status(), 409);
    run.release();
    stage.client.finished(&run.run_id).await;
    until("the call is audited to its end", async || {
        let audit = stage
            .client
            .get(&format!("/v1/runs/{}/audit?limit=100", run.run_id))
            .await
            .body;
        let entries = audit["items"].as_array().unwrap();
        entries.iter().any(|entry| {
            entry["action"] == "retrieve_knowledge_base" && entry["outcome"] == "cancelled"
        })
    })
    .await;
}

#[tokio::test]
async fn limits_concurrent_searches_per_run() {
    let far = RemoteBaseServer::start().await;
    let stage = stage(&far).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let path = "/knowledge-bases/wiki/retrieve";
    let (silent, good) = (
        json!({"query_text": "silent"}),
        json!({"query_text": "good"}),
    );
    let mut searches = JoinSet::new();
    for _ in 0..8 {
        let asking = run.request(Method::POST, path).json(&silent);
        searches.spawn(async move { asking.send().await.map(|answer| answer.status()) });
    }
    let all_received = async || far.requests.lock().unwrap().len() == 8;
    until("the searches", all_received).await;
    let refused = run.call(path, &good).await;
    let why = (refused.status, refused.detail("reason"));
    assert_eq!(why, (429, &json!("retrievals")), "{}", refused.body);
    searches.shutdown().await;
    until("a slot to be free", async || {
        run.call(path, &good).await.status == 200
    })
    .await;
    run.end(&stage).await;
}
