//! Reads messages, tasks and updates of an agent, and emits results.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::machine::{MachineOutput, OutputQueue, SavedFile};
use crate::turn::{ConnectorTurn, FILE_BYTES, FileContent};
use crate::upstream::answer::AnswerText;
use crate::upstream::failure::{ConnectorFailure, FailureKind};
use crate::upstream::json::filled;

/// Maximum artifacts of one task.
const MAX_ARTIFACTS: usize = 200;
/// Maximum files of one answer; further ones are logged.
const MAX_FILES: usize = 50;

/// The next step of the machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum A2aStep {
    Next,
    /// The answer is complete.
    Over,
    /// The agent asks a question.
    Ask(String),
}

/// State of the answer so far.
pub(super) struct A2aProgress {
    answer: AnswerText,
    pub(super) task_id: Option<String>,
    artifacts: Vec<Artifact>,
    /// The text of all artifacts as it was sent.
    sent: String,
    /// Id of the last status message that was read.
    status_message: String,
    files: BTreeSet<String>,
}

/// The text of an artifact, and its data in case it has no text.
#[derive(Debug)]
struct Artifact {
    id: String,
    text: String,
    data: String,
}

impl A2aProgress {
    pub(super) fn new(turn: &ConnectorTurn) -> Self {
        Self {
            answer: AnswerText::new(turn),
            task_id: None,
            artifacts: Vec::new(),
            sent: String::new(),
            status_message: String::new(),
            files: BTreeSet::new(),
        }
    }

    /// True once results of the run exist.
    pub(super) fn has_begun(&self) -> bool {
        self.answer.has_begun() || !self.files.is_empty()
    }

    /// True without text and files.
    pub(super) fn is_empty(&self) -> bool {
        self.answer.is_empty() && self.files.is_empty()
    }

    /// Reads one event, or a task.
    pub(super) fn event(
        &mut self,
        event: &Value,
        out: &mut OutputQueue,
    ) -> Result<A2aStep, ConnectorFailure> {
        let (task, status) = (&event["task"], &event["statusUpdate"]);
        let (message, artifact) = (&event["message"], &event["artifactUpdate"]);
        // An agent may answer with a message and without a task.
        if message.is_object() {
            self.artifact("message", &message["parts"], false, out);
            return Ok(A2aStep::Over);
        }
        if artifact.is_object() {
            self.know(&artifact["taskId"]);
            let (update, appends) = (&artifact["artifact"], artifact["append"] == true);
            let id = update["artifactId"].as_str().unwrap_or_default();
            self.artifact(id, &update["parts"], appends, out);
            return Ok(A2aStep::Next);
        }
        if status.is_object() {
            self.know(&status["taskId"]);
            return self.status(&status["status"], out);
        }
        let task = if event["status"].is_object() {
            event
        } else {
            task
        };
        if !task.is_object() {
            return Ok(A2aStep::Next);
        }
        self.know(&task["id"]);
        // A task repeats its artifacts in full, so they replace the earlier ones.
        for artifact in task["artifacts"].as_array().into_iter().flatten() {
            let id = artifact["artifactId"].as_str().unwrap_or_default();
            self.artifact(id, &artifact["parts"], false, out);
        }
        self.status(&task["status"], out)
    }

    /// Completes the message and the run.
    pub(super) fn complete(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        // Without a task id no stop call is sent for a finished task.
        self.task_id = None;
        if !self.answer.complete_with_files(!self.files.is_empty(), out) {
            return Err(ConnectorFailure::empty());
        }
        out.finish("stop", None);
        Ok(())
    }

    fn know(&mut self, id: &Value) {
        if let Some(id) = filled(id) {
            self.task_id = Some(id.to_owned());
        }
    }

