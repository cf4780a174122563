//! Runs a [`MachineSession`]: sends its requests, passes responses to it, and enforces the timeouts.

mod exchange;
mod gateway;
mod host;
mod multipart;
mod opening;

use std::collections::VecDeque;
use std::time::Duration;

use egress::Egress;
use protocol::interaction::InteractionRequest;
use protocol::resources::StateScope;
use protocol::result::{AgentRunResult, ResultType};
use runner_kit::{CancellationToken, results as kit};
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::driver::exchange::{PlatformEgress, ResponseExchange};
use crate::machine::{Finished, MachineOutput, SavedFile};
use crate::request::PlatformRequest;
use crate::session::MachineSession;
use crate::turn::FileContent;
use crate::upstream::failure::{ConnectorFailure, TransportError};
use crate::upstream::json::object;
use crate::upstream::results;
use clock::Clock;

pub use gateway::GatewayHost;
pub use host::{NewFile, RunHost};
pub use opening::open;

/// Timeout of a request whose response does not matter.
const NOTIFY_TIME: Duration = Duration::from_secs(3);
/// Timeout for fetching one file of the platform.
const FILE_TIME: Duration = Duration::from_mins(1);
/// Timeout for the usage that follows a complete answer.
const USAGE_TIME: Duration = Duration::from_secs(5);
/// Maximum files of one message.
const MAX_SAVED: usize = 20;
/// Maximum time that a question stays open: one day less one minute, to tolerate clock skew.
const QUESTION_SECONDS: i64 = 86_400 - 60;
/// A duration that no run reaches.
const NEVER: Duration = Duration::from_hours(365 * 24);

/// Reasons that stop a run before its end.
#[derive(Debug)]
pub struct StopCause {
    pub cancel: CancellationToken,
    /// The gateway's deadline.
    pub deadline: Option<Instant>,
}

/// Drives a session to its end. The last result that `host` gets is the terminal event.
pub async fn drive<H: RunHost>(
    session: MachineSession,
    prefix: &'static str,
    host: &mut H,
    egress: &Egress,
    stop: &StopCause,
) {
    let total = session.limits().total.unwrap_or(NEVER);
    let total = Instant::now() + total;
    let end = stop.deadline.map_or(total, |deadline| deadline.min(total));
    let mut driver = Driver {
        idle: session.limits().idle,
        idle_until: Instant::now(),
        usage_until: None,
        session,
        prefix,
        host,
        egress: PlatformEgress::new(egress),
        queue: VecDeque::new(),
        next: NextInput::Read,
        exchange: None,
        saved: Vec::new(),
    };
    // `biased` and this order: a cancelled run must not send a completion that became ready at the same time.
    let stopped: fn(&mut MachineSession) -> Vec<MachineOutput> = tokio::select! { biased;
        () = stop.cancel.cancelled() => MachineSession::cancelled,
        () = sleep_until(end) => MachineSession::deadline,
        () = driver.work() => return,
    };
    driver.stop(stopped).await;
}

/// The next input of the session.
enum NextInput {
    /// More of the open response.
    Read,
    Send(Box<PlatformRequest>),
    History(u32),
    Ask(Box<InteractionRequest>),
    Nothing,
}

struct Driver<'a, H> {
    session: MachineSession,
    prefix: &'static str,
    host: &'a mut H,
    egress: PlatformEgress<'a>,
    /// Outputs that are not handled yet.
    queue: VecDeque<MachineOutput>,
    next: NextInput,
    exchange: Option<ResponseExchange>,
    /// Artifact ids for the next message.
    saved: Vec<String>,
    idle: Duration,
    idle_until: Instant,
    /// End of the wait for usage, set when the answer is complete.
    usage_until: Option<Instant>,
}

