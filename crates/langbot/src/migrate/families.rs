//! Built-in runners and their successor plugins.

mod map;

use map::FAMILIES;

use super::connectors;
use super::target::{LocalAgentTarget, MigrationTarget, RunnerIds};

/// Id of Runnel's Local Agent.
pub(super) const OWN_LOCAL_AGENT: &str = "plugin:runnel/local-agent/default";

/// A built-in runner of LangBot and its successor plugin.
#[derive(Debug)]
pub(super) struct Family {
    /// Name in `ai.runner.runner`, and of its section in `ai`.
    pub(super) legacy: &'static str,
    /// Plugin of the author `langbot-team`.
    pub(super) plugin: &'static str,
    /// Earlier plugin of the author `langbot`.
    pub(super) older: &'static str,
    pub(super) fields: &'static [FamilyField],
    /// Settings of the new runner without an old field: its defaults, and values that preserve the old
    /// behaviour.
    pub(super) adds: &'static [Add],
    /// Fields that a choice requires.
    pub(super) needs: &'static [(&'static str, &'static str, &'static [&'static str])],
    /// True if `output.misc.remove-think` is a setting of this runner.
    pub(super) removes_think: bool,
    /// Settings that the earlier plugin does not support.
    pub(super) newer: &'static [&'static str],
    /// Values that the earlier plugin does not support, with their replacements.
    pub(super) newer_values: &'static [(&'static str, &'static str, &'static str)],
    /// True if it calls models, tools and knowledge bases of the host.
    pub(super) uses_host: bool,
    /// True if its deltas contain the complete text so far.
    pub(super) snapshots: bool,
    /// Operations on files of messages and answers.
    pub(super) files: &'static [&'static str],
}

/// A field of the old section.
#[derive(Debug)]
pub(super) struct FamilyField {
    /// Names of the field. The first non-empty one wins.
    pub(super) from: &'static [&'static str],
    pub(super) to: &'static str,
    pub(super) kind: FieldKind,
    pub(super) need: FieldNeed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldKind {
    Text,
    Url,
    Secret,
    Bool,
    /// The removal of reasoning, by the value of `thinking-convert`.
    RemoveReasoning,
    Integer,
    Number,
    Names,
    Choice(&'static [&'static str]),
    /// An object, or a text that contains one.
    Object,
    Model,
    Prompt,
    /// Used only for the agent's `resource_policy`.
    Policy,
    /// No counterpart, for this reason.
    Nowhere(&'static str),
}

/// Handling of an absent field. Defaults are JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldNeed {
    /// Required, without a default.
    Critical,
    Default(&'static str),
    Optional,
    /// A fixed value that replaces any old value.
    Always(&'static str, &'static str),
    /// The default depends on `app-type`.
    ByAppType(&'static [(&'static str, &'static str)]),
}

#[derive(Debug)]
pub(super) struct Add {
    pub(super) to: &'static str,
    /// A JSON text.
    pub(super) value: &'static str,
    pub(super) why: &'static str,
}

impl Family {
    /// Returns the id of its runner.
    pub(super) fn runner_id(&self, to: MigrationTarget<'_>) -> String {
        match to.ids {
            // Runnel's Local Agent has one id, whatever format other ids have.
            _ if self.is_runnel(to) => OWN_LOCAL_AGENT.to_owned(),
            RunnerIds::Newer => format!("plugin:langbot-team/{}/default", self.plugin),
            RunnerIds::Older => format!("plugin:langbot/{}/default", self.older),
        }
    }

    /// Returns true if Runnel's Local Agent replaces it.
    pub(super) fn is_runnel(&self, to: MigrationTarget<'_>) -> bool {
        self.uses_host && to.local_agent == LocalAgentTarget::Runnel
    }

    /// Returns the settings that its runner does not support.
    pub(super) fn unknown(&self, to: MigrationTarget<'_>) -> &'static [&'static str] {
        match to.ids {
            _ if self.is_runnel(to) => &[],
            _ if !self.uses_host && to.connectors.is_some() => connectors::UNKNOWN,
            RunnerIds::Newer => &[],
            RunnerIds::Older => self.newer,
        }
    }

    /// Returns the family of a built-in runner's name.
    pub(super) fn of_legacy(name: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.legacy == name)
    }

    /// Returns the family of a plugin's runner, under either id.
    pub(super) fn of_id(id: &str) -> Option<&'static Self> {
        let forms = [RunnerIds::Newer.into(), RunnerIds::Older.into()];
        // The id of Runnel's own agent is in no map of plugins.
        let is_own = |family: &Self| family.uses_host && id == OWN_LOCAL_AGENT;
        FAMILIES
            .iter()
            .find(|family| is_own(family) || forms.iter().any(|&to| family.runner_id(to) == id))
    }
}