    fn status(
        &mut self,
        status: &Value,
        out: &mut OutputQueue,
    ) -> Result<A2aStep, ConnectorFailure> {
        let message = &status["message"];
        let text = text_of(&message["parts"]);
        let state = status["state"].as_str().unwrap_or_default();
        // Version 0.x uses the lower-case names without a prefix.
        let state = state.trim_start_matches("TASK_STATE_").to_ascii_lowercase();
        match state.as_str() {
            "completed" => {
                // Agents without artifacts answer with their last status.
                if self.sent.is_empty() {
                    self.artifact("status", &message["parts"], false, out);
                }
                Ok(A2aStep::Over)
            }
            "input_required" | "input-required" => Ok(A2aStep::Ask(text)),
            "auth_required" | "auth-required" => {
                let message =
                    format!("the agent waits for an authorization that it gets elsewhere: {text}");
                Err(ConnectorFailure::new(FailureKind::AuthError, message))
            }
            "failed" | "rejected" | "canceled" | "cancelled" => {
                self.task_id = None;
                let text = if text.is_empty() {
                    format!("the task is {state}")
                } else {
                    text
                };
                Err(ConnectorFailure::reported(None, Some(&state), &text))
            }
            _ => {
                // Tasks repeat the message of their last status.
                let id = message["messageId"].as_str().unwrap_or_default();
                if !text.is_empty() && (id.is_empty() || id != self.status_message) {
                    id.clone_into(&mut self.status_message);
                    self.answer.think(&format!("{text}\n"), out);
                }
                Ok(A2aStep::Next)
            }
        }
    }

    fn artifact(&mut self, id: &str, parts: &Value, appends: bool, out: &mut OutputQueue) {
        let existing = self.artifacts.iter().position(|artifact| artifact.id == id);
        let at = existing.unwrap_or(self.artifacts.len());
        if existing.is_none() {
            if self.artifacts.len() >= MAX_ARTIFACTS {
                return;
            }
            self.artifacts.push(Artifact {
                id: id.to_owned(),
                text: String::new(),
                data: String::new(),
            });
        }
        let is_last = at + 1 == self.artifacts.len();
        let artifact = &mut self.artifacts[at];
        if !appends {
            artifact.text.clear();
            artifact.data.clear();
        }
        let piece = text_of(parts);
        // A piece of the last artifact extends the text and needs no comparison of the complete text.
        let goes_on = appends && is_last && !artifact.text.is_empty();
        artifact.text.push_str(&piece);
        for part in parts.as_array().into_iter().flatten() {
            if let Some(data) = part.get("data") {
                artifact.data.extend([data.to_string().as_str(), "\n"]);
            }
        }
        if goes_on {
            self.sent.push_str(&piece);
            self.answer.append(&piece, out);
        } else {
            self.say(out);
        }
        for part in parts.as_array().into_iter().flatten() {
            self.file(id, part, out);
        }
    }

    /// Emits the new part of the text of all artifacts.
    fn say(&mut self, out: &mut OutputQueue) {
        let texts = self
            .artifacts
            .iter()
            .map(|artifact| match artifact.text.as_str() {
                "" => artifact.data.trim_end(),
                text => text,
            });
        let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
        let full_text = texts.join("\n\n");
        match full_text.strip_prefix(self.sent.as_str()) {
            Some(rest) => self.answer.append(rest, out),
            None => self.answer.replace(&full_text, out),
        }
        self.sent = full_text;
    }

    fn file(&mut self, artifact: &str, part: &Value, out: &mut OutputQueue) {
        let content = match (part["raw"].as_str(), filled(&part["url"])) {
            // Compare the encoded length, so that no larger buffer is allocated.
            (Some(raw), _) if raw.len() / 4 * 3 <= FILE_BYTES => STANDARD
                .decode(raw)
                .ok()
                .map(|bytes| FileContent::Bytes(bytes.into())),
            (None, Some(url)) => Some(FileContent::Url(url.to_owned())),
            (None, None) => return,
            _ => None,
        };
        let name = filled(&part["filename"]).unwrap_or("file").to_owned();
        // Tasks repeat the files of their artifacts.
        let address = part["url"].as_str().unwrap_or_default();
        if self.files.contains(&format!("{artifact}/{name}/{address}")) {
            return;
        }
        let Some(content) = content.filter(|_| self.files.len() < MAX_FILES) else {
            out.log(
                "warning",
                &format!("the file {name} of the agent cannot be kept"),
            );
            return;
        };
        self.files.insert(format!("{artifact}/{name}/{address}"));
        out.push(MachineOutput::Save(SavedFile {
            name,
            mime_type: filled(&part["mediaType"]).map(str::to_owned),
            content,
        }));
    }
}

fn text_of(parts: &Value) -> String {
    let parts = parts.as_array().into_iter().flatten();
    parts.filter_map(|part| part["text"].as_str()).collect()
}
