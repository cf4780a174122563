//! Validation of runner manifests (`docs/protocol.md`, Discovery). One invalid manifest does not affect the others.

mod words; // capabilities and permissions

use std::time::Duration;

use protocol::PROTOCOL_VERSION;
use protocol::admin::Fault;
use protocol::id::RunnerId;
use protocol::manifest::{AgentRunnerManifest, ContextPolicy, RunnerUsage, every_event};
use serde_json::{Map, Value};

use crate::form::escape_pointer;
use protocol::peer_text::shown;
pub use words::mistyped_words;
use words::{capabilities, permissions, supported_words};

mod flags;

/// Maximum manifests of one endpoint.
pub const MAX_RUNNERS: usize = 256;
/// Maximum warnings for one manifest.
const MAX_WARNINGS: usize = 50;
/// Default and maximum of `resume_within_seconds`.
const RESUME_SECONDS: u32 = 120;
const MAX_RESUME_SECONDS: u32 = 3600;
/// Known manifest fields. Other fields are ignored with a warning, because peers may be newer.
const FIELDS: [&str; 14] = [
    "id",
    "name",
    "label",
    "protocol_version",
    "description",
    "capabilities",
    "permissions",
    "context",
    "config_schema",
    "metadata",
    "component_kind",
    "usages",
    "supported_event_patterns",
    "resume_within_seconds",
];

/// Result of the discovery of one endpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Discovered {
    pub accepted: Vec<AcceptedManifest>,
    pub incompatible: Vec<IncompatibleManifest>,
    pub rejected: Vec<Fault>,
}

/// A runner that agents can bind.
#[derive(Clone, Debug, PartialEq)]
pub struct AcceptedManifest {
    /// Index in the list.
    pub index: usize,
    pub manifest: AgentRunnerManifest,
    /// Ignored or dropped parts.
    pub warnings: Vec<Fault>,
}

/// A runner of another major protocol version.
#[derive(Clone, Debug, PartialEq)]
pub struct IncompatibleManifest {
    /// Index in the list.
    pub index: usize,
    pub id: RunnerId,
    pub reason: String,
    pub raw: Value,
}

/// Returns the time that a resumable runner works on without a gateway. `None`: its runs cannot be resumed.
pub fn resume_window(manifest: &AgentRunnerManifest) -> Option<Duration> {
    let seconds = manifest.resume_within_seconds.unwrap_or(RESUME_SECONDS);
    let window = Duration::from_secs(u64::from(seconds));
    manifest.capabilities.resumable.then_some(window)
}

/// Validates a complete answer `{"runners": […]}`.
pub fn validate_manifest_list(answer: &Value) -> Discovered {
    match answer.get("runners").and_then(Value::as_array) {
        Some(runners) => validate_manifests(runners),
        None => Discovered {
            rejected: vec![Fault::new("/runners", "must be a list of manifests")],
            ..Discovered::default()
        },
    }
}

/// Validates a list of manifests from an answer or a registration.
pub fn validate_manifests(runners: &[Value]) -> Discovered {
    let mut discovered = Discovered::default();
    for (index, raw) in runners.iter().enumerate() {
        let pointer = format!("/runners/{index}");
        // One fault for all surplus manifests, not one for each.
        if index >= MAX_RUNNERS {
            discovered.rejected.push(Fault::new(
                pointer,
                "an endpoint may list at most 256 runners",
            ));
            break;
        }
        match validate_manifest(index, raw) {
            // The first of two runners with one id stays: a repetition must not replace it.
            Ok(ManifestResult::Accepted(accepted)) if discovered.has(&accepted.manifest.id) => {
                let message = "is listed twice by this endpoint";
                discovered
                    .rejected
                    .push(Fault::new(pointer + "/id", message));
            }
            Ok(ManifestResult::Accepted(accepted)) => discovered.accepted.push(*accepted),
            Ok(ManifestResult::Incompatible(found)) if discovered.has(&found.id) => {
                let message = "is listed twice by this endpoint";
                discovered
                    .rejected
                    .push(Fault::new(pointer + "/id", message));
            }
            Ok(ManifestResult::Incompatible(incompatible)) => {
                discovered.incompatible.push(incompatible);
            }
            Err(fault) => discovered.rejected.push(fault.under(&pointer)),
        }
    }
    discovered
}

