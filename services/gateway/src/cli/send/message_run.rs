//! Sends one message and follows its run to the end. A broken stream is resumed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use http::Method;
use http::header::ACCEPT;
use protocol::sse::{Decoder, SseItem, SseLimits};
use serde_json::{Value, json};

use super::questions::{ask, delivery, open_question, submit};
use super::screen::Screen;
use crate::cli::gateway::Gateway;
use crate::cli::output;
use egress::{RequestBuilder, Response};

/// Maximum number of resumes. A stopping gateway closes its streams; another replica, or its next start,
/// continues them.
const RESUMES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(300);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Interval of spinner updates.
const MOMENT: Duration = Duration::from_millis(100);
const LIMITS: SseLimits = SseLimits {
    line_bytes: 4 * 1024 * 1024,
    event_bytes: 4 * 1024 * 1024,
};

/// Posts a message and follows its run, and those that continue after its questions. Fails if there is no run. A
/// failed run sets the exit code. `input` answers questions; without it they stay open.
pub(super) async fn send_message(
    gateway: &Gateway,
    conversation: &str,
    text: &str,
    (json, mut input): (bool, Option<LineInput<'_>>),
) -> anyhow::Result<ExitCode> {
    let mut event = json!({
        "event_type": "message.received",
        "input": {"text": text},
        "conversation": {"conversation_id": conversation},
    });
    if input.is_some() {
        event["delivery"] = delivery();
    }
    let mut sending = MessageRun::new(gateway, json);
    sending.post(&event).await?;
    loop {
        let code = sending.follow(&mut input).await?;
        let Some(next) = sending.next.take() else {
            return Ok(code);
        };
        sending = MessageRun::new(gateway, json);
        sending.run_url = Some(format!("/v1/runs/{next}"));
        sending.run_id = next;
    }
}

/// Reads a line after a prompt; `None` at the end of the input.
pub(super) type LineInput<'a> = &'a mut dyn FnMut(&str) -> anyhow::Result<Option<String>>;

struct MessageRun<'a> {
    gateway: &'a Gateway,
    screen: Screen,
    run_url: Option<String>,
    run_id: String,
    last_id: Option<String>,
    ending: Option<Value>,
    started: Instant,
    /// The run has asked a question.
    has_asked: bool,
    /// The run waits for the answer.
    waits: bool,
    /// Id of the run that the answer started.
    next: Option<String>,
}

impl<'a> MessageRun<'a> {
    fn new(gateway: &'a Gateway, json: bool) -> Self {
        Self {
            gateway,
            screen: Screen::new(json),
            run_url: None,
            run_id: String::new(),
            last_id: None,
            ending: None,
            started: Instant::now(),
            has_asked: false,
            waits: false,
            next: None,
        }
    }

    /// Follows the run to its end and answers its questions.
    async fn follow(&mut self, input: &mut Option<LineInput<'_>>) -> anyhow::Result<ExitCode> {
        let mut resumes = 0;
        while self.ending.is_none() && resumes < RESUMES {
            if self.waits {
                self.answer(input).await?;
            } else {
                if resumes > 0 || self.last_id.is_some() {
                    let pause = MAX_PAUSE.min(PAUSE * (resumes + 1));
                    waiting(&mut self.screen, tokio::time::sleep(pause)).await;
                }
                resumes += 1;
            }
            self.resume().await?;
        }
        let code = self.finish(self.started.elapsed());
        if self.has_asked {
            self.answer(input).await?;
        }
        Ok(code)
    }

    /// Prompts for the run's question and submits the answer.
    async fn answer(&mut self, input: &mut Option<LineInput<'_>>) -> anyhow::Result<()> {
        (self.has_asked, self.waits) = (false, false);
        let Some(question) = open_question(self.gateway, &self.run_id).await? else {
            return Ok(());
        };
        let id = question["id"].as_str().unwrap_or_default();
        let answer = match input {
            Some(input) => ask(&question["request"], input)?,
            None => None,
        };
        let Some(answer) = answer else {
            output::remark(&format!(
                "[a question is open; POST /v1/interactions/{id}/submit answers it]"
            ));
            return Ok(());
        };
        self.next = submit(self.gateway, &question, &answer).await?;
        Ok(())
    }

