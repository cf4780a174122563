//! Items of a Codex turn as results, and the permissions that its approval requests name.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::permission::{ActionKind, Permission, with_members};
use crate::shorten::{bounded, cut};
use crate::streamed_text::StreamedText;
use crate::turn::{TurnPrompt, TurnStage};

/// Maximum open items of one turn. Further items are not shown.
const MAX_ITEMS: usize = 1_000;

/// Open items of a turn by id, and its text.
#[derive(Debug, Default)]
pub(super) struct TurnItems {
    items: HashMap<String, Value>,
    text: StreamedText,
}

impl TurnItems {
    /// Converts one notification of the turn to results.
    pub(super) async fn show(&mut self, method: &str, params: &Value, stage: &mut TurnStage) {
        match method {
            "item/agentMessage/delta" => {
                let delta = params["delta"].as_str().unwrap_or_default();
                self.text.add_delta(delta, &mut stage.writer).await;
            }
            "item/reasoning/summaryTextDelta" if stage.shows_reasoning => {
                let text = cut(
                    params["delta"].as_str().unwrap_or_default(),
                    stage.writer.part_bytes(),
                );
                stage
                    .writer
                    .send_custom("thought", json!({"text": text}))
                    .await;
            }
            "item/started" if params["item"]["type"] == "agentMessage" => {
                self.text.begin(&mut stage.writer);
            }
            "item/completed" if params["item"]["type"] == "agentMessage" => {
                let text = params["item"]["text"].as_str().unwrap_or_default();
                self.text.add_complete(text, &mut stage.writer).await;
                // Completed text stays: a retry of the stream replaces the unfinished item only.
                self.text.keep();
            }
            "error" if params["willRetry"] == true => {
                let reason = params["error"]["message"].as_str().unwrap_or("no reason");
                let reason = cut(reason, 1_000);
                stage
                    .writer
                    .log(format!("Codex tries again: {reason}"))
                    .await;
            }
            "item/started" => self.start(&params["item"], stage).await,
            "item/completed" => self.end(&params["item"], stage).await,
            "turn/plan/updated" => {
                let plan = bounded(&params["plan"], stage.writer.part_bytes());
                stage
                    .writer
                    .send_custom("plan", json!({"entries": plan}))
                    .await;
            }
            _ => {}
        }
    }

    async fn start(&mut self, item: &Value, stage: &mut TurnStage) {
        let (Some(id), Some(name)) = (item["id"].as_str(), name_of(item)) else {
            return;
        };
        if self.items.len() >= MAX_ITEMS {
            return;
        }
        // Approval requests name the item by id and do not repeat its command or changes.
        self.items.insert(id.to_owned(), item.clone());
        stage.writer.new_paragraph();
        let bytes = stage.writer.part_bytes();
        let parameters = match item["type"].as_str() {
            Some("commandExecution") => {
                json!({"command": bounded(&item["command"], bytes), "cwd": item["cwd"]})
            }
            Some("fileChange") => json!({"changes": bounded(&item["changes"], bytes)}),
            _ => json!({"arguments": bounded(&item["arguments"], bytes)}),
        };
        stage.writer.tool_started(id, &name, parameters).await;
    }

    async fn end(&mut self, item: &Value, stage: &mut TurnStage) {
        let (Some(id), Some(name)) = (item["id"].as_str(), name_of(item)) else {
            return;
        };
        // Items over the limit were never shown as started.
        if self.items.remove(id).is_none() {
            return;
        }
        let bytes = stage.writer.part_bytes();
        let status = item["status"].as_str().unwrap_or_default();
        let result = match item["type"].as_str() {
            Some("commandExecution") => {
                json!({"output": bounded(&item["aggregatedOutput"], bytes), "exit_code": item["exitCode"]})
            }
            Some("fileChange") => json!({"changes": bounded(&item["changes"], bytes)}),
            _ => json!({"output": bounded(&item["result"], bytes)}),
        };
        let error = (!matches!(status, "completed" | "")).then(|| {
            let message = item["error"]["message"].as_str();
            message.map_or_else(|| status.to_owned(), str::to_owned)
        });
        let is_changed = error.is_none();
        stage.writer.tool_completed(id, &name, result, error).await;
        if is_changed {
            for change in item["changes"].as_array().into_iter().flatten() {
                let data = json!({"tool_call_id": id, "path": change["path"], "diff": bounded(&change["diff"], bytes)});
                stage.writer.send_custom("diff", data).await;
            }
        }
    }

