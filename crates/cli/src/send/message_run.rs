//! Posts one event and follows its run to the end. A broken stream is resumed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use http::Method;
use http::header::ACCEPT;
use protocol::sse::{Decoder, SseItem, SseLimits};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::busy::busy_for;
use super::follow_stop::FollowStop;
use super::questions::{ask, open_question, submit};
use super::screen::Screen;
use super::sending::FollowEnd;
use super::{LEFT, LineInput};
use crate::facts::{milliseconds, text, took};
use crate::gateway::{Gateway, encoded, read_json, refusal};
use crate::output::{self, OutputFormat};
use crate::runs::{ACTIONS_FAILED, INCOMPLETE};
use egress::{RequestBuilder, Response};

/// Maximum number of resumes without a new event. A stopping gateway closes its streams; another replica, or its
/// next start, continues them.
const RESUMES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(300);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Interval of spinner updates.
const MOMENT: Duration = Duration::from_millis(100);
/// Timeout of a cancel request.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
const LIMITS: SseLimits = SseLimits {
    line_bytes: 4 * 1024 * 1024,
    event_bytes: 4 * 1024 * 1024,
};

/// Effect of the first Ctrl-C. The second one always leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstInterrupt {
    Cancels,
    Leaves,
}

/// One run, followed by its stream.
pub(super) struct MessageRun<'a> {
    gateway: &'a Gateway,
    screen: Screen,
    interrupts: Signal,
    pub(super) first_interrupt: FirstInterrupt,
    /// A cancel was requested.
    is_cancelled: bool,
    /// Id of the run; empty until it is known.
    pub(super) id: String,
    last_id: Option<String>,
    ending: Option<Value>,
    started: Instant,
    /// The run has an open question.
    has_question: bool,
    /// The run waits for the answer.
    waits: bool,
    /// Id of the run that the answer started.
    pub(super) next: Option<String>,
}

