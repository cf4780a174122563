//! The arms of the comparison: a runner, its configuration, and the output form of its model.

use serde_json::{Map, Value, json};

use super::upstream::CHILD;

/// Characters of a tool's result that the Local Agent shows in arm C: the cap of a summary, 600 tokens.
const SUMMARY_CHARS: u64 = 2_400;

/// An agent of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Arm {
    /// Local Agent, one call a turn.
    Serial,
    /// Local Agent, parallel calls.
    Parallel,
    /// As `Parallel`, with results cut to the size of a summary.
    Budgets,
    /// Protocol agent, flat carrier without bindings.
    Flat,
    /// Protocol agent, flat carrier with bindings: the default.
    Bound,
    /// Protocol agent, the full DSL with bindings, lists and conditions.
    Full,
    /// As `Full`, with reports.
    Report,
}

/// The output form of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputForm {
    /// Native tool calls.
    Native,
    /// The tool `AgentProtocolOutput`.
    Carrier,
    /// A fenced block.
    Fenced,
}

impl Arm {
    pub(super) const ALL: [Self; 7] = [
        Self::Serial,
        Self::Parallel,
        Self::Budgets,
        Self::Flat,
        Self::Bound,
        Self::Full,
        Self::Report,
    ];

    /// The arm's letter in tables.
    pub(super) fn letter(self) -> &'static str {
        match self {
            Self::Serial => "A",
            Self::Parallel => "B",
            Self::Budgets => "C",
            Self::Flat => "D",
            Self::Bound => "D+",
            Self::Full => "E",
            Self::Report => "F",
        }
    }

    /// The arm's configuration in words.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Serial => "Local Agent, one tool call a turn",
            Self::Parallel => "Local Agent, parallel tool calls",
            Self::Budgets => "as B, each tool result cut to its first 2,400 characters",
            Self::Flat => "protocol agent, flat carrier without bindings",
            Self::Bound => "as D with bindings, the default of the agent's form",
            Self::Full => "protocol agent, fenced DSL with bindings, `for_each`, `when`",
            Self::Report => "as E with `report`",
        }
    }

    /// The name of the arm's agent and model.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Parallel => "parallel",
            Self::Budgets => "budgets",
            Self::Flat => "flat",
            Self::Bound => "bound",
            Self::Full => "full",
            Self::Report => "report",
        }
    }

    /// The arm of this name.
    pub(super) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|arm| arm.name() == name)
    }

    pub(super) fn form(self) -> OutputForm {
        match self {
            Self::Serial | Self::Parallel | Self::Budgets => OutputForm::Native,
            Self::Flat | Self::Bound => OutputForm::Carrier,
            Self::Full | Self::Report => OutputForm::Fenced,
        }
    }

    /// True when a graph may bind arguments to earlier results.
    pub(super) fn binds(self) -> bool {
        matches!(self, Self::Bound | Self::Full | Self::Report)
    }

    /// The configuration of the arm's agent.
    pub(super) fn config(self) -> Value {
        let mut config = match self {
            Self::Serial => json!({"tool-execution-mode": "serial"}),
            Self::Parallel => json!({"tool-execution-mode": "parallel"}),
            Self::Budgets => json!({
                "tool-execution-mode": "parallel", "max-tool-result-chars": SUMMARY_CHARS,
            }),
            Self::Flat => json!({
                "carrier": "flat", "feature-bind": false, "feature-when": false,
                "feature-for-each": false, "feature-repeat": false, "feature-report": false,
            }),
            Self::Bound => json!({"carrier": "flat"}),
            Self::Full => json!({"carrier": "fenced", "feature-report": false}),
            Self::Report => json!({"carrier": "fenced"}),
        };
        let mut all = Map::from_iter([
            ("model".to_owned(), json!({"primary": self.name()})),
            (
                "prompt".to_owned(),
                json!([{"role": "system", "content": ROLE}]),
            ),
        ]);
        if self.form() != OutputForm::Native {
            all.insert("protocol-enabled".to_owned(), json!(true));
            // A child run may use only models that its parent's agent names.
            let models = json!({"primary": self.name(), "fallbacks": [CHILD]});
            all.insert("model".to_owned(), models);
        }
        if let Some(own) = config.as_object_mut() {
            all.append(own);
        }
        Value::Object(all)
    }
}

/// The same role for all arms.
const ROLE: &str = "You are an assistant of an office. Use the tools; never invent a result.";
