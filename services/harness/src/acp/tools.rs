//! Session updates of ACP as results, and the tool calls that permission requests refer to.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::kind_of;
use crate::permission::{Permission, with_members};
use crate::shorten::{bounded, cut};
use crate::turn::TurnStage;

/// Maximum tool calls stored for one turn. Further calls are not shown.
const MAX_CALLS: usize = 1_000;

/// Tool calls of one turn by id, merged from their updates.
#[derive(Debug, Default)]
pub(super) struct AcpToolCalls {
    calls: HashMap<String, AcpToolCall>,
}

#[derive(Debug, Default)]
struct AcpToolCall {
    /// Members of the call and its updates; the latest value of each wins.
    merged: Value,
    has_ended: bool,
}

impl AcpToolCalls {
    /// Converts one session update to results of the run.
    pub(super) async fn show(&mut self, update: &Value, stage: &mut TurnStage) {
        match update["sessionUpdate"].as_str().unwrap_or_default() {
            "agent_message_chunk" => {
                if let Some(text) = update["content"]["text"].as_str() {
                    stage.writer.append(text).await;
                }
            }
            "agent_thought_chunk" if stage.shows_reasoning => {
                if let Some(text) = update["content"]["text"].as_str() {
                    let text = cut(text, stage.writer.part_bytes());
                    stage
                        .writer
                        .send_custom("thought", json!({"text": text}))
                        .await;
                }
            }
            "tool_call" | "tool_call_update" => self.show_call(update, stage).await,
            "plan" => {
                let entries = bounded(&update["entries"], stage.writer.part_bytes());
                stage
                    .writer
                    .send_custom("plan", json!({"entries": entries}))
                    .await;
            }
            _ => {}
        }
    }

    async fn show_call(&mut self, update: &Value, stage: &mut TurnStage) {
        let Some(id) = update["toolCallId"].as_str() else {
            return;
        };
        let is_new = !self.calls.contains_key(id);
        if is_new && self.calls.len() >= MAX_CALLS {
            return;
        }
        self.merge(id, update);
        let Some(call) = self.calls.get_mut(id) else {
            return;
        };
        let bytes = stage.writer.part_bytes();
        let name = name_of(&call.merged);
        if is_new {
            // Text after a tool call is a new step of the answer, not the rest of the sentence before.
            stage.writer.new_paragraph();
            let parameters = json!({
                "title": call.merged["title"], "kind": call.merged["kind"], "locations": bounded(&call.merged["locations"], bytes),
                "input": bounded(&call.merged["rawInput"], bytes),
            });
            stage
                .writer
                .tool_started(id, &name, without_nulls(parameters))
                .await;
        }
        let status = call.merged["status"].as_str().unwrap_or_default();
        // A repeated final update must not complete the call twice.
        if call.has_ended || !matches!(status, "completed" | "failed") {
            return;
        }
        call.has_ended = true;
        // `rawOutput` is optional in ACP; the displayed content is the fallback.
        let output = match &call.merged["rawOutput"] {
            Value::Null => &call.merged["content"],
            output => output,
        };
        let result = json!({
            "title": call.merged["title"], "kind": call.merged["kind"], "locations": bounded(&call.merged["locations"], bytes),
            "output": bounded(output, bytes),
        });
        let error = (status == "failed").then(|| shown_text(&call.merged));
        stage
            .writer
            .tool_completed(id, &name, without_nulls(result), error)
            .await;
        for diff in diffs(&call.merged) {
            let data = json!({
                "tool_call_id": id, "path": diff["path"],
                "old": bounded(&diff["oldText"], bytes), "new": bounded(&diff["newText"], bytes),
            });
            stage.writer.send_custom("diff", without_nulls(data)).await;
        }
    }

    fn merge(&mut self, id: &str, update: &Value) {
        let call = self.calls.entry(id.to_owned()).or_default();
        if !call.merged.is_object() {
            call.merged = json!({});
        }
        for (name, value) in update.as_object().into_iter().flatten() {
            // An update holds changed members only; `null` means unchanged, not removed.
            if !value.is_null() {
                call.merged[name] = value.clone();
            }
        }
    }