impl<'a> MessageRun<'a> {
    pub(super) fn new(
        gateway: &'a Gateway,
        format: OutputFormat,
        first_interrupt: FirstInterrupt,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            gateway,
            screen: Screen::new(format),
            interrupts: signal(SignalKind::interrupt()).context("Ctrl-C cannot be handled")?,
            first_interrupt,
            is_cancelled: false,
            id: String::new(),
            last_id: None,
            ending: None,
            started: Instant::now(),
            has_question: false,
            waits: false,
            next: None,
        })
    }

    /// Posts the event and reads the first stream of its run. Retries for `patience` while the gateway is busy.
    pub(super) async fn post(
        &mut self,
        event: &Value,
        run_id: &mut Option<String>,
        patience: Duration,
    ) -> Result<(), FollowStop> {
        let response = self.accepted(event, patience).await?;
        let id = response.headers().get("runnel-run-id");
        let id = id.and_then(|id| id.to_str().ok()).map(str::to_owned);
        let Some(id) = id else {
            return Err(no_run(event, response).await.into());
        };
        run_id.replace(id.clone());
        self.id = id;
        self.read(response).await
    }

    /// The response to the event. Waits for `Retry-After` while the gateway is busy.
    async fn accepted(
        &mut self,
        event: &Value,
        patience: Duration,
    ) -> Result<Response, FollowStop> {
        let gateway = self.gateway;
        let until = Instant::now() + patience;
        // The gateway may have accepted an event whose response reports a failure, such as a proxy's 503.
        let key = uuid::Uuid::new_v4().to_string();
        loop {
            let mut request = self.streamed(Method::POST, "/v1/events")?.json(event);
            if event["event_id"].is_null() {
                request = request.header("idempotency-key", &key);
            }
            let response = self.wait(gateway.send(request)).await??;
            let Some(pause) = busy_for(&response) else {
                return Ok(response);
            };
            let status = response.status();
            let body = read_json(response).await.unwrap_or_default();
            let refusal = refusal(status, &body);
            let seconds = pause.as_secs();
            if body["error"]["retryable"] == false {
                return Err(anyhow!(refusal).into());
            }
            if Instant::now() + pause > until {
                return Err(anyhow!("{refusal}; try again in {seconds} s").into());
            }
            self.screen.remark(&format!(
                "[{refusal}; trying again in {seconds} s, --no-wait fails instead]"
            ));
            self.wait(tokio::time::sleep(pause)).await?;
        }
    }

    /// Follows the run to its end and answers its questions.
    pub(super) async fn follow(
        &mut self,
        mut input: Option<&mut LineInput>,
    ) -> Result<ExitCode, FollowStop> {
        let mut tries = 0;
        let mut lost = None;
        while self.ending.is_none() && tries < RESUMES {
            let seen = self.last_id.clone();
            if self.waits {
                self.answer(input.as_deref_mut()).await?;
            } else if tries > 0 || seen.is_some() {
                self.screen.lost(tries + 1);
                let pause = MAX_PAUSE.min(PAUSE * (tries + 1));
                self.wait(tokio::time::sleep(pause)).await?;
            }
            lost = self.resume().await?;
            // An event is progress: the limit counts resumes in a row.
            tries = if self.last_id == seen { tries + 1 } else { 0 };
        }
        self.screen.end();
        if self.ending.is_none() {
            self.report_lost(lost);
            return Ok(ExitCode::FAILURE);
        }
        let code = self.finish().await;
        if self.has_question {
            self.answer(input).await?;
        }
        Ok(code)
    }

    /// Prompts for the run's question and submits the answer.
    async fn answer(&mut self, input: Option<&mut LineInput>) -> anyhow::Result<()> {
        (self.has_question, self.waits) = (false, false);
        let Some(question) = open_question(self.gateway, &self.id).await? else {
            return Ok(());
        };
        self.screen.pause();
        let answer = match input {
            Some(input) => ask(&question["request"], input)?,
            None => None,
        };
        let Some(answer) = answer else {
            let id = text(&question, "id");
            output::remark(&format!(
                "[a question is open; `runnel interactions answer {id}` answers it]"
            ));
            return Ok(());
        };
        self.next = submit(self.gateway, &question, &answer).await?;
        Ok(())
    }

    fn streamed(&self, method: Method, path: &str) -> anyhow::Result<RequestBuilder> {
        let request = self.gateway.request(method, path)?;
        Ok(request.header(ACCEPT, "text/event-stream"))
    }

    /// Reads the stream from the last event on. Returns the reason if there was none.
    async fn resume(&mut self) -> Result<Option<String>, FollowStop> {
        let path = format!("/v1/runs/{}/events", encoded(&self.id));
        let mut request = self.streamed(Method::GET, &path)?;
        if let Some(id) = &self.last_id {
            request = request.header("last-event-id", id);
        }
        let gateway = self.gateway;
        let response = match self.wait(gateway.send(request)).await? {
            Ok(response) => response,
            Err(unreachable) => return Ok(Some(unreachable.to_string())),
        };
        let status = response.status();
        if status.is_client_error() {
            return Err(anyhow!(refusal(status, &read_json(response).await?)).into());
        }
        if !status.is_success() {
            return Ok(Some(format!("the gateway answered HTTP {status}")));
        }
        self.screen.found();
        self.read(response).await?;
        Ok(None)
    }

    /// Reads to the end of the body. A missing rest is requested again.
    async fn read(&mut self, mut response: Response) -> Result<(), FollowStop> {
        let mut decoder = Decoder::new(LIMITS);
        while let Ok(Some(chunk)) = self.wait(response.chunk()).await? {
            let mut items = Vec::new();
            let outcome = decoder.push(&chunk, &mut items);
            for item in items {
                // Comments and events without an id cannot be resumed from.
                if let SseItem::Event(event) = item
                    && event.id.is_some()
                {
                    self.take(&event.data);
                }
            }
            if let Some(id) = decoder.last_id() {
                self.last_id = Some(id.to_owned());
            }
            // A waiting run sends nothing else.
            if outcome.is_err() || self.waits {
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, data: &[u8]) {
        let Ok(event) = serde_json::from_slice::<Value>(data) else {
            return;
        };
        self.screen.show(&event);
        let data = &event["data"];
        if event["type"] == "action.requested" && data["action"] == "interaction.requested" {
            self.has_question = true;
            self.waits = data["payload"]["await"] == true;
        }
        if matches!(event["type"].as_str(), Some("run.completed" | "run.failed")) {
            self.ending = Some(event);
        }
    }

    /// Awaits a future, shows a spinner, and handles Ctrl-C.
    async fn wait<T>(&mut self, future: impl Future<Output = T>) -> Result<T, FollowStop> {
        tokio::pin!(future);
        loop {
            // Biased: a finished future counts before a Ctrl-C of the same moment.
            tokio::select! { biased;
                done = &mut future => return Ok(done),
                _ = self.interrupts.recv() => self.interrupt().await?,
                () = tokio::time::sleep(MOMENT) => self.screen.wait(),
            }
        }
    }

    /// The first Ctrl-C cancels the run, unless it only watches. The second one leaves.
    async fn interrupt(&mut self) -> Result<(), FollowStop> {
        let cancels = self.first_interrupt == FirstInterrupt::Cancels && !self.id.is_empty();
        if !cancels || self.is_cancelled {
            return Err(FollowStop::Left);
        }
        self.is_cancelled = true;
        self.screen
            .remark("cancelling the run; Ctrl-C again leaves");
        let path = format!("/v1/runs/{}/cancel", encoded(&self.id));
        let cancelling = self.gateway.ask(self.gateway.request(Method::POST, &path)?);
        let outcome = tokio::select! { biased;
            // The answer to the cancel counts before a second Ctrl-C.
            outcome = tokio::time::timeout(CANCEL_TIMEOUT, cancelling) => outcome,
            _ = self.interrupts.recv() => return Err(FollowStop::Left),
        };
        let outcome =
            outcome.unwrap_or_else(|_| Err(anyhow!("the gateway does not answer in time")));
        if let Err(error) = outcome {
            let remark = format!("the run cannot be cancelled: {error:#}");
            self.screen.remark(&remark);
        }
        Ok(())
    }

    /// The end after a stop.
    pub(super) fn stopped(&mut self, stop: FollowStop) -> anyhow::Result<FollowEnd> {
        self.screen.end();
        match stop {
            FollowStop::Failed(error) => Err(error),
            FollowStop::Left => {
                if !self.id.is_empty() && self.ending.is_none() {
                    let id = &self.id;
                    let remark = format!("[left; `runnel runs watch {id}` follows the run]");
                    self.screen.remark(&remark);
                }
                Ok(FollowEnd::Left)
            }
        }
    }

    /// The stream is lost for good: the outcome of the run is not known here.
    fn report_lost(&mut self, why: Option<String>) {
        let id = &self.id;
        let why = why.unwrap_or_else(|| "the stream ends before the run does".to_owned());
        let remark = format!("[{why}; `runnel runs watch {id}` follows the run]");
        self.screen.remark(&remark);
    }

    /// Reports the outcome of an ended run.
    async fn finish(&mut self) -> ExitCode {
        let ending = self.ending.take().unwrap_or_default();
        let took = self.took().await;
        let id = &self.id;
        let data = &ending["data"];
        match (ending["type"].as_str(), data["code"].as_str()) {
            (Some("run.completed"), _) => {
                let is_incomplete = data["finish_reason"].as_str() == Some(ACTIONS_FAILED);
                let more = if is_incomplete {
                    format!("; {INCOMPLETE}")
                } else {
                    String::new()
                };
                self.screen
                    .remark(&format!("[run {id} completed{took}{more}]"));
                ExitCode::SUCCESS
            }
            (_, Some("cancelled")) => {
                self.screen.remark(&format!("[run {id} cancelled{took}]"));
                if self.is_cancelled {
                    ExitCode::from(LEFT)
                } else {
                    ExitCode::FAILURE
                }
            }
            (_, code) => {
                let why = data["message"].as_str().or(data["error"].as_str());
                let (code, why) = (code.unwrap_or_default(), why.unwrap_or_default());
                self.screen
                    .failure(&format!("[run {id} failed{took}: {code}: {why}]"));
                ExitCode::FAILURE
            }
        }
    }

    /// Duration of the run: measured here for a message, else by the gateway.
    async fn took(&self) -> String {
        let took = match self.first_interrupt {
            FirstInterrupt::Cancels => {
                let ms = self.started.elapsed().as_millis();
                Some(milliseconds(u64::try_from(ms).unwrap_or(u64::MAX)))
            }
            FirstInterrupt::Leaves => {
                let path = format!("/v1/runs/{}", encoded(&self.id));
                let run = self.gateway.get(&path).await;
                run.ok().and_then(|run| took(&run))
            }
        };
        took.map_or(String::new(), |took| format!(" in {took}"))
    }
}

/// Reason for which an event has no run.
async fn no_run(event: &Value, response: Response) -> anyhow::Error {
    let status = response.status();
    let body = match read_json(response).await {
        Ok(body) => body,
        Err(error) => return error,
    };
    if body["reason"] != "no_agent" {
        return anyhow!(refusal(status, &body));
    }
    match body["hint"].as_str() {
        Some(hint) => anyhow!("no run: {hint}"),
        None => anyhow!("no run: no agent takes {}", text(event, "event_type")),
    }
}