impl Discovered {
    /// Returns the JSON pointer of a runner in the endpoint's answer.
    pub fn pointer_of(&self, id: &RunnerId) -> String {
        let accepted = self
            .accepted
            .iter()
            .map(|found| (found.index, &found.manifest.id));
        let incompatible = self
            .incompatible
            .iter()
            .map(|found| (found.index, &found.id));
        let mut all = accepted.chain(incompatible);
        let index = all
            .find(|(_, listed)| *listed == id)
            .map_or(0, |(index, _)| index);
        format!("/runners/{index}/id")
    }

    fn has(&self, id: &RunnerId) -> bool {
        let accepted = self.accepted.iter().map(|found| &found.manifest.id);
        let incompatible = self.incompatible.iter().map(|found| &found.id);
        accepted.chain(incompatible).any(|listed| listed == id)
    }
}

enum ManifestResult {
    Accepted(Box<AcceptedManifest>),
    Incompatible(IncompatibleManifest),
}

fn validate_manifest(index: usize, raw: &Value) -> Result<ManifestResult, Fault> {
    let object = raw
        .as_object()
        .ok_or_else(|| Fault::new("", "must be an object"))?;
    // The id comes first: another major version may change all other fields.
    let written = required_text(object, "id")?;
    let id: RunnerId = written
        .parse()
        .map_err(|error: protocol::id::InvalidRunnerId| Fault::new("/id", error.to_string()))?;
    let version = protocol_version(object)?;
    // Minor versions are compatible: newer fields are ignored with a warning.
    if version.split('.').next() != Some(PROTOCOL_VERSION) {
        let version = shown(&version);
        let reason = format!("speaks protocol {version}; this gateway speaks {PROTOCOL_VERSION}");
        return Ok(ManifestResult::Incompatible(IncompatibleManifest {
            index,
            id,
            reason,
            // The raw manifest is stored, so that a newer gateway can read it.
            raw: raw.clone(),
        }));
    }
    let last_part = written.rsplit('/').next().unwrap_or_default();
    if required_text(object, "name")? != last_part {
        return Err(Fault::new("/name", "must be the last part of the id"));
    }
    // Differs from the written name for the short form of an id.
    let name = id.runner_name().to_owned();
    let label = object
        .get("label")
        .ok_or_else(|| Fault::new("/label", "is required"))?;
    // Warnings, not errors: a peer may be newer than this gateway.
    let mut warnings = unknown_fields(object);
    let capabilities = capabilities(object.get("capabilities"), &mut warnings)?;
    let permissions = permissions(object.get("permissions"), &mut warnings)?;
    let manifest = AgentRunnerManifest {
        name,
        label: typed(label, "/label", "must be an object of texts by language")?,
        component_kind: optional(object, "component_kind", "must be a text")?,
        usages: usages(object, &mut warnings)?,
        supported_event_patterns: optional(
            object,
            "supported_event_patterns",
            "must be a list of texts",
        )?
        .unwrap_or_else(every_event),
        protocol_version: version,
        description: optional(
            object,
            "description",
            "must be an object of texts by language",
        )?,
        capabilities,
        permissions,
        context: context_policy(object.get("context"), &mut warnings)?,
        config_schema: config_schema(object.get("config_schema"))?,
        resume_within_seconds: resume_within(object)?,
        metadata: optional(object, "metadata", "must be an object")?.unwrap_or_default(),
        id,
    };
    warnings.extend(flags::display_only(object, &manifest));
    // A manifest with thousands of unknown fields must not fill the discovery result.
    if warnings.len() > MAX_WARNINGS {
        let more = warnings.len() - MAX_WARNINGS;
        warnings.truncate(MAX_WARNINGS);
        let message = format!("{more} more places were ignored or dropped");
        warnings.push(Fault::new("", message));
    }
    Ok(ManifestResult::Accepted(Box::new(AcceptedManifest {
        index,
        manifest,
        warnings,
    })))
}

fn resume_within(object: &Map<String, Value>) -> Result<Option<u32>, Fault> {
    let message = "must be an integer from 1 to 3600";
    let seconds: Option<u32> = optional(object, "resume_within_seconds", message)?;
    if seconds.is_some_and(|seconds| !(1..=MAX_RESUME_SECONDS).contains(&seconds)) {
        return Err(Fault::new("/resume_within_seconds", message));
    }
    Ok(seconds)
}

