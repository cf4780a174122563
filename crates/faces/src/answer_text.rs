//! The answer of a run as one text: a state machine without I/O.

use domain::usage::TokenParts;
use protocol::result::{ResultType, RunCompletedPayload, RunFailedPayload};
use protocol::run::AgentRunEvent;
use serde_json::Value;

use crate::follow::{ANSWER_BYTES, FaceWriter, reported_tokens};
use crate::message_text::{OpenMessage, TextChange};
use crate::questions::OpenQuestion;

/// Separator of the messages of a run in one text.
const BETWEEN_MESSAGES: &str = "\n\n";

/// End of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnswerTextEnd {
    /// With the finish reason of the runner.
    Completed(String),
    Failed {
        code: String,
        message: String,
    },
    /// The run waits for the answer to its last question.
    Waiting,
    /// The answer is longer than [`ANSWER_BYTES`]. The run continues.
    Cut,
}

/// Changes by one event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerTextChange {
    /// Text that continues the answer.
    pub(crate) text: Option<String>,
    /// The event asks the last question.
    pub(crate) has_question: bool,
}

/// Text, questions and end of an answer so far.
#[derive(Debug, Default)]
pub(crate) struct AnswerText {
    open: OpenMessage,
    pub(crate) text: String,
    /// Begin of the open message in the text.
    message_from: usize,
    /// The next text begins a message.
    is_between: bool,
    pub(crate) questions: Vec<OpenQuestion>,
    pub(crate) reported: Option<TokenParts>,
    pub(crate) end: Option<AnswerTextEnd>,
}

impl AnswerText {
    /// Adds an event.
    pub(crate) fn add(&mut self, event: &AgentRunEvent) -> AnswerTextChange {
        self.reported = reported_tokens(event).or(self.reported);
        let mut change = AnswerTextChange::default();
        for text_change in self.open.changes(event) {
            if let Some(text) = self.apply(text_change) {
                change.text.get_or_insert_default().push_str(&text);
            }
        }
        if let Some(question) = OpenQuestion::of(event) {
            // The client must answer before the run continues, so the answer ends here.
            if question.is_awaited {
                self.end = Some(AnswerTextEnd::Waiting);
            }
            self.questions.push(question);
            change.has_question = true;
        }
        // An end that is set already wins: nothing follows a question that waits.
        self.end = self.end.take().or_else(|| end_of(event));
        if self.end.is_none() && self.bytes() > ANSWER_BYTES {
            self.end = Some(AnswerTextEnd::Cut);
        }
        change
    }

    fn apply(&mut self, change: TextChange) -> Option<String> {
        match change {
            TextChange::Append(text) => {
                let is_first = self.text.is_empty();
                let text = if std::mem::take(&mut self.is_between) && !is_first {
                    self.message_from = self.text.len();
                    format!("{BETWEEN_MESSAGES}{text}")
                } else {
                    text
                };
                self.text.push_str(&text);
                Some(text)
            }
            TextChange::Close => {
                // The separator waits for text, so that no answer ends with it.
                self.is_between = true;
                self.message_from = self.text.len();
                None
            }
            TextChange::Withdraw => {
                // A stream has shown it, a complete answer leaves it out.
                self.text.truncate(self.message_from);
                self.is_between = true;
                None
            }
        }
    }
}

fn end_of(event: &AgentRunEvent) -> Option<AnswerTextEnd> {
    let data = || Value::Object(event.data.clone());
    match ResultType::parse(&event.kind)? {
        ResultType::RunCompleted => {
            let payload = serde_json::from_value::<RunCompletedPayload>(data()).ok();
            let reason = payload.map(|payload| payload.finish_reason);
            Some(AnswerTextEnd::Completed(reason.unwrap_or_default()))
        }
        ResultType::RunFailed => {
            let payload = serde_json::from_value::<RunFailedPayload>(data()).ok();
            let (code, message) = payload.map_or_else(Default::default, |payload| {
                (payload.code, payload.message.or(payload.error))
            });
            Some(AnswerTextEnd::Failed {
                code,
                message: message.unwrap_or_default(),
            })
        }
        _ => None,
    }
}

/// The frames are the text itself.
impl FaceWriter for AnswerText {
    fn begin(&mut self) -> String {
        String::new()
    }

    fn write(&mut self, event: &AgentRunEvent) -> String {
        self.add(event).text.unwrap_or_default()
    }

    fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    fn finish(&mut self, _: Option<TokenParts>) -> String {
        String::new()
    }

    fn cut(&mut self) -> String {
        String::new()
    }

    fn bytes(&self) -> usize {
        let questions = self.questions.iter().map(|one| one.arguments.len());
        self.text.len() + self.open.bytes() + questions.sum::<usize>()
    }
}
