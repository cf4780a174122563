//! Load of all client kinds: streaming, retrying, steering, queueing, cancelling, and a runner that appends
//! later.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::deferred_results::PendingResults;
use super::journal::{ClientConversation, SharedConversation, id_of};
use crate::support::client::{Client, send, stream};
use crate::support::runner::{RecordedRequest, StubRunner};
use crate::support::script::{Gate, Run, ScriptStep, chunk, frame, head, send as step, sse_head};
use crate::support::stream::Stream;

/// Policies for events of a busy conversation; the bot of the same name selects the agent.
pub const BUSY: [&str; 3] = ["steer", "enqueue", "interrupt"];

/// Deltas of a run of about 60 ms, so that a kill meets runs of every age.
const STEADY: usize = 20;
/// Deltas in one chunk.
const FLOOD: usize = 400;

/// Number of deltas of a completed run of this event.
pub fn deltas_of(event_id: &str) -> usize {
    match event_id.split('-').next() {
        Some("flood") => FLOOD,
        _ => STEADY,
    }
}

/// Alternating deltas and state, one rejected result, a message, and the terminal.
pub fn script(run: &Run) -> Vec<ScriptStep> {
    let deltas = deltas_of(&run.event_id);
    let frames: Vec<_> = results(run).iter().map(|result| frame(result)).collect();
    if run.event_id.starts_with("held") {
        return vec![sse_head(), ScriptStep::AwaitClose];
    }
    if deltas == FLOOD {
        return vec![sse_head(), step(frames.concat())];
    }
    if run.event_id.starts_with("later") {
        return vec![head("202 Accepted", "content-length: 0\r\n")];
    }
    let frames = frames.into_iter().map(String::into_bytes).collect();
    vec![
        sse_head(),
        ScriptStep::Pace(frames, Duration::from_millis(2)),
    ]
}

/// The results of a run as JSON.
pub fn results(run: &Run) -> Vec<String> {
    let deltas = deltas_of(&run.event_id);
    let mut results = Vec::new();
    for n in 1..=deltas {
        let sequence = results.len() + 1;
        results.push(run.json(sequence, "message.delta", &chunk(&format!("{n} "))));
        if n % 5 == 0 {
            let value = format!("{}:{n}", run.event_id);
            let state = json!({"scope": "conversation", "key": "progress", "value": value});
            results.push(run.json(sequence + 1, "state.updated", &state.to_string()));
        }
        if n == deltas / 2 {
            let bad = r#"{"scope":"bogus","key":"k","value":1}"#;
            results.push(run.json(results.len() + 1, "state.updated", bad));
        }
    }
    let message = r#"{"message":{"role":"assistant","content":"done"}}"#;
    results.push(run.json(results.len() + 1, "message.completed", message));
    let end = r#"{"finish_reason":"stop"}"#;
    results.push(run.json(results.len() + 1, "run.completed", end));
    results
}

/// All clients of one gateway; they run until it is gone or `gone` is cancelled.
pub struct Load<'a> {
    pub client: &'a Client,
    pub runner: &'a StubRunner,
    /// Cancels waits for the runner.
    pub gone: CancellationToken,
}

/// The gateway is gone or failed, so the client stops.
pub struct GatewayGone;

type ClientResult = Result<(), GatewayGone>;

