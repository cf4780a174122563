//! A runner that keeps the contract except for one injected fault.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures_util::stream;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::runner::SECRET;
use super::serve;

pub const FAULTY_RUNNER_ID: &str = "plugin:test/bent/default";

/// The injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    Nothing,
    // no fault, in the other framings
    SendsJsonLines,
    AnswersAsOneDocument,
    SendsAllContent,
    Appends,
    // appended results
    AppendsNothing,
    AppendsWithAGap,
    // runner list
    ListsNothing,
    ListFails,
    ListsInvalidManifest,
    ListsInvalidId,
    ListsVersionTwo,
    ListsOtherIdsEachTime,
    ListsAnUnknownCapability,
    // signatures
    AcceptsUnsigned,
    AcceptsUnsignedLists,
    AcceptsAnySecret,
    AcceptsTamperedBodies,
    AcceptsOldTimestamps,
    AcceptsFutureTimestamps,
    AcceptsDuplicateIds,
    RefusesSigned,
    // the stream
    NeverAnswers,
    AnswersServerError,
    AnswersHtml,
    Compresses,
    SendsInvalidJson,
    SendsALongLine,
    UsesAnotherRunId,
    CountsBackward,
    LeavesASequenceGap,
    SendsInvalidPayload,
    WritesHostState,
    LeaksTheToken,
    OmitsTheTerminal,
    SendsTwoTerminals,
    SendsAfterTheTerminal,
    StaysOpen,
    SendsNothing,
    SendsSnapshots,
    HidesStreaming,
    FailsWithHostileText,
    UsesGatewayErrorCode,
    SendsForeignEvents,
    OmitsEmptyLines,
    LabelsEventsAsJson,
    SplitsCharacters,
    // run requests
    WritesMissingConversationState,
    RefusesUnknownFields,
    RequiresAConversation,
    RefusesACharset,
    // cancel, closed connection, concurrent runs
    AcceptsUnsignedCancels,
    RefusesCancels,
    IgnoresCancels,
    FailsCancels,
    FailsAfterACut,
    MixesRuns,
    // callbacks
    CallsWithoutToken,
    CallsUnknownRoutes,
    CallsWithInvalidBody,
    CallsWithoutGrant,
    /// Writes state that its manifest asks for, also where the event lacks the party.
    WritesStateOfEachEvent,
    /// Writes state of a scope that its manifest lacks.
    WritesStateWithoutPermission,
    CallsAfterTheEnd,
}

/// Stops the server on drop.
pub struct FaultyRunner {
    pub url: String,
    _tasks: JoinSet<()>,
}

struct FaultyRunnerState {
    fault: InjectedFault,
    client: reqwest::Client,
    seen: Mutex<HashSet<String>>,
    lists: AtomicU64,
    is_busy: AtomicBool,
    /// Id and input text of the newest run, for the fault that mixes runs.
    last: watch::Sender<(String, String)>,
    runs: Mutex<JoinSet<()>>,
}

impl FaultyRunner {
    pub async fn start(fault: InjectedFault) -> Self {
        let runner = Arc::new(FaultyRunnerState {
            fault,
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            seen: Mutex::default(),
            lists: AtomicU64::new(0),
            is_busy: AtomicBool::new(false),
            last: watch::Sender::default(),
            runs: Mutex::default(),
        });
        let app = Router::new().fallback(answer).with_state(runner);
        let (url, tasks) = serve(app).await;
        Self { url, _tasks: tasks }
    }
}