fn protocol_version(object: &Map<String, Value>) -> Result<String, Fault> {
    match object.get("protocol_version") {
        None | Some(Value::Null) => Ok(PROTOCOL_VERSION.to_owned()),
        Some(Value::String(version)) => Ok(version.clone()),
        Some(_) => {
            let message = "must be a text such as \"1\"";
            Err(Fault::new("/protocol_version", message))
        }
    }
}

/// A warning for each field that protocol 1 does not have.
fn unknown_fields(object: &Map<String, Value>) -> Vec<Fault> {
    let names = object.keys();
    let unknown = names.filter(|name| !FIELDS.contains(&name.as_str()));
    let warning = |name: &String| {
        // `shown` cuts and escapes the name: it comes from a peer and ends in logs.
        let at = format!("/{}", escape_pointer(&shown(name)));
        Fault::new(at, "ignored: not of protocol 1")
    };
    unknown.map(warning).collect()
}

fn required_text<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a str, Fault> {
    match object.get(name) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        Some(_) => Err(Fault::new(
            format!("/{name}"),
            "must be a text that is not empty",
        )),
        None => Err(Fault::new(format!("/{name}"), "is required")),
    }
}

fn typed<T: serde::de::DeserializeOwned>(
    value: &Value,
    at: &str,
    message: &str,
) -> Result<T, Fault> {
    // The message of serde would quote values of the peer.
    T::deserialize(value).map_err(|_| Fault::new(at, message))
}

fn optional<T: serde::de::DeserializeOwned>(
    object: &Map<String, Value>,
    name: &str,
    message: &str,
) -> Result<Option<T>, Fault> {
    match object.get(name) {
        // SDKs serialize unset fields as null.
        None | Some(Value::Null) => Ok(None),
        Some(value) => typed(value, &format!("/{name}"), message).map(Some),
    }
}

fn mapping<'a>(value: Option<&'a Value>, at: &str) -> Result<Vec<(&'a str, &'a Value)>, Fault> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Object(map)) => Ok(map.iter().map(|(k, v)| (k.as_str(), v)).collect()),
        Some(_) => Err(Fault::new(at, "must be an object")),
    }
}

fn usages(
    object: &Map<String, Value>,
    warnings: &mut Vec<Fault>,
) -> Result<Vec<RunnerUsage>, Fault> {
    let names: Option<Vec<String>> = optional(object, "usages", "must be a list of texts")?;
    let names = names.unwrap_or_default();
    Ok(supported_words(
        &names,
        &RunnerUsage::ALL,
        RunnerUsage::as_str,
        "/usages",
        warnings,
    ))
}

fn context_policy(
    value: Option<&Value>,
    warnings: &mut Vec<Fault>,
) -> Result<ContextPolicy, Fault> {
    const MEMBERS: [&str; 5] = [
        "supports_history_pull",
        "supports_history_search",
        "supports_artifact_pull",
        "owns_compaction",
        "wants_static_context_refs",
    ];
    for (name, _) in mapping(value, "/context")? {
        if !MEMBERS.contains(&name) {
            warnings.push(Fault::new(
                format!("/context/{}", escape_pointer(&shown(name))),
                "ignored: not of protocol 1",
            ));
        }
    }
    match value {
        None | Some(Value::Null) => Ok(ContextPolicy::default()),
        Some(value) => typed(
            value,
            "/context",
            "holds a known field that is not true or false",
        ),
    }
}

fn config_schema(value: Option<&Value>) -> Result<Vec<protocol::manifest::FormItem>, Fault> {
    let items = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(Fault::new("/config_schema", "must be a list of form items")),
    };
    let item = |(index, item)| {
        typed(
            item,
            &format!("/config_schema/{index}"),
            "must be a form item with type and name",
        )
    };
    items.iter().enumerate().map(item).collect()
}

#[cfg(test)]
mod tests {
    use protocol::manifest::{Capabilities, Permissions};
    use protocol::resources::ModelOperation;
    use serde_json::json;

    use super::words::{CAPABILITIES, PERMISSIONS};
    use super::*;

    fn manifest(changes: Value) -> Value {
        let mut body = json!({"id": "plugin:a/b/c", "name": "c", "label": {"en_US": "C"}});
        let Value::Object(changes) = changes else {
            panic!("an object")
        };
        for (key, value) in changes {
            if value == json!("-") {
                body.as_object_mut().unwrap().remove(&key);
            } else {
                body[key] = value;
            }
        }
        body
    }