    /// Permission that an approval request asks for; `None` for other requests.
    pub(super) fn permission(&self, method: &str, params: &Value) -> Option<Permission> {
        let item = params["itemId"].as_str().and_then(|id| self.items.get(id));
        let reason = params["reason"]
            .as_str()
            .map(|reason| format!("\n\n{reason}"));
        let reason = reason.unwrap_or_default();
        match method {
            "item/commandExecution/requestApproval" => {
                let command = params["command"]
                    .as_str()
                    .or_else(|| item?["command"].as_str());
                let command = command.unwrap_or("an unknown command").to_owned();
                Some(Permission {
                    kind: ActionKind::Execute,
                    title: "run a command".to_owned(),
                    detail: with_arguments(command, params) + &reason,
                    paths: Vec::new(),
                })
            }
            "item/fileChange/requestApproval" => {
                let changes = item.and_then(|item| item["changes"].as_array());
                let changes = changes.map_or(&[][..], Vec::as_slice);
                let named: Vec<&str> = changes
                    .iter()
                    .filter_map(|change| change["path"].as_str())
                    .collect();
                let shown: Vec<_> = changes.iter().map(shown_change).collect();
                // The target of a move and the root of a grant are written to, as well.
                let moved = changes.iter().filter_map(moved_to);
                let paths = named
                    .iter()
                    .copied()
                    .chain(moved)
                    .chain(params["grantRoot"].as_str());
                Some(Permission {
                    kind: ActionKind::Edit,
                    title: format!("edit {}", named.join(", ")),
                    detail: with_arguments(shown.join("\n"), params) + &reason,
                    paths: paths.map(PathBuf::from).collect(),
                })
            }
            "item/permissions/requestApproval" => {
                let requested = &params["permissions"];
                let detail = serde_json::to_string_pretty(requested).unwrap_or_default();
                Some(Permission {
                    kind: ActionKind::Other,
                    title: "use more permissions".to_owned(),
                    detail: with_arguments(detail, params) + &reason,
                    paths: Vec::new(),
                })
            }
            _ => None,
        }
    }
}

/// Members of a request that the question shows already, or that list possible answers.
const SHOWN: [&str; 7] = [
    "command",
    "commandActions",
    "permissions",
    "reason",
    "availableDecisions",
    "proposedExecpolicyAmendment",
    "proposedNetworkPolicyAmendments",
];

/// The text, and a line for each other argument of a request.
fn with_arguments(text: String, params: &Value) -> String {
    let names = params.as_object().into_iter().flatten();
    let names = names.map(|(name, _)| name.as_str());
    // Ids and times differ for each request: with them, no permission would match an earlier one.
    let named = names.filter(|name| name.ends_with("Id") || name.ends_with("Ms"));
    let shown: Vec<_> = named.chain(SHOWN).collect();
    with_members(text, params, &shown)
}

/// Path, target, kind and diff of a file change.
fn shown_change(change: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = change["kind"]["type"]
        .as_str()
        .map(|kind| format!(" ({kind})"));
    let moved = moved_to(change).map(|path| format!(" to {path}"));
    let (path, diff) = (text(&change["path"]), text(&change["diff"]));
    format!(
        "{path}{}{}\n{diff}",
        moved.unwrap_or_default(),
        kind.unwrap_or_default()
    )
}

fn moved_to(change: &Value) -> Option<&str> {
    let mut names = ["move_path", "movePath"].into_iter();
    names.find_map(|name| change["kind"][name].as_str())
}

/// Permissions that a request names. The response has to repeat them to grant them.
pub(super) fn granted(method: &str, params: &Value) -> Option<Value> {
    let names = method == "item/permissions/requestApproval";
    let permissions = params["permissions"].as_object();
    names.then(|| Value::Object(permissions.cloned().unwrap_or_default()))
}

/// Response to an approval request. Named permissions are granted together for the turn, or not at all.
pub(super) fn answer(requested: Option<&Value>, is_allowed: bool) -> Value {
    match requested {
        Some(permissions) if is_allowed => json!({"permissions": permissions, "scope": "turn"}),
        Some(_) => json!({"permissions": {}, "scope": "turn"}),
        None if is_allowed => json!({"decision": "accept"}),
        None => json!({"decision": "decline"}),
    }
}

/// Tool name of an item; `None` for items that are no tool call.
fn name_of(item: &Value) -> Option<String> {
    match item["type"].as_str()? {
        "commandExecution" => Some("command".to_owned()),
        "fileChange" => Some("apply_patch".to_owned()),
        "mcpToolCall" => {
            let tool = item["tool"].as_str().unwrap_or("tool");
            Some(format!(
                "{}.{tool}",
                item["server"].as_str().unwrap_or("mcp")
            ))
        }
        _ => None,
    }
}

