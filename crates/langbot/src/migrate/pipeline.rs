//! Plans one pipeline: its selected runner and the runner's settings.

use protocol::JsonObject;
use protocol::id::RunnerId;
use serde_json::Value;

use super::connectors;
use super::convert::decoded;
use super::draft::SettingsDraft;
use super::families::{Family, FamilyField, FieldKind, OWN_LOCAL_AGENT};
use super::policy::{HOST_OWNED, resource_policy};
use super::report::{FieldAction, FieldNote, MigrationOutcome, member};
use super::secrets::{Removed, SecretVariables};
use super::server::RunnerServer;
use super::source::FoundPipeline;
use super::target::{LocalAgentTarget, MigrationTarget, RunnerIds};
use super::warnings::warn;

/// Maximum bytes of an agent's configuration, as JSON.
const CONFIG_BYTES: usize = 256 * 1024;

/// Plan of a pipeline.
#[derive(Debug)]
pub(super) struct PipelinePlan {
    pub(super) outcome: MigrationOutcome,
    pub(super) message: Option<String>,
    pub(super) runner_id: Option<String>,
    pub(super) family: Option<&'static Family>,
    /// Settings in output order.
    pub(super) config: Vec<(String, Value)>,
    pub(super) policy: JsonObject,
    /// Seconds after which an idle conversation begins anew.
    pub(super) idle_seconds: Option<u64>,
    pub(super) notes: Vec<FieldNote>,
    /// True if its deltas contain the complete text so far.
    pub(super) snapshots: bool,
    pub(super) server: RunnerServer,
}

impl PipelinePlan {
    /// Returns the model ids that its settings use for ranking.
    pub(super) fn rerank_models(&self) -> impl Iterator<Item = String> {
        let named = self
            .config
            .iter()
            .filter(|(name, _)| name == "rerank-model");
        named.filter_map(|(_, id)| id.as_str().map(str::to_owned))
    }
}

/// A pipeline with its plan.
pub(super) struct PlannedPipeline<'a> {
    pub(super) file: &'a str,
    pub(super) pipeline: &'a FoundPipeline,
    /// Name of its agent.
    pub(super) name: String,
    pub(super) plan: PipelinePlan,
    pub(super) removed: Vec<Removed>,
}

/// The selected runner of a pipeline, with its settings.
struct SelectedRunner {
    runner_id: String,
    family: Option<&'static Family>,
    section: JsonObject,
    /// Pointer of the settings.
    at: String,
}

/// Plans one pipeline.
pub(super) fn plan_pipeline(
    found: &FoundPipeline,
    to: MigrationTarget<'_>,
    vault: &mut SecretVariables<'_>,
) -> PipelinePlan {
    if let Some(fault) = &found.unreadable {
        return blocked(&fault.pointer, &fault.message);
    }
    let (ai, at) = match found.config.get("ai") {
        Some(Value::Object(ai)) => (ai, member(&found.at, "ai")),
        Some(_) => return blocked(&member(&found.at, "ai"), "must be an object"),
        // An agent has its settings without `ai`.
        None => (&found.config, found.at.clone()),
    };
    let mut draft = SettingsDraft {
        vault,
        config: Vec::new(),
        notes: Vec::new(),
        unknown: &[],
        server: RunnerServer::Unknown,
        newer_values: &[],
    };
    let selected = match draft.select(ai, &at, to) {
        Ok(selected) => selected,
        Err(plan) => return *plan,
    };
    let SelectedRunner {
        runner_id,
        family,
        section,
        at: section_at,
    } = selected;
    draft.other_sections(found, ai, &at, family, &section_at);
    let idle_seconds = draft.idle_seconds(ai, &at);
    let policy = resource_policy(found, family, &section, &section_at, &mut draft);
    warn(family, &section, &section_at, &mut draft);
    let SettingsDraft {
        config,
        notes,
        server,
        ..
    } = draft;
    let missing = notes.iter().any(|note| note.action == FieldAction::Missing);
    let sizes = config.iter().map(|(_, value)| value.to_string().len());
    let message = match (missing, sizes.sum::<usize>() > CONFIG_BYTES) {
        (true, _) => Some("something is missing that cannot be invented".to_owned()),
        (_, true) => Some("its settings are larger than 256 KiB".to_owned()),
        _ => None,
    };
    PipelinePlan {
        outcome: message
            .as_ref()
            .map_or(MigrationOutcome::Migrated, |_| MigrationOutcome::Blocked),
        message,
        runner_id: Some(runner_id),
        family,
        config,
        policy,
        idle_seconds,
        notes,
        snapshots: family.is_some_and(|family| family.snapshots),
        server,
    }
}

fn blocked(pointer: &str, message: &str) -> PipelinePlan {
    PipelinePlan {
        outcome: MigrationOutcome::Blocked,
        message: Some(format!("{pointer} {message}")),
        runner_id: None,
        family: None,
        config: Vec::new(),
        policy: JsonObject::new(),
        idle_seconds: None,
        notes: Vec::new(),
        snapshots: false,
        server: RunnerServer::Unknown,
    }
}

/// Returns an optional member that must be an object, because it may contain a restriction.
fn object_at<'a>(
    object: &'a JsonObject,
    name: &str,
    pointer: &str,
) -> Result<Option<&'a JsonObject>, Box<PipelinePlan>> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(inner)) => Ok(Some(inner)),
        Some(_) => Err(Box::new(blocked(pointer, "must be an object"))),
    }
}

