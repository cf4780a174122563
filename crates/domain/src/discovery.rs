//! Discovery diff: added, changed and removed runners, and the affected agents.

use std::collections::{BTreeMap, BTreeSet};

use protocol::admin::{AcceptedRunner, AgentSpec, Fault, IncompatibleRunner};
use protocol::discovery::{
    AffectedAgent, ChangedField, ChangedRunner, DiscoveryDiff, RunnerConflict,
};
use protocol::id::{AgentId, RunnerId};
use protocol::manifest::AgentRunnerManifest;
use serde_json::Value;

use crate::agent::check_agent_for;
use crate::form::escape_pointer;
use crate::manifest::{AcceptedManifest, Discovered};

/// Maximum changed fields listed for one manifest.
pub const MAX_CHANGED_FIELDS: usize = 200;

/// A runner that the endpoint serves before the discovery.
#[derive(Clone, Debug)]
pub struct RegisteredRunner {
    pub id: RunnerId,
    /// True if agents can bind it.
    pub bindable: bool,
    /// True if the last discovery listed it.
    pub listed: bool,
    pub manifest: Value,
}

/// State before a discovery.
#[derive(Clone, Debug, Default)]
pub struct RegisteredState {
    pub registered: Vec<RegisteredRunner>,
    /// Runners of the new list that other endpoints serve, with the endpoint names.
    pub elsewhere: BTreeMap<RunnerId, String>,
    /// Name of the endpoint whose runners may be taken over.
    pub replaces: Option<String>,
}

impl RegisteredState {
    fn is_replaced(&self, holder: &str) -> bool {
        self.replaces.as_deref() == Some(holder)
    }

    /// Returns true for a runner that stays at another endpoint.
    fn stays_elsewhere(&self, id: &RunnerId) -> bool {
        let holder = self.elsewhere.get(id);
        holder.is_some_and(|holder| !self.is_replaced(holder))
    }
}

/// Compares the discovered runners with the known runners. [`affected_agents`] computes the agents of the diff.
pub fn compare(before: &RegisteredState, found: &Discovered) -> DiscoveryDiff {
    let mut diff = DiscoveryDiff {
        rejected: found.rejected.clone(),
        ..DiscoveryDiff::default()
    };
    for accepted in &found.accepted {
        compare_runner(before, accepted, &mut diff);
    }
    for one in found
        .incompatible
        .iter()
        .filter(|one| !before.stays_elsewhere(&one.id))
    {
        // An incompatible runner of another endpoint does not affect agents here.
        diff.incompatible.push(IncompatibleRunner {
            id: one.id.clone(),
            reason: one.reason.clone(),
        });
    }
    // Incompatible runners are still listed: they are reported as incompatible, not as removed.
    let still_there: BTreeSet<_> = found
        .accepted
        .iter()
        .map(|one| &one.manifest.id)
        .chain(found.incompatible.iter().map(|one| &one.id))
        .collect();
    // A runner that the last discovery did not list was reported as removed before.
    let gone = |one: &&RegisteredRunner| one.listed && !still_there.contains(&one.id);
    diff.removed = before
        .registered
        .iter()
        .filter(gone)
        .map(|one| one.id.clone())
        .collect();
    diff.conflicts = before
        .elsewhere
        .iter()
        .map(|(id, holder)| RunnerConflict {
            runner_id: id.clone(),
            endpoint: holder.clone(),
            replaced: before.is_replaced(holder),
        })
        .collect();
    diff
}

fn compare_runner(before: &RegisteredState, accepted: &AcceptedManifest, diff: &mut DiscoveryDiff) {
    let id = &accepted.manifest.id;
    if before.stays_elsewhere(id) {
        return;
    }
    // Agents cannot bind it now, so its return is an addition.
    let before_runner = before
        .registered
        .iter()
        .find(|one| one.id == *id && one.bindable);
    let Some(before_runner) = before_runner else {
        diff.added.push(AcceptedRunner {
            id: id.clone(),
            warnings: accepted.warnings.clone(),
        });
        return;
    };
    let new = serde_json::to_value(&accepted.manifest).unwrap_or_default();
    let mut fields = changed_fields(&before_runner.manifest, &new);
    if fields.is_empty() {
        diff.unchanged.push(id.clone());
        return;
    }
    // Count before truncation: the diff reports the number of fields that it leaves out.
    let more_fields = fields.len().saturating_sub(MAX_CHANGED_FIELDS) as u64;
    fields.truncate(MAX_CHANGED_FIELDS);
    diff.changed.push(ChangedRunner {
        id: id.clone(),
        fields,
        more_fields,
        warnings: accepted.warnings.clone(),
    });
}

