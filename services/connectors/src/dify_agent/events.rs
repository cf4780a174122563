//! Reads the events of Dify's stream, and emits results.

use std::collections::BTreeSet;

use serde_json::Value;
use url::Url;

use crate::dify_agent::config::{Config, DifyAppType};
use crate::dify_agent::forms::{self, DifyForm};
use crate::dify_agent::outputs::DifyOutputs;
use crate::machine::{SavedFile, file_name};
use crate::run::ConnectorRun;
use crate::turn::FileContent;
use crate::upstream::answer::{MAX_FILES, PlatformAnswer};
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped};
use crate::upstream::json::{self, filled};
use crate::upstream::usage::usage_in;

/// The next step of the machine.
pub(super) enum DifyStep {
    Next,
    /// The answer is complete.
    Over,
    /// The workflow waits for a form.
    Paused,
}

/// State of the answer so far.
pub(super) struct DifyProgress {
    base: Url,
    app: DifyAppType,
    pub(super) run_id: Option<String>,
    /// The application is a chatflow or a workflow.
    is_workflow: bool,
    has_message_end: bool,
    has_finished: bool,
    pub(super) outputs: DifyOutputs,
    forms: Vec<DifyForm>,
    /// Tokens of the forms of this run; replayed events repeat them.
    handled_forms: BTreeSet<String>,
}