    fn check_rejected(changes: Value, pointer: &str) {
        let found = validate_manifests(&[manifest(changes)]);
        let pointers: Vec<_> = found
            .rejected
            .iter()
            .map(|fault| fault.pointer.as_str())
            .collect();
        assert_eq!(pointers, [format!("/runners/0{pointer}")]);
        assert!(found.accepted.is_empty());
    }

    #[test]
    fn short_ids_become_default_runners() {
        let manifest = json!({"id": "acme/fast", "name": "fast", "label": {"en_US": "Fast"}});
        let found = validate_manifests(&[manifest]);
        let manifest = &found.accepted[0].manifest;
        assert_eq!(manifest.id.to_string(), "plugin:acme/fast/default");
        assert_eq!(manifest.name, "default");
    }

    #[test]
    fn reports_invalid_manifests_by_pointer() {
        check_rejected(json!({"id": "-"}), "/id");
        check_rejected(json!({"id": "plugin:a/b"}), "/id");
        check_rejected(json!({"name": "-"}), "/name");
        check_rejected(json!({"name": "x"}), "/name");
        check_rejected(json!({"label": "-"}), "/label");
        check_rejected(json!({"label": "C"}), "/label");
        check_rejected(json!({"capabilities": []}), "/capabilities");
        check_rejected(
            json!({"capabilities": {"streaming": "yes"}}),
            "/capabilities/streaming",
        );
        check_rejected(json!({"permissions": []}), "/permissions");
        check_rejected(
            json!({"permissions": {"tools": "call"}}),
            "/permissions/tools",
        );
        check_rejected(json!({"config_schema": {}}), "/config_schema");
        check_rejected(
            json!({"config_schema": [{"type": "text"}]}),
            "/config_schema/0",
        );
        check_rejected(json!({"protocol_version": 1}), "/protocol_version");
    }

    #[test]
    fn absent_manifest_fields_use_protocol_defaults() {
        let found = validate_manifests(&[manifest(json!({"component_kind": "Runner"}))]);
        let accepted = &found.accepted[0];
        assert_eq!(accepted.warnings, []);
        let stored = serde_json::to_value(&accepted.manifest).unwrap();
        assert_eq!(stored["protocol_version"], "1");
        let of = |part: &str, value: bool| {
            let flags = stored[part].as_object().unwrap().iter();
            let named = flags.filter(|(_, flag)| **flag == json!(value));
            let mut names: Vec<_> = named.map(|(name, _)| name.clone()).collect();
            names.sort();
            names
        };
        assert_eq!(
            of("capabilities", true),
            ["event_context", "self_managed_context"]
        );
        assert_eq!(of("capabilities", false).len(), 11);
        assert_eq!(of("context", false), ["supports_history_search"]);
        assert_eq!(of("context", true).len(), 4);
        let nothing = stored["permissions"].as_object().unwrap().values();
        assert!(
            nothing.clone().all(|granted| *granted == json!([])),
            "{stored}"
        );
        assert_eq!(
            (&stored["config_schema"], &stored["metadata"]),
            (&json!([]), &json!({}))
        );
    }

    #[test]
    fn warnings_are_bounded() {
        let flags: Map<_, _> = (0..500).map(|n| (format!("c{n}"), json!(true))).collect();
        let found = validate_manifests(&[manifest(json!({"capabilities": flags}))]);
        let warnings = &found.accepted[0].warnings;
        assert_eq!(warnings.len(), MAX_WARNINGS + 1);
        assert_eq!(
            warnings[MAX_WARNINGS].message,
            "450 more places were ignored or dropped"
        );
    }

    #[test]
    fn accepts_manifests_next_to_invalid_ones() {
        let list = [
            json!(7),
            manifest(json!({})),
            manifest(json!({"protocol_version": "2", "id": "plugin:a/b/d"})),
        ];
        let found = validate_manifests(&list);
        assert_eq!(
            found.rejected,
            [Fault::new("/runners/0", "must be an object")]
        );
        assert_eq!(found.accepted.len(), 1);
        assert_eq!(
            found.incompatible[0].reason,
            "speaks protocol 2; this gateway speaks 1"
        );
    }

