//! Finds the pipelines in a document: one, a list, an export, or an answer of LangBot's API.

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::Value;

use super::catalog;
use super::convert::{Converted, convert, decoded};
use super::families::FieldKind;
use super::report::member;

/// Maximum pipelines of one migration.
pub(super) const PIPELINES: usize = 1000;
/// Members with objects. Database columns store them as text.
const CONTAINERS: [&str; 7] = [
    "config",
    "ai",
    "runner",
    "runner_config",
    "output",
    "misc",
    "extensions_preferences",
];

/// A parsed file.
#[derive(Clone, Copy, Debug)]
pub struct MigrationDocument<'a> {
    pub file: &'a str,
    pub value: &'a Value,
}

/// A pipeline or agent of a document.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FoundPipeline {
    /// Pointer in the document.
    pub(super) pointer: String,
    pub(super) name: Option<String>,
    pub(super) uuid: Option<String>,
    pub(super) is_default: bool,
    pub(super) preferences: Preferences,
    /// Pointer of `config`.
    pub(super) at: String,
    /// Object with `ai` (a pipeline), or with `runner` and `runner_config` (an agent).
    pub(super) config: JsonObject,
    /// Reason for which this part of the document is unreadable.
    pub(super) unreadable: Option<Fault>,
}

/// `extensions_preferences`: the tools and skills that a pipeline may use.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Preferences {
    Absent,
    Read(JsonObject),
    /// Present but not an object. It may contain a restriction.
    Unreadable,
}

/// Returns all pipelines of a document. Unreadable ones are included if a readable one exists. A document may
/// contain only catalog rows.
pub(super) fn find(document: &Value) -> Result<Vec<FoundPipeline>, Fault> {
    let mut found = Vec::new();
    look(document, String::new(), &mut found)?;
    // A document of catalog rows only is valid.
    if found.is_empty() && catalog::holds_rows(document) {
        return Ok(found);
    }
    // One readable pipeline suffices; the others are reported as blocked.
    if found.iter().any(|one| one.unreadable.is_none()) {
        return Ok(found);
    }
    let first = found.into_iter().find_map(|one| one.unreadable);
    Err(first.unwrap_or_else(|| Fault::new("", "holds no pipeline")))
}

fn look(value: &Value, pointer: String, found: &mut Vec<FoundPipeline>) -> Result<(), Fault> {
    if found.len() >= PIPELINES {
        return Err(Fault::new(
            pointer,
            "is one too many: 1000 pipelines at most",
        ));
    }
    match value {
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                look(item, format!("{pointer}/{at}"), found)?;
            }
        }
        Value::Object(object) => {
            let mut row = object.clone();
            // Columns are texts in rows of a database, but objects in exports.
            unfold(&mut row, false);
            if let Some(pipeline) = pipeline(&row, &pointer) {
                found.push(pipeline);
                return Ok(());
            }
            let inside = ["data", "pipelines", "pipeline", "agents", "agent"];
            let mut holds = catalog::is_catalog(object);
            for key in inside {
                if let Some(value) = object.get(key).filter(|value| !value.is_null()) {
                    holds = true;
                    let held = decoded(value);
                    look(
                        held.as_ref().unwrap_or(value),
                        format!("{pointer}/{key}"),
                        found,
                    )?;
                }
            }
            // Neither a pipeline nor a container: reported with the reason instead of ignored.
            if !holds {
                found.push(FoundPipeline::unreadable(
                    object,
                    pointer,
                    settings_of_3(object),
                ));
            }
        }
        _ => {
            let message = "must be an object or a list";
            found.push(FoundPipeline::unreadable(
                &JsonObject::new(),
                pointer,
                message,
            ));
        }
    }
    Ok(())
}

/// Returns the reason for which an object is not a pipeline. LangBot 3.x stored settings in other formats.
fn settings_of_3(object: &JsonObject) -> &'static str {
    let any = |names: &[&str]| names.iter().any(|name| object.contains_key(*name));
    if any(&["requester", "prompt-mode", "enable-chat"])
        || (any(&["keys"]) && any(&["model", "runner"]))
    {
        "is a `provider.json` of LangBot 3.x, which holds no pipelines: start LangBot 4 with it once, which makes \
         pipelines of it, and export those"
    } else if any(&["respond-rules", "income-msg-check", "msg-truncate"]) {
        "is a `pipeline.json` of LangBot 3.x, which selects no runner: start LangBot 4 with all files of 3.x once, and \
         export its pipelines"
    } else if any(&["platform-adapters"]) {
        "is a `platform.json` of LangBot 3.x, which holds no pipelines"
    } else {
        "is no pipeline: it has neither `config`, nor `ai`, nor `runner` with `runner_config`, nor a list of `pipelines`"
    }
}

/// Reads a row as a pipeline. `None`: the row is not a pipeline, but may contain some.
fn pipeline(row: &JsonObject, pointer: &str) -> Option<FoundPipeline> {
    let is_config = row.contains_key("ai") || row.contains_key("runner_config");
    let (config, at) = match row.get("config") {
        _ if is_config => (row.clone(), pointer.to_owned()),
        None => return None,
        Some(Value::Object(config)) => (config.clone(), member(pointer, "config")),
        Some(other) => {
            let message = if other.is_string() {
                "is a text that holds no JSON object"
            } else {
                "must be an object"
            };
            let unreadable = FoundPipeline::unreadable(row, pointer.to_owned(), message);
            let at = member(pointer, "config");
            return Some(FoundPipeline {
                unreadable: Some(Fault::new(at, message)),
                ..unreadable
            });
        }
    };
    Some(FoundPipeline {
        at,
        config,
        unreadable: None,
        ..FoundPipeline::unreadable(row, pointer.to_owned(), "")
    })
}

