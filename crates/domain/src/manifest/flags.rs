//! Flags of a manifest that grant nothing: a warning for each that disagrees with the manifest's permissions.

use protocol::admin::Fault;
use protocol::manifest::AgentRunnerManifest;
use protocol::resources::HistoryOperation;
use serde_json::{Map, Value};

/// Returns a warning for each stated flag whose value has no effect although it suggests one.
pub(super) fn display_only(
    stated: &Map<String, Value>,
    manifest: &AgentRunnerManifest,
) -> Vec<Fault> {
    // An absent flag gets a default, for which the runner's author needs no warning.
    let is_stated = |fault: &Fault| {
        let mut path = fault.pointer.split('/').skip(1);
        let part = path.next().and_then(|part| stated.get(part));
        path.next()
            .is_some_and(|name| part.is_some_and(|part| part.get(name).is_some()))
    };
    let AgentRunnerManifest {
        capabilities,
        permissions,
        context,
        ..
    } = manifest;
    let history = |operation| permissions.history.contains(&operation);
    // A permission for storage also grants state; see the layer `state`.
    let state = !permissions.state.is_empty() || !permissions.storage.is_empty();
    [
        permission(
            "/capabilities/tool_calling",
            capabilities.tool_calling,
            "tools",
            !permissions.tools.is_empty(),
        ),
        permission(
            "/capabilities/knowledge_retrieval",
            capabilities.knowledge_retrieval,
            "knowledge_bases",
            !permissions.knowledge_bases.is_empty(),
        ),
        missing(
            "/capabilities/stateful_session",
            capabilities.stateful_session,
            "state",
            state,
        ),
        missing(
            "/capabilities/platform_api",
            capabilities.platform_api,
            "platform_api",
            !permissions.platform_api.is_empty(),
        ),
        surplus(
            "/context/supports_history_pull",
            context.supports_history_pull,
            "history",
            history(HistoryOperation::Page),
        ),
        permission(
            "/context/supports_history_search",
            context.supports_history_search,
            "history",
            history(HistoryOperation::Search),
        ),
        surplus(
            "/context/supports_artifact_pull",
            context.supports_artifact_pull,
            "artifacts",
            !permissions.artifacts.is_empty(),
        ),
        unserved(
            "/context/owns_compaction",
            !context.owns_compaction,
            "the gateway compacts nothing",
        ),
    ]
    .into_iter()
    .flatten()
    .filter(is_stated)
    .collect()
}

/// A flag of a permission, whose name and presence are given.
fn permission(pointer: &str, flag: bool, name: &str, requested: bool) -> Option<Fault> {
    missing(pointer, flag, name, requested).or_else(|| surplus(pointer, flag, name, requested))
}

fn missing(pointer: &str, flag: bool, name: &str, requested: bool) -> Option<Fault> {
    (flag && !requested).then(|| {
        let message = format!("is display only, and permissions.{name} does not request it");
        Fault::new(pointer, message)
    })
}

fn surplus(pointer: &str, flag: bool, name: &str, requested: bool) -> Option<Fault> {
    (!flag && requested).then(|| {
        let message = format!("is display only, and permissions.{name} requests it all the same");
        Fault::new(pointer, message)
    })
}

fn unserved(pointer: &str, is_stated: bool, why: &str) -> Option<Fault> {
    is_stated.then(|| Fault::new(pointer, format!("is display only: {why}")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::validate_manifests;

    fn check(changes: &Value, expected: &[&str]) {
        let mut body = json!({"id": "plugin:a/b/c", "name": "c", "label": {"en_US": "C"}});
        body.as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        let found = validate_manifests(&[body]);
        let warnings = found.accepted[0].warnings.iter();
        let pointers: Vec<_> = warnings.map(|one| one.pointer.as_str()).collect();
        assert_eq!(pointers, expected, "{changes}");
    }

    #[test]
    fn warns_of_flags_without_effect() {
        check(&json!({}), &[]);
        let both =
            json!({"capabilities": {"tool_calling": true}, "permissions": {"tools": ["call"]}});
        check(&both, &[]);
        let tools = json!({"permissions": {"tools": ["call"]}});
        check(&tools, &[]);
        let mut denied = tools.clone();
        denied["capabilities"] = json!({"tool_calling": false});
        check(&denied, &["/capabilities/tool_calling"]);
        let bases =
            json!({"capabilities": {"knowledge_retrieval": true, "stateful_session": true}});
        let expected = [
            "/capabilities/knowledge_retrieval",
            "/capabilities/stateful_session",
        ];
        check(&bases, &expected);
        let stated = json!({"capabilities": {"platform_api": true, "event_context": false},
            "context": {"owns_compaction": false}});
        check(
            &stated,
            &["/capabilities/platform_api", "/context/owns_compaction"],
        );
        let pulls = json!({
            "permissions": {"history": ["page", "search"], "artifacts": ["read"]},
            "context": {"supports_history_pull": false, "supports_history_search": false,
                "supports_artifact_pull": false},
        });
        check(
            &pulls,
            &[
                "/context/supports_history_pull",
                "/context/supports_history_search",
                "/context/supports_artifact_pull",
            ],
        );
        // `wants_static_context_refs` has an effect.
        check(
            &json!({"context": {"wants_static_context_refs": false}}),
            &[],
        );
    }
}
