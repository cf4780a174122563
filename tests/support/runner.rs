//! A stub runner on bare TCP: records requests and answers byte for byte by script.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::client::Client;
use super::script::{Run, ScriptStep};
use super::within;

pub const RUNNER_ID: &str = "plugin:test/stub/default";
pub const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

type SharedScript = Arc<dyn Fn(&Run) -> Vec<ScriptStep> + Send + Sync>;

/// Closes its sockets on drop.
pub struct StubRunner {
    pub url: String,
    shared: Arc<StubState>,
    tasks: JoinSet<()>,
}

struct StubState {
    manifests: Mutex<Value>,
    requests: watch::Sender<Vec<RecordedRequest>>,
    closed: watch::Sender<usize>,
    scripts: Mutex<HashMap<String, SharedScript>>,
    resumes: Mutex<Option<SharedScript>>,
    /// Runs that were posted. A resume of any other run gets 404.
    received: Mutex<HashSet<String>>,
}

#[derive(Clone, Debug, Default)]
pub struct RecordedRequest {
    pub method: String,
    pub path: String,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Arrival time of the request line.
    pub at: Option<Instant>,
}

impl RecordedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn is_run(&self) -> bool {
        self.method == "POST" && self.path == "/runs"
    }

    /// Host API client of a run request, with its address and token.
    pub fn host(&self) -> Client {
        let request = self.json();
        let [url, token] = ["base_url", "token"].map(|name| request["host"][name].as_str());
        Client::new(url.unwrap(), token.unwrap())
    }

    pub fn is_signed(&self) -> bool {
        self.is_signed_with(SECRET)
    }

    /// Checks the Standard Webhooks signature with an independent implementation.
    pub fn is_signed_with(&self, secret: &str) -> bool {
        let key = BASE64_STANDARD
            .decode(secret.trim_start_matches("whsec_"))
            .unwrap();
        let [id, timestamp, signature] = ["webhook-id", "webhook-timestamp", "webhook-signature"]
            .map(|name| self.header(name).unwrap_or_default());
        let mut signed = format!("{id}.{timestamp}.").into_bytes();
        signed.extend_from_slice(&self.body);
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), &signed);
        signature == format!("v1,{}", BASE64_STANDARD.encode(tag))
    }
}

impl StubRunner {
    pub async fn start() -> Self {
        Self::start_as(manifest(RUNNER_ID)).await
    }

    /// With the `interrupt` capability in the manifest.
    pub async fn start_interruptible() -> Self {
        let mut manifest = manifest(RUNNER_ID);
        manifest["capabilities"]["interrupt"] = json!(true);
        Self::start_as(manifest).await
    }

    /// With the `resumable` capability in the manifest.
    pub async fn start_resumable(resume_within_seconds: u32) -> Self {
        let mut manifest = manifest(RUNNER_ID);
        manifest["capabilities"]["resumable"] = json!(true);
        manifest["resume_within_seconds"] = json!(resume_within_seconds);
        Self::start_as(manifest).await
    }

    /// Lists only this manifest.
    pub async fn start_as(manifest: Value) -> Self {
        Self::start_listing(json!([manifest])).await
    }

