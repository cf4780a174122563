//! What the runs of a pipeline could touch, as the `resource_policy` of an agent.

use protocol::JsonObject;
use serde_json::{Value, json};

use super::convert::{Converted, convert, names};
use super::families::{Family, Kind};
use super::pipeline::Draft;
use super::report::{Action, FieldNote};
use super::source::{Found, member};

/// Settings that the host read, beside the runner's own.
pub(super) const HOST_OWNED: [&str; 5] = [
    "enable-all-tools",
    "tools",
    "knowledge-base",
    "mcp-resources",
    "mcp-resource-agent-read-enabled",
];

/// The policy of the agent: what the pipeline allowed, and nothing for runners that call other services.
pub(super) fn resource_policy(
    found: &Found,
    family: Option<&'static Family>,
    section: &JsonObject,
    at: &str,
    draft: &mut Draft<'_, '_>,
) -> JsonObject {
    let mut policy = JsonObject::new();
    let assets = section.get("langbot-assets-enabled") == Some(&Value::Bool(true));
    if family.is_some_and(|family| !family.uses_host) && !assets {
        let note = FieldNote::new(Action::Defaulted, None).to("resource_policy");
        let why = "nothing: the service that it calls brings its own models, tools and knowledge";
        draft.notes.push(note.because(why));
        for name in HOST_OWNED
            .iter()
            .filter(|name| section.contains_key(**name))
        {
            if !draft
                .notes
                .iter()
                .any(|note| note.pointer.as_ref() == Some(&member(at, name)))
            {
                draft.note(Action::Dropped, member(at, name)).why =
                    Some("it uses nothing of the host".to_owned());
            }
        }
        return policy;
    }
    let configured = |name: &str| {
        let entry = draft.config.iter().find(|(key, _)| key == name);
        entry.map(|(_, value)| value.clone())
    };
    let models = models(
        configured("model").as_ref(),
        configured("rerank-model").as_ref(),
    );
    let bases = names_of(configured("knowledge-bases").as_ref());
    let tools = tools(found, section, at, draft);
    let mut grant = |name: &str, value: Value| {
        if value != json!([]) {
            policy.insert(name.to_owned(), value);
        }
    };
    grant("models", models);
    grant("tools", tools);
    grant("knowledge_bases", bases);
    grant("skills", skills(found));
    grant(
        "history",
        match family {
            Some(_) => json!(["page"]),
            None => json!(["page", "search"]),
        },
    );
    if family.is_none() {
        grant("events", json!(["get", "page"]));
        grant("storage", json!(["plugin"]));
    }
    let note = FieldNote::new(Action::Defaulted, None).to("resource_policy");
    let why = "what the pipeline let it use; the runner's manifest bounds it further";
    draft.notes.push(note.because(why));
    for name in ["mcp-resources", "mcp-resource-agent-read-enabled"] {
        let pointer = member(at, name);
        let told = draft
            .notes
            .iter()
            .any(|note| note.pointer.as_ref() == Some(&pointer));
        if section.contains_key(name) && !told {
            draft.note(Action::Dropped, pointer).why =
                Some("the gateway attaches no MCP resources".to_owned());
        }
    }
    policy
}

fn models(model: Option<&Value>, rerank: Option<&Value>) -> Value {
    let mut ids = Vec::new();
    match model {
        Some(Value::String(id)) => ids.push(id.clone()),
        Some(Value::Object(model)) => {
            ids.extend(
                model
                    .get("primary")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
            );
            let fallbacks = model.get("fallbacks").and_then(Value::as_array);
            let fallbacks = fallbacks.into_iter().flatten().filter_map(Value::as_str);
            ids.extend(fallbacks.map(str::to_owned));
        }
        _ => {}
    }
    ids.extend(rerank.and_then(Value::as_str).map(str::to_owned));
    match names(&json!(ids)) {
        Converted::Same(ids) | Converted::Changed(ids, _) => ids,
        _ => json!([]),
    }
}

fn names_of(value: Option<&Value>) -> Value {
    match names(value.unwrap_or(&Value::Null)) {
        Converted::Same(names) | Converted::Changed(names, _) => names,
        _ => json!([]),
    }
}

/// All tools, as a pipeline has them unless it says otherwise, or those that it lists.
fn tools(found: &Found, section: &JsonObject, at: &str, draft: &mut Draft<'_, '_>) -> Value {
    let all = match section.get("enable-all-tools") {
        None | Some(Value::Null) => true,
        Some(value) => {
            let pointer = member(at, "enable-all-tools");
            let target = "resource_policy.tools";
            if let Converted::Same(all) | Converted::Changed(all, _) = convert(Kind::Bool, value) {
                draft.note(Action::Renamed, pointer).target = Some(target.to_owned());
                all == json!(true)
            } else {
                draft.note(Action::Dropped, pointer).why = Some(
                    "is neither true nor false: no tool is granted but those listed".to_owned(),
                );
                false
            }
        }
    };
    if let Some(listed) = section.get("tools") {
        let note = draft.note(Action::Renamed, member(at, "tools"));
        note.target = Some("resource_policy.tools".to_owned());
        if !all {
            return names_of(Some(listed));
        }
        note.why = Some("all tools are enabled".to_owned());
    }
    let bound = ["enable_all_plugins", "enable_all_mcp_servers"];
    let limited = bound.into_iter().find(|name| {
        let value = found.preferences.get(*name);
        value.is_some_and(|value| !value.is_null() && value != &json!(true))
    });
    match limited {
        Some(name) if all => {
            let pointer = member(&member(&found.pointer, "extensions_preferences"), name);
            draft.note(Action::Dropped, pointer).why = Some(
                "limits tools to those of bound plugins and servers, which are not known here: name them in \
                 resource_policy.tools"
                    .to_owned(),
            );
            json!([])
        }
        _ if all => json!("*"),
        _ => json!([]),
    }
}

fn skills(found: &Found) -> Value {
    match found.preferences.get("enable_all_skills") {
        Some(Value::Bool(false)) => names_of(found.preferences.get("skills")),
        _ => json!("*"),
    }
}
