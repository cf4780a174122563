//! Reads the events of Dify's stream, and emits results.

use std::collections::BTreeSet;

use protocol::message::LlmTokenUsage;
use serde_json::Value;
use url::Url;

use crate::dify_agent::config::{Config, DifyAppType};
use crate::dify_agent::forms::{self, DifyForm};
use crate::dify_agent::outputs::DifyOutputs;
use crate::machine::{MachineOutput, OutputQueue, SavedFile};
use crate::turn::{ConnectorTurn, FileContent};
use crate::upstream::answer::AnswerText;
use crate::upstream::failure::{ConnectorFailure, FailureKind};
use crate::upstream::json::{self, filled};
use crate::upstream::tools::ToolEvents;
use crate::upstream::usage::usage_in;

/// Maximum files of one answer; further ones are logged.
const MAX_FILES: usize = 50;

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
    answer: AnswerText,
    tools: ToolEvents,
    usage: Option<LlmTokenUsage>,
    pub(super) task_id: Option<String>,
    pub(super) run_id: Option<String>,
    /// The application is a chatflow or a workflow.
    is_workflow: bool,
    has_message_end: bool,
    has_finished: bool,
    outputs: DifyOutputs,
    files: BTreeSet<String>,
    forms: Vec<DifyForm>,
    /// Tokens of the forms of this run; replayed events repeat them.
    handled_forms: BTreeSet<String>,
}

impl DifyProgress {
    pub(super) fn new(turn: &ConnectorTurn, config: &Config) -> Self {
        Self {
            base: config.base.clone(),
            app: config.app,
            answer: AnswerText::new(turn),
            tools: ToolEvents::default(),
            usage: None,
            task_id: None,
            run_id: None,
            is_workflow: config.app == DifyAppType::Workflow,
            has_message_end: false,
            has_finished: false,
            outputs: DifyOutputs::default(),
            files: BTreeSet::new(),
            forms: Vec::new(),
            handled_forms: BTreeSet::new(),
        }
    }