impl DifyProgress {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            base: config.base.clone(),
            app: config.app,
            run_id: None,
            is_workflow: config.app == DifyAppType::Workflow,
            has_message_end: false,
            has_finished: false,
            outputs: DifyOutputs::default(),
            forms: Vec::new(),
            handled_forms: BTreeSet::new(),
        }
    }

    /// True if the answer is complete. Some versions omit one of the two end marks.
    pub(super) fn is_complete(&self) -> bool {
        (self.has_message_end || self.has_finished) && !self.has_form()
    }

    pub(super) fn has_form(&self) -> bool {
        !self.forms.is_empty()
    }

    /// The form to ask next.
    pub(super) fn next_form(&mut self) -> Option<DifyForm> {
        (!self.forms.is_empty()).then(|| self.forms.remove(0))
    }

    /// Continues after a form, in this run or a later one.
    pub(super) fn resume(&mut self, form: &DifyForm) {
        self.handled_forms.insert(form.token().to_owned());
        self.run_id = Some(form.run_id.clone());
        self.is_workflow = true;
        (self.has_message_end, self.has_finished) = (false, false);
    }

    pub(super) fn event(&mut self, event: &Value, run: &mut ConnectorRun) -> Mapped<DifyStep> {
        for (slot, key) in [
            (&mut run.task, "task_id"),
            (&mut self.run_id, "workflow_run_id"),
        ] {
            if let Some(id) = filled(&event[key]) {
                *slot = Some(id.to_owned());
            }
        }
        let step = self.read(event, &mut run.answer);
        if step.is_err() {
            // A failed task needs no stop call.
            run.task = None;
        }
        step
    }

    fn read(&mut self, event: &Value, answer: &mut PlatformAnswer) -> Mapped<DifyStep> {
        let data = &event["data"];
        match event["event"].as_str().unwrap_or_default() {
            "message" | "agent_message" => answer.append(text(&event["answer"])),
            "text_chunk" => answer.append(text(&data["text"])),
            "message_replace" => self.replace(text(&event["answer"]), answer),
            "text_replace" => self.replace(text(&data["text"]), answer),
            "agent_thought" => thought(event, answer),
            "message_file" if event["belongs_to"] != "user" => self.file(event, answer),
            "workflow_started" => self.is_workflow = true,
            "node_started" => node_started(data, answer),
            "node_finished" => self.node_finished(data, answer),
            "message_end" => return Ok(self.message_end(event, answer)),
            "workflow_finished" => return self.finished(data, answer),
            "human_input_required" => self.form(event, answer),
            "workflow_paused" => return self.paused(),
            "error" => return Err(error(event)),
            _ => {}
        }
        Ok(DifyStep::Next)
    }

    fn replace(&mut self, text: &str, answer: &mut PlatformAnswer) {
        self.outputs.is_replaced = true;
        answer.replace(text);
    }

    fn message_end(&mut self, event: &Value, answer: &mut PlatformAnswer) -> DifyStep {
        self.has_message_end = true;
        answer.count(usage_in(&event["metadata"]));
        self.all_files(&event["files"], answer);
        // A chatflow's outputs follow its message, and may hold text that was not streamed.
        if self.is_workflow && !self.has_finished {
            DifyStep::Next
        } else {
            DifyStep::Over
        }
    }

    fn finished(&mut self, data: &Value, answer: &mut PlatformAnswer) -> Mapped<DifyStep> {
        let status = data["status"].as_str().unwrap_or_default();
        // A partial success has an answer, and its error belongs to a single node.
        if let Some(message) = filled(&data["error"]).filter(|_| status != "partial-succeeded") {
            return Err(ConnectorFailure::reported(None, None, message));
        }
        if matches!(status, "failed" | "stopped") {
            return Err(ConnectorFailure::new(
                FailureKind::ApiError,
                format!("the workflow is {status}: see its log on Dify"),
            ));
        }
        self.has_finished = true;
        // The usage of the message has more detail, so it has priority.
        if answer.usage.is_none() {
            answer.count(usage_in(data));
        }
        self.outputs.finished(self.app, &data["outputs"]);
        self.all_files(&data["files"], answer);
        // Older chatflows end their message after the workflow, and that event has the tokens.
        let is_over =
            self.app == DifyAppType::Workflow || self.has_message_end || self.has_handled_forms();
        Ok(if is_over {
            DifyStep::Over
        } else {
            DifyStep::Next
        })
    }

    fn has_handled_forms(&self) -> bool {
        !self.handled_forms.is_empty()
    }

    fn paused(&mut self) -> Mapped<DifyStep> {
        if self.has_form() {
            return Ok(DifyStep::Paused);
        }
        // The snapshot of a resumed run repeats the pause of its answered form.
        if self.has_handled_forms() {
            Ok(DifyStep::Next)
        } else {
            Err(forms::unanswerable())
        }
    }

    fn form(&mut self, event: &Value, answer: &mut PlatformAnswer) {
        match DifyForm::read(event) {
            Some(form) if self.handled_forms.contains(form.token()) || self.forms.iter().any(|pending| pending.token() == form.token()) => {}
            Some(form) => self.forms.push(form),
            None => answer.out.log("warning", "Dify asks for a form without a token: it is delivered by mail, or by a version without forms in its API"),
        }
    }

    fn node_finished(&mut self, data: &Value, answer: &mut PlatformAnswer) {
        // The output of an answer node is the text that streaming may have lost.
        match data["node_type"].as_str() {
            Some("answer") => self.outputs.node_finished(data),
            Some("tool") => {
                let error = filled(&data["error"])
                    .or_else(|| (data["status"] == "failed").then_some("the tool failed"));
                let id = data["id"].as_str().unwrap_or_default();
                answer.tool_completed(id, data["outputs"].clone(), error);
            }
            _ => {}
        }
    }

    fn all_files(&mut self, files: &Value, answer: &mut PlatformAnswer) {
        for file in files.as_array().into_iter().flatten() {
            if file["belongs_to"] != "user" {
                self.file(file, answer);
            }
        }
    }

    /// Saves a file of the answer once; several events name the same file.
    fn file(&mut self, file: &Value, answer: &mut PlatformAnswer) {
        let Some(url) = filled(&file["url"]).or_else(|| filled(&file["remote_url"])) else {
            return;
        };
        // Dify sends addresses relative to itself, and the answer must not reach other schemes.
        let Some(url) = self
            .base
            .join(url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
        else {
            return;
        };
        let name = filled(&file["filename"]).or(file_name(&url));
        let name = name.unwrap_or("file").to_owned();
        // Signatures differ between events, so compare the path.
        let key = url.path().to_owned();
        let saved = SavedFile {
            name: name.clone(),
            mime_type: filled(&file["mime_type"]).map(str::to_owned),
            content: FileContent::Url(url.into()),
        };
        if !answer.save(&key, saved) {
            let text = format!(
                "the file {name} exceeds the limit of {MAX_FILES} files, and is not stored"
            );
            answer.out.log("warning", &text);
        }
    }
}

fn node_started(data: &Value, answer: &mut PlatformAnswer) {
    if data["node_type"] == "tool"
        && let Some(id) = filled(&data["id"])
    {
        let name = filled(&data["title"]).unwrap_or("tool");
        answer.tool_started(id, name, data["inputs"].clone());
    }
}

/// A tool of an agent application. Dify sends it twice, the second time with its result.
fn thought(event: &Value, answer: &mut PlatformAnswer) {
    let (Some(tool), Some(id)) = (filled(&event["tool"]), filled(&event["id"])) else {
        return;
    };
    let parameters = event["tool_input"]
        .as_str()
        .and_then(json::parse)
        .unwrap_or_default();
    answer.tool_started(id, tool, parameters);
    let observation = &event["observation"];
    if filled(observation).is_some() {
        answer.tool_completed(id, json::parsed(observation), None);
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn error(event: &Value) -> ConnectorFailure {
    let status = event["status"]
        .as_u64()
        .or_else(|| event["status"].as_str()?.parse().ok());
    let status = status.and_then(|status| u16::try_from(status).ok());
    ConnectorFailure::reported(status, filled(&event["code"]), text(&event["message"]))
}
