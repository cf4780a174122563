//! Reads messages, tasks and updates of an agent, and emits results.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::machine::SavedFile;
use crate::run::ConnectorRun;
use crate::turn::{FILE_BYTES, FileContent};
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped};
use crate::upstream::json::filled;

/// Maximum artifacts of one task.
const MAX_ARTIFACTS: usize = 200;

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
#[derive(Default)]
pub(super) struct A2aProgress {
    artifacts: Vec<Artifact>,
    /// Id of the last status message that was read.
    status_message: String,
}

/// The text of an artifact, and its data in case it has no text.
#[derive(Debug)]
struct Artifact {
    id: String,
    text: String,
    data: String,
}

impl A2aProgress {
    /// Reads one event, or a task.
    pub(super) fn event(&mut self, event: &Value, run: &mut ConnectorRun) -> Mapped<A2aStep> {
        let (task, status) = (&event["task"], &event["statusUpdate"]);
        let (message, artifact) = (&event["message"], &event["artifactUpdate"]);
        // An agent may answer with a message and without a task.
        if message.is_object() {
            self.artifact("message", &message["parts"], false, &mut run.answer);
            return Ok(A2aStep::Over);
        }
        if artifact.is_object() {
            know(run, &artifact["taskId"]);
            let (update, appends) = (&artifact["artifact"], artifact["append"] == true);
            let id = update["artifactId"].as_str().unwrap_or_default();
            self.artifact(id, &update["parts"], appends, &mut run.answer);
            return Ok(A2aStep::Next);
        }
        if status.is_object() {
            know(run, &status["taskId"]);
            return self.status(&status["status"], run);
        }
        let task = if event["status"].is_object() {
            event
        } else {
            task
        };
        if !task.is_object() {
            return Ok(A2aStep::Next);
        }
        know(run, &task["id"]);
        // A task repeats its artifacts in full, so they replace the earlier ones.
        for artifact in task["artifacts"].as_array().into_iter().flatten() {
            let id = artifact["artifactId"].as_str().unwrap_or_default();
            self.artifact(id, &artifact["parts"], false, &mut run.answer);
        }
        self.status(&task["status"], run)
    }

    fn status(&mut self, status: &Value, run: &mut ConnectorRun) -> Mapped<A2aStep> {
        let message = &status["message"];
        let text = text_of(&message["parts"]);
        let state = status["state"].as_str().unwrap_or_default();
        // Version 0.x uses the lower-case names without a prefix.
        let state = state.trim_start_matches("TASK_STATE_").to_ascii_lowercase();
        match state.as_str() {
            "completed" => {
                // Agents without artifacts answer with their last status.
                if run.answer.is_empty() {
                    self.artifact("status", &message["parts"], false, &mut run.answer);
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
                run.task = None;
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
                    run.answer.think(&format!("{text}\n"));
                }
                Ok(A2aStep::Next)
            }
        }
    }

    fn artifact(&mut self, id: &str, parts: &Value, appends: bool, answer: &mut PlatformAnswer) {
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
        let extends = appends && is_last && !artifact.text.is_empty();
        artifact.text.push_str(&piece);
        for part in parts.as_array().into_iter().flatten() {
            if let Some(data) = part.get("data") {
                artifact.data.extend([data.to_string().as_str(), "\n"]);
            }
        }
        if extends {
            answer.extend_snapshot(&piece);
        } else {
            self.say(answer);
        }
        for part in parts.as_array().into_iter().flatten() {
            save(id, part, answer);
        }
    }

    /// Emits the new part of the text of all artifacts.
    fn say(&self, answer: &mut PlatformAnswer) {
        let texts = self
            .artifacts
            .iter()
            .map(|artifact| match artifact.text.as_str() {
                "" => artifact.data.trim_end(),
                text => text,
            });
        let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
        answer.snapshot(&texts.join("\n\n"));
    }
}

fn know(run: &mut ConnectorRun, id: &Value) {
    if let Some(id) = filled(id) {
        run.task = Some(id.to_owned());
    }
}

/// Saves the file of a part once.
fn save(artifact: &str, part: &Value, answer: &mut PlatformAnswer) {
    let content = match (part["raw"].as_str(), filled(&part["url"])) {
        // Compare the encoded length, so that no larger buffer is allocated.
        (Some(raw), _) if raw.len() / 4 * 3 <= FILE_BYTES => {
            let bytes = STANDARD.decode(raw).ok();
            bytes.map(|bytes| FileContent::Bytes(bytes.into()))
        }
        (None, Some(url)) => Some(FileContent::Url(url.to_owned())),
        (None, None) => return,
        _ => None,
    };
    let name = filled(&part["filename"]).unwrap_or("file");
    // Tasks repeat the files of their artifacts.
    let address = part["url"].as_str().unwrap_or_default();
    let key = format!("{artifact}/{name}/{address}");
    let file = content.map(|content| SavedFile {
        name: name.to_owned(),
        mime_type: filled(&part["mediaType"]).map(str::to_owned),
        content,
    });
    if !file.is_some_and(|file| answer.save(&key, file)) {
        let text = format!("the file {name} of the agent cannot be kept");
        answer.out.log("warning", &text);
    }
}

fn text_of(parts: &Value) -> String {
    let parts = parts.as_array().into_iter().flatten();
    parts.filter_map(|part| part["text"].as_str()).collect()
}