/// Returns the affected agents among the agents that bind runners of the diff.
pub fn affected_agents<'a>(
    diff: &DiscoveryDiff,
    found: &Discovered,
    agents: impl IntoIterator<Item = (AgentId, &'a AgentSpec)>,
) -> Vec<AffectedAgent> {
    let affected = agents.into_iter().filter_map(|(id, spec)| {
        let manifest = found
            .accepted
            .iter()
            .map(|one| &one.manifest)
            .find(|manifest| manifest.id == spec.runner_id);
        let (effect, faults) = match (effect_on(diff, &spec.runner_id)?, manifest) {
            // A removed or incompatible runner has no form to check against.
            (effect @ ("runner_removed" | "runner_incompatible"), _) | (effect, None) => {
                (effect, Vec::new())
            }
            (effect, Some(manifest)) => {
                let faults = check_agent_for(spec, manifest);
                let effect = if faults.is_empty() {
                    effect
                } else {
                    "config_invalid"
                };
                (effect, faults)
            }
        };
        Some(AffectedAgent {
            id,
            name: spec.name.clone(),
            enabled: spec.enabled,
            runner_id: spec.runner_id.clone(),
            effect: effect.to_owned(),
            faults: Fault::first(&faults),
        })
    });
    affected.collect()
}

fn effect_on(diff: &DiscoveryDiff, runner: &RunnerId) -> Option<&'static str> {
    let replaced = |one: &RunnerConflict| one.replaced && one.runner_id == *runner;
    // The strongest effect first: a runner may be in several lists.
    if diff.removed.contains(runner) {
        Some("runner_removed")
    } else if diff.incompatible.iter().any(|one| one.id == *runner) {
        Some("runner_incompatible")
    } else if diff.conflicts.iter().any(replaced) {
        Some("runner_replaced")
    } else if diff.changed.iter().any(|one| one.id == *runner) {
        Some("runner_changed")
    } else if diff.added.iter().any(|one| one.id == *runner) {
        Some("runner_added")
    } else {
        None
    }
}

/// Returns the runners whose agents may be affected.
pub fn affected_runners(diff: &DiscoveryDiff) -> Vec<RunnerId> {
    let conflicts = diff.conflicts.iter().filter(|one| one.replaced);
    // A set: a replaced runner is also in `added` or `changed`.
    let touched: BTreeSet<_> = diff
        .removed
        .iter()
        .chain(diff.incompatible.iter().map(|one| &one.id))
        .chain(diff.changed.iter().map(|one| &one.id))
        .chain(diff.added.iter().map(|one| &one.id))
        .chain(conflicts.map(|one| &one.runner_id))
        .collect();
    touched.into_iter().cloned().collect()
}

/// Returns the differences of two documents in document order. Lists of different length differ as one value.
pub fn changed_fields(old: &Value, new: &Value) -> Vec<ChangedField> {
    let mut fields = Vec::new();
    walk(String::new(), Some(old), Some(new), &mut fields);
    fields
}

fn walk(pointer: String, old: Option<&Value>, new: Option<&Value>, fields: &mut Vec<ChangedField>) {
    match (old, new) {
        (Some(old), Some(new)) if old == new => {}
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
            for key in keys {
                let pointer = format!("{pointer}/{}", escape_pointer(key));
                walk(pointer, old.get(key), new.get(key), fields);
            }
        }
        // Equal lengths compare by index; otherwise one insertion would report each later item as changed.
        (Some(Value::Array(old)), Some(Value::Array(new))) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                walk(format!("{pointer}/{index}"), Some(old), Some(new), fields);
            }
        }
        (old, new) => fields.push(ChangedField {
            pointer,
            old: old.cloned(),
            new: new.cloned(),
        }),
    }
}