impl Load<'_> {
    /// Runs all clients repeatedly. Returns all conversations.
    pub async fn run(&self) -> Vec<ClientConversation> {
        let all = join_all(KINDS.map(|kind| Box::pin(self.repeat(kind))));
        all.await.concat()
    }

    async fn repeat(&self, kind: ClientKind) -> Vec<ClientConversation> {
        let mut talks = Vec::new();
        while !self.gone.is_cancelled() {
            let talk = SharedConversation::new(kind.bot());
            let visit = async {
                match kind {
                    ClientKind::Chain => self.chain(&talk).await,
                    ClientKind::Flood => self.flood(&talk).await,
                    ClientKind::Twins => self.twins(&talk).await,
                    ClientKind::Steered => self.steered(&talk).await,
                    ClientKind::Line => self.line(&talk).await,
                    ClientKind::Interrupted => self.interrupted(&talk).await,
                    ClientKind::PendingResults => self.later(&talk).await,
                }
            };
            let ended = visit.await;
            talks.push(talk.into_inner());
            if ended.is_err() && self.is_down().await {
                break;
            }
        }
        talks
    }

    async fn is_down(&self) -> bool {
        let asking = self.client.anonymous(Method::GET, "/healthz");
        self.gone.is_cancelled() || asking.send().await.is_err()
    }

    /// One run after the other, each read to its end.
    async fn chain(&self, talk: &SharedConversation) -> ClientResult {
        for number in 0..3 {
            let event = talk.lock().event("chain");
            let run_id = if number % 2 == 0 {
                self.post_and_read(talk, &event).await?
            } else {
                let run_id = self.post(talk, &event).await?;
                self.read(talk, &run_id).await?;
                run_id
            };
            talk.lock().chain.push(run_id);
        }
        Ok(())
    }

    /// More results at once than one commit takes.
    async fn flood(&self, talk: &SharedConversation) -> ClientResult {
        let event = talk.lock().event("flood");
        self.post_and_read(talk, &event).await.map(drop)
    }

    /// The same event sent three times concurrently.
    async fn twins(&self, talk: &SharedConversation) -> ClientResult {
        let event = talk.lock().event("twin");
        let sent = join_all((0..3).map(|_| self.post(talk, &event))).await;
        let run_id = sent.into_iter().collect::<Result<Vec<_>, _>>()?.remove(0);
        self.read(talk, &run_id).await
    }

    /// Steering messages for a run that pulls one of them; the others start their own runs.
    async fn steered(&self, talk: &SharedConversation) -> ClientResult {
        let event = talk.lock().event("steer");
        let gate = Gate::new();
        let hold = gate.clone();
        self.runner.answer(id_of(&event), move |run| {
            let mut steps = script(run);
            steps.insert(1, ScriptStep::Hold(hold.clone()));
            steps
        });
        let run_id = self
            .post(talk, &event)
            .await
            .inspect_err(|_| gate.cancel())?;
        let pulled = self.follow_up(talk, &run_id).await;
        gate.cancel();
        pulled?;
        self.read(talk, &run_id).await
    }

    async fn follow_up(&self, talk: &SharedConversation, run_id: &str) -> ClientResult {
        for _ in 0..2 {
            let event = talk.lock().event("steer");
            self.post(talk, &event).await?;
        }
        self.pull(talk, run_id).await
    }

    /// Queued runs; one is cancelled while it waits.
    async fn line(&self, talk: &SharedConversation) -> ClientResult {
        let mut runs = Vec::new();
        for _ in 0..3 {
            let event = talk.lock().event("line");
            runs.push(self.post(talk, &event).await?);
        }
        self.cancel(talk, &runs[1]).await?;
        self.read(talk, &runs[2]).await
    }

    /// A run interrupted by the next one, which its client cancels.
    async fn interrupted(&self, talk: &SharedConversation) -> ClientResult {
        let first = talk.lock().event("stop");
        self.post(talk, &first).await?;
        let second = talk.lock().event("stop");
        let run_id = self.post(talk, &second).await?;
        self.wait_for_request(&run_id).await?;
        self.cancel(talk, &run_id).await?;
        self.read(talk, &run_id).await
    }

    /// A run whose runner answers 202 and appends its results later.
    async fn later(&self, talk: &SharedConversation) -> ClientResult {
        let event = talk.lock().event("later");
        let run_id = self.post(talk, &event).await?;
        let run_request = self.wait_for_request(&run_id).await?.json();
        let mut later = PendingResults::new(&run_id, id_of(&event), &run_request["host"]);
        let outcome = tokio::try_join!(later.append_rest(self.client), self.read(talk, &run_id));
        talk.lock().later.push(later);
        outcome.map(drop)
    }

    async fn post(&self, talk: &SharedConversation, event: &Value) -> Result<String, GatewayGone> {
        let answer = send(self.client.posting(event))
            .await
            .map_err(|_| GatewayGone)?;
        if answer.status >= 500 {
            return Err(GatewayGone);
        }
        let run_id = answer.run_id();
        talk.lock().acknowledged(event, &run_id);
        Ok(run_id)
    }

    async fn post_and_read(
        &self,
        talk: &SharedConversation,
        event: &Value,
    ) -> Result<String, GatewayGone> {
        let stream = stream(self.client.posting(event))
            .await
            .map_err(|_| GatewayGone)?;
        if stream.response.status() != 200 {
            return Err(GatewayGone);
        }
        let run_id = stream.run_id();
        talk.lock().acknowledged(event, &run_id);
        self.read_on(talk, &run_id, stream).await?;
        Ok(run_id)
    }

    async fn read(&self, talk: &SharedConversation, run_id: &str) -> ClientResult {
        let stream = stream(self.client.following(run_id)).await;
        self.read_on(talk, run_id, stream.map_err(|_| GatewayGone)?)
            .await
    }

    /// Reads the stream. An end before the end of the run means a broken connection.
    async fn read_on(
        &self,
        talk: &SharedConversation,
        run_id: &str,
        mut stream: Stream,
    ) -> ClientResult {
        while let Some(frame) = stream.event().await {
            let mut talk = talk.lock();
            let seen = talk.seen.entry(run_id.to_owned()).or_default();
            seen.push(frame.data);
            if frame.event.starts_with("run.") {
                return Ok(());
            }
        }
        Err(GatewayGone)
    }

    async fn cancel(&self, talk: &SharedConversation, run_id: &str) -> ClientResult {
        let path = format!("/v1/runs/{run_id}/cancel");
        let cancelling = self.client.request(Method::POST, &path);
        let answer = send(cancelling).await.map_err(|_| GatewayGone)?;
        if answer.status >= 500 {
            return Err(GatewayGone);
        }
        assert!(matches!(answer.status, 200 | 202), "{}", answer.body);
        // A queued run ends with the response to its cancel.
        if answer.status == 202 || answer.body["cancel_requested_at"].is_u64() {
            talk.lock().cancelled.insert(run_id.to_owned());
        }
        Ok(())
    }

    /// Pulls one steering message as the runner, if the run is still live.
    async fn pull(&self, talk: &SharedConversation, run_id: &str) -> ClientResult {
        let host = self.wait_for_request(run_id).await?.json()["host"].take();
        let [url, token] = ["base_url", "token"].map(|name| host[name].as_str().unwrap());
        let pulling = Client::new(url, token).request(Method::POST, "/steering/pull");
        let pulling = pulling.json(&json!({"mode": "one-at-a-time"}));
        let answer = send(pulling).await.map_err(|_| GatewayGone)?;
        match answer.status {
            200 => {
                for item in answer.body["items"].as_array().unwrap() {
                    talk.lock().pulled.push(id_of(&item["event"]).to_owned());
                }
                Ok(())
            }
            // The run has ended in the meantime.
            401 => Ok(()),
            _ => Err(GatewayGone),
        }
    }

    /// Waits for the run request, unless the run ends without one.
    async fn wait_for_request(&self, run_id: &str) -> Result<RecordedRequest, GatewayGone> {
        let of_run = |request: &RecordedRequest| {
            request.is_run() && request.header("runnel-run-id") == Some(run_id)
        };
        let ended = async {
            if let Ok(stream) = stream(self.client.following(run_id)).await {
                stream.rest().await;
            }
        };
        tokio::select! {
            biased;
            request = self.runner.wait_for_request("the run or its end", of_run) => Ok(request),
            () = self.gone.cancelled() => Err(GatewayGone),
            () = ended => Err(GatewayGone),
        }
    }
}

const KINDS: [ClientKind; 7] = [
    ClientKind::Chain,
    ClientKind::Flood,
    ClientKind::Twins,
    ClientKind::Steered,
    ClientKind::Line,
    ClientKind::Interrupted,
    ClientKind::PendingResults,
];

#[derive(Clone, Copy)]
enum ClientKind {
    Chain,
    Flood,
    Twins,
    Steered,
    Line,
    Interrupted,
    PendingResults,
}

impl ClientKind {
    fn bot(self) -> &'static str {
        match self {
            Self::Chain | Self::Flood | Self::Twins | Self::PendingResults => "",
            Self::Steered => "steer",
            Self::Line => "enqueue",
            Self::Interrupted => "interrupt",
        }
    }
}
