//! Where the pipelines stand in a document: one, a list, an export, or an answer of LangBot's API.

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::Value;

use crate::form::escape_pointer;

/// The most pipelines of one migration.
pub(super) const PIPELINES: usize = 1000;

/// A pipeline or agent of a document.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    /// Its place in the document.
    pub(super) pointer: String,
    pub(super) name: Option<String>,
    pub(super) uuid: Option<String>,
    pub(super) is_default: bool,
    pub(super) preferences: JsonObject,
    /// The place of `config`.
    pub(super) at: String,
    /// What holds `ai` (a pipeline), or `runner` and `runner_config` (an agent).
    pub(super) config: JsonObject,
}

/// Every pipeline of a document.
pub(super) fn find(document: &Value) -> Result<Vec<Found>, Fault> {
    let mut found = Vec::new();
    look(document, String::new(), &mut found)?;
    if found.is_empty() {
        return Err(Fault::new("", "holds no pipeline"));
    }
    Ok(found)
}

fn look(value: &Value, pointer: String, found: &mut Vec<Found>) -> Result<(), Fault> {
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
            Ok(())
        }
        Value::Object(object) => {
            if let Some(pipeline) = pipeline(object, &pointer)? {
                found.push(pipeline);
                return Ok(());
            }
            let inside = ["data", "pipelines", "pipeline", "agents", "agent"];
            let mut holds = false;
            for key in inside {
                if let Some(value) = object.get(key).filter(|value| !value.is_null()) {
                    holds = true;
                    look(value, format!("{pointer}/{key}"), found)?;
                }
            }
            if holds {
                return Ok(());
            }
            let message = "is no pipeline: it has neither `config`, nor `ai`, nor `runner` with `runner_config`, \
                nor a list of `pipelines`";
            Err(Fault::new(pointer, message))
        }
        _ => Err(Fault::new(pointer, "must be an object or a list")),
    }
}

fn pipeline(object: &JsonObject, pointer: &str) -> Result<Option<Found>, Fault> {
    let is_config =
        |object: &JsonObject| object.contains_key("ai") || object.contains_key("runner_config");
    let (config, at) = match object.get("config") {
        _ if is_config(object) => (object.clone(), pointer.to_owned()),
        None => return Ok(None),
        Some(Value::Object(config)) => (config.clone(), format!("{pointer}/config")),
        // As the column of a database holds it.
        Some(Value::String(text)) => {
            let at = format!("{pointer}/config");
            let Ok(Value::Object(config)) = serde_json::from_str(text) else {
                return Err(Fault::new(at, "is a text that holds no JSON object"));
            };
            (config, at)
        }
        Some(_) => {
            return Err(Fault::new(format!("{pointer}/config"), "must be an object"));
        }
    };
    let text = |name: &str| {
        let value = object.get(name)?.as_str()?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    };
    let preferences = object.get("extensions_preferences");
    Ok(Some(Found {
        pointer: pointer.to_owned(),
        name: text("name"),
        uuid: text("uuid"),
        is_default: object.get("is_default") == Some(&Value::Bool(true)),
        preferences: preferences
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default(),
        at,
        config,
    }))
}

/// The pointer of a member.
pub(super) fn member(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", escape_pointer(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(document: &Value, pointers: &[&str]) {
        let found = find(document).unwrap();
        let places: Vec<_> = found.iter().map(|one| one.at.as_str()).collect();
        assert_eq!(places, pointers, "{document}");
    }

    #[test]
    fn pipelines_are_found_where_they_are_kept() {
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
    fn what_holds_none_is_named() {
        for (document, pointer) in [
            (json!(7), ""),
            (json!({}), ""),
            (json!([]), ""),
            (json!([{"config": {"ai": {}}}, {"name": "x"}]), "/1"),
            (
                json!({"pipelines": [{"config": "{"}]}),
                "/pipelines/0/config",
            ),
            (json!({"config": 7}), "/config"),
        ] {
            assert_eq!(find(&document).unwrap_err().pointer, pointer, "{document}");
        }
    }
}