/// Parses a stored manifest for the comparison.
pub fn manifest_value(stored: &str) -> Value {
    // A manifest stored by an earlier version lacks newer fields. Reading and writing adds their defaults.
    let manifest = serde_json::from_str::<AgentRunnerManifest>(stored);
    let value = manifest.and_then(|manifest| serde_json::to_value(&manifest));
    value
        .or_else(|_| serde_json::from_str(stored))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::manifest::validate_manifests;

    fn id(name: &str) -> RunnerId {
        format!("plugin:a/b/{name}").parse().unwrap()
    }

    fn manifest(name: &str, changes: &Value) -> Value {
        let mut body = json!({"id": id(name), "name": name, "label": {"en_US": "L"}});
        body.as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        body
    }

    fn registered(name: &str, changes: &Value) -> RegisteredRunner {
        RegisteredRunner {
            id: id(name),
            bindable: true,
            listed: true,
            manifest: manifest_value(&manifest(name, changes).to_string()),
        }
    }

    fn agent(name: &str, runner: &str, config: &Value) -> AgentSpec {
        serde_json::from_value(json!({
            "name": name, "event_types": ["*"], "runner_id": id(runner), "config": config,
        }))
        .unwrap()
    }

    #[test]
    fn lists_changed_fields_with_old_and_new_values() {
        let check = |old: Value, new: Value, expected: Value| {
            let found = serde_json::to_value(changed_fields(&old, &new)).unwrap();
            assert_eq!(found, expected, "{old} {new}");
        };
        check(
            json!({"a": [1, {"b": 2}]}),
            json!({"a": [1, {"b": 2}]}),
            json!([]),
        );
        check(
            json!({"a": {"x/y": 1, "same": 0}, "gone": true}),
            json!({"a": {"x/y": 2, "same": 0}, "come": null}),
            json!([
                {"pointer": "/a/x~1y", "old": 1, "new": 2},
                {"pointer": "/come", "new": null},
                {"pointer": "/gone", "old": true},
            ]),
        );
        check(
            json!({"a": [1, 2], "b": [1]}),
            json!({"a": [1, 3], "b": [1, 2]}),
            json!([
                {"pointer": "/a/1", "old": 2, "new": 3},
                {"pointer": "/b", "old": [1], "new": [1, 2]},
            ]),
        );
    }

    #[test]
    fn diffs_added_changed_unchanged_and_removed_runners() {
        let found = validate_manifests(&[
            manifest("new", &json!({})),
            manifest("same", &json!({})),
            manifest("other", &json!({"capabilities": {"steering": true}})),
            manifest("back", &json!({})),
            manifest("newer", &json!({"protocol_version": "2"})),
            json!({"id": id("faulty"), "name": "faulty"}),
        ]);
        let back = RegisteredRunner {
            bindable: false,
            listed: false,
            ..registered("back", &json!({}))
        };
        let long_gone = RegisteredRunner {
            listed: false,
            ..registered("long-gone", &json!({}))
        };
        let before = RegisteredState {
            registered: vec![
                registered("same", &json!({})),
                registered("other", &json!({})),
                registered("gone", &json!({})),
                registered("newer", &json!({})),
                registered("faulty", &json!({})),
                back,
                long_gone,
            ],
            ..RegisteredState::default()
        };
        let diff = compare(&before, &found);
        let added: Vec<_> = diff.added.iter().map(|one| one.id.clone()).collect();
        assert_eq!(added, [id("new"), id("back")]);
        assert_eq!(diff.unchanged, [id("same")]);
        assert_eq!(diff.removed, [id("gone"), id("faulty")]);
        assert_eq!(diff.incompatible[0].id, id("newer"));
        assert_eq!(diff.rejected[0].pointer, "/runners/5/label");
        let fields: Vec<_> = diff.changed[0]
            .fields
            .iter()
            .map(|one| one.pointer.as_str())
            .collect();
        assert_eq!(
            (&diff.changed[0].id, fields),
            (&id("other"), vec!["/capabilities/steering"])
        );
        assert_eq!(diff.conflicts, []);
    }

    #[test]
    fn runners_stay_at_other_endpoints_unless_replaced() {
        let found =
            validate_manifests(&[manifest("taken", &json!({})), manifest("free", &json!({}))]);
        let mut before = RegisteredState {
            elsewhere: BTreeMap::from([(id("taken"), "holder".to_owned())]),
            replaces: Some("another".to_owned()),
            ..RegisteredState::default()
        };
        let added = |diff: &DiscoveryDiff| diff.added.len();
        let diff = compare(&before, &found);
        assert_eq!((added(&diff), diff.conflicts[0].replaced), (1, false));
        before.replaces = Some("holder".to_owned());
        let diff = compare(&before, &found);
        assert_eq!((added(&diff), diff.conflicts[0].replaced), (2, true));
        let bound = agent("a", "taken", &json!({}));
        let affected = affected_agents(&diff, &found, [(AgentId(uuid::Uuid::nil()), &bound)]);
        assert_eq!(affected[0].effect, "runner_replaced");
    }

    #[test]
    fn reports_agents_of_removed_runners_and_invalid_configs() {
        let form = json!({"config_schema": [{"type": "string", "name": "tone", "required": true}]});
        let found = validate_manifests(&[
            manifest("formed", &form),
            manifest("same", &json!({})),
            manifest("newer", &json!({"protocol_version": "2"})),
        ]);
        let before = RegisteredState {
            registered: ["formed", "same", "newer", "gone"]
                .map(|name| registered(name, &json!({})))
                .into(),
            ..RegisteredState::default()
        };
        let diff = compare(&before, &found);
        let agents = [
            agent("fits", "formed", &json!({"tone": "dry"})),
            agent("lacks", "formed", &json!({})),
            agent("calm", "same", &json!({})),
            agent("old", "newer", &json!({})),
            agent("lost", "gone", &json!({})),
        ];
        let named = agents.iter().map(|spec| (AgentId(uuid::Uuid::nil()), spec));
        let affected = affected_agents(&diff, &found, named);
        let effects: Vec<_> = affected
            .iter()
            .map(|one| (one.name.as_str(), one.effect.as_str(), one.faults.len()))
            .collect();
        assert_eq!(
            effects,
            [
                ("fits", "runner_changed", 0),
                ("lacks", "config_invalid", 1),
                ("old", "runner_incompatible", 0),
                ("lost", "runner_removed", 0),
            ]
        );
        assert_eq!(affected[1].faults[0].pointer, "/config/tone");
        assert_eq!(
            affected_runners(&diff),
            [id("formed"), id("gone"), id("newer")]
        );
    }
}