    /// True once results of the run exist.
    pub(super) fn has_begun(&self) -> bool {
        self.answer.has_begun()
            || self.tools.has_reported()
            || !self.files.is_empty()
            || !self.handled_forms.is_empty()
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

    pub(super) fn event(
        &mut self,
        event: &Value,
        out: &mut OutputQueue,
    ) -> Result<DifyStep, ConnectorFailure> {
        for (slot, key) in [
            (&mut self.task_id, "task_id"),
            (&mut self.run_id, "workflow_run_id"),
        ] {
            if let Some(id) = filled(&event[key]) {
                *slot = Some(id.to_owned());
            }
        }
        let step = self.read(event, out);
        if step.is_err() {
            // A failed task needs no stop call.
            self.task_id = None;
        }
        step
    }

    fn read(&mut self, event: &Value, out: &mut OutputQueue) -> Result<DifyStep, ConnectorFailure> {
        let data = &event["data"];
        match event["event"].as_str().unwrap_or_default() {
            "message" | "agent_message" => self.answer.append(text(&event["answer"]), out),
            "text_chunk" => self.answer.append(text(&data["text"]), out),
            "message_replace" => self.replace(text(&event["answer"]), out),
            "text_replace" => self.replace(text(&data["text"]), out),
            "agent_thought" => self.thought(event, out),
            "message_file" if event["belongs_to"] != "user" => self.file(event, out),
            "workflow_started" => self.is_workflow = true,
            "node_started" => self.node_started(data, out),
            "node_finished" => self.node_finished(data, out),
            "message_end" => return Ok(self.message_end(event, out)),
            "workflow_finished" => return self.finished(data, out),
            "human_input_required" => self.form(event, out),
            "workflow_paused" => return self.paused(),
            "error" => return Err(error(event)),
            _ => {}
        }
        Ok(DifyStep::Next)
    }

    /// Completes the message and the run.
    pub(super) fn complete(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        self.task_id = None;
        self.outputs.add_missing(&mut self.answer, out);
        if !self.answer.complete_with_files(!self.files.is_empty(), out) {
            return Err(ConnectorFailure::empty());
        }
        out.finish("stop", self.usage.take());
        Ok(())
    }

    fn replace(&mut self, text: &str, out: &mut OutputQueue) {
        self.outputs.is_replaced = true;
        self.answer.replace(text, out);
    }

    fn message_end(&mut self, event: &Value, out: &mut OutputQueue) -> DifyStep {
        self.has_message_end = true;
        self.usage = usage_in(&event["metadata"]).or(self.usage.take());
        self.all_files(&event["files"], out);
        // A chatflow's outputs follow its message, and may hold text that was not streamed.
        if self.is_workflow && !self.has_finished {
            DifyStep::Next
        } else {
            DifyStep::Over
        }
    }

    fn finished(
        &mut self,
        data: &Value,
        out: &mut OutputQueue,
    ) -> Result<DifyStep, ConnectorFailure> {
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
        self.usage = self.usage.take().or_else(|| usage_in(data));
        self.outputs.finished(self.app, &data["outputs"]);
        self.all_files(&data["files"], out);
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

    fn paused(&mut self) -> Result<DifyStep, ConnectorFailure> {
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

    fn form(&mut self, event: &Value, out: &mut OutputQueue) {
        match DifyForm::read(event) {
            Some(form) if self.handled_forms.contains(form.token()) || self.forms.iter().any(|pending| pending.token() == form.token()) => {}
            Some(form) => self.forms.push(form),
            None => out.log("warning", "Dify asks for a form without a token: it is delivered by mail, or by a version without forms in its API"),
        }
    }

    /// A tool of an agent application. Dify sends it twice, the second time with its result.
    fn thought(&mut self, event: &Value, out: &mut OutputQueue) {
        let (Some(tool), Some(id)) = (filled(&event["tool"]), filled(&event["id"])) else {
            return;
        };
        let parameters = event["tool_input"]
            .as_str()
            .and_then(json::parse)
            .unwrap_or_default();
        self.tools.start(id, tool, parameters, out);
        if let Some(observation) = filled(&event["observation"]) {
            self.tools.complete(
                id,
                json::parse(observation).unwrap_or_else(|| observation.into()),
                None,
                out,
            );
        }
    }

    fn node_started(&mut self, data: &Value, out: &mut OutputQueue) {
        if data["node_type"] == "tool"
            && let Some(id) = filled(&data["id"])
        {
            let name = filled(&data["title"]).unwrap_or("tool");
            self.tools.start(id, name, data["inputs"].clone(), out);
        }
    }

    fn node_finished(&mut self, data: &Value, out: &mut OutputQueue) {
        // The output of an answer node is the text that streaming may have lost.
        match data["node_type"].as_str() {
            Some("answer") => self.outputs.node_finished(data),
            Some("tool") => {
                let error = filled(&data["error"])
                    .or_else(|| (data["status"] == "failed").then_some("the tool failed"));
                let id = data["id"].as_str().unwrap_or_default();
                self.tools.complete(id, data["outputs"].clone(), error, out);
            }
            _ => {}
        }
    }

    fn all_files(&mut self, files: &Value, out: &mut OutputQueue) {
        for file in files.as_array().into_iter().flatten() {
            if file["belongs_to"] != "user" {
                self.file(file, out);
            }
        }
    }

    /// Saves a file of the answer once; several events name the same file.
    fn file(&mut self, file: &Value, out: &mut OutputQueue) {
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
        // Signatures differ between events, so compare the path.
        if self.files.contains(url.path()) {
            return;
        }
        let last = url
            .path_segments()
            .and_then(|mut segments| segments.next_back());
        let name = filled(&file["filename"])
            .or(last.filter(|name| !name.is_empty()))
            .unwrap_or("file")
            .to_owned();
        if self.files.len() >= MAX_FILES {
            out.log(
                "warning",
                &format!(
                    "the file {name} exceeds the limit of {MAX_FILES} files, and is not stored"
                ),
            );
            return;
        }
        self.files.insert(url.path().to_owned());
        out.push(MachineOutput::Save(SavedFile {
            name,
            mime_type: filled(&file["mime_type"]).map(str::to_owned),
            content: FileContent::Url(url.into()),
        }));
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
