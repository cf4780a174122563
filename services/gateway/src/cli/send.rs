//! `runnel send`: post a message, watch its run, resume when the stream breaks.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use http::Method;
use http::header::ACCEPT;
use protocol::sse::{Decoder, SseItem, SseLimits};
use serde_json::{Value, json};

use crate::cli::gateway::{Gateway, GatewayArguments};
use crate::cli::output;
use crate::outbound::{RequestBuilder, Response};

#[derive(clap::Args)]
pub(super) struct SendArguments {
    /// The text of the message.
    text: String,
    #[command(flatten)]
    gateway: GatewayArguments,
    /// The conversation that the message belongs to.
    #[arg(long, default_value = "dev")]
    conversation: String,
}

/// How often a stream that ended early is taken up again: a gateway that stops closes its streams, and
/// another one, or its next start, goes on with them.
const RESUMES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(300);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const LIMITS: SseLimits = SseLimits {
    line_bytes: 4 * 1024 * 1024,
    event_bytes: 4 * 1024 * 1024,
};

/// Posts the message and prints the answer as it comes.
pub(super) async fn send(arguments: SendArguments, json: bool) -> anyhow::Result<ExitCode> {
    let Some(gateway) = arguments.gateway.find()? else {
        return Ok(ExitCode::from(2));
    };
    let started = Instant::now();
    let mut sending = Sending::new(gateway, json);
    sending.post(&arguments).await?;
    for resumes in 0..RESUMES {
        if sending.ending.is_some() {
            break;
        }
        tokio::time::sleep(LONGEST_PAUSE.min(PAUSE * (resumes + 1))).await;
        sending.resume().await?;
    }
    Ok(sending.finish(started.elapsed()))
}

struct Sending {
    gateway: Gateway,
    json: bool,
    run_url: Option<String>,
    run_id: String,
    last_id: Option<String>,
    shown: String,
    ending: Option<Value>,
}

impl Sending {
    fn new(gateway: Gateway, json: bool) -> Self {
        Self {
            gateway,
            json,
            run_url: None,
            run_id: String::new(),
            last_id: None,
            shown: String::new(),
            ending: None,
        }
    }

    fn request(&self, method: Method, path: &str) -> anyhow::Result<RequestBuilder> {
        let request = self.gateway.request(method, path)?;
        Ok(request.header(ACCEPT, "text/event-stream"))
    }

    async fn post(&mut self, arguments: &SendArguments) -> anyhow::Result<()> {
        let event = json!({
            "event_type": "message.received",
            "input": {"text": arguments.text},
            "conversation": {"conversation_id": arguments.conversation},
        });
        let request = self.request(Method::POST, "/v1/events")?.json(&event);
        let response = self.gateway.send(request).await?;
        let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        self.run_url = header("location");
        self.run_id = header("runnel-run-id").unwrap_or_default();
        if self.run_url.is_none() {
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
        if let Ok(response) = self.gateway.send(request).await
            && response.status().is_success()
        {
            self.read(response).await;
        }
        Ok(())
    }

    /// Reads until the body ends, however it ends: what is missing is asked for again.
    async fn read(&mut self, mut response: Response) {
        let mut decoder = Decoder::new(LIMITS);
        while let Ok(Some(chunk)) = response.chunk().await {
            let mut items = Vec::new();
            let outcome = decoder.push(&chunk, &mut items);
            for item in items {
                if let SseItem::Event(event) = item
                    && event.id.is_some()
                {
                    self.last_id = event.id;
                    self.show(&event.data);
                }
            }
            if outcome.is_err() {
                return;
            }
        }
    }

    fn show(&mut self, data: &[u8]) {
        let Ok(event) = serde_json::from_slice::<Value>(data) else {
            return;
        };
        if self.json {
            output::line(&event.to_string());
        }
        match event["type"].as_str().unwrap_or_default() {
            "message.delta" => self.show_delta(&event["data"]["chunk"]),
            "message.completed" => self.show_whole(&event["data"]["message"]),
            "run.completed" => {
                self.show_whole(&event["data"]["message"]);
                self.ending = Some(event);
            }
            "run.failed" => self.ending = Some(event),
            _ => {}
        }
    }

    fn show_delta(&mut self, chunk: &Value) {
        let whole = chunk["all_content"].as_str().map(str::to_owned);
        let text = whole.unwrap_or_else(|| self.shown.clone() + &text_of(&chunk["content"]));
        self.show_text(text);
    }

    fn show_whole(&mut self, message: &Value) {
        let text = text_of(&message["content"]);
        if !text.is_empty() {
            self.show_text(text);
        }
    }

    /// Shows what is new of a text that grows; a text that changed stands on a line of its own.
    fn show_text(&mut self, text: String) {
        if !self.json {
            match text.strip_prefix(self.shown.as_str()) {
                Some(new) => output::piece(new),
                None => output::piece(&format!("\n{text}")),
            }
        }
        self.shown = text;
    }

    fn finish(&self, took: Duration) -> ExitCode {
        if !self.json && !self.shown.is_empty() {
            output::line("");
        }
        let short = self.run_id.get(..8).unwrap_or(&self.run_id);
        let seconds = took.as_secs_f64();
        let (outcome, code) = match &self.ending {
            Some(event) if event["type"] == "run.completed" => {
                ("completed".to_owned(), ExitCode::SUCCESS)
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
            None => ("is still running after".to_owned(), ExitCode::FAILURE),
        };
        let remark = format!("[run {short}… {outcome} in {seconds:.1} s]");
        let colours = std::io::stderr().is_terminal();
        output::remark(&if colours {
            format!("\u{1b}[2m{remark}\u{1b}[0m")
        } else {
            remark
        });
        code
    }
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
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
