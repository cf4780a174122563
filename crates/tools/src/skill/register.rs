//! `register_skill`: a run stores a skill for later runs of its agent.

use std::collections::BTreeSet;

use async_trait::async_trait;
use domain::skill::{
    DESCRIPTION_CHARS, NAME_BYTES, NAME_PATTERN, PATH_BYTES, PATH_PATTERN, SKILL_BYTES,
    SKILL_FILES, check_skill,
};
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::resources::{EffectSource, ToolEffect, ToolOperation, ToolResource};
use protocol::skill::NewSkill;
use serde_json::{Value, json};

use egress::upstream::UpstreamError;

const NAME: &str = "register_skill";

/// The tool, and the names of configured skills, which it refuses.
#[derive(Clone, Debug)]
pub struct Registration {
    pub taken: BTreeSet<String>,
}

/// Stores skills for a run.
#[async_trait]
pub trait Registrar: Send + Sync {
    /// Stores a validated skill and returns the tool result.
    async fn register(&self, skill: NewSkill) -> Result<Value, UpstreamError>;
}

impl Registration {
    /// The tool as listed in the catalog.
    pub fn resource() -> ToolResource {
        let description = "Keeps a skill for later: runs of this agent that begin after this one can \
                           activate it. A skill of the same name that an earlier run has registered is replaced.";
        ToolResource {
            tool_name: NAME.to_owned(),
            tool_type: Some("gateway".to_owned()),
            description: Some(description.to_owned()),
            operations: ToolOperation::ALL.to_vec(),
            parameters: parameters().as_object().cloned(),
            source: Some("gateway".to_owned()),
            effect: Some(ToolEffect::Write),
            idempotent: None,
            effect_source: Some(EffectSource::Operator),
            approval: None,
        }
    }

    /// Checks rules that the schema cannot express.
    pub(crate) fn check(&self, parameters: &JsonObject) -> Result<(), Vec<Fault>> {
        let skill = match new_skill(parameters) {
            Ok(skill) => skill,
            Err(why) => return Err(vec![Fault::new("/parameters", why)]),
        };
        let mut faults = check_skill(&skill);
        if self.taken.contains(&skill.skill_name) {
            let message = "is the name of a skill of the operator's; choose another";
            faults.push(Fault::new("/skill_name", message));
        }
        // Pointers are relative to the skill, which is the object of parameters.
        for fault in &mut faults {
            fault.pointer.insert_str(0, "/parameters");
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults)
        }
    }
}

/// Stores the skill of a call with validated parameters.
pub(crate) async fn register(
    registrar: &dyn Registrar,
    parameters: &JsonObject,
) -> Result<Value, UpstreamError> {
    // `check` has refused such parameters already; the conversion is repeated to get the typed value.
    let skill = new_skill(parameters).map_err(UpstreamError::Unsupported)?;
    registrar.register(skill).await
}

fn new_skill(parameters: &JsonObject) -> Result<NewSkill, String> {
    serde_json::from_value(Value::Object(parameters.clone()))
        .map_err(|_| "must be a skill as the tool's schema has it".to_owned())
}

fn parameters() -> Value {
    let file = json!({
        "type": "object", "required": ["path", "content"], "additionalProperties": false,
        "properties": {
            "path": {"type": "string", "maxLength": PATH_BYTES, "pattern": PATH_PATTERN,
                "description": "Relative, with slashes."},
            "content": {"type": "string", "maxLength": SKILL_BYTES},
        },
    });
    json!({
        "type": "object", "required": ["skill_name", "description", "content"],
        "additionalProperties": false,
        "properties": {
            "skill_name": {"type": "string", "maxLength": NAME_BYTES, "pattern": NAME_PATTERN,
                "description": "Words of a-z and 0-9, joined by `-` or `_`. A skill of the operator's keeps its name."},
            "description": {"type": "string", "minLength": 1, "maxLength": DESCRIPTION_CHARS,
                "description": "What the skill is for, and when to activate it."},
            "content": {"type": "string", "minLength": 1, "maxLength": SKILL_BYTES,
                "description": "The instructions in Markdown, without front matter. With all files at most 256 KiB."},
            "files": {"type": "array", "items": file, "maxItems": SKILL_FILES,
                "description": "Further text files, read by read_skill_file."},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::schema::Schema;
    use super::*;

    async fn pointers(changes: &Value) -> Vec<String> {
        let mut skill = json!({"skill_name": "brief", "description": "Short.", "content": "Cut."});
        let changes = changes.as_object().unwrap().clone();
        let skill = skill.as_object_mut().unwrap();
        skill.extend(changes);
        let tool = Registration {
            taken: ["summary".to_owned()].into(),
        };
        let schema = Schema::compile(parameters().as_object().unwrap()).unwrap();
        let judged = schema.check(skill).await.and_then(|()| tool.check(skill));
        let faults = judged.err().unwrap_or_default();
        faults.into_iter().map(|fault| fault.pointer).collect()
    }

    #[tokio::test]
    async fn registration_faults_point_into_parameters() {
        let file = |path: &str| json!({"files": [{"path": path, "content": ""}]});
        let long = "a".repeat(SKILL_BYTES);
        for (changes, expected) in [
            (json!({}), vec![]),
            (file("a/b.md"), vec![]),
            (
                json!({"skill_name": "summary"}),
                vec!["/parameters/skill_name"],
            ),
            (json!({"skill_name": "A b"}), vec!["/parameters/skill_name"]),
            (
                json!({"skill_name": "brief\n"}),
                vec!["/parameters/skill_name"],
            ),
            (
                json!({"content": "---\nname: x\n---\n"}),
                vec!["/parameters/content"],
            ),
            (json!({"content": long}), vec!["/parameters"]),
            (json!({"content": 7}), vec!["/parameters/content"]),
            (file("../b"), vec!["/parameters/files/0/path"]),
            (file("/etc/passwd"), vec!["/parameters/files/0/path"]),
            (file("SKILL.md"), vec!["/parameters/files/0/path"]),
            (json!({"more": 1}), vec!["/parameters"]),
        ] {
            assert_eq!(pointers(&changes).await, expected, "{expected:?}");
        }
    }
}