    #[test]
    fn drops_unknown_permissions_with_warning() {
        let found = validate_manifests(&[manifest(json!({
            "capabilities": {"flying": true}, "permissions": {"models": ["invoke", "own"], "moon": ["x"]},
            "context": {"ownership": "hybrid"}, "plugin_version": "7", "a/b": 1,
        }))]);
        let accepted = &found.accepted[0];
        let mut pointers: Vec<_> = accepted
            .warnings
            .iter()
            .map(|w| w.pointer.as_str())
            .collect();
        pointers.sort_unstable();
        assert_eq!(
            pointers,
            [
                "/a~1b",
                "/capabilities/flying",
                "/context/ownership",
                "/permissions/models/1",
                "/permissions/moon",
                "/plugin_version"
            ]
        );
        assert_eq!(
            accepted.manifest.permissions.models,
            [ModelOperation::Invoke]
        );
    }

    #[test]
    fn suggests_protocol_words_for_mistyped_ones() {
        let found = validate_manifests(&[manifest(json!({
            "permissions": {"models": ["streem", "moon"], "knowledge_base": ["retrieve"], "state": ["conversations"]},
            "capabilities": {"stream": true}, "plugin_version": "7",
        }))]);
        let mut messages: Vec<_> = mistyped_words(&found.accepted[0].warnings)
            .map(|fault| format!("{} {}", fault.pointer, fault.message))
            .collect();
        messages.sort_unstable();
        assert_eq!(
            messages,
            [
                "/capabilities/stream unknown capability \"stream\", ignored; did you mean streaming?",
                "/permissions/knowledge_base unknown permission \"knowledge_base\", dropped; \
                 did you mean knowledge_bases?",
                "/permissions/models/0 unknown name \"streem\", dropped; did you mean stream?",
                "/permissions/models/1 unknown name \"moon\", dropped; known are invoke, stream, rerank, count_tokens",
                "/permissions/state/0 unknown name \"conversations\", dropped; did you mean conversation?",
            ]
        );
    }

    #[test]
    fn suggestions_know_each_word_of_the_protocol() {
        let all = |names: &[&str], value: Value| -> Value {
            names.iter().map(|name| (*name, value.clone())).collect()
        };
        let found = validate_manifests(&[manifest(json!({
            "capabilities": all(&CAPABILITIES, json!(true)), "permissions": all(&PERMISSIONS, json!([])),
        }))]);
        let unknown = mistyped_words(&found.accepted[0].warnings).count();
        assert_eq!(unknown, 0, "{:?}", found.accepted[0].warnings);
        for (words, listed) in [
            (json!(Capabilities::default()), &CAPABILITIES[..]),
            (json!(Permissions::default()), &PERMISSIONS),
        ] {
            let mut words = words.as_object().unwrap().keys();
            assert!(words.all(|word| listed.contains(&word.as_str())));
        }
    }

    #[test]
    fn limits_manifest_text_in_reasons() {
        let version = format!("9\u{1b}[31m{}", "9".repeat(3_000_000));
        let found = validate_manifests(&[manifest(json!({"protocol_version": version}))]);
        let reason = &found.incompatible[0].reason;
        assert!(
            reason.starts_with("speaks protocol 9\\u{1b}[31m999"),
            "{reason:.60}"
        );
        assert!(reason.chars().count() < 300, "{}", reason.len());
        let long = "n".repeat(3_000_000);
        let found = validate_manifests(&[manifest(
            json!({(long.clone()): 1, "capabilities": {(long): true}}),
        )]);
        for warning in &found.accepted[0].warnings {
            assert!(warning.pointer.len() < 300, "{}", warning.pointer.len());
        }
    }

    #[test]
    fn resume_window_is_bounded_and_needs_the_capability() {
        for wrong in [json!(0), json!(3601), json!(-1), json!("60"), json!(1.5)] {
            let changes = json!({"resume_within_seconds": wrong});
            check_rejected(changes, "/resume_within_seconds");
        }
        let window = |changes| {
            let found = validate_manifests(&[manifest(changes)]);
            assert_eq!(found.accepted[0].warnings, []);
            resume_window(&found.accepted[0].manifest).map(|window| window.as_secs())
        };
        let resumable = json!({"resumable": true});
        assert_eq!(window(json!({"capabilities": resumable})), Some(120));
        let changes = json!({"capabilities": resumable, "resume_within_seconds": 3600});
        assert_eq!(window(changes), Some(3600));
        assert_eq!(window(json!({"resume_within_seconds": 5})), None);
    }
}