/// Input of a turn: text with the paths of all files, and images by path. Codex reads image files itself.
pub(super) fn input(prompt: &TurnPrompt) -> Value {
    let mut text = prompt.text.clone();
    let mut images = Vec::new();
    for file in &prompt.files {
        text.push_str(&file.line());
        if file.mime_type.starts_with("image/") {
            images.push(json!({"type": "localImage", "path": file.path}));
        }
    }
    let mut input = vec![json!({"type": "text", "text": text.trim(), "text_elements": []})];
    input.extend(images);
    Value::Array(input)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PermissionMode;
    use crate::turn::testing::{completed, results_of, stage};

    #[test]
    fn permission_for_edit_shows_diff() {
        let mut items = TurnItems::default();
        let item = json!({"type": "fileChange", "changes": [{"path": "/w/a", "diff": "+y"}]});
        items.items.insert("i".to_owned(), item);
        let edit = items
            .permission("item/fileChange/requestApproval", &json!({"itemId": "i"}))
            .unwrap();
        assert_eq!(
            (edit.kind, edit.title.as_str()),
            (ActionKind::Edit, "edit /w/a")
        );
        assert!(edit.detail.contains("+y"));
        assert!(items.permission("account/other", &json!({})).is_none());
    }

    #[test]
    fn permission_shows_all_arguments() {
        let mut items = TurnItems::default();
        let kind = json!({"type": "update", "move_path": "/etc/b"});
        let item = json!({"type": "fileChange", "changes": [{"path": "/w/a", "kind": kind, "diff": "+y"}]});
        items.items.insert("i".to_owned(), item);
        let params = json!({"itemId": "i", "turnId": "t", "startedAtMs": 7, "grantRoot": "/srv", "reason": "to move"});
        let edit = items
            .permission("item/fileChange/requestApproval", &params)
            .unwrap();
        assert_eq!(
            edit.detail,
            "/w/a to /etc/b (update)\n+y\ngrantRoot: \"/srv\"\n\nto move"
        );
        let paths = ["/w/a", "/etc/b", "/srv"].map(PathBuf::from);
        assert_eq!(edit.paths, paths);
        let params = json!({"itemId": "c", "command": "make", "cwd": "/w", "commandActions": [],
            "additionalPermissions": {"network": {"enabled": true}}, "networkApprovalContext": null});
        let command = items
            .permission("item/commandExecution/requestApproval", &params)
            .unwrap();
        let expected = "make\nadditionalPermissions: {\"network\":{\"enabled\":true}}\ncwd: \"/w\"";
        assert_eq!(command.detail, expected);
    }

    #[test]
    fn grants_named_permissions_or_none() {
        let method = "item/permissions/requestApproval";
        let params =
            json!({"permissions": {"network": {"enabled": true}}, "reason": "to fetch a page"});
        let permission = TurnItems::default().permission(method, &params).unwrap();
        assert_eq!(permission.kind, ActionKind::Other);
        assert!(permission.detail.contains("network") && permission.detail.contains("to fetch"));
        let requested = granted(method, &params);
        let allowed = json!({"permissions": {"network": {"enabled": true}}, "scope": "turn"});
        assert_eq!(answer(requested.as_ref(), true), allowed);
        let nothing = json!({"permissions": {}, "scope": "turn"});
        assert_eq!(answer(requested.as_ref(), false), nothing);
        let other = granted("item/fileChange/requestApproval", &params);
        assert_eq!(
            answer(other.as_ref(), false),
            json!({"decision": "decline"})
        );
    }

    #[tokio::test]
    async fn complete_messages_extend_or_replace_deltas() {
        let item = |text: &str| json!({"item": {"type": "agentMessage", "id": "m", "text": text}});
        let delta = |text: &str| ("item/agentMessage/delta", json!({"delta": text}));
        for notifications in [
            vec![("item/completed", item("All of it."))],
            vec![
                ("item/started", item("")),
                delta("All of it."),
                ("item/completed", item("All of it.")),
            ],
            vec![
                ("item/started", item("")),
                delta("All"),
                ("item/completed", item("All of it.")),
            ],
            vec![
                ("item/started", item("")),
                delta("Some"),
                ("item/started", item("")),
                delta("All of it."),
            ],
        ] {
            let results = results_of(move |out| async move {
                let mut stage = stage(&out, PermissionMode::Ask);
                let mut items = TurnItems::default();
                for (method, params) in &notifications {
                    items.show(method, params, &mut stage).await;
                }
                stage.writer.complete(Vec::new()).await;
            });
            assert_eq!(completed(&results.await), "All of it.");
        }
    }
}