impl<H: RunHost> Driver<'_, H> {
    async fn work(&mut self) {
        let outputs = self.session.begin();
        self.queue.extend(outputs);
        loop {
            let began = Instant::now();
            // Handle all outputs in their order before the next input: results reach the gateway as the machine
            // ordered them.
            while let Some(output) = self.queue.pop_front() {
                self.handle(output).await;
            }
            // Time that the gateway takes does not count as silence of the platform.
            self.idle_until += began.elapsed();
            let outputs = match std::mem::replace(&mut self.next, NextInput::Read) {
                NextInput::Read => self.read().await,
                NextInput::Send(request) => self.send(*request).await,
                NextInput::History(messages) => {
                    let messages = self.host.history(messages).await;
                    self.session.history(messages)
                }
                NextInput::Ask(question) => self.ask(*question).await,
                NextInput::Nothing => return,
            };
            if self.session.take_progress() {
                self.idle_until = Instant::now() + self.idle;
            }
            self.queue.extend(outputs);
        }
    }

    /// Ends the run early. Outputs that are already queued are sent first.
    async fn stop(&mut self, end: fn(&mut MachineSession) -> Vec<MachineOutput>) {
        // Close the response before the stop call, so that the platform does not stream into a closed run.
        self.exchange = None;
        // Drop queued calls, questions and files: they would delay the terminal event.
        self.queue.retain(|output| {
            matches!(
                output,
                MachineOutput::Tell(_)
                    | MachineOutput::Remember { .. }
                    | MachineOutput::Finish(_)
                    | MachineOutput::Fail(_)
            )
        });
        let outputs = end(&mut self.session);
        self.queue.extend(outputs);
        while let Some(output) = self.queue.pop_front() {
            self.handle(output).await;
        }
    }

    async fn handle(&mut self, output: MachineOutput) {
        match output {
            MachineOutput::Call(request) => self.go_on(NextInput::Send(Box::new(request))),
            MachineOutput::History(messages) => self.go_on(NextInput::History(messages)),
            MachineOutput::Ask(question) => self.go_on(NextInput::Ask(question)),
            MachineOutput::Notify(request) => {
                // The run may be at its deadline, so a slow stop endpoint must not block the terminal event.
                let sent = timeout(NOTIFY_TIME, self.egress.open(request)).await;
                if !matches!(sent, Ok(Ok(_))) {
                    tracing::debug!("a request that ends work on the platform brought no response");
                }
            }
            MachineOutput::Tell(result) => self.tell(*result).await,
            MachineOutput::Remember { key, value } => {
                let result = kit::state_updated(StateScope::Conversation, key, value);
                self.host.tell(result).await;
            }
            MachineOutput::Save(file) => self.save(file).await,
            MachineOutput::Finish(Finished { reason, usage }) => {
                self.go_on(NextInput::Nothing);
                let completed = kit::run_completed_because(reason);
                self.host.tell(AgentRunResult { usage, ..completed }).await;
            }
            MachineOutput::Fail(failure) => {
                self.go_on(NextInput::Nothing);
                self.host.tell(failure.into_result(self.prefix)).await;
            }
        }
    }

    /// Closes the open response and sets the next input.
    fn go_on(&mut self, next: NextInput) {
        self.exchange = None;
        self.next = next;
    }

    async fn tell(&mut self, mut result: AgentRunResult) {
        // The gateway expects the ids within the message, so files are saved before their message completes.
        if result.kind == ResultType::MessageCompleted.as_str() && !self.saved.is_empty() {
            let saved = std::mem::take(&mut self.saved);
            result.data.insert("file_ids".to_owned(), json!(saved));
        }
        self.host.tell(result).await;
    }

    async fn send(&mut self, request: PlatformRequest) -> Vec<MachineOutput> {
        self.idle_until = Instant::now() + self.idle;
        let opening = self.egress.open(request);
        match timeout_at(self.idle_until, opening).await {
            Err(_) => self.session.failed(TransportError::Idle),
            Ok(Err(error)) => self.session.failed(error),
            Ok(Ok(exchange)) => {
                let head = exchange.head();
                self.exchange = Some(exchange);
                self.session.head(head)
            }
        }
    }

    async fn read(&mut self) -> Vec<MachineOutput> {
        let Some(exchange) = &mut self.exchange else {
            return self.session.fail(ConnectorFailure::ended_early());
        };
        let now = Instant::now();
        let is_answered = self.session.is_answered();
        // Keep the first instant: each further byte would otherwise extend the wait.
        self.usage_until = is_answered.then(|| self.usage_until.unwrap_or(now + USAGE_TIME));
        let until = self
            .usage_until
            .map_or(self.idle_until, |until| until.min(self.idle_until));
        // Check the clock as well: a response that never pauses never lets the timeout fire.
        match timeout_at(until, exchange.next()).await {
            Err(_) => self.lose(TransportError::Idle),
            Ok(_) if now >= until => self.lose(TransportError::Idle),
            Ok(Err(error)) => self.lose(error),
            Ok(Ok(Some(bytes))) => self.session.bytes(&bytes),
            Ok(Ok(None)) => {
                self.exchange = None;
                self.session.end()
            }
        }
    }

    fn lose(&mut self, error: TransportError) -> Vec<MachineOutput> {
        self.exchange = None;
        self.session.failed(error)
    }

    async fn ask(&mut self, mut question: InteractionRequest) -> Vec<MachineOutput> {
        let now = Clock::system().now_seconds();
        let latest = now.saturating_add(QUESTION_SECONDS);
        // The gateway refuses a later expiry, and the run would fail.
        question.expires_at = question.expires_at.map(|at| at.min(latest));
        question.awaits = true;
        self.host.tell(results::ask(&question)).await;
        match self.host.answer(&question).await {
            Ok(answer) => self.session.answered(answer),
            Err(failure) => self.session.fail(failure),
        }
    }

    /// Stores a file as an artifact. A file that cannot be fetched or stored is logged and does not fail the run.
    async fn save(&mut self, file: SavedFile) {
        let name = file.name.clone();
        let saved = if self.saved.len() < MAX_SAVED {
            self.try_save(file).await
        } else {
            Err(format!("a message has {MAX_SAVED} files at most"))
        };
        match saved {
            Ok(id) => {
                let created = object(json!({"artifact_id": id}));
                let created = kit::custom(ResultType::ArtifactCreated.as_str(), created);
                self.host.tell(created).await;
                self.saved.push(id);
            }
            Err(reason) => {
                let text = format!("the file {name} of the platform was not saved: {reason}");
                self.host.tell(results::log("warning", &text)).await;
            }
        }
    }

    async fn try_save(&mut self, file: SavedFile) -> Result<String, String> {
        let (bytes, declared) = match file.content {
            FileContent::Bytes(bytes) => (bytes.to_vec(), None),
            FileContent::Url(url) => {
                let fetching = timeout(FILE_TIME, self.egress.fetch(&url)).await;
                fetching.map_err(|_| "it did not come in time".to_owned())??
            }
            FileContent::Artifact(_) => return Err("it is an artifact already".to_owned()),
        };
        let mime_type = file.mime_type.or(declared);
        let file = NewFile {
            name: file.name,
            mime_type: mime_type.unwrap_or_else(|| "application/octet-stream".to_owned()),
            bytes,
        };
        self.host.save(file).await
    }
}

/// The instant of a deadline in epoch seconds, minus a tenth of the remaining time (2 s at most).
pub fn deadline_of(epoch_seconds: f64) -> Instant {
    let left = epoch_seconds - Clock::system().since_epoch().as_secs_f64();
    // Leave time to send the failure before the gateway's own timeout.
    let left = left - (left / 10.0).clamp(0.0, 2.0);
    // A deadline in the past or out of range must not panic in the conversion.
    let left = Duration::try_from_secs_f64(left.max(0.0)).unwrap_or(NEVER);
    Instant::now() + left.min(NEVER)
}
