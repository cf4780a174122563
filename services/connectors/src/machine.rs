//! Inputs and outputs of a run as a state machine without I/O.

use protocol::interaction::{AwaitedInteraction, InteractionRequest};
use protocol::message::LlmTokenUsage;
use protocol::result::AgentRunResult;
use serde_json::Value;
use url::Url;

use crate::request::{PlatformRequest, PlatformResponseHead};
use crate::turn::FileContent;
use crate::upstream::failure::{ConnectorFailure, ErrorStatus, TransportError};
use crate::upstream::reader::UpstreamEvent;
use crate::upstream::results;

/// An input of a run.
#[derive(Clone, Debug)]
pub enum MachineInput {
    /// The first input, once.
    Begin,
    /// The response of the last call began with a status from 200 to 299.
    Opened(PlatformResponseHead),
    /// One event of the response, by the framing of its request.
    Event(UpstreamEvent),
    /// The response is complete, by the rules of HTTP.
    Ended,
    /// The response has another status. Its body is read to the end.
    Refused(ErrorStatus),
    /// The call failed before or within its response.
    Failed(TransportError),
    /// The result of [`MachineOutput::History`], oldest first, without the current message.
    History(Vec<HistoryMessage>),
    /// The result of [`MachineOutput::Ask`]; never `Open`.
    Answered(AwaitedInteraction),
}

/// One earlier message of the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryMessage {
    /// `user` or `assistant`.
    pub role: String,
    pub text: String,
}

/// An output of a run. The driver handles outputs in their order.
#[derive(Clone, Debug, PartialEq)]
pub enum MachineOutput {
    /// Closes an open response and sends this request. Its inputs follow.
    Call(PlatformRequest),
    /// Sends a request whose response does not matter. The driver waits for a few seconds and ignores errors.
    Notify(PlatformRequest),
    /// Closes an open response and reads at most this many earlier messages, up to 100.
    History(u32),
    /// Closes an open response, asks a person, and waits for the answer.
    Ask(Box<InteractionRequest>),
    /// A result for the gateway. The driver adds the ids of saved files to the next `message.completed`.
    Tell(Box<AgentRunResult>),
    /// Stores a value in the conversation's state; `null` removes it.
    Remember { key: String, value: Value },
    /// Stores a file of the platform as an artifact.
    Save(SavedFile),
    /// The run is complete. The last output.
    Finish(Finished),
    /// The run failed. The last output.
    Fail(ConnectorFailure),
}

/// A file of the platform's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedFile {
    pub name: String,
    pub mime_type: Option<String>,
    pub content: FileContent,
}

/// The last segment of a file's address.
pub(crate) fn file_name(url: &Url) -> Option<&str> {
    let name = url.path_segments()?.next_back()?;
    (!name.is_empty()).then_some(name)
}

/// The end of a run with an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// `stop`, `length`, `content_filter`, or the platform's own value.
    pub reason: String,
    pub usage: Option<LlmTokenUsage>,
}

/// Collects the outputs of one input.
#[derive(Debug, Default)]
pub struct OutputQueue(pub(crate) Vec<MachineOutput>);

impl OutputQueue {
    pub fn push(&mut self, output: MachineOutput) {
        self.0.push(output);
    }

    /// Adds a call.
    pub fn call(&mut self, request: PlatformRequest) {
        self.push(MachineOutput::Call(request));
    }

    /// Adds a result for the gateway.
    pub fn tell(&mut self, result: AgentRunResult) {
        self.push(MachineOutput::Tell(Box::new(result)));
    }

    /// Adds a `processor.log` of that level: `info` or `warning`.
    pub fn log(&mut self, level: &str, text: &str) {
        self.tell(results::log(level, text));
    }

    /// Adds a change of the conversation's state.
    pub fn remember(&mut self, key: &str, value: impl Into<Value>) {
        self.push(MachineOutput::Remember {
            key: key.to_owned(),
            value: value.into(),
        });
    }

    /// Adds the completion of the run.
    pub fn finish(&mut self, reason: &str, usage: Option<LlmTokenUsage>) {
        self.push(MachineOutput::Finish(Finished {
            reason: reason.to_owned(),
            usage,
        }));
    }
}
