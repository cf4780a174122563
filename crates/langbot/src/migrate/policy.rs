//! Converts the permissions of a pipeline to an agent's `resource_policy`.

use protocol::JsonObject;
use serde_json::{Value, json};

use super::convert::{Converted, names};
use super::draft::SettingsDraft;
use super::families::Family;
use super::report::{FieldAction, FieldNote, member};
use super::source::{FoundPipeline, Preferences};

/// Settings that the host read, in addition to the runner's own.
pub(super) const HOST_OWNED: [&str; 5] = [
    "enable-all-tools",
    "tools",
    "knowledge-base",
    "mcp-resources",
    "mcp-resource-agent-read-enabled",
];

/// File operations for an unknown runner.
const FILES: &[&str] = &["metadata", "read"];

/// Grants of a runner that calls another service: files of messages, and the history that it resends.
fn service_grants(family: &Family, draft: &mut SettingsDraft<'_, '_>, policy: &mut JsonObject) {
    let resends = draft.config.iter().any(|(name, value)| {
        name == "resend-history" && value.as_f64().is_some_and(|messages| messages > 0.0)
    });
    let takes_files = !family.files.is_empty();
    if takes_files {
        policy.insert("artifacts".to_owned(), json!(family.files));
    }
    if resends {
        policy.insert("history".to_owned(), json!(["page"]));
    }
    let why = match (takes_files, resends) {
        (true, true) => "the files of messages, and the history that is sent again",
        (true, false) => "the files of messages; the service that it calls brings the rest",
        (false, true) => {
            "the history that is sent again; the service that it calls brings the rest"
        }
        (false, false) => "none: the service that it calls has its own models, tools and knowledge",
    };
    let note = FieldNote::new(FieldAction::Defaulted, None).to("resource_policy");
    draft.notes.push(note.because(why));
}