    /// Lists these manifests, valid or not.
    pub async fn start_listing(manifests: Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(StubState {
            manifests: Mutex::new(manifests),
            requests: watch::Sender::default(),
            closed: watch::Sender::default(),
            scripts: Mutex::default(),
            resumes: Mutex::default(),
            received: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&shared)));
        Self { url, shared, tasks }
    }

    /// Stops listening and closes every connection.
    pub async fn stop(&mut self) {
        self.tasks.shutdown().await;
    }

    /// Sets the response to the run of event `event_id`.
    pub fn answer(
        &self,
        event_id: &str,
        script: impl Fn(&Run) -> Vec<ScriptStep> + Send + Sync + 'static,
    ) {
        let mut scripts = self
            .shared
            .scripts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        scripts.insert(event_id.to_owned(), Arc::new(script));
    }

    /// Sets the response to every resume of a run that was posted.
    pub fn answer_resumes(&self, script: impl Fn(&Run) -> Vec<ScriptStep> + Send + Sync + 'static) {
        let mut resumes = self.shared.resumes.lock();
        *resumes.as_deref_mut().unwrap() = Some(Arc::new(script));
    }

    /// Requests that resume this run.
    pub fn resumes(&self, run_id: &str) -> Vec<RecordedRequest> {
        let path = format!("/runs/{run_id}/resume");
        let mut requests = self.requests();
        requests.retain(|request| request.path == path);
        requests
    }

    /// Replaces the listed manifests.
    pub fn list(&self, manifests: Value) {
        let mut listed = self.shared.manifests.lock();
        *listed.as_deref_mut().unwrap() = manifests;
    }

    /// Sets the response to every run without its own script.
    pub fn answer_all(&self, script: impl Fn(&Run) -> Vec<ScriptStep> + Send + Sync + 'static) {
        self.answer("", script);
    }

    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.requests.borrow().clone()
    }

    /// Removes and returns the requests since the last call, so that a long test can bound its memory.
    pub fn take_requests(&self) -> Vec<RecordedRequest> {
        let mut taken = Vec::new();
        self.shared
            .requests
            .send_modify(|all| taken = std::mem::take(all));
        taken
    }

    /// Number of requests for this run.
    pub fn posts(&self, run_id: &str) -> usize {
        let of_run = |request: &&RecordedRequest| {
            request.is_run() && request.header("runnel-run-id") == Some(run_id)
        };
        self.shared.requests.borrow().iter().filter(of_run).count()
    }

    /// Waits for the first request that matches.
    pub async fn wait_for_request(
        &self,
        what: &str,
        fits: impl Fn(&RecordedRequest) -> bool,
    ) -> RecordedRequest {
        let mut requests = self.shared.requests.subscribe();
        let some_fits = requests.wait_for(|all| all.iter().any(&fits));
        let all = within(what, some_fits).await.unwrap();
        all.iter().find(|request| fits(request)).unwrap().clone()
    }

    /// Waits for the run request of this run.
    pub async fn run_request(&self, run_id: &str) -> RecordedRequest {
        let of_run = |request: &RecordedRequest| {
            request.is_run() && request.header("runnel-run-id") == Some(run_id)
        };
        self.wait_for_request("the run", of_run).await
    }

    /// Waits for the cancel request of this run.
    pub async fn cancel_request(&self, run_id: &str) -> RecordedRequest {
        let path = format!("/runs/{run_id}/cancel");
        self.wait_for_request("the cancel", |request| request.path == path)
            .await
    }

    /// The context in the run request of this run.
    pub async fn context_of(&self, run_id: &str) -> Value {
        self.run_request(run_id).await.json()["context"].clone()
    }

    /// Waits for `more` further list requests. Only the responses before the last are sure to hold the current
    /// list: a request may have been in flight.
    pub async fn listed(&self, more: usize) {
        let lists = |all: &Vec<RecordedRequest>| {
            let list =
                |request: &&RecordedRequest| request.method == "GET" && request.path == "/runners";
            all.iter().filter(list).count()
        };
        let mut requests = self.shared.requests.subscribe();
        let enough = lists(&requests.borrow()) + more;
        within(
            "the gateway to ask again",
            requests.wait_for(|all| lists(all) >= enough),
        )
        .await
        .unwrap();
    }

    /// Waits until the gateway has closed `count` sockets during `AwaitClose` or a write.
    pub async fn closed(&self, count: usize) {
        let mut closed = self.shared.closed.subscribe();
        within("the gateway to close", closed.wait_for(|all| *all >= count))
            .await
            .unwrap();
    }
}

/// A manifest with permission to page the history, and streaming as its only capability.
pub fn manifest(id: &str) -> Value {
    json!({
        "id": id,
        "name": "default",
        "label": {"en_US": "Stub"},
        "capabilities": {
            "streaming": true, "interrupt": false, "tool_calling": false,
            "knowledge_retrieval": false, "multimodal_input": false, "event_context": false,
            "platform_api": false, "stateful_session": false, "self_managed_context": false,
            "skill_authoring": false, "steering": false, "interactions": false,
        },
        "permissions": {
            "history": ["page"],
            "state": ["conversation", "actor", "subject", "runner", "binding"],
        },
    })
}

