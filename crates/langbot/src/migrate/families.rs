//! The built-in runners and the plugins that took their place.

mod map;

use map::FAMILIES;

use super::{LocalAgent, RunnerIds, Target, connectors};

/// The id of Runnel's own Local Agent.
pub(super) const OWN_LOCAL_AGENT: &str = "plugin:runnel/local-agent/default";

/// A built-in runner of LangBot and the plugin that took its place.
#[derive(Debug)]
pub(super) struct Family {
    /// The name in `ai.runner.runner`, and of its section in `ai`.
    pub(super) legacy: &'static str,
    /// The plugin of `langbot-team`.
    pub(super) plugin: &'static str,
    /// The plugin of `langbot`, its first form.
    pub(super) older: &'static str,
    pub(super) fields: &'static [Field],
    /// What the new runner is told beside the old fields: its defaults, and what keeps it as it was.
    pub(super) adds: &'static [Add],
    /// Which fields a choice needs.
    pub(super) needs: &'static [(&'static str, &'static str, &'static [&'static str])],
    /// `output.misc.remove-think` is a setting of this runner.
    pub(super) removes_think: bool,
    /// Settings that the plugin of `langbot` does not know.
    pub(super) newer: &'static [&'static str],
    /// Values that the plugin of `langbot` does not know, and what it knows for them.
    pub(super) newer_values: &'static [(&'static str, &'static str, &'static str)],
    /// It calls models, tools and knowledge bases of the host.
    pub(super) uses_host: bool,
    /// Its deltas hold the whole text so far.
    pub(super) snapshots: bool,
    /// Its operations on the files of messages and answers.
    pub(super) files: &'static [&'static str],
}

/// A field of the old section.
#[derive(Debug)]
pub(super) struct Field {
    /// Its names; the first that says something wins.
    pub(super) from: &'static [&'static str],
    pub(super) to: &'static str,
    pub(super) kind: Kind,
    pub(super) need: Need,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Url,
    Secret,
    Bool,
    /// Whether thoughts are removed, by the word of `thinking-convert`.
    Thoughts,
    Integer,
    Number,
    Names,
    Choice(&'static [&'static str]),
    /// An object, or a text that holds one.
    Object,
    Model,
    Prompt,
    /// Read for the agent's `resource_policy`, and for nothing else.
    Policy,
    /// Has no place here: why.
    Nowhere(&'static str),
}

/// What follows when the field is not there. Defaults are JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// It cannot be invented.
    Critical,
    Default(&'static str),
    Optional,
    /// What stood there does not matter.
    Always(&'static str, &'static str),
    /// The default depends on `app-type`.
    ByAppType(&'static [(&'static str, &'static str)]),
}

#[derive(Debug)]
pub(super) struct Add {
    pub(super) to: &'static str,
    /// JSON.
    pub(super) value: &'static str,
    pub(super) why: &'static str,
}

impl Family {
    /// The id of its runner.
    pub(super) fn runner_id(&self, to: Target<'_>) -> String {
        match to.ids {
            _ if self.is_runnel(to) => OWN_LOCAL_AGENT.to_owned(),
            RunnerIds::Newer => format!("plugin:langbot-team/{}/default", self.plugin),
            RunnerIds::Older => format!("plugin:langbot/{}/default", self.older),
        }
    }

    /// Whether Runnel's own Local Agent takes its place.
    pub(super) fn is_runnel(&self, to: Target<'_>) -> bool {
        self.uses_host && to.local_agent == LocalAgent::Runnel
    }

    /// The settings that its runner does not know.
    pub(super) fn unknown(&self, to: Target<'_>) -> &'static [&'static str] {
        match to.ids {
            _ if self.is_runnel(to) => &[],
            _ if !self.uses_host && to.connectors.is_some() => connectors::UNKNOWN,
            RunnerIds::Newer => &[],
            RunnerIds::Older => self.newer,
        }
    }

    /// The family of a built-in runner's name.
    pub(super) fn of_legacy(name: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.legacy == name)
    }

    /// The family of a plugin's runner, under either of its ids.
    pub(super) fn of_id(id: &str) -> Option<&'static Self> {
        let forms = [RunnerIds::Newer.into(), RunnerIds::Older.into()];
        let is_own = |family: &Self| family.uses_host && id == OWN_LOCAL_AGENT;
        FAMILIES
            .iter()
            .find(|family| is_own(family) || forms.iter().any(|&to| family.runner_id(to) == id))
    }
}