async fn answer(State(runner): State<Arc<FaultyRunnerState>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 4 << 20).await.unwrap();
    let path = parts.uri.path();
    if let Err(status) = runner.admit(path, &parts.headers, &body) {
        return status.into_response();
    }
    match (parts.method.as_str(), path) {
        ("GET", "/runners") => runner.list(),
        ("POST", "/runs") => runner.start(&parts.headers, &body).await,
        ("POST", _) if path.ends_with("/cancel") => runner.cancel().into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

impl FaultyRunnerState {
    fn has_fault(&self, fault: InjectedFault) -> bool {
        self.fault == fault
    }

    fn admit(&self, path: &str, headers: &HeaderMap, body: &[u8]) -> Result<(), StatusCode> {
        let header = |name: &str| {
            headers
                .get(name)
                .map_or("", |value| value.to_str().unwrap())
        };
        let [id, timestamp, signature] =
            ["webhook-id", "webhook-timestamp", "webhook-signature"].map(header);
        let open = match path {
            "/runners" => self.has_fault(InjectedFault::AcceptsUnsignedLists),
            "/runs" => self.has_fault(InjectedFault::AcceptsUnsigned),
            _ => self.has_fault(InjectedFault::AcceptsUnsignedCancels),
        };
        if signature.is_empty() && open {
            return Ok(());
        }
        let is_tampered = || sign(id, timestamp, &tampered(body)) == signature;
        let is_signed = match self.fault {
            _ if sign(id, timestamp, body) == signature => true,
            InjectedFault::AcceptsAnySecret => signature.starts_with("v1,") && !is_tampered(),
            InjectedFault::AcceptsTamperedBodies => is_tampered(),
            _ => false,
        };
        let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
        let age = now - timestamp.parse::<i64>().unwrap_or(0);
        let is_fresh = (age < 300 || self.has_fault(InjectedFault::AcceptsOldTimestamps))
            && (age > -300 || self.has_fault(InjectedFault::AcceptsFutureTimestamps));
        if !is_signed
            || !is_fresh
            || self.has_fault(InjectedFault::RefusesSigned) && path == "/runs"
        {
            return Err(StatusCode::UNAUTHORIZED);
        }
        if !self.seen.lock().unwrap().insert(id.to_owned())
            && !self.has_fault(InjectedFault::AcceptsDuplicateIds)
        {
            return Err(StatusCode::CONFLICT);
        }
        Ok(())
    }

    fn list(&self) -> Response {
        let count = self.lists.fetch_add(1, Ordering::SeqCst);
        let manifest = |id: &str| {
            let name = id.rsplit('/').next().unwrap();
            let interrupt = !self.has_fault(InjectedFault::FailsCancels);
            let streaming = !self.has_fault(InjectedFault::HidesStreaming);
            json!({
                "id": id, "name": name, "label": {"en_US": "Bent"},
                "capabilities": {"streaming": streaming, "interrupt": interrupt},
                "permissions": {"state": ["conversation", "runner"]},
            })
        };
        let mut listed = vec![manifest(FAULTY_RUNNER_ID)];
        match self.fault {
            InjectedFault::ListFails => {
                let body = format!("Traceback:\n  signed with {SECRET}\n{}", "x".repeat(5000));
                return (StatusCode::INTERNAL_SERVER_ERROR, body).into_response();
            }
            InjectedFault::ListsNothing => listed.clear(),
            InjectedFault::ListsInvalidManifest => {
                let mut bad = manifest("plugin:test/bent/bad");
                bad["capabilities"]["interrupt"] = json!("yes");
                listed.push(bad);
            }
            InjectedFault::ListsInvalidId => listed.push(manifest("plugin:bent/bad")),
            InjectedFault::ListsVersionTwo => {
                let mut two = manifest("plugin:test/bent/two");
                two["protocol_version"] = json!("2.0");
                listed.push(two);
            }
            InjectedFault::ListsOtherIdsEachTime => {
                let mut other = manifest(&format!("plugin:test/bent/r{count}"));
                other["protocol_version"] = json!("1");
                // No agent binds this id, so only the first list counts.
                listed.push(other);
            }
            InjectedFault::ListsAnUnknownCapability => {
                listed[0]["capabilities"]["levitation"] = json!(true);
            }
            _ => {}
        }
        Json(json!({ "runners": listed })).into_response()
    }

    fn cancel(&self) -> StatusCode {
        match self.fault {
            InjectedFault::RefusesCancels => StatusCode::NOT_FOUND,
            InjectedFault::FailsCancels => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::ACCEPTED,
        }
    }

    async fn start(self: Arc<Self>, headers: &HeaderMap, body: &Bytes) -> Response {
        let request: Value = serde_json::from_slice(body).unwrap();
        let refused = match self.fault {
            InjectedFault::NeverAnswers => std::future::pending().await,
            InjectedFault::AnswersServerError => Some(StatusCode::INTERNAL_SERVER_ERROR),
            InjectedFault::AppendsNothing => Some(StatusCode::ACCEPTED),
            InjectedFault::FailsAfterACut if self.is_blocked(&request) => {
                Some(StatusCode::INTERNAL_SERVER_ERROR)
            }
            InjectedFault::RefusesUnknownFields if request.as_object().unwrap().len() > 4 => {
                Some(StatusCode::BAD_REQUEST)
            }
            InjectedFault::RefusesACharset if headers["content-type"] != "application/json" => {
                Some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
            }
            _ => None,
        };
        if let Some(status) = refused {
            return status.into_response();
        }
        let (frames, inbox) = mpsc::channel(1);
        if matches!(
            self.fault,
            InjectedFault::Appends | InjectedFault::AppendsWithAGap
        ) {
            let appending = Arc::clone(&self).append(request["host"].clone(), inbox);
            self.runs.lock().unwrap().spawn(appending);
            let runner = Arc::clone(&self);
            self.runs.lock().unwrap().spawn(async move {
                runner.execute(&request, &frames).await;
            });
            return StatusCode::ACCEPTED.into_response();
        }
        let runner = Arc::clone(&self);
        self.runs.lock().unwrap().spawn(async move {
            runner.execute(&request, &frames).await;
            drop(frames);
        });
        let body = Body::from_stream(stream::unfold(inbox, |mut inbox| async move {
            let frame: String = inbox.recv().await?;
            Some((Ok::<_, Infallible>(frame), inbox))
        }));
        let content_type = match self.fault {
            InjectedFault::AnswersHtml => "text/<b>&\"html\"",
            InjectedFault::SendsJsonLines => "application/x-ndjson; charset=utf-8",
            InjectedFault::LabelsEventsAsJson | InjectedFault::AnswersAsOneDocument => {
                "application/json"
            }
            _ => "text/event-stream",
        };
        let mut response = ([("content-type", content_type)], body).into_response();
        if self.has_fault(InjectedFault::Compresses) {
            let gzip = "gzip".parse().unwrap();
            response.headers_mut().insert("content-encoding", gzip);
        }
        response
    }

    /// Appends results one call at a time until the host refuses one. A heartbeat comment becomes a heartbeat
    /// call.
    async fn append(self: Arc<Self>, host: Value, mut inbox: mpsc::Receiver<String>) {
        while let Some(frame) = inbox.recv().await {
            let data = frame.lines().find_map(|line| line.strip_prefix("data: "));
            let route = data.map_or("run/heartbeat", |_| "run/results");
            let url = format!("{}/{route}", host["base_url"].as_str().unwrap());
            let mut result: Value = serde_json::from_str(data.unwrap_or("null")).unwrap();
            if self.has_fault(InjectedFault::AppendsWithAGap) && result["sequence"] == 2 {
                result["sequence"] = json!(3);
            }
            let call = self
                .client
                .post(url)
                .bearer_auth(host["token"].as_str().unwrap())
                .json(&json!({"results": [result]}));
            let answer = call.send().await;
            if !answer.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            if result["type"] == "state.updated" {
                self.check_written_state(&host, &result["data"]["value"])
                    .await;
            }
        }
    }

    /// State written by an accepted result is visible to the next call.
    async fn check_written_state(&self, host: &Value, written: &Value) {
        let url = format!("{}/state/runner/said", host["base_url"].as_str().unwrap());
        let call = self.client.get(url);
        let call = call.bearer_auth(host["token"].as_str().unwrap());
        let found: Value = call.send().await.unwrap().json().await.unwrap();
        // The token of an abandoned run is no longer valid.
        if found["error"]["code"] != "unauthenticated" {
            assert_eq!(found["value"], *written);
        }
    }

    /// With `FailsAfterACut`, a run whose connection was closed blocks all later runs but the concurrent ones.
    fn is_blocked(&self, request: &Value) -> bool {
        let text = request["context"]["input"]["text"].as_str();
        let is_one_of_two = text.is_some_and(|text| text.contains("conform-"));
        !is_one_of_two && self.is_busy.swap(true, Ordering::SeqCst)
    }

    /// Returns `None` if the gateway disconnected before the end.
    async fn execute(&self, request: &Value, frames: &mpsc::Sender<String>) -> Option<()> {
        let mut run = FaultyRun {
            id: request["context"]["run_id"].as_str().unwrap().to_owned(),
            host: request["host"]["base_url"].as_str().unwrap().to_owned(),
            token: request["host"]["token"].as_str().unwrap().to_owned(),
            text: request["context"]["input"]["text"]
                .as_str()
                .unwrap_or("nothing")
                .to_owned(),
        };
        if !self.has_fault(InjectedFault::AnswersAsOneDocument) {
            frames.send(self.framed(": hi\n\n")).await.ok()?;
        }
        if self.has_fault(InjectedFault::RequiresAConversation)
            && request["context"]["conversation"].is_null()
        {
            return Some(());
        }
        let deadline = request["context"]["runtime"]["deadline_at"]
            .as_f64()
            .unwrap();
        let record = self.get_run(&run, deadline).await;
        let was_cut = record
            .as_ref()
            .is_some_and(|record| !record["error"].is_null());
        if was_cut && self.has_fault(InjectedFault::FailsAfterACut) {
            return None;
        }
        let end = match record {
            Some(record) if record["cancel_requested_at"].is_null() => None,
            Some(_) if self.has_fault(InjectedFault::IgnoresCancels) => loop {
                frames.send(": still here\n\n".to_owned()).await.ok()?;
                tokio::time::sleep(Duration::from_millis(100)).await;
            },
            Some(_) => Some("cancelled"),
            None => Some("deadline_exceeded"),
        };
        if let Some(code) = end {
            let failed = json!({"code": code, "message": "ended"});
            let failed = vec![run.frame(1, "run.failed", &failed)];
            return self.send_events(failed, frames).await;
        }
        self.call(&run).await;
        if self.has_fault(InjectedFault::MixesRuns) {
            self.mix_runs(&mut run).await;
        }
        self.send_events(self.frames(&run), frames).await?;
        self.keep_open(&run, frames).await;
        Some(())
    }

    /// Returns `None` if the gateway has disconnected.
    async fn send_events(&self, events: Vec<String>, frames: &mpsc::Sender<String>) -> Option<()> {
        let mut values: Vec<_> = events.iter().map(|event| self.framed(event)).collect();
        if self.has_fault(InjectedFault::AnswersAsOneDocument) {
            values = vec![format!("{{\"results\":[{}]}}", values.join(","))];
        }
        let last = values.pop();
        for frame in values {
            frames.send(frame).await.ok()?;
        }
        // Clear the flag before the gateway reads the end and starts the next run.
        self.is_busy.store(false, Ordering::SeqCst);
        match last {
            Some(last) => frames.send(last).await.ok(),
            None => Some(()),
        }
    }

    /// Encodes a server-sent event in the framing of this runner.
    fn framed(&self, event: &str) -> String {
        let data = event.lines().find_map(|line| line.strip_prefix("data: "));
        match self.fault {
            InjectedFault::SendsJsonLines => format!("{}\n", data.unwrap_or_default()),
            InjectedFault::AnswersAsOneDocument => data.unwrap_or_default().to_owned(),
            InjectedFault::OmitsEmptyLines => event.replace("\n\n", "\n"),
            _ => event.to_owned(),
        }
    }

    async fn keep_open(&self, run: &FaultyRun, frames: &mpsc::Sender<String>) {
        match self.fault {
            InjectedFault::StaysOpen => frames.closed().await,
            // Repeat until the host rejects the token.
            InjectedFault::CallsAfterTheEnd => {
                for _ in 0..500 {
                    let call = self.client.get(format!("{}/run", run.host));
                    let answer = call.bearer_auth(&run.token).send().await;
                    if !answer.is_ok_and(|answer| answer.status().is_success()) {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            _ => {}
        }
    }

    /// Calls `GET /run`, with the deadline of the run as the timeout.
    async fn get_run(&self, run: &FaultyRun, deadline: f64) -> Option<Value> {
        let left = deadline - std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        let call = self.client.get(format!("{}/run", run.host));
        let call = call
            .bearer_auth(&run.token)
            .timeout(Duration::from_secs_f64(left.max(0.01)));
        call.send().await.ok()?.json().await.ok()
    }

    async fn call(&self, run: &FaultyRun) {
        let FaultyRun { host, token, .. } = run;
        let call = match self.fault {
            InjectedFault::CallsWithoutToken => self.client.get(format!("{host}/run")),
            InjectedFault::CallsUnknownRoutes => self
                .client
                .get(format!("{host}/nowhere"))
                .bearer_auth(token),
            InjectedFault::CallsWithoutGrant => {
                let body = json!({"mode": "all"});
                let call = self.client.post(format!("{host}/steering/pull"));
                call.bearer_auth(token).json(&body)
            }
            InjectedFault::WritesStateOfEachEvent => {
                let call = self.client.put(format!("{host}/state/conversation/count"));
                call.bearer_auth(token).json(&json!({"value": 1}))
            }
            InjectedFault::WritesStateWithoutPermission => {
                let call = self.client.put(format!("{host}/state/actor/count"));
                call.bearer_auth(token).json(&json!({"value": 1}))
            }
            InjectedFault::CallsWithInvalidBody => {
                let call = self.client.put(format!("{host}/state/conversation/k"));
                call.bearer_auth(token).json(&json!({"worth": 1}))
            }
            _ => return,
        };
        call.send().await.unwrap();
    }

    /// Takes the run id from a variable shared between runs.
    async fn mix_runs(&self, run: &mut FaultyRun) {
        self.last.send_replace((run.id.clone(), run.text.clone()));
        if run.text.contains("conform-one-") {
            let mut last = self.last.subscribe();
            let second = last.wait_for(|(_, text)| text.contains("conform-two-"));
            let second = tokio::time::timeout(Duration::from_secs(20), second).await;
            second.unwrap().unwrap().0.clone_into(&mut run.id);
        }
    }

    fn frames(&self, run: &FaultyRun) -> Vec<String> {
        let text = match self.fault {
            InjectedFault::LeaksTheToken => format!("I am {}", run.token),
            _ => run.text.clone(),
        };
        let chunk = |text: &str| json!({"chunk": {"role": "assistant", "content": text}});
        let message = json!({"message": {"role": "assistant", "content": text}});
        let end = json!({"finish_reason": "stop"});
        let (first, second) = text.split_at(text.find(' ').unwrap_or(text.len()));
        let first = run.frame(1, "message.delta", &chunk(first));
        let second = run.frame(2, "message.delta", &chunk(second));
        let complete = run.frame(3, "message.completed", &message);
        let end_at = |number| run.frame(number, "run.completed", &end);
        let state = |key: &str| json!({"scope": "conversation", "key": key, "value": 1});
        match self.fault {
            InjectedFault::SendsInvalidJson => vec![
                first,
                "data: {oops\n\n".to_owned(),
                second,
                complete,
                end_at(4),
            ],
            InjectedFault::SendsALongLine => {
                vec![first, format!("data: {}\n\n", "x".repeat(1_100_000))]
            }
            InjectedFault::UsesAnotherRunId => {
                vec![
                    first,
                    second.replace(&run.id, "another"),
                    complete,
                    end_at(4),
                ]
            }
            InjectedFault::CountsBackward => {
                let late = run.frame(1, "processor.log", &json!({"text": "late"}));
                vec![first, second, late, complete, end_at(4)]
            }
            InjectedFault::LeavesASequenceGap => vec![first, second, complete, end_at(9)],
            InjectedFault::SendsInvalidPayload => {
                let malformed = run.frame(4, "message.delta", &json!({"text": "hello"}));
                vec![first, second, complete, malformed, end_at(5)]
            }
            InjectedFault::WritesHostState => {
                let state = run.frame(4, "state.updated", &state("host.count"));
                vec![first, second, complete, state, end_at(5)]
            }
            InjectedFault::Appends => {
                let data = json!({"scope": "runner", "key": "said", "value": run.text});
                let state = run.frame(4, "state.updated", &data);
                vec![first, second, complete, state, end_at(5)]
            }
            InjectedFault::WritesMissingConversationState => {
                let state = run.frame(4, "state.updated", &state("said"));
                vec![first, second, complete, state, end_at(5)]
            }
            InjectedFault::SendsForeignEvents => {
                let pings = "event: ping\ndata: ping\n\nevent: ping\ndata: {}\n\n".repeat(3);
                vec![first, pings, second, complete, end_at(4)]
            }
            InjectedFault::SplitsCharacters => {
                let half = json!({"text": "HALF"});
                let half = run.frame(4, "processor.log", &half);
                let half = half.replace("HALF", "\\ud83d");
                vec![first, second, complete, half, end_at(5)]
            }
            InjectedFault::UsesGatewayErrorCode => {
                let failed = json!({"code": "host.orphaned", "message": "gone"});
                vec![first, second, complete, run.frame(4, "run.failed", &failed)]
            }
            InjectedFault::OmitsTheTerminal => vec![first, second, complete],
            InjectedFault::SendsTwoTerminals => vec![first, second, complete, end_at(4), end_at(5)],
            InjectedFault::SendsAfterTheTerminal => {
                let more = run.frame(5, "processor.log", &json!({"text": "more"}));
                vec![first, second, complete, end_at(4), more]
            }
            InjectedFault::SendsNothing => vec![end_at(1)],
            InjectedFault::SendsSnapshots => {
                let all = run.frame(2, "message.delta", &chunk(&text));
                vec![first, all, complete, end_at(4)]
            }
            InjectedFault::SendsAllContent => {
                let chunk = json!({"role": "assistant", "content": "!", "all_content": text});
                let all = run.frame(2, "message.delta", &json!({"chunk": chunk}));
                vec![first, all, complete, end_at(4)]
            }
            InjectedFault::FailsWithHostileText => {
                let text = "\u{1b}[31m\u{1}\u{202e}\u{fffe}]]> <evil a=\"b\">&'\r\n";
                vec![run.frame(1, "run.failed", &json!({"code": "x", "message": text}))]
            }
            _ => vec![first, second, complete, end_at(4)],
        }
    }
}

struct FaultyRun {
    id: String,
    host: String,
    token: String,
    text: String,
}

impl FaultyRun {
    fn frame(&self, sequence: u64, kind: &str, data: &Value) -> String {
        let id = &self.id;
        let result = json!({"run_id": id, "type": kind, "data": data, "sequence": sequence});
        format!("event: {kind}\nid: {sequence}\ndata: {result}\n\n")
    }
}

/// The same run with another input text, as an attacker would replay it under a captured signature.
fn tampered(body: &[u8]) -> Vec<u8> {
    let mut body: Value = serde_json::from_slice(body).unwrap_or_default();
    if let Some(text) = body.pointer_mut("/context/input/text") {
        *text = json!("something else");
    }
    body.to_string().into_bytes()
}

fn sign(id: &str, timestamp: &str, body: &[u8]) -> String {
    let key = BASE64_STANDARD
        .decode(SECRET.trim_start_matches("whsec_"))
        .unwrap();
    let mut signed = format!("{id}.{timestamp}.").into_bytes();
    signed.extend_from_slice(body);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), &signed);
    format!("v1,{}", BASE64_STANDARD.encode(tag))
}