impl FoundPipeline {
    /// Creates an unreadable entry with its name.
    fn unreadable(row: &JsonObject, pointer: String, message: &str) -> Self {
        let text = |name: &str| {
            let value = row.get(name)?.as_str()?.trim();
            (!value.is_empty()).then(|| value.to_owned())
        };
        let is_default = row.get("is_default").is_some_and(|value| {
            let read = convert(FieldKind::Bool, value);
            matches!(read, Converted::Same(read) | Converted::Changed(read, _) if read == true)
        });
        Self {
            name: text("name"),
            uuid: text("uuid"),
            is_default,
            preferences: match row.get("extensions_preferences") {
                None | Some(Value::Null) => Preferences::Absent,
                Some(Value::Object(preferences)) => Preferences::Read(preferences.clone()),
                Some(_) => Preferences::Unreadable,
            },
            at: pointer.clone(),
            config: JsonObject::new(),
            unreadable: Some(Fault::new(pointer.clone(), message)),
            pointer,
        }
    }
}

/// Decodes texts with JSON where a pipeline has objects. Settings of a runner stay texts.
fn unfold(object: &mut JsonObject, has_sections: bool) {
    for (name, value) in object.iter_mut() {
        let is_container = CONTAINERS.contains(&name.as_str());
        if !is_container && !has_sections {
            continue;
        }
        if let Some(held) = decoded(value) {
            *value = held;
        }
        if is_container && let Value::Object(inner) = value {
            unfold(inner, matches!(name.as_str(), "ai" | "runner_config"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(document: &Value, pointers: &[&str]) {
        let found = find(document).unwrap();
        let found_pointers: Vec<_> = found.iter().map(|one| one.at.as_str()).collect();
        assert_eq!(found_pointers, pointers, "{document}");
    }

    #[test]
    fn finds_pipelines_in_all_document_forms() {
        let config = json!({"ai": {"runner": {}}});
        check(&config, &[""]);
        check(
            &json!({"uuid": "u", "name": "n", "config": config}),
            &["/config"],
        );
        check(&json!({"config": config.to_string()}), &["/config"]);
        check(&json!([config, {"config": config}]), &["/0", "/1/config"]);
        check(
            &json!({"pipelines": [{"config": config}]}),
            &["/pipelines/0/config"],
        );
        check(
            &json!({"data": {"pipeline": {"config": config}}}),
            &["/data/pipeline/config"],
        );
        check(
            &json!({"runner": {"id": "plugin:a/b/c"}, "runner_config": {}}),
            &[""],
        );
    }

    #[test]
    fn reports_documents_without_pipelines() {
        for (document, pointer) in [
            (json!(7), ""),
            (json!({}), ""),
            (json!([]), ""),
            (json!([{"name": "x"}, {"name": "y"}]), "/0"),
            (
                json!({"pipelines": [{"config": "{"}]}),
                "/pipelines/0/config",
            ),
            (json!({"config": 7}), "/config"),
            (json!({"config": "null"}), "/config"),
        ] {
            assert_eq!(find(&document).unwrap_err().pointer, pointer, "{document}");
        }
    }
    #[test]
    fn reads_containers_from_json_text() {
        let preferences = json!({"enable_all_skills": false});
        let twice = json!(preferences.to_string()).to_string();
        let section = json!({"tweaks": "{}"}).to_string();
        let ai = json!({"runner": r#"{"runner":"x"}"#, "x": section}).to_string();
        let config = json!({"ai": ai}).to_string();
        let found = find(&json!({"pipelines": json!([
            {"config": config, "extensions_preferences": twice, "is_default": 1}
        ]).to_string()}))
        .unwrap();
        let one = &found[0];
        assert_eq!(
            json!(one.config),
            json!({"ai": {"runner": {"runner": "x"}, "x": {"tweaks": "{}"}}})
        );
        assert_eq!(
            one.preferences,
            Preferences::Read(preferences.as_object().unwrap().clone())
        );
        assert!(one.is_default);
    }

    #[test]
    fn distinguishes_unreadable_from_absent_preferences() {
        let of = |preferences: Value| {
            let row = json!({"config": {"ai": {}}, "extensions_preferences": preferences});
            find(&row).unwrap()[0].preferences.clone()
        };
        for absent in [json!(null), json!("null")] {
            assert_eq!(of(absent), Preferences::Absent);
        }
        for unreadable in [json!("{"), json!(""), json!([]), json!("[]"), json!(7)] {
            assert_eq!(
                of(unreadable.clone()),
                Preferences::Unreadable,
                "{unreadable}"
            );
        }
    }

    #[test]
    fn keeps_readable_pipelines_next_to_unreadable_rows() {
        let rows = json!([{"config": {"ai": {}}}, {"config": "{", "name": "x"}, {"name": "y"}, 7]);
        let found = find(&rows).unwrap();
        let faults: Vec<_> = found
            .iter()
            .map(|one| one.unreadable.as_ref().map(|fault| fault.pointer.as_str()))
            .collect();
        assert_eq!(faults, [None, Some("/1/config"), Some("/2"), Some("/3")]);
    }

    #[test]
    fn recognizes_settings_of_langbot_3() {
        let check = |document: Value, name: &str| {
            let fault = find(&document).unwrap_err();
            assert!(fault.message.contains(name), "{fault:?}");
        };
        check(
            json!({"enable-chat": true, "keys": {}, "requester": {}, "model": "m", "runner": "local-agent"}),
            "`provider.json` of LangBot 3.x",
        );
        check(
            json!({"respond-rules": {}, "rate-limit": {}}),
            "`pipeline.json`",
        );
        check(json!({"platform-adapters": []}), "`platform.json`");
    }
}