impl SettingsDraft<'_, '_> {
    /// Finds the selected runner and its settings. A plugin's id takes precedence over a built-in runner's name.
    fn select(
        &mut self,
        ai: &JsonObject,
        at: &str,
        to: MigrationTarget<'_>,
    ) -> Result<SelectedRunner, Box<PipelinePlan>> {
        let runner_at = member(at, "runner");
        let text = |name: &str| {
            let text = ai.get("runner")?.get(name)?.as_str()?.trim();
            (!text.is_empty()).then(|| text.to_owned())
        };
        if ai
            .get("runner")
            .is_some_and(|runner| !runner.is_null() && !runner.is_object())
        {
            return Err(Box::new(blocked(&runner_at, "must be an object")));
        }
        let (id, runner) = (text("id"), text("runner"));
        // A pipeline without a runner only forwards messages; there is nothing to migrate.
        if id.is_none() && runner.is_none() {
            return Err(Box::new(PipelinePlan {
                outcome: MigrationOutcome::Nothing,
                message: Some("it selects no runner".to_owned()),
                ..blocked(&runner_at, "")
            }));
        }
        if let Some(id) = id.as_ref().filter(|id| id.parse::<RunnerId>().is_ok()) {
            let family = Family::of_id(id);
            // Runnel's Local Agent stays unchanged.
            let to = MigrationTarget {
                local_agent: if id == OWN_LOCAL_AGENT {
                    LocalAgentTarget::Runnel
                } else {
                    to.local_agent
                },
                ..to
            };
            let runner_id = family.map_or_else(|| id.clone(), |family| family.runner_id(to));
            self.set_server(family, to);
            let (section, section_at) = self.current(ai, at, id, family)?;
            let settled = if runner_id == *id {
                FieldAction::Kept
            } else {
                FieldAction::Renamed
            };
            self.note(settled, member(&runner_at, "id")).target = Some("runner_id".to_owned());
            return Ok(SelectedRunner {
                runner_id,
                family,
                section,
                at: section_at,
            });
        }
        let legacy_runner = [("runner", runner), ("id", id)]
            .into_iter()
            .find_map(|(key, name)| Some((key, Family::of_legacy(&name?)?)));
        let Some((key, family)) = legacy_runner else {
            let message = "is a custom runner without a successor plugin: serve it as a runner, \
                and select its id here";
            return Err(Box::new(blocked(&runner_at, message)));
        };
        let section_at = member(at, family.legacy);
        let Some(Value::Object(section)) = ai.get(family.legacy) else {
            let message = "must be an object: the settings of the selected runner";
            return Err(Box::new(blocked(&section_at, message)));
        };
        self.set_server(Some(family), to);
        self.legacy(family, section, &section_at);
        self.note(FieldAction::Renamed, member(&runner_at, key))
            .target = Some("runner_id".to_owned());
        Ok(SelectedRunner {
            runner_id: family.runner_id(to),
            family: Some(family),
            section: section.clone(),
            at: section_at,
        })
    }

    /// Sets the server of the runner and its unsupported settings.
    // An id that is no runner id is a custom runner; its name is checked next.
    fn set_server(&mut self, family: Option<&'static Family>, to: MigrationTarget<'_>) {
        self.server = RunnerServer::of(family, to);
        self.vault.space = self.server.variables();
        let Some(family) = family else { return };
        self.unknown = family.unknown(to);
        if to.ids == RunnerIds::Older || self.server == RunnerServer::Connectors {
            self.newer_values = family.newer_values;
        }
    }

    /// Takes the settings of a plugin's runner unchanged, without their secrets.
    fn current(
        &mut self,
        ai: &JsonObject,
        at: &str,
        id: &str,
        family: Option<&'static Family>,
    ) -> Result<(JsonObject, String), Box<PipelinePlan>> {
        let configs_at = member(at, "runner_config");
        let section_at = member(&configs_at, id);
        let configs = object_at(ai, "runner_config", &configs_at)?;
        let section = match configs {
            Some(configs) => object_at(configs, id, &section_at)?,
            None => None,
        };
        let Some(section) = section.cloned() else {
            self.note(FieldAction::Defaulted, section_at.clone()).why =
                Some("is absent: the runner's own defaults apply".to_owned());
            return Ok((JsonObject::new(), section_at));
        };
        for (name, value) in &section {
            let pointer = member(&section_at, name);
            if self.server == RunnerServer::Connectors && name == connectors::ASSETS {
                self.assets(&section, pointer);
                continue;
            }
            // The plural wins if a section has both.
            let singular = name == "knowledge-base" && !section.contains_key("knowledge-bases");
            if value.is_null() {
                self.note(FieldAction::Dropped, pointer).why = Some("is empty".to_owned());
            } else if singular {
                if self.set("knowledge-bases", FieldKind::Names, value, pointer.clone()) != Ok(true)
                {
                    self.note(FieldAction::Dropped, pointer).why = Some("names none".to_owned());
                }
            } else if !HOST_OWNED.contains(&name.as_str()) {
                let fields = family.map_or(&[][..], |family| family.fields);
                let is_secret = |field: &&FamilyField| {
                    field.kind == FieldKind::Secret && field.to == name.as_str()
                };
                let kind = fields.iter().find(is_secret).map(|field| field.kind);
                let is_held = |field: &FamilyField| {
                    field.to == name.as_str()
                        && matches!(field.kind, FieldKind::Model | FieldKind::Names)
                };
                let held = fields.iter().any(is_held).then(|| decoded(value)).flatten();
                let how = held.is_some().then_some("read from a text of JSON");
                let value = held.unwrap_or_else(|| value.clone());
                self.keep(name, kind, value, pointer, how);
            }
        }
        Ok((section, section_at))
    }
}