    /// Requested permission, completed from earlier updates of the same tool call.
    pub(super) fn permission(&self, params: &Value) -> Permission {
        let requested = &params["toolCall"];
        let mut merged = json!({});
        let earlier = requested["toolCallId"]
            .as_str()
            .and_then(|id| self.calls.get(id));
        let earlier = earlier.map_or(&Value::Null, |call| &call.merged);
        // The request comes last: its members override those of earlier updates.
        for source in [earlier, requested] {
            for (name, value) in source.as_object().into_iter().flatten() {
                if !value.is_null() {
                    merged[name] = value.clone();
                }
            }
        }
        // Kimi Code sends the arguments as JSON in the call's content; its request holds a shortened sentence only.
        if merged["rawInput"]
            .as_object()
            .is_none_or(serde_json::Map::is_empty)
            && let Some(input) = arguments_in(earlier)
        {
            merged["rawInput"] = input;
        }
        Permission {
            kind: kind_of(&merged),
            title: name_of(&merged),
            detail: detail_of(&merged),
            paths: paths_of(&merged),
        }
    }
}

/// Arguments that a call carries as JSON text in its content.
fn arguments_in(call: &Value) -> Option<Value> {
    let text = call["content"][0]["content"]["text"].as_str()?;
    serde_json::from_str(text).ok().filter(Value::is_object)
}

fn name_of(call: &Value) -> String {
    let named = ["title", "name", "kind"]
        .into_iter()
        .find_map(|name| call[name].as_str());
    named
        .filter(|name| !name.trim().is_empty())
        .unwrap_or("tool")
        .to_owned()
}

/// Argument with the model's own description of a call. It has no effect on the call.
const DESCRIPTION: &str = "description";
/// Arguments whose text may be a part of a difference.
const DIFF_TEXTS: [&str; 8] = [
    "oldString",
    "newString",
    "old_string",
    "new_string",
    "content",
    "contents",
    "patch",
    "diff",
];

/// Exact content of the question: diffs or command with all other arguments, or the arguments as JSON.
fn detail_of(call: &Value) -> String {
    let input = &call["rawInput"];
    let differences: Vec<String> = diffs(call).map(crate::diff::of_acp).collect();
    if !differences.is_empty() {
        return with_members(differences.join("\n"), input, &shown_by_diffs(call));
    }
    // All arguments are shown: a member that the question hides could change the effect of the command.
    match command_of(&input["command"]) {
        Some(command) => with_members(command, input, &["command", DESCRIPTION]),
        None if input.is_null() => shown_text(call),
        None => serde_json::to_string_pretty(input).unwrap_or_default(),
    }
}

/// A command as a text, or as words. Words with other values are no command.
fn command_of(command: &Value) -> Option<String> {
    match command {
        Value::String(command) => Some(command.clone()),
        Value::Array(words) => {
            let words: Option<Vec<_>> = words.iter().map(Value::as_str).collect();
            words.map(|words| words.join(" "))
        }
        _ => None,
    }
}

/// Names of the arguments whose values the diffs of a call already contain.
fn shown_by_diffs(call: &Value) -> Vec<&str> {
    let texts = diffs(call).flat_map(|part| ["path", "oldText", "newText"].map(|name| &part[name]));
    let texts: Vec<_> = texts.filter_map(Value::as_str).collect();
    let members = call["rawInput"].as_object().into_iter().flatten();
    let is_shown = |name: &str, value: &Value| {
        let Some(value) = value.as_str() else {
            return false;
        };
        let is_part = DIFF_TEXTS.contains(&name);
        let mut texts = texts.iter();
        name == DESCRIPTION || texts.any(|text| *text == value || is_part && text.contains(value))
    };
    let shown = members.filter(|(name, value)| is_shown(name, value));
    shown.map(|(name, _)| name.as_str()).collect()
}

/// Files that a call touches: its locations, its diffs, and the path among its arguments.
fn paths_of(call: &Value) -> Vec<PathBuf> {
    let locations = call["locations"].as_array().into_iter().flatten();
    let located = locations.filter_map(|location| location["path"].as_str());
    let changed = diffs(call).filter_map(|diff| diff["path"].as_str());
    let named = ["filePath", "file_path", "path", "filepath"];
    let named = named
        .into_iter()
        .filter_map(|name| call["rawInput"][name].as_str());
    let mut paths: Vec<PathBuf> = located
        .chain(changed)
        .chain(named)
        .map(PathBuf::from)
        .collect();
    paths.sort();
    paths.dedup();
    paths
}