async fn accept(listener: TcpListener, shared: Arc<StubState>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            socket = listener.accept() => {
                let (socket, _) = socket.unwrap();
                connections.spawn(serve(socket, Arc::clone(&shared)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one request. A gateway that disconnects early is no failure of the stub.
async fn serve(socket: TcpStream, shared: Arc<StubState>) {
    let mut socket = BufReader::new(socket);
    let Some(request) = read_request(&mut socket).await else {
        return;
    };
    let mut socket = socket.into_inner();
    let _ = socket.set_nodelay(true);

    let steps = shared.steps(&request);
    shared.requests.send_modify(|all| all.push(request));
    for step in steps {
        let done = match step {
            ScriptStep::AwaitClose => {
                while socket.read(&mut [0; 64]).await.is_ok_and(|count| count > 0) {}
                shared.closed.send_modify(|count| *count += 1);
                return;
            }
            ScriptStep::Reset => {
                let _ = socket.set_zero_linger();
                return;
            }
            ScriptStep::Hold(gate) => {
                gate.cancelled().await;
                Ok(())
            }
            ScriptStep::Repeat(bytes, pause) => {
                let cut = repeat(&mut socket, &bytes, pause).await;
                shared.closed.send_modify(|count| *count += 1);
                Err(cut)
            }
            step => write(&mut socket, step).await,
        };
        if done.is_err() {
            shared.closed.send_modify(|count| *count += 1);
            return;
        }
    }
    let _ = socket.shutdown().await;
}

async fn write(socket: &mut TcpStream, step: ScriptStep) -> std::io::Result<()> {
    match step {
        ScriptStep::Send(bytes) => socket.write_all(&bytes).await,
        ScriptStep::Pace(parts, pause) => {
            for part in parts {
                socket.write_all(&part).await?;
                tokio::time::sleep(pause).await;
            }
            Ok(())
        }
        ScriptStep::Repeat(..)
        | ScriptStep::Hold(_)
        | ScriptStep::AwaitClose
        | ScriptStep::Reset => Ok(()),
    }
}

/// Writes until the gateway closes the connection.
async fn repeat(socket: &mut TcpStream, bytes: &[u8], pause: Duration) -> std::io::Error {
    loop {
        if let Err(cut) = socket.write_all(bytes).await {
            return cut;
        }
        tokio::time::sleep(pause).await;
    }
}

impl StubState {
    fn steps(&self, request: &RecordedRequest) -> Vec<ScriptStep> {
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/runners") => complete_response("200 OK", &self.list()),
            ("POST", "/runs") => self.script(request),
            ("POST", "/function") => match request.json()["action"].as_str() {
                Some("list_runners") => complete_response("200 OK", &self.list()),
                Some("run") => self.script(request),
                Some("resume") => self.resume(request),
                _ => complete_response("404 Not Found", &json!({})),
            },
            ("POST", path) if path.ends_with("/resume") => self.resume(request),
            ("POST", path) if path.ends_with("/cancel") => {
                complete_response("202 Accepted", &json!({}))
            }
            _ => complete_response("404 Not Found", &json!({})),
        }
    }

    fn list(&self) -> Value {
        json!({"runners": *self.manifests.lock().unwrap_or_else(PoisonError::into_inner)})
    }

    fn resume(&self, request: &RecordedRequest) -> Vec<ScriptStep> {
        let body = request.json();
        let run = Run {
            event_id: String::new(),
            id: body["run_id"].as_str().unwrap_or_default().to_owned(),
            attempt: u32::try_from(body["attempt"].as_u64().unwrap_or_default()).unwrap(),
            after: body["after"].as_u64().unwrap_or_default(),
        };
        let received = self.received.lock();
        let is_known = received
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&run.id);
        let script = self.resumes.lock();
        let script = script.unwrap_or_else(PoisonError::into_inner).clone();
        script.filter(|_| is_known).map_or_else(
            || complete_response("404 Not Found", &json!({})),
            |script| script(&run),
        )
    }

    fn script(&self, request: &RecordedRequest) -> Vec<ScriptStep> {
        let body = request.json();
        let event_id = body["context"]["event"]["event_id"]
            .as_str()
            .unwrap_or_default();
        let attempt = request.header("runnel-attempt").unwrap_or_default().parse();
        let run = Run {
            event_id: event_id.to_owned(),
            id: body["context"]["run_id"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            attempt: attempt.unwrap_or_default(),
            after: 0,
        };
        let received = self.received.lock();
        received
            .unwrap_or_else(PoisonError::into_inner)
            .insert(run.id.clone());
        let scripts = self.scripts.lock().unwrap_or_else(PoisonError::into_inner);
        let script = scripts.get(event_id).or_else(|| scripts.get(""));
        script.map_or_else(
            || complete_response("404 Not Found", &json!({})),
            |script| script(&run),
        )
    }
}

fn complete_response(status: &str, body: &Value) -> Vec<ScriptStep> {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    vec![ScriptStep::Send(format!("{head}{body}").into_bytes())]
}

/// Returns `None` if the connection ends before the request does.
async fn read_request(socket: &mut BufReader<TcpStream>) -> Option<RecordedRequest> {
    let mut request = RecordedRequest::default();
    let mut line = String::new();
    socket.read_line(&mut line).await.ok()?;
    request.at = Some(Instant::now());
    let (method, path) = line.trim_end().split_once(' ')?;
    method.clone_into(&mut request.method);
    path.split(' ').next()?.clone_into(&mut request.path);
    loop {
        line.clear();
        socket.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        request
            .headers
            .push((name.to_lowercase(), value.trim().to_owned()));
    }
    let length = request.header("content-length").map_or(Ok(0), str::parse);
    request.body = vec![0; length.ok()?];
    socket.read_exact(&mut request.body).await.ok()?;
    Some(request)
}