    fn request(&self, method: Method, path: &str) -> anyhow::Result<RequestBuilder> {
        let request = self.gateway.request(method, path)?;
        Ok(request.header(ACCEPT, "text/event-stream"))
    }

    async fn send(&mut self, request: RequestBuilder) -> anyhow::Result<Response> {
        let answer = waiting(&mut self.screen, self.gateway.send(request)).await;
        if answer.is_err() {
            self.screen.end();
        }
        answer
    }

    async fn post(&mut self, event: &Value) -> anyhow::Result<()> {
        let request = self.request(Method::POST, "/v1/events")?.json(event);
        let response = self.send(request).await?;
        let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        self.run_url = header("location");
        self.run_id = header("runnel-run-id").unwrap_or_default();
        if self.run_url.is_none() {
            self.screen.end();
            bail!("no run: {}", refusal(response).await);
        }
        self.read(response).await;
        Ok(())
    }

    async fn resume(&mut self) -> anyhow::Result<()> {
        let Some(run_url) = &self.run_url else {
            return Ok(());
        };
        let mut request = self.request(Method::GET, &format!("{run_url}/events"))?;
        if let Some(id) = &self.last_id {
            request = request.header("last-event-id", id);
        }
        if let Ok(response) = self.send(request).await
            && response.status().is_success()
        {
            self.read(response).await;
        }
        Ok(())
    }

    /// Reads to the end of the body. A missing rest is requested again.
    async fn read(&mut self, mut response: Response) {
        let mut decoder = Decoder::new(LIMITS);
        while let Ok(Some(chunk)) = waiting(&mut self.screen, response.chunk()).await {
            let mut items = Vec::new();
            let outcome = decoder.push(&chunk, &mut items);
            for item in items {
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
                return;
            }
        }
    }

    fn take(&mut self, data: &[u8]) {
        let Ok(event) = serde_json::from_slice::<Value>(data) else {
            return;
        };
        self.screen.show(&event);
        let data = &event["data"];
        if event["type"] == "action.requested" && data["action"] == "interaction.requested" {
            self.has_asked = true;
            self.waits = data["payload"]["await"] == true;
        }
        if matches!(event["type"].as_str(), Some("run.completed" | "run.failed")) {
            self.ending = Some(event);
        }
    }

    fn finish(&mut self, took: Duration) -> ExitCode {
        self.screen.end();
        let short = self.run_id.get(..8).unwrap_or(&self.run_id);
        let seconds = took.as_secs_f64();
        let (outcome, code) = match &self.ending {
            Some(event) if event["type"] == "run.completed" => {
                ("completed".to_owned(), ExitCode::SUCCESS)
            }
            Some(event) if event["data"]["code"] == "cancelled" => {
                ("cancelled".to_owned(), ExitCode::FAILURE)
            }
            Some(event) => {
                let data = &event["data"];
                let why = data["message"]
                    .as_str()
                    .or(data["error"].as_str())
                    .unwrap_or_default();
                let failed = format!(
                    "failed, {}: {why},",
                    data["code"].as_str().unwrap_or_default()
                );
                (failed, ExitCode::FAILURE)
            }
            None => {
                let run = &self.run_id;
                self.screen.remark(&format!(
                    "[run {run} is still running after {seconds:.1} s; GET /v1/runs/{run}/events goes on with it]"
                ));
                return ExitCode::FAILURE;
            }
        };
        let remark = format!("[run {short}… {outcome} in {seconds:.1} s]");
        self.screen.remark(&remark);
        code
    }
}

/// Awaits a future and shows a spinner meanwhile.
async fn waiting<T>(screen: &mut Screen, future: impl Future<Output = T>) -> T {
    tokio::pin!(future);
    loop {
        tokio::select! { biased;
            done = &mut future => return done,
            () = tokio::time::sleep(MOMENT) => screen.wait(),
        }
    }
}

async fn refusal(mut response: Response) -> String {
    let status = response.status();
    let body = response.chunk().await.ok().flatten().unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    match (body["error"]["message"].as_str(), body["reason"].as_str()) {
        (Some(message), _) => format!("{message} (HTTP {status})"),
        (None, Some("no_agent")) => {
            "no agent wants this event; bind one to message.received".to_owned()
        }
        _ => format!("the gateway answered HTTP {status}"),
    }
}