fn diffs(call: &Value) -> impl Iterator<Item = &Value> {
    let content = call["content"].as_array().into_iter().flatten();
    content.filter(|part| part["type"] == "diff")
}

/// The text of a call's content.
fn shown_text(call: &Value) -> String {
    let content = call["content"].as_array().into_iter().flatten();
    let texts = content.filter_map(|part| part["content"]["text"].as_str());
    let text: Vec<_> = texts.collect();
    text.join("\n")
}

fn without_nulls(mut value: Value) -> Value {
    if let Some(members) = value.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permission::ActionKind;

    #[test]
    fn permission_includes_earlier_updates() {
        let mut tools = AcpToolCalls::default();
        tools.merge(
            "t",
            &json!({"toolCallId": "t", "title": "bash", "kind": "execute", "rawInput": {}}),
        );
        tools.merge(
            "t",
            &json!({"toolCallId": "t", "rawInput": {"command": "ls -l"}, "title": null}),
        );
        let permission =
            tools.permission(&json!({"toolCall": {"toolCallId": "t", "title": "List"}}));
        assert_eq!(permission.kind, ActionKind::Execute);
        assert_eq!(
            (permission.title.as_str(), permission.detail.as_str()),
            ("List", "ls -l")
        );
    }

    #[test]
    fn shows_full_arguments_of_content() {
        let mut tools = AcpToolCalls::default();
        let content = json!([{"type": "content", "content": {"type": "text", "text": "{\"command\":\"echo a very long one\"}"}}]);
        tools.merge(
            "t",
            &json!({"toolCallId": "t", "title": "Bash", "kind": "execute", "content": content}),
        );
        let requested = json!([{"type": "content", "content": {"type": "text", "text": "Requesting approval to Running: echo a…"}}]);
        let permission = tools.permission(
            &json!({"toolCall": {"toolCallId": "t", "title": "Bash", "content": requested}}),
        );
        assert_eq!(
            (permission.kind, permission.detail.as_str()),
            (ActionKind::Execute, "echo a very long one")
        );
    }

    #[test]
    fn permission_shows_all_arguments() {
        let detail = |call: Value| {
            let permission = AcpToolCalls::default().permission(&json!({"toolCall": call}));
            permission.detail
        };
        for (input, expected) in [
            (
                json!({"command": "make", "description": "Builds.", "background": true, "env": {"A": "b"}}),
                "make\nbackground: true\nenv: {\"A\":\"b\"}",
            ),
            (
                json!({"command": ["make", "all"], "timeout": 5}),
                "make all\ntimeout: 5",
            ),
            (
                json!({"command": ["make", 5]}),
                "{\n  \"command\": [\n    \"make\",\n    5\n  ]\n}",
            ),
        ] {
            let call = json!({"kind": "execute", "title": "bash", "rawInput": input});
            assert_eq!(detail(call), expected);
        }
        let content = json!([{"type": "diff", "path": "/w/a", "oldText": "x\n", "newText": "y\n"}]);
        let input = json!({"filePath": "/w/a", "oldString": "x", "newString": "y", "replaceAll": true, "mode": "x"});
        let shown =
            detail(json!({"kind": "edit", "title": "edit", "content": content, "rawInput": input}));
        assert!(
            shown.contains("-x") && shown.contains("replaceAll: true"),
            "{shown}"
        );
        assert!(
            shown.contains("mode: \"x\"") && !shown.contains("filePath"),
            "{shown}"
        );
    }

    #[test]
    fn edit_lists_files_and_diff() {
        let call = json!({"kind": "edit", "title": "write", "locations": [{"path": "/w/a"}], "rawInput": {"filePath": "/w/b"},
            "content": [{"type": "diff", "path": "/w/a", "oldText": "x\n", "newText": "y\n"}]});
        let permission = AcpToolCalls::default().permission(&json!({"toolCall": call}));
        assert_eq!(
            permission.paths,
            [PathBuf::from("/w/a"), PathBuf::from("/w/b")]
        );
        assert!(permission.detail.contains("-x") && permission.detail.contains("+y"));
    }
}