/// Returns the agent's policy: the pipeline's permissions, and none for runners that call other services.
pub(super) fn resource_policy(
    found: &FoundPipeline,
    family: Option<&'static Family>,
    section: &JsonObject,
    at: &str,
    draft: &mut SettingsDraft<'_, '_>,
) -> JsonObject {
    let mut policy = JsonObject::new();
    let preferences_at = member(&found.pointer, "extensions_preferences");
    if found.preferences == Preferences::Unreadable {
        draft.note(FieldAction::Dropped, preferences_at.clone()).why = Some(
            "is not an object and may contain a restriction: no tool and no skill is granted; list them in resource_policy"
                .to_owned(),
        );
    }
    let assets = section.get("langbot-assets-enabled") == Some(&Value::Bool(true));
    // With callbacks enabled, the service uses the host like a local runner.
    if let Some(family) = family.filter(|family| !family.uses_host && !assets) {
        service_grants(family, draft, &mut policy);
        for name in HOST_OWNED
            .iter()
            .filter(|name| section.contains_key(**name))
        {
            if !draft
                .notes
                .iter()
                .any(|note| note.pointer.as_ref() == Some(&member(at, name)))
            {
                draft.note(FieldAction::Dropped, member(at, name)).why =
                    Some("it uses no host resources".to_owned());
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
    let bounds = PreferenceBounds::of(&found.preferences, preferences_at);
    let tools = tools(&bounds, section, at, draft);
    let skills = bounds.listed("enable_all_skills", "skills", draft);
    let mut grant = |name: &str, value: Value| {
        if value != json!([]) {
            policy.insert(name.to_owned(), value);
        }
    };
    grant("models", models);
    grant("tools", tools);
    grant("knowledge_bases", bases);
    grant("skills", skills);
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
    } else if assets {
        grant("events", json!(["get"]));
    }
    grant(
        "artifacts",
        json!(family.map_or(FILES, |family| family.files)),
    );
    let note = FieldNote::new(FieldAction::Defaulted, None).to("resource_policy");
    let why = "the pipeline's permissions; the runner's manifest restricts them further";
    draft.notes.push(note.because(why));
    for name in ["mcp-resources", "mcp-resource-agent-read-enabled"] {
        let pointer = member(at, name);
        let is_noted = draft
            .notes
            .iter()
            .any(|note| note.pointer.as_ref() == Some(&pointer));
        if section.contains_key(name) && !is_noted {
            draft.note(FieldAction::Dropped, pointer).why =
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
                // Each id once, without placeholders: `names` does both.
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

/// Restrictions of `extensions_preferences`.
struct PreferenceBounds<'a> {
    /// `None`: unreadable, so nothing is granted.
    preferences: Option<&'a JsonObject>,
    at: String,
}

impl<'a> PreferenceBounds<'a> {
    fn of(preferences: &'a Preferences, at: String) -> Self {
        static NONE: std::sync::LazyLock<JsonObject> = std::sync::LazyLock::new(JsonObject::new);
        let preferences = match preferences {
            Preferences::Absent => Some(&*NONE),
            Preferences::Read(preferences) => Some(preferences),
            Preferences::Unreadable => None,
        };
        Self { preferences, at }
    }

    /// Returns true if a flag restricts: any value other than true. LangBot reads an absent flag as true. With a
    /// list of bindings, an absent flag also restricts.
    fn limits(&self, flag: &str, list: &str) -> bool {
        let Some(preferences) = self.preferences else {
            return true;
        };
        match preferences.get(flag) {
            Some(value) => value != &json!(true),
            None => preferences.get(list).is_some_and(|list| !list.is_null()),
        }
    }

    /// Returns true if a list is empty or absent.
    fn is_empty(&self, list: &str) -> bool {
        let listed = self
            .preferences
            .and_then(|preferences| preferences.get(list));
        listed.and_then(Value::as_array).is_none_or(Vec::is_empty)
    }

    /// Returns `"*"`, or the names of the list.
    fn listed(&self, flag: &str, list: &str, draft: &mut SettingsDraft<'_, '_>) -> Value {
        if !self.limits(flag, list) {
            return json!("*");
        }
        let Some(preferences) = self.preferences else {
            return json!([]);
        };
        let target = format!("resource_policy.{list}");
        if preferences
            .get(flag)
            .is_some_and(|value| !value.is_boolean())
        {
            draft.note(FieldAction::Dropped, member(&self.at, flag)).why =
                Some("is neither true nor false: only listed names are granted".to_owned());
        }
        let Some(value) = preferences.get(list) else {
            return json!([]);
        };
        let pointer = member(&self.at, list);
        match names(value) {
            Converted::Same(names) | Converted::Changed(names, _) => {
                draft.note(FieldAction::Renamed, pointer).target = Some(target);
                names
            }
            Converted::Empty => json!([]),
            Converted::Wrong(message) => {
                draft.note(FieldAction::Dropped, pointer).why =
                    Some(format!("{message}: none is granted"));
                json!([])
            }
        }
    }
}

/// Returns all tools, the default of a pipeline, or the tools that it lists.
fn tools(
    bounds: &PreferenceBounds<'_>,
    section: &JsonObject,
    at: &str,
    draft: &mut SettingsDraft<'_, '_>,
) -> Value {
    let target = "resource_policy.tools";
    let all = match section.get("enable-all-tools") {
        None => true,
        Some(Value::Bool(all)) => {
            let pointer = member(at, "enable-all-tools");
            draft.note(FieldAction::Renamed, pointer).target = Some(target.to_owned());
            *all
        }
        Some(_) => {
            draft
                .note(FieldAction::Dropped, member(at, "enable-all-tools"))
                .why =
                Some("is neither true nor false: no tool is granted but those listed".to_owned());
            false
        }
    };
    let flags = [
        ("enable_all_plugins", "plugins"),
        ("enable_all_mcp_servers", "mcp_servers"),
    ];
    let limited: Vec<_> = flags
        .into_iter()
        .filter(|(flag, list)| bounds.limits(flag, list))
        .collect();
    let nothing = bounds.preferences.is_none()
        || (limited.len() == flags.len() && limited.iter().all(|(_, list)| bounds.is_empty(list)));
    let mut listed = json!([]);
    if let Some(value) = section.get("tools") {
        let pointer = member(at, "tools");
        match names(value) {
            _ if all => {
                let note = draft.note(FieldAction::Renamed, pointer);
                note.target = Some(target.to_owned());
                note.why = Some("all tools are enabled".to_owned());
            }
            _ if nothing => {
                draft.note(FieldAction::Dropped, pointer).why = Some(
                    "extensions_preferences binds no plugin and no server, so no tool is granted"
                        .to_owned(),
                );
            }
            Converted::Same(names) | Converted::Changed(names, _) => {
                draft.note(FieldAction::Renamed, pointer).target = Some(target.to_owned());
                listed = names;
            }
            Converted::Empty => {
                draft.note(FieldAction::Renamed, pointer).target = Some(target.to_owned());
            }
            Converted::Wrong(message) => {
                draft.note(FieldAction::Dropped, pointer).why =
                    Some(format!("{message}: no tool is granted"));
            }
        }
    }
    if !all {
        return listed;
    }
    let Some(preferences) = bounds.preferences else {
        return json!([]);
    };
    // The migration does not know which tools a plugin or server has, so a restriction cannot be translated.
    for (flag, list) in &limited {
        let name = if preferences.contains_key(*flag) {
            flag
        } else {
            list
        };
        draft.note(FieldAction::Dropped, member(&bounds.at, name)).why = Some(
            "restricts tools to bound plugins and servers, which the migration does not know: list them in \
             resource_policy.tools"
                .to_owned(),
        );
    }
    if limited.is_empty() {
        json!("*")
    } else {
        json!([])
    }
}
